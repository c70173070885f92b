//! Pools whose process dies or freezes in the middle of a batch, and what the next one makes of it.
//!
//! A child runs the submit loop of a batch and is killed: at a random moment, or at a crash point of the fault plan. A second
//! one runs the same loop on the same file, and brings everything to its end. Whatever is executed, told or called back is
//! also written to a file beside the database, which no crash takes back.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use workcrew::audit::verify::Verify;
use workcrew::repository::UnitFilter;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::testing::arm_from_environment;
use workcrew::{
    Archive, Call, Charge, ExecuteError, JobId, Message, Money, NewJob, NewUnit, Outcome, Repository, RetryPolicy,
    SqliteRepository, Stop, Tokens, UnitStatus, WorkPool, WorkResult, WorkUnit,
};

use crate::children::{self, Child, Role, note, say, was_killed};
use crate::support::Up as _;
use crate::support::{self, Random};

const JOB: &str = "batch";
const UNITS: usize = 60;
const WORKERS: usize = 4;

/// How many rounds of random kills.
const ROUNDS: usize = 12;

/// What is over sooner did not wait for a lease of the dead, which lasts a minute.
const AT_ONCE: Duration = Duration::from_secs(30);

/// How many units a child submits; all if not set.
const COUNT: &str = "WORKCREW_TEST_UNITS";
/// In which callback, counted from 1, a child kills itself.
const DIES_IN_CALLBACK: &str = "WORKCREW_TEST_DIES_IN_CALLBACK";

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    let Some(role) = children::role() else { return };
    match role.as_str() {
        "batch" => run_batch(None),
        "drain" => run_batch(Some(Stop::Drain)),
        "cancel" => run_batch(Some(Stop::Cancel { grace: Duration::from_secs(10) })),
        _ => panic!("`{role}` is no role"),
    }
}

fn name(number: usize) -> String {
    format!("u{number}")
}

/// Whether a unit fails for good.
fn fails(number: usize) -> bool {
    number % 7 == 6
}

fn number_from_environment(variable: &str) -> Option<usize> {
    std::env::var(variable).ok().map(|number| number.parse().unwrap())
}

fn charge(attempt_number: u32) -> Charge {
    let tokens = Tokens { output: 7, ..Tokens::default() };
    Charge::reported("large", tokens, Money::from_nanos(i64::from(attempt_number)))
}

/// Says, uses and saves something of everything; some fail once, some for good, some have a child of their own.
fn execute(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let (id, attempt) = (call.unit().id.as_str(), call.attempt_number());
    note(format_args!("run {id} {attempt}"));
    call.message(Message::assistant(format!("{id}/{attempt}/1")));
    call.session(format!("s-{id}-{attempt}"));
    call.usage(charge(attempt));
    note(format_args!("told {id} {attempt}"));
    let number: usize = id[1..].parse().unwrap();
    if number.is_multiple_of(10) {
        // It ends when this process does: then its standard input does.
        let mut cat = Command::new("cat");
        let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        call.process_started(cat.id());
        drop(cat.stdin.take());
        cat.wait().unwrap();
    }
    let pause =
        if number == LAST_BEFORE_STOP && IS_GIVEN_BACK.load(Ordering::SeqCst) { LONG } else { (number % 4) as u64 };
    call.cancel_token().wait_timeout(Duration::from_millis(pause));
    if let Some(reason) = call.cancel_reason() {
        return Err(ExecuteError::retry(format!("{reason:?}")));
    }
    match number {
        _ if fails(number) => Err(ExecuteError::give_up("never")),
        _ if number % 5 == 4 && attempt == 1 => Err(ExecuteError::retry("the first time")),
        _ => Ok(WorkResult::text(format!("{id}/{attempt}"))),
    }
}

/// The last unit that is submitted before a pool stops. If it is to be given back, it waits for that.
const LAST_BEFORE_STOP: usize = 39;
const LONG: u64 = 60_000;
static IS_GIVEN_BACK: AtomicBool = AtomicBool::new(false);

