//! Claude Code kept alive, played by this test binary: it prints what the real one has been seen to print. What the real one does is in
//! `real_cli`.

use std::io::Write;
use std::sync::mpsc::channel;

use serde_json::{Value, json};
use workcrew::executor::claude_cli::{Between, ClaudeSession};
use workcrew::repository::By;
use workcrew::{ClaudeCli, Executor, Outcome, Stop, UnitStatus};

use super::*;

/// The variable that says that this is Claude Code.
const CLAUDE: &str = "WORKCREW_TEST_CLAUDE";

/// Where it writes down what it is told, and with what it was started.
const NOTES: &str = "WORKCREW_TEST_NOTES";

/// The variable that says that it clears nothing before it was told something else.
pub(super) const SLOW_TO_CLEAR: &str = "WORKCREW_TEST_SLOW_TO_CLEAR";

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn claude() {
    if std::env::var_os(CLAUDE).is_some() {
        Claude::default().play();
    }
}

/// What Claude Code is as far as it can be seen from outside.
#[derive(Default)]
struct Claude {
    session: u32,
    cost: f64,
    heard: u32,
    owes: bool,
}

impl Claude {
    fn play(mut self) -> ! {
        let arguments: Vec<String> = std::env::args().skip_while(|argument| argument != "--").skip(1).collect();
        note(&format!("started {}", arguments.join(" ")));
        // The harness leaves its own line open.
        std::io::stdout().lock().write_all(b"\n").unwrap();
        if arguments.iter().any(|argument| argument == "--resume=gone") {
            self.refuse();
        }
        if !arguments.iter().any(|argument| argument == "--input-format=stream-json") {
            let prompt = std::io::read_to_string(std::io::stdin()).unwrap();
            self.answer(&prompt);
            std::process::exit(0);
        }
        while let Some(line) = crate::children::hear() {
            let line: Value = serde_json::from_str(&line).unwrap_or_else(|_| std::process::exit(1));
            match line["type"].as_str() {
                Some("user") => self.answer(line["message"]["content"].as_str().unwrap()),
                Some("control_request") => note("interrupt while idle"),
                _ => {}
            }
        }
        std::process::exit(0);
    }

    fn session(&self) -> String {
        let resumed = std::env::args().find_map(|argument| argument.strip_prefix("--resume=").map(str::to_owned));
        match resumed {
            Some(resumed) if self.session == 0 => resumed,
            _ => format!("session-{}-{}", std::process::id(), self.session),
        }
    }

    fn print(&self, mut event: Value) {
        event["session_id"] = self.session().into();
        let mut out = std::io::stdout().lock();
        writeln!(out, "{event}").unwrap();
        out.flush().unwrap();
    }

    fn init(&self) {
        self.print(json!({ "type": "system", "subtype": "init", "model": "opus", "claude_code_version": "2.1.325" }));
    }

    fn result(&mut self, dollars: f64, rest: Value) {
        self.cost += dollars;
        let usage = |dollars: f64| json!({ "opus": { "inputTokens": 100, "outputTokens": 10, "costUSD": dollars } });
        let mut event = json!({
            "type": "result", "subtype": "success", "is_error": false, "total_cost_usd": self.cost,
            "modelUsage": usage(self.cost), "model_usage_since_last_result": usage(dollars),
        });
        event.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        self.print(event);
    }

    fn refuse(&mut self) -> ! {
        let errors = json!(["No conversation found with session ID: gone"]);
        let rest = json!({ "subtype": "error_during_execution", "is_error": true, "errors": errors });
        self.result(0.0, rest);
        std::process::exit(1);
    }

    fn says(&self, text: &str) {
        let content = json!([{ "type": "text", "text": text }]);
        let usage = json!({ "input_tokens": 100, "output_tokens": 1 });
        let message = json!({ "id": format!("m{}", self.heard), "role": "assistant", "model": "opus", "content": content, "usage": usage });
        self.print(json!({ "type": "assistant", "message": message }));
    }

