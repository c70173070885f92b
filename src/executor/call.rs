//! What an executor gets: one attempt, seen through a narrow window.

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use super::{CancelReason, CancelToken, ExecuteError};
use crate::attempt::Process;
use crate::clock::Clock;
use crate::conversation::Message;
use crate::lease::Claim;
use crate::limits::Ask;
use crate::money::{Charge, Money};
use crate::unit::WorkUnit;
use crate::worker::WorkerId;

/// How long a provider can be held by one call: what is longer is as good as this.
const HOLD_LIMIT: Duration = Duration::from_secs(3_653 * 24 * 60 * 60);

/// Takes what an execution tells while it runs.
pub(crate) trait Recorder: Sync {
    fn messages(&self, messages: Vec<Message>);
    fn partial(&self, text: &str);
    fn session(&self, session_id: &str);
    fn process(&self, process: Process);
    fn usage(&self, charge: Charge);
    fn checkpoint(&self, value: &Value);
    /// Where there are no turns, it is everybody's.
    fn turn(&self, ask: &Ask) -> Result<(), ExecuteError> {
        let _ = ask;
        Ok(())
    }
    /// Where there is no pool, nobody else begins anything.
    fn hold(&self, pause: Duration, reason: &str) {
        let _ = (pause, reason);
    }
    fn held_until(&self) -> Option<DateTime<Utc>> {
        None
    }
}

/// One attempt at one unit, as its executor sees it.
///
/// It can be shared with threads that the executor starts and joins. Everything that is told here is stored as it
/// comes, so that it is there when the attempt fails, times out or is killed.
///
/// ```
/// use workcrew::{Call, Charge, ExecuteError, Message, Money, Tokens, WorkResult};
///
/// fn execute(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
///     call.session("s-17");
///     call.message(Message::user(call.prompt()));
///     if call.is_cancelled() {
///         return Err(ExecuteError::retry("stopped in time"));
///     }
///     call.message(Message::assistant("It is Paris."));
///     let tokens = Tokens { input: 12, output: 4, ..Tokens::default() };
///     call.usage(Charge::reported("a-model", tokens, Money::from_nanos(96_000)));
///     Ok(WorkResult::text("Paris"))
/// }
/// # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository, WorkPool};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
/// # let pool = WorkPool::builder(job.id, execute, repository).start()?;
/// # let unit = pool.enqueue(NewUnit::new("a"), "What is the capital of France?")?.wait()?;
/// # assert_eq!((unit.session_id.as_deref(), unit.tokens.output), (Some("s-17"), 4));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Call<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) prompt: &'a str,
    pub(crate) timeout: Duration,
    pub(crate) deadline_ms: i64,
    pub(crate) grace: Duration,
    pub(crate) cancel: &'a CancelToken,
    pub(crate) clock: &'a dyn Clock,
    pub(crate) recorder: &'a dyn Recorder,
}

