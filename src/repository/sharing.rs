//! The same work once: whose a piece of work is.

use super::{RepositoryError, Result};
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Outcome, ResultHashes};
use crate::job::JobId;
use crate::unit::UnitId;

/// Whose a piece of work is, for an attempt that needs it.
///
/// | the attempt that has it | answer |
/// |---|---|
/// | is the one that asks, or there is none | [`Yours`](Shared::Yours) |
/// | is open | [`InFlight`](Shared::InFlight) |
/// | is COMPLETED, and its answer is whole | [`Answered`](Shared::Answered) |
/// | has ended otherwise, or its answer is not whole | [`Yours`](Shared::Yours): it is the asking attempt's from now on |
///
/// An answer is whole if it is nothing but what stands in the [result](crate::Archive::attempt_result) of its attempt: with files it is not,
/// nor once it was purged. One of whose conversation messages were lost is not handed on either, since nobody could see how it came about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shared {
    /// Nobody else does it or has done it: this attempt is to, and whoever needs the same waits for it.
    Yours,
    /// This one does it.
    InFlight(SharedBy),
    /// This one has done it.
    Answered(SharedBy),
}

/// The attempt that does a piece of work, or has done it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedBy {
    /// The job of its unit.
    pub job_id: JobId,
    /// Its unit.
    pub unit_id: UnitId,
    /// Which attempt it is.
    pub attempt: AttemptKey,
}

/// What is known of an attempt that has a piece of work.
pub(crate) struct Holding {
    pub(crate) by: SharedBy,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) messages_lost: u32,
    pub(crate) has_files: bool,
    pub(crate) is_purged: bool,
}

impl Holding {
    /// Whose the work is for an attempt that asks; `None` if it becomes its own.
    pub(crate) fn told(self, asking: AttemptKey) -> Option<Shared> {
        let is_whole = !self.is_purged && !self.has_files && self.messages_lost == 0;
        match self.outcome {
            _ if self.by.attempt == asking => Some(Shared::Yours),
            None => Some(Shared::InFlight(self.by)),
            Some(Outcome::Completed) if is_whole => Some(Shared::Answered(self.by)),
            Some(_) => None,
        }
    }
}

/// Refuses an answer that is said to be that of another attempt, unless it is. Works on hashes, so that a purge in between does not matter.
pub(crate) fn check_answer(
    of: AttemptKey,
    other: Option<(&Attempt, &AttemptResult)>,
    told: &ResultHashes,
) -> Result<()> {
    let is_the_same = other.is_some_and(|(attempt, left)| is_answer_of(told, attempt, left));
    if is_the_same {
        return Ok(());
    }
    let AttemptKey { unit, number } = of;
    Err(RepositoryError::Invalid(format!(
        "the answer is not that of attempt {number} of the unit with the key {}",
        unit.0
    )))
}

/// Whether an answer is the one that an attempt gave.
pub(crate) fn is_answer_of(told: &ResultHashes, attempt: &Attempt, left: &AttemptResult) -> bool {
    let known = left.hashes(attempt);
    attempt.outcome == Some(Outcome::Completed) && known.result == told.result && known.output == told.output
}
