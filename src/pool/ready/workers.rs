//! Workers and their threads. What changes a load is called while the worker's own lock is held.

use std::time::Instant;

use super::Ready;
use crate::pool::capacity::{Condition, Done, WorkerNumber};
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::sync::thread::JoinHandle;

impl Ready {
    pub(in crate::pool) fn publish(&self, worker: WorkerNumber, condition: Condition) {
        self.change(|state, _| state.capacity.publish(worker, condition));
    }

    /// A worker is to be on its way up again, as good as new. `false` if it is on its way out instead.
    pub(in crate::pool) fn worker_restarts(&self, worker: WorkerNumber) -> bool {
        self.change(|state, _| state.capacity.restart(worker))
    }

    /// It is known how many units a worker can have in hand.
    pub(in crate::pool) fn widen(&self, worker: WorkerNumber, capacity: u32) {
        self.change(|state, wake| {
            state.capacity.widen(worker, capacity);
            wake.slot = true;
        });
    }

    /// A unit of a worker has ended, and its callback is to run.
    pub(in crate::pool) fn report(&self, worker: WorkerNumber) {
        self.state.lock().capacity.report(worker);
    }

    /// A worker has ended: its places are free, and may have to be filled again. Its threads are to be joined: whoever finds that nobody
    /// is left must not miss them.
    pub(in crate::pool) fn worker_ends(&self, worker: WorkerNumber, threads: Vec<JoinHandle<()>>) {
        self.change(|state, wake| {
            state.ended_threads.extend(threads);
            state.capacity.remove(worker);
            state.worker_ends();
            (wake.slot, wake.supervisor) = (true, true);
        });
    }

    /// A worker is up, and takes as much as it can have in hand, unless it is one too many by now. Says which.
    pub(in crate::pool) fn worker_is_up(&self, worker: WorkerNumber, capacity: u32, now_ms: i64) -> Condition {
        self.change(|state, wake| {
            let condition = state.capacity.come_up(worker, capacity, now_ms);
            state.watch_idle(now_ms, wake);
            (wake.slot, wake.supervisor, wake.first_ready) = (true, true, true);
            condition
        })
    }

    /// A worker is done with a unit: its place is free. Says whether it goes on or is to retire.
    pub(in crate::pool) fn settle_worker(&self, worker: WorkerNumber, done: &Done<'_>, now_ms: i64) -> Condition {
        self.change(|state, wake| {
            let condition = state.capacity.settle(worker, done, now_ms);
            state.watch_idle(now_ms, wake);
            wake.slot = true;
            wake.supervisor |= state.phase == PoolPhase::Draining;
            condition
        })
    }

    /// A worker is done with a unit whose end could not be stored, and keeps its place for that. If the pool stops it does not wait for it.
    pub(in crate::pool) fn place_is_kept(&self) {
        self.change(|state, wake| wake.supervisor = state.phase == PoolPhase::Draining);
    }

    /// So many threads of a worker are stuck, and may never come back. If those are all that keep it from having room nobody need wait
    /// for it any more; should they come back it takes whatever comes.
    pub(in crate::pool) fn worker_is_stuck(&self, worker: WorkerNumber, stuck: usize) {
        self.change(|state, wake| {
            if state.capacity.room(worker) == 0 && state.capacity.load(worker) == stuck {
                state.worker_goes(worker);
                wake.supervisor = true;
            }
        });
    }

    /// Whether a worker takes units, or will when it has room.
    pub(in crate::pool) fn takes_units(&self, worker: WorkerNumber) -> bool {
        self.state.lock().capacity.takes_units(worker)
    }

    /// The workers that take nothing any more, since this was asked last.
    pub(in crate::pool) fn take_departed(&self) -> Vec<WorkerNumber> {
        std::mem::take(&mut self.state.lock().departed)
    }

    /// A worker has crashed and has nothing in hand any more: it rests until then.
    pub(in crate::pool) fn rest_tainted(&self, worker: WorkerNumber, until_ms: i64) {
        self.change(|state, wake| {
            wake.supervisor =
                state.timers.set(until_ms, Alarm::TaintEnds(worker)) || state.phase == PoolPhase::Draining;
        });
    }

