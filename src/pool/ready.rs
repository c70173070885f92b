//! The ready state: capacity, open units, timers and phase under one lock (L3), with what waits on it.
//!
//! Each method is one critical section that ends before anybody is woken. A look at all of it is
//! [`Ready::stats`]: gauges are derived here, so they always add up.

use std::sync::{Arc, Condvar};
use std::thread::{JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::capacity::{Capacity, Load, Right, Taken, WorkerNumber};
use super::error::{Refusal, WaitError};
use super::ledger::{Ledger, Left, Standing};
use super::lock::{Held, Rank, Ranked};
use super::nudge::Nudge;
use super::open_unit::OpenUnit;
use super::stats::{PoolPhase, PoolStats};
use super::timers::{Alarm, Timers};
use crate::attempt::AttemptKey;
use crate::money::Charge;
use crate::unit::UnitKey;

/// How a pool is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Lets running attempts end, for as long as that takes. What waits stays PENDING.
    Drain,
    /// Asks running executions to stop and gives their units back. Whoever has not stopped after the grace is left behind.
    Cancel {
        /// How long to wait for them.
        grace: Duration,
    },
    /// The same without any grace.
    Now,
}

impl Stop {
    /// How long executions may go on; `None` if they need not stop.
    pub(super) fn grace(self) -> Option<Duration> {
        match self {
            Stop::Drain => None,
            Stop::Cancel { grace } => Some(grace),
            Stop::Now => Some(Duration::ZERO),
        }
    }

    /// The more urgent of two wishes.
    fn or_sooner(self, other: Stop) -> Stop {
        let urgency = |stop: Stop| stop.grace().unwrap_or(Duration::MAX);
        if urgency(other) < urgency(self) { other } else { self }
    }
}

/// How a wait for completion ended.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completion {
    /// Everything that the pool accepted has ended, its callback included.
    Done,
    /// Nothing runs, and what waits cannot begin before somebody calls `resume`.
    Blocked(String),
    /// The pool stopped first, or was never started.
    Stopped,
    /// The time was up.
    TimedOut,
    /// The caller is one of the pool's own threads, which would wait for itself.
    WouldDeadlock,
}

/// Why nothing is started.
#[derive(Clone, Debug)]
struct Hold {
    reason: String,
    /// When it ends by itself, by the pool's clock.
    until_ms: Option<i64>,
}

/// What is left to do for the thread that stops the pool.
#[derive(Debug)]
pub(super) struct StopState {
    pub(super) mode: Stop,
    pub(super) busy: usize,
    pub(super) live: usize,
    pub(super) has_open_units: bool,
}

#[derive(Debug)]
struct State {
    phase: PoolPhase,
    stop: Option<Stop>,
    hold: Option<Hold>,
    capacity: Capacity,
    ledger: Ledger,
    timers: Timers,
    abandoned: usize,
    /// Threads that ended and are to be joined.
    ended_threads: Vec<JoinHandle<()>>,
    /// Calls of user threads that may still bring a unit.
    submissions: usize,
    /// Reports that the reporter has not told yet.
    reports: usize,
    is_reporter_left_behind: bool,
}

impl State {
    fn may_start(&self) -> bool {
        self.phase == PoolPhase::Running && self.hold.is_none()
    }

    /// Whether whoever waits for a place may have one: units that are due come first.
    fn has_room_for_new(&self) -> bool {
        self.may_start() && self.capacity.free() > self.ledger.due().len()
    }

    /// Whether those who wait for completion may find what they wait for.
    fn is_worth_a_look(&self) -> bool {
        self.ledger.is_empty() || self.hold.is_some() || self.phase != PoolPhase::Running
    }

    fn refusal(&self) -> Refusal {
        match (self.phase, &self.hold) {
            (PoolPhase::Configuring | PoolPhase::Initializing, _) => Refusal::NotReady(self.phase),
            (PoolPhase::Running, Some(hold)) => Refusal::Held { reason: hold.reason.clone() },
            (PoolPhase::Running, None) => Refusal::AtCapacity { max_workers: self.capacity.max_workers() },
            (PoolPhase::Draining | PoolPhase::Stopped | PoolPhase::InitFailed, _) => Refusal::Stopped,
        }
    }
}

