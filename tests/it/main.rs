//! The view from outside: one binary, a module for each concern.

#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod conformance;
mod smoke;
