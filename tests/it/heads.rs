//! Whoever can write a database can compute every link of it anew. Heads that were kept elsewhere show it all the same.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::TimeDelta;
use rusqlite::{Connection, params};
use tempfile::TempDir;
use workcrew::audit::verify;
use workcrew::audit::verify::{Heads, HeadsError, Verify, compare};
use workcrew::chain::{job_journal_genesis, job_journal_link, journal_genesis, journal_link};
use workcrew::clock::{Clock, ManualClock};
use workcrew::repository::sqlite::{SqliteArchive, SqliteOptions};
use workcrew::repository::{By, ClaimRequest, Claimant, JournalEntry, Scope, Slot};
use workcrew::{
    Archive, AttemptReport, Beginning, Claim, JobChange, JobId, Message, NewJob, NewOwner, NewUnit, OwnerId, Process,
    Repository, SqliteRepository, WorkerId,
};

use crate::support;

const LONG: Duration = Duration::from_secs(3_600);

/// A database, and how one like it can be made again.
struct Batch {
    _folder: TempDir,
    path: PathBuf,
    clock: ManualClock,
    repository: SqliteRepository,
    job: JobId,
    owner: OwnerId,
}

impl Batch {
    fn new() -> Batch {
        let (folder, clock) = (support::folder(), ManualClock::new());
        let path = folder.path().join("batch.db");
        let repository = SqliteOptions::new().clock(clock.clone()).open(&path).unwrap();
        let job = repository.create_job(&NewJob::named("a job")).unwrap().id;
        let owner = repository.register_owner(&NewOwner::new(Process::this(&clock.boot_id()), "crew")).unwrap();
        Batch { _folder: folder, path, clock, repository, job, owner }
    }

    /// Four units that were executed, in each of which this was said: 16 rows of the journal.
    fn of(answer: &str) -> Batch {
        let batch = Batch::new();
        for id in ["a", "b", "c", "d"] {
            batch.execute(id, answer);
        }
        batch
    }

    fn execute(&self, id: &str, answer: &str) {
        self.repository.queue_unit(self.job, &NewUnit::new(id).prompt("go")).unwrap();
        let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
        let request = ClaimRequest::new(self.job, Claimant::new(self.owner, LONG), Scope::Pending, slots);
        let Claim { lease, .. } = self.repository.claim(&request).unwrap().pop().unwrap();
        self.repository.start(&lease, &Beginning::default()).unwrap();
        self.repository.append(&lease, 0, &[Message::user("go"), Message::assistant(answer)]).unwrap();
        self.repository.finish(&lease, &AttemptReport::completed().output(answer)).unwrap();
        self.clock.advance(Duration::from_secs(1));
    }

    /// Closes it, so that somebody else can write the file.
    fn close(self) -> (TempDir, PathBuf) {
        drop(self.repository);
        (self._folder, self.path)
    }
}

fn journal(path: &Path) -> Vec<JournalEntry> {
    SqliteArchive::open(path).unwrap().journal(0, 1_000).unwrap().items
}

/// Lets somebody else have done what a row tells, and computes every link anew.
fn forge(path: &Path, seq: i64) {
    let (mut rows, connection) = (journal(path), Connection::open(path).unwrap());
    let mut link = journal_genesis();
    for row in &mut rows {
        if row.seq == seq {
            row.actor = "mallory".to_owned();
        }
        link = journal_link(&link, row);
        let update = "UPDATE journal SET actor = ?2, link = ?3 WHERE seq = ?1";
        connection.execute(update, params![row.seq, row.actor, link.as_bytes().as_slice()]).unwrap();
    }
}

fn findings(path: &Path, heads: &Heads) -> Vec<String> {
    let archive = SqliteArchive::open(path).unwrap();
    assert!(verify(&archive).unwrap().is_clean(), "{}", verify(&archive).unwrap());
    let found = compare(&archive, heads).unwrap();
    let both = Verify::new().heads(heads.clone()).run(&archive).unwrap();
    assert_eq!(both.findings, found.findings);
    found.findings.iter().map(ToString::to_string).collect()
}

#[test]
fn a_journal_that_was_rewritten_with_all_its_links_is_found_and_where() {
    for (seq, found) in [
        (1, "is another from its first row on: it was rewritten, or this is another database"),
        (3, "is another than then: it was rewritten between row 2 and row 4"),
        (8, "is another than then: it was rewritten between row 4 and row 8"),
        (16, "is another than then: it was rewritten between row 8 and row 16"),
    ] {
        let batch = Batch::of("yes");
        let heads = Heads::of(&batch.repository).unwrap();
        let (_folder, path) = batch.close();
        forge(&path, seq);
        assert_eq!(findings(&path, &heads), [format!("I13 the journal: {found}")], "row {seq}");
    }
}

