//! Cancelling: at once what waits, by asking what runs, and by force what does not listen.

use std::time::Duration;

use workcrew::clock::Clock;
use workcrew::executor::CancelReason;
use workcrew::repository::{By, CancelAnswer};
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Completion, Event, ExecuteError, NewUnit, Outcome, Repository, RepositoryError, RetryPolicy, Stop,
    UnitStatus,
};

use super::{World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

const KILL_GRACE: Duration = Duration::from_millis(1_500);

#[test]
fn what_waits_is_cancelled_at_once() {
    // 003-F46
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).retry(RetryPolicy::fixed(Duration::from_secs(60)));
    let (builder, outcomes) = tells_outcomes(builder, &world);
    let pool = builder.up();
    let backing_off = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("not yet"));
    let later = world.clock.now().wall + chrono::TimeDelta::hours(1);
    let not_due = pool.submit_work_unit(NewUnit::new("b").not_before(later), "go").unwrap();
    until(|| pool.stats().pending == 2);

    assert_eq!(backing_off.cancel(By::new("ada", "wrong input")).unwrap(), CancelAnswer::Cancelled);
    assert_eq!(next(&outcomes), "cancelled a: CANCELLED");
    assert_eq!(pool.cancel("b", By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    assert_eq!(next(&outcomes), "cancelled b: CANCELLED");
    for handle in [&backing_off, &not_due] {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    }
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let again = pool.cancel("a", By::whom("ada")).unwrap();
    assert_eq!(again, CancelAnswer::AlreadyEnded(UnitStatus::Cancelled));
    assert!(matches!(pool.cancel("c", By::whom("ada")), Err(RepositoryError::UnknownUnit { .. })));

    world.clock.advance(Duration::from_secs(3_600));
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.cancelled, stats.attempts), (2, 2, 1));
    assert!(outcomes.is_empty() && stage.is_empty());
    world.assert_clean();
}

#[test]
fn what_runs_is_asked_at_once_and_its_worker_goes_on() {
    // 003-F46, 003-F47
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    call.say("so far");
    assert_eq!(handle.cancel(By::whom("ada")).unwrap(), CancelAnswer::Requested);
    assert_eq!(call.asked(), CancelReason::Requested);
    assert_eq!(world.status("a"), UnitStatus::CancelRequested);
    assert_eq!(handle.cancel(By::whom("ada")).unwrap(), CancelAnswer::AlreadyRequested);
    call.fail(ExecuteError::retry("stopped, as asked"));
    let unit = handle.wait().unwrap();
    assert_eq!(unit.status, UnitStatus::Cancelled);
    assert_eq!(next(&outcomes), "cancelled a: CANCELLED");
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Cancelled));
    assert_eq!(world.said("a", 1), ["so far"]);

    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    stage.next().succeed("b");
    pool.wait_for_completion();
    assert_eq!(world.attempts("a")[0].worker_id, world.attempts("b")[0].worker_id);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.abandoned_threads, 0);
    world.assert_clean();
}

#[test]
fn what_does_not_listen_is_ended_after_the_kill_grace() {
    // 003-F47
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let deaf = stage.next();
    pool.cancel("a", By::whom("ada")).unwrap();
    deaf.asked();
    world.clock.advance(KILL_GRACE - Duration::from_millis(1));
    assert_eq!(world.status("a"), UnitStatus::CancelRequested);
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    assert_eq!(next(&outcomes), "cancelled a: CANCELLED");
    assert_eq!(pool.stats().abandoned_threads, 1);
    deaf.succeed("too late");
    until(|| pool.stats().abandoned_threads == 0);
    assert_eq!(world.unit("a").output, None);
    let late = world.repository.attempt_result(world.attempt_key("a", 1)).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
    pool.stop(Stop::Drain).unwrap();
    assert!(outcomes.is_empty());
    world.assert_clean();
}

#[test]
fn a_success_after_the_request_stays_on_the_attempt() {
    // 003-F47
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.deaf_pool(part).1.max_workers(1).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    // Somebody else asks, and the executor ends before the pool has heard of it.
    world.repository.cancel(world.job, "a", &By::whom("another process")).unwrap();
    call.succeed("paid for");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    let attempt = &world.attempts("a")[0];
    assert_eq!(attempt.outcome, Some(Outcome::Completed));
    let result = world.repository.attempt_result(attempt.key).unwrap();
    assert_eq!(result.output.as_deref(), Some("paid for"));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_request_of_another_process_is_heard_with_the_next_heartbeat() {
    // 003-F46, 003-F47
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.deaf_pool(part).1.max_workers(1).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    world.repository.cancel(world.job, "a", &By::whom("another process")).unwrap();
    world.clock.advance(Duration::from_secs(15));
    assert_eq!(call.asked(), CancelReason::Requested);
    call.succeed("paid for");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn cancelled_while_its_attempt_is_being_closed_it_is_told_once() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(1);
    let (handle, (builder, outcomes)) = (builder.handle(), tells_outcomes(builder, &world));
    let observer = move |event: &Event<'_>| {
        if let Event::AttemptEnded { unit_id, status: UnitStatus::Pending, .. } = event {
            let answer = handle.cancel(unit_id.as_str(), By::whom("an observer")).unwrap().unwrap();
            assert_eq!(answer, CancelAnswer::Cancelled);
        }
    };
    let pool = builder.observer(observer).up();
    let unit = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::retry("again"));
    assert_eq!(unit.wait().unwrap().status, UnitStatus::Cancelled);
    // Whatever else was to be done for the unit is done when another one has come and gone.
    assert!(pool.wait_for_available_slot());
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    stage.next().succeed("b");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.cancelled, stats.completed), (2, 1, 1));
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["cancelled a: CANCELLED", "complete b: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn cancelled_while_it_is_being_submitted_it_does_not_begin() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    let gate = Gate::closed();
    // The unit is stored and claimed, and the pool does not know it yet.
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::Gate(gate.clone()));
    std::thread::scope(|threads| {
        let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new("a"), "go").unwrap());
        gate.wait_for(1);
        assert_eq!(pool.cancel("a", By::whom("ada")).unwrap(), CancelAnswer::Requested);
        gate.open();
        assert_eq!(submitting.join().unwrap().wait().unwrap().status, UnitStatus::Cancelled);
    });
    assert!(stage.is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
