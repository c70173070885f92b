//! Units: on their way in, waiting, running, on their way out.

use std::sync::Arc;

use super::admission::{Arrival, Pick};
use super::{Ready, State, Wake};
use crate::attempt::{AttemptKey, FailureKind, Outcome};
use crate::money::Charge;
use crate::pool::capacity::WorkerNumber;
use crate::pool::ledger::{Left, Standing};
use crate::pool::line::Claimable;
use crate::pool::open_unit::OpenUnit;
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::sync::thread::ThreadId;
use crate::unit::{UnitKey, UnitStatus};

/// The times of a unit in line, by the pool's clock.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct LineTimes {
    pub(in crate::pool) now_ms: i64,
    /// When it may be claimed.
    pub(in crate::pool) due_ms: i64,
    /// When it has waited for too long.
    pub(in crate::pool) deadline_ms: Option<i64>,
}

impl Ready {
    /// The unit was claimed: it runs. Submitted twice, it is one unit: returns that.
    pub(in crate::pool) fn submission_runs(
        &self,
        attempt: AttemptKey,
        arrival: &Arrival,
        worker: WorkerNumber,
    ) -> Arc<OpenUnit> {
        self.end_submission(arrival, |state, _| {
            let unit = state.ledger.stand(attempt.unit, arrival.as_unit(), attempt.number, Standing::Running);
            state.capacity.assign(worker, &unit);
            unit
        })
    }

    /// How often a unit has begun or left here while it is being submitted.
    pub(in crate::pool) fn changes(&self, id: &str) -> u64 {
        self.state.lock().ledger.changes(id)
    }

    /// The unit was stored and waits in line. Returns the one that waits; and `false` if the pool is stopping, and so it has left.
    /// `None` if it has begun or left since it was looked at, and may have ended by now: it is to be looked at again.
    pub(in crate::pool) fn submission_queues(
        &self,
        after: AttemptKey,
        arrival: &Arrival,
        times: LineTimes,
        changes: u64,
    ) -> Option<(Arc<OpenUnit>, bool)> {
        let is_news = |state: &State| state.ledger.changes(arrival.unit.id()) != changes;
        self.end_submission_unless(is_news, arrival, |state, wake| {
            // What waits here already, in line or to be tried again, needs no place of its own.
            if state.ledger.is_open(after.unit) {
                state.ledger.queue.turn_away();
            } else {
                state.ledger.queue.wait(after.unit);
                state.ledger.totals.queued += 1;
            }
            let standing = Standing::Waiting { until_ms: times.due_ms };
            let unit = state.ledger.stand(after.unit, arrival.as_unit(), after.number, standing);
            if let Some(deadline_ms) = times.deadline_ms {
                state.set_queue_alarm(after.unit, deadline_ms, wake);
            }
            if times.due_ms > times.now_ms || !state.is_open() {
                return (unit, state.waits(after, times.due_ms, wake));
            }
            state.ledger.fall_due(after.unit, times.now_ms);
            (unit, true)
        })
    }

    /// The unit did not come to wait in line. What else became of it is another matter.
    pub(in crate::pool) fn leave_line(&self) {
        self.change(|state, _| state.ledger.queue.turn_away());
    }

    /// A unit has waited in line for too long, and is looked at again in case that this comes to nothing. Says whether it still waits: then the
    /// heartbeat has to tell the repository.
    pub(in crate::pool) fn queue_time_is_up(&self, key: UnitKey, again_ms: i64) -> bool {
        self.change(|state, wake| {
            let is_waiting = state.ledger.queue.time_is_up(key);
            if is_waiting {
                state.is_sweep_due = true;
                state.set_queue_alarm(key, again_ms, wake);
            }
            is_waiting
        })
    }

    /// Whether a unit has waited in line for too long, and still does.
    pub(in crate::pool) fn is_overdue(&self, key: UnitKey) -> bool {
        self.state.lock().ledger.queue.overdue().contains(&key)
    }

