//! The journal as a whole: one chain without gaps (I13).

use super::Audit;
use super::finding::{Invariant, Notes};
use super::sequence::Sequence;
use crate::chain::{self, Hash};
use crate::repository::{JournalEntry, Result};

const SUBJECT: &str = "the journal";

/// The chain as far as it was read.
struct Chain {
    /// The place of the last row.
    seq: i64,
    /// The link of the last row; `None` behind one that cannot be read.
    link: Option<Hash>,
}

impl Audit<'_> {
    pub(super) fn journal(&mut self) -> Result<()> {
        let archive = self.archive;
        let mut chain = Chain { seq: 0, link: Some(chain::journal_genesis()) };
        for row in Sequence::new(|after, limit| archive.journal(after, limit)) {
            match row? {
                Ok(row) => {
                    self.totals.journal_rows += 1;
                    self.search_record(&format!("journal row {}", row.seq), &row);
                    let notes = &mut self.findings.about(SUBJECT);
                    chain.check(&row, notes);
                    self.options.known_heads.iter().for_each(|head| check_head(&row, *head, notes));
                }
                Err(damage) => {
                    self.journal_damage += 1;
                    self.findings.add(Invariant::I13, SUBJECT, damage.problem);
                    chain = Chain { seq: damage.position.unwrap_or(chain.seq), link: None };
                }
            }
        }
        for (seq, _) in self.options.known_heads.iter().filter(|(seq, _)| *seq > chain.seq) {
            self.findings.add(Invariant::I13, SUBJECT, format!("row {seq} is gone"));
        }
        self.journal_head = chain.link.filter(|_| chain.seq > 0);
        Ok(())
    }

    /// Every row must be about a unit that exists. Called when the units were read.
    pub(super) fn journal_rows_of_units(&mut self) {
        let (rows, rows_of_units) = (self.totals.journal_rows, self.rows_of_units);
        if self.journal_damage == 0 && rows != rows_of_units {
            let problem = format!("has {rows} rows, of which {rows_of_units} are about units that are there");
            self.findings.add(Invariant::I13, SUBJECT, problem);
        }
    }
}

impl Chain {
    fn check(&mut self, row: &JournalEntry, notes: &mut Notes<'_>) {
        let seq = row.seq;
        if seq != self.seq.saturating_add(1) {
            notes.add(Invariant::I13, format!("row {seq} follows row {}", self.seq));
        }
        if self.link.is_some_and(|previous| chain::journal_link(&previous, row) != row.link) {
            notes.add(Invariant::I13, format!("row {seq} was altered, or does not link to the one before"));
        }
        // What is stored goes on, so that one altered row is one finding.
        *self = Chain { seq, link: Some(row.link) };
    }
}

fn check_head(row: &JournalEntry, (seq, link): (i64, Hash), notes: &mut Notes<'_>) {
    if row.seq == seq && row.link != link {
        notes.add(Invariant::I13, format!("row {seq} is not the one that was there before"));
    }
}
