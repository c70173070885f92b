//! Stopping while units are on their way in: ten thousand small pools, each stopped at a moment of its own.
//!
//! The seed is printed; `WORKCREW_SEED` repeats the choices of every round, though not their interleaving.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use workcrew::audit::verify::Verify;
use workcrew::executor::CancelToken;
use workcrew::repository::{By, CancelAnswer, UnitFilter};
use workcrew::{
    Archive, Call, ExecuteError, Executor, JobId, MemoryRepository, NewJob, NewUnit, PoolHandle, PoolPhase, PoolStats,
    Refusal, Repository, RetryPolicy, Scaling, Stop, SubmitError, UnitHandle, UnitStatus, WaitError, WorkPool,
    WorkPoolBuilder, WorkResult, WorkUnit, WorkerId,
};

use crate::support::Random;

const ROUNDS: usize = 10_000;

/// How many rounds are played at a time: pools mostly wait, and interleave the more the less there is to spare.
const PLAYERS: usize = 4;

/// Far longer than a round takes: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// How many units a round has, at most. Several threads may bring the same one.
const UNITS: usize = 8;

#[test]
fn stopping_ten_thousand_pools_while_units_come_in_loses_nothing() {
    // 000-F30, 001-F26, 001-F56, 001-F70, 001-F88, I1, I2, I10, I14
    let seed = Random::seed();
    let (next, tally) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    let watch = Watch::new(seed);
    let play = |player: usize| {
        loop {
            let round = next.fetch_add(1, Ordering::Relaxed);
            if round >= ROUNDS {
                return;
            }
            watch.begin(player, round);
            let played = Round::new(seed, round).play();
            tally.lock().unwrap().add(&played);
            watch.end(player);
        }
    };
    thread::scope(|threads| {
        for player in 0..PLAYERS {
            let play = &play;
            threads.spawn(move || play(player));
        }
    });
    tally.into_inner().unwrap().assert_that_all_of_it_happened();
}

/// Ends the process with the seed and the round if a round hangs, and says which one it was if a round fails.
struct Watch {
    seed: u64,
    rounds: Arc<Mutex<BTreeMap<usize, (usize, Instant)>>>,
    _alive: Arc<()>,
}

impl Watch {
    fn new(seed: u64) -> Watch {
        let (rounds, alive) = (Arc::new(Mutex::new(BTreeMap::<usize, (usize, Instant)>::new())), Arc::new(()));
        let (watched, is_needed) = (Arc::clone(&rounds), Arc::downgrade(&alive));
        thread::spawn(move || {
            while is_needed.strong_count() > 0 {
                thread::park_timeout(PATIENCE / 10);
                let rounds = watched.lock().unwrap();
                if let Some(&(round, _)) = rounds.values().find(|(_, began)| began.elapsed() > PATIENCE) {
                    // Not by a macro, whose output the harness would keep for itself.
                    let _ = writeln!(std::io::stderr(), "{} hangs", Round::new(seed, round).name);
                    std::process::abort();
                }
            }
        });
        Watch { seed, rounds, _alive: alive }
    }

    fn begin(&self, player: usize, round: usize) {
        self.rounds.lock().unwrap().insert(player, (round, Instant::now()));
    }

    fn end(&self, player: usize) {
        self.rounds.lock().unwrap().remove(&player);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if thread::panicking() {
            let rounds = self.rounds.lock().unwrap();
            eprintln!("WORKCREW_SEED={}: failed in one of the rounds {:?}", self.seed, rounds.values());
        }
    }
}

/// When a pool is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    /// While another thread starts it.
    WhileStarting,
    AtOnce,
    FirstReady,
    Initialized,
    /// As soon as so many executions have begun, or after a little while.
    Executions(usize),
    /// When everybody has brought what they had.
    AllIn,
}

/// How a pool is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Once(Stop),
    /// By two threads at a time.
    Twice(Stop, Stop),
    /// By a callback, then from outside.
    Callback(Stop, Stop),
    Drop,
}

/// What a thread does that brings units.
#[derive(Clone, Copy, Debug)]
enum Act {
    Enqueue(usize),
    Submit(usize),
    WaitAndSubmit(usize),
    AcquireAndSubmit(usize),
    AcquireAndGiveBack,
    Cancel(usize),
    Pause,
    Resume,
}

