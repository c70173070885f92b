//! An attempt while it runs: start, append, partial, progress, checkpoint.

use chrono::{DateTime, Utc};
use rusqlite::params;

use super::book::{Answer, Book, Entry, Trace};
use crate::attempt::{AttemptKey, Progress};
use crate::chain::{self, Hash};
use crate::clock::Moment;
use crate::conversation::to_json;
use crate::lease::Lease;
use crate::money::{Charge, Money};
use crate::repository::prepared::{BeginningRow, NewMessage};
use crate::repository::{RepositoryError, rules};
use crate::unit::{Change, UnitStatus};

impl Book<'_> {
    /// ASSIGNED → PROCESSING. A claim may have done it already.
    pub(super) fn start(&mut self, now: Moment, lease: &Lease, beginning: &BeginningRow) -> Answer<()> {
        let Some(unit) = self.held(lease)? else { return Err(RepositoryError::stale(lease).into()) };
        if unit.status.after(Change::Start).is_none() {
            return Ok(());
        }
        let mut update =
            self.connection.prepare_cached("UPDATE work_units SET status = 'PROCESSING' WHERE key = ?1")?;
        update.execute([lease.unit.0])?;
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts SET started_at = ?3, provenance = ?4 WHERE unit_key = ?1 AND number = ?2",
        )?;
        let now_ms = now.wall.timestamp_millis();
        update.execute(params![lease.unit.0, lease.attempt_number, now_ms, beginning.provenance_json])?;
        self.attempt_changes(lease.attempt());
        if let Some(prompt) = &beginning.rendered_prompt {
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO attempt_results (unit_key, attempt_number, rendered_prompt) VALUES (?1, ?2, ?3)",
            )?;
            insert.execute(params![lease.unit.0, lease.attempt_number, prompt])?;
            let mut trace = self.trace(lease.attempt(), lease.fence)?;
            trace.rendered_prompt = Some(Hash::of(prompt.as_bytes()));
            self.remember(lease.attempt(), trace);
        }
        self.record_start(now, lease, beginning)
    }

    pub(super) fn record_start(&mut self, now: Moment, lease: &Lease, beginning: &BeginningRow) -> Answer<()> {
        self.record(
            now,
            Entry {
                unit: lease.unit,
                attempt_number: Some(lease.attempt_number),
                fence: lease.fence,
                change: Change::Start,
                from: Some(UnitStatus::Assigned),
                to: UnitStatus::Processing,
                actor: &lease.owner.to_string(),
                reason: None,
                conversation: None,
                digest: Some(beginning.digest),
            },
        )?;
        Ok(())
    }

    /// Adds those of the messages that are not there yet.
    pub(super) fn append(&mut self, now: Moment, lease: &Lease, follows: u32, messages: &[NewMessage]) -> Answer<()> {
        self.check_held(lease)?;
        let attempt = lease.attempt();
        let mut trace = self.trace(attempt, lease.fence)?;
        let count = trace.message_count;
        if follows > count {
            self.refuse_messages(attempt, u32::try_from(messages.len()).unwrap_or(u32::MAX))?;
            return Err(rules::gap(lease, count, follows).into());
        }
        if trace.has_partial && !messages.is_empty() {
            self.set_partial(attempt, "")?;
            trace.has_partial = false;
        }
        for message in messages.iter().skip((count - follows) as usize) {
            self.add_message(attempt, &mut trace, now.wall, message)?;
        }
        self.remember(attempt, trace);
        Ok(())
    }

    /// Writes down that messages were not taken: nobody may be waiting to be told.
    fn refuse_messages(&mut self, attempt: AttemptKey, messages: u32) -> rusqlite::Result<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts SET messages_lost = messages_lost + ?3 WHERE unit_key = ?1 AND number = ?2",
        )?;
        update.execute(params![attempt.unit.0, attempt.number, messages])?;
        self.attempt_changes(attempt);
        Ok(())
    }

    pub(super) fn add_message(
        &self,
        attempt: AttemptKey,
        trace: &mut Trace,
        at: DateTime<Utc>,
        message: &NewMessage,
    ) -> rusqlite::Result<()> {
        trace.message_count += 1;
        if self.memory.is_chained {
            let (number, role) = (trace.message_count, message.role);
            trace.head = chain::message_link(&trace.head, number, at, role, &message.content_hash);
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO messages (unit_key, attempt_number, number, at, role, encoding, body, raw, content_hash, link)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?;
        insert.execute(params![
            attempt.unit.0,
            attempt.number,
            trace.message_count,
            at.timestamp_millis(),
            message.role.name(),
            message.encoding.name(),
            message.body,
            message.raw,
            message.content_hash.as_bytes(),
            trace.head.as_bytes(),
        ])?;
        Ok(())
    }

    pub(super) fn partial(&mut self, lease: &Lease, text: &str) -> Answer<()> {
        self.check_held(lease)?;
        let mut trace = self.trace(lease.attempt(), lease.fence)?;
        self.set_partial(lease.attempt(), text)?;
        trace.has_partial = !text.is_empty();
        self.remember(lease.attempt(), trace);
        Ok(())
    }

    pub(super) fn set_partial(&self, attempt: AttemptKey, text: &str) -> rusqlite::Result<()> {
        if text.is_empty() {
            let mut delete =
                self.connection.prepare_cached("DELETE FROM partials WHERE unit_key = ?1 AND attempt_number = ?2")?;
            delete.execute(params![attempt.unit.0, attempt.number])?;
        } else {
            let mut replace = self.connection.prepare_cached(
                "INSERT INTO partials (unit_key, attempt_number, text)
                 VALUES (?1, ?2, ?3)
                 ON CONFLICT (unit_key, attempt_number) DO UPDATE SET text = ?3",
            )?;
            replace.execute(params![attempt.unit.0, attempt.number, text])?;
        }
        Ok(())
    }

    /// That everything appended so far is durable follows from this being so.
    pub(super) fn flush(&mut self, lease: &Lease) -> Answer<()> {
        self.check_held(lease)?;
        let mut select =
            self.connection.prepare_cached("SELECT messages_lost FROM attempts WHERE unit_key = ?1 AND number = ?2")?;
        let refused: u32 = select.query_row(params![lease.unit.0, lease.attempt_number], |row| row.get(0))?;
        match refused.saturating_add(self.failed_messages(lease.attempt())) {
            0 => Ok(()),
            lost => Err(rules::lost(lease, lost).into()),
        }
    }

    pub(super) fn progress(&mut self, lease: &Lease, progress: &Progress) -> Answer<()> {
        let Progress { session_id, process, charges, failure } = progress;
        self.check_held(lease)?;
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts
             SET session_id = coalesce(?3, session_id), process = coalesce(?4, process),
                 failure_kind = coalesce(?5, failure_kind), failure_message = coalesce(?6, failure_message)
             WHERE unit_key = ?1 AND number = ?2",
        )?;
        let process = process.as_ref().map(|process| to_json(process).expect("a process is flat"));
        let (kind, message) = failure.as_ref().map(|failure| (failure.kind.as_str(), failure.message.as_str())).unzip();
        update.execute(params![lease.unit.0, lease.attempt_number, session_id, process, kind, message])?;
        self.attempt_changes(lease.attempt());
        if !charges.is_empty() {
            self.charge(lease.attempt(), charges)?;
            let mut trace = self.trace(lease.attempt(), lease.fence)?;
            trace.is_charged = true;
            self.remember(lease.attempt(), trace);
        }
        Ok(())
    }

    /// These and no others are the charges of an attempt.
    pub(super) fn replace_charges(&self, attempt: AttemptKey, charges: &[Charge]) -> rusqlite::Result<()> {
        let mut delete =
            self.connection.prepare_cached("DELETE FROM charges WHERE unit_key = ?1 AND attempt_number = ?2")?;
        delete.execute(params![attempt.unit.0, attempt.number])?;
        self.charge(attempt, charges)
    }

    pub(super) fn charge(&self, attempt: AttemptKey, charges: &[Charge]) -> rusqlite::Result<()> {
        // Not REPLACE: to be able to undo that, SQLite would copy every page that it touches.
        let mut replace = self.connection.prepare_cached(
            "INSERT INTO charges (unit_key, attempt_number, model, input, output, cache_read, cache_write, reasoning,
                                  amount, price, is_estimated)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
             ON CONFLICT (unit_key, attempt_number, model) DO UPDATE
             SET input = ?4, output = ?5, cache_read = ?6, cache_write = ?7, reasoning = ?8, amount = ?9, price = ?10,
                 is_estimated = ?11",
        )?;
        for charge in charges {
            let count = |tokens: u64| i64::try_from(tokens).expect("token counts were checked");
            let price = charge.price.as_ref().map(|price| to_json(price).expect("a price is flat"));
            replace.execute(params![
                attempt.unit.0,
                attempt.number,
                charge.model,
                count(charge.tokens.input),
                count(charge.tokens.output),
                count(charge.tokens.cache_read),
                count(charge.tokens.cache_write),
                count(charge.tokens.reasoning),
                charge.amount.map(Money::nanos),
                price,
                charge.is_estimated,
            ])?;
        }
        Ok(())
    }

    pub(super) fn checkpoint_at(&mut self, lease: &Lease, value: &[u8]) -> Answer<()> {
        self.check_held(lease)?;
        let mut replace = self.connection.prepare_cached(
            "INSERT INTO checkpoints (unit_key, attempt_number, value)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE SET value = ?3",
        )?;
        replace.execute(params![lease.unit.0, lease.attempt_number, value])?;
        Ok(())
    }
}
