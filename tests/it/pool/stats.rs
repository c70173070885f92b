//! What a pool says of itself: in numbers that add up, in its log, and to its observer.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use serde_json::json;
use workcrew::executor::CancelToken;
use workcrew::repository::By;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{
    Activity, Archive, Call, Completion, Event, ExecuteError, Executor, NewUnit, PoolPhase, PoolStats, QueueState,
    RetryPolicy, Scaling, Stop, UnitStatus, WorkPoolBuilder, WorkResult, WorkerId, WorkerStatus, WorkerView,
};

use super::queue::{busy, enqueue};
use super::stage::Part;
use super::{World, next, stage, until};
use crate::support;
use crate::support::Up as _;

/// What must hold of every look at a pool.
fn assert_adds_up(stats: &PoolStats) {
    let gone = stats.completed + stats.failed + stats.cancelled + stats.left_pending + stats.lost;
    assert_eq!(stats.accepted, stats.pending + stats.running + gone, "{stats:?}");
    // One on its way out is busy until it is done with what it has.
    let status_of = |worker: &WorkerView| match worker.status {
        WorkerStatus::ShuttingDown if worker.load > 0 => WorkerStatus::Busy,
        status => status,
    };
    let count = |status| stats.workers.values().filter(|worker| status_of(worker) == status).count();
    let counts = [WorkerStatus::Starting, WorkerStatus::Ready, WorkerStatus::Busy, WorkerStatus::Tainted].map(count);
    let gauges = [stats.starting_workers, stats.idle_workers, stats.busy_workers, stats.tainted_workers];
    assert_eq!(counts, gauges, "{stats:?}");
    assert_eq!(stats.workers.len(), stats.total_workers, "{stats:?}");
    let leaving = count(WorkerStatus::ShuttingDown);
    assert_eq!(stats.total_workers, gauges.iter().sum::<usize>() + leaving, "{stats:?}");
    assert!(stats.reporting_workers <= stats.busy_workers, "{stats:?}");
    assert!(stats.queue_size <= stats.max_queue_size, "{stats:?}");
    assert!(stats.requests >= stats.queued + stats.saturated, "{stats:?}");
    for (id, worker) in &stats.workers {
        assert_eq!(*id, worker.id);
        let may_have_unit = matches!(status_of(worker), WorkerStatus::Busy | WorkerStatus::Tainted);
        assert!(worker.unit_id.is_none() || may_have_unit, "{worker:?}");
    }
}

/// What only grows.
fn totals(stats: &PoolStats) -> [u64; 12] {
    [
        stats.requests,
        stats.queued,
        stats.saturated,
        stats.queue_timeouts,
        stats.errors,
        stats.accepted,
        stats.completed,
        stats.failed,
        stats.cancelled,
        stats.lost,
        stats.attempts,
        stats.retried,
    ]
}

#[test]
fn the_numbers_have_the_names_that_others_know_and_can_be_read_back() {
    // 003-F16, 003-F58
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(2).label("named").up();
    for (id, is_good) in [("good", true), ("bad", false)] {
        let handle = enqueue(&pool, id);
        match is_good {
            true => stage.next().succeed("done"),
            false => stage.next().fail(ExecuteError::give_up("no")),
        }
        handle.wait().unwrap();
    }
    enqueue(&pool, "runs");
    let call = stage.next();
    let stats = pool.stats();
    let told = serde_json::to_value(&stats).unwrap();
    for (name, number) in [
        ("total_workers", 1),
        ("idle_workers", 0),
        ("processing_workers", 1),
        ("total_completed", 1),
        ("total_failed", 1),
    ] {
        assert_eq!(told[name], json!(number), "{name}");
    }
    let workers = told["workers"].as_object().unwrap();
    assert_eq!(workers.keys().collect::<Vec<_>>(), ["w1"]);
    let expected = json!({
        "id": "w1", "status": "BUSY", "current_run": "runs", "unit_ids": ["runs"], "load": 1, "capacity": 1,
        "completed": 1, "failed": 1,
    });
    assert_eq!(workers["w1"], expected);
    assert_eq!(serde_json::from_value::<PoolStats>(told).unwrap(), stats);

    drop(call);
    pool.wait_for_completion();
    let told = serde_json::to_value(pool.stats()).unwrap();
    let expected = json!({
        "id": "w1", "status": "READY", "current_run": null, "unit_ids": [], "load": 0, "capacity": 1,
        "completed": 2, "failed": 1,
    });
    assert_eq!(told["workers"]["w1"], expected);
    assert_eq!((&told["idle_workers"], &told["processing_workers"]), (&json!(1), &json!(0)));
    let summary = pool.stop(Stop::Drain).unwrap();
    let told = serde_json::to_string(&summary).unwrap();
    assert_eq!(serde_json::from_str::<workcrew::Summary>(&told).unwrap(), summary);
    assert!(summary.stats.workers.is_empty());
    assert_eq!((summary.stats.completed, summary.stats.failed), (2, 1));
    world.assert_clean();
}

