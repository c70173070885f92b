//! More and fewer workers while the pool works.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::Receiver;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Completion, NewUnit, OwnerId, Scaling, StartError, Stop, UnitStatus, WorkPool, WorkPoolBuilder,
    WorkerStatus,
};

use super::stage::{Upcoming, stage_and_starts};
use super::{Stage, World, assert_quiet, next, stage, until};
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
    let statuses: Vec<_> = pool.workers().iter().map(|worker| worker.status).collect();
    assert_eq!(statuses, [WorkerStatus::Busy, WorkerStatus::ShuttingDown]);
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
fn lowered_while_one_rests_that_one_ends_and_the_others_go_on() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(2).taint_for(Duration::from_secs(3_600)).up();
    let crashed = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let call = stage.next();
    let rests = call.worker.clone();
    call.fail(workcrew::ExecuteError::broken("it fell"));
    crashed.wait().unwrap();
    until(|| pool.stats().tainted_workers == 1 && pool.stats().load == 0);
    pool.set_max_workers(1).unwrap();
    until(|| pool.workers().len() == 1);
    let handle = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    assert_ne!(stage.next().worker, rests);
    handle.wait().unwrap();
    // Its rest would be over.
    world.clock.advance(Duration::from_secs(3_600));
    pool.set_max_workers(2).unwrap();
    until(|| pool.stats().idle_workers == 2);
    assert!(pool.workers().iter().all(|worker| worker.id.as_str() != rests));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn lowered_a_worker_that_crashes_on_its_way_out_does_not_rest() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(2).taint_for(Duration::from_secs(3_600)).up();
    for id in ["a", "b"] {
        pool.submit_work_unit(NewUnit::new(id).max_retries(0), "go").unwrap();
    }
    let mut calls = stage.next_many(2);
    pool.set_max_workers(1).unwrap();
    let leaving = calls.pop().unwrap();
    let views = pool.workers();
    let view = views.iter().find(|view| view.id.as_str() == leaving.worker).unwrap();
    assert_eq!(view.status, WorkerStatus::ShuttingDown);
    leaving.fail(workcrew::ExecuteError::broken("it fell"));
    until(|| pool.workers().len() == 1);
    assert_eq!((pool.workers()[0].id.as_str(), pool.stats().tainted_workers), (calls[0].worker.as_str(), 0));
    drop(calls);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
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

/// A pool whose workers are brought up by the test, none of them yet.
fn scaled(world: &World, scaling: Scaling) -> (WorkPoolBuilder, Stage, Receiver<Upcoming>) {
    let (part, stage, starts) = stage_and_starts();
    (world.pool(part).scaling(scaling), stage, starts)
}

/// One more when five wait, one fewer when it was idle for five minutes; two workers are up.
fn threshold(world: &World) -> (WorkPool, Stage, Receiver<Upcoming>) {
    let (builder, stage, starts) = scaled(world, Scaling::THRESHOLD);
    let pool = builder.min_workers(2).max_workers(4).start().unwrap();
    drop([next(&starts), next(&starts)]);
    pool.await_init_complete().unwrap();
    (pool, stage, starts)
}

/// Puts so many units in line.
fn enqueue(pool: &WorkPool, prefix: &str, count: usize) {
    for number in 0..count {
        pool.enqueue(NewUnit::new(format!("{prefix}{number}")), "go").unwrap();
    }
}

/// Lets everything end that is in line or runs.
fn finish(pool: &WorkPool, stage: &Stage) {
    while pool.wait_for_completion_timeout(Duration::from_millis(1)) != Completion::Done {
        stage.calls.try_iter().for_each(drop);
    }
}

/// The names of the workers that there are.
fn names(pool: &WorkPool) -> Vec<String> {
    pool.workers().iter().map(|worker| worker.id.to_string()).collect()
}

