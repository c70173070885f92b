//! That every run of the real program is understood, and nothing that it may print does harm.

use chrono::DateTime;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::conversation::Part;
use crate::executor::Then;
use crate::executor::agent_cli::replay::{
    Capture, Played, checkpoint, cost, exit, sessions, shape, tokens, told_charges,
};
use crate::executor::process::{Heard, How, Line, Reader};
use crate::executor::scene::{Scene, Told};
use crate::money::Tier;
use crate::unit::NewUnit;

const PROMPT: &str = "What is the answer?";

fn scene() -> Scene {
    Scene::of(NewUnit::new("a"), PROMPT)
}

fn resumed(thread: &str, checkpoint: Option<Value>) -> Scene {
    let mut scene = scene();
    scene.claim.resume_session = Some(thread.to_owned());
    scene.claim.checkpoint = checkpoint;
    scene
}

/// A dollar for a thousand tokens of input, ten for a thousand of output.
fn priced() -> CodexCli {
    let price = Price::new(DateTime::UNIX_EPOCH).input("1000".parse().unwrap()).output("10000".parse().unwrap());
    CodexCli::new().model("fake-1").price(price)
}

fn play(executor: &CodexCli, scene: &Scene, name: &str) -> Played {
    let capture = Capture::of(name);
    Played::of(executor.reader(&scene.call()), scene, &capture.lines, &capture.exit)
}

fn played(name: &str) -> (Scene, Played) {
    let scene = scene();
    let played = play(&priced(), &scene, name);
    (scene, played)
}

