//! Between rows and records.

use chrono::{DateTime, Utc};
use rusqlite::types::{FromSqlError, Type, ValueRef};
use rusqlite::{Connection, OptionalExtension, Row, params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::accounts;
use super::book::{Answer, Book};
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Failure, FailureKind, Outcome, OutputFile};
use crate::chain::Hash;
use crate::conversation::{Raw, from_json, to_json};
use crate::job::JobId;
use crate::lease::{Lease, OwnerId};
use crate::money::{Charge, Money, Tokens};
use crate::repository::prepared::HotUnit;
use crate::repository::rules::Pause;
use crate::unit::{UnitId, UnitKey, UnitStatus, shortened};
use crate::worker::WorkerId;

type BoxedError = Box<dyn std::error::Error + Send + Sync>;

/// A column that holds something that was never written.
fn unreadable(column: usize, column_type: Type, error: impl Into<BoxedError>) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, column_type, error.into())
}

/// A hash.
pub(super) fn blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Hash> {
    let bytes: [u8; 32] = row.get(column)?;
    Ok(Hash::from_bytes(bytes))
}

pub(super) fn optional_blob(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Hash>> {
    let bytes: Option<[u8; 32]> = row.get(column)?;
    Ok(bytes.map(Hash::from_bytes))
}

/// A time.
pub(super) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<DateTime<Utc>> {
    optional_time(row, column)?.ok_or_else(|| unreadable(column, Type::Null, FromSqlError::InvalidType))
}

pub(super) fn optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<DateTime<Utc>>> {
    let Some(milliseconds) = row.get::<_, Option<i64>>(column)? else { return Ok(None) };
    let time = DateTime::from_timestamp_millis(milliseconds);
    time.map(Some).ok_or_else(|| unreadable(column, Type::Integer, FromSqlError::OutOfRange(milliseconds)))
}

/// A value stored under its name.
pub(super) fn named<T>(row: &Row<'_>, column: usize, from_name: fn(&str) -> Option<T>) -> rusqlite::Result<T> {
    let name = row.get_ref(column)?.as_str()?;
    from_name(name).ok_or_else(|| unreadable(column, Type::Text, format!("`{}` is no such name", shortened(name))))
}

/// A name that was checked when it was written.
pub(super) fn unit_id(row: &Row<'_>, column: usize) -> rusqlite::Result<UnitId> {
    UnitId::new(row.get::<_, String>(column)?).map_err(|error| unreadable(column, Type::Text, error))
}

pub(super) fn worker_id(row: &Row<'_>, column: usize) -> rusqlite::Result<WorkerId> {
    unit_id(row, column).map(WorkerId::from)
}

/// JSON in a BLOB.
pub(super) fn json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<T> {
    let bytes = row.get_ref(column)?.as_blob()?;
    from_json(bytes).map_err(|error| unreadable(column, Type::Blob, error))
}

pub(super) fn optional_json<T: DeserializeOwned>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    match row.get_ref(column)? {
        ValueRef::Null => Ok(None),
        _ => json(row, column).map(Some),
    }
}

