//! What was kept, for other programs: lines of JSON, documents in Markdown, traces for OpenTelemetry.
//!
//! ```
//! use workcrew::audit::export::{Export, Format, UnitRecord};
//! use workcrew::repository::UnitFilter;
//! # use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
//! # let repository = MemoryRepository::new();
//! # let job = repository.create_job(&NewJob::named("pages"))?;
//! # repository.queue_unit(job.id, &NewUnit::new("page-1").prompt("Summarise it."))?;
//!
//! let mut lines = Vec::new();
//! Export::new(&repository).units(UnitFilter::job(job.id)).write(Format::Jsonl, &mut lines)?;
//! let record = UnitRecord::read(std::str::from_utf8(&lines)?.trim_end())?;
//! assert_eq!((record.id.as_str(), record.prompt.as_deref()), ("page-1", Some("Summarise it.")));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Everything goes out as it is read, in the order of insertion: of a conversation one page is in memory, of a unit its own record. Each
//! read is a moment of its own, so of a unit that is being executed the parts may be of different moments.

mod markdown;
mod otel;
mod record;

use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

pub use self::otel::CONVENTIONS;
pub use self::record::{AmountRecord, AttemptRecord, ChargeRecord, CostRecord, FORMAT, MessageRecord, UnitRecord};
use super::draft::Draft;
use crate::attempt::AttemptKey;
use crate::conversation::StoredMessage;
use crate::job::{Job, JobId};
use crate::repository::{Archive, PAGE_LIMIT, RepositoryError, UnitFilter};
use crate::unit::{UnitId, UnitKey, WorkUnit};

/// How it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A line of JSON for each unit, with everything: see [`UnitRecord`].
    Jsonl,
    /// A document for each unit, to be read by people.
    Markdown,
    /// A line of OTLP in JSON for each unit, which is a trace, by version [`CONVENTIONS`] of OpenTelemetry's conventions. A collector
    /// reads such a file as it is.
    OpenTelemetry,
}

impl Format {
    /// How the names of its files end.
    pub const fn extension(self) -> &'static str {
        match self {
            Format::Jsonl => "json",
            Format::Markdown => "md",
            Format::OpenTelemetry => "otlp.json",
        }
    }
}

/// Why an export ended early.
#[derive(Debug)]
#[non_exhaustive]
pub enum ExportError {
    /// It could not be read.
    Read(RepositoryError),
    /// It could not be written.
    Write(io::Error),
    /// A file could not be written.
    File {
        /// The file, or the folder.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExportError::Read(_) => f.write_str("what is to be exported cannot be read"),
            ExportError::Write(_) => f.write_str("the export cannot be written"),
            ExportError::File { path, .. } => write!(f, "`{}` cannot be written", path.display()),
        }
    }
}

impl std::error::Error for ExportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            ExportError::Read(error) => Some(error),
            ExportError::Write(source) | ExportError::File { source, .. } => Some(source),
        }
    }
}

impl From<RepositoryError> for ExportError {
    fn from(error: RepositoryError) -> ExportError {
        ExportError::Read(error)
    }
}

impl From<io::Error> for ExportError {
    fn from(error: io::Error) -> ExportError {
        ExportError::Write(error)
    }
}

/// What is exported.
#[derive(Debug)]
pub struct Export<'a> {
    archive: &'a dyn Archive,
    filter: UnitFilter,
    is_with_raw: bool,
}

impl<'a> Export<'a> {
    /// All units of an archive.
    pub fn new(archive: &'a dyn Archive) -> Export<'a> {
        Export { archive, filter: UnitFilter::default(), is_with_raw: false }
    }

    /// Only these units (all).
    pub fn units(mut self, filter: UnitFilter) -> Export<'a> {
        self.filter = filter;
        self
    }

