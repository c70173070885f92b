//! Worker processes as an executor: the parent's side of the protocol.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::frames::QUERY_LIMIT_BYTES;
use super::message::{ParentMessage, Query as Payload};
use super::query::{Said, WorkerQuery, request_of, said};
use crate::attempt::Provenance;
use crate::clock::milliseconds;
use crate::executor::agent_cli::Setup;
use crate::executor::process::{ChildCommand, Environment, Input, Limits, Line};
use crate::executor::warm::{Control, Dialect, Keep, KeepError, ProcessKey, Processes, Reach, Warm};
use crate::executor::{Call, ExecuteError, Executor, Unavailable, WorkResult, available, kinds};

/// The program of a worker, and what it is started with.
///
/// ```
/// use workcrew::executor::WorkerCommand;
///
/// let worker = WorkerCommand::new("python3").arg("worker.py").env("MODEL", "small").pass_env("API_KEY");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerCommand {
    setup: Setup,
    name: Option<String>,
}

impl WorkerCommand {
    /// This program, which is looked for on the path unless it is named with its folder.
    pub fn new(program: impl Into<OsString>) -> WorkerCommand {
        WorkerCommand { setup: Setup::of(program, Environment::default()), name: None }
    }

    /// One more argument (none). It is taken as it is: no shell looks at it. Arguments are seen by others on the machine.
    pub fn arg(mut self, argument: impl Into<OsString>) -> WorkerCommand {
        self.setup.arguments.push(argument.into());
        self
    }

    /// More arguments (none).
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> WorkerCommand {
        self.setup.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets a variable (none but [`SOCKET_VARIABLE`](super::SOCKET_VARIABLE)). Its value is recorded nowhere.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> WorkerCommand {
        self.setup.environment.set(name, value);
        self
    }

    /// Passes a variable of the host on, or all that begin so if the name ends in `*` (`PATH`, `HOME`, the language, proxies and
    /// certificates, no others).
    pub fn pass_env(mut self, name: impl Into<String>) -> WorkerCommand {
        self.setup.environment.pass(name);
        self
    }

    /// Where it runs for units that name no workspace (where the host does).
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> WorkerCommand {
        self.setup.directory = Some(directory.into());
        self
    }

    /// How long it may say nothing at all while it works on a query (for as long as the attempt may take). It is asked whether it is
    /// well in any case.
    pub fn silence_limit(mut self, limit: Duration) -> WorkerCommand {
        self.setup.limits.silence = Some(limit);
        self
    }

    /// What it is called in the records (the program).
    pub fn name(mut self, name: impl Into<String>) -> WorkerCommand {
        self.name = Some(name.into());
        self
    }
}

/// Executes units by processes that stay alive: each connects, says that it is ready, and is asked one unit after the other. See
/// [`ipc`](super) for what they speak and [`warm`](crate::executor::warm) for how they are kept.
///
/// Units with the same affinity key, or that carry on the same session, are for one process; so are those of a workspace, which is where
/// it runs. All others go to any.
///
/// ```no_run
/// use workcrew::executor::warm::Keep;
/// use workcrew::executor::{WorkerCommand, WorkerProcesses};
/// # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository, WorkPool};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("warm"))?;
///
/// let workers = WorkerProcesses::new(WorkerCommand::new("python3").arg("worker.py"), Keep::up_to(4))?;
/// let processes = workers.processes();
/// let pool = WorkPool::builder(job.id, workers, repository).max_workers(4).start()?;
/// pool.enqueue(NewUnit::new("a"), "What is the capital of France?")?.wait()?;
/// println!("{:?}", processes.list());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A worker that says that a query failed is kept; one that crashes, falls silent or makes no sense is replaced, and its unit is tried again
/// as after every crash. When the pool stops, all end.
#[derive(Debug)]
pub struct WorkerProcesses {
    warm: Warm<Protocol>,
}

impl WorkerProcesses {
    /// Workers of this kind, of which there are none yet: each is started when it is needed.
    ///
    /// # Errors
    ///
    /// When a setting makes no sense.
    pub fn new(command: WorkerCommand, keep: Keep) -> Result<WorkerProcesses, KeepError> {
        Ok(WorkerProcesses { warm: Warm::new(Protocol { command }, keep)? })
    }

