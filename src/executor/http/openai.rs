//! OpenAI's chat completions, which many others speak too.
//!
//! Each event is a chunk with what is added to the text, to the thoughts or to the calls of tools. `finish_reason` says why the answer
//! ends; the usage comes after that, in a chunk without choices, then `[DONE]`. Others differ in small things: where thoughts are, whether a
//! call of a tool has a number, whether the usage comes once or again and again, and whether thinking is part of the output. Each counter
//! takes the place of the one before. Cached tokens are part of `prompt_tokens`.

use std::fmt;

use serde_json::{Map, Value, json};

use super::api::HttpApi;
use super::failure::Said;
use super::secret::Veil;
use super::settings::Settings;
use super::wire::{Reply, Stop, Usage, Wire, arguments, count, text};
use crate::conversation::{Message, Part, Role};
use crate::money::Tokens;

/// How many tools a model calls at once, at most.
const CALLS_LIMIT: usize = 1_000;

/// About how much a call takes beside its name and its arguments.
const CALL_BYTES: usize = 64;

/// How OpenAI speaks.
#[derive(Clone, Copy, Debug)]
pub struct OpenAi;

/// Asks OpenAI's models, or any server that has `/chat/completions`: vLLM, Ollama, LiteLLM, OpenRouter and many more.
///
/// The key is that of the variable `OPENAI_API_KEY`, unless it is said otherwise.
///
/// ```
/// use workcrew::OpenAiApi;
///
/// let local = OpenAiApi::new("llama3.2").base_url("http://localhost:11434/v1").without_key();
/// ```
///
/// [`max_tokens`](HttpApi::max_tokens) is called `max_completion_tokens` by OpenAI itself and `max_tokens` by all others. A server that does not know
/// `stream_options`, with which the usage is asked for, is spared with `.extra("stream_options", Value::Null)`.
pub type OpenAiApi = HttpApi<OpenAi>;

impl HttpApi<OpenAi> {
    /// How much it thinks before it answers (as the model does by itself), such as `low` or `high`.
    pub fn reasoning_effort(self, effort: impl Into<String>) -> OpenAiApi {
        self.field("reasoning_effort", Value::String(effort.into()))
    }
}

impl Wire for OpenAi {
    const NAME: &'static str = "openai_api";
    const BASE_URL: &'static str = "https://api.openai.com/v1";
    const PATH: &'static str = "/chat/completions";
    const KEY_VARIABLE: &'static str = "OPENAI_API_KEY";
    type Reply = OpenAiReply;

    fn headers(key: Option<&str>) -> Vec<(&'static str, String)> {
        key.map(|key| ("authorization", format!("Bearer {key}"))).into_iter().collect()
    }

    fn body(settings: &Settings, conversation: &[Value]) -> Value {
        let system = settings.system_prompt.as_ref().map(|text| json!({ "role": "system", "content": text }));
        let messages: Vec<&Value> = system.iter().chain(conversation).collect();
        let mut body = json!({
            "model": settings.model,
            "messages": messages,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(tokens) = settings.max_tokens {
            // OpenAI's own newer models take only the one, many others know only the other.
            let is_openai = settings.base_url.contains("://api.openai.com");
            body[if is_openai { "max_completion_tokens" } else { "max_tokens" }] = json!(tokens);
        }
        if let Some(temperature) = settings.temperature {
            body["temperature"] = json!(temperature);
        }
        if !settings.tools.is_empty() {
            let function = |tool: &super::Tool| json!({ "name": tool.name, "description": tool.description, "parameters": tool.schema });
            let tool = |tool: &super::Tool| json!({ "type": "function", "function": function(tool) });
            body["tools"] = settings.tools.iter().map(tool).collect();
        }
        if let Some(schema) = &settings.json_schema {
            let schema = json!({ "name": "answer", "schema": schema, "strict": true });
            body["response_format"] = json!({ "type": "json_schema", "json_schema": schema });
        }
        body
    }

    fn written(messages: &[Message]) -> Vec<Value> {
        messages.iter().flat_map(written).collect()
    }
}

/// A message as it is sent: one for each result of a tool.
fn written(message: &Message) -> Vec<Value> {
    match message.role {
        Role::System => Vec::new(),
        Role::User => vec![json!({ "role": "user", "content": user_content(message) })],
        Role::Assistant => {
            let calls: Vec<Value> = message.parts.iter().filter_map(written_call).collect();
            vec![assistant(&message.text(), calls)]
        }
        Role::Tool => message.parts.iter().filter_map(written_result).collect(),
    }
}

/// A bare text where there is nothing else: every server takes that.
fn user_content(message: &Message) -> Value {
    let is_text = message.parts.iter().all(|part| matches!(part, Part::Text { .. }));
    if is_text {
        return Value::String(message.text());
    }
    let piece = |part: &Part| match part {
        Part::Text { text } => Some(json!({ "type": "text", "text": text })),
        Part::Image { media_type, source } => {
            let url =
                if source.starts_with("http") { source.clone() } else { format!("data:{media_type};base64,{source}") };
            Some(json!({ "type": "image_url", "image_url": { "url": url } }))
        }
        _ => None,
    };
    message.parts.iter().filter_map(piece).collect()
}

fn assistant(text: &str, calls: Vec<Value>) -> Value {
    let content = if text.is_empty() && !calls.is_empty() { Value::Null } else { json!(text) };
    let mut message = json!({ "role": "assistant", "content": content });
    if !calls.is_empty() {
        message["tool_calls"] = calls.into();
    }
    message
}

fn written_call(part: &Part) -> Option<Value> {
    let Part::ToolUse { id, name, input } = part else { return None };
    let arguments = input.as_str().map_or_else(|| input.to_string(), str::to_owned);
    Some(json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } }))
}

