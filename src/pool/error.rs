//! What a pool can refuse, and why.

use std::error::Error;
use std::fmt;
use std::io;

use super::PoolPhase;
use crate::error::RepositoryError;
use crate::prompt::Prompt;
use crate::unit::{NewUnit, shortened};
use crate::worker::WorkerId;

/// Why a pool cannot be built or started.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartError {
    /// A setting makes no sense.
    Setting {
        /// Which, by the name of its setter.
        name: &'static str,
        /// Why not.
        problem: String,
    },
    /// It was started or stopped before.
    Phase(PoolPhase),
    /// The repository failed.
    Repository(RepositoryError),
    /// The system gave no thread.
    Thread(io::Error),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StartError::Setting { name, problem } => write!(f, "the setting `{name}` {problem}"),
            StartError::Phase(phase) => write!(f, "a pool is started once, and this one is {phase}"),
            StartError::Repository(_) => f.write_str("the repository does not let the pool start"),
            StartError::Thread(_) => f.write_str("the system gives the pool no thread"),
        }
    }
}

impl StartError {
    /// The error with all that is behind it, in one line.
    pub(super) fn with_cause(&self) -> String {
        let causes = std::iter::successors(self.source(), |&cause| cause.source());
        causes.fold(self.to_string(), |told, cause| format!("{told}: {cause}"))
    }
}

impl Error for StartError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            StartError::Setting { .. } | StartError::Phase(_) => None,
            StartError::Repository(error) => Some(error),
            StartError::Thread(error) => Some(error),
        }
    }
}

/// Why a unit was not taken. It comes back with the error, and nothing of it was stored unless the
/// [reason](Refusal) says otherwise.
#[derive(Debug)]
pub struct SubmitError {
    /// The unit, which has its prompt by now: it can be submitted again with [`Prompt::OfUnit`](crate::Prompt::OfUnit).
    pub unit: Box<NewUnit>,
    /// Why it was not taken.
    pub reason: Refusal,
}

/// Why a unit was not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// All workers are busy, or kept for others who wait.
    AtCapacity {
        /// How many have as many units in hand as they can.
        busy: usize,
        /// How many there may be.
        max_workers: usize,
    },
    /// All workers are busy, and so many units wait in line already that no more may.
    Saturated {
        /// How many.
        max_queue_size: usize,
    },
    /// The unit is to go to the worker that its session is on, which is busy; see
    /// [`StrictFailFast`](crate::Affinity::StrictFailFast).
    WorkerBusy {
        /// The session, or whatever key the unit named.
        key: String,
        /// The worker; `None` if it is just ending, and what it has in hand of the session is not.
        worker: Option<WorkerId>,
    },
    /// The unit's session lives in another pool of the set, and strict units stay where that is. Submit it there.
    SessionElsewhere {
        /// The session, or whatever key the unit named.
        key: String,
        /// The pool that it lives in.
        pool: String,
        /// The worker that it is on, if that is known yet.
        worker: Option<WorkerId>,
    },
    /// The pool starts nothing for now, and the caller was promised no place before that.
    Held {
        /// Why.
        reason: String,
    },
    /// The pool is not yet running.
    NotReady(PoolPhase),
    /// The pool takes nothing any more.
    Stopped,
    /// The pool could not be started, for this reason.
    InitFailed(String),
    /// There is no pool of this name.
    PoolNotFound(String),
    /// The pool of this name could not be built or started.
    PoolBroken {
        /// Which.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The same unit was given two prompts.
    TwoPrompts,
    /// There is nothing to send: neither a prompt nor a template.
    NoPrompt,
    /// The system gave no thread for a worker.
    Thread(io::Error),
    /// The repository refused or failed. If this is no [rejection](RepositoryError::is_rejection), the
    /// unit may have been stored: submit it again, which is safe in any case.
    Repository(RepositoryError),
}

impl SubmitError {
    /// A unit that comes back without having been seen by any pool, with its prompt.
    pub(super) fn unseen(mut unit: NewUnit, prompt: Prompt, reason: Refusal) -> SubmitError {
        let reason = if prompt.put_into(&mut unit) { reason } else { Refusal::TwoPrompts };
        SubmitError { unit: Box::new(unit), reason }
    }

    /// Whether there was no room just now.
    pub fn is_at_capacity(&self) -> bool {
        matches!(self.reason, Refusal::AtCapacity { .. })
    }

    /// Whether the worker that the unit is to go to was busy just now.
    pub fn is_worker_busy(&self) -> bool {
        matches!(self.reason, Refusal::WorkerBusy { .. })
    }

    /// Whether there was no room in the queue just now.
    pub fn is_saturated(&self) -> bool {
        matches!(self.reason, Refusal::Saturated { .. })
    }
}

