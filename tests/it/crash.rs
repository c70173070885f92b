//! Processes that die or freeze in the middle of something, and what the next one finds.
//!
//! The crash points are those of the fault plan: P00–P02 around a submission, P03 before the hand-over, P04–P05
//! around a claim, P07–P08 while an attempt runs, P10–P12 around its end, P14 at a heartbeat, P15 at a sweep, P16 at
//! a retry, P17 at a cancel, P18 while the database itself is made or brought up to date.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use chrono::TimeDelta;
use rustix::process::Signal;
use serde_json::json;
use workcrew::attempt::Provenance;
use workcrew::audit::verify::Verify;
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{
    By, CancelAnswer, ClaimRequest, Claimant, Insertion, Intake, Result, Scope, Slot, Submitted, UnitFilter,
};
use workcrew::testing::{Action, Stage, arm, arm_from_environment};
use workcrew::worker::WorkerChange;
use workcrew::{
    Archive, AttemptReport, Beginning, Charge, Claim, Failure, FailureKind, JobChange, JobId, Lease, Message, Money,
    NewJob, NewOwner, NewUnit, Next, Outcome, OwnerId, Process, Progress, Repository, RepositoryError,
    SqliteRepository, Tokens, UnitKey, UnitStatus, WorkUnit, WorkerId,
};

use crate::children::{self, Child, ClockAhead, Role, hear, say, spawn_waiting, was_killed};

const JOB: &str = "crash";

/// So long that nobody waits for it: what is found at once was not found because it ran out.
const LEASE: Duration = Duration::from_secs(3_600);

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    let Some(role) = children::role() else { return };
    match role.as_str() {
        "life" => live(),
        "panic" => survive_panics(),
        "freeze" => freeze(),
        "sweep" => sweep_together(),
        "cancel" => cancel_together(),
        "open" => open_together(),
        "stream" => stream(),
        _ => panic!("`{role}` is no role"),
    }
}

fn new_unit(id: &str) -> NewUnit {
    NewUnit::new(id).prompt(format!("do {id}")).payload(json!({ "id": id }))
}

fn slot(worker: &str) -> Slot {
    Slot::new(WorkerId::new(worker).unwrap())
}

fn register(repository: &SqliteRepository) -> OwnerId {
    repository.register_owner(&NewOwner::new(Process::this(&SystemClock.boot_id()), "a test")).unwrap()
}

fn charge() -> Charge {
    Charge::reported("large", Tokens { output: 7, ..Tokens::default() }, Money::from_nanos(21))
}

fn retry() -> AttemptReport {
    let failure = Failure::new(FailureKind::EXECUTOR, "try again");
    AttemptReport::failed(failure, Next::Retry { after: Duration::ZERO }).charge(charge())
}

fn claimed(submitted: Submitted) -> Claim {
    match submitted {
        Submitted::Claimed(claim) => *claim,
        other => panic!("not claimed: {other:?}"),
    }
}

/// The how-manieth message of which attempt of which unit.
fn message(lease: &Lease, number: u32) -> Message {
    let Lease { unit_id, attempt_number, .. } = lease;
    Message::assistant(format!("{unit_id}/{attempt_number}/{number}"))
}

/// A process that does something of everything, and says before each step what it tries and after it that it was
/// acknowledged.
struct Life {
    repository: SqliteRepository,
    clock: ClockAhead,
    job: JobId,
    owner: OwnerId,
}

/// Makes one step: `try verb units changes` is said before, the same with `ack` after it.
///
/// The changes are what the journal of each of the units gets.
fn step<T>(verb: &str, units: &str, changes: &str, call: impl FnOnce() -> Result<T>) -> T {
    say(format_args!("try {verb} {units} {changes}"));
    let answer = call().unwrap();
    say(format_args!("ack {verb} {units} {changes}"));
    answer
}

fn live() {
    arm_from_environment();
    let (path, clock) = (children::path(), ClockAhead::default());
    let repository = step("create", "-", "-", || Ok(SqliteOptions::new().clock(clock.clone()).open(path).unwrap()));
    let job = step("create_job", "-", "-", || repository.create_job(&NewJob::named(JOB))).id;
    let owner = step("register_owner", "-", "-", || {
        repository.register_owner(&NewOwner::new(Process::this(&SystemClock.boot_id()), "a life"))
    });
    let life = Life { repository, clock, job, owner };
    life.converse();
    life.fail_and_try_again();
    life.be_lost_and_given_back();
    life.be_cancelled();
    life.leave();
    say("done");
}

impl Life {
    fn submit(&self, id: &str) -> Lease {
        let claimant = Claimant::new(self.owner, LEASE);
        let submit = || self.repository.submit(self.job, &new_unit(id), &claimant, &slot("w1"));
        claimed(step("submit", id, "INSERT,CLAIM", submit)).lease
    }

    fn submit_and_start(&self, id: &str) -> Lease {
        let claimant = Claimant::new(self.owner, LEASE).starting(Provenance::of("a life"));
        let submit = || self.repository.submit(self.job, &new_unit(id), &claimant, &slot("w1"));
        claimed(step("submit", id, "INSERT,CLAIM,START", submit)).lease
    }

    fn insert(&self, id: &str, intake: Intake) {
        step("insert", id, "INSERT", || self.repository.insert(self.job, &[new_unit(id)], intake));
    }

    /// Inserts what has no prompt yet, and accepts it with one.
    fn insert_and_accept(&self, id: &str) {
        let mut bare = new_unit(id);
        bare.prompt = None;
        step("insert", id, "INSERT", || self.repository.insert(self.job, &[bare], Intake::Open));
        let intake = Intake::AcceptedBy(self.owner);
        step("insert", id, "ADD_PROMPT", || self.repository.insert(self.job, &[new_unit(id)], intake));
    }

    fn claim(&self, id: &str, ttl: Duration) -> Lease {
        self.claim_as(Claimant::new(self.owner, ttl), id, "CLAIM")
    }

    fn claim_and_start(&self, id: &str) -> Lease {
        let claimant = Claimant::new(self.owner, LEASE).starting(Provenance::of("a life"));
        self.claim_as(claimant, id, "CLAIM,START")
    }

