//! The line of those who wait for a turn at the provider.
//!
//! Only the first asks whether it is its turn, so that who came first goes first, and one thread asks the repository instead of all. An attempt
//! that goes on stands before all that are yet to begin: its time runs, and it has been paid for.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use crate::nudge::Nudge;
use crate::sync::{Mutex, MutexGuard};

/// Whether an attempt has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Begins,
    GoesOn,
}

/// See the [module](self). Its lock is held for a moment and no other is taken meanwhile.
#[derive(Debug, Default)]
pub(super) struct TurnLine(Mutex<VecDeque<Waiter>>);

#[derive(Debug)]
struct Waiter {
    stage: Stage,
    nudge: Arc<Nudge>,
}

impl TurnLine {
    /// Takes a place, which is given up when it is dropped.
    pub(super) fn join(&self, stage: Stage) -> Place<'_> {
        let nudge = Arc::new(Nudge::new());
        let mut line = self.lock();
        let at = match stage {
            Stage::Begins => line.len(),
            Stage::GoesOn => line.iter().take_while(|waiter| waiter.stage == Stage::GoesOn).count(),
        };
        line.insert(at, Waiter { stage, nudge: Arc::clone(&nudge) });
        Place { line: self, nudge }
    }

    /// There may be a turn for the first.
    pub(super) fn wake_first(&self) {
        if let Some(first) = self.lock().front() {
            first.nudge.wake();
        }
    }

    /// Nobody may have to wait any more, be it that there will be no turn.
    pub(super) fn wake_all(&self) {
        self.lock().iter().for_each(|waiter| waiter.nudge.wake());
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiter>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place in the line.
#[derive(Debug)]
pub(super) struct Place<'a> {
    line: &'a TurnLine,
    nudge: Arc<Nudge>,
}

impl Place<'_> {
    /// Whether it is for this one to ask.
    pub(super) fn is_first(&self) -> bool {
        self.line.lock().front().is_some_and(|first| Arc::ptr_eq(&first.nudge, &self.nudge))
    }

    /// Waits until something may have changed, but no longer than that.
    pub(super) fn wait(&self, timeout: Duration) {
        self.nudge.wait(Some(timeout));
    }

    /// What ends the wait.
    pub(super) fn nudge(&self) -> Arc<Nudge> {
        Arc::clone(&self.nudge)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.line.lock().retain(|waiter| !Arc::ptr_eq(&waiter.nudge, &self.nudge));
        self.line.wake_first();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_came_first_is_first_but_for_those_that_go_on() {
        let line = TurnLine::default();
        let (a, b) = (line.join(Stage::Begins), line.join(Stage::Begins));
        let (c, d) = (line.join(Stage::GoesOn), line.join(Stage::GoesOn));
        let first = |places: &[&Place<'_>]| places.iter().map(|place| place.is_first()).collect::<Vec<_>>();
        assert_eq!(first(&[&a, &b, &c, &d]), [false, false, true, false]);
        drop(d);
        drop(c);
        assert_eq!(first(&[&a, &b]), [true, false]);
        drop(a);
        assert_eq!(first(&[&b]), [true]);
    }

    #[test]
    fn who_becomes_first_is_woken() {
        let line = TurnLine::default();
        let (first, second) = (line.join(Stage::Begins), line.join(Stage::Begins));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !second.is_first() {
                    second.wait(Duration::from_secs(600));
                }
            });
            drop(first);
        });
    }
}
