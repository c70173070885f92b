//! The real Claude Code, kept alive between units.

use rustix::process::{Pid, Signal, kill_process};
use workcrew::executor::claude_cli::Between;
use workcrew::executor::warm::{Keep, Processes};
use workcrew::repository::By;
use workcrew::{Affinity, ClaudeSession};

use super::*;

impl World {
    fn session(&self, agent: ClaudeCli, between: Between) -> (ClaudeSession, Processes) {
        let session = ClaudeSession::new(agent, between, Keep::up_to(2)).unwrap();
        let processes = session.processes();
        (session, processes)
    }

    fn ask(&self, pool: &WorkPool, unit: NewUnit, steps: &Value) -> WorkUnit {
        let prompt = self.prompt(&unit.id, steps);
        let unit = unit.workspace_dir(self.work(""));
        pool.enqueue(unit, prompt).unwrap().wait_timeout(PATIENCE).unwrap()
    }
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn twenty_units_through_one_claude() {
    let world = World::new();
    let (session, processes) = world.session(world.claude(), Between::Clear);
    let pool = world.pool(session).max_workers(1).up();
    let mut sessions = BTreeSet::new();
    for number in 0..20 {
        let id = format!("u{number}");
        let unit = world.ask(&pool, NewUnit::new(&id), &json!([say(&id)]));
        assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some(id.as_str())));
        assert_eq!((unit.tokens, unit.cost), (ANSWER, cost(ANSWER)), "{id}: its own, and nothing of the others'");
        assert_eq!(world.answered(&id), [200]);
        sessions.insert(unit.session_id.unwrap());
    }
    assert_eq!(sessions.len(), 20, "each has a conversation of its own");
    let [process] = processes.list().try_into().unwrap();
    assert_eq!(process.queries_processed, 20);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// What a unit has come to, as far as it can be the same twice.
