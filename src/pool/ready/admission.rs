//! Admission: which place a unit gets that comes now, and which unit a place gets that is free now.
//!
//! | it belongs to | it may wait (`enqueue`) | it may not (a submission) |
//! |---|---|---|
//! | no session, or one that is a hint | a worker if nothing else waits for it, else the line | a worker, or `AtCapacity` |
//! | a strict session that is nowhere | the same | the same |
//! | one on a worker that has room | that worker if nothing else waits for it, else the line | that worker |
//! | one on a worker that is busy, `StrictQueue` | the line of its session | the same |
//! | one on a worker that is busy, `StrictFailFast` | `WorkerBusy` | `WorkerBusy` |
//!
//! Behind others of its session a strict unit stands in line in any case. A place that a thread was promised is used where it can be; if
//! the worker behind it has crashed since and there is no other, the unit waits in line.

use std::sync::Arc;

use super::{Ready, State};
use crate::pool::capacity::{Right, Taken, WorkerNumber};
use crate::pool::error::Refusal;
use crate::pool::line::{Claimable, Tie};
use crate::pool::open_unit::OpenUnit;
use crate::pool::sessions::Seat;
use crate::pool::stats::PoolPhase;
use crate::sync::thread::ThreadId;
use crate::unit::{Affinity, UnitKey};

/// A unit that somebody brings.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Coming<'a> {
    pub(in crate::pool) id: &'a str,
    pub(in crate::pool) claimable: &'a Claimable,
    /// Whether it may begin now.
    pub(in crate::pool) is_due: bool,
    /// The worker that it should rather go to.
    pub(in crate::pool) wish: Option<WorkerNumber>,
    pub(in crate::pool) now_ms: i64,
}

/// Where a unit goes that comes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Place {
    /// There is a worker for it.
    Worker(Taken),
    /// Into the queue.
    Line,
}

/// A call that brings a unit, until it is known what became of that.
#[derive(Debug)]
pub(in crate::pool) struct Arrival {
    pub(in crate::pool) unit: Arc<OpenUnit>,
    pub(in crate::pool) claimable: Claimable,
    way: Way,
}

/// Which way a unit comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Straight to a worker.
    Worker,
    /// Into the line.
    Line,
    /// Into the line when its time has come.
    Later,
}

impl Arrival {
    /// The unit and where it belongs.
    pub(in crate::pool) fn as_unit(&self) -> (&Arc<OpenUnit>, &Claimable) {
        (&self.unit, &self.claimable)
    }
}

/// A unit that is due, and the place it gets.
#[derive(Debug)]
pub(in crate::pool) struct Pick {
    pub(in crate::pool) key: UnitKey,
    pub(in crate::pool) unit: Arc<OpenUnit>,
    pub(in crate::pool) strict_key: Option<Arc<str>>,
    pub(in crate::pool) taken: Taken,
}

/// What becomes of the next unit that is due where a scheduler is to be heard.
#[derive(Debug)]
pub(in crate::pool) enum PickOrAsk {
    /// There is nothing to choose: it has its place, if there is such a unit.
    Picked(Option<Pick>),
    /// It may go to several workers. The claimer asks until it [ends](Ready::end_asking) that.
    Ask,
}

/// How a place is wanted for a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Want {
    /// It was promised.
    Promised,
    /// Now, or not at all.
    Now,
    /// Others that wait go first.
    Patient,
}

impl Ready {
    /// Takes a place for a unit that is to be submitted.
    pub(in crate::pool) fn begin_submission(
        &self,
        right: Right,
        coming: &Coming<'_>,
    ) -> Result<(Place, Arrival), Refusal> {
        self.change(|state, _| {
            state.ledger.totals.requests += 1;
            let promised = match right {
                Right::Permit => {
                    state.capacity.drop_permit();
                    true
                }
                Right::Thread(thread) => state.unreserve(thread),
            };
            // A promise is kept also while the pool is held: the unit is stored, and its worker gives it back unexecuted.
            if state.phase != PoolPhase::Running || (state.hold.is_some() && !promised) {
                return Err(state.refusal());
            }
            // That it is not due yet is for the repository to find: then its place is free again.
            let coming = Coming { is_due: true, ..*coming };
            state.admit(&coming, if promised { Want::Promised } else { Want::Now })
        })
    }

