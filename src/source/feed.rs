//! From a source into a repository, in groups: a transaction for each unit would take far longer, one for all would keep everybody waiting.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::{BadUnit, Place, Placed};
use crate::job::JobId;
use crate::repository::{Insertion, Repository, RepositoryError};
use crate::unit::NewUnit;

/// How many units are stored together, at most.
const GROUP_UNITS: usize = 500;

/// After how many bytes of prompts and payloads a group is full.
const GROUP_BYTES: usize = 4 * 1024 * 1024;

/// How long it waits before it tries again to store something on a full disk.
const PAUSE_WHILE_FULL: Duration = Duration::from_millis(100);

/// What became of the units of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Fed {
    /// Units that are new.
    pub added: u64,
    /// Units that were there already.
    pub known: u64,
    /// Units that were there already with another content, and stay as they are.
    pub conflicts: u64,
    /// What could not be read as a unit.
    pub bad: u64,
}

impl Fed {
    /// All that was looked at.
    pub fn total(&self) -> u64 {
        self.added + self.known + self.conflicts + self.bad
    }
}

/// What is told while units are fed, one by one and as it happens.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Trouble<'a> {
    /// This is no unit.
    Bad(&'a BadUnit),
    /// A unit of this name is there with another content, and stays as it is.
    Conflict {
        /// Where it was read.
        place: &'a Place,
        /// Its name.
        id: &'a str,
    },
    /// The disk is full. Whoever goes on waits for room: what was read is kept, and tried again.
    DiskFull,
}

impl fmt::Display for Trouble<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Bad(bad) => bad.fmt(f),
            Trouble::Conflict { place, id } => {
                write!(f, "{place}: there is a unit `{id}` with another content, which stays as it is")
            }
            Trouble::DiskFull => f.write_str("the disk is full"),
        }
    }
}

/// Why no more was fed.
#[derive(Debug)]
#[non_exhaustive]
pub enum FeedError {
    /// Whoever was told of trouble, or of how far it has come, did not want to go on. What was stored until then stays.
    Ended(Fed),
    /// The storage failed. What was stored until then stays, and the same source again adds only the rest.
    Repository(RepositoryError),
}

impl fmt::Display for FeedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FeedError::Ended(fed) => write!(f, "no more units were wanted after {}", fed.total()),
            FeedError::Repository(_) => f.write_str("units could not be stored"),
        }
    }
}

impl Error for FeedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FeedError::Ended(_) => None,
            FeedError::Repository(error) => Some(error),
        }
    }
}

/// Stores the units of a source, such as a [`UnitSource`](super::UnitSource), as PENDING, for whoever pulls the job's units.
///
/// `tell` hears of trouble as it comes, and of `None` after each group that was stored; it says whether to go on.
///
/// ```
/// use workcrew::source::{Format, UnitSource, feed};
/// use workcrew::{Archive, MemoryRepository, NewJob, Repository};
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("greetings"))?.id;
/// let lines = "{\"id\": \"a\", \"prompt\": \"Greet Ada.\"}\n{\"id\": \"a\", \"prompt\": \"Greet Bob.\"}\nnonsense\n";
/// let mut troubles = Vec::new();
/// let fed = feed(
///     &repository,
///     job,
///     UnitSource::from_reader(lines.as_bytes(), Format::JsonLines)?.max_retries(0),
///     |_, trouble| {
///         troubles.extend(trouble.map(|trouble| trouble.to_string()));
///         true
///     },
/// )?;
/// assert_eq!((fed.added, fed.conflicts, fed.bad), (1, 1, 1));
/// assert!(troubles.iter().any(|trouble| trouble.starts_with("line 2: there is a unit `a`")));
/// assert_eq!(repository.unit(job, "a")?.max_retries, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// If the storage fails, or `tell` says so.
pub fn feed(
    repository: &dyn Repository,
    job_id: JobId,
    source: impl IntoIterator<Item = Result<Placed, BadUnit>>,
    mut tell: impl FnMut(&Fed, Option<Trouble<'_>>) -> bool,
) -> Result<Fed, FeedError> {
    let mut feeder = Feeder { repository, job_id, fed: Fed::default(), group: Vec::new(), bytes: 0, tell: &mut tell };
    for read in source {
        match read {
            Ok(placed) => feeder.add(placed)?,
            Err(bad) => {
                feeder.fed.bad += 1;
                feeder.tell(Some(Trouble::Bad(&bad)))?;
            }
        }
    }
    feeder.store()?;
    Ok(feeder.fed)
}

struct Feeder<'a> {
    repository: &'a dyn Repository,
    job_id: JobId,
    fed: Fed,
    group: Vec<Placed>,
    bytes: usize,
    tell: &'a mut dyn FnMut(&Fed, Option<Trouble<'_>>) -> bool,
}

