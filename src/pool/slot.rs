//! A slot: the threads behind a worker, one for each of its lanes. The first brings the worker up; then each takes one task after
//! another from its inbox until it is told to end.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::capacity::{Condition, WorkerNumber};
use super::cell::{Abandoned, After, Birth, LaneNumber, LateStart, Reserved, Settled, Wear, WorkerCell};
use super::close::patiently;
use super::core::Core;
use super::execution::Execution;
use super::inbox::{Inbox, Task};
use super::lock::assert_none_held;
use super::observe::Event;
use super::open_unit::OpenUnit;
use super::reporter::Report;
use super::run::{self, Ran};
use super::timers::Alarm;
use super::{homes, inside};
use crate::clock::milliseconds;
use crate::error::RepositoryError;
use crate::executor::{CancelReason, ExecuteError};
use crate::panics;
use crate::sync::thread;
use crate::worker::{WorkerChange, WorkerStatus};

/// How large a slot's stack may become. Only what is used of it takes memory.
const STACK_BYTES: usize = 2 * 1024 * 1024;

/// When it is looked again at a worker that is too old and could not go.
const LOOK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long a worker that has ended stays in the registry.
const FORGET_AFTER: Duration = Duration::from_secs(30);

/// Starts a worker.
pub(super) fn start(core: &Arc<Core>, number: WorkerNumber, birth: Birth) -> io::Result<Arc<WorkerCell>> {
    let inbox = Inbox::new();
    let cell = Arc::new(WorkerCell::new(number, inbox.clone(), birth));
    core.registry.add(Arc::clone(&cell));
    cell.begin_start(&core.ready, core.now_ms(), core.in_ms(core.settings.startup_timeout));
    match spawn(core, &cell, Thread { lane: LaneNumber::FIRST, generation: 0, inbox }, Some(Task::Restart)) {
        Ok(()) => Ok(cell),
        Err(error) => {
            core.registry.remove(number);
            cell.has_no_thread(&core.ready, &format!("no thread for worker {}: {error}", cell.id));
            Err(error)
        }
    }
}

/// Lets a worker take a unit upon itself, with one more thread if it needs that; says whether it does.
pub(super) fn reserve(core: &Arc<Core>, cell: &Arc<WorkerCell>) -> io::Result<bool> {
    match cell.reserve() {
        Reserved::No => Ok(false),
        Reserved::Yes => Ok(true),
        Reserved::WithLane { lane, generation, inbox } => {
            let spawned = spawn(core, cell, Thread { lane, generation, inbox }, None);
            spawned.map(|()| true).inspect_err(|_| {
                cell.lose_lane(lane);
                give_back(core, cell, None);
            })
        }
    }
}

/// A worker has had its time to come up; `start` says which time it was meant, `None` whichever.
pub(super) fn late_start(core: &Arc<Core>, number: WorkerNumber, start: Option<u64>, reason: CancelReason) {
    let Some(cell) = core.registry.get(number) else { return };
    let message = match reason {
        CancelReason::Shutdown => format!("worker {} was on its way up when the pool stopped", cell.id),
        _ => format!("worker {} did not come up within {:?}", cell.id, core.settings.startup_timeout),
    };
    match cell.give_up_start(&core.ready, start, &message) {
        LateStart::Not => {}
        LateStart::Ended(cancel) => {
            cancel.cancel(reason);
            log::warn!("{}: {message}; its thread is left behind", core.job.id);
            end_row(core, &cell);
            // Its other lanes have nothing in hand, and wait.
            core.ready.thread_ends(cell.end(&core.ready));
            forget_later(core, &cell);
            core.report(Report::StartFailed { worker_id: cell.id.clone(), reason: message });
            announce_end(core, &cell);
        }
        LateStart::WithUnit { run, cancel } => {
            cancel.cancel(reason);
            core.report(Report::StartFailed { worker_id: cell.id.clone(), reason: message });
            replace(core, &cell, run);
        }
    }
}

