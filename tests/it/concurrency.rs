//! Many at once, on one repository: threads of one process, and processes on one file.
//!
//! Every test prints its seed; `WORKCREW_SEED` repeats its choices, though not their interleaving.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use workcrew::audit::verify::Verify;
use workcrew::clock::ManualClock;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{
    Archive, By, ClaimRequest, Claimant, Intake, JournalEntry, PAGE_LIMIT, Repository, RepositoryError, Scope, Slot,
};
use workcrew::unit::Change;
use workcrew::{
    AttemptReport, Beginning, Failure, FailureKind, JobId, Lease, MemoryRepository, Message, NewJob, NewUnit, Next,
    OwnerId, SqliteRepository, UnitKey, WorkerId,
};

use crate::support::{self, Random};

const JOB: &str = "crowd";
/// Where a child finds the database.
const DATABASE: &str = "WORKCREW_TEST_DATABASE";

/// Opens the file that several processes share. How patient it is with them is not what is tested here.
fn open_shared(path: &Path) -> SqliteRepository {
    SqliteOptions::new().busy_timeout(Duration::from_secs(60)).open(path).unwrap()
}

/// What was granted: a unit and the fence under which it was.
type Grant = (UnitKey, i64);

fn fill(repository: &dyn Repository, count: usize) -> JobId {
    let job = repository.create_job(&NewJob::named(JOB)).unwrap();
    let units: Vec<NewUnit> = (0..count).map(|number| NewUnit::new(name(number)).prompt("go")).collect();
    repository.insert(job.id, &units, Intake::Open).unwrap();
    job.id
}

fn name(number: usize) -> String {
    format!("u{number}")
}

fn worker(number: usize) -> Slot {
    Slot::new(WorkerId::new(format!("w{number}")).unwrap())
}

fn retry() -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "again"), Next::Retry { after: Duration::ZERO })
}

fn journal(archive: &dyn Archive) -> Vec<JournalEntry> {
    let (mut rows, mut after) = (Vec::new(), Some(0));
    while let Some(position) = after {
        let page = archive.journal(position, PAGE_LIMIT).unwrap();
        rows.extend(page.items);
        after = page.next;
    }
    rows
}

/// The grants are exactly the claims of the journal, none was given twice, and the fence of a unit only grew.
fn check_grants(archive: &dyn Archive, grants: &[Grant]) {
    let distinct: BTreeSet<Grant> = grants.iter().copied().collect();
    assert_eq!(distinct.len(), grants.len(), "something was granted twice");
    let mut fences: BTreeMap<UnitKey, i64> = BTreeMap::new();
    let mut claims = BTreeSet::new();
    for row in journal(archive).iter().filter(|row| row.change == Change::Claim) {
        claims.insert((row.unit, row.fence));
        let before = fences.insert(row.unit, row.fence).unwrap_or(0);
        assert!(row.fence > before, "{:?}: fence {} after {before}", row.unit, row.fence);
    }
    assert_eq!(claims, distinct);
}

fn check_all_is_over(archive: &dyn Archive, job: JobId, count: usize) {
    let acknowledged: Vec<(JobId, String)> = (0..count).map(|number| (job, name(number))).collect();
    let verification = Verify::new().acknowledged(acknowledged.clone()).submitted(acknowledged).settled().run(archive);
    let verification = verification.unwrap();
    assert!(verification.is_clean(), "{verification}");
    assert_eq!(verification.units, count as u64);
}

/// One of a crowd of threads that share a repository.
struct Member<'a> {
    repository: &'a dyn Repository,
    clock: &'a ManualClock,
    job: JobId,
    units: usize,
    owner: OwnerId,
    number: usize,
    random: Random,
    grants: Vec<Grant>,
}

const LEASE: Duration = Duration::from_secs(30);

