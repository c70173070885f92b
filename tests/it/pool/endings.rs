//! How executions end that do not just return: in time, too late, never, or with a panic.

use std::time::Duration;

use workcrew::executor::CancelReason;
use workcrew::{
    Archive, Completion, ExecuteError, FailureKind, NewUnit, Outcome, Stop, UnitStatus, WorkResult, WorkerStatus,
};

use super::{World, next, stage, tells_attempts, tells_outcomes, until};
use crate::support::Up as _;

const KILL_GRACE: Duration = Duration::from_millis(1_500);

#[test]
fn ten_minutes_are_the_limit_unless_the_pool_or_the_unit_says_otherwise() {
    // 004-F49, 004-F50, 004-F51
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    assert_eq!(call.timeout, Duration::from_secs(600));
    world.clock.advance(Duration::from_millis(599_999));
    assert_eq!(call.act(|call| call.time_left()), Duration::from_millis(1));
    assert_eq!(call.cancel.reason(), None, "however much it says");
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(call.asked(), CancelReason::TimedOut);
    drop(call);
    pool.stop(Stop::Drain).unwrap();

    let (part, stage) = super::stage();
    let pool = world.pool(part).timeout(Duration::from_secs(5)).up();
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    assert_eq!(stage.next().timeout, Duration::from_secs(5));
    pool.submit_work_unit(NewUnit::new("c").timeout(Duration::from_secs(7)), "go").unwrap();
    let call = stage.next();
    assert_eq!(call.timeout, Duration::from_secs(7));
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(call.cancel.reason(), None);
    world.clock.advance(Duration::from_secs(2));
    assert_eq!(call.asked(), CancelReason::TimedOut);
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn an_executor_that_obeys_its_limit_keeps_its_thread_and_what_it_brings() {
    // 004-F52
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let call = stage.next();
    call.say("thinking");
    world.clock.advance(Duration::from_secs(600));
    call.obey(Ok(WorkResult::text("half an answer").session("s-1")));
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.session_id.as_deref()), (UnitStatus::Failed, Some("s-1")));
    assert_eq!(unit.failure.unwrap().kind, FailureKind::TIMED_OUT);
    assert_eq!(next(&outcomes), "failed a: FAILED");
    let attempt = &world.attempts("a")[0];
    assert_eq!(attempt.outcome, Some(Outcome::TimedOut));
    let result = world.repository.attempt_result(attempt.key).unwrap();
    assert_eq!((result.output.as_deref(), result.late_result), (Some("half an answer"), None));
    assert_eq!(world.said("a", 1), ["thinking"]);
    assert_eq!(pool.stats().abandoned_threads, 0);
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.attempts("b")[0].worker_id, world.attempts("a")[0].worker_id);
    world.assert_clean();
}

#[test]
fn an_executor_that_never_returns_costs_a_thread_and_not_the_unit() {
    // 004-F52
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let (builder, events) = tells_attempts(builder);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(1), "go").unwrap();
    let deaf = stage.next();
    deaf.say("so far");
    deaf.act(|call| call.session("s-1"));
    world.clock.advance(Duration::from_secs(600));
    deaf.asked();
    assert_eq!(world.status("a"), UnitStatus::Processing, "it has its grace");
    world.clock.advance(KILL_GRACE);
    // Another thread has taken the worker over, and goes on with the next attempt.
    let second = stage.next();
    assert_eq!(second.attempt_number, 2);
    assert_eq!(second.act(|call| call.resume_session().map(str::to_owned)), Some("s-1".to_owned()));
    assert_eq!(pool.stats().abandoned_threads, 1);
    assert_eq!((pool.workers().len(), pool.stats().busy_workers), (1, 1), "it is counted apart");
    second.succeed("an answer");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("an answer"));
    assert_eq!(next(&outcomes), "complete a: COMPLETED");

    deaf.say("nobody listens");
    assert_eq!(deaf.act(|call| call.cancel_reason()), Some(CancelReason::TimedOut));
    deaf.succeed("too late");
    until(|| pool.stats().abandoned_threads == 0);
    assert_eq!(world.unit("a").output.as_deref(), Some("an answer"));
    let attempts = world.attempts("a");
    assert_eq!(
        attempts.iter().map(|attempt| attempt.outcome.unwrap()).collect::<Vec<_>>(),
        [Outcome::TimedOut, Outcome::Completed]
    );
    assert_eq!(attempts[0].worker_id, attempts[1].worker_id);
    let late = world.repository.attempt_result(attempts[0].key).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
    assert_eq!(world.said("a", 1), ["so far"]);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    drop(pool);
    let expected =
        ["starts a 1", "leaves a", "ends a 1: TIMED_OUT, PENDING", "starts a 2", "ends a 2: COMPLETED, COMPLETED"];
    assert_eq!(events.iter().collect::<Vec<_>>(), expected);
    assert_eq!(outcomes.iter().count(), 0);
    world.assert_clean();
}

