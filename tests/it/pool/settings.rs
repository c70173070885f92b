//! Settings that make no sense are refused when the pool is built, with the reason.

use std::time::Duration;

use workcrew::{ExecuteError, NewUnit, RetryPolicy, Scaling, StartError, Stop, UnitStatus, WorkPool, WorkPoolBuilder};

use super::{World, stage};

#[test]
fn bad_settings_are_refused_with_the_reason() {
    // 001-F22, 003-F12, 003-F36: a heartbeat that is not less than half of the lease is among them.
    let world = World::new();
    type Setter = fn(WorkPoolBuilder) -> WorkPoolBuilder;
    let cases: [(Setter, &str); 29] = [
        (|builder| builder.max_workers(0), "the setting `max_workers` is 0, which lets nothing be done"),
        (|builder| builder.max_workers(usize::MAX), "the setting `max_workers` is 18446744073709551615, and"),
        (|builder| builder.timeout(Duration::ZERO), "the setting `timeout` is 0ns, which leaves no time at all"),
        (|builder| builder.timeout(Duration::MAX), "the setting `timeout` is 18446744073709551615"),
        (|builder| builder.lease(Duration::ZERO), "the setting `lease` is 0ns"),
        (|builder| builder.lease(Duration::MAX), "the setting `lease` is 18446744073709551615"),
        (|builder| builder.heartbeat(Duration::ZERO), "the setting `heartbeat` is 0ns"),
        (|builder| builder.heartbeat(Duration::from_secs(30)), "the setting `heartbeat` is 30s, which must be less"),
        (|builder| builder.lease(Duration::from_secs(30)), "the setting `heartbeat` is 15s, which must be less"),
        (|builder| builder.poll_interval(Duration::ZERO), "the setting `poll_interval` is 0ns, which leaves no time"),
        (|builder| builder.poll_interval(Duration::MAX), "the setting `poll_interval` is 18446744073709551615"),
        (|builder| builder.reservation(Duration::ZERO), "the setting `reservation` is 0ns"),
        (|builder| builder.reservation(Duration::MAX), "the setting `reservation` is 18446744073709551615"),
        (|builder| builder.kill_grace(Duration::MAX), "the setting `kill_grace` is 18446744073709551615"),
        (|builder| builder.shutdown_grace(Duration::MAX), "the setting `shutdown_grace` is 18446744073709551615"),
        (|builder| builder.min_workers(5), "the setting `min_workers` is 5, which is more than the 4 of `max_workers`"),
        (|builder| builder.startup_batch(0), "the setting `startup_batch` is 0"),
        (|builder| builder.startup_timeout(Duration::ZERO), "the setting `startup_timeout` is 0ns"),
        (
            |builder| builder.startup_batch_delay(Duration::MAX),
            "the setting `startup_batch_delay` is 18446744073709551615",
        ),
        (|builder| builder.queue_timeout(Duration::ZERO), "the setting `queue_timeout` is 0ns"),
        (|builder| builder.max_worker_age(Duration::ZERO), "the setting `max_worker_age` is 0ns"),
        (|builder| builder.max_units_per_worker(0), "the setting `max_units_per_worker` is 0"),
        (|builder| builder.taint_for(Duration::MAX), "the setting `taint_for` is 18446744073709551615"),
        (
            |builder| builder.scaling(Scaling::Threshold { queued: 0, idle: Duration::ZERO }),
            "the setting `scaling` has a threshold of 0",
        ),
        (
            |builder| builder.scaling(Scaling::Threshold { queued: 1, idle: Duration::MAX }),
            "the setting `scaling` is 18446744073709551615",
        ),
        (
            |builder| builder.same_work_once(),
            "the setting `same_work_once` cannot be kept: the executor `a play` does not tell what its answers depend on",
        ),
        (|builder| builder.conversation_limit_bytes(0), "the setting `conversation_limit_bytes` is 0"),
        (|builder| builder.retry(RetryPolicy::fixed(Duration::MAX)), "the setting `retry` is 18446744073709551615"),
        (
            |builder| builder.retry(RetryPolicy::exponential(Duration::from_secs(1), Duration::MAX)),
            "the setting `retry` is 18446744073709551615",
        ),
    ];
    for (set, reason) in cases {
        let (part, _stage) = stage();
        let builder = WorkPool::builder(world.job, part, world.repository.clone());
        let error = set(builder).build().expect_err(reason);
        assert!(matches!(error, StartError::Setting { .. }));
        assert!(error.to_string().starts_with(reason), "{error}");
    }
    assert!(workcrew::Archive::owners(&world.repository).unwrap().is_empty(), "none of them began");
}

#[test]
fn four_workers_and_what_else_is_the_default() {
    // 001-F20, 003-F6, 003-F7, 003-F10, 003-F11, 003-F12, 004-F13, 004-F49
    let world = World::new();
    let (part, _stage) = stage();
    let builder = WorkPool::builder(world.job, part, world.repository.clone());
    let settings = format!("{builder:?}");
    for default in [
        "timeout: 600s",
        "retry: RetryPolicy { base: 1s, limit: 60s, is_jittered: true, after_crash: Retry }",
        "min_workers: 1",
        "scaling: OnDemand",
        "max_queue_size: 1000",
        "queue_timeout: None",
        "startup_timeout: 30s",
        "startup_batch: 10",
        "startup_batch_delay: 500ms",
        "max_worker_age: None",
        "max_units_per_worker: None",
        "taint_for: 0ns",
        "lease: 60s",
        "heartbeat: 15s",
        "poll_interval: 5s",
        "kill_grace: 1.5s",
        "shutdown_grace: 10s",
        "reservation: 30s",
        "max_abandoned: None",
        "conversation_limit_bytes: 268435456",
        "label: \"workcrew\"",
    ] {
        assert!(settings.contains(default), "{default}: {settings}");
    }
    let pool = builder.build().unwrap();
    assert_eq!(pool.stats().max_workers, 4);
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn callbacks_are_not_needed() {
    // 004-F14, 004-F15
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let good = pool.submit_work_unit(NewUnit::new("good"), "go").unwrap();
    stage.next().succeed("done");
    assert_eq!(good.wait().unwrap().status, UnitStatus::Completed);
    let bad = pool.submit_work_unit(NewUnit::new("bad"), "go").unwrap();
    stage.next().fail(ExecuteError::give_up("no"));
    assert_eq!(bad.wait().unwrap().status, UnitStatus::Failed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
