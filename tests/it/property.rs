//! Random histories, told to the repository in memory and to one that is stored: they must answer alike,
//! and keep the same record.
//!
//! `WORKCREW_SEED` repeats a run, `PROPTEST_CASES` sets how many histories it has.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::time::Duration;

use chrono::TimeDelta;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use serde_json::{Value, json};
use tempfile::TempDir;
use workcrew::attempt::{OutputFile, Provenance};
use workcrew::audit::verify;
use workcrew::chain::Hash;
use workcrew::clock::{Clock, ManualClock};
use workcrew::limits::{AccountHolder, Estimate, Expectation};
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{
    Archive, By, ClaimRequest, Claimant, Insertion, Intake, JournalEntry, PAGE_LIMIT, PAGE_LIMIT_BYTES, Page,
    Repository, RepositoryError, Scope, Slot, Submitted, UnitFilter,
};
use workcrew::unit::Change;
use workcrew::worker::WorkerChange;
use workcrew::{
    AttemptReport, Beginning, Charge, Ending, Failure, FailureKind, JobChange, JobId, Lease, MemoryRepository, Message,
    Money, NewJob, NewOwner, NewUnit, Next, OwnerId, OwnerState, Part, Price, Process, Progress, Role, Tokens, UnitKey,
    UnitStatus, WorkUnit, WorkerId,
};

use crate::support;

const DEFAULT_CASES: u32 = 150;
/// A server is asked over a socket, and makes a schema for each.
#[cfg(feature = "postgres")]
const POSTGRES_CASES: u32 = 40;
const OWNERS: usize = 3;
const WORKERS: usize = 4;

/// One step of a history. Numbers choose among what the history has brought forth so far.
#[derive(Clone, Debug)]
enum Operation {
    ChangeJob {
        job: usize,
        change: JobChange,
        is_sent_again: bool,
    },
    Insert {
        job: usize,
        units: Vec<UnitPlan>,
        accepted_by: Option<usize>,
        is_sent_again: bool,
    },
    Submit {
        job: usize,
        unit: UnitPlan,
        owner: usize,
        worker: usize,
        ttl_ms: u64,
        starting: bool,
    },
    Claim {
        job: usize,
        owner: usize,
        scope: Scope,
        /// Workers, and which unit each is for.
        slots: Vec<(usize, Option<usize>)>,
        ttl_ms: u64,
        starting: bool,
    },
    Claimed {
        owner: usize,
        token: i64,
    },
    Start {
        lease: usize,
        prompt: Option<String>,
        provenance: bool,
    },
    Append {
        lease: usize,
        follows: i64,
        messages: Vec<Message>,
    },
    Partial {
        lease: usize,
        text: String,
    },
    Flush {
        lease: usize,
    },
    Progress {
        lease: usize,
        session: bool,
        process: bool,
        charges: Vec<Charge>,
    },
    Checkpoint {
        lease: usize,
        value: Value,
    },
    Finish {
        lease: usize,
        report: AttemptReport,
    },
    FinishAgain {
        report: usize,
    },
    Release {
        lease: usize,
        after_ms: Option<u64>,
    },
    Renew {
        owner: usize,
        ttl_ms: u64,
    },
    Expire {
        limit: usize,
    },
    Cancel {
        job: usize,
        unit: usize,
    },
    Requeue {
        job: usize,
        unit: usize,
    },
    Register {
        place: usize,
        life: Life,
    },
    RegisterAgain {
        place: usize,
    },
    LetGo {
        owner: usize,
    },
    Tell {
        owner: usize,
        workers: usize,
    },
    EndOwner {
        owner: usize,
    },
    ChangeWorker {
        owner: usize,
        job: usize,
        worker: usize,
        change: WorkerChange,
    },
    Purge {
        before_ms: i64,
    },
    Advance {
        by_ms: u64,
    },
    JumpWall {
        by_ms: i64,
    },
    Reboot,
    /// What is stored is closed and opened again, which nobody may notice.
    Reopen,
}

/// What is known of an owner's process.
#[derive(Clone, Copy, Debug)]
enum Life {
    Unknown,
    Alive,
    Dead,
    WithoutBoot,
}

#[derive(Clone, Debug)]
struct UnitPlan {
    id: usize,
    content: u8,
    prompt: Option<u8>,
    priority: i32,
    max_retries: u32,
    not_before_ms: Option<i64>,
    queue_timeout_ms: Option<u64>,
}

impl UnitPlan {
    fn unit(&self, clock: &ManualClock) -> NewUnit {
        let mut unit = NewUnit::new(unit_id(self.id))
            .payload(json!({ "content": self.content, "number": 1.5 }))
            .priority(self.priority)
            .max_retries(self.max_retries);
        if self.id == 1 {
            unit = unit.template("say {content}").unit_type("templated");
        }
        if self.id == 2 {
            unit = unit.resume_session("given");
        }
        if let Some(prompt) = self.prompt {
            unit = unit.prompt(format!("prompt {prompt}"));
        }
        if let Some(delay_ms) = self.not_before_ms {
            unit = unit.not_before(clock.now().wall + TimeDelta::milliseconds(delay_ms) + TimeDelta::microseconds(7));
        }
        if let Some(timeout_ms) = self.queue_timeout_ms {
            unit = unit.queue_timeout(Duration::from_millis(timeout_ms));
        }
        unit
    }
}

