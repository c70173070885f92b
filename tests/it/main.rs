//! The view from outside.
