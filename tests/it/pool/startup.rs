//! Coming up: the hook, then workers in batches, and whoever waits for that.

use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use workcrew::executor::CancelReason;
use workcrew::testing::Gate;
use workcrew::{
    Archive, CancelToken, Completion, ExecuteError, InitHook, NewUnit, NoInit, PoolPhase, Refusal, Scaling, StartError,
    Stop, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult, WorkerStatus,
};

use super::stage::{Upcoming, stage_and_starts};
use super::{PATIENCE, Stage, World, assert_quiet, next, stage, until};

const STOPS: [Stop; 3] = [Stop::Drain, Stop::Cancel { grace: Duration::from_secs(3_600) }, Stop::Now];

/// A pool that starts so many workers, each brought up by the test.
fn fixed(world: &World, workers: usize) -> (WorkPoolBuilder, Stage, Receiver<Upcoming>) {
    let (part, stage, starts) = stage_and_starts();
    (world.pool(part).scaling(Scaling::Fixed).max_workers(workers), stage, starts)
}

/// The next so many workers on their way up.
fn next_starts(starts: &Receiver<Upcoming>, count: usize) -> Vec<Upcoming> {
    (0..count).map(|_| next(starts)).collect()
}

/// The first worker of the next batch, which comes after the pause and no earlier.
fn after_pause(world: &World, starts: &Receiver<Upcoming>) -> Upcoming {
    assert_quiet(starts);
    world.clock.advance(Duration::from_millis(499));
    assert_quiet(starts);
    loop {
        world.clock.advance(Duration::from_millis(1));
        if let Ok(upcoming) = starts.recv_timeout(Duration::from_millis(10)) {
            return upcoming;
        }
        // The pause begins when the pool has seen that all are up, and nobody can see that.
        world.clock.advance(Duration::from_millis(499));
    }
}

/// Whoever wants something of the pool hears at once why there is none, and nothing is left of it.
fn assert_failed(world: &World, pool: WorkPool, reason: &str) {
    assert_eq!(pool.stats().init_failure.as_deref(), Some(reason));
    assert_eq!(pool.stats().phase, PoolPhase::InitFailed);
    assert_eq!(pool.init_time(), None);
    let told = WaitError::InitFailed(reason.to_owned()).to_string();
    assert_eq!(pool.await_ready().unwrap_err().to_string(), told);
    assert_eq!(pool.await_init_complete().unwrap_err().to_string(), told);
    assert_eq!(pool.await_ready_timeout(PATIENCE).unwrap_err().to_string(), told);
    assert_eq!(pool.acquire_slot().unwrap_err().to_string(), told);
    assert!(!pool.wait_for_available_slot());
    assert_eq!(pool.wait_for_completion(), Completion::Stopped);
    let refused = pool.submit_work_unit(NewUnit::new("s"), "go").unwrap_err();
    assert!(matches!(&refused.reason, Refusal::InitFailed(why) if why == reason), "{refused}");
    let refused = pool.enqueue(NewUnit::new("e"), "go").unwrap_err();
    assert!(matches!(&refused.reason, Refusal::InitFailed(why) if why == reason), "{refused}");
    assert!(matches!(pool.start(), Err(StartError::Phase(PoolPhase::InitFailed))));
    // It ends by itself.
    until(|| world.repository.owners().unwrap().iter().all(|owner| owner.ended_at.is_some()));
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    assert_eq!(pool.stats().phase, PoolPhase::InitFailed);
    drop(pool);
}

