//! What it cost, and for what: by job, model, status or day.
//!
//! Attempts that failed, were cancelled or lost are in it: they were paid for. A price that nobody knows is unknown and counted as such, and
//! so is an attempt that was executed and left no bill at all, as one that was lost may.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::list;
use super::questions::all_jobs;
use crate::attempt::{Attempt, Outcome};
use crate::job::JobId;
use crate::money::{Charge, Cost, Tokens};
use crate::repository::{Archive, Result, UnitFilter, UnitSummary};

/// What costs are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CostBy {
    /// Jobs, by name.
    #[default]
    Job,
    /// Models.
    Model,
    /// What the units are now.
    Status,
    /// The day (UTC) on which attempts ended, or began if they have not ended.
    Day,
}

/// What was spent, group by group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Bill {
    /// The groups, in the order of their names.
    pub groups: Vec<CostGroup>,
    /// All of them together.
    pub total: CostGroup,
    /// The models of which something was used whose price nobody knows.
    pub unpriced_models: Vec<String>,
}

/// What was spent on a group of attempts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CostGroup {
    /// What they have in common.
    pub name: String,
    /// How many attempts.
    pub attempts: u64,
    /// What they used.
    pub tokens: Tokens,
    /// What that cost; those that left no bill are among what is not known.
    pub cost: Cost,
    /// What of it was spent on attempts that came to no good end.
    pub in_vain: Cost,
    /// How many attempts were executed and left no bill, so that nobody knows what they cost.
    pub unbilled: u64,
    /// How many lines are guesses, because their attempts ended before they could tell.
    pub estimated: u64,
}

impl CostGroup {
    fn add(&mut self, attempt: &Attempt, charges: &[&Charge]) {
        self.attempts += 1;
        self.tokens += charges.iter().fold(Tokens::default(), |sum, charge| sum + charge.tokens);
        let is_unbilled = charges.is_empty() && attempt.was_executed();
        let cost = if is_unbilled { Cost::UNKNOWN } else { charges.iter().map(|charge| charge.cost()).sum() };
        self.cost = self.cost + cost;
        if !matches!(attempt.outcome, Some(Outcome::Completed) | None) {
            self.in_vain = self.in_vain + cost;
        }
        self.unbilled += u64::from(is_unbilled);
        self.estimated += charges.iter().filter(|charge| charge.is_estimated).count() as u64;
    }
}

/// Sums up what the units that a filter means have cost. An attempt that used several models is an attempt of each of them.
///
/// ```
/// use workcrew::audit::cost::{CostBy, cost};
/// use workcrew::repository::UnitFilter;
/// use workcrew::{Call, Charge, MemoryRepository, Money, NewJob, NewUnit, Repository, Tokens, WorkPool, WorkResult};
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("greetings"))?;
/// let greet = |call: &Call<'_>| {
///     call.usage(Charge::reported("small", Tokens::default(), Money::from_nanos(20_000_000)));
///     Ok(WorkResult::text("Hello"))
/// };
/// let pool = WorkPool::builder(job.id, greet, repository.clone()).start()?;
/// pool.enqueue(NewUnit::new("ada"), "Greet Ada.")?.wait()?;
/// let bill = cost(&repository, &UnitFilter::default(), CostBy::Model)?;
/// assert_eq!((bill.groups[0].name.as_str(), bill.total.cost.to_string()), ("small", "$0.02".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// [`UnknownJob`](crate::RepositoryError::UnknownJob), and what the storage says.
pub fn cost(archive: &dyn Archive, filter: &UnitFilter, by: CostBy) -> Result<Bill> {
    let jobs = job_names(archive, filter.job_id)?;
    let mut groups: BTreeMap<String, CostGroup> = BTreeMap::new();
    let mut bill = Bill::default();
    let mut unpriced = std::collections::BTreeSet::new();
    list::for_each(archive, filter, |unit| {
        for summary in &unit.attempts {
            let (attempt, charges) = (&summary.attempt, summary.charges.iter().collect::<Vec<_>>());
            bill.total.add(attempt, &charges);
            for (name, charges) in grouped(by, &jobs, &unit, attempt, &charges) {
                groups.entry(name).or_default().add(attempt, &charges);
            }
            unpriced.extend(charges.iter().filter(|charge| charge.amount.is_none()).map(|charge| charge.model.clone()));
        }
        true
    })?;
    bill.groups = groups.into_iter().map(|(name, group)| CostGroup { name, ..group }).collect();
    bill.unpriced_models = unpriced.into_iter().collect();
    Ok(bill)
}

/// What the attempts of a unit have cost, those that left no bill included: of them nobody knows.
pub(super) fn cost_of(archive: &dyn Archive, attempts: &[Attempt]) -> Result<Cost> {
    attempts.iter().map(|attempt| Ok(attempt.cost(&archive.charges(attempt.key)?))).sum()
}

/// In which groups an attempt is, with what part of its bill.
fn grouped<'a>(
    by: CostBy,
    jobs: &BTreeMap<JobId, String>,
    unit: &UnitSummary,
    attempt: &Attempt,
    charges: &[&'a Charge],
) -> Vec<(String, Vec<&'a Charge>)> {
    let name = match by {
        // What was never begun used none, and what is still executed has not told yet.
        CostBy::Model if charges.is_empty() && !attempt.was_executed() => return Vec::new(),
        CostBy::Model if charges.is_empty() => "(no bill)".to_owned(),
        CostBy::Model => return charges.iter().map(|charge| (charge.model.clone(), vec![*charge])).collect(),
        CostBy::Job => jobs.get(&unit.job_id).cloned().unwrap_or_else(|| unit.job_id.to_string()),
        CostBy::Status => unit.status.to_string(),
        CostBy::Day => day(attempt).format("%F").to_string(),
    };
    vec![(name, charges.to_vec())]
}

fn day(attempt: &Attempt) -> DateTime<Utc> {
    attempt.ended_at.or(attempt.started_at).unwrap_or(attempt.assigned_at)
}

/// The names of all jobs, or of the only one that is asked for.
fn job_names(archive: &dyn Archive, only: Option<JobId>) -> Result<BTreeMap<JobId, String>> {
    if let Some(job_id) = only {
        return Ok(BTreeMap::from([(job_id, archive.job(job_id)?.name)]));
    }
    Ok(all_jobs(archive)?.into_iter().map(|job| (job.id, job.name)).collect())
}
