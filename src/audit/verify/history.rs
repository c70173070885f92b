//! The journal rows of one unit: whether they are a legal life (I3 to I6, I8), and what they say.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};

use super::finding::{Invariant, Notes};
use super::sequence::Sequence;
use crate::attempt::{Attempt, Outcome};
use crate::chain::Hash;
use crate::repository::{Archive, JournalEntry, Result};
use crate::unit::{Change, UnitKey, UnitStatus};

/// What the journal says about a unit.
#[derive(Debug, Default)]
pub(super) struct History {
    /// How many rows are about it.
    pub(super) rows: u64,
    /// How many of them cannot be read. With any, nothing can be said to be missing.
    pub(super) damaged_rows: u64,
    /// Where the last row left it; `None` if that cannot be read.
    pub(super) last: Option<Last>,
    /// When it was inserted.
    pub(super) created_at: Option<DateTime<Utc>>,
    /// By which change it ended, and when; `None` if it has not.
    pub(super) ended: Option<(Change, DateTime<Utc>)>,
    /// The hash of its inputs.
    pub(super) inputs_digest: Option<Hash>,
    /// Whether its contents were removed.
    pub(super) is_purged: bool,
    /// When they were.
    pub(super) purged_at: Option<DateTime<Utc>>,
    /// How many attempts it had when it was last requeued.
    pub(super) attempts_before_requeue: u32,
    /// What became of its attempts, by number.
    pub(super) attempts: BTreeMap<u32, Told>,
    /// The attempt that holds it now.
    open: Option<u32>,
}

/// Where a row left the unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    pub(super) status: UnitStatus,
    pub(super) fence: i64,
}

/// What the journal says about an attempt.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// The fence of its claim.
    pub(super) fence: Option<i64>,
    /// The hash of what it was started with.
    pub(super) beginning: Option<Hash>,
    /// How it was closed.
    pub(super) end: Option<End>,
    /// The hash of what it left, late reports included.
    pub(super) digest: Option<Hash>,
}

/// What the row that closed an attempt says.
#[derive(Debug)]
pub(super) struct End {
    pub(super) seq: i64,
    pub(super) change: Change,
    pub(super) message_count: Option<u32>,
    pub(super) head: Option<Hash>,
}

impl History {
    /// Reads the rows of a unit and checks each against those before it.
    ///
    /// The attempts are `None` if they cannot be read.
    pub(super) fn read(
        archive: &dyn Archive,
        unit: UnitKey,
        attempts: Option<&[Attempt]>,
        notes: &mut Notes<'_>,
    ) -> Result<History> {
        let mut history = History::default();
        for row in Sequence::new(|after, limit| archive.unit_journal(unit, after, limit)) {
            match row? {
                Ok(row) => {
                    history.check_unit(unit, &row, notes);
                    history.check_step(&row, notes);
                    history.check_fence(&row, attempts, notes);
                    history.check_attempt(&row, notes);
                    history.take(&row);
                }
                Err(damage) => {
                    notes.add(Invariant::I3, damage.problem);
                    history.skip();
                }
            }
        }
        if history.rows == 0 {
            notes.add(Invariant::I3, "the journal says nothing about it");
        }
        Ok(history)
    }

    /// Whether every row could be read.
    pub(super) fn is_whole(&self) -> bool {
        self.damaged_rows == 0
    }

    fn check_unit(&self, unit: UnitKey, row: &JournalEntry, notes: &mut Notes<'_>) {
        if row.unit != unit {
            notes.add(Invariant::I13, format!("journal row {} is about unit key {}", row.seq, row.unit.0));
        }
    }

