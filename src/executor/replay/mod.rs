//! An executor that answers from a database of an earlier run: the same program can be run again without a model and without a bill.
//!
//! ```
//! use workcrew::{Archive, MemoryRepository, NewJob, NewUnit, Replay, Repository, Simulated, WorkPool};
//! # use std::time::Duration;
//!
//! let first = MemoryRepository::new();
//! let job = first.create_job(&NewJob::named("pages"))?;
//! let model = Simulated::new().latency(Duration::ZERO, Duration::from_millis(2));
//! let pool = WorkPool::builder(job.id, model, first.clone()).start()?;
//! let paid = pool.enqueue(NewUnit::new("page-1"), "Summarise page 1.")?.wait()?;
//!
//! let second = MemoryRepository::new();
//! let job = second.create_job(&NewJob::named("pages"))?;
//! let pool = WorkPool::builder(job.id, Replay::from(first), second).start()?;
//! let free = pool.enqueue(NewUnit::new("page-1"), "Summarise page 1.")?.wait()?;
//! assert_eq!((free.output, free.tokens.total()), (paid.output, 0));
//!
//! let changed = pool.enqueue(NewUnit::new("page-2"), "Summarise page 2.")?.wait()?;
//! assert_eq!(changed.failure.unwrap().kind.as_str(), workcrew::executor::replay::UNKNOWN_UNIT);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Attempt n answers as the n-th counted attempt of the stored unit did, and every further one as the last did: with its messages, its
//! session, its answer and its list of files, at once. Attempts that were given back are not counted and not replayed.
//!
//! | the stored attempt | the replayed one |
//! |---|---|
//! | COMPLETED | succeeds with the same answer |
//! | FAILED, TIMED_OUT or LOST, and another followed | fails with the same kind and message, and may be tried again |
//! | the same, and it was the last | fails so, and the unit is given up |
//! | the last one of a unit that was cancelled | fails as `cancelled`, and the unit is given up |
//!
//! What cannot be replayed fails at once, and the unit is given up, with a kind of its own:
//!
//! | kind | why |
//! |---|---|
//! | [`PROMPT_DIFFERS`] | what is to be sent is not what was sent then; the message shows the first line that differs |
//! | [`UNKNOWN_UNIT`] | the database has no such unit, or no such job |
//! | [`AMBIGUOUS`] | several jobs have a unit of this name: say [which](Replay::job) |
//! | [`NOT_ENDED`] | the stored unit has not ended, so nobody knows how it does |
//! | [`PURGED`] | its contents were removed |
//! | [`UNREADABLE`] | what is stored is damaged; where the storage only fails for now, it is tried again |

mod difference;

use std::sync::Arc;

use self::difference::difference;
use super::{Call, ExecuteError, Executor, WorkResult, kinds};
use crate::attempt::{Attempt, AttemptResult, FailureKind, Outcome, Provenance};
use crate::conversation::{Message, from_json};
use crate::error::RepositoryError;
use crate::money::{Charge, Money, Tokens};
use crate::repository::{Archive, PAGE_LIMIT, UnitFilter};
use crate::unit::{UnitStatus, WorkUnit, shortened};

/// What is to be sent is not what was sent then.
pub const PROMPT_DIFFERS: &str = "replay_prompt_differs";
/// The database has no such unit.
pub const UNKNOWN_UNIT: &str = "replay_unknown_unit";
/// Several jobs of the database have such a unit.
pub const AMBIGUOUS: &str = "replay_ambiguous";
/// The stored unit has not ended.
pub const NOT_ENDED: &str = "replay_not_ended";
/// The contents of the stored unit were removed.
pub const PURGED: &str = "replay_purged";
/// What is stored cannot be read.
pub const UNREADABLE: &str = "replay_unreadable";

/// What it is called in the records, and in its bills.
const NAME: &str = "replay";

/// Answers from what was stored. See the [module](self).
#[derive(Clone, Debug)]
pub struct Replay {
    archive: Arc<dyn Archive>,
    job: Option<String>,
    label: Option<String>,
    has_charges: bool,
}

impl Replay {
    /// Answers from an archive: a file that is only read, or any repository.
    pub fn from(archive: impl Into<Arc<dyn Archive>>) -> Replay {
        Replay { archive: archive.into(), job: None, label: None, has_charges: false }
    }

    /// Answers from a database file, which is only read, and whose path stands in the provenance of each attempt.
    ///
    /// # Errors
    ///
    /// [`OpenError`](crate::repository::sqlite::OpenError) says why it cannot be read.
    #[cfg(any(feature = "sqlite", feature = "sqlite-system"))]
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Replay, crate::repository::sqlite::OpenError> {
        let archive = crate::repository::sqlite::SqliteArchive::open(path)?;
        let label = archive.path().display().to_string();
        Ok(Replay::from(archive).label(label))
    }

