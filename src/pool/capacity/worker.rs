//! A worker, as far as places are concerned, and how many of them do what.

use std::sync::Arc;

use crate::pool::open_unit::OpenUnit;
use crate::worker::WorkerStatus;

/// Where a worker is in its life, as far as places are concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Condition {
    /// It is on its way up, without a unit.
    Starting,
    /// It takes units while it has room.
    Up,
    /// It crashed, and takes nothing.
    Tainted,
    /// It is on its way out, once it is done with what it has.
    Retiring,
}

/// What is known of a worker here.
#[derive(Clone, Debug)]
pub(in crate::pool) struct Known {
    pub(in crate::pool) condition: Condition,
    /// How many units it can have in hand.
    pub(in crate::pool) capacity: u32,
    /// How many it has in hand, or is about to get.
    pub(in crate::pool) load: u32,
    /// How many of those have ended, and only their callbacks have not.
    pub(super) reporting: u32,
    /// Grows with every change of a load anywhere: who has the smaller one has had its load for longer.
    pub(super) since: u64,
    pub(super) idle_since_ms: i64,
    /// What it has in hand.
    pub(in crate::pool) units: Vec<Arc<OpenUnit>>,
    /// Units that it is done with since it came up.
    pub(super) spent: u64,
    /// Attempts of its that ended well.
    pub(in crate::pool) completed: u64,
    /// Attempts of its that failed.
    pub(in crate::pool) failed: u64,
}

impl Known {
    /// How it is called in the records.
    pub(in crate::pool) fn status(&self) -> WorkerStatus {
        match self.condition {
            Condition::Starting => WorkerStatus::Starting,
            Condition::Up if self.load < self.capacity => WorkerStatus::Ready,
            Condition::Up => WorkerStatus::Busy,
            Condition::Tainted => WorkerStatus::Tainted,
            Condition::Retiring => WorkerStatus::ShuttingDown,
        }
    }

    /// How many units it can take.
    pub(super) fn room(&self, max_units: Option<u64>) -> u32 {
        if self.condition != Condition::Up {
            return 0;
        }
        u64::from(self.capacity.saturating_sub(self.load)).min(self.left(max_units)).try_into().unwrap_or(u32::MAX)
    }

    /// How many more it may ever have in hand.
    pub(super) fn left(&self, max_units: Option<u64>) -> u64 {
        max_units.map_or(u64::MAX, |most| most.saturating_sub(self.spent + u64::from(self.load)))
    }

    pub(super) fn is_idle(&self) -> bool {
        self.condition == Condition::Up && self.load == 0
    }

    /// Whether it can be sent away: it has come up, and is not on its way out.
    pub(super) fn can_retire(&self) -> bool {
        matches!(self.condition, Condition::Up | Condition::Tainted)
    }
}

/// How many workers do what, and how much room they have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::pool) struct Tally {
    pub(in crate::pool) starting: usize,
    /// Those that are up, whatever they have in hand.
    pub(in crate::pool) up: usize,
    /// Those of them that have nothing in hand.
    pub(in crate::pool) idle: usize,
    /// Those of them that have as much as they can.
    pub(in crate::pool) full: usize,
    /// Those with a unit in hand that have not crashed.
    pub(in crate::pool) busy: usize,
    /// Those of them that report an outcome.
    pub(in crate::pool) reporting: usize,
    pub(in crate::pool) tainted: usize,
    /// Those of them that still have a unit in hand.
    pub(in crate::pool) crashing: usize,
    pub(in crate::pool) retiring: usize,
    /// How many units are in hand, or about to be.
    pub(in crate::pool) load: usize,
    /// How many units those that are up can have in hand.
    pub(in crate::pool) capacity: usize,
    /// How many units can be taken by workers that are up.
    pub(super) rooms: usize,
}

impl Tally {
    pub(super) fn of(known: &Known, room: u32) -> Tally {
        let has_unit = known.load > 0;
        let is = |condition| known.condition == condition;
        let one = usize::from;
        let size = |units: u32| usize::try_from(units).unwrap_or(usize::MAX);
        Tally {
            starting: one(is(Condition::Starting)),
            up: one(is(Condition::Up)),
            idle: one(known.is_idle()),
            full: one(is(Condition::Up) && room == 0),
            busy: one(has_unit && !is(Condition::Tainted)),
            reporting: one(known.reporting > 0 && !is(Condition::Tainted)),
            tainted: one(is(Condition::Tainted)),
            crashing: one(has_unit && is(Condition::Tainted)),
            retiring: one(is(Condition::Retiring)),
            load: size(known.load),
            capacity: if is(Condition::Up) { size(known.capacity) } else { 0 },
            rooms: size(room),
        }
    }

    fn fields(&mut self) -> [&mut usize; 12] {
        let Tally { starting, up, idle, full, busy, reporting, tainted, crashing, retiring, load, capacity, rooms } =
            self;
        [starting, up, idle, full, busy, reporting, tainted, crashing, retiring, load, capacity, rooms]
    }

    pub(super) fn add(&mut self, mut other: Tally) {
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, part)| *sum += *part);
    }

    pub(super) fn subtract(&mut self, mut other: Tally) {
        self.fields().into_iter().zip(other.fields()).for_each(|(sum, part)| *sum -= *part);
    }
}
