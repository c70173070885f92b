//! The queue: who waits in line, how many may, who is next, and who never gets a turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::unbounded;
use workcrew::repository::{By, CancelAnswer};
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Archive, Call, Completion, ExecuteError, NewUnit, Outcome, PoolPhase, QueueState, Refusal, RepositoryError,
    Scaling, Stop, UnitHandle, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult,
};

use super::stage::Played;
use super::{Stage, World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

pub(super) fn enqueue(pool: &WorkPool, id: &str) -> UnitHandle {
    pool.enqueue(NewUnit::new(id), "go").unwrap()
}

/// A pool whose only worker has a unit in hand, and that.
pub(super) fn busy(builder: WorkPoolBuilder, stage: &Stage) -> (WorkPool, Played) {
    let pool = builder.max_workers(1).up();
    enqueue(&pool, "first");
    (pool, stage.next())
}

/// The ids of the next executions, each of which begins when the one before has ended.
pub(super) fn one_by_one(stage: &Stage, count: usize) -> Vec<String> {
    (0..count).map(|_| stage.next().id.clone()).collect()
}

pub(super) fn is_unknown(world: &World, id: &str) -> bool {
    matches!(world.repository.unit(world.job, id), Err(RepositoryError::UnknownUnit { .. }))
}

#[test]
fn a_free_worker_gets_a_unit_at_once_and_in_one_call() {
    // 000-F22, 001-F41
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    let handle = enqueue(&pool, "a");
    assert_eq!(pool.stats().running, 1, "it need not be claimed by anybody else");
    stage.next().succeed("done");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("done"));
    let calls = [Verb::Submit, Verb::Insert, Verb::Claim].map(|verb| faulty.calls(verb));
    assert_eq!(calls, [1, 0, 0]);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.requests, stats.queued, stats.accepted, stats.completed), (1, 0, 1, 1));
    world.assert_clean();
}

#[test]
fn what_finds_no_worker_waits_and_runs_when_one_is_free() {
    // 000-F23, 000-F27, 001-F13, 001-F46, 001-F49, 001-F50, 001-F55, 001-F69
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part), &world);
    let (pool, call) = busy(builder, &stage);
    assert_eq!(pool.stats().queue_state(), QueueState::Empty);
    let handle = enqueue(&pool, "a");
    let unit = world.unit("a");
    let owner = world.repository.owners().unwrap()[0].id;
    assert_eq!((unit.status, unit.accepted_by, unit.attempt_count), (UnitStatus::Pending, Some(owner), 0));
    assert_eq!(unit.prompt.as_deref(), Some("go"));
    let stats = pool.stats();
    assert_eq!((stats.queue_size, stats.queued, stats.pending, stats.running), (1, 1, 1, 1));
    assert_eq!(stats.queue_state(), QueueState::HasRequests);
    assert!(!handle.is_done() && stage.is_empty());

    call.succeed("first");
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.prompt.as_str(), call.attempt_number), ("a", "go", 1));
    assert_eq!((pool.stats().queue_size, pool.stats().pending, pool.stats().running), (0, 0, 1));
    call.succeed("second");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("second"));
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete first: COMPLETED", "complete a: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn places_that_come_free_are_filled_until_there_is_none_or_nothing_waits() {
    // 000-F27, 001-F54, 001-F55
    for scaling in [Scaling::OnDemand, Scaling::Fixed] {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).max_workers(3).scaling(scaling).up();
        for number in 0..8 {
            enqueue(&pool, &format!("{number}"));
        }
        let mut seen = Vec::new();
        for left in [5, 2, 0] {
            let calls = stage.next_many(if left == 0 { 2 } else { 3 });
            seen.extend(calls.iter().map(|call| call.id.clone()));
            assert!(stage.is_empty());
            assert_eq!(pool.stats().queue_size, left);
            // Whoever got nothing more may have yet to say that it is done.
            until(|| pool.busy_count() == calls.len());
        }
        assert_eq!(seen, ["0", "1", "2", "3", "4", "5", "6", "7"]);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_eq!((stats.queued, stats.completed), (5, 8));
        world.assert_clean();
    }
}

