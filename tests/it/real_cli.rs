//! The real Claude Code and Codex through whole pools, without a network: `.ci/real-cli cargo test --test it -- --ignored real_cli`.
//!
//! That script brings the programs and the server they talk to, `tests/real_cli/fake_models.py`, which plays what a prompt asks for and
//! bills every answer. So each test says in its prompt what the model does, and knows afterwards what that has cost. Every process has
//! a mark, and a home of its own with nothing in it: no settings of whoever runs this, no scripts of a login shell.

mod session;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;
use workcrew::attempt::OutputFile;
use workcrew::audit::verify::Verify;
use workcrew::chain::Hash;
use workcrew::clock::ManualClock;
use workcrew::executor::kinds;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::{
    Archive, Attempt, Charge, ClaudeCli, CodexCli, Completion, Cost, Executor, JobId, Message, Money, NewJob, NewUnit,
    Outcome, Part, Price, Repository, RetryPolicy, SqliteRepository, Stop, Tokens, UnitStatus, WorkPool,
    WorkPoolBuilder, WorkUnit,
};

use crate::commands::{MARK, marked, until};
use crate::examples::{example, printed};
use crate::support::{self, Up as _};

/// Far longer than anything takes here, on a machine that does much else: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// How long a unit may take, by a clock that stands still unless a test moves it.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What the server bills for each answer.
const ANSWER: Tokens = Tokens { input: 1_000, output: 100, cache_read: 0, cache_write: 0, reasoning: 0 };

/// What `.ci/real-cli` says about where things are.
fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run this through `.ci/real-cli`"))
}

/// A database, a workspace and a home, in a folder whose name marks every process.
struct World {
    folder: TempDir,
    repository: SqliteRepository,
    clock: ManualClock,
    job: JobId,
}

impl World {
    fn new() -> World {
        let (folder, clock) = (support::folder(), ManualClock::new());
        for name in ["work", "home"] {
            fs::create_dir(folder.path().join(name)).unwrap();
        }
        let repository = SqliteOptions::new().clock(clock.clone()).open(folder.path().join("agents.db")).unwrap();
        let job = repository.create_job(&NewJob::named("agents")).unwrap().id;
        World { folder, repository, clock, job }
    }

    fn mark(&self) -> &str {
        self.folder.path().file_name().unwrap().to_str().unwrap()
    }

    fn home(&self) -> PathBuf {
        self.folder.path().join("home")
    }

    /// A path in the workspace.
    fn work(&self, name: &str) -> String {
        self.folder.path().join("work").join(name).to_str().unwrap().to_owned()
    }

    /// Claude Code, which may use a shell and write files, and fails at the first error of the server.
    fn claude(&self) -> ClaudeCli {
        ClaudeCli::new()
            .program(given("WORKCREW_REAL_CLAUDE"))
            .model("opus")
            .allowed_tools(["Bash", "Write"])
            .env(MARK, self.mark())
            .env("HOME", self.home())
            .env("ANTHROPIC_BASE_URL", given("WORKCREW_MODELS_URL"))
            .env("ANTHROPIC_API_KEY", "no key")
            .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
            .env("CLAUDE_CODE_MAX_RETRIES", "0")
    }

    /// Codex, which may do anything, and fails at the first error of the server.
    fn codex(&self) -> CodexCli {
        let provider = format!(
            r#"{{name="fake",base_url="{}/v1",env_key="FAKE_KEY",wire_api="responses",request_max_retries=0,stream_max_retries=0}}"#,
            given("WORKCREW_MODELS_URL"),
        );
        CodexCli::new()
            .program(given("WORKCREW_REAL_CODEX"))
            .model("fake-1")
            .price(price())
            .sandbox("danger-full-access")
            .config("model_provider=fake")
            .config(format!("model_providers.fake={provider}"))
            .config("analytics.enabled=false")
            .argument("--disable=plugins")
            .env(MARK, self.mark())
            .env("HOME", self.home())
            .env("FAKE_KEY", "no key")
    }

    fn pool(&self, executor: impl Executor) -> WorkPoolBuilder {
        WorkPool::builder(self.job, executor, self.repository.clone())
            .clock(self.clock.clone())
            .retry(RetryPolicy::immediate())
            .timeout(TIMEOUT)
            // A test that lets a timeout pass in a moment is not about leases.
            .lease(Duration::from_secs(30 * 24 * 3_600))
    }