    fn check_step(&self, row: &JournalEntry, notes: &mut Notes<'_>) {
        let JournalEntry { seq, change, from, to, .. } = row;
        if self.rows == 0 {
            if (*change, *from, *to) != (Change::Insert, None, UnitStatus::Pending) {
                let from = from.map_or("nothing", UnitStatus::name);
                notes.add(Invariant::I3, format!("its first journal row {seq} is {change} from {from} to {to}"));
            }
            return;
        }
        // Behind a damaged row its own word for where it came from is all there is.
        let status = self.last.map(|last| last.status).or(*from);
        let Some(status) = status else {
            notes.add(Invariant::I3, format!("journal row {seq} is {change} from nothing, but is not the first"));
            return;
        };
        let is_legal = status.after(*change) == Some(*to);
        if !is_legal && status.is_terminal() && *to != status {
            notes.add(Invariant::I4, format!("journal row {seq} leaves {status} by {change} to {to}"));
        } else if *from != Some(status) {
            let from = from.map_or("nothing", UnitStatus::name);
            notes.add(
                Invariant::I3,
                format!("journal row {seq} starts from {from}, but the row before led to {status}"),
            );
        } else if !is_legal {
            notes.add(Invariant::I3, format!("journal row {seq} is {change} from {status} to {to}, which is no step"));
        }
    }

    fn check_fence(&self, row: &JournalEntry, attempts: Option<&[Attempt]>, notes: &mut Notes<'_>) {
        let before = match self.last {
            Some(last) => last.fence,
            None if self.rows == 0 => 0,
            None => return,
        };
        let Some(grows) = grows_fence(row, attempts) else { return };
        let expected = before.saturating_add(i64::from(grows));
        if row.fence != expected {
            let JournalEntry { seq, change, fence, .. } = row;
            notes.add(Invariant::I6, format!("journal row {seq} is {change} with fence {fence}, not {expected}"));
        }
    }

    fn check_attempt(&self, row: &JournalEntry, notes: &mut Notes<'_>) {
        let JournalEntry { seq, change, .. } = row;
        let told = row.attempt_number.and_then(|number| self.attempts.get(&number));
        if *change == Change::LateReport {
            if told.is_none_or(|told| told.end.is_none()) && self.is_whole() {
                notes.add(Invariant::I6, format!("journal row {seq} is a late report of no closed attempt"));
            }
            return;
        }
        let expected = match change {
            Change::Claim => Some(self.attempts.keys().next_back().map_or(1, |last| last.saturating_add(1))),
            _ => self.open,
        };
        if row.attempt_number != expected && self.is_whole() {
            let (told, expected) = (attempt_name(row.attempt_number), attempt_name(expected));
            notes.add(Invariant::I8, format!("journal row {seq} is {change} of {told}, not {expected}"));
        }
        let Some(told) = told else { return };
        if let (true, Some(end)) = (closes(*change), &told.end) {
            let number = attempt_name(row.attempt_number);
            notes.add(Invariant::I8, format!("journal row {seq} closes {number} again after row {}", end.seq));
            if (end.change, *change) == (Change::Complete, Change::Complete) {
                notes.add(Invariant::I5, format!("journal rows {} and {seq} both complete {number}", end.seq));
            }
        }
        if *change == Change::Complete && told.fence.is_some_and(|fence| fence != row.fence) {
            let fence = row.fence;
            notes.add(
                Invariant::I5,
                format!("journal row {seq} completes under fence {fence}, which is not its claim's"),
            );
        }
    }

    fn take(&mut self, row: &JournalEntry) {
        self.rows += 1;
        self.last = Some(Last { status: row.to, fence: row.fence });
        if row.from != Some(row.to) {
            self.ended = row.to.is_terminal().then_some((row.change, row.at));
        }
        match row.change {
            Change::Insert => {
                self.inputs_digest = row.digest;
                self.created_at = Some(row.at);
            }
            Change::AddPrompt => self.inputs_digest = row.digest,
            // As it was told before there was a row of its own for it.
            Change::Claim => self.inputs_digest = row.digest.or(self.inputs_digest),
            Change::Purge => {
                self.is_purged = true;
                self.purged_at = Some(row.at);
            }
            Change::Requeue => self.attempts_before_requeue = self.attempts.keys().next_back().copied().unwrap_or(0),
            _ => {}
        }
        // A late report comes from an attempt that holds nothing any more.
        if row.change != Change::LateReport {
            self.open = row.attempt_number.filter(|_| row.to.is_leased());
        }
        let Some(number) = row.attempt_number else { return };
        let told = self.attempts.entry(number).or_default();
        match row.change {
            Change::Claim => told.fence = Some(row.fence),
            Change::Start => told.beginning = row.digest,
            Change::LateReport => told.digest = row.digest,
            change if closes(change) => {
                let JournalEntry { seq, message_count, head, .. } = *row;
                told.end.get_or_insert(End { seq, change, message_count, head });
                told.digest = row.digest;
            }
            _ => {}
        }
    }

