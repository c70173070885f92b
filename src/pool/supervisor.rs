//! The supervisor: serves the timers, sees to it that there are as many workers as there should be (`crew`), asks executions to
//! stop when their time is up, leaves those behind that do not, and brings the pool to its end (`stopping`). It never runs the user's code.

use std::sync::Arc;
use std::time::Duration;

use super::capacity::WorkerNumber;
use super::cell::WorkerCell;
use super::core::Core;
use super::execution::Execution;
use super::heartbeat::Leases;
use super::stopping::Stopping;
use super::timers::Alarm;
use super::{crew, homes, slot};
use crate::executor::CancelReason;
use crate::panics;
use crate::sync::thread::JoinHandle;

/// The longest sleep; it is cut short by whatever becomes due.
const LONGEST_SLEEP: Duration = Duration::from_secs(3_600);

/// How long it is until it is looked again at a unit that waited in line for too long.
const SWEEP_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The threads that end when the supervisor does.
#[derive(Debug)]
pub(super) struct Helpers {
    pub(super) claimer: JoinHandle<()>,
    pub(super) heartbeat: JoinHandle<()>,
    pub(super) reporter: JoinHandle<()>,
    /// The one that runs the init hook.
    pub(super) init: Option<JoinHandle<()>>,
}

/// The life of the supervisor's thread.
pub(super) fn serve(core: &Arc<Core>, helpers: Helpers) {
    let (mut stopping, mut leases) = (Stopping::default(), Leases::default());
    loop {
        while let Some(alarm) = core.ready.pop_due(core.now_ms()) {
            panics::contain("the supervisor", || ring(core, alarm, &mut stopping, &mut leases));
        }
        join(core.ready.ended_threads());
        homes::see_off(core);
        panics::contain("the supervisor", || crew::look_after(core));
        if panics::contain("the supervisor", || stopping.is_over(core)).unwrap_or(false) {
            break;
        }
        let sleep = core.ready.next_alarm_ms().map_or(LONGEST_SLEEP, |at_ms| until(core, at_ms));
        core.ready.supervisor.wait(Some(sleep));
    }
    stopping.end(core, helpers);
}

/// How long it is until then.
pub(super) fn until(core: &Core, at_ms: i64) -> Duration {
    let left_ms = u64::try_from(at_ms.saturating_sub(core.now_ms())).unwrap_or_default();
    Duration::from_millis(left_ms).min(LONGEST_SLEEP)
}

fn ring(core: &Arc<Core>, alarm: Alarm, stopping: &mut Stopping, leases: &mut Leases) {
    match alarm {
        Alarm::Execution { worker, run } => time_is_up(core, worker, run),
        Alarm::Reservation(number) => core.ready.lapse(number),
        // Seen to when it was taken out.
        Alarm::Retry(_) => {}
        Alarm::QueueTimeout(unit) => {
            if core.ready.queue_time_is_up(unit, core.in_ms(SWEEP_AGAIN_AFTER)) {
                core.heartbeat.wake();
            }
        }
        Alarm::Poll => {
            if core.ready.poll(core.in_ms(core.settings.poll_interval)) {
                core.heartbeat.wake();
            }
        }
        Alarm::Look => core.ready.work_came(),
        Alarm::Leases => leases.are_about_to_end(core),
        Alarm::HoldEnds => core.resume(Some(core.now_ms())),
        Alarm::Startup { worker, start } => slot::late_start(core, worker, Some(start), CancelReason::TimedOut),
        // The crew is looked after in any case.
        Alarm::NextBatch => {}
        Alarm::Idle => core.ready.idle_alarm_rings(),
        Alarm::Reconcile => core.ready.reconcile(core.now_ms()),
        Alarm::WorkerAge(worker) => slot::retire_old(core, worker),
        Alarm::TaintEnds(worker) => {
            if let Some(cell) = core.registry.get(worker) {
                cell.restart(&core.ready, core.now_ms(), core.in_ms(core.settings.startup_timeout));
            }
        }
        Alarm::Forget(worker) => core.registry.remove(worker),
        Alarm::StartGrace => stopping.start_time_is_up(),
        Alarm::StopGrace => stopping.time_is_up(core),
    }
}

/// An execution has used up its time, or the grace after that.
fn time_is_up(core: &Arc<Core>, worker: WorkerNumber, run: u64) {
    let Some(cell) = core.registry.get(worker) else { return };
    match cell.ask(&core.ready, run, core.in_ms(core.settings.kill_grace)) {
        Some(execution) => {
            execution.cancel.cancel(CancelReason::TimedOut);
        }
        None => slot::replace(core, &cell, run),
    }
}

/// Asks an execution to stop, which it has the usual grace to do.
pub(super) fn ask_to_stop(core: &Core, cell: &WorkerCell, execution: &Execution, reason: CancelReason) {
    cell.ask(&core.ready, execution.run, core.in_ms(core.settings.kill_grace));
    execution.cancel.cancel(reason);
}

pub(super) fn join(threads: impl IntoIterator<Item = JoinHandle<()>>) {
    for thread in threads {
        if thread.join().is_err() {
            log::error!("a thread of the pool panicked");
        }
    }
}
