//! What holds of everything that is stored, whatever happened. It is checked after every case.
//!
//! [`verify`] says much of this too. Here it is computed a second time, so that neither is believed blindly.

use std::collections::BTreeMap;

use super::scene::{Scene, all_pages};
use crate::attempt::Attempt;
use crate::audit::verify;
use crate::chain;
use crate::job::Job;
use crate::repository::{Counts, JournalEntry, PAGE_LIMIT, UnitFilter};
use crate::unit::{Change, UnitKey, UnitStatus, WorkUnit};
use crate::worker::WorkerId;

pub(super) fn check(scene: &Scene<'_>) {
    let journal = scene.journal();
    check_links(&journal);
    check_jobs(scene);
    let units = all_pages(|after| scene.repository.units(&UnitFilter::default(), after, PAGE_LIMIT));
    for unit in &units {
        let rows: Vec<&JournalEntry> = journal.iter().filter(|row| row.unit == unit.key).collect();
        check_path(unit, &rows);
        let attempts = scene.repository.attempts(unit.key).expect("attempts can be read");
        check_attempts(unit, &attempts);
        for attempt in &attempts {
            check_conversation(scene, attempt);
            check_digest(scene, attempt, &rows);
        }
    }
    check_counts(scene, &units);
    check_workers(scene, &units);
    check_leases(scene, &units);
    let verified = verify(scene.repository).expect("what is stored can be verified");
    assert!(verified.is_clean(), "{verified}");
    assert_eq!(scene.repository.integrity().expect("the storage can be checked"), Vec::<String>::new());
}

/// Every link of the journal can be computed again, and no row is missing.
fn check_links(journal: &[JournalEntry]) {
    let mut previous = chain::journal_genesis();
    for (row, seq) in journal.iter().zip(1..) {
        assert_eq!(row.seq, seq, "the journal has a gap");
        assert_eq!(row.link, chain::journal_link(&previous, row), "journal row {seq} has another link");
        previous = row.link;
    }
}

/// Every link of the journal of jobs can be computed again, and each job is what its last row says.
fn check_jobs(scene: &Scene<'_>) {
    let rows = all_pages(|after| scene.repository.job_journal(after, PAGE_LIMIT));
    let mut previous = chain::job_journal_genesis();
    for (row, seq) in rows.iter().zip(1..) {
        assert_eq!(row.seq, seq, "the journal of jobs has a gap");
        assert_eq!(row.link, chain::job_journal_link(&previous, row), "row {seq} of the journal of jobs: another link");
        previous = row.link;
    }
    for job in all_pages(|after| scene.repository.jobs(after, PAGE_LIMIT)) {
        let last = rows.iter().rfind(|row| row.job_id == job.id).expect("every job has a row");
        assert_eq!(last.digest, job.digest(), "{} is not what its last row says", job.id);
    }
}

/// A unit's rows lead step by step to where it is.
fn check_path(unit: &WorkUnit, rows: &[&JournalEntry]) {
    let mut status = None;
    let mut fence = 0;
    for row in rows {
        assert_eq!(row.from, status, "unit {}: row {} does not follow the one before", unit.id, row.seq);
        let expected = match status {
            None if row.change == Change::Insert => Some(UnitStatus::Pending),
            None => None,
            Some(status) => status.after(row.change),
        };
        assert_eq!(expected, Some(row.to), "unit {}: row {} is no legal step: {row:?}", unit.id, row.seq);
        assert!(row.fence >= fence, "unit {}: the fence fell in row {}", unit.id, row.seq);
        assert!(row.change != Change::Claim || row.fence > fence, "unit {}: a claim without a new fence", unit.id);
        (status, fence) = (Some(row.to), row.fence);
    }
    assert_eq!(status, Some(unit.status), "unit {}: its status is not what the journal says", unit.id);
    assert_eq!(fence, unit.fence, "unit {}: its fence is not what the journal says", unit.id);
}

/// Attempts are numbered, fenced in order, and open only while the unit is leased.
fn check_attempts(unit: &WorkUnit, attempts: &[Attempt]) {
    let numbers: Vec<u32> = attempts.iter().map(|attempt| attempt.key.number).collect();
    assert_eq!(numbers, (1..=unit.attempt_count).collect::<Vec<u32>>(), "unit {}: attempts are missing", unit.id);
    assert!(attempts.is_sorted_by(|a, b| a.fence < b.fence), "unit {}: fences of attempts must grow", unit.id);
    let open: Vec<u32> = attempts.iter().filter(|a| a.outcome.is_none()).map(|a| a.key.number).collect();
    let expected: Vec<u32> = if unit.status.is_leased() { vec![unit.attempt_count] } else { vec![] };
    assert_eq!(open, expected, "unit {} is {}: these attempts are open", unit.id, unit.status);
    for attempt in attempts {
        assert_eq!(attempt.outcome.is_some(), attempt.ended_at.is_some(), "an attempt ended without an outcome");
        assert_eq!(attempt.outcome.is_some(), attempt.head.is_some(), "an attempt ended without a head");
    }
}

