//! What happens to the file: full disks, locks, permissions, moves, foreign files, copies, odd names.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use workcrew::audit::verify::{Heads, Verify};
use workcrew::chain::Hash;
use workcrew::clock::{Clock, ManualClock, SystemClock};
use workcrew::limits::AccountHolder;
use workcrew::repository::sqlite::{OpenError, SqliteArchive, SqliteOptions};
use workcrew::repository::{
    By, CancelAnswer, ClaimRequest, Claimant, Closed, Intake, LeaseView, Result, Scope, Slot, Submitted,
};
use workcrew::{
    Archive, AttemptReport, Beginning, Charge, JobChange, JobId, Lease, Message, Money, NewJob, NewOwner, NewUnit,
    OwnerId, OwnerState, Process, Progress, Repository, RepositoryError, SqliteRepository, Tokens, UnitStatus,
    WorkerId,
};

use crate::children::{self, Role, say, spawn_waiting};
use crate::support;
use crate::support::small_disk::SmallDisk;

const LEASE: Duration = Duration::from_secs(3_600);

/// Longer than anything here takes, however busy the machine is.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A database with a job, an owner and a unit that is being executed.
struct Bench {
    repository: SqliteRepository,
    job: JobId,
    owner: OwnerId,
    lease: Lease,
}

impl Bench {
    fn new(repository: SqliteRepository) -> Bench {
        let job = repository.create_job(&NewJob::named("storage")).unwrap().id;
        let process = Process::this(&SystemClock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "a test")).unwrap();
        let lease = submit(&repository, job, owner, "running").unwrap();
        repository.start(&lease, &Beginning::default()).unwrap();
        Bench { repository, job, owner, lease }
    }

    fn at(path: impl AsRef<Path>) -> Bench {
        Bench::new(SqliteRepository::open(path).unwrap())
    }

    fn submit(&self, id: &str) -> Result<Lease> {
        submit(&self.repository, self.job, self.owner, id)
    }

    fn insert(&self, id: &str) -> Result<()> {
        self.repository.insert(self.job, &[new_unit(id)], Intake::Open).map(drop)
    }

    fn finish(&self) -> Result<Closed> {
        self.repository.finish(&self.lease, &report())
    }

    /// Finishes in a thread of its own, which has to wait.
    fn finish_meanwhile(&self) -> JoinHandle<Result<Closed>> {
        let (repository, lease) = (self.repository.clone(), self.lease.clone());
        spawn_waiting(move || repository.finish(&lease, &report()))
    }

    fn assert_clean(&self, acknowledged: &[&str]) {
        let acknowledged = acknowledged.iter().map(|&id| (self.job, id));
        assert_clean(&self.repository, &Verify::new().acknowledged(acknowledged));
    }
}

fn submit(repository: &SqliteRepository, job: JobId, owner: OwnerId, id: &str) -> Result<Lease> {
    let slot = Slot::new(WorkerId::new(format!("w-{id}")).unwrap());
    match repository.submit(job, &new_unit(id), &Claimant::new(owner, LEASE), &slot)? {
        Submitted::Claimed(claim) => Ok(claim.lease),
        other => panic!("not claimed: {other:?}"),
    }
}

fn new_unit(id: &str) -> NewUnit {
    NewUnit::new(id).prompt("x".repeat(20_000))
}

fn report() -> AttemptReport {
    AttemptReport::completed().output("an answer that was paid for ".repeat(1_000))
}

