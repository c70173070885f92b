//! Storage that fails: nothing that was paid for is lost, and nothing is done twice.

use std::sync::Arc;
use std::time::Duration;

use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Affinity, Archive, Completion, ExecuteError, NewUnit, Outcome, Refusal, Repository, RepositoryError, Scaling,
    StartError, Stop, StopError, UnitStatus, WaitError, WorkPoolBuilder,
};

use super::stage::Played;
use super::{Stage, World, assert_quiet, next, stage, tells_outcomes, until};
use crate::support::Up as _;

#[test]
fn a_submission_whose_answer_was_lost_is_found_and_executed_once() {
    // P03
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    for (id, fault) in [("executed", Fault::ExecutedThenError), ("not", Fault::ErrorOnce)] {
        faulty.on(Verb::Submit, fault);
        let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        stage.next().succeed("once");
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("once"));
        assert_eq!(world.attempts(id).len(), 1);
    }
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.accepted, 2);
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_submission_that_nobody_can_find_is_refused_and_can_be_sent_again() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::ErrorOnce);
    let error = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(&error.reason, Refusal::Repository(error) if !error.is_rejection()), "{error:?}");
    assert!(pool.wait_for_available_slot());
    let handle = pool.submit_work_unit(*error.unit, "go").unwrap();
    stage.next().succeed("once");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("once"));
    let outcomes: Vec<_> = world.attempts("a").iter().map(|attempt| attempt.outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Released, Outcome::Completed]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_submission_that_nobody_can_find_does_not_bar_the_way_for_others() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::ErrorOnce);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
    assert!(pool.wait_for_available_slot());
    let handle = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    let call = stage.next();
    assert_eq!(call.id, "b");
    call.succeed("b");
    handle.wait().unwrap();
    // What was stored is not held by a pool that knows nothing of it.
    world.clock.advance(Duration::from_secs(15));
    until(|| world.status("a") == UnitStatus::Pending);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.unit("a").attempts_used, 0);
    world.assert_clean();
}

/// The next execution, for which time passes.
fn until_called(world: &World, stage: &Stage) -> Played {
    until(|| {
        world.clock.advance(Duration::from_millis(1));
        !stage.is_empty()
    });
    stage.next()
}

#[test]
fn an_end_whose_answer_was_lost_is_told_once() {
    // P11
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(1), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(1), "go").unwrap();
    faulty.on(Verb::Finish, Fault::ExecutedThenError);
    stage.next().fail(ExecuteError::retry_after(Duration::from_secs(7), "later"));
    until(|| faulty.calls(Verb::Claim) > 0 && pool.stats().pending == 1);
    assert!(stage.is_empty(), "the second answer does not say when, but the unit does");
    world.clock.advance(Duration::from_millis(6_990));
    let later = until_called(&world, &stage);
    faulty.on(Verb::Finish, Fault::ExecutedThenError);
    later.succeed("done");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("done"));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete a: COMPLETED"]);
    assert_eq!(world.attempts("a").len(), 2);
    world.assert_clean();
}

#[test]
fn an_answer_that_was_paid_for_is_kept_until_the_storage_takes_it() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(1), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    faulty.on(Verb::Finish, Fault::ErrorAlways);
    stage.next().succeed("paid for");
    until(|| faulty.calls(Verb::Finish) >= 3);
    assert!(outcomes.is_empty(), "nothing is told before it is stored");
    assert_eq!(pool.stats().busy_workers, 1);
    faulty.heal(Verb::Finish);
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("paid for"));
    assert_eq!(next(&outcomes), "complete a: COMPLETED");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn messages_wait_for_the_storage_and_keep_their_order() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    call.say("1");
    faulty.on(Verb::Append, Fault::ErrorAlways);
    call.say("2");
    call.say("3");
    faulty.heal(Verb::Append);
    faulty.on(Verb::Append, Fault::ExecutedThenError);
    call.say("4");
    call.say("5");
    faulty.on(Verb::Append, Fault::ErrorOnce);
    call.say("6");
    call.succeed("done");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.said("a", 1), ["1", "2", "3", "4", "5", "6"]);
    assert_eq!(world.attempts("a")[0].messages_lost, 0);
    world.assert_clean();
}

