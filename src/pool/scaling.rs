//! How many workers there should be: one pure function from what is seen to a number.

use std::time::Duration;

/// When a pool has how many workers. There are never more than `max_workers`.
///
/// ```
/// use std::time::Duration;
/// use workcrew::{Call, Scaling, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let pool = WorkPool::builder(job.id, |_: &Call<'_>| Ok(WorkResult::empty()), repository)
///     .min_workers(2)
///     .max_workers(16)
///     .scaling(Scaling::Threshold { queued: 10, idle: Duration::from_secs(60) })
///     .start()?;
/// pool.await_init_complete()?;
/// assert_eq!(pool.stats().total_workers, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Scaling {
    /// `min_workers` start with the pool, another one whenever a unit needs it. They stay. One of the first that has ended is
    /// replaced, unless that would take the last free place: then it starts when a unit needs it.
    #[default]
    OnDemand,
    /// All workers start with the pool, and stay.
    Fixed,
    /// `min_workers` start with the pool; one more when so many wait, one fewer when nothing waits and one was idle for so long, at most
    /// one a second.
    ///
    /// What waits are units in the queue and threads that wait for a place: one thread that submits one unit
    /// after the other is one of them, however many it has left. It is made for [`enqueue`](super::WorkPool::enqueue).
    Threshold {
        /// How many must wait for another worker to start.
        queued: usize,
        /// How long a worker must have been idle to be stopped.
        idle: Duration,
    },
    /// Workers start as with [`OnDemand`](Scaling::OnDemand), and how many there may be is found out: as many as the provider bears. It begins with
    /// `min_workers`, or one.
    ///
    /// While all that there may be have something to do and nothing is refused, there may be more: at first twice as many with each round of
    /// attempts, up to `max_workers`. An attempt is refused that fails as [`rate_limited`](crate::executor::kinds::RATE_LIMITED) or
    /// [`overloaded`](crate::executor::kinds::OVERLOADED), also if it holds the pool; then there may be four fifths as many, and again as long as attempts are
    /// refused that began after that. Those that are too many finish what they have. When the cool-down is over, it goes back as fast to what
    /// the first cut has left, and beyond that by one with each round.
    ///
    /// What was found out is the pool's own, and forgotten with it: one that is started begins anew. [`WorkPool::adaptations`](super::WorkPool::adaptations)
    /// tells how it went. A refusal without a pause uses up an attempt, as it always does.
    ///
    /// ```
    /// use workcrew::{Call, NewUnit, Scaling, WorkPool, WorkResult};
    /// # use workcrew::{MemoryRepository, NewJob, Repository};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// let executor = |call: &Call<'_>| Ok(WorkResult::text(call.prompt()));
    /// let pool = WorkPool::builder(job.id, executor, repository).scaling(Scaling::ADAPTIVE).max_workers(16).start()?;
    /// assert_eq!((pool.stats().allowed_workers, pool.stats().max_workers), (1, 16));
    /// for number in 0..20 {
    ///     pool.enqueue(NewUnit::new(format!("unit {number}")), "go")?;
    /// }
    /// pool.wait_for_completion();
    /// assert!(pool.stats().allowed_workers > 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    Adaptive {
        /// How long nothing grows after a refusal, and after the pause that came with it.
        cool_down: Duration,
    },
}

impl Scaling {
    /// One more when five wait, one fewer when it was idle for five minutes.
    pub const THRESHOLD: Scaling = Scaling::Threshold { queued: 5, idle: Duration::from_secs(300) };

    /// As many as the provider bears, and no more for ten seconds after a refusal.
    pub const ADAPTIVE: Scaling = Scaling::Adaptive { cool_down: Duration::from_secs(10) };
}

/// What is seen of a pool at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot {
    pub(super) min_workers: usize,
    pub(super) max_workers: usize,
    /// How many there should have been so far.
    pub(super) size: usize,
    /// How many there are, without those on their way up or out.
    pub(super) workers: usize,
    pub(super) starting: usize,
    /// How many of them are free for whoever waits.
    pub(super) free: usize,
    /// Units and threads that wait for a worker.
    pub(super) waiting: usize,
    /// How long the worker that could be stopped has been idle.
    pub(super) idle_for: Option<Duration>,
}

impl Scaling {
    /// How many workers there should be. It changes by one at a time where it depends on what waits.
    pub(super) fn target(self, seen: &Snapshot) -> usize {
        let target = match self {
            Scaling::OnDemand | Scaling::Adaptive { .. } => seen.workers + seen.starting,
            Scaling::Fixed => seen.max_workers,
            // Each that is on its way up, or has just come up, will take one of those that wait.
            Scaling::Threshold { queued, .. } if seen.waiting >= queued.saturating_add(seen.starting + seen.free) => {
                seen.size + 1
            }
            // Fewer never get a worker if there is none at all.
            Scaling::Threshold { .. } if seen.waiting > 0 && seen.size == 0 => 1,
            Scaling::Threshold { idle, .. } if seen.waiting == 0 && seen.idle_for.is_some_and(|time| time > idle) => {
                seen.size.saturating_sub(1)
            }
            Scaling::Threshold { .. } => seen.size,
        };
        target.clamp(seen.min_workers.min(seen.max_workers), seen.max_workers)
    }

