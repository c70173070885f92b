//! Reading what was kept, and showing that it was kept.

pub mod doctor;
mod plain;
pub mod questions;
mod tail;
pub mod verify;

pub use doctor::doctor;
pub use verify::verify;
