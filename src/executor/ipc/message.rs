//! The messages, as they travel: one JSON object a line, told apart by its `type`.
//!
//! The envelope is written in camel case. What is inside of `payload`, `content` and `result` uses the words of the library's own records
//! ([`Message`](crate::Message), [`Part`](crate::Part), [`WorkResult`], [`Charge`](crate::Charge)), so in snake case.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::executor::{Then, WorkResult};
use crate::job::JobId;
use crate::money::Money;
use crate::unit::{UnitId, UnitOptions};

/// The types of what a parent says.
pub mod parent_types {
    /// A unit is to be executed.
    pub const QUERY: &str = "query";
    /// A query is to stop.
    pub const CANCEL: &str = "cancel";
    /// The worker is to end.
    pub const SHUTDOWN: &str = "shutdown";
    /// The worker is to say that it is well.
    pub const HEALTH_CHECK: &str = "health_check";
    /// All of them.
    pub const ALL: [&str; 4] = [QUERY, CANCEL, SHUTDOWN, HEALTH_CHECK];
}

/// The types of what a worker says.
pub mod worker_types {
    /// It takes a query now.
    pub const READY: &str = "ready";
    /// It has taken a query, in this session if there is one.
    pub const SESSION: &str = "session";
    /// Something was said.
    pub const MESSAGE: &str = "message";
    /// A query has succeeded.
    pub const COMPLETE: &str = "complete";
    /// A query has failed.
    pub const ERROR: &str = "error";
    /// It ends.
    pub const SHUTDOWN_ACK: &str = "shutdown_ack";
    /// It is well.
    pub const HEALTH_OK: &str = "health_ok";
    /// All of them.
    pub const ALL: [&str; 7] = [READY, SESSION, MESSAGE, COMPLETE, ERROR, SHUTDOWN_ACK, HEALTH_OK];
}

/// What a parent says to a worker.
///
/// ```
/// use workcrew::ipc::ParentMessage;
///
/// let cancel = ParentMessage::Cancel { request_id: "3.1".into() };
/// assert_eq!(cancel.to_line(), b"{\"type\":\"cancel\",\"requestId\":\"3.1\"}\n");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum ParentMessage {
    /// A unit is to be executed. The worker has no other at that time.
    Query {
        /// What everything that is said about it names.
        request_id: String,
        /// What is to be done.
        payload: Box<Query>,
    },
    /// A query is to stop.
    Cancel {
        /// Which.
        request_id: String,
    },
    /// The worker is to end.
    Shutdown {
        /// Whether it may finish the query that it has.
        graceful: bool,
    },
    /// The worker is to say that it is well, also while it works.
    HealthCheck,
}

/// What a worker says to its parent.
///
/// ```
/// use workcrew::ipc::WorkerMessage;
///
/// let line = br#"{"type":"health_ok","uptime":12.5,"queriesProcessed":3}"#;
/// assert_eq!(WorkerMessage::from_line(line)?, Some(WorkerMessage::HealthOk { uptime: 12.5, queries_processed: 3 }));
/// assert_eq!(WorkerMessage::from_line(br#"{"type":"of a later version"}"#)?, None);
/// # Ok::<(), workcrew::ipc::BadMessage>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub enum WorkerMessage {
    /// It takes a query now: once it is up, and again after a query was cancelled, if it can go on.
    Ready,
    /// It has taken a query.
    Session {
        /// Which.
        request_id: String,
        /// The session in which it is done, if there is one, so that a later attempt can carry it on.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        session_id: Option<String>,
    },
    /// Something was said, or is to be kept: see [`Content`](super::Content).
    Message {
        /// For which query.
        request_id: String,
        /// What.
        content: Value,
    },
    /// A query has succeeded.
    Complete {
        /// Which.
        request_id: String,
        /// What came of it: a [`WorkResult`], or any object.
        result: Value,
    },
    /// A query has failed.
    Error {
        /// Which.
        request_id: String,
        /// Why, for people.
        error: String,
        /// The [kind](crate::executor::kinds) of failure (`worker`).
        #[serde(default, skip_serializing_if = "Option::is_none")]
        kind: Option<String>,
        /// What is to follow (another attempt, also where it is nothing that is known here).
        #[serde(default, deserialize_with = "if_known", skip_serializing_if = "Option::is_none")]
        then: Option<Follow>,
        /// What came of it all the same, such as what it cost.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        result: Option<Value>,
    },
    /// It ends.
    ShutdownAck,
    /// It is well.
    HealthOk {
        /// For how many seconds it has been up.
        uptime: f64,
        /// How many queries it has had.
        queries_processed: u64,
    },
}

