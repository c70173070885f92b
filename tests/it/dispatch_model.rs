//! Random sequences of what can be done to a pool, told to a pool and to a model of plain numbers: they must agree after every step.
//!
//! Executions are played by the test and time is its own, so each step has one outcome. `WORKCREW_SEED` repeats a run,
//! `PROPTEST_CASES` sets how many sequences it has.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use workcrew::audit::verify;
use workcrew::clock::ManualClock;
use workcrew::executor::kinds;
use workcrew::repository::{Archive, By, CancelAnswer};
use workcrew::unit::Change;
use workcrew::{
    Call, Event, ExecuteError, JobId, MemoryRepository, NewJob, NewUnit, PoolHandle, PoolStats, Refusal, Repository,
    RetryPolicy, Scaling, Stop, SubmitError, UnitHandle, UnitStatus, WaitError, WorkPool, WorkResult, WorkerStatus,
    WorkerView,
};

use crate::support::{self, Up as _};

const DEFAULT_CASES: u32 = 1_000;

/// What takes longer than this does not come.
const PATIENCE: Duration = Duration::from_secs(5);

/// The pause before an attempt that follows another.
const PAUSE_MS: u64 = 10_000;
const MAX_RETRIES: u32 = 2;
const MAX_WORKERS: usize = 4;

/// One step. Numbers choose among the units there are.
#[derive(Clone, Debug)]
enum Operation {
    Submit { priority: i32 },
    Enqueue { priority: i32 },
    EnqueueAgain(usize),
    Cancel(usize),
    Succeed(usize),
    FailAndRetry(usize),
    GiveUp(usize),
    Refuse(usize),
    Crash { unit: usize, is_panic: bool },
    SetMaxWorkers(usize),
    Pause,
    Resume,
    Advance { ms: u64 },
}

/// A pool, what is done to it, and how it is stopped.
#[derive(Clone, Debug)]
struct Sequence {
    scaling: Scaling,
    max_workers: usize,
    max_queue_size: usize,
    operations: Vec<Operation>,
    stop: Stop,
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let (unit, priority) = (0..100_usize, -1..2_i32);
    prop_oneof![
        2 => priority.clone().prop_map(|priority| O::Submit { priority }),
        6 => priority.prop_map(|priority| O::Enqueue { priority }),
        1 => unit.clone().prop_map(O::EnqueueAgain),
        2 => unit.clone().prop_map(O::Cancel),
        4 => unit.clone().prop_map(O::Succeed),
        2 => unit.clone().prop_map(O::FailAndRetry),
        1 => unit.clone().prop_map(O::GiveUp),
        1 => unit.clone().prop_map(O::Refuse),
        2 => (unit, any::<bool>()).prop_map(|(unit, is_panic)| O::Crash { unit, is_panic }),
        1 => (1..=MAX_WORKERS).prop_map(O::SetMaxWorkers),
        1 => Just(O::Pause),
        3 => Just(O::Resume),
        2 => (1..2 * PAUSE_MS).prop_map(|ms| O::Advance { ms }),
    ]
}

fn sequence() -> impl Strategy<Value = Sequence> {
    // With a threshold of one, whoever waits gets a worker as long as there may be another.
    let threshold = Scaling::Threshold { queued: 1, idle: Duration::from_secs(300 * 24 * 3_600) };
    let scaling = prop_oneof![Just(Scaling::OnDemand), Just(Scaling::Fixed), Just(threshold), Just(Scaling::ADAPTIVE)];
    let stop = prop_oneof![Just(Stop::Drain), Just(Stop::Cancel { grace: PATIENCE }), Just(Stop::Now)];
    (scaling, 1..=MAX_WORKERS, 0..6_usize, prop::collection::vec(operation(), 1..40), stop).prop_map(
        |(scaling, max_workers, max_queue_size, operations, stop)| Sequence {
            scaling,
            max_workers,
            max_queue_size,
            operations,
            stop,
        },
    )
}

