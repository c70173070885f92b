//! Shows that nothing was lost: the [invariants](Invariant), checked over what is stored.
//!
//! [`verify`] reads everything once (the journal as one chain and that of the jobs as another, then each unit with its journal rows,
//! attempts, conversations and inputs, then jobs and workers) and says what does not hold.
//! What it reads it forgets again: its memory does not grow with the number of units or the
//! length of a conversation.
//!
//! Damage is found, not stumbled over: a record that cannot be read is a [`Finding`], and the
//! verification goes on behind it. Only when the storage itself does not answer, it fails.
//!
//! # What it cannot show
//!
//! - A database that others write meanwhile changes between two reads, and a finding may be
//!   nothing but that. Verify a database at rest, or a copy of it.
//! - Whoever can rewrite the whole database can make it consistent again, and whoever can cut its end off consistently leaves no
//!   trace. Keep [`Heads`] elsewhere, and give them to [`Verify::heads`] or [`compare`] the next time.
//! - What is only cut off at its end shows if a job was made or changed after it, since the journal of jobs has the journal's last link of
//!   that time. Otherwise it does not, not even if all units of a database are gone.
//! - No hash vouches for what decides when and by whom a unit is executed next, and not for what came of it: before when not, its checkpoint, owners and
//!   workers. What an attempt was sent, said, left and cost is covered, and so are jobs with their templates and settings, and the job, the priority and the
//!   retries of a unit, unless it was stored by an earlier version.
//! - Jobs of a database that was written before there was a journal of jobs are what they were when it was brought up to date.
//! - Of I10 only child processes of this machine and leases are seen, not threads, descriptors, sockets
//!   and files. I11 and I14 are about what callers saw, and leave no trace.
//! - What was never stored, such as what an agent did outside of its conversation, and whether what was stored is true.
//!
//! [`BLIND_SPOTS`] says so in a few lines, for whoever reads a result.

mod accounts;
mod attempts;
mod conversations;
mod finding;
mod heads;
mod history;
mod holders;
mod jobs;
mod journal;
mod secrets;
pub(super) mod sequence;
#[cfg(test)]
mod tests;
mod units;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use self::finding::Findings;
pub use self::finding::{FINDING_LIMIT, Finding, Invariant};
pub use self::heads::{AttemptHead, Heads, HeadsError, JobHead, JournalHead, compare};
pub use self::jobs::verify_jobs;
use self::secrets::Secrets;
use crate::chain::Hash;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::limits::{Account, AccountHolder};
use crate::repository::{Archive, Counts, RepositoryError, Result};
use crate::unit::{UnitKey, WorkUnit, shortened};
use crate::worker::WorkerId;

/// What no verification can see, a line each: to be told with its result.
pub const BLIND_SPOTS: &[&str] = &[
    "a database that was rewritten as a whole, or cut off at its end, by somebody who computed every link anew: compare it with heads \
     that were kept elsewhere",
    "what was wrong already when it was stored: that a model was asked at all, and that an answer is true",
    "changes between two reads, while others write: verify a database at rest, or a backup",
    "what decides when and by whom a unit is executed next: before when not, its checkpoint, owners and workers",
    "threads, descriptors and processes of other machines that were left running",
];

/// Checks whatever can be checked without knowing more than what is stored.
///
/// # Errors
///
/// Only if the storage does not answer; what is wrong with its contents is a [`Finding`].
///
/// ```
/// use workcrew::audit::verify;
/// use workcrew::repository::Intake;
/// use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("summaries"))?;
/// repository.insert(job.id, &[NewUnit::new("page-17")], Intake::Open)?;
///
/// let verification = verify(&repository)?;
/// assert!(verification.is_clean(), "{verification}");
/// assert_eq!(verification.units, 1);
/// # Ok::<(), workcrew::RepositoryError>(())
/// ```
pub fn verify(archive: &dyn Archive) -> Result<Verification> {
    Verify::new().run(archive)
}

/// A verification that knows more than what is stored.
///
/// ```
/// use workcrew::audit::verify::{Invariant, Verify};
/// use workcrew::repository::Intake;
/// use workcrew::{MemoryRepository, NewJob, NewUnit, Repository};
///
/// let repository = MemoryRepository::new();
/// let job = repository.create_job(&NewJob::named("summaries"))?;
/// repository.insert(job.id, &[NewUnit::new("page-17")], Intake::Open)?;
///
/// let verification = Verify::new()
///     .acknowledged([(job.id, "page-17"), (job.id, "page-18")])
///     .must_not_contain("sk-live-1234")
///     .run(&repository)?;
/// assert_eq!(verification.findings.len(), 1);
/// assert_eq!(verification.findings[0].to_string(), "I1 unit `page-18`: was acknowledged, but is not there");
/// # Ok::<(), workcrew::RepositoryError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Verify {
    acknowledged: Vec<(JobId, String)>,
    submitted: Option<HashMap<JobId, HashSet<String>>>,
    is_settled: bool,
    secrets: Secrets,
    known_heads: Vec<(i64, Hash)>,
    heads: Vec<Heads>,
}

