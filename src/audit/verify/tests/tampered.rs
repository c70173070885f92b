//! A repository that does not give out what it was given.

use serde_json::Value;

use super::Pool;
use crate::attempt::{Attempt, AttemptKey, AttemptResult};
use crate::audit::verify::{Finding, Verify};
use crate::conversation::StoredMessage;
use crate::job::{Job, JobId};
use crate::lease::{Owner, OwnerId};
use crate::money::Charge;
use crate::repository::memory::MemoryRepository;
use crate::repository::{
    Archive, Costs, Counts, JobEntry, JournalEntry, LeaseView, Page, RepositoryError, Result, StoredInputs, UnitFilter,
};
use crate::unit::{UnitKey, WorkUnit};
use crate::worker::Worker;

/// Alters what it is asked for on the way out.
#[derive(Debug)]
pub(super) struct Tampered {
    pub(super) inner: MemoryRepository,
    pub(super) units: fn(&mut Vec<WorkUnit>),
    pub(super) attempts: fn(&mut Vec<Attempt>),
    pub(super) result: fn(&mut AttemptResult),
    pub(super) charges: fn(&mut Vec<Charge>),
    pub(super) messages: fn(&mut Vec<StoredMessage>),
    pub(super) partial_text: Option<&'static str>,
    pub(super) inputs: fn(&mut StoredInputs),
    pub(super) jobs: fn(&mut Vec<Job>),
    pub(super) job_journal: fn(&mut Vec<JobEntry>),
    pub(super) journal: fn(&mut Vec<JournalEntry>),
    pub(super) owners: fn(&mut Vec<Owner>),
    pub(super) workers: fn(&mut Vec<Worker>),
    pub(super) integrity: &'static [&'static str],
    /// Whether something of this kind and key cannot be read.
    pub(super) is_damaged: fn(&str, i64) -> bool,
    pub(super) is_closed: bool,
}

impl Tampered {
    pub(super) fn nothing_of(pool: Pool) -> Tampered {
        Tampered {
            inner: pool.repository,
            units: |_| {},
            attempts: |_| {},
            result: |_| {},
            charges: |_| {},
            messages: |_| {},
            partial_text: None,
            inputs: |_| {},
            jobs: |_| {},
            job_journal: |_| {},
            journal: |_| {},
            owners: |_| {},
            workers: |_| {},
            integrity: &[],
            is_damaged: |_, _| false,
            is_closed: false,
        }
    }

    fn whole(&self, what: &str, key: i64) -> Result<()> {
        if (self.is_damaged)(what, key) {
            return Err(RepositoryError::corrupt(format!("{what} {key}"), key, "a bit flipped"));
        }
        Ok(())
    }

    fn page<T>(&self, what: &str, page: Page<T>, key: fn(&T) -> i64, alter: fn(&mut Vec<T>)) -> Result<Page<T>> {
        page.items.iter().try_for_each(|item| self.whole(what, key(item)))?;
        let Page { mut items, next } = page;
        alter(&mut items);
        Ok(Page { items, next })
    }

    pub(super) fn findings(&self) -> Vec<String> {
        self.findings_of(&Verify::new())
    }

    pub(super) fn findings_of(&self, verify: &Verify) -> Vec<String> {
        verify.run(self).unwrap().findings.iter().map(Finding::to_string).collect()
    }
}

impl Archive for Tampered {
    fn job(&self, id: JobId) -> Result<Job> {
        let mut jobs = vec![self.inner.job(id)?];
        (self.jobs)(&mut jobs);
        jobs.pop().ok_or(RepositoryError::UnknownJob(id))
    }

    fn job_named(&self, name: &str) -> Result<Option<Job>> {
        self.inner.job_named(name)
    }

    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        self.page("job", self.inner.jobs(after, limit)?, |job| job.id.0, self.jobs)
    }

    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        self.page("job row", self.inner.job_journal(after, limit)?, |row| row.seq, self.job_journal)
    }

    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit> {
        self.inner.unit(job_id, id)
    }

    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        self.page("unit", self.inner.units(filter, after, limit)?, |unit| unit.key.0, self.units)
    }

    fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.inner.counts(job_id)
    }

    fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        self.inner.costs(job_id)
    }

    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>> {
        self.whole("attempts", unit.0)?;
        let mut attempts = self.inner.attempts(unit)?;
        (self.attempts)(&mut attempts);
        Ok(attempts)
    }

    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        self.whole("result", attempt.unit.0)?;
        let mut result = self.inner.attempt_result(attempt)?;
        (self.result)(&mut result);
        Ok(result)
    }

    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>> {
        if self.is_closed {
            return Err(RepositoryError::Closed);
        }
        let mut charges = self.inner.charges(attempt)?;
        (self.charges)(&mut charges);
        Ok(charges)
    }

    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        let page = self.inner.messages(attempt, after, limit)?;
        self.page("message", page, |message| i64::from(message.number), self.messages)
    }

    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>> {
        Ok(self.partial_text.map(str::to_owned).or(self.inner.partial_text(attempt)?))
    }

    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>> {
        self.inner.checkpoint(unit)
    }

    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        self.whole("inputs", unit.0)?;
        let mut inputs = self.inner.inputs(unit)?;
        (self.inputs)(&mut inputs);
        Ok(inputs)
    }

    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.page("journal row", self.inner.journal(after, limit)?, |row| row.seq, self.journal)
    }

    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.page("journal row", self.inner.unit_journal(unit, after, limit)?, |row| row.seq, self.journal)
    }

    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.inner.outcomes_since(after, limit)
    }

    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>> {
        self.inner.leases(job_id, after, limit)
    }

    fn owners(&self) -> Result<Vec<Owner>> {
        let mut owners = self.inner.owners()?;
        (self.owners)(&mut owners);
        Ok(owners)
    }

    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>> {
        self.whole("worker of owner", owner.0)?;
        let mut workers = self.inner.workers(owner, after, limit)?;
        (self.workers)(&mut workers);
        Ok(workers)
    }

    fn integrity(&self) -> Result<Vec<String>> {
        Ok(self.integrity.iter().map(|&problem| problem.to_owned()).collect())
    }
}

#[track_caller]
pub(super) fn assert_found(findings: &[String], finding: &str) {
    assert!(findings.iter().any(|found| found == finding), "{findings:#?}");
}
