//! Reading what was kept, and showing that it was kept.

pub mod questions;
#[cfg(feature = "report")]
pub mod report;
pub mod verify;

pub use verify::verify;
