//! What a pool does that was told nothing but what it cannot know: each default, seen in a pool that runs.
//!
//! | default | what shows it |
//! |---|---|
//! | `db_path` (003-F5) | there is none: whoever opens a repository says where its file is |
//! | `gateway_url` (003-F13) | there is none: whoever builds a pool says what executes its units, see the `handlers` |
//! | `worker_id` (003-F14) | a pool is an owner of its own; a [label](workcrew::WorkPoolBuilder::label) can be given, and its workers are numbered |
//! | `poll_interval` (003-F12) | what another process queues is found with the next poll, see `pulling` |
//! | all others (003-F6 to 003-F11) | the first test here |

use std::time::Duration;

use workcrew::{Archive, NewUnit, Scaling, Stop, WorkPool};

use super::{World, assert_quiet, stage, until};
use crate::support::Up as _;

const MOMENT: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn each_default_holds_in_a_pool_that_was_told_nothing() {
    // 003-F6 to 003-F11, 003-F15
    let world = World::new();
    let (part, stage) = stage();
    let builder = WorkPool::builder(world.job, part, world.repository.clone());
    let pool = builder.scaling(Scaling::THRESHOLD).clock(world.clock.clone()).up();
    let workers = || pool.stats().total_workers;
    assert_eq!((workers(), pool.stats().idle_workers), (1, 1), "min_workers");
    let enqueue = |id: &str| drop(pool.enqueue(NewUnit::new(id), "go").unwrap());
    enqueue("first");
    let mut calls = vec![stage.next()];
    let left_ms = || world.repository.leases(None, 0, 10).unwrap().items[0].left_ms;
    assert_eq!(left_ms(), 60_000, "lease_ttl");
    for _ in 0..8 {
        world.clock.advance(15 * SECOND - MOMENT);
        assert_eq!(left_ms(), 45_001, "heartbeat_interval");
        world.clock.advance(MOMENT);
        until(|| left_ms() == 60_000);
    }

    ["1", "2", "3", "4"].into_iter().for_each(enqueue);
    assert_quiet(&stage.calls);
    assert_eq!(workers(), 1, "scale_up_threshold: four wait");
    enqueue("5");
    calls.push(stage.next());
    assert_eq!(workers(), 2, "scale_up_threshold");
    (6..40).for_each(|number| enqueue(&number.to_string()));
    calls.extend([stage.next(), stage.next()]);
    assert_quiet(&stage.calls);
    assert_eq!(workers(), 4, "max_workers");
    let left = calls.len()..40;
    drop(calls);
    left.for_each(|_| drop(stage.next()));
    pool.wait_for_completion();

    world.clock.advance(300 * SECOND);
    assert_quiet(&stage.calls);
    assert_eq!(workers(), 4, "scale_down_idle: not longer than that");
    for left in [3, 2, 1] {
        world.clock.advance(SECOND);
        until(|| workers() == left);
    }
    for _ in 0..24 {
        world.clock.advance(3_600 * SECOND);
        assert_quiet(&stage.calls);
    }
    assert_eq!(workers(), 1, "min_workers");

    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_pool_can_be_given_a_name_and_is_told_from_others_of_that_name() {
    // 003-F14
    let world = World::new();
    let pool = |label: Option<&str>| {
        let (part, stage) = stage();
        let builder = WorkPool::builder(world.job, part, world.repository.clone()).clock(world.clock.clone());
        let pool = label.into_iter().fold(builder, |builder, label| builder.label(label)).up();
        pool.enqueue(NewUnit::generated(), "go").unwrap();
        let worker = stage.next().worker.clone();
        pool.stop(Stop::Drain).unwrap();
        worker
    };
    let workers = [pool(None), pool(Some("night shift")), pool(Some("night shift"))];
    assert_eq!(workers, ["w1", "w1", "w1"], "a worker is named by its owner and its number");
    let owners = world.repository.owners().unwrap();
    let labels: Vec<&str> = owners.iter().map(|owner| owner.label.as_str()).collect();
    assert_eq!(labels, ["workcrew", "night shift", "night shift"]);
    assert!(owners[0].instance != owners[1].instance && owners[1].instance != owners[2].instance);
    assert!(owners.iter().all(|owner| world.repository.workers(owner.id, "", 9).unwrap().len() == 1));
    world.assert_clean();
}
