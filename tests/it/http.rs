//! Models over HTTP in whole pools, against a provider that does as it is told.

mod adapting;
mod answers;
#[cfg(feature = "cli")]
mod command;
mod limits;
mod pauses;
pub(crate) mod provider;
mod real_api;
mod same_work;
mod secrets;
mod sessions;
pub(crate) mod speech;
mod streams;
mod tools;
mod troubles;
mod trust;

use std::sync::mpsc::channel;
use std::time::Duration;

use workcrew::repository::UnitFilter;
use workcrew::{
    AnthropicApi, Archive, Attempt, AttemptKey, Call, Charge, Executor, MemoryRepository, Message, NewJob, NewUnit,
    OpenAiApi, Part, Repository, Role, Stop, Then, WorkPool, WorkUnit,
};

use self::provider::Provider;

/// Far longer than anything takes here: what takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(120);

/// Asks a provider as Anthropic is asked.
fn anthropic(provider: &Provider) -> AnthropicApi {
    AnthropicApi::new("claude-asked").base_url(&provider.url).key_from(|| Some("sk-test".to_owned()))
}

/// Asks a provider as OpenAI is asked.
fn openai(provider: &Provider) -> OpenAiApi {
    OpenAiApi::new("gpt-asked").base_url(format!("{}/v1", provider.url)).key_from(|| Some("sk-test".to_owned()))
}

/// What came of one attempt at one unit.
#[derive(Debug)]
struct Tried {
    /// The kind and message of the failure, and what follows.
    failure: Option<(String, Then)>,
    unit: WorkUnit,
    attempt: Attempt,
    messages: Vec<Message>,
    charges: Vec<Charge>,
}

impl Tried {
    /// The kind of the failure.
    fn kind(&self) -> &str {
        self.failure.as_ref().map_or("", |(said, _)| said.split_once(": ").unwrap().0)
    }

    fn then(&self) -> Then {
        self.failure.as_ref().unwrap().1
    }

    fn said(&self) -> &str {
        &self.failure.as_ref().unwrap().0
    }

    fn output(&self) -> &str {
        self.unit.output.as_deref().unwrap_or_else(|| panic!("no output: {:?}", self.failure))
    }

    /// Who speaks and what kinds of parts there are, with a star behind what was cut off.
    fn shape(&self) -> String {
        shape(&self.messages)
    }
}

fn shape(messages: &[Message]) -> String {
    let part = |part: &Part| match part {
        Part::Text { text } => format!("{text:?}"),
        Part::Thinking { text } => format!("thinks {text:?}"),
        Part::ToolUse { name, input, .. } => format!("calls {name} {input}"),
        Part::ToolResult { content, is_error, .. } => {
            let said = shape(&[content.iter().cloned().fold(Message::new(Role::Tool), Message::part)]);
            format!("{} {}", if *is_error { "fails" } else { "answers" }, said.trim_start_matches("tool: "))
        }
        Part::Other { kind, .. } => format!("({kind})"),
        other => format!("{other:?}"),
    };
    let one = |message: &Message| {
        let parts: Vec<String> = message.parts.iter().map(part).collect();
        format!("{}: {}{}", message.role, parts.join(" + "), if message.is_partial { " *" } else { "" })
    };
    messages.iter().map(one).collect::<Vec<_>>().join("; ")
}

/// All that was said in an attempt.
fn messages(archive: &dyn Archive, key: AttemptKey) -> Vec<Message> {
    let stored = archive.messages(key, 0, 10_000).unwrap().items;
    stored.iter().map(|stored| stored.message().unwrap().unwrap()).collect()
}

/// Makes one attempt, and stops.
fn try_once(executor: impl Executor, unit: NewUnit, prompt: &str) -> Tried {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("http")).unwrap().id;
    let (told, tells) = channel();
    let tell = move |call: &Call<'_>| {
        let result = executor.execute(call);
        told.send(result.as_ref().err().map(|error| (error.to_string(), error.then()))).unwrap();
        result
    };
    let pool = WorkPool::builder(job, tell, repository.clone()).max_workers(1).start().unwrap();
    let handle = pool.enqueue(unit.max_retries(0), prompt).unwrap();
    let failure = tells.recv_timeout(PATIENCE).unwrap();
    drop(handle);
    pool.stop(Stop::Drain).unwrap();
    let unit = repository.units(&UnitFilter::job(job), 0, 1).unwrap().items.remove(0);
    let attempt = repository.attempts(unit.key).unwrap().remove(0);
    let messages = messages(&repository, attempt.key);
    let charges = repository.charges(attempt.key).unwrap();
    Tried { failure, unit, attempt, messages, charges }
}

/// Makes one attempt at something.
fn ask(executor: impl Executor) -> Tried {
    try_once(executor, NewUnit::new("a"), "What is the capital of France?")
}
