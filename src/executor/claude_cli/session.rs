//! Claude Code kept alive: one process is asked many units, `claude -p --input-format stream-json`.
//!
//! ```text
//!   {"type":"user",…"/clear"}  ──▶ result (local_command: clear)       only between units that have nothing to do with each other
//!   {"type":"user",…prompt}    ──▶ init, assistant, user, … result     the unit
//!   {"type":"control_request",…interrupt}  ──▶ result (aborted)        if it is cancelled
//!   end of input               ──▶ exit                                when it is not needed any more
//! ```
//!
//! One query at a time: what is said while another one is under way is taken for a part of that. What it prints is understood by the same
//! reader as that of a process for each unit, so what comes of a unit is the same.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::stream::ClaudeReader;
use super::{ClaudeCli, Spending};
use crate::attempt::Provenance;
use crate::executor::agent_cli::{Trouble, is_blank, session_to_resume, text};
use crate::executor::process::{self, ChildCommand, Exit, How, Input, Limits, Line, Reader};
use crate::executor::warm::{
    Afterwards, Control, Dialect, End, Heard, Keep, KeepError, ProcessKey, Processes, Query, Reach, Warm,
};
use crate::executor::{Call, ExecuteError, Executor, Unavailable, WorkResult};

/// How long it may take to clear a conversation. It takes a fiftieth of a second.
const CLEAR_LIMIT: Duration = Duration::from_secs(10);

/// Of how many affinity keys it is remembered in which session they are.
const REMEMBERED_SESSIONS: usize = 100_000;

/// Keeps it from working in the background: that would go on in the next unit, and at its expense.
const NO_BACKGROUND: &str = "CLAUDE_CODE_DISABLE_BACKGROUND_TASKS";

/// What is between two units that the same process is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Between {
    /// `/clear`: each unit begins with an empty conversation, unless it carries on the session that the process has.
    Clear,
    /// The end of the process: each unit has one of its own, which starts when it is needed.
    NewProcess,
    /// Nothing, for units with the same affinity key: they are one conversation, which is carried on by its session if the process has ended
    /// meanwhile. Those without a key begin with an empty one.
    Nothing,
}

/// Runs units with Claude Code in processes that stay alive. What comes of a unit is what [`ClaudeCli`] would make of it; how it is called is
/// said with that.
///
/// ```
/// use workcrew::executor::warm::Keep;
/// use workcrew::executor::claude_cli::{Between, ClaudeSession};
/// use workcrew::ClaudeCli;
///
/// let agent = ClaudeCli::new().model("sonnet").allowed_tools(["Read", "Grep"]);
/// let agent = ClaudeSession::new(agent, Between::Clear, Keep::up_to(4))?;
/// # Ok::<(), workcrew::executor::warm::KeepError>(())
/// ```
///
/// Four things differ from a process for each unit. Nothing works in the background, unless you set
/// `CLAUDE_CODE_DISABLE_BACKGROUND_TASKS` to something else: it would go on in the next unit, and at its expense. If it did after all, the process
/// is heard out and not asked again. A unit that is cancelled is interrupted, and the process goes on if that took less than half a second.
/// What a unit may still cost is not passed on, since the process spends for others too: it is looked at when the unit has its answer.
/// And a prompt that begins with `/` is a command to the program here too, so the process is replaced after it: it may have changed more than its unit.
#[derive(Debug)]
pub struct ClaudeSession {
    warm: Warm<Session>,
}

impl ClaudeSession {
    /// Keeps processes of Claude Code that are called like this, of which there are none yet: each is started when it is needed.
    ///
    /// # Errors
    ///
    /// When a setting makes no sense.
    pub fn new(mut agent: ClaudeCli, between: Between, keep: Keep) -> Result<ClaudeSession, KeepError> {
        agent.setup.environment.set_if_unset(NO_BACKGROUND, "1");
        let sessions = Mutex::default();
        Ok(ClaudeSession { warm: Warm::new(Session { agent, between, sessions }, keep)? })
    }

    /// A look at the processes from wherever, also once a pool has this executor.
    pub fn processes(&self) -> Processes {
        self.warm.processes()
    }
}

impl Executor for ClaudeSession {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        self.warm.execute(call)
    }

    fn provider(&self) -> Option<String> {
        Some("claude".to_owned())
    }

    fn name(&self) -> &str {
        "claude_session"
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        self.warm.dialect().agent.is_available()
    }

    fn provenance(&self) -> Provenance {
        let mut recorded = self.warm.dialect().agent.recorded();
        recorded.arguments.push("--input-format=stream-json".to_owned());
        Provenance { executor: self.name().to_owned(), ..recorded }
    }

    fn pool_stopped(&self, grace: Duration) {
        self.warm.close(grace);
    }
}

/// Claude Code, as [`Warm`] speaks to it.
#[derive(Debug)]
struct Session {
    agent: ClaudeCli,
    between: Between,
    /// The session of each affinity key, where those are conversations.
    sessions: Mutex<HashMap<ProcessKey, String>>,
}

