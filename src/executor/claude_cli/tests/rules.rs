//! What no capture shows: other versions, other orders, other ends.

use chrono::DateTime;
use serde_json::Value;

use super::*;
use crate::executor::agent_cli::replay::{checkpoint, cost, exit, shape, tokens, told_charges};
use crate::executor::process::{Heard, How, Reason};
use crate::executor::{CancelReason, Then};

fn play_lines(scene: &Scene, lines: &[Value], how: How) -> Played {
    let lines: Vec<String> = lines.iter().map(Value::to_string).collect();
    Played::of(ClaudeCli::new().reader(&scene.call()), scene, lines, &exit(how, ""))
}

fn init(version: &str) -> Value {
    json!({ "type": "system", "subtype": "init", "session_id": "s", "model": "m", "claude_code_version": version })
}

fn usage(input: u64, dollars: f64) -> Value {
    json!({ "m": { "inputTokens": input, "outputTokens": 10, "costUSD": dollars } })
}

/// A success without what newer versions say of the time since the result before.
fn success(total: Value, input: u64) -> Value {
    json!({
        "type": "result", "subtype": "success", "is_error": false, "result": "yes", "session_id": "s",
        "modelUsage": total, "usage": { "input_tokens": input, "output_tokens": 10 },
    })
}

#[test]
fn counters_without_a_difference_are_cumulative_within_the_process() {
    let scene = scene();
    let lines = [init("2.1.300"), success(usage(100, 0.5), 100), success(usage(300, 0.75), 200)];
    let charges = play_lines(&scene, &lines, How::Exited(0)).charges();
    assert_eq!((cost(&charges), tokens(&charges).input), ("$0.75".to_owned(), 300));
}

/// What each query of a process costs whose counters are these, with a conversation that was cleared before some of them.
fn costs_of_queries(queries: &[(bool, Value)]) -> Vec<String> {
    let mut spending = Spending::of_new_session();
    let cost_of = |(is_cleared, result): &(bool, Value)| {
        if *is_cleared {
            spending.cleared();
        }
        let (init, result) = (init("2.1.300"), result.clone());
        let (Value::Object(init), Value::Object(result)) = (init, result) else { panic!("they are objects") };
        spending.began(&init);
        spending.counted(&result);
        let cost = cost(&spending.charges());
        let next = std::mem::replace(&mut spending, Spending::of_new_session()).next_query();
        spending = next;
        cost
    };
    queries.iter().map(cost_of).collect()
}

#[test]
fn a_process_that_is_asked_again_has_each_query_pay_for_itself() {
    let result = |input: u64, dollars: f64| success(usage(input, dollars), 100);
    let counted = [(false, result(100, 0.25)), (false, result(200, 0.75)), (false, result(300, 0.75))];
    assert_eq!(costs_of_queries(&counted), ["$0.25", "$0.50", "$0.00"], "cumulative");
    let cleared = [(false, result(100, 0.25)), (true, result(300, 0.75)), (true, result(100, 0.25))];
    assert_eq!(costs_of_queries(&cleared), ["$0.25", "$0.75", "$0.25"], "from zero, also if there is more than before");
    let mut interrupted = result(0, 0.0);
    interrupted["modelUsage"] = json!({});
    interrupted["terminal_reason"] = "aborted_streaming".into();
    let costs = costs_of_queries(&[(false, interrupted), (true, result(100, 0.25))]);
    assert_eq!(costs, ["unknown", "$0.25"], "what was interrupted nobody has counted");
}

#[test]
fn counters_that_began_where_nobody_knows_give_no_cost_rather_than_a_wrong_one() {
    for (version, total, expected, input) in [
        // Seen to begin at zero.
        ("2.1.197", 5_000, "$0.50", 5_000),
        ("2.0.1", 5_000, "$0.50", 5_000),
        // All of it is this result's: they began at zero.
        ("2.1.300", 100, "$0.50", 100),
        // A subagent's, or the session's of before?
        ("2.1.300", 5_000, "unknown", 100),
        ("", 5_000, "unknown", 100),
    ] {
        let scene = resumed("s");
        let lines = [init(version), success(usage(total, 0.5), 100)];
        let charges = play_lines(&scene, &lines, How::Exited(0)).charges();
        assert_eq!((cost(&charges).as_str(), tokens(&charges).input), (expected, input), "{version} {total}");
        assert_eq!(told_charges(&scene), charges);
    }
}

