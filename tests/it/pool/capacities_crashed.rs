//! A worker that crashes, is worn or hangs while it executes several units: the others are brought to their end, and none twice.

use std::thread;
use std::time::Duration;

use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Completion, ExecuteError, NewUnit, Outcome, Scaling, Stop, UnitStatus, WorkPool, WorkerStatus,
};

use super::capacities::{enqueue, running, submit};
use super::stage::{Played, stage_and_starts};
use super::{World, assert_quiet, next, stage, tells_attempts, tells_outcomes, until};
use crate::support::Up as _;

const KILL_GRACE: Duration = Duration::from_millis(1_500);

fn crash(call: Played) {
    call.fail(ExecuteError::broken("it fell"));
}

fn panic(call: Played) {
    call.end(|_| panic!("it fell"));
}

fn names(pool: &WorkPool) -> Vec<String> {
    pool.workers().iter().map(|view| view.id.to_string()).collect()
}

fn load(pool: &WorkPool) -> usize {
    pool.stats().load
}

/// How each attempt of a unit ended.
fn outcomes_of(world: &World, id: &str) -> Vec<Outcome> {
    world.attempts(id).iter().map(|attempt| attempt.outcome.expect("it has ended")).collect()
}

#[test]
fn when_one_of_several_crashes_its_worker_the_others_end_as_they_would() {
    // 001-F62, 001-F64, 001-F65
    for end in [crash as fn(Played), panic] {
        let world = World::new();
        let (builder, stage) = world.wide(1, 3);
        let (builder, outcomes) = tells_outcomes(builder, &world);
        let pool = builder.up();
        let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c"]);
        let waiting = enqueue(&pool, "d");
        end(calls.remove(0));
        assert_eq!(handles[0].wait().unwrap().status, UnitStatus::Failed);
        until(|| load(&pool) == 2);
        let view = &pool.workers()[0];
        assert_eq!((view.status, view.load, view.unit_ids.len()), (WorkerStatus::Tainted, 2, 2));
        let row = world.record("w1");
        assert_eq!((row.status, row.load), (WorkerStatus::Tainted, 2));
        let stats = pool.stats();
        assert_eq!((stats.total_workers, stats.free_slots, stats.capacity), (1, 0, 0), "it takes nothing more");
        assert!(pool.submit_work_unit(NewUnit::new("e"), "go").unwrap_err().is_at_capacity());
        assert_eq!(calls[0].cancel.reason(), None, "nobody hurries the others");
        calls.remove(0).succeed("b");
        assert_eq!(handles[1].wait().unwrap().output.as_deref(), Some("b"));
        assert_eq!((names(&pool), world.record("w1").status), (vec!["w1".to_owned()], WorkerStatus::Tainted));
        assert!(stage.is_empty());
        calls.remove(0).succeed("c");
        assert_eq!(handles[2].wait().unwrap().output.as_deref(), Some("c"));
        let call = stage.next();
        assert_eq!((call.id.as_str(), call.worker.as_str()), ("d", "w2"));
        assert_eq!((world.record("w1").status, world.record("w1").load), (WorkerStatus::Dead, 0));
        until(|| pool.stats().capacity == 3);
        drop(call);
        waiting.wait().unwrap();
        pool.stop(Stop::Drain).unwrap();
        for id in ["a", "b", "c", "d"] {
            assert_eq!(world.attempts(id).len(), 1, "none is executed twice");
        }
        assert_eq!(outcomes.try_iter().count(), 4);
        assert_eq!((world.record("w1").units_completed, world.record("w1").units_failed), (2, 1));
        world.assert_clean_after_crashes();
    }
}

#[test]
fn whichever_crashes_last_the_worker_ends_once_and_another_takes_its_place() {
    // 001-F64, 001-F65
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.scaling(Scaling::Fixed).up();
    let (handles, calls) = running(&pool, &stage, &["a", "b", "c"]);
    calls.into_iter().for_each(crash);
    for handle in &handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    }
    until(|| names(&pool) == ["w2"] && pool.stats().capacity == 3);
    assert_eq!(world.record("w1").units_failed, 3);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.failed, 3);
    world.assert_clean_after_crashes();
}

