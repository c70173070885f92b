//! Corners of the pool's life where two things meet: an observer that hangs, a machine that slept, storage that fails at the wrong moment.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, unbounded};
use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{Event, ExecuteError, NewUnit, Refusal, Repository, Scaling, Stop, UnitStatus, WaitError, WorkPool};

use super::stage::stage_and_starts;
use super::{World, next, stage, until};
use crate::support::Up as _;

#[test]
fn an_observer_that_takes_its_time_over_a_worker_that_ended_keeps_nobody_from_timing_out() {
    let world = World::new();
    let (part, stage) = stage();
    let (gate, seen) = (Gate::closed(), Gate::closed());
    let observer = {
        let (gate, seen) = (gate.clone(), seen.clone());
        seen.open();
        move |event: &Event<'_>| {
            if let Event::WorkerEnded { .. } = event {
                seen.pass();
                gate.pass();
            }
        }
    };
    let builder = world.pool(part).max_workers(2).max_units_per_worker(1).observer(observer);
    let pool = builder.timeout(Duration::from_secs(10)).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    drop(stage.next());
    seen.wait_for(1);
    pool.enqueue(NewUnit::new("b"), "go").unwrap();
    let call = stage.next();
    world.clock.advance(Duration::from_secs(10));
    let asked = call.cancel.wait_timeout(Duration::from_secs(2));
    gate.open();
    assert_eq!(asked, Some(CancelReason::TimedOut));
}

#[test]
fn what_waited_for_too_long_while_the_machine_slept_does_not_cost_the_pool_its_own_leases() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).lease(Duration::from_secs(60)).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    pool.enqueue(NewUnit::new("b").queue_timeout(Duration::from_secs(10)), "go").unwrap();
    let gate = Gate::closed();
    faulty.on(Verb::Renew, Fault::Gate(gate.clone()));
    world.clock.advance(Duration::from_secs(120));
    gate.wait_for(1);
    assert_eq!((world.status("a"), world.status("b")), (UnitStatus::Processing, UnitStatus::Pending));
    gate.open();
    until(|| world.status("b") == UnitStatus::Failed);
    assert_eq!(world.status("a"), UnitStatus::Processing);
    drop(call);
}

#[test]
fn what_may_not_begin_yet_waits_in_line_also_if_a_worker_is_free() {
    let world = World::new();
    let (part, _stage) = stage();
    let pool = world.pool(part).max_workers(1).max_queue_size(2).up();
    let later = chrono::Utc::now() + chrono::TimeDelta::days(30_000);
    let enqueue = |id: &str| pool.enqueue(NewUnit::new(id).not_before(later), "go");
    enqueue("a").unwrap();
    enqueue("b").unwrap();
    let third = enqueue("c");
    assert!(
        third.is_err_and(|error| matches!(error.reason, Refusal::Saturated { .. })),
        "{:?}",
        pool.stats().queue_size
    );
}

#[test]
fn a_queue_timeout_counts_also_for_what_found_a_worker_free_but_may_not_begin_yet() {
    use workcrew::clock::Clock as _;
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let soon = world.clock.now().wall + chrono::TimeDelta::seconds(10);
    let unit = NewUnit::new("a").not_before(soon).queue_timeout(Duration::from_secs(20));
    let handle = pool.enqueue(unit, "go").unwrap();
    pool.enqueue(NewUnit::new("b"), "go").unwrap();
    let _call = stage.next();
    until(|| {
        world.clock.advance(Duration::from_secs(1));
        handle.is_done()
    });
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
}

#[test]
fn a_repository_that_panics_while_a_worker_comes_up_is_a_failure_at_once() {
    let world = World::new();
    let (part, _stage) = stage();
    let faulty = FaultyRepository::new(world.repository.clone().into()).error(|| panic!("a repository"));
    faulty.on(Verb::ChangeWorker, Fault::ErrorOnce);
    let pool = world.pool_on(Arc::new(faulty) as Arc<dyn Repository>, part).max_workers(1).start().unwrap();
    let waited = pool.await_ready_timeout(Duration::from_secs(2));
    let stats = pool.stats();
    pool.stop(Stop::Now).unwrap();
    assert!(matches!(waited, Err(WaitError::InitFailed(_))), "{waited:?}");
    assert_eq!(stats.abandoned_threads, 0);
}

