//! Moments at which two things meet in a pool, each brought about on purpose: a cancel between an attempt and the next, a
//! second submission, an answer that was lost twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use workcrew::audit::verify::Verify;
use workcrew::repository::{By, CancelAnswer};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, Call, Completion, Event, ExecuteError, JobId, MemoryRepository, NewJob, NewUnit, PoolStats, Repository,
    RetryPolicy, Stop, UnitStatus, WaitError, WorkPool, WorkPoolBuilder, WorkResult,
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
        World::with(|faulty| faulty)
    }

    /// One whose pools hear nothing of what others do, as if those were in another process.
    fn with_others_elsewhere() -> World {
        World::with(FaultyRepository::silent)
    }

    fn with(change: impl FnOnce(FaultyRepository) -> FaultyRepository) -> World {
        let direct = MemoryRepository::new();
        let job = direct.create_job(&NewJob::named("races")).unwrap().id;
        World { faulty: Arc::new(change(FaultyRepository::new(direct.clone().into()))), direct, job }
    }

    /// A pool that tries again at once.
    fn pool(
        &self,
        execute: impl Fn(&Call<'_>) -> Result<WorkResult, ExecuteError> + Send + Sync + 'static,
    ) -> WorkPoolBuilder {
        let repository: Arc<dyn Repository> = Arc::clone(&self.faulty) as _;
        WorkPool::builder(self.job, execute, repository).retry(RetryPolicy::immediate())
    }

    fn status(&self, id: &str) -> UnitStatus {
        self.direct.unit(self.job, id).unwrap().status
    }

    fn verify(&self) {
        let verification = Verify::new().run(&self.direct).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }
}

fn fails_first(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    match call.attempt_number() {
        1 => Err(ExecuteError::retry("the first time")),
        _ => Ok(WorkResult::text("done")),
    }
}

/// Tells of attempts that are followed by another, and lets the first of a unit wait in front of a gate before that is known.
fn hold_back_retries(told: mpsc::Sender<()>, gate: Gate) -> impl Fn(&Event<'_>) + Send + Sync {
    move |event| {
        if let Event::AttemptEnded { status: UnitStatus::Pending, .. } = event {
            told.send(()).unwrap();
            gate.pass();
        }
    }
}

fn open_gate() -> Gate {
    let gate = Gate::closed();
    gate.open();
    gate
}

fn assert_balanced(stats: &PoolStats) {
    let PoolStats { pending, running, completed, failed, cancelled, left_pending, lost, .. } = *stats;
    assert_eq!(stats.accepted, pending + running + completed + failed + cancelled + left_pending + lost, "{stats:?}");
}

