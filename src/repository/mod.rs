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
//! **A lease lasts** from when it is granted or renewed, not from when that was asked for: who renewed counts on all its leases since it
//! asked, also on those whose claims the renewal has overtaken.
//!
//! **The fence grows** by one with every claim and with every expiry, and never otherwise.
//!
//! **Send it again.** After any error that is not a [rejection](RepositoryError::is_rejection) the
//! caller does not know whether the change was made. It may send the same call again: the change is made once,
//! and the answer tells. `create_job`, `change_job`, `register_owner`, `tell`, `start`, `append`, `checkpoint_at`, `progress`, `finish` and `release`
//! answer as the first call would have (though without `not_before`); `insert` and `cancel` say that it was so already,
//! and `let_go` and `requeue_all` count what there was left to do;
//! `requeue`, `requeue_unchanged` and `change_worker` are rejected with the status that they would have brought about. A claim whose answer was
//! lost is found by [`claimed`](Repository::claimed), what an expiry did in the journal.
//!
//! **The journal** has one row for every change of a unit's status, written in the same transaction;
//! see [`JournalEntry`] for the rows that change no status. It is chained (see [`crate::chain`])
//! and never changed.
//!
//! **Jobs** have a journal of their own, chained as well: one row when a job is made and one for each change of it, in the same transaction,
//! with all that it is from then on.
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
//! retries and releases, until its attempt ends it or expires, it is requeued, or the owner ends or, while the unit waits,
//! [lets it go](Repository::let_go) or falls silent where nobody can see it. Only then may others claim it; but while it waits, to submit it by its name, or to
//! insert it as accepted, takes it over. What ends while it waits, cancelled or by its queue timeout, keeps the name of the owner
//! that had accepted it: this one tells of its end, and nobody else. A queue timeout runs only while a unit is accepted and was never claimed: since it
//! was first inserted as accepted by its owner, and until anybody submits it.
//!
//! **Prompts.** A unit that was inserted without a prompt takes the first one that it is submitted or accepted with while it
//! waits. A row of the journal, [`AddPrompt`](crate::unit::Change::AddPrompt), has the hash of the inputs with it.
//!
//! **Starting.** A claim of a claimant that is [`starting`](Claimant::starting) also starts, in the same step, the units that
//! have a prompt of their own, be it the one that was just submitted: the record is that of a claim followed at once by a
//! [`start`](Repository::start) with this provenance and no rendered prompt, and the claim tells of a unit that is PROCESSING.
//! A unit whose prompt must be rendered first stays ASSIGNED.
//!
//! **Budgets.** A job with a [budget](NewJob::budget), and an [owner](NewOwner::budget) with one, has an account (see [`crate::limits`]). A claim
//! reserves in the accounts that it counts for what the attempt is [expected](Claimant::expecting) to cost; whatever ends the attempt frees that,
//! and counts what it was charged. In whatever order its turns are, a claim stops before the first unit for which there is not enough; if that
//! would be the very first, and nothing was taken back for it, the claim is [`OverBudget`](RepositoryError::OverBudget). A
//! [submission](Repository::submit) for which there is not enough is stored and waits. An attempt that is LOST is charged, marked as estimated, what of
//! the expected it has not told; if it tells later, that counts instead. Where no budget counts nothing is expected.
//!
//! **Turns.** Before a provider is asked an attempt [takes a turn](Repository::take_turn), which counts for all owners that work under limits of the
//! same provider (see [`crate::limits`]). While a provider is [held](Repository::hold) there are none, whatever the limits are. Both are measured
//! by the machine's clock, not by the calendar; turns do not outlive a restart of the machine, holds do. Where there are many machines, the clock of leases
//! measures both, and no restart ends either.
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
use serde_json::Value;

