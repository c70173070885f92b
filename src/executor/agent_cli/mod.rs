//! What the agent programs have in common, whatever each of them prints.
//!
//! An agent program takes its prompt on its input and prints one JSON object a line. `line` makes a message of a line that is
//! none, `exit` knows what an exit without a result means, `session` which session an attempt carries on, and `setup` is what a
//! process is started with.

mod exit;
mod line;
#[cfg(test)]
pub(super) mod replay;
mod session;
mod setup;

pub(super) use self::exit::{Said, without_result};
pub(super) use self::line::{Event, is_blank, next_event, number, text, unread};
pub(super) use self::session::{session_not_found, session_to_resume};
pub(super) use self::setup::{Setup, hidden, option, recorded};
pub(super) use super::trouble::{Trouble, by_status};
