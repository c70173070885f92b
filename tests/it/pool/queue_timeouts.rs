//! Waiting in line for too long: failed in time, told once, never executed.

use std::thread;
use std::time::Duration;

use workcrew::testing::{Fault, Verb};
use workcrew::{
    Completion, ExecuteError, FailureKind, NewUnit, PoolPhase, Repository, RetryPolicy, Stop, UnitStatus, WaitError,
};

use super::queue::{busy, enqueue};
use super::{World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

const TIMEOUT: Duration = Duration::from_secs(60);
/// The pool looks when the time is over, which is a moment later.
const MOMENT: Duration = Duration::from_millis(1);

#[test]
fn a_unit_that_waits_for_too_long_fails_and_never_runs() {
    // 001-F18, 001-F48, 001-F70, 001-F71, 001-F82
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).queue_timeout(TIMEOUT), &world);
    let (pool, call) = busy(builder, &stage);
    let handle = enqueue(&pool, "a");
    world.clock.advance(TIMEOUT - MOMENT);
    assert_eq!(world.status("a"), UnitStatus::Pending);
    assert_eq!((pool.stats().queue_size, pool.stats().queue_timeouts), (1, 0));
    world.clock.advance(2 * MOMENT);
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 0));
    let failure = unit.failure.unwrap();
    assert_eq!(failure.kind, FailureKind::QUEUE_TIMEOUT);
    assert_eq!(failure.to_string(), "queue_timeout: waited longer than its queue timeout");
    assert_eq!(next(&outcomes), "failed a: FAILED");
    until(|| pool.stats().queue_timeouts == 1);
    let stats = pool.stats();
    assert_eq!((stats.queue_timeouts, stats.failed, stats.errors, stats.queue_size), (1, 1, 0, 0));

    call.succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    world.clock.advance(TIMEOUT);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.failed, stats.attempts, stats.queue_timeouts), (1, 1, 1, 1));
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete first: COMPLETED"]);
    assert!(stage.is_empty() && world.attempts("a").is_empty());
    world.assert_clean();
}

#[test]
fn whatever_keeps_a_unit_from_its_turn_its_time_runs_out() {
    // 001-F48, 001-F82
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).queue_timeout(TIMEOUT), &world);
    let pool = builder.max_workers(1).up();
    pool.pause();
    let paused = enqueue(&pool, "paused");
    world.clock.advance(TIMEOUT + MOMENT);
    assert_eq!(paused.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&outcomes), "failed paused: FAILED");
    pool.resume();
    enqueue(&pool, "holds");
    stage.next().fail(ExecuteError::hold("no key"));
    until(|| pool.stats().hold.is_some() && pool.stats().pending == 1);
    let held = enqueue(&pool, "held");
    world.clock.advance(TIMEOUT + MOMENT);
    assert_eq!(held.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&outcomes), "failed held: FAILED");
    assert_eq!(world.status("holds"), UnitStatus::Pending, "what has begun once waits for as long as it takes");
    pool.resume();
    drop(stage.next());
    pool.wait_for_completion();
    let permit = pool.acquire_slot().unwrap();
    let kept_out = enqueue(&pool, "kept out");
    world.clock.advance(TIMEOUT + MOMENT);
    assert_eq!(kept_out.wait().unwrap().status, UnitStatus::Failed);
    drop(permit);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.queue_timeouts, stats.failed, stats.completed, stats.queue_size), (3, 3, 1, 0));
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_pool_that_is_not_up_yet_lets_nobody_wait_for_too_long() {
    // 001-F24, 001-F48
    let world = World::new();
    let (part, stage) = stage();
    let hook = workcrew::testing::Gate::closed();
    let pool = world
        .pool(part)
        .queue_timeout(TIMEOUT)
        .init_hook({
            let hook = hook.clone();
            move |_| {
                hook.pass();
                Ok(())
            }
        })
        .start()
        .unwrap();
    let handle = enqueue(&pool, "a");
    world.clock.advance(TIMEOUT + MOMENT);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(pool.stats().phase, PoolPhase::Initializing);
    hook.open();
    pool.await_init_complete().unwrap();
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.queue_timeouts, 1);
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_units_own_time_counts_before_the_pools() {
    // 001-F18, 001-F82
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).queue_timeout(TIMEOUT), &world);
    let pool = builder.up();
    pool.pause();
    pool.enqueue(NewUnit::new("longer").queue_timeout(2 * TIMEOUT), "go").unwrap();
    enqueue(&pool, "pool's");
    pool.enqueue(NewUnit::new("shorter").queue_timeout(TIMEOUT / 2), "go").unwrap();
    world.clock.advance(TIMEOUT / 2 + MOMENT);
    assert_eq!(next(&outcomes), "failed shorter: FAILED");
    world.clock.advance(TIMEOUT / 2 - 2 * MOMENT);
    until(|| pool.stats().queue_timeouts == 1);
    assert_eq!(pool.stats().queue_size, 2);
    world.clock.advance(2 * MOMENT);
    assert_eq!(next(&outcomes), "failed pool's: FAILED");
    assert_eq!(world.status("longer"), UnitStatus::Pending);
    world.clock.advance(TIMEOUT);
    assert_eq!(next(&outcomes), "failed longer: FAILED");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty() && outcomes.is_empty());
    world.assert_clean();
}

