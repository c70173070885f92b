//! One query, as its parent hears it.

use super::message::worker_types::{COMPLETE, ERROR};
use super::message::{BadMessage, WorkerMessage, type_in, work_result};
use super::{Content, QueryChange, QueryState};
use crate::executor::agent_cli::unread;
use crate::executor::process::{How, Line, Reason};
use crate::executor::warm::{Afterwards, Control, End, Health, Heard, Query};
use crate::executor::{Call, CancelReason, ExecuteError, Then, WorkResult, kinds};

/// A query to a worker that speaks the protocol.
#[derive(Debug)]
pub(super) struct WorkerQuery {
    program: String,
    request_id: String,
    state: QueryState,
    /// It was told to stop.
    is_to_stop: bool,
    session: Option<String>,
    outcome: Option<Result<WorkResult, ExecuteError>>,
}

/// What a line says: something about a query, or something else.
pub(super) enum Said {
    OfQuery(WorkerMessage),
    Else(Control),
    /// More than a message may have.
    TooLong(String),
    /// How a query ended, in a form that makes no sense.
    BadEnd(String),
}

/// Makes sense of a line.
pub(super) fn said(line: Line<'_>) -> Said {
    if let Some(truncation) = line.truncation {
        return Said::TooLong(format!("it says {} bytes at once", truncation.total_bytes));
    }
    if line.bytes.trim_ascii().is_empty() {
        return Said::Else(Control::Nothing);
    }
    match WorkerMessage::from_line(line.bytes) {
        Ok(Some(WorkerMessage::Ready)) => Said::Else(Control::Ready),
        Ok(Some(WorkerMessage::ShutdownAck)) => Said::Else(Control::ShutdownAck),
        Ok(Some(WorkerMessage::HealthOk { uptime, queries_processed })) => {
            Said::Else(Control::Health(Health { uptime, queries_processed }))
        }
        Ok(Some(message)) => Said::OfQuery(message),
        // Of a later version.
        Ok(None) => Said::Else(Control::Nothing),
        Err(bad) => {
            let cause = std::error::Error::source(&bad).map(|cause| format!(": {cause}")).unwrap_or_default();
            let fault = format!("{bad}{cause}");
            match bad {
                BadMessage::Malformed { message_type, .. } if [COMPLETE, ERROR].contains(&message_type.as_str()) => {
                    Said::BadEnd(fault)
                }
                _ => Said::Else(Control::Fault(fault)),
            }
        }
    }
}

/// Whether a line that is too long may have said how a query ended, by what there is of it.
fn may_be_the_answer(line: Line<'_>) -> bool {
    match type_in(line.bytes) {
        Ok(message_type) => message_type.is_none_or(|message_type| [COMPLETE, ERROR].contains(&message_type.as_str())),
        // It is no message, however it goes on.
        Err(()) => false,
    }
}

/// The query that a message is about.
pub(super) fn request_of(message: &WorkerMessage) -> &str {
    match message {
        WorkerMessage::Session { request_id, .. }
        | WorkerMessage::Message { request_id, .. }
        | WorkerMessage::Complete { request_id, .. }
        | WorkerMessage::Error { request_id, .. } => request_id,
        WorkerMessage::Ready | WorkerMessage::ShutdownAck | WorkerMessage::HealthOk { .. } => "",
    }
}

impl WorkerQuery {
    pub(super) fn new(program: String, request_id: String) -> WorkerQuery {
        WorkerQuery { program, request_id, state: QueryState::Pending, is_to_stop: false, session: None, outcome: None }
    }

    /// Changes the state, by way of those in between where the worker has left something out. What was to stop before it was taken is
    /// cancelled when it is.
    fn change(&mut self, change: QueryChange) {
        if self.state == QueryState::Pending && matches!(change, QueryChange::Message | QueryChange::Complete) {
            self.change(QueryChange::Session);
        }
        if self.state == QueryState::Processing && change == QueryChange::Complete {
            self.change(QueryChange::Message);
        }
        if let Some(state) = self.state.after(change) {
            self.state = state;
        }
        if self.is_to_stop
            && let Some(cancelled) = self.state.after(QueryChange::Cancel)
        {
            self.state = cancelled;
        }
    }