    /// In which job of the archive the units are (in the only one that has a unit of that name).
    pub fn job(mut self, name: impl Into<String>) -> Replay {
        self.job = Some(name.into());
        self
    }

    /// What the archive is called in the provenance (only the beginning of its journal's first link).
    pub fn label(mut self, label: impl Into<String>) -> Replay {
        self.label = Some(label.into());
        self
    }

    /// Charges again what was charged then (nothing is paid, and the bill says so: `$0.00` for a model called `replay`).
    pub fn with_charges(mut self) -> Replay {
        self.has_charges = true;
        self
    }

    /// The stored unit of this name.
    fn find(&self, id: &str) -> Result<WorkUnit, ExecuteError> {
        let found = match &self.job {
            Some(name) => {
                let job = self.archive.job_named(name).map_err(unreadable)?;
                let unknown_job = || ExecuteError::give_up(format!("the database has no job `{}`", shortened(name)));
                let job = job.ok_or_else(|| unknown_job().kind(UNKNOWN_UNIT))?;
                self.unit_of(job.id, id)?.into_iter().collect()
            }
            None => self.find_anywhere(id)?,
        };
        match <[WorkUnit; 1]>::try_from(found) {
            Ok([unit]) => Ok(unit),
            Err(found) if found.is_empty() => {
                let whose =
                    self.job.as_ref().map_or("the database".to_owned(), |job| format!("job `{}`", shortened(job)));
                Err(ExecuteError::give_up(format!("{whose} has no unit `{}`", shortened(id))).kind(UNKNOWN_UNIT))
            }
            Err(found) => {
                let jobs: Vec<String> = found.iter().map(|unit| unit.job_id.to_string()).collect();
                let message = format!("unit `{}` is in {}: say which is meant", shortened(id), jobs.join(" and in "));
                Err(ExecuteError::give_up(message).kind(AMBIGUOUS))
            }
        }
    }

    /// At most two units of this name.
    fn find_anywhere(&self, id: &str) -> Result<Vec<WorkUnit>, ExecuteError> {
        let (mut found, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next {
            let page = self.archive.jobs(after, PAGE_LIMIT).map_err(unreadable)?;
            for job in &page.items {
                found.extend(self.unit_of(job.id, id)?);
                if found.len() > 1 {
                    return Ok(found);
                }
            }
            // An archive that does not get on must not keep its caller for ever.
            next = page.next.filter(|&next| next > after);
        }
        Ok(found)
    }

    fn unit_of(&self, job_id: crate::job::JobId, id: &str) -> Result<Option<WorkUnit>, ExecuteError> {
        match self.archive.unit(job_id, id) {
            Ok(unit) => Ok(Some(unit)),
            Err(RepositoryError::UnknownUnit { .. }) => Ok(None),
            Err(error) => Err(unreadable(error)),
        }
    }

    /// Tells what the stored attempt told, page by page.
    fn tell_conversation(&self, call: &Call<'_>, attempt: &Attempt) -> Result<(), ExecuteError> {
        let mut next = Some(0);
        while let Some(after) = next {
            if call.is_cancelled() {
                return Err(ExecuteError::retry("stopped in the middle of a replay").kind(kinds::CANCELLED));
            }
            let page = self.archive.messages(attempt.key, after, PAGE_LIMIT).map_err(unreadable)?;
            let read = page.items.iter().map(|stored| stored.message()).collect::<Result<Vec<_>, _>>();
            let messages: Vec<Message> = read.map_err(damaged)?.into_iter().flatten().collect();
            if !messages.is_empty() {
                call.messages(messages);
            }
            next = page.next.and_then(|next| u32::try_from(next).ok()).filter(|&next| next > after);
        }
        Ok(())
    }

    /// What the stored attempt left.
    fn result_of(&self, attempt: &Attempt, left: AttemptResult) -> Result<WorkResult, ExecuteError> {
        let json = left.result.map(|raw| from_json(raw.as_bytes())).transpose().map_err(damaged)?;
        // Without a bill nobody would know what it cost.
        let nothing = || vec![Charge::reported(NAME, Tokens::default(), Money::ZERO)];
        let charges = if self.has_charges { self.archive.charges(attempt.key).map_err(unreadable)? } else { nothing() };
        Ok(WorkResult {
            output: left.output,
            json,
            output_files: left.output_files,
            session_id: attempt.session_id.clone(),
            charges,
        })
    }

    fn replay(
        &self,
        call: &Call<'_>,
        unit: &WorkUnit,
        attempt: &Attempt,
        is_last: bool,
    ) -> Result<WorkResult, ExecuteError> {
        let left = self.archive.attempt_result(attempt.key).map_err(unreadable)?;
        check_prompt(call, left.rendered_prompt.as_deref().or(unit.prompt.as_deref()))?;
        if let Some(session) = &attempt.session_id {
            call.session(session);
        }
        self.tell_conversation(call, attempt)?;
        let result = self.result_of(attempt, left)?;
        if is_last && unit.status == UnitStatus::Cancelled {
            return Err(cancelled(unit).result(result));
        }
        match (attempt.outcome, &attempt.failure) {
            (Some(Outcome::Completed), _) => Ok(result),
            (_, Some(failure)) => Err(failed(&failure.kind, &failure.message, is_last).result(result)),
            (outcome, None) => {
                let outcome = outcome.map_or("is still open", |outcome| outcome.name());
                let message = format!("the stored attempt {} ended {outcome}", attempt.key.number);
                Err(failed(&FailureKind::EXECUTOR, &message, is_last).result(result))
            }
        }
    }
}

impl Executor for Replay {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let unit = self.find(call.unit().id.as_str())?;
        check_state(&unit)?;
        let mut attempts = self.archive.attempts(unit.key).map_err(unreadable)?;
        attempts.retain(|attempt| attempt.is_counted);
        let wanted = usize::try_from(call.attempt_number()).unwrap_or(usize::MAX).min(attempts.len());
        match attempts.get(wanted.saturating_sub(1)) {
            Some(attempt) => self.replay(call, &unit, attempt, wanted == attempts.len()),
            None => {
                check_prompt(call, unit.prompt.as_deref())?;
                Err(unit
                    .failure
                    .as_ref()
                    .map_or_else(|| cancelled(&unit), |failure| failed(&failure.kind, &failure.message, true)))
            }
        }
    }

