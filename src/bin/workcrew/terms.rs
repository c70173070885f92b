//! What a job is executed with: what is said now, over what is kept with the job.
//!
//! What was said last is kept, whoever said it, so that `resume` and `worker` need not be told again. Units of a job of which nobody ever said what
//! executes it are executed by nobody: what is made up for want of better would be COMPLETED like any answer.

use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use workcrew::{Job, JobChange, Repository, SqliteRepository};

use crate::by;
use crate::executor::{ExecutorOptions, Kind};
use crate::notes;
use crate::time;
use crate::trouble::Trouble;

/// How long an execution may take if nobody has said.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);

#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// How long an execution may take, such as 90s or 1h30m; kept with the job [default: what was last said for the job, or 10m]
    #[arg(long, value_name = "TIME", value_parser = time::positive)]
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Duration>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "ExecutorOptions::is_empty")]
    pub executor: ExecutorOptions,
    /// Whether the simulation was chosen because nobody chose anything.
    #[arg(skip)]
    #[serde(skip)]
    is_assumed: bool,
}

/// What a job is executed with.
#[derive(Debug)]
pub struct Execution {
    pub kind: Kind,
    pub executor: ExecutorOptions,
    pub timeout: Duration,
    /// What everybody is told of it, also who wants to hear nothing.
    pub warning: Option<String>,
    /// What others are told.
    pub note: Option<&'static str>,
}

impl Terms {
    /// For a job that is new: a simulation, if nobody has said anything else.
    pub fn or_simulated(mut self) -> Terms {
        if self.executor.kind().is_none() {
            self.executor.executor = Some(Kind::Simulated);
            self.is_assumed = true;
        }
        self
    }

    /// The same for a job of which nobody has said what executes it; for any other nothing.
    pub fn unless_kept(&self, job: &Job) -> Terms {
        let is_kept = kept(job).is_some_and(|kept| kept.executor.kind().is_some());
        if is_kept { Terms::default() } else { self.clone() }
    }

    /// What a job is made with.
    pub fn settings(&self) -> Result<Value, Trouble> {
        self.beside(&Value::Null)
    }

    /// What the units of a job are executed with, or that nobody has said it.
    pub fn execution(&self, job: &Job) -> Result<Execution, Trouble> {
        let Terms { executor, timeout, .. } = self.over_kept(Some(job));
        let Some(kind) = executor.kind() else {
            return Err(Trouble::usage(format!(
                "nobody has said what executes job `{}`: add --executor claude, codex, anthropic, openai or simulated, or a program behind --",
                job.name
            )));
        };
        let (warning, note) = self.told(kind, &executor);
        Ok(Execution { kind, executor, timeout: timeout.unwrap_or(TIMEOUT), warning, note })
    }

    /// Who has just said it knows it.
    fn told(&self, kind: Kind, executor: &ExecutorOptions) -> (Option<String>, Option<&'static str>) {
        const MADE_UP: &str = "the answers are made up, nothing is asked and nothing is paid (choose with --executor)";
        match (kind, self.executor.kind()) {
            (Kind::Simulated, _) if self.is_assumed => {
                (Some(format!("simulated, since nobody said what executes the units: {MADE_UP}")), None)
            }
            (Kind::Simulated, None) => (Some(format!("simulated, as it is kept with the job: {MADE_UP}")), None),
            (Kind::Simulated, Some(_)) => {
                (None, Some("simulated: nothing is asked and nothing is paid (choose with --executor)"))
            }
            // The database may be somebody else's, and it says which program is started.
            _ if *executor != self.executor.clone().named() => {
                (Some(format!("executed by: {executor}, as it is kept with the job")), None)
            }
            _ => (None, None),
        }
    }

    /// Checks that it makes sense for a job, which may be new, wherever that is executed then.
    pub fn check(&self, job: Option<&Job>) -> Result<(), Trouble> {
        let executor = self.over_kept(job).executor;
        executor.kind().map_or(Ok(()), |kind| executor.build(kind).map(drop))
    }

    /// Checks that it can work here.
    pub fn check_here(&self) -> Result<(), Trouble> {
        self.executor.kind().map_or(Ok(()), |kind| self.executor.make(kind).map(drop))
    }

    /// Keeps it with a job that is there, if it is another than what is kept.
    pub fn keep(&self, repository: &SqliteRepository, job: Job) -> Result<Job, Trouble> {
        let Some(kept) = kept(&job) else {
            if *self != Terms::default() {
                notes::tell(&format!(
                    "job `{}` keeps something else: what executes it must be said each time",
                    job.name
                ));
            }
            return Ok(job);
        };
        let now = self.over_kept(Some(&job));
        if now == kept {
            return Ok(job);
        }
        let change = JobChange::default().settings(now.beside(&job.settings)?);
        Ok(repository.change_job(job.id, &change, &by::this_command())?)
    }

    fn over_kept(&self, job: Option<&Job>) -> Terms {
        let kept = job.and_then(kept).unwrap_or_default();
        let executor = self.executor.clone().over(kept.executor);
        Terms { timeout: self.timeout.or(kept.timeout), executor, is_assumed: false }
    }

    /// As settings of a job, which may be a program's that keeps its own there.
    fn beside(&self, settings: &Value) -> Result<Value, Trouble> {
        let own = Terms { executor: self.executor.clone().named(), ..self.clone() };
        match (settings.clone(), serde_json::to_value(own)?) {
            (Value::Null, Value::Object(own)) if own.is_empty() => Ok(Value::Null),
            (Value::Object(mut all), Value::Object(own)) => {
                all.extend(own);
                Ok(Value::Object(all))
            }
            (_, own) => Ok(own),
        }
    }
}

/// What is kept with a job; `None` if that is something else, which is left alone.
fn kept(job: &Job) -> Option<Terms> {
    match &job.settings {
        Value::Null => Some(Terms::default()),
        Value::Object(_) => serde_json::from_value(job.settings.clone()).ok(),
        _ => None,
    }
}