impl Member<'_> {
    fn work(mut self) -> Vec<Grant> {
        let is_over = |member: &Member<'_>| {
            let counts = member.repository.counts(member.job).unwrap();
            counts.completed + counts.failed + counts.cancelled == member.units as u64
        };
        while !is_over(&self) {
            let slots = vec![worker(self.number)];
            let request = ClaimRequest::new(self.job, Claimant::new(self.owner, LEASE), Scope::Pending, slots);
            match self.repository.claim(&request) {
                Ok(claims) if claims.is_empty() => self.wait(),
                Ok(claims) => claims.iter().for_each(|claim| self.execute(&claim.lease)),
                // It still has what it abandoned.
                Err(RepositoryError::Illegal { .. }) => self.wait(),
                Err(error) => panic!("{error}"),
            }
        }
        self.grants
    }

    /// Nothing to do. A few make time pass meanwhile, and sweep.
    fn wait(&self) {
        if self.number.is_multiple_of(16) {
            self.clock.advance(LEASE / 8);
            self.repository.expire(3).unwrap();
        } else {
            std::thread::yield_now();
        }
    }

    fn execute(&mut self, lease: &Lease) {
        self.grants.push((lease.unit, lease.fence));
        if self.random.below(20) == 0 {
            let id = name(self.random.below(self.units));
            self.repository.cancel(self.job, &id, &By::whom("somebody")).unwrap();
        }
        self.held(self.repository.start(lease, &Beginning::default()));
        self.held(self.repository.append(lease, 0, &[Message::user("go"), Message::assistant("gone")]));
        match self.random.below(10) {
            0 => {}
            1 => drop(self.held(self.repository.release(lease, None, "had enough"))),
            2 | 3 => drop(self.held(self.repository.finish(lease, &retry()))),
            _ => drop(self.held(self.repository.finish(lease, &AttemptReport::completed().output("gone")))),
        }
    }

    /// A lease may be lost while it is used, and that is all that may go wrong.
    fn held<T>(&self, answer: workcrew::repository::Result<T>) -> Option<T> {
        match answer {
            Ok(value) => Some(value),
            Err(RepositoryError::Stale { .. }) => None,
            Err(error) => panic!("member {}: {error}", self.number),
        }
    }
}

fn let_a_crowd_work(repository: &dyn Repository, clock: &ManualClock) {
    const MEMBERS: usize = 64;
    const UNITS: usize = 300;
    const OWNERS: usize = 8;
    let seed = Random::seed();
    let job = fill(repository, UNITS);
    let owners: Vec<OwnerId> = (0..OWNERS).map(|number| support::owner(repository, &number.to_string())).collect();
    let (barrier, grants) = (Barrier::new(MEMBERS), Mutex::new(Vec::new()));
    std::thread::scope(|threads| {
        for number in 0..MEMBERS {
            let random = Random::new(seed.wrapping_add(number as u64));
            let owner = owners[number % OWNERS];
            let member = Member { repository, clock, job, units: UNITS, owner, number, random, grants: Vec::new() };
            let (barrier, grants) = (&barrier, &grants);
            threads.spawn(move || {
                barrier.wait();
                let granted = member.work();
                grants.lock().unwrap().extend(granted);
            });
        }
    });
    check_grants(repository, &grants.into_inner().unwrap());
    check_all_is_over(repository, job, UNITS);
}

#[test]
fn sixty_four_threads_never_share_a_unit_in_memory() {
    let clock = ManualClock::new();
    let_a_crowd_work(&MemoryRepository::with_clock(clock.clone()), &clock);
}

#[test]
fn sixty_four_threads_never_share_a_unit_in_sqlite() {
    let (folder, clock) = (support::folder(), ManualClock::new());
    let repository = SqliteOptions::new().clock(clock.clone()).open(folder.path().join("crowd.db")).unwrap();
    let_a_crowd_work(&repository, &clock);
}

/// Takes leases that nobody will ever use, and says of what.
fn claim_all(repository: &dyn Repository, job: JobId, count: usize, lease: Duration) -> Vec<Grant> {
    let owner = support::owner(repository, "careless");
    let slots = (0..count).map(worker).collect();
    let request = ClaimRequest::new(job, Claimant::new(owner, lease), Scope::Pending, slots);
    let claims = repository.claim(&request).unwrap();
    assert_eq!(claims.len(), count);
    claims.iter().map(|claim| (claim.lease.unit, claim.lease.fence)).collect()
}

