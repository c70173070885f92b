//! Many machines, one queue: PostgreSQL, which every process reaches over the network.
//!
//! | file | idea |
//! |---|---|
//! | `options`, `server`, `migrate` | how a database is found, what is asked of it, how the schema comes to be |
//! | `connection`, `columns` | statements and what their errors mean; between columns and what they stand for |
//! | `time` | by which clock leases are counted |
//! | `writer` | all changes of a process go through one thread, which commits whatever waits as one transaction |
//! | `book`, `pending`, `memory` | an open transaction, the journal's chain, what waits to be sent, what the writer remembers |
//! | `jobs`, `units`, `claims`, `attempts`, `endings`, `owners`, `providers`, `purge` | the verbs, in the order a unit travels |
//! | `accounts` | budgets, brought up to date as attempts begin and end |
//! | `rows`, `readers`, `read`, `granted`, `backlog`, `archive` | records and pages of them, on a few connections beside the writer |
//! | `listen` | what other hosts have written is told here at once |
//!
//! # Taking turns
//!
//! The journal is one chain, whoever writes it. So every writing transaction begins by locking the one row of `heads`, which has the
//! last link, and writers of all processes take turns: what a verb reads stays so until it has decided, as with one file. What is
//! large waits in memory meanwhile, and goes in one statement for a whole group. A writer that falls silent in the midst of a
//! transaction is thrown out by the server after ten seconds.
//!
//! # Time
//!
//! Leases are counted by the database's clock, so hosts need not agree on the time. Another host is never provably dead: there a lease
//! runs out. A process of this host that is certainly gone loses its leases at once, as with a file.
//!
//! # Durability
//!
//! `synchronous_commit` is on in every session that writes: what was acknowledged is as durable as the server's disks, and standbys that
//! it waits for, are. A commit whose answer was lost is looked up by what it leaves.
//!
//! # Weaknesses
//!
//! One writer at a time: more hosts execute more, but they do not write more than one server can commit one after the other.
//! Each connection has a small tokio runtime in it, so a thread that is itself inside of one must not call a repository; and
//! whoever reads waits for as long as the server takes, also if that is frozen. Behind a proxy that lends sessions out for one
//! transaction at a time it does not work: statements stay prepared in a session. There is no full-text search of it yet.

mod accounts;
mod archive;
mod attempts;
mod backlog;
mod book;
mod claims;
mod columns;
mod connection;
mod endings;
mod granted;
mod jobs;
mod listen;
mod memory;
mod migrate;
mod options;
mod owners;
mod pending;
mod providers;
mod purge;
mod read;
mod readers;
mod rows;
mod server;
mod time;
mod units;
mod writer;

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;

use self::book::{Answer, Book};
use self::connection::{Connection, Read};
use self::listen::{Announcement, Ear};
pub use self::options::{ConnectError, PostgresOptions};
use self::readers::Readers;
use self::server::{Purpose, Server};
use self::time::Time;
use self::units::Taken;
use self::writer::Database;
use super::listeners::Listeners;
use super::prepared::{BeginningRow, NewMessage, NewRow, ReportRow, Terms, fresh_claim};
use super::rules::End;
use super::writer::{Order, Writer, WriterThread};
use super::{
    Archive, Backlog, By, CancelAnswer, ClaimRequest, Claimant, Closed, Insertion, Intake, News, Page, Purged,
    Repository, Result, Slot, Submitted, Swept, UnitFilter, rules,
};
use crate::attempt::{AttemptReport, Beginning, Progress};
use crate::conversation::{Message, to_json};
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::lease::{Backpressure, Claim, Held, Lease, NewOwner, OwnerId, OwnerState};
use crate::limits::{Ask, NewHold, RateLimits, Turn};
use crate::unit::{NewUnit, UnitKey, WorkUnit};
use crate::worker::{Worker, WorkerChange};

/// A repository in a schema of a PostgreSQL database. Clones share its connections; whoever connects again has others.
///
/// ```no_run
/// use workcrew::repository::Intake;
/// use workcrew::{NewJob, NewUnit, PostgresRepository, Repository};
///
/// let repository = PostgresRepository::connect("postgres://ada:secret@db.example/work?sslmode=require")?;
/// let job = repository.create_job(&NewJob::named("summaries"))?;
/// repository.insert(job.id, &[NewUnit::new("page-1").prompt("Summarise page 1.")], Intake::Open)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct PostgresRepository {
    shared: Arc<Shared>,
}

/// What all clones share.
#[derive(Debug)]
struct Shared {
    server: Server,
    time: Time,
    writer: Writer<Database>,
    thread: Option<JoinHandle<()>>,
    /// The number of the writer, as it is in the database.
    writer_number: i64,
    readers: Readers,
    listeners: Arc<Listeners>,
    /// Opened once somebody listens.
    ear: Mutex<Option<Ear>>,
}

