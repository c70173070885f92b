//! What is read of a repository beside the records themselves, and the limits of what can be stored.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{By, loss};
use crate::attempt::{Attempt, Failure};
use crate::chain::{self, Hash};
use crate::job::{Job, JobId};
use crate::lease::OwnerId;
use crate::money::{Charge, Cost, Money, Tokens};
use crate::unit::{Change, UnitId, UnitKey, UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// A part of a longer sequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Page<T> {
    /// What is on it, in order.
    pub items: Vec<T>,
    /// What to pass as `after` for the next page; `None` at the end.
    pub next: Option<i64>,
}

/// How many items a page may have; larger wishes are cut to it.
pub const PAGE_LIMIT: usize = 1_000;

/// After how many bytes of content a page ends, though items are left.
pub const PAGE_LIMIT_BYTES: usize = 8 * 1024 * 1024;

/// How many bytes a message may have, as JSON and with what the provider sent. Nothing longer is read either.
pub const MESSAGE_LIMIT_BYTES: usize = 256 * 1024 * 1024;

/// How many bytes the text of a message that is being written may have: less than a whole one, since
/// JSON may need six times as many.
pub const PARTIAL_LIMIT_BYTES: usize = 32 * 1024 * 1024;

/// How many bytes what an owner says of itself may have as JSON.
pub const STATE_LIMIT_BYTES: usize = 64 * 1024;

/// How many units one purge takes.
pub const PURGE_LIMIT: usize = 100;

/// Which units are meant. The default is all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnitFilter {
    /// Only of this job.
    pub job_id: Option<JobId>,
    /// Only in one of these; any if empty.
    pub statuses: Vec<UnitStatus>,
    /// Only of this type.
    pub unit_type: Option<String>,
    /// Only if they FAILED in this way.
    pub failure_kind: Option<String>,
}

impl UnitFilter {
    /// The units of a job.
    pub fn job(job_id: JobId) -> UnitFilter {
        UnitFilter { job_id: Some(job_id), ..UnitFilter::default() }
    }

    /// Only those in this status, or another one that was asked for.
    pub fn status(mut self, status: UnitStatus) -> UnitFilter {
        self.statuses.push(status);
        self
    }

    /// Only those of this type.
    pub fn unit_type(mut self, unit_type: impl Into<String>) -> UnitFilter {
        self.unit_type = Some(unit_type.into());
        self
    }

    /// Only those that FAILED in this way.
    pub fn failure_kind(mut self, kind: impl Into<String>) -> UnitFilter {
        self.failure_kind = Some(kind.into());
        self
    }
}

/// What became of a unit, without what it was given and what it said: short enough to go through all of a large batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct UnitSummary {
    /// The repository's name for it.
    pub key: UnitKey,
    /// Its job.
    pub job_id: JobId,
    /// The caller's name for it.
    pub id: UnitId,
    /// What kind of work it is.
    pub unit_type: Option<String>,
    /// Where it is.
    pub status: UnitStatus,
    /// Larger goes first.
    pub priority: i32,
    /// How many attempts count against its limit since it was requeued last.
    pub attempts_used: u32,
    /// Before which time it is not to be claimed.
    pub not_before: Option<DateTime<Utc>>,
    /// When it was inserted.
    pub created_at: DateTime<Utc>,
    /// When it ended.
    pub completed_at: Option<DateTime<Utc>>,
    /// When its contents were removed.
    pub purged_at: Option<DateTime<Utc>>,
    /// Why it FAILED.
    pub failure: Option<Failure>,
    /// Its attempts, in order.
    pub attempts: Vec<AttemptSummary>,
}

/// An attempt with its bill.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptSummary {
    /// Its record.
    #[serde(flatten)]
    pub attempt: Attempt,
    /// What it used, by model, in the order of their names.
    pub charges: Vec<Charge>,
}

impl UnitSummary {
    pub(crate) fn of(unit: WorkUnit, attempts: Vec<AttemptSummary>) -> UnitSummary {
        UnitSummary {
            key: unit.key,
            job_id: unit.job_id,
            id: unit.id,
            unit_type: unit.unit_type,
            status: unit.status,
            priority: unit.priority,
            attempts_used: unit.attempts_used,
            not_before: unit.not_before,
            created_at: unit.created_at,
            completed_at: unit.completed_at,
            purged_at: unit.purged_at,
            failure: unit.failure,
            attempts,
        }
    }

    /// The attempt that was made last, or is being made.
    pub fn last_attempt(&self) -> Option<&Attempt> {
        self.attempts.last().map(|last| &last.attempt)
    }

