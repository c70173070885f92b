//! Which pool a thread belongs to, so that it does not wait for itself.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::sync::thread_local;

/// The whole process's, and nobody waits for it.
static POOLS_EVER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of the pool that this thread belongs to; 0 for none.
    static POOL: Cell<u64> = const { Cell::new(0) };
}

/// A number for a new pool.
pub(super) fn next_pool() -> u64 {
    POOLS_EVER.fetch_add(1, Ordering::Relaxed) + 1
}

/// The number of the pool that this thread belongs to; 0 for none.
pub(crate) fn current() -> u64 {
    POOL.with(Cell::get)
}

/// From now on this thread belongs to a pool.
pub(crate) fn enter(pool: u64) {
    POOL.with(|current| current.set(pool));
}

/// Whether this thread belongs to a pool.
pub(super) fn is_inside(pool: u64) -> bool {
    current() == pool
}