#[test]
fn a_database_that_was_made_anew_with_another_answer_is_found_attempt_by_attempt() {
    let heads = Heads::with_conversations(&Batch::of("yes").repository).unwrap();
    assert_eq!(heads.attempts.as_ref().unwrap().len(), 4);
    let (_same, same) = Batch::of("yes").close();
    assert_eq!(findings(&same, &heads), [""; 0]);
    let (_folder, path) = Batch::of("no").close();
    let found = findings(&path, &heads);
    assert_eq!(found[0], "I13 the journal: is another than then: it was rewritten between row 2 and row 4");
    let attempt = |unit| format!("I9 attempt 1 of unit key {unit}: its conversation is another than then");
    assert_eq!(found[1..], [attempt(1), attempt(2), attempt(3), attempt(4)]);
}

#[test]
fn an_end_that_was_cut_off_is_found() {
    let batch = Batch::of("yes");
    batch.repository.queue_unit(batch.job, &NewUnit::new("last")).unwrap();
    let heads = Heads::of(&batch.repository).unwrap();
    assert_eq!(heads.journal_head().unwrap().seq, 17);
    let (_folder, path) = batch.close();
    let last = "(SELECT key FROM work_units WHERE id = 'last')";
    Connection::open(&path)
        .unwrap()
        .execute_batch(&format!(
            "DELETE FROM journal WHERE unit_key = {last};
             DELETE FROM unit_inputs WHERE unit_key = {last};
             DELETE FROM work_units WHERE id = 'last';"
        ))
        .unwrap();
    assert_eq!(findings(&path, &heads), ["I13 the journal: ends at row 16, but had 17 rows then"]);
}

#[test]
fn another_database_is_found() {
    let heads = Heads::with_conversations(&Batch::of("yes").repository).unwrap();
    let (_folder, path) = Batch::new().close();
    let found = findings(&path, &heads);
    assert_eq!(found[0], "I13 the journal: is empty, but had 16 rows then");
    assert!(found[1..].iter().all(|finding| finding.ends_with(": is gone")), "{found:?}");
    assert_eq!(found.len(), 5);
}

#[test]
fn a_job_that_was_altered_or_removed_is_found() {
    let batch = Batch::of("yes");
    batch.repository.create_job(&NewJob::named("empty")).unwrap();
    let heads = Heads::of(&batch.repository).unwrap();
    let (_folder, path) = batch.close();
    let connection = Connection::open(&path).unwrap();
    let alter = "PRAGMA foreign_keys = OFF; UPDATE jobs SET budget = 1 WHERE id = 1; DELETE FROM jobs WHERE id = 2";
    connection.execute_batch(alter).unwrap();
    drop(connection);
    let found = compare(&SqliteArchive::open(&path).unwrap(), &heads).unwrap().findings;
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["I13 job 1: is another than then", "I13 job 2: is gone"]);
}

/// Gives a job other settings and lets its first row say so, and computes every link anew.
fn forge_job(path: &Path, settings: &str) {
    let archive = SqliteArchive::open(path).unwrap();
    let (mut jobs, mut rows) = (archive.jobs(0, 10).unwrap().items, archive.job_journal(0, 10).unwrap().items);
    drop(archive);
    let connection = Connection::open(path).unwrap();
    let (mut link, job) = (job_journal_genesis(), &mut jobs[0]);
    job.settings = settings.into();
    let json = job.settings.to_string().into_bytes();
    connection.execute("UPDATE jobs SET settings = ?1 WHERE id = 1", [&json]).unwrap();
    for row in &mut rows {
        if row.job_id == job.id {
            (row.settings, row.digest) = (job.settings.clone(), job.digest());
        }
        link = job_journal_link(&link, row);
        let update = "UPDATE job_journal SET settings = ?2, digest = ?3, link = ?4 WHERE seq = ?1";
        let (digest, link) = (row.digest.as_bytes().as_slice(), link.as_bytes().as_slice());
        connection.execute(update, params![row.seq, row.settings.to_string().into_bytes(), digest, link]).unwrap();
    }
}

