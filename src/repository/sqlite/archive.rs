//! A database that is only read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::Value;

use super::open::{self, OpenError, Place, Reading};
use super::owners::{read_owners, read_workers};
use super::read::{self, Rows, understood_attempt, understood_list};
use super::readers::Readers;
use super::rows::{read_attempt, read_attempt_result, read_attempts, read_charges};
use super::{accounts, backup, health, jobs, providers};
use crate::attempt::{Attempt, AttemptKey, AttemptResult};
use crate::clock::{Clock, SystemClock};
use crate::conversation::StoredMessage;
use crate::job::{Job, JobId};
use crate::lease::{Owner, OwnerId};
use crate::limits::{Account, AccountHolder, ProviderHold};
use crate::money::Charge;
use crate::repository::{
    Archive, Costs, Counts, Health, JobEntry, JournalEntry, LeaseView, Page, Result, StoredInputs, UnitFilter,
    UnitSummary, rules,
};
use crate::unit::{UnitKey, WorkUnit};
use crate::worker::Worker;

/// How long a reader waits for whoever repairs the log; writers never make it wait.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// A database file that is read and never written: for audits, weeks later, of a file that need not be trusted.
///
/// Nothing that is stored in it is executed. A file in a folder that cannot be written is read too, if
/// its last writer ended in order.
///
/// ```
/// use workcrew::repository::sqlite::SqliteArchive;
/// use workcrew::{Archive, NewJob, Repository, SqliteRepository};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("batch.db");
/// SqliteRepository::open(&path)?.create_job(&NewJob::named("summaries"))?;
///
/// let archive = SqliteArchive::open(&path)?;
/// assert_eq!(archive.jobs(0, 100)?.items[0].name, "summaries");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct SqliteArchive {
    place: Place,
    readers: Readers,
    clock: Arc<dyn Clock>,
}

impl SqliteArchive {
    /// Opens a file for reading.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says why it cannot be read.
    pub fn open(path: impl AsRef<Path>) -> std::result::Result<SqliteArchive, OpenError> {
        SqliteArchive::open_with_clock(path, SystemClock)
    }

    /// The same with a clock of one's own, which says how much is left of [leases](Archive::leases).
    ///
    /// # Errors
    ///
    /// [`OpenError`] says why it cannot be read.
    pub fn open_with_clock(path: impl AsRef<Path>, clock: impl Clock) -> std::result::Result<SqliteArchive, OpenError> {
        let place = open::find(path.as_ref())?;
        let readers = match open::reading(&place, BUSY_TIMEOUT)? {
            Reading::Shared => shared_readers(place.clone()),
            Reading::Immutable => {
                let place = place.clone();
                Readers::new(Box::new(move || open::immutable_connection(&place)))
            }
        };
        Ok(SqliteArchive { place, readers, clock: Arc::new(clock) })
    }

    /// The reading half of a repository, with its clock.
    pub(super) fn beside_writer(place: Place, clock: Arc<dyn Clock>) -> SqliteArchive {
        SqliteArchive { readers: shared_readers(place.clone()), place, clock }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Copies the database into a new file, while it is in use or not, by SQLite's own means.
    ///
    /// The copy is a whole database of one moment, and has its name only once it is whole: if this fails, or the process dies, there is
    /// nothing of that name. Whoever writes meanwhile is not kept from it, but the log grows until the copy is done.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::RepositoryError::Invalid) if something is there already, which is left as it is; storage errors.
    pub fn backup(&self, to: impl AsRef<Path>) -> Result<PathBuf> {
        let to = to.as_ref();
        self.look(|connection| backup::backup(connection, to))?;
        Ok(to.to_owned())
    }

    /// How the file is: its size, its log, the disk that it is on.
    ///
    /// # Errors
    ///
    /// [`Gone`](crate::RepositoryError::Gone) if it is no longer there, and what the storage says.
    pub fn health(&self) -> Result<Health> {
        self.look(|connection| health::look(&self.place, connection))
    }

    pub(super) fn look<T>(&self, look: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.readers.look(look)
    }

    /// Closes the connections that nobody reads from.
    pub(super) fn close_idle(&self) {
        self.readers.close_idle();
    }
}

impl From<SqliteArchive> for Arc<dyn Archive> {
    fn from(archive: SqliteArchive) -> Arc<dyn Archive> {
        Arc::new(archive)
    }
}

fn shared_readers(place: Place) -> Readers {
    Readers::new(Box::new(move || open::reading_connection(&place, BUSY_TIMEOUT)))
}

impl Archive for SqliteArchive {
    fn job(&self, id: JobId) -> Result<Job> {
        self.look(|connection| read::job(connection, id))
    }

