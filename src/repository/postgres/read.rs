//! Reading: each call is one consistent look at the database.
//!
//! What can be large is cut by the server: a page asks for rows until they have as many bytes as it may have, so that never more than
//! that and one row more is sent.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap};

use postgres::Row;
use postgres::types::ToSql;
use serde_json::Value;

use super::columns::{Columns, findable, unreadable};
use super::connection::{Connection, Failure, Read};
use super::jobs::job;
use super::owners::read_owner;
use super::rows::{read_attempts, read_charges_of, read_files};
use crate::attempt::{self, Attempt, AttemptKey, OutputFile};
use crate::clock::Moment;
use crate::conversation::{MessageContent, Role, StoredMessage, from_json};
use crate::job::JobId;
use crate::lease::{Lease, OwnerId};
use crate::money::{Charge, Cost, Money, Tokens};
use crate::repository::prepared::Encoding;
use crate::repository::rules::{self, PageItem, page_limit};
use crate::repository::{
    AttemptSummary, Costs, Counts, JournalEntry, LeaseView, ModelCost, PAGE_LIMIT_BYTES, Page, RepositoryError,
    Staleness, StoredInputs, UnitFilter, UnitSummary,
};
use crate::unit::{Change, UnitKey, UnitStatus, WorkUnit};

/// A record that was found but cannot be understood is damage; anything else is the storage's own trouble.
pub(super) fn understood<T>(read: Read<T>, what: impl FnOnce() -> (String, i64)) -> Read<T> {
    read.map_err(|failure| match failure {
        Failure::Unreadable(damage) => {
            let (what, position) = what();
            RepositoryError::corrupt(what, position, damage).into()
        }
        failure => failure,
    })
}

/// What a row says, if there is one.
pub(super) fn found<T>(row: Option<Row>, read: impl FnOnce(&Row) -> Read<T>) -> Read<Option<T>> {
    row.map(|row| read(&row)).transpose()
}

/// One more than the page holds, so that the last page is known as such.
pub(super) fn one_more_than(limit: usize) -> i64 {
    super::columns::sql_limit(page_limit(limit) + 1)
}

/// A page of rows; `what` names one by its key, which is the first column.
pub(super) fn page_of<T>(
    rows: &[Row],
    limit: usize,
    what: impl Fn(i64) -> String,
    mut read: impl FnMut(&Row) -> Read<(usize, T)>,
) -> Read<Page<T>> {
    let mut last = 0;
    let items = rows.iter().map(|row| {
        let key = understood(row.number(0), || (format!("what follows {}", what(last)), last));
        let key = key.map_err(Failure::into_meaning)?;
        last = key;
        let (len_bytes, item) = understood(read(row), || (what(key), key)).map_err(Failure::into_meaning)?;
        Ok(PageItem { key, len_bytes, item })
    });
    Ok(rules::page(limit, items)?)
}

/// The same rows, up to the one with which a page has all the bytes that it may have, and one more. Their last column says how many
/// bytes each has.
fn within_a_page(rows: &str, key: &str) -> String {
    format!(
        "SELECT * FROM (SELECT *, sum(len_bytes) OVER (ORDER BY {key} ROWS BETWEEN UNBOUNDED PRECEDING AND 2 PRECEDING)
                                  AS bytes_before_the_last
                        FROM ({rows}) AS rows) AS measured
         WHERE coalesce(bytes_before_the_last, 0) < {PAGE_LIMIT_BYTES}
         ORDER BY {key}"
    )
}

/// The columns of a unit with what its last attempt left.
pub(super) const UNIT_COLUMNS: &str = "u.key, u.job_id, u.id, i.unit_type, u.status, u.priority, i.payload, i.prompt, i.template, \
     i.options, u.max_retries, u.attempt_count, u.attempts_used, u.fence, u.accepted_by, u.not_before, u.delay_ms, \
     u.created_at, u.completed_at, u.purged_at, u.failure_kind, u.failure_message, a.assigned_at, a.started_at, \
     a.ended_at, a.worker_id, a.session_id, a.process, r.rendered_prompt, r.result, r.output, m.at AS first_message_at";

pub(super) const UNIT_TABLES: &str = "work_units u \
     JOIN unit_inputs i ON i.unit_key = u.key \
     LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count \
     LEFT JOIN attempt_results r ON r.unit_key = u.key AND r.attempt_number = u.attempt_count \
     LEFT JOIN messages m ON m.unit_key = u.key AND m.attempt_number = u.attempt_count AND m.number = 1";

