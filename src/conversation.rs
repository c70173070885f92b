//! A conversation: the ordered messages of one attempt, in one form for all providers.
//!
//! Whatever produced it (a chat API, an agent's event stream, a plain command),
//! an audit reads the same [`Role`]s and [`Part`]s. What the provider really sent
//! stays beside it, byte for byte, as [`Raw`]: nothing that was normalised away is lost.
//!
//! A stored message is written once. It carries the hash of its content and a link
//! over everything before it (see [`crate::chain`]), so that damage shows.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chain::Hash;

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Role {
    /// Instructions that frame the conversation, and what an agent says about itself.
    System,
    /// The one who asks: the prompt, and what is said on its behalf.
    User,
    /// The model.
    Assistant,
    /// A tool that answers the model.
    Tool,
}

impl Role {
    /// Every role.
    pub const ALL: [Role; 4] = [Role::System, Role::User, Role::Assistant, Role::Tool];

    /// The name under which it is stored.
    pub const fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }

    /// The role stored under a name.
    pub fn from_name(name: &str) -> Option<Role> {
        Role::ALL.into_iter().find(|role| role.name() == name)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One piece of a message.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Part {
    /// What was said.
    Text {
        /// The words.
        text: String,
    },
    /// What was thought before it was said.
    Thinking {
        /// The words, empty if the provider hides them.
        text: String,
    },
    /// The model calls a tool.
    ToolUse {
        /// Names the call, so that its result can be found.
        id: String,
        /// The tool.
        name: String,
        /// Its arguments.
        input: Value,
    },
    /// A tool answers.
    ToolResult {
        /// The call that it answers.
        tool_use_id: String,
        /// The answer, which may hold text and images.
        content: Vec<Part>,
        /// Whether the tool failed.
        #[serde(default)]
        is_error: bool,
    },
    /// A picture.
    Image {
        /// Its type, such as `image/png`.
        media_type: String,
        /// Where it is or what it is: a URL, or base64 data, as the provider gave it.
        source: String,
    },
    /// Anything else, kept as it is.
    Other {
        /// What the provider calls it.
        kind: String,
        /// What it says.
        value: Value,
    },
}

impl Part {
    /// What was said.
    pub fn text(text: impl Into<String>) -> Part {
        Part::Text { text: text.into() }
    }

    /// What was thought.
    pub fn thinking(text: impl Into<String>) -> Part {
        Part::Thinking { text: text.into() }
    }

    /// A call of a tool.
    pub fn tool_use(id: impl Into<String>, name: impl Into<String>, input: Value) -> Part {
        Part::ToolUse { id: id.into(), name: name.into(), input }
    }

    /// The answer of a tool that went well.
    pub fn tool_result(tool_use_id: impl Into<String>, text: impl Into<String>) -> Part {
        Part::ToolResult { tool_use_id: tool_use_id.into(), content: vec![Part::text(text)], is_error: false }
    }

    /// The answer of a tool that failed.
    pub fn tool_error(tool_use_id: impl Into<String>, text: impl Into<String>) -> Part {
        Part::ToolResult { tool_use_id: tool_use_id.into(), content: vec![Part::text(text)], is_error: true }
    }
}

/// Bytes as a provider sent them, which need be neither JSON nor UTF-8.
///
/// Serialised as a string where they are UTF-8, else as a list of numbers.
#[derive(Clone, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(from = "RawForm", into = "RawForm")]
pub struct Raw(Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum RawForm {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<RawForm> for Raw {
    fn from(form: RawForm) -> Raw {
        match form {
            RawForm::Text(text) => Raw(text.into_bytes()),
            RawForm::Bytes(bytes) => Raw(bytes),
        }
    }
}

impl From<Raw> for RawForm {
    fn from(raw: Raw) -> RawForm {
        match String::from_utf8(raw.0) {
            Ok(text) => RawForm::Text(text),
            Err(error) => RawForm::Bytes(error.into_bytes()),
        }
    }
}

impl Raw {
    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes as JSON, if that is what they are.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.0).ok()
    }

    /// The bytes themselves.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl<T: Into<Vec<u8>>> From<T> for Raw {
    fn from(bytes: T) -> Raw {
        Raw(bytes.into())
    }
}

impl fmt::Debug for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Raw({:?})", String::from_utf8_lossy(&self.0))
    }
}

/// What a message was before it was cut to a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truncation {
    /// How many bytes it had.
    pub total_bytes: u64,
    /// The hash of all of them.
    pub hash: Hash,
}

