//! The book: an open transaction, and what the writer remembers from one to the next.
//!
//! A verb reads, decides, and only then writes. If it decides against the change it returns
//! [`Fault::Rejected`] with nothing written, so that the rest of its group can be committed.

use std::collections::{HashMap, HashSet};

use rusqlite::{Connection, OptionalExtension, params};

use super::rows::blob;
use crate::attempt::{Attempt, AttemptKey};
use crate::chain::{self, Hash};
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::{Lease, OwnerId};
use crate::repository::prepared::HotUnit;
use crate::repository::{JournalEntry, RepositoryError, writer};
use crate::unit::{Change, UnitKey, UnitStatus};

/// What a verb says about its change.
pub(super) type Answer<T> = Result<T, Fault>;

/// Why a change was not made.
pub(super) type Fault = writer::Fault<rusqlite::Error>;

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Failed(error)
    }
}

impl From<RepositoryError> for Fault {
    /// A record that cannot be read is an answer; a storage that fails is none, and voids the transaction.
    fn from(error: RepositoryError) -> Fault {
        if error.is_rejection() || matches!(error, RepositoryError::Corrupt { .. }) {
            Fault::Rejected(error)
        } else {
            Fault::Failed(storage_failure(error.to_string()))
        }
    }
}

/// An error of the storage that SQLite itself did not report as such.
pub(super) fn storage_failure(message: String) -> rusqlite::Error {
    rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_IOERR), Some(message))
}

/// How far an open attempt has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trace {
    pub(super) message_count: u32,
    pub(super) head: Hash,
    pub(super) has_partial: bool,
    /// The hash of what was really sent, if it was rendered.
    pub(super) rendered_prompt: Option<Hash>,
    /// Whether anything was charged.
    pub(super) is_charged: bool,
}

impl Trace {
    /// Of an attempt that was just claimed.
    pub(super) fn new(attempt: AttemptKey, fence: i64) -> Trace {
        let head = chain::conversation_genesis(attempt, fence);
        Trace { message_count: 0, head, has_partial: false, rendered_prompt: None, is_charged: false }
    }
}

/// An open attempt and its unit as their rows stand, so that the end of it need not read them.
#[derive(Clone, Debug)]
pub(super) struct Open {
    pub(super) unit: HotUnit,
    pub(super) attempt: Attempt,
}

/// What the writer remembers. All of it but the losses can be read again from the database.
#[derive(Debug, Default)]
pub(super) struct Memory {
    traces: HashMap<AttemptKey, Trace>,
    /// Attempts that nothing has changed since their claim: what changes one of the rows forgets them.
    open: HashMap<AttemptKey, Open>,
    /// A template never changes, so this never grows wrong: whether the job has one.
    jobs: HashMap<JobId, bool>,
    /// Whether anybody has a budget, if that is known.
    pub(super) has_accounts: Option<bool>,
    /// Messages that the storage failed to take, until the end of their attempt records them.
    losses: HashMap<AttemptKey, u32>,
    /// Attempts that the open transaction ends.
    ended: Vec<AttemptKey>,
    /// Changes whenever another connection has written the file.
    data_version: i64,
    /// Whether messages are linked. Only the bench turns it off, to show what it costs.
    pub(super) is_chained: bool,
}

/// Beyond this many open attempts what is known of them is dropped, and read again when needed.
const TRACE_LIMIT: usize = 16_384;

impl Memory {
    pub(super) fn new(is_chained: bool) -> Memory {
        Memory { is_chained, ..Memory::default() }
    }

    /// The transaction is durable, and with it the losses of the attempts that it ended.
    pub(super) fn forget_ended(&mut self) {
        for attempt in self.ended.drain(..) {
            self.losses.remove(&attempt);
        }
    }

    /// The transaction never was: what was remembered may speak of rows that are not there.
    pub(super) fn forget_uncommitted(&mut self) {
        self.ended.clear();
        self.forget_attempts();
        self.jobs.clear();
    }

    fn forget_attempts(&mut self) {
        self.traces.clear();
        self.open.clear();
        self.has_accounts = None;
    }