#[test]
fn the_hook_is_called_before_the_first_worker_and_nobody_waits_for_it() {
    // 001-F4, 001-F5, 001-F16, 001-F23, 001-F24, 001-F25, 001-F30, 001-F31, 001-F40
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (gate, (tell, called)) = (Gate::closed(), unbounded());
    let hook = {
        let gate = gate.clone();
        move |_: &workcrew::executor::CancelToken| {
            tell.send(thread::current().id()).unwrap();
            gate.pass();
            Ok(())
        }
    };
    let pool = world.pool(part).init_hook(hook).start().unwrap();
    assert_ne!(next(&called), thread::current().id());
    assert!(matches!(pool.start(), Err(StartError::Phase(PoolPhase::Initializing))));
    assert_quiet(&starts);
    let stats = pool.stats();
    assert_eq!((stats.phase, stats.total_workers), (PoolPhase::Initializing, 0));
    assert_eq!(pool.init_time(), None);
    let refused = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Initializing)));
    gate.open();
    let upcoming = next(&starts);
    let stats = pool.stats();
    assert_eq!((stats.phase, stats.total_workers, stats.starting_workers), (PoolPhase::Initializing, 1, 1));
    assert_eq!(pool.workers()[0].status, WorkerStatus::Starting);
    drop(upcoming);
    pool.await_init_complete().unwrap();
    assert_eq!(pool.stats().phase, PoolPhase::Running);
    assert!(pool.init_time().is_some());
    pool.submit_work_unit(*refused.unit, workcrew::Prompt::OfUnit).unwrap();
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    assert!(called.is_empty(), "once");
    world.assert_clean();
}

#[test]
fn a_hook_can_be_a_type_of_its_own() {
    // 001-F92
    struct Telling(crossbeam_channel::Sender<String>);
    impl InitHook for Telling {
        fn init(self: Box<Self>, _: &CancelToken) -> Result<(), ExecuteError> {
            self.0.send(thread::current().name().unwrap_or_default().to_owned())?;
            Ok(())
        }
    }
    let world = World::new();
    let (tell, told) = unbounded();
    let hooks: [fn(WorkPoolBuilder, Telling) -> WorkPoolBuilder; 3] = [
        |builder, hook| builder.init_with(hook),
        |builder, hook| builder.init_with(move |cancel: &CancelToken| Box::new(hook).init(cancel)),
        |builder, _| builder.init_with(NoInit),
    ];
    for with_hook in hooks {
        let (part, _stage, starts) = stage_and_starts();
        let pool = with_hook(world.pool(part), Telling(tell.clone())).start().unwrap();
        drop(next(&starts));
        pool.await_init_complete().unwrap();
        pool.stop(Stop::Drain).unwrap();
    }
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["workcrew-init", "workcrew-init"]);
    world.assert_clean();
}

#[test]
fn a_hook_that_fails_or_panics_fails_the_pool() {
    // 001-F22, 001-F81
    type Hook = fn() -> Result<(), ExecuteError>;
    let hooks: [(Hook, &str); 3] = [
        (|| Err(ExecuteError::give_up("the server is down").kind("server")), "init_hook: server: the server is down"),
        (|| panic!("oops"), "init_hook: panic: oops"),
        (|| Err(ExecuteError::hold("no key")), "init_hook: executor: no key"),
    ];
    for (hook, reason) in hooks {
        let world = World::new();
        let (part, stage, starts) = stage_and_starts();
        let pool = world.pool(part).init_hook(move |_| hook()).start().unwrap();
        assert!(matches!(pool.await_init_complete(), Err(WaitError::InitFailed(_))));
        assert_failed(&world, pool, reason);
        assert!(stage.is_gone() && starts.is_empty());
        world.assert_clean();
    }
}