    fn claim_as(&self, claimant: Claimant, id: &str, changes: &str) -> Lease {
        let request = ClaimRequest::new(self.job, claimant, Scope::Pending, vec![slot("w1")]);
        let claims = step("claim", id, changes, || self.repository.claim(&request));
        assert_eq!(claims[0].lease.unit_id.as_str(), id);
        claims[0].lease.clone()
    }

    fn start(&self, lease: &Lease) {
        let beginning = Beginning::default().rendered_prompt("rendered");
        step("start", lease.unit_id.as_str(), "START", || self.repository.start(lease, &beginning));
    }

    fn append(&self, lease: &Lease, follows: u32, count: u32) {
        let messages: Vec<Message> = (1..=count).map(|number| message(lease, follows + number)).collect();
        step("append", lease.unit_id.as_str(), "-", || self.repository.append(lease, follows, &messages));
    }

    fn partial(&self, lease: &Lease, number: u32) {
        let text = message(lease, number).text();
        step("partial", lease.unit_id.as_str(), "-", || self.repository.partial(lease, &text));
    }

    fn flush(&self, lease: &Lease, messages: u32) {
        step("flush", lease.unit_id.as_str(), "-", || self.repository.flush(lease));
        say(format_args!("durable {} {} {messages}", lease.unit_id, lease.attempt_number));
    }

    fn finish(&self, lease: &Lease, change: &str, report: &AttemptReport) {
        let closed = step("finish", lease.unit_id.as_str(), change, || self.repository.finish(lease, report));
        assert_eq!(closed.change.name(), change);
    }

    /// P00–P02, P07–P08, P10–P11, P14: submitted, executed, completed.
    fn converse(&self) {
        let lease = self.submit("a1");
        self.start(&lease);
        self.append(&lease, 0, 2);
        self.partial(&lease, 3);
        self.append(&lease, 2, 1);
        let progress = Progress::default().session("s1").charge(charge());
        step("progress", "a1", "-", || self.repository.progress(&lease, &progress));
        step("checkpoint_at", "a1", "-", || self.repository.checkpoint_at(&lease, &json!({ "step": 3 })));
        self.partial(&lease, 4);
        self.flush(&lease, 3);
        step("renew", "-", "-", || self.repository.renew(self.owner, LEASE));
        self.finish(&lease, "COMPLETE", &AttemptReport::completed().output("done").charge(charge()));
        say("durable a1 1 4");
    }

    /// P03–P05, P16: waits, is claimed, fails, is tried again.
    fn fail_and_try_again(&self) {
        self.insert("b1", Intake::Open);
        self.insert("b2", Intake::Open);
        let lease = self.claim("b1", LEASE);
        self.start(&lease);
        self.append(&lease, 0, 1);
        self.partial(&lease, 2);
        self.finish(&lease, "RETRY", &retry());
        say("durable b1 1 2");
        let lease = self.claim_and_start("b1");
        self.finish(&lease, "COMPLETE", &AttemptReport::completed());
    }

    /// P15: a lease runs out; and what ends otherwise.
    fn be_lost_and_given_back(&self) {
        let lease = self.claim("b2", Duration::from_secs(1));
        self.start(&lease);
        self.clock.advance(Duration::from_secs(2));
        step("expire", "b2", "EXPIRE", || self.repository.expire(10));
        let lease = self.claim("b2", LEASE);
        step("release", "b2", "RELEASE", || self.repository.release(&lease, None, "not now"));
        let lease = self.claim("b2", LEASE);
        let failure = Failure::new(FailureKind::EXECUTOR, "no");
        self.finish(&lease, "FAIL", &AttemptReport::failed(failure, Next::GiveUp));
        step("requeue", "b2", "REQUEUE", || self.repository.requeue(self.job, "b2", &By::whom("ada")));
    }

    /// P17: while it waits, and while it is executed.
    fn be_cancelled(&self) {
        step("cancel", "b2", "CANCEL", || self.repository.cancel(self.job, "b2", &By::whom("ada")));
        let lease = self.submit_and_start("c1");
        step("cancel", "c1", "CANCEL", || self.repository.cancel(self.job, "c1", &By::whom("ada")));
        self.finish(&lease, "END_CANCELLED", &AttemptReport::completed().output("too late"));
    }

    fn leave(&self) {
        self.insert("d1", Intake::AcceptedBy(self.owner));
        self.insert_and_accept("d2");
        let start = || self.repository.change_worker(self.owner, self.job, &slot("w2"), WorkerChange::Start);
        step("change_worker", "-", "-", start);
        let before = self.clock.now().wall + TimeDelta::days(1);
        step("purge", "a1,b1,b2,c1", "PURGE", || self.repository.purge(before, &By::whom("ada")));
        step("let_go", "-", "-", || self.repository.let_go(self.owner));
        step("end_owner", "-", "-", || self.repository.end_owner(self.owner));
    }
}