    /// Runs a unit to its end, in the workspace.
    fn run(&self, executor: impl Executor, unit: NewUnit, steps: &Value) -> WorkUnit {
        let pool = self.pool(executor).up();
        let unit = unit.workspace_dir(self.work(""));
        let prompt = self.prompt(&unit.id, steps);
        let unit = pool.enqueue(unit, prompt).unwrap().wait_timeout(PATIENCE).unwrap();
        pool.stop(Stop::Drain).unwrap();
        unit
    }

    /// A prompt of this name that has the model do this.
    fn prompt(&self, name: &str, steps: &Value) -> String {
        format!("Do as you are told. PLAY {}", json!({ "run": self.run_of(name), "steps": steps }))
    }

    fn run_of(&self, name: &str) -> String {
        format!("{}/{name}", self.mark())
    }

    fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.repository.attempts(self.repository.unit(self.job, id).unwrap().key).unwrap()
    }

    /// How each attempt of a unit ended, and why.
    fn ends(&self, id: &str) -> Vec<(Outcome, Option<String>)> {
        let kind = |attempt: &Attempt| attempt.failure.as_ref().map(|failure| failure.kind.as_str().to_owned());
        self.attempts(id).iter().map(|attempt| (attempt.outcome.unwrap(), kind(attempt))).collect()
    }

    /// The conversation of an attempt.
    fn messages(&self, attempt: &Attempt) -> Vec<Message> {
        let messages = self.repository.messages(attempt.key, 0, 1_000).unwrap().items;
        messages.iter().map(|stored| stored.message().unwrap().unwrap()).collect()
    }

    /// All parts of all that was said for a unit.
    fn parts(&self, id: &str) -> Vec<Part> {
        let messages = self.attempts(id).into_iter().flat_map(|attempt| self.messages(&attempt));
        messages.flat_map(|message| message.parts).collect()
    }

    /// The statuses with which the server answered a prompt, in order.
    fn answered(&self, name: &str) -> Vec<u64> {
        let run = Value::from(self.run_of(name));
        let requests = requests().into_iter().filter(|request| request["run"] == run);
        requests.map(|request| request["status"].as_u64().unwrap()).collect()
    }

    /// What the server has billed for a prompt.
    fn billed(&self, name: &str) -> Tokens {
        let answers = self.answered(name).into_iter().filter(|&status| status == 200);
        answers.fold(Tokens::default(), |sum, _| sum + ANSWER)
    }

    /// Nothing is left, every attempt has its conversation and its session, and nothing is wrong in the database.
    fn assert_clean(&self) {
        assert_eq!(marked(self.mark()), Vec::<u32>::new(), "nothing is left");
        for unit in self.repository.units(&workcrew::repository::UnitFilter::job(self.job), 0, 100).unwrap().items {
            for attempt in self.repository.attempts(unit.key).unwrap() {
                let messages = self.messages(&attempt);
                assert_eq!(messages[0].text(), unit.prompt.as_deref().unwrap(), "{}: the prompt comes first", unit.id);
                assert!(messages.len() > 2 && messages[1..].iter().all(|message| message.raw.is_some()), "{}", unit.id);
                assert!(attempt.session_id.is_some() && attempt.process.is_some(), "{}", unit.id);
            }
        }
        let verification = Verify::new().settled().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }
}