#[test]
fn more_workers_shorten_the_queue_at_once() {
    // 001-F55
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    for id in ["a", "b", "c"] {
        enqueue(&pool, id);
    }
    pool.set_max_workers(3).unwrap();
    let calls = stage.next_many(2);
    assert_eq!((calls[0].id.as_str(), calls[1].id.as_str()), ("a", "b"));
    assert_eq!(pool.stats().queue_size, 1);
    drop((call, calls));
    assert_eq!(stage.next().id, "c");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_place_that_was_promised_and_not_used_goes_to_the_queue() {
    // 001-F55
    let world = World::new();
    let (pool, stage) = world.staged(1);
    assert!(pool.wait_for_available_slot());
    thread::scope(|threads| {
        threads.spawn(|| enqueue(&pool, "a"));
    });
    assert_eq!((pool.stats().queue_size, stage.is_empty()), (1, true), "it is nobody else's");
    world.clock.advance(Duration::from_secs(30));
    drop(stage.next());
    pool.wait_for_completion();
    let permit = pool.acquire_slot().unwrap();
    enqueue(&pool, "b");
    assert_eq!(pool.stats().queue_size, 1);
    drop(permit);
    assert_eq!(stage.next().id, "b");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn as_many_wait_as_may_and_the_next_is_refused_at_once() {
    // 001-F19, 001-F47, 001-F68, 001-F72
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).max_queue_size(2), &stage);
    for id in ["a", "b"] {
        assert_ne!(pool.stats().queue_state(), QueueState::Saturated);
        enqueue(&pool, id);
    }
    assert_eq!(pool.stats().queue_state(), QueueState::Saturated);
    let error = pool.enqueue(NewUnit::new("c").priority(7), "go").unwrap_err();
    assert!(error.is_saturated() && !error.is_at_capacity());
    assert!(matches!(error.reason, Refusal::Saturated { max_queue_size: 2 }));
    assert_eq!(error.to_string(), "no room in line for unit `c`: 2 wait already");
    assert_eq!((error.unit.id.as_str(), error.unit.priority), ("c", 7));
    assert!(is_unknown(&world, "c"));
    let stats = pool.stats();
    assert_eq!((stats.requests, stats.queued, stats.saturated, stats.accepted), (4, 2, 1, 3));
    assert_eq!((stats.queue_size, stats.max_queue_size), (2, 2));

    drop(call);
    let call = stage.next();
    assert_eq!(call.id, "a");
    let handle = pool.enqueue(*error.unit, workcrew::Prompt::OfUnit).unwrap();
    assert!(pool.enqueue(NewUnit::new("d"), "go").unwrap_err().is_saturated());
    drop(call);
    assert_eq!(one_by_one(&stage, 2), ["c", "b"]);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.requests, stats.queued, stats.saturated, stats.completed), (6, 3, 2, 4));
    assert!(is_unknown(&world, "d"));
    world.assert_clean();
}

#[test]
fn a_thousand_may_wait_by_default() {
    // 001-F19
    let world = World::new();
    let (pool, stage) = world.staged(1);
    assert_eq!(pool.stats().max_queue_size, 1_000);
    pool.pause();
    for number in 0..1_000 {
        enqueue(&pool, &format!("{number}"));
    }
    assert!(pool.enqueue(NewUnit::new("1000"), "go").unwrap_err().is_saturated());
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.left_pending, 1_000);
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn without_a_queue_a_unit_runs_if_a_worker_is_free() {
    // 001-F19, 001-F68
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).max_queue_size(0).up();
    for id in ["a", "b"] {
        let handle = enqueue(&pool, id);
        let call = stage.next();
        assert!(pool.enqueue(NewUnit::new("c"), "go").unwrap_err().is_saturated());
        call.succeed("done");
        handle.wait().unwrap();
    }
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.queued, stats.saturated, stats.queue_size), (2, 0, 2, 0));
    world.assert_clean();
}

