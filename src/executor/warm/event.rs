//! What becomes of kept processes, for whoever wants to know.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Health, ProcessKey};
use crate::executor::ipc::{ConnectionState, ProcessState, QueryState};
use crate::process::Process;

/// Why a process is told to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Why {
    /// Another key needs its place.
    Evicted,
    /// Nobody has used it for too long.
    Inactive,
    /// It is as old as it may become.
    Old,
    /// Its query was cancelled before it was ready, or it did not say that it can go on.
    Cancelled,
    /// It said what it must not, or has done all that it was started for.
    Unfit,
    /// All are to end.
    Stopped,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Why::Evicted => "another key needs its place",
            Why::Inactive => "nobody has used it for too long",
            Why::Old => "it is as old as it may become",
            Why::Cancelled => "its query was cancelled",
            Why::Unfit => "it is not to be used again",
            Why::Stopped => "all are to end",
        })
    }
}

/// Something that happened to a kept process, or to somebody who waits for one.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ProcessEvent<'a> {
    /// It was started.
    Starting {
        /// Which.
        number: u64,
        /// For which calls.
        key: &'a ProcessKey,
    },
    /// It takes queries: it is up.
    Ready {
        /// Which.
        number: u64,
    },
    /// It works on a query.
    Busy {
        /// Which.
        number: u64,
        /// The query.
        request_id: &'a str,
    },
    /// What became of its query.
    Query {
        /// Which process.
        number: u64,
        /// Which query.
        request_id: &'a str,
        /// Where it is in its life now.
        state: QueryState,
    },
    /// Its query is over, and it takes the next.
    Idle {
        /// Which.
        number: u64,
    },
    /// It said that it is well.
    Healthy {
        /// Which.
        number: u64,
        /// What it said.
        health: Health,
    },
    /// It was told to end.
    ShuttingDown {
        /// Which.
        number: u64,
        /// Why.
        why: Why,
    },
    /// It has ended in order, or was killed because it did not.
    Ended {
        /// Which.
        number: u64,
        /// Whether it had to be killed.
        was_killed: bool,
    },
    /// It ended by itself, hung up, fell silent, or did not come up.
    Crashed {
        /// Which.
        number: u64,
        /// How.
        reason: &'a str,
    },
    /// A call waits: there are as many processes as there may be, and none can go.
    Queued {
        /// For which process.
        key: &'a ProcessKey,
    },
}

impl ProcessEvent<'_> {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            ProcessEvent::Starting { .. } => "worker:starting",
            ProcessEvent::Ready { .. } => "worker:ready",
            ProcessEvent::Busy { .. } => "worker:busy",
            ProcessEvent::Query { state, .. } => match state {
                QueryState::Pending => "query:pending",
                QueryState::Processing => "query:processing",
                QueryState::Streaming => "query:streaming",
                QueryState::Complete => "query:complete",
                QueryState::Error => "query:error",
                QueryState::Cancelled => "query:cancelled",
                QueryState::Rejected => "query:rejected",
            },
            ProcessEvent::Idle { .. } => "worker:idle",
            ProcessEvent::Healthy { .. } => "worker:healthy",
            ProcessEvent::ShuttingDown { .. } => "worker:shutting_down",
            ProcessEvent::Ended { .. } => "worker:ended",
            ProcessEvent::Crashed { .. } => "worker:crashed",
            ProcessEvent::Queued { .. } => "query:queued",
        }
    }
}

impl fmt::Display for ProcessEvent<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            ProcessEvent::Starting { number, .. }
            | ProcessEvent::Ready { number }
            | ProcessEvent::Idle { number }
            | ProcessEvent::Healthy { number, .. } => write!(f, "{name} {number}"),
            ProcessEvent::Busy { number, request_id } | ProcessEvent::Query { number, request_id, .. } => {
                write!(f, "{name} {number}: {request_id}")
            }
            ProcessEvent::ShuttingDown { number, why } => write!(f, "{name} {number}: {why}"),
            ProcessEvent::Ended { number, was_killed: false } => write!(f, "{name} {number}"),
            ProcessEvent::Ended { number, was_killed: true } => write!(f, "{name} {number}: it had to be killed"),
            ProcessEvent::Crashed { number, reason } => write!(f, "{name} {number}: {reason}"),
            ProcessEvent::Queued { .. } => f.write_str(name),
        }
    }
}

/// A kept process, as it is at one moment.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ProcessView {
    /// The how-manieth it is.
    pub number: u64,
    /// Which calls it serves.
    pub key: ProcessKey,
    /// Where it is in its life.
    pub state: ProcessState,
    /// Whether it can be spoken to.
    pub connection: ConnectionState,
    /// The process, once it was started.
    pub process: Option<Process>,
    /// How long ago it was started.
    pub age: Duration,
    /// How long ago it was used last.
    pub idle_for: Duration,
    /// How many queries it has had.
    pub queries_processed: u64,
    /// The query that it works on.
    pub active_request_id: Option<String>,
    /// What it said of itself last.
    pub health: Option<Health>,
}
