//! The crew: how many workers there are to be, and which are on their way up.
//!
//! ```text
//!   start-up      init hook ──▶ batch ──▶ pause ──▶ batch ──▶ … ──▶ RUNNING, or INIT_FAILED if none came up
//!   from then on  what waits, what is idle ──▶ target ──▶ start what is missing, stop what is too much
//! ```
//!
//! What is missing because more are wanted starts at once. What is missing because workers have ended is replaced, at most two for each
//! that ended; what failed to start is tried again every minute, two at a time.

use std::time::Duration;

use super::{Ready, State, Wake};
use crate::clock::milliseconds;
use crate::pool::capacity::{Supply, WorkerNumber};
use crate::pool::scaling::{Scaling, Snapshot};
use crate::pool::stats::PoolPhase;
use crate::pool::timers::Alarm;
use crate::sync::thread::JoinHandle;

/// How many workers are replaced at a time.
const REPLACEMENTS_PER_PASS: usize = 2;

/// How often it is looked whether workers are missing.
const RECONCILE_EVERY_MS: i64 = 60_000;

/// How long it is at least from one worker that was sent away to the next.
const STOP_EVERY_MS: i64 = 1_000;

/// How many workers there may be, and how they come to be.
#[derive(Clone, Copy, Debug)]
pub(in crate::pool) struct CrewLimits {
    pub(in crate::pool) min_workers: usize,
    pub(in crate::pool) max_workers: usize,
    pub(in crate::pool) scaling: Scaling,
    pub(in crate::pool) startup_batch: usize,
    pub(in crate::pool) startup_pause: Duration,
    pub(in crate::pool) max_units_per_worker: Option<u64>,
    /// `None` means as many as there are workers.
    pub(in crate::pool) max_abandoned: Option<usize>,
}

impl CrewLimits {
    pub(super) fn supply(&self) -> Supply {
        match self.scaling {
            Scaling::OnDemand | Scaling::Adaptive { .. } => Supply::OnDemand,
            Scaling::Fixed | Scaling::Threshold { .. } => Supply::Ahead,
        }
    }
}

/// How far the start-up has come.
#[derive(Debug)]
struct Startup {
    /// What came of the init hook, once it has returned.
    hook: Option<Result<(), String>>,
    is_hook_left_behind: bool,
    /// Workers that are still to be started.
    left: usize,
    /// How many were asked to start.
    wanted: usize,
    /// When the next ones may.
    next_batch_ms: Option<i64>,
    /// Why the last one that failed did.
    failure: Option<String>,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Crew {
    pub(super) limits: CrewLimits,
    /// How many workers there should be.
    size: usize,
    /// How many may be replaced now.
    replacements: usize,
    /// When the last one was sent away for being idle.
    stopped_at_ms: Option<i64>,
    /// When it is looked next whether one has been idle for too long.
    idle_alarm_ms: Option<i64>,
    failed_starts: u64,
    startup: Startup,
}

impl Crew {
    pub(super) fn new(limits: CrewLimits) -> Crew {
        let first = limits.scaling.first(limits.min_workers, limits.max_workers);
        let startup = Startup {
            hook: None,
            is_hook_left_behind: false,
            left: first,
            wanted: first,
            next_batch_ms: None,
            failure: None,
        };
        Crew {
            limits,
            size: first,
            replacements: 0,
            stopped_at_ms: None,
            idle_alarm_ms: None,
            failed_starts: 0,
            startup,
        }
    }

    pub(super) fn scaling(&self) -> Scaling {
        self.limits.scaling
    }

    /// How many units must wait for another worker to be started ahead; 0 if none ever is.
    pub(super) fn threshold(&self) -> usize {
        match self.limits.scaling {
            Scaling::Threshold { queued, .. } => queued,
            Scaling::OnDemand | Scaling::Fixed | Scaling::Adaptive { .. } => 0,
        }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn failed_starts(&self) -> u64 {
        self.failed_starts
    }

    pub(super) fn last_start_failure(&self) -> Option<String> {
        self.startup.failure.clone()
    }
}

/// What is to be done next while the pool comes up.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::pool) enum StartupStep {
    /// Nothing, until something happens.
    Wait,
    /// These are to be started.
    Start(Vec<WorkerNumber>),
    /// It has come up, and is to [run](Ready::begin_running).
    Up,
    /// It will not.
    Failed(String),
}

/// Who is to be started and who is to go.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::pool) struct CrewPlan {
    pub(in crate::pool) start: Vec<WorkerNumber>,
    pub(in crate::pool) stop: Option<WorkerNumber>,
}

