//! The index of all words: a file of its own beside the database, `<db>.search`.
//!
//! | file | idea |
//! |---|---|
//! | `file` | what is ours, how it comes to be, and how it is made anew |
//! | `source` | what the database has that the index has not |
//! | `catch_up` | a page of that into the index, in one transaction with how far it is |
//! | `find` | ranked hits, shown from the database's own content |
//!
//! The index holds words and where they stand, no texts. The database is only ever read for it.
//!
//! # How far it is
//!
//! Whatever is said is a message, and messages have row numbers in the order in which they were stored, none of which is ever given up.
//! Whatever else can be found becomes so with a row of the journal. So two numbers say how far the index is. With
//! each the index keeps the link of that row (see [`crate::chain`]): a database that does not have it is another one, or an older
//! copy, and the index begins again.
//!
//! # Several at once
//!
//! Whoever catches up has the index locked before it reads the database, so it never writes what a purge has taken out meanwhile.
//! Transactions are short; two processes take turns and go on from where the other one is.

mod catch_up;
mod file;
mod find;
mod source;

use std::fmt;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::ErrorCode;

use self::file::IndexFile;
use super::archive::SqliteArchive;
use super::open::OpenError;
use crate::audit::search::{Hit, Query};
use crate::repository::RepositoryError;

/// Why something could not be searched.
#[derive(Debug)]
#[non_exhaustive]
pub enum SearchError {
    /// The database cannot be opened.
    Open(OpenError),
    /// The database cannot be read.
    Read(RepositoryError),
    /// Something else has the name of the index, and was left alone.
    NotOurs {
        /// The file.
        path: PathBuf,
    },
    /// The index was damaged. It is empty now.
    Damaged,
    /// Another process has the index locked for too long.
    Busy,
    /// The index cannot be used.
    Failed(Box<dyn std::error::Error + Send + Sync>),
}

impl fmt::Display for SearchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SearchError::Open(_) => f.write_str("the database that is to be searched cannot be opened"),
            SearchError::Read(_) => f.write_str("the database that is searched cannot be read"),
            SearchError::NotOurs { path } => {
                write!(f, "`{}` is no search index of workcrew and was left alone: move it away", path.display())
            }
            SearchError::Damaged => f.write_str("the search index was damaged and begins again: catch up once more"),
            SearchError::Busy => f.write_str("the search index is in use by another process"),
            SearchError::Failed(_) => f.write_str("the search index cannot be used"),
        }
    }
}

impl std::error::Error for SearchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SearchError::Open(error) => Some(error),
            SearchError::Read(error) => Some(error),
            SearchError::Failed(error) => Some(&**error),
            SearchError::NotOurs { .. } | SearchError::Damaged | SearchError::Busy => None,
        }
    }
}

impl From<RepositoryError> for SearchError {
    fn from(error: RepositoryError) -> SearchError {
        SearchError::Read(error)
    }
}

/// What the index itself says; what the database says is a [`RepositoryError`].
impl From<rusqlite::Error> for SearchError {
    fn from(error: rusqlite::Error) -> SearchError {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => SearchError::Busy,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::TooBig) => SearchError::Damaged,
            // Nothing but damage makes a column of ours another type.
            None => SearchError::Damaged,
            _ => SearchError::Failed(error.into()),
        }
    }
}

/// Takes what was purged out of the index beside a database, if it has one; tells whether no word of it is left there.
pub(super) fn forget_purged(database: &Path) -> bool {
    if !file::path_beside(database).exists() {
        return true;
    }
    match SearchIndex::beside(database) {
        // It cannot be written.
        Ok(index) if index.is_temporary() => false,
        Ok(index) => index.forget_purged().is_ok(),
        // What has its name without being one has no words of ours.
        Err(error) => matches!(error, SearchError::NotOurs { .. }),
    }
}

/// How far catching up is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IndexProgress {
    /// How many rows of the database have been looked at, ever: messages, and rows of the journal.
    pub rows: u64,
    /// How many there were when it began.
    pub rows_total: u64,
}

/// What catching up has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaughtUp {
    /// How many texts became searchable by this call.
    pub texts: u64,
    /// How many bytes these had.
    pub text_bytes: u64,
    /// How many rows could not be read and are not found.
    pub unreadable: u64,
    /// Whether it began from the start: there was no index, or one of another database, of another version or damaged.
    pub is_new: bool,
    /// Whether all is searchable that was stored when it began; not so if whoever watched it has ended it.
    pub is_complete: bool,
}

/// The index of all words of a database. See [`audit::search`](crate::audit::search).
///
/// It can be used by several threads, and the same file by several processes.
#[derive(Debug)]
pub struct SearchIndex {
    archive: SqliteArchive,
    index: Mutex<IndexFile>,
}

