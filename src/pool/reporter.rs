//! The reporter: runs callbacks for outcomes that no worker brought about, tells of workers that have ended, and closes attempts that
//! have no thread to do it.

use std::sync::Arc;
use std::time::Duration;

use super::cell::WorkerCell;
use super::close::patiently;
use super::core::Core;
use super::execution::Execution;
use super::ledger::Left;
use super::lock::assert_none_held;
use super::observe::Event;
use super::open_unit::OpenUnit;
use super::ready::Stop;
use super::{inside, run, slot};
use crate::executor::WorkResult;
use crate::panics;
use crate::unit::{UnitId, UnitKey, UnitStatus};
use crate::worker::WorkerId;

/// What the reporter is to tell.
#[derive(Debug)]
pub(super) enum Report {
    /// A unit ended while it waited.
    Ended { key: UnitKey, unit: Arc<OpenUnit>, status: UnitStatus },
    /// A unit ended that nobody looked after any more.
    Swept { unit_id: UnitId, status: UnitStatus },
    /// An execution did not return, and no thread may take its place.
    Close { cell: Arc<WorkerCell>, execution: Arc<Execution> },
    /// A worker did not come up in time.
    StartFailed { worker_id: WorkerId, reason: String },
    /// A worker has ended, of which the executor is to hear.
    EndWorker { worker_id: WorkerId },
    /// A worker has ended.
    WorkerEnded { worker_id: WorkerId, has_crashed: bool },
    /// There will be no more.
    Quit,
}

/// The life of the reporter's thread.
pub(super) fn serve(core: &Core) {
    inside::enter(core.number);
    let mut is_to_quit = false;
    // Somebody may have been about to send a report when there were to be no more.
    while !(is_to_quit && core.ready.reporter_may_end()) {
        match core.reports.take() {
            Report::Quit => is_to_quit = true,
            report => {
                tell(core, report);
                core.ready.report_told();
            }
        }
    }
    let grace = match core.ready.stop_mode() {
        Some(Stop::Now) => Duration::ZERO,
        Some(Stop::Cancel { .. }) => core.settings.kill_grace,
        Some(Stop::Drain) | None => core.settings.shutdown_grace,
    };
    panics::contain("the end of an executor", || core.runtime.pool_stopped(&*core.executor, grace));
    core.ready.reporter_ends();
}

fn tell(core: &Core, report: Report) {
    match report {
        Report::Ended { key, unit, status } => {
            panics::contain("the reporter", || tell_ended(core, unit.id(), status));
            unit.leave(Left::Ended(status));
            core.ready.unit_closes(key, &unit);
        }
        Report::Swept { unit_id, status } => {
            panics::contain("the reporter", || tell_ended(core, unit_id.as_str(), status));
        }
        Report::Close { cell, execution } => {
            if panics::contain("the reporter", || run::close_stuck(core, &cell, &execution)).is_none() {
                run::give_up(core, &execution);
                if execution.closed().is_some() {
                    slot::free_stuck(core, &cell, &execution);
                }
            }
        }
        Report::StartFailed { worker_id, reason } => {
            core.callbacks.tell_of(|| Event::WorkerStartFailed { worker_id: &worker_id, reason: &reason });
        }
        Report::EndWorker { worker_id } => {
            assert_none_held();
            panics::contain("end_worker", || core.runtime.end_worker(&*core.executor, &worker_id));
        }
        Report::WorkerEnded { worker_id, has_crashed } => {
            core.callbacks.tell_of(|| Event::WorkerEnded { worker_id: &worker_id, has_crashed });
        }
        Report::Quit => {}
    }
}

fn tell_ended(core: &Core, id: &str, status: UnitStatus) {
    if let Ok(unit_id) = UnitId::new(id) {
        core.callbacks.tell_of(|| Event::UnitEnded { unit_id: &unit_id, status });
    }
    if !core.callbacks.wants(status) {
        return;
    }
    match patiently(core, id, || core.repository().unit(core.job.id, id)) {
        Ok(stored) if stored.status == status => core.callbacks.unit_ended(&stored, &result_of(&stored)),
        Ok(stored) => log::warn!("unit {id}: no callback for {status}, it is {} by now", stored.status),
        Err(error) => log::error!("unit {id}: no callback, it could not be read: {error}"),
    }
}

/// What is stored of a result.
fn result_of(unit: &crate::unit::WorkUnit) -> WorkResult {
    let mut result = WorkResult::empty();
    result.output = unit.output.clone();
    result.json = unit.result.clone();
    result.output_files = unit.output_files.clone();
    result.session_id = unit.session_id.clone();
    result
}
