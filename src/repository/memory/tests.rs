//! The lives of a few units, told through the repository and read back from its journal.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::attempt::{Failure, FailureKind, Next, Outcome};
use crate::chain::{conversation_genesis, journal_genesis, journal_link, message_link};
use crate::clock::ManualClock;
use crate::money::{Money, Tokens};
use crate::process::Process;
use crate::repository::{RepositoryError, Scope};
use crate::unit::{Change, UnitStatus};
use crate::worker::{WorkerId, WorkerStatus};

const TTL: Duration = Duration::from_secs(30);

/// A repository with a clock, a job and an owner.
struct Scene {
    repository: MemoryRepository,
    clock: ManualClock,
    job_id: JobId,
    owner: OwnerId,
}

impl Scene {
    fn new() -> Scene {
        let clock = ManualClock::new();
        let repository = MemoryRepository::with_clock(clock.clone());
        let job_id = repository.create_job(&NewJob::named("job")).unwrap().id;
        let process = Process::this(&clock.boot_id());
        let owner = repository.register_owner(&NewOwner::new(process, "test")).unwrap();
        Scene { repository, clock, job_id, owner }
    }

    fn insert(&self, unit: NewUnit) -> UnitKey {
        match self.repository.insert(self.job_id, &[unit], Intake::Open).unwrap()[..] {
            [Insertion::Inserted(key)] => key,
            ref other => panic!("{other:?}"),
        }
    }

    fn request(&self, workers: &[&str]) -> ClaimRequest {
        let slots = workers.iter().map(|&worker| slot(worker)).collect();
        ClaimRequest::new(self.job_id, Claimant::new(self.owner, TTL), Scope::Pending, slots)
    }

    fn claim(&self, worker: &str) -> Claim {
        self.repository.claim(&self.request(&[worker])).unwrap().remove(0)
    }

    fn started(&self, worker: &str) -> Lease {
        let lease = self.claim(worker).lease;
        self.repository.start(&lease, &Beginning::default()).unwrap();
        lease
    }

    fn unit(&self, id: &str) -> WorkUnit {
        self.repository.unit(self.job_id, id).unwrap()
    }

    fn changes(&self) -> Vec<Change> {
        self.checked_journal().into_iter().map(|row| row.change).collect()
    }

    /// The whole journal, whose links hold and whose steps are those of the machine.
    fn checked_journal(&self) -> Vec<JournalEntry> {
        let page = self.repository.journal(0, usize::MAX).unwrap();
        assert_eq!(page.next, None);
        let mut previous = journal_genesis();
        for (row, seq) in page.items.iter().zip(1..) {
            assert_eq!(row.seq, seq);
            assert_eq!(row.link, journal_link(&previous, row));
            assert_eq!(row.from.map_or(Some(UnitStatus::Pending), |from| from.after(row.change)), Some(row.to));
            previous = row.link;
        }
        page.items
    }

    fn worker(&self, name: &str) -> Worker {
        let workers = self.repository.workers(self.owner, "", 10).unwrap();
        workers.into_iter().find(|worker| worker.id.as_str() == name).unwrap()
    }
}

fn slot(worker: &str) -> Slot {
    Slot::new(WorkerId::new(worker).unwrap())
}

fn unit(id: &str) -> NewUnit {
    NewUnit::new(id).prompt("do it")
}

fn failed(next: Next) -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "no"), next)
}

fn charge(input: u64) -> Charge {
    let tokens = Tokens { input, ..Tokens::default() };
    Charge::reported("large", tokens, Money::from_nanos(7))
}

fn is_stale<T: fmt::Debug>(answer: Result<T>) -> bool {
    matches!(answer, Err(RepositoryError::Stale { .. }))
}

