//! One execution of one attempt: what identifies it, and what it has told so far.
//!
//! It outlives the thread that runs it: if that does not return, another thread finds here what is to be stored.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::capacity::WorkerNumber;
use super::core::Core;
use super::cost_limit;
use super::homes;
use super::line::Tie;
use super::observe::Event;
use super::open_unit::{OpenUnit, Said};
use super::provider;
use super::supervisor;
use super::turn;
use crate::attempt::{AttemptReport, Failure, Process, Progress};
use crate::chain::Hash;
use crate::conversation::{Message, Part, Truncation};
use crate::error::RepositoryError;
use crate::executor::{CancelReason, CancelToken, ExecuteError, Recorder, WorkResult};
use crate::lease::Claim;
use crate::limits::Ask;
use crate::money::{Charge, Money};
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};

/// How long a text that is being written is held back before it is stored again.
const PARTIAL_EVERY_MS: i64 = 1_000;

/// How many messages wait for storage that fails, at most.
const UNSENT_LIMIT: usize = 10_000;

/// See the [module](self).
pub(super) struct Execution {
    /// The pool's own number for it.
    pub(super) run: u64,
    /// The worker that it is given to.
    pub(super) worker: WorkerNumber,
    pub(super) claim: Claim,
    /// The session that its unit belongs to.
    pub(super) tie: Option<Tie>,
    pub(super) unit: Arc<OpenUnit>,
    pub(super) cancel: CancelToken,
    /// When it was claimed, by the pool's clock.
    pub(super) claimed_at_ms: i64,
    /// Whether its worker got as far as to begin with it.
    has_begun: AtomicBool,
    /// Whether the storage was lost while it ran.
    is_forsaken: AtomicBool,
    told: Mutex<Told>,
    late: Mutex<Late>,
}

/// What the executor told while it ran. The lock is the attempt's own and keeps its messages in order.
#[derive(Debug, Default)]
struct Told {
    /// Messages that the repository has taken.
    stored: u32,
    /// Messages that it could not take yet.
    unsent: Vec<Message>,
    lost: u32,
    bytes: u64,
    partial: Option<String>,
    partial_at_ms: Option<i64>,
    session_id: Option<String>,
    charges: BTreeMap<String, Charge>,
}

impl Told {
    fn lose_unsent(&mut self) {
        self.lost = self.lost.saturating_add(u32::try_from(self.unsent.len()).unwrap_or(u32::MAX));
        self.unsent.clear();
    }

    /// What was used of each model.
    fn charges_with(&self, result: &WorkResult) -> BTreeMap<String, Charge> {
        let mut charges = self.charges.clone();
        charges.extend(result.charges.iter().map(|charge| (charge.model.clone(), charge.clone())));
        charges
    }
}

/// What an executor reports after its attempt was taken from it.
#[derive(Debug)]
enum Late {
    /// Its thread has not come back, and the attempt has not been closed.
    Open,
    /// Its thread has come back, with this to report if with anything, and the attempt has not been closed.
    Back(Option<Box<AttemptReport>>),
    /// The attempt is closed.
    Closed,
}

/// When a thread comes back whose attempt was taken from it.
#[derive(Debug)]
pub(super) enum ComeBack {
    /// Whoever closes the attempt will find what it brought.
    BeforeTheEnd,
    /// It has to store what it brought.
    AfterTheEnd(Option<Box<AttemptReport>>),
}

/// Everything that an attempt told, as it is stored at its end.
#[derive(Debug)]
pub(super) struct Captured {
    pub(super) session_id: Option<String>,
    pub(super) charges: Vec<Charge>,
    pub(super) messages_lost: u32,
}

impl Captured {
    /// What of it is worth keeping of an attempt that is given back, with what its executor said of why.
    pub(super) fn progress(&self, failure: Option<Failure>) -> Progress {
        let Captured { session_id, charges, .. } = self;
        Progress { session_id: session_id.clone(), charges: charges.clone(), failure, ..Progress::default() }
    }
}

