//! One bit, turned over: in a column of a row, or anywhere in the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::life::Life;
use super::table::{Row, Stored, Table, dump, reckless, tables};
use super::{Look, Random, look_at};

/// What a message, a result, a bill, an attempt's end, a unit's inputs, the jobs and the journals consist of.
const EVIDENCE: [(&str, &[&str]); 10] = [
    ("messages", &[]),
    ("attempt_results", &[]),
    ("output_files", &[]),
    ("charges", &[]),
    ("journal", &[]),
    ("jobs", &[]),
    ("job_journal", &[]),
    ("unit_inputs", &[]),
    (
        "attempts",
        &[
            "failure_kind",
            "failure_message",
            "outcome",
            "head",
            "message_count",
            "expected",
            "answer_of_unit",
            "answer_of_attempt",
        ],
    ),
    ("accounts", &["spent", "reserved"]),
];

/// Columns in which damage may pass, and why they are no evidence of what was done.
const NOT_EVIDENCE: &[(&str, &str, &str)] = &[
    ("accounts", "largest", "decides what is expected of the next attempt"),
    ("attempts", "claim_token", "finds the answer of a claim that was lost, while its lease lasts"),
    ("checkpoints", "attempt_number", "only the unit's last one is looked for"),
    ("checkpoints", "value", "is for the next attempt only, which replaces it"),
    ("holds", "provider", "until when a provider is not asked; what was asked is in the attempts"),
    ("holds", "until", "the same"),
    ("holds", "until_boot_ms", "the same"),
    ("holds", "boot_id", "the same"),
    ("holds", "reason", "for people"),
    ("owners", "instance", "who is alive; what an owner did is in the journal and in its attempts"),
    ("owners", "label", "for people"),
    ("owners", "pid", "tells whether an owner still lives"),
    ("owners", "start_ticks", "the same"),
    ("owners", "boot_id", "the same"),
    ("owners", "pid_namespace", "the same"),
    ("owners", "registered_at", "for people"),
    ("owners", "heartbeat_at", "for people"),
    ("owners", "heartbeat_boot_ms", "tells whether an owner is silent, and for a view"),
    ("owners", "lease_ms", "the same"),
    ("owners", "ended_at", "for people, once it has ended"),
    ("owners", "host", "for people"),
    ("owners", "budget", "decides what may begin; what was spent is in the bills"),
    ("owners", "state", "for people, while it lives"),
    ("owners", "told_at", "the same"),
    ("partials", "text", "replaced several times a second, and a message when the attempt ends"),
    ("rate_windows", "provider", "how often a provider was asked a moment ago; what it used is in the bills"),
    ("rate_windows", "boot_id", "the same"),
    ("rate_windows", "free_at_boot_ms", "the same"),
    ("rate_windows", "requests", "the same"),
    ("rate_windows", "input", "the same"),
    ("rate_windows", "output", "the same"),
    ("turns", "id", "the same"),
    ("turns", "provider", "the same"),
    ("turns", "unit_key", "the same"),
    ("turns", "attempt_number", "the same"),
    ("turns", "boot_id", "the same"),
    ("turns", "free_at_boot_ms", "the same"),
    ("turns", "input", "the same"),
    ("turns", "output", "the same"),
    ("work_units", "has_prompt", "derived from the inputs, for the claim"),
    ("work_units", "releases", "derived from the attempts, for the limit"),
    ("work_units", "accepted_by", "decides who may claim it; an owner that is gone is found"),
    ("work_units", "not_before", "decides when it is next"),
    ("work_units", "delay_ms", "the same"),
    ("work_units", "queue_deadline_boot_ms", "the same, within one boot"),
    ("work_units", "lease_owner", "derived from the open attempt, for the renewal"),
    ("work_units", "lease_worker", "the same"),
    ("work_units", "lease_until_boot_ms", "the same, within one boot"),
    ("works", "key", "finds an answer that is there; who does not find it asks again"),
    ("works", "unit_key", "names an answer, which a pool takes only if it was asked the same"),
    ("works", "attempt_number", "the same"),
    ("workers", "id", "a worker that holds nothing can have any name; attempts have their own"),
    ("workers", "job_id", "statistics for people"),
    ("workers", "status", "what a worker is doing now; what it holds is checked"),
    ("workers", "capacity", "the same"),
    ("workers", "units_completed", "statistics for people"),
    ("workers", "units_failed", "statistics for people"),
    ("workers", "total_time_ms", "statistics for people"),
    ("workers", "created_at", "for people"),
    ("workers", "last_activity_at", "for people"),
];

