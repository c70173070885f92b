//! What is wrong with a batch, and what to do about it: for whoever is woken at night.
//!
//! [`doctor`] looks at any [`Archive`], also at one in another process beside whoever works, and changes nothing. It says who works and
//! what waits, and what of that is not as it should be, the most urgent first, each with what to do. What only the file knows
//! it is [given](Doctor::health).
//!
//! ```
//! use workcrew::audit::doctor::{Concern, doctor};
//! use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
//!
//! let repository = MemoryRepository::new();
//! let job = repository.create_job(&NewJob::named("pages"))?;
//! assert!(doctor(&repository)?.findings.is_empty());
//!
//! repository.queue_unit(job.id, &NewUnit::new("page-1").prompt("Summarise it."))?;
//! let diagnosis = doctor(&repository)?;
//! assert_eq!(diagnosis.findings[0].concern, Concern::NobodyWorks);
//! assert!(diagnosis.to_string().contains("no living process works on it"));
//! # Ok::<(), workcrew::RepositoryError>(())
//! ```
//!
//! # What it cannot see
//!
//! - Whether what is stored is sound: that is [`verify`](crate::audit::verify()).
//! - What a process does that says nothing of itself: one of an earlier version, or one that came up less than a heartbeat ago.
//! - Of a process in another pid namespace or on another machine, only when it was last heard of.
//! - Times are those of the calendar. If that was set, they are wrong by as much.

mod finding;
mod owners;
mod storage;
#[cfg(test)]
mod tests;
mod units;

use std::fmt;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

pub use self::finding::{Concern, Symptom, Urgency};
use self::finding::{many, named, size, span};
pub use self::owners::{OwnerFact, Standing};
pub use self::units::{JobFact, LOOKED_AT_LIMIT, OldestPending};
use crate::audit::questions;
use crate::audit::visible::short;
use crate::clock::{Clock, Moment, SystemClock};
use crate::limits::ProviderHold;
use crate::repository::{Archive, Health, RepositoryError, Result};

/// Looks at an archive as it is now, by the machine's clock.
///
/// # Errors
///
/// Only if the storage does not answer; what of it cannot be read is among what is found.
pub fn doctor(archive: &dyn Archive) -> Result<Diagnosis> {
    Doctor::new().run(archive)
}

/// A doctor that knows more than what any archive can tell.
#[derive(Clone, Debug)]
pub struct Doctor {
    clock: Arc<dyn Clock>,
    health: Option<Health>,
    large_log_bytes: Option<u64>,
}

impl Doctor {
    /// One that knows nothing more.
    pub fn new() -> Doctor {
        Doctor { clock: Arc::new(SystemClock), health: None, large_log_bytes: None }
    }

    /// Where time comes from (the machine's clocks).
    pub fn clock(mut self, clock: impl Clock) -> Doctor {
        self.clock = Arc::new(clock);
        self
    }

    /// How the file of the database is, such as `SqliteArchive::health` tells.
    pub fn health(mut self, health: Health) -> Doctor {
        self.health = Some(health);
        self
    }

    /// From which size on a log is too large (four times that at which it is usually emptied).
    pub fn large_log_bytes(mut self, bytes: u64) -> Doctor {
        self.large_log_bytes = Some(bytes);
        self
    }

    /// Looks at an archive as it is now.
    ///
    /// # Errors
    ///
    /// Only if the storage does not answer; what of it cannot be read is among what is found.
    pub fn run(&self, archive: &dyn Archive) -> Result<Diagnosis> {
        let now = self.clock.now();
        let diagnosis = Diagnosis::new(now.wall, self.health.clone());
        let mut examination = Examination {
            doctor: self,
            archive,
            now,
            boot_id: self.clock.boot_id(),
            diagnosis,
            tried: Vec::new(),
            ahead: None,
        };
        examination.run()?;
        Ok(examination.diagnosis)
    }
}

impl Default for Doctor {
    fn default() -> Doctor {
        Doctor::new()
    }
}

/// What was found, and what is so.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// When it was.
    pub at: DateTime<Utc>,
    /// What somebody should know, the most urgent first.
    pub findings: Vec<Symptom>,
    /// The processes that have not ended in order, in the order of registration.
    pub owners: Vec<OwnerFact>,
    /// How many have.
    pub ended_owners: u64,
    /// The providers that are not to be asked now, by name.
    #[serde(default)]
    pub providers: Vec<ProviderHold>,
    /// The jobs, in the order of creation.
    pub jobs: Vec<JobFact>,
    /// How many units are being executed.
    pub leases: u64,
    /// How many of those nobody looks after.
    pub stale_leases: u64,
    /// How many rows the journal has.
    pub journal_rows: u64,
    /// How the file is, if that is known.
    pub health: Option<Health>,
}

impl Diagnosis {
    fn new(at: DateTime<Utc>, health: Option<Health>) -> Diagnosis {
        Diagnosis {
            at,
            findings: Vec::new(),
            owners: Vec::new(),
            ended_owners: 0,
            providers: Vec::new(),
            jobs: Vec::new(),
            leases: 0,
            stale_leases: 0,
            journal_rows: 0,
            health,
        }
    }

    /// Whether nobody has to do anything: there are at most [notes](Urgency::Note).
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.urgency == Urgency::Note)
    }
}

/// An examination under way.
struct Examination<'a> {
    doctor: &'a Doctor,
    archive: &'a dyn Archive,
    now: Moment,
    boot_id: Arc<str>,
    diagnosis: Diagnosis,
    /// Units that were tried often: how often, what is to be said, and their names.
    tried: Vec<(u32, String, String)>,
    /// What lies farthest in the future, and how far.
    ahead: Option<(&'static str, i64)>,
}