/// How many bytes of content a unit brings onto a page.
const UNIT_BYTES: &str = "coalesce(octet_length(i.payload), 0) + coalesce(octet_length(i.prompt), 0) \
     + coalesce(octet_length(i.template), 0) + coalesce(octet_length(r.result), 0) \
     + coalesce(octet_length(r.rendered_prompt), 0) + coalesce(octet_length(r.output), 0)";

/// What is kept of units in other tables, a row or more for each.
#[derive(Default)]
pub(super) struct Beside {
    files: HashMap<AttemptKey, Vec<OutputFile>>,
    costs: HashMap<i64, (Tokens, Cost)>,
}

impl Beside {
    pub(super) fn read(connection: &mut Connection, rows: &[Row]) -> Read<Beside> {
        let keys: Vec<i64> = rows.iter().filter_map(|row| row.number(0).ok()).collect();
        let files = read_files(
            connection,
            "unit_key = ANY($1) AND attempt_number = (SELECT attempt_count FROM work_units WHERE key = unit_key)",
            &[&keys],
        )?;
        let rows = connection.rows(
            "SELECT unit_key, input, output, cache_read, cache_write, reasoning, amount
             FROM charges
             WHERE unit_key = ANY($1)",
            &[&keys],
        )?;
        let mut costs: HashMap<i64, (Tokens, Cost)> = HashMap::new();
        for row in &rows {
            let (used, cost) = costs.entry(row.number(0)?).or_default();
            *used += row.tokens(1)?;
            *cost = *cost + line_cost(row.optional_number(6)?);
        }
        Ok(Beside { files, costs })
    }
}

/// A unit, behind how many bytes of content it brings onto a page.
pub(super) fn measured_unit(row: &Row, beside: &Beside) -> Read<(usize, WorkUnit)> {
    let key = UnitKey(row.number(0)?);
    let attempt_count: u32 = row.count(11)?;
    let last = AttemptKey { unit: key, number: attempt_count };
    let (assigned_at, started_at, ended_at) = (row.optional_time(22)?, row.optional_time(23)?, row.optional_time(24)?);
    let prompt = row.optional_text(7)?;
    let sent_as_it_is = started_at.and_then(|_| prompt.clone());
    let mut len_bytes = 0;
    for column in [6, 7, 8, 28, 29, 30] {
        len_bytes += row.len_bytes(column)?;
    }
    let (tokens, cost) = beside.costs.get(&key.0).copied().unwrap_or_default();
    let result: Option<&[u8]> = row.get_as(29)?;
    let unit = WorkUnit {
        key,
        job_id: JobId(row.number(1)?),
        id: row.unit_id(2)?,
        unit_type: row.optional_text(3)?,
        status: row.named(4, UnitStatus::from_name)?,
        priority: row.count(5)?,
        payload: row.optional_json(6)?.unwrap_or(Value::Null),
        prompt,
        template: row.optional_text(8)?,
        options: row.json(9)?,
        max_retries: row.count(10)?,
        attempt_count,
        attempts_used: row.count(12)?,
        fence: row.number(13)?,
        accepted_by: row.optional_number(14)?.map(OwnerId),
        not_before: row.pause(15, 16)?.map(|pause| pause.not_before),
        created_at: row.time(17)?,
        assigned_at,
        started_at,
        first_message_at: row.optional_time(31)?,
        completed_at: row.optional_time(18)?,
        purged_at: row.optional_time(19)?,
        worker_id: if assigned_at.is_some() { Some(row.worker_id(25)?) } else { None },
        execution_time: attempt::execution_time(started_at, ended_at),
        rendered_prompt: row.optional_text(28)?.or(sent_as_it_is),
        result: result.map(|json| from_json(json).map_err(unreadable)).transpose()?,
        output: row.optional_text(30)?,
        output_files: beside.files.get(&last).cloned().unwrap_or_default(),
        failure: row.failure(20, 21)?,
        session_id: row.optional_text(26)?,
        process: row.exact_json(27)?,
        tokens,
        cost,
    };
    Ok((len_bytes, unit))
}

fn line_cost(amount: Option<i64>) -> Cost {
    match amount {
        Some(nanos) => Cost { amount: Money::from_nanos(nanos), unpriced: 0 },
        None => Cost { amount: Money::ZERO, unpriced: 1 },
    }
}