#[test]
fn a_pool_has_a_name_and_a_size() {
    // 001-F7, 001-F8, 001-F9, 001-F10
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).label("the night shift").max_workers(2).scaling(workcrew::Scaling::Fixed).up();
    assert_eq!((pool.label(), pool.stats().target_workers), ("the night shift", 2));
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let of = |status| {
        move |worker: &workcrew::WorkerView| (worker.status == status).then(|| (worker.id.to_string(), worker.load))
    };
    let workers = pool.workers();
    let busy: Vec<_> = workers.iter().filter_map(of(WorkerStatus::Busy)).collect();
    let available: Vec<_> = workers.iter().filter_map(of(WorkerStatus::Ready)).collect();
    assert_eq!((busy.len(), busy[0].1, available.len(), available[0].1), (1, 1, 1, 0));
    drop(call);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn how_long_a_pool_took_to_come_up_is_known_when_it_is_up() {
    // 001-F5
    for _ in 0..300 {
        let world = World::new();
        let (pool, _stage) = world.staged(1);
        assert!(pool.init_time().is_some());
    }
}

#[test]
fn each_request_and_each_execution_is_counted() {
    // 001-F15
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).max_queue_size(2).queue_timeout(Duration::from_secs(60)), &stage);
    enqueue(&pool, "late");
    enqueue(&pool, "gone");
    pool.enqueue(NewUnit::new("refused"), "go").unwrap_err();
    pool.submit_work_unit(NewUnit::new("refused"), "go").unwrap_err();
    pool.cancel("gone", By::whom("ada")).unwrap();
    world.clock.advance(Duration::from_secs(61));
    until(|| pool.stats().queue_timeouts == 1);
    let again = enqueue(&pool, "again");
    call.succeed("done");
    for attempt_number in 1..=2 {
        let call = stage.next();
        assert_eq!(call.attempt_number, attempt_number);
        match attempt_number {
            1 => call.fail(ExecuteError::retry("again")),
            _ => {
                // It takes too long, and stops when it is asked to.
                world.clock.advance(Duration::from_secs(600));
                call.obey(Err(ExecuteError::give_up("stopped")));
            }
        }
    }
    stage.next().fail(ExecuteError::give_up("no"));
    assert_eq!(again.wait().unwrap().status, UnitStatus::Failed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_adds_up(&stats);
    let [requests, queued, saturated, queue_timeouts, errors, rest @ ..] = totals(&stats);
    assert_eq!((requests, queued, saturated, queue_timeouts), (6, 3, 1, 1));
    // accepted, completed, failed, cancelled, lost, attempts, retried
    assert_eq!((errors, rest), (3, [4, 1, 2, 1, 0, 4, 2]));
    world.assert_clean();
}

