//! More and fewer workers while the pool works.

use std::sync::Arc;
use std::thread;

use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{NewUnit, StartError, Stop, UnitStatus, WorkerStatus};

use super::{World, stage, until};
use crate::support::Up as _;

#[test]
fn threads_start_when_they_are_needed_and_no_more_than_allowed() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).min_workers(0).max_workers(4).up();
    assert!(pool.workers().is_empty());
    for id in ["a", "b"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap().id();
        drop(stage.next());
        pool.wait_for_completion();
    }
    assert_eq!(pool.workers().len(), 1, "the idle one was used again");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn raised_it_lets_those_in_who_wait() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    thread::scope(|threads| {
        let waiting: Vec<_> = ["b", "c"]
            .map(|id| {
                let pool = &pool;
                threads.spawn(move || {
                    assert!(pool.wait_for_available_slot());
                    pool.submit_work_unit(NewUnit::new(id), "go").unwrap()
                })
            })
            .into();
        pool.set_max_workers(3).unwrap();
        let calls = stage.next_many(2);
        for thread in waiting {
            thread.join().unwrap();
        }
        assert_eq!((pool.busy_count(), pool.stats().max_workers), (3, 3));
        drop((call, calls));
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lowered_it_ends_idle_workers_now_and_busy_ones_when_they_are_done() {
    // 000-F28, 000-F29, 000-F32
    let world = World::new();
    let (pool, stage) = world.staged(4);
    for id in ["a", "b", "c", "d"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    }
    let mut calls = stage.next_many(4);
    drop(calls.split_off(2));
    until(|| pool.stats().idle_workers == 2);
    pool.set_max_workers(1).unwrap();
    until(|| pool.workers().len() == 2);
    assert!(pool.workers().iter().all(|worker| worker.status == WorkerStatus::Busy));
    assert!(pool.submit_work_unit(NewUnit::new("e"), "go").unwrap_err().is_at_capacity());
    calls.pop().unwrap().succeed("b");
    until(|| pool.workers().len() == 1);
    assert_eq!(pool.stats().free_slots, 0);
    calls.pop().unwrap().succeed("a");
    pool.wait_for_completion();
    assert_eq!((pool.workers().len(), pool.stats().free_slots), (1, 1));
    pool.submit_work_unit(NewUnit::new("e"), "go").unwrap();
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.status("e"), UnitStatus::Completed);
    world.assert_clean();
}

#[test]
fn lowered_while_a_unit_is_being_submitted_the_worker_too_many_ends() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(2).up();
    pool.submit_work_unit(NewUnit::new("done"), "go").unwrap();
    drop(stage.next());
    pool.wait_for_completion();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let gate = Gate::closed();
    faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new("done"), "go").unwrap());
        gate.wait_for(1);
        pool.set_max_workers(1).unwrap();
        gate.open();
        assert!(submitting.join().unwrap().is_done());
    });
    until(|| pool.workers().len() == 1);
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lowered_while_a_retry_is_being_claimed_the_worker_too_many_ends() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(2).up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let retried = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    let failing = stage.next();
    let gate = Gate::closed();
    faulty.on(Verb::Claim, Fault::Gate(gate.clone()));
    failing.fail(workcrew::ExecuteError::retry("again"));
    gate.wait_for(1);
    // The claim finds nothing, and the place for it is one too many.
    workcrew::Repository::cancel(&world.repository, world.job, "b", &workcrew::repository::By::whom("a test")).unwrap();
    pool.set_max_workers(1).unwrap();
    gate.open();
    assert_eq!(retried.wait().unwrap().status, UnitStatus::Cancelled);
    until(|| pool.workers().len() == 1);
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn numbers_that_make_no_sense_are_refused() {
    let world = World::new();
    let (pool, _stage) = world.staged(2);
    for number in [0, usize::MAX] {
        let error = pool.set_max_workers(number).unwrap_err();
        assert!(matches!(error, StartError::Setting { name: "max_workers", .. }), "{error}");
    }
    assert_eq!(pool.stats().max_workers, 2);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn raised_and_lowered_all_the_time_nothing_is_lost_and_no_limit_broken() {
    // 004-F42
    let world = World::new();
    let running = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let executor = {
        let running = Arc::clone(&running);
        move |_: &workcrew::Call<'_>| {
            use std::sync::atomic::Ordering::SeqCst;
            assert!(running.fetch_add(1, SeqCst) < 6);
            thread::yield_now();
            running.fetch_sub(1, SeqCst);
            Ok(workcrew::WorkResult::empty())
        }
    };
    let pool = world.pool(executor).max_workers(1).up();
    for number in 0..120_usize {
        pool.set_max_workers(1 + number % 6).unwrap();
        assert!(pool.wait_for_available_slot());
        pool.submit_work_unit(NewUnit::new(number.to_string()), "go").unwrap();
    }
    pool.wait_for_completion();
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.failed, stats.retried), (120, 0, 0));
    world.assert_clean();
}
