//! What executes the units, as it is asked for on the command line.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use workcrew::executor::CommandExecutor;
use workcrew::executor::http::{HttpApi, Wire};
use workcrew::{AnthropicApi, ClaudeCli, CodexCli, Executor, OpenAiApi, PriceTable, Replay, Simulated};

use crate::print;
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

impl fmt::Display for Kind {
    /// As on a command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |name| f.write_str(name.get_name()))
    }
}

#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ExecutorOptions {
    /// What executes the units; kept with the job, so that it need not be said again [default: what was last said for the job, or `command` with a program behind --; for `run` of a new job `simulated`]
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
    /// The file of the authorities that vouch for the server of a model over HTTP, in the form of PEM [default: those that browsers believe]
    #[arg(long, value_name = "FILE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    certificate_authority: Option<PathBuf>,
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
    /// What models cost, in the shape of LiteLLM's table, over the list prices that come with this program; for codex, anthropic and openai
    #[arg(long, value_name = "FILE", help_heading = "Executor")]
    #[serde(skip_serializing_if = "Option::is_none")]
    prices: Option<PathBuf>,
    /// The program that executes the units, and its arguments: the prompt is its input, its output the answer
    #[arg(last = true, value_name = "PROGRAM ARGS")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
}

impl ExecutorOptions {
    /// What is said here, over what is kept. Of another executor than the one that is kept nothing is.
    pub fn over(self, kept: ExecutorOptions) -> ExecutorOptions {
        let (said, was) = (self.kind(), kept.kind());
        if said.is_some() && said != was {
            return self.named();
        }
        ExecutorOptions {
            executor: said.or(was),
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
            certificate_authority: self.certificate_authority.or(kept.certificate_authority),
            max_tokens: self.max_tokens.or(kept.max_tokens),
            system_prompt: self.system_prompt.or(kept.system_prompt),
            max_turns: self.max_turns.or(kept.max_turns),
            sandbox: self.sandbox.or(kept.sandbox),
            seed: self.seed.or(kept.seed),
            latency: self.latency.or(kept.latency),
            failures: self.failures.or(kept.failures),
            from: self.from.or(kept.from),
            prices: self.prices.or(kept.prices),
            command: of(self.command, kept.command),
        }
    }

    /// What they are for, if they say it: a program behind -- says it too.
    pub fn kind(&self) -> Option<Kind> {
        self.executor.or((!self.command.is_empty()).then_some(Kind::Command))
    }

    /// The same, saying it by its name.
    pub fn named(mut self) -> ExecutorOptions {
        self.executor = self.kind();
        self
    }

    /// Whether they say nothing.
    pub fn is_empty(&self) -> bool {
        *self == ExecutorOptions::default()
    }

    /// Makes it, if it can work here.
    pub fn make(&self, kind: Kind) -> Result<Box<dyn Executor>, Trouble> {
        let executor = self.build(kind)?;
        executor.is_available().map_err(|missing| Trouble::usage(missing.to_string()))?;
        Ok(executor)
    }

    /// Makes it, wherever it can work.
    pub fn build(&self, kind: Kind) -> Result<Box<dyn Executor>, Trouble> {
        self.check_meant_for(kind)?;
        Ok(match kind {
            Kind::Simulated => Box::new(self.simulated()?),
            Kind::Claude => Box::new(self.claude()),
            Kind::Codex => Box::new(self.codex()?),
            Kind::Anthropic => Box::new(self.http(AnthropicApi::new)?),
            Kind::Openai => Box::new(self.http(OpenAiApi::new)?),
            Kind::Command => Box::new(self.command()?),
            Kind::Replay => Box::new(self.replay()?),
        })
    }

