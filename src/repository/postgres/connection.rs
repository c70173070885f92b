//! A connection: statements that are prepared once, and what its errors mean.

use std::collections::HashMap;
use std::error::Error;

use postgres::error::SqlState;
use postgres::types::ToSql;
use postgres::{Client, Row, Statement};

use crate::repository::RepositoryError;
use crate::repository::writer::Fault;

/// What is bound to a statement.
pub(super) type Parameters<'a> = &'a [&'a (dyn ToSql + Sync)];

/// What a statement says, or why it says nothing.
pub(super) type Read<T> = std::result::Result<T, Failure>;

/// Why a statement did not do what it was to do.
#[derive(Debug)]
pub(super) enum Failure {
    /// PostgreSQL says so, or cannot be reached.
    Server(postgres::Error),
    /// A column holds something that was never written.
    Unreadable(Box<dyn Error + Send + Sync>),
    /// The answer to a commit was lost, and it could not be found out what became of it.
    InDoubt(Box<Failure>),
    /// It is no failure of the storage, or one that callers understand as it is.
    Known(RepositoryError),
}

impl From<postgres::Error> for Failure {
    fn from(error: postgres::Error) -> Failure {
        Failure::Server(error)
    }
}

impl From<RepositoryError> for Failure {
    fn from(error: RepositoryError) -> Failure {
        Failure::Known(error)
    }
}

impl From<Failure> for Fault<Failure> {
    /// A record that cannot be read is an answer; a storage that fails is none, and voids the transaction.
    fn from(failure: Failure) -> Fault<Failure> {
        match failure {
            Failure::Known(error) => error.into(),
            failure => Fault::Failed(failure),
        }
    }
}

impl From<RepositoryError> for Fault<Failure> {
    fn from(error: RepositoryError) -> Fault<Failure> {
        match error.is_rejection() || matches!(error, RepositoryError::Corrupt { .. }) {
            true => Fault::Rejected(error),
            false => Fault::Failed(Failure::Known(error)),
        }
    }
}

impl Failure {
    /// Whether the connection is gone with it, so that another one may do better.
    pub(super) fn is_lost_connection(&self) -> bool {
        let Failure::Server(error) = self else { return false };
        match error.code() {
            // It ended the session itself: an administrator, a restart, a transaction in which nobody said anything for too long.
            Some(code) => {
                code.code().starts_with("57P")
                    || code.code().starts_with("08")
                    || *code == SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
                    || *code == SqlState::TOO_MANY_CONNECTIONS
            }
            None => error.is_closed() || error.source().is_some_and(|cause| cause.is::<std::io::Error>()),
        }
    }

    /// Whether nobody's change is at fault: others use the storage, or nobody can reach it.
    pub(super) fn is_nobodys_fault(&self) -> bool {
        self.is_lost_connection() || matches!(self.meaning(), RepositoryError::Busy)
    }

    /// What it means to a caller.
    pub(super) fn meaning(&self) -> RepositoryError {
        match self {
            Failure::Server(error) => meaning_of(error),
            Failure::Unreadable(error) => RepositoryError::storage(error.to_string()),
            Failure::InDoubt(cause) => {
                RepositoryError::storage(format!("whether the change was made is not known: {}", cause.words()))
            }
            Failure::Known(error) => known_again(error),
        }
    }

    fn words(&self) -> String {
        match self {
            Failure::Server(error) => words_of(error),
            other => other.meaning().to_string(),
        }
    }

    /// The same, once nobody else needs it.
    pub(super) fn into_meaning(self) -> RepositoryError {
        match self {
            Failure::Known(error) => error,
            other => other.meaning(),
        }
    }
}

fn meaning_of(error: &postgres::Error) -> RepositoryError {
    let busy = [SqlState::LOCK_NOT_AVAILABLE, SqlState::T_R_DEADLOCK_DETECTED, SqlState::T_R_SERIALIZATION_FAILURE];
    match error.code() {
        Some(code) if busy.contains(code) => RepositoryError::Busy,
        Some(code) if *code == SqlState::DISK_FULL => RepositoryError::StorageFull,
        Some(code) if *code == SqlState::READ_ONLY_SQL_TRANSACTION => RepositoryError::ReadOnly,
        Some(code) if *code == SqlState::DATA_CORRUPTED || *code == SqlState::INDEX_CORRUPTED => {
            RepositoryError::corrupt("the database", 0, words_of(error))
        }
        _ => RepositoryError::storage(words_of(error)),
    }
}

/// What an error says with its causes, which PostgreSQL's own words are among.
pub(super) fn words_of(error: &(dyn Error + 'static)) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

/// An error that several callers are told of.
fn known_again(error: &RepositoryError) -> RepositoryError {
    match error {
        RepositoryError::StorageFull => RepositoryError::StorageFull,
        RepositoryError::Busy => RepositoryError::Busy,
        RepositoryError::ReadOnly => RepositoryError::ReadOnly,
        RepositoryError::Closed => RepositoryError::Closed,
        other => RepositoryError::storage(words_of(other)),
    }
}

/// How many statements are kept prepared. There are fewer than that; only the filters of lists make new ones.
const PREPARED_LIMIT: usize = 500;

/// A connection that remembers what it has prepared.
pub(super) struct Connection {
    client: Client,
    statements: HashMap<String, Statement>,
    /// The server's process at the other end.
    pub(super) backend: i32,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("backend", &self.backend).finish_non_exhaustive()
    }
}

impl Connection {
    pub(super) fn new(mut client: Client) -> Read<Connection> {
        let backend = client.query_one("SELECT pg_backend_pid()", &[])?.try_get(0)?;
        Ok(Connection { client, statements: HashMap::new(), backend })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Statements without parameters, in one message.
    pub(super) fn batch(&mut self, sql: &str) -> Read<()> {
        Ok(self.client.batch_execute(sql)?)
    }

    /// The same, with what they say: every row as text.
    pub(super) fn batch_rows(&mut self, sql: &str) -> Read<Vec<postgres::SimpleQueryRow>> {
        let messages = self.client.simple_query(sql)?;
        let row = |message| match message {
            postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        };
        Ok(messages.into_iter().filter_map(row).collect())
    }

    pub(super) fn rows(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<Vec<Row>> {
        let statement = self.prepared(sql)?;
        Ok(self.client.query(&statement, parameters)?)
    }

    /// The first row, if there is any.
    pub(super) fn row(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<Option<Row>> {
        Ok(self.rows(sql, parameters)?.into_iter().next())
    }

    pub(super) fn exists(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<bool> {
        Ok(!self.rows(sql, parameters)?.is_empty())
    }

    /// How many rows it has changed.
    pub(super) fn execute(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<u64> {
        let statement = self.prepared(sql)?;
        Ok(self.client.execute(&statement, parameters)?)
    }

    fn prepared(&mut self, sql: &str) -> Read<Statement> {
        if let Some(statement) = self.statements.get(sql) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(sql)?;
        if self.statements.len() >= PREPARED_LIMIT {
            self.statements.clear();
        }
        self.statements.insert(sql.to_owned(), statement.clone());
        Ok(statement)
    }

    /// The client itself, for what only that can do.
    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }
}
