//! Streams that come in pieces, are cut, or are too much.

use std::sync::mpsc::channel;

use serde_json::json;
use workcrew::executor::kinds;
use workcrew::repository::By;
use workcrew::{Archive, Call, Executor, MemoryRepository, NewJob, NewUnit, Repository, UnitStatus, WorkPool};

use super::provider::{Provider, Step, answer, begun_stream, open_stream, stream};
use super::{anthropic, ask, messages, openai, speech};

const TEXT: &str = "It is Paris, où l'on dîne.";

fn pieces() -> Vec<&'static str> {
    TEXT.split_inclusive(' ').collect()
}

#[test]
fn a_stream_may_come_byte_by_byte() {
    for (number, bytes) in [stream(&speech::anthropic_text(&pieces())), open_stream(&speech::anthropic_text(&pieces()))]
        .into_iter()
        .enumerate()
    {
        let provider = Provider::always(vec![Step::Trickle(bytes)]);
        assert_eq!(ask(anthropic(&provider)).output(), TEXT, "{number}");
    }
    let provider = Provider::always(vec![Step::Trickle(stream(&speech::openai_text(&pieces())))]);
    assert_eq!(ask(openai(&provider)).output(), TEXT);
}

/// Asks once for every way to cut a stream; `ends` is where the answer is whole.
fn cut_everywhere(executor: impl Fn(&Provider) -> Box<dyn Executor>, bytes: Vec<u8>, last: Option<Step>, ends: usize) {
    let head = bytes.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let length = bytes.len();
    let is_chunked = bytes[..head].windows(7).any(|part| part == b"chunked");
    let provider = Provider::new(move |cut, _| {
        let mut steps = vec![Step::Send(bytes[..cut].to_vec())];
        steps.extend(last.clone());
        steps
    });
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("cuts")).unwrap().id;
    let pool = WorkPool::builder(job, executor(&provider), repository.clone()).max_workers(1).start().unwrap();
    let mut longest = String::new();
    for cut in 0..=length {
        let unit = pool.enqueue(NewUnit::new(format!("{cut}")).max_retries(0), "Where?").unwrap().wait().unwrap();
        let said = messages(&repository, repository.attempts(unit.key).unwrap()[0].key);
        let text = said
            .iter()
            .find(|message| message.role == workcrew::Role::Assistant)
            .map(|message| message.text())
            .unwrap_or_default();
        assert!(TEXT.starts_with(&text) && text.len() >= longest.len(), "{cut}: {text}");
        longest = text;
        if unit.status == UnitStatus::Completed {
            assert!(cut >= ends && longest == TEXT, "{cut} of {length}");
            continue;
        }
        assert!(cut < ends, "{cut} of {length}: {:?}", unit.failure);
        let failure = unit.failure.unwrap();
        let kind = match cut {
            _ if cut < head => kinds::CONNECTION,
            _ if is_chunked => kinds::DROPPED,
            _ => kinds::TRUNCATED,
        };
        assert_eq!(failure.kind.as_str(), kind, "{cut} of {length}: {failure}");
        let is_partial = said.iter().any(|message| message.is_partial);
        assert_eq!(is_partial, !longest.is_empty(), "{cut}");
        // From the answer's first byte on it costs.
        assert_eq!(unit.tokens.total() > 0, cut >= head, "{cut}");
    }
    assert_eq!(longest, TEXT);
}

/// Where the event ends that says why the answer ends.
fn answered_at(bytes: &[u8], mark: &str) -> usize {
    let text = String::from_utf8_lossy(bytes);
    let at = text.find(mark).unwrap();
    at + text[at..].find("\n\n").unwrap() + 2
}