/// What the server was asked so far, by all tests.
fn requests() -> Vec<Value> {
    let log = fs::read_to_string(given("WORKCREW_MODELS_LOG")).unwrap();
    // The last line may be on its way, for another test.
    let whole = log.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    whole.map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// What this version of Claude Code takes for its `opus`, and what Codex is told to take.
fn price() -> Price {
    let dollars = |dollars: &str| dollars.parse::<Money>().unwrap();
    Price::new("2026-01-01T00:00:00Z".parse().unwrap())
        .input(dollars("4"))
        .output(dollars("20"))
        .cache_read(dollars("0.4"))
        .cache_write(dollars("5"))
        .reasoning(dollars("20"))
}

fn cost(tokens: Tokens) -> Cost {
    Cost { amount: price().amount(&tokens).unwrap(), unpriced: 0 }
}

fn say(text: &str) -> Value {
    json!({ "say": text })
}

fn bash(command: &str) -> Value {
    json!(["Bash", { "command": command, "description": "a test" }])
}

fn exec(command: &str) -> Value {
    json!(["exec_command", { "cmd": command }])
}

/// Says that it is there, and never ends: neither it nor what it started in a session of its own.
fn endless(started: &str) -> String {
    format!("setsid sh -c 'trap \"\" TERM HUP INT; sleep 9999; sleep 9999' & echo $! > {started}; sleep 9999")
}

fn made(path: &str, text: &str) -> OutputFile {
    OutputFile { path: path.to_owned(), size_bytes: text.len() as u64, hash: Hash::of(text.as_bytes()) }
}

fn failed(kind: &str) -> (Outcome, Option<String>) {
    (Outcome::Failed, Some(kind.to_owned()))
}

const COMPLETED: (Outcome, Option<String>) = (Outcome::Completed, None);

/// The calls of tools in a conversation: name, and what came back.
fn tool_calls(parts: &[Part]) -> BTreeSet<(String, String)> {
    let answer = |wanted: &str| {
        parts.iter().find_map(|part| match part {
            Part::ToolResult { tool_use_id, content, is_error: false } if tool_use_id == wanted => Some(
                content.iter().map(|part| if let Part::Text { text } = part { text.trim() } else { "?" }).collect(),
            ),
            _ => None,
        })
    };
    let call = |part: &Part| match part {
        Part::ToolUse { id, name, .. } => Some((name.clone(), answer(id).unwrap_or_default())),
        _ => None,
    };
    parts.iter().filter_map(call).collect()
}

fn is_retry(part: &Part) -> bool {
    matches!(part, Part::Other { value, .. } if value.to_string().contains("api_retry"))
        || matches!(part, Part::Other { kind, .. } if kind.contains("api_retry"))
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn claude_answers() {
    let world = World::new();
    let unit = world.run(world.claude(), NewUnit::new("a"), &json!([say("Paris.")]));
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("Paris.")));
    assert_eq!((unit.tokens, unit.cost), (ANSWER, cost(ANSWER)));
    assert_eq!(world.answered("a"), [200]);
    assert_eq!(unit.result.unwrap()["num_turns"], 1);
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn claude_uses_tools_and_the_files_that_it_writes_are_listed() {
    let world = World::new();
    let write = json!(["Write", { "file_path": world.work("deep/new.txt"), "content": "new\n" }]);
    let steps = json!([
        { "use": [bash("pwd; printf shell > shell.txt")] },
        { "use": [write] },
        say("done")
    ]);
    let unit = world.run(world.claude(), NewUnit::new("a").output_file("shell.txt"), &steps);
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("done")));
    assert_eq!(unit.output_files, [made("deep/new.txt", "new\n"), made("shell.txt", "shell")]);
    let calls = tool_calls(&world.parts("a"));
    assert!(calls.contains(&("Bash".to_owned(), world.work("").trim_end_matches('/').to_owned())), "{calls:?}");
    assert!(calls.iter().any(|(name, answer)| name == "Write" && answer.contains("new.txt")), "{calls:?}");
    assert_eq!((unit.tokens, unit.cost), (world.billed("a"), cost(world.billed("a"))));
    assert_eq!(world.answered("a"), [200, 200, 200]);
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn claude_uses_two_tools_at_once() {
    let world = World::new();
    let steps = json!([{ "use": [bash("echo one"), bash("echo two")] }, say("both")]);
    let unit = world.run(world.claude(), NewUnit::new("a"), &steps);
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("both")));
    let expected = ["one", "two"].map(|answer| ("Bash".to_owned(), answer.to_owned()));
    assert_eq!(tool_calls(&world.parts("a")), expected.into());
    assert_eq!((unit.tokens, unit.cost), (world.billed("a"), cost(world.billed("a"))));
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn too_many_requests_are_tried_again_by_claude_itself_and_else_by_the_pool() {
    let limit = json!({ "fail": 429, "error": "rate_limit_error", "retry_after": 1 });
    let steps = json!([limit, say("at last")]);
    for (retries, ends) in [("5", vec![COMPLETED]), ("0", vec![failed(kinds::RATE_LIMITED), COMPLETED])] {
        let world = World::new();
        let unit = world.run(world.claude().env("CLAUDE_CODE_MAX_RETRIES", retries), NewUnit::new("a"), &steps);
        assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("at last")));
        assert_eq!(world.ends("a"), ends);
        assert_eq!(world.parts("a").iter().any(is_retry), ends.len() == 1, "claude tells that it tries again");
        assert_eq!(world.answered("a"), [429, 200]);
        assert_eq!((unit.tokens, unit.cost), (ANSWER, cost(ANSWER)));
        world.assert_clean();
    }
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_request_of_claude_that_is_refused_is_not_tried_again() {
    let world = World::new();
    let refusal = json!({ "fail": 400, "error": "invalid_request_error", "message": "messages: it cannot be" });
    let unit = world.run(world.claude(), NewUnit::new("a"), &json!([refusal]));
    let failure = unit.failure.unwrap();
    assert_eq!((unit.status, failure.kind.as_str()), (UnitStatus::Failed, kinds::INVALID_REQUEST));
    assert!(failure.message.contains("it cannot be"), "{failure}");
    assert_eq!(world.ends("a"), [failed(kinds::INVALID_REQUEST)]);
    // It asks again by itself, in other words; the pool does not.
    assert!(world.answered("a").iter().all(|&status| status == 400));
    assert_eq!(unit.cost, cost(Tokens::default()));
    world.assert_clean();
}

