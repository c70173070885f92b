//! Tools that models call, turn by turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::{Value, json};
use workcrew::executor::http::Tool;
use workcrew::executor::kinds;
use workcrew::{Archive, MemoryRepository, NewJob, NewUnit, Part, Repository, RetryPolicy, Tokens, WorkPool};

use super::provider::{Provider, Step, begun_stream, json_answer, stream};
use super::{anthropic, ask, messages, openai, shape, speech};

fn weather() -> Tool {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    Tool::new("weather", "The weather in a city.", schema, |input, _| {
        let city = input["city"].as_str().ok_or("which city?")?;
        Ok(format!("It rains in {city}."))
    })
}

/// Asks for the weather in two cities at once.
fn anthropic_calls() -> Vec<u8> {
    let thought = speech::block(
        0,
        &json!({ "type": "thinking", "thinking": "" }),
        &[
            json!({ "type": "thinking_delta", "thinking": "Two." }),
            json!({ "type": "signature_delta", "signature": "c2ln" }),
        ],
    );
    let blocks = vec![
        thought,
        speech::text_block(1, &["Let me see."]),
        speech::tool_block(2, "t1", "weather", &["{\"ci", "ty\":\"Paris\"}"]),
        speech::tool_block(3, "t2", "weather", &[]),
    ];
    stream(&speech::anthropic(blocks, "tool_use"))
}

#[test]
fn a_model_of_anthropics_calls_tools_and_goes_on_with_what_they_say() {
    let last = stream(&speech::anthropic_text(&["It rains."]));
    let provider = Provider::each(vec![vec![Step::Send(anthropic_calls())], vec![Step::Send(last)]]);
    let tried = ask(anthropic(&provider).tool(weather()));
    assert_eq!(tried.output(), "It rains.");
    let said = [
        r#"user: "What is the capital of France?""#,
        r#"assistant: thinks "Two." + "Let me see." + calls weather {"city":"Paris"} + calls weather {}"#,
        r#"tool: answers "It rains in Paris.""#,
        r#"tool: fails "which city?""#,
        r#"assistant: "It rains.""#,
    ];
    assert_eq!(tried.shape(), said.join("; "));
    assert_eq!(tried.unit.result.as_ref().unwrap()["turns"], 2);
    let twice = Tokens { input: 40, output: 100_000, cache_read: 600, cache_write: 8_000, reasoning: 0 };
    assert_eq!((tried.charges.len(), tried.charges[0].tokens), (1, twice));

    provider.asked();
    let content = |text: &str| json!([{ "type": "text", "text": text }]);
    let sent = json!([
        { "role": "user", "content": content("What is the capital of France?") },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Two.", "signature": "c2ln" },
            { "type": "text", "text": "Let me see." },
            { "type": "tool_use", "id": "t1", "name": "weather", "input": { "city": "Paris" } },
            { "type": "tool_use", "id": "t2", "name": "weather", "input": {} },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "t1", "content": content("It rains in Paris."), "is_error": false },
            { "type": "tool_result", "tool_use_id": "t2", "content": content("which city?"), "is_error": true },
        ] },
    ]);
    assert_eq!(provider.asked().body["messages"], sent);
}

