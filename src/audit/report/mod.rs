//! One HTML file that shows what happened: to be opened from disk, sent to somebody, kept.
//!
//! At its top are the numbers and pictures of the whole batch, below them a table of the units and every conversation as
//! people read it. It needs no network and no server.
//!
//! ```
//! use workcrew::audit::report::{self, Report};
//! use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
//!
//! let repository = MemoryRepository::new();
//! let job = repository.create_job(&NewJob::named("pages"))?.id;
//! repository.queue_unit(job, &NewUnit::new("page-1").prompt("Summarise it."))?;
//!
//! let mut page = Vec::new();
//! let written = report::write(&repository, &Report::new().job(job), &mut page)?;
//! assert_eq!((written.units, written.is_complete()), (1, true));
//! assert!(page.starts_with(b"<!doctype html>"));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What is in it
//!
//! | part | how |
//! |---|---|
//! | the overview | sums over everything, also over what the page has no room for (`overview`, `timeline`, `spread`) |
//! | rows | one for each unit, those that FAILED first, up to [`limit_units`](Report::limit_units) |
//! | contents | prompts, attempts, conversations, the journal of each unit, up to [`limit_bytes`](Report::limit_bytes) (`content`) |
//! | what was left out | at the end, for then it is known; the page says it above the table |
//!
//! The archive is gone through twice, in pages, and written as it is read: memory does not grow with the archive. Each page is
//! its own moment, so of a batch that is running the overview may be a little older than the rows. The bytes that providers
//! sent are not in it, nor are pictures: those are only named.
//!
//! # What others wrote
//!
//! Everything in an archive may come from somebody else. It is put into the page as data: as JSON in elements that no browser
//! executes, in which no byte can end the element (`embed`). The page's own script makes text of it, never markup. Should
//! that fail, the page's policy still allows nothing but this one script and this one style, named by their hashes
//! (`page`), and no connection to anywhere.

mod content;
mod embed;
mod overview;
mod page;
mod spread;
#[cfg(test)]
mod tests;
mod timeline;

use std::error::Error;
use std::fmt;
use std::io;

use crate::clock::{Clock, SystemClock};
use crate::job::{Job, JobId};
use crate::repository::{Archive, RepositoryError, UnitFilter};

use self::content::Contents;
use self::embed::Counted;
use self::overview::Overview;
use super::verify::sequence::Sequence;

/// How many bytes of contents a page holds unless set. A browser opens so much at once.
pub const DEFAULT_LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// How many bytes of one text a page holds unless set.
pub const DEFAULT_LIMIT_TEXT_BYTES: usize = 64 * 1024;

/// How many units the table has unless set.
pub const DEFAULT_LIMIT_UNITS: u64 = 20_000;

/// How many jobs are known by their names; those behind them by their numbers.
const JOB_LIMIT: usize = 1_000;

/// What is to be shown, and how much of it. The default is everything, up to the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Only this job.
    pub job_id: Option<JobId>,
    /// What the page is called; the name of the job if there is only one.
    pub title: Option<String>,
    /// How many bytes of contents it holds.
    pub limit_bytes: u64,
    /// How many bytes it holds of one message, prompt, payload, output or result.
    pub limit_text_bytes: usize,
    /// How many units the table has.
    pub limit_units: u64,
}

impl Default for Report {
    fn default() -> Report {
        Report::new()
    }
}

impl Report {
    /// All jobs, up to the default limits.
    pub fn new() -> Report {
        Report {
            job_id: None,
            title: None,
            limit_bytes: DEFAULT_LIMIT_BYTES,
            limit_text_bytes: DEFAULT_LIMIT_TEXT_BYTES,
            limit_units: DEFAULT_LIMIT_UNITS,
        }
    }

    /// Only this job (all).
    pub fn job(mut self, job_id: JobId) -> Report {
        self.job_id = Some(job_id);
        self
    }

    /// What the page is called (the name of the job, if there is only one).
    pub fn title(mut self, title: impl Into<String>) -> Report {
        self.title = Some(title.into());
        self
    }

    /// How many bytes of contents it holds ([64 MiB](DEFAULT_LIMIT_BYTES)). The units behind it are in the table all the
    /// same, without what was said.
    pub fn limit_bytes(mut self, limit_bytes: u64) -> Report {
        self.limit_bytes = limit_bytes;
        self
    }

