//! What a pool does when what it stands on breaks: repositories and errors that panic, results that cannot be stored.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use crate::support::Up as _;
use workcrew::clock::{Clock, ManualClock, Moment};
use workcrew::repository::By;
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, Call, Charge, Event, ExecuteError, Executor, JobId, MemoryRepository, NewJob, NewUnit, Outcome,
    Repository, RetryPolicy, Stop, Tokens, UnitStatus, WorkPool, WorkPoolBuilder, WorkResult,
};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(10);

/// A repository whose planned faults are panics.
struct World {
    repository: Arc<FaultyRepository>,
    job: JobId,
}

impl World {
    fn new() -> World {
        let memory = MemoryRepository::new();
        let job = memory.create_job(&NewJob::named("a job")).unwrap().id;
        let repository = FaultyRepository::new(Arc::new(memory)).error(|| panic!("a panic that the test planned"));
        World { repository: Arc::new(repository), job }
    }

    fn pool(&self, executor: impl Executor) -> WorkPoolBuilder {
        let repository = Arc::clone(&self.repository) as Arc<dyn Repository>;
        WorkPool::builder(self.job, executor, repository).max_workers(1).retry(RetryPolicy::immediate())
    }

    fn status(&self, id: &str) -> UnitStatus {
        self.repository.unit(self.job, id).unwrap().status
    }
}

fn succeeds(_: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    Ok(WorkResult::text("done"))
}

fn fails_first(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    if call.attempt_number() == 1 { Err(ExecuteError::retry("not yet")) } else { succeeds(call) }
}

/// A pool that hangs must not hang its test too.
fn assert_stops(pool: WorkPool, stop: Stop) {
    let summary = pool.stop_timeout(stop, LONG).unwrap();
    let state = format!("{:?} {:?}", pool.stats(), pool.workers());
    if !summary.is_final {
        std::mem::forget(pool);
        panic!("it does not stop: {state}");
    }
}

#[test]
fn a_submission_in_which_the_repository_panics_costs_neither_its_place_nor_the_end_of_the_pool() {
    let world = World::new();
    let pool = world.pool(succeeds).up();
    world.repository.on(Verb::Submit, Fault::ErrorOnce);
    assert!(catch_unwind(AssertUnwindSafe(|| pool.submit_work_unit(NewUnit::new("a"), "go"))).is_err());
    let has_place = pool.wait_for_available_slot_timeout(LONG);
    let done = has_place.then(|| pool.submit_work_unit(NewUnit::new("b"), "go").unwrap().wait_timeout(LONG).unwrap());
    assert_stops(pool, Stop::Drain);
    assert_eq!(done.map(|unit| unit.status), Some(UnitStatus::Completed));
}

#[test]
fn a_claim_in_which_the_repository_panics_is_made_again() {
    let world = World::new();
    let pool = world.pool(fails_first).up();
    world.repository.on(Verb::Claim, Fault::ErrorOnce);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let ended = handle.wait_timeout(LONG).map(|unit| unit.status);
    assert_stops(pool, Stop::Drain);
    assert_eq!(ended.unwrap(), UnitStatus::Completed);
}

#[test]
fn a_pool_whose_start_panics_can_be_dropped() {
    let world = World::new();
    world.repository.on(Verb::RegisterOwner, Fault::ErrorOnce);
    let pool = world.pool(succeeds).build().unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| pool.start())).is_err());
    assert_stops(pool, Stop::Now);
}

#[test]
fn a_pool_starts_although_its_first_sweep_panics() {
    let world = World::new();
    world.repository.on(Verb::Expire, Fault::ErrorOnce);
    assert_stops(world.pool(succeeds).up(), Stop::Drain);
}

#[test]
fn a_worker_ends_although_the_repository_panics_at_everything() {
    let world = World::new();
    let pool = world.pool(succeeds).up();
    for verb in [Verb::Finish, Verb::Release, Verb::ChangeWorker] {
        world.repository.on(verb, Fault::ErrorAlways);
    }
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let waited = handle.wait_timeout(LONG).is_err() && handle.is_done();
    for verb in [Verb::Finish, Verb::Release, Verb::ChangeWorker] {
        world.repository.heal(verb);
    }
    assert_stops(pool, Stop::Drain);
    assert!(waited, "whoever waits is told");
    assert_eq!(world.status("a"), UnitStatus::Pending);
}

#[test]
fn a_unit_is_told_of_although_the_reporter_cannot_read_it() {
    let world = World::new();
    let executor = |_: &Call<'_>| Err(ExecuteError::retry_after(Duration::from_secs(3_600), "later"));
    let pool = world.pool(executor).on_unit_cancelled(|_| {}).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    while pool.stats().pending == 0 {
        std::thread::yield_now();
    }
    let gate = Gate::closed();
    world.repository.on(Verb::Read, Fault::Gate(gate.clone()));
    world.repository.on(Verb::Read, Fault::ErrorOnce);
    std::thread::scope(|threads| {
        // Whoever reads second is struck, and on a busy machine that may be this thread.
        threads.spawn(|| catch_unwind(AssertUnwindSafe(|| pool.cancel("a", By::new("a test", "")))));
        gate.wait_for(1);
        gate.open();
    });
    let ended = handle.wait_timeout(LONG).map(|unit| unit.status);
    assert_stops(pool, Stop::Drain);
    assert_eq!(ended.unwrap(), UnitStatus::Cancelled);
}

