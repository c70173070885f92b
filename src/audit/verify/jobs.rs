//! The jobs against their journal: a chain without gaps, whose last row about a job says what that is (I13).

use std::collections::{HashMap, HashSet};

use super::finding::Invariant;
use super::journal::Chain;
use super::sequence::Sequence;
use super::{Audit, Verification, Verify};
use crate::chain::{self, Hash};
use crate::job::JobId;
use crate::repository::{Archive, JobEntry, RepositoryError, Result};

const SUBJECT: &str = "the journal of jobs";

/// Checks the jobs and their journal, and nothing else: that what is kept with a job, such as the program that executes its units, is what somebody
/// has put there through a repository. It takes as long as there are jobs.
///
/// # Errors
///
/// Only if the storage does not answer; what is wrong with its contents is a [`Finding`](super::Finding).
///
/// ```
/// use workcrew::audit::verify::verify_jobs;
/// use workcrew::{MemoryRepository, NewJob, Repository};
///
/// let repository = MemoryRepository::new();
/// repository.create_job(&NewJob::named("pages").settings("anything"))?;
/// assert!(verify_jobs(&repository)?.is_clean());
/// # Ok::<(), workcrew::RepositoryError>(())
/// ```
pub fn verify_jobs(archive: &dyn Archive) -> Result<Verification> {
    let options = Verify::new();
    let mut audit = Audit::new(&options, archive);
    audit.job_journal()?;
    Ok(audit.finish())
}

/// What the journal of jobs says of them.
#[derive(Default)]
struct Recorded {
    /// The last hash of each job.
    last: HashMap<JobId, Hash>,
    /// Jobs of which a row does not hold. One finding for each is enough.
    doubtful: HashSet<JobId>,
    /// Whether a row cannot be read, so that nothing can be said to be missing.
    is_damaged: bool,
}

impl Audit<'_> {
    pub(super) fn job_journal(&mut self) -> Result<()> {
        let archive = self.archive;
        let (mut chain, mut recorded) = (Chain::from(chain::job_journal_genesis()), Recorded::default());
        for row in Sequence::new(|after, limit| archive.job_journal(after, limit)) {
            match row? {
                Ok(row) => {
                    self.totals.job_journal_rows += 1;
                    self.search_record(&format!("row {} of {SUBJECT}", row.seq), &row);
                    let notes = &mut self.findings.about(SUBJECT);
                    chain.check(row.seq, row.link, |previous| chain::job_journal_link(previous, &row), notes);
                    if let Some(link) = row.journal_link {
                        self.known_links.entry(row.journal_seq).or_default().push(link);
                    }
                    self.job_row(&row, &mut recorded)?;
                }
                Err(damage) => {
                    recorded.is_damaged = true;
                    self.findings.add(Invariant::I13, SUBJECT, damage.problem);
                    chain.skip(damage.position);
                }
            }
        }
        self.job_journal_head = chain.head();
        self.recorded_jobs(recorded)
    }

    /// What a row keeps of a job is what its hash was made of.
    fn job_row(&mut self, row: &JobEntry, recorded: &mut Recorded) -> Result<()> {
        let JobEntry { seq, job_id, digest, .. } = row;
        recorded.last.insert(*job_id, *digest);
        let problem = match self.archive.job(*job_id) {
            Ok(job) if row.job(&job).digest() == *digest => return Ok(()),
            Ok(_) => format!("its name, its template or when it was made is not what row {seq} of {SUBJECT} says"),
            Err(RepositoryError::UnknownJob(_)) => format!("is not there, but row {seq} of {SUBJECT} is about it"),
            // Found below, where the jobs are read.
            Err(RepositoryError::Corrupt { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        if recorded.doubtful.insert(*job_id) {
            self.findings.add(Invariant::I13, &job_id.to_string(), problem);
        }
        Ok(())
    }

    /// Each job is what the last row about it says.
    fn recorded_jobs(&mut self, recorded: Recorded) -> Result<()> {
        let archive = self.archive;
        for job in Sequence::new(|after, limit| archive.jobs(after, limit)) {
            let job = match job? {
                Ok(job) => job,
                Err(damage) => {
                    self.findings.add(Invariant::I13, "the jobs", damage.problem);
                    continue;
                }
            };
            let problem = match recorded.last.get(&job.id) {
                _ if recorded.doubtful.contains(&job.id) => continue,
                Some(digest) if *digest == job.digest() => continue,
                _ if recorded.is_damaged => continue,
                Some(_) => format!("its budget or its settings are not what {SUBJECT} says"),
                None => format!("{SUBJECT} says nothing about it"),
            };
            self.findings.add(Invariant::I13, &job.id.to_string(), problem);
        }
        Ok(())
    }
}
