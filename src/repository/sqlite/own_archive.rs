//! A repository is read like any file of its kind, through the archive that it has beside its writer.

use serde_json::Value;

use super::SqliteRepository;
use crate::attempt::{Attempt, AttemptKey, AttemptResult};
use crate::conversation::StoredMessage;
use crate::job::{Job, JobId};
use crate::lease::{Owner, OwnerId};
use crate::limits::{Account, AccountHolder, ProviderHold};
use crate::money::Charge;
use crate::repository::{
    Archive, Costs, Counts, JobEntry, JournalEntry, LeaseView, Page, Result, StoredInputs, UnitFilter, UnitSummary,
};
use crate::unit::{UnitKey, WorkUnit};
use crate::worker::Worker;

impl Archive for SqliteRepository {
    fn job(&self, id: JobId) -> Result<Job> {
        self.shared.archive.job(id)
    }

    fn job_named(&self, name: &str) -> Result<Option<Job>> {
        self.shared.archive.job_named(name)
    }

    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        self.shared.archive.jobs(after, limit)
    }

    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        self.shared.archive.job_journal(after, limit)
    }

    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit> {
        self.shared.archive.unit(job_id, id)
    }

    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        self.shared.archive.units(filter, after, limit)
    }

    fn summaries(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<UnitSummary>> {
        self.shared.archive.summaries(filter, after, limit)
    }

    fn account(&self, holder: AccountHolder) -> Result<Option<Account>> {
        self.shared.archive.account(holder)
    }

    fn holds(&self) -> Result<Vec<ProviderHold>> {
        self.shared.archive.holds()
    }

    fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.shared.archive.counts(job_id)
    }

    fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        self.shared.archive.costs(job_id)
    }

    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>> {
        self.shared.archive.attempts(unit)
    }

    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        self.shared.archive.attempt_result(attempt)
    }

    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>> {
        self.shared.archive.charges(attempt)
    }

    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        self.shared.archive.messages(attempt, after, limit)
    }

    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>> {
        self.shared.archive.partial_text(attempt)
    }

    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>> {
        self.shared.archive.checkpoint(unit)
    }

    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        self.shared.archive.inputs(unit)
    }

    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.shared.archive.journal(after, limit)
    }

    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.shared.archive.unit_journal(unit, after, limit)
    }

    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.shared.archive.outcomes_since(after, limit)
    }

    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>> {
        self.shared.archive.leases(job_id, after, limit)
    }

    fn owners(&self) -> Result<Vec<Owner>> {
        self.shared.archive.owners()
    }

    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>> {
        self.shared.archive.workers(owner, after, limit)
    }

    fn integrity(&self) -> Result<Vec<String>> {
        self.shared.archive.integrity()
    }
}
