//! What of a record can be searched, as pieces of text.

use serde_json::Value;

use super::Kind;
use crate::conversation::{Message, Part, Role};

/// A text that stands for itself: no phrase goes from one to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl Piece {
    pub(crate) fn new(kind: Kind, text: impl Into<String>) -> Piece {
        Piece { kind, text: text.into() }
    }
}

/// What was said, thought and asked of tools in a message. Pictures, and what the provider sent, are not searched.
pub(crate) fn of_message(message: Message) -> Vec<Piece> {
    let own = match message.role {
        Role::System | Role::User => Kind::Prompt,
        Role::Assistant => Kind::Assistant,
        Role::Tool => Kind::Tool,
    };
    let mut pieces = Vec::new();
    message.parts.into_iter().for_each(|part| add_part(part, own, &mut pieces));
    pieces
}

fn add_part(part: Part, own: Kind, pieces: &mut Vec<Piece>) {
    match part {
        Part::Text { text } | Part::Thinking { text } => pieces.push(Piece { kind: own, text }),
        Part::ToolUse { id: _, mut name, input } => {
            name.push(' ');
            add_value(&input, &mut name);
            pieces.push(Piece { kind: Kind::Tool, text: name });
        }
        Part::ToolResult { content, .. } => {
            content.into_iter().for_each(|part| add_part(part, Kind::Tool, pieces));
        }
        Part::Image { .. } => {}
        Part::Other { mut kind, value } => {
            kind.push(' ');
            add_value(&value, &mut kind);
            pieces.push(Piece { kind: own, text: kind });
        }
    }
}

/// A value as a person would write it down, without the escapes of JSON.
pub(crate) fn of_value(value: &Value) -> String {
    let mut text = String::new();
    add_value(value, &mut text);
    text
}

fn add_value(value: &Value, text: &mut String) {
    match value {
        Value::Null => {}
        Value::Bool(is_true) => text.push_str(if *is_true { "true" } else { "false" }),
        Value::Number(number) => text.push_str(&number.to_string()),
        Value::String(string) => text.push_str(string),
        Value::Array(values) => {
            for (value, comma) in values.iter().zip(commas()) {
                text.push_str(comma);
                add_value(value, text);
            }
        }
        Value::Object(fields) => {
            for ((name, value), comma) in fields.iter().zip(commas()) {
                text.push_str(comma);
                text.push_str(name);
                text.push_str(": ");
                add_value(value, text);
            }
        }
    }
}

/// What stands before each of several things.
fn commas() -> impl Iterator<Item = &'static str> {
    std::iter::once("").chain(std::iter::repeat(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_message_is_searched_by_what_it_says_and_by_what_it_asks_of_tools() {
        let message = Message::new(Role::Assistant)
            .part(Part::thinking("a thought"))
            .part(Part::tool_use("t1", "search", json!({ "q": "two\nlines", "n": [1, true, null] })))
            .part(Part::Image { media_type: "image/png".to_owned(), source: "aGVsbG8=".to_owned() })
            .raw("raw");
        let pieces = of_message(message);
        let expected =
            [Piece::new(Kind::Assistant, "a thought"), Piece::new(Kind::Tool, "search n: 1, true, , q: two\nlines")];
        assert_eq!(pieces, expected);
        let result = Message::new(Role::User).part(Part::tool_result("t1", "found")).part(Part::text("go on"));
        assert_eq!(of_message(result), [Piece::new(Kind::Tool, "found"), Piece::new(Kind::Prompt, "go on")]);
    }
}
