//! How a pool is built. Every setter states its default.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::WorkPool;
use super::capacity::CapacityStrategy;
use super::core::{Core, Parts};
use super::error::StartError;
use super::handle::PoolHandle;
use super::homes::Homes;
use super::init::InitHook;
use super::observe::{Callbacks, Observer};
use super::residence::Residences;
use super::retry::RetryPolicy;
use super::runtime::{Threads, WorkerRuntime};
use super::same_work::ToldBy;
use super::scaling::Scaling;
use super::scheduler::Scheduler;
use super::settings::Settings;
use crate::attempt::Failure;
use crate::clock::{Clock, SystemClock};
use crate::executor::{CancelToken, ExecuteError, Executor, WorkResult};
use crate::job::JobId;
use crate::limits::RateLimits;
use crate::money::Money;
use crate::repository::Repository;
use crate::same_work::Parameters;
use crate::unit::{Affinity, WorkUnit};

/// Builds a [`WorkPool`]; made by [`WorkPool::builder`].
#[must_use = "a builder does nothing until it builds"]
pub struct WorkPoolBuilder {
    job_id: JobId,
    executor: Box<dyn Executor>,
    runtime: Box<dyn WorkerRuntime>,
    repository: Arc<dyn Repository>,
    clock: Arc<dyn Clock>,
    settings: Settings,
    callbacks: Callbacks,
    init_hook: Option<Box<dyn InitHook>>,
    handle: PoolHandle,
    /// What the user calls the pool.
    label: Option<String>,
    /// Where sessions live, and what the pool is called there, if it is one of several.
    homes: Option<Homes>,
    scheduler: Option<Box<dyn Scheduler>>,
}

impl WorkPoolBuilder {
    pub(super) fn new(job_id: JobId, executor: Box<dyn Executor>, repository: Arc<dyn Repository>) -> WorkPoolBuilder {
        WorkPoolBuilder {
            job_id,
            executor,
            runtime: Box::new(Threads),
            repository,
            clock: Arc::new(SystemClock),
            settings: Settings::default(),
            callbacks: Callbacks::default(),
            init_hook: None,
            handle: PoolHandle::default(),
            label: None,
            homes: None,
            scheduler: None,
        }
    }

    /// The pool is one of several, which calls it by this name.
    pub(super) fn named(mut self, name: &str, residences: &Arc<Residences>) -> Self {
        self.label.get_or_insert_with(|| name.to_owned());
        self.homes = Some(Homes { residences: Arc::clone(residences), name: Arc::from(name) });
        self
    }

    pub(super) fn shared_clock(&self) -> Arc<dyn Clock> {
        Arc::clone(&self.clock)
    }

    /// How many workers are started with the pool and kept (1). With [`Scaling::Fixed`] all of `max_workers` are.
    pub fn min_workers(mut self, min_workers: usize) -> Self {
        self.settings.min_workers = min_workers;
        self
    }

    /// How many workers there are at most (4). Each executes one unit at a time, unless it has a
    /// [`worker_capacity`](WorkPoolBuilder::worker_capacity).
    pub fn max_workers(mut self, max_workers: usize) -> Self {
        self.settings.max_workers = max_workers;
        self
    }

    /// How many workers there are, between `min_workers` and `max_workers` ([`Scaling::OnDemand`]).
    pub fn scaling(mut self, scaling: Scaling) -> Self {
        self.settings.scaling = scaling;
        self
    }

