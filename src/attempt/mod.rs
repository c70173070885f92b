//! An attempt: one execution of a unit. A unit has one or more, and each is kept for ever.
//!
//! ```text
//!   claim ──▶ (open) ── finish ──▶ COMPLETED, FAILED, TIMED_OUT, CANCELLED
//!                  ├── release ──▶ RELEASED
//!                  └── expire ───▶ LOST
//! ```
//!
//! An attempt ends exactly once. What its executor reports after it was given up stays on
//! the attempt as a late report; the unit has moved on.

mod closing;
mod result;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::closing::RELEASE_LIMIT;
pub(crate) use self::closing::{Closing, Standing};
pub use self::result::{AttemptResult, ResultHashes};
use crate::chain::{Hash, HashBuilder};
use crate::conversation::to_json;
use crate::lease::OwnerId;
use crate::money::{Charge, Cost, Money};
pub use crate::process::Process;
use crate::unit::{UnitKey, names};
use crate::worker::WorkerId;

/// Names an attempt: the how-manieth of which unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptKey {
    /// The unit.
    pub unit: UnitKey,
    /// Counted from 1.
    pub number: u32,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Outcome {
    /// It did what was asked.
    Completed,
    /// It failed.
    Failed,
    /// It took too long.
    TimedOut,
    /// Its worker vanished.
    Lost,
    /// It stopped because it was asked to.
    Cancelled,
    /// It was given back, through no fault of its own.
    Released,
}

names!(Outcome {
    Completed => "COMPLETED",
    Failed => "FAILED",
    TimedOut => "TIMED_OUT",
    Lost => "LOST",
    Cancelled => "CANCELLED",
    Released => "RELEASED",
});

/// What kind of failure it was: a short name such as `timed_out`.
///
/// The kinds that workcrew itself knows are constants; executors add their own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FailureKind(Cow<'static, str>);

impl FailureKind {
    /// The executor reported an error.
    pub const EXECUTOR: FailureKind = FailureKind(Cow::Borrowed("executor"));
    /// The executor panicked.
    pub const PANIC: FailureKind = FailureKind(Cow::Borrowed("panic"));
    /// It took longer than allowed.
    pub const TIMED_OUT: FailureKind = FailureKind(Cow::Borrowed("timed_out"));
    /// Its worker vanished too often.
    pub const LOST: FailureKind = FailureKind(Cow::Borrowed("lost"));
    /// It was given back too often.
    pub const RELEASED: FailureKind = FailureKind(Cow::Borrowed("released"));
    /// It waited in the queue longer than allowed.
    pub const QUEUE_TIMEOUT: FailureKind = FailureKind(Cow::Borrowed("queue_timeout"));
    /// The prompt could not be made.
    pub const PROMPT: FailureKind = FailureKind(Cow::Borrowed("prompt"));
    /// It said more than a conversation may hold.
    pub const CONVERSATION_LIMIT: FailureKind = FailureKind(Cow::Borrowed("conversation_limit"));
    /// It has cost as much as it may.
    pub const COST_LIMIT: FailureKind = FailureKind(Cow::Borrowed("cost_limit"));

    /// A kind of one's own.
    pub fn new(name: impl Into<Cow<'static, str>>) -> FailureKind {
        FailureKind(name.into())
    }

    /// Its name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// Why something failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of failure it was.
    pub kind: FailureKind,
    /// What happened, for people; empty after a purge.
    pub message: String,
}

impl Failure {
    /// A failure with its kind and what happened.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        Failure { kind, message: message.into() }
    }

    /// What proves the message once it was purged.
    pub(crate) fn message_hash(&self) -> Hash {
        Hash::of(self.message.as_bytes())
    }

    /// The failure once its message was purged: it may have quoted anything.
    pub(crate) fn without_message(&self) -> Failure {
        Failure { kind: self.kind.clone(), message: String::new() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &*self.message {
            "" => self.kind.fmt(f),
            message => write!(f, "{}: {message}", self.kind),
        }
    }
}

/// A file that an attempt made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputFile {
    /// Where it is, relative to the workspace.
    pub path: String,
    /// How long it is.
    pub size_bytes: u64,
    /// The hash of its content.
    pub hash: Hash,
}

