//! The file of the index: what is ours, how it comes to be, and how it is made anew.
//!
//! | what is there | what happens |
//! |---|---|
//! | nothing, or an empty file | made |
//! | an index of ours | used |
//! | an index of another version, or one whose tables are not ours | deleted and made |
//! | an index that is damaged, as far as it shows | the same, when it shows |
//! | anything else | refused |
//!
//! It has no log beside it: one file is easier to delete, and the few who read it can wait for a moment.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};

use super::SearchError;
use crate::repository::sqlite::{migrate, open, purge};

/// What stands in the header of our indexes: "wkcs".
const APPLICATION_ID: i32 = 0x776b_6373;

/// Grows whenever the tables, or what is put into them, change: words that were folded differently are not found.
const VERSION: u32 = 1;

/// How long somebody waits for another process that catches up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

const PAGE_SIZE_BYTES: i32 = 8 * 1024;

/// How much of the index is kept in memory while it is written.
const CACHE_KIB: i32 = 32 * 1024;

/// The words, and what stands where. `words` holds no texts; a row of it is a text of the database, which is described in the row
/// of `documents` with the same number. One column, for each further one costs two bytes a word; so what has text of several
/// kinds is several rows.
const SCHEMA: &str = "
CREATE TABLE mark (
    id           INTEGER PRIMARY KEY CHECK (id = 1),
    journal_seq  INTEGER NOT NULL,
    journal_link BLOB,
    message      INTEGER NOT NULL,
    message_link BLOB,
    holes        INTEGER NOT NULL
) STRICT;
INSERT INTO mark VALUES (1, 0, NULL, 0, NULL, 0);
CREATE TABLE documents (
    id             INTEGER PRIMARY KEY,
    job_id         INTEGER NOT NULL,
    unit_key       INTEGER NOT NULL,
    attempt_number INTEGER NOT NULL,
    place          INTEGER NOT NULL,
    kind           INTEGER NOT NULL,
    number         INTEGER NOT NULL,
    at             INTEGER NOT NULL
) STRICT;
CREATE INDEX documents_by_unit ON documents (unit_key, attempt_number, place);
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', contentless_delete = 1, tokenize = 'ascii');
INSERT INTO words (words, rank) VALUES ('hashsize', 16777216);
";

/// How often, and how soon again, it is looked whether a file that is no index yet becomes one.
const LOOKS: u32 = 25;
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a file is at most in which an index is being made.
const UNFINISHED_BYTES: u64 = 64 * 1024;

/// An open index.
#[derive(Debug)]
pub(super) struct IndexFile {
    connection: Connection,
    home: Option<Home>,
}

/// Where an index is, so that it is noticed when it is deleted.
#[derive(Debug)]
struct Home {
    path: PathBuf,
    database: PathBuf,
    identity: (u64, u64),
}

impl IndexFile {
    /// The index beside a database, or a temporary one where none can be.
    pub(super) fn beside(database: &Path) -> Result<IndexFile, SearchError> {
        if rustix::fs::access(database, rustix::fs::Access::WRITE_OK).is_err() {
            return IndexFile::temporary();
        }
        match IndexFile::at(database) {
            Err(Unopened::ReadOnly) => IndexFile::temporary(),
            Err(Unopened::Refused(error)) => Err(error),
            Ok(index) => Ok(index),
        }
    }

    /// An index that SQLite keeps in memory, and in a file without a name when it grows.
    pub(super) fn temporary() -> Result<IndexFile, SearchError> {
        let connection = Connection::open("")?;
        prepare(&connection)?;
        create(&connection)?;
        Ok(IndexFile { connection, home: None })
    }

