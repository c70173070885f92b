//! Sessions under load: many who bring units of the same sessions in all ways and modes, on workers that execute several at a time, also
//! while those crash, hang, wear out, rest and come and go.
//!
//! What each unit is and does is chosen by a seed that is printed; `WORKCREW_SEED` repeats the choice, though not the interleaving.

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::never;
use workcrew::audit::verify::Verify;
use workcrew::repository::By;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::unit::Change;
use workcrew::{
    Affinity, Archive, Call, CancelToken, Completion, Event, ExecuteError, JobId, MemoryRepository, NewJob, NewUnit,
    PoolStats, Refusal, Repository, RetryPolicy, Scaling, Stop, UnitHandle, UnitStatus, WorkPool, WorkPoolBuilder,
    WorkResult,
};

use crate::support::{self, Random, Up as _};

const LONG: Duration = Duration::from_secs(60);
/// Who makes no progress for so long has stopped for good.
const STANDSTILL: Duration = Duration::from_secs(30);
const THREADS: usize = 64;
const WORKERS: usize = 8;
const CAPACITY: usize = 4;
const SESSIONS: usize = 24;
const MODES: [Affinity; 3] = [Affinity::Hint, Affinity::StrictQueue, Affinity::StrictFailFast];
const KILL_GRACE: Duration = Duration::from_millis(10);

#[test]
fn sessions_keep_their_worker_and_their_order_in_memory() {
    // 001-F41, 001-F42, 001-F44, 001-F45
    Crowd::new(Random::seed(), 30, Weather::calm()).run(&MemoryRepository::new());
}

#[test]
fn sessions_keep_their_worker_and_their_order_in_sqlite() {
    let folder = support::folder();
    let repository = SqliteOptions::new().open(folder.path().join("sessions.db")).unwrap();
    Crowd::new(Random::seed(), 15, Weather::calm()).run(&repository);
}

#[test]
fn sessions_keep_their_worker_and_their_order_though_workers_come_and_go_in_memory() {
    let seed = Random::seed();
    for weather in Weather::storms(seed) {
        Crowd::new(seed, 20, weather).run(&MemoryRepository::new());
    }
}

#[test]
fn sessions_keep_their_worker_and_their_order_though_workers_come_and_go_in_sqlite() {
    let (seed, folder) = (Random::seed(), support::folder());
    for (number, weather) in Weather::storms(seed).into_iter().enumerate() {
        let repository = SqliteOptions::new().open(folder.path().join(format!("storm{number}.db"))).unwrap();
        Crowd::new(seed, 6, weather).run(&repository);
    }
}

/// What happens to workers.
#[derive(Clone, Copy, Debug)]
struct Weather {
    is_stormy: bool,
    scaling: Scaling,
    taint: Duration,
    max_units: Option<u64>,
}

impl Weather {
    fn calm() -> Weather {
        Weather { is_stormy: false, scaling: Scaling::OnDemand, taint: Duration::ZERO, max_units: None }
    }

    /// One for each way in which workers come to be, the rest by chance.
    fn storms(seed: u64) -> Vec<Weather> {
        let mut random = Random::new(seed);
        let threshold = Scaling::Threshold { queued: 3, idle: Duration::from_millis(1) };
        [Scaling::OnDemand, Scaling::Fixed, threshold]
            .into_iter()
            .map(|scaling| Weather {
                is_stormy: true,
                scaling,
                taint: Duration::from_millis(random.below(2) as u64 * 2),
                max_units: (random.below(2) == 0).then(|| 5 + random.below(20) as u64),
            })
            .collect()
    }
}

/// How a unit is brought.
#[derive(Clone, Copy, Debug)]
enum Way {
    Enqueue,
    WaitAndSubmit,
    Permit,
    Bare,
}

/// How an attempt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Well,
    Fail,
    Panic,
    Broken,
    Hang,
}

/// What a unit is, and what becomes of its attempts; after those all is well.
#[derive(Clone, Debug)]
struct Plan {
    session: Option<usize>,
    mode: Affinity,
    way: Way,
    ends: Vec<End>,
    pause: Duration,
    is_brought_twice: bool,
}