impl Feeder<'_> {
    fn add(&mut self, placed: Placed) -> Result<(), FeedError> {
        self.bytes += len_bytes(&placed.unit);
        self.group.push(placed);
        if self.group.len() >= GROUP_UNITS || self.bytes >= GROUP_BYTES { self.store() } else { Ok(()) }
    }

    /// Stores the group, and tells of those that were not.
    fn store(&mut self) -> Result<(), FeedError> {
        self.bytes = 0;
        let group = std::mem::take(&mut self.group);
        if group.is_empty() {
            return Ok(());
        }
        let units: Vec<NewUnit> = group.iter().map(|placed| placed.unit.clone()).collect();
        match self.queue(&units)? {
            Ok(answers) => {
                for (placed, answer) in group.iter().zip(answers) {
                    self.count(placed, answer)?;
                }
            }
            // One that is none refuses all of them.
            Err(RepositoryError::Invalid(_)) => group.into_iter().try_for_each(|placed| self.store_alone(placed))?,
            Err(error) => return Err(FeedError::Repository(error)),
        }
        self.tell(None)
    }

    /// Stores units all together, as soon as there is room for them.
    fn queue(&mut self, units: &[NewUnit]) -> Result<Result<Vec<Insertion>, RepositoryError>, FeedError> {
        loop {
            match self.repository.queue_units(self.job_id, units) {
                Err(RepositoryError::StorageFull) => self.tell(Some(Trouble::DiskFull))?,
                answer => return Ok(answer),
            }
            std::thread::sleep(PAUSE_WHILE_FULL);
        }
    }

    fn store_alone(&mut self, placed: Placed) -> Result<(), FeedError> {
        match self.queue(std::slice::from_ref(&placed.unit))? {
            Ok(answers) => answers.into_iter().try_for_each(|answer| self.count(&placed, answer)),
            Err(error @ RepositoryError::Invalid(_)) => {
                self.fed.bad += 1;
                let bad = BadUnit { place: placed.place, reason: error.to_string() };
                self.tell(Some(Trouble::Bad(&bad)))
            }
            Err(error) => Err(FeedError::Repository(error)),
        }
    }

    fn count(&mut self, placed: &Placed, answer: Insertion) -> Result<(), FeedError> {
        match answer {
            Insertion::Inserted(_) => self.fed.added += 1,
            Insertion::AlreadyExists(_) => self.fed.known += 1,
            Insertion::Conflict(_) => {
                self.fed.conflicts += 1;
                let (place, id) = (&placed.place, placed.unit.id.as_str());
                self.tell(Some(Trouble::Conflict { place, id }))?;
            }
        }
        Ok(())
    }

    fn tell(&mut self, trouble: Option<Trouble<'_>>) -> Result<(), FeedError> {
        if (self.tell)(&self.fed, trouble) { Ok(()) } else { Err(FeedError::Ended(self.fed)) }
    }
}

/// About how many bytes a unit holds.
fn len_bytes(unit: &NewUnit) -> usize {
    let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
    text(&unit.prompt) + text(&unit.template) + if unit.payload.is_null() { 0 } else { unit.payload.to_string().len() }
}
