//! The rows of units and attempts, and the records they are.

use std::collections::HashMap;

use postgres::Row;

use super::book::{Answer, Book};
use super::columns::{Columns, findable, unreadable};
use super::connection::{Connection, Parameters, Read};
use super::read::found;
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Outcome, OutputFile};
use crate::conversation::Raw;
use crate::job::JobId;
use crate::lease::{Lease, OwnerId};
use crate::money::Charge;
use crate::repository::prepared::HotUnit;
use crate::unit::{UnitKey, UnitStatus};

/// The columns of [`HotUnit`].
pub(super) const HOT_COLUMNS: &str = "u.key, u.job_id, u.id, u.status, u.fence, u.attempt_count, u.attempts_used, \
     u.releases, u.max_retries, u.priority, u.not_before, u.delay_ms, u.purged_at IS NOT NULL, u.lease_owner, \
     u.lease_worker FROM work_units u";

pub(super) fn hot_unit(row: &Row) -> Read<HotUnit> {
    Ok(HotUnit {
        key: UnitKey(row.number(0)?),
        job_id: JobId(row.number(1)?),
        id: row.unit_id(2)?,
        status: row.named(3, UnitStatus::from_name)?,
        fence: row.number(4)?,
        attempt_count: row.count(5)?,
        attempts_used: row.count(6)?,
        releases: row.count(7)?,
        max_retries: row.count(8)?,
        priority: row.count(9)?,
        pause: row.pause(10, 11)?,
        is_purged: row.flag(12)?,
        lease: match row.optional_number(13)? {
            Some(owner) => Some((OwnerId(owner), row.worker_id(14)?)),
            None => None,
        },
    })
}

impl Book<'_> {
    /// A unit by its key; a lease may name one that never was.
    pub(super) fn unit(&mut self, key: UnitKey) -> Answer<Option<HotUnit>> {
        let row = self.row(&format!("SELECT {HOT_COLUMNS} WHERE u.key = $1"), &[&key.0])?;
        Ok(found(row, hot_unit)?)
    }

    /// A unit by its name.
    pub(super) fn unit_named(&mut self, job_id: JobId, id: &str) -> Answer<Option<HotUnit>> {
        let Some(id) = findable(id) else { return Ok(None) };
        let row = self.row(&format!("SELECT {HOT_COLUMNS} WHERE u.job_id = $1 AND u.id = $2"), &[&job_id.0, &id])?;
        Ok(found(row, hot_unit)?)
    }

    /// Several units, in the order of the query.
    pub(super) fn units(&mut self, conditions: &str, parameters: Parameters<'_>) -> Answer<Vec<HotUnit>> {
        let rows = self.rows(&format!("SELECT {HOT_COLUMNS} {conditions}"), parameters)?;
        Ok(rows.iter().map(hot_unit).collect::<Read<_>>()?)
    }

    /// The unit of a lease, if the lease still holds.
    pub(super) fn held(&mut self, lease: &Lease) -> Answer<Option<HotUnit>> {
        let unit = match self.memory.opened(lease.attempt()) {
            Some(open) => Some(open.unit.clone()),
            None => self.unit(lease.unit)?,
        };
        Ok(unit.filter(|unit| {
            unit.status.is_leased() && unit.fence == lease.fence && unit.attempt_count == lease.attempt_number
        }))
    }
}

const ATTEMPT_COLUMNS: &str = "unit_key, number, fence, owner_id, worker_id, assigned_at, started_at, ended_at, \
     outcome, is_counted, failure_kind, failure_message, session_id, process, provenance, message_count, head, \
     messages_lost, expected FROM attempts";

fn attempt(row: &Row) -> Read<Attempt> {
    Ok(Attempt {
        key: AttemptKey { unit: UnitKey(row.number(0)?), number: row.count(1)? },
        fence: row.number(2)?,
        owner: OwnerId(row.number(3)?),
        worker_id: row.worker_id(4)?,
        assigned_at: row.time(5)?,
        started_at: row.optional_time(6)?,
        ended_at: row.optional_time(7)?,
        outcome: row.optional_named(8, Outcome::from_name)?,
        is_counted: row.flag(9)?,
        failure: row.failure(10, 11)?,
        session_id: row.optional_text(12)?,
        process: row.exact_json(13)?,
        provenance: row.exact_json(14)?,
        message_count: row.optional_number(15)?.map(u32::try_from).transpose().map_err(unreadable)?,
        head: row.optional_hash(16)?,
        messages_lost: row.count(17)?,
        expected: row.optional_money(18)?,
    })
}