#[test]
fn every_captured_run_comes_to_what_it_came_to() {
    // name, kind of failure (none: success), what it cost, input and output tokens.
    let expected = [
        ("codex-badflag", "invalid_arguments", "$0.00", 0, 0),
        ("codex-cut", "", "$10.19", 10_040, 15),
        ("codex-cut-for-ever", "connection", "unknown", 0, 0),
        ("codex-e400", "invalid_request", "unknown", 0, 0),
        ("codex-e401", "authentication", "unknown", 0, 0),
        ("codex-e403", "authentication", "unknown", 0, 0),
        ("codex-e404", "model_not_found", "unknown", 0, 0),
        ("codex-empty", "invalid_arguments", "$0.00", 0, 0),
        ("codex-fork", "", "unknown", 0, 0),
        ("codex-insufficient-quota", "quota", "unknown", 0, 0),
        ("codex-maxtok", "max_tokens", "unknown", 0, 0),
        ("codex-nokey", "authentication", "unknown", 0, 0),
        ("codex-quota", "quota", "unknown", 0, 0),
        ("codex-r429", "rate_limited", "unknown", 0, 0),
        ("codex-r500", "overloaded", "unknown", 0, 0),
        ("codex-r503", "overloaded", "unknown", 0, 0),
        ("codex-resume-1", "", "$10.192", 10_042, 15),
        ("codex-resume-2", "", "unknown", 0, 0),
        ("codex-resume-unknown", "session_not_found", "$0.00", 0, 0),
        ("codex-sigTERM", "killed", "unknown", 0, 0),
        ("codex-text", "", "$10.19", 10_040, 15),
        ("codex-think", "", "$10.191", 10_041, 15),
        ("codex-tool-bash", "", "$20.465", 20_185, 28),
    ];
    let mut found = Vec::new();
    for name in Capture::names("codex") {
        let scene = match name.as_str() {
            "codex-resume-2" => resumed("01a1e1a5-2c2e-7b63-b4f6-346c8c1fb0ef", None),
            "codex-resume-unknown" => resumed("01a1e1a5-2c2e-7b63-b4f6-346c8c1fb0ff", None),
            "codex-fork" => resumed("01a1ebb8-26ea-75d2-aef8-8daced12c860", None),
            _ => scene(),
        };
        let (kind, charges) = match play(&priced(), &scene, &name).result {
            Ok(result) => (String::new(), result.charges),
            Err(error) => {
                let (failure, _, result) = error.into_parts();
                (failure.kind.as_str().to_owned(), result.charges)
            }
        };
        assert_eq!(told_charges(&scene), charges, "{name}: what is told is what is charged");
        let tokens = tokens(&charges);
        found.push((name, kind, cost(&charges), tokens.input, tokens.output));
    }
    for (found, (name, kind, cost, input, output)) in found.iter().zip(expected) {
        assert_eq!(*found, (name.to_owned(), kind.to_owned(), cost.to_owned(), input, output));
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn every_line_is_kept_as_it_came_and_the_thread_is_told_once() {
    for name in Capture::names("codex") {
        let (scene, _) = played(&name);
        let lines = Capture::of(&name).lines;
        let messages = scene.messages();
        assert_eq!(messages.len(), if lines.is_empty() { 0 } else { lines.len() + 1 }, "{name}");
        for (message, line) in messages.iter().skip(1).zip(&lines) {
            assert_eq!(message.raw.as_ref().unwrap().as_bytes(), line.as_bytes(), "{name}");
        }
        assert_eq!(sessions(&scene).len(), usize::from(!lines.is_empty()), "{name}");
    }
}

#[test]
fn commands_thoughts_and_warnings_are_told_apart() {
    for (name, expected) in [
        (
            "codex-tool-bash",
            "u:text s:(thread.started) s:(error) s:(turn.started) a:use command_execution t:answers a:text s:(turn.completed)",
        ),
        ("codex-think", "u:text s:(thread.started) s:(error) s:(turn.started) a:thinking a:text s:(turn.completed)"),
        ("codex-cut", "u:text s:(thread.started) s:(error) s:(turn.started) s:(error) a:text s:(turn.completed)"),
    ] {
        let (scene, played) = played(name);
        assert_eq!(shape(&scene.messages()), expected, "{name}");
        assert!(played.output().starts_with("Hello from the fake model."), "{name}");
    }
    let parts: Vec<Part> =
        played("codex-tool-bash").0.messages().into_iter().flat_map(|message| message.parts).collect();
    let command = json!({ "command": "/bin/bash -lc 'echo hello'" });
    assert_eq!(parts[4], Part::tool_use("item_1", "command_execution", command));
    assert_eq!(parts[5], Part::tool_result("item_1", "hello\n"));
}

#[test]
fn a_thread_that_is_carried_on_costs_what_was_added_to_it() {
    let (first, _) = played("codex-resume-1");
    let second = resumed("01a1e1a5-2c2e-7b63-b4f6-346c8c1fb0ef", checkpoint(&first));
    let mut charges = play(&priced(), &second, "codex-resume-2").charges();
    assert_eq!((tokens(&charges).input, tokens(&charges).output), (10_140, 15));
    charges.extend(told_charges(&first));
    // As the counters of the thread say: 20182 and 30.
    assert_eq!(cost(&charges), "$20.482");
    // What the third will need.
    assert_eq!(checkpoint(&second).unwrap()["codex_usage"], json!([20_182, 0, 0, 30, 0]));
}

#[test]
fn what_an_attempt_could_not_count_is_counted_by_the_next() {
    let (first, killed) = played("codex-sigTERM");
    assert_eq!(cost(&killed.charges()), "unknown");
    let second = resumed("01a1e1a4-9e27-7633-a99c-0fa46bc6cc29", checkpoint(&first));
    assert_eq!(cost(&play(&priced(), &second, "codex-resume-2").charges()), "$20.482");
}

#[test]
fn a_table_has_the_price_of_its_model_and_a_sum_is_no_long_prompt() {
    let price = Price::new(DateTime::UNIX_EPOCH).input("1000".parse().unwrap()).output("10000".parse().unwrap());
    let mut tier = Tier::above(10_000);
    tier.input = Some("2000".parse().unwrap());
    let prices = PriceTable::new().with("fake-1", price.tier(tier));
    let of_table = CodexCli::new().prices(prices.clone());
    assert_eq!(cost(&play(&of_table.clone().model("fake-1"), &scene(), "codex-text").charges()), "$10.19");
    for unknown in [of_table.clone(), of_table.model("fake-2")] {
        assert_eq!(cost(&play(&unknown, &scene(), "codex-text").charges()), "unknown");
    }
    let dearer = priced().prices(prices).price(Price::new(DateTime::UNIX_EPOCH));
    assert_eq!(cost(&play(&dearer, &scene(), "codex-text").charges()), "unknown", "its own price comes first");
}

#[test]
fn without_a_price_the_tokens_are_known_and_the_cost_is_not() {
    let scene = scene();
    let charges = play(&CodexCli::new(), &scene, "codex-text").charges();
    assert_eq!((cost(&charges).as_str(), tokens(&charges).input), ("unknown", 10_040));
    assert_eq!((charges[0].model.as_str(), charges[0].is_estimated), ("codex-default", false));
}

#[test]
fn what_was_cached_or_thought_is_counted_once() {
    let usage = json!({
        "input_tokens": 100, "cached_input_tokens": 60, "cache_write_input_tokens": 10, "output_tokens": 50,
        "reasoning_output_tokens": 20,
    });
    let lines = [json!({ "type": "turn.completed", "usage": usage }).to_string()];
    let scene = scene();
    let charges = Played::of(priced().reader(&scene.call()), &scene, lines, &exit(How::Exited(0), "")).charges();
    let tokens = charges[0].tokens;
    assert_eq!((tokens.input, tokens.cache_read, tokens.cache_write), (30, 60, 10));
    assert_eq!((tokens.output, tokens.reasoning), (30, 20));
}

#[test]
fn what_follows_a_failure_is_what_its_kind_says() {
    for (name, then) in [
        ("codex-e401", Then::Hold { until: None }),
        ("codex-nokey", Then::Hold { until: None }),
        ("codex-insufficient-quota", Then::Hold { until: None }),
        ("codex-r429", Then::Retry),
        ("codex-r503", Then::Retry),
        ("codex-cut-for-ever", Then::Retry),
        ("codex-sigTERM", Then::Retry),
        ("codex-e400", Then::GiveUp),
        ("codex-e404", Then::GiveUp),
        ("codex-maxtok", Then::GiveUp),
        ("codex-badflag", Then::GiveUp),
        ("codex-empty", Then::GiveUp),
    ] {
        assert_eq!(played(name).1.failure().1, then, "{name}");
    }
    let (scene, quota) = played("codex-quota");
    let Then::Hold { until: Some(until) } = quota.failure().1 else { panic!("it says until when") };
    // Others hear of it at once.
    let pause = (until - scene.call().clock.now().wall).to_std().unwrap();
    assert!(scene.told().contains(&Told::Hold(pause)));
}

#[test]
fn a_thread_that_is_not_there_ends_the_unit_that_names_it_and_is_left_out_by_the_next_attempt_otherwise() {
    let id = "01a1e1a5-2c2e-7b63-b4f6-346c8c1fb0ff";
    let named = Scene::of(NewUnit::new("a").resume_session(id), PROMPT);
    assert_eq!(play(&priced(), &named, "codex-resume-unknown").failure().1, Then::GiveUp);
    let own = resumed(id, None);
    assert_eq!(play(&priced(), &own, "codex-resume-unknown").failure().1, Then::Retry);
    let next = resumed(id, checkpoint(&own));
    assert_eq!(priced().child(&next.call()).arguments[3..], ["--model=fake-1", "-"]);
    assert_eq!(cost(&play(&priced(), &next, "codex-text").charges()), "$10.19");
}

#[test]
fn the_prompt_is_on_the_input_and_no_value_is_taken_for_an_option() {
    let executor = CodexCli::new()
        .model("-m")
        .sandbox("read-only")
        .add_dir("/data")
        .output_schema("/schema.json")
        .config("model_provider=\"fake\"")
        .argument("--ephemeral");
    let arguments = |executor: &CodexCli, scene: &Scene| executor.child(&scene.call()).arguments;
    let expected = [
        "exec",
        "--json",
        "--skip-git-repo-check",
        "--model=-m",
        "--sandbox=read-only",
        "--add-dir=/data",
        "--output-schema=/schema.json",
        "--config=model_provider=\"fake\"",
        "--ephemeral",
    ];
    assert_eq!(arguments(&executor, &scene()), [&expected[..], &["-"]].concat());
    let thread = resumed("--last", None);
    assert_eq!(arguments(&executor, &thread), [&expected[..], &["resume", "--", "--last", "-"]].concat());
    let fork = arguments(&executor.clone().fork_session(), &thread);
    assert_eq!(fork[9..], ["fork", "--", "--last", "-"]);
    let recorded = executor.config("model_providers.x={key=\"secret\"}").env("KEY", "secret").recorded();
    assert_eq!(recorded.arguments[7..], ["--config=…", "--config=…", "env:KEY", "--ephemeral"]);
    assert!(!format!("{recorded:?}").contains("secret"));
}

#[test]
fn with_a_schema_the_answer_is_the_result_and_must_be_json() {
    let executor = CodexCli::new().output_schema("/schema.json");
    let lines = |said: &str| {
        let item = json!({ "type": "agent_message", "text": said });
        [json!({ "type": "item.completed", "item": item }).to_string(), json!({ "type": "turn.completed" }).to_string()]
    };
    let scene = scene();
    let play = |said| Played::of(executor.reader(&scene.call()), &scene, lines(said), &exit(How::Exited(0), ""));
    assert_eq!(play("{\"answer\":42}").result.unwrap().json, Some(json!({ "answer": 42 })));
    assert_eq!(play("forty-two").failure(), ("no_structured_output".to_owned(), Then::Retry));
}

#[test]
fn a_turn_that_has_ended_is_an_answer_until_something_follows() {
    assert_eq!(played("codex-text").1.heard.last(), Some(&Heard::Answer));
    assert_eq!(played("codex-e401").1.heard.last(), Some(&Heard::Answer));
    let lines =
        ["turn.completed", "turn.started", "turn.failed", "error"].map(|kind| json!({ "type": kind }).to_string());
    let scene = scene();
    let played = Played::of(priced().reader(&scene.call()), &scene, lines, &exit(How::Exited(1), ""));
    assert_eq!(played.heard, [Heard::Answer, Heard::AtWork, Heard::Answer, Heard::More]);
    assert!(played.result.is_ok(), "an error after a success is recorded, not applied");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    #[test]
    fn captured_lines_cut_anywhere_and_arbitrary_bytes_do_no_harm(
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12),
        noise in prop::collection::vec(any::<u8>(), 1..100),
    ) {
        let all: Vec<String> = Capture::names("codex").iter().flat_map(|name| Capture::of(name).lines).collect();
        let scene = scene();
        let mut reader = priced().reader(&scene.call());
        let cut = picks.iter().map(|(line, cut)| {
            let line = line.get(&all[..]).as_bytes();
            line[..=cut.index(line.len())].to_vec()
        });
        for line in cut.chain([noise]) {
            reader.read(Line { bytes: &line, truncation: None }, &scene.call());
        }
        drop(reader.conclude(&exit(How::Exited(1), "no"), &scene.call()));
    }
}
