//! Sessions that keep to their worker: never on two at once, in order, and never waiting for one that is gone.

use std::sync::Arc;
use std::time::Duration;

use shuttle::thread::{self, JoinHandle};
use workcrew::{Affinity, Call, NewUnit, Stop, UnitHandle, WorkPool, WorkPoolBuilder};

use crate::checker::check;
use crate::world::{
    Answer, Execute, LONG, MINUTE, SCALINGS, STOPS, Way, World, crashes_first, deaf, fails_first, join_all,
    one_crashes, one_of, patient, quick, waiter,
};

/// A thread that brings strict units of a session.
fn session(
    world: &World,
    pool: &Arc<WorkPool>,
    (name, count): (&'static str, usize),
    key: &'static str,
    way: Way,
) -> JoinHandle<Vec<UnitHandle>> {
    tied(world, pool, (name, count), (key, Affinity::StrictQueue), way)
}

/// The same, as strictly as it is said.
fn tied(
    world: &World,
    pool: &Arc<WorkPool>,
    (name, count): (&'static str, usize),
    (key, affinity): (&'static str, Affinity),
    way: Way,
) -> JoinHandle<Vec<UnitHandle>> {
    let watch = world.watch.clone();
    world.submitter_of(pool, name, count, way, move |unit: NewUnit| {
        if affinity != Affinity::Hint {
            watch.keep_order(&unit.id, key);
        }
        unit.affinity_key(key).affinity(affinity)
    })
}

/// Two threads bring units of one session, one those of another, and one such as go anywhere, of which there are six in all.
fn submitters(world: &World, pool: &Arc<WorkPool>) -> [JoinHandle<Vec<UnitHandle>>; 4] {
    [
        session(world, pool, ("a", 2), "s", one_of(&[Way::Line, Way::Waiting])),
        session(world, pool, ("b", 1), "s", one_of(&[Way::Line, Way::Permit])),
        session(world, pool, ("c", 2), "t", one_of(&[Way::Line, Way::Waiting])),
        tied(world, pool, ("d", 1), ("s", Affinity::Hint), one_of(&[Way::Line, Way::Waiting])),
    ]
}

/// A pool of one or two workers that have one or two units at a time.
fn crew(world: &World, execute: Execute) -> WorkPoolBuilder {
    let (workers, capacity) = (one_of(&[1, 2]), one_of(&[1, 2]));
    world.watch.expect_at_most(workers, capacity);
    world.pool(execute).max_workers(workers).worker_capacity(capacity).scaling(one_of(&SCALINGS))
}

fn assert_all_six_done(world: &World, pool: &WorkPool, handles: &[UnitHandle]) {
    assert_eq!(handles.len(), 6);
    world.assert_all_done(pool, handles);
}

#[test]
fn sessions_keep_to_their_workers_and_everything_is_done() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_of(&[quick as Execute, deaf, fails_first])));
        let handles = join_all(submitters(&world, &pool));
        assert_all_six_done(&world, &pool, &handles);
    });
}

#[test]
fn a_stop_meets_sessions() {
    check(|| {
        let world = World::new();
        let stop = one_of(&STOPS);
        let execute = if stop == Stop::Drain { one_of(&[quick as Execute, deaf]) } else { one_of(&[deaf, patient]) };
        let pool = world.start(crew(&world, execute));
        let submitters = submitters(&world, &pool);
        let summary = pool.stop(stop).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn a_session_leaves_a_worker_that_crashed_as_a_whole() {
    check(|| {
        let world = World::new();
        let rest = one_of(&[Duration::ZERO, MINUTE / 2]);
        let pool = world.start(crew(&world, one_crashes).taint_for(rest));
        let submitters = submitters(&world, &pool);
        if !rest.is_zero() {
            // They come up again by themselves, after a while.
            world.pass_time_until(|| pool.stats().completed == 6);
        }
        let handles = join_all(submitters);
        assert_all_six_done(&world, &pool, &handles);
    });
}

#[test]
fn a_stop_meets_sessions_whose_workers_crash() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_crashes).taint_for(one_of(&[Duration::ZERO, LONG])));
        let submitters = submitters(&world, &pool);
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn a_session_finds_another_worker_when_its_own_is_worn_out_or_one_too_many() {
    check(|| {
        let world = World::new();
        let builder = crew(&world, one_of(&[quick as Execute, deaf, fails_first]));
        world.watch.expect_at_most(3, 2);
        let pool = Arc::new(builder.max_units_per_worker(one_of(&[1, 2, 9])).start().unwrap());
        let submitters = submitters(&world, &pool);
        for max_workers in [1, one_of(&[1, 3]), 2] {
            pool.set_max_workers(max_workers).unwrap();
        }
        let handles = join_all(submitters);
        assert_all_six_done(&world, &pool, &handles);
    });
}

#[test]
fn a_cancel_and_a_pause_meet_sessions() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_of(&[quick as Execute, deaf, fails_first, one_crashes])));
        let submitters = submitters(&world, &pool);
        let canceller = waiter(&pool, {
            let world = world.clone();
            move |pool| ["a-0", "b-0", "c-1"].map(|unit| world.cancel(pool, unit))
        });
        if one_of(&[true, false]) {
            pool.pause();
            thread::yield_now();
            pool.resume();
        }
        let handles = join_all(submitters);
        canceller.join().unwrap();
        assert_all_six_done(&world, &pool, &handles);
    });
}