#[test]
fn draining_does_not_wait_for_a_thread_whose_attempt_has_ended_long_since() {
    let world = World::new();
    let deaf = Gate::closed();
    let executor = {
        let deaf = deaf.clone();
        move |_: &Call<'_>| {
            deaf.pass();
            Ok(WorkResult::empty())
        }
    };
    let pool = world.pool(executor).max_abandoned(0).kill_grace(Duration::ZERO).up();
    let unit = NewUnit::new("deaf").timeout(Duration::from_millis(1)).max_retries(0);
    let handle = pool.submit_work_unit(unit, "go").unwrap();
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Failed);
    let summary = pool.stop_timeout(Stop::Drain, Duration::from_secs(3)).unwrap();
    deaf.open();
    assert!(summary.is_final, "{:?} {:?}", summary.stats, pool.workers());
}

#[test]
fn a_cancel_of_a_unit_that_was_requeued_meanwhile_does_not_end_its_next_execution() {
    let world = World::new();
    let (told, calls) = mpsc::channel();
    let going = Gate::closed();
    let executor = {
        let going = going.clone();
        move |call: &Call<'_>| {
            if call.attempt_number() == 1 {
                return Err(ExecuteError::retry_after(Duration::from_secs(3_600), "later"));
            }
            told.send(()).unwrap();
            going.pass();
            succeeds(call)
        }
    };
    let pool = world.pool(executor).up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    while pool.stats().pending == 0 {
        std::thread::yield_now();
    }
    let gate = Gate::closed();
    world.repository.on(Verb::Read, Fault::Gate(gate.clone()));
    let handle = std::thread::scope(|threads| {
        threads.spawn(|| pool.cancel("a", By::new("a test", "")).unwrap());
        gate.wait_for(1);
        world.repository.requeue(world.job, "a", &By::new("a test", "")).unwrap();
        let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        calls.recv_timeout(LONG).unwrap();
        gate.open();
        handle
    });
    let (stats, was_done) = (pool.stats(), handle.is_done());
    going.open();
    let ended = handle.wait_timeout(LONG).map(|unit| unit.status);
    let after = pool.stats();
    assert_stops(pool, Stop::Drain);
    assert!(!was_done && stats.running == 1, "it runs: {stats:?}");
    assert_eq!(ended.unwrap(), UnitStatus::Completed);
    assert_eq!(after.completed, 1, "{after:?}");
}

#[test]
fn a_unit_whose_end_was_stored_after_all_goes_on_here() {
    let clock = ManualClock::new();
    let memory = MemoryRepository::with_clock(clock.clone());
    let job = memory.create_job(&NewJob::named("a job")).unwrap().id;
    let gone = || workcrew::RepositoryError::Gone { path: "x".into() };
    let repository = Arc::new(FaultyRepository::new(Arc::new(memory)).error(gone));
    let pool = WorkPool::builder(job, fails_first, Arc::clone(&repository) as Arc<dyn Repository>)
        .clock(clock.clone())
        .retry(RetryPolicy::immediate())
        .up();
    repository.on(Verb::Finish, Fault::ErrorOnce);
    let first = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    assert!(first.wait_timeout(LONG).is_err(), "it is lost");
    let second = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    for _ in 0..10 {
        if second.wait_timeout(Duration::from_millis(200)).is_ok() {
            break;
        }
        clock.advance(Duration::from_secs(15));
    }
    let ended = second.wait_timeout(Duration::from_millis(1)).map(|unit| unit.status);
    assert_stops(pool, Stop::Drain);
    assert_eq!(ended.unwrap(), UnitStatus::Completed);
}

#[test]
fn what_was_paid_is_stored_although_the_result_cannot_be() {
    let world = World::new();
    let executor = |_: &Call<'_>| {
        let deep = (0..500).fold(serde_json::Value::Null, |inner, _| serde_json::Value::Array(vec![inner]));
        let charge = Charge::unpriced("a model", Tokens { input: 7, ..Tokens::default() });
        Ok(WorkResult::text("out").json(deep).charge(charge))
    };
    let (tell, outcomes) = mpsc::channel();
    let observer = move |event: &Event<'_>| {
        if let Event::AttemptEnded { outcome, status, .. } = event {
            tell.send((*outcome, *status)).unwrap();
        }
    };
    let pool = world.pool(executor).observer(observer).up();
    let unit = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap().wait_timeout(LONG).unwrap();
    let summed = pool.stats().tokens;
    assert_stops(pool, Stop::Drain);
    assert_eq!(unit.status, UnitStatus::Failed);
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), [(Outcome::Failed, UnitStatus::Failed)]);
    let charges = world.repository.charges(workcrew::AttemptKey { unit: unit.key, number: 1 }).unwrap();
    assert_eq!(charges.iter().map(|charge| charge.tokens.input).sum::<u64>(), summed.input);
    assert_eq!(summed.input, 7);
}

