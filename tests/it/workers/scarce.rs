//! A host that has no descriptors left for a while: that costs an attempt, and needs nobody who sees to it.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use workcrew::{Stop, UnitStatus};

use super::*;
use crate::children::{self, Role};

#[test]
fn a_host_that_has_no_descriptors_left_tries_again_and_waits_for_nobody() {
    let folder = support::folder();
    Role::new("workers::scarce::child", "scarce", folder.path().join("scarce")).start().end_well();
}

#[test]
#[ignore = "a process of its own, which has its descriptors to itself"]
fn child() {
    if children::role().is_some() {
        run();
    }
}

fn run() {
    let world = World::new();
    let may_connect = world.folder.path().join("may connect");
    let command = world.command("connects when it may").env(worker::MAY_CONNECT, &may_connect);
    let workers = WorkerProcesses::new(command, world.keep(1).ready_timeout(10 * LONG)).unwrap();
    let (builder, processes) = world.builder(workers);
    let pool = builder.up();
    let enqueue = |id: &str| pool.enqueue(NewUnit::new(id).max_retries(0), "go").unwrap();
    let kind_of = |unit: WorkUnit| unit.failure.unwrap().kind.as_str().to_owned();

    let plenty = leave_none();
    assert_eq!(kind_of(enqueue("no socket").wait_timeout(LONG / 2).unwrap()), "not_started");
    setrlimit(Resource::Nofile, plenty).unwrap();
    assert_eq!(world.wait_for("worker:crashed"), "worker:crashed 1: it could not be started");

    let unit = enqueue("not let in");
    until("it was started", || processes.list().first().is_some_and(|view| view.process.is_some()));
    let plenty = leave_none();
    std::fs::create_dir(&may_connect).unwrap();
    assert_eq!(kind_of(unit.wait_timeout(LONG / 2).unwrap()), "not_started");
    setrlimit(Resource::Nofile, plenty).unwrap();
    let crashed = world.wait_for("worker:crashed");
    assert!(crashed.starts_with("worker:crashed 2: it could not be let in: "), "{crashed}");

    assert_eq!(pool.stats().hold, None);
    assert_eq!(enqueue("later").wait_timeout(LONG / 2).unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

/// Leaves no descriptor that this process could open; the limit that there was.
fn leave_none() -> Rlimit {
    let plenty = getrlimit(Resource::Nofile);
    let next = File::open("/dev/null").unwrap().as_raw_fd();
    setrlimit(Resource::Nofile, Rlimit { current: Some(next.unsigned_abs().into()), ..plenty }).unwrap();
    plenty
}