/// JSON whose value is hashed, not its bytes: only the very bytes that we would write have one hash.
fn exact_json<T: DeserializeOwned + Serialize>(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<T>> {
    let Some(value) = optional_json(row, column)? else { return Ok(None) };
    match to_json(&value) {
        Ok(written) if written == row.get_ref(column)?.as_blob()? => Ok(Some(value)),
        _ => Err(unreadable(column, Type::Blob, "it is not as it was written")),
    }
}

/// A truth, which is 0 or 1 and nothing else.
fn truth(row: &Row<'_>, column: usize) -> rusqlite::Result<bool> {
    match row.get(column)? {
        0 => Ok(false),
        1 => Ok(true),
        number => Err(unreadable(column, Type::Integer, FromSqlError::OutOfRange(number))),
    }
}

/// How long a unit may not be claimed.
pub(super) fn pause(row: &Row<'_>, not_before: usize, delay_ms: usize) -> rusqlite::Result<Option<Pause>> {
    let Some(not_before) = optional_time(row, not_before)? else { return Ok(None) };
    Ok(Some(Pause { not_before, delay_ms: row.get(delay_ms)? }))
}

pub(super) fn failure(row: &Row<'_>, kind: usize, message: usize) -> rusqlite::Result<Option<Failure>> {
    let Some(kind) = row.get::<_, Option<String>>(kind)? else { return Ok(None) };
    Ok(Some(Failure::new(FailureKind::new(kind), row.get::<_, String>(message)?)))
}

/// What an attempt left behind.
pub(super) fn read_attempt_result(connection: &Connection, attempt: AttemptKey) -> rusqlite::Result<AttemptResult> {
    let key = params![attempt.unit.0, attempt.number];
    let mut select = connection.prepare_cached(
        "SELECT rendered_prompt, result, output, late_result, purged
         FROM attempt_results
         WHERE unit_key = ?1 AND attempt_number = ?2",
    )?;
    let mut rows = select.query(key)?;
    let mut result = AttemptResult::default();
    if let Some(row) = rows.next()? {
        result.rendered_prompt = row.get(0)?;
        result.result = row.get::<_, Option<Vec<u8>>>(1)?.map(Raw::from);
        result.output = row.get(2)?;
        result.late_result = row.get::<_, Option<Vec<u8>>>(3)?.map(Raw::from);
        result.purged = exact_json(row, 4)?;
    }
    let mut select = connection.prepare_cached(
        "SELECT path, size_bytes, hash, position
         FROM output_files
         WHERE unit_key = ?1 AND attempt_number = ?2
         ORDER BY position",
    )?;
    let mut rows = select.query(key)?;
    while let Some(row) = rows.next()? {
        let file = OutputFile { path: row.get(0)?, size_bytes: unsigned(row, 1)?, hash: blob(row, 2)? };
        if unsigned(row, 3)? != result.output_files.len() as u64 {
            return Err(unreadable(3, Type::Integer, "a file is missing before this one"));
        }
        result.output_files.push(file);
    }
    Ok(result)
}

/// A number that is never negative.
pub(super) fn unsigned(row: &Row<'_>, column: usize) -> rusqlite::Result<u64> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| unreadable(column, Type::Integer, FromSqlError::OutOfRange(number)))
}

/// Token counts in five columns.
pub(super) fn tokens(row: &Row<'_>, first: usize) -> rusqlite::Result<Tokens> {
    Ok(Tokens {
        input: unsigned(row, first)?,
        output: unsigned(row, first + 1)?,
        cache_read: unsigned(row, first + 2)?,
        cache_write: unsigned(row, first + 3)?,
        reasoning: unsigned(row, first + 4)?,
    })
}

const CHARGE_COLUMNS: &str = "model, input, output, cache_read, cache_write, reasoning, amount, price, is_estimated, attempt_number FROM charges";

fn charge(row: &Row<'_>) -> rusqlite::Result<Charge> {
    Ok(Charge {
        model: row.get(0)?,
        tokens: tokens(row, 1)?,
        amount: row.get::<_, Option<i64>>(6)?.map(Money::from_nanos),
        price: exact_json(row, 7)?,
        is_estimated: truth(row, 8)?,
    })
}

/// What an attempt used.
pub(super) fn read_charges(connection: &Connection, attempt: AttemptKey) -> rusqlite::Result<Vec<Charge>> {
    let mut select = connection.prepare_cached(&format!(
        "SELECT {CHARGE_COLUMNS} WHERE unit_key = ?1 AND attempt_number = ?2 ORDER BY model"
    ))?;
    let charges = select.query_map(params![attempt.unit.0, attempt.number], charge)?;
    charges.collect()
}

/// What each attempt of a unit used, in the order of attempts.
pub(super) fn read_unit_charges(connection: &Connection, unit: UnitKey) -> rusqlite::Result<Vec<(u32, Charge)>> {
    let mut select = connection
        .prepare_cached(&format!("SELECT {CHARGE_COLUMNS} WHERE unit_key = ?1 ORDER BY attempt_number, model"))?;
    let charges = select.query_map([unit.0], |row| Ok((row.get(9)?, charge(row)?)))?;
    charges.collect()
}

/// The columns of [`HotUnit`].
pub(super) const HOT_COLUMNS: &str = "u.key, u.job_id, u.id, u.status, u.fence, u.attempt_count, u.attempts_used, \
     u.releases, u.max_retries, u.priority, u.not_before, u.delay_ms, u.purged_at IS NOT NULL, u.lease_owner, \
     u.lease_worker FROM work_units u";

/// Reads the columns of a [`HotUnit`].
pub(super) fn hot_unit(row: &Row<'_>) -> rusqlite::Result<HotUnit> {
    let lease_owner: Option<i64> = row.get(13)?;
    Ok(HotUnit {
        key: UnitKey(row.get(0)?),
        job_id: JobId(row.get(1)?),
        id: unit_id(row, 2)?,
        status: named(row, 3, UnitStatus::from_name)?,
        fence: row.get(4)?,
        attempt_count: row.get(5)?,
        attempts_used: row.get(6)?,
        releases: row.get(7)?,
        max_retries: row.get(8)?,
        priority: row.get(9)?,
        pause: pause(row, 10, 11)?,
        is_purged: row.get(12)?,
        lease: match lease_owner {
            Some(owner) => Some((OwnerId(owner), worker_id(row, 14)?)),
            None => None,
        },
    })
}

impl Book<'_> {
    /// A unit by its key; a lease may name one that never was.
    pub(super) fn unit(&self, key: UnitKey) -> Answer<Option<HotUnit>> {
        self.one_unit(&format!("SELECT {HOT_COLUMNS} WHERE u.key = ?1"), [key.0])
    }

    /// A unit by its name.
    pub(super) fn unit_named(&self, job_id: JobId, id: &str) -> Answer<Option<HotUnit>> {
        self.one_unit(&format!("SELECT {HOT_COLUMNS} WHERE u.job_id = ?1 AND u.id = ?2"), params![job_id.0, id])
    }

    fn one_unit(&self, sql: &str, key: impl rusqlite::Params) -> Answer<Option<HotUnit>> {
        let mut select = self.connection.prepare_cached(sql)?;
        let mut rows = select.query(key)?;
        Ok(rows.next()?.map(hot_unit).transpose()?)
    }

    /// Several units, in the order of the query.
    pub(super) fn units(&self, conditions: &str, parameters: impl rusqlite::Params) -> Answer<Vec<HotUnit>> {
        let mut select = self.connection.prepare_cached(&format!("SELECT {HOT_COLUMNS} {conditions}"))?;
        let units = select.query_map(parameters, hot_unit)?;
        Ok(units.collect::<rusqlite::Result<_>>()?)
    }

    /// The unit of a lease, if the lease still holds.
    pub(super) fn held(&self, lease: &Lease) -> Answer<Option<HotUnit>> {
        let unit = match self.opened(lease.attempt()) {
            Some(open) => Some(open.unit.clone()),
            None => self.unit(lease.unit)?,
        };
        Ok(unit.filter(|unit| {
            unit.status.is_leased() && unit.fence == lease.fence && unit.attempt_count == lease.attempt_number
        }))
    }
}