impl Ready {
    /// The init hook has returned; with a reason if it failed.
    pub(in crate::pool) fn hook_ends(&self, returned: Result<(), String>) {
        self.change(|state, wake| {
            let startup = &mut state.crew.startup;
            startup.hook.get_or_insert(returned);
            state.abandoned -= usize::from(std::mem::take(&mut startup.is_hook_left_behind));
            wake.supervisor = true;
        });
    }

    /// Whether the init hook has returned, or there was none to call.
    pub(in crate::pool) fn is_hook_over(&self) -> bool {
        self.state.lock().crew.startup.hook.is_some()
    }

    /// Leaves the thread of the init hook behind if it has not returned; says whether it has not.
    pub(in crate::pool) fn leave_hook_behind(&self) -> bool {
        let mut state = self.state.lock();
        let startup = &mut state.crew.startup;
        startup.is_hook_left_behind = startup.hook.is_none();
        let is_left = startup.is_hook_left_behind;
        state.abandoned += usize::from(is_left);
        is_left
    }

    /// The next step of the start-up. Whoever asks must do it.
    pub(in crate::pool) fn next_startup_step(&self, now_ms: i64) -> StartupStep {
        self.change(|state, wake| state.next_startup_step(now_ms, wake))
    }

    /// The pool runs from now on, unless it was stopped meanwhile.
    pub(in crate::pool) fn begin_running(&self, now_ms: i64) {
        self.change(|state, wake| {
            if state.phase == PoolPhase::Initializing {
                state.phase = PoolPhase::Running;
                (wake.all_slots, wake.claimer, wake.initialized, wake.first_ready) = (true, true, true, true);
                // The supervisor, who asks, looks again anyway.
                state.timers.set(now_ms.saturating_add(RECONCILE_EVERY_MS), Alarm::Reconcile);
            }
        });
    }

    /// Who is to be started and who is to go, by what is seen now. Whoever asks must do it.
    pub(in crate::pool) fn plan_crew(&self, now_ms: i64) -> CrewPlan {
        self.change(|state, wake| match state.phase {
            PoolPhase::Running => state.plan_crew(now_ms, wake),
            _ => CrewPlan::default(),
        })
    }

    /// It is time to look whether workers are missing, and will be again.
    pub(in crate::pool) fn reconcile(&self, now_ms: i64) {
        self.change(|state, _| {
            state.crew.replacements = state.crew.replacements.max(REPLACEMENTS_PER_PASS);
            state.timers.set(now_ms.saturating_add(RECONCILE_EVERY_MS), Alarm::Reconcile);
        });
    }

    /// It is time to look whether a worker has been idle for too long.
    pub(in crate::pool) fn idle_alarm_rings(&self) {
        self.state.lock().crew.idle_alarm_ms = None;
    }

    /// A worker did not come up. It is not replaced at once: it would fail again. Its threads are to be joined.
    pub(in crate::pool) fn start_failed(
        &self,
        worker: WorkerNumber,
        reason: &str,
        threads: impl IntoIterator<Item = JoinHandle<()>>,
    ) {
        self.change(|state, wake| {
            state.ended_threads.extend(threads);
            state.capacity.remove(worker);
            state.crew.failed_starts += 1;
            state.crew.startup.failure = Some(reason.to_owned());
            (wake.slot, wake.supervisor) = (true, true);
        });
    }
}