/// What is to be done: the payload of a query.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Query {
    /// The unit, by its name in its job.
    pub unit_id: UnitId,
    /// Its job.
    pub job_id: JobId,
    /// What kind of work it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit_type: Option<String>,
    /// The how-manieth attempt it is, counted from 1.
    pub attempt: u32,
    /// What is to be sent to the model.
    pub prompt: String,
    /// What the unit carries for programs.
    #[serde(default)]
    pub payload: Value,
    /// How the unit wants to be executed.
    #[serde(default)]
    pub options: UnitOptions,
    /// The session to carry on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// What an earlier attempt saved last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checkpoint: Option<Value>,
    /// How much of the `max_cost` among its options is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost_left: Option<Money>,
    /// How long it may take.
    pub timeout_ms: u64,
    /// How long it has to end once it is to stop.
    pub grace_ms: u64,
}

/// What is to follow a query that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Follow {
    /// Another attempt after the usual pause.
    Retry,
    /// Another attempt, not before so many milliseconds have passed.
    RetryAfterMs(u64),
    /// Nothing: the unit is failed.
    GiveUp,
    /// Another attempt, but not by this worker, which is to be replaced.
    Replace,
    /// No unit can succeed until somebody has seen to it.
    Hold,
    /// No unit can succeed before this time.
    HoldUntil(DateTime<Utc>),
}

impl From<Then> for Follow {
    fn from(then: Then) -> Follow {
        match then {
            Then::Retry => Follow::Retry,
            Then::RetryAfter(pause) => Follow::RetryAfterMs(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX)),
            Then::GiveUp => Follow::GiveUp,
            Then::Replace => Follow::Replace,
            Then::Hold { until: None } => Follow::Hold,
            Then::Hold { until: Some(time) } => Follow::HoldUntil(time),
        }
    }
}

impl From<Follow> for Then {
    fn from(follow: Follow) -> Then {
        match follow {
            Follow::Retry => Then::Retry,
            Follow::RetryAfterMs(pause) => Then::RetryAfter(Duration::from_millis(pause)),
            Follow::GiveUp => Then::GiveUp,
            Follow::Replace => Then::Replace,
            Follow::Hold => Then::Hold { until: None },
            Follow::HoldUntil(time) => Then::Hold { until: Some(time) },
        }
    }
}

/// What is to follow, unless it is of a later version.
fn if_known<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Follow>, D::Error> {
    let value = Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).ok())
}

/// A line that is no message.
#[derive(Debug)]
#[non_exhaustive]
pub enum BadMessage {
    /// It is no JSON object with a type.
    NotAMessage,
    /// It says that it is of a known type, but is not as it should be.
    Malformed {
        /// The type.
        message_type: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl fmt::Display for BadMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadMessage::NotAMessage => f.write_str("a line is no JSON object with a type"),
            BadMessage::Malformed { message_type, .. } => write!(f, "a message of type `{message_type}` is malformed"),
        }
    }
}

impl std::error::Error for BadMessage {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            BadMessage::NotAMessage => None,
            BadMessage::Malformed { source, .. } => Some(source),
        }
    }
}

impl ParentMessage {
    /// The message as a line, with its end.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }

    /// Reads a line; `None` if it is of a type that is not known here, as one of a later version may be.
    ///
    /// # Errors
    ///
    /// When it is no message.
    pub fn from_line(line: &[u8]) -> Result<Option<ParentMessage>, BadMessage> {
        from_line(line, &parent_types::ALL)
    }
}