/// The submit loop. With a `stop`, the pool shrinks on the way and stops before the end.
fn run_batch(stop: Option<Stop>) {
    arm_from_environment();
    IS_GIVEN_BACK.store(matches!(stop, Some(Stop::Cancel { .. })), Ordering::SeqCst);
    let repository = SqliteOptions::new().busy_timeout(Duration::from_secs(60)).open(children::path()).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    let (dies_in, callbacks) = (number_from_environment(DIES_IN_CALLBACK), Arc::new(AtomicUsize::new(0)));
    let called_back = move |unit: &WorkUnit| {
        note(format_args!("callback {} {}", unit.id, unit.status));
        if dies_in == Some(callbacks.fetch_add(1, Ordering::SeqCst) + 1) {
            kill_process(getpid(), Signal::KILL).unwrap();
            std::thread::park();
        }
    };
    let pool = WorkPool::builder(job, execute, repository)
        .max_workers(WORKERS)
        .retry(RetryPolicy::immediate())
        .heartbeat(Duration::from_millis(20))
        .on_unit_complete({
            let called_back = called_back.clone();
            move |unit, _| called_back(unit)
        })
        .on_unit_failed(move |unit, _| called_back(unit))
        .up();
    for number in 0..number_from_environment(COUNT).unwrap_or(UNITS) {
        if let Some(stop) = stop {
            match number {
                20 => pool.set_max_workers(2).unwrap(),
                _ if number > LAST_BEFORE_STOP => {
                    say("stopping");
                    pool.stop(stop).unwrap();
                    return say("stopped");
                }
                _ => {}
            }
        }
        assert!(pool.wait_for_available_slot());
        say(format_args!("try {}", name(number)));
        pool.submit_work_unit(NewUnit::new(name(number)), "go").unwrap();
        say(format_args!("ack {}", name(number)));
    }
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    say("done");
}

/// A batch on a file of its own, with whatever its children said.
struct Batch {
    _folder: tempfile::TempDir,
    path: PathBuf,
    /// How it was disturbed, for whoever reads a failure.
    end: String,
    lines: Vec<String>,
    kills: usize,
}

impl Batch {
    fn new(end: impl Into<String>) -> Batch {
        let folder = support::folder();
        let path = folder.path().join("batch.db");
        Batch { _folder: folder, path, end: end.into(), lines: Vec::new(), kills: 0 }
    }

    fn role(&self, role: &str) -> Role {
        Role::new("pool_crash::child", role, &self.path)
    }

    /// Lets a child run until it was killed.
    fn is_killed(&mut self, child: Child) {
        let (status, lines) = child.end();
        assert!(was_killed(status), "{}: {status}, {lines:?}", self.end);
        self.lines.extend(lines);
        self.kills += 1;
    }

    /// Runs the batch to its end, which must not take long, and checks all there is to check.
    fn carry_on(self, units: usize) -> Records {
        let began = Instant::now();
        let lines = self.role("batch").env(COUNT, units).start().end_well();
        assert_eq!(lines.last().map(String::as_str), Some("done"), "{}", self.end);
        assert!(began.elapsed() < AT_ONCE, "{}: it waited for the leases of the dead", self.end);
        let records = Records::read(&self, units);
        records.check_verification(&self, units);
        records.check_executions(&self);
        records.check_lost_attempts(&self);
        records.check_callbacks(&self);
        records
    }
}

/// What is stored, and what was written beside it.
struct Records {
    repository: SqliteRepository,
    job: JobId,
    units: Vec<WorkUnit>,
    notes: Vec<Vec<String>>,
}

impl Records {
    fn read(batch: &Batch, count: usize) -> Records {
        let repository = SqliteRepository::open(&batch.path).unwrap();
        let job = repository.job_named(JOB).unwrap().unwrap().id;
        let units = repository.units(&UnitFilter::job(job), 0, 1_000).unwrap().items;
        assert_eq!(units.len(), count, "{}", batch.end);
        let notes = children::notes(&batch.path);
        Records { repository, job, units, notes }
    }

