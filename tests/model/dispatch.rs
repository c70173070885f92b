//! Units in line, workers that come up, crash and are replaced, and pools that stop meanwhile.

use std::sync::Arc;
use std::time::Duration;

use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::thread;
use workcrew::executor::CancelToken;
use workcrew::{
    Available, Call, Completion, ExecuteError, Executor, NewUnit, Refusal, Scaling, Stop, UnitHandle, UnitStatus,
    WaitError, WorkPool, WorkResult, WorkerId,
};

use crate::checker::check;
use crate::world::{
    Answer, Execute, LONG, SCALINGS, STOPS, Way, World, crashes_first, deaf, fails_first, join_all, one_of, patient,
    quick, waiter,
};

/// How a worker comes up, or the pool itself.
type Start = fn(&CancelToken) -> Result<(), ExecuteError>;

/// How somebody waits for a pool to come up.
type Wait = fn(&WorkPool) -> Result<(), WaitError>;

fn at_once(_: &CancelToken) -> Result<(), ExecuteError> {
    Ok(())
}

fn slowly(_: &CancelToken) -> Result<(), ExecuteError> {
    thread::yield_now();
    Ok(())
}

fn never(_: &CancelToken) -> Result<(), ExecuteError> {
    Err(ExecuteError::give_up("there is no such program"))
}

/// Only when it is asked to give up, and then it does or does not.
fn when_asked(cancel: &CancelToken) -> Result<(), ExecuteError> {
    cancel.wait_timeout(LONG);
    one_of(&[Ok(()), Err("asked to stop")]).map_err(ExecuteError::retry)
}

/// An executor whose first worker comes up in one way and the others in another.
struct Crew {
    execute: Execute,
    first: Start,
    others: Start,
}

impl Executor for Crew {
    fn execute(&self, call: &Call<'_>) -> Answer {
        (self.execute)(call)
    }

    fn start_worker(&self, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
        let start = if worker_id.as_str() == "w1" { self.first } else { self.others };
        start(cancel)
    }
}

#[test]
fn a_stop_meets_units_in_line() {
    check(|| {
        let world = World::new();
        let stop = one_of(&STOPS);
        let execute = if stop == Stop::Drain { one_of(&[quick as Execute, deaf]) } else { patient };
        let builder = world.pool(execute).max_workers(1).max_queue_size(one_of(&[1, 2])).scaling(one_of(&SCALINGS));
        let pool = world.start(builder);
        let submitters = [world.submitter(&pool, "a", 2, Way::Line), world.submitter(&pool, "b", 2, Way::Line)];
        let waiting = waiter(&pool, WorkPool::wait_for_completion);
        let summary = pool.stop(stop).unwrap();
        let handles = join_all(submitters);
        let completion = waiting.join().unwrap();
        assert!(matches!(completion, Completion::Done | Completion::Stopped), "{completion:?}");
        world.assert_ended(&pool, &summary, &handles);
    });
}

