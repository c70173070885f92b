//! Hosts that are killed or stopped while their commands run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use workcrew::executor::CommandExecutor;
use workcrew::{
    Archive, Event, NewJob, NewUnit, Outcome, Repository, RepositoryError, RetryPolicy, SqliteRepository, Stop,
    UnitStatus, WorkPool,
};

use super::{JOB, MARK, World, marked, until};
use crate::children::{self, Child, Role, say, was_killed};
use crate::support::Up as _;

/// How many agents a host runs.
const AGENTS: usize = 8;

/// How often a host is killed, unless it is said.
const ROUNDS: usize = 10;

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn host() {
    if let Some(script) = children::role() {
        run(&script);
    }
}

/// Runs all units with a script, and says so when each of them has said something.
fn run(script: &str) {
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let executor = CommandExecutor::new("sh").args(["-c", script]).pass_env(MARK).ndjson();
    let heard = AtomicUsize::new(0);
    let count = repository.backlog(job, crate::support::owner(&repository, "counts"), 100).unwrap().due;
    let listen = move |event: &Event<'_>| {
        if matches!(event, Event::Said { .. }) && heard.fetch_add(1, Ordering::SeqCst) + 1 == count {
            say("all are up");
        }
    };
    let pool = WorkPool::builder(job, executor, repository)
        .max_workers(AGENTS)
        .lease(Duration::from_secs(2))
        .heartbeat(Duration::from_millis(100))
        .observer(listen)
        .up();
    say(format_args!("{:?}", pool.process_pending()));
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    say(format_args!("{} completed, {} lost", stats.completed, stats.lost));
}

fn start(world: &World, script: &str) -> Child {
    let path = world.folder.path().join("commands.db");
    Role::new("commands::killed::host", script, path).env(MARK, &world.mark).start()
}

#[test]
fn when_a_host_is_killed_nothing_of_its_commands_is_left() {
    // An agent, a grandchild in a session of its own that ignores what it can, and one below that.
    let script =
        "setsid sh -c 'trap \"\" TERM HUP INT; sleep 999 & echo 1; wait; sleep 999' & trap '' TERM; wait; sleep 999";
    let rounds = std::env::var("WORKCREW_KILL_ROUNDS").map_or(ROUNDS, |rounds| rounds.parse().unwrap());
    for round in 0..rounds {
        let world = World::new();
        let units: Vec<_> = (0..AGENTS).map(|n| NewUnit::new(format!("u{n}")).prompt("go")).collect();
        world.repository.queue_units(world.job, &units).unwrap();
        let mut host = start(&world, script);
        host.wait_for("all are up");
        assert!(marked(&world.mark).len() > 3 * AGENTS, "the host, reapers, agents and their children");
        host.signal(Signal::KILL);
        assert!(was_killed(host.end().0));
        until(&format!("round {round}: all are gone"), || marked(&world.mark).is_empty());
    }
}

/// Stops a host where it does not keep everybody else from writing: that would be another test.
pub(crate) fn stop_outside_of_a_transaction(repository: &SqliteRepository, host: &Child) {
    loop {
        host.signal(Signal::STOP);
        host.wait_until_stopped();
        match repository.create_job(&NewJob::named("can be written")) {
            Ok(_) => return,
            Err(RepositoryError::Busy) => host.signal(Signal::CONT),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn the_agent_of_a_stopped_host_is_ended_before_the_next_attempt_begins_in_its_workspace() {
    let world = World::new();
    // Says whether another one is at work here, then is at work itself.
    let stays = "echo $$ > agent; echo 1; trap '' TERM HUP; setsid sh -c 'trap \"\" TERM HUP; sleep 999' & while :; do sleep 9; done";
    let unit = NewUnit::new("a").prompt("go").workspace_dir(world.workspace());
    world.repository.queue_unit(world.job, &unit).unwrap();
    let mut host = start(&world, stays);
    host.wait_for("all are up");
    stop_outside_of_a_transaction(&world.repository, &host);
    let looks = "if kill -0 $(cat agent) 2> /dev/null; then echo '\"two at once\"'; else echo '\"alone\"'; fi";
    let executor = world.script(looks).ndjson();
    let pool = WorkPool::builder(world.job, executor, world.repository.clone())
        .poll_interval(Duration::from_millis(20))
        .retry(RetryPolicy::immediate())
        .up();
    pool.process_pending();
    pool.stop(Stop::Drain).unwrap();
    let unit = world.repository.unit(world.job, "a").unwrap();
    assert_eq!((unit.status, unit.result), (UnitStatus::Completed, Some("alone".into())));
    assert_eq!(marked(&world.mark).len(), 1, "the host is all that is left of its own");
    host.signal(Signal::CONT);
    let said = host.end_well();
    assert_eq!(said.last().map(String::as_str), Some("0 completed, 1 lost"));
    let outcomes: Vec<_> = world.attempts("a").iter().map(|attempt| attempt.outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Lost, Outcome::Completed]);
    world.assert_clean();
}
