//! A provider that bears few and asks for fewer in every way it can, and a pool that finds that out while somebody changes how many workers
//! there may be: nothing is lost, nothing fails, and there are never more workers than there may be.
//!
//! What is chosen at random is so by a seed that is printed; `WORKCREW_SEED` repeats the choice, though not the interleaving.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use workcrew::audit::verify::Verify;
use workcrew::clock::{Clock, SystemClock};
use workcrew::executor::kinds;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::{
    AdaptationReason, Call, Completion, ExecuteError, MemoryRepository, NewJob, NewUnit, Repository, RetryPolicy,
    Scaling, Stop, UnitStatus, WorkPool, WorkResult,
};

use crate::support::{self, Random, Up as _};

const LONG: Duration = Duration::from_secs(60);
const WORKERS: usize = 16;
const BEARS: usize = 5;
const UNITS: usize = 600;

#[test]
fn a_storm_of_refusals_loses_nothing_in_memory() {
    rage(&MemoryRepository::new());
}

#[test]
fn a_storm_of_refusals_loses_nothing_in_sqlite() {
    let folder = support::folder();
    rage(&SqliteOptions::new().open(folder.path().join("storm.db")).unwrap());
}

/// What the provider sees.
struct Provider {
    random: Mutex<Random>,
    asked: AtomicUsize,
    answered: AtomicUsize,
    asked_at_most: AtomicUsize,
}

impl Provider {
    fn execute(&self, _: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        self.asked_at_most.fetch_max(asked, Ordering::SeqCst);
        let answer = if asked > BEARS { Err(self.refusal()) } else { Ok(WorkResult::empty()) };
        self.answered.fetch_add(usize::from(answer.is_ok()), Ordering::SeqCst);
        // Those who are answered take longer than those who are refused.
        for _ in 0..if answer.is_ok() { 20 } else { 1 } {
            thread::yield_now();
        }
        self.asked.fetch_sub(1, Ordering::SeqCst);
        answer
    }

    fn refusal(&self) -> ExecuteError {
        let now = SystemClock.now().wall;
        match self.random.lock().unwrap().below(4) {
            0 => ExecuteError::retry("too many").kind(kinds::RATE_LIMITED),
            1 => ExecuteError::retry("too much to do").kind(kinds::OVERLOADED),
            2 => ExecuteError::retry_after(Duration::from_millis(1), "soon").kind(kinds::RATE_LIMITED),
            _ => ExecuteError::hold_until(now + Duration::from_millis(2), "all wait").kind(kinds::RATE_LIMITED),
        }
    }
}

fn rage<R: Repository + Clone + Into<Arc<dyn Repository>>>(repository: &R) {
    let seed = Random::seed();
    let job = repository.create_job(&NewJob::named("storm")).unwrap().id;
    let (asked, answered, asked_at_most) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let provider = Arc::new(Provider { random: Mutex::new(Random::new(seed)), asked, answered, asked_at_most });
    let of_pool = Arc::clone(&provider);
    let pool = WorkPool::builder(job, move |call: &Call<'_>| of_pool.execute(call), repository.clone())
        .scaling(Scaling::Adaptive { cool_down: Duration::from_millis(1) })
        .max_workers(WORKERS)
        .max_queue_size(UNITS)
        .retry(RetryPolicy::immediate())
        .up();
    let is_over = AtomicBool::new(false);
    thread::scope(|threads| {
        let changing = threads.spawn(|| {
            let mut random = Random::new(seed);
            while !is_over.load(Ordering::Relaxed) {
                let max_workers = 1 + random.below(WORKERS);
                pool.set_max_workers(max_workers).unwrap();
                let stats = pool.stats();
                assert!((1..=max_workers).contains(&stats.allowed_workers), "{stats:?}");
                assert!(stats.total_workers <= WORKERS, "{stats:?}");
                thread::park_timeout(Duration::from_millis(2));
            }
            pool.set_max_workers(WORKERS).unwrap();
        });
        for number in 0..UNITS {
            pool.enqueue(NewUnit::new(format!("u{number}")).max_retries(1_000_000), "go").unwrap();
        }
        let completion = pool.wait_for_completion_timeout(LONG);
        is_over.store(true, Ordering::Relaxed);
        changing.join().unwrap();
        assert_eq!(completion, Completion::Done, "WORKCREW_SEED={seed}: {:?}", pool.stats());
    });
    let history = pool.adaptations();
    assert!(history.windows(2).all(|pair| pair[0].to == pair[1].from), "{history:?}");
    let refusals = history.iter().filter(|change| matches!(change.reason, AdaptationReason::Refused(_))).count();
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    println!("{refusals} cuts among {} changes, {} attempts", history.len(), stats.attempts);
    assert_eq!((stats.completed, stats.failed, stats.lost), (UNITS as u64, 0, 0), "{stats:?}");
    assert_eq!(provider.answered.load(Ordering::SeqCst), UNITS, "nothing was done twice");
    assert!(provider.asked_at_most.load(Ordering::SeqCst) <= WORKERS);
    let all: Vec<_> = (0..UNITS).map(|number| (job, format!("u{number}"))).collect();
    assert_eq!(repository.counts(job).unwrap().of(UnitStatus::Completed), UNITS as u64);
    let verification = Verify::new().acknowledged(all.clone()).submitted(all).settled().run(repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}
