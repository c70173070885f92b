//! Budgets: nothing begins that may cost more than is left, nothing fails for it, and what waits goes on when there is more.

use std::sync::Mutex;
use std::time::Duration;

use workcrew::limits::{AccountHolder, Estimate};
use workcrew::repository::By;
use workcrew::{
    Archive, Call, Charge, Completion, ExecuteError, Executor, JobChange, Money, NewJob, NewUnit, Refusal, Repository,
    Stop, Tokens, UnitStatus, WorkResult,
};

use super::stage::{Played, Stage};
use super::{World, stage, tells_attempts, until};
use crate::support::Up as _;

fn dollars(text: &str) -> Money {
    text.parse().unwrap()
}

fn world(budget: &str) -> World {
    World::with_job(&NewJob::named("a job").budget(dollars(budget)))
}

fn charge(amount: &str) -> Charge {
    Charge::reported("large", Tokens::default(), dollars(amount))
}

/// Ends well after it has cost so much.
fn cost(call: Played, amount: &'static str) {
    call.act(move |call| call.usage(charge(amount)));
    call.succeed("done");
}

fn raise(world: &World, budget: &str) {
    let change = JobChange::default().budget(dollars(budget));
    world.repository.change_job(world.job, &change, &By::whom("ada")).unwrap();
}

fn spent_and_reserved(world: &World) -> (Money, Money) {
    let account = world.repository.account(AccountHolder::Job(world.job)).unwrap().unwrap();
    (account.spent, account.reserved)
}

/// Lets the pool try again what it could not pay for.
fn look_again(world: &World) {
    world.clock.advance(Duration::from_secs(2));
}

fn next_of(stage: &Stage, ids: &[&str]) -> Vec<Played> {
    let calls = stage.next_many(ids.len());
    assert_eq!(calls.iter().map(|call| &*call.id).collect::<Vec<_>>(), ids);
    calls
}

