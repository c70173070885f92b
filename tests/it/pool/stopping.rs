//! Stopping, in every way and from everywhere: nothing hangs, nothing is lost, nothing stays behind uncounted.

use std::sync::Arc;
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use workcrew::executor::CancelReason;
use workcrew::testing::Gate;
use workcrew::{
    Archive, Completion, ExecuteError, NewUnit, Outcome, PoolPhase, Refusal, RetryPolicy, Scaling, Stop, UnitStatus,
    WaitError, WorkPool, WorkResult, WorkerStatus,
};

use super::{World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

#[test]
fn draining_lets_what_runs_end_and_leaves_what_waits() {
    // 004-F46, 004-F47
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(3).retry(RetryPolicy::fixed(Duration::from_secs(60)));
    let (builder, outcomes) = tells_outcomes(builder, &world);
    let pool = builder.up();
    let submit = |id: &str| pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    let backing_off = submit("a");
    stage.next().fail(ExecuteError::retry("again"));
    until(|| pool.stats().pending == 1);
    let (failing, running) = (submit("b"), submit("c"));
    let mut calls = stage.next_many(2);
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(matches!(backing_off.wait(), Err(WaitError::LeftPending)));
        assert_eq!(pool.stats().phase, PoolPhase::Draining);
        let refused = pool.submit_work_unit(NewUnit::new("d"), "go").unwrap_err();
        assert!(matches!(refused.reason, Refusal::Stopped));
        calls.remove(0).fail(ExecuteError::retry("again"));
        assert!(matches!(failing.wait(), Err(WaitError::LeftPending)), "it is not tried again here");
        assert_eq!(calls[0].cancel.reason(), None, "what runs is not hurried");
        assert!(!stopping.is_finished());
        calls.remove(0).succeed("done");
        assert_eq!(running.wait().unwrap().status, UnitStatus::Completed);
        let summary = stopping.join().unwrap();
        assert!(summary.is_final);
        let stats = &summary.stats;
        assert_eq!((stats.accepted, stats.completed, stats.left_pending, stats.retried), (3, 1, 2, 2));
        assert_eq!(summary.to_string().split(';').next(), Some("1 completed, 0 failed, 0 cancelled, 2 left pending"));
    });
    assert_eq!(pool.wait_for_completion(), Completion::Stopped);
    for id in ["a", "b"] {
        let unit = world.unit(id);
        assert_eq!((unit.status, unit.accepted_by, unit.attempts_used), (UnitStatus::Pending, None, 1));
    }
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete c: COMPLETED"]);
    drop(pool);
    assert!(stage.is_gone());
    world.assert_clean();
}

#[test]
fn while_a_pool_drains_its_records_say_that_its_workers_shut_down() {
    // 003-F20, 003-F24, 003-F25, 003-F26
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(2).up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let running = stage.next();
    let statuses = || ["w1", "w2"].map(|id| world.record(id).status);
    thread::scope(|threads| {
        threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| statuses() == [WorkerStatus::ShuttingDown; 2]);
        assert_eq!(world.status("a"), UnitStatus::Processing, "it is not hurried");
        running.succeed("done");
    });
    assert_eq!(statuses(), [WorkerStatus::Terminated; 2]);
    world.assert_clean();
}

#[test]
fn idle_workers_of_a_pool_that_does_not_drain_are_stopped_at_once() {
    // 003-F20, 003-F27
    for stop in [Stop::Cancel { grace: Duration::from_secs(3_600) }, Stop::Now] {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(2).up();
        let statuses = || ["w1", "w2"].map(|id| world.record(id).status);
        assert_eq!(statuses(), [WorkerStatus::Ready; 2]);
        assert!(pool.stop(stop).unwrap().is_final, "and no grace has passed");
        assert_eq!(statuses(), [WorkerStatus::Terminated; 2], "{stop:?}");
        drop(pool);
        assert!(stage.is_gone());
        world.assert_clean();
    }
}

#[test]
fn cancelling_gives_back_what_runs_uncounted() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(3), &world);
    let pool = builder.up();
    let handles: Vec<_> =
        ["a", "b", "c"].into_iter().map(|id| pool.submit_work_unit(NewUnit::new(id), "go").unwrap()).collect();
    let mut calls = stage.next_many(3);
    calls[0].say("so far");
    calls[0].act(|call| call.usage(super::capture::charge(1)));
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Cancel { grace: Duration::from_secs(5) }).unwrap());
        for call in &calls {
            assert_eq!(call.asked(), CancelReason::Shutdown);
        }
        calls.remove(0).fail(ExecuteError::retry("interrupted"));
        calls.remove(0).succeed("just in time");
        assert!(matches!(handles[0].wait(), Err(WaitError::LeftPending)));
        assert_eq!(handles[1].wait().unwrap().status, UnitStatus::Completed, "an answer is an answer");
        assert!(!stopping.is_finished());
        // The third does not listen, and is left behind when the grace is over.
        world.clock.advance(Duration::from_secs(5));
        let summary = stopping.join().unwrap();
        assert_eq!((summary.stats.abandoned_threads, summary.stats.left_pending), (1, 2));
    });
    assert!(matches!(handles[2].wait(), Err(WaitError::LeftPending)));
    for id in ["a", "c"] {
        let unit = world.unit(id);
        assert_eq!((unit.status, unit.accepted_by, unit.attempts_used), (UnitStatus::Pending, None, 0));
        assert_eq!(world.attempts(id)[0].outcome, Some(Outcome::Released));
    }
    assert_eq!(world.said("a", 1), ["so far"]);
    assert_eq!(world.unit("a").cost.amount, super::capture::cents(1));
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete b: COMPLETED"]);
    world.assert_clean();
    calls.remove(0).succeed("too late");
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    assert_eq!(world.status("c"), UnitStatus::Pending);
    let late = world.repository.attempt_result(world.attempt_key("c", 1)).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
    world.assert_clean();
}

