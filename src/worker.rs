//! A worker: a pool slot as others see it.
//!
//! ```text
//!                 ready            take (load = capacity)
//!   STARTING ──────────────▶ READY ────────────────────▶ BUSY
//!      ▲  │                  │ │ ▲ ◀──────────────────── │ │
//!      │  │                  │ │ └── take below capacity  │ │
//!      │  │            taint │ │        give back         │ │ taint
//!      │  │                  ▼ │                          │ ▼
//!      └──┼───────────── TAINTED ◀────────────────────────┼─┘
//!  restart│                    │                          │
//!         └────────────────────┴──── shut down ───────────┴──▶ SHUTTING_DOWN ──▶ TERMINATED
//!
//!   every status but the last two ends: ──── die ──▶ DEAD
//! ```
//!
//! | change | performed by |
//! |---|---|
//! | start, ready, taint, restart, shut down, terminate, die | `Repository::change_worker` |
//! | take | `Repository::claim`, `Repository::submit` |
//! | give back | whatever ends an attempt |
//!
//! In TERMINATED and DEAD a worker holds nothing: what it held was resolved in the same transaction.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::job::JobId;
use crate::lease::OwnerId;
use crate::unit::{InvalidId, UnitId, UnitKey, names};

/// Where a worker is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum WorkerStatus {
    /// Not yet able to work.
    Starting,
    /// Able to take a unit.
    Ready,
    /// Working on as many units as it can.
    Busy,
    /// Not to be trusted after a crash.
    Tainted,
    /// Finishing what it has, taking nothing new.
    ShuttingDown,
    /// Ended in order.
    Terminated,
    /// Ended otherwise.
    Dead,
}

names!(WorkerStatus {
    Starting => "STARTING",
    Ready => "READY",
    Busy => "BUSY",
    Tainted => "TAINTED",
    ShuttingDown => "SHUTTING_DOWN",
    Terminated => "TERMINATED",
    Dead => "DEAD",
});

/// What can happen to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum WorkerChange {
    /// It is brought up.
    Start,
    /// It says that it can work.
    Ready,
    /// It takes a unit and can take more.
    TakeBelowCapacity,
    /// It takes as many as it can.
    TakeToCapacity,
    /// It is done with a unit.
    GiveBack,
    /// It crashed or broke its protocol.
    Taint,
    /// It is brought up again after that.
    Restart,
    /// It shall take nothing new.
    ShutDown,
    /// It ended in order.
    Terminate,
    /// It is gone.
    Die,
}

names!(WorkerChange {
    Start => "START",
    Ready => "READY",
    TakeBelowCapacity => "TAKE_BELOW_CAPACITY",
    TakeToCapacity => "TAKE_TO_CAPACITY",
    GiveBack => "GIVE_BACK",
    Taint => "TAINT",
    Restart => "RESTART",
    ShutDown => "SHUT_DOWN",
    Terminate => "TERMINATE",
    Die => "DIE",
});

impl WorkerStatus {
    /// The status after a change; `None` if the change cannot happen now. `from` is `None` for a new worker.
    pub fn after(from: Option<WorkerStatus>, change: WorkerChange) -> Option<WorkerStatus> {
        use WorkerStatus::{Busy, Dead, Ready, ShuttingDown, Starting, Tainted, Terminated};
        let next = match (from, change) {
            (None, WorkerChange::Start) => Starting,
            // A claim brings its worker into the table if nobody else did.
            (None | Some(Ready), WorkerChange::TakeBelowCapacity) => Ready,
            (None | Some(Ready), WorkerChange::TakeToCapacity) => Busy,
            (Some(Starting), WorkerChange::Ready) => Ready,
            (Some(Ready | Busy), WorkerChange::GiveBack) => Ready,
            // What ends while the worker is on its way out does not bring it back.
            (Some(Starting | Tainted | ShuttingDown), WorkerChange::GiveBack) => from?,
            (Some(Ready | Busy), WorkerChange::Taint) => Tainted,
            (Some(Tainted), WorkerChange::Restart) => Starting,
            (Some(Starting | Ready | Busy | Tainted), WorkerChange::ShutDown) => ShuttingDown,
            (Some(ShuttingDown), WorkerChange::Terminate) => Terminated,
            (Some(Starting | Ready | Busy | Tainted | ShuttingDown), WorkerChange::Die) => Dead,
            _ => return None,
        };
        Some(next)
    }

    /// Whether it will never work again.
    pub const fn is_ended(self) -> bool {
        matches!(self, WorkerStatus::Terminated | WorkerStatus::Dead)
    }
}

/// A worker's name, unique with its owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "UnitId", into = "UnitId")]
pub struct WorkerId(UnitId);

impl WorkerId {
    /// Checks a name by the rules of [`UnitId::new`].
    ///
    /// # Errors
    ///
    /// [`InvalidId`] says what is wrong with it.
    pub fn new(id: impl Into<String>) -> Result<WorkerId, InvalidId> {
        UnitId::new(id).map(WorkerId)
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl From<WorkerId> for UnitId {
    fn from(id: WorkerId) -> UnitId {
        id.0
    }
}

impl From<UnitId> for WorkerId {
    fn from(id: UnitId) -> WorkerId {
        WorkerId(id)
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The record of a worker. Its counters only grow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Worker {
    /// Who runs it.
    pub owner: OwnerId,
    /// Its name.
    pub id: WorkerId,
    /// The job it works for.
    pub job_id: JobId,
    /// Where it is in its life.
    pub status: WorkerStatus,
    /// How many units it can work on at a time.
    pub capacity: u32,
    /// How many it works on.
    pub load: u32,
    /// The unit it took last, until that ends.
    pub current_unit: Option<UnitKey>,
    /// How many attempts of its ended well.
    pub units_completed: u64,
    /// How many failed, timed out or were lost.
    pub units_failed: u64,
    /// How long it has been executing.
    pub total_time: Duration,
    /// When it first appeared.
    pub created_at: DateTime<Utc>,
    /// When it last took or ended a unit, or changed its status.
    pub last_activity_at: DateTime<Utc>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nineteen_transitions_are_allowed_and_no_other() {
        let from_all = std::iter::once(None).chain(WorkerStatus::ALL.iter().copied().map(Some));
        let mut pairs = BTreeSet::new();
        for from in from_all {
            for &change in WorkerChange::ALL {
                if let Some(to) = WorkerStatus::after(from, change).filter(|&to| Some(to) != from) {
                    pairs.insert((from, to));
                }
            }
        }
        assert_eq!(pairs.len(), 19, "{pairs:?}");
    }

    #[test]
    fn ready_is_entered_from_starting_only_on_the_ready_signal() {
        for &change in WorkerChange::ALL {
            let becomes_ready = WorkerStatus::after(Some(WorkerStatus::Starting), change) == Some(WorkerStatus::Ready);
            assert_eq!(becomes_ready, change == WorkerChange::Ready);
        }
    }

    #[test]
    fn what_is_ended_stays_ended() {
        for ended in [WorkerStatus::Terminated, WorkerStatus::Dead] {
            assert!(ended.is_ended());
            for &change in WorkerChange::ALL {
                assert_eq!(WorkerStatus::after(Some(ended), change), None);
            }
        }
    }

    #[test]
    fn names_read_back_and_equal_their_serialised_form() {
        // 000-F35
        for &status in WorkerStatus::ALL {
            assert_eq!(WorkerStatus::from_name(status.name()), Some(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
    }
}