impl Examination<'_> {
    fn run(&mut self) -> Result<()> {
        let leases = questions::active(self.archive, None);
        let leases = self.readable("the leases", leases)?.unwrap_or_default();
        self.owners(&leases)?;
        self.leases(&leases)?;
        self.providers()?;
        self.jobs()?;
        self.most_tried();
        self.journal()?;
        if let Some(health) = &self.doctor.health {
            self.health(health)?;
        }
        self.clock();
        self.diagnosis.findings.sort_by_key(|finding| (finding.urgency, finding.concern));
        Ok(())
    }

    /// What was read; `None` with a finding if it is damaged.
    fn readable<T>(&mut self, what: &str, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error) if matches!(error, RepositoryError::Corrupt { .. }) || error.is_rejection() => {
                let what = format!("{what} cannot be read: {}", short(&error.to_string()));
                // One damaged record may be met several times.
                if !self.diagnosis.findings.iter().any(|finding| finding.what == what) {
                    self.add(
                        Urgency::Now,
                        Concern::Unreadable,
                        what,
                        "see what else is damaged: `workcrew verify`; and look for a backup",
                    );
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Notices a time that lies in the future.
    fn time(&mut self, what: &'static str, at: DateTime<Utc>) {
        let ahead_ms = (at - self.now.wall).num_milliseconds();
        if ahead_ms > self.ahead.map_or(0, |(_, farthest_ms)| farthest_ms) {
            self.ahead = Some((what, ahead_ms));
        }
    }

    fn clock(&mut self) {
        const NOTHING_MS: i64 = 2_000;
        for index in 0..self.diagnosis.owners.len() {
            let (registered_at, heartbeat_at) = {
                let owner = &self.diagnosis.owners[index].owner;
                (owner.registered_at, owner.heartbeat_at)
            };
            self.time("a process began", registered_at);
            self.time("a process was heard of", heartbeat_at);
        }
        if let Some((what, ahead_ms)) = self.ahead.filter(|(_, ahead_ms)| *ahead_ms > NOTHING_MS) {
            let what = format!("{what} {} in the future: the calendar was set back, or was wrong then", span(ahead_ms));
            self.add(
                Urgency::Soon,
                Concern::Clock,
                what,
                "see that the clock is right (`timedatectl`); what is to begin at a date may be late",
            );
        }
    }
}

/// A date, as people read it.
fn date(time: DateTime<Utc>) -> String {
    time.format("%Y-%m-%d %H:%M:%S UTC").to_string()
}

impl fmt::Display for Diagnosis {
    /// What was found, then who works, what waits, and how the file is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.findings.len() as u64 {
            0 => writeln!(f, "{}: nothing is wrong", date(self.at))?,
            count => writeln!(f, "{}: {}", date(self.at), many(count, "finding"))?,
        }
        self.findings.iter().try_for_each(|finding| writeln!(f, "\n{finding}"))?;
        self.show_owners(f)?;
        self.show_jobs(f)?;
        match &self.health {
            Some(health) => show_health(health, f),
            None => Ok(()),
        }
    }
}

impl Diagnosis {
    fn show_owners(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nprocesses: {}, and {} that ended in order", self.owners.len(), self.ended_owners)?;
        for fact in &self.owners {
            let state = fact.owner.state.as_ref();
            let workers = match state {
                Some(state) => {
                    format!("{}/{} workers, {} in line", state.workers, state.target_workers, state.queue_size)
                }
                None => many(fact.workers.values().sum(), "worker"),
            };
            let (since, held) = (date(fact.owner.registered_at), many(fact.leases, "unit"));
            let silence = span(fact.silent_ms);
            writeln!(
                f,
                "  {:<10}  {}, since {since}, heard of {silence} ago; {workers}, holds {held}",
                fact.standing,
                fact.name()
            )?;
        }
        Ok(())
    }

    fn show_jobs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\njobs: {}; {} being executed, {} of them by nobody",
            self.jobs.len(),
            self.leases,
            self.stale_leases
        )?;
        let width = self.jobs.iter().map(|job| named(&job.name).chars().count()).max().unwrap_or_default();
        for job in &self.jobs {
            let counts = &job.counts;
            let running = counts.assigned + counts.processing + counts.cancel_requested;
            write!(
                f,
                "  {:<width$}  {:>7} pending  {running:>5} running  {:>7} completed  {:>6} failed  {:>6} cancelled",
                named(&job.name),
                counts.pending,
                counts.completed,
                counts.failed,
                counts.cancelled
            )?;
            match &job.oldest_pending {
                Some(oldest) => {
                    let waits = span((self.at - oldest.since).num_milliseconds());
                    writeln!(f, "; {} waits since {waits}", named(oldest.id.as_str()))?;
                }
                None => writeln!(f)?,
            }
        }
        Ok(())
    }
}

fn show_health(health: &Health, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(f, "\nstorage")?;
    let mut row = |name: &str, value: String| writeln!(f, "  {name:<12} {value}");
    let path = short(&health.path.display().to_string());
    row("file", format!("{path} (mode {:o})", health.mode))?;
    row("size", format!("{}, {} of it empty", size(health.database_bytes), size(health.free_bytes())))?;
    row("log", format!("{}, emptied at {}", size(health.log_bytes), size(health.log_limit_bytes)))?;
    if let Some(index) = health.search_index_bytes {
        row("index", format!("{} in {path}.search, which can be deleted", size(index)))?;
    }
    row("disk", format!("{} left of {}", size(health.disk_free_bytes), size(health.disk_bytes)))?;
    let (mode, schema) = (short(&health.journal_mode), health.schema_version);
    row("format", format!("schema {schema}, SQLite {}, journal mode {mode}", health.sqlite_version))
}
