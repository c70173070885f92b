//! What runs, what waits, what nobody looks after any more: asked from beside the pool.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::{Connection, OpenFlags};
use rustix::process::Signal;
use workcrew::audit::questions;
use workcrew::clock::{Clock, ManualClock, Moment, SystemClock};
use workcrew::repository::sqlite::{SqliteArchive, SqliteOptions};
use workcrew::repository::{By, Claimant, Intake, LeaseView, Slot, Staleness, Submitted};
use workcrew::{
    Archive, AttemptReport, Beginning, Claim, Failure, FailureKind, JobId, Lease, NewJob, NewOwner, NewUnit, Next,
    OwnerId, Process, Repository, SqliteRepository, UnitStatus, WorkUnit, WorkerId,
};

use crate::children::{self, Child, Role, hear, say};
use crate::support;

const HOUR: Duration = Duration::from_secs(3_600);

/// A unit of this name, claimed for an owner by a worker of the same name.
fn claimed(repository: &dyn Repository, job: JobId, owner: OwnerId, id: &str, ttl: Duration) -> Claim {
    let slot = Slot::new(WorkerId::new(id).unwrap());
    let unit = NewUnit::new(id).prompt("Do it.");
    match repository.submit(job, &unit, &Claimant::new(owner, ttl), &slot).unwrap() {
        Submitted::Claimed(claim) => *claim,
        other => panic!("{id} was not claimed: {other:?}"),
    }
}

#[test]
fn an_archive_answers_by_a_clock_of_its_own() {
    // 003-F59, 003-F61.
    let (folder, clock) = (support::folder(), ManualClock::new());
    let path = folder.path().join("questions.db");
    let repository = SqliteOptions::new().clock(clock.clone()).open(&path).unwrap();
    let job = repository.create_job(&NewJob::named("job")).unwrap().id;
    let process = Process::this(&clock.boot_id());
    let owner = repository.register_owner(&NewOwner::new(process, "pool")).unwrap();
    claimed(&repository, job, owner, "short", HOUR);
    claimed(&repository, job, owner, "long", 3 * HOUR);

    let later = ManualClock::new();
    let archive = SqliteArchive::open_with_clock(&path, later.clone()).unwrap();
    let told = |archive: &dyn Archive| -> Vec<(String, i64, Option<Staleness>)> {
        let told = |lease: LeaseView| (lease.unit_id.to_string(), lease.left_ms, lease.staleness);
        questions::active(archive, None).unwrap().into_iter().map(told).collect()
    };
    let (short, long) = ("short".to_owned(), "long".to_owned());
    assert_eq!(told(&archive), [(short.clone(), 3_600_000, None), (long.clone(), 10_800_000, None)]);
    later.advance(2 * HOUR);
    let ran_out = Some(Staleness::RanOut);
    assert_eq!(told(&archive), [(short.clone(), -3_600_000, ran_out), (long.clone(), 3_600_000, None)]);
    assert_eq!(told(&repository)[0].2, None, "for the repository no time has passed");
    later.reboot();
    let gone = Some(Staleness::OtherBoot);
    assert_eq!(told(&archive), [(short, 0, gone), (long, 0, gone)]);
}

/// The schema as people read it.
const SCHEMA: &str = include_str!("../../schema.sql");

/// The statement that the schema says to ask, by the view that it asks.
fn documented(view: &str) -> &'static str {
    let statements = SCHEMA.lines().filter_map(|line| line.strip_prefix("--     "));
    let meant: Vec<&str> = statements.filter(|line| line.starts_with(&format!("SELECT * FROM {view} "))).collect();
    assert_eq!(meant.len(), 1, "{view}");
    meant[0]
}

