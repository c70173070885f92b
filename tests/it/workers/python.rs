//! A worker that is none of ours: `examples/worker.py`, which stands on `docs/worker-protocol.md` and nothing else. Where there is no
//! Python, a line says so.

use std::io::Write;
use std::process::Command;

use serde_json::json;
use workcrew::executor::kinds;
use workcrew::ipc::{ProcessState, WorkerMessage};
use workcrew::repository::By;
use workcrew::{Cost, Money, Part, Role, Stop, Tokens, UnitHandle, UnitStatus};

use super::parent::Parent;
use super::*;

const WORKER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worker.py");

/// Whether there is a Python.
fn is_there_python() -> bool {
    let is_there = Command::new("python3").arg("--version").output().is_ok_and(|output| output.status.success());
    if !is_there {
        // Not by a macro, whose output the harness would keep for itself.
        let _ = writeln!(std::io::stderr(), "python3 is not installed: no worker in Python was asked anything");
    }
    is_there
}

/// A pool whose workers are Python programs. They have long to stop, however much else the machine has to do.
fn pool(world: &World, keep: Keep) -> (WorkPool, Processes) {
    let command = WorkerCommand::new("python3").arg(WORKER).env(MARK, &world.mark).name("python");
    let workers = WorkerProcesses::new(command, keep.cancel_grace(LONG / 4)).unwrap();
    let (builder, processes) = world.builder(workers);
    (builder.kill_grace(LONG).up(), processes)
}

/// Has a worker wait for longer than any test takes; returns when it does.
fn begin_to_sleep(world: &World, pool: &WorkPool, unit: NewUnit, request_id: &str) -> UnitHandle {
    let handle = pool.enqueue(unit, "sleep 600").unwrap();
    world.wait_for(&format!("query:streaming 1: {request_id}"));
    handle
}

/// What the worker itself knows: its pid, and how many turns the session has had.
fn knows(unit: &WorkUnit) -> (u64, u64) {
    assert_eq!(unit.status, UnitStatus::Completed, "{:?}", unit.failure);
    let result = unit.result.clone().unwrap();
    (result["pid"].as_u64().unwrap(), result["turn"].as_u64().unwrap())
}

/// Stops a pool whose workers are all idle: each ends because it was told to, and nothing is left.
fn end_in_order(world: &World, pool: &WorkPool, processes: &Processes) {
    let numbers: Vec<u64> = processes.list().iter().map(|process| process.number).collect();
    assert!(!numbers.is_empty());
    world.events();
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    for number in numbers {
        assert!(events.contains(&format!("worker:shutting_down {number}: all are to end")), "{events:?}");
        assert!(events.contains(&format!("worker:ended {number}")), "{events:?}");
    }
    assert_eq!(processes.list(), []);
    world.assert_clean();
}

#[test]
fn what_a_worker_in_python_says_is_stored_with_its_session_its_tools_and_its_cost() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let (pool, processes) = pool(&world, world.keep(1));
    let prompt = "three ❄ \u{1f600}\nlines\u{2028}\\ \"";
    let unit = ask(&pool, "a", prompt);
    let (_, turn) = knows(&unit);
    assert_eq!((unit.output.as_deref(), turn), (Some("6 words"), 1));
    assert_eq!(unit.session_id.as_deref(), Some("words-a"));
    assert_eq!(unit.tokens, Tokens { input: 6, output: 2, ..Tokens::default() });
    assert_eq!(unit.cost, Cost { amount: Money::from_nanos(6 * 3_000 + 2 * 15_000), unpriced: 0 });
    let said = |role: Role, part: Part| Message::new(role).part(part);
    let expected = [
        Message::user(prompt),
        said(Role::Assistant, Part::thinking("I had better count them.")),
        said(Role::Assistant, Part::tool_use("t1", "count", json!({ "text": prompt }))),
        said(Role::Tool, Part::tool_result("t1", "6")),
        Message::assistant("6 words"),
    ];
    assert_eq!(world.messages(&world.attempts("a")[0]), expected);
    end_in_order(&world, &pool, &processes);
}