impl State {
    fn next_startup_step(&mut self, now_ms: i64, wake: &mut Wake) -> StartupStep {
        let startup = &mut self.crew.startup;
        match &startup.hook {
            Some(Err(reason)) if self.phase == PoolPhase::Initializing => {
                let reason = reason.clone();
                return self.fail_startup(reason, wake);
            }
            Some(Ok(())) if self.phase == PoolPhase::Initializing && self.capacity.tally().starting == 0 => {}
            _ => return StartupStep::Wait,
        }
        if startup.left == 0 {
            return self.end_startup(wake);
        }
        let is_first = startup.left == startup.wanted;
        let pause_ms = milliseconds(self.crew.limits.startup_pause);
        let next_ms = match startup.next_batch_ms {
            _ if is_first => now_ms,
            Some(next_ms) => next_ms,
            None => *startup.next_batch_ms.insert(now_ms.saturating_add(pause_ms)),
        };
        if next_ms > now_ms {
            wake.supervisor = self.timers.set(next_ms, Alarm::NextBatch);
            return StartupStep::Wait;
        }
        let batch = startup.left.min(self.crew.limits.startup_batch);
        startup.left -= batch;
        startup.next_batch_ms = None;
        let workers = self.capacity.begin_starting(batch);
        // There may be fewer by now. Whoever is not started is not missing: if there may be more again, more are wanted.
        self.crew.size = self.crew.size.saturating_sub(batch - workers.len());
        if workers.is_empty() {
            // Nobody would come up to wake whoever waits for that.
            let left = std::mem::take(&mut self.crew.startup.left);
            self.crew.size = self.crew.size.saturating_sub(left);
            return self.end_startup(wake);
        }
        StartupStep::Start(workers)
    }

    fn end_startup(&mut self, wake: &mut Wake) -> StartupStep {
        let startup = &self.crew.startup;
        if startup.wanted > 0 && self.capacity.tally().up == 0 {
            let cause = startup.failure.as_deref().unwrap_or("all that started have ended");
            return self.fail_startup(format!("no_workers_started: {cause}"), wake);
        }
        StartupStep::Up
    }

    fn fail_startup(&mut self, reason: String, wake: &mut Wake) -> StartupStep {
        self.fail_initializing(reason.clone(), wake);
        StartupStep::Failed(reason)
    }

    fn snapshot(&mut self, now_ms: i64) -> Snapshot {
        Snapshot {
            min_workers: self.crew.limits.min_workers,
            max_workers: self.capacity.max_workers(),
            size: self.crew.size,
            workers: self.capacity.tally().up,
            starting: self.capacity.tally().starting,
            free: self.capacity.free(),
            waiting: self.waiting(),
            // One goes at a time.
            idle_for: if self.is_tick_over(now_ms) { self.capacity.idle_for(now_ms) } else { None },
        }
    }

    /// Whether the last worker that was sent away went long enough ago.
    fn is_tick_over(&self, now_ms: i64) -> bool {
        self.crew.stopped_at_ms.is_none_or(|at_ms| now_ms.saturating_sub(at_ms) >= STOP_EVERY_MS)
    }

    /// How many wait for a worker: units that are due, here or for anybody, and threads that want to bring one.
    fn waiting(&self) -> usize {
        if self.may_start() { self.due_units() + self.pull.backlog() + self.slot_waiters } else { 0 }
    }

    /// Whether the supervisor should look at once, rather than when something becomes due.
    pub(super) fn wants_another_worker(&self) -> bool {
        self.phase == PoolPhase::Running && (self.is_growth_due() || self.is_replacement_due())
    }

    /// Whether a worker that is to be replaced can be.
    fn is_replacement_due(&self) -> bool {
        self.replacements_allowed() > 0 && self.capacity.replaceable() > 0
    }

    fn is_growth_due(&self) -> bool {
        let is_wanted = match self.crew.limits.scaling {
            Scaling::Threshold { queued, .. } => {
                let waiting = self.waiting();
                waiting >= queued.saturating_add(self.capacity.tally().starting + self.capacity.free())
                    || (waiting > 0 && self.crew.size == 0)
            }
            Scaling::OnDemand | Scaling::Fixed | Scaling::Adaptive { .. } => false,
        };
        is_wanted && self.crew.size < self.capacity.max_workers()
    }

