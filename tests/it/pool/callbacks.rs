//! Callbacks: after the commit, once, on the worker's thread, and free to call the pool.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use workcrew::repository::By;
use workcrew::testing::Gate;
use workcrew::{
    Archive, Completion, Event, ExecuteError, NewUnit, Outcome, Stop, UnitStatus, WaitError, WorkPool, WorkerStatus,
};

use super::capture::charge;
use super::{World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

#[test]
fn the_database_has_the_outcome_before_its_callback_and_the_worker_is_taken_until_after() {
    // 004-F7, 004-F8, 004-F32, 004-F33, 004-F48, 004-F53, 004-F55, 004-F56, I11
    let world = World::new();
    let (part, stage) = stage();
    let (tell, outcomes) = unbounded();
    let leave = Gate::closed();
    let pool = world
        .pool(part)
        .max_workers(1)
        .on_unit_complete({
            let (repository, job, leave) = (world.repository.clone(), world.job, leave.clone());
            move |unit, result| {
                let stored = repository.unit(job, unit.id.as_str()).unwrap();
                let attempt = repository.attempts(stored.key).unwrap().pop().unwrap();
                let worker = repository.workers(attempt.owner, "", 10).unwrap().pop().unwrap();
                let thread = thread::current().name().unwrap_or_default().to_owned();
                tell.send((stored, attempt, worker, result.clone(), thread)).unwrap();
                leave.pass();
            }
        })
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("done");
    let (unit, attempt, worker, result, thread) = next(&outcomes);
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("done")));
    assert_eq!(attempt.outcome, Some(Outcome::Completed));
    assert_eq!((worker.load, worker.units_completed, worker.status), (0, 1, WorkerStatus::Ready));
    assert_eq!(result.output.as_deref(), Some("done"));
    assert_eq!(thread, format!("workcrew-{}", worker.id));

    let stats = pool.stats();
    assert_eq!((stats.completed, stats.reporting_workers, stats.free_slots), (1, 1, 0));
    assert!(!handle.is_done());
    assert!(pool.submit_work_unit(NewUnit::new("b"), "go").unwrap_err().is_at_capacity());
    assert_eq!(pool.wait_for_completion_timeout(Duration::from_millis(1)), Completion::TimedOut);
    leave.open();
    handle.wait().unwrap();
    assert_eq!(pool.stats().free_slots, 1, "whoever waited finds room");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn callbacks_are_enough_to_keep_the_statistics_of_a_job() {
    // 004-F54
    let world = World::new();
    let (tell, outcomes) = unbounded();
    let failed = tell.clone();
    let pool = world
        .pool(|call: &workcrew::Call<'_>| match call.unit().id.as_str() {
            id if id.ends_with('7') => Err(ExecuteError::give_up("no")),
            id if id.ends_with('3') && call.attempt_number() == 1 => Err(ExecuteError::retry("again")),
            _ => Ok(workcrew::WorkResult::empty().charge(charge(2))),
        })
        .on_unit_complete(move |unit, _| tell.send((unit.status, unit.cost)).unwrap())
        .on_unit_failed(move |unit, _| failed.send((unit.status, unit.cost)).unwrap())
        .up();
    for number in 0..40 {
        assert!(pool.wait_for_available_slot());
        pool.submit_work_unit(NewUnit::new(number.to_string()), "go").unwrap();
    }
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let outcomes: Vec<_> = outcomes.try_iter().collect();
    let told = |status| outcomes.iter().filter(|(ended, _)| *ended == status).count() as u64;
    let counts = world.repository.counts(world.job).unwrap();
    assert_eq!((told(UnitStatus::Completed), told(UnitStatus::Failed)), (36, 4));
    assert_eq!((counts.completed, counts.failed), (36, 4));
    let cost: workcrew::Cost = outcomes.iter().map(|(_, cost)| *cost).sum();
    assert_eq!(cost, world.repository.costs(Some(world.job)).unwrap().total());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_callback_or_observer_that_panics_changes_nothing() {
    let world = World::new();
    let (part, stage) = stage();
    let called = Arc::new(AtomicUsize::new(0));
    let bomb = || {
        let called = Arc::clone(&called);
        move || {
            called.fetch_add(1, Ordering::SeqCst);
            struct Bomb;
            impl Drop for Bomb {
                fn drop(&mut self) {
                    panic!("twice");
                }
            }
            std::panic::panic_any(Bomb);
        }
    };
    let (complete, failed, cancelled, observed) = (bomb(), bomb(), bomb(), bomb());
    let pool = world
        .pool(part)
        .max_workers(1)
        .on_unit_complete(move |_, _| complete())
        .on_unit_failed(move |_, _| failed())
        .on_unit_cancelled(move |_| cancelled())
        .observer(move |event: &Event<'_>| {
            if matches!(event, Event::AttemptEnded { .. }) {
                observed();
            }
        })
        .up();
    let good = pool.submit_work_unit(NewUnit::new("good"), "go").unwrap();
    stage.next().succeed("done");
    assert_eq!(good.wait().unwrap().status, UnitStatus::Completed);
    let bad = pool.submit_work_unit(NewUnit::new("bad"), "go").unwrap();
    stage.next().fail(ExecuteError::give_up("no"));
    assert_eq!(bad.wait().unwrap().status, UnitStatus::Failed);
    let gone = pool.submit_work_unit(NewUnit::new("gone"), "go").unwrap();
    let call = stage.next();
    gone.cancel(By::whom("ada")).unwrap();
    call.obey(Err(ExecuteError::retry("stopped")));
    assert_eq!(gone.wait().unwrap().status, UnitStatus::Cancelled);
    assert_eq!(called.load(Ordering::SeqCst), 6);
    assert_eq!(pool.workers().len(), 1, "its worker goes on");
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.failed, stats.cancelled), (1, 1, 1));
    world.assert_clean();
}

