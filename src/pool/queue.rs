//! The queue: which units wait in line for their first attempt, and how many may.
//!
//! Their order is not kept here: who is next says the [line](super::line).

use std::collections::{HashMap, HashSet};

use crate::unit::UnitKey;

/// Units in line, and those about to join it. Plain data under the ready lock.
#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    /// Places of units that are being stored.
    entering: usize,
    waiting: HashSet<UnitKey>,
    /// Those of them that have waited for too long.
    overdue: HashSet<UnitKey>,
    /// When those of them that may not wait for ever are looked at.
    alarms: HashMap<UnitKey, i64>,
    /// Alarms that need not ring any more.
    idle_alarms: Vec<(UnitKey, i64)>,
}

impl Queue {
    pub(super) fn new(limit: usize) -> Queue {
        Queue {
            limit,
            entering: 0,
            waiting: HashSet::new(),
            overdue: HashSet::new(),
            alarms: HashMap::new(),
            idle_alarms: Vec::new(),
        }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    /// How many are in line.
    pub(super) fn len(&self) -> usize {
        self.entering + self.waiting.len()
    }

    /// Takes a place for a unit that is to be stored; says whether there was one.
    pub(super) fn enter(&mut self) -> bool {
        let has_room = self.len() < self.limit;
        self.entering += usize::from(has_room);
        has_room
    }

    /// Takes a place for a unit that was promised another one, though there may be none.
    pub(super) fn enter_anyway(&mut self) {
        self.entering += 1;
    }

    /// The unit is stored: it waits in the place that was taken for it.
    pub(super) fn wait(&mut self, key: UnitKey) {
        self.entering -= 1;
        self.waiting.insert(key);
    }

    /// Nothing came of it: the place is free again.
    pub(super) fn turn_away(&mut self) {
        self.entering -= 1;
    }

    /// A unit is looked at then, and no more when it was to be before.
    pub(super) fn set_alarm(&mut self, key: UnitKey, at_ms: i64) {
        let before_ms = self.alarms.insert(key, at_ms).filter(|&before_ms| before_ms != at_ms);
        self.idle_alarms.extend(before_ms.map(|before_ms| (key, before_ms)));
    }

    /// The alarms that need not ring any more.
    pub(super) fn take_idle_alarms(&mut self) -> Vec<(UnitKey, i64)> {
        std::mem::take(&mut self.idle_alarms)
    }

    /// A unit has waited for too long; says whether it still does.
    pub(super) fn time_is_up(&mut self, key: UnitKey) -> bool {
        let is_waiting = self.waiting.contains(&key);
        if is_waiting {
            self.overdue.insert(key);
        }
        is_waiting
    }

    /// Those that have waited for too long, and still do.
    pub(super) fn overdue(&self) -> &HashSet<UnitKey> {
        &self.overdue
    }

    /// A unit waits no longer, for whatever reason.
    pub(super) fn leave(&mut self, key: UnitKey) {
        self.waiting.remove(&key);
        self.overdue.remove(&key);
        self.idle_alarms.extend(self.alarms.remove(&key).map(|at_ms| (key, at_ms)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_takes_as_many_as_it_may_and_counts_who_is_on_the_way() {
        // 001-F46, 001-F47, 001-F68, 001-F69
        let mut queue = Queue::new(2);
        assert_eq!(queue.len(), 0);
        assert!(queue.enter() && queue.enter() && !queue.enter());
        queue.wait(UnitKey(1));
        assert!(!queue.enter());
        queue.turn_away();
        assert!(queue.enter());
        queue.wait(UnitKey(2));
        assert_eq!((queue.len(), queue.enter()), (2, false));
        queue.leave(UnitKey(1));
        queue.leave(UnitKey(1));
        assert_eq!((queue.len(), queue.enter()), (1, true));
    }

    #[test]
    fn who_has_left_has_not_waited_for_too_long() {
        // 001-F48
        let mut queue = Queue::new(2);
        assert!(queue.enter() && !queue.time_is_up(UnitKey(1)));
        queue.wait(UnitKey(1));
        assert!(queue.time_is_up(UnitKey(1)));
        assert_eq!(queue.overdue().len(), 1);
        queue.leave(UnitKey(1));
        assert!(queue.overdue().is_empty() && !queue.time_is_up(UnitKey(1)));
    }

    #[test]
    fn the_same_unit_twice_waits_once() {
        let mut queue = Queue::new(2);
        for _ in 0..2 {
            assert!(queue.enter());
            queue.wait(UnitKey(1));
        }
        assert_eq!(queue.len(), 1);
    }
}
