//! A slot: the thread behind a worker. It takes one task after another from its inbox until it is told to end.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::capacity::{Load, WorkerNumber};
use super::core::Core;
use super::execution::Execution;
use super::inbox::{Inbox, Task};
use super::lock::assert_none_held;
use super::registry::{Abandoned, WorkerCell};
use super::reporter::Report;
use super::run::{self, Ran};
use super::{inside, panics};
use crate::error::RepositoryError;
use crate::sync::thread;
use crate::worker::WorkerChange;

/// How large a slot's stack may become. Only what is used of it takes memory.
const STACK_BYTES: usize = 2 * 1024 * 1024;

/// Starts a worker that is about to get a unit.
pub(super) fn start(core: &Arc<Core>, number: WorkerNumber) -> io::Result<Arc<WorkerCell>> {
    let inbox = Inbox::new();
    let cell = Arc::new(WorkerCell::new(number, inbox.clone()));
    core.registry.add(Arc::clone(&cell));
    match spawn(core, &cell, 0, inbox, None) {
        Ok(()) => Ok(cell),
        Err(error) => {
            core.registry.remove(number);
            cell.end(&core.ready);
            Err(error)
        }
    }
}

/// Leaves the thread of a worker behind that does not come back from its executor, and lets another one go on in its place.
pub(super) fn replace(core: &Arc<Core>, cell: &Arc<WorkerCell>, run: u64) {
    let inbox = Inbox::new();
    match cell.abandon(&core.ready, run, core.settings.max_abandoned, &inbox) {
        Abandoned::No => {}
        Abandoned::Stuck(execution) => close_elsewhere(core, cell, execution),
        Abandoned::Replace { generation, execution } => {
            let first = Task::Close(Arc::clone(&execution));
            if let Err(error) = spawn(core, cell, generation, inbox, Some(first)) {
                log::error!("worker {}: no thread to go on with: {error}", cell.id);
                end(core, cell);
                close_elsewhere(core, cell, execution);
            }
        }
    }
}

/// The reporter brings an attempt to its end that has no thread to do it.
fn close_elsewhere(core: &Core, cell: &Arc<WorkerCell>, execution: Arc<Execution>) {
    core.report(Report::Close { cell: Arc::clone(cell), execution });
}

fn spawn(
    core: &Arc<Core>,
    cell: &Arc<WorkerCell>,
    generation: u64,
    inbox: Inbox,
    first: Option<Task>,
) -> io::Result<()> {
    assert_none_held();
    let thread = thread::Builder::new().name(format!("workcrew-{}", cell.id)).stack_size(STACK_BYTES).spawn({
        let (core, cell) = (Arc::clone(core), Arc::clone(cell));
        move || serve(&core, &cell, generation, &inbox, first)
    })?;
    if let Some(thread) = cell.set_thread(thread, generation) {
        core.ready.thread_ends(Some(thread));
    }
    Ok(())
}

/// The life of a slot's thread.
fn serve(core: &Arc<Core>, cell: &Arc<WorkerCell>, generation: u64, inbox: &Inbox, first: Option<Task>) {
    inside::enter(core.number);
    let mut task = first.unwrap_or_else(|| inbox.take());
    loop {
        match perform(core, cell, generation, task) {
            Ran::Idle => task = inbox.take(),
            Ran::Retiring => break,
            // Another thread is this worker now.
            Ran::Replaced => return,
        }
    }
    if cell.is_replaced(generation) {
        core.ready.returned();
    } else {
        end(core, cell);
    }
}

/// Does one task. Should our own code or a repository panic, the unit in hand is given back and the worker ends.
fn perform(core: &Arc<Core>, cell: &Arc<WorkerCell>, generation: u64, task: Task) -> Ran {
    let execution = match &task {
        Task::Run(execution) | Task::Close(execution) => Some(Arc::clone(execution)),
        Task::Quit => None,
    };
    let performed = catch_unwind(AssertUnwindSafe(|| match task {
        Task::Run(execution) => run::run(core, cell, generation, &execution),
        Task::Close(execution) => run::close_abandoned(core, cell, &execution),
        Task::Quit => Ran::Retiring,
    }));
    performed.unwrap_or_else(|payload| {
        let message = panics::describe(payload);
        log::error!("worker {} panicked outside of its executor: {message}", cell.id);
        // Whoever took its place has the unit too.
        if cell.is_replaced(generation) {
            return Ran::Retiring;
        }
        if let Some(execution) = execution {
            run::give_up(core, &execution);
        }
        cell.settle(&core.ready, true);
        Ran::Retiring
    })
}

/// A worker ends in order: the repository hears of it, the registry forgets it.
pub(super) fn end(core: &Core, cell: &WorkerCell) {
    terminate_row(core, cell);
    core.registry.remove(cell.number);
    let thread = cell.end(&core.ready);
    core.ready.thread_ends(thread);
}

/// SHUTTING_DOWN, then TERMINATED. What the worker still holds is given back by that.
fn terminate_row(core: &Core, cell: &WorkerCell) {
    if !cell.has_row() {
        return;
    }
    let slot = core.slot_of(cell);
    for change in [WorkerChange::ShutDown, WorkerChange::Terminate] {
        let changed = panics::contain("the end of a worker", || {
            core.repository().change_worker(core.owner(), core.job.id, &slot, change)
        });
        match changed {
            Some(Ok(_)) | None => {}
            Some(Err(error)) if error.is_rejection() => log::debug!("worker {}: {error}", cell.id),
            Some(Err(error)) => log::warn!("worker {}: its end was not stored: {error}", cell.id),
        }
    }
}

/// Tells idle workers to end.
pub(super) fn retire(core: &Core, workers: Vec<WorkerNumber>) {
    for cell in workers.into_iter().filter_map(|worker| core.registry.get(worker)) {
        cell.retire();
    }
}

/// Frees the place of a worker that got no unit. Its thread waits, and hears if it is one too many.
pub(super) fn give_back(core: &Core, cell: &WorkerCell) {
    if cell.settle(&core.ready, false) == Load::Retiring {
        cell.retire();
    }
}

/// The same after an error. If that says nothing about whether a unit was claimed, the worker may hold one.
pub(super) fn give_back_after(core: &Core, cell: &WorkerCell, error: &RepositoryError) {
    if error.is_rejection() { give_back(core, cell) } else { dismiss(core, cell) }
}

/// Ends a worker that may hold what nobody here knows of, which gives that back.
pub(super) fn dismiss(core: &Core, cell: &WorkerCell) {
    cell.note_row();
    cell.settle(&core.ready, true);
    cell.retire();
}

/// Frees a worker's place, on its own thread.
pub(super) fn free(core: &Core, cell: &WorkerCell, must_retire: bool) -> Ran {
    match cell.settle(&core.ready, must_retire) {
        Load::Retiring => Ran::Retiring,
        Load::Idle | Load::Busy | Load::Reporting => Ran::Idle,
    }
}