fn assert_clean(archive: &dyn Archive, verify: &Verify) {
    let verification = verify.run(archive).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

// ---------------------------------------------------------------------------------------------- a disk that is full

#[test]
fn on_a_full_disk_a_submission_fails_at_once_while_a_result_is_kept_until_there_is_room() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let bench = Bench::at(disk.path("small.db"));
    bench.insert("before").unwrap();
    disk.fill();
    let finishing = bench.finish_meanwhile();
    let began = Instant::now();
    for number in 0..5 {
        let full = bench.submit(&format!("full-{number}")).unwrap_err();
        assert!(matches!(full, RepositoryError::StorageFull), "{full:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(!finishing.is_finished());
    assert_eq!(bench.repository.unit(bench.job, "running").unwrap().status, UnitStatus::Processing);
    disk.free();
    assert_eq!(finishing.join().unwrap().unwrap().status, UnitStatus::Completed);
    bench.submit("after").unwrap();
    bench.assert_clean(&["before", "running", "after"]);
    assert_eq!(bench.repository.counts(bench.job).unwrap().total(), 3);
}

#[test]
fn a_result_is_an_error_once_the_disk_was_full_for_longer_than_the_patience() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let patience = Duration::from_millis(300);
    let bench = Bench::new(SqliteOptions::new().write_patience(patience).open(disk.path("small.db")).unwrap());
    disk.fill();
    let began = Instant::now();
    let full = bench.finish().unwrap_err();
    assert!(matches!(full, RepositoryError::StorageFull), "{full:?}");
    assert!(began.elapsed() >= patience);
    disk.free();
    assert_eq!(bench.finish().unwrap().status, UnitStatus::Completed);
    bench.assert_clean(&["running"]);
}

#[test]
fn messages_that_could_not_be_stored_are_counted_when_the_attempt_ends() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let patience = Duration::from_millis(300);
    let bench = Bench::new(SqliteOptions::new().write_patience(patience).open(disk.path("small.db")).unwrap());
    bench.repository.append(&bench.lease, 0, &[Message::user("kept")]).unwrap();
    bench.repository.flush(&bench.lease).unwrap();
    disk.fill();
    let long = Message::assistant("x".repeat(10_000));
    bench.repository.append(&bench.lease, 1, &[long.clone(), long]).unwrap();
    let lost = bench.repository.flush(&bench.lease).unwrap_err();
    assert_eq!(lost.to_string(), "2 messages of attempt 1 of unit `running` are lost");
    disk.free();
    // It follows messages that are not there.
    bench.repository.append(&bench.lease, 3, &[Message::user("behind the gap")]).unwrap();
    bench.finish().unwrap();
    let attempt = &bench.repository.attempts(bench.lease.unit).unwrap()[0];
    assert_eq!((attempt.message_count, attempt.messages_lost), (Some(1), 3));
    bench.assert_clean(&["running"]);
}

#[test]
fn what_still_waits_for_room_when_the_repository_is_dropped_is_written_first() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let Bench { repository, lease, job, .. } = Bench::at(disk.path("small.db"));
    disk.fill();
    repository.append(&lease, 0, &[Message::assistant("x".repeat(10_000))]).unwrap();
    let dropping = std::thread::spawn(move || drop(repository));
    disk.free();
    dropping.join().unwrap();
    let repository = SqliteRepository::open(disk.path("small.db")).unwrap();
    assert_eq!(repository.messages(lease.attempt(), 0, 10).unwrap().items.len(), 1);
    assert_eq!(repository.unit(job, "running").unwrap().status, UnitStatus::Processing);
    assert_clean(&repository, &Verify::new());
}

// --------------------------------------------------------------------------------------------- a file that is locked

/// Holds the lock that every writer needs, until it is dropped.
struct Lock(Connection);

impl Lock {
    fn on(path: &Path) -> Lock {
        let connection = Connection::open(path).unwrap();
        connection.busy_timeout(WATCHDOG).unwrap();
        connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        Lock(connection)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.execute_batch("COMMIT").unwrap();
    }
}

#[test]
fn a_change_waits_while_another_process_has_the_file_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::new(SqliteOptions::new().busy_timeout(WATCHDOG).open(&path).unwrap());
    let lock = Lock::on(&path);
    let finishing = bench.finish_meanwhile();
    // Readers are not in the way of whoever writes, nor the other way round.
    assert_eq!(bench.repository.unit(bench.job, "running").unwrap().status, UnitStatus::Processing);
    assert!(!finishing.is_finished());
    drop(lock);
    assert_eq!(finishing.join().unwrap().unwrap().status, UnitStatus::Completed);
    bench.assert_clean(&["running"]);
}

#[test]
fn everybody_who_waits_for_a_locked_file_is_told_in_time_that_it_is_busy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let timeout = Duration::from_millis(300);
    let bench = Bench::new(SqliteOptions::new().busy_timeout(timeout).open(&path).unwrap());
    let lock = Lock::on(&path);
    let began = Instant::now();
    std::thread::scope(|threads| {
        for number in 0..40 {
            let bench = &bench;
            threads.spawn(move || {
                let busy = bench.insert(&format!("busy-{number}")).unwrap_err();
                assert!(matches!(busy, RepositoryError::Busy), "{busy:?}");
            });
        }
    });
    let waited = began.elapsed();
    assert!(waited >= timeout && waited < 20 * timeout, "{waited:?}");
    drop(lock);
    bench.insert("after").unwrap();
    bench.assert_clean(&["running", "after"]);
    assert_eq!(bench.repository.counts(bench.job).unwrap().total(), 2);
}

