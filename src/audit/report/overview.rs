//! The numbers at the top of the page: sums over all units, whether the page has room for them or not.

use std::collections::{BTreeMap, HashMap};

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::Report;
use super::embed::beginning;
use super::spread::{Spread, SpreadTold};
use super::timeline::{Timeline, TimelineTold};
use crate::attempt::Outcome;
use crate::audit::verify::sequence::Sequence;
use crate::job::Job;
use crate::money::{Charge, Cost, Tokens};
use crate::repository::{Archive, AttemptSummary, Counts, Result, UnitFilter, UnitSummary};
use crate::unit::UnitStatus;

/// How many models, and how many kinds of failures, are counted by name. Both come from outside; the rest is counted together.
const NAME_LIMIT: usize = 200;

/// Everything that is added up while the archive is read once.
#[derive(Debug, Default)]
pub(super) struct Overview {
    counts: Counts,
    units: u64,
    attempts: u64,
    retried_units: u64,
    outcomes: HashMap<Option<Outcome>, u64>,
    bill: Bill,
    executed_ms: u64,
    durations: Spread,
    costs: Spread,
    models: Named<Bill>,
    failures: Named<FailureCount>,
    timeline: Timeline,
    unreadable: u64,
}

/// What was used and what it cost.
#[derive(Clone, Debug, Default, Serialize)]
struct Bill {
    nanos: i64,
    /// How many attempts have a charge that nobody could price, or were executed and left no bill.
    unpriced_attempts: u64,
    /// How many attempts have a charge that is a guess.
    estimated_attempts: u64,
    tokens: Tokens,
}

impl Bill {
    /// Adds what one attempt was charged, which cost so much.
    fn add(&mut self, charges: &[Charge], cost: Cost) {
        self.nanos = self.nanos.saturating_add(cost.amount.nanos());
        self.unpriced_attempts += u64::from(!cost.is_known());
        self.estimated_attempts += u64::from(charges.iter().any(|charge| charge.is_estimated));
        charges.iter().for_each(|charge| self.tokens += charge.tokens);
    }
}

#[derive(Clone, Debug, Default, Serialize)]
struct FailureCount {
    /// Attempts that failed in this way.
    attempts: u64,
    /// Units that are FAILED for it.
    units: u64,
}

/// Counts by names that come from outside, of which there may be any number.
#[derive(Debug)]
struct Named<T> {
    by_name: BTreeMap<String, T>,
    others: Option<T>,
}

impl<T> Default for Named<T> {
    fn default() -> Named<T> {
        Named { by_name: BTreeMap::new(), others: None }
    }
}

impl<T: Default + Clone> Named<T> {
    fn of(&mut self, name: &str) -> &mut T {
        let name = beginning(name);
        if self.by_name.len() >= NAME_LIMIT && !self.by_name.contains_key(&name) {
            return self.others.get_or_insert_default();
        }
        self.by_name.entry(name).or_default()
    }

    /// Each with its name; those without one have none.
    fn told(&self) -> Vec<(Option<String>, T)> {
        let named = self.by_name.iter().map(|(name, value)| (Some(name.clone()), value.clone()));
        named.chain(self.others.iter().map(|others| (None, others.clone()))).collect()
    }
}

/// What the page gets to know at its top.
#[derive(Debug, Serialize)]
pub(super) struct OverviewTold<'a> {
    title: Option<&'a str>,
    made_at_ms: i64,
    crate_version: &'static str,
    jobs: Vec<JobTold<'a>>,
    is_one_job: bool,
    limit_bytes: u64,
    limit_text_bytes: usize,
    units: u64,
    attempts: u64,
    retried_units: u64,
    counts: Vec<(&'static str, u64)>,
    outcomes: Vec<(&'static str, u64)>,
    bill: &'a Bill,
    executed_ms: u64,
    durations: SpreadTold,
    costs: SpreadTold,
    models: Vec<(Option<String>, Bill)>,
    failures: Vec<(Option<String>, FailureCount)>,
    timeline: TimelineTold,
    unreadable: u64,
}

#[derive(Debug, Serialize)]
struct JobTold<'a> {
    id: i64,
    name: &'a str,
}

impl Overview {
    /// Reads every unit that is meant, without contents.
    pub(super) fn of(archive: &dyn Archive, filter: &UnitFilter) -> Result<Overview> {
        let mut overview = Overview::default();
        for unit in Sequence::new(|after, limit| archive.summaries(filter, after, limit)) {
            match unit? {
                Ok(unit) => overview.add(&unit),
                Err(_) => overview.unreadable += 1,
            }
        }
        Ok(overview)
    }

