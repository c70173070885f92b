//! Units from files: lines of JSON, a table, or a folder of texts, read one by one.
//!
//! | it is | a unit is | its name |
//! |---|---|---|
//! | JSON lines (`*.jsonl`, `*.ndjson`, or standard input) | a line: `{"id": "a", "prompt": "…"}`, or with a `payload` for a template | `id` |
//! | a table (`*.csv`, with a header) | a row; what is in the columns but `id` and `prompt` is its payload | the column `id` |
//! | a folder | a file of text, also in folders below; hidden ones are none | its path below the folder |
//!
//! A [`UnitSource`] holds one unit at a time, however many there are. What cannot be read is a [`BadUnit`] that says
//! where and why, and the next one follows. [`feed`] stores what it reads, for whoever pulls the job's units.
//!
//! ```
//! use workcrew::source::{Format, UnitSource};
//!
//! let lines = "{\"id\": \"a\", \"prompt\": \"Greet Ada.\"}\n{\"id\": \"b\", \"promt\": \"oh\"}\n";
//! let mut source = UnitSource::from_reader(lines.as_bytes(), Format::JsonLines)?;
//! assert_eq!(source.next().unwrap()?.unit.prompt.as_deref(), Some("Greet Ada."));
//! let bad = source.next().unwrap().unwrap_err();
//! assert!(bad.to_string().starts_with("line 2: unknown field `promt`"), "{bad}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod feed;
mod folder;
mod json_lines;
mod rows;
mod table;

use std::error::Error;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

pub use self::feed::{Fed, FeedError, Trouble, feed};
use self::folder::Folder;
use self::json_lines::JsonLines;
use self::table::Table;
use crate::unit::{NewUnit, UnitId};

/// How long a line, a row or a file may be. Several times the longest prompt, since JSON may need several bytes for a letter.
pub const LENGTH_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// How units are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// A JSON object on each line.
    JsonLines,
    /// Comma-separated values behind a header.
    Csv,
}

impl Format {
    /// What the ending of a file's name says.
    fn of(path: &Path) -> Option<Format> {
        let ending = path.extension()?.to_str()?.to_ascii_lowercase();
        match ending.as_str() {
            "jsonl" | "ndjson" | "json" => Some(Format::JsonLines),
            "csv" => Some(Format::Csv),
            _ => None,
        }
    }
}

/// Why nothing at all can be read.
#[derive(Debug)]
#[non_exhaustive]
pub enum SourceError {
    /// The file or folder cannot be opened.
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Its name does not say how it is written.
    UnknownFormat {
        /// Which.
        path: PathBuf,
    },
    /// The header of a table names no units.
    Header {
        /// What is wrong with it.
        reason: String,
    },
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SourceError::Unreadable { path, .. } => write!(f, "units cannot be read from `{}`", path.display()),
            SourceError::UnknownFormat { path } => {
                write!(f, "`{}` is neither *.jsonl nor *.csv nor a folder, so its format must be given", path.display())
            }
            SourceError::Header { reason } => write!(f, "the first line is no header of a table of units: {reason}"),
        }
    }
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SourceError::Unreadable { source, .. } => Some(source),
            SourceError::UnknownFormat { .. } | SourceError::Header { .. } => None,
        }
    }
}

/// Where a unit comes from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// The line on which it begins, from 1.
    Line(u64),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(number) => write!(f, "line {number}"),
            Place::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A unit, and where it was read.
#[derive(Clone, Debug, PartialEq)]
pub struct Placed {
    /// Where.
    pub place: Place,
    /// The unit.
    pub unit: NewUnit,
}

/// What was to be a unit and is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadUnit {
    /// Where it is.
    pub place: Place,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for BadUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.reason)
    }
}

impl Error for BadUnit {}

/// Units, read one by one. See the [module](self) for how they are written.
pub struct UnitSource {
    kind: Kind,
    max_retries: u32,
}

