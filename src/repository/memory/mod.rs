//! A repository in memory: the contract of [`Repository`] in its plainest form.
//!
//! It is for tests and for work whose record need not outlive the process, and it is what other
//! repositories are compared with. So it is written to be read, not to be fast: one lock around everything,
//! and most verbs look at every unit. A few ten thousand units are fine.
//!
//! Here are the types and what locks them; `store` has the records, `read` reads them, and the verbs
//! are in `intake`, `execution`, `sharing` and `upkeep`. A verb checks everything before it changes anything.

mod execution;
mod intake;
mod providers;
mod read;
mod sharing;
mod store;
mod upkeep;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use self::store::Store;
use super::listeners::Listeners;
use super::rules::{self, End};
use super::{
    Archive, Backlog, By, CancelAnswer, ClaimRequest, Claimant, Closed, Costs, Counts, Insertion, Intake, JobEntry,
    JournalEntry, LeaseView, News, Page, Purged, Repository, Result, Shared, Slot, StoredInputs, Submitted, Swept,
    UnitFilter,
};
use crate::attempt::{Attempt, AttemptKey, AttemptReport, AttemptResult, Beginning, Progress};
use crate::clock::{Clock, Moment, SystemClock};
use crate::conversation::{Message, StoredMessage};
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::lease::{Claim, Held, Lease, NewOwner, Owner, OwnerId, OwnerState};
use crate::limits::{Account, AccountHolder, Ask, NewHold, ProviderHold, RateLimits, Turn};
use crate::money::Charge;
use crate::same_work::WorkKey;
use crate::unit::{NewUnit, UnitKey, WorkUnit};
use crate::worker::{Worker, WorkerChange};

/// A repository that is gone when its last clone is. Clones share what they hold.
///
/// ```
/// use std::time::Duration;
/// use workcrew::clock::{Clock, SystemClock};
/// use workcrew::repository::{ClaimRequest, Claimant, Intake, Scope, Slot};
/// use workcrew::{
///     Archive, AttemptReport, Beginning, MemoryRepository, Message, NewJob, NewOwner, NewUnit, Process, Repository,
///     UnitStatus, WorkerId,
/// };
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("capitals"))?;
/// let unit = NewUnit::new("france").prompt("What is the capital of France?");
/// repository.insert(job.id, &[unit], Intake::Open)?;
///
/// let this_process = Process::this(&SystemClock.boot_id());
/// let owner = repository.register_owner(&NewOwner::new(this_process, "example"))?;
/// let claimant = Claimant::new(owner, Duration::from_secs(30));
/// let slots = vec![Slot::new(WorkerId::new("w1")?)];
/// let claims = repository.claim(&ClaimRequest::new(job.id, claimant, Scope::Pending, slots))?;
///
/// let lease = &claims[0].lease;
/// repository.start(lease, &Beginning::default())?;
/// repository.append(lease, 0, &[Message::assistant("Paris")])?;
/// repository.finish(lease, &AttemptReport::completed().output("Paris"))?;
///
/// let unit = repository.unit(job.id, "france")?;
/// assert_eq!(unit.status, UnitStatus::Completed);
/// assert_eq!(unit.output.as_deref(), Some("Paris"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryRepository {
    store: Arc<Mutex<Store>>,
    listeners: Arc<Listeners>,
    clock: Arc<dyn Clock>,
}

impl MemoryRepository {
    /// An empty repository with the machine's clock.
    pub fn new() -> MemoryRepository {
        MemoryRepository::with_clock(SystemClock)
    }

    /// An empty repository with a clock of one's own.
    pub fn with_clock(clock: impl Clock) -> MemoryRepository {
        MemoryRepository { store: Arc::default(), listeners: Arc::default(), clock: Arc::new(clock) }
    }

    fn store(&self) -> MutexGuard<'_, Store> {
        // A verb has checked everything before it changes anything, so there is nothing to be found half done.
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The store and the time, read once for the whole verb, when it is its turn.
    fn change<T>(&self, verb: impl FnOnce(&mut Store, Moment) -> T) -> T {
        let mut store = self.store();
        let now = self.clock.now();
        verb(&mut store, now)
    }
}

impl Default for MemoryRepository {
    fn default() -> MemoryRepository {
        MemoryRepository::new()
    }
}

impl fmt::Debug for MemoryRepository {
    /// Without what it holds: prompts and answers do not belong into a log.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryRepository").field("clock", &self.clock).finish_non_exhaustive()
    }
}

