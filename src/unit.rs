//! A work unit: one prompt with its payload, from the moment it is accepted to its end.
//!
//! ```text
//!            insert                claim              start
//!   (absent) ──────▶ PENDING ─────────────▶ ASSIGNED ───────▶ PROCESSING ──────▶ COMPLETED
//!                    │ ▲ │ ▲                  │ │ │             │ │ │   complete
//!                    │ │ │ └──────────────────┘ │ └───────┬─────┘ │ │
//!                    │ │ │   retry, release,    │    fail │       │ │
//!                    │ │ │   expire             │         ▼       │ │
//!      queue timeout │ │ └──────── cancel ────┐ │       FAILED    │ │
//!                    │ │                      │ │         ▲       │ │
//!                    ▼ │ requeue              │ └─────────┼───────┘ │ cancel
//!                  FAILED, CANCELLED ◀────────┘           │         ▼
//!                           ▲                          expire   CANCEL_REQUESTED
//!                           └────────── end cancelled, expire ──────┘
//! ```
//!
//! | change | performed by |
//! |---|---|
//! | insert | `Repository::insert`, `Repository::submit` |
//! | claim | `Repository::claim`, `Repository::submit` |
//! | start | `Repository::start` |
//! | complete, retry, fail, end cancelled | `Repository::finish` |
//! | release | `Repository::release` |
//! | expire | `Repository::expire`, and `Repository::claim` when it finds no pending unit |
//! | queue timeout | `Repository::expire` |
//! | cancel | `Repository::cancel` |
//! | requeue | `Repository::requeue` |
//!
//! While a unit is ASSIGNED, PROCESSING or CANCEL_REQUESTED, and only then, somebody
//! holds its lease. COMPLETED is final; FAILED and CANCELLED are until a requeue.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attempt::{Failure, OutputFile, Process};
use crate::chain::Hash;
use crate::conversation::{TooDeep, to_json};
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::money::{Cost, Money, Tokens};
use crate::worker::WorkerId;

/// Where a unit is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum UnitStatus {
    /// Accepted, and waiting to be claimed.
    Pending,
    /// Claimed by a worker that has not begun.
    Assigned,
    /// Being executed.
    Processing,
    /// Being executed by a worker that was asked to stop.
    CancelRequested,
    /// Ended well.
    Completed,
    /// Ended badly, with no attempt left.
    Failed,
    /// Ended because somebody asked for it.
    Cancelled,
}

/// What can happen to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Change {
    /// It is stored for the first time.
    Insert,
    /// A worker gets the right to execute it.
    Claim,
    /// The execution begins.
    Start,
    /// The execution succeeded.
    Complete,
    /// The execution failed and another may follow.
    Retry,
    /// The execution failed for good.
    Fail,
    /// The worker gives it back without having failed.
    Release,
    /// The worker was lost.
    Expire,
    /// The worker was lost, and it was the last attempt.
    ExpireFinally,
    /// It waited longer than its caller allows.
    QueueTimeout,
    /// Somebody no longer wants it.
    Cancel,
    /// The worker that was asked to stop has stopped, or is gone.
    EndCancelled,
    /// Somebody wants it done after all.
    Requeue,
    /// Its contents were removed; the status stays.
    Purge,
    /// A lost attempt reported after all; the status stays.
    LateReport,
}