#[test]
fn a_worker_that_did_not_come_up_in_time_is_told_of_once() {
    let world = World::new();
    let (part, _stage, starts) = stage_and_starts();
    let (tell, events) = unbounded();
    let observer = move |event: &Event<'_>| {
        if let Event::WorkerStartFailed { worker_id, reason } = event {
            tell.send(format!("{worker_id} {reason}")).unwrap();
        }
    };
    let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(2).observer(observer).start().unwrap();
    let (one, other) = (next(&starts), next(&starts));
    drop(other);
    pool.await_ready().unwrap();
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(one.asked(), CancelReason::TimedOut);
    next(&events);
    one.fail(ExecuteError::retry("as you wish"));
    assert_eq!(events.recv_timeout(Duration::from_secs(1)), Err(RecvTimeoutError::Timeout));
}

/// Whether a unit is executed whose worker was given up before it got it, while these fail once.
fn runs_some_day(verbs: &[Verb]) -> bool {
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.min_workers(0).max_workers(1).up();
    let gate = Gate::closed();
    faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new("a"), "go").unwrap());
        gate.wait_for(1);
        let _hanging = next(&starts);
        world.clock.advance(Duration::from_secs(30));
        until(|| pool.stats().total_workers == 0);
        for &verb in verbs {
            faulty.on(verb, Fault::ErrorOnce);
        }
        gate.open();
        submitting.join().unwrap();
    });
    let mut has_run = false;
    for _ in 0..300 {
        world.clock.advance(Duration::from_secs(5));
        while starts.try_recv().is_ok() {}
        has_run |= stage.calls.recv_timeout(Duration::from_millis(10)).is_ok();
        if has_run {
            break;
        }
    }
    println!("after 25 minutes at most it is {}", world.status("a"));
    pool.stop(Stop::Now).unwrap();
    has_run
}

#[test]
fn a_unit_whose_worker_was_gone_runs_some_day_though_giving_it_back_fails_once() {
    assert!(runs_some_day(&[]));
    assert!(runs_some_day(&[Verb::Release]));
}

#[test]
fn a_unit_whose_worker_was_gone_runs_some_day_though_neither_it_nor_its_worker_can_be_given_back() {
    assert!(runs_some_day(&[Verb::Release, Verb::ChangeWorker]));
}

#[test]
fn an_alarm_of_a_unit_that_left_the_line_does_not_ring_for_it_when_it_is_back() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    pool.enqueue(NewUnit::new("first"), "go").unwrap();
    let first = stage.next();
    let unit = || NewUnit::new("a").max_retries(0);
    let handle = pool.enqueue(unit().queue_timeout(Duration::from_secs(10)), "go").unwrap();
    drop(first);
    stage.next().fail(ExecuteError::give_up("no"));
    handle.wait().unwrap();
    world.repository.requeue(world.job, "a", &workcrew::OwnerId(1).into()).unwrap();
    pool.enqueue(NewUnit::new("second"), "go").unwrap();
    let _second = stage.next();
    pool.enqueue(unit(), "go").unwrap();
    let before = faulty.calls(Verb::Expire);
    for _ in 0..30 {
        world.clock.advance(Duration::from_millis(500));
        thread::park_timeout(Duration::from_millis(5));
    }
    assert!(faulty.calls(Verb::Expire) - before <= 1, "{} sweeps", faulty.calls(Verb::Expire) - before);
    // Dropped after the second, it would wait for a unit that nobody plays.
    pool.stop(Stop::Now).unwrap();
}

#[test]
fn a_worker_that_was_promised_when_it_became_too_old_goes_when_it_no_longer_is() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).scaling(Scaling::Fixed).max_workers(1);
    let pool = builder.max_worker_age(Duration::from_secs(60)).up();
    let permit = pool.acquire_slot().unwrap();
    world.clock.advance(Duration::from_secs(61));
    // Nothing tells that its alarm has rung in vain.
    thread::park_timeout(Duration::from_millis(50));
    drop(permit);
    until(|| {
        world.clock.advance(Duration::from_secs(10));
        pool.workers().iter().all(|worker| worker.id.as_str() != "w1")
    });
    assert!(pool.wait_for_available_slot());
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    assert_ne!(stage.next().worker, "w1");
}

#[test]
fn a_handle_to_what_has_ended_waits_for_its_callback_also_if_a_worker_is_free() {
    let world = World::new();
    let (part, stage) = stage();
    let gate = Gate::closed();
    let passes = gate.clone();
    let pool: WorkPool = world.pool(part).max_workers(2).on_unit_complete(move |_, _| passes.pass()).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    drop(stage.next());
    gate.wait_for(1);
    let again = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let is_done = again.is_done();
    gate.open();
    assert!(!is_done, "its callback runs");
}

