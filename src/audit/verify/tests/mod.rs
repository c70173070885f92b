//! Each check is shown to pass over a life with everything in it, and to fail when one thing is altered.

mod damage;
mod invariants;
mod jobs;
mod tampered;

use std::time::Duration;

use serde_json::json;

use self::tampered::Tampered;
use super::*;
use crate::attempt::{AttemptReport, Beginning, Failure, FailureKind, Next, Progress, RELEASE_LIMIT};
use crate::clock::{Clock, ManualClock};
use crate::conversation::Message;
use crate::job::NewJob;
use crate::lease::{Lease, NewOwner};
use crate::money::{Charge, Tokens};
use crate::process::Process;
use crate::repository::memory::MemoryRepository;
use crate::repository::{By, CancelAnswer, ClaimRequest, Claimant, Intake, Repository, Scope, Slot, Submitted};
use crate::unit::{Change, NewUnit};
use crate::worker::WorkerChange;

const TTL: Duration = Duration::from_secs(60);

/// A repository with one job and one pool.
struct Pool {
    clock: ManualClock,
    repository: MemoryRepository,
    owner: OwnerId,
    job_id: JobId,
}

impl Pool {
    fn new() -> Pool {
        let clock = ManualClock::new();
        let repository = MemoryRepository::with_clock(clock.clone());
        let process = Process::this(&clock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "pool")).unwrap();
        let job_id = repository.create_job(&NewJob::named("job")).unwrap().id;
        Pool { clock, repository, owner, job_id }
    }

    fn insert(&self, id: &str) {
        let unit = NewUnit::new(id).prompt(format!("Do {id}.")).payload(json!({ "n": 1 }));
        self.repository.insert(self.job_id, &[unit], Intake::Open).unwrap();
    }

    fn claim_on(&self, worker: &str) -> Lease {
        let slots = vec![Slot::new(WorkerId::new(worker).unwrap())];
        let request = ClaimRequest::new(self.job_id, Claimant::new(self.owner, TTL), Scope::Pending, slots);
        let mut claims = self.repository.claim(&request).unwrap();
        claims.pop().expect("a unit is due").lease
    }

    fn begin(&self) -> Lease {
        let lease = self.claim_on("w1");
        self.repository.start(&lease, &Beginning::default().rendered_prompt("Do it.")).unwrap();
        self.repository.append(&lease, 0, &[Message::user("Do it."), Message::assistant("Well.")]).unwrap();
        lease
    }

    fn complete(&self, lease: &Lease) {
        let charge = Charge::unpriced("m", Tokens { input: 7, ..Tokens::default() });
        let report = AttemptReport::completed().output("Done.").result(json!({ "is": "done" })).charge(charge);
        self.repository.finish(lease, &report).unwrap();
    }

    fn lose(&self) {
        self.clock.advance(TTL * 2);
        assert_eq!(self.repository.expire(10).unwrap().len(), 1);
    }

    fn cancel(&self, id: &str) -> CancelAnswer {
        self.repository.cancel(self.job_id, id, &By::new("ada", "a mistake")).unwrap()
    }

    fn requeue(&self, id: &str) {
        self.repository.requeue(self.job_id, id, &By::whom("ada")).unwrap();
    }
}

fn failed() -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "no"), Next::Retry { after: Duration::ZERO })
}

/// Journal: 1 INSERT, 2 CLAIM, 3 START, 4 COMPLETE. Two messages.
fn completed() -> Pool {
    let pool = Pool::new();
    pool.insert("a41");
    let lease = pool.begin();
    pool.complete(&lease);
    pool
}

/// The same up to 3 START.
fn running() -> Pool {
    let pool = Pool::new();
    pool.insert("a41");
    pool.begin();
    pool
}

fn retried_lost_and_completed(pool: &Pool) {
    pool.insert("retried");
    let first = pool.begin();
    pool.repository.progress(&first, &Progress::default().session("s1")).unwrap();
    pool.repository.partial(&first, "I was about to").unwrap();
    pool.repository.finish(&first, &failed()).unwrap();
    let second = pool.begin();
    pool.repository.checkpoint_at(&second, &json!({ "page": 3 })).unwrap();
    pool.lose();
    let third = pool.begin();
    let charge = Charge::unpriced("m", Tokens { output: 9, ..Tokens::default() });
    let late = pool.repository.finish(&second, &AttemptReport::completed().output("late").charge(charge));
    assert!(matches!(late, Err(RepositoryError::Stale { .. })));
    pool.complete(&third);
}

