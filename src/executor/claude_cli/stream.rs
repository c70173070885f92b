//! Makes sense of what `claude -p --output-format stream-json --verbose` prints.
//!
//! | what is read | what becomes of it |
//! |---|---|
//! | any event but a `stream_event` | a message of the conversation, with the line as it came |
//! | `stream_event` | the text of the message that is being written |
//! | `system/init` | the session |
//! | `assistant` | what the model has read so far; an error's code, if it is one |
//! | `rate_limit_event`, `system/api_retry` | when it is worth trying again, before which nobody else begins |
//! | `result` | how it went, and what it cost; there may be several |
//! | anything else, known or not | kept, and no reason to fail |
//!
//! How it went is judged by `is_error` and by whether there is a result at all, never by the subtype or the exit code alone. The last
//! success wins: an error that comes after it is recorded.

use std::collections::BTreeSet;

use serde_json::Value;

use super::failure::{Hints, lacks_session, trouble};
use super::message::{message, summary, written_files};
use super::spending::Spending;
use super::work::Work;
use crate::executor::agent_cli::{Event, Said, Trouble, next_event, text, without_result};
use crate::executor::process::{Exit, Heard, Line, Reader};
use crate::executor::{Call, ExecuteError, WorkResult, kinds};

/// How much of a message that is still being written is told.
const PARTIAL_LIMIT_BYTES: usize = 1 << 20;

/// How many files that it has written are remembered.
const WRITTEN_FILES_LIMIT: usize = 10_000;

/// What a result said.
#[derive(Clone, Debug)]
struct Answer {
    result: Event,
}

/// Reads the output of one run.
#[derive(Debug)]
pub(in crate::executor) struct ClaudeReader {
    program: String,
    wants_structured_output: bool,
    has_begun: bool,
    session: Option<String>,
    /// The message that is being written, so far.
    partial: String,
    spending: Spending,
    work: Work,
    hints: Hints,
    /// The files that it says to have written, each once.
    written: BTreeSet<String>,
    success: Option<Answer>,
    /// The last result that is an error.
    error: Option<Answer>,
}

impl ClaudeReader {
    pub(super) fn new(program: String, wants_structured_output: bool, spending: Spending) -> ClaudeReader {
        ClaudeReader {
            program,
            wants_structured_output,
            has_begun: false,
            session: None,
            partial: String::new(),
            spending,
            work: Work::default(),
            hints: Hints::default(),
            written: BTreeSet::new(),
            success: None,
            error: None,
        }
    }
}

impl Reader for ClaudeReader {
    fn read(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        let Some(event) = next_event(line, &mut self.has_begun, call) else { return Heard::More };
        match text(&event, "type") {
            "stream_event" if self.writes(&event, call) => {}
            "system" if text(&event, "subtype") == "init" => self.init(&event, line, call),
            "assistant" => self.assistant(&event, line, call),
            "result" => self.result(&event, line, call),
            _ => call.message(message(&event).raw(line.bytes)),
        }
        if let Some(pause) = self.hints.note(&event, call.clock.now().wall) {
            // It may try again by itself, for minutes. Nobody else is to begin meanwhile.
            call.hold(pause, format!("{}: `{}` was told to come back then", kinds::RATE_LIMITED, self.program));
        }
        self.work.heard(&event)
    }

    fn written_files(&self) -> Vec<String> {
        self.written.iter().cloned().collect()
    }

    fn conclude(self, exit: &Exit, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.finish(Some(exit), call)
    }
}

impl ClaudeReader {
    /// What came of it, of a process that has ended or of one that goes on.
    pub(super) fn finish(&self, exit: Option<&Exit>, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let charges = self.spending.charges();
        let found = self.success.as_ref().or(self.error.as_ref());
        let mut result = found.map_or_else(WorkResult::empty, Answer::work_result);
        result.charges = charges;
        result.session_id.clone_from(&self.session);
        if let Some(success) = &self.success {
            return match success.structured_output() {
                Some(json) if self.wants_structured_output => Ok(result.json(json.clone())),
                None if self.wants_structured_output => {
                    let message = "the answer has no structured output, though a schema was given";
                    Err(Trouble::NoStructuredOutput.error(message, result))
                }
                _ => Ok(with_later_error(result, self.error.as_ref())),
            };
        }
        if let Some(error) = &self.error {
            let trouble = trouble(&error.result, &self.hints, call);
            return Err(trouble.error(error.message(), result));
        }
        let said = if self.has_begun { Said::Something } else { Said::Nothing };
        let (trouble, message) = match exit {
            Some(exit) => without_result(&self.program, said, exit),
            None => (Trouble::NoResult, format!("`{}` has no result", self.program)),
        };
        Err(trouble.error(message, result))
    }

    /// The session in which it works.
    pub(super) fn session(&self) -> Option<&str> {
        self.session.as_deref()
    }

