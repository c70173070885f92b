//! A unit as a trace: OTLP in JSON, by OpenTelemetry's conventions for generative AI.
//!
//! | span | operation | for |
//! |---|---|---|
//! | `invoke_workflow <job>` | `invoke_workflow` | the unit, from when it was stored to its end; the root |
//! | `invoke_agent <executor>` | `invoke_agent` | an attempt |
//! | `execute_tool <tool>` | `execute_tool` | a call of a tool, from the message that calls to the one that answers |
//!
//! The history that the model saw last is `gen_ai.input.messages` of its attempt, and what it said then `gen_ai.output.messages`: both are
//! JSON in a string, in the form of the conventions' schemas. What the conventions have no name for is under `workcrew.`.
//! Tokens that were read from a cache, written into one or used for thinking are in the sums too, as the conventions want it.
//!
//! Ids are hashes of what they stand for: the same unit has the same ids whenever it is exported.

use std::collections::BTreeMap;
use std::io::Write;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use super::{Export, ExportError};
use crate::attempt::{Attempt, AttemptResult, Outcome};
use crate::audit::cost::cost_of;
use crate::chain::Hash;
use crate::conversation::{Message, Part, Role};
use crate::job::Job;
use crate::money::{Charge, Cost, Tokens};
use crate::unit::WorkUnit;

/// The version of the semantic conventions that is followed.
pub const CONVENTIONS: &str = "1.41.0";

const INTERNAL: u8 = 1;
const CLIENT: u8 = 3;
const STATUS_ERROR: u8 = 2;

type Written = Result<(), ExportError>;

impl Export<'_> {
    /// Writes a unit as one line, which is a whole request of the protocol.
    pub(super) fn write_trace(&self, job: &Job, unit: &WorkUnit, out: &mut dyn Write) -> Written {
        let attempts = self.archive.attempts(unit.key)?;
        let cost = cost_of(self.archive, &attempts)?;
        let trace = Trace { id: trace_id(job, unit), root: span_id(&[&trace_id(job, unit), "root"]) };
        let version = env!("CARGO_PKG_VERSION");
        let resource = json!({ "attributes": [text("service.name", "workcrew"), text("service.version", version)] });
        let scope = json!({ "name": "workcrew", "version": version });
        let schema = format!("https://opentelemetry.io/schemas/{CONVENTIONS}");
        write!(out, "{{\"resourceSpans\":[{{\"resource\":{resource},\"schemaUrl\":\"{schema}\",")?;
        write!(
            out,
            "\"scopeSpans\":[{{\"scope\":{scope},\"spans\":[{}",
            root_span(&trace, job, unit, &attempts, cost)
        )?;
        for attempt in &attempts {
            write!(out, ",")?;
            self.write_attempt_span(&trace, unit, attempt, out)?;
            self.write_tool_spans(&trace, attempt, out)?;
        }
        Ok(writeln!(out, "]}}]}}]}}")?)
    }

    fn write_attempt_span(&self, trace: &Trace, unit: &WorkUnit, attempt: &Attempt, out: &mut dyn Write) -> Written {
        let left = self.archive.attempt_result(attempt.key)?;
        let charges = self.archive.charges(attempt.key)?;
        let mut attributes = attempt_attributes(attempt, &charges);
        let executor = attempt.provenance.as_ref().map_or("unknown", |provenance| &*provenance.executor);
        let span = Span {
            name: format!("invoke_agent {executor}"),
            id: trace.attempt(attempt),
            parent: Some(trace.root.clone()),
            kind: CLIENT,
            start: attempt.started_at.unwrap_or(attempt.assigned_at),
            end: self.end_of(attempt)?,
            failure: failure_of(attempt),
        };
        attributes.extend(span.error_attribute());
        write!(out, "{}", span.opening(trace, &attributes))?;
        self.write_conversation(unit, attempt, &left, out)?;
        Ok(write!(out, "]}}")?)
    }

    /// The conversation as two attributes behind others.
    fn write_conversation(
        &self,
        unit: &WorkUnit,
        attempt: &Attempt,
        left: &AttemptResult,
        out: &mut dyn Write,
    ) -> Written {
        let mut input = Listing::open("gen_ai.input.messages", out)?;
        let mut pending: Option<Message> = None;
        super::each_message(self.archive, attempt.key, |stored| {
            let message = stored.message().map_err(|error| super::unreadable(attempt.key, stored.number, error))?;
            if let (Some(before), Some(_)) = (&pending, &message) {
                input.add(&chat_message(before, None))?;
            }
            pending = message.or(pending.take());
            Ok(())
        })?;
        let output = match pending {
            Some(last) if last.role == Role::Assistant => {
                Some(chat_message(&last, Some(finish_reason(attempt, &last))))
            }
            Some(last) => {
                input.add(&chat_message(&last, None))?;
                None
            }
            None => {
                if let Some(prompt) = left.rendered_prompt.as_ref().or(unit.prompt.as_ref()) {
                    input.add(&chat_message(&Message::user(prompt), None))?;
                }
                let answer = |output: &String| chat_message(&Message::assistant(output), Some("stop"));
                left.output.as_ref().map(answer)
            }
        };
        input.close()?;
        if let Some(output) = output {
            let mut messages = Listing::open("gen_ai.output.messages", out)?;
            messages.add(&output)?;
            messages.close()?;
        }
        Ok(())
    }

    fn write_tool_spans(&self, trace: &Trace, attempt: &Attempt, out: &mut dyn Write) -> Written {
        let (mut open, mut count) = (BTreeMap::<String, ToolCall>::new(), 0_u64);
        super::each_message(self.archive, attempt.key, |stored| {
            let message = stored.message().map_err(|error| super::unreadable(attempt.key, stored.number, error))?;
            for part in message.into_iter().flat_map(|message| message.parts) {
                match part {
                    Part::ToolUse { id, name, input } => {
                        count += 1;
                        open.insert(id, ToolCall { number: count, name, input, start: stored.at });
                    }
                    Part::ToolResult { tool_use_id, content, is_error } => {
                        let Some(call) = open.remove(&tool_use_id) else { continue };
                        let answer = Some((response(&content), is_error));
                        write!(out, ",{}", call.span(trace, attempt, &tool_use_id, answer, stored.at))?;
                    }
                    _ => {}
                }
            }
            Ok(())
        })?;
        let end = self.end_of(attempt)?;
        for (id, call) in open {
            write!(out, ",{}", call.span(trace, attempt, &id, None, end))?;
        }
        Ok(())
    }

    /// When an attempt ended, or what is known of it last.
    fn end_of(&self, attempt: &Attempt) -> Result<DateTime<Utc>, ExportError> {
        if let Some(ended_at) = attempt.ended_at {
            return Ok(ended_at);
        }
        let mut last = attempt.started_at.unwrap_or(attempt.assigned_at);
        super::each_message(self.archive, attempt.key, |stored| {
            last = last.max(stored.at);
            Ok(())
        })?;
        Ok(last)
    }
}