impl Execution {
    pub(super) fn new(core: &Core, worker: WorkerNumber, claim: Claim, unit: Arc<OpenUnit>) -> Execution {
        let cancel = CancelToken::new();
        unit.begin(&cancel, &claim.lease);
        Execution {
            run: core.next_run(),
            worker,
            tie: Tie::of(&claim.unit.options, core.settings.affinity),
            claim,
            unit,
            cancel,
            claimed_at_ms: core.now_ms(),
            has_begun: AtomicBool::new(false),
            is_forsaken: AtomicBool::new(false),
            told: Mutex::default(),
            late: Mutex::new(Late::Open),
        }
    }

    /// The storage is lost, and with it the right to go on: its worker ends with it.
    pub(super) fn forsake(&self) {
        self.is_forsaken.store(true, Ordering::Release);
    }

    pub(super) fn is_forsaken(&self) -> bool {
        self.is_forsaken.load(Ordering::Acquire)
    }

    /// Its worker begins with it.
    pub(super) fn begin(&self) {
        self.has_begun.store(true, Ordering::Release);
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun.load(Ordering::Acquire)
    }

    /// Stores what is still unsent, and returns what is to be stored with the end. `result` has the last word on what was used.
    pub(super) fn capture(&self, core: &Core, result: &WorkResult) -> Captured {
        let mut told = self.told();
        self.store_unsent(core, &mut told);
        if let Some(text) = told.partial.take()
            && let Err(error) = core.repository().partial(&self.claim.lease, &text)
        {
            log::debug!("unit {}: the last words were not stored: {error}", self.claim.unit.id);
        }
        told.lose_unsent();
        Captured {
            session_id: result.session_id.clone().or_else(|| told.session_id.clone()),
            charges: told.charges_with(result).into_values().collect(),
            messages_lost: told.lost,
        }
    }

    /// What its unit has cost so far with all attempts, as far as that is known. `result` has the last word on what was used.
    pub(super) fn cost(&self, result: &WorkResult) -> Money {
        let charges = self.told().charges_with(result);
        self.claim.unit.cost.amount + charges.values().filter_map(|charge| charge.amount).sum()
    }

    /// It is in this session: whoever carries it on is best off where it is. What is told too late counts for nothing.
    pub(super) fn tell_session(&self, core: &Core, session_id: &str) {
        if session_id.is_empty() {
            return;
        }
        let key = Arc::from(session_id);
        if core.ready.tell_session(self.claim.lease.attempt(), &key, self.worker, core.now_ms()) {
            homes::settle_in(core, &key, self.worker);
            self.unit.stay_told(homes::stay_told(core, &key, self.worker));
        }
    }

    /// Its thread has come back after the attempt was taken from it. What it reports waits until the attempt is closed; if
    /// it is, the report is given back.
    pub(super) fn came_back(&self, report: Option<Box<AttemptReport>>) -> ComeBack {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(*late, Late::Closed) {
            return ComeBack::AfterTheEnd(report);
        }
        *late = Late::Back(report);
        ComeBack::BeforeTheEnd
    }