    /// Takes a place for a unit that may wait in line: the one that the thread was promised, one with its worker if nothing else waits
    /// for it, otherwise one in the queue, as always for what may not begin yet.
    pub(in crate::pool) fn begin_enqueuing(
        &self,
        thread: ThreadId,
        coming: &Coming<'_>,
    ) -> Result<(Place, Arrival), Refusal> {
        self.change(|state, _| {
            state.ledger.totals.requests += 1;
            let promised = state.unreserve(thread);
            if !state.is_open() {
                return Err(state.refusal());
            }
            state.admit(coming, if promised { Want::Promised } else { Want::Patient })
        })
    }

    /// Whether a unit of a session that comes now may go to several workers.
    pub(in crate::pool) fn has_choice(&self, tie: &Tie, now_ms: i64) -> bool {
        let mut state = self.state.lock();
        match tie.is_strict() {
            true => state.ledger.line.sessions.seat(&tie.key, now_ms) == Seat::Anywhere,
            false => state.preferred(Some(tie), now_ms).is_none(),
        }
    }

    /// Takes a place for the next unit that is due, unless it may go to several workers.
    pub(in crate::pool) fn pick_or_ask(&self, now_ms: i64) -> PickOrAsk {
        self.change(|state, _| {
            state.let_fall_due(now_ms);
            if !state.may_start() {
                return PickOrAsk::Picked(None);
            }
            state.is_asking = state.has_choice_for_next(now_ms);
            if state.is_asking { PickOrAsk::Ask } else { PickOrAsk::Picked(state.pick_next(None, now_ms)) }
        })
    }

    /// The worker that was taken for a unit is gone, and there is no other: it waits in line.
    pub(in crate::pool) fn join_line(&self, arrival: &mut Arrival) {
        self.change(|state, _| {
            state.ledger.queue.enter_anyway();
            if let Some(key) = arrival.claimable.strict_key() {
                state.ledger.line.sessions.begin_entering(key);
                state.ledger.line.sessions.end_taking(key);
            }
            arrival.way = Way::Line;
        });
    }

    /// A worker that was taken for a unit did not take it: another one for that, if there is one. A strict session moves only as a whole.
    /// Once the pool stops there is none: nobody would wait for a worker that is started then.
    pub(in crate::pool) fn replace(
        &self,
        worker: WorkerNumber,
        strict_key: Option<&Arc<str>>,
        now_ms: i64,
    ) -> Option<Taken> {
        self.change(|state, _| {
            state.capacity.give_back(worker);
            let sessions = &state.ledger.line.sessions;
            if !state.is_open() || strict_key.is_some_and(|key| !sessions.may_move(key)) {
                return None;
            }
            let taken = state.capacity.take_promised(None)?;
            if let Some(key) = strict_key {
                state.ledger.line.sessions.settle(key, taken.worker(), now_ms);
            }
            Some(taken)
        })
    }
}