/// One message of a conversation.
///
/// ```
/// use workcrew::{Message, Part, Role};
///
/// let question = Message::user("What is the capital of France?");
/// let call = Message::new(Role::Assistant)
///     .part(Part::thinking("I had better look that up."))
///     .part(Part::tool_use("t1", "search", serde_json::json!({ "q": "capital of France" })))
///     .raw(r#"{"type":"assistant"}"#);
/// assert_eq!(question.text(), "What is the capital of France?");
/// assert_eq!(call.text(), "");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said, in order.
    pub parts: Vec<Part>,
    /// What the provider sent, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<Raw>,
    /// Whether the attempt ended before the message did.
    #[serde(default)]
    pub is_partial: bool,
    /// Set if the message was longer than what is kept of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub truncated: Option<Truncation>,
}

impl Message {
    /// A message with no parts yet.
    pub fn new(role: Role) -> Message {
        Message { role, parts: Vec::new(), raw: None, is_partial: false, truncated: None }
    }

    /// A text from the one who asks.
    pub fn user(text: impl Into<String>) -> Message {
        Message::new(Role::User).part(Part::text(text))
    }

    /// A text from the model.
    pub fn assistant(text: impl Into<String>) -> Message {
        Message::new(Role::Assistant).part(Part::text(text))
    }

    /// Adds a part.
    pub fn part(mut self, part: Part) -> Message {
        self.parts.push(part);
        self
    }

    /// Keeps what the provider sent.
    pub fn raw(mut self, raw: impl Into<Raw>) -> Message {
        self.raw = Some(raw.into());
        self
    }

    /// Marks the message as cut off by the end of its attempt.
    pub fn partial(mut self) -> Message {
        self.is_partial = true;
        self
    }

    /// Marks the message as shorter than what was said.
    pub fn truncated_from(mut self, truncation: Truncation) -> Message {
        self.truncated = Some(truncation);
        self
    }

    /// What was said, without thoughts, tools and pictures.
    pub fn text(&self) -> String {
        let said = |part: &Part| match part {
            Part::Text { text } => Some(text.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(said).collect()
    }
}

/// The part of a message that is stored as JSON: all but who spoke and the provider's bytes.
#[derive(Serialize, Deserialize)]
struct Body<Parts, Cut> {
    parts: Parts,
    #[serde(default, skip_serializing_if = "is_false")]
    is_partial: bool,
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    truncated: Option<Cut>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_false(value: &bool) -> bool {
    !value
}

fn none<T>() -> Option<T> {
    None
}

/// A message in the bytes that a repository keeps.
///
/// Repositories store and return these; [`message`](StoredMessage::message) reads them.
/// The hash is over the bytes, so that reading needs no faith in the parser.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredMessage {
    /// Its place in the conversation, from 1.
    pub number: u32,
    /// When it was appended.
    pub at: DateTime<Utc>,
    /// Who speaks.
    pub role: Role,
    /// The content, `None` once it was purged.
    pub content: Option<MessageContent>,
    /// The hash of the content, kept after a purge.
    pub content_hash: Hash,
    /// The link of the chain up to and including this message.
    pub link: Hash,
}

/// The bytes of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageContent {
    /// The normalised message as JSON.
    pub body: Vec<u8>,
    /// What the provider sent.
    pub raw: Option<Vec<u8>>,
}

impl MessageContent {
    /// The bytes to keep of a message.
    ///
    /// # Errors
    ///
    /// [`TooDeep`] if a tool's input is nested deeper than could be read again.
    pub fn of(message: &Message) -> Result<MessageContent, TooDeep> {
        let body =
            Body { parts: &message.parts, is_partial: message.is_partial, truncated: message.truncated.as_ref() };
        Ok(MessageContent { body: to_json(&body)?, raw: message.raw.clone().map(Raw::into_bytes) })
    }

    /// The hash over the hashes of both, so that no byte can move from one to the other.
    pub fn hash(&self) -> Hash {
        let raw = self.raw.as_deref().map(Hash::of);
        Hash::builder("message content").hash(&Hash::of(&self.body)).optional_hash(raw.as_ref()).finish()
    }

    /// How many bytes it has.
    pub fn len_bytes(&self) -> usize {
        self.body.len() + self.raw.as_ref().map_or(0, Vec::len)
    }
}

impl StoredMessage {
    /// Puts a record together from what a repository keeps.
    pub fn new(
        number: u32,
        at: DateTime<Utc>,
        role: Role,
        content: Option<MessageContent>,
        content_hash: Hash,
        link: Hash,
    ) -> StoredMessage {
        StoredMessage { number, at, role, content, content_hash, link }
    }

    /// The message; `None` if its content was purged.
    ///
    /// # Errors
    ///
    /// What the parser says, if the stored bytes are not what was written.
    pub fn message(&self) -> Result<Option<Message>, serde_json::Error> {
        let Some(content) = &self.content else { return Ok(None) };
        let body: Body<Vec<Part>, Truncation> = from_json(&content.body)?;
        Ok(Some(Message {
            role: self.role,
            parts: body.parts,
            raw: content.raw.clone().map(Raw),
            is_partial: body.is_partial,
            truncated: body.truncated,
        }))
    }
}

/// How deep a stored JSON value may be nested. What `serde_json` parses by default is at most 128 deep.
pub const JSON_DEPTH_LIMIT: usize = 256;

/// A JSON value is nested deeper than [`JSON_DEPTH_LIMIT`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooDeep;

impl fmt::Display for TooDeep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JSON is nested deeper than {JSON_DEPTH_LIMIT} levels")
    }
}