/// Asks a statement of a file, as anybody may who has the file and nothing of ours.
fn ask<T>(path: &Path, statement: &str, read: impl Fn(&rusqlite::Row<'_>) -> rusqlite::Result<T>) -> Vec<T> {
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut select = connection.prepare(statement).unwrap();
    let rows = select.query_map([], |row| read(row)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

/// The machine's clocks, set back. Its clones are the same clock.
#[derive(Clone, Debug, Default)]
struct ClockBehind(Arc<AtomicI64>);

impl ClockBehind {
    fn set(&self, by: Duration) {
        self.0.store(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for ClockBehind {
    fn now(&self) -> Moment {
        let (now, behind_ms) = (SystemClock.now(), self.0.load(Ordering::SeqCst));
        Moment { wall: now.wall - TimeDelta::milliseconds(behind_ms), boot_ms: now.boot_ms - behind_ms }
    }
}

/// A file with units in every status, with leases that are held, that ran out and that are of another boot.
fn busy_file(path: &Path) {
    let clock = ClockBehind::default();
    let repository = SqliteOptions::new().clock(clock.clone()).open(path).unwrap();
    let job = repository.create_job(&NewJob::named("job")).unwrap().id;
    let by = By::whom("test");
    let register = |boot_id: &str| {
        let process = Process { boot_id: boot_id.to_owned(), ..Process::this(&clock.boot_id()) };
        repository.register_owner(&NewOwner::new(process, "pool")).unwrap()
    };
    let (before, unknown, slow) = (register("another boot"), register(""), register(&clock.boot_id()));
    let owner = register(&clock.boot_id());
    let claim = |owner, id: &str| claimed(&repository, job, owner, id, HOUR).lease;
    let start = |lease: &Lease| repository.start(lease, &Beginning::default()).unwrap();
    let failure = || Failure::new(FailureKind::EXECUTOR, "no luck");

    clock.set(2 * HOUR);
    claim(before, "of another boot");
    claim(unknown, "of an unknown boot that ran out");
    start(&claim(slow, "ran out"));
    let renewed = claim(owner, "renewed");
    clock.set(Duration::ZERO);
    repository.renew(owner, HOUR).unwrap();
    start(&renewed);
    claim(unknown, "of an unknown boot");
    repository.cancel(job, claim(owner, "to be cancelled").unit_id.as_str(), &by).unwrap();

    let tried = claim(owner, "tried");
    repository.finish(&tried, &AttemptReport::failed(failure(), Next::Retry { after: HOUR })).unwrap();
    let open = [NewUnit::new("open").prompt("Do it.").unit_type("page"), NewUnit::new("urgent").priority(9)];
    repository.insert(job, &open, Intake::Open).unwrap();
    repository.insert(job, &[NewUnit::new("accepted")], Intake::AcceptedBy(owner)).unwrap();

    let done = claim(owner, "done");
    start(&done);
    repository.finish(&done, &AttemptReport::completed()).unwrap();
    repository.finish(&claim(owner, "failed"), &AttemptReport::failed(failure(), Next::GiveUp)).unwrap();
    repository.insert(job, &[NewUnit::new("cancelled")], Intake::Open).unwrap();
    repository.cancel(job, "cancelled", &by).unwrap();
    for &status in UnitStatus::ALL {
        let count = repository.counts(job).unwrap().of(status);
        assert!(count > 0, "nothing is {status}");
    }
}

/// As SQLite writes a time for people.
fn written(time: DateTime<Utc>) -> String {
    time.format("%F %T").to_string()
}

#[test]
fn the_statements_in_the_schema_answer_as_the_methods_do() {
    // 003-F59, 003-F60, 003-F61: the statements are those that the file itself shows.
    let folder = support::folder();
    let path = folder.path().join("questions.db");
    busy_file(&path);
    let archive = SqliteArchive::open(&path).unwrap();

    let active = questions::active(&archive, None).unwrap();
    let rows = ask(&path, documented("active_units"), |row| {
        let place: (i64, String, String) = (row.get("key")?, row.get("job")?, row.get("id")?);
        let state: (String, u32, i64) = (row.get("status")?, row.get("attempt_number")?, row.get("fence")?);
        let holder: (i64, String, String) = (row.get("owner_id")?, row.get("worker_id")?, row.get("since")?);
        Ok((place, state, holder, row.get::<_, i64>("lease_left_ms")?))
    });
    assert_eq!((rows.len(), active.len()), (6, 6), "{active:#?}");
    for ((place, state, holder, left_ms), lease) in rows.into_iter().zip(&active) {
        assert_eq!(place, (lease.unit.0, "job".to_owned(), lease.unit_id.to_string()));
        assert_eq!(state, (lease.status.to_string(), lease.attempt_number, lease.fence));
        assert_eq!(holder, (lease.owner.0, lease.worker_id.to_string(), written(lease.since)));
        // The two clocks do not go at exactly the same pace, and some time has passed in between.
        let is_near = (left_ms - lease.left_ms).abs() < 60_000;
        assert!(is_near || lease.staleness == Some(Staleness::OtherBoot), "{left_ms}: {lease:?}");
    }

    let queued = questions::queued(&archive, None, 0, 100).unwrap().items;
    assert!(queued.iter().map(|unit| unit.id.as_str()).eq(["tried", "open", "urgent", "accepted"]), "{queued:?}");
    let rows = ask(&path, documented("queued_units"), |row| {
        let place: (i64, String, Option<String>) = (row.get("key")?, row.get("id")?, row.get("unit_type")?);
        let order: (i32, u32, Option<i64>) = (row.get("priority")?, row.get("attempt_count")?, row.get("owner_id")?);
        let times: (String, Option<String>) = (row.get("created")?, row.get("not_before")?);
        Ok((place, order, times))
    });
    let told = |unit: &WorkUnit| {
        let order = (unit.priority, unit.attempt_count, unit.accepted_by.map(|owner| owner.0));
        let place = (unit.key.0, unit.id.to_string(), unit.unit_type.clone());
        (place, order, (written(unit.created_at), unit.not_before.map(written)))
    };
    assert_eq!(rows, queued.iter().map(told).collect::<Vec<_>>());

    let stale = questions::stale(&archive, None).unwrap();
    let rows = ask(&path, documented("stale_leases"), |row| {
        Ok((row.get::<_, i64>("key")?, row.get::<_, String>("reason")?, row.get::<_, i64>("lease_left_ms")? <= 0))
    });
    let told = |lease: &LeaseView| (lease.unit.0, lease.staleness.unwrap().to_string(), lease.left_ms <= 0);
    assert_eq!(rows, stale.iter().map(told).collect::<Vec<_>>());
    let stale: Vec<&str> = stale.iter().map(|lease| lease.unit_id.as_str()).collect();
    assert_eq!(stale, ["of another boot", "of an unknown boot that ran out", "ran out"]);
}

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn child() {
    let Some(_) = children::role() else { return };
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named("job")).unwrap().id;
    let owner = support::owner(&repository, "child");
    claimed(&repository, job, owner, "held", HOUR);
    claimed(&repository, job, owner, "ran out", Duration::from_millis(1));
    let unit = NewUnit::new("waits").prompt("Do it.").workspace_dir("/srv/waits").max_iterations(20).priority(3);
    repository.queue_unit(job, &unit.not_before(DateTime::UNIX_EPOCH + TimeDelta::days(100_000))).unwrap();
    say("it runs");
    hear();
}

/// The file that another process works on, and that process.
fn worked_on() -> (tempfile::TempDir, PathBuf, Child) {
    let folder = support::folder();
    let path = folder.path().join("batch.db");
    let mut child = Role::new("questions::child", "hold", &path).start();
    child.wait_for("it runs");
    (folder, path, child)
}

/// The units that a documented statement tells of.
fn told(path: &Path, statement: &str) -> Vec<String> {
    ask(path, statement, |row| row.get("id"))
}

#[test]
fn the_statements_that_people_are_told_to_ask_are_answered_beside_the_process_that_works() {
    // 003-F59, 003-F60, 003-F61
    let (folder, path, child) = worked_on();
    let readme = include_str!("../../README.md").lines();
    let commands: Vec<&str> = readme.filter(|line| line.starts_with("sqlite3 -readonly batch.db ")).collect();
    let statements: Vec<&str> = commands.iter().map(|command| command.split('"').nth(1).unwrap()).collect();
    assert_eq!(
        statements,
        ["active_units", "queued_units", "stale_leases"].map(documented),
        "the schema says the same"
    );
    let answers: Vec<Vec<String>> = statements.iter().map(|statement| told(&path, statement)).collect();
    assert_eq!(answers, [&["held", "ran out"][..], &["waits"], &["ran out"]]);
    if Command::new("sqlite3").arg("--version").output().is_ok() {
        for (command, ids) in commands.iter().zip(answers) {
            let Output { status, stdout, stderr } =
                Command::new("sh").args(["-c", command]).current_dir(folder.path()).output().unwrap();
            assert!(status.success() && stderr.is_empty(), "{command}: {}", String::from_utf8_lossy(&stderr));
            let (printed, counted) = (String::from_utf8(stdout).unwrap(), ids.len());
            assert_eq!(printed.lines().count(), counted, "{command}: {printed}");
            assert!(ids.iter().all(|id| printed.contains(&format!("|{id}|"))), "{command}: {printed}");
        }
    }
    drop(child);
    let answers: Vec<Vec<String>> = statements.iter().map(|statement| told(&path, statement)).collect();
    assert_eq!(answers, [&["held", "ran out"][..], &["waits"], &["ran out"]], "nobody has taken anything back");
}

#[test]
fn what_a_unit_carries_is_in_the_one_row_that_an_auditor_reads() {
    // 003-F39
    let (_folder, path, _child) = worked_on();
    let rows = ask(&path, "SELECT * FROM units WHERE id = 'waits'", |row| {
        let order: (i32, Option<String>) = (row.get("priority")?, row.get("not_before")?);
        Ok((order, row.get::<_, Option<String>>("workspace_dir")?, row.get::<_, Option<u32>>("max_iterations")?))
    });
    let day = (DateTime::UNIX_EPOCH + TimeDelta::days(100_000)).format("%F 00:00:00").to_string();
    assert_eq!(rows, [((3, Some(day)), Some("/srv/waits".to_owned()), Some(20))]);
    let rows = ask(&path, "SELECT workspace_dir, max_iterations, not_before FROM units WHERE id = 'held'", |row| {
        Ok((row.get::<_, Option<String>>(0)?, row.get::<_, Option<u32>>(1)?, row.get::<_, Option<String>>(2)?))
    });
    assert_eq!(rows, [(None, None, None)]);
}

fn stale(path: &Path) -> Vec<(String, Option<Staleness>)> {
    let stale = questions::stale(&SqliteArchive::open(path).unwrap(), None).unwrap();
    stale.into_iter().map(|lease| (lease.unit_id.to_string(), lease.staleness)).collect()
}

#[test]
fn what_a_process_that_was_killed_held_is_stale_at_once_for_whoever_reads() {
    // 003-F61.
    let (_folder, path, child) = worked_on();
    let (held, ran_out) = ("held".to_owned(), "ran out".to_owned());
    assert_eq!(stale(&path), [(ran_out.clone(), Some(Staleness::RanOut))]);
    child.signal(Signal::KILL);
    child.end();
    let died = Some(Staleness::OwnerDied);
    assert_eq!(stale(&path), [(held, died), (ran_out, died)], "though the lease of one would have lasted for an hour");
    assert_eq!(told(&path, documented("stale_leases")), ["ran out"], "SQL cannot know");
}
