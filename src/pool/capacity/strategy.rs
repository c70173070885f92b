//! Who says how many units a worker executes at a time.

use serde::{Deserialize, Serialize};

/// The most units that a worker may execute at a time: each needs a thread.
pub(in crate::pool) const WORKER_CAPACITY_LIMIT: u32 = 1_000;

/// Who says how many units a worker executes at a time.
///
/// ```
/// use workcrew::{Call, CapacityStrategy, ExecuteError, Executor, NewUnit, WorkPool, WorkResult, WorkerId};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// struct Batching;
///
/// impl Executor for Batching {
///     fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
///         Ok(WorkResult::text(call.prompt()))
///     }
///
///     fn capacity(&self, _worker_id: &WorkerId) -> Option<u32> {
///         Some(8)
///     }
/// }
///
/// let pool = WorkPool::builder(job.id, Batching, repository).capacity_strategy(CapacityStrategy::Hybrid).start()?;
/// pool.enqueue(NewUnit::new("a"), "go")?.wait()?;
/// assert_eq!(pool.workers()[0].capacity, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CapacityStrategy {
    /// The pool: every worker executes as many as its [`worker_capacity`](crate::WorkPoolBuilder::worker_capacity) says.
    #[default]
    Pool,
    /// The executor, which is [asked](crate::Executor::capacity) when a worker has its first unit. Until it has answered the worker
    /// executes one at a time. What it leaves open the pool says.
    Hybrid,
    /// Nobody: every worker executes one at a time, whatever else is said. For executors that do several things at once inside of one
    /// execution, and would do too many otherwise.
    Profile,
}

impl CapacityStrategy {
    /// What is known before anybody is asked.
    pub(in crate::pool) fn known(self, of_pool: u32) -> Option<u32> {
        match self {
            CapacityStrategy::Pool => Some(of_pool),
            CapacityStrategy::Hybrid => None,
            CapacityStrategy::Profile => Some(1),
        }
    }

    /// What follows from what the executor says.
    pub(in crate::pool) fn resolve(self, of_pool: u32, of_executor: Option<u32>) -> u32 {
        self.known(of_pool).or(of_executor).unwrap_or(of_pool).clamp(1, WORKER_CAPACITY_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_follows_from_the_strategy_and_what_is_said() {
        // 001-F11, 001-F12
        use CapacityStrategy::{Hybrid, Pool, Profile};
        let table = [
            (Pool, 4, None, 4, "the pool says"),
            (Pool, 4, Some(9), 4, "the executor is not asked"),
            (Hybrid, 4, Some(9), 9, "the executor says"),
            (Hybrid, 4, None, 4, "it does not, so the pool does"),
            (Hybrid, 4, Some(0), 1, "none at all makes no sense"),
            (Hybrid, 4, Some(u32::MAX), WORKER_CAPACITY_LIMIT, "nor does any number of threads"),
            (Profile, 4, Some(9), 1, "always one"),
        ];
        for (strategy, of_pool, of_executor, capacity, why) in table {
            assert_eq!(strategy.resolve(of_pool, of_executor), capacity, "{why}");
            assert!(strategy.known(of_pool).is_none_or(|known| known == capacity), "{why}");
        }
    }
}
