//! What bounds the work beside the number of workers.
//!
//! | | |
//! |---|---|
//! | `budget` | how much a job and a pool may cost, and what of that is left |
//! | `rate` | how often a provider may be asked, by all processes together |
//! | `hold` | until when a provider is not to be asked at all |

mod budget;
mod hold;
mod rate;

pub use self::budget::{Account, AccountHolder, Estimate, Expectation, OverBudget};
pub(crate) use self::budget::{Bill, expected, nothing, refusing, settled, told_late};
pub(crate) use self::hold::StoredHold;
pub use self::hold::{NewHold, ProviderHold};
pub use self::rate::{Ask, Limit, RateLimits, Turn};
pub(crate) use self::rate::{Counted, settled as settled_turns, used, wait};
