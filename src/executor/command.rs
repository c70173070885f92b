//! Any command: the prompt on its input, its output is the answer.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::agent_cli::{Setup, is_blank};
use super::available::{self, Unavailable};
use super::process::{self, Environment, Exit, Heard, How, Line, Reader, Reason};
use super::{Call, CancelReason, ExecuteError, Executor, Then, WorkResult, kinds};
use crate::attempt::Provenance;
use crate::conversation::{Message, Part, Role};

/// How much of what a command prints is its answer. It may print more, which is not kept.
const OUTPUT_LIMIT_BYTES: usize = 10 * 1024 * 1024;

/// How often what a command has printed so far is kept.
const PARTIAL_EVERY: Duration = Duration::from_secs(1);

/// Runs a command for each attempt, and can always end it together with all that it has started.
///
/// It gets the prompt on its input, to the end, and runs in the workspace of the unit if that has one. What it prints is the answer, and
/// is kept as it comes. It gets few of the host's variables: those that say where things are, and those that are named here.
///
/// ```
/// use workcrew::executor::CommandExecutor;
/// # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository, WorkPool};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("loud"))?;
///
/// let loud = CommandExecutor::new("tr").args(["a-z", "A-Z"]);
/// let pool = WorkPool::builder(job.id, loud, repository).start()?;
/// let unit = pool.enqueue(NewUnit::new("a"), "hello")?.wait()?;
/// assert_eq!(unit.output.as_deref(), Some("HELLO"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct CommandExecutor {
    setup: Setup,
    name: Option<String>,
    output: Output,
    exit_codes: BTreeMap<i32, (Cow<'static, str>, Then)>,
}

/// What a command prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Text,
    Ndjson,
}

impl CommandExecutor {
    /// Runs this program, which is looked for on the path unless it is named with its folder.
    pub fn new(program: impl Into<OsString>) -> CommandExecutor {
        CommandExecutor {
            setup: Setup::of(program, Environment::default()),
            name: None,
            output: Output::Text,
            exit_codes: BTreeMap::new(),
        }
    }

    /// One more argument (none). It is taken as it is: no shell looks at it. Arguments are seen by others on the machine.
    pub fn arg(mut self, argument: impl Into<OsString>) -> Self {
        self.setup.arguments.push(argument.into());
        self
    }

    /// More arguments (none).
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.setup.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// What it is called in the records (the program).
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets a variable (none). Its value is recorded nowhere.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.setup.environment.set(name, value);
        self
    }

    /// Passes a variable of the host on, or all that begin so if the name ends in `*` (`PATH`, `HOME`, the language, proxies and
    /// certificates, no others).
    pub fn pass_env(mut self, name: impl Into<String>) -> Self {
        self.setup.environment.pass(name);
        self
    }

    /// Where it runs, if the unit has no workspace of its own (where the host does).
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.setup.directory = Some(directory.into());
        self
    }

    /// How long it may print nothing (for as long as the attempt may take).
    pub fn silence_limit(mut self, limit: Duration) -> Self {
        self.setup.limits.silence = Some(limit);
        self
    }

    /// How long it may take until it prints something (for as long as the attempt may take).
    pub fn start_limit(mut self, limit: Duration) -> Self {
        self.setup.limits.start = Some(limit);
        self
    }

    /// Its output is one JSON value a line, each a message of its own; the last one is the result (its output is text).
    pub fn ndjson(mut self) -> Self {
        self.output = Output::Ndjson;
        self
    }

    /// What this exit code means (for 0 that it succeeded, for all others `exit_code` and another attempt).
    ///
    /// ```
    /// use workcrew::Then;
    /// use workcrew::executor::{CommandExecutor, kinds};
    ///
    /// let lint = CommandExecutor::new("lint").exit_code(2, kinds::INVALID_REQUEST, Then::GiveUp);
    /// ```
    pub fn exit_code(mut self, code: i32, kind: impl Into<Cow<'static, str>>, then: Then) -> Self {
        self.exit_codes.insert(code, (kind.into(), then));
        self
    }
}

impl Executor for CommandExecutor {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let child = self.setup.child(self.setup.arguments.clone(), call);
        match self.output {
            Output::Text => process::run(&child, Text::of(self), call),
            Output::Ndjson => process::run(&child, Ndjson::of(self), call),
        }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_else(|| self.setup.program.to_str().unwrap_or("command"))
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        available::program(&self.setup.program, "install it, or name it with its folder")
    }

    fn provenance(&self) -> Provenance {
        // What comes behind the program's name is the caller's, and may hold a secret.
        Provenance::of(Executor::name(self))
    }
}

