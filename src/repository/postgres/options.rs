//! How a database is connected to, and why it may not be.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::PostgresRepository;
use super::server::{Server, Timeouts};
use super::time::Time;
use crate::clock::Clock;
use crate::repository::writer::Patience;

/// How a database is connected to.
///
/// ```no_run
/// use std::time::Duration;
/// use workcrew::repository::postgres::PostgresOptions;
///
/// let repository = PostgresOptions::new()
///     .busy_timeout(Duration::from_secs(10))
///     .connect("postgres://ada@db.example/work?schema=team_7")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    pub(super) time: Time,
    pub(super) patience: Patience,
    pub(super) timeouts: Timeouts,
    pub(super) readers: usize,
}

impl PostgresOptions {
    /// The defaults.
    pub fn new() -> PostgresOptions {
        let patience = Patience { busy: Duration::from_secs(5), failing: Duration::from_secs(60) };
        let timeouts = Timeouts {
            lock: Duration::from_secs(2),
            writing: Duration::from_secs(30),
            reading: Duration::from_secs(300),
        };
        PostgresOptions { time: Time::Database, patience, timeouts, readers: 4 }
    }

    /// Where time comes from (the database's clock). All who work in one schema must go by the same, so another one is for
    /// tests, and for where there is one machine.
    pub fn clock(mut self, clock: impl Clock) -> PostgresOptions {
        self.time = Time::Given(Arc::new(clock));
        self
    }

    /// How long a change or a look waits while others write for too long, or the database is out of reach (5 seconds). What an
    /// attempt brought waits for as long as [`write_patience`](PostgresOptions::write_patience) if that is longer.
    pub fn busy_timeout(mut self, timeout: Duration) -> PostgresOptions {
        self.patience.busy = timeout;
        self
    }

    /// How long what an attempt brought is kept and tried again while the database is out of reach or fails (60 seconds). Other
    /// changes fail at once if it fails, and after the [`busy_timeout`](PostgresOptions::busy_timeout) if it is out of reach.
    pub fn write_patience(mut self, patience: Duration) -> PostgresOptions {
        self.patience.failing = patience;
        self
    }

    /// How long the server works on one statement of a look before it gives up (5 minutes). One that writes has 30 seconds.
    pub fn read_timeout(mut self, timeout: Duration) -> PostgresOptions {
        self.timeouts.reading = timeout;
        self
    }

    /// How many connections read at the same time (4). One more writes, and one listens.
    pub fn readers(mut self, count: usize) -> PostgresOptions {
        self.readers = count.max(1);
        self
    }

    /// Connects to a database, and makes or brings up to date what is ours there.
    ///
    /// The address is a URL as PostgreSQL's own tools take it. `schema=` in it names the schema (`workcrew`), which is made if it is not
    /// there; `sslmode=require` asks for TLS, and `sslrootcert=` names a file with the certificates to trust instead of those that
    /// browsers do.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] says why not.
    pub fn connect(self, address: &str) -> Result<PostgresRepository, ConnectError> {
        let server = Server::at(address, self.timeouts)?;
        PostgresRepository::start(server, self)
    }
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions::new()
    }
}

/// Why a database could not be used.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is none. It is not repeated: it may have a password in it.
    Invalid {
        /// What is wrong with it.
        reason: String,
    },
    /// There is something else in the schema, which was left alone.
    NotOurs {
        /// The schema.
        schema: String,
    },
    /// The schema was written by a later version of workcrew, and was left alone.
    Newer {
        /// Its version.
        found: i64,
        /// The version that this build knows.
        supported: i64,
    },
    /// The server is older than what was tried.
    TooOld {
        /// Its version.
        found: i64,
        /// The oldest that is taken.
        oldest: i64,
    },
    /// The server cannot be reached, or refused.
    Failed {
        /// What it says.
        source: Box<dyn Error + Send + Sync>,
    },
}

impl ConnectError {
    pub(super) fn invalid(reason: impl Into<String>) -> ConnectError {
        ConnectError::Invalid { reason: reason.into() }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Invalid { reason } => write!(f, "the address of the database cannot be used: {reason}"),
            ConnectError::NotOurs { schema } => {
                write!(f, "there is something else in the schema `{schema}`; `?schema=` names another one")
            }
            ConnectError::Newer { found, supported } => {
                write!(f, "the schema has version {found}, this build knows {supported}")
            }
            ConnectError::TooOld { found, oldest } => write!(f, "the server is PostgreSQL {found}, {oldest} is needed"),
            ConnectError::Failed { .. } => f.write_str("the database cannot be used"),
        }
    }
}

impl Error for ConnectError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ConnectError::Failed { source } => Some(&**source),
            _ => None,
        }
    }
}
