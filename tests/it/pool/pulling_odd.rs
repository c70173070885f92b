//! Pulling at odd moments: while the pool comes up, is held or stops, by several threads at once, next to other pools of the process.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use workcrew::clock::Clock as _;
use workcrew::repository::{By, CancelAnswer, Insertion};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, CancelReason, CancelToken, Completion, ExecuteError, Executor, FailureKind, JobId, NewUnit, Repository,
    RepositoryError, Stop, UnitStatus, WorkPoolBuilder,
};

use super::pulling::{pulling, unit};
use super::stage::stage;
use super::{PATIENCE, World, assert_quiet, next, tells_outcomes, until};
use crate::support::Up as _;

impl World {
    /// A pool that hears nothing of what others do with its database, as if they were in another process.
    pub(super) fn deaf_pool(&self, executor: impl Executor) -> (Arc<FaultyRepository>, WorkPoolBuilder) {
        let deaf = Arc::new(FaultyRepository::new(self.repository.clone().into()).silent());
        (Arc::clone(&deaf), self.pool_on(deaf as Arc<dyn Repository>, executor))
    }
}

#[test]
fn what_another_process_queues_before_the_last_unit_ends_is_executed_too() {
    let world = World::new();
    let (part, stage) = stage();
    let (deaf, builder) = world.deaf_pool(part);
    let pool = builder.max_workers(2).up();
    world.queue_ids(&["a"]);
    let (completion, ()) = pulling(&pool, || {
        let a = stage.next();
        until(|| deaf.calls(Verb::Expire) > 0 && pool.stats().running == 1);
        // There is a place left, and nothing was found for it.
        until(|| deaf.calls(Verb::Backlog) >= 2);
        world.queue_ids(&["b"]);
        a.succeed("done");
        assert_eq!(stage.next().id, "b", "no time has passed");
    });
    assert_eq!((completion, world.status("b")), (Completion::Done, UnitStatus::Completed));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn that_another_pool_of_this_process_has_ended_the_last_unit_is_heard_at_once() {
    let world = World::new();
    world.queue_ids(&["a"]);
    let (one, stage_one) = world.staged(1);
    let (other, stage_other) = world.staged(1);
    let (completion, ()) = pulling(&one, || {
        let a = stage_one.next();
        let (others, ()) = pulling(&other, || {
            assert_eq!(other.process_pending_timeout(Duration::from_millis(20)), Completion::TimedOut);
            a.succeed("done");
        });
        assert_eq!((others, stage_other.is_empty()), (Completion::Done, true), "no time has passed");
    });
    assert_eq!(completion, Completion::Done);
    for pool in [one, other] {
        pool.stop(Stop::Drain).unwrap();
    }
    world.assert_clean();
}

#[test]
fn a_cancel_by_anybody_in_this_process_is_heard_at_once() {
    // 003-F46
    let world = World::new();
    world.queue_ids(&["pulled"]);
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(2), &world);
    let pool = builder.up();
    let cancel = |id: &str| world.repository.cancel(world.job, id, &By::whom("ada")).unwrap();
    let (completion, ()) = pulling(&pool, || {
        let pulled = stage.next();
        pool.submit_work_unit(NewUnit::new("submitted"), "go").unwrap();
        let submitted = stage.next();
        let waits = pool.enqueue(NewUnit::new("waits"), "go").unwrap();
        assert_eq!(cancel("waits"), CancelAnswer::Cancelled);
        assert_eq!(next(&outcomes), "cancelled waits: CANCELLED");
        assert_eq!(waits.wait().unwrap().status, UnitStatus::Cancelled);
        for call in [pulled, submitted] {
            assert_eq!(cancel(&call.id), CancelAnswer::Requested);
            assert_eq!(call.asked(), CancelReason::Requested, "no time has passed");
            let told = format!("cancelled {}: CANCELLED", call.id);
            call.fail(ExecuteError::give_up("as you wish"));
            assert_eq!(next(&outcomes), told);
        }
    });
    assert_eq!((completion, outcomes.is_empty()), (Completion::Done, true));
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.cancelled, 3);
    world.assert_clean();
}

#[test]
fn a_unit_that_is_cancelled_before_the_pool_knows_that_it_has_claimed_it_ends_at_once() {
    // 003-F46
    let world = World::new();
    world.queue_ids(&["a"]);
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (pool, gate) = (builder.max_workers(1).up(), Gate::closed());
    faulty.on(Verb::Claim, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::Gate(gate.clone()));
    let (completion, ()) = pulling(&pool, || {
        gate.wait_for(1);
        let answer = world.repository.cancel(world.job, "a", &By::whom("ada")).unwrap();
        assert_eq!(answer, CancelAnswer::Requested);
        gate.open();
        // No time has passed. Whether its execution begins at all is not the point.
        until(|| world.status("a") == UnitStatus::Cancelled || !stage.is_empty());
        if let Ok(call) = stage.calls.try_recv() {
            assert_eq!(call.asked(), CancelReason::Requested);
            call.fail(ExecuteError::give_up("as you wish"));
        }
    });
    assert_eq!((completion, world.status("a")), (Completion::Done, UnitStatus::Cancelled));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn several_threads_may_pull_at_once_and_one_that_leaves_stops_nobody() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    thread::scope(|threads| {
        let follows = threads.spawn(|| pool.follow());
        let [one, other] = [(), ()].map(|()| {
            world.queue_ids(&["a", "b"]);
            threads.spawn(|| pool.process_pending_timeout(PATIENCE))
        });
        drop(stage.next_many(2));
        assert_eq!((one.join().unwrap(), other.join().unwrap()), (Completion::Done, Completion::Done));
        assert_eq!(pool.follow_timeout(Duration::ZERO), Completion::TimedOut);
        world.queue_ids(&["c"]);
        assert_eq!(stage.next().id, "c", "somebody still follows");
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(follows.join().unwrap(), Completion::Stopped);
    });
    world.assert_clean();
}