macro_rules! names {
    ($type:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $type {
            /// Every value, in the order of declaration.
            pub const ALL: &'static [$type] = &[$($type::$variant),+];

            /// The name under which it is stored.
            pub const fn name(self) -> &'static str {
                match self { $($type::$variant => $name),+ }
            }

            /// The value stored under a name.
            pub fn from_name(name: &str) -> Option<$type> {
                match name { $($name => Some($type::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
}
pub(crate) use names;

names!(UnitStatus {
    Pending => "PENDING",
    Assigned => "ASSIGNED",
    Processing => "PROCESSING",
    CancelRequested => "CANCEL_REQUESTED",
    Completed => "COMPLETED",
    Failed => "FAILED",
    Cancelled => "CANCELLED",
});

names!(Change {
    Insert => "INSERT",
    Claim => "CLAIM",
    Start => "START",
    Complete => "COMPLETE",
    Retry => "RETRY",
    Fail => "FAIL",
    Release => "RELEASE",
    Expire => "EXPIRE",
    ExpireFinally => "EXPIRE_FINALLY",
    QueueTimeout => "QUEUE_TIMEOUT",
    Cancel => "CANCEL",
    EndCancelled => "END_CANCELLED",
    Requeue => "REQUEUE",
    Purge => "PURGE",
    LateReport => "LATE_REPORT",
});

impl UnitStatus {
    /// The status after a change; `None` if the change cannot happen now. This is the whole machine.
    pub fn after(self, change: Change) -> Option<UnitStatus> {
        use UnitStatus::{Assigned, CancelRequested, Cancelled, Completed, Failed, Pending, Processing};
        let next = match (self, change) {
            (Pending, Change::Claim) => Assigned,
            (Assigned, Change::Start) => Processing,
            (Processing, Change::Complete) => Completed,
            (Assigned | Processing, Change::Retry | Change::Release | Change::Expire) => Pending,
            (Assigned | Processing, Change::Fail | Change::ExpireFinally) => Failed,
            (Pending, Change::QueueTimeout) => Failed,
            (Pending, Change::Cancel) => Cancelled,
            (Assigned | Processing, Change::Cancel) => CancelRequested,
            (CancelRequested, Change::EndCancelled) => Cancelled,
            (Failed | Cancelled, Change::Requeue) => Pending,
            (Completed | Failed | Cancelled, Change::Purge) => self,
            (_, Change::LateReport) => self,
            _ => return None,
        };
        Some(next)
    }

    /// Whether nothing more happens to it by itself.
    pub const fn is_terminal(self) -> bool {
        matches!(self, UnitStatus::Completed | UnitStatus::Failed | UnitStatus::Cancelled)
    }

    /// Whether somebody holds a lease on it.
    pub const fn is_leased(self) -> bool {
        matches!(self, UnitStatus::Assigned | UnitStatus::Processing | UnitStatus::CancelRequested)
    }
}

/// The key under which a repository keeps a unit; it grows with every insert and so gives the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitKey(pub i64);

/// A unit's name, unique in its job: the caller's, or a generated one that sorts by time.
///
/// ```
/// use workcrew::UnitId;
///
/// assert_eq!(UnitId::new("page-17").unwrap().as_str(), "page-17");
/// assert!(UnitId::new("").is_err());
/// assert!(UnitId::new("line\nbreak").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct UnitId(String);

impl UnitId {
    /// The longest id.
    pub const LIMIT_BYTES: usize = 512;

    /// Checks an id: not empty, not too long, no control characters.
    ///
    /// # Errors
    ///
    /// [`InvalidId`] says which of these it is.
    pub fn new(id: impl Into<String>) -> Result<UnitId, InvalidId> {
        let id = id.into();
        match check_name(&id, UnitId::LIMIT_BYTES) {
            Some(problem) => Err(InvalidId { problem, shown: shortened(&id) }),
            None => Ok(UnitId(id)),
        }
    }

    /// A fresh id that sorts behind those generated before.
    pub fn generate() -> UnitId {
        UnitId(uuid::Uuid::now_v7().to_string())
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What is wrong with a name, if anything.
pub(crate) fn check_name(name: &str, limit_bytes: usize) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty")
    } else if name.len() > limit_bytes {
        Some("is too long")
    } else if name.chars().any(char::is_control) {
        Some("has a control character")
    } else {
        None
    }
}

/// As much of a name as an error message can bear.
pub(crate) fn shortened(name: &str) -> String {
    const SHOWN_CHARS: usize = 60;
    let shown: String = name.chars().take(SHOWN_CHARS).flat_map(char::escape_debug).collect();
    if name.chars().nth(SHOWN_CHARS).is_some() { format!("{shown}…") } else { shown }
}

impl fmt::Display for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl AsRef<str> for UnitId {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<UnitId> for String {
    fn from(id: UnitId) -> String {
        id.0
    }
}

impl TryFrom<String> for UnitId {
    type Error = InvalidId;

    fn try_from(id: String) -> Result<UnitId, InvalidId> {
        UnitId::new(id)
    }
}

/// A text that cannot be an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidId {
    problem: &'static str,
    shown: String,
}

impl fmt::Display for InvalidId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the id `{}` {}", self.shown, self.problem)
    }
}

impl std::error::Error for InvalidId {}

/// How a unit wants to be executed. Everything has a default, and what is not set here the pool decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct UnitOptions {
    /// Units with the same key prefer the same worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_key: Option<String>,
    /// The session that its first attempt carries on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_session: Option<String>,
    /// The directory in which an agent works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_dir: Option<String>,
    /// How many turns an agent may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// How long an attempt may take; the pool's timeout if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How much it may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Money>,
    /// Whether doing it twice does no harm, so that it may be tried again after a crash in any case.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_idempotent: bool,
}

/// A unit that is to be stored.
///
/// ```
/// use std::time::Duration;
/// use workcrew::NewUnit;
///
/// let unit = NewUnit::new("page-17")
///     .prompt("Summarise page 17.")
///     .priority(10)
///     .max_retries(1)
///     .timeout(Duration::from_secs(60));
/// assert_eq!(unit.id, "page-17");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewUnit {
    /// Its name, checked when it is stored (see [`UnitId::new`]).
    pub id: String,
    /// What kind of work it is, for people.
    pub unit_type: Option<String>,
    /// Larger goes first.
    pub priority: i32,
    /// What the template is rendered from, and what the executor gets.
    pub payload: Value,
    /// What is sent, as it is.
    pub prompt: Option<String>,
    /// What is rendered into a prompt, if there is none.
    pub template: Option<String>,
    /// How it wants to be executed.
    pub options: UnitOptions,
    /// How many executions may follow the first.
    pub max_retries: u32,
    /// Not to be claimed earlier.
    pub not_before: Option<DateTime<Utc>>,
    /// How long it may wait to be claimed by the pool that accepted it.
    pub queue_timeout: Option<Duration>,
}

impl NewUnit {
    /// How many executions follow the first unless set.
    pub const DEFAULT_MAX_RETRIES: u32 = 3;

    /// A unit with a name of the caller's.
    pub fn new(id: impl Into<String>) -> NewUnit {
        NewUnit {
            id: id.into(),
            unit_type: None,
            priority: 0,
            payload: Value::Null,
            prompt: None,
            template: None,
            options: UnitOptions::default(),
            max_retries: NewUnit::DEFAULT_MAX_RETRIES,
            not_before: None,
            queue_timeout: None,
        }
    }

    /// A unit with a generated name.
    pub fn generated() -> NewUnit {
        NewUnit::new(UnitId::generate())
    }

    /// What kind of work it is (none).
    pub fn unit_type(mut self, unit_type: impl Into<String>) -> NewUnit {
        self.unit_type = Some(unit_type.into());
        self
    }

    /// Larger goes first (0).
    pub fn priority(mut self, priority: i32) -> NewUnit {
        self.priority = priority;
        self
    }

    /// What the template is rendered from (null).
    pub fn payload(mut self, payload: impl Into<Value>) -> NewUnit {
        self.payload = payload.into();
        self
    }

    /// What is sent, as it is (none: given when it is submitted, or rendered).
    pub fn prompt(mut self, prompt: impl Into<String>) -> NewUnit {
        self.prompt = Some(prompt.into());
        self
    }

    /// What is rendered into a prompt (the job's).
    pub fn template(mut self, template: impl Into<String>) -> NewUnit {
        self.template = Some(template.into());
        self
    }

    /// How many executions may follow the first (3).
    pub fn max_retries(mut self, max_retries: u32) -> NewUnit {
        self.max_retries = max_retries;
        self
    }

    /// Not to be claimed earlier (at once).
    pub fn not_before(mut self, time: DateTime<Utc>) -> NewUnit {
        self.not_before = Some(time);
        self
    }

    /// How long it may wait to be claimed (for ever).
    pub fn queue_timeout(mut self, timeout: Duration) -> NewUnit {
        self.queue_timeout = Some(timeout);
        self
    }

    /// How long an attempt may take (the pool's timeout).
    pub fn timeout(mut self, timeout: Duration) -> NewUnit {
        self.options.timeout = Some(timeout);
        self
    }

    /// How much it may cost (the job's budget).
    pub fn max_cost(mut self, max_cost: Money) -> NewUnit {
        self.options.max_cost = Some(max_cost);
        self
    }

    /// Units with the same key prefer the same worker (none).
    pub fn affinity_key(mut self, key: impl Into<String>) -> NewUnit {
        self.options.affinity_key = Some(key.into());
        self
    }

    /// The session that its first attempt carries on (none).
    pub fn resume_session(mut self, session: impl Into<String>) -> NewUnit {
        self.options.resume_session = Some(session.into());
        self
    }

    /// The directory in which an agent works (the pool's).
    pub fn workspace_dir(mut self, directory: impl Into<String>) -> NewUnit {
        self.options.workspace_dir = Some(directory.into());
        self
    }

    /// How many turns an agent may take (the executor's limit).
    pub fn max_iterations(mut self, turns: u32) -> NewUnit {
        self.options.max_iterations = Some(turns);
        self
    }

    /// Doing it twice does no harm (it might).
    pub fn idempotent(mut self) -> NewUnit {
        self.options.is_idempotent = true;
        self
    }
}

/// The parts of a new unit that are stored as bytes, with their hashes.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) payload: Vec<u8>,
    pub(crate) options: Vec<u8>,
    /// Over everything that makes two units of the same id the same, but for the prompt.
    pub(crate) content_hash: Hash,
    pub(crate) prompt_hash: Option<Hash>,
    /// Over all of it with the id, which the journal keeps.
    pub(crate) digest: Hash,
}

