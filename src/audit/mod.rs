//! Reading what was kept, and showing that it was kept.

pub mod questions;
pub mod verify;

pub use verify::verify;
