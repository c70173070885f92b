//! A calendar that is set while a pool works: what is measured is measured by the clock that nobody can set.
//!
//! What a unit or a hold gives as a date is counted from when the pool heard of it.

use std::time::Duration;

use chrono::TimeDelta;
use workcrew::clock::Clock;
use workcrew::unit::Change;
use workcrew::{
    Archive, Completion, ExecuteError, NewUnit, Outcome, Repository, RetryPolicy, Stop, UnitStatus, WorkPool,
};

use super::pulling::{pulling, unit};
use super::stage::Stage;
use super::{World, assert_quiet, next, stage, tells_outcomes, until};
use crate::support::Up as _;

const MOMENT: Duration = Duration::from_millis(1);
const MINUTE: Duration = Duration::from_secs(60);
const HALF_AN_HOUR: Duration = Duration::from_secs(1_800);

/// How the calendar jumps: an hour and ten years, forth and back.
fn jumps() -> [TimeDelta; 4] {
    [TimeDelta::hours(1), TimeDelta::hours(-1), TimeDelta::days(3_653), TimeDelta::days(-3_653)]
}

/// Nothing happens until so much time has passed, and then it does.
fn passes(world: &World, stage: &Stage, time: Duration) {
    assert_quiet(&stage.calls);
    world.clock.advance(time - MOMENT);
    assert_quiet(&stage.calls);
    world.clock.advance(MOMENT);
}

/// A unit that has failed once and is tried again after half an hour.
fn backing_off(world: &World) -> (WorkPool, Stage, workcrew::UnitHandle) {
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).retry(RetryPolicy::fixed(HALF_AN_HOUR)).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("not yet"));
    until(|| pool.all_idle() && pool.stats().pending == 1);
    (pool, stage, handle)
}

#[test]
fn no_live_lease_ends_because_the_calendar_is_set() {
    // 003-F10, 003-F31, 003-F35
    for jump in jumps() {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).max_workers(1).lease(MINUTE).up();
        let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        let call = stage.next();
        world.clock.jump_wall(jump);
        assert_eq!(world.repository.expire(100).unwrap(), [], "{jump}");
        // A second pool takes back what the dead were holding when it starts.
        let (other, other_stage) = world.staged(1);
        let left_ms = || world.repository.leases(None, 0, 10).unwrap().items[0].left_ms;
        for _ in 0..8 {
            assert_eq!(left_ms(), 60_000, "{jump}");
            world.clock.advance(Duration::from_secs(15));
            // Renewed from its own clock, in which nothing has jumped.
            until(|| left_ms() == 60_000);
        }
        assert_eq!(call.cancel.reason(), None, "{jump}");
        call.succeed("done");
        assert_eq!(handle.wait().unwrap().attempt_count, 1, "{jump}");
        assert!(other_stage.is_empty());
        for pool in [pool, other] {
            pool.stop(Stop::Drain).unwrap();
        }
        world.assert_clean();
    }
}

#[test]
fn a_lease_that_nobody_renews_ends_in_time_though_the_calendar_is_set() {
    // 003-F3, 003-F35, 003-F45
    for jump in jumps() {
        let world = World::new();
        world.queue_ids(&["theirs"]);
        let (_other, _lease) = world.claimed_by_another();
        let (pool, stage) = world.staged(1);
        world.clock.jump_wall(jump);
        let (completion, ()) = pulling(&pool, || {
            assert_quiet(&stage.calls);
            world.clock.advance(MINUTE - MOMENT);
            assert_quiet(&stage.calls);
            // The pool looks every five seconds.
            world.clock.advance(Duration::from_secs(5));
            assert_eq!(stage.next().attempt_number, 2, "{jump}");
        });
        assert_eq!(completion, Completion::Done);
        pool.stop(Stop::Drain).unwrap();
    }
}