/// What is known of a process from one unit to the next.
#[derive(Debug, Default)]
struct Memory {
    session: Option<String>,
    spending: Option<Spending>,
    has_answered: bool,
    /// It could not even begin: the session that it was to carry on is not there.
    was_refused: bool,
}

impl Session {
    fn remembered(&self, key: &ProcessKey) -> Option<String> {
        let sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        key.session.as_ref().and_then(|_| sessions.get(key).cloned())
    }

    fn remember(&self, key: ProcessKey, session: &str) {
        if self.between != Between::Nothing || key.session.is_none() {
            return;
        }
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        if sessions.len() >= REMEMBERED_SESSIONS
            && !sessions.contains_key(&key)
            && let Some(any) = sessions.keys().next().cloned()
        {
            sessions.remove(&any);
        }
        sessions.insert(key, session.to_owned());
    }

    fn forget(&self, key: &ProcessKey) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }

    /// Whether what a process has said and heard so far has nothing to do with a call.
    fn is_to_clear(&self, memory: &Memory, call: &Call<'_>) -> bool {
        let carries_on = match self.between {
            Between::Nothing => self.resumed(call).is_some() || self.key(call).session.is_some(),
            Between::Clear | Between::NewProcess => self.resumed(call).is_some(),
        };
        memory.has_answered && !carries_on
    }
}

impl Dialect for Session {
    type Memory = Memory;
    type Query = ClaudeQuery;

    const REACH: Reach = Reach::Pipes;

    fn key(&self, call: &Call<'_>) -> ProcessKey {
        let session = call.unit().options.affinity_key.as_deref().or(self.resumed(call));
        let setting = self.agent.turns(call).map(|turns| format!("{turns} turns")).unwrap_or_default();
        ProcessKey { session: session.map(str::to_owned), setting, ..ProcessKey::of(call) }
    }

    fn resumed<'a>(&self, call: &Call<'a>) -> Option<&'a str> {
        session_to_resume(call)
    }

    fn session<'a>(&self, memory: &'a Memory) -> Option<&'a str> {
        memory.session.as_deref()
    }

    fn fits(&self, memory: &Memory, resumed: Option<&str>) -> bool {
        resumed.is_none() || memory.session.as_deref() == resumed
    }

    fn child(&self, call: &Call<'_>) -> ChildCommand {
        let remembered = self.remembered(&self.key(call));
        let mut arguments = self.agent.arguments_with(self.resumed(call).or(remembered.as_deref()), None, call);
        arguments.push("--input-format=stream-json".into());
        ChildCommand { input: Input::Open, ..self.agent.setup.child(arguments, call) }
    }

    fn remember_start(&self, memory: &mut Memory, call: &Call<'_>) {
        let is_resumed = self.resumed(call).is_some() || self.remembered(&self.key(call)).is_some();
        let spending = if is_resumed { Spending::of_resumed_session() } else { Spending::of_new_session() };
        memory.spending = Some(spending);
    }

    fn ask(
        &self,
        memory: &mut Memory,
        _request_id: &str,
        _grace: Duration,
        call: &Call<'_>,
    ) -> Result<(Vec<u8>, ClaudeQuery), ExecuteError> {
        if call.prompt().trim().is_empty() {
            return Err(Trouble::InvalidArguments.error("there is no prompt", WorkResult::empty()));
        }
        let is_to_clear = self.is_to_clear(memory, call);
        let mut spending = memory.spending.take().unwrap_or_else(Spending::of_resumed_session);
        if is_to_clear {
            spending.cleared();
            // The next one says itself which it is, unless its unit is cancelled before that.
            memory.session = None;
        }
        let prompt = user_line(call.prompt());
        let (words, waiting) = if is_to_clear { (user_line("/clear"), Some(prompt)) } else { (prompt, None) };
        let is_replaced = self.between == Between::NewProcess || call.prompt().trim_start().starts_with('/');
        let is_of_key = self.resumed(call).is_none();
        let reader = self.agent.reader_from(spending);
        Ok((words, ClaudeQuery { reader, waiting, has_begun: false, is_replaced, is_of_key }))
    }

    fn answered(&self, memory: &Memory, call: &Call<'_>) {
        match &memory.session {
            _ if memory.was_refused => self.forget(&self.key(call)),
            Some(session) => self.remember(self.key(call), session),
            None => {}
        }
    }

    fn limits(&self) -> Limits {
        self.agent.setup.limits
    }

    fn control(&self, line: Line<'_>) -> Control {
        if is_blank(line) {
            return Control::Nothing;
        }
        let event: Option<Value> = serde_json::from_slice(line.bytes).ok();
        let event_type = event.as_ref().and_then(|event| event.get("type")).and_then(Value::as_str);
        match event_type {
            Some("result" | "assistant" | "user" | "stream_event") | None => {
                Control::Fault("it speaks though nobody has asked".to_owned())
            }
            // Said in passing.
            Some(_) => Control::Nothing,
        }
    }

    fn cancel(&self, request_id: &str) -> Vec<u8> {
        line(&json!({
            "type": "control_request",
            "request_id": request_id,
            "request": { "subtype": "interrupt" },
        }))
    }

    fn goes_on_after_cancel(&self) -> bool {
        true
    }

    fn health_check(&self) -> Option<Vec<u8>> {
        None
    }

    fn shutdown(&self) -> Option<Vec<u8>> {
        None
    }
}

