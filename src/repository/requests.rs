//! What the verbs of a repository take and answer.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::attempt::Provenance;
use crate::job::JobId;
use crate::lease::{Claim, OwnerId};
use crate::limits::Expectation;
use crate::unit::{Change, UnitId, UnitKey, UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// Where a unit that is inserted belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intake {
    /// It waits for whoever pulls the job's units. One that is there stays as it is.
    Open,
    /// It waits for the pool that accepted it, also if it was there and nobody has begun with it.
    AcceptedBy(OwnerId),
}

/// What became of a unit that was to be inserted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Insertion {
    /// It is new.
    Inserted(UnitKey),
    /// It was there with the same content. If it was PENDING, whoever [accepts](Intake::AcceptedBy) it has it now;
    /// otherwise nothing of it changed.
    AlreadyExists(UnitKey),
    /// The id was there with another content. Nothing of it changed.
    Conflict(UnitKey),
}

/// A worker that can take one unit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Slot {
    /// The worker.
    pub worker_id: WorkerId,
    /// How many units it can work on at a time.
    pub capacity: u32,
    /// The unit it is for; `None` takes whichever is next. Only a [claim](super::Repository::claim) asks for it.
    pub unit: Option<UnitKey>,
}

impl Slot {
    /// A worker that takes one unit at a time.
    pub fn new(worker_id: WorkerId) -> Slot {
        Slot::with_capacity(worker_id, 1)
    }

    /// A worker that takes several.
    pub fn with_capacity(worker_id: WorkerId, capacity: u32) -> Slot {
        Slot { worker_id, capacity, unit: None }
    }

    /// The same worker for this unit and no other.
    pub fn for_unit(mut self, unit: UnitKey) -> Slot {
        self.unit = Some(unit);
        self
    }
}

/// For whom units are claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claimant {
    /// Who will hold the leases.
    pub owner: OwnerId,
    /// How long a lease lasts unless renewed.
    pub ttl: Duration,
    /// Names this request, so that its answer can be found if it was lost. Fresh for each request.
    pub token: i64,
    /// With what units that have a prompt of their own are started as they are claimed; `None` starts nothing.
    pub starting: Option<Provenance>,
    /// What it expects attempts to cost, where a budget counts.
    pub expectation: Expectation,
}

impl Claimant {
    /// A claimant with a fresh token that starts nothing.
    pub fn new(owner: OwnerId, ttl: Duration) -> Claimant {
        let (token, _) = uuid::Uuid::new_v4().as_u64_pair();
        Claimant { owner, ttl, token: token.cast_signed(), starting: None, expectation: Expectation::default() }
    }

    /// Starts what it claims in the same step, unless its prompt must be rendered first.
    pub fn starting(mut self, provenance: Provenance) -> Claimant {
        self.starting = Some(provenance);
        self
    }

    /// Expects attempts to cost so much, where a budget counts.
    pub fn expecting(mut self, expectation: Expectation) -> Claimant {
        self.expectation = expectation;
        self
    }
}

/// Which pending units may be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Only those that the owner accepted.
    Accepted,
    /// Those, and the ones that nobody accepted and that have a prompt or a template.
    Pending,
    /// The same for slots that are for a unit; the others get only what nobody accepted. What the owner holds itself is not taken back,
    /// though its lease may have run out.
    Open,
}

impl Scope {
    /// Whether anything but what the owner accepted may be claimed.
    pub(crate) fn is_open(self) -> bool {
        self != Scope::Accepted
    }

    /// Whether a lease of this holder may be taken back for a claimant.
    pub(crate) fn takes_back(self, holder: OwnerId, claimant: OwnerId) -> bool {
        match self {
            Scope::Accepted => false,
            Scope::Pending => true,
            Scope::Open => holder != claimant,
        }
    }
}

/// A request for work.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClaimRequest {
    /// Of which job.
    pub job_id: JobId,
    /// For whom.
    pub claimant: Claimant,
    /// Which units.
    pub scope: Scope,
    /// One for each unit that can be taken. A worker that takes several may have several.
    pub slots: Vec<Slot>,
}

