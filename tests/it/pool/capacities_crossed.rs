//! Workers that execute several units at a time, while the pool stops, is held or changes its size, and when the process dies.

use std::thread;
use std::time::Duration;

use serde_json::json;
use workcrew::audit::verify::Verify;
use workcrew::executor::CancelReason;
use workcrew::repository::By;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Call, CapacityStrategy, Completion, ExecuteError, Lease, NewJob, NewUnit, Outcome, OwnerId, PoolPhase,
    Repository, Scaling, Stop, UnitStatus, WaitError, WorkPool, WorkResult, WorkerStatus,
};

use super::capacities::{enqueue, running, submit};
use super::stage::stage_and_starts;
use super::{World, assert_quiet, next, stage, tells_outcomes, until};
use crate::children::{self, Role, say};
use crate::support;
use crate::support::Up as _;

fn names(pool: &WorkPool) -> Vec<String> {
    pool.workers().iter().map(|view| view.id.to_string()).collect()
}

#[test]
fn draining_waits_for_all_that_a_worker_has_in_hand() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let (builder, outcomes) = tells_outcomes(builder, &world);
    let pool = builder.up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c"]);
    let waiting = enqueue(&pool, "d");
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(matches!(waiting.wait(), Err(WaitError::LeftPending)));
        calls.remove(0).succeed("a");
        handles[0].wait().unwrap();
        calls.remove(0).fail(ExecuteError::broken("it fell"));
        assert_eq!(handles[1].wait().unwrap().status, UnitStatus::Failed);
        assert!(!stopping.is_finished());
        assert_eq!(calls[0].cancel.reason(), None);
        calls.remove(0).succeed("c");
        let stats = stopping.join().unwrap().stats;
        assert_eq!((stats.completed, stats.failed, stats.left_pending, stats.abandoned_threads), (2, 1, 1, 0));
    });
    assert_eq!(outcomes.try_iter().count(), 3);
    assert!(stage.is_empty());
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean_after_crashes();
}

#[test]
fn cancelled_each_of_a_workers_units_ends_as_it_answers() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c"]);
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Cancel { grace: Duration::from_secs(5) }).unwrap());
        assert!(calls.iter().all(|call| call.asked() == CancelReason::Shutdown));
        calls.remove(0).fail(ExecuteError::retry("interrupted"));
        calls.remove(0).succeed("just in time");
        assert!(matches!(handles[0].wait(), Err(WaitError::LeftPending)));
        assert_eq!(handles[1].wait().unwrap().status, UnitStatus::Completed);
        assert!(!stopping.is_finished());
        world.clock.advance(Duration::from_secs(5));
        let stats = stopping.join().unwrap().stats;
        assert_eq!((stats.left_pending, stats.completed), (2, 1));
    });
    // The reporter may have something to tell after the end.
    until(|| pool.stats().abandoned_threads == 1);
    assert!(matches!(handles[2].wait(), Err(WaitError::LeftPending)));
    for id in ["a", "c"] {
        assert_eq!((world.status(id), world.unit(id).attempts_used), (UnitStatus::Pending, 0));
        assert_eq!(world.attempts(id)[0].outcome, Some(Outcome::Released));
    }
    world.assert_clean();
    drop(calls);
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn stopped_at_once_nothing_is_lost_whatever_its_lanes_are_at() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let leave = Gate::closed();
    let pool = builder
        .max_workers(1)
        .worker_capacity(4)
        .on_unit_complete({
            let leave = leave.clone();
            move |unit, _| {
                if unit.id.as_str() == "a" {
                    leave.pass();
                }
            }
        })
        .up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c"]);
    calls.remove(0).succeed("in its callback");
    leave.wait_for(1);
    let store = Gate::closed();
    faulty.on(Verb::Finish, Fault::Gate(store.clone()));
    calls.remove(0).succeed("being stored");
    store.wait_for(1);
    let on_its_way = Gate::closed();
    faulty.on(Verb::Submit, Fault::Gate(on_its_way.clone()));
    thread::scope(|threads| {
        let submitting = threads.spawn(|| submit(&pool, "d"));
        on_its_way.wait_for(1);
        let stopping = threads.spawn(|| pool.stop(Stop::Now).unwrap());
        until(|| pool.stats().phase == PoolPhase::Draining);
        assert!(
            !pool.stop_timeout(Stop::Now, Duration::from_millis(10)).unwrap().is_final,
            "an answer is being stored"
        );
        store.open();
        assert_eq!(handles[1].wait().unwrap().output.as_deref(), Some("being stored"));
        on_its_way.open();
        let last = submitting.join().unwrap();
        assert!(matches!(last.wait(), Err(WaitError::LeftPending)));
        let stats = stopping.join().unwrap().stats;
        assert_eq!((stats.completed, stats.left_pending), (2, 2));
    });
    // The reporter may have something to tell after the end.
    until(|| pool.stats().abandoned_threads == 2);
    assert!(matches!(handles[2].wait(), Err(WaitError::LeftPending)));
    for id in ["c", "d"] {
        assert_eq!((world.status(id), world.unit(id).attempts_used), (UnitStatus::Pending, 0), "{id}");
    }
    world.assert_clean();
    leave.open();
    assert_eq!(handles[0].wait().unwrap().status, UnitStatus::Completed);
    drop(calls);
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn dropped_it_gives_back_all_that_its_worker_has_in_hand() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.up();
    let (handles, calls) = running(&pool, &stage, &["a", "b", "c"]);
    calls.into_iter().for_each(|call| call.obey(Err(ExecuteError::retry("interrupted"))));
    drop(pool);
    assert!(stage.is_gone());
    assert!(handles.iter().all(|handle| matches!(handle.wait(), Err(WaitError::LeftPending))));
    for id in ["a", "b", "c"] {
        assert_eq!((world.status(id), world.unit(id).attempts_used), (UnitStatus::Pending, 0));
    }
    world.assert_clean();
}

