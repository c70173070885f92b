//! The pool: takes units, executes them on its threads, and tells how they ended.
//!
//! # The life of a unit
//!
//! 1. [`WorkPool::wait_for_available_slot`] waits on the ready state until there is a place, and promises it to
//!    the calling thread (`capacity`).
//! 2. [`WorkPool::submit_work_unit`] turns the promise into a worker: the one that its session is on (`sessions`), the least loaded, or a new
//!    one (`slot`). One call of the repository stores the unit, claims it and starts it; then it goes into the worker's inbox (`submit`).
//!    [`WorkPool::enqueue`] does the same if a worker is free; if not, it only stores the unit, which waits in line (`enqueue`,
//!    `queue`, `line`) until the `claimer` finds a place for it.
//! 3. The worker's thread runs it (`run`): renders the prompt if there is a template, looks whether the same is done already (`same_work`),
//!    waits for its turn (`turn`), and gives the executor a [`Call`](crate::Call). What the executor tells meanwhile is stored as it comes (`execution`).
//! 4. How it came back is judged (`judge`) and stored in one transaction; then the callback runs (`close`); then the
//!    place is free; then whoever waits for the unit is woken.
//!    While a thread is in [`WorkPool::process_pending`] or [`WorkPool::follow`], the claimer also takes units that nobody has accepted (`pull`).
//! 5. A unit that may be tried again waits as PENDING. The supervisor's timers say when it is due, the `claimer` claims it.
//!
//! What can go wrong on the way: an execution that takes too long is asked to stop, and left behind if it does not; a
//! thread of its own finishes its business (`slot::replace`). So is one whose unit costs more than it may (`cost_limit`). A lease that cannot be renewed ends the execution (`heartbeat`).
//! What ends without a worker is told by the `reporter`.
//!
//! # The life of a worker
//!
//! Started with the pool in batches, or when it is needed (`crew`, `scaling`), its thread first calls
//! [`Executor::start_worker`] (`slot`), through the [`WorkerRuntime`] as every call of the executor for a worker. Then it takes one unit after
//! the other, or several at a time on as many threads (`cell`), until it was idle for too long, is worn out or one too many, or the pool stops.
//! If its executor panics, or says that it is broken, it is tainted: it takes nothing more, its unit is resolved, and once it has nothing in
//! hand any more another worker takes its place, or itself after a rest. When it has ended, the reporter calls [`Executor::end_worker`].
//!
//! # Threads
//!
//! One for each unit that a worker executes at a time; the `supervisor`, which serves timers, starts workers and never runs the user's code; the
//! heartbeat, which calls the repository and nobody else; the claimer, which does the same and asks the scheduler; the reporter; one for the init hook while it runs.
//! `stop` ends them all but those that do not return (`stopping`).
//!
//! # Several pools
//!
//! A [`PoolSet`] holds pools by name (`set`). They share nothing but where sessions live (`residence`).
//!
//! # Locks
//!
//! Three, in the order and with the rules that `lock` tells. The names in this page are those of the files beside it.

mod adaptive;
mod builder;
mod capacity;
mod cell;
mod claimer;
mod close;
mod core;
mod cost_limit;
mod crew;
mod enqueue;
mod error;
mod execution;
mod follow;
mod handle;
mod heartbeat;
mod homes;
mod inbox;
mod init;
pub(crate) mod inside;
mod judge;
mod ledger;
mod line;
mod lock;
mod mailbox;
mod news;
mod observe;
mod open_unit;
mod provider;
mod pull;
mod queue;
mod ready;
mod registry;
mod reporter;
mod residence;
mod retry;
mod run;
mod runtime;
mod same_work;
mod scaling;
mod scheduler;
mod sessions;
mod set;
mod settings;
mod slot;
mod start;
mod stats;
mod stopping;
mod submit;
mod supervisor;
mod timers;
mod turn;
mod turn_line;
mod word;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