fn is_evidence(table: &Table, column: &str) -> bool {
    let listed = EVIDENCE.iter().find(|(name, _)| *name == table.name);
    listed.is_some_and(|(_, columns)| columns.is_empty() || columns.contains(&column))
}

fn findings(path: &Path) -> Vec<String> {
    match look_at(path) {
        Look::Read(verification) => verification.findings.iter().map(ToString::to_string).collect(),
        other => panic!("{other:?}"),
    }
}

/// What an attempt used and who runs it can still change until it ends: nothing vouches for that yet.
fn is_unsealed(tables: &[(Table, Vec<Row>)], table: &Table, row: &Row) -> bool {
    let (attempts, rows) = tables.iter().find(|(table, _)| table.name == "attempts").unwrap();
    let open = rows.iter().find(|row| row[attempts.index("outcome")] == Stored::Null);
    ["charges", "attempts"].contains(&table.name.as_str()) && open.is_some_and(|open| row[..2] == open[..2])
}

/// A database under a knife: each change is made, looked at and undone.
struct Patient {
    life: Life,
    connection: rusqlite::Connection,
    tables: Vec<(Table, Vec<Row>)>,
}

impl Patient {
    fn new() -> Patient {
        let life = Life::lived();
        assert_eq!(findings(&life.path()), Vec::<String>::new());
        let connection = reckless(&life.path());
        let tables = tables(&connection).into_iter().map(|table| {
            let rows = table.rows(&connection).unwrap();
            (table, rows)
        });
        let tables = tables.collect();
        Patient { life, connection, tables }
    }

    /// What is found with a bit turned over; `None` if the row cannot be stored so.
    fn flip(&self, table: &Table, row: &Row, column: usize, bit: usize) -> Option<Vec<String>> {
        let flipped = row[column].flipped(bit);
        if !table.write(&self.connection, row, column, &flipped) {
            return None;
        }
        let found = findings(&self.life.path());
        let mut now = row.clone();
        now[column] = flipped;
        assert!(table.write(&self.connection, &now, column, &row[column]));
        Some(found)
    }
}

#[test]
fn a_flipped_bit_in_any_message_result_or_journal_row_is_found_a_thousand_times_of_a_thousand() {
    let (patient, mut random) = (Patient::new(), Random::seeded());
    let evidence: Vec<&(Table, Vec<Row>)> =
        patient.tables.iter().filter(|(table, _)| EVIDENCE.iter().any(|(name, _)| *name == table.name)).collect();
    let mut flips = 0;
    let mut missed = Vec::new();
    while flips < 1_000 {
        let (table, rows) = *random.pick(&evidence);
        let (row, column) = (random.pick(rows), random.below(table.columns.len()));
        let bits = row[column].bits();
        if bits == 0 || !is_evidence(table, &table.columns[column]) || is_unsealed(&patient.tables, table, row) {
            continue;
        }
        let bit = random.below(bits);
        let Some(found) = patient.flip(table, row, column, bit) else { continue };
        flips += 1;
        if found.is_empty() {
            missed.push(format!("{}.{} bit {bit} of {row:?}", table.name, table.columns[column]));
        }
    }
    assert!(missed.is_empty(), "{} of {flips} missed:\n{}", missed.len(), missed.join("\n"));
    assert_eq!(findings(&patient.life.path()), Vec::<String>::new());
}