#[test]
fn stopping_now_waits_for_nobody_and_counts_whom_it_leaves_behind() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    let handles: Vec<_> =
        ["a", "b"].into_iter().map(|id| pool.submit_work_unit(NewUnit::new(id), "go").unwrap()).collect();
    let deaf = stage.next_many(2);
    let summary = pool.stop(Stop::Now).unwrap();
    assert_eq!((summary.stats.abandoned_threads, summary.stats.left_pending), (2, 2));
    assert!(handles.iter().all(|handle| matches!(handle.wait(), Err(WaitError::LeftPending))));
    for call in &deaf {
        assert_eq!(call.cancel.reason(), Some(CancelReason::Shutdown));
        call.say("nobody listens");
    }
    assert_eq!(world.unit("a").attempts_used, 0);
    assert!(world.said("a", 1).is_empty());
    world.assert_clean();
    drop(deaf);
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn a_callback_that_does_not_return_is_one_thread_left_behind() {
    let world = World::new();
    let (part, stage) = stage();
    let leave = Gate::closed();
    let pool = world
        .pool(part)
        .on_unit_complete({
            let leave = leave.clone();
            move |_, _| leave.pass()
        })
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("done");
    leave.wait_for(1);
    let stats = pool.stop(Stop::Now).unwrap().stats;
    assert_eq!((stats.abandoned_threads, stats.completed), (1, 1));
    assert_eq!(world.status("a"), UnitStatus::Completed);
    leave.open();
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn a_callback_of_the_reporter_that_does_not_return_is_one_thread_left_behind() {
    let world = World::new();
    let (part, stage) = stage();
    let leave = Gate::closed();
    let pool = world
        .pool(part)
        .on_unit_cancelled({
            let leave = leave.clone();
            move |_| leave.pass()
        })
        .up();
    let later = workcrew::clock::Clock::now(&world.clock).wall + chrono::TimeDelta::hours(1);
    let handle = pool.submit_work_unit(NewUnit::new("a").not_before(later), "go").unwrap();
    handle.cancel(workcrew::repository::By::whom("ada")).unwrap();
    leave.wait_for(1);
    assert_eq!(pool.stop(Stop::Now).unwrap().stats.abandoned_threads, 1);
    leave.open();
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    until(|| pool.stats().abandoned_threads == 0);
    drop(pool);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn a_stop_can_become_more_urgent_but_not_less() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    thread::scope(|threads| {
        let draining = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| pool.stats().phase == PoolPhase::Draining);
        assert_eq!(call.cancel.reason(), None);
        let timed = pool.stop_timeout(Stop::Drain, Duration::from_millis(1)).unwrap();
        assert!(!timed.is_final);
        assert!(pool.stop(Stop::Now).unwrap().is_final);
        assert!(draining.join().unwrap().is_final);
    });
    assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
    assert_eq!(call.cancel.reason(), Some(CancelReason::Shutdown));
    let again = pool.stop(Stop::Drain).unwrap();
    assert_eq!((again.is_final, again.stats.left_pending), (true, 1));
    drop(call);
    until(|| pool.stats().abandoned_threads == 0);
    world.assert_clean();
}

#[test]
fn a_pool_that_was_never_started_stops_too() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).build().unwrap();
    for _ in 0..2 {
        assert!(pool.stop(Stop::Drain).unwrap().is_final);
    }
    assert_eq!(pool.stats().phase, PoolPhase::Stopped);
    assert!(pool.start().is_err());
    drop(pool);
    assert!(stage.is_gone());
    drop(world.pool(super::stage().0).build().unwrap());
    world.assert_clean();
}

#[test]
fn after_its_end_a_pool_answers_and_takes_nothing() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("done");
    pool.stop(Stop::Drain).unwrap();
    let refused = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::Stopped));
    assert_eq!(refused.to_string(), "unit `b` came too late: the pool has stopped");
    assert!(!pool.wait_for_available_slot() && pool.acquire_slot().is_err());
    assert_eq!(pool.wait_for_completion(), Completion::Done, "all it took has ended");
    assert!(pool.workers().is_empty() && pool.all_idle());
    pool.pause();
    pool.resume();
    pool.set_max_workers(2).unwrap();
    world.clock.advance(Duration::from_secs(3_600));
    assert_eq!(pool.stats().completed, 1);
    world.assert_clean();
}

