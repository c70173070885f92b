//! Workers that crash, and workers that do not come up.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    AfterCrash, Archive, Call, Completion, Event, ExecuteError, FailureKind, NewUnit, Outcome, OwnerId, RetryPolicy,
    Scaling, Stop, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult, WorkerStatus,
};

use super::stage::{Played, stage_and_starts};
use super::{World, assert_quiet, next, stage, until};
use crate::support::Up as _;

impl World {
    /// A worker's status as it is stored.
    fn row(&self, worker: &str) -> Option<WorkerStatus> {
        let rows = self.repository.workers(OwnerId(1), "", 1_000).unwrap();
        rows.into_iter().find(|row| row.id.as_str() == worker).map(|row| row.status)
    }
}

fn crash(call: Played) {
    call.fail(ExecuteError::broken("it fell"));
}

fn panic(call: Played) {
    call.end(|_| panic!("it fell"));
}

/// A pool whose observer tells of workers, and what the pool and the database say of them by then.
fn tells_workers(builder: WorkPoolBuilder, world: &World) -> (WorkPoolBuilder, Receiver<String>) {
    let (tell, events) = unbounded();
    let (handle, repository) = (builder.handle(), world.repository.clone());
    let observer = move |event: &Event<'_>| {
        let (what, worker) = match event {
            Event::WorkerReady { worker_id } => ("is up".to_owned(), worker_id),
            Event::WorkerStartFailed { worker_id, reason } => (format!("is not up ({reason})"), worker_id),
            Event::WorkerTainted { worker_id, reason } => (format!("crashed ({reason})"), worker_id),
            Event::WorkerEnded { worker_id, has_crashed } => (format!("ended, {has_crashed}"), worker_id),
            _ => return,
        };
        let seen = handle.stats().and_then(|stats| stats.workers.get(*worker).map(|view| view.status));
        let rows = repository.workers(OwnerId(1), "", 1_000).unwrap();
        let row = rows.into_iter().find(|row| row.id == **worker).map(|row| row.status);
        let name = |status: Option<WorkerStatus>| status.map_or("-".to_owned(), |status| status.to_string());
        tell.send(format!("{worker} {what}: {} {}", name(seen), name(row))).unwrap();
    };
    (builder.observer(observer), events)
}