/// Where a unit of the model stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It waits for a place.
    Due,
    /// It waits for its next attempt.
    Pausing {
        until_ms: u64,
    },
    Running,
    Ended(UnitStatus),
}

#[derive(Clone, Debug)]
struct ModelUnit {
    priority: i32,
    standing: Standing,
    attempts: u32,
    /// Whether it counts as waiting in line.
    is_in_line: bool,
}

/// What a pool should look like.
#[derive(Clone, Debug)]
struct Model {
    now_ms: u64,
    max_workers: usize,
    /// How many there may be now.
    allowed_workers: usize,
    max_queue_size: usize,
    is_paused: bool,
    /// In the order in which they were stored.
    units: Vec<ModelUnit>,
    /// The units that began, in that order.
    starts: Vec<usize>,
    counts: Counts,
}

/// What a pool counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    requests: u64,
    queued: u64,
    saturated: u64,
    attempts: u64,
    retried: u64,
    errors: u64,
}

/// All of a pool that the model knows.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    counts: Counts,
    max_workers: usize,
    allowed_workers: usize,
    is_paused: bool,
    queue_size: usize,
    accepted: u64,
    pending: u64,
    completed: u64,
    failed: u64,
    cancelled: u64,
    /// Those that workers have in hand.
    running: BTreeSet<String>,
}

impl Seen {
    fn of(stats: &PoolStats) -> Seen {
        let PoolStats { requests, queued, saturated, attempts, retried, errors, .. } = *stats;
        let in_hand = stats.workers.values().filter_map(|worker| worker.unit_id.as_ref());
        Seen {
            counts: Counts { requests, queued, saturated, attempts, retried, errors },
            max_workers: stats.max_workers,
            allowed_workers: stats.allowed_workers,
            is_paused: stats.hold.is_some(),
            queue_size: stats.queue_size,
            accepted: stats.accepted,
            pending: stats.pending,
            completed: stats.completed,
            failed: stats.failed,
            cancelled: stats.cancelled,
            running: in_hand.map(ToString::to_string).collect(),
        }
    }
}

fn name(unit: usize) -> String {
    format!("u{unit}")
}

impl Model {
    fn seen(&self) -> Seen {
        let count = |is_it: fn(Standing) -> bool| self.units.iter().filter(|unit| is_it(unit.standing)).count() as u64;
        Seen {
            counts: self.counts.clone(),
            max_workers: self.max_workers,
            allowed_workers: self.allowed_workers,
            is_paused: self.is_paused,
            queue_size: self.units.iter().filter(|unit| unit.is_in_line).count(),
            accepted: self.units.len() as u64,
            pending: count(|standing| matches!(standing, Standing::Due | Standing::Pausing { .. })),
            completed: count(|standing| standing == Standing::Ended(UnitStatus::Completed)),
            failed: count(|standing| standing == Standing::Ended(UnitStatus::Failed)),
            cancelled: count(|standing| standing == Standing::Ended(UnitStatus::Cancelled)),
            running: self.running().map(name).collect(),
        }
    }

    fn running(&self) -> impl Iterator<Item = usize> {
        (0..self.units.len()).filter(|&unit| self.units[unit].standing == Standing::Running)
    }

    fn has_free(&self) -> bool {
        !self.is_paused && self.running().count() < self.allowed_workers
    }

    fn is_saturated(&self) -> bool {
        self.units.iter().filter(|unit| unit.is_in_line).count() >= self.max_queue_size
    }

    fn add(&mut self, priority: i32) -> usize {
        self.units.push(ModelUnit { priority, standing: Standing::Due, attempts: 0, is_in_line: false });
        self.units.len() - 1
    }

    fn wait_in_line(&mut self, unit: usize) {
        self.units[unit].is_in_line = true;
        self.counts.queued += 1;
    }