    /// How many units a worker executes at a time, each on a thread of its own (1). A worker that is yet to come up takes one, for
    /// which it is started.
    ///
    /// ```
    /// use workcrew::{Call, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let pool = WorkPool::builder(job.id, |call: &Call<'_>| Ok(WorkResult::text(call.prompt())), repository)
    ///     .max_workers(2)
    ///     .worker_capacity(4)
    ///     .start()?;
    /// pool.await_init_complete()?;
    /// let stats = pool.stats();
    /// // One is up and takes four, the other is yet to be started for one.
    /// assert_eq!((stats.capacity, stats.free_slots), (4, 5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn worker_capacity(mut self, units: u32) -> Self {
        self.settings.worker_capacity = units;
        self
    }

    /// Who says how many units a worker executes at a time ([`CapacityStrategy::Pool`]: the setting above).
    pub fn capacity_strategy(mut self, strategy: CapacityStrategy) -> Self {
        self.settings.capacity_strategy = strategy;
        self
    }

    /// Which worker gets a unit that may go to several ([`LeastLoaded`](super::LeastLoaded)).
    pub fn scheduler(mut self, scheduler: impl Scheduler) -> Self {
        self.scheduler = Some(Box::new(scheduler));
        self
    }

    /// How strictly units that name the same [key](crate::NewUnit::affinity_key) or [session](crate::NewUnit::resume_session) keep
    /// to the same worker, unless they [say](crate::NewUnit::affinity) so themselves ([`Affinity::Hint`]).
    pub fn affinity(mut self, affinity: Affinity) -> Self {
        self.settings.affinity = affinity;
        self
    }

    /// For how long it is remembered which worker had the last unit of a session, from the end of that on (15 minutes). While units of
    /// a strict one are executed or wait it is not forgotten, nor while a unit is executed that has [told](crate::Call::session) of it.
    /// What is only a hint is remembered from when its unit was given to a worker, and once more from its end if it was not forgotten
    /// meanwhile. Of those that nobody uses, the last 100,000 are remembered.
    pub fn affinity_ttl(mut self, time: Duration) -> Self {
        self.settings.affinity_ttl = time;
        self
    }

    /// How many units may wait in line (1,000); see [`WorkPool::enqueue`].
    pub fn max_queue_size(mut self, units: usize) -> Self {
        self.settings.max_queue_size = units;
        self
    }

    /// How long a unit may wait in line before it is failed, unless it says so itself with
    /// [`NewUnit::queue_timeout`](crate::NewUnit::queue_timeout) (as long as it takes).
    pub fn queue_timeout(mut self, timeout: Duration) -> Self {
        self.settings.queue_timeout = Some(timeout);
        self
    }

    /// How long a worker may take to come up (30 s); see [`Executor::start_worker`].
    pub fn startup_timeout(mut self, timeout: Duration) -> Self {
        self.settings.startup_timeout = timeout;
        self
    }

    /// How many workers come up at a time when the pool starts (10).
    pub fn startup_batch(mut self, workers: usize) -> Self {
        self.settings.startup_batch = workers;
        self
    }

    /// How long it is from when those are up to when the next ones start (500 ms).
    pub fn startup_batch_delay(mut self, delay: Duration) -> Self {
        self.settings.startup_batch_delay = delay;
        self
    }

    /// Called once, on a thread of its own, before the first worker starts: to log in, to wait for a server (nothing). If it fails
    /// the pool does not start. When the pool is stopped meanwhile, the token says so.
    ///
    /// ```
    /// use workcrew::{Call, ExecuteError, WaitError, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let pool = WorkPool::builder(job.id, |_: &Call<'_>| Ok(WorkResult::empty()), repository)
    ///     .init_hook(|_| Err(ExecuteError::give_up("the server is down")))
    ///     .start()?;
    /// let error = pool.await_ready().unwrap_err();
    /// assert_eq!(error.to_string(), "the pool did not start: init_hook: executor: the server is down");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn init_hook(self, hook: impl FnOnce(&CancelToken) -> Result<(), ExecuteError> + Send + 'static) -> Self {
        self.init_with(hook)
    }

    /// The same for a hook that is a type of its own ([`NoInit`](super::NoInit)). A closure would have to say what it takes.
    pub fn init_with(mut self, hook: impl InitHook) -> Self {
        self.init_hook = Some(Box::new(hook));
        self
    }

    /// Where workers live ([`Threads`]).
    pub fn worker_runtime(mut self, runtime: impl WorkerRuntime) -> Self {
        self.runtime = Box::new(runtime);
        self
    }

    /// How old a worker may become before it is replaced between two units (as old as it likes).
    pub fn max_worker_age(mut self, age: Duration) -> Self {
        self.settings.max_worker_age = Some(age);
        self
    }

    /// How many units a worker executes before it is replaced (as many as come).
    pub fn max_units_per_worker(mut self, units: u64) -> Self {
        self.settings.max_units_per_worker = Some(units);
        self
    }

    /// How long a worker rests after a crash before it is brought up again; without a rest it is replaced at once (no rest).
    pub fn taint_for(mut self, rest: Duration) -> Self {
        self.settings.taint_for = rest;
        self
    }

    /// How long a whole attempt may take, unless the unit says otherwise (10 minutes).
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// How long to wait before another attempt (one second, doubling up to a minute).
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.settings.retry = policy;
        self
    }

    /// Called when a unit is COMPLETED, which the database says by then (nothing). It runs on the worker's
    /// thread; until it returns, the unit's place is taken.
    pub fn on_unit_complete(mut self, callback: impl Fn(&WorkUnit, &WorkResult) + Send + Sync + 'static) -> Self {
        self.callbacks.complete = Some(Box::new(callback));
        self
    }

    /// Called when a unit is FAILED for good, which the database says by then (nothing). It runs on the worker's thread, or on
    /// one of the pool's own if no worker had the unit, such as when it waited too long. It also tells of units of the job that
    /// another process had, if that died and this pool's sweep ended them.
    pub fn on_unit_failed(mut self, callback: impl Fn(&WorkUnit, &Failure) + Send + Sync + 'static) -> Self {
        self.callbacks.failed = Some(Box::new(callback));
        self
    }

    /// Called when a unit is CANCELLED, which the database says by then (nothing). It runs on the worker's thread, or on
    /// one of the pool's own if the unit was waiting.
    pub fn on_unit_cancelled(mut self, callback: impl Fn(&WorkUnit) + Send + Sync + 'static) -> Self {
        self.callbacks.cancelled = Some(Box::new(callback));
        self
    }

    /// Sees each attempt, each message and whatever else happens (nobody).
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.callbacks.observer = Some(Box::new(observer));
        self
    }

    /// How long an execution may take to stop when it is asked to, before its thread is left behind (1.5 s).
    pub fn kill_grace(mut self, grace: Duration) -> Self {
        self.settings.kill_grace = grace;
        self
    }

    /// How long executions may take to stop when the pool is dropped without being stopped (10 s).
    pub fn shutdown_grace(mut self, grace: Duration) -> Self {
        self.settings.shutdown_grace = grace;
        self
    }

    /// How many threads may be left behind by executors that do not return, before workers are no longer
    /// replaced (as many as there are workers).
    pub fn max_abandoned(mut self, threads: usize) -> Self {
        self.settings.max_abandoned = Some(threads);
        self
    }

    /// How much one attempt may say in all (256 MiB). What says more is failed and not tried again.
    pub fn conversation_limit_bytes(mut self, bytes: u64) -> Self {
        self.settings.conversation_limit_bytes = bytes;
        self
    }

    /// How much all that this pool executes may cost (no limit), beside what the [job](crate::NewJob::budget) and each
    /// [unit](crate::NewUnit::max_cost) may.
    ///
    /// Before an attempt begins, what it is expected to cost is reserved; if that is not left, it does not begin. Nothing fails for it: units
    /// stay PENDING, [`wait_for_completion`](WorkPool::wait_for_completion) says [`Blocked`](crate::Completion::Blocked) once nothing runs any more,
    /// and what waits goes on when a budget was raised. See [`limits`](crate::limits).
    pub fn budget(mut self, budget: Money) -> Self {
        self.settings.budget = Some(budget);
        self
    }

    /// How often the provider may be asked, by this pool and by all others on the repository that ask the same one (as often as one likes).
    ///
    /// Each attempt takes a turn before it begins, and a model over HTTP one more for each further request. Of an agent's command each attempt counts as
    /// one request: what it does inside nobody can hold back. Who has to wait does so in its place; its [timeout](Self::timeout) has
    /// not begun by then. See [`limits`](crate::limits).
    ///
    /// ```
    /// use workcrew::limits::RateLimits;
    /// use workcrew::{Call, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let executor = |call: &Call<'_>| Ok(WorkResult::text(call.prompt()));
    /// let pool = WorkPool::builder(job.id, executor, repository)
    ///     .provider("the model in the cellar")
    ///     .rate_limits(RateLimits::new().requests(60).concurrency(2))
    ///     .start()?;
    /// # pool.enqueue(NewUnit::new("a"), "go")?.wait()?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn rate_limits(mut self, limits: RateLimits) -> Self {
        self.settings.rate_limits = Some(limits);
        self
    }

    /// Whom this pool asks (as the [executor](Executor::provider) says): who has another account there has limits of its own, and needs a name of
    /// its own. Where nobody says it and there are limits, it is the executor's name.
    pub fn provider(mut self, name: impl Into<String>) -> Self {
        self.settings.provider = Some(name.into());
        self
    }

    /// Does work that several units need once (each unit is executed by itself). Of those that need the same, one is executed; those that come
    /// meanwhile wait for it, and they and all later ones take its answer, which costs them nothing.
    ///
    /// The same is what is sent as the same prompt to the same executor with the same [parameters](Executor::parameters), in the same workspace
    /// and with as many turns. It is the same for all pools on the repository that do so, in all processes and jobs.
    ///
    /// Only an answer is handed on. After a failure, a refusal or an answer that was cut off the next unit is executed, one after the other
    /// until one is answered. An answer that came with files is its unit's own, and one that is [purged](Repository::purge) is gone. A unit that
    /// names a [session](crate::NewUnit::resume_session) or [files](crate::NewUnit::output_file), or goes on from what an earlier attempt has
    /// [saved](crate::Call::checkpoint), is executed by itself.
    ///
    /// Who has to wait does so in its place; its [timeout](Self::timeout) has not begun by then. Every unit is claimed as always, also if its
    /// answer is there: where a [budget](Self::budget) is used up it waits, though it would cost nothing. It is charged $0.00, for a model
    /// called `(shared)`. Whose answer it has is told by [`Attempt::answer_of`](crate::Attempt::answer_of), and by its conversation.
    ///
    /// An executor that does not tell its parameters is refused when the pool is built. That are closures, for which the
    /// [caller](Self::same_work_once_with) can tell, and all that may do more than answer: agents, commands, models with tools.
    ///
    /// ```
    /// use std::time::Duration;
    /// use workcrew::{Archive, NewUnit, Simulated, WorkPool};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let model = Simulated::new().latency(Duration::ZERO, Duration::from_millis(5));
    /// let pool = WorkPool::builder(job.id, model, repository.clone()).same_work_once().start()?;
    /// for unit in ["monday", "tuesday", "wednesday"] {
    ///     pool.enqueue(NewUnit::new(unit), "What is the capital of France?")?;
    /// }
    /// pool.wait_for_completion();
    /// let units = ["monday", "tuesday", "wednesday"].map(|unit| repository.unit(job.id, unit).unwrap());
    /// assert!(units.iter().all(|unit| unit.output == units[0].output));
    /// assert_eq!(units.iter().filter(|unit| unit.tokens.total() > 0).count(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn same_work_once(mut self) -> Self {
        self.settings.same_work = Some(ToldBy::Executor);
        self
    }

    /// The same for an executor that does not tell what its answers depend on besides the prompt: these are the parameters. They must be all
    /// that [counts](Executor::parameters), and others for each executor on the repository that answers otherwise.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use std::sync::atomic::{AtomicU32, Ordering};
    /// use serde_json::json;
    /// use workcrew::{Call, NewUnit, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let count = Arc::new(AtomicU32::new(0));
    /// let counted = Arc::clone(&count);
    /// let shout = move |call: &Call<'_>| {
    ///     counted.fetch_add(1, Ordering::Relaxed);
    ///     Ok(WorkResult::text(call.prompt().to_uppercase()))
    /// };
    /// let pool = WorkPool::builder(job.id, shout, repository).same_work_once_with(json!({ "shouting": 1 })).start()?;
    /// for number in 0..10 {
    ///     pool.enqueue(NewUnit::new(number.to_string()), "hello")?;
    /// }
    /// pool.wait_for_completion();
    /// assert_eq!((pool.stats().completed, count.load(Ordering::Relaxed)), (10, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn same_work_once_with(mut self, parameters: impl Into<Value>) -> Self {
        self.settings.same_work = Some(ToldBy::Caller(Parameters::of(&parameters.into())));
        self
    }

    /// What an attempt is taken to cost where a budget counts, until the first ones have ended and unless the executor
    /// [can tell](Executor::estimate) (half a dollar). The higher, the fewer begin together while nobody knows.
    pub fn expected_cost(mut self, cost: Money) -> Self {
        self.settings.expectation = self.settings.expectation.otherwise(cost);
        self
    }

    /// How long a place is kept for a thread that waited for it (30 s).
    pub fn reservation(mut self, time: Duration) -> Self {
        self.settings.reservation = time;
        self
    }

    /// How long others wait before they take over units of a pool that they cannot see any more (60 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// How often the pool shows that it is there (15 s); less than half the lease.
    pub fn heartbeat(mut self, every: Duration) -> Self {
        self.settings.heartbeat = every;
        self
    }

    /// How often a pool that [pulls](super::WorkPool::follow) looks for units that other processes have queued or left behind (5 s). What is
    /// queued in this process it hears of at once.
    pub fn poll_interval(mut self, every: Duration) -> Self {
        self.settings.poll_interval = every;
        self
    }

    /// What people call this pool (`workcrew`, or its name in a [`PoolSet`](super::PoolSet)).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Where time comes from (the machine). It should be the clock of the repository.
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// A handle to the pool that will be built, for the callbacks of that pool.
    pub fn handle(&self) -> PoolHandle {
        self.handle.clone()
    }

    /// A pool that waits to be started.
    ///
    /// # Errors
    ///
    /// If a setting makes no sense, also for this executor, or there is no such job.
    pub fn build(mut self) -> Result<WorkPool, StartError> {
        self.settings.check()?;
        if let Some(label) = self.label {
            self.settings.label = label;
        }
        let parameters = self.settings.parameters_of(&*self.executor)?;
        let job = self.repository.job(self.job_id).map_err(StartError::Repository)?;
        let core = Arc::new(Core::new(Parts {
            settings: self.settings,
            job,
            executor: self.executor,
            runtime: self.runtime,
            scheduler: self.scheduler,
            homes: self.homes,
            repository: self.repository,
            clock: self.clock,
            callbacks: self.callbacks,
            parameters,
        }));
        self.handle.set(&core);
        Ok(WorkPool::new(core, self.init_hook))
    }

    /// A pool that is on its way up: see [`WorkPool::start`].
    ///
    /// # Errors
    ///
    /// As [`build`](WorkPoolBuilder::build) and [`WorkPool::start`].
    pub fn start(self) -> Result<WorkPool, StartError> {
        let pool = self.build()?;
        pool.start()?;
        Ok(pool)
    }
}

impl std::fmt::Debug for WorkPoolBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WorkPoolBuilder")
            .field("job_id", &self.job_id)
            .field("settings", &self.settings)
            .finish_non_exhaustive()
    }
}