/// Leaves a thread of a worker behind that does not come back from its executor, and lets another one go on in its place.
pub(super) fn replace(core: &Arc<Core>, cell: &Arc<WorkerCell>, run: u64) {
    let inbox = Inbox::new();
    let start = cell.start_token();
    match cell.abandon(&core.ready, run, core.settings.max_abandoned, &inbox) {
        Abandoned::No => {}
        Abandoned::Stuck(execution) => close_elsewhere(core, cell, execution),
        Abandoned::Replace { lane, generation, execution } => {
            // Taken from a thread that was still on its way up, the unit takes its worker with it.
            if let Some(cancel) = start.filter(|_| lane == LaneNumber::FIRST) {
                cancel.cancel(execution.cancel.reason().unwrap_or(CancelReason::TimedOut));
            }
            let first = Task::Close(Arc::clone(&execution));
            if let Err(error) = spawn(core, cell, Thread { lane, generation, inbox }, Some(first)) {
                log::error!("worker {}: no thread to go on with: {error}", cell.id);
                cell.lose_lane(lane);
                // It takes nothing more, and ends when it is done with what it has.
                cell.taint(&core.ready);
                close_elsewhere(core, cell, execution);
            }
        }
    }
}

/// The reporter brings an attempt to its end that has no thread to do it.
fn close_elsewhere(core: &Core, cell: &Arc<WorkerCell>, execution: Arc<Execution>) {
    core.report(Report::Close { cell: Arc::clone(cell), execution });
}

/// Which of a worker's threads is meant, and where it finds what it is to do.
struct Thread {
    lane: LaneNumber,
    generation: u64,
    inbox: Inbox,
}

fn spawn(core: &Arc<Core>, cell: &Arc<WorkerCell>, of: Thread, first: Option<Task>) -> io::Result<()> {
    assert_none_held();
    let (lane, generation) = (of.lane, of.generation);
    let name = match lane {
        LaneNumber::FIRST => format!("workcrew-{}", cell.id),
        LaneNumber(lane) => format!("workcrew-{}.{}", cell.id, lane + 1),
    };
    let thread = thread::Builder::new().name(name).stack_size(STACK_BYTES).spawn({
        let (core, cell) = (Arc::clone(core), Arc::clone(cell));
        move || serve(&core, &cell, &of, first)
    })?;
    if let Some(thread) = cell.set_thread(lane, thread, generation) {
        core.ready.thread_ends([thread]);
    }
    Ok(())
}

/// The life of a slot's thread.
fn serve(core: &Arc<Core>, cell: &Arc<WorkerCell>, of: &Thread, first: Option<Task>) {
    inside::enter(core.number);
    let slot = Slot { core, cell, lane: of.lane, generation: of.generation };
    let mut task = first.unwrap_or_else(|| of.inbox.take());
    let mut broken = None;
    let ran = loop {
        let is_successor = matches!(task, Task::Close(_));
        let ran = match task {
            Task::Restart => slot.bring_up().unwrap_or_else(|error| {
                broken = Some(error);
                Ran::Idle
            }),
            task => slot.perform(task, broken.take()),
        };
        match ran {
            // What a worker has is its thread's, if it has only one: a new one has to come up as the first did.
            Ran::Idle if is_successor && cell.capacity() == 1 => {
                cell.begin_start(&core.ready, core.now_ms(), core.in_ms(core.settings.startup_timeout));
                task = Task::Restart;
            }
            Ran::Idle => task = of.inbox.take(),
            ran => break ran,
        }
    };
    match ran {
        // Another thread is this worker now, and has been told.
        Ran::Replaced | Ran::Ended => {}
        _ if slot.is_replaced() => core.ready.returned(),
        Ran::Leaving => {}
        Ran::Idle | Ran::Retiring => end(core, cell),
    }
}

/// A thread and the worker it is behind.
#[derive(Clone, Copy)]
pub(super) struct Slot<'a> {
    pub(super) core: &'a Arc<Core>,
    pub(super) cell: &'a Arc<WorkerCell>,
    pub(super) lane: LaneNumber,
    pub(super) generation: u64,
}