    fn plan_crew(&mut self, now_ms: i64, wake: &mut Wake) -> CrewPlan {
        let seen = self.snapshot(now_ms);
        let size = self.crew.limits.scaling.target(&seen);
        let grown = size.saturating_sub(self.crew.size);
        let missing = size.saturating_sub(seen.workers + seen.starting);
        let replaced = missing.saturating_sub(grown).min(self.replacements_allowed());
        let wanted = missing.min(grown) + replaced;
        self.crew.size = size;
        let start = self.capacity.begin_starting(wanted.min(self.capacity.replaceable()));
        // What gave way to somebody's promise is started when that has come to nothing.
        self.crew.replacements = wanted - start.len();
        let stop = self.stop_idle(now_ms, seen.workers + seen.starting > size);
        self.watch_idle(now_ms, wake);
        CrewPlan { start, stop }
    }

    /// How many may be replaced now: none while more threads are left behind than may be.
    fn replacements_allowed(&self) -> usize {
        let limit = self.crew.limits.max_abandoned.unwrap_or(self.max_workers());
        if self.abandoned > limit { 0 } else { self.crew.replacements }
    }

    /// Sends the worker away that has been idle longest, if there is one too many.
    fn stop_idle(&mut self, now_ms: i64, is_one_too_many: bool) -> Option<WorkerNumber> {
        if !is_one_too_many || !self.is_tick_over(now_ms) {
            return None;
        }
        let worker = self.capacity.retire_longest_idle()?;
        self.crew.stopped_at_ms = Some(now_ms);
        Some(worker)
    }

    /// Sees to it that the worker which is idle longest is looked at when its time is up.
    pub(super) fn watch_idle(&mut self, now_ms: i64, wake: &mut Wake) {
        let Some(limit) = self.crew.limits.scaling.idle_limit().filter(|_| self.crew.idle_alarm_ms.is_none()) else {
            return;
        };
        if self.capacity.tally().up <= self.crew.limits.min_workers {
            return;
        }
        if let Some(idle_for) = self.capacity.idle_for(now_ms) {
            let left_ms = milliseconds(limit.saturating_sub(idle_for));
            // It has to be longer than the limit. One whose time is up, and who is still there, is looked at again in a while.
            let in_ms = if left_ms > 0 { left_ms.saturating_add(1) } else { STOP_EVERY_MS };
            let at_ms = now_ms.saturating_add(in_ms);
            self.crew.idle_alarm_ms = Some(at_ms);
            wake.supervisor |= self.timers.set(at_ms, Alarm::Idle);
        }
    }

    /// A worker has ended, and may be replaced at once.
    pub(super) fn worker_ends(&mut self) {
        self.crew.replacements = self.crew.replacements.saturating_add(REPLACEMENTS_PER_PASS);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ready_with;
    use super::*;

    #[test]
    fn a_worker_that_gave_way_to_a_promise_is_started_when_the_promise_comes_to_nothing() {
        // 001-F64, 001-F65
        let ready = ready_with(1, Scaling::Fixed);
        ready.state.lock().phase = PoolPhase::Running;
        let worker = ready.starting_worker();
        ready.worker_is_up(worker, 2, 0);
        ready.state.lock().capacity.add_permit();
        ready.worker_ends(worker, Vec::new());
        assert_eq!(
            ready.plan_crew(0),
            CrewPlan::default(),
            "whoever has the permit may start the only one there may be"
        );
        assert!(!ready.state.lock().wants_another_worker(), "there is nothing to be done yet");
        ready.drop_permit();
        assert!(ready.state.lock().wants_another_worker(), "the supervisor is woken");
        assert_eq!(ready.plan_crew(0).start.len(), 1);
        assert!(!ready.state.lock().wants_another_worker());
    }

    #[test]
    fn a_worker_that_is_not_wanted_any_more_is_not_waited_for() {
        let ready = ready_with(2, Scaling::Fixed);
        ready.state.lock().phase = PoolPhase::Running;
        let workers = [ready.starting_worker(), ready.starting_worker()];
        for worker in workers {
            ready.worker_is_up(worker, 1, 0);
        }
        ready.state.lock().capacity.add_permit();
        ready.worker_ends(workers[0], Vec::new());
        ready.state.lock().capacity.set_max_workers(1);
        assert_eq!(ready.plan_crew(0), CrewPlan::default());
        ready.drop_permit();
        assert!(!ready.state.lock().wants_another_worker());
    }
}