    fn name(&self) -> &str {
        NAME
    }

    /// Which database it answers from, and the version of this crate that the first of its units was executed with.
    fn provenance(&self) -> Provenance {
        let mut provenance = Provenance::of(self.name());
        if let Some(label) = &self.label {
            provenance = provenance.argument(format!("database={label}"));
        }
        if let Some(job) = &self.job {
            provenance = provenance.argument(format!("job={job}"));
        }
        // Whoever cannot be read says so with the first unit.
        let journal = self.archive.journal(0, 1).ok().and_then(|page| page.items.into_iter().next());
        if let Some(first) = journal {
            provenance = provenance.argument(format!("journal={:.16}", first.link.to_string()));
        }
        let first =
            self.archive.units(&UnitFilter::default(), 0, 1).ok().and_then(|page| page.items.into_iter().next());
        let attempts = first.and_then(|unit| self.archive.attempts(unit.key).ok()).unwrap_or_default();
        let stored = attempts.into_iter().find_map(|attempt| attempt.provenance);
        match stored {
            Some(stored) => provenance.program_version(format!("recorded with workcrew {}", stored.crate_version)),
            None => provenance,
        }
    }
}

/// Whether a stored unit has an end that can be told.
fn check_state(unit: &WorkUnit) -> Result<(), ExecuteError> {
    if unit.purged_at.is_some() {
        let message = format!("the contents of the stored unit `{}` were removed", unit.id);
        return Err(ExecuteError::give_up(message).kind(PURGED));
    }
    if !unit.status.is_terminal() {
        let message = format!("the stored unit `{}` is {} and has not ended", unit.id, unit.status);
        return Err(ExecuteError::give_up(message).kind(NOT_ENDED));
    }
    Ok(())
}

/// Whether what is to be sent is what was sent then.
fn check_prompt(call: &Call<'_>, stored: Option<&str>) -> Result<(), ExecuteError> {
    let different = match stored {
        Some(stored) => difference(stored, call.prompt()),
        None => Some("the stored unit was never given a prompt".to_owned()),
    };
    match different {
        Some(difference) => Err(ExecuteError::give_up(difference).kind(PROMPT_DIFFERS)),
        None => Ok(()),
    }
}

fn failed(kind: &FailureKind, message: &str, is_last: bool) -> ExecuteError {
    let error = if is_last { ExecuteError::give_up(message) } else { ExecuteError::retry(message) };
    error.kind(kind.as_str().to_owned())
}

fn cancelled(unit: &WorkUnit) -> ExecuteError {
    ExecuteError::give_up(format!("the stored unit `{}` was cancelled", unit.id)).kind(kinds::CANCELLED)
}

fn unreadable(error: RepositoryError) -> ExecuteError {
    let message = "the database of the earlier run cannot be read";
    let told = if error.is_passing() { ExecuteError::retry(message) } else { ExecuteError::give_up(message) };
    told.kind(UNREADABLE).source(error)
}

fn damaged(error: serde_json::Error) -> ExecuteError {
    ExecuteError::give_up("what is stored of the attempt cannot be read").kind(UNREADABLE).source(error)
}
