//! The journal as a whole: one chain without gaps (I13).

use super::Audit;
use super::finding::{Invariant, Notes};
use super::sequence::Sequence;
use crate::chain::{self, Hash};
use crate::repository::Result;

const SUBJECT: &str = "the journal";

/// A chain as far as it was read.
pub(super) struct Chain {
    /// The place of the last row.
    pub(super) seq: i64,
    /// The link of the last row; `None` behind one that cannot be read.
    link: Option<Hash>,
}

impl Audit<'_> {
    pub(super) fn journal(&mut self) -> Result<()> {
        let archive = self.archive;
        let mut chain = Chain::from(chain::journal_genesis());
        for row in Sequence::new(|after, limit| archive.journal(after, limit)) {
            match row? {
                Ok(row) => {
                    self.totals.journal_rows += 1;
                    self.search_record(&format!("journal row {}", row.seq), &row);
                    let notes = &mut self.findings.about(SUBJECT);
                    chain.check(row.seq, row.link, |previous| chain::journal_link(previous, &row), notes);
                    if self.known_links.get(&row.seq).is_some_and(|known| known.iter().any(|link| *link != row.link)) {
                        notes.add(Invariant::I13, format!("row {} is not the one that was there before", row.seq));
                    }
                }
                Err(damage) => {
                    self.journal_damage += 1;
                    self.findings.add(Invariant::I13, SUBJECT, damage.problem);
                    chain.skip(damage.position);
                }
            }
        }
        for seq in self.known_links.keys().filter(|seq| **seq > chain.seq) {
            self.findings.add(Invariant::I13, SUBJECT, format!("row {seq} is gone"));
        }
        self.journal_head = chain.head();
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
    /// A chain of which nothing was read yet.
    pub(super) fn from(genesis: Hash) -> Chain {
        Chain { seq: 0, link: Some(genesis) }
    }

    /// Takes the next row, and looks whether it follows the one before.
    pub(super) fn check(&mut self, seq: i64, link: Hash, linked: impl FnOnce(&Hash) -> Hash, notes: &mut Notes<'_>) {
        if seq != self.seq.saturating_add(1) {
            notes.add(Invariant::I13, format!("row {seq} follows row {}", self.seq));
        }
        if self.link.as_ref().is_some_and(|previous| linked(previous) != link) {
            notes.add(Invariant::I13, format!("row {seq} was altered, or does not link to the one before"));
        }
        // What is stored goes on, so that one altered row is one finding.
        *self = Chain { seq, link: Some(link) };
    }

    /// Goes on behind a row that cannot be read.
    pub(super) fn skip(&mut self, position: Option<i64>) {
        *self = Chain { seq: position.unwrap_or(self.seq), link: None };
    }

    /// The link of the last row; `None` if there is none, or it cannot be read.
    pub(super) fn head(&self) -> Option<Hash> {
        self.link.filter(|_| self.seq > 0)
    }
}