    /// Also what the providers sent, byte for byte, in lines of JSON (no).
    pub fn with_raw(mut self) -> Export<'a> {
        self.is_with_raw = true;
        self
    }

    /// Writes all units one after the other, and says how many.
    ///
    /// # Errors
    ///
    /// What cannot be read or written ends it; what was written until then stays.
    pub fn write(&self, format: Format, out: &mut dyn Write) -> Result<u64, ExportError> {
        let mut is_first = true;
        let count = self.each_unit(|job, unit| {
            if format == Format::Markdown && !is_first {
                out.write_all(b"\n---\n\n")?;
            }
            is_first = false;
            self.write_one(format, job, unit, out)
        })?;
        out.flush()?;
        Ok(count)
    }

    /// Writes one unit, whatever the filter says.
    ///
    /// # Errors
    ///
    /// As above; [`UnknownUnit`](RepositoryError::UnknownUnit) if there is none.
    pub fn write_unit(&self, format: Format, job_id: JobId, id: &str, out: &mut dyn Write) -> Result<(), ExportError> {
        let unit = self.archive.unit(job_id, id)?;
        self.write_one(format, &self.archive.job(job_id)?, &unit, out)?;
        Ok(out.flush()?)
    }

    /// Writes each unit into a file of its own, and says how many. The folder is made if need be; files of earlier exports are
    /// replaced.
    ///
    /// A file is named by the unit's number and as much of its name as is safe anywhere: see [`file_name`]. It appears when it is whole, and is
    /// for its owner only, as the database is, unless it was there and had other rights.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn write_folder(&self, format: Format, folder: impl AsRef<Path>) -> Result<u64, ExportError> {
        let folder = folder.as_ref();
        let failed = |path: &Path, source| ExportError::File { path: path.to_owned(), source };
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700).create(folder).map_err(|error| failed(folder, error))?;
        self.each_unit(|job, unit| {
            let path = folder.join(file_name(unit.key, &unit.id, format));
            let mut draft = Draft::at(&path).map_err(|error| failed(&path, error))?;
            let written = self.write_one(format, job, unit, &mut draft);
            written.and_then(|()| Ok(draft.finish()?)).map_err(|error| match error {
                ExportError::Write(source) => failed(&path, source),
                other => other,
            })
        })
    }

    fn write_one(&self, format: Format, job: &Job, unit: &WorkUnit, out: &mut dyn Write) -> Result<(), ExportError> {
        match format {
            Format::Jsonl => self.write_record(job, unit, out),
            Format::Markdown => self.write_markdown(job, unit, out),
            Format::OpenTelemetry => self.write_trace(job, unit, out),
        }
    }

    fn each_unit(
        &self,
        mut export: impl FnMut(&Job, &WorkUnit) -> Result<(), ExportError>,
    ) -> Result<u64, ExportError> {
        let (mut count, mut next, mut known) = (0, Some(0), None::<Job>);
        while let Some(after) = next {
            let page = self.archive.units(&self.filter, after, PAGE_LIMIT)?;
            for unit in &page.items {
                let job = match known.take().filter(|job| job.id == unit.job_id) {
                    Some(job) => job,
                    None => self.archive.job(unit.job_id)?,
                };
                export(&job, unit)?;
                known = Some(job);
                count += 1;
            }
            // An archive that does not get on must not keep its caller for ever.
            next = page.next.filter(|&next| next > after);
        }
        Ok(count)
    }
}

/// How much of a unit's name a file name has.
const FILE_NAME_CHARS: usize = 80;

/// The name of the file of a unit: its number, which no other has, and behind it what of its name is safe on any file system.
///
/// ```
/// use workcrew::audit::export::{Format, file_name};
/// use workcrew::{UnitId, UnitKey};
///
/// let name = |id| file_name(UnitKey(17), &UnitId::new(id).unwrap(), Format::Markdown);
/// assert_eq!(name("page-3"), "00000017-page-3.md");
/// assert_eq!(name("../../etc/passwd"), "00000017-.._.._etc_passwd.md");
/// ```
pub fn file_name(key: UnitKey, id: &UnitId, format: Format) -> String {
    let is_safe = |char: char| char.is_ascii_alphanumeric() || matches!(char, '-' | '_' | '.');
    let safe = |char| if is_safe(char) { char } else { '_' };
    let name: String = id.as_str().chars().take(FILE_NAME_CHARS).map(safe).collect();
    format!("{:08}-{name}.{}", key.0, format.extension())
}

/// What stands before each of several things.
fn commas() -> impl Iterator<Item = &'static str> {
    std::iter::once("").chain(std::iter::repeat(","))
}

fn unreadable(attempt: AttemptKey, number: u32, error: serde_json::Error) -> ExportError {
    let what = format!("message {number} of attempt {} of unit key {}", attempt.number, attempt.unit.0);
    ExportError::Read(RepositoryError::corrupt(what, number.into(), error))
}

/// Goes through a conversation page by page.
fn each_message(
    archive: &dyn Archive,
    attempt: AttemptKey,
    mut see: impl FnMut(&StoredMessage) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    let mut next = Some(0);
    while let Some(after) = next {
        let page = archive.messages(attempt, after, PAGE_LIMIT)?;
        page.items.iter().try_for_each(&mut see)?;
        next = page.next.and_then(|next| u32::try_from(next).ok()).filter(|&next| next > after);
    }
    Ok(())
}
