//! What goes wrong, told apart.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use workcrew::executor::kinds;
use workcrew::{Then, UnitStatus};

use super::provider::{Provider, Step, answer, begun_stream, json_answer, stream};
use super::{Tried, anthropic, ask, openai, speech};

const HOLD: Then = Then::Hold { until: None };

/// An error of Anthropic's.
fn anthropics(kind: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": "So it is." }, "request_id": "req_1" })
}

/// An error of OpenAI's.
fn openais(kind: &str, code: &str) -> Value {
    json!({ "error": { "message": "So it is.", "type": kind, "param": null, "code": code } })
}

#[test]
fn every_status_of_anthropics_has_its_kind_and_what_follows() {
    for (status, kind, expected, then) in [
        (400, "invalid_request_error", kinds::INVALID_REQUEST, Then::GiveUp),
        (401, "authentication_error", kinds::AUTHENTICATION, HOLD),
        (402, "billing_error", kinds::QUOTA, HOLD),
        (403, "permission_error", kinds::AUTHENTICATION, HOLD),
        (404, "not_found_error", kinds::MODEL_NOT_FOUND, Then::GiveUp),
        (413, "request_too_large", kinds::INVALID_REQUEST, Then::GiveUp),
        (429, "rate_limit_error", kinds::RATE_LIMITED, Then::Retry),
        (500, "api_error", kinds::SERVER_ERROR, Then::Retry),
        (502, "api_error", kinds::SERVER_ERROR, Then::Retry),
        (504, "timeout_error", kinds::SERVER_ERROR, Then::Retry),
        (529, "overloaded_error", kinds::OVERLOADED, Then::Retry),
    ] {
        let provider = Provider::always(vec![Step::Send(json_answer(status, &anthropics(kind)))]);
        let tried = ask(anthropic(&provider));
        assert_eq!((tried.kind(), tried.then()), (expected, then), "{status}");
        assert_eq!(tried.said(), format!("{expected}: the provider says {status} {kind}: So it is."));
        assert_eq!(tried.shape(), r#"user: "What is the capital of France?"; system: (http_error)"#, "{status}");
        assert_eq!(tried.charges, [], "{status}: nothing was bought");
        let is_open = matches!(then, Then::Hold { .. });
        assert_eq!(tried.unit.status, if is_open { UnitStatus::Pending } else { UnitStatus::Failed }, "{status}");
        assert_eq!(tried.attempt.is_counted, !is_open, "{status}");
    }
}

#[test]
fn every_status_of_openais_has_its_kind_and_what_follows() {
    for (status, kind, code, expected, then) in [
        (400, "invalid_request_error", "context_length_exceeded", kinds::INVALID_REQUEST, Then::GiveUp),
        (400, "invalid_request_error", "content_policy_violation", kinds::CONTENT_FILTER, Then::GiveUp),
        (401, "invalid_request_error", "invalid_api_key", kinds::AUTHENTICATION, HOLD),
        (403, "forbidden", "", kinds::AUTHENTICATION, HOLD),
        (404, "invalid_request_error", "model_not_found", kinds::MODEL_NOT_FOUND, Then::GiveUp),
        (429, "requests", "rate_limit_exceeded", kinds::RATE_LIMITED, Then::Retry),
        (429, "insufficient_quota", "insufficient_quota", kinds::QUOTA, HOLD),
        (500, "server_error", "", kinds::SERVER_ERROR, Then::Retry),
        (503, "engine_overloaded", "", kinds::OVERLOADED, Then::Retry),
    ] {
        let provider = Provider::always(vec![Step::Send(json_answer(status, &openais(kind, code)))]);
        let tried = ask(openai(&provider));
        assert_eq!((tried.kind(), tried.then()), (expected, then), "{status} {code}");
    }
}

#[test]
fn an_error_that_is_a_page_is_told_in_one_line() {
    let page = "<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body>nginx</body>\r\n</html>";
    for status in [400, 403, 500, 502, 503, 529] {
        let provider = Provider::always(vec![Step::Send(answer(status, &[("content-type", "text/html")], page))]);
        let tried = ask(openai(&provider));
        assert!(
            tried.said().contains(&format!("{status}")) && tried.said().contains("502 Bad Gateway"),
            "{}",
            tried.said()
        );
        assert!(!tried.said().contains('\n'));
    }
}

#[test]
fn an_address_where_nothing_is_holds_the_pool() {
    for (status, headers) in [
        (404, ("x", "y")),
        (405, ("x", "y")),
        (301, ("location", "http://127.0.0.1:1/")),
        (308, ("location", "/elsewhere")),
    ] {
        let provider = Provider::always(vec![Step::Send(answer(status, &[headers], "<html>nothing here</html>"))]);
        let tried = ask(openai(&provider));
        assert_eq!((tried.kind(), tried.then()), (kinds::WRONG_URL, HOLD), "{status}: {}", tried.said());
        assert_eq!(provider.all_asked().len(), 1, "nothing is followed");
    }
    for body in [
        json!({ "detail": "Not Found" }),
        json!({ "type": "error", "error": { "type": "not_found_error", "message": "Not Found" } }),
        json!({ "error": { "message": "Invalid URL (POST /v2)", "type": "invalid_request_error", "code": null } }),
    ] {
        let provider = Provider::always(vec![Step::Send(json_answer(404, &body))]);
        assert_eq!(ask(openai(&provider)).kind(), kinds::WRONG_URL, "{body}");
    }
    let provider = Provider::always(Vec::new());
    let tried = ask(openai(&provider).base_url("not a url"));
    assert_eq!((tried.kind(), tried.then()), (kinds::WRONG_URL, HOLD));
}

#[test]
fn a_provider_that_is_not_there_may_be_there_later() {
    let provider = Provider::always(Vec::new());
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let tried = ask(anthropic(&provider).base_url(format!("http://{nobody}")));
    assert_eq!((tried.kind(), tried.then()), (kinds::CONNECTION, Then::Retry));
    assert!(tried.said().contains("refused"), "{}", tried.said());
    // Hangs up without a word.
    let tried = ask(anthropic(&provider));
    assert_eq!((tried.kind(), tried.then()), (kinds::CONNECTION, Then::Retry), "{}", tried.said());
    let tried = ask(anthropic(&provider).base_url("http://no-such-host.invalid"));
    assert_eq!((tried.kind(), tried.then()), (kinds::CONNECTION, Then::Retry), "{}", tried.said());
}

#[test]
fn what_is_not_http_makes_no_sense() {
    let provider = Provider::always(vec![Step::Send(b"SSH-2.0-OpenSSH_9.9\r\n\r\n".to_vec())]);
    assert_eq!(ask(anthropic(&provider)).kind(), kinds::BAD_RESPONSE);
    let endless = format!("HTTP/1.1 200 OK\r\n{}", "x: y\r\n".repeat(50_000));
    let provider = Provider::always(vec![Step::Send(endless.into_bytes())]);
    assert_eq!(ask(anthropic(&provider)).kind(), kinds::BAD_RESPONSE);
    let broken_chunks =
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n";
    let provider = Provider::always(vec![Step::Send(broken_chunks.to_vec())]);
    assert_eq!(ask(anthropic(&provider)).kind(), kinds::BAD_RESPONSE);
}

#[test]
fn an_error_in_the_middle_of_a_stream_keeps_what_was_said_before() {
    let begun = [vec![speech::began()], speech::text_block(0, &["It is "])].concat();
    for (kind, expected, then) in [
        ("overloaded_error", kinds::OVERLOADED, Then::Retry),
        ("rate_limit_error", kinds::RATE_LIMITED, Then::Retry),
        ("api_error", kinds::SERVER_ERROR, Then::Retry),
        ("invalid_request_error", kinds::INVALID_REQUEST, Then::GiveUp),
    ] {
        let events = [begun.clone(), vec![speech::event(&anthropics(kind))]].concat();
        let provider = Provider::always(vec![Step::Send(begun_stream(&events))]);
        let tried = ask(anthropic(&provider));
        assert_eq!((tried.kind(), tried.then()), (expected, then), "{kind}");
        assert!(tried.shape().ends_with(r#"assistant: "It is " *; system: (error)"#), "{}", tried.shape());
        assert!(tried.charges[0].is_estimated);
    }
    let events = [
        speech::chunk(&json!({ "content": "It is " }), None),
        speech::data(&json!({ "error": { "code": 502, "message": "oh" } })),
    ];
    let provider = Provider::always(vec![Step::Send(begun_stream(&events))]);
    let tried = ask(openai(&provider));
    assert_eq!((tried.kind(), tried.output()), (kinds::SERVER_ERROR, "It is "));
}

#[test]
fn an_error_may_come_with_a_good_status() {
    let provider = Provider::always(vec![Step::Send(json_answer(
        200,
        &json!({ "error": { "code": 429, "message": "slow down" } }),
    ))]);
    let tried = ask(openai(&provider));
    assert_eq!((tried.kind(), tried.then()), (kinds::RATE_LIMITED, Then::Retry));
    assert_eq!(tried.charges, [], "nothing was bought");
}

#[test]
fn an_answer_that_ends_otherwise_than_it_should_keeps_what_was_said_and_what_it_cost() {
    let check = |tried: Tried, kind: &str| {
        assert_eq!((tried.kind(), tried.then()), (kind, Then::GiveUp), "{}", tried.said());
        assert_eq!((tried.output(), tried.unit.tokens.output > 40_000), ("It is ", true));
        assert!(tried.shape().ends_with(r#"assistant: "It is ""#), "{}", tried.shape());
        assert!(!tried.charges[0].is_estimated);
    };
    for (reason, kind) in [
        ("max_tokens", kinds::MAX_TOKENS),
        ("model_context_window_exceeded", kinds::MAX_TOKENS),
        ("refusal", kinds::REFUSED),
    ] {
        let events = speech::anthropic(vec![speech::text_block(0, &["It is "])], reason);
        let provider = Provider::always(vec![Step::Send(stream(&events))]);
        check(ask(anthropic(&provider)), kind);
    }
    for (reason, kind) in [("length", kinds::MAX_TOKENS), ("content_filter", kinds::CONTENT_FILTER)] {
        let provider =
            Provider::always(vec![Step::Send(stream(&speech::openai(&[json!({ "content": "It is " })], reason)))]);
        check(ask(openai(&provider)), kind);
    }
    let provider =
        Provider::always(vec![Step::Send(stream(&speech::openai(&[json!({ "refusal": "I will not." })], "stop")))]);
    let tried = ask(openai(&provider));
    assert_eq!(tried.said(), "refused: the model refuses: I will not.");
}

#[test]
fn a_pause_that_is_asked_for_is_kept() {
    let limited = anthropics("rate_limit_error").to_string();
    let asked = |headers: &[(&str, &str)], status: u16| {
        let provider = Provider::always(vec![Step::Send(answer(status, headers, &limited))]);
        ask(anthropic(&provider)).then()
    };
    for (name, seconds, status) in [("Retry-After", 7, 503), ("retry-after", 9, 529)] {
        let Then::RetryAfter(pause) = asked(&[(name, &seconds.to_string())], status) else { panic!("{status}") };
        assert!(pause >= Duration::from_secs(seconds) && pause.as_secs() == seconds, "{pause:?}");
    }
    let in_an_hour = Utc::now() + Duration::from_secs(3_600);
    let date = in_an_hour.format("%a, %d %b %Y %H:%M:%S GMT").to_string();
    let reset = in_an_hour.to_rfc3339();
    let limits =
        [("anthropic-ratelimit-requests-remaining", "0"), ("anthropic-ratelimit-requests-reset", reset.as_str())];
    // Who is one of too many is not to blame: all wait.
    for headers in [&[("retry-after", "3600")][..], &[("retry-after", &date)], &limits] {
        let Then::Hold { until: Some(until) } = asked(headers, 429) else { panic!("{headers:?}") };
        assert!((0..60).contains(&(until - in_an_hour).num_seconds().abs()), "{headers:?}: {until}");
    }
}

#[test]
fn how_long_to_wait_may_be_said_in_words_alone() {
    let error =
        |message: &str| json!({ "error": { "message": message, "type": "tokens", "code": "rate_limit_exceeded" } });
    let reached =
        error("Rate limit reached for gpt-5: Limit 30000, Used 29000, Requested 1500. Please try again in 1h0m0.5s.");
    let begun = [speech::chunk(&json!({ "content": "It is " }), None), speech::data(&reached)];
    for answer in [json_answer(429, &reached), begun_stream(&begun)] {
        let in_an_hour = Utc::now() + Duration::from_secs(3_600);
        let tried = ask(openai(&Provider::always(vec![Step::Send(answer)])));
        let Then::Hold { until: Some(until) } = tried.then() else { panic!("{}", tried.said()) };
        assert!((0..60).contains(&(until - in_an_hour).num_seconds()), "{until}");
    }
    // What is more than a limit by itself is so at any time.
    let never = error("Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 34000.");
    let headers = [("content-type", "application/json"), ("retry-after", "1")];
    let provider = Provider::always(vec![Step::Send(answer(429, &headers, &never.to_string()))]);
    let tried = ask(openai(&provider));
    assert_eq!((tried.kind(), tried.then()), (kinds::INVALID_REQUEST, Then::GiveUp));
}

#[test]
fn a_quota_with_a_date_holds_the_pool_until_then() {
    let message =
        "You have reached your specified API usage limits. You will regain access on 2099-12-01 at 00:00 UTC.";
    let error = json!({ "type": "error", "error": { "type": "invalid_request_error", "message": message } });
    let provider = Provider::always(vec![Step::Send(json_answer(400, &error))]);
    let tried = ask(anthropic(&provider));
    let until: DateTime<Utc> = "2099-12-01T00:00:00Z".parse().unwrap();
    assert_eq!((tried.kind(), tried.then()), (kinds::QUOTA, Then::Hold { until: Some(until) }));
}