#[test]
fn what_an_attempt_brought_outlasts_a_lock_that_others_do_not_wait_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::new(SqliteOptions::new().busy_timeout(Duration::from_millis(100)).open(&path).unwrap());
    let lock = Lock::on(&path);
    bench.repository.append(&bench.lease, 0, &[Message::user("kept")]).unwrap();
    let finishing = bench.finish_meanwhile();
    assert!(matches!(bench.insert("busy"), Err(RepositoryError::Busy)));
    assert!(!finishing.is_finished());
    drop(lock);
    assert_eq!(finishing.join().unwrap().unwrap().status, UnitStatus::Completed);
    let attempt = &bench.repository.attempts(bench.lease.unit).unwrap()[0];
    assert_eq!((attempt.message_count, attempt.messages_lost), (Some(1), 0));
    bench.assert_clean(&["running"]);
}

#[test]
fn a_heartbeat_that_arrives_while_the_file_is_locked_goes_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let clock = ManualClock::new();
    let repository = SqliteOptions::new().clock(clock.clone()).busy_timeout(WATCHDOG).open(&path).unwrap();
    let bench = Bench::new(repository);
    let lock = Lock::on(&path);
    clock.advance(2 * LEASE);
    // The lease has run out: whichever of the two comes first decides what becomes of it.
    let repository = bench.repository.clone();
    let sweeping = spawn_waiting(move || repository.expire(10));
    let (repository, owner) = (bench.repository.clone(), bench.owner);
    let renewing = spawn_waiting(move || repository.renew(owner, LEASE));
    let (repository, job) = (bench.repository.clone(), bench.job);
    let cancelling = spawn_waiting(move || repository.cancel(job, "running", &By::whom("ada")));
    drop(lock);
    assert_eq!(sweeping.join().unwrap().unwrap(), []);
    assert_eq!(renewing.join().unwrap().unwrap().len(), 1);
    assert_eq!(cancelling.join().unwrap().unwrap(), CancelAnswer::Requested);
    bench.finish().unwrap();
    bench.assert_clean(&["running"]);
}

#[test]
fn a_lease_lasts_from_when_it_is_granted_however_long_its_claim_waited_for_the_file() {
    // 003-F31, 003-F35. Whoever renews meanwhile goes first, and counts from then on.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let clock = ManualClock::new();
    let repository = SqliteOptions::new().clock(clock.clone()).busy_timeout(WATCHDOG).open(&path).unwrap();
    let bench = Bench::new(repository);
    bench.insert("waits").unwrap();
    let lock = Lock::on(&path);
    let request = ClaimRequest::new(
        bench.job,
        Claimant::new(bench.owner, LEASE),
        Scope::Pending,
        vec![Slot::new(WorkerId::new("another").unwrap())],
    );
    let repository = bench.repository.clone();
    let claiming = spawn_waiting(move || repository.claim(&request));
    clock.advance(2 * LEASE);
    let (repository, owner) = (bench.repository.clone(), bench.owner);
    let renewing = spawn_waiting(move || repository.renew(owner, LEASE));
    clock.advance(LEASE / 2);
    drop(lock);
    assert_eq!(renewing.join().unwrap().unwrap().len(), 1);
    let claims = claiming.join().unwrap().unwrap();
    let lease_ms = i64::try_from(LEASE.as_millis()).unwrap();
    assert_eq!(claims[0].lease.until_ms, clock.now().boot_ms + lease_ms);
    let left_ms = |lease: &LeaseView| lease.left_ms;
    let left: Vec<i64> = bench.repository.leases(None, 0, 10).unwrap().items.iter().map(left_ms).collect();
    assert_eq!(left, [lease_ms; 2]);
}

// ------------------------------------------------------------------------------------- a file that cannot be written

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    let Some(role) = children::role() else { return };
    let path = children::path();
    match role.as_str() {
        "write" => say(match SqliteRepository::open(path) {
            Ok(_) => "opened".to_owned(),
            Err(OpenError::ReadOnly { .. }) => "ReadOnly".to_owned(),
            Err(error) => format!("{error:?}"),
        }),
        "read" => say(match SqliteArchive::open(path) {
            Ok(archive) => {
                assert_clean(&archive, &Verify::new());
                format!("{} units", archive.counts(JobId(1)).unwrap().total())
            }
            Err(OpenError::UnreadableLog { .. }) => "UnreadableLog".to_owned(),
            Err(error) => format!("{error:?}"),
        }),
        "leave a log" => {
            let bench = Bench::at(path);
            // Enough for the file to grow when they are moved into it.
            (0..9).for_each(|number| bench.insert(&format!("in the log {number}")).unwrap());
            say("written");
            // Killed here: nothing is tidied up.
            children::hear();
        }
        _ => panic!("`{role}` is no role"),
    }
}

/// What somebody who owns nothing gets when it opens a file.
fn as_nobody(binary: &Path, role: &str, path: &Path) -> String {
    const NOBODY: u32 = 65_534;
    Role::of(binary.to_owned(), "storage::child", role, path).user(NOBODY).start().end_well().join("\n")
}