    /// The attempt is closed. Says whether its thread came back meanwhile, and with what.
    pub(super) fn closed(&self) -> Option<Option<Box<AttemptReport>>> {
        let mut late = self.late.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *late, Late::Closed) {
            Late::Back(report) => Some(report),
            Late::Open | Late::Closed => None,
        }
    }

    /// Hands everything unsent to the repository. What it refuses is lost; what it cannot take now waits for the next time.
    ///
    /// Behind a message that was lost nothing is stored: what is stored is the beginning of what was said.
    fn store_unsent(&self, core: &Core, told: &mut Told) {
        if told.lost > 0 {
            told.lose_unsent();
        }
        if told.unsent.is_empty() {
            return;
        }
        let count = u32::try_from(told.unsent.len()).unwrap_or(u32::MAX);
        match core.repository().append(&self.claim.lease, told.stored, &told.unsent) {
            Ok(()) => {
                let number = told.stored;
                told.stored += count;
                self.pass_on(number, std::mem::take(&mut told.unsent));
            }
            Err(RepositoryError::Stale { .. }) => {
                told.unsent.clear();
                self.cancel.cancel(CancelReason::LeaseLost);
            }
            Err(error) if error.is_rejection() => {
                log::warn!("unit {}: a message cannot be stored as it is: {error}", self.claim.unit.id);
                self.store_one_by_one(core, told);
            }
            Err(error) if told.unsent.len() >= UNSENT_LIMIT => {
                log::warn!("unit {}: {count} messages were not stored: {error}", self.claim.unit.id);
                told.lose_unsent();
            }
            Err(error) => log::debug!("unit {}: messages wait for the storage: {error}", self.claim.unit.id),
        }
    }

    /// Stores what can be stored. Of a message that cannot, it is kept that it was there, and how long it was.
    fn store_one_by_one(&self, core: &Core, told: &mut Told) {
        for message in std::mem::take(&mut told.unsent) {
            let instead = cut_off(&message);
            let stored = [message, instead].into_iter().find(|message| {
                let append = |message| core.repository().append(&self.claim.lease, told.stored, message);
                told.lost == 0 && append(std::slice::from_ref(message)).is_ok()
            });
            match stored {
                Some(message) => {
                    told.stored += 1;
                    self.pass_on(told.stored - 1, vec![message]);
                }
                None => told.lost += 1,
            }
        }
    }

    /// Tells those who follow.
    fn pass_on(&self, stored_before: u32, messages: Vec<Message>) {
        if self.unit.is_followed() {
            for (number, message) in (stored_before + 1..).zip(messages) {
                self.unit.said(Said { attempt_number: self.claim.lease.attempt_number, number, message });
            }
        }
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Execution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Execution").field("run", &self.run).field("unit", &self.claim.unit.id).finish_non_exhaustive()
    }
}

/// Takes what an execution tells, and stores it.
pub(super) struct Recording<'a> {
    pub(super) core: &'a Core,
    pub(super) execution: &'a Execution,
}

impl Recording<'_> {
    /// Stores what became known. It is kept for the end in any case, so a failure is no loss.
    fn progress(&self, progress: &Progress) {
        let unit_id = &self.execution.claim.unit.id;
        match self.core.repository().progress(&self.execution.claim.lease, progress) {
            Ok(()) => {}
            Err(RepositoryError::Stale { .. }) => {
                self.execution.cancel.cancel(CancelReason::LeaseLost);
            }
            Err(error) => log::debug!("unit {unit_id}: progress was not stored: {error}"),
        }
    }
}

