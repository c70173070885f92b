//! What a pool is doing, in one consistent look.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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
/// `accepted = pending + running + completed + failed + cancelled + left_pending + lost` holds in every one of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct PoolStats {
    /// Where the pool is in its life.
    pub phase: PoolPhase,
    /// Why it starts nothing for now.
    pub hold: Option<String>,
    /// How many units it may execute at a time.
    pub max_workers: usize,
    /// Workers that wait for a unit.
    pub idle_workers: usize,
    /// Workers with a unit in hand, those in a callback included.
    pub busy_workers: usize,
    /// Workers that report an outcome: the unit has ended, its callback has not.
    pub reporting_workers: usize,
    /// Places that nobody has.
    pub free_slots: usize,
    /// Places that somebody was promised and has not used yet.
    pub reserved_slots: usize,
    /// Threads that did not return from their executor when their time was up.
    pub abandoned_threads: usize,
    /// Units that this pool took upon itself.
    pub accepted: u64,
    /// Those that wait for their next attempt.
    pub pending: u64,
    /// Those that are being executed.
    pub running: u64,
    /// Those that ended well.
    pub completed: u64,
    /// Those that failed for good.
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
}

/// A worker of a pool, as it is at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerView {
    /// Its name.
    pub id: WorkerId,
    /// Where it is in its life.
    pub status: WorkerStatus,
    /// What it has in hand.
    pub unit_id: Option<UnitId>,
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