    fn start(&mut self, unit: usize) {
        self.units[unit].standing = Standing::Running;
        self.units[unit].attempts += 1;
        self.units[unit].is_in_line = false;
        self.counts.attempts += 1;
        self.starts.push(unit);
    }

    fn end(&mut self, unit: usize, status: UnitStatus) {
        self.units[unit].standing = Standing::Ended(status);
        self.units[unit].is_in_line = false;
    }

    /// An execution failed, and another follows if there is one left.
    fn fail(&mut self, unit: usize) {
        self.counts.errors += 1;
        if self.units[unit].attempts > MAX_RETRIES {
            return self.end(unit, UnitStatus::Failed);
        }
        self.counts.retried += 1;
        self.units[unit].standing = Standing::Pausing { until_ms: self.now_ms + PAUSE_MS };
    }

    /// Whoever waits gets a place, the larger priority first, then whoever came first.
    fn settle(&mut self) {
        while self.has_free() {
            let due = (0..self.units.len()).filter(|&unit| self.units[unit].standing == Standing::Due);
            let Some(next) = due.min_by_key(|&unit| (-self.units[unit].priority, unit)) else { return };
            self.start(next);
        }
    }

    /// When the next pause is over.
    fn next_due_ms(&self) -> Option<u64> {
        let pauses = self.units.iter().filter_map(|unit| match unit.standing {
            Standing::Pausing { until_ms } => Some(until_ms),
            _ => None,
        });
        pauses.min()
    }
}

/// How an execution ends.
#[derive(Clone, Copy, Debug)]
enum End {
    Success,
    Retry,
    GiveUp,
    Refused,
    Broken,
    Panic,
}

/// One execution, in the hands of the test. Dropped, it succeeds.
struct Played {
    id: String,
    cancel: workcrew::executor::CancelToken,
    end: Sender<End>,
}

/// The executor: it tells of each call, then ends as it is told.
fn play(calls: &Sender<Played>, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let (end, told) = bounded(1);
    let _ = calls.send(Played { id: call.unit().id.to_string(), cancel: call.cancel_token().clone(), end });
    match told.recv().unwrap_or(End::Success) {
        End::Success => Ok(WorkResult::empty()),
        End::Retry => Err(ExecuteError::retry("once more")),
        End::GiveUp => Err(ExecuteError::give_up("never")),
        End::Refused => Err(ExecuteError::retry("one of too many").kind(kinds::RATE_LIMITED)),
        End::Broken => Err(ExecuteError::broken("broken")),
        // Unlike `panic!` it tells nobody.
        End::Panic => std::panic::resume_unwind(Box::new("a crash")),
    }
}

type Checked<T> = Result<T, TestCaseError>;

/// A pool and its model. What runs ends before the pool is dropped, which would wait for it.
struct World {
    calls: Receiver<Played>,
    played: BTreeMap<String, Played>,
    /// Something happened in the pool.
    events: Receiver<()>,
    handles: Vec<(usize, UnitHandle)>,
    handle: PoolHandle,
    pool: WorkPool,
    scaling: Scaling,
    clock: ManualClock,
    repository: MemoryRepository,
    job: JobId,
    model: Model,
}