#[test]
fn a_unit_lives_from_insert_to_completion_with_everything_it_left() {
    let scene = Scene::new();
    let key = scene.insert(unit("a").payload(json!({ "page": 17 })));
    let lease = scene.started("w1");
    scene.repository.append(&lease, 0, &[Message::user("do it")]).unwrap();
    scene.repository.partial(&lease, "do").unwrap();
    scene.repository.progress(&lease, &Progress::default().session("s1").charge(charge(1))).unwrap();
    scene.repository.append(&lease, 0, &[Message::user("do it"), Message::assistant("done")]).unwrap();
    scene.clock.advance(Duration::from_secs(2));
    let report = AttemptReport::completed().output("done").result(json!([1])).charge(charge(5));
    let closed = scene.repository.finish(&lease, &report).unwrap();
    assert_eq!((closed.status, closed.change), (UnitStatus::Completed, Change::Complete));

    let unit = scene.unit("a");
    assert_eq!(unit.payload, json!({ "page": 17 }));
    assert_eq!(unit.rendered_prompt.as_deref(), Some("do it"));
    assert_eq!(unit.result, Some(json!([1])));
    assert_eq!(unit.session_id.as_deref(), Some("s1"));
    assert_eq!(unit.tokens.input, 5);
    assert_eq!(unit.execution_time, Some(Duration::from_secs(2)));
    assert_eq!(scene.changes(), [Change::Insert, Change::Claim, Change::Start, Change::Complete]);

    let messages = scene.repository.messages(lease.attempt(), 0, 10).unwrap().items;
    let mut link = conversation_genesis(lease.attempt(), lease.fence);
    for message in &messages {
        let content_hash = message.content.as_ref().unwrap().hash();
        link = message_link(&link, message.number, message.at, message.role, &content_hash);
        assert_eq!(message.link, link);
    }
    let attempt = scene.repository.attempts(key).unwrap().remove(0);
    assert_eq!((attempt.message_count, attempt.head), (Some(2), Some(link)));
    let worker = scene.worker("w1");
    assert_eq!((worker.status, worker.load, worker.units_completed), (WorkerStatus::Ready, 0, 1));
    assert_eq!(scene.repository.costs(None).unwrap().total().amount, Money::from_nanos(7));
}

#[test]
fn a_finish_that_is_sent_again_is_answered_again() {
    let scene = Scene::new();
    scene.insert(unit("a"));
    let lease = scene.started("w1");
    let report = failed(Next::Retry { after: Duration::from_secs(1) }).charge(charge(1));
    let first = scene.repository.finish(&lease, &report).unwrap();
    assert_eq!(first.not_before, scene.unit("a").not_before);
    let rows = scene.changes();
    let again = scene.repository.finish(&lease, &report).unwrap();
    assert_eq!((again.status, again.change), (UnitStatus::Pending, Change::Retry));
    assert_eq!(scene.changes(), rows);
}

#[test]
fn what_a_lost_attempt_reports_stays_on_the_attempt() {
    let scene = Scene::new();
    let key = scene.insert(unit("a"));
    let lost = scene.started("w1");
    scene.repository.partial(&lost, "half a sen").unwrap();
    scene.clock.advance(TTL);
    let next = scene.claim("w2").lease;
    assert_eq!((next.attempt_number, next.fence), (2, lost.fence + 2));

    let report = AttemptReport::completed().output("too late").charge(charge(3));
    assert!(is_stale(scene.repository.append(&lost, 0, &[Message::user("hm")])));
    assert!(is_stale(scene.repository.finish(&lost, &report)));
    assert!(is_stale(scene.repository.finish(&lost, &report)));
    assert!(is_stale(scene.repository.release(&lost, None, "no")));

    let attempts = scene.repository.attempts(key).unwrap();
    assert_eq!((attempts[0].outcome, attempts[0].message_count), (Some(Outcome::Lost), Some(1)));
    let result = scene.repository.attempt_result(lost.attempt()).unwrap();
    assert!(result.late_result.is_some() && result.output.is_none());
    assert_eq!(scene.unit("a").status, UnitStatus::Assigned);
    assert_eq!(scene.unit("a").tokens.input, 3);
    let expected = [Change::Insert, Change::Claim, Change::Start, Change::Expire, Change::Claim, Change::LateReport];
    assert_eq!(scene.changes(), expected);
    let row = scene.checked_journal().pop().unwrap();
    let charges = scene.repository.charges(lost.attempt()).unwrap();
    assert_eq!(row.digest, Some(result.digest(&attempts[0], &charges)));
}

#[test]
fn what_nobody_looks_after_is_swept_in_order_and_ended_owners_hold_nothing() {
    let scene = Scene::new();
    scene.insert(unit("last").max_retries(0));
    scene.insert(unit("again"));
    scene.repository.claim(&scene.request(&["w1", "w2"])).unwrap();
    let waiting = unit("waiting").queue_timeout(Duration::from_secs(5));
    scene.repository.insert(scene.job_id, &[waiting], Intake::AcceptedBy(scene.owner)).unwrap();
    scene.clock.advance(TTL);
    assert_eq!(scene.repository.expire(1).unwrap()[0].change, Change::ExpireFinally);
    let swept = scene.repository.expire(10).unwrap();
    let changes: Vec<Change> = swept.iter().map(|swept| swept.change).collect();
    assert_eq!(changes, [Change::Expire, Change::QueueTimeout]);
    assert_eq!(scene.unit("waiting").failure.unwrap().kind, FailureKind::QUEUE_TIMEOUT);

    scene.claim("w3");
    scene.clock.reboot();
    assert_eq!(scene.repository.expire(10).unwrap().len(), 1);
    assert!(scene.repository.owners().unwrap()[0].ended_at.is_some());
    assert_eq!(scene.worker("w3").status, WorkerStatus::Dead);
    assert!(matches!(scene.repository.renew(scene.owner, TTL), Err(RepositoryError::UnknownOwner(_))));
    scene.checked_journal();
}