#[test]
fn what_a_run_without_a_result_cost_is_unknown_and_never_nothing() {
    let scene = scene();
    let said = |id: &str, model: &str| {
        let usage = json!({ "input_tokens": 7, "output_tokens": 1 });
        json!({ "type": "assistant", "message": { "id": id, "model": model, "content": "x", "usage": usage } })
    };
    let mut begin = init("2.1.325");
    begin["model"] = json!("m[1m]");
    // Two lines of one message, one of another.
    let lines = [begin, said("1", "m"), said("1", "m"), said("2", "n")];
    let charges = play_lines(&scene, &lines, How::Signalled(9)).charges();
    let found: Vec<_> = charges.iter().map(|charge| (charge.model.as_str(), charge.tokens.input)).collect();
    assert_eq!(found, [("m[1m]", 7), ("n", 7)]);
    assert!(charges.iter().all(|charge| charge.is_estimated && charge.amount.is_none()));
}

#[test]
fn what_was_told_under_another_name_is_taken_back_by_the_result() {
    let scene = scene();
    let mut lines = [init("2.1.325"), success(json!({ "other": { "inputTokens": 1, "costUSD": 0.1 } }), 1)];
    lines[0]["model"] = json!("alias");
    let charges = play_lines(&scene, &lines, How::Exited(0)).charges();
    assert_eq!(cost(&charges), "$0.10");
    assert!(charges.iter().all(|charge| !charge.is_estimated));
}

#[test]
fn the_exit_code_and_an_error_after_a_success_do_not_undo_it() {
    let error = json!({ "type": "result", "subtype": "error_during_execution", "is_error": true, "errors": ["late"] });
    let lines = [success(usage(1, 0.1), 1), error];
    for how in [How::Exited(1), How::Signalled(9), How::Ended(Reason::Lingered)] {
        let played = play_lines(&scene(), &lines, how);
        assert_eq!(played.output(), "yes");
        assert_eq!(played.result.unwrap().json.unwrap()["error_after_success"], "late");
    }
}

#[test]
fn an_exit_of_zero_is_no_success_and_neither_is_the_subtype() {
    let no_result = play_lines(&scene(), &[init("2.1.325")], How::Exited(0));
    assert_eq!(no_result.failure(), ("no_result".to_owned(), Then::Retry));
    let error = json!({ "type": "result", "subtype": "success", "is_error": true, "result": "no" });
    assert_eq!(play_lines(&scene(), &[error], How::Exited(0)).failure(), ("agent".to_owned(), Then::Retry));
    let interrupted = json!({
        "type": "result", "subtype": "error_during_execution", "is_error": true, "terminal_reason": "aborted_streaming"
    });
    assert_eq!(play_lines(&scene(), &[interrupted], How::Exited(0)).failure().0, "interrupted");
}

#[test]
fn how_it_was_ended_is_the_kind_of_its_failure() {
    let limit = Duration::from_secs(5);
    for (how, kind) in [
        (How::Ended(Reason::Silent(limit)), "silent"),
        (How::Ended(Reason::NeverSpoke(limit)), "never_spoke"),
        (How::Ended(Reason::ClosedItsOutput), "no_result"),
        (How::Ended(Reason::Cancelled(CancelReason::TimedOut)), "timed_out"),
        (How::Ended(Reason::Cancelled(CancelReason::Requested)), "cancelled"),
        (How::Signalled(15), "killed"),
        (How::Exited(143), "killed"),
        (How::Exited(3), "no_result"),
    ] {
        assert_eq!(play_lines(&scene(), &[], how).failure(), (kind.to_owned(), Then::Retry), "{how:?}");
    }
}

#[test]
fn only_a_program_that_has_said_nothing_may_refuse_its_arguments() {
    let play = |lines: &[&str], stderr: &str| {
        let scene = scene();
        Played::of(ClaudeCli::new().reader(&scene.call()), &scene, lines, &exit(How::Exited(1), stderr)).failure().0
    };
    assert_eq!(play(&[], "warning\nerror: unknown option '--x'"), "invalid_arguments");
    assert_eq!(play(&["{}"], "error: unknown option '--x'"), "no_result");
    assert_eq!(play(&[], "error: out of memory"), "no_result");
    assert_eq!(play(&[], "Error: ENOSPC: no space left on device"), "no_result");
}