/// Every lease was taken back once, by one of the sweepers.
fn check_sweep(repository: &dyn Repository, job: JobId, claimed: &[Grant], mut swept: Vec<UnitKey>) {
    swept.sort_unstable();
    let expected: Vec<UnitKey> = claimed.iter().map(|&(unit, _)| unit).collect();
    assert_eq!(swept, expected);
    for (number, &(unit, fence)) in claimed.iter().enumerate() {
        assert_eq!(repository.unit(job, &name(number)).unwrap().fence, fence + 1);
        let rows = repository.unit_journal(unit, 0, PAGE_LIMIT).unwrap().items;
        assert_eq!(rows.iter().filter(|row| row.change == Change::Expire).count(), 1);
    }
    let verification = Verify::new().run(repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

fn let_two_threads_sweep(repository: &dyn Repository, clock: &ManualClock) {
    const UNITS: usize = 100;
    let job = fill(repository, UNITS);
    let claimed = claim_all(repository, job, UNITS, LEASE);
    clock.advance(LEASE);
    let (barrier, swept) = (Barrier::new(2), Mutex::new(Vec::new()));
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                barrier.wait();
                loop {
                    let found = repository.expire(3).unwrap();
                    if found.is_empty() {
                        break;
                    }
                    swept.lock().unwrap().extend(found.iter().map(|swept| swept.unit));
                }
            });
        }
    });
    check_sweep(repository, job, &claimed, swept.into_inner().unwrap());
}

#[test]
fn two_sweeping_threads_take_back_each_lease_once_in_memory() {
    // 003-F3, 003-F35
    let clock = ManualClock::new();
    let_two_threads_sweep(&MemoryRepository::with_clock(clock.clone()), &clock);
}

#[test]
fn two_sweeping_threads_take_back_each_lease_once_in_sqlite() {
    // 003-F3, 003-F35
    let (folder, clock) = (support::folder(), ManualClock::new());
    let repository = SqliteOptions::new().clock(clock.clone()).open(folder.path().join("sweep.db")).unwrap();
    let_two_threads_sweep(&repository, &clock);
}

/// A child that has said that it is ready and waits for a word.
struct Ready {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Ready {
    fn start(test: &str, database: &Path) -> Ready {
        let mut command = support::child(test);
        command.env(DATABASE, database).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut ready = Ready { child, stdin, stdout: BufReader::new(stdout) };
        let mut line = String::new();
        while line.trim() != "ready" {
            line.clear();
            assert_ne!(ready.stdout.read_line(&mut line).unwrap(), 0, "the child ended before it was ready");
        }
        ready
    }

    fn go(&mut self) {
        writeln!(self.stdin).unwrap();
    }