    fn skip(&mut self) {
        self.rows += 1;
        self.damaged_rows += 1;
        self.last = None;
    }
}

/// Whether a change ends an attempt.
fn closes(change: Change) -> bool {
    use Change::{Complete, EndCancelled, Expire, ExpireFinally, Fail, Release, Retry};
    matches!(change, Complete | Retry | Fail | Release | Expire | ExpireFinally | EndCancelled)
}

/// Whether the fence grows with a row; `None` if nobody can tell.
///
/// The end of a cancelled unit is an expiry if its attempt was lost. The row's reason
/// does not tell: it may be a caller's own words.
fn grows_fence(row: &JournalEntry, attempts: Option<&[Attempt]>) -> Option<bool> {
    match row.change {
        Change::Claim | Change::Expire | Change::ExpireFinally => Some(true),
        Change::EndCancelled => {
            let ended = attempts?.iter().find(|attempt| Some(attempt.key.number) == row.attempt_number)?;
            Some(ended.outcome == Some(Outcome::Lost))
        }
        _ => Some(false),
    }
}

fn attempt_name(number: Option<u32>) -> String {
    number.map_or_else(|| "no attempt".to_owned(), |number| format!("attempt {number}"))
}

/// Whether an attempt with this outcome can be closed by a change.
pub(super) fn fits(outcome: Outcome, change: Change) -> bool {
    use Outcome::{Cancelled, Completed, Failed, Lost, Released, TimedOut};
    match change {
        Change::Complete => outcome == Completed,
        Change::Retry => matches!(outcome, Failed | TimedOut),
        // What is given back too often fails, and so does what stops too often without being asked to.
        Change::Fail => matches!(outcome, Failed | TimedOut | Released | Cancelled),
        Change::Release => matches!(outcome, Released | Cancelled),
        Change::Expire | Change::ExpireFinally => outcome == Lost,
        Change::EndCancelled => true,
        _ => false,
    }
}

/// Whether an attempt that was closed so counts against the limit; `None` if it may or may not.
pub(super) fn counts(outcome: Outcome, change: Change) -> Option<bool> {
    match change {
        Change::Release => None,
        Change::EndCancelled => Some(outcome != Outcome::Released),
        _ => Some(true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::{Ending, Failure, FailureKind, Next, Standing};
    use std::time::Duration;

    #[test]
    fn whatever_a_closing_can_be_fits() {
        let failure = || Failure::new(FailureKind::EXECUTOR, "no");
        let endings = [
            Ending::Completed,
            Ending::Cancelled,
            Ending::Failed { failure: failure(), next: Next::GiveUp },
            Ending::TimedOut { failure: failure(), next: Next::Retry { after: Duration::ZERO } },
        ];
        for status in [UnitStatus::Assigned, UnitStatus::Processing, UnitStatus::CancelRequested] {
            for (attempts_used, releases) in [(0, 0), (3, 0), (0, 100), (3, 100)] {
                let standing = Standing { status, attempts_used, max_retries: 3, releases };
                let mut closings = vec![standing.released(None), standing.lost()];
                closings.extend(endings.iter().map(|ending| standing.finished(ending)));
                for closing in closings {
                    assert!(closes(closing.change), "{closing:?}");
                    assert!(fits(closing.outcome, closing.change), "{closing:?}");
                    let counts = counts(closing.outcome, closing.change);
                    assert!(counts.is_none_or(|counts| counts == closing.is_counted), "{closing:?}");
                }
            }
        }
    }
}