    /// Remembers messages that the storage failed to take.
    pub(super) fn lose_messages(&mut self, attempt: AttemptKey, messages: u32) {
        *self.losses.entry(attempt).or_default() += messages;
    }
}

/// The last row of the journal.
#[derive(Clone, Copy, Debug)]
struct JournalHead {
    seq: i64,
    link: Hash,
}

/// An open transaction.
pub(super) struct Book<'a> {
    pub(super) connection: &'a Connection,
    pub(super) memory: &'a mut Memory,
    /// Read when first needed: other processes write the same journal.
    journal: Option<JournalHead>,
    /// What this transaction has found and nobody else can change before it ends: leases that hold, by their fence.
    held: HashMap<AttemptKey, i64>,
    /// And owners that have not ended.
    living: HashSet<OwnerId>,
}

/// A row for the journal, without its place in it.
#[derive(Clone, Debug)]
pub(super) struct Entry<'a> {
    pub(super) unit: UnitKey,
    pub(super) attempt_number: Option<u32>,
    pub(super) fence: i64,
    pub(super) change: Change,
    pub(super) from: Option<UnitStatus>,
    pub(super) to: UnitStatus,
    pub(super) actor: &'a str,
    pub(super) reason: Option<&'a str>,
    pub(super) conversation: Option<(u32, Hash)>,
    pub(super) digest: Option<Hash>,
}

