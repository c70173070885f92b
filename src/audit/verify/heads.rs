//! Heads: what is kept elsewhere, so that also a database that was rewritten as a whole is found out.
//!
//! A chain shows what was altered in part. Whoever can write the file can compute the whole chain anew; but not one that still leads
//! through links that somebody has written down before. [`Heads::of`] writes them down: the journal's last link, some on
//! the way to it, and the jobs; [`Heads::with_conversations`] also the last link of every attempt that has ended. Kept where whoever
//! can write the database cannot, they show later with [`compare`] that nothing of what was there then is gone or another.
//!
//! ```
//! use workcrew::audit::verify::{Heads, compare};
//! use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
//!
//! let repository = MemoryRepository::new();
//! let job = repository.create_job(&NewJob::named("pages"))?;
//! repository.queue_unit(job.id, &NewUnit::new("page-1"))?;
//! let kept: String = Heads::of(&repository)?.to_string();
//!
//! repository.queue_unit(job.id, &NewUnit::new("page-2"))?;
//! let heads = Heads::read(&kept)?;
//! assert!(compare(&repository, &heads)?.is_clean(), "it has only grown");
//!
//! let other = MemoryRepository::new();
//! let found = compare(&other, &heads)?;
//! assert_eq!(found.findings[0].to_string(), "I13 the journal: is empty, but had 1 row then");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What they cannot show
//!
//! - What was wrong before they were made. [Verify](super::verify()) first.
//! - What has been added since: of that only the chain tells, until the next heads are made.
//! - [`compare`] reads the rows that it knows and no others. That those in between lead from one to the next is for
//!   [`verify`](super::verify()), or for both at once [`Verify::heads`](super::Verify::heads).
//! - The digest of the file is against accidents. Whoever can write it can compute that too: keep it elsewhere, or sign it.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::finding::{Findings, Invariant};
use super::{Verification, sequence};
use crate::attempt::AttemptKey;
use crate::audit::tail;
use crate::chain::Hash;
use crate::clock::{Clock, SystemClock};
use crate::conversation::to_json;
use crate::job::{Job, JobId};
use crate::money::Money;
use crate::repository::{Archive, JournalEntry, PAGE_LIMIT, RepositoryError, Result, UnitFilter};
use crate::unit::UnitKey;

/// The version of the format.
const VERSION: u32 = 1;

/// What the last line begins with.
const DIGEST: &str = "blake3 ";

/// What an archive led to at a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Heads {
    /// The version of this format.
    pub version: u32,
    /// The version of workcrew that made it.
    pub workcrew: String,
    /// When it was made.
    pub made_at: DateTime<Utc>,
    /// Rows of the journal, in order: the first, each whose number is a power of two, and the last. Together they tell where it was
    /// rewritten.
    pub journal: Vec<JournalHead>,
    /// The jobs, in the order of creation.
    pub jobs: Vec<JobHead>,
    /// The attempts that had ended, in order; `None` if they were not asked for.
    pub attempts: Option<Vec<AttemptHead>>,
}

/// A row of the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JournalHead {
    /// Its number.
    pub seq: i64,
    /// The link of the chain up to and including it.
    pub link: Hash,
    /// When it was written.
    pub at: DateTime<Utc>,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobHead {
    /// Its number.
    pub id: JobId,
    /// The hash of all that it is.
    pub hash: Hash,
}

/// An attempt that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AttemptHead {
    /// Its unit.
    pub unit: UnitKey,
    /// Its number.
    pub attempt: u32,
    /// How many messages it has.
    pub messages: u32,
    /// The last link of its conversation.
    pub link: Hash,
}

impl Heads {
    /// What an archive leads to now. It reads a few rows, however long the journal is.
    ///
    /// # Errors
    ///
    /// If the storage does not answer, or what is to be kept cannot be read.
    pub fn of(archive: &dyn Archive) -> Result<Heads> {
        let last = tail::last_seq(archive)?;
        let mut journal = Vec::new();
        for seq in waypoints(last) {
            let row = tail::row(archive, seq)?;
            let missing = || RepositoryError::corrupt(format!("journal row {seq}"), seq, "it is missing");
            journal.push(JournalHead::of(&row.ok_or_else(missing)?));
        }
        Ok(Heads {
            version: VERSION,
            workcrew: env!("CARGO_PKG_VERSION").to_owned(),
            made_at: SystemClock.now().wall,
            journal,
            jobs: all(|after| archive.jobs(after, PAGE_LIMIT))?.iter().map(JobHead::of).collect::<Result<_>>()?,
            attempts: None,
        })
    }