impl SearchIndex {
    /// The index beside a database, `<path>.search`, which is made if there is none.
    ///
    /// If the database or its folder cannot be written, or has an index that cannot be, the index is [temporary](SearchIndex::is_temporary).
    /// What is there of an older version, or damaged so that it shows, is deleted.
    ///
    /// # Errors
    ///
    /// The database cannot be read, or a file of that name is not ours.
    pub fn beside(path: impl AsRef<Path>) -> Result<SearchIndex, SearchError> {
        let archive = SqliteArchive::open(path).map_err(SearchError::Open)?;
        let index = Mutex::new(IndexFile::beside(archive.path())?);
        Ok(SearchIndex { archive, index })
    }

    /// An index that vanishes when it is dropped.
    ///
    /// # Errors
    ///
    /// The database cannot be read, or there is no room for an index.
    pub fn temporary(path: impl AsRef<Path>) -> Result<SearchIndex, SearchError> {
        let archive = SqliteArchive::open(path).map_err(SearchError::Open)?;
        Ok(SearchIndex { archive, index: Mutex::new(IndexFile::temporary()?) })
    }

    /// Whether the index vanishes when it is dropped, so that the next one begins from the start.
    pub fn is_temporary(&self) -> bool {
        self.index().path().is_none()
    }

    /// Where the index is; `None` if it is temporary.
    pub fn path(&self) -> Option<PathBuf> {
        self.index().path().map(Path::to_owned)
    }

    /// Makes everything searchable that is stored by now.
    ///
    /// What was made searchable stays so if this process is killed: the next call goes on from there. What was
    /// purged leaves the index, also the words in its file.
    ///
    /// # Errors
    ///
    /// The database cannot be read, or the index cannot be written.
    pub fn catch_up(&self) -> Result<CaughtUp, SearchError> {
        self.catch_up_with(|_| ControlFlow::Continue(()))
    }

    /// The same, with somebody who watches it after every few megabytes and may end it.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn catch_up_with(
        &self,
        mut watch: impl FnMut(&IndexProgress) -> ControlFlow<()>,
    ) -> Result<CaughtUp, SearchError> {
        // What is stored from now on is for the next time: beside a busy pool this would never end.
        let goal = self.archive.look(source::Mark::of_now)?;
        let mut done = CaughtUp::default();
        let mut may_begin_again = true;
        loop {
            match self.step(&goal, &mut done) {
                Ok(ControlFlow::Break(())) => break,
                Ok(ControlFlow::Continue(progress)) => {
                    if watch(&progress).is_break() {
                        return Ok(done);
                    }
                }
                Err(SearchError::Damaged) if may_begin_again => {
                    may_begin_again = false;
                    self.index().make_anew()?;
                }
                Err(error) => return Err(error),
            }
        }
        done.is_complete = true;
        Ok(done)
    }

    /// Takes what was purged out of the index, without making anything searchable.
    fn forget_purged(&self) -> Result<(), SearchError> {
        let forget = || -> Result<(), SearchError> {
            let mut index = self.index();
            index.follow()?;
            catch_up::forget_purged(index.connection(), &self.archive)
        };
        let is_forgotten = forget().and_then(|()| {
            // Whoever wants nothing more than is there only has the index rewritten without its holes.
            let nothing_more = source::Mark::default();
            while self.step(&nothing_more, &mut CaughtUp::default())?.is_continue() {}
            Ok(())
        });
        match is_forgotten {
            Err(SearchError::Damaged) => self.make_anew(),
            is_forgotten => is_forgotten,
        }
    }

    fn step(&self, goal: &source::Mark, done: &mut CaughtUp) -> Result<ControlFlow<(), IndexProgress>, SearchError> {
        let mut index = self.index();
        index.follow()?;
        catch_up::step(index.connection(), &self.archive, goal, done)
    }

    /// The hits of a query, best first, in what was searchable after the last [catching up](SearchIndex::catch_up).
    ///
    /// What was purged since is not shown.
    ///
    /// # Errors
    ///
    /// The database or the index cannot be read.
    pub fn find(&self, query: &Query) -> Result<Vec<Hit>, SearchError> {
        let mut index = self.index();
        let found = self.archive.look(|archive| Ok(find::find(index.connection(), archive, query)))?;
        if let Err(SearchError::Damaged) = found {
            index.make_anew()?;
        }
        found
    }

    /// Makes the index empty, so that it begins from the start.
    ///
    /// # Errors
    ///
    /// The index cannot be written.
    pub fn make_anew(&self) -> Result<(), SearchError> {
        self.index().make_anew()
    }

    fn index(&self) -> MutexGuard<'_, IndexFile> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
