//! What does the work: the trait [`Executor`], and what passes between it and the pool.
//!
//! A pool calls [`Executor::execute`] on one of its threads, once for each attempt. The executor
//! gets a [`Call`]: the unit, the prompt as it is to be sent, the time left, and somewhere to put
//! what happens meanwhile. It answers with a [`WorkResult`], or with an [`ExecuteError`] that says
//! what should follow. A closure is an executor:
//!
//! ```
//! use workcrew::{Call, Message, WorkPool, WorkResult};
//! # use workcrew::{MemoryRepository, NewJob, Repository};
//! # let repository = MemoryRepository::new();
//! # let job = repository.create_job(&NewJob::named("echo"))?;
//! let echo = |call: &Call<'_>| {
//!     call.message(Message::assistant(call.prompt()));
//!     Ok(WorkResult::text(call.prompt()))
//! };
//! let pool = WorkPool::builder(job.id, echo, repository).build()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! An executor is called from many threads at once and may panic, hang or be slow: that harms nothing
//! but its attempt. One that returns soon after its call was [cancelled](Call::is_cancelled) keeps its thread; one that does not
//! is left behind when its time is up, and whatever it reports then is kept as a late result.

mod again;
mod agent_cli;
mod available;
mod call;
mod cancel;
pub mod claude_cli;
pub mod codex_cli;
mod command;
mod error;
mod files;
#[cfg(feature = "http")]
pub mod http;
pub mod ipc;
pub mod kinds;
pub(crate) mod process;
pub mod replay;
mod result;
#[cfg(test)]
pub(crate) mod scene;
pub mod simulated;
mod trouble;
pub mod warm;

pub use self::available::Unavailable;
pub use self::call::Call;
pub(crate) use self::call::Recorder;
pub(crate) use self::cancel::OnCancel;
pub use self::cancel::{CancelReason, CancelToken};
pub use self::command::CommandExecutor;
pub use self::error::{ExecuteError, Then};
pub use self::ipc::{WorkerCommand, WorkerProcesses};
pub use self::result::WorkResult;
use std::time::Duration;

use crate::attempt::Provenance;
use crate::limits::Estimate;
use crate::same_work::Parameters;
use crate::worker::WorkerId;