#[test]
fn many_who_come_at_once_are_never_more_than_may_wait() {
    // 001-F47, 001-F56, 001-F68
    const LIMIT: usize = 5;
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).max_queue_size(LIMIT), &stage);
    let begin = Gate::closed();
    let answers: Vec<_> = thread::scope(|threads| {
        let enqueuing: Vec<_> = (0..16)
            .map(|number| {
                let (pool, begin) = (&pool, &begin);
                threads.spawn(move || {
                    begin.pass();
                    let answer = pool.enqueue(NewUnit::new(format!("{number}")), "go");
                    assert!(pool.stats().queue_size <= LIMIT);
                    answer
                })
            })
            .collect();
        begin.wait_for(16);
        begin.open();
        enqueuing.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (taken, refused): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!((taken.len(), refused.len()), (LIMIT, 11));
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert!(error.is_saturated() && is_unknown(&world, &error.unit.id));
    }
    drop(call);
    one_by_one(&stage, LIMIT);
    for handle in taken.into_iter().map(Result::unwrap) {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.requests, stats.queued, stats.saturated, stats.completed), (17, 5, 11, 6));
    world.assert_clean();
}

#[test]
fn the_larger_priority_goes_first_and_of_equals_who_came_first() {
    // 001-F67
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    let priorities = [("a", 0), ("b", 5), ("c", -3), ("d", 5), ("e", 0), ("f", i32::MAX), ("g", i32::MIN)];
    for (id, priority) in priorities {
        pool.enqueue(NewUnit::new(id).priority(priority), "go").unwrap();
        world.clock.jump_wall(chrono::TimeDelta::seconds(-10));
    }
    drop(call);
    assert_eq!(one_by_one(&stage, 7), ["f", "b", "d", "a", "e", "c", "g"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_tried_again_keeps_its_place_before_those_who_came_later() {
    // 001-F67
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    enqueue(&pool, "a");
    pool.enqueue(NewUnit::new("b").priority(1), "go").unwrap();
    call.fail(ExecuteError::retry("again"));
    let call = stage.next();
    assert_eq!(call.id, "b", "a larger priority goes first all the same");
    call.fail(ExecuteError::retry("again"));
    assert_eq!(one_by_one(&stage, 3), ["b", "first", "a"]);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.queued, stats.retried, stats.completed), (2, 2, 3));
    world.assert_clean();
}

#[test]
fn the_queue_goes_before_whoever_waits_for_a_place() {
    // 001-F55, 001-F67
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    thread::scope(|threads| {
        let waiting = threads.spawn(|| pool.wait_for_available_slot());
        until(|| pool.stats().slot_waiters == 1);
        for id in ["a", "b"] {
            enqueue(&pool, id);
        }
        drop(call);
        for id in ["a", "b"] {
            let call = stage.next();
            assert_eq!(call.id, id);
            assert!(!waiting.is_finished());
        }
        assert!(waiting.join().unwrap());
    });
    assert_eq!((pool.stats().reserved_slots, pool.stats().slot_waiters), (1, 0));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_not_due_waits_in_line_until_it_is() {
    // 001-F46
    use workcrew::clock::Clock;
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    let later = world.clock.now().wall + chrono::TimeDelta::seconds(90);
    let handle = pool.enqueue(NewUnit::new("a").not_before(later), "go").unwrap();
    enqueue(&pool, "b");
    assert_eq!(pool.stats().queue_size, 2);
    drop(call);
    drop(stage.next());
    until(|| pool.stats().free_slots == 1);
    assert_eq!((pool.stats().queue_size, world.status("a")), (1, UnitStatus::Pending));
    enqueue(&pool, "c");
    assert_eq!(stage.next().id, "c", "it keeps no worker from anybody");
    world.clock.advance(Duration::from_secs(90));
    assert_eq!(stage.next().id, "a");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn cancelled_in_line_a_unit_never_runs_and_makes_room() {
    // 001-F14, 001-F70, 001-F72
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_queue_size(1), &world);
    let (pool, call) = busy(builder, &stage);
    let handle = enqueue(&pool, "a");
    assert!(pool.enqueue(NewUnit::new("b"), "go").unwrap_err().is_saturated());
    assert_eq!(handle.cancel(By::new("ada", "no longer wanted")).unwrap(), CancelAnswer::Cancelled);
    assert_eq!((world.status("a"), pool.stats().queue_size), (UnitStatus::Cancelled, 0));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    assert_eq!(next(&outcomes), "cancelled a: CANCELLED");
    assert!(enqueue(&pool, "a").is_done());
    assert_eq!(pool.stats().queue_size, 0, "what has ended needs no place");
    enqueue(&pool, "b");
    drop(call);
    assert_eq!(stage.next().id, "b");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.cancelled, stats.completed, stats.attempts), (3, 1, 2, 2));
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete first: COMPLETED", "complete b: COMPLETED"]);
    assert!(world.attempts("a").is_empty() && stage.is_empty());
    world.assert_clean();
}

