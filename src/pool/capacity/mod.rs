//! Capacity: one set of places, each free, promised to somebody, or taken by a worker for a unit.
//!
//! ```text
//!            reserve, permit            take
//!     free ─────────────────▶ promised ──────▶ taken ──▶ reporting
//!      ▲ │                        │             │ ▲         │
//!      │ └────────── take ────────┼─────────────┘ │         │
//!      └──────────── lapse ◀──────┘◀── settle ────┴─────────┘
//! ```
//!
//! A worker has as many places as it can execute units at a time. How many it has taken is its load; that it is idle, available or
//! busy follows from that and is kept nowhere. A worker is chosen only when a place is taken: the least loaded, and of these the one
//! that has been so for longest; if none has room, a new one, where those start on demand. Because both happen in one critical
//! section no load is ever above its capacity and there are never more workers than there may be. One that is yet to come up has a
//! single place, for the unit it is started for.
//!
//! If there may be fewer workers than there are, those that go are chosen at once. They take nothing more, and finish what they have;
//! until they have, the others get so much less. All of this is plain data under the ready lock.

mod strategy;
#[cfg(test)]
mod tests;
mod worker;

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

pub use self::strategy::CapacityStrategy;
pub(super) use self::strategy::WORKER_CAPACITY_LIMIT;
pub(super) use self::worker::{Condition, Known, Tally};
use super::open_unit::OpenUnit;
use super::sessions::Rooms;
use crate::sync::thread::ThreadId;
use crate::worker::WorkerId;

/// The pool's own number for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct WorkerNumber(pub(super) u64);