    /// The same with the last link of every conversation that has ended. It reads all units.
    ///
    /// # Errors
    ///
    /// If the storage does not answer, or what is to be kept cannot be read.
    pub fn with_conversations(archive: &dyn Archive) -> Result<Heads> {
        let (mut heads, mut attempts, mut next) = (Heads::of(archive)?, Vec::new(), Some(0));
        while let Some(after) = next {
            let page = archive.units(&UnitFilter::default(), after, PAGE_LIMIT)?;
            for unit in page.items {
                for attempt in archive.attempts(unit.key)? {
                    attempts.extend(AttemptHead::of(attempt.key, attempt.message_count, attempt.head));
                }
            }
            next = page.next.filter(|&next| next > after);
        }
        heads.attempts = Some(attempts);
        Ok(heads)
    }

    /// Reads what [`to_string`](ToString::to_string) has written.
    ///
    /// # Errors
    ///
    /// [`HeadsError`] says why they are not to be relied on. Every altered byte is noticed.
    pub fn read(bytes: impl AsRef<[u8]>) -> std::result::Result<Heads, HeadsError> {
        let text = std::str::from_utf8(bytes.as_ref()).map_err(|_| HeadsError::NotHeads)?;
        let (body, digest) =
            text.strip_suffix('\n').and_then(|text| text.rsplit_once('\n')).ok_or(HeadsError::NotHeads)?;
        let digest = digest.strip_prefix(DIGEST).ok_or(HeadsError::NotHeads)?;
        // As text: a digest in other letters is not what was written.
        if Hash::of(body.as_bytes()).to_string() != digest {
            return Err(HeadsError::Altered);
        }
        let Version { version } = serde_json::from_str(body).map_err(HeadsError::Unreadable)?;
        if version != VERSION {
            return Err(HeadsError::Newer { found: version, supported: VERSION });
        }
        serde_json::from_str(body).map_err(HeadsError::Unreadable)
    }

    /// The journal's last row, if it had any.
    pub fn journal_head(&self) -> Option<&JournalHead> {
        self.journal.last()
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl fmt::Display for Heads {
    /// As it is to be kept: JSON for people, and a last line with its hash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = serde_json::to_string_pretty(self).map_err(|_| fmt::Error)?;
        write!(f, "{body}\n{DIGEST}{}\n", Hash::of(body.as_bytes()))
    }
}

/// Why heads are not to be relied on.
#[derive(Debug)]
#[non_exhaustive]
pub enum HeadsError {
    /// They are something else.
    NotHeads,
    /// They are not what was written: their hash differs.
    Altered,
    /// They were written by a later version.
    Newer {
        /// The version of their format.
        found: u32,
        /// The version that this build knows.
        supported: u32,
    },
    /// They cannot be understood.
    Unreadable(serde_json::Error),
}

impl fmt::Display for HeadsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HeadsError::NotHeads => write!(f, "these are no heads of workcrew, or they are cut off"),
            HeadsError::Altered => write!(f, "these heads were altered: their hash is not that of their last line"),
            HeadsError::Newer { found, supported } => {
                write!(f, "these heads have version {found}, this build knows {supported}: use a newer workcrew")
            }
            HeadsError::Unreadable(_) => write!(f, "these heads cannot be understood"),
        }
    }
}

impl std::error::Error for HeadsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            HeadsError::Unreadable(error) => Some(error),
            _ => None,
        }
    }
}

impl JournalHead {
    fn of(row: &JournalEntry) -> JournalHead {
        JournalHead { seq: row.seq, link: row.link, at: row.at }
    }
}

impl JobHead {
    fn of(job: &Job) -> Result<JobHead> {
        let Job { id, name, template, budget, settings, created_at } = job;
        let hash = Hash::builder("workcrew job")
            .number(id.0)
            .text(name)
            .optional_text(template.as_deref())
            .optional_number(budget.map(Money::nanos))
            .bytes(&to_json(settings)?)
            .number(created_at.timestamp_millis())
            .finish();
        Ok(JobHead { id: *id, hash })
    }
}

impl AttemptHead {
    fn of(key: AttemptKey, messages: Option<u32>, head: Option<Hash>) -> Option<AttemptHead> {
        let AttemptKey { unit, number } = key;
        Some(AttemptHead { unit, attempt: number, messages: messages?, link: head? })
    }
}

/// The rows of a journal that are written down, in order.
fn waypoints(last: i64) -> Vec<i64> {
    let powers = std::iter::successors(Some(1_i64), |seq| seq.checked_mul(2)).take_while(|seq| *seq < last);
    powers.chain((last > 0).then_some(last)).collect()
}

/// All of what comes in pages.
fn all<T>(mut read: impl FnMut(i64) -> Result<crate::repository::Page<T>>) -> Result<Vec<T>> {
    let (mut items, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = read(after)?;
        items.extend(page.items);
        next = page.next.filter(|&next| next > after);
    }
    Ok(items)
}

