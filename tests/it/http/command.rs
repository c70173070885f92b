//! The command, with a model over HTTP.

use rustix::process::Signal;
use serde_json::json;

use super::provider::{Provider, Step, answer, json_answer, stream};
use super::speech;
use crate::command::{Scene, Started, until};

const KEY: &str = "sk-planted-0123456789abcdef";

#[test]
fn a_batch_is_asked_of_a_model_and_its_key_is_kept_nowhere() {
    let refused = json!({ "error": { "type": "overloaded_error", "message": format!("your key {KEY} has to wait") } });
    let provider = Provider::each(vec![
        vec![Step::Send(json_answer(529, &refused))],
        vec![Step::Send(stream(&speech::anthropic_text(&["It is ", "Paris."])))],
    ]);
    let scene = Scene::new();
    scene.write_units("units.jsonl", 3);
    let line = format!(
        "run units.jsonl --executor anthropic --model claude-x --base-url {} --max-tokens 77 --system-prompt Briefly --key-env MY_KEY --workers 1",
        provider.url
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let ran = Started::of(
        scene.command(&words).env("MY_KEY", KEY).env("RUST_LOG", "trace").env("HTTP_PROXY", "http://127.0.0.1:1"),
    )
    .end();
    let said = ran.well();
    assert_eq!(scene.count("COMPLETED"), 3);
    let asked = provider.all_asked();
    assert_eq!(asked.len(), 4);
    assert!(asked[1].head.contains(&format!("x-api-key: {KEY}")));
    let sent = &asked[1].body;
    assert_eq!(
        (&sent["model"], &sent["max_tokens"], &sent["system"]),
        (&json!("claude-x"), &json!(77), &json!("Briefly"))
    );
    for file in
        std::fs::read_dir(scene.path(".")).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file())
    {
        let bytes = std::fs::read(&file).unwrap();
        assert!(!bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()), "{}", file.display());
    }
    assert!(said.err.contains("POST http:") && !format!("{said:?}").contains(KEY), "all is logged but the key");
    // Another process need not be told again, but has to have the key.
    scene.write_units("units.jsonl", 4);
    let ran = Started::of(scene.command(&["run", "units.jsonl"]).env("MY_KEY", KEY)).end();
    ran.well();
    assert_eq!(scene.count("COMPLETED"), 4);
}

#[test]
fn a_key_that_comes_in_pieces_is_in_no_log_and_in_nothing_that_a_command_writes() {
    let (first, second) = KEY.split_at(11);
    // `user:` and the key.
    let packed = "Basic dXNlcjpzay1wbGFudGVkLTAxMjM0NTY3ODlhYmNkZWY=";
    let refused = json!({ "error": { "type": "invalid_request_error", "message": format!("no: {packed}") } });
    let text = |pieces: &[&str]| vec![Step::Send(stream(&speech::anthropic_text(pieces)))];
    let provider = Provider::each(vec![
        vec![Step::Send(json_answer(400, &refused))],
        vec![Step::Send(json_answer(401, &refused))],
        text(&["It is ", first, second, "."]),
        text(&["So it is."]),
    ]);
    let scene = Scene::new();
    scene.write_units("units.jsonl", 3);
    let run = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        Started::of(scene.command(&words).env("MY_KEY", KEY).env("RUST_LOG", "trace")).end()
    };
    let asks = format!("--executor anthropic --model m --base-url {} --key-env MY_KEY --workers 1", provider.url);
    let mut said = format!("{:?}", run(&format!("run units.jsonl {asks}")));
    assert!(said.contains("authentication: the provider says 401") && said.contains("[hidden]"), "{said}");
    said += &format!("{:?}", run("resume").code(1));
    for line in [
        "list --json",
        "show u0001",
        "show u0002 --json",
        "failures",
        "failures --json",
        "search hidden",
        "status",
        "export --raw",
        "export --format markdown",
        "report -o -",
        "doctor",
        "cost",
        "jobs --json",
        "verify",
    ] {
        said += &format!("{:?}", run(line));
    }
    assert!(said.contains("It is [hidden]."), "{said}");
    let files = std::fs::read_dir(scene.path(".")).unwrap().map(|entry| entry.unwrap().path());
    let written: Vec<u8> = files.filter(|path| path.is_file()).flat_map(|path| std::fs::read(path).unwrap()).collect();
    for trace in [
        KEY,
        "sk-planted-0123",
        "-0123456789abcdef",
        "stcGxhbnRlZC0wMTIzND",
        "LXBsYW50ZWQtMDEyMzQ1",
        "y1wbGFudGVkLTAxMjM0N",
    ] {
        assert!(!said.contains(trace), "{trace} was said");
        assert!(!written.windows(trace.len()).any(|part| part == trace.as_bytes()), "{trace} was written");
    }
}

