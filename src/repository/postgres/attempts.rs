//! An attempt while it runs: start, append, partial, progress, checkpoint.

use chrono::{DateTime, Utc};

use super::book::{Answer, Book, Entry};
use super::columns::Columns;
use super::connection::Read;
use super::memory::Trace;
use crate::attempt::{AttemptKey, Progress};
use crate::chain::{self, Hash};
use crate::conversation::to_json;
use crate::lease::Lease;
use crate::money::{Charge, Money};
use crate::repository::prepared::{BeginningRow, NewMessage};
use crate::repository::{RepositoryError, rules};
use crate::unit::{Change, UnitStatus};

impl Book<'_> {
    /// ASSIGNED → PROCESSING. A claim may have done it already.
    pub(super) fn start(&mut self, lease: &Lease, beginning: &BeginningRow) -> Answer<()> {
        let Some(unit) = self.held(lease)? else { return Err(RepositoryError::stale(lease).into()) };
        if unit.status.after(Change::Start).is_none() {
            return Ok(());
        }
        let (unit, number) = (lease.unit.0, i64::from(lease.attempt_number));
        self.execute("UPDATE work_units SET status = 'PROCESSING' WHERE key = $1", &[&unit])?;
        self.execute(
            "UPDATE attempts SET started_at = $3, provenance = $4 WHERE unit_key = $1 AND number = $2",
            &[&unit, &number, &self.now.wall.timestamp_millis(), &beginning.provenance_json],
        )?;
        let started_at = self.now.wall;
        if let Some(open) = self.memory.opened_mut(lease.attempt()) {
            open.unit.status = UnitStatus::Processing;
            open.attempt.started_at = Some(started_at);
            open.attempt.provenance.clone_from(&beginning.provenance);
        }
        if let Some(prompt) = &beginning.rendered_prompt {
            self.execute(
                "INSERT INTO attempt_results (unit_key, attempt_number, rendered_prompt) VALUES ($1, $2, $3)",
                &[&unit, &number, &prompt.as_bytes()],
            )?;
            let mut trace = self.trace(lease.attempt(), lease.fence)?;
            trace.rendered_prompt = Some(Hash::of(prompt.as_bytes()));
            self.memory.remember(lease.attempt(), trace);
        }
        self.record_start(lease, beginning);
        Ok(())
    }

    pub(super) fn record_start(&mut self, lease: &Lease, beginning: &BeginningRow) {
        self.record(Entry {
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
        });
    }

    /// Adds those of the messages that are not there yet.
    pub(super) fn append(&mut self, lease: &Lease, follows: u32, messages: &[NewMessage]) -> Answer<()> {
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
        let at = self.now.wall;
        for message in messages.iter().skip((count - follows) as usize) {
            self.add_message(attempt, &mut trace, at, message)?;
        }
        self.memory.remember(attempt, trace);
        Ok(())
    }

    /// Writes down that messages were not taken: nobody may be waiting to be told.
    fn refuse_messages(&mut self, attempt: AttemptKey, messages: u32) -> Read<()> {
        self.execute(
            "UPDATE attempts SET messages_lost = messages_lost + $3 WHERE unit_key = $1 AND number = $2",
            &[&attempt.unit.0, &i64::from(attempt.number), &i64::from(messages)],
        )?;
        self.memory.attempt_changes(attempt);
        Ok(())
    }

    pub(super) fn add_message(
        &mut self,
        attempt: AttemptKey,
        trace: &mut Trace,
        at: DateTime<Utc>,
        message: &NewMessage,
    ) -> Read<()> {
        trace.message_count += 1;
        let (number, role) = (trace.message_count, message.role);
        trace.head = chain::message_link(&trace.head, number, at, role, &message.content_hash);
        let are_many = self.pending().message(attempt, (number, &trace.head), at.timestamp_millis(), message);
        if are_many {
            self.settled()?;
        }
        Ok(())
    }

    pub(super) fn partial(&mut self, lease: &Lease, text: &str) -> Answer<()> {
        self.check_held(lease)?;
        let mut trace = self.trace(lease.attempt(), lease.fence)?;
        self.set_partial(lease.attempt(), text)?;
        trace.has_partial = !text.is_empty();
        self.memory.remember(lease.attempt(), trace);
        Ok(())
    }

    pub(super) fn set_partial(&mut self, attempt: AttemptKey, text: &str) -> Read<()> {
        let (unit, number) = (attempt.unit.0, i64::from(attempt.number));
        if text.is_empty() {
            self.execute("DELETE FROM partials WHERE unit_key = $1 AND attempt_number = $2", &[&unit, &number])?;
        } else {
            self.execute(
                "INSERT INTO partials (unit_key, attempt_number, text)
                 VALUES ($1, $2, $3)
                 ON CONFLICT (unit_key, attempt_number) DO UPDATE SET text = $3",
                &[&unit, &number, &text.as_bytes()],
            )?;
        }
        Ok(())
    }

    /// That everything appended so far is durable follows from this being so.
    pub(super) fn flush(&mut self, lease: &Lease) -> Answer<()> {
        self.check_held(lease)?;
        let row = self.row(
            "SELECT messages_lost FROM attempts WHERE unit_key = $1 AND number = $2",
            &[&lease.unit.0, &i64::from(lease.attempt_number)],
        )?;
        let refused: u32 = row.map_or(Ok(0), |row| row.count(0))?;
        match refused.saturating_add(self.memory.failed_messages(lease.attempt())) {
            0 => Ok(()),
            lost => Err(rules::lost(lease, lost).into()),
        }
    }

    pub(super) fn progress(&mut self, lease: &Lease, progress: &Progress) -> Answer<()> {
        let Progress { session_id, process, charges, failure } = progress;
        self.check_held(lease)?;
        let process = process.as_ref().map(|process| to_json(process).expect("a process is flat"));
        let (kind, message) =
            failure.as_ref().map(|failure| (failure.kind.as_str().as_bytes(), failure.message.as_bytes())).unzip();
        self.execute(
            "UPDATE attempts
             SET session_id = coalesce($3, session_id), process = coalesce($4, process),
                 failure_kind = coalesce($5, failure_kind), failure_message = coalesce($6, failure_message)
             WHERE unit_key = $1 AND number = $2",
            &[
                &lease.unit.0,
                &i64::from(lease.attempt_number),
                &session_id.as_deref().map(str::as_bytes),
                &process,
                &kind,
                &message,
            ],
        )?;
        self.memory.attempt_changes(lease.attempt());
        if !charges.is_empty() {
            self.charge(lease.attempt(), charges)?;
            let mut trace = self.trace(lease.attempt(), lease.fence)?;
            trace.is_charged = true;
            self.memory.remember(lease.attempt(), trace);
        }
        Ok(())
    }

    /// These and no others are the charges of an attempt.
    pub(super) fn replace_charges(&mut self, attempt: AttemptKey, charges: &[Charge]) -> Read<()> {
        self.execute(
            "DELETE FROM charges WHERE unit_key = $1 AND attempt_number = $2",
            &[&attempt.unit.0, &i64::from(attempt.number)],
        )?;
        self.charge(attempt, charges)
    }

    pub(super) fn charge(&mut self, attempt: AttemptKey, charges: &[Charge]) -> Read<()> {
        for charge in charges {
            let count = |tokens: u64| i64::try_from(tokens).expect("token counts were checked");
            let price = charge.price.as_ref().map(|price| to_json(price).expect("a price is flat"));
            self.execute(
                "INSERT INTO charges (unit_key, attempt_number, model, input, output, cache_read, cache_write, reasoning,
                                      amount, price, is_estimated)
                 VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
                 ON CONFLICT (unit_key, attempt_number, model) DO UPDATE
                 SET input = $4, output = $5, cache_read = $6, cache_write = $7, reasoning = $8, amount = $9, price = $10,
                     is_estimated = $11",
                &[
                    &attempt.unit.0,
                    &i64::from(attempt.number),
                    &charge.model.as_bytes(),
                    &count(charge.tokens.input),
                    &count(charge.tokens.output),
                    &count(charge.tokens.cache_read),
                    &count(charge.tokens.cache_write),
                    &count(charge.tokens.reasoning),
                    &charge.amount.map(Money::nanos),
                    &price,
                    &charge.is_estimated,
                ],
            )?;
        }
        Ok(())
    }

    pub(super) fn checkpoint_at(&mut self, lease: &Lease, value: &[u8]) -> Answer<()> {
        self.check_held(lease)?;
        self.execute(
            "INSERT INTO checkpoints (unit_key, attempt_number, value)
             VALUES ($1, $2, $3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE SET value = $3",
            &[&lease.unit.0, &i64::from(lease.attempt_number), &value],
        )?;
        Ok(())
    }
}