#[test]
fn cancelled_just_when_it_is_its_turn_a_unit_ends_once() {
    // 001-F14, 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part), &world);
    let pool = builder.max_workers(1).up();
    for round in 0..50 {
        let (before, id) = (format!("before {round}"), format!("a {round}"));
        enqueue(&pool, &before);
        let call = stage.next();
        let handle = enqueue(&pool, &id);
        thread::scope(|threads| {
            threads.spawn(|| pool.cancel(&id, By::whom("ada")).unwrap());
            call.succeed("done");
        });
        until(|| {
            if let Ok(call) = stage.calls.try_recv() {
                call.obey(Err(ExecuteError::retry("stopped")));
            }
            handle.is_done()
        });
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let mut told: Vec<_> = outcomes.try_iter().collect();
        told.sort();
        assert_eq!(told, [format!("cancelled {id}: CANCELLED"), format!("complete {before}: COMPLETED")]);
        assert_eq!(pool.stats().queue_size, 0);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn before_it_is_started_and_after_it_has_stopped_a_pool_takes_nothing() {
    // 001-F40
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).build().unwrap();
    let handle = pool.handle();
    let refused = pool.enqueue(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Configuring)));
    pool.start().unwrap();
    pool.await_init_complete().unwrap();
    pool.stop(Stop::Drain).unwrap();
    for refused in [pool.enqueue(NewUnit::new("a"), "go"), handle.enqueue(NewUnit::new("a"), "go")] {
        assert!(matches!(refused.unwrap_err().reason, Refusal::Stopped));
    }
    drop(pool);
    for refused in [handle.enqueue(NewUnit::new("a"), "go"), handle.submit_work_unit(NewUnit::new("a"), "go")] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused.reason, Refusal::Stopped));
        assert_eq!(refused.unit.prompt.as_deref(), Some("go"), "it comes back with its prompt");
    }
    let refused = handle.enqueue(NewUnit::new("a").prompt("go"), "stop").unwrap_err();
    assert!(matches!(refused.reason, Refusal::TwoPrompts));
    assert!(is_unknown(&world, "a") && stage.is_gone());
    world.assert_clean();
}