/// A wrong key holds the pool until a person has seen to it; then the unit is executed, and no attempt was used up.
fn a_wrong_key_holds_the_pool(world: &World, executor: impl Executor) {
    let pool = world.pool(executor).up();
    let wrong_key = json!({ "fail": 401, "error": "authentication_error", "message": "invalid x-api-key" });
    let prompt = world.prompt("a", &json!([wrong_key, say("a better key")]));
    let handle = pool.enqueue(NewUnit::new("a").max_retries(0), prompt).unwrap();
    let blocked = pool.wait_for_completion_timeout(PATIENCE);
    assert!(
        matches!(&blocked, Completion::Blocked(reason) if reason.starts_with(kinds::AUTHENTICATION)),
        "{blocked:?}"
    );
    let unit = handle.unit().unwrap();
    assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Pending, 0));
    pool.resume();
    let unit = handle.wait_timeout(PATIENCE).unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("a better key")));
    let outcomes: Vec<_> = world.attempts("a").iter().map(|attempt| attempt.outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Released, Outcome::Completed]);
    assert_eq!(world.answered("a"), [401, 200]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_wrong_key_of_claude_holds_the_pool() {
    let world = World::new();
    a_wrong_key_holds_the_pool(&world, world.claude());
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn claude_takes_no_more_turns_than_it_may() {
    let world = World::new();
    let unit = NewUnit::new("a").max_iterations(2);
    let unit = world.run(world.claude(), unit, &json!([{ "use": [bash("echo again")] }]));
    assert_eq!(unit.status, UnitStatus::Failed);
    assert_eq!(world.ends("a"), [failed(kinds::MAX_TURNS)]);
    assert_eq!(world.answered("a"), [200, 200]);
    assert_eq!((unit.tokens, unit.cost), (world.billed("a"), cost(world.billed("a"))));
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn claude_stops_when_its_unit_has_cost_what_it_may_whatever_its_session_has_cost() {
    let world = World::new();
    let first = world.run(world.claude(), NewUnit::new("first"), &json!([{ "use": [bash("echo 1")] }, say("one")]));
    let answer = cost(ANSWER).amount;
    // Two answers cost a little more than that, and so does the session already.
    let unit = NewUnit::new("a").max_cost(answer + answer - Money::from_nanos(1)).max_retries(1_000);
    let unit = unit.resume_session(first.session_id.unwrap());
    let unit = world.run(world.claude(), unit, &json!([{ "use": [bash("echo again")] }]));
    assert_eq!((unit.status, world.answered("a")), (UnitStatus::Failed, vec![200, 200]));
    assert_eq!(world.ends("a"), [failed(kinds::COST_LIMIT)]);
    assert_eq!((unit.tokens, unit.cost), (world.billed("a"), cost(world.billed("a"))));
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn units_and_attempts_that_carry_on_a_session_of_claude_cost_what_was_billed() {
    let world = World::new();
    let first = world.run(world.claude(), NewUnit::new("first"), &json!([{ "use": [bash("echo 1")] }, say("one")]));
    let session = first.session_id.clone().unwrap();
    // Its first attempt is cut short after the model has answered once.
    let steps = json!([{ "use": [bash("echo 2")] }, { "fail": 500 }, say("two")]);
    let second = world.run(world.claude(), NewUnit::new("second").resume_session(&session), &steps);
    let third = world.run(world.claude(), NewUnit::new("third").resume_session(&session), &json!([say("three")]));
    for (unit, answered) in [(&first, &[200, 200][..]), (&second, &[200, 500, 200]), (&third, &[200])] {
        let id = unit.id.as_str();
        assert_eq!((unit.status, unit.session_id.as_ref()), (UnitStatus::Completed, Some(&session)), "{id}");
        assert_eq!(world.answered(id), answered, "{id}");
        assert_eq!((unit.tokens, unit.cost), (world.billed(id), cost(world.billed(id))), "{id}");
    }
    assert_eq!(world.ends("second"), [failed(kinds::SERVER_ERROR), COMPLETED]);
    let everything = world.repository.costs(Some(world.job)).unwrap();
    let billed =
        ["first", "second", "third"].map(|id| world.billed(id)).into_iter().fold(Tokens::default(), |a, b| a + b);
    assert_eq!((everything.tokens(), everything.total()), (billed, cost(billed)));
    world.assert_clean();
}

/// A timeout while a tool runs, in a session of its own, ends all of it.
fn a_timeout_ends_a_tool_that_runs(world: &World, executor: impl Executor, tool: &Value) {
    let pool = world.pool(executor).up();
    let prompt = world.prompt("a", &json!([{ "use": [tool] }, say("too late")]));
    let unit = NewUnit::new("a").max_retries(0).workspace_dir(world.work(""));
    let handle = pool.enqueue(unit, prompt).unwrap();
    until("the tool has started", || fs::read_to_string(world.work("started")).is_ok_and(|pid| pid.ends_with('\n')));
    let escaped: u32 = fs::read_to_string(world.work("started")).unwrap().trim().parse().unwrap();
    // Its environment cannot be read in the moment in which it becomes another program.
    until("what left is found by its mark", || marked(world.mark()).contains(&escaped));
    let uses_tool = || world.parts("a").iter().any(|part| matches!(part, Part::ToolUse { .. }));
    until("the agent has said so", uses_tool);
    world.clock.advance(TIMEOUT);
    let unit = handle.wait_timeout(PATIENCE).unwrap();
    assert_eq!(unit.status, UnitStatus::Failed);
    assert_eq!(world.ends("a"), [(Outcome::TimedOut, Some(kinds::TIMED_OUT.to_owned()))]);
    assert!(uses_tool(), "what was said is kept");
    assert_eq!(world.answered("a"), [200]);
    assert!(!unit.cost.is_known(), "nobody has counted what it cost");
    assert_eq!(pool.stats().abandoned_threads, 0);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_timeout_ends_claude_and_the_tool_that_it_runs() {
    let world = World::new();
    a_timeout_ends_a_tool_that_runs(&world, world.claude(), &bash(&endless("started")));
}

/// After a timeout while a tool ran, the next attempt carries on the session. What each of them was charged.
fn carries_on_after_a_timeout(world: &World, executor: impl Executor, tool: &Value) -> [Charge; 2] {
    let pool = world.pool(executor).up();
    let prompt = world.prompt("a", &json!([{ "use": [tool] }, say("carried on")]));
    let unit = NewUnit::new("a").max_retries(1).workspace_dir(world.work(""));
    let handle = pool.enqueue(unit, prompt).unwrap();
    until("the tool has started", || fs::exists(world.work("started")).unwrap());
    until("the agent has said so", || !tool_calls(&world.parts("a")).is_empty());
    world.clock.advance(TIMEOUT);
    let unit = handle.wait_timeout(PATIENCE).unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("carried on")));
    assert_eq!(world.ends("a"), [(Outcome::TimedOut, Some(kinds::TIMED_OUT.to_owned())), COMPLETED]);
    let attempts = world.attempts("a");
    assert_eq!(attempts[0].session_id, attempts[1].session_id);
    assert_eq!(world.answered("a"), [200, 200]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
    [0, 1].map(|number| world.repository.charges(attempts[number].key).unwrap().remove(0))
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn after_a_timeout_claude_carries_on_its_session() {
    let world = World::new();
    let [first, second] = carries_on_after_a_timeout(&world, world.claude(), &bash(&endless("started")));
    // Nobody has counted what it wrote; what it read it has told.
    assert_eq!((first.tokens.input, first.amount, first.is_estimated), (ANSWER.input, None, true));
    assert_eq!((second.tokens, second.cost(), second.is_estimated), (ANSWER, cost(ANSWER), false));
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn after_a_timeout_codex_carries_on_its_thread() {
    let world = World::new();
    let [first, second] = carries_on_after_a_timeout(&world, world.codex(), &exec(&endless("started")));
    // A turn that was cut off is not counted in the thread either: it stays unknown.
    assert_eq!((first.tokens, first.amount, first.is_estimated), (Tokens::default(), None, true));
    assert_eq!((second.tokens, second.cost(), second.is_estimated), (ANSWER, cost(ANSWER), false));
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn claude_answers_in_the_form_that_was_asked_for() {
    let world = World::new();
    let schema = json!({ "type": "object", "properties": { "answer": { "type": "integer" } }, "required": ["answer"] });
    let steps = json!([{ "use": [["StructuredOutput", { "answer": 42 }]] }, say("done")]);
    let unit = world.run(world.claude().json_schema(schema), NewUnit::new("a"), &steps);
    assert_eq!((unit.status, unit.result), (UnitStatus::Completed, Some(json!({ "answer": 42 }))));
    assert_eq!((unit.tokens, unit.cost), (world.billed("a"), cost(world.billed("a"))));
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_session_of_claude_or_codex_that_is_not_there_is_given_up() {
    let world = World::new();
    let nowhere = |id| NewUnit::new(id).resume_session("01a1e1a5-2c2e-7b63-b4f6-346c8c1fb0ef");
    let claude = world.run(world.claude(), nowhere("claude"), &json!([say("no")]));
    let codex = world.run(world.codex(), nowhere("codex"), &json!([say("no")]));
    for unit in [claude, codex] {
        assert_eq!(unit.status, UnitStatus::Failed, "{}", unit.id);
        assert_eq!(world.ends(unit.id.as_str()), [failed(kinds::SESSION_NOT_FOUND)], "{}", unit.id);
        assert_eq!(world.answered(unit.id.as_str()), [] as [u64; 0], "{}", unit.id);
    }
    assert_eq!(marked(world.mark()), Vec::<u32>::new(), "nothing is left");
}

/// Eight at the same time: each one's tool waits until all of them have come so far.
fn eight_at_once(world: &World, executor: impl Executor, tool: fn(&str) -> Value) {
    let pool = world.pool(executor).max_workers(8).up();
    let handles: Vec<_> = (0..8)
        .map(|number| {
            let meet =
                format!("echo > here.{number}; while [ $(ls here.* | wc -l) -lt 8 ]; do sleep 0.1; done; echo met");
            let id = format!("u{number}");
            let prompt = world.prompt(&id, &json!([{ "use": [tool(&meet)] }, say(&format!("I am {number}"))]));
            pool.enqueue(NewUnit::new(id).workspace_dir(world.work("")), prompt).unwrap()
        })
        .collect();
    let mut sessions = BTreeSet::new();
    for (number, handle) in handles.iter().enumerate() {
        let unit = handle.wait_timeout(PATIENCE).unwrap();
        assert_eq!((unit.status, unit.output), (UnitStatus::Completed, Some(format!("I am {number}"))));
        assert_eq!((unit.tokens, unit.cost), (world.billed(handle.id()), cost(world.billed(handle.id()))));
        assert_eq!(tool_calls(&world.parts(handle.id())).into_iter().next().unwrap().1, "met");
        sessions.insert(unit.session_id.unwrap());
    }
    assert_eq!(sessions.len(), 8);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn eight_of_claude_work_at_once() {
    let world = World::new();
    eight_at_once(&world, world.claude(), bash);
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn eight_of_codex_work_at_once() {
    let world = World::new();
    eight_at_once(&world, world.codex(), exec);
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn codex_answers() {
    let world = World::new();
    let unit = world.run(world.codex(), NewUnit::new("a"), &json!([say("Paris.")]));
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("Paris.")));
    assert_eq!((unit.tokens, unit.cost), (ANSWER, cost(ANSWER)));
    assert_eq!(world.answered("a"), [200]);
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn codex_uses_a_tool_and_the_files_that_were_declared_are_listed() {
    let world = World::new();
    let steps = json!([{ "use": [exec("echo said; printf shell > shell.txt")] }, say("done")]);
    let unit = world.run(world.codex(), NewUnit::new("a").output_file("shell.txt"), &steps);
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("done")));
    assert_eq!(unit.output_files, [made("shell.txt", "shell")]);
    assert_eq!(tool_calls(&world.parts("a")), [("command_execution".to_owned(), "said".to_owned())].into());
    assert_eq!((unit.tokens, unit.cost), (world.billed("a"), cost(world.billed("a"))));
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn attempts_that_carry_on_a_thread_of_codex_count_what_was_billed() {
    let world = World::new();
    // Its first attempt is cut short after the model has answered once, so that nobody has counted this by then.
    let steps = json!([{ "use": [exec("echo 1")] }, { "fail": 500 }, say("two")]);
    let unit = world.run(world.codex(), NewUnit::new("a"), &steps);
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("two")));
    // Of a server that is broken Codex says that it has too much to do.
    assert_eq!(world.ends("a"), [failed(kinds::OVERLOADED), COMPLETED]);
    let sessions: BTreeSet<_> = world.attempts("a").into_iter().map(|attempt| attempt.session_id.unwrap()).collect();
    assert_eq!(sessions.len(), 1, "the thread is carried on");
    assert_eq!(world.answered("a"), [200, 500, 200]);
    assert_eq!(unit.tokens, world.billed("a"));
    assert_eq!(unit.cost.amount, cost(world.billed("a")).amount);
    // Another unit in the same thread: Codex counts from where nobody knows.
    let session = unit.session_id.unwrap();
    let other = world.run(world.codex(), NewUnit::new("b").resume_session(&session), &json!([say("three")]));
    assert_eq!((other.status, other.output.as_deref()), (UnitStatus::Completed, Some("three")));
    assert_eq!(other.session_id, Some(session));
    assert!(!other.cost.is_known());
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_request_of_codex_that_is_refused_is_not_tried_again() {
    let world = World::new();
    let refusal = json!({ "fail": 400, "error": "invalid_request_error", "message": "it cannot be" });
    let unit = world.run(world.codex(), NewUnit::new("a"), &json!([refusal]));
    assert_eq!(unit.status, UnitStatus::Failed);
    assert!(unit.failure.as_ref().unwrap().message.contains("it cannot be"), "{:?}", unit.failure);
    assert_eq!(world.ends("a"), [failed(kinds::INVALID_REQUEST)]);
    assert_eq!(world.answered("a"), [400]);
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_wrong_key_of_codex_holds_the_pool() {
    let world = World::new();
    a_wrong_key_holds_the_pool(&world, world.codex());
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_timeout_ends_codex_and_the_tool_that_it_runs() {
    let world = World::new();
    a_timeout_ends_a_tool_that_runs(&world, world.codex(), &exec(&endless("started")));
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_folder_of_prompts_is_answered_and_no_answer_is_paid_for_twice() {
    let world = World::new();
    let folder = support::folder();
    let batch = || {
        let mut batch = example("claude_batch", folder.path());
        let bin = world.folder.path().join("bin");
        if !bin.exists() {
            fs::create_dir(&bin).unwrap();
            std::os::unix::fs::symlink(given("WORKCREW_REAL_CLAUDE"), bin.join("claude")).unwrap();
        }
        let path = format!("{}:{}", bin.display(), given("PATH"));
        batch.arg(".").env("PATH", path).env("HOME", world.home()).env(MARK, world.mark());
        batch.env("ANTHROPIC_BASE_URL", given("WORKCREW_MODELS_URL")).env("ANTHROPIC_API_KEY", "no key");
        printed(&mut batch)
    };
    let ask = |name: &str, answer: &str| {
        fs::write(folder.path().join(name), world.prompt(name, &json!([say(answer)]))).unwrap();
    };
    let answer = |name: &str| fs::read_to_string(folder.path().join(format!("{name}.answer.md"))).unwrap();
    ask("capital.md", "Paris.");
    ask("river.txt", "Seine.");
    let first = batch();
    assert!(first.contains("2 of 2 prompts are answered; $"), "{first}");
    assert_eq!((answer("capital.md"), answer("river.txt")), ("Paris.".to_owned(), "Seine.".to_owned()));
    // One answer is lost, and one prompt is new.
    fs::remove_file(folder.path().join("river.txt.answer.md")).unwrap();
    ask("tower.md", "Eiffel.");
    let second = batch();
    assert!(second.starts_with("tower.md: answered") && second.contains("3 of 3 prompts are answered"), "{second}");
    assert_eq!((answer("river.txt"), answer("tower.md")), ("Seine.".to_owned(), "Eiffel.".to_owned()));
    for name in ["capital.md", "river.txt", "tower.md"] {
        assert_eq!(world.answered(name), [200], "{name}");
    }
    world.assert_clean();
}
