//! What of a job is left to do, and what waits for an owner. Every look stops at the first row, or at the limit.

use super::columns::{Columns, sql_limit};
use super::connection::{Connection, Parameters, Read};
use super::jobs::job;
use super::read::{found, one_more_than, page_of, understood};
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::repository::{Backlog, Page};
use crate::unit::UnitKey;

pub(super) fn backlog(
    connection: &mut Connection,
    now: Moment,
    job_id: JobId,
    owner: OwnerId,
    limit: usize,
) -> Read<Backlog> {
    job(connection, job_id)?;
    let now_ms = now.wall.timestamp_millis();
    let ready = ready(connection, job_id, limit)?;
    Ok(Backlog {
        due: ready + due_meanwhile(connection, job_id, now_ms, limit - ready)?,
        is_with_others: is_with_others(connection, job_id, owner)?,
        next_due: next_due(connection, job_id, now_ms)?,
    })
}

fn ready(connection: &mut Connection, job_id: JobId, limit: usize) -> Read<usize> {
    count(
        connection,
        "SELECT count(*) FROM (
             SELECT 1
             FROM work_units
             WHERE status = 'PENDING' AND not_before IS NULL AND job_id = $1 AND accepted_by IS NULL AND has_prompt
             LIMIT $2) ready",
        &[&job_id.0, &sql_limit(limit)],
    )
}

/// Units whose time has come wait for a claim to make them ready.
fn due_meanwhile(connection: &mut Connection, job_id: JobId, now_ms: i64, limit: usize) -> Read<usize> {
    count(
        connection,
        "SELECT count(*) FROM (
             SELECT 1
             FROM work_units
             WHERE not_before IS NOT NULL AND job_id = $1 AND (not_before <= $2 OR not_before - delay_ms > $2)
               AND status = 'PENDING' AND accepted_by IS NULL AND has_prompt
             LIMIT $3) due",
        &[&job_id.0, &now_ms, &sql_limit(limit)],
    )
}

fn is_with_others(connection: &mut Connection, job_id: JobId, owner: OwnerId) -> Read<bool> {
    let row = connection.row(
        "SELECT EXISTS (SELECT 1 FROM work_units
                        WHERE lease_owner IS NOT NULL AND lease_owner <> $2 AND job_id = $1)
             OR EXISTS (SELECT 1 FROM work_units
                        WHERE status = 'PENDING' AND accepted_by IS NOT NULL AND accepted_by <> $2 AND job_id = $1)",
        &[&job_id.0, &owner.0],
    )?;
    row.map_or(Ok(false), |row| row.flag(0))
}

fn next_due(connection: &mut Connection, job_id: JobId, now_ms: i64) -> Read<Option<chrono::DateTime<chrono::Utc>>> {
    let row = connection.row(
        "SELECT not_before
         FROM work_units
         WHERE job_id = $1 AND not_before > $2 AND not_before - delay_ms <= $2
           AND status = 'PENDING' AND accepted_by IS NULL AND has_prompt
         ORDER BY not_before
         LIMIT 1",
        &[&job_id.0, &now_ms],
    )?;
    understood(found(row, |row| row.time(0)), || (format!("a time in {job_id}"), 0))
}

pub(super) fn accepted(connection: &mut Connection, owner: OwnerId, after: i64, limit: usize) -> Read<Page<UnitKey>> {
    let rows = connection.rows(
        "SELECT key
         FROM work_units
         WHERE status = 'PENDING' AND accepted_by = $1 AND key > $2
         ORDER BY key
         LIMIT $3",
        &[&owner.0, &after, &one_more_than(limit)],
    )?;
    page_of(&rows, limit, |key| format!("unit key {key}"), |row| Ok((0, UnitKey(row.number(0)?))))
}

fn count(connection: &mut Connection, sql: &str, parameters: Parameters<'_>) -> Read<usize> {
    connection.row(sql, parameters)?.map_or(Ok(0), |row| row.count(0))
}
