//! A database that somebody made to do harm to whoever reads it.

use std::path::Path;

use rusqlite::{Connection, params};
use workcrew::audit;
use workcrew::limits::AccountHolder;
use workcrew::repository::sqlite::{OpenError, SqliteArchive};
use workcrew::repository::{Page, Result, UnitFilter};
use workcrew::{Archive, AttemptKey, JobId, OwnerId, RepositoryError, UnitKey};

use super::life::Life;
use super::table::{Stored, dump, reckless, tables};
use super::{Look, look_at};
use crate::memory;

fn is_refused_as_damaged(path: &Path) -> bool {
    matches!(look_at(path), Look::Refused(OpenError::Damaged { .. }))
}

#[test]
fn a_database_with_anything_but_our_tables_is_refused_and_nothing_in_it_is_executed() {
    let endless = "WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS seq FROM n";
    let hostile = [
        "CREATE TRIGGER t AFTER UPDATE ON jobs BEGIN DELETE FROM journal; END",
        "CREATE TRIGGER sqliteXstat AFTER UPDATE ON jobs BEGIN DELETE FROM journal; END",
        &format!("DROP TABLE journal; CREATE VIEW journal AS {endless}"),
        &format!("DROP TABLE messages; CREATE VIEW messages AS {endless}"),
        "DROP VIEW units; CREATE VIEW units AS SELECT load_extension('x.so') AS key",
        "DELETE FROM jobs; CREATE INDEX large ON jobs (zeroblob(1000000000))",
        "DELETE FROM jobs; CREATE INDEX sqliteXstat ON jobs (printf('%.1000000000c', 'x'))",
        "DELETE FROM jobs; ALTER TABLE jobs ADD COLUMN x TEXT AS (printf('%.1000000000c', 'x'))",
        "CREATE TABLE more (x)",
        "DROP INDEX journal_by_unit",
    ];
    for sql in hostile {
        let life = Life::lived();
        let connection = reckless(&life.path());
        connection.execute_batch(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        connection.close().unwrap();
        let before = std::fs::read(life.path()).unwrap();
        assert!(is_refused_as_damaged(&life.path()), "{sql}: {:?}", look_at(&life.path()));
        assert!(std::fs::read(life.path()).unwrap() == before, "{sql}: something was written");
    }
}

#[test]
fn a_lookalike_without_types_and_constraints_is_refused() {
    let life = Life::lived();
    loosen(&life.path());
    assert!(is_refused_as_damaged(&life.path()));
}

/// Lets every column take everything.
fn loosen(path: &Path) {
    let connection = reckless(path);
    connection.pragma_update(None, "writable_schema", true).unwrap();
    let words =
        ["STRICT, WITHOUT", " STRICT", "INTEGER NOT NULL", "TEXT    NOT NULL", "BLOB    NOT NULL", "BLOB NOT NULL"];
    for (word, loose) in words.into_iter().zip(["WITHOUT", "", "INTEGER", "TEXT", "", ""]) {
        let sql = "UPDATE sqlite_schema SET sql = replace(sql, ?1, ?2) WHERE type = 'table'";
        connection.execute(sql, [word, loose]).unwrap();
    }
    connection.close().unwrap();
}

/// A connection that takes every column for untyped, to a file that says the opposite.
fn untyped(path: &Path) -> Connection {
    let original = reckless(path);
    let mut select = original.prepare("SELECT name, sql FROM sqlite_schema WHERE type = 'table'").unwrap();
    let schema = select.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?))).unwrap();
    let schema: Vec<(String, String)> = schema.collect::<rusqlite::Result<_>>().unwrap();
    loosen(path);
    let untyped = reckless(path);
    assert!(!tables(&untyped).is_empty(), "it has read the schema, and will not do so again");
    let restoring = reckless(path);
    restoring.pragma_update(None, "writable_schema", true).unwrap();
    for (name, sql) in schema {
        restoring.execute("UPDATE sqlite_schema SET sql = ?2 WHERE name = ?1", params![name, sql]).unwrap();
    }
    untyped
}