impl PostgresRepository {
    /// Connects to a database with the default [options](PostgresOptions), and makes what is ours there if it is not.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] says why not.
    pub fn connect(address: &str) -> std::result::Result<PostgresRepository, ConnectError> {
        PostgresOptions::new().connect(address)
    }

    /// The schema that it works in.
    pub fn schema(&self) -> &str {
        &self.shared.server.schema
    }

    fn start(server: Server, options: PostgresOptions) -> std::result::Result<PostgresRepository, ConnectError> {
        let PostgresOptions { time, patience, timeouts: _, readers } = options;
        let mut connection = server.connect(Purpose::Writing)?;
        migrate::migrate(&mut connection, &server)?;
        let database = Database::new(server.clone(), time.clone(), patience, connection);
        let (writer, writer_number) = (Writer::new(), database.writer);
        let failed = |error: std::io::Error| ConnectError::Failed { source: error.into() };
        let thread = WriterThread::new(&writer, database, patience).map_err(failed)?;
        let thread = std::thread::Builder::new().name("workcrew-writer".to_owned()).spawn(move || thread.serve());
        let readers = Readers::new(server.clone(), readers, patience.busy);
        let shared = Shared {
            server,
            time,
            writer,
            thread: Some(thread.map_err(failed)?),
            writer_number,
            readers,
            listeners: Arc::default(),
            ear: Mutex::new(None),
        };
        Ok(PostgresRepository { shared: Arc::new(shared) })
    }

    fn run<T: Send + 'static>(
        &self,
        order: Order,
        work: impl FnMut(&mut Book<'_>) -> Answer<T> + Send + 'static,
    ) -> Result<T> {
        self.shared.writer.run(order, work)
    }

    fn look<T>(&self, look: impl FnMut(&mut Connection) -> Read<T>) -> Result<T> {
        self.shared.readers.look(look)
    }
}

impl Drop for Shared {
    /// Writes what still waits.
    fn drop(&mut self) {
        let ear = self.ear.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(ear) = &ear {
            ear.stop();
        }
        self.writer.close();
        if let Some(thread) = self.thread.take() {
            // The thread reports its own trouble; here nobody could do anything about it.
            let _ = thread.join();
        }
        if let Some(ear) = ear {
            ear.join();
        }
    }
}

impl From<PostgresRepository> for Arc<dyn Archive> {
    fn from(repository: PostgresRepository) -> Arc<dyn Archive> {
        Arc::new(repository)
    }
}

impl From<PostgresRepository> for Arc<dyn Repository> {
    fn from(repository: PostgresRepository) -> Arc<dyn Repository> {
        Arc::new(repository)
    }
}

impl Repository for PostgresRepository {
    fn create_job(&self, job: &NewJob) -> Result<Job> {
        let job = rules::check_new_job(job)?;
        self.run(Order::new("create_job"), move |book| book.create_job(&job))
    }

    fn change_job(&self, job_id: JobId, change: &JobChange, by: &By) -> Result<Job> {
        let (change, by) = (rules::check_job_change(change)?, by.clone());
        self.run(Order::new("change_job"), move |book| book.change_job(job_id, &change, &by))
    }

    fn insert(&self, job_id: JobId, units: &[NewUnit], intake: Intake) -> Result<Vec<Insertion>> {
        let mut rows = units.iter().map(NewRow::of).collect::<Result<Vec<_>>>()?;
        let order = Order::new("insert").bytes(rows.iter().map(NewRow::len_bytes).sum());
        let inserted = self.run(order, move |book| {
            let inserted = book.insert(job_id, &mut rows, intake)?;
            if intake == Intake::Open && inserted.iter().any(|unit| matches!(unit, Insertion::Inserted(_))) {
                book.announce(&Announcement::Queued(job_id));
            }
            Ok(inserted)
        })?;
        if intake == Intake::Open {
            self.shared.listeners.tell_of_new(job_id, &inserted);
        }
        Ok(inserted)
    }

    fn submit(&self, job_id: JobId, unit: &NewUnit, claimant: &Claimant, slot: &Slot) -> Result<Submitted> {
        let mut row = NewRow::of(unit)?;
        rules::check_slot(slot)?;
        let mut terms = Terms::of(claimant)?;
        let order = Order::new("submit").bytes(row.len_bytes());
        let slot = slot.clone();
        let (now, taken) = self.run(order, move |book| {
            let now = book.now;
            Ok((now, book.submit(job_id, &mut row, terms.granted(now), &slot)?))
        })?;
        Ok(match taken {
            Taken::Fresh(lease, status) => Submitted::Claimed(Box::new(fresh_claim(unit, lease, status, now))),
            Taken::Found(answer) => answer,
        })
    }

