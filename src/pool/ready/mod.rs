//! The ready state: capacity, open units, timers and phase under one lock (L3), with what waits on it.
//!
//! Each method is one critical section that ends before anybody is woken. A look at all of it is
//! [`Ready::stats`]: gauges are derived here, so they always add up.
//!
//! What can be done with it is told apart by what it is about: the pool's [`phases`], how many workers there are to be ([`crew`]),
//! those who [wait](waits), [`units`], what is [pulled](pulls), [`workers`].

mod adapting;
mod admission;
mod crew;
mod phases;
mod pulls;
mod telling;
mod units;
mod waits;
mod workers;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

pub(super) use self::admission::{Arrival, Coming, Pick, PickOrAsk, Place};
use self::crew::Crew;
pub(super) use self::crew::{CrewLimits, CrewPlan, StartupStep};
pub use self::phases::Stop;
pub(super) use self::units::LineTimes;
pub use self::waits::Completion;
use self::waits::Hold;
pub(in crate::pool) use self::waits::HoldEnd;
use super::adaptive::Level;
use super::capacity::{Capacity, Known, WorkerNumber};
use super::error::Refusal;
use super::ledger::Ledger;
use super::lock::{Held, Rank, Ranked};
use super::pull::Pull;
use super::scheduler::Available;
use super::stats::{PoolPhase, PoolStats, WorkerView};
use super::timers::{Alarm, Timers};
use crate::nudge::Nudge;
use crate::sync::Condvar;
use crate::sync::atomic::{AtomicBool, AtomicU64};
use crate::sync::thread::JoinHandle;

#[derive(Debug)]
struct State {
    phase: PoolPhase,
    stop: Option<Stop>,
    hold: Option<Hold>,
    /// What was told last of a budget of which nothing is left.
    told_over_budget: Option<String>,
    /// Why the pool could not be started.
    init_failure: Option<String>,
    /// Whether all threads have ended.
    is_over: bool,
    crew: Crew,
    capacity: Capacity,
    /// How many workers there may be, where that is found out.
    level: Option<Level>,
    ledger: Ledger,
    timers: Timers,
    /// Workers that take nothing any more, of which the other pools of a set have yet to hear.
    departed: Vec<WorkerNumber>,
    abandoned: usize,
    /// Threads that ended and are to be joined.
    ended_threads: Vec<JoinHandle<()>>,
    /// Calls of user threads that may still bring a unit.
    submissions: usize,
    /// Reports that the reporter has not told yet.
    reports: usize,
    is_reporter_left_behind: bool,
    /// Whether the reporter tells no more.
    is_reporter_over: bool,
    /// Whether the claimer waits for the scheduler's answer.
    is_asking: bool,
    is_claimer_left_behind: bool,
    /// Whether a unit has waited in line for too long, of which the repository has not heard.
    is_sweep_due: bool,
    /// What is known of the units that wait for anybody.
    pull: Pull,
    /// Threads that wait for a place.
    slot_waiters: usize,
    /// Threads that wait for the pool to come up.
    init_waiters: usize,
}

impl State {
    /// Whether what waits may get its turn some day: the pool works, or is about to.
    fn is_open(&self) -> bool {
        matches!(self.phase, PoolPhase::Initializing | PoolPhase::Running)
    }

    fn may_start(&self) -> bool {
        self.phase == PoolPhase::Running && self.hold.is_none()
    }

    /// Whether whoever waits for a place may have one: units that are due come first.
    fn has_room_for_new(&self) -> bool {
        self.outlook().has_room_for_new
    }

    /// Who may have the places that are free.
    fn outlook(&self) -> Outlook {
        let free = if self.may_start() { self.capacity.free() } else { 0 };
        let due = if free > 0 { self.due_units() } else { 0 };
        Outlook { has_room_for_new: free > due, has_work: (free > 0 && due > 0) || self.has_pull_work() }
    }

    /// How many units are due, have no place yet, and could have one: what waits for a worker of its own that is busy could not.
    fn due_units(&self) -> usize {
        self.ledger.line.ready_count(&self.capacity)
    }

    /// Units whose time has come are due, all at once: who of them goes first is not a matter of which alarm rang first.
    fn let_fall_due(&mut self, now_ms: i64) {
        for unit in self.timers.take_retries(now_ms) {
            self.ledger.fall_due(unit, now_ms);
        }
    }

