//! Handles: to one unit, to a place for one, and to a pool that may be gone.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::adaptive::Adaptation;
use super::capacity::Right;
use super::core::Core;
use super::error::{Refusal, SubmitError, WaitError};
use super::follow::Messages;
use super::ledger::Left;
use super::open_unit::OpenUnit;
use super::ready::{HoldEnd, Stop};
use super::stats::PoolStats;
use super::{enqueue, inside, submit};
use crate::error::RepositoryError;
use crate::job::JobId;
use crate::prompt::Prompt;
use crate::repository::{By, CancelAnswer, Repository};
use crate::sync::thread;
use crate::unit::{NewUnit, WorkUnit};

/// A unit that was submitted: to wait for, to follow, to cancel. Dropping it changes nothing.
///
/// ```
/// use workcrew::{Call, Message, NewUnit, UnitStatus, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let executor = |call: &Call<'_>| {
///     call.message(Message::assistant("It is Paris."));
///     Ok(WorkResult::text("Paris"))
/// };
/// let pool = WorkPool::builder(job.id, executor, repository).start()?;
/// let handle = pool.enqueue(NewUnit::new("france"), "What is the capital of France?")?;
/// for said in handle.messages() {
///     assert_eq!(said?.message.text(), "It is Paris.");
/// }
/// let unit = handle.wait()?;
/// assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("Paris")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct UnitHandle {
    unit: Arc<OpenUnit>,
    core: Weak<Core>,
    pool: u64,
    job_id: JobId,
    repository: Arc<dyn Repository>,
}

impl UnitHandle {
    pub(super) fn new(core: &Arc<Core>, unit: Arc<OpenUnit>) -> UnitHandle {
        UnitHandle {
            unit,
            core: Arc::downgrade(core),
            pool: core.number,
            job_id: core.job.id,
            repository: core.shared_repository(),
        }
    }

    /// The unit's name.
    pub fn id(&self) -> &str {
        self.unit.id()
    }

    /// Whether nothing more will happen to the unit here, its callback included.
    pub fn is_done(&self) -> bool {
        self.unit.left().is_some()
    }

    /// Waits until the unit has ended and its callback has run, and returns its record.
    ///
    /// # Errors
    ///
    /// [`LeftPending`](WaitError::LeftPending) if the pool stopped first, [`Lost`](WaitError::Lost) if the unit was lost to
    /// somebody else, [`Unrecorded`](WaitError::Unrecorded) if its end could not be stored,
    /// [`WouldDeadlock`](WaitError::WouldDeadlock) on a thread of the pool.
    pub fn wait(&self) -> Result<WorkUnit, WaitError> {
        self.wait_until(None)
    }

    /// The same, but for no longer than that.
    ///
    /// # Errors
    ///
    /// Also [`TimedOut`](WaitError::TimedOut).
    pub fn wait_timeout(&self, timeout: Duration) -> Result<WorkUnit, WaitError> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&self, until: Option<Instant>) -> Result<WorkUnit, WaitError> {
        let left = match self.unit.left() {
            None if inside::is_inside(self.pool) => return Err(WaitError::WouldDeadlock),
            None => self.unit.wait(until),
            left => left,
        };
        match left {
            None => Err(WaitError::TimedOut),
            Some(Left::Ended(_)) => Ok(self.repository.unit(self.job_id, self.unit.id())?),
            Some(Left::Pending) => Err(WaitError::LeftPending),
            Some(Left::Lost) => Err(WaitError::Lost),
            Some(Left::Unrecorded) => Err(WaitError::Unrecorded),
        }
    }

    /// The unit as it is stored now.
    ///
    /// # Errors
    ///
    /// If the repository fails.
    pub fn unit(&self) -> Result<WorkUnit, RepositoryError> {
        self.repository.unit(self.job_id, self.unit.id())
    }

    /// What was said and what is being said, message by message, through all attempts; it ends when the unit does.
    pub fn messages(&self) -> Messages {
        Messages::new(Arc::clone(&self.unit), Arc::clone(&self.repository))
    }

    /// Cancels the unit: at once if it waits; if it is being executed, its executor is asked to stop.
    ///
    /// # Errors
    ///
    /// If the repository fails.
    pub fn cancel(&self, by: impl Into<By>) -> Result<CancelAnswer, RepositoryError> {
        match self.core.upgrade() {
            Some(core) => super::news::cancel(&core, self.unit.id(), &by.into()),
            None => self.repository.cancel(self.job_id, self.unit.id(), &by.into()),
        }
    }
}

/// A place for one unit, as a value. Dropped, it is free again.
///
/// ```
/// use workcrew::{Call, NewUnit, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let pool = WorkPool::builder(job.id, |_: &Call<'_>| Ok(WorkResult::empty()), repository).max_workers(1).start()?;
/// let permit = pool.acquire_slot()?;
/// assert!(pool.submit_work_unit(NewUnit::new("other"), "go").unwrap_err().is_at_capacity());
/// let handle = std::thread::spawn(move || permit.submit(NewUnit::new("mine"), "go")).join().unwrap()?;
/// handle.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SlotPermit {
    core: Arc<Core>,
    is_used: bool,
}

impl SlotPermit {
    pub(super) fn new(core: &Arc<Core>) -> SlotPermit {
        SlotPermit { core: Arc::clone(core), is_used: false }
    }

