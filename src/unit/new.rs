//! A unit that is to be stored, and the hashes of what it was given.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Affinity, UnitId};
use crate::chain::Hash;
use crate::conversation::{TooDeep, to_json};
use crate::job::JobId;
use crate::money::Money;

/// How a unit wants to be executed. Everything has a default, and what is not set here the pool decides.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct UnitOptions {
    /// Units with the same key prefer the same worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity_key: Option<String>,
    /// How strictly they do; as the pool says if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// The session that its first attempt carries on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_session: Option<String>,
    /// The directory in which an agent works.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace_dir: Option<String>,
    /// Files that it is to make, relative to its workspace: those that are there at the end are listed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub output_files: Vec<String>,
    /// How many turns an agent may take.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_iterations: Option<u32>,
    /// How long an attempt may take; the pool's timeout if not set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Duration>,
    /// How much it may cost, over all its attempts; see [`NewUnit::max_cost`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<Money>,
    /// Whether doing it twice does no harm, so that it may be tried again after a crash in any case.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_idempotent: bool,
}

/// A unit that is to be stored.
///
/// ```
/// use std::time::Duration;
/// use workcrew::NewUnit;
///
/// let unit = NewUnit::new("page-17")
///     .prompt("Summarise page 17.")
///     .priority(10)
///     .max_retries(1)
///     .timeout(Duration::from_secs(60));
/// assert_eq!(unit.id, "page-17");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewUnit {
    /// Its name, checked when it is stored (see [`UnitId::new`]).
    pub id: String,
    /// What kind of work it is, for people.
    pub unit_type: Option<String>,
    /// Larger goes first.
    pub priority: i32,
    /// What the template is rendered from, and what the executor gets.
    pub payload: Value,
    /// What is sent, as it is.
    pub prompt: Option<String>,
    /// What is rendered into a prompt, if there is none.
    pub template: Option<String>,
    /// How it wants to be executed.
    pub options: UnitOptions,
    /// How many executions may follow the first.
    pub max_retries: u32,
    /// Not to be claimed earlier.
    pub not_before: Option<DateTime<Utc>>,
    /// How long it may wait to be claimed by the pool that accepted it.
    pub queue_timeout: Option<Duration>,
}

impl NewUnit {
    /// How many executions follow the first unless set.
    pub const DEFAULT_MAX_RETRIES: u32 = 3;

    /// A unit with a name of the caller's.
    pub fn new(id: impl Into<String>) -> NewUnit {
        NewUnit {
            id: id.into(),
            unit_type: None,
            priority: 0,
            payload: Value::Null,
            prompt: None,
            template: None,
            options: UnitOptions::default(),
            max_retries: NewUnit::DEFAULT_MAX_RETRIES,
            not_before: None,
            queue_timeout: None,
        }
    }

    /// A unit with a generated name.
    pub fn generated() -> NewUnit {
        NewUnit::new(UnitId::generate())
    }

    /// What kind of work it is (none).
    pub fn unit_type(mut self, unit_type: impl Into<String>) -> NewUnit {
        self.unit_type = Some(unit_type.into());
        self
    }

    /// Larger goes first (0).
    pub fn priority(mut self, priority: i32) -> NewUnit {
        self.priority = priority;
        self
    }

    /// What the template is rendered from (null).
    pub fn payload(mut self, payload: impl Into<Value>) -> NewUnit {
        self.payload = payload.into();
        self
    }

    /// What is sent, as it is (none: given when it is submitted, or rendered).
    pub fn prompt(mut self, prompt: impl Into<String>) -> NewUnit {
        self.prompt = Some(prompt.into());
        self
    }

    /// What is rendered into a prompt (the job's).
    pub fn template(mut self, template: impl Into<String>) -> NewUnit {
        self.template = Some(template.into());
        self
    }

    /// How many executions may follow the first (3).
    pub fn max_retries(mut self, max_retries: u32) -> NewUnit {
        self.max_retries = max_retries;
        self
    }

    /// Not to be claimed earlier (at once).
    pub fn not_before(mut self, time: DateTime<Utc>) -> NewUnit {
        self.not_before = Some(time);
        self
    }

    /// How long it may wait to be claimed (for ever).
    pub fn queue_timeout(mut self, timeout: Duration) -> NewUnit {
        self.queue_timeout = Some(timeout);
        self
    }

    /// How long an attempt may take (the pool's timeout).
    pub fn timeout(mut self, timeout: Duration) -> NewUnit {
        self.options.timeout = Some(timeout);
        self
    }

