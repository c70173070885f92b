//! A pool that is held and goes on again: nobody sleeps through it.

use std::sync::Arc;

use shuttle::thread;
use workcrew::{Completion, Stop};

use crate::checker::check;
use crate::world::{Execute, Way, World, deaf, fails_first, join_all, one_of, quick};

#[test]
fn everything_is_done_once_a_pause_has_ended() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, fails_first]);
        let pool = Arc::new(world.pool(execute).max_workers(one_of(&[1, 2])).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 1, Way::Permit)];
        let pauser = thread::spawn({
            let pool = Arc::clone(&pool);
            move || {
                for _ in 0..2 {
                    pool.pause();
                    thread::yield_now();
                    pool.resume();
                }
            }
        });
        // Neither a pause nor its end is missed by whoever waits meanwhile.
        let completion = pool.wait_for_completion();
        assert!(matches!(completion, Completion::Done | Completion::Blocked(_)), "{completion:?}");
        let handles = join_all(submitters);
        pauser.join().unwrap();
        assert_eq!(handles.len(), 3);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        assert!(handles.iter().all(|handle| handle.wait().is_ok_and(|unit| unit.status.is_terminal())));
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_pool_that_is_held_stops() {
    check(|| {
        let world = World::new();
        let pool = Arc::new(world.pool(one_of(&[quick as Execute, fails_first])).max_workers(1).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 1, Way::Waiting), world.submitter(&pool, "b", 1, Way::Hoping)];
        pool.pause();
        let summary = pool.stop(one_of(&[Stop::Drain, Stop::Now])).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}