#[test]
fn with_no_thread_to_spare_the_unit_ends_and_its_worker_is_stuck_until_the_executor_returns() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(1).max_abandoned(0);
    let (builder, outcomes) = tells_outcomes(builder, &world);
    let (builder, events) = tells_attempts(builder);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let deaf = stage.next();
    world.clock.advance(Duration::from_secs(600));
    deaf.asked();
    world.clock.advance(KILL_GRACE);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&outcomes), "failed a: FAILED");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(events.try_iter().collect::<Vec<_>>(), ["starts a 1", "is stuck with a", "ends a 1: TIMED_OUT, FAILED"]);
    let stats = pool.stats();
    assert_eq!((stats.abandoned_threads, stats.free_slots, stats.busy_workers), (0, 0, 1));
    assert!(pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err().is_at_capacity());

    deaf.succeed("too late");
    assert!(pool.wait_for_available_slot(), "its capacity comes back");
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    stage.next().succeed("b");
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.status("b"), UnitStatus::Completed);
    let late = world.repository.attempt_result(world.attempt_key("a", 1)).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
    world.assert_clean();
}

#[test]
fn no_more_threads_are_left_behind_than_allowed() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(3).max_abandoned(1).up();
    let handles: Vec<_> = ["a", "b", "c"]
        .into_iter()
        .map(|id| pool.submit_work_unit(NewUnit::new(id).max_retries(0), "go").unwrap())
        .collect();
    let deaf = stage.next_many(3);
    world.clock.advance(Duration::from_secs(600));
    deaf.iter().for_each(|call| assert_eq!(call.asked(), CancelReason::TimedOut));
    world.clock.advance(KILL_GRACE);
    for handle in &handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    }
    let stats = pool.stats();
    assert_eq!((stats.abandoned_threads, stats.free_slots), (1, 1), "one was replaced, two are stuck");
    drop(deaf);
    until(|| pool.stats().free_slots == 3 && pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn how_many_threads_may_be_left_behind_follows_the_number_of_workers() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.set_max_workers(2).unwrap();
    let handles = ["a", "b"].map(|id| pool.submit_work_unit(NewUnit::new(id).max_retries(0), "go").unwrap());
    let deaf = stage.next_many(2);
    world.clock.advance(Duration::from_secs(600));
    deaf.iter().for_each(|call| assert_eq!(call.asked(), CancelReason::TimedOut));
    world.clock.advance(KILL_GRACE);
    for handle in &handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    }
    assert_eq!((pool.stats().abandoned_threads, pool.stats().free_slots), (2, 2), "both were replaced");
    drop(deaf);
    until(|| pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// A payload whose end is another panic.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any("the bomb went off");
    }
}

#[test]
fn a_panic_is_a_failed_attempt_and_the_slot_survives() {
    // 004-F40, 004-F41
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    let panics: [(&str, fn(), &str); 4] = [
        ("text", || panic!("plain"), "plain"),
        ("formatted", || panic!("with {}", 2), "with 2"),
        ("number", || std::panic::panic_any(7), "a panic without a message"),
        ("bomb", || std::panic::panic_any(Bomb), "a panic without a message"),
    ];
    for (id, panic, message) in panics {
        let handle = pool.submit_work_unit(NewUnit::new(id).max_retries(1), "go").unwrap();
        for attempt_number in [1, 2] {
            let call = stage.next();
            assert_eq!(call.attempt_number, attempt_number);
            call.say("before");
            call.end(move |_| {
                panic();
                Ok(WorkResult::empty())
            });
        }
        let unit = handle.wait().unwrap();
        let failure = unit.failure.unwrap();
        assert_eq!((failure.kind, failure.message.as_str()), (FailureKind::PANIC, message));
        assert_eq!(next(&outcomes), format!("failed {id}: FAILED"));
        assert_eq!(world.said(id, 2), ["before"]);
    }
    let handle = pool.submit_work_unit(NewUnit::new("well"), "go").unwrap();
    stage.next().succeed("well");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(pool.workers().len(), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_broken_worker_is_replaced() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::broken("its pipe is gone"));
    stage.next().succeed("better");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    let attempts = world.attempts("a");
    assert_ne!(attempts[0].worker_id, attempts[1].worker_id);
    until(|| pool.workers().len() == 1);
    assert_eq!(pool.workers()[0].status, WorkerStatus::Ready);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn an_error_that_just_happened_fails_the_attempt_with_its_causes() {
    // 004-F39
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    stage.next().end(|_| {
        std::fs::read_to_string("/no/such/file")?;
        Ok(WorkResult::empty())
    });
    let failure = handle.wait().unwrap().failure.unwrap();
    assert_eq!(failure.kind, FailureKind::EXECUTOR);
    assert!(failure.message.contains("No such file"), "{failure}");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