/// Who is to be woken once the lock is free.
#[derive(Debug, Default)]
struct Wake {
    slot: bool,
    all_slots: bool,
    settled: bool,
    supervisor: bool,
    claimer: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Ready {
    state: Ranked<State>,
    /// A place may be free.
    slot_free: Condvar,
    /// A unit has left, or the phase has changed.
    settled: Condvar,
    pub(super) supervisor: Nudge,
    pub(super) claimer: Nudge,
}

impl Ready {
    pub(super) fn new(max_workers: usize) -> Ready {
        let state = State {
            phase: PoolPhase::Configuring,
            stop: None,
            hold: None,
            capacity: Capacity::new(max_workers),
            ledger: Ledger::default(),
            timers: Timers::new(),
            abandoned: 0,
            ended_threads: Vec::new(),
            submissions: 0,
            reports: 0,
            is_reporter_left_behind: false,
        };
        Ready {
            state: Ranked::new(Rank::Ready, state),
            slot_free: Condvar::new(),
            settled: Condvar::new(),
            supervisor: Nudge::new(),
            claimer: Nudge::new(),
        }
    }

    /// Runs a critical section, and wakes whom it names.
    fn change<T>(&self, section: impl FnOnce(&mut State, &mut Wake) -> T) -> T {
        let mut wake = Wake::default();
        let mut state = self.state.lock();
        let had_room = state.has_room_for_new();
        let answer = section(&mut state, &mut wake);
        // There is room also when what had precedence is gone.
        wake.slot |= !had_room && state.has_room_for_new();
        // Whoever frees a place need not ask who may have it, whoever lets a unit go need not ask who waits for that.
        wake.claimer |= wake.slot && !state.ledger.due().is_empty();
        wake.settled &= state.is_worth_a_look();
        drop(state);
        if wake.all_slots {
            self.slot_free.notify_all();
        } else if wake.slot {
            self.slot_free.notify_one();
        }
        if wake.settled {
            self.settled.notify_all();
        }
        if wake.supervisor {
            self.supervisor.wake();
        }
        if wake.claimer {
            self.claimer.wake();
        }
        answer
    }

    // Phases.

    pub(super) fn phase(&self) -> PoolPhase {
        self.state.lock().phase
    }

    /// Configuring → Initializing; the phase it has if it is another.
    pub(super) fn begin_initializing(&self) -> Result<(), PoolPhase> {
        let mut state = self.state.lock();
        if state.phase != PoolPhase::Configuring {
            return Err(state.phase);
        }
        state.phase = PoolPhase::Initializing;
        Ok(())
    }

    /// Initializing → Running, unless somebody stopped it meanwhile.
    pub(super) fn begin_running(&self) {
        self.change(|state, wake| {
            if state.phase == PoolPhase::Initializing {
                state.phase = PoolPhase::Running;
            }
            (wake.all_slots, wake.supervisor) = (true, true);
        });
    }

    pub(super) fn fail_initializing(&self) {
        self.change(|state, wake| {
            state.phase = PoolPhase::InitFailed;
            (wake.all_slots, wake.settled) = (true, true);
        });
    }

    /// Takes nothing new from now on. What waits leaves, and is returned to be told.
    pub(super) fn begin_stop(&self, stop: Stop) -> Vec<Arc<OpenUnit>> {
        self.change(|state, wake| {
            state.phase = match state.phase {
                PoolPhase::Configuring => PoolPhase::Stopped,
                PoolPhase::Initializing | PoolPhase::Running => PoolPhase::Draining,
                ended => ended,
            };
            state.stop = Some(state.stop.map_or(stop, |before| before.or_sooner(stop)));
            (wake.all_slots, wake.settled, wake.supervisor, wake.claimer) = (true, true, true, true);
            state.ledger.leave_waiting()
        })
    }

    /// How the pool is to stop, if it is.
    pub(super) fn stop_mode(&self) -> Option<Stop> {
        self.state.lock().stop
    }

    pub(super) fn stop_state(&self) -> Option<StopState> {
        let state = self.state.lock();
        let busy = state.capacity.live() - state.capacity.count(Load::Idle) - state.capacity.count(Load::Retiring);
        Some(StopState {
            mode: state.stop?,
            busy: busy + state.submissions,
            live: state.capacity.live(),
            has_open_units: !state.ledger.is_empty(),
        })
    }

