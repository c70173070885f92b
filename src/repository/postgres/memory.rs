//! What the writer remembers from one transaction to the next, as long as nobody else writes in between.

use std::collections::HashMap;

use crate::attempt::{Attempt, AttemptKey};
use crate::chain::{self, Hash};
use crate::job::JobId;
use crate::repository::prepared::HotUnit;

/// Beyond this many open attempts what is known of them is dropped, and read again when needed.
const TRACE_LIMIT: usize = 16_384;

/// How far an open attempt has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    pub(super) message_count: u32,
    pub(super) head: Hash,
    pub(super) has_partial: bool,
    /// The hash of what was really sent, if it was rendered.
    pub(super) rendered_prompt: Option<Hash>,
    /// Whether anything was charged.
    pub(super) is_charged: bool,
}

impl Trace {
    /// Of an attempt that was just claimed.
    pub(super) fn new(attempt: AttemptKey, fence: i64) -> Trace {
        let head = chain::conversation_genesis(attempt, fence);
        Trace { message_count: 0, head, has_partial: false, rendered_prompt: None, is_charged: false }
    }
}

/// An open attempt and its unit as their rows stand, so that the end of it need not read them.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) unit: HotUnit,
    pub(super) attempt: Attempt,
}

/// All of it but the losses can be read again from the database.
#[derive(Debug, Default)]
pub(super) struct Memory {
    traces: HashMap<AttemptKey, Trace>,
    /// Attempts that nothing has changed since their claim: what changes one of the rows forgets them.
    open: HashMap<AttemptKey, Open>,
    /// A template never changes, so this never grows wrong: whether the job has one.
    pub(super) jobs: HashMap<JobId, bool>,
    /// Whether anybody has a budget, if that is known.
    pub(super) has_accounts: Option<bool>,
    /// Messages that the storage failed to take, until the end of their attempt records them.
    losses: HashMap<AttemptKey, u32>,
    /// Attempts that the open transaction ends.
    ended: Vec<AttemptKey>,
}

impl Memory {
    /// The transaction is durable, and with it the losses of the attempts that it ended.
    pub(super) fn forget_ended(&mut self) {
        for attempt in self.ended.drain(..) {
            self.losses.remove(&attempt);
        }
    }

    /// The transaction never was: what was remembered may speak of rows that are not there.
    pub(super) fn forget_uncommitted(&mut self) {
        self.ended.clear();
        self.forget_what_others_change();
        self.jobs.clear();
    }

    /// Somebody else has written since.
    pub(super) fn forget_what_others_change(&mut self) {
        self.traces.clear();
        self.open.clear();
        self.has_accounts = None;
    }

    pub(super) fn trace(&self, attempt: AttemptKey) -> Option<Trace> {
        self.traces.get(&attempt).copied()
    }

    /// Remembers how far an attempt has got, which was just written or read.
    pub(super) fn remember(&mut self, attempt: AttemptKey, trace: Trace) {
        if self.traces.len() >= TRACE_LIMIT {
            self.forget_what_others_change();
        }
        self.traces.insert(attempt, trace);
    }

    /// Remembers an attempt whose lease was just granted.
    pub(super) fn open(&mut self, open: Open) {
        let Attempt { key, fence, .. } = open.attempt;
        self.remember(key, Trace::new(key, fence));
        self.open.insert(key, open);
    }

    /// An open attempt that nothing has changed since its claim.
    pub(super) fn opened(&self, attempt: AttemptKey) -> Option<&Open> {
        self.open.get(&attempt)
    }

    /// The same, to note a change of its rows that is made at the same time.
    pub(super) fn opened_mut(&mut self, attempt: AttemptKey) -> Option<&mut Open> {
        self.open.get_mut(&attempt)
    }

    /// Notes that the row of an attempt, or of its unit, is no longer what it was.
    pub(super) fn attempt_changes(&mut self, attempt: AttemptKey) {
        self.open.remove(&attempt);
    }

    /// Forgets an attempt that ends, and says how many of its messages the storage failed to take.
    pub(super) fn end(&mut self, attempt: AttemptKey) -> u32 {
        self.traces.remove(&attempt);
        self.open.remove(&attempt);
        self.ended.push(attempt);
        self.failed_messages(attempt)
    }

    /// Remembers messages that the storage failed to take.
    pub(super) fn lose_messages(&mut self, attempt: AttemptKey, messages: u32) {
        *self.losses.entry(attempt).or_default() += messages;
    }

    /// How many messages of an attempt the storage failed to take.
    pub(super) fn failed_messages(&self, attempt: AttemptKey) -> u32 {
        self.losses.get(&attempt).copied().unwrap_or_default()
    }
}
