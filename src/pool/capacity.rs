//! Capacity: one set of places, each free, promised to somebody, or taken by a worker with a unit.
//!
//! ```text
//!            reserve, permit            take
//!     free ─────────────────▶ promised ──────▶ taken: BUSY ──▶ REPORTING
//!      ▲ │                        │                │ ▲            │
//!      │ └────────── take ────────┼────────────────┘ │            │
//!      └──────────── lapse ◀──────┘◀──── give back ──┴────────────┘
//! ```
//!
//! A worker is chosen only when a place is taken: the one that has been idle longest, or a new one if none is idle. Because
//! both happen in one critical section there are never more workers than places. All of this is plain data under the ready lock.

use std::collections::{HashMap, VecDeque};

use crate::sync::thread::ThreadId;

/// The pool's own number for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WorkerNumber(pub(super) u64);

/// What a worker has to do with capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// It can take a unit.
    Idle = 0,
    /// It has one, or is about to get one.
    Busy = 1,
    /// Its unit has ended, the callback has not.
    Reporting = 2,
    /// It is on its way out.
    Retiring = 3,
}

/// With what right a place is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// This thread may have been promised one; if not, there may happen to be one.
    Thread(ThreadId),
    /// The caller has a permit.
    Permit,
}

/// The worker that goes with a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The one that was idle longest.
    Idle(WorkerNumber),
    /// One that is to be started.
    New(WorkerNumber),
}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    number: u64,
    lapses_at_ms: i64,
}

/// Places and who has them.
#[derive(Debug)]
pub(super) struct Capacity {
    max_workers: usize,
    /// What each live worker does. Changed by [`publish`](Capacity::publish) alone, which keeps the counts.
    loads: HashMap<WorkerNumber, Load>,
    counts: [usize; 4],
    /// Workers in the order in which they became idle. What is no longer idle is skipped when it is found.
    idle: VecDeque<WorkerNumber>,
    reserved: HashMap<ThreadId, Reservation>,
    permits: usize,
    workers_ever: u64,
    reservations_ever: u64,
}

impl Capacity {
    pub(super) fn new(max_workers: usize) -> Capacity {
        Capacity {
            max_workers,
            loads: HashMap::new(),
            counts: [0; 4],
            idle: VecDeque::new(),
            reserved: HashMap::new(),
            permits: 0,
            workers_ever: 0,
            reservations_ever: 0,
        }
    }

    pub(super) fn max_workers(&self) -> usize {
        self.max_workers
    }

    /// How many workers are in a state.
    pub(super) fn count(&self, load: Load) -> usize {
        self.counts[load as usize]
    }

    /// How many workers there are in all.
    pub(super) fn live(&self) -> usize {
        self.loads.len()
    }

    /// How many places are promised.
    pub(super) fn promised(&self) -> usize {
        self.reserved.len() + self.permits
    }

    /// How many places nobody has.
    pub(super) fn free(&self) -> usize {
        let taken = self.count(Load::Busy) + self.count(Load::Reporting) + self.count(Load::Retiring);
        self.max_workers.saturating_sub(taken + self.promised())
    }

    /// The one place where a worker's load changes; `None` when it has gone.
    pub(super) fn publish(&mut self, worker: WorkerNumber, load: Option<Load>) {
        let before = match load {
            Some(load) => self.loads.insert(worker, load),
            None => self.loads.remove(&worker),
        };
        if let Some(before) = before {
            self.counts[before as usize] -= 1;
        }
        if let Some(load) = load {
            self.counts[load as usize] += 1;
            if load == Load::Idle {
                self.idle.push_back(worker);
            }
        }
    }

    /// Promises a free place to a thread, or renews the promise. Returns its number and when it lapses.
    pub(super) fn reserve(&mut self, thread: ThreadId, lapses_at_ms: i64) -> u64 {
        self.reservations_ever += 1;
        let number = self.reservations_ever;
        self.reserved.insert(thread, Reservation { number, lapses_at_ms });
        number
    }

    /// Whether a thread has been promised a place.
    pub(super) fn has_reserved(&self, thread: ThreadId) -> bool {
        self.reserved.contains_key(&thread)
    }

    /// Takes a promise back that was not used in time; says whether it was still there.
    pub(super) fn lapse(&mut self, number: u64) -> bool {
        let thread =
            self.reserved.iter().find(|(_, reservation)| reservation.number == number).map(|(&thread, _)| thread);
        thread.is_some_and(|thread| self.reserved.remove(&thread).is_some())
    }

    /// Takes the promise of a thread back; returns its number and when it would have lapsed.
    pub(super) fn unreserve(&mut self, thread: ThreadId) -> Option<(u64, i64)> {
        self.reserved.remove(&thread).map(|reservation| (reservation.number, reservation.lapses_at_ms))
    }

    pub(super) fn add_permit(&mut self) {
        self.permits += 1;
    }

    pub(super) fn drop_permit(&mut self) {
        self.permits -= 1;
    }

    /// Takes a free place with the worker for it; `None` if there is none.
    pub(super) fn take(&mut self) -> Option<Taken> {
        (self.free() > 0).then(|| self.take_promised())
    }

