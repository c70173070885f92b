//! Workers that do as they are told: what is asked and said, whom a unit goes to, who has to go, and how all of it ends.

use serde_json::json;
use workcrew::clock::ManualClock;
use workcrew::executor::warm::Eviction;
use workcrew::ipc::{ConnectionState, ProcessState};
use workcrew::repository::By;
use workcrew::{Activity, Affinity, Outcome, Part, Stop, UnitStatus};

use super::*;

/// 002-F2, F3, F6, F7, F9, F13, F18, F49 to F53, F60, F61.
#[test]
fn a_worker_is_asked_one_unit_after_the_other_and_ends_with_its_pool() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(2));
    assert_eq!((processes.list(), processes.activity()), (vec![], Activity::Idle));
    let first = ask(&pool, "a", "pid");
    let second = ask(&pool, "b", "pid");
    assert_eq!(first.status, UnitStatus::Completed);
    assert_eq!(first.output, second.output, "by the same process");
    assert_eq!(processes.activity(), Activity::Active);
    let [view] = processes.list().try_into().unwrap();
    assert_eq!((view.number, view.state, view.connection), (1, ProcessState::Ready, ConnectionState::Connected));
    assert_eq!((view.queries_processed, view.active_request_id), (2, None));
    assert!(view.idle_for <= view.age);
    let process = view.process.unwrap();
    assert_eq!(process.pid.to_string(), first.output.unwrap());
    let recorded = world.attempts("a")[0].process.clone().unwrap();
    assert_eq!((&recorded, recorded.is_shared, recorded.reaper.is_some()), (&process, true, true));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((processes.list(), processes.activity()), (vec![], Activity::Idle));
    let expected = [
        "worker:starting 1",
        "worker:ready 1",
        "worker:busy 1: 1.1",
        "query:processing 1: 1.1",
        "query:complete 1: 1.1",
        "worker:idle 1",
        "worker:busy 1: 1.2",
        "query:processing 1: 1.2",
        "query:complete 1: 1.2",
        "worker:idle 1",
        "worker:shutting_down 1: all are to end",
        "worker:ended 1",
    ];
    assert_eq!(world.events(), expected);
    world.assert_clean();
}

/// 002-F20, F22, F25, F26, F30, F42 to F44.
#[test]
fn all_that_a_worker_says_is_kept_as_if_it_were_said_in_the_pool() {
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1));
    let unit = ask(&pool, "a", "talk");
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("done")));
    assert_eq!(unit.result, Some(json!({ "resumed": null, "had": null })));
    assert_eq!(
        (unit.session_id.as_deref(), unit.tokens.input, unit.cost.to_string()),
        (Some("s-1"), 12, "$0.000096".into())
    );
    let messages = world.messages(&world.attempts("a")[0]);
    assert_eq!(messages[0].text(), "talk");
    assert_eq!(messages[1].parts, [Part::thinking("hm")]);
    assert_eq!(messages[1].raw.as_ref().unwrap().as_bytes(), [0xff], "byte for byte");
    assert_eq!(messages[2].text(), "so f", "what was being written is kept");
    let events = world.events();
    let of_query: Vec<_> = events.iter().filter_map(|event| event.strip_prefix("query:")).collect();
    assert_eq!(of_query, ["processing 1: 1.1", "streaming 1: 1.1", "complete 1: 1.1"]);
    // A flood is all kept, and in order, however slowly it is.
    let unit = ask(&pool, "b", "flood 300");
    assert_eq!(unit.output.as_deref(), Some("all said"));
    assert_eq!(world.messages(&world.attempts("b")[0]).len(), 300);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// What was told of a query, one state after the other.
fn states(events: &[String], request_id: &str) -> Vec<String> {
    let of_query = |event: &String| {
        let (state, id) = event.strip_prefix("query:")?.split_once(' ')?;
        id.ends_with(&format!(": {request_id}")).then(|| state.to_owned())
    };
    events.iter().filter_map(of_query).collect()
}

/// 002-F20, F23, F24, F27, F28, F29.
#[test]
fn a_query_that_was_taken_fails_or_is_cancelled_whether_it_has_said_something_or_not() {
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1));
    ask(&pool, "a", "fail at once");
    ask(&pool, "b", "complain first");
    let mut events = world.events();
    for (id, prompt, state) in [("c", "brood", "query:processing 1: 1.3"), ("d", "wait", "query:streaming 1: 1.4")] {
        let unit = pool.enqueue(NewUnit::new(id), prompt).unwrap();
        events.extend(world.wait_for_all(state));
        pool.cancel(id, By::whom("test")).unwrap();
        assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled, "{id}");
    }
    pool.stop(Stop::Drain).unwrap();
    events.extend(world.events());
    assert_eq!(states(&events, "1.1"), ["processing", "error"]);
    assert_eq!(states(&events, "1.2"), ["processing", "streaming", "error"]);
    // What it says to a cancel changes nothing any more.
    assert_eq!(states(&events, "1.3"), ["processing", "cancelled"]);
    assert_eq!(states(&events, "1.4"), ["processing", "streaming", "cancelled"]);
    world.assert_clean();
}