impl WorkerMessage {
    /// The message as a line, with its end.
    pub fn to_line(&self) -> Vec<u8> {
        to_line(self)
    }

    /// Reads a line; `None` if it is of a type that is not known here, as one of a later version may be.
    ///
    /// # Errors
    ///
    /// When it is no message.
    pub fn from_line(line: &[u8]) -> Result<Option<WorkerMessage>, BadMessage> {
        from_line(line, &worker_types::ALL)
    }
}

fn to_line(message: &impl Serialize) -> Vec<u8> {
    let mut line = serde_json::to_vec(message).expect("messages have only keys that are text");
    line.push(b'\n');
    line
}

fn from_line<T: for<'de> Deserialize<'de>>(line: &[u8], known: &[&str]) -> Result<Option<T>, BadMessage> {
    let value: Value = serde_json::from_slice(line).map_err(|source| unreadable(line, source, known))?;
    let message_type = value.get("type").and_then(Value::as_str).ok_or(BadMessage::NotAMessage)?;
    if !known.contains(&message_type) {
        return Ok(None);
    }
    let message_type = message_type.to_owned();
    serde_json::from_value(value).map(Some).map_err(|source| BadMessage::Malformed { message_type, source })
}

/// What a line is that is no JSON. It may say of which type it was to be; of one that was cut off nobody knows what it would have become.
fn unreadable(line: &[u8], source: serde_json::Error, known: &[&str]) -> BadMessage {
    match type_in(line) {
        Ok(Some(message_type)) if known.contains(&message_type.as_str()) && !source.is_eof() => {
            BadMessage::Malformed { message_type, source }
        }
        _ => BadMessage::NotAMessage,
    }
}

/// The type of a message of which only the beginning is there; `None` if it comes later. An error if it is no message, however it goes on.
pub(super) fn type_in(beginning: &[u8]) -> Result<Option<String>, ()> {
    let mut found = None;
    let mut deserializer = serde_json::Deserializer::from_slice(beginning);
    match deserializer.deserialize_map(TypeOf(&mut found)) {
        Ok(()) => Ok(found),
        Err(error) if found.is_some() || error.is_eof() => Ok(found),
        Err(_) => Err(()),
    }
}

/// Looks for the type of an object among its own fields, and into none of them.
struct TypeOf<'a>(&'a mut Option<String>);

