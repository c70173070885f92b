//! Anthropic's Messages API.
//!
//! An answer is a list of blocks. `content_block_start` begins one, `content_block_delta` adds to it, `message_delta` says why the answer
//! ends and what it used, `message_stop` that nothing more comes. The counters of `message_start` and `message_delta` are cumulative:
//! each takes the place of the one before. `input_tokens` are those that were neither read from the cache nor written into it.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::api::HttpApi;
use super::failure::Said;
use super::secret::Veil;
use super::settings::Settings;
use super::wire::{Reply, Stop, Usage, Wire, arguments, count, text};
use crate::conversation::{Message, Part, Role};
use crate::executor::claude_cli::block_part;
use crate::money::Tokens;

/// How long an answer may be if nobody says so: the API wants to be told, and the smallest models write no more.
const MAX_TOKENS: u32 = 4_096;

/// How many blocks an answer has at most.
const BLOCKS_LIMIT: u64 = 10_000;

/// How Anthropic speaks.
#[derive(Clone, Copy, Debug)]
pub struct Anthropic;

/// Asks Anthropic's models, or whatever speaks the Messages API.
///
/// The key is that of the variable `ANTHROPIC_API_KEY`, unless it is said otherwise.
///
/// ```
/// use std::time::Duration;
/// use workcrew::AnthropicApi;
///
/// let reader = AnthropicApi::new("claude-sonnet-4-5")
///     .system_prompt("You summarise pages. Be brief.")
///     .max_tokens(1_000)
///     .silence_limit(Duration::from_secs(120));
/// ```
pub type AnthropicApi = HttpApi<Anthropic>;

impl HttpApi<Anthropic> {
    /// Thinks before it answers, with at most so many tokens (it does not). They are part of [`max_tokens`](HttpApi::max_tokens).
    pub fn thinking(self, budget_tokens: u32) -> AnthropicApi {
        self.field("thinking", json!({ "type": "enabled", "budget_tokens": budget_tokens }))
    }

    /// Thinks before it answers, as much as it finds fit (it does not). Only newer models can.
    pub fn adaptive_thinking(self) -> AnthropicApi {
        self.field("thinking", json!({ "type": "adaptive" }))
    }
}

impl Wire for Anthropic {
    const NAME: &'static str = "anthropic_api";
    const BASE_URL: &'static str = "https://api.anthropic.com";
    const PATH: &'static str = "/v1/messages";
    const KEY_VARIABLE: &'static str = "ANTHROPIC_API_KEY";
    type Reply = AnthropicReply;

    fn headers(key: Option<&str>) -> Vec<(&'static str, String)> {
        let key = key.map(|key| ("x-api-key", key.to_owned()));
        [("anthropic-version", "2023-06-01".to_owned())].into_iter().chain(key).collect()
    }

    fn body(settings: &Settings, conversation: &[Value]) -> Value {
        let mut body = json!({
            "model": settings.model,
            "max_tokens": settings.max_tokens.unwrap_or(MAX_TOKENS),
            "messages": conversation,
            "stream": true,
        });
        if let Some(system) = &settings.system_prompt {
            body["system"] = json!(system);
        }
        if let Some(temperature) = settings.temperature {
            body["temperature"] = json!(temperature);
        }
        if !settings.tools.is_empty() {
            let tool = |tool: &super::Tool| json!({ "name": tool.name, "description": tool.description, "input_schema": tool.schema });
            body["tools"] = settings.tools.iter().map(tool).collect();
        }
        if let Some(schema) = &settings.json_schema {
            body["output_config"] = json!({ "format": { "type": "json_schema", "schema": schema } });
        }
        body
    }

    /// Messages of the same side that follow each other are one: the results of all tools that were called at once have to be.
    fn written(messages: &[Message]) -> Vec<Value> {
        let mut written: Vec<(&str, Vec<Value>)> = Vec::new();
        for message in messages {
            let role = match message.role {
                Role::System => continue,
                Role::Assistant => "assistant",
                Role::User | Role::Tool => "user",
            };
            let blocks = message.parts.iter().filter_map(block);
            match written.last_mut() {
                Some((last, content)) if *last == role => content.extend(blocks),
                _ => written.push((role, blocks.collect())),
            }
        }
        written.retain(|(_, content)| !content.is_empty());
        written.into_iter().map(|(role, content)| json!({ "role": role, "content": content })).collect()
    }
}

