//! One attempt, from the inbox to the free slot. Read from the top, it is the life of an execution.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::core::Core;
use super::execution::{Captured, ComeBack, Execution, Recording};
use super::ledger::Left;
use super::lock::assert_none_held;
use super::observe::Event;
use super::panics;
use super::ready::{Stop, boot_ms_of};
use super::registry::{Return, WorkerCell};
use super::slot;
use crate::attempt::{AttemptReport, Beginning, Ending, Failure, FailureKind, Next, Outcome, Progress};
use crate::error::RepositoryError;
use crate::executor::{Call, CancelReason, ExecuteError, Then, WorkResult};
use crate::fault::{self, Stage};
use crate::prompt;
use crate::repository::Closed;
use crate::unit::{UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// How long the end of an attempt is tried to be stored before it is given up.
const STORE_PATIENCE: Duration = Duration::from_secs(60);
const STORE_PAUSE_FIRST: Duration = Duration::from_millis(10);
const STORE_PAUSE_LONGEST: Duration = Duration::from_secs(2);

/// What a thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ran {
    /// It waits for the next task.
    Idle,
    /// It ends, and its worker with it.
    Retiring,
    /// It ends; another thread is its worker now.
    Replaced,
}

/// How an execution is to be stored.
#[derive(Debug)]
struct End {
    how: How,
    result: WorkResult,
    /// Nothing else is to be started for a while.
    hold: Option<(Option<DateTime<Utc>>, String)>,
    /// The worker is not to be used again.
    must_retire: bool,
}

#[derive(Debug)]
enum How {
    Finish(Ending),
    /// Given back, for a reason that is not the unit's.
    Release {
        after: Option<Duration>,
        reason: String,
    },
    /// The lease is gone, and with it the right to say anything.
    Lost,
}

impl End {
    fn new(how: How) -> End {
        End { how, result: WorkResult::empty(), hold: None, must_retire: false }
    }
}

/// Executes an attempt and brings it to its end.
pub(super) fn run(core: &Arc<Core>, cell: &Arc<WorkerCell>, generation: u64, execution: &Arc<Execution>) -> Ran {
    let end = execute(core, cell, execution);
    let must_retire = end.must_retire;
    match cell.come_back(&core.ready, execution, generation) {
        Return::InTime => {
            let settled = close(core, cell, Closer::Worker, execution, end);
            free_then_tell(core, cell, execution, must_retire, settled)
        }
        Return::Late => match report_late(core, execution, end) {
            ComeBack::AfterTheEnd(_) => slot::free(core, cell, must_retire),
            // Until the attempt is closed the worker is not free; whoever closes it sees to that.
            ComeBack::BeforeTheEnd => Ran::Idle,
        },
        Return::Replaced => {
            report_late(core, execution, end);
            core.ready.returned();
            Ran::Replaced
        }
    }
}

/// Brings an attempt to its end whose thread was left behind, in its place.
pub(super) fn close_abandoned(core: &Arc<Core>, cell: &Arc<WorkerCell>, execution: &Arc<Execution>) -> Ran {
    tell_abandoned(core, &cell.id, execution, true);
    let end = judge(core, execution, Err(ExecuteError::retry("the executor did not return when its time was up")));
    let settled = close(core, cell, Closer::Worker, execution, end);
    free_then_tell(core, cell, execution, false, settled)
}

/// The same where no thread may be started in its place. The worker stays stuck until its thread comes back.
pub(super) fn close_stuck(core: &Core, cell: &WorkerCell, execution: &Arc<Execution>) {
    tell_abandoned(core, &cell.id, execution, false);
    let end = judge(core, execution, Err(ExecuteError::retry("the executor did not return when its time was up")));
    let settled = close(core, cell, Closer::Reporter, execution, end);
    if settled.is_thread_back {
        slot::give_back(core, cell);
    }
    tell_settled(core, execution, settled);
}