fn user_line(text: &str) -> Vec<u8> {
    line(&json!({ "type": "user", "message": { "role": "user", "content": text } }))
}

fn line(value: &Value) -> Vec<u8> {
    let mut line = value.to_string().into_bytes();
    line.push(b'\n');
    line
}

/// What a line says about whether the turn has begun that was asked for.
enum Beginning {
    Begins,
    /// It is of a turn that nobody has asked for.
    Strays,
    Unclear,
}

fn beginning(line: Line<'_>) -> Beginning {
    let Ok(Value::Object(event)) = serde_json::from_slice(line.bytes) else { return Beginning::Unclear };
    match (text(&event, "type"), text(&event, "subtype")) {
        ("system", "init") => Beginning::Begins,
        // What could not even begin says so at once.
        ("result", _) if event.get("is_error") == Some(&Value::Bool(true)) => Beginning::Begins,
        ("result" | "assistant", _) => Beginning::Strays,
        _ => Beginning::Unclear,
    }
}

/// One unit, asked of a process.
struct ClaudeQuery {
    reader: ClaudeReader,
    /// The prompt, while the conversation before it is being cleared.
    waiting: Option<Vec<u8>>,
    /// Its turn has begun.
    has_begun: bool,
    /// The process is not to be asked again.
    is_replaced: bool,
    /// The session that it carries on, if any, is that of its affinity key, and not one that the unit or an attempt at it names.
    is_of_key: bool,
}

impl ClaudeQuery {
    /// Takes what is printed while the conversation is cleared, which is not of this unit.
    fn hear_clearing(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        let event: Option<Value> = serde_json::from_slice(line.bytes).ok();
        let Some(Value::Object(event)) = event else { return Heard::More };
        if text(&event, "type") != "result" {
            return Heard::More;
        }
        // Older versions do not say what it is the result of, but that it took no turn.
        let took_no_turn = !event.contains_key("local_command") && event.get("num_turns") == Some(&Value::from(0));
        let is_cleared = text(&event, "local_command") == "clear" || took_no_turn;
        if !is_cleared || event.get("is_error") == Some(&Value::Bool(true)) {
            // Perhaps something that it still had to say of an earlier unit.
            return Heard::NotTaken("its conversation could not be cleared".to_owned());
        }
        match self.waiting.take() {
            Some(prompt) if !call.is_cancelled() => Heard::Say(prompt),
            _ => Heard::Over(Afterwards::GoesOn),
        }
    }
}

impl Query<Memory> for ClaudeQuery {
    fn hear(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard {
        if self.waiting.is_some() {
            return self.hear_clearing(line, call);
        }
        if !self.has_begun {
            match beginning(line) {
                Beginning::Begins => self.has_begun = true,
                // Every turn begins with an `init`: this is the end of one that nobody has asked for, of which the prompt may have become
                // a part.
                Beginning::Strays => return Heard::Broken("it speaks of something else".to_owned()),
                Beginning::Unclear => {}
            }
        }
        match self.reader.read(line, call) {
            process::Heard::More | process::Heard::AtWork => Heard::More,
            process::Heard::Answer if self.reader.had_background() || self.reader.was_refused() => {
                Heard::Over(Afterwards::HeardOut)
            }
            process::Heard::Answer if self.is_replaced => {
                Heard::Over(Afterwards::Replaced("it is for one unit".to_owned()))
            }
            process::Heard::Answer => Heard::Over(Afterwards::GoesOn),
        }
    }

    fn patience(&self) -> Option<Duration> {
        self.waiting.as_ref().map(|_| CLEAR_LIMIT)
    }

    fn written_files(&self) -> Vec<String> {
        self.reader.written_files()
    }

    fn conclude(self, end: End<'_>, memory: &mut Memory, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let ended;
        let exit = match end {
            End::Over => None,
            End::Exit(exit) => Some(exit),
            End::Broken(reason) => {
                ended = Exit {
                    how: How::Signalled(libc::SIGKILL),
                    stderr_tail: reason.as_bytes().to_vec(),
                    stderr_bytes: 0,
                };
                Some(&ended)
            }
        };
        memory.was_refused = self.reader.lacks_session();
        let concluded = match self.reader.finish(exit, call) {
            // It can begin without.
            Err(error) if memory.was_refused && self.is_of_key => {
                Err(Trouble::OwnSessionNotFound.error(error.to_string(), WorkResult::empty()))
            }
            concluded => concluded,
        };
        memory.session = self.reader.session().map(str::to_owned).or(memory.session.take());
        memory.spending = Some(self.reader.into_spending().next_query());
        memory.has_answered = true;
        concluded
    }
}