#[test]
fn every_look_adds_up_and_nothing_that_was_counted_is_forgotten() {
    // 000-F6, 000-F7, 000-F34, 001-F8, 001-F9, 001-F10, 001-F15
    const UNITS: u64 = 150;
    for scaling in [Scaling::OnDemand, Scaling::Threshold { queued: 2, idle: Duration::ZERO }] {
        let world = World::new();
        let executor = |call: &Call<'_>| match call.unit().id.as_str().as_bytes().last() {
            Some(b'3') if call.attempt_number() == 1 => panic!("planned"),
            Some(b'5') if call.attempt_number() == 1 => Err(ExecuteError::retry("again")),
            Some(b'7') => Err(ExecuteError::give_up("no")),
            _ => Ok(WorkResult::text("done")),
        };
        let builder = world.pool(executor).max_workers(4).max_queue_size(10).max_units_per_worker(3).scaling(scaling);
        let pool = builder.on_unit_complete(|_, _| thread::yield_now()).up();
        let (is_over, looks) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|threads| {
            let looking = threads.spawn(|| {
                let mut before = totals(&pool.stats());
                while !is_over.load(Ordering::SeqCst) {
                    let stats = pool.stats();
                    assert_adds_up(&stats);
                    let now = totals(&stats);
                    assert!(now.iter().zip(before).all(|(now, before)| *now >= before), "{before:?}, {now:?}");
                    before = now;
                    looks.fetch_add(1, Ordering::SeqCst);
                }
            });
            let bringing: Vec<_> = (0..3_u64)
                .map(|brings| {
                    let pool = &pool;
                    threads.spawn(move || {
                        for number in 0..UNITS / 3 {
                            let id = format!("{brings}-{number}");
                            while pool.enqueue(NewUnit::new(id.as_str()), "go").is_err() {
                                thread::yield_now();
                            }
                            match number % 10 {
                                4 => drop(pool.cancel(&id, By::whom("ada"))),
                                6 => pool.set_max_workers(2 + number as usize % 3).unwrap(),
                                8 => {
                                    pool.pause();
                                    pool.resume();
                                }
                                _ => {}
                            }
                        }
                    })
                })
                .collect();
            for thread in bringing {
                thread.join().unwrap();
            }
            assert_eq!(pool.wait_for_completion(), Completion::Done);
            is_over.store(true, Ordering::SeqCst);
            looking.join().unwrap();
        });
        assert!(looks.load(Ordering::SeqCst) > 0);
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_adds_up(&stats);
        assert_eq!(stats.completed + stats.failed + stats.cancelled, UNITS);
        assert_eq!((stats.failed, stats.lost, stats.queue_size, stats.total_workers), (15, 0, 0, 0));
        world.assert_clean_after_crashes();
    }
}

#[test]
fn what_a_worker_did_counts_when_it_has_gone() {
    // 001-F83
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(2).max_units_per_worker(1).up();
    for (count, id) in (1..).zip(["a", "b", "c"]) {
        let handle = enqueue(&pool, id);
        stage.next().succeed("done");
        handle.wait().unwrap();
        until(|| pool.stats().idle_workers == 1);
        let stats = pool.stats();
        assert_eq!((stats.completed, stats.attempts, stats.total_workers), (count, count, 1));
        let worker = stats.workers.values().next().unwrap();
        assert_eq!((worker.completed, worker.failed), (0, 0), "it is another one");
    }
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 3);
    world.assert_clean();
}

#[test]
fn a_worker_on_its_way_out_has_nothing_in_hand() {
    // 003-F58
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).max_units_per_worker(1).up();
    let handle = enqueue(&pool, "a");
    let (call, gate) = (stage.next(), Gate::closed());
    faulty.on(Verb::ChangeWorker, Fault::Gate(gate.clone()));
    drop(call);
    gate.wait_for(1);
    let leaving = pool.workers().remove(0);
    gate.open();
    handle.wait().unwrap();
    assert_eq!((leaving.status, leaving.completed), (WorkerStatus::ShuttingDown, 1));
    assert_eq!(leaving.unit_id, None);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn how_much_there_is_to_do_and_how_full_the_queue_is_follow_from_the_numbers() {
    // 001-F69
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(2).max_queue_size(2).up();
    let seen = || (pool.stats().activity(), pool.stats().queue_state());
    assert_eq!(seen(), (Activity::Idle, QueueState::Empty));
    let expected = [
        (Activity::Active, QueueState::Empty),
        (Activity::AtCapacity, QueueState::Empty),
        (Activity::AtCapacity, QueueState::HasRequests),
        (Activity::AtCapacity, QueueState::Saturated),
    ];
    for (id, state) in ["a", "b", "c", "d"].into_iter().zip(expected) {
        enqueue(&pool, id);
        assert_eq!(seen(), state);
    }
    drop(stage.next_many(2));
    drop(stage.next_many(2));
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    assert_eq!(seen(), (Activity::Idle, QueueState::Empty));
    pool.pause();
    enqueue(&pool, "e");
    assert_eq!(seen(), (Activity::Idle, QueueState::HasRequests), "nothing is done, though there is enough to do");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pool_says_once_why_it_stops_and_what_it_leaves() {
    // 001-F85, 001-F86
    support::keep_log();
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).label("drained"), &stage);
    for id in ["a", "b"] {
        enqueue(&pool, id);
    }
    assert!(support::logged("drained").is_empty());
    until(|| pool.init_time().is_some());
    thread::scope(|threads| {
        threads.spawn(|| pool.wait_for_available_slot());
        until(|| pool.stats().slot_waiters == 1);
        threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| pool.stats().phase == PoolPhase::Draining);
        drop(call);
    });
    pool.stop(Stop::Now).unwrap();
    pool.handle().stop(Stop::Now);
    drop(pool);
    let numbers = "initialized true, workers 1, available 0, busy 1, queued 2, waiters 1";
    let expected = [
        "INFO the pool `drained` stops: asked to finish what runs".to_owned(),
        format!("DEBUG the pool `drained` stops: {numbers}"),
    ];
    assert_eq!(support::logged("drained"), expected);
    world.assert_clean();
}