#[test]
fn workers_come_up_in_batches_with_a_pause_between_them() {
    // 001-F32, 001-F33, 001-F25
    let world = World::new();
    let (builder, _stage, starts) = fixed(&world, 25);
    let pool = builder.start().unwrap();
    let mut up = 0;
    let mut upcoming = next_starts(&starts, 1);
    for batch in [10, 10, 5] {
        upcoming.extend(next_starts(&starts, batch - 1));
        assert_quiet(&starts);
        let last = upcoming.pop();
        upcoming.clear();
        until(|| pool.stats().idle_workers == up + batch - 1);
        world.clock.advance(Duration::from_secs(1));
        assert_quiet(&starts);
        assert_eq!(pool.stats().phase, PoolPhase::Initializing, "the last of a batch counts");
        drop(last);
        up += batch;
        if up < 25 {
            until(|| pool.stats().idle_workers == up);
            upcoming.push(after_pause(&world, &starts));
        }
    }
    pool.await_init_complete().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.idle_workers, stats.free_slots, stats.target_workers), (25, 25, 25));
    pool.stop(Stop::Drain).unwrap();
    assert!(starts.is_empty());
    world.assert_clean();
}

#[test]
fn without_a_pause_one_batch_follows_the_other() {
    let world = World::new();
    let (builder, _stage, starts) = fixed(&world, 3);
    let pool = builder.startup_batch(1).startup_batch_delay(Duration::ZERO).start().unwrap();
    for worker in ["w1", "w2", "w3"] {
        assert_quiet_but(&starts, worker);
    }
    pool.await_init_complete().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// One worker is on its way up, and no other.
fn assert_quiet_but(starts: &Receiver<Upcoming>, worker: &str) {
    let upcoming = next(starts);
    assert_eq!(upcoming.worker, worker);
    assert_quiet(starts);
}

#[test]
fn the_first_worker_is_enough_to_be_ready_and_all_are_needed_to_be_complete() {
    // 001-F21, 001-F36
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 2);
    let pool = builder.start().unwrap();
    let [first, second] = next_starts(&starts, 2).try_into().ok().unwrap();
    assert!(matches!(pool.await_ready_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
    assert!(matches!(pool.await_init_complete_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
    assert_eq!(pool.stats().init_waiters, 0);
    thread::scope(|threads| {
        let ready = threads.spawn(|| pool.await_ready());
        let complete = threads.spawn(|| pool.await_init_complete());
        let place = threads.spawn(|| pool.wait_for_available_slot());
        until(|| pool.stats().init_waiters == 2 && pool.stats().slot_waiters == 1);
        drop(first);
        ready.join().unwrap().unwrap();
        pool.await_ready().unwrap();
        assert!(matches!(pool.await_init_complete_timeout(Duration::from_millis(1)), Err(WaitError::TimedOut)));
        let refused = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
        assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Initializing)));
        assert!(!complete.is_finished() && !place.is_finished());
        drop(second);
        complete.join().unwrap().unwrap();
        assert!(place.join().unwrap());
    });
    pool.await_ready_timeout(Duration::ZERO).unwrap();
    pool.await_init_complete_timeout(Duration::ZERO).unwrap();
    pool.stop(Stop::Drain).unwrap();
    assert!(matches!(pool.await_ready(), Err(WaitError::Stopped)));
    assert!(matches!(pool.await_init_complete(), Err(WaitError::Stopped)));
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn before_it_is_started_nobody_waits() {
    let world = World::new();
    let (part, _stage) = stage();
    let pool = world.pool(part).build().unwrap();
    assert!(matches!(pool.await_ready(), Err(WaitError::Stopped)));
    assert!(matches!(pool.await_init_complete(), Err(WaitError::Stopped)));
    assert!(matches!(pool.await_init_complete_timeout(PATIENCE), Err(WaitError::Stopped)));
    assert_eq!(pool.init_time(), None);
}

#[test]
fn some_workers_are_enough() {
    // 001-F35, 001-F75, 001-F76, 001-F38
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 5);
    let pool = builder.start().unwrap();
    let mut upcoming = next_starts(&starts, 5);
    upcoming.pop().unwrap().fail(ExecuteError::give_up("no"));
    upcoming.pop().unwrap().panic("no");
    drop(upcoming);
    pool.await_init_complete().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.phase, stats.idle_workers, stats.total_workers), (PoolPhase::Running, 3, 3));
    assert_eq!((stats.free_slots, stats.target_workers, stats.init_failure), (3, 5, None));
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    drop(stage.next());
    assert_quiet(&starts);
    world.clock.advance(Duration::from_millis(59_999));
    assert_quiet(&starts);
    world.clock.advance(Duration::from_millis(1));
    drop(next_starts(&starts, 2));
    until(|| pool.stats().idle_workers == 5);
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn without_any_worker_the_pool_does_not_start() {
    // 001-F22, 001-F27
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 3);
    let pool = builder.startup_batch(2).start().unwrap();
    let waiting = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    for upcoming in next_starts(&starts, 2) {
        upcoming.fail(ExecuteError::give_up("no"));
    }
    until(|| pool.stats().total_workers == 0);
    assert_eq!(pool.stats().phase, PoolPhase::Initializing, "there is another batch");
    after_pause(&world, &starts).fail(ExecuteError::retry("no program").kind("missing"));
    assert!(matches!(pool.await_ready(), Err(WaitError::InitFailed(_))));
    assert!(matches!(waiting.wait(), Err(WaitError::LeftPending)));
    assert_failed(&world, pool, "no_workers_started: worker w3: missing: no program");
    assert_eq!(world.status("a"), UnitStatus::Pending);
    assert!(stage.is_gone() && starts.is_empty());
    world.assert_clean();
}

