//! Places: waiting for one, keeping it, losing it again; and which worker gets the next unit.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::bounded;
use workcrew::repository::By;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Call, Completion, ExecuteError, NewUnit, Refusal, Repository, RetryPolicy, Stop, UnitStatus, WaitError,
    WorkResult,
};

use super::{World, next, stage, until};
use crate::support::Up as _;

#[test]
fn the_submit_loop_never_finds_the_pool_full_though_units_are_tried_again() {
    // 004-F22, 004-F42, 004-F43
    for submitters in [1, 8] {
        const UNITS: usize = 160;
        let world = World::new();
        let (running, most) = (AtomicUsize::new(0), std::sync::Arc::new(AtomicUsize::new(0)));
        let executor = {
            let most = most.clone();
            move |call: &Call<'_>| {
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::yield_now();
                running.fetch_sub(1, Ordering::SeqCst);
                let is_stubborn = call.unit().id.as_str().ends_with('7');
                match call.attempt_number() {
                    1 | 2 if is_stubborn => Err(ExecuteError::retry("again")),
                    _ => Ok(WorkResult::text(call.prompt())),
                }
            }
        };
        let pool = world.pool(executor).max_workers(3).up();
        thread::scope(|threads| {
            for submitter in 0..submitters {
                let pool = &pool;
                threads.spawn(move || {
                    for number in 0..UNITS / submitters {
                        assert!(pool.wait_for_available_slot());
                        pool.submit_work_unit(NewUnit::new(format!("{submitter}-{number}")), "go").unwrap();
                    }
                });
            }
        });
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_eq!(stats.completed, UNITS as u64);
        assert_eq!(world.repository.counts(world.job).unwrap().completed, UNITS as u64);
        assert_eq!(stats.attempts, UNITS as u64 + stats.retried);
        assert!(stats.retried > 0);
        assert!(most.load(Ordering::SeqCst) <= 3, "never more than there are workers");
        world.assert_clean();
    }
}

