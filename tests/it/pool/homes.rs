//! Where sessions live when there are several pools.

use std::time::Duration;

use workcrew::{Affinity, Archive, NewUnit, PoolSet, Refusal, RetryPolicy, Scaling, Stop, SubmitError, UnitStatus};

use super::{Stage, World, stage, until};
use crate::support::Up;

/// Two pools of the world's job with two workers each, that keep to their sessions, and the test as their executor.
fn two_pools(world: &World) -> (PoolSet, [Stage; 2]) {
    let ((first, first_stage), (second, second_stage)) = (stage(), stage());
    let pool = |part| world.pool(part).max_workers(2).affinity(Affinity::StrictQueue);
    let set = PoolSet::builder().pool("a", pool(first)).pool("b", pool(second)).start().unwrap();
    assert!(set.await_init_complete().into_values().all(|answer| answer.is_ok()));
    (set, [first_stage, second_stage])
}

fn of_session(id: &str, session: &str) -> NewUnit {
    NewUnit::new(id).affinity_key(session)
}

fn elsewhere(error: &SubmitError) -> (&str, Option<&str>) {
    match &error.reason {
        Refusal::SessionElsewhere { pool, worker, .. } => (pool, worker.as_ref().map(|worker| worker.as_str())),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_session_lives_in_one_pool_of_a_set_and_the_others_say_where() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    let first = set.enqueue_to("a", of_session("1", "s"), "go").unwrap();
    let call = a.next();
    assert_eq!(set.home_of("s").unwrap(), ("a".to_owned(), workcrew::WorkerId::new(call.worker.as_str()).unwrap()));

    let refused = set.enqueue_to("b", of_session("2", "s"), "go").unwrap_err();
    assert_eq!(elsewhere(&refused), ("a", Some(call.worker.as_str())));
    assert_eq!(refused.to_string(), "unit `2` is to stay where `s` is, which is in the pool `a`");
    assert_eq!(elsewhere(&set.submit_to("b", of_session("2", "s"), "go").unwrap_err()).0, "a");
    let permit = set.pool("b").unwrap().acquire_slot().unwrap();
    assert_eq!(elsewhere(&permit.submit(of_session("2", "s"), "go").unwrap_err()).0, "a");
    assert_eq!(set.pool("b").unwrap().stats().reserved_slots, 0, "the place is free again");
    assert!(world.repository.unit(world.job, "2").is_err(), "nothing was stored");

    // A hint, and another session, go wherever they are sent.
    set.enqueue_to("b", of_session("3", "s").affinity(Affinity::Hint), "go").unwrap();
    set.enqueue_to("b", of_session("4", "t"), "go").unwrap();
    drop(b.next_many(2));
    assert_eq!(set.home_of("s").unwrap().0, "a", "a hint does not move a session that is in use");
    assert_eq!(set.home_of("t").unwrap().0, "b");

    call.succeed("done");
    first.wait().unwrap();
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("2", "s"), "go").unwrap_err()).0, "a", "it is remembered");
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_session_that_was_forgotten_or_whose_pool_has_stopped_can_be_taken_elsewhere() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    for (id, session) in [("1", "s"), ("2", "t")] {
        let handle = set.enqueue_to("a", of_session(id, session), "go").unwrap();
        drop(a.next());
        handle.wait().unwrap();
    }
    world.clock.advance(Duration::from_secs(15 * 60 - 1));
    assert!(set.enqueue_to("b", of_session("3", "s"), "go").is_err());
    world.clock.advance(Duration::from_secs(1));
    assert_eq!(set.home_of("s"), None);
    set.enqueue_to("b", of_session("3", "s"), "go").unwrap();
    drop(b.next());

    let handle = set.enqueue_to("a", of_session("4", "t"), "go").unwrap();
    drop(a.next());
    handle.wait().unwrap();
    assert!(set.enqueue_to("b", of_session("5", "t"), "go").is_err());
    set.pool("a").unwrap().stop(Stop::Drain).unwrap();
    set.enqueue_to("b", of_session("5", "t"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_unit_that_waits_or_is_tried_again_keeps_its_session_where_it_is() {
    // 001-F3
    let world = World::new();
    let ((first, a), (second, b)) = (stage(), stage());
    let retry = RetryPolicy::fixed(Duration::from_secs(3_600));
    let pool = |part| world.pool(part).max_workers(1).retry(retry.clone()).affinity(Affinity::StrictQueue);
    let set = PoolSet::builder().pool("a", pool(first)).pool("b", pool(second)).start().unwrap();
    set.await_init_complete();
    let handle = set.enqueue_to("a", of_session("1", "s"), "go").unwrap();
    a.next().fail(workcrew::ExecuteError::retry("later"));
    until(|| set.pool("a").unwrap().stats().pending == 1);
    // Longer than a session is remembered.
    world.clock.advance(Duration::from_secs(3_599));
    assert!(set.enqueue_to("b", of_session("2", "s"), "go").is_err());
    world.clock.advance(Duration::from_secs(1));
    drop(a.next());
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    world.clock.advance(Duration::from_secs(15 * 60));
    set.enqueue_to("b", of_session("2", "s"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn of_two_pools_that_want_the_same_new_session_one_gets_it() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    for round in 0..100 {
        let session = format!("session {round}");
        let bring = |pool: &str| set.enqueue_to(pool, of_session(&format!("{pool} {round}"), &session), "go");
        let answers = std::thread::scope(|threads| {
            let bringing = ["a", "b"].map(|pool| threads.spawn(move || bring(pool)));
            bringing.map(|thread| thread.join().unwrap())
        });
        let taken: Vec<_> = answers.into_iter().flatten().collect();
        // One may have been refused before the other was taken, but never are both.
        assert_eq!(taken.len(), 1, "round {round}");
        drop(if taken[0].id().starts_with('a') { a.next() } else { b.next() });
        taken[0].wait().unwrap();
    }
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_unit_that_carries_a_session_on_goes_where_that_is() {
    // 001-F42
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).min_workers(3).max_workers(3).up();
    let first = pool.enqueue(NewUnit::new("1"), "go").unwrap();
    let call = stage.next();
    call.act(|call| call.session("the chat with ada"));
    let worker = call.worker.clone();
    drop(call);
    first.wait().unwrap();
    for turn in 2..6 {
        let unit = NewUnit::new(format!("{turn}")).resume_session("the chat with ada");
        let handle = pool.enqueue(unit, "go").unwrap();
        assert_eq!(stage.next().worker, worker, "turn {turn}");
        handle.wait().unwrap();
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_session_is_remembered_from_the_end_of_its_last_unit_on_by_all_pools() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    let handle = set.enqueue_to("a", of_session("1", "s").timeout(Duration::from_secs(3_600)), "go").unwrap();
    let call = a.next();
    // Longer than a session is remembered.
    world.clock.advance(Duration::from_secs(20 * 60));
    drop(call);
    handle.wait().unwrap();
    world.clock.advance(Duration::from_secs(15 * 60 - 1));
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("2", "s"), "go").unwrap_err()).0, "a");
    world.clock.advance(Duration::from_secs(1));
    set.enqueue_to("b", of_session("2", "s"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_session_that_an_execution_tells_of_lives_where_that_is() {
    // 001-F3
    let world = World::new();
    let (set, [a, _b]) = two_pools(&world);
    let handle = set.enqueue_to("a", NewUnit::new("1"), "go").unwrap();
    let call = a.next();
    call.act(|call| call.session("the chat with ada"));
    assert_eq!(set.home_of("the chat with ada").unwrap().0, "a");
    let worker = call.worker.clone();
    drop(call);
    handle.wait().unwrap();
    let next = || NewUnit::new("2").resume_session("the chat with ada");
    assert_eq!(elsewhere(&set.enqueue_to("b", next(), "go").unwrap_err()), ("a", Some(worker.as_str())));
    let handle = set.enqueue_to("a", next(), "go").unwrap();
    assert_eq!(a.next().worker, worker);
    handle.wait().unwrap();
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_session_that_an_execution_tells_of_is_remembered_from_its_end_on_by_all_pools() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    let unit = NewUnit::new("1").timeout(Duration::from_secs(3_600));
    let handle = set.enqueue_to("a", unit, "go").unwrap();
    let call = a.next();
    call.act(|call| call.session("s"));
    // Longer than a session is remembered.
    world.clock.advance(Duration::from_secs(20 * 60));
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("2", "s"), "go").unwrap_err()).0, "a", "it is executed");
    drop(call);
    handle.wait().unwrap();
    world.clock.advance(Duration::from_secs(15 * 60 - 1));
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("2", "s"), "go").unwrap_err()).0, "a");
    world.clock.advance(Duration::from_secs(1));
    set.enqueue_to("b", of_session("2", "s"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn what_is_told_of_a_session_after_its_pool_has_stopped_counts_for_nothing() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    set.enqueue_to("a", NewUnit::new("1"), "go").unwrap();
    let deaf = a.next();
    set.pool("a").unwrap().stop(Stop::Now).unwrap();
    deaf.act(|call| call.session("the chat with ada"));
    assert_eq!(set.home_of("the chat with ada"), None);
    set.enqueue_to("b", NewUnit::new("2").resume_session("the chat with ada"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    drop(deaf);
    until(|| set.stats()["a"].abandoned_threads == 0);
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_session_whose_worker_has_ended_can_be_taken_elsewhere_at_once() {
    // 001-F3
    let world = World::new();
    let (set, [a, b]) = two_pools(&world);
    let first = set.enqueue_to("a", of_session("1", "s").max_retries(0), "go").unwrap();
    a.next().fail(workcrew::ExecuteError::broken("out of memory"));
    first.wait().unwrap();
    until(|| set.home_of("s").is_none());
    set.enqueue_to("b", of_session("2", "s"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    assert_eq!(set.home_of("s").unwrap().0, "b");
    set.stop(Stop::Drain);
    world.assert_clean_after_crashes();
}

#[test]
fn a_hint_on_another_worker_does_not_make_the_set_forget_where_a_session_lives() {
    // 001-F3
    let world = World::new();
    let ((first, a), (second, _b)) = (stage(), stage());
    let pool = |part| world.pool(part).scaling(Scaling::Fixed).max_workers(2).affinity(Affinity::StrictQueue);
    let set = PoolSet::builder().pool("a", pool(first)).pool("b", pool(second)).start().unwrap();
    assert!(set.await_init_complete().into_values().all(|answer| answer.is_ok()));
    let strict = set.enqueue_to("a", of_session("1", "s"), "go").unwrap();
    let home = a.next();
    let hint = of_session("2", "s").affinity(Affinity::Hint).max_retries(0);
    let hint = set.enqueue_to("a", hint, "go").unwrap();
    let visitor = a.next();
    assert_ne!(visitor.worker, home.worker);
    visitor.act(|call| call.session("s"));
    assert_eq!(set.home_of("s").unwrap().1.as_str(), home.worker);
    visitor.fail(workcrew::ExecuteError::broken("it fell"));
    hint.wait().unwrap();
    super::until(|| set.pool("a").unwrap().stats().idle_workers == 1);
    home.succeed("done");
    strict.wait().unwrap();
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("3", "s"), "go").unwrap_err()).0, "a");
    set.stop(Stop::Drain);
    world.assert_clean_after_crashes();
}

#[test]
fn a_session_whose_worker_rests_after_a_crash_can_be_taken_elsewhere() {
    // 001-F3
    let world = World::new();
    let ((first, a), (second, b)) = (stage(), stage());
    let pool = |part| world.pool(part).affinity(Affinity::StrictQueue).taint_for(Duration::from_secs(60));
    let set = PoolSet::builder().pool("a", pool(first)).pool("b", pool(second)).start().unwrap();
    set.await_init_complete();
    let handle = set.enqueue_to("a", of_session("1", "s").max_retries(0), "go").unwrap();
    a.next().fail(workcrew::ExecuteError::broken("out of memory"));
    handle.wait().unwrap();
    assert_eq!(set.home_of("s"), None);
    set.enqueue_to("b", of_session("2", "s"), "go").unwrap();
    drop(b.next());
    set.wait_for_completion();
    // When it comes back it is as good as new, and knows nothing of it.
    until(|| set.stats()["a"].tainted_workers == 1);
    world.clock.advance(Duration::from_secs(60));
    until(|| set.stats()["a"].tainted_workers == 0);
    assert_eq!(set.home_of("s").unwrap().0, "b");
    set.stop(Stop::Drain);
    world.assert_clean_after_crashes();
}

#[test]
fn a_session_whose_worker_has_had_all_its_units_can_be_taken_elsewhere() {
    // 001-F3
    let world = World::new();
    let ((first, a), (second, b)) = (stage(), stage());
    let pool = |part| world.pool(part).worker_capacity(3).max_units_per_worker(3).affinity(Affinity::StrictQueue);
    let set = PoolSet::builder().pool("a", pool(first)).pool("b", pool(second)).start().unwrap();
    set.await_init_complete();
    let long = set.enqueue_to("a", NewUnit::new("long"), "go").unwrap();
    let call = a.next();
    let handle = set.enqueue_to("a", of_session("1", "s"), "go").unwrap();
    drop(a.next());
    handle.wait().unwrap();
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("3", "s"), "go").unwrap_err()), ("a", Some("w1")));
    let handle = set.enqueue_to("a", of_session("2", "s"), "go").unwrap();
    let last = a.next();
    // What it says of sessions is of no use to anybody.
    last.act(|call| call.session("the chat with ada"));
    assert_eq!(set.home_of("the chat with ada"), None);
    assert_eq!(elsewhere(&set.enqueue_to("b", of_session("3", "s"), "go").unwrap_err()).0, "a", "it is in use");
    drop(last);
    handle.wait().unwrap();
    set.enqueue_to("b", of_session("3", "s"), "go").unwrap();
    drop(b.next());
    drop(call);
    long.wait().unwrap();
    set.wait_for_completion();
    set.stop(Stop::Drain);
    world.assert_clean();
}
