//! The same work once.

use rusqlite::{OptionalExtension, Row, params};

use super::book::{Answer, Book};
use super::endings::ReportRow;
use super::rows::{named, read_attempt, read_attempt_result, unit_id};
use crate::attempt::{AttemptKey, Outcome};
use crate::job::JobId;
use crate::lease::Lease;
use crate::repository::sharing::{Holding, check_answer};
use crate::repository::{Shared, SharedBy};
use crate::same_work::WorkKey;
use crate::unit::UnitKey;

/// The first version of the schema that has answers which are another's.
pub(super) const SINCE_VERSION: u32 = 5;

impl Book<'_> {
    pub(super) fn share(&mut self, lease: &Lease, key: &WorkKey) -> Answer<Shared> {
        self.check_held(lease)?;
        let asking = lease.attempt();
        if let Some(told) = self.holding(key)?.and_then(|holding| holding.told(asking)) {
            return Ok(told);
        }
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO works (key, unit_key, attempt_number)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (key) DO UPDATE SET unit_key = ?2, attempt_number = ?3",
        )?;
        upsert.execute(params![key.hash().as_bytes(), asking.unit.0, asking.number])?;
        Ok(Shared::Yours)
    }

    /// The attempt that has a piece of work, if any ever had it.
    fn holding(&self, key: &WorkKey) -> rusqlite::Result<Option<Holding>> {
        let mut select = self.connection.prepare_cached(
            "SELECT w.unit_key, w.attempt_number, u.job_id, u.id, u.purged_at IS NOT NULL, a.outcome, a.messages_lost,
                    EXISTS (SELECT 1 FROM output_files f
                            WHERE f.unit_key = w.unit_key AND f.attempt_number = w.attempt_number)
             FROM works w
             JOIN work_units u ON u.key = w.unit_key
             JOIN attempts a ON a.unit_key = w.unit_key AND a.number = w.attempt_number
             WHERE w.key = ?1",
        )?;
        select.query_row([key.hash().as_bytes()], holding).optional()
    }

    /// Refuses an answer that is said to be another's and is not.
    pub(super) fn check_answer(&self, row: &ReportRow) -> Answer<()> {
        let Some(of) = row.report.answer_of else { return Ok(()) };
        let attempt = read_attempt(self.connection, of)?;
        let left = read_attempt_result(self.connection, of)?;
        Ok(check_answer(of, attempt.as_ref().map(|attempt| (attempt, &left)), &row.hashes)?)
    }
}

fn holding(row: &Row<'_>) -> rusqlite::Result<Holding> {
    let is_open = row.get_ref(5)? == rusqlite::types::ValueRef::Null;
    Ok(Holding {
        by: SharedBy {
            job_id: JobId(row.get(2)?),
            unit_id: unit_id(row, 3)?,
            attempt: AttemptKey { unit: UnitKey(row.get(0)?), number: row.get(1)? },
        },
        is_purged: row.get(4)?,
        outcome: if is_open { None } else { Some(named(row, 5, Outcome::from_name)?) },
        messages_lost: row.get(6)?,
        has_files: row.get(7)?,
    })
}