    fn answer(&mut self, prompt: &str) {
        note(&format!("told {prompt}"));
        if std::mem::take(&mut self.owes) {
            self.result(0.25, json!({ "result": "and another that nobody asked for" }));
        }
        if prompt == "/clear" {
            if std::env::var_os(SLOW_TO_CLEAR).is_some() {
                crate::children::hear().unwrap();
            }
            self.session += 1;
            self.heard = 0;
            self.cost = 0.0;
            self.init();
            let nothing = json!({ "modelUsage": {}, "model_usage_since_last_result": {}, "local_command": "clear", "result": "" });
            return self.result(0.0, nothing);
        }
        self.init();
        self.heard += 1;
        match prompt {
            "break" => {
                let rest =
                    json!({ "subtype": "error_during_execution", "is_error": true, "errors": ["a tool has gone"] });
                self.result(0.25, rest);
            }
            "fail" => {
                let rest = json!({ "is_error": true, "api_error_status": 529, "result": "overloaded" });
                self.result(0.0, rest);
            }
            "wait" => {
                self.says("waiting");
                // Only an interrupt comes while a turn is under way.
                let line = crate::children::hear().unwrap();
                assert!(line.contains("interrupt"), "{line}");
                self.print(json!({ "type": "control_response", "response": { "subtype": "success" } }));
                let rest = json!({
                    "subtype": "error_during_execution", "is_error": true, "terminal_reason": "aborted_streaming",
                    "modelUsage": {}, "model_usage_since_last_result": {},
                });
                self.result(0.0, rest);
            }
            "hang" => {
                self.says("hanging");
                loop {
                    std::thread::park();
                }
            }
            "die" => std::process::exit(1),
            "late" => {
                self.says("an answer");
                self.result(0.25, json!({ "result": "first" }));
                self.result(0.25, json!({ "result": "and another that nobody asked for" }));
            }
            "later" => {
                self.says("an answer");
                self.result(0.25, json!({ "result": "first" }));
                // Not before it is told something else.
                self.owes = true;
            }
            "background" => {
                self.print(
                    json!({ "type": "system", "subtype": "task_started", "task_id": "t", "is_backgrounded": true }),
                );
                self.result(0.25, json!({ "result": "it works in the background" }));
                self.print(json!({ "type": "system", "subtype": "task_notification", "task_id": "t" }));
                self.init();
                self.result(0.25, json!({ "result": "it is done" }));
            }
            prompt => {
                self.says("an answer");
                self.result(0.25, json!({ "result": format!("{prompt}, {} heard", self.heard), "num_turns": 1 }));
            }
        }
    }
}

fn note(line: &str) {
    let path = std::env::var_os(NOTES).unwrap();
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    writeln!(file, "{line}").unwrap();
}

