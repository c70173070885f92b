//! For tests, ours and yours: a repository that fails on demand, and points at which the process dies.
//!
//! A [`FaultyRepository`] stands before a real one and fails as planned, verb by verb.
//! [Fault points](point) sit inside the storage; [`arm`] one in a child process, let it
//! die there, and look at what is left. Whether a repository keeps its contract at all is
//! shown by [`repository::conformance`](crate::repository::conformance).

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::attempt::{Attempt, AttemptKey, AttemptReport, AttemptResult, Beginning, Progress};
use crate::conversation::{Message, StoredMessage};
pub use crate::fault::{Action, ENVIRONMENT_VARIABLE, Stage, arm, arm_from_environment, disarm_all, point};
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::lease::{Backpressure, Claim, Held, Lease, NewOwner, Owner, OwnerId, OwnerState};
use crate::limits::{Account, AccountHolder, Ask, NewHold, ProviderHold, RateLimits, Turn};
use crate::money::Charge;
use crate::repository::{
    Archive, Backlog, By, CancelAnswer, ClaimRequest, Claimant, Closed, Costs, Counts, Insertion, Intake, JobEntry,
    JournalEntry, LeaseView, News, Page, Purged, Repository, RepositoryError, Result, Shared, Slot, StoredInputs,
    Submitted, Swept, UnitFilter, UnitSummary,
};
use crate::same_work::WorkKey;
use crate::unit::{NewUnit, UnitKey, WorkUnit};
use crate::worker::{Worker, WorkerChange};

/// The verbs of a [`Repository`]. Everything of an [`Archive`] is one: [`Read`](Verb::Read).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(missing_docs, reason = "each is the method of its name")]
pub enum Verb {
    CreateJob,
    ChangeJob,
    Insert,
    Submit,
    Claim,
    Backlog,
    Accepted,
    Claimed,
    Start,
    Append,
    Partial,
    Flush,
    Progress,
    CheckpointAt,
    Finish,
    Release,
    Renew,
    Expire,
    Cancel,
    Requeue,
    RegisterOwner,
    LetGo,
    Tell,
    EndOwner,
    ChangeWorker,
    Purge,
    TakeTurn,
    Hold,
    Share,
    Read,
}

/// How a verb goes wrong.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The next call fails, and changes nothing.
    ErrorOnce,
    /// Every call fails and changes nothing, until [healed](FaultyRepository::heal).
    ErrorAlways,
    /// The next call is executed, and fails all the same: its answer was lost.
    ExecutedThenError,
    /// Calls wait in front of a gate, until the test opens it.
    Gate(Gate),
    /// Every call takes so much longer, until [healed](FaultyRepository::heal).
    Delay(Duration),
}

impl Fault {
    /// Whether it is over once it has struck a call.
    fn is_once(&self) -> bool {
        matches!(self, Fault::ErrorOnce | Fault::ExecutedThenError)
    }

    fn is_over(&self) -> bool {
        matches!(self, Fault::Gate(gate) if gate.is_open())
    }
}

/// Holds calls back until a test opens it. Its clones are the same gate.
///
/// ```
/// use workcrew::testing::Gate;
///
/// let gate = Gate::closed();
/// std::thread::scope(|threads| {
///     threads.spawn(|| gate.pass());
///     gate.wait_for(1);
///     gate.open();
/// });
/// ```
#[derive(Clone, Debug)]
pub struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Debug, Default)]
struct GateState {
    is_open: bool,
    arrived: u64,
}

impl Gate {
    /// A gate that nobody passes yet.
    pub fn closed() -> Gate {
        Gate(Arc::default())
    }

    /// Lets everybody pass, now and later.
    pub fn open(&self) {
        self.state().is_open = true;
        self.0.1.notify_all();
    }

    /// Whether it was opened.
    pub fn is_open(&self) -> bool {
        self.state().is_open
    }

