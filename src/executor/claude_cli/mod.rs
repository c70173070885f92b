//! Claude Code as an executor: `claude -p`, one process for each attempt.
//!
//! [`ClaudeCli`] says how it is called. The prompt goes to its input, so it may be of any length and begin with anything; what it
//! prints is read as it comes (`stream`): each message becomes part of the conversation with the line that it came in, the session is kept at
//! once, and what it cost is the difference of counters that do not all begin at zero (`spending`).
//!
//! # What comes out
//!
//! The answer is the unit's output. With a [schema](ClaudeCli::json_schema), the unit's result is what was asked for in that form; without
//! one it is what Claude Code says about the run: `num_turns`, `duration_ms`, `stop_reason`, the tools that were not permitted
//! (`permission_denials`), and `error_after_success` if an error came after the answer. With a schema all that is in the last message of
//! the conversation. What can go wrong, and what follows, is the table of [`kinds`](super::kinds).
//!
//! # What it may cost
//!
//! What is left of the unit's [`max_cost`](crate::NewUnit::max_cost) goes to it as `--max-budget-usd`. It counts what this process spends, also where that
//! carries on a session that cost something before, and looks at it after each request: the last one may cost more. A process that is kept for
//! several units ([`ClaudeSession`]) counts for all of them together, so it is not told; there the limit holds between the attempts of a unit.
//!
//! # What it is not told
//!
//! Variables of the host's own that begin with `CLAUDECODE` or `CLAUDE_CODE_` are not passed on, because they change what it does: a host that was
//! itself started by Claude Code has some. Whoever wants one says so with [`env`](ClaudeCli::env) or [`pass_env`](ClaudeCli::pass_env), such as
//! `CLAUDE_CODE_OAUTH_TOKEN` or `CLAUDE_CODE_USE_BEDROCK`.
//!
//! It tries a request again by itself, ten times unless told otherwise, which may take three minutes for a wrong key. To leave that to the pool set
//! `CLAUDE_CODE_MAX_RETRIES` to `0`.

mod failure;
mod message;
mod session;
mod spending;
mod stream;
#[cfg(test)]
mod tests;
mod work;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

#[cfg(feature = "http")]
pub(super) use self::message::part as block_part;
pub use self::session::{Between, ClaudeSession};
use self::spending::Spending;
use self::stream::ClaudeReader;
use super::agent_cli::{Setup, option, recorded, session_to_resume};
use super::process::{self, ChildCommand, Environment};
use super::{Call, ExecuteError, Executor, Unavailable, WorkResult, available};
use crate::attempt::Provenance;
use crate::money::Money;

/// What Claude Code needs of the host's environment beyond what every program does: keys and endpoints.
const NEEDED: &[&str] = &[
    "ANTHROPIC_*",
    "AWS_*",
    "CLAUDE_CONFIG_DIR",
    "CLOUD_ML_REGION",
    "GOOGLE_*",
    "VERTEX_*",
    "IS_SANDBOX",
    "DISABLE_TELEMETRY",
    "DISABLE_AUTOUPDATER",
    "DISABLE_ERROR_REPORTING",
];

/// What a host has that was itself started by it, and what would change what it does.
const KEPT_BACK: &[&str] = &["CLAUDECODE*", "CLAUDE_CODE_*"];

/// Runs units with Claude Code.
///
/// ```
/// use std::time::Duration;
/// use workcrew::ClaudeCli;
///
/// let reviewer = ClaudeCli::new()
///     .model("sonnet")
///     .allowed_tools(["Read", "Grep", "Bash(git log *)"])
///     .permission_mode("dontAsk")
///     .append_system_prompt("You review code. Be brief.")
///     .max_turns(20)
///     .silence_limit(Duration::from_secs(300));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ClaudeCli {
    setup: Setup,
    model: Option<String>,
    allowed_tools: Vec<String>,
    disallowed_tools: Vec<String>,
    permission_mode: Option<String>,
    system_prompt: Option<String>,
    append_system_prompt: Option<String>,
    max_turns: Option<u32>,
    json_schema: Option<Value>,
    directories: Vec<PathBuf>,
    forks_session: bool,
    is_bare: bool,
    streams_text: bool,
}