/// Claude Code, as this binary plays it: a script calls it, because it has arguments of its own.
pub(super) fn agent(world: &World) -> ClaudeCli {
    let script = world.folder.path().join("claude");
    if !script.exists() {
        let binary = std::env::current_exe().unwrap();
        let words = "workers::claude::claude --exact --ignored --nocapture --test-threads=1 --";
        let text = format!("#!/bin/sh\nexec '{}' {words} \"$@\"\n", binary.display());
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    ClaudeCli::new()
        .program(script)
        .env(CLAUDE, "1")
        .env(MARK, &world.mark)
        .env(NOTES, world.folder.path().join("notes"))
}

pub(super) fn notes(world: &World) -> Vec<String> {
    let notes = std::fs::read_to_string(world.folder.path().join("notes")).unwrap_or_default();
    notes.lines().map(str::to_owned).collect()
}

pub(super) fn told(world: &World) -> Vec<String> {
    notes(world).iter().filter_map(|note| note.strip_prefix("told ")).map(str::to_owned).collect()
}

pub(super) fn starts(world: &World) -> usize {
    notes(world).iter().filter(|note| note.starts_with("started")).count()
}

fn session(world: &World, between: Between) -> ClaudeSession {
    ClaudeSession::new(agent(world), between, world.keep(1)).unwrap()
}

pub(super) fn pool(world: &World, executor: impl Executor) -> WorkPool {
    WorkPool::builder(world.job, executor, world.repository.clone()).max_workers(1).retry(RetryPolicy::immediate()).up()
}

#[test]
fn one_process_answers_unit_after_unit_each_in_a_conversation_of_its_own_at_its_own_cost() {
    let world = World::new();
    let session = session(&world, Between::Clear);
    let processes = session.processes();
    let pool = pool(&world, session);
    for id in ["1", "2", "3"] {
        let unit = ask(&pool, id, id);
        let output = format!("{id}, 1 heard");
        assert_eq!((unit.output.as_deref(), unit.cost.to_string().as_str()), (Some(output.as_str()), "$0.25"));
        assert_eq!(unit.tokens.input, 100);
        assert!(unit.session_id.is_some());
        let messages = world.messages(&world.attempts(id)[0]);
        assert_eq!(messages[0].text(), id);
        if id != "1" {
            // Before the first the test harness has its say.
            assert_eq!(messages.len(), 4, "prompt, init, answer and result");
        }
    }
    assert_eq!(processes.list()[0].queries_processed, 3);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((told(&world), starts(&world)), (["1", "/clear", "2", "/clear", "3"].map(str::to_owned).into(), 1));
    assert_eq!(world.wait_for("worker:ended"), "worker:ended 1");
    world.assert_clean();
}

#[test]
fn what_comes_of_a_unit_is_what_a_process_of_its_own_makes_of_it() {
    let played = |executor: Box<dyn Fn(&World) -> WorkPool>| {
        let world = World::new();
        let pool = executor(&world);
        let units = [("1", "hello"), ("2", "fail"), ("3", "/help"), ("4", "break"), ("5", "  ")].map(|(id, prompt)| {
            pool.enqueue(NewUnit::new(id).max_retries(0), prompt).unwrap().wait_timeout(LONG).unwrap()
        });
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
        units.map(|unit| (unit.status, unit.output, unit.failure, unit.tokens, unit.cost, unit.session_id.is_some()))
    };
    let cold = |world: &World| pool(world, agent(world));
    let warm = |world: &World| pool(world, session(world, Between::Clear));
    let (cold, warm) = (played(Box::new(cold)), played(Box::new(warm)));
    assert_eq!(cold[..4], warm[..4]);
    assert_eq!(warm[4].2.as_ref().unwrap().kind.as_str(), "invalid_arguments");
}

#[test]
fn an_answer_that_costs_more_than_its_unit_may_counts_and_there_is_nothing_to_interrupt() {
    let world = World::new();
    let pool = pool(&world, session(&world, Between::Clear));
    for id in ["1", "2"] {
        let unit = NewUnit::new(id).max_cost("0.10".parse().unwrap());
        let unit = pool.enqueue(unit, id).unwrap().wait_timeout(LONG).unwrap();
        assert_eq!((unit.status, unit.cost.to_string().as_str()), (UnitStatus::Completed, "$0.25"));
    }
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((told(&world), starts(&world)), (["1", "/clear", "2"].map(str::to_owned).into(), 1));
    let notes = notes(&world);
    assert!(!notes.iter().any(|note| note.contains("interrupt") || note.contains("budget")), "{notes:?}");
    world.assert_clean();
}

#[test]
fn a_cancelled_unit_is_interrupted_and_its_process_goes_on() {
    let world = World::new();
    let pool = pool(&world, session(&world, Between::Clear));
    let unit = pool.enqueue(NewUnit::new("a"), "wait").unwrap();
    world.wait_for("worker:busy");
    assert!(unit.messages().any(|said| said.unwrap().message.text() == "waiting"));
    pool.cancel("a", By::whom("test")).unwrap();
    let unit = unit.wait_timeout(LONG).unwrap();
    assert_eq!((unit.status, unit.cost.to_string().as_str()), (UnitStatus::Cancelled, "unknown"), "nobody counts it");
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Cancelled));
    let unit = ask(&pool, "b", "hello");
    assert_eq!((unit.output.as_deref(), unit.cost.to_string().as_str()), (Some("hello, 1 heard"), "$0.25"));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(starts(&world), 1);
    world.assert_clean();
}

#[test]
fn one_that_hangs_or_dies_or_says_more_than_it_was_asked_is_replaced() {
    for (prompt, status) in [
        ("hang", UnitStatus::Cancelled),
        ("die", UnitStatus::Failed),
        ("late", UnitStatus::Completed),
        ("later", UnitStatus::Completed),
    ] {
        let world = World::new();
        let (send, said) = channel();
        let builder = WorkPool::builder(world.job, session(&world, Between::Clear), world.repository.clone());
        let pool = builder
            .max_workers(1)
            .observer(move |event: &workcrew::Event<'_>| {
                if let workcrew::Event::Said { message, .. } = event {
                    let _ = send.send(message.text());
                }
            })
            .up();
        let unit = pool.enqueue(NewUnit::new("a").max_retries(0), prompt).unwrap();
        if prompt == "hang" {
            while said.recv_timeout(LONG).unwrap() != "hanging" {}
            pool.cancel("a", By::whom("test")).unwrap();
        }
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, status, "{prompt}");
        let unit = ask(&pool, "b", "hello");
        let (output, attempts) = (unit.output.as_deref(), unit.attempt_count);
        assert_eq!((output, attempts), (Some("hello, 1 heard"), 1), "{prompt}: not what was said before");
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(starts(&world), 2, "{prompt}: {:?}", world.events());
        world.assert_clean();
    }
}

