//! One file on one machine: SQLite, written by one thread, read by many.
//!
//! | file | idea |
//! |---|---|
//! | `open` | what is ours, what is refused, how a new file comes to be |
//! | `migrate` | the schema, and how an older one becomes today's |
//! | `writer` | all changes go through one thread, which commits whatever waits as one transaction |
//! | `book` | an open transaction, the journal's chain, what the writer remembers |
//! | `jobs`, `units`, `claims`, `attempts`, `endings`, `owners`, `purge` | the verbs, in the order a unit travels |
//! | `accounts` | budgets, brought up to date as attempts begin and end |
//! | `messages`, `rows` | between rows and records |
//! | `readers`, `read`, `backlog`, `archive`, `own_archive` | reading, beside the writer or without one |
//! | `upkeep`, `health`, `wal`, `backup`, `compact` | the file as such: how it is, its log, a copy of it, its size |
//! | `search` | the index of all words, in a file of its own |
//!
//! # Locking
//!
//! Every write transaction is `BEGIN IMMEDIATE`, so it has the lock before it reads. One process has one writer for a
//! file, whatever the number of repositories opened on it; several processes take turns.
//!
//! # Durability
//!
//! Write-ahead log with `synchronous=FULL`: what was acknowledged survives a power loss.
//!
//! # Weaknesses
//!
//! [`counts`](Archive::counts) and [`costs`](Archive::costs) look at every row of a job: an index for them would cost
//! every unit more than they are worth.

mod accounts;
mod archive;
mod attempts;
mod backlog;
mod backup;
mod book;
mod claims;
mod compact;
mod endings;
mod health;
mod jobs;
mod messages;
mod migrate;
mod open;
mod own_archive;
mod owners;
#[cfg(test)]
mod plans;
mod providers;
mod purge;
mod read;
mod readers;
mod rows;
pub(crate) mod search;
mod units;
mod upkeep;
mod wal;
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Condvar, LazyLock, Mutex, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

pub use self::archive::SqliteArchive;
use self::book::Memory;
use self::claims::read_claimed;
pub use self::compact::Compacted;
pub use self::open::OpenError;
use self::open::Place;
use self::units::Taken;
use self::writer::File;
use super::listeners::Listeners;
use super::prepared::{BeginningRow, NewMessage, NewRow, ReportRow, Terms, fresh_claim};
use super::rules::End;
use super::writer::{Order, Patience, Writer, WriterThread};
use super::{
    Archive, Backlog, By, CancelAnswer, ClaimRequest, Claimant, Closed, Insertion, Intake, News, Page, Purged,
    Repository, Result, Slot, Submitted, Swept, UnitFilter, rules,
};
use crate::attempt::{AttemptReport, Beginning, Progress};
use crate::clock::{Clock, SystemClock};
use crate::conversation::{Message, to_json};
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::lease::{Backpressure, Claim, Held, Lease, NewOwner, OwnerId, OwnerState};
use crate::limits::{Ask, NewHold, RateLimits, Turn};
use crate::unit::{NewUnit, UnitKey, WorkUnit};
use crate::worker::{Worker, WorkerChange};

/// A repository in one SQLite file. Clones share it, and so does whoever opens the same file again in this process.
///
/// ```
/// use workcrew::{Archive, NewJob, NewUnit, Repository, SqliteRepository, UnitStatus};
/// use workcrew::repository::Intake;
///
/// let folder = tempfile::tempdir()?;
/// let repository = SqliteRepository::open(folder.path().join("batch.db"))?;
/// let job = repository.create_job(&NewJob::named("summaries"))?;
/// repository.insert(job.id, &[NewUnit::new("page-1").prompt("Summarise page 1.")], Intake::Open)?;
/// assert_eq!(repository.unit(job.id, "page-1")?.status, UnitStatus::Pending);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SqliteRepository {
    shared: Arc<Shared>,
}

/// What all repositories on one file in this process share.
#[derive(Debug)]
struct Shared {
    place: Place,
    writer: Writer<File>,
    thread: Option<JoinHandle<()>>,
    archive: SqliteArchive,
    listeners: Listeners,
    clock: Arc<dyn Clock>,
    busy_timeout: Duration,
}

/// What is open, by device and inode.
type OpenFiles = HashMap<(u64, u64), Weak<Shared>>;

/// The files that are open in this process. One that is being closed stays until it is, so that no file ever has two
/// writers here.
static OPEN_FILES: LazyLock<(Mutex<OpenFiles>, Condvar)> = LazyLock::new(Default::default);

