//! The order within a session, and how what waits for its worker leaves the line: cancelled, too late, with the pool, or after a fault.

use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use workcrew::clock::Clock;
use workcrew::repository::{By, CancelAnswer, UnitFilter};
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::unit::{Change, UnitOptions};
use workcrew::{
    Affinity, Archive, Completion, Event, ExecuteError, FailureKind, NewUnit, RetryPolicy, Stop, UnitStatus, WaitError,
    WorkPoolBuilder,
};

use super::affinities::{Hint, StrictFailFast, StrictQueue, begin, crew, crew_of, run, turn};
use super::queue::{enqueue, one_by_one};
use super::{World, assert_quiet, stage, tells_outcomes, until};
use crate::support::Up as _;

const MINUTE: Duration = Duration::from_secs(60);

/// A pool whose observer tells which units begin.
fn tells_beginnings(builder: WorkPoolBuilder) -> (WorkPoolBuilder, Receiver<String>) {
    let (tell, begun) = unbounded();
    let observer = move |event: &Event<'_>| {
        if let Event::AttemptStarted { unit_id, .. } = event {
            tell.send(unit_id.to_string()).unwrap();
        }
    };
    (builder.observer(observer), begun)
}

impl World {
    /// The units in the order in which they were claimed.
    fn claims(&self) -> Vec<String> {
        let units = self.repository.units(&UnitFilter::default(), 0, 1_000).unwrap().items;
        let name = |key| units.iter().find(|unit| unit.key == key).unwrap().id.to_string();
        let journal = self.repository.journal(0, 1_000).unwrap().items;
        journal.iter().filter(|entry| entry.change == Change::Claim).map(|entry| name(entry.unit)).collect()
    }
}

