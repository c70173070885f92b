//! One of the processes is killed or frozen: others take over what it had, when they may, and it can do no harm any more.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use rustix::process::{Pid, Signal, test_kill_process};
use workcrew::repository::Staleness;
use workcrew::unit::Change;
use workcrew::{Archive as _, Outcome, UnitStatus, WorkerStatus, audit};

use super::{Act, LEASE_MS, Shared, WORKERS};
use crate::children::{Role, was_killed};

/// What is over sooner did not wait for a lease of an hour.
const AT_ONCE: Duration = Duration::from_secs(60);

#[test]
fn what_a_killed_process_had_is_taken_over_at_once_and_carried_on_however_long_its_lease_is() {
    // 003-F3, 003-F37, 003-F62, 003-F69
    let shared = Shared::new([Act::Work.units(40), Act::Stay.units(WORKERS), Act::Gate.units(200)].concat());
    let mut killed = shared.start("killed");
    for _ in 0..WORKERS {
        killed.wait_for("executing");
    }
    assert_eq!(shared.executed_by("killed").len(), 40 + WORKERS, "it is in the middle");
    let mut others = ["b", "c"].map(|name| shared.start(name));
    for other in &mut others {
        other.wait_for("executing");
    }
    let began = Instant::now();
    killed.signal(Signal::KILL);
    assert!(was_killed(killed.end().0));
    for other in &mut others {
        other.tell("go on");
    }
    for other in others {
        let lines = other.end_well();
        assert!(lines.last().unwrap().starts_with("Done: "), "{lines:?}");
    }
    assert!(began.elapsed() < AT_ONCE, "it took {:?}", began.elapsed());

    for id in shared.ids_of(Act::Stay) {
        let attempts = shared.attempts(id);
        let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
        assert_eq!(outcomes, [Some(Outcome::Lost), Some(Outcome::Completed)], "{id}");
        assert!(attempts[0].is_counted && attempts[0].owner == shared.owner("killed").id);
        let journal = shared.journal(id);
        let expiry = journal.iter().find(|entry| entry.change == Change::Expire).unwrap();
        assert_eq!(expiry.reason.as_deref(), Some(Staleness::OwnerDied.reason()));
        shared.assert_resumed(id);
    }
    let all_are = |name, status| shared.workers(name).iter().all(|worker| worker.status == status);
    assert!(all_are("killed", WorkerStatus::Dead) && all_are("b", WorkerStatus::Terminated));
    let counts = shared.repository.counts(shared.job).unwrap();
    assert_eq!(counts.completed, shared.ids.len() as u64);
    shared.assert_in_order(1);
}

#[test]
fn what_a_process_of_another_pid_namespace_had_is_taken_over_when_its_lease_has_run_out_and_not_before() {
    // 003-F35, 003-F45, 003-F62: nobody can tell from here that it is dead.
    if !Role::may_have_pid_namespace() {
        return println!("skipped: there are no pid namespaces for this user");
    }
    let lease = TimeDelta::milliseconds(3_000);
    let shared = Shared::new([Act::Stay.units(WORKERS), Act::Work.units(40)].concat());
    let role = shared.role("elsewhere").env(LEASE_MS, lease.num_milliseconds());
    let mut elsewhere = role.in_pid_namespace().start();
    for _ in 0..WORKERS {
        elsewhere.wait_for("executing");
    }
    let here = shared.start("here");
    elsewhere.signal(Signal::KILL);
    assert!(was_killed(elsewhere.end().0));
    for lease in shared.repository.leases(Some(shared.job), 0, 100).unwrap().items {
        assert_ne!(lease.staleness, Some(Staleness::OwnerDied), "{lease:?}");
    }
    let lines = here.end_well();
    assert!(lines.last().unwrap().starts_with("Done: "), "{lines:?}");

    let owner = shared.owner("elsewhere");
    assert_ne!(owner.process.pid_namespace, shared.owner("here").process.pid_namespace);
    for id in shared.ids_of(Act::Stay) {
        let attempts = shared.attempts(id);
        let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
        assert_eq!(outcomes, [Some(Outcome::Lost), Some(Outcome::Completed)], "{id}");
        let journal = shared.journal(id);
        let expiry = journal.iter().find(|entry| entry.change == Change::Expire).unwrap();
        assert_eq!(expiry.reason.as_deref(), Some(Staleness::RanOut.reason()));
        // The two clocks are read one after the other.
        let held_since = owner.heartbeat_at.max(attempts[0].assigned_at);
        assert!(expiry.at - held_since >= lease - TimeDelta::milliseconds(5), "{} after {held_since}", expiry.at);
        shared.assert_resumed(id);
    }
    assert_eq!(shared.executed_by("here").len(), shared.ids.len());
    shared.assert_in_order(1);
}

#[test]
fn a_process_that_slept_through_its_lease_changes_nothing_any_more_and_ends_what_it_had_started() {
    // 003-F23, 003-F32, 003-F34
    let shared = Shared::new([Act::Hold.unit("hold")]);
    let mut frozen = shared.role("frozen").env(LEASE_MS, 1_000).start();
    let line = frozen.line().unwrap();
    let cat = line.strip_prefix("executing ").and_then(|pid| pid.parse().ok()).and_then(Pid::from_raw).unwrap();
    frozen.signal(Signal::STOP);
    frozen.wait_until_stopped();

    let lines = shared.start("other").end_well();
    assert_eq!(lines, ["Done: 1 completed, 0 left, 0 lost"]);
    let done = shared.unit("hold");
    assert_eq!((done.status, done.output.as_deref()), (UnitStatus::Completed, Some("other in attempt 2")));
    assert_eq!(test_kill_process(cat), Ok(()), "nobody has ended it yet");

    frozen.signal(Signal::CONT);
    let lines = frozen.end_well();
    assert_eq!(lines, ["asked to stop: LeaseLost", "Done: 0 completed, 0 left, 1 lost"]);
    assert!(test_kill_process(cat).is_err(), "its child is gone");
    assert_eq!(shared.unit("hold"), done, "the unit is as the other left it");
    assert_eq!(shared.notes("callback"), [["other", "hold", "COMPLETED"].map(str::to_owned).to_vec()]);
    let attempts = shared.attempts("hold");
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Lost), Some(Outcome::Completed)]);
    let late = shared.repository.attempt_result(attempts[0].key).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "too late");
    assert_eq!(attempts[0].message_count, Some(1), "what it said when it was too late is not there");
    shared.assert_resumed("hold");
    shared.assert_in_order(0);
    assert!(audit::verify(&shared.repository).unwrap().is_clean());
}
