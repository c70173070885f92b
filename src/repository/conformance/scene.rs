//! What most cases begin with: a job, an owner, units in some status.

use std::cell::Cell;
use std::fmt::Debug;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::Subject;
use crate::attempt::{Attempt, AttemptKey, AttemptReport, Beginning, Failure, FailureKind, Next};
use crate::conversation::{JSON_DEPTH_LIMIT, StoredMessage};
use crate::job::{JobId, NewJob};
use crate::lease::{Claim, Lease, NewOwner, OwnerId};
use crate::process::Process;
use crate::repository::{
    By, ClaimRequest, Claimant, Closed, Insertion, Intake, JournalEntry, PAGE_LIMIT, Page, Repository, Result, Scope,
    Slot, Submitted, Swept,
};
use crate::unit::{NewUnit, UnitKey, UnitStatus, WorkUnit};
use crate::worker::{Worker, WorkerChange, WorkerId};

/// How long the leases of the suite last.
pub(super) const TTL: Duration = Duration::from_secs(60);

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// Something that happens to a unit that is leased, or was.
pub(super) type Act = fn(&Scene<'_>, &Lease);

/// A repository with a job and an owner.
pub(super) struct Scene<'a> {
    pub(super) repository: &'a dyn Repository,
    pub(super) job: JobId,
    pub(super) owner: OwnerId,
    subject: &'a dyn Subject,
    workers: Cell<u32>,
}

/// All that is known about a unit: if nothing of it changed, this did not.
#[derive(Debug, PartialEq)]
pub(super) struct Snapshot {
    unit: WorkUnit,
    attempts: Vec<Attempt>,
    journal: Vec<JournalEntry>,
    messages: Vec<Vec<StoredMessage>>,
}

impl<'a> Scene<'a> {
    pub(super) fn open(subject: &'a dyn Subject) -> Scene<'a> {
        let repository = subject.repository();
        let job = repository.create_job(&NewJob::named("conformance")).expect("a fresh repository takes a job").id;
        let process = Process::this(&subject.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "suite")).expect("and an owner");
        Scene { repository, job, owner, subject, workers: Cell::new(0) }
    }

    pub(super) fn now(&self) -> DateTime<Utc> {
        self.subject.now()
    }

    pub(super) fn advance(&self, by: Duration) {
        self.subject.advance(by);
    }

    pub(super) fn set_calendar(&self, by: TimeDelta) -> bool {
        self.subject.set_calendar(by)
    }

    /// Whether an owner of another boot may live on another machine.
    pub(super) fn spans_machines(&self) -> bool {
        self.subject.spans_machines()
    }

    /// Where we are, as an owner says it.
    pub(super) fn this_process(&self) -> Process {
        Process::this(&self.subject.boot_id())
    }

    /// Another pool in a process.
    pub(super) fn owner_in(&self, process: Process) -> OwnerId {
        self.repository.register_owner(&NewOwner::new(process, "another")).expect("an owner can be registered")
    }

    /// Another pool that lives.
    pub(super) fn other_owner(&self) -> OwnerId {
        self.owner_in(self.this_process())
    }

    /// A worker that nobody has used.
    pub(super) fn slot(&self) -> Slot {
        self.workers.set(self.workers.get() + 1);
        slot(&format!("worker-{}", self.workers.get()))
    }

    pub(super) fn slots(&self, count: usize) -> Vec<Slot> {
        (0..count).map(|_| self.slot()).collect()
    }

    pub(super) fn insert(&self, unit: NewUnit) -> UnitKey {
        self.insert_with(unit, Intake::Open)
    }

    pub(super) fn insert_all(&self, ids: &[&str]) {
        for id in ids {
            self.insert(work(id));
        }
    }

    /// Inserts a unit for the scene's owner.
    pub(super) fn accept(&self, unit: NewUnit) -> UnitKey {
        self.insert_with(unit, Intake::AcceptedBy(self.owner))
    }

    fn insert_with(&self, unit: NewUnit, intake: Intake) -> UnitKey {
        let answers = self.repository.insert(self.job, &[unit], intake).expect("a valid unit can be inserted");
        match answers[..] {
            [Insertion::Inserted(key)] => key,
            _ => panic!("a new unit was not inserted: {answers:?}"),
        }
    }

