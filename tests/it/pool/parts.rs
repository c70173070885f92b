//! Parts that can be replaced: who chooses among the workers, and that each part is one by itself.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use workcrew::executor::CancelToken;
use workcrew::testing::Gate;
use workcrew::{
    Affinity, Available, Call, Event, ExecuteError, Executor, InitHook, LeastLoaded, NewUnit, Observer, PoolPhase,
    Repository, Scaling, Scheduler, Stop, UnitHandle, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult,
    WorkerRuntime,
};

use super::{World, stage, until};
use crate::support::Up;

#[test]
fn a_scheduler_chooses_among_the_workers_that_have_room() {
    // 001-F91
    let world = World::new();
    let (part, stage) = stage();
    let (asked, seen) = unbounded();
    let fullest = move |available: &[Available]| {
        asked.send(available.iter().map(|worker| (worker.load, worker.capacity)).collect::<Vec<_>>()).unwrap();
        (0..available.len()).max_by_key(|&index| available[index].load)
    };
    let builder = world.pool(part).max_workers(3).worker_capacity(2).scaling(Scaling::Fixed).scheduler(fullest);
    let pool = builder.up();
    let calls: Vec<_> = (0..6)
        .map(|number| {
            pool.submit_work_unit(NewUnit::new(format!("{number}")), "go").unwrap();
            stage.next()
        })
        .collect();
    for pair in calls.chunks(2) {
        assert_eq!(pair[0].worker, pair[1].worker, "one is filled before the next");
    }
    let seen: Vec<_> = seen.try_iter().collect();
    assert_eq!(seen[0], [(0, 2), (0, 2), (0, 2)]);
    assert_eq!(seen[1], [(0, 2), (0, 2), (1, 2)], "in the order in which the pool would take them");
    assert_eq!(seen[5], [(1, 2)], "only those that have room");

    // What waits in line is given out the same way.
    let waiting: Vec<_> = ["x", "y"].map(|id| pool.enqueue(NewUnit::new(id), "go").unwrap()).into();
    drop(calls);
    drop(stage.next_many(2));
    for handle in waiting {
        handle.wait().unwrap();
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_scheduler_chooses_also_for_what_waits_in_line() {
    // 001-F91
    let world = World::new();
    let (part, stage) = stage();
    let fullest = |available: &[Available]| (0..available.len()).max_by_key(|&index| available[index].load);
    let pool = world.pool(part).max_workers(2).worker_capacity(2).scaling(Scaling::Fixed).scheduler(fullest).up();
    pool.pause();
    for id in ["a", "b"] {
        pool.enqueue(NewUnit::new(id), "go").unwrap();
    }
    pool.resume();
    let calls = stage.next_many(2);
    assert_eq!(calls[0].worker, calls[1].worker, "one is filled before the next");
    drop(calls);
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_scheduler_that_knows_no_better_or_panics_leaves_it_to_the_pool() {
    // 001-F91
    type Answer = fn() -> Option<usize>;
    let answers: [Answer; 4] = [|| None, || Some(usize::MAX), || panic!("it has no idea"), || Some(0)];
    for answer in answers {
        let world = World::new();
        let (part, stage) = stage();
        let pool = world.pool(part).max_workers(2).scheduler(move |_: &[Available]| answer()).up();
        for id in ["a", "b", "c"] {
            pool.enqueue(NewUnit::new(id), "go").unwrap();
        }
        assert_eq!(stage.next_many(2).iter().map(|call| call.id.clone()).collect::<Vec<_>>(), ["a", "b"]);
        drop(stage.next());
        pool.wait_for_completion();
        assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 3);
        world.assert_clean();
    }
}

#[test]
fn a_scheduler_is_not_asked_where_there_is_nothing_to_choose() {
    // 001-F91
    let world = World::new();
    let (part, stage) = stage();
    let (tell, asked) = unbounded();
    let first = move |_: &[Available]| {
        tell.send(()).unwrap();
        Some(0)
    };
    let pool = world.pool(part).max_workers(2).worker_capacity(2).scaling(Scaling::Fixed).scheduler(first).up();
    let mut runs = 0;
    let mut times_asked = |mut unit: NewUnit, is_to_wait: bool| {
        if is_to_wait {
            pool.pause();
        }
        runs += 1;
        unit.id = runs.to_string();
        let handle = pool.enqueue(unit, "go").unwrap();
        let at_the_door = asked.try_iter().count();
        pool.resume();
        drop(stage.next());
        handle.wait().unwrap();
        (at_the_door, asked.try_iter().count())
    };
    for affinity in [Affinity::Hint, Affinity::StrictQueue, Affinity::StrictFailFast] {
        let unit = || NewUnit::new("").affinity_key(format!("{affinity:?}")).affinity(affinity);
        assert_eq!(times_asked(unit(), false), (1, 0), "{affinity:?}: it is nowhere yet");
        assert_eq!(times_asked(unit(), false), (0, 0), "{affinity:?}");
        assert_eq!(times_asked(unit(), true), (0, 0), "{affinity:?}, from the line");
    }
    let tomorrow = workcrew::clock::Clock::now(&world.clock).wall + chrono::TimeDelta::days(1);
    pool.enqueue(NewUnit::new("tomorrow").not_before(tomorrow), "go").unwrap();
    assert_eq!(asked.try_iter().count(), 0, "it may not begin yet");
    assert_eq!(times_asked(NewUnit::new(""), false), (1, 0));
    assert_eq!(times_asked(NewUnit::new(""), true).1, 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn the_default_takes_the_least_loaded_and_of_these_who_has_been_so_for_longest() {
    // 001-F91, 000-F13
    let order = Mutex::new(Vec::new());
    for is_spelt_out in [false, true] {
        let world = World::new();
        let (part, stage) = stage();
        let builder = world.pool(part).max_workers(2).worker_capacity(2).scaling(Scaling::Fixed);
        let pool = if is_spelt_out { builder.scheduler(LeastLoaded).up() } else { builder.up() };
        let take = |id: &str| {
            pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
            stage.next()
        };
        let mut calls = ["a", "b", "c", "d"].map(take).map(Some);
        let workers: Vec<String> = calls.iter().flatten().map(|call| call.worker.clone()).collect();
        assert!(workers[0] != workers[1] && workers[..2] == workers[2..], "{workers:?}");
        let done = calls[1].take().unwrap();
        let worker = done.worker.clone();
        drop(done);
        until(|| pool.stats().load == 3);
        let last = take("e");
        assert_eq!(last.worker, worker, "the other is busy");
        order.lock().unwrap().push(workers);
        drop((calls, last));
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
    let order = order.into_inner().unwrap();
    assert_eq!(order[0], order[1]);
}

/// Each of them says when it is used.
#[derive(Clone)]
struct Part(&'static str, Sender<&'static str>);

impl Part {
    fn tell(&self) {
        self.1.send(self.0).unwrap();
    }
}

impl Scheduler for Part {
    fn choose(&self, _: &[Available]) -> Option<usize> {
        self.tell();
        None
    }
}

impl Observer for Part {
    fn on_event(&self, _: &Event<'_>) {
        self.tell();
    }
}

impl InitHook for Part {
    fn init(self: Box<Self>, _: &CancelToken) -> Result<(), ExecuteError> {
        self.tell();
        Ok(())
    }
}

impl WorkerRuntime for Part {
    fn execute(&self, executor: &dyn Executor, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.tell();
        executor.execute(call)
    }
}

#[test]
fn each_part_can_be_replaced_by_itself_and_all_of_them_together() {
    // 001-F89, 001-F90, 001-F91, 001-F92
    type With = fn(WorkPoolBuilder, Part) -> WorkPoolBuilder;
    let parts: [(&str, With); 4] = [
        ("scheduler", |builder, part| builder.scheduler(part)),
        ("observer", |builder, part| builder.observer(part)),
        ("init hook", |builder, part| builder.init_with(part)),
        ("runtime", |builder, part| builder.worker_runtime(part)),
    ];
    let chosen = (0..parts.len()).map(|one| vec![one]).chain([Vec::new(), (0..parts.len()).collect()]);
    for chosen in chosen {
        let world = World::new();
        let (tell, told) = unbounded();
        let executor = |call: &Call<'_>| Ok(WorkResult::text(call.prompt()));
        let of_its_own: Arc<dyn Repository> = Arc::new(world.repository.clone());
        let mut builder = world.pool_on(of_its_own, executor).max_workers(1);
        for &one in &chosen {
            builder = parts[one].1(builder, Part(parts[one].0, tell.clone()));
        }
        let pool = builder.up();
        let handles = ["a", "b", "c"].map(|id| pool.enqueue(NewUnit::new(id), id).unwrap());
        for handle in handles {
            let unit = handle.wait().unwrap();
            assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some(handle.id())));
        }
        pool.stop(Stop::Drain).unwrap();
        let used: BTreeSet<&str> = told.try_iter().collect();
        assert_eq!(used, chosen.iter().map(|&one| parts[one].0).collect());
        world.assert_clean();
    }
}

#[test]
fn a_scheduler_does_not_wait_for_the_pool_that_asks_it() {
    // Asked on the thread that gives out what waits in line, it would wait for itself.
    let world = World::new();
    let (part, stage) = stage();
    let waits_for: Arc<Mutex<Option<UnitHandle>>> = Arc::default();
    let (told, answers) = unbounded();
    let wait = {
        let waits_for = Arc::clone(&waits_for);
        move |_: &[Available]| {
            if let Some(handle) = waits_for.lock().unwrap().take() {
                told.send(handle.wait().map(drop)).unwrap();
            }
            None
        }
    };
    let pool = world.pool(part).max_workers(1).scaling(Scaling::Fixed).scheduler(wait).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let second = pool.enqueue(NewUnit::new("b"), "go").unwrap();
    *waits_for.lock().unwrap() = Some(second.clone());
    drop(call);
    assert!(matches!(super::next(&answers), Err(WaitError::WouldDeadlock)));
    drop(stage.next());
    second.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_scheduler_that_does_not_answer_keeps_no_pool_from_stopping() {
    // 001-F91
    type End = fn(WorkPool);
    let ends: [(&str, End); 3] = [
        ("now", |pool| drop(pool.stop(Stop::Now).unwrap())),
        ("cancel", |pool| drop(pool.stop(Stop::Cancel { grace: Duration::ZERO }).unwrap())),
        ("drop", drop),
    ];
    for (name, end) in ends {
        let world = World::new();
        let (part, stage) = stage();
        let gate = Gate::closed();
        let silent = {
            let gate = gate.clone();
            // Only about what waits in line: whoever brings a unit itself would wait too.
            move |_: &[Available]| {
                if thread::current().name() == Some("workcrew-claimer") {
                    gate.pass();
                }
                Some(0)
            }
        };
        let builder = world.pool(part).max_workers(1).worker_capacity(2).scaling(Scaling::Fixed).scheduler(silent);
        let pool = builder.shutdown_grace(Duration::ZERO).up();
        let to_pool = pool.handle();
        pool.pause();
        let handles = ["a", "b"].map(|id| pool.enqueue(NewUnit::new(id), "go").unwrap());
        pool.resume();
        gate.wait_for(1);
        let drained = pool.stop_timeout(Stop::Drain, Duration::from_millis(10)).unwrap();
        assert_eq!((drained.is_final, drained.stats.abandoned_threads), (false, 0), "{name}");
        end(pool);
        assert_eq!(to_pool.stats().unwrap().phase, PoolPhase::Stopped, "{name}");
        // On a busy machine the reporter may be one of them for a moment.
        until(|| to_pool.stats().unwrap().abandoned_threads == 1);
        assert!(handles.iter().all(|handle| matches!(handle.wait(), Err(WaitError::LeftPending))));
        world.assert_clean();

        // What it says later counts for nothing.
        gate.open();
        until(|| to_pool.stats().is_none_or(|stats| stats.abandoned_threads == 0));
        until(|| stage.is_gone());
        assert_eq!((world.status("a"), world.attempts("a").len()), (UnitStatus::Pending, 0));
        world.assert_clean();
    }
}

#[test]
fn a_scheduler_that_takes_its_time_is_waited_for_by_a_pool_that_drains() {
    let world = World::new();
    let (part, stage) = stage();
    let gate = Gate::closed();
    let slow = {
        let gate = gate.clone();
        move |_: &[Available]| {
            if thread::current().name() == Some("workcrew-claimer") {
                gate.pass();
            }
            panic!("and knows nothing then")
        }
    };
    let pool = world.pool(part).scaling(Scaling::Fixed).max_workers(1).scheduler(slow).up();
    pool.pause();
    let handle = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    pool.resume();
    gate.wait_for(1);
    thread::scope(|threads| {
        let stopping = threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        assert!(matches!(handle.wait(), Err(WaitError::LeftPending)));
        assert!(!pool.stop_timeout(Stop::Drain, Duration::from_millis(10)).unwrap().is_final);
        gate.open();
        let summary = stopping.join().unwrap();
        assert_eq!((summary.is_final, summary.stats.abandoned_threads), (true, 0));
    });
    assert!(stage.is_empty());
    world.assert_clean();
}