#[test]
fn a_unit_that_is_cancelled_between_two_attempts_is_cancelled_once() {
    let (world, gate) = (World::new(), Gate::closed());
    let ((ended, has_ended), (cancelled, is_cancelled)) = (mpsc::channel(), mpsc::channel());
    let pool = world
        .pool(fails_first)
        .observer(hold_back_retries(ended, gate.clone()))
        .on_unit_cancelled(move |_| cancelled.send(()).unwrap())
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    has_ended.recv_timeout(LONG).unwrap();
    assert_eq!(pool.cancel("u", By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    is_cancelled.recv_timeout(LONG).unwrap();
    gate.open();
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(pool.wait_for_completion_timeout(LONG), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.cancelled, stats.attempts), (1, 1, 1), "{stats:?}");
    assert!(is_cancelled.try_recv().is_err(), "one end, one callback");
    world.verify();
}

#[test]
fn a_unit_that_is_submitted_again_between_two_attempts_ends_for_both_who_submitted_it() {
    let (world, gate) = (World::new(), Gate::closed());
    let (ended, has_ended) = mpsc::channel();
    let pool = world.pool(fails_first).observer(hold_back_retries(ended, gate.clone())).up();
    let first = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    has_ended.recv_timeout(LONG).unwrap();
    let second = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    assert_eq!(second.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    gate.open();
    assert_eq!(first.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.attempts), (1, 1, 2), "{stats:?}");
    world.verify();
}

#[test]
fn a_unit_that_is_requeued_and_submitted_in_its_callback_is_accepted_twice() {
    let (world, gate) = (World::new(), Gate::closed());
    let (requeued, is_requeued) = mpsc::channel();
    let (direct, job) = (world.direct.clone(), world.job);
    let pool = world
        .pool(|call| match call.attempt_number() {
            1 => Err(ExecuteError::give_up("no")),
            _ => Ok(WorkResult::empty()),
        })
        .on_unit_failed({
            let gate = gate.clone();
            move |unit, _| {
                direct.requeue(job, unit.id.as_str(), &By::whom("ada")).unwrap();
                requeued.send(()).unwrap();
                gate.pass();
            }
        })
        .up();
    let first = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    is_requeued.recv_timeout(LONG).unwrap();
    let second = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    assert_balanced(&pool.stats());
    assert_eq!(second.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    gate.open();
    first.wait_timeout(LONG).unwrap();
    assert_eq!(pool.wait_for_completion_timeout(LONG), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.failed, stats.completed), (2, 1, 1), "{stats:?}");
    world.verify();
}

#[test]
fn a_cancel_reaches_a_unit_whose_submission_is_not_yet_over() {
    let (world, gate) = (World::new(), Gate::closed());
    let pool = Arc::new(
        world.pool(|call| Err(ExecuteError::retry(format!("{:?}", call.cancel_token().wait_timeout(LONG))))).up(),
    );
    world.faulty.on(Verb::Submit, Fault::ExecutedThenError);
    world.faulty.on(Verb::Claimed, Fault::Gate(gate.clone()));
    let submitting = spawn_waiting({
        let pool = Arc::clone(&pool);
        move || pool.submit_work_unit(NewUnit::new("u"), "go").unwrap()
    });
    gate.wait_for(1);
    assert_eq!(pool.cancel("u", By::whom("ada")).unwrap(), CancelAnswer::Requested);
    gate.open();
    let unit = submitting.join().unwrap().wait_timeout(LONG / 2).unwrap();
    assert_eq!(unit.status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.verify();
}

#[test]
fn whoever_waits_for_a_place_gets_it_when_the_unit_that_had_precedence_is_gone() {
    let (world, claims, reads) = (World::with_others_elsewhere(), Gate::closed(), Gate::closed());
    let pool = Arc::new(world.pool(fails_first).max_workers(1).up());
    world.faulty.on(Verb::Claim, Fault::Gate(claims.clone()));
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    claims.wait_for(1);
    // By somebody who does not know this pool.
    assert_eq!(world.direct.cancel(world.job, "u", &By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    world.faulty.on(Verb::Read, Fault::Gate(reads.clone()));
    claims.open();
    reads.wait_for(1);
    let waiting = spawn_waiting({
        let pool = Arc::clone(&pool);
        move || pool.wait_for_available_slot_timeout(LONG)
    });
    let opened = Instant::now();
    reads.open();
    assert!(waiting.join().unwrap());
    assert!(opened.elapsed() < LONG / 2, "there was a place and nobody was told");
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
}

#[test]
fn a_worker_that_is_one_too_many_ends_also_if_it_got_nothing() {
    let (world, executions, submissions) = (World::new(), Gate::closed(), Gate::closed());
    let gate = executions.clone();
    let pool = world.pool(move |call| {
        if call.unit().id.as_str() == "long" {
            gate.pass();
        }
        Ok(WorkResult::empty())
    });
    let pool = Arc::new(pool.max_workers(2).up());
    pool.submit_work_unit(NewUnit::new("u"), "go").unwrap().wait_timeout(LONG).unwrap();
    let long = pool.submit_work_unit(NewUnit::new("long"), "go").unwrap();
    world.faulty.on(Verb::Submit, Fault::Gate(submissions.clone()));
    let submitting = spawn_waiting({
        let pool = Arc::clone(&pool);
        move || pool.submit_work_unit(NewUnit::new("u"), "go").unwrap()
    });
    submissions.wait_for(1);
    pool.set_max_workers(1).unwrap();
    submissions.open();
    submitting.join().unwrap().wait_timeout(LONG).unwrap();
    executions.open();
    long.wait_timeout(LONG).unwrap();
    assert!(pool.wait_for_available_slot_timeout(LONG));
    assert!(pool.stop_timeout(Stop::Drain, LONG).unwrap().is_final);
    world.verify();
}

#[test]
fn a_retry_whose_claim_is_unknown_is_executed_all_the_same() {
    let world = World::new();
    let pool = world.pool(fails_first).max_workers(1).up();
    world.faulty.on(Verb::Claim, Fault::ExecutedThenError);
    world.faulty.on(Verb::Claimed, Fault::ErrorOnce);
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    assert_eq!(handle.wait_timeout(LONG / 2).unwrap().status, UnitStatus::Completed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.lost), (1, 1, 0), "{stats:?}");
    world.verify();
}

#[test]
fn a_worker_whose_submission_is_unknown_takes_the_next_unit() {
    let world = World::new();
    let pool = world.pool(|_| Ok(WorkResult::empty())).max_workers(1).up();
    world.faulty.on(Verb::Submit, Fault::ExecutedThenError);
    world.faulty.on(Verb::Claimed, Fault::ErrorOnce);
    pool.submit_work_unit(NewUnit::new("u"), "go").unwrap_err();
    assert!(pool.wait_for_available_slot_timeout(LONG));
    let other = pool.submit_work_unit(NewUnit::new("v"), "go").unwrap();
    assert_eq!(other.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    assert!(pool.wait_for_available_slot_timeout(LONG));
    let again = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    assert_eq!(again.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.verify();
}

#[test]
fn a_unit_whose_submission_stays_unknown_for_a_while_is_executed_in_the_end() {
    let world = World::new();
    let pool = world.pool(|_| Ok(WorkResult::empty())).max_workers(1).up();
    world.faulty.on(Verb::Submit, Fault::ExecutedThenError);
    // Nobody gets to know what was claimed, and the worker that has it cannot end.
    (0..2).for_each(|_| world.faulty.on(Verb::Claimed, Fault::ErrorOnce));
    (0..2).for_each(|_| world.faulty.on(Verb::ChangeWorker, Fault::ErrorOnce));
    pool.submit_work_unit(NewUnit::new("u"), "go").unwrap_err();
    assert!(pool.wait_for_available_slot_timeout(LONG));
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed), (1, 1), "{stats:?}");
    world.verify();
}

#[test]
fn what_is_claimed_while_the_pool_begins_to_stop_is_given_back() {
    let (world, gate) = (World::new(), Gate::closed());
    let builder = world.pool(fails_first);
    let pool_handle = builder.handle();
    let pool = builder.up();
    world.faulty.on(Verb::Claim, Fault::Gate(gate.clone()));
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    gate.wait_for(1);
    pool_handle.stop(Stop::Drain);
    assert!(matches!(handle.wait_timeout(LONG), Err(WaitError::LeftPending)));
    gate.open();
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.left_pending, stats.attempts), (1, 1, 1), "{stats:?}");
    assert_eq!(world.status("u"), UnitStatus::Pending);
    world.verify();
}

/// Two pools of one job: the first has a unit that waits for its second attempt, and is paused.
fn two_pools(
    world: &World,
    execute: fn(&Call<'_>) -> Result<WorkResult, ExecuteError>,
) -> (WorkPool, WorkPool, Arc<AtomicUsize>) {
    let callbacks = Arc::new(AtomicUsize::new(0));
    let count = |callbacks: &Arc<AtomicUsize>| {
        let callbacks = Arc::clone(callbacks);
        move |_: &workcrew::WorkUnit, _: &WorkResult| {
            callbacks.fetch_add(1, Ordering::Relaxed);
        }
    };
    let (ended, has_ended) = mpsc::channel();
    let first = world
        .pool(fails_first)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .observer(hold_back_retries(ended, open_gate()))
        .on_unit_complete(count(&callbacks))
        .up();
    let second = world.pool(execute).max_workers(2).on_unit_complete(count(&callbacks)).up();
    first.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    first.pause();
    has_ended.recv_timeout(LONG).unwrap();
    (first, second, callbacks)
}

#[test]
fn a_unit_that_another_pool_has_finished_is_told_by_that_pool_alone() {
    let world = World::new();
    let (first, second, callbacks) = two_pools(&world, fails_first);
    let handle = second.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    first.resume();
    assert_eq!(first.wait_for_completion_timeout(LONG), Completion::Done);
    assert_eq!(callbacks.load(Ordering::Relaxed), 1);
    let stats = first.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.lost), (1, 0, 1), "{stats:?}");
    second.stop(Stop::Drain).unwrap();
    world.verify();
}

