//! Trying again: how often, after how long, and who hears of it.

use std::time::Duration;

use workcrew::clock::Clock;
use workcrew::{Completion, ExecuteError, NewUnit, RetryPolicy, Stop, UnitStatus};

use super::{World, next, stage, tells_attempts, tells_outcomes, until};
use crate::support::Up as _;

#[test]
fn four_executions_are_all_there_are_and_only_the_last_failure_is_called_back() {
    // 004-F52, 004-F55
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part), &world);
    let (builder, events) = tells_attempts(builder);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    for attempt_number in 1..=4 {
        assert!(outcomes.is_empty());
        let call = stage.next();
        assert_eq!(call.attempt_number, attempt_number);
        call.fail(ExecuteError::retry(format!("no. {attempt_number}")));
    }
    let unit = handle.wait().unwrap();
    assert_eq!(unit.failure.unwrap().message, "no. 4");
    assert_eq!(next(&outcomes), "failed a: FAILED");
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.attempts, stats.retried, stats.failed), (4, 3, 1));
    let expected = (1..=4).flat_map(|number| {
        let status = if number < 4 { "PENDING" } else { "FAILED" };
        [format!("starts a {number}"), format!("ends a {number}: FAILED, {status}")]
    });
    assert_eq!(events.try_iter().collect::<Vec<_>>(), expected.collect::<Vec<_>>());
    assert!(outcomes.is_empty() && stage.is_empty());
    world.assert_clean();
}

#[test]
fn the_pause_doubles_and_the_unit_waits_without_a_slot() {
    let world = World::new();
    let (part, stage) = stage();
    let policy = RetryPolicy::exponential(Duration::from_secs(8), Duration::from_secs(30));
    let (builder, events) = tells_attempts(world.pool(part).max_workers(1).retry(policy.clone()));
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    for failed in 1..=3 {
        stage.next().fail(ExecuteError::retry("again"));
        assert_eq!(next(&events), format!("starts a {failed}"));
        assert_eq!(next(&events), format!("ends a {failed}: FAILED, PENDING"));
        until(|| pool.stats().free_slots == 1);
        let unit = world.unit("a");
        let pause = (unit.not_before.unwrap() - world.clock.now().wall).to_std().unwrap();
        let longest = policy.longest_pause(failed);
        assert!(pause >= longest / 2 && pause <= longest, "{pause:?} of {longest:?}");
        assert_eq!(unit.accepted_by, Some(workcrew::OwnerId(1)));
        world.clock.advance(pause - Duration::from_millis(1));
        assert!(stage.is_empty());
        assert_eq!(world.status("a"), UnitStatus::Pending);
        world.clock.advance(Duration::from_millis(1));
    }
    stage.next().succeed("at last");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_the_provider_asks_for_is_what_is_waited() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_attempts(world.pool(part).retry(RetryPolicy::fixed(Duration::from_secs(1))));
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    for pause in [Duration::from_secs(77), Duration::ZERO] {
        stage.next().fail(ExecuteError::retry_after(pause, "slow down"));
        next(&events);
        next(&events);
        if !pause.is_zero() {
            world.clock.advance(pause - Duration::from_millis(1));
            assert_eq!(world.status("a"), UnitStatus::Pending);
            assert!(stage.is_empty());
            world.clock.advance(Duration::from_millis(1));
        }
    }
    stage.next().succeed("done");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pause_that_is_longer_than_time_itself_is_a_long_pause() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry_after(Duration::MAX, "never again"));
    until(|| pool.stats().pending == 1);
    assert!(world.unit("a").not_before.is_some());
    world.clock.advance(Duration::from_secs(365 * 24 * 3_600));
    assert!(stage.is_empty());
    pool.stop(Stop::Drain).unwrap();
    assert!(handle.is_done());
    world.assert_clean();
}

#[test]
fn what_would_fail_again_is_not_tried_again() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::give_up("bad request").kind("bad_request"));
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Failed, 1));
    assert_eq!(unit.failure.unwrap().to_string(), "bad_request: bad request");
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn waiting_for_completion_includes_the_pauses() {
    // 004-F45
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).retry(RetryPolicy::fixed(Duration::from_secs(9))).up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("again"));
    until(|| pool.stats().pending == 1);
    assert_eq!(pool.wait_for_completion_timeout(Duration::from_millis(1)), Completion::TimedOut);
    std::thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_completion());
        world.clock.advance(Duration::from_secs(9));
        let call = stage.next();
        assert!(!waiting.is_finished());
        call.succeed("done");
        assert_eq!(waiting.join().unwrap(), Completion::Done);
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_calendar_that_is_set_neither_hurries_nor_stops_a_retry() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).retry(RetryPolicy::fixed(Duration::from_secs(9))).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("again"));
    until(|| pool.stats().pending == 1);
    world.clock.jump_wall(chrono::TimeDelta::days(-3_650));
    world.clock.advance(Duration::from_secs(9));
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
