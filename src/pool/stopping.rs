//! How a pool comes to its end: whoever executes or comes up is asked to stop, waited for, and left behind; then the last threads end.
//! It begins on the thread of whoever wants it; the rest happens on the supervisor's.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::cell::{LeftBehind, Spare, WorkerCell};
use super::core::Core;
use super::execution::Execution;
use super::ledger::Left;
use super::open_unit::OpenUnit;
use super::ready::Stop;
use super::stats::{PoolPhase, PoolStats};
use super::supervisor::{Helpers, join};
use super::timers::Alarm;
use super::{claimer, homes, slot};
use crate::executor::CancelReason;
use crate::panics;

/// How long the reporter may take for its last words, once nothing else is waited for.
const REPORTER_PATIENCE: Duration = Duration::from_millis(250);

/// Begins to stop a pool. What waits is left PENDING.
pub(super) fn begin_stop(core: &Core, stop: Stop, why: &str) {
    leave_waiting(core, mark_stop(core, stop, why));
}

/// From now on the pool takes and begins nothing. Returns what waits, which is to [leave](leave_waiting).
pub(super) fn mark_stop(core: &Core, stop: Stop, why: &str) -> Vec<Arc<OpenUnit>> {
    let stats = core.ready.stats();
    let (waiting, is_news) = core.ready.begin_stop(stop);
    if is_news {
        log_stop(core, &stats, why);
        // It tells the records.
        core.heartbeat.wake();
        core.turns.wake_all();
    }
    waiting
}

/// What waits is let go, for which the repository has to answer, and then left PENDING.
pub(super) fn leave_waiting(core: &Core, waiting: Vec<Arc<OpenUnit>>) {
    if !waiting.is_empty() {
        let_go(core);
    }
    for unit in waiting {
        unit.leave(Left::Pending);
    }
}

/// What waits is anybody's from now on, and nobody fails it for waiting: what runs may take its time to end.
pub(super) fn let_go(core: &Core) {
    if let Some(Err(error)) = panics::contain("letting go", || core.repository().let_go(core.owner())) {
        log::warn!("{}: what waits is this pool's until it has stopped: {error}", core.job.id);
    }
}

/// Says once why a pool stops, and what it leaves.
fn log_stop(core: &Core, stats: &PoolStats, why: &str) {
    let (job, label) = (core.job.id, &core.settings.label);
    // That it did not come up nobody has asked for.
    let level = if stats.phase == PoolPhase::InitFailed { log::Level::Warn } else { log::Level::Info };
    log::log!(level, "{job}: the pool `{label}` stops: {why}");
    log::debug!(
        "{job}: the pool `{label}` stops: initialized {}, workers {}, available {}, busy {}, queued {}, waiters {}",
        core.init_time().is_some(),
        stats.total_workers,
        stats.idle_workers,
        stats.busy_workers,
        stats.queue_size,
        stats.slot_waiters,
    );
    if stats.init_waiters > 0 {
        log::info!("{job}: the pool `{label}` stops: waited for in vain by {}", stats.init_waiters);
    }
}

/// How far the end of the pool has come.
#[derive(Debug, Default)]
pub(super) struct Stopping {
    /// Whether those on their way up have been asked to give up.
    has_asked_starting: bool,
    /// Whether they are not waited for any more.
    is_start_grace_over: bool,
    /// When the grace ends that was given last.
    grace_ms: Option<i64>,
    is_grace_over: bool,
    /// Whether even those are not waited for any more who are storing how their attempts ended.
    is_patience_over: bool,
}

impl Stopping {
    /// Does the next step of stopping, if the pool stops; says whether that was the last.
    pub(super) fn is_over(&mut self, core: &Arc<Core>) -> bool {
        let Some(state) = core.ready.stop_state() else { return false };
        self.end_starting(core, state.mode);
        if let Some(grace) = state.mode.grace() {
            self.ask_all(core, grace);
        }
        if self.is_grace_over {
            self.leave_behind(core);
        }
        let cells = core.registry.snapshot();
        if cells.iter().any(|cell| cell.is_stuck()) {
            // What is not stored now is given back with its worker.
            core.store_unstored();
        }
        for cell in cells {
            // Their attempts have ended, and nobody knows when they come back.
            if cell.is_stuck() {
                leave(core, &cell, Spare::Nobody);
            }
            cell.retire_tainted(&core.ready);
        }
        if state.busy == 0 || self.is_grace_over {
            slot::retire(core, core.ready.retire_idle());
        }
        // A callback may take for ever. Whoever has brought an attempt to its end is about to tell, unless it cannot.
        let is_quiet =
            !state.has_open_units || (self.is_grace_over && !state.has_untold_units) || self.is_patience_over;
        let is_hook_over = self.is_start_grace_over || core.ready.is_hook_over();
        let is_claimer_over = self.is_grace_over || !state.is_asking;
        state.busy == 0 && state.live == 0 && is_quiet && is_hook_over && is_claimer_over
    }

    /// Asks whoever is on the way up to give up, and leaves behind who does not.
    fn end_starting(&mut self, core: &Arc<Core>, mode: Stop) {
        let cells = core.registry.snapshot();
        if !self.has_asked_starting {
            self.has_asked_starting = true;
            core.init_cancel.cancel(CancelReason::Shutdown);
            core.ready.set_alarm(core.in_ms(core.settings.kill_grace), Alarm::StartGrace);
        }
        for token in cells.iter().filter_map(|cell| cell.start_token()) {
            token.cancel(CancelReason::Shutdown);
        }
        self.is_start_grace_over |= mode == Stop::Now;
        if self.is_start_grace_over {
            for cell in cells {
                slot::late_start(core, cell.number, None, CancelReason::Shutdown);
            }
        }
    }

