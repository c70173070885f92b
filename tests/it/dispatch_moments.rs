//! What the [rounds](super::dispatch_races) came upon by chance, each brought about on purpose.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use workcrew::audit::verify::Verify;
use workcrew::executor::CancelToken;
use workcrew::repository::{By, CancelAnswer};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Call, ExecuteError, Executor, JobId, MemoryRepository, NewJob, NewUnit, PoolPhase, Refusal, Repository, Scaling,
    Stop, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult, WorkerId,
};

use crate::children::spawn_waiting;
use crate::support::Up as _;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// A repository that fails as planned, the one behind it, and a job.
struct World {
    faulty: Arc<FaultyRepository>,
    direct: MemoryRepository,
    job: JobId,
}

impl World {
    fn new() -> World {
        let direct = MemoryRepository::new();
        let job = direct.create_job(&NewJob::named("moments")).unwrap().id;
        World { faulty: Arc::new(FaultyRepository::new(direct.clone().into())), direct, job }
    }

    fn pool(&self, executor: impl Executor) -> WorkPoolBuilder {
        let repository: Arc<dyn Repository> = Arc::clone(&self.faulty) as _;
        WorkPool::builder(self.job, executor, repository)
    }

    fn verify(&self) {
        let verification = Verify::new().run(&self.direct).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }
}

fn succeed(_: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    Ok(WorkResult::empty())
}

#[test]
fn a_unit_that_comes_while_another_thread_registers_the_pool_came_too_early() {
    let (world, gate) = (World::new(), Gate::closed());
    let pool = Arc::new(world.pool(succeed).build().unwrap());
    world.faulty.on(Verb::RegisterOwner, Fault::Gate(gate.clone()));
    let starting = spawn_waiting({
        let pool = Arc::clone(&pool);
        move || pool.start().unwrap()
    });
    gate.wait_for(1);
    let refused = pool.enqueue(NewUnit::new("u"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Initializing)), "{refused}");
    gate.open();
    starting.join().unwrap();
    let handle = pool.enqueue(*refused.unit, "go").unwrap();
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.verify();
}

#[test]
fn a_unit_that_was_to_be_cancelled_when_it_was_left_behind_is_cancelled() {
    let (world, deaf) = (World::new(), Gate::closed());
    let gate = deaf.clone();
    let (cancelled, is_cancelled) = mpsc::channel();
    let executor = move |_: &Call<'_>| {
        gate.pass();
        Ok(WorkResult::empty())
    };
    let pool = world.pool(executor).on_unit_cancelled(move |_| cancelled.send(()).unwrap()).up();
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    deaf.wait_for(1);
    assert_eq!(pool.cancel("u", By::whom("ada")).unwrap(), CancelAnswer::Requested);
    let stats = pool.stop(Stop::Now).unwrap().stats;
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!((stats.cancelled, stats.left_pending), (1, 0), "{stats:?}");
    deaf.open();
    is_cancelled.recv_timeout(LONG).unwrap();
}

#[test]
fn a_unit_in_line_that_is_being_submitted_when_the_pool_stops_ends_for_both_who_brought_it() {
    let (world, submissions) = (World::new(), Gate::closed());
    let builder = world.pool(succeed).max_workers(1);
    let (pool_handle, pool) = (builder.handle(), builder.up());
    let permit = pool.acquire_slot().unwrap();
    let first = pool.enqueue(NewUnit::new("u"), "go").unwrap();
    world.faulty.on(Verb::Submit, Fault::Gate(submissions.clone()));
    let submitting = spawn_waiting(move || permit.submit(NewUnit::new("u"), "go").unwrap());
    submissions.wait_for(1);
    pool_handle.stop(Stop::Drain);
    assert!(matches!(first.wait_timeout(Duration::ZERO), Err(WaitError::TimedOut)), "nobody knows yet");
    submissions.open();
    let second = submitting.join().unwrap();
    for handle in [first, second] {
        assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    }
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.left_pending), (1, 1, 0), "{stats:?}");
    world.verify();
}

#[test]
fn a_unit_in_line_whose_second_submission_comes_to_nothing_is_left_when_the_pool_stops() {
    let (world, submissions) = (World::new(), Gate::closed());
    let builder = world.pool(succeed).max_workers(1);
    let (pool_handle, pool) = (builder.handle(), builder.up());
    let permit = pool.acquire_slot().unwrap();
    let first = pool.enqueue(NewUnit::new("u"), "go").unwrap();
    world.faulty.on(Verb::Submit, Fault::Gate(submissions.clone()));
    let submitting = spawn_waiting(move || permit.submit(NewUnit::new("u"), "something else").unwrap_err());
    submissions.wait_for(1);
    pool_handle.stop(Stop::Drain);
    submissions.open();
    assert!(matches!(submitting.join().unwrap().reason, Refusal::Repository(_)));
    assert!(matches!(first.wait_timeout(LONG), Err(WaitError::LeftPending)));
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.left_pending, stats.queue_size), (1, 1, 0), "{stats:?}");
    world.verify();
}

/// An executor whose workers wait in front of a gate to come up.
struct SlowStart(Gate);

impl Executor for SlowStart {
    fn start_worker(&self, _: &WorkerId, _: &CancelToken) -> Result<(), ExecuteError> {
        self.0.pass();
        Ok(())
    }

    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        succeed(call)
    }
}

#[test]
fn a_thread_that_is_left_behind_while_its_worker_comes_up_for_a_unit_is_not_counted_for_ever() {
    let (world, starts) = (World::new(), Gate::closed());
    let pool = world.pool(SlowStart(starts.clone())).min_workers(0).kill_grace(Duration::ZERO).up();
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    starts.wait_for(1);
    // Two graces are over at the same time: for those on their way up, and for those who execute.
    let stats = pool.stop(Stop::Cancel { grace: Duration::ZERO }).unwrap().stats;
    assert!(matches!(handle.wait_timeout(LONG), Err(WaitError::LeftPending)));
    // The thread that was to give the unit back may not have been waited for either.
    assert!((1..=2).contains(&stats.abandoned_threads) && stats.left_pending == 1, "{stats:?}");
    starts.open();
    let began = Instant::now();
    while pool.stats().abandoned_threads > 0 {
        assert!(began.elapsed() < LONG, "all have come back, and one is counted all the same");
        thread::yield_now();
    }
    world.verify();
}

#[test]
fn workers_that_were_too_many_when_the_pool_started_come_when_there_may_be_more_again() {
    let (world, starts) = (World::new(), Gate::closed());
    let pool = world.pool(SlowStart(starts.clone())).max_workers(2).scaling(Scaling::Fixed).build().unwrap();
    pool.set_max_workers(1).unwrap();
    pool.start().unwrap();
    starts.wait_for(1);
    // The only batch is on its way up, and nobody has looked yet how many there should be from then on.
    pool.set_max_workers(2).unwrap();
    starts.open();
    pool.await_init_complete().unwrap();
    let began = Instant::now();
    while pool.stats().idle_workers < 2 {
        assert!(began.elapsed() < LONG, "one is missing, and is looked for every minute: {:?}", pool.stats());
        thread::yield_now();
    }
    pool.stop(Stop::Drain).unwrap();
    world.verify();
}