    /// All lines of its bill, in the order of its attempts.
    pub fn charges(&self) -> impl Iterator<Item = &Charge> {
        self.attempts.iter().flat_map(|attempt| &attempt.charges)
    }

    /// What all its attempts cost, those that left no bill included: of them nobody knows.
    pub fn cost(&self) -> Cost {
        self.attempts.iter().map(|summary| summary.attempt.cost(&summary.charges)).sum()
    }

    /// What all its attempts used.
    pub fn tokens(&self) -> Tokens {
        self.charges().fold(Tokens::default(), |sum, charge| sum + charge.tokens)
    }
}

/// A lease that somebody holds, as it is at a moment. It gives no right to write the unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct LeaseView {
    /// The unit that is being executed.
    pub unit: UnitKey,
    /// Its name.
    pub unit_id: UnitId,
    /// Its job.
    pub job_id: JobId,
    /// ASSIGNED, PROCESSING or CANCEL_REQUESTED.
    pub status: UnitStatus,
    /// The attempt that the lease is for.
    pub attempt_number: u32,
    /// Under which it may write.
    pub fence: i64,
    /// Who holds it.
    pub owner: OwnerId,
    /// The worker that executes the attempt.
    pub worker_id: WorkerId,
    /// When it was claimed.
    pub since: DateTime<Utc>,
    /// How many milliseconds are left until it runs out; it has at 0, and how long ago a negative number tells. Of a lease
    /// of another boot nothing is left: 0.
    pub left_ms: i64,
    /// Why nobody is to be expected to look after it any more; `None` while its holder may go on.
    pub staleness: Option<Staleness>,
}

impl LeaseView {
    /// Whether the next [`expire`](super::Repository::expire) may take it back.
    pub fn is_stale(&self) -> bool {
        self.staleness.is_some()
    }
}

/// Why a lease is to be taken back. Written out it is what the journal says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Staleness {
    /// It was not renewed in time.
    RanOut,
    /// The process of its owner is certainly gone.
    OwnerDied,
    /// The machine was started again since.
    OtherBoot,
}

impl Staleness {
    /// What the journal says when the lease is taken back.
    pub const fn reason(self) -> &'static str {
        match self {
            Staleness::RanOut => loss::LEASE_RAN_OUT,
            Staleness::OwnerDied => loss::OWNER_DIED,
            Staleness::OtherBoot => loss::OTHER_BOOT,
        }
    }
}

impl fmt::Display for Staleness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.reason())
    }
}

/// One row of the journal.
///
/// `change`, `from` and `to` are a step that [`UnitStatus::after`] allows. Three kinds of rows leave the
/// status as it is: a prompt that is added, a purge, and a late report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JournalEntry {
    /// Its place in the journal, growing without gaps.
    pub seq: i64,
    /// When it happened.
    pub at: DateTime<Utc>,
    /// The unit.
    pub unit: UnitKey,
    /// The attempt, if one was concerned.
    pub attempt_number: Option<u32>,
    /// The unit's fence after the change.
    pub fence: i64,
    /// What happened.
    pub change: Change,
    /// The status before; `None` for an insert.
    pub from: Option<UnitStatus>,
    /// The status after.
    pub to: UnitStatus,
    /// Who did it: an owner, or a person.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    /// How many messages the attempt has, where this row closes one.
    pub message_count: Option<u32>,
    /// The last link of its conversation, where this row closes one.
    pub head: Option<Hash>,
    /// The hash of what this change stored: the unit's inputs, or what the attempt began with or left.
    pub digest: Option<Hash>,
    /// The link of the chain up to and including this row.
    pub link: Hash,
}

impl JournalEntry {
    /// How many bytes of content it has.
    pub(crate) fn len_bytes(&self) -> usize {
        self.actor.len() + self.reason.as_ref().map_or(0, String::len)
    }
}

/// One row of the journal of jobs: what a job is from then on. The first row of a job tells that it was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobEntry {
    /// Its place in the journal of jobs, growing without gaps.
    pub seq: i64,
    /// When it happened.
    pub at: DateTime<Utc>,
    /// The job.
    pub job_id: JobId,
    /// How much all its units may cost from then on.
    pub budget: Option<Money>,
    /// What is kept with it from then on.
    pub settings: Value,
    /// Who did it.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
    /// The last row of the journal of units then, 0 if it had none.
    pub journal_seq: i64,
    /// Its link, so that a journal that was cut off before it is found.
    pub journal_link: Option<Hash>,
    /// The [hash](Job::digest) of all that the job is from then on.
    pub digest: Hash,
    /// The link of the chain up to and including this row.
    pub link: Hash,
}