/// One pool, and what it meets.
struct Round {
    name: String,
    scaling: Scaling,
    workers: (usize, usize),
    max_queue_size: usize,
    retry: RetryPolicy,
    taint: Duration,
    startup_batch: usize,
    hook: Option<Hook>,
    fate: Arc<Fate>,
    moment: Moment,
    way: Way,
    acts: Vec<Vec<Act>>,
    repository: MemoryRepository,
    job: JobId,
}

/// What the init hook does.
#[derive(Clone, Copy, Debug)]
enum Hook {
    Returns,
    WaitsToBeAsked,
    Fails,
}

/// What an execution does, by its unit.
#[derive(Clone, Copy, Debug)]
enum Plan {
    Succeed,
    FailFirst,
    GiveUp,
    PanicFirst,
    BreakFirst,
    /// Goes on until it is asked to stop, or a little longer than a round has patience for.
    Linger,
    /// Does not hear that it is asked to.
    Dally,
}

/// The executor, and what it sees.
struct Fate {
    plans: [Plan; UNITS],
    /// Every so-manieth worker does not come up; 0 means none.
    start_failures: usize,
    starts: AtomicUsize,
    begun: AtomicUsize,
    is_stopping: AtomicBool,
    handles: Mutex<Vec<UnitHandle>>,
    /// Units that were cancelled at once, or when they may have been left already.
    cancelled: Mutex<BTreeSet<String>>,
    /// Units whose execution began although their handles had resolved, and which nobody had asked to stop.
    too_late: Mutex<Vec<String>>,
}

/// What came of a round.
struct Played {
    moment: Moment,
    stats: Option<PoolStats>,
    statuses: Vec<UnitStatus>,
}

fn pick<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.below(choices.len())]
}

/// Waits until something holds that nobody tells of; the watch sees if it never does.
fn until(holds: impl Fn() -> bool) {
    while !holds() {
        thread::yield_now();
    }
}

fn unit_name(number: usize) -> String {
    format!("u{number}")
}

/// The same unit whoever brings it.
fn unit(number: usize) -> NewUnit {
    NewUnit::new(unit_name(number)).priority(i32::try_from(number % 3).unwrap()).prompt("go")
}

fn any_stop(random: &mut Random) -> Stop {
    let grace = pick(random, &[Duration::ZERO, Duration::from_millis(1), Duration::from_secs(5)]);
    pick(random, &[Stop::Drain, Stop::Drain, Stop::Cancel { grace }, Stop::Now])
}

fn any_act(random: &mut Random, has_pool: bool) -> Act {
    let unit = random.below(UNITS);
    match random.below(if has_pool { 12 } else { 8 }) {
        0..4 => Act::Enqueue(unit),
        4 => Act::Submit(unit),
        5 => Act::WaitAndSubmit(unit),
        6 => Act::Cancel(unit),
        7 => pick(random, &[Act::Pause, Act::Resume, Act::Resume, Act::Enqueue(unit)]),
        8..11 => Act::AcquireAndSubmit(unit),
        _ => Act::AcquireAndGiveBack,
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Round { scaling, workers, max_queue_size, retry, taint, startup_batch, hook, fate, moment, way, .. } = self;
        write!(
            f,
            "{scaling:?}, {workers:?} workers, {max_queue_size} in line, {retry:?}, taint {taint:?}, batches of "
        )?;
        write!(
            f,
            "{startup_batch}, {hook:?}, {:?}, 1/{} fail, {moment:?}, {way:?}, ",
            fate.plans, fate.start_failures
        )?;
        write!(f, "{:?}", self.acts)
    }
}

