//! The worker's side: lets any [`Executor`] work as a process of its own.
//!
//! ```text
//!   parent ── query, cancel, shutdown, health_check ──▶ reads ── query ──▶ executes
//!     ▲                                                   │                   │
//!     └── ready, health_ok, shutdown_ack ─────────────────┘                   │
//!     └── session, message, complete, error ──────────────────────────────────┘
//! ```
//!
//! One thread reads and answers at once, also while the other one works: a worker that cannot say that it is well is taken for one that is
//! not, and one that does not hear that it is to stop is ended.

use std::error::Error;
use std::fmt;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use crossbeam_channel::{Receiver, Sender, bounded};
use serde_json::Value;

use super::frames::{Frame, FrameReader, MESSAGE_LIMIT_BYTES, QUERY_LIMIT_BYTES};
use super::message::{BadMessage, Follow, ParentMessage, Query, WorkerMessage};
use super::{Content, SOCKET_VARIABLE};
use crate::attempt::{FailureKind, Process};
use crate::chain::Hash;
use crate::clock::{Clock, SystemClock};
use crate::conversation::{Message, Part, Role, Truncation};
use crate::executor::{Call, CancelReason, CancelToken, ExecuteError, Executor, Recorder, WorkResult, kinds};
use crate::lease::{Claim, Lease, OwnerId};
use crate::money::{Charge, Cost, Tokens};
use crate::panics;
use crate::unit::{UnitKey, UnitStatus, WorkUnit};
use crate::worker::WorkerId;

/// How much is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// How often a message that is still being written is sent. All of it is, each time.
const PARTIAL_EVERY: Duration = Duration::from_millis(250);

/// Why a worker cannot serve its parent, or cannot any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum ServeError {
    /// Nobody has said where the parent is: this is to be started by one.
    NoSocket,
    /// The parent cannot be reached.
    Connect {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The connection to the parent has broken.
    Connection(io::Error),
    /// The parent says what is no message.
    Protocol(BadMessage),
    /// The parent says more at once than a message may have.
    TooLong {
        /// How much.
        bytes: u64,
    },
}

impl fmt::Display for ServeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ServeError::NoSocket => {
                write!(f, "there is no `{SOCKET_VARIABLE}` to say where the parent is: this is to be started by one")
            }
            ServeError::Connect { path, .. } => write!(f, "the parent cannot be reached at `{}`", path.display()),
            ServeError::Connection(_) => f.write_str("the connection to the parent has broken"),
            ServeError::Protocol(_) => f.write_str("the parent says what is no message"),
            ServeError::TooLong { bytes } => {
                write!(f, "the parent says {bytes} bytes at once, and may say {QUERY_LIMIT_BYTES}")
            }
        }
    }
}

impl Error for ServeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ServeError::NoSocket | ServeError::TooLong { .. } => None,
            ServeError::Connect { source, .. } | ServeError::Connection(source) => Some(source),
            ServeError::Protocol(source) => Some(source),
        }
    }
}

/// Serves the parent that has started this process, until that has it end or is gone: each query is a call of the executor.
///
/// ```no_run
/// use workcrew::{Call, Message, WorkResult};
///
/// fn main() -> Result<(), workcrew::ipc::ServeError> {
///     // What is expensive is done once, for all queries that come.
///     let model = vec![1, 2, 3];
///     workcrew::ipc::serve(move |call: &Call<'_>| {
///         call.message(Message::assistant(format!("{} words", call.prompt().split(' ').count())));
///         Ok(WorkResult::text(model.len().to_string()))
///     })
/// }
/// ```
///
/// An executor that returns after its call was cancelled is asked again; the parent ends a process whose executor does not. After a panic
/// the process is to be replaced. What is told to the [`Call`] is stored by the parent as it comes; [`Call::checkpoint`] does not wait for that.
///
/// # Errors
///
/// When there is no parent, or it cannot be understood.
pub fn serve(executor: impl Executor) -> Result<(), ServeError> {
    let path = std::env::var_os(SOCKET_VARIABLE).ok_or(ServeError::NoSocket)?;
    serve_at(Path::new(&path), executor)
}

