//! Reading: each call is one consistent look at the database, and no look outlasts its call.

use std::collections::BTreeMap;

use rusqlite::types::Value as Sql;
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params, params_from_iter};
use serde_json::Value;

use super::jobs::{JOB_COLUMNS, read_job};
use super::messages::read_content;
use super::owners::read_owner;
use super::rows::{
    blob, failure, json, named, optional_blob, optional_json, optional_time, pause, read_attempt, read_attempt_result,
    read_attempts, read_unit_charges, time, tokens, unit_id, unsigned, worker_id,
};
use crate::attempt::{Attempt, AttemptKey, Failure};
use crate::clock::Moment;
use crate::conversation::{Role, StoredMessage, from_json};
use crate::job::{Job, JobId};
use crate::lease::{Claim, Lease, OwnerId};
use crate::money::{Cost, Money, Tokens};
use crate::process::Process;
use crate::repository::rules::{self, PageItem, page_limit};
use crate::repository::{
    AttemptSummary, Costs, Counts, JournalEntry, LeaseView, ModelCost, Page, RepositoryError, Result, Staleness,
    StoredInputs, UnitFilter, UnitSummary,
};
use crate::unit::{Change, UnitKey, UnitStatus, WorkUnit};

/// A row that was found but cannot be understood is damage; anything else is the storage's own trouble.
pub(super) fn understood<T>(read: rusqlite::Result<T>, what: impl FnOnce() -> (String, i64)) -> Result<T> {
    read.map_err(|error| match error {
        rusqlite::Error::SqliteFailure(failure, _) if !is_damage(failure.code) => super::writer::failure_of(&error),
        rusqlite::Error::QueryReturnedNoRows => RepositoryError::storage(error.to_string()),
        damage => {
            let (what, position) = what();
            RepositoryError::corrupt(what, position, damage)
        }
    })
}

/// Whether SQLite stumbled over the file itself. Only a damaged row is larger than SQLite would ever store.
fn is_damage(code: ErrorCode) -> bool {
    matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TooBig)
}

pub(super) fn stored<T>(read: rusqlite::Result<T>) -> Result<T> {
    read.map_err(|error| super::writer::failure_of(&error))
}

/// Reads the rows of a query into a page; `what` names a row by its key, which is the first column.
pub(super) fn read_page<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
    limit: usize,
    what: impl Fn(i64) -> String,
    mut read: impl FnMut(&Row<'_>) -> rusqlite::Result<(usize, T)>,
) -> Result<Page<T>> {
    let mut select = stored(connection.prepare_cached(sql))?;
    let mut rows = stored(select.query(parameters))?;
    let mut last = 0;
    let mut next = || {
        // What has no key is named by the row before it.
        let behind_last = || (format!("what follows {}", what(last)), last);
        let Some(row) = understood(rows.next(), behind_last)? else { return Ok(None) };
        let key = understood(row.get(0), behind_last)?;
        last = key;
        let (len_bytes, item) = understood(read(row), || (what(key), key))?;
        Ok(Some(PageItem { key, len_bytes, item }))
    };
    rules::page(limit, std::iter::from_fn(|| next().transpose()))
}

/// One more than the page holds, so that the last page is known as such.
pub(super) fn sql_limit(limit: usize) -> i64 {
    i64::try_from(page_limit(limit) + 1).unwrap_or(i64::MAX)
}

pub(super) fn job(connection: &Connection, id: JobId) -> Result<Job> {
    let mut select = stored(connection.prepare_cached(&format!("SELECT {JOB_COLUMNS} WHERE id = ?1")))?;
    let found = understood(select.query_row([id.0], read_job).optional(), || (id.to_string(), id.0))?;
    found.ok_or(RepositoryError::UnknownJob(id))
}

pub(super) fn job_named(connection: &Connection, name: &str) -> Result<Option<Job>> {
    let mut select = stored(connection.prepare_cached(&format!("SELECT {JOB_COLUMNS} WHERE name = ?1")))?;
    understood(select.query_row([name], read_job).optional(), || (format!("job `{name}`"), 0))
}