pub use self::adaptive::{Adaptation, AdaptationReason};
pub use self::builder::WorkPoolBuilder;
pub use self::capacity::CapacityStrategy;
use self::capacity::Right;
use self::core::Core;
pub use self::error::{Refusal, StartError, StopError, SubmitError, WaitError};
pub use self::follow::Messages;
pub use self::handle::{PoolHandle, SlotPermit, UnitHandle};
pub use self::init::{InitHook, NoInit};
pub use self::observe::{Event, Observer};
pub use self::open_unit::Said;
pub use self::ready::{Completion, Stop};
use self::ready::{HoldEnd, Ready};
pub use self::retry::{AfterCrash, RetryPolicy};
pub use self::runtime::{Threads, WorkerRuntime};
pub use self::scaling::Scaling;
pub use self::scheduler::{Available, LeastLoaded, Scheduler};
pub use self::set::{PoolSet, PoolSetBuilder, PoolSetError};
pub use self::stats::{Activity, PoolPhase, PoolStats, QueueState, Summary, WorkerView};
use crate::error::RepositoryError;
use crate::executor::Executor;
use crate::job::JobId;
use crate::panics;
use crate::prompt::Prompt;
use crate::repository::{By, CancelAnswer, Repository};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::thread::{self, JoinHandle};
use crate::unit::NewUnit;

/// Why a paused pool starts nothing.
const PAUSED: &str = "paused";

/// Why a pool stops that nobody has stopped.
const DROPPED: &str = "it was dropped";

/// A pool of blocking threads that executes the units of one job.
///
/// ```
/// use workcrew::{Call, MemoryRepository, NewJob, NewUnit, Repository, Stop, WorkPool, WorkResult};
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("shouting"))?;
/// let pool = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.prompt().to_uppercase())), repository)
///     .max_workers(2)
///     .on_unit_complete(|unit, result| println!("{}: {:?}", unit.id, result.output))
///     .start()?;
///
/// for word in ["one", "two", "three"] {
///     pool.wait_for_available_slot();
///     pool.submit_work_unit(NewUnit::new(word), word)?;
/// }
/// pool.wait_for_completion();
/// let summary = pool.stop(Stop::Drain)?;
/// assert_eq!(summary.stats.completed, 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Dropped without being stopped, it cancels what runs, gives it back, and waits for its threads (no longer than
/// its [`shutdown_grace`](WorkPoolBuilder::shutdown_grace)).
pub struct WorkPool {
    core: Arc<Core>,
    /// What is called before the first worker starts, until it is.
    init_hook: Mutex<Option<Box<dyn InitHook>>>,
    supervisor: Mutex<Option<JoinHandle<()>>>,
    /// Whether nobody waits for its end when it is dropped.
    is_left: AtomicBool,
}

impl WorkPool {
    /// A builder of a pool for a job, with what executes its units and where everything is kept.
    pub fn builder(
        job_id: JobId,
        executor: impl Executor,
        repository: impl Into<Arc<dyn Repository>>,
    ) -> WorkPoolBuilder {
        WorkPoolBuilder::new(job_id, Box::new(executor), repository.into())
    }

    fn new(core: Arc<Core>, init_hook: Option<Box<dyn InitHook>>) -> WorkPool {
        let (supervisor, is_left) = (Mutex::new(None), AtomicBool::new(false));
        WorkPool { core, init_hook: Mutex::new(init_hook), supervisor, is_left }
    }

    /// Starts the pool, and does not wait for it to come up: it registers, takes back what the dead were holding, and starts its threads.
    /// They call the [`init_hook`](WorkPoolBuilder::init_hook), then start the first workers, in batches.
    ///
    /// Until that is over whoever waits for a place waits, [`enqueue`](WorkPool::enqueue) puts units into the queue, and a
    /// bare [`submit_work_unit`](WorkPool::submit_work_unit) is refused. It is enough that one worker comes up; if none does, or the hook fails,
    /// the pool ends as [`InitFailed`](PoolPhase::InitFailed).
    ///
    /// # Errors
    ///
    /// If it was started or stopped before, or if the repository or the system fails. Then it stays [`InitFailed`](PoolPhase::InitFailed).
    pub fn start(&self) -> Result<(), StartError> {
        self.core.ready.begin_initializing().map_err(StartError::Phase)?;
        if cfg!(panic = "abort") {
            log::warn!("panics abort this program: one in an executor or callback ends all of it");
        }
        let hook = self.init_hook.lock().unwrap_or_else(PoisonError::into_inner).take();
        let started = catch_unwind(AssertUnwindSafe(|| start::start_threads(&self.core, hook)));
        let failure = match &started {
            Ok(Ok(_)) => None,
            Ok(Err(error)) => Some(error.with_cause()),
            Err(payload) => Some(format!("it panicked: {}", panics::message(&**payload))),
        };
        if let Some(reason) = failure {
            log::info!("{}: the pool `{}` could not be started: {reason}", self.core.job.id, self.label());
            self.core.ready.fail_initializing(reason);
        }
        let supervisor = started.unwrap_or_else(|payload| resume_unwind(payload))?;
        *self.supervisor.lock().unwrap_or_else(PoisonError::into_inner) = Some(supervisor);
        Ok(())
    }