/// A handful of names, and one that is none.
fn unit_id(number: usize) -> String {
    if number == 99 { String::new() } else { format!("u{number}") }
}

fn duration_ms() -> impl Strategy<Value = u64> {
    prop_oneof![Just(1), Just(50), Just(1_000), Just(60_000), Just(3_600_000), 1..5_000_u64]
}

fn signed_ms() -> impl Strategy<Value = i64> {
    (duration_ms(), any::<bool>()).prop_map(|(ms, is_back)| if is_back { -ms.cast_signed() } else { ms.cast_signed() })
}

fn ttl_ms() -> impl Strategy<Value = u64> {
    prop_oneof![30 => duration_ms(), 1 => Just(0)]
}

fn unit_plan() -> impl Strategy<Value = UnitPlan> {
    let id = prop_oneof![40 => 0..7_usize, 1 => Just(99)];
    let content = prop_oneof![9 => Just(0_u8), 1 => Just(1)];
    let prompt = prop_oneof![5 => Just(Some(0_u8)), 1 => Just(Some(1)), 3 => Just(None)];
    let not_before_ms = prop_oneof![3 => Just(None), 1 => signed_ms().prop_map(Some)];
    let queue_timeout_ms = prop_oneof![1 => Just(None), 1 => duration_ms().prop_map(Some)];
    (id, content, prompt, -1..=1, 0..3_u32, not_before_ms, queue_timeout_ms).prop_map(
        |(id, content, prompt, priority, max_retries, not_before_ms, queue_timeout_ms)| UnitPlan {
            id,
            content,
            prompt,
            priority,
            max_retries,
            not_before_ms,
            queue_timeout_ms,
        },
    )
}

fn tokens() -> impl Strategy<Value = Tokens> {
    let count = || prop_oneof![20 => 0..1_000_u64, 2 => Just(i64::MAX as u64), 1 => Just(u64::MAX)];
    (count(), 0..1_000_u64, 0..9_u64, 0..9_u64, 0..9_u64).prop_map(
        |(input, output, cache_read, cache_write, reasoning)| Tokens {
            input,
            output,
            cache_read,
            cache_write,
            reasoning,
        },
    )
}

fn charge() -> impl Strategy<Value = Charge> {
    let model = prop_oneof![Just("ant"), Just("bee"), Just("Cat")];
    let amount = prop_oneof![9 => 0..1_000_000_i64, 1 => Just(i64::MAX)];
    (model, tokens(), amount, 0..4).prop_map(|(model, tokens, amount, kind)| match kind {
        0 => Charge::unpriced(model, tokens),
        1 => Charge::reported(model, tokens, Money::from_nanos(amount)),
        2 => Charge::reported(model, tokens, Money::from_nanos(amount)).estimated(),
        _ => {
            let as_of = chrono::DateTime::from_timestamp_nanos(1_700_000_000_123_456_789);
            Charge::priced(model, tokens, Price::new(as_of).input(Money::from_nanos(3)).output(Money::from_nanos(5)))
        }
    })
}

fn charges() -> impl Strategy<Value = Vec<Charge>> {
    prop::collection::vec(charge(), 0..3)
}

fn message() -> impl Strategy<Value = Message> {
    prop_oneof![
        Just(Message::user("question")),
        (0..9_u8).prop_map(|number| Message::assistant(format!("answer {number} \0 ✓"))),
        Just(Message::new(Role::Assistant).part(Part::tool_use("t", "bash", json!({ "command": "ls" })))),
        Just(Message::new(Role::Tool).part(Part::tool_result("t", "")).raw(vec![0xff, 0x00])),
        Just(Message::assistant("long ".repeat(20_000))),
    ]
}

fn report() -> impl Strategy<Value = AttemptReport> {
    let next = prop_oneof![
        2 => prop_oneof![Just(0), duration_ms()].prop_map(|ms| Next::Retry { after: Duration::from_millis(ms) }),
        1 => Just(Next::GiveUp),
    ];
    let ending = (next, 0..6).prop_map(|(next, kind)| match kind {
        0..=2 => Ending::Completed,
        3 => Ending::Failed { failure: Failure::new(FailureKind::EXECUTOR, "it broke"), next },
        4 => Ending::TimedOut { failure: Failure::new(FailureKind::TIMED_OUT, "too slow"), next },
        _ => Ending::Cancelled,
    });
    let result = prop_oneof![Just(None), Just(Some(Value::Null)), Just(Some(json!({ "a": [1, 2.5, "b"] })))];
    let output = prop_oneof![Just(None), Just(Some(String::new())), Just(Some("said".to_owned()))];
    let size_bytes = prop_oneof![9 => 0..100_u64, 1 => Just(u64::MAX)];
    let file = size_bytes.prop_map(|size_bytes| OutputFile {
        path: format!("out/{size_bytes}.txt"),
        size_bytes,
        hash: Hash::of(&size_bytes.to_le_bytes()),
    });
    let files = prop::collection::vec(file, 0..3);
    (ending, result, output, files, any::<bool>(), charges(), 0..2_u32).prop_map(
        |(ending, result, output, files, has_session, charges, messages_lost)| {
            let mut report = AttemptReport::new(ending);
            report.result = result;
            report.output = output;
            report.output_files = files;
            report.session_id = has_session.then(|| "reported".to_owned());
            report.charges = charges;
            report.messages_lost = messages_lost;
            report
        },
    )
}