pub(super) fn jobs(connection: &Connection, after: i64, limit: usize) -> Result<Page<Job>> {
    let sql = format!("SELECT {JOB_COLUMNS} WHERE id > ?1 ORDER BY id LIMIT ?2");
    let what = |id| JobId(id).to_string();
    read_page(connection, &sql, [after, sql_limit(limit)], limit, what, |row| Ok((0, read_job(row)?)))
}

pub(super) const UNIT_COLUMNS: &str = "u.key, u.job_id, u.id, i.unit_type, u.status, u.priority, i.payload, i.prompt, i.template, \
     i.options, u.max_retries, u.attempt_count, u.attempts_used, u.fence, u.accepted_by, u.not_before, u.delay_ms, \
     u.created_at, u.completed_at, u.purged_at, u.failure_kind, u.failure_message \
     FROM work_units u \
     JOIN unit_inputs i ON i.unit_key = u.key";

/// A unit with what its last attempt left.
fn unit_of(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<WorkUnit> {
    measured_unit_of(connection, row).map(|(_, unit)| unit)
}

/// The same, behind how many bytes of content it brings onto a page.
fn measured_unit_of(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<(usize, WorkUnit)> {
    let key = UnitKey(row.get(0)?);
    let attempt_count: u32 = row.get(11)?;
    let last = AttemptKey { unit: key, number: attempt_count };
    let attempt = if attempt_count > 0 { read_attempt(connection, last)? } else { None };
    let left = if attempt_count > 0 { read_attempt_result(connection, last)? } else { Default::default() };
    let prompt: Option<String> = row.get(7)?;
    let was_started = attempt.as_ref().is_some_and(|attempt| attempt.started_at.is_some());
    let sent_as_it_is = if was_started { prompt.clone() } else { None };
    let (tokens, cost) = if attempt_count > 0 { unit_cost(connection, key)? } else { Default::default() };
    let text_bytes = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    let payload_bytes = row.get_ref(6)?.as_blob_or_null()?.map_or(0, <[u8]>::len);
    let result_bytes = left.result.as_ref().map_or(0, |json| json.as_bytes().len());
    let template_bytes = row.get_ref(8)?.as_bytes_or_null()?.map_or(0, <[u8]>::len);
    let texts = [&prompt, &left.rendered_prompt, &left.output];
    let len_bytes = payload_bytes + template_bytes + result_bytes + texts.into_iter().map(text_bytes).sum::<usize>();
    let result = left.result.as_ref().map(|json| from_json(json.as_bytes())).transpose();
    let unit = WorkUnit {
        key,
        job_id: JobId(row.get(1)?),
        id: unit_id(row, 2)?,
        unit_type: row.get(3)?,
        status: named(row, 4, UnitStatus::from_name)?,
        priority: row.get(5)?,
        payload: optional_json(row, 6)?.unwrap_or(Value::Null),
        prompt,
        template: row.get(8)?,
        options: json(row, 9)?,
        max_retries: row.get(10)?,
        attempt_count,
        attempts_used: row.get(12)?,
        fence: row.get(13)?,
        accepted_by: row.get::<_, Option<i64>>(14)?.map(OwnerId),
        not_before: pause(row, 15, 16)?.map(|pause| pause.not_before),
        created_at: time(row, 17)?,
        assigned_at: attempt.as_ref().map(|attempt| attempt.assigned_at),
        started_at: attempt.as_ref().and_then(|attempt| attempt.started_at),
        first_message_at: first_message_at(connection, last)?,
        completed_at: optional_time(row, 18)?,
        purged_at: optional_time(row, 19)?,
        worker_id: attempt.as_ref().map(|attempt| attempt.worker_id.clone()),
        execution_time: attempt.as_ref().and_then(|attempt| attempt.execution_time()),
        rendered_prompt: left.rendered_prompt.or(sent_as_it_is),
        result: result
            .map_err(|error| rusqlite::Error::FromSqlConversionFailure(0, rusqlite::types::Type::Blob, error.into()))?,
        output: left.output,
        output_files: left.output_files,
        failure: failure(row, 20, 21)?,
        session_id: attempt.as_ref().and_then(|attempt| attempt.session_id.clone()),
        process: attempt.and_then(|attempt| attempt.process),
        tokens,
        cost,
    };
    Ok((len_bytes, unit))
}

fn first_message_at(
    connection: &Connection,
    attempt: AttemptKey,
) -> rusqlite::Result<Option<chrono::DateTime<chrono::Utc>>> {
    let mut select = connection
        .prepare_cached("SELECT at FROM messages WHERE unit_key = ?1 AND attempt_number = ?2 AND number = 1")?;
    select.query_row(params![attempt.unit.0, attempt.number], |row| time(row, 0)).optional()
}

fn unit_cost(connection: &Connection, unit: UnitKey) -> rusqlite::Result<(Tokens, Cost)> {
    let mut select = connection.prepare_cached(
        "SELECT input, output, cache_read, cache_write, reasoning, amount FROM charges WHERE unit_key = ?1",
    )?;
    let mut rows = select.query([unit.0])?;
    let (mut used, mut cost) = (Tokens::default(), Cost::default());
    while let Some(row) = rows.next()? {
        used += tokens(row, 0)?;
        cost = cost + line_cost(row.get(5)?);
    }
    Ok((used, cost))
}

fn line_cost(amount: Option<i64>) -> Cost {
    match amount {
        Some(nanos) => Cost { amount: Money::from_nanos(nanos), unpriced: 0 },
        None => Cost { amount: Money::ZERO, unpriced: 1 },
    }
}

pub(super) fn unit(connection: &Connection, job_id: JobId, id: &str) -> Result<WorkUnit> {
    let sql = format!("SELECT {UNIT_COLUMNS} WHERE u.job_id = ?1 AND u.id = ?2");
    let mut select = stored(connection.prepare_cached(&sql))?;
    let found = select.query_row(params![job_id.0, id], |row| unit_of(connection, row)).optional();
    match understood(found, || (format!("unit `{id}`"), 0))? {
        Some(unit) => Ok(unit),
        None => Err(match job(connection, job_id) {
            Ok(_) => RepositoryError::unknown_unit(job_id, id),
            Err(unknown_job) => unknown_job,
        }),
    }
}

/// The statement for a list of units with these columns, but for its limit, and what to bind to it.
pub(super) fn units_query(columns: &str, filter: &UnitFilter, after: i64) -> (String, Vec<Sql>) {
    let mut conditions = vec!["u.key > ?".to_owned()];
    let mut parameters: Vec<Sql> = vec![after.into()];
    let mut require = |condition: &str, parameter: Sql| {
        conditions.push(condition.to_owned());
        parameters.push(parameter);
    };
    // Units that ended badly have an index in the order of their keys; others are found by walking along the keys. The
    // plus keeps SQLite from another index, by which it would sort the whole job for every page.
    let bad_end = match (filter.job_id, &*filter.statuses) {
        (Some(_), [status @ (UnitStatus::Failed | UnitStatus::Cancelled)]) => Some(status),
        _ => None,
    };
    if let Some(job_id) = filter.job_id {
        require(if bad_end.is_some() { "u.job_id = ?" } else { "+u.job_id = ?" }, job_id.0.into());
    }
    if let Some(unit_type) = &filter.unit_type {
        require("i.unit_type = ?", unit_type.clone().into());
    }
    if let Some(kind) = &filter.failure_kind {
        require("u.failure_kind = ?", kind.clone().into());
    }
    if let Some(status) = bad_end {
        conditions.push(format!("u.status = '{status}'"));
    } else if !filter.statuses.is_empty() {
        let names: Vec<String> = filter.statuses.iter().map(|status| format!("'{status}'")).collect();
        conditions.push(format!("u.status IN ({})", names.join(", ")));
    }
    let conditions = conditions.join(" AND ");
    (format!("SELECT {columns} WHERE {conditions} ORDER BY u.key LIMIT ?"), parameters)
}

pub(super) fn units(connection: &Connection, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
    let (sql, mut parameters) = units_query(UNIT_COLUMNS, filter, after);
    parameters.push(sql_limit(limit).into());
    let what = |key| format!("unit key {key}");
    let parameters = params_from_iter(parameters);
    read_page(connection, &sql, parameters, limit, what, |row| measured_unit_of(connection, row))
}

/// The columns of a unit that are short.
pub(super) const SUMMARY_COLUMNS: &str = "u.key, u.job_id, u.id, i.unit_type, u.status, u.priority, u.attempts_used, \
     u.not_before, u.delay_ms, u.created_at, u.completed_at, u.purged_at, u.failure_kind, u.failure_message \
     FROM work_units u \
     JOIN unit_inputs i ON i.unit_key = u.key";

pub(super) fn summaries(
    connection: &Connection,
    filter: &UnitFilter,
    after: i64,
    limit: usize,
) -> Result<Page<UnitSummary>> {
    let (sql, mut parameters) = units_query(SUMMARY_COLUMNS, filter, after);
    parameters.push(sql_limit(limit).into());
    let what = |key| format!("unit key {key}");
    read_page(connection, &sql, params_from_iter(parameters), limit, what, |row| summary_of(connection, row))
}

/// A unit with its attempts and their bills, behind how many bytes it brings onto a page.
fn summary_of(connection: &Connection, row: &Row<'_>) -> rusqlite::Result<(usize, UnitSummary)> {
    let key = UnitKey(row.get(0)?);
    let mut charges = read_unit_charges(connection, key)?.into_iter().peekable();
    let bill = |attempt: Attempt| {
        let number = attempt.key.number;
        let lines = std::iter::from_fn(|| charges.next_if(|(of, _)| *of == number));
        AttemptSummary { charges: lines.map(|(_, charge)| charge).collect(), attempt }
    };
    let summary = UnitSummary {
        key,
        job_id: JobId(row.get(1)?),
        id: unit_id(row, 2)?,
        unit_type: row.get(3)?,
        status: named(row, 4, UnitStatus::from_name)?,
        priority: row.get(5)?,
        attempts_used: row.get(6)?,
        not_before: pause(row, 7, 8)?.map(|pause| pause.not_before),
        created_at: time(row, 9)?,
        completed_at: optional_time(row, 10)?,
        purged_at: optional_time(row, 11)?,
        failure: failure(row, 12, 13)?,
        attempts: read_attempts(connection, key)?.into_iter().map(bill).collect(),
    };
    let failure_bytes = |failure: &Option<Failure>| failure.as_ref().map_or(0, |failure| failure.message.len());
    let attempts = summary.attempts.iter().map(|summary| failure_bytes(&summary.attempt.failure)).sum::<usize>();
    Ok((failure_bytes(&summary.failure) + attempts, summary))
}

/// What is leased, in the order of keys, as it is at a moment of a boot.
pub(super) fn leases(
    connection: &Connection,
    job_id: Option<JobId>,
    after: i64,
    limit: usize,
    (now, boot_id): (Moment, &str),
) -> Result<Page<LeaseView>> {
    if let Some(job_id) = job_id {
        job(connection, job_id)?;
    }
    // The plus keeps SQLite on the index of the leases, which are few, and off the keys of all units that ever were.
    let sql = "SELECT u.key, u.job_id, u.id, u.status, u.attempt_count, u.fence, u.lease_owner, u.lease_worker,
                      u.lease_until_boot_ms, a.assigned_at
               FROM work_units u
               LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
               WHERE u.lease_owner IS NOT NULL AND +u.key > ?1 AND (?2 IS NULL OR u.job_id = ?2)
               ORDER BY +u.key
               LIMIT ?3";
    let parameters = params![after, job_id.map(|job_id| job_id.0), sql_limit(limit)];
    let what = |key| format!("the lease of unit key {key}");
    let mut losses: BTreeMap<OwnerId, Option<Staleness>> = BTreeMap::new();
    read_page(connection, sql, parameters, limit, what, |row| {
        let lease = Lease {
            job_id: JobId(row.get(1)?),
            unit_id: unit_id(row, 2)?,
            unit: UnitKey(row.get(0)?),
            attempt_number: row.get(4)?,
            fence: row.get(5)?,
            owner: OwnerId(row.get(6)?),
            worker_id: worker_id(row, 7)?,
            until_ms: row.get(8)?,
        };
        let owner_loss = match losses.get(&lease.owner) {
            Some(&known) => known,
            None => {
                let owner = read_owner(connection, lease.owner)?;
                let loss = owner.and_then(|owner| rules::owner_loss(&owner, boot_id));
                losses.insert(lease.owner, loss);
                loss
            }
        };
        let status = named(row, 3, UnitStatus::from_name)?;
        Ok((0, rules::lease_view(lease, status, time(row, 9)?, owner_loss, now)))
    })
}

pub(super) fn counts(connection: &Connection, job_id: JobId) -> Result<Counts> {
    job(connection, job_id)?;
    let sql = "SELECT status, count(*) FROM work_units WHERE job_id = ?1 GROUP BY status";
    let mut select = stored(connection.prepare_cached(sql))?;
    let mut rows = stored(select.query([job_id.0]))?;
    let mut counts = Counts::default();
    while let Some(row) = stored(rows.next())? {
        let damaged = || (format!("a status in {job_id}"), 0);
        let status = understood(named(row, 0, UnitStatus::from_name), damaged)?;
        counts.add(status, understood(unsigned(row, 1), damaged)?);
    }
    Ok(counts)
}

pub(super) fn costs(connection: &Connection, job_id: Option<JobId>) -> Result<Costs> {
    if let Some(job_id) = job_id {
        job(connection, job_id)?;
    }
    // Summed here and not by SQLite, whose sums fail where they overflow. Both tables are in the order of units, so that neither is looked up.
    let sql = "SELECT c.input, c.output, c.cache_read, c.cache_write, c.reasoning, c.amount, c.model,
                      a.outcome IS NOT NULL AND a.outcome <> 'COMPLETED', c.model IS NULL,
                      a.started_at IS NOT NULL AND a.outcome IS NOT NULL
               FROM attempts a
               JOIN work_units u ON u.key = a.unit_key
               LEFT JOIN charges c ON c.unit_key = a.unit_key AND c.attempt_number = a.number
               WHERE ?1 IS NULL OR u.job_id = ?1";
    let mut select = stored(connection.prepare_cached(sql))?;
    let mut rows = stored(select.query([job_id.map(|job_id| job_id.0)]))?;
    let mut by_model: BTreeMap<String, (Tokens, Cost)> = BTreeMap::new();
    let (mut in_vain, mut unbilled) = (Cost::default(), 0);
    while let Some(row) = stored(rows.next())? {
        let damaged = || ("a charge".to_owned(), 0);
        if understood(row.get(8), damaged)? {
            unbilled += u64::from(understood(row.get::<_, bool>(9), damaged)?);
            continue;
        }
        let line = || Ok((tokens(row, 0)?, line_cost(row.get(5)?), row.get_ref(6)?.as_str()?, row.get(7)?));
        let (used, line_cost, model, is_in_vain) = understood(line(), damaged)?;
        if !by_model.contains_key(model) {
            by_model.insert(model.to_owned(), Default::default());
        }
        let (tokens, cost) = by_model.get_mut(model).expect("it was just inserted");
        *tokens += used;
        *cost = *cost + line_cost;
        if is_in_vain {
            in_vain = in_vain + line_cost;
        }
    }
    let model_cost = |(model, (tokens, cost))| ModelCost { model, tokens, cost };
    Ok(Costs { by_model: by_model.into_iter().map(model_cost).collect(), in_vain, unbilled })
}

pub(super) fn messages(
    connection: &Connection,
    attempt: AttemptKey,
    after: u32,
    limit: usize,
) -> Result<Page<StoredMessage>> {
    let sql = "SELECT number, at, role, encoding, body, raw, content_hash, link
               FROM messages
               WHERE unit_key = ?1 AND attempt_number = ?2 AND number >= ?3
               ORDER BY number
               LIMIT ?4";
    // The first page begins with whatever is first, though no number should be below 1.
    let first = if after == 0 { i64::MIN } else { i64::from(after) + 1 };
    let parameters = params![attempt.unit.0, attempt.number, first, sql_limit(limit)];
    let what = |number| format!("message {number} of attempt {} of unit key {}", attempt.number, attempt.unit.0);
    read_page(connection, sql, parameters, limit, what, |row| {
        let content = read_content(row, 3, 4, 5)?;
        let len_bytes = content.as_ref().map_or(0, |content| content.len_bytes());
        let role = named(row, 2, Role::from_name)?;
        let message = StoredMessage::new(row.get(0)?, time(row, 1)?, role, content, blob(row, 6)?, blob(row, 7)?);
        Ok((len_bytes, message))
    })
}

pub(super) fn partial_text(connection: &Connection, attempt: AttemptKey) -> Result<Option<String>> {
    let sql = "SELECT text FROM partials WHERE unit_key = ?1 AND attempt_number = ?2";
    let mut select = stored(connection.prepare_cached(sql))?;
    let text = select.query_row(params![attempt.unit.0, attempt.number], |row| row.get(0)).optional();
    understood(text, || ("a partial message".to_owned(), attempt.unit.0))
}

pub(super) fn checkpoint(connection: &Connection, unit: UnitKey) -> Result<Option<Value>> {
    let sql = "SELECT value FROM checkpoints WHERE unit_key = ?1 ORDER BY attempt_number DESC LIMIT 1";
    let mut select = stored(connection.prepare_cached(sql))?;
    let value = select.query_row([unit.0], |row| json(row, 0)).optional();
    understood(value, || (format!("the checkpoint of unit key {}", unit.0), unit.0))
}

/// What somebody who was granted a lease needs to know.
pub(super) fn claim_of(connection: &Connection, lease: Lease) -> Result<Claim> {
    let unit = unit(connection, lease.job_id, lease.unit_id.as_str())?;
    let checkpoint = checkpoint(connection, lease.unit)?;
    let is_first = lease.attempt_number == 1;
    let earlier = if is_first { None } else { earlier_session(connection, lease.attempt())? };
    let resume_session = earlier.or_else(|| unit.options.resume_session.clone());
    let earlier_processes = if is_first { Vec::new() } else { earlier_processes(connection, lease.attempt())? };
    Ok(Claim { lease, unit, checkpoint, resume_session, earlier_processes })
}

/// The child processes of the attempts before this one.
fn earlier_processes(connection: &Connection, attempt: AttemptKey) -> Result<Vec<Process>> {
    let sql = "SELECT process, outcome = 'LOST'
               FROM attempts
               WHERE unit_key = ?1 AND number < ?2 AND process IS NOT NULL
               ORDER BY number";
    let mut select = stored(connection.prepare_cached(sql))?;
    let row = |row: &Row<'_>| Ok((json(row, 0)?, row.get(1)?));
    let processes: rusqlite::Result<Vec<(Process, bool)>> =
        stored(select.query_map(params![attempt.unit.0, attempt.number], row))?.collect();
    let processes = understood(processes, || ("the process of an earlier attempt".to_owned(), attempt.unit.0))?;
    let may_still_work =
        |(process, was_lost): (Process, bool)| rules::may_still_work(&process, was_lost).then_some(process);
    Ok(processes.into_iter().filter_map(may_still_work).collect())
}

/// The session of the latest attempt before this one that had any.
fn earlier_session(connection: &Connection, attempt: AttemptKey) -> Result<Option<String>> {
    let sql = "SELECT session_id
               FROM attempts
               WHERE unit_key = ?1 AND number < ?2 AND session_id IS NOT NULL
               ORDER BY number DESC
               LIMIT 1";
    let mut select = stored(connection.prepare_cached(sql))?;
    let session = select.query_row(params![attempt.unit.0, attempt.number], |row| row.get(0)).optional();
    understood_attempt(attempt, session)
}

pub(super) fn inputs(connection: &Connection, unit: UnitKey) -> Result<StoredInputs> {
    let sql = "SELECT unit_type, payload, prompt, template, options, content_hash, prompt_hash
               FROM unit_inputs
               WHERE unit_key = ?1";
    let mut select = stored(connection.prepare_cached(sql))?;
    let found = select.query_row([unit.0], |row| {
        Ok(StoredInputs {
            unit_type: row.get(0)?,
            payload: row.get(1)?,
            prompt: row.get(2)?,
            template: row.get(3)?,
            options: row.get(4)?,
            content_hash: blob(row, 5)?,
            prompt_hash: optional_blob(row, 6)?,
        })
    });
    let found = understood(found.optional(), || (format!("the inputs of unit key {}", unit.0), unit.0))?;
    found.ok_or_else(|| rules::no_such_key(unit))
}

const JOURNAL_COLUMNS: &str = "seq, at, unit_key, attempt_number, fence, change, from_status, to_status, actor, \
     reason, message_count, head, digest, link FROM journal";

fn journal_row(row: &Row<'_>) -> rusqlite::Result<(usize, JournalEntry)> {
    let is_insert = matches!(row.get_ref(6)?, rusqlite::types::ValueRef::Null);
    let entry = JournalEntry {
        seq: row.get(0)?,
        at: time(row, 1)?,
        unit: UnitKey(row.get(2)?),
        attempt_number: row.get(3)?,
        fence: row.get(4)?,
        change: named(row, 5, Change::from_name)?,
        from: if is_insert { None } else { Some(named(row, 6, UnitStatus::from_name)?) },
        to: named(row, 7, UnitStatus::from_name)?,
        actor: row.get(8)?,
        reason: row.get(9)?,
        message_count: row.get(10)?,
        head: optional_blob(row, 11)?,
        digest: optional_blob(row, 12)?,
        link: blob(row, 13)?,
    };
    Ok((entry.len_bytes(), entry))
}

/// Which rows of the journal.
pub(super) enum Rows {
    All,
    OfUnit(UnitKey),
    Outcomes,
}

pub(super) fn journal(connection: &Connection, rows: &Rows, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
    let what = |seq| format!("journal row {seq}");
    let limit_parameter = sql_limit(limit);
    match rows {
        Rows::All => {
            let sql = format!("SELECT {JOURNAL_COLUMNS} WHERE seq > ?1 ORDER BY seq LIMIT ?2");
            read_page(connection, &sql, [after, limit_parameter], limit, what, journal_row)
        }
        Rows::OfUnit(unit) => {
            let sql = format!("SELECT {JOURNAL_COLUMNS} WHERE unit_key = ?3 AND seq > ?1 ORDER BY seq LIMIT ?2");
            read_page(connection, &sql, [after, limit_parameter, unit.0], limit, what, journal_row)
        }
        Rows::Outcomes => {
            let sql = format!(
                "SELECT {JOURNAL_COLUMNS}
                 WHERE seq > ?1 AND to_status IN ('COMPLETED', 'FAILED', 'CANCELLED') AND from_status <> to_status
                 ORDER BY seq
                 LIMIT ?2"
            );
            read_page(connection, &sql, [after, limit_parameter], limit, what, journal_row)
        }
    }
}

/// What SQLite finds wrong: its own structure, and rows that refer to nothing.
///
/// A connection that only reads does not even parse CHECK constraints: what they forbid is not found here.
pub(super) fn integrity(connection: &Connection) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut check = stored(connection.prepare("PRAGMA integrity_check"))?;
    let lines = stored(check.query_map([], |row| row.get::<_, String>(0)))?;
    for line in lines {
        match line {
            Ok(line) if line == "ok" => {}
            Ok(line) => problems.push(line),
            // Damage so deep that the check itself stops is what it was to find.
            Err(error) => problems.push(error.to_string()),
        }
    }
    if !problems.is_empty() {
        // The next check reads whole tables, and a damaged one may never end.
        return Ok(problems);
    }
    let mut check = stored(connection.prepare("PRAGMA foreign_key_check"))?;
    let lines = stored(check.query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Option<i64>>(1)?))))?;
    for line in lines {
        match line {
            Ok((table, rowid)) => problems.push(match rowid {
                Some(rowid) => format!("row {rowid} of {table} refers to nothing"),
                None => format!("a row of {table} refers to nothing"),
            }),
            Err(error) => problems.push(error.to_string()),
        }
    }
    Ok(problems)
}

pub(super) fn understood_attempt<T>(attempt: AttemptKey, read: rusqlite::Result<T>) -> Result<T> {
    let what = || (format!("attempt {} of unit key {}", attempt.number, attempt.unit.0), attempt.unit.0);
    understood(read, what)
}

pub(super) fn understood_list<T>(what: &str, read: rusqlite::Result<T>) -> Result<T> {
    understood(read, || (what.to_owned(), 0))
}
