//! What is pulled: when somebody looks for it, the places it gets, and those who wait until nothing is left.

use std::sync::Arc;
use std::time::Instant;

use super::{Completion, Ready, State};
use crate::attempt::AttemptKey;
use crate::pool::capacity::{Taken, WorkerNumber};
use crate::pool::line::Claimable;
use crate::pool::open_unit::OpenUnit;
use crate::pool::pull::Until;
use crate::pool::scaling::Scaling;
use crate::pool::sessions::Seat;
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::repository::Backlog;

impl Ready {
    /// A thread wants units to be pulled, which are looked for now and from then on again and again. Returns the news that this is.
    pub(in crate::pool) fn begin_pulling(&self, until: Until, next_ms: i64) -> u64 {
        self.change(|state, wake| {
            state.is_sweep_due = true;
            state.poll_again(next_ms, wake);
            wake.claimer = true;
            state.pull.begin(until)
        })
    }

    pub(in crate::pool) fn end_pulling(&self, until: Until) {
        self.change(|state, wake| {
            state.pull.end(until);
            wake.settled = true;
        });
    }

    /// Whether anybody wants units to be pulled.
    pub(in crate::pool) fn is_pulling(&self) -> bool {
        self.state.lock().pull.is_active()
    }

    /// Units may have come that wait for anybody.
    pub(in crate::pool) fn work_came(&self) {
        self.change(|state, wake| {
            state.pull.come();
            // Somebody may have wanted to look before, and could not.
            wake.claimer = state.has_pull_work();
        });
    }

    /// Others have ended a unit of the job, which may have been the last.
    pub(in crate::pool) fn others_ended(&self) {
        self.change(|state, wake| {
            wake.claimer = state.pull.may_be_done() && state.has_pull_work();
        });
    }

    /// It is time to take back what the dead were holding, and then to look; says whether anybody wants that.
    pub(in crate::pool) fn poll(&self, next_ms: i64) -> bool {
        self.change(|state, wake| {
            state.pull.is_polling = false;
            let is_active = state.pull.is_active();
            if is_active {
                state.is_sweep_due = true;
                state.poll_again(next_ms, wake);
            }
            is_active
        })
    }

    /// Somebody is to look again then.
    pub(in crate::pool) fn look_again_at(&self, at_ms: i64) {
        self.set_alarm(at_ms, Alarm::Look);
    }

    /// Begins a look, if one is wanted: what it will have seen, and how many units are to be counted.
    pub(in crate::pool) fn begin_look(&self) -> Option<(u64, usize)> {
        let state = self.state.lock();
        let limit = state.capacity.free().saturating_add(state.crew.threshold()).saturating_add(1);
        state.may_look().then(|| (state.pull.begin_look(), limit))
    }

    pub(in crate::pool) fn end_look(&self, seen: u64, found: &Backlog) {
        self.change(|state, wake| {
            state.pull.end_look(seen, found);
            wake.settled = true;
        });
    }

    /// The claimer is about to ask the scheduler for whom the next unit is to be pulled; says whether it should.
    pub(in crate::pool) fn begin_asking_for_open(&self) -> bool {
        let mut state = self.state.lock();
        state.is_asking = state.may_pull();
        state.is_asking
    }

    /// Takes places for units that may be pulled, at most so many: those that nobody waits for.
    pub(in crate::pool) fn take_open(&self, at_most: usize, wish: Option<WorkerNumber>) -> Vec<Taken> {
        self.change(|state, _| {
            let take_one = || {
                let taken = if state.may_pull() { state.capacity.take(wish) } else { None };
                taken.inspect(|_| state.pull.take())
            };
            std::iter::from_fn(take_one).take(at_most).collect()
        })
    }