/// A folder that everybody can enter, with a copy of this binary that everybody can execute. `None` if this test
/// runs with no more rights than anybody.
fn public_folder() -> Option<(tempfile::TempDir, PathBuf)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become somebody else");
        return None;
    }
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (this, binary) = (std::env::current_exe().unwrap(), folder.path().join("binary"));
    if fs::hard_link(&this, &binary).is_err() {
        fs::copy(&this, &binary).unwrap();
    }
    Some((folder, binary))
}

#[test]
fn a_file_that_cannot_be_written_is_refused_for_writing_and_read_all_the_same() {
    let Some((folder, binary)) = public_folder() else { return };
    let path = folder.path().join("batch.db");
    drop(Bench::at(&path));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    // Neither the file nor its folder: it is read as one that nobody writes.
    assert_eq!(as_nobody(&binary, "write", &path), "ReadOnly");
    assert_eq!(as_nobody(&binary, "read", &path), "1 units");
    // The folder can be written.
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    assert_eq!(as_nobody(&binary, "write", &path), "ReadOnly");
    assert_eq!(as_nobody(&binary, "read", &path), "1 units");
}

#[test]
fn a_file_in_a_folder_that_cannot_be_written_is_refused_for_writing() {
    let Some((folder, binary)) = public_folder() else { return };
    let path = folder.path().join("batch.db");
    drop(Bench::at(&path));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    assert_eq!(as_nobody(&binary, "write", &path), "ReadOnly");
    assert_eq!(as_nobody(&binary, "read", &path), "1 units");
}

#[test]
fn changes_in_a_log_that_cannot_be_read_are_not_passed_over() {
    let Some((folder, binary)) = public_folder() else { return };
    let path = folder.path().join("batch.db");
    let mut child = Role::new("storage::child", "leave a log", &path).start();
    child.wait_for("written");
    drop(child);
    assert!(fs::metadata(beside(&path, "-wal")).unwrap().len() > 0);
    fs::remove_file(beside(&path, "-shm")).unwrap();
    for path in [&path, &beside(&path, "-wal")] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o444)).unwrap();
    }
    assert_eq!(as_nobody(&binary, "read", &path), "UnreadableLog");
    let archive = SqliteArchive::open(&path).unwrap();
    assert_eq!(archive.counts(JobId(1)).unwrap().total(), 10);
}

#[test]
fn a_file_whose_writer_was_killed_while_it_emptied_the_log_is_whole() {
    use std::os::unix::fs::FileExt;
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("batch.db"), folder.path().join("copy.db"));
    let mut child = Role::new("storage::child", "leave a log", &path).start();
    child.wait_for("written");
    drop(child);
    for suffix in ["", "-wal"] {
        fs::copy(beside(&path, suffix), beside(&copy, suffix)).unwrap();
    }
    drop(SqliteRepository::open(&copy).unwrap());
    // The log is emptied page by page: the first one says how long the file will be once the last one is there.
    let first_page = &fs::read(&copy).unwrap()[..16 * 1_024];
    assert!(fs::metadata(&path).unwrap().len() < fs::metadata(&copy).unwrap().len());
    fs::OpenOptions::new().write(true).open(&path).unwrap().write_all_at(first_page, 0).unwrap();
    let archive = SqliteArchive::open(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_clean(&archive, &Verify::new().acknowledged([(JobId(1), "in the log 8")]));
    let repository = SqliteRepository::open(&path).unwrap_or_else(|error| panic!("{error}"));
    assert_clean(&repository, &Verify::new().acknowledged([(JobId(1), "in the log 8")]));
}

// ---------------------------------------------------------------------------------------- a file that is taken away

#[test]
fn once_the_file_is_moved_or_deleted_nothing_more_is_acknowledged() {
    type TakeAway = fn(&Path);
    let ways: [(&str, TakeAway); 4] = [
        ("deleted", |path| fs::remove_file(path).unwrap()),
        ("moved", |path| fs::rename(path, beside(path, ".moved")).unwrap()),
        ("replaced", |path| {
            fs::remove_file(path).unwrap();
            fs::write(path, "another file").unwrap();
        }),
        ("folder moved", |path| {
            let folder = path.parent().unwrap();
            fs::rename(folder, beside(folder, ".moved")).unwrap();
        }),
    ];
    for (way, take_away) in ways {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("inner")).unwrap();
        let path = folder.path().join("inner/batch.db");
        let bench = Bench::at(&path);
        take_away(&path);
        let is_gone = |error: RepositoryError| matches!(error, RepositoryError::Gone { .. });
        assert!(is_gone(bench.insert("after").unwrap_err()), "{way}");
        assert!(is_gone(bench.repository.renew(bench.owner, LEASE).unwrap_err()), "{way}");
        assert!(is_gone(bench.finish().unwrap_err()), "{way}");
        // What nobody waits for is not acknowledged either.
        bench.repository.append(&bench.lease, 0, &[Message::user("lost")]).unwrap();
        assert!(is_gone(bench.repository.flush(&bench.lease).unwrap_err()), "{way}");
    }
}

