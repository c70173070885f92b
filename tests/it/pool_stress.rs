//! Pools under load: many who submit, many workers, storage that fails at random, two pools on one job.
//!
//! Every test with chance in it prints its seed; `WORKCREW_SEED` repeats its choices, though not their interleaving.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use workcrew::audit::verify::Verify;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, Call, Charge, Completion, ExecuteError, JobId, MemoryRepository, Message, Money, NewJob, NewUnit,
    PoolStats, Refusal, Repository, RetryPolicy, Stop, SubmitError, Tokens, UnitHandle, UnitStatus, WorkPool,
    WorkResult,
};

use crate::children::{self, Role, say};
use crate::support::Up as _;
use crate::support::{self, Random};

const LONG: Duration = Duration::from_secs(60);

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    if children::role().is_some() {
        start_a_thousand_workers();
    }
}

/// What is being executed at this moment, and how much that was at most.
#[derive(Debug, Default)]
struct Running {
    now: Mutex<BTreeSet<String>>,
    at_most: AtomicUsize,
    executions: Mutex<BTreeMap<String, Vec<u32>>>,
}

impl Running {
    /// Runs an execution, and sees that no other one of the same unit runs meanwhile.
    fn during<T>(&self, call: &Call<'_>, work: impl FnOnce() -> T) -> T {
        let (id, attempt) = (call.unit().id.as_str(), call.attempt_number());
        let mut now = self.now.lock().unwrap();
        let is_alone = now.insert(id.to_owned());
        self.at_most.fetch_max(now.len(), Ordering::SeqCst);
        drop(now);
        self.executions.lock().unwrap().entry(id.to_owned()).or_default().push(attempt);
        let done = work();
        self.now.lock().unwrap().remove(id);
        assert!(is_alone, "unit {id} was executed twice at the same time");
        done
    }

    /// Each unit was executed, no attempt of it twice, and all in order.
    fn check(&self, units: usize) {
        let executions = self.executions.lock().unwrap();
        assert_eq!(executions.len(), units);
        for (id, attempts) in &*executions {
            assert!(attempts.is_sorted_by(|one, next| one < next), "{id}: {attempts:?}");
        }
    }
}

fn assert_balanced(stats: &PoolStats) {
    let PoolStats { pending, running, completed, failed, cancelled, left_pending, lost, .. } = *stats;
    assert_eq!(stats.accepted, pending + running + completed + failed + cancelled + left_pending + lost, "{stats:?}");
    assert!(stats.busy_workers <= stats.max_workers, "{stats:?}");
    assert!(stats.busy_workers + stats.free_slots + stats.reserved_slots <= stats.max_workers, "{stats:?}");
}

fn assert_clean(archive: &dyn Archive, job: JobId, count: usize) {
    let ids: Vec<(JobId, String)> = (0..count).map(|number| (job, name(number))).collect();
    let verification = Verify::new().acknowledged(ids.clone()).submitted(ids).settled().run(archive).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

fn name(number: usize) -> String {
    format!("u{number}")
}

/// A unit that fails every third time for the first two attempts.
fn fails_at_first(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let number: usize = call.unit().id.as_str()[1..].parse().unwrap();
    call.message(Message::assistant("hm"));
    match number.is_multiple_of(3) && call.attempt_number() <= 2 {
        true => Err(ExecuteError::retry("not yet")),
        false => Ok(WorkResult::text("done")),
    }
}

/// Submits units in one of three ways, and never finds the pool full where it was promised a place.
fn submit_some(pool: &WorkPool, way: usize, numbers: impl Iterator<Item = usize>) {
    for number in numbers {
        let unit = || NewUnit::new(name(number));
        match way % 3 {
            0 => {
                assert!(pool.wait_for_available_slot());
                pool.submit_work_unit(unit(), "go").unwrap();
            }
            1 => drop(pool.acquire_slot().unwrap().submit(unit(), "go").unwrap()),
            _ => {
                while let Err(SubmitError { reason, .. }) = pool.submit_work_unit(unit(), "go") {
                    assert!(matches!(reason, Refusal::AtCapacity { .. }), "{reason:?}");
                    std::thread::yield_now();
                }
            }
        }
    }
}

fn let_a_crowd_submit(repository: Arc<dyn Repository>, threads: usize, each: usize, ways: &'static [usize]) {
    const WORKERS: usize = 8;
    let job = repository.create_job(&NewJob::named("crowd")).unwrap().id;
    let running = Arc::new(Running::default());
    let execute = {
        let running = Arc::clone(&running);
        move |call: &Call<'_>| running.during(call, || fails_at_first(call))
    };
    let pool = WorkPool::builder(job, execute, Arc::clone(&repository));
    let pool = pool.max_workers(WORKERS).retry(RetryPolicy::immediate()).up();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampling = scope.spawn(|| {
            let mut samples = 0_u64;
            while !is_over.load(Ordering::Relaxed) {
                assert_balanced(&pool.stats());
                samples += 1;
            }
            samples
        });
        let submitting: Vec<_> = (0..threads)
            .map(|thread| {
                let (pool, way) = (&pool, ways[thread % ways.len()]);
                scope.spawn(move || submit_some(pool, way, thread * each..(thread + 1) * each))
            })
            .collect();
        let submitted: Vec<_> = submitting.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        let completion = pool.wait_for_completion_timeout(LONG);
        is_over.store(true, Ordering::Relaxed);
        assert!(sampling.join().unwrap() > 0);
        assert!(submitted.iter().all(Result::is_ok));
        assert_eq!(completion, Completion::Done);
    });
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_balanced(&stats);
    let units = threads * each;
    assert_eq!((stats.accepted, stats.completed), (units as u64, units as u64), "{stats:?}");
    assert!(running.at_most.load(Ordering::SeqCst) <= WORKERS, "{running:?}");
    running.check(units);
    assert_clean(&*repository, job, units);
}