#[test]
fn what_became_known_survives_though_it_could_not_be_stored_at_once() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    faulty.on(Verb::Progress, Fault::ErrorAlways);
    let call = stage.next();
    call.act(|call| {
        call.session("s-1");
        call.usage(super::capture::charge(3));
    });
    call.fail(ExecuteError::retry("no"));
    let unit = handle.wait().unwrap();
    assert_eq!((unit.session_id.as_deref(), unit.cost.amount), (Some("s-1"), super::capture::cents(3)));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_claim_that_fails_or_whose_answer_was_lost_is_made_up_for() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    faulty.on(Verb::Claim, Fault::ExecutedThenError);
    stage.next().fail(ExecuteError::retry("1"));
    let second = stage.next();
    faulty.on(Verb::Claim, Fault::ErrorOnce);
    faulty.on(Verb::Claimed, Fault::ErrorOnce);
    second.fail(ExecuteError::retry("2"));
    until(|| faulty.calls(Verb::Claimed) == 2);
    let third = until_called(&world, &stage);
    assert_eq!(third.attempt_number, 3);
    third.succeed("done");
    assert_eq!(handle.wait().unwrap().attempts_used, 3);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_start_that_fails_for_a_while_is_made_up_for() {
    let world = World::with_job(&workcrew::NewJob::named("a job").template("Say {{ payload }}"));
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    faulty.on(Verb::Start, Fault::ErrorOnce);
    faulty.on(Verb::Start, Fault::ExecutedThenError);
    let handle = pool.submit_work_unit(NewUnit::new("a").payload("hi"), workcrew::Prompt::OfUnit).unwrap();
    let call = stage.next();
    assert_eq!((call.prompt.as_str(), call.attempt_number), ("Say hi", 1));
    call.succeed("hi");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_callback_is_not_dropped_because_the_unit_could_not_be_read_at_once() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, outcomes) = tells_outcomes(builder.max_workers(1), &world);
    let pool = builder.up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    faulty.on(Verb::Read, Fault::ErrorOnce);
    stage.next().succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete a: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn leases_that_cannot_be_renewed_stop_the_execution_before_anybody_else_begins() {
    // 003-F32, 003-F35
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let builder = builder.max_workers(1).lease(Duration::from_secs(60)).kill_grace(Duration::from_secs(3_600));
    let (builder, outcomes) = tells_outcomes(builder, &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let call = stage.next();
    faulty.on(Verb::Renew, Fault::ErrorAlways);
    for beat in 1..=2 {
        world.clock.advance(Duration::from_secs(15));
        until(|| faulty.calls(Verb::Renew) == beat);
    }
    assert_eq!(call.cancel.reason(), None);
    world.clock.advance(Duration::from_secs(15));
    assert_eq!(call.asked(), CancelReason::LeaseLost);
    faulty.heal(Verb::Renew);
    call.fail(ExecuteError::retry("interrupted"));
    let again = stage.next();
    assert_eq!(again.attempt_number, 2);
    again.succeed("done");
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Completed, 1));
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Released));
    assert_eq!(next(&outcomes), "complete a: COMPLETED");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_lease_that_ran_out_while_the_machine_slept_is_not_swept_by_its_own_pool() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(2).lease(Duration::from_secs(60)).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    // A submission whose answer was lost gives the heartbeat something to look at between renewing and sweeping.
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::ErrorOnce);
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err();
    let looks = Gate::closed();
    faulty.on(Verb::Claimed, Fault::Gate(looks.clone()));
    world.clock.advance(Duration::from_secs(15));
    looks.wait_for(1);
    world.clock.advance(Duration::from_secs(100));
    looks.open();
    until(|| faulty.calls(Verb::Renew) == 2);
    call.succeed("done");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_was_lost_is_told_so() {
    // 003-F32, 003-F34
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    // Somebody takes the pool for dead.
    let owner = world.repository.owners().unwrap()[0].id;
    workcrew::Repository::end_owner(&world.repository, owner).unwrap();
    world.clock.advance(Duration::from_secs(15));
    assert_eq!(call.asked(), CancelReason::LeaseLost);
    call.succeed("too late");
    assert!(matches!(handle.wait(), Err(WaitError::Lost)));
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.lost, 1);
    assert_eq!(world.status("a"), UnitStatus::Pending);
    let late = world.repository.attempt_result(world.attempt_key("a", 1)).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
}