impl<'de> Visitor<'de> for TypeOf<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a message")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<(), A::Error> {
        while let Some(name) = fields.next_key::<String>()? {
            if name == "type" {
                *self.0 = Some(fields.next_value()?);
            } else {
                fields.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// The result of a worker: a [`WorkResult`], and whatever else it says as the JSON of that.
pub(super) fn work_result(value: Value) -> WorkResult {
    const KNOWN: [&str; 5] = ["output", "json", "output_files", "session_id", "charges"];
    let is_ours = value.as_object().is_some_and(|fields| fields.keys().all(|key| KNOWN.contains(&key.as_str())));
    let read = WorkResult::deserialize(&value).ok();
    match read {
        Some(result) if is_ours => result,
        Some(result) if result.json.is_some() => result,
        Some(result) => result.json(value),
        None if value.is_null() => WorkResult::empty(),
        // A field has another shape than ours: it is somebody else's word.
        None => WorkResult::empty().json(value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn as_value(line: &[u8]) -> Value {
        assert_eq!(line.last(), Some(&b'\n'));
        serde_json::from_slice(line).unwrap()
    }

    fn query() -> Query {
        Query {
            unit_id: UnitId::new("a").unwrap(),
            job_id: JobId(1),
            unit_type: None,
            attempt: 1,
            prompt: "line\nline \u{0}".to_owned(),
            payload: json!({ "k": 1 }),
            options: UnitOptions::default(),
            session: None,
            checkpoint: None,
            cost_left: None,
            timeout_ms: 600_000,
            grace_ms: 1_500,
        }
    }

    /// 002-F37 to F40.
    #[test]
    fn what_a_parent_says_looks_as_it_is_written_down() {
        let id = || "7.2".to_owned();
        let payload = json!({
            "unit_id": "a", "job_id": 1, "attempt": 1, "prompt": "line\nline \u{0}", "payload": { "k": 1 }, "options": {},
            "timeout_ms": 600_000, "grace_ms": 1_500,
        });
        let said = [
            (
                ParentMessage::Query { request_id: id(), payload: Box::new(query()) },
                json!({ "type": "query", "requestId": "7.2", "payload": payload }),
            ),
            (ParentMessage::Cancel { request_id: id() }, json!({ "type": "cancel", "requestId": "7.2" })),
            (ParentMessage::Shutdown { graceful: true }, json!({ "type": "shutdown", "graceful": true })),
            (ParentMessage::HealthCheck, json!({ "type": "health_check" })),
        ];
        for (message, expected) in &said {
            let line = message.to_line();
            assert_eq!(&as_value(&line), expected);
            assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1, "one line, whatever is in it");
            assert_eq!(ParentMessage::from_line(&line).unwrap().as_ref(), Some(message));
        }
        let types: Vec<_> = said.iter().map(|(_, value)| value["type"].as_str().unwrap()).collect();
        assert_eq!(types, parent_types::ALL, "002-F48");
    }

    /// 002-F41 to F47.
    #[test]
    fn what_a_worker_says_looks_as_it_is_written_down() {
        let id = || "7.2".to_owned();
        let error = |kind: Option<&str>, then| WorkerMessage::Error {
            request_id: id(),
            error: "no".to_owned(),
            kind: kind.map(str::to_owned),
            then,
            result: None,
        };
        let said = [
            (WorkerMessage::Ready, json!({ "type": "ready" })),
            (
                WorkerMessage::Session { request_id: id(), session_id: Some("s".into()) },
                json!({ "type": "session", "requestId": "7.2", "sessionId": "s" }),
            ),
            (
                WorkerMessage::Message { request_id: id(), content: json!({ "type": "text", "text": "hi" }) },
                json!({ "type": "message", "requestId": "7.2", "content": { "type": "text", "text": "hi" } }),
            ),
            (
                WorkerMessage::Complete { request_id: id(), result: json!({ "output": "hi" }) },
                json!({ "type": "complete", "requestId": "7.2", "result": { "output": "hi" } }),
            ),
            (error(None, None), json!({ "type": "error", "requestId": "7.2", "error": "no" })),
            (WorkerMessage::ShutdownAck, json!({ "type": "shutdown_ack" })),
            (
                WorkerMessage::HealthOk { uptime: 1.0, queries_processed: 2 },
                json!({ "type": "health_ok", "uptime": 1.0, "queriesProcessed": 2 }),
            ),
        ];
        for (message, expected) in &said {
            let line = message.to_line();
            assert_eq!(&as_value(&line), expected);
            assert_eq!(WorkerMessage::from_line(&line).unwrap().as_ref(), Some(message));
        }
        let types: Vec<_> = said.iter().map(|(_, value)| value["type"].as_str().unwrap()).collect();
        assert_eq!(types, worker_types::ALL, "002-F48");
        let taken = WorkerMessage::Session { request_id: id(), session_id: None };
        assert_eq!(as_value(&taken.to_line()), json!({ "type": "session", "requestId": "7.2" }));
        assert_eq!(WorkerMessage::from_line(&taken.to_line()).unwrap(), Some(taken));
        let whole_number = br#"{"type":"health_ok","uptime":3,"queriesProcessed":2}"#;
        assert!(WorkerMessage::from_line(whole_number).unwrap().is_some());
        let held = error(Some("quota"), Some(Follow::Hold)).to_line();
        assert_eq!(
            as_value(&held),
            json!({ "type": "error", "requestId": "7.2", "error": "no", "kind": "quota", "then": "hold" })
        );
    }

    #[test]
    fn what_is_no_message_is_told_apart_from_what_is_not_known() {
        for garbage in ["", "{", "[]", "7", "null", "{}", r#"{"type":7}"#, "\u{feff}{}", r#"{"type":"ready""#, "NaN"] {
            assert!(matches!(WorkerMessage::from_line(garbage.as_bytes()), Err(BadMessage::NotAMessage)), "{garbage}");
        }
        for malformed in [
            r#"{"type":"complete"}"#,
            r#"{"type":"error","requestId":7,"error":"x"}"#,
            r#"{"type":"complete","requestId":"1.1","result":NaN}"#,
            r#"{"requestId":"1.1","result":"\ud83d","type":"complete"}"#,
        ] {
            let error = WorkerMessage::from_line(malformed.as_bytes()).unwrap_err();
            assert!(matches!(error, BadMessage::Malformed { .. }), "{malformed}");
        }
        let deep = format!(r#"{{"type":"ready","x":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        assert!(WorkerMessage::from_line(deep.as_bytes()).is_err(), "too deep to be read");
        let later = br#"{"type":"error","requestId":"1.1","error":"x","then":"wait_and_see"}"#;
        assert!(matches!(WorkerMessage::from_line(later), Ok(Some(WorkerMessage::Error { then: None, .. }))));
        let unknown = br#"{"type":"tomorrow","requestId":7}"#;
        assert_eq!(WorkerMessage::from_line(unknown).unwrap(), None);
        assert!(WorkerMessage::from_line(b"{\"type\":\"ready\"}\r").unwrap().is_some(), "an end of line of two bytes");
    }

    #[test]
    fn the_type_of_a_message_is_found_in_its_beginning_and_nowhere_else() {
        let found = |beginning: &str| type_in(beginning.as_bytes());
        let message = |beginning: &str| assert_eq!(found(beginning), Ok(Some("message".to_owned())), "{beginning}");
        message(r#"{"type":"message","content":{"type":"complete"#);
        message(r#" { "requestId" : "1.1", "\u0074ype" : "message", "content":"\"#);
        message(r#"{"content":{"type":"complete","x":[{"type":"error"}]},"type":"message","requestId":"1.1"}"#);
        for unclear in ["", "{", r#"{"type":"mess"#, r#"{"result":{"type":"message"},"x":[{"type":"message"#] {
            assert_eq!(found(unclear), Ok(None), "{unclear}");
        }
        for none in ["xxx", "[", "7", r#"{type:"message""#, r#"{"type":7,"x":""#] {
            assert_eq!(found(none), Err(()), "{none}");
        }
    }

    #[test]
    fn a_result_is_ours_or_anybodys() {
        assert_eq!(work_result(json!({ "output": "hi" })), WorkResult::text("hi"));
        assert_eq!(work_result(json!({})), WorkResult::empty());
        assert_eq!(work_result(Value::Null), WorkResult::empty());
        let theirs = json!({ "output": "hi", "score": 7 });
        assert_eq!(work_result(theirs.clone()), WorkResult::text("hi").json(theirs));
        let both = json!({ "output": "hi", "score": 7, "json": [1] });
        assert_eq!(work_result(both), WorkResult::text("hi").json(json!([1])));
        let other = json!({ "output": { "type": "text" } });
        assert_eq!(work_result(other.clone()), WorkResult::empty().json(other));
        assert_eq!(work_result(json!(42)), WorkResult::empty().json(42));
    }

    #[test]
    fn what_follows_survives_the_way() {
        let time = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        for then in [
            Then::Retry,
            Then::RetryAfter(Duration::from_millis(1_500)),
            Then::GiveUp,
            Then::Replace,
            Then::Hold { until: None },
            Then::Hold { until: Some(time) },
        ] {
            let json = serde_json::to_value(Follow::from(then)).unwrap();
            let back: Follow = serde_json::from_value(json).unwrap();
            assert_eq!(Then::from(back), then);
        }
    }
}