    /// Nobody is to wait for a worker any more: its sessions may go elsewhere, also to other pools.
    fn worker_goes(&mut self, worker: WorkerNumber) {
        self.ledger.line.sessions.worker_goes(worker);
        self.departed.push(worker);
    }

    /// Whether those who wait for completion may find what they wait for.
    fn is_worth_a_look(&self) -> bool {
        self.ledger.is_empty() || self.hold.is_some() || self.phase != PoolPhase::Running
    }

    fn known_workers(&self) -> Vec<(WorkerNumber, Known)> {
        self.capacity.workers().map(|(worker, known)| (worker, known.clone())).collect()
    }

    fn refusal(&self) -> Refusal {
        match (self.phase, &self.hold) {
            (PoolPhase::Configuring | PoolPhase::Initializing, _) => Refusal::NotReady(self.phase),
            (PoolPhase::Running, Some(hold)) => Refusal::Held { reason: hold.reason.clone() },
            (PoolPhase::Running, None) => {
                Refusal::AtCapacity { busy: self.capacity.tally().full, max_workers: self.capacity.max_workers() }
            }
            (PoolPhase::InitFailed, _) => Refusal::InitFailed(self.init_failure.clone().unwrap_or_default()),
            (PoolPhase::Draining | PoolPhase::Stopped, _) => Refusal::Stopped,
        }
    }
}

/// Who may have the places that are free.
#[derive(Clone, Copy, Debug)]
struct Outlook {
    /// Whoever waits for one.
    has_room_for_new: bool,
    /// Units that are due, or may be pulled: the claimer has something to do.
    has_work: bool,
}

/// Who is to be woken once the lock is free.
#[derive(Debug, Default)]
struct Wake {
    slot: bool,
    all_slots: bool,
    settled: bool,
    supervisor: bool,
    claimer: bool,
    /// Those who wait for the first worker.
    first_ready: bool,
    /// Those who wait for all of them.
    initialized: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Ready {
    state: Ranked<State>,
    /// A place may be free.
    slot_free: Condvar,
    /// A unit has left, or the phase has changed.
    settled: Condvar,
    /// A worker is up, or none will be.
    first_ready: Condvar,
    /// The pool is up, or will not be.
    initialized: Condvar,
    pub(super) supervisor: Nudge,
    pub(super) claimer: Nudge,
    /// Whether a claim was refused for want of money, and no attempt has ended here since.
    is_out_of_money: AtomicBool,
    /// How many attempts have ended here, each of which may have left money.
    ends: AtomicU64,
}

impl Ready {
    pub(super) fn new(limits: CrewLimits, max_queue_size: usize, sessions_for_ms: i64) -> Ready {
        let level = limits.scaling.cool_down().map(|cool_down| Level::new(&limits, cool_down));
        let allowed = level.as_ref().map_or(limits.max_workers, Level::workers);
        let state = State {
            phase: PoolPhase::Configuring,
            stop: None,
            hold: None,
            told_over_budget: None,
            init_failure: None,
            is_over: false,
            capacity: Capacity::new(allowed, limits.supply(), limits.max_units_per_worker),
            level,
            crew: Crew::new(limits),
            ledger: Ledger::new(max_queue_size, sessions_for_ms),
            timers: Timers::new(),
            departed: Vec::new(),
            abandoned: 0,
            ended_threads: Vec::new(),
            submissions: 0,
            reports: 0,
            is_reporter_left_behind: false,
            is_reporter_over: false,
            is_asking: false,
            is_claimer_left_behind: false,
            is_sweep_due: false,
            pull: Pull::default(),
            slot_waiters: 0,
            init_waiters: 0,
        };
        Ready {
            state: Ranked::new(Rank::Ready, state),
            slot_free: Condvar::new(),
            settled: Condvar::new(),
            first_ready: Condvar::new(),
            initialized: Condvar::new(),
            supervisor: Nudge::new(),
            claimer: Nudge::new(),
            is_out_of_money: AtomicBool::new(false),
            ends: AtomicU64::new(0),
        }
    }