/// The same for a parent whose socket is known.
///
/// # Errors
///
/// When it cannot be reached or understood.
pub fn serve_at(socket: &Path, executor: impl Executor) -> Result<(), ServeError> {
    let connected = UnixStream::connect(socket);
    let stream = connected.map_err(|source| ServeError::Connect { path: socket.to_owned(), source })?;
    let reads = stream.try_clone().map_err(ServeError::Connection)?;
    let desk = Arc::new(Desk { writes: Mutex::new(stream), began: Instant::now(), state: Mutex::default() });
    let (give, take) = bounded(1);
    let works = {
        let desk = Arc::clone(&desk);
        std::thread::Builder::new().name("workcrew-query".to_owned()).spawn(move || work(&desk, &executor, &take))
    };
    works.map_err(ServeError::Connection)?;
    desk.say(&WorkerMessage::Ready);
    let served = listen(&desk, reads, &give);
    desk.cancel_current(CancelReason::Shutdown);
    served
}

/// What both threads have to do with.
#[derive(Debug)]
struct Desk {
    writes: Mutex<UnixStream>,
    began: Instant,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    current: Option<Current>,
    queries_processed: u64,
    /// It is to end as soon as it has nothing in hand.
    is_to_end: bool,
}

#[derive(Debug)]
struct Current {
    request_id: String,
    cancel: CancelToken,
}

/// A query on its way to whoever executes it.
struct Task {
    request_id: String,
    query: Box<Query>,
    cancel: CancelToken,
}