    /// Waits until it is open.
    pub fn pass(&self) {
        let mut state = self.state();
        state.arrived += 1;
        self.0.1.notify_all();
        drop(self.wait_while(state, |state| !state.is_open));
    }

    /// Waits until so many have arrived in front of it.
    pub fn wait_for(&self, arrivals: u64) {
        drop(self.wait_while(self.state(), |state| state.arrived < arrivals));
    }

    fn wait_while<'a>(
        &'a self,
        state: MutexGuard<'a, GateState>,
        condition: impl Fn(&GateState) -> bool,
    ) -> MutexGuard<'a, GateState> {
        self.0.1.wait_while(state, |state| condition(state)).unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, GateState> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A repository that fails as a test planned it, and otherwise does what the one behind it does.
///
/// Faults of one verb strike in the order in which they were planned, one per call; those that last
/// hide the ones behind them.
///
/// ```
/// use std::sync::Arc;
/// use workcrew::testing::{Fault, FaultyRepository, Verb};
/// use workcrew::{Archive, MemoryRepository, NewJob, Repository};
///
/// let repository = FaultyRepository::new(Arc::new(MemoryRepository::new()));
/// repository.on(Verb::CreateJob, Fault::ExecutedThenError);
///
/// let job = NewJob::named("summaries");
/// assert!(!repository.create_job(&job).unwrap_err().is_rejection());
/// assert!(repository.job_named("summaries")?.is_some());
/// repository.create_job(&job)?;
/// assert_eq!(repository.calls(Verb::CreateJob), 2);
/// # Ok::<(), workcrew::RepositoryError>(())
/// ```
#[derive(Debug)]
pub struct FaultyRepository {
    inner: Arc<dyn Repository>,
    error: fn() -> RepositoryError,
    is_silent: bool,
    plan: Mutex<Plan>,
}

#[derive(Debug, Default)]
struct Plan {
    faults: BTreeMap<Verb, VecDeque<Fault>>,
    calls: BTreeMap<Verb, u64>,
}

impl Plan {
    /// Counts a call, and says what is to go wrong with it.
    fn next(&mut self, verb: Verb) -> Option<Fault> {
        *self.calls.entry(verb).or_default() += 1;
        let faults = self.faults.get_mut(&verb)?;
        while faults.front().is_some_and(Fault::is_over) {
            faults.pop_front();
        }
        let fault = faults.front()?.clone();
        if fault.is_once() {
            faults.pop_front();
        }
        Some(fault)
    }
}

impl FaultyRepository {
    /// A repository in front of another, in which nothing goes wrong yet.
    pub fn new(inner: Arc<dyn Repository>) -> FaultyRepository {
        let error = || RepositoryError::storage("a fault that the test planned");
        FaultyRepository { inner, error, is_silent: false, plan: Mutex::default() }
    }

    /// Says which error planned faults give (a storage failure).
    pub fn error(mut self, error: fn() -> RepositoryError) -> FaultyRepository {
        self.error = error;
        self
    }

    /// Lets nobody hear what becomes of units, as if it were done by another process.
    pub fn silent(mut self) -> FaultyRepository {
        self.is_silent = true;
        self
    }

    /// Plans a fault of a verb, behind those that are planned for it already.
    pub fn on(&self, verb: Verb, fault: Fault) {
        self.plan().faults.entry(verb).or_default().push_back(fault);
    }

    /// Forgets what was planned for a verb.
    pub fn heal(&self, verb: Verb) {
        self.plan().faults.remove(&verb);
    }

    /// How often a verb was called, calls that failed included.
    pub fn calls(&self, verb: Verb) -> u64 {
        self.plan().calls.get(&verb).copied().unwrap_or_default()
    }

