//! The view from outside: one binary, a module for each concern.

mod concurrency;
mod property;
mod support;
