//! The registry (L1): which workers there are. Its lock is held to add, remove or list, never longer.
//!
//! A worker that has ended stays for half a minute: whoever still has to do with it finds that it has ended, and not nothing.

use std::collections::HashMap;
use std::sync::Arc;

use super::capacity::WorkerNumber;
use super::cell::WorkerCell;
use super::lock::{Rank, Ranked};

/// The workers by their numbers.
#[derive(Debug)]
pub(super) struct Registry(Ranked<HashMap<WorkerNumber, Arc<WorkerCell>>>);

impl Registry {
    pub(super) fn new() -> Registry {
        Registry(Ranked::new(Rank::Registry, HashMap::new()))
    }

    pub(super) fn add(&self, cell: Arc<WorkerCell>) {
        self.0.lock().insert(cell.number, cell);
    }

    pub(super) fn remove(&self, worker: WorkerNumber) {
        self.0.lock().remove(&worker);
    }

    pub(super) fn get(&self, worker: WorkerNumber) -> Option<Arc<WorkerCell>> {
        self.0.lock().get(&worker).cloned()
    }

    /// The workers at this moment, in the order of their numbers.
    pub(super) fn snapshot(&self) -> Vec<Arc<WorkerCell>> {
        let mut cells: Vec<_> = self.0.lock().values().cloned().collect();
        cells.sort_by_key(|cell| cell.number);
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::cell::Birth;
    use crate::pool::inbox::Inbox;

    #[test]
    fn a_snapshot_is_in_order_and_outlives_what_it_shows() {
        // 000-F1, 000-F2, 000-F5, 000-F8, 000-F31
        let registry = Registry::new();
        for number in [2, 3, 1] {
            registry.add(Arc::new(WorkerCell::new(WorkerNumber(number), Inbox::new(), Birth::Ahead)));
        }
        let snapshot = registry.snapshot();
        registry.remove(WorkerNumber(2));
        assert!(registry.get(WorkerNumber(2)).is_none() && registry.get(WorkerNumber(3)).is_some());
        let ids: Vec<String> = snapshot.iter().map(|cell| cell.id.to_string()).collect();
        assert_eq!(ids, ["w1", "w2", "w3"]);
        assert_eq!(registry.snapshot().len(), 2);
    }
}