/// Whether an archive still leads to what it led to then, and through it: one that has grown, or was purged, does.
///
/// What does not hold is found in this order: the journal, where of all that follows a first difference only that one is named;
/// the jobs; the conversations.
///
/// # Errors
///
/// Only if the storage does not answer; what is wrong with its contents is a [`Finding`](super::Finding).
pub fn compare(archive: &dyn Archive, heads: &Heads) -> Result<Verification> {
    let mut comparison = Comparison { archive, findings: Findings::default(), attempts: 0 };
    let last = comparison.journal(heads)?;
    comparison.jobs(heads)?;
    comparison.attempts(heads)?;
    let journal_head = comparison.readable("the journal", tail::row(archive, last))?.flatten().map(|row| row.link);
    Ok(Verification {
        journal_rows: last.cast_unsigned(),
        journal_head,
        jobs: heads.jobs.len() as u64,
        attempts: comparison.attempts,
        ..Verification::of(comparison.findings)
    })
}

/// A comparison under way.
struct Comparison<'a> {
    archive: &'a dyn Archive,
    findings: Findings,
    attempts: u64,
}

const JOURNAL: &str = "the journal";

impl Comparison<'_> {
    /// Tells how many rows there are.
    fn journal(&mut self, heads: &Heads) -> Result<i64> {
        let Some(last) = self.readable(JOURNAL, tail::last_seq(self.archive))? else { return Ok(0) };
        let mut known = 0;
        for head in &heads.journal {
            let JournalHead { seq, link, .. } = head;
            let Some(row) = self.readable(JOURNAL, tail::row(self.archive, *seq))? else { continue };
            let problem = match row {
                Some(row) if row.link == *link => {
                    known = *seq;
                    continue;
                }
                None => gone(heads, last),
                Some(_) if known == 0 => {
                    "is another from its first row on: it was rewritten, or this is another database".to_owned()
                }
                Some(_) => format!("is another than then: it was rewritten between row {known} and row {seq}"),
            };
            self.findings.add(Invariant::I13, JOURNAL, problem);
            // All that follows differs too.
            break;
        }
        Ok(last)
    }

    fn jobs(&mut self, heads: &Heads) -> Result<()> {
        for head in &heads.jobs {
            let subject = head.id.to_string();
            match self.archive.job(head.id) {
                Ok(job) if JobHead::of(&job)?.hash == head.hash => {}
                Ok(_) => self.findings.add(Invariant::I13, &subject, "is another than then"),
                Err(RepositoryError::UnknownJob(_)) => self.findings.add(Invariant::I13, &subject, "is gone"),
                Err(error) => drop(self.readable::<Job>(&subject, Err(error))?),
            }
        }
        Ok(())
    }

    fn attempts(&mut self, heads: &Heads) -> Result<()> {
        for of_unit in heads.attempts.as_deref().unwrap_or_default().chunk_by(|one, next| one.unit == next.unit) {
            let unit = of_unit[0].unit;
            let found = self.archive.attempts(unit);
            let Some(found) = self.readable(&format!("unit key {}", unit.0), found)? else { continue };
            for head in of_unit {
                self.attempts += 1;
                let subject = format!("attempt {} of unit key {}", head.attempt, unit.0);
                let attempt = found.iter().find(|attempt| attempt.key.number == head.attempt);
                match attempt.map(|attempt| AttemptHead::of(attempt.key, attempt.message_count, attempt.head)) {
                    Some(Some(now)) if now == *head => {}
                    Some(Some(now)) if now.messages != head.messages => {
                        let problem = format!("has {} messages, but had {} then", now.messages, head.messages);
                        self.findings.add(Invariant::I9, &subject, problem);
                    }
                    Some(Some(_)) => {
                        self.findings.add(Invariant::I9, &subject, "its conversation is another than then");
                    }
                    Some(None) => self.findings.add(Invariant::I8, &subject, "had ended then, but is open"),
                    None => self.findings.add(Invariant::I8, &subject, "is gone"),
                }
            }
        }
        Ok(())
    }

    /// What was read; `None` with a finding if it is damaged or missing.
    fn readable<T>(&mut self, subject: &str, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) if matches!(error, RepositoryError::Corrupt { .. }) || error.is_rejection() => {
                self.findings.add(Invariant::I13, subject, sequence::explain(&error));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// A row that was there is not.
fn gone(heads: &Heads, last: i64) -> String {
    let then = heads.journal_head().map_or(0, |head| head.seq);
    let rows = if then == 1 { "row" } else { "rows" };
    match last {
        0 => format!("is empty, but had {then} {rows} then"),
        _ => format!("ends at row {last}, but had {then} {rows} then"),
    }
}