    /// Whether a unit has waited in line for too long since this was asked last.
    pub(in crate::pool) fn take_sweep_due(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_sweep_due)
    }

    /// The units that have waited in line for too long, and still do.
    pub(in crate::pool) fn overdue(&self) -> Vec<(UnitKey, Arc<OpenUnit>)> {
        let state = self.state.lock();
        state.ledger.queue.overdue().iter().filter_map(|&key| Some((key, state.ledger.get(key)?))).collect()
    }

    /// The units that wait for their time or for a place, in no order.
    pub(in crate::pool) fn waiting(&self) -> Vec<UnitKey> {
        self.state.lock().ledger.waiting()
    }

    /// The unit was stored and waits for its time. Returns the one that waits; and `false` if the pool is stopping, and
    /// so it has left. `None` if it has begun or left since it was looked at.
    pub(in crate::pool) fn submission_waits(
        &self,
        after: AttemptKey,
        arrival: &Arrival,
        until_ms: i64,
        changes: u64,
    ) -> Option<(Arc<OpenUnit>, bool)> {
        let is_news = |state: &State| state.ledger.changes(arrival.unit.id()) != changes;
        self.end_submission_unless(is_news, arrival, |state, wake| {
            let standing = Standing::Waiting { until_ms };
            let unit = state.ledger.stand(after.unit, arrival.as_unit(), after.number, standing);
            (unit, state.waits(after, until_ms, wake))
        })
    }

    /// The unit runs already. Returns what is known of it here; if it is another's, it is watched. `None` if it has left
    /// since it was looked at.
    pub(in crate::pool) fn submission_attaches(
        &self,
        key: UnitKey,
        arrival: &Arrival,
        changes: u64,
    ) -> Option<Arc<OpenUnit>> {
        let unit = &arrival.unit;
        let has_left = |state: &State| state.ledger.get(key).is_none() && state.ledger.changes(unit.id()) != changes;
        self.end_submission_unless(has_left, arrival, |state, _| state.ledger.attach(key, unit))
    }

    /// The units that others execute and somebody here waits for.
    pub(in crate::pool) fn watched(&self) -> Vec<(UnitKey, Arc<OpenUnit>)> {
        self.state.lock().ledger.watched()
    }

    /// A unit need not be watched any more; says whether it was.
    pub(in crate::pool) fn unwatch(&self, key: UnitKey) -> bool {
        self.state.lock().ledger.unwatch(key)
    }

    /// Nothing came of it.
    pub(in crate::pool) fn submission_ends(&self, arrival: &Arrival) {
        self.end_submission(arrival, |_, _| ());
    }

    /// Notes what became of a unit that was submitted.
    fn end_submission<T>(&self, arrival: &Arrival, section: impl FnOnce(&mut State, &mut Wake) -> T) -> T {
        let (answer, left) = self.change(|state, wake| state.end_submission(arrival, wake, section));
        leave_pending(left);
        answer
    }

    /// The same, unless what was found out about it is no longer so: then `None`, and it is still being submitted.
    fn end_submission_unless<T>(
        &self,
        is_outdated: impl FnOnce(&State) -> bool,
        arrival: &Arrival,
        section: impl FnOnce(&mut State, &mut Wake) -> T,
    ) -> Option<T> {
        let (answer, left) = self.change(|state, wake| match is_outdated(state) {
            true => None,
            false => Some(state.end_submission(arrival, wake, section)),
        })?;
        leave_pending(left);
        Some(answer)
    }

    /// Takes places for units that are due, in order, at most so many: each goes to its own worker if it must, otherwise rather to the one
    /// that its session was on, or to the one that is wished for.
    pub(in crate::pool) fn pick_due(&self, at_most: usize, wish: Option<WorkerNumber>, now_ms: i64) -> Vec<Pick> {
        self.change(|state, _| {
            state.let_fall_due(now_ms);
            match state.may_start() {
                true => std::iter::from_fn(|| state.pick_next(wish, now_ms)).take(at_most).collect(),
                false => Vec::new(),
            }
        })
    }

    /// A unit that this pool accepted is claimed: it runs. Units it did not know become its own, unless it is stopping:
    /// then `None`.
    pub(in crate::pool) fn claimed(
        &self,
        attempt: AttemptKey,
        unit_id: &str,
        claimable: &Claimable,
        worker: WorkerNumber,
    ) -> Option<Arc<OpenUnit>> {
        self.change(|state, _| state.claimed(attempt, unit_id, claimable, worker))
    }

    /// A unit waits for its time after an attempt; `false` if the pool is stopping, and so it has left.
    pub(in crate::pool) fn wait_until(&self, after: AttemptKey, until_ms: i64, now_ms: i64) -> bool {
        self.change(|state, wake| {
            if !state.ledger.wait_after(after.unit, after.number, until_ms) {
                // Whoever made it leave meanwhile tells of it.
                return true;
            }
            if until_ms <= now_ms && state.is_open() {
                wake.settled = state.hold.is_some();
                return state.ledger.fall_due(after.unit, now_ms);
            }
            state.waits(after, until_ms, wake)
        })
    }

    /// A unit that was given up waits for another attempt after all, which nobody but this pool may make.
    pub(in crate::pool) fn take_back(&self, after: AttemptKey, unit_id: &str, claimable: &Claimable, until_ms: i64) {
        self.change(|state, wake| {
            if state.phase == PoolPhase::Running {
                let unit = Arc::new(OpenUnit::new(unit_id));
                unit.set_key(after.unit);
                state.ledger.stand(after.unit, (&unit, claimable), after.number, Standing::Waiting { until_ms });
                state.waits(after, until_ms, wake);
            }
        });
    }

    /// A unit that had a place has none after all: it is its turn again.
    pub(in crate::pool) fn unpick(&self, key: UnitKey) {
        self.change(|state, _| state.ledger.unpick(key));
    }

    /// A unit that waits was claimed before, of which nobody here knows any more: it keeps its place.
    pub(in crate::pool) fn keep_place(&self, key: UnitKey) {
        self.change(|state, _| state.ledger.keep_place(key));
    }

    /// Everything that is due waits once more.
    pub(in crate::pool) fn put_off_due(&self, until_ms: i64) {
        self.change(|state, wake| {
            for key in state.ledger.due() {
                if state.ledger.wait_again(key, until_ms) {
                    wake.supervisor |= state.timers.set(until_ms, Alarm::Retry(key));
                }
            }
        });
    }

    /// A unit that was due waits once more, if it still is.
    pub(in crate::pool) fn wait_again(&self, key: UnitKey, until_ms: i64) {
        self.change(|state, wake| {
            if state.ledger.wait_again(key, until_ms) {
                wake.supervisor = state.timers.set(until_ms, Alarm::Retry(key));
            }
        });
    }

    /// An execution begins, and has until then.
    pub(in crate::pool) fn attempt_begins(&self, worker: WorkerNumber, run: u64, deadline_ms: i64) {
        self.change(|state, wake| {
            state.ledger.totals.attempts += 1;
            state.begin_to_learn(run);
            let is_first = state.timers.set(deadline_ms, Alarm::Execution { worker, run });
            wake.supervisor = is_first || state.phase == PoolPhase::Draining;
        });
    }

    /// An attempt has told which session it is in. That counts if it still runs, unless its worker takes nothing any more. Says whether it does.
    pub(in crate::pool) fn tell_session(
        &self,
        attempt: AttemptKey,
        key: &Arc<str>,
        worker: WorkerNumber,
        now_ms: i64,
    ) -> bool {
        self.change(|state, _| {
            state.capacity.takes_units(worker) && state.ledger.tell_session(attempt, key, worker, now_ms)
        })
    }

    /// Whether a session is on this very worker.
    pub(in crate::pool) fn is_session_on(&self, key: &str, worker: WorkerNumber) -> bool {
        self.state.lock().ledger.line.sessions.is_on(key, worker)
    }

    /// An attempt of a unit of a strict session has begun: the next of its session may. One that was given up meanwhile says nothing
    /// about the one that follows it.
    pub(in crate::pool) fn session_goes_on(&self, key: &Arc<str>, attempt: AttemptKey) {
        self.change(|state, _| {
            if state.ledger.is_running_in(attempt) {
                state.ledger.line.sessions.begin(key, attempt.unit);
            }
        });
    }

    /// A unit of a session was with a worker until now.
    pub(in crate::pool) fn session_stayed(&self, key: &Arc<str>, worker: WorkerNumber, now_ms: i64) {
        self.change(|state, _| state.ledger.line.sessions.stayed(key, worker, now_ms));
    }

    /// What an attempt used is added up, and how it ended counted.
    pub(in crate::pool) fn attempt_ends(
        &self,
        worker: WorkerNumber,
        outcome: Outcome,
        charges: &[Charge],
        is_retried: bool,
    ) {
        let is_success = match outcome {
            Outcome::Completed => Some(true),
            Outcome::Failed | Outcome::TimedOut | Outcome::Lost => Some(false),
            Outcome::Cancelled | Outcome::Released => None,
        };
        let mut state = self.state.lock();
        state.capacity.count_attempt(worker, is_success);
        state.ledger.charge(charges);
        state.ledger.totals.errors += u64::from(is_success == Some(false));
        state.ledger.totals.retried += u64::from(is_retried);
    }

    /// A unit has left after an attempt; if it ended, its callback is still to run. Returns it if that is news.
    pub(in crate::pool) fn unit_leaves(&self, after: AttemptKey, left: Left) -> Option<Arc<OpenUnit>> {
        self.change(|state, wake| {
            wake.settled = true;
            state.ledger.leave(after.unit, after.number, left)
        })
    }

    /// An open unit, and how often it was brought here.
    pub(in crate::pool) fn arrivals(&self, key: UnitKey) -> Option<(Arc<OpenUnit>, u64)> {
        self.state.lock().ledger.arrivals(key)
    }

    /// A unit that waited has gone to somebody else, unless it was brought here again since that was found. Returns it if that is news.
    pub(in crate::pool) fn unit_is_lost(&self, after: AttemptKey, arrivals: u64) -> Option<Arc<OpenUnit>> {
        self.change(|state, wake| {
            state.ledger.arrivals(after.unit).filter(|&(_, now)| now == arrivals)?;
            wake.settled = true;
            state.ledger.leave(after.unit, after.number, Left::Lost)
        })
    }

    /// A unit ended after an attempt, and the reporter is to tell. Returns it if that is news: then the reporter waits for it.
    pub(in crate::pool) fn unit_ends(
        &self,
        after: AttemptKey,
        status: UnitStatus,
        kind: Option<&FailureKind>,
    ) -> Option<Arc<OpenUnit>> {
        self.change(|state, wake| {
            let unit = state.ledger.leave(after.unit, after.number, Left::Ended(status))?;
            state.ledger.totals.queue_timeouts += u64::from(kind == Some(&FailureKind::QUEUE_TIMEOUT));
            wake.settled = true;
            state.reports += 1;
            Some(unit)
        })
    }

    /// A unit's callback has run.
    pub(in crate::pool) fn unit_closes(&self, key: UnitKey, unit: &Arc<OpenUnit>) {
        self.change(|state, wake| {
            state.ledger.close(key, unit);
            wake.settled = true;
            wake.supervisor = state.phase == PoolPhase::Draining;
        });
    }

    pub(in crate::pool) fn get(&self, key: UnitKey) -> Option<Arc<OpenUnit>> {
        self.state.lock().ledger.get(key)
    }

    /// Whether a worker of this pool has a unit.
    pub(in crate::pool) fn is_running(&self, key: UnitKey) -> bool {
        self.state.lock().ledger.is_running(key)
    }

    /// Whether an attempt comes after all that are known here.
    pub(in crate::pool) fn is_later(&self, key: UnitKey, attempt_number: u32) -> bool {
        self.state.lock().ledger.is_later(key, attempt_number)
    }

    /// A unit that is open, or is about to be.
    pub(in crate::pool) fn get_or_submitting(&self, key: UnitKey, id: &str) -> Option<Arc<OpenUnit>> {
        let state = self.state.lock();
        state.ledger.get(key).or_else(|| state.ledger.submitting(id))
    }
}

