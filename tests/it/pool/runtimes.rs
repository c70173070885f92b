//! Where workers live: in processes of a test's own, and that whoever was brought up hears of its end, once.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use workcrew::executor::CancelReason;
use workcrew::testing::Gate;
use workcrew::{
    Call, CancelToken, CapacityStrategy, Event, ExecuteError, Executor, NewUnit, PoolPhase, Scaling, Stop, Threads,
    UnitStatus, WaitError, WorkPoolBuilder, WorkResult, WorkerId, WorkerRuntime,
};

use super::stage::stage_and_starts;
use super::{World, assert_quiet, next, stage, until};
use crate::support::Up as _;

const GRACE: Duration = Duration::from_secs(60);
const STOPS: [Stop; 3] = [Stop::Drain, Stop::Cancel { grace: GRACE }, Stop::Now];

/// Workers that are processes. Each answers a line with its own number and that line.
#[derive(Clone, Default)]
struct Processes {
    living: Arc<Mutex<HashMap<WorkerId, Process>>>,
    /// The numbers of all there ever were, by the worker that they were started for.
    ever: Arc<Mutex<Vec<(String, u32)>>>,
}

struct Process {
    child: Child,
    /// Apart from the child, which can be killed while somebody waits for its answer.
    pipes: Arc<Mutex<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Process {
    fn start() -> std::io::Result<Process> {
        let echo = r#"while read -r line; do echo "$$ $line"; done"#;
        let mut child =
            Command::new("/bin/sh").args(["-c", echo]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Ok(Process { child, pipes: Arc::new(Mutex::new((stdin, BufReader::new(stdout)))) })
    }

    fn end(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Processes {
    /// Kills a worker's process, and waits until it is gone.
    fn kill(&self, worker: &str) {
        let mut living = self.living.lock().unwrap();
        let process = living.get_mut(&WorkerId::new(worker).unwrap()).unwrap();
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    fn ever(&self) -> Vec<(String, u32)> {
        self.ever.lock().unwrap().clone()
    }

    /// No process is left, not even as a zombie.
    fn are_gone(&self) -> bool {
        let is_there = |number: &u32| Path::new(&format!("/proc/{number}")).exists();
        self.living.lock().unwrap().is_empty() && !self.ever().iter().any(|(_, number)| is_there(number))
    }
}

impl WorkerRuntime for Processes {
    fn start_worker(&self, _: &dyn Executor, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
        let process = Process::start()?;
        self.ever.lock().unwrap().push((worker_id.to_string(), process.child.id()));
        let mut living = self.living.lock().unwrap();
        if cancel.is_cancelled() {
            process.end();
            return Err(ExecuteError::retry("asked to give up"));
        }
        if let Some(before) = living.insert(worker_id.clone(), process) {
            before.end();
        }
        Ok(())
    }

    fn execute(&self, _: &dyn Executor, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let pipes = self.living.lock().unwrap().get(call.worker_id()).map(|process| Arc::clone(&process.pipes));
        let pipes = pipes.ok_or_else(|| ExecuteError::broken("the worker has ended"))?;
        let (stdin, stdout) = &mut *pipes.lock().unwrap();
        let mut answer = String::new();
        match writeln!(stdin, "{}", call.prompt()).and_then(|()| stdout.read_line(&mut answer)) {
            Ok(0) => Err(ExecuteError::broken("it is gone")),
            Ok(_) => Ok(WorkResult::text(answer.trim_end())),
            Err(error) => Err(ExecuteError::broken("it is gone").source(error)),
        }
    }

    fn end_worker(&self, _: &dyn Executor, worker_id: &WorkerId) {
        let process = self.living.lock().unwrap().remove(worker_id);
        if let Some(process) = process {
            process.end();
        }
    }
}

/// A pool whose workers are processes, and which has no use for its executor.
fn processes(world: &World) -> (WorkPoolBuilder, Processes) {
    let unused = |_: &Call<'_>| Err(ExecuteError::give_up("nobody executes here"));
    let processes = Processes::default();
    (world.pool(unused).worker_runtime(processes.clone()), processes)
}

#[test]
fn workers_can_be_processes() {
    // 001-F90, 001-F92
    for stop in STOPS {
        let world = World::new();
        let (builder, processes) = processes(&world);
        let pool = builder.scaling(Scaling::Fixed).max_workers(3).up();
        assert_eq!(processes.ever().len(), 3, "each has its own, before its first unit");
        let handles: Vec<_> =
            (0..20).map(|number| pool.enqueue(NewUnit::new(number.to_string()), number.to_string()).unwrap()).collect();
        for handle in handles {
            let unit = handle.wait().unwrap();
            let answer = unit.output.as_deref().unwrap();
            let (number, line) = answer.split_once(' ').unwrap();
            assert_eq!(line, unit.id.as_str());
            let attempt = world.attempts(line).pop().unwrap();
            let its = processes.ever().into_iter().find(|(worker, _)| *worker == attempt.worker_id.to_string());
            assert_eq!(its.unwrap().1.to_string(), number, "a worker's units are executed by its process");
        }
        assert!(pool.stop(stop).unwrap().is_final);
        if stop == Stop::Now {
            // It waits for nobody.
            until(|| processes.are_gone());
        }
        assert!(processes.are_gone(), "{stop}");
        assert_eq!(processes.ever().len(), 3);
        world.assert_clean();
    }
}

#[test]
fn a_process_that_dies_is_a_crash_and_the_next_worker_has_its_own() {
    // 001-F90, 001-F65
    let world = World::new();
    let (builder, processes) = processes(&world);
    let pool = builder.max_workers(1).up();
    processes.kill("w1");
    let unit = pool.enqueue(NewUnit::new("a").max_retries(1), "hello").unwrap().wait().unwrap();
    let failure = world.attempts("a")[0].failure.clone().unwrap();
    assert!(failure.to_string().starts_with("executor: it is gone"), "{failure}");
    let [(first, old), (second, new)] = processes.ever().try_into().unwrap();
    assert_eq!((first.as_str(), second.as_str()), ("w1", "w2"));
    assert_ne!(old, new);
    assert_eq!(unit.output, Some(format!("{new} hello")));
    pool.stop(Stop::Drain).unwrap();
    assert!(processes.are_gone());
    world.assert_clean_after_crashes();
}

#[test]
fn a_process_that_hangs_is_killed_when_its_worker_is_left_behind() {
    // 001-F90
    let world = World::new();
    let (builder, processes) = processes(&world);
    let pool = builder.max_workers(1).up();
    let (_, number) = processes.ever().pop().unwrap();
    Command::new("kill").args(["-STOP", &number.to_string()]).status().unwrap();
    pool.enqueue(NewUnit::new("a"), "hello").unwrap();
    until(|| pool.stats().busy_workers == 1);
    pool.stop(Stop::Now).unwrap();
    until(|| processes.are_gone());
    // That ends the execution too.
    until(|| pool.stats().abandoned_threads == 0);
    assert_eq!(world.status("a"), UnitStatus::Pending);
    world.assert_clean();
}

/// A runtime that tells of starts and ends: `+w1`, `-w1`. For the rest it is like [`Threads`].
struct Roll {
    tell: Sender<String>,
    /// What it does at the end of a worker before it tells.
    at_end: Box<dyn Fn(&WorkerId) + Send + Sync>,
}

impl WorkerRuntime for Roll {
    fn start_worker(
        &self,
        executor: &dyn Executor,
        worker_id: &WorkerId,
        cancel: &CancelToken,
    ) -> Result<(), ExecuteError> {
        let _ = self.tell.send(format!("+{worker_id}"));
        Threads.start_worker(executor, worker_id, cancel)
    }

    fn end_worker(&self, executor: &dyn Executor, worker_id: &WorkerId) {
        Threads.end_worker(executor, worker_id);
        (self.at_end)(worker_id);
        let _ = self.tell.send(format!("-{worker_id}"));
    }
}

fn calls_roll(builder: WorkPoolBuilder) -> (WorkPoolBuilder, Receiver<String>) {
    calls_roll_and(builder, |_| {})
}

fn calls_roll_and(
    builder: WorkPoolBuilder,
    at_end: impl Fn(&WorkerId) + Send + Sync + 'static,
) -> (WorkPoolBuilder, Receiver<String>) {
    let (tell, roll) = unbounded();
    (builder.worker_runtime(Roll { tell, at_end: Box::new(at_end) }), roll)
}

/// What the roll says that nobody has heard yet, in the order of the alphabet: workers start and end side by side.
fn rest(roll: &Receiver<String>) -> Vec<String> {
    let mut rest: Vec<String> = roll.try_iter().collect();
    rest.sort();
    rest
}

#[test]
fn who_is_idle_when_the_pool_stops_ends_once() {
    // 001-F90
    for stop in STOPS {
        let world = World::new();
        let (part, stage) = stage();
        let (builder, roll) = calls_roll(world.pool(part).scaling(Scaling::Fixed).max_workers(2));
        let pool = builder.up();
        assert_eq!(rest(&roll), ["+w1", "+w2"]);
        pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
        drop(stage.next());
        pool.wait_for_completion();
        assert_quiet(&roll);
        pool.stop(stop).unwrap();
        if stop == Stop::Now {
            until(|| pool.stats().abandoned_threads == 0);
        }
        assert_eq!(rest(&roll), ["-w1", "-w2"], "{stop}");
        world.assert_clean();
    }
}

#[test]
fn who_is_worn_ends_while_the_pool_goes_on() {
    // 001-F90
    let world = World::new();
    let (part, stage) = stage();
    let (builder, roll) = calls_roll(world.pool(part).scaling(Scaling::Fixed).max_workers(1).max_units_per_worker(1));
    let pool = builder.up();
    assert_eq!(next(&roll), "+w1");
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap().wait_for(&stage);
    let mut told = [next(&roll), next(&roll)];
    told.sort();
    assert_eq!(told, ["+w2", "-w1"]);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(rest(&roll), ["-w2"]);
    world.assert_clean();
}

/// Lets a unit succeed, and waits for that.
trait WaitFor {
    fn wait_for(self, stage: &super::Stage);
}

impl WaitFor for workcrew::UnitHandle {
    fn wait_for(self, stage: &super::Stage) {
        drop(stage.next());
        self.wait().unwrap();
    }
}

#[test]
fn who_crashed_ends_once_or_at_the_end_of_its_last_life() {
    // 001-F90, 001-F62
    for taint_for in [Duration::ZERO, Duration::from_secs(10)] {
        let world = World::new();
        let (part, stage) = stage();
        let (builder, roll) = calls_roll(world.pool(part).scaling(Scaling::Fixed).max_workers(1).taint_for(taint_for));
        let pool = builder.up();
        assert_eq!(next(&roll), "+w1");
        let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
        stage.next().end(|_| panic!("it fell"));
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
        if taint_for.is_zero() {
            let mut told = [next(&roll), next(&roll)];
            told.sort();
            assert_eq!(told, ["+w2", "-w1"]);
        } else {
            until(|| pool.workers()[0].unit_id.is_none());
            assert_quiet(&roll);
            world.clock.advance(taint_for);
            assert_eq!(next(&roll), "+w1", "it is the same, brought up again");
        }
        until(|| pool.stats().idle_workers == 1);
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(rest(&roll), [if taint_for.is_zero() { "-w2" } else { "-w1" }]);
        world.assert_clean_after_crashes();
    }
}

#[test]
fn who_does_not_come_up_ends_too() {
    // 001-F90, 001-F75
    let world = World::new();
    let (part, _stage, starts) = stage_and_starts();
    let (builder, roll) = calls_roll(world.pool(part).scaling(Scaling::Fixed).max_workers(2));
    let pool = builder.start().unwrap();
    let (failing, well) = (next(&starts), next(&starts));
    assert_eq!(rest(&roll), ["+w1", "+w2"]);
    let failed = failing.worker.clone();
    failing.panic("no");
    assert_eq!(next(&roll), format!("-{failed}"));
    drop(well);
    pool.await_init_complete().unwrap();
    assert_quiet(&roll);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(rest(&roll).len(), 1);
    world.assert_clean();
}

#[test]
fn who_does_not_come_up_in_time_ends_at_once_and_not_again_later() {
    // 001-F90, 001-F34
    let world = World::new();
    let (part, _stage, starts) = stage_and_starts();
    let (builder, roll) = calls_roll(world.pool(part).max_workers(1));
    let pool = builder.start().unwrap();
    let late = next(&starts);
    assert_eq!(next(&roll), "+w1");
    world.clock.advance(Duration::from_secs(30));
    assert_eq!(next(&roll), "-w1");
    assert_eq!(late.cancel.reason(), Some(CancelReason::TimedOut), "it has heard by then");
    drop(late);
    until(|| pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
    assert!(roll.is_empty());
    world.assert_clean();
}

#[test]
fn whose_thread_is_left_behind_is_brought_up_again_and_ends_with_the_pool() {
    // 001-F90
    let world = World::new();
    let (part, stage) = stage();
    let (builder, roll) = calls_roll(world.pool(part).max_workers(1).timeout(Duration::from_secs(5)));
    let pool = builder.up();
    assert_eq!(next(&roll), "+w1");
    let handle = pool.submit_work_unit(NewUnit::new("a").max_retries(0), "go").unwrap();
    let deaf = stage.next();
    world.clock.advance(Duration::from_secs(5));
    assert_eq!(deaf.asked(), CancelReason::TimedOut);
    world.clock.advance(Duration::from_millis(1_500));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Failed);
    assert_eq!(next(&roll), "+w1", "by another thread");
    until(|| pool.stats().idle_workers == 1);
    drop(deaf);
    until(|| pool.stats().abandoned_threads == 0);
    assert_quiet(&roll);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(rest(&roll), ["-w1"]);
    world.assert_clean();
}

#[test]
fn who_is_left_behind_by_a_stop_ends_once_whether_it_executes_or_comes_up() {
    // 001-F90, 001-F26
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (builder, roll) = calls_roll(world.pool(part).min_workers(0).max_workers(2));
    let pool = builder.up();
    pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    drop(next(&starts));
    let deaf = stage.next();
    pool.submit_work_unit(NewUnit::new("b"), "go").unwrap();
    let upcoming = next(&starts);
    assert_eq!(rest(&roll), ["+w1", "+w2"]);
    pool.stop(Stop::Now).unwrap();
    let mut told = [next(&roll), next(&roll)];
    told.sort();
    assert_eq!(told, ["-w1", "-w2"]);
    assert_eq!(upcoming.cancel.reason(), Some(CancelReason::Shutdown));
    drop((deaf, upcoming));
    until(|| pool.stats().abandoned_threads == 0);
    assert!(roll.is_empty());
    world.assert_clean_after_crashes();
}

#[test]
fn who_comes_up_for_a_unit_that_is_cancelled_hears_of_it_and_ends_once() {
    // 001-F90, 001-F84
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (builder, roll) = calls_roll(world.pool(part).min_workers(0).max_workers(1));
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let upcoming = next(&starts);
    assert_eq!(next(&roll), "+w1");
    handle.cancel(workcrew::repository::By::whom("ada")).unwrap();
    world.clock.advance(Duration::from_millis(1_500));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Cancelled);
    assert_eq!(next(&roll), "-w1");
    assert_eq!(upcoming.cancel.reason(), Some(CancelReason::Requested));
    drop(upcoming);
    until(|| pool.stats().abandoned_threads == 0);
    pool.stop(Stop::Drain).unwrap();
    assert!(roll.is_empty() && stage.is_empty());
    world.assert_clean_after_crashes();
}

#[test]
fn a_unit_whose_worker_cannot_come_up_for_it_costs_that_worker_its_end() {
    // 001-F90, 001-F84
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (builder, roll) = calls_roll(world.pool(part).min_workers(0).max_workers(1));
    let pool = builder.up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    next(&starts).fail(ExecuteError::retry("no"));
    drop(next(&starts));
    drop(stage.next());
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(rest(&roll), ["+w1", "+w2", "-w1", "-w2"]);
    world.assert_clean_after_crashes();
}

#[test]
fn a_panic_at_the_end_of_a_worker_harms_nothing() {
    // 001-F90
    let world = World::new();
    let (part, stage) = stage();
    let (tell, ended) = unbounded();
    let builder = world.pool(part).scaling(Scaling::Fixed).max_workers(1).max_units_per_worker(1);
    let builder = builder.observer(move |event: &Event<'_>| {
        if let Event::WorkerEnded { worker_id, .. } = event {
            tell.send(worker_id.to_string()).unwrap();
        }
    });
    let (builder, roll) = calls_roll_and(builder, |_| panic!("no end"));
    let pool = builder.up();
    for (id, worker) in [("a", "w1"), ("b", "w2")] {
        pool.enqueue(NewUnit::new(id), "go").unwrap().wait_for(&stage);
        assert_eq!(next(&ended), worker);
    }
    until(|| pool.stats().idle_workers == 1);
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    assert_eq!(rest(&roll), ["+w1", "+w2", "+w3"]);
    world.assert_clean();
}

#[test]
fn a_stop_waits_for_the_end_of_a_worker_but_not_for_ever() {
    // 001-F90
    for stop in STOPS {
        let world = World::new();
        let (part, stage) = stage();
        let gate = Gate::closed();
        let (builder, roll) = calls_roll_and(world.pool(part).max_workers(1), {
            let gate = gate.clone();
            move |_| gate.pass()
        });
        let pool = builder.up();
        assert_eq!(next(&roll), "+w1");
        thread::scope(|threads| {
            let stopping = threads.spawn(|| pool.stop(stop).unwrap());
            gate.wait_for(1);
            if stop != Stop::Now {
                assert!(!pool.stop_timeout(Stop::Drain, Duration::from_millis(10)).unwrap().is_final, "{stop}");
            }
            match stop {
                Stop::Drain => gate.open(),
                Stop::Cancel { .. } => world.clock.advance(GRACE),
                Stop::Now => {}
            }
            let summary = stopping.join().unwrap();
            assert!(summary.is_final, "{stop}");
            assert_eq!(summary.stats.abandoned_threads, usize::from(stop != Stop::Drain), "{stop}");
        });
        gate.open();
        until(|| pool.stats().abandoned_threads == 0);
        assert_eq!(rest(&roll), ["-w1"], "{stop}");
        drop(pool);
        until(|| stage.is_gone());
        world.assert_clean();
    }
}

/// Has no workers to give.
struct Refusing(Sender<String>);

impl WorkerRuntime for Refusing {
    fn start_worker(&self, _: &dyn Executor, _: &WorkerId, _: &CancelToken) -> Result<(), ExecuteError> {
        Err(ExecuteError::give_up("there is no such program").kind("missing"))
    }

    fn end_worker(&self, _: &dyn Executor, worker_id: &WorkerId) {
        self.0.send(worker_id.to_string()).unwrap();
    }
}

#[test]
fn a_runtime_that_starts_nobody_fails_the_pool() {
    // 001-F90, 001-F22
    let world = World::new();
    let (part, stage, starts) = stage_and_starts();
    let (tell, ends) = unbounded();
    let pool = world.pool(part).worker_runtime(Refusing(tell)).start().unwrap();
    let reason = "no_workers_started: worker w1: missing: there is no such program";
    assert!(matches!(pool.await_ready(), Err(WaitError::InitFailed(why)) if why == reason));
    assert_eq!(pool.stats().phase, PoolPhase::InitFailed);
    assert_eq!(next(&ends), "w1", "it was asked for");
    assert!(pool.stop(Stop::Drain).unwrap().is_final);
    assert!(ends.is_empty() && starts.is_empty() && stage.is_empty(), "the executor has no part in it");
    world.assert_clean();
}

#[test]
fn what_a_runtime_does_wrong_is_what_an_executor_does_wrong() {
    // 001-F90, 001-F62
    struct Falling;
    impl WorkerRuntime for Falling {
        fn execute(&self, _: &dyn Executor, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
            panic!("{} fell", call.worker_id());
        }
    }
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).worker_runtime(Falling).max_workers(1).up();
    let unit = pool.enqueue(NewUnit::new("a").max_retries(1), "go").unwrap().wait().unwrap();
    assert_eq!(unit.failure.unwrap().to_string(), "panic: w2 fell");
    assert_eq!(world.attempts("a")[0].failure.clone().unwrap().to_string(), "panic: w1 fell");
    pool.stop(Stop::Drain).unwrap();
    assert!(stage.is_empty());
    world.assert_clean_after_crashes();
}

#[test]
fn unless_told_otherwise_an_executor_does_it_all_in_the_threads_of_the_pool() {
    // 001-F90
    struct Telling(Sender<(String, String)>);
    impl Telling {
        fn tell(&self, what: &str, worker_id: &WorkerId) {
            let thread = thread::current().name().unwrap_or_default().to_owned();
            self.0.send((format!("{what} {worker_id}"), thread)).unwrap();
        }
    }
    impl Executor for Telling {
        fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
            self.tell("execute", call.worker_id());
            Ok(WorkResult::empty())
        }

        fn start_worker(&self, worker_id: &WorkerId, _: &CancelToken) -> Result<(), ExecuteError> {
            self.tell("start", worker_id);
            Ok(())
        }

        fn capacity(&self, worker_id: &WorkerId) -> Option<u32> {
            (worker_id.as_str() == "w7").then_some(7)
        }

        fn end_worker(&self, worker_id: &WorkerId) {
            self.tell("end", worker_id);
        }
    }
    let (tell, told) = unbounded();
    let executor = Telling(tell.clone());
    let capacities = ["w1", "w7"].map(|worker| Threads.capacity(&executor, &WorkerId::new(worker).unwrap()));
    assert_eq!(capacities, [None, Some(7)]);
    let world = World::new();
    let pool = world.pool(executor).max_workers(1).up();
    pool.enqueue(NewUnit::new("a"), "go").unwrap().wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    let told: Vec<_> = told.try_iter().collect();
    let told: Vec<_> = told.iter().map(|(what, thread)| (what.as_str(), thread.as_str())).collect();
    let wanted = [("start w1", "workcrew-w1"), ("execute w1", "workcrew-w1"), ("end w1", "workcrew-reporter")];
    assert_eq!(told, wanted);
    world.assert_clean();
}

#[test]
fn a_runtime_can_say_how_many_units_a_worker_executes() {
    // 001-F12, 001-F66, 001-F90
    struct Wide;
    impl WorkerRuntime for Wide {
        fn capacity(&self, _: &dyn Executor, _: &WorkerId) -> Option<u32> {
            Some(3)
        }
    }
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).worker_runtime(Wide).capacity_strategy(CapacityStrategy::Hybrid);
    let pool = builder.max_workers(1).up();
    for id in ["a", "b", "c", "d"] {
        pool.enqueue(NewUnit::new(id), "go").unwrap();
    }
    let calls = stage.next_many(3);
    assert_eq!((pool.workers()[0].load, pool.workers()[0].capacity, pool.stats().queue_size), (3, 3, 1));
    drop(calls);
    drop(stage.next());
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
