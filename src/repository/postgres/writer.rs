//! How the [writer thread](crate::repository::writer) writes to PostgreSQL: one transaction for a group, in the order of turns that the
//! row of heads gives.
//!
//! **A connection that is lost** is made anew, at once and then with growing pauses, and the group is written again: nothing of it was
//! committed. Unless it was lost over the commit itself. Then nobody knows, and it is looked up: with its changes every transaction leaves
//! its serial number. Whoever can lock the heads knows that it has ended, and whether it has left that.

use std::time::{Duration, Instant};

use super::book::Book;
use super::connection::{Connection, Failure, Read};
use super::memory::Memory;
use super::server::{Purpose, Server};
use super::time::Time;
use crate::attempt::AttemptKey;
use crate::repository::RepositoryError;
use crate::repository::writer::{Engine, Make, Patience};

/// The pause before the second attempt to connect; each one after that is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(25);

/// The longest pause: after so long a server that is back is found.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How often a group is written again at once because its connection was lost.
const TRIES: usize = 3;

/// Our own number, and those of processes that wrote nothing for a week: whatever they wanted to know, they know it by now.
const FORGET_WRITERS: &str = "DELETE FROM writers
     WHERE writer = $1 OR at < (SELECT max(at) FROM writers) - 7 * 24 * 3600 * 1000::bigint";

/// The database as its writer sees it.
#[derive(Debug)]
pub(super) struct Database {
    server: Server,
    time: Time,
    patience: Patience,
    /// Its number, by which it knows whether it was the last to write.
    pub(super) writer: i64,
    /// How many transactions it has begun to commit.
    serial: i64,
    connection: Option<Connection>,
    memory: Memory,
    back_off: BackOff,
}

/// When to try again to connect.
#[derive(Debug)]
struct BackOff {
    next: Instant,
    pause: Duration,
}

/// How a transaction came out.
enum Outcome {
    Committed,
    /// It was never committed.
    Failed(Failure),
    /// The connection was lost over the commit.
    Unanswered(Ticket, Failure),
}

/// Names a transaction, also when its connection is gone.
#[derive(Clone, Copy, Debug)]
struct Ticket {
    serial: i64,
    /// The server's process that it ran in.
    backend: i32,
}

impl Database {
    pub(super) fn new(server: Server, time: Time, patience: Patience, connection: Connection) -> Database {
        let (number, _) = uuid::Uuid::new_v4().as_u64_pair();
        Database {
            server,
            time,
            patience,
            // 0 is nobody.
            writer: number.cast_signed() | 1,
            serial: 0,
            connection: Some(connection),
            memory: Memory::default(),
            back_off: BackOff { next: Instant::now(), pause: Duration::ZERO },
        }
    }