/// Below this a lease that still holds is meant.
const HELD: usize = 4;

/// Mostly one of the leases that still hold, at times any.
fn lease() -> impl Strategy<Value = usize> {
    prop_oneof![6 => 0..HELD, 1 => HELD..60]
}

fn operation() -> impl Strategy<Value = Operation> {
    use Operation as O;
    let owner = || 0..OWNERS;
    let worker = || 0..WORKERS;
    let job = || prop_oneof![60 => 0..2_usize, 1 => Just(2_usize)];
    let scope = prop_oneof![1 => Just(Scope::Accepted), 3 => Just(Scope::Pending)];
    let any_unit = (worker(), Just(None));
    let a_unit = (worker(), prop_oneof![1 => Just(None), 3 => (0..20_usize).prop_map(Some)]);
    let slots = prop_oneof![5 => prop::collection::vec(any_unit, 0..4), 4 => prop::collection::vec(a_unit, 1..4)];
    let accepted_by = prop_oneof![2 => Just(None), 3 => owner().prop_map(Some)];
    let value = prop_oneof![Just(Value::Null), (0..9).prop_map(|step| json!({ "step": step }))];
    let change = prop::sample::select(WorkerChange::ALL);
    let life = prop_oneof![3 => Just(Life::Unknown), 2 => Just(Life::Alive), 2 => Just(Life::Dead), 1 => Just(Life::WithoutBoot)];
    let text = prop_oneof![Just(String::new()), Just("hal".to_owned()), Just("half a sen".to_owned())];
    let prompt = prop_oneof![Just(None), Just(Some("rendered".to_owned()))];
    let process = any::<bool>;
    let after_ms = prop_oneof![Just(None), Just(Some(0)), duration_ms().prop_map(Some)];
    let follows = prop_oneof![8 => Just(0_i64), 3 => -3..0_i64, 1 => 1..3_i64];
    let budget = prop_oneof![
        Just(None),
        Just(Some(None)),
        (0..40_i64).prop_map(|budget| Some(Some(Money::from_nanos(budget * 100_000))))
    ];
    let settings = prop_oneof![1 => Just(None), 2 => (0..3).prop_map(|number| Some(json!({ "b": number, "a": 0.1 })))];
    prop_oneof![
        3 => (job(), budget, settings, any::<bool>()).prop_map(|(job, budget, settings, is_sent_again)| {
            let mut change = JobChange::default();
            (change.budget, change.settings) = (budget, settings);
            O::ChangeJob { job, change, is_sent_again }
        }),
        14 => (job(), prop::collection::vec(unit_plan(), 0..4), accepted_by, any::<bool>())
            .prop_map(|(job, units, accepted_by, is_sent_again)| O::Insert { job, units, accepted_by, is_sent_again }),
        10 => (job(), unit_plan(), owner(), worker(), ttl_ms(), any::<bool>()).prop_map(
            |(job, unit, owner, worker, ttl_ms, starting)| O::Submit { job, unit, owner, worker, ttl_ms, starting },
        ),
        36 => (job(), owner(), scope, slots, ttl_ms(), any::<bool>()).prop_map(
            |(job, owner, scope, slots, ttl_ms, starting)| O::Claim { job, owner, scope, slots, ttl_ms, starting },
        ),
        2 => (owner(), 0..20_i64).prop_map(|(owner, token)| O::Claimed { owner, token }),
        20 => (lease(), prompt, any::<bool>())
            .prop_map(|(lease, prompt, provenance)| O::Start { lease, prompt, provenance }),
        8 => (lease(), follows, prop::collection::vec(message(), 0..4))
            .prop_map(|(lease, follows, messages)| O::Append { lease, follows, messages }),
        4 => (lease(), text).prop_map(|(lease, text)| O::Partial { lease, text }),
        2 => lease().prop_map(|lease| O::Flush { lease }),
        5 => (lease(), any::<bool>(), process(), charges())
            .prop_map(|(lease, session, process, charges)| O::Progress { lease, session, process, charges }),
        3 => (lease(), value).prop_map(|(lease, value)| O::Checkpoint { lease, value }),
        20 => (lease(), report()).prop_map(|(lease, report)| O::Finish { lease, report }),
        3 => (0..20_usize).prop_map(|report| O::FinishAgain { report }),
        5 => (lease(), after_ms).prop_map(|(lease, after_ms)| O::Release { lease, after_ms }),
        3 => (owner(), ttl_ms()).prop_map(|(owner, ttl_ms)| O::Renew { owner, ttl_ms }),
        9 => prop_oneof![1 => 0..4_usize, 1 => Just(usize::MAX)].prop_map(|limit| O::Expire { limit }),
        5 => (job(), 0..8_usize).prop_map(|(job, unit)| O::Cancel { job, unit }),
        5 => (job(), 0..8_usize).prop_map(|(job, unit)| O::Requeue { job, unit }),
        4 => (owner(), life).prop_map(|(place, life)| O::Register { place, life }),
        1 => owner().prop_map(|place| O::RegisterAgain { place }),
        3 => owner().prop_map(|owner| O::LetGo { owner }),
        2 => (owner(), 0..3_usize).prop_map(|(owner, workers)| O::Tell { owner, workers }),
        1 => owner().prop_map(|owner| O::EndOwner { owner }),
        8 => (owner(), job(), worker(), change)
            .prop_map(|(owner, job, worker, change)| O::ChangeWorker { owner, job, worker, change }),
        4 => signed_ms().prop_map(|before_ms| O::Purge { before_ms }),
        8 => duration_ms().prop_map(|by_ms| O::Advance { by_ms }),
        3 => signed_ms().prop_map(|by_ms| O::JumpWall { by_ms }),
        1 => Just(O::Reboot),
        2 => Just(O::Reopen),
    ]
}

