//! What bounds the work beside the number of workers.
//!
//! | | |
//! |---|---|
//! | `budget` | how much a job and a pool may cost, and what of that is left |

mod budget;

pub use self::budget::{Account, AccountHolder, Estimate, Expectation, OverBudget};
pub(crate) use self::budget::{Bill, expected, refusing, settled, told_late};