pub(super) fn unit(connection: &mut Connection, job_id: JobId, id: &str) -> Read<WorkUnit> {
    let unknown = || Failure::from(RepositoryError::unknown_unit(job_id, id));
    let sql = format!("SELECT {UNIT_COLUMNS} FROM {UNIT_TABLES} WHERE u.job_id = $1 AND u.id = $2");
    let rows = match findable(id) {
        Some(id) => connection.rows(&sql, &[&job_id.0, &id])?,
        None => Vec::new(),
    };
    let Some(row) = rows.first() else { return Err(job(connection, job_id).err().unwrap_or_else(unknown)) };
    let unit = Beside::read(connection, &rows).and_then(|beside| measured_unit(row, &beside));
    understood(unit, || (format!("unit `{id}`"), 0)).map(|(_, unit)| unit)
}

/// What a filter means, as conditions with their parameters behind those that are there.
fn conditions(filter: &UnitFilter, parameters: &mut Vec<Box<dyn ToSql + Sync>>) -> String {
    let mut conditions = Vec::new();
    let mut require = |condition: &str, parameter: Box<dyn ToSql + Sync>| {
        parameters.push(parameter);
        conditions.push(condition.replace('?', &format!("${}", parameters.len())));
    };
    if let Some(job_id) = filter.job_id {
        require("u.job_id = ?", Box::new(job_id.0));
    }
    if let Some(unit_type) = &filter.unit_type {
        require("i.unit_type = ?", Box::new(unit_type.as_bytes().to_vec()));
    }
    if let Some(kind) = &filter.failure_kind {
        require("u.failure_kind = ?", Box::new(kind.as_bytes().to_vec()));
    }
    if !filter.statuses.is_empty() {
        // By name, so that the index of those that ended badly can be used.
        let names: Vec<String> = filter.statuses.iter().map(|status| format!("'{status}'")).collect();
        conditions.push(format!("u.status IN ({})", names.join(", ")));
    }
    conditions.iter().map(|condition| format!(" AND {condition}")).collect()
}

/// The rows of a list of units: the columns, and how many bytes they have.
fn unit_rows(
    connection: &mut Connection,
    (columns, tables, bytes): (&str, &str, &str),
    filter: &UnitFilter,
    after: i64,
    limit: usize,
) -> Read<Vec<Row>> {
    let mut parameters: Vec<Box<dyn ToSql + Sync>> = vec![Box::new(after), Box::new(one_more_than(limit))];
    let conditions = conditions(filter, &mut parameters);
    let rows = format!(
        "SELECT {columns}, ({bytes})::bigint AS len_bytes
         FROM {tables}
         WHERE u.key > $1{conditions}
         ORDER BY u.key
         LIMIT $2"
    );
    let parameters: Vec<&(dyn ToSql + Sync)> = parameters.iter().map(|parameter| &**parameter).collect();
    connection.rows(&within_a_page(&rows, "key"), &parameters)
}

pub(super) fn units(
    connection: &mut Connection,
    filter: &UnitFilter,
    after: i64,
    limit: usize,
) -> Read<Page<WorkUnit>> {
    let rows = unit_rows(connection, (UNIT_COLUMNS, UNIT_TABLES, UNIT_BYTES), filter, after, limit)?;
    let beside = Beside::read(connection, &rows)?;
    page_of(&rows, limit, |key| format!("unit key {key}"), |row| measured_unit(row, &beside))
}

/// The columns of a unit that are short.
const SUMMARY_COLUMNS: &str = "u.key, u.job_id, u.id, i.unit_type, u.status, u.priority, u.attempts_used, \
     u.not_before, u.delay_ms, u.created_at, u.completed_at, u.purged_at, u.failure_kind, u.failure_message";

const SUMMARY_TABLES: &str = "work_units u JOIN unit_inputs i ON i.unit_key = u.key";

pub(super) fn summaries(
    connection: &mut Connection,
    filter: &UnitFilter,
    after: i64,
    limit: usize,
) -> Read<Page<UnitSummary>> {
    let bytes = "coalesce(octet_length(u.failure_message), 0)";
    let rows = unit_rows(connection, (SUMMARY_COLUMNS, SUMMARY_TABLES, bytes), filter, after, limit)?;
    let keys: Vec<i64> = rows.iter().filter_map(|row| row.number(0).ok()).collect();
    let mut attempts: HashMap<UnitKey, Vec<Attempt>> = HashMap::new();
    for attempt in read_attempts(connection, &keys)? {
        attempts.entry(attempt.key.unit).or_default().push(attempt);
    }
    let mut charges = read_charges_of(connection, &keys)?;
    page_of(&rows, limit, |key| format!("unit key {key}"), |row| summary(row, &mut attempts, &mut charges))
}

