//! Workers that do not do as they should: each has its end, its unit too, and nothing of it is left.

use std::sync::{Arc, Mutex};

use workcrew::ipc::ConnectionState::{Connected, Connecting, Disconnected};
use workcrew::ipc::ProcessState;
use workcrew::repository::By;
use workcrew::{Stop, UnitStatus};

use super::*;

/// The end of a unit that goes to a worker of this role, once; and what was told of the worker.
fn end_of(role: &str, keep: impl FnOnce(Keep) -> Keep) -> (WorkUnit, Vec<String>, World) {
    let world = World::new();
    let (pool, _processes) = world.pool(role, keep(world.keep(1)));
    let unit = NewUnit::new("a").max_retries(0).timeout(LONG / 4);
    let unit = pool.enqueue(unit, "go").unwrap().wait_timeout(LONG).unwrap();
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    world.assert_clean();
    (unit, events, world)
}

fn failure(unit: &WorkUnit) -> (&str, &str) {
    let failure = unit.failure.as_ref().unwrap();
    (failure.kind.as_str(), &failure.message)
}

fn of_workers(events: &[String]) -> Vec<&str> {
    events.iter().map(String::as_str).filter(|event| event.starts_with("worker:")).collect()
}

/// 002-F2, F16, F31 to F34.
#[test]
fn a_connection_that_is_expected_or_there_is_closed_with_its_worker() {
    for (role, before) in
        [("never connects", (ProcessState::Starting, Connecting)), ("good", (ProcessState::Busy, Connected))]
    {
        let world = World::new();
        let (send, at_its_end) = channel();
        let (seen, looks) = (Arc::new(Mutex::new(None::<Processes>)), Mutex::new(send));
        let observed = Arc::clone(&seen);
        let keep = world.keep(1).ready_timeout(10 * LONG).observer(move |event| {
            if let (ProcessEvent::Crashed { .. }, Some(processes)) = (event, &*observed.lock().unwrap()) {
                let _ = looks.lock().unwrap().send(processes.list());
            }
        });
        let (pool, processes) = world.pool(role, keep);
        *seen.lock().unwrap() = Some(processes.clone());
        let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "hang").unwrap();
        until("it is so far", || processes.list().first().is_some_and(|view| (view.state, view.connection) == before));
        kill(&processes.list()[0]);
        let [view] = at_its_end.recv_timeout(LONG).unwrap().try_into().unwrap();
        assert_eq!((view.state, view.connection), (ProcessState::Dead, Disconnected), "{role}");
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Failed, "{role}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

/// 002-F4, F5.
#[test]
fn one_that_does_not_come_up_is_a_crash_before_it_was_ready() {
    let short = Duration::from_millis(300);
    for (role, limit, reason) in [
        ("never connects", short, "it did not say within 300ms that it is ready"),
        ("never ready", short, "it did not say within 300ms that it is ready"),
        ("hangs up before it is ready", 10 * LONG, "it hung up before it was ready"),
        ("garbage before it is ready", 10 * LONG, "a line is no JSON object with a type"),
        ("ends at once", 10 * LONG, "it ended with exit code 3 before it was ready: "),
    ] {
        let (unit, events, _world) = end_of(role, |keep| keep.ready_timeout(limit));
        assert_eq!(failure(&unit).0, "worker_not_ready", "{role}: {:?}", failure(&unit));
        let [starting, crashed] = of_workers(&events).try_into().unwrap();
        assert_eq!(starting, "worker:starting 1", "{role}");
        assert!(crashed.starts_with(&format!("worker:crashed 1: {reason}")), "{role}: {crashed}");
    }
}

#[test]
fn one_that_is_not_needed_any_more_before_it_is_ready_has_not_crashed() {
    for role in ["never connects", "never ready"] {
        let world = World::new();
        let (pool, _processes) = world.pool(role, world.keep(1).ready_timeout(10 * LONG));
        let unit = pool.enqueue(NewUnit::new("a"), "go").unwrap();
        let starting = world.wait_for("worker:");
        pool.cancel("a", By::whom("test")).unwrap();
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled, "{role}");
        pool.stop(Stop::Drain).unwrap();
        let events = [vec![starting], world.events()].concat();
        let expected = [
            "worker:starting 1",
            "worker:shutting_down 1: its query was cancelled",
            "worker:ended 1: it had to be killed",
        ];
        assert_eq!(events, expected, "{role}");
        world.assert_clean();
    }
}