    /// Every verb goes through here.
    fn guarded<T>(&self, verb: Verb, call: impl FnOnce(&dyn Repository) -> Result<T>) -> Result<T> {
        let fault = self.plan().next(verb);
        match fault {
            None => {}
            Some(Fault::ErrorOnce | Fault::ErrorAlways) => return Err((self.error)()),
            Some(Fault::ExecutedThenError) => {
                // Whatever it was, nobody gets to know it.
                drop(call(&*self.inner));
                return Err((self.error)());
            }
            Some(Fault::Gate(gate)) => gate.pass(),
            Some(Fault::Delay(delay)) => std::thread::sleep(delay),
        }
        call(&*self.inner)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Archive for FaultyRepository {
    fn job(&self, id: JobId) -> Result<Job> {
        self.guarded(Verb::Read, |inner| inner.job(id))
    }

    fn job_named(&self, name: &str) -> Result<Option<Job>> {
        self.guarded(Verb::Read, |inner| inner.job_named(name))
    }

    fn holds(&self) -> Result<Vec<ProviderHold>> {
        self.guarded(Verb::Read, |inner| inner.holds())
    }

    fn account(&self, holder: AccountHolder) -> Result<Option<Account>> {
        self.guarded(Verb::Read, |inner| inner.account(holder))
    }

    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        self.guarded(Verb::Read, |inner| inner.jobs(after, limit))
    }

    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        self.guarded(Verb::Read, |inner| inner.job_journal(after, limit))
    }

    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit> {
        self.guarded(Verb::Read, |inner| inner.unit(job_id, id))
    }

    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        self.guarded(Verb::Read, |inner| inner.units(filter, after, limit))
    }

    fn summaries(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<UnitSummary>> {
        self.guarded(Verb::Read, |inner| inner.summaries(filter, after, limit))
    }

    fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.guarded(Verb::Read, |inner| inner.counts(job_id))
    }

    fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        self.guarded(Verb::Read, |inner| inner.costs(job_id))
    }

    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>> {
        self.guarded(Verb::Read, |inner| inner.attempts(unit))
    }

    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        self.guarded(Verb::Read, |inner| inner.attempt_result(attempt))
    }

    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>> {
        self.guarded(Verb::Read, |inner| inner.charges(attempt))
    }

    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        self.guarded(Verb::Read, |inner| inner.messages(attempt, after, limit))
    }

    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>> {
        self.guarded(Verb::Read, |inner| inner.partial_text(attempt))
    }

    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>> {
        self.guarded(Verb::Read, |inner| inner.checkpoint(unit))
    }

    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        self.guarded(Verb::Read, |inner| inner.inputs(unit))
    }

    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.guarded(Verb::Read, |inner| inner.journal(after, limit))
    }

    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.guarded(Verb::Read, |inner| inner.unit_journal(unit, after, limit))
    }

    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.guarded(Verb::Read, |inner| inner.outcomes_since(after, limit))
    }

    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>> {
        self.guarded(Verb::Read, |inner| inner.leases(job_id, after, limit))
    }

    fn owners(&self) -> Result<Vec<Owner>> {
        self.guarded(Verb::Read, |inner| inner.owners())
    }

    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>> {
        self.guarded(Verb::Read, |inner| inner.workers(owner, after, limit))
    }

    fn integrity(&self) -> Result<Vec<String>> {
        self.guarded(Verb::Read, |inner| inner.integrity())
    }
}

impl Repository for FaultyRepository {
    fn create_job(&self, job: &NewJob) -> Result<Job> {
        self.guarded(Verb::CreateJob, |inner| inner.create_job(job))
    }

    fn change_job(&self, job_id: JobId, change: &JobChange, by: &By) -> Result<Job> {
        self.guarded(Verb::ChangeJob, |inner| inner.change_job(job_id, change, by))
    }

    fn insert(&self, job_id: JobId, units: &[NewUnit], intake: Intake) -> Result<Vec<Insertion>> {
        self.guarded(Verb::Insert, |inner| inner.insert(job_id, units, intake))
    }

