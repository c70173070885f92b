//! Opening a file: what is ours, what is refused, and how a new one comes to be.
//!
//! | what is there | what happens |
//! |---|---|
//! | nothing | made under another name, complete, then renamed without replacing anything |
//! | an empty file, another program's database, no database | refused |
//! | a version of a later build | refused, before anything is written |
//! | damage | refused |
//! | a network file system | refused: SQLite's locks and shared memory do not work there |
//! | a file or folder that cannot be written | refused for writing; can be read |
//!
//! The file is never opened by any other means than SQLite. Closing a plain file handle would
//! drop the locks that SQLite holds on it in this process.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use super::migrate::{self, APPLICATION_ID, NotMigrated};
use crate::fault::{Stage, point};
use crate::repository::{RepositoryError, Result};

/// Before 3.51.3 several writing connections could corrupt the log.
const OLDEST_LIBRARY: i32 = 3_051_003;

/// Larger pages than the default hold a message of a few kilobytes in one piece.
const PAGE_SIZE_BYTES: i32 = 16 * 1024;

/// How long the log grows before its content is moved into the file: 64 MiB.
pub(super) const CHECKPOINT_PAGES: i32 = 4_096;

/// What the writer keeps in memory of the file: with less, it would read again what it has just written.
const WRITER_CACHE_KIB: i32 = 64 * 1024;

/// Enough for every statement of the writer, so that none is prepared twice.
const STATEMENT_CACHE: usize = 128;

/// Why a database was not opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no file.
    NotFound {
        /// Where it was looked for.
        path: PathBuf,
    },
    /// The file belongs to something else, and was left alone.
    NotOurs {
        /// The file.
        path: PathBuf,
        /// How one can tell.
        reason: &'static str,
    },
    /// The file was written by a later version of workcrew, and was left alone.
    Newer {
        /// The file.
        path: PathBuf,
        /// The version of its schema.
        found: u32,
        /// The version that this build knows.
        supported: u32,
    },
    /// The file is damaged, and was left alone.
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file cannot be written.
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The folder cannot be written, and the last changes are in a log that reading would have to write to.
    UnreadableLog {
        /// The file.
        path: PathBuf,
    },
    /// The file is on a network file system.
    NetworkFileSystem {
        /// The file.
        path: PathBuf,
        /// Which one.
        kind: &'static str,
    },
    /// The SQLite library is too old to be trusted with several connections.
    LibraryTooOld {
        /// Its version.
        found: String,
    },
    /// The schema must be brought up to date, but somebody else uses the file.
    InUse {
        /// The file.
        path: PathBuf,
        /// Who uses it.
        owner: String,
        /// Its process.
        pid: u32,
    },
    /// The system or SQLite failed.
    Failed {
        /// The file.
        path: PathBuf,
        /// What happened.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl OpenError {
    fn failed(path: &Path, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> OpenError {
        OpenError::Failed { path: path.to_owned(), source: source.into() }
    }

    fn sqlite(path: &Path, error: rusqlite::Error) -> OpenError {
        let path_buf = path.to_owned();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => {
                OpenError::NotOurs { path: path_buf, reason: "it is not a SQLite database" }
            }
            Some(ErrorCode::DatabaseCorrupt) => OpenError::Damaged { path: path_buf, reason: error.to_string() },
            Some(ErrorCode::ReadOnly) => OpenError::ReadOnly { path: path_buf },
            _ => OpenError::failed(path, error),
        }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OpenError::NotFound { path } => write!(f, "there is no database at `{}`", path.display()),
            OpenError::NotOurs { path, reason } => {
                write!(f, "`{}` is no database of workcrew and was left alone: {reason}", path.display())
            }
            OpenError::Newer { path, found, supported } => write!(
                f,
                "`{}` has schema version {found}, this build knows {supported}: use a newer workcrew",
                path.display()
            ),
            OpenError::Damaged { path, reason } => {
                write!(f, "`{}` is damaged and was left alone: {reason}", path.display())
            }
            OpenError::ReadOnly { path } => {
                write!(f, "`{}` cannot be written; it can be opened for reading", path.display())
            }
            OpenError::UnreadableLog { path } => write!(
                f,
                "`{0}` has changes in `{0}-wal` that cannot be read from a folder that cannot be written: \
                 copy both files elsewhere",
                path.display()
            ),
            OpenError::NetworkFileSystem { path, kind } => write!(
                f,
                "`{}` is on a network file system ({kind}), where SQLite cannot lock: use a local disk",
                path.display()
            ),
            OpenError::LibraryTooOld { found } => {
                write!(f, "SQLite {found} can corrupt a database with several writers: 3.51.3 or later is needed")
            }
            OpenError::InUse { path, owner, pid } => write!(
                f,
                "`{}` must be brought up to date, but `{owner}` (process {pid}) is using it: stop it first",
                path.display()
            ),
            OpenError::Failed { path, .. } => write!(f, "`{}` could not be opened", path.display()),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            OpenError::Failed { source, .. } => Some(&**source),
            _ => None,
        }
    }
}