#[test]
fn after_three_that_did_not_come_up_the_pool_waits_for_a_person() {
    let world = World::new();
    let (pool, _processes) = world.pool("ends at once", world.keep(1));
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    until("the pool is held", || pool.stats().hold.is_some());
    let stats = pool.stats();
    assert!(stats.hold.as_ref().is_some_and(|hold| hold.contains("there is no model")), "{:?}", stats.hold);
    pool.stop(Stop::Drain).unwrap();
    world.assert_gone();
    let unit = world.repository.unit(world.job, "a").unwrap();
    assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Pending, 2), "the third was given back");
}

#[test]
fn a_program_that_is_not_there_holds_the_pool_at_once() {
    let world = World::new();
    let workers = WorkerProcesses::new(WorkerCommand::new("/no/such/program"), world.keep(1)).unwrap();
    let (builder, _processes) = world.builder(workers);
    let pool = builder.up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    until("the pool is held", || pool.stats().hold.is_some());
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(of_workers(&world.events()), ["worker:starting 1", "worker:crashed 1: it could not be started"]);
}

#[test]
fn a_socket_that_cannot_be_holds_the_pool_and_says_why() {
    let world = World::new();
    let long = world.folder.path().join("d".repeat(120));
    let (pool, _processes) = world.pool("good", world.keep(1).socket_directory(long));
    pool.enqueue(NewUnit::new("a"), "echo hi").unwrap();
    until("the pool is held", || pool.stats().hold.is_some());
    let hold = pool.stats().hold.unwrap();
    assert!(hold.contains("choose a shorter `socket_directory`"), "{hold}");
    pool.stop(Stop::Drain).unwrap();
}

/// 002-F12, F33, F34.
#[test]
fn one_that_ends_while_it_works_is_a_crash_and_its_unit_is_tried_again_by_another() {
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1));
    let unit = ask(&pool, "a", "exit 9");
    assert_eq!((unit.output.as_deref(), unit.attempt_count), (Some("the second time"), 2));
    let first = world.attempts("a")[0].failure.clone().unwrap();
    assert_eq!(first.kind.as_str(), "worker_crashed");
    assert!(first.message.contains("ended with exit code 9 before it had answered"), "{}", first.message);
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    assert!(events.iter().any(|event| event.starts_with("worker:crashed 1: it ended with exit code 9")), "{events:?}");
    assert!(events.contains(&"query:error 1: 1.1".to_owned()), "{events:?}");
    world.assert_clean();
}

#[test]
fn one_that_is_killed_while_it_works_resolves_its_unit_at_once() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(1));
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "hang").unwrap();
    world.wait_for("query:streaming 1");
    kill(&processes.list()[0]);
    let unit = unit.wait_timeout(LONG).unwrap();
    assert_eq!(failure(&unit).0, "worker_crashed");
    assert!(failure(&unit).1.contains("was ended by signal 9"), "{:?}", failure(&unit));
    assert_eq!(world.messages(&world.attempts("a")[0])[0].text(), "hanging", "what it said is kept");
    pool.stop(Stop::Drain).unwrap();
    assert!(world.events().contains(&"query:error 1: 1.1".to_owned()));
    world.assert_clean();
}