/// Every link of a conversation can be computed again, up to the head that its end recorded.
fn check_conversation(scene: &Scene<'_>, attempt: &Attempt) {
    let messages = scene.messages(attempt.key);
    let mut link = chain::conversation_genesis(attempt.key, attempt.fence);
    for (message, number) in messages.iter().zip(1..) {
        assert_eq!(message.number, number, "a message is missing in {:?}", attempt.key);
        if let Some(content) = &message.content {
            assert_eq!(message.content_hash, content.hash(), "message {number} of {:?}", attempt.key);
        }
        link = chain::message_link(&link, number, message.at, message.role, &message.content_hash);
        assert_eq!(message.link, link, "message {number} of {:?} has another link", attempt.key);
    }
    if attempt.outcome.is_some() {
        assert_eq!(attempt.head, Some(link), "{:?} has another head", attempt.key);
        let count = attempt.message_count.map(|count| count as usize);
        assert_eq!(count, Some(messages.len()), "{:?} counts its messages otherwise", attempt.key);
    }
}

/// The last row of the journal that has a digest of an ended attempt has that of what is stored.
fn check_digest(scene: &Scene<'_>, attempt: &Attempt, rows: &[&JournalEntry]) {
    if attempt.outcome.is_none() {
        return;
    }
    let is_of_attempt = |row: &&&JournalEntry| row.attempt_number == Some(attempt.key.number);
    let closing = rows.iter().filter(is_of_attempt).find(|row| row.head.is_some());
    let closing = closing.expect("a row closes every attempt that ended");
    assert_eq!((closing.head, closing.message_count), (attempt.head, attempt.message_count), "{closing:?}");
    let last = rows.iter().filter(is_of_attempt).rfind(|row| row.digest.is_some()).expect("the closing row has one");
    let result = scene.repository.attempt_result(attempt.key).expect("a result can be read");
    let charges = scene.repository.charges(attempt.key).expect("charges can be read");
    assert!(charges.is_sorted_by(|a, b| a.model < b.model), "charges are in the order of their models");
    let digest = result.digest(attempt, &charges);
    assert_eq!(last.digest, Some(digest), "{:?} left something else", attempt.key);
}

fn check_counts(scene: &Scene<'_>, units: &[WorkUnit]) {
    let jobs: Vec<Job> = all_pages(|after| scene.repository.jobs(after, PAGE_LIMIT));
    for Job { id, .. } in jobs {
        let mut expected = Counts::default();
        units.iter().filter(|unit| unit.job_id == id).for_each(|unit| expected.add(unit.status, 1));
        assert_eq!(scene.repository.counts(id).expect("units can be counted"), expected, "{id}");
    }
}

/// What is being executed is what is leased, by whoever made its last attempt.
fn check_leases(scene: &Scene<'_>, units: &[WorkUnit]) {
    let leases = all_pages(|after| scene.repository.leases(None, after, PAGE_LIMIT));
    let told: Vec<_> =
        leases.iter().map(|lease| (lease.unit, lease.status, lease.attempt_number, lease.fence)).collect();
    let leased: Vec<&WorkUnit> = units.iter().filter(|unit| unit.status.is_leased()).collect();
    let expected: Vec<_> = leased.iter().map(|unit| (unit.key, unit.status, unit.attempt_count, unit.fence)).collect();
    assert_eq!(told, expected, "what is being executed");
    for (lease, unit) in leases.iter().zip(leased) {
        assert_eq!((&lease.unit_id, lease.job_id), (&unit.id, unit.job_id));
        assert_eq!(
            (Some(&lease.worker_id), Some(lease.since)),
            (unit.worker_id.as_ref(), unit.assigned_at),
            "{lease:?}"
        );
    }
}

/// A worker's load is the number of open attempts on it.
fn check_workers(scene: &Scene<'_>, units: &[WorkUnit]) {
    let leased = units.iter().filter(|unit| unit.status.is_leased());
    let mut loads: BTreeMap<_, Vec<UnitKey>> = BTreeMap::new();
    for unit in leased {
        let attempts = scene.repository.attempts(unit.key).expect("attempts can be read");
        let last = attempts.last().expect("a leased unit has an attempt");
        loads.entry((last.owner, last.worker_id.clone())).or_default().push(unit.key);
    }
    for owner in scene.repository.owners().expect("owners can be read") {
        for worker in scene.repository.workers(owner.id, "", PAGE_LIMIT).expect("workers can be read") {
            let held = loads.remove(&(owner.id, worker.id.clone())).unwrap_or_default();
            assert_eq!(worker.load as usize, held.len(), "the load of {worker:?}");
            assert!(!worker.status.is_ended() || held.is_empty(), "an ended worker holds something: {worker:?}");
            let is_held = |current| held.contains(&current);
            assert!(worker.current_unit.is_none_or(is_held), "it works on what it does not hold: {worker:?}");
        }
    }
    let left: Vec<&WorkerId> = loads.keys().map(|(_, worker)| worker).collect();
    assert!(left.is_empty(), "workers without a record: {left:?}");
}
