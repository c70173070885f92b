//! The read-only connections: opened when needed, a few kept, each look a snapshot of its own.

use std::fmt;
use std::sync::{Mutex, PoisonError};

use rusqlite::Connection;

use super::writer::failure_of;
use crate::repository::Result;

/// How many connections are kept open while nobody reads.
const KEPT: usize = 8;

/// How a connection is made.
type Connect = Box<dyn Fn() -> rusqlite::Result<Connection> + Send + Sync>;

/// A pool of connections that only read.
pub(super) struct Readers {
    idle: Mutex<Vec<Connection>>,
    connect: Connect,
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").finish_non_exhaustive()
    }
}

impl Readers {
    pub(super) fn new(connect: Connect) -> Readers {
        Readers { idle: Mutex::new(Vec::new()), connect }
    }

    /// Lets somebody look at one state of the database.
    pub(super) fn look<T>(&self, look: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => (self.connect)().map_err(|error| failure_of(&error))?,
        };
        let snapshot = connection.unchecked_transaction().map_err(|error| failure_of(&error))?;
        let seen = look(&connection);
        drop(snapshot);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT {
            idle.push(connection);
        }
        seen
    }

    /// Closes what nobody reads from.
    pub(super) fn close_idle(&self) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}