/// Up to 60 operations. Most histories are long, since it takes a while until much can happen.
fn history() -> impl Strategy<Value = Vec<Operation>> {
    use prop::collection::vec;
    prop_oneof![1 => vec(operation(), 1..=20), 3 => vec(operation(), 40..=60)]
}

fn is_stale(answer: Answer<()>) -> bool {
    matches!(answer, Err(RepositoryError::Stale { .. }))
}

/// Opens the same repository again and again.
type Open = Box<dyn Fn(&ManualClock) -> Box<dyn Repository>>;

/// Both repositories, and what the history has brought forth.
struct World {
    clock: ManualClock,
    memory: MemoryRepository,
    /// There but while it is opened again.
    stored: Option<Box<dyn Repository>>,
    open: Open,
    /// Whether a restart of the machine means something to what is stored, as it does in memory.
    knows_boots: bool,
    jobs: Vec<JobId>,
    owners: Vec<(NewOwner, OwnerId)>,
    /// The latest last.
    leases: Vec<Lease>,
    reports: Vec<(Lease, AttemptReport)>,
    tokens: i64,
    /// How often a slot got the unit that it was for.
    wishes_granted: u32,
    _folder: Option<TempDir>,
}

type Checked<T> = Result<T, TestCaseError>;

impl World {
    fn with_sqlite() -> Checked<World> {
        let folder = support::folder();
        let path = folder.path().join("history.db");
        let open = move |clock: &ManualClock| -> Box<dyn Repository> {
            Box::new(SqliteOptions::new().clock(clock.clone()).open(&path).unwrap())
        };
        let mut world = World::new(Box::new(open))?;
        world._folder = Some(folder);
        Ok(world)
    }

    /// Owners may be on other machines there, so that nothing is known of boots.
    #[cfg(feature = "postgres")]
    fn with_postgres(server: &support::postgres::Server) -> Checked<World> {
        let address = server.fresh();
        let open = move |clock: &ManualClock| -> Box<dyn Repository> {
            let options = workcrew::repository::postgres::PostgresOptions::new();
            Box::new(options.clock(clock.clone()).readers(1).connect(&address).unwrap())
        };
        let mut world = World::new(Box::new(open))?;
        world.knows_boots = false;
        Ok(world)
    }

    fn new(open: Open) -> Checked<World> {
        let clock = ManualClock::new();
        let mut world = World {
            memory: MemoryRepository::with_clock(clock.clone()),
            stored: None,
            open,
            knows_boots: true,
            clock,
            jobs: Vec::new(),
            owners: Vec::new(),
            leases: Vec::new(),
            reports: Vec::new(),
            tokens: 0,
            wishes_granted: 0,
            _folder: None,
        };
        world.open();
        for job in [NewJob::named("plain"), NewJob::named("templated").template("do {it}")] {
            let job = world.both(|repository| repository.create_job(&job))?.expect("a new job");
            world.jobs.push(job.id);
        }
        world.jobs.push(JobId(77));
        for place in 0..OWNERS {
            world.register(place, Life::Unknown)?;
        }
        Ok(world)
    }

    /// Asks both, and fails if they do not answer alike.
    fn both<T: PartialEq + Debug>(&self, ask: impl Fn(&dyn Repository) -> Answer<T>) -> Checked<Option<T>> {
        alike(told(ask(&self.memory)), told(ask(self.stored())))
    }

    /// Closes what is stored if it is open, and opens it.
    fn open(&mut self) {
        self.stored = None;
        self.stored = Some((self.open)(&self.clock));
    }

    fn stored(&self) -> &dyn Repository {
        self.stored.as_deref().expect("it was opened")
    }

    fn owner(&self, place: usize) -> OwnerId {
        self.owners[place].1
    }

    /// One of the latest leases that still hold, if it is to be and there is any, else one of all.
    fn lease(&self, back: usize) -> Option<Lease> {
        let held: Vec<&Lease> = self.leases.iter().filter(|lease| !is_stale(self.memory.flush(lease))).collect();
        let all: Vec<&Lease> = self.leases.iter().collect();
        let leases = if back < HELD && !held.is_empty() { held } else { all };
        (!leases.is_empty()).then(|| leases[leases.len() - 1 - back % leases.len()].clone())
    }