impl fmt::Display for SubmitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = shortened(&self.unit.id);
        match &self.reason {
            Refusal::AtCapacity { busy, max_workers } => {
                write!(f, "no capacity for unit `{id}`: {busy} of {max_workers} workers busy")?;
                if busy < max_workers {
                    f.write_str(", and no other is up and free")?;
                }
                Ok(())
            }
            Refusal::Saturated { max_queue_size } => {
                write!(f, "no room in line for unit `{id}`: {max_queue_size} wait already")
            }
            Refusal::WorkerBusy { key, worker: Some(worker) } => {
                write!(f, "unit `{id}` is to go to worker `{worker}`, where `{}` is, and that is busy", shortened(key))
            }
            Refusal::WorkerBusy { key, worker: None } => {
                write!(f, "unit `{id}` has to wait for `{}`, whose worker is ending", shortened(key))
            }
            Refusal::SessionElsewhere { key, pool, .. } => {
                write!(f, "unit `{id}` is to stay where `{}` is, which is in the pool `{pool}`", shortened(key))
            }
            Refusal::InitFailed(reason) => {
                write!(f, "unit `{id}` cannot be taken, the pool did not start: {reason}")
            }
            Refusal::PoolNotFound(name) => {
                write!(f, "unit `{id}` cannot be taken: there is no pool `{}`", shortened(name))
            }
            Refusal::PoolBroken { name, reason } => {
                write!(f, "unit `{id}` cannot be taken, the pool `{}` is broken: {reason}", shortened(name))
            }
            Refusal::Held { reason } => write!(f, "unit `{id}` must wait, the pool is held: {reason}"),
            Refusal::NotReady(PoolPhase::Initializing) => {
                write!(f, "unit `{id}` came too early: the pool is initializing, which `await_init_complete` waits for")
            }
            Refusal::NotReady(phase) => write!(f, "unit `{id}` came too early: the pool is {phase}"),
            Refusal::Stopped => write!(f, "unit `{id}` came too late: the pool has stopped"),
            Refusal::TwoPrompts => write!(f, "unit `{id}` has a prompt and was submitted with another"),
            Refusal::NoPrompt => write!(f, "unit `{id}` has neither a prompt nor a template"),
            Refusal::Thread(_) => write!(f, "no thread for unit `{id}`"),
            Refusal::Repository(_) => write!(f, "the repository did not take unit `{id}`"),
        }
    }
}

impl Error for SubmitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.reason {
            Refusal::Thread(error) => Some(error),
            Refusal::Repository(error) => Some(error),
            _ => None,
        }
    }
}

/// Why a wait ended without what was waited for.
#[derive(Debug)]
#[non_exhaustive]
pub enum WaitError {
    /// The time was up.
    TimedOut,
    /// The caller is one of the pool's own threads, which would wait for itself.
    WouldDeadlock,
    /// The pool has stopped, or was never started.
    Stopped,
    /// The pool could not be started, for this reason.
    InitFailed(String),
    /// The pool stopped before the unit ended. It is PENDING, and goes on when it is submitted again.
    LeftPending,
    /// This pool has lost the unit: somebody else may be working on it. What becomes of it will be in the repository.
    Lost,
    /// The unit's attempt ended, but that could not be stored. The pool goes on trying for as long as it lives; after that
    /// the unit can be executed again.
    Unrecorded,
    /// The repository failed.
    Repository(RepositoryError),
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            WaitError::InitFailed(reason) => return write!(f, "the pool did not start: {reason}"),
            WaitError::TimedOut => "the time was up",
            WaitError::WouldDeadlock => "a thread of the pool would wait for itself",
            WaitError::Stopped => "the pool is not running",
            WaitError::LeftPending => "the pool stopped before the unit ended",
            WaitError::Lost => "the pool lost the unit to somebody else",
            WaitError::Unrecorded => "how the unit ended could not be stored",
            WaitError::Repository(_) => "the repository failed",
        })
    }
}

impl Error for WaitError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            WaitError::Repository(error) => Some(error),
            _ => None,
        }
    }
}

impl From<RepositoryError> for WaitError {
    fn from(error: RepositoryError) -> WaitError {
        WaitError::Repository(error)
    }
}

/// Why a pool did not end as it should. Its threads have ended all the same.
#[derive(Debug)]
#[non_exhaustive]
pub enum StopError {
    /// The repository did not take the pool's last words. Others find out when its leases end, or when the process does.
    Repository(RepositoryError),
}

impl fmt::Display for StopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StopError::Repository(_) => f.write_str("the end of the pool could not be stored"),
        }
    }
}

impl Error for StopError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            StopError::Repository(error) => Some(error),
        }
    }
}
