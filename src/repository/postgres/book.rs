//! The book: an open transaction, in which writers take turns, and the journal's chain.
//!
//! A verb reads, decides, and only then writes. If it decides against the change it returns
//! [`Fault::Rejected`](crate::repository::writer::Fault::Rejected) with nothing written, so that the rest of its group can be committed.

use std::collections::{BTreeSet, HashMap, HashSet};

use postgres::Row;

use super::columns::Columns;
use super::connection::{Connection, Failure, Parameters, Read};
use super::memory::{Memory, Open, Trace};
use super::pending::Pending;
use super::time::{NOW_MS, Time};
use crate::attempt::AttemptKey;
use crate::chain::{self, Hash};
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::{Lease, OwnerId};
use crate::repository::writer::Fault;
use crate::repository::{JournalEntry, RepositoryError};
use crate::unit::{Change, UnitKey, UnitStatus};

/// What a verb says about its change.
pub(super) type Answer<T> = Result<T, Fault<Failure>>;

/// Where the chains and the keys have got to.
#[derive(Clone, Copy, Debug)]
struct Heads {
    seq: i64,
    link: Hash,
    unit_key: i64,
}

/// An open transaction.
pub(super) struct Book<'a> {
    connection: &'a mut Connection,
    pub(super) memory: &'a mut Memory,
    /// When it began: the same for all of a group, which nobody outside can tell apart.
    pub(super) now: Moment,
    heads: Heads,
    pending: Pending,
    /// What this transaction has found and nobody else can change before it ends: leases that hold, by their fence.
    held: HashMap<AttemptKey, i64>,
    /// And owners that have not ended.
    living: HashSet<OwnerId>,
    /// What other hosts are to be told.
    announcements: BTreeSet<String>,
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
    /// Begins a transaction once it is our turn, and looks whether anybody else has written since the last one.
    pub(super) fn open(
        connection: &'a mut Connection,
        memory: &'a mut Memory,
        time: &Time,
        writer: i64,
    ) -> Read<Book<'a>> {
        let rows = connection.batch_rows(&format!(
            "BEGIN;
             SELECT journal_seq, encode(journal_link, 'hex'), unit_key, written_by
             FROM heads
             FOR UPDATE;
             {NOW_MS}"
        ))?;
        let [heads, clock] = &rows[..] else { return Err(super::columns::unreadable("the heads are missing")) };
        let number = |column| heads.get(column).and_then(|text: &str| text.parse::<i64>().ok());
        let link = heads.get(1).and_then(|hex| Hash::try_from(hex.to_owned()).ok());
        let (Some(seq), Some(link), Some(unit_key), Some(written_by)) = (number(0), link, number(2), number(3)) else {
            return Err(super::columns::unreadable("the heads are damaged"));
        };
        if written_by != writer {
            memory.forget_what_others_change();
        }
        let now = time.read(clock.get(0))?;
        Ok(Book {
            connection,
            memory,
            now,
            heads: Heads { seq, link, unit_key },
            pending: Pending::default(),
            held: HashMap::new(),
            living: HashSet::new(),
            announcements: BTreeSet::new(),
        })
    }

    /// Sends what waits, where the heads are now, and which transaction of its writer this is. What is left to do is to commit.
    pub(super) fn close(mut self, writer: i64, serial: i64, channel: &str) -> Read<()> {
        self.pending.send_all(self.connection)?;
        let announcements: Vec<String> =
            self.announcements.iter().map(|announcement| format!("{writer} {announcement}")).collect();
        let Heads { seq, link, unit_key } = self.heads;
        self.connection.execute(
            "WITH mine AS (
                 INSERT INTO writers (writer, serial, at) VALUES ($4, $7, $8)
                 ON CONFLICT (writer) DO UPDATE SET serial = $7, at = $8)
             UPDATE heads SET journal_seq = $1, journal_link = $2, unit_key = $3, written_by = $4
             RETURNING (SELECT count(pg_notify($5, announcement)) FROM unnest($6::text[]) announcement)",
            &[
                &seq,
                &link.as_bytes().as_slice(),
                &unit_key,
                &writer,
                &channel,
                &announcements,
                &serial,
                &self.now.wall.timestamp_millis(),
            ],
        )?;
        Ok(())
    }

    /// Has other hosts told, once this is durable.
    pub(super) fn announce(&mut self, announcement: &super::listen::Announcement) {
        self.announcements.insert(announcement.to_string());
    }

    /// The connection, with everything sent that was decided.
    pub(super) fn settled(&mut self) -> Read<&mut Connection> {
        self.pending.send_all(self.connection)?;
        Ok(self.connection)
    }

    /// The connection, though messages and rows of the journal may wait: for whoever reads neither.
    pub(super) fn connection(&mut self) -> &mut Connection {
        self.connection
    }

    pub(super) fn rows(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<Vec<Row>> {
        self.connection.rows(sql, parameters)
    }

    pub(super) fn row(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<Option<Row>> {
        self.connection.row(sql, parameters)
    }

    pub(super) fn exists(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<bool> {
        self.connection.exists(sql, parameters)
    }

    pub(super) fn execute(&mut self, sql: &str, parameters: Parameters<'_>) -> Read<u64> {
        self.connection.execute(sql, parameters)
    }

    pub(super) fn pending(&mut self) -> &mut Pending {
        &mut self.pending
    }

    /// The key of a unit that is new.
    pub(super) fn next_unit(&mut self) -> UnitKey {
        self.heads.unit_key += 1;
        UnitKey(self.heads.unit_key)
    }

    /// The place and the link of the journal's last row; `None` if it has none.
    pub(super) fn journal_end(&self) -> Option<(i64, Hash)> {
        let Heads { seq, link, .. } = self.heads;
        (seq > 0).then_some((seq, link))
    }

    /// Adds a row to the journal.
    pub(super) fn record(&mut self, entry: Entry<'_>) {
        let last = self.heads.link;
        let mut row = JournalEntry {
            seq: self.heads.seq + 1,
            at: self.now.wall,
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
            link: last,
        };
        row.link = chain::journal_link(&last, &row);
        (self.heads.seq, self.heads.link) = (row.seq, row.link);
        self.pending.journal_row(row);
    }

    /// How far an attempt has got.
    pub(super) fn trace(&mut self, attempt: AttemptKey, fence: i64) -> Read<Trace> {
        if let Some(trace) = self.memory.trace(attempt) {
            return Ok(trace);
        }
        let trace = read_trace(self.settled()?, attempt, fence)?;
        self.memory.remember(attempt, trace);
        Ok(trace)
    }

    /// Begins an attempt whose lease was just granted.
    pub(super) fn open_attempt(&mut self, open: Open) {
        self.held.insert(open.attempt.key, open.attempt.fence);
        self.memory.open(open);
    }

    /// Forgets an attempt that ends, and says how many of its messages the storage failed to take.
    pub(super) fn end_attempt(&mut self, attempt: AttemptKey) -> u32 {
        self.held.remove(&attempt);
        self.memory.end(attempt)
    }

    /// Rejects a lease that no longer holds.
    pub(super) fn check_held(&mut self, lease: &Lease) -> Answer<()> {
        let attempt = lease.attempt();
        if self.held.get(&attempt) == Some(&lease.fence) {
            return Ok(());
        }
        let holds = match self.memory.opened(attempt) {
            Some(open) => open.unit.fence == lease.fence,
            None => self.exists(
                "SELECT 1 FROM work_units WHERE key = $1 AND attempt_count = $2 AND fence = $3 AND lease_owner IS NOT NULL",
                &[&attempt.unit.0, &i64::from(attempt.number), &lease.fence],
            )?,
        };
        if !holds {
            return Err(RepositoryError::stale(lease).into());
        }
        self.held.insert(attempt, lease.fence);
        Ok(())
    }

    /// Whether the job has a template.
    pub(super) fn job_has_template(&mut self, job_id: JobId) -> Answer<bool> {
        if let Some(&has_template) = self.memory.jobs.get(&job_id) {
            return Ok(has_template);
        }
        let found = self.row("SELECT template IS NOT NULL FROM jobs WHERE id = $1", &[&job_id.0])?;
        let has_template = found.ok_or(RepositoryError::UnknownJob(job_id))?.flag(0)?;
        self.memory.jobs.insert(job_id, has_template);
        Ok(has_template)
    }

    /// Rejects an owner that is not there or has ended.
    pub(super) fn check_owner(&mut self, owner: OwnerId) -> Answer<()> {
        if self.living.contains(&owner) {
            return Ok(());
        }
        if !self.exists("SELECT 1 FROM owners WHERE id = $1 AND ended_at IS NULL", &[&owner.0])? {
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

fn read_trace(connection: &mut Connection, attempt: AttemptKey, fence: i64) -> Read<Trace> {
    let (unit, number) = (attempt.unit.0, i64::from(attempt.number));
    let row = connection.row(
        "SELECT m.number, m.link, r.rendered_prompt,
                EXISTS (SELECT 1 FROM partials WHERE unit_key = $1 AND attempt_number = $2),
                EXISTS (SELECT 1 FROM charges WHERE unit_key = $1 AND attempt_number = $2)
         FROM (SELECT 1) one
         LEFT JOIN (SELECT number, link FROM messages WHERE unit_key = $1 AND attempt_number = $2
                    ORDER BY number DESC LIMIT 1) m ON true
         LEFT JOIN attempt_results r ON r.unit_key = $1 AND r.attempt_number = $2",
        &[&unit, &number],
    )?;
    let mut trace = Trace::new(attempt, fence);
    let Some(row) = row else { return Ok(trace) };
    if row.optional_number(0)?.is_some() {
        (trace.message_count, trace.head) = (row.count(0)?, row.hash(1)?);
    }
    trace.rendered_prompt = row.optional_bytes(2)?.map(|prompt| Hash::of(&prompt));
    (trace.has_partial, trace.is_charged) = (row.flag(3)?, row.flag(4)?);
    Ok(trace)
}
