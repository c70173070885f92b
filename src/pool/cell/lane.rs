//! A lane: one of the threads behind a worker, and what it has in hand. A worker has as many as it has had units at a time.

use std::sync::Arc;

use super::words::After;
use crate::pool::execution::Execution;
use crate::pool::inbox::Inbox;
use crate::pool::ledger::Left;
use crate::sync::thread::JoinHandle;

/// The how-manieth lane of its worker. The first brings the worker up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) struct LaneNumber(pub(in crate::pool) usize);

impl LaneNumber {
    pub(in crate::pool) const FIRST: LaneNumber = LaneNumber(0);
}

/// Who brings an execution to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its own thread, once the executor returns.
    Executing,
    /// The same, but it was asked to hurry.
    Asked,
    /// Somebody has begun to.
    Closing,
}

/// What a lane has in hand.
#[derive(Debug)]
pub(super) struct Current {
    pub(super) execution: Arc<Execution>,
    pub(super) stage: Stage,
    pub(super) alarm_ms: Option<i64>,
    /// Whether its callback runs, or is about to.
    pub(super) is_reporting: bool,
    /// Whether it has been brought to its end, and only its thread is still to come back.
    pub(super) is_closed: bool,
    /// How its unit leaves if the pool stops, once the end is stored or cannot be.
    pub(super) stored: Option<Left>,
    /// What its worker does after it, if its thread is done and its place is kept only until the end is stored.
    pub(super) kept: Option<After>,
}

impl Current {
    pub(super) fn new(execution: &Arc<Execution>) -> Current {
        Current {
            execution: Arc::clone(execution),
            stage: Stage::Executing,
            alarm_ms: None,
            is_reporting: false,
            is_closed: false,
            stored: None,
            kept: None,
        }
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) inbox: Inbox,
    /// Counts the threads that were behind this lane.
    pub(super) generation: u64,
    pub(super) thread: Option<JoinHandle<()>>,
    pub(super) current: Option<Current>,
    /// Whether it has a thread, or is about to have one.
    pub(super) is_open: bool,
    /// Whether the system has yet to give it that thread. It may not, so only whoever asked for it counts on it.
    pub(super) is_coming: bool,
}

impl Lane {
    pub(super) fn new(inbox: Inbox) -> Lane {
        Lane { inbox, generation: 0, thread: None, current: None, is_open: true, is_coming: false }
    }

    /// Another thread than before is to be behind it.
    pub(super) fn replace(&mut self, inbox: &Inbox) {
        self.inbox = inbox.clone();
        self.leave();
        self.is_open = true;
    }

    /// Its thread is left behind: nobody joins it, and what it does next counts for nothing.
    pub(super) fn leave(&mut self) {
        self.generation += 1;
        self.thread = None;
    }

    /// Whether it has an execution in hand.
    pub(super) fn has(&self, run: u64) -> bool {
        self.current.as_ref().is_some_and(|current| current.execution.run == run)
    }

    /// Whether it can be handed an execution.
    pub(super) fn is_free(&self) -> bool {
        self.is_open && !self.is_coming && self.current.is_none()
    }
}