    fn add(&mut self, unit: &UnitSummary) {
        self.units += 1;
        self.counts.add(unit.status, 1);
        self.retried_units += u64::from(unit.attempts.len() > 1);
        if let Some(failure) = &unit.failure {
            self.failures.of(failure.kind.as_str()).units += 1;
        }
        // A unit that used something whose price nobody knows has no cost that could be compared.
        let cost = unit.cost();
        if cost.is_known() && unit.charges().next().is_some() {
            self.costs.add(cost.amount.nanos());
        }
        unit.attempts.iter().for_each(|attempt| self.add_attempt(attempt));
    }

    fn add_attempt(&mut self, AttemptSummary { attempt, charges, .. }: &AttemptSummary) {
        self.attempts += 1;
        *self.outcomes.entry(attempt.outcome).or_default() += 1;
        if let Some(time) = attempt.execution_time() {
            let time_ms = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
            self.executed_ms = self.executed_ms.saturating_add(time_ms.unsigned_abs());
            self.durations.add(time_ms);
        }
        if let Some(failure) = &attempt.failure {
            self.failures.of(failure.kind.as_str()).attempts += 1;
        }
        self.bill.add(charges, attempt.cost(charges));
        for charge in charges {
            self.models.of(&charge.model).add(std::slice::from_ref(charge), charge.cost());
        }
        self.timeline.add(attempt);
    }

    pub(super) fn units(&self) -> u64 {
        self.units
    }

    pub(super) fn unreadable(&self) -> u64 {
        self.unreadable
    }

    /// What the page says, now that everything is known.
    pub(super) fn told<'a>(&'a mut self, wanted: &'a Report, jobs: &'a [Job], now: DateTime<Utc>) -> OverviewTold<'a> {
        let timeline = std::mem::take(&mut self.timeline).told();
        let outcome = |outcome: Option<Outcome>| {
            let count = self.outcomes.get(&outcome).copied();
            (outcome.map_or("OPEN", Outcome::name), count.unwrap_or(0))
        };
        OverviewTold {
            title: wanted.title.as_deref(),
            made_at_ms: now.timestamp_millis(),
            crate_version: env!("CARGO_PKG_VERSION"),
            jobs: jobs.iter().map(|job| JobTold { id: job.id.0, name: &job.name }).collect(),
            is_one_job: wanted.job_id.is_some(),
            limit_bytes: wanted.limit_bytes,
            limit_text_bytes: wanted.limit_text_bytes,
            units: self.units,
            attempts: self.attempts,
            retried_units: self.retried_units,
            counts: UnitStatus::ALL.iter().map(|&status| (status.name(), self.counts.of(status))).collect(),
            outcomes: Outcome::ALL.iter().copied().map(Some).chain([None]).map(outcome).collect(),
            bill: &self.bill,
            executed_ms: self.executed_ms,
            durations: self.durations.told(),
            costs: self.costs.told(),
            models: self.models.told(),
            failures: self.failures.told(),
            timeline,
            unreadable: self.unreadable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;

    #[test]
    fn an_unknown_price_is_counted_by_attempt_and_never_as_nothing() {
        let tokens = Tokens { input: 10, ..Tokens::default() };
        let known = Charge::reported("large", tokens, Money::from_nanos(7));
        let unknown = [Charge::unpriced("local", tokens), Charge::unpriced("other", tokens).estimated()];
        let mut bill = Bill::default();
        bill.add(std::slice::from_ref(&known), known.cost());
        bill.add(&unknown, unknown.iter().map(Charge::cost).sum());
        assert_eq!((bill.nanos, bill.unpriced_attempts, bill.estimated_attempts), (7, 1, 1));
        assert_eq!(bill.tokens.input, 30);
    }

    #[test]
    fn names_beyond_the_limit_are_counted_together() {
        let mut named = Named::<FailureCount>::default();
        for number in 0..NAME_LIMIT + 50 {
            named.of(&format!("kind-{number:04}")).attempts += 1;
        }
        named.of("kind-0000").attempts += 1;
        let told = named.told();
        assert_eq!(told.len(), NAME_LIMIT + 1);
        assert_eq!((told[0].1.attempts, told[NAME_LIMIT].0.clone(), told[NAME_LIMIT].1.attempts), (2, None, 50));
    }
}