impl World {
    fn new(sequence: &Sequence) -> World {
        const FOR_EVER: Duration = Duration::from_secs(300 * 24 * 3_600);
        let clock = ManualClock::new();
        let repository = MemoryRepository::with_clock(clock.clone());
        let job = repository.create_job(&NewJob::named("a model")).unwrap().id;
        let ((tell, calls), (happens, events)) = (unbounded(), unbounded());
        let pool = WorkPool::builder(job, move |call: &Call<'_>| play(&tell, call), repository.clone())
            .clock(clock.clone())
            .scaling(sequence.scaling)
            .max_workers(sequence.max_workers)
            .max_queue_size(sequence.max_queue_size)
            .startup_batch_delay(Duration::ZERO)
            .retry(RetryPolicy::fixed(Duration::from_millis(PAUSE_MS)))
            .timeout(FOR_EVER)
            .lease(FOR_EVER)
            .heartbeat(FOR_EVER / 3)
            .observer(move |_: &Event<'_>| {
                let _ = happens.send(());
            })
            .up();
        let is_adaptive = sequence.scaling == Scaling::ADAPTIVE;
        let model = Model {
            now_ms: 0,
            max_workers: sequence.max_workers,
            allowed_workers: if is_adaptive { 1 } else { sequence.max_workers },
            max_queue_size: sequence.max_queue_size,
            is_paused: false,
            units: Vec::new(),
            starts: Vec::new(),
            counts: Counts::default(),
        };
        let handle = pool.handle();
        let played = BTreeMap::new();
        World {
            calls,
            played,
            events,
            handles: Vec::new(),
            handle,
            pool,
            scaling: sequence.scaling,
            clock,
            repository,
            job,
            model,
        }
    }

    /// Does a step with both, and waits until the pool has come to where the model is. Says whether it changed anything.
    fn step(&mut self, operation: &Operation) -> Checked<bool> {
        use Operation as O;
        // No two pauses end at the same moment: whose turn it is would depend on which is noticed first.
        self.advance(1)?;
        let before = self.model.seen();
        match *operation {
            O::Submit { priority } => self.submit(priority)?,
            O::Enqueue { priority } => self.enqueue(None, priority)?,
            O::EnqueueAgain(unit) if !self.model.units.is_empty() => {
                let unit = unit % self.model.units.len();
                self.enqueue(Some(unit), self.model.units[unit].priority)?;
            }
            O::Cancel(unit) if !self.model.units.is_empty() => self.cancel(unit % self.model.units.len())?,
            O::Succeed(unit) => {
                if let Some(unit) = self.end_one(unit, End::Success) {
                    self.model.end(unit, UnitStatus::Completed);
                }
            }
            O::FailAndRetry(unit) => {
                if let Some(unit) = self.end_one(unit, End::Retry) {
                    self.model.fail(unit);
                }
            }
            O::GiveUp(unit) => {
                if let Some(unit) = self.end_one(unit, End::GiveUp) {
                    self.model.counts.errors += 1;
                    self.model.end(unit, UnitStatus::Failed);
                }
            }
            O::Refuse(unit) => {
                if let Some(unit) = self.end_one(unit, End::Refused) {
                    self.model.fail(unit);
                }
            }
            O::Crash { unit, is_panic } => {
                if let Some(unit) = self.end_one(unit, if is_panic { End::Panic } else { End::Broken }) {
                    self.model.fail(unit);
                }
            }
            O::SetMaxWorkers(max_workers) => {
                self.pool.set_max_workers(max_workers).unwrap();
                self.model.max_workers = max_workers;
            }
            O::Pause => {
                self.pool.pause();
                self.model.is_paused = true;
            }
            O::Resume => {
                self.pool.resume();
                self.model.is_paused = false;
            }
            O::Advance { ms } => self.advance(ms)?,
            O::EnqueueAgain(_) | O::Cancel(_) => {}
        }
        self.adapt(operation)?;
        self.model.settle();
        self.come_to_rest()?;
        Ok(self.model.seen() != before)
    }

    /// How many workers there may be from now on. Where the pool finds that out it is asked, once it has heard of all that has ended, and what it says
    /// must be what can follow.
    fn adapt(&mut self, operation: &Operation) -> Checked<()> {
        if self.scaling != Scaling::ADAPTIVE {
            self.model.allowed_workers = self.model.max_workers;
            return Ok(());
        }
        let ended = |seen: &Seen| (seen.completed, seen.failed, seen.counts.errors);
        let (began, expected) = (Instant::now(), self.model.seen());
        while ended(&Seen::of(&self.pool.stats())) != ended(&expected) && began.elapsed() < PATIENCE {
            let _ = self.events.recv_timeout(Duration::from_millis(1));
        }
        let (before, allowed) = (self.model.allowed_workers, self.pool.stats().allowed_workers);
        let may_follow = match operation {
            Operation::Succeed(_) => [before, before + 1],
            Operation::Refuse(_) => [before, (before * 4 / 5).max(1)],
            Operation::SetMaxWorkers(max_workers) => [before.min(*max_workers); 2],
            _ => [before; 2],
        };
        prop_assert!(may_follow.contains(&allowed), "{} workers follow {}", allowed, before);
        self.model.allowed_workers = allowed;
        Ok(())
    }