#[test]
fn a_pool_that_cannot_register_does_not_start() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    faulty.on(Verb::RegisterOwner, Fault::ErrorAlways);
    let pool = builder.build().unwrap();
    let error = pool.start().unwrap_err();
    assert!(matches!(error, StartError::Repository(RepositoryError::Storage(_))), "{error}");
    assert_eq!(pool.stats().phase, workcrew::PoolPhase::InitFailed);
    assert!(!pool.wait_for_available_slot());
    assert_eq!(pool.wait_for_completion(), Completion::Stopped);
    let refused = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::InitFailed(_)), "{refused}");
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    drop(pool);
    assert!(stage.is_gone());

    let (part, _stage) = super::stage();
    let (faulty, builder) = world.faulty_pool(part);
    faulty.on(Verb::RegisterOwner, Fault::ExecutedThenError);
    let pool = builder.up();
    assert_eq!(world.repository.owners().unwrap().len(), 1, "sent twice, it is one");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn an_end_of_the_pool_that_cannot_be_stored_is_told() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.up();
    faulty.on(Verb::EndOwner, Fault::ErrorAlways);
    assert!(matches!(pool.stop(Stop::Drain), Err(StopError::Repository(_))));
    drop(pool);
    assert!(stage.is_gone());
}

/// A pool whose storage fails once when an end is stored, and does not say that this will pass.
fn forgetful(world: &World, workers: usize) -> (Arc<FaultyRepository>, WorkPoolBuilder, Stage) {
    let (part, stage) = stage();
    let faulty = FaultyRepository::new(world.repository.clone().into()).error(|| RepositoryError::Closed);
    let faulty = Arc::new(faulty);
    let builder = world.pool_on(Arc::clone(&faulty) as Arc<dyn Repository>, part);
    (faulty, builder.scaling(Scaling::Fixed).max_workers(workers), stage)
}

const BEAT: Duration = Duration::from_secs(15);