/// Where an open database is, so that it is noticed when it is moved or deleted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Place {
    /// The file that is there now.
    fn of(path: &Path) -> io::Result<Place> {
        let metadata = fs::metadata(path)?;
        Ok(Place { path: path.to_owned(), device: metadata.dev(), inode: metadata.ino() })
    }

    /// What a file is known by, whatever its names are.
    pub(super) fn identity(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// An error if the path leads to another file, or none.
    pub(super) fn check(&self) -> Result<()> {
        match Place::of(&self.path) {
            Ok(now) if now.identity() == self.identity() => Ok(()),
            _ => Err(self.gone()),
        }
    }

    pub(super) fn gone(&self) -> RepositoryError {
        RepositoryError::Gone { path: self.path.display().to_string() }
    }
}

/// Finds or makes the file, and checks all that can be checked without writing to it.
pub(super) fn find_or_create(path: &Path) -> std::result::Result<Place, OpenError> {
    check_library()?;
    let path = resolved(path)?;
    check_file_system(&path)?;
    remove_leftovers(&path);
    if !path.try_exists().map_err(|error| OpenError::failed(&path, error))? {
        create(&path)?;
    }
    check_header(&path)?;
    Place::of(&path).map_err(|error| OpenError::failed(&path, error))
}

/// Finds a file that is only read.
pub(super) fn find(path: &Path) -> std::result::Result<Place, OpenError> {
    check_library()?;
    let path = resolved(path)?;
    if !path.try_exists().map_err(|error| OpenError::failed(&path, error))? {
        return Err(OpenError::NotFound { path });
    }
    check_header(&path)?;
    Place::of(&path).map_err(|error| OpenError::failed(&path, error))
}

fn check_library() -> std::result::Result<(), OpenError> {
    if rusqlite::version_number() < OLDEST_LIBRARY {
        return Err(OpenError::LibraryTooOld { found: rusqlite::version().to_owned() });
    }
    Ok(())
}

/// The path without links, so that the log lies beside the file and not beside a link to it.
fn resolved(path: &Path) -> std::result::Result<PathBuf, OpenError> {
    if let Ok(path) = fs::canonicalize(path) {
        return Ok(path);
    }
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let name = path.file_name().ok_or_else(|| OpenError::failed(path, "the path has no file name"))?;
    let folder = fs::canonicalize(folder).map_err(|error| OpenError::failed(path, error))?;
    Ok(folder.join(name))
}

fn check_file_system(path: &Path) -> std::result::Result<(), OpenError> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    match network_file_system(folder) {
        Some(kind) => Err(OpenError::NetworkFileSystem { path: path.to_owned(), kind }),
        None => Ok(()),
    }
}