impl State {
    fn admit(&mut self, coming: &Coming<'_>, want: Want) -> Result<(Place, Arrival), Refusal> {
        let tie = coming.claimable.tie.as_ref();
        let taken = match tie.filter(|tie| tie.is_strict()) {
            _ if !coming.is_due => None,
            Some(tie) => self.seat(tie, coming, want)?,
            None => self.take_any(coming, want),
        };
        if let Some(taken) = taken {
            if let Some(tie) = tie {
                self.ledger.line.settle(tie, taken.worker(), coming.now_ms);
            }
            return Ok((Place::Worker(taken), self.arrive(coming, Way::Worker)));
        }
        let is_to_wait = want != Want::Now || tie.is_some_and(Tie::is_strict) && self.is_seat_taken(coming);
        if !is_to_wait {
            return Err(self.refusal());
        }
        // Whoever was promised a worker is not turned away for want of room in line.
        if want == Want::Promised && coming.is_due {
            self.ledger.queue.enter_anyway();
        } else if !self.ledger.queue.enter() {
            self.ledger.totals.saturated += 1;
            return Err(Refusal::Saturated { max_queue_size: self.ledger.queue.limit() });
        }
        Ok((Place::Line, self.arrive(coming, if coming.is_due { Way::Line } else { Way::Later })))
    }

    /// Whether a strict unit has to wait for its session, rather than for just any worker.
    fn is_seat_taken(&mut self, coming: &Coming<'_>) -> bool {
        let Some(key) = coming.claimable.strict_key() else { return false };
        match self.ledger.line.sessions.seat(key, coming.now_ms) {
            Seat::Anywhere => false,
            Seat::On(worker) => self.capacity.room(worker) == 0,
            Seat::Behind(_) | Seat::Nowhere => true,
        }
    }

    /// The worker that a unit's session was on, if it has room.
    fn preferred(&mut self, tie: Option<&Tie>, now_ms: i64) -> Option<WorkerNumber> {
        let worker = self.ledger.line.sessions.worker_of(&tie?.key, now_ms)?;
        (self.capacity.room(worker) > 0).then_some(worker)
    }

    /// A place of any worker, rather of the one that the unit's session was on.
    fn take_any(&mut self, coming: &Coming<'_>, want: Want) -> Option<Taken> {
        let wish = self.preferred(coming.claimable.tie.as_ref(), coming.now_ms).or(coming.wish);
        match want {
            Want::Promised => self.capacity.take_promised(wish),
            Want::Now => self.capacity.take(wish),
            Want::Patient if self.has_room_for_new() => self.capacity.take(wish),
            Want::Patient => None,
        }
    }

    /// A place of the worker that the unit's session is on; `None` if it has to wait.
    fn seat(&mut self, tie: &Tie, coming: &Coming<'_>, want: Want) -> Result<Option<Taken>, Refusal> {
        let seat = self.ledger.line.sessions.seat(&tie.key, coming.now_ms);
        if tie.affinity == Affinity::StrictFailFast {
            self.fail_fast(&tie.key, seat)?;
        }
        Ok(match seat {
            Seat::Anywhere => self.take_any(coming, want),
            Seat::On(worker) => {
                let may_take = match want {
                    Want::Promised => true,
                    Want::Now => self.capacity.free() > 0,
                    Want::Patient => self.has_room_for_new(),
                };
                (may_take && self.capacity.take_of(worker)).then_some(Taken::Up(worker))
            }
            Seat::Behind(_) | Seat::Nowhere => None,
        })
    }

    /// Refuses what would have to wait for its worker. That one of its session has yet to begin there is no wait to speak of.
    fn fail_fast(&self, key: &str, seat: Seat) -> Result<(), Refusal> {
        let before = self.ledger.line.sessions.before(key);
        let (worker, is_busy) = match seat {
            Seat::Anywhere => return Ok(()),
            Seat::On(worker) | Seat::Behind(worker) => {
                (Some(worker), before.is_none_or(|before| self.capacity.room(worker) <= before))
            }
            Seat::Nowhere => (None, self.ledger.line.sessions.is_leaving(key) || before.is_none()),
        };
        match is_busy {
            true => Err(Refusal::WorkerBusy { key: key.to_owned(), worker: worker.map(WorkerNumber::id) }),
            false => Ok(()),
        }
    }

