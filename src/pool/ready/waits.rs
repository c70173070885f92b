//! Those who wait: for a place, for completion, for the end of a hold.

use std::time::Instant;

use super::{Ready, State, Wake};
use crate::pool::error::WaitError;
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::sync::Condvar;
use crate::sync::thread::ThreadId;

/// How a wait for completion ended.
///
/// ```
/// use workcrew::{Call, Completion, ExecuteError, NewUnit, WorkPool, WorkResult};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// let executor = |_: &Call<'_>| Err::<WorkResult, _>(ExecuteError::hold("the key is wrong").kind("key"));
/// let pool = WorkPool::builder(job.id, executor, repository).start()?;
/// assert_eq!(pool.wait_for_completion(), Completion::Done);
/// pool.enqueue(NewUnit::new("a"), "go")?;
/// assert_eq!(pool.wait_for_completion(), Completion::Blocked("key: the key is wrong".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Completion {
    /// Everything that the pool accepted has ended, its callback included; while it pulls, also everything that was due.
    Done,
    /// Nothing runs, and what waits cannot begin before somebody calls `resume`.
    Blocked(String),
    /// The pool stopped first, or was never started.
    Stopped,
    /// The time was up.
    TimedOut,
    /// The caller is one of the pool's own threads, which would wait for itself.
    WouldDeadlock,
}

/// Why nothing is started.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) reason: String,
    /// When it ends by itself, by the pool's clock.
    pub(super) until_ms: Option<i64>,
}

impl Ready {
    /// Waits for a place and promises it to a thread, for so long; or to whoever has the permit, for ever.
    pub(in crate::pool) fn wait_for_slot(
        &self,
        thread: Option<ThreadId>,
        lapses_at_ms: impl Fn() -> i64,
        until: Option<Instant>,
    ) -> Result<(), WaitError> {
        let at_once = self.change(|state, wake| {
            let promised = state.promise_slot(thread, &lapses_at_ms, wake);
            // That somebody waits may be a reason for another worker.
            state.slot_waiters += usize::from(promised.is_none());
            promised
        });
        if let Some(answer) = at_once {
            return answer;
        }
        let mut wake = Wake::default();
        let mut room_left = false;
        let found = self.wait(&self.slot_free, until, |state| {
            let promised = state.promise_slot(thread, &lapses_at_ms, &mut wake);
            room_left = state.has_room_for_new();
            promised
        });
        self.change(|state, wakes| {
            state.slot_waiters -= 1;
            wakes.supervisor = wake.supervisor;
        });
        // One that wakes wakes the next, also if it leaves with nothing: no free place goes unnoticed.
        if room_left {
            self.slot_free.notify_one();
        }
        found.unwrap_or(Err(WaitError::TimedOut))
    }

    /// Waits until a worker is up. Those who wait are answered one after the other.
    pub(in crate::pool) fn await_ready(&self, until: Option<Instant>) -> Result<(), WaitError> {
        self.await_init(&self.first_ready, until, |state| state.capacity.tally().up > 0)
    }

    /// Waits until the pool has come up. Those who wait are answered one after the other.
    pub(in crate::pool) fn await_init_complete(&self, until: Option<Instant>) -> Result<(), WaitError> {
        self.await_init(&self.initialized, until, |_| false)
    }

    fn await_init(
        &self,
        condvar: &Condvar,
        until: Option<Instant>,
        is_enough: impl Fn(&State) -> bool,
    ) -> Result<(), WaitError> {
        self.state.lock().init_waiters += 1;
        let found = self.wait(condvar, until, |state| match state.phase {
            PoolPhase::Running => Some(Ok(())),
            PoolPhase::Initializing => is_enough(state).then_some(Ok(())),
            PoolPhase::InitFailed => Some(Err(WaitError::InitFailed(state.init_failure.clone().unwrap_or_default()))),
            PoolPhase::Configuring | PoolPhase::Draining | PoolPhase::Stopped => Some(Err(WaitError::Stopped)),
        });
        self.state.lock().init_waiters -= 1;
        condvar.notify_one();
        found.unwrap_or(Err(WaitError::TimedOut))
    }

