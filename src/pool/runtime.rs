//! Where workers live: in the pool's own threads, or wherever a runtime of yours keeps them.

use std::time::Duration;

use crate::executor::{Call, CancelToken, ExecuteError, Executor, WorkResult};
use crate::worker::WorkerId;

/// Where the workers of a pool live. A pool decides when a worker starts, what it executes and when it ends; a runtime does
/// it. Every method has a default, which calls the executor in the pool's own threads.
///
/// The pool has a thread for each worker in any case, or for each unit that it executes at a time, on which it calls the runtime
/// and waits. So a runtime that keeps processes speaks to them as an executor would, in plain blocking calls:
///
/// ```
/// use std::collections::HashMap;
/// use std::io::{self, BufRead, BufReader, Write};
/// use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
/// use std::sync::{Arc, Mutex};
///
/// use workcrew::{Call, CancelToken, ExecuteError, Executor, Stop, WorkPool, WorkResult, WorkerId, WorkerRuntime};
/// # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
///
/// /// A process for each worker. It echoes what it is told.
/// #[derive(Default)]
/// struct Processes(Mutex<HashMap<WorkerId, Process>>);
///
/// struct Process {
///     child: Child,
///     // Apart from the child, so that it can be killed while somebody waits for its answer.
///     pipes: Arc<Mutex<(ChildStdin, BufReader<ChildStdout>)>>,
/// }
///
/// impl Process {
///     fn start() -> io::Result<Process> {
///         let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
///         let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
///         Ok(Process { child, pipes: Arc::new(Mutex::new((stdin, BufReader::new(stdout)))) })
///     }
///
///     fn end(mut self) {
///         let _ = self.child.kill();
///         let _ = self.child.wait();
///     }
/// }
///
/// impl WorkerRuntime for Processes {
///     fn start_worker(&self, _: &dyn Executor, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
///         let process = Process::start()?;
///         let mut processes = self.0.lock().unwrap();
///         if cancel.is_cancelled() {
///             // Its end may have been told already.
///             process.end();
///             return Err(ExecuteError::retry("asked to give up"));
///         }
///         // It may have had one before.
///         if let Some(before) = processes.insert(worker_id.clone(), process) {
///             before.end();
///         }
///         Ok(())
///     }
///
///     fn execute(&self, _: &dyn Executor, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
///         let pipes = self.0.lock().unwrap().get(call.worker_id()).map(|process| Arc::clone(&process.pipes));
///         let pipes = pipes.ok_or_else(|| ExecuteError::broken("the worker has ended"))?;
///         let (stdin, stdout) = &mut *pipes.lock().unwrap();
///         let mut answer = String::new();
///         match writeln!(stdin, "{}", call.prompt()).and_then(|()| stdout.read_line(&mut answer)) {
///             Ok(1..) => Ok(WorkResult::text(answer.trim_end())),
///             Ok(0) => Err(ExecuteError::broken("the process is gone")),
///             Err(error) => Err(ExecuteError::broken("the process is gone").source(error)),
///         }
///     }
///
///     fn end_worker(&self, _: &dyn Executor, worker_id: &WorkerId) {
///         let process = self.0.lock().unwrap().remove(worker_id);
///         if let Some(process) = process {
///             process.end();
///         }
///     }
/// }
///
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("echo"))?;
/// // The executor is what this runtime has no use for.
/// let unused = |_: &Call<'_>| Err(ExecuteError::give_up("units are executed by processes"));
/// let pool = WorkPool::builder(job.id, unused, repository).worker_runtime(Processes::default()).start()?;
/// let unit = pool.enqueue(NewUnit::new("a"), "hello")?.wait()?;
/// assert_eq!(unit.output.as_deref(), Some("hello"));
/// pool.stop(Stop::Drain)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait WorkerRuntime: Send + Sync + 'static {
    /// Brings a worker up: see [`Executor::start_worker`], which it calls.
    ///
    /// # Errors
    ///
    /// If the worker cannot work.
    fn start_worker(
        &self,
        executor: &dyn Executor,
        worker_id: &WorkerId,
        cancel: &CancelToken,
    ) -> Result<(), ExecuteError> {
        executor.start_worker(worker_id, cancel)
    }

    /// Does one attempt, by the worker that the [call](Call::worker_id) names: see [`Executor::execute`], which it calls.
    ///
    /// # Errors
    ///
    /// The error says what should follow. [`ExecuteError::broken`] is for a worker that is gone, and has it replaced.
    fn execute(&self, executor: &dyn Executor, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        executor.execute(call)
    }

    /// How many units a worker can execute at a time: see [`Executor::capacity`], which it calls.
    fn capacity(&self, executor: &dyn Executor, worker_id: &WorkerId) -> Option<u32> {
        executor.capacity(worker_id)
    }

    /// A worker has ended: see [`Executor::end_worker`], which it calls.
    fn end_worker(&self, executor: &dyn Executor, worker_id: &WorkerId) {
        executor.end_worker(worker_id);
    }

    /// The pool has stopped: see [`Executor::pool_stopped`], which it calls.
    fn pool_stopped(&self, executor: &dyn Executor, grace: Duration) {
        executor.pool_stopped(grace);
    }
}

/// Workers are threads of the pool, and nothing else: what a pool has unless told otherwise.
#[derive(Clone, Copy, Debug, Default)]
pub struct Threads;

impl WorkerRuntime for Threads {}
