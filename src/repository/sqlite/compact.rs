//! Giving back what a file does not need any more, and with it the last traces of what was removed.

use std::fs;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

use super::migrate;
use super::open::{self, Place};
use super::writer::failure_of;
use crate::clock::Clock;
use crate::repository::{RepositoryError, Result};

/// What became of a file that was compacted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Compacted {
    /// How large the file and its log were.
    pub before_bytes: u64,
    /// How large they are.
    pub after_bytes: u64,
    /// Whether the log is empty. If it is not, somebody reads, and what was removed may still be in it until it is emptied.
    pub is_log_empty: bool,
}

/// Writes the whole file anew, unless somebody works on it.
pub(super) fn compact(place: &Place, clock: &dyn Clock, busy_timeout: Duration) -> Result<Compacted> {
    place.check()?;
    let failed = |error: rusqlite::Error| failure_of(&error);
    let connection = connect(place, busy_timeout).map_err(failed)?;
    if let Some(owner) = migrate::living_owner(&connection, clock).map_err(failed)? {
        let (label, pid) = (owner.label, owner.process.pid);
        return Err(RepositoryError::Invalid(format!(
            "`{label}` (process {pid}) works on the database: stop it first"
        )));
    }
    let before_bytes = size_of(place);
    let is_log_empty = write_anew(&connection).map_err(failed)?;
    Ok(Compacted { before_bytes, after_bytes: size_of(place), is_log_empty })
}

/// A connection of its own, beside the one that writes.
pub(super) fn connect(place: &Place, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(place.path(), flags)?;
    connection.busy_timeout(busy_timeout)?;
    open::prepare(&connection)?;
    Ok(connection)
}

/// Tells whether the log could be emptied.
fn write_anew(connection: &Connection) -> rusqlite::Result<bool> {
    connection.execute_batch("VACUUM")?;
    empty_log(connection)
}

/// Takes all of the log into the file and shortens it to nothing; tells whether that could be done, which it cannot while somebody reads.
pub(super) fn empty_log(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0)).map(|busy| busy == 0)
}

fn size_of(place: &Place) -> u64 {
    let path = place.path();
    let sizes =
        [path.to_owned(), open::beside(path, "-wal")].map(|path| fs::metadata(path).map_or(0, |file| file.len()));
    sizes.iter().sum()
}
