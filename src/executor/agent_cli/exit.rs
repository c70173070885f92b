//! What it means that a program ended without having said how it went.

use super::Trouble;
use crate::executor::CancelReason;
use crate::executor::process::{Exit, How, Reason};

/// Shells, and programs that clean up first, exit with this and the signal's number on top.
const SIGNAL_EXIT_BASE: i32 = 128;

/// The signals with which somebody ends a program: HUP, INT, KILL and TERM.
const ENDING_SIGNALS: [i32; 4] = [1, 2, 9, 15];

/// What a program had said when it ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor) enum Said {
    Nothing,
    Something,
}

/// What went wrong with a program that ended without a result, and how to say so.
pub(in crate::executor) fn without_result(program: &str, said: Said, exit: &Exit) -> (Trouble, String) {
    let trouble = match exit.how {
        How::Exited(code) if ENDING_SIGNALS.contains(&(code - SIGNAL_EXIT_BASE)) => Trouble::Killed,
        How::Exited(code) if code != 0 && said == Said::Nothing && refuses_arguments(exit) => Trouble::InvalidArguments,
        How::Exited(_) | How::Ended(Reason::Lingered | Reason::ClosedItsOutput) => Trouble::NoResult,
        How::Signalled(_) => Trouble::Killed,
        How::Ended(Reason::Silent(_)) => Trouble::Silent,
        How::Ended(Reason::NeverSpoke(_)) => Trouble::NeverSpoke,
        How::Ended(Reason::Cancelled(CancelReason::TimedOut)) => Trouble::TimedOut,
        How::Ended(Reason::Cancelled(_)) => Trouble::Cancelled,
    };
    let mut message = match exit.how {
        How::Exited(code) => format!("`{program}` ended with exit code {code} and without a result"),
        How::Signalled(signal) => format!("`{program}` was ended by signal {signal} before it had a result"),
        How::Ended(Reason::Silent(limit)) => format!("`{program}` said nothing for {limit:?} and was ended"),
        How::Ended(Reason::NeverSpoke(limit)) => {
            format!("`{program}` said nothing in the first {limit:?} and was ended")
        }
        How::Ended(Reason::Lingered) => format!("`{program}` did not end by itself"),
        How::Ended(Reason::ClosedItsOutput) => format!("`{program}` closed its output without a result and was ended"),
        How::Ended(Reason::Cancelled(CancelReason::TimedOut)) => format!("`{program}` took too long and was ended"),
        How::Ended(Reason::Cancelled(_)) => format!("`{program}` was ended because it was to stop"),
    };
    let complaint = exit.stderr_text();
    if !complaint.is_empty() {
        message = format!("{message}: {complaint}");
    }
    (trouble, message)
}

/// Whether a program complains about how it was called, as the parsers of arguments do that the agents use. What a runtime says that has
/// broken down may begin in the same way, but names no option.
fn refuses_arguments(exit: &Exit) -> bool {
    let said = String::from_utf8_lossy(&exit.stderr_tail);
    let names_one = |complaint: &str| ["--", "option", "argument"].iter().any(|word| complaint.contains(word));
    said.lines().any(|line| {
        let complaint = line.strip_prefix("error: ").or_else(|| line.strip_prefix("Error: "));
        complaint.is_some_and(names_one) || line.starts_with("No prompt provided")
    })
}