    fn submit(&self, job_id: JobId, unit: &NewUnit, claimant: &Claimant, slot: &Slot) -> Result<Submitted> {
        self.guarded(Verb::Submit, |inner| inner.submit(job_id, unit, claimant, slot))
    }

    fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        self.guarded(Verb::Claim, |inner| inner.claim(request))
    }

    fn backlog(&self, job_id: JobId, owner: OwnerId, limit: usize) -> Result<Backlog> {
        self.guarded(Verb::Backlog, |inner| inner.backlog(job_id, owner, limit))
    }

    fn accepted(&self, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>> {
        self.guarded(Verb::Accepted, |inner| inner.accepted(owner, after, limit))
    }

    fn listen(&self, job_id: JobId, hear: Box<dyn Fn(&News) -> bool + Send + Sync>) {
        if !self.is_silent {
            self.inner.listen(job_id, hear);
        }
    }

    fn claimed(&self, owner: OwnerId, token: i64) -> Result<Vec<Claim>> {
        self.guarded(Verb::Claimed, |inner| inner.claimed(owner, token))
    }

    fn start(&self, lease: &Lease, beginning: &Beginning) -> Result<()> {
        self.guarded(Verb::Start, |inner| inner.start(lease, beginning))
    }

    fn append(&self, lease: &Lease, follows: u32, messages: &[Message]) -> Result<()> {
        self.guarded(Verb::Append, |inner| inner.append(lease, follows, messages))
    }

    fn partial(&self, lease: &Lease, text: &str) -> Result<()> {
        self.guarded(Verb::Partial, |inner| inner.partial(lease, text))
    }

    fn flush(&self, lease: &Lease) -> Result<()> {
        self.guarded(Verb::Flush, |inner| inner.flush(lease))
    }

    fn progress(&self, lease: &Lease, progress: &Progress) -> Result<()> {
        self.guarded(Verb::Progress, |inner| inner.progress(lease, progress))
    }

    fn checkpoint_at(&self, lease: &Lease, value: &Value) -> Result<()> {
        self.guarded(Verb::CheckpointAt, |inner| inner.checkpoint_at(lease, value))
    }

    fn take_turn(&self, lease: &Lease, provider: &str, limits: &RateLimits, ask: &Ask) -> Result<Turn> {
        self.guarded(Verb::TakeTurn, |inner| inner.take_turn(lease, provider, limits, ask))
    }

    fn hold(&self, hold: &NewHold) -> Result<()> {
        self.guarded(Verb::Hold, |inner| inner.hold(hold))
    }

    fn lift(&self, provider: &str) -> Result<bool> {
        self.guarded(Verb::Hold, |inner| inner.lift(provider))
    }

    fn share(&self, lease: &Lease, key: &WorkKey) -> Result<Shared> {
        self.guarded(Verb::Share, |inner| inner.share(lease, key))
    }

    fn finish(&self, lease: &Lease, report: &AttemptReport) -> Result<Closed> {
        self.guarded(Verb::Finish, |inner| inner.finish(lease, report))
    }

    fn release(&self, lease: &Lease, after: Option<Duration>, reason: &str) -> Result<Closed> {
        self.guarded(Verb::Release, |inner| inner.release(lease, after, reason))
    }

    fn renew(&self, owner: OwnerId, ttl: Duration) -> Result<Vec<Held>> {
        self.guarded(Verb::Renew, |inner| inner.renew(owner, ttl))
    }

    fn expire(&self, limit: usize) -> Result<Vec<Swept>> {
        self.guarded(Verb::Expire, |inner| inner.expire(limit))
    }

    fn cancel(&self, job_id: JobId, id: &str, by: &By) -> Result<CancelAnswer> {
        self.guarded(Verb::Cancel, |inner| inner.cancel(job_id, id, by))
    }

    fn requeue(&self, job_id: JobId, id: &str, by: &By) -> Result<()> {
        self.guarded(Verb::Requeue, |inner| inner.requeue(job_id, id, by))
    }

    fn requeue_unchanged(&self, read: &WorkUnit, by: &By) -> Result<()> {
        self.guarded(Verb::Requeue, |inner| inner.requeue_unchanged(read, by))
    }

    fn register_owner(&self, owner: &NewOwner) -> Result<OwnerId> {
        self.guarded(Verb::RegisterOwner, |inner| inner.register_owner(owner))
    }

    fn let_go(&self, owner: OwnerId) -> Result<u64> {
        self.guarded(Verb::LetGo, |inner| inner.let_go(owner))
    }

    fn tell(&self, owner: OwnerId, state: &OwnerState) -> Result<()> {
        self.guarded(Verb::Tell, |inner| inner.tell(owner, state))
    }

    fn backpressure(&self) -> Option<Backpressure> {
        self.inner.backpressure()
    }

    fn end_owner(&self, owner: OwnerId) -> Result<()> {
        self.guarded(Verb::EndOwner, |inner| inner.end_owner(owner))
    }

    fn change_worker(&self, owner: OwnerId, job_id: JobId, slot: &Slot, change: WorkerChange) -> Result<Worker> {
        self.guarded(Verb::ChangeWorker, |inner| inner.change_worker(owner, job_id, slot, change))
    }

    fn purge(&self, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        self.guarded(Verb::Purge, |inner| inner.purge(before, by))
    }

    fn purge_where(&self, filter: &UnitFilter, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        self.guarded(Verb::Purge, |inner| inner.purge_where(filter, before, by))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRepository;

    fn faulty() -> FaultyRepository {
        FaultyRepository::new(Arc::new(MemoryRepository::new()))
    }

    fn create(repository: &FaultyRepository) -> bool {
        repository.create_job(&NewJob::named("a")).is_ok()
    }

    fn is_created(repository: &FaultyRepository) -> bool {
        repository.job_named("a").unwrap().is_some()
    }

    #[test]
    fn faults_strike_in_their_order_and_only_their_verb() {
        let repository = faulty();
        repository.on(Verb::CreateJob, Fault::ErrorOnce);
        repository.on(Verb::CreateJob, Fault::ExecutedThenError);
        assert_eq!((create(&repository), is_created(&repository)), (false, false));
        assert_eq!((create(&repository), is_created(&repository)), (false, true));
        assert!(create(&repository));
        assert_eq!((repository.calls(Verb::CreateJob), repository.calls(Verb::Purge)), (3, 0));
    }

    #[test]
    fn a_lasting_fault_lasts_until_it_is_healed() {
        let repository = faulty().error(|| RepositoryError::StorageFull);
        repository.on(Verb::Read, Fault::ErrorAlways);
        for _ in 0..3 {
            assert!(matches!(repository.owners(), Err(RepositoryError::StorageFull)));
        }
        repository.heal(Verb::Read);
        assert_eq!(repository.owners().unwrap(), []);
    }

    #[test]
    fn a_rejection_is_lost_like_any_other_answer() {
        let repository = faulty();
        repository.on(Verb::EndOwner, Fault::ExecutedThenError);
        assert!(!repository.end_owner(OwnerId(1)).unwrap_err().is_rejection());
        assert!(repository.end_owner(OwnerId(1)).unwrap_err().is_rejection());
    }

    #[test]
    fn a_call_waits_at_its_gate_and_disturbs_no_other() {
        let (repository, gate) = (faulty(), Gate::closed());
        repository.on(Verb::CreateJob, Fault::Gate(gate.clone()));
        repository.on(Verb::CreateJob, Fault::ErrorOnce);
        std::thread::scope(|threads| {
            let call = threads.spawn(|| create(&repository));
            gate.wait_for(1);
            assert!(!is_created(&repository));
            gate.open();
            assert!(call.join().unwrap());
        });
        assert!(!create(&repository), "once the gate is open, the next fault has its turn");
    }
}
