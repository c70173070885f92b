//! Answers, what was asked for them, and what they cost.

use serde_json::{Value, json};
use workcrew::executor::http::Tool;
use workcrew::executor::kinds;
use workcrew::{AnthropicApi, Executor, Money, NewUnit, Price, PriceTable, Tokens, UnitStatus};

use super::provider::{Provider, Step, json_answer, stream};
use super::speech;
use super::{anthropic, ask, openai, try_once};

#[test]
fn a_text_of_anthropics_is_an_output_a_conversation_and_a_bill() {
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&["It is ", "Paris."])))]);
    let tried = ask(anthropic(&provider).system_prompt("Be brief."));
    assert_eq!((tried.output(), tried.unit.status), ("It is Paris.", UnitStatus::Completed));
    let said = r#"system: "Be brief."; user: "What is the capital of France?"; assistant: "It is Paris.""#;
    assert_eq!(tried.shape(), said);
    let result = json!({ "turns": 1, "stop_reason": "end_turn", "id": "msg_1", "model": "claude-test-1" });
    assert_eq!(tried.unit.result, Some(result));
    assert_eq!(tried.unit.session_id.as_deref(), Some("1/a/1"));
    let raw = tried.messages[2].raw.as_ref().unwrap().json().unwrap();
    assert_eq!(raw["content"], json!([{ "type": "text", "text": "It is Paris." }]));
    assert_eq!(raw["usage"]["output_tokens"], 50_000);
    let [charge] = &*tried.charges else { panic!("{:?}", tried.charges) };
    let tokens = Tokens { input: 20, output: 50_000, cache_read: 300, cache_write: 4_000, reasoning: 0 };
    assert_eq!((charge.model.as_str(), charge.tokens), ("claude-test-1", tokens));
    assert_eq!((charge.amount, charge.is_estimated), (None, false));
}