fn written_result(part: &Part) -> Option<Value> {
    let Part::ToolResult { tool_use_id, content, is_error } = part else { return None };
    let said: String = content
        .iter()
        .filter_map(|part| if let Part::Text { text } = part { Some(text.as_str()) } else { None })
        .collect();
    // There is no field for it.
    let said = if *is_error { format!("error: {said}") } else { said };
    Some(json!({ "role": "tool", "tool_call_id": tool_use_id, "content": said }))
}

/// An answer that is being put together.
#[derive(Default)]
pub struct OpenAiReply {
    /// What every chunk repeats: the number of the answer, the model.
    head: Map<String, Value>,
    text: String,
    thoughts: String,
    refusal: String,
    calls: Vec<ToolCall>,
    finish_reason: Option<String>,
    usage: Option<Value>,
    is_over: bool,
    other_bytes: usize,
}

#[derive(Debug, Default)]
struct ToolCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
}

impl ToolCall {
    fn written(&self) -> Value {
        json!({ "id": self.id, "type": "function", "function": { "name": self.name, "arguments": self.arguments } })
    }
}

impl OpenAiReply {
    fn take_message(&mut self, message: &Value) {
        self.text.push_str(text(message, "content"));
        let thoughts = ["reasoning_content", "reasoning"].map(|name| text(message, name));
        self.thoughts.push_str(thoughts.into_iter().find(|text| !text.is_empty()).unwrap_or_default());
        self.refusal.push_str(text(message, "refusal"));
        for call in message.get("tool_calls").and_then(Value::as_array).into_iter().flatten() {
            self.take_call(call);
        }
    }

    /// A call goes on under its number or its name; with a new name it is a new one, whatever its number.
    fn take_call(&mut self, delta: &Value) {
        let (index, id) = (delta.get("index").and_then(Value::as_u64), text(delta, "id"));
        let goes_on = |call: &ToolCall| match (id, index) {
            ("", None) => true,
            ("", index) => call.index == index,
            (id, _) => call.id == id,
        };
        let at = match self.calls.iter().rposition(goes_on) {
            Some(at) => at,
            None if self.calls.len() < CALLS_LIMIT => {
                self.calls.push(ToolCall { index, id: id.to_owned(), ..ToolCall::default() });
                self.other_bytes += CALL_BYTES + id.len();
                self.calls.len() - 1
            }
            None => return,
        };
        let function = delta.get("function").unwrap_or(&Value::Null);
        let call = &mut self.calls[at];
        // Some repeat it with every piece.
        if call.name.is_empty() {
            text(function, "name").clone_into(&mut call.name);
            self.other_bytes += call.name.len();
        }
        let before = call.arguments.len();
        match function.get("arguments") {
            Some(Value::String(piece)) => call.arguments.push_str(piece),
            Some(whole @ Value::Object(_)) => call.arguments = whole.to_string(),
            _ => {}
        }
        self.other_bytes += call.arguments.len().saturating_sub(before);
    }

    fn take_choice(&mut self, choice: &Value, content: &str) {
        if count(choice, "index") != 0 {
            return;
        }
        self.take_message(choice.get(content).unwrap_or(&Value::Null));
        if let Some(reason) = choice.get("finish_reason").and_then(Value::as_str) {
            self.finish_reason = Some(reason.to_owned());
        }
    }

    fn take_body(&mut self, body: &Value, content: &str) {
        for name in ["id", "model", "created", "system_fingerprint", "service_tier", "provider"] {
            if let Some(value) = body.get(name).filter(|value| !value.is_null()) {
                self.head.insert(name.to_owned(), value.clone());
            }
        }
        for choice in body.get("choices").and_then(Value::as_array).into_iter().flatten() {
            self.take_choice(choice, content);
        }
        if let Some(usage) = body.get("usage").filter(|usage| usage.is_object()) {
            self.usage = Some(usage.clone());
        }
    }
}

