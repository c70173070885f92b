//! What only the file of a database can say of itself: how large it is, what lies beside it, how much room is left.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// How the file of a database is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Health {
    /// Where it is.
    pub path: PathBuf,
    /// How large it is, without its log.
    pub database_bytes: u64,
    /// How large its log is. What is in it is moved into the file now and then; the log keeps its size until it is emptied.
    pub log_bytes: u64,
    /// At which size its log is moved into the file, as far as nobody reads what is older.
    pub log_limit_bytes: u64,
    /// How large the index for searching is that lies beside it; `None` if there is none.
    pub search_index_bytes: Option<u64>,
    /// How many pages it has.
    pub pages: u64,
    /// How many of them nothing is in. They are used again, but the file does not become smaller.
    pub free_pages: u64,
    /// How large a page is.
    pub page_bytes: u64,
    /// How much room is left on the disk for whoever looks.
    pub disk_free_bytes: u64,
    /// How large the disk is.
    pub disk_bytes: u64,
    /// Who may read and write it, as the system has it: `0o600` is its owner only.
    pub mode: u32,
    /// The version of its schema.
    pub schema_version: u32,
    /// The version that this build writes. An older one is brought up to date when it is opened for writing.
    pub current_schema_version: u32,
    /// The version of SQLite that reads it.
    pub sqlite_version: String,
    /// How changes are made durable: `wal` is ours.
    pub journal_mode: String,
}

impl Health {
    /// Whether anybody but its owner can read it.
    pub fn is_readable_by_others(&self) -> bool {
        self.mode & 0o077 != 0
    }

    /// How many bytes of the file nothing is in.
    pub fn free_bytes(&self) -> u64 {
        self.free_pages.saturating_mul(self.page_bytes)
    }
}