/// How a database is opened.
///
/// ```
/// use std::time::Duration;
/// use workcrew::repository::sqlite::SqliteOptions;
///
/// let folder = tempfile::tempdir()?;
/// let repository = SqliteOptions::new().busy_timeout(Duration::from_secs(1)).open(folder.path().join("batch.db"))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SqliteOptions {
    clock: Arc<dyn Clock>,
    patience: Patience,
    is_chained: bool,
}

impl SqliteOptions {
    /// The defaults.
    pub fn new() -> SqliteOptions {
        let patience = Patience { busy: Duration::from_secs(5), failing: Duration::from_secs(60) };
        SqliteOptions { clock: Arc::new(SystemClock), patience, is_chained: true }
    }

    /// Where time comes from (the machine's clocks).
    pub fn clock(mut self, clock: impl Clock) -> SqliteOptions {
        self.clock = Arc::new(clock);
        self
    }

    /// How long a change waits while another process has the file locked (5 seconds). What an attempt brought waits
    /// for as long as [`write_patience`](SqliteOptions::write_patience) if that is longer.
    pub fn busy_timeout(mut self, timeout: Duration) -> SqliteOptions {
        self.patience.busy = timeout;
        self
    }

    /// How long what an attempt brought is kept and tried again while the storage fails, for example because
    /// the disk is full (60 seconds). Other changes fail at once.
    pub fn write_patience(mut self, patience: Duration) -> SqliteOptions {
        self.patience.failing = patience;
        self
    }

    /// Leaves the links of messages and journal out, to measure what they cost. Such a database does not verify.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn without_chain(mut self) -> SqliteOptions {
        self.is_chained = false;
        self
    }

    /// Opens a file, or makes a new one.
    ///
    /// If the file is already open in this process, that repository is shared, with the options it was opened with.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says why it was refused.
    pub fn open(self, path: impl AsRef<Path>) -> std::result::Result<SqliteRepository, OpenError> {
        let place = open::find_or_create(path.as_ref())?;
        let (open_files, was_closed) = &*OPEN_FILES;
        let mut open_files = open_files.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(shared) = open_files.get(&place.identity()) {
            if let Some(shared) = shared.upgrade() {
                return Ok(SqliteRepository { shared });
            }
            open_files = was_closed.wait(open_files).unwrap_or_else(PoisonError::into_inner);
        }
        let shared = Arc::new(self.start(place.clone())?);
        open_files.insert(place.identity(), Arc::downgrade(&shared));
        Ok(SqliteRepository { shared })
    }

    fn start(self, place: Place) -> std::result::Result<Shared, OpenError> {
        let connection = open::writing_connection(&place, &*self.clock, self.patience.busy)?;
        let writer = Writer::new();
        let memory = Memory::new(self.is_chained);
        let failed = |error: std::io::Error| OpenError::Failed { path: place.path().to_owned(), source: error.into() };
        let file = File::new(connection, memory, place.clone(), self.patience.busy);
        let thread = WriterThread::new(&writer, file, self.patience).map_err(failed)?;
        let thread = std::thread::Builder::new().name("workcrew-writer".to_owned()).spawn(move || thread.serve());
        let thread = thread.map_err(failed)?;
        let archive = SqliteArchive::beside_writer(place.clone(), Arc::clone(&self.clock));
        let listeners = Listeners::default();
        let (clock, busy_timeout) = (self.clock, self.patience.busy);
        Ok(Shared { place, writer, thread: Some(thread), archive, listeners, clock, busy_timeout })
    }
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        SqliteOptions::new()
    }
}

impl SqliteRepository {
    /// Opens a file, or makes a new one, with the default [options](SqliteOptions). There is no default for where it is.
    ///
    /// # Errors
    ///
    /// [`OpenError`] says why it was refused.
    pub fn open(path: impl AsRef<Path>) -> std::result::Result<SqliteRepository, OpenError> {
        SqliteOptions::new().open(path)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        self.shared.place.path()
    }

    fn run<T: Send + 'static>(
        &self,
        order: Order,
        work: impl FnMut(&mut book::Book<'_>) -> book::Answer<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.writer.run(order, work)
    }
}

impl Drop for Shared {
    /// Writes what still waits, and leaves the file without a log if nobody else has it open.
    fn drop(&mut self) {
        // Only who closes the file last removes its log, and only who can write.
        self.archive.close_idle();
        self.writer.close();
        if let Some(thread) = self.thread.take() {
            // The thread reports its own trouble; here nobody could do anything about it.
            let _ = thread.join();
        }
        let (open_files, was_closed) = &*OPEN_FILES;
        open_files.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.place.identity());
        was_closed.notify_all();
    }
}