    /// A unit was pulled for a worker: it runs, and is this pool's own, unless that is stopping: then `None`. Says also whether it may stay
    /// with that worker, or has to go to the one that its session is on.
    pub(in crate::pool) fn pulled(
        &self,
        attempt: AttemptKey,
        unit_id: &str,
        claimable: &Claimable,
        worker: WorkerNumber,
        now_ms: i64,
    ) -> Option<(Arc<OpenUnit>, bool)> {
        self.change(|state, wake| {
            let is_seated = state.phase == PoolPhase::Running && state.seat_pulled(claimable, worker, now_ms);
            let unit = state.claimed(attempt, unit_id, claimable, worker)?;
            if claimable.tie.is_some() && !state.capacity.takes_units(worker) {
                // It was its last, and it has said goodbye to its sessions before it had this one.
                state.worker_goes(worker);
                wake.supervisor = true;
            }
            Some((unit, is_seated))
        })
    }

    /// Waits until nothing of the job is left to do for who brought this news: neither here, nor for anybody, nor with others.
    pub(in crate::pool) fn wait_for_pending(&self, since: u64, until: Option<Instant>) -> Completion {
        let found = self.wait(&self.settled, until, |state| match state.phase {
            PoolPhase::Configuring | PoolPhase::InitFailed | PoolPhase::Stopped => Some(Completion::Stopped),
            PoolPhase::Draining => state.ledger.is_empty().then_some(Completion::Stopped),
            PoolPhase::Initializing | PoolPhase::Running => {
                let is_done = state.ledger.is_empty() && state.pull.is_done(since);
                let blocked = || state.blocked().filter(|_| state.pull.has_seen_all(since));
                is_done.then_some(Completion::Done).or_else(blocked)
            }
        });
        found.unwrap_or(Completion::TimedOut)
    }

    /// Waits until the pool has stopped, or finds that it was never started.
    pub(in crate::pool) fn wait_while_following(&self, until: Option<Instant>) -> Completion {
        let is_over = |state: &State| {
            state.is_over || matches!(state.phase, PoolPhase::Configuring | PoolPhase::InitFailed | PoolPhase::Stopped)
        };
        let found = self.wait(&self.settled, until, |state| is_over(state).then_some(Completion::Stopped));
        found.unwrap_or(Completion::TimedOut)
    }
}

impl State {
    /// Whether a look is wanted and would lead to anything: there is a place, or there could be another worker. Also a pool that is held
    /// looks: whoever waits wants to know whether there is anything to wait for.
    fn may_look(&self) -> bool {
        let could_grow =
            matches!(self.crew.scaling(), Scaling::Threshold { .. }) && self.crew.size() < self.capacity.max_workers();
        self.phase == PoolPhase::Running && self.pull.wants_look() && (self.capacity.free() > 0 || could_grow)
    }

    /// Whether a place may be taken for what is pulled: one is free that nobody waits for, and no more units wait here than may.
    fn may_pull(&self) -> bool {
        let waiting = || self.ledger.open_count().saturating_sub(self.capacity.tally().load);
        let has_room_to_wait = || waiting() < self.ledger.queue.limit().max(1);
        let is_wanted = self.pull.is_active() && self.pull.backlog() > 0 && self.slot_waiters == 0;
        is_wanted && self.may_start() && self.capacity.free() > 0 && has_room_to_wait()
    }

    /// Whether the claimer has something to do for what is pulled.
    pub(super) fn has_pull_work(&self) -> bool {
        self.pull.is_active() && (self.may_look() || self.may_pull())
    }

    fn poll_again(&mut self, at_ms: i64, wake: &mut super::Wake) {
        if !std::mem::replace(&mut self.pull.is_polling, true) {
            wake.supervisor |= self.timers.set(at_ms, Alarm::Poll);
        }
    }

    /// Whether a unit may be executed by the worker that it was pulled for, where its session is then.
    fn seat_pulled(&mut self, claimable: &Claimable, worker: WorkerNumber, now_ms: i64) -> bool {
        let Some(tie) = &claimable.tie else { return true };
        // One that crashed while the unit was claimed has said goodbye to its sessions: none may come to it after that.
        let is_up = self.capacity.is_up(worker);
        let is_free = match self.ledger.line.sessions.seat(&tie.key, now_ms) {
            _ if !tie.is_strict() => true,
            Seat::Anywhere => is_up,
            Seat::On(other) => other == worker,
            Seat::Behind(_) | Seat::Nowhere => false,
        };
        if is_free && is_up {
            self.ledger.line.settle(tie, worker, now_ms);
        }
        is_free
    }
}
