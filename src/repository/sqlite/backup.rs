//! A copy of a database that is in use: whole, of one moment, and never half under its name.

use std::fs;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use rusqlite::backup::Backup;
use rusqlite::{Connection, OpenFlags};

use super::writer::failure_of;
use super::{migrate, open};
use crate::fault::{Stage, point};
use crate::repository::{RepositoryError, Result};

/// How many pages are copied at a time.
const BACKUP_PAGES: i32 = 1_024;

/// Copies what a connection sees into a new file, 0600 like the original. It has its name when it is whole.
pub(super) fn backup(from: &Connection, to: &Path) -> Result<()> {
    let refused =
        |error: io::Error| RepositoryError::Invalid(format!("no backup can be made at `{}`: {error}", to.display()));
    if to.symlink_metadata().is_ok() {
        return Err(refused(io::Error::other("something is there, which is not replaced")));
    }
    // Should this process die, whoever next makes or opens a database of that name removes what is left.
    open::remove_leftovers(to);
    let draft = open::draft_of(to, std::process::id(), &uuid::Uuid::new_v4().simple().to_string());
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft);
    let made = created.map_err(refused).and_then(|_| {
        copy(from, &draft).map_err(|error| failure_of(&error))?;
        point("backup", Stage::Inside);
        open::rename_without_replacing(&draft, to).map_err(refused)
    });
    let _ = fs::remove_file(&draft);
    made?;
    // The name itself must survive a power loss.
    let folder = to.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(RepositoryError::storage)
}

fn copy(from: &Connection, to: &Path) -> rusqlite::Result<()> {
    // Whoever has read something in a transaction sees that state until it ends: however much is written meanwhile, the copy need
    // not begin anew.
    migrate::version(from)?;
    let mut target = Connection::open_with_flags(to, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    Backup::new(from, &mut target)?.run_to_completion(BACKUP_PAGES, Duration::ZERO, None)?;
    target.close().map_err(|(_, error)| error)
}