/// Where a life is ended: the crash points, the verb, how far it has got, for the how-manieth time.
const POINTS: &[(&str, &str, Stage, u64)] = &[
    ("P18", "create", Stage::Inside, 1),
    ("P18", "create", Stage::Committed, 1),
    ("", "create_job", Stage::Inside, 1),
    ("", "create_job", Stage::Committed, 1),
    ("", "register_owner", Stage::Inside, 1),
    ("", "register_owner", Stage::Committed, 1),
    ("P00", "submit", Stage::Before, 1),
    ("P01", "submit", Stage::Inside, 1),
    ("P02", "submit", Stage::Committed, 1),
    ("P01", "submit", Stage::Inside, 2),
    ("P02", "submit", Stage::Committed, 2),
    ("P00", "insert", Stage::Before, 1),
    ("P01", "insert", Stage::Inside, 1),
    ("P02, P03", "insert", Stage::Committed, 1),
    ("P02, P03", "insert", Stage::Committed, 3),
    ("P01", "insert", Stage::Inside, 5),
    ("P02, P03", "insert", Stage::Committed, 5),
    ("P04", "claim", Stage::Inside, 1),
    ("P04", "claim", Stage::Inside, 2),
    ("P05", "claim", Stage::Committed, 1),
    ("P05", "claim", Stage::Committed, 2),
    ("P05", "claim", Stage::Committed, 4),
    ("P07", "start", Stage::Inside, 1),
    ("P07", "start", Stage::Committed, 1),
    ("P07", "start", Stage::Committed, 3),
    ("P07", "append", Stage::Before, 1),
    ("P08", "append", Stage::Inside, 1),
    ("P08", "append", Stage::Committed, 1),
    ("P08", "append", Stage::Inside, 2),
    ("P08", "append", Stage::Committed, 2),
    ("P08", "append", Stage::Inside, 3),
    ("P08", "partial", Stage::Inside, 1),
    ("P08", "partial", Stage::Committed, 1),
    ("P08", "partial", Stage::Committed, 2),
    ("P08", "partial", Stage::Committed, 3),
    ("P08", "flush", Stage::Committed, 1),
    ("P08", "progress", Stage::Inside, 1),
    ("P08", "progress", Stage::Committed, 1),
    ("P08", "checkpoint_at", Stage::Inside, 1),
    ("P08", "checkpoint_at", Stage::Committed, 1),
    ("P10", "finish", Stage::Before, 1),
    ("P10", "finish", Stage::Before, 4),
    ("P11", "finish", Stage::Inside, 1),
    ("P11", "finish", Stage::Inside, 4),
    ("P12", "finish", Stage::Committed, 1),
    ("P12", "finish", Stage::Committed, 4),
    ("P14", "renew", Stage::Inside, 1),
    ("P14", "renew", Stage::Committed, 1),
    ("P15", "expire", Stage::Inside, 1),
    ("P15", "expire", Stage::Committed, 1),
    ("P16", "finish", Stage::Inside, 2),
    ("P16", "finish", Stage::Committed, 2),
    ("P16", "release", Stage::Inside, 1),
    ("P16", "release", Stage::Committed, 1),
    ("P17", "cancel", Stage::Inside, 1),
    ("P17", "cancel", Stage::Committed, 1),
    ("P17", "cancel", Stage::Inside, 2),
    ("P17", "cancel", Stage::Committed, 2),
    ("P17", "finish", Stage::Inside, 5),
    ("P17", "finish", Stage::Committed, 5),
    ("", "requeue", Stage::Inside, 1),
    ("", "requeue", Stage::Committed, 1),
    ("", "change_worker", Stage::Committed, 1),
    ("", "purge", Stage::Inside, 1),
    ("", "purge", Stage::Committed, 1),
    ("", "let_go", Stage::Inside, 1),
    ("", "let_go", Stage::Committed, 1),
    ("", "end_owner", Stage::Inside, 1),
    ("", "end_owner", Stage::Committed, 1),
];

#[test]
fn whoever_is_killed_at_a_crash_point_loses_nothing_that_was_acknowledged() {
    let next = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..4 {
            threads.spawn(|| {
                while let Some(&(point, verb, stage, nth)) = POINTS.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let folder = tempfile::tempdir().unwrap();
                    let path = folder.path().join("crash.db");
                    let plan = format!("{verb}:{stage:?}:{nth}:kill").to_lowercase();
                    let (status, lines) = Role::new("crash::child", "life", &path).fault(&plan).start().end();
                    let end = format!("{point} {plan}");
                    assert!(was_killed(status), "{end}: {status}, {lines:#?}");
                    Remains { end, verb, stage, lines }.check(&path);
                }
            });
        }
    });
}

#[test]
fn a_life_that_nobody_ends_leaves_everything_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let lines = Role::new("crash::child", "life", &path).start().end_well();
    assert_eq!(lines.last().map(String::as_str), Some("done"));
    Remains { end: "no end".to_owned(), verb: "", stage: Stage::Committed, lines }.check(&path);
}

/// What a killed process has said, and where it was killed.
struct Remains {
    end: String,
    verb: &'static str,
    stage: Stage,
    lines: Vec<String>,
}

impl Remains {
    fn check(&self, path: &Path) {
        let repository = SqliteRepository::open(path).unwrap();
        assert_eq!(drafts(path.parent().unwrap()), Vec::<PathBuf>::new(), "{}", self.end);
        let Some(job) = repository.job_named(JOB).unwrap() else {
            assert!(!self.lines.iter().any(|line| line.starts_with("ack create_job")), "{}", self.end);
            return;
        };
        self.verify(&repository, job.id, Verify::new());
        self.check_journals(&repository, job.id);
        self.check_conversations(&repository, job.id);
        self.check_letting_go(&repository, job.id);
        self.check_expiry(&repository, job.id);
        let owner = register(&repository);
        self.check_sending_again(&repository, job.id, owner);
        self.check_going_on(&repository, job.id, owner);
        self.verify(&repository, job.id, Verify::new().settled());
    }

    /// The steps that were tried or acknowledged: verb, unit, changes.
    fn steps(&self, kind: &str) -> Vec<(&str, &str, Vec<&str>)> {
        let mut steps = Vec::new();
        for line in &self.lines {
            let words: Vec<&str> = line.split(' ').collect();
            let &[found, verb, units, changes] = &words[..] else { continue };
            if found == kind && units != "-" {
                let changes: Vec<&str> = changes.split(',').filter(|&change| change != "-").collect();
                steps.extend(units.split(',').map(|unit| (verb, unit, changes.clone())));
            }
        }
        steps
    }

    fn verify(&self, repository: &SqliteRepository, job: JobId, verify: Verify) {
        let ids = |kind| -> Vec<(JobId, String)> {
            self.steps(kind).into_iter().map(|(_, unit, _)| (job, unit.to_owned())).collect()
        };
        let verification = verify.acknowledged(ids("ack")).submitted(ids("try")).run(repository).unwrap();
        assert!(verification.is_clean(), "{}: {verification}\n{:#?}", self.end, self.lines);
    }