    /// What it said: lines of two numbers.
    fn finish(mut self) -> Vec<(i64, i64)> {
        let mut output = String::new();
        self.stdout.read_to_string(&mut output).unwrap();
        assert!(self.child.wait().unwrap().success(), "{output}");
        let lines = output.lines().filter_map(|line| line.strip_prefix("did "));
        lines.map(|line| line.split_once(' ').unwrap()).map(|(a, b)| (a.parse().unwrap(), b.parse().unwrap())).collect()
    }
}

/// In a child: tells the parent that it is ready, and waits for its word.
fn wait_for_the_word() {
    println!("\nready");
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// The database that a parent made; `None` if this is no child.
fn database() -> Option<PathBuf> {
    std::env::var_os(DATABASE).map(PathBuf::from)
}

#[test]
fn eight_processes_on_one_file_do_each_unit_once() {
    const PROCESSES: usize = 8;
    const UNITS: usize = 200;
    let folder = support::folder();
    let path = folder.path().join("shared.db");
    let repository = open_shared(&path);
    let job = fill(&repository, UNITS);

    let mut children: Vec<Ready> = (0..PROCESSES).map(|_| Ready::start("concurrency::child_claims", &path)).collect();
    children.iter_mut().for_each(Ready::go);
    let done: Vec<Vec<(i64, i64)>> = children.into_iter().map(Ready::finish).collect();

    // Each had claimed one before the word was given.
    assert!(done.iter().all(|grants| !grants.is_empty()), "{done:?}");
    let grants: Vec<Grant> = done.into_iter().flatten().map(|(unit, fence)| (UnitKey(unit), fence)).collect();
    check_grants(&repository, &grants);
    let mut completions: BTreeMap<UnitKey, usize> = BTreeMap::new();
    for row in journal(&repository).iter().filter(|row| row.change == Change::Complete) {
        *completions.entry(row.unit).or_default() += 1;
    }
    assert_eq!(completions.len(), UNITS);
    assert!(completions.values().all(|&count| count == 1), "{completions:?}");
    check_all_is_over(&repository, job, UNITS);
}

#[test]
#[ignore = "a child of eight_processes_on_one_file_do_each_unit_once"]
fn child_claims() {
    let Some(path) = database() else { return };
    let repository = open_shared(&path);
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let owner = support::owner(&repository, "child");
    let next = || {
        let claimant = Claimant::new(owner, Duration::from_secs(600));
        let request = ClaimRequest::new(job, claimant, Scope::Pending, vec![worker(0)]);
        repository.claim(&request).unwrap().pop()
    };
    let mut claimed = next();
    wait_for_the_word();
    while let Some(claim) = claimed {
        let lease = &claim.lease;
        println!("did {} {}", lease.unit.0, lease.fence);
        repository.start(lease, &Beginning::default()).unwrap();
        repository.append(lease, 0, &[Message::assistant("gone")]).unwrap();
        // Some need two attempts, and some are given back once.
        let closed = match lease.fence {
            1 if lease.unit.0 % 7 == 0 => repository.finish(lease, &retry()),
            1 if lease.unit.0 % 5 == 0 => repository.release(lease, None, "had enough"),
            _ => repository.finish(lease, &AttemptReport::completed()),
        };
        closed.unwrap();
        claimed = next();
    }
    repository.end_owner(owner).unwrap();
}

#[test]
fn four_sweeping_processes_take_back_each_lease_once() {
    // 003-F3, 003-F35, 003-F38, P15: the fence rises once.
    const PROCESSES: usize = 4;
    const UNITS: usize = 100;
    let folder = support::folder();
    let path = folder.path().join("swept.db");
    let repository = open_shared(&path);
    let job = fill(&repository, UNITS);
    let claimed = claim_all(&repository, job, UNITS, Duration::from_millis(1));

    let mut children: Vec<Ready> = (0..PROCESSES).map(|_| Ready::start("concurrency::child_sweeps", &path)).collect();
    children.iter_mut().for_each(Ready::go);
    let swept: Vec<UnitKey> = children.into_iter().flat_map(Ready::finish).map(|(unit, _)| UnitKey(unit)).collect();
    check_sweep(&repository, job, &claimed, swept);
}

#[test]
#[ignore = "a child of four_sweeping_processes_take_back_each_lease_once"]
fn child_sweeps() {
    let Some(path) = database() else { return };
    let repository = open_shared(&path);
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    wait_for_the_word();
    while repository.counts(job).unwrap().assigned > 0 {
        for swept in repository.expire(3).unwrap() {
            println!("did {} {}", swept.unit.0, swept.attempt_number.unwrap());
        }
    }
}

#[test]
fn callers_wait_together_while_another_has_the_file_locked() {
    const CALLERS: usize = 64;
    let busy_timeout = Duration::from_millis(500);
    let folder = support::folder();
    let path = folder.path().join("locked.db");
    let repository = SqliteOptions::new().busy_timeout(busy_timeout).open(&path).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;

    let other = rusqlite::Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let begin = Instant::now();
    std::thread::scope(|threads| {
        for number in 0..CALLERS {
            let repository = &repository;
            threads.spawn(move || {
                let inserted = repository.insert(job, &[NewUnit::new(name(number))], Intake::Open);
                assert!(matches!(inserted, Err(RepositoryError::Busy)), "{inserted:?}");
            });
        }
    });
    // One after the other they would need half a minute.
    assert!(begin.elapsed() < busy_timeout * (CALLERS as u32) / 2, "{:?}", begin.elapsed());

    other.execute_batch("ROLLBACK").unwrap();
    fill(&repository, CALLERS);
    assert_eq!(repository.counts(job).unwrap().pending, CALLERS as u64);
}