#[test]
fn a_crash_taints_the_worker_until_another_has_taken_its_place() {
    // 001-F52, 001-F62, 001-F64, 001-F83, 000-F30, 000-F31
    for (end, reason) in [(panic as fn(Played), "panic: it fell"), (crash, "executor: it fell")] {
        let world = World::new();
        let (part, stage) = stage();
        let (builder, events) = tells_workers(world.pool(part).max_workers(1), &world);
        let pool = builder.up();
        assert_eq!(next(&events), "w1 is up: READY READY");
        let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(1), "go").unwrap();
        let call = stage.next();
        assert_eq!(call.worker, "w1");
        end(call);
        assert_eq!(next(&events), format!("w1 crashed ({reason}): TAINTED TAINTED"));
        let call = stage.next();
        assert_eq!((call.worker.as_str(), call.attempt_number), ("w2", 2));
        let mut others = [next(&events), next(&events)];
        others.sort();
        assert_eq!(others[0], "w1 ended, true: - DEAD");
        assert!(others[1].starts_with("w2 is up: BUSY"), "{}", others[1]);
        end(call);
        let unit = handle.wait().unwrap();
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Failed, 2));
        assert_eq!(unit.failure.unwrap().to_string(), reason);
        let well = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
        stage.next().succeed("well");
        assert_eq!(well.wait().unwrap().status, UnitStatus::Completed);
        assert_eq!(pool.workers()[0].id.as_str(), "w3");
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(
            ["w1", "w2", "w3"].map(|worker| world.row(worker).unwrap().to_string()),
            ["DEAD", "DEAD", "TERMINATED"]
        );
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_worker_is_tainted_while_the_callback_of_its_last_unit_runs() {
    // 001-F62
    let world = World::new();
    let (part, stage) = stage();
    let (tell, told) = unbounded();
    let builder = world.pool(part).max_workers(2);
    let (handle, gate) = (builder.handle(), Gate::closed());
    let builder = builder.on_unit_failed({
        let gate = gate.clone();
        move |_, _| {
            tell.send(handle.stats().unwrap()).unwrap();
            gate.pass();
        }
    });
    let pool = builder.up();
    pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    crash(stage.next());
    let stats = next(&told);
    assert_eq!((stats.tainted_workers, stats.total_workers, stats.free_slots), (1, 1, 1));
    assert_eq!(world.row("w1"), Some(WorkerStatus::Tainted));
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    drop(stage.next());
    gate.open();
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn four_crashes_of_a_unit_are_all_there_are() {
    // 001-F53
    let world = World::new();
    let (pool, stage) = world.staged(2);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let mut workers = HashSet::new();
    for attempt_number in 1..=4 {
        let call = stage.next();
        assert_eq!(call.attempt_number, attempt_number);
        assert!(workers.insert(call.worker.clone()), "a worker that crashed takes nothing");
        panic(call);
    }
    assert_eq!(handle.wait().unwrap().failure.unwrap().kind, FailureKind::PANIC);
    assert!(workers.iter().all(|worker| world.row(worker) == Some(WorkerStatus::Dead)));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn whoever_waited_for_a_unit_that_crashed_its_worker_finds_room() {
    // 001-F54, 001-F65
    let world = World::new();
    for min_workers in [0, 1] {
        let (part, stage) = stage();
        let pool = world.pool(part).min_workers(min_workers).max_workers(1).up();
        for number in 0..20 {
            let unit = NewUnit::new(format!("{min_workers} {number}")).max_retries(0);
            let handle = pool.submit_work_unit(unit, "go").unwrap();
            crash(stage.next());
            assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
        }
        pool.stop(Stop::Drain).unwrap();
    }
    world.assert_clean_after_crashes();
}

/// A pool of so many workers, whose starts are in the hands of the test; all are up.
fn fixed(world: &World, workers: usize) -> (WorkPool, super::Stage, Receiver<super::stage::Upcoming>) {
    let (part, stage, starts) = stage_and_starts();
    let builder = world.pool(part).scaling(Scaling::Fixed).max_workers(workers);
    let pool = builder.startup_timeout(Duration::from_secs(600)).start().unwrap();
    drop((0..workers).map(|_| next(&starts)).collect::<Vec<_>>());
    pool.await_init_complete().unwrap();
    (pool, stage, starts)
}

#[test]
fn a_worker_that_dies_is_replaced_at_once() {
    // 001-F65, 001-F73
    let world = World::new();
    let (pool, stage, starts) = fixed(&world, 3);
    for id in ["a", "b", "c"] {
        pool.submit_work_unit(NewUnit::new(id).max_retries(0), "go").unwrap();
    }
    stage.next_many(3).into_iter().for_each(crash);
    let upcoming: Vec<_> = (0..3).map(|_| next(&starts)).collect();
    assert_quiet(&starts);
    until(|| pool.stats().total_workers == 3);
    assert_eq!((pool.stats().starting_workers, pool.stats().free_slots), (3, 0));
    drop(upcoming);
    until(|| pool.stats().idle_workers == 3);
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn what_does_not_come_up_is_tried_again_every_minute_two_at_a_time() {
    // 001-F73, 001-F75, 001-F76, 001-F78, 001-F80
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let builder = world.pool(part).scaling(Scaling::Fixed).max_workers(6).startup_timeout(Duration::from_secs(600));
    let pool = builder.start().unwrap();
    let mut upcoming: Vec<_> = (0..6).map(|_| next(&starts)).collect();
    drop(upcoming.pop());
    upcoming.into_iter().for_each(|upcoming| upcoming.fail(ExecuteError::retry("no")));
    pool.await_init_complete().unwrap();
    for _ in 0..3 {
        world.clock.advance(Duration::from_millis(59_999));
        assert_quiet(&starts);
        world.clock.advance(Duration::from_millis(1));
        for _ in 0..2 {
            next(&starts).fail(ExecuteError::retry("no"));
        }
        assert_quiet(&starts);
        until(|| pool.stats().total_workers == 1);
    }
    // Those that take longer count.
    let mut slow = Vec::new();
    for started in [2, 2, 1, 0] {
        world.clock.advance(Duration::from_secs(60));
        slow.extend((0..started).map(|_| next(&starts)));
        assert_quiet(&starts);
    }
    drop(slow);
    until(|| pool.stats().idle_workers == 6);
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn nothing_is_replaced_while_the_pool_stops() {
    // 001-F6, 001-F74, 001-F79
    let world = World::new();
    let (pool, stage, starts) = fixed(&world, 2);
    for id in ["a", "b"] {
        pool.submit_work_unit(NewUnit::new(id).max_retries(0), "go").unwrap();
    }
    let [first, second] = stage.next_many(2).try_into().ok().unwrap();
    pool.stop_timeout(Stop::Drain, Duration::ZERO).unwrap();
    crash(first);
    until(|| pool.stats().total_workers == 1);
    world.clock.advance(Duration::from_secs(120));
    assert_quiet(&starts);
    drop(second);
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    assert!(starts.is_empty());
    world.assert_clean_after_crashes();
}

#[test]
fn each_pool_replaces_its_own() {
    // 001-F77
    let world = World::new();
    let (one, one_stage, one_starts) = fixed(&world, 2);
    let (other, _other_stage, other_starts) = fixed(&world, 2);
    let handle = one.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    crash(one_stage.next());
    handle.wait().unwrap();
    drop(next(&one_starts));
    until(|| one.stats().idle_workers == 2);
    assert_quiet(&other_starts);
    assert_eq!((other.stats().total_workers, other.stats().errors), (2, 0));
    for pool in [one, other] {
        pool.stop(Stop::Drain).unwrap();
    }
    world.assert_clean_after_crashes();
}

/// A pool of one worker that rests for ten seconds after a crash; it has just crashed, and its unit failed.
fn resting(world: &World) -> (WorkPool, super::Stage, Receiver<super::stage::Upcoming>, Receiver<String>) {
    let (part, stage, starts) = stage_and_starts();
    let (builder, events) = tells_workers(world.pool(part).max_workers(1).taint_for(Duration::from_secs(10)), world);
    let pool = builder.start().unwrap();
    drop(next(&starts));
    pool.await_init_complete().unwrap();
    assert_eq!(next(&events), "w1 is up: READY READY");
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    panic(stage.next());
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&events), "w1 crashed (panic: it fell): TAINTED TAINTED");
    until(|| pool.workers()[0].unit_id.is_none());
    (pool, stage, starts, events)
}

#[test]
fn a_worker_rests_after_a_crash_and_is_brought_up_again() {
    // 001-F62, 001-F63
    let world = World::new();
    let (pool, stage, starts, events) = resting(&world);
    let waiting = pool.enqueue(NewUnit::new("b"), "go").unwrap();
    assert!(pool.submit_work_unit(NewUnit::new("c"), "go").unwrap_err().is_at_capacity());
    world.clock.advance(Duration::from_millis(9_999));
    assert_quiet(&starts);
    assert!(stage.is_empty() && events.is_empty());
    let stats = pool.stats();
    assert_eq!((stats.tainted_workers, stats.total_workers, stats.free_slots), (1, 1, 0));
    world.clock.advance(Duration::from_millis(1));
    let upcoming = next(&starts);
    assert_eq!(upcoming.worker, "w1");
    assert_eq!(pool.workers()[0].status, WorkerStatus::Starting);
    assert!(stage.is_empty());
    drop(upcoming);
    let call = stage.next();
    assert_eq!((call.worker.as_str(), call.id.as_str()), ("w1", "b"));
    assert!(next(&events).starts_with("w1 is up: "));
    drop(call);
    waiting.wait().unwrap();
    assert_eq!(world.row("w1"), Some(WorkerStatus::Ready));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.row("w1"), Some(WorkerStatus::Terminated), "its crash is over");
    world.assert_clean();
}

#[test]
fn stopped_while_a_worker_rests_it_stops_at_once() {
    for stop in [Stop::Drain, Stop::Cancel { grace: Duration::from_secs(3_600) }, Stop::Now] {
        let world = World::new();
        let (pool, stage, starts, events) = resting(&world);
        assert!(pool.stop(stop).unwrap().is_final, "{stop}");
        assert!(next(&events).starts_with("w1 ended, true"));
        drop(pool);
        until(|| stage.is_gone());
        assert!(starts.is_empty());
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_worker_that_cannot_be_brought_up_again_is_dead() {
    // 001-F64
    let world = World::new();
    let (pool, stage, starts, events) = resting(&world);
    world.clock.advance(Duration::from_secs(10));
    next(&starts).fail(ExecuteError::retry("no"));
    assert!(next(&events).starts_with("w1 is not up (worker w1: executor: no)"));
    assert_eq!(next(&events), "w1 ended, true: - DEAD");
    let handle = pool.enqueue(NewUnit::new("b"), "go").unwrap();
    let upcoming = next(&starts);
    assert_eq!(upcoming.worker, "w2");
    drop(upcoming);
    drop(stage.next());
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_worker_that_is_not_brought_up_again_in_time_is_dead() {
    // 001-F34, 001-F64, 001-F84
    let world = World::new();
    let (pool, stage, starts, events) = resting(&world);
    world.clock.advance(Duration::from_secs(10));
    let upcoming = next(&starts);
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(upcoming.asked(), CancelReason::TimedOut);
    assert_eq!(next(&events), "w1 is not up (worker w1 did not come up within 30s): - DEAD");
    assert_eq!((pool.stats().total_workers, pool.stats().abandoned_threads), (0, 1));
    drop(upcoming);
    until(|| pool.stats().abandoned_threads == 0);
    assert_eq!((pool.stats().total_workers, world.row("w1")), (0, Some(WorkerStatus::Dead)));
    let handle = pool.enqueue(NewUnit::new("b"), "go").unwrap();
    drop(next(&starts));
    assert_eq!(stage.next().worker, "w2");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn only_what_may_be_done_twice_is_done_again_after_a_crash() {
    // 001-F52, 001-F53
    let world = World::new();
    let (part, stage) = stage();
    let policy = RetryPolicy::immediate().after_crash(AfterCrash::OnlyIdempotent);
    let pool = world.pool(part).retry(policy).up();
    for (number, end) in [panic as fn(Played), crash].into_iter().enumerate() {
        let once = pool.submit_work_unit(NewUnit::new(format!("once {number}")), "go").unwrap();
        stage.next().fail(ExecuteError::retry("an ordinary failure"));
        let call = stage.next();
        assert_eq!(call.attempt_number, 2);
        end(call);
        let unit = once.wait().unwrap();
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Failed, 2));

        let again = pool.submit_work_unit(NewUnit::new(format!("again {number}")).idempotent(), "go").unwrap();
        end(stage.next());
        stage.next().succeed("at last");
        let unit = again.wait().unwrap();
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Completed, 2));
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

/// A pool without workers, which come up on demand and at the hands of the test.
fn on_demand(world: &World) -> (WorkPoolBuilder, super::Stage, Receiver<super::stage::Upcoming>) {
    let (part, stage, starts) = stage_and_starts();
    (world.pool(part).min_workers(0).max_workers(1), stage, starts)
}

#[test]
fn a_unit_whose_worker_does_not_come_up_is_given_back_and_tried_later() {
    // 001-F52
    let world = World::new();
    let (builder, stage, starts) = on_demand(&world);
    let (builder, events) = tells_workers(builder.retry(RetryPolicy::fixed(Duration::from_secs(9))), &world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    for failed in 1..=3 {
        let upcoming = next(&starts);
        assert_eq!(pool.stats().busy_workers, 1);
        upcoming.fail(ExecuteError::give_up("no"));
        assert!(next(&events).contains("is not up"));
        assert!(next(&events).contains("crashed (executor: no)"));
        assert_eq!(next(&events), format!("w{failed} ended, true: - DEAD"));
        until(|| pool.stats().pending == 1);
        assert_eq!((world.unit("a").status, world.unit("a").attempts_used), (UnitStatus::Pending, 0));
        world.clock.advance(Duration::from_millis(8_999));
        assert_quiet(&starts);
        world.clock.advance(Duration::from_millis(1));
    }
    drop(next(&starts));
    stage.next().succeed("at last");
    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.attempts_used, unit.attempt_count), (UnitStatus::Completed, 1, 4));
    let outcomes: Vec<Outcome> = world.attempts("a").iter().filter_map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Outcome::Released, Outcome::Released, Outcome::Released, Outcome::Completed]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_unit_whose_worker_does_not_come_up_in_time_is_taken_from_it() {
    // 001-F34, 001-F84
    let world = World::new();
    let (builder, stage, starts) = on_demand(&world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let hanging = next(&starts);
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(hanging.asked(), CancelReason::TimedOut);
    let upcoming = next(&starts);
    assert_ne!(upcoming.worker, hanging.worker);
    let stats = pool.stats();
    assert_eq!((stats.abandoned_threads, stats.total_workers, stats.busy_workers), (1, 1, 1));
    drop(hanging);
    until(|| pool.stats().abandoned_threads == 0);
    assert!(stage.is_empty(), "it has no part in it any more");
    drop(upcoming);
    let call = stage.next();
    assert_eq!(call.attempt_number, 2);
    call.succeed("at last");
    assert_eq!(handle.wait().unwrap().attempts_used, 1);
    assert_eq!(world.row("w1"), Some(WorkerStatus::Dead));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_unit_whose_worker_comes_up_too_late_is_not_lost_where_no_thread_may_be_left_behind() {
    // 001-F84
    let ends: [fn(super::stage::Upcoming); 2] = [drop, |upcoming| upcoming.fail(ExecuteError::retry("no"))];
    for end in ends {
        let world = World::new();
        let (part, stage, starts) = stage_and_starts();
        let (faulty, builder) = world.faulty_pool(part);
        let pool = builder.min_workers(0).max_workers(1).max_abandoned(0).up();
        let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
        let upcoming = next(&starts);
        let gate = Gate::closed();
        faulty.on(Verb::Release, Fault::Gate(gate.clone()));
        world.clock.advance(Duration::from_secs(30));
        gate.wait_for(1);
        // It comes back while somebody else gives its unit back.
        end(upcoming);
        assert_quiet(&stage.calls);
        gate.open();
        drop(next(&starts));
        let call = stage.next();
        assert_eq!(call.attempt_number, 2);
        call.succeed("at last");
        assert_eq!(handle.wait().unwrap().attempts_used, 1);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_unit_is_not_lost_whose_worker_is_given_up_before_it_gets_it() {
    // 001-F83, 001-F84
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.min_workers(0).max_workers(1).up();
    let gate = Gate::closed();
    faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
    let handle = thread::scope(|threads| {
        let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap());
        gate.wait_for(1);
        let hanging = next(&starts);
        world.clock.advance(Duration::from_secs(30));
        assert_eq!(hanging.asked(), CancelReason::TimedOut);
        until(|| pool.stats().total_workers == 0);
        gate.open();
        submitting.join().unwrap()
    });
    drop(next(&starts));
    let call = stage.next();
    assert_eq!((call.worker.as_str(), call.attempt_number), ("w2", 2));
    drop(call);
    assert_eq!(handle.wait().unwrap().attempts_used, 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_worker_that_is_given_up_before_it_gets_its_unit_is_dead_in_the_records() {
    // 001-F83
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
        gate.open();
        submitting.join().unwrap();
    });
    drop(next(&starts));
    drop(stage.next());
    pool.wait_for_completion();
    assert_eq!(world.row("w1"), Some(WorkerStatus::Dead));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_worker_that_cannot_come_up_for_a_reason_that_holds_for_all_holds_the_pool() {
    let world = World::new();
    let (builder, stage, starts) = on_demand(&world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    next(&starts).fail(ExecuteError::hold("no program").kind("missing"));
    assert_eq!(pool.wait_for_completion(), Completion::Blocked("missing: no program".to_owned()));
    assert_eq!((world.unit("a").status, world.unit("a").attempts_used), (UnitStatus::Pending, 0));
    assert_quiet(&starts);
    pool.resume();
    drop(next(&starts));
    stage.next().succeed("at last");
    assert_eq!(handle.wait().unwrap().attempts_used, 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}

#[test]
fn a_worker_that_got_no_unit_and_does_not_come_up_takes_none() {
    // 001-F57
    let world = World::new();
    let (builder, stage, starts) = on_demand(&world);
    let pool = builder.up();
    pool.submit_work_unit(NewUnit::new("done"), "go").unwrap();
    drop(next(&starts));
    drop(stage.next());
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();

    for is_failed_first in [false, true] {
        let (part, stage, starts) = stage_and_starts();
        let (faulty, builder) = world.faulty_pool(part);
        let pool = builder.min_workers(0).max_workers(1).up();
        let gate = Gate::closed();
        faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
        thread::scope(|threads| {
            let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new("done"), "go").unwrap());
            gate.wait_for(1);
            let upcoming = next(&starts);
            let fail = || upcoming.fail(ExecuteError::retry("no"));
            if is_failed_first {
                fail();
                // Its thread waits for the unit by then, or is about to.
                assert_quiet(&stage.calls);
                gate.open();
                assert!(submitting.join().unwrap().is_done());
            } else {
                gate.open();
                assert!(submitting.join().unwrap().is_done());
                fail();
            }
        });
        until(|| pool.stats().total_workers == 0);
        let id = format!("after {is_failed_first}");
        let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        drop(next(&starts));
        let call = stage.next();
        assert_eq!(call.attempt_number, 1);
        drop(call);
        assert_eq!(handle.wait().unwrap().attempt_count, 1);
        pool.stop(Stop::Drain).unwrap();
    }
    world.assert_clean_after_crashes();
}

#[test]
fn however_many_crash_there_are_never_more_workers_than_may_be() {
    // 001-F80, 001-F83
    struct Guard(Arc<AtomicUsize>);
    impl Drop for Guard {
        fn drop(&mut self) {
            self.0.fetch_sub(1, SeqCst);
        }
    }
    for scaling in [Scaling::OnDemand, Scaling::Fixed, Scaling::Threshold { queued: 2, idle: Duration::from_secs(60) }]
    {
        let world = World::new();
        let (running, calls) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0));
        let executor = {
            let running = Arc::clone(&running);
            move |_: &Call<'_>| {
                assert!(running.fetch_add(1, SeqCst) < 3, "too many at a time");
                let _guard = Guard(Arc::clone(&running));
                thread::yield_now();
                match calls.fetch_add(1, SeqCst) % 4 {
                    0 => panic!("it fell"),
                    1 => Err(ExecuteError::broken("it fell")),
                    2 => Err(ExecuteError::retry("again")),
                    _ => Ok(WorkResult::empty()),
                }
            }
        };
        let pool = world.pool(executor).scaling(scaling).max_workers(3).up();
        for number in 0..60 {
            pool.enqueue(NewUnit::new(number.to_string()).max_retries(50), "go").unwrap();
        }
        while pool.wait_for_completion_timeout(Duration::from_millis(1)) != Completion::Done {
            let stats = pool.stats();
            assert!(stats.total_workers <= 3, "{stats:?}");
            let parts = stats.starting_workers + stats.idle_workers + stats.busy_workers + stats.tainted_workers;
            assert!(parts <= stats.total_workers, "{stats:?}");
        }
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_eq!((stats.completed, stats.failed, stats.lost), (60, 0, 0), "{scaling:?}");
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_unit_that_is_cancelled_while_its_worker_comes_up_is_taken_from_it() {
    // 001-F84
    let world = World::new();
    let (builder, stage, starts) = on_demand(&world);
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let hanging = next(&starts);
    handle.cancel(workcrew::repository::By::whom("a test")).unwrap();
    world.clock.advance(Duration::from_millis(1_500));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    until(|| pool.stats().total_workers == 0);
    assert_eq!(pool.stats().abandoned_threads, 1);
    // That it does not come up in time either is no news.
    world.clock.advance(Duration::from_millis(28_500));
    let well = pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    drop(next(&starts));
    drop(stage.next());
    well.wait().unwrap();
    assert_eq!(pool.stats().abandoned_threads, 1);
    drop(hanging);
    until(|| pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty());
    world.assert_clean_after_crashes();
}

#[test]
fn stopped_while_a_worker_comes_up_for_a_unit_the_unit_is_given_back() {
    // 001-F26
    for stop in [Stop::Drain, Stop::Cancel { grace: Duration::from_secs(3_600) }, Stop::Now] {
        let world = World::new();
        let (builder, stage, starts) = on_demand(&world);
        let pool = builder.up();
        let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
        let hanging = next(&starts);
        thread::scope(|threads| {
            let stopping = threads.spawn(|| pool.stop(stop));
            assert_eq!(hanging.asked(), CancelReason::Shutdown);
            if stop != Stop::Now {
                world.clock.advance(Duration::from_millis(1_500));
            }
            assert!(stopping.join().unwrap().unwrap().is_final, "{stop}");
        });
        assert!(matches!(handle.wait(), Err(WaitError::LeftPending)), "{stop}");
        let unit = world.unit("a");
        assert_eq!((unit.status, unit.attempts_used), (UnitStatus::Pending, 0), "{stop}");
        assert_eq!(pool.stats().abandoned_threads, 1);
        drop(hanging);
        until(|| pool.stats().abandoned_threads == 0);
        drop(pool);
        until(|| stage.is_gone());
        assert!(stage.is_empty());
        world.assert_clean_after_crashes();
    }
}

#[test]
fn a_worker_that_was_brought_up_again_is_as_young_as_a_new_one() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(2).taint_for(Duration::from_secs(10));
    let pool = builder.max_worker_age(Duration::from_secs(100)).up();
    world.clock.advance(Duration::from_secs(50));
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    crash(stage.next());
    handle.wait().unwrap();
    until(|| pool.workers()[0].unit_id.is_none());
    world.clock.advance(Duration::from_secs(10));
    until(|| pool.workers()[0].status == WorkerStatus::Ready);
    assert_eq!(pool.workers()[0].id.as_str(), "w1");
    world.clock.advance(Duration::from_secs(99));
    thread::park_timeout(Duration::from_millis(10));
    assert_eq!(pool.workers()[0].id.as_str(), "w1");
    world.clock.advance(Duration::from_secs(1));
    until(|| pool.workers().iter().all(|worker| worker.id.as_str() == "w2") && pool.stats().idle_workers == 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean_after_crashes();
}