/// 002-F10, F45.
#[test]
fn a_query_that_fails_keeps_its_worker_and_says_what_follows() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(1));
    let unit = ask(&pool, "a", "fail because");
    let failure = unit.failure.unwrap();
    assert_eq!((failure.kind.as_str(), failure.message.as_str()), ("told_to", "because"));
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 1), "given up, as it said");
    assert_eq!(world.attempts("a").len(), 1);
    let unit = ask(&pool, "b", "retry");
    let expected = "Some(\"s-2\") Some(Number(2))";
    assert_eq!((unit.output.as_deref(), unit.attempt_count), (Some(expected), 3), "with session and checkpoint");
    assert_eq!(processes.list()[0].number, 1, "by the same worker all the time");
    pool.stop(Stop::Drain).unwrap();
    assert!(!world.events().iter().any(|event| event.contains("crashed")));
    world.assert_clean();
}

#[test]
fn a_worker_knows_what_its_unit_may_still_cost_and_is_stopped_when_it_costs_more() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(1));
    let unit = NewUnit::new("a").max_cost("0.25".parse().unwrap());
    let unit = pool.enqueue(unit, "spend 0.20 0.06").unwrap().wait_timeout(LONG).unwrap();
    let failure = unit.failure.unwrap().to_string();
    assert_eq!(failure, "cost_limit: it has cost $0.26 of at most $0.25: stopped in time");
    assert_eq!(world.messages(&world.attempts("a")[1])[0].text(), "$0.05");
    assert_eq!(ask(&pool, "b", "echo hi").output.as_deref(), Some("hi"));
    assert_eq!(processes.list()[0].number, 1, "by the same worker all the time");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_panic_in_a_worker_is_told_and_the_worker_is_replaced() {
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1));
    let unit = pool.enqueue(NewUnit::new("a").max_retries(1), "panic").unwrap().wait_timeout(LONG).unwrap();
    let failure = unit.failure.unwrap();
    assert_eq!((failure.kind.as_str(), failure.message.as_str(), unit.attempt_count), ("panic", "as told", 2));
    assert_eq!(ask(&pool, "b", "echo hi").output.as_deref(), Some("hi"));
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    assert_eq!(events.iter().filter(|event| event.starts_with("worker:starting")).count(), 3);
    assert!(!events.iter().any(|event| event.contains("crashed")), "it ended in order: {events:?}");
    world.assert_clean();
}

/// A pool in which every affinity key has its process.
fn keyed(world: &World, keep: Keep, workers: usize) -> (WorkPool, Processes) {
    let (builder, processes) = world.builder(world.workers("good", keep));
    (builder.max_workers(workers).affinity(Affinity::StrictQueue).up(), processes)
}

fn pid_of(pool: &WorkPool, id: &str, key: &str) -> String {
    let unit = pool.enqueue(NewUnit::new(id).affinity_key(key), "pid").unwrap();
    unit.wait_timeout(LONG).unwrap().output.unwrap()
}

