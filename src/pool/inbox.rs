//! The inbox of a lane: room for one task, which is enough because a lane gets something only when it has nothing.

use std::sync::{Arc, PoisonError};

use super::execution::Execution;
use crate::sync::{Condvar, Mutex, MutexGuard};

/// What a slot's thread is asked to do.
#[derive(Debug)]
pub(super) enum Task {
    /// Execute an attempt.
    Run(Arc<Execution>),
    /// Bring an attempt to its end whose own thread did not return.
    Close(Arc<Execution>),
    /// Come up again after a crash.
    Restart,
    /// End the worker.
    Quit,
    /// End: somebody else ends the worker, or has.
    Leave,
}

/// See the [module](self). Its clones are the same inbox.
///
/// A channel would do, but those spin before they sleep: a pool has more idle workers than the machine has processors.
#[derive(Clone, Debug, Default)]
pub(super) struct Inbox(Arc<Place>);

#[derive(Debug, Default)]
struct Place {
    task: Mutex<Option<Task>>,
    arrived: Condvar,
}

impl Inbox {
    pub(super) fn new() -> Inbox {
        Inbox::default()
    }

    /// Puts a task in without waiting; says whether there was room.
    pub(super) fn put(&self, task: Task) -> bool {
        let mut place = self.lock();
        let has_room = place.is_none();
        place.get_or_insert(task);
        drop(place);
        self.0.arrived.notify_one();
        has_room
    }

    /// Waits for a task.
    pub(super) fn take(&self) -> Task {
        let mut place = self.lock();
        loop {
            match place.take() {
                Some(task) => return task,
                None => place = self.0.arrived.wait(place).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Task>> {
        self.0.task.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_room_for_one_and_wakes_whoever_waits() {
        let inbox = Inbox::new();
        assert!(inbox.put(Task::Quit));
        assert!(!inbox.put(Task::Quit));
        assert!(matches!(inbox.take(), Task::Quit));
        let waiter = std::thread::spawn({
            let inbox = inbox.clone();
            move || matches!(inbox.take(), Task::Quit)
        });
        assert!(inbox.put(Task::Quit));
        assert!(waiter.join().unwrap());
    }
}