#[test]
fn a_stream_of_anthropics_that_is_cut_anywhere_is_whole_or_a_failure_with_what_was_said() {
    for bytes in [stream(&speech::anthropic_text(&pieces())), open_stream(&speech::anthropic_text(&pieces()))] {
        let ends = answered_at(&bytes, r#""stop_reason":"end_turn""#);
        cut_everywhere(|provider| Box::new(anthropic(provider)), bytes, None, ends);
    }
}

#[test]
fn a_stream_of_openais_that_is_cut_anywhere_is_whole_or_a_failure_with_what_was_said() {
    for bytes in [stream(&speech::openai_text(&pieces())), open_stream(&speech::openai_text(&pieces()))] {
        let ends = answered_at(&bytes, r#""finish_reason":"stop""#);
        cut_everywhere(|provider| Box::new(openai(provider)), bytes, None, ends);
    }
}

#[test]
fn a_connection_that_is_broken_off_in_the_middle_is_dropped() {
    let begun = [vec![speech::began()], speech::text_block(0, &["It is "])].concat();
    let provider = Provider::always(vec![Step::Send(begun_stream(&begun)), Step::Reset]);
    let tried = ask(anthropic(&provider));
    assert!([kinds::DROPPED, kinds::CONNECTION].contains(&tried.kind()), "{}", tried.said());
}

#[test]
fn what_a_cut_off_answer_used_is_a_guess_from_what_is_known() {
    let begun = [vec![speech::began()], speech::text_block(0, &["It is Paris."])].concat();
    let provider = Provider::always(vec![Step::Send(begun_stream(&begun))]);
    let tried = ask(anthropic(&provider));
    let charge = &tried.charges[0];
    assert_eq!((charge.tokens.input, charge.tokens.cache_write, charge.is_estimated), (20, 4_000, true));
    assert!(charge.tokens.output > 1);
    assert_eq!(tried.shape(), r#"user: "What is the capital of France?"; assistant: "It is Paris." *"#);
    assert_eq!(tried.output(), "It is Paris.");

    let begun = [speech::chunk(&json!({ "content": "It is Paris." }), None)];
    let provider = Provider::always(vec![Step::Send(begun_stream(&begun))]);
    let charge = &ask(openai(&provider)).charges[0];
    assert!(charge.is_estimated && charge.tokens.input > 10 && charge.tokens.output == 3, "{charge:?}");
}

#[test]
fn a_provider_that_lingers_after_its_last_word_keeps_nobody() {
    let events = begun_stream(&speech::anthropic_text(&["Paris."]));
    let provider = Provider::always(vec![Step::Send(events), Step::Linger]);
    assert_eq!(ask(anthropic(&provider)).output(), "Paris.");
    provider.wait_until_hung_up();
    let events = begun_stream(&speech::openai_text(&["Paris."]));
    let provider = Provider::always(vec![Step::Send(events), Step::Linger]);
    assert_eq!(ask(openai(&provider)).output(), "Paris.");
    provider.wait_until_hung_up();
}

#[test]
fn what_is_not_known_yet_is_passed_over() {
    let mut events = speech::anthropic_text(&["Paris."]);
    events.insert(2, ": keep alive\n\n".to_owned());
    events.insert(2, speech::event(&json!({ "type": "something_new", "index": 0 })));
    events.insert(
        5,
        speech::event(&json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "new_delta" } })),
    );
    let provider = Provider::always(vec![Step::Send(stream(&events))]);
    assert_eq!(ask(anthropic(&provider)).output(), "Paris.");
}

