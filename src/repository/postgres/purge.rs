//! Removing contents without losing the proof that they were there.
//!
//! What is removed is gone for whoever asks the database. PostgreSQL itself keeps old versions of rows until they are vacuumed, and
//! what was written in its log and in backups: those are out of reach from here.

use super::book::{Answer, Book};
use super::columns::sql_limit;
use super::rows::{read_attempt_result, read_attempts};
use crate::attempt::Attempt;
use crate::conversation::to_json;
use crate::repository::prepared::HotUnit;
use crate::repository::{By, PURGE_LIMIT, Purged, UnitFilter};
use crate::unit::{Change, UnitStatus};

impl Book<'_> {
    /// Empties the contents of units that a filter means and that ended before a time.
    pub(super) fn purge(&mut self, filter: &UnitFilter, before_ms: i64, by: &By) -> Answer<Purged> {
        if let Some(job_id) = filter.job_id {
            self.job_has_template(job_id)?;
        }
        let statuses: Vec<&str> = filter.statuses.iter().copied().map(UnitStatus::name).collect();
        let bytes = |text: &Option<String>| text.as_ref().map(|text| text.as_bytes().to_vec());
        let units = self.units(
            "WHERE u.purged_at IS NULL AND u.completed_at IS NOT NULL AND u.completed_at < $1
               AND ($3::bigint IS NULL OR u.job_id = $3)
               AND (cardinality($4::text[]) = 0 OR u.status = ANY($4))
               AND ($5::bytea IS NULL OR u.failure_kind = $5)
               AND ($6::bytea IS NULL OR (SELECT i.unit_type FROM unit_inputs i WHERE i.unit_key = u.key) = $6)
             ORDER BY u.completed_at, u.key
             LIMIT $2",
            &[
                &before_ms,
                &sql_limit(PURGE_LIMIT),
                &filter.job_id.map(|job_id| job_id.0),
                &statuses,
                &bytes(&filter.failure_kind),
                &bytes(&filter.unit_type),
            ],
        )?;
        let mut purged = Purged::default();
        for unit in &units {
            purged.units += 1;
            purged.messages += self.purge_unit(unit)?;
            self.record_by(unit, Change::Purge, unit.status, None, by);
        }
        Ok(purged)
    }

    /// Empties the contents of one unit, and says how many messages it had.
    fn purge_unit(&mut self, unit: &HotUnit) -> Answer<u64> {
        let key = unit.key.0;
        // Messages of this very transaction are among them.
        self.settled()?;
        self.execute("UPDATE unit_inputs SET payload = NULL, prompt = NULL WHERE unit_key = $1", &[&key])?;
        self.execute("DELETE FROM checkpoints WHERE unit_key = $1", &[&key])?;
        let messages = self
            .execute("UPDATE messages SET body = NULL, raw = NULL WHERE unit_key = $1 AND body IS NOT NULL", &[&key])?;
        for attempt in read_attempts(self.connection(), &[key])? {
            self.purge_result(&attempt)?;
        }
        // What is empty says no more than that it is gone, and what was never there stays so.
        self.execute(
            "UPDATE attempts SET failure_message = '' WHERE unit_key = $1 AND failure_message IS NOT NULL",
            &[&key],
        )?;
        self.execute(
            "UPDATE work_units
             SET purged_at = $2, failure_message = CASE WHEN failure_message IS NOT NULL THEN ''::bytea END
             WHERE key = $1",
            &[&key, &self.now.wall.timestamp_millis()],
        )?;
        Ok(messages)
    }

    fn purge_result(&mut self, attempt: &Attempt) -> Answer<()> {
        let hashes = read_attempt_result(self.connection(), attempt.key)?.hashes(attempt);
        let hashes = to_json(&hashes).expect("hashes are flat");
        self.execute(
            "INSERT INTO attempt_results (unit_key, attempt_number, purged)
             VALUES ($1, $2, $3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE
             SET rendered_prompt = NULL, result = NULL, output = NULL, late_result = NULL, purged = $3",
            &[&attempt.key.unit.0, &i64::from(attempt.key.number), &hashes],
        )?;
        Ok(())
    }
}