    /// How many bytes it holds of one message, prompt, payload, output or result ([64 KiB](DEFAULT_LIMIT_TEXT_BYTES)). What is
    /// longer is cut, and says so.
    pub fn limit_text_bytes(mut self, limit_text_bytes: usize) -> Report {
        self.limit_text_bytes = limit_text_bytes;
        self
    }

    /// How many units the table has ([20,000](DEFAULT_LIMIT_UNITS)). The overview counts the others too.
    pub fn limit_units(mut self, limit_units: u64) -> Report {
        self.limit_units = limit_units;
        self
    }

    fn filter(&self) -> UnitFilter {
        UnitFilter { job_id: self.job_id, ..UnitFilter::default() }
    }
}

/// What a page holds, and what it had no room for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Written {
    /// How many units there are; the overview counts them all.
    pub units: u64,
    /// How many of them are in the table.
    pub rows: u64,
    /// How many of those have no contents in the page, or not all of their messages.
    pub units_without_contents: u64,
    /// How many messages are in it.
    pub messages: u64,
    /// How many messages of the units with contents were left out. Those of units without any are not counted.
    pub messages_left_out: u64,
    /// How many texts were cut.
    pub texts_cut: u64,
    /// How many records could not be read; the page says of each which it is, or how many.
    pub unreadable: u64,
    /// How many bytes the page has.
    pub bytes: u64,
}

impl Written {
    /// Whether nothing was left out or cut.
    pub fn is_complete(&self) -> bool {
        let left_out = self.units.saturating_sub(self.rows) + self.units_without_contents;
        left_out + self.messages_left_out + self.texts_cut + self.unreadable == 0
    }
}

/// Why there is no report.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReportError {
    /// The archive does not answer, or the job is not there. What is only damaged is shown as that.
    Archive(RepositoryError),
    /// The page cannot be written. What was written of it is not a whole page.
    Output(io::Error),
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReportError::Archive(_) => f.write_str("the archive could not be read for the report"),
            ReportError::Output(_) => f.write_str("the report could not be written"),
        }
    }
}

impl Error for ReportError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            ReportError::Archive(error) => Some(error),
            ReportError::Output(error) => Some(error),
        }
    }
}

impl From<RepositoryError> for ReportError {
    fn from(error: RepositoryError) -> ReportError {
        ReportError::Archive(error)
    }
}

impl From<io::Error> for ReportError {
    fn from(error: io::Error) -> ReportError {
        ReportError::Output(error)
    }
}

/// Writes the page.
///
/// It is written in many small pieces: `out` had better be buffered.
///
/// # Errors
///
/// [`ReportError`] says whether the archive or the output is to blame.
pub fn write(archive: &dyn Archive, wanted: &Report, out: &mut dyn io::Write) -> Result<Written, ReportError> {
    let jobs = jobs(archive, wanted)?;
    let mut overview = Overview::of(archive, &wanted.filter())?;

    let mut out = Counted::new(out);
    page::write_top(&mut out)?;
    let now = SystemClock.now().wall;
    out.data_block("overview", &overview.told(wanted, &jobs, now))?;
    let mut contents = Contents::new(archive, wanted, now, &mut out);
    contents.write_all()?;
    let mut written = contents.written();
    // A unit that came meanwhile is in the table, but was not there to be counted.
    written.units = overview.units().max(written.rows);
    written.unreadable += overview.unreadable();
    out.data_block("written", &written)?;
    page::write_bottom(&mut out)?;
    io::Write::flush(&mut out)?;
    written.bytes = out.bytes();
    Ok(written)
}

/// The jobs that the page is about.
fn jobs(archive: &dyn Archive, wanted: &Report) -> Result<Vec<Job>, RepositoryError> {
    if let Some(job_id) = wanted.job_id {
        return Ok(vec![archive.job(job_id)?]);
    }
    let jobs = Sequence::new(|after, limit| archive.jobs(after, limit)).take(JOB_LIMIT);
    // A job that cannot be read is known by its number.
    jobs.filter_map(|job| job.map(Result::ok).transpose()).collect()
}