#[test]
fn a_unit_that_another_pool_has_taken_over_is_let_go() {
    let world = World::new();
    let (first, second, callbacks) = two_pools(&world, |call| {
        if call.unit().id.as_str() != "u" {
            call.cancel_token().wait_timeout(LONG);
        }
        Ok(WorkResult::empty())
    });
    second.submit_work_unit(NewUnit::new("busy"), "go").unwrap();
    // It may be due by now, and then it is executed at once: in any case the second pool has it.
    let handle = second.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    second.submit_work_unit(NewUnit::new("busy too"), "go").ok();
    first.resume();
    assert_eq!(first.wait_for_completion_timeout(LONG / 2), Completion::Done);
    let stats = first.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.lost), (1, 1), "{stats:?}");
    for id in ["busy", "busy too"] {
        let _ = second.cancel(id, By::whom("ada"));
    }
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    assert_eq!(callbacks.load(Ordering::Relaxed), 1);
    second.stop(Stop::Drain).unwrap();
    world.verify();
}

#[test]
fn all_who_submit_a_unit_that_another_pool_executes_hear_of_its_end() {
    let (world, executions, submissions) = (World::new(), Gate::closed(), Gate::closed());
    let (gate, direct) = (executions.clone(), world.direct.clone());
    let execute = move |_: &Call<'_>| {
        gate.pass();
        Ok(WorkResult::empty())
    };
    let other = WorkPool::builder(world.job, execute, direct).up();
    let pool = Arc::new(world.pool(fails_first).up());
    other.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    world.faulty.on(Verb::Submit, Fault::Gate(submissions.clone()));
    let submitting: Vec<_> = (0..3)
        .map(|_| {
            let pool = Arc::clone(&pool);
            spawn_waiting(move || pool.submit_work_unit(NewUnit::new("u"), "go").unwrap())
        })
        .collect();
    submissions.wait_for(3);
    submissions.open();
    let handles: Vec<_> = submitting.into_iter().map(|thread| thread.join().unwrap()).collect();
    executions.open();
    for handle in handles {
        assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    }
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!(stats.accepted, 0, "{stats:?}");
    other.stop(Stop::Drain).unwrap();
    world.verify();
}

