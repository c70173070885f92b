//! Units that need the same answer: whoever waits for one is woken by it, does the work if there is none, and keeps no pool from stopping.
//!
//! The clock stands still, so nobody looks again by himself.

use std::sync::Arc;

use workcrew::repository::By;
use workcrew::{Completion, Stop};

use crate::checker::check;
use crate::world::{Execute, STOPS, Way, World, crashes_first, deaf, fails_first, join_all, one_of, patient, quick};

/// All units here have the same prompt.
const PARAMETERS: u8 = 1;

#[test]
fn whoever_waits_for_an_answer_has_it_or_does_the_work() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, fails_first, crashes_first]);
        let pool = Arc::new(world.pool(execute).max_workers(3).same_work_once_with(PARAMETERS).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Waiting), world.submitter(&pool, "b", 2, Way::Permit)];
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 4);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        assert!(handles.iter().all(|handle| handle.wait().is_ok_and(|unit| unit.status.is_terminal())));
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_pool_stops_whoever_waits_for_whose_answer() {
    check(|| {
        let world = World::new();
        // By itself who is patient would wait for ever: a drain asks nobody to stop.
        let (execute, stops) =
            one_of(&[(quick as Execute, &STOPS[..]), (deaf, &STOPS), (fails_first, &STOPS), (patient, &STOPS[1..])]);
        let pool = Arc::new(world.pool(execute).max_workers(3).same_work_once_with(PARAMETERS).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Hoping), world.submitter(&pool, "b", 2, Way::Line)];
        let summary = pool.stop(one_of(stops)).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn whoever_waits_is_cancelled_and_whoever_waits_for_who_was_cancelled_goes_on() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[deaf as Execute, patient]);
        let pool = Arc::new(world.pool(execute).max_workers(2).same_work_once_with(PARAMETERS).start().unwrap());
        let handles =
            join_all([world.submitter(&pool, "a", 1, Way::Waiting), world.submitter(&pool, "b", 1, Way::Waiting)]);
        for handle in &handles {
            handle.cancel(By::whom("ada")).unwrap();
        }
        assert!(handles.iter().all(|handle| handle.wait().is_ok_and(|unit| unit.status.is_terminal())));
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}
