//! What a pool is doing, in one consistent look.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::capacity::{Known, WorkerNumber};
use crate::money::{Cost, Tokens};
use crate::unit::UnitId;
use crate::worker::{WorkerId, WorkerStatus};

/// Where a pool is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolPhase {
    /// Built, not started.
    Configuring,
    /// On its way up.
    Initializing,
    /// At work.
    Running,
    /// Taking nothing new, finishing what runs.
    Draining,
    /// At its end.
    Stopped,
    /// It could not be started.
    InitFailed,
}

impl fmt::Display for PoolPhase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            PoolPhase::Configuring => "configuring",
            PoolPhase::Initializing => "initializing",
            PoolPhase::Running => "running",
            PoolPhase::Draining => "draining",
            PoolPhase::Stopped => "stopped",
            PoolPhase::InitFailed => "init failed",
        })
    }
}

/// What a pool is doing and what it has done, all of it at one moment.
///
/// `accepted = pending + running + completed + failed + cancelled + left_pending + lost` holds in every one of them, and the
/// workers add up to `total_workers`. Serialised, some have the names that others know them by: `processing_workers`,
/// `total_completed`, `total_failed`, and `current_run` for a worker's unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// Where the pool is in its life.
    pub phase: PoolPhase,
    /// Why it could not be started.
    pub init_failure: Option<String>,
    /// Why it starts nothing for now.
    pub hold: Option<String>,
    /// How many workers there may be at most.
    pub max_workers: usize,
    /// How many there may be now. Fewer than that only while it is [found out](super::Scaling::Adaptive) how many the provider bears.
    pub allowed_workers: usize,
    /// How many workers there should be now. What is missing and did not come up is tried again every minute, two at a time.
    pub target_workers: usize,
    /// Workers that there are, whatever they do.
    pub total_workers: usize,
    /// Workers on their way up.
    pub starting_workers: usize,
    /// Workers that are up and have no unit in hand.
    pub idle_workers: usize,
    /// Workers with a unit in hand, those in a callback included, those that crashed with it not.
    #[serde(rename = "processing_workers")]
    pub busy_workers: usize,
    /// Workers that are up and have no room: those that are BUSY, and those whose last units these are (`max_units_per_worker`).
    pub full_workers: usize,
    /// Workers that report an outcome: the unit has ended, its callback has not.
    pub reporting_workers: usize,
    /// Workers that crashed and take nothing for now.
    pub tainted_workers: usize,
    /// Units that workers have in hand, or are about to get.
    pub load: usize,
    /// How many units the workers that are up can have in hand.
    pub capacity: usize,
    /// Places that nobody has.
    pub free_slots: usize,
    /// Places that somebody was promised and has not used yet.
    pub reserved_slots: usize,
    /// Threads that did not return from their executor when their time was up.
    pub abandoned_threads: usize,
    /// Threads that wait for a place.
    pub slot_waiters: usize,
    /// Threads that wait for the pool to come up.
    pub init_waiters: usize,
    /// Workers that did not come up. One with which the pool starts, or that was to be there by now, is tried again within a minute.
    pub failed_starts: u64,
    /// Why the last one did not.
    pub last_start_failure: Option<String>,
    /// Units that wait in line for their first attempt.
    pub queue_size: usize,
    /// How many may.
    pub max_queue_size: usize,
    /// Units that somebody wanted to submit or enqueue.
    pub requests: u64,
    /// Those that had to wait in line.
    pub queued: u64,
    /// Those that were refused because the queue was full.
    pub saturated: u64,
    /// Those that waited in line for too long.
    pub queue_timeouts: u64,
    /// Executions that failed or took too long.
    pub errors: u64,
    /// Units that this pool took upon itself.
    pub accepted: u64,
    /// Those that wait for their first or next attempt.
    pub pending: u64,
    /// Those that are being executed.
    pub running: u64,
    /// Those that ended well.
    #[serde(rename = "total_completed")]
    pub completed: u64,
    /// Those that failed for good.
    #[serde(rename = "total_failed")]
    pub failed: u64,
    /// Those that were cancelled.
    pub cancelled: u64,
    /// Those that were still waiting when the pool stopped.
    pub left_pending: u64,
    /// Those that were lost to somebody else, or whose end could not be stored.
    pub lost: u64,
    /// Executions that began.
    pub attempts: u64,
    /// Executions that failed and were followed by another.
    pub retried: u64,
    /// What all executions used.
    pub tokens: Tokens,
    /// What all executions cost.
    pub cost: Cost,
    /// The workers, by name.
    pub workers: BTreeMap<WorkerId, WorkerView>,
}

impl PoolStats {
    /// How much the pool has to do.
    pub fn activity(&self) -> Activity {
        match (self.busy_workers, self.full_workers) {
            (0, _) => Activity::Idle,
            (_, full) if full < self.allowed_workers => Activity::Active,
            _ => Activity::AtCapacity,
        }
    }

    /// How full the queue is.
    pub fn queue_state(&self) -> QueueState {
        match self.queue_size {
            size if size >= self.max_queue_size => QueueState::Saturated,
            0 => QueueState::Empty,
            _ => QueueState::HasRequests,
        }
    }
}

/// How much a pool has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// No worker has a unit in hand.
    Idle,
    /// Some have.
    Active,
    /// All that there may be have as many as they can.
    AtCapacity,
}

/// How full a queue is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueState {
    /// Nothing waits.
    Empty,
    /// Something waits, and more may.
    HasRequests,
    /// No more may.
    Saturated,
}

/// A worker of a pool, as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerView {
    /// Its name.
    pub id: WorkerId,
    /// Where it is in its life.
    pub status: WorkerStatus,
    /// What it has in hand; of several, what it has had for longest.
    #[serde(rename = "current_run")]
    pub unit_id: Option<UnitId>,
    /// All that it has in hand.
    pub unit_ids: Vec<UnitId>,
    /// How many units it has in hand, or is about to get.
    pub load: u32,
    /// How many it can have, as far as that is known: one until it has come up.
    pub capacity: u32,
    /// Executions of its that ended well.
    pub completed: u64,
    /// Executions of its that failed or took too long.
    pub failed: u64,
}

impl WorkerView {
    pub(super) fn new(worker: WorkerNumber, known: &Known) -> WorkerView {
        let unit_ids: Vec<UnitId> = known.units.iter().filter_map(|unit| UnitId::new(unit.id()).ok()).collect();
        WorkerView {
            id: worker.id(),
            status: known.status(),
            unit_id: unit_ids.first().cloned(),
            unit_ids,
            load: known.load,
            capacity: known.capacity,
            completed: known.completed,
            failed: known.failed,
        }
    }
}

/// What a pool has done when it ends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// All it did.
    pub stats: PoolStats,
    /// How long it was up.
    pub elapsed: Duration,
    /// Whether the pool has ended. It has not if it was asked to from one of its own threads, or if the time was up.
    pub is_final: bool,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PoolStats { completed, failed, cancelled, left_pending, lost, attempts, retried, .. } = &self.stats;
        write!(f, "{completed} completed, {failed} failed, {cancelled} cancelled")?;
        if *left_pending > 0 {
            write!(f, ", {left_pending} left pending")?;
        }
        if *lost > 0 {
            write!(f, ", {lost} lost")?;
        }
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "; {attempts} attempts ({retried} retried), {}, {seconds:.1} s", self.stats.cost)
    }
}
