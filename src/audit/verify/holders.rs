//! Owners, workers and jobs: what they hold is what the units say.

use super::Audit;
use super::finding::Invariant;
use super::sequence::Sequence;
use crate::lease::OwnerId;
use crate::limits::{Account, AccountHolder};
use crate::repository::{Page, RepositoryError, Result};
use crate::unit::UnitKey;
use crate::worker::Worker;

impl Audit<'_> {
    /// Who there is. Called before the units are read.
    pub(super) fn owners(&mut self) -> Result<()> {
        let owners = self.archive.owners();
        let Some(owners) = self.readable("the owners", owners)? else { return Ok(()) };
        for owner in &owners {
            self.search_record(&owner.id.to_string(), owner);
            let holder = AccountHolder::Owner(owner.id);
            self.accounts.extend(owner.budget.map(|budget| (holder, Account::new(holder, budget))));
        }
        self.owners = Some(owners.into_iter().map(|owner| (owner.id, owner.ended_at.is_some())).collect());
        Ok(())
    }

    /// What each worker holds. Called when the units were read.
    pub(super) fn workers(&mut self) -> Result<()> {
        let mut owners: Vec<OwnerId> = self.owners.iter().flat_map(|owners| owners.keys().copied()).collect();
        owners.sort_unstable();
        for owner in owners {
            self.workers_of(owner)?;
        }
        if self.owners.is_none() {
            return Ok(());
        }
        let mut strays: Vec<_> = std::mem::take(&mut self.held).into_iter().collect();
        strays.sort_unstable();
        for ((owner, worker), units) in strays {
            let subject = format!("worker `{worker}` of {owner}");
            self.findings.add(Invariant::I13, &subject, format!("is not there, but holds {} units", units.len()));
        }
        Ok(())
    }

    fn workers_of(&mut self, owner: OwnerId) -> Result<()> {
        let archive = self.archive;
        let subject = format!("the workers of {owner}");
        let mut after = String::new();
        // They are kept by name, so that nothing says what is behind one that cannot be read.
        let read = |seen: i64, limit| {
            let items = archive.workers(owner, &after, limit).map_err(|error| match error {
                RepositoryError::Corrupt { what, source, .. } => RepositoryError::Corrupt { what, position: 0, source },
                error => error,
            })?;
            let next = match items.last().map(|worker| worker.id.to_string()) {
                Some(last) if last > after => {
                    after = last;
                    Some(seen.saturating_add(1))
                }
                Some(_) => Some(seen),
                None => None,
            };
            Ok(Page { items, next })
        };
        for worker in Sequence::new(read) {
            match worker? {
                Ok(worker) => self.worker(&worker),
                Err(damage) => {
                    self.findings.add(Invariant::I13, &subject, damage.problem);
                    self.held.retain(|(holder, _), _| *holder != owner);
                }
            }
        }
        Ok(())
    }

    fn worker(&mut self, worker: &Worker) {
        let subject = &format!("worker `{}` of {}", worker.id, worker.owner);
        self.totals.workers += 1;
        self.search_record(subject, worker);
        let units: Vec<UnitKey> = self.held.remove(&(worker.owner, worker.id.clone())).unwrap_or_default();
        if self.unreadable_units > 0 {
            return;
        }
        let notes = &mut self.findings.about(subject);
        if usize::try_from(worker.load) != Ok(units.len()) {
            notes.add(Invariant::I13, format!("has load {}, but holds {} units", worker.load, units.len()));
        }
        if worker.status.is_ended() && !units.is_empty() {
            notes.add(Invariant::I10, format!("is {}, but holds {} units", worker.status, units.len()));
        }
        if let Some(unit) = worker.current_unit.filter(|unit| !units.contains(unit)) {
            notes.add(Invariant::I13, format!("works on unit key {}, which it does not hold", unit.0));
        }
    }

    /// How many units each job has. Called when the units were read.
    pub(super) fn jobs(&mut self) -> Result<()> {
        let archive = self.archive;
        let mut has_unreadable_jobs = false;
        for job in Sequence::new(|after, limit| archive.jobs(after, limit)) {
            match job? {
                Ok(job) => {
                    let subject = &job.id.to_string();
                    self.totals.jobs += 1;
                    self.search_record(subject, &job);
                    let found = self.counts.remove(&job.id).unwrap_or_default();
                    let told = self.readable(subject, archive.counts(job.id))?;
                    if told.is_some_and(|told| told != found) && self.unreadable_units == 0 {
                        self.findings.add(Invariant::I13, subject, "its counts are not those of its units");
                    }
                }
                // What is wrong with it was found with the journal of jobs.
                Err(_) => has_unreadable_jobs = true,
            }
        }
        for (job, counts) in std::mem::take(&mut self.counts).into_iter().filter(|_| !has_unreadable_jobs) {
            let problem = format!("is not there, but has {} units", counts.total());
            self.findings.add(Invariant::I13, &job.to_string(), problem);
        }
        Ok(())
    }
}