#[test]
fn what_is_missing_is_said_before_anything_is_stored() {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 1);
    for (line, what) in [
        ("run units.jsonl --executor openai", "--model M"),
        ("run units.jsonl --executor openai --model m", "the variable `OPENAI_API_KEY` has no key"),
        ("run units.jsonl --executor openai --model m --base-url http://me:secret@x/", "kept with the job"),
        ("run units.jsonl --executor openai --model m --base-url nowhere", "the base URL has no scheme"),
    ] {
        let ran = scene.run(line).code(2);
        assert!(ran.err.contains(what), "{line}: {}", ran.err);
    }
    assert!(!scene.path("batch.db").exists());
}

/// A provider that refuses the second who asks, and the line that asks it with up to eight workers.
fn refusing_the_second(command: &str, pause: &str) -> (Provider, Vec<String>) {
    let limited = json!({ "error": { "type": "rate_limit_error", "message": "slow down" } }).to_string();
    let pause = pause.to_owned();
    let provider = Provider::new(move |number, _| match number {
        1 => vec![Step::Send(answer(429, &[("retry-after", &pause)], &limited))],
        _ => vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))],
    });
    let line = format!(
        "{command} --executor anthropic --model claude-x --base-url {} --key-env MY_KEY --workers 8 --adaptive",
        provider.url
    );
    (provider, line.split_whitespace().map(str::to_owned).collect())
}

#[test]
fn a_batch_begins_with_one_unit_at_a_time_and_has_fewer_again_when_one_is_refused() {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 6);
    let (_provider, words) = refusing_the_second("run units.jsonl --json", "0.2");
    let told = Started::of(scene.command(&words).env("MY_KEY", KEY)).end().well().json();
    let changes: Vec<_> = told.iter().filter(|event| event["event"] == "adapted").collect();
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert_eq!(
        (&changes[0]["from"], &changes[0]["to"], &changes[0]["reason"]),
        (&json!(1), &json!(2), &json!("grown"))
    );
    let refused = json!({ "refused": "rate_limited" });
    assert_eq!((&changes[1]["from"], &changes[1]["to"], &changes[1]["reason"]), (&json!(2), &json!(1), &refused));
    assert_eq!(scene.count("COMPLETED"), 6);
}

#[test]
fn whoever_looks_sees_that_there_may_be_fewer_workers_and_since_when() {
    let scene = Scene::new();
    scene.write_units("units.jsonl", 3);
    scene.run("queue units.jsonl").well();
    let (_provider, words) = refusing_the_second("worker --job units", "0.2");
    let worker = Started::of(scene.command(&words).env("MY_KEY", KEY).env("WORKCREW_PROGRESS", "20ms"));
    until("it is told", || scene.run("status").out.contains("may have 1 of 8 workers since its provider asked for"));
    scene.run("doctor").well().says("NOTE").says("may have 1 of 8 workers since its provider asked for fewer at 20");
    until("all is done", || scene.count("COMPLETED") == 3);
    worker.signal(Signal::INT);
    worker.end().tells(", 1 of 8 workers");
}
