//! A pool that is frozen for longer than its lease, and wakes up when somebody else has done its work.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use workcrew::audit::verify::Verify;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::testing::arm_from_environment;
use workcrew::{
    Archive, Call, Charge, Message, Money, NewJob, NewUnit, Outcome, Repository, SqliteRepository, Stop, Tokens,
    UnitStatus, WaitError, WorkPool, WorkResult,
};

use crate::children::{self, ClockAhead, Role, hear, say};
use crate::support;
use crate::support::Up as _;

const JOB: &str = "freeze";

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn child() {
    if children::role().is_some() {
        freeze();
    }
}

fn charge() -> Charge {
    Charge::reported("large", Tokens { output: 7, ..Tokens::default() }, Money::from_nanos(21))
}

/// A pool whose executor waits for a word of the parent, and whose lease is short.
fn freeze() {
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    arm_from_environment();
    let execute = |call: &Call<'_>| {
        call.message(Message::assistant("the first says"));
        call.usage(charge());
        say("executing");
        hear();
        Ok(WorkResult::text("the first"))
    };
    let pool = WorkPool::builder(job, execute, repository)
        .lease(Duration::from_millis(500))
        .heartbeat(Duration::from_millis(50))
        .on_unit_complete(|_, _| say("callback"))
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("s"), "go").unwrap();
    let end = handle.wait().map(|unit| unit.status);
    say(match end {
        Err(WaitError::Lost) => "lost".to_owned(),
        end => format!("{end:?}"),
    });
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    say(format_args!("{} accepted, {} lost", stats.accepted, stats.lost));
}

#[test]
fn a_pool_that_slept_through_its_lease_does_no_harm() {
    for fault in ["", "execute:committed:1:stop", "finish:before:1:stop"] {
        let folder = support::folder();
        let path = folder.path().join("freeze.db");
        let role = Role::new("pool_freeze::child", "freeze", &path);
        let mut child = if fault.is_empty() { role.start() } else { role.fault(fault).start() };
        child.wait_for("executing");
        if fault.is_empty() {
            child.signal(Signal::STOP);
        } else {
            child.tell("go on");
        }
        child.wait_until_stopped();
        overtake(&path);
        if fault.is_empty() {
            child.tell("go on");
        }
        child.signal(Signal::CONT);
        assert_eq!(child.end_well(), ["lost", "1 accepted, 1 lost"], "{fault}: no callback");
        check_overtaken(&path);
    }
}

/// Another pool takes over what a frozen one holds, as soon as its lease is over.
fn overtake(path: &Path) {
    let clock = ClockAhead::by(Duration::from_secs(1));
    let repository = SqliteOptions::new().clock(clock.clone()).open(path).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let pool = WorkPool::builder(job, |_: &Call<'_>| Ok(WorkResult::text("the second")), repository);
    let pool = pool.clock(clock).up();
    let unit = pool.submit_work_unit(NewUnit::new("s"), "go").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(unit.output.as_deref(), Some("the second"));
    pool.stop(Stop::Drain).unwrap();
}

fn check_overtaken(path: &Path) {
    let repository = SqliteRepository::open(path).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let unit = repository.unit(job, "s").unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("the second")));
    let attempts = repository.attempts(unit.key).unwrap();
    let outcomes: Vec<_> = attempts.iter().map(|attempt| attempt.outcome).collect();
    assert_eq!(outcomes, [Some(Outcome::Lost), Some(Outcome::Completed)]);
    let late = repository.attempt_result(attempts[0].key).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "the first");
    assert_eq!(repository.charges(attempts[0].key).unwrap(), [charge()]);
    assert_eq!(attempts[0].message_count, Some(1));
    let verification = Verify::new().settled().run(&repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}