#[test]
fn an_end_that_is_not_stored_keeps_its_place_until_it_is() {
    let world = World::new();
    let (faulty, builder, stage) = forgetful(&world, 2);
    let pool = builder.up();
    let handles = ["a", "b"].map(|id| pool.submit_work_unit(NewUnit::new(id), "go").unwrap());
    let [unstored, other] = <[Played; 2]>::try_from(stage.next_many(2)).ok().unwrap();
    let (held, free) = (unstored.worker.clone(), other.worker.clone());
    faulty.on(Verb::Finish, Fault::ErrorOnce);
    unstored.succeed("paid for");
    assert!(matches!(handles[0].wait(), Err(WaitError::Unrecorded)));
    assert_eq!((pool.stats().load, pool.stats().free_slots, pool.stats().lost), (2, 0, 1));
    let refused = pool.submit_work_unit(NewUnit::new("c"), "go").unwrap_err();
    assert!(refused.is_at_capacity(), "{refused}");
    drop(other);
    for id in ["c", "d"] {
        let handle = pool.enqueue(NewUnit::new(id), "go").unwrap();
        assert_eq!(stage.next().worker, free, "the others go on");
        handle.wait().unwrap();
    }
    until(|| pool.stats().load == 1);
    world.clock.advance(BEAT);
    until(|| pool.stats().load == 0);
    assert_eq!((world.status("a"), world.unit("a").output.as_deref()), (UnitStatus::Completed, Some("paid for")));
    let handles = ["e", "f"].map(|id| pool.submit_work_unit(NewUnit::new(id), "go").unwrap());
    assert!(stage.next_many(2).iter().any(|call| call.worker == held));
    assert!(handles.iter().all(|handle| handle.wait().is_ok()));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_worker_that_crashed_and_whose_end_is_not_stored_is_replaced_once_it_is() {
    for rest in [Duration::ZERO, Duration::from_secs(3_600)] {
        let world = World::new();
        let (faulty, builder, stage) = forgetful(&world, 1);
        let pool = builder.taint_for(rest).up();
        let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        faulty.on(Verb::Finish, Fault::ErrorOnce);
        stage.next().fail(ExecuteError::broken("it fell"));
        assert!(matches!(handle.wait(), Err(WaitError::Unrecorded)));
        assert_eq!((pool.stats().tainted_workers, pool.stats().load), (1, 1));
        world.clock.advance(BEAT);
        until(|| world.attempts("a")[0].outcome == Some(Outcome::Failed));
        world.clock.advance(rest);
        // It is tried again after all.
        let again = stage.next();
        assert_eq!((again.id.as_str(), again.attempt_number), ("a", 2));
        drop(again);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        pool.stop(Stop::Drain).unwrap();
        assert_eq!((world.status("a"), world.unit("a").attempts_used), (UnitStatus::Completed, 2));
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_pool_with_an_end_that_is_not_stored_stops_and_tries_once_more() {
    for stop in [Stop::Drain, Stop::Cancel { grace: BEAT }, Stop::Now] {
        for (fault, status) in [(None, UnitStatus::Completed), (Some(Fault::ErrorAlways), UnitStatus::Pending)] {
            let world = World::new();
            let (faulty, builder, stage) = forgetful(&world, 1);
            let pool = builder.worker_capacity(2).up();
            let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
            faulty.on(Verb::Finish, Fault::ErrorOnce);
            stage.next().succeed("paid for");
            assert!(matches!(handle.wait(), Err(WaitError::Unrecorded)));
            if let Some(fault) = fault {
                faulty.on(Verb::Finish, fault);
            }
            let stats = pool.stop(stop).unwrap().stats;
            assert_eq!((stats.lost, stats.abandoned_threads, stats.total_workers), (1, 0, 0), "{stop}");
            drop(pool);
            assert!(stage.is_gone());
            assert_eq!(world.status("a"), status, "{stop}");
            world.assert_clean();
        }
    }
}

#[test]
fn what_is_tried_again_after_its_end_was_stored_late_keeps_its_session() {
    let world = World::new();
    let (faulty, builder, stage) = forgetful(&world, 2);
    let pool = builder.affinity(Affinity::StrictQueue).up();
    let turn = |id: &str| NewUnit::new(id).affinity_key("s");
    let handle = pool.enqueue(turn("a"), "go").unwrap();
    faulty.on(Verb::Finish, Fault::ErrorOnce);
    stage.next().fail(ExecuteError::retry_after(Duration::from_secs(600), "later"));
    assert!(matches!(handle.wait(), Err(WaitError::Unrecorded)));
    // Nothing need be read for that.
    faulty.on(Verb::Read, Fault::ErrorOnce);
    world.clock.advance(BEAT);
    until(|| pool.stats().pending == 1);
    pool.enqueue(turn("b"), "go").unwrap();
    assert_quiet(&stage.calls);
    faulty.heal(Verb::Read);
    world.clock.advance(Duration::from_secs(600));
    let calls = ["a", "b"].map(|id| {
        let call = stage.next();
        assert_eq!(call.id, id);
        call.worker.clone()
    });
    assert_eq!(calls[0], calls[1]);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
