//! An attempt while it runs, and how it ends: start, append, progress, checkpoint, finish, release.

use chrono::{DateTime, Utc};
use rusqlite::params;

use super::book::{Answer, Book, Conversation, Entry};
use super::messages::NewMessage;
use super::rows::{HotUnit, optional_blob, read_attempt, read_attempt_result, read_charges};
use crate::attempt::{
    Attempt, AttemptKey, AttemptReport, Closing, Outcome, OutputFile, Process, Standing, execution_time,
};
use crate::chain::{self, Hash};
use crate::clock::Moment;
use crate::conversation::{Raw, to_json};
use crate::lease::Lease;
use crate::money::{Charge, Money};
use crate::repository::rules::{self, Pause};
use crate::repository::{Closed, RepositoryError, Result};
use crate::unit::{Change, UnitStatus};

/// A report, checked and serialised by its caller, so that the writer need not.
#[derive(Debug)]
pub(super) struct ReportRow {
    /// The report without what stands beside it, which is what a late report keeps too.
    pub(super) report: AttemptReport,
    result: Option<Raw>,
}

impl ReportRow {
    pub(super) fn of(report: &AttemptReport) -> Result<ReportRow> {
        Ok(ReportRow { result: rules::check_report(report)?, report: report.clone() })
    }

    pub(super) fn len_bytes(&self) -> usize {
        let result = self.result.as_ref().map_or(0, |result| result.as_bytes().len());
        result + self.report.output.as_ref().map_or(0, String::len)
    }
}

/// Who ends an attempt, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause<'a> {
    pub(super) actor: &'a str,
    pub(super) reason: Option<&'a str>,
}

impl HotUnit {
    pub(super) fn standing(&self) -> Standing {
        Standing {
            status: self.status,
            attempts_used: self.attempts_used,
            max_retries: self.max_retries,
            releases: self.releases,
        }
    }
}

