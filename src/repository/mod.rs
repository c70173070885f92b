//! Where everything is kept: the contract, and its implementations.
//!
//! [`Archive`] is what can be read, [`Repository`] what can be changed. Both are
//! object-safe; a pool holds an `Arc<dyn Repository>`, an audit needs only an `&dyn Archive`.
//!
//! # The contract
//!
//! **One verb, one transaction.** A verb either makes its whole change or none. When it
//! returns `Ok` the change is durable, with one exception: [`append`](Repository::append) and
//! [`partial`](Repository::partial) may return as soon as their order is fixed; a durable
//! `finish`, `release`, `checkpoint` or [`flush`](Repository::flush) of the attempt implies that
//! they are durable too.
//!
//! **Fences.** A verb that takes a [`Lease`] changes the unit only if the unit is leased (ASSIGNED,
//! PROCESSING, CANCEL_REQUESTED) under the fence of that lease. Otherwise it is
//! [`Stale`](RepositoryError::Stale) and nothing of the unit changes. A stale `finish` adds its
//! result and its charges to its own closed attempt, as a late report, and is `Stale` all the same.
//!
//! **The fence grows** by one with every claim and with every expiry, and never otherwise.
//!
//! **Send it again.** After any error that is not a [rejection](RepositoryError::is_rejection) the
//! caller does not know whether the change was made. It may send the same call again and gets the answer that
//! the first would have given: `insert` finds the same content, `start`, `finish` and `release` find their
//! own attempt as they would leave it, `append` says how many messages it follows. A claim whose answer
//! was lost is found by [`claimed`](Repository::claimed).
//!
//! **The journal** has one row for every change of a unit's status, written in the same transaction;
//! see [`JournalEntry`] for the rows that change no status. It is chained (see [`crate::chain`])
//! and never changed.
//!
//! **Order.** Larger priority first, then the order of insertion, never time. A retry keeps its place.
//!
//! **Time** comes from the repository's own [`Clock`](crate::clock::Clock). Callers pass durations.
//! A `not_before` that is further away than the delay it was set with is due: the calendar
//! was set back.
//!
//! **Content.** Two units of the same id are the same if type, payload, template and options are, and the
//! prompts do not differ (one that is missing differs from nothing). Priority, limits and times are not content.
//!
//! **Acceptance.** A unit belongs to the owner that inserted it as accepted, submitted it or claimed it last, through
//! retries and releases, until it ends, expires or is requeued, or the owner ends. Only then may others claim it.
//! A queue timeout runs only while a unit is accepted and was never claimed.
//!
//! **Workers.** A claim adds one to the load of its worker, whose row it creates if need be; whatever ends the
//! attempt takes it off again, adds the execution time, and counts: COMPLETED as completed; FAILED,
//! TIMED_OUT and LOST as failed.
//!
//! **Sweeps** work in the order of unit keys. [`claim`](Repository::claim) takes back only leases that ran
//! out, of its own job, whose units can be claimed again at once: what ends a unit is left
//! to [`expire`](Repository::expire), which reports it.
//!
//! **Pages.** What can be long is read in pages, bounded in number and in bytes. A page may be shorter than
//! asked for; the end is where [`Page::next`] is `None`. Each call sees one consistent state.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attempt::{Attempt, AttemptKey, AttemptReport, AttemptResult, Beginning, Progress};
use crate::chain::Hash;
use crate::conversation::{Message, StoredMessage};
pub use crate::error::RepositoryError;
use crate::job::{Job, JobId, NewJob};
use crate::lease::{Claim, Held, Lease, NewOwner, Owner, OwnerId};
use crate::money::{Charge, Cost, Tokens};
use crate::unit::{Change, NewUnit, UnitId, UnitKey, UnitStatus, WorkUnit};
use crate::worker::{Worker, WorkerChange, WorkerId};

#[cfg(feature = "testing")]
pub mod conformance;
pub mod memory;
pub(crate) mod rules;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub mod sqlite;

/// What a repository answers.
pub type Result<T> = std::result::Result<T, RepositoryError>;

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

/// One row of the journal.
///
/// `change`, `from` and `to` are a step that [`UnitStatus::after`] allows. Two kinds of rows leave the
/// status as it is: a purge, and a late report.
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

/// Where a new unit belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// It waits for whoever pulls the job's units.
    Open,
    /// It waits for the pool that accepted it.
    AcceptedBy(OwnerId),
}