pub use self::health::Health;
pub use self::requests::{
    Backlog, By, CancelAnswer, ClaimRequest, Claimant, Closed, Insertion, Intake, News, Purged, Requeued, Scope, Slot,
    Submitted, Swept,
};
pub use self::views::{
    AttemptSummary, Costs, Counts, JobEntry, JournalEntry, LeaseView, MESSAGE_LIMIT_BYTES, ModelCost, PAGE_LIMIT,
    PAGE_LIMIT_BYTES, PARTIAL_LIMIT_BYTES, PURGE_LIMIT, Page, STATE_LIMIT_BYTES, Staleness, StoredInputs, UnitFilter,
    UnitSummary,
};
use crate::attempt::{Attempt, AttemptKey, AttemptReport, AttemptResult, Beginning, Progress};
use crate::conversation::{Message, StoredMessage};
pub use crate::error::RepositoryError;
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::lease::{Backpressure, Claim, Held, Lease, NewOwner, Owner, OwnerId, OwnerState};
use crate::limits::{Account, AccountHolder, Ask, NewHold, ProviderHold, RateLimits, Turn};
use crate::money::Charge;
use crate::unit::{NewUnit, UnitKey, WorkUnit};
use crate::worker::{Worker, WorkerChange};

#[cfg(feature = "testing")]
pub mod conformance;
mod health;
mod listeners;
pub mod memory;
#[cfg(feature = "postgres")]
pub mod postgres;
#[cfg(any(feature = "sqlite", feature = "sqlite-system", feature = "postgres"))]
mod prepared;
mod requests;
pub(crate) mod rules;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub mod sqlite;
mod views;
#[cfg(any(feature = "sqlite", feature = "sqlite-system", feature = "postgres"))]
mod writer;

/// What a repository answers.
pub type Result<T> = std::result::Result<T, RepositoryError>;

/// What can be read.
pub trait Archive: Send + Sync + fmt::Debug {
    /// A job by its id.
    fn job(&self, id: JobId) -> Result<Job>;

    /// A job by its name; `None` if there is none.
    fn job_named(&self, name: &str) -> Result<Option<Job>>;

    /// The jobs, in the order of creation; `after` is a job's id, 0 for the first page.
    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>>;

    /// The journal of jobs; `after` is a row's sequence number, 0 for the first page.
    ///
    /// A store that is only read and was written before there was one gives what it would be once it is brought up to date: a row for each job.
    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>>;

    /// A unit by its name.
    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit>;

    /// Units in the order of insertion; `after` is a unit's key, 0 for the first page.
    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>>;