impl From<SqliteRepository> for Arc<dyn Archive> {
    fn from(repository: SqliteRepository) -> Arc<dyn Archive> {
        Arc::new(repository)
    }
}

impl From<SqliteRepository> for Arc<dyn Repository> {
    fn from(repository: SqliteRepository) -> Arc<dyn Repository> {
        Arc::new(repository)
    }
}

impl Repository for SqliteRepository {
    fn create_job(&self, job: &NewJob) -> Result<Job> {
        let (now, job) = (self.shared.clock.now(), rules::check_new_job(job)?);
        self.run(Order::new("create_job"), move |book| book.create_job(now, &job))
    }

    fn change_job(&self, job_id: JobId, change: &JobChange, by: &By) -> Result<Job> {
        let (now, change, by) = (self.shared.clock.now(), rules::check_job_change(change)?, by.clone());
        self.run(Order::new("change_job"), move |book| book.change_job(now, job_id, &change, &by))
    }

    fn insert(&self, job_id: JobId, units: &[NewUnit], intake: Intake) -> Result<Vec<Insertion>> {
        let now = self.shared.clock.now();
        let mut rows = units.iter().map(NewRow::of).collect::<Result<Vec<_>>>()?;
        rows.iter_mut().for_each(|row| row.inserted_at(now, intake));
        let order = Order::new("insert").bytes(rows.iter().map(NewRow::len_bytes).sum());
        let inserted = self.run(order, move |book| book.insert(now, job_id, &rows, intake))?;
        if intake == Intake::Open {
            self.shared.listeners.tell_of_new(job_id, &inserted);
        }
        Ok(inserted)
    }

    fn submit(&self, job_id: JobId, unit: &NewUnit, claimant: &Claimant, slot: &Slot) -> Result<Submitted> {
        let now = self.shared.clock.now();
        let mut row = NewRow::of(unit)?;
        row.inserted_at(now, Intake::Open);
        rules::check_slot(slot)?;
        let (mut terms, clock) = (Terms::of(claimant)?, Arc::clone(&self.shared.clock));
        let order = Order::new("submit").bytes(row.len_bytes());
        let slot = slot.clone();
        let taken = self.run(order, move |book| book.submit(now, job_id, &row, terms.granted(clock.now()), &slot))?;
        Ok(match taken {
            Taken::Fresh(lease, status) => Submitted::Claimed(Box::new(fresh_claim(unit, lease, status, now))),
            Taken::Found(answer) => answer,
        })
    }

    fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        let now = self.shared.clock.now();
        request.slots.iter().try_for_each(rules::check_slot)?;
        let (mut terms, clock) = (Terms::of(&request.claimant)?, Arc::clone(&self.shared.clock));
        let request = request.clone();
        self.run(Order::new("claim"), move |book| book.claim(now, &request, terms.granted(clock.now())))
    }

    fn backlog(&self, job_id: JobId, owner: OwnerId, limit: usize) -> Result<Backlog> {
        let now = self.shared.clock.now();
        self.shared.archive.look(|connection| backlog::backlog(connection, now, job_id, owner, limit))
    }

    fn accepted(&self, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>> {
        self.shared.archive.look(|connection| backlog::accepted(connection, owner, after, limit))
    }

    fn listen(&self, job_id: JobId, hear: Box<dyn Fn(&News) -> bool + Send + Sync>) {
        self.shared.listeners.add(job_id, hear);
    }

    fn claimed(&self, owner: OwnerId, token: i64) -> Result<Vec<Claim>> {
        self.shared.archive.look(|connection| {
            let leases = read::understood_list("a lease", read_claimed(connection, owner, token))?;
            leases.into_iter().map(|lease| read::claim_of(connection, lease)).collect()
        })
    }

    fn start(&self, lease: &Lease, beginning: &Beginning) -> Result<()> {
        let (now, lease, row) = (self.shared.clock.now(), lease.clone(), BeginningRow::of(beginning)?);
        let order = Order::new("start").attempt(lease.attempt()).bytes(row.len_bytes());
        self.run(order, move |book| book.start(now, &lease, &row))
    }

    fn append(&self, lease: &Lease, follows: u32, messages: &[Message]) -> Result<()> {
        let (now, lease, attempt) = (self.shared.clock.now(), lease.clone(), lease.attempt());
        let messages = messages.iter().map(NewMessage::of).collect::<Result<Vec<_>>>()?;
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        let bytes = messages.iter().map(NewMessage::len_bytes).sum();
        let order = Order::new("append").attempt(attempt).bytes(bytes);
        let work = move |book: &mut book::Book<'_>| book.append(now, &lease, follows, &messages);
        self.shared.writer.run_unawaited(order, attempt, count, work)
    }

    fn partial(&self, lease: &Lease, text: &str) -> Result<()> {
        rules::check_partial(text)?;
        let (lease, attempt, text) = (lease.clone(), lease.attempt(), text.to_owned());
        let order = Order::new("partial").attempt(attempt).bytes(text.len());
        // What is lost of a partial message comes again with the next.
        self.shared.writer.run_unawaited(order, attempt, 0, move |book| book.partial(&lease, &text))
    }

    fn flush(&self, lease: &Lease) -> Result<()> {
        let lease = lease.clone();
        self.run(Order::new("flush").attempt(lease.attempt()), move |book| book.flush(&lease))
    }

    fn progress(&self, lease: &Lease, progress: &Progress) -> Result<()> {
        rules::check_charges(&progress.charges)?;
        let (lease, progress) = (lease.clone(), progress.clone());
        self.run(Order::new("progress").attempt(lease.attempt()), move |book| book.progress(&lease, &progress))
    }

    fn checkpoint_at(&self, lease: &Lease, value: &Value) -> Result<()> {
        let (lease, value) = (lease.clone(), to_json(value)?);
        let order = Order::new("checkpoint_at").attempt(lease.attempt()).bytes(value.len());
        self.run(order, move |book| book.checkpoint_at(&lease, &value))
    }

    fn take_turn(&self, lease: &Lease, provider: &str, limits: &RateLimits, ask: &Ask) -> Result<Turn> {
        rules::check_turn(provider, limits)?;
        let (clock, lease, provider) = (self.shared.clock.clone(), lease.clone(), provider.to_owned());
        let (boot_id, limits, ask) = (clock.boot_id(), *limits, *ask);
        let order = Order::new("take_turn").attempt(lease.attempt());
        // A turn counts from when it is granted, not from when it was asked for.
        self.run(order, move |book| book.take_turn(clock.now(), &boot_id, &lease, &provider, &limits, &ask))
    }

    fn hold(&self, hold: &NewHold) -> Result<()> {
        rules::check_provider(&hold.provider)?;
        let (now, boot_id, hold) = (self.shared.clock.now(), self.shared.clock.boot_id(), hold.clone());
        // Urgent: until it is there others go on asking.
        self.run(Order::new("hold").urgent(), move |book| book.hold(now, &boot_id, &hold))
    }

    fn lift(&self, provider: &str) -> Result<bool> {
        let (now, boot_id, provider) = (self.shared.clock.now(), self.shared.clock.boot_id(), provider.to_owned());
        self.run(Order::new("lift"), move |book| book.lift(now, &boot_id, &provider))
    }

    fn finish(&self, lease: &Lease, report: &AttemptReport) -> Result<Closed> {
        let (now, held, row) = (self.shared.clock.now(), lease.clone(), ReportRow::of(report)?);
        let order = Order::new("finish").attempt(lease.attempt()).bytes(row.len_bytes());
        let closed = self.run(order, move |book| book.finish(now, &held, &row))?;
        self.shared.listeners.tell_of_end(lease, &closed);
        Ok(closed)
    }

    fn release(&self, lease: &Lease, after: Option<Duration>, reason: &str) -> Result<Closed> {
        let (now, lease, reason) = (self.shared.clock.now(), lease.clone(), reason.to_owned());
        let order = Order::new("release").attempt(lease.attempt());
        self.run(order, move |book| book.release(now, &lease, after, &reason))
    }

    fn renew(&self, owner: OwnerId, ttl: Duration) -> Result<Vec<Held>> {
        let (clock, ttl_ms) = (Arc::clone(&self.shared.clock), rules::check_ttl(ttl)?);
        self.run(Order::new("renew").urgent(), move |book| book.renew(clock.now(), owner, ttl_ms))
    }

    fn expire(&self, limit: usize) -> Result<Vec<Swept>> {
        let (now, boot_id) = (self.shared.clock.now(), self.shared.clock.boot_id());
        let swept = self.run(Order::new("expire"), move |book| book.expire(now, &boot_id, limit))?;
        self.shared.listeners.tell(&News::Queued, |job_id| swept.iter().any(|swept| swept.job_id == job_id));
        Ok(swept)
    }

    fn cancel(&self, job_id: JobId, id: &str, by: &By) -> Result<CancelAnswer> {
        let (now, name, by) = (self.shared.clock.now(), id.to_owned(), by.clone());
        let order = Order::new("cancel").urgent();
        let (unit, answer) = self.run(order, move |book| book.cancel(now, job_id, &name, &by))?;
        self.shared.listeners.tell_of_cancel(job_id, unit, id, answer);
        Ok(answer)
    }

    fn requeue(&self, job_id: JobId, id: &str, by: &By) -> Result<()> {
        let (now, id, by) = (self.shared.clock.now(), id.to_owned(), by.clone());
        self.run(Order::new("requeue"), move |book| book.requeue(now, job_id, &id, None, &by))?;
        self.shared.listeners.tell_of_queued(job_id);
        Ok(())
    }

    fn requeue_unchanged(&self, read: &WorkUnit, by: &By) -> Result<()> {
        let (now, job_id, end) = (self.shared.clock.now(), read.job_id, End::of(read));
        let (id, by) = (read.id.clone(), by.clone());
        self.run(Order::new("requeue"), move |book| book.requeue(now, job_id, id.as_str(), Some(end), &by))?;
        self.shared.listeners.tell_of_queued(job_id);
        Ok(())
    }

    fn register_owner(&self, owner: &NewOwner) -> Result<OwnerId> {
        let (now, owner) = (self.shared.clock.now(), owner.clone());
        self.run(Order::new("register_owner"), move |book| book.register_owner(now, &owner))
    }

    fn let_go(&self, owner: OwnerId) -> Result<u64> {
        let let_go = self.run(Order::new("let_go"), move |book| book.let_go(owner))?;
        self.shared.listeners.tell(&News::Queued, |_| let_go > 0);
        Ok(let_go)
    }

    fn tell(&self, owner: OwnerId, state: &OwnerState) -> Result<()> {
        let (now, state) = (self.shared.clock.now(), rules::state_json(state)?);
        // Urgent: whoever tells also renews leases, and must not wait behind conversations.
        self.run(Order::new("tell").urgent(), move |book| book.tell(now, owner, &state))
    }

    fn backpressure(&self) -> Option<Backpressure> {
        Some(self.shared.writer.backpressure())
    }

    fn end_owner(&self, owner: OwnerId) -> Result<()> {
        let now = self.shared.clock.now();
        self.run(Order::new("end_owner"), move |book| book.end_owner(now, owner))?;
        self.shared.listeners.tell(&News::Queued, |_| true);
        Ok(())
    }

    fn change_worker(&self, owner: OwnerId, job_id: JobId, slot: &Slot, change: WorkerChange) -> Result<Worker> {
        rules::check_worker_change(change)?;
        rules::check_slot(slot)?;
        let (now, slot) = (self.shared.clock.now(), slot.clone());
        let order = Order::new("change_worker");
        let worker = self.run(order, move |book| book.change_worker(now, owner, job_id, &slot, change))?;
        self.shared.listeners.tell_of_worker(job_id, change);
        Ok(worker)
    }

    fn purge(&self, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        self.purge_where(&UnitFilter::default(), before, by)
    }

    fn purge_where(&self, filter: &UnitFilter, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        let (now, before_ms) = (self.shared.clock.now(), before.timestamp_millis());
        let (filter, by) = (filter.clone(), by.clone());
        let purged = self.run(Order::new("purge"), move |book| book.purge(now, &filter, before_ms, &by))?;
        Ok(purge::wipe(&self.shared.place, purged))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};

    #[test]
    fn a_file_that_is_being_closed_is_not_opened_before_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.db");
        let identity = open::find_or_create(&path).unwrap().identity();
        // As it stands while the last repository is dropped and its writer writes what still waits.
        let (open_files, was_closed) = &*OPEN_FILES;
        open_files.lock().unwrap().insert(identity, Weak::new());
        let (opened, is_open) = channel();
        let opening = std::thread::spawn(move || opened.send(SqliteRepository::open(path).is_ok()).unwrap());
        assert_eq!(is_open.recv_timeout(Duration::from_millis(200)), Err(RecvTimeoutError::Timeout));
        open_files.lock().unwrap().remove(&identity);
        was_closed.notify_all();
        assert!(is_open.recv().unwrap());
        opening.join().unwrap();
    }
}