#[test]
fn a_worker_rests_only_when_all_its_units_have_ended_and_comes_back_with_its_capacity() {
    // 001-F62, 001-F63
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let builder = world.pool(part).max_workers(1).worker_capacity(3).taint_for(Duration::from_secs(10));
    let pool = builder.start().unwrap();
    drop(next(&starts));
    pool.await_init_complete().unwrap();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c"]);
    let waiting = ["d", "e", "f"].map(|id| enqueue(&pool, id));
    crash(calls.remove(0));
    handles[0].wait().unwrap();
    world.clock.advance(Duration::from_secs(20));
    assert_quiet(&starts);
    crash(calls.remove(0));
    handles[1].wait().unwrap();
    calls.remove(0).succeed("c");
    assert_eq!(handles[2].wait().unwrap().status, UnitStatus::Completed);
    until(|| load(&pool) == 0);
    world.clock.advance(Duration::from_millis(9_999));
    assert_quiet(&starts);
    assert_eq!((pool.workers()[0].status, pool.stats().total_workers), (WorkerStatus::Tainted, 1));
    world.clock.advance(Duration::from_millis(1));
    let upcoming = next(&starts);
    assert_eq!(upcoming.worker, "w1");
    assert!(stage.is_empty());
    drop(upcoming);
    let calls = stage.next_many(3);
    assert!(calls.iter().all(|call| call.worker == "w1"));
    assert_eq!((pool.workers()[0].status, pool.workers()[0].load), (WorkerStatus::Busy, 3));
    drop(calls);
    assert!(waiting.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    assert!(starts.is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn the_later_of_two_crashes_says_until_when_a_worker_rests() {
    // 001-F63
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let gate = Gate::closed();
    let pool = world
        .pool(part)
        .max_workers(1)
        .worker_capacity(2)
        .taint_for(Duration::from_secs(10))
        .on_unit_failed({
            let gate = gate.clone();
            move |unit, _| {
                if unit.id.as_str() == "a" {
                    gate.pass();
                }
            }
        })
        .start()
        .unwrap();
    drop(next(&starts));
    pool.await_init_complete().unwrap();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    crash(calls.remove(0));
    gate.wait_for(1);
    world.clock.advance(Duration::from_secs(5));
    crash(calls.remove(0));
    handles[1].wait().unwrap();
    gate.open();
    handles[0].wait().unwrap();
    until(|| load(&pool) == 0);
    world.clock.advance(Duration::from_secs(5));
    assert_quiet(&starts);
    world.clock.advance(Duration::from_secs(5));
    drop(next(&starts));
    until(|| pool.stats().capacity == 2);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_worker_with_several_threads_that_is_not_brought_up_again_in_time_leaves_none_of_them() {
    // 001-F64
    for stop in [None, Some(Stop::Drain), Some(Stop::Now)] {
        let world = World::new();
        let (part, stage, starts) = stage_and_starts();
        let builder = world.pool(part).max_workers(1).worker_capacity(3).taint_for(Duration::from_secs(10));
        let pool = builder.start().unwrap();
        drop(next(&starts));
        pool.await_init_complete().unwrap();
        let (handles, calls) = running(&pool, &stage, &["a", "b", "c"]);
        calls.into_iter().for_each(crash);
        handles.iter().for_each(|handle| drop(handle.wait().unwrap()));
        until(|| load(&pool) == 0);
        world.clock.advance(Duration::from_secs(10));
        let hanging = next(&starts);
        if let Some(stop) = stop {
            thread::scope(|threads| {
                let stopping = threads.spawn(|| pool.stop(stop).unwrap());
                hanging.asked();
                world.clock.advance(KILL_GRACE);
                assert!(stopping.join().unwrap().is_final);
            });
            // The reporter may have something to tell after the end.
            until(|| pool.stats().abandoned_threads == 1);
        } else {
            world.clock.advance(Duration::from_secs(30));
            assert_eq!(hanging.asked(), CancelReason::TimedOut);
            until(|| pool.stats().total_workers == 0);
            pool.stop(Stop::Drain).unwrap();
        }
        drop((pool, hanging));
        until(|| stage.is_gone());
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_unit_that_is_being_submitted_to_a_worker_that_crashes_waits_for_another() {
    // 001-F54, 001-F65
    for taint_for in [Duration::ZERO, Duration::from_secs(10)] {
        let world = World::new();
        let (part, stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let pool = builder.max_workers(1).worker_capacity(3).taint_for(taint_for).up();
        let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
        let gate = Gate::closed();
        faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
        thread::scope(|threads| {
            let submitting = threads.spawn(|| submit(&pool, "c"));
            gate.wait_for(1);
            crash(calls.remove(0));
            handles[0].wait().unwrap();
            gate.open();
            let handle = submitting.join().unwrap();
            until(|| world.status("c") == UnitStatus::Pending);
            assert!(stage.is_empty());
            calls.remove(0).succeed("b");
            assert_eq!(handles[1].wait().unwrap().status, UnitStatus::Completed);
            until(|| load(&pool) == 0 || pool.stats().tainted_workers == 0);
            world.clock.advance(taint_for);
            let call = stage.next();
            assert_eq!((call.id.as_str(), pool.stats().total_workers), ("c", 1));
            drop(call);
            assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
        });
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(outcomes_of(&world, "c"), [Outcome::Completed], "it was never claimed for the one that crashed");
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_unit_that_is_being_claimed_for_a_worker_that_crashes_goes_to_another() {
    // 001-F54, 001-F65
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.scaling(Scaling::Fixed).max_workers(2).worker_capacity(2).up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c", "d"]);
    let waiting = ["e", "f"].map(|id| enqueue(&pool, id));
    let gate = Gate::closed();
    faulty.on(Verb::Claim, Fault::Gate(gate.clone()));
    let (one, other) = (calls.remove(0), calls.remove(0));
    assert_ne!(one.worker, other.worker);
    let crashing = calls.iter().position(|call| call.worker == one.worker).unwrap();
    one.succeed("a");
    handles[0].wait().unwrap();
    gate.wait_for(1);
    // Its other unit is on its way now.
    crash(calls.remove(crashing));
    until(|| pool.stats().tainted_workers == 1);
    other.succeed("b");
    handles[1].wait().unwrap();
    gate.open();
    let next = stage.next();
    assert_eq!((next.id.as_str(), next.attempt_number), ("e", 1), "who is first in line goes first");
    drop(next);
    drop(stage.next());
    assert!(waiting.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    drop(calls);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    until(|| pool.stats().capacity == 4);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_unit_that_was_claimed_for_a_worker_that_crashed_since_is_given_back_uncounted() {
    // 001-F54
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).worker_capacity(2).up();
    let (handles, mut calls) = running(&pool, &stage, &["a"]);
    // It is claimed, but nobody knows before the repository was asked again.
    let gate = Gate::closed();
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let submitting = threads.spawn(|| submit(&pool, "b"));
        gate.wait_for(1);
        assert_eq!(world.record("w1").load, 2);
        crash(calls.remove(0));
        handles[0].wait().unwrap();
        assert_eq!((names(&pool), load(&pool)), (vec!["w1".to_owned()], 1), "it still has a unit on its way");
        gate.open();
        let handle = submitting.join().unwrap();
        let call = stage.next();
        assert_eq!((call.id.as_str(), call.worker.as_str(), call.attempt_number), ("b", "w2", 2));
        drop(call);
        assert_eq!(handle.wait().unwrap().attempts_used, 1);
    });
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(outcomes_of(&world, "b"), [Outcome::Released, Outcome::Completed]);
    world.assert_clean_after_crashes();
}

#[test]
fn what_hangs_on_one_lane_is_left_behind_and_the_worker_goes_on() {
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (builder, events) = tells_attempts(world.pool(part).max_workers(1).worker_capacity(3));
    let pool = builder.start().unwrap();
    drop(next(&starts));
    pool.await_init_complete().unwrap();
    for lane in ["a", "b", "c"] {
        // Which lane it is on depends on what runs beside it.
        let ids = ["a", "b", "c"].map(|id| format!("{lane} {id}"));
        let handles: Vec<_> = ids
            .iter()
            .map(|id| {
                let hangs = id.ends_with(lane);
                let timeout = Duration::from_secs(if hangs { 60 } else { 3_600 });
                pool.submit_work_unit(NewUnit::new(id.as_str()).max_retries(0).timeout(timeout), "go").unwrap()
            })
            .collect();
        let mut calls = stage.next_many(3);
        let index = ids.iter().position(|id| id.ends_with(lane)).unwrap();
        let deaf = calls.remove(index);
        world.clock.advance(Duration::from_secs(60));
        assert_eq!(deaf.asked(), CancelReason::TimedOut);
        assert!(calls.iter().all(|call| call.cancel.reason().is_none()));
        world.clock.advance(KILL_GRACE);
        assert_eq!(handles[index].wait().unwrap().status, UnitStatus::Failed);
        until(|| load(&pool) == 2);
        assert_eq!((pool.stats().abandoned_threads, pool.stats().free_slots), (1, 1));
        let more = submit(&pool, &format!("{lane} more"));
        let call = stage.next();
        assert_eq!(call.worker, "w1");
        assert_eq!((pool.workers()[0].status, pool.workers()[0].load), (WorkerStatus::Busy, 3));
        drop((call, calls));
        more.wait().unwrap();
        deaf.succeed("too late");
        until(|| pool.stats().abandoned_threads == 0 && load(&pool) == 0);
        let late = world.repository.attempt_result(world.attempt_key(&ids[index], 1)).unwrap().late_result;
        assert_eq!(late.unwrap().json().unwrap()["output"], "too late");
    }
    assert!(starts.is_empty(), "it was not brought up again");
    assert_eq!(events.try_iter().filter(|event| event.starts_with("leaves")).count(), 3);
    assert_eq!(names(&pool), ["w1"]);
    pool.stop(Stop::Drain).unwrap();
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn lanes_that_are_stuck_come_back_one_by_one_and_the_others_go_on() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let (builder, events) = tells_attempts(builder.max_abandoned(1));
    let pool = builder.up();
    let (handles, mut deaf) = running(&pool, &stage, &["a", "b", "c"]);
    world.clock.advance(Duration::from_secs(600));
    deaf.iter().for_each(|call| assert_eq!(call.asked(), CancelReason::TimedOut));
    world.clock.advance(KILL_GRACE);
    for handle in &handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    }
    until(|| load(&pool) == 2);
    assert_eq!((pool.stats().abandoned_threads, pool.stats().free_slots), (1, 1), "one was replaced, two are stuck");
    let told: Vec<_> = events.try_iter().filter(|event| event.starts_with("is stuck")).collect();
    assert_eq!(told.len(), 2);
    for number in 0..3 {
        let handle = submit(&pool, &number.to_string());
        drop(stage.next());
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    while let Some(call) = deaf.pop() {
        call.succeed("too late");
        until(|| pool.stats().abandoned_threads + load(&pool) == deaf.len());
    }
    assert_eq!(pool.stats().free_slots, 3);
    pool.stop(Stop::Drain).unwrap();
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn a_stop_does_not_wait_for_a_lane_that_is_stuck_but_for_the_others() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 2);
    let pool = builder.max_abandoned(0).up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0).timeout(Duration::from_secs(1)), "go").unwrap();
    let deaf = stage.next();
    let (others, mut calls) = running(&pool, &stage, &["b"]);
    world.clock.advance(Duration::from_secs(1));
    deaf.asked();
    world.clock.advance(KILL_GRACE);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(!pool.stop_timeout(Stop::Drain, Duration::from_millis(10)).unwrap().is_final);
        calls.remove(0).succeed("b");
        assert_eq!(stopping.join().unwrap().stats.abandoned_threads, 1);
    });
    assert_eq!(others[0].wait().unwrap().status, UnitStatus::Completed);
    drop(deaf);
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn a_worker_executes_exactly_as_many_units_as_it_may_however_many_at_a_time() {
    // 000-F30
    for scaling in [Scaling::OnDemand, Scaling::Fixed] {
        let world = World::new();
        let (builder, stage) = world.wide(1, 2);
        let pool = builder.scaling(scaling).max_units_per_worker(3).up();
        let handles: Vec<_> = (0..9).map(|number| enqueue(&pool, &number.to_string())).collect();
        let mut workers = Vec::new();
        while workers.len() < 9 {
            let call = stage.next();
            assert!(pool.stats().total_workers == 1);
            workers.push(call.worker.clone());
            drop(call);
        }
        assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
        assert_eq!(workers.join(" "), "w1 w1 w1 w2 w2 w2 w3 w3 w3", "{scaling:?}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_worker_that_is_worn_takes_nothing_more_and_ends_with_its_last_unit() {
    // 000-F30
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.max_worker_age(Duration::from_secs(100)).up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    world.clock.advance(Duration::from_secs(100));
    calls.remove(0).succeed("a");
    handles[0].wait().unwrap();
    until(|| pool.workers()[0].status == WorkerStatus::ShuttingDown);
    let waiting = enqueue(&pool, "c");
    assert_eq!((pool.stats().free_slots, pool.stats().queue_size, names(&pool).join(" ")), (0, 1, "w1".to_owned()));
    calls.remove(0).succeed("b");
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.worker.as_str()), ("c", "w2"));
    assert_eq!(world.record("w1").status, WorkerStatus::Terminated);
    drop(call);
    assert!(handles.iter().chain([&waiting]).all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_worker_that_was_brought_up_again_may_execute_as_many_units_as_a_new_one() {
    // 001-F63
    for capacity in [1, 2] {
        let world = World::new();
        let (builder, stage) = world.wide(1, capacity);
        let pool = builder.max_units_per_worker(2).taint_for(Duration::from_secs(10)).up();
        let first = submit(&pool, "a");
        drop(stage.next());
        first.wait().unwrap();
        let second = submit(&pool, "b");
        crash(stage.next());
        second.wait().unwrap();
        until(|| load(&pool) == 0);
        world.clock.advance(Duration::from_secs(10));
        for (id, worker) in [("c", "w1"), ("d", "w1"), ("e", "w2")] {
            let handle = enqueue(&pool, id);
            assert_eq!(stage.next().worker, worker, "{id}");
            assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
        }
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}
