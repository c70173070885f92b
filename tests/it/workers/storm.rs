//! A storm: ten thousand queries through eight workers, while units are cancelled and workers are killed at random.
//!
//! It rages in a process of its own, which counts what it holds. What is asked and who is struck is chosen by a seed that is printed;
//! `WORKCREW_SEED` repeats the choice, though not the interleaving, and `WORKCREW_STORM_ROUNDS` says how many storms there are.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use workcrew::ipc::ProcessState;
use workcrew::repository::{By, CancelAnswer};
use workcrew::{Stop, UnitHandle, UnitStatus};

use super::*;
use crate::children::{self, Role, say};
use crate::pool_stress::{thread_count, wait_for_thread_count};
use crate::support::Random;

const QUERIES: usize = 10_000;
const WORKERS: usize = 8;

/// So many units run and wait in line at a time.
const WINDOW: usize = 64;

/// A worker that is deaf is not waited for.
const CANCEL_GRACE: Duration = Duration::from_millis(20);

/// By how much more the memory of the host may grow with a thousand queries to processes than with a thousand without any.
const GROWTH_LIMIT_KIB: u64 = 1_024;

/// By how much the memory of a worker may grow from its five hundredth query to its five thousandth.
const WORKER_GROWTH_LIMIT_KIB: u64 = 256;

const CHILD: &str = "workers::storm::child";

#[test]
fn a_storm_of_cancels_and_kills_ends_every_unit_once_and_leaves_nothing_behind() {
    let rounds = std::env::var("WORKCREW_STORM_ROUNDS").map_or(1, |rounds| rounds.parse().unwrap());
    let seed = Random::seed();
    for round in 0..rounds {
        let (folder, seed) = (support::folder(), seed.wrapping_add(round));
        let role = Role::new(CHILD, "storm", folder.path().join("storm")).env("WORKCREW_SEED", seed);
        let (status, lines) = role.start().end();
        lines.iter().for_each(|line| println!("WORKCREW_SEED={seed}: {line}"));
        assert!(status.success(), "WORKCREW_SEED={seed}: {status}");
        let complaints: Vec<_> =
            children::notes(&folder.path().join("storm")).into_iter().filter(|line| is_error(line)).collect();
        assert!(complaints.is_empty(), "WORKCREW_SEED={seed}: {complaints:?}");
    }
}

#[test]
fn a_worker_that_is_asked_thousands_of_times_does_not_grow() {
    let world = World::new();
    let (builder, processes) = world.builder(world.workers("good", calm(&world, 1)));
    let pool = builder.max_workers(1).up();
    let grown_to = |count: usize| {
        let mut window = VecDeque::new();
        let done = processes.list().first().map_or(0, |view| view.queries_processed as usize);
        for number in done..count {
            let prompt = if number % 10 == 0 { "talk" } else { "echo hello" };
            window.push_back(pool.enqueue(NewUnit::new(number.to_string()), prompt).unwrap());
            if window.len() == WINDOW {
                window.pop_front().unwrap().wait_timeout(LONG).unwrap();
            }
        }
        window.into_iter().for_each(|handle| drop(handle.wait_timeout(LONG).unwrap()));
        let views = processes.list();
        assert_eq!((views.len(), views[0].number, views[0].queries_processed), (1, 1, count as u64));
        rss_kib(views[0].process.as_ref().unwrap().pid)
    };
    let (early, late) = (grown_to(500), grown_to(5_000));
    println!("a worker has {early} KiB after 500 queries, {late} KiB after 5000");
    assert!(late <= early + WORKER_GROWTH_LIMIT_KIB, "{early} KiB have become {late} KiB");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
#[ignore = "a process of its own, in which nobody else has threads"]
fn child() {
    if children::role_within(5 * LONG).is_some() {
        children::note_warnings();
        let growth = calm_growth_kib();
        Storm::new(Random::seed()).rage(growth);
    }
}

fn is_error(line: &[String]) -> bool {
    line.starts_with(&["log".to_owned(), "ERROR".to_owned()])
}

/// Workers of whom nobody hears anything.
fn calm(world: &World, max_workers: usize) -> Keep {
    world.keep(max_workers).observer(|_| {})
}

fn rss_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn open_files() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// What a thousand units leave in the memory of this process, most of it in the repository, when they need no other.
fn calm_growth_kib() -> u64 {
    let (world, mut random) = (World::new(), Random::new(0));
    let pool = WorkPool::builder(world.job, worker::good, world.repository.clone()).max_workers(WORKERS).up();
    let mut grown = [0; 3];
    for (part, grown) in grown.iter_mut().enumerate() {
        for number in 0..500 {
            let task = Task::calm(&mut random);
            let id = format!("{part}.{number}");
            pool.enqueue(NewUnit::new(id), task.prompt()).unwrap().wait_timeout(LONG).unwrap();
        }
        *grown = rss_kib(std::process::id());
    }
    pool.stop(Stop::Drain).unwrap();
    // The first of them also bring in what is there once.
    grown[2].saturating_sub(grown[0])
}

/// What a unit is to do.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Task {
    Echo,
    Talk,
    Flood,
    Nap,
    /// Ends only when it is cancelled.
    Wait,
    /// Ends only with its process.
    Hang,
}