/// Whether there is more to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Go {
    On,
    Home,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says something, at once and whole. If nobody hears it any more, the one who reads finds out.
    fn say(&self, message: &WorkerMessage) {
        self.say_after(message, || {});
    }

    /// Says how a query ended, and has none in hand from then on: whatever is answered after that is heard after it, and the parent may
    /// send the next query as soon as it hears this.
    fn say_end(&self, end: &WorkerMessage) {
        self.say_after(end, || self.state().current = None);
    }

    fn say_after(&self, message: &WorkerMessage, act: impl FnOnce()) {
        let line = within_the_limit(message);
        let mut stream = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        act();
        if let Err(error) = stream.write_all(&line) {
            log::debug!("the parent cannot be told: {error}");
        }
    }

    fn cancel_current(&self, reason: CancelReason) {
        let cancel = self.state().current.as_ref().map(|current| current.cancel.clone());
        if let Some(cancel) = cancel {
            cancel.cancel(reason);
        }
    }

    /// Hangs up, which ends the thread that reads.
    fn hang_up(&self) {
        let stream = self.writes.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// A message as a line; one that is longer than a message may be only says so.
fn within_the_limit(message: &WorkerMessage) -> Vec<u8> {
    let line = message.to_line();
    if line.len() <= MESSAGE_LIMIT_BYTES {
        return line;
    }
    let complaint = format!("it has {} bytes, and a message may have {MESSAGE_LIMIT_BYTES}", line.len());
    match message {
        WorkerMessage::Complete { request_id, .. } | WorkerMessage::Error { request_id, .. } => WorkerMessage::Error {
            request_id: request_id.clone(),
            error: format!("the answer is too long: {complaint}"),
            kind: Some(kinds::WORKER.to_owned()),
            then: Some(Follow::GiveUp),
            result: None,
        },
        WorkerMessage::Message { request_id, .. } => {
            let cut = Truncation { total_bytes: line.len() as u64, hash: Hash::of(&line) };
            let text = format!("a message is too long: {complaint}");
            let content = Message::new(Role::System).part(Part::text(text)).truncated_from(cut);
            WorkerMessage::Message { request_id: request_id.clone(), content: Content::Message(content).into_value() }
        }
        other => other.clone(),
    }
    .to_line()
}

/// Reads what the parent says until there is no more.
fn listen(desk: &Desk, mut stream: UnixStream, give: &Sender<Task>) -> Result<(), ServeError> {
    let mut frames = FrameReader::new(QUERY_LIMIT_BYTES);
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = match stream.read(&mut chunk) {
            Ok(0) => return Ok(()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(ServeError::Connection(error)),
        };
        let mut go = Ok(Go::On);
        frames.push(&chunk[..count], |frame| {
            if matches!(go, Ok(Go::On)) {
                go = match frame {
                    Frame::Whole(line) => hear(desk, line, give),
                    Frame::TooLong { bytes } => Err(ServeError::TooLong { bytes }),
                };
            }
        });
        if go? == Go::Home {
            return Ok(());
        }
    }
}

fn hear(desk: &Desk, line: &[u8], give: &Sender<Task>) -> Result<Go, ServeError> {
    match ParentMessage::from_line(line).map_err(ServeError::Protocol)? {
        Some(ParentMessage::Query { request_id, payload }) => begin(desk, request_id, payload, give),
        Some(ParentMessage::Cancel { request_id }) => cancel(desk, &request_id),
        Some(ParentMessage::Shutdown { graceful }) => return Ok(shut_down(desk, graceful)),
        Some(ParentMessage::HealthCheck) => {
            let queries_processed = desk.state().queries_processed;
            desk.say(&WorkerMessage::HealthOk { uptime: desk.began.elapsed().as_secs_f64(), queries_processed });
        }
        // Of a later version: whoever says it has to do without an answer.
        None => {}
    }
    Ok(Go::On)
}

fn begin(desk: &Desk, request_id: String, query: Box<Query>, give: &Sender<Task>) {
    let cancel = CancelToken::new();
    let mut state = desk.state();
    if state.current.is_some() || state.is_to_end {
        drop(state);
        let error = "it has another query in hand, or ends".to_owned();
        desk.say(&WorkerMessage::Error { request_id, error, kind: None, then: None, result: None });
        return;
    }
    state.current = Some(Current { request_id: request_id.clone(), cancel: cancel.clone() });
    state.queries_processed += 1;
    drop(state);
    // Whatever comes of it, it is taken: also if it has no session, or fails before it has one.
    desk.say(&WorkerMessage::Session { request_id: request_id.clone(), session_id: query.session.clone() });
    // There is room: the one before is over.
    let _ = give.send(Task { request_id, query, cancel });
}

fn cancel(desk: &Desk, request_id: &str) {
    let state = desk.state();
    match &state.current {
        // Under the lock: whoever ends the query then sees it, and says whether it can go on.
        Some(current) if current.request_id == request_id => {
            current.cancel.cancel(CancelReason::Requested);
        }
        // It was over before that was heard; the parent waits to hear whether the worker can go on.
        Some(_) | None => {
            drop(state);
            desk.say(&WorkerMessage::Ready);
        }
    }
}

fn shut_down(desk: &Desk, graceful: bool) -> Go {
    let mut state = desk.state();
    if graceful && state.current.is_some() {
        state.is_to_end = true;
        return Go::On;
    }
    drop(state);
    desk.cancel_current(CancelReason::Shutdown);
    desk.say(&WorkerMessage::ShutdownAck);
    Go::Home
}

/// Executes one query after the other.
fn work(desk: &Desk, executor: &dyn Executor, take: &Receiver<Task>) {
    for task in take {
        desk.say_end(&answer(desk, executor, &task));
        if task.cancel.is_cancelled() {
            desk.say(&WorkerMessage::Ready);
        }
        if desk.state().is_to_end {
            desk.say(&WorkerMessage::ShutdownAck);
            desk.hang_up();
        }
    }
}

/// Executes a query, and says how it ended.
fn answer(desk: &Desk, executor: &dyn Executor, task: &Task) -> WorkerMessage {
    let Task { request_id, query, cancel } = task;
    let clock = SystemClock;
    let claim = claim(query);
    let recorder = Wire { desk, request_id, told_partial_at: Mutex::new(None) };
    let timeout = Duration::from_millis(query.timeout_ms);
    let call = Call {
        claim: &claim,
        prompt: &query.prompt,
        timeout,
        deadline_ms: clock.now().boot_ms.saturating_add(i64::try_from(query.timeout_ms).unwrap_or(i64::MAX)),
        grace: Duration::from_millis(query.grace_ms),
        cancel,
        clock: &clock,
        recorder: &recorder,
    };
    let executed = catch_unwind(AssertUnwindSafe(|| executor.execute(&call)));
    match executed.unwrap_or_else(|payload| Err(panicked(panics::describe(payload)))) {
        Ok(result) => WorkerMessage::Complete { request_id: request_id.clone(), result: as_value(&result) },
        Err(error) => {
            let (failure, then, result) = error.into_parts();
            WorkerMessage::Error {
                request_id: request_id.clone(),
                error: failure.message,
                kind: Some(failure.kind.as_str().to_owned()),
                then: Some(Follow::from(then)),
                result: Some(as_value(&result)),
            }
        }
    }
}

fn panicked(message: String) -> ExecuteError {
    ExecuteError::broken(message).kind(FailureKind::PANIC.as_str().to_owned())
}

fn as_value(result: &WorkResult) -> Value {
    serde_json::to_value(result).expect("a result has only keys that are text")
}

/// Sends what an executor tells.
struct Wire<'a> {
    desk: &'a Desk,
    request_id: &'a str,
    told_partial_at: Mutex<Option<Instant>>,
}

