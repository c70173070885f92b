//! Submitting again: whatever became of a unit, a loop that is run again picks it up there and does nothing twice.

use std::thread;
use std::time::Duration;

use workcrew::clock::Clock;
use workcrew::repository::{By, Intake};
use workcrew::{
    Completion, ExecuteError, NewUnit, Prompt, Refusal, Repository, RepositoryError, RetryPolicy, Stop, UnitStatus,
    WaitError,
};

use super::{World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

#[test]
fn a_unit_that_waits_and_is_due_is_executed() {
    let world = World::new();
    world.repository.insert(world.job, &[NewUnit::new("a").prompt("go")], Intake::Open).unwrap();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("done"));
    assert_eq!(world.attempts("a").len(), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_inserted_without_a_prompt_takes_its_first() {
    let world = World::new();
    world.repository.insert(world.job, &[NewUnit::new("a")], Intake::Open).unwrap();
    let (pool, stage) = world.staged(1);
    let refused = pool.submit_work_unit(NewUnit::new("a"), Prompt::OfUnit).unwrap_err();
    assert!(matches!(refused.reason, Refusal::NoPrompt));
    pool.submit_work_unit(NewUnit::new("a"), "the first").unwrap();
    assert_eq!(stage.next().prompt, "the first");
    pool.wait_for_completion();
    let refused = pool.submit_work_unit(NewUnit::new("a"), "the second").unwrap_err();
    assert!(matches!(refused.reason, Refusal::Repository(RepositoryError::Conflict { .. })));
    assert_eq!(pool.stats().free_slots, 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_not_due_waits_without_a_slot_and_is_claimed_in_time() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let later = world.clock.now().wall + chrono::TimeDelta::seconds(90);
    let unit = || NewUnit::new("a").not_before(later);
    let first = pool.submit_work_unit(unit(), "go").unwrap();
    let second = pool.submit_work_unit(unit(), "go").unwrap();
    let stats = pool.stats();
    assert_eq!((stats.accepted, stats.pending, stats.free_slots), (1, 1, 1));
    world.clock.advance(Duration::from_secs(89));
    assert_eq!(world.status("a"), UnitStatus::Pending);
    assert!(stage.is_empty());
    world.clock.advance(Duration::from_secs(1));
    stage.next().succeed("in time");
    for handle in [first, second] {
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("in time"));
    }
    assert_eq!(world.attempts("a").len(), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_runs_here_is_executed_once_for_all_who_submit_it() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let second = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let stats = pool.stats();
    assert_eq!((stats.accepted, stats.running, stats.free_slots), (1, 1, 1));
    call.succeed("once");
    assert_eq!(first.wait().unwrap(), second.wait().unwrap());
    assert_eq!(world.attempts("a").len(), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn many_who_submit_one_unit_at_once_get_one_execution() {
    let world = World::new();
    let (pool, stage) = world.staged(8);
    thread::scope(|threads| {
        let submit = || pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        let submitting: Vec<_> = (0..8).map(|_| threads.spawn(submit)).collect();
        stage.next().succeed("once");
        for thread in submitting {
            assert_eq!(thread.join().unwrap().wait().unwrap().output.as_deref(), Some("once"));
        }
    });
    assert!(stage.is_empty());
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.accepted, 1);
    world.assert_clean();
}

#[test]
fn a_unit_that_another_pool_executes_is_waited_for() {
    let world = World::new();
    let (working, stage) = world.staged(1);
    let (waiting, idle_stage) = world.staged(1);
    working.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let handle = waiting.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    assert_eq!(waiting.stats().free_slots, 1);
    assert_eq!(waiting.wait_for_completion(), Completion::Done, "it is none of its own");
    assert!(matches!(handle.wait_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
    call.succeed("elsewhere");
    working.wait_for_completion();
    // It looks every five seconds, and may have looked just before.
    until(|| {
        world.clock.advance(Duration::from_secs(5));
        handle.is_done()
    });
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("elsewhere"));
    assert!(idle_stage.is_empty());
    for pool in [working, waiting] {
        pool.stop(Stop::Drain).unwrap();
    }
    world.assert_clean();
}

#[test]
fn whoever_waits_for_another_pools_unit_is_told_when_its_own_pool_stops() {
    let world = World::new();
    let (working, stage) = world.staged(1);
    let (waiting, _idle_stage) = world.staged(1);
    working.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let handle = waiting.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    waiting.stop(Stop::Drain).unwrap();
    assert!(matches!(handle.wait(), Err(WaitError::Lost)));
    drop(call);
    working.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_has_ended_is_told_at_once_and_not_called_back_again() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    for (id, status) in [("good", UnitStatus::Completed), ("bad", UnitStatus::Failed), ("gone", UnitStatus::Cancelled)]
    {
        let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        match status {
            UnitStatus::Completed => stage.next().succeed("done"),
            UnitStatus::Failed => stage.next().fail(ExecuteError::give_up("no")),
            _ => {
                let call = stage.next();
                pool.cancel(id, By::whom("a test")).unwrap();
                call.obey(Err(ExecuteError::retry("stopped")));
            }
        }
        assert_eq!(handle.wait().unwrap().status, status);
        next(&outcomes);

        let again = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        assert!(again.is_done());
        assert_eq!(again.wait().unwrap().status, status);
        assert_eq!(pool.stats().free_slots, 1);
    }
    let summary = pool.stop(Stop::Drain).unwrap();
    assert_eq!((summary.stats.accepted, summary.stats.attempts), (3, 3));
    assert!(outcomes.is_empty() && stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_failed_unit_runs_again_only_when_it_was_requeued() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::give_up("no"));
    pool.wait_for_completion();
    assert!(pool.submit_work_unit(NewUnit::new("a"), "go").unwrap().is_done());
    world.repository.requeue(world.job, "a", &By::whom("a test")).unwrap();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("at last");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.failed, stats.completed), (2, 1, 1));
    world.assert_clean();
}

#[test]
fn other_content_under_the_same_id_is_a_conflict() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    pool.submit_work_unit(NewUnit::new("a").payload(1), "go").unwrap();
    for unit in [NewUnit::new("a").payload(2), NewUnit::new("a").payload(1).template("x")] {
        let error = pool.submit_work_unit(unit, "go").unwrap_err();
        assert!(matches!(error.reason, Refusal::Repository(RepositoryError::Conflict { .. })), "{error:?}");
    }
    assert_eq!(pool.stats().free_slots, 1);
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn both_handles_of_a_unit_that_was_submitted_again_when_it_was_due_are_told() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).retry(RetryPolicy::fixed(Duration::from_secs(10))).up();
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("not yet"));
    // The place is this thread's, so the pool cannot claim the unit by itself when it is due.
    assert!(pool.wait_for_available_slot());
    until(|| pool.stats().pending == 1);
    world.clock.advance(Duration::from_secs(10));
    let second = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("now");
    for handle in [second, first] {
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("now"));
    }
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.attempts), (1, 1, 2));
    world.assert_clean();
}

#[test]
fn a_failed_unit_may_be_requeued_and_submitted_in_its_own_callback() {
    // 004-F55
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(2);
    let (handle, repository, job) = (builder.handle(), world.repository.clone(), world.job);
    let (tell, again) = crossbeam_channel::unbounded();
    let leave = workcrew::testing::Gate::closed();
    let pool = builder
        .on_unit_failed({
            let leave = leave.clone();
            move |unit, _| {
                repository.requeue(job, unit.id.as_str(), &By::whom("a callback")).unwrap();
                tell.send(handle.submit_work_unit(NewUnit::new(unit.id.as_str()), "go").unwrap()).unwrap();
                leave.pass();
            }
        })
        .up();
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::give_up("no"));
    let (again, call) = (next(&again), stage.next());
    leave.open();
    assert!(first.wait().is_ok());
    assert_eq!(pool.stats().running, 1);
    assert_eq!(pool.wait_for_completion_timeout(Duration::from_millis(1)), Completion::TimedOut);
    call.succeed("at last");
    assert_eq!(again.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.failed, stats.completed), (2, 1, 1));
    world.assert_clean();
}