    fn at(database: &Path) -> Result<IndexFile, Unopened> {
        let path = path_beside(database);
        for _ in 0..2 {
            match open_or_create(&path, database) {
                Err(Unopened::Refused(SearchError::Damaged)) => delete(&path)?,
                Err(error) => return Err(error),
                Ok(connection) => {
                    let identity = identity(&path)?;
                    let home = Home { path, database: database.to_owned(), identity };
                    return Ok(IndexFile { connection, home: Some(home) });
                }
            }
        }
        Err(Unopened::Refused(SearchError::Damaged))
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn path(&self) -> Option<&Path> {
        self.home.as_ref().map(|home| &*home.path)
    }

    /// Opens the index anew if somebody has deleted it: nobody would find what is written to it.
    pub(super) fn follow(&mut self) -> Result<(), SearchError> {
        let Some(home) = &self.home else { return Ok(()) };
        if identity(&home.path).is_ok_and(|now| now == home.identity) {
            return Ok(());
        }
        *self = IndexFile::beside(&home.database)?;
        Ok(())
    }

    /// Puts an empty index in its place.
    pub(super) fn make_anew(&mut self) -> Result<(), SearchError> {
        let Some(home) = &self.home else {
            *self = IndexFile::temporary()?;
            return Ok(());
        };
        delete(&home.path).map_err(|error| SearchError::Failed(error.into()))?;
        *self = IndexFile::beside(&home.database)?;
        Ok(())
    }
}

/// Why an index was not opened.
enum Unopened {
    /// It can be written neither here nor by us.
    ReadOnly,
    Refused(SearchError),
}

impl From<io::Error> for Unopened {
    fn from(error: io::Error) -> Unopened {
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => Unopened::ReadOnly,
            _ => Unopened::Refused(SearchError::Failed(error.into())),
        }
    }
}

impl From<rusqlite::Error> for Unopened {
    fn from(error: rusqlite::Error) -> Unopened {
        match error.sqlite_error_code() {
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => Unopened::ReadOnly,
            _ => Unopened::Refused(error.into()),
        }
    }
}

pub(super) fn path_beside(database: &Path) -> PathBuf {
    let mut path = OsString::from(database);
    path.push(".search");
    path.into()
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

fn open_or_create(path: &Path, database: &Path) -> Result<Connection, Unopened> {
    // Whoever may not read the database may not read its words either.
    let mode = fs::metadata(database)?.mode() & 0o666;
    match fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error.into()),
        _ => {}
    }
    // What somebody else is making at this moment is not known as an index yet.
    let mut looks = 0;
    while !is_index(path)? {
        looks += 1;
        if looks <= LOOKS && fs::metadata(path)?.len() <= UNFINISHED_BYTES {
            std::thread::sleep(LOOK_AGAIN);
            continue;
        }
        return Err(Unopened::Refused(SearchError::NotOurs { path: path.to_owned() }));
    }
    let connection = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    prepare(&connection)?;
    if connection.is_readonly(rusqlite::MAIN_DB)? {
        return Err(Unopened::ReadOnly);
    }
    create(&connection)?;
    if !is_of_today(&connection)? {
        return Err(Unopened::Refused(SearchError::Damaged));
    }
    Ok(connection)
}

/// Whether a file is empty or was made as an index, in whatever state it is.
fn is_index(path: &Path) -> io::Result<bool> {
    const HEADER_BYTES: u64 = 72;
    if !fs::metadata(path)?.is_file() {
        return Ok(false);
    }
    let mut header = Vec::new();
    fs::File::open(path)?.take(HEADER_BYTES).read_to_end(&mut header)?;
    Ok(header.is_empty() || header.starts_with(b"SQLite format 3\0") && header.ends_with(&APPLICATION_ID.to_be_bytes()))
}

fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    open::prepare(connection)?;
    connection.pragma_update(None, "page_size", PAGE_SIZE_BYTES)?;
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    purge::leave_no_traces(connection)
}

/// Makes the tables, unless they are there.
fn create(connection: &Connection) -> rusqlite::Result<()> {
    let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        transaction.execute_batch(SCHEMA)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit()
}

/// Whether it has the tables of this version and no others.
fn is_of_today(connection: &Connection) -> rusqlite::Result<bool> {
    let today = Connection::open_in_memory()?;
    today.execute_batch(SCHEMA)?;
    Ok(migrate::version(connection)? == VERSION && migrate::shape(connection)? == migrate::shape(&today)?)
}

/// Removes an index and what an interrupted transaction has left beside it.
fn delete(path: &Path) -> io::Result<()> {
    for suffix in ["-journal", "-wal", "-shm", ""] {
        let mut name = OsString::from(path);
        name.push(suffix);
        match fs::remove_file(&name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}