#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<&'static str> {
    let stat = rustix::fs::statfs(folder).ok()?;
    #[expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "the magic numbers have 32 bits")]
    network_kind(stat.f_type as u32)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_folder: &Path) -> Option<&'static str> {
    None
}

/// The kernel's numbers of file systems on which several machines may write.
#[cfg(target_os = "linux")]
fn network_kind(magic: u32) -> Option<&'static str> {
    Some(match magic {
        0x6969 => "NFS",
        0x517b => "SMB",
        0xff53_4d42 => "CIFS",
        0xfe53_4d42 => "SMB2",
        0x0102_1997 => "9P",
        0x00c3_6400 => "Ceph",
        0x5346_414f | 0x6b41_4653 => "AFS",
        0x7375_7245 => "Coda",
        0x0161_1970 => "GFS2",
        0x7461_636f => "OCFS2",
        0x0bd0_0bd0 => "Lustre",
        0x4750_4653 => "GPFS",
        _ => return None,
    })
}

/// Looks at the file without locks, log or side effects.
fn check_header(path: &Path) -> std::result::Result<(), OpenError> {
    let not_ours = |reason| Err(OpenError::NotOurs { path: path.to_owned(), reason });
    let metadata = fs::metadata(path).map_err(|error| OpenError::failed(path, error))?;
    if !metadata.is_file() {
        return not_ours("it is not a file");
    }
    if metadata.len() == 0 {
        return not_ours("it is empty");
    }
    let has_log = beside(path, "-wal").exists();
    let peek = || -> rusqlite::Result<(Connection, i32, u32)> {
        let connection = Connection::open_with_flags(uri(path, "immutable=1"), read_only())?;
        // While the log is moved into the file, also by somebody who was killed then, the header is ahead of the
        // file. Otherwise SQLite refuses a file that is too short; with this it reads the header all the same.
        connection.pragma_update(None, "writable_schema", has_log)?;
        let application_id = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
        let version = migrate::version(&connection)?;
        Ok((connection, application_id, version))
    };
    let (connection, application_id, version) = peek().map_err(|error| OpenError::sqlite(path, error))?;
    if application_id != APPLICATION_ID {
        return not_ours("it is the SQLite database of another program");
    }
    check_version(path, version)?;
    // With a log the file alone does not tell; an older version is looked at once it is today's.
    if has_log || version < migrate::current_version() { Ok(()) } else { check_schema(path, &connection) }
}

fn check_version(path: &Path, found: u32) -> std::result::Result<(), OpenError> {
    let supported = migrate::current_version();
    if found > supported {
        return Err(OpenError::Newer { path: path.to_owned(), found, supported });
    }
    Ok(())
}

pub(super) fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn read_only() -> OpenFlags {
    OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX
}

/// The path as SQLite's own kind of URI, in which every odd byte is escaped.
fn uri(path: &Path, parameters: &str) -> String {
    let mut uri = String::from("file:");
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'~' => uri.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    if !parameters.is_empty() {
        uri = format!("{uri}?{parameters}");
    }
    uri
}

/// Makes a whole database under another name, and gives it its own without replacing anything.
fn create(path: &Path) -> std::result::Result<(), OpenError> {
    let draft = draft_of(path, std::process::id(), &uuid::Uuid::new_v4().simple().to_string());
    let made = make_draft(&draft, path).and_then(|()| {
        point("create", Stage::Committed);
        match rename_without_replacing(&draft, path) {
            // Somebody else was faster: theirs will do.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            renamed => renamed.map_err(|error| OpenError::failed(path, error)),
        }
    });
    let _ = fs::remove_file(&draft);
    made?;
    // The name itself must survive a power loss.
    let folder = path.parent().unwrap_or(Path::new("/"));
    fs::File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| OpenError::failed(path, error))
}

fn make_draft(draft: &Path, path: &Path) -> std::result::Result<(), OpenError> {
    // Nobody else may read what is going to be in it; the log inherits this.
    let created = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft);
    drop(created.map_err(|error| OpenError::failed(path, error))?);
    fill_draft(draft).map_err(|error| OpenError::sqlite(path, error))
}