/// What came of a command that ended like this; `Ok` if it succeeded.
fn judge(executor: &CommandExecutor, exit: &Exit) -> Result<(), ExecuteError> {
    let program = executor.setup.program.to_string_lossy();
    let failed = |kind: Cow<'static, str>, then, what: String| {
        let said = exit.stderr_text();
        let message = if said.is_empty() { what } else { format!("{what}: {said}") };
        Err(ExecuteError::following(then, message).kind(kind))
    };
    match exit.how {
        How::Exited(code) => match executor.exit_codes.get(&code) {
            Some((kind, then)) => failed(kind.clone(), *then, format!("`{program}` ended with exit code {code}")),
            None if code == 0 => Ok(()),
            None => failed(kinds::EXIT_CODE.into(), Then::Retry, format!("`{program}` ended with exit code {code}")),
        },
        How::Signalled(signal) => {
            failed(kinds::KILLED.into(), Then::Retry, format!("`{program}` was ended by signal {signal}"))
        }
        How::Ended(reason) => {
            let (kind, what) = match reason {
                Reason::Silent(limit) => (kinds::SILENT, format!("said nothing for {limit:?}")),
                Reason::NeverSpoke(limit) => (kinds::NEVER_SPOKE, format!("said nothing in the first {limit:?}")),
                Reason::Cancelled(CancelReason::TimedOut) => (kinds::TIMED_OUT, "took too long".to_owned()),
                Reason::Cancelled(_) => (kinds::CANCELLED, "was to stop".to_owned()),
                Reason::Lingered | Reason::ClosedItsOutput => {
                    (kinds::NO_RESULT, "closed its output and did not end".to_owned())
                }
            };
            failed(kind.into(), Then::Retry, format!("`{program}` {what} and was ended"))
        }
    }
}

/// Reads a command whose output is its answer.
struct Text<'a> {
    executor: &'a CommandExecutor,
    said: Vec<u8>,
    total_bytes: u64,
    has_begun: bool,
    kept_at: Option<Instant>,
}

impl<'a> Text<'a> {
    fn of(executor: &'a CommandExecutor) -> Text<'a> {
        Text { executor, said: Vec::new(), total_bytes: 0, has_begun: false, kept_at: None }
    }
}

impl Reader for Text<'_> {
    fn read(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        let break_before: &[u8] = if std::mem::replace(&mut self.has_begun, true) { b"\n" } else { b"" };
        for bytes in [break_before, line.bytes] {
            let room = OUTPUT_LIMIT_BYTES - self.said.len();
            self.said.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        let line_bytes = line.truncation.map_or(line.bytes.len() as u64, |truncation| truncation.total_bytes);
        self.total_bytes += break_before.len() as u64 + line_bytes;
        if self.kept_at.is_none_or(|at| at.elapsed() >= PARTIAL_EVERY) {
            self.kept_at = Some(Instant::now());
            call.partial(&String::from_utf8_lossy(&self.said));
        }
        Heard::More
    }

    fn conclude(self, exit: &Exit, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let output = String::from_utf8_lossy(&self.said).into_owned();
        if self.has_begun {
            call.message(Message::assistant(output.clone()).raw(self.said));
        }
        let mut result = WorkResult::text(output);
        if self.total_bytes > OUTPUT_LIMIT_BYTES as u64 {
            result = result.json(serde_json::json!({ "truncated_from_bytes": self.total_bytes }));
        }
        match judge(self.executor, exit) {
            Ok(()) => Ok(result),
            Err(error) => Err(error.result(result)),
        }
    }
}

/// Reads a command that prints JSON, a value a line.
struct Ndjson<'a> {
    executor: &'a CommandExecutor,
    last: Option<Value>,
}

impl<'a> Ndjson<'a> {
    fn of(executor: &'a CommandExecutor) -> Ndjson<'a> {
        Ndjson { executor, last: None }
    }
}

impl Reader for Ndjson<'_> {
    fn read(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        if is_blank(line) {
            return Heard::More;
        }
        let mut message = Message::new(Role::Assistant).raw(line.bytes.to_vec());
        message = match (line.truncation, serde_json::from_slice::<Value>(line.bytes)) {
            (None, Ok(value)) => {
                self.last = Some(value.clone());
                let kind = value.get("type").and_then(Value::as_str).unwrap_or("json").to_owned();
                message.part(Part::Other { kind, value })
            }
            (None, Err(_)) => message.part(Part::text(String::from_utf8_lossy(line.bytes))),
            (Some(truncation), _) => message.truncated_from(truncation),
        };
        call.message(message);
        Heard::More
    }

    fn conclude(self, exit: &Exit, _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        judge(self.executor, exit).and_then(|()| {
            let program = self.executor.setup.program.to_string_lossy();
            let nothing = || ExecuteError::retry(format!("`{program}` printed no JSON")).kind(kinds::NO_RESULT);
            self.last.map(|value| WorkResult::empty().json(value)).ok_or_else(nothing)
        })
    }
}