    fn notes<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        self.notes.iter().filter(move |note| note[0] == kind).map(|note| (note[1].as_str(), note[2].as_str()))
    }

    fn check_verification(&self, batch: &Batch, count: usize) {
        let acknowledged = batch.lines.iter().filter_map(|line| line.strip_prefix("ack ")).map(|id| (self.job, id));
        let submitted = (0..count).map(|number| (self.job, name(number)));
        let verify = Verify::new().acknowledged(acknowledged).submitted(submitted).settled();
        let verification = verify.run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{}: {verification}", batch.end);
    }

    /// No attempt was executed twice, and none after the unit had ended.
    fn check_executions(&self, batch: &Batch) {
        let mut executed: BTreeMap<&str, BTreeSet<u32>> = BTreeMap::new();
        for (id, attempt) in self.notes("run") {
            let is_new = executed.entry(id).or_default().insert(attempt.parse().unwrap());
            assert!(is_new, "{}: attempt {attempt} of {id} was executed twice", batch.end);
        }
        for unit in &self.units {
            let attempts = self.repository.attempts(unit.key).unwrap();
            let executed = &executed[unit.id.as_str()];
            assert!(executed.iter().all(|&number| number <= unit.attempt_count), "{}: {executed:?}", batch.end);
            let number: usize = unit.id.as_str()[1..].parse().unwrap();
            let expected = if fails(number) { UnitStatus::Failed } else { UnitStatus::Completed };
            assert_eq!(unit.status, expected, "{}: {}", batch.end, unit.id);
            let last = attempts.last().unwrap();
            let ended: Vec<_> = attempts.iter().filter(|attempt| attempt.outcome == Some(Outcome::Completed)).collect();
            if unit.status == UnitStatus::Completed {
                assert_eq!(ended, [last], "{}: {}", batch.end, unit.id);
                assert_eq!(unit.output, Some(format!("{}/{}", unit.id, last.key.number)));
            }
        }
    }

    /// At most one attempt of each worker died with its process. What it had told by then is there.
    fn check_lost_attempts(&self, batch: &Batch) {
        let told: BTreeSet<(&str, u32)> =
            self.notes("told").map(|(id, attempt)| (id, attempt.parse().unwrap())).collect();
        let mut lost = 0;
        for unit in &self.units {
            for attempt in self.repository.attempts(unit.key).unwrap() {
                lost += usize::from(attempt.outcome == Some(Outcome::Lost));
                let number = attempt.key.number;
                if !told.contains(&(unit.id.as_str(), number)) {
                    continue;
                }
                assert_eq!(attempt.session_id, Some(format!("s-{}-{number}", unit.id)), "{}", batch.end);
                assert_eq!(self.repository.charges(attempt.key).unwrap(), [charge(number)], "{}", batch.end);
                let messages = self.repository.messages(attempt.key, 0, 10).unwrap().items;
                let texts: Vec<_> = messages.iter().map(|stored| stored.message().unwrap().unwrap().text()).collect();
                assert_eq!(texts, [format!("{}/{number}/1", unit.id)], "{}", batch.end);
            }
        }
        assert!(lost <= WORKERS * batch.kills, "{}: {lost} attempts were lost", batch.end);
    }

    /// At most one callback for each unit; whichever is missing is in the feed of outcomes.
    fn check_callbacks(&self, batch: &Batch) {
        let mut called = BTreeMap::new();
        for (id, status) in self.notes("callback") {
            assert_eq!(called.insert(id, status), None, "{}: a second callback for {id}", batch.end);
        }
        let outcomes = self.repository.outcomes_since(0, 1_000).unwrap().items;
        let mut missing = 0;
        for unit in &self.units {
            let in_feed: Vec<_> =
                outcomes.iter().filter(|entry| entry.unit == unit.key).map(|entry| entry.to).collect();
            assert_eq!(in_feed, [unit.status], "{}: {}", batch.end, unit.id);
            match called.get(unit.id.as_str()) {
                Some(&status) => assert_eq!(status, unit.status.to_string(), "{}: {}", batch.end, unit.id),
                None => missing += 1,
            }
        }
        assert!(missing <= WORKERS * batch.kills, "{}: {missing} callbacks are missing", batch.end);
    }
}

/// Does something with each of many, two at a time.
fn for_each<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}

#[test]
fn a_batch_that_nobody_disturbs_leaves_everything_in_order() {
    let records = Batch::new("no end").carry_on(UNITS);
    assert_eq!(records.notes("callback").count(), UNITS);
}

#[test]
fn a_batch_killed_at_any_moment_is_carried_on_at_once() {
    let seed = Random::seed();
    let rounds: Vec<u64> = (0..ROUNDS as u64).collect();
    for_each(&rounds, |&round| {
        let mut random = Random::new(seed.wrapping_add(round));
        let mut batch = Batch::new(format!("round {round} of WORKCREW_SEED={seed}"));
        // Sometimes the one that carries on is killed as well.
        for _ in 0..=random.below(2) {
            let mut child = batch.role("batch").start();
            for _ in 0..random.below(2 * UNITS - 2) + 1 {
                batch.lines.extend(child.line());
            }
            let (moment, wait) = (Instant::now(), Duration::from_micros(random.below(3_000) as u64));
            while moment.elapsed() < wait {
                std::hint::spin_loop();
            }
            child.signal(Signal::KILL);
            batch.is_killed(child);
        }
        batch.carry_on(UNITS);
    });
}