/// A part of a message as a block. Thoughts of earlier conversations are not sent: without their signature they would be refused.
fn block(part: &Part) -> Option<Value> {
    match part {
        Part::Text { text } if text.is_empty() => None,
        Part::Text { text } => Some(json!({ "type": "text", "text": text })),
        Part::ToolUse { id, name, input } => {
            Some(json!({ "type": "tool_use", "id": id, "name": name, "input": as_object(input.clone()) }))
        }
        Part::ToolResult { tool_use_id, content, is_error } => {
            let content: Vec<Value> = content.iter().filter_map(block).collect();
            Some(json!({ "type": "tool_result", "tool_use_id": tool_use_id, "content": content, "is_error": is_error }))
        }
        Part::Image { source, .. } if source.starts_with("http") => {
            Some(json!({ "type": "image", "source": { "type": "url", "url": source } }))
        }
        Part::Image { media_type, source } => {
            let source = json!({ "type": "base64", "media_type": media_type, "data": source });
            Some(json!({ "type": "image", "source": source }))
        }
        _ => None,
    }
}

/// What a tool was called with, in the form that can be sent again.
fn as_object(input: Value) -> Value {
    match input {
        Value::Object(_) => input,
        other => json!({ "unread": other }),
    }
}

/// An answer that is being put together.
#[derive(Debug, Default)]
pub struct AnthropicReply {
    /// All of the message but its blocks, its usage and why it ends.
    message: Map<String, Value>,
    blocks: BTreeMap<u64, Block>,
    text: String,
    usage: Map<String, Value>,
    is_usage_final: bool,
    stop_reason: Option<String>,
    stop_details: Value,
    is_over: bool,
    kept_bytes: usize,
}

#[derive(Debug, Default)]
struct Block {
    value: Map<String, Value>,
    /// The arguments of a tool, as far as they were written.
    json: String,
}

impl AnthropicReply {
    fn start(&mut self, message: &Value) {
        let Value::Object(message) = message else { return };
        // One is expected, and an event has a bound.
        if !self.message.is_empty() {
            self.kept_bytes += fields_bytes(message);
        }
        self.message.extend(message.iter().map(|(name, value)| (name.clone(), value.clone())));
        let taken = ["content", "usage", "stop_reason", "stop_details"].map(|name| self.message.remove(name));
        let [content, usage, stop_reason, stop_details] = taken.map(Option::unwrap_or_default);
        for (index, block) in (0..).zip(content.as_array().into_iter().flatten()) {
            self.start_block(index, block);
        }
        self.take_usage(&usage);
        self.take_stop(&stop_reason, stop_details);
    }

    fn start_block(&mut self, index: u64, block: &Value) {
        let Value::Object(block) = block else { return };
        if index < BLOCKS_LIMIT {
            self.text.push_str(block.get("text").and_then(Value::as_str).unwrap_or_default());
            self.kept_bytes += fields_bytes(block);
            self.blocks.insert(index, Block { value: block.clone(), json: String::new() });
        }
    }

    fn add(&mut self, index: u64, delta: &Value) {
        if index >= BLOCKS_LIMIT {
            return;
        }
        let block = self.blocks.entry(index).or_default();
        match text(delta, "type") {
            "text_delta" => {
                append(&mut block.value, "text", text(delta, "text"));
                self.text.push_str(text(delta, "text"));
                self.kept_bytes += 2 * text(delta, "text").len();
            }
            "thinking_delta" => {
                append(&mut block.value, "thinking", text(delta, "thinking"));
                self.kept_bytes += text(delta, "thinking").len();
            }
            "signature_delta" => {
                append(&mut block.value, "signature", text(delta, "signature"));
                self.kept_bytes += text(delta, "signature").len();
            }
            "input_json_delta" => {
                block.json.push_str(text(delta, "partial_json"));
                self.kept_bytes += text(delta, "partial_json").len();
            }
            "citations_delta" => {
                let citations = block.value.entry("citations").or_insert_with(|| json!([]));
                if let (Value::Array(citations), Some(citation)) = (citations, delta.get("citation")) {
                    self.kept_bytes += citation.to_string().len();
                    citations.push(citation.clone());
                }
            }
            _ => {}
        }
    }

    /// Each counter takes the place of the one before.
    fn take_usage(&mut self, usage: &Value) {
        let Value::Object(usage) = usage else { return };
        if !self.usage.is_empty() {
            self.kept_bytes += fields_bytes(usage);
        }
        let counted = usage.iter().filter(|(_, value)| !value.is_null());
        self.usage.extend(counted.map(|(name, value)| (name.clone(), value.clone())));
    }

    fn take_stop(&mut self, reason: &Value, details: Value) {
        if let Value::String(reason) = reason {
            self.stop_reason = Some(reason.clone());
        }
        if !details.is_null() {
            self.stop_details = details;
        }
    }