    /// Runs a critical section, and wakes whom it names.
    fn change<T>(&self, section: impl FnOnce(&mut State, &mut Wake) -> T) -> T {
        let mut wake = Wake::default();
        let mut state = self.state.lock();
        let (before, was_empty) = (state.outlook(), state.ledger.is_empty());
        let answer = section(&mut state, &mut wake);
        // What others have queued while the last unit ran here was not heard of.
        if !was_empty && state.ledger.is_empty() && state.pull.may_be_done() {
            wake.claimer |= state.has_pull_work();
        }
        for worker in state.capacity.take_gone() {
            state.worker_goes(worker);
            wake.supervisor = true;
        }
        for (unit, at_ms) in state.ledger.queue.take_idle_alarms() {
            state.timers.clear(at_ms, Alarm::QueueTimeout(unit));
        }
        for (unit, at_ms) in state.ledger.take_idle_alarms() {
            state.timers.clear(at_ms, Alarm::Retry(unit));
        }
        // There is room also when what had precedence is gone.
        let after = state.outlook();
        wake.slot |= !before.has_room_for_new && after.has_room_for_new;
        // Whoever frees a place need not ask who may have it, whoever lets a unit go need not ask who waits for that.
        wake.claimer |= (wake.slot || !before.has_work) && after.has_work;
        wake.settled &= state.is_worth_a_look();
        wake.supervisor |= state.wants_another_worker();
        drop(state);
        if wake.all_slots {
            self.slot_free.notify_all();
        } else if wake.slot {
            self.slot_free.notify_one();
        }
        if wake.settled {
            self.settled.notify_all();
        }
        // One wakes the next when it has its answer: they do not all come at once.
        if wake.first_ready {
            self.first_ready.notify_one();
        }
        if wake.initialized {
            self.initialized.notify_one();
        }
        if wake.supervisor {
            self.supervisor.wake();
        }
        if wake.claimer {
            self.claimer.wake();
        }
        answer
    }

    /// Waits on the lock until something is there; `None` if the time was up before.
    fn wait<T>(
        &self,
        condvar: &Condvar,
        until: Option<Instant>,
        mut look: impl FnMut(&mut State) -> Option<T>,
    ) -> Option<T> {
        let mut state: Held<'_, State> = self.state.lock();
        loop {
            if let Some(found) = look(&mut state) {
                return Some(found);
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return None;
            }
            state = state.wait(condvar, left);
        }
    }

    /// Sets an alarm, and wakes the supervisor if it would come too late.
    pub(super) fn set_alarm(&self, at_ms: i64, alarm: Alarm) {
        self.change(|state, wake| wake.supervisor = state.timers.set(at_ms, alarm));
    }

    pub(super) fn clear_alarm(&self, at_ms: i64, alarm: Alarm) {
        self.state.lock().timers.clear(at_ms, alarm);
    }

    /// Takes out the next alarm that is due.
    pub(super) fn pop_due(&self, now_ms: i64) -> Option<Alarm> {
        self.change(|state, _| {
            state.let_fall_due(now_ms);
            state.timers.pop_due(now_ms)
        })
    }

    pub(super) fn next_alarm_ms(&self) -> Option<i64> {
        self.state.lock().timers.next_ms()
    }

    /// How many workers have a unit in hand.
    pub(super) fn busy_count(&self) -> usize {
        let tally = self.state.lock().capacity.tally();
        tally.busy + tally.crashing
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.state.lock();
        let workers = state.known_workers();
        let (pending, running) = state.ledger.pending_and_running();
        let totals = &state.ledger.totals;
        let tally = state.capacity.tally();
        let mut stats = PoolStats {
            phase: state.phase,
            init_failure: state.init_failure.clone(),
            hold: state.hold.as_ref().map(|hold| hold.reason.clone()),
            max_workers: state.max_workers(),
            allowed_workers: state.capacity.max_workers(),
            target_workers: state.crew.size(),
            total_workers: state.capacity.live(),
            starting_workers: tally.starting,
            idle_workers: tally.idle,
            busy_workers: tally.busy,
            full_workers: tally.full,
            reporting_workers: tally.reporting,
            tainted_workers: tally.tainted,
            load: tally.load,
            capacity: tally.capacity,
            free_slots: state.capacity.free(),
            reserved_slots: state.capacity.promised(),
            abandoned_threads: state.abandoned,
            slot_waiters: state.slot_waiters,
            init_waiters: state.init_waiters,
            failed_starts: state.crew.failed_starts(),
            last_start_failure: state.crew.last_start_failure(),
            queue_size: state.ledger.queue.len(),
            max_queue_size: state.ledger.queue.limit(),
            requests: totals.requests,
            queued: totals.queued,
            saturated: totals.saturated,
            queue_timeouts: totals.queue_timeouts,
            errors: totals.errors,
            accepted: totals.accepted,
            pending,
            running,
            completed: totals.completed,
            failed: totals.failed,
            cancelled: totals.cancelled,
            left_pending: totals.left_pending,
            lost: totals.lost,
            attempts: totals.attempts,
            retried: totals.retried,
            tokens: totals.tokens,
            cost: totals.cost,
            workers: BTreeMap::new(),
        };
        drop(state);
        // Names are made where nobody waits for them.
        let view = |(worker, known): (WorkerNumber, Known)| (worker.id(), WorkerView::new(worker, &known));
        stats.workers = workers.into_iter().map(view).collect();
        stats
    }