/// The ids that all spans of a unit share.
struct Trace {
    id: String,
    root: String,
}

impl Trace {
    fn attempt(&self, attempt: &Attempt) -> String {
        span_id(&[&self.id, "attempt", &attempt.key.number.to_string()])
    }
}

fn trace_id(job: &Job, unit: &WorkUnit) -> String {
    let hash = Hash::builder("workcrew trace").text(&job.name).text(unit.id.as_str()).number(unit.key.0);
    hash.number(unit.created_at.timestamp_millis()).finish().to_string()[..32].to_owned()
}

fn span_id(of: &[&str]) -> String {
    let hash = of.iter().fold(Hash::builder("workcrew span"), |hash, part| hash.text(part));
    hash.finish().to_string()[..16].to_owned()
}

/// A span but for its attributes.
struct Span {
    name: String,
    id: String,
    parent: Option<String>,
    kind: u8,
    start: DateTime<Utc>,
    end: DateTime<Utc>,
    /// Of what kind, and what happened.
    failure: Option<(String, String)>,
}

impl Span {
    fn error_attribute(&self) -> Option<Value> {
        self.failure.as_ref().map(|(kind, _)| text("error.type", kind))
    }

    /// The span up to its last attribute, with the list of them left open.
    fn opening(&self, trace: &Trace, attributes: &[Value]) -> String {
        let mut span = json!({
            "traceId": trace.id,
            "spanId": self.id,
            "name": self.name,
            "kind": self.kind,
            "startTimeUnixNano": nanos(self.start),
            "endTimeUnixNano": nanos(self.end.max(self.start)),
            "status": {},
        });
        if let Some(parent) = &self.parent {
            span["parentSpanId"] = json!(parent);
        }
        if let Some((_, message)) = &self.failure {
            span["status"] = json!({ "code": STATUS_ERROR, "message": message });
        }
        let (span, attributes) = (span.to_string(), json!(attributes).to_string());
        format!("{},\"attributes\":{}", &span[..span.len() - 1], &attributes[..attributes.len() - 1])
    }

    fn whole(&self, trace: &Trace, attributes: &[Value]) -> String {
        format!("{}]}}", self.opening(trace, attributes))
    }
}