#[test]
fn unless_somebody_says_so_nobody_waits_for_too_long() {
    // 001-F18
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.pause();
    let handle = enqueue(&pool, "a");
    world.clock.advance(Duration::from_secs(10 * 365 * 24 * 3_600));
    assert!(!handle.is_done());
    assert_eq!(world.status("a"), UnitStatus::Pending);
    pool.resume();
    drop(stage.next());
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.queue_timeouts, 0);
    world.assert_clean();
}

#[test]
fn what_has_begun_in_time_may_wait_to_be_tried_again() {
    // 001-F48
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).queue_timeout(TIMEOUT).retry(RetryPolicy::fixed(3 * TIMEOUT));
    let (pool, call) = busy(builder, &stage);
    let handle = enqueue(&pool, "a");
    world.clock.advance(TIMEOUT - MOMENT);
    drop(call);
    stage.next().fail(ExecuteError::retry("later"));
    until(|| pool.stats().pending == 1);
    world.clock.advance(3 * TIMEOUT);
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.attempt_number), ("a", 2));
    drop(call);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.queue_timeouts, 0);
    world.assert_clean();
}

#[test]
fn a_worker_that_is_free_when_the_time_is_up_comes_too_late() {
    // 001-F70
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).queue_timeout(TIMEOUT), &stage);
    let handle = enqueue(&pool, "a");
    world.clock.advance(TIMEOUT);
    drop(call);
    until(|| pool.stats().completed == 1);
    world.clock.advance(MOMENT);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.failed, stats.queue_timeouts, stats.attempts), (1, 1, 1));
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn when_a_place_comes_free_just_then_there_is_one_outcome() {
    // 001-F56, 001-F70
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).queue_timeout(TIMEOUT), &world);
    let pool = builder.max_workers(1).up();
    let mut timeouts = 0;
    for round in 0..100 {
        let (before, id) = (format!("before {round}"), format!("a {round}"));
        enqueue(&pool, &before);
        let call = stage.next();
        let handle = enqueue(&pool, &id);
        thread::scope(|threads| {
            threads.spawn(|| world.clock.advance(TIMEOUT + MOMENT));
            call.succeed("done");
        });
        until(|| {
            drop(stage.calls.try_recv());
            handle.is_done()
        });
        let unit = handle.wait().unwrap();
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let is_late = unit.status == UnitStatus::Failed;
        assert_eq!(world.attempts(&id).len(), usize::from(!is_late));
        timeouts += u64::from(is_late);
        let end = if is_late { format!("failed {id}: FAILED") } else { format!("complete {id}: COMPLETED") };
        let mut told: Vec<_> = outcomes.try_iter().collect();
        told.sort();
        let mut expected = [end, format!("complete {before}: COMPLETED")];
        expected.sort();
        assert_eq!(told, expected);
        until(|| pool.stats().queue_timeouts == timeouts);
        assert_eq!(pool.stats().queue_size, 0);
    }
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.failed, stats.completed), (200, timeouts, 200 - timeouts));
    world.assert_clean();
}

