//! Affinity: which worker a unit of a session goes to, what waits for it, and what that keeps nobody else from.

use std::thread;
use std::time::Duration;

use workcrew::{
    Affinity, Available, CapacityStrategy, NewUnit, Refusal, Scaling, Stop, SubmitError, UnitHandle, UnitStatus,
    WorkPool, WorkPoolBuilder, WorkResult,
};

use super::queue::{enqueue, is_unknown, one_by_one};
use super::stage::Played;
use super::{Stage, World, assert_quiet, stage, until};
use crate::support::Up as _;

pub(super) use workcrew::Affinity::{Hint, StrictFailFast, StrictQueue};

const MODES: [Affinity; 3] = [Hint, StrictQueue, StrictFailFast];

/// A unit of a session.
pub(super) fn turn(id: &str, key: &str) -> NewUnit {
    NewUnit::new(id).affinity_key(key)
}

/// A pool whose workers are up, each for one unit at a time.
pub(super) fn crew(world: &World, workers: usize, affinity: Affinity) -> (WorkPool, Stage) {
    let (part, stage) = stage();
    (crew_of(world.pool(part), workers, affinity).up(), stage)
}

pub(super) fn crew_of(builder: WorkPoolBuilder, workers: usize, affinity: Affinity) -> WorkPoolBuilder {
    builder.scaling(Scaling::Fixed).max_workers(workers).affinity(affinity)
}

/// Executes a unit to its end, and says on which worker.
pub(super) fn run(pool: &WorkPool, stage: &Stage, unit: NewUnit) -> String {
    let id = unit.id.clone();
    let handle = pool.enqueue(unit, "go").unwrap();
    let call = stage.next();
    assert_eq!(call.id, id);
    let worker = call.worker.clone();
    call.succeed("done");
    handle.wait().unwrap();
    worker
}

/// The same for a unit that has to wait in line first.
fn run_from_line(pool: &WorkPool, stage: &Stage, unit: NewUnit) -> String {
    pool.pause();
    let handle = pool.enqueue(unit, "go").unwrap();
    assert_eq!(pool.stats().queue_size, 1);
    pool.resume();
    let worker = stage.next().worker.clone();
    handle.wait().unwrap();
    worker
}

/// A unit that is being executed.
pub(super) fn begin(pool: &WorkPool, stage: &Stage, unit: NewUnit) -> Played {
    let id = unit.id.clone();
    pool.enqueue(unit, "go").unwrap();
    let call = stage.next();
    assert_eq!(call.id, id);
    call
}

type Way = fn(&WorkPool, NewUnit) -> Result<UnitHandle, SubmitError>;

/// All ways to bring a unit.
const WAYS: [(&str, Way); 4] = [
    ("enqueue", |pool, unit| pool.enqueue(unit, "go")),
    ("submit", |pool, unit| pool.submit_work_unit(unit, "go")),
    ("permit", |pool, unit| pool.acquire_slot().unwrap().submit(unit, "go")),
    ("promise", |pool, unit| {
        assert!(pool.wait_for_available_slot());
        pool.submit_work_unit(unit, "go")
    }),
];

