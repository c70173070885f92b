//! A server that somebody else has written: `.ci/real-api cargo test --features cli --test it -- --ignored real_api`.
//!
//! It is aimock, which answers what `tests/real_api/fixtures.json` says, in the words of both providers.

use chrono::Utc;
use serde_json::json;
use workcrew::executor::http::Tool;
use workcrew::executor::kinds;
use workcrew::{AnthropicApi, Executor, NewUnit, OpenAiApi, Then};

use super::{Tried, try_once};

fn weather() -> Tool {
    let schema = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    Tool::new("weather", "The weather in a city.", schema, |input, _| Ok(format!("Rain in {}.", input["city"])))
}

/// Asks in the words of each provider.
fn both(prompt: &str) -> [Tried; 2] {
    let url = std::env::var("WORKCREW_API_URL").expect("WORKCREW_API_URL is not set: run this through `.ci/real-api`");
    let anthropic = AnthropicApi::new("claude-x").base_url(&url).key_from(|| Some("key".to_owned())).tool(weather());
    let openai =
        OpenAiApi::new("gpt-x").base_url(format!("{url}/v1")).key_from(|| Some("key".to_owned())).tool(weather());
    let executors: [Box<dyn Executor>; 2] = [Box::new(anthropic), Box::new(openai)];
    executors.map(|executor| try_once(executor, NewUnit::new("a"), prompt))
}

#[test]
#[ignore = "needs `.ci/real-api`"]
fn a_text_is_an_output_and_a_bill() {
    for tried in both("say hello") {
        assert_eq!(tried.output(), "Hello there, how do you do?");
        let charge = &tried.charges[0];
        assert_eq!((charge.tokens.input, charge.tokens.output, charge.is_estimated), (11, 7, false), "{charge:?}");
    }
}

#[test]
#[ignore = "needs `.ci/real-api`"]
fn thoughts_are_kept_apart() {
    for tried in both("think first") {
        assert_eq!(tried.output(), "Paris.");
        let said = r#"assistant: thinks "France has one capital." + "Paris.""#;
        assert!(tried.shape().ends_with(said), "{}", tried.shape());
    }
}

#[test]
#[ignore = "needs `.ci/real-api`"]
fn a_tool_is_called_and_its_result_is_taken() {
    for tried in both("look it up") {
        assert_eq!(tried.output(), "It rains in Paris.", "{}", tried.shape());
        let said = r#"assistant: calls weather {"city":"Paris"}; tool: answers "Rain in \"Paris\".""#;
        assert!(tried.shape().contains(said), "{}", tried.shape());
    }
}

#[test]
#[ignore = "needs `.ci/real-api`"]
fn what_goes_wrong_is_told_apart() {
    for (prompt, kind, then) in [
        ("overload", kinds::OVERLOADED, Then::Retry),
        ("wrong key", kinds::AUTHENTICATION, Then::Hold { until: None }),
        ("too long", kinds::MAX_TOKENS, Then::GiveUp),
    ] {
        for tried in both(prompt) {
            assert_eq!((tried.kind(), tried.then()), (kind, then), "{}", tried.said());
        }
    }
    let asked_at = Utc::now();
    for tried in both("too many") {
        let Then::Hold { until: Some(until) } = tried.then() else { panic!("{}", tried.said()) };
        assert_eq!(tried.kind(), kinds::RATE_LIMITED);
        assert!((17..60).contains(&(until - asked_at).num_seconds()), "{until}");
    }
}

#[test]
#[ignore = "needs `.ci/real-api`"]
fn a_stream_that_is_cut_keeps_what_was_said() {
    for tried in both("stop half way") {
        assert_eq!((tried.kind(), tried.then()), (kinds::DROPPED, Then::Retry), "{}", tried.said());
        assert!(tried.output().starts_with("This text"), "{}", tried.output());
        assert!(tried.charges[0].is_estimated);
    }
}
