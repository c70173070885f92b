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
use crate::money::Money;
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
    /// The name of the machine, for people.
    #[serde(default)]
    pub host: Option<String>,
    /// How much all that it executes may cost.
    #[serde(default)]
    pub budget: Option<Money>,
}

impl NewOwner {
    /// A fresh owner in a process of this machine, whose leases last a minute.
    pub fn new(process: Process, label: impl Into<String>) -> NewOwner {
        let instance = uuid::Uuid::new_v4().to_string();
        let host = crate::process::host_name();
        NewOwner { process, instance, label: label.into(), lease: Duration::from_secs(60), host, budget: None }
    }

    /// Says how long its leases last (a minute).
    pub fn lease(mut self, lease: Duration) -> NewOwner {
        self.lease = lease;
        self
    }

    /// How much all that it executes may cost (no limit).
    pub fn budget(mut self, budget: Option<Money>) -> NewOwner {
        self.budget = budget;
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
    /// The name of the machine on which it was registered, if it was known. For people: whether two processes are on one machine is said
    /// by their boot.
    #[serde(default)]
    pub host: Option<String>,
    /// What it last [said of itself](crate::Repository::tell); `None` if it has said nothing, or has ended.
    #[serde(default)]
    pub state: Option<OwnerState>,
    /// When it said so. It speaks only when there is something new: while its [heartbeat](Owner::heartbeat_at) goes on, what it said
    /// long ago still holds.
    #[serde(default)]
    pub told_at: Option<DateTime<Utc>>,
    /// How much all that it executes may cost.
    #[serde(default)]
    pub budget: Option<Money>,
}

/// What an owner says of itself while it works, for whoever looks from another process.
///
/// It is news for people, and nothing is decided by it. Fields that a later version adds are passed over, those that an earlier one did
/// not know are as by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OwnerState {
    /// The job that it works on.
    pub job_id: Option<JobId>,
    /// Where it is in its life, such as `running` or `draining`.
    pub phase: String,
    /// Whether it takes units that nobody has accepted.
    pub is_pulling: bool,
    /// Whether a person has paused it.
    pub is_paused: bool,
    /// Why it starts nothing for now; a pause is not among these.
    pub holds: Vec<OwnerHold>,
    /// How many workers it has.
    pub workers: usize,
    /// How many it wants.
    pub target_workers: usize,
    /// How many it may have at most.
    pub max_workers: usize,
    /// How many of these it may have now, if it [finds out](crate::Scaling::Adaptive) how many its provider bears.
    pub level: Option<OwnerLevel>,
    /// Workers that did not come up.
    pub failed_starts: u64,
    /// Why the last one did not.
    pub last_start_failure: Option<String>,
    /// Units that wait in its line for their first attempt.
    pub queue_size: usize,
    /// How many may.
    pub max_queue_size: usize,
    /// Threads that did not return when their time was up.
    pub abandoned_threads: usize,
    /// How many of those it puts up with.
    pub max_abandoned: usize,
    /// What of its process waits to be written, where that is known.
    pub writing: Option<Backpressure>,
}

impl OwnerState {
    /// Whether it differs from what was said before in a way that somebody should hear of: numbers that go up and down all the
    /// time count only when they have become much larger or smaller.
    pub fn is_news_after(&self, before: &OwnerState) -> bool {
        self.gist() != before.gist()
    }

    /// The same without what changes all the time and means nothing.
    fn gist(&self) -> OwnerState {
        let coarse = |number: usize| number.checked_ilog2().map_or(0, |log| log as usize + 1);
        let is_full = self.queue_size >= self.max_queue_size;
        let writing = self.writing.map(|writing| Backpressure { bytes: writing.quarters(), ..Backpressure::default() });
        // The calendar is read to the millisecond; a date that was computed twice may differ by one.
        let whole_second = |hold: &OwnerHold| {
            let until =
                hold.until.and_then(|until| DateTime::from_timestamp((until.timestamp_millis() + 500) / 1_000, 0));
            OwnerHold { until, ..hold.clone() }
        };
        let queue_size = if is_full { self.max_queue_size } else { coarse(self.queue_size) };
        let holds = self.holds.iter().map(whole_second).collect();
        let gist = OwnerState { queue_size, holds, writing, ..self.clone() };
        let Some(level) = self.level else { return gist };
        // Where it is found out how many workers there may be, there is one more or fewer all the time.
        let may_be = if level.workers >= self.max_workers { self.max_workers } else { coarse(level.workers) };
        let (workers, target_workers) = (coarse(self.workers), coarse(self.target_workers));
        OwnerState { workers, target_workers, level: Some(OwnerLevel { workers: may_be, ..level }), ..gist }
    }
}

/// How many workers an owner may have, as far as it has found out how many its provider bears.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OwnerLevel {
    /// How many.
    pub workers: usize,
    /// When its provider last asked for fewer; `None` if it has not.
    pub cut_at: Option<DateTime<Utc>>,
}

impl OwnerLevel {
    /// So many, with when there were to be fewer.
    pub fn new(workers: usize, cut_at: Option<DateTime<Utc>>) -> OwnerLevel {
        OwnerLevel { workers, cut_at }
    }
}

/// Why an owner starts nothing for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OwnerHold {
    /// Why.
    pub reason: String,
    /// When it ends by itself; `None` if somebody has to end it.
    #[serde(default)]
    pub until: Option<DateTime<Utc>>,
}

