//! Workers that execute several units at a time: how many, who says so, and what others see of it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use serde_json::json;
use workcrew::executor::CancelToken;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Activity, Archive, Call, CapacityStrategy, Completion, ExecuteError, Executor, NewUnit, OwnerId, PoolStats,
    Scaling, StartError, Stop, UnitHandle, UnitStatus, WorkPool, WorkPoolBuilder, WorkResult, Worker, WorkerId,
    WorkerStatus,
};

use super::stage::{Part, Played, stage_and_starts};
use super::{Stage, World, assert_quiet, next, stage, until};
use crate::support::Up as _;

impl World {
    /// A worker as it is stored.
    pub(super) fn record(&self, worker: &str) -> Worker {
        let rows = self.repository.workers(OwnerId(1), "", 1_000).unwrap();
        rows.into_iter().find(|row| row.id.as_str() == worker).expect("it is stored")
    }

    /// A pool with so many workers, each of which executes so many units at a time, and the test as its executor.
    pub(super) fn wide(&self, max_workers: usize, capacity: u32) -> (WorkPoolBuilder, Stage) {
        let (part, stage) = stage();
        (self.pool(part).max_workers(max_workers).worker_capacity(capacity), stage)
    }
}

/// Submits a unit that has one attempt.
pub(super) fn submit(pool: &WorkPool, id: &str) -> UnitHandle {
    pool.submit_work_unit(NewUnit::new(id).max_retries(0), "go").unwrap()
}

/// Enqueues a unit that has one attempt.
pub(super) fn enqueue(pool: &WorkPool, id: &str) -> UnitHandle {
    pool.enqueue(NewUnit::new(id).max_retries(0), "go").unwrap()
}

/// Submits these units, and waits until all are executed.
pub(super) fn running(pool: &WorkPool, stage: &Stage, ids: &[&str]) -> (Vec<UnitHandle>, Vec<Played>) {
    let handles = ids.iter().map(|id| submit(pool, id)).collect();
    (handles, stage.next_many(ids.len()))
}

/// No worker has more in hand than it can have, and whether it is BUSY follows from that.
fn assert_within(stats: &PoolStats) {
    for view in stats.workers.values() {
        assert!(view.load <= view.capacity, "{view:?}");
        assert!(view.unit_ids.len() <= view.load as usize, "{view:?}");
        let is_full = view.load == view.capacity;
        match view.status {
            WorkerStatus::Ready => assert!(!is_full, "{view:?}"),
            WorkerStatus::Busy => assert!(is_full, "{view:?}"),
            _ => {}
        }
    }
    assert_eq!(stats.load, stats.workers.values().map(|view| view.load as usize).sum::<usize>());
}

/// The same in the records.
fn assert_records_within(world: &World) {
    for row in world.repository.workers(OwnerId(1), "", 1_000).unwrap() {
        assert!(row.load <= row.capacity, "{row:?}");
        match row.status {
            WorkerStatus::Ready => assert!(row.load < row.capacity, "{row:?}"),
            WorkerStatus::Busy => assert_eq!(row.load, row.capacity, "{row:?}"),
            _ => {}
        }
    }
}

/// What is seen of the first worker: by the pool, then in the records.
fn seen(world: &World, pool: &WorkPool) -> [(WorkerStatus, u32, u32); 2] {
    let (view, row) = (&pool.workers()[0], world.record("w1"));
    [(view.status, view.load, view.capacity), (row.status, row.load, row.capacity)]
}