impl State {
    pub(super) fn claimed(
        &mut self,
        attempt: AttemptKey,
        unit_id: &str,
        claimable: &Claimable,
        worker: WorkerNumber,
    ) -> Option<Arc<OpenUnit>> {
        let is_known = self.ledger.get(attempt.unit).is_some() || self.ledger.submitting(unit_id).is_some();
        if self.phase != PoolPhase::Running && !is_known {
            return None;
        }
        let unit = self.ledger.run_claimed(attempt.unit, unit_id, claimable, attempt.number);
        self.capacity.assign(worker, &unit);
        Some(unit)
    }

    fn set_queue_alarm(&mut self, key: UnitKey, at_ms: i64, wake: &mut Wake) {
        self.ledger.queue.set_alarm(key, at_ms);
        wake.supervisor |= self.timers.set(at_ms, Alarm::QueueTimeout(key));
    }

    /// Takes the promise of a thread back, to be used or given up; says whether there was one.
    pub(super) fn unreserve(&mut self, thread: ThreadId) -> bool {
        let reservation = self.capacity.unreserve(thread);
        if let Some((number, at_ms)) = reservation {
            self.timers.clear(at_ms, Alarm::Reservation(number));
        }
        reservation.is_some()
    }

    /// Notes what became of a unit that was submitted. Returns also what leaves because of that.
    fn end_submission<T>(
        &mut self,
        arrival: &Arrival,
        wake: &mut Wake,
        section: impl FnOnce(&mut State, &mut Wake) -> T,
    ) -> (T, Vec<Arc<OpenUnit>>) {
        self.submissions -= 1;
        self.ledger.end_submission(arrival.unit.id());
        let answer = section(self, wake);
        // Only now: a session that its unit has joined is not without one in between.
        self.end_arrival(arrival);
        (answer, self.leave_if_stopping(wake))
    }