    /// The workers that have room, in the order in which they are taken.
    pub(super) fn available(&self) -> Vec<(WorkerNumber, Available)> {
        let open: Vec<_> = self.state.lock().capacity.open().map(|(worker, known)| (worker, known.clone())).collect();
        let available = |(worker, known): (WorkerNumber, Known)| {
            let Known { load, capacity, completed, failed, .. } = known;
            (worker, Available { id: worker.id(), load, capacity, completed, failed })
        };
        open.into_iter().map(available).collect()
    }

    /// The workers in the order in which they were started.
    pub(super) fn worker_views(&self) -> Vec<WorkerView> {
        let mut workers = self.state.lock().known_workers();
        workers.sort_by_key(|&(worker, _)| worker);
        workers.iter().map(|(worker, known)| WorkerView::new(*worker, known)).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::attempt::AttemptKey;
    use crate::pool::ledger::Left;
    use crate::pool::line::Claimable;
    use crate::pool::scaling::Scaling;
    use crate::unit::{UnitKey, UnitStatus};

    #[test]
    fn a_unit_that_need_not_wait_for_its_time_any_more_leaves_no_alarm() {
        let ready = ready(1);
        ready.state.lock().phase = PoolPhase::Running;
        let waits = |until_ms| {
            let claimable = Claimable::default();
            ready.take_back(AttemptKey { unit: UnitKey(1), number: 1 }, "a", &claimable, until_ms);
        };
        waits(10);
        waits(20);
        assert_eq!(ready.next_alarm_ms(), Some(20), "it waits for another time");
        waits(20);
        assert_eq!(ready.next_alarm_ms(), Some(20), "for the same");
        ready.unit_leaves(AttemptKey { unit: UnitKey(1), number: 1 }, Left::Ended(UnitStatus::Cancelled)).unwrap();
        assert_eq!(ready.next_alarm_ms(), None);
        waits(30);
        let worker = ready.busy_worker();
        ready.claimed(AttemptKey { unit: UnitKey(1), number: 2 }, "a", &Claimable::default(), worker).unwrap();
        assert_eq!(ready.next_alarm_ms(), None, "it runs");
    }

    /// The state of a pool that has not begun.
    pub(in crate::pool) fn ready(max_workers: usize) -> Ready {
        ready_with(max_workers, Scaling::OnDemand)
    }

    /// The same with workers that come to be in this way.
    pub(in crate::pool) fn ready_with(max_workers: usize, scaling: Scaling) -> Ready {
        let limits = CrewLimits {
            min_workers: 1,
            max_workers,
            scaling,
            startup_batch: 10,
            startup_pause: Duration::from_millis(500),
            max_units_per_worker: None,
            max_abandoned: None,
        };
        Ready::new(limits, 1_000, 1_000)
    }

    impl Ready {
        /// A worker that has its one place taken.
        pub(in crate::pool) fn busy_worker(&self) -> WorkerNumber {
            self.state.lock().capacity.take(None).expect("there is a place").worker()
        }

        /// A worker on its way up.
        pub(in crate::pool) fn starting_worker(&self) -> WorkerNumber {
            self.state.lock().capacity.begin_starting(1)[0]
        }
    }
}
