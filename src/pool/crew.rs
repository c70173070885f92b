//! The crew: starts the workers that are wanted and sends away those that are not. How many that are is decided in
//! [`Ready`](super::ready::Ready); this does it, on the supervisor's thread.

use std::sync::Arc;

use super::adaptive;
use super::capacity::WorkerNumber;
use super::cell::Birth;
use super::core::Core;
use super::error::StartError;
use super::ready::{CrewPlan, StartupStep, Stop};
use super::settings;
use super::slot;
use super::stopping::begin_stop;

/// Does what is to be done now.
pub(super) fn look_after(core: &Arc<Core>) {
    match core.ready.next_startup_step(core.now_ms()) {
        StartupStep::Wait => {}
        StartupStep::Start(workers) => start_all(core, workers),
        StartupStep::Up => {
            let stats = core.ready.stats();
            let (up, max_workers) = (stats.total_workers, stats.max_workers);
            log::info!("{}: the pool runs with {up} of up to {max_workers} workers", core.job.id);
            // Whoever waited for it may ask how long it took.
            core.note_initialized();
            core.ready.begin_running(core.now_ms());
        }
        StartupStep::Failed(reason) => begin_stop(core, Stop::Now, &format!("it could not be started: {reason}")),
    }
    let CrewPlan { start, stop } = core.ready.plan_crew(core.now_ms());
    start_all(core, start);
    slot::retire(core, stop);
}

/// Changes how many workers there may be, on the thread of whoever wants that.
pub(super) fn set_max_workers(core: &Core, max_workers: usize) -> Result<(), StartError> {
    if let Some(problem) = settings::max_workers_problem(max_workers) {
        return Err(StartError::Setting { name: "max_workers", problem });
    }
    let (idle, adaptation) = core.ready.set_max_workers(max_workers, core.clock.now());
    slot::retire(core, idle);
    adaptation.iter().for_each(|adaptation| adaptive::tell(core, adaptation));
    Ok(())
}

fn start_all(core: &Arc<Core>, workers: Vec<WorkerNumber>) {
    for worker in workers {
        if let Err(error) = slot::start(core, worker, Birth::Ahead) {
            log::error!("{}: no thread for a worker: {error}", core.job.id);
        }
    }
}