    pub(super) fn end(&self) {
        self.change(|state, wake| {
            state.phase = PoolPhase::Stopped;
            (wake.all_slots, wake.settled) = (true, true);
        });
    }

    /// Waits until the pool has stopped; says whether it has.
    pub(super) fn wait_stopped(&self, until: Option<Instant>) -> bool {
        let is_stopped = |state: &State| matches!(state.phase, PoolPhase::Stopped | PoolPhase::InitFailed);
        self.wait(&self.settled, until, |state| is_stopped(state).then_some(())).is_some()
    }

    // Waiting.

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

    /// Waits for a place and promises it to a thread, for so long; or to whoever has the permit, for ever.
    pub(super) fn wait_for_slot(
        &self,
        thread: Option<ThreadId>,
        lapses_at_ms: impl Fn() -> i64,
        until: Option<Instant>,
    ) -> Result<(), WaitError> {
        let mut is_first_alarm = false;
        let mut room_left = false;
        let found = self.wait(&self.slot_free, until, |state| {
            room_left = state.has_room_for_new();
            match state.phase {
                PoolPhase::Initializing | PoolPhase::Running => {}
                _ => return Some(Err(WaitError::Stopped)),
            }
            let had_one = thread.is_some_and(|thread| state.capacity.has_reserved(thread));
            if !had_one && !room_left {
                return None;
            }
            match thread {
                None => state.capacity.add_permit(),
                Some(thread) => {
                    if let Some((number, at_ms)) = state.capacity.unreserve(thread) {
                        state.timers.clear(at_ms, Alarm::Reservation(number));
                    }
                    let at_ms = lapses_at_ms();
                    let number = state.capacity.reserve(thread, at_ms);
                    is_first_alarm = state.timers.set(at_ms, Alarm::Reservation(number));
                }
            }
            room_left = state.has_room_for_new();
            Some(Ok(()))
        });
        if is_first_alarm {
            self.supervisor.wake();
        }
        // One that wakes wakes the next, also if it leaves with nothing: no free place goes unnoticed.
        if room_left {
            self.slot_free.notify_one();
        }
        found.unwrap_or(Err(WaitError::TimedOut))
    }

    /// Gives a permit back that was not used.
    pub(super) fn drop_permit(&self) {
        self.change(|state, wake| {
            state.capacity.drop_permit();
            wake.slot = true;
        });
    }

    /// Takes a promise back that was not used in time.
    pub(super) fn lapse(&self, reservation: u64) {
        self.change(|state, wake| wake.slot = state.capacity.lapse(reservation));
    }

    /// Waits until nothing that the pool accepted is open.
    pub(super) fn wait_for_completion(&self, until: Option<Instant>) -> Completion {
        let found = self.wait(&self.settled, until, |state| match state.phase {
            PoolPhase::Configuring | PoolPhase::InitFailed => Some(Completion::Stopped),
            _ if state.ledger.is_empty() => Some(match state.ledger.totals.left_pending {
                0 => Completion::Done,
                _ => Completion::Stopped,
            }),
            PoolPhase::Stopped => Some(Completion::Stopped),
            _ => match &state.hold {
                Some(hold) if hold.until_ms.is_none() && state.ledger.is_only_waiting() => {
                    Some(Completion::Blocked(hold.reason.clone()))
                }
                _ => None,
            },
        });
        found.unwrap_or(Completion::TimedOut)
    }

    // Holds.

    /// Starts nothing until then. A hold without an end stays until somebody ends it; of two with an end the later counts.
    pub(super) fn hold(&self, reason: &str, until_ms: Option<i64>) {
        self.change(|state, wake| {
            let is_longer = match (&state.hold, until_ms) {
                (None, _) => true,
                (Some(hold), None) => hold.until_ms.is_some(),
                (Some(hold), Some(until_ms)) => hold.until_ms.is_some_and(|before_ms| before_ms < until_ms),
            };
            if is_longer {
                state.hold = Some(Hold { reason: reason.to_owned(), until_ms });
                wake.supervisor = until_ms.is_some_and(|until_ms| state.timers.set(until_ms, Alarm::HoldEnds));
                wake.settled = true;
            }
        });
    }