impl Plan {
    fn new(random: &mut Random, is_stormy: bool) -> Plan {
        let mut end = || match random.below(20) {
            _ if !is_stormy => End::Well,
            0..12 => End::Well,
            12..15 => End::Fail,
            15 | 16 => End::Panic,
            17 | 18 => End::Broken,
            _ => End::Hang,
        };
        let ends = (0..3).map(|_| end()).collect();
        Plan {
            session: (random.below(6) > 0).then(|| random.below(SESSIONS)),
            mode: MODES[random.below(MODES.len())],
            way: [Way::Enqueue, Way::WaitAndSubmit, Way::Permit, Way::Bare][random.below(4)],
            ends,
            pause: Duration::from_micros(if random.below(4) == 0 { random.below(500) as u64 } else { 0 }),
            is_brought_twice: random.below(12) == 0,
        }
    }

    fn is_strict(&self) -> bool {
        self.session.is_some() && self.mode != Affinity::Hint
    }

    fn may_hang(&self) -> bool {
        self.ends.contains(&End::Hang)
    }

    fn unit(&self, id: &str) -> NewUnit {
        let mut unit = NewUnit::new(id).affinity(self.mode).max_retries(90);
        if let Some(session) = self.session {
            // Larger priorities go first, but all of a session have the same.
            unit = unit.affinity_key(format!("s{session}")).priority((session % 3) as i32);
        }
        if self.may_hang() { unit.timeout(Duration::from_millis(30)) } else { unit }
    }
}

/// What runs at this moment, each on its worker. Who was asked to stop may have been given up, and does not count.
#[derive(Debug, Default)]
struct Running(Vec<Execution>);

#[derive(Debug)]
struct Execution {
    id: String,
    attempt_number: u32,
    worker: String,
    /// If that is a strict one.
    session: Option<usize>,
    cancel: CancelToken,
}

/// What the executor and the observer see.
#[derive(Debug, Default)]
struct Seen {
    running: Mutex<Running>,
    /// How often each unit was executed to a good end.
    done: Mutex<HashMap<String, usize>>,
    /// The units in the order in which they began for the first time.
    begun: Mutex<Vec<String>>,
    /// What must not be.
    faults: Mutex<Vec<String>>,
}

impl Seen {
    fn fault(&self, fault: String) {
        self.faults.lock().unwrap().push(fault);
    }

    fn enter(&self, plan: &Plan, call: &Call<'_>) {
        let (id, worker) = (call.unit().id.to_string(), call.worker_id().to_string());
        let session = plan.session.filter(|_| plan.is_strict());
        let mut running = self.running.lock().unwrap();
        let others = || running.0.iter().filter(|other| !other.cancel.is_cancelled());
        if others().filter(|other| other.worker == worker).count() >= CAPACITY {
            self.fault(format!("{worker} has too much in hand with {id}"));
        }
        if others().any(|other| other.id == id) {
            self.fault(format!("{id} is executed twice at the same time"));
        }
        let mut of_session = others().filter(|other| session.is_some() && other.session == session);
        if let Some(other) = of_session.find(|other| other.worker != worker) {
            self.fault(format!("{id} of session {session:?} is on {worker} while {} is on {}", other.id, other.worker));
        }
        let (attempt_number, cancel) = (call.attempt_number(), call.cancel_token().clone());
        running.0.push(Execution { id, attempt_number, worker, session, cancel });
    }

    fn leave(&self, call: &Call<'_>) {
        // One that was given up may leave after the next, which can be on the same worker.
        let is_meant = |execution: &Execution| {
            execution.id == call.unit().id.as_str() && execution.attempt_number == call.attempt_number()
        };
        let mut running = self.running.lock().unwrap();
        let place = running.0.iter().position(is_meant).unwrap();
        running.0.remove(place);
    }