    fn job_named(&self, name: &str) -> Result<Option<Job>> {
        self.look(|connection| read::job_named(connection, name))
    }

    fn jobs(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        self.look(|connection| read::jobs(connection, after, limit))
    }

    fn job_journal(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        self.look(|connection| jobs::journal(connection, after, limit))
    }

    fn unit(&self, job_id: JobId, id: &str) -> Result<WorkUnit> {
        self.look(|connection| read::unit(connection, job_id, id))
    }

    fn units(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        self.look(|connection| read::units(connection, filter, after, limit))
    }

    fn summaries(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<UnitSummary>> {
        self.look(|connection| read::summaries(connection, filter, after, limit))
    }

    fn account(&self, holder: AccountHolder) -> Result<Option<Account>> {
        self.look(|connection| match read::stored(accounts::are_known(connection))? {
            true => understood_list("an account", accounts::read(connection, holder)),
            false => understood_list("an account", accounts::before_any(connection, holder)),
        })
    }

    fn holds(&self) -> Result<Vec<ProviderHold>> {
        let (now, boot_id) = (self.clock.now(), self.clock.boot_id());
        self.look(|connection| understood_list("a hold", providers::read_holds(connection, now, &boot_id)))
    }

    fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.look(|connection| read::counts(connection, job_id))
    }

    fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        self.look(|connection| read::costs(connection, job_id))
    }

    fn attempts(&self, unit: UnitKey) -> Result<Vec<Attempt>> {
        let first = AttemptKey { unit, number: 1 };
        self.look(|connection| understood_attempt(first, read_attempts(connection, unit)))
    }

    fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        self.look(|connection| {
            if understood_attempt(attempt, read_attempt(connection, attempt))?.is_none() {
                return Err(rules::no_such_attempt(attempt));
            }
            understood_attempt(attempt, read_attempt_result(connection, attempt))
        })
    }

    fn charges(&self, attempt: AttemptKey) -> Result<Vec<Charge>> {
        self.look(|connection| understood_attempt(attempt, read_charges(connection, attempt)))
    }

    fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        self.look(|connection| read::messages(connection, attempt, after, limit))
    }

    fn partial_text(&self, attempt: AttemptKey) -> Result<Option<String>> {
        self.look(|connection| read::partial_text(connection, attempt))
    }

    fn checkpoint(&self, unit: UnitKey) -> Result<Option<Value>> {
        self.look(|connection| read::checkpoint(connection, unit))
    }

    fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        self.look(|connection| read::inputs(connection, unit))
    }

    fn journal(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.look(|connection| read::journal(connection, &Rows::All, after, limit))
    }

    fn unit_journal(&self, unit: UnitKey, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.look(|connection| read::journal(connection, &Rows::OfUnit(unit), after, limit))
    }

    fn outcomes_since(&self, after: i64, limit: usize) -> Result<Page<JournalEntry>> {
        self.look(|connection| read::journal(connection, &Rows::Outcomes, after, limit))
    }

    fn leases(&self, job_id: Option<JobId>, after: i64, limit: usize) -> Result<Page<LeaseView>> {
        // Read first: what is renewed meanwhile must not look as if it had run out.
        let (now, boot_id) = (self.clock.now(), self.clock.boot_id());
        self.look(|connection| read::leases(connection, job_id, after, limit, (now, &boot_id)))
    }

    fn owners(&self) -> Result<Vec<Owner>> {
        self.look(|connection| understood_list("an owner", read_owners(connection)))
    }

    fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Result<Vec<Worker>> {
        let limit = rules::page_limit(limit);
        self.look(|connection| understood_list("a worker", read_workers(connection, owner, after, limit)))
    }

    fn integrity(&self) -> Result<Vec<String>> {
        self.look(read::integrity)
    }
}