impl Round {
    fn new(seed: u64, number: usize) -> Round {
        let mut random = Random::new(seed.wrapping_add((number as u64).wrapping_mul(0xd134_2543_de82_ef95)));
        let random = &mut random;
        let max_workers = 1 + random.below(3);
        let threshold =
            Scaling::Threshold { queued: 1 + random.below(2), idle: Duration::from_millis(random.below(3) as u64) };
        let way = match random.below(8) {
            0..4 => Way::Once(any_stop(random)),
            4..6 => Way::Twice(any_stop(random), any_stop(random)),
            6 => Way::Callback(any_stop(random), any_stop(random)),
            _ => Way::Drop,
        };
        let moments = [
            Moment::WhileStarting,
            Moment::AtOnce,
            Moment::FirstReady,
            Moment::Initialized,
            Moment::Executions(1 + random.below(3)),
            Moment::AllIn,
        ];
        let has_pool = way != Way::Drop;
        let moment = if has_pool { pick(random, &moments) } else { pick(random, &moments[1..]) };
        let any_acts = |random: &mut Random| (0..1 + random.below(4)).map(|_| any_act(random, has_pool)).collect();
        let acts = (0..1 + random.below(3)).map(|_| any_acts(random)).collect();
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("a round")).unwrap().id;
        let round = Round {
            name: String::new(),
            scaling: pick(random, &[Scaling::OnDemand, Scaling::Fixed, threshold]),
            workers: (random.below(max_workers + 1), max_workers),
            max_queue_size: random.below(5),
            retry: RetryPolicy::fixed(Duration::from_millis(random.below(2) as u64)),
            taint: Duration::from_millis(random.below(2) as u64),
            startup_batch: 1 + random.below(3),
            hook: pick(random, &[None, None, Some(Hook::Returns), Some(Hook::WaitsToBeAsked)])
                .or_else(|| (random.below(20) == 0).then_some(Hook::Fails)),
            fate: Arc::new(Fate::new(random)),
            moment,
            way,
            acts,
            repository,
            job,
        };
        Round { name: format!("WORKCREW_SEED={seed}, round {number}, {round}"), ..round }
    }

    fn builder(&self) -> WorkPoolBuilder {
        let executor = Lot(Arc::clone(&self.fate));
        let repository: Arc<dyn Repository> = Arc::new(self.repository.clone());
        let mut builder = WorkPool::builder(self.job, executor, repository)
            .scaling(self.scaling)
            .min_workers(self.workers.0)
            .max_workers(self.workers.1)
            .max_queue_size(self.max_queue_size)
            .retry(self.retry.clone())
            .taint_for(self.taint)
            .startup_batch(self.startup_batch)
            .startup_batch_delay(Duration::ZERO)
            .shutdown_grace(Duration::from_secs(5))
            // A heartbeat looks after everything: without one, whoever was not woken sleeps on.
            .lease(Duration::from_secs(3_600))
            .heartbeat(Duration::from_secs(1_000));
        if let Some(hook) = self.hook {
            builder = builder.init_hook(move |cancel| hook.run(cancel));
        }
        if let Way::Callback(stop, _) = self.way {
            let (handle, fate) = (builder.handle(), Arc::clone(&self.fate));
            builder = builder.on_unit_complete(move |_, _| {
                fate.is_stopping.store(true, Ordering::SeqCst);
                handle.stop(stop);
            });
        }
        builder
    }

    fn play(&self) -> Played {
        let builder = self.builder();
        let (handle, pool) = (builder.handle(), builder.build().unwrap());
        let stats = match self.way {
            Way::Drop => self.drop_it(pool, &handle),
            _ => Some(self.stop_it(&pool, &handle)),
        };
        self.check(stats.as_ref());
        self.played(stats)
    }

    fn drop_it(&self, pool: WorkPool, handle: &PoolHandle) -> Option<PoolStats> {
        pool.start().unwrap();
        thread::scope(|threads| {
            let bringing = self.acts.iter().map(|acts| threads.spawn(|| self.bring(acts, handle, None)));
            let bringing: Vec<_> = bringing.collect();
            self.wait_for_moment(&pool, || bringing.iter().all(thread::ScopedJoinHandle::is_finished));
            drop(pool);
        });
        // Whoever was left behind keeps what they all shared for a little longer.
        until(|| handle.stats().is_none_or(|stats| stats.abandoned_threads == 0));
        handle.stats()
    }

    fn stop_it(&self, pool: &WorkPool, handle: &PoolHandle) -> PoolStats {
        if self.moment != Moment::WhileStarting {
            pool.start().unwrap();
        }
        thread::scope(|threads| {
            let bringing = self.acts.iter().map(|acts| threads.spawn(|| self.bring(acts, handle, Some(pool))));
            let bringing: Vec<_> = bringing.collect();
            if self.moment == Moment::WhileStarting {
                threads.spawn(|| drop(pool.start()));
            }
            self.wait_for_moment(pool, || bringing.iter().all(thread::ScopedJoinHandle::is_finished));
            let (Way::Once(stop) | Way::Twice(stop, _) | Way::Callback(_, stop)) = self.way else { return };
            if let Way::Twice(_, other) = self.way {
                threads.spawn(move || pool.stop(other).unwrap());
            }
            pool.stop(stop).unwrap();
        });
        let summary = pool.stop(Stop::Drain).unwrap();
        assert!(summary.is_final, "{}: {summary:?}", self.name);
        let refused = handle.enqueue(NewUnit::new("too late"), "go").map(drop);
        let is_refused = matches!(refused, Err(SubmitError { reason: Refusal::Stopped | Refusal::InitFailed(_), .. }));
        assert!(is_refused, "{}: {refused:?}", self.name);
        // Whoever was left behind may still store a late result.
        until(|| pool.stats().abandoned_threads == 0);
        let mut stats = pool.stats();
        stats.abandoned_threads = summary.stats.abandoned_threads;
        stats
    }

    /// Waits for the moment to stop, but never for long: what is waited for need not come.
    fn wait_for_moment(&self, pool: &WorkPool, are_all_in: impl Fn() -> bool) {
        const NOT_LONG: Duration = Duration::from_millis(3);
        let began = Instant::now();
        let is_over = || began.elapsed() > NOT_LONG;
        match self.moment {
            Moment::WhileStarting | Moment::AtOnce => {}
            Moment::FirstReady => drop(pool.await_ready_timeout(NOT_LONG)),
            Moment::Initialized => drop(pool.await_init_complete_timeout(NOT_LONG)),
            Moment::Executions(count) => until(|| self.fate.begun.load(Ordering::Relaxed) >= count || is_over()),
            Moment::AllIn => until(|| are_all_in() || is_over()),
        }
        self.fate.is_stopping.store(true, Ordering::SeqCst);
    }

    /// Does what a thread does that brings units.
    fn bring(&self, acts: &[Act], handle: &PoolHandle, pool: Option<&WorkPool>) {
        for &act in acts {
            let brought = match (act, pool) {
                (Act::Enqueue(number), _) => handle.enqueue(unit(number), "go"),
                (Act::Submit(number), _) => handle.submit_work_unit(unit(number), "go"),
                (Act::WaitAndSubmit(number), _) => {
                    handle.wait_for_available_slot();
                    handle.submit_work_unit(unit(number), "go")
                }
                (Act::AcquireAndSubmit(number), Some(pool)) => match pool.acquire_slot() {
                    Ok(permit) => permit.submit(unit(number), "go"),
                    Err(_) => continue,
                },
                (Act::Cancel(number), _) => {
                    self.cancel(handle, number);
                    continue;
                }
                (Act::AcquireAndGiveBack, Some(pool)) => {
                    drop(pool.acquire_slot());
                    continue;
                }
                (Act::Pause, _) => {
                    handle.pause();
                    continue;
                }
                (Act::Resume | Act::AcquireAndSubmit(_) | Act::AcquireAndGiveBack, _) => {
                    handle.resume();
                    continue;
                }
            };
            match brought {
                Ok(handle) => self.fate.handles.lock().unwrap().push(handle),
                Err(SubmitError { reason: Refusal::Repository(error), .. }) => panic!("{}: {error}", self.name),
                Err(_) => {}
            }
        }
    }

    fn cancel(&self, handle: &PoolHandle, number: usize) {
        let id = unit_name(number);
        let Some(Ok(answer)) = handle.cancel(&id, By::whom("a test")) else { return };
        // What a stop has left may be on its way back, and is cancelled when it has arrived.
        if answer == CancelAnswer::Cancelled || self.fate.is_stopping.load(Ordering::SeqCst) {
            self.fate.cancelled.lock().unwrap().insert(id);
        }
    }

    /// The units that were stored, whoever was told of it.
    fn stored(&self) -> Vec<WorkUnit> {
        self.repository.units(&UnitFilter::job(self.job), 0, 100).unwrap().items
    }

    /// Everything holds that must hold when a pool has stopped.
    fn check(&self, stats: Option<&PoolStats>) {
        let name = &self.name;
        let stored = self.stored();
        for unit in &stored {
            let is_at_rest = unit.status.is_terminal() || unit.status == UnitStatus::Pending;
            assert!(is_at_rest, "{name}: unit {} is {}", unit.id, unit.status);
            assert!(unit.accepted_by.is_none() || unit.status.is_terminal(), "{name}: unit {} is not free", unit.id);
        }
        let handles = self.fate.handles.lock().unwrap();
        for handle in &*handles {
            self.check_handle(handle);
        }
        for owner in self.repository.owners().unwrap() {
            assert!(owner.ended_at.is_some(), "{name}: {} has not ended", owner.id);
            for worker in self.repository.workers(owner.id, "", 100).unwrap() {
                assert!(worker.status.is_ended(), "{name}: {} is {}", worker.id, worker.status);
                assert_eq!((worker.load, worker.current_unit), (0, None), "{name}: {}", worker.id);
            }
        }
        if let Some(stats) = stats {
            self.check_stats(stats, &stored);
        }
        assert_eq!(*self.fate.too_late.lock().unwrap(), [""; 0], "{name}: executed after their handles had resolved");
        let acknowledged = handles.iter().map(|handle| (self.job, handle.id().to_owned()));
        let verify = Verify::new().acknowledged(acknowledged).submitted((0..UNITS).map(|n| (self.job, unit_name(n))));
        let verification = verify.run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{name}: {verification}");
    }

    fn check_handle(&self, handle: &UnitHandle) {
        let (name, status) = (&self.name, handle.unit().unwrap().status);
        match handle.wait_timeout(Duration::ZERO) {
            Ok(unit) => assert!(unit.status.is_terminal(), "{name}: {} ended as {}", handle.id(), unit.status),
            Err(WaitError::LeftPending) => {
                // What was left may be cancelled by anybody.
                let is_cancelled = || self.fate.cancelled.lock().unwrap().contains(handle.id());
                let is_left = status == UnitStatus::Pending || (status == UnitStatus::Cancelled && is_cancelled());
                assert!(is_left, "{name}: {} was left, and is {status}", handle.id());
            }
            Err(error) => panic!("{name}: {} is {status}, and its handle says: {error}", handle.id()),
        }
    }

    fn check_stats(&self, stats: &PoolStats, stored: &[WorkUnit]) {
        let name = &self.name;
        let count = |status| stored.iter().filter(|unit| unit.status == status).count() as u64;
        let PoolStats { completed, failed, cancelled, left_pending, .. } = *stats;
        assert_eq!(stats.accepted, completed + failed + cancelled + left_pending, "{name}: {stats:?}");
        let ended = [UnitStatus::Completed, UnitStatus::Failed].map(count);
        assert_eq!([completed, failed], ended, "{name}: {stats:?}");
        // What was left may be cancelled by anybody.
        let all_cancelled = count(UnitStatus::Cancelled);
        assert!((all_cancelled.saturating_sub(left_pending)..=all_cancelled).contains(&cancelled), "{name}: {stats:?}");
        let at_rest = [stats.total_workers, stats.busy_workers, stats.queue_size, stats.reserved_slots];
        assert_eq!((at_rest, stats.slot_waiters, stats.init_waiters), ([0; 4], 0, 0), "{name}: {stats:?}");
        assert!(stats.workers.is_empty(), "{name}: {stats:?}");
        assert!(matches!(stats.phase, PoolPhase::Stopped | PoolPhase::InitFailed), "{name}: {stats:?}");
    }

    fn played(&self, stats: Option<PoolStats>) -> Played {
        let statuses = self.stored().into_iter().map(|unit| unit.status).collect();
        Played { moment: self.moment, stats, statuses }
    }
}

