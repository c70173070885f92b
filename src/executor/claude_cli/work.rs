//! Whether Claude Code is at work, or may end any moment.
//!
//! A result need not be the last one: while an agent works in the background, and when it has reported, more turns follow in the
//! same process, each with a result of its own.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::executor::agent_cli::{Event, text};
use crate::executor::process::Heard;

/// What is known of it.
#[derive(Debug, Default)]
pub(super) struct Work {
    /// The tasks in the background that have not ended.
    open: BTreeSet<String>,
    /// Whether there ever were any.
    had_background: bool,
    /// Whether the last thing that it did was to answer.
    has_answered: bool,
}

impl Work {
    /// What an event means for the end of the run.
    pub(super) fn heard(&mut self, event: &Event) -> Heard {
        match (text(event, "type"), text(event, "subtype")) {
            ("result", _) => {
                self.has_answered = true;
                self.answered()
            }
            ("system", "background_tasks_changed") => {
                self.open = tasks(event);
                self.answered()
            }
            ("system", "task_started") if event.get("is_backgrounded") == Some(&Value::Bool(true)) => {
                self.open.insert(text(event, "task_id").to_owned());
                self.answered()
            }
            ("system", "task_notification") => {
                self.open.remove(text(event, "task_id"));
                self.answered()
            }
            // A turn begins, or is under way.
            ("assistant" | "user" | "stream_event" | "tool_progress", _)
            | ("system", "init" | "status" | "api_retry" | "hook_started" | "thinking_tokens" | "task_progress") => {
                self.at_work()
            }
            // Said in passing, or not known: no reason to think that it goes on.
            _ => Heard::More,
        }
    }

    /// Whether something has worked in the background.
    pub(super) fn had_background(&self) -> bool {
        self.had_background
    }

    fn answered(&mut self) -> Heard {
        self.had_background |= !self.open.is_empty();
        match (self.has_answered, self.open.is_empty()) {
            (false, _) => Heard::More,
            (true, true) => Heard::Answer,
            (true, false) => Heard::AtWork,
        }
    }

    fn at_work(&mut self) -> Heard {
        if std::mem::take(&mut self.has_answered) { Heard::AtWork } else { Heard::More }
    }
}

fn tasks(event: &Event) -> BTreeSet<String> {
    let Some(Value::Array(tasks)) = event.get("tasks") else { return BTreeSet::new() };
    let id = |task: &Value| task.get("task_id").and_then(Value::as_str).unwrap_or_default().to_owned();
    tasks.iter().map(id).collect()
}