#[test]
fn a_cancel_ends_what_waits_and_asks_what_runs() {
    let scene = Scene::new();
    let by = By::new("ada", "the input was wrong");
    scene.insert(unit("runs"));
    let lease = scene.started("w1");
    scene.insert(unit("waits"));
    assert_eq!(scene.repository.cancel(scene.job_id, "waits", &by).unwrap(), CancelAnswer::Cancelled);
    assert_eq!(scene.repository.cancel(scene.job_id, "runs", &by).unwrap(), CancelAnswer::Requested);
    assert_eq!(scene.repository.cancel(scene.job_id, "runs", &by).unwrap(), CancelAnswer::AlreadyRequested);
    assert!(scene.repository.renew(scene.owner, TTL).unwrap()[0].is_cancel_requested);

    let closed = scene.repository.finish(&lease, &AttemptReport::completed().output("done")).unwrap();
    assert_eq!((closed.status, closed.change), (UnitStatus::Cancelled, Change::EndCancelled));
    assert_eq!(scene.unit("runs").output.as_deref(), Some("done"));
    let ended = CancelAnswer::AlreadyEnded(UnitStatus::Cancelled);
    assert_eq!(scene.repository.cancel(scene.job_id, "runs", &by).unwrap(), ended);

    scene.repository.requeue(scene.job_id, "runs", &by).unwrap();
    assert_eq!(scene.unit("runs").attempts_used, 0);
    assert_eq!(scene.claim("w1").lease.attempt_number, 2);
    scene.checked_journal();
}

#[test]
fn a_purge_removes_contents_and_keeps_what_proves_them() {
    let scene = Scene::new();
    let key = scene.insert(unit("a").payload(json!([1])));
    let lease = scene.started("w1");
    scene.repository.append(&lease, 0, &[Message::user("do it")]).unwrap();
    scene.repository.checkpoint_at(&lease, &json!("half")).unwrap();
    let report = failed(Next::GiveUp).output("oh").charge(charge(2));
    scene.repository.finish(&lease, &report).unwrap();
    let by = By::whom("ada");
    assert_eq!(scene.repository.purge(scene.clock.now().wall, &by).unwrap(), Purged::default());
    scene.clock.advance(Duration::from_millis(1));
    let now = scene.clock.now().wall;
    let purged = Purged { units: 1, messages: 1, ..Purged::default() };
    assert_eq!(scene.repository.purge(now, &by).unwrap(), purged);
    assert_eq!(scene.repository.purge(now, &by).unwrap(), Purged::default());

    let purged = scene.unit("a");
    assert_eq!((purged.payload, purged.prompt, purged.output), (Value::Null, None, None));
    assert_eq!(scene.repository.checkpoint(key).unwrap(), None);
    let message = scene.repository.messages(lease.attempt(), 0, 1).unwrap().items.remove(0);
    assert_eq!(message.content, None);
    let result = scene.repository.attempt_result(lease.attempt()).unwrap();
    let rows = scene.checked_journal();
    let closing = rows.iter().find(|row| row.head.is_some()).unwrap();
    let charges = scene.repository.charges(lease.attempt()).unwrap();
    assert_eq!(closing.digest, Some(result.digest(&scene.repository.attempts(key).unwrap()[0], &charges)));
    assert_eq!(closing.head, Some(message.link));

    // Its own report is still recognised, another one no longer kept, and nothing is left to be done again.
    assert!(scene.repository.finish(&lease, &report).is_ok());
    assert!(is_stale(scene.repository.finish(&lease, &AttemptReport::completed())));
    assert_eq!(scene.checked_journal().len(), rows.len());
    let error = scene.repository.requeue(scene.job_id, "a", &by).unwrap_err();
    assert_eq!(error.to_string(), "unit `a` is purged, which allows no REQUEUE");
}

