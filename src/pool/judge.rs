//! How an attempt is to end, judged by how its executor came back and by what was asked of it meanwhile.
//!
//! | it was asked to stop because | it succeeded | it failed |
//! |---|---|---|
//! | – | COMPLETED | what its error says: another attempt, none, or a hold |
//! | somebody no longer wants the unit | cancelled, the result stays on the attempt | cancelled |
//! | its time was up | timed out, the result stays on the attempt | timed out |
//! | it said too much | failed for good | failed for good |
//! | its unit has cost too much | COMPLETED: it is paid for | failed for good |
//! | the pool stops, or its lease was lost | COMPLETED, if the lease still holds | given back, uncounted |
//!
//! What failed and would have another attempt has none if its unit has cost as much as it may.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::adaptive::Sign;
use super::core::Core;
use super::cost_limit;
use super::execution::Execution;
use crate::attempt::{AttemptKey, Ending, Failure, FailureKind, Next};
use crate::executor::{CancelReason, ExecuteError, Then, WorkResult};

/// How an execution is to be stored.
#[derive(Debug)]
pub(super) struct End {
    pub(super) how: How,
    pub(super) result: WorkResult,
    /// Nothing else is to be started for a while.
    pub(super) hold: Option<(Option<DateTime<Utc>>, String)>,
    /// Why the worker is not to be trusted any more, if it is not.
    pub(super) crash: Option<String>,
    /// Whose answer the result is, if it is another's.
    pub(super) answer_of: Option<AttemptKey>,
    /// What it says of how many at a time its provider bears.
    pub(super) sign: Option<Sign>,
}

/// The ways to store it.
#[derive(Debug)]
pub(super) enum How {
    Finish(Ending),
    /// Given back, for a reason that is not the unit's.
    Release {
        after: Option<Duration>,
        /// For the journal, so without a word of the executor's.
        reason: String,
        /// What the executor said.
        failure: Option<Failure>,
    },
    /// The lease is gone, and with it the right to say anything.
    Lost,
}

impl End {
    pub(super) fn new(how: How) -> End {
        End { how, result: WorkResult::empty(), hold: None, crash: None, answer_of: None, sign: None }
    }
}

/// What follows from how the executor came back, and from what was asked of it meanwhile.
pub(super) fn judge(core: &Core, execution: &Execution, outcome: Result<WorkResult, ExecuteError>) -> End {
    let (failure, then, result) = match outcome {
        Ok(result) => (None, Then::Retry, result),
        Err(error) => {
            let (failure, then, result) = error.into_parts();
            (Some(failure), then, result)
        }
    };
    let sign = Sign::of(failure.as_ref(), then, core.clock.now());
    let crash = failure.as_ref().filter(|_| then == Then::Replace).map(Failure::to_string);
    // What is not to be executed again after a crash is not given back either.
    let is_over = crash.is_some() && !is_retried_after_crash(core, execution);
    let mut end = match (execution.cancel.reason(), failure) {
        (Some(CancelReason::Requested), _) => End::new(How::Finish(Ending::Cancelled)),
        (Some(CancelReason::TimedOut), failure) => timed_out(core, execution, failure, then),
        (Some(CancelReason::ConversationLimit), _) => {
            let limit = core.settings.conversation_limit_bytes;
            let failure = Failure::new(FailureKind::CONVERSATION_LIMIT, format!("it said more than {limit} bytes"));
            End::new(How::Finish(Ending::Failed { failure, next: Next::GiveUp }))
        }
        (_, None) => End::new(How::Finish(Ending::Completed)),
        (Some(CancelReason::CostLimit), Some(failure)) => {
            let failure = cost_limit::failure(&execution.claim.unit, execution.cost(&result), Some(failure.message));
            End::new(How::Finish(Ending::Failed { failure, next: Next::GiveUp }))
        }
        (Some(_), Some(failure)) if is_over => failed(core, execution, failure, then),
        (Some(CancelReason::Shutdown), Some(_)) => release("the pool stops"),
        (Some(CancelReason::LeaseLost), Some(_)) => release("its lease could not be renewed"),
        (None, Some(failure)) => failed(core, execution, failure, then),
    };
    if let How::Finish(ending) = &mut end.how {
        end_if_too_dear(execution, &result, ending);
    }
    end.result = result;
    (end.crash, end.sign) = (crash, sign);
    end
}

pub(super) fn release(reason: &str) -> End {
    End::new(How::Release { after: None, reason: reason.to_owned(), failure: None })
}

fn timed_out(core: &Core, execution: &Execution, failure: Option<Failure>, then: Then) -> End {
    let timeout = execution.claim.unit.options.timeout.unwrap_or(core.settings.timeout);
    let mut message = format!("it took longer than {timeout:?}");
    if let Some(failure) = failure {
        message = format!("{message}: {}", failure.message);
    }
    let failure = Failure::new(FailureKind::TIMED_OUT, message);
    // What an executor says when it is interrupted is not about the unit, but that it crashed counts.
    let then = if then == Then::Replace { then } else { Then::Retry };
    End::new(How::Finish(Ending::TimedOut { failure, next: next(core, execution, then) }))
}

fn failed(core: &Core, execution: &Execution, failure: Failure, then: Then) -> End {
    match then {
        Then::Hold { until } => {
            // Where others hear of the hold the unit needs no date of its own, which would outlast it if that is lifted.
            let own = until.filter(|_| core.provider.is_none());
            let after = own.and_then(|until| (until - core.clock.now().wall).to_std().ok());
            let (reason, hold) = (failure.kind.to_string(), Some((until, failure.to_string())));
            End { hold, ..End::new(How::Release { after, reason, failure: Some(failure) }) }
        }
        Then::Retry | Then::RetryAfter(_) | Then::GiveUp | Then::Replace => {
            let next = next(core, execution, then);
            End::new(How::Finish(Ending::Failed { failure, next }))
        }
    }
}

/// What would be tried again although its unit has cost as much as it may ends here, and not after the pause.
fn end_if_too_dear(execution: &Execution, result: &WorkResult, ending: &mut Ending) {
    let unit = &execution.claim.unit;
    let (Ending::Failed { failure, next } | Ending::TimedOut { failure, next }) = ending else { return };
    let is_tried_again = matches!(next, Next::Retry { .. }) && unit.attempts_used < unit.max_retries;
    let cost = execution.cost(result);
    if is_tried_again && cost_limit::is_reached(unit, cost) {
        *failure = cost_limit::failure(unit, cost, Some(failure.to_string()));
        *next = Next::GiveUp;
    }
}

fn is_retried_after_crash(core: &Core, execution: &Execution) -> bool {
    core.settings.retry.is_retried_after_crash(execution.claim.unit.options.is_idempotent)
}

fn next(core: &Core, execution: &Execution, then: Then) -> Next {
    let unit = &execution.claim.unit;
    match then {
        Then::GiveUp => Next::GiveUp,
        Then::Replace if !is_retried_after_crash(core, execution) => Next::GiveUp,
        Then::RetryAfter(pause) => Next::Retry { after: pause },
        _ => Next::Retry { after: core.settings.retry.pause(unit.key, unit.attempts_used + 1) },
    }
}