fn cancelled_in_every_way(pool: &Pool) {
    pool.insert("cancelled");
    let lease = pool.begin();
    assert_eq!(pool.cancel("cancelled"), CancelAnswer::Requested);
    pool.complete(&lease);
    pool.requeue("cancelled");

    let lease = pool.claim_on("w1");
    pool.repository.release(&lease, None, "no time").unwrap();
    pool.claim_on("w1");
    pool.cancel("cancelled");
    pool.lose();
    pool.requeue("cancelled");

    let slot = Slot::new(WorkerId::new("w2").unwrap());
    pool.claim_on("w2");
    pool.cancel("cancelled");
    for change in [WorkerChange::ShutDown, WorkerChange::Terminate] {
        pool.repository.change_worker(pool.owner, pool.job_id, &slot, change).unwrap();
    }
    pool.requeue("cancelled");
    assert_eq!(pool.cancel("cancelled"), CancelAnswer::Cancelled);
}

fn given_back_too_often(pool: &Pool) {
    let unit = NewUnit::new("given back").prompt("Do it.").max_retries(0);
    pool.repository.insert(pool.job_id, &[unit], Intake::Open).unwrap();
    let give_back = || pool.repository.release(&pool.claim_on("w1"), None, "no time").unwrap().change;
    assert!((0..RELEASE_LIMIT).all(|_| give_back() == Change::Release));
    assert_eq!(give_back(), Change::Fail);
}

fn given_a_prompt_when_submitted(pool: &Pool) {
    let unit = NewUnit::new("prompted");
    pool.repository.insert(pool.job_id, std::slice::from_ref(&unit), Intake::Open).unwrap();
    let slot = Slot::new(WorkerId::new("w3").unwrap());
    let claimant = Claimant::new(pool.owner, TTL);
    let submitted = pool.repository.submit(pool.job_id, &unit.prompt("Now."), &claimant, &slot).unwrap();
    let Submitted::Claimed(claim) = submitted else { panic!("it was due") };
    let give_up = AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "no"), Next::GiveUp);
    pool.repository.finish(&claim.lease, &give_up).unwrap();
}

fn given_a_prompt_when_accepted(pool: &Pool) {
    let unit = NewUnit::new("accepted");
    pool.repository.insert(pool.job_id, std::slice::from_ref(&unit), Intake::Open).unwrap();
    pool.repository.insert(pool.job_id, &[unit.prompt("Later.")], Intake::AcceptedBy(pool.owner)).unwrap();
}

fn waited_too_long(pool: &Pool) {
    let unit = NewUnit::new("waited").queue_timeout(Duration::from_secs(1));
    pool.repository.insert(pool.job_id, &[unit], Intake::AcceptedBy(pool.owner)).unwrap();
    pool.lose();
}

fn purge(pool: &Pool) {
    pool.clock.advance(Duration::from_secs(1));
    let purged = pool.repository.purge(pool.clock.now().wall, &By::new("ada", "too old")).unwrap();
    assert!(purged.units > 0);
}

#[test]
fn a_life_with_everything_in_it_has_no_findings() {
    let pool = Pool::new();
    retried_lost_and_completed(&pool);
    purge(&pool);
    pool.insert("kept");
    let lease = pool.begin();
    pool.complete(&lease);
    cancelled_in_every_way(&pool);
    given_back_too_often(&pool);
    given_a_prompt_when_submitted(&pool);
    given_a_prompt_when_accepted(&pool);
    pool.cancel("accepted");
    waited_too_long(&pool);
    pool.insert("running");
    pool.begin();
    pool.insert("waiting");

    let verification = verify(&pool.repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
    assert_eq!((verification.jobs, verification.units, verification.attempts), (1, 9, 111));
    assert!(verification.messages > 10);
    assert!(verification.workers >= 3);
    assert!(verification.journal_head.is_some());
}

#[test]
fn nothing_stored_is_nothing_found() {
    let verification = verify(&MemoryRepository::new()).unwrap();
    assert_eq!(verification.to_string(), "0 units, 0 attempts, 0 messages, 0 journal rows: no findings");
    assert_eq!(verification.journal_head, None);
}

#[test]
fn a_verification_says_what_it_found() {
    let tampered = Tampered { integrity: &["page 7 is torn"], ..Tampered::nothing_of(completed()) };
    let mut verification = verify(&tampered).unwrap();
    verification.findings_left_out = 2;
    let text =
        "1 units, 1 attempts, 2 messages, 4 journal rows: 3 findings\nI13 the storage: page 7 is torn\nand 2 more";
    assert_eq!(verification.to_string(), text);
    assert!(!verification.is_clean());
    let json = serde_json::to_value(&verification).unwrap();
    assert_eq!(json["findings"][0]["invariant"], "I13");
}