/// Gives a unit back after a panic of our own.
pub(super) fn give_up(core: &Core, execution: &Execution) {
    if let Err(error) = core.repository().release(&execution.claim.lease, None, "its worker panicked") {
        log::error!("unit {}: could not be given back: {error}", execution.claim.unit.id);
    }
    if core.ready.unit_leaves(execution.claim.lease.attempt(), Left::Lost).is_none() {
        core.ready.unit_closes(execution.claim.lease.unit, &execution.unit);
    }
    execution.unit.leave(Left::Lost);
}

// Executing.

fn execute(core: &Core, cell: &WorkerCell, execution: &Execution) -> End {
    if let Some(end) = end_before_start(core, execution) {
        return end;
    }
    let unit = &execution.claim.unit;
    let rendered = match render(core, unit) {
        Ok(rendered) => rendered,
        Err(failure) => return End::new(How::Finish(Ending::Failed { failure, next: Next::GiveUp })),
    };
    if let Some(end) = end_at_start(core, execution, rendered.as_deref()) {
        return end;
    }
    let prompt = rendered.as_deref().or(unit.prompt.as_deref()).unwrap_or_default();
    let timeout = unit.options.timeout.unwrap_or(core.settings.timeout);
    let deadline_ms = core.in_ms(timeout);
    cell.watch(&core.ready, execution, deadline_ms);
    log::debug!("unit {}: attempt {} starts on worker {}", unit.id, execution.claim.lease.attempt_number, cell.id);
    core.callbacks.tell_of(|| Event::AttemptStarted {
        unit_id: &unit.id,
        attempt_number: execution.claim.lease.attempt_number,
        worker_id: &cell.id,
    });

    let recording = Recording { core, execution };
    let call = Call {
        claim: &execution.claim,
        prompt,
        timeout,
        deadline_ms,
        cancel: &execution.cancel,
        clock: &*core.clock,
        recorder: &recording,
    };
    fault::point("execute", Stage::Before);
    assert_none_held();
    let outcome = catch_unwind(AssertUnwindSafe(|| core.executor.execute(&call)));
    fault::point("execute", Stage::Committed);
    judge(core, execution, outcome.unwrap_or_else(|payload| Err(panicked(panics::describe(payload)))))
}

/// What was asked to stop before it began does not begin.
fn end_before_start(core: &Core, execution: &Execution) -> Option<End> {
    match core.ready.stop_mode() {
        Some(Stop::Cancel { .. } | Stop::Now) => {
            Some(End::new(How::Release { after: None, reason: "the pool stops".to_owned() }))
        }
        Some(Stop::Drain) | None => {
            let is_cancelled = execution.cancel.reason() == Some(CancelReason::Requested);
            is_cancelled.then(|| End::new(How::Finish(Ending::Cancelled)))
        }
    }
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

fn panicked(message: String) -> ExecuteError {
    ExecuteError::retry(message).kind(FailureKind::PANIC.as_str().to_owned())
}

// Judging.

/// What follows from how the executor came back, and from what was asked of it meanwhile.
fn judge(core: &Core, execution: &Execution, outcome: Result<WorkResult, ExecuteError>) -> End {
    let (failure, then, result) = match outcome {
        Ok(result) => (None, Then::Retry, result),
        Err(error) => {
            let (failure, then, result) = error.into_parts();
            (Some(failure), then, result)
        }
    };
    let mut end = match (execution.cancel.reason(), failure) {
        (Some(CancelReason::Requested), _) => End::new(How::Finish(Ending::Cancelled)),
        (Some(CancelReason::TimedOut), failure) => timed_out(core, execution, failure),
        (Some(CancelReason::ConversationLimit), _) => {
            let limit = core.settings.conversation_limit_bytes;
            let failure = Failure::new(FailureKind::CONVERSATION_LIMIT, format!("it said more than {limit} bytes"));
            End::new(How::Finish(Ending::Failed { failure, next: Next::GiveUp }))
        }
        (_, None) => End::new(How::Finish(Ending::Completed)),
        (Some(CancelReason::Shutdown), Some(_)) => release("the pool stops"),
        (Some(CancelReason::LeaseLost), Some(_)) => release("its lease could not be renewed"),
        (None, Some(failure)) => failed(core, execution, failure, then),
    };
    end.result = result;
    end
}

fn release(reason: &str) -> End {
    End::new(How::Release { after: None, reason: reason.to_owned() })
}

fn timed_out(core: &Core, execution: &Execution, failure: Option<Failure>) -> End {
    let timeout = execution.claim.unit.options.timeout.unwrap_or(core.settings.timeout);
    let mut message = format!("it took longer than {timeout:?}");
    if let Some(failure) = failure {
        message = format!("{message}: {}", failure.message);
    }
    let failure = Failure::new(FailureKind::TIMED_OUT, message);
    End::new(How::Finish(Ending::TimedOut { failure, next: next(core, execution, Then::Retry) }))
}

fn failed(core: &Core, execution: &Execution, failure: Failure, then: Then) -> End {
    match then {
        Then::Hold { until } => {
            let reason = failure.to_string();
            let after = until.and_then(|until| (until - core.clock.now().wall).to_std().ok());
            let mut end = End::new(How::Release { after, reason: reason.clone() });
            end.hold = Some((until, reason));
            end
        }
        Then::Retry | Then::RetryAfter(_) | Then::GiveUp | Then::Replace => {
            let next = next(core, execution, then);
            let mut end = End::new(How::Finish(Ending::Failed { failure, next }));
            end.must_retire = then == Then::Replace;
            end
        }
    }
}

fn next(core: &Core, execution: &Execution, then: Then) -> Next {
    let unit = &execution.claim.unit;
    match then {
        Then::GiveUp => Next::GiveUp,
        Then::RetryAfter(pause) => Next::Retry { after: pause },
        _ => Next::Retry { after: core.settings.retry.pause(unit.key, unit.attempts_used + 1) },
    }
}

// Storing.

/// Who brings an attempt to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Closer {
    /// A thread of its worker.
    Worker,
    /// The reporter, because the only thread of its worker is stuck.
    Reporter,
}

