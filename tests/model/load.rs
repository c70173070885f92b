//! Workers with several units at a time: nobody gets more than it can have, whatever happens to one of them changes nothing for the
//! others, and nobody sleeps while there is room.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread::{self, JoinHandle};
use workcrew::{Call, CapacityStrategy, Executor, NewUnit, Refusal, Scaling, Stop, UnitHandle, WorkPool, WorkerId};

use crate::checker::check;
use crate::world::{
    Answer, Execute, LONG, MINUTE, SCALINGS, STOPS, Way, World, assert_bounded, deaf, fails_first, join_all,
    one_crashes, one_of, patient, quick, waiter,
};

/// Units come in all ways that do not depend on luck.
fn submitters(world: &World, pool: &Arc<WorkPool>) -> [JoinHandle<Vec<UnitHandle>>; 3] {
    [
        world.submitter(pool, "a", 2, Way::Line),
        world.submitter(pool, "b", 1, one_of(&[Way::Waiting, Way::Permit])),
        world.submitter(pool, "c", 2, one_of(&[Way::Line, Way::Waiting])),
    ]
}

/// Whether a pool of several lanes does all that it took, or is stopped meanwhile.
fn assert_done_or_stopped(world: &World, pool: &Arc<WorkPool>, submitters: [JoinHandle<Vec<UnitHandle>>; 3]) {
    let summary = one_of(&[true, false]).then(|| pool.stop(one_of(&STOPS)).unwrap());
    let handles = join_all(submitters);
    match summary {
        Some(summary) => world.assert_ended(pool, &summary, &handles),
        None => {
            assert_eq!(handles.len(), 5);
            world.assert_all_done(pool, &handles);
        }
    }
}

#[test]
fn a_worker_executes_as_many_as_it_can_and_everything_is_done() {
    check(|| {
        let world = World::new();
        let (workers, capacity) = (one_of(&[1, 2]), one_of(&[2, 3]));
        world.watch.expect_at_most(workers, capacity);
        let builder = world.pool(one_of(&[quick as Execute, deaf, fails_first])).max_workers(workers);
        let pool = world.start(builder.worker_capacity(capacity).scaling(one_of(&SCALINGS)));
        let submitters = submitters(&world, &pool);
        assert_done_or_stopped(&world, &pool, submitters);
    });
}

