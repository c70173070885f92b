//! A storm of crashes, and a queue ten thousand long: what a pool counts afterwards is what there is.
//!
//! Which executions crash is chosen by a seed that is printed; `WORKCREW_SEED` repeats the choice, though not the interleaving.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use workcrew::audit::verify::Verify;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::{
    Archive, Call, Completion, ExecuteError, JobId, MemoryRepository, NewJob, NewUnit, PoolStats, Repository,
    RetryPolicy, Scaling, Stop, UnitStatus, WorkPool, WorkResult, Worker, WorkerStatus,
};

use crate::children::{self, Role, say};
use crate::support::{self, Random, Up as _};

const LONG: Duration = Duration::from_secs(60);
const WORKERS: usize = 8;
const UNITS: usize = 200;
const CRASHES: usize = 30;

/// How often a unit crashes at most: it has an attempt left then.
const CRASHES_EACH: usize = 2;

const SCALINGS: [Scaling; 4] = [
    Scaling::OnDemand,
    Scaling::Fixed,
    Scaling::Threshold { queued: 3, idle: Duration::from_secs(600) },
    Scaling::ADAPTIVE,
];

#[test]
fn a_storm_of_crashes_leaves_exact_counts_in_memory() {
    // 000-F1, 000-F34, 001-F10, 001-F52, 001-F64, 001-F83, 004-F42
    let seed = Random::seed();
    for scaling in SCALINGS {
        Storm::new(seed, scaling, Duration::ZERO).rage(&MemoryRepository::new());
    }
}

#[test]
fn a_storm_of_crashes_leaves_exact_counts_in_sqlite() {
    let (seed, folder) = (Random::seed(), support::folder());
    for (number, scaling) in SCALINGS.into_iter().enumerate() {
        let repository = SqliteOptions::new().open(folder.path().join(format!("storm{number}.db"))).unwrap();
        Storm::new(seed, scaling, Duration::ZERO).rage(&repository);
    }
}

#[test]
fn a_storm_after_which_workers_rest_leaves_exact_counts_in_memory() {
    // 001-F62, 001-F63
    let seed = Random::seed();
    for scaling in SCALINGS {
        Storm::new(seed, scaling, Duration::from_millis(2)).rage(&MemoryRepository::new());
    }
}

#[test]
fn a_storm_after_which_workers_rest_leaves_exact_counts_in_sqlite() {
    let (seed, folder) = (Random::seed(), support::folder());
    for (number, scaling) in SCALINGS.into_iter().enumerate() {
        let repository = SqliteOptions::new().open(folder.path().join(format!("rest{number}.db"))).unwrap();
        Storm::new(seed, scaling, Duration::from_millis(2)).rage(&repository);
    }
}

/// How a crash looks.
#[derive(Clone, Copy, Debug)]
enum Crash {
    Panic,
    Broken,
}

/// Two hundred units, and what happens to them.
struct Storm {
    name: String,
    scaling: Scaling,
    taint: Duration,
    weather: Arc<Weather>,
}

/// The executor, and what it sees.
#[derive(Default)]
struct Weather {
    /// The crashes of each unit, the first of them in its first attempt.
    crashes: BTreeMap<String, Vec<Crash>>,
    executions: Mutex<BTreeMap<String, usize>>,
    running: AtomicUsize,
    running_at_most: AtomicUsize,
}

impl Weather {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.running_at_most.fetch_max(running, Ordering::SeqCst);
        let id = call.unit().id.as_str();
        *self.executions.lock().unwrap().entry(id.to_owned()).or_default() += 1;
        let crash = self.crashes.get(id).and_then(|crashes| crashes.get(call.attempt_number() as usize - 1));
        thread::yield_now();
        self.running.fetch_sub(1, Ordering::SeqCst);
        match crash {
            None => Ok(WorkResult::empty()),
            Some(Crash::Broken) => Err(ExecuteError::broken("struck by lightning")),
            // Unlike `panic!` it tells nobody.
            Some(Crash::Panic) => std::panic::resume_unwind(Box::new("struck by lightning")),
        }
    }
}

impl Storm {
    fn new(seed: u64, scaling: Scaling, taint: Duration) -> Storm {
        let (mut random, mut weather) = (Random::new(seed), Weather::default());
        while weather.crashes.values().map(Vec::len).sum::<usize>() < CRASHES {
            let crashes = weather.crashes.entry(name(random.below(UNITS))).or_default();
            if crashes.len() < CRASHES_EACH {
                crashes.push(if random.below(2) == 0 { Crash::Panic } else { Crash::Broken });
            }
        }
        let name = format!("WORKCREW_SEED={seed}, {scaling:?}, taint {taint:?}");
        Storm { name, scaling, taint, weather: Arc::new(weather) }
    }

