//! Pauses and holds: nothing begins, what runs goes on, and nothing is used up.

use std::thread;
use std::time::Duration;

use workcrew::clock::Clock;
use workcrew::{Archive as _, Completion, ExecuteError, NewUnit, Outcome, Refusal, Stop, UnitStatus};

use super::{World, next, stage, tells_attempts, until};
use crate::support::Up as _;

#[test]
fn a_paused_pool_begins_nothing_and_lets_go_on_what_runs() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    pool.pause();
    assert_eq!(pool.stats().hold.as_deref(), Some("paused"));
    let refused = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err();
    assert!(matches!(&refused.reason, Refusal::Held { reason } if reason == "paused"), "{refused}");
    assert!(!pool.wait_for_available_slot_timeout(Duration::from_millis(1)));
    call.fail(ExecuteError::retry("again"));
    until(|| pool.stats().pending == 1);
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("paused".to_owned()));
    assert!(stage.is_empty());
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        pool.resume();
        assert!(waiting.join().unwrap());
    });
    assert_eq!(pool.stats().hold, None);
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn whoever_was_promised_a_place_before_a_hold_gets_its_unit_stored_and_not_executed() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    assert!(pool.wait_for_available_slot());
    let permit = pool.acquire_slot().unwrap();
    pool.pause();
    let handles = [
        pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap(),
        permit.submit(NewUnit::new("b").max_retries(0), "go").unwrap(),
    ];
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("paused".to_owned()));
    for id in ["a", "b"] {
        let unit = world.unit(id);
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Pending, 0), "{id}");
    }
    assert!(stage.is_empty(), "nothing was executed");
    until(|| pool.stats().free_slots == 2);
    pool.resume();
    stage.next_many(2).into_iter().for_each(|call| call.succeed("done"));
    for handle in handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_hold_without_an_end_waits_for_a_person_and_uses_up_no_attempt() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_attempts(world.pool(part).max_workers(1));
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let call = stage.next();
    call.say("so far");
    call.act(|call| call.usage(super::capture::charge(1)));
    call.fail(ExecuteError::hold("the key is wrong").kind("auth"));
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("auth: the key is wrong".to_owned()));
    let expected = ["starts a 1", "held: auth: the key is wrong", "ends a 1: RELEASED, PENDING"];
    assert_eq!(events.try_iter().collect::<Vec<_>>(), expected);
    let unit = world.unit("a");
    assert_eq!((unit.status, unit.attempt_count, unit.attempts_used), (UnitStatus::Pending, 1, 0));
    assert_eq!(unit.cost.amount, super::capture::cents(1), "what it used was used");
    assert_eq!(world.said("a", 1), ["so far"]);
    let attempt = &world.attempts("a")[0];
    assert_eq!((attempt.outcome, attempt.is_counted), (Some(Outcome::Released), false));
    // What was said is where a purge can remove it, which it cannot in the journal.
    assert_eq!(attempt.failure.as_ref().unwrap().to_string(), "auth: the key is wrong");
    let row = world.repository.unit_journal(unit.key, 0, 100).unwrap().items.pop().unwrap();
    assert_eq!(row.reason.as_deref(), Some("auth"));
    world.clock.advance(Duration::from_secs(100_000));
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("auth: the key is wrong".to_owned()));
    assert!(stage.is_empty());

    pool.resume();
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_hold_with_an_end_goes_on_by_itself() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_attempts(world.pool(part).max_workers(2));
    let pool = builder.up();
    for id in ["a", "b"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    }
    let mut calls = stage.next_many(2);
    let at = |seconds| world.clock.now().wall + chrono::TimeDelta::seconds(seconds);
    let (later, sooner) = (at(3_600), at(60));
    calls.pop().unwrap().fail(ExecuteError::hold_until(later, "quota"));
    until(|| pool.stats().hold.is_some());
    calls.pop().unwrap().fail(ExecuteError::hold_until(sooner, "sooner"));
    until(|| pool.stats().pending == 2);
    assert_eq!(pool.stats().hold.as_deref(), Some("executor: quota"), "the later one counts");
    assert!(!pool.wait_for_available_slot_timeout(Duration::from_millis(1)));
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_completion());
        world.clock.advance(Duration::from_millis(3_599_999));
        assert!(stage.is_empty() && !waiting.is_finished());
        assert_eq!(pool.stats().pending, 2);
        world.clock.advance(Duration::from_millis(1));
        drop(stage.next_many(2));
        assert_eq!(waiting.join().unwrap(), Completion::Done);
    });
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.retried, stats.attempts), (2, 0, 4));
    assert_eq!(world.unit("a").attempts_used, 1);
    assert!(next(&events).starts_with("starts"));
    world.assert_clean();
}

#[test]
fn a_time_that_has_passed_holds_nothing_for_long() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let past = world.clock.now().wall - chrono::TimeDelta::days(1);
    stage.next().fail(ExecuteError::hold_until(past, "over already"));
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pause_outlasts_a_hold_that_ends() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let until_time = world.clock.now().wall + chrono::TimeDelta::seconds(10);
    stage.next().fail(ExecuteError::hold_until(until_time, "quota"));
    until(|| pool.stats().pending == 1);
    pool.pause();
    world.clock.advance(Duration::from_secs(20));
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("paused".to_owned()));
    assert!(stage.is_empty());
    pool.resume();
    drop(stage.next());
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_held_pool_can_be_stopped() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::hold("no key"));
    until(|| pool.stats().pending == 1);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!(stats.left_pending, 1);
    assert!(matches!(handle.wait(), Err(workcrew::WaitError::LeftPending)));
    assert_eq!(world.unit("a").accepted_by, None);
    world.assert_clean();
}

#[test]
fn who_is_held_again_and_again_for_a_moment_comes_back_ever_later_and_fails_for_it_only_after_hours() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let mut times = Vec::new();
    while world.unit("a").status != UnitStatus::Failed {
        let now = world.clock.now().wall;
        times.push(now);
        stage.next().fail(ExecuteError::hold_until(now + chrono::TimeDelta::milliseconds(1), "slow down"));
        until(|| {
            world.attempts("a").len() == times.len() && world.attempts("a").iter().all(|one| one.outcome.is_some())
        });
        let again_at = world.unit("a").not_before.unwrap_or(now);
        world.clock.advance((again_at - now).to_std().unwrap() + Duration::from_millis(1));
    }
    assert!(handle.wait().is_ok());
    let unit = world.unit("a");
    assert_eq!((unit.status, times.len()), (UnitStatus::Failed, 101));
    assert_eq!(unit.failure.unwrap().to_string(), "released: given back more than 100 times");
    assert!(times[20] - times[0] < chrono::TimeDelta::minutes(1), "a few times nobody notices: {times:?}");
    assert!(times[100] - times[0] > chrono::TimeDelta::hours(5), "{}", times[100] - times[0]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