#[test]
fn whatever_makes_a_pool_stop_is_told() {
    // 001-F85, 001-F86
    support::keep_log();
    let world = World::new();
    let up = |builder: WorkPoolBuilder| {
        let pool = builder.up();
        until(|| pool.init_time().is_some());
        pool
    };
    let told_by = |label: &str, level: &str, is_initialized: bool, end: &dyn Fn(WorkPoolBuilder)| {
        let (part, _stage) = stage();
        end(world.pool(part).label(label));
        let lines = support::logged(label);
        assert_eq!(lines.len(), 2, "{lines:?}");
        let numbers = format!("DEBUG the pool `{label}` stops: initialized {is_initialized}, workers ");
        assert!(lines[1].starts_with(&numbers), "{lines:?}");
        lines[0].strip_prefix(&format!("{level} the pool `{label}` stops: ")).unwrap().to_owned()
    };
    assert_eq!(told_by("dropped", "INFO", true, &|builder| drop(up(builder))), "it was dropped");
    let now = told_by("now", "INFO", true, &|builder| {
        up(builder).stop(Stop::Now).unwrap();
    });
    assert_eq!(now, "asked to stop at once");
    let by_handle = told_by("by handle", "INFO", true, &|builder| {
        let pool = up(builder);
        pool.handle().stop(Stop::Cancel { grace: Duration::from_secs(5) });
    });
    assert_eq!(by_handle, "asked to cancel what runs, within 5s");
    // Nobody asked for that.
    let failed = told_by("failed", "WARN", false, &|builder| {
        let pool = builder.init_hook(|_| Err(ExecuteError::give_up("no server"))).start().unwrap();
        until(|| world.repository.owners().unwrap().iter().all(|owner| owner.ended_at.is_some()));
        drop(pool);
    });
    assert_eq!(failed, "it could not be started: init_hook: executor: no server");
    world.assert_clean();
}

#[test]
fn a_pool_that_could_not_be_started_says_so_once() {
    // 001-F85
    support::keep_log();
    let world = World::new();
    let (part, _stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (stored, hook) = (Gate::closed(), Gate::closed());
    let pool = builder
        .label("never up")
        .init_hook({
            let hook = hook.clone();
            move |_| {
                hook.pass();
                Err(ExecuteError::give_up("no server"))
            }
        })
        .start()
        .unwrap();
    // A unit that is being stored holds up its end.
    faulty.on(Verb::Insert, Fault::Gate(stored.clone()));
    thread::scope(|threads| {
        threads.spawn(|| enqueue(&pool, "a"));
        stored.wait_for(1);
        hook.open();
        until(|| support::logged("never up").len() == 2);
        threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        pool.stop_timeout(Stop::Drain, Duration::from_millis(1)).unwrap();
        stored.open();
    });
    drop(pool);
    assert_eq!(support::logged("never up").len(), 2, "{:?}", support::logged("never up"));
    world.assert_clean();
}

#[test]
fn a_pool_that_did_not_even_register_says_so_once() {
    // 001-F85
    support::keep_log();
    let world = World::new();
    let (part, _stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    faulty.on(Verb::RegisterOwner, Fault::ErrorAlways);
    let pool = builder.label("unregistered").build().unwrap();
    pool.start().unwrap_err();
    for _ in 0..2 {
        pool.stop(Stop::Drain).unwrap();
    }
    drop(pool);
    let lines = support::logged("unregistered");
    assert_eq!(lines.iter().filter(|line| line.starts_with("INFO")).count(), 1, "{lines:?}");
}

#[test]
fn a_pool_that_is_stopped_while_it_comes_up_says_who_waits_in_vain() {
    // 001-F21, 001-F86, 001-F87
    support::keep_log();
    let world = World::new();
    let (part, _stage) = stage();
    let hook = Gate::closed();
    let pool = world
        .pool(part)
        .label("in vain")
        .init_hook({
            let hook = hook.clone();
            move |_| {
                hook.pass();
                Ok(())
            }
        })
        .start()
        .unwrap();
    thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| pool.await_init_complete().unwrap_err());
        }
        threads.spawn(|| pool.await_ready().unwrap_err());
        until(|| pool.stats().init_waiters == 3);
        threads.spawn(|| pool.stop(Stop::Drain).unwrap());
        until(|| support::logged("in vain").len() == 3);
        hook.open();
    });
    assert_eq!(pool.stats().init_waiters, 0);
    let expected = [
        "INFO the pool `in vain` stops: asked to finish what runs",
        "DEBUG the pool `in vain` stops: initialized false, workers 0, available 0, busy 0, queued 0, waiters 0",
        "INFO the pool `in vain` stops: waited for in vain by 3",
    ];
    assert_eq!(support::logged("in vain"), expected);
    world.assert_clean();
}