    /// A look at them from wherever, also once a pool has this executor.
    pub fn processes(&self) -> Processes {
        self.warm.processes()
    }
}

impl Executor for WorkerProcesses {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.warm.execute(call)
    }

    fn name(&self) -> &str {
        let command = &self.warm.dialect().command;
        command.name.as_deref().or(command.setup.program.to_str()).unwrap_or("worker")
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        let program = &self.warm.dialect().command.setup.program;
        available::program(program, "install it, or name it with its folder")
    }

    fn provenance(&self) -> Provenance {
        Provenance { arguments: self.warm.dialect().command.setup.recorded(), ..Provenance::of(self.name()) }
    }

    fn pool_stopped(&self, grace: Duration) {
        self.warm.close(grace);
    }
}

/// The protocol, as [`Warm`] speaks it.
#[derive(Debug)]
struct Protocol {
    command: WorkerCommand,
}

impl Dialect for Protocol {
    /// The session of its last query.
    type Memory = Option<String>;
    type Query = WorkerQuery;

    const REACH: Reach = Reach::Socket;

    fn key(&self, call: &Call<'_>) -> ProcessKey {
        ProcessKey::of(call)
    }

    fn session<'a>(&self, memory: &'a Option<String>) -> Option<&'a str> {
        memory.as_deref()
    }

    fn fits(&self, _memory: &Option<String>, _resumed: Option<&str>) -> bool {
        true
    }

    fn child(&self, call: &Call<'_>) -> ChildCommand {
        let setup = &self.command.setup;
        ChildCommand { input: Input::All(Vec::new()), ..setup.child(setup.arguments.clone(), call) }
    }

    fn remember_start(&self, _memory: &mut Option<String>, _call: &Call<'_>) {}

    fn ask(
        &self,
        _memory: &mut Option<String>,
        request_id: &str,
        grace: Duration,
        call: &Call<'_>,
    ) -> Result<(Vec<u8>, WorkerQuery), ExecuteError> {
        let unit = call.unit();
        let payload = Payload {
            unit_id: unit.id.clone(),
            job_id: unit.job_id,
            unit_type: unit.unit_type.clone(),
            attempt: call.attempt_number(),
            prompt: call.prompt().to_owned(),
            payload: call.payload().clone(),
            options: unit.options.clone(),
            session: call.resume_session().map(str::to_owned),
            checkpoint: call.last_checkpoint().cloned(),
            cost_left: call.cost_left(),
            timeout_ms: milliseconds(call.time_left()).unsigned_abs(),
            grace_ms: milliseconds(grace).unsigned_abs(),
        };
        let request_id = request_id.to_owned();
        let line = ParentMessage::Query { request_id: request_id.clone(), payload: Box::new(payload) }.to_line();
        if line.len() > QUERY_LIMIT_BYTES {
            let message = format!("the query has {} bytes, and may have {QUERY_LIMIT_BYTES}", line.len());
            return Err(ExecuteError::give_up(message).kind(kinds::INVALID_REQUEST));
        }
        let program = self.command.setup.program.to_string_lossy().into_owned();
        Ok((line, WorkerQuery::new(program, request_id)))
    }

    fn limits(&self) -> Limits {
        self.command.setup.limits
    }

    fn control(&self, line: Line<'_>) -> Control {
        match said(line) {
            Said::Else(control) => control,
            Said::TooLong(fault) | Said::BadEnd(fault) => Control::Fault(fault),
            // What a query still had to say when it was cancelled may come late.
            Said::OfQuery(message) if request_of(&message).contains('.') => Control::Nothing,
            Said::OfQuery(message) => {
                let request_id = crate::unit::shortened(request_of(&message));
                Control::Fault(format!("it speaks of a request `{request_id}` that it never got"))
            }
        }
    }

    fn cancel(&self, request_id: &str) -> Vec<u8> {
        ParentMessage::Cancel { request_id: request_id.to_owned() }.to_line()
    }

    fn health_check(&self) -> Option<Vec<u8>> {
        Some(ParentMessage::HealthCheck.to_line())
    }

    fn shutdown(&self) -> Option<Vec<u8>> {
        Some(ParentMessage::Shutdown { graceful: true }.to_line())
    }
}
