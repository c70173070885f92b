//! The connections that read: made when needed, a few at most, each look a snapshot of its own.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::connection::{Connection, Failure, Read};
use super::server::{Purpose, Server};
use crate::repository::Result;

/// The pause before a look is tried again because the database could not be reached.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// A pool of connections that only read.
#[derive(Debug)]
pub(super) struct Readers {
    server: Server,
    state: Mutex<State>,
    /// One came back.
    returned: Condvar,
    limit: usize,
    patience: Duration,
}

#[derive(Debug, Default)]
struct State {
    idle: Vec<Connection>,
    /// How many there are, idle or not.
    count: usize,
}

impl Readers {
    /// At most so many connections; a look has patience while the database is out of reach.
    pub(super) fn new(server: Server, limit: usize, patience: Duration) -> Readers {
        Readers { server, state: Mutex::default(), returned: Condvar::new(), limit, patience }
    }

    /// Lets somebody look at one state of the database, more than once if the connection is lost meanwhile.
    pub(super) fn look<T>(&self, mut look: impl FnMut(&mut Connection) -> Read<T>) -> Result<T> {
        let began = Instant::now();
        loop {
            let failure = match self.look_once(&mut look) {
                Ok(seen) => return Ok(seen),
                Err(failure) => failure,
            };
            if !failure.is_lost_connection() || began.elapsed() >= self.patience {
                return Err(failure.into_meaning());
            }
            std::thread::sleep(RETRY_PAUSE);
        }
    }

    fn look_once<T>(&self, look: &mut impl FnMut(&mut Connection) -> Read<T>) -> Read<T> {
        let mut place = self.take();
        let connection = place.connected()?;
        let seen = connection
            .batch("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .and_then(|()| look(connection));
        let ended = connection.batch(if seen.is_ok() { "COMMIT" } else { "ROLLBACK" });
        if ended.is_err() || seen.as_ref().is_err_and(Failure::is_lost_connection) {
            place.connection = None;
        }
        seen
    }

    /// A connection that nobody uses, or the place for one. Waits while there are as many as may be.
    fn take(&self) -> Place<'_> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(connection) = state.idle.pop() {
                return Place { readers: self, connection: Some(connection) };
            }
            if state.count < self.limit {
                state.count += 1;
                return Place { readers: self, connection: None };
            }
            state = self.returned.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A place among the connections, which comes back whatever happens.
struct Place<'a> {
    readers: &'a Readers,
    connection: Option<Connection>,
}

impl Place<'_> {
    fn connected(&mut self) -> Read<&mut Connection> {
        if self.connection.as_ref().is_none_or(Connection::is_closed) {
            self.connection = Some(self.readers.server.connect(Purpose::Reading)?);
        }
        Ok(self.connection.as_mut().expect("it was just made"))
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.readers.state.lock().unwrap_or_else(PoisonError::into_inner);
        match self.connection.take() {
            // In the midst of a panic nobody knows what it is at.
            Some(connection) if !std::thread::panicking() => state.idle.push(connection),
            _ => state.count -= 1,
        }
        drop(state);
        self.readers.returned.notify_one();
    }
}