#[test]
fn dropped_without_being_stopped_it_gives_back_what_runs() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().obey(Err(ExecuteError::retry("interrupted")));
    drop(pool);
    assert!(stage.is_gone());
    assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
    assert_eq!((world.status("a"), world.unit("a").attempts_used), (UnitStatus::Pending, 0));
    handle.cancel(workcrew::repository::By::whom("ada")).unwrap();
    assert_eq!(handle.unit().unwrap().status, UnitStatus::Cancelled, "a handle outlives its pool");
    world.assert_clean();
}

#[test]
fn stopped_in_a_callback_it_ends_by_itself() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(2);
    let handle = builder.handle();
    let pool = builder.on_unit_complete(move |_, _| handle.stop(Stop::Drain)).up();
    for id in ["a", "b"] {
        pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
    }
    let mut calls = stage.next_many(2);
    calls.remove(0).succeed("done");
    assert!(!pool.stop_timeout(Stop::Drain, Duration::from_millis(1)).unwrap().is_final);
    calls.remove(0).succeed("done");
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 2);
    world.assert_clean();
}

/// Where a test puts its pool, so that user code inside it can drop it.
type Shelf = Arc<Mutex<Option<WorkPool>>>;

#[test]
fn dropped_in_a_callback_it_ends_by_itself() {
    let world = World::new();
    let (part, stage) = stage();
    let (shelf, (tell, dropped)) = (Shelf::default(), unbounded());
    let pool = world
        .pool(part)
        .on_unit_complete({
            let shelf = Arc::clone(&shelf);
            move |_, _| {
                let pool = shelf.lock().unwrap().take();
                drop(pool);
                tell.send(()).unwrap();
            }
        })
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    shelf.lock().unwrap().replace(pool);
    call.succeed("done");
    next(&dropped);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn dropped_in_an_executor_it_ends_by_itself() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    let handles: Vec<_> =
        ["a", "b"].into_iter().map(|id| pool.submit_work_unit(NewUnit::new(id), "go").unwrap()).collect();
    let mut calls = stage.next_many(2);
    calls.remove(0).end(move |call| {
        drop(pool);
        let reason = call.cancel_token().wait_timeout(Duration::MAX);
        assert_eq!(reason, Some(CancelReason::Shutdown));
        Ok(WorkResult::text("all the same"))
    });
    calls.remove(0).obey(Err(ExecuteError::retry("interrupted")));
    assert_eq!(handles[0].wait().unwrap().output.as_deref(), Some("all the same"));
    assert!(matches!(handles[1].wait(), Err(WaitError::LeftPending)));
    until(|| stage.is_gone());
    world.assert_clean();
}

#[test]
fn what_is_on_its_way_to_a_worker_when_the_pool_stops_is_given_back() {
    // P21
    let world = World::new();
    for (round, stop) in [Stop::Drain, Stop::Cancel { grace: Duration::ZERO }, Stop::Now].into_iter().enumerate() {
        let (part, stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let pool = builder.max_workers(1).up();
        let (gate, id) = (Gate::closed(), format!("u{round}"));
        faulty.on(workcrew::testing::Verb::Submit, workcrew::testing::Fault::Gate(gate.clone()));
        thread::scope(|threads| {
            let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new(id.as_str()), "go").unwrap());
            gate.wait_for(1);
            let stopping = threads.spawn(|| pool.stop(stop).unwrap());
            until(|| pool.stats().phase == PoolPhase::Draining);
            gate.open();
            let handle = submitting.join().unwrap();
            if stop == Stop::Drain {
                stage.next().succeed("done");
                assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
            } else {
                assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
                assert_eq!((world.status(&id), world.unit(&id).attempts_used), (UnitStatus::Pending, 0));
            }
            assert!(stopping.join().unwrap().is_final);
        });
        drop(pool);
        until(|| stage.is_gone());
    }
    world.assert_clean();
}

#[test]
fn an_answer_that_is_being_stored_is_not_lost_to_a_stop() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    let gate = Gate::closed();
    faulty.on(workcrew::testing::Verb::Finish, workcrew::testing::Fault::Gate(gate.clone()));
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("paid for");
    gate.wait_for(1);
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Now).unwrap());
        until(|| pool.stats().phase == PoolPhase::Draining);
        // Whoever stops looks once more before it could be let down.
        pool.stop_timeout(Stop::Now, Duration::from_millis(1)).unwrap();
        gate.open();
        assert!(stopping.join().unwrap().is_final);
    });
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("paid for"));
    assert_eq!((pool.stats().completed, pool.stats().abandoned_threads), (1, 0));
    world.assert_clean();
}