    /// A unit in such a status, if there is any, else one of this name, which may not exist.
    fn target(&self, job: usize, number: usize, is_meant: impl Fn(UnitStatus) -> bool) -> (JobId, String) {
        let units = self.memory.units(&UnitFilter::default(), 0, PAGE_LIMIT).unwrap().items;
        let meant: Vec<_> = units.iter().filter(|unit| is_meant(unit.status)).collect();
        if number.is_multiple_of(2) && !meant.is_empty() {
            let unit = meant[number % meant.len()];
            return (unit.job_id, unit.id.to_string());
        }
        (self.jobs[job], unit_id(number))
    }

    /// Mostly a unit of the job that waits or is leased, if there is any, else one of this key, which may not exist.
    fn wanted(&self, job: JobId, number: usize) -> UnitKey {
        let units = self.memory.units(&UnitFilter::job(job), 0, PAGE_LIMIT).map_or(Vec::new(), |page| page.items);
        let is_meant = |unit: &&WorkUnit| match number % 4 {
            0 => false,
            1 => unit.status.is_leased(),
            _ => unit.status == UnitStatus::Pending,
        };
        let meant: Vec<UnitKey> = units.iter().filter(is_meant).map(|unit| unit.key).collect();
        if meant.is_empty() { UnitKey(number as i64) } else { meant[number % meant.len()] }
    }

    fn claimant(&mut self, owner: usize, ttl_ms: u64, is_starting: bool) -> Claimant {
        self.tokens += 1;
        let mut claimant = Claimant::new(self.owner(owner), Duration::from_millis(ttl_ms));
        claimant.token = self.tokens;
        claimant.starting = is_starting.then(|| Provenance::of("starting"));
        // Now a guess that fits into the budgets, now one that does not, and now one that knows what a prompt costs.
        let price = Price::new(self.clock.now().wall).input("60".parse().unwrap()).output("1".parse().unwrap());
        let expectation = Expectation::default().otherwise(Money::from_nanos(self.tokens % 50 * 20_000));
        claimant.expecting(expectation.estimate(Estimate::of(&price, 2).filter(|_| self.tokens % 3 == 0)))
    }

    fn register(&mut self, place: usize, life: Life) -> Checked<()> {
        let this = Process::this(&self.clock.boot_id());
        let process = match life {
            Life::Unknown => Process { start_ticks: 0, ..this },
            Life::Alive => this,
            Life::Dead => Process { start_ticks: 1, ..this },
            Life::WithoutBoot => Process { boot_id: String::new(), ..this },
        };
        let budget = (place == 1).then(|| Money::from_nanos(2_000_000));
        let new = NewOwner::new(process, format!("{life:?}")).budget(budget);
        let id = self.both(|repository| repository.register_owner(&new))?.expect("a new owner");
        self.owners.truncate(OWNERS);
        if place < self.owners.len() {
            self.owners[place] = (new, id);
        } else {
            self.owners.push((new, id));
        }
        Ok(())
    }

    fn step(&mut self, operation: &Operation) -> Checked<()> {
        use Operation as O;
        match operation {
            O::Insert { job, units, accepted_by, is_sent_again } => {
                let units: Vec<NewUnit> = units.iter().map(|plan| plan.unit(&self.clock)).collect();
                let intake = accepted_by.map_or(Intake::Open, |owner| Intake::AcceptedBy(self.owner(owner)));
                let inserted = self.both(|repository| repository.insert(self.jobs[*job], &units, intake))?;
                if *is_sent_again && inserted.is_some() {
                    self.insert_again(self.jobs[*job], &units, intake)?;
                }
            }
            O::ChangeJob { job, change, is_sent_again } => {
                let (job, by) = (self.jobs[*job], By::new("ada", "it is cheap"));
                let changed = self.both(|repository| repository.change_job(job, change, &by))?;
                if *is_sent_again {
                    let before = self.memory.job_journal(0, PAGE_LIMIT).unwrap();
                    prop_assert_eq!(self.both(|repository| repository.change_job(job, change, &by))?, changed);
                    prop_assert_eq!(self.memory.job_journal(0, PAGE_LIMIT).unwrap(), before);
                }
            }
            O::Submit { job, unit, owner, worker, ttl_ms, starting } => {
                let (unit, claimant) = (unit.unit(&self.clock), self.claimant(*owner, *ttl_ms, *starting));
                let job = self.jobs[*job];
                let submitted = self.both(|repository| repository.submit(job, &unit, &claimant, &slot(*worker)))?;
                if let Some(Submitted::Claimed(claim)) = submitted {
                    self.leases.push(claim.lease);
                }
            }
            O::Claim { job, owner, scope, slots, ttl_ms, starting } => {
                let claimant = self.claimant(*owner, *ttl_ms, *starting);
                let slots = slots.iter().map(|&(worker, unit)| match unit {
                    Some(number) => slot(worker).for_unit(self.wanted(self.jobs[*job], number)),
                    None => slot(worker),
                });
                let request = ClaimRequest::new(self.jobs[*job], claimant, *scope, slots.collect());
                self.claim(&request)?;
            }
            O::Claimed { owner, token } => {
                self.both(|repository| repository.claimed(self.owner(*owner), *token))?;
            }
            O::Register { place, life } => self.register(*place, *life)?,
            O::RegisterAgain { place } => {
                self.both(|repository| repository.register_owner(&self.owners[*place].0))?;
            }
            O::LetGo { owner } => self.let_go(self.owner(*owner))?,
            O::Tell { owner, workers } => {
                let mut state = OwnerState::default();
                state.workers = *workers;
                self.both(|repository| repository.tell(self.owner(*owner), &state))?;
            }
            O::EndOwner { owner } => {
                self.both(|repository| repository.end_owner(self.owner(*owner)))?;
            }
            O::Renew { owner, ttl_ms } => {
                self.both(|repository| repository.renew(self.owner(*owner), Duration::from_millis(*ttl_ms)))?;
            }
            O::Expire { limit } => {
                self.both(|repository| repository.expire(*limit))?;
            }
            O::Cancel { job, unit } => {
                let by = By::new("ada", "no longer wanted");
                let (job, id) = self.target(*job, *unit, UnitStatus::is_leased);
                self.both(|repository| repository.cancel(job, &id, &by))?;
            }
            O::Requeue { job, unit } => {
                let by = By::whom("ada");
                let (job, id) = self.target(*job, *unit, UnitStatus::is_terminal);
                self.both(|repository| repository.requeue(job, &id, &by))?;
            }
            O::ChangeWorker { owner, job, worker, change } => {
                let (owner, job) = (self.owner(*owner), self.jobs[*job]);
                self.both(|repository| repository.change_worker(owner, job, &slot(*worker), *change))?;
            }
            O::Purge { before_ms } => {
                let before = self.clock.now().wall + TimeDelta::milliseconds(*before_ms);
                self.both(|repository| repository.purge(before, &By::whom("cleaner")))?;
            }
            O::Advance { by_ms } => self.clock.advance(Duration::from_millis(*by_ms)),
            O::JumpWall { by_ms } => self.clock.jump_wall(TimeDelta::milliseconds(*by_ms)),
            O::Reboot if self.knows_boots => self.clock.reboot(),
            O::Reboot => {}
            O::Reopen => self.open(),
            of_a_lease => self.step_of_lease(of_a_lease)?,
        }
        Ok(())
    }