/// Without what was said: it may be long.
impl fmt::Debug for OpenAiReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenAiReply").field("finish_reason", &self.finish_reason).finish_non_exhaustive()
    }
}

impl Reply for OpenAiReply {
    fn take(&mut self, event: &Value) -> Result<(), Said> {
        if let Some(said) = event.get("error").filter(|error| !error.is_null()).and_then(|_| Said::read(event)) {
            return Err(said);
        }
        self.take_body(event, "delta");
        Ok(())
    }

    fn take_whole(&mut self, body: &Value) {
        self.take_body(body, "message");
        self.is_over = true;
    }

    fn stop_reason(&self) -> Option<&str> {
        self.finish_reason.as_deref()
    }

    fn is_over(&self) -> bool {
        self.is_over
    }

    fn text(&self) -> &str {
        &self.text
    }

    fn parts(&self) -> Vec<Part> {
        let mut parts = Vec::new();
        if !self.thoughts.is_empty() {
            parts.push(Part::thinking(&self.thoughts));
        }
        for said in [&self.text, &self.refusal].into_iter().filter(|text| !text.is_empty()) {
            parts.push(Part::text(said));
        }
        parts.extend(self.calls.iter().map(|call| Part::tool_use(&call.id, &call.name, arguments(&call.arguments))));
        parts
    }

    fn written(&self) -> Value {
        assistant(&self.text, self.calls.iter().map(ToolCall::written).collect())
    }

    fn raw(&self) -> Value {
        let mut message = self.written();
        for (name, said) in [("reasoning_content", &self.thoughts), ("refusal", &self.refusal)] {
            if !said.is_empty() {
                message[name] = json!(said);
            }
        }
        let choice = json!({ "index": 0, "message": message, "finish_reason": self.finish_reason });
        let mut raw = self.head.clone();
        raw.insert("choices".to_owned(), json!([choice]));
        raw.insert("usage".to_owned(), self.usage.clone().unwrap_or_default());
        Value::Object(raw)
    }

    fn stop(&self) -> Stop {
        match self.finish_reason.as_deref() {
            _ if !self.refusal.is_empty() => Stop::Refused(self.refusal.clone()),
            Some("length") => Stop::MaxTokens,
            Some("content_filter") => Stop::Filtered,
            _ => Stop::Done,
        }
    }

    fn model(&self) -> Option<&str> {
        self.head.get("model").and_then(Value::as_str)
    }

    fn usage(&self) -> Option<Usage> {
        let usage = self.usage.as_ref()?;
        let details = |name: &str| usage.get(name).unwrap_or(&Value::Null);
        let [input, output, total] =
            ["prompt_tokens", "completion_tokens", "total_tokens"].map(|name| count(usage, name));
        let cache_read = count(details("prompt_tokens_details"), "cached_tokens").min(input);
        let cache_write = count(details("prompt_tokens_details"), "cache_write_tokens").min(input - cache_read);
        let reasoning = count(details("completion_tokens_details"), "reasoning_tokens");
        // Some count thinking beside the output, which shows in the total.
        let is_apart =
            reasoning > output || (reasoning > 0 && total == input.saturating_add(output).saturating_add(reasoning));
        let tokens = Tokens {
            input: input - cache_read - cache_write,
            output: if is_apart { output } else { output - reasoning },
            cache_read,
            cache_write,
            reasoning,
        };
        Some(Usage { tokens, is_final: self.is_answered() })
    }

    fn hide(&mut self, veil: &Veil<'_>) {
        [&mut self.text, &mut self.thoughts, &mut self.refusal].into_iter().for_each(|text| veil.text(text));
        veil.fields(&mut self.head);
        for call in &mut self.calls {
            veil.text(&mut call.id);
            veil.text(&mut call.name);
            veil.json(&mut call.arguments);
        }
    }

