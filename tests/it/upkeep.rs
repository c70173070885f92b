//! A database that is looked after: copied while it is in use, and rid of what is to be forgotten.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{TryRecvError, channel};
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use rusqlite::Connection;
use tempfile::TempDir;
use workcrew::audit::verify;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::repository::{By, ClaimRequest, Claimant, Scope, Slot, UnitFilter};
use workcrew::{
    Archive, AttemptReport, Beginning, Failure, FailureKind, JobId, Message, NewJob, NewUnit, Next, OwnerId,
    Repository, RepositoryError, SqliteRepository, WorkerId,
};

use crate::children::{self, Role};
use crate::support;

const LONG: Duration = Duration::from_secs(3_600);

/// A file with a job.
struct Kept {
    folder: TempDir,
    path: PathBuf,
    repository: SqliteRepository,
    job: JobId,
}

impl Kept {
    fn new() -> Kept {
        let folder = support::folder();
        let path = folder.path().join("batch.db");
        let repository = SqliteRepository::open(&path).unwrap();
        let job = repository.create_job(&NewJob::named("a job")).unwrap().id;
        Kept { folder, path, repository, job }
    }

    fn copy(&self) -> PathBuf {
        self.folder.path().join("copy.db")
    }

    /// Executes a unit in which this is said wherever something can be.
    fn execute(&self, owner: OwnerId, id: &str, said: &str) {
        self.repository.queue_unit(self.job, &NewUnit::new(id).prompt(said).payload(said)).unwrap();
        let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
        let request = ClaimRequest::new(self.job, Claimant::new(owner, LONG), Scope::Pending, slots);
        let lease = self.repository.claim(&request).unwrap().pop().unwrap().lease;
        self.repository.start(&lease, &Beginning::default().rendered_prompt(said)).unwrap();
        self.repository.partial(&lease, said).unwrap();
        let long = Message::assistant(said.repeat(9_000));
        self.repository.append(&lease, 0, &[Message::user(said).raw(said), long]).unwrap();
        self.repository.checkpoint_at(&lease, &said.into()).unwrap();
        self.repository.checkpoint_at(&lease, &said.repeat(2_000).into()).unwrap();
        self.repository.partial(&lease, &said.repeat(2_000)).unwrap();
        let failure = Failure::new(FailureKind::EXECUTOR, said);
        let report = AttemptReport::failed(failure, Next::GiveUp).output(said).result(said);
        self.repository.finish(&lease, &report).unwrap();
    }
}

fn names_in(folder: &Path) -> Vec<String> {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| !name.ends_with("-shm") && !name.ends_with("-wal")).collect();
    names.sort();
    names
}

/// Where of a database and its log something can be found.
fn holds(path: &Path, text: &str) -> bool {
    let files = [path.to_owned(), path.with_extension("db-wal")].map(|path| fs::read(path).unwrap_or_default());
    files.iter().any(|file| file.windows(text.len()).any(|part| part == text.as_bytes()))
}

#[test]
fn a_copy_is_whole_and_of_one_moment_however_much_is_written_meanwhile() {
    let kept = Kept::new();
    let written = AtomicU64::new(0);
    std::thread::scope(|threads| {
        let (go_on, is_over) = channel::<()>();
        let (written, kept) = (&written, &kept);
        // It ends with the test, also if that fails.
        threads.spawn(move || {
            while is_over.try_recv() == Err(TryRecvError::Empty) {
                let number = written.load(Ordering::Relaxed);
                let unit = NewUnit::new(format!("{number}")).prompt("x".repeat(20_000));
                kept.repository.queue_unit(kept.job, &unit).unwrap();
                written.store(number + 1, Ordering::Relaxed);
            }
        });
        let archive = SqliteArchive::open(&kept.path).unwrap();
        for number in 0..3 {
            let before = written.load(Ordering::Relaxed);
            let copy = archive.backup(kept.folder.path().join(format!("copy-{number}.db"))).unwrap();
            let copy = SqliteArchive::open(copy).unwrap();
            let verification = verify(&copy).unwrap();
            assert!(verification.is_clean(), "{verification}");
            assert!((before..=written.load(Ordering::Relaxed) + 1).contains(&verification.units), "{verification}");
        }
        drop(go_on);
    });
    assert_eq!(names_in(kept.folder.path()), ["batch.db", "copy-0.db", "copy-1.db", "copy-2.db"]);
}

