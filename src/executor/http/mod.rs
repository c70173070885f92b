//! Models over HTTP: [`AnthropicApi`] and [`OpenAiApi`], and whatever speaks as they do (feature `http`).
//!
//! ```no_run
//! use workcrew::{AnthropicApi, NewUnit, WorkPool};
//! # use workcrew::{MemoryRepository, NewJob, Repository};
//! # let repository = MemoryRepository::new();
//! # let job = repository.create_job(&NewJob::named("pages"))?;
//!
//! let model = AnthropicApi::new("claude-sonnet-4-5").system_prompt("You summarise pages.").max_tokens(1_000);
//! let pool = WorkPool::builder(job.id, model, repository).max_workers(8).start()?;
//! let unit = pool.enqueue(NewUnit::new("page-1"), "Summarise: …")?.wait()?;
//! println!("{:?}, {}", unit.output, unit.cost);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What comes out
//!
//! The answer is the unit's output, and is kept while it is being written. Every message is part of the conversation, with the answers as the
//! provider would have sent them as a whole. With a [schema](HttpApi::json_schema) the unit's result is what was asked for in that form; without
//! one it is how it went: `turns`, `stop_reason`, `id`, `model`. What an answer used is charged in classes that do not overlap, also if it was cut off: then
//! it is a guess, and marked so. What it costs is unknown unless [prices](HttpApi::prices) are given.
//!
//! # Tools, and conversations that go on
//!
//! A model may call [tools](Tool), which are closures. What they return is sent with all that was said before, until the model is done
//! or has taken as many [turns](HttpApi::max_turns) as it may. After each turn the conversation is saved: another attempt, in whichever process, goes
//! on from there, and pays for no turn twice.
//!
//! The session of a unit is the name of its conversation in the repository. Another unit that [names it](crate::NewUnit::resume_session) carries
//! it on, with an executor that was told where to [look](HttpApi::history). It may have been another executor's: what was said is the same for all.
//!
//! # What can go wrong
//!
//! All of it is in the table of [`kinds`](super::kinds). Nobody asks before the time that a provider asks for, in a `Retry-After` or by saying beside a good answer that
//! nothing is left of a limit until then: neither the unit that was refused nor any other, in all pools and processes on the repository that ask the same
//! provider ([`Call::hold`](super::Call::hold)). What was asked before that is heard to its end. A wrong key, a wrong address or a
//! server for which nobody vouches holds the pool, so that nothing fails for it.
//!
//! # Keys
//!
//! A key is read for every request and kept nowhere: not in a record, not in a log, not in `Debug`. Where a provider repeats it, or what
//! else is secret in an address, a header or a proxy's name, it is blotted out before anything else looks at it: also within base64, as of `Authorization: Basic …`,
//! in an answer that came in many pieces, and in what a tool returns, which the model is told without it.
//!
//! What nobody finds: a secret of less than 16 bytes, which would stand in many a text; one in yet another form, such as letter by letter or in two parts of a message; and
//! of one in the middle of which an answer was cut off, what came if that is less than 16 bytes. `ureq`, which does the talking, logs headers without their
//! values, and paths with what stands behind a question mark only at `TRACE`: whoever logs that should have no secret in an address.
//!
//! # Inside
//!
//! | file | what it knows |
//! |---|---|
//! | `api` `settings` `tool` | what can be set |
//! | `talk` | the turns of an attempt |
//! | `exchange` `errand` | one request and its answer: the connection, its limits, what comes; up to the beginning of the answer on a thread of its own |
//! | `sse` | bytes in, events out |
//! | `wire` `anthropic` `openai` | what a provider's own file knows: how a request is written, what an event means |
//! | `failure` `pause` | what went wrong, and when to ask again |
//! | `spending` | what was used |
//! | `history` | conversations that are carried on |
//! | `address` | where requests go |
//! | `secret` `forms` | what must be found nowhere, and in which forms it may come |
//! | `trust` | whose word is taken for who a server is |

mod address;
mod anthropic;
mod api;
mod errand;
mod exchange;
mod failure;
mod forms;
mod gateway;
mod history;
mod openai;
mod pause;
mod secret;
mod settings;
mod spending;
mod sse;
mod talk;
mod tool;
mod trust;
mod wire;

pub use self::anthropic::{Anthropic, AnthropicApi};
pub use self::api::HttpApi;
pub use self::gateway::gateway;
pub use self::openai::{OpenAi, OpenAiApi};
pub use self::tool::Tool;
pub use self::wire::Wire;
