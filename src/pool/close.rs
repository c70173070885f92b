//! The end of an attempt: stored in one transaction, then told.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use super::cell::WorkerCell;
use super::core::Core;
use super::execution::{Captured, ComeBack, Execution};
use super::homes;
use super::judge::{End, How};
use super::ledger::Left;
use super::observe::Event;
use super::ready::Stop;
use super::retry;
use super::timers::{boot_ms_of, due_ms};
use crate::attempt::{AttemptReport, Ending, Failure, FailureKind, Next, Outcome, Progress};
use crate::error::RepositoryError;
use crate::executor::WorkResult;
use crate::fault::{self, Stage};
use crate::limits::{NewHold, OverBudget};
use crate::panics;
use crate::repository::Closed;
use crate::sync::thread;
use crate::unit::UnitStatus;
use crate::worker::WorkerId;

/// How long the end of an attempt is tried to be stored before it is given up.
const STORE_PATIENCE: Duration = Duration::from_secs(60);
const STORE_PAUSE_FIRST: Duration = Duration::from_millis(10);
const STORE_PAUSE_LONGEST: Duration = Duration::from_secs(2);

/// How often it is tried whether a budget has enough left again: another process may have ended something, or somebody raised it.
const LOOK_FOR_MONEY: Duration = Duration::from_secs(1);

/// Who brings an attempt to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Closer {
    /// A thread of its worker.
    Worker,
    /// The reporter, because the only thread of its worker is stuck.
    Reporter,
}

/// What is known of a unit once its attempt was closed.
pub(super) struct Settled {
    pub(super) left: Option<Left>,
    /// When it is tried again.
    pub(super) until_ms: Option<i64>,
    /// Whether the thread came back from which the attempt was taken.
    pub(super) is_thread_back: bool,
}

/// Stores how an attempt ended, then tells whoever wants to know.
pub(super) fn close(
    core: &Core,
    cell: &WorkerCell,
    closer: Closer,
    execution: &Arc<Execution>,
    mut end: End,
) -> Settled {
    if let Some((until, reason)) = &end.hold {
        hold(core, *until, reason);
    }
    // Before its unit leaves: nobody is to forget the session in between.
    if let Some(tie) = &execution.tie {
        core.ready.session_stayed(&tie.key, cell.number, core.now_ms());
        homes::stayed(core, &tie.key, &cell.id);
    }
    let captured = execution.capture(core, &end.result);
    if let Some(session_id) = &captured.session_id {
        // Once more, if it was told before: it is remembered from the end on.
        execution.tell_session(core, session_id);
    }
    let closed = match &mut end.how {
        How::Finish(ending) => finish(core, execution, ending, report_of(ending.clone(), &end.result, &captured)),
        How::Release { after, reason, failure } => {
            let progress = captured.progress(failure.clone());
            give_back(core, execution, *after, reason, &progress)
        }
        How::Lost => Err(Unstored::rejected(RepositoryError::stale(&execution.claim.lease))),
    };
    if closed.is_ok() {
        core.ready.money_may_be_left();
    }
    let left = left_if_stopped(&closed);
    cell.note_stored(execution, left);
    let back = execution.closed();
    if let Some(Some(late)) = &back {
        store_late(core, execution, late);
    }
    let mut settled = match closed {
        Ok(closed) => settle(core, cell, closer, execution, &end, &captured, &closed),
        Err(Unstored { error, report }) => {
            // Another has taken over; what this one brought is kept on its attempt.
            let level = if error.is_rejection() { log::Level::Warn } else { log::Level::Error };
            log::log!(level, "unit {}: how its attempt ended could not be stored: {error}", execution.claim.unit.id);
            let is_news = core.ready.unit_leaves(execution.claim.lease.attempt(), left).is_some();
            // Only now: whoever stores it after all takes the unit back, and frees its place.
            if let Some(report) = report {
                core.keep_for_later(execution, *report);
            }
            Settled { left: is_news.then_some(left), until_ms: None, is_thread_back: false }
        }
    };
    if settled.left.is_none() {
        execution.unit.stay_told(None);
    }
    settled.is_thread_back = back.is_some();
    settled
}

/// An end that was not stored.
struct Unstored {
    error: RepositoryError,
    /// What is to be stored later; nothing if the repository has refused it.
    report: Option<Box<AttemptReport>>,
}

impl Unstored {
    fn rejected(error: RepositoryError) -> Unstored {
        Unstored { error, report: None }
    }

    /// What is to be stored later, unless the error says that this is of no use.
    fn new(error: RepositoryError, report: AttemptReport) -> Unstored {
        let report = (!error.is_rejection()).then(|| Box::new(report));
        Unstored { error, report }
    }
}