    /// Asks every execution to stop, and sets the time after which none is waited for.
    fn ask_all(&mut self, core: &Core, grace: Duration) {
        let grace_ms = core.in_ms(grace);
        if self.grace_ms.is_none_or(|before_ms| grace_ms < before_ms) {
            if let Some(before_ms) = self.grace_ms.replace(grace_ms) {
                // Rung twice, it would not spare those who are storing.
                core.ready.clear_alarm(before_ms, Alarm::StopGrace);
            }
            core.ready.set_alarm(grace_ms, Alarm::StopGrace);
        }
        for cell in core.registry.snapshot() {
            for execution in cell.executing() {
                execution.cancel.cancel(CancelReason::Shutdown);
            }
        }
    }

    /// The grace is over: whoever still works is left behind, and its unit given back.
    fn leave_behind(&self, core: &Arc<Core>) {
        let spare = if self.is_patience_over { Spare::Nobody } else { Spare::WhoStores };
        for cell in core.registry.snapshot() {
            leave(core, &cell, spare);
        }
    }

    /// The grace is over, or what follows it for those who are storing.
    pub(super) fn time_is_up(&mut self, core: &Arc<Core>) {
        if self.is_grace_over {
            self.is_patience_over = true;
        } else {
            self.is_grace_over = true;
            core.ready.set_alarm(core.in_ms(core.settings.kill_grace), Alarm::StopGrace);
        }
        self.leave_behind(core);
    }

    /// Whoever is on the way up is not waited for any more.
    pub(super) fn start_time_is_up(&mut self) {
        self.is_start_grace_over = true;
    }

    /// The last steps: nobody works any more.
    pub(super) fn end(&self, core: &Core, helpers: Helpers) {
        for unit in core.ready.leave_all() {
            unit.leave(Left::Pending);
        }
        // Whoever did not come up a moment ago has yet to send word of it.
        join(core.ready.ended_threads());
        core.end_helpers();
        join([helpers.heartbeat]);
        // A scheduler may take for ever, and whatever it answers, nothing is begun any more.
        if !core.ready.leave_claimer_behind() {
            join([helpers.claimer]);
        }
        if !core.ready.leave_hook_behind() {
            join(helpers.init);
        }
        // A callback that does not return would keep the reporter for ever. One that tells of what has just happened is about to return.
        if self.is_grace_over {
            core.ready.wait_for_reporter(Instant::now() + REPORTER_PATIENCE);
        }
        if !(self.is_grace_over && core.ready.leave_reporter_behind()) {
            join([helpers.reporter]);
        }
        join(core.ready.ended_threads());
        panics::contain("the supervisor", || {
            core.store_unstored();
            let ended = core.repository().end_owner(core.owner()).or_else(|error| match error.is_passing() {
                true => core.repository().end_owner(core.owner()),
                false => Err(error),
            });
            if let Err(error) = ended {
                log::error!("{}: the end of the pool was not stored: {error}", core.job.id);
                *core.stop_error.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            }
        });
        homes::move_out(core);
        core.stop_clock();
        // Whoever waits for a unit need not wait for a callback that nobody waits for.
        for (unit, left) in core.ready.end() {
            unit.leave(left);
        }
        log::info!("{}: the pool has stopped: {}", core.job.id, core.summary(true));
    }
}

/// Ends a worker whose threads have not come back, and gives back what they execute.
fn leave(core: &Core, cell: &WorkerCell, spare: Spare) {
    let had = cell.leave_behind(&core.ready, spare);
    if had.is_empty() {
        return;
    }
    slot::end(core, cell);
    for had in had {
        give_back(core, had);
    }
}

/// Gives back what a thread had in hand that was left behind, unless that is done.
fn give_back(core: &Core, had: LeftBehind) {
    match had {
        LeftBehind::Executing(execution) => {
            log::warn!("unit {}: its executor did not stop, the thread is left behind", execution.claim.unit.id);
            execution.closed();
            match left_by(core, &execution) {
                Left::Ended(status) => {
                    claimer::ended(core, execution.claim.lease.attempt(), status, None);
                }
                left => leaves(core, &execution, left),
            }
        }
        LeftBehind::Storing(execution) => leaves(core, &execution, left_by(core, &execution)),
        LeftBehind::Stored(execution, left) => leaves(core, &execution, left),
    }
}

/// What became of a unit when its worker ended: it was given back, unless its attempt was the last, as it also is if somebody
/// had asked to cancel the unit.
fn left_by(core: &Core, execution: &Execution) -> Left {
    let lease = &execution.claim.lease;
    match core.repository().unit(core.job.id, lease.unit_id.as_str()) {
        Ok(unit) if unit.status.is_terminal() && unit.attempt_count == lease.attempt_number => Left::Ended(unit.status),
        Ok(_) => Left::Pending,
        Err(error) => {
            log::warn!("unit {}: what became of it could not be read: {error}", lease.unit_id);
            Left::Pending
        }
    }
}

/// The unit leaves, whatever the thread that was left behind says later. If it ended, that thread's callback comes first.
fn leaves(core: &Core, execution: &Execution, left: Left) {
    let is_news = core.ready.unit_leaves(execution.claim.lease.attempt(), left).is_some();
    if is_news && !matches!(left, Left::Ended(_)) {
        execution.unit.leave(left);
    }
}