#[test]
fn what_a_pool_leaves_has_no_time_running_and_another_pool_may_take_it() {
    // 001-F48, 001-F71
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).queue_timeout(TIMEOUT), &stage);
    let left = enqueue(&pool, "a");
    drop(call);
    pool.pause();
    let handle = enqueue(&pool, "b");
    pool.stop(Stop::Now).unwrap();
    for handle in [left, handle] {
        assert!(matches!(handle.wait(), Err(WaitError::LeftPending)) || handle.is_done());
    }
    world.clock.advance(2 * TIMEOUT);
    assert!(world.repository.expire(100).unwrap().is_empty());
    let unit = world.unit("b");
    assert_eq!((unit.status, unit.accepted_by), (UnitStatus::Pending, None));

    let (other, stage) = world.staged(1);
    other.pause();
    let handle = enqueue(&other, "b");
    world.clock.advance(2 * TIMEOUT);
    assert_eq!(world.status("b"), UnitStatus::Pending, "the other pool has no such limit");
    other.resume();
    drop(stage.next());
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    other.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_a_pool_leaves_while_it_takes_its_time_to_stop_is_not_failed() {
    // 001-F48
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).queue_timeout(TIMEOUT), &stage);
    let handle = enqueue(&pool, "a");
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
        world.clock.advance(TIMEOUT + MOMENT);
        // Another pool beats meanwhile, and sweeps.
        world.repository.expire(100).unwrap();
        drop(call);
        assert_eq!(stopping.join().unwrap().stats.left_pending, 1);
    });
    assert_eq!(world.status("a"), UnitStatus::Pending);
    world.assert_clean();
}

#[test]
fn a_storage_that_fails_when_the_time_is_up_is_asked_again() {
    // 001-F48
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.queue_timeout(TIMEOUT).heartbeat(100 * TIMEOUT), &world);
    let (pool, call) = busy(builder, &stage);
    let handle = enqueue(&pool, "a");
    for fault in [Fault::ErrorOnce, Fault::ErrorOnce] {
        let before = faulty.calls(Verb::Expire);
        faulty.on(Verb::Expire, fault);
        world.clock.advance(TIMEOUT + MOMENT);
        until(|| faulty.calls(Verb::Expire) > before);
        assert!(!handle.is_done());
    }
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&outcomes), "failed a: FAILED");
    drop(call);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.queue_timeouts, 1);
    world.assert_clean();
}

#[test]
fn a_timeout_whose_answer_was_lost_is_told_all_the_same() {
    // 001-F48, 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.queue_timeout(TIMEOUT), &world);
    let (pool, call) = busy(builder, &stage);
    let handle = enqueue(&pool, "a");
    faulty.on(Verb::Expire, Fault::ExecutedThenError);
    world.clock.advance(TIMEOUT + MOMENT);
    until(|| world.status("a") == UnitStatus::Failed);
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(handle.wait_timeout(super::PATIENCE / 4).unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&outcomes), "failed a: FAILED");
    until(|| pool.stats().queue_timeouts == 1);
    assert_eq!(pool.stats().queue_size, 0);
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete first: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn what_somebody_else_found_to_wait_for_too_long_is_told() {
    // 001-F48, 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).queue_timeout(TIMEOUT).heartbeat(100 * TIMEOUT), &world);
    let (pool, call) = busy(builder, &stage);
    let handle = enqueue(&pool, "a");
    world.clock.advance(TIMEOUT);
    assert_eq!(world.repository.expire(100).unwrap().len(), 1);
    world.clock.advance(MOMENT);
    assert_eq!(handle.wait_timeout(super::PATIENCE / 4).unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&outcomes), "failed a: FAILED");
    until(|| pool.stats().queue_timeouts == 1);
    assert_eq!(pool.stats().queue_size, 0);
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