/// A pool is told to stop while it claims two units, and nobody waits for those.
fn stopped_in_the_middle_of_a_claim(stop: Stop) {
    let world = World::new();
    world.queue_ids(&["a", "b"]);
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(2), &world);
    let (pool, gate) = (builder.up(), Gate::closed());
    faulty.on(Verb::Claim, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let pulls = threads.spawn(|| pool.process_pending());
        gate.wait_for(1);
        let stops = threads.spawn(|| pool.stop(stop));
        assert_eq!(pulls.join().unwrap(), Completion::Stopped, "it has nothing in hand that it knows of");
        gate.open();
        stops.join().unwrap().unwrap();
    });
    assert!(stage.is_empty() && outcomes.is_empty());
    for id in ["a", "b"] {
        let unit = world.unit(id);
        assert_eq!((unit.status, unit.accepted_by, unit.attempts_used), (UnitStatus::Pending, None, 0));
    }
    world.assert_clean();
}

#[test]
fn a_pool_that_drains_in_the_middle_of_a_claim_gives_back_what_it_gets() {
    stopped_in_the_middle_of_a_claim(Stop::Drain);
}

#[test]
fn a_pool_that_cancels_in_the_middle_of_a_claim_gives_back_what_it_gets() {
    stopped_in_the_middle_of_a_claim(Stop::Cancel { grace: Duration::from_secs(10) });
}

#[test]
fn a_unit_whose_template_cannot_be_rendered_fails_and_bars_nobodys_way() {
    let world = World::new();
    world.queue(&[NewUnit::new("a").template("{{ missing }}"), unit("b")]);
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    let (completion, ()) = pulling(&pool, || {
        assert_eq!(next(&outcomes), "failed a: FAILED");
        assert_eq!(stage.next().id, "b");
    });
    assert_eq!(completion, Completion::Done);
    assert_eq!(world.unit("a").failure.unwrap().kind, FailureKind::PROMPT);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn whoever_pulls_while_a_pool_comes_up_waits_for_that_and_is_told_if_it_does_not() {
    for fails in [true, false] {
        let world = World::new();
        world.queue_ids(&["a"]);
        let (part, stage) = stage();
        let gate = Gate::closed();
        let hook = {
            let gate = gate.clone();
            move |_: &CancelToken| {
                gate.pass();
                if fails { Err(ExecuteError::give_up("no key")) } else { Ok(()) }
            }
        };
        let pool = world.pool(part).init_hook(hook).start().unwrap();
        thread::scope(|threads| {
            let pulls = [
                threads.spawn(|| pool.process_pending_timeout(PATIENCE)),
                threads.spawn(|| pool.follow_timeout(if fails { PATIENCE } else { Duration::ZERO })),
            ];
            assert_quiet(&stage.calls);
            gate.open();
            if !fails {
                assert_eq!(stage.next().id, "a");
            }
            let [pending, follows] = pulls.map(|pulls| pulls.join().unwrap());
            let expected = if fails {
                (Completion::Stopped, Completion::Stopped)
            } else {
                (Completion::Done, Completion::TimedOut)
            };
            assert_eq!((pending, follows), expected);
        });
        assert_eq!(world.status("a"), if fails { UnitStatus::Pending } else { UnitStatus::Completed });
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_pool_that_is_held_until_a_time_pulls_then() {
    let world = World::new();
    world.queue_ids(&["a", "b"]);
    let (pool, stage) = world.staged(1);
    let (completion, ()) = pulling(&pool, || {
        let until_then = world.clock.now().wall + chrono::TimeDelta::seconds(60);
        stage.next().fail(ExecuteError::hold_until(until_then, "too many requests"));
        until(|| pool.stats().hold.is_some() && pool.all_idle());
        assert_quiet(&stage.calls);
        world.clock.advance(Duration::from_secs(60));
        for id in ["a", "b"] {
            assert_eq!(stage.next().id, id);
        }
    });
    assert_eq!(completion, Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_is_queued_together_is_stored_as_a_whole_or_not_at_all() {
    let world = World::new();
    world.queue_ids(&["there"]);
    let counts = || world.repository.counts(world.job).unwrap().total();
    let invalid = [unit("a"), unit(""), unit("b")];
    let refused = world.repository.queue_units(world.job, &invalid).unwrap_err();
    assert!(matches!(refused, RepositoryError::Invalid(_)), "{refused}");
    let nowhere = world.repository.queue_units(JobId(4_711), &[unit("a")]).unwrap_err();
    assert!(matches!(nowhere, RepositoryError::UnknownJob(_)), "{nowhere}");
    assert_eq!((counts(), world.repository.queue_units(world.job, &[]).unwrap()), (1, Vec::new()));

    let mixed = [unit("a"), unit("there"), unit("a"), NewUnit::new("there").prompt("something else"), unit("b")];
    let answers = world.repository.queue_units(world.job, &mixed).unwrap();
    let key = |id: &str| world.unit(id).key;
    let expected = [
        Insertion::Inserted(key("a")),
        Insertion::AlreadyExists(key("there")),
        Insertion::AlreadyExists(key("a")),
        Insertion::Conflict(key("there")),
        Insertion::Inserted(key("b")),
    ];
    assert_eq!((answers.as_slice(), counts()), (expected.as_slice(), 3));
}