    fn step_of_lease(&mut self, operation: &Operation) -> Checked<()> {
        use Operation as O;
        let (O::Start { lease, .. }
        | O::Append { lease, .. }
        | O::Partial { lease, .. }
        | O::Flush { lease }
        | O::Progress { lease, .. }
        | O::Checkpoint { lease, .. }
        | O::Finish { lease, .. }
        | O::Release { lease, .. }
        | O::FinishAgain { report: lease }) = operation
        else {
            unreachable!("{operation:?} is no step of a lease")
        };
        let Some(lease) = self.lease(*lease) else { return Ok(()) };
        match operation {
            O::Start { prompt, provenance, .. } => {
                let mut beginning = Beginning::default();
                beginning.rendered_prompt.clone_from(prompt);
                beginning.provenance = provenance.then(|| Provenance::of("fake"));
                self.both(|repository| repository.start(&lease, &beginning))?;
            }
            O::Append { follows, messages, .. } => self.append(&lease, *follows, messages)?,
            O::Partial { text, .. } => {
                let _ = self.memory.partial(&lease, text);
                prop_assert_eq!(told(self.stored().partial(&lease, text)), Ok(()));
                self.both(|repository| repository.flush(&lease))?;
            }
            O::Flush { .. } => {
                self.both(|repository| repository.flush(&lease))?;
            }
            O::Progress { session, process, charges, .. } => {
                let mut progress = Progress::default();
                progress.session_id = session.then(|| format!("session {}", lease.attempt_number));
                progress.process = process.then(|| Process::this(""));
                progress.charges.clone_from(charges);
                self.both(|repository| repository.progress(&lease, &progress))?;
            }
            O::Checkpoint { value, .. } => {
                self.both(|repository| repository.checkpoint_at(&lease, value))?;
            }
            O::Finish { report, .. } => {
                self.both(|repository| repository.finish(&lease, report))?;
                self.reports.push((lease, report.clone()));
            }
            O::FinishAgain { report } if !self.reports.is_empty() => {
                let (lease, report) = &self.reports[report % self.reports.len()];
                self.both(|repository| repository.finish(lease, report))?;
            }
            O::Release { after_ms, .. } => {
                let after = after_ms.map(Duration::from_millis);
                self.both(|repository| repository.release(&lease, after, "shutting down"))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// An insert that is sent again finds all its units, and changes nothing that can be read.
    fn insert_again(&self, job: JobId, units: &[NewUnit], intake: Intake) -> Checked<()> {
        let record = || {
            let units = self.memory.units(&UnitFilter::default(), 0, PAGE_LIMIT).unwrap();
            (units, self.memory.journal(0, PAGE_LIMIT).unwrap())
        };
        let before = record();
        let answers = self.both(|repository| repository.insert(job, units, intake))?.unwrap_or_default();
        prop_assert!(!answers.iter().any(|answer| matches!(answer, Insertion::Inserted(_))), "{:?}", answers);
        prop_assert_eq!(record(), before);
        Ok(())
    }

    /// What the owner accepted and that waits is open afterwards, nothing else changes, and a second time there is nothing to do.
    fn let_go(&self, owner: OwnerId) -> Checked<()> {
        let record = || {
            let units = self.memory.units(&UnitFilter::default(), 0, PAGE_LIMIT).unwrap().items;
            (units, self.memory.journal(0, PAGE_LIMIT).unwrap())
        };
        let mut expected = record();
        let is_let_go = |unit: &&mut WorkUnit| unit.status == UnitStatus::Pending && unit.accepted_by == Some(owner);
        let mut count = 0;
        for unit in expected.0.iter_mut().filter(is_let_go) {
            unit.accepted_by = None;
            count += 1;
        }
        for count in [count, 0] {
            prop_assert_eq!(self.both(|repository| repository.let_go(owner))?, Some(count));
            prop_assert_eq!(&record(), &expected);
        }
        Ok(())
    }

    /// Whatever was claimed, each slot has what it is for or nothing, and no other has it.
    fn claim(&mut self, request: &ClaimRequest) -> Checked<()> {
        let claims = self.both(|repository| repository.claim(request))?.unwrap_or_default();
        let mut slots = request.slots.iter();
        let wanted: BTreeSet<UnitKey> = request.slots.iter().filter_map(|slot| slot.unit).collect();
        for claim in claims {
            let Lease { unit, worker_id, .. } = &claim.lease;
            let meant = Some(*unit).filter(|unit| wanted.contains(unit));
            let found = slots.any(|slot| slot.unit == meant && slot.worker_id == *worker_id);
            prop_assert!(found, "{:?} is for none of the slots that are left", claim.lease);
            self.wishes_granted += u32::from(meant.is_some());
            self.leases.push(claim.lease);
        }
        Ok(())
    }

    /// Appends behind as many messages as there are, or a few more or less.
    fn append(&mut self, lease: &Lease, offset: i64, messages: &[Message]) -> Checked<()> {
        let count = self.memory.messages(lease.attempt(), 0, PAGE_LIMIT).unwrap().items.len();
        let follows = u32::try_from((count as i64 + offset).max(0)).unwrap();
        // What is stored objects with the flush.
        let _ = self.memory.append(lease, follows, messages);
        prop_assert_eq!(told(self.stored().append(lease, follows, messages)), Ok(()));
        self.both(|repository| repository.flush(lease)).map(drop)
    }

    /// All that can be read, compared page by page.
    fn compare(&self) -> Checked<Vec<JournalEntry>> {
        let journal = self.pages(|archive, after, limit| archive.journal(after, limit), |row| row.seq)?;
        self.pages(|archive, after, limit| archive.job_journal(after, limit), |row| row.seq)?;
        self.pages(|archive, after, limit| archive.outcomes_since(after, limit), |row| row.seq)?;
        self.pages(|archive, after, limit| archive.leases(None, after, limit), |lease| lease.unit.0)?;
        let units = self.units()?;
        for filter in [
            UnitFilter::job(self.jobs[0]),
            UnitFilter::job(self.jobs[1]).status(UnitStatus::Pending).status(UnitStatus::Failed),
            UnitFilter::default().unit_type("templated"),
            UnitFilter::default().failure_kind("lost"),
        ] {
            self.both(|repository| repository.units(&filter, 0, PAGE_LIMIT))?;
        }
        for key in units {
            self.compare_unit(key)?;
        }
        for &job in &self.jobs {
            self.both(|repository| repository.job(job))?;
            self.both(|repository| repository.counts(job))?;
            self.both(|repository| repository.leases(Some(job), 0, PAGE_LIMIT))?;
            self.both(|repository| repository.costs(Some(job)))?;
            self.both(|repository| repository.account(AccountHolder::Job(job)))?;
        }
        self.both(|repository| repository.costs(None))?;
        self.both(|repository| repository.jobs(0, 1))?;
        self.both(|repository| repository.job_named("templated"))?;
        for owner in self.both(|repository| repository.owners())?.unwrap_or_default() {
            self.both(|repository| repository.account(AccountHolder::Owner(owner.id)))?;
            self.both(|repository| repository.workers(owner.id, "", 0))?;
            self.both(|repository| repository.workers(owner.id, "w1", usize::MAX))?;
            self.both(|repository| repository.workers(owner.id, "", PAGE_LIMIT))?;
            self.pages(|repository, after, limit| repository.accepted(owner.id, after, limit), |unit| unit.0)?;
        }
        Ok(journal)
    }

    fn units(&self) -> Checked<Vec<UnitKey>> {
        let all = UnitFilter::default();
        let units = self.pages(|archive, after, limit| archive.units(&all, after, limit), |unit| unit.key.0)?;
        Ok(units.into_iter().map(|unit| unit.key).collect())
    }

    fn compare_unit(&self, key: UnitKey) -> Checked<()> {
        self.pages(|archive, after, limit| archive.unit_journal(key, after, limit), |row| row.seq)?;
        self.both(|repository| repository.inputs(key))?;
        self.both(|repository| repository.checkpoint(key))?;
        let attempts = self.both(|repository| repository.attempts(key))?.expect("a unit that is there");
        for attempt in attempts.iter().map(|attempt| attempt.key) {
            self.both(|repository| repository.attempt_result(attempt))?;
            self.both(|repository| repository.charges(attempt))?;
            self.both(|repository| repository.partial_text(attempt))?;
            let number = |after: i64| u32::try_from(after).unwrap();
            self.pages(
                |archive, after, limit| archive.messages(attempt, number(after), limit),
                |message| i64::from(message.number),
            )?;
        }
        Ok(())
    }

    fn pages<T: PartialEq + Debug>(
        &self,
        read: impl Fn(&dyn Repository, i64, usize) -> Answer<Page<T>>,
        key: impl Fn(&T) -> i64,
    ) -> Checked<Vec<T>> {
        const SMALL_PAGE: usize = 7;
        let (mut all, mut after) = (Vec::new(), 0);
        loop {
            let page = self.both(|repository| read(repository, after, SMALL_PAGE))?.expect("a page can be read");
            let last = page.items.last().map(&key);
            all.extend(page.items);
            match page.next {
                Some(next) => {
                    prop_assert_eq!(Some(next), last);
                    after = next;
                }
                None => return Ok(all),
            }
        }
    }

    fn verify(&self) -> Checked<()> {
        for archive in [&self.memory as &dyn Archive, self.stored()] {
            let verification = verify(archive).unwrap();
            prop_assert!(verification.is_clean(), "{archive:?}: {verification}");
        }
        Ok(())
    }
}

type Answer<T> = workcrew::repository::Result<T>;

/// An answer as callers see it. A fault of the storage is no answer.
fn told<T>(answer: Answer<T>) -> Result<T, String> {
    answer.map_err(|error| {
        assert!(error.is_rejection(), "{error}: {:?}", std::error::Error::source(&error));
        error.to_string()
    })
}

fn alike<T: PartialEq + Debug>(memory: Result<T, String>, stored: Result<T, String>) -> Checked<Option<T>> {
    prop_assert_eq!(&memory, &stored, "left is memory, right is stored");
    Ok(memory.ok())
}

/// Two workers that take one unit at a time, and two that take two.
fn slot(worker: usize) -> Slot {
    let id = WorkerId::new(format!("w{worker}")).unwrap();
    if worker < 2 { Slot::new(id) } else { Slot::with_capacity(id, 2) }
}

/// Tells which changes there were, and how often a slot got the unit that it was for.
fn tell(mut world: World, operations: &[Operation]) -> Checked<(BTreeSet<Change>, u32)> {
    for (number, operation) in operations.iter().enumerate() {
        let step = world.step(operation).and_then(|()| world.units());
        step.map_err(|error| TestCaseError::fail(format!("operation {number}, {operation:?}: {error}")))?;
    }
    let journal = world.compare()?;
    world.verify()?;
    Ok((journal.iter().map(|row| row.change).collect(), world.wishes_granted))
}

/// Tells random histories, as many as are asked for or by default.
fn tell_histories(default_cases: u32, world: impl Fn() -> Checked<World>) {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(default_cases);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 4_000, ..Config::default() };
    let seed = support::Random::seed();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));

