//! What whoever looks after a running batch asks first: what runs, what waits, and what nobody looks after any more.
//!
//! They can be asked of any [`Archive`]: of the repository that a pool works with, and of a `SqliteArchive` in another
//! process, beside it. Nothing is changed by asking. In plain SQL they are the views `active_units`, `queued_units` and
//! `stale_leases`, of which `schema.sql` says what they cannot see.
//!
//! ```
//! use std::time::Duration;
//! use workcrew::audit::questions;
//! use workcrew::clock::{Clock, ManualClock};
//! use workcrew::repository::{ClaimRequest, Claimant, Intake, Scope, Slot, Staleness};
//! use workcrew::{MemoryRepository, NewJob, NewOwner, NewUnit, Process, Repository, WorkerId};
//!
//! let clock = ManualClock::new();
//! let repository = MemoryRepository::with_clock(clock.clone());
//! let job = repository.create_job(&NewJob::named("pages"))?;
//! let units = ["page-1", "page-2"].map(|id| NewUnit::new(id).prompt("Summarise it."));
//! repository.insert(job.id, &units, Intake::Open)?;
//!
//! let owner = repository.register_owner(&NewOwner::new(Process::this(&clock.boot_id()), "example"))?;
//! let claimant = Claimant::new(owner, Duration::from_secs(60));
//! let slots = vec![Slot::new(WorkerId::new("w1")?)];
//! repository.claim(&ClaimRequest::new(job.id, claimant, Scope::Pending, slots))?;
//!
//! let active = questions::active(&repository, Some(job.id))?;
//! assert_eq!((active[0].unit_id.as_str(), active[0].left_ms), ("page-1", 60_000));
//! let queued = questions::queued(&repository, Some(job.id), 0, 100)?;
//! assert_eq!(queued.items[0].id.as_str(), "page-2");
//! assert!(questions::stale(&repository, None)?.is_empty());
//!
//! clock.advance(Duration::from_secs(61));
//! let stale = questions::stale(&repository, None)?;
//! assert_eq!((stale[0].left_ms, stale[0].staleness), (-1_000, Some(Staleness::RanOut)));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::error::Error;
use std::fmt;

use crate::job::{Job, JobId};
use crate::repository::{Archive, JobEntry, LeaseView, PAGE_LIMIT, Page, RepositoryError, Result, UnitFilter};
use crate::unit::{UnitStatus, WorkUnit};

/// What is being executed, of a job or of all, in the order of insertion: every unit that is leased.
///
/// There are as many as all pools on this archive have places. A unit whose lease is [stale](LeaseView::is_stale) is
/// among them: until it is taken back, nobody else has it.
///
/// # Errors
///
/// [`UnknownJob`](crate::RepositoryError::UnknownJob), and what the storage says.
pub fn active(archive: &dyn Archive, job_id: Option<JobId>) -> Result<Vec<LeaseView>> {
    let (mut leases, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = archive.leases(job_id, after, PAGE_LIMIT)?;
        leases.extend(page.items);
        // An archive that does not get on must not keep its caller for ever.
        next = page.next.filter(|&next| next > after);
    }
    Ok(leases)
}

/// What waits, of a job or of all, in the order in which it was created; `after` is a unit's key, 0 for the first page.
///
/// That is [`Archive::units`] with the status PENDING, so whatever else a [`UnitFilter`] can ask for can be asked there. What
/// was created first is not always executed first: priorities, and the times before which a unit is not to be
/// claimed, come before it. Units that are to be tried again wait too, at their old place.
///
/// # Errors
///
/// [`UnknownJob`](crate::RepositoryError::UnknownJob), and what the storage says.
pub fn queued(archive: &dyn Archive, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
    if let Some(job_id) = job_id {
        archive.job(job_id)?;
    }
    let filter = UnitFilter { job_id, ..UnitFilter::default() };
    archive.units(&filter.status(UnitStatus::Pending), after, limit)
}