impl Hook {
    fn run(self, cancel: &CancelToken) -> Result<(), ExecuteError> {
        match self {
            Hook::Returns => Ok(()),
            Hook::WaitsToBeAsked => {
                cancel.wait_timeout(Duration::from_millis(2));
                Ok(())
            }
            Hook::Fails => Err(ExecuteError::retry("no")),
        }
    }
}

impl Fate {
    fn new(random: &mut Random) -> Fate {
        let plans = [
            Plan::Succeed,
            Plan::Succeed,
            Plan::FailFirst,
            Plan::GiveUp,
            Plan::PanicFirst,
            Plan::BreakFirst,
            Plan::Linger,
            Plan::Dally,
        ];
        Fate {
            plans: std::array::from_fn(|_| pick(random, &plans)),
            start_failures: pick(random, &[0, 0, 0, 2, 1]),
            starts: AtomicUsize::new(0),
            begun: AtomicUsize::new(0),
            is_stopping: AtomicBool::new(false),
            handles: Mutex::default(),
            cancelled: Mutex::default(),
            too_late: Mutex::default(),
        }
    }
}

/// The executor, which does what is fated.
struct Lot(Arc<Fate>);

impl Executor for Lot {
    fn start_worker(&self, _: &WorkerId, _: &CancelToken) -> Result<(), ExecuteError> {
        let number = self.0.starts.fetch_add(1, Ordering::Relaxed) + 1;
        match self.0.start_failures {
            0 => Ok(()),
            every if number.is_multiple_of(every) => Err(ExecuteError::retry("not today")),
            _ => Ok(()),
        }
    }

    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let id = call.unit().id.as_str();
        let is_it = |handle: &&UnitHandle| handle.id() == id && handle.is_done();
        // Looked at in this order: whoever is given up is asked to stop first.
        if self.0.handles.lock().unwrap().iter().any(|handle| is_it(&handle)) && !call.cancel_token().is_cancelled() {
            self.0.too_late.lock().unwrap().push(id.to_owned());
        }
        self.0.begun.fetch_add(1, Ordering::Relaxed);
        let is_first = call.attempt_number() == 1;
        match self.0.plans[id[1..].parse::<usize>().unwrap()] {
            Plan::FailFirst if is_first => return Err(ExecuteError::retry("the first time")),
            Plan::GiveUp => return Err(ExecuteError::give_up("never")),
            // Unlike `panic!` it tells nobody, ten thousand times.
            Plan::PanicFirst if is_first => std::panic::resume_unwind(Box::new("the first time")),
            Plan::BreakFirst if is_first => return Err(ExecuteError::broken("the first time")),
            Plan::Linger if call.cancel_token().wait_timeout(Duration::from_millis(2)).is_some() => {
                return Err(ExecuteError::retry("asked to stop"));
            }
            Plan::Dally => thread::park_timeout(Duration::from_micros(500)),
            _ => {}
        }
        Ok(WorkResult::empty())
    }
}

/// How often what happened.
#[derive(Debug, Default)]
struct Tally(BTreeMap<String, usize>);

impl Tally {
    fn add(&mut self, played: &Played) {
        let mut count = |what: String, times: usize| *self.0.entry(what).or_default() += times;
        count(format!("{:?}", played.moment), 1);
        for status in &played.statuses {
            count(status.to_string(), 1);
        }
        if let Some(stats) = &played.stats {
            count(stats.phase.to_string(), 1);
            count("queued".to_owned(), usize::try_from(stats.queued).unwrap());
            count("saturated".to_owned(), usize::try_from(stats.saturated).unwrap());
            count("retried".to_owned(), usize::try_from(stats.retried).unwrap());
            count("left behind".to_owned(), stats.abandoned_threads);
        }
    }

    /// Rounds in which nothing happens prove nothing.
    fn assert_that_all_of_it_happened(&self) {
        println!("{ROUNDS} rounds had {self:?}");
        let ends = ["COMPLETED", "FAILED", "CANCELLED", "PENDING", "stopped", "init failed", "queued", "saturated"];
        for what in ends {
            assert!(self.0.get(what).is_some_and(|&times| times > ROUNDS / 500), "hardly ever {what}: {self:?}");
        }
    }
}
