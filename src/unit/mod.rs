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
//! | insert, add prompt | `Repository::insert`, `Repository::submit` |
//! | claim | `Repository::claim`, `Repository::submit` |
//! | start | `Repository::start` |
//! | complete, retry, fail, end cancelled | `Repository::finish` |
//! | release | `Repository::release` |
//! | expire | `Repository::expire`, and `Repository::claim` when it finds no pending unit |
//! | queue timeout | `Repository::expire` |
//! | cancel | `Repository::cancel` |
//! | requeue | `Repository::requeue`, `Repository::requeue_all` |
//!
//! While a unit is ASSIGNED, PROCESSING or CANCEL_REQUESTED, and only then, somebody
//! holds its lease. COMPLETED is final; FAILED and CANCELLED are until a requeue.

mod affinity;
mod id;
mod new;

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use self::affinity::Affinity;
pub use self::id::{InvalidId, UnitId};
pub(crate) use self::id::{check_name, shortened};
pub(crate) use self::new::{Inputs, content_hash, inputs_digest, prompt_hash, unit_digest};
pub use self::new::{NewUnit, UnitOptions};
use crate::attempt::{Failure, OutputFile, Process};
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::money::{Cost, Tokens};
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
    /// It gets the prompt that it was inserted without; the status stays.
    AddPrompt,
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
    AddPrompt => "ADD_PROMPT",
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
            (Pending, Change::AddPrompt) => Pending,
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
    /// The pool that accepted it and will claim it; or that was to, if it ended before.
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
}