#[test]
fn a_change_that_waits_for_a_lock_while_the_file_is_taken_away_is_not_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::at(&path);
    let lock = Lock::on(&path);
    let finishing = bench.finish_meanwhile();
    fs::rename(&path, beside(&path, ".moved")).unwrap();
    drop(lock);
    assert!(matches!(finishing.join().unwrap(), Err(RepositoryError::Gone { .. })));
}

#[test]
fn a_file_that_comes_back_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::at(&path);
    fs::rename(&path, beside(&path, ".moved")).unwrap();
    assert!(matches!(bench.insert("meanwhile"), Err(RepositoryError::Gone { .. })));
    fs::rename(beside(&path, ".moved"), &path).unwrap();
    bench.insert("after").unwrap();
    bench.finish().unwrap();
    bench.assert_clean(&["running", "after"]);
    assert_eq!(bench.repository.counts(bench.job).unwrap().total(), 2);
}

// ----------------------------------------------------------------------------------------- a file that is not ours

/// Makes a foreign file at a path.
type Make = fn(&Path);

fn altered(path: &Path, sql: &str) {
    drop(Bench::at(path));
    let connection = Connection::open(path).unwrap();
    connection.execute_batch(sql).unwrap();
    connection.close().unwrap();
}

const FOREIGN: &[(&str, Make, &str)] = &[
    ("a text", |path| fs::write(path, "dear diary ".repeat(1_000)).unwrap(), "it is not a SQLite database"),
    ("an empty file", |path| fs::write(path, "").unwrap(), "it is empty"),
    ("a folder", |path| fs::create_dir(path).unwrap(), "it is not a file"),
    (
        "another program's database",
        |path| {
            let connection = Connection::open(path).unwrap();
            connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
        },
        "it is the SQLite database of another program",
    ),
    (
        "another program's database with a log",
        |path| {
            let connection = Connection::open(path).unwrap();
            connection.pragma_update(None, "journal_mode", "WAL").unwrap();
            connection.execute_batch("CREATE TABLE theirs (x)").unwrap();
        },
        "it is the SQLite database of another program",
    ),
    ("a later version", |path| altered(path, "PRAGMA user_version = 99"), "has schema version 99, this build knows"),
    ("a table more", |path| altered(path, "CREATE TABLE more (x)"), "its tables are not those of schema version"),
    ("an index less", |path| altered(path, "DROP INDEX journal_by_unit"), "its tables are not those of schema version"),
    (
        "a trigger",
        |path| altered(path, "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM work_units; END"),
        "its tables are not those of schema version",
    ),
    (
        "half a file",
        |path| {
            drop(Bench::at(path));
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(file.metadata().unwrap().len() / 2).unwrap();
        },
        "is damaged and was left alone",
    ),
    (
        "a file cut within its first page",
        |path| {
            drop(Bench::at(path));
            fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5_000).unwrap();
        },
        "is damaged and was left alone",
    ),
];

#[test]
fn what_is_not_ours_is_refused_with_the_reason_and_not_one_byte_of_it_changes() {
    for (what, make, reason) in FOREIGN {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file.db");
        make(&path);
        let seen = || {
            let metadata = fs::metadata(&path).unwrap();
            let hash = metadata.is_file().then(|| Hash::of(&fs::read(&path).unwrap()));
            (names_in(folder.path()), hash, metadata.mode(), metadata.mtime_nsec(), metadata.ino())
        };
        let before = seen();
        assert_eq!(before.0, ["file.db"], "{what}");
        let refusal = SqliteRepository::open(&path).unwrap_err().to_string();
        assert!(refusal.contains(reason), "{what}: {refusal}");
        assert_eq!(seen(), before, "{what}");
        // What has our tables and others can still be read. Reading leaves an empty log, which it may not remove.
        match SqliteArchive::open(&path) {
            Ok(_) => assert_eq!(seen().1, before.1, "{what}"),
            Err(refusal) => {
                assert!(refusal.to_string().contains(reason), "{what}: {refusal}");
                assert_eq!(seen(), before, "{what}");
            }
        }
    }
}