impl Slot<'_> {
    /// Whether another thread, or none, is behind its lane now.
    pub(super) fn is_replaced(&self) -> bool {
        self.cell.is_replaced(self.lane, self.generation)
    }

    /// Brings the worker up. If it cannot work although a unit is on its way to it, the error is kept for that.
    fn bring_up(&self) -> Result<Ran, ExecuteError> {
        let Slot { core, cell, generation, .. } = *self;
        let Some(cancel) = cell.announce(generation) else { return self.too_late() };
        let start = || core.runtime.start_worker(&*core.executor, &cell.id, &cancel);
        let start = || start().map_err(ExecuteError::with_causes_told);
        let started = catch_unwind(AssertUnwindSafe(start)).unwrap_or_else(|payload| Err(run::panicked(payload)));
        let records_itself = cell.records_itself();
        let started = started.and_then(|()| if records_itself { self.store_up_surely() } else { Ok(()) });
        if let Err(error) = started {
            let reason = format!("worker {}: {error}", cell.id);
            log::warn!("{}: a worker did not come up: {reason}", core.job.id);
            if self.is_replaced() {
                // Whoever gave it up has told of it.
                return Ok(Ran::Retiring);
            }
            core.callbacks.tell_of(|| Event::WorkerStartFailed { worker_id: &cell.id, reason: &reason });
            hold_if_asked(core, &error);
            let ends = cell.fail_start(&core.ready, generation, &reason);
            return if ends || self.is_replaced() { Ok(Ran::Retiring) } else { Err(error) };
        }
        if let Some(age) = core.settings.max_worker_age {
            core.ready.set_alarm(core.in_ms(age), Alarm::WorkerAge(cell.number));
        }
        match cell.came_up(&core.ready, generation, core.settings.known_capacity(), core.now_ms()) {
            Some(Condition::Retiring) => return Ok(Ran::Retiring),
            Some(_) => {}
            None => {
                if records_itself {
                    end_row(core, cell);
                }
                return self.too_late();
            }
        }
        log::debug!("{}: worker {} is up", core.job.id, cell.id);
        core.callbacks.tell_of(|| Event::WorkerReady { worker_id: &cell.id });
        Ok(Ran::Idle)
    }

    /// It was given up meanwhile. Whoever did that has seen to everything, unless it has a unit which is still to be taken from it.
    fn too_late(&self) -> Result<Ran, ExecuteError> {
        match self.is_replaced() {
            true => Ok(Ran::Retiring),
            false => Err(ExecuteError::retry("it came up too late")),
        }
    }

    /// Records it, and takes a repository that panics for one that failed.
    fn store_up_surely(&self) -> Result<(), ExecuteError> {
        let stored = panics::contain("recording a worker", || self.store_up());
        stored.unwrap_or_else(|| Err(ExecuteError::retry("it could not be recorded: the repository panicked")))
    }

    /// STARTING, then READY in the records. One that was started for a unit is recorded by the claim of that.
    fn store_up(&self) -> Result<(), ExecuteError> {
        let Slot { core, cell, .. } = *self;
        let first = if cell.has_row() { WorkerChange::Restart } else { WorkerChange::Start };
        let slot = core.slot_of(cell);
        for change in [first, WorkerChange::Ready] {
            let store = || core.repository().change_worker(core.owner(), core.job.id, &slot, change).map(drop);
            cell.note_row();
            match patiently(core, &cell.id, store) {
                // It was done, though the answer was lost.
                Err(RepositoryError::Illegal { status, .. }) if is_after(status, change) => {}
                stored => stored.map_err(|error| ExecuteError::retry(error.to_string()))?,
            }
        }
        Ok(())
    }

    /// Does one task. Should our own code or a repository panic, the unit in hand is given back and the worker ends.
    fn perform(&self, task: Task, broken: Option<ExecuteError>) -> Ran {
        let Slot { core, cell, .. } = *self;
        let execution = match &task {
            Task::Run(execution) | Task::Close(execution) => Some(Arc::clone(execution)),
            Task::Restart | Task::Quit | Task::Leave => None,
        };
        let performed = catch_unwind(AssertUnwindSafe(|| match (task, broken) {
            (Task::Run(execution), Some(error)) => run::refuse(self, &execution, error),
            (Task::Run(execution), None) => run::run(self, &execution),
            (Task::Close(execution), _) => run::close_abandoned(self, &execution),
            (Task::Leave, _) => Ran::Leaving,
            (Task::Restart | Task::Quit, _) => Ran::Retiring,
        }));
        performed.unwrap_or_else(|payload| {
            let message = panics::describe(payload);
            log::error!("worker {} panicked outside of its executor: {message}", cell.id);
            // Whoever took its place has the unit too.
            if self.is_replaced() {
                return Ran::Retiring;
            }
            cell.taint(&core.ready);
            let Some(execution) = execution else { return Ran::Retiring };
            run::give_up(core, &execution);
            free(core, cell, &execution, After::Retire)
        })
    }
}