fn root_span(trace: &Trace, job: &Job, unit: &WorkUnit, attempts: &[Attempt], cost: Cost) -> String {
    let known = attempts.iter().filter_map(|attempt| attempt.ended_at.or(attempt.started_at)).max();
    let failure = unit.failure.as_ref().map(|failure| (failure.kind.to_string(), failure.message.clone()));
    let span = Span {
        name: format!("invoke_workflow {}", job.name),
        id: trace.root.clone(),
        parent: None,
        kind: INTERNAL,
        start: unit.created_at,
        end: unit.completed_at.or(known).unwrap_or(unit.created_at),
        failure,
    };
    let mut attributes = vec![
        text("gen_ai.operation.name", "invoke_workflow"),
        text("gen_ai.workflow.name", &job.name),
        text("workcrew.job.name", &job.name),
        text("workcrew.unit.id", unit.id.as_str()),
        text("workcrew.unit.status", unit.status.name()),
        number("workcrew.unit.attempts", unit.attempt_count.into()),
    ];
    attributes.extend(unit.unit_type.as_ref().map(|unit_type| text("workcrew.unit.type", unit_type)));
    attributes.extend(cost_attributes(cost));
    attributes.extend(span.error_attribute());
    span.whole(trace, &attributes)
}

fn attempt_attributes(attempt: &Attempt, charges: &[Charge]) -> Vec<Value> {
    let mut attributes = vec![text("gen_ai.operation.name", "invoke_agent")];
    let executor = attempt.provenance.as_ref().map_or("unknown", |provenance| &*provenance.executor);
    attributes.push(text("gen_ai.provider.name", provider(executor)));
    attributes.push(text("gen_ai.agent.name", executor));
    if let Some(provenance) = &attempt.provenance {
        attributes.extend(provenance.model.as_ref().map(|model| text("gen_ai.request.model", model)));
        attributes.extend(provenance.program_version.as_ref().map(|version| text("gen_ai.agent.version", version)));
    }
    if let [charge] = charges {
        attributes.push(text("gen_ai.response.model", &charge.model));
    }
    attributes.extend(attempt.session_id.as_ref().map(|session| text("gen_ai.conversation.id", session)));
    if !charges.is_empty() {
        let tokens = charges.iter().fold(Tokens::default(), |sum, charge| sum + charge.tokens);
        let input = tokens.input.saturating_add(tokens.cache_read).saturating_add(tokens.cache_write);
        attributes.push(number("gen_ai.usage.input_tokens", input));
        attributes.push(number("gen_ai.usage.output_tokens", tokens.output.saturating_add(tokens.reasoning)));
        attributes.push(number("gen_ai.usage.cache_read.input_tokens", tokens.cache_read));
        attributes.push(number("gen_ai.usage.cache_creation.input_tokens", tokens.cache_write));
        attributes.push(number("gen_ai.usage.reasoning.output_tokens", tokens.reasoning));
    }
    attributes.extend(cost_attributes(attempt.cost(charges)));
    attributes.push(number("workcrew.attempt.number", attempt.key.number.into()));
    attributes.push(text("workcrew.attempt.outcome", attempt.outcome.map_or("OPEN", Outcome::name)));
    attributes.push(text("workcrew.worker.id", attempt.worker_id.as_str()));
    attributes
}

/// What is not known has no amount, not one of zero.
fn cost_attributes(cost: Cost) -> Vec<Value> {
    let mut attributes = vec![number("workcrew.cost.unpriced", cost.unpriced)];
    if let Some(amount) = cost.known() {
        let nanos = amount.nanos().to_string();
        attributes.push(json!({ "key": "workcrew.cost.nano_dollars", "value": { "intValue": nanos } }));
        attributes.push(text("workcrew.cost.dollars", &amount.to_string().replace('$', "")));
    }
    attributes
}

/// The provider that an executor is known to speak to; another one is its own.
fn provider(executor: &str) -> &str {
    match executor {
        "claude_cli" | "claude_session" => "anthropic",
        "codex_cli" => "openai",
        other => other,
    }
}

fn failure_of(attempt: &Attempt) -> Option<(String, String)> {
    match (&attempt.failure, attempt.outcome) {
        (Some(failure), _) => Some((failure.kind.to_string(), failure.message.clone())),
        (None, Some(outcome @ (Outcome::Failed | Outcome::TimedOut | Outcome::Lost | Outcome::Cancelled))) => {
            Some((outcome.name().to_lowercase(), String::new()))
        }
        _ => None,
    }
}

/// A call of a tool that was not answered yet.
struct ToolCall {
    number: u64,
    name: String,
    input: Value,
    start: DateTime<Utc>,
}

