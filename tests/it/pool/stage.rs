//! An executor that is played by the test: each call waits for what the test makes of it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use workcrew::executor::{CancelReason, CancelToken};
use workcrew::{Call, ExecuteError, Executor, Message, WorkResult, WorkerId};

use super::{PATIENCE, next};

/// What one execution does next.
type Step = Box<dyn FnOnce(&Call<'_>) -> Option<Answer> + Send>;
type Answer = Result<WorkResult, ExecuteError>;

/// The executor: it tells of each call, then does what it is told.
pub(super) struct Part {
    calls: Sender<Played>,
    starts: Option<Sender<Upcoming>>,
    _alive: Arc<()>,
}

/// The test's side of it.
pub(super) struct Stage {
    pub(super) calls: Receiver<Played>,
    alive: Weak<()>,
}

/// A worker on its way up, in the hands of the test. Dropped, it is up.
pub(super) struct Upcoming {
    pub(super) worker: String,
    pub(super) cancel: CancelToken,
    steps: Sender<Box<dyn FnOnce() -> Result<(), ExecuteError> + Send>>,
}

/// One execution, in the hands of the test. Dropped, it succeeds with nothing.
pub(super) struct Played {
    pub(super) id: String,
    pub(super) worker: String,
    pub(super) prompt: String,
    pub(super) attempt_number: u32,
    pub(super) timeout: Duration,
    pub(super) cancel: CancelToken,
    steps: Sender<Step>,
}

pub(super) fn stage() -> (Part, Stage) {
    let ((calls, played), alive) = (unbounded(), Arc::new(()));
    let stage = Stage { calls: played, alive: Arc::downgrade(&alive) };
    (Part { calls, starts: None, _alive: alive }, stage)
}

/// The same where the test also brings up the workers.
pub(super) fn stage_and_starts() -> (Part, Stage, Receiver<Upcoming>) {
    let (part, stage) = stage();
    let (starts, upcoming) = unbounded();
    (Part { starts: Some(starts), ..part }, stage, upcoming)
}

impl Executor for Part {
    fn execute(&self, call: &Call<'_>) -> Answer {
        let (steps, told) = unbounded::<Step>();
        let played = Played {
            id: call.unit().id.to_string(),
            worker: call.worker_id().to_string(),
            prompt: call.prompt().to_owned(),
            attempt_number: call.attempt_number(),
            timeout: call.timeout(),
            cancel: call.cancel_token().clone(),
            steps,
        };
        // A test that no longer looks wants it to end.
        let _ = self.calls.send(played);
        told.iter().find_map(|step| step(call)).unwrap_or_else(|| Ok(WorkResult::empty()))
    }

    fn start_worker(&self, worker_id: &WorkerId, cancel: &CancelToken) -> Result<(), ExecuteError> {
        let Some(starts) = &self.starts else { return Ok(()) };
        let (steps, told) = bounded(1);
        // A test that no longer looks wants it to come up.
        let _ = starts.send(Upcoming { worker: worker_id.to_string(), cancel: cancel.clone(), steps });
        told.recv().map_or(Ok(()), |step| step())
    }

    fn name(&self) -> &str {
        "a play"
    }
}

impl Stage {
    /// The next execution that begins.
    pub(super) fn next(&self) -> Played {
        next(&self.calls)
    }

    /// The next so many, in the order of their ids.
    pub(super) fn next_many(&self, count: usize) -> Vec<Played> {
        let mut calls: Vec<Played> = (0..count).map(|_| self.next()).collect();
        calls.sort_by(|one, other| one.id.cmp(&other.id));
        calls
    }

    /// Whether nothing runs that the test has not seen.
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// Whether no thread is left that could call the executor.
    pub(super) fn is_gone(&self) -> bool {
        self.alive.strong_count() == 0
    }
}

impl Upcoming {
    fn step(self, step: impl FnOnce() -> Result<(), ExecuteError> + Send + 'static) {
        let _ = self.steps.send(Box::new(step));
    }

    pub(super) fn fail(self, error: ExecuteError) {
        self.step(|| Err(error));
    }

    pub(super) fn panic(self, message: &'static str) {
        self.step(move || panic!("{message}"));
    }

    /// Waits until it is asked to give up, without obeying.
    pub(super) fn asked(&self) -> CancelReason {
        self.cancel.wait_timeout(PATIENCE).expect("it is asked to give up")
    }
}

impl Played {
    fn step(&self, step: impl FnOnce(&Call<'_>) -> Option<Answer> + Send + 'static) {
        // An execution that has ended already needs nothing more.
        let _ = self.steps.send(Box::new(step));
    }

    /// Does something with the call, and waits until it is done.
    pub(super) fn act<T: Send + 'static>(&self, act: impl FnOnce(&Call<'_>) -> T + Send + 'static) -> T {
        let (tell, done) = bounded(1);
        self.step(move |call| {
            tell.send(act(call)).unwrap();
            None
        });
        done.recv_timeout(PATIENCE).expect("the execution acts")
    }

    pub(super) fn say(&self, text: &str) {
        let message = Message::assistant(text);
        self.act(move |call| call.message(message));
    }

    pub(super) fn succeed(self, output: &str) {
        let result = WorkResult::text(output);
        self.step(move |_| Some(Ok(result)));
    }

    pub(super) fn fail(self, error: ExecuteError) {
        self.step(move |_| Some(Err(error)));
    }

    /// Ends as it likes.
    pub(super) fn end(self, end: impl FnOnce(&Call<'_>) -> Answer + Send + 'static) {
        self.step(move |call| Some(end(call)));
    }

    /// Waits to be asked to stop, and then ends like this.
    pub(super) fn obey(self, answer: Answer) {
        self.step(move |call| {
            call.cancel_token().wait_timeout(Duration::MAX);
            Some(answer)
        });
    }

    /// Waits until it is asked to stop, without obeying.
    pub(super) fn asked(&self) -> CancelReason {
        self.cancel.wait_timeout(PATIENCE).expect("it is asked to stop")
    }
}
