//! What a pool says of itself to whoever looks at the database from another process.

use std::time::Duration;

use chrono::TimeDelta;
use workcrew::clock::Clock;
use workcrew::testing::{Fault, Verb};
use workcrew::{Archive, ExecuteError, NewUnit, OwnerState, Stop};

use super::{World, stage, until};
use crate::support::Up as _;

/// How often the heart of these pools beats.
const BEAT: Duration = Duration::from_secs(15);

impl World {
    /// What the only pool has said.
    fn told(&self) -> Option<OwnerState> {
        self.repository.owners().unwrap().pop().unwrap().state
    }

    fn until_told(&self, is_meant: impl Fn(&OwnerState) -> bool) -> OwnerState {
        until(|| self.told().is_some_and(|state| is_meant(&state)));
        self.told().unwrap()
    }
}

#[test]
fn a_pause_is_told_at_once_and_its_end_with_the_next_beat() {
    let world = World::new();
    let (pool, _stage) = world.staged(3);
    pool.pause();
    let state = world.until_told(|state| state.is_paused);
    assert_eq!((state.job_id, state.phase.as_str(), state.max_workers), (Some(world.job), "running", 3));
    assert_eq!((state.holds, state.max_abandoned, state.max_queue_size), (vec![], 3, 1_000));
    assert_eq!(state.writing.unwrap().limit_bytes, 64 * 1024 * 1024);
    assert_eq!(world.repository.owners().unwrap()[0].told_at, Some(world.clock.now().wall));
    pool.resume();
    world.clock.advance(BEAT);
    world.until_told(|state| !state.is_paused);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.told(), None, "who has ended says nothing any more");
    world.assert_clean();
}

#[test]
fn a_hold_is_told_with_its_reason_and_its_end() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let ends = world.clock.now().wall + TimeDelta::hours(2);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::hold_until(ends, "the quota is used up").kind("quota"));
    let state = world.until_told(|state| !state.holds.is_empty());
    assert_eq!(state.holds.len(), 1);
    assert_eq!((state.holds[0].reason.as_str(), state.holds[0].until), ("quota: the quota is used up", Some(ends)));
    assert!(!state.is_paused);
    pool.stop(Stop::Now).unwrap();
}

#[test]
fn a_reason_of_any_length_is_told_in_part() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().fail(ExecuteError::hold("ü".repeat(200_000)));
    let state = world.until_told(|state| !state.holds.is_empty());
    assert!(state.holds[0].reason.ends_with("ü…") && state.holds[0].reason.chars().count() <= 1_001);
    pool.stop(Stop::Now).unwrap();
}

#[test]
fn a_steady_pool_says_nothing_and_one_that_changes_all_the_time_speaks_once_a_beat() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    // What a beat had to say it has said before the next one renews.
    let beat = || {
        let renewals = faulty.calls(Verb::Renew);
        world.clock.advance(BEAT);
        until(|| faulty.calls(Verb::Renew) > renewals);
    };
    for _ in 0..6 {
        beat();
    }
    assert_eq!(faulty.calls(Verb::Tell), 1, "nothing was new");
    pool.pause();
    until(|| faulty.calls(Verb::Tell) == 2);
    for _ in 0..50 {
        pool.resume();
        pool.pause();
        pool.resume();
        std::thread::park_timeout(Duration::from_millis(1));
    }
    assert_eq!(faulty.calls(Verb::Tell), 2, "it has spoken within this beat");
    beat();
    until(|| faulty.calls(Verb::Tell) == 3);
    drop(stage);
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn what_could_not_be_told_is_told_later_and_the_pool_goes_on() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    faulty.on(Verb::Tell, Fault::ErrorOnce);
    let pool = builder.max_workers(1).up();
    pool.pause();
    until(|| faulty.calls(Verb::Tell) == 1);
    assert_eq!(world.told(), None);
    world.clock.advance(BEAT);
    world.until_told(|state| state.is_paused);
    drop(stage);
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn threads_that_were_left_behind_are_told_with_how_many_may_be() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(2).max_abandoned(7).kill_grace(Duration::from_secs(1)).up();
    pool.submit_work_unit(NewUnit::new("a").timeout(Duration::from_secs(5)).max_retries(0), "go").unwrap();
    let call = stage.next();
    world.clock.advance(Duration::from_secs(5));
    call.asked();
    world.clock.advance(Duration::from_secs(1));
    until(|| pool.stats().abandoned_threads == 1);
    world.clock.advance(BEAT);
    let state = world.until_told(|state| state.abandoned_threads == 1);
    assert_eq!(state.max_abandoned, 7);
    call.succeed("too late");
    until(|| pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
}