#[test]
fn a_text_of_openais_is_an_output_a_conversation_and_a_bill() {
    let provider = Provider::always(vec![Step::Send(stream(&speech::openai_text(&["It is ", "Paris."])))]);
    let tried = ask(openai(&provider));
    assert_eq!((tried.output(), tried.unit.status), ("It is Paris.", UnitStatus::Completed));
    assert_eq!(tried.shape(), r#"user: "What is the capital of France?"; assistant: "It is Paris.""#);
    let result = json!({ "turns": 1, "stop_reason": "stop", "id": "chatcmpl-1", "model": "gpt-test-1" });
    assert_eq!(tried.unit.result, Some(result));
    let [charge] = &*tried.charges else { panic!("{:?}", tried.charges) };
    let tokens = Tokens { input: 20, output: 46_000, cache_read: 300, cache_write: 0, reasoning: 4_000 };
    assert_eq!((charge.model.as_str(), charge.tokens), ("gpt-test-1", tokens));
}

#[test]
fn an_answer_that_does_not_come_as_a_stream_is_the_same() {
    let anthropics = json!({
        "id": "msg_1", "model": "claude-test-1", "role": "assistant", "content": [{ "type": "text", "text": "Paris." }],
        "stop_reason": "end_turn", "usage": { "input_tokens": 5, "output_tokens": 2 },
    });
    let provider = Provider::always(vec![Step::Send(json_answer(200, &anthropics))]);
    let tried = ask(anthropic(&provider));
    assert_eq!((tried.output(), tried.unit.tokens.output, tried.charges[0].is_estimated), ("Paris.", 2, false));
    let openais = json!({
        "id": "x", "model": "gpt-test-1", "usage": { "prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7 },
        "choices": [{ "index": 0, "message": { "role": "assistant", "content": "Paris." }, "finish_reason": "stop" }],
    });
    let provider = Provider::always(vec![Step::Send(json_answer(200, &openais))]);
    let tried = ask(openai(&provider));
    assert_eq!((tried.output(), tried.unit.tokens.output, tried.charges[0].is_estimated), ("Paris.", 2, false));
}

#[test]
fn thoughts_are_kept_and_are_no_part_of_the_output() {
    let thought = [
        json!({ "type": "thinking_delta", "thinking": "Hm, " }),
        json!({ "type": "thinking_delta", "thinking": "France." }),
        json!({ "type": "signature_delta", "signature": "c2ln" }),
    ];
    let thinking = speech::block(0, &json!({ "type": "thinking", "thinking": "" }), &thought);
    let events = speech::anthropic(vec![thinking, speech::text_block(1, &["Paris."])], "end_turn");
    let provider = Provider::always(vec![Step::Send(stream(&events))]);
    let tried = ask(anthropic(&provider).thinking(2_000).max_tokens(3_000));
    assert_eq!(tried.output(), "Paris.");
    assert!(tried.shape().ends_with(r#"assistant: thinks "Hm, France." + "Paris.""#), "{}", tried.shape());
    assert_eq!(provider.asked().body["thinking"], json!({ "type": "enabled", "budget_tokens": 2_000 }));
    let raw = tried.messages[1].raw.as_ref().unwrap().json().unwrap();
    assert_eq!(raw["content"][0]["signature"], "c2ln");

    for name in ["reasoning_content", "reasoning"] {
        let events = speech::openai(
            &[json!({ name: "Hm, " }), json!({ name: "France." }), json!({ "content": "Paris." })],
            "stop",
        );
        let provider = Provider::always(vec![Step::Send(stream(&events))]);
        let tried = ask(openai(&provider).reasoning_effort("low"));
        assert_eq!(tried.output(), "Paris.");
        assert!(tried.shape().ends_with(r#"assistant: thinks "Hm, France." + "Paris.""#), "{}", tried.shape());
        assert_eq!(provider.asked().body["reasoning_effort"], "low");
    }
}

#[test]
fn all_that_is_set_is_sent() {
    let tool = || Tool::new("look", "Looks.", json!({ "type": "object" }), |_, _| Ok(String::new()));
    let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
    let answer = "{}";
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&[answer])))]);
    let api = anthropic(&provider).system_prompt("Be brief.").max_tokens(77).temperature(0.5).tool(tool());
    ask(api.json_schema(schema.clone()).extra("top_k", 3).extra("stream", Value::Null).header("anthropic-beta", "b1"));
    let asked = provider.asked();
    let body = json!({
        "model": "claude-asked", "max_tokens": 77, "temperature": 0.5, "system": "Be brief.", "top_k": 3,
        "messages": [{ "role": "user", "content": [{ "type": "text", "text": "What is the capital of France?" }] }],
        "tools": [{ "name": "look", "description": "Looks.", "input_schema": { "type": "object" } }],
        "output_config": { "format": { "type": "json_schema", "schema": schema } },
    });
    assert_eq!(asked.body, body);
    assert!(asked.head.starts_with("POST /v1/messages HTTP/1.1\n"), "{}", asked.head);
    for line in [
        "x-api-key: sk-test",
        "anthropic-version: 2023-06-01",
        "anthropic-beta: b1",
        "accept-encoding: identity",
        "content-type: application/json",
    ] {
        assert!(asked.head.lines().any(|sent| sent == line), "{line}: {}", asked.head);
    }

    let provider = Provider::always(vec![Step::Send(stream(&speech::openai_text(&[answer])))]);
    let api = openai(&provider).system_prompt("Be brief.").max_tokens(77).temperature(0.5).tool(tool());
    ask(api.json_schema(schema.clone()).extra("seed", 3));
    let asked = provider.asked();
    let body = json!({
        "model": "gpt-asked", "max_tokens": 77, "temperature": 0.5, "seed": 3, "stream": true, "stream_options": { "include_usage": true },
        "messages": [{ "role": "system", "content": "Be brief." }, { "role": "user", "content": "What is the capital of France?" }],
        "tools": [{ "type": "function", "function": { "name": "look", "description": "Looks.", "parameters": { "type": "object" } } }],
        "response_format": { "type": "json_schema", "json_schema": { "name": "answer", "schema": schema, "strict": true } },
    });
    assert_eq!(asked.body, body);
    assert!(asked.head.starts_with("POST /v1/chat/completions HTTP/1.1\n"), "{}", asked.head);
    assert!(asked.head.lines().any(|line| line == "authorization: Bearer sk-test"), "{}", asked.head);
}

#[test]
fn a_form_that_was_asked_for_is_the_result_and_another_is_a_failure() {
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&[r#"{"city":"#, r#""Paris"}"#])))]);
    let tried = ask(anthropic(&provider).json_schema(json!({ "type": "object" })));
    assert_eq!(tried.unit.result, Some(json!({ "city": "Paris" })));
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&["It is Paris."])))]);
    let tried = ask(anthropic(&provider).json_schema(json!({ "type": "object" })));
    assert_eq!((tried.kind(), tried.unit.tokens.output), (kinds::NO_STRUCTURED_OUTPUT, 50_000));
}

