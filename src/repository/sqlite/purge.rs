//! Removing contents without losing the proof that they were there.

use std::time::Duration;

use rusqlite::{Connection, params};

use super::book::{Answer, Book};
use super::open::Place;
use super::rows::{read_attempt_result, read_attempts};
use super::{compact, search};
use crate::attempt::Attempt;
use crate::clock::Moment;
use crate::conversation::to_json;
use crate::repository::prepared::HotUnit;
use crate::repository::{By, PURGE_LIMIT, Purged, UnitFilter};
use crate::unit::Change;

impl Book<'_> {
    /// Empties the contents of units that a filter means and that ended before a time.
    pub(super) fn purge(&mut self, now: Moment, filter: &UnitFilter, before_ms: i64, by: &By) -> Answer<Purged> {
        if let Some(job_id) = filter.job_id {
            self.job_has_template(job_id)?;
        }
        // The pluses keep SQLite to the one index: whichever units are meant, those that ended first go first.
        let units = self.units(
            "WHERE u.purged_at IS NULL AND u.completed_at IS NOT NULL AND u.completed_at < ?1
               AND (?3 IS NULL OR +u.job_id = ?3)
               AND (?4 IS NULL OR instr(?4, '|' || +u.status || '|') > 0)
               AND (?5 IS NULL OR +u.failure_kind = ?5)
               AND (?6 IS NULL OR (SELECT i.unit_type FROM unit_inputs i WHERE i.unit_key = u.key) = ?6)
             ORDER BY u.completed_at, u.key
             LIMIT ?2",
            params![
                before_ms,
                i64::try_from(PURGE_LIMIT).unwrap_or(i64::MAX),
                filter.job_id.map(|job_id| job_id.0),
                statuses(filter),
                filter.failure_kind,
                filter.unit_type,
            ],
        )?;
        let mut purged = Purged::default();
        for unit in &units {
            purged.units += 1;
            purged.messages += self.purge_unit(now, unit)?;
            self.record_by(now, unit, Change::Purge, unit.status, None, by)?;
        }
        Ok(purged)
    }

    /// Empties the contents of one unit, and says how many messages it had.
    fn purge_unit(&self, now: Moment, unit: &HotUnit) -> Answer<u64> {
        let key = unit.key.0;
        let execute = |sql| self.connection.prepare_cached(sql)?.execute([key]);
        execute("UPDATE unit_inputs SET payload = NULL, prompt = NULL WHERE unit_key = ?1")?;
        execute("DELETE FROM checkpoints WHERE unit_key = ?1")?;
        let messages = execute("UPDATE messages SET body = NULL, raw = NULL WHERE unit_key = ?1 AND body IS NOT NULL")?;
        for attempt in read_attempts(self.connection, unit.key)? {
            self.purge_result(&attempt)?;
        }
        // What is empty says no more than that it is gone, and what was never there stays so.
        execute("UPDATE attempts SET failure_message = '' WHERE unit_key = ?1 AND failure_message IS NOT NULL")?;
        let mut update = self.connection.prepare_cached(
            "UPDATE work_units
             SET purged_at = ?2, failure_message = iif(failure_message IS NULL, NULL, '')
             WHERE key = ?1",
        )?;
        update.execute([key, now.wall.timestamp_millis()])?;
        Ok(messages as u64)
    }

    fn purge_result(&self, attempt: &Attempt) -> Answer<()> {
        let hashes = read_attempt_result(self.connection, attempt.key)?.hashes(attempt);
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO attempt_results (unit_key, attempt_number, purged)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE
             SET rendered_prompt = NULL, result = NULL, output = NULL, late_result = NULL, purged = ?3",
        )?;
        let hashes = to_json(&hashes).expect("hashes are flat");
        upsert.execute(params![attempt.key.unit.0, attempt.key.number, hashes])?;
        Ok(())
    }
}

/// Whatever is removed is written over. Little is: what was purged, and what was said so far, saved for the next attempt or due.
pub(super) fn leave_no_traces(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "secure_delete", true, |_| Ok(()))
}

/// How long whoever reads is waited for, so that the log can be emptied; nobody can write meanwhile.
const LOG_PATIENCE: Duration = Duration::from_secs(1);

/// Once nothing more is to be purged, removes what is left beside the tables: the words in the search index, and the log, in which the
/// contents stand as they were written. All that is committed; what cannot be done is told.
pub(super) fn wipe(place: &Place, mut purged: Purged) -> Purged {
    if purged.units < PURGE_LIMIT as u64 {
        purged.is_in_index = !search::forget_purged(place.path());
        let is_empty = compact::connect(place, LOG_PATIENCE).and_then(|connection| compact::empty_log(&connection));
        purged.is_in_log = !is_empty.unwrap_or(false);
    }
    purged
}

/// The statuses that are meant, each between bars; `None` if all are.
fn statuses(filter: &UnitFilter) -> Option<String> {
    let names: String = filter.statuses.iter().map(|status| format!("|{status}|")).collect();
    Some(names).filter(|names| !names.is_empty())
}