#[test]
fn a_stream_that_is_no_json_is_told_and_kept() {
    for data in [&b"{ nonsense"[..], b"\"\xff\xfe\""] {
        let begun = [vec![speech::began()], speech::text_block(0, &["It is "])].concat();
        let mut bytes = open_stream(&begun);
        bytes.extend([b"data: ", data, b"\n\n"].concat());
        let provider = Provider::always(vec![Step::Send(bytes)]);
        let tried = ask(anthropic(&provider));
        assert_eq!(tried.kind(), kinds::BAD_RESPONSE, "{}", tried.said());
        assert!(tried.shape().ends_with(r#"assistant: "It is " *; system: (unread_event)"#), "{}", tried.shape());
        assert_eq!(tried.messages.last().unwrap().raw.as_ref().unwrap().as_bytes(), data);
    }
}

/// Asks, and says by how much the most memory that this process ever had has grown meanwhile.
fn grown_mib(executor: impl Executor) -> (String, u64) {
    let most = || {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_024
    };
    let before = most();
    let kind = ask(executor).kind().to_owned();
    (kind, most() - before)
}

/// In a process of its own, where nothing else takes memory.
#[test]
#[ignore = "run by `a_hundred_megabytes_are_read_in_little_memory`"]
fn hundred_megabytes() {
    const MIB: usize = 1 << 20;
    let head = |kind: &str| format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n\r\n").into_bytes();
    let flood = |head: Vec<u8>, piece: Vec<u8>| {
        let times = 100 * MIB / piece.len();
        Provider::always(vec![Step::Send(head), Step::Flood(piece, times)])
    };
    let text = speech::text_block(0, &["x".repeat(1_000).as_str()])[1].clone().into_bytes();
    let floods = [
        ("a line without an end", flood(head("text/event-stream"), vec![b'x'; MIB])),
        ("an answer without an end", flood(head("text/event-stream"), text)),
        ("an answer as a whole", flood(head("application/json"), vec![b' '; MIB])),
        ("a page", flood(head("text/html"), vec![b'x'; MIB])),
        ("an error", flood(b"HTTP/1.1 500 Oh\r\n\r\n".to_vec(), vec![b'x'; MIB])),
    ];
    for (what, provider) in floods {
        let (kind, grown) = grown_mib(anthropic(&provider));
        assert!([kinds::BAD_RESPONSE, kinds::SERVER_ERROR].contains(&kind.as_str()), "{what}: {kind}");
        assert!(grown < 90, "{what}: {grown} MiB");
    }
    // Comments are no answer, and take no memory; then the stream ends without one.
    let provider = flood(head("text/event-stream"), b": still thinking\n\n".repeat(10_000));
    let (kind, grown) = grown_mib(anthropic(&provider));
    assert!(kind == kinds::TRUNCATED && grown < 90, "{kind}: {grown} MiB");
}

#[test]
fn a_hundred_megabytes_are_read_in_little_memory() {
    let output = crate::support::child("http::streams::hundred_megabytes").output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn an_answer_of_another_type_makes_no_sense() {
    let page = "<html><body>Please log in.</body></html>";
    let provider = Provider::always(vec![Step::Send(answer(200, &[("content-type", "text/html")], page))]);
    let tried = ask(anthropic(&provider));
    assert_eq!(tried.kind(), kinds::BAD_RESPONSE);
    assert!(tried.said().contains("`text/html`") && tried.said().contains("Please log in."), "{}", tried.said());
    assert_eq!(tried.charges, [], "nothing was bought");
    let provider = Provider::always(vec![Step::Send(answer(200, &[("content-type", "application/json")], "{"))]);
    assert_eq!(ask(anthropic(&provider)).kind(), kinds::BAD_RESPONSE);
    // JSON, but no answer.
    let provider = Provider::always(vec![Step::Send(answer(200, &[("content-type", "application/json")], "{}"))]);
    assert_eq!(ask(openai(&provider)).kind(), kinds::TRUNCATED);
}

#[test]
fn what_is_packed_though_nobody_asked_makes_no_sense() {
    let headers = [("content-type", "text/event-stream"), ("content-encoding", "gzip")];
    let provider = Provider::always(vec![Step::Send(answer(200, &headers, "\u{1f}\u{8b}"))]);
    let tried = ask(anthropic(&provider));
    assert_eq!(tried.kind(), kinds::BAD_RESPONSE);
    assert!(tried.said().contains("packed as `gzip`"), "{}", tried.said());
    assert!(provider.asked().head.contains("accept-encoding: identity"));
    // An error is one all the same, with nothing of what nobody can read.
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip"), ("retry-after", "7")];
    for (status, kind) in [(503, kinds::SERVER_ERROR), (429, kinds::RATE_LIMITED), (404, kinds::WRONG_URL)] {
        let provider = Provider::always(vec![Step::Send(answer(status, &headers, "\u{1f}\u{8b}packed"))]);
        let tried = ask(anthropic(&provider));
        assert_eq!(tried.kind(), kind, "{}", tried.said());
        assert!(
            tried.said().contains(&status.to_string()) && tried.said().contains("packed as `gzip`"),
            "{}",
            tried.said()
        );
        assert!(!tried.said().contains('\u{1f}'));
        assert_eq!(tried.messages.last().unwrap().raw.as_ref().unwrap().as_bytes(), b"");
    }
}

#[test]
fn text_is_told_while_it_is_written() {
    let begun = [vec![speech::began()], speech::text_block(0, &["It is "])].concat();
    let provider = Provider::always(vec![Step::Send(begun_stream(&begun)), Step::Linger]);
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("partial")).unwrap().id;
    let api = anthropic(&provider);
    let (done, is_done) = channel();
    let execute = move |call: &Call<'_>| {
        let result = api.execute(call);
        done.send(()).unwrap();
        result
    };
    let pool = WorkPool::builder(job, execute, repository.clone()).start().unwrap();
    let unit = pool.enqueue(NewUnit::new("a"), "Where?").unwrap();
    let key = repository.unit(job, "a").unwrap().key;
    let partial =
        || repository.attempts(key).unwrap().first().and_then(|attempt| repository.partial_text(attempt.key).unwrap());
    crate::commands::until("the text is there", || partial().as_deref() == Some("It is "));
    assert!(is_done.try_recv().is_err());
    unit.cancel(By::new("a test", "why not")).unwrap();
    is_done.recv().unwrap();
    provider.wait_until_hung_up();
}
