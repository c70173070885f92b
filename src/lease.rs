//! A lease: the right to write a unit until a time, and the number that proves it.
//!
//! Safety rests on the fence, never on a clock. The fence of a unit grows with every
//! claim and with every expiry; a write is accepted only with the fence of the moment. So a
//! holder that was stopped for an hour can do no harm when it wakes: its number is old.
//! The time only says when others may stop waiting for it.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attempt::AttemptKey;
use crate::job::JobId;
use crate::process::Process;
use crate::unit::{UnitId, UnitKey, WorkUnit};
use crate::worker::WorkerId;

/// One pool instance in one process, as the repository knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OwnerId(pub i64);

impl fmt::Display for OwnerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "owner {}", self.0)
    }
}

/// An owner that is to be registered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewOwner {
    /// The process that it lives in.
    pub process: Process,
    /// Fresh for every instance, so that registering twice gives one owner.
    pub instance: String,
    /// What people call it.
    pub label: String,
    /// How long its leases last. If it is silent for longer, nobody need wait for it.
    pub lease: Duration,
}

impl NewOwner {
    /// A fresh owner in a process, whose leases last a minute.
    pub fn new(process: Process, label: impl Into<String>) -> NewOwner {
        let instance = uuid::Uuid::new_v4().to_string();
        NewOwner { process, instance, label: label.into(), lease: Duration::from_secs(60) }
    }

    /// Says how long its leases last (a minute).
    pub fn lease(mut self, lease: Duration) -> NewOwner {
        self.lease = lease;
        self
    }
}

/// The record of an owner.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Owner {
    /// The repository's name for it.
    pub id: OwnerId,
    /// The process that it lives in.
    pub process: Process,
    /// Fresh for every instance.
    pub instance: String,
    /// What people call it.
    pub label: String,
    /// When it was registered.
    pub registered_at: DateTime<Utc>,
    /// When it last renewed its leases.
    pub heartbeat_at: DateTime<Utc>,
    /// How long its leases last, as it said last.
    pub lease: Duration,
    /// When it left, or was found dead.
    pub ended_at: Option<DateTime<Utc>>,
}

/// The right to write one unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Lease {
    /// The job of the unit.
    pub job_id: JobId,
    /// The unit's name.
    pub unit_id: UnitId,
    /// The unit's key.
    pub unit: UnitKey,
    /// The attempt that this lease is for.
    pub attempt_number: u32,
    /// What every write must carry.
    pub fence: i64,
    /// Who holds it.
    pub owner: OwnerId,
    /// The worker that executes the attempt.
    pub worker_id: WorkerId,
    /// When it ends unless renewed, in milliseconds of the repository's clock for leases.
    pub until_ms: i64,
}

impl Lease {
    /// The key of the attempt.
    pub fn attempt(&self) -> AttemptKey {
        AttemptKey { unit: self.unit, number: self.attempt_number }
    }
}

/// A unit that was claimed, with all that its execution needs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Claim {
    /// The right to write it.
    pub lease: Lease,
    /// The unit.
    pub unit: WorkUnit,
    /// What an earlier attempt saved last.
    pub checkpoint: Option<Value>,
    /// The session to carry on: an earlier attempt's, or the one that the unit names.
    pub resume_session: Option<String>,
    /// The child processes of earlier attempts, in their order. Those of attempts that were lost may still run; those that
    /// serve several attempts are among them only then.
    pub earlier_processes: Vec<Process>,
}

/// A lease that was renewed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Held {
    /// The unit.
    pub unit: UnitKey,
    /// The fence under which it is held.
    pub fence: i64,
    /// Whether somebody asked to cancel it.
    pub is_cancel_requested: bool,
}