    /// Each journal is what was acknowledged, and behind that all of the step that was under way or nothing of it.
    fn check_journals(&self, repository: &SqliteRepository, job: JobId) {
        let mut expected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let acknowledged = self.steps("ack");
        for (_, unit, changes) in &acknowledged {
            expected.entry(unit).or_default().extend(changes);
        }
        let tried = self.steps("try");
        let under_way = &tried[acknowledged.len()..];
        let ids: BTreeSet<&str> = tried.iter().map(|&(_, unit, _)| unit).collect();
        for id in ids {
            let known = expected.remove(id).unwrap_or_default();
            let changes = changes_of(repository, job, id);
            let whole = under_way.iter().find(|&&(_, unit, _)| unit == id).map(|(_, _, changes)| changes.clone());
            let with_all: Vec<&str> = known.iter().copied().chain(whole.clone().unwrap_or_default()).collect();
            let is_struck = under_way.iter().any(|&(verb, ..)| verb == self.verb);
            let is_expected = match self.stage {
                // It struck what nobody waits for, while the next step was under way.
                _ if !is_struck => changes == known || changes == with_all,
                Stage::Committed => changes == with_all,
                Stage::Before | Stage::Inside => changes == known,
            };
            assert!(is_expected, "{}: {id} has {changes:?}, known are {known:?} and {whole:?}", self.end);
        }
    }

    /// Whole messages in order, at most the last one partial, and no fewer than were said to be durable.
    fn check_conversations(&self, repository: &SqliteRepository, job: JobId) {
        let mut durable: HashMap<(String, u32), usize> = HashMap::new();
        for line in self.lines.iter().filter_map(|line| line.strip_prefix("durable ")) {
            let words: Vec<&str> = line.split(' ').collect();
            durable.insert((words[0].to_owned(), words[1].parse().unwrap()), words[2].parse().unwrap());
        }
        for unit in all_units(repository, job).iter().filter(|unit| unit.purged_at.is_none()) {
            for attempt in repository.attempts(unit.key).unwrap() {
                let stored = repository.messages(attempt.key, 0, 100).unwrap().items;
                let promised = durable.get(&(unit.id.to_string(), attempt.key.number)).copied().unwrap_or(0);
                assert!(
                    stored.len() >= promised,
                    "{}: {} of {promised} messages of {}",
                    self.end,
                    stored.len(),
                    unit.id
                );
                for (number, message) in (1..).zip(&stored) {
                    let message = message.message().unwrap().unwrap();
                    assert_eq!(message.text(), format!("{}/{}/{number}", unit.id, attempt.key.number), "{}", self.end);
                    assert!(!message.is_partial || number == stored.len(), "{}", self.end);
                }
            }
        }
    }

    /// Either all that waited was let go, or nothing.
    fn check_letting_go(&self, repository: &SqliteRepository, job: JobId) {
        if self.verb == "let_go" {
            let units = all_units(repository, job);
            let waiting = units.iter().filter(|unit| unit.status == UnitStatus::Pending);
            let is_accepted: Vec<bool> = waiting.map(|unit| unit.accepted_by.is_some()).collect();
            assert_eq!(is_accepted, [self.stage != Stage::Committed; 2], "{}", self.end);
        }
    }

    /// The dead owner is recognised at once: its attempts are LOST, with the next fence.
    fn check_expiry(&self, repository: &SqliteRepository, job: JobId) {
        let leased: Vec<WorkUnit> =
            all_units(repository, job).into_iter().filter(|unit| unit.status.is_leased()).collect();
        let swept = repository.expire(100).unwrap();
        let keys = |units: &[WorkUnit]| -> Vec<UnitKey> { units.iter().map(|unit| unit.key).collect() };
        assert_eq!(swept.iter().map(|swept| swept.unit).collect::<Vec<_>>(), keys(&leased), "{}", self.end);
        for before in &leased {
            let after = repository.unit(job, before.id.as_str()).unwrap();
            let is_cancelled = before.status == UnitStatus::CancelRequested;
            assert_eq!(after.status, if is_cancelled { UnitStatus::Cancelled } else { UnitStatus::Pending });
            assert_eq!(after.fence, before.fence + 1, "{}", self.end);
            let attempts = repository.attempts(before.key).unwrap();
            assert_eq!(attempts.last().unwrap().outcome, Some(Outcome::Lost), "{}", self.end);
            let journal = repository.unit_journal(before.key, 0, 100).unwrap().items;
            assert_eq!(journal.last().unwrap().reason.as_deref(), Some("the owner died"), "{}", self.end);
        }
        assert_eq!(repository.expire(100).unwrap(), [], "{}", self.end);
        assert!(repository.owners().unwrap().iter().all(|owner| owner.ended_at.is_some()), "{}", self.end);
    }

    /// What was tried can be sent again, whether it was stored or not; and belongs to the sender if it still waits.
    fn check_sending_again(&self, repository: &SqliteRepository, job: JobId, owner: OwnerId) {
        let known: BTreeSet<&str> = self.steps("ack").into_iter().map(|(_, unit, _)| unit).collect();
        let tried: BTreeSet<&str> = self.steps("try").into_iter().map(|(_, unit, _)| unit).collect();
        for id in tried {
            let send = || repository.insert(job, &[new_unit(id)], Intake::AcceptedBy(owner)).unwrap()[0];
            let (first, second) = (send(), send());
            assert!(matches!(second, Insertion::AlreadyExists(_)), "{}: {second:?}", self.end);
            if known.contains(id) {
                assert_eq!(first, second, "{}", self.end);
            }
            let unit = repository.unit(job, id).unwrap();
            let is_waiting = unit.status == UnitStatus::Pending;
            assert_eq!(unit.accepted_by, is_waiting.then_some(owner), "{}: {id}", self.end);
            assert!(!is_waiting || unit.prompt.is_some(), "{}: {id}", self.end);
        }
    }