#[test]
fn units_of_a_key_have_one_process_and_those_of_a_workspace_run_there() {
    let world = World::new();
    let (pool, processes) = keyed(&world, world.keep(3), 3);
    let (ada, bob) = (pid_of(&pool, "1", "ada"), pid_of(&pool, "2", "bob"));
    assert_ne!(ada, bob);
    assert_eq!((pid_of(&pool, "3", "ada"), pid_of(&pool, "4", "bob")), (ada, bob));
    let workspace = world.folder.path().join("work");
    std::fs::create_dir(&workspace).unwrap();
    let unit = NewUnit::new("5").workspace_dir(workspace.to_str().unwrap());
    let unit = pool.enqueue(unit, "where").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(unit.output.as_deref(), workspace.canonicalize().unwrap().to_str());
    let keys: Vec<_> = processes.list().into_iter().map(|view| (view.key.session, view.key.workspace)).collect();
    assert_eq!(keys, [(Some("ada".into()), None), (Some("bob".into()), None), (None, Some(workspace))]);
    let missing = NewUnit::new("6").workspace_dir("/no/such/folder");
    let unit = pool.enqueue(missing, "where").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(unit.failure.unwrap().kind.as_str(), "workspace");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// 002-F49 to F54.
#[test]
fn how_many_there_are_says_whether_there_is_room() {
    let world = World::new();
    let (pool, processes) = keyed(&world, world.keep(2), 2);
    assert_eq!(processes.activity(), Activity::Idle);
    pid_of(&pool, "1", "ada");
    assert_eq!(processes.activity(), Activity::Active);
    pid_of(&pool, "2", "bob");
    assert_eq!(processes.activity(), Activity::AtCapacity);
    kill(&processes.list()[0]);
    world.wait_for("worker:crashed 1");
    until("its place is free", || processes.activity() == Activity::Active);
    kill(&processes.list()[0]);
    until("nobody is left", || processes.activity() == Activity::Idle);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// 002-F52, F55, F57 to F59.
#[test]
fn at_capacity_an_idle_worker_makes_room_and_which_one_is_a_matter_of_policy() {
    for (policy, victim) in [(Eviction::Lru, 1), (Eviction::Oldest, 1), (Eviction::LeastUsed, 2)] {
        let world = World::new();
        let (pool, processes) = keyed(&world, world.keep(2).eviction(policy), 2);
        pid_of(&pool, "1", "ada");
        pid_of(&pool, "2", "ada");
        pid_of(&pool, "3", "bob");
        assert_eq!(processes.activity(), Activity::AtCapacity);
        world.events();
        pid_of(&pool, "4", "eve");
        assert_eq!(processes.activity(), Activity::AtCapacity);
        let events = world.events();
        let evicted = format!("worker:shutting_down {victim}: another key needs its place");
        let place = |wanted: &str| {
            events.iter().position(|event| event == wanted).unwrap_or_else(|| panic!("{wanted}: {events:?}"))
        };
        assert!(place(&evicted) < place(&format!("worker:ended {victim}")));
        assert!(place(&format!("worker:ended {victim}")) < place("worker:starting 3"), "never more than two");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn the_policies_differ_where_age_and_use_do() {
    let world = World::new();
    let (pool, _processes) = keyed(&world, world.keep(2).eviction(Eviction::Oldest), 2);
    pid_of(&pool, "1", "ada");
    pid_of(&pool, "2", "bob");
    pid_of(&pool, "3", "ada");
    pid_of(&pool, "4", "eve");
    assert!(world.events().contains(&"worker:shutting_down 1: another key needs its place".to_owned()));
    pool.stop(Stop::Drain).unwrap();
    let world = World::new();
    let (pool, _processes) = keyed(&world, world.keep(2).eviction(Eviction::Lru), 2);
    pid_of(&pool, "1", "ada");
    pid_of(&pool, "2", "bob");
    pid_of(&pool, "3", "ada");
    pid_of(&pool, "4", "eve");
    assert!(world.events().contains(&"worker:shutting_down 2: another key needs its place".to_owned()));
    pool.stop(Stop::Drain).unwrap();
}

/// 002-F17, F21.
#[test]
fn where_nobody_can_go_a_call_waits_and_that_is_told() {
    let world = World::new();
    let (pool, processes) = keyed(&world, world.keep(1), 2);
    let busy = pool.enqueue(NewUnit::new("1").affinity_key("ada"), "wait").unwrap();
    world.wait_for("query:streaming 1");
    assert_eq!(processes.list()[0].state, ProcessState::Busy);
    assert_eq!(processes.list()[0].active_request_id.as_deref(), Some("1.1"));
    let waits = pool.enqueue(NewUnit::new("2").affinity_key("bob"), "pid").unwrap();
    world.wait_for("query:queued");
    assert_eq!(processes.list().len(), 1);
    // One that waits can be cancelled like any other.
    let other = pool.enqueue(NewUnit::new("3"), "pid").unwrap();
    pool.cancel("3", By::whom("test")).unwrap();
    assert_eq!(other.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.cancel("1", By::whom("test")).unwrap();
    assert_eq!(busy.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(waits.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn whoever_waits_for_a_process_when_the_pool_stops_is_given_back() {
    let world = World::new();
    let (pool, _processes) = keyed(&world, world.keep(1), 2);
    pool.enqueue(NewUnit::new("1").affinity_key("ada"), "wait").unwrap();
    world.wait_for("query:streaming 1");
    pool.enqueue(NewUnit::new("2").affinity_key("bob"), "pid").unwrap();
    world.wait_for("query:queued");
    pool.stop(Stop::Cancel { grace: LONG }).unwrap();
    for id in ["1", "2"] {
        let unit = world.repository.unit(world.job, id).unwrap();
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Pending, 0), "{id}");
    }
    world.assert_gone();
}

/// 002-F38.
#[test]
fn a_cancelled_query_stops_and_its_worker_goes_on_if_it_says_so() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(1));
    let unit = pool.enqueue(NewUnit::new("a"), "wait").unwrap();
    world.wait_for("query:streaming 1");
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Cancelled));
    assert_eq!(world.messages(&world.attempts("a")[0])[0].text(), "waiting", "what it said is kept");
    assert_eq!(ask(&pool, "b", "echo hi").output.as_deref(), Some("hi"));
    assert_eq!(processes.list()[0].number, 1);
    pool.stop(Stop::Drain).unwrap();
    assert!(!world.events().iter().any(|event| event.contains("starting 2")));
    world.assert_clean();
}

/// 002-F11, F15.
#[test]
fn one_that_does_not_stop_in_time_is_ended_and_so_is_one_whose_time_is_up() {
    let world = World::new();
    let (builder, _processes) =
        world.builder(world.workers("good", world.keep(1).cancel_grace(Duration::from_millis(50))));
    let clock = ManualClock::new();
    // A test that lets a timeout pass in a moment is not about leases.
    let pool = builder.clock(clock.clone()).lease(Duration::from_secs(30 * 24 * 3_600)).up();
    let unit = pool.enqueue(NewUnit::new("a"), "hang").unwrap();
    world.wait_for("query:streaming 1");
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    let rest = [world.wait_for("query:cancelled"), world.wait_for("worker:shutting"), world.wait_for("worker:ended")];
    assert_eq!(
        rest,
        [
            "query:cancelled 1: 1.1",
            "worker:shutting_down 1: its query was cancelled",
            "worker:ended 1: it had to be killed"
        ]
    );
    let unit = pool.enqueue(NewUnit::new("b").max_retries(0), "hang").unwrap();
    world.wait_for("query:streaming 2");
    clock.advance(Duration::from_secs(600));
    let unit = unit.wait_timeout(LONG).unwrap();
    assert_eq!((unit.status, unit.failure.unwrap().kind.as_str()), (UnitStatus::Failed, "timed_out"));
    assert_eq!(world.messages(&world.attempts("b")[0])[0].text(), "hanging");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// 002-F56.
#[test]
fn all_can_be_shut_down_at_any_time_and_whoever_needs_one_starts_another() {
    let world = World::new();
    let (pool, processes) = keyed(&world, world.keep(2), 2);
    processes.shut_down_all();
    let ada = pid_of(&pool, "1", "ada");
    processes.shut_down_all();
    assert_eq!(processes.list(), []);
    assert_ne!(pid_of(&pool, "2", "ada"), ada);
    // One that is busy may finish what it has.
    let busy = pool.enqueue(NewUnit::new("3").affinity_key("bob"), "wait").unwrap();
    world.wait_for("query:streaming 3");
    let shuts = std::thread::spawn({
        let processes = processes.clone();
        move || processes.shut_down_all()
    });
    world.wait_for("worker:ended 2");
    until("it is waited for alone", || processes.list().len() == 1);
    assert!(!shuts.is_finished());
    pool.cancel("3", By::whom("test")).unwrap();
    busy.wait_timeout(LONG).unwrap();
    shuts.join().unwrap();
    assert_eq!(processes.list(), []);
    pool.stop(Stop::Drain).unwrap();
    processes.shut_down_all();
    world.assert_clean();
}

#[test]
fn what_is_not_used_for_too_long_or_too_old_ends() {
    let world = World::new();
    let short = Duration::from_millis(50);
    let (pool, processes) = world.pool("good", world.keep(1).inactivity_limit(short));
    ask(&pool, "a", "echo hi");
    assert_eq!(world.wait_for("worker:shutting_down"), "worker:shutting_down 1: nobody has used it for too long");
    world.wait_for("worker:ended 1");
    until("its place is free", || processes.list().is_empty());
    pool.stop(Stop::Drain).unwrap();
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1).max_age(short));
    ask(&pool, "a", "echo hi");
    assert_eq!(world.wait_for("worker:shutting_down"), "worker:shutting_down 1: it is as old as it may become");
    assert_eq!(ask(&pool, "b", "echo hi").status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pool_that_is_stopped_at_once_or_dropped_leaves_nothing() {
    for stop in [Some(Stop::Now), Some(Stop::Cancel { grace: Duration::ZERO }), None] {
        let world = World::new();
        let (builder, processes) = world.builder(world.workers("good", world.keep(3)));
        let pool = builder.max_workers(3).up();
        ask(&pool, "a", "echo hi");
        pool.enqueue(NewUnit::new("b"), "hang").unwrap();
        world.wait_for("query:streaming");
        match stop {
            Some(stop) => drop(pool.stop(stop).unwrap()),
            None => drop(pool),
        }
        until("all are gone", || processes.list().is_empty());
        world.assert_gone();
    }
}

#[test]
fn workers_that_no_pool_ever_had_end_with_whoever_has_them() {
    let world = World::new();
    let workers = world.workers("good", world.keep(1));
    let processes = workers.processes();
    drop(workers);
    processes.shut_down_all();
    assert_eq!((processes.list(), processes.activity()), (vec![], Activity::Idle));
    let error = WorkerProcesses::new(world.command("good"), Keep::up_to(0)).unwrap_err();
    assert_eq!(error.to_string(), "the setting `max_workers` is 0, which lets nothing be done");
}

#[test]
fn a_prompt_of_ten_mebibytes_arrives_as_it_is() {
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1));
    let text = "\u{1}é\n".repeat((10 << 20) / 4);
    let unit = ask(&pool, "a", &format!("echo {text}"));
    // What comes back is longer than a message may be, in the form in which it travels.
    let failure = unit.failure.unwrap();
    assert!(failure.message.starts_with("the answer is too long"), "{}", failure.message);
    let unit = ask(&pool, "b", &format!("echo {}", "é".repeat(4 << 20)));
    assert_eq!(unit.output.map(|output| output.len()), Some(8 << 20));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_message_that_is_too_long_is_told_and_costs_nobody_anything() {
    let world = World::new();
    let (pool, processes) = world.pool("good", world.keep(1));
    assert_eq!(ask(&pool, "a", "shout 11000000").output.as_deref(), Some("said"));
    let messages = world.messages(&world.attempts("a")[0]);
    assert!(messages[0].text().starts_with("a message is too long"), "{}", messages[0].text());
    assert_eq!(ask(&pool, "b", "echo hi").output.as_deref(), Some("hi"));
    assert_eq!(processes.list()[0].number, 1, "by the same worker all the time");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_was_said_for_a_query_is_not_said_unasked() {
    let world = World::new();
    // Whoever has said too much unasked is found out when it is looked at.
    let keep = world.keep(1).health_interval(10 * LONG).inactivity_limit(Duration::from_millis(50));
    let (pool, _processes) = world.pool("good", keep);
    assert_eq!(ask(&pool, "a", "shout 2000000").output.as_deref(), Some("said"));
    world.wait_for("worker:idle 1");
    assert_eq!(world.wait_for("worker:"), "worker:shutting_down 1: nobody has used it for too long");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn who_waits_for_a_process_can_be_cancelled() {
    let world = World::new();
    let (builder, _processes) = world.builder(world.workers("good", world.keep(1)));
    // It stops by itself, and not because its pool waits for it no longer.
    let pool = builder.max_workers(2).kill_grace(4 * LONG).up();
    let busy = pool.enqueue(NewUnit::new("1").affinity_key("ada"), "wait").unwrap();
    world.wait_for("query:streaming 1");
    let waits = pool.enqueue(NewUnit::new("2").affinity_key("bob"), "pid").unwrap();
    world.wait_for("query:queued");
    pool.cancel("2", By::whom("test")).unwrap();
    assert_eq!(waits.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.cancel("1", By::whom("test")).unwrap();
    assert_eq!(busy.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_query_that_would_be_too_long_is_never_sent() {
    let world = World::new();
    let (pool, _processes) = world.pool("good", world.keep(1));
    // Each of these takes six bytes on the way.
    let unit = ask(&pool, "a", &"\u{1}".repeat(11 << 20));
    assert_eq!(unit.failure.unwrap().kind.as_str(), "invalid_request");
    assert_eq!(ask(&pool, "b", "echo hi").output.as_deref(), Some("hi"));
    pool.stop(Stop::Drain).unwrap();
    assert!(!world.events().iter().any(|event| event.contains("crashed")));
    world.assert_clean();
}

/// 002-F20, F24.
#[test]
fn a_query_that_is_taken_only_when_it_is_to_stop_is_cancelled() {
    let world = World::new();
    let workers = world.workers("takes its query when it is to stop", world.keep(1).cancel_grace(LONG));
    let pool = world.builder(workers).0.kill_grace(4 * LONG).up();
    let unit = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    world.wait_for("worker:busy 1");
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(states(&world.events(), "1.1"), ["cancelled"]);
    world.assert_clean();
}
