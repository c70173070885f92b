//! What does not happen often: all of it at the wrong moment, for too long or again and again.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use workcrew::executor::claude_cli::{Between, ClaudeSession};
use workcrew::ipc::ConnectionState;
use workcrew::repository::By;
use workcrew::{Call, ExecuteError, Executor, Stop, UnitStatus, WorkResult};

use super::claude::{SLOW_TO_CLEAR, agent, notes, pool as pool_of, starts, told};
use super::*;

/// How often the thread of an attempt has gone to sleep so far.
fn sleeps(thread: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:")).unwrap();
    line.trim().parse().unwrap()
}

/// An executor that says on which thread it works.
struct Located(ClaudeSession, Mutex<std::sync::mpsc::Sender<String>>);

impl Executor for Located {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let thread = std::fs::read_link("/proc/thread-self").unwrap();
        self.1.lock().unwrap().send(thread.file_name().unwrap().to_str().unwrap().to_owned()).unwrap();
        self.0.execute(call)
    }

    fn pool_stopped(&self, grace: Duration) {
        self.0.pool_stopped(grace);
    }
}

#[test]
fn one_that_cannot_be_asked_whether_it_is_well_is_waited_for_at_rest() {
    let world = World::new();
    let interval = Duration::from_millis(50);
    let keep = world.keep(1).health_interval(interval);
    let session = ClaudeSession::new(agent(&world), Between::Clear, keep).unwrap();
    let (send, threads) = channel();
    let pool = pool_of(&world, Located(session, Mutex::new(send)));
    let unit = pool.enqueue(NewUnit::new("a"), "wait").unwrap();
    let thread = threads.recv_timeout(LONG).unwrap();
    assert!(unit.messages().any(|said| said.unwrap().message.text() == "waiting"));
    let (began, before) = (Instant::now(), sleeps(&thread));
    // How often it wakes is counted over a time.
    while began.elapsed() < 10 * interval {
        std::thread::park_timeout(interval);
    }
    let (took, slept) = (began.elapsed(), sleeps(&thread) - before);
    let expected = took.as_millis() / interval.as_millis();
    assert!(u128::from(slept) < 4 * expected + 20, "it woke {slept} times in {took:?}");
    pool.cancel("a", By::whom("test")).unwrap();
    unit.wait_timeout(LONG).unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn there_may_be_no_limit_to_how_long_it_lives_on_after_its_answer() {
    let world = World::new();
    let agent = agent(&world).after_result_limit(Duration::MAX);
    let pool = pool_of(&world, ClaudeSession::new(agent, Between::Clear, world.keep(1)).unwrap());
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "background").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(unit.output.as_deref(), Some("it is done"), "{:?}", unit.failure);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn who_waited_for_a_conversation_carries_it_on_also_if_its_process_went_meanwhile() {
    let world = World::new();
    let keep = world.keep(1).max_age(Duration::from_millis(1));
    let session = ClaudeSession::new(agent(&world), Between::Nothing, keep).unwrap();
    let builder = WorkPool::builder(world.job, session, world.repository.clone()).max_workers(2);
    let pool = builder.up();
    let first = pool.enqueue(NewUnit::new("1").affinity_key("ada"), "wait").unwrap();
    assert!(first.messages().any(|said| said.unwrap().message.text() == "waiting"));
    let second = pool.enqueue(NewUnit::new("2").affinity_key("ada"), "hello").unwrap();
    world.wait_for("query:queued");
    pool.cancel("1", By::whom("test")).unwrap();
    let (first, second) = (first.wait_timeout(LONG).unwrap(), second.wait_timeout(LONG).unwrap());
    assert_eq!(starts(&world), 2, "it was too old");
    assert!(first.session_id.is_some());
    assert_eq!(first.session_id, second.session_id, "{:?}", notes(&world));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_was_cleared_for_a_unit_that_was_then_cancelled_is_not_carried_on() {
    let world = World::new();
    let keep = world.keep(1).cancel_grace(LONG);
    let session = ClaudeSession::new(agent(&world).env(SLOW_TO_CLEAR, "1"), Between::Clear, keep).unwrap();
    let builder = WorkPool::builder(world.job, session, world.repository.clone()).max_workers(1);
    let pool = builder.kill_grace(3 * LONG).up();
    let first = ask(&pool, "1", "hello").session_id.unwrap();
    let second = pool.enqueue(NewUnit::new("2"), "hello").unwrap();
    until("it clears", || told(&world).contains(&"/clear".to_owned()));
    pool.cancel("2", By::whom("test")).unwrap();
    assert_eq!(second.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    let third = NewUnit::new("3").resume_session(&first);
    let third = pool.enqueue(third, "hello").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(third.session_id, Some(first), "{:?}", notes(&world));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_session_has_one_process_at_a_time_also_if_that_was_not_started_for_it() {
    let world = World::new();
    let session = ClaudeSession::new(agent(&world), Between::Clear, world.keep(2)).unwrap();
    let pool = WorkPool::builder(world.job, session, world.repository.clone()).max_workers(2).up();
    let first = ask(&pool, "1", "hello").session_id.unwrap();
    let carries_on = |id: &str| NewUnit::new(id).resume_session(&first);
    let second = pool.enqueue(carries_on("2"), "wait").unwrap();
    assert!(second.messages().any(|said| said.unwrap().message.text() == "waiting"));
    let third = pool.enqueue(carries_on("3"), "hello").unwrap();
    world.wait_for("query:queued");
    pool.cancel("2", By::whom("test")).unwrap();
    assert_eq!(second.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(third.wait_timeout(LONG).unwrap().output.as_deref(), Some("hello, 3 heard"));
    assert_eq!(starts(&world), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn who_has_worked_for_a_while_has_taken_its_query_also_if_it_never_said_so() {
    let world = World::new();
    let (pool, _processes) = world.pool("dies of its second query after a while", world.keep(1));
    ask(&pool, "a", "go");
    let unit = pool.enqueue(NewUnit::new("b").max_retries(0), "go").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(unit.failure.unwrap().kind.as_str(), "worker_crashed");
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    assert_eq!(events.iter().filter(|event| event.starts_with("worker:busy")).count(), 2, "{events:?}");
    world.assert_clean();
}

#[test]
fn one_that_has_hung_up_is_not_asked() {
    let world = World::new();
    let (pool, processes) = world.pool("hangs up when idle", world.keep(1));
    ask(&pool, "a", "go");
    until("it has hung up", || {
        processes.list().first().is_none_or(|view| view.connection == ConnectionState::Disconnected)
    });
    let unit = pool.enqueue(NewUnit::new("b").max_retries(0), "go").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(unit.output.as_deref(), Some("done"), "{:?}", unit.failure);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// Stops a pool, and says whether that was over in time. If not, nobody waits for it any more.
fn stops(pool: WorkPool, stop: Stop) -> bool {
    let (done, over) = channel();
    std::thread::spawn(move || {
        pool.stop(stop).unwrap();
        done.send(()).unwrap();
    });
    over.recv_timeout(LONG / 2).is_ok()
}

#[test]
fn a_pool_that_is_stopped_at_once_does_not_wait_for_one_that_was_told_to_go_before() {
    let world = World::new();
    let (builder, _processes) = world.builder(world.workers("ignores shutdown", world.keep(1).shutdown_grace(LONG)));
    let pool = builder.max_workers(1).up();
    pool.enqueue(NewUnit::new("1").affinity_key("ada"), "go").unwrap().wait_timeout(LONG).unwrap();
    pool.enqueue(NewUnit::new("2").affinity_key("bob"), "go").unwrap();
    world.wait_for("worker:shutting_down 1: another key needs its place");
    assert!(stops(pool, Stop::Now));
    world.assert_gone();
}

#[test]
fn a_pool_that_drains_waits_no_longer_than_it_may_and_not_for_one_that_ends_by_its_word_or_cannot_be_told() {
    for (role, grace, end) in [
        ("ignores shutdown", Duration::from_millis(100), "worker:ended 1: it had to be killed"),
        ("acknowledges and stays", 4 * LONG, "worker:ended 1"),
        ("hears nothing any more", 4 * LONG, "worker:ended 1: it had to be killed"),
    ] {
        let world = World::new();
        let workers = world.workers(role, world.keep(1).shutdown_grace(4 * LONG));
        let pool = world.builder(workers).0.shutdown_grace(grace).up();
        ask(&pool, "a", "go");
        assert!(stops(pool, Stop::Drain), "{role}");
        assert_eq!(world.events().last().map(String::as_str), Some(end), "{role}");
        world.assert_clean();
    }
}

#[test]
fn one_that_has_stopped_whoever_ends_it_keeps_nobody_waiting() {
    let world = World::new();
    let (pool, _processes) = world.pool("stops whoever ends it", world.keep(1));
    assert_eq!(ask(&pool, "a", "go").output.as_deref(), Some("done"));
    assert!(stops(pool, Stop::Drain));
    world.assert_clean();
}

#[test]
fn a_pool_can_be_stopped_and_dropped_by_whoever_hears_of_its_processes() {
    let world = World::new();
    let held: Arc<Mutex<Option<WorkPool>>> = Arc::default();
    let (send, stopped) = channel();
    let (observed, send) = (Arc::clone(&held), Mutex::new(send));
    let keep = world.keep(1).inactivity_limit(Duration::from_millis(200)).observer(move |event| {
        if matches!(event, ProcessEvent::ShuttingDown { .. })
            && let Some(pool) = observed.lock().unwrap().take()
        {
            pool.stop(Stop::Drain).unwrap();
            drop(pool);
            send.lock().unwrap().send(()).unwrap();
        }
    });
    let (pool, processes) = world.pool("good", keep);
    let handle = pool.handle();
    let unit = pool.enqueue(NewUnit::new("a"), "echo hi").unwrap();
    *held.lock().unwrap() = Some(pool);
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    stopped.recv_timeout(LONG / 2).unwrap();
    drop(handle);
    until("all are gone", || processes.list().is_empty());
    world.assert_clean();
}

#[test]
fn whoever_hears_of_a_process_can_have_all_end() {
    let world = World::new();
    let seen: Arc<Mutex<Option<Processes>>> = Arc::default();
    let observed = Arc::clone(&seen);
    let keep = world.keep(1).observer(move |event| {
        let processes = observed.lock().unwrap().clone();
        if let (ProcessEvent::Busy { .. }, Some(processes)) = (event, processes) {
            processes.shut_down_all();
        }
    });
    let (pool, processes) = world.pool("good", keep);
    *seen.lock().unwrap() = Some(processes.clone());
    let unit = pool.enqueue(NewUnit::new("a"), "echo hi").unwrap();
    assert_eq!(unit.wait_timeout(LONG / 2).unwrap().status, UnitStatus::Completed);
    until("it has ended", || processes.list().is_empty());
    assert!(stops(pool, Stop::Drain));
    world.assert_clean();
}

#[test]
fn who_waits_for_a_place_is_not_passed_by_for_ever() {
    let world = World::new();
    let (builder, _processes) = world.builder(world.workers("good", world.keep(1)));
    let pool = builder.max_workers(8).up();
    let first = pool.enqueue(NewUnit::new("first"), "wait").unwrap();
    world.wait_for("query:streaming 1");
    let of_key = pool.enqueue(NewUnit::new("of a key").affinity_key("ada"), "echo hi").unwrap();
    world.wait_for("query:queued");
    let others: Vec<_> =
        (0..200).map(|n| pool.enqueue(NewUnit::new(format!("other {n}")), "echo ho").unwrap()).collect();
    world.wait_for("query:queued");
    pool.cancel("first", By::whom("test")).unwrap();
    first.wait_timeout(LONG).unwrap();
    assert_eq!(of_key.wait_timeout(LONG).unwrap().output.as_deref(), Some("hi"));
    others.into_iter().for_each(|other| drop(other.wait_timeout(LONG).unwrap()));
    pool.stop(Stop::Drain).unwrap();
    let events = world.events();
    let before = events.iter().take_while(|event| *event != "worker:ready 2");
    let passed = before.filter(|event| event.starts_with("query:complete")).count();
    assert!(passed < 100, "{passed} came first");
    world.assert_clean();
}

#[test]
fn a_cancel_behind_a_long_query_that_is_not_read_keeps_nobody_waiting() {
    let world = World::new();
    let (pool, _processes) = world.pool("never reads", world.keep(1).health_interval(LONG));
    let unit = pool.enqueue(NewUnit::new("a"), "x".repeat(10 << 20)).unwrap();
    world.wait_for("worker:busy");
    pool.cancel("a", By::whom("test")).unwrap();
    assert_eq!(unit.wait_timeout(LONG / 2).unwrap().status, UnitStatus::Cancelled);
    assert!(stops(pool, Stop::Drain));
    world.assert_clean();
}

#[test]
fn one_that_leaves_its_connection_to_another_and_ends_has_ended() {
    let world = World::new();
    let (pool, _processes) = world.pool("leaves its connection to another", world.keep(1));
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "go").unwrap().wait_timeout(LONG / 2).unwrap();
    assert_eq!(unit.failure.unwrap().kind.as_str(), "worker_crashed");
    assert!(stops(pool, Stop::Drain));
    world.assert_clean();
}

#[test]
fn one_that_hears_nothing_any_more_is_found_out() {
    let world = World::new();
    let short = Duration::from_millis(100);
    let (pool, _processes) =
        world.pool("hears nothing any more", world.keep(1).health_interval(short).health_timeout(short));
    assert_eq!(ask(&pool, "a", "go").output.as_deref(), Some("done"));
    assert_eq!(ask(&pool, "b", "go").output.as_deref(), Some("done"));
    assert!(stops(pool, Stop::Drain));
    world.assert_clean();
}

#[test]
fn one_that_does_not_listen_is_not_waited_for_also_if_it_cannot_be_asked_whether_it_is_well() {
    let world = World::new();
    let script = world.folder.path().join("deaf");
    let result = r#"{"type":"result","subtype":"success","is_error":false,"result":"done"}"#;
    let init = r#"{"type":"system","subtype":"init","session_id":"s","model":"m"}"#;
    let text = format!("#!/bin/sh\nread -r prompt\nexec 0</dev/null\necho '{init}'\necho '{result}'\nexec sleep 999\n");
    std::fs::write(&script, text).unwrap();
    std::fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let keep = world.keep(1).shutdown_grace(Duration::from_millis(100));
    let pool = pool_of(&world, ClaudeSession::new(agent(&world).program(script), Between::Nothing, keep).unwrap());
    let ask = |id: &str| {
        let unit = NewUnit::new(id).affinity_key("ada").max_retries(0);
        pool.enqueue(unit, "hello").unwrap().wait_timeout(LONG / 2).unwrap()
    };
    assert_eq!(ask("a").output.as_deref(), Some("done"), "it had heard that");
    assert_eq!(world.wait_for("worker:crashed"), "worker:crashed 1: it hung up");
    assert_eq!(ask("b").output.as_deref(), Some("done"), "by another");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