    /// Whether a unit that comes now gets a worker at once. How many are up by a threshold is not modelled, so it is asked.
    fn has_free(&self) -> Checked<bool> {
        let has_free = self.model.has_free();
        if !matches!(self.scaling, Scaling::Threshold { .. }) {
            return Ok(has_free);
        }
        let is_one_up = self.pool.stats().free_slots > 0;
        Ok(has_free && is_one_up)
    }

    fn submit(&mut self, priority: i32) -> Checked<()> {
        let (unit, has_free) = (self.model.units.len(), self.has_free()?);
        let submitted = self.pool.submit_work_unit(new_unit(unit, priority), "go");
        self.model.counts.requests += 1;
        match submitted {
            Ok(handle) => {
                prop_assert!(has_free, "{} was taken", name(unit));
                self.handles.push((unit, handle));
                self.model.add(priority);
                self.model.start(unit);
            }
            Err(SubmitError { reason: Refusal::Held { .. }, .. }) => prop_assert!(self.model.is_paused),
            Err(error) => prop_assert!(!self.model.is_paused && !has_free && error.is_at_capacity(), "{}", error),
        }
        Ok(())
    }

    /// A unit that may wait in line; if it is there already, once more.
    fn enqueue(&mut self, again: Option<usize>, priority: i32) -> Checked<()> {
        let has_free = self.has_free()?;
        let unit = again.unwrap_or(self.model.units.len());
        let enqueued = self.pool.enqueue(new_unit(unit, priority), "go");
        self.model.counts.requests += 1;
        if !has_free && self.model.is_saturated() {
            self.model.counts.saturated += 1;
            prop_assert!(enqueued.as_ref().is_err_and(SubmitError::is_saturated), "{:?}", enqueued);
            return Ok(());
        }
        let handle = enqueued.map_err(|error| TestCaseError::fail(error.to_string()))?;
        self.handles.push((unit, handle));
        if again.is_none() {
            self.model.add(priority);
        }
        match self.model.units[unit].standing {
            Standing::Due if has_free => self.model.start(unit),
            // What waits already, in line or to be tried again, needs no place of its own.
            Standing::Due | Standing::Pausing { .. } if !has_free && again.is_none() => self.model.wait_in_line(unit),
            _ => {}
        }
        Ok(())
    }

    fn cancel(&mut self, unit: usize) -> Checked<()> {
        let answer = self.pool.cancel(&name(unit), By::whom("a test")).unwrap();
        match self.model.units[unit].standing {
            Standing::Ended(status) => prop_assert_eq!(answer, CancelAnswer::AlreadyEnded(status)),
            Standing::Due | Standing::Pausing { .. } => {
                prop_assert_eq!(answer, CancelAnswer::Cancelled);
                self.model.end(unit, UnitStatus::Cancelled);
            }
            Standing::Running => {
                prop_assert_eq!(answer, CancelAnswer::Requested);
                let played = self.played.remove(&name(unit)).unwrap();
                prop_assert!(played.cancel.is_cancelled());
                let _ = played.end.send(End::Retry);
                self.model.end(unit, UnitStatus::Cancelled);
            }
        }
        Ok(())
    }

    /// Ends one of the executions; `None` if there is none.
    fn end_one(&mut self, choice: usize, end: End) -> Option<usize> {
        let running: Vec<usize> = self.model.running().collect();
        let unit = *running.get(choice % running.len().max(1))?;
        let played = self.played.remove(&name(unit)).unwrap();
        let _ = played.end.send(end);
        Some(unit)
    }