    fn rage<R: Repository + Clone + Into<Arc<dyn Repository>>>(&self, repository: &R) {
        let job = repository.create_job(&NewJob::named("storm")).unwrap().id;
        let weather = Arc::clone(&self.weather);
        let pool = WorkPool::builder(job, move |call: &Call<'_>| weather.execute(call), repository.clone())
            .scaling(self.scaling)
            .taint_for(self.taint)
            .max_workers(WORKERS)
            .max_queue_size(UNITS)
            .startup_batch_delay(Duration::ZERO)
            .retry(RetryPolicy::immediate())
            .up();
        self.bring_all(&pool);
        self.check_calm(&pool, repository);
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        self.check_end(&stats, repository, job);
    }

    /// Brings all units, in all ways at the same time, while somebody counts.
    fn bring_all(&self, pool: &WorkPool) {
        const WAYS: usize = 4;
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            let counting = threads.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    self.check_balance(&pool.stats());
                }
            });
            let bring = |way: usize| {
                for number in (way..UNITS).step_by(WAYS) {
                    let unit = NewUnit::new(name(number));
                    let brought = match way {
                        0 => pool.acquire_slot().unwrap().submit(unit, "go"),
                        1 => {
                            assert!(pool.wait_for_available_slot());
                            pool.submit_work_unit(unit, "go")
                        }
                        _ => pool.enqueue(unit, "go"),
                    };
                    brought.unwrap_or_else(|error| panic!("{}: {error}", self.name));
                }
            };
            let bringing: Vec<_> = (0..WAYS).map(|way| threads.spawn(move || bring(way))).collect();
            let brought: Vec<_> = bringing.into_iter().map(thread::ScopedJoinHandle::join).collect();
            let completion = pool.wait_for_completion_timeout(LONG);
            is_over.store(true, Ordering::Relaxed);
            counting.join().unwrap();
            assert!(brought.iter().all(Result::is_ok), "{}", self.name);
            assert_eq!(completion, Completion::Done, "{}: {:?}", self.name, pool.stats());
        });
    }

    /// What holds at every moment.
    fn check_balance(&self, stats: &PoolStats) {
        let PoolStats { pending, running, completed, failed, cancelled, left_pending, lost, .. } = *stats;
        let sum = pending + running + completed + failed + cancelled + left_pending + lost;
        assert_eq!(stats.accepted, sum, "{}: {stats:?}", self.name);
        assert_eq!(stats.workers.len(), stats.total_workers, "{}: {stats:?}", self.name);
        assert!(stats.total_workers <= WORKERS, "{}: {stats:?}", self.name);
        let doing = stats.starting_workers + stats.idle_workers + stats.busy_workers + stats.tainted_workers;
        assert!(doing <= stats.total_workers, "{}: {stats:?}", self.name);
    }

    /// When the storm is over, and those who crashed are replaced or rested, everything is where it should be.
    fn check_calm(&self, pool: &WorkPool, archive: &dyn Archive) {
        let is_calm = |stats: &PoolStats| {
            let is_whole = self.scaling != Scaling::Fixed || stats.total_workers == WORKERS;
            is_whole && stats.idle_workers == stats.total_workers
        };
        let began = Instant::now();
        while !is_calm(&pool.stats()) {
            assert!(began.elapsed() < LONG, "{}: it never became calm: {:?}", self.name, pool.stats());
            thread::park_timeout(Duration::from_millis(1));
        }
        let stats = pool.stats();
        let empty = [stats.busy_workers, stats.starting_workers, stats.tainted_workers, stats.queue_size];
        assert_eq!((empty, stats.reserved_slots, stats.slot_waiters), ([0; 4], 0, 0), "{}: {stats:?}", self.name);
        assert!(stats.workers.values().all(|worker| worker.unit_id.is_none()), "{}: {stats:?}", self.name);
        // Those that there are, and no others, are alive in the records.
        let alive: BTreeSet<_> = workers(archive).into_iter().filter(|worker| !worker.status.is_ended()).collect_ids();
        assert_eq!(alive, stats.workers.keys().map(ToString::to_string).collect(), "{}", self.name);
    }

    fn check_end(&self, stats: &PoolStats, archive: &dyn Archive, job: JobId) {
        let name = &self.name;
        let counts = (stats.accepted, stats.completed, stats.attempts, stats.retried, stats.errors);
        let (units, crashes) = (UNITS as u64, CRASHES as u64);
        assert_eq!(counts, (units, units, units + crashes, crashes, crashes), "{name}: {stats:?}");
        assert_eq!((stats.total_workers, stats.workers.len(), stats.queue_size), (0, 0, 0), "{name}: {stats:?}");
        assert!(self.weather.running_at_most.load(Ordering::SeqCst) <= WORKERS, "{name}");
        let executions = self.weather.executions.lock().unwrap();
        for id in (0..UNITS).map(super::dispatch_storm::name) {
            let expected = 1 + self.weather.crashes.get(&id).map_or(0, Vec::len);
            let unit = archive.unit(job, &id).unwrap();
            assert_eq!(unit.status, UnitStatus::Completed, "{name}: {id}");
            let told = (executions[&id], archive.attempts(unit.key).unwrap().len());
            assert_eq!(told, (expected, expected), "{name}: {id}");
        }
        let workers = workers(archive);
        assert!(workers.iter().all(|worker| (worker.load, worker.current_unit) == (0, None)), "{name}: {workers:?}");
        let count = |status| workers.iter().filter(|worker| worker.status == status).count();
        // One that rests comes back.
        let dead = if self.taint.is_zero() { CRASHES } else { 0 };
        assert_eq!(count(WorkerStatus::Dead), dead, "{name}: {workers:?}");
        assert_eq!(count(WorkerStatus::Terminated), workers.len() - dead, "{name}: {workers:?}");
        let ids: Vec<_> = (0..UNITS).map(|number| (job, super::dispatch_storm::name(number))).collect();
        let verification = Verify::new().acknowledged(ids.clone()).submitted(ids).settled().run(archive).unwrap();
        assert!(verification.is_clean(), "{name}: {verification}");
    }
}