impl Inputs {
    pub(crate) fn of(unit: &NewUnit) -> Result<Inputs, TooDeep> {
        let payload = to_json(&unit.payload)?;
        let options = to_json(&unit.options)?;
        let (unit_type, template) = (unit.unit_type.as_deref(), unit.template.as_deref());
        let content_hash = content_hash(unit_type, &payload, template, &options);
        let prompt_hash = unit.prompt.as_deref().map(prompt_hash);
        let digest = inputs_digest(&unit.id, unit_type, template, &options, &content_hash, prompt_hash.as_ref());
        Ok(Inputs { payload, options, content_hash, prompt_hash, digest })
    }
}

/// The hash of what a unit is, apart from its prompt, its order and its limits.
pub(crate) fn content_hash(unit_type: Option<&str>, payload: &[u8], template: Option<&str>, options: &[u8]) -> Hash {
    Hash::builder("unit content")
        .optional_text(unit_type)
        .hash(&Hash::of(payload))
        .optional_text(template)
        .bytes(options)
        .finish()
}

pub(crate) fn prompt_hash(prompt: &str) -> Hash {
    Hash::of(prompt.as_bytes())
}

/// The hash of what a unit was given, which can be checked after a purge of its payload and prompt too.
pub(crate) fn inputs_digest(
    id: &str,
    unit_type: Option<&str>,
    template: Option<&str>,
    options: &[u8],
    content: &Hash,
    prompt: Option<&Hash>,
) -> Hash {
    Hash::builder("unit inputs")
        .text(id)
        .optional_text(unit_type)
        .optional_text(template)
        .bytes(options)
        .hash(content)
        .optional_hash(prompt)
        .finish()
}

