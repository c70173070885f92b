//! The file, its log, and the disk that they are on.

use super::Examination;
use super::finding::{Concern, Urgency, size, span};
use crate::audit::visible::short;
use crate::repository::{Health, Result};

/// With less room than this nothing can be relied on.
const TOO_LITTLE_BYTES: u64 = 256 << 20;

/// With less room than this somebody should look.
const LITTLE_BYTES: u64 = 1 << 30;

/// How long the room must last at least, at the rate at which the file has grown.
const LASTS_MS: u128 = 24 * 3_600_000;

/// From when on it is worth to make a file smaller.
const MUCH_FREE_BYTES: u64 = 64 << 20;

impl Examination<'_> {
    pub(super) fn health(&mut self, health: &Health) -> Result<()> {
        let path = short(&health.path.display().to_string());
        self.disk(health, &path)?;
        self.log(health, &path);
        if health.is_readable_by_others() {
            let what = format!("{path} can be read by others (mode {:o}), with all that was said", health.mode);
            self.add(Urgency::Soon, Concern::Permissions, what, format!("`chmod 600 '{path}'*`"));
        }
        if health.free_bytes() > MUCH_FREE_BYTES && health.free_pages * 2 > health.pages {
            let what = format!("{} of {} in {path} are empty", size(health.free_bytes()), size(health.database_bytes));
            let advice = "nothing: they are used again; to give them back, compact the file while nobody works on it";
            self.add(Urgency::Note, Concern::FreePages, what, advice);
        }
        if health.journal_mode != "wal" {
            let what = format!(
                "{path} is not written through a log (journal mode {}): it is a copy",
                short(&health.journal_mode)
            );
            self.add(Urgency::Note, Concern::Format, what, "nothing: whoever opens it for writing gives it one");
        }
        if health.schema_version < health.current_schema_version {
            let (found, current) = (health.schema_version, health.current_schema_version);
            let what = format!("{path} has schema version {found}, this build writes {current}");
            self.add(
                Urgency::Note,
                Concern::Format,
                what,
                "nothing: it is brought up to date when it is next opened for writing",
            );
        }
        Ok(())
    }

    fn disk(&mut self, health: &Health, path: &str) -> Result<()> {
        let (free, log) = (health.disk_free_bytes, health.log_bytes);
        // What is in the log may have to be written into the file once more.
        let (urgency, limit) = match free {
            _ if free < TOO_LITTLE_BYTES.max(log) => (Urgency::Now, TOO_LITTLE_BYTES.max(log)),
            _ if free < LITTLE_BYTES => (Urgency::Soon, LITTLE_BYTES),
            _ => match self.room_lasts_ms(health)? {
                Some(lasts_ms) if lasts_ms < LASTS_MS => {
                    let lasts = span(i64::try_from(lasts_ms).unwrap_or(i64::MAX));
                    let what = format!("{} left where {path} is, which at its growth lasts {lasts}", size(free));
                    self.add(Urgency::Soon, Concern::Disk, what, "make room, or `workcrew purge` what is old");
                    return Ok(());
                }
                _ => return Ok(()),
            },
        };
        let what = format!("{} left where {path} is, less than {}", size(free), size(limit));
        self.add(
            urgency,
            Concern::Disk,
            what,
            "make room, or `workcrew purge` what is old; a full disk stops all work",
        );
        Ok(())
    }

    /// How long the room on the disk lasts if the file grows as it did since its first day; `None` if that cannot be said.
    fn room_lasts_ms(&mut self, health: &Health) -> Result<Option<u128>> {
        const SHORTEST_MS: i64 = 3_600_000;
        let first = self.archive.journal(0, 1);
        let first = self.readable("the journal", first)?.and_then(|page| page.items.into_iter().next());
        let age_ms = first.map_or(0, |row| (self.now.wall - row.at).num_milliseconds());
        let grown = u128::from(health.database_bytes.max(1));
        Ok((age_ms > SHORTEST_MS)
            .then(|| u128::from(health.disk_free_bytes) * u128::from(age_ms.unsigned_abs()) / grown))
    }

    fn log(&mut self, health: &Health, path: &str) {
        let limit = self.doctor.large_log_bytes.unwrap_or(health.log_limit_bytes.saturating_mul(4)).max(1);
        if health.log_bytes >= limit {
            let (log, usual) = (size(health.log_bytes), size(health.log_limit_bytes));
            let what = format!(
                "the log {path}-wal has {log}, where {usual} is usual: somebody reads what is older, or did for long"
            );
            let advice = format!(
                "see who has it open (`fuser '{path}'`) and let that end; with nobody there, the next process that works empties it"
            );
            self.add(Urgency::Soon, Concern::LogLarge, what, advice);
        }
    }
}