    fn arrive(&mut self, coming: &Coming<'_>, way: Way) -> Arrival {
        self.submissions += 1;
        if let Some(key) = coming.claimable.strict_key() {
            match way {
                Way::Worker => self.ledger.line.sessions.begin_taking(key),
                Way::Line => self.ledger.line.sessions.begin_entering(key),
                Way::Later => {}
            }
        }
        let unit = self.ledger.begin_submission(coming.id);
        Arrival { unit, claimable: coming.claimable.clone(), way }
    }

    /// It is known what became of a unit that somebody brought.
    pub(super) fn end_arrival(&mut self, arrival: &Arrival) {
        let Some(key) = arrival.claimable.strict_key() else { return };
        match arrival.way {
            Way::Worker => self.ledger.line.sessions.end_taking(key),
            Way::Line => self.ledger.line.sessions.end_entering(key),
            Way::Later => {}
        }
    }

    /// Whether there is a place for the next unit whose turn it is, and it may go to several workers.
    fn has_choice_for_next(&mut self, now_ms: i64) -> bool {
        if self.capacity.free() == 0 {
            return false;
        }
        let Some((next, claimable)) = self.ledger.next(&self.capacity) else { return false };
        let tie = claimable.tie.clone();
        next.worker.is_none() && self.preferred(tie.as_ref(), now_ms).is_none()
    }

    /// Gives the next unit whose turn it is a place, if there is one for it.
    pub(super) fn pick_next(&mut self, wish: Option<WorkerNumber>, now_ms: i64) -> Option<Pick> {
        if self.capacity.free() == 0 {
            return None;
        }
        let (next, claimable) = self.ledger.next(&self.capacity)?;
        let tie = claimable.tie.clone();
        let taken = match next.worker {
            Some(worker) => self.capacity.take_of(worker).then_some(Taken::Up(worker)),
            None => {
                let wish = self.preferred(tie.as_ref(), now_ms).or(wish);
                self.capacity.take(wish)
            }
        }?;
        let unit = self.ledger.pick(next.unit)?;
        if let Some(tie) = &tie {
            self.ledger.line.settle(tie, taken.worker(), now_ms);
        }
        let strict_key = tie.filter(Tie::is_strict).map(|tie| tie.key);
        Some(Pick { key: next.unit, unit, strict_key, taken })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::AttemptKey;
    use crate::pool::capacity::Condition;
    use crate::pool::ledger::Left;
    use crate::pool::ready::tests::ready;
    use crate::sync::thread;
    use crate::unit::UnitStatus;

    #[test]
    fn a_strict_unit_that_its_worker_did_not_take_goes_to_another_if_none_of_its_session_is_left_there() {
        // 001-F44
        let key: Arc<str> = "s".into();
        let claimable = Claimable { priority: 0, tie: Some(Tie { key: key.clone(), affinity: Affinity::StrictQueue }) };
        let attempt = AttemptKey { unit: UnitKey(1), number: 1 };
        for is_one_left in [true, false] {
            let ready = ready(2);
            ready.begin_initializing().unwrap();
            ready.begin_running(0);
            let bring = |id| {
                let coming = Coming { id, claimable: &claimable, is_due: true, wish: None, now_ms: 0 };
                match ready.begin_submission(Right::Thread(thread::current().id()), &coming).unwrap() {
                    (Place::Worker(taken), arrival) => (taken.worker(), arrival),
                    (Place::Line, _) => panic!("{id} is in line"),
                }
            };
            let (worker, first) = bring("a");
            ready.worker_is_up(worker, 2, 0);
            ready.submission_runs(attempt, &first, worker);
            ready.session_goes_on(&key, attempt);
            let (same, _second) = bring("b");
            assert_eq!(same, worker);
            ready.publish(worker, Condition::Tainted);
            if !is_one_left {
                ready.unit_leaves(attempt, Left::Ended(UnitStatus::Completed)).unwrap();
            }
            let other = ready.replace(worker, Some(&key), 0).map(Taken::worker);
            assert_eq!((other.is_none(), other == Some(worker)), (is_one_left, false), "{other:?}");
        }
    }
}