#[test]
fn the_end_of_a_pool_is_stored_although_the_storage_fails_once() {
    for fault in [Fault::ErrorOnce, Fault::ExecutedThenError] {
        let world = World::new();
        let pool = world.pool(fails_first).up();
        world.faulty.on(Verb::EndOwner, fault);
        pool.stop(Stop::Drain).unwrap();
        assert!(world.direct.owners().unwrap().iter().all(|owner| owner.ended_at.is_some()));
    }
}

/// A payload that panics once more when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        std::panic::panic_any(Bomb);
    }
}

#[test]
fn a_callback_that_panics_with_something_that_panics_harms_nobody_although_nobody_logs_it() {
    // Nothing is logged in this binary: what is only looked at to be logged is not looked at.
    let world = World::new();
    let pool = world.pool(fails_first).max_workers(1);
    let pool =
        pool.on_unit_complete(|_, _| std::panic::panic_any(Bomb)).observer(|_: &Event<'_>| std::panic::panic_any(Bomb));
    let pool = pool.up();
    for id in ["u", "v"] {
        assert!(pool.wait_for_available_slot_timeout(LONG));
        let handle = pool.submit_work_unit(NewUnit::new(id), "go").unwrap();
        assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Completed);
    }
    let summary = pool.stop_timeout(Stop::Drain, LONG).unwrap();
    assert!(summary.is_final, "{pool:?}");
    assert_eq!((summary.stats.completed, summary.stats.lost), (2, 0));
    world.verify();
}