/// What nobody looks after any more, of a job or of all, in the order of insertion: those of [`active`] whose lease ran out,
/// or whose owner is of another boot or certainly dead.
///
/// They are what the next [`expire`](crate::Repository::expire) takes back. Should they stay, nobody calls it: no pool is
/// running.
///
/// # Errors
///
/// [`UnknownJob`](crate::RepositoryError::UnknownJob), and what the storage says.
pub fn stale(archive: &dyn Archive, job_id: Option<JobId>) -> Result<Vec<LeaseView>> {
    let mut leases = active(archive, job_id)?;
    leases.retain(LeaseView::is_stale);
    Ok(leases)
}

/// Why no unit was found by its name.
#[derive(Debug)]
#[non_exhaustive]
pub enum FindError {
    /// There is no job of this name.
    NoJob(String),
    /// No job has such a unit, or the one that was named has not.
    NoUnit(String),
    /// Several jobs have one.
    Several {
        /// The name of the unit.
        id: String,
        /// The names of the jobs.
        jobs: Vec<String>,
    },
    /// The storage failed.
    Repository(RepositoryError),
}

impl fmt::Display for FindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FindError::NoJob(name) => write!(f, "there is no job `{name}`"),
            FindError::NoUnit(id) => write!(f, "there is no unit `{id}`"),
            FindError::Several { id, jobs } => write!(f, "there is a unit `{id}` in several jobs: {}", jobs.join(", ")),
            FindError::Repository(_) => f.write_str("units cannot be read"),
        }
    }
}

impl Error for FindError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            FindError::Repository(error) => Some(error),
            FindError::NoJob(_) | FindError::NoUnit(_) | FindError::Several { .. } => None,
        }
    }
}

impl From<RepositoryError> for FindError {
    fn from(error: RepositoryError) -> FindError {
        FindError::Repository(error)
    }
}

/// Finds a unit by its name, in the job of a name or in whichever has it.
///
/// # Errors
///
/// If there is none, or there are several.
pub fn find(archive: &dyn Archive, job: Option<&str>, id: &str) -> std::result::Result<WorkUnit, FindError> {
    let jobs = match job {
        Some(name) => vec![archive.job_named(name)?.ok_or_else(|| FindError::NoJob(name.to_owned()))?],
        None => all_jobs(archive)?,
    };
    let mut found = Vec::new();
    for job in jobs {
        match archive.unit(job.id, id) {
            Ok(unit) => found.push((job.name, unit)),
            Err(RepositoryError::UnknownUnit { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    match found.len() {
        0 => Err(FindError::NoUnit(id.to_owned())),
        1 => Ok(found.remove(0).1),
        _ => Err(FindError::Several { id: id.to_owned(), jobs: found.into_iter().map(|(name, _)| name).collect() }),
    }
}

/// All jobs, in the order of creation.
///
/// # Errors
///
/// What the storage says.
pub fn all_jobs(archive: &dyn Archive) -> Result<Vec<Job>> {
    all(|after| archive.jobs(after, PAGE_LIMIT))
}

/// All that was ever made of jobs, in order: the whole journal of jobs.
///
/// # Errors
///
/// What the storage says.
pub fn all_job_changes(archive: &dyn Archive) -> Result<Vec<JobEntry>> {
    all(|after| archive.job_journal(after, PAGE_LIMIT))
}

/// All of what comes in pages.
fn all<T>(read: impl Fn(i64) -> Result<Page<T>>) -> Result<Vec<T>> {
    let (mut items, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = read(after)?;
        items.extend(page.items);
        next = page.next.filter(|&next| next > after);
    }
    Ok(items)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryRepository;
    use crate::job::NewJob;
    use crate::repository::Repository;

    #[test]
    fn a_job_that_is_not_there_is_unknown_to_every_question() {
        // 003-F59, 003-F60, 003-F61.
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("empty")).unwrap().id;
        assert_eq!(active(&repository, Some(job)).unwrap(), []);
        assert_eq!(queued(&repository, Some(job), 0, 9).unwrap().items, []);
        assert_eq!(stale(&repository, Some(job)).unwrap(), []);
        let nowhere = Some(JobId(4_711));
        let is_unknown = |error| matches!(error, RepositoryError::UnknownJob(JobId(4_711)));
        assert!(is_unknown(active(&repository, nowhere).unwrap_err()));
        assert!(is_unknown(queued(&repository, nowhere, 0, 9).unwrap_err()));
        assert!(is_unknown(stale(&repository, nowhere).unwrap_err()));
    }
}
