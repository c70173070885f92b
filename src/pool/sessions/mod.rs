//! Sessions: which worker units with the same key go to, and whose turn it is among those that must.
//!
//! A session is whatever units name alike. While strict units of it are with a worker, on their way to one or waiting, it stays on that
//! worker; for a bounded time after that it is remembered. Plain data under the ready lock.
//!
//! ```text
//!              first unit            worker ends, and
//!    nowhere ────────────▶ on w ─────────────────────────▶ nowhere
//!       ▲                   │     no unit is left on it
//!       └── forgotten ◀─────┘
//! ```

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::capacity::WorkerNumber;
use super::line::Order;
use crate::unit::UnitKey;

/// How many sessions are remembered that nobody uses.
const REMEMBERED_LIMIT: usize = 100_000;

/// How many sessions whose time is over are forgotten in one call: more than one call adds, and never so many that it takes long.
const FORGOTTEN_PER_CALL: usize = 8;

/// Where a strict unit stands in its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// Nowhere: it has left, or its time has yet to come.
    None,
    /// It waits. One that is to be tried again waits in its place also before its time has come.
    Waits { is_due: bool },
    /// A worker has it, or is about to.
    Runs,
}

/// Where the next unit of a session goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seat {
    /// To any worker.
    Anywhere,
    /// To this one.
    On(WorkerNumber),
    /// To this one, but others of its session come first.
    Behind(WorkerNumber),
    /// To none for now: others of its session come first.
    Nowhere,
}

/// How much room workers have.
pub(super) trait Rooms {
    /// How many units a worker can take.
    fn room(&self, worker: WorkerNumber) -> usize;

    /// The workers that can take any.
    fn open(&self) -> impl Iterator<Item = WorkerNumber>;

    /// How many those are.
    fn open_count(&self) -> usize;
}

#[derive(Debug, Default)]
struct Session {
    worker: Option<WorkerNumber>,
    /// Whether that worker takes nothing any more.
    is_worker_gone: bool,
    running: HashSet<UnitKey>,
    /// Those of the running ones that have yet to begin. Only after that the next may, or they would overtake each other.
    opening: HashSet<UnitKey>,
    /// Calls that bring a unit straight to a worker.
    taking: usize,
    /// Calls that bring one into the line.
    entering: usize,
    /// Units with its worker that have told that they are in it. While they are executed it is not forgotten.
    told_by: HashSet<UnitKey>,
    /// What waits, and whether it is due.
    line: BTreeMap<Order, bool>,
    /// Where the first of those is filed, if it can go.
    filed: Option<(Filed, Order)>,
    used_ms: i64,
    is_remembered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Filed {
    Anywhere,
    On(WorkerNumber),
}

impl Session {
    /// Whether any strict unit has to do with it.
    fn is_in_use(&self) -> bool {
        !self.running.is_empty() || !self.line.is_empty() || self.taking > 0 || self.entering > 0
    }

    /// Whether units of it are with its worker, or on their way.
    fn is_on_worker(&self) -> bool {
        !self.running.is_empty() || self.taking > 0
    }

    /// Whether a unit of it has yet to begin.
    fn is_opening(&self) -> bool {
        !self.opening.is_empty() || self.taking > 0
    }

    /// Is on a worker from now on.
    fn sit(&mut self, worker: WorkerNumber) {
        if self.worker != Some(worker) {
            self.told_by.clear();
        }
        (self.worker, self.is_worker_gone) = (Some(worker), false);
    }