#[test]
fn a_file_that_is_not_there_is_not_made_by_reading_it() {
    let folder = tempfile::tempdir().unwrap();
    assert!(matches!(SqliteArchive::open(folder.path().join("no.db")), Err(OpenError::NotFound { .. })));
    assert!(SqliteRepository::open(folder.path().join("no folder/no.db")).is_err());
    assert_eq!(names_in(folder.path()), Vec::<String>::new());
}

// -------------------------------------------------------------------------------------------- a file that is ours

#[test]
fn nobody_else_can_read_the_file_its_log_or_its_copy() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::at(&path);
    let copy = bench.repository.backup(folder.path().join("copy.db")).unwrap();
    for path in [&path, &beside(&path, "-wal"), &beside(&path, "-shm"), &copy] {
        let mode = fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600, "{}", path.display());
    }
}

#[test]
fn whoever_opens_a_file_twice_shares_it_and_the_last_one_leaves_no_log() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::at(&path);
    std::os::unix::fs::symlink(&path, folder.path().join("link.db")).unwrap();
    let second = SqliteRepository::open(folder.path().join("link.db")).unwrap();
    assert_eq!(second.path(), bench.repository.path());
    let job = bench.job;
    drop(bench);
    assert_eq!(second.unit(job, "running").unwrap().status, UnitStatus::Processing);
    second.insert(job, &[new_unit("more")], Intake::Open).unwrap();
    assert!(beside(&path, "-wal").exists());
    drop(second);
    assert_eq!(names_in(folder.path()), ["batch.db", "link.db"]);
    let third = SqliteRepository::open(&path).unwrap();
    assert_eq!(third.counts(job).unwrap().total(), 2);
    assert_clean(&third, &Verify::new());
}

#[test]
fn opening_and_dropping_a_file_in_many_threads_at_once_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let barrier = Barrier::new(4);
    std::thread::scope(|threads| {
        for thread in 0..4 {
            let (path, barrier) = (&path, &barrier);
            threads.spawn(move || {
                barrier.wait();
                for number in 0..10 {
                    let repository = SqliteRepository::open(path).unwrap_or_else(|error| panic!("{error:?}"));
                    let job = repository.create_job(&NewJob::named("storage")).unwrap().id;
                    let id = format!("{thread}-{number}");
                    repository.insert(job, &[new_unit(&id)], Intake::Open).unwrap();
                }
            });
        }
    });
    assert_eq!(names_in(folder.path()), ["batch.db"]);
    let repository = SqliteRepository::open(&path).unwrap();
    assert_eq!(repository.counts(JobId(1)).unwrap().total(), 40);
    assert_clean(&repository, &Verify::new());
}

#[test]
fn what_dead_processes_left_of_a_database_they_were_making_is_removed_by_whoever_opens_it_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    drop(Bench::at(&path));
    let mut dead = Command::new("true").spawn().unwrap();
    dead.wait().unwrap();
    for suffix in ["", "-journal", "-wal", "-shm"] {
        fs::write(folder.path().join(format!(".batch.db.{}.abc.new{suffix}", dead.id())), "half").unwrap();
    }
    let kept = [format!(".batch.db.{}.abc.new", std::process::id()), ".batch.db.notes".to_owned()];
    kept.iter().for_each(|name| fs::write(folder.path().join(name), "not theirs").unwrap());
    drop(SqliteRepository::open(&path).unwrap());
    let mut expected = vec!["batch.db".to_owned()];
    expected.extend(kept);
    expected.sort();
    assert_eq!(names_in(folder.path()), expected);
}

#[test]
fn a_copy_that_is_made_while_others_write_is_whole_and_can_be_opened() {
    let folder = tempfile::tempdir().unwrap();
    let bench = Bench::at(folder.path().join("batch.db"));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        let (bench, is_over) = (&bench, &is_over);
        let (written, wait_written) = std::sync::mpsc::channel();
        threads.spawn(move || {
            for number in 0.. {
                bench.insert(&format!("{number}")).unwrap();
                let _ = written.send(number);
                if is_over.load(Ordering::Relaxed) {
                    break;
                }
            }
        });
        for number in 0..3 {
            let acknowledged = wait_written.recv().unwrap();
            let copy = bench.repository.backup(folder.path().join(format!("copy-{number}.db"))).unwrap();
            assert_clean(&SqliteArchive::open(&copy).unwrap(), &Verify::new());
            let copy = SqliteRepository::open(&copy).unwrap();
            assert_clean(&copy, &Verify::new().acknowledged([(bench.job, format!("{acknowledged}"))]));
            copy.insert(bench.job, &[new_unit("only in the copy")], Intake::Open).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
    });
    let again = bench.repository.backup(folder.path().join("copy-0.db")).unwrap_err();
    assert!(matches!(again, RepositoryError::Invalid(_)), "{again:?}");
    assert!(bench.repository.unit(bench.job, "only in the copy").is_err());
    bench.assert_clean(&["running", "0"]);
}

