//! How the file is: its size, its log, the disk it is on.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rusqlite::Connection;

use super::migrate;
use super::open::{self, Place};
use super::rows::unsigned;
use super::writer::failure_of;
use crate::repository::{Health, RepositoryError, Result};

/// Looks at the file that a connection reads.
pub(super) fn look(place: &Place, connection: &Connection) -> Result<Health> {
    let mut health = of_pragmas(connection).map_err(|error| failure_of(&error))?;
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => place.gone(),
        _ => RepositoryError::storage(error),
    };
    let path = place.path();
    let metadata = fs::metadata(path).map_err(failed)?;
    health.path = path.to_owned();
    health.database_bytes = metadata.len();
    health.mode = metadata.permissions().mode() & 0o7777;
    health.log_bytes = size_of(&open::beside(path, "-wal")).unwrap_or(0);
    health.log_limit_bytes = health.page_bytes.saturating_mul(open::CHECKPOINT_PAGES.unsigned_abs().into());
    health.search_index_bytes = size_of(&open::beside(path, ".search"));
    let disk = rustix::fs::statvfs(path.parent().unwrap_or(path)).map_err(|error| failed(error.into()))?;
    health.disk_free_bytes = disk.f_bavail.saturating_mul(disk.f_frsize);
    health.disk_bytes = disk.f_blocks.saturating_mul(disk.f_frsize);
    Ok(health)
}

fn of_pragmas(connection: &Connection) -> rusqlite::Result<Health> {
    let number = |name| connection.pragma_query_value(None, name, |row| unsigned(row, 0));
    Ok(Health {
        pages: number("page_count")?,
        free_pages: number("freelist_count")?,
        page_bytes: number("page_size")?,
        schema_version: migrate::version(connection)?,
        current_schema_version: migrate::current_version(),
        sqlite_version: rusqlite::version().to_owned(),
        journal_mode: connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?,
        ..Health::default()
    })
}

/// How large a file is, if there is one.
fn size_of(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|metadata| metadata.len())
}