enum Kind {
    JsonLines(JsonLines<Box<dyn BufRead + Send>>),
    Table(Table<Box<dyn BufRead + Send>>),
    Folder(Folder),
}

impl fmt::Debug for UnitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnitSource").finish_non_exhaustive()
    }
}

impl UnitSource {
    /// The units of a file or folder, written as its name says unless it is said otherwise.
    ///
    /// # Errors
    ///
    /// If it cannot be opened, or nothing says how it is written.
    pub fn open(path: impl AsRef<Path>, format: Option<Format>) -> Result<UnitSource, SourceError> {
        let path = path.as_ref();
        let unreadable = |source| SourceError::Unreadable { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            let folder = Folder::open(path).map_err(unreadable)?;
            return Ok(UnitSource::of(Kind::Folder(folder)));
        }
        let format = format.or_else(|| Format::of(path));
        let format = format.ok_or_else(|| SourceError::UnknownFormat { path: path.to_owned() })?;
        UnitSource::from_reader(BufReader::new(file), format)
    }

    /// The units of whatever can be read.
    ///
    /// # Errors
    ///
    /// If a table has no header, or one that names no units.
    pub fn from_reader(reader: impl BufRead + Send + 'static, format: Format) -> Result<UnitSource, SourceError> {
        let reader: Box<dyn BufRead + Send> = Box::new(reader);
        let kind = match format {
            Format::JsonLines => Kind::JsonLines(JsonLines::new(reader)),
            Format::Csv => Kind::Table(Table::new(reader)?),
        };
        Ok(UnitSource::of(kind))
    }

    fn of(kind: Kind) -> UnitSource {
        UnitSource { kind, max_retries: NewUnit::DEFAULT_MAX_RETRIES }
    }

    /// How often a unit is tried again that does not say it itself. The default is [`NewUnit::DEFAULT_MAX_RETRIES`].
    pub fn max_retries(mut self, retries: u32) -> UnitSource {
        self.max_retries = retries;
        self
    }

    /// What a file says is the payload of its unit and not its prompt: `{"path": …, "text": …}`, for a template. It concerns folders
    /// only.
    pub fn for_template(mut self) -> UnitSource {
        if let Kind::Folder(folder) = &mut self.kind {
            folder.is_for_template = true;
        }
        self
    }

    /// Files and folders that are no units. They are not opened either, so that a program can leave out what it has open itself: to close
    /// a database that was read as a text would take away the locks that SQLite has on it. It concerns folders only.
    pub fn leave_out(mut self, is_left_out: impl Fn(&Path) -> bool + Send + 'static) -> UnitSource {
        if let Kind::Folder(folder) = &mut self.kind {
            folder.left_out = Box::new(is_left_out);
        }
        self
    }
}

impl Iterator for UnitSource {
    type Item = Result<Placed, BadUnit>;

    fn next(&mut self) -> Option<Self::Item> {
        let (place, read) = match &mut self.kind {
            Kind::JsonLines(lines) => lines.next(self.max_retries)?,
            Kind::Table(table) => of_all(table.next()?, self.max_retries),
            Kind::Folder(folder) => of_all(folder.next()?, self.max_retries),
        };
        let checked = read.and_then(|unit| match UnitId::new(unit.id.as_str()) {
            Ok(_) => Ok(unit),
            Err(error) => Err(error.to_string()),
        });
        Some(match checked {
            Ok(unit) => Ok(Placed { place, unit }),
            Err(reason) => Err(BadUnit { place, reason }),
        })
    }
}

/// What the three kinds of sources give: where, and a unit or the reason why there is none.
type Read = (Place, Result<NewUnit, String>);

/// Rows and files do not say how often they are tried again.
fn of_all((place, read): Read, max_retries: u32) -> Read {
    (place, read.map(|unit| unit.max_retries(max_retries)))
}

#[cfg(test)]
mod tests;
