//! What a worker says while it works, inside of a `message`.
//!
//! | `content` | what becomes of it |
//! |---|---|
//! | `{"role": "assistant", "parts": [...]}` | a [`Message`] of the conversation |
//! | `{"type": "text", "text": ...}`, and every other [`Part`] by itself: `thinking`, `tool_use`, `tool_result`, `image`, `other` | a message of one part: of the tool's if it is a `tool_result`, else of the model's |
//! | `{"type": "assistant", "text": ...}`, also `user`, `system` and `tool` | a message of one text |
//! | `{"type": "partial", "text": ...}` | the text so far of a message that is still being written |
//! | `{"type": "usage", "charge": {...}}` | what was used of a model so far, as a [`Charge`] |
//! | `{"type": "checkpoint", "value": ...}` | what the next attempt starts from |
//! | anything else | a message that keeps it as it is |

use serde::Deserialize;
use serde_json::{Value, json};

use crate::conversation::{Message, Part, Role};
use crate::executor::Call;
use crate::money::Charge;

/// What a worker says while it works.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Content {
    /// Part of the conversation.
    Message(Message),
    /// The text so far of a message that is still being written.
    Partial(String),
    /// What was used of a model so far.
    Usage(Charge),
    /// What the next attempt starts from.
    Checkpoint(Value),
}

impl Content {
    /// Makes sense of the content of a message; nothing is refused.
    pub fn read(content: Value) -> Content {
        if let Ok(message) = Message::deserialize(&content) {
            return Content::Message(message);
        }
        if let Ok(part) = Part::deserialize(&content) {
            let role = if matches!(part, Part::ToolResult { .. }) { Role::Tool } else { Role::Assistant };
            return Content::Message(Message::new(role).part(part));
        }
        let text = content.get("text").and_then(Value::as_str);
        let kind = content.get("type").and_then(Value::as_str).unwrap_or_default();
        match (kind, text) {
            ("partial", Some(text)) => return Content::Partial(text.to_owned()),
            ("checkpoint", _) => return Content::Checkpoint(content.get("value").cloned().unwrap_or_default()),
            ("usage", _) => {
                if let Some(charge) = content.get("charge").and_then(|charge| Charge::deserialize(charge).ok()) {
                    return Content::Usage(charge);
                }
            }
            (kind, Some(text)) => {
                if let Some(role) = Role::from_name(kind) {
                    return Content::Message(Message::new(role).part(Part::text(text)));
                }
            }
            _ => {}
        }
        let kind = if kind.is_empty() { "message" } else { kind }.to_owned();
        Content::Message(Message::new(Role::System).part(Part::Other { kind, value: content }))
    }

    /// The content as it travels.
    pub fn into_value(self) -> Value {
        match self {
            Content::Message(message) => serde_json::to_value(message).expect("a message has only keys that are text"),
            Content::Partial(text) => json!({ "type": "partial", "text": text }),
            Content::Usage(charge) => json!({ "type": "usage", "charge": charge }),
            Content::Checkpoint(value) => json!({ "type": "checkpoint", "value": value }),
        }
    }

    /// Tells a call. Whoever sent it has no raw form of a message but what travelled.
    pub(super) fn tell(self, call: &Call<'_>) {
        match self {
            Content::Message(message) => call.message(message),
            Content::Partial(text) => call.partial(&text),
            Content::Usage(charge) => call.usage(charge),
            Content::Checkpoint(value) => call.checkpoint(value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::{Money, Tokens};

    fn message(role: Role, part: Part) -> Content {
        Content::Message(Message::new(role).part(part))
    }

    #[test]
    fn the_short_forms_are_understood_and_what_is_not_is_kept() {
        let read = |value: Value| Content::read(value);
        let text = json!({ "type": "text", "text": "hi" });
        assert_eq!(read(text), message(Role::Assistant, Part::text("hi")));
        for (kind, role) in [("assistant", Role::Assistant), ("user", Role::User), ("system", Role::System)] {
            assert_eq!(read(json!({ "type": kind, "text": "hi" })), message(role, Part::text("hi")));
        }
        assert_eq!(read(json!({ "type": "thinking", "text": "hm" })), message(Role::Assistant, Part::thinking("hm")));
        let input = json!({ "command": "ls" });
        assert_eq!(
            read(json!({ "type": "tool_use", "id": "t", "name": "bash", "input": input })),
            message(Role::Assistant, Part::tool_use("t", "bash", input))
        );
        let content = json!([{ "type": "text", "text": "ok" }]);
        assert_eq!(
            read(json!({ "type": "tool_result", "tool_use_id": "t", "content": content })),
            message(Role::Tool, Part::tool_result("t", "ok"))
        );
        assert_eq!(read(json!({ "type": "partial", "text": "h" })), Content::Partial("h".to_owned()));
        assert_eq!(read(json!({ "type": "checkpoint", "value": 3 })), Content::Checkpoint(json!(3)));
        let charge = json!({ "model": "m", "tokens": { "input": 12 }, "amount": 5 });
        let expected = Charge::reported("m", Tokens { input: 12, ..Tokens::default() }, Money::from_nanos(5));
        assert_eq!(read(json!({ "type": "usage", "charge": charge })), Content::Usage(expected));
        for odd in [
            json!({ "type": "progress", "percent": 4 }),
            json!({ "type": "usage" }),
            json!({ "type": "partial" }),
            json!({ "type": "tool_use" }),
            json!(["a", 1]),
            Value::Null,
        ] {
            let kind = odd.get("type").and_then(Value::as_str).unwrap_or("message").to_owned();
            assert_eq!(read(odd.clone()), message(Role::System, Part::Other { kind, value: odd }));
        }
    }

    #[test]
    fn all_of_it_survives_the_way() {
        let odd = Message::new(Role::Tool)
            .part(Part::tool_error("t", "no"))
            .part(Part::Image { media_type: "image/png".into(), source: "x".into() })
            .raw(vec![0xff, 0xfe])
            .partial();
        for content in [
            Content::Message(odd),
            Content::Message(Message::user("")),
            Content::Partial("so f".to_owned()),
            Content::Usage(Charge::unpriced("m", Tokens::default())),
            Content::Checkpoint(json!({ "page": 3 })),
        ] {
            assert_eq!(Content::read(content.clone().into_value()), content);
        }
    }
}