/// What does the work of a unit.
pub trait Executor: Send + Sync + 'static {
    /// Does one attempt. It blocks until the work is done, and should return soon after the call was cancelled.
    ///
    /// # Errors
    ///
    /// The error says what should follow: another attempt, a pause of the whole pool, or nothing.
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError>;

    /// Brings a worker up, on its own thread, before its first unit and again after a crash or when its thread was left behind
    /// (nothing to do). What it had before is of no use then. One that executes several units at a time has other threads to go on
    /// with: it is not brought up again when one of them was left behind.
    ///
    /// An error means that the worker cannot work, and so does not returning within the pool's
    /// [`startup_timeout`](crate::WorkPoolBuilder::startup_timeout), which the token tells of. A worker that did not come up is tried
    /// again after a minute, or when a unit needs it. One that
    /// [holds](Then::Hold) the pool says that no worker can.
    ///
    /// # Errors
    ///
    /// As it likes.
    fn start_worker(&self, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
        let _ = (worker_id, cancel);
        Ok(())
    }

    /// How many units a worker can execute at a time (as the pool says). Asked once for each worker, on its own thread when it has its
    /// first unit, by a pool with [`CapacityStrategy::Hybrid`](crate::CapacityStrategy::Hybrid).
    fn capacity(&self, worker_id: &WorkerId) -> Option<u32> {
        let _ = worker_id;
        None
    }

    /// A worker has ended, whatever the reason, and takes nothing more (nothing to do). What it had can be given back.
    ///
    /// Called once for each worker for which [`start_worker`](Executor::start_worker) was called, also if that failed. A worker that is
    /// brought up again has not ended.
    ///
    /// A call that was left behind may still be in progress, or about to begin, on another thread. To `start_worker` its token has said
    /// so by then: who looks at that after it has put away what it made, under the same lock under which it is taken out here, leaves nothing.
    ///
    /// It should return soon, for it is called on the one thread of the pool that tells of what happened without a worker.
    /// Another worker may have taken the place meanwhile. A pool waits for it when it stops, unless that is for nobody.
    fn end_worker(&self, worker_id: &WorkerId) {
        let _ = worker_id;
    }

    /// The pool has stopped, and calls it no more (nothing to do). What it keeps from one call to the next, such as processes, is to
    /// end: by itself within that time, by force after it.
    ///
    /// It comes after the last `end_worker`. A call that was left behind may still be in progress.
    fn pool_stopped(&self, grace: Duration) {
        let _ = grace;
    }

    /// What it is called in the records.
    fn name(&self) -> &str {
        "closure"
    }

    /// Whether it can work here, and what it lacks if not (it can).
    ///
    /// A pool does not ask. An executor that is not available holds the pool with its first unit, so that nothing fails for it.
    ///
    /// # Errors
    ///
    /// Says what is missing and how to get it.
    fn is_available(&self) -> Result<(), Unavailable> {
        Ok(())
    }

    /// What an attempt may cost, as far as that can be told from prices and limits alone (it cannot). It counts where there is a
    /// [budget](crate::limits).
    ///
    /// Asked once, when the pool is built.
    fn estimate(&self) -> Option<Estimate> {
        None
    }

    /// Whom it asks, by a name under which it is counted and held: all who ask the same share [rate limits](crate::limits) and hear when it is
    /// closed, in all processes on the repository (nobody, and nothing is shared).
    ///
    /// Asked once, when the pool is built. Secrets do not belong here.
    fn provider(&self) -> Option<String> {
        None
    }

    /// How many tokens an answer has at most (it cannot tell). They are reserved where there are limits on them.
    ///
    /// Asked once, when the pool is built.
    fn answer_tokens(&self) -> Option<u64> {
        None
    }

    /// What its answers depend on besides the prompt, for pools that do [the same work once](crate::WorkPoolBuilder::same_work_once) (it does
    /// not tell).
    ///
    /// To tell is a promise. Nothing else counts: of a unit nothing but its prompt, its workspace and how many turns it may take, so neither
    /// its name nor its payload; no file, no time, nothing that was done before. And what is no answer, such as a refusal or a text that was cut
    /// off, is an error. Chance may count: any answer that it may give is as good as another.
    ///
    /// Asked once, when the pool is built. What is secret may be in it, for nothing but its hash is kept.
    fn parameters(&self) -> Option<Parameters> {
        None
    }

    /// What is recorded of each attempt: who executed it, in which version, with which arguments.
    ///
    /// Asked once, when the pool is built. Secrets do not belong here.
    fn provenance(&self) -> Provenance {
        Provenance::of(self.name())
    }
}

impl<F> Executor for F
where
    F: Fn(&Call<'_>) -> Result<WorkResult, ExecuteError> + Send + Sync + 'static,
{
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self(call)
    }
}

/// One that was chosen while the program runs.
impl Executor for Box<dyn Executor> {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        (**self).execute(call)
    }

    fn start_worker(&self, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
        (**self).start_worker(worker_id, cancel)
    }

    fn capacity(&self, worker_id: &WorkerId) -> Option<u32> {
        (**self).capacity(worker_id)
    }

    fn end_worker(&self, worker_id: &WorkerId) {
        (**self).end_worker(worker_id);
    }

    fn pool_stopped(&self, grace: Duration) {
        (**self).pool_stopped(grace);
    }

    fn name(&self) -> &str {
        (**self).name()
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        (**self).is_available()
    }

    fn estimate(&self) -> Option<Estimate> {
        (**self).estimate()
    }

    fn provider(&self) -> Option<String> {
        (**self).provider()
    }

    fn answer_tokens(&self) -> Option<u64> {
        (**self).answer_tokens()
    }

    fn parameters(&self) -> Option<Parameters> {
        (**self).parameters()
    }

    fn provenance(&self) -> Provenance {
        (**self).provenance()
    }
}