/// A pool whose observer tells of workers and the queue, and of attempts: `ready w1`.
fn tells_workers(builder: WorkPoolBuilder) -> (WorkPoolBuilder, Receiver<String>) {
    let (tell, events) = unbounded();
    let observer = move |event: &Event<'_>| {
        let line = match event {
            Event::UnitQueued { unit_id } => format!("queued {unit_id}"),
            Event::WorkerReady { worker_id } => format!("ready {worker_id}"),
            Event::WorkerStartFailed { worker_id, reason } => format!("start of {worker_id} failed: {reason}"),
            Event::WorkerTainted { worker_id, reason } => format!("tainted {worker_id}: {reason}"),
            Event::WorkerEnded { worker_id, has_crashed: true } => format!("crashed {worker_id}"),
            Event::WorkerEnded { worker_id, .. } => format!("ended {worker_id}"),
            Event::AttemptStarted { unit_id, worker_id, .. } => format!("starts {unit_id} on {worker_id}"),
            Event::AttemptEnded { unit_id, status, .. } => format!("ends {unit_id}: {status}"),
            _ => return,
        };
        tell.send(line).unwrap();
    };
    (builder.observer(observer), events)
}

#[test]
fn an_observer_sees_who_waits_and_what_becomes_of_workers() {
    // 000-F25, 000-F30, 001-F57, 001-F62
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_workers(world.pool(part).retry(RetryPolicy::fixed(Duration::from_secs(60))));
    let (pool, call) = busy(builder, &stage);
    enqueue(&pool, "a");
    for line in ["ready w1", "starts first on w1", "queued a"] {
        assert_eq!(next(&events), line);
    }
    call.end(|_| panic!("a panic that the test planned"));
    let tainted = next(&events);
    assert!(tainted.starts_with("tainted w1: ") && tainted.contains("that the test planned"), "{tainted}");
    assert_eq!(next(&events), "ends first: PENDING");
    // From here on two threads tell: the one that ends, and the one that takes its place.
    drop(stage.next());
    until(|| events.len() >= 4);
    let lines: Vec<_> = events.try_iter().take(4).collect();
    assert!(lines.contains(&"crashed w1".to_owned()), "{lines:?}");
    let w2: Vec<_> = lines.iter().filter(|line| !line.contains("w1")).collect();
    assert_eq!(w2, ["ready w2", "starts a on w2", "ends a: COMPLETED"]);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(events.try_iter().collect::<Vec<_>>(), ["ended w2"]);
    world.assert_clean_after_crashes();
}

/// An executor whose first worker does not come up.
struct FirstFails(Part);

impl Executor for FirstFails {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.0.execute(call)
    }

    fn start_worker(&self, worker_id: &WorkerId, _: &CancelToken) -> Result<(), ExecuteError> {
        if worker_id.as_str() == "w1" { Err(ExecuteError::give_up("no server")) } else { Ok(()) }
    }
}

#[test]
fn an_observer_sees_a_worker_that_does_not_come_up() {
    // 001-F34, 001-F35
    let world = World::new();
    let (part, stage) = stage();
    let (builder, events) = tells_workers(world.pool(FirstFails(part)).min_workers(2).max_workers(2));
    let pool = builder.up();
    until(|| events.len() >= 3);
    let mut lines: Vec<_> = events.try_iter().collect();
    lines.sort();
    let failed = "start of w1 failed: worker w1: executor: no server";
    assert_eq!(lines, ["crashed w1", "ready w2", failed]);
    assert_eq!((pool.stats().total_workers, pool.stats().free_slots), (1, 2));
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty());
    world.assert_clean_after_crashes();
}
