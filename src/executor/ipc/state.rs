//! The state machines of a worker process, of a query and of a connection, each as one pure function.
//!
//! # A worker process
//!
//! ```text
//!              ready                 query
//!   STARTING ─────────▶ READY ◀──────────────────▶ BUSY
//!      │                 │ │   complete, error      │ │
//!      │ not started,    │ │ shut down              │ │ cancel, then shut down
//!      │ not ready       │ └──▶ SHUTTING_DOWN ◀─────┘ │
//!      │                 │ crash,     │ acknowledged,   │ crash,
//!      │                 │ ended      │ ended, timeout  │ ended
//!      └─────────────────┴──────▶ DEAD ◀────────────────┘
//! ```
//!
//! | change | who brings it about |
//! |---|---|
//! | not started, not ready, ready | whoever needs the process and starts it |
//! | query, complete, error, cancel | the thread of the attempt that it works for |
//! | shut down, acknowledged, timeout | the keeper, which looks after those that nobody uses |
//! | crash, ended | whoever has it |
//!
//! One that is busy has ended in order if it had gone before it read its query; whatever ends it later is a crash.
//!
//! # A query
//!
//! ```text
//!   PENDING ── session ──▶ PROCESSING ── first message ──▶ STREAMING ── result ──▶ COMPLETE
//!      │                       │ │                           │ │ │ ▲
//!      ▼ no worker takes it    │ └─ error ─▶ ERROR ◀─ error ─┘ │ └─┘ message
//!   REJECTED                   └─ cancel ▶ CANCELLED ◀─ cancel ┘
//! ```
//!
//! A worker that answers without having said that it took the query has taken it; one whose answer is all it says streams nothing but that.
//! What is told to stop is CANCELLED from then on, or as soon as it is taken, whatever comes of it.

use serde::{Deserialize, Serialize};

use crate::unit::names;

/// Where a worker process is in its life. Serialised as its lower-case name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessState {
    /// Started; it has yet to connect and to say that it is ready.
    Starting,
    /// Waiting for a query.
    Ready,
    /// At work on a query.
    Busy,
    /// Told to end.
    ShuttingDown,
    /// At its end.
    Dead,
}

names!(ProcessState {
    Starting => "starting",
    Ready => "ready",
    Busy => "busy",
    ShuttingDown => "shutting_down",
    Dead => "dead",
});

/// What can happen to a worker process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProcessChange {
    /// It is connected, and has said that it is ready.
    Ready,
    /// It could not be started, or ended before it was ready.
    NotStarted,
    /// It did not say that it is ready in time, or nobody needed it any more before it did.
    NotReady,
    /// It gets a query.
    Query,
    /// The query has succeeded.
    Complete,
    /// The query has failed.
    Error,
    /// The query was cancelled, and the worker is to end.
    CancelAndShutDown,
    /// It is to end.
    ShutDown,
    /// It has said that it ends.
    Acknowledged,
    /// It has ended by itself, in order.
    Ended,
    /// It did not end in time.
    Timeout,
    /// It ended, fell silent, hung up, or said what it must not.
    Crash,
}

names!(ProcessChange {
    Ready => "ready",
    NotStarted => "not_started",
    NotReady => "not_ready",
    Query => "query",
    Complete => "complete",
    Error => "error",
    CancelAndShutDown => "cancel_and_shut_down",
    ShutDown => "shut_down",
    Acknowledged => "acknowledged",
    Ended => "ended",
    Timeout => "timeout",
    Crash => "crash",
});

impl ProcessState {
    /// The state after a change; `None` if the change cannot happen now. This is the whole machine.
    pub fn after(self, change: ProcessChange) -> Option<ProcessState> {
        use ProcessState::{Busy, Dead, Ready, ShuttingDown, Starting};
        let next = match (self, change) {
            (Starting, ProcessChange::Ready) => Ready,
            (Starting, ProcessChange::NotStarted | ProcessChange::NotReady) => Dead,
            (Ready, ProcessChange::Query) => Busy,
            (Ready, ProcessChange::ShutDown) => ShuttingDown,
            (Ready, ProcessChange::Crash | ProcessChange::Ended) => Dead,
            (Busy, ProcessChange::Complete | ProcessChange::Error) => Ready,
            (Busy, ProcessChange::CancelAndShutDown) => ShuttingDown,
            (Busy, ProcessChange::Crash | ProcessChange::Ended) => Dead,
            (ShuttingDown, ProcessChange::Acknowledged | ProcessChange::Ended | ProcessChange::Timeout) => Dead,
            _ => return None,
        };
        Some(next)
    }
}

/// Where a query is in its life. Serialised as its lower-case name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueryState {
    /// Sent; the worker has not said that it took it.
    Pending,
    /// Taken.
    Processing,
    /// Something was said.
    Streaming,
    /// It has succeeded.
    Complete,
    /// It has failed.
    Error,
    /// It was to stop.
    Cancelled,
    /// No worker took it.
    Rejected,
}