/// What an attempt was executed with.
///
/// Its JSON is hashed: a field that is added later must be left out where it is not set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Provenance {
    /// The executor.
    pub executor: String,
    /// The version of the program behind it.
    pub program_version: Option<String>,
    /// Its arguments, without secrets.
    pub arguments: Vec<String>,
    /// The model that was asked for.
    pub model: Option<String>,
    /// The version of this crate.
    pub crate_version: String,
}

impl Provenance {
    /// Executed by an executor of this name, with this version of the crate.
    pub fn of(executor: impl Into<String>) -> Provenance {
        Provenance {
            executor: executor.into(),
            crate_version: env!("CARGO_PKG_VERSION").to_owned(),
            ..Provenance::default()
        }
    }

    /// The version of the program behind it.
    pub fn program_version(mut self, version: impl Into<String>) -> Provenance {
        self.program_version = Some(version.into());
        self
    }

    /// One of its arguments, without secrets.
    pub fn argument(mut self, argument: impl Into<String>) -> Provenance {
        self.arguments.push(argument.into());
        self
    }

    /// The model that was asked for.
    pub fn model(mut self, model: impl Into<String>) -> Provenance {
        self.model = Some(model.into());
        self
    }
}

/// What is recorded when an execution begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Beginning {
    /// What is really sent; `None` if it is the unit's prompt as it is.
    pub rendered_prompt: Option<String>,
    /// What it is executed with.
    pub provenance: Option<Provenance>,
}

impl Beginning {
    /// Keeps what is really sent.
    pub fn rendered_prompt(mut self, prompt: impl Into<String>) -> Beginning {
        self.rendered_prompt = Some(prompt.into());
        self
    }

    /// Keeps what it is executed with.
    pub fn provenance(mut self, provenance: Provenance) -> Beginning {
        self.provenance = Some(provenance);
        self
    }

    pub(crate) fn digest(&self) -> Hash {
        let rendered_prompt = self.rendered_prompt.as_deref().map(|prompt| Hash::of(prompt.as_bytes()));
        beginning_digest(rendered_prompt.as_ref(), self.provenance.as_ref())
    }
}

/// The hash of what is sent and with what, which the journal keeps from the start on.
pub(crate) fn beginning_digest(rendered_prompt: Option<&Hash>, provenance: Option<&Provenance>) -> Hash {
    let provenance = provenance.map(|provenance| to_json(provenance).expect("provenance is flat"));
    Hash::builder("beginning").optional_hash(rendered_prompt).optional(provenance.as_deref()).finish()
}

/// What becomes known while an attempt runs. What is not set stays as it was.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Progress {
    /// The provider's session.
    pub session_id: Option<String>,
    /// The child process.
    pub process: Option<Process>,
    /// What was used so far, one line per model.
    pub charges: Vec<Charge>,
    /// What keeps it from going on. It stays with the attempt if that is given back; any other end says for itself why it came.
    pub failure: Option<Failure>,
    /// That it was not executed after all, though it counts as started: its worker has not begun with it, and ends it so.
    pub is_unexecuted: bool,
}

impl Progress {
    /// The provider's session became known.
    pub fn session(mut self, session_id: impl Into<String>) -> Progress {
        self.session_id = Some(session_id.into());
        self
    }

    /// A child process was started.
    pub fn process(mut self, process: Process) -> Progress {
        self.process = Some(process);
        self
    }

    /// So much was used so far.
    pub fn charge(mut self, charge: Charge) -> Progress {
        self.charges.push(charge);
        self
    }

    /// It cannot go on, for which this is why.
    pub fn failure(mut self, failure: Failure) -> Progress {
        self.failure = Some(failure);
        self
    }

    /// It was not executed after all, and has cost nothing.
    pub fn unexecuted(mut self) -> Progress {
        self.is_unexecuted = true;
        self
    }
}

/// What shall happen to the unit of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Next {
    /// Another attempt after a pause, if the unit has one left.
    Retry {
        /// The pause.
        after: Duration,
    },
    /// Nothing: it is failed.
    GiveUp,
}