    /// Waits until the first worker is up. Units are executed once all have come up with which the pool starts, or have failed to:
    /// that is what [`await_init_complete`](WorkPool::await_init_complete) waits for.
    ///
    /// # Errors
    ///
    /// At once if the pool [could not be started](WaitError::InitFailed), was not, or has stopped.
    pub fn await_ready(&self) -> Result<(), WaitError> {
        self.await_init(|ready| ready.await_ready(None))
    }

    /// The same, but for no longer than that.
    ///
    /// # Errors
    ///
    /// Also if the time was up.
    pub fn await_ready_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.await_init(|ready| ready.await_ready(deadline(Some(timeout))))
    }

    /// Waits until all workers have come up with which the pool starts, or have failed to.
    ///
    /// # Errors
    ///
    /// At once if the pool [could not be started](WaitError::InitFailed), was not, or has stopped.
    pub fn await_init_complete(&self) -> Result<(), WaitError> {
        self.await_init(|ready| ready.await_init_complete(None))
    }

    /// The same, but for no longer than that.
    ///
    /// # Errors
    ///
    /// Also if the time was up.
    pub fn await_init_complete_timeout(&self, timeout: Duration) -> Result<(), WaitError> {
        self.await_init(|ready| ready.await_init_complete(deadline(Some(timeout))))
    }

    fn await_init(&self, wait: impl FnOnce(&Ready) -> Result<(), WaitError>) -> Result<(), WaitError> {
        if inside::is_inside(self.core.number) {
            return Err(WaitError::WouldDeadlock);
        }
        wait(&self.core.ready)
    }

    /// What people call this pool.
    pub fn label(&self) -> &str {
        &self.core.settings.label
    }

    /// How long the pool took to come up; `None` if it has not.
    pub fn init_time(&self) -> Option<Duration> {
        self.core.init_time()
    }

    /// Submits a unit with its prompt, into the place that this thread waited for or into one that happens to be free.
    ///
    /// When it returns, the unit is stored and with a worker. A unit that is there already with the same content is not
    /// stored again: if it waits it is executed, if it runs or has ended the handle is to that. So a loop can be run again after a crash.
    ///
    /// # Errors
    ///
    /// [`AtCapacity`](Refusal::AtCapacity) if there is no place. The unit comes back with the error.
    pub fn submit_work_unit(
        &self,
        unit: impl Into<NewUnit>,
        prompt: impl Into<Prompt>,
    ) -> Result<UnitHandle, SubmitError> {
        submit::submit(&self.core, Right::Thread(thread::current().id()), unit.into(), prompt.into())
    }

    /// Takes a unit that may wait in line: if a worker is free it gets it now, otherwise the unit is stored and gets the next one
    /// that is, the larger [`priority`](NewUnit::priority) first. It never waits itself, so callbacks may use it.
    ///
    /// When it returns, the unit is stored. One that is there already is treated as by
    /// [`submit_work_unit`](WorkPool::submit_work_unit). A unit that waits for longer than its
    /// [`queue_timeout`](NewUnit::queue_timeout), or the pool's, is failed and never executed.
    ///
    /// # Errors
    ///
    /// [`Saturated`](Refusal::Saturated) if [`max_queue_size`](WorkPoolBuilder::max_queue_size) units wait already. The unit comes back with
    /// the error. To wait until it can be taken, [wait for a place](WorkPool::wait_for_available_slot) and enqueue it again.
    ///
    /// ```
    /// use workcrew::{Call, NewUnit, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let pool = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.prompt())), repository).start()?;
    /// for number in 0..100 {
    ///     pool.enqueue(NewUnit::new(format!("unit {number}")), "go")?;
    /// }
    /// pool.enqueue(NewUnit::new("before the others").priority(1), "go")?;
    /// pool.wait_for_completion();
    /// assert_eq!(pool.stats().completed, 101);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn enqueue(&self, unit: impl Into<NewUnit>, prompt: impl Into<Prompt>) -> Result<UnitHandle, SubmitError> {
        enqueue::enqueue(&self.core, unit.into(), prompt.into())
    }

    /// Waits until there is a place and keeps it for this thread, whose next [`submit_work_unit`](WorkPool::submit_work_unit)
    /// or [`enqueue`](WorkPool::enqueue) uses it. Unused, it lapses after 30 seconds. Units that are in line, or to be tried again,
    /// go first.
    ///
    /// `false` if there will be none: the pool has not been started, has stopped, or this is one of its own threads.
    pub fn wait_for_available_slot(&self) -> bool {
        wait_for_slot(&self.core, None).is_ok()
    }

    /// The same, but for no longer than that; `false` also if the time was up.
    pub fn wait_for_available_slot_timeout(&self, timeout: Duration) -> bool {
        wait_for_slot(&self.core, Some(timeout)).is_ok()
    }

    /// Waits until there is a place, and returns it as a value that may go to another thread and does not lapse.
    ///
    /// # Errors
    ///
    /// If there will be none.
    pub fn acquire_slot(&self) -> Result<SlotPermit, WaitError> {
        acquire_slot(&self.core, None)
    }

    /// The same, but for no longer than that.
    ///
    /// # Errors
    ///
    /// Also if the time was up.
    pub fn acquire_slot_timeout(&self, timeout: Duration) -> Result<SlotPermit, WaitError> {
        acquire_slot(&self.core, Some(timeout))
    }

    /// Waits until everything that this pool accepted has ended and been reported, retries included.
    pub fn wait_for_completion(&self) -> Completion {
        wait_for_completion(&self.core, None)
    }

    /// The same, but for no longer than that.
    pub fn wait_for_completion_timeout(&self, timeout: Duration) -> Completion {
        wait_for_completion(&self.core, Some(timeout))
    }

    /// Executes what waits for anybody, wherever it was queued, and returns when nothing of the job is left to do: all that was due has ended,
    /// and been reported, here or by others. If others die meanwhile, what they leave behind is executed here too.
    ///
    /// So it also waits for what other programs execute, or have accepted and not begun, however long that takes; the form with a timeout does
    /// not. Units that are not due yet are not waited for, nor those that have neither prompt nor template. Several programs may do this on one
    /// database at the same time; each unit goes to one of them. What the pool accepted itself goes first. Units of a strict session wait for
    /// its worker, also those that would rather [fail](crate::Affinity::StrictFailFast).
    ///
    /// Units are queued by [`queue_unit`](Repository::queue_unit) and [`queue_units`](Repository::queue_units), without a pool. The answer is
    /// [`Done`](Completion::Done) also if some of them failed: how they ended is told by the callbacks and is in the repository.
    /// Before the pool was started, or after it was stopped, it returns at once ([`Stopped`](Completion::Stopped)), and in a callback too
    /// ([`WouldDeadlock`](Completion::WouldDeadlock)).
    ///
    /// ```
    /// use workcrew::{Call, Completion, NewUnit, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let units: Vec<NewUnit> = (0..10).map(|n| NewUnit::new(format!("page {n}")).prompt("Summarise it.")).collect();
    /// repository.queue_units(job.id, &units)?;
    ///
    /// let pool = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.prompt())), repository).start()?;
    /// assert_eq!(pool.process_pending(), Completion::Done);
    /// assert_eq!(pool.stats().completed, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn process_pending(&self) -> Completion {
        pull::process_pending(&self.core, None)
    }

    /// The same, but for no longer than that. What was begun goes on.
    pub fn process_pending_timeout(&self, timeout: Duration) -> Completion {
        pull::process_pending(&self.core, Some(timeout))
    }

    /// Executes what waits for anybody, and what comes to wait, until the pool is [stopped](PoolHandle::stop) by somebody else. What is
    /// queued in this process begins at once, what others queue or leave behind within the
    /// [`poll_interval`](WorkPoolBuilder::poll_interval). Otherwise it is like [`process_pending`](WorkPool::process_pending).
    ///
    /// ```
    /// use workcrew::{Call, Completion, NewUnit, Stop, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let queue = repository.clone();
    /// let builder = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.prompt())), repository);
    /// // Here the last unit stops the pool; else a signal would, or whoever has a handle.
    /// let handle = builder.handle();
    /// let pool = builder.on_unit_complete(move |unit, _| if unit.id.as_str() == "last" { handle.stop(Stop::Drain) }).start()?;
    /// std::thread::scope(|threads| {
    ///     let follows = threads.spawn(|| pool.follow());
    ///     queue.queue_unit(job.id, &NewUnit::new("last").prompt("Summarise it."))?;
    ///     assert_eq!(follows.join().expect("it does not panic"), Completion::Stopped);
    ///     Ok::<(), workcrew::RepositoryError>(())
    /// })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn follow(&self) -> Completion {
        pull::follow(&self.core, None)
    }

    /// The same, but for no longer than that. What was begun goes on.
    pub fn follow_timeout(&self, timeout: Duration) -> Completion {
        pull::follow(&self.core, Some(timeout))
    }

    /// Cancels a unit of the pool's job: at once if it waits; if it is being executed, its executor is asked to stop, and the unit is
    /// CANCELLED when that has answered or the [`kill_grace`](WorkPoolBuilder::kill_grace) is over, whatever the answer is. What has
    /// ended stays as it is, and the answer says so. A cancelled unit is not tried again, unless it is
    /// [requeued](Repository::requeue).
    ///
    /// [`Repository::cancel`] does the same without a pool. The pool that has the unit hears of it at once in the same process, and with its
    /// next heartbeat in another one.
    ///
    /// ```
    /// use workcrew::repository::{By, CancelAnswer};
    /// use workcrew::{Call, NewUnit, UnitStatus, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let pool = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.prompt())), repository).start()?;
    /// pool.pause();
    /// let handle = pool.enqueue(NewUnit::new("a"), "go")?;
    /// assert_eq!(pool.cancel("a", By::new("ada", "wrong input"))?, CancelAnswer::Cancelled);
    /// assert_eq!(handle.wait()?.status, UnitStatus::Cancelled);
    /// assert_eq!(pool.cancel("a", By::whom("bob"))?, CancelAnswer::AlreadyEnded(UnitStatus::Cancelled));
    /// assert_eq!(pool.cancel("b", By::whom("bob")).unwrap_err().to_string(), "job 1 has no unit `b`");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// If there is no such unit, or the repository fails.
    pub fn cancel(&self, id: &str, by: impl Into<By>) -> Result<CancelAnswer, RepositoryError> {
        news::cancel(&self.core, id, &by.into())
    }

    /// Starts nothing until [`resume`](WorkPool::resume). What runs goes on.
    pub fn pause(&self) {
        self.core.hold(PAUSED, HoldEnd::Told);
    }

    /// Ends a pause, and whatever else holds the pool.
    ///
    /// If that is its provider, which is not to be asked yet, all others who ask the same one [hear of it](crate::Repository::lift), and go on with
    /// their next heartbeat.
    pub fn resume(&self) {
        self.core.resume_all();
    }

    /// Changes how many workers there may be.
    ///
    /// If that is fewer than there are, some are sent away at once: first those that [rest](WorkPoolBuilder::taint_for) after a crash, then
    /// idle ones, then those with the fewest units in hand. They take nothing more and end when they are done with what they have; units
    /// whose session is with them go to another then. Until they have ended the others take so many units fewer: nothing begins that would
    /// be more than the new number of workers can have in hand, and a place that was promised may become one in line. If the number is
    /// raised again, others are started.
    ///
    /// Where it is [found out](Scaling::Adaptive) how many there may be, this is how many there may ever be.
    ///
    /// # Errors
    ///
    /// If the number makes no sense.
    pub fn set_max_workers(&self, max_workers: usize) -> Result<(), StartError> {
        crew::set_max_workers(&self.core, max_workers)
    }

    /// A handle that does not keep the pool alive, for other threads.
    pub fn handle(&self) -> PoolHandle {
        let handle = PoolHandle::default();
        handle.set(&self.core);
        handle
    }

    /// What the pool is doing and has done, all at one moment.
    pub fn stats(&self) -> PoolStats {
        self.core.ready.stats()
    }

    /// The workers that there are now, in the order in which they were started.
    pub fn workers(&self) -> Vec<WorkerView> {
        self.core.ready.worker_views()
    }

    /// Whether no worker has a unit in hand.
    pub fn all_idle(&self) -> bool {
        self.busy_count() == 0
    }

    /// How many workers have a unit in hand.
    pub fn busy_count(&self) -> usize {
        self.core.ready.busy_count()
    }

    /// Stops the pool, and waits until all its threads have ended. What waits stays PENDING, also in line: to have it executed, call
    /// [`wait_for_completion`](WorkPool::wait_for_completion) before. Stopping twice is one stop, of which the more urgent
    /// wish counts. On a thread of the pool it only asks for it and returns.
    ///
    /// # Errors
    ///
    /// If the pool's end could not be stored. It has ended all the same.
    pub fn stop(&self, stop: Stop) -> Result<Summary, StopError> {
        self.stop_until(stop, None, &stop.to_string())
    }

    /// The same, but waits for no longer than that; the pool goes on stopping.
    ///
    /// # Errors
    ///
    /// As [`stop`](WorkPool::stop).
    pub fn stop_timeout(&self, stop: Stop, timeout: Duration) -> Result<Summary, StopError> {
        self.stop_until(stop, Some(timeout), &stop.to_string())
    }

    fn stop_when_dropped(&self) -> Stop {
        Stop::Cancel { grace: self.core.settings.shutdown_grace }
    }

    fn stop_until(&self, stop: Stop, timeout: Option<Duration>, why: &str) -> Result<Summary, StopError> {
        stopping::begin_stop(&self.core, stop, why);
        if inside::is_inside(self.core.number) || !self.core.ready.wait_stopped(deadline(timeout)) {
            return Ok(self.core.summary(false));
        }
        let supervisor = self.supervisor.lock().unwrap_or_else(PoisonError::into_inner).take();
        if supervisor.is_some_and(|thread| thread.join().is_err()) {
            log::error!("{}: the supervisor panicked", self.core.job.id);
        }
        match self.core.stop_error.lock().unwrap_or_else(PoisonError::into_inner).take() {
            Some(error) => Err(StopError::Repository(error)),
            None => Ok(self.core.summary(true)),
        }
    }
}

