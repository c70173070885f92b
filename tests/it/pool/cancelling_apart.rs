//! Cancelling what waits in a pool, by somebody who is not the pool: another process, or another pool.

use std::time::Duration;

use crossbeam_channel::Receiver;
use workcrew::clock::Clock;
use workcrew::repository::{By, CancelAnswer};
use workcrew::testing::{Fault, Verb};
use workcrew::{
    Affinity, Archive, Completion, ExecuteError, NewUnit, Repository, RetryPolicy, Stop, UnitHandle, UnitStatus,
    WaitError, WorkPool,
};

use super::pulling::{pulling, unit};
use super::stage::{Stage, stage};
use super::{World, assert_quiet, next, tells_outcomes, until};
use crate::support::Up as _;

const HEARTBEAT: Duration = Duration::from_secs(15);
const HOUR: Duration = Duration::from_secs(3_600);

impl World {
    /// Somebody else cancels a unit that waits.
    fn cancelled_by_another(&self, id: &str) {
        let answer = self.repository.cancel(self.job, id, &By::whom("another process")).unwrap();
        assert_eq!(answer, CancelAnswer::Cancelled, "{id}");
    }

    /// A pool with one worker, whose retries are an hour away, and what its callbacks tell.
    fn telling(&self) -> (WorkPool, Stage, Receiver<String>) {
        let (part, stage) = stage();
        let (_, builder) = self.deaf_pool(part);
        let builder = builder.max_workers(1).max_queue_size(5_000).retry(RetryPolicy::fixed(HOUR));
        let (builder, outcomes) = tells_outcomes(builder, self);
        (builder.up(), stage, outcomes)
    }
}

/// The one that ended while it waited is told, and its handle says so.
fn assert_told(outcomes: &Receiver<String>, handle: &UnitHandle) {
    assert_eq!(next(outcomes), format!("cancelled {}: CANCELLED", handle.id()));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
}

#[test]
fn what_waits_in_a_pool_and_is_cancelled_by_another_process_is_told_with_the_next_heartbeat() {
    // 003-F46
    let world = World::new();
    let (pool, stage, outcomes) = world.telling();
    let backing_off = pool.submit_work_unit(NewUnit::new("in back-off"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("not yet"));
    until(|| pool.all_idle() && world.status("in back-off") == UnitStatus::Pending);
    let later = world.clock.now().wall + chrono::TimeDelta::hours(1);
    let dated = pool.enqueue(NewUnit::new("dated").not_before(later), "go").unwrap();
    let running = pool.enqueue(NewUnit::new("running"), "go").unwrap();
    let call = stage.next();
    let in_line = pool.enqueue(NewUnit::new("in line"), "go").unwrap();
    let timed = pool.enqueue(NewUnit::new("timed").queue_timeout(HOUR), "go").unwrap();
    for handle in [&backing_off, &dated, &in_line, &timed] {
        world.cancelled_by_another(handle.id());
        world.clock.advance(HEARTBEAT);
        assert_told(&outcomes, handle);
    }
    assert_eq!((pool.stats().pending, pool.stats().running), (0, 1), "nothing else has changed");
    call.succeed("done");
    assert_eq!(running.wait().unwrap().status, UnitStatus::Completed);
    world.clock.advance(HOUR);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.cancelled, stats.completed, stats.lost, stats.attempts), (5, 4, 1, 0, 2));
    assert_eq!(
        (outcomes.try_iter().collect::<Vec<_>>(), stage.is_empty()),
        (vec!["complete running: COMPLETED".into()], true)
    );
    world.assert_clean();
}

