//! Hosts that are killed or stopped while they keep workers.

use workcrew::clock::{Clock, SystemClock};
use workcrew::{Call, Event, ExecuteError, Outcome, Process, SqliteRepository, Stop, UnitStatus, WorkResult};

use super::*;
use crate::children::{self, Child, Role, say, was_killed};
use crate::commands::killed::stop_outside_of_a_transaction;

const JOB: &str = "kept";

/// How many workers a host keeps.
const WORKERS: usize = 4;

/// How often a host is killed.
const ROUNDS: usize = 10;

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn host() {
    if children::role().is_some() {
        run();
    }
}

/// Runs all units, and says so when each of them has said something.
fn run() {
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let command = WorkerCommand::new(std::env::current_exe().unwrap())
        .args(worker::ARGUMENTS)
        .env(worker::ROLE, "good")
        .pass_env(MARK);
    let sockets = children::path().with_extension("sockets");
    let workers = WorkerProcesses::new(command, Keep::up_to(WORKERS).socket_directory(sockets)).unwrap();
    let count = repository.backlog(job, support::owner(&repository, "counts"), 100).unwrap().due;
    let heard = std::sync::atomic::AtomicUsize::new(0);
    let listen = move |event: &Event<'_>| {
        let is_said = matches!(event, Event::Said { .. });
        if is_said && heard.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1 == count {
            say("all are up");
        }
    };
    let pool = WorkPool::builder(job, workers, repository)
        .max_workers(WORKERS)
        .lease(Duration::from_millis(800))
        .heartbeat(Duration::from_millis(100))
        .observer(listen)
        .up();
    say(format_args!("{:?}", pool.process_pending()));
    pool.stop(Stop::Drain).unwrap();
}

/// A database with units that never end, and a host that executes them.
struct Kept {
    world: World,
    repository: SqliteRepository,
    job: JobId,
    host: Child,
}

impl Kept {
    fn start(count: usize) -> Kept {
        let world = World::new();
        let path = world.folder.path().join("kept.db");
        let repository = SqliteRepository::open(&path).unwrap();
        let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
        let units: Vec<_> = (0..count).map(|n| NewUnit::new(format!("u{n}")).prompt("hang")).collect();
        repository.queue_units(job, &units).unwrap();
        let mut host = Role::new("workers::hosts::host", "host", path).env(MARK, &world.mark).start();
        host.wait_for("all are up");
        Kept { world, repository, job, host }
    }
}

#[test]
fn when_a_host_is_killed_nothing_of_its_workers_is_left() {
    for round in 0..ROUNDS {
        let Kept { world, host, .. } = Kept::start(WORKERS);
        assert!(marked(&world.mark).len() > 2 * WORKERS, "the host, reapers and workers");
        host.signal(Signal::KILL);
        assert!(was_killed(host.end().0));
        until(&format!("round {round}: all are gone"), || marked(&world.mark).is_empty());
    }
}

#[test]
fn the_worker_of_a_stopped_host_is_ended_before_the_next_attempt_begins_and_only_for_that() {
    let Kept { world, repository, job, host } = Kept::start(1);
    stop_outside_of_a_transaction(&repository, &host);
    let attempts = repository.attempts(repository.unit(job, "u0").unwrap().key).unwrap();
    let worker: Process = attempts[0].process.clone().unwrap();
    assert!(worker.is_shared && worker.is_provably_alive(&SystemClock.boot_id()));
    let looks = {
        let worker = worker.clone();
        move |_: &Call<'_>| -> Result<WorkResult, ExecuteError> {
            let is_alone = !worker.is_provably_alive(&SystemClock.boot_id());
            Ok(WorkResult::text(if is_alone { "alone" } else { "two at once" }))
        }
    };
    let pool = WorkPool::builder(job, looks, repository.clone())
        .poll_interval(Duration::from_millis(20))
        .retry(RetryPolicy::immediate())
        .up();
    pool.process_pending();
    pool.stop(Stop::Drain).unwrap();
    let unit = repository.unit(job, "u0").unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("alone")));
    host.signal(Signal::CONT);
    host.end_well();
    let outcomes: Vec<_> =
        repository.attempts(unit.key).unwrap().iter().map(|attempt| attempt.outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Lost, Outcome::Completed]);
    world.assert_gone();
}

#[test]
fn a_worker_ends_in_time_also_while_the_thread_that_has_asked_it_is_stuck() {
    let world = World::new();
    let (builder, _processes) = world.builder(world.workers("good", world.keep(1)));
    let ((heard, hears), (tell, go_on)) = (channel(), channel());
    let go_on = std::sync::Mutex::new(go_on);
    let pool = builder
        .observer(move |event: &Event<'_>| {
            if matches!(event, Event::Said { .. }) {
                heard.send(()).unwrap();
                // On the thread of the attempt.
                let _ = go_on.lock().unwrap().recv();
            }
        })
        .up();
    let unit = pool.enqueue(NewUnit::new("a"), "hang").unwrap();
    hears.recv_timeout(LONG).unwrap();
    pool.cancel("a", workcrew::repository::By::whom("test")).unwrap();
    until("the worker is gone, though nobody has the time to end it", || marked(&world.mark).is_empty());
    tell.send(()).unwrap();
    assert_eq!(unit.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
