//! Turns to ask a provider: who waits for one does so in its place, and costs nothing.

use std::time::Duration;

use workcrew::clock::Clock as _;
use workcrew::limits::{Ask, NewHold, RateLimits};
use workcrew::repository::{By, CancelAnswer};
use workcrew::{
    Archive as _, Completion, ExecuteError, NewUnit, Outcome, Repository as _, Scaling, Stop, UnitStatus, WorkPool,
};

use super::stage::Stage;
use super::{World, stage, tells_attempts, until};
use crate::support::Up as _;

const PROVIDER: &str = "a provider";

const HEARTBEAT: Duration = Duration::from_secs(15);

/// For so long a turn counts at least.
const WINDOW: Duration = Duration::from_secs(60);

/// And no longer than that.
const TURN: Duration = Duration::from_secs(64);

/// A pool whose workers ask together no more than that.
fn limited(world: &World, limits: RateLimits) -> (WorkPool, Stage) {
    let (part, stage) = stage();
    // They are up before a test lets time pass.
    let builder = world.pool(part).max_workers(4).scaling(Scaling::Fixed);
    (builder.provider(PROVIDER).rate_limits(limits).up(), stage)
}

fn enqueue(pool: &WorkPool, ids: impl IntoIterator<Item = &'static str>) {
    for id in ids {
        pool.enqueue(NewUnit::new(id), "go").unwrap();
    }
}

/// Both have been claimed, and one of them waits.
fn until_all_are_processed(world: &World, ids: &[&str]) {
    until(|| ids.iter().all(|id| world.status(id) == UnitStatus::Processing));
}