#[test]
fn a_callback_that_outlives_the_pool_is_counted_for_as_long_as_it_runs() {
    let (world, gate) = (World::new(), Gate::closed());
    let (ended, has_ended) = mpsc::channel();
    let waits = gate.clone();
    let pool = world.pool(fails_first).retry(RetryPolicy::fixed(LONG));
    let pool = pool.observer(hold_back_retries(ended, open_gate())).on_unit_cancelled(move |_| waits.pass());
    let pool = pool.up();
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    has_ended.recv_timeout(LONG).unwrap();
    assert_eq!(pool.cancel("u", By::whom("ada")).unwrap(), CancelAnswer::Cancelled);
    gate.wait_for(1);
    assert_eq!(pool.stop(Stop::Now).unwrap().stats.abandoned_threads, 1);
    gate.open();
    handle.wait_timeout(LONG).unwrap();
    let began = Instant::now();
    while pool.stats().abandoned_threads > 0 {
        assert!(began.elapsed() < LONG, "it has returned, and is counted all the same");
        std::thread::yield_now();
    }
}

#[test]
fn a_unit_that_waits_again_while_its_thread_does_not_come_back_from_telling_is_left_pending() {
    let (world, gate) = (World::new(), Gate::closed());
    let (ended, has_ended) = mpsc::channel();
    let pool = world.pool(fails_first).observer(hold_back_retries(ended, gate.clone())).up();
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    has_ended.recv_timeout(LONG).unwrap();
    let summary = pool.stop_timeout(Stop::Now, LONG).unwrap();
    assert!(summary.is_final);
    assert_eq!((summary.stats.running, summary.stats.left_pending), (0, 1), "{summary:?}");
    assert!(matches!(handle.wait_timeout(LONG), Err(WaitError::LeftPending)));
    gate.open();
    world.verify();
}

#[test]
fn a_unit_that_is_to_be_cancelled_is_cancelled_also_if_its_thread_is_left_behind() {
    let (world, gate) = (World::new(), Gate::closed());
    let (cancelled, is_cancelled) = mpsc::channel();
    let pool = world
        .pool({
            let gate = gate.clone();
            move |_| {
                gate.pass();
                Ok(WorkResult::empty())
            }
        })
        .on_unit_cancelled(move |unit| cancelled.send(unit.status).unwrap())
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("u"), "go").unwrap();
    gate.wait_for(1);
    assert_eq!(handle.cancel(By::whom("ada")).unwrap(), CancelAnswer::Requested);
    let stats = pool.stop_timeout(Stop::Now, LONG).unwrap().stats;
    assert_eq!((stats.cancelled, stats.left_pending), (1, 0), "{stats:?}");
    assert_eq!(handle.wait_timeout(LONG).unwrap().status, UnitStatus::Cancelled);
    assert_eq!(is_cancelled.recv_timeout(LONG).unwrap(), UnitStatus::Cancelled);
    gate.open();
    // Until it is back its late result may be on its way.
    while pool.stats().abandoned_threads > 0 {
        std::thread::yield_now();
    }
    world.verify();
}
