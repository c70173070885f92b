//! Units that were queued for anybody: everything is executed once, whoever pulls, and a stop leaves the rest to others.

use std::sync::Arc;

use shuttle::thread::{self, JoinHandle};
use workcrew::repository::{By, Intake};
use workcrew::{Affinity, Completion, NewUnit, Repository, Stop, Threads, UnitStatus, WorkPool, WorkPoolBuilder};

use crate::checker::check;
use crate::world::{
    Execute, SCALINGS, STOPS, Way, World, crashes_first, deaf, fails_first, join_all, one_of, patient, quick, waiter,
};

/// A thread that queues units, `name-0` and so on, together or one by one. Some of them belong to one session.
fn queuer(world: &World, name: &'static str, count: usize) -> JoinHandle<Vec<String>> {
    let world = world.clone();
    thread::spawn(move || {
        let is_strict = one_of(&[true, false]);
        let unit = |number| {
            let unit = NewUnit::new(format!("{name}-{number}")).prompt("go");
            if is_strict { unit.affinity_key("s").affinity(Affinity::StrictQueue) } else { unit }
        };
        let units: Vec<NewUnit> = (0..count).map(unit).collect();
        for together in units.chunks(one_of(&[1, count])) {
            world.repository.insert(world.job, together, Intake::Open).unwrap();
        }
        units.into_iter().map(|unit| unit.id).collect()
    })
}

fn crew(world: &World, execute: Execute) -> WorkPoolBuilder {
    let (workers, capacity) = (one_of(&[1, 2]), one_of(&[1, 2]));
    world.watch.expect_at_most(workers, capacity);
    world.pool(execute).max_workers(workers).worker_capacity(capacity).scaling(one_of(&SCALINGS))
}

/// A thread that pulls.
fn puller(pool: &Arc<WorkPool>) -> JoinHandle<Completion> {
    waiter(pool, WorkPool::process_pending)
}

#[test]
fn whatever_is_queued_is_pulled_while_others_submit() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_of(&[quick as Execute, deaf, fails_first, crashes_first])));
        let queuers = [queuer(&world, "a", 2), queuer(&world, "b", 2)];
        let early = puller(&pool);
        let submitter = world.submitter(&pool, "c", 2, one_of(&[Way::Line, Way::Waiting]));
        let ids = join_all(queuers);
        assert_eq!((early.join().unwrap(), pool.process_pending()), (Completion::Done, Completion::Done));
        let handles = submitter.join().unwrap();
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        assert_eq!(summary.stats.completed, 6);
        let submitted = handles.iter().map(|handle| handle.id().to_owned());
        world.assert_pulled(&[&pool], &ids.into_iter().chain(submitted).collect::<Vec<_>>());
    });
}

#[test]
fn a_stop_meets_a_pull() {
    check(|| {
        let world = World::new();
        let stop = one_of(&STOPS);
        let execute = if stop == Stop::Drain { one_of(&[quick as Execute, deaf]) } else { one_of(&[deaf, patient]) };
        let pool = world.start(crew(&world, execute));
        let queuers = [queuer(&world, "a", 2), queuer(&world, "b", 1)];
        let pulls = if one_of(&[true, false]) { puller(&pool) } else { waiter(&pool, WorkPool::follow) };
        pool.stop(stop).unwrap();
        assert!(matches!(pulls.join().unwrap(), Completion::Stopped | Completion::Done));
        world.assert_pulled(&[&pool], &join_all(queuers));
    });
}

#[test]
fn what_is_queued_while_a_pool_follows_is_executed() {
    check(|| {
        let world = World::new();
        let pool = world.start(crew(&world, one_of(&[quick as Execute, deaf, fails_first])));
        let follows = waiter(&pool, WorkPool::follow);
        let ids = join_all([queuer(&world, "a", 2), queuer(&world, "b", 1)]);
        while pool.stats().completed < 3 {
            thread::yield_now();
        }
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(follows.join().unwrap(), Completion::Stopped);
        world.assert_pulled(&[&pool], &ids);
    });
}

/// Two pools that pull from one repository, each with one worker. Of two pools nobody can say which worker is meant.
fn two_pools(world: &World, execute: Execute) -> [Arc<WorkPool>; 2] {
    [(), ()].map(|()| Arc::new(world.pool(execute).max_workers(1).worker_runtime(Threads).start().unwrap()))
}

#[test]
fn two_pools_share_what_is_queued() {
    check(|| {
        let world = World::new();
        let ids = join_all([queuer(&world, "a", 2), queuer(&world, "b", 2)]);
        let [one, other] = two_pools(&world, one_of(&[quick as Execute, deaf, fails_first, crashes_first]));
        // No time passes: that the other has ended the last unit is heard.
        for puller in [&one, &other].map(puller) {
            assert_eq!(puller.join().unwrap(), Completion::Done);
        }
        assert_eq!(one.stats().completed + other.stats().completed, 4);
        for pool in [&one, &other] {
            pool.stop(Stop::Drain).unwrap();
        }
        world.assert_pulled(&[&one, &other], &ids);
    });
}

#[test]
fn what_a_pool_leaves_that_stops_the_other_executes() {
    check(|| {
        let world = World::new();
        let ids = join_all([queuer(&world, "a", 2), queuer(&world, "b", 1)]);
        let [one, other] = two_pools(&world, one_of(&[quick as Execute, deaf, fails_first]));
        let pullers = [&one, &other].map(puller);
        one.stop(one_of(&STOPS)).unwrap();
        let [stopped, done] = pullers.map(|puller| puller.join().unwrap());
        assert!(matches!(stopped, Completion::Stopped | Completion::Done));
        assert_eq!(done, Completion::Done, "no time passes");
        other.stop(Stop::Drain).unwrap();
        for id in &ids {
            assert_eq!(world.status(id), UnitStatus::Completed, "{id}");
        }
        world.assert_pulled(&[&one, &other], &ids);
    });
}

#[test]
fn a_cancel_by_anybody_reaches_the_pool_that_has_the_unit() {
    check(|| {
        let world = World::new();
        let ids = join_all([queuer(&world, "a", 2)]);
        let [one, other] = two_pools(&world, patient);
        let pullers = [&one, &other].map(puller);
        for id in &ids {
            // What waits for anybody nobody would tell of.
            while !world.status(id).is_leased() {
                thread::yield_now();
            }
            world.repository.cancel(world.job, id, &By::whom("ada")).unwrap();
        }
        // The patient ones would wait for ever if nobody told them.
        for puller in pullers {
            assert_eq!(puller.join().unwrap(), Completion::Done);
        }
        for pool in [&one, &other] {
            pool.stop(one_of(&STOPS)).unwrap();
        }
        world.assert_pulled(&[&one, &other], &ids);
    });
}
