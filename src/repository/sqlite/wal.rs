//! The log beside the file: never larger than what is left on the disk.
//!
//! SQLite moves the content of its log into the file when that has grown long, which is rarely enough to be fast. On a disk with little room it
//! comes too late: the log would take what the file needs. So the writer looks after each commit, and moves the content at once where the log has
//! become larger than what is left: as long as there is as much as that, the file can take all that is in it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::open;

/// How long it is left alone after it could not be emptied: somebody reads it, or the file has no room either.
const PAUSE: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Log {
    path: PathBuf,
    /// How large it was when the disk was last looked at.
    seen_bytes: u64,
    next: Instant,
}

impl Log {
    pub(super) fn beside(database: &Path) -> Log {
        Log { path: open::beside(database, "-wal"), seen_bytes: 0, next: Instant::now() }
    }

    /// Looks, after a commit, whether it has become too large, and empties it then.
    pub(super) fn keep_small(&mut self, connection: &Connection) {
        let bytes = self.len_bytes();
        // It is used again from its beginning, without becoming shorter.
        if bytes == std::mem::replace(&mut self.seen_bytes, bytes) {
            return;
        }
        let folder = self.path.parent().unwrap_or(&self.path);
        let Ok(disk) = rustix::fs::statvfs(folder) else { return };
        if bytes >= disk.f_bavail.saturating_mul(disk.f_frsize) {
            self.empty(connection);
        }
    }

    /// Moves its content into the file; says whether that has made room.
    pub(super) fn empty(&mut self, connection: &Connection) -> bool {
        let before = self.len_bytes();
        if before == 0 || Instant::now() < self.next {
            return false;
        }
        let emptied = connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        self.seen_bytes = self.len_bytes();
        let has_made_room = self.seen_bytes < before;
        if !has_made_room {
            log::debug!("{}: could not be emptied: {emptied:?}", self.path.display());
            self.next = Instant::now() + PAUSE;
        }
        has_made_room
    }

    fn len_bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |log| log.len())
    }
}
