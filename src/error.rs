//! What can go wrong with a repository.
//!
//! A *rejection* is an answer: the repository looked, and changed nothing. Everything
//! else is a fault of the storage, and says nothing about whether the change was made:
//! send it again, every verb takes that (see [`Repository`](crate::Repository)).

use std::error::Error;
use std::fmt;

use crate::job::JobId;
use crate::limits::OverBudget;
use crate::unit::{UnitId, shortened};

/// Why a repository did not do what was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum RepositoryError {
    /// There is no such job.
    UnknownJob(JobId),
    /// There is no such unit in the job.
    UnknownUnit {
        /// The job that was searched.
        job_id: JobId,
        /// The name that was not found.
        id: String,
    },
    /// There is no such owner, or it has ended.
    UnknownOwner(crate::lease::OwnerId),
    /// The same name already stands for something else.
    Conflict {
        /// What has the name, such as ``unit `a41` ``.
        what: String,
        /// What differs.
        difference: &'static str,
    },
    /// The lease has ended: somebody else may write the unit now.
    Stale {
        /// The unit that was to be written.
        unit_id: UnitId,
        /// The attempt that lost it.
        attempt_number: u32,
    },
    /// The change cannot be made in the present status.
    Illegal {
        /// What was to be changed, such as ``unit `a41` ``.
        what: String,
        /// The status it has.
        status: &'static str,
        /// The change that was asked for.
        change: &'static str,
    },
    /// What is to be begun may cost more than is left.
    OverBudget(Box<OverBudget>),
    /// The input cannot be stored.
    Invalid(String),
    /// The storage has no room left.
    StorageFull,
    /// The storage was in use by somebody else for too long.
    Busy,
    /// The storage was opened for reading.
    ReadOnly,
    /// The database is no longer where it was opened.
    Gone {
        /// Where it was.
        path: String,
    },
    /// What is stored cannot be read.
    Corrupt {
        /// What it is, such as `journal row 17`.
        what: String,
        /// Its key in the sequence that was being read.
        position: i64,
        /// What is wrong with it.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The repository was closed, or its writer is gone.
    Closed,
    /// The storage failed.
    Storage(Box<dyn Error + Send + Sync>),
}

impl RepositoryError {
    /// The lease of an attempt has ended.
    pub fn stale(lease: &crate::lease::Lease) -> RepositoryError {
        RepositoryError::Stale { unit_id: lease.unit_id.clone(), attempt_number: lease.attempt_number }
    }

    /// There is no such unit.
    pub fn unknown_unit(job_id: JobId, id: &str) -> RepositoryError {
        RepositoryError::UnknownUnit { job_id, id: shortened(id) }
    }

    /// An attempt may cost more than is left.
    pub(crate) fn over_budget(over: OverBudget) -> RepositoryError {
        RepositoryError::OverBudget(Box::new(over))
    }

    /// A storage failure with its cause.
    pub fn storage(source: impl Into<Box<dyn Error + Send + Sync>>) -> RepositoryError {
        RepositoryError::Storage(source.into())
    }

    /// A stored record that cannot be read.
    pub fn corrupt(
        what: impl Into<String>,
        position: i64,
        source: impl Into<Box<dyn Error + Send + Sync>>,
    ) -> RepositoryError {
        RepositoryError::Corrupt { what: what.into(), position, source: source.into() }
    }

    /// Whether the repository looked, decided, and changed nothing: asking again gives the same answer.
    pub fn is_rejection(&self) -> bool {
        use RepositoryError as E;
        matches!(
            self,
            E::UnknownJob(_)
                | E::UnknownUnit { .. }
                | E::UnknownOwner(_)
                | E::Conflict { .. }
                | E::Stale { .. }
                | E::Illegal { .. }
                | E::OverBudget(_)
                | E::Invalid(_)
        )
    }

    /// Whether the same call may succeed a little later.
    pub fn is_passing(&self) -> bool {
        matches!(self, RepositoryError::StorageFull | RepositoryError::Busy | RepositoryError::Storage(_))
    }
}

impl fmt::Display for RepositoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use RepositoryError as E;
        match self {
            E::UnknownJob(job_id) => write!(f, "there is no {job_id}"),
            E::UnknownUnit { job_id, id } => write!(f, "{job_id} has no unit `{id}`"),
            E::UnknownOwner(owner) => write!(f, "{owner} is not registered, or has ended"),
            E::Conflict { what, difference } => write!(f, "{what} already exists with {difference}"),
            E::Stale { unit_id, attempt_number } => {
                write!(f, "attempt {attempt_number} no longer holds unit `{unit_id}`")
            }
            E::Illegal { what, status, change } => write!(f, "{what} is {status}, which allows no {change}"),
            E::OverBudget(over) => over.fmt(f),
            E::Invalid(problem) => f.write_str(problem),
            E::StorageFull => f.write_str("the storage has no room left"),
            E::Busy => f.write_str("the storage is in use by another process"),
            E::ReadOnly => f.write_str("the storage was opened for reading"),
            E::Gone { path } => write!(f, "the database is no longer at `{path}`"),
            E::Corrupt { what, .. } => write!(f, "{what} cannot be read"),
            E::Closed => f.write_str("the repository is closed"),
            E::Storage(_) => f.write_str("the storage failed"),
        }
    }
}

impl Error for RepositoryError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            RepositoryError::Corrupt { source, .. } | RepositoryError::Storage(source) => Some(&**source),
            _ => None,
        }
    }
}

impl From<crate::unit::InvalidId> for RepositoryError {
    fn from(error: crate::unit::InvalidId) -> RepositoryError {
        RepositoryError::Invalid(error.to_string())
    }
}

impl From<crate::conversation::TooDeep> for RepositoryError {
    fn from(error: crate::conversation::TooDeep) -> RepositoryError {
        RepositoryError::Invalid(error.to_string())
    }
}