#[test]
fn an_execution_has_its_time_whatever_the_calendar_says() {
    for jump in jumps() {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).max_workers(1).timeout(MINUTE).up();
        let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
        let call = stage.next();
        world.clock.advance(MINUTE / 2);
        world.clock.jump_wall(jump);
        world.clock.advance(MINUTE / 2 - MOMENT);
        assert!(call.cancel.wait_timeout(Duration::from_millis(10)).is_none(), "{jump}");
        world.clock.advance(MOMENT);
        assert_eq!(call.asked(), workcrew::executor::CancelReason::TimedOut, "{jump}");
        call.fail(ExecuteError::retry("stopped"));
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
        assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::TimedOut));
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_unit_waits_in_line_for_as_long_as_it_may_whatever_the_calendar_says() {
    for jump in jumps() {
        let world = World::new();
        let (part, stage) = stage();
        let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
        let pool = builder.up();
        pool.enqueue(NewUnit::new("running"), "go").unwrap();
        let call = stage.next();
        let handle = pool.enqueue(NewUnit::new("a").queue_timeout(MINUTE), "go").unwrap();
        world.clock.jump_wall(jump);
        assert_eq!(world.repository.expire(100).unwrap(), [], "{jump}");
        world.clock.advance(MINUTE - MOMENT);
        assert_quiet(&outcomes);
        assert_eq!(world.status("a"), UnitStatus::Pending, "{jump}");
        // The pool looks when the time is over, which is a moment later.
        world.clock.advance(2 * MOMENT);
        assert_eq!(next(&outcomes), "failed a: FAILED", "{jump}");
        assert!(handle.wait().unwrap().attempt_count == 0);
        call.succeed("done");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_retry_begins_when_its_pause_is_over_whatever_the_calendar_says() {
    for jump in jumps() {
        let world = World::new();
        let (pool, stage, handle) = backing_off(&world);
        world.clock.jump_wall(jump);
        passes(&world, &stage, HALF_AN_HOUR);
        stage.next().succeed("done");
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed, "{jump}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_retry_that_was_to_begin_when_the_calendar_is_set_begins() {
    for jump in jumps() {
        let world = World::new();
        let (pool, stage, handle) = backing_off(&world);
        pool.pause();
        world.clock.advance(HALF_AN_HOUR);
        world.clock.jump_wall(jump);
        pool.resume();
        stage.next().succeed("done");
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed, "{jump}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_unit_with_a_date_is_neither_early_nor_late_by_the_time_that_has_passed() {
    for jump in jumps() {
        let world = World::new();
        let (pool, stage) = world.staged(1);
        let later = world.clock.now().wall + TimeDelta::from_std(HALF_AN_HOUR).unwrap();
        let handle = pool.enqueue(NewUnit::new("a").not_before(later), "go").unwrap();
        world.clock.jump_wall(jump);
        passes(&world, &stage, HALF_AN_HOUR);
        stage.next().succeed("done");
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed, "{jump}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_unit_with_a_date_that_waits_for_anybody_is_not_kept_by_a_calendar_that_is_set() {
    // A date further away than it was given is due: the calendar was set back. One that has passed is due as well.
    for jump in jumps() {
        let world = World::new();
        let later = world.clock.now().wall + TimeDelta::from_std(HALF_AN_HOUR).unwrap();
        world.queue(&[unit("a").not_before(later)]);
        let (pool, stage) = world.staged(1);
        let (completion, ()) = pulling(&pool, || ());
        assert_eq!((completion, stage.is_empty()), (Completion::Done, true), "it is not due");
        world.clock.jump_wall(jump);
        let (completion, ()) = pulling(&pool, || stage.next().succeed("done"));
        assert_eq!((completion, world.status("a")), (Completion::Done, UnitStatus::Completed), "{jump}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_hold_with_a_date_lasts_as_long_as_it_was_to() {
    for jump in jumps() {
        let world = World::new();
        let (pool, stage) = world.staged(1);
        let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        let until_then = world.clock.now().wall + TimeDelta::from_std(HALF_AN_HOUR).unwrap();
        stage.next().fail(ExecuteError::hold_until(until_then, "the quota is used up"));
        until(|| pool.all_idle() && pool.stats().hold.is_some() && pool.stats().pending == 1);
        world.clock.jump_wall(jump);
        passes(&world, &stage, HALF_AN_HOUR);
        stage.next().succeed("done");
        let unit = handle.wait().unwrap();
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Completed, 1), "{jump}");
        assert_eq!(pool.stats().hold, None);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn whoever_waits_for_a_turn_keeps_it_though_the_calendar_says_that_it_came_later() {
    for jump in jumps() {
        let world = World::new();
        let (pool, stage) = world.staged(1);
        pool.enqueue(NewUnit::new("running"), "go").unwrap();
        let call = stage.next();
        pool.enqueue(NewUnit::new("first"), "go").unwrap();
        world.clock.jump_wall(jump);
        pool.enqueue(NewUnit::new("second"), "go").unwrap();
        call.succeed("done");
        for id in ["first", "second"] {
            assert_eq!(stage.next().id, id, "{jump}");
        }
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let rows = world.repository.journal(0, 100).unwrap().items;
        let claims: Vec<_> = rows.iter().filter(|row| row.change == Change::Claim).map(|row| row.unit.0).collect();
        assert!(claims.is_sorted(), "{jump}: {claims:?}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}