/// How an executor's work ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ending {
    /// It did what was asked.
    Completed,
    /// It failed.
    Failed {
        /// Why.
        failure: Failure,
        /// What then.
        next: Next,
    },
    /// It took too long.
    TimedOut {
        /// Which limit, for people.
        failure: Failure,
        /// What then.
        next: Next,
    },
    /// It stopped because it was asked to.
    Cancelled,
}

impl Ending {
    /// How the attempt ended.
    pub fn outcome(&self) -> Outcome {
        match self {
            Ending::Completed => Outcome::Completed,
            Ending::Failed { .. } => Outcome::Failed,
            Ending::TimedOut { .. } => Outcome::TimedOut,
            Ending::Cancelled => Outcome::Cancelled,
        }
    }

    /// Why it failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Ending::Failed { failure, .. } | Ending::TimedOut { failure, .. } => Some(failure),
            Ending::Completed | Ending::Cancelled => None,
        }
    }
}

/// All that is recorded when an attempt ends.
///
/// ```
/// use workcrew::AttemptReport;
/// use serde_json::json;
///
/// let report = AttemptReport::completed().output("Paris").result(json!({ "capital": "Paris" }));
/// assert_eq!(report.output.as_deref(), Some("Paris"));
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptReport {
    /// How it ended.
    pub ending: Ending,
    /// What came out of it.
    pub result: Option<Value>,
    /// The answer as text.
    pub output: Option<String>,
    /// Files that it made.
    pub output_files: Vec<OutputFile>,
    /// The provider's session, if it was not recorded before.
    pub session_id: Option<String>,
    /// What was used, one line per model, replacing what was recorded for the model before.
    pub charges: Vec<Charge>,
    /// Messages that could not be stored.
    pub messages_lost: u32,
    /// Whose answer it is, if it is [another's](crate::repository::Shared::Answered).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_of: Option<AttemptKey>,
}

impl AttemptReport {
    /// An attempt that ended in some way.
    pub fn new(ending: Ending) -> AttemptReport {
        AttemptReport {
            ending,
            result: None,
            output: None,
            output_files: Vec::new(),
            session_id: None,
            charges: Vec::new(),
            messages_lost: 0,
            answer_of: None,
        }
    }

    /// An attempt that did what was asked.
    pub fn completed() -> AttemptReport {
        AttemptReport::new(Ending::Completed)
    }

    /// An attempt that failed.
    pub fn failed(failure: Failure, next: Next) -> AttemptReport {
        AttemptReport::new(Ending::Failed { failure, next })
    }

    /// An attempt that took too long.
    pub fn timed_out(failure: Failure, next: Next) -> AttemptReport {
        AttemptReport::new(Ending::TimedOut { failure, next })
    }

    /// An attempt that stopped because it was asked to.
    pub fn cancelled() -> AttemptReport {
        AttemptReport::new(Ending::Cancelled)
    }

    /// What came out of it.
    pub fn result(mut self, result: impl Into<Value>) -> AttemptReport {
        self.result = Some(result.into());
        self
    }

    /// The answer as text.
    pub fn output(mut self, output: impl Into<String>) -> AttemptReport {
        self.output = Some(output.into());
        self
    }

    /// A file that it made.
    pub fn output_file(mut self, file: OutputFile) -> AttemptReport {
        self.output_files.push(file);
        self
    }

    /// The provider's session.
    pub fn session(mut self, session_id: impl Into<String>) -> AttemptReport {
        self.session_id = Some(session_id.into());
        self
    }

    /// What was used of a model.
    pub fn charge(mut self, charge: Charge) -> AttemptReport {
        self.charges.push(charge);
        self
    }

    /// The answer is another attempt's.
    pub fn answer_of(mut self, attempt: AttemptKey) -> AttemptReport {
        self.answer_of = Some(attempt);
        self
    }
}

