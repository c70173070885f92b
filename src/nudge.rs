//! A tap on the shoulder of a thread that waits: many of them are one.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Wakes one thread. One tap is remembered, which is enough: whoever wakes looks at everything.
#[derive(Debug, Default)]
pub(crate) struct Nudge {
    is_nudged: Mutex<bool>,
    nudged: Condvar,
}

impl Nudge {
    pub(crate) fn new() -> Nudge {
        Nudge::default()
    }

    /// Wakes the thread, or lets it not fall asleep.
    pub(crate) fn wake(&self) {
        *self.lock() = true;
        self.nudged.notify_one();
    }

    /// Sleeps until nudged, but no longer than that. `None` waits for as long as it takes.
    pub(crate) fn wait(&self, timeout: Option<Duration>) {
        let mut is_nudged = self.lock();
        if !*is_nudged {
            // All ways of waking lead to the same look around, also that for no reason.
            is_nudged = match timeout {
                Some(timeout) => self.nudged.wait_timeout(is_nudged, timeout).unwrap_or_else(PoisonError::into_inner).0,
                None => self.nudged.wait(is_nudged).unwrap_or_else(PoisonError::into_inner),
            };
        }
        *is_nudged = false;
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_nudged.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_nudges_are_one_and_none_is_missed() {
        let nudge = Nudge::new();
        nudge.wake();
        nudge.wake();
        nudge.wait(None);
        assert!(!*nudge.lock(), "one wait has used them up");
        nudge.wait(Some(Duration::ZERO));
        std::thread::scope(|threads| {
            threads.spawn(|| nudge.wait(None));
            nudge.wake();
        });
    }
}