#[test]
fn a_claim_that_asks_too_much_of_a_worker_changes_nothing() {
    let scene = Scene::new();
    for id in ["a", "b"] {
        scene.insert(unit(id));
    }
    let lost = scene.started("w1");
    scene.clock.advance(TTL);
    // One waits, one would be taken back; the same worker cannot take both.
    let error = scene.repository.claim(&scene.request(&["w2", "w2"])).unwrap_err();
    assert_eq!(error.to_string(), "worker `w2` is BUSY, which allows no TAKE_TO_CAPACITY");
    assert_eq!(scene.changes().len(), 4);
    assert!(scene.repository.flush(&lost).is_ok());

    let request = scene.request(&["w2", "w3"]);
    let claims = scene.repository.claim(&request).unwrap();
    let names: Vec<&str> = claims.iter().map(|claim| claim.lease.unit_id.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(scene.repository.claimed(scene.owner, request.claimant.token).unwrap(), claims);
}

#[test]
fn a_submission_completes_the_prompt_with_a_row_that_vouches_for_it() {
    let scene = Scene::new();
    let later = scene.clock.now().wall + chrono::TimeDelta::seconds(9);
    let key = scene.insert(NewUnit::new("a").not_before(later));
    let submit = |unit: NewUnit| {
        let claimant = Claimant::new(scene.owner, TTL);
        scene.repository.submit(scene.job_id, &unit, &claimant, &slot("w1"))
    };
    assert!(matches!(submit(unit("a")).unwrap(), Submitted::Waiting(_)));
    assert_eq!(scene.unit("a").prompt.as_deref(), Some("do it"));
    let inputs = scene.repository.inputs(key).unwrap();
    let (content, prompt) = (&inputs.content_hash, inputs.prompt_hash.as_ref());
    let inputs = crate::unit::inputs_digest("a", None, None, &inputs.options, content, prompt);
    let digest = crate::unit::unit_digest(&inputs, scene.job_id, 0, NewUnit::DEFAULT_MAX_RETRIES);
    let row = scene.checked_journal().pop().unwrap();
    assert_eq!((row.change, row.digest), (Change::AddPrompt, Some(digest)));
    scene.clock.advance(Duration::from_secs(9));
    let Submitted::Claimed(claim) = submit(unit("a")).unwrap() else { panic!("it is due") };
    assert_eq!(claim.unit.prompt.as_deref(), Some("do it"));

    assert!(matches!(submit(unit("a")).unwrap(), Submitted::Running(_)));
    let error = submit(unit("a").prompt("another")).unwrap_err();
    assert_eq!(error.to_string(), "unit `a` already exists with another prompt");
    // The worker is busy, so nothing is stored.
    assert!(matches!(submit(unit("b")), Err(RepositoryError::Illegal { .. })));
    assert!(scene.repository.unit(scene.job_id, "b").is_err());
}

#[test]
fn a_worker_that_ends_resolves_what_it_held() {
    let scene = Scene::new();
    let change =
        |worker: &str, change| scene.repository.change_worker(scene.owner, scene.job_id, &slot(worker), change);
    scene.insert(unit("a"));
    scene.insert(unit("b"));
    let given_back = scene.started("w1");
    scene.started("w2");
    change("w1", WorkerChange::ShutDown).unwrap();
    assert_eq!(change("w1", WorkerChange::Terminate).unwrap().load, 0);
    let dead = change("w2", WorkerChange::Die).unwrap();
    assert_eq!((dead.status, dead.units_failed), (WorkerStatus::Dead, 1));
    assert_eq!((scene.unit("a").attempts_used, scene.unit("b").attempts_used), (0, 1));
    assert_eq!((scene.unit("a").accepted_by, scene.unit("b").accepted_by), (Some(scene.owner), None));
    assert!(scene.repository.release(&given_back, None, "again").is_ok());
    assert!(matches!(change("w3", WorkerChange::Ready), Err(RepositoryError::Illegal { status: "ABSENT", .. })));
    assert!(matches!(change("w3", WorkerChange::GiveBack), Err(RepositoryError::Invalid(_))));
    scene.checked_journal();
}

#[test]
fn an_attempt_can_end_on_a_worker_that_was_restarted_under_it() {
    let scene = Scene::new();
    scene.insert(unit("a"));
    let lease = scene.started("w1");
    for change in [WorkerChange::Taint, WorkerChange::Restart] {
        scene.repository.change_worker(scene.owner, scene.job_id, &slot("w1"), change).unwrap();
    }
    scene.repository.finish(&lease, &AttemptReport::completed()).unwrap();
    assert_eq!((scene.worker("w1").status, scene.worker("w1").load), (WorkerStatus::Starting, 0));
}