    fn kept_bytes(&self) -> usize {
        self.text.len() + self.thoughts.len() + self.refusal.len() + self.other_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(events: &[Value]) -> OpenAiReply {
        let mut reply = OpenAiReply::default();
        events.iter().for_each(|event| reply.take(event).unwrap());
        reply
    }

    fn calls(deltas: &[Value]) -> Vec<(String, String, String)> {
        let event = |delta: &Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [delta] } }] });
        let reply = taken(&deltas.iter().map(event).collect::<Vec<_>>());
        reply.calls.into_iter().map(|call| (call.id, call.name, call.arguments)).collect()
    }

    fn call(id: &str, name: &str, arguments: &str) -> (String, String, String) {
        (id.to_owned(), name.to_owned(), arguments.to_owned())
    }

    #[test]
    fn calls_are_told_apart_by_number_or_by_name_as_servers_have_it() {
        let both = [call("a", "look", "{}"), call("b", "see", "{}")];
        let function = |name: &str, arguments: &str| json!({ "name": name, "arguments": arguments });
        // By number, in turns, the name repeated with every piece.
        let by_number = [
            json!({ "index": 0, "id": "a", "function": function("look", "{") }),
            json!({ "index": 1, "id": "b", "function": function("see", "{") }),
            json!({ "index": 0, "function": function("look", "}") }),
            json!({ "index": 1, "function": function("", "}") }),
        ];
        assert_eq!(calls(&by_number), both);
        // All with the same number.
        let same = [
            json!({ "index": 0, "id": "a", "function": function("look", "{}") }),
            json!({ "index": 0, "id": "b", "function": function("see", "{}") }),
        ];
        assert_eq!(calls(&same), both);
        // Without any number.
        let without = [
            json!({ "id": "a", "function": function("look", "{") }),
            json!({ "function": function("", "}") }),
            json!({ "id": "b", "function": function("see", "{}") }),
        ];
        assert_eq!(calls(&without), both);
        // Arguments that are an object already.
        let whole = [json!({ "id": "a", "function": { "name": "look", "arguments": { "x": 1 } } })];
        assert_eq!(calls(&whole), [call("a", "look", r#"{"x":1}"#)]);
    }

    #[test]
    fn nothing_is_kept_that_does_not_count_and_a_piece_counts_as_what_it_adds() {
        let long = "x".repeat(1_000);
        let event = |call: Value| json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [call] } }] });
        let hostile: [Box<dyn Fn(usize) -> Value>; 3] = [
            Box::new(|number| json!({ "id": format!("{long}{number}") })),
            Box::new(|number| json!({ "index": number, "function": { "name": long } })),
            Box::new(|number| json!({ "index": number, "function": { "arguments": { "x": long } } })),
        ];
        for hostile in hostile {
            let reply = taken(&(0..100).map(|number| event(hostile(number))).collect::<Vec<_>>());
            let kept = reply.raw().to_string().len();
            assert!(kept > 100_000 && reply.kept_bytes() > kept * 9 / 10, "{kept}: {}", reply.kept_bytes());
        }
        let piece = json!({ "index": 0, "id": "a", "function": { "name": "look", "arguments": "12" } });
        let reply = taken(&vec![event(piece); 1_000]);
        assert!(reply.kept_bytes() < 2_100, "{}", reply.kept_bytes());
    }

    #[test]
    fn tokens_are_taken_apart_however_they_are_counted() {
        let tokens = |usage: Value| taken(&[json!({ "choices": null, "usage": usage })]).usage().unwrap().tokens;
        let thinking = |reasoning: u64| json!({ "reasoning_tokens": reasoning });
        let part = json!({ "prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 40, "completion_tokens_details": thinking(20) });
        assert_eq!((tokens(part.clone()).output, tokens(part).reasoning), (10, 20));
        let apart = json!({ "prompt_tokens": 10, "completion_tokens": 30, "total_tokens": 60, "completion_tokens_details": thinking(20) });
        assert_eq!((tokens(apart.clone()).output, tokens(apart).reasoning), (30, 20));
        let cached =
            json!({ "prompt_tokens": 100, "prompt_tokens_details": { "cached_tokens": 60, "cache_write_tokens": 30 } });
        let expected = Tokens { input: 10, cache_read: 60, cache_write: 30, ..Tokens::default() };
        assert_eq!(tokens(cached), expected);
        let odd = json!({ "prompt_tokens": 1, "prompt_tokens_details": { "cached_tokens": 60 } });
        assert_eq!(tokens(odd).total(), 1, "no token is counted twice");
        let huge =
            json!({ "prompt_tokens": u64::MAX, "completion_tokens": 2, "completion_tokens_details": thinking(1) });
        assert_eq!((tokens(huge.clone()).input, tokens(huge).output), (u64::MAX, 1), "and none wraps");
    }

    #[test]
    fn a_usage_that_comes_again_and_again_takes_the_place_of_the_one_before() {
        let chunk = |tokens: u64| json!({ "choices": [{ "index": 0, "delta": { "content": "x" } }], "usage": { "prompt_tokens": 5, "completion_tokens": tokens } });
        let reply = taken(&[chunk(1), chunk(2), chunk(3)]);
        let usage = reply.usage().unwrap();
        assert_eq!((usage.tokens.input, usage.tokens.output, usage.is_final, reply.text()), (5, 3, false, "xxx"));
    }

    #[test]
    fn other_choices_are_passed_over() {
        let choice = |index: u64| json!({ "index": index, "delta": { "content": index.to_string() } });
        assert_eq!(taken(&[json!({ "choices": [choice(0), choice(1)] })]).text(), "0");
    }
}
