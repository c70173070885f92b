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

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn once_it_is_loose_nothing_shortens_it() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let leash = Leash::new(TreeLine::new(ours), Duration::from_secs(9));
        leash.shorten(Duration::from_secs(1));
        leash.loosen(Duration::from_secs(60));
        leash.shorten(Duration::from_secs(1));
        drop(leash);
        let mut told = Vec::new();
        theirs.read_to_end(&mut told).unwrap();
        let told: Vec<_> = told.chunks(8).map(|order| i64::from_ne_bytes(order.try_into().unwrap())).collect();
        assert_eq!(told, [9_000, 1_000, 60_000]);
    }
}