#[test]
fn sessions_with_workers_in_python_keep_to_the_process_that_remembers_them() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let (pool, processes) = pool(&world, world.keep(2));
    let mut pids = Vec::new();
    for turn in 1..=3 {
        for person in ["ada", "grace"] {
            let unit = NewUnit::new(format!("{person} {turn}")).affinity_key(person);
            let unit = pool.enqueue(unit, "Go on.").unwrap().wait_timeout(LONG).unwrap();
            let (pid, heard) = knows(&unit);
            assert_eq!((heard, unit.session_id), (turn, Some(format!("words-{person}"))));
            pids.push(pid);
        }
    }
    assert_ne!(pids[0], pids[1]);
    assert_eq!(pids, [pids[0], pids[1]].repeat(3));
    assert_eq!(processes.list().iter().map(|process| process.queries_processed).collect::<Vec<_>>(), [3, 3]);
    end_in_order(&world, &pool, &processes);
}

#[test]
fn a_worker_in_python_says_why_it_failed_and_what_follows_and_lives_on() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let (pool, processes) = pool(&world, world.keep(1));
    let (pid, _) = knows(&ask(&pool, "before", "one"));
    let told = ask(&pool, "told", "fail since it is Monday");
    let failure = told.failure.unwrap();
    assert_eq!((told.status, told.attempt_count), (UnitStatus::Failed, 1), "it is not to be tried again");
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("told_to_fail", "since it is Monday"));
    // A mistake in the worker is a failure like another one, without a kind of its own.
    let mistake = NewUnit::new("mistake").max_retries(0);
    let mistake = pool.enqueue(mistake, "sleep well").unwrap().wait_timeout(LONG).unwrap();
    let failure = mistake.failure.unwrap();
    assert_eq!(failure.kind.as_str(), kinds::WORKER);
    assert!(failure.message.starts_with("ValueError: "), "{failure}");
    assert_eq!(world.messages(&world.attempts("mistake")[0]), [Message::user("sleep well")]);
    assert_eq!(knows(&ask(&pool, "after", "one")).0, pid, "it is the same process");
    end_in_order(&world, &pool, &processes);
}

#[test]
fn a_worker_in_python_whose_query_is_cancelled_or_out_of_time_stops_and_is_asked_again() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let (pool, processes) = pool(&world, world.keep(1));
    let (pid, _) = knows(&ask(&pool, "before", "one"));
    let handle = begin_to_sleep(&world, &pool, NewUnit::new("unwanted"), "1.2");
    handle.cancel(By::whom("somebody")).unwrap();
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(world.messages(&world.attempts("unwanted")[0]), [Message::user("sleep 600")]);
    assert_eq!(knows(&ask(&pool, "between", "one")).0, pid);
    let slow = NewUnit::new("slow").timeout(Duration::from_millis(100)).max_retries(0);
    let slow = pool.enqueue(slow, "sleep 600").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(slow.failure.unwrap().kind.as_str(), kinds::TIMED_OUT);
    assert_eq!(knows(&ask(&pool, "after", "one")).0, pid);
    let list = processes.list();
    assert_eq!((list.len(), list[0].number, list[0].queries_processed), (1, 1, 5), "there was never another one");
    end_in_order(&world, &pool, &processes);
}

#[test]
fn a_worker_in_python_says_that_it_is_well_while_it_works_and_while_it_waits() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let (pool, processes) = pool(&world, world.keep(1).health_interval(Duration::from_millis(20)).health_timeout(LONG));
    let handle = begin_to_sleep(&world, &pool, NewUnit::new("long"), "1.1");
    // Not only once.
    (0..3).for_each(|_| assert_eq!(world.wait_for("worker:healthy"), "worker:healthy 1"));
    assert_eq!(processes.list()[0].state, ProcessState::Busy);
    assert!(!handle.is_done());
    handle.cancel(By::whom("somebody")).unwrap();
    handle.wait_timeout(LONG).unwrap();
    world.events();
    world.wait_for("worker:healthy 1");
    until("it is idle and was heard", || {
        let list = processes.list();
        list[0].state == ProcessState::Ready && list[0].health.is_some_and(|health| health.queries_processed == 1)
    });
    end_in_order(&world, &pool, &processes);
}

