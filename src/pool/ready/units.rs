//! Units: on their way in, waiting, running, on their way out.

use std::sync::Arc;

use super::{Ready, State, Wake};
use crate::attempt::AttemptKey;
use crate::money::Charge;
use crate::pool::capacity::{Right, Taken, WorkerNumber};
use crate::pool::error::Refusal;
use crate::pool::ledger::{Left, Standing};
use crate::pool::open_unit::OpenUnit;
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::unit::{UnitKey, UnitStatus};

impl Ready {
    /// Takes a place with its worker for a unit that is to be submitted.
    pub(in crate::pool) fn begin_submission(&self, right: Right, id: &str) -> Result<(Taken, Arc<OpenUnit>), Refusal> {
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
            // A promise is kept also while the pool is held: the unit is stored, and its worker gives it back unexecuted.
            if state.phase != PoolPhase::Running || (state.hold.is_some() && !promised) {
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
    pub(in crate::pool) fn submission_runs(&self, attempt: AttemptKey, unit: &Arc<OpenUnit>) -> Arc<OpenUnit> {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
            state.ledger.stand(attempt.unit, unit, attempt.number, Standing::Running)
        })
    }

    /// The unit was stored and waits for its time. Returns the one that waits; and `false` if the pool is stopping, and
    /// so it has left.
    pub(in crate::pool) fn submission_waits(
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
    pub(in crate::pool) fn submission_attaches(&self, key: UnitKey, unit: &Arc<OpenUnit>) -> Arc<OpenUnit> {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
            state.ledger.attach(key, unit)
        })
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
    pub(in crate::pool) fn submission_ends(&self, unit: &Arc<OpenUnit>) {
        self.change(|state, wake| {
            state.end_submission(unit, wake);
        });
    }

    /// Takes places for units that are due, at most one for each of them.
    pub(in crate::pool) fn take_for_due(&self) -> Vec<Taken> {
        self.change(|state, _| {
            let due = if state.may_start() { state.ledger.due().len() } else { 0 };
            std::iter::from_fn(|| state.capacity.take()).take(due).collect()
        })
    }

    /// The units that are due.
    pub(in crate::pool) fn due(&self) -> Vec<(UnitKey, Arc<OpenUnit>)> {
        let state = self.state.lock();
        state.ledger.due().iter().filter_map(|&key| Some((key, state.ledger.get(key)?))).collect()
    }

    /// A unit that this pool accepted is claimed: it runs. Units it did not know become its own, unless it is stopping:
    /// then `None`.
    pub(in crate::pool) fn claimed(&self, attempt: AttemptKey, unit_id: &str) -> Option<Arc<OpenUnit>> {
        self.change(|state, _| {
            if state.phase != PoolPhase::Running && state.ledger.get(attempt.unit).is_none() {
                return None;
            }
            let unknown = Arc::new(OpenUnit::new(unit_id));
            Some(state.ledger.stand(attempt.unit, &unknown, attempt.number, Standing::Running))
        })
    }

    /// A unit's time has come.
    pub(in crate::pool) fn fall_due(&self, key: UnitKey, now_ms: i64) {
        self.change(|state, wake| wake.claimer = state.ledger.fall_due(key, now_ms));
    }

    /// A unit waits for its time after an attempt; `false` if the pool is stopping, and so it has left.
    pub(in crate::pool) fn wait_until(&self, after: AttemptKey, until_ms: i64) -> bool {
        self.change(|state, wake| {
            // Whoever made it leave meanwhile tells of it.
            !state.ledger.wait_after(after.unit, after.number, until_ms) || state.waits(after, until_ms, wake)
        })
    }

    /// A unit that was given up waits for another attempt after all, which nobody but this pool may make.
    pub(in crate::pool) fn take_back(&self, after: AttemptKey, unit_id: &str, until_ms: i64) {
        self.change(|state, wake| {
            if state.phase == PoolPhase::Running {
                let unit = Arc::new(OpenUnit::new(unit_id));
                unit.set_key(after.unit);
                state.ledger.stand(after.unit, &unit, after.number, Standing::Waiting { until_ms });
                state.waits(after, until_ms, wake);
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
            let is_first = state.timers.set(deadline_ms, Alarm::Execution { worker, run });
            wake.supervisor = is_first || state.phase == PoolPhase::Draining;
        });
    }

    /// What an attempt used is added up.
    pub(in crate::pool) fn charge(&self, charges: &[Charge], is_retried: bool) {
        let mut state = self.state.lock();
        state.ledger.charge(charges);
        state.ledger.totals.retried += u64::from(is_retried);
    }

    /// A unit has left after an attempt; if it ended, its callback is still to run. Returns it if that is news.
    pub(in crate::pool) fn unit_leaves(&self, after: AttemptKey, left: Left) -> Option<Arc<OpenUnit>> {
        self.change(|state, wake| {
            wake.settled = true;
            state.ledger.leave(after.unit, after.number, left)
        })
    }

    /// A unit ended after an attempt, and the reporter is to tell. Returns it if that is news: then the reporter waits for it.
    pub(in crate::pool) fn unit_ends(&self, after: AttemptKey, status: UnitStatus) -> Option<Arc<OpenUnit>> {
        self.change(|state, wake| {
            let unit = state.ledger.leave(after.unit, after.number, Left::Ended(status))?;
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