    let (seen, wishes_granted) = (RefCell::new(BTreeMap::<Change, u32>::new()), Cell::new(0));
    let outcome = runner.run(&history(), |operations| {
        let (changes, wishes) = tell(world()?, &operations)?;
        wishes_granted.set(wishes_granted.get() + wishes);
        for change in changes {
            *seen.borrow_mut().entry(change).or_default() += 1;
        }
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("WORKCREW_SEED={seed} PROPTEST_CASES={cases}: {error}");
    }
    // Histories in which nothing happens prove nothing.
    let (seen, wishes_granted) = (seen.into_inner(), wishes_granted.get());
    println!("{cases} histories had {seen:?}, and {wishes_granted} slots got the unit that they were for");
    if cases >= DEFAULT_CASES {
        let missing: Vec<&Change> = Change::ALL.iter().filter(|change| !seen.contains_key(change)).collect();
        assert!(missing.is_empty(), "WORKCREW_SEED={seed}: no history had {missing:?}");
        assert!(wishes_granted > 0, "WORKCREW_SEED={seed}: no slot got the unit that it was for");
    }
}

#[test]
fn memory_and_sqlite_answer_alike_and_keep_the_same_record_whatever_happens() {
    tell_histories(DEFAULT_CASES, World::with_sqlite);
}

#[cfg(feature = "postgres")]
#[test]
fn memory_and_postgres_answer_alike_and_keep_the_same_record_whatever_happens() {
    if let Some(server) = support::postgres::server() {
        tell_histories(POSTGRES_CASES, || World::with_postgres(server));
    }
}

#[test]
fn large_results_end_a_page_of_both_alike() {
    let world = World::with_sqlite().unwrap();
    let large = "r".repeat(PAGE_LIMIT_BYTES / 2);
    for number in 0..3 {
        let unit = NewUnit::new(unit_id(number)).prompt("short");
        let claimant = Claimant::new(world.owner(0), Duration::from_secs(60));
        let submitted = world.both(|repository| repository.submit(world.jobs[0], &unit, &claimant, &slot(0))).unwrap();
        let Some(Submitted::Claimed(claim)) = submitted else { panic!("{submitted:?}") };
        world.both(|repository| repository.start(&claim.lease, &Beginning::default())).unwrap();
        let report = AttemptReport::completed().result(large.as_str());
        world.both(|repository| repository.finish(&claim.lease, &report)).unwrap();
    }
    let all = UnitFilter::default();
    for repository in [&world.memory as &dyn Repository, world.stored()] {
        let page = repository.units(&all, 0, PAGE_LIMIT).unwrap();
        assert_eq!((page.items.len(), page.next), (2, Some(2)), "{repository:?}");
    }
}
