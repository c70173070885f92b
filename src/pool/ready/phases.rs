//! The phases of a pool: from Configuring to Stopped.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{Ready, State, Wake};
use crate::pool::ledger::Left;
use crate::pool::open_unit::OpenUnit;
use crate::pool::stats::PoolPhase;

/// How a pool is to stop.
///
/// ```
/// use std::time::Duration;
/// use workcrew::{Call, ExecuteError, NewUnit, Stop, UnitStatus, WaitError, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let patient = |call: &Call<'_>| match call.cancel_token().wait_timeout(Duration::from_secs(60)) {
///     Some(reason) => Err(ExecuteError::retry(format!("{reason:?}"))),
///     None => Ok(WorkResult::empty()),
/// };
/// let pool = WorkPool::builder(job.id, patient, repository).start()?;
/// let handle = pool.enqueue(NewUnit::new("a"), "go")?;
/// pool.stop(Stop::Cancel { grace: Duration::from_secs(5) })?;
/// assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
/// assert_eq!(handle.unit()?.status, UnitStatus::Pending);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// Lets running attempts end, for as long as that takes. What waits stays PENDING.
    Drain,
    /// Asks running executions to stop and gives their units back. Whoever has not stopped after the grace is left behind.
    Cancel {
        /// How long to wait for them.
        grace: Duration,
    },
    /// The same without any grace.
    Now,
}

impl Stop {
    /// How long executions may go on; `None` if they need not stop.
    pub(in crate::pool) fn grace(self) -> Option<Duration> {
        match self {
            Stop::Drain => None,
            Stop::Cancel { grace } => Some(grace),
            Stop::Now => Some(Duration::ZERO),
        }
    }

    /// The more urgent of two wishes.
    fn or_sooner(self, other: Stop) -> Stop {
        // Any grace, however long, is more urgent than none to be kept.
        let patience = |stop: Stop| (stop.grace().is_none(), stop.grace());
        if patience(other) < patience(self) { other } else { self }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Drain => f.write_str("asked to finish what runs"),
            Stop::Cancel { grace } => write!(f, "asked to cancel what runs, within {grace:?}"),
            Stop::Now => f.write_str("asked to stop at once"),
        }
    }
}

/// What is left to do for the thread that stops the pool.
#[derive(Debug)]
pub(in crate::pool) struct StopState {
    pub(in crate::pool) mode: Stop,
    pub(in crate::pool) busy: usize,
    pub(in crate::pool) live: usize,
    pub(in crate::pool) has_open_units: bool,
    /// Whether some of those wait for more than their callbacks.
    pub(in crate::pool) has_untold_units: bool,
    /// Whether the claimer waits for the scheduler's answer.
    pub(in crate::pool) is_asking: bool,
}

impl Ready {
    pub(in crate::pool) fn phase(&self) -> PoolPhase {
        self.state.lock().phase
    }

    /// Configuring → Initializing; the phase it has if it is another.
    pub(in crate::pool) fn begin_initializing(&self) -> Result<(), PoolPhase> {
        let mut state = self.state.lock();
        if state.phase != PoolPhase::Configuring {
            return Err(state.phase);
        }
        state.phase = PoolPhase::Initializing;
        Ok(())
    }

    /// The pool could not be started at all: it has no thread.
    pub(in crate::pool) fn fail_initializing(&self, reason: String) {
        self.change(|state, wake| {
            // Whoever wanted it stopped meanwhile has what they want.
            state.phase = PoolPhase::Initializing;
            state.fail_initializing(reason, wake);
            state.is_over = true;
        });
    }

    /// Takes nothing new from now on. What waits leaves, and is returned to be told; and whether this is news.
    pub(in crate::pool) fn begin_stop(&self, stop: Stop) -> (Vec<Arc<OpenUnit>>, bool) {
        self.change(|state, wake| {
            let is_news = state.stop.is_none() && !state.is_over && state.phase != PoolPhase::Configuring;
            state.phase = match state.phase {
                PoolPhase::Configuring => PoolPhase::Stopped,
                PoolPhase::Initializing | PoolPhase::Running => PoolPhase::Draining,
                ended => ended,
            };
            state.stop = Some(state.stop.map_or(stop, |before| before.or_sooner(stop)));
            (wake.all_slots, wake.settled, wake.supervisor, wake.claimer) = (true, true, true, true);
            (wake.first_ready, wake.initialized) = (true, true);
            (state.ledger.leave_waiting(), is_news)
        })
    }

    /// How the pool is to stop, if it is.
    pub(in crate::pool) fn stop_mode(&self) -> Option<Stop> {
        self.state.lock().stop
    }

    pub(in crate::pool) fn stop_state(&self) -> Option<StopState> {
        let state = self.state.lock();
        let busy = state.capacity.tally().busy + state.capacity.tally().tainted;
        Some(StopState {
            mode: state.stop?,
            busy: busy + state.submissions,
            live: state.capacity.live(),
            has_open_units: !state.ledger.is_empty() || state.reports > 0,
            has_untold_units: !state.ledger.is_only_reporting(),
            is_asking: state.is_asking,
        })
    }

    /// Nobody works any more. What is open nevertheless leaves, and is returned to be told: a thread that was left behind has
    /// freed its place, and not yet said that its unit waits again.
    pub(in crate::pool) fn leave_all(&self) -> Vec<Arc<OpenUnit>> {
        self.change(|state, wake| {
            wake.settled = true;
            state.ledger.leave_all()
        })
    }

    /// The pool has stopped. Returns the units whose callbacks were not waited for, and how they ended.
    pub(in crate::pool) fn end(&self) -> Vec<(Arc<OpenUnit>, Left)> {
        self.change(|state, wake| {
            if state.phase != PoolPhase::InitFailed {
                state.phase = PoolPhase::Stopped;
            }
            state.is_over = true;
            (wake.all_slots, wake.settled) = (true, true);
            state.ledger.reporting()
        })
    }

    /// Waits until the pool has stopped; says whether it has.
    pub(in crate::pool) fn wait_stopped(&self, until: Option<Instant>) -> bool {
        let is_stopped = |state: &State| state.is_over || state.phase == PoolPhase::Stopped;
        self.wait(&self.settled, until, |state| is_stopped(state).then_some(())).is_some()
    }
}

impl State {
    pub(super) fn fail_initializing(&mut self, reason: String, wake: &mut Wake) {
        if self.phase == PoolPhase::Initializing {
            self.phase = PoolPhase::InitFailed;
            self.init_failure = Some(reason);
        }
        (wake.all_slots, wake.settled, wake.supervisor) = (true, true, true);
        (wake.first_ready, wake.initialized) = (true, true);
    }
}
