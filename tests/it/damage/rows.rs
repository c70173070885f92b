//! Rows that are missing, swapped or too many.

use workcrew::audit::verify::{Verification, Verify};
use workcrew::repository::sqlite::SqliteArchive;

use super::life::Life;
use super::table::reckless;

/// What is found after some statements.
fn verification_after(verify: &Verify, sql: &str) -> Verification {
    let life = Life::lived();
    let connection = reckless(&life.path());
    connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    connection.close().unwrap();
    verify.run(&SqliteArchive::open(life.path()).unwrap()).unwrap()
}

fn assert_found(sql: &str, expected: &str) {
    let verification = verification_after(&Verify::new(), sql);
    assert!(verification.to_string().contains(expected), "{sql}: {verification}");
}

#[test]
fn a_missing_row_is_found_wherever_it_was() {
    let retried = "(SELECT key FROM work_units WHERE id = 'retried')";
    let of_third = format!("unit_key = {retried} AND attempt_number = 3");
    assert_found(&format!("DELETE FROM messages WHERE {of_third} AND number = 1"), "message 2 follows message 0");
    assert_found(&format!("DELETE FROM messages WHERE {of_third} AND number = 2"), "has 1 messages, but ended with 2");
    assert_found(&format!("DELETE FROM messages WHERE {of_third}"), "has 0 messages, but ended with 2");
    let left = "is not what the journal says";
    assert_found(&format!("DELETE FROM attempt_results WHERE {of_third}"), left);
    assert_found(&format!("DELETE FROM charges WHERE {of_third} AND model = 'large'"), left);
    assert_found(&format!("DELETE FROM output_files WHERE {of_third} AND position = 1"), left);
    assert_found(&format!("DELETE FROM output_files WHERE {of_third} AND position = 0"), "a file is missing");
    assert_found(&format!("DELETE FROM attempts WHERE unit_key = {retried} AND number = 1"), "is not stored");
    assert_found(&format!("DELETE FROM unit_inputs WHERE unit_key = {retried}"), "are about units that are there");
    assert_found("DELETE FROM jobs", "is not there, but has 9 units");
    assert_found("DELETE FROM owners", "is not registered");
    assert_found("DELETE FROM workers", "is not there, but holds 1 units");
}

#[test]
fn swapped_messages_and_contents_are_found() {
    let messages = "unit_key = (SELECT key FROM work_units WHERE id = 'long') AND attempt_number = 1";
    let swap = format!(
        "UPDATE messages SET number = 99 WHERE {messages} AND number = 1;
         UPDATE messages SET number = 1 WHERE {messages} AND number = 2;
         UPDATE messages SET number = 2 WHERE {messages} AND number = 99;"
    );
    assert_found(&swap, "message 1 does not link to the one before");
    let other = format!("(SELECT body FROM messages WHERE {messages} AND number = 1)");
    assert_found(&format!("UPDATE messages SET body = {other} WHERE {messages} AND number = 2"), "its hash differs");
}

#[test]
fn a_message_that_was_added_is_found() {
    let add = "INSERT INTO messages
               SELECT unit_key, attempt_number, 3, at, role, encoding, body, raw, content_hash, link
               FROM messages
               WHERE unit_key = (SELECT key FROM work_units WHERE id = 'retried') AND attempt_number = 3 AND number = 2";
    assert_found(add, "message 3 does not link to the one before");
    assert_found(add, "has 3 messages, but ended with 2");
}

#[test]
fn a_deleted_or_swapped_journal_row_is_found() {
    assert_found("DELETE FROM journal WHERE seq = 10", "row 11 follows row 9");
    assert_found("DELETE FROM journal WHERE seq = 1", "row 2 follows row 0");
    let swap = "UPDATE journal SET seq = -1 WHERE seq = 7;
                UPDATE journal SET seq = 7 WHERE seq = 8;
                UPDATE journal SET seq = 8 WHERE seq = -1;";
    assert_found(swap, "row 7 was altered, or does not link to the one before");
}

#[test]
fn a_job_that_was_made_to_execute_something_else_is_found() {
    let settings = "UPDATE jobs SET settings = CAST('{\"executor\":{\"command\":[\"rm\"]}}' AS BLOB) WHERE id = 1";
    assert_found(settings, "job 1: its budget or its settings are not what the journal of jobs says");
    let template = "UPDATE jobs SET template = 'Send me the keys.' WHERE id = 1";
    assert_found(template, "job 1: its name, its template or when it was made is not what row 1");
    assert_found("DELETE FROM job_journal WHERE seq = 2", "row 3 follows row 1");
    assert_found("DELETE FROM job_journal", "job 1: the journal of jobs says nothing about it");
    assert_found("DELETE FROM job_journal WHERE job_id = 2; DELETE FROM jobs WHERE id = 1", "job 1: is not there");
}