#[test]
fn a_stop_meets_workers_with_several_units() {
    check(|| {
        let world = World::new();
        let (workers, stop) = (one_of(&[1, 2]), one_of(&STOPS));
        world.watch.expect_at_most(workers, 2);
        let execute = if stop == Stop::Drain { one_of(&[quick as Execute, deaf]) } else { one_of(&[deaf, patient]) };
        let builder = world.pool(execute).max_workers(workers).worker_capacity(2);
        let pool = world.start(builder.scaling(one_of(&SCALINGS)));
        let submitters = [
            world.submitter(&pool, "a", 2, Way::Line),
            world.submitter(&pool, "b", 2, Way::Hoping),
            world.submitter(&pool, "c", 1, one_of(&[Way::Waiting, Way::Permit])),
        ];
        let summary = pool.stop(stop).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn a_crash_leaves_the_other_units_of_its_worker_alone() {
    check(|| {
        let world = World::new();
        let (workers, rest) = (one_of(&[1, 2]), one_of(&[Duration::ZERO, MINUTE / 2]));
        world.watch.expect_at_most(workers, 2);
        let builder = world.pool(one_crashes).taint_for(rest).max_workers(workers).worker_capacity(2);
        let pool = world.start(builder.scaling(one_of(&SCALINGS)));
        let submitters = submitters(&world, &pool);
        if !rest.is_zero() {
            // They come up again by themselves, after a while.
            world.pass_time_until(|| pool.stats().completed == 5);
        }
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 5);
        world.assert_all_done(&pool, &handles);
        assert_eq!(pool.stats().completed, 5);
    });
}

#[test]
fn a_stop_meets_a_crash_beside_other_units() {
    check(|| {
        let world = World::new();
        let workers = one_of(&[1, 2]);
        world.watch.expect_at_most(workers, 2);
        let builder = world.pool(one_crashes).taint_for(one_of(&[Duration::ZERO, LONG])).max_workers(workers);
        let pool = world.start(builder.worker_capacity(2).scaling(one_of(&SCALINGS)));
        let submitters = submitters(&world, &pool);
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn workers_that_are_worn_out_go_with_their_last_unit() {
    check(|| {
        let world = World::new();
        let (workers, most) = (one_of(&[1, 2]), one_of(&[1, 2, 3]));
        world.watch.expect_at_most(workers, 2);
        let execute = one_of(&[quick as Execute, deaf, one_crashes]);
        let builder = world.pool(execute).max_workers(workers).worker_capacity(2).max_units_per_worker(most);
        let rest = one_of(&[Duration::ZERO, MINUTE / 2]);
        let pool = world.start(builder.scaling(one_of(&SCALINGS)).taint_for(rest));
        let submitters = submitters(&world, &pool);
        if !rest.is_zero() {
            world.pass_time_until(|| pool.stats().completed == 5);
        }
        assert_done_or_stopped(&world, &pool, submitters);
    });
}

#[test]
fn a_new_limit_meets_workers_with_several_units() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(3, 2);
        let execute = one_of(&[quick as Execute, deaf, fails_first]);
        let builder = world.pool(execute).max_workers(2).worker_capacity(2).scaling(one_of(&SCALINGS));
        let pool = Arc::new(builder.start().unwrap());
        let submitters = submitters(&world, &pool);
        for max_workers in [1, one_of(&[1, 3]), 2] {
            pool.set_max_workers(max_workers).unwrap();
            assert_bounded(&pool.stats());
        }
        assert_done_or_stopped(&world, &pool, submitters);
    });
}

/// Says itself how many units its workers can have at a time, after a while.
struct Saying {
    execute: Execute,
    capacity: Option<u32>,
}

impl Executor for Saying {
    fn execute(&self, call: &Call<'_>) -> Answer {
        (self.execute)(call)
    }

    fn capacity(&self, _: &WorkerId) -> Option<u32> {
        thread::yield_now();
        self.capacity
    }
}

#[test]
fn whoever_waits_hears_that_a_worker_can_have_more() {
    check(|| {
        let world = World::new();
        let capacity = one_of(&[None, Some(0), Some(1), Some(3)]);
        world.watch.expect_at_most(1, capacity.unwrap_or(2).max(1));
        // Three of them wait for each other, which would be for ever if nobody heard.
        let execute = if capacity == Some(3) { patient as Execute } else { one_of(&[quick as Execute, one_crashes]) };
        let builder = world.staffed(Saying { execute, capacity }).max_workers(1).worker_capacity(2);
        let pool = world.start(builder.capacity_strategy(CapacityStrategy::Hybrid).scaling(one_of(&SCALINGS)));
        let submitters = [
            world.submitter(&pool, "a", 1, one_of(&[Way::Line, Way::Waiting])),
            world.submitter(&pool, "b", 1, one_of(&[Way::Line, Way::Permit])),
            world.submitter(&pool, "c", 1, one_of(&[Way::Line, Way::Waiting])),
        ];
        let meeting = (capacity == Some(3)).then(|| {
            waiter(&pool, {
                let world = world.clone();
                move |pool| {
                    while world.watch.most() < 3 {
                        thread::yield_now();
                    }
                    for unit in ["a-0", "b-0", "c-0"] {
                        world.cancel(pool, unit);
                    }
                }
            })
        });
        let handles = join_all(submitters);
        if let Some(meeting) = meeting {
            meeting.join().unwrap();
        }
        assert_eq!(handles.len(), 3);
        world.assert_all_done(&pool, &handles);
    });
}

#[test]
fn a_unit_whose_time_is_up_leaves_the_other_units_of_its_worker_alone() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(1, 2);
        let strategy = one_of(&[CapacityStrategy::Pool, CapacityStrategy::Hybrid]);
        let saying = Saying { execute: one_of(&[quick as Execute, deaf, patient]), capacity: Some(2) };
        let builder = world.staffed(saying).timeout(MINUTE / 2).max_workers(1).max_abandoned(one_of(&[0, 1, 2]));
        let pool = world.start(builder.worker_capacity(2).capacity_strategy(strategy));
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 1, Way::Line)];
        // The deadline, and the grace after it.
        for _ in 0..2 {
            world.clock.advance(MINUTE);
            thread::yield_now();
        }
        let summary = pool.stop(one_of(&[Stop::Cancel { grace: LONG }, Stop::Now])).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn a_cancel_and_a_pause_meet_workers_with_several_units() {
    check(|| {
        let world = World::new();
        let workers = one_of(&[1, 2]);
        world.watch.expect_at_most(workers, 2);
        let execute = one_of(&[quick as Execute, deaf, fails_first, one_crashes]);
        let builder = world.pool(execute).max_workers(workers).worker_capacity(2);
        let pool = world.start(builder.scaling(one_of(&SCALINGS)));
        let submitters = submitters(&world, &pool);
        let others = [
            waiter(&pool, {
                let world = world.clone();
                move |pool| {
                    world.cancel(pool, "a-1");
                    world.cancel(pool, "b-0");
                }
            }),
            waiter(&pool, |pool| {
                pool.pause();
                thread::yield_now();
                pool.resume();
            }),
        ];
        for other in others {
            other.join().unwrap();
        }
        assert_done_or_stopped(&world, &pool, submitters);
    });
}

