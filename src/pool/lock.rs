//! Locks that know their order, so that a deadlock is found by a test and not by a night.
//!
//! | lock | guards | may be taken while holding |
//! |---|---|---|
//! | registry (L1) | which workers there are | nothing |
//! | worker (L2) | one worker: its status, its inbox, what it executes | nothing |
//! | ready (L3) | capacity, waiting, counts, timers, the pool's phase | nothing, or one L2 |
//!
//! No repository call, no callback, no executor, no thread start and no log line happens under any of them. Debug
//! builds assert both.

use std::sync::PoisonError;
use std::time::Duration;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// Where a lock stands in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rank {
    Registry = 0b001,
    Worker = 0b010,
    Ready = 0b100,
}

/// A mutex with a place in the order. It stays usable after a panic: every critical section leaves what it guards whole.
#[derive(Debug)]
pub(super) struct Ranked<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> Ranked<T> {
    pub(super) fn new(rank: Rank, value: T) -> Ranked<T> {
        Ranked { rank, mutex: Mutex::new(value) }
    }

    pub(super) fn lock(&self) -> Held<'_, T> {
        let mark = Mark::new(self.rank);
        let guard = self.mutex.lock().unwrap_or_else(PoisonError::into_inner);
        Held { guard: Some(guard), _mark: mark }
    }
}

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Held<'a, T> {
    /// Only `None` while it moves through a wait.
    guard: Option<MutexGuard<'a, T>>,
    _mark: Mark,
}

impl<T> Held<'_, T> {
    /// Gives the lock up, waits to be notified, and takes it again. `None` waits for as long as it takes.
    pub(super) fn wait(mut self, condvar: &Condvar, timeout: Option<Duration>) -> Self {
        self._mark.assert_alone();
        self.guard = self.guard.take().map(|guard| match timeout {
            None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => condvar.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0,
        });
        self
    }
}

impl<T> std::ops::Deref for Held<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.guard.as_deref().expect("a held lock has its guard")
    }
}

impl<T> std::ops::DerefMut for Held<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.guard.as_deref_mut().expect("a held lock has its guard")
    }
}

#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    use crate::sync::thread_local;

    thread_local! {
        /// The ranks that this thread holds, one bit each.
        pub(super) static RANKS: Cell<u8> = const { Cell::new(0) };
    }
}

/// Notes, in debug builds, that this thread holds a lock.
#[derive(Debug)]
struct Mark {
    #[cfg(debug_assertions)]
    rank: Rank,
}

impl Mark {
    #[cfg(debug_assertions)]
    fn new(rank: Rank) -> Mark {
        held::RANKS.with(|ranks| {
            let allowed = match rank {
                Rank::Registry | Rank::Worker => 0,
                Rank::Ready => Rank::Worker as u8,
            };
            assert!(ranks.get() & !allowed == 0, "{rank:?} is taken under {:#05b}", ranks.get());
            ranks.set(ranks.get() | rank as u8);
        });
        Mark { rank }
    }

    #[cfg(not(debug_assertions))]
    fn new(_rank: Rank) -> Mark {
        Mark {}
    }

    /// Whoever sleeps must not hold another lock meanwhile.
    fn assert_alone(&self) {
        #[cfg(debug_assertions)]
        held::RANKS.with(|ranks| assert_eq!(ranks.get(), self.rank as u8, "waits under another lock"));
    }
}

#[cfg(debug_assertions)]
impl Drop for Mark {
    fn drop(&mut self) {
        held::RANKS.with(|ranks| ranks.set(ranks.get() & !(self.rank as u8)));
    }
}

/// Asserts, in debug builds, that this thread holds no lock of a pool: before everything that may take long.
pub(super) fn assert_none_held() {
    #[cfg(debug_assertions)]
    held::RANKS.with(|ranks| assert_eq!(ranks.get(), 0, "calls out under a lock"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn locks() -> [Ranked<()>; 3] {
        [Rank::Registry, Rank::Worker, Rank::Ready].map(|rank| Ranked::new(rank, ()))
    }

    /// Whether `second` may be taken while `first` is held.
    fn is_allowed(first: &Ranked<()>, second: &Ranked<()>) -> bool {
        let held = first.lock();
        let taken = catch_unwind(AssertUnwindSafe(|| drop(second.lock())));
        drop(held);
        taken.is_ok()
    }

    #[test]
    #[cfg(debug_assertions)]
    fn only_the_ready_lock_is_taken_under_another_and_only_under_a_workers() {
        // 000-F3, 000-F11, 000-F12, 000-F36, 004-F48
        for (i, first) in locks().iter().enumerate() {
            for (j, second) in locks().iter().enumerate() {
                assert_eq!(is_allowed(first, second), (i, j) == (1, 2), "{i} then {j}");
            }
        }
        assert_none_held();
    }

    #[test]
    #[cfg(debug_assertions)]
    fn calling_out_or_sleeping_under_a_lock_is_noticed() {
        // 000-F3, 004-F48
        let [registry, worker, ready] = locks();
        let held = registry.lock();
        assert!(catch_unwind(assert_none_held).is_err());
        drop(held);
        assert_none_held();

        let held = worker.lock();
        let nobody = Condvar::new();
        let wait = || drop(ready.lock().wait(&nobody, Some(Duration::ZERO)));
        assert!(catch_unwind(AssertUnwindSafe(wait)).is_err());
        drop(held);
        drop(ready.lock().wait(&nobody, Some(Duration::ZERO)));
    }

    #[test]
    fn a_lock_stays_usable_after_a_panic() {
        let lock = Ranked::new(Rank::Ready, 1);
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("under the lock");
        }));
        assert!(panicked.is_err());
        assert_eq!(*lock.lock(), 1);
    }
}