#[test]
fn what_is_there_already_is_never_replaced_by_a_copy() {
    let kept = Kept::new();
    fs::write(kept.copy(), "theirs").unwrap();
    let link = kept.folder.path().join("link.db");
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    for path in [kept.copy(), link, kept.folder.path().to_owned(), kept.path.clone()] {
        let refused = kept.repository.backup(&path).unwrap_err();
        assert!(matches!(refused, RepositoryError::Invalid(_)), "{refused:?}");
        assert!(refused.to_string().contains(&format!("no backup can be made at `{}`", path.display())), "{refused}");
    }
    assert_eq!(fs::read(kept.copy()).unwrap(), b"theirs");
    let nowhere = kept.repository.backup(kept.folder.path().join("no/such/folder.db")).unwrap_err();
    assert!(matches!(nowhere, RepositoryError::Invalid(_)), "{nowhere:?}");
    assert_eq!(names_in(kept.folder.path()), ["batch.db", "copy.db", "link.db"]);
}

/// Makes a copy, and dies before it has its name.
#[test]
#[ignore = "started by the test below"]
fn child() {
    if children::role().is_some() {
        workcrew::testing::arm_from_environment();
        let archive = SqliteArchive::open(children::path()).unwrap();
        archive.backup(children::path().with_file_name("copy.db")).unwrap();
    }
}

#[test]
fn a_process_that_dies_leaves_no_half_copy_under_the_name_and_the_next_one_cleans_up() {
    let kept = Kept::new();
    let (status, _) = Role::new("upkeep::child", "copy", &kept.path).fault("backup:inside:1:kill").start().end();
    assert!(children::was_killed(status));
    assert!(!kept.copy().exists());
    assert_eq!(names_in(kept.folder.path()).len(), 2, "what it had so far");
    kept.repository.backup(kept.copy()).unwrap();
    assert_eq!(names_in(kept.folder.path()), ["batch.db", "copy.db"]);
    assert!(verify(&SqliteArchive::open(kept.copy()).unwrap()).unwrap().is_clean());
}

#[test]
fn after_a_purge_nothing_of_it_is_in_the_file_but_the_proof_and_a_compaction_makes_it_small() {
    const SECRET: &str = "the-patient-is-called-Ada-Lovelace";
    let kept = Kept::new();
    let owner = support::owner(&kept.repository, "crew");
    kept.execute(owner, "a", SECRET);
    let other = kept.repository.create_job(&NewJob::named("another job")).unwrap().id;
    kept.repository.queue_unit(other, &NewUnit::new("b").prompt("still needed")).unwrap();
    let by = By::new("ada", "she asked to be forgotten");
    let later = Utc::now() + TimeDelta::hours(1);
    assert_eq!(kept.repository.purge_where(&UnitFilter::job(other), later, &by).unwrap().units, 0);
    assert_eq!(kept.repository.purge_where(&UnitFilter::job(kept.job), later, &by).unwrap().units, 1);
    assert!(!holds(&kept.path, SECRET), "a purge writes over it");

    let refused = kept.repository.compact().unwrap_err();
    assert!(refused.to_string().contains("`crew` (process"), "{refused}");
    kept.repository.end_owner(owner).unwrap();
    let compacted = kept.repository.compact().unwrap();
    assert!(compacted.is_log_empty && compacted.after_bytes < compacted.before_bytes, "{compacted:?}");
    assert!(!holds(&kept.path, SECRET));
    assert!(holds(&kept.path, "still needed"));
    let verification = verify(&kept.repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
    let row = kept.repository.journal(0, 100).unwrap().items.pop().unwrap();
    assert_eq!((row.actor.as_str(), row.reason.as_deref()), ("ada", by.reason.as_deref()));
    // Whoever has the file open goes on.
    let owner = support::owner(&kept.repository, "next");
    kept.execute(owner, "c", "hello");
    assert!(verify(&kept.repository).unwrap().is_clean());
}

#[test]
fn a_purge_says_when_somebody_reads_what_it_removed_and_the_next_one_empties_the_log() {
    const SECRET: &str = "the-patient-is-called-Ada-Lovelace";
    let kept = Kept::new();
    kept.execute(support::owner(&kept.repository, "crew"), "a", SECRET);
    let reader = Connection::open(&kept.path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM jobs").unwrap();
    let purge = || kept.repository.purge(Utc::now() + TimeDelta::hours(1), &By::whom("ada")).unwrap();
    let purged = purge();
    assert!(purged.units == 1 && purged.is_in_log && holds(&kept.path, SECRET), "{purged:?}");
    reader.execute_batch("COMMIT").unwrap();
    assert!(!purge().is_in_log);
    assert!(!holds(&kept.path, SECRET));
}

#[test]
fn a_compaction_says_when_somebody_reads_what_it_removed() {
    let kept = Kept::new();
    let reader = Connection::open(&kept.path).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM jobs").unwrap();
    kept.repository.queue_unit(kept.job, &NewUnit::new("a")).unwrap();
    assert!(!kept.repository.compact().unwrap().is_log_empty);
    reader.execute_batch("COMMIT").unwrap();
    assert!(kept.repository.compact().unwrap().is_log_empty);
}
