//! Codex as an executor: `codex exec --json`, one process for each attempt.
//!
//! [`CodexCli`] says how it is called. The prompt goes to its input; what it prints is read as it comes (`stream`): each event becomes a
//! message of the conversation with the line that it came in, and the thread is kept as the session at once.
//!
//! Codex names no prices. What a unit cost is computed from the tokens and a [`price`](CodexCli::price), and is unknown without one. It
//! counts tokens over the life of a thread (`spending`), so what was used in a thread that another unit began is unknown, too.
//!
//! What can go wrong, and what follows, is the table of [`kinds`](super::kinds).
//!
//! The program that npm installs only starts another one, and ending it would not end that; where there is a choice, name the native one with
//! [`program`](CodexCli::program).

mod failure;
mod message;
mod spending;
mod stream;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use self::spending::Spending;
use self::stream::CodexReader;
use super::agent_cli::{Setup, hidden, option, recorded, session_to_resume};
use super::process::{self, ChildCommand, Environment};
use super::{Call, ExecuteError, Executor, Unavailable, WorkResult, available};
use crate::attempt::Provenance;
use crate::money::{Price, PriceTable};

/// What Codex needs of the host's environment beyond what every program does: keys and its home.
const NEEDED: &[&str] = &["OPENAI_*", "CODEX_HOME", "CODEX_API_KEY"];

/// What is set for whatever runs inside a sandbox of Codex, which a host may be.
const KEPT_BACK: &[&str] = &["CODEX_SANDBOX*"];

/// What a model is called in the books if nobody has said which.
const MODEL_BY_DEFAULT: &str = "codex-default";

/// Runs units with Codex.
///
/// ```
/// use workcrew::{CodexCli, Price};
///
/// let price = Price::new("2026-01-01T00:00:00Z".parse()?)
///     .input("1.25".parse()?)
///     .cache_read("0.125".parse()?)
///     .output("10".parse()?);
/// let fixer = CodexCli::new().model("gpt-5-codex").price(price).sandbox("workspace-write");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct CodexCli {
    setup: Setup,
    model: Option<String>,
    price: Option<Price>,
    prices: PriceTable,
    sandbox: Option<String>,
    config: Vec<String>,
    directories: Vec<PathBuf>,
    output_schema: Option<PathBuf>,
    forks_session: bool,
}

impl CodexCli {
    /// The `codex` on the path, as it is set up for the user.
    pub fn new() -> CodexCli {
        CodexCli {
            setup: Setup::of("codex", Environment::of(NEEDED, KEPT_BACK)),
            model: None,
            price: None,
            prices: PriceTable::new(),
            sandbox: None,
            config: Vec::new(),
            directories: Vec::new(),
            output_schema: None,
            forks_session: false,
        }
    }

    /// The program (`codex`).
    pub fn program(mut self, program: impl Into<OsString>) -> CodexCli {
        self.setup.program = program.into();
        self
    }

    /// The model (as Codex is set up).
    pub fn model(mut self, model: impl Into<String>) -> CodexCli {
        self.model = Some(model.into());
        self
    }

    /// What the model costs (unknown).
    pub fn price(mut self, price: Price) -> CodexCli {
        self.price = Some(price);
        self
    }

    /// What models cost (unknown): what is used is the price of the [`model`](CodexCli::model), if that is set and among them, unless it has
    /// one of its [own](CodexCli::price). Codex tells the sum of its requests only, so none counts as one with a long prompt.
    pub fn prices(mut self, prices: PriceTable) -> CodexCli {
        self.prices = prices;
        self
    }

    /// What its commands may do (as Codex is set up): `read-only`, `workspace-write`, `danger-full-access`.
    pub fn sandbox(mut self, mode: impl Into<String>) -> CodexCli {
        self.sandbox = Some(mode.into());
        self
    }

    /// One more setting of its configuration, as `name=value` (none). Only the name is recorded.
    pub fn config(mut self, setting: impl Into<String>) -> CodexCli {
        self.config.push(setting.into());
        self
    }

    /// One more directory that it may write to (none but the one in which it runs).
    pub fn add_dir(mut self, directory: impl Into<PathBuf>) -> CodexCli {
        self.directories.push(directory.into());
        self
    }

    /// The file with the JSON schema of its answer (text). A success that is not JSON is a failure then.
    pub fn output_schema(mut self, file: impl Into<PathBuf>) -> CodexCli {
        self.output_schema = Some(file.into());
        self
    }