#[test]
fn one_of_a_workers_units_can_be_cancelled_and_the_others_do_not_notice() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b", "c"]);
    let waiting = enqueue(&pool, "d");
    handles[1].cancel(By::whom("ada")).unwrap();
    let cancelled = calls.remove(1);
    assert_eq!(cancelled.asked(), CancelReason::Requested);
    cancelled.fail(ExecuteError::retry("interrupted"));
    assert_eq!(handles[1].wait().unwrap().status, UnitStatus::Cancelled);
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.worker.as_str()), ("d", "w1"), "its place is free");
    assert!(calls.iter().all(|call| call.cancel.reason().is_none()));
    drop((call, calls));
    for handle in [&handles[0], &handles[2], &waiting] {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    assert_eq!(names(&pool), ["w1"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// Takes a unit from the pool that holds it, behind its back.
fn take_away(world: &World, id: &str) {
    let (unit, owner) = (world.unit(id), OwnerId(1));
    let held = world.repository.renew(owner, Duration::from_secs(3_600)).unwrap();
    let fence = held.iter().find(|held| held.unit == unit.key).unwrap().fence;
    let lease: Lease = serde_json::from_value(json!({
        "job_id": unit.job_id, "unit_id": unit.id, "unit": unit.key, "attempt_number": unit.attempt_count,
        "fence": fence, "owner": owner, "worker_id": "w1", "until_ms": 0,
    }))
    .unwrap();
    world.repository.release(&lease, None, "somebody took it away").unwrap();
}

#[test]
fn a_lease_that_is_lost_stops_its_own_unit_alone() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).worker_capacity(2).heartbeat(Duration::from_secs(15)).up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    take_away(&world, "a");
    world.clock.advance(Duration::from_secs(15));
    assert_eq!(calls[0].asked(), CancelReason::LeaseLost);
    assert_eq!(calls[1].cancel.reason(), None);
    calls.remove(0).fail(ExecuteError::retry("interrupted"));
    calls.remove(0).succeed("b");
    assert_eq!(handles[1].wait().unwrap().output.as_deref(), Some("b"));
    let again = stage.next();
    assert_eq!((again.id.as_str(), again.worker.as_str(), again.attempt_number), ("a", "w1", 2));
    drop(again);
    assert_eq!(handles[0].wait().unwrap().status, UnitStatus::Completed);
    until(|| pool.stats().load == 0 && pool.stats().free_slots == 2);
    assert_eq!(names(&pool), ["w1"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_place_that_was_promised_by_a_worker_that_crashes_is_one_in_line() {
    // 001-F54
    for is_permit in [false, true] {
        let world = World::new();
        let (builder, stage) = world.wide(1, 3);
        let pool = builder.max_queue_size(0).up();
        let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
        let permit = is_permit.then(|| pool.acquire_slot().unwrap());
        assert!(is_permit || pool.wait_for_available_slot());
        assert_eq!((pool.stats().reserved_slots, pool.stats().free_slots), (1, 0));
        calls.remove(0).fail(ExecuteError::broken("it fell"));
        handles[0].wait().unwrap();
        let handle = match permit {
            Some(permit) => permit.submit(NewUnit::new("c"), "go").unwrap(),
            None => pool.submit_work_unit(NewUnit::new("c"), "go").unwrap(),
        };
        assert_eq!((pool.stats().queue_size, pool.stats().reserved_slots), (1, 0), "though nobody else may wait");
        assert_eq!((names(&pool), stage.is_empty()), (vec!["w1".to_owned()], true));
        calls.remove(0).succeed("b");
        let call = stage.next();
        assert_eq!((call.id.as_str(), call.worker.as_str(), pool.stats().total_workers), ("c", "w2", 1));
        drop(call);
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean_after_crashes();
    }
}

#[test]
fn as_many_places_are_promised_as_there_are() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.up();
    let permits: Vec<_> = (0..3).map(|_| pool.acquire_slot().unwrap()).collect();
    assert!(!pool.wait_for_available_slot_timeout(Duration::from_millis(1)));
    assert!(pool.submit_work_unit(NewUnit::new("d"), "go").unwrap_err().is_at_capacity());
    let handles: Vec<_> = permits
        .into_iter()
        .zip(["a", "b", "c"])
        .map(|(permit, id)| permit.submit(NewUnit::new(id), "go").unwrap())
        .collect();
    let mut calls = stage.next_many(3);
    thread::scope(|threads| {
        let waiting: Vec<_> = (0..3).map(|_| threads.spawn(|| pool.wait_for_available_slot())).collect();
        until(|| pool.stats().slot_waiters == 3);
        calls.clear();
        assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap()), "each place that comes free wakes one");
    });
    assert!(handles.iter().all(|handle| handle.wait().is_ok()));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn whoever_waits_for_a_place_gets_one_when_the_capacity_is_known() {
    // 001-F66
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let pool = world.pool(part).min_workers(0).max_workers(1).worker_capacity(3).up();
    let handle = submit(&pool, "a");
    let upcoming = next(&starts);
    thread::scope(|threads| {
        let waiting: Vec<_> = (0..2).map(|_| threads.spawn(|| pool.wait_for_available_slot())).collect();
        until(|| pool.stats().slot_waiters == 2);
        drop(upcoming);
        assert!(waiting.into_iter().all(|waiting| waiting.join().unwrap()));
    });
    drop(stage.next());
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn held_nothing_is_started_on_a_free_lane_and_resumed_all_of_them_are_used() {
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    let waiting: Vec<_> = {
        calls.remove(0).fail(ExecuteError::hold("no key"));
        until(|| pool.stats().hold.is_some() && pool.stats().load == 1);
        ["c", "d"].map(|id| enqueue(&pool, id)).into()
    };
    assert_quiet(&stage.calls);
    assert_eq!((pool.workers()[0].load, pool.stats().queue_size), (1, 2));
    calls.remove(0).succeed("b");
    assert_eq!(handles[1].wait().unwrap().status, UnitStatus::Completed, "what runs goes on");
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("executor: no key".to_owned()));
    pool.resume();
    let calls = stage.next_many(3);
    assert_eq!(calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["a", "c", "d"]);
    pool.pause();
    drop(calls);
    assert!(waiting.iter().chain([&handles[0]]).all(|handle| handle.wait().unwrap().attempts_used == 1));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lowered_a_worker_too_many_ends_with_what_it_has_in_hand_and_raised_another_comes() {
    let world = World::new();
    let (builder, stage) = world.wide(2, 2);
    let pool = builder.scaling(Scaling::Fixed).up();
    let (handles, calls) = running(&pool, &stage, &["a", "b", "c", "d"]);
    let waiting: Vec<_> = (0..4).map(|number| enqueue(&pool, &number.to_string())).collect();
    pool.set_max_workers(1).unwrap();
    let leaving = pool.workers().iter().find(|view| view.status == WorkerStatus::ShuttingDown).unwrap().id.to_string();
    let (mut leaves, mut calls): (Vec<_>, Vec<_>) = calls.into_iter().partition(|call| call.worker == leaving);
    assert_eq!((leaves.len(), calls.len()), (2, 2));
    leaves.remove(0).succeed("b");
    until(|| pool.workers().iter().any(|view| view.status == WorkerStatus::ShuttingDown && view.load == 1));
    assert!(stage.is_empty(), "it takes nothing more, and the other is full");
    drop(leaves);
    until(|| pool.stats().total_workers == 1);
    assert_ne!(names(&pool)[0], leaving);
    assert_eq!(world.record(&leaving).status, WorkerStatus::Terminated);
    for _ in 0..2 {
        drop(calls.remove(0));
        calls.push(stage.next());
        assert_eq!((pool.stats().load, pool.stats().capacity), (2, 2));
    }
    pool.set_max_workers(2).unwrap();
    calls.extend(stage.next_many(2));
    assert_eq!((pool.stats().load, pool.stats().queue_size), (4, 0));
    drop(calls);
    assert!(handles.iter().chain(&waiting).all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lowered_no_more_begin_than_those_that_stay_may_have() {
    let world = World::new();
    let (builder, stage) = world.wide(2, 4);
    let pool = builder.scaling(Scaling::Fixed).up();
    let (mut handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    let [stays, goes] = [0, 1].map(|index: usize| calls[index].worker.clone());
    assert_ne!(stays, goes);
    pool.set_max_workers(1).unwrap();
    let status = |worker: &str| pool.workers().iter().find(|view| view.id.as_str() == worker).unwrap().status;
    assert_eq!((status(&stays), status(&goes)), (WorkerStatus::Ready, WorkerStatus::ShuttingDown));
    assert_eq!((pool.stats().free_slots, pool.stats().capacity), (2, 4), "one of four is with the other");
    handles.extend((0..8).map(|number| enqueue(&pool, &number.to_string())));
    calls.extend(stage.next_many(2));
    assert_quiet(&stage.calls);
    drop(calls.remove(1));
    calls.push(stage.next());
    assert_quiet(&stage.calls);
    until(|| pool.stats().total_workers == 1);
    for _ in 0..5 {
        drop(calls.remove(0));
        calls.push(stage.next());
    }
    assert!(calls.iter().all(|call| call.worker == stays));
    drop(calls);
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lowered_what_was_promised_waits_in_line_if_it_would_be_one_too_many() {
    let world = World::new();
    let (builder, stage) = world.wide(2, 2);
    let pool = builder.scaling(Scaling::Fixed).up();
    let (_handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    let permits = [pool.acquire_slot().unwrap(), pool.acquire_slot().unwrap()];
    pool.set_max_workers(1).unwrap();
    for (permit, id) in permits.into_iter().zip(["c", "d"]) {
        permit.submit(NewUnit::new(id), "go").unwrap();
    }
    assert_quiet(&stage.calls);
    assert_eq!((pool.stats().load, pool.stats().queue_size), (2, 2));
    let stays = calls.remove(0).worker.clone();
    for id in ["c", "d"] {
        let call = stage.next();
        assert_eq!((call.id.as_str(), &call.worker), (id, &stays));
        calls.push(call);
        drop(calls.remove(0));
    }
    drop(calls);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn with_a_threshold_one_more_worker_comes_only_for_what_the_others_have_no_room_for() {
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let scaling = Scaling::Threshold { queued: 2, idle: Duration::from_secs(300) };
    let pool = world.pool(part).scaling(scaling).max_workers(2).worker_capacity(3).start().unwrap();
    drop(next(&starts));
    pool.await_init_complete().unwrap();
    let mut handles: Vec<_> = (0..4).map(|number| enqueue(&pool, &number.to_string())).collect();
    let mut calls = stage.next_many(3);
    assert_quiet(&starts);
    assert_eq!((pool.stats().total_workers, pool.stats().queue_size), (1, 1));
    handles.push(enqueue(&pool, "4"));
    let upcoming = next(&starts);
    assert!(stage.is_empty());
    drop(upcoming);
    calls.extend(stage.next_many(2));
    assert_eq!((pool.stats().load, pool.stats().capacity), (5, 6));
    drop(calls);
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    until(|| pool.stats().load == 0);
    // The one that has been idle for longer goes.
    world.clock.advance(Duration::from_millis(300_001));
    until(|| pool.stats().total_workers == 1);
    assert_eq!((pool.stats().capacity, pool.stats().free_slots), (3, 3));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

const UNITS: usize = 12;

#[test]
#[ignore = "a process of its own, which another test starts"]
fn child() {
    let Some(role) = children::role() else { return };
    let repository = SqliteOptions::new().open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named("batch")).unwrap().id;
    let hangs = role == "hangs";
    let executor = move |call: &Call<'_>| {
        say(format_args!("run {} {}", call.unit().id, call.worker_id()));
        if hangs {
            thread::park();
        }
        Ok(WorkResult::text("done"))
    };
    let pool = WorkPool::builder(job, executor, repository)
        .max_workers(1)
        .worker_capacity(4)
        .capacity_strategy(CapacityStrategy::Hybrid)
        .up();
    for number in 0..UNITS {
        pool.enqueue(NewUnit::new(number.to_string()), "go").unwrap();
    }
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn what_a_worker_had_in_hand_when_its_process_was_killed_is_done_by_the_next() {
    let folder = support::folder();
    let path = folder.path().join("batch.db");
    let role = |role: &str| Role::new("pool::capacities_crossed::child", role, &path);
    let mut killed = role("hangs").start();
    for _ in 0..4 {
        assert!(killed.line().unwrap().ends_with(" w1"));
    }
    drop(killed);
    let lines = role("works").start().end_well();
    assert_eq!(lines.len(), UNITS, "{lines:?}");
    let repository = SqliteOptions::new().open(&path).unwrap();
    let job = repository.job_named("batch").unwrap().unwrap().id;
    assert_eq!(repository.counts(job).unwrap().completed, UNITS as u64);
    let mut lost = 0;
    for number in 0..UNITS {
        let unit = repository.unit(job, &number.to_string()).unwrap();
        let attempts = repository.attempts(unit.key).unwrap();
        lost += attempts.iter().filter(|attempt| attempt.outcome == Some(Outcome::Lost)).count();
        assert_eq!(attempts.last().unwrap().outcome, Some(Outcome::Completed));
    }
    assert_eq!(lost, 4);
    let verification = Verify::new().settled().run(&repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

#[test]
fn what_is_claimed_while_the_pool_begins_to_stop_goes_back_before_its_worker_is_done_with_the_rest() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).worker_capacity(2).up();
    let running = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let first = stage.next();
    pool.enqueue(NewUnit::new("b"), "go").unwrap();
    let second = stage.next();
    let waiting = pool.enqueue(NewUnit::new("c"), "go").unwrap();
    // Claimed, but the claimer does not know it yet.
    let gate = Gate::closed();
    faulty.on(Verb::Claim, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::Gate(gate.clone()));
    drop(second);
    gate.wait_for(1);
    assert_eq!(world.status("c"), UnitStatus::Processing);
    thread::scope(|threads| {
        threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(matches!(waiting.wait(), Err(WaitError::LeftPending)));
        gate.open();
        until(|| world.status("c") == UnitStatus::Pending);
        assert!(!running.is_done(), "its worker still executes");
        drop(first);
    });
    assert_eq!(running.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!((world.unit("c").accepted_by, world.unit("c").attempts_used), (None, 0));
    world.assert_clean();
}
