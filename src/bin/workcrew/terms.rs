//! What a job is executed with: what is said now, over what is kept with the job.
//!
//! What was said last is kept, whoever said it, so that `resume` and `worker` need not be told again. Units of a job of which nobody ever said what
//! executes it are executed by nobody: what is made up for want of better would be COMPLETED like any answer.

use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use workcrew::limits::RateLimits;
use workcrew::{Executor, Job, JobChange, Money, NewJob, Repository, SqliteRepository};

use crate::by;
use crate::executor::{ExecutorOptions, Kind};
use crate::notes;
use crate::print::{self, Budget};
use crate::rates::Rates;
use crate::time;
use crate::trouble::Trouble;

/// How long an execution may take if nobody has said.
const TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// The fields below that are kept, as they are called there.
const KEPT: [&str; 5] = ["timeout", "expected_cost", "same_work_once", "rates", "executor"];

#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Terms {
    /// How long an execution may take, such as 90s or 1h30m; kept with the job [default: what was last said for the job, or 10m]
    #[arg(long, value_name = "TIME", value_parser = time::positive)]
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<Duration>,
    /// How many dollars the whole job may cost, in all processes; `none` for no limit. Kept with the job: say it again to raise it [default: what was last said for the job, or none]
    #[arg(long, value_name = "DOLLARS", value_parser = print::budget)]
    #[serde(skip)]
    budget: Option<Budget>,
    /// What an attempt is taken to cost where a budget counts, until the first have ended [default: 0.50]
    #[arg(long, value_name = "DOLLARS", value_parser = print::dollars)]
    #[serde(skip_serializing_if = "Option::is_none")]
    expected_cost: Option<Money>,
    /// Whether of units that need the same answer one is executed, and the others take its answer, also those of other jobs in the database; kept with the job [default: what was last said for the job, or no]
    #[arg(long, value_name = "yes|no", num_args = 0..=1, require_equals = true, default_missing_value = "yes", value_parser = BoolishValueParser::new())]
    #[serde(skip_serializing_if = "Option::is_none")]
    same_work_once: Option<bool>,
    #[command(flatten)]
    #[serde(skip_serializing_if = "Rates::is_empty")]
    rates: Rates,
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
    pub expected_cost: Option<Money>,
    pub rate_limits: Option<RateLimits>,
    pub same_work_once: bool,
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
    pub fn new_job(&self, name: &str) -> Result<NewJob, Trouble> {
        let mut new = NewJob::named(name).settings(self.beside(&Value::Null)?);
        new.budget = self.budget.and_then(|Budget(budget)| budget);
        Ok(new)
    }

    /// What the units of a job are executed with, or that nobody has said it.
    pub fn execution(&self, job: &Job) -> Result<Execution, Trouble> {
        let Terms { executor, timeout, expected_cost, same_work_once, rates, .. } = self.over_kept(Some(job));
        let Some(kind) = executor.kind() else {
            return Err(Trouble::usage(format!(
                "nobody has said what executes job `{}`: add --executor claude, codex, anthropic, openai or simulated, or a program behind --",
                job.name
            )));
        };
        let (warning, note) = self.told(kind, &executor);
        let timeout = timeout.unwrap_or(TIMEOUT);
        let (rate_limits, same_work_once) = (rates.limits(), same_work_once.unwrap_or_default());
        Ok(Execution { kind, executor, timeout, expected_cost, rate_limits, same_work_once, warning, note })
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
        let terms = self.over_kept(job);
        let Some(kind) = terms.executor.kind() else { return Ok(()) };
        let executor = terms.executor.build(kind)?;
        check_same_work(terms.same_work_once.unwrap_or_default(), &*executor)
    }

    /// Checks that it can work here.
    pub fn check_here(&self) -> Result<(), Trouble> {
        let Some(kind) = self.executor.kind() else { return Ok(()) };
        let executor = self.executor.make(kind)?;
        check_same_work(self.same_work_once.unwrap_or_default(), &*executor)
    }

    /// Keeps it with a job that is there, if it is another than what is kept.
    pub fn keep(&self, repository: &SqliteRepository, job: Job) -> Result<Job, Trouble> {
        let mut change = JobChange::default();
        match kept(&job) {
            Some(kept) => {
                let now = self.over_kept(Some(&job));
                if now != kept {
                    change = change.settings(now.beside(&job.settings)?);
                }
            }
            None if (Terms { budget: None, ..self.clone() }) != Terms::default() => {
                notes::tell(&format!(
                    "job `{}` keeps something else: what executes it must be said each time",
                    job.name
                ));
            }
            None => {}
        }
        if let Some(Budget(budget)) = self.budget {
            change = change.budget(budget);
        }
        if change == JobChange::default() {
            return Ok(job);
        }
        Ok(repository.change_job(job.id, &change, &by::this_command())?)
    }

    fn over_kept(&self, job: Option<&Job>) -> Terms {
        let kept = job.and_then(kept).unwrap_or_default();
        let executor = self.executor.clone().over(kept.executor);
        Terms {
            timeout: self.timeout.or(kept.timeout),
            expected_cost: self.expected_cost.or(kept.expected_cost),
            same_work_once: self.same_work_once.or(kept.same_work_once),
            rates: self.rates.clone().over(kept.rates),
            executor,
            ..Terms::default()
        }
    }

    /// As settings of a job, which may be a program's that keeps its own there.
    fn beside(&self, settings: &Value) -> Result<Value, Trouble> {
        let own = Terms { executor: self.executor.clone().named(), ..self.clone() };
        match (settings.clone(), serde_json::to_value(own)?) {
            (Value::Null, Value::Object(own)) if own.is_empty() => Ok(Value::Null),
            (Value::Object(mut all), Value::Object(own)) => {
                all.retain(|name, _| !KEPT.contains(&name.as_str()));
                all.extend(own);
                Ok(Value::Object(all))
            }
            (_, own) => Ok(own),
        }
    }
}

impl Execution {
    /// What executes the units, if it can work here and do what is asked for.
    pub fn make(&self) -> Result<Box<dyn Executor>, Trouble> {
        let executor = self.executor.make(self.kind)?;
        check_same_work(self.same_work_once, &*executor)?;
        Ok(executor)
    }
}

/// Refuses to do the same work once with what may do more than answer.
fn check_same_work(is_once: bool, executor: &dyn Executor) -> Result<(), Trouble> {
    if !is_once || executor.parameters().is_some() {
        return Ok(());
    }
    Err(Trouble::usage(format!(
        "--same-work-once is for what does nothing but answer, and `{}` may do more: leave it out, or take it back with --same-work-once=no",
        executor.name()
    )))
}

/// What is kept with a job; `None` if that is something else, which is left alone.
fn kept(job: &Job) -> Option<Terms> {
    match &job.settings {
        Value::Null => Some(Terms::default()),
        Value::Object(_) => serde_json::from_value(job.settings.clone()).ok(),
        _ => None,
    }
}
