//! The schema, and how an older one becomes today's.
//!
//! A table has the version, which says how many of the [`STEPS`] were taken. The list is append-only: a step that was released is never
//! changed. All missing ones are taken in one transaction, under an advisory lock, so that of many hosts that start together
//! one does it and the others find it done. A version that this build does not know is refused before anything is written.

use super::ConnectError;
use super::columns::Columns;
use super::connection::{Connection, Failure, Read};
use super::server::Server;
use crate::chain;

const STEPS: &[&str] = &[include_str!("schema.sql")];

/// The oldest PostgreSQL that was tried.
const OLDEST_SERVER: i64 = 15;

/// Makes the schema, or brings it up to date.
pub(super) fn migrate(connection: &mut Connection, server: &Server) -> Result<(), ConnectError> {
    check_server(connection)?;
    let known = version_after(STEPS);
    if version(connection, &server.schema)? == Some(known) {
        return Ok(());
    }
    connection.batch("BEGIN")?;
    let taken = take_steps(connection, &server.schema, known);
    match &taken {
        Ok(()) => connection.batch("COMMIT")?,
        // If that fails too, it was the connection.
        Err(_) => drop(connection.batch("ROLLBACK")),
    }
    taken
}

fn check_server(connection: &mut Connection) -> Result<(), ConnectError> {
    let row = connection.row("SELECT current_setting('server_version_num')::bigint / 10000", &[])?;
    let major = row.map_or(Ok(0), |row| row.number(0))?;
    match major < OLDEST_SERVER {
        true => Err(ConnectError::TooOld { found: major, oldest: OLDEST_SERVER }),
        false => Ok(()),
    }
}

fn version_after(steps: &[&str]) -> i64 {
    i64::try_from(steps.len()).expect("a few steps")
}

fn take_steps(connection: &mut Connection, schema: &str, known: i64) -> Result<(), ConnectError> {
    connection.row("SELECT pg_advisory_xact_lock(hashtextextended('workcrew ' || $1, 0))", &[&schema])?;
    // Another host may have done it while this one waited for the lock.
    let found = match version(connection, schema)? {
        Some(found) if found > known => return Err(ConnectError::Newer { found, supported: known }),
        Some(found) => found,
        None => {
            make_place(connection, schema)?;
            0
        }
    };
    for step in &STEPS[usize::try_from(found).unwrap_or_default()..] {
        connection.batch(step)?;
    }
    if found == 0 {
        connection.execute(
            "INSERT INTO heads (only_one, journal_seq, journal_link, unit_key, written_by) VALUES (true, 0, $1, 0, 0)",
            &[&chain::journal_genesis().as_bytes().as_slice()],
        )?;
    }
    connection.execute("UPDATE version SET number = $1", &[&known])?;
    Ok(())
}

/// Makes a schema for us, unless it is there and nothing is in it.
fn make_place(connection: &mut Connection, schema: &str) -> Result<(), ConnectError> {
    if !connection.exists("SELECT 1 FROM pg_namespace WHERE nspname = $1", &[&schema])? {
        connection.batch(&format!("CREATE SCHEMA \"{schema}\""))?;
    }
    let foreign = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 LIMIT 1";
    if connection.exists(foreign, &[&schema])? {
        return Err(ConnectError::NotOurs { schema: schema.to_owned() });
    }
    // The version that was reached. Without this table a schema is not ours, and is not touched.
    connection.batch(
        "CREATE TABLE version (only_one boolean PRIMARY KEY CHECK (only_one), number bigint NOT NULL);
         INSERT INTO version VALUES (true, 0)",
    )?;
    Ok(())
}

/// Which version a schema has; `None` if it is none of ours, or is not there.
fn version(connection: &mut Connection, schema: &str) -> Read<Option<i64>> {
    let table = "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
                 WHERE n.nspname = $1 AND c.relname = 'version' AND c.relkind = 'r'";
    if !connection.exists(table, &[&schema])? {
        return Ok(None);
    }
    let row = connection.row("SELECT number FROM version", &[])?;
    row.map(|row| row.number(0)).transpose()
}

impl From<Failure> for ConnectError {
    fn from(failure: Failure) -> ConnectError {
        match failure {
            Failure::Server(error) => ConnectError::Failed { source: error.into() },
            other => ConnectError::Failed { source: other.into_meaning().into() },
        }
    }
}