    /// The next process claims what is left, each with the next fence, and brings it to its end.
    fn check_going_on(&self, repository: &SqliteRepository, job: JobId, owner: OwnerId) {
        loop {
            let before = all_units(repository, job);
            let request = ClaimRequest::new(job, Claimant::new(owner, LEASE), Scope::Pending, vec![slot("w1")]);
            let claims = repository.claim(&request).unwrap();
            let Some(Claim { lease, .. }) = claims.first() else { break };
            let before = before.iter().find(|unit| unit.key == lease.unit).unwrap();
            assert_eq!((lease.fence, lease.attempt_number), (before.fence + 1, before.attempt_count + 1));
            repository.start(lease, &Beginning::default()).unwrap();
            repository.finish(lease, &AttemptReport::completed()).unwrap();
        }
        assert!(all_units(repository, job).iter().all(|unit| unit.status.is_terminal()), "{}", self.end);
    }
}

fn all_units(repository: &dyn Archive, job: JobId) -> Vec<WorkUnit> {
    let (mut units, mut after) = (Vec::new(), 0);
    loop {
        let page = repository.units(&UnitFilter::job(job), after, 1_000).unwrap();
        units.extend(page.items);
        match page.next {
            Some(next) => after = next,
            None => return units,
        }
    }
}

fn changes_of(repository: &dyn Archive, job: JobId, id: &str) -> Vec<&'static str> {
    match repository.unit(job, id) {
        Ok(unit) => {
            let journal = repository.unit_journal(unit.key, 0, 100).unwrap().items;
            journal.iter().map(|entry| entry.change.name()).collect()
        }
        Err(RepositoryError::UnknownUnit { .. }) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// What was left of databases that were being made.
fn drafts(folder: &Path) -> Vec<PathBuf> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.file_name().unwrap().to_string_lossy().contains(".new")).collect()
}

fn assert_clean(repository: &dyn Archive, verify: &Verify) {
    let verification = verify.run(repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

#[test]
fn a_panic_inside_a_change_is_an_error_for_its_caller_and_nothing_for_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    Role::new("crash::child", "panic", &path).start().end_well();
    assert_clean(&SqliteRepository::open(&path).unwrap(), &Verify::new().settled());
}

/// Lets the writer panic inside each verb in turn; the same call then succeeds as if nothing had happened.
fn survive_panics() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("workcrew-writer") {
            tell(panic);
        }
    }));
    let repository = SqliteRepository::open(children::path()).unwrap();
    let twice = |verb: &str, call: &mut dyn FnMut() -> Result<()>| {
        let before = repository.journal(0, 1_000).unwrap();
        arm(verb, Stage::Inside, 1, Action::Panic);
        let error = call().unwrap_err();
        assert!(!error.is_rejection(), "{verb}: {error}");
        assert_eq!(repository.journal(0, 1_000).unwrap(), before, "{verb}");
        call().unwrap();
    };
    twice("create_job", &mut || repository.create_job(&NewJob::named(JOB)).map(drop));
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let (by, change) = (By::whom("ada"), JobChange::default().settings("other"));
    twice("change_job", &mut || repository.change_job(job, &change, &by).map(drop));
    assert_eq!(repository.job_journal(0, 10).unwrap().items.len(), 2);
    let new_owner = NewOwner::new(Process::this(&SystemClock.boot_id()), "a test");
    twice("register_owner", &mut || repository.register_owner(&new_owner).map(drop));
    let owner = repository.owners().unwrap()[0].id;
    twice("insert", &mut || repository.insert(job, &[new_unit("a")], Intake::Open).map(drop));
    let claimant = Claimant::new(owner, LEASE);
    let request = ClaimRequest::new(job, claimant.clone(), Scope::Pending, vec![slot("w1")]);
    twice("claim", &mut || repository.claim(&request).map(drop));
    let lease = repository.claimed(owner, claimant.token).unwrap()[0].lease.clone();
    twice("start", &mut || repository.start(&lease, &Beginning::default()));
    twice("checkpoint_at", &mut || repository.checkpoint_at(&lease, &json!(1)));
    twice("renew", &mut || repository.renew(owner, LEASE).map(drop));
    repository.append(&lease, 0, &[message(&lease, 1)]).unwrap();
    repository.flush(&lease).unwrap();
    // Once in its group, and once more when it is tried alone.
    arm("append", Stage::Inside, 1, Action::Panic);
    arm("append", Stage::Inside, 2, Action::Panic);
    repository.append(&lease, 1, &[message(&lease, 2), message(&lease, 3)]).unwrap();
    repository.flush(&lease).unwrap_err();
    workcrew::testing::disarm_all();
    survive_a_panic_together(&repository, job);
    twice("finish", &mut || repository.finish(&lease, &AttemptReport::completed()).map(drop));
    let attempt = &repository.attempts(lease.unit).unwrap()[0];
    assert_eq!((attempt.message_count, attempt.messages_lost), (Some(1), 2));
    repository.insert(job, &[new_unit("b")], Intake::AcceptedBy(owner)).unwrap();
    twice("let_go", &mut || repository.let_go(owner).map(|count| assert_eq!(count, 1)));
    repository.cancel(job, "b", &By::whom("ada")).unwrap();
    twice("end_owner", &mut || repository.end_owner(owner));
}

/// One change of a group panics; the others are made all the same.
fn survive_a_panic_together(repository: &SqliteRepository, job: JobId) {
    let lock = rusqlite::Connection::open(children::path()).unwrap();
    lock.execute_batch("BEGIN IMMEDIATE").unwrap();
    arm("insert", Stage::Inside, 3, Action::Panic);
    let insert = |number: u32| {
        let repository = repository.clone();
        spawn_waiting(move || repository.insert(job, &[new_unit(&format!("together-{number}"))], Intake::Open))
    };
    let inserting: Vec<_> = (0..6).map(insert).collect();
    lock.execute_batch("COMMIT").unwrap();
    let answers: Vec<_> = inserting.into_iter().map(|thread| thread.join().unwrap()).collect();
    assert!(answers.iter().filter(|answer| answer.is_err()).count() <= 1, "{answers:?}");
    for number in 0..6 {
        let id = format!("together-{number}");
        repository.insert(job, &[new_unit(&id)], Intake::Open).unwrap();
        repository.cancel(job, &id, &By::whom("ada")).unwrap();
    }
}

#[test]
fn the_finish_of_a_process_that_slept_through_its_lease_is_stale_and_stays_on_its_own_attempt() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let woken = overtaken(&path, "finish:before:1:stop");
    assert_eq!(woken, ["append Ok(())", "flush Ok(())", "finish Stale"]);
    assert_overtaken(&path, 2);
}

