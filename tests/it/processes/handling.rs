//! What happens to units and workers when something that they need is away: what executes them, or the file itself.

use std::time::{Duration, Instant};

use rusqlite::Connection;
use workcrew::repository::{By, UnitFilter};
use workcrew::{Outcome, Repository as _, UnitStatus, WorkerStatus};

use super::{Act, FOLLOWS, LEASE_MS, Shared, WORKERS};
use crate::pool::until;

#[test]
fn what_could_not_be_reached_fails_the_unit_and_not_the_worker_and_another_process_does_it_when_it_is_wanted_again() {
    // 003-F66, 003-F67, 003-F68, 003-F69
    let shared = Shared::new([Act::Unreachable.units(2 * WORKERS), Act::Work.units(20)].concat());
    let lines = shared.start("first").end_well();
    assert_eq!(lines, ["Done: 20 completed, 0 left, 0 lost"], "its workers went on");
    let workers = shared.workers("first");
    assert!(workers.len() <= WORKERS && workers.iter().all(|worker| worker.status == WorkerStatus::Terminated));
    assert_eq!(workers.iter().map(|worker| worker.units_failed).sum::<u64>(), 2 * WORKERS as u64);
    for id in shared.ids_of(Act::Unreachable) {
        let unit = shared.unit(id);
        assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 1), "{id}");
        assert_eq!(unit.failure.unwrap().kind.as_str(), "gateway", "{id}");
    }

    let by = By::new("ada", "it answers again");
    let failed = UnitFilter::job(shared.job).failure_kind("gateway");
    assert_eq!(shared.repository.requeue_all(&failed, &by).unwrap().units, 2 * WORKERS as u64);
    let lines = shared.start("second").end_well();
    assert_eq!(lines, [format!("Done: {} completed, 0 left, 0 lost", 2 * WORKERS)]);
    for id in shared.ids_of(Act::Unreachable) {
        let outcomes: Vec<_> = shared.attempts(id).iter().map(|attempt| attempt.outcome).collect();
        assert_eq!(outcomes, [Some(Outcome::Failed), Some(Outcome::Completed)], "{id}: its history is kept");
        shared.assert_resumed(id);
    }
}

#[test]
fn what_a_process_queues_another_one_that_follows_executes() {
    // 003-F12, 003-F18
    let shared = Shared::new(Act::Gate.units(1));
    let mut follower = shared.role("follower").env(FOLLOWS, 1).start();
    follower.wait_for("executing");
    follower.tell("go on");
    until(|| shared.unit("gate-0000").status == UnitStatus::Completed);
    for id in ["later", "much later"] {
        shared.repository.queue_unit(shared.job, &Act::Work.unit(id)).unwrap();
        until(|| shared.unit(id).status == UnitStatus::Completed);
    }
    follower.tell("drain");
    let lines = follower.end_well();
    assert_eq!(lines.last().unwrap(), "Stopped: 3 completed, 0 left, 0 lost");
}

#[test]
fn a_worker_whose_process_cannot_reach_the_file_for_the_length_of_a_lease_ends_and_another_goes_on_when_it_can() {
    // 003-F63, 003-F64, 003-F65
    const LEASE: Duration = Duration::from_millis(3_000);
    let shared = Shared::new(Act::Stay.units(1));
    let mut process = shared.role("locked-out").env(LEASE_MS, LEASE.as_millis()).start();
    process.wait_for("executing");
    // Somebody else has the file, and does not give it back for longer than the lease lasts.
    let other = Connection::open(&shared.path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    until(|| began.elapsed() > LEASE);
    other.execute_batch("ROLLBACK").unwrap();
    let lines = process.end_well();
    assert_eq!(lines, ["Done: 1 completed, 0 left, 0 lost"]);

    let warnings: Vec<String> = shared.notes("log").iter().map(|words| words.join(" ")).collect();
    let tries = warnings.iter().filter(|line| line.contains("leases were not renewed")).count();
    assert!(tries >= 2, "it is tried again and again: {warnings:?}");
    let id = shared.ids[0].as_str();
    let attempts = shared.attempts(id);
    let outcomes: Vec<_> = attempts.iter().map(|attempt| (attempt.outcome, attempt.is_counted)).collect();
    let given_back = (Some(Outcome::Released), false);
    assert_eq!(outcomes, [given_back, (Some(Outcome::Completed), true)], "it let go before anybody could take it");
    assert_ne!(attempts[0].worker_id, attempts[1].worker_id, "the first one has ended");
    assert_eq!(attempts[0].owner, attempts[1].owner, "in the same process");
    shared.assert_resumed(id);
    shared.assert_in_order(0);
}
