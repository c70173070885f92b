//! A pool that finds out how many workers its provider bears: those that are too many end, nobody sleeps while there may be one more, and
//! it can be stopped and given other bounds meanwhile.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use shuttle::thread::{self, JoinHandle};
use workcrew::executor::kinds;
use workcrew::{Call, ExecuteError, Scaling, UnitHandle, WorkPool, WorkPoolBuilder};

use crate::checker::check;
use crate::world::{Answer, Execute, STOPS, Way, World, deaf, join_all, one_of, quick};

/// Refuses the first time, in any of the ways there are.
fn refuses_first(call: &Call<'_>) -> Answer {
    let past = DateTime::<Utc>::UNIX_EPOCH;
    let refusals: [fn(DateTime<Utc>) -> ExecuteError; 3] = [
        |_| ExecuteError::retry("one of too many").kind(kinds::RATE_LIMITED),
        |_| ExecuteError::retry_after(Duration::ZERO, "too much to do").kind(kinds::OVERLOADED),
        |past| ExecuteError::hold_until(past, "one of too many").kind(kinds::RATE_LIMITED),
    ];
    match call.attempt_number() {
        1 => Err(one_of(&refusals)(past)),
        _ => deaf(call),
    }
}

/// Of the units of a thread the first is refused the first time.
fn one_is_refused(call: &Call<'_>) -> Answer {
    if call.unit().id.as_str().ends_with("-0") { refuses_first(call) } else { deaf(call) }
}

/// A pool of at most three workers, where all that says how many there may be is chosen anew in each execution.
fn adapting(world: &World) -> WorkPoolBuilder {
    let capacity = one_of(&[1, 2]);
    world.watch.expect_at_most(3, capacity);
    let scaling = one_of(&[Scaling::ADAPTIVE, Scaling::Adaptive { cool_down: Duration::ZERO }]);
    let builder = world.pool(one_of(&[quick as Execute, refuses_first, one_is_refused])).scaling(scaling);
    builder.max_workers(3).min_workers(one_of(&[0, 1, 2])).worker_capacity(capacity)
}

fn submitters(world: &World, pool: &Arc<WorkPool>) -> [JoinHandle<Vec<UnitHandle>>; 3] {
    [
        world.submitter(pool, "a", 2, Way::Line),
        world.submitter(pool, "b", 2, one_of(&[Way::Waiting, Way::Permit])),
        world.submitter(pool, "c", 1, Way::Line),
    ]
}

#[test]
fn everything_is_done_while_it_is_found_out_how_many_are_borne() {
    check(|| {
        let world = World::new();
        let pool = world.start(adapting(&world));
        let handles = join_all(submitters(&world, &pool));
        assert_eq!(handles.len(), 5);
        world.assert_all_done(&pool, &handles);
        assert_eq!(pool.stats().completed, 5);
        let history = pool.adaptations();
        assert!(history.windows(2).all(|pair| pair[0].to == pair[1].from), "{history:?}");
    });
}

#[test]
fn a_stop_meets_a_pool_that_finds_out_how_many_are_borne() {
    check(|| {
        let world = World::new();
        let pool = world.start(adapting(&world));
        let submitters = submitters(&world, &pool);
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn other_bounds_meet_a_pool_that_finds_out_how_many_are_borne() {
    check(|| {
        let world = World::new();
        // While those end that are too many there are more than there may be.
        let pool = Arc::new(adapting(&world).start().unwrap());
        let changer = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                for max_workers in [1, one_of(&[1, 2]), 3] {
                    pool.set_max_workers(max_workers).unwrap();
                    let stats = pool.stats();
                    assert!((1..=max_workers).contains(&stats.allowed_workers), "{stats:?}");
                }
            }
        });
        let handles = join_all(submitters(&world, &pool));
        changer.join().unwrap();
        assert_eq!(handles.len(), 5);
        world.assert_all_done(&pool, &handles);
    });
}