impl From<MemoryRepository> for Arc<dyn Archive> {
    fn from(repository: MemoryRepository) -> Arc<dyn Archive> {
        Arc::new(repository)
    }
}

impl From<MemoryRepository> for Arc<dyn Repository> {
    fn from(repository: MemoryRepository) -> Arc<dyn Repository> {
        Arc::new(repository)
    }
}

impl Archive for MemoryRepository {
    fn job(&self, id: JobId) -> Result<Job> {
        self.store().job(id).cloned()
    }

    fn job_named(&self, name: &str) -> Result<Option<Job>> {
        Ok(self.store().job_named(name))
    }

    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        self.store().jobs_page(after, limit)
    }

    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        self.store().job_journal_page(after, limit)
    }

    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit> {
        let store = self.store();
        store.unit_named(job_id, id).map(|unit| store.work_unit(unit))
    }

    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        self.store().units_page(filter, after, limit)
    }

    fn account(&self, holder: AccountHolder) -> Result<Option<Account>> {
        Ok(self.store().account(holder))
    }

    fn holds(&self) -> Result<Vec<ProviderHold>> {
        let (now, boot_id) = (self.clock.now(), self.clock.boot_id());
        Ok(self.store().provider_holds(now, &boot_id))
    }

    fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.store().counts(job_id)
    }

    fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        self.store().costs(job_id)
    }

    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>> {
        Ok(self.store().attempts(unit))
    }

    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        self.store().attempt_result(attempt)
    }

    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>> {
        Ok(self.store().charges(attempt))
    }

    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        self.store().messages(attempt, after, limit)
    }

    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>> {
        Ok(self.store().partial_text(attempt))
    }

    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>> {
        Ok(self.store().checkpoint(unit))
    }

    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        self.store().inputs(unit)
    }

    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.store().journal_page(after, limit, |_| true)
    }

    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.store().journal_page(after, limit, |row| row.unit == unit)
    }

    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.store().journal_page(after, limit, |row| row.to.is_terminal() && row.from != Some(row.to))
    }

    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>> {
        // Read first: what is renewed meanwhile must not look as if it had run out.
        let (now, boot_id) = (self.clock.now(), self.clock.boot_id());
        self.store().leases_page(job_id, after, limit, &boot_id, now)
    }

    fn owners(&self) -> Result<Vec<Owner>> {
        Ok(self.store().owners())
    }

    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>> {
        Ok(self.store().workers(owner, after, limit))
    }

    fn integrity(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }
}

impl Repository for MemoryRepository {
    fn create_job(&self, job: &NewJob) -> Result<Job> {
        self.change(|store, now| store.create_job(job, now))
    }

    fn change_job(&self, job_id: JobId, change: &JobChange, by: &By) -> Result<Job> {
        self.change(|store, now| store.change_job(job_id, change, by, now))
    }

    fn insert(&self, job_id: JobId, units: &[NewUnit], intake: Intake) -> Result<Vec<Insertion>> {
        let inserted = self.change(|store, now| store.insert(job_id, units, intake, now))?;
        if intake == Intake::Open {
            self.listeners.tell_of_new(job_id, &inserted);
        }
        Ok(inserted)
    }

    fn submit(&self, job_id: JobId, unit: &NewUnit, claimant: &Claimant, slot: &Slot) -> Result<Submitted> {
        self.change(|store, now| store.submit(job_id, unit, claimant, slot, now))
    }

    fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        self.change(|store, now| store.claim(request, now))
    }

    fn backlog(&self, job_id: JobId, owner: OwnerId, limit: usize) -> Result<Backlog> {
        let now = self.clock.now();
        self.store().backlog(job_id, owner, limit, now)
    }

    fn accepted(&self, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>> {
        self.store().accepted_page(owner, after, limit)
    }

    fn listen(&self, job_id: JobId, hear: Box<dyn Fn(&News) -> bool + Send + Sync>) {
        self.listeners.add(job_id, hear);
    }

    fn claimed(&self, owner: OwnerId, token: i64) -> Result<Vec<Claim>> {
        Ok(self.store().claimed(owner, token))
    }

    fn start(&self, lease: &Lease, beginning: &Beginning) -> Result<()> {
        self.change(|store, now| store.start(lease, beginning, now))
    }

    fn append(&self, lease: &Lease, follows: u32, messages: &[Message]) -> Result<()> {
        self.change(|store, now| store.append(lease, follows, messages, now))
    }

    fn partial(&self, lease: &Lease, text: &str) -> Result<()> {
        self.store().partial(lease, text)
    }

    fn flush(&self, lease: &Lease) -> Result<()> {
        self.store().flush(lease)
    }

    fn progress(&self, lease: &Lease, progress: &Progress) -> Result<()> {
        self.store().progress(lease, progress)
    }

    fn checkpoint_at(&self, lease: &Lease, value: &Value) -> Result<()> {
        self.store().checkpoint_at(lease, value)
    }

    fn take_turn(&self, lease: &Lease, provider: &str, limits: &RateLimits, ask: &Ask) -> Result<Turn> {
        rules::check_turn(provider, limits)?;
        let boot_id = self.clock.boot_id();
        self.change(|store, now| store.take_turn(lease, provider, limits, ask, now, &boot_id))
    }

    fn hold(&self, hold: &NewHold) -> Result<()> {
        rules::check_provider(&hold.provider)?;
        let boot_id = self.clock.boot_id();
        self.change(|store, now| store.hold(hold, now, &boot_id));
        Ok(())
    }

    fn lift(&self, provider: &str) -> Result<bool> {
        let boot_id = self.clock.boot_id();
        Ok(self.change(|store, now| store.lift(provider, now, &boot_id)))
    }

    fn share(&self, lease: &Lease, key: &WorkKey) -> Result<Shared> {
        self.store().share(lease, key)
    }

    fn finish(&self, lease: &Lease, report: &AttemptReport) -> Result<Closed> {
        let closed = self.change(|store, now| store.finish(lease, report, now))?;
        self.listeners.tell_of_end(lease, &closed);
        Ok(closed)
    }

    fn release(&self, lease: &Lease, after: Option<Duration>, reason: &str) -> Result<Closed> {
        self.change(|store, now| store.release(lease, after, reason, now))
    }

    fn renew(&self, owner: OwnerId, ttl: Duration) -> Result<Vec<Held>> {
        self.change(|store, now| store.renew(owner, ttl, now))
    }

    fn expire(&self, limit: usize) -> Result<Vec<Swept>> {
        let boot_id = self.clock.boot_id();
        let swept = self.change(|store, now| store.expire(limit, &boot_id, now));
        self.listeners.tell(&News::Queued, |job_id| swept.iter().any(|swept| swept.job_id == job_id));
        Ok(swept)
    }

    fn cancel(&self, job_id: JobId, id: &str, by: &By) -> Result<CancelAnswer> {
        let (unit, answer) = self.change(|store, now| store.cancel(job_id, id, by, now))?;
        self.listeners.tell_of_cancel(job_id, unit, id, answer);
        Ok(answer)
    }

    fn requeue(&self, job_id: JobId, id: &str, by: &By) -> Result<()> {
        self.change(|store, now| store.requeue(job_id, id, None, by, now))?;
        self.listeners.tell_of_queued(job_id);
        Ok(())
    }

    fn requeue_unchanged(&self, read: &WorkUnit, by: &By) -> Result<()> {
        let (job_id, id) = (read.job_id, read.id.as_str());
        self.change(|store, now| store.requeue(job_id, id, Some(End::of(read)), by, now))?;
        self.listeners.tell_of_queued(job_id);
        Ok(())
    }

    fn register_owner(&self, owner: &NewOwner) -> Result<OwnerId> {
        Ok(self.change(|store, now| store.register_owner(owner, now)))
    }

    fn let_go(&self, owner: OwnerId) -> Result<u64> {
        let let_go = self.store().let_go(owner)?;
        self.listeners.tell(&News::Queued, |_| let_go > 0);
        Ok(let_go)
    }

    fn tell(&self, owner: OwnerId, state: &OwnerState) -> Result<()> {
        rules::state_json(state)?;
        self.change(|store, now| store.tell(owner, state, now))
    }

    fn end_owner(&self, owner: OwnerId) -> Result<()> {
        self.change(|store, now| store.end_owner(owner, now))?;
        self.listeners.tell(&News::Queued, |_| true);
        Ok(())
    }

    fn change_worker(&self, owner: OwnerId, job_id: JobId, slot: &Slot, change: WorkerChange) -> Result<Worker> {
        let worker = self.change(|store, now| store.change_worker(owner, job_id, slot, change, now))?;
        self.listeners.tell_of_worker(job_id, change);
        Ok(worker)
    }

    fn purge(&self, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        self.purge_where(&UnitFilter::default(), before, by)
    }

    fn purge_where(&self, filter: &UnitFilter, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        self.change(|store, now| store.purge(filter, before, by, now))
    }
}

#[cfg(test)]
mod tests;