    /// Makes sure that there is a connection, waiting a little if there was none just now.
    fn connect(&mut self) -> Read<()> {
        if self.connection.as_ref().is_some_and(|connection| !connection.is_closed()) {
            return Ok(());
        }
        self.connection = None;
        std::thread::sleep(self.back_off.next.saturating_duration_since(Instant::now()));
        match self.server.connect(Purpose::Writing) {
            Ok(connection) => {
                self.connection = Some(connection);
                self.back_off.pause = Duration::ZERO;
                Ok(())
            }
            Err(failure) => {
                self.back_off.pause = (self.back_off.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                self.back_off.next = Instant::now() + self.back_off.pause;
                Err(failure)
            }
        }
    }

    /// Makes changes in one transaction.
    fn write(&mut self, make: &mut dyn FnMut(&mut Book<'_>) -> Read<()>) -> Outcome {
        let Some(connection) = &mut self.connection else { return Outcome::Failed(RepositoryError::Closed.into()) };
        self.serial += 1;
        let ticket = Ticket { serial: self.serial, backend: connection.backend };
        let made = Book::open(connection, &mut self.memory, &self.time, self.writer).and_then(|mut book| {
            make(&mut book)?;
            book.close(self.writer, ticket.serial, &self.server.schema)
        });
        if let Err(failure) = made {
            return Outcome::Failed(failure);
        }
        match connection.batch("COMMIT") {
            Ok(()) => Outcome::Committed,
            Err(failure) if failure.is_lost_connection() => Outcome::Unanswered(ticket, failure),
            Err(failure) => Outcome::Failed(failure),
        }
    }

    /// Finds out whether a transaction was committed, as soon as the server can be asked.
    fn look_up(&mut self, ticket: Ticket, cause: Failure) -> Read<bool> {
        log::warn!("the answer to a commit was lost: {}", cause.meaning());
        let began = Instant::now();
        while began.elapsed() < self.patience.failing.max(self.patience.busy) {
            match self.connect().and_then(|()| self.last_committed()) {
                Ok(serial) => return Ok(serial == Some(ticket.serial)),
                Err(failure) if failure.is_lost_connection() => self.connection = None,
                // It is not over, or somebody else writes for long.
                Err(failure) if failure.is_nobodys_fault() => {
                    self.roll_back();
                    self.end_session(ticket);
                }
                Err(_) => break,
            }
        }
        Err(Failure::InDoubt(Box::new(cause)))
    }

    /// The serial number that the last transaction of ours has left, once none of them is under way any more.
    fn last_committed(&mut self) -> Read<Option<i64>> {
        let Some(connection) = &mut self.connection else { return Err(RepositoryError::Closed.into()) };
        let rows = connection.batch_rows(&format!(
            "BEGIN;
             SELECT FROM heads FOR UPDATE;
             SELECT serial FROM writers WHERE writer = {};
             COMMIT",
            self.writer
        ))?;
        Ok(rows.last().filter(|row| !row.is_empty()).and_then(|row| row.get(0)?.parse().ok()))
    }

    /// Ends the session of a transaction that nobody will go on with.
    fn end_session(&mut self, ticket: Ticket) {
        if let Some(connection) = &mut self.connection {
            // If it cannot be ended it ends by itself, once it has been silent for too long.
            let _ = connection.execute("SELECT pg_terminate_backend($1)", &[&ticket.backend]);
        }
    }
}

impl Engine for Database {
    type Book<'a> = Book<'a>;
    type Error = Failure;

    fn transact(&mut self, _attempts: &[AttemptKey], make: &mut Make<'_, Database>) -> Read<()> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.connect()?;
            match self.write(make) {
                Outcome::Committed => {
                    self.memory.forget_ended();
                    return Ok(());
                }
                Outcome::Failed(failure) => {
                    self.roll_back();
                    if !failure.is_lost_connection() || tries == TRIES {
                        return Err(failure);
                    }
                }
                Outcome::Unanswered(ticket, cause) => {
                    self.connection = None;
                    // What it remembers is of that transaction: right if it was committed, and else to be forgotten.
                    match self.look_up(ticket, cause) {
                        Ok(true) => {
                            self.memory.forget_ended();
                            return Ok(());
                        }
                        Ok(false) if tries < TRIES => self.memory.forget_uncommitted(),
                        Ok(false) => {
                            self.memory.forget_uncommitted();
                            return Err(RepositoryError::Busy.into());
                        }
                        Err(in_doubt) => {
                            self.memory.forget_uncommitted();
                            return Err(in_doubt);
                        }
                    }
                }
            }
        }
    }

    /// A session that cannot even roll back is given up.
    fn roll_back(&mut self) {
        let rolled_back = self.connection.as_mut().is_some_and(|connection| connection.batch("ROLLBACK").is_ok());
        if !rolled_back {
            self.connection = None;
        }
        self.memory.forget_uncommitted();
    }

    fn lose_messages(&mut self, attempt: AttemptKey, messages: u32) {
        self.memory.lose_messages(attempt, messages);
    }

    fn failure_of(error: &Failure) -> RepositoryError {
        error.meaning()
    }

    fn is_nobodys_fault(error: &Failure) -> bool {
        error.is_nobodys_fault()
    }

    /// Wakes the thread that listens, so that it sees that it is no longer wanted, and leaves no number behind.
    fn close(&mut self) {
        if let Some(connection) = &mut self.connection {
            let _ = connection.execute(FORGET_WRITERS, &[&self.writer]);
            let _ = connection
                .execute("SELECT pg_notify($1, $2)", &[&self.server.schema, &format!("{} close", self.writer)]);
        }
    }
}