    /// The blocks, whole.
    fn content(&self) -> Vec<Value> {
        let whole = |block: &Block| {
            let mut value = block.value.clone();
            if !block.json.is_empty() {
                value.insert("input".to_owned(), arguments(&block.json));
            }
            Value::Object(value)
        };
        self.blocks.values().map(whole).collect()
    }
}

/// About how much memory fields take.
fn fields_bytes(fields: &Map<String, Value>) -> usize {
    fields.iter().map(|(name, value)| name.len() + value.to_string().len()).sum()
}

fn append(block: &mut Map<String, Value>, name: &str, more: &str) {
    match block.entry(name).or_insert_with(|| Value::String(String::new())) {
        Value::String(text) => text.push_str(more),
        other => *other = Value::String(more.to_owned()),
    }
}

impl Reply for AnthropicReply {
    fn take(&mut self, event: &Value) -> Result<(), Said> {
        let index = count(event, "index");
        match text(event, "type") {
            "message_start" => self.start(event.get("message").unwrap_or(&Value::Null)),
            "content_block_start" => self.start_block(index, event.get("content_block").unwrap_or(&Value::Null)),
            "content_block_delta" => self.add(index, event.get("delta").unwrap_or(&Value::Null)),
            "message_delta" => {
                let delta = event.get("delta").unwrap_or(&Value::Null);
                self.take_stop(&delta["stop_reason"], delta["stop_details"].clone());
                if let Some(usage) = event.get("usage").filter(|usage| usage.is_object()) {
                    self.take_usage(usage);
                    self.is_usage_final = true;
                }
            }
            "message_stop" => self.is_over = true,
            "error" => return Err(Said::read(event).unwrap_or_default()),
            // `content_block_stop` and `ping` say nothing new; what nobody knows yet is no reason to fail.
            _ => {}
        }
        Ok(())
    }

    fn take_whole(&mut self, body: &Value) {
        self.start(body);
        self.is_usage_final = true;
        self.is_over = true;
    }