    fn answer(&mut self, message: WorkerMessage, call: &Call<'_>) -> Heard {
        match message {
            WorkerMessage::Session { session_id, .. } => {
                self.change(QueryChange::Session);
                if let Some(session_id) = session_id {
                    call.session(&session_id);
                    self.session = Some(session_id);
                }
                Heard::More
            }
            WorkerMessage::Message { content, .. } => {
                self.change(QueryChange::Message);
                Content::read(content).tell(call);
                Heard::More
            }
            WorkerMessage::Complete { result, .. } => {
                self.change(QueryChange::Complete);
                self.outcome = Some(Ok(work_result(result)));
                Heard::Over(Afterwards::GoesOn)
            }
            WorkerMessage::Error { error, kind, then, result, .. } => {
                // Who has not taken it has refused it.
                let is_refused = self.state == QueryState::Pending;
                self.change(if is_refused { QueryChange::Reject } else { QueryChange::Error });
                let then = then.map_or(Then::Retry, Then::from);
                let kind = kind.unwrap_or_else(|| kinds::WORKER.to_owned());
                let result = result.map(work_result).unwrap_or_default();
                let afterwards = match then {
                    Then::Replace => Afterwards::Replaced(error.clone()),
                    _ => Afterwards::GoesOn,
                };
                self.outcome = Some(Err(ExecuteError::following(then, error).kind(kind).result(result)));
                Heard::Over(afterwards)
            }
            WorkerMessage::Ready | WorkerMessage::ShutdownAck | WorkerMessage::HealthOk { .. } => Heard::More,
        }
    }

    /// Whether an id is that of a query which the same worker had before.
    fn is_earlier(&self, request_id: &str) -> bool {
        let number = |id: &str| {
            let (worker, number) = id.split_once('.')?;
            Some((worker.parse::<u64>().ok()?, number.parse::<u64>().ok()?))
        };
        match (number(request_id), number(&self.request_id)) {
            (Some((worker, theirs)), Some((this, ours))) => worker == this && (1..ours).contains(&theirs),
            _ => false,
        }
    }
}

impl Query<Option<String>> for WorkerQuery {
    fn hear(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        let message = match said(line) {
            Said::OfQuery(message) => message,
            Said::TooLong(fault) => {
                call.message(unread(line));
                // It may have been the answer, for which nobody need wait any more.
                return if may_be_the_answer(line) {
                    Heard::Broken(fault)
                } else {
                    Heard::Control(Control::Fault(fault))
                };
            }
            Said::BadEnd(fault) => {
                call.message(unread(line));
                return Heard::Broken(fault);
            }
            Said::Else(control) => {
                if matches!(control, Control::Fault(_)) {
                    call.message(unread(line));
                }
                return Heard::Control(control);
            }
        };
        let request_id = request_of(&message);
        if request_id == self.request_id {
            return self.answer(message, call);
        }
        if self.is_earlier(request_id) {
            // What a query still had to say when it was cancelled. It is no word of this one.
            return Heard::Control(Control::Nothing);
        }
        let fault = format!("it speaks of a request `{}` that it never got", crate::unit::shortened(request_id));
        match message {
            // Then ours will never be answered.
            WorkerMessage::Complete { .. } | WorkerMessage::Error { .. } => Heard::Broken(fault),
            _ => Heard::Control(Control::Fault(fault)),
        }
    }

    fn cancel(&mut self) {
        self.is_to_stop = true;
        self.change(QueryChange::Cancel);
    }

    fn state(&self) -> Option<QueryState> {
        Some(self.state)
    }

    fn conclude(self, end: End<'_>, memory: &mut Option<String>, _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        *memory = self.session.or(memory.take());
        if let Some(outcome) = self.outcome {
            return outcome;
        }
        let program = &self.program;
        let crashed = |how: &str| Err(ExecuteError::broken(format!("`{program}` {how}")).kind(kinds::WORKER_CRASHED));
        let exit = match end {
            End::Exit(exit) => exit,
            End::Broken(reason) => return crashed(&format!("was ended: {reason}")),
            End::Over => return crashed("gave no answer"),
        };
        let complaint = exit.stderr_text();
        let complaint = if complaint.is_empty() { complaint } else { format!(": {complaint}") };
        match exit.how {
            How::Exited(code) => crashed(&format!("ended with exit code {code} before it had answered{complaint}")),
            How::Signalled(signal) => {
                crashed(&format!("was ended by signal {signal} before it had answered{complaint}"))
            }
            How::Ended(Reason::Cancelled(CancelReason::TimedOut)) => {
                Err(ExecuteError::retry(format!("`{program}` took too long and was ended")).kind(kinds::TIMED_OUT))
            }
            How::Ended(Reason::Cancelled(_)) => {
                Err(ExecuteError::retry(format!("`{program}` was ended because it was to stop")).kind(kinds::CANCELLED))
            }
            How::Ended(Reason::Silent(limit) | Reason::NeverSpoke(limit)) => {
                Err(ExecuteError::retry(format!("`{program}` said nothing for {limit:?} and was ended"))
                    .kind(kinds::SILENT))
            }
            How::Ended(Reason::Lingered | Reason::ClosedItsOutput) => crashed("was ended"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_same_worker_had_before_is_earlier() {
        let query = WorkerQuery::new("worker".to_owned(), "3.3".to_owned());
        let is_earlier =
            ["3.1", "3.2", "3.0", "3.3", "3.4", "2.1", "33.1", "3", "3.x", ""].map(|id| query.is_earlier(id));
        assert_eq!(is_earlier, [true, true, false, false, false, false, false, false, false, false]);
    }
}
