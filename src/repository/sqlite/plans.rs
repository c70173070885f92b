//! How SQLite executes our statements: by an index, unless it is said here why not.
//!
//! The statements are taken from the sources, so that none is forgotten.

use std::collections::BTreeMap;
use std::path::PathBuf;

use rusqlite::Connection;

use super::migrate;
use super::read::{SUMMARY_COLUMNS, UNIT_COLUMNS, units_query};
use crate::job::JobId;
use crate::repository::UnitFilter;
use crate::unit::UnitStatus;

/// The files beside this one but those whose SQL runs once, when a database is opened.
fn sources() -> Vec<String> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/repository/sqlite");
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let is_meant = |path: &PathBuf| {
        let once = ["migrate.rs", "open.rs", "plans.rs"].iter().any(|name| path.ends_with(name));
        path.extension().is_some_and(|extension| extension == "rs") && !once
    };
    paths.filter(is_meant).map(|path| std::fs::read_to_string(path).unwrap()).collect()
}

/// A text between quotes, with the constant that it is, if it is one.
struct Literal {
    constant: Option<String>,
    text: String,
}

fn literals(source: &str) -> Vec<Literal> {
    let code = source.split("#[cfg(test)]").next().unwrap_or_default();
    let code: String = code.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n");
    let (mut literals, mut rest) = (Vec::new(), code.as_str());
    while let Some((before, behind)) = rest.split_once('"') {
        let constant = before.trim_end().strip_suffix(": &str =").and_then(|line| line.rsplit(' ').next());
        let (mut text, mut chars) = (String::new(), behind.char_indices());
        let end = loop {
            match chars.next() {
                Some((end, '"')) => break end,
                // A line that goes on.
                Some((_, '\\')) => drop(chars.next()),
                Some((_, char)) => text.push(char),
                None => break behind.len() - 1,
            }
        };
        literals.push(Literal { constant: constant.map(str::to_owned), text });
        rest = &behind[end + 1..];
    }
    literals
}

/// Every statement of ours, without white space that means nothing.
fn statements() -> Vec<String> {
    let literals: Vec<Literal> = sources().iter().flat_map(|source| literals(source)).collect();
    let constants: BTreeMap<String, &str> = literals
        .iter()
        .filter_map(|literal| Some((format!("{{{}}}", literal.constant.as_deref()?), literal.text.as_str())))
        .collect();
    let verbs = ["SELECT ", "UPDATE ", "DELETE ", "INSERT ", "WHERE "];
    let is_statement = |text: &&str| verbs.iter().any(|verb| text.starts_with(verb)) && !text.contains("{conditions}");
    let whole = |text: &str| {
        let frame = if text.starts_with("WHERE") { "SELECT {HOT_COLUMNS} " } else { "" };
        let filled = constants.iter().fold(format!("{frame}{text}"), |sql, (name, text)| sql.replace(name, text));
        filled.split_ascii_whitespace().collect::<Vec<_>>().join(" ")
    };
    literals.iter().map(|literal| literal.text.as_str()).filter(is_statement).map(whole).collect()
}

/// A database of ours, planned as our connections plan.
fn database() -> Connection {
    let connection = Connection::open_in_memory().unwrap();
    migrate::create(&connection).unwrap();
    super::open::prepare(&connection).unwrap();
    connection
}

fn plan(connection: &Connection, statement: &str) -> Vec<String> {
    let mut explain = connection
        .prepare(&format!("EXPLAIN QUERY PLAN {statement}"))
        .unwrap_or_else(|error| panic!("{statement}: {error}"));
    // No plan depends on what a parameter is.
    let parameters = vec![rusqlite::types::Null; explain.parameter_count()];
    let steps = explain.query_map(rusqlite::params_from_iter(parameters), |row| row.get(3));
    steps.unwrap().collect::<rusqlite::Result<_>>().unwrap()
}

/// Statements that read a whole table, and why they may.
const SCANS: [(&str, &str); 8] = [
    ("journal ORDER BY seq DESC LIMIT 1", "it stops at the first row"),
    ("FROM jobs ORDER BY id", "of a file that has no journal of jobs yet"),
    ("FROM owners ORDER BY id", "a row for each pool that ever was, asked for by people"),
    ("FROM owners WHERE ended_at IS NULL", "the same, for a sweep"),
    ("FROM jobs WHERE budget IS NOT NULL", "of a file that has no accounts yet"),
    ("FROM accounts LIMIT 1", "it stops at the first row"),
    ("FROM holds ORDER BY provider", "a row for each provider"),
    ("FROM attempts a JOIN work_units u", "see the weaknesses in the docs of the module"),
];

#[test]
fn no_statement_reads_a_whole_table_without_a_reason() {
    let (connection, statements) = (database(), statements());
    assert!(statements.len() > 60, "only {} were found", statements.len());
    for statement in &statements {
        let plan = plan(&connection, statement);
        let scans = plan.iter().any(|step| step.starts_with("SCAN"));
        let is_allowed = SCANS.iter().any(|(part, _)| statement.contains(part));
        assert_eq!(scans, is_allowed, "{statement}\n{plan:#?}");
    }
}