/// What is known of a unit once its attempt was closed.
struct Settled {
    left: Option<Left>,
    /// When it is tried again.
    until_ms: Option<i64>,
    /// Whether the thread came back from which the attempt was taken.
    is_thread_back: bool,
}

/// Stores how an attempt ended, then tells whoever wants to know.
fn close(core: &Core, cell: &WorkerCell, closer: Closer, execution: &Arc<Execution>, end: End) -> Settled {
    if let Some((until, reason)) = &end.hold {
        hold(core, *until, reason);
    }
    let captured = execution.capture(core, &end.result);
    let closed = match &end.how {
        How::Finish(ending) => finish(core, execution, report_of(ending.clone(), &end.result, &captured)),
        How::Release { after, reason } => give_back(core, execution, *after, reason, &captured),
        How::Lost => Err(RepositoryError::stale(&execution.claim.lease)),
    };
    let back = execution.closed();
    if let Some(Some(late)) = &back {
        store_late(core, execution, late);
    }
    let mut settled = match closed {
        Ok(closed) => settle(core, cell, closer, execution, &end, &captured, &closed),
        Err(error) => {
            log::error!("unit {}: how its attempt ended could not be stored: {error}", execution.claim.unit.id);
            let is_news = core.ready.unit_leaves(execution.claim.lease.attempt(), Left::Lost).is_some();
            Settled { left: is_news.then_some(Left::Lost), until_ms: None, is_thread_back: false }
        }
    };
    settled.is_thread_back = back.is_some();
    settled
}

fn report_of(ending: Ending, result: &WorkResult, captured: &Captured) -> AttemptReport {
    let mut report = AttemptReport::new(ending);
    report.result = result.json.clone();
    report.output = result.output.clone();
    report.output_files = result.output_files.clone();
    report.session_id = captured.session_id.clone();
    report.charges = captured.charges.clone();
    report.messages_lost = captured.messages_lost;
    report
}

