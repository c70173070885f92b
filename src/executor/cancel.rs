//! How an execution is asked to stop.

use std::fmt;
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
    /// Its unit has cost more than it may.
    CostLimit,
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
    state: Mutex<State>,
    cancelled: Condvar,
}

#[derive(Debug, Default)]
struct State {
    reason: Option<CancelReason>,
    /// What is to be done then, each with a number.
    actions: Vec<(u64, Action)>,
    actions_ever: u64,
}

struct Action(Box<dyn FnOnce() + Send>);

impl fmt::Debug for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Action")
    }
}

/// Something that is done when a token is cancelled. Dropped, it is not done any more.
#[derive(Debug)]
pub(crate) struct OnCancel {
    token: CancelToken,
    number: u64,
}

impl Drop for OnCancel {
    fn drop(&mut self) {
        let mut state = self.token.lock();
        let action = state.actions.iter().position(|&(number, _)| number == self.number);
        let action = action.map(|position| state.actions.swap_remove(position));
        drop(state);
        drop(action);
    }
}

impl CancelToken {
    /// A token that nobody has cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Asks the execution to stop, and says whether this was the first to ask. The first reason stays.
    pub fn cancel(&self, reason: CancelReason) -> bool {
        let mut state = self.lock();
        let is_first = state.reason.is_none();
        state.reason.get_or_insert(reason);
        let actions = std::mem::take(&mut state.actions);
        drop(state);
        self.0.cancelled.notify_all();
        for (_, Action(act)) in actions {
            act();
        }
        is_first
    }

    /// Why the execution is to stop; `None` if it is not.
    pub fn reason(&self) -> Option<CancelReason> {
        self.lock().reason
    }

    /// Whether the execution is to stop.
    pub fn is_cancelled(&self) -> bool {
        self.reason().is_some()
    }

    /// Waits until the execution is to stop, but no longer than that: a sleep that ends when it should.
    pub fn wait_timeout(&self, timeout: Duration) -> Option<CancelReason> {
        let until = Instant::now().checked_add(timeout);
        let mut state = self.lock();
        while state.reason.is_none() {
            state = match until {
                None => self.0.cancelled.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(until) => {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    self.0.cancelled.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.reason
    }

    /// Does something as soon as the execution is to stop, on the thread of whoever says so; at once if that was said already. It must
    /// neither block nor call back: pools cancel on threads that everything depends on.
    pub(crate) fn on_cancel(&self, act: impl FnOnce() + Send + 'static) -> OnCancel {
        let mut state = self.lock();
        state.actions_ever += 1;
        let number = state.actions_ever;
        if state.reason.is_some() {
            drop(state);
            act();
        } else {
            state.actions.push((number, Action(Box::new(act))));
        }
        OnCancel { token: self.clone(), number }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
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
    fn what_is_to_be_done_then_is_done_once_also_if_it_comes_too_late_and_not_if_it_was_dropped() {
        let (token, (told, tells)) = (CancelToken::new(), std::sync::mpsc::channel());
        let tell = |name: &'static str| {
            let told = told.clone();
            move || told.send(name).unwrap()
        };
        let early = token.on_cancel(tell("early"));
        drop(token.on_cancel(tell("dropped")));
        token.cancel(CancelReason::Requested);
        token.cancel(CancelReason::Shutdown);
        let late = token.on_cancel(tell("late"));
        drop((early, late));
        assert_eq!(tells.try_iter().collect::<Vec<_>>(), ["early", "late"]);
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