#[test]
fn what_a_process_that_slept_through_its_lease_still_appends_is_not_kept() {
    for (plan, kept) in [("append:before:1:stop", 0), ("append:before:2:stop", 1), ("append:committed:1:stop", 1)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crash.db");
        let woken = overtaken(&path, plan);
        assert_eq!(woken, ["append Ok(())", "flush Stale", "finish Stale"], "{plan}");
        assert_overtaken(&path, kept);
    }
}

/// Freezes a child, takes its unit away and completes it, lets the child go on, and returns what it says.
fn overtaken(path: &Path, plan: &str) -> Vec<String> {
    let mut child = Role::new("crash::child", "freeze", path).fault(plan).start();
    child.wait_for("started");
    child.wait_until_stopped();
    let ahead = ClockAhead::by(2 * LEASE);
    let repository = SqliteOptions::new().clock(ahead).open(path).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    assert_eq!(repository.expire(10).unwrap().len(), 1);
    let owner = register(&repository);
    let request = ClaimRequest::new(job, Claimant::new(owner, LEASE), Scope::Pending, vec![slot("w2")]);
    let lease = repository.claim(&request).unwrap()[0].lease.clone();
    assert_eq!((lease.attempt_number, lease.fence), (2, 3));
    repository.start(&lease, &Beginning::default()).unwrap();
    repository.append(&lease, 0, &[message(&lease, 1)]).unwrap();
    repository.finish(&lease, &AttemptReport::completed().output("the second")).unwrap();
    child.signal(Signal::CONT);
    child.end_well()
}

fn freeze() {
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    let claimant = Claimant::new(register(&repository), LEASE);
    let lease = claimed(repository.submit(job, &new_unit("s"), &claimant, &slot("w1")).unwrap()).lease;
    repository.start(&lease, &Beginning::default()).unwrap();
    arm_from_environment();
    say("started");
    repository.append(&lease, 0, &[message(&lease, 1)]).unwrap();
    // Whoever is stopped while its writer is inside a transaction would make the others wait.
    let _ = repository.flush(&lease);
    say(format_args!("append {:?}", repository.append(&lease, 1, &[message(&lease, 2)])));
    let told = |answer: Result<()>| match answer {
        Err(RepositoryError::Stale { .. }) => "Stale".to_owned(),
        answer => format!("{answer:?}"),
    };
    say(format_args!("flush {}", told(repository.flush(&lease))));
    let report = AttemptReport::completed().output("the first").charge(charge());
    say(format_args!("finish {}", told(repository.finish(&lease, &report).map(drop))));
}

fn assert_overtaken(path: &Path, messages_kept: u32) {
    let repository = SqliteRepository::open(path).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let unit = repository.unit(job, "s").unwrap();
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("the second")));
    let attempts = repository.attempts(unit.key).unwrap();
    assert_eq!(attempts[0].outcome, Some(Outcome::Lost));
    assert_eq!(attempts[0].message_count, Some(messages_kept));
    let late = repository.attempt_result(attempts[0].key).unwrap().late_result.unwrap();
    assert_eq!(late.json().unwrap()["output"], "the first");
    assert_eq!(repository.charges(attempts[0].key).unwrap(), [charge()]);
    assert_eq!(repository.charges(attempts[1].key).unwrap(), []);
    let changes = ["INSERT", "CLAIM", "START", "EXPIRE", "CLAIM", "START", "COMPLETE", "LATE_REPORT"];
    assert_eq!(changes_of(&repository, job, "s"), changes);
    assert_clean(&repository, &Verify::new());
}

#[test]
fn a_process_frozen_inside_a_transaction_makes_others_wait_and_then_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let mut child = Role::new("crash::child", "freeze", &path).fault("finish:inside:1:stop").start();
    child.wait_for("started");
    child.wait_until_stopped();
    let repository = SqliteOptions::new().busy_timeout(Duration::from_millis(200)).open(&path).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    assert_eq!(repository.unit(job, "s").unwrap().status, UnitStatus::Processing);
    let busy = repository.insert(job, &[new_unit("t")], Intake::Open).unwrap_err();
    assert!(matches!(busy, RepositoryError::Busy), "{busy:?}");
    child.signal(Signal::CONT);
    let woken = child.end_well();
    assert!(woken.last().unwrap().starts_with("finish Ok"), "{woken:?}");
    repository.insert(job, &[new_unit("t")], Intake::Open).unwrap();
    assert_eq!(repository.unit(job, "s").unwrap().status, UnitStatus::Completed);
    assert_clean(&repository, &Verify::new());
}

/// How many units two processes fight over.
const CONTESTED: usize = 30;

fn contested_ids() -> Vec<String> {
    (0..CONTESTED).map(|number| format!("u{number:02}")).collect()
}

/// Prepares contested units, held by a process that was killed.
fn left_behind(path: &Path) -> JobId {
    let repository = SqliteRepository::open(path).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    let units: Vec<NewUnit> = contested_ids().iter().map(|id| new_unit(id)).collect();
    repository.insert(job, &units, Intake::Open).unwrap();
    let mut holder = Role::new("crash::child", "sweep", path).start();
    holder.tell("hold");
    holder.wait_for("held");
    holder.signal(Signal::KILL);
    assert!(was_killed(holder.end().0));
    job
}

#[test]
fn two_sweepers_at_once_take_back_each_lease_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let job = left_behind(&path);
    let mut sweepers: Vec<Child> = (0..2).map(|_| Role::new("crash::child", "sweep", &path).start()).collect();
    for sweeper in &mut sweepers {
        sweeper.wait_for("ready");
    }
    for sweeper in &mut sweepers {
        sweeper.tell("sweep");
    }
    let mut swept: Vec<String> = sweepers.into_iter().flat_map(Child::end_well).collect();
    swept.sort();
    assert_eq!(swept, contested_ids());
    let repository = SqliteRepository::open(&path).unwrap();
    for unit in all_units(&repository, job) {
        assert_eq!((unit.status, unit.fence), (UnitStatus::Pending, 2));
    }
    assert_clean(&repository, &Verify::new());
}

