//! The changes that wait for the writer thread: bounded in bytes, urgent ones first.
//!
//! Renewing leases and cancelling overtake everything else, since a lease must not be lost because
//! a long conversation is waiting to be written. All others keep their order.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lease::Backpressure;

/// Whether a change may overtake others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::repository) enum Lane {
    /// Ahead of everything ordinary.
    Urgent,
    /// In the order of arrival.
    Ordinary,
}

/// A queue of many senders and one receiver.
#[derive(Debug)]
pub(in crate::repository) struct Queue<T> {
    state: Mutex<State<T>>,
    /// Something arrived, or the queue was closed.
    arrived: Condvar,
    /// The receiver took something.
    drained: Condvar,
    limit_bytes: usize,
}

#[derive(Debug)]
struct State<T> {
    urgent: Vec<T>,
    ordinary: Vec<T>,
    /// What waits in the ordinary lane; the urgent one holds nothing that is large.
    bytes: usize,
    /// What the receiver took and could not deal with yet.
    held_bytes: usize,
    /// Whether the receiver sleeps until something arrives.
    is_awaited: bool,
    /// How many senders sleep until there is room.
    senders: usize,
    is_disk_full: bool,
    is_closed: bool,
}

impl<T> Queue<T> {
    pub(in crate::repository) fn new(limit_bytes: usize) -> Queue<T> {
        let state = State {
            urgent: Vec::new(),
            ordinary: Vec::new(),
            bytes: 0,
            held_bytes: 0,
            is_awaited: false,
            senders: 0,
            is_disk_full: false,
            is_closed: false,
        };
        Queue { state: Mutex::new(state), arrived: Condvar::new(), drained: Condvar::new(), limit_bytes }
    }

