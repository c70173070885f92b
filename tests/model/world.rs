//! A repository, a clock that stands still, a pool, and what must hold when the pool has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::panic;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use shuttle::rand::{Rng, thread_rng};
use shuttle::thread::{self, JoinHandle};
use workcrew::audit::verify::Verify;
use workcrew::clock::{Clock, ManualClock};
use workcrew::repository::{By, CancelAnswer};
use workcrew::{
    Affinity, Archive, Call, CancelToken, Completion, Event, ExecuteError, Executor, JobId, MemoryRepository, NewJob,
    NewUnit, PoolPhase, PoolStats, Refusal, Repository, RepositoryError, RetryPolicy, Scaling, Stop, SubmitError,
    Summary, UnitHandle, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult, WorkerId, WorkerRuntime,
    WorkerStatus,
};

use crate::watch::Watch;

/// Longer than anything: here no time passes by itself.
pub(crate) const LONG: Duration = Duration::from_secs(24 * 3_600);

/// How far the clock jumps when time is to pass.
pub(crate) const MINUTE: Duration = Duration::from_secs(60);

/// All ways to stop.
pub(crate) const STOPS: [Stop; 3] = [Stop::Drain, Stop::Cancel { grace: LONG }, Stop::Now];

const THRESHOLD: Scaling = Scaling::Threshold { queued: 1, idle: LONG };

/// All ways in which workers come to be.
pub(crate) const SCALINGS: [Scaling; 3] = [Scaling::OnDemand, Scaling::Fixed, THRESHOLD];

/// What an executor answers.
pub(crate) type Answer = Result<WorkResult, ExecuteError>;

/// An executor to choose.
pub(crate) type Execute = fn(&Call<'_>) -> Answer;

/// One of several, chosen anew in each execution.
pub(crate) fn one_of<T: Copy>(choices: &[T]) -> T {
    choices[thread_rng().gen_range(0..choices.len())]
}

/// Answers at once.
pub(crate) fn quick(_: &Call<'_>) -> Answer {
    Ok(WorkResult::text("done"))
}

/// Answers when it is asked to stop.
pub(crate) fn patient(call: &Call<'_>) -> Answer {
    let reason = call.cancel_token().wait_timeout(LONG);
    Err(ExecuteError::retry(format!("asked to stop: {reason:?}")))
}

/// Takes its time, and does not look whether it is to stop.
pub(crate) fn deaf(_: &Call<'_>) -> Answer {
    for _ in 0..5 {
        thread::yield_now();
    }
    Ok(WorkResult::text("done"))
}

/// Fails the first time.
pub(crate) fn fails_first(call: &Call<'_>) -> Answer {
    match call.attempt_number() {
        1 => Err(ExecuteError::retry("the first time")),
        _ => Ok(WorkResult::text("done")),
    }
}

/// Crashes the first time, by an error or by a panic.
pub(crate) fn crashes_first(call: &Call<'_>) -> Answer {
    match (call.attempt_number(), one_of(&[true, false])) {
        (1, true) => Err(ExecuteError::broken("the first time")),
        // The hook that counts panics does not hear of this one.
        (1, false) => panic::resume_unwind(Box::new("the first time")),
        _ => Ok(WorkResult::text("done")),
    }
}

/// Of the units of a thread the first crashes the first time, while the others take theirs.
pub(crate) fn one_crashes(call: &Call<'_>) -> Answer {
    if call.unit().id.as_str().ends_with("-0") { crashes_first(call) } else { deaf(call) }
}

/// How a caller gets its unit into a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It waits for a place first.
    Waiting,
    /// It waits for a place that it gets as a value.
    Permit,
    /// It hopes that there is a place.
    Hoping,
    /// It waits for a place, for a unit whose time has not come.
    Early,
    /// The unit may wait in line, if there is room.
    Line,
}

