//! What is in a database is read beside its writer.

use serde_json::Value;

use super::owners::{read_owners, read_workers};
use super::read::{self, Rows, understood};
use super::rows::{read_attempt, read_attempt_result, read_attempts, read_charges};
use super::{PostgresRepository, accounts, jobs, providers};
use crate::attempt::{Attempt, AttemptKey, AttemptResult};
use crate::conversation::StoredMessage;
use crate::job::{Job, JobId};
use crate::lease::{Owner, OwnerId};
use crate::limits::{Account, AccountHolder, ProviderHold};
use crate::money::Charge;
use crate::repository::{
    Archive, Costs, Counts, JobEntry, JournalEntry, LeaseView, Page, Result, StoredInputs, UnitFilter, UnitSummary,
    rules,
};
use crate::unit::{UnitKey, WorkUnit};
use crate::worker::Worker;

/// An attempt as a message names it.
fn named(attempt: AttemptKey) -> (String, i64) {
    (format!("attempt {} of unit key {}", attempt.number, attempt.unit.0), attempt.unit.0)
}

impl Archive for PostgresRepository {
    fn job(&self, id: JobId) -> Result<Job> {
        self.look(|connection| jobs::job(connection, id))
    }

    fn job_named(&self, name: &str) -> Result<Option<Job>> {
        self.look(|connection| jobs::job_named(connection, name))
    }

    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        self.look(|connection| jobs::jobs(connection, after, limit))
    }

    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        self.look(|connection| jobs::journal(connection, after, limit))
    }

    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit> {
        self.look(|connection| read::unit(connection, job_id, id))
    }

    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        self.look(|connection| read::units(connection, filter, after, limit))
    }

    fn summaries(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<UnitSummary>> {
        self.look(|connection| read::summaries(connection, filter, after, limit))
    }

    fn account(&self, holder: AccountHolder) -> Result<Option<Account>> {
        self.look(|connection| understood(accounts::read(connection, holder), || ("an account".to_owned(), 0)))
    }

    fn holds(&self) -> Result<Vec<ProviderHold>> {
        self.look(|connection| {
            let now = self.shared.time.now(connection)?;
            understood(providers::read_holds(connection, now), || ("a hold".to_owned(), 0))
        })
    }

    fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.look(|connection| read::counts(connection, job_id))
    }

    fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        self.look(|connection| read::costs(connection, job_id))
    }

    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>> {
        let first = AttemptKey { unit, number: 1 };
        self.look(|connection| understood(read_attempts(connection, &[unit.0]), || named(first)))
    }

    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        self.look(|connection| {
            if understood(read_attempt(connection, attempt), || named(attempt))?.is_none() {
                return Err(rules::no_such_attempt(attempt).into());
            }
            understood(read_attempt_result(connection, attempt), || named(attempt))
        })
    }

    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>> {
        self.look(|connection| understood(read_charges(connection, attempt), || named(attempt)))
    }

    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        self.look(|connection| read::messages(connection, attempt, after, limit))
    }

    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>> {
        self.look(|connection| read::partial_text(connection, attempt))
    }

    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>> {
        self.look(|connection| read::checkpoint(connection, unit))
    }

    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        self.look(|connection| read::inputs(connection, unit))
    }

    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.look(|connection| read::journal(connection, &Rows::All, after, limit))
    }

    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.look(|connection| read::journal(connection, &Rows::OfUnit(unit), after, limit))
    }

    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.look(|connection| read::journal(connection, &Rows::Outcomes, after, limit))
    }

    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>> {
        let boot_id = self.shared.time.boot_id();
        self.look(|connection| {
            // Read first: what is renewed meanwhile must not look as if it had run out.
            let now = self.shared.time.now(connection)?;
            read::leases(connection, job_id, after, limit, (now, &boot_id))
        })
    }

    fn owners(&self) -> Result<Vec<Owner>> {
        self.look(|connection| understood(read_owners(connection), || ("an owner".to_owned(), 0)))
    }

    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>> {
        let limit = rules::page_limit(limit);
        self.look(|connection| understood(read_workers(connection, owner, after, limit), || ("a worker".to_owned(), 0)))
    }

    fn integrity(&self) -> Result<Vec<String>> {
        self.look(read::integrity)
    }
}