/// A unit with its attempts and their bills, behind how many bytes it brings onto a page.
fn summary(
    row: &Row,
    attempts: &mut HashMap<UnitKey, Vec<Attempt>>,
    charges: &mut HashMap<AttemptKey, Vec<Charge>>,
) -> Read<(usize, UnitSummary)> {
    let key = UnitKey(row.number(0)?);
    let bill = |attempt: Attempt| AttemptSummary { charges: charges.remove(&attempt.key).unwrap_or_default(), attempt };
    let summary = UnitSummary {
        key,
        job_id: JobId(row.number(1)?),
        id: row.unit_id(2)?,
        unit_type: row.optional_text(3)?,
        status: row.named(4, UnitStatus::from_name)?,
        priority: row.count(5)?,
        attempts_used: row.count(6)?,
        not_before: row.pause(7, 8)?.map(|pause| pause.not_before),
        created_at: row.time(9)?,
        completed_at: row.optional_time(10)?,
        purged_at: row.optional_time(11)?,
        failure: row.failure(12, 13)?,
        attempts: attempts.remove(&key).unwrap_or_default().into_iter().map(bill).collect(),
    };
    let failures = summary.attempts.iter().map(|summary| &summary.attempt.failure).chain([&summary.failure]);
    let len_bytes = failures.flatten().map(|failure| failure.message.len()).sum();
    Ok((len_bytes, summary))
}

/// What is leased, in the order of keys, as it is at a moment. Of owners on other hosts only their leases tell.
pub(super) fn leases(
    connection: &mut Connection,
    job_id: Option<JobId>,
    after: i64,
    limit: usize,
    (now, boot_id): (Moment, &str),
) -> Read<Page<LeaseView>> {
    if let Some(job_id) = job_id {
        job(connection, job_id)?;
    }
    let rows = connection.rows(
        "SELECT u.key, u.job_id, u.id, u.status, u.attempt_count, u.fence, u.lease_owner, u.lease_worker,
                u.until_lease_ms, a.assigned_at
         FROM work_units u
         LEFT JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
         WHERE u.lease_owner IS NOT NULL AND u.key > $1 AND ($2::bigint IS NULL OR u.job_id = $2)
         ORDER BY u.key
         LIMIT $3",
        &[&after, &job_id.map(|job_id| job_id.0), &one_more_than(limit)],
    )?;
    let mut deaths: BTreeMap<OwnerId, Option<Staleness>> = BTreeMap::new();
    for row in &rows {
        let owner = OwnerId(row.number(6)?);
        if let Entry::Vacant(unknown) = deaths.entry(owner) {
            unknown.insert(read_owner(connection, owner)?.and_then(|owner| rules::owner_death(&owner, boot_id)));
        }
    }
    page_of(
        &rows,
        limit,
        |key| format!("the lease of unit key {key}"),
        |row| {
            let lease = Lease {
                job_id: JobId(row.number(1)?),
                unit_id: row.unit_id(2)?,
                unit: UnitKey(row.number(0)?),
                attempt_number: row.count(4)?,
                fence: row.number(5)?,
                owner: OwnerId(row.number(6)?),
                worker_id: row.worker_id(7)?,
                until_ms: row.number(8)?,
            };
            let death = deaths.get(&lease.owner).copied().flatten();
            let status = row.named(3, UnitStatus::from_name)?;
            Ok((0, rules::lease_view(lease, status, row.time(9)?, death, now)))
        },
    )
}

pub(super) fn counts(connection: &mut Connection, job_id: JobId) -> Read<Counts> {
    job(connection, job_id)?;
    let rows =
        connection.rows("SELECT status, count(*) FROM work_units WHERE job_id = $1 GROUP BY status", &[&job_id.0])?;
    let mut counts = Counts::default();
    for row in &rows {
        let damaged = || (format!("a status in {job_id}"), 0);
        counts.add(understood(row.named(0, UnitStatus::from_name), damaged)?, understood(row.count(1), damaged)?);
    }
    Ok(counts)
}

