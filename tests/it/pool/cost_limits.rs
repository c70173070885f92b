//! What a unit may cost, over all its attempts: never a further attempt beyond that, and what costs too much is stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use workcrew::clock::Clock as _;
use workcrew::executor::CancelReason;
use workcrew::repository::{By, Claimant, Slot, Submitted};
use workcrew::{
    Call, Charge, ExecuteError, FailureKind, MemoryRepository, Money, NewJob, NewOwner, NewUnit, Outcome, Process,
    Progress, Repository, RetryPolicy, Stop, Tokens, UnitStatus, WorkPool, WorkResult, WorkUnit, WorkerId,
};

use super::capture::{cents, charge};
use super::{World, stage, tells_attempts, tells_outcomes, until, watchdog};
use crate::support::Up as _;

/// Why a unit failed that has cost as much as it may.
fn over_limit(unit: &WorkUnit) -> &str {
    assert_eq!(unit.status, UnitStatus::Failed);
    let failure = unit.failure.as_ref().unwrap();
    assert_eq!(failure.kind, FailureKind::COST_LIMIT);
    &failure.message
}

/// A unit that may be tried as often as it likes.
fn capped(id: &str, max_cents: i64) -> NewUnit {
    NewUnit::new(id).max_cost(cents(max_cents)).max_retries(1_000)
}

/// A unit whose every attempt costs a dollar and fails, on a repository; then brought back once more.
fn fail_dearly(repository: Arc<dyn Repository>) {
    let executed = Arc::new(AtomicU32::new(0));
    let executor = {
        let executed = Arc::clone(&executed);
        move |call: &Call<'_>| -> Result<WorkResult, ExecuteError> {
            executed.fetch_add(1, Ordering::Relaxed);
            call.usage(charge(100));
            Err(ExecuteError::retry("no luck"))
        }
    };
    let job = repository.create_job(&NewJob::named("dear")).unwrap().id;
    let pool = WorkPool::builder(job, executor, Arc::clone(&repository)).retry(RetryPolicy::immediate()).up();
    let unit = pool.enqueue(capped("a", 300), "go").unwrap().wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $3.00 of at most $3.00: executor: no luck");
    assert_eq!((executed.load(Ordering::Relaxed), unit.cost.amount, unit.attempts_used), (3, cents(300), 3));

    repository.requeue(job, "a", &By::whom("ada")).unwrap();
    let unit = pool.enqueue(capped("a", 300), "go").unwrap().wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $3.00 of at most $3.00");
    assert_eq!((executed.load(Ordering::Relaxed), unit.cost.amount, unit.attempt_count), (3, cents(300), 4));
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn a_unit_that_fails_again_and_again_costs_what_it_may_and_no_more_in_memory() {
    let _watchdog = watchdog();
    fail_dearly(Arc::new(MemoryRepository::new()));
}

#[test]
fn a_unit_that_fails_again_and_again_costs_what_it_may_and_no_more_in_a_file() {
    let world = World::new();
    fail_dearly(Arc::new(world.repository.clone()));
    world.assert_clean();
}