#[test]
fn a_worker_that_does_not_come_up_in_time_is_given_up_and_what_it_says_later_ignored() {
    // 001-F17, 001-F34, 001-F84
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 2);
    let pool = builder.startup_timeout(Duration::from_secs(7)).start().unwrap();
    let [first, second] = next_starts(&starts, 2).try_into().ok().unwrap();
    let late = second.worker.clone();
    drop(first);
    until(|| pool.stats().idle_workers == 1);
    world.clock.advance(Duration::from_millis(6_999));
    assert!(matches!(pool.await_init_complete_timeout(Duration::from_millis(10)), Err(WaitError::TimedOut)));
    world.clock.advance(Duration::from_millis(1));
    assert_eq!(second.asked(), CancelReason::TimedOut);
    pool.await_init_complete().unwrap();
    let stats = pool.stats();
    assert_eq!((stats.total_workers, stats.idle_workers, stats.abandoned_threads), (1, 1, 1));
    drop(second);
    until(|| pool.stats().abandoned_threads == 0);
    let stats = pool.stats();
    assert_eq!((stats.total_workers, stats.idle_workers, stats.free_slots), (1, 1, 1));
    assert!(!stats.workers.keys().any(|worker| worker.as_str() == late));
    let rows = world.repository.workers(workcrew::OwnerId(1), "", 10).unwrap();
    assert!(rows.iter().all(|row| row.id.as_str() != late || row.status == WorkerStatus::Dead), "{rows:?}");
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_pool_whose_only_worker_does_not_come_up_in_time_does_not_start() {
    // 001-F27, 001-F34
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let pool = world.pool(part).max_workers(1).start().unwrap();
    let upcoming = next(&starts);
    world.clock.advance(Duration::from_secs(30));
    assert!(matches!(pool.await_ready(), Err(WaitError::InitFailed(_))));
    assert_eq!(pool.stats().abandoned_threads, 1);
    assert_failed(&world, pool, "no_workers_started: worker w1 did not come up within 30s");
    assert!(!stage.is_gone(), "its thread is left behind");
    drop(upcoming);
    until(|| stage.is_gone());
    world.assert_clean();
}