/// What became of a unit that was to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Insertion {
    /// It is new.
    Inserted(UnitKey),
    /// It was there with the same content. Nothing of it changed.
    AlreadyExists(UnitKey),
    /// The id was there with another content. Nothing of it changed.
    Conflict(UnitKey),
}

/// A worker that can take one unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Slot {
    /// The worker.
    pub worker_id: WorkerId,
    /// How many units it can work on at a time.
    pub capacity: u32,
}

impl Slot {
    /// A worker that takes one unit at a time.
    pub fn new(worker_id: WorkerId) -> Slot {
        Slot { worker_id, capacity: 1 }
    }

    /// A worker that takes several.
    pub fn with_capacity(worker_id: WorkerId, capacity: u32) -> Slot {
        Slot { worker_id, capacity }
    }
}

/// For whom units are claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimant {
    /// Who will hold the leases.
    pub owner: OwnerId,
    /// How long a lease lasts unless renewed.
    pub ttl: Duration,
    /// Names this request, so that its answer can be found if it was lost. Fresh for each request.
    pub token: i64,
}

impl Claimant {
    /// A claimant with a fresh token.
    pub fn new(owner: OwnerId, ttl: Duration) -> Claimant {
        let (token, _) = uuid::Uuid::new_v4().as_u64_pair();
        Claimant { owner, ttl, token: token.cast_signed() }
    }
}

/// Which pending units may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only those that the owner accepted.
    Accepted,
    /// Those, and the ones that nobody accepted and that have a prompt or a template.
    Pending,
}

/// A request for work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// Of which job.
    pub job_id: JobId,
    /// For whom.
    pub claimant: Claimant,
    /// Which units.
    pub scope: Scope,
    /// One for each unit that can be taken.
    pub slots: Vec<Slot>,
}

impl ClaimRequest {
    /// Asks for as many of a job's units as there are slots.
    pub fn new(job_id: JobId, claimant: Claimant, scope: Scope, slots: Vec<Slot>) -> ClaimRequest {
        ClaimRequest { job_id, claimant, scope, slots }
    }
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    /// It is claimed for the caller.
    Claimed(Box<Claim>),
    /// It is stored but not due; it will be claimed when it is.
    Waiting(Box<WorkUnit>),
    /// Somebody is working on it.
    Running(Box<WorkUnit>),
    /// It was finished before.
    Finished(Box<WorkUnit>),
}

/// What the end of an attempt did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Closed {
    /// The unit's status now.
    pub status: UnitStatus,
    /// What happened to the unit.
    pub change: Change,
    /// When it may be claimed again, if it may.
    pub not_before: Option<DateTime<Utc>>,
}

/// What a sweep did to a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Swept {
    /// The unit's job.
    pub job_id: JobId,
    /// The unit's key.
    pub unit: UnitKey,
    /// The unit's name.
    pub unit_id: UnitId,
    /// The attempt that was lost; `None` if it was waiting.
    pub attempt_number: Option<u32>,
    /// What happened.
    pub change: Change,
    /// The unit's status now.
    pub status: UnitStatus,
}

/// What became of a wish to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelAnswer {
    /// It was waiting, and is CANCELLED.
    Cancelled,
    /// It is being executed; its worker is asked to stop.
    Requested,
    /// Its worker was asked before.
    AlreadyRequested,
    /// It had ended. Nothing changed.
    AlreadyEnded(UnitStatus),
}

/// A person, or a program on its behalf, and why it interferes.
///
/// ```
/// use workcrew::repository::By;
///
/// let by = By::new("ada", "the input was wrong");
/// assert_eq!(by.reason.as_deref(), Some("the input was wrong"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
}

impl By {
    /// Somebody, for a reason.
    pub fn new(actor: impl Into<String>, reason: impl Into<String>) -> By {
        By { actor: actor.into(), reason: Some(reason.into()) }
    }

    /// Somebody who gives no reason.
    pub fn whom(actor: impl Into<String>) -> By {
        By { actor: actor.into(), reason: None }
    }
}

impl From<OwnerId> for By {
    fn from(owner: OwnerId) -> By {
        By::whom(owner.to_string())
    }
}

/// What a purge removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// Units whose contents are gone.
    pub units: u64,
    /// Messages whose contents are gone.
    pub messages: u64,
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
}