#[test]
fn a_journal_of_jobs_that_was_rewritten_with_all_its_links_is_found() {
    let batch = Batch::of("yes");
    let heads = Heads::of(&batch.repository).unwrap();
    let (_folder, path) = batch.close();
    forge_job(&path, "a program of mallory's");
    let journal =
        "I13 the journal of jobs: is another from its first row on: it was rewritten, or this is another database";
    assert_eq!(findings(&path, &heads), [journal, "I13 job 1: is another than then"]);
}

#[test]
fn a_job_that_was_changed_since_is_what_it_was_also_for_heads_of_before_there_was_a_journal_of_jobs() {
    let batch = Batch::of("yes");
    let mut heads = Heads::of(&batch.repository).unwrap();
    for settings in ["one", "two"] {
        let change = JobChange::default().settings(settings);
        batch.repository.change_job(batch.job, &change, &By::whom("ada")).unwrap();
    }
    let (_folder, path) = batch.close();
    assert_eq!(findings(&path, &heads), [""; 0]);
    heads.job_journal.clear();
    let text = heads.to_string();
    let body = text.trim_end().rsplit_once('\n').unwrap().0.replace("  \"job_journal\": [],\n", "");
    let old = format!("{body}\nblake3 {}\n", workcrew::chain::Hash::of(body.as_bytes()));
    assert!(!old.contains("job_journal"));
    assert_eq!(findings(&path, &Heads::read(old).unwrap()), [""; 0]);
}

#[test]
fn what_has_grown_and_was_purged_and_copied_since_is_what_it_was() {
    let batch = Batch::of("yes");
    let heads = Heads::read(Heads::with_conversations(&batch.repository).unwrap().to_string()).unwrap();
    batch.execute("e", "more");
    let by = By::new("ada", "it is old");
    let purged = batch.repository.purge(batch.clock.now().wall + TimeDelta::days(1), &by).unwrap();
    assert_eq!((purged.units, purged.messages), (5, 10));
    let (_folder, path) = batch.close();
    assert_eq!(findings(&path, &heads), [""; 0]);
    let copy = path.with_file_name("copy.db");
    SqliteRepository::open(&path).unwrap().backup(&copy).unwrap();
    assert_eq!(findings(&copy, &heads), [""; 0]);
}

#[test]
fn every_bit_of_the_file_that_flips_is_noticed() {
    let heads = Heads::with_conversations(&Batch::of("yes").repository).unwrap();
    let text = heads.to_string();
    assert_eq!(Heads::read(&text).unwrap(), heads);
    let mut bytes = text.clone().into_bytes();
    for bit in 0..bytes.len() * 8 {
        bytes[bit / 8] ^= 1 << (bit % 8);
        assert!(Heads::read(&bytes).is_err(), "bit {} of byte {}", bit % 8, bit / 8);
        bytes[bit / 8] ^= 1 << (bit % 8);
    }
    for length in 0..text.len() {
        assert!(Heads::read(&text[..length]).is_err(), "cut after {length} bytes");
    }
    assert!(Heads::read(format!("{text}\n")).is_err());
    assert!(matches!(Heads::read("no heads"), Err(HeadsError::NotHeads)));
}

#[test]
fn heads_of_a_later_version_are_refused_as_such() {
    let text = Heads::of(&Batch::new().repository).unwrap().to_string();
    let later = text.replace("\"version\": 1", "\"version\": 2");
    let body = later.trim_end().rsplit_once('\n').unwrap().0;
    let signed = format!("{body}\nblake3 {}\n", workcrew::chain::Hash::of(body.as_bytes()));
    assert!(matches!(Heads::read(signed), Err(HeadsError::Newer { found: 2, supported: 1 })));
}

#[test]
fn of_several_broken_links_the_first_is_named_first() {
    let (_folder, path) = Batch::of("yes").close();
    let connection = Connection::open(&path).unwrap();
    connection
        .execute_batch(
            "UPDATE journal SET actor = 'mallory' WHERE seq IN (5, 9, 3);
             UPDATE messages SET at = at + 1 WHERE unit_key = 2;",
        )
        .unwrap();
    drop(connection);
    let verification = verify(&SqliteArchive::open(&path).unwrap()).unwrap();
    let found: Vec<String> = verification.findings.iter().map(ToString::to_string).collect();
    let journal = |seq| format!("I13 the journal: row {seq} was altered, or does not link to the one before");
    let message = |number| format!("I9 attempt 1 of unit `b`: message {number} does not link to the one before");
    assert_eq!(found, [journal(3), journal(5), journal(9), message(1), message(2)]);
}