/// Many who wait for the pool to come up, and what they are told.
fn assert_all_told(
    world: &World,
    end: impl FnOnce(&WorkPool, Vec<Upcoming>),
    is_told: fn(&Result<(), WaitError>) -> bool,
) {
    let (builder, _stage, starts) = fixed(world, 2);
    let pool = builder.start().unwrap();
    let upcoming = next_starts(&starts, 2);
    thread::scope(|threads| {
        let waiting: Vec<_> = (0..32)
            .map(|number| {
                let pool = &pool;
                threads.spawn(move || if number % 2 == 0 { pool.await_ready() } else { pool.await_init_complete() })
            })
            .collect();
        until(|| pool.stats().init_waiters == 32);
        end(&pool, upcoming);
        for thread in waiting {
            let told = thread.join().unwrap();
            assert!(is_told(&told), "{told:?}");
        }
    });
    assert_eq!(pool.stats().init_waiters, 0);
    pool.stop(Stop::Now).unwrap();
    // One that was given up when the pool stopped may be on its way up for a moment longer.
    world.assert_clean_after_crashes();
}

#[test]
fn all_who_wait_are_told() {
    // 001-F36, 001-F37, 001-F87
    assert_all_told(&World::new(), |_, upcoming| drop(upcoming), Result::is_ok);
    let fail = |_: &WorkPool, upcoming: Vec<Upcoming>| {
        upcoming.into_iter().for_each(|upcoming| upcoming.fail(ExecuteError::give_up("no")));
    };
    assert_all_told(&World::new(), fail, |told| matches!(told, Err(WaitError::InitFailed(_))));
    let stop = |pool: &WorkPool, upcoming: Vec<Upcoming>| {
        pool.stop_timeout(Stop::Now, Duration::ZERO).unwrap();
        drop(upcoming);
    };
    assert_all_told(&World::new(), stop, |told| matches!(told, Err(WaitError::Stopped)));
}

#[test]
fn a_thread_of_the_pool_does_not_wait_for_the_pool() {
    let world = World::new();
    let (tell, told) = unbounded();
    let place: Arc<Mutex<Weak<WorkPool>>> = Arc::default();
    let ask = {
        let place = Arc::clone(&place);
        move |whence: &str| {
            let pool = place.lock().unwrap().upgrade().unwrap();
            assert!(matches!(pool.await_ready(), Err(WaitError::WouldDeadlock)), "{whence}");
            assert!(matches!(pool.await_init_complete_timeout(PATIENCE), Err(WaitError::WouldDeadlock)), "{whence}");
            tell.send(whence.to_owned()).unwrap();
        }
    };
    struct Asking<F>(F);
    impl<F: Fn(&str) + Send + Sync + 'static> workcrew::Executor for Asking<F> {
        fn execute(&self, _: &workcrew::Call<'_>) -> Result<WorkResult, ExecuteError> {
            (self.0)("execute");
            Ok(WorkResult::empty())
        }

        fn start_worker(
            &self,
            _: &workcrew::WorkerId,
            _: &workcrew::executor::CancelToken,
        ) -> Result<(), ExecuteError> {
            (self.0)("start_worker");
            Ok(())
        }
    }
    let (in_hook, in_callback) = (ask.clone(), ask.clone());
    let builder = world.pool(Asking(ask)).max_workers(1).on_unit_complete(move |_, _| in_callback("callback"));
    let hook = move |_: &workcrew::executor::CancelToken| {
        in_hook("hook");
        Ok(())
    };
    let pool = Arc::new(builder.init_hook(hook).build().unwrap());
    *place.lock().unwrap() = Arc::downgrade(&pool);
    pool.start().unwrap();
    pool.await_init_complete().unwrap();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap().wait().unwrap();
    assert_eq!(told.try_iter().collect::<Vec<_>>(), ["hook", "start_worker", "execute", "callback"]);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn stopped_while_the_hook_runs_it_asks_the_hook_and_starts_nothing() {
    // 001-F26, 001-F81
    for stop in STOPS {
        let world = World::new();
        let (part, stage, starts) = stage_and_starts();
        let (tell, called) = unbounded();
        let hook = move |cancel: &workcrew::executor::CancelToken| {
            tell.send(()).unwrap();
            assert_eq!(cancel.wait_timeout(PATIENCE), Some(CancelReason::Shutdown));
            Ok(())
        };
        let pool = world.pool(part).init_hook(hook).start().unwrap();
        next(&called);
        assert!(pool.stop(stop).unwrap().is_final, "{stop}");
        assert_eq!(pool.stats().phase, PoolPhase::Stopped);
        assert!(matches!(pool.await_ready(), Err(WaitError::Stopped)));
        drop(pool);
        until(|| stage.is_gone());
        assert!(starts.is_empty());
        world.assert_clean();
    }
}

