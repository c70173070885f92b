//! What a cell is asked, and what it answers.

use std::sync::Arc;

use super::lane::LaneNumber;
use crate::pool::execution::Execution;
use crate::pool::inbox::Inbox;
use crate::pool::ledger::Left;

/// How long a worker may be used.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct Wear {
    pub(in crate::pool) max_age_ms: Option<i64>,
    pub(in crate::pool) max_units: Option<u64>,
}

/// What a worker does after a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum After {
    /// It takes the next, unless it is worn out or one too many.
    GoOn,
    /// It crashed, and rests until then before it is brought up again; `None` ends it.
    Crash { rests_until_ms: Option<i64> },
    /// It ends.
    Retire,
}

/// What becomes of a worker that is done with a unit, or got none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Settled {
    /// It goes on, or rests, or waits for its other lanes: in any case this one waits for a task.
    GoesOn,
    /// It has nothing left in hand and is on its way out. Whoever is told ends it.
    Ends,
}

/// Whether a worker takes a unit.
#[derive(Debug)]
pub(in crate::pool) enum Reserved {
    /// It does not: it crashed, ends, or has no room.
    No,
    Yes,
    /// It does, but has to have one more thread, with this inbox.
    WithLane {
        lane: LaneNumber,
        generation: u64,
        inbox: Inbox,
    },
}

/// How a thread comes back from an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Return {
    /// It is to bring the attempt to its end.
    InTime,
    /// Somebody else does that; the thread still belongs to its worker.
    Late,
    /// Somebody else does that, and another thread has taken its place.
    Replaced,
}

/// Who is not left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Spare {
    /// Whoever is storing how its attempt ended: that was paid for.
    WhoStores,
    Nobody,
}

/// What a thread had in hand that was left behind because the pool stops.
#[derive(Debug)]
pub(in crate::pool) enum LeftBehind {
    /// An execution, which nobody else brings to its end.
    Executing(Arc<Execution>),
    /// One whose end it is storing.
    Storing(Arc<Execution>),
    /// One whose end it has stored, or cannot, and may never come to tell.
    Stored(Arc<Execution>, Left),
}

/// What became of an attempt to leave a thread behind.
#[derive(Debug)]
pub(in crate::pool) enum Abandoned {
    /// The execution ended in time.
    No,
    /// The caller has to start another thread in its place, of this generation, to close the attempt.
    Replace { lane: LaneNumber, generation: u64, execution: Arc<Execution> },
    /// There are too many already: the worker is stuck until its executor returns. Somebody else has to close the attempt.
    Stuck(Arc<Execution>),
}