/// Where a batch is killed: the crash point, what the process does, the fault.
const POINTS: &[(&str, &str, &str)] = &[
    ("", "batch", "register_owner:inside:1"),
    ("", "batch", "register_owner:committed:1"),
    ("P15", "batch", "expire:before:1"),
    ("P00", "batch", "submit:before:1"),
    ("P00", "batch", "submit:before:17"),
    ("P01", "batch", "submit:inside:1"),
    ("P01", "batch", "submit:inside:30"),
    ("P02, P03", "batch", "submit:committed:1"),
    ("P02, P03", "batch", "submit:committed:41"),
    ("P04", "batch", "claim:before:1"),
    ("P04", "batch", "claim:inside:2"),
    ("P05", "batch", "claim:committed:1"),
    ("P05", "batch", "claim:committed:3"),
    ("P07", "batch", "execute:before:9"),
    ("P08", "batch", "append:inside:11"),
    ("P06", "batch", "progress:before:12"),
    ("P06", "batch", "progress:committed:12"),
    ("P09", "batch", "execute:committed:1"),
    ("P09", "batch", "execute:committed:21"),
    ("P10", "batch", "finish:before:5"),
    ("P11", "batch", "finish:inside:1"),
    ("P11, P16", "batch", "finish:inside:12"),
    ("P12", "batch", "finish:committed:8"),
    ("P12", "batch", "callback:before:15"),
    ("P13", "batch", "callback:committed:15"),
    ("P14", "batch", "renew:inside:1"),
    ("P20", "drain", "end_owner:before:1"),
    ("P20", "drain", "end_owner:inside:1"),
    ("P20", "drain", "end_owner:committed:1"),
    ("P20, P21", "drain", "change_worker:inside:1"),
    ("P20, P21", "drain", "change_worker:committed:2"),
    ("P20, P21", "drain", "change_worker:committed:6"),
    ("P20", "cancel", "release:before:1"),
    ("P20", "cancel", "release:inside:1"),
    ("P20", "cancel", "release:committed:1"),
];

#[test]
fn a_batch_killed_at_a_crash_point_is_carried_on_at_once() {
    for_each(POINTS, |&(point, role, fault)| {
        let mut batch = Batch::new(format!("{point} {fault}"));
        let child = batch.role(role).fault(&format!("{fault}:kill")).start();
        batch.is_killed(child);
        batch.carry_on(UNITS);
    });
}

#[test]
fn a_pool_killed_while_it_drains_is_carried_on_at_once() {
    for role in ["drain", "cancel"] {
        let mut batch = Batch::new(format!("{role}, killed"));
        let mut child = batch.role(role).start();
        while let Some(line) = child.line() {
            batch.lines.push(line);
            if batch.lines.last().is_some_and(|line| line == "stopping") {
                child.signal(Signal::KILL);
            }
        }
        batch.is_killed(child);
        batch.carry_on(UNITS);
    }
}

#[test]
fn a_pool_that_was_stopped_in_order_leaves_nothing_to_be_lost() {
    for role in ["drain", "cancel"] {
        let mut batch = Batch::new(role);
        batch.lines.extend(batch.role(role).start().end_well());
        let records = batch.carry_on(UNITS);
        assert_eq!(records.notes("callback").count(), UNITS, "{role}");
    }
}

/// Kills a batch of one unit, and lets it be carried on.
fn one_unit(disturb: impl FnOnce(Role) -> Role) -> Records {
    let mut batch = Batch::new("one unit");
    let child = disturb(batch.role("batch").env(COUNT, 1)).start();
    batch.is_killed(child);
    batch.carry_on(1)
}

impl Records {
    /// How often something was executed, and called back.
    fn runs_and_callbacks(&self) -> (usize, usize) {
        (self.notes("run").count(), self.notes("callback").count())
    }
}

#[test]
fn what_died_between_its_end_and_its_callback_is_neither_run_again_nor_called_back() {
    let records = one_unit(|role| role.fault("callback:before:1:kill"));
    assert_eq!(records.runs_and_callbacks(), (1, 0));
}

#[test]
fn what_died_in_its_callback_is_not_called_back_again() {
    let records = one_unit(|role| role.env(DIES_IN_CALLBACK, 1));
    assert_eq!(records.runs_and_callbacks(), (1, 1));
}

#[test]
fn what_died_before_its_end_was_stored_is_run_again() {
    let records = one_unit(|role| role.fault("execute:committed:1:kill"));
    assert_eq!(records.runs_and_callbacks(), (2, 1));
}

#[test]
fn a_process_that_was_started_is_known_as_soon_as_that_is_stored() {
    // The third of what an execution tells.
    for (fault, is_known) in [("progress:before:3:kill", false), ("progress:committed:3:kill", true)] {
        let records = one_unit(|role| role.fault(fault));
        let attempts = records.repository.attempts(records.units[0].key).unwrap();
        assert_eq!(attempts[0].outcome, Some(Outcome::Lost), "{fault}");
        assert_eq!(attempts[0].process.is_some(), is_known, "{fault}");
        assert_eq!(records.runs_and_callbacks(), (2, 1), "{fault}");
    }
}

#[test]
fn two_processes_share_a_batch_and_each_unit_ends_once() {
    let mut batch = Batch::new("two processes");
    let children = [batch.role("batch").start(), batch.role("batch").start()];
    for child in children {
        batch.lines.extend(child.end_well());
    }
    let records = batch.carry_on(UNITS);
    assert_eq!(records.notes("callback").count(), UNITS);
}
