//! Worker processes: real ones, that do as they are told and that do not. A worker is this test binary, executing itself.

mod attacked;
mod claude;
mod crew;
mod documented;
mod hostile;
mod hosts;
mod parent;
mod python;
mod scarce;
mod served;
mod storm;
mod worker;

use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use workcrew::audit::verify::Verify;
use workcrew::executor::warm::{Keep, ProcessEvent, ProcessView, Processes};
use workcrew::executor::{WorkerCommand, WorkerProcesses};
use workcrew::{
    Archive, Attempt, JobId, MemoryRepository, Message, NewJob, NewUnit, Repository, RetryPolicy, WorkPool,
    WorkPoolBuilder, WorkUnit,
};

use crate::commands::{MARK, marked, until};
use crate::support::{self, Up as _};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// Workers, where they meet, and what becomes of them.
struct World {
    folder: TempDir,
    repository: MemoryRepository,
    job: JobId,
    mark: String,
    said: std::sync::mpsc::Sender<String>,
    events: Receiver<String>,
}

impl World {
    fn new() -> World {
        let folder = support::folder();
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("workers")).unwrap().id;
        let mark = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        let (said, events) = channel();
        World { folder, repository, job, mark, said, events }
    }

    /// A worker that plays this role.
    fn command(&self, role: &str) -> WorkerCommand {
        WorkerCommand::new(std::env::current_exe().unwrap())
            .args(worker::ARGUMENTS)
            .env(worker::ROLE, role)
            .env(MARK, &self.mark)
            .name("worker")
    }

    /// So many workers, whose events are kept.
    fn keep(&self, max_workers: usize) -> Keep {
        let said = self.said.clone();
        Keep::up_to(max_workers).socket_directory(self.folder.path().join("sockets")).observer(
            move |event: &ProcessEvent<'_>| {
                // The test may be over.
                let _ = said.send(event.to_string());
            },
        )
    }

    fn workers(&self, role: &str, keep: Keep) -> WorkerProcesses {
        WorkerProcesses::new(self.command(role), keep).unwrap()
    }

    fn builder(&self, workers: WorkerProcesses) -> (WorkPoolBuilder, Processes) {
        let processes = workers.processes();
        let builder = WorkPool::builder(self.job, workers, self.repository.clone()).retry(RetryPolicy::immediate());
        (builder, processes)
    }

    fn pool(&self, role: &str, keep: Keep) -> (WorkPool, Processes) {
        let (builder, processes) = self.builder(self.workers(role, keep));
        (builder.up(), processes)
    }

    /// Waits for an event that begins like this.
    fn wait_for(&self, beginning: &str) -> String {
        loop {
            let event = self.events.recv_timeout(LONG).unwrap_or_else(|_| panic!("`{beginning}` in time"));
            if event.starts_with(beginning) {
                return event;
            }
        }
    }

    /// All events until one that begins like this has come.
    fn wait_for_all(&self, beginning: &str) -> Vec<String> {
        let mut all = Vec::new();
        while all.last().is_none_or(|last: &String| !last.starts_with(beginning)) {
            all.push(self.wait_for(""));
        }
        all
    }

    /// All events that have come so far.
    fn events(&self) -> Vec<String> {
        self.events.try_iter().collect()
    }

    fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.repository.attempts(self.repository.unit(self.job, id).unwrap().key).unwrap()
    }

    fn messages(&self, attempt: &Attempt) -> Vec<Message> {
        let stored = self.repository.messages(attempt.key, 0, 1_000).unwrap().items;
        stored.iter().map(|stored| stored.message().unwrap().unwrap()).collect()
    }

    /// Nothing of the workers is left, every unit has ended, and nothing is wrong with what was stored.
    fn assert_clean(&self) {
        self.assert_gone();
        let verification = Verify::new().settled().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }

    /// Nothing of the workers is left.
    fn assert_gone(&self) {
        until("all processes are gone", || marked(&self.mark).is_empty());
        let sockets = self.folder.path().join("sockets");
        if sockets.exists() {
            assert_eq!(std::fs::read_dir(sockets).unwrap().count(), 0, "no socket is left");
        }
    }
}

/// Kills a worker.
fn kill(view: &ProcessView) {
    let pid = view.process.as_ref().unwrap().pid.cast_signed();
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
}

/// Enqueues a unit and waits for its end.
fn ask(pool: &WorkPool, id: &str, prompt: &str) -> WorkUnit {
    pool.enqueue(NewUnit::new(id), prompt).unwrap().wait_timeout(LONG).unwrap()
}
