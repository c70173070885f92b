//! A pool that is out of money: what an attempt leaves of it is not slept through by those that wait.

use std::sync::Arc;

use workcrew::repository::By;
use workcrew::{Completion, JobChange, Money, Repository as _, Stop};

use crate::checker::check;
use crate::world::{Execute, STOPS, Way, World, join_all, one_of, quick};

/// An attempt may cost as much.
const ALL: Money = Money::from_nanos(1_000_000_000);

fn world() -> World {
    let world = World::new();
    world.repository.change_job(world.job, &JobChange::default().budget(ALL), &By::whom("ada")).unwrap();
    world
}

#[test]
fn whoever_waits_for_money_gets_what_an_attempt_leaves_while_it_is_refused() {
    check(|| {
        let world = world();
        let pool = Arc::new(world.pool(quick as Execute).max_workers(2).expected_cost(ALL).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 1, Way::Waiting), world.submitter(&pool, "b", 1, Way::Permit)];
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 2);
        // The clock stands still: nobody looks for money again by himself.
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        assert!(handles.iter().all(|handle| handle.wait().is_ok_and(|unit| unit.status.is_terminal())));
        let summary = pool.stop(Stop::Drain).unwrap();
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_pool_that_is_out_of_money_stops() {
    check(|| {
        let world = world();
        let pool = Arc::new(world.pool(quick as Execute).max_workers(2).expected_cost(ALL).start().unwrap());
        let submitters = [world.submitter(&pool, "a", 2, Way::Hoping), world.submitter(&pool, "b", 1, Way::Hoping)];
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}
