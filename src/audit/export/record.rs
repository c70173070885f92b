//! A unit as one line of JSON: the fields, and how a line is written and read.

use std::io::Write;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Export, ExportError};
use crate::attempt::{Attempt, AttemptKey, Failure, Outcome, OutputFile, Process, Provenance, ResultHashes};
use crate::audit::cost::cost_of;
use crate::chain::Hash;
use crate::conversation::{Part, Raw, Role, StoredMessage, Truncation, from_json_within};
use crate::job::{Job, JobId};
use crate::lease::OwnerId;
use crate::money::{Charge, Cost, Money, Price, Tokens};
use crate::repository::{RepositoryError, Result};
use crate::unit::{UnitId, UnitKey, UnitOptions, UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// What a line of this version says in its field `format`.
pub const FORMAT: &str = "workcrew.unit.1";

/// How much deeper than what is stored a record may be nested.
const RECORD_DEPTH: usize = 16;

/// An amount, once for programs and once for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AmountRecord {
    /// In nano-dollars, a whole number.
    pub nanos: i64,
    /// The same in dollars, as a decimal number without a sign for the currency.
    pub dollars: String,
}

impl AmountRecord {
    fn of(amount: Money) -> AmountRecord {
        AmountRecord { nanos: amount.nanos(), dollars: amount.to_string().replace('$', "") }
    }

    /// The amount.
    pub fn money(&self) -> Money {
        Money::from_nanos(self.nanos)
    }
}

/// A sum of charges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CostRecord {
    /// The sum of what is known; null if that is nothing though something was used.
    pub amount: Option<AmountRecord>,
    /// How many charges, or executions without a bill, have no known amount.
    pub unpriced: u64,
}

impl CostRecord {
    fn of(cost: Cost) -> CostRecord {
        CostRecord { amount: cost.known().map(AmountRecord::of), unpriced: cost.unpriced }
    }
}

/// What was used of a model, and what that cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ChargeRecord {
    /// The model.
    pub model: String,
    /// What was used, in classes that do not overlap.
    pub tokens: Tokens,
    /// What it cost; null if nobody knows.
    pub amount: Option<AmountRecord>,
    /// The price that it was computed with, in nano-dollars for a million tokens.
    pub price: Option<Price>,
    /// Whether the numbers are a guess.
    pub is_estimated: bool,
}