#[test]
fn who_waits_for_its_turn_has_it_when_the_window_is_over_and_its_time_begins_then() {
    let world = World::new();
    let (pool, stage) = limited(&world, RateLimits::new().requests(1));
    enqueue(&pool, ["a"]);
    let first = stage.next();
    let timed = NewUnit::new("b").timeout(Duration::from_secs(10)).max_retries(0);
    pool.enqueue(timed, "go").unwrap();
    until_all_are_processed(&world, &["a", "b"]);
    world.clock.advance(WINDOW);
    assert!(stage.is_empty());
    world.clock.advance(TURN - WINDOW);
    let second = stage.next();
    assert_eq!(second.id, "b");
    world.clock.advance(Duration::from_secs(9));
    assert_eq!(second.cancel.reason(), None, "a minute of waiting is not its own");
    second.succeed("done");
    first.succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn who_has_waited_longest_is_next_and_whoever_ends_lets_it_begin() {
    let world = World::new();
    let (pool, stage) = limited(&world, RateLimits::new().concurrency(1));
    enqueue(&pool, ["a"]);
    let mut running = stage.next();
    for id in ["b", "c", "d"] {
        enqueue(&pool, [id]);
        until_all_are_processed(&world, &[id]);
    }
    let mut began = Vec::new();
    for _ in 0..3 {
        assert!(stage.is_empty());
        running.succeed("done");
        running = stage.next();
        began.push(running.id.clone());
    }
    began.sort_unstable();
    assert_eq!(began, ["b", "c", "d"], "one after the other");
    running.succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_further_request_of_an_attempt_takes_a_turn_as_well() {
    let world = World::new();
    let (pool, stage) = limited(&world, RateLimits::new().requests(1));
    enqueue(&pool, ["a"]);
    let a = stage.next();
    enqueue(&pool, ["b"]);
    until_all_are_processed(&world, &["b"]);
    std::thread::scope(|threads| {
        let further = threads.spawn(|| a.act(|call| call.turn(Ask::default()).is_ok()));
        world.clock.advance(TURN);
        until(|| further.is_finished() || !stage.is_empty());
        assert!(!further.is_finished() || stage.is_empty(), "there was one turn");
        world.clock.advance(TURN);
        stage.next().succeed("done");
        assert!(further.join().unwrap());
    });
    std::thread::scope(|threads| {
        let further = threads.spawn(|| a.act(|call| call.turn(Ask::default()).map_err(|error| error.to_string())));
        assert_eq!(pool.cancel("a", By::whom("ada")).unwrap(), CancelAnswer::Requested);
        assert_eq!(further.join().unwrap().unwrap_err(), "cancelled: it is not to ask its provider any more");
    });
    a.fail(ExecuteError::retry("told to stop"));
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(world.status("a"), UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_wait_ends_with_a_cancel_a_pause_and_a_stop_and_uses_up_no_attempt() {
    let world = World::new();
    let (pool, stage) = limited(&world, RateLimits::new().concurrency(1));
    enqueue(&pool, ["a"]);
    let running = stage.next();
    enqueue(&pool, ["b", "c"]);
    until_all_are_processed(&world, &["b", "c"]);
    assert_eq!(pool.cancel("b", By::whom("ada")).unwrap(), CancelAnswer::Requested);
    until(|| world.status("b") == UnitStatus::Cancelled);
    pool.pause();
    until(|| world.status("c") == UnitStatus::Pending);
    pool.resume();
    until_all_are_processed(&world, &["c"]);
    let stopping = std::thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| world.status("c") == UnitStatus::Pending);
        running.succeed("done");
        stopping.join().unwrap()
    });
    assert_eq!((stopping.stats.completed, stopping.stats.left_pending), (1, 1));
    let unit = world.unit("c");
    assert_eq!((unit.attempts_used, unit.attempt_count), (0, 2));
    assert!(world.attempts("c").iter().all(|attempt| attempt.outcome == Some(Outcome::Released)));
    assert!(stage.is_empty(), "neither was ever executed");
    world.assert_clean();
}

#[test]
fn what_one_pool_hears_of_its_provider_all_heed_until_it_is_lifted() {
    let world = World::new();
    let pool = |provider: &str| {
        let (part, stage) = stage();
        let (builder, events) = tells_attempts(world.pool(part).provider(provider));
        (builder.up(), stage, events)
    };
    let ((one, one_stage, _), (two, two_stage, events), (other, ..)) = (pool("p"), pool("p"), pool("q"));
    one.enqueue(NewUnit::new("a").max_retries(0), "go").unwrap();
    let later = world.clock.now().wall + chrono::TimeDelta::hours(9);
    one_stage.next().fail(ExecuteError::hold_until(later, "come back at night").kind("quota"));
    until(|| one.stats().hold.is_some());
    assert_eq!(two.stats().hold, None);
    for _ in 0..3 {
        world.clock.advance(HEARTBEAT);
        until(|| two.stats().hold.as_deref() == Some("quota: come back at night"));
    }
    assert_eq!(other.stats().hold, None, "it asks another");
    assert!(!two.wait_for_available_slot_timeout(Duration::from_millis(1)));

    assert!(world.repository.lift("p").unwrap());
    world.clock.advance(HEARTBEAT);
    until(|| one.stats().hold.is_none() && two.stats().hold.is_none());
    one_stage.next().succeed("done");
    two.enqueue(NewUnit::new("b"), "go").unwrap();
    two_stage.next().succeed("done");
    for pool in [one, two, other] {
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        pool.stop(Stop::Drain).unwrap();
    }
    let told: Vec<String> = events.try_iter().filter(|event| event.starts_with("held")).collect();
    assert_eq!(told, ["held: quota: come back at night"], "once");
    assert_eq!((world.unit("a").attempts_used, world.unit("a").attempt_count), (1, 2));
    world.assert_clean();
}

#[test]
fn who_resumes_a_pool_that_waits_for_its_provider_lets_all_others_go_on_and_who_ends_a_pause_does_not() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).provider(PROVIDER).up();
    let hold = NewHold::new(PROVIDER, Duration::from_secs(3_600), "closed");
    world.repository.hold(&hold).unwrap();
    pool.pause();
    pool.resume();
    assert_eq!(world.repository.holds().unwrap().len(), 1, "that was about this pool");
    enqueue(&pool, ["a"]);
    until(|| pool.stats().hold.as_deref() == Some("closed"));
    pool.resume();
    assert_eq!(world.repository.holds().unwrap(), []);
    stage.next().succeed("done");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