/// Summed by the server, whose sums are as long as they must be.
pub(super) fn costs(connection: &mut Connection, job_id: Option<JobId>) -> Read<Costs> {
    if let Some(job_id) = job_id {
        job(connection, job_id)?;
    }
    let rows = connection.rows(
        "SELECT c.model, a.outcome IS NOT NULL AND a.outcome <> 'COMPLETED', a.started_at IS NOT NULL AND a.outcome IS NOT NULL,
                count(*), count(*) FILTER (WHERE c.model IS NOT NULL AND c.amount IS NULL),
                sum(c.input)::text, sum(c.output)::text,
                sum(c.cache_read)::text, sum(c.cache_write)::text, sum(c.reasoning)::text,
                sum(c.amount)::text
         FROM attempts a
         JOIN work_units u ON u.key = a.unit_key
         LEFT JOIN charges c ON c.unit_key = a.unit_key AND c.attempt_number = a.number
         WHERE $1::bigint IS NULL OR u.job_id = $1
         GROUP BY 1, 2, 3",
        &[&job_id.map(|job_id| job_id.0)],
    )?;
    let mut by_model: BTreeMap<String, (Tokens, Cost)> = BTreeMap::new();
    let (mut in_vain, mut unbilled) = (Cost::default(), 0);
    for row in &rows {
        let damaged = || ("a charge".to_owned(), 0);
        let line = || {
            let Some(model) = row.optional_text(0)? else { return Ok(None) };
            let tokens = Tokens {
                input: sum(row, 5, u64::MAX)?,
                output: sum(row, 6, u64::MAX)?,
                cache_read: sum(row, 7, u64::MAX)?,
                cache_write: sum(row, 8, u64::MAX)?,
                reasoning: sum(row, 9, u64::MAX)?,
            };
            let cost = Cost { amount: Money::from_nanos(sum(row, 10, i64::MAX)?), unpriced: row.count(4)? };
            Ok(Some((model, tokens, cost)))
        };
        let Some((model, used, line_cost)) = understood(line(), damaged)? else {
            unbilled += if row.flag(2)? { row.count::<u64>(3)? } else { 0 };
            continue;
        };
        let (tokens, cost) = by_model.entry(model).or_default();
        *tokens += used;
        *cost = *cost + line_cost;
        if row.flag(1)? {
            in_vain = in_vain + line_cost;
        }
    }
    let model_cost = |(model, (tokens, cost))| ModelCost { model, tokens, cost };
    Ok(Costs { by_model: by_model.into_iter().map(model_cost).collect(), in_vain, unbilled })
}

/// A sum of any length, as much of it as fits into a number.
fn sum<T: TryFrom<i128> + Default>(row: &Row, column: usize, most: T) -> Read<T> {
    let Some(digits) = row.get_as::<Option<&str>>(column)? else { return Ok(T::default()) };
    let sum: i128 = digits.parse().map_err(unreadable)?;
    Ok(T::try_from(sum).unwrap_or(most))
}

pub(super) fn messages(
    connection: &mut Connection,
    attempt: AttemptKey,
    after: u32,
    limit: usize,
) -> Read<Page<StoredMessage>> {
    // The first page begins with whatever is first, though no number should be below 1.
    let first = if after == 0 { i64::MIN } else { i64::from(after) + 1 };
    let rows = within_a_page(
        "SELECT number, at, role, encoding, body, raw, content_hash, link,
                (coalesce(octet_length(body), 0) + coalesce(octet_length(raw), 0))::bigint AS len_bytes
         FROM messages
         WHERE unit_key = $1 AND attempt_number = $2 AND number >= $3
         ORDER BY number
         LIMIT $4",
        "number",
    );
    let rows = connection.rows(&rows, &[&attempt.unit.0, &i64::from(attempt.number), &first, &one_more_than(limit)])?;
    let what = |number| format!("message {number} of attempt {} of unit key {}", attempt.number, attempt.unit.0);
    page_of(&rows, limit, what, |row| {
        let content = content(row)?;
        let len_bytes = content.as_ref().map_or(0, MessageContent::len_bytes);
        let role = row.named(2, Role::from_name)?;
        let message = StoredMessage::new(row.count(0)?, row.time(1)?, role, content, row.hash(6)?, row.hash(7)?);
        Ok((len_bytes, message))
    })
}

/// The content of a message as it was before it was stored; `None` if it was purged.
fn content(row: &Row) -> Read<Option<MessageContent>> {
    let encoding = row.named(3, Encoding::from_name)?;
    let Some(body) = row.optional_bytes(4)? else { return Ok(None) };
    let decode = |bytes| encoding.decode(bytes).map_err(unreadable);
    let raw = row.optional_bytes(5)?.map(decode).transpose()?;
    Ok(Some(MessageContent { body: decode(body)?, raw }))
}

