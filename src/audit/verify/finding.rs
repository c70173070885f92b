//! What a verification can find.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::unit::names;

/// What must hold, whatever happened: crashes, lost leases, full disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Invariant {
    /// Nothing that was acknowledged is lost.
    I1,
    /// Nothing exists that was not submitted.
    I2,
    /// The journal leads to the status.
    I3,
    /// The end is the end.
    I4,
    /// One completion for a claim.
    I5,
    /// The fence proves the right to write.
    I6,
    /// Everything ends.
    I7,
    /// Attempts are bounded.
    I8,
    /// Conversations are kept as they were.
    I9,
    /// Nothing is left running.
    I10,
    /// Callbacks follow the commit.
    I11,
    /// Secrets stay secret.
    I12,
    /// What is stored is sound.
    I13,
    /// No silent drop.
    I14,
}

names!(Invariant {
    I1 => "I1",
    I2 => "I2",
    I3 => "I3",
    I4 => "I4",
    I5 => "I5",
    I6 => "I6",
    I7 => "I7",
    I8 => "I8",
    I9 => "I9",
    I10 => "I10",
    I11 => "I11",
    I12 => "I12",
    I13 => "I13",
    I14 => "I14",
});

impl Invariant {
    /// What must hold, in one line; with a word on what a stored database cannot show of it.
    pub const fn description(self) -> &'static str {
        match self {
            Invariant::I1 => "every acknowledged unit exists",
            Invariant::I2 => "no unit exists that was not submitted",
            Invariant::I3 => "the journal rows of a unit are a legal path without gaps, which leads to its status",
            Invariant::I4 => "a unit that ended is brought back only by a requeue",
            Invariant::I5 => "a claim completes at most once, and under its own fence",
            Invariant::I6 => "the fence grows by one with each claim and each expiry, and never otherwise",
            Invariant::I7 => "a leased unit has one open attempt and others have none; once settled, all have ended",
            Invariant::I8 => "attempts are numbered without gaps, bounded in number, and each ends exactly once",
            Invariant::I9 => "a conversation has whole messages, unaltered and without gaps, and says where it was cut",
            Invariant::I10 => {
                "no child process outlives its attempt and no lease its owner (threads: not visible here)"
            }
            Invariant::I11 => "callbacks run only after the commit (not visible here)",
            Invariant::I12 => "no secret is stored where it should not be",
            Invariant::I13 => {
                "the storage, its references, its hashes and the chains of its journals hold, and jobs are what theirs says"
            }
            Invariant::I14 => "whoever was not acknowledged got an error (not visible here; see I1 and I2)",
        }
    }
}

/// Something that does not hold.
///
/// ```
/// use workcrew::audit::verify::{Finding, Invariant};
///
/// let finding = Finding::new(Invariant::I3, "unit `a41`", "is COMPLETED, but the journal leads to PROCESSING");
/// assert_eq!(finding.to_string(), "I3 unit `a41`: is COMPLETED, but the journal leads to PROCESSING");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Finding {
    /// What does not hold.
    pub invariant: Invariant,
    /// Of what, such as ``unit `a41` ``.
    pub subject: String,
    /// In which way.
    pub problem: String,
}

impl Finding {
    /// Something that does not hold.
    pub fn new(invariant: Invariant, subject: impl Into<String>, problem: impl Into<String>) -> Finding {
        Finding { invariant, subject: subject.into(), problem: problem.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.invariant, self.subject, self.problem)
    }
}

/// How many findings are kept; of the rest only their number is.
pub const FINDING_LIMIT: usize = 1_000;

/// Collects findings up to the limit.
#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) kept: Vec<Finding>,
    pub(super) left_out: u64,
}

impl Findings {
    pub(super) fn add(&mut self, invariant: Invariant, subject: &str, problem: impl Into<String>) {
        if self.kept.len() < FINDING_LIMIT {
            self.kept.push(Finding::new(invariant, subject, shown(problem.into())));
        } else {
            self.left_out += 1;
        }
    }

    /// Collects what is found about one subject.
    pub(super) fn about<'a>(&'a mut self, subject: &'a str) -> Notes<'a> {
        Notes { findings: self, subject }
    }
}

/// A problem may quote what is stored, which may be of any length.
fn shown(problem: String) -> String {
    const SHOWN_CHARS: usize = 500;
    match problem.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &problem[..end]),
        None => problem,
    }
}

/// Collects what is found about one subject.
#[derive(Debug)]
pub(super) struct Notes<'a> {
    findings: &'a mut Findings,
    subject: &'a str,
}

impl Notes<'_> {
    pub(super) fn add(&mut self, invariant: Invariant, problem: impl Into<String>) {
        self.findings.add(invariant, self.subject, problem);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_has_a_description_of_its_own_on_one_line() {
        let mut descriptions: Vec<_> = Invariant::ALL.iter().map(|invariant| invariant.description()).collect();
        assert!(descriptions.iter().all(|text| !text.is_empty() && !text.contains('\n')));
        descriptions.sort_unstable();
        descriptions.dedup();
        assert_eq!(descriptions.len(), Invariant::ALL.len());
    }

    #[test]
    fn findings_beyond_the_limit_are_counted_not_kept() {
        let mut findings = Findings::default();
        for _ in 0..FINDING_LIMIT + 7 {
            findings.add(Invariant::I13, "the journal", "is damaged");
        }
        assert_eq!((findings.kept.len(), findings.left_out), (FINDING_LIMIT, 7));
    }

    #[test]
    fn a_long_problem_is_cut() {
        let mut findings = Findings::default();
        findings.add(Invariant::I13, "the journal", "ü".repeat(10_000));
        assert_eq!(findings.kept[0].problem.chars().count(), 501);
    }
}
