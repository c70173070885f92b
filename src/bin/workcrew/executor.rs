//! What executes the units, as it is asked for on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use workcrew::executor::CommandExecutor;
use workcrew::executor::http::{HttpApi, Wire};
use workcrew::{AnthropicApi, ClaudeCli, CodexCli, Executor, OpenAiApi, Replay, Simulated};

use crate::time;
use crate::trouble::Trouble;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Nothing is asked and nothing is paid: made-up conversations
    Simulated,
    /// Claude Code (`claude -p`)
    Claude,
    /// Codex (`codex exec`)
    Codex,
    /// A model of Anthropic's over HTTP, with the key in ANTHROPIC_API_KEY
    Anthropic,
    /// A model of OpenAI's over HTTP, or any server that speaks as they do, with the key in OPENAI_API_KEY
    Openai,
    /// The program behind `--`, which gets the prompt as its input and whose output is the answer
    Command,
    /// What is stored in the database of --from: nothing is asked, and a prompt that differs fails
    Replay,
}

/// It is kept with the job, so that `resume` and `worker` need not be told again.
#[derive(Args, Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorOptions {
    /// What executes the units [default: what the job was made with, or `command` with a program behind --, or `simulated`]
    #[arg(long, value_enum, help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<Kind>,
    /// The model that is asked
    #[arg(long, value_name = "M", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// The agent's program, if it is not the one on the path
    #[arg(long, value_name = "FILE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<PathBuf>,
    /// The folder in which units without a workspace of their own are executed
    #[arg(long, value_name = "DIR", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<PathBuf>,
    /// Passes a variable of this environment on; give it again for several
    #[arg(long = "pass-env", value_name = "NAME", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pass_env: Vec<String>,
    /// Ends an execution that has said nothing for so long, such as 5m
    #[arg(long, value_name = "TIME", value_parser = time::positive, help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    silence: Option<Duration>,
    /// A further argument for the agent's program, written as --agent-arg=--flag; give it again for several
    #[arg(long = "agent-arg", value_name = "ARG", allow_hyphen_values = true, help_heading = "Executor")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    agent_args: Vec<String>,
    /// What Claude Code may do without being asked, such as acceptEdits
    #[arg(long, value_name = "MODE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    permission_mode: Option<String>,
    /// The tools that Claude Code may use, with commas between them
    #[arg(long, value_name = "TOOLS", value_delimiter = ',', help_heading = "Executor")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    allowed_tools: Vec<String>,
    /// Where a model is asked over HTTP, such as http://localhost:11434/v1 [default: the provider itself]
    #[arg(long, value_name = "URL", value_parser = plain_url, help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    base_url: Option<String>,
    /// The variable that has the key of a model over HTTP
    #[arg(long, value_name = "NAME", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    key_env: Option<String>,
    /// How many tokens an answer over HTTP may have
    #[arg(long, value_name = "N", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    /// What Claude Code, or a model over HTTP, is told before the prompt
    #[arg(long, value_name = "TEXT", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    system_prompt: Option<String>,
    /// How many turns Claude Code may take
    #[arg(long, value_name = "N", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    max_turns: Option<u32>,
    /// What Codex may write, such as workspace-write
    #[arg(long, value_name = "MODE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    sandbox: Option<String>,
    /// Where the simulation's chance begins: the same number, the same answers
    #[arg(long, value_name = "N", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    /// How long a simulated turn takes at most
    #[arg(long, value_name = "TIME", value_parser = time::duration, help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    latency: Option<Duration>,
    /// The share of simulated executions that fail, from 0 to 1
    #[arg(long, value_name = "SHARE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    failures: Option<f64>,
    /// The database whose answers are given again
    #[arg(long, value_name = "FILE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    from: Option<PathBuf>,
    /// The program that executes the units, and its arguments: the prompt is its input, its output the answer
    #[arg(last = true, value_name = "PROGRAM ARGS")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
}

impl ExecutorOptions {
    /// What is asked for here, or else what was asked for when the job was made.
    pub fn or(self, kept: ExecutorOptions) -> ExecutorOptions {
        if self.executor.is_some_and(|kind| Some(kind) != kept.executor) {
            return self;
        }
        ExecutorOptions {
            executor: self.executor.or(kept.executor),
            model: self.model.or(kept.model),
            program: self.program.or(kept.program),
            cwd: self.cwd.or(kept.cwd),
            pass_env: of(self.pass_env, kept.pass_env),
            silence: self.silence.or(kept.silence),
            agent_args: of(self.agent_args, kept.agent_args),
            permission_mode: self.permission_mode.or(kept.permission_mode),
            allowed_tools: of(self.allowed_tools, kept.allowed_tools),
            base_url: self.base_url.or(kept.base_url),
            key_env: self.key_env.or(kept.key_env),
            max_tokens: self.max_tokens.or(kept.max_tokens),
            system_prompt: self.system_prompt.or(kept.system_prompt),
            max_turns: self.max_turns.or(kept.max_turns),
            sandbox: self.sandbox.or(kept.sandbox),
            seed: self.seed.or(kept.seed),
            latency: self.latency.or(kept.latency),
            failures: self.failures.or(kept.failures),
            from: self.from.or(kept.from),
            command: of(self.command, kept.command),
        }
    }

    /// What was asked for, or the simulation.
    pub fn kind(&self) -> Kind {
        let by_command = if self.command.is_empty() { Kind::Simulated } else { Kind::Command };
        self.executor.unwrap_or(by_command)
    }