#[test]
fn a_stop_meets_a_scheduler_that_takes_its_time() {
    check(|| {
        let world = World::new();
        let stop = one_of(&STOPS);
        let execute = if stop == Stop::Drain { one_of(&[quick as Execute, deaf]) } else { patient };
        let slow = |available: &[Available]| {
            thread::yield_now();
            one_of(&[None, Some(0), Some(available.len() - 1)])
        };
        let (workers, capacity) = (one_of(&[1, 2]), one_of(&[1, 2]));
        world.watch.expect_at_most(workers, capacity);
        let builder = world.pool(execute).max_workers(workers).worker_capacity(capacity);
        let pool = world.start(builder.scaling(one_of(&SCALINGS)).scheduler(slow));
        let submitters = [world.submitter(&pool, "a", 2, Way::Line), world.submitter(&pool, "b", 2, Way::Line)];
        let summary = pool.stop(stop).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn a_cancel_meets_units_in_line() {
    check(|| {
        let world = World::new();
        let execute = one_of(&[quick as Execute, deaf, fails_first]);
        let builder = world.pool(execute).max_workers(1).max_queue_size(one_of(&[1, 2])).scaling(one_of(&SCALINGS));
        let pool = world.start(builder);
        let submitters = [world.submitter(&pool, "a", 2, Way::Line), world.submitter(&pool, "b", 1, Way::Line)];
        let canceller = waiter(&pool, {
            let world = world.clone();
            move |pool| (world.cancel(pool, "a-0"), world.cancel(pool, "b-0"))
        });
        let handles = join_all(submitters);
        canceller.join().unwrap();
        world.assert_all_done(&pool, &handles);
    });
}

#[test]
fn units_in_line_are_executed_once_beside_those_who_wait_for_a_place() {
    check(|| {
        let world = World::new();
        let builder = world.pool(one_of(&[quick as Execute, deaf])).max_workers(one_of(&[1, 2]));
        let pool = world.start(builder.max_queue_size(4).scaling(one_of(&SCALINGS)));
        let submitters = [
            world.submitter(&pool, "a", 2, Way::Line),
            world.submitter(&pool, "b", 1, Way::Line),
            world.submitter(&pool, "c", 1, one_of(&[Way::Waiting, Way::Permit])),
        ];
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 4);
        world.assert_all_done(&pool, &handles);
        let stats = pool.stats();
        assert_eq!((stats.completed, stats.attempts), (4, 4), "{stats:?}");
    });
}

#[test]
fn a_unit_that_is_enqueued_and_submitted_at_once_is_one_unit() {
    check(|| {
        let world = World::new();
        let executions = Arc::new(AtomicUsize::new(0));
        let is_stopped = one_of(&[true, false]);
        let builder = world.pool({
            let executions = Arc::clone(&executions);
            move |_: &Call<'_>| {
                executions.fetch_add(1, Ordering::SeqCst);
                Ok(WorkResult::text("done"))
            }
        });
        let pool = world.start(builder.max_workers(one_of(&[1, 2])).max_queue_size(2).scaling(one_of(&SCALINGS)));
        let done = Arc::new(AtomicUsize::new(0));
        let ways = [Way::Line, one_of(&[Way::Line, Way::Waiting])];
        let submitting = ways.map(|way| {
            let done = Arc::clone(&done);
            waiter(&pool, move |pool| {
                if way == Way::Waiting && !pool.wait_for_available_slot() {
                    return None;
                }
                let unit = NewUnit::new("a");
                let submitted =
                    if way == Way::Line { pool.enqueue(unit, "go") } else { pool.submit_work_unit(unit, "go") };
                let handle = match submitted {
                    Ok(handle) => Some(handle),
                    Err(error) if is_stopped && matches!(error.reason, Refusal::Stopped) => None,
                    Err(error) => panic!("{error}"),
                };
                let ended = handle.as_ref().map(UnitHandle::wait);
                let is_completed = matches!(&ended, Some(Ok(unit)) if unit.status == UnitStatus::Completed);
                assert!(is_stopped || is_completed, "{ended:?}");
                done.fetch_add(1, Ordering::SeqCst);
                handle
            })
        });
        if !is_stopped {
            // One that sees it run and then finds it gone looks again, after a while.
            world.pass_time_until(|| done.load(Ordering::SeqCst) == 2);
            assert_eq!(pool.wait_for_completion(), Completion::Done);
        }
        let summary = pool.stop(one_of(&[Stop::Drain, Stop::Cancel { grace: LONG }])).unwrap();
        let handles: Vec<_> = submitting.into_iter().filter_map(|thread| thread.join().unwrap()).collect();
        world.assert_ended(&pool, &summary, &handles[..handles.len().min(1)]);
        for handle in &handles {
            world.assert_resolved(handle);
        }
        let is_completed = !handles.is_empty() && world.status("a") == UnitStatus::Completed;
        assert_eq!(executions.load(Ordering::SeqCst), usize::from(is_completed));
    });
}

#[test]
fn workers_that_crash_are_replaced_and_everything_is_done() {
    check(|| {
        let world = World::new();
        let rest = one_of(&[Duration::ZERO, LONG / 10_000]);
        let builder = world.pool(crashes_first).taint_for(rest).max_workers(one_of(&[1, 2])).scaling(one_of(&SCALINGS));
        let pool = world.start(builder);
        let submitters = [
            world.submitter(&pool, "a", 2, Way::Line),
            world.submitter(&pool, "b", 1, one_of(&[Way::Waiting, Way::Permit])),
        ];
        if !rest.is_zero() {
            // They come up again by themselves, after a while.
            world.pass_time_until(|| pool.stats().completed == 3);
        }
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 3);
        world.assert_all_done(&pool, &handles);
        let stats = pool.stats();
        assert_eq!((stats.completed, stats.attempts, stats.retried), (3, 6, 3), "{stats:?}");
    });
}