    fn execute(&self, plan: &Plan, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.enter(plan, call);
        let end = plan.ends.get(call.attempt_number() as usize - 1).copied().unwrap_or(End::Well);
        match end {
            End::Hang => drop(call.cancel_token().wait_timeout(LONG)),
            _ if plan.pause.is_zero() => thread::yield_now(),
            _ => thread::park_timeout(plan.pause),
        }
        // Before anybody can know that it is over.
        self.leave(call);
        match end {
            End::Well => {
                *self.done.lock().unwrap().entry(call.unit().id.to_string()).or_default() += 1;
                Ok(WorkResult::empty())
            }
            End::Fail => Err(ExecuteError::retry("not yet")),
            End::Broken => Err(ExecuteError::broken("struck by lightning")),
            // Unlike `panic!` it tells nobody.
            End::Panic => std::panic::resume_unwind(Box::new("struck by lightning")),
            End::Hang => {
                let _ = never::<()>().recv_timeout(3 * KILL_GRACE);
                Err(ExecuteError::retry("it comes back at last"))
            }
        }
    }
}

/// Sixty-four threads and what each of them brings.
struct Crowd {
    name: String,
    weather: Weather,
    plans: Arc<Vec<Vec<Plan>>>,
    seen: Arc<Seen>,
    seed: u64,
}

fn id_of(thread: usize, number: usize) -> String {
    format!("{thread}-{number}")
}

fn plan_of<'a>(plans: &'a [Vec<Plan>], id: &str) -> &'a Plan {
    let (thread, number) = id.split_once('-').unwrap();
    &plans[thread.parse::<usize>().unwrap()][number.parse::<usize>().unwrap()]
}

impl Crowd {
    fn new(seed: u64, each: usize, weather: Weather) -> Crowd {
        let mut random = Random::new(seed);
        let mut plans_of_thread = || (0..each).map(|_| Plan::new(&mut random, weather.is_stormy)).collect();
        let plans = (0..THREADS).map(|_| plans_of_thread()).collect();
        let name = format!("WORKCREW_SEED={seed}, {weather:?}");
        Crowd { name, weather, plans: Arc::new(plans), seen: Arc::default(), seed }
    }

    fn units(&self) -> usize {
        self.plans.iter().map(Vec::len).sum()
    }

    fn run<R: Repository + Clone + Into<Arc<dyn Repository>>>(&self, repository: &R) {
        let job = repository.create_job(&NewJob::named("sessions")).unwrap().id;
        let pool = self.pool(job, repository.clone()).up();
        self.bring_all(&pool);
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        let faults = self.seen.faults.lock().unwrap();
        assert!(faults.is_empty(), "{}: {} faults: {:?}", self.name, faults.len(), &faults[..faults.len().min(5)]);
        self.check_units(&stats, repository, job);
        self.check_begun();
        self.check_claims(repository, job);
        self.check_workers(repository, job);
    }

