//! Jobs that change: `change_job`, and the journal of jobs.

use serde_json::{Value, json};

use super::scene::{SECOND, Scene, all_pages, too_deep, work};
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::money::Money;
use crate::repository::{By, JobEntry, PAGE_LIMIT, RepositoryError};

cases![
    a_job_that_is_made_has_a_row_in_the_journal_of_jobs,
    a_change_of_a_job_is_kept_with_who_and_why_and_changes_nothing_else,
    what_is_not_named_stays_as_it_is,
    a_change_that_is_sent_again_or_changes_nothing_leaves_no_row,
    a_job_that_was_changed_is_found_by_what_it_was_made_with_and_by_what_it_is,
    a_change_that_cannot_be_made_is_refused,
    the_journal_of_jobs_says_how_far_that_of_the_units_was,
    the_journal_of_jobs_comes_in_pages,
];

fn rows(scene: &Scene<'_>) -> Vec<JobEntry> {
    all_pages(|after| scene.repository.job_journal(after, PAGE_LIMIT))
}

fn rows_of(scene: &Scene<'_>, job: &Job) -> Vec<JobEntry> {
    rows(scene).into_iter().filter(|row| row.job_id == job.id).collect()
}

fn made(scene: &Scene<'_>) -> (NewJob, Job) {
    let new = NewJob::named("pages").template("{{ page }}").budget(Money::from_nanos(7)).settings(json!({ "a": [1] }));
    let job = scene.repository.create_job(&new).expect("a new name");
    (new, job)
}

fn change(scene: &Scene<'_>, job: &Job, change: &JobChange) -> Job {
    scene.repository.change_job(job.id, change, &By::new("ada", "she knows why")).expect("it can be changed")
}

fn a_job_that_is_made_has_a_row_in_the_journal_of_jobs(scene: &Scene<'_>) {
    let (new, job) = made(scene);
    scene.advance(SECOND);
    scene.repository.create_job(&new).expect("the same content");
    let rows = rows_of(scene, &job);
    assert_eq!(rows.len(), 1, "{rows:?}");
    assert_eq!((rows[0].at, rows[0].budget, &rows[0].settings), (job.created_at, job.budget, &job.settings));
    assert_eq!((rows[0].digest, rows[0].reason.as_deref()), (job.digest(), None));
}

fn a_change_of_a_job_is_kept_with_who_and_why_and_changes_nothing_else(scene: &Scene<'_>) {
    let (_, job) = made(scene);
    scene.insert(work("a"));
    let unit = scene.snapshot("a");
    scene.advance(SECOND);
    let new = JobChange::default().budget(Money::from_nanos(9)).settings(json!({ "b": { "c": null } }));
    let changed = change(scene, &job, &new);
    assert_eq!(scene.repository.job(job.id).expect("it exists"), changed);
    let expected = Job { budget: Some(Money::from_nanos(9)), settings: json!({ "b": { "c": null } }), ..job.clone() };
    assert_eq!(changed, expected);
    let rows = rows_of(scene, &job);
    assert_eq!(rows.len(), 2, "{rows:?}");
    let last = &rows[1];
    assert_eq!((last.at, &*last.actor, last.reason.as_deref()), (scene.now(), "ada", Some("she knows why")));
    assert_eq!((last.budget, &last.settings, last.digest), (changed.budget, &changed.settings, changed.digest()));
    assert_eq!(rows[0].digest, job.digest(), "what it was stays");
    assert_eq!(scene.snapshot("a"), unit);
}

fn what_is_not_named_stays_as_it_is(scene: &Scene<'_>) {
    let (_, job) = made(scene);
    let unlimited = change(scene, &job, &JobChange::default().budget(None));
    assert_eq!(unlimited, Job { budget: None, ..job.clone() });
    let plain = change(scene, &job, &JobChange::default().settings(Value::Null));
    assert_eq!(plain, Job { settings: Value::Null, ..unlimited });
}

fn a_change_that_is_sent_again_or_changes_nothing_leaves_no_row(scene: &Scene<'_>) {
    let (_, job) = made(scene);
    assert_eq!(change(scene, &job, &JobChange::default()), job);
    assert_eq!(change(scene, &job, &JobChange::default().settings(json!({ "a": [1] }))), job);
    assert_eq!(rows_of(scene, &job).len(), 1);
    let other = JobChange::default().settings(json!({ "rate": 0.1 + 0.2 }));
    let changed = change(scene, &job, &other);
    scene.advance(SECOND);
    assert_eq!(change(scene, &job, &other), changed);
    assert_eq!(rows_of(scene, &job).len(), 2);
}

fn a_job_that_was_changed_is_found_by_what_it_was_made_with_and_by_what_it_is(scene: &Scene<'_>) {
    let (new, job) = made(scene);
    let between = change(scene, &job, &JobChange::default().settings("between"));
    let changed = change(scene, &job, &JobChange::default().settings("now").budget(None));
    assert_eq!(scene.repository.create_job(&new).expect("it was made so"), changed);
    let same = NewJob::named("pages").template("{{ page }}").settings("now");
    assert_eq!(scene.repository.create_job(&same).expect("it is so"), changed);
    let was = NewJob::named("pages").template("{{ page }}").settings(between.settings).budget(Money::from_nanos(7));
    assert_refused!(scene.repository.create_job(&was), RepositoryError::Conflict { .. });
    let other = NewJob { template: None, ..new };
    assert_refused!(scene.repository.create_job(&other), RepositoryError::Conflict { .. });
}

fn a_change_that_cannot_be_made_is_refused(scene: &Scene<'_>) {
    let (_, job) = made(scene);
    let by = By::whom("ada");
    let deep = JobChange::default().settings(too_deep()).budget(None);
    assert_refused!(scene.repository.change_job(job.id, &deep, &by), RepositoryError::Invalid(_));
    let nowhere = JobId(4_711);
    let fine = JobChange::default().budget(None);
    assert_refused!(scene.repository.change_job(nowhere, &fine, &by), RepositoryError::UnknownJob(JobId(4_711)));
    assert_eq!(scene.repository.job(job.id).expect("it exists"), job);
    assert_eq!(rows_of(scene, &job).len(), 1);
}

fn the_journal_of_jobs_says_how_far_that_of_the_units_was(scene: &Scene<'_>) {
    let (_, job) = made(scene);
    scene.insert_all(&["a", "b"]);
    change(scene, &job, &JobChange::default().budget(None));
    let (rows, journal) = (rows_of(scene, &job), scene.journal());
    assert_eq!((rows[0].journal_seq, rows[0].journal_link), (0, None), "nothing had happened");
    assert_eq!((rows[1].journal_seq, rows[1].journal_link), (2, journal.last().map(|row| row.link)));
}

fn the_journal_of_jobs_comes_in_pages(scene: &Scene<'_>) {
    let (_, job) = made(scene);
    for number in 0..5 {
        change(scene, &job, &JobChange::default().settings(number));
    }
    let all = rows(scene);
    let page = scene.repository.job_journal(2, 3).expect("it can be read");
    assert_eq!((page.items.as_slice(), page.next), (&all[2..5], Some(5)));
    assert_eq!(scene.repository.job_journal(all.len() as i64, 3).expect("it can be read").items, []);
}
