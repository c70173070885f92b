//! What runs, what waits, what nobody looks after any more: asked from beside the pool.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use workcrew::audit::questions;
use workcrew::clock::{Clock, ManualClock};
use workcrew::repository::sqlite::{SqliteArchive, SqliteOptions};
use workcrew::repository::{Claimant, LeaseView, Slot, Staleness, Submitted};
use workcrew::{
    Archive, Claim, JobId, NewJob, NewOwner, NewUnit, OwnerId, Process, Repository, SqliteRepository, WorkerId,
};

use crate::children::{self, Role, hear, say};
use crate::support;

const HOUR: Duration = Duration::from_secs(3_600);

/// A unit of this name, claimed for an owner by a worker of the same name.
fn claimed(repository: &dyn Repository, job: JobId, owner: OwnerId, id: &str, ttl: Duration) -> Claim {
    let slot = Slot::new(WorkerId::new(id).unwrap());
    let unit = NewUnit::new(id).prompt("Do it.");
    match repository.submit(job, &unit, &Claimant::new(owner, ttl), &slot).unwrap() {
        Submitted::Claimed(claim) => *claim,
        other => panic!("{id} was not claimed: {other:?}"),
    }
}

#[test]
fn an_archive_answers_by_a_clock_of_its_own() {
    // 003-F59, 003-F61.
    let (folder, clock) = (support::folder(), ManualClock::new());
    let path = folder.path().join("questions.db");
    let repository = SqliteOptions::new().clock(clock.clone()).open(&path).unwrap();
    let job = repository.create_job(&NewJob::named("job")).unwrap().id;
    let process = Process::this(&clock.boot_id());
    let owner = repository.register_owner(&NewOwner::new(process, "pool")).unwrap();
    claimed(&repository, job, owner, "short", HOUR);
    claimed(&repository, job, owner, "long", 3 * HOUR);

    let later = ManualClock::new();
    let archive = SqliteArchive::open_with_clock(&path, later.clone()).unwrap();
    let told = |archive: &dyn Archive| -> Vec<(String, i64, Option<Staleness>)> {
        let told = |lease: LeaseView| (lease.unit_id.to_string(), lease.left_ms, lease.staleness);
        questions::active(archive, None).unwrap().into_iter().map(told).collect()
    };
    let (short, long) = ("short".to_owned(), "long".to_owned());
    assert_eq!(told(&archive), [(short.clone(), 3_600_000, None), (long.clone(), 10_800_000, None)]);
    later.advance(2 * HOUR);
    let ran_out = Some(Staleness::RanOut);
    assert_eq!(told(&archive), [(short.clone(), -3_600_000, ran_out), (long.clone(), 3_600_000, None)]);
    assert_eq!(told(&repository)[0].2, None, "for the repository no time has passed");
    later.reboot();
    let gone = Some(Staleness::OtherBoot);
    assert_eq!(told(&archive), [(short, 0, gone), (long, 0, gone)]);
}

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn child() {
    let Some(_) = children::role() else { return };
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named("job")).unwrap().id;
    let owner = support::owner(&repository, "child");
    claimed(&repository, job, owner, "held", HOUR);
    say("it runs");
    hear();
}

fn stale(path: &Path) -> Vec<LeaseView> {
    questions::stale(&SqliteArchive::open(path).unwrap(), None).unwrap()
}

#[test]
fn what_a_process_that_was_killed_held_is_stale_at_once_for_whoever_reads() {
    // 003-F61.
    let folder = support::folder();
    let path = folder.path().join("questions.db");
    let mut child = Role::new("questions::child", "hold", &path).start();
    child.wait_for("it runs");
    assert_eq!(stale(&path), []);
    child.signal(Signal::KILL);
    child.end();
    let stale = stale(&path);
    assert_eq!(stale.iter().map(|lease| lease.staleness).collect::<Vec<_>>(), [Some(Staleness::OwnerDied)]);
    assert!(stale[0].left_ms > 3_000_000, "and its lease would have lasted: {stale:?}");
}