    /// Adds an item, waiting for room if the queue is full. A closed queue gives it back.
    pub(in crate::repository) fn send(&self, lane: Lane, bytes: usize, item: T) -> Result<(), T> {
        let mut state = self.lock();
        // What is larger than the whole queue may enter when it is empty.
        while lane == Lane::Ordinary
            && state.bytes + state.held_bytes > 0
            && (state.bytes + state.held_bytes).saturating_add(bytes) > self.limit_bytes
            && !state.is_closed
        {
            state.senders += 1;
            state = self.drained.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.senders -= 1;
        }
        if state.is_closed {
            return Err(item);
        }
        match lane {
            Lane::Urgent => state.urgent.push(item),
            Lane::Ordinary => {
                state.bytes += bytes;
                state.ordinary.push(item);
            }
        }
        // To wake somebody is a call into the system, even if nobody sleeps.
        let is_awaited = std::mem::take(&mut state.is_awaited);
        drop(state);
        if is_awaited {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// Takes everything that waits, urgent items apart, waiting for a first one.
    ///
    /// With a `patience` it may return with nothing. `None` once the queue is closed and empty.
    pub(in crate::repository) fn take(&self, patience: Option<Duration>) -> Option<(Vec<T>, Vec<T>)> {
        let mut state = self.lock();
        let is_idle = |state: &mut State<T>| {
            state.is_awaited = state.is_idle();
            state.is_awaited
        };
        if let Some(patience) = patience {
            let waited = self.arrived.wait_timeout_while(state, patience, is_idle);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        } else {
            state = self.arrived.wait_while(state, is_idle).unwrap_or_else(PoisonError::into_inner);
        }
        state.is_awaited = false;
        let (urgent, ordinary) = state.take_all();
        let is_over = state.is_closed && urgent.is_empty() && ordinary.is_empty();
        let has_senders = state.senders > 0;
        drop(state);
        if has_senders {
            self.drained.notify_all();
        }
        (!is_over).then_some((urgent, ordinary))
    }

    /// Counts what the receiver took and still has towards the limit.
    pub(in crate::repository) fn hold(&self, bytes: usize) {
        let mut state = self.lock();
        let was_more = bytes < std::mem::replace(&mut state.held_bytes, bytes);
        drop(state);
        if was_more {
            self.drained.notify_all();
        }
    }

    /// How much waits.
    pub(in crate::repository) fn backpressure(&self) -> Backpressure {
        let state = self.lock();
        Backpressure {
            changes: state.urgent.len() + state.ordinary.len(),
            bytes: state.bytes + state.held_bytes,
            limit_bytes: self.limit_bytes,
            waiting_threads: state.senders,
            is_disk_full: state.is_disk_full,
        }
    }

    /// Has everybody know whether the disk is full.
    pub(in crate::repository) fn set_disk_full(&self, is_disk_full: bool) {
        self.lock().is_disk_full = is_disk_full;
    }

    /// Takes what is urgent, if anything, without waiting.
    pub(in crate::repository) fn take_urgent(&self) -> Vec<T> {
        std::mem::take(&mut self.lock().urgent)
    }

    /// Lets nothing more in. What waits can still be taken.
    pub(in crate::repository) fn close(&self) {
        self.lock().is_closed = true;
        self.arrived.notify_all();
        self.drained.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> State<T> {
    fn is_idle(&self) -> bool {
        self.urgent.is_empty() && self.ordinary.is_empty() && !self.is_closed
    }

    fn take_all(&mut self) -> (Vec<T>, Vec<T>) {
        self.bytes = 0;
        (std::mem::take(&mut self.urgent), std::mem::take(&mut self.ordinary))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn urgent_items_come_first_and_the_rest_in_order() {
        let queue = Queue::new(100);
        for (lane, item) in [(Lane::Ordinary, 1), (Lane::Urgent, 2), (Lane::Ordinary, 3)] {
            queue.send(lane, 10, item).unwrap();
        }
        assert_eq!(queue.take(None), Some((vec![2], vec![1, 3])));
        assert_eq!(queue.take(Some(Duration::ZERO)), Some((vec![], vec![])));
    }

    #[test]
    fn a_full_queue_makes_senders_wait_but_not_urgent_ones() {
        let queue = Arc::new(Queue::new(10));
        queue.send(Lane::Ordinary, 10, 1).unwrap();
        queue.send(Lane::Urgent, 10, 2).unwrap();
        let sender = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.send(Lane::Ordinary, 1, 3)
        });
        assert_eq!(queue.take(None), Some((vec![2], vec![1])));
        sender.join().unwrap().unwrap();
        assert_eq!(queue.take(None), Some((vec![], vec![3])));
    }

    #[test]
    fn what_the_receiver_still_has_counts_until_it_is_rid_of_it() {
        let queue = Arc::new(Queue::new(10));
        queue.hold(10);
        let sender = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.send(Lane::Ordinary, 1, 1)
        });
        assert_eq!(queue.take(Some(Duration::from_millis(1))), Some((vec![], vec![])));
        queue.hold(0);
        sender.join().unwrap().unwrap();
        assert_eq!(queue.take(None), Some((vec![], vec![1])));
    }

    #[test]
    fn a_queue_knows_how_full_it_is_and_who_waits_for_room() {
        let queue = Arc::new(Queue::new(10));
        queue.send(Lane::Ordinary, 7, 1).unwrap();
        queue.send(Lane::Urgent, 1, 2).unwrap();
        let sender = thread::spawn({
            let queue = Arc::clone(&queue);
            move || queue.send(Lane::Ordinary, 4, 3)
        });
        while queue.backpressure().waiting_threads == 0 {
            thread::yield_now();
        }
        let full = queue.backpressure();
        assert_eq!((full.changes, full.bytes, full.limit_bytes), (2, 7, 10));
        queue.take(None).unwrap();
        sender.join().unwrap().unwrap();
        queue.hold(3);
        let later = queue.backpressure();
        assert_eq!((later.changes, later.bytes, later.waiting_threads), (1, 7, 0));
    }

    #[test]
    fn what_is_larger_than_the_queue_still_gets_through() {
        let queue = Queue::new(10);
        queue.send(Lane::Ordinary, 1_000, 1).unwrap();
        assert_eq!(queue.take(None), Some((vec![], vec![1])));
    }

    #[test]
    fn a_closed_queue_is_emptied_and_then_over() {
        let queue = Queue::new(10);
        queue.send(Lane::Ordinary, 1, 1).unwrap();
        queue.close();
        assert_eq!(queue.send(Lane::Ordinary, 1, 2), Err(2));
        assert_eq!(queue.take(None), Some((vec![], vec![1])));
        assert_eq!(queue.take(None), None);
    }
}
