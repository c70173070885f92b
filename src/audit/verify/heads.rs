//! Heads: what is kept elsewhere, so that also a database that was rewritten as a whole is found out.
//!
//! A chain shows what was altered in part. Whoever can write the file can compute the whole chain anew; but not one that still leads
//! through links that somebody has written down before. [`Heads::of`] writes them down: the last link of the journal and of the journal of
//! jobs, some on the way to them, and the jobs; [`Heads::with_conversations`] also the last link of every attempt that has ended. Kept where whoever
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

use std::collections::HashSet;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::finding::{Findings, Invariant};
use super::{Verification, sequence};
use crate::attempt::AttemptKey;
use crate::audit::questions::{all_job_changes, all_jobs};
use crate::audit::tail;
use crate::chain::Hash;
use crate::clock::{Clock, SystemClock};
use crate::job::{Job, JobId};
use crate::repository::{Archive, JobEntry, JournalEntry, PAGE_LIMIT, Page, RepositoryError, Result, UnitFilter};
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
    /// Rows of the journal of jobs, chosen alike. Heads that were made before there was one have none.
    #[serde(default)]
    pub job_journal: Vec<JournalHead>,
    /// The jobs, in the order of creation.
    pub jobs: Vec<JobHead>,
    /// The attempts that had ended, in order; `None` if they were not asked for.
    pub attempts: Option<Vec<AttemptHead>>,
}

/// A row of a journal.
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
        Ok(Heads {
            version: VERSION,
            workcrew: env!("CARGO_PKG_VERSION").to_owned(),
            made_at: SystemClock.now().wall,
            journal: Chain::of_units(archive).waypoints()?,
            job_journal: Chain::of_jobs(archive).waypoints()?,
            jobs: all_jobs(archive)?.iter().map(JobHead::of).collect(),
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

impl JobHead {
    fn of(job: &Job) -> JobHead {
        JobHead { id: job.id, hash: job.digest() }
    }
}

impl AttemptHead {
    fn of(key: AttemptKey, messages: Option<u32>, head: Option<Hash>) -> Option<AttemptHead> {
        let AttemptKey { unit, number } = key;
        Some(AttemptHead { unit, attempt: number, messages: messages?, link: head? })
    }
}

/// A journal as heads know it: by its links.
struct Chain<'a> {
    subject: &'static str,
    read: Box<dyn Fn(i64, usize) -> Result<Page<JournalHead>> + 'a>,
}

impl<'a> Chain<'a> {
    fn of_units(archive: &'a dyn Archive) -> Chain<'a> {
        let read = |after, limit| {
            let page = archive.journal(after, limit)?;
            let head = |row: JournalEntry| JournalHead { seq: row.seq, link: row.link, at: row.at };
            Ok(Page { items: page.items.into_iter().map(head).collect(), next: page.next })
        };
        Chain { subject: "the journal", read: Box::new(read) }
    }

    fn of_jobs(archive: &'a dyn Archive) -> Chain<'a> {
        let read = |after, limit| {
            let page = archive.job_journal(after, limit)?;
            let head = |row: JobEntry| JournalHead { seq: row.seq, link: row.link, at: row.at };
            Ok(Page { items: page.items.into_iter().map(head).collect(), next: page.next })
        };
        Chain { subject: "the journal of jobs", read: Box::new(read) }
    }

    fn last_seq(&self) -> Result<i64> {
        tail::last_seq(&self.read)
    }

    /// One row, if it is there.
    fn row(&self, seq: i64) -> Result<Option<JournalHead>> {
        Ok((self.read)(seq.saturating_sub(1), 1)?.items.into_iter().find(|row| row.seq == seq))
    }

    /// The rows that are written down, in order.
    fn waypoints(&self) -> Result<Vec<JournalHead>> {
        let last = self.last_seq()?;
        let powers = std::iter::successors(Some(1_i64), |seq| seq.checked_mul(2)).take_while(|seq| *seq < last);
        let missing = |seq| RepositoryError::corrupt(format!("row {seq} of {}", self.subject), seq, "it is missing");
        let waypoints = powers.chain((last > 0).then_some(last));
        waypoints.map(|seq| self.row(seq)?.ok_or_else(|| missing(seq))).collect()
    }
}

/// Whether an archive still leads to what it led to then, and through it: one that has grown, or was purged, does.
///
/// What does not hold is found in this order: the journal, then that of jobs, where of all that follows a first difference only that one is
/// named; the jobs; the conversations.
///
/// # Errors
///
/// Only if the storage does not answer; what is wrong with its contents is a [`Finding`](super::Finding).
pub fn compare(archive: &dyn Archive, heads: &Heads) -> Result<Verification> {
    let mut comparison = Comparison { archive, findings: Findings::default(), attempts: 0 };
    let (journal_rows, journal_head) = comparison.chain(&Chain::of_units(archive), &heads.journal)?;
    let (job_journal_rows, job_journal_head) = comparison.chain(&Chain::of_jobs(archive), &heads.job_journal)?;
    comparison.jobs(heads)?;
    comparison.attempts(heads)?;
    Ok(Verification {
        journal_rows,
        journal_head,
        job_journal_rows,
        job_journal_head,
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

impl Comparison<'_> {
    /// Tells how many rows there are, and the last link.
    fn chain(&mut self, chain: &Chain<'_>, heads: &[JournalHead]) -> Result<(u64, Option<Hash>)> {
        let subject = chain.subject;
        let Some(last) = self.readable(subject, chain.last_seq())? else { return Ok((0, None)) };
        let mut known = 0;
        for JournalHead { seq, link, .. } in heads {
            let Some(row) = self.readable(subject, chain.row(*seq))? else { continue };
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
            self.findings.add(Invariant::I13, subject, problem);
            // All that follows differs too.
            break;
        }
        let head = self.readable(subject, chain.row(last))?.flatten();
        Ok((last.cast_unsigned(), head.map(|row| row.link)))
    }

    /// A job may have been changed since, as the journal of jobs tells.
    fn jobs(&mut self, heads: &Heads) -> Result<()> {
        let recorded = all_job_changes(self.archive);
        let Some(recorded) = self.readable("the journal of jobs", recorded)? else { return Ok(()) };
        let recorded: HashSet<(JobId, Hash)> = recorded.iter().map(|row| (row.job_id, row.digest)).collect();
        for head in &heads.jobs {
            let subject = head.id.to_string();
            match self.archive.job(head.id) {
                Ok(job) if job.digest() == head.hash => {}
                Ok(job) if [head.hash, job.digest()].iter().all(|hash| recorded.contains(&(head.id, *hash))) => {}
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
fn gone(heads: &[JournalHead], last: i64) -> String {
    let then = heads.last().map_or(0, |head| head.seq);
    let rows = if then == 1 { "row" } else { "rows" };
    match last {
        0 => format!("is empty, but had {then} {rows} then"),
        _ => format!("ends at row {last}, but had {then} {rows} then"),
    }
}
