//! How an execution is asked to stop.

use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Why an execution is to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CancelReason {
    /// Somebody no longer wants the unit.
    Requested,
    /// It takes longer than allowed.
    TimedOut,
    /// The pool stops. The attempt will be given back and counts for nothing.
    Shutdown,
    /// Somebody else may be working on the unit by now.
    LeaseLost,
    /// It said more than a conversation may hold.
    ConversationLimit,
}

/// Tells an execution to stop. Its clones are the same token, for threads of the executor's own.
///
/// ```
/// use std::time::Duration;
/// use workcrew::executor::{CancelReason, CancelToken};
///
/// let token = CancelToken::new();
/// assert_eq!(token.wait_timeout(Duration::from_millis(1)), None);
/// token.cancel(CancelReason::Requested);
/// assert_eq!(token.wait_timeout(Duration::from_secs(600)), Some(CancelReason::Requested));
/// ```
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    reason: Mutex<Option<CancelReason>>,
    cancelled: Condvar,
}

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Asks the execution to stop, and says whether this was the first to ask. The first reason stays.
    pub fn cancel(&self, reason: CancelReason) -> bool {
        let mut current = self.lock();
        let is_first = current.is_none();
        current.get_or_insert(reason);
        drop(current);
        self.0.cancelled.notify_all();
        is_first
    }

    /// Why the execution is to stop; `None` if it is not.
    pub fn reason(&self) -> Option<CancelReason> {
        *self.lock()
    }

    /// Whether the execution is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits until the execution is to stop, but no longer than that: a sleep that ends when it should.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<CancelReason> {
        let until = Instant::now().checked_add(timeout);
        let mut reason = self.lock();
        while reason.is_none() {
            reason = match until {
                None => self.0.cancelled.wait(reason).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.0.cancelled.wait_timeout(reason, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *reason
    }

    fn lock(&self) -> MutexGuard<'_, Option<CancelReason>> {
        self.0.reason.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays() {
        let token = CancelToken::new();
        assert!(token.cancel(CancelReason::TimedOut));
        assert!(!token.clone().cancel(CancelReason::Shutdown));
        assert_eq!(token.reason(), Some(CancelReason::TimedOut));
    }

    #[test]
    fn whoever_waits_for_ever_wakes_at_once() {
        let token = CancelToken::new();
        let waiter = std::thread::spawn({
            let token = token.clone();
            move || token.wait_timeout(Duration::MAX)
        });
        token.cancel(CancelReason::Shutdown);
        assert_eq!(waiter.join().unwrap(), Some(CancelReason::Shutdown));
    }
}
