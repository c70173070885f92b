//! A mailbox: what one thread is to do, in the order in which others put it there.

use std::collections::VecDeque;
use std::sync::PoisonError;

use crate::sync::{Condvar, Mutex, MutexGuard};

/// See the [module](self). It has no bound of its own: whoever puts something in knows how much there can be.
#[derive(Debug)]
pub(super) struct Mailbox<T> {
    waiting: Mutex<VecDeque<T>>,
    arrived: Condvar,
}

impl<T> Mailbox<T> {
    pub(super) fn new() -> Mailbox<T> {
        Mailbox { waiting: Mutex::default(), arrived: Condvar::new() }
    }

    /// Puts something in, without waiting.
    pub(super) fn put(&self, item: T) {
        self.lock().push_back(item);
        self.arrived.notify_one();
    }

    /// Waits for what came first.
    pub(super) fn take(&self) -> T {
        let mut waiting = self.lock();
        loop {
            match waiting.pop_front() {
                Some(item) => return item,
                None => waiting = self.arrived.wait(waiting).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_come_out_in_order_and_wake_whoever_waits() {
        let mailbox = Mailbox::new();
        mailbox.put(1);
        mailbox.put(2);
        assert_eq!((mailbox.take(), mailbox.take()), (1, 2));
        std::thread::scope(|threads| {
            let waiter = threads.spawn(|| mailbox.take());
            mailbox.put(3);
            assert_eq!(waiter.join().unwrap(), 3);
        });
    }
}