    /// Lets time pass, from one end of a pause to the next.
    fn advance(&mut self, ms: u64) -> Checked<()> {
        let target_ms = self.model.now_ms + ms;
        while self.model.now_ms < target_ms {
            let next_ms = self.model.next_due_ms().map_or(target_ms, |due_ms| due_ms.min(target_ms));
            self.clock.advance(Duration::from_millis(next_ms - self.model.now_ms));
            self.model.now_ms = next_ms;
            for unit in &mut self.model.units {
                if unit.standing == (Standing::Pausing { until_ms: next_ms }) {
                    unit.standing = Standing::Due;
                }
            }
            self.model.settle();
            self.come_to_rest()?;
        }
        Ok(())
    }

    /// Waits until the pool is where the model is, and all its workers are at rest or at work.
    fn come_to_rest(&mut self) -> Checked<()> {
        let began = Instant::now();
        let expected = self.model.seen();
        loop {
            for played in self.calls.try_iter() {
                let id = played.id.clone();
                prop_assert!(self.played.insert(id.clone(), played).is_none(), "{} runs twice", id);
            }
            let stats = self.pool.stats();
            let has_begun = self.played.keys().eq(expected.running.iter());
            if has_begun && Seen::of(&stats) == expected && self.is_crew_complete(&stats) {
                return Ok(());
            }
            if began.elapsed() > PATIENCE {
                prop_assert_eq!(Seen::of(&stats), expected, "left is the pool, right is the model");
                let played: Vec<&String> = self.played.keys().collect();
                return Err(TestCaseError::fail(format!("{played:?} have begun; {stats:?}")));
            }
            let _ = self.events.recv_timeout(Duration::from_millis(1));
            self.events.try_iter().for_each(drop);
        }
    }

    /// Whether there are as many workers as there should be, and none on its way up or out but those that are too many and have a unit.
    fn is_crew_complete(&self, stats: &PoolStats) -> bool {
        let (busy, total) = (stats.busy_workers, stats.total_workers);
        let is_leaving = |worker: &&WorkerView| worker.status == WorkerStatus::ShuttingDown;
        let staying = total - stats.workers.values().filter(is_leaving).count();
        let is_whole = self.scaling != Scaling::Fixed || total >= stats.max_workers;
        let is_quiet = stats.idle_workers + busy == total && stats.workers.len() == total;
        is_whole && is_quiet && staying <= stats.allowed_workers && busy == self.model.running().count()
    }

    /// Stops the pool; what it leaves is what the model says.
    fn stop(mut self, stop: Stop) -> Checked<()> {
        self.handle.stop(stop);
        for (_, played) in std::mem::take(&mut self.played) {
            match stop {
                Stop::Drain => drop(played.end.send(End::Success)),
                Stop::Cancel { .. } | Stop::Now => {
                    prop_assert!(played.cancel.wait_timeout(PATIENCE).is_some(), "{} is not asked to stop", played.id);
                    let _ = played.end.send(End::Retry);
                }
            }
        }
        let stats = self.pool.stop(stop).unwrap().stats;
        let statuses: Vec<UnitStatus> = self.model.units.iter().map(|unit| unit.standing.after(stop)).collect();
        let count = |status| statuses.iter().filter(|&&other| other == status).count() as u64;
        let left = (stats.completed, stats.failed, stats.cancelled, stats.left_pending);
        let ends = [UnitStatus::Completed, UnitStatus::Failed, UnitStatus::Cancelled, UnitStatus::Pending].map(count);
        prop_assert_eq!(left, ends.into(), "{:?}", stats);
        let at_rest = (stats.total_workers, stats.busy_workers, stats.queue_size, stats.pending, stats.running);
        prop_assert_eq!(at_rest, (0, 0, 0, 0, 0), "{:?}", stats);
        for (unit, handle) in &self.handles {
            let stored = self.repository.unit(self.job, &name(*unit)).unwrap();
            prop_assert_eq!(
                (stored.status, stored.accepted_by.is_some_and(|_| !stored.status.is_terminal())),
                (statuses[*unit], false),
                "{}",
                name(*unit)
            );
            match handle.wait_timeout(PATIENCE) {
                Ok(ended) => prop_assert_eq!(ended.status, statuses[*unit]),
                Err(WaitError::LeftPending) => prop_assert_eq!(statuses[*unit], UnitStatus::Pending),
                Err(error) => return Err(TestCaseError::fail(format!("{}: {error}", name(*unit)))),
            }
        }
        self.check_record()
    }