#[test]
fn what_is_said_late_is_not_taken_for_the_answer_where_nothing_is_cleared() {
    let world = World::new();
    let pool = pool(&world, session(&world, Between::Nothing));
    let say = |id: &str, prompt: &str| {
        let unit = pool.enqueue(NewUnit::new(id).affinity_key("ada"), prompt).unwrap();
        unit.wait_timeout(LONG).unwrap()
    };
    let first = say("1", "later");
    let second = say("2", "hello");
    assert_eq!(
        (second.output.as_deref(), second.attempt_count),
        (Some("hello, 1 heard"), 2),
        "by another, in its session: nobody knows what the first has begun"
    );
    assert_eq!(second.session_id, first.session_id);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_worked_in_the_background_is_heard_out_and_its_process_not_asked_again() {
    let world = World::new();
    let pool = pool(&world, session(&world, Between::Clear));
    let unit = ask(&pool, "a", "background");
    assert_eq!((unit.output.as_deref(), unit.cost.to_string().as_str()), (Some("it is done"), "$0.50"));
    assert_eq!(ask(&pool, "b", "hello").output.as_deref(), Some("hello, 1 heard"));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(starts(&world), 2);
    assert!(!world.events().iter().any(|event| event.contains("crashed")));
    world.assert_clean();
}

#[test]
fn each_unit_has_a_process_of_its_own_if_that_is_chosen() {
    let world = World::new();
    let pool = pool(&world, session(&world, Between::NewProcess));
    for id in ["1", "2"] {
        assert_eq!(ask(&pool, id, "hello").output.as_deref(), Some("hello, 1 heard"));
    }
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((starts(&world), told(&world)), (2, ["hello", "hello"].map(str::to_owned).into()));
    world.assert_clean();
}

#[test]
fn units_of_a_key_are_one_conversation_if_that_is_chosen_also_after_their_process_has_gone() {
    let world = World::new();
    let session = session(&world, Between::Nothing);
    let processes = session.processes();
    let pool = pool(&world, session);
    let say = |id: &str, key: &str| {
        let unit = pool.enqueue(NewUnit::new(id).affinity_key(key), "hello").unwrap().wait_timeout(LONG).unwrap();
        (unit.output.unwrap(), unit.session_id.unwrap())
    };
    let (_, ada) = say("1", "ada");
    assert_eq!(say("2", "ada"), ("hello, 2 heard".to_owned(), ada.clone()));
    // Another key evicts it, and it comes back to where it was.
    say("3", "bob");
    assert_eq!(say("4", "ada").1, ada);
    let resumes = notes(&world).iter().filter(|note| note.contains(&format!("--resume={ada}"))).count();
    assert_eq!((resumes, starts(&world)), (1, 3));
    assert!(!told(&world).contains(&"/clear".to_owned()));
    processes.shut_down_all();
    // Without a key a conversation is empty.
    assert_eq!(ask(&pool, "5", "hello").output.as_deref(), Some("hello, 1 heard"));
    assert_eq!(ask(&pool, "6", "hello").output.as_deref(), Some("hello, 1 heard"));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_session_is_carried_on_by_the_process_that_is_in_it_and_one_that_is_not_there_is_told() {
    let world = World::new();
    let pool = pool(&world, session(&world, Between::Clear));
    let session = ask(&pool, "1", "hello").session_id.unwrap();
    let carry_on = |id: &str, session: &str| {
        let unit = NewUnit::new(id).resume_session(session).max_retries(0);
        pool.enqueue(unit, "hello").unwrap().wait_timeout(LONG).unwrap()
    };
    assert_eq!(carry_on("2", &session).output.as_deref(), Some("hello, 2 heard"));
    assert_eq!(starts(&world), 1);
    let failure = carry_on("3", "gone").failure.unwrap();
    assert_eq!(failure.kind.as_str(), "session_not_found", "{failure}");
    assert_eq!(ask(&pool, "4", "hello").status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
