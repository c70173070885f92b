//! Budgets: what is told of them follows from what the attempts were expected to cost and were charged (I13).

use super::Audit;
use super::finding::Invariant;
use super::sequence::Sequence;
use crate::attempt::Attempt;
use crate::job::JobId;
use crate::limits::{Account, AccountHolder};
use crate::money::Charge;
use crate::repository::Result;

impl Audit<'_> {
    /// Begins an account for each budget. Called before the units are read, and after the owners were.
    pub(super) fn open_accounts(&mut self) -> Result<()> {
        let archive = self.archive;
        for job in Sequence::new(|after, limit| archive.jobs(after, limit)) {
            // What cannot be read was found with the journal of jobs.
            let Ok(job) = job? else { continue };
            let holder = AccountHolder::Job(job.id);
            self.accounts.extend(job.budget.map(|budget| (holder, Account::new(holder, budget))));
        }
        Ok(())
    }

    /// Counts an attempt for whoever has a budget for it.
    pub(super) fn count_for_accounts(&mut self, job_id: Option<JobId>, attempt: &Attempt, charges: &[Charge]) {
        let of_job = job_id.map(AccountHolder::Job);
        for holder in of_job.into_iter().chain([AccountHolder::Owner(attempt.owner)]) {
            if let Some(account) = self.accounts.get_mut(&holder) {
                account.count(attempt.expected, attempt.outcome.is_some(), charges);
            }
        }
    }

    /// What is told of each account is what was counted. Called when the units were read.
    pub(super) fn close_accounts(&mut self) -> Result<()> {
        for (holder, counted) in std::mem::take(&mut self.accounts) {
            let subject = &format!("the budget of {holder}");
            let told = self.archive.account(holder);
            let told = self.readable(subject, told)?.flatten();
            if self.unreadable_units > 0 {
                continue;
            }
            match told {
                Some(told) if (told.spent, told.reserved) == (counted.spent, counted.reserved) => {}
                Some(told) => {
                    let problem = format!(
                        "{} spent and {} reserved are told, which are {} and {} by its attempts",
                        told.spent, told.reserved, counted.spent, counted.reserved
                    );
                    self.findings.add(Invariant::I13, subject, problem);
                }
                None => self.findings.add(Invariant::I13, subject, "has no account"),
            }
        }
        Ok(())
    }
}