/// Everything that can be listed, whether it can be read or not.
fn list_all(archive: &SqliteArchive) {
    fn pages<T>(mut read: impl FnMut(i64) -> Result<Page<T>>) {
        let mut after = 0;
        for _ in 0..100 {
            match read(after) {
                Ok(Page { next: Some(next), .. }) => after = next,
                _ => break,
            }
        }
    }
    pages(|after| archive.jobs(after, 3));
    pages(|after| archive.job_journal(after, 3));
    pages(|after| archive.units(&UnitFilter::default(), after, 3));
    pages(|after| archive.leases(None, after, 3));
    pages(|after| archive.leases(Some(JobId(1)), after, 3));
    pages(|after| archive.journal(after, 3));
    pages(|after| archive.outcomes_since(after, 3));
    let _ = (archive.owners(), archive.workers(OwnerId(1), "", 10), archive.costs(None));
    let _ = (archive.holds(), archive.account(AccountHolder::Job(JobId(1))));
    let _ = (archive.counts(JobId(1)), archive.job_named("job"), archive.unit(JobId(1), "retried"));
    for unit in (-1..11).map(UnitKey) {
        pages(|after| archive.unit_journal(unit, after, 3));
        let _ = (archive.attempts(unit), archive.inputs(unit), archive.checkpoint(unit));
        for number in 0..4 {
            let attempt = AttemptKey { unit, number };
            let _ = (archive.attempt_result(attempt), archive.charges(attempt), archive.partial_text(attempt));
            pages(|after| archive.messages(attempt, u32::try_from(after).unwrap_or(0), 3));
        }
    }
}

#[test]
fn odd_values_in_every_column_are_read_as_damage() {
    let deep = "[".repeat(100_000) + &"]".repeat(100_000);
    let odd = [
        Stored::Null,
        Stored::Integer(-1),
        Stored::Integer(i64::MIN),
        Stored::Integer(i64::MAX),
        Stored::Integer(i64::from(u32::MAX) + 1),
        Stored::Real(f64::MAX),
        Stored::Text(b"\xff\xfe".to_vec()),
        Stored::Blob(Vec::new()),
        Stored::Blob(deep.into_bytes()),
    ];
    let life = Life::lived();
    let before = dump(&life.path()).unwrap();
    let connection = untyped(&life.path());
    for table in tables(&connection) {
        let row = table.rows(&connection).unwrap().pop().unwrap();
        for (column, name) in table.columns.iter().enumerate() {
            for value in &odd {
                if !table.write(&connection, &row, column, value) {
                    continue;
                }
                let mut now = row.clone();
                now[column] = value.clone();
                let what = format!("{}.{name} = {:.60}", table.name, format!("{value:?}"));
                match look_at(&life.path()) {
                    Look::Read(_) => list_all(&SqliteArchive::open(life.path()).unwrap()),
                    look => panic!("{what}: {look:?}"),
                }
                assert!(table.write(&connection, &now, column, &row[column]), "{what}");
            }
        }
    }
    assert_eq!(dump(&life.path()).unwrap(), before);
}