pub(super) fn partial_text(connection: &mut Connection, attempt: AttemptKey) -> Read<Option<String>> {
    let row = connection.row(
        "SELECT text FROM partials WHERE unit_key = $1 AND attempt_number = $2",
        &[&attempt.unit.0, &i64::from(attempt.number)],
    )?;
    understood(found(row, |row| row.text(0)), || ("a partial message".to_owned(), attempt.unit.0))
}

pub(super) fn checkpoint(connection: &mut Connection, unit: UnitKey) -> Read<Option<Value>> {
    let row = connection
        .row("SELECT value FROM checkpoints WHERE unit_key = $1 ORDER BY attempt_number DESC LIMIT 1", &[&unit.0])?;
    understood(found(row, |row| row.json(0)), || (format!("the checkpoint of unit key {}", unit.0), unit.0))
}

pub(super) fn inputs(connection: &mut Connection, unit: UnitKey) -> Read<StoredInputs> {
    let row = connection.row(
        "SELECT unit_type, payload, prompt, template, options, content_hash, prompt_hash
         FROM unit_inputs
         WHERE unit_key = $1",
        &[&unit.0],
    )?;
    let inputs = found(row, |row| {
        Ok(StoredInputs {
            unit_type: row.optional_text(0)?,
            payload: row.optional_bytes(1)?,
            prompt: row.optional_text(2)?,
            template: row.optional_text(3)?,
            options: row.bytes(4)?,
            content_hash: row.hash(5)?,
            prompt_hash: row.optional_hash(6)?,
        })
    });
    let inputs = understood(inputs, || (format!("the inputs of unit key {}", unit.0), unit.0))?;
    inputs.ok_or_else(|| rules::no_such_key(unit).into())
}

const JOURNAL_COLUMNS: &str = "seq, at, unit_key, attempt_number, fence, change, from_status, to_status, actor, \
     reason, message_count, head, digest, link FROM journal";

fn journal_row(row: &Row) -> Read<(usize, JournalEntry)> {
    let small = |number: Option<i64>| number.map(u32::try_from).transpose().map_err(unreadable);
    let entry = JournalEntry {
        seq: row.number(0)?,
        at: row.time(1)?,
        unit: UnitKey(row.number(2)?),
        attempt_number: small(row.optional_number(3)?)?,
        fence: row.number(4)?,
        change: row.named(5, Change::from_name)?,
        from: row.optional_named(6, UnitStatus::from_name)?,
        to: row.named(7, UnitStatus::from_name)?,
        actor: row.text(8)?,
        reason: row.optional_text(9)?,
        message_count: small(row.optional_number(10)?)?,
        head: row.optional_hash(11)?,
        digest: row.optional_hash(12)?,
        link: row.hash(13)?,
    };
    Ok((entry.len_bytes(), entry))
}

/// Which rows of the journal.
pub(super) enum Rows {
    All,
    OfUnit(UnitKey),
    Outcomes,
}

pub(super) fn journal(connection: &mut Connection, rows: &Rows, after: i64, limit: usize) -> Read<Page<JournalEntry>> {
    let (condition, unit) = match rows {
        Rows::All => ("$3::bigint IS NULL", None),
        Rows::OfUnit(unit) => ("unit_key = $3", Some(unit.0)),
        Rows::Outcomes => (
            "$3::bigint IS NULL AND to_status IN ('COMPLETED', 'FAILED', 'CANCELLED') AND from_status <> to_status",
            None,
        ),
    };
    let sql = format!("SELECT {JOURNAL_COLUMNS} WHERE seq > $1 AND {condition} ORDER BY seq LIMIT $2");
    let rows = connection.rows(&sql, &[&after, &one_more_than(limit), &unit])?;
    page_of(&rows, limit, |seq| format!("journal row {seq}"), journal_row)
}

/// Indices that PostgreSQL does not trust itself, and constraints that were never checked. Its own structure it checks with
/// `amcheck`, which asks for rights that we do not need otherwise.
pub(super) fn integrity(connection: &mut Connection) -> Read<Vec<String>> {
    let rows = connection.rows(
        "SELECT 'the index ' || c.relname || ' is not valid'
         FROM pg_index i
         JOIN pg_class c ON c.oid = i.indexrelid
         WHERE NOT i.indisvalid AND c.relnamespace = current_schema()::regnamespace
         UNION ALL
         SELECT 'the constraint ' || conname || ' was never checked'
         FROM pg_constraint
         WHERE NOT convalidated AND connamespace = current_schema()::regnamespace",
        &[],
    )?;
    rows.iter().map(|row| row.get_as(0)).collect()
}
