//! Starting: once, and nothing is taken before.

use std::thread;

use workcrew::repository::Intake;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Completion, NewUnit, PoolPhase, Refusal, Repository, RepositoryError, StartError, Stop, UnitStatus,
    WorkPool,
};

use super::{Stage, World, stage, until};

/// A pool that gets no further than the gate when it starts.
fn held_up(world: &World) -> (WorkPool, Stage, Gate) {
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let gate = Gate::closed();
    faulty.on(Verb::RegisterOwner, Fault::Gate(gate.clone()));
    (builder.build().unwrap(), stage, gate)
}

#[test]
fn before_it_is_started_a_pool_takes_nothing() {
    // 004-F44
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).build().unwrap();
    assert_eq!(pool.stats().phase, PoolPhase::Configuring);
    let refused = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Configuring)));
    assert_eq!(refused.to_string(), "unit `a` came too early: the pool is configuring");
    assert!(!pool.wait_for_available_slot());
    assert!(pool.acquire_slot().is_err());
    assert_eq!(pool.wait_for_completion(), Completion::Stopped);
    assert!(matches!(world.repository.unit(world.job, "a"), Err(RepositoryError::UnknownUnit { .. })));
    assert!(world.repository.owners().unwrap().is_empty());

    pool.start().unwrap();
    pool.await_init_complete().unwrap();
    assert!(matches!(pool.start(), Err(StartError::Phase(PoolPhase::Running))));
    pool.submit_work_unit(*refused.unit, workcrew::Prompt::OfUnit).unwrap();
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    assert!(matches!(pool.start(), Err(StartError::Phase(PoolPhase::Stopped))));
    world.assert_clean();
}

#[test]
fn while_it_starts_waiting_blocks_and_a_bare_submit_is_refused() {
    let world = World::new();
    let (pool, stage, gate) = held_up(&world);
    thread::scope(|threads| {
        let starting = threads.spawn(|| pool.start());
        gate.wait_for(1);
        assert_eq!(pool.stats().phase, PoolPhase::Initializing);
        let refused = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
        assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Initializing)));
        assert!(matches!(pool.start(), Err(StartError::Phase(PoolPhase::Initializing))));
        let waiting = threads.spawn(|| {
            assert!(pool.wait_for_available_slot());
            pool.submit_work_unit(NewUnit::new("a"), "go").unwrap()
        });
        assert!(!waiting.is_finished());
        gate.open();
        starting.join().unwrap().unwrap();
        drop(stage.next());
        assert_eq!(waiting.join().unwrap().wait().unwrap().status, UnitStatus::Completed);
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn stopped_while_it_starts_it_never_runs() {
    let world = World::new();
    let (pool, stage, gate) = held_up(&world);
    thread::scope(|threads| {
        let starting = threads.spawn(|| pool.start());
        gate.wait_for(1);
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        let stopping = threads.spawn(|| pool.stop(Stop::Drain));
        until(|| pool.stats().phase == PoolPhase::Draining);
        assert!(!waiting.join().unwrap());
        gate.open();
        assert!(starting.join().unwrap().is_ok());
        assert!(stopping.join().unwrap().unwrap().is_final);
    });
    assert_eq!(pool.stats().phase, PoolPhase::Stopped);
    drop(pool);
    assert!(stage.is_gone());
    world.assert_clean();
}

#[test]
fn what_the_dead_held_waits_for_whoever_submits_it() {
    let world = World::new();
    let (dead, dead_stage) = world.staged(1);
    dead.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let lost = dead_stage.next();
    // Its lease runs out, as if the process were gone, before it can renew it.
    let owner = world.repository.owners().unwrap()[0].id;
    world.repository.end_owner(owner).unwrap();
    let (pool, stage) = world.staged(1);
    assert!(stage.is_empty(), "by itself a pool claims only what it accepted");
    world.repository.insert(world.job, &[NewUnit::new("b").prompt("go")], Intake::Open).unwrap();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.attempt_number), ("a", 2));
    call.succeed("done");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("done"));
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(world.status("b"), UnitStatus::Pending);
    pool.stop(Stop::Drain).unwrap();
    drop(lost);
    dead.stop(Stop::Drain).unwrap();
    assert_eq!(world.unit("a").output.as_deref(), Some("done"));
}