#[test]
fn a_unit_that_waited_for_too_long_is_not_asked_for_all_the_time_while_the_sweep_fails() {
    let world = World::new();
    let (part, _stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    faulty.on(Verb::Expire, Fault::ErrorAlways);
    let pool = builder.max_workers(1).up();
    pool.pause();
    pool.enqueue(NewUnit::new("a").queue_timeout(Duration::from_millis(50)), "go").unwrap();
    world.clock.advance(Duration::from_millis(100));
    until(|| faulty.calls(Verb::Expire) > 1);
    let before = faulty.calls(Verb::Claim);
    pool.resume();
    for _ in 0..100 {
        world.clock.advance(Duration::from_millis(2));
        thread::park_timeout(Duration::from_millis(1));
    }
    let claims = faulty.calls(Verb::Claim) - before;
    pool.stop(Stop::Now).unwrap();
    assert!(claims < 10, "{claims} claims in a fifth of a second");
}

#[test]
fn what_is_not_idempotent_is_not_executed_again_after_a_crash_while_the_pool_stops() {
    use workcrew::{AfterCrash, RetryPolicy};
    let world = World::new();
    let (part, stage) = stage();
    let policy = RetryPolicy::immediate().after_crash(AfterCrash::OnlyIdempotent);
    let pool = world.pool(part).max_workers(1).retry(policy).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    stage.next().end(|call| {
        call.cancel_token().wait_timeout(Duration::MAX);
        panic!("it fell")
    });
    pool.stop(Stop::Cancel { grace: Duration::from_secs(3_600) }).unwrap();
    assert_eq!(world.status("a"), UnitStatus::Failed);
}

#[test]
fn a_worker_that_does_not_come_up_in_time_for_its_unit_is_told_of() {
    let world = World::new();
    let (part, _stage, starts) = stage_and_starts();
    let (tell, events) = unbounded();
    let observer = move |event: &Event<'_>| {
        if let Event::WorkerStartFailed { worker_id, .. } | Event::WorkerTainted { worker_id, .. } = event {
            tell.send(worker_id.to_string()).unwrap();
        }
    };
    let pool = world.pool(part).min_workers(0).max_workers(1).observer(observer).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let hanging = next(&starts);
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(hanging.asked(), CancelReason::TimedOut);
    let told = events.recv_timeout(Duration::from_secs(1));
    pool.stop(Stop::Now).unwrap();
    assert_eq!(told.as_deref(), Ok("w1"));
}

/// Whether the pool comes to its end in time, though an observer does not return from such an event.
fn ends_while_observer_hangs(world: &World, pool: &WorkPool) -> bool {
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop_timeout(Stop::Now, Duration::from_secs(3)).unwrap().is_final);
        while !stopping.is_finished() {
            world.clock.advance(Duration::from_secs(1));
            thread::park_timeout(Duration::from_millis(10));
        }
        stopping.join().unwrap()
    })
}

#[test]
fn a_pool_stops_though_an_observer_hangs_over_a_worker_that_did_not_come_up() {
    let world = World::new();
    let (part, _stage, starts) = stage_and_starts();
    let gate = Gate::closed();
    let passes = gate.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::WorkerStartFailed { .. } = event {
            passes.pass();
        }
    };
    let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(1).observer(observer).start().unwrap();
    let one = next(&starts);
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(one.asked(), CancelReason::TimedOut);
    gate.wait_for(1);
    let ends = ends_while_observer_hangs(&world, &pool);
    gate.open();
    assert!(ends);
}

#[test]
fn a_pool_stops_though_an_observer_hangs_over_a_worker_that_ended() {
    let world = World::new();
    let (part, stage) = stage();
    let gate = Gate::closed();
    let passes = gate.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::WorkerEnded { .. } = event {
            passes.pass();
        }
    };
    let pool = world.pool(part).max_workers(1).max_units_per_worker(1).observer(observer).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    drop(stage.next());
    gate.wait_for(1);
    let ends = ends_while_observer_hangs(&world, &pool);
    gate.open();
    assert!(ends);
}

#[test]
fn a_worker_whose_thread_was_left_behind_is_brought_up_again_on_the_new_one_or_replaced() {
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let pool = world.pool(part).max_workers(1).timeout(Duration::from_secs(10)).start().unwrap();
    drop(next(&starts));
    pool.await_init_complete().unwrap();
    pool.enqueue(NewUnit::new("a").max_retries(0), "go").unwrap();
    let hanging = stage.next();
    world.clock.advance(Duration::from_secs(10));
    hanging.asked();
    world.clock.advance(Duration::from_secs(2));
    until(|| world.status("a") == UnitStatus::Failed);
    pool.enqueue(NewUnit::new("b"), "go").unwrap();
    let started = starts.recv_timeout(Duration::from_secs(1)).map(|upcoming| upcoming.worker.clone());
    let call = stage.next();
    assert!(started.is_ok(), "{} goes on with a thread that `start_worker` has never seen", call.worker);
}