/// See the [module](self). Its locks are the standard library's: nothing happens under them.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) repository: MemoryRepository,
    pub(crate) job: JobId,
    pub(crate) clock: ManualClock,
    /// The callbacks that ran, by unit.
    told: Arc<Mutex<BTreeMap<String, Vec<UnitStatus>>>>,
    /// Units that were cancelled while nobody executed them, perhaps after the pool had let go of them.
    cancelled_waiting: Arc<Mutex<BTreeSet<String>>>,
    roll: Roll,
    pub(crate) watch: Watch,
}

/// Which workers were brought up, and which of them have ended.
#[derive(Clone, Default)]
struct Roll {
    entries: Arc<Mutex<BTreeMap<WorkerId, Entry>>>,
    watch: Watch,
}

#[derive(Default)]
struct Entry {
    /// While it is on its way up.
    start: Option<CancelToken>,
    starts: usize,
    ends: usize,
    /// Whether it ended on its way up, of which nothing was said to it before.
    is_surprised: bool,
}

impl WorkerRuntime for Roll {
    fn start_worker(
        &self,
        executor: &dyn Executor,
        worker_id: &WorkerId,
        cancel: &CancelToken,
    ) -> Result<(), ExecuteError> {
        let change =
            |change: &dyn Fn(&mut Entry)| change(self.entries.lock().unwrap().entry(worker_id.clone()).or_default());
        change(&|entry| (entry.start, entry.starts) = (Some(cancel.clone()), entry.starts + 1));
        let started = executor.start_worker(worker_id, cancel);
        change(&|entry| entry.start = None);
        started
    }

    fn execute(&self, executor: &dyn Executor, call: &Call<'_>) -> Answer {
        let _executing = self.watch.enter(call);
        executor.execute(call)
    }

    fn end_worker(&self, executor: &dyn Executor, worker_id: &WorkerId) {
        executor.end_worker(worker_id);
        let start = self.entries.lock().unwrap().get(worker_id).and_then(|entry| entry.start.clone());
        let is_surprised = start.is_some_and(|cancel| !cancel.is_cancelled());
        let mut roll = self.entries.lock().unwrap();
        let entry = roll.entry(worker_id.clone()).or_default();
        entry.ends += 1;
        entry.is_surprised |= is_surprised && entry.start.is_some();
    }
}

impl Roll {
    /// Whoever was brought up, or was to be, has ended once.
    fn assert_ended(&self) {
        for (worker, entry) in &*self.entries.lock().unwrap() {
            assert!(entry.starts > 0, "{worker}");
            assert_eq!((entry.ends, entry.is_surprised), (1, false), "{worker}");
        }
    }
}

impl World {
    pub(crate) fn new() -> World {
        let clock = ManualClock::new();
        let repository = MemoryRepository::with_clock(clock.clone());
        let job = repository.create_job(&NewJob::named("model")).unwrap().id;
        let watch = Watch::default();
        let roll = Roll { entries: Arc::default(), watch: watch.clone() };
        World { repository, job, clock, told: Arc::default(), cancelled_waiting: Arc::default(), roll, watch }
    }

    /// See [`staffed`](World::staffed). Its workers need not be brought up.
    pub(crate) fn pool(&self, execute: impl Fn(&Call<'_>) -> Answer + Send + Sync + 'static) -> WorkPoolBuilder {
        self.staffed(execute)
    }

    /// A pool that tells this world of every end, and tries again at once. Leases, promises and the time to come up outlast all
    /// jumps of the clock.
    pub(crate) fn staffed(&self, executor: impl Executor) -> WorkPoolBuilder {
        let tell = || {
            let told = Arc::clone(&self.told);
            move |id: &str, status| told.lock().unwrap().entry(id.to_owned()).or_default().push(status)
        };
        let (completed, failed, cancelled) = (tell(), tell(), tell());
        WorkPool::builder(self.job, executor, self.repository.clone())
            .clock(self.clock.clone())
            .retry(RetryPolicy::immediate())
            .lease(100 * LONG)
            .heartbeat(LONG)
            .reservation(LONG)
            .startup_timeout(100 * LONG)
            .worker_runtime(self.roll.clone())
            .on_unit_complete(move |unit, _| completed(unit.id.as_str(), unit.status))
            .on_unit_failed(move |unit, _| failed(unit.id.as_str(), unit.status))
            .on_unit_cancelled(move |unit| cancelled(unit.id.as_str(), unit.status))
    }

    /// Starts a pool, and looks at whatever it tells whether it has more workers and units than it may. Whoever gets it may be
    /// faster than its workers.
    pub(crate) fn start(&self, builder: WorkPoolBuilder) -> Arc<WorkPool> {
        let (handle, watch) = (builder.handle(), self.watch.clone());
        let look = move |event: &Event<'_>| {
            watch.look(event);
            if let Some(stats) = handle.stats() {
                assert!(stats.total_workers <= stats.max_workers, "{stats:?}");
                assert_bounded(&stats);
            }
        };
        let pool = Arc::new(builder.observer(look).start().unwrap());
        if one_of(&[true, false]) {
            // It may fail to come up.
            let _ = pool.await_init_complete();
        }
        pool
    }