fn sweep_together() {
    let repository = SqliteRepository::open(children::path()).unwrap();
    say("ready");
    match hear().as_deref() {
        Some("hold") => {
            let job = repository.job_named(JOB).unwrap().unwrap().id;
            let slots = (0..CONTESTED).map(|number| slot(&format!("w{number}"))).collect();
            let claimant = Claimant::new(register(&repository), LEASE);
            repository.claim(&ClaimRequest::new(job, claimant, Scope::Pending, slots)).unwrap();
            say("held");
            hear();
        }
        _ => loop {
            // A few at a time, so that both get some.
            let swept = repository.expire(3).unwrap();
            swept.iter().for_each(|swept| say(&swept.unit_id));
            if swept.is_empty() {
                break;
            }
        },
    }
}

#[test]
fn a_cancel_that_races_with_claim_and_finish_in_another_process_gives_exactly_one_outcome() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let repository = SqliteRepository::open(&path).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    let units: Vec<NewUnit> = contested_ids().iter().map(|id| new_unit(id)).collect();
    repository.insert(job, &units, Intake::Open).unwrap();
    let owner = register(&repository);
    let mut canceller = Role::new("crash::child", "cancel", &path).start();
    canceller.wait_for("ready");
    canceller.tell("go");
    loop {
        let request = ClaimRequest::new(job, Claimant::new(owner, LEASE), Scope::Pending, vec![slot("w1")]);
        let claims = repository.claim(&request).unwrap();
        let Some(Claim { lease, .. }) = claims.first() else { break };
        repository.start(lease, &Beginning::default()).unwrap();
        let closed = repository.finish(lease, &AttemptReport::completed()).unwrap();
        assert!(matches!(closed.status, UnitStatus::Completed | UnitStatus::Cancelled));
    }
    let answers: HashMap<String, String> = canceller
        .end_well()
        .iter()
        .filter_map(|line| line.split_once(": "))
        .map(|(id, answer)| (id.to_owned(), answer.to_owned()))
        .collect();
    for id in contested_ids() {
        let status = repository.unit(job, &id).unwrap().status;
        let is_cancelled = status == UnitStatus::Cancelled;
        assert_eq!(is_cancelled, matches!(&*answers[&id], "cancelled" | "requested"), "{id}: {}", answers[&id]);
        let ends = changes_of(&repository, job, &id);
        let is_end = |change: &&&str| matches!(**change, "COMPLETE" | "END_CANCELLED");
        let by_attempt = ends.iter().filter(is_end).count();
        assert_eq!(by_attempt, usize::from(answers[&id] != "cancelled"), "{id}: {ends:?}");
    }
    assert_clean(&repository, &Verify::new().settled());
}

fn cancel_together() {
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    say("ready");
    hear();
    // From behind, so that both meet in the middle.
    for id in contested_ids().iter().rev() {
        let answer = match repository.cancel(job, id, &By::whom("ada")).unwrap() {
            CancelAnswer::Cancelled => "cancelled",
            CancelAnswer::Requested => "requested",
            CancelAnswer::AlreadyRequested => "requested before",
            CancelAnswer::AlreadyEnded(_) => "ended",
        };
        say(format_args!("{id}: {answer}"));
    }
}

#[test]
fn two_processes_that_make_the_same_database_at_once_get_one_that_works_for_both() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..20).map(|number| folder.path().join(format!("{number}.db"))).collect();
    open_at_once(&paths);
}

#[test]
fn two_processes_that_bring_the_same_database_up_to_date_at_once_get_one_that_works_for_both() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<PathBuf> = (0..10).map(|number| folder.path().join(format!("{number}.db"))).collect();
    paths.iter().for_each(|path| make_old(path));
    open_at_once(&paths);
}

fn open_at_once(paths: &[PathBuf]) {
    let mut children: Vec<Child> = (0..2).map(|_| Role::new("crash::child", "open", "").start()).collect();
    children.iter_mut().for_each(|child| child.wait_for("ready"));
    for path in paths {
        children.iter_mut().for_each(|child| child.tell(path.display()));
        for child in &mut children {
            assert_eq!(child.line().as_deref(), Some("inserted"));
        }
        let repository = SqliteRepository::open(path).unwrap();
        let job = repository.job_named(JOB).unwrap().unwrap().id;
        assert_eq!(all_units(&repository, job).len(), 2);
        assert_clean(&repository, &Verify::new());
    }
    children.into_iter().for_each(|child| drop(child.end_well()));
    let folder = paths[0].parent().unwrap();
    let mut found: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    let mut expected = paths.to_vec();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

fn open_together() {
    say("ready");
    while let Some(path) = hear() {
        let repository = SqliteRepository::open(path).unwrap_or_else(|error| panic!("{error:?}"));
        let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
        let id = std::process::id().to_string();
        repository.insert(job, &[new_unit(&id)], Intake::Open).unwrap();
        drop(repository);
        say("inserted");
    }
}

/// A database of ours before its first step.
fn make_old(path: &Path) {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "application_id", 0x776b_6372).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.close().unwrap();
}

#[test]
fn whoever_is_killed_while_the_schema_is_brought_up_to_date_leaves_the_old_one_or_the_new_one() {
    let plans = [
        ("migrate:inside:1:kill", 0),
        ("migrate:inside:2:kill", 0),
        ("migrate:inside:3:kill", 0),
        ("migrate:inside:4:kill", 0),
        ("migrate:inside:5:kill", 0),
        ("migrate:committed:1:kill", 5),
    ];
    for (plan, version_left) in plans {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crash.db");
        make_old(&path);
        let (status, lines) = Role::new("crash::child", "life", &path).fault(plan).start().end();
        assert!(was_killed(status), "{status}");
        let left = rusqlite::Connection::open(&path).unwrap();
        let version: u32 = left.pragma_query_value(None, "user_version", |row| row.get(0)).unwrap();
        assert_eq!(version, version_left, "{plan}");
        assert_eq!(left.table_exists(None, "work_units").unwrap(), version_left > 0, "{plan}");
        left.close().unwrap();
        Remains { end: plan.to_owned(), verb: "migrate", stage: Stage::Inside, lines }.check(&path);
        assert_clean(&SqliteRepository::open(&path).unwrap(), &Verify::new());
    }
}

