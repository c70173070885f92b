//! Reading what was kept, and showing that it was kept.
//!
//! | question | answer |
//! |---|---|
//! | what runs, what waits, what does nobody look after? | [`questions`] |
//! | which units are there? which took longest, cost most? | [`list`] |
//! | what did it cost? | [`cost`] |
//! | why did it fail? | [`failures`] |
//! | what was said? | [`transcript`] |
//! | where was this said? | `search` (SQLite only) |
//! | how do other tools read it? | [`export`] |
//! | can I show it to somebody? | `report`, one HTML file (feature `report`) |
//! | how long will it take? | [`forecast`] |
//! | what is wrong, and what can be done about it? | [`doctor`](mod@doctor) |
//! | is all still as it was written? | [`verify`](mod@verify) |

pub mod cost;
pub mod doctor;
pub mod draft;
pub mod export;
pub mod failures;
pub mod forecast;
pub mod list;
pub mod questions;
#[cfg(feature = "report")]
pub mod report;
#[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
pub mod search;
mod tail;
pub mod transcript;
pub mod verify;
pub mod visible;

pub use doctor::doctor;
pub use verify::verify;
pub use visible::visible;
