//! What cannot be read is found, and everything else is still checked.

use super::*;
use crate::conversation::Role;

#[test]
fn damage_is_found_once_and_everything_else_is_still_checked() {
    let pool = completed();
    pool.insert("a42");
    let is_damaged = |what: &str, key: i64| matches!((what, key), ("journal row", 3) | ("message", 1));
    let findings = Tampered { is_damaged, ..Tampered::nothing_of(pool) }.findings();
    let found = [
        "I13 the journal: journal row 3 cannot be read: a bit flipped",
        "I3 unit `a41`: journal row 3 cannot be read: a bit flipped",
        "I13 attempt 1 of unit `a41`: message 1 cannot be read: a bit flipped",
    ];
    assert_eq!(findings, found);
}

#[test]
fn whichever_row_is_damaged_nothing_else_is_blamed() {
    let damages: [fn(&str, i64) -> bool; 6] = [
        |what, key| what == "journal row" && key == 1,
        |what, key| what == "journal row" && key == 2,
        |what, key| what == "journal row" && key == 3,
        |what, key| what == "journal row" && key == 4,
        |what, key| what == "journal row" && key == 5,
        |what, _| what == "journal row",
    ];
    for (is_damaged, rows) in damages.into_iter().zip([1, 1, 1, 1, 1, 5]) {
        let pool = completed();
        purge(&pool);
        let findings = Tampered { is_damaged, ..Tampered::nothing_of(pool) }.findings();
        assert_eq!(findings.len(), 2 * rows, "{findings:#?}");
        assert!(findings.iter().all(|finding| finding.ends_with("cannot be read: a bit flipped")), "{findings:#?}");
    }
}

#[test]
fn a_unit_whose_record_cannot_be_read_is_still_checked_by_its_key() {
    let pool = completed();
    pool.insert("a42");
    let is_damaged = |what: &str, key: i64| what == "unit" && key == 1;
    let tampered =
        Tampered { is_damaged, messages: |messages| messages[0].role = Role::System, ..Tampered::nothing_of(pool) };
    let found = [
        "I13 the units: unit 1 cannot be read: a bit flipped",
        "I9 attempt 1 of unit key 1: message 1 does not link to the one before",
    ];
    assert_eq!(tampered.findings(), found);
    assert_eq!(verify(&tampered).unwrap().units, 1);
}

#[test]
fn damage_to_what_has_no_pages_is_found_and_the_rest_is_checked() {
    let whats = ["attempts", "result", "inputs"];
    for what in whats {
        let is_damaged: fn(&str, i64) -> bool = match what {
            "attempts" => |what, _| what == "attempts",
            "result" => |what, _| what == "result",
            _ => |what, _| what == "inputs",
        };
        let findings = Tampered { is_damaged, ..Tampered::nothing_of(completed()) }.findings();
        assert_eq!(findings.len(), 1, "{findings:#?}");
        assert!(findings[0].ends_with(&format!("unit `a41`: {what} 1 cannot be read: a bit flipped")), "{findings:#?}");
    }
    let is_damaged = |what: &str, _: i64| what == "attempts";
    assert_eq!(Tampered { is_damaged, ..Tampered::nothing_of(running()) }.findings().len(), 1);
    let is_damaged = |what: &str, _: i64| what == "worker of owner";
    let findings = Tampered { is_damaged, ..Tampered::nothing_of(running()) }.findings();
    let found = ["worker of owner 1 cannot be read: a bit flipped", "what follows 0 cannot be reached"];
    assert_eq!(findings, found.map(|problem| format!("I13 the workers of owner 1: {problem}")));
}

#[test]
fn a_storage_that_does_not_answer_is_an_error() {
    let tampered = Tampered { is_closed: true, ..Tampered::nothing_of(completed()) };
    assert!(matches!(verify(&tampered), Err(RepositoryError::Closed)));
}