impl Verify {
    /// Checks what needs no further knowledge.
    pub fn new() -> Verify {
        Verify::default()
    }

    /// These units were acknowledged, so they must be there (I1).
    pub fn acknowledged(mut self, ids: impl IntoIterator<Item = (JobId, impl Into<String>)>) -> Verify {
        self.acknowledged.extend(ids.into_iter().map(|(job_id, id)| (job_id, id.into())));
        self
    }

    /// Only these units were ever submitted, acknowledged or not, so there must be no others (I2).
    pub fn submitted(mut self, ids: impl IntoIterator<Item = (JobId, impl Into<String>)>) -> Verify {
        let submitted = self.submitted.get_or_insert_default();
        for (job_id, id) in ids {
            submitted.entry(job_id).or_default().insert(id.into());
        }
        self
    }

    /// Nothing goes wrong any more and time enough has passed, so every unit must have ended (I7).
    pub fn settled(mut self) -> Verify {
        self.is_settled = true;
        self
    }

    /// This must be stored nowhere (I12).
    ///
    /// It is found as it is and in the strings of JSON, not encoded otherwise. An empty one is never found.
    pub fn must_not_contain(mut self, secret: impl Into<Vec<u8>>) -> Verify {
        self.secrets.add(secret.into());
        self
    }

    /// An earlier verification saw this many journal rows and this [head](Verification::journal_head): they must
    /// still be there (I13).
    pub fn known_head(mut self, journal_rows: u64, head: Hash) -> Verify {
        self.known_heads.push((i64::try_from(journal_rows).unwrap_or(i64::MAX), head));
        self
    }

    /// What these heads say must still be there (I13, I9).
    pub fn heads(mut self, heads: Heads) -> Verify {
        self.heads.push(heads);
        self
    }

    /// Reads everything, and says what does not hold.
    ///
    /// The first finding about the journal names its first broken link, and the first about a conversation the first of that.
    ///
    /// # Errors
    ///
    /// Only if the storage does not answer; what is wrong with its contents is a [`Finding`].
    pub fn run(&self, archive: &dyn Archive) -> Result<Verification> {
        let mut audit = Audit::new(self, archive);
        audit.integrity()?;
        audit.job_journal()?;
        audit.journal()?;
        audit.heads()?;
        audit.owners()?;
        audit.open_accounts()?;
        audit.units()?;
        audit.journal_rows_of_units();
        audit.jobs()?;
        audit.close_accounts()?;
        audit.workers()?;
        audit.acknowledged()?;
        Ok(audit.finish())
    }

    fn is_phantom(&self, unit: &WorkUnit) -> bool {
        self.submitted
            .as_ref()
            .is_some_and(|submitted| !submitted.get(&unit.job_id).is_some_and(|ids| ids.contains(unit.id.as_str())))
    }
}

/// What was read, and what does not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Verification {
    /// What does not hold; at most [`FINDING_LIMIT`].
    pub findings: Vec<Finding>,
    /// How many more there are.
    pub findings_left_out: u64,
    /// How many jobs were read.
    pub jobs: u64,
    /// How many units were read.
    pub units: u64,
    /// How many attempts were read.
    pub attempts: u64,
    /// How many messages were read.
    pub messages: u64,
    /// How many workers were read.
    pub workers: u64,
    /// How many rows of the journal were read.
    pub journal_rows: u64,
    /// The link of its last row; `None` if there is none, or it cannot be read.
    pub journal_head: Option<Hash>,
    /// How many rows of the journal of jobs were read.
    pub job_journal_rows: u64,
    /// The link of its last row; `None` if there is none, or it cannot be read.
    pub job_journal_head: Option<Hash>,
}

impl Verification {
    /// What was found before anything was counted.
    fn of(findings: Findings) -> Verification {
        Verification {
            findings: findings.kept,
            findings_left_out: findings.left_out,
            jobs: 0,
            units: 0,
            attempts: 0,
            messages: 0,
            workers: 0,
            journal_rows: 0,
            journal_head: None,
            job_journal_rows: 0,
            job_journal_head: None,
        }
    }

    /// Whether everything holds.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty() && self.findings_left_out == 0
    }
}

impl fmt::Display for Verification {
    /// One line, and one more for every finding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Verification { units, attempts, messages, journal_rows, .. } = self;
        let findings = self.findings.len() as u64 + self.findings_left_out;
        write!(f, "{units} units, {attempts} attempts, {messages} messages, {journal_rows} journal rows: ")?;
        match findings {
            0 => write!(f, "no findings")?,
            1 => write!(f, "1 finding")?,
            _ => write!(f, "{findings} findings")?,
        }
        self.findings.iter().try_for_each(|finding| write!(f, "\n{finding}"))?;
        match self.findings_left_out {
            0 => Ok(()),
            left_out => write!(f, "\nand {left_out} more"),
        }
    }
}