impl Drop for WorkPool {
    fn drop(&mut self) {
        let timeout = self.is_left.load(Ordering::Relaxed).then_some(Duration::ZERO);
        if let Err(error) = self.stop_until(self.stop_when_dropped(), timeout, DROPPED) {
            log::error!("{}: {error}", self.core.job.id);
        }
    }
}

impl fmt::Debug for WorkPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkPool").field("job", &self.core.job.id).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// When a wait is over; `None` if it is so far away that it never is.
fn deadline(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

fn wait_for_slot(core: &Core, timeout: Option<Duration>) -> Result<(), WaitError> {
    if inside::is_inside(core.number) {
        return Err(WaitError::WouldDeadlock);
    }
    let lapses_at_ms = || core.in_ms(core.settings.reservation);
    core.ready.wait_for_slot(Some(thread::current().id()), lapses_at_ms, deadline(timeout))
}

fn acquire_slot(core: &Arc<Core>, timeout: Option<Duration>) -> Result<SlotPermit, WaitError> {
    if inside::is_inside(core.number) {
        return Err(WaitError::WouldDeadlock);
    }
    core.ready.wait_for_slot(None, || 0, deadline(timeout))?;
    Ok(SlotPermit::new(core))
}

fn wait_for_completion(core: &Core, timeout: Option<Duration>) -> Completion {
    if inside::is_inside(core.number) {
        return Completion::WouldDeadlock;
    }
    core.ready.wait_for_completion(deadline(timeout))
}
