//! One attempt, from the inbox to the free slot. Read from the top, it is the life of an execution.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::adaptive;
use super::cell::{After, Return, WorkerCell};
use super::close::{Closer, Settled, close, patiently, report_late};
use super::core::Core;
use super::cost_limit;
use super::execution::{ComeBack, Execution, Recording};
use super::judge::{End, How, judge, release};
use super::ledger::Left;
use super::lock::assert_none_held;
use super::observe::Event;
use super::ready::Stop;
use super::slot::Slot;
use super::{same_work, slot, turn};
use crate::attempt::{AttemptReport, Beginning, Ending, Failure, FailureKind, Next};
use crate::error::RepositoryError;
use crate::executor::process::end_orphans;
use crate::executor::{Call, CancelReason, ExecuteError};
use crate::fault::{self, Stage};
use crate::panics;
use crate::prompt;
use crate::unit::{UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// How long a unit waits for a process of an earlier attempt that does not go.
const ORPHAN_PAUSE: Duration = Duration::from_secs(10);

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// It waits for the next task.
    Idle,
    /// It ends, and its worker with it.
    Retiring,
    /// It ends; its worker has already.
    Ended,
    /// It ends; another thread is its worker now.
    Replaced,
    /// It ends, and somebody else its worker.
    Leaving,
}

/// Executes an attempt and brings it to its end.
pub(super) fn run(slot: &Slot<'_>, execution: &Arc<Execution>) -> Ran {
    let end = execute(slot.core, slot.cell, execution);
    come_back(slot, execution, end)
}

/// Gives back a unit whose worker could not be brought up for it.
pub(super) fn refuse(slot: &Slot<'_>, execution: &Arc<Execution>, error: ExecuteError) -> Ran {
    let end = end_before_start(slot.core, execution)
        .unwrap_or_else(|| not_brought_up(slot.core, execution, &error.to_string()));
    come_back(slot, execution, End { crash: Some(error.to_string()), ..end })
}

/// A thread is back with the end of its attempt, which is for it to store unless somebody else has begun to.
fn come_back(slot: &Slot<'_>, execution: &Arc<Execution>, end: End) -> Ran {
    let Slot { core, cell, lane, generation } = *slot;
    match cell.come_back(&core.ready, execution, lane, generation) {
        Return::InTime => {
            let after = after(core, cell, execution, &end);
            let settled = close(core, cell, Closer::Worker, execution, end);
            free_then_tell(slot, execution, after, settled)
        }
        Return::Late => {
            let after = after(core, cell, execution, &end);
            match report_late(core, execution, end) {
                ComeBack::AfterTheEnd(_) => slot::free(core, cell, execution, after),
                // Until the attempt is closed the worker is not free; whoever closes it sees to that.
                ComeBack::BeforeTheEnd => Ran::Idle,
            }
        }
        Return::Replaced => {
            report_late(core, execution, end);
            core.ready.returned();
            Ran::Replaced
        }
    }
}

/// What the worker does after an attempt that ended like this. If it crashed, it takes nothing more from now on.
fn after(core: &Core, cell: &WorkerCell, execution: &Execution, end: &End) -> After {
    let Some(reason) = &end.crash else {
        // Who has lost the storage ends; another takes its place when that is back.
        return if execution.is_forsaken() { After::Retire } else { After::GoOn };
    };
    slot::taint(core, cell, reason);
    let rest = core.settings.taint_for;
    After::Crash { rests_until_ms: (!rest.is_zero()).then(|| core.in_ms(rest)) }
}

/// Brings an attempt to its end whose thread was left behind, in its place.
pub(super) fn close_abandoned(slot: &Slot<'_>, execution: &Arc<Execution>) -> Ran {
    let Slot { core, cell, .. } = *slot;
    tell_abandoned(core, &cell.id, execution, true);
    let end = end_of_abandoned(core, execution);
    // What never came up is not worth going on with, and who has lost the storage ends in any case.
    let after = if end.crash.is_some() || execution.is_forsaken() { After::Retire } else { After::GoOn };
    let settled = close(core, cell, Closer::Worker, execution, end);
    free_then_tell(slot, execution, after, settled)
}

/// The same where no thread may be started in its place. The worker stays stuck until its thread comes back.
pub(super) fn close_stuck(core: &Core, cell: &WorkerCell, execution: &Arc<Execution>) {
    tell_abandoned(core, &cell.id, execution, false);
    let end = end_of_abandoned(core, execution);
    let settled = close(core, cell, Closer::Reporter, execution, end);
    wait_if_open(core, execution, &settled);
    // Behind a lane that lost its thread there is nobody to wait for.
    if settled.is_thread_back || cell.has_lost_lane(execution) {
        slot::free_stuck(core, cell, execution);
    } else {
        cell.note_closed(&core.ready, execution);
    }
    tell_settled(core, execution, settled);
}