    /// Ends a hold; with a time, only one that ends by itself by then.
    pub(super) fn resume(&self, now_ms: Option<i64>) {
        self.change(|state, wake| {
            let ends =
                |hold: &Hold| now_ms.is_none_or(|now_ms| hold.until_ms.is_some_and(|until_ms| until_ms <= now_ms));
            if state.hold.as_ref().is_some_and(ends) {
                state.hold = None;
                (wake.all_slots, wake.claimer) = (true, true);
            }
        });
    }

    // Places and units.

    /// Takes a place with its worker for a unit that is to be submitted.
    pub(super) fn begin_submission(&self, right: Right, id: &str) -> Result<(Taken, Arc<OpenUnit>), Refusal> {
        self.change(|state, wake| {
            let promised = match right {
                Right::Permit => {
                    state.capacity.drop_permit();
                    true
                }
                Right::Thread(thread) => {
                    let reservation = state.capacity.unreserve(thread);
                    if let Some((number, at_ms)) = reservation {
                        state.timers.clear(at_ms, Alarm::Reservation(number));
                    }
                    reservation.is_some()
                }
            };
            if !state.may_start() {
                wake.slot = promised;
                return Err(state.refusal());
            }
            let taken = match promised {
                true => state.capacity.take_promised(),
                false => state.capacity.take().ok_or_else(|| state.refusal())?,
            };
            state.submissions += 1;
            Ok((taken, state.ledger.begin_submission(id)))
        })
    }