    /// One more argument, as it is (none). Only the names of options are recorded, not what they are set to.
    pub fn argument(mut self, argument: impl Into<OsString>) -> CodexCli {
        self.setup.arguments.push(argument.into());
        self
    }

    /// Carries on a copy of a thread, and leaves the thread as it was (the thread itself is carried on).
    pub fn fork_session(mut self) -> CodexCli {
        self.forks_session = true;
        self
    }

    /// Sets a variable of its environment (none). Only the name is recorded.
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> CodexCli {
        self.setup.environment.set(name, value);
        self
    }

    /// Passes on a variable of the host's environment that it would not get otherwise (none).
    pub fn pass_env(mut self, name: impl Into<String>) -> CodexCli {
        self.setup.environment.pass(name);
        self
    }

    /// Where it runs for a unit that names no workspace (where the host runs).
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> CodexCli {
        self.setup.directory = Some(directory.into());
        self
    }

    /// How long it may say nothing (as long as the attempt may take). It prints nothing while a tool runs or the model thinks.
    pub fn silence_limit(mut self, limit: Duration) -> CodexCli {
        self.setup.limits.silence = Some(limit);
        self
    }

    /// How long it may take until it says something (as long as the attempt may take).
    pub fn start_limit(mut self, limit: Duration) -> CodexCli {
        self.setup.limits.start = Some(limit);
        self
    }

    /// How long it may live on once it has answered (5 seconds).
    pub fn after_result_limit(mut self, limit: Duration) -> CodexCli {
        self.setup.limits.after_answer = limit;
        self
    }
}

impl Default for CodexCli {
    fn default() -> CodexCli {
        CodexCli::new()
    }
}

impl Executor for CodexCli {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        process::run(&self.child(call), self.reader(call), call)
    }

    fn provider(&self) -> Option<String> {
        Some("codex".to_owned())
    }

    fn name(&self) -> &str {
        "codex_cli"
    }

    fn is_available(&self) -> Result<(), Unavailable> {
        available::program(
            &self.setup.program,
            "install it with `npm install -g @openai/codex`, or name the native program with its folder",
        )
    }

    fn provenance(&self) -> Provenance {
        self.recorded()
    }
}

/// What it takes to run it.
impl CodexCli {
    /// The child to start for a call.
    fn child(&self, call: &Call<'_>) -> ChildCommand {
        self.setup.child(self.arguments(call), call)
    }

    /// What makes sense of its output.
    fn reader(&self, call: &Call<'_>) -> CodexReader {
        let model = self.model.clone().unwrap_or_else(|| MODEL_BY_DEFAULT.to_owned());
        let price = self.price.as_ref().or_else(|| self.prices.price(&model)).cloned();
        let spending = Spending::of(model, price.map(Price::without_tiers), call);
        CodexReader::new(self.setup.program.to_string_lossy().into_owned(), self.output_schema.is_some(), spending)
    }

    /// What is recorded of every attempt: how it is called, without secrets.
    fn recorded(&self) -> Provenance {
        let mut arguments: Vec<String> = self.options().iter().map(|argument| recorded(argument)).collect();
        arguments.extend(self.config.iter().map(|setting| hidden(option("--config", setting).as_os_str())));
        arguments.extend(self.setup.recorded());
        Provenance { model: self.model.clone(), arguments, ..Provenance::of("codex_cli") }
    }

    /// The arguments for a call: those of `exec`, then which thread to carry on, then that the prompt is on the input.
    fn arguments(&self, call: &Call<'_>) -> Vec<OsString> {
        let mut arguments = self.options();
        arguments.extend(self.config.iter().map(|setting| option("--config", setting)));
        arguments.extend(self.setup.arguments.iter().cloned());
        if let Some(thread) = session_to_resume(call) {
            arguments.push(if self.forks_session { "fork" } else { "resume" }.into());
            // What follows is never taken for an option.
            arguments.extend(["--", thread].map(OsString::from));
        }
        arguments.push("-".into());
        arguments
    }

    /// The arguments that are the same for all calls, but for the settings.
    fn options(&self) -> Vec<OsString> {
        let mut options: Vec<OsString> =
            ["exec", "--json", "--skip-git-repo-check"].into_iter().map(OsString::from).collect();
        options.extend(self.model.as_ref().map(|model| option("--model", model)));
        options.extend(self.sandbox.as_ref().map(|mode| option("--sandbox", mode)));
        options.extend(self.directories.iter().map(|directory| option("--add-dir", directory)));
        options.extend(self.output_schema.as_ref().map(|file| option("--output-schema", file)));
        options
    }
}