#[test]
fn a_callback_may_call_the_pool() {
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(2), &world);
    let (handle, (tell, called)) = (builder.handle(), unbounded());
    assert!(handle.stats().is_none(), "there is no pool yet");
    let pool = builder
        .on_unit_complete({
            let handle = handle.clone();
            move |unit, _| {
                if unit.id.as_str() != "first" {
                    return;
                }
                let stats = handle.stats().unwrap();
                assert_eq!((stats.completed, stats.reporting_workers), (1, 1));
                handle.submit_work_unit(NewUnit::new("next"), "go").unwrap();
                handle.submit_work_unit(NewUnit::new("full"), "go").unwrap_err();
                handle.pause();
                assert!(handle.stats().unwrap().hold.is_some());
                handle.resume();
                handle.cancel("next", By::whom("a callback")).unwrap().unwrap();
                tell.send(()).unwrap();
            }
        })
        .up();
    pool.submit_work_unit(NewUnit::new("first"), "go").unwrap();
    stage.next().succeed("done");
    next(&called);
    // It may have been cancelled before it began.
    until(|| {
        drop(stage.calls.try_recv());
        !outcomes.is_empty()
    });
    assert_eq!(next(&outcomes), "cancelled next: CANCELLED");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    drop(pool);
    assert!(handle.stats().is_none() && handle.submit_work_unit(NewUnit::new("x"), "go").is_err());
    assert!(!handle.wait_for_available_slot());
    world.assert_clean();
}

#[test]
fn a_wait_inside_the_pool_answers_at_once() {
    let world = World::new();
    let (part, stage) = stage();
    let (send_pool, pools) = unbounded::<Arc<WorkPool>>();
    let (tell, told) = unbounded();
    let ask = Arc::new(move |pool: &WorkPool, id: &str| {
        let other = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        let answers = (
            pool.wait_for_available_slot(),
            pool.acquire_slot().map(drop),
            pool.wait_for_completion(),
            other.wait().map(drop),
            pool.stop_timeout(Stop::Drain, Duration::MAX).unwrap().is_final,
        );
        tell.send(answers).unwrap();
    });
    let pool = Arc::new(
        world
            .pool(part)
            .max_workers(2)
            .on_unit_complete({
                let ask = Arc::clone(&ask);
                move |unit, _| {
                    if unit.id.as_str() == "first" {
                        ask(&pools.recv().unwrap(), "other");
                    }
                }
            })
            .up(),
    );
    let check = || {
        let (slot, permit, completion, unit, is_final) = next(&told);
        assert!(!slot);
        assert!(matches!(permit, Err(WaitError::WouldDeadlock)));
        assert_eq!(completion, Completion::WouldDeadlock);
        assert!(matches!(unit, Err(WaitError::WouldDeadlock)));
        assert!(!is_final, "it is only asked to stop");
    };
    pool.submit_work_unit(NewUnit::new("first"), "go").unwrap();
    let first = stage.next();
    send_pool.send(Arc::clone(&pool)).unwrap();
    first.succeed("done");
    check();
    stage.next().succeed("other");
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    drop(pool);

    let (part, stage) = super::stage();
    let pool = Arc::new(world.pool(part).max_workers(2).up());
    pool.submit_work_unit(NewUnit::new("second"), "go").unwrap();
    let call = stage.next();
    call.act({
        let pool = Arc::clone(&pool);
        move |_| ask(&pool, "another")
    });
    check();
    drop((call, stage.next()));
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    world.assert_clean();
}

#[test]
fn a_handle_that_is_done_can_be_waited_for_anywhere() {
    let world = World::new();
    let (part, stage) = stage();
    let (send, handles) = unbounded::<workcrew::UnitHandle>();
    let pool = world
        .pool(part)
        .on_unit_complete(move |unit, _| {
            if unit.id.as_str() == "b" {
                assert_eq!(handles.recv().unwrap().wait().unwrap().status, UnitStatus::Completed);
            }
        })
        .up();
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stage.next().succeed("done");
    first.wait().unwrap();
    send.send(first).unwrap();
    let second = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    stage.next().succeed("done");
    second.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_callback_that_blocks_holds_up_nothing_but_its_worker() {
    let world = World::new();
    let (part, stage) = stage();
    let leave = Gate::closed();
    let pool = world
        .pool(part)
        .max_workers(2)
        .on_unit_complete({
            let leave = leave.clone();
            move |unit, _| {
                if unit.id.as_str() == "slow" {
                    leave.pass();
                }
            }
        })
        .up();
    let slow = pool.submit_work_unit(NewUnit::new("slow"), "go").unwrap();
    stage.next().succeed("done");
    leave.wait_for(1);
    for id in ["a", "b", "c"] {
        assert!(pool.wait_for_available_slot());
        let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        stage.next().succeed(id);
        handle.wait().unwrap();
    }
    assert!(!slow.is_done());
    leave.open();
    slow.wait().unwrap();
    until(|| pool.all_idle());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
