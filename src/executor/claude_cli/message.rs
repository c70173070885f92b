//! What Claude Code prints, as messages of a conversation.

use serde_json::{Map, Value, json};

use crate::conversation::{Message, Part, Role};
use crate::executor::agent_cli::{Event, text};

/// The model that Claude Code names where it speaks in the model's place.
pub(super) const SYNTHETIC_MODEL: &str = "<synthetic>";

/// The tools that write a file, and where they say which.
const WRITING_TOOLS: [(&str, &str); 4] =
    [("Write", "file_path"), ("Edit", "file_path"), ("MultiEdit", "file_path"), ("NotebookEdit", "notebook_path")];

/// What every event has, which says nothing of its own.
const ENVELOPE: [&str; 4] = ["type", "subtype", "session_id", "uuid"];

/// What is kept of a result beside the conversation.
const SUMMARY: [&str; 13] = [
    "subtype",
    "is_error",
    "result",
    "errors",
    "terminal_reason",
    "stop_reason",
    "api_error_status",
    "api_error_type",
    "num_turns",
    "duration_ms",
    "duration_api_ms",
    "total_cost_usd",
    "permission_denials",
];

/// An event as a message, without the bytes that it came in.
pub(super) fn message(event: &Event) -> Message {
    match text(event, "type") {
        "assistant" => assistant(event),
        "user" => user(event),
        "result" => Message::new(Role::System).part(Part::Other { kind: "result".into(), value: summary(event) }),
        kind => other(event, kind),
    }
}

/// The files that a message of the model says to write, as it names them.
pub(super) fn written_files(message: &Message) -> impl Iterator<Item = &str> {
    message.parts.iter().filter_map(|part| match part {
        Part::ToolUse { name, input, .. } => {
            let (_, field) = WRITING_TOOLS.iter().find(|(tool, _)| tool == name)?;
            input.get(field)?.as_str()
        }
        _ => None,
    })
}

/// What a result says about the run, without what it repeats of the conversation and the counters.
pub(super) fn summary(result: &Event) -> Value {
    let said = |name: &&str| Some(((*name).to_owned(), result.get(*name)?.clone()));
    Value::Object(SUMMARY.iter().filter_map(said).collect())
}

/// One block of what the model says: a line for each, several of the same message.
fn assistant(event: &Event) -> Message {
    let said = event.get("message").and_then(Value::as_object);
    let is_synthetic = said.is_some_and(|said| text(said, "model") == SYNTHETIC_MODEL);
    let role = if is_synthetic { Role::System } else { Role::Assistant };
    let mut message = with_content(Message::new(role), event, said);
    if let Some(error) = event.get("error").filter(|error| !error.is_null()) {
        let [status, kind] = ["api_error_status", "api_error_type"].map(|name| event.get(name));
        let value = json!({ "error": error, "api_error_status": status, "api_error_type": kind });
        message = message.part(Part::Other { kind: "error".into(), value });
    }
    message
}

/// What tools answer, and what is said on the user's behalf.
fn user(event: &Event) -> Message {
    let message = with_content(Message::new(Role::User), event, event.get("message").and_then(Value::as_object));
    let has_result = message.parts.iter().any(|part| matches!(part, Part::ToolResult { .. }));
    if has_result { Message { role: Role::Tool, ..message } } else { message }
}

/// The content of a message of the model or to it, preceded by whose it is if it is a subagent's.
fn with_content(mut message: Message, event: &Event, said: Option<&Map<String, Value>>) -> Message {
    if let Some(parent) = event.get("parent_tool_use_id").and_then(Value::as_str) {
        let agent = event.get("subagent_type");
        let value = json!({ "parent_tool_use_id": parent, "subagent_type": agent });
        message = message.part(Part::Other { kind: "subagent".into(), value });
    }
    // Some messages to the model are a bare string, in the place of the content or of the whole message.
    let content = said.map_or_else(|| event.get("message"), |said| said.get("content"));
    parts(content).into_iter().fold(message, Message::part)
}

/// The parts of a content, which is a string or a list of blocks.
fn parts(content: Option<&Value>) -> Vec<Part> {
    match content {
        Some(Value::String(text)) => vec![Part::text(text)],
        Some(Value::Array(blocks)) => blocks.iter().map(part).collect(),
        None | Some(Value::Null) => Vec::new(),
        Some(other) => vec![part(other)],
    }
}

/// One block of a content, as Anthropic's API has them too.
pub(in crate::executor) fn part(block: &Value) -> Part {
    let as_it_is = |kind: &str| Part::Other { kind: kind.to_owned(), value: block.clone() };
    let Value::Object(fields) = block else { return as_it_is("content") };
    match text(fields, "type") {
        "text" => Part::text(text(fields, "text")),
        "thinking" => Part::thinking(text(fields, "thinking")),
        "redacted_thinking" => Part::thinking(""),
        "tool_use" => {
            let input = fields.get("input").cloned().unwrap_or_default();
            Part::tool_use(text(fields, "id"), text(fields, "name"), input)
        }
        "tool_result" => Part::ToolResult {
            tool_use_id: text(fields, "tool_use_id").to_owned(),
            content: parts(fields.get("content")),
            is_error: fields.get("is_error").and_then(Value::as_bool).unwrap_or_default(),
        },
        "image" => image(fields).unwrap_or_else(|| as_it_is("image")),
        kind => as_it_is(kind),
    }
}

fn image(block: &Map<String, Value>) -> Option<Part> {
    let source = block.get("source")?.as_object()?;
    let content = source.get("data").or_else(|| source.get("url"))?.as_str()?;
    Some(Part::Image { media_type: text(source, "media_type").to_owned(), source: content.to_owned() })
}

/// Whatever else it says about itself: how it is set up, hooks, tasks, retries, and what nobody knows yet.
fn other(event: &Event, kind: &str) -> Message {
    let kind = match (kind, text(event, "subtype")) {
        ("system", subtype) if !subtype.is_empty() => subtype,
        ("", _) => "unknown",
        (kind, _) => kind,
    };
    let said = event.iter().filter(|(name, _)| !ENVELOPE.contains(&name.as_str()));
    let value = said.map(|(name, value)| (name.clone(), value.clone())).collect();
    Message::new(Role::System).part(Part::Other { kind: kind.to_owned(), value: Value::Object(value) })
}