fn fill_draft(draft: &Path) -> rusqlite::Result<()> {
    let connection = Connection::open_with_flags(draft, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    connection.pragma_update(None, "page_size", PAGE_SIZE_BYTES)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    migrate::create(&connection)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.close().map_err(|(_, error)| error)
}

pub(super) fn draft_of(path: &Path, pid: u32, unique: &str) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    name.push(format!(".{pid}.{unique}.new"));
    path.with_file_name(name)
}

/// Removes what processes left behind that died while they made this very database.
pub(super) fn remove_leftovers(path: &Path) {
    let mut prefix = OsString::from(".");
    prefix.push(path.file_name().unwrap_or_default());
    prefix.push(".");
    let Ok(entries) = fs::read_dir(path.parent().unwrap_or(Path::new("/"))) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(rest) = name.as_bytes().strip_prefix(prefix.as_bytes()) else { continue };
        let maker = rest.split(|&byte| byte == b'.').next().and_then(|pid| std::str::from_utf8(pid).ok()?.parse().ok());
        let endings: [&[u8]; 4] = [b".new", b".new-journal", b".new-wal", b".new-shm"];
        if endings.iter().any(|ending| rest.ends_with(ending)) && maker.is_some_and(is_gone) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn is_gone(pid: i32) -> bool {
    let pid = rustix::process::Pid::from_raw(pid);
    pid.is_some_and(|pid| rustix::process::test_kill_process(pid) == Err(rustix::io::Errno::SRCH))
}

#[cfg(target_os = "linux")]
pub(super) fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // Some file systems cannot; a second name that must be new does the same.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => fs::hard_link(from, to),
        renamed => Ok(renamed?),
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    fs::hard_link(from, to)
}

/// The one connection that writes.
pub(super) fn writing_connection(
    place: &Place,
    clock: &dyn crate::clock::Clock,
    busy_timeout: Duration,
) -> std::result::Result<Connection, OpenError> {
    let path = place.path();
    let open = || -> rusqlite::Result<Connection> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(path, flags)?;
        connection.busy_timeout(busy_timeout)?;
        prepare(&connection)?;
        connection.pragma_update(None, "synchronous", "FULL")?;
        connection.pragma_update(None, "foreign_keys", true)?;
        connection.pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)?;
        connection.pragma_update(None, "cache_size", -WRITER_CACHE_KIB)?;
        super::purge::leave_no_traces(&connection)?;
        Ok(connection)
    };
    let connection = open().map_err(|error| OpenError::sqlite(path, error))?;
    if connection.is_readonly(rusqlite::MAIN_DB).map_err(|error| OpenError::sqlite(path, error))? {
        return Err(OpenError::ReadOnly { path: path.to_owned() });
    }
    migrate::migrate(&connection, clock).map_err(|problem| match problem {
        NotMigrated::Newer(found) => {
            OpenError::Newer { path: path.to_owned(), found, supported: migrate::current_version() }
        }
        NotMigrated::InUse(owner) => {
            OpenError::InUse { path: path.to_owned(), owner: owner.label, pid: owner.process.pid }
        }
        NotMigrated::Sqlite(error) => OpenError::sqlite(path, error),
    })?;
    check_schema(path, &connection)?;
    use_log(&connection).map_err(|error| OpenError::sqlite(path, error))?;
    Ok(connection)
}

/// Has changes written to a log, so that readers and the writer do not wait for each other.
///
/// Ours have one from the start; a copy that `VACUUM INTO` made has none.
fn use_log(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))
}

/// A connection that reads while others write.
pub(super) fn reading_connection(place: &Place, busy_timeout: Duration) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(uri(place.path(), ""), read_only())?;
    connection.busy_timeout(busy_timeout)?;
    prepare(&connection)?;
    Ok(connection)
}