#[test]
fn every_column_is_evidence_or_listed_with_the_reason_why_not() {
    let (patient, mut random) = (Patient::new(), Random::seeded());
    let mut missed: BTreeMap<(String, String), usize> = BTreeMap::new();
    for (table, rows) in &patient.tables {
        for (column, name) in table.columns.iter().enumerate() {
            let filled = rows.iter().filter(|row| row[column].bits() > 0 && !is_unsealed(&patient.tables, table, row));
            let filled: Vec<&Row> = filled.collect();
            for _ in 0..if filled.is_empty() { 0 } else { 4 } {
                let row = *random.pick(&filled);
                let bit = random.below(row[column].bits());
                let found = patient.flip(table, row, column, bit);
                if found.is_some_and(|found| found.is_empty()) {
                    *missed.entry((table.name.clone(), name.clone())).or_default() += 1;
                }
            }
        }
    }
    let exists = |table: &str, column: &str| {
        let mut columns = patient.tables.iter().filter(|(found, _)| found.name == table);
        columns.any(|(found, _)| found.columns.iter().any(|name| name == column))
    };
    assert!(NOT_EVIDENCE.iter().all(|(table, column, _)| exists(table, column)));
    let listed: BTreeSet<(&str, &str)> = NOT_EVIDENCE.iter().map(|(table, column, _)| (*table, *column)).collect();
    let unlisted: Vec<_> =
        missed.iter().filter(|((table, column), _)| !listed.contains(&(table.as_str(), column.as_str()))).collect();
    assert!(unlisted.is_empty(), "{unlisted:#?}");
}

/// Small pages without gaps, so that most of the file means something and its trees are deep.
fn dense(life: &Life) -> std::path::PathBuf {
    let path = life.copy("dense.db");
    let connection = reckless(&path);
    connection.pragma_update(None, "journal_mode", "DELETE").unwrap();
    connection.pragma_update(None, "page_size", 512).unwrap();
    connection.execute_batch("VACUUM").unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.close().unwrap();
    path
}

/// What a file holds, without what is no evidence.
fn evidence(path: &Path) -> Option<Vec<(String, Vec<Row>)>> {
    let tables = dump(path).ok()?;
    let is_listed = |table: &Table, column: &String| {
        NOT_EVIDENCE.iter().any(|(name, listed, _)| *name == table.name && listed == column)
    };
    let content = tables.iter().map(|(table, rows)| {
        let kept: Vec<usize> = (0..table.columns.len()).filter(|&i| !is_listed(table, &table.columns[i])).collect();
        let sealed = rows.iter().filter(|row| !is_unsealed(&tables, table, row));
        (table.name.clone(), sealed.map(|row| kept.iter().map(|&index| row[index].clone()).collect()).collect())
    });
    Some(content.collect())
}

#[test]
fn a_flipped_bit_anywhere_in_the_file_is_refused_or_found_or_changes_nothing() {
    let (life, mut random) = (Life::lived(), Random::seeded());
    let dense = dense(&life);
    let (bytes, original) = (std::fs::read(&dense).unwrap(), evidence(&dense).unwrap());
    assert_eq!(findings(&dense), Vec::<String>::new());
    let (mut refused, mut found, mut harmless) = (0, 0, 0);
    let mut missed = Vec::new();
    for number in 0..300 {
        let bit = random.below(bytes.len() * 8);
        let mut damaged = bytes.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        let path = life.copy(&format!("{number}.db"));
        std::fs::write(&path, damaged).unwrap();
        match look_at(&path) {
            Look::Refused(_) => refused += 1,
            Look::Read(verification) if !verification.is_clean() => found += 1,
            Look::Read(_) if evidence(&path).as_ref() == Some(&original) => harmless += 1,
            look => missed.push(format!("byte {} bit {}: {look:?}", bit / 8, bit % 8)),
        }
    }
    println!("{refused} refused, {found} found, {harmless} without effect, of {} bytes", bytes.len());
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}
