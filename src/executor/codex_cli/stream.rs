//! Makes sense of what `codex exec --json` prints.
//!
//! | what is read | what becomes of it |
//! |---|---|
//! | any event | a message of the conversation, with the line as it came |
//! | `thread.started` | the session |
//! | `turn.started`, `turn.completed` | what it cost, which begins as unknown |
//! | `item.completed` of an `agent_message` | the answer, if a turn is completed with it |
//! | `turn.failed` | how it went, unless a turn before it was completed |
//! | `error` | kept: it may be a retry, or tell of what `turn.failed` repeats. If it says until when nobody is to ask, nobody else begins before |
//!
//! A warning comes as an item of type `error`, and is no failure.

use std::collections::BTreeSet;

use serde_json::Value;

use super::failure::{closed_until, trouble};
use super::message::message;
use super::spending::Spending;
use crate::executor::agent_cli::{Event, Said, Trouble, next_event, session_not_found, text, without_result};
use crate::executor::process::{Exit, Heard, Line, Reader};
use crate::executor::{Call, ExecuteError, WorkResult, kinds};

/// What Codex says on its other output if there is no such thread.
const NO_THREAD: [&str; 2] = ["no rollout found for thread id", "no thread found"];

/// How many files that it has changed are remembered.
const WRITTEN_FILES_LIMIT: usize = 10_000;

/// Reads the output of one run.
#[derive(Debug)]
pub(in crate::executor) struct CodexReader {
    program: String,
    wants_structured_output: bool,
    has_begun: bool,
    has_answered: bool,
    session: Option<String>,
    spending: Spending,
    /// The last thing that the agent said in this turn.
    said: Option<String>,
    /// What it had said when a turn was completed.
    success: Option<Option<String>>,
    /// Why the last turn failed.
    failure: Option<String>,
    /// The last error that may have been the end.
    error: Option<String>,
    /// The files that it says to have changed, each once.
    written: BTreeSet<String>,
}

impl CodexReader {
    pub(super) fn new(program: String, wants_structured_output: bool, spending: Spending) -> CodexReader {
        CodexReader {
            program,
            wants_structured_output,
            has_begun: false,
            has_answered: false,
            session: None,
            spending,
            said: None,
            success: None,
            failure: None,
            error: None,
            written: BTreeSet::new(),
        }
    }
}

impl Reader for CodexReader {
    fn read(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        let Some(event) = next_event(line, &mut self.has_begun, call) else { return Heard::More };
        let kind = text(&event, "type");
        if kind == "thread.started" {
            self.thread_started(text(&event, "thread_id"), call);
        }
        call.message(message(&event).raw(line.bytes));
        match kind {
            "turn.started" => {
                self.said = None;
                self.spending.turn_started(call);
            }
            "item.completed" => self.item_completed(&event),
            "turn.completed" => {
                self.spending.turn_completed(&event, call);
                self.success = Some(self.said.take());
                self.failure = None;
            }
            "turn.failed" => {
                let reason = event.get("error").and_then(Value::as_object).map(|error| text(error, "message"));
                self.failure = Some(reason.unwrap_or_default().to_owned());
            }
            "error" => self.error(text(&event, "message"), call),
            _ => {}
        }
        self.heard(kind)
    }

    fn written_files(&self) -> Vec<String> {
        self.written.iter().cloned().collect()
    }

    fn conclude(self, exit: &Exit, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let mut result = WorkResult::empty();
        result.output = self.success.clone().unwrap_or(self.said);
        result.session_id = self.session;
        result.charges = self.spending.charge().into_iter().collect();
        if self.success.is_some() {
            return succeeded(result, self.wants_structured_output);
        }
        if let Some(reason) = self.failure {
            return Err(trouble(&reason, call.clock.now().wall).error(reason, result));
        }
        let said = if self.has_begun { Said::Something } else { Said::Nothing };
        let (trouble, mut message) = without_result(&self.program, said, exit);
        if NO_THREAD.iter().any(|words| exit.stderr_text().contains(words)) {
            return Err(session_not_found(call).error(message, result));
        }
        if let (Some(error), Trouble::NoResult) = (self.error, trouble) {
            message = format!("{message}; it last said: {error}");
        }
        Err(trouble.error(message, result))
    }
}

impl CodexReader {
    fn thread_started(&mut self, thread: &str, call: &Call<'_>) {
        if !thread.is_empty() && self.session.as_deref() != Some(thread) {
            self.session = Some(thread.to_owned());
            call.session(thread);
            self.spending.thread_started(thread, call);
        }
    }

    /// It may try again by itself. Nobody else is to begin before the time that it was told.
    fn error(&mut self, said: &str, call: &Call<'_>) {
        let now = call.clock.now().wall;
        if let Some(pause) = closed_until(said, now).and_then(|until| (until - now).to_std().ok()) {
            call.hold(pause, format!("{}: {said}", kinds::RATE_LIMITED));
        }
        self.error = Some(said.to_owned());
    }

    fn item_completed(&mut self, event: &Event) {
        let Some(Value::Object(item)) = event.get("item") else { return };
        match text(item, "type") {
            "agent_message" => self.said = Some(text(item, "text").to_owned()),
            "file_change" => {
                let changes = item.get("changes").and_then(Value::as_array).into_iter().flatten();
                let paths = changes.filter_map(|change| change.get("path")?.as_str()).map(str::to_owned);
                self.written.extend(paths.take(WRITTEN_FILES_LIMIT - self.written.len()));
            }
            _ => {}
        }
    }

    fn heard(&mut self, kind: &str) -> Heard {
        match kind {
            "turn.completed" | "turn.failed" => {
                self.has_answered = true;
                Heard::Answer
            }
            "turn.started" | "item.started" | "item.updated" | "item.completed"
                if std::mem::take(&mut self.has_answered) =>
            {
                Heard::AtWork
            }
            _ => Heard::More,
        }
    }
}

/// With a schema, what was said is the result too.
fn succeeded(result: WorkResult, wants_structured_output: bool) -> Result<WorkResult, ExecuteError> {
    if !wants_structured_output {
        return Ok(result);
    }
    match result.output.as_deref().and_then(|said| serde_json::from_str::<Value>(said).ok()) {
        Some(json) => Ok(result.json(json)),
        None => {
            let message = "the answer is not JSON, though a schema was given";
            Err(Trouble::NoStructuredOutput.error(message, result))
        }
    }
}