    fn claim(&self, request: &ClaimRequest) -> Result<Vec<Claim>> {
        request.slots.iter().try_for_each(rules::check_slot)?;
        let (mut terms, request) = (Terms::of(&request.claimant)?, request.clone());
        self.run(Order::new("claim"), move |book| book.claim(&request, terms.granted(book.now)))
    }

    fn backlog(&self, job_id: JobId, owner: OwnerId, limit: usize) -> Result<Backlog> {
        self.look(|connection| {
            let now = self.shared.time.now(connection)?;
            backlog::backlog(connection, now, job_id, owner, limit)
        })
    }

    fn accepted(&self, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>> {
        self.look(|connection| backlog::accepted(connection, owner, after, limit))
    }

    /// What other hosts do is told too.
    fn listen(&self, job_id: JobId, hear: Box<dyn Fn(&News) -> bool + Send + Sync>) {
        let Shared { server, writer_number, listeners, ear, .. } = &*self.shared;
        listeners.add(job_id, hear);
        let mut ear = ear.lock().unwrap_or_else(PoisonError::into_inner);
        if ear.is_none() {
            match Ear::open(server.clone(), *writer_number, Arc::clone(listeners)) {
                Ok(opened) => *ear = Some(opened),
                Err(error) => log::warn!("news from other hosts are not heard: {error}"),
            }
        }
    }

    fn claimed(&self, owner: OwnerId, token: i64) -> Result<Vec<Claim>> {
        self.look(|connection| {
            let leases = read::understood(claims::claimed(connection, owner, token), || ("a lease".to_owned(), 0))?;
            granted::claims_of(connection, leases)
        })
    }

    fn start(&self, lease: &Lease, beginning: &Beginning) -> Result<()> {
        let (lease, row) = (lease.clone(), BeginningRow::of(beginning)?);
        let order = Order::new("start").attempt(lease.attempt()).bytes(row.len_bytes());
        self.run(order, move |book| book.start(&lease, &row))
    }

    fn append(&self, lease: &Lease, follows: u32, messages: &[Message]) -> Result<()> {
        let (lease, attempt) = (lease.clone(), lease.attempt());
        let messages = messages.iter().map(NewMessage::of).collect::<Result<Vec<_>>>()?;
        let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
        let bytes = messages.iter().map(NewMessage::len_bytes).sum();
        let order = Order::new("append").attempt(attempt).bytes(bytes);
        let work = move |book: &mut Book<'_>| book.append(&lease, follows, &messages);
        self.shared.writer.run_unawaited(order, attempt, count, work)
    }

    fn partial(&self, lease: &Lease, text: &str) -> Result<()> {
        rules::check_partial(text)?;
        let (lease, attempt, text) = (lease.clone(), lease.attempt(), text.to_owned());
        let order = Order::new("partial").attempt(attempt).bytes(text.len());
        let work = move |book: &mut Book<'_>| book.partial(&lease, &text);
        // What is lost of a partial message comes again with the next.
        self.shared.writer.run_unawaited(order, attempt, 0, work)
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
        let (lease, provider, limits, ask) = (lease.clone(), provider.to_owned(), *limits, *ask);
        let order = Order::new("take_turn").attempt(lease.attempt());
        self.run(order, move |book| book.take_turn(&lease, &provider, &limits, &ask))
    }

    fn hold(&self, hold: &NewHold) -> Result<()> {
        rules::check_provider(&hold.provider)?;
        let hold = hold.clone();
        // Urgent: until it is there others go on asking.
        self.run(Order::new("hold").urgent(), move |book| book.hold(&hold))
    }

    fn lift(&self, provider: &str) -> Result<bool> {
        let provider = provider.to_owned();
        self.run(Order::new("lift"), move |book| book.lift(&provider))
    }

    fn finish(&self, lease: &Lease, report: &AttemptReport) -> Result<Closed> {
        let (held, row) = (lease.clone(), ReportRow::of(report)?);
        let order = Order::new("finish").attempt(lease.attempt()).bytes(row.len_bytes());
        let closed = self.run(order, move |book| {
            let closed = book.finish(&held, &row)?;
            if closed.status.is_terminal() {
                book.announce(&Announcement::Ended(held.job_id, held.owner));
            }
            Ok(closed)
        })?;
        self.shared.listeners.tell_of_end(lease, &closed);
        Ok(closed)
    }

    fn release(&self, lease: &Lease, after: Option<Duration>, reason: &str) -> Result<Closed> {
        let (lease, reason) = (lease.clone(), reason.to_owned());
        let order = Order::new("release").attempt(lease.attempt());
        self.run(order, move |book| book.release(&lease, after, &reason))
    }

    fn renew(&self, owner: OwnerId, ttl: Duration) -> Result<Vec<Held>> {
        let ttl_ms = rules::check_ttl(ttl)?;
        self.run(Order::new("renew").urgent(), move |book| book.renew(owner, ttl_ms))
    }

    fn expire(&self, limit: usize) -> Result<Vec<Swept>> {
        let boot_id = self.shared.time.boot_id();
        let swept = self.run(Order::new("expire"), move |book| {
            let swept = book.expire(&boot_id, limit)?;
            for swept in &swept {
                book.announce(&Announcement::Queued(swept.job_id));
            }
            Ok(swept)
        })?;
        self.shared.listeners.tell(&News::Queued, |job_id| swept.iter().any(|swept| swept.job_id == job_id));
        Ok(swept)
    }

    fn cancel(&self, job_id: JobId, id: &str, by: &By) -> Result<CancelAnswer> {
        let (name, by) = (id.to_owned(), by.clone());
        let (unit, answer) = self.run(Order::new("cancel").urgent(), move |book| {
            let (unit, answer) = book.cancel(job_id, &name, &by)?;
            if matches!(answer, CancelAnswer::Cancelled | CancelAnswer::Requested) {
                book.announce(&Announcement::Cancelled(job_id, unit, name.clone()));
            }
            Ok((unit, answer))
        })?;
        self.shared.listeners.tell_of_cancel(job_id, unit, id, answer);
        Ok(answer)
    }

    fn requeue(&self, job_id: JobId, id: &str, by: &By) -> Result<()> {
        self.requeue_as(job_id, id, None, by)
    }

    fn requeue_unchanged(&self, read: &WorkUnit, by: &By) -> Result<()> {
        self.requeue_as(read.job_id, read.id.as_str(), Some(End::of(read)), by)
    }

    fn register_owner(&self, owner: &NewOwner) -> Result<OwnerId> {
        let owner = owner.clone();
        self.run(Order::new("register_owner"), move |book| book.register_owner(&owner))
    }

    fn let_go(&self, owner: OwnerId) -> Result<u64> {
        let let_go = self.run(Order::new("let_go"), move |book| {
            let let_go = book.let_go(owner)?;
            if let_go > 0 {
                book.announce(&Announcement::AllQueued);
            }
            Ok(let_go)
        })?;
        self.shared.listeners.tell(&News::Queued, |_| let_go > 0);
        Ok(let_go)
    }

    fn tell(&self, owner: OwnerId, state: &OwnerState) -> Result<()> {
        let state = rules::state_json(state)?;
        // Urgent: whoever tells also renews leases, and must not wait behind conversations.
        self.run(Order::new("tell").urgent(), move |book| book.tell(owner, &state))
    }

    fn backpressure(&self) -> Option<Backpressure> {
        Some(self.shared.writer.backpressure())
    }

    fn end_owner(&self, owner: OwnerId) -> Result<()> {
        self.run(Order::new("end_owner"), move |book| {
            book.end_owner(owner)?;
            book.announce(&Announcement::AllQueued);
            Ok(())
        })?;
        self.shared.listeners.tell(&News::Queued, |_| true);
        Ok(())
    }

    fn change_worker(&self, owner: OwnerId, job_id: JobId, slot: &Slot, change: WorkerChange) -> Result<Worker> {
        rules::check_worker_change(change)?;
        rules::check_slot(slot)?;
        let slot = slot.clone();
        let worker = self.run(Order::new("change_worker"), move |book| {
            let worker = book.change_worker(owner, job_id, &slot, change)?;
            if matches!(change, WorkerChange::Terminate | WorkerChange::Die) {
                book.announce(&Announcement::Queued(job_id));
            }
            Ok(worker)
        })?;
        self.shared.listeners.tell_of_worker(job_id, change);
        Ok(worker)
    }

    fn purge(&self, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        self.purge_where(&UnitFilter::default(), before, by)
    }

    fn purge_where(&self, filter: &UnitFilter, before: DateTime<Utc>, by: &By) -> Result<Purged> {
        let before_ms = before.timestamp_millis();
        let (filter, by) = (filter.clone(), by.clone());
        self.run(Order::new("purge"), move |book| book.purge(&filter, before_ms, &by))
    }
}

impl PostgresRepository {
    fn requeue_as(&self, job_id: JobId, id: &str, read: Option<End>, by: &By) -> Result<()> {
        let (id, by) = (id.to_owned(), by.clone());
        self.run(Order::new("requeue"), move |book| {
            book.requeue(job_id, &id, read, &by)?;
            book.announce(&Announcement::Queued(job_id));
            Ok(())
        })?;
        self.shared.listeners.tell_of_queued(job_id);
        Ok(())
    }
}