impl ToolCall {
    fn span(
        self,
        trace: &Trace,
        attempt: &Attempt,
        id: &str,
        answer: Option<(Value, bool)>,
        end: DateTime<Utc>,
    ) -> String {
        let mut attributes = vec![
            text("gen_ai.operation.name", "execute_tool"),
            text("gen_ai.tool.name", &self.name),
            text("gen_ai.tool.call.id", id),
            text("gen_ai.tool.call.arguments", &self.input.to_string()),
        ];
        let is_error = matches!(answer, Some((_, true)));
        attributes.extend(answer.map(|(result, _)| text("gen_ai.tool.call.result", &string_of(result))));
        let span = Span {
            name: format!("execute_tool {}", self.name),
            id: span_id(&[&trace.id, "tool", &attempt.key.number.to_string(), &self.number.to_string()]),
            parent: Some(trace.attempt(attempt)),
            kind: INTERNAL,
            start: self.start,
            end,
            failure: is_error.then(|| ("tool_error".to_owned(), String::new())),
        };
        attributes.extend(span.error_attribute());
        span.whole(trace, &attributes)
    }
}

/// A message in the form of the conventions; with a reason if it is an output.
fn chat_message(message: &Message, finish_reason: Option<&str>) -> Value {
    let parts: Vec<Value> = message.parts.iter().map(chat_part).collect();
    let mut value = json!({ "role": message.role.name(), "parts": parts });
    if let Some(reason) = finish_reason {
        value["finish_reason"] = json!(reason);
    }
    value
}

fn chat_part(part: &Part) -> Value {
    match part {
        Part::Text { text } => json!({ "type": "text", "content": text }),
        Part::Thinking { text } => json!({ "type": "reasoning", "content": text }),
        Part::ToolUse { id, name, input } => {
            json!({ "type": "tool_call", "id": id, "name": name, "arguments": input })
        }
        Part::ToolResult { tool_use_id, content, is_error } => {
            let mut value = json!({ "type": "tool_call_response", "id": tool_use_id, "response": response(content) });
            if *is_error {
                value["is_error"] = json!(true);
            }
            value
        }
        Part::Image { media_type, source } if source.contains("://") => {
            json!({ "type": "uri", "modality": "image", "mime_type": media_type, "uri": source })
        }
        Part::Image { media_type, source } => {
            json!({ "type": "blob", "modality": "image", "mime_type": media_type, "content": source })
        }
        Part::Other { kind, value } => json!({ "type": "workcrew.other", "kind": kind, "value": value }),
    }
}

/// What a tool answered: its text if that is all, else its parts.
fn response(content: &[Part]) -> Value {
    match content {
        [Part::Text { text }] => json!(text),
        parts => parts.iter().map(chat_part).collect(),
    }
}

fn string_of(value: Value) -> String {
    match value {
        Value::String(text) => text,
        other => other.to_string(),
    }
}

fn finish_reason(attempt: &Attempt, last: &Message) -> &'static str {
    let calls_tool = last.parts.iter().any(|part| matches!(part, Part::ToolUse { .. }));
    match attempt.outcome {
        _ if last.is_partial => "error",
        _ if calls_tool => "tool_call",
        Some(Outcome::Completed) | None => "stop",
        Some(_) => "error",
    }
}

/// A list of messages as JSON in a string, which is written as it comes.
struct Listing<'o> {
    out: &'o mut dyn Write,
    is_empty: bool,
}

impl<'o> Listing<'o> {
    /// Another attribute behind those that are there.
    fn open(key: &str, out: &'o mut dyn Write) -> Result<Listing<'o>, ExportError> {
        write!(out, ",{{\"key\":\"{key}\",\"value\":{{\"stringValue\":\"[")?;
        Ok(Listing { out, is_empty: true })
    }

    fn add(&mut self, message: &Value) -> Written {
        let escaped = json!(message.to_string()).to_string();
        let comma = if self.is_empty { "" } else { "," };
        self.is_empty = false;
        Ok(write!(self.out, "{comma}{}", &escaped[1..escaped.len() - 1])?)
    }

    fn close(self) -> Written {
        Ok(write!(self.out, "]\"}}}}")?)
    }
}

fn text(key: &str, value: &str) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// A whole number, which the protocol writes as a string in JSON.
fn number(key: &str, value: u64) -> Value {
    let value = i64::try_from(value).unwrap_or(i64::MAX);
    json!({ "key": key, "value": { "intValue": value.to_string() } })
}

fn nanos(time: DateTime<Utc>) -> String {
    time.timestamp_nanos_opt().unwrap_or_default().max(0).to_string()
}