    /// Makes it, if it can work here.
    pub fn make(&self) -> Result<Box<dyn Executor>, Trouble> {
        if self.kind() != Kind::Command && !self.command.is_empty() {
            return Err(Trouble::usage("a program behind -- is for --executor command"));
        }
        let executor: Box<dyn Executor> = match self.kind() {
            Kind::Simulated => Box::new(self.simulated()?),
            Kind::Claude => Box::new(self.claude()),
            Kind::Codex => Box::new(self.codex()),
            Kind::Anthropic => Box::new(self.http(AnthropicApi::new)?),
            Kind::Openai => Box::new(self.http(OpenAiApi::new)?),
            Kind::Command => Box::new(self.command()?),
            Kind::Replay => Box::new(self.replay()?),
        };
        executor.is_available().map_err(|missing| Trouble::usage(missing.to_string()))?;
        Ok(executor)
    }

    fn simulated(&self) -> Result<Simulated, Trouble> {
        let mut simulated = Simulated::new().turns(4);
        if let Some(seed) = self.seed {
            simulated = simulated.seed(seed);
        }
        if let Some(model) = &self.model {
            simulated = simulated.model(model);
        }
        if let Some(share) = self.failures {
            if !(0.0..=1.0).contains(&share) {
                return Err(Trouble::usage("--failures is a share between 0 and 1"));
            }
            simulated = simulated.failures(share);
        }
        let longest = self.latency.unwrap_or(Duration::from_millis(100));
        Ok(simulated.latency(longest / 5, longest))
    }

    fn claude(&self) -> ClaudeCli {
        let mut agent = ClaudeCli::new().allowed_tools(&self.allowed_tools);
        agent = self.program.iter().fold(agent, |agent, program| agent.program(program));
        agent = self.model.iter().fold(agent, |agent, model| agent.model(model));
        agent = self.cwd.iter().fold(agent, |agent, folder| agent.directory(folder));
        agent = self.pass_env.iter().fold(agent, |agent, name| agent.pass_env(name));
        agent = self.silence.into_iter().fold(agent, |agent, limit| agent.silence_limit(limit));
        agent = self.agent_args.iter().fold(agent, |agent, argument| agent.argument(argument));
        agent = self.permission_mode.iter().fold(agent, |agent, mode| agent.permission_mode(mode));
        agent = self.system_prompt.iter().fold(agent, |agent, text| agent.system_prompt(text));
        self.max_turns.into_iter().fold(agent, |agent, turns| agent.max_turns(turns))
    }

    fn codex(&self) -> CodexCli {
        let mut agent = CodexCli::new();
        agent = self.program.iter().fold(agent, |agent, program| agent.program(program));
        agent = self.model.iter().fold(agent, |agent, model| agent.model(model));
        agent = self.cwd.iter().fold(agent, |agent, folder| agent.directory(folder));
        agent = self.pass_env.iter().fold(agent, |agent, name| agent.pass_env(name));
        agent = self.silence.into_iter().fold(agent, |agent, limit| agent.silence_limit(limit));
        agent = self.agent_args.iter().fold(agent, |agent, argument| agent.argument(argument));
        self.sandbox.iter().fold(agent, |agent, mode| agent.sandbox(mode))
    }

    fn http<W: Wire>(&self, of: impl FnOnce(String) -> HttpApi<W>) -> Result<HttpApi<W>, Trouble> {
        let model = self.model.clone().ok_or_else(|| Trouble::usage("a model over HTTP has a name: --model M"))?;
        let key_env = self.key_env.as_deref().unwrap_or(W::KEY_VARIABLE);
        let mut api = of(model).key_variable(key_env);
        // A server of one's own wants none; whoever names a variable means it.
        if self.base_url.is_some() && self.key_env.is_none() && std::env::var_os(key_env).is_none() {
            api = api.without_key();
        }
        api = self.base_url.iter().fold(api, |api, url| api.base_url(url));
        api = self.max_tokens.into_iter().fold(api, |api, tokens| api.max_tokens(tokens));
        api = self.system_prompt.iter().fold(api, |api, text| api.system_prompt(text));
        Ok(self.silence.into_iter().fold(api, |api, limit| api.silence_limit(limit)))
    }

    fn replay(&self) -> Result<Replay, Trouble> {
        let from =
            self.from.as_ref().ok_or_else(|| Trouble::usage("--executor replay needs a database: --from FILE"))?;
        Ok(Replay::open(from)?)
    }

    fn command(&self) -> Result<CommandExecutor, Trouble> {
        let [program, arguments @ ..] = &*self.command else {
            return Err(Trouble::usage("--executor command needs a program behind --, as in: -- tr a-z A-Z"));
        };
        let mut command = CommandExecutor::new(program).args(arguments);
        command = self.cwd.iter().fold(command, |command, folder| command.directory(folder));
        command = self.pass_env.iter().fold(command, |command, name| command.pass_env(name));
        Ok(self.silence.into_iter().fold(command, |command, limit| command.silence_limit(limit)))
    }
}

fn of<T>(asked: Vec<T>, kept: Vec<T>) -> Vec<T> {
    if asked.is_empty() { kept } else { asked }
}

/// A URL is kept with the job, so it must have no place for a secret.
fn plain_url(text: &str) -> Result<String, String> {
    if text.contains(['@', '?', '#']) {
        return Err("it is kept with the job, so it may have no user, no password and nothing behind a `?`".to_owned());
    }
    Ok(text.to_owned())
}