    fn pool(&self, job: JobId, repository: impl Into<Arc<dyn Repository>>) -> WorkPoolBuilder {
        let (plans, seen) = (Arc::clone(&self.plans), Arc::clone(&self.seen));
        let execute = move |call: &Call<'_>| seen.execute(plan_of(&plans, call.unit().id.as_str()), call);
        let seen = Arc::clone(&self.seen);
        let observe = move |event: &Event<'_>| {
            if let Event::AttemptStarted { unit_id, .. } = event {
                seen.begun.lock().unwrap().push(unit_id.to_string());
            }
        };
        let pool = WorkPool::builder(job, execute, repository)
            .max_workers(WORKERS)
            .worker_capacity(CAPACITY as u32)
            .max_queue_size(self.units())
            .scaling(self.weather.scaling)
            .taint_for(self.weather.taint)
            .startup_batch_delay(Duration::ZERO)
            .kill_grace(KILL_GRACE)
            .retry(RetryPolicy::immediate())
            .observer(observe);
        match self.weather.max_units {
            Some(units) => pool.max_units_per_worker(units),
            None => pool,
        }
    }

    /// Brings all units while somebody counts, and somebody disturbs.
    fn bring_all(&self, pool: &WorkPool) {
        let (is_brought, is_over, brought) = (AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
        thread::scope(|threads| {
            let counting = threads.spawn(|| self.count(pool, &is_over, &brought));
            let disturbing = threads.spawn(|| self.disturb(pool, &is_brought));
            let bring = |thread: usize| {
                let bring = |number| self.bring(pool, thread, number, &brought);
                (0..self.plans[thread].len()).map(bring).collect::<Vec<_>>()
            };
            let bringing: Vec<_> = (0..THREADS).map(|thread| threads.spawn(move || bring(thread))).collect();
            let handles: Vec<_> = bringing.into_iter().map(thread::ScopedJoinHandle::join).collect();
            is_brought.store(true, Ordering::Relaxed);
            let disturbed = disturbing.join();
            let completion = pool.wait_for_completion_timeout(LONG);
            is_over.store(true, Ordering::Relaxed);
            assert!(counting.join().is_ok() && disturbed.is_ok(), "{}", self.name);
            assert_eq!(completion, Completion::Done, "{}: {:?}", self.name, pool.stats());
            for handle in handles.into_iter().flat_map(|handles| handles.expect("what it brought was taken")) {
                assert!(handle.is_done(), "{}: {}", self.name, handle.id());
            }
        });
    }

    /// Brings a unit, again and again until it is taken.
    fn bring(&self, pool: &WorkPool, thread: usize, number: usize, brought: &AtomicUsize) -> UnitHandle {
        let (id, plan) = (id_of(thread, number), &self.plans[thread][number]);
        let bring = || match plan.way {
            Way::Enqueue => pool.enqueue(plan.unit(&id), "go"),
            Way::Bare => pool.submit_work_unit(plan.unit(&id), "go"),
            Way::WaitAndSubmit => {
                assert!(pool.wait_for_available_slot_timeout(LONG), "{}", self.name);
                pool.submit_work_unit(plan.unit(&id), "go")
            }
            Way::Permit => pool.acquire_slot_timeout(LONG).unwrap().submit(plan.unit(&id), "go"),
        };
        loop {
            let error = match bring() {
                Ok(handle) => {
                    brought.fetch_add(1, Ordering::Relaxed);
                    if plan.is_brought_twice {
                        // Refused or not, it is the same unit.
                        drop(pool.enqueue(plan.unit(&id), "go"));
                    }
                    return handle;
                }
                Err(error) => error,
            };
            assert_eq!(error.unit.id, id, "{}", self.name);
            let may_be = match error.reason {
                Refusal::WorkerBusy { ref key, .. } => {
                    plan.mode == Affinity::StrictFailFast && plan.session.is_some_and(|s| *key == format!("s{s}"))
                }
                Refusal::AtCapacity { .. } => matches!(plan.way, Way::Bare),
                Refusal::Held { .. } => self.weather.is_stormy,
                _ => false,
            };
            assert!(may_be, "{}: {plan:?}: {error:?}", self.name);
            thread::park_timeout(Duration::from_micros(200));
        }
    }

    /// Sees that what holds at every moment does, and that something happens.
    fn count(&self, pool: &WorkPool, is_over: &AtomicBool, brought: &AtomicUsize) {
        let (mut last, mut since) = ((0, 0), Instant::now());
        while !is_over.load(Ordering::Relaxed) {
            let stats = pool.stats();
            let PoolStats { pending, running, completed, failed, cancelled, left_pending, lost, .. } = stats;
            let sum = pending + running + completed + failed + cancelled + left_pending + lost;
            assert_eq!(stats.accepted, sum, "{}: {stats:?}", self.name);
            for worker in stats.workers.values().chain(&pool.workers()) {
                assert!(worker.load <= worker.capacity, "{}: {worker:?}", self.name);
                assert!(worker.capacity as usize <= CAPACITY, "{}: {worker:?}", self.name);
                assert!(worker.unit_ids.len() <= worker.load as usize, "{}: {worker:?}", self.name);
            }
            assert!(stats.load <= WORKERS * CAPACITY, "{}: {stats:?}", self.name);
            let now = (brought.load(Ordering::Relaxed), stats.attempts);
            if now != last {
                (last, since) = (now, Instant::now());
            }
            if since.elapsed() > STANDSTILL {
                // Not by a macro, whose output the harness would keep for itself.
                let _ = writeln!(std::io::stderr(), "{}: nothing happens: {stats:#?}", self.name);
                std::process::abort();
            }
            thread::park_timeout(Duration::from_millis(1));
        }
    }

    /// Changes the number of workers, cancels, holds; until all has been brought.
    fn disturb(&self, pool: &WorkPool, is_brought: &AtomicBool) {
        let mut random = Random::new(self.seed);
        while self.weather.is_stormy && !is_brought.load(Ordering::Relaxed) {
            match random.below(8) {
                0..3 => pool.set_max_workers(2 + random.below(WORKERS - 1)).unwrap(),
                3 => pool.pause(),
                4 | 5 => pool.resume(),
                _ => {
                    let id = id_of(random.below(THREADS), random.below(self.plans[0].len()));
                    // It may have yet to be brought.
                    drop(pool.cancel(&id, By::whom("chance")));
                }
            }
            thread::park_timeout(Duration::from_millis(2));
        }
        pool.resume();
        pool.set_max_workers(WORKERS).unwrap();
    }

    fn check_units(&self, stats: &PoolStats, archive: &dyn Archive, job: JobId) {
        assert_eq!(stats.accepted, self.units() as u64, "{}: {stats:?}", self.name);
        assert_eq!((stats.failed, stats.lost, stats.left_pending), (0, 0, 0), "{}: {stats:?}", self.name);
        let done = self.seen.done.lock().unwrap();
        for (id, plan) in self.all() {
            let (status, done) = (archive.unit(job, &id).unwrap().status, done.get(&id).copied().unwrap_or_default());
            let is_right = match status {
                UnitStatus::Completed if plan.may_hang() => done >= 1,
                UnitStatus::Completed => done == 1,
                status => status == UnitStatus::Cancelled && self.weather.is_stormy,
            };
            assert!(is_right, "{}: {id} is {status}, and was executed to its end {done} times", self.name);
        }
    }

    fn all(&self) -> impl Iterator<Item = (String, &Plan)> {
        let of_thread = |(thread, plans): (usize, &'_ Vec<Plan>)| -> Vec<(String, &Plan)> {
            let plans = self.plans[thread].iter().enumerate().take(plans.len());
            plans.map(|(number, plan)| (id_of(thread, number), plan)).collect()
        };
        self.plans.iter().enumerate().flat_map(of_thread)
    }

    /// What a thread brought to a strict session comes in that order.
    fn check_order<'a>(&self, what: &str, ids: impl Iterator<Item = &'a str>) {
        let mut first: HashMap<&str, usize> = HashMap::new();
        for (place, id) in ids.enumerate() {
            first.entry(id).or_insert(place);
        }
        let mut last: BTreeMap<(usize, usize), (usize, String)> = BTreeMap::new();
        for (id, plan) in self.all() {
            let Some(session) = plan.session.filter(|_| plan.is_strict()) else { continue };
            // One that was cancelled may never have come.
            let Some(&place) = first.get(id.as_str()) else { continue };
            let thread = id.split_once('-').unwrap().0.parse().unwrap();
            if let Some((before, other)) = last.insert((thread, session), (place, id.clone())) {
                assert!(before < place, "{}: {what} {id} before {other} of session {session}", self.name);
            }
        }
    }

    fn check_begun(&self) {
        self.check_order("began", self.seen.begun.lock().unwrap().iter().map(String::as_str));
    }

    fn check_claims(&self, archive: &dyn Archive, job: JobId) {
        let by_key: HashMap<_, _> = self.all().map(|(id, _)| (archive.unit(job, &id).unwrap().key, id)).collect();
        let (mut claims, mut after) = (Vec::new(), 0);
        loop {
            let page = archive.journal(after, 1_000).unwrap().items;
            let Some(last) = page.last() else { break };
            after = last.seq;
            let of_page = page.iter().filter(|entry| entry.change == Change::Claim);
            claims.extend(of_page.map(|entry| by_key[&entry.unit].as_str()));
        }
        self.check_order("was claimed", claims.into_iter());
    }

    fn check_workers(&self, archive: &dyn Archive, job: JobId) {
        let owners = archive.owners().unwrap();
        let workers: Vec<_> = owners.iter().flat_map(|owner| archive.workers(owner.id, "", 1_000).unwrap()).collect();
        for worker in &workers {
            assert!(worker.status.is_ended(), "{}: {worker:?}", self.name);
            assert_eq!((worker.load, worker.current_unit), (0, None), "{}: {worker:?}", self.name);
        }
        let ids: Vec<_> = self.all().map(|(id, _)| (job, id)).collect();
        let verification = Verify::new().acknowledged(ids.clone()).submitted(ids).settled().run(archive).unwrap();
        assert!(verification.is_clean(), "{}: {verification}", self.name);
    }
}
