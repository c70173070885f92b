//! Retries, cancellations and new limits that meet submissions, ends and stops.

use std::sync::Arc;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use workcrew::repository::{By, CancelAnswer};
use workcrew::{Completion, NewUnit, Stop, UnitStatus, WorkerStatus, WorkerView};

use crate::checker::check;
use crate::world::{Execute, LONG, Way, World, assert_balanced, deaf, fails_first, join_all, one_of, patient, quick};

#[test]
fn units_that_fail_are_tried_again_whoever_else_wants_their_place() {
    check(|| {
        let world = World::new();
        let pool = Arc::new(world.pool(fails_first).max_workers(one_of(&[1, 2])).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 1, Way::Permit)];
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 3);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let summary = pool.stop(Stop::Drain).unwrap();
        let stats = &summary.stats;
        assert_eq!((stats.completed, stats.attempts, stats.retried), (3, 6, 3), "{stats:?}");
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_stop_between_two_attempts_leaves_the_unit_pending_or_ended() {
    check(|| {
        let world = World::new();
        let pool = Arc::new(world.pool(fails_first).max_workers(one_of(&[1, 2])).start().unwrap());
        let submitter = world.submitter(&pool, "a", 2, Way::Waiting);
        let stop = one_of(&[Stop::Drain, Stop::Cancel { grace: LONG }, Stop::Now]);
        let summary = pool.stop(stop).unwrap();
        world.assert_ended(&pool, &summary, &join_all([submitter]));
    });
}

#[test]
fn a_cancel_meets_the_end_of_a_unit_and_the_end_of_the_pool() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, patient, fails_first]);
        let pool = Arc::new(world.pool(execute).max_workers(1).start().unwrap());
        let submitter = world.submitter(&pool, "a", 1, Way::Waiting);
        let canceller = thread::spawn({
            let (world, pool) = (world.clone(), Arc::clone(&pool));
            move || world.cancel(&pool, "a-0")
        });
        let summary = pool.stop(one_of(&[Stop::Cancel { grace: LONG }, Stop::Now])).unwrap();
        let handles = join_all([submitter]);
        if canceller.join().unwrap().is_some() {
            assert!(world.status("a-0").is_terminal(), "it was cancelled, or had ended");
        }
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_unit_that_is_cancelled_ends_while_the_pool_lives() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, patient, fails_first]);
        let pool = Arc::new(world.pool(execute).max_workers(1).start().unwrap());
        let handles = join_all([world.submitter(&pool, "a", 1, Way::Waiting)]);
        let cancellers: Vec<_> = (0..2)
            .map(|_| {
                let handle = handles[0].clone();
                thread::spawn(move || handle.cancel(By::whom("ada")).unwrap())
            })
            .collect();
        // The patient one would wait for ever if nobody told it.
        let unit = handles[0].wait().unwrap();
        for canceller in cancellers {
            let answer = canceller.join().unwrap();
            assert!(!matches!(answer, CancelAnswer::Cancelled) || unit.status == UnitStatus::Cancelled, "{answer:?}");
        }
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_new_limit_leaves_nobody_waiting_and_nobody_too_many() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, fails_first]);
        let pool = Arc::new(world.pool(execute).max_workers(2).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 2, Way::Permit)];
        for max_workers in [1, one_of(&[1, 3]), 2] {
            pool.set_max_workers(max_workers).unwrap();
            assert_balanced(&pool.stats());
        }
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 4);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let stats = pool.stats();
        // Whoever is on the way out may have yet to say that its last unit is done, which another has executed since.
        let stays = |worker: &&WorkerView| worker.status != WorkerStatus::ShuttingDown;
        assert!(stats.workers.values().filter(stays).count() <= 2, "{stats:?}");
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_unit_that_two_submit_at_once_is_one_unit() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, fails_first]);
        let pool = Arc::new(world.pool(execute).max_workers(one_of(&[1, 2])).start().unwrap());
        let done = Arc::new(AtomicUsize::new(0));
        let submit = || {
            let (pool, done) = (Arc::clone(&pool), Arc::clone(&done));
            thread::spawn(move || {
                assert!(pool.wait_for_available_slot());
                let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
                assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
                done.fetch_add(1, Ordering::SeqCst);
                handle
            })
        };
        let (first, second) = (submit(), submit());
        // One that sees it run and then finds it gone looks again, after a while.
        world.pass_time_until(|| done.load(Ordering::SeqCst) == 2);
        let handle = first.join().unwrap();
        second.join().unwrap();
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &[handle]);
    });
}

#[test]
fn places_that_were_kept_for_units_that_are_cancelled_go_to_whoever_waits() {
    check(|| {
        let world = World::new();
        let workers = one_of(&[1, 2]);
        let pool = Arc::new(world.pool(fails_first).max_workers(workers).start().unwrap());
        let mut handles = join_all([world.submitter(&pool, "a", workers, Way::Waiting)]);
        let waiting = [world.submitter(&pool, "b", 1, Way::Waiting), world.submitter(&pool, "c", 1, Way::Permit)];
        for handle in &handles {
            world.cancel(&pool, handle.id());
        }
        handles.extend(join_all(waiting));
        assert_eq!(handles.len(), workers + 2);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}