#[test]
fn on_demand_the_first_are_kept_and_more_come_when_they_are_needed() {
    // 003-F15, 003-F49, 003-F51
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).min_workers(2).max_workers(3).up();
    assert_eq!((pool.stats().idle_workers, pool.stats().free_slots), (2, 3));
    for id in ["a", "b", "c"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    }
    assert!(pool.submit_work_unit(NewUnit::new("d"), "go").unwrap_err().is_at_capacity());
    assert_eq!(pool.stats().total_workers, 3);
    drop(stage.next_many(3));
    pool.wait_for_completion();
    for _ in 0..24 {
        world.clock.advance(Duration::from_secs(3_600));
    }
    assert_eq!(pool.stats().idle_workers, 3, "they stay");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn fixed_all_are_there_and_stay() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).scaling(Scaling::Fixed).min_workers(0).max_workers(3).up();
    assert_eq!(pool.stats().idle_workers, 3);
    enqueue(&pool, "a", 9);
    finish(&pool, &stage);
    for _ in 0..24 {
        world.clock.advance(Duration::from_secs(3_600));
    }
    assert_eq!((pool.stats().idle_workers, names(&pool)), (3, vec!["w1".to_owned(), "w2".to_owned(), "w3".to_owned()]));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn one_more_starts_at_once_when_enough_wait() {
    // 003-F48, 003-F49, 003-F52, 000-F24
    let world = World::new();
    let (pool, stage, starts) = threshold(&world);
    enqueue(&pool, "run", 2);
    let calls = stage.next_many(2);
    enqueue(&pool, "four", 4);
    assert_quiet(&starts);
    assert_eq!((pool.stats().queue_size, pool.stats().target_workers), (4, 2));
    enqueue(&pool, "five", 1);
    let third = next(&starts);
    assert_quiet(&starts);
    assert_eq!(pool.stats().target_workers, 3);
    // It will take one of those that wait.
    enqueue(&pool, "six", 1);
    let fourth = next(&starts);
    enqueue(&pool, "many", 50);
    assert_quiet(&starts);
    assert_eq!((pool.stats().starting_workers, pool.stats().total_workers), (2, 4));
    drop((third, fourth));
    let others = stage.next_many(2);
    assert_quiet(&starts);
    assert_eq!((pool.stats().busy_workers, pool.stats().total_workers), (4, 4));
    drop((calls, others));
    finish(&pool, &stage);
    assert_eq!(pool.stats().total_workers, 4);
    pool.stop(Stop::Drain).unwrap();
    assert!(starts.is_empty());
    world.assert_clean();
}

