//! Removing contents without losing the proof that they were there; and a copy before that.

use std::path::Path;
use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags, params};

use super::book::{Answer, Book};
use super::rows::{HotUnit, read_attempt_result};
use super::writer::failure_of;
use crate::attempt::AttemptKey;
use crate::clock::Moment;
use crate::conversation::to_json;
use crate::repository::{By, PURGE_LIMIT, Purged, RepositoryError, Result};
use crate::unit::Change;

impl Book<'_> {
    /// Empties the contents of units that ended before a time.
    pub(super) fn purge(&mut self, now: Moment, before_ms: i64, by: &By) -> Answer<Purged> {
        let units = self.units(
            "WHERE u.purged_at IS NULL AND u.completed_at IS NOT NULL AND u.completed_at < ?1
             ORDER BY u.completed_at, u.key
             LIMIT ?2",
            params![before_ms, i64::try_from(PURGE_LIMIT).unwrap_or(i64::MAX)],
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
        for number in 1..=unit.attempt_count {
            self.purge_result(AttemptKey { unit: unit.key, number })?;
        }
        let mut update = self.connection.prepare_cached("UPDATE work_units SET purged_at = ?2 WHERE key = ?1")?;
        update.execute([key, now.wall.timestamp_millis()])?;
        Ok(messages as u64)
    }

    fn purge_result(&self, attempt: AttemptKey) -> Answer<()> {
        let hashes = read_attempt_result(self.connection, attempt)?.hashes();
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO attempt_results (unit_key, attempt_number, purged)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE
             SET rendered_prompt = NULL, result = NULL, output = NULL, late_result = NULL, purged = ?3",
        )?;
        let hashes = to_json(&hashes).expect("hashes are flat");
        upsert.execute(params![attempt.unit.0, attempt.number, hashes])?;
        Ok(())
    }
}

/// How many pages are copied before others get a turn.
const BACKUP_PAGES: i32 = 1_024;

/// Copies what a connection sees into a new file, 0600 like the original.
pub(super) fn backup(from: &Connection, to: &Path) -> Result<()> {
    let created = {
        use std::os::unix::fs::OpenOptionsExt;
        std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(to)
    };
    if let Err(error) = created {
        let problem = format!("no backup can be made at `{}`: {error}", to.display());
        return Err(RepositoryError::Invalid(problem));
    }
    let copy = || -> rusqlite::Result<()> {
        let mut target = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        Backup::new(from, &mut target)?.run_to_completion(BACKUP_PAGES, Duration::ZERO, None)?;
        target.close().map_err(|(_, error)| error)
    };
    copy().map_err(|error| {
        // Half a copy must not pass for a whole one.
        let _ = std::fs::remove_file(to);
        failure_of(&error)
    })
}
