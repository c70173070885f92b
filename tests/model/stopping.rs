//! A pool stops while units are on their way in: each is taken or refused, none is half of both.

use std::sync::Arc;

use shuttle::thread;
use workcrew::{Completion, Event, NewUnit, Refusal, Stop};

use crate::checker::{check, check_repeats};
use crate::world::{Execute, LONG, Way, World, deaf, join_all, one_of, patient, quick};

const CANCEL: Stop = Stop::Cancel { grace: LONG };

/// Units come in three ways, and one thread waits for them, while the pool is stopped.
fn a_stop_meets_submissions(stop: Stop, execute: Execute) {
    let world = World::new();
    let workers = one_of(&[1, 2]);
    let pool = Arc::new(world.pool(execute).max_workers(workers).start().unwrap());
    let first = world.submitter(&pool, "a", 2, one_of(&[Way::Waiting, Way::Permit, Way::Early]));
    let second = world.submitter(&pool, "b", 2, Way::Hoping);
    let waiter = thread::spawn({
        let pool = Arc::clone(&pool);
        move || pool.wait_for_completion()
    });
    let summary = pool.stop(stop).unwrap();
    let handles = join_all([first, second]);
    let completion = waiter.join().unwrap();
    assert!(matches!(completion, Completion::Done | Completion::Stopped), "{completion:?}");
    world.assert_ended(&pool, &summary, &handles);
}

#[test]
fn a_pool_that_drains_ends_what_it_took() {
    check(|| a_stop_meets_submissions(Stop::Drain, one_of(&[quick as Execute, deaf])));
}

#[test]
fn a_pool_that_cancels_ends_or_gives_back_what_it_took() {
    check(|| a_stop_meets_submissions(CANCEL, one_of(&[quick as Execute, deaf, patient])));
}

#[test]
fn a_pool_that_stops_now_leaves_nobody_with_a_unit() {
    check(|| a_stop_meets_submissions(Stop::Now, one_of(&[quick as Execute, deaf, patient])));
}

#[test]
fn of_two_stops_at_once_both_return_and_the_more_urgent_counts() {
    check(|| {
        let world = World::new();
        let pool = Arc::new(world.pool(patient).max_workers(2).start().unwrap());
        let submitter = world.submitter(&pool, "a", 2, Way::Waiting);
        let urgent = one_of(&[CANCEL, Stop::Now]);
        let other = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.stop(urgent).unwrap()
        });
        // By itself it would wait for ever: nobody asks its executions to stop.
        let summary = pool.stop(Stop::Drain).unwrap();
        assert!(other.join().unwrap().is_final);
        world.assert_ended(&pool, &summary, &join_all([submitter]));
    });
}

#[test]
fn a_pool_that_is_stopped_by_its_own_callback_ends() {
    check(|| {
        let world = World::new();
        let builder = world.pool(quick).max_workers(2);
        let handle = builder.handle();
        let pool = Arc::new(builder.observer(move |_: &Event<'_>| handle.stop(Stop::Drain)).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 1, Way::Permit)];
        let handles = join_all(submitters);
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_pool_that_is_dropped_resolves_the_handles_of_those_who_submit_meanwhile() {
    check(|| {
        let world = World::new();
        let pool = world.pool(patient).max_workers(1).start().unwrap();
        let handle = pool.handle();
        let submitter = thread::spawn(move || {
            handle.wait_for_available_slot();
            handle.submit_work_unit(NewUnit::new("a"), "go")
        });
        drop(pool);
        match submitter.join().unwrap() {
            Ok(unit) => assert!(unit.wait().is_err(), "it was given back"),
            Err(error) => assert!(matches!(error.reason, Refusal::Stopped), "{error}"),
        }
    });
}

#[test]
fn a_schedule_can_be_seen_again() {
    check_repeats(|| a_stop_meets_submissions(one_of(&[Stop::Drain, CANCEL, Stop::Now]), quick));
}