#[test]
fn a_worker_is_ready_below_its_capacity_and_busy_at_it() {
    // 001-F11, 001-F57, 001-F58, 001-F59, 001-F60
    let world = World::new();
    let (builder, stage) = world.wide(1, 3);
    let pool = builder.up();
    assert_eq!(seen(&world, &pool), [(WorkerStatus::Ready, 0, 3); 2]);
    let mut calls = Vec::new();
    for (id, status, load) in
        [("a", WorkerStatus::Ready, 1), ("b", WorkerStatus::Ready, 2), ("c", WorkerStatus::Busy, 3)]
    {
        submit(&pool, id);
        calls.push(stage.next());
        assert_eq!(seen(&world, &pool), [(status, load, 3); 2], "{id}");
        assert_within(&pool.stats());
    }
    assert!(calls.iter().all(|call| call.worker == "w1"));
    let stats = pool.stats();
    assert_eq!((stats.load, stats.capacity, stats.full_workers, stats.free_slots), (3, 3, 1, 0));
    assert_eq!((stats.busy_workers, stats.idle_workers, stats.activity()), (1, 0, Activity::AtCapacity));
    let ids: Vec<String> = pool.workers()[0].unit_ids.iter().map(ToString::to_string).collect();
    assert_eq!((ids.join(" "), pool.workers()[0].unit_id.as_ref().unwrap().as_str()), ("a b c".to_owned(), "a"));
    let refused = pool.submit_work_unit(NewUnit::new("d"), "go").unwrap_err();
    assert_eq!(refused.to_string(), "no capacity for unit `d`: 1 of 1 workers busy");

    for left in [2, 1, 0] {
        drop(calls.pop());
        until(|| pool.stats().load == left);
        assert_eq!(seen(&world, &pool), [(WorkerStatus::Ready, u32::try_from(left).unwrap(), 3); 2]);
        assert_eq!((pool.stats().free_slots, pool.stats().full_workers), (3 - left, 0));
    }
    assert_eq!((pool.stats().idle_workers, pool.stats().activity()), (1, Activity::Idle));
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((world.record("w1").units_completed, world.record("w1").capacity), (3, 3));
    world.assert_clean();
}