    /// Units were claimed in the order of the model, and nothing else is wrong with what is stored.
    fn check_record(&self) -> Checked<()> {
        let journal = self.repository.journal(0, 1_000).unwrap();
        prop_assert_eq!(journal.next, None, "all of it is looked at");
        let keys: BTreeMap<_, _> = (0..self.model.units.len())
            .map(|unit| (self.repository.unit(self.job, &name(unit)).unwrap().key, unit))
            .collect();
        let claims = journal.items.iter().filter(|row| row.change == Change::Claim);
        let claimed: Vec<usize> = claims.map(|row| keys[&row.unit]).collect();
        prop_assert_eq!(&claimed, &self.model.starts, "left is the order of the claims, right that of the model");
        let verification = verify(&self.repository).unwrap();
        prop_assert!(verification.is_clean(), "{}", verification);
        Ok(())
    }
}

impl Standing {
    /// What becomes of a unit when the pool stops.
    fn after(self, stop: Stop) -> UnitStatus {
        match self {
            Standing::Ended(status) => status,
            Standing::Running if stop == Stop::Drain => UnitStatus::Completed,
            Standing::Running | Standing::Due | Standing::Pausing { .. } => UnitStatus::Pending,
        }
    }
}

fn new_unit(unit: usize, priority: i32) -> NewUnit {
    NewUnit::new(name(unit)).priority(priority).max_retries(MAX_RETRIES)
}

/// Tells a sequence to a pool and to its model. Returns which operations changed something.
fn tell(sequence: &Sequence) -> Checked<Vec<String>> {
    let mut world = World::new(sequence);
    let mut effective = vec![format!("{:?}", sequence.stop), format!("{:?}", sequence.scaling)];
    for (number, operation) in sequence.operations.iter().enumerate() {
        let stepped = world.step(operation);
        let has_effect =
            stepped.map_err(|error| TestCaseError::fail(format!("operation {number}, {operation:?}: {error}")))?;
        if has_effect {
            effective.push(format!("{operation:?}").split(['(', ' ']).next().unwrap().to_owned());
        }
    }
    world.stop(sequence.stop)?;
    Ok(effective)
}

#[test]
fn a_pool_does_what_its_model_does_whatever_is_asked_of_it() {
    // 000-F15, 000-F18, 000-F22..F27, 001-F46, 001-F47, 001-F49, 001-F52..F56, 001-F67, 001-F68
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(DEFAULT_CASES);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    let seed = support::Random::seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));

    let seen = RefCell::new(BTreeMap::<String, u32>::new());
    let outcome = runner.run(&sequence(), |sequence| {
        for what in tell(&sequence)? {
            *seen.borrow_mut().entry(what).or_default() += 1;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("WORKCREW_SEED={seed} PROPTEST_CASES={cases}: {error}");
    }
    // Sequences in which nothing happens prove nothing.
    let seen = seen.into_inner();
    println!("{cases} sequences had {seen:?}");
    if cases >= DEFAULT_CASES {
        const KINDS: usize = 13 + 4 + 3;
        assert_eq!(seen.len(), KINDS, "WORKCREW_SEED={seed}: not everything happened: {seen:?}");
    }
}