/// How an attempt ends whose thread did not return.
fn end_of_abandoned(core: &Core, execution: &Execution) -> End {
    if execution.has_begun() {
        return judge(core, execution, Err(ExecuteError::retry("the executor did not return when it was to stop")));
    }
    let reason = format!("its worker did not come up within {:?}", core.settings.startup_timeout);
    let end = end_before_start(core, execution).unwrap_or_else(|| not_brought_up(core, execution, &reason));
    End { crash: Some(reason), ..end }
}

/// A unit that got no worker is given back for a while, longer each time.
fn not_brought_up(core: &Core, execution: &Execution, reason: &str) -> End {
    let pause = core.settings.retry.pause(execution.claim.unit.key, execution.claim.lease.attempt_number);
    End::new(How::Release { after: Some(pause), reason: reason.to_owned(), failure: None })
}

/// Gives a unit back after a panic of our own.
pub(super) fn give_up(core: &Core, execution: &Arc<Execution>) {
    let lease = &execution.claim.lease;
    match panics::contain("giving back", || core.repository().release(lease, None, "its worker panicked")) {
        Some(Ok(_)) => {}
        Some(Err(error)) if error.is_rejection() => {
            log::error!("unit {}: could not be given back: {error}", lease.unit_id);
        }
        // Its lease would be renewed for as long as the pool lives.
        Some(Err(_)) | None => core.keep_for_later(execution, AttemptReport::cancelled()),
    }
    adaptive::learn(core, execution, None);
    if core.ready.unit_leaves(execution.claim.lease.attempt(), Left::Lost).is_none() {
        core.ready.unit_closes(execution.claim.lease.unit, &execution.unit);
    }
    execution.unit.leave(Left::Lost);
}

fn execute(core: &Core, cell: &WorkerCell, execution: &Execution) -> End {
    if let Some(end) = end_before_start(core, execution) {
        return end;
    }
    let unit = &execution.claim.unit;
    let rendered = match render(core, unit) {
        Ok(rendered) => rendered,
        Err(failure) => return End::new(How::Finish(Ending::Failed { failure, next: Next::GiveUp })),
    };
    if let Err(still_there) = end_orphans(&execution.claim.earlier_processes, &core.clock.boot_id()) {
        return End::new(How::Release { after: Some(ORPHAN_PAUSE), reason: still_there.to_string(), failure: None });
    }
    if let Some(end) = end_at_start(core, execution, rendered.as_deref()) {
        return end;
    }
    let prompt = rendered.as_deref().or(unit.prompt.as_deref()).unwrap_or_default();
    // What is answered already needs no turn, and who waits for another takes none.
    if let Some(end) = same_work::end_with_answer(core, execution, prompt) {
        return end;
    }
    if let Some(end) = turn::end_without_turn(core, execution, prompt) {
        return end;
    }
    let timeout = unit.options.timeout.unwrap_or(core.settings.timeout);
    let deadline_ms = core.in_ms(timeout);
    cell.watch(&core.ready, execution, deadline_ms);
    execution.begin();
    log::debug!("unit {}: attempt {} starts on worker {}", unit.id, execution.claim.lease.attempt_number, cell.id);
    core.callbacks.tell_of(|| Event::AttemptStarted {
        unit_id: &unit.id,
        attempt_number: execution.claim.lease.attempt_number,
        worker_id: &cell.id,
    });

    if let Some(tie) = execution.tie.as_ref().filter(|tie| tie.is_strict()) {
        core.ready.session_goes_on(&tie.key, execution.claim.lease.attempt());
    }
    slot::resolve_capacity(core, cell, execution);
    let recording = Recording { core, execution };
    let call = Call {
        claim: &execution.claim,
        prompt,
        timeout,
        deadline_ms,
        grace: core.settings.kill_grace,
        cancel: &execution.cancel,
        clock: &*core.clock,
        recorder: &recording,
    };
    fault::point("execute", Stage::Before);
    assert_none_held();
    // Its error is the user's code too.
    let execute = || core.runtime.execute(&*core.executor, &call).map_err(ExecuteError::with_causes_told);
    // Whoever was asked to stop before may have been given up, and the unit may run elsewhere.
    let outcome = match execution.cancel.is_cancelled() {
        true => Ok(Err(ExecuteError::retry("it was asked to stop before it began"))),
        false => catch_unwind(AssertUnwindSafe(execute)),
    };
    fault::point("execute", Stage::Committed);
    judge(core, execution, outcome.unwrap_or_else(|payload| Err(panicked(payload))))
}

