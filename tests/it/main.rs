//! The view from outside: one binary, a module for each concern.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod concurrency;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod conformance;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod property;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod support;
