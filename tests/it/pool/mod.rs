//! The pool, seen from outside. Every execution is [played](stage) by its test; time is the test's too.

mod adapting;
mod affinities;
mod affinities_moved;
mod affinities_ordered;
mod attaching;
mod budgets;
mod calendar;
mod callbacks;
mod cancelling;
mod cancelling_apart;
mod capacities;
mod capacities_crashed;
mod capacities_crossed;
mod capture;
mod corners;
mod cost_limits;
mod crashes;
mod defaults;
mod endings;
mod faults;
mod follow;
mod handlers;
mod holds;
mod homes;
mod leases;
mod locks;
mod parts;
mod pulling;
mod pulling_apart;
mod pulling_odd;
mod queue;
mod queue_again;
mod queue_timeouts;
mod retries;
mod runtimes;
mod same_work;
mod scaling;
mod sets;
mod settings;
mod slots;
mod stage;
mod starting;
mod startup;
mod stats;
mod stopping;
mod storage_lost;
mod submit;
mod telling;
mod threads;
mod turns;

use std::io::Write;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use tempfile::TempDir;
use workcrew::audit::verify::Verify;
use workcrew::clock::ManualClock;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::testing::FaultyRepository;
use workcrew::{
    Archive, Attempt, AttemptKey, Event, Executor, JobId, NewJob, Repository, RetryPolicy, SqliteRepository,
    UnitStatus, WorkPool, WorkPoolBuilder, WorkUnit, WorkerStatus,
};

use self::stage::{Stage, stage};
use crate::support;
use crate::support::Up as _;

/// Far longer than anything takes here: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(20);

/// A database, a clock that stands still, and a watchdog that ends a test which hangs.
struct World {
    clock: ManualClock,
    repository: SqliteRepository,
    job: JobId,
    _folder: TempDir,
    _watchdog: Sender<()>,
}

impl World {
    fn new() -> World {
        World::with_job(&NewJob::named("a job"))
    }

    fn with_job(job: &NewJob) -> World {
        let (folder, clock) = (support::folder(), ManualClock::new());
        let repository = SqliteOptions::new().clock(clock.clone()).open(folder.path().join("pool.db")).unwrap();
        let job = repository.create_job(job).unwrap().id;
        World { clock, repository, job, _folder: folder, _watchdog: watchdog() }
    }

    /// A pool whose failed units are tried again at once.
    fn pool(&self, executor: impl Executor) -> WorkPoolBuilder {
        self.pool_on(self.repository.clone(), executor)
    }

    /// The same behind a repository that fails as planned.
    fn faulty_pool(&self, executor: impl Executor) -> (Arc<FaultyRepository>, WorkPoolBuilder) {
        let faulty = Arc::new(FaultyRepository::new(self.repository.clone().into()));
        (Arc::clone(&faulty), self.pool_on(faulty as Arc<dyn Repository>, executor))
    }

    fn pool_on(&self, repository: impl Into<Arc<dyn Repository>>, executor: impl Executor) -> WorkPoolBuilder {
        WorkPool::builder(self.job, executor, repository)
            .clock(self.clock.clone())
            .retry(RetryPolicy::immediate())
            // A test that lets ten minutes pass in a moment is not about leases.
            .lease(Duration::from_secs(30 * 24 * 3_600))
    }

    /// A pool with so many workers, and the test as its executor.
    fn staged(&self, max_workers: usize) -> (WorkPool, Stage) {
        let (part, stage) = stage();
        (self.pool(part).max_workers(max_workers).up(), stage)
    }

    fn unit(&self, id: &str) -> WorkUnit {
        self.repository.unit(self.job, id).unwrap()
    }

    fn status(&self, id: &str) -> UnitStatus {
        self.unit(id).status
    }

    fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.repository.attempts(self.unit(id).key).unwrap()
    }

    fn attempt_key(&self, id: &str, number: u32) -> AttemptKey {
        AttemptKey { unit: self.unit(id).key, number }
    }

    /// What was said in an attempt, as it is stored.
    fn said(&self, id: &str, number: u32) -> Vec<String> {
        let messages = self.repository.messages(self.attempt_key(id, number), 0, 1_000).unwrap();
        messages.items.iter().map(|stored| stored.message().unwrap().unwrap().text()).collect()
    }

    /// Everything holds that must hold once all pools have stopped.
    fn assert_clean(&self) {
        self.assert_clean_after(&[WorkerStatus::Terminated]);
    }

    /// The same where workers have crashed.
    fn assert_clean_after_crashes(&self) {
        self.assert_clean_after(&[WorkerStatus::Terminated, WorkerStatus::Dead]);
    }

    fn assert_clean_after(&self, ends: &[WorkerStatus]) {
        let verification = Verify::new().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");
        for owner in self.repository.owners().unwrap() {
            assert!(owner.ended_at.is_some(), "{} has not ended", owner.id);
            for worker in self.repository.workers(owner.id, "", 1_000).unwrap() {
                assert!(ends.contains(&worker.status), "{} is {}", worker.id, worker.status);
                assert_eq!((worker.load, worker.current_unit), (0, None), "{}", worker.id);
            }
        }
    }
}

/// Aborts with the name of the test unless the world it watches ends in time.
fn watchdog() -> Sender<()> {
    let (alive, ended) = bounded::<()>(0);
    let test = thread::current().name().unwrap_or("a test").to_owned();
    thread::spawn(move || {
        if ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            // Not by a macro, whose output the harness would keep for itself.
            let _ = writeln!(std::io::stderr(), "{test} hangs");
            std::process::abort();
        }
    });
    alive
}

/// Waits until something holds that no channel tells of.
pub(crate) fn until(holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "it never came to hold");
        thread::park_timeout(Duration::from_millis(1));
    }
}

/// The next thing that is told.
fn next<T>(told: &Receiver<T>) -> T {
    told.recv_timeout(PATIENCE).expect("something is told")
}

/// Nothing is told, though there was time to.
fn assert_quiet<T>(told: &Receiver<T>) {
    assert!(told.recv_timeout(Duration::from_millis(10)).is_err(), "something is told");
}

/// A pool whose callbacks tell how a unit ended: its id, and what the database says of it by then.
fn tells_outcomes(builder: WorkPoolBuilder, world: &World) -> (WorkPoolBuilder, Receiver<String>) {
    let (tell, outcomes) = unbounded();
    let teller = |callback: &'static str| {
        let (tell, repository, job) = (tell.clone(), world.repository.clone(), world.job);
        move |unit: &WorkUnit| {
            let stored = repository.unit(job, unit.id.as_str()).unwrap();
            assert_eq!(stored, *unit, "a callback gets what is stored");
            tell.send(format!("{callback} {}: {}", unit.id, stored.status)).unwrap();
        }
    };
    let (complete, failed, cancelled) = (teller("complete"), teller("failed"), teller("cancelled"));
    let builder = builder
        .on_unit_complete(move |unit, _| complete(unit))
        .on_unit_failed(move |unit, _| failed(unit))
        .on_unit_cancelled(cancelled);
    (builder, outcomes)
}

/// A pool whose observer tells of attempts: `starts a 1`, `ends a 1: FAILED, PENDING`.
fn tells_attempts(builder: WorkPoolBuilder) -> (WorkPoolBuilder, Receiver<String>) {
    let (tell, events) = unbounded();
    let observer = move |event: &Event<'_>| {
        let line = match event {
            Event::AttemptStarted { unit_id, attempt_number, .. } => format!("starts {unit_id} {attempt_number}"),
            Event::AttemptEnded { unit_id, attempt_number, outcome, status, .. } => {
                format!("ends {unit_id} {attempt_number}: {outcome}, {status}")
            }
            Event::ThreadAbandoned { unit_id, is_replaced: true, .. } => format!("leaves {unit_id}"),
            Event::ThreadAbandoned { unit_id, .. } => format!("is stuck with {unit_id}"),
            Event::Held { reason, .. } => format!("held: {reason}"),
            _ => return,
        };
        tell.send(line).unwrap();
    };
    (builder.observer(observer), events)
}