impl JobEntry {
    /// The row that follows one of such a place and link, about a job as it has become while the journal of units had such a last row.
    pub(crate) fn following(
        last: Option<(i64, Hash)>,
        journal: Option<(i64, Hash)>,
        job: &Job,
        by: &By,
        at: DateTime<Utc>,
    ) -> JobEntry {
        let (seq, previous) = last.unwrap_or_else(|| (0, chain::job_journal_genesis()));
        let mut entry = JobEntry {
            seq: seq + 1,
            at,
            job_id: job.id,
            budget: job.budget,
            settings: job.settings.clone(),
            actor: by.actor.clone(),
            reason: by.reason.clone(),
            journal_seq: journal.map_or(0, |(seq, _)| seq),
            journal_link: journal.map(|(_, link)| link),
            digest: job.digest(),
            link: previous,
        };
        entry.link = chain::job_journal_link(&previous, &entry);
        entry
    }

    /// The job as this row has it. What never changes of a job is as it is now.
    pub(crate) fn job(&self, now: &Job) -> Job {
        Job { budget: self.budget, settings: self.settings.clone(), ..now.clone() }
    }

    /// How many bytes of content it has.
    pub(crate) fn len_bytes(&self) -> usize {
        self.actor.len() + self.reason.as_ref().map_or(0, String::len) + self.settings.to_string().len()
    }
}

/// How many units are in each status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counts {
    /// Waiting.
    pub pending: u64,
    /// Claimed.
    pub assigned: u64,
    /// Being executed.
    pub processing: u64,
    /// Asked to stop.
    pub cancel_requested: u64,
    /// Ended well.
    pub completed: u64,
    /// Ended badly.
    pub failed: u64,
    /// Ended because somebody asked for it.
    pub cancelled: u64,
}

impl Counts {
    /// All units.
    pub fn total(&self) -> u64 {
        UnitStatus::ALL.iter().map(|&status| self.of(status)).sum()
    }

    /// Those in one status.
    pub fn of(&self, status: UnitStatus) -> u64 {
        let mut counts = *self;
        *counts.slot(status)
    }

    pub(crate) fn add(&mut self, status: UnitStatus, count: u64) {
        *self.slot(status) += count;
    }

    fn slot(&mut self, status: UnitStatus) -> &mut u64 {
        match status {
            UnitStatus::Pending => &mut self.pending,
            UnitStatus::Assigned => &mut self.assigned,
            UnitStatus::Processing => &mut self.processing,
            UnitStatus::CancelRequested => &mut self.cancel_requested,
            UnitStatus::Completed => &mut self.completed,
            UnitStatus::Failed => &mut self.failed,
            UnitStatus::Cancelled => &mut self.cancelled,
        }
    }
}

/// What one model cost.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelCost {
    /// The model.
    pub model: String,
    /// What was used of it.
    pub tokens: Tokens,
    /// What that cost.
    pub cost: Cost,
}

/// What was spent, failed and lost attempts included.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Costs {
    /// By model, in the order of their names.
    pub by_model: Vec<ModelCost>,
    /// What of it was spent on attempts that came to no good end.
    pub in_vain: Cost,
    /// How many attempts were executed and left no bill, so that nobody knows what they cost.
    pub unbilled: u64,
}

impl Costs {
    /// All that was charged, as the units tell it.
    pub fn total(&self) -> Cost {
        self.by_model.iter().map(|model| model.cost).sum()
    }

    /// The same, with what left no bill among what is not known.
    pub fn spent(&self) -> Cost {
        self.total() + Cost { unpriced: self.unbilled, ..Cost::default() }
    }

    /// All tokens.
    pub fn tokens(&self) -> Tokens {
        self.by_model.iter().fold(Tokens::default(), |sum, model| sum + model.tokens)
    }
}

/// The bytes of a unit's inputs, as an audit checks them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredInputs {
    /// What kind of work it is.
    pub unit_type: Option<String>,
    /// The payload as JSON; `None` once it was purged.
    pub payload: Option<Vec<u8>>,
    /// The prompt; `None` if there was none, or once it was purged.
    pub prompt: Option<String>,
    /// The template.
    pub template: Option<String>,
    /// The options as JSON.
    pub options: Vec<u8>,
    /// The hash of all but the prompt.
    pub content_hash: Hash,
    /// The hash of the prompt.
    pub prompt_hash: Option<Hash>,
}