#[test]
fn a_place_that_is_filled_again_leaves_the_worker_busy() {
    // 001-F61
    let world = World::new();
    let (builder, stage) = world.wide(1, 2);
    let pool = builder.up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    let queued = ["c", "d"].map(|id| enqueue(&pool, id));
    for (id, handle) in [("c", &handles[0]), ("d", &handles[1])] {
        calls.remove(0).succeed("done");
        handle.wait().unwrap();
        let call = stage.next();
        assert_eq!(call.id, id);
        assert_eq!(seen(&world, &pool), [(WorkerStatus::Busy, 2, 2); 2]);
        calls.push(call);
    }
    drop(calls);
    assert!(queued.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_place_is_taken_until_the_callback_has_run() {
    // 001-F60
    let world = World::new();
    let (builder, stage) = world.wide(1, 2);
    let gate = Gate::closed();
    let pool = builder
        .on_unit_complete({
            let gate = gate.clone();
            move |_, _| gate.pass()
        })
        .up();
    let (handles, mut calls) = running(&pool, &stage, &["a", "b"]);
    calls.remove(0).succeed("a");
    gate.wait_for(1);
    let stats = pool.stats();
    assert_eq!((stats.load, stats.free_slots, stats.reporting_workers), (2, 0, 1));
    assert_eq!(pool.workers()[0].status, WorkerStatus::Busy);
    gate.open();
    handles[0].wait().unwrap();
    until(|| pool.stats().free_slots == 1 && pool.stats().reporting_workers == 0);
    drop(calls);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn spare_capacity_never_idles_while_something_waits() {
    // 001-F58, 001-F60
    for (workers, capacity, scaling) in [(1, 4, Scaling::OnDemand), (2, 2, Scaling::Fixed), (4, 1, Scaling::OnDemand)] {
        let world = World::new();
        let (builder, stage) = world.wide(workers, capacity);
        let pool = builder.scaling(scaling).up();
        let handles: Vec<_> = (0..16).map(|number| enqueue(&pool, &number.to_string())).collect();
        let mut calls: Vec<_> = (0..4).map(|_| stage.next()).collect();
        for waiting in (0..12).rev() {
            assert_eq!((pool.stats().free_slots, pool.stats().load), (0, 4));
            drop(calls.remove(waiting % 4));
            calls.push(stage.next());
            until(|| pool.stats().queue_size == waiting);
            assert_within(&pool.stats());
        }
        assert!(stage.is_empty());
        drop(calls);
        assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
        assert!(pool.stats().total_workers <= workers);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn the_worker_with_the_least_in_hand_gets_the_next_unit() {
    // 001-F58
    let world = World::new();
    let (builder, stage) = world.wide(2, 3);
    let pool = builder.scaling(Scaling::Fixed).up();
    let calls: Vec<_> = (0..6)
        .map(|number| {
            submit(&pool, &number.to_string());
            stage.next()
        })
        .collect();
    let (one, other) = (&calls[0].worker, &calls[1].worker);
    assert_ne!(one, other);
    let workers: Vec<_> = calls.iter().map(|call| &call.worker).collect();
    assert_eq!(workers, [one, other, one, other, one, other]);
    drop(calls);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_worker_that_is_yet_to_come_up_has_one_place() {
    // 001-F57
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let builder = world.pool(part).min_workers(0).max_workers(1).worker_capacity(3);
    let pool = builder.startup_timeout(Duration::from_secs(600)).up();
    assert_eq!((pool.stats().free_slots, pool.stats().capacity), (1, 0));
    let handles = ["a", "b", "c", "d"].map(|id| enqueue(&pool, id));
    let upcoming = next(&starts);
    let (stats, view) = (pool.stats(), &pool.workers()[0]);
    assert_eq!((stats.free_slots, stats.load, stats.queue_size), (0, 1, 3));
    assert_eq!((view.status, view.load, view.capacity), (WorkerStatus::Busy, 1, 1));
    assert!(stage.is_empty());
    drop(upcoming);
    let calls = stage.next_many(3);
    assert_eq!(calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
    assert_eq!(seen(&world, &pool), [(WorkerStatus::Busy, 3, 3); 2]);
    drop(calls);
    drop(stage.next());
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    assert_quiet(&starts);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_is_claimed_last_for_a_worker_that_came_up_meanwhile_is_not_refused() {
    // 001-F57, 001-F58
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.min_workers(0).max_workers(1).worker_capacity(3).up();
    let later = workcrew::clock::Clock::now(&world.clock).wall + chrono::TimeDelta::seconds(1);
    let second = pool.enqueue(NewUnit::new("b").not_before(later), "go").unwrap();
    let gate = Gate::closed();
    faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let submitting = threads.spawn(|| submit(&pool, "a"));
        gate.wait_for(1);
        drop(next(&starts));
        until(|| pool.stats().capacity == 3);
        world.clock.advance(Duration::from_secs(1));
        let before = stage.next();
        assert_eq!((before.id.as_str(), before.worker.as_str()), ("b", "w1"));
        gate.open();
        let first = submitting.join().unwrap();
        let call = stage.next();
        assert_eq!((call.id.as_str(), call.worker.as_str()), ("a", "w1"));
        assert_eq!(seen(&world, &pool), [(WorkerStatus::Ready, 2, 3); 2]);
        drop((before, call));
        assert_eq!(first.wait().unwrap().status, UnitStatus::Completed);
    });
    second.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// What an executor says of how many units a worker can have.
type Says = Box<dyn Fn(&WorkerId) -> Option<u32> + Send + Sync>;

/// An executor that is played by the test and says how many units its workers can have.
struct Able(Part, Says);

impl Executor for Able {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.0.execute(call)
    }

    fn start_worker(&self, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
        self.0.start_worker(worker_id, cancel)
    }

    fn capacity(&self, worker_id: &WorkerId) -> Option<u32> {
        (self.1)(worker_id)
    }
}

/// A pool whose executor says how many units its workers can have, and who was asked about.
fn able(
    world: &World,
    strategy: CapacityStrategy,
    says: impl Fn(&WorkerId) -> Option<u32> + Send + Sync + 'static,
) -> (WorkPoolBuilder, Stage, Receiver<String>) {
    let ((part, stage), (tell, asked)) = (stage(), unbounded());
    let says = move |worker_id: &WorkerId| {
        tell.send(worker_id.to_string()).unwrap();
        says(worker_id)
    };
    (world.pool(Able(part, Box::new(says))).capacity_strategy(strategy), stage, asked)
}

#[test]
fn the_strategy_says_who_decides() {
    // 001-F11, 001-F12
    for (strategy, capacity, is_asked) in
        [(CapacityStrategy::Pool, 2, false), (CapacityStrategy::Hybrid, 3, true), (CapacityStrategy::Profile, 1, false)]
    {
        let world = World::new();
        let (builder, stage, asked) = able(&world, strategy, |_| Some(3));
        let pool = builder.max_workers(1).worker_capacity(2).up();
        for id in ["a", "b", "c", "d"] {
            enqueue(&pool, id);
        }
        let calls = stage.next_many(capacity as usize);
        until(|| pool.workers()[0].load == capacity);
        assert_eq!(seen(&world, &pool), [(WorkerStatus::Busy, capacity, capacity); 2], "{strategy:?}");
        assert!(stage.is_empty());
        drop(calls);
        (capacity..4).for_each(|_| drop(stage.next()));
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        assert_eq!(asked.try_iter().collect::<Vec<_>>().len(), usize::from(is_asked), "{strategy:?}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn each_worker_has_a_capacity_of_its_own_which_is_asked_for_once_and_when_it_is_used() {
    // 001-F11, 001-F12, 001-F66
    let world = World::new();
    let of = |worker: &str| if worker == "w1" { 1 } else { 3 };
    let says = move |worker_id: &WorkerId| Some(of(worker_id.as_str()));
    let (builder, stage, asked) = able(&world, CapacityStrategy::Hybrid, says);
    let pool = builder.scaling(Scaling::Fixed).max_workers(2).up();
    assert_quiet(&asked);
    assert!(pool.workers().iter().all(|view| (view.load, view.capacity) == (0, 1)));
    assert_eq!((pool.stats().free_slots, pool.stats().capacity), (2, 2));
    for round in 0..3 {
        for number in 0..5 {
            enqueue(&pool, &format!("{round} {number}"));
        }
        let calls = stage.next_many(4);
        let mut counts: HashMap<&str, u32> = HashMap::new();
        calls.iter().for_each(|call| *counts.entry(&call.worker).or_default() += 1);
        assert_eq!(counts, HashMap::from([("w1", 1), ("w2", 3)]));
        for view in pool.workers() {
            let capacity = of(view.id.as_str());
            assert_eq!((view.status, view.load, view.capacity), (WorkerStatus::Busy, capacity, capacity));
        }
        assert_records_within(&world);
        drop(calls);
        drop(stage.next());
        assert_eq!(pool.wait_for_completion(), Completion::Done);
    }
    let mut asked: Vec<_> = asked.try_iter().collect();
    asked.sort();
    assert_eq!(asked, ["w1", "w2"], "once each");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn until_the_executor_has_answered_a_worker_has_one_unit() {
    // 001-F66
    let world = World::new();
    let gate = Gate::closed();
    let says = {
        let gate = gate.clone();
        move |_: &WorkerId| {
            gate.pass();
            Some(2)
        }
    };
    let (builder, stage, asked) = able(&world, CapacityStrategy::Hybrid, says);
    let pool = builder.max_workers(1).worker_capacity(9).up();
    let handles = ["a", "b", "c"].map(|id| enqueue(&pool, id));
    gate.wait_for(1);
    assert_eq!(seen(&world, &pool), [(WorkerStatus::Busy, 1, 1); 2]);
    assert_eq!((pool.stats().queue_size, stage.is_empty()), (2, true));
    gate.open();
    let calls = stage.next_many(2);
    assert_eq!(seen(&world, &pool), [(WorkerStatus::Busy, 2, 2); 2]);
    drop(calls);
    drop(stage.next());
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    assert_eq!(asked.try_iter().count(), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_capacity_that_is_told_too_late_is_asked_for_again() {
    // 001-F66
    let world = World::new();
    let gate = Gate::closed();
    let says = {
        let gate = gate.clone();
        move |_: &WorkerId| {
            gate.pass();
            Some(2)
        }
    };
    let (builder, stage, asked) = able(&world, CapacityStrategy::Hybrid, says);
    let pool = builder.max_workers(1).timeout(Duration::from_secs(5)).up();
    let late = pool.enqueue(NewUnit::new("late").max_retries(0), "go").unwrap();
    gate.wait_for(1);
    until(|| {
        world.clock.advance(Duration::from_secs(5));
        late.is_done()
    });
    assert_eq!(late.wait().unwrap().status, UnitStatus::Failed);
    gate.open();
    until(|| pool.stats().abandoned_threads == 0);
    assert_eq!(pool.workers()[0].capacity, 1, "whoever says so has no part in it any more");
    for id in ["a", "b"] {
        enqueue(&pool, id);
    }
    drop(stage.next_many(2));
    pool.wait_for_completion();
    assert_eq!((pool.workers()[0].capacity, asked.try_iter().count()), (2, 2));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn whatever_an_executor_answers_there_is_a_capacity_that_makes_sense() {
    // 001-F11, 001-F66
    type Answer = fn(&WorkerId) -> Option<u32>;
    let answers: [(Answer, u32, &str); 5] = [
        (|_| None, 5, "what it leaves open the pool says"),
        (|_| Some(0), 1, "none at all makes no sense"),
        (|_| Some(1_000_000), 1_000, "each needs a thread"),
        (|_| Some(1_000), 1_000, "that is the most"),
        (|_| panic!("I do not know"), 5, "a panic says nothing"),
    ];
    for (says, capacity, why) in answers {
        let world = World::new();
        let (builder, stage, asked) = able(&world, CapacityStrategy::Hybrid, says);
        let pool = builder.max_workers(1).worker_capacity(5).up();
        let handle = submit(&pool, "a");
        let call = stage.next();
        assert_eq!((pool.workers()[0].capacity, pool.stats().capacity), (capacity, capacity as usize), "{why}");
        assert_eq!(pool.stats().free_slots, capacity as usize - 1);
        call.succeed("done");
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed, "{why}");
        let second = submit(&pool, "b");
        let call = stage.next();
        assert_eq!((call.worker.as_str(), world.record("w1").capacity), ("w1", capacity), "{why}");
        drop(call);
        second.wait().unwrap();
        assert_eq!(asked.try_iter().count(), 1, "{why}");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn capacities_that_make_no_sense_are_refused() {
    // 001-F11
    let world = World::new();
    for (capacity, reason) in [
        (0, "the setting `worker_capacity` is 0, which lets nothing be done"),
        (1_001, "the setting `worker_capacity` is 1001, and 1000 is the most"),
        (u32::MAX, "the setting `worker_capacity` is 4294967295, and 1000 is the most"),
    ] {
        let error = world.wide(1, capacity).0.build().unwrap_err();
        assert!(matches!(error, StartError::Setting { .. }));
        assert_eq!(error.to_string(), reason);
    }
    let pool = world.wide(1, 1_000).0.up();
    assert_eq!((pool.stats().capacity, pool.stats().free_slots), (1_000, 1_000), "a thread starts when it is needed");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_is_told_of_capacities_has_names_and_can_be_read_back() {
    // 001-F11, 001-F12
    let world = World::new();
    let (builder, stage) = world.wide(1, 2);
    let pool = builder.up();
    let (_, calls) = running(&pool, &stage, &["a", "b"]);
    let stats = pool.stats();
    let told = serde_json::to_value(&stats).unwrap();
    for (name, number) in [("load", 2), ("capacity", 2), ("full_workers", 1), ("processing_workers", 1)] {
        assert_eq!(told[name], json!(number), "{name}");
    }
    let expected = json!({
        "id": "w1", "status": "BUSY", "current_run": "a", "unit_ids": ["a", "b"], "load": 2, "capacity": 2,
        "completed": 0, "failed": 0,
    });
    assert_eq!(told["workers"]["w1"], expected);
    assert_eq!(serde_json::from_value::<PoolStats>(told).unwrap(), stats);
    let names: Vec<_> = [CapacityStrategy::Pool, CapacityStrategy::Hybrid, CapacityStrategy::Profile]
        .map(|strategy| serde_json::to_value(strategy).unwrap())
        .into();
    assert_eq!(names, ["pool", "hybrid", "profile"]);
    let read: CapacityStrategy = serde_json::from_value(json!("hybrid")).unwrap();
    assert_eq!((read, CapacityStrategy::default()), (CapacityStrategy::Hybrid, CapacityStrategy::Pool));
    drop(calls);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn however_much_happens_at_once_no_worker_has_more_than_it_can() {
    // 001-F58, 001-F59, 001-F60, 001-F61
    const UNITS: usize = 120;
    let world = World::new();
    let running: Arc<Mutex<HashMap<String, (u32, u32)>>> = Arc::default();
    let executor = {
        let running = Arc::clone(&running);
        move |call: &Call<'_>| {
            let worker = call.worker_id().to_string();
            {
                let mut running = running.lock().unwrap();
                let (now, most) = running.entry(worker.clone()).or_default();
                *now += 1;
                *most = (*most).max(*now);
            }
            thread::yield_now();
            running.lock().unwrap().get_mut(&worker).unwrap().0 -= 1;
            let number: usize = call.unit().id.as_str().parse().unwrap();
            match (call.attempt_number(), number % 20) {
                (1, 3) => Err(ExecuteError::broken("it fell")),
                (1, 7 | 13) => Err(ExecuteError::retry("again")),
                _ => Ok(WorkResult::text(call.prompt())),
            }
        }
    };
    let pool = world.pool(executor).max_workers(2).worker_capacity(3).up();
    thread::scope(|threads| {
        for submitter in 0..4 {
            let pool = &pool;
            threads.spawn(move || {
                for number in (submitter..UNITS).step_by(4) {
                    match number % 3 {
                        0 => drop(pool.enqueue(NewUnit::new(number.to_string()), "go").unwrap()),
                        _ => {
                            assert!(pool.wait_for_available_slot());
                            pool.submit_work_unit(NewUnit::new(number.to_string()), "go").unwrap();
                        }
                    }
                    assert_within(&pool.stats());
                }
            });
        }
        assert_records_within(&world);
    });
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_records_within(&world);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.load), (UNITS as u64, 0));
    assert!(running.lock().unwrap().values().all(|&(now, most)| now == 0 && most <= 3));
    assert_eq!(world.repository.counts(world.job).unwrap().completed, UNITS as u64);
    world.assert_clean_after_crashes();
}