impl ClaimRequest {
    /// Asks for as many of a job's units as there are slots.
    pub fn new(job_id: JobId, claimant: Claimant, scope: Scope, slots: Vec<Slot>) -> ClaimRequest {
        ClaimRequest { job_id, claimant, scope, slots }
    }
}

/// What of a job is left to do, as an owner sees it that pulls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Backlog {
    /// How many units could be claimed now that nobody accepted, counted up to a limit.
    pub due: usize,
    /// Whether other owners have units of the job, which they execute or which wait for them. If those owners die, the units come back.
    pub is_with_others: bool,
    /// When the next of the units falls due that nobody accepted and whose time has not come.
    pub next_due: Option<DateTime<Utc>>,
}

/// What became of a submission.
#[derive(Clone, Debug, PartialEq)]
pub enum Submitted {
    /// It is claimed for the caller.
    Claimed(Box<Claim>),
    /// It is stored but not due; it will be claimed when it is.
    Waiting(Box<WorkUnit>),
    /// Somebody is working on it.
    Running(Box<WorkUnit>),
    /// It was finished before.
    Finished(Box<WorkUnit>),
}

/// What the end of an attempt did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Closed {
    /// The unit's status now.
    pub status: UnitStatus,
    /// What happened to the unit.
    pub change: Change,
    /// When it may be claimed again, if it may.
    pub not_before: Option<DateTime<Utc>>,
}

/// What a sweep did to a unit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Swept {
    /// The unit's job.
    pub job_id: JobId,
    /// The unit's key.
    pub unit: UnitKey,
    /// The unit's name.
    pub unit_id: UnitId,
    /// The attempt that was lost; `None` if it was waiting.
    pub attempt_number: Option<u32>,
    /// What happened.
    pub change: Change,
    /// The unit's status now.
    pub status: UnitStatus,
}

/// What became of a wish to cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CancelAnswer {
    /// It was waiting, and is CANCELLED.
    Cancelled,
    /// It is being executed; its worker is asked to stop.
    Requested,
    /// Its worker was asked before.
    AlreadyRequested,
    /// It had ended. Nothing changed.
    AlreadyEnded(UnitStatus),
}

/// What those hear who [listen](super::Repository::listen) to a job.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// A unit may have come to wait for anybody: it is new, requeued, taken back, or let go.
    Queued,
    /// A unit has ended with an attempt of this owner.
    Ended(OwnerId),
    /// Somebody has cancelled this unit: it has ended if it waited, and is to be stopped if it is being executed.
    Cancelled {
        /// The unit.
        unit: UnitKey,
        /// Its name.
        id: String,
    },
}

/// A person, or a program on its behalf, and why it interferes.
///
/// ```
/// use workcrew::repository::By;
///
/// let by = By::new("ada", "the input was wrong");
/// assert_eq!(by.reason.as_deref(), Some("the input was wrong"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct By {
    /// Who.
    pub actor: String,
    /// Why.
    pub reason: Option<String>,
}

impl By {
    /// Somebody, for a reason.
    pub fn new(actor: impl Into<String>, reason: impl Into<String>) -> By {
        By { actor: actor.into(), reason: Some(reason.into()) }
    }

    /// Somebody who gives no reason.
    pub fn whom(actor: impl Into<String>) -> By {
        By { actor: actor.into(), reason: None }
    }
}

impl From<OwnerId> for By {
    fn from(owner: OwnerId) -> By {
        By::whom(owner.to_string())
    }
}

/// What became of the units that were to be requeued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Requeued {
    /// Units that wait again.
    pub units: u64,
    /// Units whose contents are gone, so that nothing can be done again.
    pub purged: u64,
    /// Units that somebody else brought back, or purged, before it was their turn.
    pub changed: u64,
}

impl Requeued {
    /// Units that were found and left as they are.
    pub fn skipped(&self) -> u64 {
        self.purged + self.changed
    }
}

/// What a purge removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Purged {
    /// Units whose contents are gone.
    pub units: u64,
    /// Messages whose contents are gone.
    pub messages: u64,
    /// Whether they may still be in the log of the file, because somebody reads that: call again, later, and it is emptied.
    pub is_in_log: bool,
    /// Whether their words are still in the search index, because that cannot be written now; the next search takes them out.
    pub is_in_index: bool,
}
