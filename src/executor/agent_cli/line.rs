//! One line of output: an event if it is a JSON object, else text that is kept as it is.

use serde_json::{Map, Value};

use crate::conversation::{Message, Part, Role};
use crate::executor::Call;
use crate::executor::process::Line;

/// One line that is a JSON object.
pub(in crate::executor) type Event = Map<String, Value>;

/// Takes the next line of a run, whose conversation begins with the prompt. `None` if there is nothing in it, or nothing that could be read,
/// which is kept as it is.
pub(in crate::executor) fn next_event(line: Line<'_>, has_begun: &mut bool, call: &Call<'_>) -> Option<Event> {
    if is_blank(line) {
        return None;
    }
    if !std::mem::replace(has_begun, true) {
        call.message(Message::user(call.prompt()));
    }
    let event = event(line);
    if event.is_none() {
        call.message(unread(line));
    }
    event
}

/// Reads a line; `None` if it is too long, not JSON, nested too deep or no object.
fn event(line: Line<'_>) -> Option<Event> {
    if line.truncation.is_some() {
        return None;
    }
    let bytes = line.bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line.bytes);
    match serde_json::from_slice(bytes) {
        Ok(Value::Object(event)) => Some(event),
        _ => None,
    }
}

/// The message that keeps a line which could not be read.
pub(in crate::executor) fn unread(line: Line<'_>) -> Message {
    let text = String::from_utf8_lossy(line.bytes);
    let message = Message::new(Role::System).part(Part::text(text)).raw(line.bytes);
    match line.truncation {
        Some(truncation) => message.truncated_from(truncation),
        None => message,
    }
}

/// Whether there is nothing in a line.
pub(in crate::executor) fn is_blank(line: Line<'_>) -> bool {
    line.truncation.is_none() && line.bytes.trim_ascii().is_empty()
}

/// The text under a name, empty if there is none.
pub(in crate::executor) fn text<'a>(event: &'a Event, name: &str) -> &'a str {
    event.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The count under a name, 0 if there is none.
pub(in crate::executor) fn number(event: &Event, name: &str) -> u64 {
    event.get(name).and_then(Value::as_u64).unwrap_or_default()
}
