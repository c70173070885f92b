//! How the [writer thread](crate::repository::writer) writes to a file: one immediate transaction for a group, and one `fsync`.
//!
//! What SQLite rolls back by itself is rolled back as a whole. Where the disk is full, the log beside the file is emptied first.

use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::book::{Book, Memory, storage_failure};
use super::open::Place;
use super::wal::Log;
use crate::attempt::AttemptKey;
use crate::repository::writer::{Engine, Make};
use crate::repository::{RepositoryError, Result};

/// How long one attempt to get the lock takes. In between it is seen who has no patience left.
const LOCK_TURN: Duration = Duration::from_millis(100);

/// The file, the connection that writes it, and what is remembered of it.
#[derive(Debug)]
pub(super) struct File {
    connection: Connection,
    memory: Memory,
    place: Place,
    log: Log,
}

impl File {
    /// `busy` is how long a change waits while another process has the file locked.
    pub(super) fn new(connection: Connection, memory: Memory, place: Place, busy: Duration) -> File {
        // It cannot fail: a number is stored.
        let _ = connection.busy_timeout(LOCK_TURN.min(busy));
        let log = Log::beside(place.path());
        File { connection, memory, place, log }
    }

    fn write(&mut self, make: &mut dyn FnMut(&mut Book<'_>) -> rusqlite::Result<()>) -> rusqlite::Result<()> {
        let (connection, memory) = (&self.connection, &mut self.memory);
        let transaction = rusqlite::Transaction::new_unchecked(connection, rusqlite::TransactionBehavior::Immediate)?;
        make(&mut Book::open(connection, memory)?)?;
        transaction.commit()
    }

    /// The same, with nothing left of it if it fails.
    fn write_or_roll_back(
        &mut self,
        make: &mut dyn FnMut(&mut Book<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let made = self.write(make);
        match made {
            Ok(()) => self.memory.forget_ended(),
            Err(_) => self.roll_back(),
        }
        made
    }
}

impl Engine for File {
    type Book<'a> = Book<'a>;
    type Error = rusqlite::Error;

    fn check(&self) -> Result<()> {
        self.place.check()
    }

    /// What the log takes of a full disk is given back first.
    fn transact(&mut self, _attempts: &[AttemptKey], make: &mut Make<'_, File>) -> rusqlite::Result<()> {
        let mut made = self.write_or_roll_back(make);
        if made.as_ref().is_err_and(is_full) && self.log.empty(&self.connection) {
            made = self.write_or_roll_back(make);
        }
        if made.is_ok() {
            self.log.keep_small(&self.connection);
        }
        made
    }

    /// After some errors SQLite has rolled back by itself.
    fn check_open(book: &Book<'_>) -> rusqlite::Result<()> {
        match book.connection.is_autocommit() {
            true => Err(storage_failure("the transaction was rolled back".to_owned())),
            false => Ok(()),
        }
    }

    fn roll_back(&mut self) {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.memory.forget_uncommitted();
    }

    fn lose_messages(&mut self, attempt: AttemptKey, messages: u32) {
        self.memory.lose_messages(attempt, messages);
    }

    fn failure_of(error: &rusqlite::Error) -> RepositoryError {
        failure_of(error)
    }

    fn is_nobodys_fault(error: &rusqlite::Error) -> bool {
        matches!(failure_of(error), RepositoryError::Busy)
    }

    /// Leaves a file without a log.
    fn close(&mut self) {
        // Best effort: the next process that opens the file does it otherwise.
        let _ = self.connection.pragma_update(None, "wal_checkpoint", "TRUNCATE");
    }
}

fn is_full(error: &rusqlite::Error) -> bool {
    matches!(failure_of(error), RepositoryError::StorageFull)
}

/// What an error of SQLite means to a caller.
pub(super) fn failure_of(error: &rusqlite::Error) -> RepositoryError {
    let code = match error {
        rusqlite::Error::SqliteFailure(failure, _) => Some(failure.code),
        _ => None,
    };
    match code {
        Some(ErrorCode::DiskFull) => RepositoryError::StorageFull,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => RepositoryError::Busy,
        Some(ErrorCode::ReadOnly) => RepositoryError::ReadOnly,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            RepositoryError::corrupt("the database file", 0, error.to_string())
        }
        _ => RepositoryError::storage(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::job::{Job, NewJob};
    use crate::repository::sqlite::open;
    use crate::repository::writer::{Order, Patience, Writer, WriterThread};
    use std::path::Path;

    fn writer_on(path: &Path) -> (Writer<File>, WriterThread<File>) {
        let place = open::find_or_create(path).unwrap();
        let connection = open::writing_connection(&place, &SystemClock, Duration::from_secs(5)).unwrap();
        let writer = Writer::new();
        let patience = Patience { busy: Duration::from_secs(5), failing: Duration::ZERO };
        let file = File::new(connection, Memory::new(true), place, patience.busy);
        let thread = WriterThread::new(&writer, file, patience).unwrap();
        (writer, thread)
    }

    #[test]
    fn a_panic_outside_the_transaction_costs_neither_the_thread_nor_anybody_else_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, thread) = writer_on(&folder.path().join("a.db"));
        let serving = std::thread::spawn(move || thread.serve());
        for number in 0..50 {
            writer.send_untellable();
            assert_eq!(writer.run(Order::new("number"), move |_| Ok(number)).unwrap(), number);
        }
        writer.close();
        serving.join().unwrap();
    }

    #[test]
    fn what_sqlite_rolls_back_by_itself_fails_alone_and_the_rest_of_its_group_is_a_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, thread) = writer_on(&folder.path().join("a.db"));
        let job = |name: &'static str| {
            let now = SystemClock.now();
            writer.begin::<Job, _>(Order::new("create_job"), move |book| book.create_job(now, &NewJob::named(name)))
        };
        // All wait before the thread begins, so that they are one group.
        let first = job("first");
        let rolled_back =
            writer.begin(Order::new("rolled back"), |book| Ok(book.connection.execute_batch("ROLLBACK")?));
        let last = job("last");
        writer.close();
        thread.serve();
        assert_eq!(first().unwrap().id.0, 1);
        assert!(matches!(rolled_back(), Err(RepositoryError::Storage(_))));
        assert_eq!(last().unwrap().id.0, 2);
    }

    #[test]
    fn a_thread_that_is_gone_leaves_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, thread) = writer_on(&folder.path().join("a.db"));
        let waiting = writer.begin(Order::new("never"), |_| Ok(()));
        drop(thread);
        assert!(matches!(waiting(), Err(RepositoryError::Closed)));
        assert!(matches!(writer.run(Order::new("never"), |_| Ok(())), Err(RepositoryError::Closed)));
    }
}
