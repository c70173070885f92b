//! A job: a named batch of units, with what they share.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::chain::Hash;
use crate::money::Money;

/// The repository's name for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(pub i64);

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {}", self.0)
    }
}

/// A job that is to be created.
///
/// ```
/// use workcrew::NewJob;
///
/// let job = NewJob::named("summaries").template("Summarise: {{ text }}");
/// assert_eq!(job.name, "summaries");
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NewJob {
    /// Its name, unique in the repository.
    pub name: String,
    /// What the units' prompts are rendered from, unless they have their own.
    pub template: Option<String>,
    /// How much all its units may cost.
    pub budget: Option<Money>,
    /// Whatever the caller wants to keep with it.
    pub settings: Value,
}

impl NewJob {
    /// The longest name.
    pub const NAME_LIMIT_BYTES: usize = 512;

    /// A job with a name.
    pub fn named(name: impl Into<String>) -> NewJob {
        NewJob { name: name.into(), template: None, budget: None, settings: Value::Null }
    }

    /// What the units' prompts are rendered from (none).
    pub fn template(mut self, template: impl Into<String>) -> NewJob {
        self.template = Some(template.into());
        self
    }

    /// How much all its units may cost (no limit).
    pub fn budget(mut self, budget: Money) -> NewJob {
        self.budget = Some(budget);
        self
    }

    /// Whatever the caller wants to keep with it (null).
    pub fn settings(mut self, settings: impl Into<Value>) -> NewJob {
        self.settings = settings.into();
        self
    }
}

/// What is to become another of a job that is there. What is not named stays; the name and the template always do.
///
/// ```
/// use workcrew::{JobChange, Money};
///
/// let raised = JobChange::default().budget(Money::from_nanos(5_000_000_000));
/// let unlimited = JobChange::default().budget(None);
/// assert_ne!(raised, unlimited);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct JobChange {
    /// How much all its units may cost; `Some(None)` is without a limit.
    pub budget: Option<Option<Money>>,
    /// Whatever the caller wants to keep with it, in place of what was kept.
    pub settings: Option<Value>,
}

impl JobChange {
    /// How much all its units may cost, or `None` for no limit.
    pub fn budget(mut self, budget: impl Into<Option<Money>>) -> JobChange {
        self.budget = Some(budget.into());
        self
    }

    /// Whatever the caller wants to keep with it, in place of what was kept.
    pub fn settings(mut self, settings: impl Into<Value>) -> JobChange {
        self.settings = Some(settings.into());
        self
    }
}

/// The record of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Job {
    /// The repository's name for it.
    pub id: JobId,
    /// Its own name.
    pub name: String,
    /// What the units' prompts are rendered from.
    pub template: Option<String>,
    /// How much all its units may cost.
    pub budget: Option<Money>,
    /// Whatever the caller wants to keep with it.
    pub settings: Value,
    /// When it was created.
    pub created_at: DateTime<Utc>,
}

impl Job {
    /// The hash of all that it is.
    ///
    /// Settings are hashed by what they say: in which order the fields of an object come makes no difference.
    pub fn digest(&self) -> Hash {
        let settings = sorted(&self.settings).to_string();
        Hash::builder("workcrew job")
            .number(self.id.0)
            .text(&self.name)
            .optional_text(self.template.as_deref())
            .optional_number(self.budget.map(Money::nanos))
            .text(&settings)
            .number(self.created_at.timestamp_millis())
            .finish()
    }

    /// Whether this record is what `new` asks for.
    pub(crate) fn matches(&self, new: &NewJob) -> bool {
        self.name == new.name
            && self.template == new.template
            && self.budget == new.budget
            && self.settings == new.settings
    }
}

/// The same with the fields of every object in order. By default they are; another crate may have switched that off.
fn sorted(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let mut fields: Vec<(&String, &Value)> = fields.iter().collect();
            fields.sort_unstable_by_key(|(name, _)| *name);
            Value::Object(fields.into_iter().map(|(name, value)| (name.clone(), sorted(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(sorted).collect()),
        value => value.clone(),
    }
}