/// How a database that is only read must be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    /// Beside whoever writes it.
    Shared,
    /// As a file that nobody can write, since its folder cannot be written either.
    Immutable,
}

/// Finds out how a database can be read.
pub(super) fn reading(place: &Place, busy_timeout: Duration) -> std::result::Result<Reading, OpenError> {
    let path = place.path();
    let try_shared = || -> rusqlite::Result<Connection> {
        let connection = reading_connection(place, busy_timeout)?;
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get::<_, i64>(0))?;
        Ok(connection)
    };
    match try_shared() {
        Ok(connection) => check_content(path, &connection).map(|()| Reading::Shared),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::CannotOpen | ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
                if fs::metadata(beside(path, "-wal")).is_ok_and(|log| log.len() > 0) {
                    return Err(OpenError::UnreadableLog { path: path.to_owned() });
                }
                let connection = immutable_connection(place).map_err(|error| OpenError::sqlite(path, error))?;
                check_content(path, &connection).map(|()| Reading::Immutable)
            }
            _ => Err(OpenError::sqlite(path, error)),
        },
    }
}

/// What is read must be tables of ours: a view of the same name could do anything, and for ever.
fn check_content(path: &Path, connection: &Connection) -> std::result::Result<(), OpenError> {
    let version = migrate::version(connection).map_err(|error| OpenError::sqlite(path, error))?;
    check_version(path, version)?;
    check_schema(path, connection)
}

/// A connection to a file that nobody can write.
pub(super) fn immutable_connection(place: &Place) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags(uri(place.path(), "immutable=1"), read_only())?;
    prepare(&connection)?;
    Ok(connection)
}

/// What holds for every connection: nothing that is stored is executed, and a plan once made is kept.
pub(super) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    // Damage within a page shows when it is read, not when it is followed.
    connection.pragma_update(None, "cell_size_check", true)?;
    // Otherwise SQLite plans a statement again whenever a parameter changes that might matter to a partial index.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.set_prepared_statement_cache_capacity(STATEMENT_CACHE);
    Ok(())
}

fn check_schema(path: &Path, connection: &Connection) -> std::result::Result<(), OpenError> {
    if migrate::is_schema_ours(connection).map_err(|error| OpenError::sqlite(path, error))? {
        return Ok(());
    }
    let reason = format!("its tables are not those of schema version {}", migrate::current_version());
    Err(OpenError::Damaged { path: path.to_owned(), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_durable_when_it_is_acknowledged() {
        let folder = tempfile::tempdir().unwrap();
        let place = find_or_create(&folder.path().join("a.db")).unwrap();
        let connection = writing_connection(&place, &crate::clock::SystemClock, Duration::ZERO).unwrap();
        let pragma = |name| connection.pragma_query_value(None, name, |row| row.get::<_, rusqlite::types::Value>(0));
        // 2 is FULL: with less, a power loss takes what was acknowledged.
        assert_eq!(pragma("synchronous").unwrap(), rusqlite::types::Value::Integer(2));
        assert_eq!(pragma("journal_mode").unwrap(), rusqlite::types::Value::Text("wal".to_owned()));
        assert_eq!(pragma("foreign_keys").unwrap(), rusqlite::types::Value::Integer(1));
    }

    #[test]
    fn a_path_with_odd_bytes_survives_as_a_uri() {
        assert_eq!(uri(Path::new("/tmp/a b?c#%é.db"), "immutable=1"), "file:/tmp/a%20b%3Fc%23%25%C3%A9.db?immutable=1");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        let (nfs, ext4, tmpfs) = (0x6969, 0xef53, 0x0102_1994);
        assert_eq!(network_kind(nfs), Some("NFS"));
        assert_eq!(network_kind(0xff53_4d42), Some("CIFS"));
        assert_eq!(network_kind(ext4), None);
        assert_eq!(network_kind(tmpfs), None);
        assert_eq!(network_file_system(Path::new("/")), None);
    }
}