#[test]
fn units_of_a_session_begin_one_after_the_other_though_there_is_room_for_all() {
    // 001-F42, 001-F67
    for number_of_workers in [1, 3] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = crew_of(world.pool(part), number_of_workers, StrictQueue).worker_capacity(8);
        let (builder, begun) = tells_beginnings(builder);
        let pool = builder.up();
        pool.pause();
        for (id, priority) in [("a", 0), ("b", 5), ("c", -3), ("d", 5), ("e", 0), ("f", i32::MAX), ("g", i32::MIN)] {
            pool.enqueue(turn(id, "s").priority(priority), "go").unwrap();
        }
        pool.resume();
        let calls = stage.next_many(7);
        assert!(calls.iter().all(|call| call.worker == calls[0].worker), "all at a time");
        let order = ["f", "b", "d", "a", "e", "c", "g"];
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), order);
        assert_eq!(world.claims(), order);
        drop(calls);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_unit_does_not_overtake_one_that_has_yet_to_begin() {
    for (id, mode) in [("b", StrictQueue), ("c", StrictFailFast)] {
        let world = World::new();
        let (part, stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let (builder, begun) = tells_beginnings(crew_of(builder, 2, mode).worker_capacity(2));
        let pool = builder.up();
        let gate = Gate::closed();
        faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
        std::thread::scope(|threads| {
            let first = threads.spawn(|| pool.submit_work_unit(turn("a", "s"), "go").unwrap());
            gate.wait_for(1);
            let second = pool.submit_work_unit(turn(id, "s"), "go").unwrap();
            assert_eq!((world.status(id), stage.is_empty()), (UnitStatus::Pending, true));
            gate.open();
            drop(stage.next_many(2));
            for handle in [first.join().unwrap(), second] {
                handle.wait().unwrap();
            }
        });
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), ["a", id]);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_thread_that_was_left_behind_does_not_let_the_next_overtake_a_later_attempt() {
    // 001-F44
    let world = World::new();
    let (part, stage) = stage();
    let gates = [Gate::closed(), Gate::closed()];
    let [first, second] = gates.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::AttemptStarted { unit_id, attempt_number, .. } = event
            && unit_id.as_str() == "a"
        {
            gates[*attempt_number as usize - 1].pass();
        }
    };
    let builder = crew_of(world.pool(part), 1, StrictQueue).worker_capacity(2);
    let pool = builder.timeout(MINUTE).observer(observer).up();
    pool.enqueue(turn("a", "s"), "go").unwrap();
    first.wait_for(1);
    pool.enqueue(turn("b", "s"), "go").unwrap();
    // Its thread is asked to stop, and then left behind in front of its gate.
    world.clock.advance(MINUTE);
    until(|| {
        world.clock.advance(Duration::from_secs(2));
        world.attempts("a").len() == 2
    });
    second.wait_for(1);
    first.open();
    until(|| pool.stats().abandoned_threads == 0);
    assert_quiet(&stage.calls);
    assert_eq!(world.status("b"), UnitStatus::Pending);
    second.open();
    // From here on they may run together, and which thread is called first is nobody's promise.
    let mut begun = one_by_one(&stage, 2);
    begun.sort_unstable();
    assert_eq!(begun, ["a", "b"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_to_be_tried_again_goes_before_those_that_came_later() {
    // 001-F67
    let world = World::new();
    let (part, stage) = stage();
    let builder = crew_of(world.pool(part), 2, StrictQueue).worker_capacity(2);
    let pool = builder.retry(RetryPolicy::fixed(MINUTE)).up();
    let first = begin(&pool, &stage, turn("a", "s"));
    let home = first.worker.clone();
    first.fail(ExecuteError::retry("not yet"));
    until(|| pool.stats().pending == 1);
    for id in ["b", "c"] {
        pool.submit_work_unit(turn(id, "s"), "go").unwrap();
    }
    let error = pool.enqueue(turn("d", "s").affinity(StrictFailFast), "go").unwrap_err();
    assert!(error.is_worker_busy(), "{error}");
    run(&pool, &stage, turn("e", "t"));
    run(&pool, &stage, turn("f", "s").affinity(Hint));
    world.clock.advance(MINUTE - Duration::from_millis(1));
    assert_quiet(&stage.calls);
    world.clock.advance(Duration::from_millis(1));
    // They begin together, and which thread is called first is nobody's promise.
    let together = stage.next_many(2);
    let begun: Vec<_> = together.iter().map(|call| (&*call.id, call.attempt_number, &call.worker)).collect();
    assert_eq!(begun, [("a", 2, &home), ("b", 1, &home)]);
    drop(together);
    assert_eq!(stage.next().id, "c");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_whose_time_has_yet_to_come_holds_nobody_up() {
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let later = world.clock.now().wall + chrono::TimeDelta::seconds(60);
    pool.enqueue(turn("a", "s").not_before(later), "go").unwrap();
    pool.submit_work_unit(turn("b", "s").not_before(later).priority(1), "go").unwrap();
    let first = begin(&pool, &stage, turn("c", "s"));
    pool.enqueue(turn("d", "s"), "go").unwrap();
    let home = first.worker.clone();
    drop(first);
    let call = stage.next();
    assert_eq!(call.id, "d");
    pool.enqueue(turn("e", "s"), "go").unwrap();
    world.clock.advance(MINUTE);
    assert_quiet(&stage.calls);
    drop(call);
    for id in ["b", "a", "e"] {
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), (id, &home));
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_is_cancelled_or_has_waited_for_too_long_lets_the_next_go() {
    // 001-F48
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(crew_of(world.pool(part), 2, StrictQueue), &world);
    let pool = builder.up();
    let first = begin(&pool, &stage, turn("a", "s"));
    let cancelled = pool.enqueue(turn("b", "s"), "go").unwrap();
    let late = pool.enqueue(turn("c", "s").queue_timeout(MINUTE), "go").unwrap();
    let last = pool.enqueue(turn("d", "s"), "go").unwrap();
    assert_eq!(cancelled.cancel(By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    assert_eq!(super::next(&outcomes), "cancelled b: CANCELLED");
    world.clock.advance(MINUTE + Duration::from_millis(2));
    assert_eq!(super::next(&outcomes), "failed c: FAILED");
    assert_eq!(late.wait().unwrap().failure.unwrap().kind, FailureKind::QUEUE_TIMEOUT);
    assert_eq!(pool.stats().queue_size, 1);
    drop(first);
    assert_eq!(stage.next().id, "d");
    last.wait().unwrap();
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.attempts, stats.cancelled, stats.queue_timeouts), (2, 1, 1));
    world.assert_clean();
}

#[test]
fn a_unit_that_waits_to_be_tried_again_and_is_cancelled_lets_the_next_go() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = crew_of(world.pool(part), 2, StrictQueue).retry(RetryPolicy::fixed(MINUTE)).up();
    let first = begin(&pool, &stage, turn("a", "s"));
    let home = first.worker.clone();
    pool.enqueue(turn("b", "s"), "go").unwrap();
    first.fail(ExecuteError::retry("not yet"));
    until(|| pool.stats().pending == 2);
    assert_quiet(&stage.calls);
    assert_eq!(pool.cancel("a", By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    let call = stage.next();
    assert_eq!((call.id.as_str(), &call.worker), ("b", &home));
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_waits_for_its_worker_is_left_pending_and_goes_on_in_the_next_pool() {
    // 001-F44
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let first = begin(&pool, &stage, turn("a", "s"));
    let waiting = ["b", "c", "d"].map(|id| pool.enqueue(turn(id, "s"), "go").unwrap());
    pool.stop_timeout(Stop::Drain, Duration::ZERO).unwrap();
    for handle in waiting {
        assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
    }
    drop(first);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.left_pending, 3);

    let (part, stage) = super::stage();
    let (builder, begun) = tells_beginnings(crew_of(world.pool(part), 2, StrictQueue));
    let pool = builder.up();
    // Whoever submits everything again after a crash does so in any order.
    pool.pause();
    let handles = ["d", "b", "a", "c"].map(|id| pool.enqueue(turn(id, "s"), "go").unwrap());
    pool.resume();
    let first = stage.next();
    let home = first.worker.clone();
    assert_quiet(&stage.calls);
    drop(first);
    for _ in 0..2 {
        assert_eq!(stage.next().worker, home);
    }
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), ["b", "c", "d"], "they came in this order");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_claim_that_fails_keeps_the_order() {
    for (fault, verb) in [(Fault::ErrorOnce, Verb::Claim), (Fault::ExecutedThenError, Verb::Claim)] {
        let world = World::new();
        let (part, stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let (builder, begun) = tells_beginnings(crew_of(builder, 2, StrictQueue));
        let pool = builder.up();
        let first = begin(&pool, &stage, turn("a", "s"));
        for (id, priority) in [("b", 0), ("c", 1), ("d", 0)] {
            pool.enqueue(turn(id, "s").priority(priority), "go").unwrap();
        }
        let claims = faulty.calls(verb);
        faulty.on(verb, fault);
        faulty.on(Verb::Claimed, Fault::ErrorOnce);
        drop(first);
        until(|| faulty.calls(verb) > claims);
        let mut seen = Vec::new();
        while seen.len() < 3 {
            // The claimer waits for a second before it asks again.
            world.clock.advance(Duration::from_millis(100));
            if let Ok(call) = stage.calls.recv_timeout(Duration::from_millis(5)) {
                seen.push(call.id.clone());
            }
        }
        assert_eq!(seen, ["c", "b", "d"]);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        assert_eq!(begun.try_iter().collect::<Vec<_>>(), ["a", "c", "b", "d"]);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_submission_whose_answer_was_lost_keeps_the_order() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (builder, begun) = tells_beginnings(crew_of(builder, 2, StrictQueue));
    let pool = builder.up();
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::ErrorAlways);
    let error = pool.submit_work_unit(turn("a", "s"), "go").unwrap_err();
    assert!(matches!(error.reason, workcrew::Refusal::Repository(_)), "{error}");
    // What has become of it is still unknown when it comes again, and others after it.
    let again = pool.submit_work_unit(turn("a", "s"), "go").unwrap();
    let after = pool.submit_work_unit(turn("b", "s"), "go").unwrap();
    faulty.heal(Verb::Claimed);
    let mut seen = Vec::new();
    while seen.len() < 2 {
        world.clock.advance(Duration::from_millis(100));
        if let Ok(call) = stage.calls.recv_timeout(Duration::from_millis(5)) {
            seen.push(call.id.clone());
        }
    }
    for handle in [again, after] {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    assert_eq!(begun.try_iter().collect::<Vec<_>>(), ["a", "b"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_brought_twice_waits_and_runs_once() {
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let first = begin(&pool, &stage, turn("a", "s"));
    let mut handles = Vec::new();
    for _ in 0..2 {
        handles.push(pool.enqueue(turn("b", "s"), "go").unwrap());
        handles.push(pool.submit_work_unit(turn("b", "s"), "go").unwrap());
        handles.push(pool.acquire_slot().unwrap().submit(turn("c", "s"), "go").unwrap());
        handles.push(pool.enqueue(turn("a", "s"), "go").unwrap());
    }
    let stats = pool.stats();
    assert_eq!((stats.queue_size, stats.queued, stats.accepted, stats.free_slots), (2, 2, 3, 1));
    assert_eq!(enqueue(&pool, "other").id(), "other");
    drop(stage.next());
    drop(first);
    assert_eq!(one_by_one(&stage, 2), ["b", "c"]);
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.attempts, stats.completed), (4, 4));
    world.assert_clean();
}

#[test]
fn how_strict_a_unit_is_is_stored_and_what_says_nothing_is_stored_as_before() {
    let world = World::new();
    let (pool, stage) = crew(&world, 1, Hint);
    for affinity in [Hint, StrictQueue, StrictFailFast] {
        let id = format!("{affinity:?}");
        run(&pool, &stage, turn(&id, &id).affinity(affinity));
        let options = world.unit(&id).options;
        assert_eq!((options.affinity, options.affinity_key.as_deref()), (Some(affinity), Some(id.as_str())));
    }
    run(&pool, &stage, turn("a", "s"));
    assert_eq!(world.unit("a").options.affinity, None, "the pool says, and another may say otherwise");
    let error = pool.enqueue(turn("a", "s").affinity(StrictQueue), "go").unwrap_err();
    assert_eq!(error.to_string(), "the repository did not take unit `a`");
    pool.stop(Stop::Drain).unwrap();

    let json = |unit: NewUnit| serde_json::to_string(&unit.options).unwrap();
    assert_eq!(json(turn("a", "s")), r#"{"affinity_key":"s"}"#);
    assert_eq!(json(turn("a", "s").affinity(StrictFailFast)), r#"{"affinity_key":"s","affinity":"strict_fail_fast"}"#);
    let read: UnitOptions = serde_json::from_str(r#"{"affinity_key":"s"}"#).unwrap();
    assert_eq!((read.affinity, Affinity::default()), (None, Hint));
    world.assert_clean();
}
