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

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::capacity::WorkerNumber;
use super::line::Order;
use crate::unit::UnitKey;

/// How many sessions are remembered that nobody uses.
const REMEMBERED_LIMIT: usize = 100_000;

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
        self.forget(now_ms);
        self.by_key.get(key).filter(|session| !session.is_worker_gone)?.worker
    }

    /// Whether a session is on this very worker, or is remembered to have been.
    pub(super) fn is_on(&self, key: &str, worker: WorkerNumber) -> bool {
        self.by_key.get(key).is_some_and(|session| session.worker == Some(worker))
    }

    /// Where a strict unit goes that comes now.
    pub(super) fn seat(&mut self, key: &str, now_ms: i64) -> Seat {
        self.forget(now_ms);
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

    /// Forgets what was remembered for long enough, and what is too much.
    fn forget(&mut self, now_ms: i64) {
        while let Some((used_ms, _)) = self.remembered.first() {
            let is_old = now_ms.saturating_sub(*used_ms) >= self.remembered_for_ms;
            if !is_old && self.remembered.len() <= REMEMBERED_LIMIT {
                return;
            }
            if let Some((_, key)) = self.remembered.pop_first()
                && let Some(session) = self.by_key.remove(&key)
            {
                self.move_between(&key, session.worker, None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const W1: WorkerNumber = WorkerNumber(1);
    const W2: WorkerNumber = WorkerNumber(2);
    const DUE: Turn = Turn::Waits { is_due: true };

    /// Those that have room, for one unit each.
    impl Rooms for &[WorkerNumber] {
        fn room(&self, worker: WorkerNumber) -> usize {
            usize::from(self.contains(&worker))
        }

        fn open(&self) -> impl Iterator<Item = WorkerNumber> {
            self.iter().copied()
        }

        fn open_count(&self) -> usize {
            self.len()
        }
    }

    fn key(name: &str) -> Arc<str> {
        Arc::from(name)
    }

    fn order(unit: i64) -> Order {
        Order::new(0, UnitKey(unit))
    }

    /// The first unit that can go, and where to, if these workers have room.
    fn first(sessions: &Sessions, with_room: &[WorkerNumber]) -> Option<(i64, Option<WorkerNumber>)> {
        let first = sessions.first(&with_room);
        first.map(|(order, worker)| (order.unit.0, worker))
    }

    #[test]
    fn a_session_stays_on_its_worker_and_one_goes_after_the_other() {
        // 001-F42, 001-F44
        let (mut sessions, s) = (Sessions::new(1_000), key("s"));
        assert_eq!(sessions.seat("s", 0), Seat::Anywhere);
        sessions.begin_taking(&s);
        sessions.settle(&s, W1, 0);
        assert_eq!(sessions.seat("s", 0), Seat::Behind(W1), "the first has yet to begin");
        sessions.stand(&s, order(1), Turn::Runs);
        sessions.end_taking(&s);
        sessions.begin(&s, UnitKey(1));
        assert_eq!(sessions.seat("s", 0), Seat::On(W1));
        for unit in [3, 2] {
            sessions.stand(&s, order(unit), DUE);
        }
        assert_eq!((first(&sessions, &[]), first(&sessions, &[W2])), (None, None));
        assert_eq!(first(&sessions, &[W1, W2]), Some((2, Some(W1))));
        assert_eq!(sessions.ready_count(&&[W1][..]), 1);
        sessions.stand(&s, order(2), Turn::Runs);
        assert_eq!(first(&sessions, &[W1]), None, "it has yet to begin");
        sessions.begin(&s, UnitKey(2));
        assert_eq!(first(&sessions, &[W1]), Some((3, Some(W1))));
    }

    #[test]
    fn what_waits_for_a_worker_that_goes_goes_elsewhere_once_nothing_is_left_there() {
        let (mut sessions, s) = (Sessions::new(1_000), key("s"));
        sessions.settle(&s, W1, 0);
        sessions.stand(&s, order(1), Turn::Runs);
        sessions.begin(&s, UnitKey(1));
        sessions.stand(&s, order(2), DUE);
        sessions.worker_goes(W1);
        assert_eq!((first(&sessions, &[W1, W2]), sessions.seat("s", 0)), (None, Seat::Nowhere));
        sessions.stand(&s, order(1), Turn::None);
        assert_eq!(first(&sessions, &[]), Some((2, None)));
        sessions.settle(&s, W2, 0);
        sessions.stand(&s, order(2), Turn::Runs);
        sessions.worker_goes(W1);
        assert_eq!(sessions.worker_of("s", 0), Some(W2));
    }

    #[test]
    fn what_waits_for_workers_with_room_is_found_from_either_side() {
        let mut sessions = Sessions::new(1_000);
        for number in 1..=3 {
            let key = key(&format!("s{number}"));
            sessions.settle(&key, WorkerNumber(number), 0);
            sessions.stand(&key, order(i64::try_from(number).unwrap()), DUE);
        }
        let others = (10..20).map(WorkerNumber);
        for idle in [Vec::new(), others.collect()] {
            for (with_room, expected, count) in [(vec![], None, 0), (vec![3, 2], Some((2, Some(W2))), 2)] {
                let with_room: Vec<_> = with_room.into_iter().map(WorkerNumber).chain(idle.clone()).collect();
                assert_eq!(first(&sessions, &with_room), expected);
                assert_eq!(sessions.ready_count(&&*with_room), count);
            }
        }
    }

    #[test]
    fn one_that_is_to_be_tried_again_holds_its_place() {
        let (mut sessions, s) = (Sessions::new(1_000), key("s"));
        sessions.settle(&s, W1, 0);
        sessions.stand(&s, order(1), Turn::Runs);
        sessions.stand(&s, order(2), DUE);
        sessions.stand(&s, order(1), Turn::Waits { is_due: false });
        assert_eq!((first(&sessions, &[W1]), sessions.before("s")), (None, None));
        sessions.stand(&s, order(1), DUE);
        assert_eq!((first(&sessions, &[W1]), sessions.before("s")), (Some((1, Some(W1))), Some(2)));
        sessions.stand(&s, order(1), Turn::None);
        assert_eq!(first(&sessions, &[W1]), Some((2, Some(W1))));
    }

    #[test]
    fn a_session_is_remembered_for_a_while_after_its_last_use_and_not_after_its_worker_went() {
        let mut sessions = Sessions::new(1_000);
        let (strict, hint, lost) = (key("strict"), key("hint"), key("lost"));
        sessions.visit(&hint, W1, 0);
        sessions.visit(&lost, W2, 0);
        sessions.settle(&strict, W1, 0);
        sessions.stand(&strict, order(1), Turn::Runs);
        sessions.worker_goes(W2);
        assert_eq!((sessions.worker_of("hint", 999), sessions.worker_of("lost", 999)), (Some(W1), None));
        assert_eq!((sessions.worker_of("hint", 1_000), sessions.worker_of("strict", 9_000)), (None, Some(W1)));
        sessions.stayed(&strict, W1, 9_000);
        sessions.stayed(&strict, W2, 9_500);
        sessions.stand(&strict, order(1), Turn::None);
        assert_eq!((sessions.worker_of("strict", 9_999), sessions.worker_of("strict", 10_000)), (Some(W1), None));
        sessions.stayed(&strict, W1, 10_000);
        assert!(sessions.by_key.is_empty() && sessions.by_worker.is_empty() && sessions.remembered.is_empty());
    }

    #[test]
    fn a_hint_does_not_move_a_session_that_is_in_use() {
        let (mut sessions, s) = (Sessions::new(1_000), key("s"));
        sessions.settle(&s, W1, 0);
        sessions.stand(&s, order(1), Turn::Runs);
        sessions.visit(&s, W2, 0);
        assert_eq!(sessions.worker_of("s", 0), Some(W1));
        sessions.stand(&s, order(1), Turn::None);
        sessions.visit(&s, W2, 0);
        assert_eq!(sessions.worker_of("s", 0), Some(W2));
    }

    #[test]
    fn a_session_that_was_told_of_is_not_forgotten_while_that_unit_is_executed() {
        let (mut sessions, s, unit) = (Sessions::new(1_000), key("s"), UnitKey(1));
        sessions.tell(&s, W1, unit, 0);
        assert_eq!(sessions.worker_of("s", 9_000), Some(W1));
        sessions.tell(&s, W1, unit, 9_000);
        sessions.end_telling(&s, unit);
        assert_eq!((sessions.worker_of("s", 9_999), sessions.worker_of("s", 10_000)), (Some(W1), None));
        sessions.end_telling(&s, unit);
        sessions.tell(&s, W1, unit, 20_000);
        sessions.visit(&s, W2, 20_000);
        assert_eq!((sessions.worker_of("s", 20_999), sessions.worker_of("s", 21_000)), (Some(W2), None), "it moved");
        sessions.tell(&s, W1, unit, 30_000);
        sessions.worker_goes(W1);
        assert_eq!(sessions.worker_of("s", 30_000), None);
        assert!(sessions.by_key.is_empty() && sessions.by_worker.is_empty() && sessions.remembered.is_empty());
    }

    #[test]
    fn sessions_that_nobody_uses_are_bounded() {
        let mut sessions = Sessions::new(i64::MAX);
        for number in 0..REMEMBERED_LIMIT as i64 + 5 {
            sessions.visit(&key(&format!("s{number}")), W1, number);
        }
        // Also while nobody asks: an executor may tell of a new session with every unit, of which none names one.
        assert!(sessions.remembered.len() <= REMEMBERED_LIMIT + 1, "{} are remembered", sessions.remembered.len());
        assert_eq!(sessions.worker_of("s4", 0), None, "those used longest ago are forgotten");
        assert_eq!((sessions.worker_of("s5", 0), sessions.by_key.len()), (Some(W1), REMEMBERED_LIMIT));
    }
}