impl ClaudeCli {
    /// The `claude` on the path, as it is set up for the user.
    pub fn new() -> ClaudeCli {
        ClaudeCli {
            setup: Setup::of("claude", Environment::of(NEEDED, KEPT_BACK)),
            model: None,
            allowed_tools: Vec::new(),
            disallowed_tools: Vec::new(),
            permission_mode: None,
            system_prompt: None,
            append_system_prompt: None,
            max_turns: None,
            json_schema: None,
            directories: Vec::new(),
            forks_session: false,
            is_bare: false,
            streams_text: false,
        }
    }

    /// The program (`claude`).
    pub fn program(mut self, program: impl Into<OsString>) -> ClaudeCli {
        self.setup.program = program.into();
        self
    }

    /// The model, by its name or an alias such as `sonnet` (as Claude Code is set up).
    pub fn model(mut self, model: impl Into<String>) -> ClaudeCli {
        self.model = Some(model.into());
        self
    }

    /// Tools that need no permission (none beyond what the settings say), such as `Read` or `Bash(git log *)`.
    pub fn allowed_tools(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> ClaudeCli {
        self.allowed_tools = tools.into_iter().map(Into::into).collect();
        self
    }

    /// Tools that may not be used (none).
    pub fn disallowed_tools(mut self, tools: impl IntoIterator<Item = impl Into<String>>) -> ClaudeCli {
        self.disallowed_tools = tools.into_iter().map(Into::into).collect();
        self
    }

    /// What becomes of tools that nobody has allowed (as Claude Code is set up): `acceptEdits`, `dontAsk`, `plan` and others. There is
    /// nobody to ask, so a question counts as a no.
    pub fn permission_mode(mut self, mode: impl Into<String>) -> ClaudeCli {
        self.permission_mode = Some(mode.into());
        self
    }

    /// Takes the place of the system prompt (Claude Code's own). It is an argument, which Linux limits to 128 KiB.
    pub fn system_prompt(mut self, prompt: impl Into<String>) -> ClaudeCli {
        self.system_prompt = Some(prompt.into());
        self
    }

    /// Follows the system prompt (nothing). It is an argument, which Linux limits to 128 KiB.
    pub fn append_system_prompt(mut self, prompt: impl Into<String>) -> ClaudeCli {
        self.append_system_prompt = Some(prompt.into());
        self
    }

    /// How many turns it may take for a unit that does not say so itself (as many as it likes); none counts as one.
    pub fn max_turns(mut self, turns: u32) -> ClaudeCli {
        self.max_turns = Some(turns);
        self
    }

    /// The form in which it is to answer, as a JSON schema (text). A success without it is a failure.
    pub fn json_schema(mut self, schema: impl Into<Value>) -> ClaudeCli {
        self.json_schema = Some(schema.into());
        self
    }

    /// One more directory that its tools may use (none but the one in which it runs).
    pub fn add_dir(mut self, directory: impl Into<PathBuf>) -> ClaudeCli {
        self.directories.push(directory.into());
        self
    }

    /// One more argument, as it is (none). Only the names of options are recorded, not what they are set to.
    pub fn argument(mut self, argument: impl Into<OsString>) -> ClaudeCli {
        self.setup.arguments.push(argument.into());
        self
    }

    /// Carries on a copy of a session, and leaves the session as it was (the session itself is carried on).
    pub fn fork_session(mut self) -> ClaudeCli {
        self.forks_session = true;
        self
    }

    /// Starts without hooks, plugins, memory and `CLAUDE.md`, and takes only an API key, never a login (with all of them).
    pub fn bare(mut self) -> ClaudeCli {
        self.is_bare = true;
        self
    }

    /// Keeps the text of a message while it is being written, too (only whole messages).
    pub fn stream_text(mut self) -> ClaudeCli {
        self.streams_text = true;
        self
    }

    /// Sets a variable of its environment (none). Only the name is recorded.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> ClaudeCli {
        self.setup.environment.set(name, value);
        self
    }

    /// Passes on a variable of the host's environment that it would not get otherwise (none).
    pub fn pass_env(mut self, name: impl Into<String>) -> ClaudeCli {
        self.setup.environment.pass(name);
        self
    }

    /// Where it runs for a unit that names no workspace (where the host runs).
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> ClaudeCli {
        self.setup.directory = Some(directory.into());
        self
    }

    /// How long it may say nothing (as long as the attempt may take). It prints nothing while a tool runs or the model thinks.
    pub fn silence_limit(mut self, limit: Duration) -> ClaudeCli {
        self.setup.limits.silence = Some(limit);
        self
    }

    /// How long it may take until it says something (as long as the attempt may take). A start takes about a second.
    pub fn start_limit(mut self, limit: Duration) -> ClaudeCli {
        self.setup.limits.start = Some(limit);
        self
    }