/// 002-F8.
#[test]
fn one_that_ends_while_it_waits_is_a_crash_unless_it_ends_in_order() {
    for (role, end) in [
        ("ends in order when idle", "worker:ended 1"),
        ("ends badly when idle", "worker:crashed 1: it ended with exit code 7"),
        ("hangs up when idle", "worker:crashed 1: it hung up"),
    ] {
        let world = World::new();
        let (pool, processes) = world.pool(role, world.keep(1));
        assert_eq!(ask(&pool, "a", "go").output.as_deref(), Some("done"), "{role}");
        world.wait_for(end);
        until("its place is free", || processes.list().is_empty());
        assert_eq!(ask(&pool, "b", "go").status, UnitStatus::Completed, "{role}: another takes its place");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn one_that_hangs_up_in_the_middle_of_a_message_keeps_what_was_whole() {
    let (unit, events, world) = end_of("hangs up in the middle", |keep| keep);
    assert_eq!(failure(&unit).0, "worker_crashed");
    let messages = world.messages(&world.attempts("a")[0]);
    assert_eq!(messages[0].text(), "whole");
    assert_eq!(messages.len(), 2, "the half is kept as it came: {messages:?}");
    assert_eq!(of_workers(&events)[3], "worker:crashed 1: it hung up");
}

#[test]
fn one_that_ends_in_the_middle_of_its_answer_is_told_by_its_end() {
    let (unit, events, _world) = end_of("ends in the middle of its answer", |keep| keep);
    assert!(failure(&unit).1.contains("ended with exit code 9 before it had answered"), "{:?}", failure(&unit));
    assert!(of_workers(&events)[3].starts_with("worker:crashed 1: it ended with exit code 9"), "{events:?}");
}

#[test]
fn garbage_costs_no_answer_but_the_worker() {
    for role in ["garbage", "speaks of another request", "too long", "too long a message"] {
        let (unit, events, _world) = end_of(role, |keep| keep);
        assert_eq!(unit.output.as_deref(), Some("done"), "{role}: what was paid for counts");
        let last = of_workers(&events).split_off(3);
        let expected = ["worker:idle 1", "worker:shutting_down 1: it is not to be used again"];
        assert_eq!(last[..2], expected, "{role}: {events:?}");
    }
    let (_, _, world) = end_of("garbage", |keep| keep);
    let kept: Vec<_> = world.messages(&world.attempts("a")[0]).iter().map(workcrew::Message::text).collect();
    assert_eq!(kept, ["this is no message", "\u{fffd}", "{\"type\":\"session\"}"]);
}

#[test]
fn nothing_but_garbage_or_the_answer_to_another_request_ends_the_worker() {
    for (role, reason) in [
        ("nothing but garbage", "a line is no JSON object with a type"),
        ("an answer that makes no sense", "a message of type `complete` is malformed: missing field `result`"),
        (
            "half a character in its answer",
            "a message of type `complete` is malformed: unexpected end of hex escape at line 1 column 64",
        ),
        ("another request", "it speaks of a request `another` that it never got"),
        ("too long an answer", "it says 10485835 bytes at once"),
    ] {
        let (unit, events, _world) = end_of(role, |keep| keep);
        assert_eq!(failure(&unit).0, "worker_crashed", "{role}");
        assert_eq!(of_workers(&events)[3], format!("worker:crashed 1: {reason}"), "{role}");
    }
}

#[test]
fn one_that_floods_while_it_waits_is_ended() {
    for role in ["floods when idle", "chatters when idle", "says without end that it is well"] {
        let world = World::new();
        // By what it says, and not because it does not hear that it is asked whether it is well.
        let keep = world.keep(1).shutdown_grace(Duration::from_millis(100)).health_interval(10 * LONG);
        let (pool, processes) = world.pool(role, keep);
        assert_eq!(ask(&pool, "a", "go").output.as_deref(), Some("done"), "{role}");
        // It may have begun before its answer was taken in; then it is told to end, which it does not hear.
        until("its place is free", || processes.list().is_empty());
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn one_that_says_what_it_must_not_while_it_waits_is_ended() {
    for (role, reason) in [
        ("speaks of another request when idle", "it speaks of a request `another` that it never got"),
        ("says that it ends when idle", "it says that it ends, though nobody told it to"),
    ] {
        let world = World::new();
        let keep = world.keep(1).health_interval(Duration::from_millis(50)).health_timeout(10 * LONG);
        let (pool, processes) = world.pool(role, keep);
        ask(&pool, "a", "go");
        assert_eq!(world.wait_for("worker:crashed"), format!("worker:crashed 1: {reason}"));
        until("its place is free", || processes.list().is_empty());
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

/// 002-F14.
#[test]
fn one_that_ignores_shutdown_is_killed_and_one_that_only_says_so_too() {
    let grace = Duration::from_millis(100);
    let (unit, events, _world) = end_of("ignores shutdown", |keep| keep.shutdown_grace(grace));
    assert_eq!(unit.status, UnitStatus::Completed);
    assert_eq!(of_workers(&events).last(), Some(&"worker:ended 1: it had to be killed"));
    let (unit, events, _world) = end_of("acknowledges and stays", |keep| keep);
    assert_eq!(unit.status, UnitStatus::Completed);
    assert_eq!(of_workers(&events).last(), Some(&"worker:ended 1"));
}

#[test]
fn one_that_ignores_a_cancel_has_no_longer_than_its_grace_or_a_third_of_its_pools() {
    let (short, long) = (Duration::from_millis(50), 4 * LONG);
    for (cancel_grace, kill_grace) in [(short, long), (long, 3 * short)] {
        let world = World::new();
        let workers = world.workers("ignores cancel", world.keep(1).cancel_grace(cancel_grace));
        let pool = world.builder(workers).0.kill_grace(kill_grace).up();
        let unit = pool.enqueue(NewUnit::new("a"), "go").unwrap();
        world.wait_for("query:streaming 1");
        pool.cancel("a", By::whom("test")).unwrap();
        world.wait_for("worker:ended 1: it had to be killed");
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn one_that_ignores_that_it_is_to_end_has_no_longer_than_its_grace() {
    let world = World::new();
    let keep = world.keep(1).inactivity_limit(Duration::from_millis(50)).shutdown_grace(Duration::from_millis(100));
    let (pool, processes) = world.pool("ignores shutdown", keep);
    ask(&pool, "a", "go");
    // Not by whoever would end it at last.
    world.wait_for("worker:ended 1: it had to be killed");
    until("its place is free", || processes.list().is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// 002-F11.
#[test]
fn after_a_cancel_only_one_that_says_so_goes_on() {
    for (role, ends) in [
        ("ignores cancel", "worker:ended 1: it had to be killed"),
        ("stops and does not say whether it can go on", "worker:ended 1"),
    ] {
        let world = World::new();
        let (pool, _processes) = world.pool(role, world.keep(1));
        let unit = pool.enqueue(NewUnit::new("a"), "go").unwrap();
        world.wait_for("query:streaming 1");
        pool.cancel("a", By::whom("test")).unwrap();
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled, "{role}");
        assert_eq!(world.wait_for("worker:shutting_down"), "worker:shutting_down 1: its query was cancelled", "{role}");
        assert_eq!(world.wait_for("worker:ended"), ends, "{role}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn one_that_stops_and_ends_in_order_has_not_crashed() {
    let world = World::new();
    // It has as long as it takes until its end is known.
    let workers = world.workers("stops and ends in order", world.keep(1).cancel_grace(LONG));
    let pool = world.builder(workers).0.kill_grace(4 * LONG).up();
    let unit = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    world.wait_for("query:streaming 1");
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.events(), ["query:cancelled 1: 1.1", "worker:ended 1"]);
    world.assert_clean();
}

#[test]
fn what_a_worker_still_says_of_a_cancelled_query_is_not_taken_for_the_next() {
    let world = World::new();
    let (pool, _processes) = world.pool("says late what it was asked before", world.keep(1));
    let unit = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    world.wait_for("query:streaming 1");
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(ask(&pool, "b", "go").output.as_deref(), Some("done"));
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    assert_eq!(of_workers(&events).iter().filter(|event| event.contains("crashed")).count(), 0, "{events:?}");
    assert!(events.contains(&"query:complete 1: 1.2".to_owned()), "{events:?}");
    world.assert_clean();
}

/// 002-F40, F47.
#[test]
fn one_that_does_not_say_that_it_is_well_is_taken_for_dead() {
    let short = Duration::from_millis(50);
    let often = |keep: Keep| keep.health_interval(short).health_timeout(short);
    let reason = "worker:crashed 1: it did not say that it is well within 50ms";
    let (unit, events, _world) = end_of("does not say that it is well", often);
    assert_eq!(failure(&unit).0, "worker_crashed");
    assert_eq!(of_workers(&events)[3], reason);
    let world = World::new();
    let (pool, processes) = world.pool("is not well when idle", often(world.keep(1)));
    ask(&pool, "a", "go");
    world.wait_for(reason);
    until("its place is free", || processes.list().is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn one_that_is_well_says_so_while_it_works_and_while_it_waits() {
    let world = World::new();
    let keep = world.keep(1).health_interval(Duration::from_millis(50));
    let (pool, processes) = world.pool("is well", keep);
    assert_eq!(ask(&pool, "a", "go").output.as_deref(), Some("done"));
    let well = |uptime: f64| {
        move |view: &workcrew::executor::warm::ProcessView| view.health.is_some_and(|h| h.uptime == uptime)
    };
    until("it has said so again", || processes.list().iter().any(well(4.5)));
    assert!(world.events().iter().filter(|event| *event == "worker:healthy 1").count() >= 2);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn one_that_talks_all_the_time_is_asked_whether_it_is_well_too() {
    let keep = |keep: Keep| keep.health_interval(Duration::from_millis(50));
    let (unit, events, _world) = end_of("talks until it is asked whether it is well", keep);
    assert_eq!(unit.output.as_deref(), Some("done"), "{:?}", unit.failure);
    assert!(events.contains(&"worker:healthy 1".to_owned()), "{events:?}");
}

#[test]
fn whoever_speaks_of_its_query_lives() {
    let keep = |keep: Keep| keep.health_interval(Duration::from_millis(50));
    let (unit, _events, _world) = end_of("talks instead of saying that it is well", keep);
    assert_eq!(unit.output.as_deref(), Some("done"), "{:?}", unit.failure);
}

#[test]
fn to_say_that_it_is_well_when_asked_is_never_too_much() {
    let world = World::new();
    let (pool, processes) = world.pool("is well at length", world.keep(1).health_interval(Duration::from_millis(1)));
    ask(&pool, "a", "go");
    // More than it may say unasked.
    (0..30).for_each(|_| assert_eq!(world.wait_for("worker:healthy"), "worker:healthy 1"));
    ask(&pool, "b", "go");
    assert_eq!(processes.list()[0].number, 1, "by the same");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn one_that_has_just_ended_costs_the_next_unit_no_attempt() {
    let world = World::new();
    let (pool, _processes) = world.pool("ends in order when idle", world.keep(1));
    for number in 0..20 {
        let unit = ask(&pool, &number.to_string(), "go");
        assert_eq!((unit.output.as_deref(), unit.attempt_count), (Some("done"), 1), "{number}");
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn one_that_ends_in_order_as_soon_as_it_is_ready_has_not_crashed() {
    let (unit, events, _world) = end_of("ready and gone", |keep| keep);
    assert_eq!(failure(&unit).0, "worker_crashed", "the next one would be as new");
    assert_eq!(events[2..], ["worker:busy 1: 1.1", "query:rejected 1: 1.1", "worker:ended 1"]);
}

/// The end of the second unit that a worker of this role gets, and what was told from then on.
fn second_of(role: &str) -> (WorkUnit, Vec<String>) {
    // Whatever ends it is found out at once, and not when it is asked whether it is well.
    second_asked_every(10 * LONG, role)
}

/// The same of one that is asked so often whether it is well.
fn second_asked_every(health_interval: Duration, role: &str) -> (WorkUnit, Vec<String>) {
    let world = World::new();
    let (pool, _processes) = world.pool(role, world.keep(1).health_interval(health_interval));
    ask(&pool, "a", "go");
    world.wait_for("worker:idle 1");
    let unit = pool.enqueue(NewUnit::new("b").max_retries(0), "go").unwrap().wait_timeout(LONG).unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
    (unit, world.events())
}

#[test]
fn one_that_ended_in_order_before_it_had_read_its_query_has_not_crashed_and_another_is_asked() {
    let (unit, events) = second_of("ends in order before its second query");
    assert_eq!((unit.output.as_deref(), unit.attempt_count), (Some("done"), 1), "{:?}", unit.failure);
    assert_eq!(events[..3], ["worker:busy 1: 1.2", "query:rejected 1: 1.2", "worker:ended 1"]);
}

#[test]
fn one_that_could_not_be_told_its_query_costs_no_attempt() {
    let (unit, events) = second_of("hears nothing any more");
    assert_eq!((unit.output.as_deref(), unit.attempt_count), (Some("done"), 1), "{:?}", unit.failure);
    assert_eq!(events[..3], ["worker:busy 1: 1.2", "query:rejected 1: 1.2", "worker:crashed 1: it hung up"]);
}

#[test]
fn one_that_ends_with_its_query_unanswered_has_crashed_and_that_counts() {
    for (role, end) in [
        ("ends badly with its second query", "it ended with exit code 9"),
        ("ends in order with its second query", "it ended with exit code 0"),
        ("ends badly before its second query", "it ended with exit code 9"),
    ] {
        let (unit, events) = second_of(role);
        assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 1), "{role}");
        assert_eq!(failure(&unit).0, "worker_crashed", "{role}");
        assert!(events[2].starts_with(&format!("worker:crashed 1: {end}")), "{role}: {events:?}");
    }
}

#[test]
fn one_that_has_read_its_query_has_got_it_whatever_else_it_has_not_read() {
    let role = "ends in order with a question that it has not read";
    let (unit, events) = second_asked_every(Duration::from_millis(500), role);
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 1));
    assert!(events.iter().any(|event| event.starts_with("worker:crashed 1: it ended with exit code 0")), "{events:?}");
}

/// 002-F21.
#[test]
fn one_that_refuses_has_not_taken_it() {
    let (unit, events, _world) = end_of("refuses", |keep| keep);
    assert_eq!(failure(&unit), ("worker", "not in the mood"));
    assert!(events.contains(&"query:rejected 1: 1.1".to_owned()));
    assert!(of_workers(&events).contains(&"worker:idle 1"));
}

#[test]
fn one_that_says_nothing_for_too_long_is_ended_if_there_is_a_limit_however_well_it_is() {
    let world = World::new();
    let command = world.command("good").silence_limit(Duration::from_millis(300));
    let keep = world.keep(1).health_interval(Duration::from_millis(50));
    let workers = WorkerProcesses::new(command, keep).unwrap();
    let (builder, _processes) = world.builder(workers);
    let pool = builder.up();
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "hang").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(failure(&unit).0, "silent");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_is_said_of_an_earlier_query_does_not_break_the_silence() {
    let world = World::new();
    let command = world.command("only speaks of what it was asked before").silence_limit(Duration::from_millis(300));
    let (builder, _processes) = world.builder(WorkerProcesses::new(command, world.keep(1)).unwrap());
    let pool = builder.up();
    ask(&pool, "a", "go");
    let unit = NewUnit::new("b").max_retries(0).timeout(LONG / 4);
    let unit = pool.enqueue(unit, "go").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(failure(&unit).0, "silent");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn one_that_never_stops_talking_is_ended_with_its_query() {
    const LIMIT_BYTES: u64 = 1 << 20;
    for role in ["floods while it works", "chatters while it works", "never ends its line"] {
        let world = World::new();
        let (builder, _processes) = world.builder(world.workers(role, world.keep(1)));
        let pool = builder.conversation_limit_bytes(LIMIT_BYTES).up();
        let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "go").unwrap();
        world.wait_for("worker:busy 1");
        pool.cancel("a", By::whom("test")).unwrap();
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled, "{role}");
        let stored: usize = world.messages(&world.attempts("a")[0]).iter().map(|message| message.text().len()).sum();
        assert!(stored as u64 <= LIMIT_BYTES, "{role}: {stored} bytes");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}