#[test]
fn a_copy_made_by_vacuum_into_is_written_with_a_log_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let (path, copy) = (folder.path().join("batch.db"), folder.path().join("copy.db"));
    drop(Bench::at(&path));
    Connection::open(&path).unwrap().execute("VACUUM INTO ?1", [copy.to_str().unwrap()]).unwrap();
    let repository = SqliteRepository::open(&copy).unwrap();
    repository.insert(JobId(1), &[new_unit("more")], Intake::Open).unwrap();
    assert!(beside(&copy, "-wal").exists());
    assert_clean(&repository, &Verify::new());
}

#[test]
fn odd_paths_lead_to_the_file_of_that_name() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["a b.db", "what?mode=memory.db", "a#b.db", "100%25.db", "größe-数.db", "file:x.db", "no-suffix", "-v"];
    for name in names {
        let path = folder.path().join(name);
        let bench = Bench::at(&path);
        let copy = bench.repository.backup(folder.path().join(format!("copy of {name}"))).unwrap();
        drop(bench);
        for path in [path, copy] {
            assert_clean(&SqliteArchive::open(&path).unwrap(), &Verify::new());
            assert_eq!(SqliteRepository::open(&path).unwrap().counts(JobId(1)).unwrap().total(), 1);
        }
    }
    let mut expected: Vec<String> =
        names.iter().flat_map(|name| [(*name).to_owned(), format!("copy of {name}")]).collect();
    expected.sort();
    assert_eq!(names_in(folder.path()), expected);
}

// ------------------------------------------------------------------------------------------------ groups of changes

#[test]
fn changes_that_are_refused_do_not_disturb_those_they_are_written_with() {
    const THREADS: usize = 16;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("batch.db");
    let bench = Bench::at(&path);
    bench.insert("taken").unwrap();
    let stale = Lease::clone(&bench.lease);
    bench.finish().unwrap();
    // While it is locked they gather, so that they come in one group.
    let lock = Lock::on(&path);
    let arrived = Barrier::new(THREADS + 1);
    std::thread::scope(|threads| {
        for thread in 0..THREADS {
            let (bench, stale, arrived) = (&bench, &stale, &arrived);
            threads.spawn(move || {
                arrived.wait();
                let id = format!("good-{thread}");
                match thread % 4 {
                    0 => drop(bench.submit(&id).unwrap()),
                    1 => {
                        let other = NewUnit::new("taken").prompt("another");
                        let claimant = Claimant::new(bench.owner, LEASE);
                        let slot = Slot::new(WorkerId::new(id).unwrap());
                        let conflict = bench.repository.submit(bench.job, &other, &claimant, &slot).unwrap_err();
                        assert!(matches!(conflict, RepositoryError::Conflict { .. }), "{conflict:?}");
                    }
                    2 => {
                        let late = bench.repository.checkpoint_at(stale, &1.into()).unwrap_err();
                        assert!(matches!(late, RepositoryError::Stale { .. }), "{late:?}");
                    }
                    _ => {
                        let claimant = Claimant::new(OwnerId(99), LEASE);
                        let slots = vec![Slot::new(WorkerId::new(id).unwrap())];
                        let request = ClaimRequest::new(bench.job, claimant, Scope::Pending, slots);
                        let unknown = bench.repository.claim(&request).unwrap_err();
                        assert!(matches!(unknown, RepositoryError::UnknownOwner(_)), "{unknown:?}");
                    }
                }
            });
        }
        arrived.wait();
        drop(lock);
    });
    bench.assert_clean(&["running", "taken", "good-0", "good-4", "good-8", "good-12"]);
    assert_eq!(bench.repository.counts(bench.job).unwrap().total(), 6);
}

