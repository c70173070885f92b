//! Jobs that are not what their journal says.

use serde_json::json;

use super::tampered::{Tampered, assert_found};
use super::{Pool, completed};
use crate::audit::verify::{Finding, verify, verify_jobs};
use crate::job::{JobChange, NewJob};
use crate::money::Money;
use crate::repository::{By, Repository};

/// Journal of jobs: 1 made, 2 changed, 3 another one made.
fn changed() -> Pool {
    let pool = completed();
    let change = JobChange::default().settings(json!({ "program": "cat" }));
    pool.repository.change_job(pool.job_id, &change, &By::new("ada", "it was slow")).unwrap();
    pool.repository.create_job(&NewJob::named("other")).unwrap();
    pool
}

/// What is found, the same when only the jobs are looked at.
fn findings(tampered: &Tampered) -> Vec<String> {
    let alone = verify_jobs(tampered).unwrap().findings;
    let alone: Vec<String> = alone.iter().map(Finding::to_string).collect();
    let all = tampered.findings();
    assert!(alone.iter().all(|finding| all.contains(finding)), "{alone:#?} {all:#?}");
    alone
}

#[test]
fn jobs_that_were_changed_have_no_findings() {
    let pool = changed();
    for found in [verify(&pool.repository).unwrap(), verify_jobs(&pool.repository).unwrap()] {
        assert!(found.is_clean(), "{found}");
        assert_eq!(found.job_journal_rows, 3);
        assert!(found.job_journal_head.is_some());
    }
}

#[test]
fn settings_or_a_budget_that_nobody_changed_are_found() {
    let said = ["I13 job 1: its budget or its settings are not what the journal of jobs says"];
    let jobs = |jobs: &mut Vec<crate::job::Job>| {
        jobs.iter_mut().filter(|job| job.id.0 == 1).for_each(|job| job.settings = json!({ "program": "rm" }));
    };
    assert_eq!(findings(&Tampered { jobs, ..Tampered::nothing_of(changed()) }), said);
    let jobs = |jobs: &mut Vec<crate::job::Job>| {
        jobs.iter_mut().filter(|job| job.id.0 == 1).for_each(|job| job.budget = Some(Money::ZERO));
    };
    assert_eq!(findings(&Tampered { jobs, ..Tampered::nothing_of(changed()) }), said);
}

#[test]
fn another_template_or_name_is_found_once() {
    let said = ["I13 job 1: its name, its template or when it was made is not what row 1 of the journal of jobs says"];
    let jobs = |jobs: &mut Vec<crate::job::Job>| {
        jobs.iter_mut().filter(|job| job.id.0 == 1).for_each(|job| job.template = Some("Do evil.".to_owned()));
    };
    assert_eq!(findings(&Tampered { jobs, ..Tampered::nothing_of(changed()) }), said);
    let jobs = |jobs: &mut Vec<crate::job::Job>| {
        jobs.iter_mut().filter(|job| job.id.0 == 1).for_each(|job| job.name.push('!'));
    };
    assert_eq!(findings(&Tampered { jobs, ..Tampered::nothing_of(changed()) }), said);
}

#[test]
fn a_row_that_was_altered_or_is_missing_is_found_and_the_first_is_named_first() {
    let altered = |seq| format!("I13 the journal of jobs: row {seq} was altered, or does not link to the one before");
    let job_journal = |rows: &mut Vec<crate::repository::JobEntry>| {
        rows.iter_mut().filter(|row| row.seq > 1).for_each(|row| row.actor = "mallory".to_owned());
    };
    assert_eq!(findings(&Tampered { job_journal, ..Tampered::nothing_of(changed()) }), [altered(2), altered(3)]);
    let job_journal = |rows: &mut Vec<crate::repository::JobEntry>| rows.retain(|row| row.seq != 2);
    let found = findings(&Tampered { job_journal, ..Tampered::nothing_of(changed()) });
    assert_eq!(found[..2], ["I13 the journal of jobs: row 3 follows row 1".to_owned(), altered(3)]);
    assert_found(&found, "I13 job 1: its budget or its settings are not what the journal of jobs says");
    let job_journal = |rows: &mut Vec<crate::repository::JobEntry>| rows.clear();
    let found = findings(&Tampered { job_journal, ..Tampered::nothing_of(changed()) });
    assert_eq!(found, [1, 2].map(|job| format!("I13 job {job}: the journal of jobs says nothing about it")));
}

#[test]
fn what_a_row_keeps_of_a_job_cannot_be_altered_either() {
    let job_journal = |rows: &mut Vec<crate::repository::JobEntry>| rows[0].settings = json!("never");
    let found = findings(&Tampered { job_journal, ..Tampered::nothing_of(changed()) });
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(found[0].contains("row 1 of the journal of jobs"), "{found:#?}");
}

#[test]
fn a_job_that_is_gone_is_found() {
    let jobs = |jobs: &mut Vec<crate::job::Job>| jobs.retain(|job| job.id.0 != 2);
    let found = findings(&Tampered { jobs, ..Tampered::nothing_of(changed()) });
    assert_eq!(found, ["I13 job 2: is not there, but row 3 of the journal of jobs is about it"]);
}

#[test]
fn a_job_or_a_row_that_cannot_be_read_is_found() {
    let is_damaged = |what: &str, key: i64| what == "job row" && key == 2;
    let found = findings(&Tampered { is_damaged, ..Tampered::nothing_of(changed()) });
    assert_eq!(found, ["I13 the journal of jobs: job row 2 cannot be read: a bit flipped"]);
    let is_damaged = |what: &str, key: i64| what == "job" && key == 2;
    let found = findings(&Tampered { is_damaged, ..Tampered::nothing_of(changed()) });
    assert_eq!(found, ["I13 the jobs: job 2 cannot be read: a bit flipped"]);
}

#[test]
fn a_journal_of_units_that_was_cut_off_before_a_job_was_changed_is_found() {
    let journal = |rows: &mut Vec<crate::repository::JournalEntry>| rows.clear();
    let tampered = Tampered { journal, ..Tampered::nothing_of(changed()) };
    assert_found(&tampered.findings(), "I13 the journal: row 4 is gone");
}