#[test]
fn sixty_four_threads_submit_to_eight_workers_in_memory() {
    let_a_crowd_submit(MemoryRepository::new().into(), 64, 12, &[0, 1, 2]);
}

#[test]
fn sixty_four_threads_submit_to_eight_workers_in_sqlite() {
    let folder = support::folder();
    let repository = SqliteOptions::new().open(folder.path().join("crowd.db")).unwrap();
    let_a_crowd_submit(repository.into(), 64, 6, &[0, 1, 2]);
}

#[test]
fn whoever_was_promised_a_place_has_it_while_others_are_tried_again() {
    let_a_crowd_submit(MemoryRepository::new().into(), 8, 100, &[0]);
}

#[test]
fn two_pools_share_a_job_and_no_unit_runs_twice_at_a_time() {
    const UNITS: usize = 90;
    let folder = support::folder();
    let repository = SqliteOptions::new().open(folder.path().join("two.db")).unwrap();
    let job = repository.create_job(&NewJob::named("two")).unwrap().id;
    let (running, callbacks) = (Arc::new(Running::default()), Arc::new(AtomicUsize::new(0)));
    let start = || {
        let (running, callbacks) = (Arc::clone(&running), Arc::clone(&callbacks));
        WorkPool::builder(job, move |call: &Call<'_>| running.during(call, || fails_at_first(call)), repository.clone())
            .retry(RetryPolicy::fixed(Duration::from_millis(2)))
            .on_unit_complete(move |_, _| {
                callbacks.fetch_add(1, Ordering::SeqCst);
            })
            .up()
    };
    let pools = [start(), start()];
    std::thread::scope(|scope| {
        scope.spawn(|| submit_some(&pools[0], 0, 0..UNITS));
        scope.spawn(|| submit_some(&pools[1], 0, (0..UNITS).rev()));
    });
    let mut completed = 0;
    for pool in &pools {
        assert_eq!(pool.wait_for_completion_timeout(LONG), Completion::Done);
    }
    for pool in pools {
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_balanced(&stats);
        completed += stats.completed;
    }
    assert_eq!((completed, callbacks.load(Ordering::SeqCst)), (UNITS as u64, UNITS));
    running.check(UNITS);
    assert_clean(&repository, job, UNITS);
}

/// Plans something that goes wrong with some verb before long.
fn plan_a_fault(repository: &FaultyRepository, random: &mut Random) {
    const VERBS: [Verb; 17] = [
        Verb::Submit,
        Verb::Submit,
        Verb::Claim,
        Verb::Claimed,
        Verb::Start,
        Verb::Append,
        Verb::Partial,
        Verb::Progress,
        Verb::CheckpointAt,
        Verb::Finish,
        Verb::Finish,
        Verb::Release,
        Verb::Renew,
        Verb::Expire,
        Verb::Cancel,
        Verb::ChangeWorker,
        Verb::Read,
    ];
    let fault = if random.below(2) == 0 { Fault::ErrorOnce } else { Fault::ExecutedThenError };
    repository.on(VERBS[random.below(VERBS.len())], fault);
}

/// Runs a batch over a repository, submitting again whatever was not taken.
fn run_a_batch(pool: &WorkPool, units: usize, mut before_each: impl FnMut()) -> Vec<UnitHandle> {
    let submit = |number| loop {
        before_each();
        assert!(pool.wait_for_available_slot_timeout(LONG));
        match pool.submit_work_unit(NewUnit::new(name(number)).prompt("go"), "go") {
            Ok(handle) => return handle,
            Err(SubmitError { reason: Refusal::Repository(error), .. }) => assert!(!error.is_rejection(), "{error}"),
            Err(error) => panic!("{error}"),
        }
    };
    (0..units).map(submit).collect()
}

#[test]
fn a_storage_that_fails_at_random_loses_nothing() {
    const UNITS: usize = 120;
    let (seed, direct) = (Random::seed(), MemoryRepository::new());
    let faulty = Arc::new(FaultyRepository::new(direct.clone().into()));
    let job = direct.create_job(&NewJob::named("faulty")).unwrap().id;
    let running = Arc::new(Running::default());
    let execute = {
        let (running, direct) = (Arc::clone(&running), direct.clone());
        move |call: &Call<'_>| {
            let id = call.unit().id.as_str();
            let status = direct.unit(job, id).unwrap().status;
            assert!(!status.is_terminal(), "{id} is executed although it is {status}");
            call.session(format!("s-{id}"));
            call.usage(Charge::reported("large", Tokens::default(), Money::from_nanos(1)));
            call.checkpoint(1);
            call.partial("h");
            running.during(call, || fails_at_first(call))
        }
    };
    let pool = |repository: Arc<dyn Repository>| {
        let pool = WorkPool::builder(job, execute.clone(), repository).retry(RetryPolicy::immediate());
        pool.heartbeat(Duration::from_millis(20)).up()
    };
    let first = pool(Arc::clone(&faulty) as _);
    let mut random = Random::new(seed);
    let handles = run_a_batch(&first, UNITS, || (0..random.below(4)).for_each(|_| plan_a_fault(&faulty, &mut random)));
    assert_eq!(first.wait_for_completion_timeout(LONG), Completion::Done);
    assert!(handles.iter().all(UnitHandle::is_done));
    let stats = first.stop(Stop::Drain).unwrap().stats;
    assert_balanced(&stats);
    assert_eq!(stats.lost + stats.left_pending, 0, "{stats:?}");
    running.check(UNITS);
    // What the faults cost in attempts is at most what failed for good: submitted once more, everything has ended.
    let second = pool(direct.clone().into());
    let handles = run_a_batch(&second, UNITS, || {});
    let statuses = handles.iter().map(|handle| handle.wait_timeout(LONG).unwrap().status);
    let completed = statuses.filter(|&status| status == UnitStatus::Completed).count();
    second.stop(Stop::Drain).unwrap();
    assert_eq!(completed, UNITS);
    assert_clean(&direct, job, UNITS);
}