#[test]
fn a_hook_that_does_not_obey_is_left_behind() {
    // 001-F26
    for stop in STOPS {
        let world = World::new();
        let (part, stage, starts) = stage_and_starts();
        let gate = Gate::closed();
        let hook = {
            let gate = gate.clone();
            move |_: &workcrew::executor::CancelToken| {
                gate.pass();
                Err(ExecuteError::give_up("too late"))
            }
        };
        let pool = world.pool(part).init_hook(hook).start().unwrap();
        gate.wait_for(1);
        thread::scope(|threads| {
            let stopping = threads.spawn(|| pool.stop(stop));
            until(|| pool.stats().phase != PoolPhase::Initializing);
            if stop != Stop::Now {
                assert!(!pool.stop_timeout(stop, Duration::from_millis(10)).unwrap().is_final, "{stop}");
                // Nobody can see when the grace begins.
                until(|| {
                    world.clock.advance(Duration::from_millis(1_500));
                    pool.stop_timeout(stop, Duration::from_millis(10)).unwrap().is_final
                });
            }
            let summary = stopping.join().unwrap().unwrap();
            assert_eq!((summary.is_final, summary.stats.abandoned_threads), (true, 1), "{stop}");
        });
        gate.open();
        until(|| pool.stats().abandoned_threads == 0);
        assert_eq!(pool.stats().phase, PoolPhase::Stopped);
        drop(pool);
        until(|| stage.is_gone());
        assert!(starts.is_empty());
        world.assert_clean();
    }
}

#[test]
fn stopped_while_workers_come_up_it_waits_for_those_that_obey() {
    // 001-F26, 001-F88
    for stop in STOPS {
        let world = World::new();
        let (builder, stage, starts) = fixed(&world, 3);
        let pool = builder.startup_batch(2).start().unwrap();
        let [first, second] = next_starts(&starts, 2).try_into().ok().unwrap();
        drop(first);
        until(|| pool.stats().idle_workers == 1);
        thread::scope(|threads| {
            let stopping = threads.spawn(|| pool.stop(stop));
            assert_eq!(second.asked(), CancelReason::Shutdown);
            drop(second);
            assert!(stopping.join().unwrap().unwrap().is_final, "{stop}");
        });
        drop(pool);
        until(|| stage.is_gone());
        assert!(starts.is_empty(), "no other batch");
        world.assert_clean_after_crashes();
    }
}

#[test]
fn stopped_while_workers_do_not_come_up_it_leaves_them_behind() {
    // 001-F26
    for stop in STOPS {
        let world = World::new();
        let (builder, stage, starts) = fixed(&world, 2);
        let pool = builder.start().unwrap();
        let upcoming = next_starts(&starts, 2);
        thread::scope(|threads| {
            let stopping = threads.spawn(|| pool.stop(stop));
            assert_eq!(upcoming[0].asked(), CancelReason::Shutdown);
            if stop != Stop::Now {
                world.clock.advance(Duration::from_millis(1_499));
                assert!(!pool.stop_timeout(stop, Duration::from_millis(10)).unwrap().is_final, "{stop}");
                world.clock.advance(Duration::from_millis(1));
            }
            let summary = stopping.join().unwrap().unwrap();
            assert!(summary.is_final, "{stop}");
            // Stopped at once, it does not wait for whoever tells of them either.
            assert!((2..=3).contains(&summary.stats.abandoned_threads), "{stop}");
        });
        drop(upcoming);
        until(|| pool.stats().abandoned_threads == 0);
        drop(pool);
        until(|| stage.is_gone());
        world.assert_clean_after_crashes();
    }
}

