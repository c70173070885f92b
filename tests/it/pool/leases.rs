//! Leases, as a pool has them: how long they last, whose they are, and what a pool does that cannot renew them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use workcrew::clock::Clock as _;
use workcrew::executor::CancelReason;
use workcrew::repository::{By, Claimant, Slot};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, ExecuteError, NewOwner, NewUnit, Outcome, Process, Repository, RepositoryError, Scaling, Stop, UnitStatus,
    WaitError, WorkPool, WorkerId,
};

use super::{World, assert_quiet, next, stage, tells_outcomes, until};
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
fn a_renewal_that_does_not_return_keeps_no_execution_going_beyond_its_lease() {
    // 003-F32, 003-F35. The lease ends at 60 s, half a heartbeat before that it is too late.
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).lease(Duration::from_secs(60)).heartbeat(HEARTBEAT).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let renewals = Gate::closed();
    faulty.on(Verb::Renew, Fault::Gate(renewals.clone()));
    world.clock.advance(HEARTBEAT);
    renewals.wait_for(1);
    world.clock.advance(Duration::from_millis(37_499));
    assert_eq!(call.cancel.reason(), None, "there is time");
    world.clock.advance(MOMENT);
    assert_eq!(call.asked(), CancelReason::LeaseLost);
    call.fail(ExecuteError::retry("asked to stop"));
    until(|| world.attempts("a")[0].outcome == Some(Outcome::Released));
    assert_eq!(world.repository.expire(100).unwrap(), [], "nobody had to take it away");
    renewals.open();
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().attempts_used, 1, "to let go costs no attempt");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn leases_are_renewed_while_the_end_of_an_attempt_cannot_be_stored() {
    // 003-F32, 003-F63. What could not be stored is tried again with the heartbeat; that may take as long as a lease.
    let world = World::new();
    let (part, stage) = stage();
    // An error that does not pass: the thread of its worker does not try again for a minute.
    let faulty = FaultyRepository::new(world.repository.clone().into()).error(|| RepositoryError::Closed);
    let faulty = Arc::new(faulty);
    let builder = world.pool_on(Arc::clone(&faulty) as Arc<dyn Repository>, part);
    let pool = builder.max_workers(2).lease(Duration::from_secs(60)).heartbeat(HEARTBEAT).up();
    let unrecorded = pool.submit_work_unit(NewUnit::new("lost"), "go").unwrap();
    let lost = stage.next();
    let handle = pool.submit_work_unit(NewUnit::new("long"), "go").unwrap();
    let long = stage.next();
    faulty.on(Verb::Finish, Fault::ErrorOnce);
    let storing = Gate::closed();
    faulty.on(Verb::Finish, Fault::Gate(storing.clone()));
    lost.succeed("done");
    assert!(matches!(unrecorded.wait(), Err(WaitError::Unrecorded)));
    for beat in 1..=5 {
        world.clock.advance(HEARTBEAT);
        until(|| faulty.calls(Verb::Renew) >= beat);
    }
    assert_eq!(long.cancel.reason(), None);
    storing.open();
    long.succeed("done");
    assert_eq!(handle.wait().unwrap().attempts_used, 1);
    until(|| world.status("lost") == UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn the_end_of_a_unit_that_a_sweep_brings_about_is_told_once_by_whoever_sweeps() {
    // 003-F23, 003-F62. Nobody else can: those who executed them are dead.
    let world = World::new();
    let by = By::new("a person", "not wanted");
    let process = Process::this(&world.clock.boot_id());
    let dead = NewOwner::new(Process { start_ticks: process.start_ticks - 1, ..process }, "dead");
    let dead = world.repository.register_owner(&dead).unwrap();
    for (id, number) in [("poison", 1), ("unwanted", 2), ("good", 3)] {
        let unit = NewUnit::new(id).prompt("go").max_retries(if number == 3 { 3 } else { 0 });
        let slot = Slot::new(WorkerId::new(format!("w{number}")).unwrap());
        let claimant = Claimant::new(dead, Duration::from_secs(3_600));
        world.repository.submit(world.job, &unit, &claimant, &slot).unwrap();
    }
    world.repository.cancel(world.job, "unwanted", &by).unwrap();

    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part), &world);
    let pool = builder.up();
    let mut told = [next(&outcomes), next(&outcomes)];
    told.sort();
    assert_eq!(told, ["cancelled unwanted: CANCELLED", "failed poison: FAILED"]);
    let (other, _stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("good"), "go").unwrap();
    stage.next().succeed("done");
    assert_eq!(next(&outcomes), "complete good: COMPLETED");
    world.clock.advance(2 * HEARTBEAT);
    assert_quiet(&outcomes);
    other.stop(Stop::Drain).unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_pool_that_was_ended_by_others_stops_instead_of_waiting_for_ever() {
    // 003-F65. It can claim nothing any more, and whoever waits for its units would wait in vain.
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    world.repository.queue_unit(world.job, &NewUnit::new("b").prompt("go")).unwrap();
    let owner = world.repository.owners().unwrap()[0].id;
    world.repository.end_owner(owner).unwrap();
    std::thread::scope(|threads| {
        let pulling = threads.spawn(|| pool.process_pending());
        world.clock.advance(HEARTBEAT);
        assert_eq!(call.asked(), CancelReason::LeaseLost);
        call.fail(ExecuteError::retry("asked to stop"));
        pulling.join().unwrap();
    });
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((world.status("a"), world.status("b")), (UnitStatus::Pending, UnitStatus::Pending));
    world.assert_clean_after_crashes();
}

#[test]
fn a_unit_that_was_swept_is_told_once_also_if_its_owner_comes_back() {
    // 003-F32, 003-F34. It was its last attempt, and whoever had it is only slow.
    let world = World::new();
    let (part, slow) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, told_by_slow) = tells_outcomes(builder.max_workers(1), &world);
    let slow_pool = builder.lease(Duration::from_secs(60)).heartbeat(HEARTBEAT).up();
    let handle = slow_pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let call = slow.next();
    let renewals = Gate::closed();
    faulty.on(Verb::Renew, Fault::Gate(renewals.clone()));

    let (part, _stage) = stage();
    let (builder, told_by_other) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let other = builder.lease(Duration::from_secs(60)).heartbeat(HEARTBEAT).up();
    let owner = world.repository.owners().unwrap()[1].id;
    for _ in 0..4 {
        world.clock.advance(HEARTBEAT);
        let renewed_at =
            || world.repository.owners().unwrap().iter().find(|found| found.id == owner).unwrap().heartbeat_at;
        until(|| renewed_at() == world.clock.now().wall);
    }
    assert_eq!(next(&told_by_other), "failed a: FAILED");
    renewals.open();
    assert_eq!(call.asked(), CancelReason::LeaseLost);
    call.succeed("too late");
    assert!(matches!(handle.wait(), Err(WaitError::Lost)));
    for pool in [slow_pool, other] {
        pool.stop(Stop::Drain).unwrap();
    }
    assert_quiet(&told_by_slow);
    assert_quiet(&told_by_other);
    let late = world.repository.attempt_result(world.attempt_key("a", 1)).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
    world.assert_clean();
}
