//! What executes a unit, seen as the handler of a run: an [`Executor`], mostly a closure.
//!
//! There is no handler by default: whoever builds a pool says what executes its units (003-F53). It is given the unit with its id and its
//! workspace directory, and says whether it succeeded (003-F54).

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use workcrew::{
    Archive, Call, ExecuteError, Executor, NewUnit, Outcome, Repository, Stop, UnitStatus, WaitError, WorkResult,
    Worker, WorkerStatus,
};

use super::pulling::{pulling, unit};
use super::{World, next, tells_outcomes};
use crate::support::Up as _;

impl World {
    /// The only worker of the only pool, as the records have it.
    fn worker(&self) -> Worker {
        let owner = self.repository.owners().unwrap()[0].id;
        let mut workers = self.repository.workers(owner, "", 10).unwrap();
        assert_eq!(workers.len(), 1);
        workers.remove(0)
    }

    /// What the records say of the only worker: its status, and the unit that it has.
    fn working(&self) -> (WorkerStatus, bool) {
        let worker = self.worker();
        (worker.status, worker.current_unit.is_some())
    }
}

/// A handler that goes through a gateway: one elsewhere if there is an address, else one of its own.
struct Gateway {
    address: Option<SocketAddr>,
}

/// What a gateway makes of a request, wherever it is.
fn serve(request: &str) -> String {
    request.to_uppercase()
}

impl Gateway {
    fn ask(&self, request: &str) -> std::io::Result<String> {
        let Some(address) = self.address else { return Ok(serve(request)) };
        let mut stream = TcpStream::connect(address)?;
        writeln!(stream, "{request}")?;
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer)?;
        Ok(answer.trim_end().to_owned())
    }
}

impl Executor for Gateway {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let unit = call.unit();
        let folder = unit.options.workspace_dir.as_deref().unwrap_or("nowhere");
        // One session for each run (003-F57).
        call.session(format!("worker_{}", unit.id));
        let unreachable = |error: std::io::Error| ExecuteError::give_up(error.to_string()).kind("gateway");
        self.ask(&format!("{} in {folder}: {}", unit.id, call.prompt())).map(WorkResult::text).map_err(unreachable)
    }
}

/// A gateway that answers so many requests, one after the other.
fn gateway(requests: usize) -> (SocketAddr, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let serving = thread::spawn(move || {
        for stream in listener.incoming().take(requests) {
            let mut stream = BufReader::new(stream.unwrap());
            let mut request = String::new();
            stream.read_line(&mut request).unwrap();
            writeln!(stream.get_mut(), "{}", serve(request.trim_end())).unwrap();
        }
    });
    (address, serving)
}

#[test]
fn a_handler_runs_through_a_gateway_elsewhere_or_in_the_process() {
    // 003-F13, 003-F53, 003-F54, 003-F55, 003-F56, 003-F57
    let (address, serving) = gateway(1);
    for address in [None, Some(address)] {
        let world = World::new();
        let pool = world.pool(Gateway { address }).up();
        world.queue(&[unit("run-7").workspace_dir("/srv/run-7").max_iterations(20)]);
        pulling(&pool, || ());
        let unit = world.unit("run-7");
        assert_eq!(unit.output.as_deref(), Some("RUN-7 IN /SRV/RUN-7: GO"));
        assert_eq!(unit.session_id.as_deref(), Some("worker_run-7"));
        assert_eq!((unit.prompt.as_deref(), unit.options.max_iterations), (Some("go"), Some(20)), "it is on the run");
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
    serving.join().unwrap();
}

#[test]
fn a_gateway_that_cannot_be_reached_fails_the_run_and_the_worker_goes_on() {
    // 003-F22, 003-F66, 003-F67
    let (address, serving) = gateway(1);
    TcpStream::connect(address).unwrap().write_all(b"\n").unwrap();
    serving.join().unwrap();
    let world = World::new();
    let gateway = Gateway { address: Some(address) };
    let executor = move |call: &Call<'_>| match call.unit().id.as_str() {
        "elsewhere" => gateway.execute(call),
        _ => Gateway { address: None }.execute(call),
    };
    let (builder, outcomes) = tells_outcomes(world.pool(executor).max_workers(1), &world);
    let pool = builder.up();
    let failed = pool.enqueue(NewUnit::new("elsewhere"), "go").unwrap().wait().unwrap();
    assert_eq!((failed.status, failed.failure.unwrap().kind.as_str()), (UnitStatus::Failed, "gateway"));
    assert_eq!(next(&outcomes), "failed elsewhere: FAILED");
    assert_eq!(world.working(), (WorkerStatus::Ready, false), "it waits for the next");
    assert_eq!(pool.enqueue(NewUnit::new("here"), "go").unwrap().wait().unwrap().status, UnitStatus::Completed);
    let worker = world.worker();
    assert_eq!((worker.units_completed, worker.units_failed), (1, 1), "it is the same worker");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_worker_is_idle_then_processing_then_idle_again_and_stopped_in_the_end() {
    // 003-F20, 003-F21, 003-F22: idle is READY, processing BUSY, stopped TERMINATED.
    let world = World::new();
    let (pool, stage) = world.staged(1);
    assert_eq!(world.working(), (WorkerStatus::Ready, false));
    for number in 0..2 {
        let handle = pool.enqueue(NewUnit::new(format!("{number}")), "go").unwrap();
        let call = stage.next();
        assert_eq!(world.working(), (WorkerStatus::Busy, true));
        call.succeed("done");
        handle.wait().unwrap();
        assert_eq!(world.working(), (WorkerStatus::Ready, false));
    }
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.working(), (WorkerStatus::Terminated, false));
    world.assert_clean();
}

#[test]
fn a_worker_that_loses_its_lease_is_idle_again_and_goes_on() {
    // 003-F23, 003-F32
    let world = World::new();
    let (part, stage) = super::stage();
    let (faulty, builder) = world.faulty_pool(part);
    let minute = Duration::from_secs(60);
    let pool = builder.max_workers(1).lease(minute).heartbeat(Duration::from_secs(25)).up();
    let handle = pool.enqueue(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    // The machine slept for longer than the lease, and somebody else was awake before this pool.
    let gate = workcrew::testing::Gate::closed();
    faulty.on(workcrew::testing::Verb::Renew, workcrew::testing::Fault::Gate(gate.clone()));
    world.clock.advance(minute);
    gate.wait_for(1);
    assert_eq!(world.repository.expire(100).unwrap().len(), 1);
    assert_eq!(world.working(), (WorkerStatus::Ready, false), "the records have it at once");
    gate.open();
    assert_eq!(call.asked(), workcrew::executor::CancelReason::LeaseLost);
    call.succeed("too late");
    assert!(matches!(handle.wait(), Err(WaitError::Lost)));
    assert_eq!(world.attempts("a")[0].outcome, Some(Outcome::Lost));
    let next = pool.enqueue(NewUnit::new("b"), "go").unwrap();
    let call = stage.next();
    assert_eq!((call.id.as_str(), world.working()), ("b", (WorkerStatus::Busy, true)));
    call.succeed("done");
    assert_eq!(next.wait().unwrap().worker_id, Some(world.worker().id));
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}