#[test]
fn who_does_not_want_to_wait_for_its_worker_is_refused_or_served() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_of(&[quick as Execute, deaf, fails_first, one_crashes])));
        let fast = |name, way| tied(&world, &pool, (name, 2), ("s", Affinity::StrictFailFast), way);
        let submitters = [
            fast("a", one_of(&[Way::Line, Way::Hoping])),
            fast("b", one_of(&[Way::Line, Way::Waiting])),
            session(&world, &pool, ("c", 2), "s", one_of(&[Way::Line, Way::Hoping])),
        ];
        let summary = one_of(&[true, false]).then(|| pool.stop(one_of(&STOPS)).unwrap());
        let handles = join_all(submitters);
        match summary {
            Some(summary) => world.assert_ended(&pool, &summary, &handles),
            None => world.assert_all_done(&pool, &handles),
        }
    });
}

#[test]
fn a_hint_keeps_nobody_waiting() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_of(&[quick as Execute, deaf, one_crashes])));
        let hint = |name, way| tied(&world, &pool, (name, 2), ("s", Affinity::Hint), way);
        let submitters = [
            hint("a", Way::Line),
            hint("b", one_of(&[Way::Waiting, Way::Permit])),
            session(&world, &pool, ("c", 2), "s", Way::Line),
        ];
        let handles = join_all(submitters);
        assert_all_six_done(&world, &pool, &handles);
    });
}

#[test]
fn a_session_whose_unit_does_not_return_goes_on() {
    check(|| {
        let world = World::new();
        let builder = crew(&world, one_of(&[quick as Execute, deaf, patient])).timeout(MINUTE / 2);
        let pool = world.start(builder.max_abandoned(one_of(&[0, 1, 2])));
        let submitters = [
            session(&world, &pool, ("a", 2), "s", one_of(&[Way::Line, Way::Waiting])),
            session(&world, &pool, ("b", 1), "s", Way::Line),
        ];
        // The deadline, and the grace after it.
        for _ in 0..2 {
            world.clock.advance(MINUTE);
            thread::yield_now();
        }
        let summary = pool.stop(one_of(&[Stop::Cancel { grace: LONG }, Stop::Now])).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

/// Waits until it is asked to stop if it is of the session, and is quick if it is not.
fn waits_in_session(call: &Call<'_>) -> Answer {
    if call.unit().options.affinity_key.is_some() { patient(call) } else { quick(call) }
}

#[test]
fn units_of_a_session_are_executed_side_by_side_where_their_worker_has_room() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(2, 2);
        let builder = world.pool(waits_in_session).max_workers(2).worker_capacity(2).scaling(one_of(&SCALINGS));
        let pool = world.start(builder);
        let submitters = [session(&world, &pool, ("a", 2), "s", Way::Line)];
        // They wait for each other, on one worker.
        while world.watch.most() < 2 {
            thread::yield_now();
        }
        let handles = join_all(submitters);
        for handle in &handles {
            world.cancel(&pool, handle.id());
        }
        world.assert_all_done(&pool, &handles);
    });
}

#[test]
fn what_waits_for_its_worker_keeps_nobody_else_waiting() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(2, 1);
        let pool = world.start(world.pool(waits_in_session).max_workers(2).scaling(one_of(&SCALINGS)));
        let mut handles = join_all([session(&world, &pool, ("a", 2), "s", Way::Line)]);
        let others = join_all([world.submitter(&pool, "b", 2, Way::Line)]);
        for handle in &others {
            assert!(handle.wait().unwrap().status.is_terminal());
        }
        for handle in &handles {
            world.cancel(&pool, handle.id());
        }
        handles.extend(others);
        world.assert_all_done(&pool, &handles);
    });
}

/// What belongs to no session crashes the first time, and takes its worker with it.
fn others_crash(call: &Call<'_>) -> Answer {
    if call.unit().options.affinity_key.is_some() { deaf(call) } else { crashes_first(call) }
}

#[test]
fn a_session_is_not_divided_when_a_unit_of_another_crashes_its_worker() {
    check(|| {
        let world = World::new();
        world.watch.expect_at_most(2, 3);
        let builder = world.pool(others_crash).max_workers(2).worker_capacity(3).scaling(one_of(&SCALINGS));
        let pool = world.start(builder);
        let submitters = [
            session(&world, &pool, ("a", 2), "s", Way::Line),
            session(&world, &pool, ("b", 1), "s", one_of(&[Way::Line, Way::Waiting])),
            world.submitter(&pool, "c", 1, Way::Line),
        ];
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 4);
        world.assert_all_done(&pool, &handles);
    });
}