#[test]
fn while_the_pool_comes_up_units_wait_in_line_and_run_afterwards() {
    // 001-F21, 001-F24, 001-F25, 001-F46
    let world = World::new();
    let (part, stage) = stage();
    let hook = Gate::closed();
    let pool = world
        .pool(part)
        .max_workers(1)
        .max_queue_size(2)
        .init_hook({
            let hook = hook.clone();
            move |_| {
                hook.pass();
                Ok(())
            }
        })
        .start()
        .unwrap();
    hook.wait_for(1);
    let handles = ["a", "b"].map(|id| enqueue(&pool, id));
    assert!(pool.enqueue(NewUnit::new("c"), "go").unwrap_err().is_saturated());
    let stats = pool.stats();
    assert_eq!((stats.phase, stats.queue_size, stats.pending), (PoolPhase::Initializing, 2, 2));
    assert_eq!(world.status("a"), UnitStatus::Pending);
    assert!(stage.is_empty());
    hook.open();
    assert_eq!(one_by_one(&stage, 2), ["a", "b"]);
    for handle in handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_came_before_the_pool_has_registered_is_taken_or_refused() {
    // 001-F40
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let gate = Gate::closed();
    faulty.on(Verb::RegisterOwner, Fault::Gate(gate.clone()));
    let pool = builder.max_workers(1).build().unwrap();
    thread::scope(|threads| {
        let starting = threads.spawn(|| pool.start());
        gate.wait_for(1);
        let answer = threads.spawn(|| pool.enqueue(NewUnit::new("a"), "go")).join();
        gate.open();
        starting.join().unwrap().unwrap();
        match answer.expect("it does not panic") {
            Ok(handle) => {
                drop(stage.next());
                handle.wait().unwrap();
            }
            Err(error) => assert!(matches!(error.reason, Refusal::NotReady(PoolPhase::Initializing)), "{error}"),
        }
    });
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_waits_for_a_pool_that_does_not_come_up_stays_pending() {
    // 001-F27, 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let hook = Gate::closed();
    let pool = world
        .pool(part)
        .init_hook({
            let hook = hook.clone();
            move |_| {
                hook.pass();
                Err(ExecuteError::give_up("no server"))
            }
        })
        .start()
        .unwrap();
    hook.wait_for(1);
    let handle = enqueue(&pool, "a");
    hook.open();
    assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
    until(|| pool.stats().phase == PoolPhase::InitFailed);
    let refused = pool.enqueue(NewUnit::new("b"), "go").unwrap_err();
    assert!(matches!(&refused.reason, Refusal::InitFailed(reason) if reason.contains("no server")), "{refused}");
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.left_pending, stats.pending, stats.queue_size), (1, 1, 0, 0));
    let unit = world.unit("a");
    assert_eq!((unit.status, unit.accepted_by), (UnitStatus::Pending, None));
    assert!(is_unknown(&world, "b") && stage.is_empty());
    world.assert_clean();
}

#[test]
fn while_nothing_is_started_units_wait_in_line() {
    // 001-F46, 001-F49
    let world = World::new();
    let (pool, stage) = world.staged(2);
    pool.pause();
    for id in ["a", "b", "c"] {
        enqueue(&pool, id);
    }
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("paused".to_owned()));
    assert_eq!((pool.stats().queue_size, pool.stats().free_slots), (3, 2));
    pool.resume();
    let mut calls = stage.next_many(2);
    assert_eq!(calls[0].id, "a");
    calls.remove(0).fail(ExecuteError::hold("no key"));
    until(|| pool.stats().hold.is_some());
    drop(calls);
    enqueue(&pool, "d");
    assert!(matches!(pool.wait_for_completion(), Completion::Blocked(_)));
    assert_eq!((pool.stats().queue_size, pool.stats().pending), (2, 3), "what was held is no longer in line");
    assert!(stage.is_empty());
    pool.resume();
    let calls = stage.next_many(2);
    assert_eq!((calls[0].id.as_str(), calls[1].id.as_str()), ("a", "c"));
    drop(calls);
    assert_eq!(stage.next().id, "d");
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_callback_may_bring_what_follows() {
    // 001-F28
    let world = World::new();
    let (tell, followed) = unbounded();
    let builder = world.pool(|call: &Call<'_>| Ok(WorkResult::text(call.prompt())));
    let handle = builder.handle();
    let pool = builder
        .max_workers(1)
        .on_unit_complete(move |unit, _| {
            let left: u32 = unit.id.as_str().parse().unwrap();
            if left > 0 {
                tell.send(handle.enqueue(NewUnit::new((left - 1).to_string()), "go").unwrap()).unwrap();
            }
        })
        .up();
    enqueue(&pool, "20");
    assert_eq!(pool.wait_for_completion(), Completion::Done, "which includes what follows");
    let statuses: Vec<_> = followed.try_iter().map(|handle| handle.wait().unwrap().status).collect();
    assert_eq!(statuses, [UnitStatus::Completed; 20]);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.queued), (21, 20), "the worker is taken until its callback is over");
    world.assert_clean();
}

