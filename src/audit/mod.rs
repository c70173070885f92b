//! Reading what was kept, and showing that it was kept.

pub mod export;
pub mod questions;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub mod search;
pub mod verify;

pub use verify::verify;