impl<'a> Book<'a> {
    /// Looks first whether anybody else has written since: a lease may be used by more than one process.
    pub(super) fn open(connection: &'a Connection, memory: &'a mut Memory) -> rusqlite::Result<Book<'a>> {
        let mut select = connection.prepare_cached("PRAGMA data_version")?;
        let data_version = select.query_row([], |row| row.get(0))?;
        if memory.data_version != data_version {
            memory.forget_attempts();
            memory.data_version = data_version;
        }
        Ok(Book { connection, memory, journal: None, held: HashMap::new(), living: HashSet::new() })
    }

    fn journal_head(&self) -> rusqlite::Result<JournalHead> {
        match self.journal {
            Some(head) => Ok(head),
            None => read_journal_head(self.connection),
        }
    }

    /// The place and the link of the journal's last row; `None` if it has none.
    pub(super) fn journal_end(&self) -> rusqlite::Result<Option<(i64, Hash)>> {
        let JournalHead { seq, link } = self.journal_head()?;
        Ok((seq > 0).then_some((seq, link)))
    }

    /// Adds a row to the journal.
    pub(super) fn record(&mut self, now: Moment, entry: Entry<'_>) -> rusqlite::Result<()> {
        let last = self.journal_head()?;
        let mut row = JournalEntry {
            seq: last.seq + 1,
            at: now.wall,
            unit: entry.unit,
            attempt_number: entry.attempt_number,
            fence: entry.fence,
            change: entry.change,
            from: entry.from,
            to: entry.to,
            actor: entry.actor.to_owned(),
            reason: entry.reason.map(str::to_owned),
            message_count: entry.conversation.map(|(count, _)| count),
            head: entry.conversation.map(|(_, head)| head),
            digest: entry.digest,
            link: last.link,
        };
        if self.memory.is_chained {
            row.link = chain::journal_link(&last.link, &row);
        }
        insert_journal_row(self.connection, &row)?;
        self.journal = Some(JournalHead { seq: row.seq, link: row.link });
        Ok(())
    }

    /// How far an attempt has got.
    pub(super) fn trace(&mut self, attempt: AttemptKey, fence: i64) -> rusqlite::Result<Trace> {
        if let Some(trace) = self.memory.traces.get(&attempt) {
            return Ok(*trace);
        }
        let trace = read_trace(self.connection, attempt, fence)?;
        self.remember(attempt, trace);
        Ok(trace)
    }

    /// Remembers how far an attempt has got, which was just written or read.
    pub(super) fn remember(&mut self, attempt: AttemptKey, trace: Trace) {
        if self.memory.traces.len() >= TRACE_LIMIT {
            self.memory.forget_attempts();
        }
        self.memory.traces.insert(attempt, trace);
    }

    /// Begins an attempt whose lease was just granted.
    pub(super) fn open_attempt(&mut self, open: Open) {
        let Attempt { key, fence, .. } = open.attempt;
        self.remember(key, Trace::new(key, fence));
        self.memory.open.insert(key, open);
        self.held.insert(key, fence);
    }

    /// An open attempt that nothing has changed since its claim.
    pub(super) fn opened(&self, attempt: AttemptKey) -> Option<&Open> {
        self.memory.open.get(&attempt)
    }

    /// Notes that the row of an attempt, or of its unit, is no longer what it was.
    pub(super) fn attempt_changes(&mut self, attempt: AttemptKey) {
        self.memory.open.remove(&attempt);
    }

    /// Forgets an attempt that ends, and says how many of its messages the storage failed to take.
    pub(super) fn end_attempt(&mut self, attempt: AttemptKey) -> u32 {
        self.memory.traces.remove(&attempt);
        self.memory.open.remove(&attempt);
        self.memory.ended.push(attempt);
        self.held.remove(&attempt);
        self.failed_messages(attempt)
    }

    /// Rejects a lease that no longer holds.
    pub(super) fn check_held(&mut self, lease: &Lease) -> Answer<()> {
        let attempt = lease.attempt();
        if self.held.get(&attempt) == Some(&lease.fence) {
            return Ok(());
        }
        let mut select = self.connection.prepare_cached(
            "SELECT 1 FROM work_units WHERE key = ?1 AND attempt_count = ?2 AND fence = ?3 AND lease_owner IS NOT NULL",
        )?;
        if !select.exists(params![attempt.unit.0, attempt.number, lease.fence])? {
            return Err(RepositoryError::stale(lease).into());
        }
        self.held.insert(attempt, lease.fence);
        Ok(())
    }

    /// How many messages of an attempt the storage failed to take.
    pub(super) fn failed_messages(&self, attempt: AttemptKey) -> u32 {
        self.memory.losses.get(&attempt).copied().unwrap_or_default()
    }

    /// Whether the job has a template.
    pub(super) fn job_has_template(&mut self, job_id: JobId) -> Answer<bool> {
        if let Some(&has_template) = self.memory.jobs.get(&job_id) {
            return Ok(has_template);
        }
        let mut select = self.connection.prepare_cached("SELECT template IS NOT NULL FROM jobs WHERE id = ?1")?;
        let found = select.query_row([job_id.0], |row| row.get(0)).optional()?;
        let has_template = found.ok_or(RepositoryError::UnknownJob(job_id))?;
        self.memory.jobs.insert(job_id, has_template);
        Ok(has_template)
    }

    /// Rejects an owner that is not there or has ended.
    pub(super) fn check_owner(&mut self, owner: OwnerId) -> Answer<()> {
        if self.living.contains(&owner) {
            return Ok(());
        }
        let mut select = self.connection.prepare_cached("SELECT ended_at IS NULL FROM owners WHERE id = ?1")?;
        if select.query_row([owner.0], |row| row.get(0)).optional()? != Some(true) {
            return Err(RepositoryError::UnknownOwner(owner).into());
        }
        self.living.insert(owner);
        Ok(())
    }

    /// Notes that this transaction ends an owner.
    pub(super) fn bury(&mut self, owner: OwnerId) {
        self.living.remove(&owner);
    }
}

fn read_journal_head(connection: &Connection) -> rusqlite::Result<JournalHead> {
    let mut select = connection.prepare_cached("SELECT seq, link FROM journal ORDER BY seq DESC LIMIT 1")?;
    let head = select.query_row([], |row| Ok(JournalHead { seq: row.get(0)?, link: blob(row, 1)? })).optional()?;
    Ok(head.unwrap_or_else(|| JournalHead { seq: 0, link: chain::journal_genesis() }))
}