    /// Whether something has worked in the background, so that more may be said after an answer.
    pub(super) fn had_background(&self) -> bool {
        self.work.had_background()
    }

    /// Whether it was not even begun, because of something that is not there.
    pub(super) fn was_refused(&self) -> bool {
        let refuses = |error: &Answer| {
            let reason = text(&error.result, "terminal_reason");
            text(&error.result, "subtype") == "error_during_execution" && !reason.starts_with("aborted")
        };
        self.success.is_none() && self.error.as_ref().is_some_and(refuses)
    }

    /// Whether that is the session that it was to carry on.
    pub(super) fn lacks_session(&self) -> bool {
        self.was_refused() && self.error.as_ref().is_some_and(|error| lacks_session(&error.result))
    }

    /// What it used, for whoever goes on counting.
    pub(super) fn into_spending(self) -> Spending {
        self.spending
    }

    fn init(&mut self, event: &Event, line: Line<'_>, call: &Call<'_>) {
        let session = text(event, "session_id");
        if !session.is_empty() && self.session.as_deref() != Some(session) {
            self.session = Some(session.to_owned());
            call.session(session);
        }
        call.message(message(event).raw(line.bytes));
        self.spending.began(event);
        self.spending.tell(call);
    }

    fn assistant(&mut self, event: &Event, line: Line<'_>, call: &Call<'_>) {
        self.partial.clear();
        let message = message(event);
        self.written.extend(written_files(&message).map(str::to_owned).take(WRITTEN_FILES_LIMIT - self.written.len()));
        call.message(message.raw(line.bytes));
        if let Some(Value::Object(said)) = event.get("message") {
            self.spending.said(said);
            self.spending.tell(call);
        }
    }

    fn result(&mut self, event: &Event, line: Line<'_>, call: &Call<'_>) {
        call.message(message(event).raw(line.bytes));
        self.spending.counted(event);
        self.spending.tell(call);
        let answer = Answer { result: event.clone() };
        if answer.is_error() {
            self.error = Some(answer);
            return;
        }
        // An error before a success is over; one after it is recorded with it.
        self.error = None;
        // A turn that follows because a background task has reported may have nothing to put into the form.
        let has_better = self.success.as_ref().is_some_and(|earlier| earlier.structured_output().is_some());
        if !(self.wants_structured_output && has_better && answer.structured_output().is_none()) {
            self.success = Some(answer);
        }
    }

    /// Adds to the message that is being written. Says whether it is a known step of writing one, which needs no keeping: the whole
    /// message follows.
    fn writes(&mut self, event: &Event, call: &Call<'_>) -> bool {
        let Some(Value::Object(step)) = event.get("event") else { return false };
        if event.get("parent_tool_use_id").is_some_and(Value::is_string) {
            // Several subagents write at the same time.
            return true;
        }
        match text(step, "type") {
            "content_block_start" | "message_start" => {
                self.partial.clear();
                true
            }
            "content_block_delta" => {
                if let Some(Value::Object(delta)) = step.get("delta")
                    && text(delta, "type") == "text_delta"
                    && self.partial.len() + text(delta, "text").len() <= PARTIAL_LIMIT_BYTES
                {
                    self.partial.push_str(text(delta, "text"));
                    call.partial(&self.partial);
                }
                true
            }
            "content_block_stop" | "message_delta" | "message_stop" | "ping" => true,
            _ => false,
        }
    }
}

impl Answer {
    fn is_error(&self) -> bool {
        match self.result.get("is_error") {
            Some(Value::Bool(is_error)) => *is_error,
            _ => text(&self.result, "subtype") != "success",
        }
    }

    fn structured_output(&self) -> Option<&Value> {
        self.result.get("structured_output").filter(|output| !output.is_null())
    }

    /// What went wrong, in its own words.
    fn message(&self) -> String {
        let errors = self.result.get("errors").and_then(Value::as_array).into_iter().flatten();
        let errors: Vec<&str> = errors.filter_map(Value::as_str).collect();
        let said = if errors.is_empty() { text(&self.result, "result").to_owned() } else { errors.join("; ") };
        if said.is_empty() { format!("the run ended as `{}`", text(&self.result, "subtype")) } else { said }
    }

    fn work_result(&self) -> WorkResult {
        let output = self.result.get("result").and_then(Value::as_str);
        let mut result = output.map_or_else(WorkResult::empty, WorkResult::text);
        let mut summary = summary(&self.result);
        if let Value::Object(fields) = &mut summary {
            // It is the output already.
            fields.remove("result");
        }
        result.json = Some(summary);
        result
    }
}

/// The result of a success, with the error that came after it.
fn with_later_error(mut result: WorkResult, error: Option<&Answer>) -> WorkResult {
    if let (Some(Value::Object(fields)), Some(error)) = (&mut result.json, error) {
        fields.insert("error_after_success".to_owned(), Value::String(error.message()));
    }
    result
}