#[test]
fn a_price_is_that_of_the_model_that_answered_and_a_class_without_one_leaves_the_amount_unknown() {
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))]);
    let money = |text: &str| text.parse::<Money>().unwrap();
    let price = Price::new("2026-01-01T00:00:00Z".parse().unwrap()).input(money("3")).output(money("15"));
    let whole = price.clone().cache_read(money("0.3")).cache_write(money("3.75"));
    let charged = |prices: Vec<(&'static str, Price)>| {
        let table = prices.into_iter().fold(PriceTable::new(), |table, (name, price)| table.with(name, price));
        ask(anthropic(&provider).prices(table)).charges.remove(0)
    };
    // 20 × 3 + 50,000 × 15 + 300 × 0.3 + 4,000 × 3.75 millionths of a dollar.
    let amount = Some(Money::from_nanos(60_000 + 750_000_000 + 90_000 + 15_000_000));
    assert_eq!(charged(vec![("claude-test-1", whole.clone())]).amount, amount);
    assert_eq!(charged(vec![("claude-asked", whole.clone())]).amount, amount);
    assert_eq!(charged(vec![("claude-test-1", whole), ("claude-asked", price.clone())]).amount, amount);
    assert_eq!(charged(vec![("claude-test-1", price)]).amount, None);
    assert_eq!(charged(vec![("another", Price::new("2026-01-01T00:00:00Z".parse().unwrap()))]).price, None);
}

#[test]
fn what_an_attempt_may_cost_follows_from_what_is_really_sent_and_with_tools_nobody_can_tell() {
    let provider = Provider::always(Vec::new());
    let money = |text: &str| text.parse::<Money>().unwrap();
    let price = || Price::new("2026-01-01T00:00:00Z".parse().unwrap()).input(money("3")).output(money("1000"));
    let answer = |executor: &dyn Executor| executor.estimate().map(|estimate| estimate.answer);
    let anthropic = || anthropic(&provider).price(price());
    assert_eq!(answer(&anthropic()), Some(money("4.096")));
    assert_eq!(answer(&anthropic().max_tokens(500)), Some(money("0.5")));
    assert_eq!(answer(&anthropic().max_tokens(500).extra("max_tokens", 700)), Some(money("0.7")));
    let openai = || openai(&provider).price(price());
    assert_eq!(answer(&openai()), None, "the provider decides");
    assert_eq!(answer(&openai().max_tokens(500)), Some(money("0.5")));
    assert_eq!(answer(&openai().extra("max_tokens", 700)), Some(money("0.7")));
    assert_eq!(answer(&openai().extra("max_completion_tokens", 700)), Some(money("0.7")));
    let tool = || Tool::new("look", "Looks.", json!({ "type": "object" }), |_, _| Ok(String::new()));
    assert_eq!(answer(&anthropic().tool(tool())), None, "each call of a tool is one more request");
    assert_eq!(answer(&openai().max_tokens(500).tool(tool())), None);
}