    /// All that a pool took has ended, by itself; then it is stopped.
    pub(crate) fn assert_all_done(&self, pool: &WorkPool, handles: &[UnitHandle]) {
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let stats = pool.stats();
        assert_eq!((stats.queue_size, stats.reserved_slots), (0, 0), "{stats:?}");
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        assert_eq!(summary.stats.left_pending, 0, "{summary:?}");
        self.assert_ended(pool, &summary, handles);
    }

    /// Lets time pass until something is so: for what is not woken but looks again.
    pub(crate) fn pass_time_until(&self, is_so: impl Fn() -> bool) {
        while !is_so() {
            self.clock.advance(MINUTE);
            thread::yield_now();
        }
    }

    pub(crate) fn status(&self, id: &str) -> UnitStatus {
        self.repository.unit(self.job, id).unwrap().status
    }

    /// A thread that submits units, `name-0`, `name-1` and so on, until the pool takes no more. Returns those that it took.
    pub(crate) fn submitter(
        &self,
        pool: &Arc<WorkPool>,
        name: &'static str,
        count: usize,
        way: Way,
    ) -> JoinHandle<Vec<UnitHandle>> {
        self.submitter_of(pool, name, count, way, |unit| unit)
    }

    /// The same for units that say more about themselves.
    pub(crate) fn submitter_of(
        &self,
        pool: &Arc<WorkPool>,
        name: &'static str,
        count: usize,
        way: Way,
        dressed: impl Fn(NewUnit) -> NewUnit + Send + 'static,
    ) -> JoinHandle<Vec<UnitHandle>> {
        let (world, pool) = (self.clone(), Arc::clone(pool));
        thread::spawn(move || {
            let units = (0..count).map(|number| dressed(NewUnit::new(format!("{name}-{number}"))));
            units.filter_map(|unit| world.submit(&pool, unit, way)).collect()
        })
    }

    /// Submits one unit. What is not taken must not be there either.
    fn submit(&self, pool: &WorkPool, mut unit: NewUnit, way: Way) -> Option<UnitHandle> {
        let (id, is_hint) = (unit.id.clone(), unit.options.affinity.is_none_or(|affinity| affinity == Affinity::Hint));
        let may_fail_fast = unit.options.affinity == Some(Affinity::StrictFailFast);
        let id = id.as_str();
        if way == Way::Early {
            unit = unit.not_before(self.clock.now().wall + MINUTE);
        }
        let submitted = match way {
            Way::Waiting | Way::Early if !pool.wait_for_available_slot() => return None,
            Way::Waiting | Way::Early | Way::Hoping => pool.submit_work_unit(unit, "go"),
            Way::Line => pool.enqueue(unit, "go"),
            Way::Permit => match pool.acquire_slot() {
                Ok(permit) => permit.submit(unit, "go"),
                Err(error) => {
                    assert!(matches!(error, WaitError::Stopped | WaitError::InitFailed(_)), "{error}");
                    return None;
                }
            },
        };
        match submitted {
            Ok(handle) => Some(handle),
            Err(SubmitError { reason: Refusal::Stopped | Refusal::InitFailed(_), .. }) => self.assert_absent(id),
            Err(SubmitError {
                reason: Refusal::AtCapacity { .. } | Refusal::Held { .. } | Refusal::NotReady(PoolPhase::Initializing),
                ..
            }) if way == Way::Hoping => self.assert_absent(id),
            Err(SubmitError { reason: Refusal::WorkerBusy { .. }, .. }) if may_fail_fast => self.assert_absent(id),
            Err(SubmitError { reason: Refusal::Saturated { .. }, .. })
                if way == Way::Line || way == Way::Hoping && !is_hint =>
            {
                self.assert_absent(id)
            }
            Err(error) => panic!("{way:?}: {error}"),
        }
    }