#[derive(Debug)]
struct Unspeakable;

impl std::fmt::Display for Unspeakable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("an error that cannot be told")
    }
}

impl std::error::Error for Unspeakable {}

#[test]
fn an_error_whose_cause_panics_when_it_is_read_is_a_failed_attempt() {
    let world = World::new();
    let executor = |_: &Call<'_>| Err(ExecuteError::retry("no answer").source(Unspeakable));
    let pool = world.pool(executor).up();
    let ended = pool.submit_work_unit(NewUnit::new("a").max_retries(1), "go").unwrap().wait_timeout(LONG);
    assert_stops(pool, Stop::Drain);
    let unit = ended.unwrap();
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 2));
}

#[test]
fn cancelling_with_all_the_time_in_the_world_still_asks_whom_draining_did_not() {
    let world = World::new();
    let (told, calls) = mpsc::channel();
    let executor = move |call: &Call<'_>| {
        told.send(()).unwrap();
        let asked = call.cancel_token().wait_timeout(LONG * 2);
        Ok(WorkResult::text(format!("{asked:?}")))
    };
    let pool = world.pool(executor).up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    calls.recv_timeout(LONG).unwrap();
    pool.handle().stop(Stop::Drain);
    assert_stops(pool, Stop::Cancel { grace: Duration::MAX });
}

#[test]
fn what_was_given_up_before_it_began_does_not_begin() {
    let world = World::new();
    let (told, calls) = mpsc::channel();
    let executor = move |call: &Call<'_>| {
        told.send(call.attempt_number()).unwrap();
        succeeds(call)
    };
    let slow = Gate::closed();
    let observer = {
        let slow = slow.clone();
        move |event: &Event<'_>| {
            if let Event::AttemptStarted { .. } = event {
                slow.pass();
            }
        }
    };
    let pool = world.pool(executor).observer(observer).kill_grace(Duration::ZERO).up();
    let unit = NewUnit::new("a").timeout(Duration::from_millis(1)).max_retries(0);
    let ended = pool.submit_work_unit(unit, "go").unwrap().wait_timeout(LONG).unwrap();
    assert_eq!(ended.status, UnitStatus::Failed);
    slow.open();
    while pool.stats().abandoned_threads > 0 {
        std::thread::yield_now();
    }
    assert_stops(pool, Stop::Drain);
    assert!(calls.try_recv().is_err(), "it was executed after its end");
}

/// A clock that jumps and tells nobody, as the machine's does when it wakes from sleep.
#[derive(Debug)]
struct SleepyClock(ManualClock);

impl Clock for SleepyClock {
    fn now(&self) -> Moment {
        self.0.now()
    }
}

#[test]
fn time_that_the_machine_slept_through_counts() {
    let clock = ManualClock::new();
    let memory = MemoryRepository::with_clock(clock.clone());
    let job = memory.create_job(&NewJob::named("a job")).unwrap().id;
    let (told, calls) = mpsc::channel();
    let executor = move |call: &Call<'_>| {
        told.send(()).unwrap();
        Ok(WorkResult::text(format!("{:?}", call.cancel_token().wait_timeout(LONG))))
    };
    let pool = WorkPool::builder(job, executor, memory)
        .clock(SleepyClock(clock.clone()))
        .lease(Duration::from_secs(3_600))
        .heartbeat(Duration::from_millis(10))
        .kill_grace(LONG * 2)
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    calls.recv_timeout(LONG).unwrap();
    assert!(handle.wait_timeout(Duration::from_millis(100)).is_err(), "by now nobody looks at the clock");
    clock.advance(Duration::from_secs(601));
    let ended = handle.wait_timeout(LONG * 2).unwrap();
    assert_stops(pool, Stop::Drain);
    assert_eq!(ended.status, UnitStatus::Failed, "{:?}", ended.output);
}

#[test]
fn whoever_waits_for_a_unit_need_not_wait_for_a_callback_that_was_left_behind() {
    let world = World::new();
    let stuck = Gate::closed();
    let pool = world
        .pool(succeeds)
        .on_unit_complete({
            let stuck = stuck.clone();
            move |_, _| stuck.pass()
        })
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    stuck.wait_for(1);
    pool.stop_timeout(Stop::Now, LONG).unwrap();
    let waited = handle.wait_timeout(Duration::from_secs(2)).map(|unit| unit.status);
    stuck.open();
    assert_eq!(waited.unwrap(), UnitStatus::Completed);
}