    /// The unit was claimed: it runs. Submitted twice, it is one unit: returns that.
    pub(super) fn submission_runs(&self, attempt: AttemptKey, unit: &Arc<OpenUnit>) -> Arc<OpenUnit> {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
            state.ledger.stand(attempt.unit, unit, attempt.number, Standing::Running)
        })
    }

    /// The unit was stored and waits for its time. Returns the one that waits; and `false` if the pool is stopping, and
    /// so it has left.
    pub(super) fn submission_waits(
        &self,
        after: AttemptKey,
        unit: &Arc<OpenUnit>,
        until_ms: i64,
    ) -> (Arc<OpenUnit>, bool) {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
            let unit = state.ledger.stand(after.unit, unit, after.number, Standing::Waiting { until_ms });
            (unit, state.waits(after, until_ms, wake))
        })
    }

    /// The unit runs already. Returns what is known of it here; if it is another's, it is watched.
    pub(super) fn submission_attaches(&self, key: UnitKey, unit: &Arc<OpenUnit>) -> Arc<OpenUnit> {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
            state.ledger.attach(key, unit)
        })
    }

    /// The units that others execute and somebody here waits for.
    pub(super) fn watched(&self) -> Vec<(UnitKey, Arc<OpenUnit>)> {
        self.state.lock().ledger.watched()
    }

    /// A unit need not be watched any more; says whether it was.
    pub(super) fn unwatch(&self, key: UnitKey) -> bool {
        self.state.lock().ledger.unwatch(key)
    }

    /// Nothing came of it.
    pub(super) fn submission_ends(&self, unit: &Arc<OpenUnit>) {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
        });
    }

    /// Takes places for units that are due, at most one for each of them.
    pub(super) fn take_for_due(&self) -> Vec<Taken> {
        self.change(|state, _| {
            let due = if state.may_start() { state.ledger.due().len() } else { 0 };
            std::iter::from_fn(|| state.capacity.take()).take(due).collect()
        })
    }

    /// The units that are due.
    pub(super) fn due(&self) -> Vec<(UnitKey, Arc<OpenUnit>)> {
        let state = self.state.lock();
        state.ledger.due().iter().filter_map(|&key| Some((key, state.ledger.get(key)?))).collect()
    }

    /// A unit that this pool accepted is claimed: it runs. Units it did not know become its own, unless it is stopping:
    /// then `None`.
    pub(super) fn claimed(&self, attempt: AttemptKey, unit_id: &str) -> Option<Arc<OpenUnit>> {
        self.change(|state, _| {
            if state.phase != PoolPhase::Running && state.ledger.get(attempt.unit).is_none() {
                return None;
            }
            let unknown = Arc::new(OpenUnit::new(unit_id));
            Some(state.ledger.stand(attempt.unit, &unknown, attempt.number, Standing::Running))
        })
    }

    /// A unit's time has come.
    pub(super) fn fall_due(&self, key: UnitKey, now_ms: i64) {
        self.change(|state, wake| wake.claimer = state.ledger.fall_due(key, now_ms));
    }

    /// A unit waits for its time after an attempt; `false` if the pool is stopping, and so it has left.
    pub(super) fn wait_until(&self, after: AttemptKey, until_ms: i64) -> bool {
        self.change(|state, wake| {
            // Whoever made it leave meanwhile tells of it.
            !state.ledger.wait_after(after.unit, after.number, until_ms) || state.waits(after, until_ms, wake)
        })
    }

    /// A unit that was due waits once more, if it still is.
    pub(super) fn wait_again(&self, key: UnitKey, until_ms: i64) {
        self.change(|state, wake| {
            if state.ledger.wait_again(key, until_ms) {
                wake.supervisor = state.timers.set(until_ms, Alarm::Retry(key));
            }
        });
    }

    /// An execution begins, and has until then.
    pub(super) fn attempt_begins(&self, worker: WorkerNumber, run: u64, deadline_ms: i64) {
        self.change(|state, wake| {
            state.ledger.totals.attempts += 1;
            let is_first = state.timers.set(deadline_ms, Alarm::Execution { worker, run });
            wake.supervisor = is_first || state.phase == PoolPhase::Draining;
        });
    }

    /// An execution gets its grace.
    pub(super) fn set_alarm(&self, at_ms: i64, alarm: Alarm) {
        self.change(|state, wake| wake.supervisor = state.timers.set(at_ms, alarm));
    }

    pub(super) fn clear_alarm(&self, at_ms: i64, alarm: Alarm) {
        self.state.lock().timers.clear(at_ms, alarm);
    }

    /// What an attempt used is added up.
    pub(super) fn charge(&self, charges: &[Charge], is_retried: bool) {
        let mut state = self.state.lock();
        state.ledger.charge(charges);
        state.ledger.totals.retried += u64::from(is_retried);
    }

    /// A unit has left after an attempt; if it ended, its callback is still to run. Returns it if that is news.
    pub(super) fn unit_leaves(&self, after: AttemptKey, left: Left) -> Option<Arc<OpenUnit>> {
        self.change(|state, wake| {
            wake.settled = true;
            state.ledger.leave(after.unit, after.number, left)
        })
    }

    /// A unit's callback has run.
    pub(super) fn unit_closes(&self, key: UnitKey, unit: &Arc<OpenUnit>) {
        self.change(|state, wake| {
            state.ledger.close(key, unit);
            wake.settled = true;
            wake.supervisor = state.phase == PoolPhase::Draining;
        });
    }

    pub(super) fn get(&self, key: UnitKey) -> Option<Arc<OpenUnit>> {
        self.state.lock().ledger.get(key)
    }

    /// Whether an attempt comes after all that are known here.
    pub(super) fn is_later(&self, key: UnitKey, attempt_number: u32) -> bool {
        self.state.lock().ledger.is_later(key, attempt_number)
    }

    /// A unit that is open, or is about to be.
    pub(super) fn get_or_submitting(&self, key: UnitKey, id: &str) -> Option<Arc<OpenUnit>> {
        let state = self.state.lock();
        state.ledger.get(key).or_else(|| state.ledger.submitting(id))
    }

    // Workers. These are called while the worker's own lock is held.

    pub(super) fn publish(&self, worker: WorkerNumber, load: Option<Load>) {
        self.change(|state, wake| {
            state.capacity.publish(worker, load);
            (wake.slot, wake.supervisor) = (load.is_none(), load.is_none());
        });
    }

    /// A worker is done with its unit: its place is free. Says whether it is idle now or is to retire.
    pub(super) fn settle_worker(&self, worker: WorkerNumber, must_retire: bool) -> Load {
        self.change(|state, wake| {
            let load = state.capacity.settle(worker, must_retire);
            wake.slot = true;
            wake.supervisor = state.phase == PoolPhase::Draining;
            load
        })
    }

    /// A thread is left behind, unless there are too many already.
    pub(super) fn abandon(&self, limit: usize) -> bool {
        let mut state = self.state.lock();
        let may = state.abandoned < limit;
        state.abandoned += usize::from(may);
        may
    }

    /// A thread that was left behind has come back.
    pub(super) fn returned(&self) {
        self.state.lock().abandoned -= 1;
    }

    /// The reporter gets something to tell.
    pub(super) fn report_sent(&self) {
        self.state.lock().reports += 1;
    }

    /// The reporter has told it.
    pub(super) fn report_told(&self) {
        self.state.lock().reports -= 1;
    }

    /// Leaves the reporter behind if it still has something to tell; says whether it has.
    pub(super) fn leave_reporter_behind(&self) -> bool {
        let mut state = self.state.lock();
        state.is_reporter_left_behind = state.reports > 0;
        state.abandoned += usize::from(state.is_reporter_left_behind);
        state.is_reporter_left_behind
    }

    /// The reporter has told everything.
    pub(super) fn reporter_ends(&self) {
        let mut state = self.state.lock();
        state.abandoned -= usize::from(std::mem::take(&mut state.is_reporter_left_behind));
    }

    /// A worker that was taken has ended: another one for its place.
    pub(super) fn replace(&self, worker: WorkerNumber) -> Taken {
        let mut state = self.state.lock();
        state.capacity.publish(worker, None);
        state.capacity.take_promised()
    }

    pub(super) fn set_max_workers(&self, max_workers: usize) -> Vec<WorkerNumber> {
        self.change(|state, wake| {
            wake.all_slots = true;
            wake.claimer = true;
            state.capacity.set_max_workers(max_workers)
        })
    }

    /// All idle workers retire.
    pub(super) fn retire_idle(&self) -> Vec<WorkerNumber> {
        self.state.lock().capacity.retire_idle(usize::MAX)
    }

    /// A thread ends, and is to be joined.
    pub(super) fn thread_ends(&self, thread: Option<JoinHandle<()>>) {
        self.change(|state, wake| {
            state.ended_threads.extend(thread);
            wake.supervisor = true;
        });
    }

    pub(super) fn ended_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.state.lock().ended_threads)
    }

    // Time and numbers.

    pub(super) fn pop_due(&self, now_ms: i64) -> Option<Alarm> {
        self.state.lock().timers.pop_due(now_ms)
    }

    pub(super) fn next_alarm_ms(&self) -> Option<i64> {
        self.state.lock().timers.next_ms()
    }

    /// How many workers have a unit in hand.
    pub(super) fn busy_count(&self) -> usize {
        let state = self.state.lock();
        state.capacity.count(Load::Busy) + state.capacity.count(Load::Reporting)
    }

    pub(super) fn stats(&self) -> PoolStats {
        let state = self.state.lock();
        let (pending, running) = state.ledger.pending_and_running();
        let totals = &state.ledger.totals;
        PoolStats {
            phase: state.phase,
            hold: state.hold.as_ref().map(|hold| hold.reason.clone()),
            max_workers: state.capacity.max_workers(),
            idle_workers: state.capacity.count(Load::Idle),
            busy_workers: state.capacity.count(Load::Busy) + state.capacity.count(Load::Reporting),
            reporting_workers: state.capacity.count(Load::Reporting),
            free_slots: state.capacity.free(),
            reserved_slots: state.capacity.promised(),
            abandoned_threads: state.abandoned,
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
        }
    }
}

impl State {
    fn end_submission(&mut self, unit: &Arc<OpenUnit>, wake: &mut Wake) {
        self.submissions -= 1;
        wake.supervisor = self.phase == PoolPhase::Draining;
        self.ledger.end_submission(unit.id());
    }

    /// A unit has begun to wait, for which there must be time left.
    fn waits(&mut self, after: AttemptKey, until_ms: i64, wake: &mut Wake) -> bool {
        if self.phase != PoolPhase::Running {
            (wake.settled, wake.supervisor) = (true, true);
            return self.ledger.leave(after.unit, after.number, Left::Pending).is_none();
        }
        wake.supervisor |= self.timers.set(until_ms, Alarm::Retry(after.unit));
        wake.settled = self.hold.is_some();
        true
    }
}

/// A time of the calendar as the pool's clock has it.
pub(super) fn boot_ms_of(time: DateTime<Utc>, now: crate::clock::Moment) -> i64 {
    now.boot_ms.saturating_add((time - now.wall).num_milliseconds().max(0))
}
