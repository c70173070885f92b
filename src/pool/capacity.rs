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
//! A worker is chosen only when a place is taken: the one that has been idle longest; if none is idle, a new one, where those
//! start on demand. Because both happen in one critical section there are never more workers than places. Where they
//! are started ahead, there are as many places as workers that are up. All of this is plain data under the ready lock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::open_unit::OpenUnit;
use crate::sync::thread::ThreadId;
use crate::worker::{WorkerId, WorkerStatus};

/// The pool's own number for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WorkerNumber(pub(super) u64);

impl WorkerNumber {
    /// What it is called by others.
    pub(super) fn id(self) -> WorkerId {
        WorkerId::new(format!("w{}", self.0)).expect("a letter and a number are a name")
    }
}

/// What a worker has to do with capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Load {
    /// It is on its way up, without a unit.
    Starting = 0,
    /// It can take a unit.
    Idle = 1,
    /// It has one, or is about to get one.
    Busy = 2,
    /// Its unit has ended, the callback has not.
    Reporting = 3,
    /// It crashed, and takes nothing.
    Tainted = 4,
    /// It is on its way out.
    Retiring = 5,
}

impl Load {
    const COUNT: usize = 6;

    /// How it is called in the records.
    pub(super) fn status(self) -> WorkerStatus {
        match self {
            Load::Starting => WorkerStatus::Starting,
            Load::Idle => WorkerStatus::Ready,
            Load::Busy | Load::Reporting => WorkerStatus::Busy,
            Load::Tainted => WorkerStatus::Tainted,
            Load::Retiring => WorkerStatus::ShuttingDown,
        }
    }
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

/// What is known of a worker here.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) load: Load,
    idle_since_ms: i64,
    /// What it has in hand.
    pub(super) unit: Option<Arc<OpenUnit>>,
    /// Attempts of its that ended well.
    pub(super) completed: u64,
    /// Attempts of its that failed.
    pub(super) failed: u64,
}

/// How workers come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supply {
    /// Whoever takes a place starts one if none is idle.
    OnDemand,
    /// Somebody starts them ahead.
    Ahead,
}

/// Places and who has them.
#[derive(Debug)]
pub(super) struct Capacity {
    max_workers: usize,
    supply: Supply,
    /// The live workers. Their loads are changed by [`publish`](Capacity::publish) alone, which keeps the counts.
    workers: HashMap<WorkerNumber, Known>,
    counts: [usize; Load::COUNT],
    /// Workers in the order in which they became idle. What is no longer idle is skipped when it is found.
    idle: VecDeque<WorkerNumber>,
    reserved: HashMap<ThreadId, Reservation>,
    permits: usize,
    workers_ever: u64,
    reservations_ever: u64,
}