    fn assert_absent(&self, id: &str) -> Option<UnitHandle> {
        assert!(self.repository.unit(self.job, id).is_err(), "{id} was refused and stored");
        None
    }

    /// Cancels a unit, if it is there.
    pub(crate) fn cancel(&self, pool: &WorkPool, id: &str) -> Option<CancelAnswer> {
        match pool.cancel(id, By::whom("ada")) {
            Ok(answer) => {
                // Of a later attempt the pool may have let go before it had it: then it was claimed in vain.
                let is_later = self.repository.unit(self.job, id).unwrap().attempt_count > 1;
                if answer == CancelAnswer::Cancelled || is_later {
                    self.cancelled_waiting.lock().unwrap().insert(id.to_owned());
                }
                Some(answer)
            }
            Err(RepositoryError::UnknownUnit { .. }) => None,
            Err(error) => panic!("{id}: {error}"),
        }
    }

    /// All that must hold once a pool has ended that took these units, each of them once.
    pub(crate) fn assert_ended(&self, pool: &WorkPool, summary: &Summary, handles: &[UnitHandle]) {
        let stats = pool.stats();
        assert!(summary.is_final);
        let counts =
            |stats: &PoolStats| (stats.accepted, stats.completed, stats.failed, stats.cancelled, stats.left_pending);
        assert_eq!(counts(&summary.stats), counts(&stats), "what came after the end");
        let phase = if stats.init_failure.is_some() { PoolPhase::InitFailed } else { PoolPhase::Stopped };
        assert_eq!(stats.phase, phase);
        assert_eq!((stats.running, stats.pending, stats.lost), (0, 0, 0), "{stats:?}");
        assert_eq!((stats.total_workers, stats.idle_workers, stats.busy_workers), (0, 0, 0), "{stats:?}");
        assert_eq!((stats.starting_workers, stats.tainted_workers), (0, 0), "{stats:?}");
        assert_eq!((stats.queue_size, stats.reserved_slots, stats.slot_waiters), (0, 0, 0), "{stats:?}");
        assert_eq!((stats.load, stats.capacity), (0, 0), "{stats:?}");
        assert_balanced(&stats);
        assert_eq!(stats.accepted, handles.len() as u64, "{stats:?}");
        assert_eq!(pool.workers(), []);

        let resolved: BTreeMap<_, _> =
            handles.iter().map(|handle| (handle.id(), self.assert_resolved(handle))).collect();
        let count = |wanted| resolved.values().filter(|&&status| status == wanted).count() as u64;
        assert_eq!(stats.completed, count(UnitStatus::Completed), "{stats:?}");
        assert_eq!(stats.failed, count(UnitStatus::Failed), "{stats:?}");
        assert_eq!(stats.cancelled, count(UnitStatus::Cancelled), "{stats:?}");
        assert_eq!(stats.left_pending, count(UnitStatus::Pending), "{stats:?}");

        for owner in self.repository.owners().unwrap() {
            for worker in self.repository.workers(owner.id, "", 100).unwrap() {
                // Dead is who crashed, or was on its way up when the pool did not wait for that.
                assert!(matches!(worker.status, WorkerStatus::Terminated | WorkerStatus::Dead), "{worker:?}");
                assert_eq!(worker.load, 0, "{worker:?}");
            }
        }
        // Who was left behind comes back, for here every executor returns, and only then has everything been told.
        while pool.stats().abandoned_threads > 0 {
            thread::yield_now();
        }
        self.assert_told(&resolved);
        self.watch.assert_nobody_executes();
        self.roll.assert_ended();
        let verification = Verify::new().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }

    /// All that must hold of these units once the pools that pulled them have ended: each has ended and was told once, or waits for anybody.
    pub(crate) fn assert_pulled(&self, pools: &[&WorkPool], ids: &[String]) {
        for pool in pools {
            let stats = pool.stats();
            assert_eq!((stats.running, stats.pending, stats.lost), (0, 0, 0), "{stats:?}");
            assert_eq!((stats.total_workers, stats.load, stats.reserved_slots), (0, 0, 0), "{stats:?}");
            assert_balanced(&stats);
            while pool.stats().abandoned_threads > 0 {
                thread::yield_now();
            }
        }
        let mut ended = BTreeMap::new();
        for id in ids {
            let unit = self.repository.unit(self.job, id).unwrap();
            assert!(unit.status.is_terminal() || unit.status == UnitStatus::Pending, "{id}: {}", unit.status);
            assert_eq!(unit.accepted_by, None, "{id}");
            if unit.status.is_terminal() {
                ended.insert(id.clone(), vec![unit.status]);
            }
        }
        assert_eq!(*self.told.lock().unwrap(), ended);
        self.watch.assert_nobody_executes();
        let verification = Verify::new().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }

    /// Waits for a unit, and returns how it left. That is how it is stored, unless it was cancelled later.
    pub(crate) fn assert_resolved(&self, handle: &UnitHandle) -> UnitStatus {
        let (id, status) = (handle.id(), self.status(handle.id()));
        match handle.wait() {
            Ok(unit) => assert!(unit.status.is_terminal() && unit.status == status, "{id}: {status}"),
            Err(WaitError::LeftPending) if self.cancelled_waiting.lock().unwrap().contains(id) => {
                assert!(matches!(status, UnitStatus::Pending | UnitStatus::Cancelled), "{id}: {status}");
                return UnitStatus::Pending;
            }
            Err(WaitError::LeftPending) => assert_eq!(status, UnitStatus::Pending, "{id}"),
            Err(error) => panic!("{id}: {error}"),
        }
        status
    }

    /// Each end was told once, and nothing else.
    fn assert_told(&self, resolved: &BTreeMap<&str, UnitStatus>) {
        let ended = resolved.iter().filter(|(_, status)| status.is_terminal());
        let ended: BTreeMap<_, _> = ended.map(|(&id, &status)| (id.to_owned(), vec![status])).collect();
        assert_eq!(*self.told.lock().unwrap(), ended);
    }
}

/// Nobody has more than it can have, and what is said of all is the sum of what is said of each.
pub(crate) fn assert_bounded(stats: &PoolStats) {
    assert!(stats.queue_size <= stats.max_queue_size, "{stats:?}");
    assert!(stats.workers.values().all(|worker| worker.load <= worker.capacity), "{stats:?}");
    let load: u32 = stats.workers.values().map(|worker| worker.load).sum();
    assert_eq!(stats.load, usize::try_from(load).unwrap(), "{stats:?}");
}

pub(crate) fn assert_balanced(stats: &PoolStats) {
    let PoolStats { pending, running, completed, failed, cancelled, left_pending, lost, .. } = *stats;
    assert_eq!(stats.accepted, pending + running + completed + failed + cancelled + left_pending + lost, "{stats:?}");
}

/// What all of them returned.
pub(crate) fn join_all<T>(threads: impl IntoIterator<Item = JoinHandle<Vec<T>>>) -> Vec<T> {
    threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
}

/// A thread that does something with a pool.
pub(crate) fn waiter<T: Send + 'static>(
    pool: &Arc<WorkPool>,
    wait: impl FnOnce(&WorkPool) -> T + Send + 'static,
) -> JoinHandle<T> {
    let pool = Arc::clone(pool);
    thread::spawn(move || wait(&pool))
}