#[test]
fn without_a_session_any_worker_gets_a_unit() {
    // 001-F41
    for mode in MODES {
        let world = World::new();
        let (pool, stage) = crew(&world, 2, mode);
        let first = begin(&pool, &stage, NewUnit::new("a"));
        let second = begin(&pool, &stage, NewUnit::new("b"));
        assert_ne!(first.worker, second.worker);
        let waiting = enqueue(&pool, "c");
        let freed = second.worker.clone();
        drop(second);
        assert_eq!(stage.next().worker, freed, "whichever is free");
        waiting.wait().unwrap();
        assert_eq!(begin(&pool, &stage, turn("d", "new")).worker, freed, "a session that is nowhere");
        drop(first);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn the_worker_of_a_session_gets_its_next_unit() {
    // 001-F42
    for mode in MODES {
        for (way, bring) in WAYS {
            let world = World::new();
            let (pool, stage) = crew(&world, 3, mode);
            let home = run(&pool, &stage, turn("a", "s"));
            let handle = bring(&pool, turn("b", "s")).unwrap();
            let call = stage.next();
            assert_eq!(call.worker, home, "{mode:?}, {way}: the others have been idle for longer");
            drop(call);
            handle.wait().unwrap();
            assert_ne!(run(&pool, &stage, turn("c", "other")), home);
            pool.stop(Stop::Drain).unwrap();
            world.assert_clean();
        }
    }
}

#[test]
fn a_session_that_is_carried_on_is_a_key_unless_there_is_another() {
    // 001-F42
    let world = World::new();
    let (pool, stage) = crew(&world, 3, StrictQueue);
    let home = run(&pool, &stage, turn("a", "s"));
    assert_eq!(run(&pool, &stage, NewUnit::new("b").resume_session("s")), home);
    let other = run(&pool, &stage, turn("c", "t").resume_session("s"));
    assert_ne!(other, home);
    assert_eq!(run(&pool, &stage, NewUnit::new("d").resume_session("t")), other);
    assert_eq!(run(&pool, &stage, turn("e", "s")), home);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_hint_goes_elsewhere_if_its_worker_is_busy() {
    // 001-F43
    for (way, bring) in WAYS {
        let world = World::new();
        let (pool, stage) = crew(&world, 2, Hint);
        let first = begin(&pool, &stage, turn("a", "s"));
        let handle = bring(&pool, turn("b", "s")).unwrap();
        let second = stage.next();
        assert_eq!((second.id.as_str(), pool.stats().queued), ("b", 0), "{way}");
        let home = second.worker.clone();
        assert_ne!(home, first.worker);
        drop(first);
        until(|| pool.stats().idle_workers == 1);
        drop(second);
        handle.wait().unwrap();
        assert_eq!(run(&pool, &stage, turn("c", "s")), home, "it had the last one");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_hint_that_waited_in_line_goes_to_its_worker_if_that_has_room() {
    // 001-F42
    let world = World::new();
    let (pool, stage) = crew(&world, 2, Hint);
    let home = run(&pool, &stage, turn("a", "s"));
    // The other one has been idle for longer, and would be taken otherwise.
    for id in ["b", "c"] {
        assert_eq!(run_from_line(&pool, &stage, turn(id, "s")), home, "{id}");
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_session_goes_to_its_worker_whatever_a_scheduler_would_take() {
    // 001-F42, 001-F91
    for mode in MODES {
        let world = World::new();
        let (part, stage) = stage();
        let freshest = |available: &[Available]| (0..available.len()).min_by_key(|&index| available[index].completed);
        let pool = crew_of(world.pool(part), 2, mode).scheduler(freshest).up();
        let home = run(&pool, &stage, turn("a", "s"));
        assert_eq!(run(&pool, &stage, turn("b", "s")), home, "{mode:?}");
        assert_eq!(run_from_line(&pool, &stage, turn("c", "s")), home, "{mode:?}, from the line");
        assert_ne!(run(&pool, &stage, NewUnit::new("other")), home, "the scheduler is heard");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_strict_unit_waits_for_its_worker_though_others_are_free() {
    // 001-F44
    for (way, bring) in WAYS {
        let world = World::new();
        let (pool, stage) = crew(&world, 2, StrictQueue);
        let first = begin(&pool, &stage, turn("a", "s"));
        let handle = bring(&pool, turn("b", "s")).unwrap();
        let stats = pool.stats();
        assert_eq!((stats.queue_size, stats.idle_workers, stats.reserved_slots), (1, 1, 0), "{way}");
        assert_eq!((world.status("b"), stats.free_slots), (UnitStatus::Pending, 1), "{way}");
        // What it did not use is there for others.
        let other = begin(&pool, &stage, NewUnit::new("c"));
        assert_ne!(other.worker, first.worker);
        drop(other);
        until(|| pool.stats().idle_workers == 1);
        assert_quiet(&stage.calls);
        let home = first.worker.clone();
        drop(first);
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), ("b", &home), "{way}");
        call.succeed("done");
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_promise_that_is_not_used_goes_to_whoever_waits_for_one() {
    // 001-F44
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let first = begin(&pool, &stage, turn("a", "s"));
    for (id, way) in [("b", WAYS[2].1), ("c", WAYS[3].1)] {
        let permit = pool.acquire_slot().unwrap();
        thread::scope(|threads| {
            let waiting = threads.spawn(|| {
                assert!(pool.wait_for_available_slot());
                pool.submit_work_unit(NewUnit::new(format!("after {id}")), "go").unwrap()
            });
            until(|| pool.stats().slot_waiters == 1);
            drop(permit);
            drop(stage.next());
            waiting.join().unwrap().wait().unwrap();
        });
        way(&pool, turn(id, "s")).unwrap();
        assert_eq!((pool.stats().reserved_slots, pool.stats().free_slots), (0, 1));
    }
    thread::scope(|threads| {
        let permit = pool.acquire_slot().unwrap();
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        until(|| pool.stats().slot_waiters == 1);
        permit.submit(turn("d", "s"), "go").unwrap();
        assert!(waiting.join().unwrap(), "who waited has it at once");
    });
    drop(first);
    assert_eq!(one_by_one(&stage, 3), ["b", "c", "d"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_not_to_wait_is_refused_at_once() {
    // 001-F45
    for (way, bring) in WAYS {
        let world = World::new();
        let (pool, stage) = crew(&world, 2, StrictFailFast);
        let first = begin(&pool, &stage, turn("a", "s"));
        let error = bring(&pool, turn("b", "s").priority(7)).unwrap_err();
        assert!(error.is_worker_busy() && !error.is_at_capacity() && !error.is_saturated(), "{way}");
        let Refusal::WorkerBusy { key, worker } = &error.reason else { panic!("{way}: {error}") };
        assert_eq!((key.as_str(), worker.as_ref().unwrap().as_str()), ("s", first.worker.as_str()));
        assert_eq!((error.unit.id.as_str(), error.unit.priority), ("b", 7));
        assert!(is_unknown(&world, "b"), "{way}: nothing is stored");
        let stats = pool.stats();
        assert_eq!((stats.accepted, stats.queue_size, stats.reserved_slots, stats.free_slots), (1, 0, 0, 1), "{way}");
        let home = first.worker.clone();
        drop(first);
        until(|| pool.stats().idle_workers == 2);

        bring(&pool, *error.unit).unwrap();
        assert_eq!(stage.next().worker, home, "{way}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_session_is_forgotten_after_a_while() {
    const TTL: Duration = Duration::from_secs(60);
    const MOMENT: Duration = Duration::from_millis(1);
    for mode in MODES {
        let world = World::new();
        let (part, stage) = stage();
        let pool = crew_of(world.pool(part), 2, mode).affinity_ttl(TTL).up();
        let home = run(&pool, &stage, turn("a", "s"));
        for id in ["b", "c"] {
            world.clock.advance(TTL - MOMENT);
            assert_eq!(run(&pool, &stage, turn(id, "s")), home, "{mode:?}: from the last on");
        }
        world.clock.advance(TTL);
        assert_ne!(run(&pool, &stage, turn("d", "s")), home, "{mode:?}: the other has been idle for longer");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_session_is_not_forgotten_while_it_is_in_use_nor_right_after() {
    const TTL: Duration = Duration::from_secs(60);
    let world = World::new();
    let (part, stage) = stage();
    let pool = crew_of(world.pool(part), 2, StrictQueue).affinity_ttl(TTL).up();
    let first = begin(&pool, &stage, turn("a", "s"));
    world.clock.advance(3 * TTL);
    pool.enqueue(turn("b", "s"), "go").unwrap();
    assert_eq!((pool.stats().queue_size, pool.stats().idle_workers), (1, 1), "it is executed");
    world.clock.advance(3 * TTL);
    let home = first.worker.clone();
    drop(first);
    let second = stage.next();
    assert_eq!(second.worker, home, "it waited");
    world.clock.advance(3 * TTL);
    drop(second);
    until(|| pool.stats().idle_workers == 2);
    assert_eq!(run(&pool, &stage, turn("c", "s")), home, "it has just ended");
    world.clock.advance(TTL);
    assert_ne!(run(&pool, &stage, turn("d", "s")), home);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_session_that_was_told_of_is_remembered_from_the_end_of_its_unit_on() {
    const TTL: Duration = Duration::from_secs(60);
    const MOMENT: Duration = Duration::from_millis(1);
    let tells: [fn(Played); 2] = [
        |call| {
            call.act(|call| call.session("x"));
            call.succeed("done");
        },
        |call| call.end(|_| Ok(WorkResult::empty().session("x"))),
    ];
    for mode in MODES {
        for tell in tells {
            let world = World::new();
            let (part, stage) = stage();
            let pool = crew_of(world.pool(part), 2, mode).affinity_ttl(TTL).up();
            let first = begin(&pool, &stage, NewUnit::new("a"));
            let home = first.worker.clone();
            tell(first);
            until(|| pool.stats().idle_workers == 2);
            world.clock.advance(TTL - MOMENT);
            assert_eq!(run(&pool, &stage, NewUnit::new("b").resume_session("x")), home, "{mode:?}");
            world.clock.advance(TTL);
            assert_ne!(run(&pool, &stage, NewUnit::new("c").resume_session("x")), home, "{mode:?}");
            pool.stop(Stop::Drain).unwrap();
            world.assert_clean();
        }
    }
}

#[test]
fn a_session_that_was_told_of_is_not_forgotten_while_its_unit_is_executed_nor_right_after() {
    const TTL: Duration = Duration::from_secs(60);
    let world = World::new();
    let (part, stage) = stage();
    let pool = crew_of(world.pool(part), 3, StrictQueue).affinity_ttl(TTL).up();
    let first = begin(&pool, &stage, NewUnit::new("a"));
    let home = first.worker.clone();
    first.act(|call| call.session("x"));
    world.clock.advance(3 * TTL);
    let waiting = pool.enqueue(NewUnit::new("b").resume_session("x"), "go").unwrap();
    assert_eq!((pool.stats().queue_size, pool.stats().idle_workers), (1, 2), "it is executed");
    assert_quiet(&stage.calls);
    drop(first);
    assert_eq!(stage.next().worker, home);
    waiting.wait().unwrap();

    let told = begin(&pool, &stage, NewUnit::new("c"));
    let home = told.worker.clone();
    told.act(|call| call.session("y"));
    world.clock.advance(3 * TTL);
    drop(told);
    until(|| pool.stats().idle_workers == 3);
    assert_eq!(run(&pool, &stage, NewUnit::new("d").resume_session("y")), home, "it has just ended");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_a_thread_tells_that_was_left_behind_changes_nothing() {
    const MINUTE: Duration = Duration::from_secs(60);
    let world = World::new();
    let (part, stage) = stage();
    let pool = crew_of(world.pool(part), 2, StrictQueue).timeout(MINUTE).up();
    let late = begin(&pool, &stage, NewUnit::new("a").max_retries(0));
    world.clock.advance(MINUTE);
    late.asked();
    world.clock.advance(MINUTE);
    until(|| pool.stats().failed == 1 && pool.stats().idle_workers == 2);
    let before = late.worker.clone();
    late.act(|call| call.session("x"));
    assert_ne!(run(&pool, &stage, NewUnit::new("b").resume_session("x")), before, "the other was idle for longer");
    drop(late);
    until(|| pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_waits_for_its_worker_keeps_nobody_else_waiting() {
    // 001-F44
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let first = begin(&pool, &stage, turn("a", "s"));
    for number in 0..100 {
        pool.enqueue(turn(&format!("s{number:02}"), "s").priority(9), "go").unwrap();
    }
    for number in 0..5 {
        let call = begin(&pool, &stage, NewUnit::new(format!("free {number}")));
        let waiting = enqueue(&pool, &format!("line {number}"));
        assert!(pool.submit_work_unit(NewUnit::new("at once"), "go").unwrap_err().is_at_capacity());
        drop(call);
        drop(stage.next());
        waiting.wait().unwrap();
        assert!(pool.wait_for_available_slot());
        let handle = pool.submit_work_unit(NewUnit::new(format!("promised {number}")), "go").unwrap();
        let call = stage.next();
        thread::scope(|threads| {
            let waiting = threads.spawn(|| pool.acquire_slot().map(drop));
            until(|| pool.stats().slot_waiters == 1);
            drop(call);
            waiting.join().unwrap().unwrap();
        });
        handle.wait().unwrap();
    }
    assert_eq!((pool.stats().queue_size, pool.stats().idle_workers), (100, 1));
    let home = first.worker.clone();
    drop(first);
    for number in 0..100 {
        let call = stage.next();
        assert_eq!((call.id, &call.worker), (format!("s{number:02}"), &home));
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_free_place_of_its_worker_goes_to_whoever_is_first() {
    // 001-F67
    let world = World::new();
    let (pool, stage) = crew(&world, 1, StrictQueue);
    let first = begin(&pool, &stage, turn("a", "s"));
    for (id, key, priority) in [("b", "s", 0), ("c", "", 0), ("d", "t", 1), ("e", "s", 0)] {
        let unit = NewUnit::new(id).priority(priority);
        pool.enqueue(if key.is_empty() { unit } else { unit.affinity_key(key) }, "go").unwrap();
    }
    drop(first);
    assert_eq!(one_by_one(&stage, 4), ["d", "b", "c", "e"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn as_many_wait_for_their_worker_as_may_wait_at_all() {
    // 001-F47
    let world = World::new();
    let (part, stage) = stage();
    let pool = crew_of(world.pool(part), 2, StrictQueue).max_queue_size(2).up();
    let first = begin(&pool, &stage, turn("a", "s"));
    for (id, (_, bring)) in ["b", "c"].into_iter().zip(WAYS) {
        bring(&pool, turn(id, "s")).unwrap();
    }
    for (_, bring) in &WAYS[..2] {
        assert!(bring(&pool, turn("d", "s")).unwrap_err().is_saturated());
        assert!(is_unknown(&world, "d"));
    }
    assert_eq!(pool.stats().saturated, 2);
    WAYS[2].1(&pool, turn("e", "s")).unwrap();
    assert_eq!(pool.stats().queue_size, 3, "who was promised a worker may wait for another");
    drop(begin(&pool, &stage, NewUnit::new("f")));
    drop(first);
    assert_eq!(one_by_one(&stage, 3), ["b", "c", "e"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_says_itself_how_strict_it_is() {
    // 001-F43, 001-F44, 001-F45
    for of_pool in MODES {
        let world = World::new();
        let (pool, stage) = crew(&world, 3, of_pool);
        let first = begin(&pool, &stage, turn("a", "s").affinity(StrictQueue));
        pool.enqueue(turn("waits", "s").affinity(StrictQueue), "go").unwrap();
        let hint = begin(&pool, &stage, turn("hint", "s").affinity(Hint));
        assert_ne!(hint.worker, first.worker);
        assert!(pool.enqueue(turn("fast", "s").affinity(StrictFailFast), "go").unwrap_err().is_worker_busy());
        drop(hint);
        until(|| pool.stats().idle_workers == 2);
        assert_quiet(&stage.calls);
        let home = first.worker.clone();
        drop(first);
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), ("waits", &home), "a hint does not move a strict session");
        drop(call);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn while_the_pool_is_held_sessions_wait_and_then_go_on() {
    let world = World::new();
    let (pool, stage) = crew(&world, 2, StrictQueue);
    let home = run(&pool, &stage, turn("a", "s"));
    // A place that was promised before is kept: what is brought there is given back unexecuted.
    let permit = pool.acquire_slot().unwrap();
    pool.pause();
    permit.submit(turn("b", "s"), "go").unwrap();
    for id in ["c", "d"] {
        pool.enqueue(turn(id, "s"), "go").unwrap();
    }
    assert!(matches!(pool.submit_work_unit(turn("e", "s"), "go").unwrap_err().reason, Refusal::Held { .. }));
    until(|| pool.stats().pending == 3 && pool.stats().idle_workers == 2);
    assert!(stage.is_empty());
    pool.resume();
    for id in ["b", "c", "d"] {
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), (id, &home));
        assert!(stage.is_empty());
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_worker_with_room_takes_several_of_a_session_and_no_more_than_it_can() {
    // 001-F11, 001-F42, 001-F44
    for strategy in [CapacityStrategy::Pool, CapacityStrategy::Hybrid] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = world.pool(part).max_workers(2).affinity(StrictQueue);
        let pool = builder.worker_capacity(3).capacity_strategy(strategy).up();
        let mut calls = vec![begin(&pool, &stage, turn("a", "s"))];
        let home = calls[0].worker.clone();
        for id in ["b", "c"] {
            calls.push(begin(&pool, &stage, turn(id, "s")));
        }
        pool.enqueue(turn("d", "s"), "go").unwrap();
        assert!(calls.iter().all(|call| call.worker == home));
        assert!(pool.submit_work_unit(turn("e", "s").affinity(StrictFailFast), "go").unwrap_err().is_worker_busy());
        assert_ne!(begin(&pool, &stage, NewUnit::new("f")).worker, home);
        assert_quiet(&stage.calls);
        drop(calls.remove(1));
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), ("d", &home), "{strategy:?}");
        drop((calls, call));
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}