#[test]
fn what_is_done_all_the_time_uses_the_index_that_serves_it() {
    let served = [
        ("u.accepted_by IS ?2", "work_units_ready (job_id=? AND accepted_by=?)"),
        ("u.key = ?1 AND +u.job_id = ?2", "INTEGER PRIMARY KEY (rowid=?)"),
        ("job_id = ?1 AND not_before <= ?2 LIMIT 1", "work_units_delayed (job_id=? AND not_before>? AND not_before<?)"),
        ("SELECT 1 FROM work_units WHERE not_before IS NOT NULL AND not_before - delay_ms > ?2", "work_units_put_off"),
        (
            "not_before <= ?2 AND status = 'PENDING' AND accepted_by IS NULL",
            "work_units_delayed (job_id=? AND not_before>? AND not_before<?)",
        ),
        (
            "SELECT key FROM work_units WHERE not_before IS NOT NULL AND not_before - delay_ms > ?2",
            "work_units_put_off",
        ),
        ("job_id = ?1 AND accepted_by < ?2 LIMIT 1", "work_units_ready (job_id=? AND accepted_by<?)"),
        ("job_id = ?1 AND accepted_by > ?2 LIMIT 1", "work_units_ready (job_id=? AND accepted_by>?)"),
        ("accepted_by <> ?2 AND not_before IS NOT NULL", "work_units_accepted"),
        ("u.lease_until_boot_ms <= ?2 ORDER BY", "work_units_leased (lease_owner=? AND lease_until_boot_ms<?)"),
        ("accepted_by IS NULL AND has_prompt LIMIT ?2", "work_units_ready (job_id=? AND accepted_by=?)"),
        ("not_before > ?2 AND +(not_before - delay_ms) <= ?2", "work_units_delayed (job_id=? AND not_before>?)"),
        ("u.lease_owner IS NOT NULL AND +u.key > ?1", "work_units_leased"),
        ("u.lease_until_boot_ms <= ?1 AND +u.job_id", "work_units_leased"),
        ("SET lease_until_boot_ms = ?2 WHERE lease_owner", "work_units_leased (lease_owner=?)"),
        ("a.claim_token = ?2", "work_units_leased (lease_owner=?)"),
        ("u.lease_worker = ?2", "work_units_leased (lease_owner=?)"),
        ("accepted_by IS NOT NULL AND accepted_by = ?1", "work_units_accepted"),
        ("accepted_by = ?1 AND key > ?2", "work_units_accepted (accepted_by=? AND rowid>?)"),
        ("u.queue_deadline_boot_ms <= ?1", "work_units_queued"),
        ("u.completed_at < ?1", "work_units_to_purge"),
        ("SELECT u.key, i.content_hash", "work_units_by_id (job_id=? AND id=?)"),
        ("FROM journal WHERE unit_key = ?3", "journal_by_unit (unit_key=? AND seq>?)"),
        ("AND head IS NOT NULL", "journal_by_unit (unit_key=?)"),
    ];
    let (connection, statements) = (database(), statements());
    for (part, index) in served {
        let meant: Vec<&String> = statements.iter().filter(|statement| statement.contains(part)).collect();
        assert_eq!(meant.len(), 1, "{part}: {meant:#?}");
        let plan = plan(&connection, meant[0]);
        assert!(plan[0].contains(index), "{part}: {plan:#?}");
    }
    // A claim takes the first of those that wait, and does not sort the others.
    let claim = statements.iter().find(|statement| statement.contains("u.accepted_by IS ?2")).unwrap();
    assert!(!plan(&connection, claim).iter().any(|step| step.contains("TEMP B-TREE")));
}

#[test]
fn a_page_of_units_is_found_where_the_last_one_ended() {
    let (job, connection) = (UnitFilter::job(JobId(1)), database());
    let bad = "work_units_ended_badly (job_id=? AND status=? AND key>?)";
    let walk = "INTEGER PRIMARY KEY (rowid>?)";
    let filters = [
        (UnitFilter::default(), walk),
        (UnitFilter::default().status(UnitStatus::Failed), walk),
        (job.clone(), walk),
        (job.clone().unit_type("page"), walk),
        (job.clone().status(UnitStatus::Completed), walk),
        (job.clone().status(UnitStatus::Failed).status(UnitStatus::Cancelled), walk),
        (job.clone().status(UnitStatus::Failed), bad),
        (job.status(UnitStatus::Cancelled).failure_kind("lost"), bad),
    ];
    for (filter, index) in filters {
        for columns in [UNIT_COLUMNS, SUMMARY_COLUMNS] {
            let plan = plan(&connection, &units_query(columns, &filter, 0).0);
            assert!(plan[0].contains(index), "{filter:?}: {plan:#?}");
            assert!(!plan.iter().any(|step| step.contains("TEMP B-TREE")), "{filter:?}: {plan:#?}");
        }
    }
}
