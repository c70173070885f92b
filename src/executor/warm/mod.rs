//! Processes that stay alive between units, whatever they speak.
//!
//! An agent that takes a second and 200 MB to start answers in a tenth of that once it is up. So its process is kept: for the
//! [key](ProcessKey) that it was started for, as long as it is used and well and not too old, and until its place is needed for another.
//! How that is done is said with [`Keep`]; what becomes of each is told as [`ProcessEvent`]s, and how they are now by [`Processes`].
//!
//! ```text
//!   an attempt wants a process ──▶ crew ──▶ one that is there, or a place to start one      (start, drive)
//!        │                          ▲
//!        └──▶ asks it, hears it ────┘ gives it back ──▶ looked after, told to end, seen off  (keeper)
//! ```
//!
//! | | |
//! |---|---|
//! | `keep` | the settings |
//! | `dialect` | what differs between kinds of processes |
//! | `process` | one process: its tree, the way to speak to it |
//! | `bell`, `leash` | what wakes who waits for one; how long it may live |
//! | `crew`, `crew/deal` | who has which process, who waits for one, and who gets what |
//! | `eviction` | who has to go |
//! | `start` | how an attempt comes to a process |
//! | `drive` | one call, from there to its end |
//! | `held` | a process in the hands of an attempt, and what becomes of it afterwards |
//! | `keeper` | the thread that looks after those that nobody has |
//! | `event` | what is told |
//!
//! [`WorkerProcesses`](crate::executor::WorkerProcesses) are such processes that speak the protocol of [`ipc`](crate::ipc), and
//! [`ClaudeSession`](crate::ClaudeSession) keeps Claude Code.

mod bell;
mod crew;
mod dialect;
mod drive;
mod event;
mod eviction;
mod held;
mod keep;
mod keeper;
mod leash;
mod process;
mod start;

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::crew::Crew;
pub(in crate::executor) use self::dialect::{Afterwards, Control, Dialect, End, Heard, Query, Reach};
pub use self::dialect::{Health, ProcessKey};
pub use self::event::{ProcessEvent, ProcessView, Why};
pub use self::eviction::Eviction;
pub use self::keep::{Keep, KeepError};
use super::{Call, ExecuteError, WorkResult};
use crate::pool::Activity;

/// Processes of one kind that are kept. Dropped, they are killed.
pub(in crate::executor) struct Warm<D: Dialect> {
    crew: Arc<Crew<D>>,
}

impl<D: Dialect> Warm<D> {
    /// Keeps processes like this, of which there are none yet.
    pub(in crate::executor) fn new(dialect: D, keep: Keep) -> Result<Warm<D>, KeepError> {
        keep.check()?;
        let no_descriptors = |error| KeepError { name: "max_workers", problem: format!("needs descriptors: {error}") };
        let crew = Crew::new(dialect, keep).map_err(no_descriptors)?;
        Ok(Warm { crew: Arc::new(crew) })
    }

    pub(in crate::executor) fn dialect(&self) -> &D {
        &self.crew.dialect
    }

    pub(in crate::executor) fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        drive::execute(&self.crew, call)
    }

    pub(in crate::executor) fn processes(&self) -> Processes {
        let crew: Weak<Crew<D>> = Arc::downgrade(&self.crew);
        Processes { crew }
    }

    /// Ends all, and begins nothing any more.
    pub(in crate::executor) fn close(&self, grace: Duration) {
        self.crew.close(grace);
    }
}

impl<D: Dialect> Drop for Warm<D> {
    fn drop(&mut self) {
        self.crew.close(Duration::ZERO);
    }
}

impl<D: Dialect> fmt::Debug for Warm<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Warm").field("keep", &self.crew.keep).field("count", &self.crew.count()).finish_non_exhaustive()
    }
}

/// A look at the processes that an executor keeps, from wherever. Once that is gone, there are none.
#[derive(Clone)]
pub struct Processes {
    crew: Weak<dyn Look>,
}

/// What can be seen of processes, whatever they speak.
trait Look: Send + Sync {
    fn views(&self) -> Vec<ProcessView>;
    fn activity(&self) -> Activity;
    fn shut_down_all(&self);
}

impl<D: Dialect> Look for Crew<D> {
    fn views(&self) -> Vec<ProcessView> {
        Crew::views(self)
    }

    fn activity(&self) -> Activity {
        match self.count() {
            0 => Activity::Idle,
            count if count < self.keep.max_workers => Activity::Active,
            _ => Activity::AtCapacity,
        }
    }

    fn shut_down_all(&self) {
        Crew::shut_down_all(self);
    }
}

impl Processes {
    /// All processes that there are now, those that start and end included, in the order in which they were started.
    pub fn list(&self) -> Vec<ProcessView> {
        self.crew.upgrade().map(|crew| crew.views()).unwrap_or_default()
    }

    /// Whether there are none, some, or as many as there may be.
    pub fn activity(&self) -> Activity {
        self.crew.upgrade().map_or(Activity::Idle, |crew| crew.activity())
    }

    /// Tells all that there are now to end, each when it is done with what it has in hand, and waits for that. Whoever needs one afterwards
    /// starts another. On a thread of a pool, such as that of an observer, it only asks for it and returns.
    pub fn shut_down_all(&self) {
        if let Some(crew) = self.crew.upgrade() {
            crew.shut_down_all();
        }
    }
}

impl fmt::Debug for Processes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Processes").field("activity", &self.activity()).finish_non_exhaustive()
    }
}