impl ChargeRecord {
    fn of(charge: Charge) -> ChargeRecord {
        let Charge { model, tokens, amount, price, is_estimated } = charge;
        ChargeRecord { model, tokens, amount: amount.map(AmountRecord::of), price, is_estimated }
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MessageRecord {
    /// Its place in the conversation, from 1.
    pub number: u32,
    /// When it was stored.
    pub at: DateTime<Utc>,
    /// Who speaks.
    pub role: Role,
    /// What is said; null once it was purged.
    pub parts: Option<Vec<Part>>,
    /// Whether the attempt ended before the message did.
    pub is_partial: bool,
    /// What it was before it was cut to a limit.
    pub truncated: Option<Truncation>,
    /// What the provider sent, if it was [asked for](Export::with_raw): a string, or a list of numbers where it is no UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Raw>,
    /// The hash of the content.
    pub content_hash: Hash,
    /// The link of the chain up to and including this message.
    pub link: Hash,
}

impl MessageRecord {
    fn of(stored: &StoredMessage, with_raw: bool) -> std::result::Result<MessageRecord, serde_json::Error> {
        let message = stored.message()?;
        let (number, at, role) = (stored.number, stored.at, stored.role);
        let (content_hash, link) = (stored.content_hash, stored.link);
        let empty = MessageRecord {
            number,
            at,
            role,
            parts: None,
            is_partial: false,
            truncated: None,
            raw: None,
            content_hash,
            link,
        };
        Ok(match message {
            None => empty,
            Some(message) => MessageRecord {
                parts: Some(message.parts),
                is_partial: message.is_partial,
                truncated: message.truncated,
                raw: message.raw.filter(|_| with_raw),
                ..empty
            },
        })
    }
}

/// An attempt with all that it left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptRecord {
    /// Counted from 1.
    pub number: u32,
    /// The fence under which it wrote.
    pub fence: i64,
    /// Who executed it.
    pub owner: OwnerId,
    /// On which worker.
    pub worker_id: WorkerId,
    /// When it was claimed.
    pub assigned_at: DateTime<Utc>,
    /// When the execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How it ended; null while it is open.
    pub outcome: Option<Outcome>,
    /// Whether it counts against the unit's limit.
    pub is_counted: bool,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The provider's session.
    pub session_id: Option<String>,
    /// The child process.
    pub process: Option<Process>,
    /// What it was executed with.
    pub provenance: Option<Provenance>,
    /// What was really sent, if it was rendered; null if that is the unit's prompt.
    pub rendered_prompt: Option<String>,
    /// The answer as text.
    pub output: Option<String>,
    /// What came out of it, for programs.
    pub result: Option<Value>,
    /// What the executor reported after the attempt was given up.
    pub late_result: Option<Value>,
    /// Files that it made.
    pub output_files: Vec<OutputFile>,
    /// The hashes of what was purged.
    pub purged: Option<ResultHashes>,
    /// What it used, by model.
    pub charges: Vec<ChargeRecord>,
    /// The text of a message that is still being written.
    pub partial_text: Option<String>,
    /// How many messages its conversation has; set when it ends.
    pub message_count: Option<u32>,
    /// The last link of its conversation; set when it ends.
    pub head: Option<Hash>,
    /// How many messages could not be stored.
    pub messages_lost: u32,
    /// Whose answer it has, if that is another attempt's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_of: Option<AttemptKey>,
    /// The conversation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub messages: Vec<MessageRecord>,
}

/// A unit with everything.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnitRecord {
    /// The version of these fields, [`FORMAT`]. Fields may be added under the same version; none changes its meaning.
    pub format: String,
    /// The job, by its number.
    pub job_id: JobId,
    /// The job, by its name.
    pub job: String,
    /// The unit's number, which gives the order.
    pub key: UnitKey,
    /// The unit's name in the job.
    pub id: UnitId,
    /// What kind of work it is.
    pub unit_type: Option<String>,
    /// Where it is in its life.
    pub status: UnitStatus,
    /// Larger goes first.
    pub priority: i32,
    /// What the template is rendered from; null after a purge.
    pub payload: Value,
    /// What is sent as it is; null after a purge.
    pub prompt: Option<String>,
    /// What is rendered into a prompt.
    pub template: Option<String>,
    /// How it wants to be executed.
    pub options: UnitOptions,
    /// How many executions may follow the first.
    pub max_retries: u32,
    /// How many attempts were made.
    pub attempt_count: u32,
    /// How many of them count since the last requeue.
    pub attempts_used: u32,
    /// The number that proves the right to write.
    pub fence: i64,
    /// The pool that accepted it.
    pub accepted_by: Option<OwnerId>,
    /// Not to be claimed earlier.
    pub not_before: Option<DateTime<Utc>>,
    /// When it was stored.
    pub created_at: DateTime<Utc>,
    /// When it ended.
    pub completed_at: Option<DateTime<Utc>>,
    /// When its contents were removed.
    pub purged_at: Option<DateTime<Utc>>,
    /// Why it is FAILED.
    pub failure: Option<Failure>,
    /// What all its attempts used.
    pub tokens: Tokens,
    /// What all its attempts cost.
    pub cost: CostRecord,
    /// What its attempts saved last.
    pub checkpoint: Option<Value>,
    /// All attempts, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attempts: Vec<AttemptRecord>,
}

impl UnitRecord {
    /// Reads a line.
    ///
    /// # Errors
    ///
    /// What the parser says, if it is no such line, or one of another version.
    pub fn read(line: &str) -> std::result::Result<UnitRecord, serde_json::Error> {
        let record: UnitRecord = from_json_within(line.as_bytes(), RECORD_DEPTH)?;
        if record.format != FORMAT {
            let shown = crate::unit::shortened(&record.format);
            return Err(serde::de::Error::custom(format_args!("the format is `{shown}`, not `{FORMAT}`")));
        }
        Ok(record)
    }