    /// Gives a permit back that was not used.
    pub(in crate::pool) fn drop_permit(&self) {
        self.change(|state, wake| {
            state.capacity.drop_permit();
            wake.slot = true;
        });
    }

    /// Takes a promise back that was not used in time.
    pub(in crate::pool) fn lapse(&self, reservation: u64) {
        self.change(|state, wake| wake.slot = state.capacity.lapse(reservation));
    }

    /// Waits until nothing that the pool accepted is open.
    pub(in crate::pool) fn wait_for_completion(&self, until: Option<Instant>) -> Completion {
        let found = self.wait(&self.settled, until, |state| match state.phase {
            PoolPhase::Configuring | PoolPhase::InitFailed => Some(Completion::Stopped),
            _ if state.ledger.is_empty() && state.is_nothing_to_pull() => {
                Some(match state.ledger.totals.left_pending {
                    0 => Completion::Done,
                    _ => Completion::Stopped,
                })
            }
            PoolPhase::Stopped => Some(Completion::Stopped),
            _ => state.blocked(),
        });
        found.unwrap_or(Completion::TimedOut)
    }

    /// Starts nothing until then. A hold without an end stays until somebody ends it; of two with an end the later counts.
    pub(in crate::pool) fn hold(&self, reason: &str, until_ms: Option<i64>) {
        self.change(|state, wake| {
            let is_longer = match (&state.hold, until_ms) {
                (None, _) => true,
                (Some(hold), None) => hold.until_ms.is_some(),
                (Some(hold), Some(until_ms)) => hold.until_ms.is_some_and(|before_ms| before_ms < until_ms),
            };
            if is_longer {
                state.hold = Some(Hold { reason: reason.to_owned(), until_ms });
                wake.supervisor = until_ms.is_some_and(|until_ms| state.timers.set(until_ms, Alarm::HoldEnds));
                wake.settled = true;
            }
        });
    }

    /// Why nothing is started, if that is so.
    pub(in crate::pool) fn hold_reason(&self) -> Option<String> {
        self.state.lock().hold.as_ref().map(|hold| hold.reason.clone())
    }

    /// Ends a hold; with a time, only one that ends by itself by then.
    pub(in crate::pool) fn resume(&self, now_ms: Option<i64>) {
        self.change(|state, wake| {
            let ends =
                |hold: &Hold| now_ms.is_none_or(|now_ms| hold.until_ms.is_some_and(|until_ms| until_ms <= now_ms));
            if state.hold.as_ref().is_some_and(ends) {
                state.hold = None;
                (wake.all_slots, wake.claimer) = (true, true);
            }
        });
    }
}

impl State {
    /// Nothing runs, and nothing will before somebody ends a hold.
    pub(super) fn blocked(&self) -> Option<Completion> {
        let hold = self.hold.as_ref().filter(|hold| hold.until_ms.is_none())?;
        self.ledger.is_only_waiting().then(|| Completion::Blocked(hold.reason.clone()))
    }

    /// Whether nothing is due that somebody here wants to be pulled.
    fn is_nothing_to_pull(&self) -> bool {
        !self.is_open() || !self.pull.is_active() || self.pull.is_dry()
    }

    /// Promises a place, if there is one or if the thread has it already. `None` if it has to wait for that.
    fn promise_slot(
        &mut self,
        thread: Option<ThreadId>,
        lapses_at_ms: impl Fn() -> i64,
        wake: &mut Wake,
    ) -> Option<Result<(), WaitError>> {
        if !self.is_open() {
            return Some(Err(match &self.init_failure {
                Some(reason) => WaitError::InitFailed(reason.clone()),
                None => WaitError::Stopped,
            }));
        }
        let had_one = thread.is_some_and(|thread| self.capacity.has_reserved(thread));
        if !had_one && !self.has_room_for_new() {
            return None;
        }
        match thread {
            None => self.capacity.add_permit(),
            Some(thread) => {
                self.unreserve(thread);
                let at_ms = lapses_at_ms();
                let number = self.capacity.reserve(thread, at_ms);
                wake.supervisor |= self.timers.set(at_ms, Alarm::Reservation(number));
            }
        }
        Some(Ok(()))
    }
}