    /// Refuses what an executor would make nothing of: whoever forbids something must not believe that it is forbidden.
    fn check_meant_for(&self, kind: Kind) -> Result<(), Trouble> {
        use Kind::{Anthropic, Claude, Codex, Command, Openai, Replay, Simulated};
        let (agents, http): (&[Kind], &[Kind]) = (&[Claude, Codex], &[Anthropic, Openai]);
        let options: [(&str, bool, &[Kind]); 20] = [
            ("--model", self.model.is_some(), &[Simulated, Claude, Codex, Anthropic, Openai]),
            ("--program", self.program.is_some(), agents),
            ("--cwd", self.cwd.is_some(), &[Claude, Codex, Command]),
            ("--pass-env", !self.pass_env.is_empty(), &[Claude, Codex, Command]),
            ("--silence", self.silence.is_some(), &[Claude, Codex, Anthropic, Openai, Command]),
            ("--agent-arg", !self.agent_args.is_empty(), agents),
            ("--permission-mode", self.permission_mode.is_some(), &[Claude]),
            ("--allowed-tools", !self.allowed_tools.is_empty(), &[Claude]),
            ("--base-url", self.base_url.is_some(), http),
            ("--key-env", self.key_env.is_some(), http),
            ("--certificate-authority", self.certificate_authority.is_some(), http),
            ("--max-tokens", self.max_tokens.is_some(), http),
            ("--system-prompt", self.system_prompt.is_some(), &[Claude, Anthropic, Openai]),
            ("--max-turns", self.max_turns.is_some(), &[Claude]),
            ("--sandbox", self.sandbox.is_some(), &[Codex]),
            ("--seed", self.seed.is_some(), &[Simulated]),
            ("--latency", self.latency.is_some(), &[Simulated]),
            ("--failures", self.failures.is_some(), &[Simulated]),
            ("--from", self.from.is_some(), &[Replay]),
            ("a program behind --", !self.command.is_empty(), &[Command]),
        ];
        match options.iter().find(|(_, is_given, kinds)| *is_given && !kinds.contains(&kind)) {
            None => Ok(()),
            Some((option, _, kinds)) => {
                let kinds: Vec<String> = kinds.iter().map(Kind::to_string).collect();
                Err(Trouble::usage(format!("{option} is for --executor {}, not for {kind}", kinds.join(" or "))))
            }
        }
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

    fn codex(&self) -> Result<CodexCli, Trouble> {
        let mut agent = CodexCli::new().prices(self.prices()?);
        agent = self.program.iter().fold(agent, |agent, program| agent.program(program));
        agent = self.model.iter().fold(agent, |agent, model| agent.model(model));
        agent = self.cwd.iter().fold(agent, |agent, folder| agent.directory(folder));
        agent = self.pass_env.iter().fold(agent, |agent, name| agent.pass_env(name));
        agent = self.silence.into_iter().fold(agent, |agent, limit| agent.silence_limit(limit));
        agent = self.agent_args.iter().fold(agent, |agent, argument| agent.argument(argument));
        Ok(self.sandbox.iter().fold(agent, |agent, mode| agent.sandbox(mode)))
    }

    /// The user's own over those that come with the program.
    fn prices(&self) -> Result<PriceTable, Trouble> {
        let own = self.prices.as_ref().map(PriceTable::open).transpose();
        let own = own.map_err(|error| Trouble::usage(error.to_string()))?;
        Ok(own.unwrap_or_default().over(PriceTable::built_in()))
    }

    fn http<W: Wire>(&self, of: impl FnOnce(String) -> HttpApi<W>) -> Result<HttpApi<W>, Trouble> {
        let model = self.model.clone().ok_or_else(|| Trouble::usage("a model over HTTP has a name: --model M"))?;
        let key_env = self.key_env.as_deref().unwrap_or(W::KEY_VARIABLE);
        let mut api = of(model).key_variable(key_env).prices(self.prices()?);
        // A server of one's own wants none; whoever names a variable means it.
        if self.base_url.is_some() && self.key_env.is_none() && std::env::var_os(key_env).is_none() {
            api = api.without_key();
        }
        api = self.base_url.iter().fold(api, |api, url| api.base_url(url));
        api = self.certificate_authority.iter().fold(api, |api, file| api.certificate_authority(file));
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

impl fmt::Display for ExecutorOptions {
    /// As on a command line, as far as it says what is started and what that may do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => kind.fmt(f)?,
            None => f.write_str("nothing")?,
        }
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let options = [
            ("program", path(&self.program).into_iter().collect()),
            ("from", path(&self.from).into_iter().collect()),
            ("base-url", self.base_url.iter().cloned().collect()),
            ("key-env", self.key_env.iter().cloned().collect()),
            ("certificate-authority", path(&self.certificate_authority).into_iter().collect()),
            ("cwd", path(&self.cwd).into_iter().collect()),
            ("pass-env", self.pass_env.clone()),
            ("agent-arg", self.agent_args.clone()),
            ("permission-mode", self.permission_mode.iter().cloned().collect()),
            ("allowed-tools", self.allowed_tools.clone()),
            ("sandbox", self.sandbox.iter().cloned().collect::<Vec<_>>()),
        ];
        for (name, value) in options.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value))) {
            write!(f, " --{name}={}", print::word(value))?;
        }
        if !self.command.is_empty() {
            f.write_str(" --")?;
        }
        self.command.iter().try_for_each(|word| write!(f, " {}", print::word(word)))
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: ExecutorOptions,
    }

    fn options(line: &str) -> ExecutorOptions {
        let words = std::iter::once("workcrew").chain(line.split_whitespace());
        Line::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).options
    }

    #[test]
    fn what_is_said_later_is_put_over_what_is_kept_of_the_same_executor_and_replaces_another() {
        for (kept, said, now) in [
            // Nobody has said what it is for.
            ("", "", ""),
            ("", "--model m", "--model m"),
            ("", "--executor claude --model m", "--executor claude --model m"),
            ("", "-- cat", "--executor command -- cat"),
            // Nothing new, also if it was kept without its name.
            ("--executor claude --model m", "", "--executor claude --model m"),
            ("-- cat -n", "", "--executor command -- cat -n"),
            ("--executor simulated --seed 3", "", "--executor simulated --seed 3"),
            // Options without a name are for what is kept.
            ("--executor claude --model m", "--model n", "--executor claude --model n"),
            ("--executor claude --model m", "--max-turns 3", "--executor claude --model m --max-turns 3"),
            ("-- cat", "--cwd /tmp", "--executor command --cwd /tmp -- cat"),
            // The same by its name.
            ("--executor claude --model m --cwd a", "--executor claude --cwd b", "--executor claude --model m --cwd b"),
            ("--executor codex --sandbox s", "--executor codex", "--executor codex --sandbox s"),
            // A command by its name, by its program, and by both.
            ("-- cat", "--executor command", "--executor command -- cat"),
            ("--executor command --cwd a -- cat", "-- tac", "--executor command --cwd a -- tac"),
            ("-- cat -n", "--executor command -- tac", "--executor command -- tac"),
            ("--executor command -- cat", "--executor command --silence 5s", "--executor command --silence 5s -- cat"),
            // Lists are replaced, not added to.
            ("--executor claude --pass-env A --pass-env B", "--pass-env C", "--executor claude --pass-env C"),
            (
                "--executor claude --allowed-tools Read,Grep",
                "--allowed-tools Bash",
                "--executor claude --allowed-tools Bash",
            ),
            ("--executor claude --agent-arg=--a", "--agent-arg=--b", "--executor claude --agent-arg=--b"),
            // Another one has nothing of it.
            ("--executor claude --model m --cwd a --pass-env A", "--executor codex", "--executor codex"),
            ("--executor claude --model m", "--executor simulated", "--executor simulated"),
            ("--executor claude --model m", "-- cat", "--executor command -- cat"),
            ("--executor claude --model m", "--executor command", "--executor command"),
            ("--cwd a -- cat", "--executor claude", "--executor claude"),
            ("--cwd a -- cat", "--executor claude --cwd b", "--executor claude --cwd b"),
            (
                "--executor simulated --seed 3 --latency 1s",
                "--executor replay --from o.db",
                "--executor replay --from o.db",
            ),
            ("--executor replay --from o.db", "--executor simulated", "--executor simulated"),
            // What makes no sense together stays so, to be told.
            ("-- cat", "--executor claude -- tac", "--executor claude -- tac"),
        ] {
            assert_eq!(options(said).over(options(kept)), options(now), "`{said}` over `{kept}`");
        }
    }

    #[test]
    fn what_is_started_is_told_as_one_would_write_it() {
        let line = "--executor claude --program ./a --pass-env KEY --agent-arg=--all --permission-mode plan";
        let told = "claude --program=./a --pass-env=KEY --agent-arg=--all --permission-mode=plan";
        assert_eq!(options(line).to_string(), told);
        assert_eq!(options("--cwd b -- tr a-z A-Z").to_string(), "command --cwd=b -- tr a-z A-Z");
        // Where a key is sent, which, and who vouches for whoever gets it.
        let line =
            "--executor openai --model m --base-url http://127.0.0.1:9 --key-env KEY --certificate-authority a.pem";
        let told = "openai --base-url=http://127.0.0.1:9 --key-env=KEY --certificate-authority=a.pem";
        assert_eq!(options(line).to_string(), told);
    }
}
