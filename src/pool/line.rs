//! The line: what is due and waits for a worker, in order. Plain data under the ready lock.
//!
//! The larger priority goes first, then whoever came first. What must go to a certain worker stands in the line of its
//! [session](super::sessions) and is passed by while that worker has no room.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::capacity::WorkerNumber;
use super::sessions::{Rooms, Sessions, Turn};
use crate::unit::{Affinity, UnitKey, UnitOptions, WorkUnit};

/// Who goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Order {
    priority: Reverse<i32>,
    pub(super) unit: UnitKey,
}

impl Order {
    pub(super) fn new(priority: i32, unit: UnitKey) -> Order {
        Order { priority: Reverse(priority), unit }
    }
}

/// That a unit belongs to a session, and how strictly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tie {
    pub(super) key: Arc<str>,
    pub(super) affinity: Affinity,
}

impl Tie {
    /// What a unit says about itself: its key, or the session that it carries on. How strictly is the pool's to say if it does not.
    pub(super) fn of(options: &UnitOptions, of_pool: Affinity) -> Option<Tie> {
        let named = |name: &&String| !name.is_empty();
        let key = options.affinity_key.iter().chain(&options.resume_session).find(named)?;
        Some(Tie { key: Arc::from(key.as_str()), affinity: options.affinity.unwrap_or(of_pool) })
    }

    pub(super) fn is_strict(&self) -> bool {
        self.affinity != Affinity::Hint
    }
}

/// What decides when and where a unit gets its turn.
#[derive(Clone, Debug, Default)]
pub(super) struct Claimable {
    pub(super) priority: i32,
    pub(super) tie: Option<Tie>,
}

impl Claimable {
    pub(super) fn of(unit: &WorkUnit, affinity: Affinity) -> Claimable {
        Claimable { priority: unit.priority, tie: Tie::of(&unit.options, affinity) }
    }

    /// The key of its session, if it keeps to that strictly.
    pub(super) fn strict_key(&self) -> Option<&Arc<str>> {
        self.tie.as_ref().filter(|tie| tie.is_strict()).map(|tie| &tie.key)
    }
}

/// A unit whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Next {
    pub(super) unit: UnitKey,
    /// The worker that it has to go to.
    pub(super) worker: Option<WorkerNumber>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Line {
    /// Units that may go to any worker.
    free: BTreeSet<Order>,
    pub(super) sessions: Sessions,
}

impl Line {
    pub(super) fn new(remembered_for_ms: i64) -> Line {
        Line { free: BTreeSet::new(), sessions: Sessions::new(remembered_for_ms) }
    }

    /// A unit stands here now. What is not strict is in line only while it is due.
    pub(super) fn stand(&mut self, unit: UnitKey, claimable: &Claimable, turn: Turn) {
        let order = Order::new(claimable.priority, unit);
        match (claimable.strict_key(), turn) {
            (Some(key), turn) => self.sessions.stand(key, order, turn),
            (None, Turn::Waits { is_due: true }) => {
                self.free.insert(order);
            }
            (None, _) => {
                self.free.remove(&order);
            }
        }
    }

    /// A unit goes to a worker: that is where its session is, or was last.
    pub(super) fn settle(&mut self, tie: &Tie, worker: WorkerNumber, now_ms: i64) {
        match tie.is_strict() {
            true => self.sessions.settle(&tie.key, worker, now_ms),
            false => self.sessions.visit(&tie.key, worker, now_ms),
        }
    }

    /// Whose turn it is, if a place is free and these workers have room.
    pub(super) fn next(&self, rooms: &impl Rooms) -> Option<Next> {
        let free = self.free.first().map(|&order| (order, None));
        let strict = self.sessions.first(rooms);
        let (order, worker) = free.into_iter().chain(strict).min_by_key(|&(order, _)| order)?;
        Some(Next { unit: order.unit, worker })
    }

    /// How many units can go, by how many each worker can take.
    pub(super) fn ready_count(&self, rooms: &impl Rooms) -> usize {
        self.free.len() + self.sessions.ready_count(rooms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::unit::NewUnit;

    #[test]
    fn a_unit_belongs_to_what_it_names() {
        // 001-F41
        let key_of = |unit: NewUnit| Tie::of(&unit.options, Affinity::Hint).map(|tie| tie.key.to_string());
        let unit = || NewUnit::new("a");
        assert_eq!(key_of(unit()), None);
        assert_eq!(key_of(unit().affinity_key("k").resume_session("s")).as_deref(), Some("k"));
        assert_eq!(key_of(unit().resume_session("s")).as_deref(), Some("s"));
        assert_eq!(key_of(unit().affinity_key("").resume_session("s")).as_deref(), Some("s"), "nothing is no name");
        assert_eq!(key_of(unit().affinity_key("")), None);
    }

    #[test]
    fn how_strictly_is_for_the_unit_to_say_and_else_for_the_pool() {
        // 001-F43, 001-F44, 001-F45
        let of = |unit: NewUnit| Tie::of(&unit.affinity_key("k").options, Affinity::StrictQueue).unwrap().affinity;
        assert_eq!(of(NewUnit::new("a")), Affinity::StrictQueue);
        assert_eq!(of(NewUnit::new("a").affinity(Affinity::Hint)), Affinity::Hint);
    }

    #[test]
    fn the_larger_priority_goes_first_and_then_who_came_first() {
        // 001-F67
        let mut line = Line::new(0);
        for (unit, priority) in [(3, 0), (1, -1), (2, 0), (4, 7)] {
            let claimable = Claimable { priority, tie: None };
            line.stand(UnitKey(unit), &claimable, Turn::Waits { is_due: true });
        }
        let mut order = Vec::new();
        while let Some(Next { unit, worker: None }) = line.next(&&[][..]) {
            order.push(unit.0);
            line.stand(unit, &Claimable { priority: [0, -1, 0, 0, 7][unit.0 as usize], tie: None }, Turn::Runs);
        }
        assert_eq!(order, [4, 2, 3, 1]);
    }
}
