//! The view from outside: one binary, a module for each concern.

mod property;
mod support;