#[test]
fn a_named_session_that_is_not_there_ends_the_unit_and_an_attempts_own_is_left_out_next_time() {
    let capture = Capture::of("claude-resume-6-unknown");
    let id = "99999999-2222-4333-8444-555555555555";
    let named = Scene::of(NewUnit::new("a").resume_session(id), PROMPT);
    let failure = play(&ClaudeCli::new(), &named, &capture).failure();
    assert_eq!((failure, checkpoint(&named)), (("session_not_found".to_owned(), Then::GiveUp), None));

    let own = resumed(id);
    let failure = play(&ClaudeCli::new(), &own, &capture).failure();
    assert_eq!(failure, ("session_not_found".to_owned(), Then::Retry));
    let mut next = resumed(id);
    next.claim.checkpoint = checkpoint(&own);
    let arguments = ClaudeCli::new().child(&next.call()).arguments;
    assert!(!arguments.iter().any(|argument| argument.to_string_lossy().contains("--resume")));
    next.claim.resume_session = Some("another".to_owned());
    let arguments = ClaudeCli::new().child(&next.call()).arguments;
    assert!(arguments.contains(&"--resume=another".into()));
}

#[test]
fn a_quota_has_its_reset_from_the_event_or_from_behind_the_text() {
    let limited = |said: &str| json!({ "type": "result", "subtype": "success", "is_error": true, "api_error_status": 429, "result": said });
    let event = |number: i64| {
        let info = json!({ "status": "rejected", "resetsAt": number });
        json!({ "type": "rate_limit_event", "rate_limit_info": info })
    };
    let until = DateTime::from_timestamp(1_799_999_999, 0);
    for (lines, then) in [
        (vec![event(1_799_999_999), limited("x")], Then::Hold { until }),
        (vec![event(1_799_999_999_000), limited("x")], Then::Hold { until }),
        (vec![limited("Claude AI usage limit reached|1799999999")], Then::Hold { until }),
        (vec![limited("You've hit your limit")], Then::Hold { until: None }),
        // In the past.
        (vec![event(1), limited("You've hit your limit")], Then::Retry),
        (vec![limited("Server is temporarily limiting requests (not your usage limit)")], Then::Retry),
    ] {
        assert_eq!(play_lines(&scene(), &lines, How::Exited(1)).failure().1, then, "{lines:?}");
    }
}

#[test]
fn while_a_background_task_is_open_a_result_is_no_answer() {
    let tasks = |ids: &[&str]| {
        let tasks: Vec<Value> = ids.iter().map(|id| json!({ "task_id": id })).collect();
        json!({ "type": "system", "subtype": "background_tasks_changed", "tasks": tasks })
    };
    let started = json!({ "type": "system", "subtype": "task_started", "task_id": "b", "is_backgrounded": true });
    let ended = json!({ "type": "system", "subtype": "task_notification", "task_id": "b" });
    let unknown = json!({ "type": "prompt_suggestion" });
    let result = success(usage(1, 0.1), 1);
    let lines =
        [init(""), tasks(&["a"]), result.clone(), tasks(&[]), unknown, init(""), started, result, ended, init("")];
    let heard = play_lines(&scene(), &lines, How::Exited(0)).heard;
    let (more, answer, work) = (Heard::More, Heard::Answer, Heard::AtWork);
    assert_eq!(heard, [more, more, work, answer, more, work, more, work, answer, work]);
}

#[test]
fn what_is_not_known_is_kept_and_fails_nothing() {
    let lines = [
        json!({ "type": "hologram", "beam": [1] }),
        json!({ "subtype": "typeless" }),
        json!({ "type": 7 }),
        json!({ "type": "system" }),
        json!({ "type": "user", "message": "said on its behalf" }),
        json!({ "type": "user", "message": { "content": "bare" } }),
        json!({ "type": "user", "message": { "content": [{ "type": "tool_result", "tool_use_id": "t" }] } }),
        json!({ "type": "assistant", "message": { "content": [{ "type": "redacted_thinking" }, { "type": "video" }, 1] } }),
        json!({ "type": "assistant" }),
        json!({ "type": "stream_event", "event": { "type": "sideways" } }),
        json!({ "type": "result", "is_error": false, "modelUsage": 5, "usage": [], "result": null }),
    ];
    let scene = scene();
    let played = play_lines(&scene, &lines, How::Exited(0));
    assert_eq!(
        shape(&scene.messages()),
        "u:text s:(hologram) s:(unknown) s:(unknown) s:(system) u:text u:text t:answers a:thinking+(video)+(content) a: \
         s:(stream_event) s:(result)"
    );
    assert!(scene.messages()[1..].iter().all(|message| message.raw.is_some()));
    assert_eq!(played.result.unwrap().output, None);
}