#[test]
fn what_cannot_be_paid_waits_and_goes_on_when_the_budget_is_raised() {
    let world = world("1");
    let (part, stage) = stage();
    let (builder, events) = tells_attempts(world.pool(part).max_workers(4).expected_cost(dollars("0.7")));
    let pool = builder.up();
    let handles: Vec<_> =
        ["a", "b", "c"].into_iter().map(|id| pool.enqueue(NewUnit::new(id).max_retries(0), "go").unwrap()).collect();
    // The first may cost 0.7, the second what is left.
    let mut calls = next_of(&stage, &["a", "b"]);
    until(|| pool.stats().hold.is_some());
    assert!(stage.is_empty() && pool.stats().hold.unwrap().contains("reserved"));
    cost(calls.remove(0), "0.6");
    cost(calls.remove(0), "0.3");
    let reason = "job 1 may cost $1.00: $0.90 is spent, and the next attempt may cost $0.60";
    assert_eq!(pool.wait_for_completion(), Completion::Blocked(reason.to_owned()));
    assert_eq!((world.status("c"), world.unit("c").attempt_count), (UnitStatus::Pending, 0));
    look_again(&world);
    look_again(&world);
    assert_eq!(pool.wait_for_completion(), Completion::Blocked(reason.to_owned()));

    raise(&world, "2");
    look_again(&world);
    cost(stage.next(), "0.2");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    for handle in handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    assert_eq!(spent_and_reserved(&world), (dollars("1.1"), Money::ZERO));
    let held: Vec<String> = events.try_iter().filter(|event| event.starts_with("held")).collect();
    assert_eq!(held, [format!("held: {reason}")], "it is told once, however often it is tried");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_an_attempt_has_not_cost_is_there_for_the_next_at_once() {
    let world = world("1");
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(4).expected_cost(dollars("1")).up();
    for id in ["a", "b", "c", "d"] {
        pool.enqueue(NewUnit::new(id), "go").unwrap();
    }
    let call = stage.next();
    until(|| pool.stats().hold.is_some());
    assert!(stage.is_empty(), "one may cost all there is");
    // The clock stands still: nobody waits for a poll.
    cost(call, "0.01");
    for call in next_of(&stage, &["b", "c", "d"]) {
        cost(call, "0.01");
    }
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(spent_and_reserved(&world), (dollars("0.04"), Money::ZERO));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_was_claimed_while_there_was_money_is_executed_though_nothing_is_left() {
    let world = world("1");
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(2).expected_cost(dollars("0.5")).up();
    let call = {
        pool.enqueue(NewUnit::new("a").max_retries(1), "go").unwrap();
        stage.next()
    };
    pool.enqueue(NewUnit::new("b").max_retries(0), "go").unwrap();
    pool.enqueue(NewUnit::new("c").max_retries(0), "go").unwrap();
    let other = stage.next();
    until(|| pool.stats().pending == 1);
    call.act(|call| call.usage(charge("0.1")));
    call.fail(ExecuteError::retry("again"));
    // It is to be tried again, and goes first; then there is no place.
    let call = stage.next();
    assert_eq!((&*call.id, call.attempt_number), ("a", 2));
    cost(other, "0.9");
    cost(call, "0.1");
    assert!(matches!(pool.wait_for_completion(), Completion::Blocked(_)));
    assert_eq!(spent_and_reserved(&world), (dollars("1.1"), Money::ZERO));
    for id in ["a", "b"] {
        assert_eq!(world.status(id), UnitStatus::Completed, "{id}");
    }
    assert_eq!(world.attempts("a").len(), 2, "nothing was given back");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn the_submit_loop_stores_what_it_was_promised_a_place_for_and_is_told_why_nothing_begins() {
    let world = world("0.5");
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(2).expected_cost(dollars("0.5")).up();
    let a = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    // A place is free, and there is no money for it.
    assert!(pool.wait_for_available_slot());
    let b = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    until(|| pool.stats().hold.is_some());
    assert_eq!((world.status("b"), stage.is_empty()), (UnitStatus::Pending, true));
    assert!(!pool.wait_for_available_slot_timeout(Duration::from_millis(1)));
    let refused = pool.submit_work_unit(NewUnit::new("c"), "go").unwrap_err();
    assert!(
        matches!(&refused.reason, Refusal::Held { reason } if reason.starts_with("job 1 may cost $0.50")),
        "{refused}"
    );
    cost(call, "0.1");
    let call = stage.next();
    assert_eq!(call.id, "b");
    cost(call, "0.1");
    for handle in [a, b] {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pool_has_a_budget_of_its_own() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).budget(dollars("0.25")).up();
    for id in ["a", "b", "c"] {
        pool.enqueue(NewUnit::new(id), "go").unwrap();
    }
    cost(stage.next(), "0.1");
    cost(stage.next(), "0.1");
    let reason = "owner 1 may cost $0.25: $0.20 is spent, and the next attempt may cost $0.10";
    assert_eq!(pool.wait_for_completion(), Completion::Blocked(reason.to_owned()));
    pool.stop(Stop::Drain).unwrap();

    // The next one has another.
    let (part, stage) = super::stage();
    let pool = world.pool(part).max_workers(1).budget(dollars("0.25")).up();
    pool.enqueue(NewUnit::new("c"), "go").unwrap();
    cost(stage.next(), "0.1");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_is_pulled_is_paid_for_too() {
    let world = world("0.3");
    let units: Vec<NewUnit> = ["a", "b", "c", "d"].map(|id| NewUnit::new(id).prompt("go")).into();
    world.repository.queue_units(world.job, &units).unwrap();
    let free = |call: &Call<'_>| -> Result<WorkResult, ExecuteError> {
        call.usage(charge("0.1"));
        Ok(WorkResult::text("done"))
    };
    let pool = world.pool(free).max_workers(4).expected_cost(dollars("0.1")).up();
    assert!(matches!(pool.process_pending(), Completion::Blocked(_)));
    let counts = world.repository.counts(world.job).unwrap();
    assert_eq!((counts.completed, counts.pending), (3, 1));
    assert_eq!(spent_and_reserved(&world), (dollars("0.3"), Money::ZERO));
    raise(&world, "0.4");
    look_again(&world);
    until(|| world.repository.counts(world.job).unwrap().completed == 3);
    // Whoever pulls anew goes on.
    assert_eq!(pool.process_pending(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn an_executor_that_knows_prices_says_what_an_attempt_may_cost() {
    struct Priced;
    impl Executor for Priced {
        fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
            call.usage(charge("0.001"));
            Ok(WorkResult::text("done"))
        }

        fn estimate(&self) -> Option<Estimate> {
            let price = workcrew::Price::new(chrono::DateTime::UNIX_EPOCH);
            Estimate::of(&price.input(dollars("3")).output(dollars("15")), 10_000)
        }
    }
    let world = world("0.16");
    let boxed: Box<dyn Executor> = Box::new(Priced);
    let pool = world.pool(boxed).up();
    pool.enqueue(NewUnit::new("a"), "x".repeat(3_000)).unwrap();
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(world.attempts("a")[0].expected, Some(dollars("0.153")), "a thousand tokens and ten thousand");
    pool.enqueue(NewUnit::new("b"), "x".repeat(300_000)).unwrap();
    assert!(matches!(pool.wait_for_completion(), Completion::Blocked(_)), "its prompt alone costs 0.30");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn sixty_four_workers_spend_no_more_than_there_is_but_for_what_was_under_way() {
    let world = world("1");
    let costs = Mutex::new(Vec::new());
    let costs: &'static Mutex<Vec<i64>> = Box::leak(Box::new(costs));
    let dear = move |call: &Call<'_>| -> Result<WorkResult, ExecuteError> {
        // From one to four cents.
        let number: i64 = call.unit().id.as_str().parse().unwrap();
        let nanos = 10_000_000 * (1 + number % 4);
        call.usage(Charge::reported("large", Tokens::default(), Money::from_nanos(nanos)));
        costs.lock().unwrap().push(nanos);
        if number % 7 == 0 { Err(ExecuteError::retry("again")) } else { Ok(WorkResult::text("done")) }
    };
    let pool = world.pool(dear).max_workers(64).expected_cost(dollars("0.04")).up();
    let units: Vec<NewUnit> = (0..500).map(|id| NewUnit::new(id.to_string()).prompt("go").max_retries(3)).collect();
    world.repository.queue_units(world.job, &units).unwrap();
    assert!(matches!(pool.process_pending(), Completion::Blocked(_)));
    let (spent, reserved) = spent_and_reserved(&world);
    assert_eq!(reserved, Money::ZERO);
    let costs = costs.lock().unwrap();
    assert_eq!(spent.nanos(), costs.iter().sum::<i64>(), "failed attempts are paid for too");
    assert!(spent <= dollars("1"), "none costs more than was expected of it: {spent}");
    assert!(spent > dollars("0.96"), "and hardly anything is left: {spent}");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
