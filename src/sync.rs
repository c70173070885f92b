//! Locks, condition variables, threads and what is local to them: the standard library's, or, built with `--cfg shuttle`,
//! those of a model checker, which decides who runs when and so tries out orders that a machine hardly ever shows.
//!
//! Everything in the pool and the executors' tokens that blocks goes through here: a checker sees nothing else. What never
//! blocks, such as `Arc` and `OnceLock`, or holds its lock only over plain code, such as `MemoryRepository`, need not.

#[cfg(not(shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use shuttle::{
    sync::{Mutex, MutexGuard, atomic},
    thread, thread_local,
};

#[cfg(shuttle)]
pub(crate) use self::timeless::Condvar;

#[cfg(shuttle)]
mod timeless {
    use std::sync::LockResult;
    use std::time::Duration;

    use super::MutexGuard;

    /// A condition variable of a world in which no time passes: a wait ends when somebody ends it, or at once if it has no
    /// time left. That time has passed is said by the pool's clock, whose jumps wake those who sleep by it.
    #[derive(Debug, Default)]
    pub(crate) struct Condvar(shuttle::sync::Condvar);

    impl Condvar {
        pub(crate) fn new() -> Condvar {
            Condvar::default()
        }

        pub(crate) fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> LockResult<MutexGuard<'a, T>> {
            self.0.wait(guard)
        }

        /// As the standard library's, but does not say whether the time was up: nobody asks.
        pub(crate) fn wait_timeout<'a, T>(
            &self,
            guard: MutexGuard<'a, T>,
            timeout: Duration,
        ) -> LockResult<(MutexGuard<'a, T>, ())> {
            if timeout.is_zero() {
                return Ok((guard, ()));
            }
            match self.0.wait(guard) {
                Ok(guard) => Ok((guard, ())),
                Err(poisoned) => Err(std::sync::PoisonError::new((poisoned.into_inner(), ()))),
            }
        }

        pub(crate) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}