#[test]
fn an_executor_may_bring_what_follows_until_the_pool_stops() {
    // 001-F28, 001-F29
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part);
    let handle = builder.handle();
    let (pool, call) = busy(builder, &stage);
    let bring = |call: &Played, id: &'static str| {
        let handle = handle.clone();
        call.act(move |_| {
            let answer = handle.enqueue(NewUnit::new(id), "go")?;
            assert!(matches!(answer.wait(), Err(WaitError::WouldDeadlock)));
            Ok::<UnitHandle, workcrew::SubmitError>(answer)
        })
    };
    let followed = bring(&call, "a").unwrap();
    drop(call);
    let call = stage.next();
    assert_eq!(call.id, "a");
    let left = bring(&call, "b").unwrap();
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| pool.stats().phase == PoolPhase::Draining);
        assert!(matches!(left.wait(), Err(WaitError::LeftPending)));
        assert!(matches!(bring(&call, "c").unwrap_err().reason, Refusal::Stopped));
        call.succeed("done");
        let stats = stopping.join().unwrap().stats;
        assert_eq!((stats.completed, stats.left_pending, stats.requests), (2, 1, 4));
    });
    assert_eq!(followed.wait().unwrap().status, UnitStatus::Completed);
    assert!(is_unknown(&world, "c"));
    world.assert_clean();
}

#[test]
fn a_pool_that_stops_leaves_its_queue_pending() {
    // 001-F29, 001-F56
    for stop in [Stop::Drain, Stop::Cancel { grace: Duration::from_secs(5) }, Stop::Now] {
        let world = World::new();
        let (part, stage) = stage();
        let (builder, outcomes) = tells_outcomes(world.pool(part).max_queue_size(8), &world);
        let (pool, call) = busy(builder, &stage);
        let ids = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let handles = ids.map(|id| enqueue(&pool, id));
        assert!(pool.enqueue(NewUnit::new("i"), "go").unwrap_err().is_saturated());
        thread::scope(|threads| {
            let stopping = threads.spawn(|| pool.stop(stop).unwrap());
            for handle in &handles {
                assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
            }
            assert_eq!((pool.stats().queue_size, pool.stats().pending), (0, 0));
            match stop {
                Stop::Drain => call.succeed("done"),
                _ => call.obey(Err(ExecuteError::retry("stopped"))),
            }
            let stats = stopping.join().unwrap().stats;
            let was_cancelled = u64::from(stop != Stop::Drain);
            assert_eq!((stats.accepted, stats.queued, stats.saturated), (9, 8, 1));
            assert_eq!((stats.left_pending, stats.completed), (8 + was_cancelled, 1 - was_cancelled));
        });
        for id in ids {
            let unit = world.unit(id);
            assert_eq!((unit.status, unit.accepted_by, unit.attempt_count), (UnitStatus::Pending, None, 0));
        }
        assert_eq!(outcomes.len(), usize::from(stop == Stop::Drain));
        assert!(stage.is_empty());
        world.assert_clean();
    }
}

#[test]
fn a_unit_that_is_being_stored_when_the_pool_stops_stays_pending() {
    // 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (pool, call) = busy(builder, &stage);
    let gate = Gate::closed();
    faulty.on(Verb::Insert, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let enqueuing = threads.spawn(|| enqueue(&pool, "a"));
        gate.wait_for(1);
        assert_eq!(pool.stats().queue_size, 1, "its place is taken");
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| pool.stats().phase == PoolPhase::Draining);
        drop(call);
        gate.open();
        assert!(matches!(enqueuing.join().unwrap().wait(), Err(WaitError::LeftPending)));
        let stats = stopping.join().unwrap().stats;
        assert_eq!((stats.accepted, stats.completed, stats.left_pending, stats.queue_size), (2, 1, 1, 0));
    });
    assert_eq!((world.status("a"), world.unit("a").accepted_by), (UnitStatus::Pending, None));
    world.assert_clean();
}