#[test]
fn a_thousand_workers_are_busy_at_once_and_leave_nothing_behind() {
    let folder = support::folder();
    let lines = Role::new("pool_stress::child", "thousand", folder.path()).start().end_well();
    assert_eq!(lines, ["1000 busy", "nothing left"]);
}

/// How many threads this process has.
pub(crate) fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn thread_names() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok()).collect()
}

/// Waits until this process has no more than so many threads: one that was joined may take a moment to vanish.
pub(crate) fn wait_for_thread_count(expected: usize) {
    let began = Instant::now();
    while thread_count() > expected {
        assert!(began.elapsed() < Duration::from_secs(10), "more than {expected} threads: {:?}", thread_names());
        std::thread::yield_now();
    }
}

fn start_a_thousand_workers() {
    const WORKERS: usize = 1_000;
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("thousand")).unwrap().id;
    let (before, gate) = (thread_count(), Gate::closed());
    let execute = {
        let gate = gate.clone();
        move |_: &Call<'_>| {
            gate.pass();
            Ok(WorkResult::empty())
        }
    };
    let pool = WorkPool::builder(job, execute, repository.clone()).max_workers(WORKERS).up();
    for number in 0..WORKERS {
        pool.submit_work_unit(NewUnit::new(name(number)), "go").unwrap();
    }
    gate.wait_for(WORKERS as u64);
    assert_eq!((pool.busy_count(), pool.stats().free_slots), (WORKERS, 0));
    say(format_args!("{} busy", pool.busy_count()));
    assert!(pool.submit_work_unit(NewUnit::new("one more"), "go").unwrap_err().is_at_capacity());
    gate.open();
    assert_eq!(pool.wait_for_completion_timeout(LONG), Completion::Done);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, WORKERS as u64);
    drop(pool);
    wait_for_thread_count(before);
    assert_clean(&repository, job, WORKERS);
    say("nothing left");
}
