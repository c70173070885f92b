//! Sessions whose worker goes: what waits for it goes elsewhere at once, but never while something of the session is left there.

use std::time::Duration;

use workcrew::{ExecuteError, NewUnit, Refusal, RetryPolicy, Scaling, Stop, UnitStatus, WorkPool, WorkerStatus};

use super::affinities::{StrictFailFast, StrictQueue, begin, crew, crew_of, run, turn};
use super::stage::{Played, stage_and_starts};
use super::{Stage, World, assert_quiet, next, stage, until};
use crate::support::Up as _;

const MINUTE: Duration = Duration::from_secs(60);

/// A unit of session `s` that is executed, and two that wait for its worker though another is free.
fn held_up(pool: &WorkPool, stage: &Stage) -> Played {
    let first = begin(pool, stage, turn("a", "s").max_retries(0));
    for id in ["b", "c"] {
        pool.enqueue(turn(id, "s"), "go").unwrap();
    }
    assert_eq!((pool.stats().queue_size, stage.is_empty()), (2, true));
    first
}

/// Those that waited go on together, in order, on another worker than before.
fn assert_moved(stage: &Stage, before: &str) {
    let call = stage.next();
    let home = call.worker.clone();
    assert_eq!(call.id, "b");
    assert_ne!(home, before);
    drop(call);
    let call = stage.next();
    assert_eq!((call.id.as_str(), &call.worker), ("c", &home));
}

#[test]
fn what_waits_for_a_worker_that_crashes_goes_to_another_at_once() {
    // 001-F44, 001-F52
    let ends: [fn(Played); 2] =
        [|call| call.fail(ExecuteError::broken("it fell")), |call| call.end(|_| panic!("it fell"))];
    for end in ends {
        for rest in [Duration::ZERO, MINUTE] {
            let world = World::new();
            let (part, stage) = stage();
            let pool = crew_of(world.pool(part), 2, StrictQueue).taint_for(rest).up();
            let first = held_up(&pool, &stage);
            let before = first.worker.clone();
            end(first);
            assert_moved(&stage, &before);
            pool.stop(Stop::Drain).unwrap();
            world.assert_clean_after_crashes();
        }
    }
}