#[test]
fn thinking_and_counters_that_are_told_again_and_again_are_paid_for_once_to_the_nano_dollar() {
    let money = |text: &str| text.parse::<Money>().unwrap();
    let price = Price::new("2026-01-01T00:00:00Z".parse().unwrap()).input(money("1.1")).output(money("4.4"));
    let price = price.cache_read(money("0.275")).cache_write(money("1.375")).reasoning(money("4.401"));

    // Cumulative counters, and the last event twice.
    let ended = |output: u64, thinking: u64| {
        let usage = json!({ "input_tokens": 7, "output_tokens": output, "output_tokens_details": { "thinking_tokens": thinking } });
        speech::event(&json!({ "type": "message_delta", "delta": { "stop_reason": "end_turn" }, "usage": usage }))
    };
    let events = [
        vec![speech::began(), speech::began()],
        speech::text_block(0, &["Paris."]),
        vec![ended(11, 5), ended(333, 222), ended(333, 222), speech::event(&json!({ "type": "message_stop" }))],
    ];
    let provider = Provider::always(vec![Step::Send(stream(&events.concat()))]);
    let tried = ask(anthropic(&provider).price(price.clone()));
    let [charge] = &*tried.charges else { panic!("{:?}", tried.charges) };
    let tokens = Tokens { input: 7, output: 111, cache_read: 300, cache_write: 4_000, reasoning: 222 };
    assert_eq!((charge.tokens, charge.is_estimated), (tokens, false));
    // 7 × 1.1 + 111 × 4.4 + 300 × 0.275 + 4,000 × 1.375 + 222 × 4.401 millionths of a dollar.
    assert_eq!(charge.amount, Some(Money::from_nanos(7_700 + 488_400 + 82_500 + 5_500_000 + 977_022)));
    assert_eq!(tried.unit.cost.amount, charge.amount.unwrap());

    // The usage comes with every chunk, and twice in the end.
    let mut events = speech::openai_text(&["Paris."]);
    let part = json!({ "id": "chatcmpl-1", "model": "gpt-test-1", "choices": [], "usage": { "prompt_tokens": 320, "completion_tokens": 2 } });
    events.insert(1, format!("data: {part}\n\n"));
    events.insert(events.len() - 1, speech::usage());
    let provider = Provider::always(vec![Step::Send(stream(&events))]);
    let tried = ask(openai(&provider).price(price));
    let [charge] = &*tried.charges else { panic!("{:?}", tried.charges) };
    let tokens = Tokens { input: 20, output: 46_000, cache_read: 300, cache_write: 0, reasoning: 4_000 };
    assert_eq!((charge.tokens, charge.is_estimated), (tokens, false));
    assert_eq!(charge.amount, Some(Money::from_nanos(22_000 + 202_400_000 + 82_500 + 17_604_000)));
    assert_eq!(tried.unit.cost.amount, charge.amount.unwrap());
}

#[test]
fn what_is_recorded_says_how_it_was_asked() {
    let provider = Provider::always(Vec::new());
    let api = AnthropicApi::new("m").base_url(&provider.url).system_prompt("Be brief.").max_tokens(77);
    let recorded = api.extra("top_k", 3).header("anthropic-beta", "b1").adaptive_thinking().provenance();
    assert_eq!((recorded.executor.as_str(), recorded.model.as_deref()), ("anthropic_api", Some("m")));
    let base_url = format!("base_url={}", provider.url);
    let thinking = r#"thinking={"type":"adaptive"}"#;
    let arguments = [
        &base_url,
        "system_prompt=Be brief.",
        "max_tokens=77",
        "max_turns=25",
        thinking,
        "extra:top_k",
        "header:anthropic-beta",
    ];
    assert_eq!(recorded.arguments, arguments);
}

#[test]
fn an_executor_without_a_key_or_an_address_says_so() {
    let missing = AnthropicApi::new("m").key_variable("WORKCREW_NO_SUCH_KEY").is_available().unwrap_err();
    assert_eq!(missing.missing, "the variable `WORKCREW_NO_SUCH_KEY` has no key");
    assert!(AnthropicApi::new("m").base_url("example.org").without_key().is_available().is_err());
    assert!(AnthropicApi::new("m").base_url("http://example.org").without_key().is_available().is_ok());
}

#[test]
fn a_unit_says_how_many_turns_it_may_take() {
    let call = speech::tool_block(0, "t1", "look", &["{}"]);
    let provider = Provider::always(vec![Step::Send(stream(&speech::anthropic(vec![call], "tool_use")))]);
    let tried = try_once(anthropic(&provider), NewUnit::new("a").max_iterations(3), "Look.");
    assert_eq!((tried.kind(), provider.all_asked().len()), (kinds::MAX_TURNS, 3));
    assert_eq!(tried.unit.tokens.output, 150_000);
}
