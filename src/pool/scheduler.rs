//! Which worker gets a unit that may go to several.

use super::capacity::WorkerNumber;
use super::core::Core;
use crate::panics;
use crate::worker::WorkerId;

/// A worker that has room for a unit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Available {
    /// Its name.
    pub id: WorkerId,
    /// How many units it has in hand.
    pub load: u32,
    /// How many it can have.
    pub capacity: u32,
    /// Executions of its that ended well.
    pub completed: u64,
    /// Executions of its that failed or took too long.
    pub failed: u64,
}

/// Chooses the worker for a unit that may go to several: one that belongs to no session, or whose session is nowhere, or on a worker
/// that has no room and that is only a [hint](crate::Affinity::Hint).
///
/// ```
/// use workcrew::{Available, Call, NewUnit, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// // One after the other is filled, so that the others may rest.
/// let fullest = |available: &[Available]| (0..available.len()).max_by_key(|&index| available[index].load);
/// let pool = WorkPool::builder(job.id, |_: &Call<'_>| Ok(WorkResult::empty()), repository)
///     .worker_capacity(4)
///     .scheduler(fullest)
///     .start()?;
/// pool.enqueue(NewUnit::new("a"), "go")?.wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Scheduler: Send + Sync + 'static {
    /// The index of the one that is to get the next unit. They come in the order in which the pool would take them itself, which it does if the
    /// answer is `None` or no index. There is at least one.
    ///
    /// It is asked with nothing locked, so by the time of its answer the worker may have no room any more; then the pool takes
    /// another. For the same reason its answer may not be used at all: the unit may have to wait after all, or be refused. It is not
    /// asked about a unit whose session says where to go.
    ///
    /// It should answer soon: whoever brings a unit waits for it, and so does everything in line. A pool that stops waits for it as for what
    /// is executed. When the [grace](crate::Stop::Cancel) for that is over its thread is left behind, and what it answers later counts
    /// for nothing.
    fn choose(&self, available: &[Available]) -> Option<usize>;
}

impl<F: Fn(&[Available]) -> Option<usize> + Send + Sync + 'static> Scheduler for F {
    fn choose(&self, available: &[Available]) -> Option<usize> {
        self(available)
    }
}

/// The least loaded, of several the one that has been so for longest: what a pool does unless it is told otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeastLoaded;

impl Scheduler for LeastLoaded {
    fn choose(&self, _available: &[Available]) -> Option<usize> {
        Some(0)
    }
}

/// The worker that the pool's scheduler would take now; `None` if it has none of its own, or leaves it to the pool.
pub(super) fn wish(core: &Core) -> Option<WorkerNumber> {
    let scheduler = core.scheduler.as_deref()?;
    let (numbers, available): (Vec<WorkerNumber>, Vec<Available>) = core.ready.available().into_iter().unzip();
    if available.is_empty() {
        return None;
    }
    let chosen = panics::contain("a scheduler", || scheduler.choose(&available)).flatten()?;
    numbers.get(chosen).copied()
}