    /// Submits a unit into this place: as [`WorkPool::submit_work_unit`](super::WorkPool::submit_work_unit), which then never
    /// finds the pool full.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn submit(mut self, unit: impl Into<NewUnit>, prompt: impl Into<Prompt>) -> Result<UnitHandle, SubmitError> {
        self.is_used = true;
        submit::submit(&self.core, Right::Permit, unit.into(), prompt.into())
    }
}

impl Drop for SlotPermit {
    fn drop(&mut self) {
        if !self.is_used {
            self.core.ready.drop_permit();
        }
    }
}

/// A pool that may be gone, for callbacks and executors: it does not keep the pool alive.
///
/// ```
/// use workcrew::{Call, ExecuteError, NewUnit, Stop, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let executor = |_: &Call<'_>| Err::<WorkResult, _>(ExecuteError::give_up("the key is wrong"));
/// let builder = WorkPool::builder(job.id, executor, repository);
/// let handle = builder.handle();
/// // One failure is enough: nothing more is begun.
/// let pool = builder.on_unit_failed(move |_, _| handle.stop(Stop::Drain)).start()?;
/// pool.enqueue(NewUnit::new("a"), "go")?.wait()?;
/// assert!(!pool.wait_for_available_slot());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct PoolHandle(Arc<OnceLock<Result<Weak<Core>, String>>>);

impl PoolHandle {
    pub(super) fn set(&self, core: &Arc<Core>) {
        self.0.get_or_init(|| Ok(Arc::downgrade(core)));
    }

    /// There will be no pool, for this reason.
    pub(super) fn fail(&self, reason: &str) {
        self.0.get_or_init(|| Err(reason.to_owned()));
    }

    fn core(&self) -> Option<Arc<Core>> {
        self.0.get().and_then(|built| built.as_ref().ok()?.upgrade())
    }

    /// Gives back a unit for which there is no pool.
    fn give_back(&self, unit: NewUnit, prompt: Prompt) -> SubmitError {
        let reason = match self.0.get() {
            Some(Err(reason)) => Refusal::InitFailed(reason.clone()),
            _ => Refusal::Stopped,
        };
        SubmitError::unseen(unit, prompt, reason)
    }

    /// As [`WorkPool::submit_work_unit`](super::WorkPool::submit_work_unit). A pool that is gone has stopped; one of a
    /// [`PoolSet`](super::PoolSet) that could not be built says why.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn submit_work_unit(
        &self,
        unit: impl Into<NewUnit>,
        prompt: impl Into<Prompt>,
    ) -> Result<UnitHandle, SubmitError> {
        let (unit, prompt) = (unit.into(), prompt.into());
        match self.core() {
            Some(core) => submit::submit(&core, Right::Thread(thread::current().id()), unit, prompt),
            None => Err(self.give_back(unit, prompt)),
        }
    }

    /// As [`WorkPool::enqueue`](super::WorkPool::enqueue), for follow-up work from callbacks. A pool that is gone has stopped.
    ///
    /// While the pool stops it is refused, and what was in line by then stays PENDING. A callback runs once: whoever starts the program
    /// again must find out by other means, such as the records of the units that came before, what has yet to follow.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn enqueue(&self, unit: impl Into<NewUnit>, prompt: impl Into<Prompt>) -> Result<UnitHandle, SubmitError> {
        let (unit, prompt) = (unit.into(), prompt.into());
        match self.core() {
            Some(core) => enqueue::enqueue(&core, unit, prompt),
            None => Err(self.give_back(unit, prompt)),
        }
    }

    /// As [`WorkPool::wait_for_available_slot`](super::WorkPool::wait_for_available_slot).
    pub fn wait_for_available_slot(&self) -> bool {
        self.core().is_some_and(|core| super::wait_for_slot(&core, None).is_ok())
    }

    /// Begins to stop the pool, and returns without waiting for its end.
    pub fn stop(&self, stop: Stop) {
        if let Some(core) = self.core() {
            super::stopping::begin_stop(&core, stop, &stop.to_string());
        }
    }

    /// As [`WorkPool::cancel`](super::WorkPool::cancel); `None` if the pool is gone.
    ///
    /// # Errors
    ///
    /// If the repository fails.
    pub fn cancel(&self, id: &str, by: impl Into<By>) -> Option<Result<CancelAnswer, RepositoryError>> {
        self.core().map(|core| super::news::cancel(&core, id, &by.into()))
    }

    /// As [`WorkPool::pause`](super::WorkPool::pause).
    pub fn pause(&self) {
        if let Some(core) = self.core() {
            core.hold(super::PAUSED, HoldEnd::Told);
        }
    }

    /// As [`WorkPool::resume`](super::WorkPool::resume).
    pub fn resume(&self) {
        if let Some(core) = self.core() {
            core.resume_all();
        }
    }

    /// As [`WorkPool::adaptations`](super::WorkPool::adaptations); `None` if the pool is gone.
    pub fn adaptations(&self) -> Option<Vec<Adaptation>> {
        self.core().map(|core| core.ready.adaptations())
    }

    /// What the pool is doing; `None` if it is gone.
    pub fn stats(&self) -> Option<PoolStats> {
        self.core().map(|core| core.ready.stats())
    }
}