#[test]
fn a_worker_in_python_that_is_at_work_when_its_pool_cancels_all_is_told_and_gone() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let (pool, processes) = pool(&world, world.keep(1));
    begin_to_sleep(&world, &pool, NewUnit::new("a"), "1.1");
    pool.stop(Stop::Cancel { grace: LONG }).unwrap();
    assert_eq!(world.repository.unit(world.job, "a").unwrap().status, UnitStatus::Pending, "it is given back");
    let events = world.events();
    assert!(events.contains(&"worker:ended 1".to_owned()), "it was not killed: {events:?}");
    assert_eq!(processes.list(), []);
    world.repository.cancel(world.job, "a", &By::whom("somebody")).unwrap();
    world.assert_clean();
}

/// A parent of this worker.
fn parent(world: &World) -> Parent {
    let mut command = Command::new("python3");
    command.arg(WORKER);
    Parent::of(command, world)
}

#[test]
fn a_worker_in_python_finishes_what_it_has_in_hand_before_it_ends_unless_there_is_no_time() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    for (is_graceful, prompt) in [(true, "sleep 0.1"), (false, "sleep 600")] {
        let mut parent = parent(&world);
        parent.ask("1.1", prompt);
        parent.tell(&json!({ "type": "shutdown", "graceful": is_graceful }));
        if is_graceful {
            assert!(matches!(parent.hear_end(), Some(WorkerMessage::Complete { .. })));
        }
        assert_eq!(parent.hear_end(), Some(WorkerMessage::ShutdownAck));
        parent.see_it_end();
    }
    assert_eq!(marked(&world.mark), Vec::<u32>::new());
}

/// 002-F17.
#[test]
fn a_worker_in_python_takes_no_query_while_it_has_another() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let mut parent = parent(&world);
    parent.ask("1.1", "sleep 600");
    assert!(matches!(parent.hear(), Some(WorkerMessage::Session { request_id, .. }) if request_id == "1.1"));
    parent.ask("1.2", "one");
    assert_eq!(parent.hear_end().as_ref().and_then(Parent::error_of), Some("1.2"));
    parent.tell(&json!({ "type": "cancel", "requestId": "1.1" }));
    assert_eq!(parent.hear_end().as_ref().and_then(Parent::error_of), Some("1.1"), "it had gone on");
    assert_eq!(parent.hear(), Some(WorkerMessage::Ready));
    parent.tell(&json!({ "type": "shutdown", "graceful": true }));
    assert_eq!(parent.hear(), Some(WorkerMessage::ShutdownAck));
    parent.see_it_end();
}

#[test]
fn a_worker_in_python_answers_a_cancel_that_comes_too_late_and_ends_with_its_parent() {
    if !is_there_python() {
        return;
    }
    let world = World::new();
    let mut parent = parent(&world);
    parent.ask("1.1", "one");
    assert!(matches!(parent.hear_end(), Some(WorkerMessage::Complete { .. })));
    parent.tell(&json!({ "type": "cancel", "requestId": "1.1" }));
    assert_eq!(parent.hear(), Some(WorkerMessage::Ready));
    parent.tell(&json!({ "type": "of a later version" }));
    // What was cancelled before does not reach what comes next.
    parent.ask("1.2", "sleep 0.01");
    assert!(matches!(parent.hear_end(), Some(WorkerMessage::Complete { .. })));
    parent.hang_up();
    parent.see_it_end();
    assert_eq!(marked(&world.mark), Vec::<u32>::new());
}