    pub(super) fn request(&self, owner: OwnerId, scope: Scope, slots: Vec<Slot>) -> ClaimRequest {
        ClaimRequest::new(self.job, Claimant::new(owner, TTL), scope, slots)
    }

    /// Claims up to `count` units of any that wait.
    pub(super) fn claim_up_to(&self, count: usize) -> Vec<Claim> {
        self.claim_as(self.owner, Scope::Pending, count)
    }

    pub(super) fn claim_as(&self, owner: OwnerId, scope: Scope, count: usize) -> Vec<Claim> {
        let request = self.request(owner, scope, self.slots(count));
        self.repository.claim(&request).expect("a living owner's fresh workers can claim")
    }

    /// Claims the next unit, which must exist.
    pub(super) fn claim(&self) -> Claim {
        self.claim_up_to(1).pop().expect("a unit waits")
    }

    /// A new unit of this name, claimed.
    pub(super) fn assigned(&self, id: &str) -> Claim {
        self.assign(work(id))
    }

    /// This unit, claimed for the scene's owner.
    pub(super) fn assign(&self, unit: NewUnit) -> Claim {
        self.assign_to(self.owner, unit, &self.slot())
    }

    pub(super) fn assign_to(&self, owner: OwnerId, unit: NewUnit, slot: &Slot) -> Claim {
        let claimant = Claimant::new(owner, TTL);
        match self.repository.submit(self.job, &unit, &claimant, slot).expect("a due unit can be submitted") {
            Submitted::Claimed(claim) => *claim,
            other => panic!("a due unit was not claimed: {other:?}"),
        }
    }

    /// A new unit of this name, being executed.
    pub(super) fn processing(&self, id: &str) -> Claim {
        self.process(work(id))
    }

    /// This unit, being executed.
    pub(super) fn process(&self, unit: NewUnit) -> Claim {
        let claim = self.assign(unit);
        self.start(&claim.lease);
        claim
    }

    pub(super) fn start(&self, lease: &Lease) {
        self.repository.start(lease, &Beginning::default()).expect("a live lease can start");
    }

    /// Ends an attempt that is held.
    pub(super) fn finish(&self, lease: &Lease, report: &AttemptReport) -> Closed {
        self.repository.finish(lease, report).expect("a live lease can finish")
    }

    /// Gives back a unit that is held.
    pub(super) fn release(&self, lease: &Lease, after: Option<Duration>, reason: &str) -> Closed {
        self.repository.release(lease, after, reason).expect("a live lease can be given back")
    }

    /// A new unit of this name in any status, after one attempt.
    pub(super) fn bring(&self, id: &str, status: UnitStatus) -> Claim {
        self.bring_unit(work(id), status)
    }

    /// This unit in any status, after one attempt.
    pub(super) fn bring_unit(&self, unit: NewUnit, status: UnitStatus) -> Claim {
        let claim = self.assign(unit);
        let (lease, id) = (&claim.lease, claim.unit.id.as_str());
        match status {
            UnitStatus::Assigned => {}
            UnitStatus::Pending => {
                self.release(lease, None, "put back");
            }
            UnitStatus::Processing => self.start(lease),
            UnitStatus::CancelRequested => self.cancel(id),
            UnitStatus::Completed => {
                self.start(lease);
                self.finish(lease, &AttemptReport::completed());
            }
            UnitStatus::Failed => {
                self.finish(lease, &give_up());
            }
            UnitStatus::Cancelled => {
                self.cancel(id);
                self.finish(lease, &AttemptReport::cancelled());
            }
        }
        assert_eq!(self.status(id), status, "a unit could not be brought there");
        claim
    }

    pub(super) fn cancel(&self, id: &str) {
        self.repository.cancel(self.job, id, &By::whom("suite")).expect("any unit takes a wish to cancel");
    }

    pub(super) fn requeue(&self, id: &str) -> Result<()> {
        self.repository.requeue(self.job, id, &By::whom("suite"))
    }

    pub(super) fn expire(&self) -> Vec<Swept> {
        self.repository.expire(PAGE_LIMIT).expect("a sweep finds what it finds")
    }