/// How a unit leaves the pool after an attempt that ended like this, unless there is time for another.
fn left_if_stopped(closed: &Result<Closed, Unstored>) -> Left {
    match closed {
        Ok(closed) if closed.status.is_terminal() => Left::Ended(closed.status),
        Ok(_) => Left::Pending,
        Err(Unstored { report: None, .. }) => Left::Lost,
        Err(Unstored { report: Some(_), .. }) => Left::Unrecorded,
    }
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

/// Stores the end of an attempt. What the repository refuses to take is stored without, rather than not at all; then
/// `ending` becomes another.
fn finish(
    core: &Core,
    execution: &Execution,
    ending: &mut Ending,
    mut report: AttemptReport,
) -> Result<Closed, Unstored> {
    let lease = &execution.claim.lease;
    let store = |report: &AttemptReport| patiently(core, &lease.unit_id, || core.repository().finish(lease, report));
    let mut finished = store(&report);
    // What was paid is the last to go.
    for leave_out in [without_result, without_charges] {
        let Err(RepositoryError::Invalid(problem)) = &finished else { break };
        log::error!("unit {}: its result cannot be stored: {problem}", lease.unit_id);
        let failure = Failure::new(FailureKind::EXECUTOR, format!("the result cannot be stored: {problem}"));
        *ending = Ending::Failed { failure, next: Next::GiveUp };
        report.ending = ending.clone();
        leave_out(&mut report);
        finished = store(&report);
    }
    finished.map_err(|error| Unstored::new(error, report))
}

fn without_result(report: &mut AttemptReport) {
    (report.result, report.output) = (None, None);
    report.output_files.clear();
}

fn without_charges(report: &mut AttemptReport) {
    report.charges.clear();
}

/// Gives a unit back, and keeps what the attempt used, which session it had and what it said of why.
fn give_back(
    core: &Core,
    execution: &Execution,
    after: Option<Duration>,
    reason: &str,
    progress: &Progress,
) -> Result<Closed, Unstored> {
    let (lease, unit) = (&execution.claim.lease, &execution.claim.unit);
    let given_back = lease.attempt_number.saturating_sub(1).saturating_sub(unit.attempts_used);
    let often = Some(retry::pause_after_releases(unit.key, given_back)).filter(|pause| !pause.is_zero());
    let after = after.max(often);
    if *progress != Progress::default() {
        match patiently(core, &execution.claim.unit.id, || core.repository().progress(lease, progress)) {
            Err(error @ RepositoryError::Stale { .. }) => return Err(Unstored::rejected(error)),
            Err(error) => log::warn!("unit {}: what it used was not stored: {error}", lease.unit_id),
            Ok(()) => {}
        }
    }
    let released = patiently(core, &execution.claim.unit.id, || core.repository().release(lease, after, reason));
    // To end an attempt as cancelled that nobody cancelled is to give it back.
    released.map_err(|error| Unstored::new(error, AttemptReport::cancelled()))
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
        thread::sleep(pause);
        pause = (pause * 2).min(STORE_PAUSE_LONGEST);
    }
}

/// What an executor brings after its attempt was taken from it stays on the attempt.
pub(super) fn report_late(core: &Core, execution: &Execution, end: End) -> ComeBack {
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
    core.ready.attempt_ends(cell.number, outcome_of(end), &captured.charges, is_retried);
    let left = is_ended.then_some(Left::Ended(closed.status));
    if let Some(left) = left {
        core.ready.unit_leaves(lease.attempt(), left);
        if closer == Closer::Worker {
            cell.report(&core.ready, execution);
        }
    }
    let until_ms = (!is_ended).then(|| due_ms(closed.not_before, core.clock.now()));
    fault::point("callback", Stage::Before);
    tell_ended(core, &cell.id, execution, end, captured, closed);
    if is_ended {
        core.callbacks.tell_of(|| Event::UnitEnded { unit_id: &lease.unit_id, status: closed.status });
        call_back(core, execution, &end.result, closed.status);
    }
    fault::point("callback", Stage::Committed);
    Settled { left, until_ms, is_thread_back: false }
}

fn outcome_of(end: &End) -> Outcome {
    match &end.how {
        How::Finish(ending) => ending.outcome(),
        How::Release { .. } | How::Lost => Outcome::Released,
    }
}

fn tell_ended(
    core: &Core,
    worker_id: &WorkerId,
    execution: &Execution,
    end: &End,
    captured: &Captured,
    closed: &Closed,
) {
    let outcome = outcome_of(end);
    let failure = match &end.how {
        How::Finish(ending) => ending.failure(),
        How::Release { .. } | How::Lost => None,
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

/// Claims nothing before a budget has enough left. So many attempts had ended here when the claim began.
pub(super) fn hold_until_funded(core: &Core, over: &OverBudget, ends_before: u64) {
    let (reason, is_exhausted) = (over.to_string(), !over.is_passing());
    if is_exhausted && core.ready.over_budget_is_news(&reason) {
        log::warn!("{}: nothing is started: {reason}", core.job.id);
        core.callbacks.tell_of(|| Event::Held { reason: &reason, until: None });
    }
    core.ready.hold_until_funded(&reason, core.in_ms(LOOK_FOR_MONEY), is_exhausted, ends_before);
}

/// Starts nothing until then, nor does anybody else who works for the same provider. Nobody here begins anything while others are still being told.
///
/// A hold without an end is about this process and what it was given, so others do not hear of it.
pub(super) fn hold(core: &Core, until: Option<DateTime<Utc>>, reason: &str) {
    let pause = until.and_then(|until| (until - core.clock.now().wall).to_std().ok());
    hold_here(core, until, reason);
    if let Some((provider, pause)) = core.provider.as_ref().zip(pause) {
        let hold = NewHold::new(provider, pause, reason);
        let stored = panics::contain("holding a provider", || core.repository().hold(&hold));
        if let Some(Err(error)) = stored {
            log::warn!("{}: others were not told that {provider} is not to be asked: {error}", core.job.id);
        }
    }
}

/// Starts nothing here until then.
pub(super) fn hold_here(core: &Core, until: Option<DateTime<Utc>>, reason: &str) {
    log::warn!("{}: nothing is started: {reason}", core.job.id);
    core.hold(reason, until.map(|until| boot_ms_of(until, core.clock.now())));
    core.callbacks.tell_of(|| Event::Held { reason, until });
}