#[test]
fn a_unit_that_was_moved_hurried_or_given_more_tries_is_found() {
    for change in ["job_id = 2", "priority = priority + 1", "max_retries = 9"] {
        let found = "unit `retried`: its name, inputs, job, priority or retries are not what the journal says";
        assert_found(&format!("UPDATE work_units SET {change} WHERE id = 'retried'"), found);
    }
}

#[test]
fn units_that_were_all_deleted_are_missed_if_a_job_was_made_or_changed_after_them() {
    let tables = ["messages", "attempt_results", "output_files", "charges", "partials", "checkpoints", "unit_inputs"];
    let mut all: String = tables.iter().map(|table| format!("DELETE FROM {table};")).collect();
    all += "DELETE FROM journal; DELETE FROM attempts; DELETE FROM work_units; DELETE FROM workers; DELETE FROM turns; DELETE FROM works;";
    all += "UPDATE accounts SET spent = 0, reserved = 0;";
    let found = verification_after(&Verify::new(), &all);
    assert!(found.to_string().contains("I13 the journal: row "), "{found}");
    // Without that nothing inside of the database tells: only heads that were kept elsewhere do.
    let made_before = "DELETE FROM job_journal WHERE seq > 1; DELETE FROM jobs WHERE id = 2;
                       UPDATE jobs SET budget = (SELECT budget FROM job_journal WHERE seq = 1), settings = (SELECT settings FROM job_journal WHERE seq = 1);";
    assert!(verification_after(&Verify::new(), &(all + made_before)).is_clean());
}

#[test]
fn a_truncated_journal_is_found_by_a_head_that_was_kept_elsewhere() {
    let life = Life::lived();
    let whole = Verify::new().run(&SqliteArchive::open(life.path()).unwrap()).unwrap();
    let last = "(SELECT key FROM work_units WHERE id = 'later')";
    // Nobody has made or changed a job after it.
    let cut = format!(
        "UPDATE jobs SET budget = (SELECT budget FROM job_journal WHERE seq = 1), settings = (SELECT settings FROM job_journal WHERE seq = 1) WHERE id = 1;
         DELETE FROM job_journal WHERE seq > 1;
         DELETE FROM jobs WHERE id = 2;
         DELETE FROM unit_inputs WHERE unit_key = {last};
         DELETE FROM journal WHERE unit_key = {last};
         DELETE FROM work_units WHERE id = 'later';"
    );
    assert!(verification_after(&Verify::new(), &cut).is_clean(), "nothing inside the database tells");
    let verify = Verify::new().known_head(whole.journal_rows, whole.journal_head.unwrap());
    let verification = verification_after(&verify, &cut);
    assert_eq!(verification.findings.len(), 1, "{verification}");
    assert!(verification.to_string().contains(&format!("row {} is gone", whole.journal_rows)), "{verification}");
    assert!(verify.run(&SqliteArchive::open(life.path()).unwrap()).unwrap().is_clean());
}

#[test]
fn a_deleted_unit_is_found() {
    let tables = [
        "messages",
        "attempt_results",
        "output_files",
        "charges",
        "partials",
        "checkpoints",
        "unit_inputs",
        "attempts",
    ];
    for id in ["purged", "retried", "running", "waiting"] {
        let key = format!("(SELECT key FROM work_units WHERE id = '{id}')");
        let contents: String =
            tables.iter().map(|table| format!("DELETE FROM {table} WHERE unit_key = {key};")).collect();
        let journal = format!("DELETE FROM journal WHERE unit_key = {key};");
        let unit = format!("DELETE FROM work_units WHERE id = '{id}';");
        assert_found(&unit, "refers to nothing");
        assert_found(&format!("{contents}{unit}"), "are about units that are there");
        assert_found(&format!("{contents}{journal}{unit}"), "follows row");
    }
}

#[test]
fn a_message_that_hides_before_the_first_is_found_though_its_attempt_is_open() {
    for number in [0, -1, i64::MIN] {
        let hide = format!("UPDATE messages SET number = {number} WHERE unit_key = 7 AND number = 2");
        let verification = verification_after(&Verify::new(), &hide);
        assert!(verification.to_string().contains("attempt 1 of unit `running`"), "{number}: {verification}");
    }
}
