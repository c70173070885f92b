//! Those who wait: for a place, for completion, for the end of a hold.

use std::time::Instant;

use super::{Ready, State, Wake};
use crate::pool::error::WaitError;
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::sync::Condvar;
use crate::sync::atomic::Ordering;
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
    /// Nothing runs, and what waits cannot begin before somebody calls `resume`, or raises a budget.
    Blocked(String),
    /// The pool stopped first, or was never started.
    Stopped,
    /// The time was up.
    TimedOut,
    /// The caller is one of the pool's own threads, which would wait for itself.
    WouldDeadlock,
}

/// Two dates of a provider that are no further apart are one that was read from the calendar twice.
const SAME_MS: i64 = 100;

/// Why nothing is started.
#[derive(Clone, Debug)]
pub(super) struct Hold {
    pub(super) reason: String,
    pub(super) end: HoldEnd,
}

/// When a hold ends, in milliseconds of the pool's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum HoldEnd {
    /// When somebody ends it.
    Told,
    /// By itself.
    At(i64),
    /// The same, or before that if it turns out that the provider may be asked again.
    Provider(i64),
    /// When a budget has enough left, which is tried again then. What was claimed before is paid for, and is executed.
    Funded { again_ms: i64, is_exhausted: bool },
}

impl Hold {
    /// When it ends by itself, or is looked at again.
    pub(super) fn until_ms(&self) -> Option<i64> {
        match self.end {
            HoldEnd::Told => None,
            HoldEnd::At(until_ms) | HoldEnd::Provider(until_ms) | HoldEnd::Funded { again_ms: until_ms, .. } => {
                Some(until_ms)
            }
        }
    }

    /// When it ends, as far as anybody can tell.
    pub(super) fn told_until_ms(&self) -> Option<i64> {
        match self.end {
            HoldEnd::At(until_ms) | HoldEnd::Provider(until_ms) => Some(until_ms),
            HoldEnd::Told | HoldEnd::Funded { .. } => None,
        }
    }

    /// Whether only somebody outside can bring it to an end.
    fn needs_somebody(&self) -> bool {
        matches!(self.end, HoldEnd::Told | HoldEnd::Funded { is_exhausted: true, .. })
    }

    fn is_of_provider(&self) -> bool {
        matches!(self.end, HoldEnd::Provider(_))
    }

    /// Whether another one takes its place: one without an end does, and of two with an end the later. That there is no money says the least.
    fn gives_way_to(&self, other: HoldEnd) -> bool {
        match (self.end, other) {
            (HoldEnd::Funded { .. }, _) => true,
            (_, HoldEnd::Funded { .. }) | (HoldEnd::Told, _) => false,
            (HoldEnd::At(_) | HoldEnd::Provider(_), HoldEnd::Told) => true,
            // The same, known to others by now.
            (HoldEnd::At(before_ms), HoldEnd::Provider(until_ms)) => before_ms <= until_ms,
            // Whoever is held for a moment less than it should be is told again, by the turn that it does not get.
            (HoldEnd::Provider(before_ms), HoldEnd::Provider(until_ms)) => before_ms.saturating_add(SAME_MS) < until_ms,
            (HoldEnd::At(before_ms) | HoldEnd::Provider(before_ms), HoldEnd::At(until_ms)) => before_ms < until_ms,
        }
    }
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

    /// Starts nothing until then. A hold without an end stays until somebody ends it; of two with an end the later counts. Says whether
    /// this one does.
    pub(in crate::pool) fn hold(&self, reason: &str, end: HoldEnd) -> bool {
        self.change(|state, wake| {
            let counts = state.hold.as_ref().is_none_or(|hold| hold.gives_way_to(end));
            if counts {
                let hold = Hold { reason: reason.to_owned(), end };
                wake.supervisor = hold.until_ms().is_some_and(|at_ms| state.timers.set(at_ms, Alarm::HoldEnds));
                wake.settled = true;
                state.hold = Some(hold);
            }
            counts
        })
    }

    /// How many attempts have ended here, for whoever is about to claim: see [`Ready::hold_until_funded`].
    pub(in crate::pool) fn ends(&self) -> u64 {
        self.ends.load(Ordering::SeqCst)
    }

    /// Starts nothing before a budget has enough left; tries again then. If nothing that is under way can leave more, whoever waits for
    /// completion need not wait. An attempt that has ended since the claim began may have left enough, and nobody would say so again: then
    /// it is tried again at once.
    pub(in crate::pool) fn hold_until_funded(&self, reason: &str, again_ms: i64, is_exhausted: bool, ends_before: u64) {
        self.hold(reason, HoldEnd::Funded { again_ms, is_exhausted });
        // Said before it is counted, while whoever ends an attempt counts it before looking: one of the two sees the other.
        self.is_out_of_money.store(true, Ordering::SeqCst);
        if self.ends() != ends_before {
            self.look_for_money();
        }
    }

    /// Whether it was not said before, in these words, that nothing is left.
    pub(in crate::pool) fn over_budget_is_news(&self, reason: &str) -> bool {
        self.change(|state, _| {
            let is_news = state.told_over_budget.as_deref() != Some(reason);
            state.told_over_budget = Some(reason.to_owned());
            is_news
        })
    }

    /// An attempt has ended, so that a budget may have more left.
    pub(in crate::pool) fn money_may_be_left(&self) {
        self.ends.fetch_add(1, Ordering::SeqCst);
        // Asked after every attempt, and hardly ever so.
        if self.is_out_of_money.swap(false, Ordering::SeqCst) {
            self.look_for_money();
        }
    }

    fn look_for_money(&self) {
        self.end_hold(|hold| matches!(hold.end, HoldEnd::Funded { .. }));
    }

    /// Why nothing is executed, if that is so. What was claimed while there was money is.
    pub(in crate::pool) fn hold_reason(&self) -> Option<String> {
        let state = self.state.lock();
        let hold = state.hold.as_ref().filter(|hold| !matches!(hold.end, HoldEnd::Funded { .. }))?;
        Some(hold.reason.clone())
    }

    /// When a hold ends that ends by itself, in milliseconds of the pool's clock.
    pub(in crate::pool) fn held_until_ms(&self) -> Option<i64> {
        self.state.lock().hold.as_ref()?.told_until_ms()
    }

    /// Ends a hold; with a time, only one that ends by itself by then.
    pub(in crate::pool) fn resume(&self, now_ms: Option<i64>) {
        self.end_hold(|hold| now_ms.is_none_or(|now_ms| hold.until_ms().is_some_and(|until_ms| until_ms <= now_ms)));
    }

    /// Whether its provider is what holds it.
    pub(in crate::pool) fn waits_for_provider(&self) -> bool {
        self.state.lock().hold.as_ref().is_some_and(Hold::is_of_provider)
    }

    /// Ends a hold if it is of the provider; says whether it was.
    pub(in crate::pool) fn end_hold_of_provider(&self) -> bool {
        self.end_hold(Hold::is_of_provider)
    }

    fn end_hold(&self, ends: impl Fn(&Hold) -> bool) -> bool {
        self.change(|state, wake| {
            let has_ended = state.hold.as_ref().is_some_and(&ends);
            if has_ended {
                state.hold = None;
                (wake.all_slots, wake.claimer) = (true, true);
            }
            has_ended
        })
    }
}

impl State {
    /// Nothing runs, and nothing will before somebody ends a hold.
    pub(super) fn blocked(&self) -> Option<Completion> {
        let hold = self.hold.as_ref().filter(|hold| hold.needs_somebody())?;
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