#[test]
fn what_waits_in_a_pool_that_is_paused_is_told_too() {
    // 003-F46
    let world = World::new();
    let (pool, stage, outcomes) = world.telling();
    pool.pause();
    let handle = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    world.cancelled_by_another("a");
    world.clock.advance(HEARTBEAT);
    assert_told(&outcomes, &handle);
    assert_eq!(pool.wait_for_completion(), Completion::Done, "nothing is left to wait for");
    assert!(stage.is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_was_pulled_and_waits_again_is_told_when_another_process_cancels_it() {
    // 003-F46
    let world = World::new();
    let (part, stage) = stage();
    let (_, builder) = world.deaf_pool(part);
    let builder = builder.max_workers(2).retry(RetryPolicy::fixed(HOUR)).affinity(Affinity::StrictQueue);
    let (builder, outcomes) = tells_outcomes(builder, &world);
    let pool = builder.up();
    world.queue(&[unit("again"), unit("first").affinity_key("s"), unit("second").affinity_key("s")]);
    let (completion, ()) = pulling(&pool, || {
        let mut calls = stage.next_many(2).into_iter();
        calls.next().unwrap().fail(ExecuteError::retry("not yet"));
        let first = calls.next().unwrap();
        let waits_again = |id: &str| world.unit(id).attempt_count == 1 && world.status(id) == UnitStatus::Pending;
        until(|| waits_again("again") && waits_again("second") && pool.stats().pending == 2);
        for id in ["again", "second"] {
            world.cancelled_by_another(id);
            assert_quiet(&outcomes);
            world.clock.advance(HEARTBEAT);
            assert_eq!(next(&outcomes), format!("cancelled {id}: CANCELLED"));
        }
        first.succeed("done");
    });
    assert_eq!(completion, Completion::Done);
    assert_eq!(next(&outcomes), "complete first: COMPLETED");
    assert!(stage.is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_waits_for_anybody_is_cancelled_and_nobody_tells() {
    // 003-F46. It was nobody's; whoever wants to know finds it in the feed of outcomes.
    let world = World::new();
    world.queue(&[unit("a"), unit("b"), unit("c")]);
    let (pool, stage, outcomes) = world.telling();
    let (completion, ()) = pulling(&pool, || {
        let call = stage.next();
        world.cancelled_by_another("b");
        world.cancelled_by_another("c");
        call.succeed("done");
    });
    assert_eq!((completion, stage.is_empty()), (Completion::Done, true));
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete a: COMPLETED"]);
    let ends = world.repository.outcomes_since(0, 100).unwrap().items;
    assert_eq!(ends.iter().filter(|row| row.to == UnitStatus::Cancelled).count(), 2);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn of_two_pools_that_know_a_unit_only_the_one_that_has_it_tells() {
    // 003-F46
    let cancel: fn(&World, &WorkPool, &WorkPool) = |world, _, _| world.cancelled_by_another("x");
    let by_the_first: fn(&World, &WorkPool, &WorkPool) = |_, first, _| {
        assert_eq!(first.cancel("x", By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    };
    let by_the_second: fn(&World, &WorkPool, &WorkPool) = |_, _, second| {
        assert_eq!(second.cancel("x", By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    };
    for cancel in [cancel, by_the_first, by_the_second] {
        let world = World::new();
        let (first, first_stage, first_outcomes) = world.telling();
        let (second, second_stage, second_outcomes) = world.telling();
        first.enqueue(NewUnit::new("a"), "go").unwrap();
        second.enqueue(NewUnit::new("b"), "go").unwrap();
        let calls = [first_stage.next(), second_stage.next()];
        let lost = first.enqueue(NewUnit::new("x"), "go").unwrap();
        let had = second.enqueue(NewUnit::new("x"), "go").unwrap();
        cancel(&world, &first, &second);
        world.clock.advance(HEARTBEAT);
        assert_told(&second_outcomes, &had);
        assert!(matches!(lost.wait(), Err(WaitError::Lost)));
        drop(calls);
        for pool in [&first, &second] {
            assert_eq!(pool.wait_for_completion(), Completion::Done);
            pool.stop(Stop::Drain).unwrap();
        }
        assert_eq!(first_outcomes.try_iter().collect::<Vec<_>>(), ["complete a: COMPLETED"]);
        assert_eq!(second_outcomes.try_iter().collect::<Vec<_>>(), ["complete b: COMPLETED"]);
        world.assert_clean();
    }
}

#[test]
fn of_two_pools_that_know_a_unit_only_the_one_that_has_it_tells_that_it_waited_for_too_long() {
    let world = World::new();
    let (first, first_stage, first_outcomes) = world.telling();
    let (second, second_stage, second_outcomes) = world.telling();
    first.enqueue(NewUnit::new("a"), "go").unwrap();
    second.enqueue(NewUnit::new("b"), "go").unwrap();
    let calls = [first_stage.next(), second_stage.next()];
    let impatient = || NewUnit::new("x").queue_timeout(Duration::from_secs(10));
    let lost = first.enqueue(impatient(), "go").unwrap();
    let had = second.enqueue(impatient(), "go").unwrap();
    world.clock.advance(Duration::from_millis(10_001));
    assert_eq!(next(&second_outcomes), "failed x: FAILED");
    assert_eq!(had.wait().unwrap().status, UnitStatus::Failed);
    assert!(matches!(lost.wait(), Err(WaitError::Lost)));
    drop(calls);
    for pool in [&first, &second] {
        assert_eq!(pool.wait_for_completion(), Completion::Done);
    }
    assert_eq!((first.stats().queue_timeouts, second.stats().queue_timeouts), (0, 1));
    for pool in [&first, &second] {
        pool.stop(Stop::Drain).unwrap();
    }
    assert_eq!(first_outcomes.try_iter().collect::<Vec<_>>(), ["complete a: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn who_waits_for_a_unit_that_another_pool_took_over_hears_of_it_with_the_next_heartbeat() {
    let world = World::new();
    let (first, first_stage, first_outcomes) = world.telling();
    let (second, second_stage, _) = world.telling();
    first.enqueue(NewUnit::new("a"), "go").unwrap();
    let call = first_stage.next();
    let lost = first.enqueue(NewUnit::new("x"), "go").unwrap();
    second.submit_work_unit(NewUnit::new("x"), "go").unwrap();
    let taken_over = second_stage.next();
    world.clock.advance(HEARTBEAT);
    assert!(matches!(lost.wait(), Err(WaitError::Lost)));
    taken_over.succeed("done");
    call.succeed("done");
    for pool in [&first, &second] {
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        pool.stop(Stop::Drain).unwrap();
    }
    assert_eq!(first_outcomes.try_iter().collect::<Vec<_>>(), ["complete a: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn many_units_that_wait_are_looked_at_in_pages() {
    // 003-F46
    const WAITING: usize = 2_500;
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.deaf_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(1).max_queue_size(WAITING), &world);
    let pool = builder.up();
    pool.enqueue(NewUnit::new("running"), "go").unwrap();
    let call = stage.next();
    let name = |number: usize| format!("{number:04}");
    for number in 0..WAITING {
        pool.enqueue(NewUnit::new(name(number)), "go").unwrap();
    }
    let cancelled: Vec<String> = (0..WAITING).filter(|number| number % 5 == 0).map(name).collect();
    cancelled.iter().for_each(|id| world.cancelled_by_another(id));
    world.clock.advance(HEARTBEAT);
    let mut told: Vec<String> = cancelled.iter().map(|_| next(&outcomes)).collect();
    told.sort();
    assert_eq!(told, cancelled.iter().map(|id| format!("cancelled {id}: CANCELLED")).collect::<Vec<_>>());
    until(|| pool.stats().pending as usize == WAITING - cancelled.len());
    assert_eq!(faulty.calls(Verb::Accepted), 2, "2,000 wait, a thousand to a page");
    pool.stop(Stop::Now).unwrap();
    drop(call);
}

#[test]
fn nothing_is_asked_while_nothing_waits_and_a_failure_is_made_good_with_the_next_heartbeat() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.deaf_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(1), &world);
    let pool = builder.up();
    let beat = || {
        let beats = faulty.calls(Verb::Expire);
        world.clock.advance(HEARTBEAT);
        until(|| faulty.calls(Verb::Expire) > beats);
    };
    pool.enqueue(NewUnit::new("running"), "go").unwrap();
    let call = stage.next();
    beat();
    beat();
    assert_eq!(faulty.calls(Verb::Accepted), 0, "what runs does not wait");
    faulty.on(Verb::Accepted, Fault::ErrorOnce);
    let handle = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    world.cancelled_by_another("a");
    beat();
    until(|| faulty.calls(Verb::Accepted) > 0);
    beat();
    assert_told(&outcomes, &handle);
    assert_eq!(faulty.calls(Verb::Accepted), 2, "one that failed, and one more");
    call.succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_cancel_whose_answer_was_lost_is_told_with_the_next_heartbeat() {
    // 003-F46
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.deaf_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(1), &world);
    let pool = builder.up();
    pool.enqueue(NewUnit::new("running"), "go").unwrap();
    let call = stage.next();
    let handle = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    faulty.on(Verb::Cancel, Fault::ExecutedThenError);
    assert!(!handle.cancel(By::whom("ada")).unwrap_err().is_rejection());
    let again = handle.cancel(By::whom("ada")).unwrap();
    assert_eq!(again, CancelAnswer::AlreadyEnded(UnitStatus::Cancelled), "it was done, and is not done twice");
    world.clock.advance(HEARTBEAT);
    assert_told(&outcomes, &handle);
    call.succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