#[test]
fn whoever_hopes_for_a_place_gets_it_if_there_is_one() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(2, 2);
        let scaling = one_of(&[Scaling::OnDemand, Scaling::Fixed]);
        let builder = world.pool(one_of(&[quick as Execute, deaf])).max_workers(2).worker_capacity(2).scaling(scaling);
        let pool = world.start(builder);
        pool.await_init_complete().unwrap();
        // One that is started for a unit has a single place until it is up.
        let count = if scaling == Scaling::Fixed { 4 } else { 2 };
        let hoping: Vec<_> = (0..count)
            .map(|number| {
                waiter(&pool, move |pool| {
                    let unit = NewUnit::new(format!("a-{number}")).affinity_key("s");
                    match pool.submit_work_unit(unit, "go") {
                        Ok(handle) => handle,
                        Err(error) => panic!("there is a place: {error}"),
                    }
                })
            })
            .collect();
        let handles: Vec<_> = hoping.into_iter().map(|thread| thread.join().unwrap()).collect();
        world.assert_all_done(&pool, &handles);
    });
}

#[test]
fn a_promise_is_kept_whatever_happens_to_the_worker_it_was_made_for() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(2, 2);
        let builder = world.pool(one_crashes).max_workers(one_of(&[1, 2])).worker_capacity(2).max_queue_size(1);
        // What was promised may come to stand in line though there is no room.
        let pool = Arc::new(builder.scaling(one_of(&SCALINGS)).start().unwrap());
        pool.await_init_complete().unwrap();
        let promised: Vec<_> = ["a-1", "b-1"]
            .into_iter()
            .map(|id| {
                waiter(&pool, move |pool| {
                    assert!(pool.wait_for_available_slot());
                    thread::yield_now();
                    pool.submit_work_unit(NewUnit::new(id), "go").map_err(|error| error.reason)
                })
            })
            .collect();
        let crashing = waiter(&pool, |pool| pool.submit_work_unit(NewUnit::new("c-0"), "go"));
        let mut handles = Vec::new();
        match crashing.join().unwrap() {
            Ok(handle) => handles.push(handle),
            Err(error) => assert!(matches!(error.reason, Refusal::AtCapacity { .. }), "{error}"),
        }
        for thread in promised {
            handles.push(thread.join().unwrap().unwrap());
        }
        world.assert_all_done(&pool, &handles);
    });
}