    /// How long it may live on once it has answered and nothing works in the background (5 seconds).
    pub fn after_result_limit(mut self, limit: Duration) -> ClaudeCli {
        self.setup.limits.after_answer = limit;
        self
    }
}

impl Default for ClaudeCli {
    fn default() -> ClaudeCli {
        ClaudeCli::new()
    }
}

impl Executor for ClaudeCli {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        process::run(&self.child(call), self.reader(call), call)
    }

    fn provider(&self) -> Option<String> {
        Some("claude".to_owned())
    }

    fn name(&self) -> &str {
        "claude_cli"
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        available::program(
            &self.setup.program,
            "install it with `npm install -g @anthropic-ai/claude-code`, or name it with its folder",
        )
    }

    fn provenance(&self) -> Provenance {
        self.recorded()
    }
}

/// What it takes to run it.
impl ClaudeCli {
    /// The child to start for a call.
    fn child(&self, call: &Call<'_>) -> ChildCommand {
        self.setup.child(self.arguments(call), call)
    }

    /// What makes sense of its output.
    fn reader(&self, call: &Call<'_>) -> ClaudeReader {
        self.reader_from(self.spending(call))
    }

    /// What a process for a call has used so far: nothing, but its counters may not say so.
    fn spending(&self, call: &Call<'_>) -> Spending {
        match session_to_resume(call) {
            Some(_) => Spending::of_resumed_session(),
            None => Spending::of_new_session(),
        }
    }

    fn reader_from(&self, spending: Spending) -> ClaudeReader {
        ClaudeReader::new(self.setup.program.to_string_lossy().into_owned(), self.json_schema.is_some(), spending)
    }

    /// What is recorded of every attempt: how it is called, without secrets.
    fn recorded(&self) -> Provenance {
        let mut arguments: Vec<String> = self.options().iter().map(|argument| recorded(argument)).collect();
        arguments.extend(self.max_turns.map(|turns| format!("--max-turns={turns}")));
        arguments.extend(self.setup.recorded());
        Provenance { model: self.model.clone(), arguments, ..Provenance::of("claude_cli") }
    }

    /// The arguments for a call.
    fn arguments(&self, call: &Call<'_>) -> Vec<OsString> {
        self.arguments_with(session_to_resume(call), call.cost_left(), call)
    }

    /// The same with this session to carry on, and with so much that the process may spend in its life.
    fn arguments_with(&self, session: Option<&str>, budget: Option<Money>, call: &Call<'_>) -> Vec<OsString> {
        let mut arguments = self.options();
        if let Some(budget) = budget {
            arguments.push(option("--max-budget-usd", budget.to_string().replace('$', "")));
        }
        if let Some(turns) = self.turns(call) {
            arguments.push(option("--max-turns", turns.to_string()));
        }
        if let Some(session) = session {
            arguments.push(option("--resume", session));
            if self.forks_session {
                arguments.push("--fork-session".into());
            }
        }
        arguments.extend(self.setup.arguments.iter().cloned());
        arguments
    }

    /// How many turns it may take for a call.
    fn turns(&self, call: &Call<'_>) -> Option<u32> {
        // It takes 0 for no limit.
        call.unit().options.max_iterations.or(self.max_turns).map(|turns| turns.max(1))
    }

    /// The arguments that are the same for all calls. A value stands behind its name and `=`, so that it is never taken for an option.
    fn options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> =
            ["--print", "--output-format=stream-json", "--verbose"].into_iter().map(OsString::from).collect();
        let switches = [(self.is_bare, "--bare"), (self.streams_text, "--include-partial-messages")];
        options.extend(switches.into_iter().filter(|(is_on, _)| *is_on).map(|(_, switch)| switch.into()));
        let schema = self.json_schema.as_ref().map(Value::to_string);
        for (name, value) in [
            ("--model", &self.model),
            ("--permission-mode", &self.permission_mode),
            ("--system-prompt", &self.system_prompt),
            ("--append-system-prompt", &self.append_system_prompt),
            ("--json-schema", &schema),
        ] {
            options.extend(value.as_ref().map(|value| option(name, value)));
        }
        options.extend(self.allowed_tools.iter().map(|tool| option("--allowedTools", tool)));
        options.extend(self.disallowed_tools.iter().map(|tool| option("--disallowedTools", tool)));
        options.extend(self.directories.iter().map(|directory| option("--add-dir", directory)));
        options
    }
}