/// A verification under way: what was found, and what must be remembered from one record to another.
#[derive(Debug)]
struct Audit<'a> {
    options: &'a Verify,
    archive: &'a dyn Archive,
    findings: Findings,
    totals: Totals,
    /// Rows of the journal that cannot be read.
    journal_damage: u64,
    journal_head: Option<Hash>,
    job_journal_head: Option<Hash>,
    /// Links that rows of the journal must have, by their number: those that the caller knows, and those in the journal of jobs.
    known_links: BTreeMap<i64, Vec<Hash>>,
    /// Rows of the journal that were found through their units.
    rows_of_units: u64,
    /// Units whose record or attempts cannot be read. With any, no sum over the units is whole.
    unreadable_units: u64,
    /// How many units of each job there are.
    counts: HashMap<JobId, Counts>,
    /// Whether each owner has ended; `None` if that cannot be read.
    owners: Option<HashMap<OwnerId, bool>>,
    /// What is left of each budget, as far as its attempts were counted.
    accounts: BTreeMap<AccountHolder, Account>,
    /// What each worker holds. As many as there are leases now.
    held: HashMap<(OwnerId, WorkerId), Vec<UnitKey>>,
}

#[derive(Debug, Default)]
struct Totals {
    jobs: u64,
    units: u64,
    attempts: u64,
    messages: u64,
    workers: u64,
    journal_rows: u64,
    job_journal_rows: u64,
}

impl<'a> Audit<'a> {
    fn new(options: &'a Verify, archive: &'a dyn Archive) -> Audit<'a> {
        let mut known_links: BTreeMap<i64, Vec<Hash>> = BTreeMap::new();
        for (seq, link) in &options.known_heads {
            known_links.entry(*seq).or_default().push(*link);
        }
        Audit {
            options,
            archive,
            findings: Findings::default(),
            totals: Totals::default(),
            journal_damage: 0,
            journal_head: None,
            job_journal_head: None,
            known_links,
            rows_of_units: 0,
            unreadable_units: 0,
            counts: HashMap::new(),
            owners: None,
            accounts: BTreeMap::new(),
            held: HashMap::new(),
        }
    }

    fn integrity(&mut self) -> Result<()> {
        let problems = self.archive.integrity();
        for problem in self.readable("the storage", problems)?.into_iter().flatten() {
            self.findings.add(Invariant::I13, "the storage", problem);
        }
        Ok(())
    }

    fn heads(&mut self) -> Result<()> {
        for heads in &self.options.heads {
            let compared = compare(self.archive, heads)?;
            for finding in compared.findings {
                self.findings.add(finding.invariant, &finding.subject, finding.problem);
            }
            self.findings.left_out += compared.findings_left_out;
        }
        Ok(())
    }

    fn acknowledged(&mut self) -> Result<()> {
        for (job_id, id) in &self.options.acknowledged {
            match self.archive.unit(*job_id, id) {
                // One that cannot be read is there; the other checks have found it.
                Ok(_) | Err(RepositoryError::Corrupt { .. }) => {}
                Err(error) if error.is_rejection() => {
                    let subject = format!("unit `{}`", shortened(id));
                    self.findings.add(Invariant::I1, &subject, "was acknowledged, but is not there");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// What was read; `None` with a finding if it is damaged or missing.
    fn readable<T>(&mut self, subject: &str, read: Result<T>) -> Result<Option<T>> {
        match read {
            Ok(value) => Ok(Some(value)),
            Err(error @ RepositoryError::Corrupt { .. }) => {
                self.findings.add(Invariant::I13, subject, sequence::explain(&error));
                Ok(None)
            }
            Err(error) if error.is_rejection() => {
                self.findings.add(Invariant::I13, subject, error.to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn search(&mut self, subject: &str, bytes: &[u8]) {
        if let Some(which) = self.options.secrets.find_in(bytes) {
            self.secret_found(subject, which);
        }
    }

    fn search_record(&mut self, subject: &str, record: &impl Serialize) {
        if self.options.secrets.is_empty() {
            return;
        }
        if let Some(which) = self.options.secrets.find_in_record(record) {
            self.secret_found(subject, which);
        }
    }

    fn secret_found(&mut self, subject: &str, which: usize) {
        self.findings.add(Invariant::I12, subject, format!("holds secret {which}, which must not be stored"));
    }

    fn finish(self) -> Verification {
        let Totals { jobs, units, attempts, messages, workers, journal_rows, job_journal_rows } = self.totals;
        Verification {
            jobs,
            units,
            attempts,
            messages,
            workers,
            journal_rows,
            journal_head: self.journal_head,
            job_journal_rows,
            job_journal_head: self.job_journal_head,
            ..Verification::of(self.findings)
        }
    }
}