    /// The same units without their contents, each with its attempts and their bills: for whoever goes through all of them.
    fn summaries(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<UnitSummary>> {
        let page = self.units(filter, after, limit)?;
        let summary = |unit: WorkUnit| {
            let bill = |attempt: Attempt| Ok(AttemptSummary { charges: self.charges(attempt.key)?, attempt });
            let attempts = self.attempts(unit.key)?.into_iter().map(bill).collect::<Result<_>>()?;
            Ok(UnitSummary::of(unit, attempts))
        };
        Ok(Page { items: page.items.into_iter().map(summary).collect::<Result<_>>()?, next: page.next })
    }

    /// What is left of a budget; `None` if there is none. A repository that keeps no budgets has none.
    fn account(&self, holder: AccountHolder) -> Result<Option<Account>> {
        let _ = holder;
        Ok(None)
    }

    /// The providers that are not to be asked now, by name. A repository that keeps no holds has none.
    fn holds(&self) -> Result<Vec<ProviderHold>> {
        Ok(Vec::new())
    }

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

    /// What is being executed, of a job or of all, in the order of unit keys; `after` is a unit's key, 0 for the first page.
    ///
    /// That is every unit that is leased, also if its lease is [stale](LeaseView::is_stale): a lease is held until
    /// somebody takes it back, which [`expire`](Repository::expire) does. Time is that of this archive's clock, read once
    /// for a page. [`audit::questions`](crate::audit::questions) goes through the pages.
    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>>;

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
    /// Found when a store was brought up to date.
    #[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
    pub(crate) const MIGRATION: &str = "migration";
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

/// How many units [`requeue_all`](Repository::requeue_all) looks at before it brings them back: few, so that what was found of
/// them is seldom no longer so.
const REQUEUE_PAGE: usize = 100;

/// What can be changed. See the [module](self) for what holds for all of these.
pub trait Repository: Archive {
    /// Creates a job, or finds the one of this name with the same content, which is what it was created with or what it has become.
    ///
    /// A job of this name with another content is a [`Conflict`](RepositoryError::Conflict).
    fn create_job(&self, job: &NewJob) -> Result<Job>;

    /// Changes what of a job can be changed, and tells what it is now.
    ///
    /// It gets a row in the [journal of jobs](Archive::job_journal), unless it was so already. What the units are is fixed: a template cannot be
    /// changed. Settings that cannot be read again are [`Invalid`](RepositoryError::Invalid), and a job that is not what the journal of jobs says is
    /// [`Corrupt`](RepositoryError::Corrupt): a row about it would vouch for what somebody else has altered.
    ///
    /// ```
    /// use workcrew::repository::By;
    /// use workcrew::{Archive, JobChange, MemoryRepository, Money, NewJob, Repository};
    ///
    /// let repository = MemoryRepository::new();
    /// let job = repository.create_job(&NewJob::named("pages").budget(Money::from_nanos(1_000_000_000)))?;
    /// let more = JobChange::default().budget(Money::from_nanos(5_000_000_000));
    /// repository.change_job(job.id, &more, &By::new("ada", "the rest is worth it"))?;
    ///
    /// let last = repository.job_journal(0, 10)?.items.pop().expect("it was made and changed");
    /// assert_eq!((last.seq, &*last.actor, last.budget), (2, "ada", Some(Money::from_nanos(5_000_000_000))));
    /// # Ok::<(), workcrew::RepositoryError>(())
    /// ```
    fn change_job(&self, job_id: JobId, change: &JobChange, by: &By) -> Result<Job>;

    /// Inserts units as PENDING, and says of each what became of it. A unit that exists is never reset.
    ///
    /// | it is | answer |
    /// |---|---|
    /// | absent | [`Inserted`](Insertion::Inserted) |
    /// | there with another content or another prompt | [`Conflict`](Insertion::Conflict); nothing of it changes |
    /// | PENDING | [`AlreadyExists`](Insertion::AlreadyExists); with [`AcceptedBy`](Intake::AcceptedBy) the owner accepts it |
    /// | leased or ended | [`AlreadyExists`](Insertion::AlreadyExists); nothing of it changes |
    ///
    /// Whoever accepts a PENDING unit takes it over. If it had no prompt, this one is stored; if it was never claimed, its
    /// queue timeout is that of this call and begins now, unless one is running for the same owner. All else stays.
    ///
    /// All units of a call are stored together. An id that occurs twice in a call is found to exist the second time.
    fn insert(&self, job_id: JobId, units: &[NewUnit], intake: Intake) -> Result<Vec<Insertion>>;

    /// Stores a unit for whoever pulls the job's units, without a pool of one's own.
    ///
    /// That is an [`insert`](Repository::insert) with [`Intake::Open`] of one unit, under the id that the caller chose. To
    /// send it again finds that it [exists](Insertion::AlreadyExists), whatever became of it meanwhile; a unit of this
    /// id with another content or prompt is a [`Conflict`](RepositoryError::Conflict), and an id that is none is
    /// [`Invalid`](RepositoryError::Invalid).
    ///
    /// ```
    /// use workcrew::repository::Insertion;
    /// use workcrew::{Archive, MemoryRepository, NewJob, NewUnit, Repository, RepositoryError, UnitStatus};
    ///
    /// let repository = MemoryRepository::new();
    /// let job = repository.create_job(&NewJob::named("reviews"))?.id;
    /// let unit = NewUnit::new("run-7").prompt("Review it.").workspace_dir("/srv/run-7").max_iterations(20);
    ///
    /// let key = match repository.queue_unit(job, &unit)? {
    ///     Insertion::Inserted(key) => key,
    ///     found => panic!("it is new: {found:?}"),
    /// };
    /// assert_eq!(repository.queue_unit(job, &unit)?, Insertion::AlreadyExists(key));
    /// assert_eq!(repository.unit(job, "run-7")?.status, UnitStatus::Pending);
    ///
    /// let other = repository.queue_unit(job, &unit.prompt("Review something else."));
    /// assert!(matches!(other, Err(RepositoryError::Conflict { .. })));
    /// # Ok::<(), RepositoryError>(())
    /// ```
    fn queue_unit(&self, job_id: JobId, unit: &NewUnit) -> Result<Insertion> {
        let answers = self.insert(job_id, std::slice::from_ref(unit), Intake::Open)?;
        match answers[..] {
            [Insertion::Conflict(_)] => Err(rules::inserted_otherwise(&unit.id)),
            [answer] => Ok(answer),
            _ => Err(RepositoryError::storage(format!("an insert of one unit got {} answers", answers.len()))),
        }
    }

    /// Stores units as [`queue_unit`](Repository::queue_unit) does, all of them together or none, and says of each what
    /// became of it.
    ///
    /// Here a unit of the same id with another content is an answer among the others,
    /// [`Insertion::Conflict`], and the rest is stored. An id that is none refuses all.
    fn queue_units(&self, job_id: JobId, units: &[NewUnit]) -> Result<Vec<Insertion>> {
        self.insert(job_id, units, Intake::Open)
    }

    /// Inserts a unit and claims it, or attaches to the one that is there.
    ///
    /// | it is | answer |
    /// |---|---|
    /// | absent | inserted and claimed; if not due, [`Waiting`](Submitted::Waiting) |
    /// | there with another content or another prompt | [`Conflict`](RepositoryError::Conflict) |
    /// | PENDING and due | accepted and claimed |
    /// | PENDING, not due, or absent or PENDING and over [budget](self) | stored and accepted: [`Waiting`](Submitted::Waiting) |
    /// | leased | [`Running`](Submitted::Running) |
    /// | ended | [`Finished`](Submitted::Finished) |
    ///
    /// If a PENDING unit had no prompt, this one is stored. Which unit the slot is [for](Slot::unit) means nothing here.
    fn submit(&self, job_id: JobId, unit: &NewUnit, claimant: &Claimant, slot: &Slot) -> Result<Submitted>;

    /// Claims due units, as many as there are slots; the first goes to the first slot.
    ///
    /// Unless only what the owner [accepted](Scope::Accepted) is claimed, finding too few that wait it first takes back what ran out; in the
    /// [open](Scope::Open) scope nothing of the owner's own, which may be about to renew it.
    /// It fails as a whole if a slot's worker is in no status to take a unit.
    ///
    /// A slot that is [for a unit](Slot::unit) gets this one or nothing:
    ///
    /// | the unit | the slot gets |
    /// |---|---|
    /// | may be claimed by this request | the unit, whoever's turn it is |
    /// | has a lease that ran out and that this request may take back to claim the unit at once | the same |
    /// | is not due, waited too long, is leased, has ended, belongs to another owner or job, or never was | nothing, which is no error |
    /// | went to an earlier slot | nothing |
    ///
    /// The other slots take what is next among the units that no slot is for: they leave even those alone that their own
    /// slot cannot have. The claims come in the order of the slots; those that got nothing are left out.
    fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>>;

    /// What of a job is left to do for an owner that pulls, counting at most `limit` units that it could claim now.
    fn backlog(&self, job_id: JobId, owner: OwnerId, limit: usize) -> Result<Backlog>;

    /// The units that an owner accepted and that wait (PENDING), in the order of their keys; `after` is a unit's key, 0 for the first page.
    ///
    /// What a pool has waiting and does not find here was cancelled, or waited for too long, or went to somebody else.
    fn accepted(&self, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>>;

    /// Asks to be told what becomes of a job's units, until `hear` says `false`. It is called by whoever brought that about, after
    /// it is durable; it must not wait, nor call the repository.
    ///
    /// What other processes do need not be told, nor all of it. A repository that tells nothing at all is asked for its [backlog](Repository::backlog) every
    /// few seconds, and what is cancelled is found with the next [renewal](Repository::renew).
    fn listen(&self, _job_id: JobId, _hear: Box<dyn Fn(&News) -> bool + Send + Sync>) {}

    /// What the request with this token was granted, as far as it is still held, in the order of turns and not of slots.
    fn claimed(&self, owner: OwnerId, token: i64) -> Result<Vec<Claim>>;

    /// ASSIGNED → PROCESSING. What was started before, also by its claim, or is to be cancelled, is `Ok` and stays as it is.
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

    /// Takes the turn of an attempt to ask a provider, or says when to look again.
    ///
    /// The limits are those of the caller: all who work for a provider should have the same. To ask again after an error takes another turn, and
    /// so does every further request of an attempt. A repository that keeps no turns lets everybody ask.
    fn take_turn(&self, lease: &Lease, provider: &str, limits: &RateLimits, ask: &Ask) -> Result<Turn> {
        let _ = (lease, provider, limits, ask);
        Ok(Turn::Taken)
    }

    /// Keeps that a provider is not to be asked for a while. Of two holds the one that ends later counts.
    ///
    /// A repository that keeps no such thing has nothing to do.
    fn hold(&self, hold: &NewHold) -> Result<()> {
        let _ = hold;
        Ok(())
    }

    /// Ends the hold of a provider before its time, and says whether there was one.
    fn lift(&self, provider: &str) -> Result<bool> {
        let _ = provider;
        Ok(false)
    }

    /// Ends an attempt, and the unit with it unless another attempt may follow.
    ///
    /// A retry that the unit has no attempt left for is a failure. After a cancel request
    /// every ending makes the unit CANCELLED; the result stays on the attempt. A unit that
    /// was never started cannot complete.
    fn finish(&self, lease: &Lease, report: &AttemptReport) -> Result<Closed>;

    /// Gives a unit back as PENDING. It counts as no attempt, a hundred times.
    ///
    /// The reason stays in the journal for ever. What an executor says for people may quote a prompt: it belongs into the
    /// [progress](Repository::progress) of the attempt, where a purge can remove it.
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
    ///
    /// Of an owner in another pid namespace, and of one of another boot where a repository is for many machines, nobody can tell whether it lives:
    /// its leases run out. If it has not renewed for as long as its leases last, what
    /// it accepted and that waits is for anybody, as by [`let_go`](Repository::let_go); after a day, if it holds nothing, it is ended.
    fn expire(&self, limit: usize) -> Result<Vec<Swept>>;

    /// Cancels a unit: at once if it waits, through its worker if it is being executed.
    fn cancel(&self, job_id: JobId, id: &str, by: &By) -> Result<CancelAnswer>;

    /// FAILED or CANCELLED → PENDING, with all its attempts kept and a fresh count. What was purged cannot be requeued.
    fn requeue(&self, job_id: JobId, id: &str, by: &By) -> Result<()>;

    /// The same for a unit that was read, and only if it has not been brought back since: it may have ended badly once more.
    /// Then it is [`Illegal`](RepositoryError::Illegal).
    fn requeue_unchanged(&self, read: &WorkUnit, by: &By) -> Result<()>;

    /// [Requeues](Repository::requeue) the FAILED and CANCELLED units that a filter means, and counts them.
    ///
    /// It goes through the units once, in the order of insertion, so each is requeued at most once, also if it fails again
    /// meanwhile, and not at all if somebody else has brought it back first. A filter without a status means both; one that names any other is [`Invalid`](RepositoryError::Invalid), and
    /// nothing is done. What was purged, or has not ended badly any more when it is its turn, is skipped and counted.
    ///
    /// Each unit is a transaction of its own. An error ends it: what was requeued until then stays so, and the same call goes
    /// on with the rest.
    ///
    /// ```
    /// use workcrew::repository::{By, Intake, Repository, UnitFilter};
    /// use workcrew::{Archive, MemoryRepository, NewJob, NewUnit, UnitStatus};
    ///
    /// let repository = MemoryRepository::new();
    /// let job = repository.create_job(&NewJob::named("pages"))?.id;
    /// let by = By::new("ada", "the quota is back");
    /// for page in ["page-1", "page-2"] {
    ///     repository.queue_unit(job, &NewUnit::new(page).prompt("Summarise it."))?;
    ///     repository.cancel(job, page, &by)?;
    /// }
    ///
    /// let requeued = repository.requeue_all(&UnitFilter::job(job), &by)?;
    /// assert_eq!((requeued.units, requeued.skipped()), (2, 0));
    /// assert_eq!(repository.counts(job)?.pending, 2);
    /// assert!(repository.requeue_all(&UnitFilter::job(job).status(UnitStatus::Completed), &by).is_err());
    /// # Ok::<(), workcrew::RepositoryError>(())
    /// ```
    fn requeue_all(&self, filter: &UnitFilter, by: &By) -> Result<Requeued> {
        let filter = rules::to_requeue(filter)?;
        if let Some(job_id) = filter.job_id {
            self.job(job_id)?;
        }
        let (mut requeued, mut next) = (Requeued::default(), Some(0));
        while let Some(after) = next {
            let page = self.units(&filter, after, REQUEUE_PAGE)?;
            for unit in page.items {
                if unit.purged_at.is_some() {
                    requeued.purged += 1;
                    continue;
                }
                match self.requeue_unchanged(&unit, by) {
                    Ok(()) => requeued.units += 1,
                    Err(RepositoryError::Illegal { .. }) => requeued.changed += 1,
                    Err(error) => return Err(error),
                }
            }
            next = page.next;
        }
        Ok(requeued)
    }

    /// Registers an owner; the same instance twice is one owner.
    fn register_owner(&self, owner: &NewOwner) -> Result<OwnerId>;

    /// What an owner accepted and that waits (PENDING) waits for anybody from now on, without a queue timeout. Returns how many.
    ///
    /// What it executes stays its own, and so does what it accepts later. No status changes, so the journal gets no row.
    /// An owner that ended has nothing to let go, which is `Ok`; one that never was is
    /// [`UnknownOwner`](RepositoryError::UnknownOwner).
    fn let_go(&self, owner: OwnerId) -> Result<u64>;

    /// Keeps what an owner says of itself, and when, in place of what it said before. It is read with [`owners`](Archive::owners).
    ///
    /// An owner that has ended or never was is [`UnknownOwner`](RepositoryError::UnknownOwner), and a state that has more than
    /// [`STATE_LIMIT_BYTES`] as JSON is [`Invalid`](RepositoryError::Invalid). A repository that keeps no such thing has nothing to do.
    fn tell(&self, owner: OwnerId, state: &OwnerState) -> Result<()> {
        let _ = (owner, state);
        Ok(())
    }

    /// What of this process waits to be written; `None` if nothing ever does, or nobody knows. It may be asked often.
    fn backpressure(&self) -> Option<Backpressure> {
        None
    }

    /// Ends an owner. What it accepted waits for anybody, without a queue timeout, and what it said of itself is forgotten.
    ///
    /// Leases it still holds are taken back as LOST, workers of its that have not ended are DEAD. Ending it twice is `Ok`.
    fn end_owner(&self, owner: OwnerId) -> Result<()>;

    /// Changes the status of a worker, which [`Start`](WorkerChange::Start) creates.
    ///
    /// When it ends, what it still holds is resolved in the same step: given back if it terminates, LOST if it dies.
    /// Which unit the slot is [for](Slot::unit) means nothing here.
    fn change_worker(&self, owner: OwnerId, job_id: JobId, slot: &Slot, change: WorkerChange) -> Result<Worker>;

    /// Removes the contents of units that ended before a time: payload, prompts, checkpoints, messages, results, and what failures say
    /// for people, which may quote any of it.
    ///
    /// Hashes, links, costs, kinds of failure and the journal stay, which gets a row for each unit. One call takes at most
    /// [`PURGE_LIMIT`] units; call until it removes nothing. What is kept in files is not only let go of but written over there, and
    /// the last call tells if a trace may be left ([`Purged`]). What others have copied is out of its reach: backups, exports and reports,
    /// and the blocks that a file system, or a disk, has put aside.
    fn purge(&self, before: DateTime<Utc>, by: &By) -> Result<Purged>;

    /// The same for the units that a filter means, such as those of one job. Of a job that there is not it is
    /// [`UnknownJob`](RepositoryError::UnknownJob).
    ///
    /// A repository that does not provide it takes only the filter that means all, and is [`Invalid`](RepositoryError::Invalid)
    /// for any other: it never removes more than was meant.
    fn purge_where(&self, filter: &UnitFilter, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        match *filter == UnitFilter::default() {
            true => self.purge(before, by),
            false => Err(RepositoryError::Invalid("this repository can only purge all units that ended".to_owned())),
        }
    }
}