impl WorkerNumber {
    /// What it is called by others.
    pub(super) fn id(self) -> WorkerId {
        WorkerId::new(format!("w{}", self.0)).expect("a letter and a number are a name")
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
    /// One that is up.
    Up(WorkerNumber),
    /// One that is to be started.
    New(WorkerNumber),
}

impl Taken {
    pub(super) fn worker(self) -> WorkerNumber {
        match self {
            Taken::Up(worker) | Taken::New(worker) => worker,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Reservation {
    number: u64,
    lapses_at_ms: i64,
}

/// How workers come to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Supply {
    /// Whoever takes a place starts one if none has room.
    OnDemand,
    /// Somebody starts them ahead.
    Ahead,
}

/// Places and who has them.
#[derive(Debug)]
pub(super) struct Capacity {
    max_workers: usize,
    supply: Supply,
    /// How many units a worker may be used for.
    max_units: Option<u64>,
    /// The live workers. They are changed by [`update`](Capacity::update) alone, which keeps what follows from them.
    workers: HashMap<WorkerNumber, Known>,
    tally: Tally,
    /// Those that have room, by their load and by since when they have had that.
    open: BTreeSet<(u32, u64, WorkerNumber)>,
    /// Those that are on their way out, by their load.
    retiring: BTreeSet<(u32, WorkerNumber)>,
    changes_ever: u64,
    /// Workers that were up and take nothing any more, since this was asked last.
    gone: Vec<WorkerNumber>,
    reserved: HashMap<ThreadId, Reservation>,
    permits: usize,
    workers_ever: u64,
    reservations_ever: u64,
}

impl Capacity {
    pub(super) fn new(max_workers: usize, supply: Supply, max_units: Option<u64>) -> Capacity {
        Capacity {
            max_workers,
            supply,
            max_units,
            workers: HashMap::new(),
            tally: Tally::default(),
            open: BTreeSet::new(),
            retiring: BTreeSet::new(),
            changes_ever: 0,
            gone: Vec::new(),
            reserved: HashMap::new(),
            permits: 0,
            workers_ever: 0,
            reservations_ever: 0,
        }
    }

    pub(super) fn max_workers(&self) -> usize {
        self.max_workers
    }

    /// How many workers do what.
    pub(super) fn tally(&self) -> Tally {
        self.tally
    }

    /// How many workers there are in all.
    pub(super) fn live(&self) -> usize {
        self.workers.len()
    }

    /// The live workers and what is known of them.
    pub(super) fn workers(&self) -> impl Iterator<Item = (WorkerNumber, &Known)> {
        self.workers.iter().map(|(&worker, known)| (worker, known))
    }

    /// How many places are promised.
    pub(super) fn promised(&self) -> usize {
        self.reserved.len() + self.permits
    }

    /// How many workers may still be started by whoever takes a place.
    fn unstarted(&self) -> usize {
        match self.supply {
            Supply::OnDemand => self.max_workers.saturating_sub(self.live()),
            Supply::Ahead => 0,
        }
    }

    /// How many places nobody has.
    pub(super) fn free(&self) -> usize {
        (self.tally.rooms + self.unstarted()).saturating_sub(self.load_too_much() + self.promised())
    }

    /// How many units those workers have in hand that are more than there may be. The others have so much less: together they never
    /// have more than as many as there may be could have, if what began before is not too much already.
    fn load_too_much(&self) -> usize {
        // Who is on its way up has nothing in hand, and goes if it is one too many by then.
        let too_many = (self.live() - self.tally.starting).saturating_sub(self.max_workers);
        self.retiring.iter().take(too_many).map(|&(load, _)| usize::try_from(load).unwrap_or(usize::MAX)).sum()
    }

    /// Whether a worker that is up may take what it has room for, if that was promised.
    fn has_room(&self) -> bool {
        self.tally.rooms > self.load_too_much()
    }

    /// How many units a worker can take.
    pub(super) fn room(&self, worker: WorkerNumber) -> usize {
        let room = self.workers.get(&worker).map_or(0, |known| known.room(self.max_units));
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// How many units a worker has in hand, or is about to get.
    pub(super) fn load(&self, worker: WorkerNumber) -> usize {
        let load = self.workers.get(&worker).map_or(0, |known| known.load);
        usize::try_from(load).unwrap_or(usize::MAX)
    }

    /// How many workers may be started ahead, so that there is room also for those whose places are promised.
    fn startable(&self) -> usize {
        let missing = self.promised().saturating_sub(self.tally.rooms);
        self.max_workers.saturating_sub(self.live() + missing)
    }

    /// How many workers may be replaced ahead. Where they start on demand, the last free place is left to whoever wants one now:
    /// what is on its way up takes nothing yet.
    pub(super) fn replaceable(&self) -> usize {
        match self.supply {
            Supply::OnDemand => self.startable().min(self.free().saturating_sub(1)),
            Supply::Ahead => self.startable(),
        }
    }

    /// The one place where a worker changes. `false` if it has gone.
    fn update(&mut self, worker: WorkerNumber, change: impl FnOnce(&mut Known)) -> bool {
        let Some(known) = self.workers.get_mut(&worker) else { return false };
        let room = known.room(self.max_units);
        self.tally.subtract(Tally::of(known, room));
        if room > 0 {
            self.open.remove(&(known.load, known.since, worker));
        }
        self.retiring.remove(&(known.load, worker));
        let (before, was_up, had_left) = (known.load, known.condition == Condition::Up, known.left(self.max_units) > 0);
        change(known);
        let is_up = known.condition == Condition::Up;
        // Once it has had all that it may have nobody need wait for it, however long that takes.
        if was_up && (!is_up || (had_left && known.left(self.max_units) == 0)) {
            self.gone.push(worker);
        }
        if known.load != before {
            self.changes_ever += 1;
            known.since = self.changes_ever;
        }
        let room = known.room(self.max_units);
        self.tally.add(Tally::of(known, room));
        if room > 0 {
            self.open.insert((known.load, known.since, worker));
        }
        if known.condition == Condition::Retiring {
            self.retiring.insert((known.load, worker));
        }
        true
    }

    /// Adds a worker with a single place, which may be taken.
    fn add(&mut self, condition: Condition, load: u32) -> WorkerNumber {
        self.workers_ever += 1;
        self.changes_ever += 1;
        let worker = WorkerNumber(self.workers_ever);
        let known = Known {
            condition,
            capacity: 1,
            load,
            reporting: 0,
            since: self.changes_ever,
            idle_since_ms: 0,
            units: Vec::new(),
            spent: 0,
            completed: 0,
            failed: 0,
        };
        self.tally.add(Tally::of(&known, 0));
        debug_assert!(known.room(self.max_units) == 0, "a new worker has its place taken, or is yet to come up");
        self.workers.insert(worker, known);
        worker
    }

    /// A worker has gone, and its places with it.
    pub(super) fn remove(&mut self, worker: WorkerNumber) {
        self.update(worker, |known| known.condition = Condition::Retiring);
        if let Some(gone) = self.workers.remove(&worker) {
            self.tally.subtract(Tally::of(&gone, 0));
            self.retiring.remove(&(gone.load, worker));
        }
    }

    /// A worker is somewhere else in its life, unless it is on its way out. What it has in hand it keeps.
    pub(super) fn publish(&mut self, worker: WorkerNumber, condition: Condition) {
        self.update(worker, |known| {
            if known.condition != Condition::Retiring {
                known.condition = condition;
            }
        });
    }

    /// A worker is to be on its way up again, and may be used for as many units as a new one. `false` if it is on its way out instead.
    pub(super) fn restart(&mut self, worker: WorkerNumber) -> bool {
        let mut may = false;
        self.update(worker, |known| {
            may = known.condition != Condition::Retiring;
            if may {
                (known.condition, known.spent) = (Condition::Starting, 0);
            }
        });
        may
    }

    /// It is known how many units a worker can have in hand; never fewer than it has.
    pub(super) fn widen(&mut self, worker: WorkerNumber, capacity: u32) {
        self.update(worker, |known| known.capacity = capacity.max(known.load).max(1));
    }

    /// What a worker has in hand, as others see it.
    pub(super) fn assign(&mut self, worker: WorkerNumber, unit: &Arc<OpenUnit>) {
        if let Some(known) = self.workers.get_mut(&worker) {
            known.units.push(Arc::clone(unit));
        }
    }

    /// A unit of a worker has ended, and its callback is to run.
    pub(super) fn report(&mut self, worker: WorkerNumber) {
        self.update(worker, |known| known.reporting += 1);
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

    /// Takes a free place with the worker for it, the one that is wished for if it has room; `None` if there is none.
    pub(super) fn take(&mut self, wish: Option<WorkerNumber>) -> Option<Taken> {
        if self.free() > 0 { self.take_promised(wish) } else { None }
    }

    /// Takes a place that was promised and is given back in the same breath. A promise outlives the worker that it was
    /// made for, if another may be started; `None` if not, or if there may be fewer workers by now: then the unit has to wait in line.
    pub(super) fn take_promised(&mut self, wish: Option<WorkerNumber>) -> Option<Taken> {
        let wish = wish.filter(|&worker| self.room(worker) > 0);
        if let Some(worker) = wish.or_else(|| self.least_loaded()).filter(|_| self.has_room()) {
            self.update(worker, |known| known.load += 1);
            return Some(Taken::Up(worker));
        }
        (self.live() < self.max_workers).then(|| Taken::New(self.add(Condition::Up, 1)))
    }

    /// Takes a place of this very worker, which must be free or promised; says whether it has one.
    pub(super) fn take_of(&mut self, worker: WorkerNumber) -> bool {
        self.room(worker) > 0 && self.has_room() && self.update(worker, |known| known.load += 1)
    }

    /// Gives a place back that was taken and not used, because its worker did not take the unit.
    pub(super) fn give_back(&mut self, worker: WorkerNumber) {
        self.update(worker, |known| known.load = known.load.saturating_sub(1));
    }

    /// Takes places for as many workers as may be started ahead, at most so many.
    pub(super) fn begin_starting(&mut self, at_most: usize) -> Vec<WorkerNumber> {
        let count = at_most.min(self.startable());
        (0..count).map(|_| self.add(Condition::Starting, 0)).collect()
    }

    /// The worker with the least load, of several the one that has had it for longest.
    fn least_loaded(&self) -> Option<WorkerNumber> {
        self.open.first().map(|&(_, _, worker)| worker)
    }

    /// The worker that has been idle longest.
    fn idle_longest(&self) -> Option<WorkerNumber> {
        self.open.first().filter(|&&(load, _, _)| load == 0).map(|&(_, _, worker)| worker)
    }

    /// The workers that were up and take nothing any more, since this was asked last.
    pub(super) fn take_gone(&mut self) -> Vec<WorkerNumber> {
        std::mem::take(&mut self.gone)
    }

    /// The workers that have room, in the order in which they are taken.
    pub(super) fn open(&self) -> impl Iterator<Item = (WorkerNumber, &Known)> {
        self.open.iter().filter_map(|&(_, _, worker)| Some((worker, self.workers.get(&worker)?)))
    }

    /// Whether a worker has nothing in hand, and nobody is about to give it something.
    pub(super) fn is_idle(&self, worker: WorkerNumber) -> bool {
        self.workers.get(&worker).is_some_and(Known::is_idle)
    }

    /// Whether a worker takes units, or will when it has room.
    pub(super) fn takes_units(&self, worker: WorkerNumber) -> bool {
        let takes = |known: &Known| known.condition == Condition::Up && known.left(self.max_units) > 0;
        self.workers.get(&worker).is_some_and(takes)
    }

    /// Whether a worker has neither crashed nor is on its way out.
    pub(super) fn is_up(&self, worker: WorkerNumber) -> bool {
        self.workers.get(&worker).is_some_and(|known| known.condition == Condition::Up)
    }

    /// Whether a worker may go: its places are not those that somebody was promised.
    fn is_spare(&self, worker: WorkerNumber) -> bool {
        self.tally.rooms.saturating_sub(self.room(worker)) >= self.promised()
    }

    /// How long the worker has been idle that would be the first to stop, if one may.
    pub(super) fn idle_for(&self, now_ms: i64) -> Option<Duration> {
        let worker = self.idle_longest().filter(|&worker| self.is_spare(worker))?;
        let since_ms = self.workers.get(&worker)?.idle_since_ms;
        Some(Duration::from_millis(u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or_default()))
    }

    /// Retires the worker that has been idle longest, if one may go.
    pub(super) fn retire_longest_idle(&mut self) -> Option<WorkerNumber> {
        let worker = self.idle_longest().filter(|&worker| self.is_spare(worker))?;
        self.publish(worker, Condition::Retiring);
        Some(worker)
    }

    /// Retires this worker if it is idle and may go; says whether it does.
    pub(super) fn retire_if_idle(&mut self, worker: WorkerNumber) -> bool {
        let may = self.is_idle(worker) && self.is_spare(worker);
        if may {
            self.publish(worker, Condition::Retiring);
        }
        may
    }

    /// How many workers there are more than there should be, without those that are on their way out.
    fn excess(&self) -> usize {
        (self.live() - self.tally.retiring).saturating_sub(self.max_workers)
    }

    /// A worker has come up, and can have so many units in hand. It takes what it is given, unless it is one too many.
    pub(super) fn come_up(&mut self, worker: WorkerNumber, capacity: u32, now_ms: i64) -> Condition {
        let condition = if self.excess() > 0 { Condition::Retiring } else { Condition::Up };
        self.update(worker, |known| {
            (known.condition, known.capacity, known.idle_since_ms) = (condition, capacity, now_ms);
        });
        condition
    }

    /// A worker is done with what was in a place. Says where it is in its life now: it retires if it must.
    pub(super) fn settle(&mut self, worker: WorkerNumber, done: &Done<'_>, now_ms: i64) -> Condition {
        let mut condition = Condition::Retiring;
        self.update(worker, |known| {
            known.load = known.load.saturating_sub(1);
            known.reporting -= u32::from(done.was_reporting);
            if let Some(unit) = done.unit {
                known.units.retain(|other| !Arc::ptr_eq(other, unit));
            }
            known.spent += u64::from(done.is_spent);
            if known.load == 0 {
                known.idle_since_ms = now_ms;
            }
            if known.condition == Condition::Up && done.must_retire {
                known.condition = Condition::Retiring;
            }
            condition = known.condition;
        });
        condition
    }

    /// Sets the number of workers. If those are too many now, some retire: first those that take nothing because they crashed, then
    /// those with the least in hand, of several the one that has had it for the shortest time. Who is on its way up is left until it has
    /// come up. Returns those that retire and have nothing in hand: they have to be told.
    pub(super) fn set_max_workers(&mut self, max_workers: usize) -> Vec<WorkerNumber> {
        self.max_workers = max_workers;
        if self.excess() == 0 {
            return Vec::new();
        }
        let by_use = |known: &Known| (known.condition == Condition::Up, known.load, Reverse(known.since));
        let can_go = self.workers.iter().filter(|(_, known)| known.can_retire());
        let mut victims: Vec<_> = can_go.map(|(&worker, known)| (by_use(known), worker)).collect();
        victims.sort_unstable();
        victims.truncate(self.excess().saturating_sub(self.tally.starting));
        for &(_, victim) in &victims {
            self.publish(victim, Condition::Retiring);
        }
        victims.into_iter().filter(|&((_, load, _), _)| load == 0).map(|(_, worker)| worker).collect()
    }

    /// Retires all workers that have nothing in hand.
    pub(super) fn retire_idle(&mut self) -> Vec<WorkerNumber> {
        let idle: Vec<_> = self.workers().filter(|(_, known)| known.is_idle()).map(|(worker, _)| worker).collect();
        for &worker in &idle {
            self.publish(worker, Condition::Retiring);
        }
        idle
    }
}

impl Rooms for Capacity {
    fn room(&self, worker: WorkerNumber) -> usize {
        Capacity::room(self, worker)
    }

    fn open(&self) -> impl Iterator<Item = WorkerNumber> {
        self.open.iter().map(|&(_, _, worker)| worker)
    }

    fn open_count(&self) -> usize {
        self.open.len()
    }
}

/// What a worker is done with.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done<'a> {
    /// `None` if it was to get none after all.
    pub(super) unit: Option<&'a Arc<OpenUnit>>,
    /// Whether it really had it in hand.
    pub(super) is_spent: bool,
    /// Whether its callback was told to run.
    pub(super) was_reporting: bool,
    /// Whether the worker is to take nothing more.
    pub(super) must_retire: bool,
}
