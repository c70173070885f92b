//! How it is called, and what is recorded of that.

use super::*;

fn arguments(executor: &ClaudeCli, scene: &Scene) -> Vec<String> {
    let invocation = executor.child(&scene.call());
    invocation.arguments.into_iter().map(|argument| argument.into_string().unwrap()).collect()
}

const ALWAYS: [&str; 3] = ["--print", "--output-format=stream-json", "--verbose"];

#[test]
fn the_prompt_is_no_argument_and_no_value_is_taken_for_an_option() {
    let executor = ClaudeCli::new()
        .model("--help")
        .allowed_tools(["Read", "Bash(git log *)"])
        .disallowed_tools(["Write"])
        .permission_mode("dontAsk")
        .system_prompt("-x")
        .append_system_prompt("be brief")
        .add_dir("/data")
        .json_schema(json!({ "type": "object" }))
        .argument("--effort")
        .argument("low")
        .bare()
        .stream_text();
    let scene = Scene::of(NewUnit::new("a"), "--version");
    let expected = [
        "--bare",
        "--include-partial-messages",
        "--model=--help",
        "--permission-mode=dontAsk",
        "--system-prompt=-x",
        "--append-system-prompt=be brief",
        "--json-schema={\"type\":\"object\"}",
        "--allowedTools=Read",
        "--allowedTools=Bash(git log *)",
        "--disallowedTools=Write",
        "--add-dir=/data",
        "--effort",
        "low",
    ];
    assert_eq!(arguments(&executor, &scene), [&ALWAYS[..], &expected].concat());
}

#[test]
fn the_session_of_an_earlier_attempt_is_carried_on_or_copied() {
    let session = "6cf4385f-55a3-4074-bbbb-811258de29c1";
    let resume = format!("--resume={session}");
    assert_eq!(arguments(&ClaudeCli::new(), &resumed(session))[3..], [resume.as_str()]);
    assert_eq!(
        arguments(&ClaudeCli::new().fork_session(), &resumed(session))[3..],
        [resume.as_str(), "--fork-session"]
    );
    assert_eq!(arguments(&ClaudeCli::new().fork_session(), &scene()), ALWAYS);
    assert_eq!(arguments(&ClaudeCli::new(), &resumed("")), ALWAYS);
}

#[test]
fn a_unit_says_itself_how_many_turns_it_may_take_and_none_is_one() {
    // 003-F39
    let unit = |turns| Scene::of(NewUnit::new("a").max_iterations(turns), PROMPT);
    let executor = ClaudeCli::new().max_turns(7);
    assert_eq!(arguments(&executor, &scene())[3..], ["--max-turns=7"]);
    assert_eq!(arguments(&executor, &unit(9))[3..], ["--max-turns=9"]);
    assert_eq!(arguments(&executor, &unit(0))[3..], ["--max-turns=1"]);
}

#[test]
fn what_is_left_of_what_the_unit_may_cost_is_passed_on() {
    let mut scene = Scene::of(NewUnit::new("a").max_cost("0.25".parse().unwrap()), PROMPT);
    assert_eq!(arguments(&ClaudeCli::new(), &scene)[3..], ["--max-budget-usd=0.25"]);
    scene.claim.unit.cost.amount = "0.249999999".parse().unwrap();
    assert_eq!(arguments(&ClaudeCli::new(), &scene)[3..], ["--max-budget-usd=0.000000001"]);
    // It counts what the process spends, not what the session has cost.
    scene.claim.resume_session = Some("s-1".to_owned());
    assert_eq!(arguments(&ClaudeCli::new(), &scene)[3..], ["--max-budget-usd=0.000000001", "--resume=s-1"]);
}

#[test]
fn it_runs_in_the_workspace_of_the_unit_and_else_where_it_is_told() {
    let executor = ClaudeCli::new().directory("/elsewhere");
    let workspace = Scene::of(NewUnit::new("a").workspace_dir("/workspace"), PROMPT);
    let directory = |executor: &ClaudeCli, scene: &Scene| executor.child(&scene.call()).directory;
    assert_eq!(directory(&executor, &workspace), Some("/workspace".into()));
    assert_eq!(directory(&executor, &scene()), Some("/elsewhere".into()));
    assert_eq!(directory(&ClaudeCli::new(), &scene()), None);
}

#[test]
fn limits_and_variables_are_passed_to_who_starts_it() {
    let limit = Duration::from_secs;
    let executor = ClaudeCli::new()
        .env("CLAUDE_CODE_MAX_RETRIES", "2")
        .pass_env("CLAUDE_CODE_OAUTH_TOKEN")
        .silence_limit(limit(60))
        .start_limit(limit(10));
    let child = executor.child(&scene().call());
    let host =
        ["CLAUDECODE", "CLAUDE_CODE_ENTRYPOINT", "CLAUDE_CODE_OAUTH_TOKEN", "ANTHROPIC_API_KEY", "OPENAI_API_KEY"];
    let host = host.map(|name| (OsString::from(name), OsString::from("host")));
    let expected =
        [("ANTHROPIC_API_KEY", "host"), ("CLAUDE_CODE_MAX_RETRIES", "2"), ("CLAUDE_CODE_OAUTH_TOKEN", "host")];
    let expected = expected.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    assert_eq!(child.environment.out_of(host), expected.into());
    let limits = child.limits;
    assert_eq!((limits.silence, limits.start, limits.after_answer), (Some(limit(60)), Some(limit(10)), limit(5)));
    let limits = ClaudeCli::new().after_result_limit(limit(1)).child(&scene().call()).limits;
    assert_eq!((limits.silence, limits.start, limits.after_answer), (None, None, limit(1)));
}

#[test]
fn nothing_that_may_be_a_secret_is_recorded() {
    let executor = ClaudeCli::new()
        .model("sonnet")
        .system_prompt("long ".repeat(100))
        .env("ANTHROPIC_API_KEY", "sk-secret")
        .pass_env("MY_TOKEN")
        .argument("--settings={\"env\":{\"KEY\":\"sk-secret\"}}")
        .argument("--mcp-config")
        .argument("sk-secret")
        .argument("-ksk-secret");
    let recorded = executor.recorded();
    assert_eq!((recorded.executor.as_str(), recorded.model.as_deref()), ("claude_cli", Some("sonnet")));
    assert!(recorded.arguments[4].starts_with("--system-prompt=(500 bytes, blake3 "));
    let rest = ["env:ANTHROPIC_API_KEY", "env:MY_TOKEN", "--settings=…", "--mcp-config", "…", "-k"];
    assert_eq!(recorded.arguments[5..], rest);
    assert!(!format!("{recorded:?}").contains("secret"));
}
