//! Commands as executors, in real process trees: what they say is kept, and nothing of them is left, whoever dies first.
//!
//! Every process of a tree has the variable [`MARK`], so that all of them can be found, whatever they did to get away.

mod agents;
mod floods;
mod hostile;
pub(crate) mod killed;
mod limited;
mod said;

use std::path::Path;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use workcrew::audit::verify::Verify;
use workcrew::clock::{Clock, SystemClock};
use workcrew::executor::CommandExecutor;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::{Archive, Attempt, JobId, NewJob, Repository, RetryPolicy, SqliteRepository, WorkPool, WorkPoolBuilder};

use crate::support;

/// The variable that every process of a tree has.
pub(crate) const MARK: &str = "WORKCREW_TEST_TREE";
const JOB: &str = "commands";

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(120);

/// A database and a workspace beside it.
struct World {
    folder: TempDir,
    repository: SqliteRepository,
    job: JobId,
    mark: String,
}

impl World {
    fn new() -> World {
        World::with_clock(SystemClock)
    }

    fn with_clock(clock: impl Clock + 'static) -> World {
        let folder = support::folder();
        std::fs::create_dir(folder.path().join("work")).unwrap();
        let repository = SqliteOptions::new().clock(clock).open(folder.path().join("commands.db")).unwrap();
        let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
        // The name of the folder is nobody else's.
        let mark = folder.path().file_name().unwrap().to_str().unwrap().to_owned();
        World { folder, repository, job, mark }
    }

    fn workspace(&self) -> String {
        self.folder.path().join("work").to_str().unwrap().to_owned()
    }

    /// Runs a shell script for each unit.
    fn script(&self, script: &str) -> CommandExecutor {
        CommandExecutor::new("sh").args(["-c", script]).env(MARK, &self.mark)
    }

    fn pool(&self, executor: CommandExecutor) -> WorkPoolBuilder {
        WorkPool::builder(self.job, executor, self.repository.clone()).retry(RetryPolicy::immediate())
    }

    fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.repository.attempts(self.repository.unit(self.job, id).unwrap().key).unwrap()
    }

    /// What the first attempt at a unit has said so far.
    fn said(&self, id: &str) -> Vec<String> {
        let Some(attempt) = self.attempts(id).into_iter().next() else { return Vec::new() };
        let stored = self.repository.messages(attempt.key, 0, 10).unwrap().items;
        stored.iter().map(|stored| stored.message().unwrap().unwrap().text()).collect()
    }

    fn assert_clean(&self) {
        assert_eq!(marked(&self.mark), Vec::<u32>::new(), "nothing is left");
        let verification = Verify::new().settled().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");
    }
}

/// The processes that have a mark, and are no zombies.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let mark = format!("{MARK}={mark}\0");
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(Path::new("/proc").join(pid.to_string()).join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(has_mark).collect()
}

/// Looks again and again until it is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < LONG, "{what} in time");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}
