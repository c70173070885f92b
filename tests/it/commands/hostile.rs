//! Children that do not end, or not as they should: each is ended by a limit, and what it said is kept.

use std::time::Duration;

use workcrew::clock::ManualClock;
use workcrew::executor::{CommandExecutor, kinds};
use workcrew::repository::By;
use workcrew::{NewUnit, Outcome, Stop, UnitStatus};

use super::{LONG, World, until};
use crate::support::Up as _;

/// How long a child may be silent: far longer than it takes to start and to say a word.
const SOON: Duration = Duration::from_secs(3);

/// What an attempt may take, by a clock that a test moves.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A script, a limit that ends it, and how it must end.
struct Case {
    script: &'static str,
    limit: fn(CommandExecutor) -> CommandExecutor,
    kind: &'static str,
}

const TIMED_OUT: Case = Case { script: "", limit: |executor| executor, kind: kinds::TIMED_OUT };

#[test]
fn each_hostile_child_ends_by_a_limit_with_what_it_said_and_nothing_is_left() {
    let silent: fn(CommandExecutor) -> CommandExecutor = |executor| executor.silence_limit(SOON);
    let cases = [
        Case { script: "echo said; trap '' TERM INT HUP; while :; do sleep 9; done", ..TIMED_OUT },
        Case { script: "echo said; setsid sh -c 'trap \"\" TERM HUP; sleep 999' & sleep 999", ..TIMED_OUT },
        Case { script: "echo said; kill -STOP $$", ..TIMED_OUT },
        Case { script: "echo said; exec >&- 2>&-; sleep 999", ..TIMED_OUT },
        Case { script: "echo said; (exec 3>&1; exec >&- 2>&-; sleep 999) & wait", ..TIMED_OUT },
        Case { script: "echo said; sleep 999", limit: silent, kind: kinds::SILENT },
        Case { script: "sleep 999", limit: |executor| executor.start_limit(SOON), kind: kinds::NEVER_SPOKE },
        Case { script: "echo said; kill -KILL $$", kind: kinds::KILLED, ..TIMED_OUT },
        Case { script: "echo said; kill -PIPE $$", kind: kinds::KILLED, ..TIMED_OUT },
    ];
    for Case { script, limit, kind } in cases {
        let clock = ManualClock::new();
        let world = World::with_clock(clock.clone());
        // A test that lets a timeout pass in a moment is not about leases.
        let builder = world.pool(limit(world.script(script).ndjson())).clock(clock.clone()).lease(10 * TIMEOUT);
        let pool = builder.timeout(TIMEOUT).up();
        let handle = pool.enqueue(NewUnit::new("a").max_retries(0), "").unwrap();
        if kind == kinds::TIMED_OUT {
            until("it has said something", || !world.said("a").is_empty());
            clock.advance(TIMEOUT);
        }
        let unit = handle.wait_timeout(LONG).unwrap();
        assert_eq!(unit.status, UnitStatus::Failed, "{script}");
        assert_eq!(unit.failure.unwrap().kind.as_str(), kind, "{script}");
        let expected: &[&str] = if script.starts_with("echo said") { &["said"] } else { &[] };
        assert_eq!(world.said("a"), expected, "{script}");
        assert_eq!(pool.stats().abandoned_threads, 0, "{script}: its executor has returned");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}

#[test]
fn a_command_that_leaves_somebody_behind_succeeds_at_once_and_they_end() {
    let world = World::new();
    let script = "setsid sh -c 'trap \"\" TERM HUP; sleep 999' & sleep 999 & echo done";
    let pool = world.pool(world.script(script)).up();
    let unit = pool.enqueue(NewUnit::new("a"), "").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("done")));
    world.assert_clean();
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn a_cancel_a_stop_and_a_drop_end_what_runs() {
    let script = "trap '' TERM; setsid sh -c 'trap \"\" TERM HUP; echo up; sleep 999' & sleep 999";
    for way in ["cancel", "stop", "stop now", "drop"] {
        let world = World::new();
        let pool = world.pool(world.script(script)).up();
        let handle = pool.enqueue(NewUnit::new("a"), "").unwrap();
        until("the grandchild is there", || super::marked(&world.mark).len() >= 4);
        match way {
            "cancel" => {
                pool.cancel("a", By::new("a test", "")).unwrap();
                assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
                pool.stop(Stop::Drain).unwrap();
            }
            "stop" => drop(pool.stop(Stop::Cancel { grace: LONG }).unwrap()),
            "stop now" => drop(pool.stop(Stop::Now).unwrap()),
            _ => drop(pool),
        }
        until("all are gone", || super::marked(&world.mark).is_empty());
        let outcome = world.attempts("a")[0].outcome;
        assert_eq!(outcome, Some(if way == "cancel" { Outcome::Cancelled } else { Outcome::Released }), "{way}");
    }
}
