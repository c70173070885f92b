//! What each captured run comes to.

use std::time::Duration;

use chrono::DateTime;

use super::*;
use crate::conversation::Part;
use crate::executor::Then;
use crate::executor::agent_cli::replay::{cost, sessions, shape, tokens, told_charges};
use crate::executor::process::Heard;
use crate::executor::scene::Told;

const HELLO: &str = "Hello from the fake model.";

/// Which session each capture of a second run carries on.
fn scene_of(name: &str) -> Scene {
    match name {
        "claude-resume-2" => resumed("6cf4385f-55a3-4074-bbbb-811258de29c1"),
        "claude-resume-6-unknown" => resumed("99999999-2222-4333-8444-555555555555"),
        "claude-fork-2" => resumed("5a76762c-6765-4ea9-938e-bff6c7a8353e"),
        "claude197-resume-2" => resumed("025a07cf-96d9-4e1f-9aff-dd0fd8831442"),
        _ => scene(),
    }
}

#[test]
fn every_captured_run_comes_to_what_it_came_to() {
    // name, kind of failure (none: success), what it cost, input and output tokens.
    let expected = [
        ("claude-agent", "", "$0.057452", 13_508, 171),
        ("claude-badflag", "invalid_arguments", "$0.00", 0, 0),
        ("claude-budget", "cost_limit", "$2.010216", 2_554, 100_000),
        ("claude-credit", "quota", "$0.00", 0, 0),
        ("claude-cut0", "connection", "$0.00", 0, 0),
        ("claude-denied-write", "", "$0.022", 5_180, 64),
        ("claude-e400", "invalid_request", "$0.00", 0, 0),
        ("claude-e401-maxretries0", "authentication", "$0.00", 0, 0),
        ("claude-e403", "authentication", "$0.00", 0, 0),
        ("claude-e404", "model_not_found", "$0.00", 0, 0),
        ("claude-e413", "invalid_request", "$0.00", 0, 0),
        ("claude-empty", "invalid_arguments", "$0.00", 0, 0),
        ("claude-fork-1", "", "$0.010664", 2_541, 25),
        ("claude-fork-2", "", "$0.010848", 2_587, 25),
        ("claude-hooks", "", "$0.022148", 5_172, 73),
        ("claude-maxtok", "max_tokens", "$0.0448", 10_700, 100),
        ("claude-maxturns1", "max_turns", "$0.011012", 2_543, 42),
        ("claude-nokey", "authentication", "$0.00", 0, 0),
        ("claude-noverbose", "invalid_arguments", "$0.00", 0, 0),
        ("claude-partial", "", "$0.022152", 5_173, 73),
        ("claude-quota-5h", "quota", "$0.00", 0, 0),
        ("claude-r429", "", "$0.010672", 2_543, 25),
        ("claude-r429-inf-maxretries0", "rate_limited", "$0.00", 0, 0),
        ("claude-r500", "server_error", "$0.00", 0, 0),
        ("claude-r529", "overloaded", "$0.00", 0, 0),
        ("claude-refusal", "refused", "$0.021768", 5_182, 52),
        ("claude-resume-1", "", "$0.01068", 2_545, 25),
        ("claude-resume-2", "", "$0.010872", 2_593, 25),
        ("claude-resume-6-unknown", "session_not_found", "$0.00", 0, 0),
        ("claude-schema", "", "$0.010732", 2_543, 28),
        ("claude-schema-bad", "bad_structured_output", "$0.057864", 13_766, 140),
        ("claude-schema-never", "", "$0.021632", 5_158, 50),
        ("claude-sigKILL-stream", "killed", "unknown", 0, 0),
        ("claude-sigTERM-tool", "killed", "unknown", 2_545, 1),
        ("claude-sj-interrupt", "", "$0.010908", 2_602, 25),
        ("claude-sj-three", "", "$0.044864", 10_536, 136),
        ("claude-subscription-r429", "rate_limited", "$0.00", 0, 0),
        ("claude-text", "", "$0.010672", 2_543, 25),
        ("claude-think", "", "$0.010928", 2_542, 38),
        ("claude-too-long", "invalid_request", "$0.00", 0, 0),
        ("claude-tool-bash-allowed", "", "$0.022172", 5_178, 73),
        ("claude-tool-fail", "", "$0.02188", 5_160, 62),
        ("claude-tool-two", "", "$0.022716", 5_219, 92),
        ("claude197-resume-1", "", "$0.008975", 1_670, 25),
        ("claude197-resume-2", "", "$0.00925", 1_725, 25),
        ("claude197-text", "", "$0.00896", 1_667, 25),
        ("claude197-tool-bash", "", "$0.01897", 3_429, 73),
    ];
    let mut found = Vec::new();
    for name in Capture::names("claude") {
        let scene = scene_of(&name);
        let played = play(&ClaudeCli::new(), &scene, &Capture::of(&name));
        let (kind, charges) = match played.result {
            Ok(result) => (String::new(), result.charges),
            Err(error) => {
                let (failure, _, result) = error.into_parts();
                (failure.kind.as_str().to_owned(), result.charges)
            }
        };
        assert_eq!(told_charges(&scene), charges, "{name}: what is told is what is charged");
        assert!(charges.iter().all(|charge| charge.model.starts_with("claude-")), "{name}: {charges:?}");
        let tokens = tokens(&charges);
        found.push((name, kind, cost(&charges), tokens.input, tokens.output));
    }
    let expected = expected
        .map(|(name, kind, cost, input, output)| (name.to_owned(), kind.to_owned(), cost.to_owned(), input, output));
    for (found, expected) in found.iter().zip(&expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

#[test]
fn every_line_is_kept_as_it_came_and_the_session_is_told_once() {
    // 004-F28, 004-F29, 004-F35
    for name in Capture::names("claude") {
        let scene = scene_of(&name);
        let capture = Capture::of(&name);
        play(&ClaudeCli::new(), &scene, &capture);
        let messages = scene.messages();
        let mut lines = capture.lines.iter().filter(|line| !line.starts_with(r#"{"type":"stream_event""#));
        for (number, message) in messages.iter().enumerate() {
            if number == 0 {
                assert_eq!((message.text(), &message.raw), (PROMPT.to_owned(), &None), "{name}");
            } else {
                let raw = message.raw.as_ref().unwrap();
                assert_eq!(raw.as_bytes(), lines.next().unwrap().as_bytes(), "{name}: message {number}");
                assert!(!message.parts.is_empty(), "{name}: message {number} says nothing");
            }
        }
        assert_eq!(lines.next(), None, "{name}: a line was lost");
        let has_init = capture.lines.iter().any(|line| line.contains(r#""subtype":"init""#));
        assert_eq!(sessions(&scene).len(), usize::from(has_init), "{name}");
    }
}

#[test]
fn tools_thoughts_and_subagents_are_told_apart() {
    // 004-F36
    for (name, expected) in [
        ("claude-text", "u:text s:(init) a:text s:(result)"),
        ("claude-think", "u:text s:(init) s:(thinking_tokens) a:thinking a:text s:(result)"),
        ("claude-tool-two", "u:text s:(init) a:use Bash a:use Bash t:answers t:answers a:text s:(result)"),
        ("claude-tool-fail", "u:text s:(init) a:use Bash t:fails a:text s:(result)"),
        (
            "claude-hooks",
            "u:text s:(init) a:text a:use Bash s:(hook_started) s:(hook_response) t:answers a:text s:(hook_started) \
             s:(hook_response) s:(result)",
        ),
        ("claude-partial", "u:text s:(init) s:(status) a:text a:use Bash t:answers s:(status) a:text s:(result)"),
        (
            "claude-agent",
            "u:text s:(init) a:use Agent s:(background_tasks_changed) s:(task_started) t:answers a:(subagent)+text \
             a:(subagent)+use Bash s:(task_progress) a:text t:(subagent)+answers a:(subagent)+text s:(task_updated) \
             s:(task_notification) s:(background_tasks_changed) s:(init) a:text s:(result) s:(result)",
        ),
        ("claude-schema-never", "u:text s:(init) a:text u:text a:text s:(result)"),
        ("claude-r429", "u:text s:(init) s:(api_retry) a:text s:(result)"),
        ("claude-e400", "u:text s:(init) s:text+(error) s:(result)"),
        ("claude-sigKILL-stream", "u:text s:(init)"),
        ("claude-noverbose", ""),
    ] {
        let (scene, _) = played(name);
        assert_eq!(shape(&scene.messages()), expected, "{name}");
    }
    let (scene, _) = played("claude-tool-two");
    let results: Vec<Part> = scene.messages().into_iter().flat_map(|message| message.parts).collect();
    // In the order in which they were done, not in which they were asked for.
    assert_eq!(results[4], Part::tool_result("toolu_63c2877d98b444f5a573c3fc", "two"));
    assert_eq!(results[5], Part::tool_result("toolu_d20435b8b7eb44318c3cb4e0", "one"));
}

#[test]
fn a_text_is_told_while_it_is_written_and_its_message_takes_its_place() {
    let (scene, _) = played("claude-partial");
    let partials: Vec<String> = scene
        .told()
        .into_iter()
        .filter_map(|told| if let Told::Partial(text) = told { Some(text) } else { None })
        .collect();
    assert_eq!(partials[..2], ["I will run ", "I will run a command."]);
    assert_eq!(partials[2], "Hello from the fake ");
    assert!(partials.last().unwrap().ends_with("tool_results=1"));
}

#[test]
fn a_session_that_is_carried_on_costs_the_same_in_all_versions() {
    for (first, second, total) in [
        ("claude-resume-1", "claude-resume-2", "$0.021552"),
        ("claude-fork-1", "claude-fork-2", "$0.021512"),
        ("claude197-resume-1", "claude197-resume-2", "$0.018225"),
    ] {
        let mut charges = played(first).1.charges();
        let scene = scene_of(second);
        charges.extend(play(&ClaudeCli::new(), &scene, &Capture::of(second)).charges());
        assert_eq!(cost(&charges), total, "{second}");
    }
}

#[test]
fn the_answer_is_the_output_and_the_last_of_several() {
    let (_, text) = played("claude-text");
    assert_eq!(text.output(), format!("{HELLO} scenario=text nth=1 user_msgs=1 tool_results=0"));
    let result = text.result.unwrap();
    assert_eq!(result.session_id.as_deref(), Some("81bc85d6-7dc9-45f4-96cc-100ef195f68b"));
    assert_eq!(result.json.unwrap()["permission_denials"], json!([]));
    let (_, agent) = played("claude-agent");
    assert_eq!(agent.output(), format!("{HELLO} scenario=agent nth=3 user_msgs=3 tool_results=1"));
    // An error that comes before a success is over.
    let (_, interrupted) = played("claude-sj-interrupt");
    assert_eq!(interrupted.output(), format!("{HELLO} scenario=text nth=1 user_msgs=2 tool_results=0"));
    let (_, denied) = played("claude-denied-write");
    assert_eq!(denied.result.unwrap().json.unwrap()["permission_denials"][0]["tool_name"], "Write");
}

#[test]
fn with_a_schema_the_result_is_what_was_asked_for_and_an_answer_without_it_is_a_failure() {
    let scene = scene();
    let met = play(&with_schema(), &scene, &Capture::of("claude-schema"));
    assert_eq!(met.output(), "{\"answer\":42}");
    assert_eq!(met.result.unwrap().json, Some(json!({ "answer": 42 })));
    let never = play(&with_schema(), &scene, &Capture::of("claude-schema-never"));
    assert_eq!(never.failure(), ("no_structured_output".to_owned(), Then::Retry));
    let bad = play(&with_schema(), &scene, &Capture::of("claude-schema-bad"));
    assert_eq!(bad.failure(), ("bad_structured_output".to_owned(), Then::GiveUp));
}

#[test]
fn what_follows_a_failure_is_what_its_kind_says() {
    let reset = DateTime::from_timestamp(1_799_999_999, 0);
    for (name, then) in [
        ("claude-r429-inf-maxretries0", Then::Retry),
        ("claude-subscription-r429", Then::Retry),
        ("claude-r529", Then::Retry),
        ("claude-r500", Then::Retry),
        ("claude-cut0", Then::Retry),
        ("claude-quota-5h", Then::Hold { until: reset }),
        ("claude-credit", Then::Hold { until: None }),
        ("claude-e401-maxretries0", Then::Hold { until: None }),
        ("claude-e403", Then::Hold { until: None }),
        ("claude-nokey", Then::Hold { until: None }),
        ("claude-e400", Then::GiveUp),
        ("claude-e404", Then::GiveUp),
        ("claude-e413", Then::GiveUp),
        ("claude-too-long", Then::GiveUp),
        ("claude-maxturns1", Then::GiveUp),
        ("claude-budget", Then::GiveUp),
        ("claude-refusal", Then::GiveUp),
        ("claude-maxtok", Then::GiveUp),
        ("claude-badflag", Then::GiveUp),
        ("claude-empty", Then::GiveUp),
        ("claude-noverbose", Then::GiveUp),
        ("claude-sigKILL-stream", Then::Retry),
        ("claude-sigTERM-tool", Then::Retry),
    ] {
        assert_eq!(played(name).1.failure().1, then, "{name}");
    }
}

#[test]
fn the_pause_that_was_asked_for_is_honoured() {
    let mut capture = Capture::of("claude-r429-inf-maxretries0");
    capture.lines.insert(1, Capture::of("claude-r429").lines[1].clone());
    let scene = scene();
    let played = play(&ClaudeCli::new(), &scene, &capture);
    // Who is one of too many is not to blame: all wait.
    let until = scene.call().clock.now().wall + Duration::from_secs(2);
    assert_eq!(played.failure(), ("rate_limited".to_owned(), Then::Hold { until: Some(until) }));
}

#[test]
fn that_others_are_to_wait_is_told_at_once_also_if_it_then_goes_well() {
    let held = |name: &str| {
        let (scene, _) = played(name);
        let pause = |told| if let Told::Hold(pause) = told { Some(pause) } else { None };
        let until = |pause: Duration| (scene.call().clock.now().wall + pause).timestamp();
        scene.told().into_iter().filter_map(pause).map(until).collect::<Vec<_>>()
    };
    let now = scene().call().clock.now().wall.timestamp();
    assert_eq!(held("claude-r429"), [now + 2]);
    assert_eq!(held("claude-quota-5h"), [1_799_999_999]);
    for name in ["claude-subscription-r429", "claude-r500", "claude-r529", "claude-text"] {
        assert_eq!(held(name), [0; 0], "{name}");
    }
}

#[test]
fn a_failure_says_what_the_program_said() {
    let message = |name: &str| played(name).1.result.unwrap_err().to_string();
    assert_eq!(message("claude-e400"), "invalid_request: API Error: 400 messages: something is wrong (fake)");
    assert_eq!(message("claude-maxturns1"), "max_turns: Reached maximum number of turns (1)");
    assert_eq!(
        message("claude-noverbose"),
        "invalid_arguments: `claude` ended with exit code 1 and without a result: Error: When using --print, \
         --output-format=stream-json requires --verbose"
    );
    assert_eq!(message("claude-sigKILL-stream"), "killed: `claude` was ended by signal 9 before it had a result");
}

#[test]
fn a_result_is_an_answer_unless_something_works_in_the_background() {
    let (_, text) = played("claude-text");
    assert_eq!(text.heard, [Heard::More, Heard::More, Heard::Answer]);
    let (_, agent) = played("claude-agent");
    assert_eq!(agent.heard[16..], [Heard::Answer, Heard::Answer]);
    assert!(agent.heard[..16].iter().all(|heard| *heard == Heard::More));
    let (_, three) = played("claude-sj-three");
    let told: Vec<Heard> = three.heard.into_iter().filter(|heard| *heard != Heard::More).collect();
    let (answer, work) = (Heard::Answer, Heard::AtWork);
    assert_eq!(told, [answer, work, answer, work, answer]);
}
