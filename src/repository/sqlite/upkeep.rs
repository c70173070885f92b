//! What is done with the file as such, not with what is in it.

use std::path::{Path, PathBuf};

#[cfg(doc)]
use super::SqliteArchive;
use super::SqliteRepository;
use super::compact::{self, Compacted};
#[cfg(doc)]
use crate::repository::Repository;
use crate::repository::{Health, Result};

impl SqliteRepository {
    /// How the file is: its size, its log, the disk that it is on.
    ///
    /// # Errors
    ///
    /// [`Gone`](crate::RepositoryError::Gone) if it is no longer there, and what the storage says.
    pub fn health(&self) -> Result<Health> {
        self.shared.archive.health()
    }

    /// Copies the database into a new file while it is in use: [`SqliteArchive::backup`].
    ///
    /// # Errors
    ///
    /// As there.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<PathBuf> {
        self.shared.archive.backup(to)
    }

    /// Writes the whole file anew, while nobody works on it: it becomes as small as what is in it. A [purge](Repository::purge) writes over
    /// what it removes, but the file keeps its length.
    ///
    /// Backups, and an index beside the file, are not looked at.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::RepositoryError::Invalid) while a pool works on it, in whatever process; storage errors. It needs twice the room
    /// of the file for a while.
    pub fn compact(&self) -> Result<Compacted> {
        compact::compact(&self.shared.place, &*self.shared.clock, self.shared.busy_timeout)
    }
}