    /// How much it may cost, over all its attempts (as much as it likes).
    ///
    /// A unit that has cost as much is FAILED with [`FailureKind::COST_LIMIT`](crate::FailureKind::COST_LIMIT) instead of being tried
    /// again, and is not executed, also after a requeue. An execution that tells with [`Call::usage`](crate::Call::usage) that it has cost
    /// more is asked to stop; what it said is kept, and if it answers all the same, that counts. So a unit costs at
    /// most this, and what its last execution spends before it tells of it or stops.
    ///
    /// What nobody can price does not count, since nobody knows how much it is: an executor that tells no amounts, such as
    /// [`CodexCli`](crate::CodexCli) without a [price](crate::CodexCli::price), is not bounded by it. [`ClaudeCli`](crate::ClaudeCli) passes on
    /// what is left. A unit that may cost nothing is not executed at all.
    ///
    /// ```
    /// use workcrew::{Call, Charge, ExecuteError, FailureKind, NewUnit, Tokens, WorkResult};
    ///
    /// fn execute(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    ///     call.usage(Charge::reported("a-model", Tokens::default(), "0.10".parse()?));
    ///     Err(ExecuteError::retry("no luck"))
    /// }
    /// # use workcrew::{MemoryRepository, NewJob, Repository, RetryPolicy, WorkPool};
    /// # let repository = MemoryRepository::new();
    /// # let job = repository.create_job(&NewJob::named("a job"))?;
    /// # let pool = WorkPool::builder(job.id, execute, repository).retry(RetryPolicy::immediate()).start()?;
    /// let dear = NewUnit::new("dear").max_cost("0.25".parse()?).max_retries(1_000);
    /// let unit = pool.enqueue(dear, "Try it.")?.wait()?;
    /// assert_eq!((unit.attempt_count, unit.cost.to_string().as_str()), (3, "$0.30"));
    /// assert_eq!(unit.failure.unwrap().kind, FailureKind::COST_LIMIT);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn max_cost(mut self, max_cost: Money) -> NewUnit {
        self.options.max_cost = Some(max_cost);
        self
    }

    /// Units with the same key prefer the same worker (those that carry on the same session). An empty key is none.
    pub fn affinity_key(mut self, key: impl Into<String>) -> NewUnit {
        self.options.affinity_key = Some(key.into());
        self
    }

    /// How strictly they do (as the pool says).
    pub fn affinity(mut self, affinity: Affinity) -> NewUnit {
        self.options.affinity = Some(affinity);
        self
    }

    /// The session that its first attempt carries on (none).
    pub fn resume_session(mut self, session: impl Into<String>) -> NewUnit {
        self.options.resume_session = Some(session.into());
        self
    }

    /// The directory in which an agent works (the pool's).
    pub fn workspace_dir(mut self, directory: impl Into<String>) -> NewUnit {
        self.options.workspace_dir = Some(directory.into());
        self
    }

    /// A file that it is to make, relative to its workspace (none). If it is there at the end it is listed with its size and hash.
    pub fn output_file(mut self, path: impl Into<String>) -> NewUnit {
        self.options.output_files.push(path.into());
        self
    }

    /// How many turns an agent may take (the executor's limit).
    pub fn max_iterations(mut self, turns: u32) -> NewUnit {
        self.options.max_iterations = Some(turns);
        self
    }

    /// Doing it twice does no harm (it might).
    pub fn idempotent(mut self) -> NewUnit {
        self.options.is_idempotent = true;
        self
    }
}

/// The parts of a new unit that are stored as bytes, with their hashes.
#[derive(Clone, Debug)]
pub(crate) struct Inputs {
    pub(crate) payload: Vec<u8>,
    pub(crate) options: Vec<u8>,
    /// Over everything that makes two units of the same id the same, but for the prompt.
    pub(crate) content_hash: Hash,
    pub(crate) prompt_hash: Option<Hash>,
    /// Over all of it with the id.
    pub(crate) digest: Hash,
}

impl Inputs {
    pub(crate) fn of(unit: &NewUnit) -> Result<Inputs, TooDeep> {
        let payload = to_json(&unit.payload)?;
        let options = to_json(&unit.options)?;
        let (unit_type, template) = (unit.unit_type.as_deref(), unit.template.as_deref());
        let content_hash = content_hash(unit_type, &payload, template, &options);
        let prompt_hash = unit.prompt.as_deref().map(prompt_hash);
        let digest = inputs_digest(&unit.id, unit_type, template, &options, &content_hash, prompt_hash.as_ref());
        Ok(Inputs { payload, options, content_hash, prompt_hash, digest })
    }
}

/// The hash of what a unit is, apart from its prompt, its order and its limits.
pub(crate) fn content_hash(unit_type: Option<&str>, payload: &[u8], template: Option<&str>, options: &[u8]) -> Hash {
    Hash::builder("unit content")
        .optional_text(unit_type)
        .hash(&Hash::of(payload))
        .optional_text(template)
        .bytes(options)
        .finish()
}

pub(crate) fn prompt_hash(prompt: &str) -> Hash {
    Hash::of(prompt.as_bytes())
}

/// The hash of what a unit was given, which can be checked after a purge of its payload and prompt too.
pub(crate) fn inputs_digest(
    id: &str,
    unit_type: Option<&str>,
    template: Option<&str>,
    options: &[u8],
    content: &Hash,
    prompt: Option<&Hash>,
) -> Hash {
    Hash::builder("unit inputs")
        .text(id)
        .optional_text(unit_type)
        .optional_text(template)
        .bytes(options)
        .hash(content)
        .optional_hash(prompt)
        .finish()
}

/// The hash of all that a unit is, which the journal keeps: what it was given, in which job, and what decides when and how often it is tried.
///
/// Rows of earlier versions have only what it was given.
pub(crate) fn unit_digest(inputs: &Hash, job_id: JobId, priority: i32, max_retries: u32) -> Hash {
    Hash::builder("unit")
        .hash(inputs)
        .number(job_id.0)
        .number(i64::from(priority))
        .number(i64::from(max_retries))
        .finish()
}
