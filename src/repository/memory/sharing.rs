//! The same work once.

use super::store::Store;
use crate::attempt::{AttemptKey, AttemptReport, ResultHashes};
use crate::chain::Hash;
use crate::conversation::Raw;
use crate::lease::Lease;
use crate::repository::sharing::{Holding, check_answer};
use crate::repository::{Result, Shared, SharedBy};
use crate::same_work::WorkKey;

impl Store {
    pub(super) fn share(&mut self, lease: &Lease, key: &WorkKey) -> Result<Shared> {
        let asking = self.held_attempt(lease)?.attempt.key;
        let told = self.works.get(key).and_then(|&attempt| self.holding(attempt).told(asking));
        Ok(told.unwrap_or_else(|| {
            self.works.insert(*key, asking);
            Shared::Yours
        }))
    }

    fn holding(&self, attempt: AttemptKey) -> Holding {
        let (unit, record) = (self.unit(attempt.unit), &self.attempts[&attempt]);
        Holding {
            by: SharedBy { job_id: unit.job_id, unit_id: unit.id.clone(), attempt },
            outcome: record.attempt.outcome,
            messages_lost: record.attempt.messages_lost,
            has_files: !record.result.output_files.is_empty(),
            is_purged: unit.purged_at.is_some(),
        }
    }

    /// Refuses an answer that is said to be another's and is not.
    pub(super) fn check_answer(&self, report: &AttemptReport, result: Option<&Raw>) -> Result<()> {
        let Some(of) = report.answer_of else { return Ok(()) };
        let told = ResultHashes {
            result: result.map(|json| Hash::of(json.as_bytes())),
            output: report.output.as_deref().map(|text| Hash::of(text.as_bytes())),
            ..ResultHashes::default()
        };
        check_answer(of, self.attempts.get(&of).map(|record| (&record.attempt, &record.result)), &told)
    }
}