/// Whether a worker is in the status that a change brings about.
fn is_after(status: &str, change: WorkerChange) -> bool {
    let after = match change {
        WorkerChange::Ready => WorkerStatus::Ready,
        _ => WorkerStatus::Starting,
    };
    status == after.name()
}

/// What failed for every worker holds the pool, if the executor says so.
fn hold_if_asked(core: &Core, error: &ExecuteError) {
    if let crate::executor::Then::Hold { until } = error.then() {
        super::provider::hold(core, until, &error.to_string());
    }
}

/// A worker ends in order: the repository hears of it, the registry forgets it after a while.
pub(super) fn end(core: &Core, cell: &WorkerCell) {
    if !cell.begin_end() {
        return;
    }
    end_row(core, cell);
    // The reporter tells: the supervisor is about to join this thread, and must not wait for the user's code. It counts from now on, so
    // that the pool does not end before.
    core.ready.report_sent();
    core.ready.thread_ends(cell.end(&core.ready));
    forget_later(core, cell);
    announce_end(core, cell);
    core.reports.put(Report::WorkerEnded { worker_id: cell.id.clone(), has_crashed: cell.has_crashed() });
}

/// The reporter tells the executor of the end of a worker that it was asked to bring up, once. Whoever does that still is told before.
fn announce_end(core: &Core, cell: &WorkerCell) {
    if let Some(cancel) = cell.start_token() {
        cancel.cancel(CancelReason::Shutdown);
    }
    if cell.take_announced() {
        core.report(Report::EndWorker { worker_id: cell.id.clone() });
    }
}

/// Sessions that were with a worker which has ended may go anywhere; itself it is forgotten after a while.
fn forget_later(core: &Core, cell: &WorkerCell) {
    homes::see_off(core);
    core.ready.set_alarm(core.in_ms(FORGET_AFTER), Alarm::Forget(cell.number));
}

/// SHUTTING_DOWN, then TERMINATED; or DEAD. What the worker still holds is resolved by that.
pub(super) fn end_row(core: &Core, cell: &WorkerCell) {
    if !cell.has_row() {
        return;
    }
    let changes: &[WorkerChange] = match cell.has_crashed() {
        true => &[WorkerChange::Die],
        false => &[WorkerChange::ShutDown, WorkerChange::Terminate],
    };
    for &change in changes {
        change_row(core, cell, change);
    }
}

/// SHUTTING_DOWN in the records, for all that have yet to finish what they have: the pool stops, and they take nothing more.
pub(super) fn tell_shutting_down(core: &Core) {
    // Whoever comes up, or is about to get what was submitted before, has to be in a status for that.
    let are_told = |cell: &Arc<WorkerCell>| cell.has_row() && cell.is_up() && cell.has_all_in_hand();
    for cell in core.registry.snapshot().into_iter().filter(are_told) {
        if !change_row(core, &cell, WorkerChange::ShutDown) {
            break;
        }
    }
}

/// Changes a worker's record, whose state is not worth waiting for. Says whether the storage answered.
fn change_row(core: &Core, cell: &WorkerCell, change: WorkerChange) -> bool {
    let slot = core.slot_of(cell);
    let changed = panics::contain("a worker's record", || {
        core.repository().change_worker(core.owner(), core.job.id, &slot, change)
    });
    match changed {
        Some(Ok(_)) => {}
        Some(Err(error)) if error.is_rejection() => log::debug!("worker {}: {error}", cell.id),
        Some(Err(error)) => {
            log::warn!("worker {}: {change} was not stored: {error}", cell.id);
            return false;
        }
        None => return false,
    }
    true
}

/// A worker crashed with a unit in hand: it takes nothing more. What becomes of the unit follows at once.
pub(super) fn taint(core: &Core, cell: &WorkerCell, reason: &str) {
    cell.taint(&core.ready);
    // Before anybody hears how the unit ended: its session need not come back here.
    homes::see_off(core);
    change_row(core, cell, WorkerChange::Taint);
    log::warn!("worker {} crashed: {reason}", cell.id);
    core.callbacks.tell_of(|| Event::WorkerTainted { worker_id: &cell.id, reason });
}

