//! Time passes, in one jump, while something else happens.

use std::sync::Arc;

use shuttle::thread;
use workcrew::{Completion, PoolStats, RetryPolicy, Stop};

use crate::checker::check;
use crate::world::{Execute, LONG, MINUTE, Way, World, deaf, fails_first, join_all, one_of, patient, quick};

#[test]
fn a_unit_in_back_off_is_tried_again_when_its_time_has_come() {
    check(|| {
        let world = World::new();
        let builder = world.pool(fails_first).retry(RetryPolicy::fixed(MINUTE)).max_workers(one_of(&[1, 2]));
        let pool = Arc::new(builder.start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 1, Way::Permit)];
        let handles = join_all(submitters);
        let is_done = |stats: PoolStats| stats.pending + stats.running == 0;
        world.pass_time_until(|| is_done(pool.stats()));
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let summary = pool.stop(Stop::Drain).unwrap();
        assert_eq!((summary.stats.completed, summary.stats.retried), (3, 3), "{summary:?}");
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn an_execution_whose_time_is_up_ends_once_whoever_notices_first() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, patient]);
        let builder = world.pool(execute).timeout(MINUTE / 2).max_workers(1).max_abandoned(one_of(&[0, 1]));
        let pool = Arc::new(builder.start().unwrap());
        let submitter = world.submitter(&pool, "a", 2, Way::Waiting);
        // The deadline, and the grace after it.
        for _ in 0..2 {
            world.clock.advance(MINUTE);
            thread::yield_now();
        }
        let summary = pool.stop(one_of(&[Stop::Cancel { grace: LONG }, Stop::Now])).unwrap();
        world.assert_ended(&pool, &summary, &join_all([submitter]));
    });
}

#[test]
fn who_has_not_stopped_when_the_grace_is_over_is_left_behind() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, patient, fails_first]);
        let pool = Arc::new(world.pool(execute).max_workers(one_of(&[1, 2])).start().unwrap());
        let submitter = world.submitter(&pool, "a", 2, Way::Waiting);
        let stopper = thread::spawn({
            let pool = Arc::clone(&pool);
            move || pool.stop(Stop::Cancel { grace: MINUTE / 2 }).unwrap()
        });
        // Once: after a second jump not even those would be waited for who are storing an end.
        world.clock.advance(MINUTE);
        let summary = stopper.join().unwrap();
        world.assert_ended(&pool, &summary, &join_all([submitter]));
    });
}
