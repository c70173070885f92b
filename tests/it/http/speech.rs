//! What models say, in the words of each provider.

use serde_json::{Value, json};

/// An event of Anthropic's.
pub(crate) fn event(value: &Value) -> String {
    format!("event: {}\ndata: {value}\n\n", value["type"].as_str().unwrap())
}

/// The beginning of an answer of Anthropic's.
pub(crate) fn began() -> String {
    let usage = json!({ "input_tokens": 20, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 4000, "output_tokens": 1 });
    let message = json!({ "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-test-1", "content": [], "stop_reason": null, "usage": usage });
    event(&json!({ "type": "message_start", "message": message }))
}

/// A block of Anthropic's, from its beginning to its end, piece by piece.
pub(crate) fn block(index: u64, block: &Value, pieces: &[Value]) -> Vec<String> {
    let start = json!({ "type": "content_block_start", "index": index, "content_block": block });
    let piece = |delta: &Value| event(&json!({ "type": "content_block_delta", "index": index, "delta": delta }));
    let stop = json!({ "type": "content_block_stop", "index": index });
    [event(&start)].into_iter().chain(pieces.iter().map(piece)).chain([event(&stop)]).collect()
}

pub(crate) fn text_block(index: u64, pieces: &[&str]) -> Vec<String> {
    let pieces: Vec<Value> = pieces.iter().map(|text| json!({ "type": "text_delta", "text": text })).collect();
    block(index, &json!({ "type": "text", "text": "" }), &pieces)
}

pub(crate) fn tool_block(index: u64, id: &str, name: &str, pieces: &[&str]) -> Vec<String> {
    let pieces: Vec<Value> =
        pieces.iter().map(|json| json!({ "type": "input_json_delta", "partial_json": json })).collect();
    block(index, &json!({ "type": "tool_use", "id": id, "name": name, "input": {} }), &pieces)
}

/// The end of an answer of Anthropic's.
pub(crate) fn ended(stop_reason: &str) -> Vec<String> {
    let delta = json!({ "stop_reason": stop_reason, "stop_sequence": null });
    // Cumulative, and it repeats what was read.
    let usage = json!({ "input_tokens": 20, "cache_read_input_tokens": 300, "cache_creation_input_tokens": 4000, "output_tokens": 50_000 });
    vec![
        event(&json!({ "type": "message_delta", "delta": delta, "usage": usage })),
        event(&json!({ "type": "message_stop" })),
    ]
}

/// A whole answer of Anthropic's with these blocks.
pub(crate) fn anthropic(blocks: Vec<Vec<String>>, stop_reason: &str) -> Vec<String> {
    let ping = event(&json!({ "type": "ping" }));
    [began(), ping].into_iter().chain(blocks.into_iter().flatten()).chain(ended(stop_reason)).collect()
}

/// A text of Anthropic's.
pub(crate) fn anthropic_text(pieces: &[&str]) -> Vec<String> {
    anthropic(vec![text_block(0, pieces)], "end_turn")
}

/// An event of OpenAI's.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A piece of an answer of OpenAI's.
pub(crate) fn chunk(delta: &Value, finish_reason: Option<&str>) -> String {
    let choice = json!({ "index": 0, "delta": delta, "finish_reason": finish_reason });
    data(
        &json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test-1", "choices": [choice], "usage": null }),
    )
}

/// What an answer of OpenAI's used.
pub(crate) fn usage() -> String {
    let usage = json!({
        "prompt_tokens": 320,
        "completion_tokens": 50_000,
        "total_tokens": 50_320,
        "prompt_tokens_details": { "cached_tokens": 300 },
        "completion_tokens_details": { "reasoning_tokens": 4_000 },
    });
    data(
        &json!({ "id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test-1", "choices": [], "usage": usage }),
    )
}

/// A whole answer of OpenAI's with these pieces.
pub(crate) fn openai(deltas: &[Value], finish_reason: &str) -> Vec<String> {
    let mut events = vec![chunk(&json!({ "role": "assistant", "content": "" }), None)];
    events.extend(deltas.iter().map(|delta| chunk(delta, None)));
    events.extend([chunk(&json!({}), Some(finish_reason)), usage(), "data: [DONE]\n\n".to_owned()]);
    events
}

/// A text of OpenAI's.
pub(crate) fn openai_text(pieces: &[&str]) -> Vec<String> {
    let deltas: Vec<Value> = pieces.iter().map(|text| json!({ "content": text })).collect();
    openai(&deltas, "stop")
}