/// Stores the end of an attempt. What the repository refuses to take is stored without, rather than not at all.
fn finish(core: &Core, execution: &Execution, mut report: AttemptReport) -> Result<Closed, RepositoryError> {
    let lease = &execution.claim.lease;
    let finished = patiently(core, &execution.claim.unit.id, || core.repository().finish(lease, &report));
    let problem = match finished {
        Err(RepositoryError::Invalid(problem)) => problem,
        Err(error) if !error.is_rejection() => {
            core.keep_for_later(lease, report);
            return Err(error);
        }
        finished => return finished,
    };
    log::error!("unit {}: its result cannot be stored: {problem}", lease.unit_id);
    let failure = Failure::new(FailureKind::EXECUTOR, format!("the result cannot be stored: {problem}"));
    report.ending = Ending::Failed { failure, next: Next::GiveUp };
    (report.result, report.output) = (None, None);
    report.output_files.clear();
    report.charges.clear();
    patiently(core, &execution.claim.unit.id, || core.repository().finish(lease, &report))
}

/// Gives a unit back, and keeps what the attempt used and which session it had.
fn give_back(
    core: &Core,
    execution: &Execution,
    after: Option<Duration>,
    reason: &str,
    captured: &Captured,
) -> Result<Closed, RepositoryError> {
    let lease = &execution.claim.lease;
    let progress =
        Progress { session_id: captured.session_id.clone(), charges: captured.charges.clone(), ..Progress::default() };
    if progress != Progress::default() {
        match patiently(core, &execution.claim.unit.id, || core.repository().progress(lease, &progress)) {
            Err(error @ RepositoryError::Stale { .. }) => return Err(error),
            Err(error) => log::warn!("unit {}: what it used was not stored: {error}", lease.unit_id),
            Ok(()) => {}
        }
    }
    patiently(core, &execution.claim.unit.id, || core.repository().release(lease, after, reason)).inspect_err(|error| {
        if !error.is_rejection() {
            // To end an attempt as cancelled that nobody cancelled is to give it back.
            core.keep_for_later(lease, AttemptReport::cancelled());
        }
    })
}

/// Repeats a call while the storage fails: an answer that was paid for is not dropped because a disk hiccupped.
pub(super) fn patiently<T>(
    core: &Core,
    unit_id: impl std::fmt::Display,
    mut call: impl FnMut() -> Result<T, RepositoryError>,
) -> Result<T, RepositoryError> {
    let began = Instant::now();
    let mut pause = STORE_PAUSE_FIRST;
    loop {
        let error = match call() {
            Err(error) if error.is_passing() => error,
            answer => return answer,
        };
        if began.elapsed() + pause > STORE_PATIENCE || core.ready.stop_mode() == Some(Stop::Now) {
            return Err(error);
        }
        log::warn!("unit {unit_id}: the storage failed, trying again: {error}");
        std::thread::sleep(pause);
        pause = (pause * 2).min(STORE_PAUSE_LONGEST);
    }
}

/// What an executor brings after its attempt was taken from it stays on the attempt.
fn report_late(core: &Core, execution: &Execution, end: End) -> ComeBack {
    let report = match end.how {
        How::Finish(ending) => {
            let captured = execution.capture(core, &end.result);
            Some(Box::new(report_of(ending, &end.result, &captured)))
        }
        How::Release { .. } | How::Lost => None,
    };
    let back = execution.came_back(report);
    if let ComeBack::AfterTheEnd(Some(late)) = &back {
        store_late(core, execution, late);
    }
    back
}

fn store_late(core: &Core, execution: &Execution, report: &AttemptReport) {
    match patiently(core, &execution.claim.unit.id, || core.repository().finish(&execution.claim.lease, report)) {
        Err(RepositoryError::Stale { .. }) => log::info!("unit {}: a late result was kept", execution.claim.unit.id),
        Ok(_) => log::warn!("unit {}: a late result came before the end was stored", execution.claim.unit.id),
        Err(error) => log::warn!("unit {}: a late result was not kept: {error}", execution.claim.unit.id),
    }
}

// Settling.