    /// Lets every lease run out, and takes the units back.
    pub(super) fn lose_all(&self) -> Vec<Swept> {
        self.advance(TTL);
        self.expire()
    }

    pub(super) fn unit(&self, id: &str) -> WorkUnit {
        self.repository.unit(self.job, id).expect("the unit exists")
    }

    pub(super) fn status(&self, id: &str) -> UnitStatus {
        self.unit(id).status
    }

    pub(super) fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.repository.attempts(self.unit(id).key).expect("attempts can be read")
    }

    pub(super) fn attempt(&self, lease: &Lease) -> Attempt {
        let attempts = self.repository.attempts(lease.unit).expect("attempts can be read");
        let attempt = attempts.into_iter().find(|attempt| attempt.key == lease.attempt());
        attempt.expect("an attempt that was claimed is kept")
    }

    pub(super) fn messages(&self, attempt: AttemptKey) -> Vec<StoredMessage> {
        all_pages(|after| {
            let after = u32::try_from(after).expect("a message's number fits");
            self.repository.messages(attempt, after, PAGE_LIMIT)
        })
    }

    pub(super) fn journal(&self) -> Vec<JournalEntry> {
        all_pages(|after| self.repository.journal(after, PAGE_LIMIT))
    }

    pub(super) fn journal_of(&self, id: &str) -> Vec<JournalEntry> {
        let unit = self.unit(id).key;
        all_pages(|after| self.repository.unit_journal(unit, after, PAGE_LIMIT))
    }

    pub(super) fn last_row(&self, id: &str) -> JournalEntry {
        self.journal_of(id).pop().expect("a unit has at least the row of its insert")
    }

    pub(super) fn worker(&self, slot: &Slot) -> Worker {
        let workers = self.repository.workers(self.owner, "", PAGE_LIMIT).expect("workers can be read");
        let worker = workers.into_iter().find(|worker| worker.id == slot.worker_id);
        worker.unwrap_or_else(|| panic!("{} has no record", slot.worker_id))
    }

    pub(super) fn change_worker(&self, slot: &Slot, change: WorkerChange) -> Result<Worker> {
        self.repository.change_worker(self.owner, self.job, slot, change)
    }

    pub(super) fn snapshot(&self, id: &str) -> Snapshot {
        let attempts = self.attempts(id);
        let messages = attempts.iter().map(|attempt| self.messages(attempt.key)).collect();
        Snapshot { unit: self.unit(id), attempts, journal: self.journal_of(id), messages }
    }
}

/// A unit that can be executed.
pub(super) fn work(id: &str) -> NewUnit {
    NewUnit::new(id).prompt(format!("do {id}"))
}

/// A worker of this name that takes one unit at a time.
pub(super) fn slot(name: &str) -> Slot {
    Slot::new(WorkerId::new(name).expect("the suite's names are names"))
}

/// A failure after which the unit may be tried again at once.
pub(super) fn retry() -> AttemptReport {
    retry_after(Duration::ZERO)
}

pub(super) fn retry_after(after: Duration) -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "it broke"), Next::Retry { after })
}

/// A failure that is final.
pub(super) fn give_up() -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "it is hopeless"), Next::GiveUp)
}

/// JSON that is nested deeper than could be read again.
pub(super) fn too_deep() -> Value {
    (0..=JSON_DEPTH_LIMIT).fold(Value::Null, |inner, _| json!([inner]))
}

/// The names of claimed units, in the order of the claim.
pub(super) fn ids(claims: &[Claim]) -> Vec<&str> {
    claims.iter().map(|claim| claim.unit.id.as_str()).collect()
}

/// Everything, page by page.
pub(super) fn all_pages<T: Debug>(mut page: impl FnMut(i64) -> Result<Page<T>>) -> Vec<T> {
    let (mut all, mut after) = (Vec::new(), 0);
    loop {
        let page = page(after).expect("a page can be read");
        all.extend(page.items);
        match page.next {
            Some(next) if next > after => after = next,
            Some(next) => panic!("the page after {after} says to go on after {next}"),
            None => return all,
        }
    }
}