fn name(number: usize) -> String {
    format!("u{number}")
}

/// All workers that ever were.
fn workers(archive: &dyn Archive) -> Vec<Worker> {
    let owners = archive.owners().unwrap();
    owners.iter().flat_map(|owner| archive.workers(owner.id, "", 1_000).unwrap()).collect()
}

trait CollectIds {
    fn collect_ids(self) -> BTreeSet<String>;
}

impl<I: Iterator<Item = Worker>> CollectIds for I {
    fn collect_ids(self) -> BTreeSet<String> {
        self.map(|worker| worker.id.to_string()).collect()
    }
}

#[test]
fn ten_thousand_units_that_wait_in_line_cost_no_thread() {
    // 001-F46, 001-F47, 001-F67, 001-F68
    let lines = Role::new("dispatch_storm::child", "queue", "/dev/null").start().end_well();
    println!("{lines:?}");
}

#[test]
#[ignore = "a process of its own, in which nobody else has threads"]
fn child() {
    if children::role().is_some() {
        fill_a_queue();
    }
}

/// The threads of this process that belong to a pool.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    let mut names: Vec<String> = names.map(|name| name.trim_end().to_owned()).collect();
    names.retain(|name| name.starts_with("workcrew-"));
    names.sort();
    names
}

fn fill_a_queue() {
    const LINE: usize = 10_000;
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("queue")).unwrap().id;
    // Many who take their time are claimed for together: a claim looks at all that wait in memory.
    let execute = |_: &Call<'_>| {
        thread::park_timeout(Duration::from_millis(5));
        Ok(WorkResult::empty())
    };
    let pool = WorkPool::builder(job, execute, repository).scaling(Scaling::Fixed).max_workers(64).startup_batch(64);
    let pool = pool.max_queue_size(LINE).up();
    pool.pause();
    let before = threads();
    let began = Instant::now();
    for number in 0..LINE {
        pool.enqueue(NewUnit::new(name(number)), "go").unwrap();
    }
    say(format!("{LINE} units in line after {:?}", began.elapsed()));
    assert_eq!(threads(), before);
    assert!(pool.enqueue(NewUnit::new("one too many"), "go").unwrap_err().is_saturated());
    let stats = pool.stats();
    assert_eq!((stats.queue_size, stats.pending, stats.running), (LINE, LINE as u64, 0));
    pool.resume();
    assert_eq!(pool.wait_for_completion_timeout(LONG), Completion::Done);
    say(format!("executed after {:?}", began.elapsed()));
    assert_eq!(threads(), before);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.attempts, stats.queue_size), (LINE as u64, LINE as u64, 0));
}
