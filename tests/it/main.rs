//! The view from outside: one binary, a module for each concern.

#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod concurrency;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod conformance;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod property;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
mod support;