#[test]
fn odd_values_in_a_lease_are_read_as_damage() {
    // 003-F59, 003-F61: whoever asks what runs may ask a file that was made to do harm.
    let odd = [
        Stored::Null,
        Stored::Integer(-1),
        Stored::Integer(i64::MIN),
        Stored::Integer(i64::MAX),
        Stored::Real(f64::MAX),
        Stored::Text(b"\xff\xfe".to_vec()),
        Stored::Blob(Vec::new()),
    ];
    let life = Life::lived();
    let connection = untyped(&life.path());
    let of_the_leased = [
        ("work_units", "SELECT key FROM work_units WHERE lease_owner IS NOT NULL"),
        ("owners", "SELECT lease_owner FROM work_units WHERE lease_owner IS NOT NULL"),
        ("attempts", "SELECT key FROM work_units WHERE lease_owner IS NOT NULL"),
    ];
    let mut damaged = 0;
    for (name, sql) in of_the_leased {
        let table = tables(&connection).into_iter().find(|table| table.name == name).unwrap();
        let key: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
        let row = table.rows(&connection).unwrap().into_iter().rfind(|row| row[0] == Stored::Integer(key)).unwrap();
        for (column, column_name) in table.columns.iter().enumerate() {
            for value in odd.iter().filter(|value| table.write(&connection, &row, column, value)) {
                let archive = SqliteArchive::open(life.path()).unwrap();
                match archive.leases(None, 0, 9) {
                    Ok(page) => assert!(page.items.len() <= 1, "{page:?}"),
                    Err(RepositoryError::Corrupt { what, .. }) => {
                        damaged += 1;
                        assert!(what.contains("the lease of unit key"), "{what}");
                    }
                    Err(error) => panic!("{name}.{column_name} = {value:?}: {error:?}"),
                }
                let mut now = row.clone();
                now[column] = value.clone();
                assert!(table.write(&connection, &now, column, &row[column]), "{name}.{column_name}");
            }
        }
    }
    assert!(damaged > 50, "only {damaged} values were found to be odd");
    assert_eq!(SqliteArchive::open(life.path()).unwrap().leases(None, 0, 9).unwrap().items.len(), 1);
}

const GIB: u64 = 1024 * 1024 * 1024;

/// Compressed bytes that hold so many zeros, and claim to be as long as they like.
fn bomb(claimed: Option<u64>, len_bytes: u64) -> Vec<u8> {
    const BLOCK_BYTES: u64 = 128 * 1024;
    let (magic, window_of_a_block) = ([0x28, 0xb5, 0x2f, 0xfd], 7 << 3);
    let mut bytes = magic.to_vec();
    match claimed {
        Some(claimed) => {
            bytes.extend([0b1100_0000, window_of_a_block]);
            bytes.extend(claimed.to_le_bytes());
        }
        None => bytes.extend([0, window_of_a_block]),
    }
    let blocks = len_bytes / BLOCK_BYTES;
    for number in 1..=blocks {
        let (is_last, repeated) = (u64::from(number == blocks), 1 << 1);
        bytes.extend(&((BLOCK_BYTES << 3) | repeated | is_last).to_le_bytes()[..3]);
        bytes.push(0);
    }
    bytes
}

#[test]
fn a_message_that_grows_when_it_is_read_is_found_without_the_memory_for_it() {
    const NAME: &str = "damage::hostile::a_message_that_grows_when_it_is_read_is_found_without_the_memory_for_it";
    let Some(peak_mib) = memory::peak_growth_mib(NAME, || {
        let bombs = [
            bomb(Some(10 * GIB), 10 * GIB),
            bomb(Some(GIB), GIB),
            bomb(None, 10 * GIB),
            bomb(Some(1_000), 10 * GIB),
            bomb(Some(u64::MAX - 2), GIB),
            bomb(Some(1_000_000), 10 * GIB)[..1_000].to_vec(),
            b"not compressed at all".to_vec(),
        ];
        for bomb in bombs {
            for column in ["body", "raw"] {
                let life = Life::lived();
                let connection = reckless(&life.path());
                let sql =
                    format!("UPDATE messages SET {column} = ?1, encoding = 'zstd' WHERE unit_key = 3 AND number = 3");
                assert_eq!(connection.execute(&sql, [&bomb]).unwrap(), 1);
                connection.close().unwrap();
                let archive = SqliteArchive::open(life.path()).unwrap();
                let verification = audit::verify(&archive).unwrap();
                assert!(verification.to_string().contains("message 3"), "{verification}");
                let attempt = AttemptKey { unit: UnitKey(3), number: 1 };
                assert!(archive.messages(attempt, 0, 10).is_err());
            }
        }
    }) else {
        return;
    };
    println!("the memory grew by {peak_mib} MiB");
    assert!(peak_mib < 128, "the memory grew by {peak_mib} MiB");
}