#[test]
fn a_database_of_the_first_version_can_be_read_and_is_brought_up_to_date_when_it_is_written() {
    let folder = support::folder();
    let path = folder.path().join("old.db");
    let old = Connection::open(&path).unwrap();
    old.pragma_update(None, "journal_mode", "WAL").unwrap();
    old.execute_batch(include_str!("../../src/repository/sqlite/migrations/0001.sql")).unwrap();
    old.execute_batch(
        "PRAGMA user_version = 1;
         INSERT INTO owners (instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at, heartbeat_at,
                             heartbeat_boot_ms, lease_ms, ended_at)
         VALUES ('i', 'somebody', 1, 1, 'an earlier boot', 1, 1, 1, 1, 60000, 2);
         INSERT INTO jobs (name, template, budget, settings, created_at)
         VALUES ('one', '{{ x }}', 5, CAST('{\"b\":1,\"a\":[0.1]}' AS BLOB), 7), ('two', NULL, NULL, CAST('null' AS BLOB), 9);",
    )
    .unwrap();
    drop(old);

    let archive = SqliteArchive::open(&path).unwrap();
    let owner = archive.owners().unwrap().pop().unwrap();
    assert_eq!((owner.label.as_str(), owner.host, owner.state, owner.told_at), ("somebody", None, None, None));
    assert!(Verify::new().run(&archive).unwrap().is_clean());
    let rows = archive.job_journal(0, 10).unwrap().items;
    let told: Vec<_> = rows.iter().map(|row| (row.seq, row.job_id.0, &*row.actor, row.at.timestamp_millis())).collect();
    assert_eq!(told, [(1, 1, "migration", 7), (2, 2, "migration", 9)]);
    assert_eq!(archive.job_journal(1, 1).unwrap().items, rows[1..]);
    let heads = Heads::of(&archive).unwrap();
    drop(archive);

    let repository = SqliteRepository::open(&path).unwrap();
    assert_eq!(repository.job_journal(0, 10).unwrap().items, rows, "what was told before is what is written");
    repository.change_job(rows[0].job_id, &JobChange::default().budget(None), &By::whom("ada")).unwrap();
    let verification = Verify::new().heads(heads).run(&repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
    assert_eq!(verification.job_journal_rows, 3);
    let id = support::owner(&repository, "somebody else");
    repository.tell(id, &OwnerState::default()).unwrap();
    let owners = repository.owners().unwrap();
    assert_eq!(owners[0].host, None);
    assert!(owners[1].host.as_ref().is_some_and(|host| !host.is_empty()));
    assert_eq!(owners[1].state, Some(OwnerState::default()));
}

#[test]
fn a_database_from_before_anybody_counted_knows_what_is_left_of_its_budgets() {
    let folder = support::folder();
    let path = folder.path().join("old.db");
    let repository = SqliteRepository::open(&path).unwrap();
    let job = repository.create_job(&NewJob::named("old")).unwrap().id;
    // Its machine has started again since.
    let owner = repository.register_owner(&NewOwner::new(Process::this("an earlier boot"), "old")).unwrap();
    let cost = |nanos| Charge::reported("m", Tokens::default(), Money::from_nanos(nanos));
    let [paid, free, unpriced, open] = ["paid", "free", "unpriced", "open"].map(|id| {
        let lease = submit(&repository, job, owner, id).unwrap();
        repository.start(&lease, &Beginning::default()).unwrap();
        lease
    });
    repository.finish(&paid, &report().charge(cost(300))).unwrap();
    repository.finish(&free, &report()).unwrap();
    repository.finish(&unpriced, &report().charge(cost(40)).charge(Charge::unpriced("n", Tokens::default()))).unwrap();
    repository.progress(&open, &Progress::default().charge(cost(5))).unwrap();
    let budget = JobChange::default().budget(Money::from_nanos(1_000));
    repository.change_job(job, &budget, &By::whom("ada")).unwrap();
    let holder = AccountHolder::Job(job);
    let account = repository.account(holder).unwrap().unwrap();
    assert_eq!(
        (account.spent, account.reserved, account.largest),
        (Money::from_nanos(340), Money::ZERO, Some(Money::from_nanos(300)))
    );
    drop(repository);
    Connection::open(&path)
        .unwrap()
        .execute_batch(
            "DROP TABLE works;
             DROP TABLE turns;
             DROP TABLE rate_windows;
             DROP TABLE holds;
             ALTER TABLE attempts DROP COLUMN answer_of_attempt;
             ALTER TABLE attempts DROP COLUMN answer_of_unit;
             DROP TABLE accounts;
             ALTER TABLE attempts DROP COLUMN expected;
             ALTER TABLE owners DROP COLUMN budget;
             PRAGMA user_version = 3;",
        )
        .unwrap();

    let archive = SqliteArchive::open(&path).unwrap();
    assert_eq!(archive.account(holder).unwrap(), Some(account), "as it would be");
    assert_clean(&archive, &Verify::new());
    drop(archive);
    let repository = SqliteRepository::open(&path).unwrap();
    assert_eq!(repository.account(holder).unwrap(), Some(account));
    assert_clean(&repository, &Verify::new());
    // Nothing was expected of what is under way: it costs what it has said.
    assert_eq!(repository.expire(10).unwrap().len(), 1);
    let account = repository.account(holder).unwrap().unwrap();
    assert_eq!((account.spent, account.reserved), (Money::from_nanos(345), Money::ZERO));
    assert_clean(&repository, &Verify::new());
}