/// The record of a unit, with what its last attempt left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkUnit {
    /// The repository's key, which gives the order.
    pub key: UnitKey,
    /// The job it belongs to.
    pub job_id: JobId,
    /// Its name in the job.
    pub id: UnitId,
    /// What kind of work it is.
    pub unit_type: Option<String>,
    /// Where it is in its life.
    pub status: UnitStatus,
    /// Larger goes first.
    pub priority: i32,
    /// What the template is rendered from; null after a purge.
    pub payload: Value,
    /// What is sent as it is; `None` after a purge.
    pub prompt: Option<String>,
    /// What is rendered into a prompt.
    pub template: Option<String>,
    /// How it wants to be executed.
    pub options: UnitOptions,
    /// How many executions may follow the first.
    pub max_retries: u32,
    /// How many attempts were made, counted or not.
    pub attempt_count: u32,
    /// How many of them count against the limit since the last requeue.
    pub attempts_used: u32,
    /// The number that proves the right to write.
    pub fence: i64,
    /// The pool that accepted it and will claim it.
    pub accepted_by: Option<OwnerId>,
    /// Not to be claimed earlier; `None` once a claim found that the time has come.
    pub not_before: Option<DateTime<Utc>>,
    /// When it was stored.
    pub created_at: DateTime<Utc>,
    /// When it was last claimed.
    pub assigned_at: Option<DateTime<Utc>>,
    /// When its last execution began.
    pub started_at: Option<DateTime<Utc>>,
    /// When its last execution first said something.
    pub first_message_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub completed_at: Option<DateTime<Utc>>,
    /// When its contents were removed.
    pub purged_at: Option<DateTime<Utc>>,
    /// The worker of its last attempt.
    pub worker_id: Option<WorkerId>,
    /// How long its last execution took.
    pub execution_time: Option<Duration>,
    /// What was really sent by its last attempt.
    pub rendered_prompt: Option<String>,
    /// What came out of it.
    pub result: Option<Value>,
    /// The answer as text.
    pub output: Option<String>,
    /// Files that it made.
    pub output_files: Vec<OutputFile>,
    /// Why it is FAILED.
    pub failure: Option<Failure>,
    /// The provider's session of its last attempt.
    pub session_id: Option<String>,
    /// The child process of its last attempt.
    pub process: Option<Process>,
    /// What all its attempts used.
    pub tokens: Tokens,
    /// What all its attempts cost.
    pub cost: Cost,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn fourteen_transitions_are_allowed_and_no_other() {
        let mut pairs = BTreeSet::new();
        for &from in UnitStatus::ALL {
            for &change in Change::ALL {
                if let Some(to) = from.after(change).filter(|&to| to != from) {
                    pairs.insert((from, to));
                }
            }
        }
        assert_eq!(pairs.len(), 14, "{pairs:?}");
    }

    #[test]
    fn what_is_completed_stays_completed() {
        for &change in Change::ALL {
            assert!(matches!(UnitStatus::Completed.after(change), None | Some(UnitStatus::Completed)));
        }
    }

    #[test]
    fn a_requested_cancel_ends_only_in_cancelled() {
        for &change in Change::ALL {
            let next = UnitStatus::CancelRequested.after(change);
            assert!(matches!(next, None | Some(UnitStatus::Cancelled | UnitStatus::CancelRequested)), "{change}");
        }
    }

    #[test]
    fn a_status_is_leased_terminal_or_pending() {
        for &status in UnitStatus::ALL {
            let claims = [status.is_leased(), status.is_terminal(), status == UnitStatus::Pending];
            assert_eq!(claims.into_iter().filter(|&claim| claim).count(), 1, "{status}");
        }
    }

    #[test]
    fn names_read_back_and_equal_their_serialised_form() {
        for &status in UnitStatus::ALL {
            assert_eq!(UnitStatus::from_name(status.name()), Some(status));
            assert_eq!(serde_json::to_value(status).unwrap(), status.name());
        }
        for &change in Change::ALL {
            assert_eq!(Change::from_name(change.name()), Some(change));
            assert_eq!(serde_json::to_value(change).unwrap(), change.name());
        }
    }

    #[test]
    fn generated_ids_sort_by_time() {
        let ids: Vec<UnitId> = (0..100).map(|_| UnitId::generate()).collect();
        assert!(ids.is_sorted());
    }

    #[test]
    fn odd_ids_are_taken_or_refused_with_a_short_reason() {
        for id in ["../x", "'; DROP TABLE work_units; --", "\"", "ü", " "] {
            assert!(UnitId::new(id).is_ok(), "{id}");
        }
        let long = "x".repeat(1_000_000);
        for (id, reason) in
            [("", "the id `` is empty"), ("a\0b", "the id `a\\0b` has a control character"), (&*long, "is too long")]
        {
            let message = UnitId::new(id).unwrap_err().to_string();
            assert!(message.ends_with(reason), "{message}");
            assert!(message.len() < 300);
        }
    }
}