impl<'a> Call<'a> {
    /// The unit, as it was when it was claimed, with all that it carries: its id, its priority, and among its
    /// [options](WorkUnit::options) the directory to work in and how many turns an agent may take.
    pub fn unit(&self) -> &'a WorkUnit {
        &self.claim.unit
    }

    /// The worker that does it.
    pub fn worker_id(&self) -> &'a WorkerId {
        &self.claim.lease.worker_id
    }

    /// What is to be sent, rendered if there was something to render.
    pub fn prompt(&self) -> &'a str {
        self.prompt
    }

    /// What the unit carries for programs.
    pub fn payload(&self) -> &'a Value {
        &self.claim.unit.payload
    }

    /// The how-manieth attempt it is, counted from 1.
    pub fn attempt_number(&self) -> u32 {
        self.claim.lease.attempt_number
    }

    /// The session to carry on: an earlier attempt's, or the one that the unit names.
    pub fn resume_session(&self) -> Option<&'a str> {
        self.claim.resume_session.as_deref()
    }

    /// What an earlier attempt saved last.
    pub fn last_checkpoint(&self) -> Option<&'a Value> {
        self.claim.checkpoint.as_ref()
    }

    /// How long the whole attempt may take.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// How much of that is left.
    pub fn time_left(&self) -> Duration {
        let left_ms = self.deadline_ms.saturating_sub(self.clock.now().boot_ms);
        Duration::from_millis(u64::try_from(left_ms).unwrap_or_default())
    }

    /// How much of what its unit [may cost](crate::NewUnit::max_cost) was left when this attempt began; `None` if nobody has set a limit.
    /// What this attempt tells with [`usage`](Call::usage) is not taken off.
    pub fn cost_left(&self) -> Option<Money> {
        self.claim.unit.options.max_cost.map(|limit| limit - self.claim.unit.cost.amount)
    }

    /// How long it has to return once it is to stop.
    pub fn grace(&self) -> Duration {
        self.grace
    }

    /// Whether it is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled()
    }

    /// Why it is to stop; `None` if it is not.
    pub fn cancel_reason(&self) -> Option<CancelReason> {
        self.cancel.reason()
    }

    /// What tells it to stop, to be waited for or passed on.
    pub fn cancel_token(&self) -> &'a CancelToken {
        self.cancel
    }

    /// Keeps a message of the conversation.
    pub fn message(&self, message: Message) {
        self.recorder.messages(vec![message]);
    }

    /// Keeps several messages that came together: all of them or none.
    pub fn messages(&self, messages: impl IntoIterator<Item = Message>) {
        self.recorder.messages(messages.into_iter().collect());
    }

    /// Keeps the text so far of a message that is still being written. The next [`message`](Call::message) takes its place.
    ///
    /// It may be called for every few characters: at most one text a second is written.
    pub fn partial(&self, text: &str) {
        self.recorder.partial(text);
    }

    /// Keeps the provider's session, so that a later attempt or person can carry it on.
    pub fn session(&self, session_id: impl AsRef<str>) {
        self.recorder.session(session_id.as_ref());
    }

    /// Keeps which child process does the work.
    pub fn process_started(&self, pid: u32) {
        self.child_started(Process::of(pid, &self.boot_id()));
    }

    /// Keeps which child process does the work, and who ends it.
    pub(crate) fn child_started(&self, process: Process) {
        self.recorder.process(process);
    }

    /// The boot in which it runs.
    pub(crate) fn boot_id(&self) -> std::sync::Arc<str> {
        self.clock.boot_id()
    }

    /// Keeps what was used of a model so far, which replaces what was told of it before.
    pub fn usage(&self, charge: Charge) {
        self.recorder.usage(charge);
    }

    /// Waits until it is the turn of this attempt to ask its [provider](super::Executor::provider) once more, where the pool has
    /// [rate limits](crate::WorkPoolBuilder::rate_limits) or the provider is held.
    ///
    /// The first request needs no such call: the pool has taken its turn. The time that it waits here is the attempt's.
    ///
    /// # Errors
    ///
    /// It is not to ask any more. The error is what the executor should return.
    pub fn turn(&self, ask: Ask) -> Result<(), ExecuteError> {
        self.recorder.turn(&ask)
    }

    /// Tells that its [provider](super::Executor::provider) is not to be asked for so long: nothing more begins in this pool, nor in any other on
    /// the repository that asks the same one. What has begun goes on, this attempt too.
    ///
    /// For what a provider says beside an answer, such as that it was the last one for a minute. Who is refused returns an error that
    /// [holds](ExecuteError::hold_until), and uses up no attempt.
    pub fn hold(&self, pause: Duration, reason: impl AsRef<str>) {
        if !pause.is_zero() {
            self.recorder.hold(pause.min(HOLD_LIMIT), reason.as_ref());
        }
    }

    /// Until when its pool is held, if that has an end: an executor that asks its provider several times is not to ask it again before that. A pause or a
    /// hold that somebody has to end is not meant: what has begun goes on.
    pub fn held_until(&self) -> Option<DateTime<Utc>> {
        self.recorder.held_until()
    }

    /// Saves what the next attempt should start from, in place of what was saved before. It is durable when this returns, unless the
    /// storage fails, which is logged: then the next attempt starts from what was saved before.
    ///
    /// Whatever ends this attempt, a crash of the process or a lost lease too, the next one gets it as
    /// [`last_checkpoint`](Call::last_checkpoint), in whichever process that is.
    ///
    /// ```
    /// use workcrew::{Call, ExecuteError, WorkResult};
    ///
    /// fn execute(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    ///     let done = call.last_checkpoint().and_then(|pages| pages.as_u64()).unwrap_or(0);
    ///     for page in done..3 {
    ///         call.checkpoint(page + 1);
    ///         if page == 1 && call.attempt_number() == 1 {
    ///             return Err(ExecuteError::retry("the printer is on fire"));
    ///         }
    ///     }
    ///     Ok(WorkResult::text(format!("began with page {}", done + 1)))
    /// }
    /// # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository, RetryPolicy, WorkPool};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// # let pool = WorkPool::builder(job.id, execute, repository).retry(RetryPolicy::immediate()).start()?;
    /// # let unit = pool.enqueue(NewUnit::new("a"), "Print it.")?.wait()?;
    /// # assert_eq!((unit.output.as_deref(), unit.attempt_count), (Some("began with page 3"), 2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn checkpoint(&self, value: impl Into<Value>) {
        self.recorder.checkpoint(&value.into());
    }
}

impl fmt::Debug for Call<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Call")
            .field("unit", &self.claim.unit.id)
            .field("attempt_number", &self.attempt_number())
            .field("time_left", &self.time_left())
            .field("cancel_reason", &self.cancel_reason())
            .finish_non_exhaustive()
    }
}