names!(QueryState {
    Pending => "pending",
    Processing => "processing",
    Streaming => "streaming",
    Complete => "complete",
    Error => "error",
    Cancelled => "cancelled",
    Rejected => "rejected",
});

/// What can happen to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QueryChange {
    /// The worker has taken it.
    Session,
    /// Something was said.
    Message,
    /// It has succeeded.
    Complete,
    /// It has failed.
    Error,
    /// It is to stop.
    Cancel,
    /// No worker takes it.
    Reject,
}

names!(QueryChange {
    Session => "session",
    Message => "message",
    Complete => "complete",
    Error => "error",
    Cancel => "cancel",
    Reject => "reject",
});

impl QueryState {
    /// The state after a change; `None` if the change cannot happen now. This is the whole machine.
    pub fn after(self, change: QueryChange) -> Option<QueryState> {
        use QueryState::{Cancelled, Complete, Error, Pending, Processing, Rejected, Streaming};
        let next = match (self, change) {
            (Pending, QueryChange::Session) => Processing,
            (Pending, QueryChange::Reject) => Rejected,
            (Processing | Streaming, QueryChange::Message) => Streaming,
            (Streaming, QueryChange::Complete) => Complete,
            (Processing | Streaming, QueryChange::Error) => Error,
            (Processing | Streaming, QueryChange::Cancel) => Cancelled,
            _ => return None,
        };
        Some(next)
    }

    /// Whether nothing more happens to it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, QueryState::Complete | QueryState::Error | QueryState::Cancelled | QueryState::Rejected)
    }
}

/// Whether parent and worker can speak to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// They cannot: not yet, or not any more.
    Disconnected,
    /// The socket is there, and the worker is expected.
    Connecting,
    /// They can.
    Connected,
}

names!(ConnectionState {
    Disconnected => "disconnected",
    Connecting => "connecting",
    Connected => "connected",
});

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// 002-F1 to F18.
    #[test]
    fn nine_transitions_of_a_process_are_allowed_and_no_other() {
        use ProcessState::{Busy, Dead, Ready, ShuttingDown, Starting};
        let after = |from: ProcessState| {
            ProcessChange::ALL.iter().filter_map(|&change| Some((from, from.after(change)?))).collect::<Vec<_>>()
        };
        let pairs: BTreeSet<_> = ProcessState::ALL.iter().flat_map(|&from| after(from)).collect();
        let expected = [
            (Starting, Ready),
            (Starting, Dead),
            (Ready, Busy),
            (Ready, ShuttingDown),
            (Ready, Dead),
            (Busy, Ready),
            (Busy, ShuttingDown),
            (Busy, Dead),
            (ShuttingDown, Dead),
        ];
        assert_eq!(pairs, expected.into());
        assert_eq!(Busy.after(ProcessChange::Query), None, "002-F17: it accepts no further query");
        assert!(after(Dead).is_empty(), "002-F16: it is terminal");
    }

    /// 002-F19 to F29.
    #[test]
    fn nine_transitions_of_a_query_are_allowed_and_no_other() {
        use QueryState::{Cancelled, Complete, Error, Pending, Processing, Rejected, Streaming};
        let after = |from: QueryState| {
            QueryChange::ALL.iter().filter_map(|&change| Some((from, from.after(change)?))).collect::<Vec<_>>()
        };
        let pairs: BTreeSet<_> = QueryState::ALL.iter().flat_map(|&from| after(from)).collect();
        let expected = [
            (Pending, Processing),
            (Pending, Rejected),
            (Processing, Streaming),
            (Processing, Error),
            (Processing, Cancelled),
            (Streaming, Streaming),
            (Streaming, Complete),
            (Streaming, Error),
            (Streaming, Cancelled),
        ];
        assert_eq!(pairs, expected.into());
        for &state in QueryState::ALL {
            assert_eq!(state.is_terminal(), after(state).is_empty(), "{state}");
        }
    }

    #[test]
    fn states_are_written_as_they_are_named() {
        let written = |state: ProcessState| serde_json::to_value(state).unwrap();
        for &state in ProcessState::ALL {
            assert_eq!(written(state), state.name());
            assert_eq!(ProcessState::from_name(state.name()), Some(state));
        }
        let names: Vec<_> = ProcessState::ALL.iter().map(|state| state.name()).collect();
        assert_eq!(names, ["starting", "ready", "busy", "shutting_down", "dead"], "002-F1");
        let names: Vec<_> = QueryState::ALL.iter().map(|state| serde_json::to_value(state).unwrap()).collect();
        assert_eq!(names, ["pending", "processing", "streaming", "complete", "error", "cancelled", "rejected"]);
        let names: Vec<_> = ConnectionState::ALL.iter().map(|state| serde_json::to_value(state).unwrap()).collect();
        assert_eq!(names, ["disconnected", "connecting", "connected"], "002-F31");
    }
}