impl Book<'_> {
    fn held_or_stale(&self, lease: &Lease) -> Answer<HotUnit> {
        self.held(lease)?.ok_or_else(|| RepositoryError::stale(lease).into())
    }

    /// ASSIGNED → PROCESSING.
    pub(super) fn start(
        &mut self,
        now: Moment,
        lease: &Lease,
        rendered_prompt: Option<&str>,
        provenance: Option<&[u8]>,
        digest: Hash,
    ) -> Answer<()> {
        let unit = self.held_or_stale(lease)?;
        let Some(to) = unit.status.after(Change::Start) else { return Ok(()) };
        let mut update =
            self.connection.prepare_cached("UPDATE work_units SET status = 'PROCESSING' WHERE key = ?1")?;
        update.execute([lease.unit.0])?;
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts SET started_at = ?3, provenance = ?4 WHERE unit_key = ?1 AND number = ?2",
        )?;
        let now_ms = now.wall.timestamp_millis();
        update.execute(params![lease.unit.0, lease.attempt_number, now_ms, provenance])?;
        if let Some(prompt) = rendered_prompt {
            let mut insert = self.connection.prepare_cached(
                "INSERT INTO attempt_results (unit_key, attempt_number, rendered_prompt) VALUES (?1, ?2, ?3)",
            )?;
            insert.execute(params![lease.unit.0, lease.attempt_number, prompt])?;
        }
        self.record(
            now,
            Entry {
                unit: lease.unit,
                attempt_number: Some(lease.attempt_number),
                fence: lease.fence,
                change: Change::Start,
                from: Some(unit.status),
                to,
                actor: &lease.owner.to_string(),
                reason: None,
                conversation: None,
                digest: Some(digest),
            },
        )?;
        Ok(())
    }

    /// Adds those of the messages that are not there yet.
    pub(super) fn append(&mut self, now: Moment, lease: &Lease, follows: u32, messages: &[NewMessage]) -> Answer<()> {
        self.held_or_stale(lease)?;
        let attempt = lease.attempt();
        let mut conversation = self.conversation(attempt, lease.fence)?;
        let count = conversation.message_count;
        if follows > count {
            self.refuse_messages(attempt, u32::try_from(messages.len()).unwrap_or(u32::MAX))?;
            return Err(rules::gap(lease, count, follows).into());
        }
        if conversation.has_partial && !messages.is_empty() {
            self.set_partial(attempt, "")?;
            conversation.has_partial = false;
        }
        for message in messages.iter().skip((count - follows) as usize) {
            self.add_message(attempt, &mut conversation, now.wall, message)?;
        }
        self.remember(attempt, conversation);
        Ok(())
    }

    /// Writes down that messages were not taken: nobody may be waiting to be told.
    fn refuse_messages(&self, attempt: AttemptKey, messages: u32) -> rusqlite::Result<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts SET messages_lost = messages_lost + ?3 WHERE unit_key = ?1 AND number = ?2",
        )?;
        update.execute(params![attempt.unit.0, attempt.number, messages])?;
        Ok(())
    }

    fn add_message(
        &self,
        attempt: AttemptKey,
        conversation: &mut Conversation,
        at: DateTime<Utc>,
        message: &NewMessage,
    ) -> rusqlite::Result<()> {
        conversation.message_count += 1;
        if self.memory.is_chained {
            let (number, role) = (conversation.message_count, message.role);
            conversation.head = chain::message_link(&conversation.head, number, at, role, &message.content_hash);
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO messages (unit_key, attempt_number, number, at, role, encoding, body, raw, content_hash, link)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?;
        insert.execute(params![
            attempt.unit.0,
            attempt.number,
            conversation.message_count,
            at.timestamp_millis(),
            message.role.name(),
            message.encoding.name(),
            message.body,
            message.raw,
            message.content_hash.as_bytes(),
            conversation.head.as_bytes(),
        ])?;
        Ok(())
    }

    pub(super) fn partial(&mut self, lease: &Lease, text: &str) -> Answer<()> {
        self.held_or_stale(lease)?;
        let mut conversation = self.conversation(lease.attempt(), lease.fence)?;
        self.set_partial(lease.attempt(), text)?;
        conversation.has_partial = !text.is_empty();
        self.remember(lease.attempt(), conversation);
        Ok(())
    }

    fn set_partial(&self, attempt: AttemptKey, text: &str) -> rusqlite::Result<()> {
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
        self.held_or_stale(lease)?;
        let mut select =
            self.connection.prepare_cached("SELECT messages_lost FROM attempts WHERE unit_key = ?1 AND number = ?2")?;
        let refused: u32 = select.query_row(params![lease.unit.0, lease.attempt_number], |row| row.get(0))?;
        match refused.saturating_add(self.failed_messages(lease.attempt())) {
            0 => Ok(()),
            lost => Err(rules::lost(lease, lost).into()),
        }
    }

    pub(super) fn progress(
        &mut self,
        lease: &Lease,
        session_id: Option<&str>,
        process: Option<&Process>,
        charges: &[Charge],
    ) -> Answer<()> {
        self.held_or_stale(lease)?;
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts
             SET session_id = coalesce(?3, session_id), process = coalesce(?4, process)
             WHERE unit_key = ?1 AND number = ?2",
        )?;
        let process = process.map(|process| to_json(process).expect("a process is flat"));
        update.execute(params![lease.unit.0, lease.attempt_number, session_id, process])?;
        self.charge(lease.attempt(), charges)?;
        Ok(())
    }

    fn charge(&self, attempt: AttemptKey, charges: &[Charge]) -> rusqlite::Result<()> {
        let mut replace = self.connection.prepare_cached(
            "INSERT OR REPLACE INTO charges (unit_key, attempt_number, model, input, output, cache_read, cache_write,
                                             reasoning, amount, price, is_estimated)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
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
        self.held_or_stale(lease)?;
        let mut replace = self.connection.prepare_cached(
            "INSERT INTO checkpoints (unit_key, attempt_number, value)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE SET value = ?3",
        )?;
        replace.execute(params![lease.unit.0, lease.attempt_number, value])?;
        Ok(())
    }

    pub(super) fn finish(&mut self, now: Moment, lease: &Lease, row: &ReportRow) -> Answer<Closed> {
        let Some(unit) = self.held(lease)? else { return self.finish_late(now, lease, row) };
        let closing = unit.standing().finished(&row.report.ending);
        rules::changed_unit(&unit.id, unit.status, closing.change)?;
        let attempt = lease.attempt();
        self.store_result(attempt, row.result.as_ref(), row.report.output.as_deref(), &row.report.output_files)?;
        self.charge(attempt, &row.report.charges)?;
        if let Some(session_id) = &row.report.session_id {
            let mut update = self
                .connection
                .prepare_cached("UPDATE attempts SET session_id = ?3 WHERE unit_key = ?1 AND number = ?2")?;
            update.execute(params![attempt.unit.0, attempt.number, session_id])?;
        }
        let actor = lease.owner.to_string();
        let kind = closing.failure.as_ref().map(|failure| failure.kind.clone());
        let cause = Cause { actor: &actor, reason: kind.as_ref().map(|kind| kind.as_str()) };
        self.close(now, &unit, &closing, cause, row.report.messages_lost)
    }

    fn store_result(
        &self,
        attempt: AttemptKey,
        result: Option<&Raw>,
        output: Option<&str>,
        files: &[OutputFile],
    ) -> rusqlite::Result<()> {
        if result.is_some() || output.is_some() {
            let mut upsert = self.connection.prepare_cached(
                "INSERT INTO attempt_results (unit_key, attempt_number, result, output)
                 VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (unit_key, attempt_number) DO UPDATE SET result = ?3, output = ?4",
            )?;
            upsert.execute(params![attempt.unit.0, attempt.number, result.map(Raw::as_bytes), output])?;
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO output_files (unit_key, attempt_number, position, path, size_bytes, hash)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?;
        for (position, file) in (0_i64..).zip(files) {
            let size_bytes = i64::try_from(file.size_bytes).expect("file sizes were checked");
            insert.execute(params![
                attempt.unit.0,
                attempt.number,
                position,
                file.path,
                size_bytes,
                file.hash.as_bytes()
            ])?;
        }
        Ok(())
    }

    pub(super) fn release(
        &mut self,
        now: Moment,
        lease: &Lease,
        after: Option<std::time::Duration>,
        reason: &str,
    ) -> Answer<Closed> {
        let Some(unit) = self.held(lease)? else {
            return match self.closed_attempt(lease)? {
                Some(attempt) if attempt.outcome == Some(Outcome::Released) => self.closed_before(lease),
                _ => Err(RepositoryError::stale(lease).into()),
            };
        };
        let actor = lease.owner.to_string();
        let cause = Cause { actor: &actor, reason: Some(reason) };
        self.close(now, &unit, &unit.standing().released(after), cause, 0)
    }

    /// The lease no longer holds: it is our own report sent again, or a late one, which stays on its attempt.
    fn finish_late(&mut self, now: Moment, lease: &Lease, row: &ReportRow) -> Answer<Closed> {
        let stale = || RepositoryError::stale(lease).into();
        let Some(attempt) = self.closed_attempt(lease)? else { return Err(stale()) };
        let unit = self.unit(lease.unit)?.expect("an attempt belongs to a unit");
        let stored = read_attempt_result(self.connection, attempt.key)?;
        let charges = read_charges(self.connection, attempt.key)?;
        let digest = self.closing_row(attempt.key)?.and_then(|(.., digest)| digest);
        let (report, result) = (&row.report, row.result.as_ref());
        if rules::is_own_report(&attempt, &stored, &charges, digest.as_ref(), report, result) {
            return self.closed_before(lease);
        }
        let late_result = rules::late_result(report);
        let charged = rules::charged(&charges, &report.charges);
        let is_known = stored.late_result.as_ref() == Some(&late_result) && charged == charges;
        if unit.is_purged || is_known {
            return Err(stale());
        }
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO attempt_results (unit_key, attempt_number, late_result)
             VALUES (?1, ?2, ?3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE SET late_result = ?3",
        )?;
        upsert.execute(params![attempt.key.unit.0, attempt.key.number, late_result.as_bytes()])?;
        self.charge(attempt.key, &report.charges)?;
        let stored = read_attempt_result(self.connection, attempt.key)?;
        self.record(
            now,
            Entry {
                unit: unit.key,
                attempt_number: Some(attempt.key.number),
                fence: unit.fence,
                change: Change::LateReport,
                from: Some(unit.status),
                to: unit.status,
                actor: &lease.owner.to_string(),
                reason: None,
                conversation: None,
                digest: Some(stored.digest(&attempt, &charged)),
            },
        )?;
        Err(stale())
    }

    /// The attempt of a lease, if it has ended.
    fn closed_attempt(&self, lease: &Lease) -> Answer<Option<Attempt>> {
        let attempt = read_attempt(self.connection, lease.attempt())?;
        Ok(attempt.filter(|attempt| attempt.fence == lease.fence && attempt.outcome.is_some()))
    }

    /// What the end of an attempt did when it was made.
    fn closed_before(&self, lease: &Lease) -> Answer<Closed> {
        match self.closing_row(lease.attempt())? {
            Some((change, status, _)) => Ok(Closed { status, change, not_before: None }),
            None => Err(RepositoryError::stale(lease).into()),
        }
    }

    /// The journal row that closed an attempt.
    fn closing_row(&self, attempt: AttemptKey) -> Answer<Option<(Change, UnitStatus, Option<Hash>)>> {
        let mut select = self.connection.prepare_cached(
            "SELECT change, to_status, digest
             FROM journal
             WHERE unit_key = ?1 AND attempt_number = ?2 AND head IS NOT NULL",
        )?;
        let mut rows = select.query(params![attempt.unit.0, attempt.number])?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let change = super::rows::named(row, 0, Change::from_name)?;
        let status = super::rows::named(row, 1, UnitStatus::from_name)?;
        Ok(Some((change, status, optional_blob(row, 2)?)))
    }

    /// Ends the open attempt of a unit, and does to the unit what follows from it.
    pub(super) fn close(
        &mut self,
        now: Moment,
        unit: &HotUnit,
        closing: &Closing,
        cause: Cause<'_>,
        messages_lost: u32,
    ) -> Answer<Closed> {
        let attempt = unit.attempt();
        let is_loss = closing.outcome == Outcome::Lost;
        let attempt_fence = unit.fence;
        let fence = if is_loss { unit.fence + 1 } else { unit.fence };
        let to = rules::changed_unit(&unit.id, unit.status, closing.change)?;
        let conversation = self.end_conversation(now, attempt, attempt_fence)?;
        let messages_lost = messages_lost.saturating_add(self.close_conversation(attempt));
        self.close_attempt(now, attempt, closing, conversation, messages_lost)?;
        let pause = closing.delay.and_then(|delay| Pause::lasting(delay, now));
        self.close_unit(now, unit, closing, to, fence, pause)?;
        self.give_back(now, unit, closing.outcome)?;
        let charges = read_charges(self.connection, attempt)?;
        let left = read_attempt_result(self.connection, attempt)?;
        let closed = read_attempt(self.connection, attempt)?.expect("it was just closed");
        let digest = left.digest(&closed, &charges);
        self.record(
            now,
            Entry {
                unit: unit.key,
                attempt_number: Some(attempt.number),
                fence,
                change: closing.change,
                from: Some(unit.status),
                to,
                actor: cause.actor,
                reason: cause.reason,
                conversation: Some((conversation.message_count, conversation.head)),
                digest: Some(digest),
            },
        )?;
        Ok(Closed { status: to, change: closing.change, not_before: pause.map(|pause| pause.not_before) })
    }

    /// Keeps what was said of a message that will never be whole.
    fn end_conversation(&mut self, now: Moment, attempt: AttemptKey, fence: i64) -> Answer<Conversation> {
        let mut conversation = self.conversation(attempt, fence)?;
        if conversation.has_partial {
            let mut select = self
                .connection
                .prepare_cached("SELECT text FROM partials WHERE unit_key = ?1 AND attempt_number = ?2")?;
            let text: String = select.query_row(params![attempt.unit.0, attempt.number], |row| row.get(0))?;
            self.set_partial(attempt, "")?;
            self.add_message(attempt, &mut conversation, now.wall, &NewMessage::partial(text))?;
        }
        Ok(conversation)
    }

    fn close_attempt(
        &self,
        now: Moment,
        attempt: AttemptKey,
        closing: &Closing,
        conversation: Conversation,
        messages_lost: u32,
    ) -> rusqlite::Result<()> {
        let mut update = self.connection.prepare_cached(
            "UPDATE attempts
             SET ended_at = ?3, outcome = ?4, is_counted = ?5, failure_kind = ?6, failure_message = ?7,
                 message_count = ?8, head = ?9, messages_lost = messages_lost + ?10
             WHERE unit_key = ?1 AND number = ?2",
        )?;
        update.execute(params![
            attempt.unit.0,
            attempt.number,
            now.wall.timestamp_millis(),
            closing.outcome.name(),
            closing.is_counted,
            closing.failure.as_ref().map(|failure| failure.kind.as_str()),
            closing.failure.as_ref().map(|failure| failure.message.as_str()),
            conversation.message_count,
            conversation.head.as_bytes(),
            messages_lost,
        ])?;
        Ok(())
    }

    fn close_unit(
        &self,
        now: Moment,
        unit: &HotUnit,
        closing: &Closing,
        to: UnitStatus,
        fence: i64,
        pause: Option<Pause>,
    ) -> rusqlite::Result<()> {
        let is_given_back = closing.change == Change::Release && !closing.is_counted;
        let failure = closing.failure.as_ref().filter(|_| to == UnitStatus::Failed);
        let mut update = self.connection.prepare_cached(
            "UPDATE work_units
             SET status = ?2, fence = ?3, attempts_used = ?4, releases = ?5, not_before = ?6, delay_ms = ?7,
                 accepted_by = iif(?8, accepted_by, NULL), lease_owner = NULL, lease_worker = NULL,
                 lease_until_boot_ms = NULL, failure_kind = ?9, failure_message = ?10, completed_at = ?11
             WHERE key = ?1",
        )?;
        update.execute(params![
            unit.key.0,
            to.name(),
            fence,
            unit.attempts_used + u32::from(closing.is_counted),
            unit.releases + u32::from(is_given_back),
            pause.map(|pause| pause.not_before.timestamp_millis()),
            pause.map(|pause| pause.delay_ms),
            matches!(closing.change, Change::Retry | Change::Release),
            failure.map(|failure| failure.kind.as_str()),
            failure.map(|failure| failure.message.as_str()),
            to.is_terminal().then(|| now.wall.timestamp_millis()),
        ])?;
        Ok(())
    }

    /// Takes an attempt off the load of its worker, and counts it.
    fn give_back(&self, now: Moment, unit: &HotUnit, outcome: Outcome) -> rusqlite::Result<()> {
        let Some((owner, worker_id)) = &unit.lease else { return Ok(()) };
        let executed = execution_time(unit.started_at, Some(now.wall)).unwrap_or_default();
        let mut update = self.connection.prepare_cached(
            "UPDATE workers
             SET load = load - 1,
                 status = iif(status = 'BUSY', 'READY', status),
                 current_unit = nullif(current_unit, ?3),
                 units_completed = units_completed + ?4,
                 units_failed = units_failed + ?5,
                 total_time_ms = total_time_ms + ?6,
                 last_activity_at = ?7
             WHERE owner_id = ?1 AND id = ?2",
        )?;
        update.execute(params![
            owner.0,
            worker_id.as_str(),
            unit.key.0,
            outcome == Outcome::Completed,
            rules::is_failure(outcome),
            rules::milliseconds(executed),
            now.wall.timestamp_millis(),
        ])?;
        Ok(())
    }
}