impl Task {
    fn calm(random: &mut Random) -> Task {
        match random.below(100) {
            0..70 => Task::Echo,
            70..85 => Task::Talk,
            85..90 => Task::Flood,
            _ => Task::Nap,
        }
    }

    fn any(random: &mut Random) -> Task {
        match random.below(200) {
            0 => Task::Hang,
            1..4 => Task::Wait,
            _ => Task::calm(random),
        }
    }

    fn prompt(self) -> &'static str {
        match self {
            Task::Echo => "echo hello",
            Task::Talk => "talk",
            Task::Flood => "flood 20",
            Task::Nap => "nap 2",
            Task::Wait => "wait",
            Task::Hang => "hang",
        }
    }

    /// Whether it goes on until somebody cancels it.
    fn has_no_end(self) -> bool {
        matches!(self, Task::Wait | Task::Hang)
    }
}

/// What is told of processes, each of which has one life: it starts, comes up, works, ends.
#[derive(Default)]
struct Watch {
    alive: Mutex<BTreeMap<u64, &'static str>>,
    complaints: Mutex<Vec<String>>,
    started: AtomicU64,
    came_up: AtomicU64,
    crashed: AtomicU64,
}

impl Watch {
    fn hear(&self, event: &ProcessEvent<'_>) {
        let mut alive = self.alive.lock().unwrap();
        let (was, is_allowed) = match *event {
            ProcessEvent::Starting { number, .. } => {
                self.started.fetch_add(1, Ordering::SeqCst);
                let was = alive.insert(number, "starting");
                (was, was.is_none() && alive.len() <= WORKERS)
            }
            ProcessEvent::Ready { number } => {
                self.came_up.fetch_add(1, Ordering::SeqCst);
                let was = alive.insert(number, "ready");
                (was, was == Some("starting"))
            }
            ProcessEvent::Busy { number, .. } => {
                let was = alive.insert(number, "busy");
                (was, was == Some("ready"))
            }
            ProcessEvent::Idle { number } => {
                let was = alive.insert(number, "ready");
                (was, was == Some("busy"))
            }
            ProcessEvent::ShuttingDown { number, .. } => {
                let was = alive.insert(number, "ending");
                (was, matches!(was, Some("starting" | "ready" | "busy")))
            }
            ProcessEvent::Ended { number, .. } => {
                let was = alive.remove(&number);
                // One that ends in order before it has read its query was told to be busy.
                (was, matches!(was, Some("ending" | "ready" | "busy")))
            }
            ProcessEvent::Crashed { number, .. } => {
                self.crashed.fetch_add(1, Ordering::SeqCst);
                let was = alive.remove(&number);
                (was, matches!(was, Some("starting" | "ready" | "busy")))
            }
            ProcessEvent::Query { number, .. } => {
                let was = alive.get(&number).copied();
                (was, was == Some("busy"))
            }
            _ => (None, true),
        };
        if !is_allowed {
            self.complaints.lock().unwrap().push(format!("{event} after {was:?} with {alive:?}"));
        }
    }
}

/// How often each unit was told to have ended, and how.
type Told = Arc<Mutex<BTreeMap<String, Vec<UnitStatus>>>>;