/// After the commit: counts, then the callback. The slot is still taken.
fn settle(
    core: &Core,
    cell: &WorkerCell,
    closer: Closer,
    execution: &Execution,
    end: &End,
    captured: &Captured,
    closed: &Closed,
) -> Settled {
    let lease = &execution.claim.lease;
    let is_ended = closed.status.is_terminal();
    let is_retried = !is_ended && matches!(end.how, How::Finish(_));
    core.ready.charge(&captured.charges, is_retried);
    let left = is_ended.then_some(Left::Ended(closed.status));
    if let Some(left) = left {
        core.ready.unit_leaves(lease.attempt(), left);
        if closer == Closer::Worker {
            cell.report(&core.ready);
        }
    }
    let now = core.clock.now();
    let until_ms = (!is_ended).then(|| closed.not_before.map_or(now.boot_ms, |time| boot_ms_of(time, now)));
    fault::point("callback", Stage::Before);
    tell_ended(core, &cell.id, execution, end, captured, closed);
    if is_ended {
        call_back(core, execution, &end.result, closed.status);
    }
    fault::point("callback", Stage::Committed);
    Settled { left, until_ms, is_thread_back: false }
}

fn tell_ended(
    core: &Core,
    worker_id: &WorkerId,
    execution: &Execution,
    end: &End,
    captured: &Captured,
    closed: &Closed,
) {
    let (outcome, failure) = match &end.how {
        How::Finish(ending) => (ending.outcome(), ending.failure()),
        How::Release { .. } | How::Lost => (Outcome::Released, None),
    };
    let lease = &execution.claim.lease;
    log::debug!(
        "unit {}: attempt {} ended {outcome}, the unit is {}",
        lease.unit_id,
        lease.attempt_number,
        closed.status
    );
    core.callbacks.tell_of(|| Event::AttemptEnded {
        unit_id: &lease.unit_id,
        attempt_number: lease.attempt_number,
        worker_id,
        outcome,
        failure,
        charges: &captured.charges,
        status: closed.status,
        retry_after: closed.not_before.map(|time| (time - core.clock.now().wall).to_std().unwrap_or_default()),
    });
}

/// Calls the callback with the unit as it is stored.
fn call_back(core: &Core, execution: &Execution, result: &WorkResult, status: UnitStatus) {
    if !core.callbacks.wants(status) {
        return;
    }
    let lease = &execution.claim.lease;
    match patiently(core, &lease.unit_id, || core.repository().unit(lease.job_id, lease.unit_id.as_str())) {
        Ok(unit) if unit.status == status => core.callbacks.unit_ended(&unit, result),
        // Somebody has requeued it already: what it was is in the journal.
        Ok(unit) => log::warn!("unit {}: no callback for {status}, it is {} by now", lease.unit_id, unit.status),
        Err(error) => log::error!("unit {}: no callback, it could not be read: {error}", lease.unit_id),
    }
}

/// Frees the slot, and only then lets go of the unit: whoever waited for it finds room.
fn free_then_tell(core: &Core, cell: &WorkerCell, execution: &Execution, must_retire: bool, settled: Settled) -> Ran {
    let ran = slot::free(core, cell, must_retire);
    tell_settled(core, execution, settled);
    ran
}

fn tell_settled(core: &Core, execution: &Execution, settled: Settled) {
    match settled {
        Settled { left: Some(left), .. } => {
            // When all units are closed, all who wait for one of them know.
            execution.unit.leave(left);
            core.ready.unit_closes(execution.claim.lease.unit, &execution.unit);
        }
        Settled { until_ms, .. } => core.wait_until(execution, until_ms.unwrap_or_else(|| core.now_ms())),
    }
}

fn tell_abandoned(core: &Core, worker_id: &WorkerId, execution: &Execution, is_replaced: bool) {
    let unit_id = &execution.claim.unit.id;
    log::warn!("unit {unit_id}: its executor on worker {worker_id} did not return, the thread is left behind");
    core.callbacks.tell_of(|| Event::ThreadAbandoned { unit_id, worker_id, is_replaced });
}

/// Starts nothing until then.
fn hold(core: &Core, until: Option<DateTime<Utc>>, reason: &str) {
    log::warn!("{}: nothing is started: {reason}", core.job.id);
    core.ready.hold(reason, until.map(|until| boot_ms_of(until, core.clock.now())));
    core.callbacks.tell_of(|| Event::Held { reason, until });
}