impl Wire<'_> {
    fn send(&self, content: Content) {
        let (request_id, content) = (self.request_id.to_owned(), content.into_value());
        self.desk.say(&WorkerMessage::Message { request_id, content });
    }
}

impl Recorder for Wire<'_> {
    fn messages(&self, messages: Vec<Message>) {
        messages.into_iter().for_each(|message| self.send(Content::Message(message)));
    }

    fn partial(&self, text: &str) {
        let mut told_at = self.told_partial_at.lock().unwrap_or_else(PoisonError::into_inner);
        if told_at.is_none_or(|at| at.elapsed() >= PARTIAL_EVERY) {
            *told_at = Some(Instant::now());
            drop(told_at);
            self.send(Content::Partial(text.to_owned()));
        }
    }

    fn session(&self, session_id: &str) {
        let (request_id, session_id) = (self.request_id.to_owned(), Some(session_id.to_owned()));
        self.desk.say(&WorkerMessage::Session { request_id, session_id });
    }

    fn process(&self, _process: Process) {
        // The parent keeps which process does the work: this one.
    }

    fn usage(&self, charge: Charge) {
        self.send(Content::Usage(charge));
    }

    fn checkpoint(&self, value: &Value) {
        self.send(Content::Checkpoint(value.clone()));
    }
}

/// The unit of a query, as far as a worker has to know it.
fn claim(query: &Query) -> Claim {
    let spent = query.options.max_cost.zip(query.cost_left).map(|(limit, left)| limit - left);
    let unit = WorkUnit {
        key: UnitKey(0),
        job_id: query.job_id,
        id: query.unit_id.clone(),
        unit_type: query.unit_type.clone(),
        status: UnitStatus::Processing,
        priority: 0,
        payload: query.payload.clone(),
        prompt: Some(query.prompt.clone()),
        template: None,
        options: query.options.clone(),
        max_retries: 0,
        attempt_count: query.attempt,
        attempts_used: 0,
        fence: 0,
        accepted_by: None,
        not_before: None,
        created_at: DateTime::<Utc>::default(),
        assigned_at: None,
        started_at: None,
        first_message_at: None,
        completed_at: None,
        purged_at: None,
        worker_id: None,
        execution_time: None,
        rendered_prompt: None,
        result: None,
        output: None,
        output_files: Vec::new(),
        failure: None,
        session_id: None,
        process: None,
        tokens: Tokens::default(),
        cost: Cost { amount: spent.unwrap_or_default(), unpriced: 0 },
    };
    let lease = Lease {
        job_id: query.job_id,
        unit_id: query.unit_id.clone(),
        unit: unit.key,
        attempt_number: query.attempt,
        fence: 0,
        owner: OwnerId(0),
        worker_id: WorkerId::new("worker").expect("it is a name"),
        until_ms: i64::MAX,
    };
    let (checkpoint, resume_session) = (query.checkpoint.clone(), query.session.clone());
    Claim { lease, unit, checkpoint, resume_session, earlier_processes: Vec::new() }
}