#[test]
fn threads_that_wait_for_a_place_count_like_units_in_line() {
    // 003-F48, 000-F24
    let world = World::new();
    let (pool, stage, starts) = threshold(&world);
    enqueue(&pool, "run", 2);
    let calls = stage.next_many(2);
    enqueue(&pool, "wait", 3);
    thread::scope(|threads| {
        let first = threads.spawn(|| pool.acquire_slot());
        until(|| pool.stats().slot_waiters == 1);
        assert_quiet(&starts);
        let second = threads.spawn(|| pool.acquire_slot());
        drop(next(&starts));
        let third = stage.next();
        assert_quiet(&starts);
        drop((calls, third));
        drop(stage.next_many(2));
        drop(first.join().unwrap().unwrap());
        drop(second.join().unwrap().unwrap());
    });
    finish(&pool, &stage);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn without_any_worker_the_first_that_waits_gets_one() {
    let world = World::new();
    let (builder, stage, starts) = scaled(&world, Scaling::THRESHOLD);
    let pool = builder.min_workers(0).up();
    assert_eq!(pool.stats().total_workers, 0);
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    drop(next(&starts));
    drop(stage.next());
    pool.wait_for_completion();
    world.clock.advance(Duration::from_millis(300_001));
    until(|| pool.stats().total_workers == 0);
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        drop(next(&starts));
        assert!(waiting.join().unwrap());
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// Four workers that are up, of which none is needed.
fn four_idle(world: &World) -> (WorkPool, Stage, Receiver<Upcoming>) {
    let (pool, stage, starts) = threshold(world);
    enqueue(&pool, "run", 2);
    let calls = stage.next_many(2);
    enqueue(&pool, "wait", 6);
    drop([next(&starts), next(&starts)]);
    until(|| pool.stats().total_workers == 4 && pool.stats().starting_workers == 0);
    drop(calls);
    finish(&pool, &stage);
    until(|| pool.stats().idle_workers == 4);
    (pool, stage, starts)
}

#[test]
fn one_fewer_after_each_was_idle_for_long_enough() {
    // 003-F50, 003-F51, 003-F52, 000-F28, 000-F32
    let world = World::new();
    let (pool, _stage, starts) = four_idle(&world);
    world.clock.advance(Duration::from_secs(300));
    assert_quiet(&starts);
    assert_eq!((pool.stats().total_workers, pool.stats().target_workers), (4, 4), "not longer than the limit");
    world.clock.advance(Duration::from_millis(1));
    until(|| pool.stats().total_workers == 3);
    assert_quiet(&starts);
    assert_eq!(pool.stats().total_workers, 3, "one at a time");
    world.clock.advance(Duration::from_millis(999));
    assert_quiet(&starts);
    assert_eq!(pool.stats().total_workers, 3);
    world.clock.advance(Duration::from_millis(1));
    until(|| pool.stats().total_workers == 2);
    for _ in 0..24 {
        world.clock.advance(Duration::from_secs(3_600));
        assert_quiet(&starts);
    }
    assert_eq!(pool.stats().total_workers, 2, "never below the minimum");
    assert_eq!(pool.stats().completed, 8, "totals stay");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn the_one_that_was_idle_longest_goes_and_no_busy_one() {
    // 003-F50, 000-F16, 000-F32, 000-F33
    let world = World::new();
    let (pool, stage, starts) = four_idle(&world);
    world.clock.advance(Duration::from_secs(200));
    // The one that was idle longest works, and is idle for the shortest time after that; the next goes on working.
    pool.submit_work_unit(NewUnit::new("short"), "go").unwrap();
    let short = stage.next();
    let first = short.worker.clone();
    drop(short);
    pool.wait_for_completion();
    pool.submit_work_unit(NewUnit::new("long"), "go").unwrap();
    let long = stage.next();
    assert_ne!(long.worker, first);
    let idle: Vec<String> = names(&pool).into_iter().filter(|name| ![&first, &long.worker].contains(&name)).collect();
    world.clock.advance(Duration::from_secs(101));
    until(|| pool.stats().total_workers == 3);
    world.clock.advance(Duration::from_secs(1));
    until(|| pool.stats().total_workers == 2);
    assert!(idle.iter().all(|worker| !names(&pool).contains(worker)), "{idle:?}");
    world.clock.advance(Duration::from_secs(400));
    assert_quiet(&starts);
    assert_eq!((pool.stats().busy_workers, pool.stats().idle_workers), (1, 1));
    drop(long);
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn nobody_goes_who_is_promised_or_while_something_waits() {
    // 003-F50
    let world = World::new();
    let (pool, stage, starts) = four_idle(&world);
    let permits: Vec<_> = (0..4).map(|_| pool.acquire_slot().unwrap()).collect();
    world.clock.advance(Duration::from_secs(400));
    assert_quiet(&starts);
    assert_eq!(pool.stats().idle_workers, 4);
    for (number, permit) in permits.into_iter().enumerate() {
        permit.submit(NewUnit::new(format!("promised {number}")), "go").unwrap();
    }
    let calls = stage.next_many(4);
    assert!(pool.workers().iter().all(|worker| worker.status == WorkerStatus::Busy));
    pool.pause();
    enqueue(&pool, "held", 2);
    drop(calls);
    until(|| pool.stats().idle_workers == 4);
    pool.resume();
    finish(&pool, &stage);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn under_steady_load_nothing_changes_for_hours() {
    // 003-F48, 003-F50
    let world = World::new();
    let (pool, stage, starts) = threshold(&world);
    for minute in 0..120 {
        enqueue(&pool, &format!("{minute} "), 4);
        finish(&pool, &stage);
        world.clock.advance(Duration::from_secs(60));
        assert_eq!((pool.stats().total_workers, pool.stats().target_workers), (2, 2));
    }
    assert!(starts.is_empty());
    assert_eq!(names(&pool), ["w1", "w2"]);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 480);
    world.assert_clean();
}

#[test]
fn raised_and_lowered_the_number_of_workers_that_are_started_ahead_follows() {
    // 003-F49, 003-F51
    let world = World::new();
    let (builder, stage, starts) = scaled(&world, Scaling::Fixed);
    let pool = builder.max_workers(2).start().unwrap();
    drop([next(&starts), next(&starts)]);
    pool.await_init_complete().unwrap();
    pool.set_max_workers(4).unwrap();
    drop([next(&starts), next(&starts)]);
    until(|| pool.stats().idle_workers == 4);
    enqueue(&pool, "run", 4);
    let mut calls = stage.next_many(4);
    enqueue(&pool, "wait", 4);
    pool.set_max_workers(1).unwrap();
    for left in [3, 2, 1] {
        drop(calls.pop());
        until(|| pool.stats().total_workers == left);
        assert!(stage.is_empty(), "too many work already");
    }
    drop(calls);
    for _ in 0..4 {
        let call = stage.next();
        assert_quiet(&stage.calls);
        drop(call);
    }
    pool.wait_for_completion();
    assert!(starts.is_empty());
    pool.stop(Stop::Drain).unwrap();

    let (pool, stage, starts) = threshold(&world);
    enqueue(&pool, "many", 20);
    drop([next(&starts), next(&starts)]);
    let calls: Vec<_> = (0..4).map(|_| stage.next()).collect();
    assert_quiet(&starts);
    pool.set_max_workers(5).unwrap();
    let fifth = next(&starts);
    assert_quiet(&starts);
    pool.set_max_workers(1).unwrap();
    drop(fifth);
    drop(calls);
    for _ in 0..16 {
        let call = stage.next();
        assert!(pool.stats().busy_workers == 1 || pool.stats().total_workers > 1);
        drop(call);
    }
    finish(&pool, &stage);
    until(|| pool.stats().total_workers == 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

const ALL: [Scaling; 3] = [Scaling::OnDemand, Scaling::Fixed, Scaling::THRESHOLD];

#[test]
fn a_worker_executes_as_many_units_as_it_may_and_is_replaced() {
    // 000-F30
    for scaling in ALL {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).scaling(scaling).min_workers(2).max_workers(2).max_units_per_worker(3).up();
        let mut units: BTreeMap<String, u64> = BTreeMap::new();
        for number in 0..12 {
            pool.enqueue(NewUnit::new(number.to_string()), "go").unwrap();
        }
        for _ in 0..12 {
            let call = stage.next();
            assert!(pool.stats().total_workers <= 2);
            *units.entry(call.worker.clone()).or_default() += 1;
        }
        pool.wait_for_completion();
        assert!(units.values().all(|&count| count <= 3), "{units:?}");
        assert_eq!(units.values().sum::<u64>(), 12);
        pool.stop(Stop::Drain).unwrap();
        for worker in world.repository.workers(OwnerId(1), "", 100).unwrap() {
            assert_eq!(worker.units_completed, units.get(worker.id.as_str()).copied().unwrap_or_default());
        }
        world.assert_clean();
    }
}

#[test]
fn one_worker_after_the_other_executes_exactly_as_many_as_it_may() {
    for scaling in ALL {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).scaling(scaling).max_workers(1).max_units_per_worker(2).up();
        let workers: Vec<String> = (0..6)
            .map(|number| {
                assert!(pool.wait_for_available_slot());
                pool.submit_work_unit(NewUnit::new(number.to_string()), "go").unwrap();
                stage.next().worker
            })
            .collect();
        assert_eq!(workers, ["w1", "w1", "w2", "w2", "w3", "w3"], "{scaling:?}");
        pool.wait_for_completion();
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn an_old_worker_is_replaced_when_it_is_idle() {
    for scaling in ALL {
        let world = World::new();
        let (part, stage) = stage();
        // On demand the last place is not filled ahead.
        let max_workers = if scaling == Scaling::Fixed { 2 } else { 3 };
        let builder = world.pool(part).scaling(scaling).min_workers(2).max_workers(max_workers);
        let pool = builder.max_worker_age(Duration::from_secs(100)).up();
        assert_eq!(names(&pool), ["w1", "w2"]);
        world.clock.advance(Duration::from_millis(99_999));
        pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        let call = stage.next();
        let old = call.worker.clone();
        world.clock.advance(Duration::from_millis(1));
        // The idle one is replaced now, the busy one when it is done.
        until(|| names(&pool).len() == 2 && names(&pool).contains(&"w3".to_owned()));
        assert!(names(&pool).contains(&old));
        drop(call);
        pool.wait_for_completion();
        until(|| names(&pool) == ["w3", "w4"]);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn the_worker_that_is_done_first_is_the_next_to_work() {
    // 000-F16, 000-F36
    let world = World::new();
    let (pool, stage) = world.staged(3);
    for id in ["a", "b", "c"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    }
    let mut calls: Vec<_> = stage.next_many(3).into_iter().map(Some).collect();
    let mut order = Vec::new();
    for (done, index) in [1, 2, 0].into_iter().enumerate() {
        let call = calls[index].take().unwrap();
        order.push(call.worker.clone());
        drop(call);
        until(|| pool.stats().idle_workers == done + 1);
    }
    for round in 0..3 {
        for worker in &order {
            let id = format!("{round} {worker}");
            let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
            assert_eq!(stage.next().worker, *worker);
            handle.wait().unwrap();
        }
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