/// A sequence of numbers that looks random and is the same for the same seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

/// What processes said before they were killed, over all rounds.
#[derive(Default)]
struct Story {
    tried: BTreeSet<String>,
    acknowledged: BTreeSet<String>,
    fences: HashMap<String, i64>,
    /// Units whose end was acknowledged.
    ended: HashMap<String, String>,
}

impl Story {
    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["try", id] => drop(self.tried.insert(id.to_owned())),
            ["ack", id] => drop(self.acknowledged.insert(id.to_owned())),
            ["held", id, fence] => {
                let fence = fence.parse().unwrap();
                let earlier = self.fences.insert(id.to_owned(), fence);
                assert!(earlier.is_none_or(|earlier| earlier < fence), "{id}: {fence} after {earlier:?}");
                assert!(!self.ended.contains_key(id), "{id} had ended and was claimed again");
            }
            ["ended", id, status] if status != "PENDING" => {
                drop(self.ended.insert(id.to_owned(), status.to_owned()));
            }
            _ => {}
        }
    }

    fn check(&self, repository: &SqliteRepository, job: JobId, verify: Verify) {
        let ids = |ids: &BTreeSet<String>| ids.iter().map(|id| (job, id.clone())).collect::<Vec<_>>();
        assert_clean(repository, &verify.acknowledged(ids(&self.acknowledged)).submitted(ids(&self.tried)));
        for (id, status) in &self.ended {
            assert_eq!(repository.unit(job, id).unwrap().status.name(), status, "{id}");
        }
        for (id, &fence) in &self.fences {
            assert!(repository.unit(job, id).unwrap().fence >= fence, "{id}");
        }
    }
}

#[test]
fn processes_killed_at_any_moment_one_after_another_lose_nothing() {
    let number = |name: &str, default| std::env::var(name).map_or(default, |value| value.parse().unwrap());
    let (rounds, seed) = (number("WORKCREW_CRASH_ROUNDS", 15), number("WORKCREW_CRASH_SEED", 20_260_101));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("crash.db");
    let (mut dice, mut story) = (Dice(seed), Story::default());
    for round in 0..rounds {
        let mut child = Role::new("crash::child", "stream", &path).env("WORKCREW_CRASH_SEED", round + 1).start();
        for _ in 0..dice.roll(150) {
            story.hear(&child.line().expect("it goes on until it is killed"));
        }
        child.signal(Signal::KILL);
        let (status, lines) = child.end();
        assert!(was_killed(status), "seed {seed}, round {round}: {status}");
        lines.iter().for_each(|line| story.hear(line));
        let repository = SqliteRepository::open(&path).unwrap();
        let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
        // Everything is read each time, which takes longer and longer.
        if round < 15 || round % 10 == 0 {
            story.check(&repository, job, Verify::new());
        }
    }
    let repository = SqliteRepository::open(&path).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    repository.expire(1_000).unwrap();
    let owner = register(&repository);
    loop {
        let request = ClaimRequest::new(job, Claimant::new(owner, LEASE), Scope::Pending, vec![slot("last")]);
        let claims = repository.claim(&request).unwrap();
        let Some(Claim { lease, .. }) = claims.first() else { break };
        story.hear(&format!("held {} {}", lease.unit_id, lease.fence));
        repository.start(lease, &Beginning::default()).unwrap();
        repository.finish(lease, &AttemptReport::completed()).unwrap();
    }
    story.check(&repository, job, Verify::new().settled());
}

/// Three threads that submit, claim and end units until the process is killed.
fn stream() {
    let seed: u64 = std::env::var("WORKCREW_CRASH_SEED").unwrap().parse().unwrap();
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    repository.expire(1_000).unwrap();
    let owner = register(&repository);
    let barrier = Arc::new(Barrier::new(3));
    std::thread::scope(|threads| {
        for thread in 0..3 {
            let (repository, barrier) = (repository.clone(), Arc::clone(&barrier));
            threads.spawn(move || {
                let mut dice = Dice(seed * 3 + thread + 1);
                barrier.wait();
                for number in 0.. {
                    let id = format!("{seed}-{thread}-{number}");
                    stream_one(&repository, job, owner, &slot(&format!("w{thread}")), &id, &mut dice);
                }
            });
        }
    });
}

fn stream_one(repository: &SqliteRepository, job: JobId, owner: OwnerId, slot: &Slot, id: &str, dice: &mut Dice) {
    let claimant = Claimant::new(owner, LEASE);
    say(format_args!("try {id}"));
    let lease = if dice.roll(2) == 0 {
        let submitted = repository.submit(job, &new_unit(id), &claimant, slot).unwrap();
        say(format_args!("ack {id}"));
        claimed(submitted).lease
    } else {
        repository.insert(job, &[new_unit(id)], Intake::Open).unwrap();
        say(format_args!("ack {id}"));
        let request = ClaimRequest::new(job, claimant, Scope::Pending, vec![slot.clone()]);
        let Some(claim) = repository.claim(&request).unwrap().pop() else { return };
        claim.lease
    };
    say(format_args!("held {} {}", lease.unit_id, lease.fence));
    repository.start(&lease, &Beginning::default()).unwrap();
    let count = u32::try_from(dice.roll(4)).unwrap();
    for number in 0..count {
        repository.partial(&lease, "half a mess").unwrap();
        repository.append(&lease, number, &[message(&lease, number + 1)]).unwrap();
    }
    let closed = match dice.roll(6) {
        0 => repository.finish(&lease, &retry()),
        1 => repository.release(&lease, None, "not now"),
        2 => repository.finish(&lease, &AttemptReport::failed(Failure::new(FailureKind::PANIC, "no"), Next::GiveUp)),
        _ => repository.finish(&lease, &AttemptReport::completed().output("done").charge(charge())),
    };
    say(format_args!("ended {} {}", lease.unit_id, closed.unwrap().status));
}
