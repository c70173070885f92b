//! For tests, ours and yours: repositories that fail on demand, and points at which the process dies.

pub use crate::fault::{Action, ENVIRONMENT_VARIABLE, Stage, arm, arm_from_environment, disarm_all, point};
