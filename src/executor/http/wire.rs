//! What a provider's own file knows: how a request is written, and what the events of an answer mean.
//!
//! Everything else is the same for all of them: connections, limits, turns, tools, failures and money.

use std::fmt;

use serde_json::Value;

use super::failure::Said;
use super::secret::Veil;
use super::settings::Settings;
use crate::conversation::{Message, Part};
use crate::money::Tokens;

/// How much of an answer is put together, which is more than any model writes.
pub(super) const ANSWER_LIMIT_BYTES: usize = 8 * 1024 * 1024;

/// A provider's way of speaking. There are two, [`Anthropic`](super::Anthropic) and [`OpenAi`](super::OpenAi).
pub trait Wire: fmt::Debug + Send + Sync + 'static {
    /// What an executor that speaks so is called in the records.
    const NAME: &'static str;
    /// Where the provider itself is.
    const BASE_URL: &'static str;
    /// What is asked there.
    const PATH: &'static str;
    /// The variable in which people have their key.
    const KEY_VARIABLE: &'static str;
    /// What is made of an answer.
    type Reply: Reply;

    /// The headers of a request, with the key if there is one.
    fn headers(key: Option<&str>) -> Vec<(&'static str, String)>;

    /// What is sent, but for what the caller sets or removes himself.
    fn body(settings: &Settings, conversation: &[Value]) -> Value;

    /// Messages as they are sent.
    fn written(messages: &[Message]) -> Vec<Value>;
}

/// An answer that is being put together.
pub trait Reply: fmt::Debug + Default {
    /// Takes an event of the stream.
    fn take(&mut self, event: &Value) -> Result<(), Said>;

    /// Takes an answer that came as a whole.
    fn take_whole(&mut self, body: &Value);

    /// Why the answer ends, in the provider's word. What comes after that is only about money.
    fn stop_reason(&self) -> Option<&str>;

    /// Whether the provider has said so.
    fn is_answered(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Whether nothing more comes.
    fn is_over(&self) -> bool;

    /// The text so far.
    fn text(&self) -> &str;

    /// All that was said so far.
    fn parts(&self) -> Vec<Part>;

    /// The same as it goes into the next request.
    fn written(&self) -> Value;

    /// The same as the provider would have sent it as a whole.
    fn raw(&self) -> Value;

    /// Why the answer ends.
    fn stop(&self) -> Stop;

    /// The model that answers, as the provider calls it.
    fn model(&self) -> Option<&str>;

    /// What it used so far, as far as that was told.
    fn usage(&self) -> Option<Usage>;

    /// Hides in all that is kept of it what must not be recorded.
    fn hide(&mut self, veil: &Veil<'_>);

    /// About how much of it is kept.
    fn kept_bytes(&self) -> usize;
}

/// Why an answer ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// All is said.
    Done,
    /// It goes on by itself when it is asked again.
    Paused,
    /// It would be longer than it may be.
    MaxTokens,
    /// The model refuses, and why if it says so.
    Refused(String),
    /// A filter has stopped it.
    Filtered,
}

/// What an answer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    pub(super) tokens: Tokens,
    /// Whether nothing is added to it any more.
    pub(super) is_final: bool,
}

/// The count under a name, 0 if there is none.
pub(super) fn count(value: &Value, name: &str) -> u64 {
    value.get(name).and_then(Value::as_u64).unwrap_or_default()
}

/// The text under a name, empty if there is none.
pub(super) fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The arguments of a call of a tool: as JSON if that is what they are, else as the text that they are.
pub(super) fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(serde_json::Map::new());
    }
    match serde_json::from_str(text) {
        Ok(value @ Value::Object(_)) => value,
        _ => Value::String(text.to_owned()),
    }
}