#[test]
fn what_costs_too_much_is_asked_to_stop_and_keeps_what_it_said() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    let call = stage.next();
    call.say("said before");
    call.act(|call| {
        call.usage(charge(25));
        assert!(!call.is_cancelled(), "it has cost what it may, but not more");
        call.usage(charge(26));
        call.session("s-1");
        call.partial("and th");
    });
    assert_eq!(call.asked(), CancelReason::CostLimit);
    let worker = call.worker.clone();
    call.fail(ExecuteError::retry("interrupted"));

    let unit = handle.wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $0.26 of at most $0.25: interrupted");
    assert_eq!((unit.cost.amount, unit.session_id.as_deref()), (cents(26), Some("s-1")));
    assert_eq!(world.said("a", 1), ["said before", "and th"]);
    assert_eq!(super::next(&outcomes), "failed a: FAILED");
    let other = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    let call = stage.next();
    assert_eq!(call.worker, worker, "the worker lives on");
    call.succeed("done");
    other.wait().unwrap();

    world.repository.requeue(world.job, "a", &By::whom("ada")).unwrap();
    let unit = pool.submit_work_unit(capped("a", 25), "go").unwrap().wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $0.26 of at most $0.25");
    assert!(stage.is_empty(), "it is not executed");
    assert_eq!(world.said("a", 1), ["said before", "and th"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn an_answer_that_was_too_dear_is_paid_for_and_so_it_counts() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    let call = stage.next();
    call.act(|call| call.usage(charge(26)));
    call.asked();
    call.succeed("Paris");
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("Paris")));
    assert_eq!(unit.cost.amount, cents(26));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_earlier_attempts_and_other_models_have_cost_counts() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    let left = |call: &Call<'_>| call.cost_left();
    let call = stage.next();
    assert_eq!(call.act(left), Some(cents(25)));
    call.act(|call| call.usage(charge(20)));
    call.fail(ExecuteError::retry("again"));
    let call = stage.next();
    assert_eq!(call.act(left), Some(cents(5)));
    call.act(|call| {
        call.usage(charge(3));
        call.usage(Charge::reported("small", Tokens::default(), cents(2)));
        assert!(!call.is_cancelled());
        call.usage(Charge::reported("small", Tokens::default(), cents(3)));
    });
    assert_eq!(call.asked(), CancelReason::CostLimit);
    call.fail(ExecuteError::retry("interrupted"));
    let unit = handle.wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $0.26 of at most $0.25: interrupted");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_nobody_can_price_does_not_count() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(capped("a", 1), "go").unwrap();
    let unpriced = || Charge::unpriced("local", Tokens { input: 1_000_000, ..Tokens::default() });
    for _ in 0..3 {
        let call = stage.next();
        assert_eq!(call.act(|call| call.cost_left()), Some(cents(1)));
        call.act(move |call| call.usage(unpriced()));
        call.fail(ExecuteError::retry("again"));
    }
    stage.next().succeed("done");
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.cost.unpriced), (UnitStatus::Completed, 3));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn who_goes_on_spending_is_left_behind() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_attempts(world.pool(part).max_workers(1));
    let pool = builder.up();
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    let deaf = stage.next();
    deaf.act(|call| call.usage(charge(26)));
    deaf.asked();
    world.clock.advance(Duration::from_millis(1_500));
    let expected = "it has cost $0.26 of at most $0.25: the executor did not return when it was to stop";
    assert_eq!(over_limit(&handle.wait().unwrap()), expected);
    let told = ["starts a 1", "leaves a", "ends a 1: FAILED, FAILED"];
    assert_eq!(told.map(|_| super::next(&events)), told);
    deaf.succeed("late");
    let attempt = world.attempt_key("a", 1);
    until(|| workcrew::Archive::attempt_result(&world.repository, attempt).unwrap().late_result.is_some());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn what_would_be_tried_again_later_ends_at_once() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).retry(RetryPolicy::fixed(Duration::from_secs(3_600))).up();
    // What is told with the error alone counts as well.
    let dear = |error: ExecuteError| error.result(WorkResult::text("half").charge(charge(25)));
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    stage.next().fail(dear(ExecuteError::retry_after(Duration::from_secs(60), "slow down").kind("rate_limited")));
    let unit = handle.wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $0.25 of at most $0.25: rate_limited: slow down");
    assert_eq!((unit.output.as_deref(), unit.cost.amount), (Some("half"), cents(25)));

    let slow = capped("slow", 25);
    let handle = pool.submit_work_unit(slow, "go").unwrap();
    let call = stage.next();
    call.act(|call| call.usage(charge(25)));
    world.clock.advance(Duration::from_secs(600));
    call.obey(Err(ExecuteError::retry("interrupted")));
    let unit = handle.wait().unwrap();
    let expected = "it has cost $0.25 of at most $0.25: timed_out: it took longer than 600s: interrupted";
    assert_eq!(over_limit(&unit), expected);
    assert_eq!(world.attempts("slow")[0].outcome, Some(Outcome::TimedOut));

    // What would not be tried again in any case has failed for its own reason.
    for (id, max_retries, error) in [("last", 0, ExecuteError::retry("no")), ("lost", 9, ExecuteError::give_up("no"))] {
        let unit = capped(id, 25).max_retries(max_retries);
        let handle = pool.submit_work_unit(unit, "go").unwrap();
        stage.next().fail(dear(error));
        assert_eq!(handle.wait().unwrap().failure.unwrap().to_string(), "executor: no");
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_was_given_back_after_it_has_cost_what_it_may_is_not_executed_again() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_attempts(world.pool(part).max_workers(1));
    let pool = builder.up();
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    let call = stage.next();
    call.act(|call| call.usage(charge(25)));
    call.fail(ExecuteError::hold("no key"));
    let told = ["starts a 1", "held: executor: no key", "ends a 1: RELEASED, PENDING"];
    assert_eq!(told.map(|_| super::next(&events)), told);
    pool.resume();
    over_limit(&handle.wait().unwrap());
    assert_eq!(super::next(&events), "ends a 2: FAILED, FAILED");
    assert!(stage.is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_a_crash_has_cost_counts() {
    let world = World::new();
    let process = Process::this(&world.clock.boot_id());
    let dead = NewOwner::new(Process { start_ticks: process.start_ticks - 1, ..process }, "dead");
    let dead = Claimant::new(world.repository.register_owner(&dead).unwrap(), Duration::from_secs(3_600));
    let slot = Slot::new(WorkerId::new("w1").unwrap());
    let submitted = world.repository.submit(world.job, &capped("a", 25).prompt("go"), &dead, &slot).unwrap();
    let Submitted::Claimed(claim) = submitted else { panic!("{submitted:?}") };
    world.repository.progress(&claim.lease, &Progress::default().charge(charge(20))).unwrap();

    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(capped("a", 25), "go").unwrap();
    stage.next().end(|call| {
        assert_eq!(call.cost_left(), Some(cents(5)));
        call.usage(charge(5));
        panic!("oh");
    });
    let unit = handle.wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $0.25 of at most $0.25: panic: oh");
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Lost));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn what_may_cost_nothing_is_never_executed() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let unit = NewUnit::new("a").max_cost(Money::ZERO);
    let unit = pool.enqueue(unit, "go").unwrap().wait().unwrap();
    assert_eq!(over_limit(&unit), "it has cost $0.00 of at most $0.00");
    assert!(stage.is_empty());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