#[test]
fn a_unit_that_crashed_its_worker_goes_first_where_its_session_goes() {
    // 001-F44, 001-F53
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let first = begin(&pool, &stage, turn("a", "s"));
    pool.enqueue(turn("b", "s"), "go").unwrap();
    let before = first.worker.clone();
    first.fail(ExecuteError::broken("it fell"));
    let again = stage.next();
    assert_eq!((again.id.as_str(), again.attempt_number), ("a", 2));
    assert_ne!(again.worker, before);
    assert_quiet(&stage.calls);
    let home = again.worker.clone();
    drop(again);
    let call = stage.next();
    assert_eq!((call.id.as_str(), &call.worker), ("b", &home));
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn nothing_goes_elsewhere_while_a_unit_of_the_session_is_left_on_the_worker_that_crashed() {
    // 001-F44
    let world = World::new();
    let (part, stage) = stage();
    let pool = crew_of(world.pool(part), 2, StrictQueue).worker_capacity(2).up();
    let first = begin(&pool, &stage, turn("a", "s").max_retries(0));
    let second = begin(&pool, &stage, turn("b", "s"));
    let waiting = pool.enqueue(turn("c", "s"), "go").unwrap();
    let before = first.worker.clone();
    assert_eq!(second.worker, before);
    first.fail(ExecuteError::broken("it fell"));
    until(|| pool.stats().tainted_workers == 1 && pool.stats().failed == 1);
    let late = pool.submit_work_unit(turn("d", "s"), "go").unwrap();
    let error = pool.submit_work_unit(turn("e", "s").affinity(StrictFailFast), "go").unwrap_err();
    assert!(matches!(&error.reason, Refusal::WorkerBusy { key, worker: None } if key == "s"), "{error}");
    run(&pool, &stage, turn("f", "t"));
    assert_quiet(&stage.calls);
    drop(second);
    let calls = stage.next_many(2);
    assert_eq!([calls[0].id.as_str(), calls[1].id.as_str()], ["c", "d"]);
    assert!(calls.iter().all(|call| call.worker == calls[0].worker && call.worker != before));
    drop(calls);
    for handle in [waiting, late] {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn what_waits_for_a_worker_that_is_worn_out_goes_to_another() {
    for by_age in [false, true] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = crew_of(world.pool(part), 2, StrictQueue);
        let pool = match by_age {
            false => builder.max_units_per_worker(1).up(),
            true => builder.max_worker_age(MINUTE).up(),
        };
        let first = begin(&pool, &stage, turn("a", "s"));
        pool.enqueue(turn("b", "s"), "go").unwrap();
        assert!(stage.is_empty());
        if by_age {
            world.clock.advance(MINUTE);
        }
        let before = first.worker.clone();
        drop(first);
        assert_ne!(stage.next().worker, before);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn nobody_waits_for_a_worker_that_has_had_all_the_units_it_may_have() {
    // 001-F44
    for mode in [StrictQueue, StrictFailFast] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = world.pool(part).max_workers(2).affinity(mode);
        let pool = builder.worker_capacity(2).max_units_per_worker(2).up();
        let before = run(&pool, &stage, turn("a", "s"));
        let last = begin(&pool, &stage, NewUnit::new("its last"));
        assert_eq!(last.worker, before);
        let call = begin(&pool, &stage, turn("b", "s"));
        assert_ne!(call.worker, before, "{mode:?}: it takes nothing more, however long its last unit takes");
        drop((call, last));
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_session_leaves_an_idle_worker_that_is_sent_away() {
    let world = World::new();
    let (part, stage) = stage();
    let scaling = Scaling::Threshold { queued: 1, idle: MINUTE };
    let builder = world.pool(part).scaling(scaling).min_workers(1).max_workers(3).affinity(StrictQueue);
    let pool = builder.up();
    let home = run(&pool, &stage, turn("a", "s"));
    let calls = [begin(&pool, &stage, turn("b", "s"))];
    let other = begin(&pool, &stage, NewUnit::new("c"));
    drop(calls);
    until(|| pool.stats().idle_workers >= 1);
    world.clock.advance(2 * MINUTE);
    until(|| pool.workers().iter().all(|worker| worker.id.as_str() != home));
    let handle = pool.enqueue(turn("d", "s"), "go").unwrap();
    drop(other);
    assert_ne!(stage.next().worker, home);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_session_leaves_a_worker_that_is_one_too_many() {
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let other = begin(&pool, &stage, NewUnit::new("other"));
    let first = held_up(&pool, &stage);
    pool.set_max_workers(1).unwrap();
    let before = first.worker.clone();
    assert!(pool.workers().iter().any(|view| view.status == WorkerStatus::ShuttingDown && view.id.as_str() == before));
    drop(first);
    until(|| pool.stats().total_workers == 1);
    assert_quiet(&stage.calls);
    let left = other.worker.clone();
    drop(other);
    for id in ["b", "c"] {
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), (id, &left));
    }
    assert_ne!(left, before);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_waits_for_an_executor_that_does_not_return_waits_for_its_successor_or_goes_elsewhere() {
    for capacity in [1, 2] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = crew_of(world.pool(part), 2, StrictQueue).worker_capacity(capacity);
        let pool = builder.timeout(MINUTE).up();
        let mut calls: Vec<_> =
            (0..capacity).map(|n| begin(&pool, &stage, turn(&format!("a{n}"), "s").max_retries(0))).collect();
        let waiting = pool.enqueue(turn("b", "s"), "go").unwrap();
        let stuck = calls.remove(0);
        world.clock.advance(MINUTE);
        stuck.asked();
        drop(calls);
        world.clock.advance(MINUTE);
        let call = stage.next();
        assert_eq!(call.id, "b", "{capacity}");
        call.succeed("done");
        assert_eq!(waiting.wait().unwrap().status, UnitStatus::Completed);
        drop(stuck);
        pool.stop(Stop::Drain).unwrap();
        drop(pool);
        // What was left behind stores a late result.
        until(|| stage.is_gone());
        world.assert_clean();
    }
}

#[test]
fn what_waits_for_a_worker_that_does_not_come_up_goes_to_another() {
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let builder = world.pool(part).min_workers(0).max_workers(2).affinity(StrictQueue);
    let pool = builder.startup_timeout(MINUTE).retry(RetryPolicy::fixed(MINUTE)).start().unwrap();
    pool.await_init_complete().unwrap();
    let handles: Vec<_> = ["a", "b"].map(|id| pool.enqueue(turn(id, "s"), "go").unwrap()).into();
    let upcoming = next(&starts);
    let before = upcoming.worker.clone();
    assert_quiet(&starts);
    upcoming.fail(ExecuteError::retry("no"));
    until(|| pool.stats().pending == 2 && pool.stats().total_workers == 0);
    assert_quiet(&starts);
    world.clock.advance(10 * MINUTE);
    let upcoming = next(&starts);
    assert_ne!(upcoming.worker, before);
    drop(upcoming);
    for id in ["a", "b"] {
        assert_eq!(stage.next().id, id);
    }
    for handle in handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn what_waits_for_a_worker_whose_threads_are_all_stuck_goes_to_another() {
    for capacity in [1, 2] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = crew_of(world.pool(part), 2, StrictQueue).worker_capacity(capacity);
        let pool = builder.timeout(MINUTE).max_abandoned(0).up();
        let stuck: Vec<_> =
            (0..capacity).map(|n| begin(&pool, &stage, turn(&format!("a{n}"), "s").max_retries(0))).collect();
        let waiting = pool.enqueue(turn("b", "s"), "go").unwrap();
        world.clock.advance(MINUTE);
        for call in &stuck {
            call.asked();
        }
        world.clock.advance(MINUTE);
        let call = stage.next();
        assert_eq!(call.id, "b", "{capacity}: nobody knows when they come back");
        assert_ne!(call.worker, stuck[0].worker);
        drop(call);
        assert_eq!(waiting.wait().unwrap().status, UnitStatus::Completed);
        drop(stuck);
        until(|| pool.stats().idle_workers == 2);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn what_waits_for_a_worker_of_which_one_thread_is_stuck_waits_for_the_other() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = crew_of(world.pool(part), 2, StrictQueue).worker_capacity(2);
    let pool = builder.timeout(MINUTE).max_abandoned(0).up();
    let stuck = begin(&pool, &stage, turn("a", "s").max_retries(0));
    let other = begin(&pool, &stage, turn("b", "s").timeout(60 * MINUTE));
    let home = other.worker.clone();
    pool.enqueue(turn("c", "s"), "go").unwrap();
    world.clock.advance(MINUTE);
    stuck.asked();
    world.clock.advance(MINUTE);
    until(|| pool.stats().failed == 1);
    assert_quiet(&stage.calls);
    drop(other);
    assert_eq!(stage.next().worker, home);
    drop(stuck);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