#[test]
fn a_model_of_openais_calls_tools_and_goes_on_with_what_they_say() {
    let call = |index: u64, id: Value, name: Value, arguments: &str| json!({ "tool_calls": [{ "index": index, "id": id, "function": { "name": name, "arguments": arguments } }] });
    let deltas = [
        call(0, json!("t1"), json!("weather"), ""),
        call(0, Value::Null, Value::Null, "{\"city\""),
        call(1, json!("t2"), json!("weather"), ""),
        call(0, Value::Null, Value::Null, ":\"Paris\"}"),
        call(1, Value::Null, Value::Null, "{"),
    ];
    let calls = stream(&speech::openai(&deltas, "tool_calls"));
    let last = stream(&speech::openai_text(&["It rains."]));
    let provider = Provider::each(vec![vec![Step::Send(calls)], vec![Step::Send(last)]]);
    let tried = ask(openai(&provider).tool(weather()));
    let said = [
        r#"user: "What is the capital of France?""#,
        r#"assistant: calls weather {"city":"Paris"} + calls weather "{""#,
        r#"tool: answers "It rains in Paris.""#,
        r#"tool: fails "these arguments are no JSON object: {""#,
        r#"assistant: "It rains.""#,
    ];
    assert_eq!(tried.shape(), said.join("; "));
    provider.asked();
    let call = |id: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": "weather", "arguments": arguments } });
    let sent = json!([
        { "role": "user", "content": "What is the capital of France?" },
        { "role": "assistant", "content": null, "tool_calls": [call("t1", r#"{"city":"Paris"}"#), call("t2", "{")] },
        { "role": "tool", "tool_call_id": "t1", "content": "It rains in Paris." },
        { "role": "tool", "tool_call_id": "t2", "content": "error: these arguments are no JSON object: {" },
    ]);
    assert_eq!(provider.asked().body["messages"], sent);
}

#[test]
fn what_a_tool_returns_has_a_limit_which_the_model_is_told() {
    let calls = |input: &str| {
        let call = speech::tool_block(0, "t1", "read", &[input]);
        vec![Step::Send(stream(&speech::anthropic(vec![call], "tool_use")))]
    };
    let list = format!("[{}7]", "7,".repeat(100_000));
    let done = vec![Step::Send(stream(&speech::anthropic_text(&["Done."])))];
    let turns = vec![calls("{}"), calls(r#"{"fail":true}"#), calls(&list), done];
    let read = |api: workcrew::AnthropicApi| {
        api.tool(Tool::new("read", "Reads.", json!({ "type": "object" }), |input, _| {
            let page = "ü".repeat(1 << 20);
            if input["fail"] == true { Err(page.into()) } else { Ok(page) }
        }))
    };
    for limit in [100_000, 1_000] {
        let provider = Provider::each(turns.clone());
        let api = read(anthropic(&provider));
        let tried = ask(if limit == 1_000 { api.tool_result_limit(limit) } else { api });
        assert_eq!(tried.output(), "Done.");
        let asked = provider.all_asked().pop().unwrap().body;
        let unread = list.len() + "these arguments are no JSON object: ".len();
        for (at, whole, is_error) in [(2, 2 << 20, false), (4, 2 << 20, true), (6, unread, true)] {
            let result = &asked["messages"][at]["content"][0];
            let said = result["content"][0]["text"].as_str().unwrap();
            let note = format!("\n[cut off: these are the first {limit} of {whole} bytes]");
            assert!(said.len() == limit + note.len() && said.ends_with(&note), "{}", &said[limit - 9..]);
            assert_eq!(result["is_error"], is_error);
            // What the model was told is what is kept.
            let is_kept =
                |part: &Part| matches!(part, Part::ToolResult { content, .. } if *content == [Part::text(said)]);
            assert!(tried.messages.iter().flat_map(|message| &message.parts).any(is_kept));
        }
    }
}

#[test]
fn a_tool_that_is_not_there_is_told_to_the_model() {
    let call = speech::tool_block(0, "t1", "fly", &["{}"]);
    let calls = stream(&speech::anthropic(vec![call], "tool_use"));
    let provider =
        Provider::each(vec![vec![Step::Send(calls)], vec![Step::Send(stream(&speech::anthropic_text(&["No."])))]]);
    let tried = ask(anthropic(&provider));
    assert!(tried.shape().contains(r#"tool: fails "there is no tool `fly`""#), "{}", tried.shape());
}

#[test]
fn an_answer_that_pauses_goes_on_by_itself() {
    let paused = stream(&speech::anthropic(vec![speech::text_block(0, &["Let me search."])], "pause_turn"));
    let provider =
        Provider::each(vec![vec![Step::Send(paused)], vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))]]);
    assert_eq!(ask(anthropic(&provider)).output(), "Paris.");
    provider.asked();
    assert_eq!(provider.asked().body["messages"].as_array().unwrap().len(), 2);
}

#[test]
fn there_is_a_bound_on_turns() {
    let provider = Provider::always(vec![Step::Send(anthropic_calls())]);
    let tried = ask(anthropic(&provider).tool(weather()).max_turns(4));
    assert_eq!((tried.kind(), provider.all_asked().len()), (kinds::MAX_TURNS, 4));
    assert_eq!(tried.said(), "max_turns: it took the 4 turns that it may");
}

#[test]
fn another_attempt_goes_on_where_the_last_one_was_and_pays_for_no_turn_twice() {
    let begun = begun_stream(&[vec![speech::began()], speech::text_block(0, &["It "])].concat());
    let provider = Provider::each(vec![
        vec![Step::Send(anthropic_calls())],
        vec![Step::Send(begun)],
        vec![Step::Send(json_answer(529, &json!({ "error": { "type": "overloaded_error", "message": "oh" } })))],
        vec![Step::Send(stream(&speech::anthropic_text(&["It rains."])))],
    ]);
    let calls = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&calls);
    let tool = Tool::new("weather", "", json!({ "type": "object" }), move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        Ok("It rains.".to_owned())
    });
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("tools")).unwrap().id;
    let api = anthropic(&provider).system_prompt("Be brief.").tool(tool);
    let pool = WorkPool::builder(job, api, repository.clone()).retry(RetryPolicy::immediate()).start().unwrap();
    let unit = pool.enqueue(NewUnit::new("a"), "Does it rain?").unwrap().wait().unwrap();
    assert_eq!((unit.output.as_deref(), unit.attempt_count, calls.load(Ordering::Relaxed)), (Some("It rains."), 3, 2));
    assert_eq!(unit.result.unwrap()["turns"], 2);
    let asked = provider.all_asked();
    let turns: Vec<usize> = asked.iter().map(|request| request.body["messages"].as_array().unwrap().len()).collect();
    assert_eq!(turns, [1, 3, 3, 3]);
    assert_eq!(asked[1].body, asked[3].body);
    let said: Vec<String> = repository
        .attempts(unit.key)
        .unwrap()
        .iter()
        .map(|attempt| shape(&messages(&repository, attempt.key)))
        .collect();
    assert_eq!(said[1], "system: (carries_on); system: (http_error)");
    assert_eq!(said[2], r#"system: (carries_on); assistant: "It rains.""#);
}