    /// A worker is as old as it may become. It goes now if it is idle; says whether it does.
    pub(in crate::pool) fn retire_if_idle(&self, worker: WorkerNumber) -> bool {
        self.change(|state, _| state.capacity.retire_if_idle(worker))
    }

    /// A thread is left behind, unless there are too many already: more than allowed, or than there are workers.
    pub(in crate::pool) fn abandon_up_to(&self, limit: Option<usize>) -> bool {
        let mut state = self.state.lock();
        let may = state.abandoned < limit.unwrap_or(state.max_workers());
        state.abandoned += usize::from(may);
        may
    }

    /// A thread is left behind, however many there are: the pool stops.
    pub(in crate::pool) fn abandon(&self) {
        self.state.lock().abandoned += 1;
    }

    /// A thread that was left behind has come back.
    pub(in crate::pool) fn returned(&self) {
        self.state.lock().abandoned -= 1;
    }

    /// Whether a worker has nothing in hand, and nobody is about to give it something.
    pub(in crate::pool) fn is_idle(&self, worker: WorkerNumber) -> bool {
        self.state.lock().capacity.is_idle(worker)
    }

    /// The reporter gets something to tell.
    pub(in crate::pool) fn report_sent(&self) {
        self.state.lock().reports += 1;
    }

    /// The reporter has told it.
    pub(in crate::pool) fn report_told(&self) {
        self.change(|state, wake| {
            state.reports -= 1;
            (wake.supervisor, wake.settled) = (state.stop.is_some(), state.stop.is_some());
        });
    }

    /// Whether the reporter has told everything that was sent. If so, it tells no more.
    pub(in crate::pool) fn reporter_may_end(&self) -> bool {
        let mut state = self.state.lock();
        state.is_reporter_over = state.reports == 0;
        state.is_reporter_over
    }

    /// Waits until the reporter has told everything that was sent, but not for longer than that.
    pub(in crate::pool) fn wait_for_reporter(&self, until: Instant) {
        self.wait(&self.settled, Some(until), |state| (state.reports == 0).then_some(()));
    }

    /// Leaves the reporter behind if it still has something to tell; says whether it has.
    pub(in crate::pool) fn leave_reporter_behind(&self) -> bool {
        let mut state = self.state.lock();
        state.is_reporter_left_behind = !state.is_reporter_over && state.reports > 0;
        state.abandoned += usize::from(state.is_reporter_left_behind);
        state.is_reporter_left_behind
    }

    /// The reporter has told everything.
    pub(in crate::pool) fn reporter_ends(&self) {
        let mut state = self.state.lock();
        state.abandoned -= usize::from(std::mem::take(&mut state.is_reporter_left_behind));
    }

    /// The scheduler has answered the claimer.
    pub(in crate::pool) fn end_asking(&self) {
        self.change(|state, wake| {
            state.is_asking = false;
            state.abandoned -= usize::from(std::mem::take(&mut state.is_claimer_left_behind));
            wake.supervisor = state.stop.is_some();
        });
    }

    /// Leaves the claimer behind if it waits for the scheduler's answer; says whether it does.
    pub(in crate::pool) fn leave_claimer_behind(&self) -> bool {
        let mut state = self.state.lock();
        state.is_claimer_left_behind = state.is_asking;
        state.abandoned += usize::from(state.is_claimer_left_behind);
        state.is_claimer_left_behind
    }

    /// All idle workers retire.
    pub(in crate::pool) fn retire_idle(&self) -> Vec<WorkerNumber> {
        self.change(|state, _| state.capacity.retire_idle())
    }

    /// Threads end, and are to be joined.
    pub(in crate::pool) fn thread_ends(&self, threads: impl IntoIterator<Item = JoinHandle<()>>) {
        self.change(|state, wake| {
            state.ended_threads.extend(threads);
            wake.supervisor = true;
        });
    }

    pub(in crate::pool) fn ended_threads(&self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.state.lock().ended_threads)
    }
}