/// Tells idle workers to end.
pub(super) fn retire(core: &Core, workers: impl IntoIterator<Item = WorkerNumber>) {
    for cell in workers.into_iter().filter_map(|worker| core.registry.get(worker)) {
        tell_to_end(core, &cell);
    }
}

/// Lets a worker end that has nothing in hand: by one of its threads, if it has any left.
fn tell_to_end(core: &Core, cell: &WorkerCell) {
    if !cell.retire() {
        end(core, cell);
    }
}

fn wear(core: &Core) -> Wear {
    let settings = &core.settings;
    Wear { max_age_ms: settings.max_worker_age.map(milliseconds), max_units: settings.max_units_per_worker }
}

/// A worker may be as old as it may become: it goes now if it is idle.
pub(super) fn retire_old(core: &Core, worker: WorkerNumber) {
    // One that was brought up again since is younger.
    let is_old = core.registry.get(worker).is_some_and(|cell| cell.is_worn(wear(core), core.now_ms()));
    if !is_old {
        return;
    }
    if core.ready.retire_if_idle(worker) {
        retire(core, [worker]);
    } else {
        // If it is busy it goes when it is done, if it is promised perhaps before.
        core.ready.set_alarm(core.in_ms(LOOK_AGAIN_AFTER), Alarm::WorkerAge(worker));
    }
}

/// Frees the place of a worker that got no unit, or did not take the one that it was assigned. If it is one too many, one of its threads
/// hears of it.
pub(super) fn give_back(core: &Core, cell: &WorkerCell, assigned: Option<&Arc<OpenUnit>>) {
    settle_without(core, cell, assigned, After::GoOn);
}

/// The same after an error. If that says nothing about whether a unit was claimed, the worker may hold one.
pub(super) fn give_back_after(core: &Core, cell: &WorkerCell, error: &RepositoryError) {
    if error.is_rejection() { give_back(core, cell, None) } else { dismiss(core, cell) }
}

/// Ends a worker that may hold what nobody here knows of, which gives that back.
pub(super) fn dismiss(core: &Core, cell: &WorkerCell) {
    cell.note_row();
    settle_without(core, cell, None, After::Retire);
}

fn settle_without(core: &Core, cell: &WorkerCell, assigned: Option<&Arc<OpenUnit>>, after: After) {
    if cell.settle_without(&core.ready, assigned, after, wear(core), core.now_ms()) == Settled::Ends {
        tell_to_end(core, cell);
    }
}

/// Frees the place of a unit whose thread came back after its attempt was closed by somebody else.
pub(super) fn free_stuck(core: &Core, cell: &WorkerCell, execution: &Execution) {
    if settle(core, cell, execution, After::GoOn) == Settled::Ends {
        tell_to_end(core, cell);
    }
}

/// Frees the place of a unit whose end could not be stored, and is now or never will be.
pub(super) fn free_stored(core: &Core, cell: &WorkerCell, execution: &Execution) {
    if cell.settle_stored(&core.ready, execution, wear(core), core.now_ms()) == Settled::Ends {
        tell_to_end(core, cell);
    }
}

/// Frees a worker's place, on its own thread.
pub(super) fn free(core: &Core, cell: &WorkerCell, execution: &Execution, after: After) -> Ran {
    match settle(core, cell, execution, after) {
        Settled::Ends => Ran::Retiring,
        Settled::GoesOn => Ran::Idle,
    }
}

fn settle(core: &Core, cell: &WorkerCell, execution: &Execution, after: After) -> Settled {
    cell.settle(&core.ready, execution, after, wear(core), core.now_ms())
}

/// Asks how many units a worker can have in hand, when it has its first, if that is the executor's to say.
pub(super) fn resolve_capacity(core: &Core, cell: &WorkerCell, execution: &Execution) {
    if !cell.ask_capacity() {
        return;
    }
    let asked =
        panics::contain("an executor's capacity", || core.runtime.capacity(&*core.executor, &cell.id)).flatten();
    cell.widen(&core.ready, execution, core.settings.capacity_of(asked));
}