#[test]
fn stopped_between_two_batches_it_stops_at_once() {
    // 001-F26, 001-F88
    for stop in STOPS {
        let world = World::new();
        let (builder, stage, starts) = fixed(&world, 2);
        let pool = builder.startup_batch(1).start().unwrap();
        drop(next(&starts));
        until(|| pool.stats().idle_workers == 1);
        let summary = pool.stop(stop).unwrap();
        assert_eq!((summary.is_final, summary.stats.total_workers), (true, 0), "{stop}");
        drop(pool);
        until(|| stage.is_gone());
        world.clock.advance(Duration::from_secs(1));
        assert!(starts.is_empty());
        world.assert_clean();
    }
}

#[test]
fn dropped_while_it_comes_up_it_stops() {
    // 001-F26
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 2);
    let pool = builder.start().unwrap();
    let upcoming = next_starts(&starts, 2);
    thread::scope(|threads| {
        threads.spawn(|| drop(pool));
        for upcoming in upcoming {
            assert_eq!(upcoming.asked(), CancelReason::Shutdown);
        }
    });
    until(|| stage.is_gone());
    world.assert_clean_after_crashes();
}

#[test]
fn what_is_put_in_line_while_the_pool_comes_up_is_executed_then() {
    // 001-F28, 001-F40
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 2);
    let pool = builder.start().unwrap();
    let upcoming = next_starts(&starts, 2);
    let handles: Vec<_> = ["a", "b", "c"].map(|id| pool.enqueue(NewUnit::new(id), "go").unwrap()).into();
    assert_quiet(&stage.calls);
    drop(upcoming);
    drop(stage.next_many(2));
    drop(stage.next());
    for handle in handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn lowered_between_two_batches_the_pool_comes_up_with_what_is_left() {
    let world = World::new();
    let (builder, _stage, starts) = fixed(&world, 4);
    let pool = builder.startup_batch(2).start().unwrap();
    drop(next_starts(&starts, 2));
    until(|| pool.stats().idle_workers == 2);
    pool.set_max_workers(2).unwrap();
    until(|| {
        world.clock.advance(Duration::from_millis(500));
        pool.await_init_complete_timeout(Duration::from_millis(10)).is_ok()
    });
    assert_eq!((pool.stats().total_workers, pool.stats().free_slots), (2, 2));
    until(|| pool.stats().target_workers == 2);
    pool.stop(Stop::Drain).unwrap();
    assert!(starts.is_empty());
    world.assert_clean();
}

#[test]
fn lowered_while_workers_come_up_no_more_work_than_may() {
    let world = World::new();
    let (builder, stage, starts) = fixed(&world, 4);
    let pool = builder.start().unwrap();
    let upcoming = next_starts(&starts, 4);
    pool.set_max_workers(2).unwrap();
    drop(upcoming);
    pool.await_init_complete().unwrap();
    for id in ["a", "b", "c", "d"] {
        pool.enqueue(NewUnit::new(id), "go").unwrap();
    }
    let calls = stage.next_many(2);
    assert_quiet(&stage.calls);
    until(|| pool.stats().total_workers == 2);
    drop(calls);
    drop(stage.next_many(2));
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn raised_while_workers_come_up_the_others_follow() {
    let world = World::new();
    let (builder, _stage, starts) = fixed(&world, 1);
    let pool = builder.start().unwrap();
    let upcoming = next(&starts);
    pool.set_max_workers(3).unwrap();
    assert_quiet(&starts);
    drop(upcoming);
    pool.await_init_complete().unwrap();
    drop(next_starts(&starts, 2));
    until(|| pool.stats().idle_workers == 3);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
