//! Leases, as a pool has them: how long they last, whose they are, and what a pool does that cannot renew them.

use std::collections::BTreeSet;
use std::time::Duration;

use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{Archive, ExecuteError, NewUnit, Outcome, Repository, Scaling, Stop, UnitStatus, WorkPool};

use super::{World, stage, until};
use crate::support::Up as _;

const MOMENT: Duration = Duration::from_millis(1);
const HEARTBEAT: Duration = Duration::from_secs(15);

#[test]
fn a_lease_lasts_a_minute_and_is_renewed_four_times_in_it_unless_said_otherwise() {
    // 003-F6 to 003-F12, 003-F31, 003-F36. Where the file is (003-F5) is for who opens the repository to say.
    let world = World::new();
    let (part, stage) = stage();
    let builder = WorkPool::builder(world.job, part, world.repository.clone());
    let settings = format!("{builder:?}");
    for default in ["min_workers: 1", "max_workers: 4", "lease: 60s", "heartbeat: 15s", "poll_interval: 5s"] {
        assert!(settings.contains(default), "{default}: {settings}");
    }
    assert_eq!(Scaling::THRESHOLD, Scaling::Threshold { queued: 5, idle: Duration::from_secs(300) });

    let pool = builder.clock(world.clock.clone()).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let left_ms = || world.repository.leases(None, 0, 10).unwrap().items[0].left_ms;
    assert_eq!(left_ms(), 60_000);
    for _ in 0..8 {
        world.clock.advance(HEARTBEAT - MOMENT);
        assert_eq!(left_ms(), 45_001);
        world.clock.advance(MOMENT);
        until(|| left_ms() == 60_000);
    }
    call.succeed("done");
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn every_pool_is_an_owner_of_its_own_also_if_it_is_the_next_on_the_same_file() {
    // 003-F14. A worker is named by its owner and its number, so no two are the same.
    let world = World::new();
    let pools = [world.staged(1), world.staged(1)];
    for (number, (pool, stage)) in pools.iter().enumerate() {
        pool.enqueue(NewUnit::new(format!("{number}")), "go").unwrap();
        stage.next().succeed("done");
        pool.wait_for_completion();
        pool.stop(Stop::Drain).unwrap();
    }
    let (last, _stage) = world.staged(1);
    last.stop(Stop::Drain).unwrap();
    let owners = world.repository.owners().unwrap();
    let instances: BTreeSet<&str> = owners.iter().map(|owner| owner.instance.as_str()).collect();
    assert_eq!((owners.len(), instances.len()), (3, 3));
    assert!(owners.iter().all(|owner| owner.process.pid == std::process::id()));
    let by = |id: &str| (world.attempts(id)[0].owner, world.attempts(id)[0].worker_id.clone());
    assert_ne!(by("0"), by("1"));
    world.assert_clean();
}

#[test]
fn who_cannot_renew_and_is_not_listened_to_has_let_go_before_anybody_may_take_over() {
    // 003-F32, 003-F35. The lease ends at 60 s; at 45 s the last beat before that has failed.
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).lease(Duration::from_secs(60)).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let deaf = stage.next();
    faulty.on(Verb::Renew, Fault::ErrorAlways);
    for beat in 1..=3 {
        assert_eq!(deaf.cancel.reason(), None);
        world.clock.advance(HEARTBEAT);
        until(|| faulty.calls(Verb::Renew) >= beat);
    }
    assert_eq!(deaf.asked(), CancelReason::LeaseLost);
    faulty.heal(Verb::Renew);
    // It has a grace of a second and a half, which is over long before the lease.
    world.clock.advance(Duration::from_millis(1_500));
    until(|| world.attempts("a")[0].outcome == Some(Outcome::Released));
    assert_eq!(world.repository.expire(100).unwrap(), [], "nobody had to take it away");
    let again = stage.next();
    assert_eq!(again.attempt_number, 2);
    again.succeed("done");
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Completed, 1), "to let go costs no attempt");
    deaf.succeed("too late");
    until(|| pool.stats().abandoned_threads == 0);
    assert_eq!(world.unit("a").output.as_deref(), Some("done"));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn who_waits_for_a_renewal_that_does_not_come_back_lets_go_before_anybody_may_take_over() {
    // 003-F32, 003-F35
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).lease(Duration::from_secs(60)).up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let renewal = Gate::closed();
    faulty.on(Verb::Renew, Fault::Gate(renewal.clone()));
    world.clock.advance(HEARTBEAT);
    renewal.wait_for(1);
    world.clock.advance(2 * HEARTBEAT - MOMENT);
    assert_eq!(call.cancel.wait_timeout(Duration::from_millis(10)), None, "there is time");
    world.clock.advance(MOMENT);
    assert_eq!(call.asked(), CancelReason::LeaseLost);
    renewal.open();
    call.fail(ExecuteError::retry("asked to stop"));
    let again = stage.next();
    assert_eq!((again.attempt_number, world.attempts("a")[0].outcome), (2, Some(Outcome::Released)));
    drop(again);
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
