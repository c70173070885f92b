//! How long a process may live that works for a call, kept by whoever ends its tree.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::executor::process::tree::Line as TreeLine;

/// Sees to it that a process ends with its query, also if nobody in the host has the time: whoever ends its tree is told how long it
/// may live, and is told anew when the query is cancelled, until the query is over.
#[derive(Debug)]
pub(super) struct Leash {
    line: TreeLine,
    is_loose: Mutex<bool>,
}

impl Leash {
    pub(super) fn new(line: TreeLine, limit: Duration) -> Leash {
        line.may_live(limit);
        Leash { line, is_loose: Mutex::new(false) }
    }

    /// It is to live no longer than that, unless it is loose by now.
    pub(super) fn shorten(&self, limit: Duration) {
        let is_loose = self.is_loose.lock().unwrap_or_else(PoisonError::into_inner);
        if !*is_loose {
            self.line.may_live(limit);
        }
    }

    /// The query is over. From now on the process may live so long.
    pub(super) fn loosen(&self, limit: Duration) {
        let mut is_loose = self.is_loose.lock().unwrap_or_else(PoisonError::into_inner);
        *is_loose = true;
        self.line.may_live(limit);
    }
}