    /// Leaves its worker, if that is gone and nothing of it is left there.
    fn leave_worker(&mut self) {
        if self.is_worker_gone && !self.is_on_worker() {
            (self.worker, self.is_worker_gone) = (None, false);
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Sessions {
    by_key: HashMap<Arc<str>, Session>,
    /// Which sessions are on a worker, or remembered to have been.
    by_worker: HashMap<WorkerNumber, HashSet<Arc<str>>>,
    /// The first unit of each session that can go anywhere.
    anywhere: BTreeSet<Order>,
    /// The first unit of each session that can go to its worker, if that has room.
    pinned: BTreeMap<WorkerNumber, BTreeSet<Order>>,
    /// Those that nobody uses, by when somebody last did.
    remembered: BTreeSet<(i64, Arc<str>)>,
    remembered_for_ms: i64,
}

impl Sessions {
    pub(super) fn new(remembered_for_ms: i64) -> Sessions {
        Sessions {
            by_key: HashMap::new(),
            by_worker: HashMap::new(),
            anywhere: BTreeSet::new(),
            pinned: BTreeMap::new(),
            remembered: BTreeSet::new(),
            remembered_for_ms,
        }
    }

    /// The worker that a session is on, or is remembered to have been.
    pub(super) fn worker_of(&mut self, key: &str, now_ms: i64) -> Option<WorkerNumber> {
        self.pass_time(key, now_ms);
        self.by_key.get(key).filter(|session| !session.is_worker_gone)?.worker
    }

    /// Whether a session is on this very worker, or is remembered to have been.
    pub(super) fn is_on(&self, key: &str, worker: WorkerNumber) -> bool {
        self.by_key.get(key).is_some_and(|session| session.worker == Some(worker))
    }

    /// Where a strict unit goes that comes now.
    pub(super) fn seat(&mut self, key: &str, now_ms: i64) -> Seat {
        self.pass_time(key, now_ms);
        let Some(session) = self.by_key.get(key) else { return Seat::Anywhere };
        let is_held_up = !session.line.is_empty() || session.entering > 0;
        match session.worker.filter(|_| !session.is_worker_gone) {
            Some(worker) if is_held_up || session.is_opening() => Seat::Behind(worker),
            Some(worker) => Seat::On(worker),
            None if is_held_up || session.is_on_worker() => Seat::Nowhere,
            None => Seat::Anywhere,
        }
    }

    /// How many units of a session come before one that comes now; `None` if one of them is not even due.
    pub(super) fn before(&self, key: &str) -> Option<usize> {
        let Some(session) = self.by_key.get(key) else { return Some(0) };
        session.line.values().all(|&is_due| is_due).then(|| session.line.len() + session.entering)
    }

    /// Whether units of a session are with a worker that takes nothing any more.
    pub(super) fn is_leaving(&self, key: &str) -> bool {
        self.by_key.get(key).is_some_and(|session| session.is_worker_gone)
    }

    /// A strict unit goes to a worker, where its session is from now on.
    pub(super) fn settle(&mut self, key: &Arc<str>, worker: WorkerNumber, now_ms: i64) {
        self.change(key, Some(now_ms), |session| session.sit(worker));
    }

    /// A unit with this key that is not strict goes to a worker. Those that are keep their session where it is.
    pub(super) fn visit(&mut self, key: &Arc<str>, worker: WorkerNumber, now_ms: i64) {
        self.visit_then(key, worker, now_ms, |_| {});
    }

    /// A unit tells that it is in this session, as long as a worker executes it: whoever carries it on goes there.
    pub(super) fn tell(&mut self, key: &Arc<str>, worker: WorkerNumber, unit: UnitKey, now_ms: i64) {
        self.visit_then(key, worker, now_ms, |session| {
            if session.worker == Some(worker) {
                session.told_by.insert(unit);
            }
        });
    }

    /// A unit that told of this session is not executed any more, or is in another by now.
    pub(super) fn end_telling(&mut self, key: &Arc<str>, unit: UnitKey) {
        if self.by_key.contains_key(key) {
            self.change(key, None, |session| {
                session.told_by.remove(&unit);
            });
        }
    }

    fn visit_then(&mut self, key: &Arc<str>, worker: WorkerNumber, now_ms: i64, then: impl FnOnce(&mut Session)) {
        // Before, not after: this one may have no unit yet that holds it. What a worker tells of nobody need ever ask for.
        self.forget(now_ms);
        self.change(key, Some(now_ms), |session| {
            if !session.is_in_use() {
                session.sit(worker);
            }
            then(session);
        });
    }

    /// A unit with this key was with a worker until now: if its session is still there, it is remembered from now on.
    pub(super) fn stayed(&mut self, key: &Arc<str>, worker: WorkerNumber, now_ms: i64) {
        if self.by_key.get(key).is_some_and(|session| session.worker == Some(worker)) {
            self.change(key, Some(now_ms), |_| {});
        }
    }

    /// Whether a strict unit that was on its way to a worker which did not take it may go to another: none else is with the old one.
    pub(super) fn may_move(&self, key: &str) -> bool {
        self.by_key.get(key).is_none_or(|session| session.running.len() + session.taking <= 1)
    }

    /// Somebody begins to bring a strict unit straight to a worker.
    pub(super) fn begin_taking(&mut self, key: &Arc<str>) {
        self.change(key, None, |session| session.taking += 1);
    }

    pub(super) fn end_taking(&mut self, key: &Arc<str>) {
        self.change(key, None, |session| session.taking -= 1);
    }

    /// Somebody begins to bring a strict unit into the line.
    pub(super) fn begin_entering(&mut self, key: &Arc<str>) {
        self.change(key, None, |session| session.entering += 1);
    }

    pub(super) fn end_entering(&mut self, key: &Arc<str>) {
        self.change(key, None, |session| session.entering -= 1);
    }

    /// A strict unit stands here now.
    pub(super) fn stand(&mut self, key: &Arc<str>, order: Order, turn: Turn) {
        self.change(key, None, |session| {
            match turn {
                Turn::Runs => {
                    if session.running.insert(order.unit) {
                        session.opening.insert(order.unit);
                    }
                }
                Turn::None | Turn::Waits { .. } => {
                    session.running.remove(&order.unit);
                    session.opening.remove(&order.unit);
                }
            }
            match turn {
                Turn::Waits { is_due } => session.line.insert(order, is_due),
                Turn::None | Turn::Runs => session.line.remove(&order),
            };
        });
    }

    /// A strict unit has begun: the next of its session may.
    pub(super) fn begin(&mut self, key: &Arc<str>, unit: UnitKey) {
        if self.by_key.contains_key(key) {
            self.change(key, None, |session| {
                session.opening.remove(&unit);
            });
        }
    }

    /// A worker takes nothing any more. What waits for it goes elsewhere, as soon as nothing of its session is left there.
    pub(super) fn worker_goes(&mut self, worker: WorkerNumber) {
        let keys: Vec<Arc<str>> = self.by_worker.get(&worker).into_iter().flatten().cloned().collect();
        for key in keys {
            self.change(&key, None, |session| session.is_worker_gone = true);
        }
    }

    /// The first unit that can go: to any worker, or to one that has room.
    pub(super) fn first(&self, rooms: &impl Rooms) -> Option<(Order, Option<WorkerNumber>)> {
        let anywhere = self.anywhere.first().map(|&order| (order, None));
        let pinned = self.heads(rooms).filter_map(|(worker, heads)| Some((*heads.first()?, Some(worker))));
        anywhere.into_iter().chain(pinned).min_by_key(|&(order, _)| order)
    }

    /// How many sessions have a unit that can go, by how many each worker can take.
    pub(super) fn ready_count(&self, rooms: &impl Rooms) -> usize {
        let pinned = self.heads(rooms).map(|(worker, heads)| heads.len().min(rooms.room(worker)));
        self.anywhere.len() + pinned.sum::<usize>()
    }

    /// What waits for workers that have room. Sought from where there are fewer: this is asked at every turn, and of a thousand
    /// workers all but a few may be full and waited for, or idle and not.
    fn heads(&self, rooms: &impl Rooms) -> impl Iterator<Item = (WorkerNumber, &BTreeSet<Order>)> {
        let is_by_room = rooms.open_count() < self.pinned.len();
        let by_room = || rooms.open().filter_map(|worker| Some((worker, self.pinned.get(&worker)?)));
        let has_room = |&(&worker, _): &(&WorkerNumber, _)| rooms.room(worker) > 0;
        let by_wish = || self.pinned.iter().filter(has_room).map(|(&worker, heads)| (worker, heads));
        let (by_room, by_wish) = if is_by_room { (Some(by_room()), None) } else { (None, Some(by_wish())) };
        by_room.into_iter().flatten().chain(by_wish.into_iter().flatten())
    }

    /// The one place where a session changes: what follows from it is kept.
    fn change(&mut self, key: &Arc<str>, used_at_ms: Option<i64>, change: impl FnOnce(&mut Session)) {
        let session = self.by_key.entry(Arc::clone(key)).or_default();
        if std::mem::take(&mut session.is_remembered) {
            self.remembered.remove(&(session.used_ms, Arc::clone(key)));
        }
        let before = session.worker;
        session.used_ms = used_at_ms.unwrap_or(session.used_ms);
        change(session);
        session.leave_worker();
        let (after, is_in_use, used_ms) = (session.worker, session.is_in_use(), session.used_ms);
        session.is_remembered = !is_in_use && after.is_some() && session.told_by.is_empty();
        let is_remembered = session.is_remembered;
        if before != after {
            self.move_between(key, before, after);
        }
        self.file(key);
        if is_remembered {
            self.remembered.insert((used_ms, Arc::clone(key)));
        } else if !is_in_use && after.is_none() {
            self.by_key.remove(key);
        }
    }

    fn move_between(&mut self, key: &Arc<str>, from: Option<WorkerNumber>, to: Option<WorkerNumber>) {
        if let Some(keys) = from.and_then(|worker| self.by_worker.get_mut(&worker)) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_worker.remove(&from.expect("it was found by that"));
            }
        }
        if let Some(worker) = to {
            self.by_worker.entry(worker).or_default().insert(Arc::clone(key));
        }
    }

    /// Files the first unit of a session where it can be found when there is room for it.
    fn file(&mut self, key: &Arc<str>) {
        let Some(session) = self.by_key.get_mut(key) else { return };
        let may_go = !session.is_opening();
        let head = session.line.first_key_value().filter(|&(_, &is_due)| is_due && may_go);
        let seat = match session.worker {
            Some(worker) if !session.is_worker_gone => Some(Filed::On(worker)),
            _ if session.is_on_worker() => None,
            _ => Some(Filed::Anywhere),
        };
        let filed = seat.zip(head.map(|(&order, _)| order));
        let before = std::mem::replace(&mut session.filed, filed);
        if before == filed {
            return;
        }
        match before {
            Some((Filed::Anywhere, order)) => {
                self.anywhere.remove(&order);
            }
            Some((Filed::On(worker), order)) => {
                if let Some(heads) = self.pinned.get_mut(&worker) {
                    heads.remove(&order);
                    if heads.is_empty() {
                        self.pinned.remove(&worker);
                    }
                }
            }
            None => {}
        }
        match filed {
            Some((Filed::Anywhere, order)) => {
                self.anywhere.insert(order);
            }
            Some((Filed::On(worker), order)) => {
                self.pinned.entry(worker).or_default().insert(order);
            }
            None => {}
        }
    }

    /// Forgets a session if it was remembered for long enough, and some of the others.
    fn pass_time(&mut self, key: &str, now_ms: i64) {
        let remembered = self.by_key.get_key_value(key).filter(|(_, session)| session.is_remembered);
        if let Some((key, session)) = remembered.filter(|(_, session)| self.is_over(session.used_ms, now_ms)) {
            let (used_ms, key) = (session.used_ms, Arc::clone(key));
            self.forget_one(used_ms, key);
        }
        self.forget(now_ms);
    }

    /// Forgets some of what was remembered for long enough, and of what is too much.
    fn forget(&mut self, now_ms: i64) {
        for _ in 0..FORGOTTEN_PER_CALL {
            let is_too_much = self.remembered.len() > REMEMBERED_LIMIT;
            let oldest = self.remembered.first().filter(|(used_ms, _)| is_too_much || self.is_over(*used_ms, now_ms));
            let Some((used_ms, key)) = oldest.cloned() else { return };
            self.forget_one(used_ms, key);
        }
    }

    /// Whether what was used then has been remembered for long enough.
    fn is_over(&self, used_ms: i64, now_ms: i64) -> bool {
        now_ms.saturating_sub(used_ms) >= self.remembered_for_ms
    }

    fn forget_one(&mut self, used_ms: i64, key: Arc<str>) {
        if let Some(session) = self.by_key.remove(&key) {
            self.move_between(&key, session.worker, None);
        }
        self.remembered.remove(&(used_ms, key));
    }
}