fn came_to(world: &World, unit: &WorkUnit) -> Value {
    let kinds = |message: &Message| -> Vec<String> {
        let kind = |part: &Part| match part {
            Part::Text { .. } => "text".to_owned(),
            Part::ToolUse { name, .. } => name.clone(),
            Part::ToolResult { is_error, .. } => format!("answer {is_error}"),
            Part::Other { kind, .. } => kind.clone(),
            _ => "?".to_owned(),
        };
        message.parts.iter().map(kind).collect()
    };
    let said: Vec<_> = world.messages(&world.attempts(unit.id.as_str())[0]).iter().map(kinds).collect();
    let result = unit.result.clone().unwrap_or_default();
    json!({
        "status": unit.status, "output": unit.output, "failure": unit.failure, "tokens": unit.tokens, "cost": unit.cost,
        "turns": result["num_turns"], "structured": result["answer"], "files": unit.output_files, "said": said,
    })
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn what_comes_of_a_unit_is_what_a_claude_of_its_own_makes_of_it() {
    let world = World::new();
    let write = json!(["Write", { "file_path": world.work("new.txt"), "content": "new\n" }]);
    let structured = json!(["StructuredOutput", { "answer": "yes" }]);
    let plays = [
        ("says", json!([say("Paris.")])),
        ("uses", json!([{ "use": [bash("echo one")] }, say("done")])),
        ("writes", json!([{ "use": [write] }, say("done")])),
        ("fails", json!([{ "use": [bash("exit 3")] }, say("sorry")])),
        ("broken", json!([{ "fail": 500 }])),
        ("refused", json!([{ "fail": 400, "error": "invalid_request_error", "message": "no" }])),
        ("turns", json!([{ "use": [bash("echo one")] }, { "use": [bash("echo two")] }, say("done")])),
        ("structured", json!([{ "use": [structured] }, say("done")])),
    ];
    let unit_of = |kind: &str, name: &str| {
        let unit = NewUnit::new(format!("{kind}-{name}")).max_retries(0);
        if name == "turns" { unit.max_iterations(1) } else { unit }
    };
    let schema = json!({ "type": "object", "properties": { "answer": { "type": "string" } }, "required": ["answer"] });
    for with_schema in [false, true] {
        let agent = if with_schema { world.claude().json_schema(schema.clone()) } else { world.claude() };
        let (session, _processes) = world.session(agent.clone(), Between::Clear);
        let (warm, cold) = (world.pool(session).max_workers(1).up(), world.pool(agent).max_workers(1).up());
        for (name, steps) in plays.iter().filter(|(name, _)| (*name == "structured") == with_schema) {
            let units = [(&warm, "warm"), (&cold, "cold")].map(|(pool, kind)| {
                let unit = world.ask(pool, unit_of(kind, name), steps);
                came_to(&world, &unit)
            });
            assert_eq!(units[0], units[1], "{name}");
        }
        warm.stop(Stop::Drain).unwrap();
        cold.stop(Stop::Drain).unwrap();
    }
    assert_eq!(marked(world.mark()), Vec::<u32>::new(), "nothing is left");
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_claude_that_is_interrupted_in_the_middle_goes_on_or_is_replaced() {
    let world = World::new();
    let (session, _processes) = world.session(world.claude(), Between::Clear);
    let pool = world.pool(session).max_workers(1).up();
    // Also what a tool has started in a session of its own must not be left.
    let tool = format!("touch begun; {}", endless("endless"));
    let steps = json!([{ "use": [bash(&tool)] }, say("never")]);
    let prompt = world.prompt("a", &steps);
    let unit = pool.enqueue(NewUnit::new("a").workspace_dir(world.work("")), prompt).unwrap();
    until("the tool runs", || fs::exists(world.work("begun")).unwrap());
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(PATIENCE).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Cancelled));
    for id in ["b", "c"] {
        let unit = world.ask(&pool, NewUnit::new(id), &json!([say(id)]));
        assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some(id)));
        assert_eq!((unit.tokens, unit.cost), (ANSWER, cost(ANSWER)), "nothing of what was interrupted");
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_claude_that_is_killed_is_replaced_and_its_unit_carried_on() {
    let world = World::new();
    let (session, processes) = world.session(world.claude(), Between::Clear);
    let pool = world.pool(session).max_workers(1).up();
    world.ask(&pool, NewUnit::new("first"), &json!([say("hello")]));
    let tool = "test -e killed && exit 0; touch begun; python3 -c 'import time; time.sleep(9999)'";
    let steps = json!([{ "use": [bash(tool)] }, say("at last")]);
    let prompt = world.prompt("a", &steps);
    let unit = pool.enqueue(NewUnit::new("a").workspace_dir(world.work("")), prompt).unwrap();
    until("the tool runs", || fs::exists(world.work("begun")).unwrap());
    fs::write(world.work("killed"), "").unwrap();
    let pid = processes.list()[0].process.as_ref().unwrap().pid;
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), Signal::KILL).unwrap();
    let unit = unit.wait_timeout(PATIENCE).unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("at last")));
    assert_eq!(world.ends("a"), [failed(kinds::KILLED), COMPLETED]);
    let sessions: BTreeSet<_> = world.attempts("a").into_iter().map(|attempt| attempt.session_id).collect();
    assert_eq!(sessions.len(), 1, "in the same session");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn units_of_a_key_are_one_conversation_with_claude() {
    let world = World::new();
    let (session, processes) = world.session(world.claude(), Between::Nothing);
    let pool = world.pool(session).max_workers(2).affinity(Affinity::StrictQueue).up();
    let ask = |id: &str| {
        let unit = world.ask(&pool, NewUnit::new(id).affinity_key("ada"), &json!([say(id)]));
        assert_eq!((unit.output.as_deref(), unit.tokens, unit.cost), (Some(id), ANSWER, cost(ANSWER)), "{id}");
        unit.session_id.unwrap()
    };
    let session = ask("a");
    assert_eq!(ask("b"), session);
    // Its process goes, and the conversation goes on.
    processes.shut_down_all();
    assert_eq!(ask("c"), session);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "needs `.ci/real-cli`"]
fn a_session_that_is_not_there_is_told_by_a_claude_that_was_to_be_kept() {
    let world = World::new();
    let (session, _processes) = world.session(world.claude(), Between::Clear);
    let pool = world.pool(session).max_workers(1).up();
    let missing = "00000000-0000-4000-8000-000000000000";
    let unit = world.ask(&pool, NewUnit::new("a").resume_session(missing), &json!([say("never")]));
    assert_eq!(unit.failure.unwrap().kind.as_str(), kinds::SESSION_NOT_FOUND);
    let unit = world.ask(&pool, NewUnit::new("b"), &json!([say("hello")]));
    assert_eq!(unit.output.as_deref(), Some("hello"));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(marked(world.mark()), Vec::<u32>::new(), "nothing is left");
}
