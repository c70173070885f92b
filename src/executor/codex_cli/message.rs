//! What Codex prints, as messages of a conversation.

use serde_json::{Value, json};

use crate::conversation::{Message, Part, Role};
use crate::executor::agent_cli::{Event, text};

/// An event as a message, without the bytes that it came in.
pub(super) fn message(event: &Event) -> Message {
    let kind = text(event, "type");
    match (kind, event.get("item").and_then(Value::as_object)) {
        ("item.started" | "item.updated" | "item.completed", Some(item)) => of_item(kind, item),
        _ => other(kind, Value::Object(event.iter().filter(|(name, _)| *name != "type").map(cloned).collect())),
    }
}

/// A step of the agent.
fn of_item(kind: &str, item: &Event) -> Message {
    match (kind, text(item, "type")) {
        ("item.completed", "agent_message") => Message::assistant(text(item, "text")),
        ("item.completed", "reasoning") => Message::new(Role::Assistant).part(Part::thinking(text(item, "text"))),
        ("item.started", tool @ ("command_execution" | "mcp_tool_call")) => {
            Message::new(Role::Assistant).part(tool_use(tool, item))
        }
        ("item.completed", tool @ ("command_execution" | "mcp_tool_call")) => {
            Message::new(Role::Tool).part(tool_result(tool, item))
        }
        (_, item_type) => other(item_type, Value::Object(item.clone())),
    }
}

fn tool_use(tool: &str, item: &Event) -> Part {
    let id = text(item, "id");
    if tool == "command_execution" {
        return Part::tool_use(id, tool, json!({ "command": item.get("command") }));
    }
    let name = format!("{}.{}", text(item, "server"), text(item, "tool"));
    Part::tool_use(id, name, item.get("arguments").cloned().unwrap_or_default())
}

fn tool_result(tool: &str, item: &Event) -> Part {
    let failed = text(item, "status") == "failed";
    let (content, is_error) = if tool == "command_execution" {
        let code = item.get("exit_code").and_then(Value::as_i64);
        (vec![Part::text(text(item, "aggregated_output"))], failed || code.is_some_and(|code| code != 0))
    } else {
        let answer = ["error", "result"].into_iter().find_map(|name| item.get(name).filter(|value| !value.is_null()));
        let answer = answer.map(|value| Part::Other { kind: tool.to_owned(), value: value.clone() });
        (answer.into_iter().collect(), failed)
    };
    Part::ToolResult { tool_use_id: text(item, "id").to_owned(), content, is_error }
}

fn other(kind: &str, value: Value) -> Message {
    let kind = if kind.is_empty() { "unknown" } else { kind };
    Message::new(Role::System).part(Part::Other { kind: kind.to_owned(), value })
}

fn cloned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}