impl OwnerHold {
    /// A hold for a reason, until a time or until somebody ends it.
    pub fn new(reason: impl Into<String>, until: Option<DateTime<Utc>>) -> OwnerHold {
        OwnerHold { reason: reason.into(), until }
    }
}

/// What of a process waits to be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Backpressure {
    /// How many changes wait.
    pub changes: usize,
    /// How many bytes they have.
    pub bytes: usize,
    /// How many bytes may wait. Beyond that whoever wants to write waits too.
    pub limit_bytes: usize,
    /// Threads that wait for room.
    pub waiting_threads: usize,
    /// Whether the disk is full: something could not be written since then, and waits to be, or was refused.
    pub is_disk_full: bool,
}

impl Backpressure {
    /// How many quarters of what may wait do: 0 to 4. If somebody waits for room, it is full.
    pub fn quarters(self) -> usize {
        let quarters = (self.bytes.saturating_mul(4) / self.limit_bytes.max(1)).min(4);
        if self.waiting_threads > 0 { 4 } else { quarters }
    }

    /// Whether whoever writes waits already, or soon will.
    pub fn is_high(self) -> bool {
        self.quarters() >= 3
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;

    fn busy() -> OwnerState {
        let writing = Some(Backpressure { changes: 9, bytes: 20, limit_bytes: 100, ..Backpressure::default() });
        OwnerState { workers: 4, queue_size: 20, max_queue_size: 1_000, writing, ..OwnerState::default() }
    }

    #[test]
    fn what_goes_up_and_down_all_the_time_is_no_news() {
        let before = busy();
        assert!(!before.is_news_after(&before));
        assert!(!OwnerState { queue_size: 29, ..busy() }.is_news_after(&before));
        let writing = Some(Backpressure { changes: 1, bytes: 3, limit_bytes: 100, ..Backpressure::default() });
        assert!(!OwnerState { writing, ..busy() }.is_news_after(&before));
    }

    #[test]
    fn what_a_person_should_look_at_is_news() {
        let before = busy();
        let full = Backpressure { bytes: 99, ..busy().writing.unwrap() };
        let waited_for = Backpressure { waiting_threads: 1, ..busy().writing.unwrap() };
        for after in [
            OwnerState { is_paused: true, ..busy() },
            OwnerState { holds: vec![OwnerHold::new("quota", None)], ..busy() },
            OwnerState { abandoned_threads: 1, ..busy() },
            OwnerState { workers: 3, ..busy() },
            OwnerState { queue_size: 0, ..busy() },
            OwnerState { queue_size: 999, ..busy() },
            OwnerState { queue_size: 1_000, ..busy() },
            OwnerState { writing: Some(full), ..busy() },
            OwnerState { writing: Some(waited_for), ..busy() },
            OwnerState { phase: "draining".to_owned(), ..busy() },
        ] {
            assert!(after.is_news_after(&before), "{after:?}");
            assert!(before.is_news_after(&after), "{after:?}");
        }
        let (nearly_full, full) =
            (OwnerState { queue_size: 999, ..busy() }, OwnerState { queue_size: 1_000, ..busy() });
        assert!(full.is_news_after(&nearly_full));
    }

    #[test]
    fn one_worker_more_is_no_news_where_it_is_found_out_how_many_there_may_be_and_fewer_are() {
        let at = DateTime::from_timestamp_millis(1_767_225_600_000);
        let having = |workers| OwnerState {
            workers,
            target_workers: workers,
            max_workers: 16,
            level: Some(OwnerLevel::new(workers, at)),
            ..busy()
        };
        let before = having(9);
        assert!(!having(10).is_news_after(&before));
        assert!(having(3).is_news_after(&before) && having(16).is_news_after(&before));
        let last = OwnerState { level: Some(OwnerLevel::new(15, at)), ..having(16) };
        assert!(having(16).is_news_after(&last), "it may have all of them");
        let cut_at = at.map(|at| at + TimeDelta::seconds(1));
        let cut = OwnerState { level: Some(OwnerLevel::new(9, cut_at)), ..having(9) };
        assert!(cut.is_news_after(&before), "fewer were asked for once more");
    }

    #[test]
    fn a_hold_that_ends_at_another_time_is_news_and_one_that_was_computed_twice_is_not() {
        let until = DateTime::from_timestamp_millis(1_767_225_600_000);
        let held = |until| OwnerState { holds: vec![OwnerHold::new("quota", until)], ..busy() };
        assert!(!held(until.map(|until| until + TimeDelta::milliseconds(1))).is_news_after(&held(until)));
        assert!(held(until.map(|until| until + TimeDelta::seconds(60))).is_news_after(&held(until)));
        assert!(held(None).is_news_after(&held(until)));
    }

    #[test]
    fn what_another_version_says_can_be_read() {
        let state: OwnerState = serde_json::from_str(r#"{"workers": 3, "mood": "good"}"#).unwrap();
        assert_eq!(state, OwnerState { workers: 3, ..OwnerState::default() });
        let owner = r#"{"id": 1, "process": {"pid": 1, "start_ticks": 1, "boot_id": "", "pid_namespace": 0}, "instance": "i",
            "label": "l", "registered_at": "2026-01-01T00:00:00Z", "heartbeat_at": "2026-01-01T00:00:00Z",
            "lease": {"secs": 60, "nanos": 0}, "ended_at": null}"#;
        assert_eq!(serde_json::from_str::<Owner>(owner).unwrap().state, None);
    }
}