#[test]
fn whoever_enqueues_gets_one_answer_and_each_unit_one_callback() {
    // 001-F50, 001-F51, 001-F56
    const UNITS: usize = 40;
    let world = World::new();
    let running = Arc::new(AtomicUsize::new(0));
    let executor = {
        let running = Arc::clone(&running);
        move |call: &Call<'_>| {
            assert!(running.fetch_add(1, Ordering::SeqCst) < 3, "never more than there are workers");
            thread::yield_now();
            running.fetch_sub(1, Ordering::SeqCst);
            match (call.unit().id.as_str().ends_with('7'), call.attempt_number()) {
                (true, 1) => Err(ExecuteError::retry("again")),
                (true, 2) => Err(ExecuteError::give_up("no")),
                _ => Ok(WorkResult::text(call.prompt())),
            }
        }
    };
    let (builder, outcomes) = tells_outcomes(world.pool(executor).max_workers(3).max_queue_size(20), &world);
    let pool = builder.up();
    thread::scope(|threads| {
        for brings in 0..4_usize {
            let pool = &pool;
            threads.spawn(move || {
                for number in 0..UNITS {
                    // Every unit is brought by two of them.
                    let id = format!("{}-{number}", brings / 2);
                    let handle = loop {
                        match pool.enqueue(NewUnit::new(id.as_str()), "go") {
                            Ok(handle) => break handle,
                            Err(error) => assert!(error.is_saturated(), "{error:?}"),
                        }
                        thread::yield_now();
                    };
                    if number % 4 == 0 {
                        assert!(handle.wait().unwrap().status.is_terminal());
                    }
                }
            });
        }
    });
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.failed), (72, 8));
    assert_eq!((stats.accepted, stats.queue_size), (80, 0));
    let mut told: Vec<_> = outcomes.try_iter().collect();
    let told_of = told.len();
    told.sort();
    told.dedup();
    assert_eq!((told.len(), told_of), (80, 80));
    for id in ["0-7", "1-17"] {
        let ends: Vec<_> = world.attempts(id).iter().map(|attempt| attempt.outcome.unwrap()).collect();
        assert_eq!(ends, [Outcome::Failed; 2]);
    }
    world.assert_clean();
}

#[test]
fn whoever_waited_for_a_place_has_it_for_a_unit_that_may_wait_too() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).max_queue_size(1).queue_timeout(Duration::from_secs(60)).up();
    enqueue(&pool, "a");
    enqueue(&pool, "b");
    let refused = pool.enqueue(NewUnit::new("c"), "go").unwrap_err();
    assert!(refused.is_saturated() && refused.unit.queue_timeout.is_none(), "{refused:?}");
    drop(stage.next());
    drop(stage.next());
    assert!(pool.wait_for_available_slot());
    assert_eq!(pool.stats().reserved_slots, 1);
    let handle = pool.enqueue(*refused.unit, workcrew::Prompt::OfUnit).unwrap();
    assert_eq!((pool.stats().reserved_slots, pool.stats().queue_size), (0, 0));
    drop(stage.next());
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_promise_that_is_given_up_for_a_unit_that_is_not_due_goes_to_whoever_waits() {
    // 001-F55
    let world = World::new();
    let (pool, stage) = world.staged(1);
    assert!(pool.wait_for_available_slot());
    thread::scope(|threads| {
        threads.spawn(|| enqueue(&pool, "waits"));
    });
    let later = workcrew::clock::Clock::now(&world.clock).wall + chrono::TimeDelta::hours(1);
    pool.enqueue(NewUnit::new("later").not_before(later), "go").unwrap();
    assert_eq!(stage.next().id, "waits");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