impl Costs {
    /// All of it.
    pub fn total(&self) -> Cost {
        self.by_model.iter().map(|model| model.cost).sum()
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

/// What can be read.
pub trait Archive: Send + Sync + fmt::Debug {
    /// A job by its id.
    fn job(&self, id: JobId) -> Result<Job>;

    /// A job by its name; `None` if there is none.
    fn job_named(&self, name: &str) -> Result<Option<Job>>;

    /// The jobs, in the order of creation; `after` is a job's id, 0 for the first page.
    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>>;

    /// A unit by its name.
    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit>;

    /// Units in the order of insertion; `after` is a unit's key, 0 for the first page.
    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>>;

    /// How many of a job's units are in each status.
    fn counts(&self, job_id: JobId) -> Result<Counts>;

    /// What a job, or everything, has cost.
    fn costs(&self, job_id: Option<JobId>) -> Result<Costs>;

    /// All attempts of a unit, in order.
    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>>;

    /// What an attempt left behind, apart from its conversation.
    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult>;

    /// What an attempt used, by model, in the order of their names.
    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>>;

    /// The conversation of an attempt; `after` is a message's number, 0 for the first page.
    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>>;

    /// The text of a message that is still being written.
    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>>;

    /// What the unit's attempts saved last.
    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>>;

    /// A unit's inputs as they are stored.
    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs>;

    /// The journal; `after` is a row's sequence number, 0 for the first page.
    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>>;

    /// The rows of the journal about one unit, in pages as above.
    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>>;

    /// The rows by which units ended, in pages as above: a feed of outcomes that survives every crash.
    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>>;

    /// All owners, in the order of registration.
    fn owners(&self) -> Result<Vec<Owner>>;

    /// The workers of an owner, by name; `after` is the last name of the page before, empty for the first.
    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>>;

    /// What the storage itself finds wrong with what it holds; empty if all is well. It may take long.
    fn integrity(&self) -> Result<Vec<String>>;
}

/// Who a journal row names when no owner and no person did it.
pub(crate) mod actor {
    /// Someone inserted a unit without owning it.
    pub(crate) const CALLER: &str = "caller";
    /// Found by [`expire`](super::Repository::expire) or by a claim.
    pub(crate) const SWEEP: &str = "sweep";
}

/// Why a lease was taken away, as the journal says it.
pub(crate) mod loss {
    pub(crate) const LEASE_RAN_OUT: &str = "the lease ran out";
    pub(crate) const OWNER_DIED: &str = "the owner died";
    pub(crate) const OTHER_BOOT: &str = "the machine was started again";
    pub(crate) const OWNER_ENDED: &str = "the owner ended";
    pub(crate) const WORKER_DIED: &str = "the worker died";
    pub(crate) const WORKER_TERMINATED: &str = "the worker terminated";
}

/// What can be changed. See the [module](self) for what holds for all of these.
pub trait Repository: Archive {
    /// Creates a job, or finds the one of this name with the same content.
    ///
    /// A job of this name with another content is a [`Conflict`](RepositoryError::Conflict).
    fn create_job(&self, job: &NewJob) -> Result<Job>;

    /// Inserts units as PENDING, and says of each what became of it. A unit that exists is never reset.
    ///
    /// All units of a call are stored together. An id that occurs twice in a call is found to exist the second time.
    fn insert(&self, job_id: JobId, units: &[NewUnit], intake: Intake) -> Result<Vec<Insertion>>;

    /// Inserts a unit and claims it, or attaches to the one that is there.
    ///
    /// | it is | answer |
    /// |---|---|
    /// | absent | inserted and claimed; if not due, [`Waiting`](Submitted::Waiting) |
    /// | there with another content or another prompt | [`Conflict`](RepositoryError::Conflict) |
    /// | PENDING and due | accepted and claimed; if it had no prompt, this one is stored |
    /// | PENDING, not due | accepted: [`Waiting`](Submitted::Waiting) |
    /// | leased | [`Running`](Submitted::Running) |
    /// | ended | [`Finished`](Submitted::Finished) |
    fn submit(&self, job_id: JobId, unit: &NewUnit, claimant: &Claimant, slot: &Slot) -> Result<Submitted>;

    /// Claims due units, as many as there are slots; the first goes to the first slot.
    ///
    /// With [`Scope::Pending`], finding too few that wait, it first takes back what ran out.
    /// It fails as a whole if a slot's worker is in no status to take a unit.
    fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>>;

    /// What the request with this token was granted, as far as it is still held.
    fn claimed(&self, owner: OwnerId, token: i64) -> Result<Vec<Claim>>;

    /// ASSIGNED → PROCESSING. While a cancel is requested it is `Ok` and changes nothing of the status.
    fn start(&self, lease: &Lease, beginning: &Beginning) -> Result<()>;

    /// Adds messages behind the first `follows` ones of the attempt.
    ///
    /// Messages that are already there are not added again. Behind a gap they are not taken, which is
    /// [`Invalid`](RepositoryError::Invalid) and counts them as lost.
    ///
    /// It may return before the messages are durable; then such an error is told by the next verb that waits.
    fn append(&self, lease: &Lease, follows: u32, messages: &[Message]) -> Result<()>;

    /// Replaces the text of the message that is being written; an empty text removes it.
    ///
    /// If the attempt ends before `append` brings the whole message, what is there is
    /// added to the conversation as a partial message of the assistant.
    fn partial(&self, lease: &Lease, text: &str) -> Result<()>;

    /// Waits until everything appended so far is durable, and tells if the lease, or any message, was lost.
    fn flush(&self, lease: &Lease) -> Result<()>;

    /// Records what became known while the attempt runs.
    fn progress(&self, lease: &Lease, progress: &Progress) -> Result<()>;

    /// Saves what the next attempt should start from.
    fn checkpoint_at(&self, lease: &Lease, value: &Value) -> Result<()>;

    /// Ends an attempt, and the unit with it unless another attempt may follow.
    ///
    /// A retry that the unit has no attempt left for is a failure. After a cancel request
    /// every ending makes the unit CANCELLED; the result stays on the attempt. A unit that
    /// was never started cannot complete.
    fn finish(&self, lease: &Lease, report: &AttemptReport) -> Result<Closed>;

    /// Gives a unit back as PENDING. It counts as no attempt, a hundred times.
    fn release(&self, lease: &Lease, after: Option<Duration>, reason: &str) -> Result<Closed>;

    /// Extends all leases of an owner, and tells which it still holds and which are to be cancelled.
    ///
    /// A lease that ran out but was not taken by anybody is extended too.
    fn renew(&self, owner: OwnerId, ttl: Duration) -> Result<Vec<Held>>;

    /// Takes back at most `limit` of what nobody looks after any more.
    ///
    /// First leases that ran out, or whose owner is provably dead or of another boot: the attempt is LOST. Then units
    /// whose queue timeout passed: FAILED. Owners that are dead or of another boot and hold nothing any
    /// more are ended as by [`end_owner`](Repository::end_owner).
    fn expire(&self, limit: usize) -> Result<Vec<Swept>>;

    /// Cancels a unit: at once if it waits, through its worker if it is being executed.
    fn cancel(&self, job_id: JobId, id: &str, by: &By) -> Result<CancelAnswer>;

    /// FAILED or CANCELLED → PENDING, with all its attempts kept and a fresh count. What was purged cannot be requeued.
    fn requeue(&self, job_id: JobId, id: &str, by: &By) -> Result<()>;

    /// Registers an owner; the same instance twice is one owner.
    fn register_owner(&self, owner: &NewOwner) -> Result<OwnerId>;

    /// Ends an owner. What it accepted waits for anybody, without a queue timeout.
    ///
    /// Leases it still holds are taken back as LOST, workers of its that have not ended are DEAD. Ending it twice is `Ok`.
    fn end_owner(&self, owner: OwnerId) -> Result<()>;

    /// Changes the status of a worker, which [`Start`](WorkerChange::Start) creates.
    ///
    /// When it ends, what it still holds is resolved in the same step: given back if it terminates, LOST if it dies.
    fn change_worker(&self, owner: OwnerId, job_id: JobId, slot: &Slot, change: WorkerChange) -> Result<Worker>;

    /// Removes the contents of units that ended before a time: payload, prompts, checkpoints, messages, results.
    ///
    /// Hashes, links, costs and the journal stay, which gets a row for each unit. One call takes at most
    /// [`PURGE_LIMIT`] units; call until it removes nothing.
    fn purge(&self, before: DateTime<Utc>, by: &By) -> Result<Purged>;
}