/// The record of an attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Which attempt of which unit.
    pub key: AttemptKey,
    /// The fence under which it may write.
    pub fence: i64,
    /// Who executes it.
    pub owner: OwnerId,
    /// On which worker.
    pub worker_id: WorkerId,
    /// When it was claimed.
    pub assigned_at: DateTime<Utc>,
    /// When the execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How it ended; `None` while it is open.
    pub outcome: Option<Outcome>,
    /// Whether it counts against the unit's limit.
    pub is_counted: bool,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// The provider's session.
    pub session_id: Option<String>,
    /// The child process.
    pub process: Option<Process>,
    /// What it was executed with.
    pub provenance: Option<Provenance>,
    /// How many messages its conversation has; set when it ends.
    pub message_count: Option<u32>,
    /// The last link of its conversation; set when it ends.
    pub head: Option<Hash>,
    /// How many messages could not be stored.
    pub messages_lost: u32,
    /// What it was expected to cost, where a [budget](crate::limits) counts: so much was reserved while it was open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<Money>,
    /// Whose answer it has, if it was not executed itself because [the same work](crate::same_work) was done already.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer_of: Option<AttemptKey>,
}

impl Attempt {
    /// An attempt that was just claimed.
    pub(crate) fn claimed(
        key: AttemptKey,
        fence: i64,
        owner: OwnerId,
        worker_id: WorkerId,
        assigned_at: DateTime<Utc>,
    ) -> Attempt {
        Attempt {
            key,
            fence,
            owner,
            worker_id,
            assigned_at,
            started_at: None,
            ended_at: None,
            outcome: None,
            is_counted: false,
            failure: None,
            session_id: None,
            process: None,
            provenance: None,
            message_count: None,
            head: None,
            messages_lost: 0,
            expected: None,
            answer_of: None,
        }
    }

    /// How long the execution took.
    pub fn execution_time(&self) -> Option<Duration> {
        execution_time(self.started_at, self.ended_at)
    }

    /// What it cost, by its bill. An execution that left none has cost nobody knows what, not nothing.
    pub fn cost(&self, charges: &[Charge]) -> Cost {
        if charges.is_empty() && self.was_executed() { Cost::UNKNOWN } else { charges.iter().map(Charge::cost).sum() }
    }

    /// Whether it was executed and is over. What is still executed may still tell what it costs.
    pub(crate) fn was_executed(&self) -> bool {
        self.started_at.is_some() && self.outcome.is_some()
    }

    /// Every field of the record but the conversation's. What happened, for people, goes in as its hash: it may quote anything.
    fn hashed(&self, failure_message: Option<&Hash>) -> HashBuilder {
        let process = self.process.as_ref().map(|process| to_json(process).expect("a process is flat"));
        let provenance = self.provenance.as_ref().map(|provenance| to_json(provenance).expect("provenance is flat"));
        let hashed = Hash::builder("attempt")
            .number(self.fence)
            .number(self.owner.0)
            .text(self.worker_id.as_str())
            .number(self.assigned_at.timestamp_millis())
            .optional_number(self.started_at.map(|time| time.timestamp_millis()))
            .optional_number(self.ended_at.map(|time| time.timestamp_millis()))
            .optional_text(self.outcome.map(Outcome::name))
            .number(i64::from(self.is_counted))
            .optional_text(self.failure.as_ref().map(|failure| failure.kind.as_str()))
            .optional_hash(failure_message)
            .optional_text(self.session_id.as_deref())
            .optional(process.as_deref())
            .optional(provenance.as_deref())
            .number(i64::from(self.messages_lost));
        // What an attempt has not is left out, so that records of before there was such a thing have the hashes that they always had.
        let hashed = match self.expected {
            None => hashed,
            Some(expected) => hashed.text("expected").number(expected.nanos()),
        };
        match self.answer_of {
            None => hashed,
            Some(AttemptKey { unit, number }) => hashed.text("answer of").number(unit.0).number(i64::from(number)),
        }
    }
}

/// From start to end; nothing if the calendar was set back in between.
pub(crate) fn execution_time(started: Option<DateTime<Utc>>, ended: Option<DateTime<Utc>>) -> Option<Duration> {
    Some((ended? - started?).to_std().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_names_read_back() {
        for &outcome in Outcome::ALL {
            assert_eq!(Outcome::from_name(outcome.name()), Some(outcome));
            assert_eq!(serde_json::to_value(outcome).unwrap(), outcome.name());
        }
    }
}