#[test]
fn a_place_that_was_waited_for_is_nobody_elses() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    assert!(pool.wait_for_available_slot());
    assert_eq!((pool.stats().reserved_slots, pool.stats().free_slots), (1, 0));
    thread::scope(|threads| {
        let other = threads.spawn(|| {
            assert!(!pool.wait_for_available_slot_timeout(Duration::from_millis(1)));
            pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err().is_at_capacity()
        });
        assert!(other.join().unwrap());
    });
    assert!(pool.wait_for_available_slot(), "who has one need not wait for another");
    assert_eq!(pool.stats().reserved_slots, 1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    assert_eq!(pool.stats().reserved_slots, 0);
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_place_that_is_not_used_lapses_and_goes_to_who_waits() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    assert!(pool.wait_for_available_slot());
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        world.clock.advance(Duration::from_millis(29_999));
        assert_eq!(pool.stats().reserved_slots, 1);
        assert!(!waiting.is_finished());
        world.clock.advance(Duration::from_millis(1));
        assert!(waiting.join().unwrap());
    });
    assert!(pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err().is_at_capacity());
    world.clock.advance(Duration::from_secs(30));
    until(|| pool.stats().reserved_slots == 0);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_permit_is_the_same_as_a_value() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let permit = pool.acquire_slot().unwrap();
    assert!(pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err().is_at_capacity());
    assert!(matches!(pool.acquire_slot_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
    world.clock.advance(Duration::from_secs(3_600));
    assert_eq!(pool.stats().reserved_slots, 1, "it does not lapse");
    let handle = thread::spawn(move || permit.submit(NewUnit::new("a"), "go").unwrap()).join().unwrap();
    drop(stage.next());
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);

    let permit = pool.acquire_slot().unwrap();
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        drop(permit);
        assert!(waiting.join().unwrap(), "dropped, it is free again");
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_permit_that_comes_to_nothing_gives_its_place_back() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let refused = pool.acquire_slot().unwrap().submit(NewUnit::new("a"), workcrew::Prompt::OfUnit).unwrap_err();
    assert!(matches!(refused.reason, Refusal::NoPrompt));
    assert!(pool.acquire_slot().unwrap().submit(NewUnit::new(""), "go").is_err());
    assert_eq!(pool.stats().free_slots, 1);
    let kept = pool.acquire_slot().unwrap();
    pool.stop(Stop::Drain).unwrap();
    assert!(matches!(kept.submit(NewUnit::new("a"), "go").unwrap_err().reason, Refusal::Stopped));
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn the_worker_that_was_idle_longest_gets_the_next_unit() {
    // 000-F13, 000-F14, 000-F15, 000-F16, 000-F26
    let world = World::new();
    let (pool, stage) = world.staged(2);
    let worker_of = |id: &str| world.attempts(id)[0].worker_id.to_string();
    let handles: Vec<_> =
        ["slow", "fast"].into_iter().map(|id| pool.submit_work_unit(NewUnit::new(id), "go").unwrap()).collect();
    let mut calls = stage.next_many(2);
    let (slow, fast) = (calls.pop().unwrap(), calls.pop().unwrap());
    assert_eq!((slow.id.as_str(), fast.id.as_str()), ("slow", "fast"));
    fast.succeed("first");
    handles[1].wait().unwrap();
    slow.succeed("second");
    handles[0].wait().unwrap();

    let mut held = Vec::new();
    for id in ["third", "fourth"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        held.push(stage.next());
    }
    assert_eq!(worker_of("third"), worker_of("fast"), "it finished first");
    assert_eq!(worker_of("fourth"), worker_of("slow"));
    drop(held);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_tried_again_goes_before_whoever_waits_for_a_place() {
    let world = World::new();
    let (part, stage) = stage();
    let retry = RetryPolicy::fixed(Duration::from_millis(29_999));
    let pool = world.pool(part).max_workers(2).retry(retry).up();
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("not yet"));
    until(|| pool.stats().pending == 1);
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    let call = stage.next();
    assert!(pool.wait_for_available_slot());
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        // First the unit is due, then this thread's place lapses.
        world.clock.advance(Duration::from_secs(30));
        let call = stage.next();
        assert_eq!((call.id.as_str(), call.attempt_number), ("a", 2));
        assert!(!waiting.is_finished());
        call.succeed("a");
        assert!(waiting.join().unwrap());
    });
    first.wait().unwrap();
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_due_unit_that_somebody_else_cancelled_does_not_keep_its_place_from_who_waits() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.deaf_pool(part);
    let pool = builder.max_workers(1).retry(RetryPolicy::fixed(Duration::from_secs(1))).up();
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("not yet"));
    until(|| pool.stats().pending == 1);
    // Behind the pool's back: it finds out when it cannot claim the unit, and looks at it.
    world.repository.cancel(world.job, "a", &By::whom("somebody else")).unwrap();
    let look = Gate::closed();
    faulty.on(Verb::Read, Fault::Gate(look.clone()));
    world.clock.advance(Duration::from_secs(1));
    look.wait_for(1);
    assert!(!pool.wait_for_available_slot_timeout(Duration::from_millis(1)), "units that are due come first");
    thread::scope(|threads| {
        let (about_to_wait, waits) = bounded(0);
        let pool = &pool;
        let waiting = threads.spawn(move || {
            about_to_wait.send(()).unwrap();
            pool.wait_for_available_slot()
        });
        next(&waits);
        look.open();
        assert!(waiting.join().unwrap());
    });
    assert_eq!(first.wait().unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn whoever_waits_wakes_though_the_clock_stands_still() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    thread::scope(|threads| {
        let slot = threads.spawn(|| pool.wait_for_available_slot());
        let unit = threads.spawn(|| handle.wait().unwrap().status);
        let all = threads.spawn(|| pool.wait_for_completion());
        call.succeed("done");
        assert!(slot.join().unwrap());
        assert_eq!(unit.join().unwrap(), UnitStatus::Completed);
        assert_eq!(all.join().unwrap(), Completion::Done);
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn every_wait_has_an_end_when_the_pool_stops() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let (call, waits) = (stage.next(), Gate::closed());
    thread::scope(|threads| {
        let slot = threads.spawn(|| {
            waits.pass();
            pool.wait_for_available_slot()
        });
        let permit = threads.spawn(|| {
            waits.pass();
            pool.acquire_slot().is_ok()
        });
        waits.wait_for(2);
        waits.open();
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(!slot.join().unwrap() && !permit.join().unwrap());
        drop(call);
        assert!(stopping.join().unwrap().is_final);
    });
    assert!(!pool.wait_for_available_slot());
    world.assert_clean();
}