/// The columns of an attempt.
const ATTEMPT_COLUMNS: &str = "unit_key, number, fence, owner_id, worker_id, assigned_at, started_at, ended_at, \
     outcome, is_counted, failure_kind, failure_message, session_id, process, provenance, message_count, head, \
     messages_lost, expected FROM attempts";

/// A query for attempts, as it is for files from before there were budgets if this is one.
fn of_its_version(connection: &Connection, sql: String) -> rusqlite::Result<String> {
    let has_expected = accounts::are_known(connection)?;
    Ok(if has_expected { sql } else { sql.replace(", expected FROM", ", NULL FROM") })
}

fn attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let is_open = matches!(row.get_ref(8)?, ValueRef::Null);
    Ok(Attempt {
        key: AttemptKey { unit: UnitKey(row.get(0)?), number: row.get(1)? },
        fence: row.get(2)?,
        owner: OwnerId(row.get(3)?),
        worker_id: worker_id(row, 4)?,
        assigned_at: time(row, 5)?,
        started_at: optional_time(row, 6)?,
        ended_at: optional_time(row, 7)?,
        outcome: if is_open { None } else { Some(named(row, 8, Outcome::from_name)?) },
        is_counted: truth(row, 9)?,
        failure: failure(row, 10, 11)?,
        session_id: row.get(12)?,
        process: exact_json(row, 13)?,
        provenance: exact_json(row, 14)?,
        message_count: row.get(15)?,
        head: optional_blob(row, 16)?,
        messages_lost: row.get(17)?,
        expected: row.get::<_, Option<i64>>(18)?.map(Money::from_nanos),
    })
}

/// One attempt, if there is such a one.
pub(super) fn read_attempt(connection: &Connection, key: AttemptKey) -> rusqlite::Result<Option<Attempt>> {
    let sql = format!("SELECT {ATTEMPT_COLUMNS} WHERE unit_key = ?1 AND number = ?2");
    let mut select = connection.prepare_cached(&of_its_version(connection, sql)?)?;
    select.query_row(params![key.unit.0, key.number], attempt).optional()
}

/// All attempts of a unit, in order.
pub(super) fn read_attempts(connection: &Connection, unit: UnitKey) -> rusqlite::Result<Vec<Attempt>> {
    let sql = format!("SELECT {ATTEMPT_COLUMNS} WHERE unit_key = ?1 ORDER BY number");
    let mut select = connection.prepare_cached(&of_its_version(connection, sql)?)?;
    let attempts = select.query_map([unit.0], attempt)?;
    attempts.collect()
}