    /// With how many workers a pool starts.
    pub(super) fn first(self, min_workers: usize, max_workers: usize) -> usize {
        match self {
            Scaling::Fixed => max_workers,
            Scaling::OnDemand | Scaling::Threshold { .. } | Scaling::Adaptive { .. } => min_workers.min(max_workers),
        }
    }

    /// How long a worker may be idle.
    pub(super) fn idle_limit(self) -> Option<Duration> {
        match self {
            Scaling::Threshold { idle, .. } => Some(idle),
            Scaling::OnDemand | Scaling::Fixed | Scaling::Adaptive { .. } => None,
        }
    }

    /// For how long nothing grows after a refusal, if it is found out how many there may be.
    pub(super) fn cool_down(self) -> Option<Duration> {
        match self {
            Scaling::Adaptive { cool_down } => Some(cool_down),
            Scaling::OnDemand | Scaling::Fixed | Scaling::Threshold { .. } => None,
        }
    }

    pub(super) fn is_adaptive(self) -> bool {
        self.cool_down().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(300);

    fn seen(size: usize, starting: usize, waiting: usize, idle_seconds: u64) -> Snapshot {
        let idle_for = (idle_seconds > 0).then(|| Duration::from_secs(idle_seconds));
        let workers = size - starting;
        Snapshot { min_workers: 2, max_workers: 4, size, workers, starting, free: 0, waiting, idle_for }
    }

    #[test]
    fn the_target_follows_from_what_is_seen() {
        // 003-F48, 003-F49, 003-F50, 003-F51, 001-F75, 001-F80
        let on_demand = Scaling::OnDemand;
        let fixed = Scaling::Fixed;
        let threshold = Scaling::Threshold { queued: 5, idle: IDLE };
        let table = [
            // scaling, size, starting, waiting, idle, target
            (threshold, 2, 0, 0, 0, 2, "nothing waits, nothing is idle"),
            (threshold, 2, 0, 4, 0, 2, "four are not enough"),
            (threshold, 2, 0, 5, 0, 3, "five are"),
            (threshold, 2, 0, 1_000, 0, 3, "one at a time"),
            (threshold, 3, 1, 5, 0, 3, "one is on its way for them"),
            (threshold, 3, 1, 6, 0, 4, "and one more"),
            (threshold, 4, 0, 1_000, 0, 4, "never above the maximum"),
            (threshold, 3, 0, 0, 300, 3, "idle for as long as it may be"),
            (threshold, 3, 0, 0, 301, 2, "idle for longer"),
            (threshold, 4, 0, 0, 9_999, 3, "one at a time"),
            (threshold, 2, 0, 0, 9_999, 2, "never below the minimum"),
            (threshold, 3, 0, 1, 9_999, 3, "not while something waits"),
            (fixed, 4, 0, 0, 9_999, 4, "all of them, whatever happens"),
            (fixed, 4, 2, 1_000, 0, 4, "all of them, whatever happens"),
            (on_demand, 3, 1, 1_000, 9_999, 3, "as many as were needed"),
            (on_demand, 2, 0, 0, 9_999, 2, "as many as were needed"),
            (Scaling::ADAPTIVE, 3, 1, 1_000, 9_999, 3, "as many as were needed"),
        ];
        for (scaling, size, starting, waiting, idle, target, why) in table {
            assert_eq!(scaling.target(&seen(size, starting, waiting, idle)), target, "{scaling:?}: {why}");
        }
    }

    #[test]
    fn one_that_is_free_takes_one_of_those_that_wait() {
        // 003-F48
        let free = Snapshot { free: 1, ..seen(2, 0, 5, 0) };
        assert_eq!(Scaling::THRESHOLD.target(&free), 2);
        assert_eq!(Scaling::THRESHOLD.target(&Snapshot { waiting: 6, ..free }), 3);
    }

    #[test]
    fn without_a_minimum_one_that_waits_is_enough_for_the_first_worker() {
        let none = Snapshot { min_workers: 0, workers: 0, starting: 0, size: 0, waiting: 1, ..seen(2, 0, 0, 0) };
        assert_eq!(Scaling::THRESHOLD.target(&none), 1);
        assert_eq!(Scaling::THRESHOLD.target(&Snapshot { waiting: 0, ..none }), 0);
    }

    #[test]
    fn those_below_the_minimum_are_missing_and_a_lower_maximum_wins() {
        // 003-F51
        let fewer = Snapshot { workers: 0, ..seen(2, 0, 0, 0) };
        assert_eq!(Scaling::OnDemand.target(&fewer), 2);
        let lowered = Snapshot { max_workers: 1, ..seen(2, 0, 0, 0) };
        for scaling in [Scaling::OnDemand, Scaling::Fixed, Scaling::THRESHOLD, Scaling::ADAPTIVE] {
            assert_eq!(scaling.target(&lowered), 1);
        }
    }

    #[test]
    fn steady_load_changes_nothing() {
        // One waits, one runs, again and again: neither limit is reached.
        let mut size = 3;
        for second in 0..1_000 {
            size = Scaling::THRESHOLD.target(&seen(size, 0, second % 5, (second as u64 * 7) % 300));
        }
        assert_eq!(size, 3);
    }
}
