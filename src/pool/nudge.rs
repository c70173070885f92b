//! A tap on the shoulder of a thread that waits: many of them are one.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Wakes one thread. Room for one tap is enough: whoever wakes looks at everything.
#[derive(Clone, Debug)]
pub(super) struct Nudge {
    sender: Sender<()>,
    receiver: Receiver<()>,
}

impl Nudge {
    pub(super) fn new() -> Nudge {
        let (sender, receiver) = bounded(1);
        Nudge { sender, receiver }
    }

    /// Wakes the thread, or lets it not fall asleep.
    pub(super) fn wake(&self) {
        // Full means that it was nudged already.
        let _ = self.sender.try_send(());
    }

    /// Sleeps until nudged, but no longer than that. `None` waits for as long as it takes.
    pub(super) fn wait(&self, timeout: Option<Duration>) {
        // Both ways of waking lead to the same look around.
        let _ = match timeout {
            Some(timeout) => self.receiver.recv_timeout(timeout).ok(),
            None => self.receiver.recv().ok(),
        };
    }
}