    /// Whatever waits leaves if the pool stops, also if it did not before because it was being submitted.
    fn leave_if_stopping(&mut self, wake: &mut Wake) -> Vec<Arc<OpenUnit>> {
        if self.is_open() {
            return Vec::new();
        }
        (wake.settled, wake.supervisor) = (true, true);
        self.ledger.leave_waiting()
    }

    /// A unit has begun to wait, for which there must be time left.
    fn waits(&mut self, after: AttemptKey, until_ms: i64, wake: &mut Wake) -> bool {
        if !self.is_open() {
            (wake.settled, wake.supervisor) = (true, true);
            if self.ledger.is_submitted(after.unit) {
                return true;
            }
            return self.ledger.leave(after.unit, after.number, Left::Pending).is_none();
        }
        wake.supervisor |= self.timers.set(until_ms, Alarm::Retry(after.unit));
        wake.settled = self.hold.is_some();
        true
    }
}

/// Tells those who wait for units that these stay PENDING.
fn leave_pending(units: Vec<Arc<OpenUnit>>) {
    for unit in units {
        unit.leave(Left::Pending);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::settings::Settings;

    #[test]
    fn a_unit_that_was_brought_again_since_it_was_read_is_not_lost() {
        let ready = Ready::new(Settings::default().crew(), 10, 0);
        let after = AttemptKey { unit: UnitKey(1), number: 0 };
        let bring = || {
            let (unit, claimable) = (Arc::new(OpenUnit::new("a")), Claimable::default());
            ready.change(|state, _| {
                state.ledger.stand(after.unit, (&unit, &claimable), after.number, Standing::Waiting { until_ms: 1 });
            });
        };
        bring();
        let (_, read_after) = ready.arrivals(after.unit).unwrap();
        bring();
        assert!(ready.unit_is_lost(after, read_after).is_none());
        let (unit, read_after) = ready.arrivals(after.unit).unwrap();
        let lost = ready.unit_is_lost(after, read_after).unwrap();
        assert!(Arc::ptr_eq(&unit, &lost) && ready.arrivals(after.unit).is_none());
    }
}