    fn stop_reason(&self) -> Option<&str> {
        self.stop_reason.as_deref()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn text(&self) -> &str {
        &self.text
    }

    fn parts(&self) -> Vec<Part> {
        let is_said = |part: &Part| !matches!(part, Part::Text { text } if text.is_empty());
        self.content().iter().map(block_part).filter(is_said).collect()
    }

    fn written(&self) -> Value {
        let mut content = self.content();
        content.retain(|block| text(block, "type") != "text" || !text(block, "text").is_empty());
        for block in &mut content {
            if text(block, "type") == "tool_use" {
                block["input"] = as_object(block["input"].take());
            }
        }
        json!({ "role": "assistant", "content": content })
    }

    fn raw(&self) -> Value {
        let mut raw = self.message.clone();
        raw.insert("content".to_owned(), self.content().into());
        raw.insert("stop_reason".to_owned(), json!(self.stop_reason));
        raw.insert("usage".to_owned(), Value::Object(self.usage.clone()));
        if !self.stop_details.is_null() {
            raw.insert("stop_details".to_owned(), self.stop_details.clone());
        }
        Value::Object(raw)
    }

    fn stop(&self) -> Stop {
        match self.stop_reason.as_deref() {
            Some("max_tokens" | "model_context_window_exceeded") => Stop::MaxTokens,
            Some("pause_turn") => Stop::Paused,
            Some("refusal") => {
                let details = ["explanation", "category"].map(|name| text(&self.stop_details, name));
                Stop::Refused(details.into_iter().find(|text| !text.is_empty()).unwrap_or_default().to_owned())
            }
            _ => Stop::Done,
        }
    }

    fn model(&self) -> Option<&str> {
        self.message.get("model").and_then(Value::as_str)
    }

    fn usage(&self) -> Option<Usage> {
        if self.usage.is_empty() {
            return None;
        }
        let usage = Value::Object(self.usage.clone());
        let output = count(&usage, "output_tokens");
        let reasoning =
            usage.get("output_tokens_details").map_or(0, |details| count(details, "thinking_tokens")).min(output);
        let tokens = Tokens {
            input: count(&usage, "input_tokens"),
            output: output - reasoning,
            cache_read: count(&usage, "cache_read_input_tokens"),
            cache_write: count(&usage, "cache_creation_input_tokens"),
            reasoning,
        };
        Some(Usage { tokens, is_final: self.is_usage_final })
    }

    fn hide(&mut self, veil: &Veil<'_>) {
        veil.text(&mut self.text);
        veil.fields(&mut self.message);
        veil.value(&mut self.stop_details);
        for block in self.blocks.values_mut() {
            veil.fields(&mut block.value);
            veil.json(&mut block.json);
        }
    }

    fn kept_bytes(&self) -> usize {
        self.kept_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(events: &[Value]) -> AnthropicReply {
        let mut reply = AnthropicReply::default();
        events.iter().for_each(|event| reply.take(event).unwrap());
        reply
    }

    fn delta(index: u64, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": index, "delta": delta })
    }

    fn start(index: u64, block: Value) -> Value {
        json!({ "type": "content_block_start", "index": index, "content_block": block })
    }

    #[test]
    fn nothing_is_kept_that_does_not_count() {
        let long = "x".repeat(1_000);
        let named = |number: usize| json!({ format!("{long}{number}"): 1, "type": "tool_use" });
        for hostile in [
            |named: Value, _| json!({ "type": "message_start", "message": named }),
            |named: Value, _| json!({ "type": "message_start", "message": { "usage": named } }),
            |named: Value, _| json!({ "type": "message_delta", "delta": {}, "usage": named }),
            |named: Value, number| start(number, named),
        ] {
            let events: Vec<Value> = (0..100).map(|number| hostile(named(number), number as u64)).collect();
            let reply = taken(&events);
            let kept = reply.raw().to_string().len();
            assert!(kept > 100_000 && reply.kept_bytes() + 3_000 > kept * 9 / 10, "{kept}: {}", reply.kept_bytes());
        }
    }

    #[test]
    fn counters_take_the_place_of_those_before_and_what_is_null_says_nothing() {
        let began = json!({ "input_tokens": 5, "cache_read_input_tokens": 7, "output_tokens": 1 });
        let ended =
            json!({ "input_tokens": null, "output_tokens": 30, "output_tokens_details": { "thinking_tokens": 20 } });
        let reply = taken(&[
            json!({ "type": "message_start", "message": { "model": "m", "usage": began } }),
            json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": { "output_tokens": 10 } }),
            json!({ "type": "message_delta", "delta": {}, "usage": ended }),
        ]);
        let tokens = Tokens { input: 5, output: 10, cache_read: 7, cache_write: 0, reasoning: 20 };
        assert_eq!(reply.usage(), Some(Usage { tokens, is_final: true }));
    }

    #[test]
    fn blocks_that_nobody_knows_are_sent_back_as_they_came() {
        let hidden = json!({ "type": "redacted_thinking", "data": "c2VjcmV0" });
        let search = json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": {} });
        let citation = json!({ "cited_text": "x" });
        let reply = taken(&[
            start(0, hidden.clone()),
            start(1, search),
            delta(1, json!({ "type": "input_json_delta", "partial_json": "{\"q\":1}" })),
            start(2, json!({ "type": "text", "text": "" })),
            start(3, json!({ "type": "text", "text": "" })),
            delta(3, json!({ "type": "citations_delta", "citation": citation })),
            delta(3, json!({ "type": "text_delta", "text": "x" })),
        ]);
        let search = json!({ "type": "server_tool_use", "id": "s1", "name": "web_search", "input": { "q": 1 } });
        let text = json!({ "type": "text", "text": "x", "citations": [citation] });
        assert_eq!(reply.written()["content"], json!([hidden, search, text]), "an empty text would be refused");
        assert_eq!(reply.parts().len(), 3);
    }

    #[test]
    fn arguments_that_are_no_json_are_kept_and_can_be_sent_back() {
        let tool = json!({ "type": "tool_use", "id": "t1", "name": "look", "input": {} });
        let reply = taken(&[start(0, tool), delta(0, json!({ "type": "input_json_delta", "partial_json": "{\"a" }))]);
        assert_eq!(reply.parts(), [Part::tool_use("t1", "look", json!("{\"a"))]);
        assert_eq!(reply.written()["content"][0]["input"], json!({ "unread": "{\"a" }));
    }

    #[test]
    fn a_refusal_says_why_if_it_can() {
        let details = json!({ "type": "refusal", "category": "cyber", "explanation": null });
        let delta = json!({ "stop_reason": "refusal", "stop_details": details });
        let reply = taken(&[json!({ "type": "message_delta", "delta": delta })]);
        assert_eq!(reply.stop(), Stop::Refused("cyber".to_owned()));
    }

    #[test]
    fn a_number_that_is_out_of_all_bounds_takes_no_memory() {
        let reply = taken(&[
            start(u64::MAX, json!({ "type": "text", "text": "x" })),
            delta(1 << 40, json!({ "type": "text_delta", "text": "x" })),
        ]);
        assert_eq!((reply.blocks.len(), reply.text()), (0, ""));
    }
}
