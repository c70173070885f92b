//! The book: an open transaction, and what the writer remembers from one to the next.
//!
//! A verb reads, decides, and only then writes. If it decides against the change it returns
//! [`Fault::Rejected`] with nothing written, so that the rest of its group can be committed.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::rows::blob;
use crate::attempt::AttemptKey;
use crate::chain::{self, Hash};
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::repository::{JournalEntry, RepositoryError};
use crate::unit::{Change, UnitKey, UnitStatus};

/// What a verb says about its change.
pub(super) type Answer<T> = Result<T, Fault>;

/// Why a change was not made.
#[derive(Debug)]
pub(super) enum Fault {
    /// The verb decided against it, and wrote nothing of the unit.
    Rejected(RepositoryError),
    /// SQLite failed: the transaction is void.
    Sqlite(rusqlite::Error),
}

impl From<rusqlite::Error> for Fault {
    fn from(error: rusqlite::Error) -> Fault {
        Fault::Sqlite(error)
    }
}

impl From<RepositoryError> for Fault {
    fn from(rejection: RepositoryError) -> Fault {
        Fault::Rejected(rejection)
    }
}

/// How far the conversation of an open attempt has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Conversation {
    pub(super) message_count: u32,
    pub(super) head: Hash,
    pub(super) has_partial: bool,
}

/// What the writer remembers. All of it but the losses can be read again from the database.
#[derive(Debug, Default)]
pub(super) struct Memory {
    conversations: HashMap<AttemptKey, Conversation>,
    /// Jobs never change, so this never grows wrong: whether the job has a template.
    jobs: HashMap<JobId, bool>,
    /// Messages that the storage failed to take, until the end of their attempt records them.
    losses: HashMap<AttemptKey, u32>,
    /// Attempts that the open transaction ends.
    ended: Vec<AttemptKey>,
    /// Whether messages are linked. Only the bench turns it off, to show what it costs.
    pub(super) is_chained: bool,
}

/// Beyond this many open conversations the oldest knowledge is dropped and read again when needed.
const CONVERSATION_LIMIT: usize = 16_384;

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
        self.conversations.clear();
        self.jobs.clear();
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
    pub(super) fn open(connection: &'a Connection, memory: &'a mut Memory) -> rusqlite::Result<Book<'a>> {
        Ok(Book { connection, memory, journal: None })
    }

    /// Adds a row to the journal.
    pub(super) fn record(&mut self, now: Moment, entry: Entry<'_>) -> rusqlite::Result<()> {
        let last = match self.journal {
            Some(head) => head,
            None => read_journal_head(self.connection)?,
        };
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

    /// How far the conversation of an attempt has got.
    pub(super) fn conversation(&mut self, attempt: AttemptKey, fence: i64) -> rusqlite::Result<Conversation> {
        if let Some(conversation) = self.memory.conversations.get(&attempt) {
            return Ok(*conversation);
        }
        let conversation = read_conversation(self.connection, attempt, fence)?;
        self.remember(attempt, conversation);
        Ok(conversation)
    }

    /// Remembers a conversation that was just written or read.
    pub(super) fn remember(&mut self, attempt: AttemptKey, conversation: Conversation) {
        if self.memory.conversations.len() >= CONVERSATION_LIMIT {
            self.memory.conversations.clear();
        }
        self.memory.conversations.insert(attempt, conversation);
    }

    /// Forgets a conversation that is closed, and says how many of its messages the storage failed to take.
    pub(super) fn close_conversation(&mut self, attempt: AttemptKey) -> u32 {
        self.memory.conversations.remove(&attempt);
        self.memory.ended.push(attempt);
        self.failed_messages(attempt)
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
    pub(super) fn check_owner(&self, owner: OwnerId) -> Answer<()> {
        let mut select = self.connection.prepare_cached("SELECT ended_at IS NULL FROM owners WHERE id = ?1")?;
        match select.query_row([owner.0], |row| row.get(0)).optional()? {
            Some(true) => Ok(()),
            Some(false) | None => Err(RepositoryError::UnknownOwner(owner).into()),
        }
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

fn read_conversation(connection: &Connection, attempt: AttemptKey, fence: i64) -> rusqlite::Result<Conversation> {
    let key = params![attempt.unit.0, attempt.number];
    let mut last = connection.prepare_cached(
        "SELECT number, link
         FROM messages
         WHERE unit_key = ?1 AND attempt_number = ?2
         ORDER BY number DESC
         LIMIT 1",
    )?;
    let last = last.query_row(key, |row| Ok((row.get(0)?, blob(row, 1)?))).optional()?;
    let (message_count, head) = last.unwrap_or_else(|| (0, chain::conversation_genesis(attempt, fence)));
    let mut partial =
        connection.prepare_cached("SELECT 1 FROM partials WHERE unit_key = ?1 AND attempt_number = ?2")?;
    Ok(Conversation { message_count, head, has_partial: partial.exists(key)? })
}