impl Capacity {
    pub(super) fn new(max_workers: usize, supply: Supply) -> Capacity {
        Capacity {
            max_workers,
            supply,
            workers: HashMap::new(),
            counts: [0; Load::COUNT],
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
        self.workers.len()
    }

    /// How many workers have crashed and still have the unit in hand with which they did.
    pub(super) fn crashing(&self) -> usize {
        let is_crashing = |known: &&Known| known.load == Load::Tainted && known.unit.is_some();
        if self.count(Load::Tainted) == 0 { 0 } else { self.workers.values().filter(is_crashing).count() }
    }

    /// How many workers are up, or would be if they had nothing in hand.
    pub(super) fn up(&self) -> usize {
        self.count(Load::Idle) + self.count(Load::Busy) + self.count(Load::Reporting)
    }

    /// The live workers and what is known of them.
    pub(super) fn workers(&self) -> impl Iterator<Item = (WorkerNumber, &Known)> {
        self.workers.iter().map(|(&worker, known)| (worker, known))
    }

    /// How many places are promised.
    pub(super) fn promised(&self) -> usize {
        self.reserved.len() + self.permits
    }

    /// How many places nobody has.
    pub(super) fn free(&self) -> usize {
        let idle = self.count(Load::Idle);
        let untaken = match self.supply {
            Supply::OnDemand => self.max_workers.saturating_sub(self.live() - idle),
            Supply::Ahead => idle.min(self.max_workers),
        };
        untaken.saturating_sub(self.promised())
    }

    /// How many workers may be started ahead, so that there is room also for those whose places are promised.
    fn startable(&self) -> usize {
        let idle = self.count(Load::Idle);
        self.max_workers.saturating_sub(self.live() - idle + idle.max(self.promised()))
    }

    /// How many workers may be replaced ahead. Where they start on demand, the last free place is left to whoever wants one now:
    /// what is on its way up takes nothing yet.
    pub(super) fn replaceable(&self) -> usize {
        match self.supply {
            Supply::OnDemand => self.free().saturating_sub(1),
            Supply::Ahead => self.max_workers,
        }
    }

    /// The one place where a worker's load changes; `None` when it has gone.
    pub(super) fn publish(&mut self, worker: WorkerNumber, load: Option<Load>) {
        let Some(load) = load else {
            if let Some(gone) = self.workers.remove(&worker) {
                self.counts[gone.load as usize] -= 1;
            }
            return;
        };
        let fresh = || Known { load, idle_since_ms: 0, unit: None, completed: 0, failed: 0 };
        match self.workers.entry(worker) {
            std::collections::hash_map::Entry::Occupied(mut known) => {
                let before = std::mem::replace(&mut known.get_mut().load, load);
                self.counts[before as usize] -= 1;
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(fresh());
            }
        }
        self.counts[load as usize] += 1;
    }

    /// A worker has nothing in hand, and can take something.
    pub(super) fn rest(&mut self, worker: WorkerNumber, now_ms: i64) {
        self.publish(worker, Some(Load::Idle));
        if let Some(known) = self.workers.get_mut(&worker) {
            (known.idle_since_ms, known.unit) = (now_ms, None);
        }
        self.idle.push_back(worker);
    }

    /// What a worker has in hand, as others see it.
    pub(super) fn assign(&mut self, worker: WorkerNumber, unit: &Arc<OpenUnit>) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.unit = Some(Arc::clone(unit));
        }
    }

    /// A worker has nothing in hand any more.
    pub(super) fn unassign(&mut self, worker: WorkerNumber) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.unit = None;
        }
    }

    /// Counts an attempt of a worker; `None` if it says nothing about either.
    pub(super) fn count_attempt(&mut self, worker: WorkerNumber, is_success: Option<bool>) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.completed += u64::from(is_success == Some(true));
            known.failed += u64::from(is_success == Some(false));
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
    /// the number of places was lowered is kept, and so is one whose worker has died since.
    pub(super) fn take_promised(&mut self) -> Taken {
        if let Some(worker) = self.idle_longest() {
            self.idle.pop_front();
            self.publish(worker, Some(Load::Busy));
            return Taken::Idle(worker);
        }
        Taken::New(self.add(Load::Busy))
    }

    /// Takes places for as many workers as may be started ahead, at most so many.
    pub(super) fn begin_starting(&mut self, at_most: usize) -> Vec<WorkerNumber> {
        let count = at_most.min(self.startable());
        (0..count).map(|_| self.add(Load::Starting)).collect()
    }

    fn add(&mut self, load: Load) -> WorkerNumber {
        self.workers_ever += 1;
        let worker = WorkerNumber(self.workers_ever);
        self.publish(worker, Some(load));
        worker
    }

    /// The worker that has been idle longest, which is the first of those in the queue.
    fn idle_longest(&mut self) -> Option<WorkerNumber> {
        while let Some(&worker) = self.idle.front() {
            if self.is_idle(worker) {
                return Some(worker);
            }
            self.idle.pop_front();
        }
        None
    }

    /// Whether a worker has nothing in hand, and nobody is about to give it something.
    pub(super) fn is_idle(&self, worker: WorkerNumber) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.load == Load::Idle)
    }

    /// Whether an idle worker may go: it is not the one that somebody was promised.
    fn has_spare(&self) -> bool {
        self.count(Load::Idle) > self.promised()
    }

    /// How long the worker has been idle that would be the first to stop, if one may.
    pub(super) fn idle_for(&mut self, now_ms: i64) -> Option<Duration> {
        let worker = self.idle_longest().filter(|_| self.has_spare())?;
        let since_ms = self.workers.get(&worker)?.idle_since_ms;
        Some(Duration::from_millis(u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or_default()))
    }

    /// Retires the worker that has been idle longest, if one may go.
    pub(super) fn retire_longest_idle(&mut self) -> Option<WorkerNumber> {
        let worker = self.idle_longest().filter(|_| self.has_spare())?;
        self.publish(worker, Some(Load::Retiring));
        Some(worker)
    }

    /// Retires this worker if it is idle and may go; says whether it does.
    pub(super) fn retire_if_idle(&mut self, worker: WorkerNumber) -> bool {
        let may = self.is_idle(worker) && self.has_spare();
        if may {
            self.publish(worker, Some(Load::Retiring));
        }
        may
    }

    /// What a worker that is done becomes: idle, or retiring if there are more than there should be.
    pub(super) fn settle(&mut self, worker: WorkerNumber, must_retire: bool, now_ms: i64) -> Load {
        // Those on their way out make room for it.
        if must_retire || self.live() - self.count(Load::Retiring) > self.max_workers {
            self.unassign(worker);
            self.publish(worker, Some(Load::Retiring));
            return Load::Retiring;
        }
        self.rest(worker, now_ms);
        Load::Idle
    }

    /// Sets the number of places. Returns the idle workers that are to retire, those idle for the shortest time.
    pub(super) fn set_max_workers(&mut self, max_workers: usize) -> Vec<WorkerNumber> {
        self.max_workers = max_workers;
        let excess = (self.live() - self.count(Load::Retiring)).saturating_sub(max_workers);
        self.retire_idle(excess)
    }

    /// Retires idle workers, at most so many.
    pub(super) fn retire_idle(&mut self, at_most: usize) -> Vec<WorkerNumber> {
        let is_idle = |worker: &&WorkerNumber| self.is_idle(**worker);
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
        let mut capacity = Capacity::new(3, Supply::OnDemand);
        let workers: Vec<_> = (0..3).map(|_| worker_of(capacity.take())).collect();
        for &index in &[1, 2, 0] {
            assert_eq!(capacity.settle(workers[index], false, 0), Load::Idle);
        }
        for &index in &[1, 2, 0] {
            assert_eq!(capacity.take(), Some(Taken::Idle(workers[index])));
        }
        assert_eq!(capacity.take(), None); // 000-F20
    }

    #[test]
    fn entries_of_workers_that_retired_are_skipped() {
        // 000-F19, 000-F29
        let mut capacity = Capacity::new(2, Supply::OnDemand);
        let (first, second) = (worker_of(capacity.take()), worker_of(capacity.take()));
        capacity.settle(first, false, 0);
        capacity.settle(second, false, 0);
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
        let mut capacity = Capacity::new(1_000, Supply::OnDemand);
        let workers: Vec<_> = (0..1_000).map(|_| worker_of(capacity.take())).collect();
        for &worker in &workers {
            capacity.settle(worker, false, 0);
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
        let mut capacity = Capacity::new(4, Supply::OnDemand);
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
        let mut capacity = Capacity::new(2, Supply::OnDemand);
        let (first, second) = (worker_of(capacity.take()), worker_of(capacity.take()));
        assert!(capacity.set_max_workers(1).is_empty());
        assert_eq!(capacity.settle(first, false, 0), Load::Retiring);
        capacity.publish(first, None);
        assert_eq!(capacity.settle(second, false, 0), Load::Idle);
    }

    #[test]
    fn a_promise_lapses_once() {
        let mut capacity = Capacity::new(1, Supply::OnDemand);
        let thread = std::thread::current().id();
        let first = capacity.reserve(thread, 10);
        let second = capacity.reserve(thread, 20);
        assert!(!capacity.lapse(first), "it was renewed");
        assert!(capacity.lapse(second));
        assert!(!capacity.lapse(second));
        assert_eq!(capacity.free(), 1);
    }

    #[test]
    fn started_ahead_there_are_as_many_places_as_workers_that_are_up() {
        // 001-F9, 001-F57, 001-F80
        let mut capacity = Capacity::new(3, Supply::Ahead);
        let starting = capacity.begin_starting(2);
        assert_eq!((starting.len(), capacity.free(), capacity.take()), (2, 0, None));
        capacity.rest(starting[0], 0);
        assert_eq!(capacity.free(), 1);
        capacity.add_permit();
        assert_eq!((capacity.free(), capacity.take()), (0, None));
        // The worker behind the promise dies: whoever has it gets another, and still there are no more than three.
        capacity.publish(starting[0], None);
        assert_eq!(capacity.begin_starting(9).len(), 1, "one place is promised, one is on its way up");
        capacity.drop_permit();
        assert!(matches!(capacity.take_promised(), Taken::New(_)));
        assert_eq!((capacity.live(), capacity.begin_starting(9).len()), (3, 0));
    }

    #[test]
    fn the_worker_behind_a_promise_is_not_sent_away() {
        // 000-F32, 003-F50
        let mut capacity = Capacity::new(2, Supply::Ahead);
        for worker in capacity.begin_starting(2) {
            capacity.rest(worker, 1_000);
        }
        capacity.add_permit();
        assert_eq!(capacity.idle_for(4_000), Some(Duration::from_secs(3)));
        assert_eq!(capacity.retire_longest_idle(), Some(WorkerNumber(1)));
        assert_eq!((capacity.idle_for(4_000), capacity.retire_longest_idle()), (None, None));
        assert!(!capacity.retire_if_idle(WorkerNumber(2)));
        capacity.drop_permit();
        assert!(capacity.retire_if_idle(WorkerNumber(2)));
    }
}
