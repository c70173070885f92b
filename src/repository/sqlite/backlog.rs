//! What of a job is left to do, and what waits for an owner. Every look stops at the first row, or at the limit.

use rusqlite::{Connection, OptionalExtension, Params, params};

use super::read::{job, stored, understood};
use super::rows::time;
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::repository::rules::{self, PageItem};
use crate::repository::{Backlog, Page, Result};
use crate::unit::UnitKey;

pub(super) fn backlog(
    connection: &Connection,
    now: Moment,
    job_id: JobId,
    owner: OwnerId,
    limit: usize,
) -> Result<Backlog> {
    job(connection, job_id)?;
    let now_ms = now.wall.timestamp_millis();
    let ready = ready(connection, job_id, limit)?;
    Ok(Backlog {
        due: ready + due_meanwhile(connection, job_id, now_ms, limit - ready)?,
        is_with_others: is_with_others(connection, job_id, owner)?,
        next_due: next_due(connection, job_id, now_ms)?,
    })
}

fn ready(connection: &Connection, job_id: JobId, limit: usize) -> Result<usize> {
    let sql = "SELECT key
               FROM work_units
               WHERE status = 'PENDING' AND not_before IS NULL
                 AND job_id = ?1 AND accepted_by IS NULL AND has_prompt
               LIMIT ?2";
    count(connection, sql, params![job_id.0, sql_limit(limit)])
}

/// Units whose time has come wait for a claim to make them ready.
fn due_meanwhile(connection: &Connection, job_id: JobId, now_ms: i64, limit: usize) -> Result<usize> {
    let fallen_due = "SELECT key
                      FROM work_units
                      WHERE not_before IS NOT NULL AND job_id = ?1 AND not_before <= ?2
                        AND status = 'PENDING' AND accepted_by IS NULL AND has_prompt
                      LIMIT ?3";
    // None of those: its time has not come, and is further away than it ever was.
    let put_off = "SELECT key
                   FROM work_units
                   WHERE not_before IS NOT NULL AND not_before - delay_ms > ?2
                     AND +job_id = ?1 AND status = 'PENDING' AND accepted_by IS NULL AND has_prompt
                   LIMIT ?3";
    let due = count(connection, fallen_due, params![job_id.0, now_ms, sql_limit(limit)])?;
    Ok(due + count(connection, put_off, params![job_id.0, now_ms, sql_limit(limit - due)])?)
}

fn is_with_others(connection: &Connection, job_id: JobId, owner: OwnerId) -> Result<bool> {
    for sql in [
        "SELECT 1 FROM work_units WHERE lease_owner IS NOT NULL AND lease_owner <> ?2 AND +job_id = ?1 LIMIT 1",
        // In two steps: with an OR it would go through all that nobody accepted.
        "SELECT 1
         FROM work_units
         WHERE status = 'PENDING' AND not_before IS NULL AND job_id = ?1 AND accepted_by < ?2 LIMIT 1",
        "SELECT 1
         FROM work_units
         WHERE status = 'PENDING' AND not_before IS NULL AND job_id = ?1 AND accepted_by > ?2 LIMIT 1",
        // Not through all that is not due, of which there may be far more than anybody accepts.
        "SELECT 1
         FROM work_units
         WHERE status = 'PENDING' AND accepted_by IS NOT NULL AND accepted_by <> ?2
           AND not_before IS NOT NULL AND +job_id = ?1 LIMIT 1",
    ] {
        let look = connection.prepare_cached(sql).and_then(|mut select| select.exists([job_id.0, owner.0]));
        if stored(look)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn next_due(connection: &Connection, job_id: JobId, now_ms: i64) -> Result<Option<chrono::DateTime<chrono::Utc>>> {
    let sql = "SELECT not_before
               FROM work_units
               WHERE job_id = ?1 AND not_before > ?2 AND +(not_before - delay_ms) <= ?2
                 AND status = 'PENDING' AND accepted_by IS NULL AND has_prompt
               ORDER BY not_before
               LIMIT 1";
    let look = connection
        .prepare_cached(sql)
        .and_then(|mut select| select.query_row([job_id.0, now_ms], |row| time(row, 0)).optional());
    understood(look, || (format!("a time in {job_id}"), 0))
}

pub(super) fn accepted(connection: &Connection, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>> {
    let sql = "SELECT key
               FROM work_units
               WHERE status = 'PENDING' AND accepted_by = ?1 AND key > ?2
               ORDER BY key
               LIMIT ?3";
    let mut select = stored(connection.prepare_cached(sql))?;
    // One more than asked for tells whether there is a next page.
    let rows = select.query_map(params![owner.0, after, sql_limit(rules::page_limit(limit) + 1)], |row| row.get(0));
    let keys = stored(rows)?.map(|key| stored(key).map(|key| PageItem { key, len_bytes: 0, item: UnitKey(key) }));
    rules::page(limit, keys)
}

fn sql_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

fn count(connection: &Connection, sql: &str, parameters: impl Params) -> Result<usize> {
    let mut select = stored(connection.prepare_cached(sql))?;
    let mut rows = stored(select.query(parameters))?;
    let mut count = 0;
    while stored(rows.next())?.is_some() {
        count += 1;
    }
    Ok(count)
}