impl std::error::Error for TooDeep {}

/// The JSON that is stored for a value.
pub(crate) fn to_json<T: Serialize>(value: &T) -> Result<Vec<u8>, TooDeep> {
    let bytes = serde_json::to_vec(value).expect("records have string keys and no failing serialiser");
    if depth(&bytes) > JSON_DEPTH_LIMIT { Err(TooDeep) } else { Ok(bytes) }
}

/// Reads what [`to_json`] wrote.
pub(crate) fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, serde_json::Error> {
    from_json_within(bytes, 0)
}

/// Reads what holds something that [`to_json`] wrote, so many levels deep.
pub(crate) fn from_json_within<T: DeserializeOwned>(bytes: &[u8], levels: usize) -> Result<T, serde_json::Error> {
    if depth(bytes) > JSON_DEPTH_LIMIT + levels {
        return Err(serde::de::Error::custom(TooDeep));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    // The depth was just checked; the parser's own limit is lower than what we may have to read.
    reader.disable_recursion_limit();
    let value = T::deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// The deepest nesting of brackets outside strings.
fn depth(json: &[u8]) -> usize {
    let (mut deepest, mut now, mut in_string, mut is_escaped) = (0, 0_usize, false, false);
    for &byte in json {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if in_string => is_escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                now += 1;
                deepest = deepest.max(now);
            }
            b'}' | b']' if !in_string => now = now.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(message: &Message) -> StoredMessage {
        let content = MessageContent::of(message).unwrap();
        let hash = content.hash();
        StoredMessage::new(1, DateTime::UNIX_EPOCH, message.role, Some(content), hash, hash)
    }

    #[test]
    fn every_kind_of_part_reads_back_as_it_was_written() {
        let message = Message::new(Role::Assistant)
            .part(Part::text("said \0 \u{202e} ✓"))
            .part(Part::thinking(""))
            .part(Part::tool_use("t", "bash", json!({ "command": "ls", "n": 1.5e300 })))
            .part(Part::tool_error("t", "no such file"))
            .part(Part::Image { media_type: "image/png".into(), source: "https://example.org/x.png".into() })
            .part(Part::Other { kind: "server_tool".into(), value: json!([null, true]) })
            .raw(vec![0xff, 0x00, b'{'])
            .partial()
            .truncated_from(Truncation { total_bytes: 9, hash: Hash::of(b"x") });
        assert_eq!(stored(&message).message().unwrap(), Some(message));
    }

    #[test]
    fn raw_bytes_survive_serde_whether_text_or_not() {
        for raw in [Raw::from("text \0"), Raw::from(vec![0xc3, 0x28]), Raw::default()] {
            let json = serde_json::to_string(&raw).unwrap();
            assert_eq!(serde_json::from_str::<Raw>(&json).unwrap(), raw);
        }
    }

    #[test]
    fn a_byte_cannot_move_between_body_and_raw_unseen() {
        let one = MessageContent { body: b"ab".to_vec(), raw: Some(b"c".to_vec()) };
        let other = MessageContent { body: b"a".to_vec(), raw: Some(b"bc".to_vec()) };
        let none = MessageContent { body: b"abc".to_vec(), raw: None };
        let empty = MessageContent { body: b"abc".to_vec(), raw: Some(vec![]) };
        assert_ne!(one.hash(), other.hash());
        assert_ne!(none.hash(), empty.hash());
    }

    #[test]
    fn what_a_parser_accepted_can_be_stored_and_read_again() {
        let nested = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        let input: Value = serde_json::from_str(&nested(127)).unwrap();
        let message = Message::new(Role::Assistant).part(Part::tool_use("t", "deep", input));
        assert_eq!(stored(&message).message().unwrap(), Some(message));

        let mut input = Value::Null;
        for _ in 0..300 {
            input = json!([input]);
        }
        let message = Message::new(Role::Assistant).part(Part::tool_use("t", "deeper", input));
        assert_eq!(MessageContent::of(&message), Err(TooDeep));
    }

    #[test]
    fn brackets_in_strings_are_not_depth() {
        assert_eq!(depth(br#"{"a":"[[[[\"[[","b":[1]}"#), 2);
    }

    #[test]
    fn role_names_read_back() {
        for role in Role::ALL {
            assert_eq!(Role::from_name(role.name()), Some(role));
            assert_eq!(serde_json::to_value(role).unwrap(), role.name());
        }
    }
}