fn insert_journal_row(connection: &Connection, row: &JournalEntry) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO journal (seq, at, unit_key, attempt_number, fence, change, from_status, to_status, actor, reason,
                              message_count, head, digest, link)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
    )?;
    insert.execute(params![
        row.seq,
        row.at.timestamp_millis(),
        row.unit.0,
        row.attempt_number,
        row.fence,
        row.change.name(),
        row.from.map(UnitStatus::name),
        row.to.name(),
        row.actor,
        row.reason,
        row.message_count,
        row.head.as_ref().map(Hash::as_bytes),
        row.digest.as_ref().map(Hash::as_bytes),
        row.link.as_bytes(),
    ])?;
    Ok(())
}

fn read_trace(connection: &Connection, attempt: AttemptKey, fence: i64) -> rusqlite::Result<Trace> {
    let key = params![attempt.unit.0, attempt.number];
    let mut trace = Trace::new(attempt, fence);
    let mut last = connection.prepare_cached(
        "SELECT number, link
         FROM messages
         WHERE unit_key = ?1 AND attempt_number = ?2
         ORDER BY number DESC
         LIMIT 1",
    )?;
    if let Some((number, link)) = last.query_row(key, |row| Ok((row.get(0)?, blob(row, 1)?))).optional()? {
        (trace.message_count, trace.head) = (number, link);
    }
    let mut prompt = connection
        .prepare_cached("SELECT rendered_prompt FROM attempt_results WHERE unit_key = ?1 AND attempt_number = ?2")?;
    let prompt: Option<Option<String>> = prompt.query_row(key, |row| row.get(0)).optional()?;
    trace.rendered_prompt = prompt.flatten().map(|prompt| Hash::of(prompt.as_bytes()));
    let exists = |sql| connection.prepare_cached(sql)?.exists(key);
    trace.has_partial = exists("SELECT 1 FROM partials WHERE unit_key = ?1 AND attempt_number = ?2")?;
    trace.is_charged = exists("SELECT 1 FROM charges WHERE unit_key = ?1 AND attempt_number = ?2")?;
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::unit::UnitId;
    use crate::worker::WorkerId;

    /// A unit that was just claimed.
    fn open() -> Open {
        let (owner, worker_id) = (OwnerId(1), WorkerId::new("w1").unwrap());
        let unit = HotUnit {
            key: UnitKey(1),
            job_id: JobId(1),
            id: UnitId::new("a").unwrap(),
            status: UnitStatus::Assigned,
            fence: 1,
            attempt_count: 1,
            attempts_used: 0,
            releases: 0,
            max_retries: 3,
            priority: 0,
            pause: None,
            is_purged: false,
            lease: Some((owner, worker_id.clone())),
        };
        let attempt = Attempt::claimed(unit.attempt(), 1, owner, worker_id, SystemClock.now().wall);
        Open { unit, attempt }
    }

    #[test]
    fn what_is_remembered_of_an_attempt_is_forgotten_when_anybody_else_writes() {
        let folder = tempfile::tempdir().unwrap();
        let [ours, other] = [(); 2].map(|()| Connection::open(folder.path().join("a.db")).unwrap());
        ours.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE t (x)").unwrap();
        let mut memory = Memory::new(true);
        Book::open(&ours, &mut memory).unwrap().open_attempt(open());

        let remembered = |memory: &mut Memory| {
            let Book { memory, .. } = Book::open(&ours, memory).unwrap();
            (memory.traces.len(), memory.open.len())
        };
        ours.execute("INSERT INTO t VALUES (1)", []).unwrap();
        assert_eq!(remembered(&mut memory), (1, 1));
        other.execute("INSERT INTO t VALUES (1)", []).unwrap();
        assert_eq!(remembered(&mut memory), (0, 0));
    }

    #[test]
    fn a_storage_that_fails_is_no_rejection() {
        let stale = RepositoryError::UnknownJob(JobId(1));
        assert!(matches!(Fault::from(stale), Fault::Rejected(_)));
        assert!(matches!(Fault::from(RepositoryError::StorageFull), Fault::Failed(_)));
    }
}