#[test]
fn a_stop_meets_workers_that_crash() {
    check(|| {
        let world = World::new();
        let builder = world.pool(crashes_first).taint_for(one_of(&[Duration::ZERO, LONG]));
        let pool = world.start(builder.max_workers(one_of(&[1, 2])).scaling(one_of(&SCALINGS)));
        let submitters = [world.submitter(&pool, "a", 2, Way::Line), world.submitter(&pool, "b", 1, Way::Waiting)];
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn a_stop_meets_a_pool_that_comes_up() {
    check(|| {
        let world = World::new();
        let start = |among: &[Start]| one_of(among);
        let ways = [at_once as Start, slowly, never, when_asked];
        let crew = Crew { execute: quick, first: start(&ways), others: start(&ways) };
        let hook = start(&ways);
        let mut builder = world.staffed(crew).max_workers(2).scaling(one_of(&SCALINGS));
        if one_of(&[true, false]) {
            builder = builder.init_hook(hook);
        }
        let pool =
            Arc::new(builder.startup_batch(one_of(&[1, 2])).startup_batch_delay(Duration::ZERO).start().unwrap());
        let waiters: [Wait; 4] = [
            WorkPool::await_ready,
            WorkPool::await_ready,
            WorkPool::await_init_complete,
            WorkPool::await_init_complete,
        ];
        let waiting = waiters.map(|wait| waiter(&pool, wait));
        let submitters = [world.submitter(&pool, "a", 1, Way::Line), world.submitter(&pool, "b", 1, Way::Waiting)];
        let summary = pool.stop(one_of(&STOPS)).unwrap();
        for thread in waiting {
            let answer = thread.join().unwrap();
            assert!(matches!(answer, Ok(()) | Err(WaitError::Stopped | WaitError::InitFailed(_))), "{answer:?}");
        }
        assert_eq!(pool.stats().init_waiters, 0);
        world.assert_ended(&pool, &summary, &join_all(submitters));
    });
}

#[test]
fn whoever_waits_for_a_pool_to_come_up_hears_whether_it_does() {
    check(|| {
        let world = World::new();
        let [fails_hook, fails_first, fail_others] =
            [one_of(&[true, false]), one_of(&[true, false]), one_of(&[true, false])];
        let start = |fails: bool| if fails { never as Start } else { slowly };
        let (hook, first, others) = (start(fails_hook), start(fails_first), start(fail_others));
        let fails = fails_hook || (fails_first && fail_others);
        let builder = world.staffed(Crew { execute: quick, first, others }).max_workers(2).scaling(Scaling::Fixed);
        let builder = builder.init_hook(hook).startup_batch(one_of(&[1, 2])).startup_batch_delay(Duration::ZERO);
        let pool = Arc::new(builder.start().unwrap());
        let waiters: [Wait; 4] = [
            WorkPool::await_ready,
            WorkPool::await_ready,
            WorkPool::await_init_complete,
            WorkPool::await_init_complete,
        ];
        let waiting = waiters.map(|wait| waiter(&pool, wait));
        let submitters = [world.submitter(&pool, "a", 2, Way::Line), world.submitter(&pool, "b", 1, Way::Waiting)];
        for thread in waiting {
            match thread.join().unwrap() {
                Ok(()) => assert!(!fails),
                Err(error) => assert!(fails && matches!(error, WaitError::InitFailed(_)), "{error}"),
            }
        }
        let handles = join_all(submitters);
        if fails {
            assert_eq!(pool.wait_for_completion(), Completion::Stopped);
            let summary = pool.stop(one_of(&STOPS)).unwrap();
            world.assert_ended(&pool, &summary, &handles);
        } else {
            assert_eq!(handles.len(), 3);
            world.assert_all_done(&pool, &handles);
        }
    });
}

#[test]
fn more_workers_come_while_units_in_line_are_done() {
    check(|| {
        let world = World::new();
        let scaling = Scaling::Threshold { queued: one_of(&[1, 2]), idle: LONG };
        let crew = Crew { execute: one_of(&[quick as Execute, deaf, fails_first]), first: slowly, others: slowly };
        let builder = world.staffed(crew).min_workers(one_of(&[0, 1])).max_workers(2).scaling(scaling);
        let pool = world.start(builder);
        let submitters = [
            world.submitter(&pool, "a", 2, Way::Line),
            world.submitter(&pool, "b", 1, Way::Line),
            world.submitter(&pool, "c", 1, one_of(&[Way::Waiting, Way::Permit])),
        ];
        let is_stopped = one_of(&[true, false]);
        let summary = is_stopped.then(|| pool.stop(one_of(&STOPS)).unwrap());
        let handles = join_all(submitters);
        match summary {
            Some(summary) => world.assert_ended(&pool, &summary, &handles),
            None => {
                assert_eq!(handles.len(), 4);
                world.assert_all_done(&pool, &handles);
            }
        }
    });
}

#[test]
fn a_new_limit_meets_a_pool_that_comes_up() {
    check(|| {
        let world = World::new();
        let scaling = one_of(&SCALINGS);
        let crew = Crew { execute: one_of(&[quick as Execute, fails_first]), first: slowly, others: at_once };
        let pool = Arc::new(world.staffed(crew).max_workers(2).scaling(scaling).start().unwrap());
        let waiting = waiter(&pool, WorkPool::await_init_complete);
        let submitters = [
            world.submitter(&pool, "a", 2, Way::Line),
            world.submitter(&pool, "b", 1, one_of(&[Way::Line, Way::Waiting])),
        ];
        for max_workers in [1, one_of(&[1, 3]), 2] {
            pool.set_max_workers(max_workers).unwrap();
        }
        waiting.join().unwrap().unwrap();
        let handles = join_all(submitters);
        assert_eq!(handles.len(), 3);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        while pool.stats().total_workers > 2 || (scaling == Scaling::Fixed && pool.stats().idle_workers < 2) {
            // Who is one too many is on its way out, and who is missing is on its way up: no time need pass for that.
            thread::yield_now();
        }
        world.assert_all_done(&pool, &handles);
    });
}