/// A unit that has not ended, as far as anybody knows.
struct Open {
    handle: UnitHandle,
    task: Task,
    /// What was said when it was cancelled first.
    answer: Option<CancelAnswer>,
}

struct Storm {
    name: String,
    random: Random,
    world: World,
    watch: Arc<Watch>,
    told: Told,
    cancels: BTreeMap<&'static str, usize>,
    kills: BTreeMap<ProcessState, usize>,
    /// How many had come up when one was killed that had not.
    came_up: Option<u64>,
    ends: BTreeMap<UnitStatus, u64>,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        Storm {
            name: format!("WORKCREW_SEED={seed}"),
            random: Random::new(seed),
            world: World::new(),
            watch: Arc::default(),
            told: Told::default(),
            cancels: BTreeMap::new(),
            kills: BTreeMap::new(),
            came_up: None,
            ends: BTreeMap::new(),
        }
    }

    fn rage(mut self, calm_growth_kib: u64) {
        let (files, threads, began) = (open_files(), thread_count(), Instant::now());
        let (pool, processes) = self.pool();
        let mut open = VecDeque::new();
        let mut grown_kib = 0;
        for number in 0..QUERIES {
            if number == QUERIES / 2 {
                grown_kib = rss_kib(std::process::id());
            }
            open.push_back(self.enqueue(&pool, number));
            match self.random.below(100) {
                0..10 => {
                    let one = self.random.below(open.len());
                    self.cancel(&pool, &mut open[one]);
                }
                10..12 => self.kill(&processes.list()),
                _ => {}
            }
            if open.len() == WINDOW {
                self.see_end(&pool, open.pop_front().unwrap());
            }
        }
        open.into_iter().for_each(|one| self.see_end(&pool, one));
        let grown_kib = (rss_kib(std::process::id()).saturating_sub(grown_kib)) * 1_000 / (QUERIES as u64 / 2);
        let report = pool.stop(Stop::Drain).unwrap();
        assert_eq!(processes.list(), [], "{}", self.name);
        drop((pool, processes));
        wait_for_thread_count(threads);
        assert_eq!(open_files(), files, "{}: nothing is left open", self.name);
        self.tell("ended", &self.ends);
        self.tell("cancelled", &self.cancels);
        self.tell("killed", &self.kills);
        let Watch { started, came_up, crashed, .. } = &*self.watch;
        say(format!("started {started:?}, came up {came_up:?}, crashed {crashed:?}; {report}"));
        say(format!("a thousand queries leave {grown_kib} KiB, without processes {calm_growth_kib} KiB"));
        say(format!("{:.1?} in all", began.elapsed()));
        let name = &self.name;
        assert!(self.kills.values().sum::<usize>() > QUERIES / 500, "{name}: {:?} were killed", self.kills);
        assert!(self.kills.contains_key(&ProcessState::Busy), "{name}: {:?} were killed", self.kills);
        assert!(self.cancels.contains_key("while they ran"), "{name}: {:?} were cancelled", self.cancels);
        assert!(crashed.load(Ordering::SeqCst) > 0, "{name}: none has crashed");
        self.check_records();
        assert!(grown_kib <= calm_growth_kib + GROWTH_LIMIT_KIB, "{}: {grown_kib} KiB", self.name);
    }

    fn tell<K: Display, V: Display>(&self, what: &str, counts: &BTreeMap<K, V>) {
        let counts: Vec<_> = counts.iter().map(|(key, count)| format!("{key} {count}")).collect();
        say(format!("{what}: {}", counts.join(", ")));
    }

    fn pool(&self) -> (WorkPool, Processes) {
        let watch = Arc::clone(&self.watch);
        let keep = self.world.keep(WORKERS).cancel_grace(CANCEL_GRACE).observer(move |event| watch.hear(event));
        let (builder, processes) = self.world.builder(self.world.workers("good", keep));
        let tell = |told: &Told| {
            let told = Arc::clone(told);
            move |unit: &WorkUnit| told.lock().unwrap().entry(unit.id.to_string()).or_default().push(unit.status)
        };
        let (completed, failed, cancelled) = (tell(&self.told), tell(&self.told), tell(&self.told));
        let builder = builder
            .max_workers(WORKERS)
            .on_unit_complete(move |unit, _| completed(unit))
            .on_unit_failed(move |unit, _| failed(unit))
            .on_unit_cancelled(cancelled);
        (builder.up(), processes)
    }

    fn enqueue(&mut self, pool: &WorkPool, number: usize) -> Open {
        let task = Task::any(&mut self.random);
        let mut unit = NewUnit::new(number.to_string());
        // Some have a process of their own, for which another has to go.
        if self.random.below(200) == 0 {
            unit = unit.affinity_key(format!("key {}", self.random.below(4)));
        }
        Open { handle: pool.enqueue(unit, task.prompt()).unwrap(), task, answer: None }
    }

    fn cancel(&mut self, pool: &WorkPool, one: &mut Open) {
        let answer = pool.cancel(one.handle.id(), By::whom("the storm")).unwrap();
        let name = match answer {
            CancelAnswer::Cancelled => "while they waited",
            CancelAnswer::Requested => "while they ran",
            CancelAnswer::AlreadyRequested => "again",
            CancelAnswer::AlreadyEnded(_) => "too late",
        };
        *self.cancels.entry(name).or_default() += 1;
        one.answer.get_or_insert(answer);
    }

    /// Kills any of the workers, those included that have yet to come up: but no two of those without one that did, for many that
    /// do not come up in a row are taken for a sign that none will.
    fn kill(&mut self, views: &[ProcessView]) {
        assert!(views.len() <= WORKERS, "{}: {views:?}", self.name);
        if views.is_empty() {
            return;
        }
        let view = &views[self.random.below(views.len())];
        let came_up = self.watch.came_up.load(Ordering::SeqCst);
        if view.state == ProcessState::Starting && self.came_up.replace(came_up) == Some(came_up) {
            return;
        }
        // Its number may be somebody else's by now.
        let Some(process) = view.process.as_ref().filter(|process| process.is_provably_alive(&process.boot_id)) else {
            return;
        };
        let pid = Pid::from_raw(process.pid.try_into().unwrap()).unwrap();
        if kill_process(pid, Signal::KILL).is_ok() {
            *self.kills.entry(view.state).or_default() += 1;
        }
    }

    /// Waits for the end of a unit, and checks that it is the one that was promised.
    fn see_end(&mut self, pool: &WorkPool, mut one: Open) {
        if one.task.has_no_end() {
            self.cancel(pool, &mut one);
        }
        let id = one.handle.id();
        let ended = one.handle.wait_timeout(LONG / 2);
        let status = ended.unwrap_or_else(|error| panic!("{}: {id}: {error}: {:?}", self.name, pool.stats())).status;
        let is_promised = match one.answer {
            Some(CancelAnswer::Cancelled) => status == UnitStatus::Cancelled,
            Some(CancelAnswer::AlreadyEnded(before)) => status == before,
            Some(_) => status.is_terminal(),
            None => matches!(status, UnitStatus::Completed | UnitStatus::Failed),
        };
        assert!(is_promised, "{}: {id} is {status} after {:?}", self.name, one.answer);
        *self.ends.entry(status).or_default() += 1;
    }

    fn check_records(&self) {
        let (name, told) = (&self.name, self.told.lock().unwrap());
        assert_eq!(*self.watch.complaints.lock().unwrap(), [""; 0], "{name}");
        assert_eq!(*self.watch.alive.lock().unwrap(), BTreeMap::new(), "{name}: all have come to an end");
        for id in (0..QUERIES).map(|number| number.to_string()) {
            let status = self.world.repository.unit(self.world.job, &id).unwrap().status;
            assert_eq!(told.get(&id), Some(&vec![status]), "{name}: {id} is told to have ended once");
            let attempts = self.world.attempts(&id);
            for attempt in &attempts {
                assert!(attempt.outcome.is_some() && attempt.ended_at.is_some(), "{name}: {attempt:?}");
                let kind = attempt.failure.as_ref().map_or("", |failure| failure.kind.as_str());
                let is_expected = matches!(kind, "" | "worker_crashed" | "worker_not_ready" | "cancelled" | "executor");
                assert!(is_expected, "{name}: {attempt:?}");
            }
        }
        assert_eq!(told.len(), QUERIES, "{name}");
        self.world.assert_clean();
    }
}