    fn of(job: &Job, unit: &WorkUnit, cost: Cost, checkpoint: Option<Value>) -> UnitRecord {
        UnitRecord {
            format: FORMAT.to_owned(),
            job_id: unit.job_id,
            job: job.name.clone(),
            key: unit.key,
            id: unit.id.clone(),
            unit_type: unit.unit_type.clone(),
            status: unit.status,
            priority: unit.priority,
            payload: unit.payload.clone(),
            prompt: unit.prompt.clone(),
            template: unit.template.clone(),
            options: unit.options.clone(),
            max_retries: unit.max_retries,
            attempt_count: unit.attempt_count,
            attempts_used: unit.attempts_used,
            fence: unit.fence,
            accepted_by: unit.accepted_by,
            not_before: unit.not_before,
            created_at: unit.created_at,
            completed_at: unit.completed_at,
            purged_at: unit.purged_at,
            failure: unit.failure.clone(),
            tokens: unit.tokens,
            cost: CostRecord::of(cost),
            checkpoint,
            attempts: Vec::new(),
        }
    }
}

impl Export<'_> {
    /// Writes a unit as one line. Its messages go out page by page: no more than one is in memory.
    pub(super) fn write_record(
        &self,
        job: &Job,
        unit: &WorkUnit,
        out: &mut dyn Write,
    ) -> std::result::Result<(), ExportError> {
        let attempts = self.archive.attempts(unit.key)?;
        let cost = cost_of(self.archive, &attempts)?;
        let record = UnitRecord::of(job, unit, cost, self.archive.checkpoint(unit.key)?);
        write_open(&record, "attempts", out)?;
        for (attempt, comma) in attempts.into_iter().zip(super::commas()) {
            out.write_all(comma.as_bytes())?;
            let key = attempt.key;
            write_open(&self.attempt_record(attempt)?, "messages", out)?;
            let mut comma = "";
            super::each_message(self.archive, key, |stored| {
                let record = MessageRecord::of(stored, self.is_with_raw);
                let record = record.map_err(|error| super::unreadable(key, stored.number, error))?;
                out.write_all(comma.as_bytes())?;
                comma = ",";
                write_json(&record, out)
            })?;
            out.write_all(b"]}")?;
        }
        Ok(out.write_all(b"]}\n")?)
    }

    fn attempt_record(&self, attempt: Attempt) -> Result<AttemptRecord> {
        let left = self.archive.attempt_result(attempt.key)?;
        let json = |raw: Option<Raw>| raw.map(|raw| from_json_within(raw.as_bytes(), 0)).transpose();
        let damaged = |error| RepositoryError::corrupt("the result of an attempt", attempt.key.unit.0, error);
        Ok(AttemptRecord {
            number: attempt.key.number,
            fence: attempt.fence,
            owner: attempt.owner,
            rendered_prompt: left.rendered_prompt,
            output: left.output,
            result: json(left.result).map_err(damaged)?,
            late_result: json(left.late_result).map_err(damaged)?,
            output_files: left.output_files,
            purged: left.purged,
            charges: self.archive.charges(attempt.key)?.into_iter().map(ChargeRecord::of).collect(),
            partial_text: self.archive.partial_text(attempt.key)?,
            worker_id: attempt.worker_id,
            assigned_at: attempt.assigned_at,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            outcome: attempt.outcome,
            is_counted: attempt.is_counted,
            failure: attempt.failure,
            session_id: attempt.session_id,
            process: attempt.process,
            provenance: attempt.provenance,
            message_count: attempt.message_count,
            head: attempt.head,
            messages_lost: attempt.messages_lost,
            answer_of: attempt.answer_of,
            messages: Vec::new(),
        })
    }
}

/// Writes a record up to a list that is its last field, and leaves both open.
fn write_open(record: &impl Serialize, list: &str, out: &mut dyn Write) -> std::result::Result<(), ExportError> {
    let json = serde_json::to_vec(record).map_err(std::io::Error::from)?;
    out.write_all(json.strip_suffix(b"}").unwrap_or(&json))?;
    Ok(write!(out, ",\"{list}\":[")?)
}

fn write_json(record: &impl Serialize, out: &mut dyn Write) -> std::result::Result<(), ExportError> {
    Ok(serde_json::to_writer(out, record).map_err(std::io::Error::from)?)
}
