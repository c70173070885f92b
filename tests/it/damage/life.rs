//! A database with a rich life: everything that a verification has to know about happens in it once.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::json;
use workcrew::attempt::{OutputFile, Provenance};
use workcrew::chain::Hash;
use workcrew::clock::{Clock, ManualClock};
use workcrew::limits::{Ask, NewHold, RateLimits, Turn};
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{By, CancelAnswer, ClaimRequest, Claimant, Intake, Scope, Shared, Slot, Submitted};
use workcrew::same_work::{Parameters, WorkKey};
use workcrew::unit::UnitOptions;
use workcrew::{
    Archive, AttemptKey, AttemptReport, Beginning, Charge, Failure, FailureKind, JobChange, JobId, Lease, Message,
    Money, NewJob, NewOwner, NewUnit, Next, OwnerId, Part, Price, Process, Progress, Repository, RepositoryError, Role,
    SqliteRepository, Tokens, WorkerId,
};

const TTL: Duration = Duration::from_secs(60);

/// A closed database file that vanishes with this.
#[derive(Debug)]
pub(super) struct Life {
    folder: tempfile::TempDir,
}

impl Life {
    pub(super) fn lived() -> Life {
        let folder = tempfile::tempdir().unwrap();
        let life = Life { folder };
        let pool = Pool::new(&life.path());
        pool.purged();
        pool.retried_and_lost();
        pool.long();
        pool.cancelled_and_requeued();
        pool.prompted_when_submitted();
        pool.waited_too_long();
        pool.running();
        pool.changed();
        life
    }

    pub(super) fn path(&self) -> PathBuf {
        self.folder.path().join("life.db")
    }

    /// Another file with the same content.
    pub(super) fn copy(&self, name: &str) -> PathBuf {
        let copy = self.folder.path().join(name);
        std::fs::copy(self.path(), &copy).unwrap();
        copy
    }
}

struct Pool {
    clock: ManualClock,
    repository: SqliteRepository,
    owner: OwnerId,
    job_id: JobId,
}

impl Pool {
    fn new(path: &Path) -> Pool {
        let clock = ManualClock::new();
        let repository = SqliteOptions::new().clock(clock.clone()).open(path).unwrap();
        let budget: Money = "1000".parse().unwrap();
        let owner = NewOwner::new(Process::this(&clock.boot_id()), "pool").budget(Some(budget));
        let owner = repository.register_owner(&owner).unwrap();
        let job = NewJob::named("job").template("Do {{ n }}.").settings(json!({ "a": 1 })).budget(budget);
        let job_id = repository.create_job(&job).unwrap().id;
        Pool { clock, repository, owner, job_id }
    }

    fn insert(&self, unit: NewUnit) {
        self.repository.insert(self.job_id, &[unit], Intake::Open).unwrap();
    }

    fn claim(&self) -> Lease {
        let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
        let request = ClaimRequest::new(self.job_id, Claimant::new(self.owner, TTL), Scope::Pending, slots);
        self.repository.claim(&request).unwrap().pop().expect("a unit is due").lease
    }

    fn begin(&self) -> Lease {
        let lease = self.claim();
        let provenance = Provenance::of("fake");
        let beginning = Beginning::default().rendered_prompt("Do it, rendered.").provenance(provenance);
        self.repository.start(&lease, &beginning).unwrap();
        let asked = Message::user("Do it.").raw(vec![0xff, 0x00, b'{']);
        let called = Message::new(Role::Assistant).part(Part::thinking("Well.")).part(Part::tool_use(
            "t1",
            "search",
            json!({ "q": [1, 2.5, null] }),
        ));
        self.repository.append(&lease, 0, &[asked, called]).unwrap();
        self.clock.advance(Duration::from_secs(1));
        lease
    }

    fn report(&self) -> AttemptReport {
        let price = Price::new("2026-01-01T00:00:00Z".parse().unwrap()).input(Money::from_nanos(3_000_000_000));
        let tokens = Tokens { input: 7, output: 0, cache_read: 0, cache_write: 0, reasoning: 0 };
        AttemptReport::completed()
            .output("Done.")
            .result(json!({ "is": "done" }))
            .session("session-1")
            .charge(Charge::priced("large", tokens, price))
            .charge(Charge::unpriced("small", Tokens { output: 9, ..tokens }).estimated())
            .charge(Charge::reported("middle", tokens, Money::from_nanos(5)))
            .output_file(OutputFile { path: "a/b.txt".to_owned(), size_bytes: 12, hash: Hash::of(b"b") })
            .output_file(OutputFile { path: "c.txt".to_owned(), size_bytes: 0, hash: Hash::of(b"") })
    }

    fn lose(&self) {
        self.clock.advance(TTL * 2);
        assert_eq!(self.repository.expire(10).unwrap().len(), 1);
    }

    fn purged(&self) {
        self.insert(NewUnit::new("purged").prompt("Do it.").payload(json!({ "n": 1 })).unit_type("page"));
        let lease = self.begin();
        self.repository.checkpoint_at(&lease, &json!({ "page": 1 })).unwrap();
        self.repository.finish(&lease, &self.report()).unwrap();
        self.clock.advance(Duration::from_secs(1));
        let purged = self.repository.purge(self.clock.now().wall, &By::new("ada", "too old")).unwrap();
        assert_eq!((purged.units, purged.messages), (1, 2));
    }

