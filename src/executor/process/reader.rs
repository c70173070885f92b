//! What makes sense of a child's output: the seam between running a process and understanding it.

use std::time::Duration;

use crate::conversation::Truncation;
use crate::executor::{Call, CancelReason, ExecuteError, WorkResult};

/// How much of the other output a failure repeats.
const STDERR_SHOWN_BYTES: usize = 2_000;

/// One line of a child's output, without its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a> {
    /// What it says; of a line that was too long only the beginning.
    pub(crate) bytes: &'a [u8],
    /// How long it really was, if it was too long.
    pub(crate) truncation: Option<Truncation>,
}

/// What a line means for the end of the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing.
    More,
    /// What may be the answer has come. The child has a short while left; each answer begins it anew.
    Answer,
    /// It is at work again, or still: it may take as long as it likes.
    AtWork,
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    /// By itself, with this code.
    Exited(i32),
    /// By a signal that was not ours.
    Signalled(i32),
    /// It was ended for this reason.
    Ended(Reason),
}

/// Why a child was ended from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    /// Its answer had come, and it did not end by itself.
    Lingered,
    /// It had said nothing for so long.
    Silent(Duration),
    /// It had said nothing at all for so long after it was started.
    NeverSpoke(Duration),
    /// Its output had ended, and it did not.
    ClosedItsOutput,
    /// The call was cancelled.
    Cancelled(CancelReason),
}

/// The end of a child.
#[derive(Clone, Debug)]
pub(crate) struct Exit {
    pub(crate) how: How,
    /// The end of what it wrote to its other output.
    pub(crate) stderr_tail: Vec<u8>,
    /// How much it wrote there in all.
    pub(crate) stderr_bytes: u64,
}

impl Exit {
    /// The end of what it wrote to its other output, for people.
    pub(crate) fn stderr_text(&self) -> String {
        let shown_from = self.stderr_tail.len().saturating_sub(STDERR_SHOWN_BYTES);
        let shown = &self.stderr_tail[shown_from..];
        let said = String::from_utf8_lossy(shown).trim().to_owned();
        let is_all = u64::try_from(shown.len()).is_ok_and(|shown| shown >= self.stderr_bytes);
        if is_all { said } else { format!("(the end of {} bytes) {said}", self.stderr_bytes) }
    }
}

/// Makes sense of what one child says in one attempt.
pub(crate) trait Reader {
    /// Takes a line as it arrives. What it says is told to the call at once.
    fn read(&mut self, line: Line<'_>, call: &Call<'_>) -> Heard;

    /// The files that it says to have written, so far.
    fn written_files(&self) -> Vec<String> {
        Vec::new()
    }

    /// What came of it all.
    fn conclude(self, exit: &Exit, call: &Call<'_>) -> Result<WorkResult, ExecuteError>;
}