    /// Takes a place that was promised and is given back in the same breath. A promise made before
    /// the number of places was lowered is kept.
    pub(super) fn take_promised(&mut self) -> Taken {
        while let Some(worker) = self.idle.pop_front() {
            if self.loads.get(&worker) == Some(&Load::Idle) {
                self.publish(worker, Some(Load::Busy));
                return Taken::Idle(worker);
            }
        }
        self.workers_ever += 1;
        let worker = WorkerNumber(self.workers_ever);
        self.publish(worker, Some(Load::Busy));
        Taken::New(worker)
    }

    /// What a worker that is done becomes: idle, or retiring if there are more than there should be.
    pub(super) fn settle(&mut self, worker: WorkerNumber, must_retire: bool) -> Load {
        let load = if must_retire || self.live() > self.max_workers { Load::Retiring } else { Load::Idle };
        self.publish(worker, Some(load));
        load
    }

    /// Sets the number of places. Returns the idle workers that are to retire, those idle for the shortest time.
    pub(super) fn set_max_workers(&mut self, max_workers: usize) -> Vec<WorkerNumber> {
        self.max_workers = max_workers;
        let excess = (self.live() - self.count(Load::Retiring)).saturating_sub(max_workers);
        self.retire_idle(excess)
    }

    /// Retires idle workers, at most so many.
    pub(super) fn retire_idle(&mut self, at_most: usize) -> Vec<WorkerNumber> {
        let is_idle = |worker: &&WorkerNumber| self.loads.get(worker) == Some(&Load::Idle);
        let victims: Vec<WorkerNumber> = self.idle.iter().rev().filter(is_idle).take(at_most).copied().collect();
        for &victim in &victims {
            self.publish(victim, Some(Load::Retiring));
        }
        victims
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker_of(taken: Option<Taken>) -> WorkerNumber {
        match taken.unwrap() {
            Taken::Idle(worker) | Taken::New(worker) => worker,
        }
    }

    #[test]
    fn the_worker_that_was_idle_longest_is_taken_first() {
        // 000-F13, 000-F15, 000-F16
        let mut capacity = Capacity::new(3);
        let workers: Vec<_> = (0..3).map(|_| worker_of(capacity.take())).collect();
        for &index in &[1, 2, 0] {
            assert_eq!(capacity.settle(workers[index], false), Load::Idle);
        }
        for &index in &[1, 2, 0] {
            assert_eq!(capacity.take(), Some(Taken::Idle(workers[index])));
        }
        assert_eq!(capacity.take(), None); // 000-F20
    }

    #[test]
    fn entries_of_workers_that_retired_are_skipped() {
        // 000-F19, 000-F29
        let mut capacity = Capacity::new(2);
        let (first, second) = (worker_of(capacity.take()), worker_of(capacity.take()));
        capacity.settle(first, false);
        capacity.settle(second, false);
        assert_eq!(capacity.set_max_workers(1), [second]);
        assert_eq!(capacity.free(), 0, "a worker on its way out still has its place");
        capacity.publish(second, None);
        assert_eq!(capacity.take(), Some(Taken::Idle(first)));
        capacity.set_max_workers(2);
        assert!(matches!(capacity.take(), Some(Taken::New(worker)) if worker != second));
    }

    #[test]
    fn an_entry_that_no_longer_counts_is_looked_at_once() {
        // 000-F19, 000-F20, 000-F21
        let mut capacity = Capacity::new(1_000);
        let workers: Vec<_> = (0..1_000).map(|_| worker_of(capacity.take())).collect();
        for &worker in &workers {
            capacity.settle(worker, false);
        }
        for &worker in &workers[..999] {
            capacity.publish(worker, None);
        }
        assert_eq!(capacity.take(), Some(Taken::Idle(workers[999])));
        assert!(capacity.idle.is_empty(), "what was skipped is gone");
        capacity.max_workers = 1;
        assert_eq!(capacity.take(), None);
    }

    #[test]
    fn there_are_never_more_workers_than_places() {
        // 004-F42
        let mut capacity = Capacity::new(4);
        let thread = std::thread::current().id();
        capacity.add_permit();
        capacity.reserve(thread, 0);
        assert_eq!(capacity.free(), 2);
        assert!(capacity.take().is_some() && capacity.take().is_some() && capacity.take().is_none());
        assert!(capacity.unreserve(thread).is_some());
        capacity.take_promised();
        assert!(capacity.take().is_none());
        capacity.drop_permit();
        capacity.take_promised();
        assert!(capacity.take().is_none());
        assert_eq!(capacity.live(), 4);
    }

    #[test]
    fn a_worker_too_many_retires_when_it_is_done() {
        // 000-F32
        let mut capacity = Capacity::new(2);
        let (first, second) = (worker_of(capacity.take()), worker_of(capacity.take()));
        assert!(capacity.set_max_workers(1).is_empty());
        assert_eq!(capacity.settle(first, false), Load::Retiring);
        capacity.publish(first, None);
        assert_eq!(capacity.settle(second, false), Load::Idle);
    }

    #[test]
    fn a_promise_lapses_once() {
        let mut capacity = Capacity::new(1);
        let thread = std::thread::current().id();
        let first = capacity.reserve(thread, 10);
        let second = capacity.reserve(thread, 20);
        assert!(!capacity.lapse(first), "it was renewed");
        assert!(capacity.lapse(second));
        assert!(!capacity.lapse(second));
        assert_eq!(capacity.free(), 1);
    }
}