/// What was asked to stop before it began does not begin, nor does what has cost as much as it may, and nothing does while the pool is held.
pub(super) fn end_before_start(core: &Core, execution: &Execution) -> Option<End> {
    if execution.cancel.reason() == Some(CancelReason::Requested) {
        return Some(End::new(How::Finish(Ending::Cancelled)));
    }
    let unit = &execution.claim.unit;
    if cost_limit::is_reached(unit, unit.cost.amount) {
        let failure = cost_limit::failure(unit, unit.cost.amount, None);
        return Some(End::new(How::Finish(Ending::Failed { failure, next: Next::GiveUp })));
    }
    match core.ready.stop_mode() {
        Some(Stop::Cancel { .. } | Stop::Now) => Some(release("the pool stops")),
        Some(Stop::Drain) => None,
        None => core.ready.hold_reason().map(|reason| release(&format!("the pool is held: {reason}"))),
    }
}

/// The same for what waits in its slot and has not begun. Nor does anything begin that way once the pool stops, in whatever way.
pub(super) fn end_while_waiting(core: &Core, execution: &Execution) -> Option<End> {
    let is_over = execution.cancel.is_cancelled() || core.ready.stop_mode().is_some();
    end_before_start(core, execution).or_else(|| is_over.then(|| release("the pool stops")))
}

/// What is to be sent, where it has to be made from a template.
fn render(core: &Core, unit: &WorkUnit) -> Result<Option<String>, Failure> {
    if unit.prompt.is_some() {
        return Ok(None);
    }
    let template = unit.template.as_deref().or(core.job.template.as_deref());
    let template =
        template.ok_or_else(|| Failure::new(FailureKind::PROMPT, "there is neither a prompt nor a template"))?;
    let rendered = prompt::render(template, &unit.payload);
    rendered.map(Some).map_err(|error| Failure::new(FailureKind::PROMPT, error.to_string()))
}

/// ASSIGNED → PROCESSING, unless the claim did that. What cannot be started ends here.
fn end_at_start(core: &Core, execution: &Execution, rendered: Option<&str>) -> Option<End> {
    if execution.claim.unit.status == UnitStatus::Processing {
        return None;
    }
    let mut beginning = Beginning::default().provenance(core.provenance.clone());
    beginning.rendered_prompt = rendered.map(str::to_owned);
    match patiently(core, &execution.claim.unit.id, || core.repository().start(&execution.claim.lease, &beginning)) {
        Ok(()) => None,
        Err(RepositoryError::Stale { .. }) => Some(End::new(How::Lost)),
        Err(error) => Some(release(&format!("its start could not be stored: {error}"))),
    }
}

/// What a panic of the user's code means: that its worker is not to be trusted any more.
pub(super) fn panicked(payload: Box<dyn Any + Send>) -> ExecuteError {
    ExecuteError::broken(panics::describe(payload)).kind(FailureKind::PANIC.as_str().to_owned())
}

/// Frees the slot, and only then lets go of the unit: whoever waited for it finds room, also where its worker ends with it.
///
/// A unit that is to be tried again stands in line before that: the place goes to whoever is first.
fn free_then_tell(slot: &Slot<'_>, execution: &Execution, after: After, settled: Settled) -> Ran {
    wait_if_open(slot.core, execution, &settled);
    let mut ran = slot::free(slot.core, slot.cell, execution, after);
    if ran == Ran::Retiring && !slot.is_replaced() {
        slot::end(slot.core, slot.cell);
        ran = Ran::Ended;
    }
    tell_settled(slot.core, execution, settled);
    ran
}

/// What is to be tried again waits for its time.
fn wait_if_open(core: &Core, execution: &Execution, settled: &Settled) {
    if settled.left.is_none() {
        core.wait_until(execution, settled.until_ms.unwrap_or_else(|| core.now_ms()));
    }
}

/// When all units are closed, all who wait for one of them know.
fn tell_settled(core: &Core, execution: &Execution, settled: Settled) {
    if let Some(left) = settled.left {
        execution.unit.leave(left);
        core.ready.unit_closes(execution.claim.lease.unit, &execution.unit);
    }
}

fn tell_abandoned(core: &Core, worker_id: &WorkerId, execution: &Execution, is_replaced: bool) {
    let unit_id = &execution.claim.unit.id;
    log::warn!("unit {unit_id}: its executor on worker {worker_id} did not return, the thread is left behind");
    core.callbacks.tell_of(|| Event::ThreadAbandoned { unit_id, worker_id, is_replaced });
}
