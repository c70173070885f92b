//! What an executor gives back when it failed, and what should follow.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::WorkResult;
use crate::attempt::{Failure, FailureKind};

/// What should follow a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Then {
    /// Another attempt after the usual pause, if the unit has one left.
    Retry,
    /// Another attempt, but not earlier than the provider asks for.
    RetryAfter(Duration),
    /// Nothing: the unit is failed.
    GiveUp,
    /// Another attempt, but not by this worker, which is to be replaced.
    Replace,
    /// No unit can succeed now. The attempt is given back uncounted, and the pool
    /// starts nothing until that time, or until somebody calls `resume`.
    Hold {
        /// When it may go on by itself.
        until: Option<DateTime<Utc>>,
    },
}

/// Why an attempt failed, and what should follow.
///
/// Every error converts into one that is [retried](Then::Retry), so `?` can be used in an executor.
/// For the same reason it is not itself an [`Error`](std::error::Error).
///
/// ```
/// use std::time::Duration;
/// use workcrew::ExecuteError;
///
/// fn read() -> Result<String, ExecuteError> {
///     Ok(std::fs::read_to_string("/no/such/file")?)
/// }
/// assert!(read().unwrap_err().to_string().starts_with("executor: No such file"));
///
/// let error = ExecuteError::retry_after(Duration::from_secs(30), "too many requests").kind("rate_limited");
/// assert_eq!(error.to_string(), "rate_limited: too many requests");
/// ```
#[derive(Debug)]
pub struct ExecuteError {
    failure: Failure,
    then: Then,
    /// Boxed, so that every function that can fail does not have to return the room for it.
    result: Box<WorkResult>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ExecuteError {
    fn new(then: Then, message: impl Into<String>) -> ExecuteError {
        let failure = Failure::new(FailureKind::EXECUTOR, message);
        ExecuteError { failure, then, result: Box::default(), source: None }
    }

    /// This should follow.
    pub fn following(then: Then, message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(then, message)
    }

    /// It may go better next time.
    pub fn retry(message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(Then::Retry, message)
    }

    /// It may go better after a pause that the provider asks for.
    pub fn retry_after(pause: Duration, message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(Then::RetryAfter(pause), message)
    }

    /// It would fail again.
    pub fn give_up(message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(Then::GiveUp, message)
    }

    /// The worker itself is broken; another one may do better.
    pub fn broken(message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(Then::Replace, message)
    }

    /// Every unit would fail until that time, such as when a quota is used up.
    pub fn hold_until(time: DateTime<Utc>, message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(Then::Hold { until: Some(time) }, message)
    }

    /// Every unit would fail until a person has seen to it, such as when a key is wrong or a program is missing.
    pub fn hold(message: impl Into<String>) -> ExecuteError {
        ExecuteError::new(Then::Hold { until: None }, message)
    }

    /// What kind of failure it is (`executor`).
    pub fn kind(mut self, kind: impl Into<std::borrow::Cow<'static, str>>) -> ExecuteError {
        self.failure.kind = FailureKind::new(kind);
        self
    }

    /// What came out of the attempt all the same: part of an answer, what it cost.
    pub fn result(mut self, result: WorkResult) -> ExecuteError {
        *self.result = result;
        self
    }

    /// The error behind it, whose text is kept behind the message.
    pub fn source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> ExecuteError {
        self.source = Some(source.into());
        self
    }

    /// What came out of the attempt all the same, to be added to.
    pub(crate) fn result_mut(&mut self) -> &mut WorkResult {
        &mut self.result
    }

    /// What should follow.
    pub fn then(&self) -> Then {
        self.then
    }

    /// The same with the causes in its message. It calls code of whoever made them.
    pub(crate) fn with_causes_told(mut self) -> ExecuteError {
        let source = self.source.take();
        let mut cause: Option<&dyn Error> = source.as_deref().map(|source| source as &dyn Error);
        while let Some(error) = cause {
            self.failure.message = format!("{}: {error}", self.failure.message);
            cause = error.source();
        }
        self
    }

    /// The failure as it is recorded: the message, and the causes behind it.
    pub(crate) fn into_parts(self) -> (Failure, Then, WorkResult) {
        let told = self.with_causes_told();
        (told.failure, told.then, *told.result)
    }
}

impl fmt::Display for ExecuteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for ExecuteError {
    fn from(error: E) -> ExecuteError {
        let mut converted = ExecuteError::retry(error.to_string());
        let mut cause = error.source();
        while let Some(source) = cause {
            converted.failure.message = format!("{}: {source}", converted.failure.message);
            cause = source.source();
        }
        converted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_causes_are_kept_behind_the_message() {
        let cause = std::io::Error::other("connection reset");
        let (failure, then, _) = ExecuteError::give_up("no answer").source(cause).into_parts();
        assert_eq!(failure.to_string(), "executor: no answer: connection reset");
        assert_eq!(then, Then::GiveUp);
    }

    #[test]
    fn any_error_is_one_to_try_again_after() {
        let error = ExecuteError::from("x".parse::<i32>().unwrap_err());
        assert_eq!(error.then(), Then::Retry);
        assert_eq!(error.to_string(), "executor: invalid digit found in string");
    }
}