    /// Failed with a partial message, lost with a late report, completed.
    fn retried_and_lost(&self) {
        self.insert(NewUnit::new("retried").prompt("Do it.").payload(json!({ "n": 2 })));
        let first = self.begin();
        self.repository.progress(&first, &Progress::default().session("session-0")).unwrap();
        self.repository.partial(&first, "I was about to").unwrap();
        let failure = Failure::new(FailureKind::EXECUTOR, "no luck");
        let again = AttemptReport::failed(failure, Next::Retry { after: Duration::ZERO });
        self.repository.finish(&first, &again).unwrap();
        let second = self.begin();
        self.repository.checkpoint_at(&second, &json!({ "page": 3 })).unwrap();
        self.lose();
        let third = self.begin();
        let late = self.repository.finish(&second, &self.report().output("late"));
        assert!(matches!(late, Err(RepositoryError::Stale { .. })));
        self.repository.finish(&third, &self.report()).unwrap();
    }

    /// Messages that are stored compressed, and an answer that is another's.
    fn long(&self) {
        let unit = NewUnit::new("long").template("Do {{ x }}.").max_cost(Money::from_nanos(9)).max_iterations(3);
        self.insert(unit);
        let lease = self.begin();
        self.repository.progress(&lease, &Progress::default().process(Process::this("another boot"))).unwrap();
        let text: String = (0..4_000).map(|n| format!("{n} bottles of beer on the wall, ")).collect();
        let raw: Vec<u8> = (0..40_000_u32).map(|n| u8::try_from(n.wrapping_mul(n) % 251).unwrap()).collect();
        self.repository.append(&lease, 2, &[Message::assistant(text).raw(raw)]).unwrap();
        let same = AttemptKey { unit: self.repository.unit(self.job_id, "retried").unwrap().key, number: 3 };
        self.repository.finish(&lease, &self.report().answer_of(same)).unwrap();
    }

    fn cancelled_and_requeued(&self) {
        let by = By::new("ada", "a mistake");
        self.insert(NewUnit::new("cancelled").prompt("Do it."));
        let lease = self.begin();
        assert_eq!(self.repository.cancel(self.job_id, "cancelled", &by).unwrap(), CancelAnswer::Requested);
        self.repository.finish(&lease, &self.report()).unwrap();
        self.repository.requeue(self.job_id, "cancelled", &By::whom("bob")).unwrap();
        self.repository.release(&self.claim(), None, "no time").unwrap();
        self.claim();
        self.repository.cancel(self.job_id, "cancelled", &by).unwrap();
        self.lose();
        self.repository.requeue(self.job_id, "cancelled", &By::whom("bob")).unwrap();
        assert_eq!(self.repository.cancel(self.job_id, "cancelled", &by).unwrap(), CancelAnswer::Cancelled);
    }

    fn prompted_when_submitted(&self) {
        let unit = NewUnit::new("prompted");
        self.insert(unit.clone());
        let slot = Slot::new(WorkerId::new("w3").unwrap());
        let claimant = Claimant::new(self.owner, TTL);
        let submitted = self.repository.submit(self.job_id, &unit.prompt("Now."), &claimant, &slot).unwrap();
        let Submitted::Claimed(claim) = submitted else { panic!("it was due") };
        let failure = Failure::new(FailureKind::TIMED_OUT, "an hour");
        self.repository.finish(&claim.lease, &AttemptReport::timed_out(failure, Next::GiveUp)).unwrap();
    }

    fn waited_too_long(&self) {
        let unit = NewUnit::new("waited").queue_timeout(Duration::from_secs(1));
        self.repository.insert(self.job_id, &[unit], Intake::AcceptedBy(self.owner)).unwrap();
        self.lose();
    }

    /// The job becomes another, and a second one is made.
    fn changed(&self) {
        let change = JobChange::default().settings(json!({ "a": 1, "b": "c" })).budget(Money::from_nanos(9));
        self.repository.change_job(self.job_id, &change, &By::new("ada", "more of it")).unwrap();
        self.repository.create_job(&NewJob::named("empty")).unwrap();
    }

    /// One that is being executed and has asked a provider, which is closed by now, one that waits, and one that waits for a time.
    fn running(&self) {
        self.insert(NewUnit::new("running").prompt("Do it."));
        let lease = self.begin();
        let limits = RateLimits::new().requests(9);
        let work = WorkKey::of("fake", &Parameters::of(&json!(1)), &UnitOptions::default(), "Do it.");
        assert_eq!(self.repository.share(&lease, &work).unwrap(), Shared::Yours);
        assert_eq!(self.repository.take_turn(&lease, "provider", &limits, &Ask::new(7, 9)).unwrap(), Turn::Taken);
        self.repository.hold(&NewHold::new("provider", Duration::from_secs(3_600), "closed")).unwrap();
        let charge = Charge::unpriced("small", Tokens { output: 3, ..Tokens::default() });
        let progress = Progress::default().session("session-2").process(Process::this("another boot")).charge(charge);
        self.repository.progress(&lease, &progress).unwrap();
        self.repository.checkpoint_at(&lease, &json!({ "page": 7 })).unwrap();
        self.repository.partial(&lease, "Half a sen").unwrap();
        self.insert(NewUnit::new("waiting").prompt("Do it.").priority(3));
        let later = self.clock.now().wall + Duration::from_secs(3_600);
        self.insert(NewUnit::new("later").prompt("Do it.").not_before(later));
        self.repository.flush(&lease).unwrap();
    }
}