impl Recorder for Recording<'_> {
    fn messages(&self, messages: Vec<Message>) {
        let claim = &self.execution.claim;
        for message in &messages {
            self.core.callbacks.tell_of(|| Event::Said {
                unit_id: &claim.unit.id,
                attempt_number: claim.lease.attempt_number,
                message,
            });
        }
        let mut told = self.execution.told();
        told.bytes += messages.iter().map(weight_bytes).sum::<u64>();
        if told.bytes > self.core.settings.conversation_limit_bytes {
            told.lost += u32::try_from(messages.len()).unwrap_or(u32::MAX);
            drop(told);
            self.execution.cancel.cancel(CancelReason::ConversationLimit);
            return;
        }
        told.partial = None;
        told.unsent.extend(messages);
        self.execution.store_unsent(self.core, &mut told);
    }

    fn partial(&self, text: &str) {
        let mut told = self.execution.told();
        let now_ms = self.core.now_ms();
        if told.partial_at_ms.is_some_and(|at_ms| now_ms < at_ms + PARTIAL_EVERY_MS) {
            told.partial = Some(text.to_owned());
            return;
        }
        told.partial_at_ms = Some(now_ms);
        told.partial = None;
        if let Err(error) = self.core.repository().partial(&self.execution.claim.lease, text) {
            log::debug!("unit {}: a partial text was not stored: {error}", self.execution.claim.unit.id);
            told.partial = Some(text.to_owned());
        }
    }

    fn session(&self, session_id: &str) {
        self.execution.told().session_id = Some(session_id.to_owned());
        self.execution.tell_session(self.core, session_id);
        self.progress(&Progress::default().session(session_id));
    }

    fn process(&self, process: Process) {
        self.progress(&Progress::default().process(process));
    }

    fn usage(&self, charge: Charge) {
        self.execution.told().charges.insert(charge.model.clone(), charge.clone());
        self.progress(&Progress::default().charge(charge));
        let cost = self.execution.cost(&WorkResult::empty());
        if cost_limit::is_exceeded(&self.execution.claim.unit, cost)
            && let Some(cell) = self.core.registry.get(self.execution.worker)
        {
            supervisor::ask_to_stop(self.core, &cell, self.execution, CancelReason::CostLimit);
        }
    }

    fn turn(&self, ask: &Ask) -> Result<(), ExecuteError> {
        turn::next(self.core, self.execution, ask)
    }

    fn hold(&self, pause: Duration, reason: &str) {
        provider::hold(self.core, Some(self.core.clock.now().wall + pause), reason);
    }

    fn held_until(&self) -> Option<DateTime<Utc>> {
        let until_ms = self.core.ready.held_until_ms()?;
        let now = self.core.clock.now();
        let left_ms = u64::try_from(until_ms.saturating_sub(now.boot_ms)).ok().filter(|&left_ms| left_ms > 0)?;
        Some(now.wall + Duration::from_millis(left_ms))
    }

    fn checkpoint(&self, value: &Value) {
        if let Err(error) = self.core.repository().checkpoint_at(&self.execution.claim.lease, value) {
            log::warn!("unit {}: a checkpoint was not stored: {error}", self.execution.claim.unit.id);
        }
    }
}

/// What is kept of a message that cannot be stored.
fn cut_off(message: &Message) -> Message {
    let hash = match &message.raw {
        Some(raw) => Hash::of(raw.as_bytes()),
        None => Hash::of(message.text().as_bytes()),
    };
    Message::new(message.role).truncated_from(Truncation { total_bytes: weight_bytes(message), hash })
}

/// About how much a message takes up.
fn weight_bytes(message: &Message) -> u64 {
    fn of_part(part: &Part) -> usize {
        match part {
            Part::Text { text } | Part::Thinking { text } => text.len(),
            Part::ToolUse { id, name, input } => id.len() + name.len() + of_value(input),
            Part::ToolResult { tool_use_id, content, .. } => {
                tool_use_id.len() + content.iter().map(of_part).sum::<usize>()
            }
            Part::Image { media_type, source } => media_type.len() + source.len(),
            Part::Other { kind, value } => kind.len() + of_value(value),
        }
    }
    /// Counted with a stack of its own: what a model sends may be nested deeper than ours is.
    fn of_value(value: &Value) -> usize {
        let mut total = 0;
        let mut left = vec![value];
        while let Some(value) = left.pop() {
            total += match value {
                Value::String(text) => text.len(),
                Value::Array(items) => {
                    left.extend(items);
                    2
                }
                Value::Object(fields) => {
                    left.extend(fields.values());
                    fields.keys().map(String::len).sum()
                }
                Value::Null | Value::Bool(_) | Value::Number(_) => 8,
            };
        }
        total
    }
    let raw = message.raw.as_ref().map_or(0, |raw| raw.as_bytes().len());
    (raw + message.parts.iter().map(of_part).sum::<usize>()) as u64
}