/// One attempt, if there is such a one.
pub(super) fn read_attempt(connection: &mut Connection, key: AttemptKey) -> Read<Option<Attempt>> {
    let sql = format!("SELECT {ATTEMPT_COLUMNS} WHERE unit_key = $1 AND number = $2");
    found(connection.row(&sql, &[&key.unit.0, &i64::from(key.number)])?, attempt)
}

/// All attempts of some units, in order.
pub(super) fn read_attempts(connection: &mut Connection, units: &[i64]) -> Read<Vec<Attempt>> {
    let sql = format!("SELECT {ATTEMPT_COLUMNS} WHERE unit_key = ANY($1) ORDER BY unit_key, number");
    connection.rows(&sql, &[&units])?.iter().map(attempt).collect()
}

/// What an attempt left behind.
pub(super) fn read_attempt_result(connection: &mut Connection, attempt: AttemptKey) -> Read<AttemptResult> {
    let key: Parameters<'_> = &[&attempt.unit.0, &i64::from(attempt.number)];
    let row = connection.row(
        "SELECT rendered_prompt, result, output, late_result, purged
         FROM attempt_results
         WHERE unit_key = $1 AND attempt_number = $2",
        key,
    )?;
    let mut result = AttemptResult::default();
    if let Some(row) = row {
        result.rendered_prompt = row.optional_text(0)?;
        result.result = row.optional_bytes(1)?.map(Raw::from);
        result.output = row.optional_text(2)?;
        result.late_result = row.optional_bytes(3)?.map(Raw::from);
        result.purged = row.exact_json(4)?;
    }
    let mut files =
        read_files(connection, "unit_key = ANY($1) AND attempt_number = $2", &[&vec![attempt.unit.0], key[1]])?;
    result.output_files = files.remove(&attempt).unwrap_or_default();
    Ok(result)
}

/// The files that attempts made, of which none may be missing in between.
pub(super) fn read_files(
    connection: &mut Connection,
    conditions: &str,
    parameters: Parameters<'_>,
) -> Read<HashMap<AttemptKey, Vec<OutputFile>>> {
    let rows = connection.rows(
        &format!(
            "SELECT path, size_bytes, hash, position, unit_key, attempt_number
             FROM output_files
             WHERE {conditions}
             ORDER BY unit_key, attempt_number, position"
        ),
        parameters,
    )?;
    let mut files: HashMap<AttemptKey, Vec<OutputFile>> = HashMap::new();
    for row in &rows {
        let of = AttemptKey { unit: UnitKey(row.number(4)?), number: row.count(5)? };
        let files = files.entry(of).or_default();
        if row.count::<usize>(3)? != files.len() {
            return Err(unreadable("a file is missing before this one"));
        }
        files.push(OutputFile { path: row.text(0)?, size_bytes: row.count(1)?, hash: row.hash(2)? });
    }
    Ok(files)
}

const CHARGE_COLUMNS: &str = "model, input, output, cache_read, cache_write, reasoning, amount, price, is_estimated, \
     unit_key, attempt_number FROM charges";

fn charge(row: &Row) -> Read<Charge> {
    Ok(Charge {
        model: row.text(0)?,
        tokens: row.tokens(1)?,
        amount: row.optional_money(6)?,
        price: row.exact_json(7)?,
        is_estimated: row.flag(8)?,
    })
}

/// What an attempt used.
pub(super) fn read_charges(connection: &mut Connection, attempt: AttemptKey) -> Read<Vec<Charge>> {
    let sql = format!("SELECT {CHARGE_COLUMNS} WHERE unit_key = $1 AND attempt_number = $2 ORDER BY model");
    connection.rows(&sql, &[&attempt.unit.0, &i64::from(attempt.number)])?.iter().map(charge).collect()
}

/// What each attempt of some units used.
pub(super) fn read_charges_of(connection: &mut Connection, units: &[i64]) -> Read<HashMap<AttemptKey, Vec<Charge>>> {
    let sql = format!("SELECT {CHARGE_COLUMNS} WHERE unit_key = ANY($1) ORDER BY unit_key, attempt_number, model");
    let mut charges: HashMap<AttemptKey, Vec<Charge>> = HashMap::new();
    for row in &connection.rows(&sql, &[&units])? {
        let of = AttemptKey { unit: UnitKey(row.number(9)?), number: row.count(10)? };
        charges.entry(of).or_default().push(charge(row)?);
    }
    Ok(charges)
}
