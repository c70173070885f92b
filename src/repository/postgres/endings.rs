//! How an attempt ends, and its unit with it: finish, release, and what a lost one still reports.

use super::book::{Answer, Book, Entry};
use super::columns::Columns;
use super::connection::Read;
use super::memory::Trace;
use super::rows::{read_attempt, read_attempt_result, read_charges};
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Closing, Outcome, OutputFile, ResultHashes};
use crate::chain::Hash;
use crate::clock::milliseconds;
use crate::conversation::Raw;
use crate::lease::Lease;
use crate::limits;
use crate::money::Charge;
use crate::repository::prepared::{HotUnit, NewMessage, ReportRow};
use crate::repository::rules::{self, Pause};
use crate::repository::{Closed, RepositoryError};
use crate::unit::{Change, UnitStatus};

/// What an attempt leaves when it ends.
struct Left {
    result: AttemptResult,
    /// By model, in the order of their names.
    charges: Vec<Charge>,
    session_id: Option<String>,
    messages_lost: u32,
}

/// Who ends an attempt, and why.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cause<'a> {
    pub(super) actor: &'a str,
    pub(super) reason: Option<&'a str>,
}

impl Book<'_> {
    pub(super) fn finish(&mut self, lease: &Lease, row: &ReportRow) -> Answer<Closed> {
        let Some(unit) = self.held(lease)? else { return self.finish_late(lease, row) };
        let closing = unit.standing().finished(&row.report.ending);
        rules::changed_unit(&unit.id, unit.status, closing.change)?;
        let left = self.store_report(lease, row)?;
        let actor = lease.owner.to_string();
        let reason = closing.failure.as_ref().map(|failure| failure.kind.as_str());
        let cause = Cause { actor: &actor, reason };
        self.close_with(&unit, &closing, cause, left)
    }

    /// Stores what a report brings, and says what the attempt leaves with it.
    fn store_report(&mut self, lease: &Lease, row: &ReportRow) -> Answer<Left> {
        let (attempt, report) = (lease.attempt(), &row.report);
        let trace = self.trace(attempt, lease.fence)?;
        self.store_result(attempt, row.result.as_ref(), report.output.as_deref(), &report.output_files)?;
        if !report.charges.is_empty() {
            self.charge(attempt, &report.charges)?;
        }
        // What was charged before may be for other models.
        let charges = match trace.is_charged {
            true => read_charges(self.connection(), attempt)?,
            false => rules::charged(&[], &report.charges),
        };
        let hashes = ResultHashes { rendered_prompt: trace.rendered_prompt, ..row.hashes.clone() };
        Ok(Left {
            result: AttemptResult::of_hashes(hashes, report.output_files.clone()),
            charges,
            session_id: report.session_id.clone(),
            messages_lost: report.messages_lost,
        })
    }

    /// What an attempt leaves that ends without a report.
    fn left_behind(&mut self, attempt: AttemptKey) -> Answer<Left> {
        let result = read_attempt_result(self.connection(), attempt)?;
        let charges = read_charges(self.connection(), attempt)?;
        Ok(Left { result, charges, session_id: None, messages_lost: 0 })
    }

    fn store_result(
        &mut self,
        attempt: AttemptKey,
        result: Option<&Raw>,
        output: Option<&str>,
        files: &[OutputFile],
    ) -> Read<()> {
        let (unit, number) = (attempt.unit.0, i64::from(attempt.number));
        if result.is_some() || output.is_some() {
            self.execute(
                "INSERT INTO attempt_results (unit_key, attempt_number, result, output)
                 VALUES ($1, $2, $3, $4)
                 ON CONFLICT (unit_key, attempt_number) DO UPDATE SET result = $3, output = $4",
                &[&unit, &number, &result.map(Raw::as_bytes), &output.map(str::as_bytes)],
            )?;
        }
        for (position, file) in (0_i64..).zip(files) {
            let size_bytes = i64::try_from(file.size_bytes).expect("file sizes were checked");
            self.execute(
                "INSERT INTO output_files (unit_key, attempt_number, position, path, size_bytes, hash)
                 VALUES ($1, $2, $3, $4, $5, $6)",
                &[&unit, &number, &position, &file.path.as_bytes(), &size_bytes, &file.hash.as_bytes().as_slice()],
            )?;
        }
        Ok(())
    }

    pub(super) fn release(
        &mut self,
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
        self.close_without_report(&unit, &unit.standing().released(after), cause)
    }

    /// The lease no longer holds: it is our own report sent again, or a late one, which stays on its attempt.
    fn finish_late(&mut self, lease: &Lease, row: &ReportRow) -> Answer<Closed> {
        let stale = || RepositoryError::stale(lease).into();
        let Some(attempt) = self.closed_attempt(lease)? else { return Err(stale()) };
        let unit = self.unit(lease.unit)?.expect("an attempt belongs to a unit");
        let stored = read_attempt_result(self.connection(), attempt.key)?;
        let charges = read_charges(self.connection(), attempt.key)?;
        let digest = self.closing_row(attempt.key)?.and_then(|(.., digest)| digest);
        let (report, result) = (&row.report, row.result.as_ref());
        if rules::is_own_report(&attempt, &stored, &charges, digest.as_ref(), report, result) {
            return self.closed_before(lease);
        }
        let late_result = rules::late_result(report);
        let told = limits::told_late(&charges, &report.charges);
        let charged = rules::charged(&told, &report.charges);
        let is_known = stored.late_result.as_ref() == Some(&late_result) && charged == charges;
        if unit.is_purged || is_known {
            return Err(stale());
        }
        self.execute(
            "INSERT INTO attempt_results (unit_key, attempt_number, late_result)
             VALUES ($1, $2, $3)
             ON CONFLICT (unit_key, attempt_number) DO UPDATE SET late_result = $3",
            &[&attempt.key.unit.0, &i64::from(attempt.key.number), &late_result.as_bytes()],
        )?;
        self.replace_charges(attempt.key, &charged)?;
        self.correct(&unit, &attempt, &charges, &charged)?;
        let stored = read_attempt_result(self.connection(), attempt.key)?;
        self.record(Entry {
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
        });
        Err(stale())
    }

    /// The attempt of a lease, if it has ended.
    fn closed_attempt(&mut self, lease: &Lease) -> Answer<Option<Attempt>> {
        let attempt = read_attempt(self.connection(), lease.attempt())?;
        Ok(attempt.filter(|attempt| attempt.fence == lease.fence && attempt.outcome.is_some()))
    }

    /// What the end of an attempt did when it was made.
    fn closed_before(&mut self, lease: &Lease) -> Answer<Closed> {
        match self.closing_row(lease.attempt())? {
            Some((change, status, _)) => Ok(Closed { status, change, not_before: None }),
            None => Err(RepositoryError::stale(lease).into()),
        }
    }

    /// The journal row that closed an attempt.
    fn closing_row(&mut self, attempt: AttemptKey) -> Answer<Option<(Change, UnitStatus, Option<Hash>)>> {
        let row = self.settled()?.row(
            "SELECT change, to_status, digest
             FROM journal
             WHERE unit_key = $1 AND attempt_number = $2 AND head IS NOT NULL",
            &[&attempt.unit.0, &i64::from(attempt.number)],
        )?;
        let Some(row) = row else { return Ok(None) };
        Ok(Some((row.named(0, Change::from_name)?, row.named(1, UnitStatus::from_name)?, row.optional_hash(2)?)))
    }

    /// Ends the open attempt of a unit that leaves nothing but what it has recorded.
    pub(super) fn close_without_report(
        &mut self,
        unit: &HotUnit,
        closing: &Closing,
        cause: Cause<'_>,
    ) -> Answer<Closed> {
        let left = self.left_behind(unit.attempt())?;
        self.close_with(unit, closing, cause, left)
    }

    /// Ends the open attempt of a unit, and does to the unit what follows from it.
    fn close_with(&mut self, unit: &HotUnit, closing: &Closing, cause: Cause<'_>, left: Left) -> Answer<Closed> {
        let to = rules::changed_unit(&unit.id, unit.status, closing.change)?;
        let fence = if closing.outcome == Outcome::Lost { unit.fence + 1 } else { unit.fence };
        let left = self.settle_left(unit, closing, left)?;
        let attempt = self.close_attempt(unit, closing, &left)?;
        self.settle(unit, &attempt, &left.charges)?;
        let pause = closing.delay.and_then(|delay| Pause::lasting(delay, self.now));
        self.close_unit(unit, closing, to, fence, pause)?;
        self.give_back(unit, &attempt)?;
        self.record(Entry {
            unit: unit.key,
            attempt_number: Some(attempt.key.number),
            fence,
            change: closing.change,
            from: Some(unit.status),
            to,
            actor: cause.actor,
            reason: cause.reason,
            conversation: attempt.message_count.zip(attempt.head),
            digest: Some(left.result.digest(&attempt, &left.charges)),
        });
        Ok(Closed { status: to, change: closing.change, not_before: pause.map(|pause| pause.not_before) })
    }

    /// What an attempt leaves, with what a lost one is taken to have cost.
    fn settle_left(&mut self, unit: &HotUnit, closing: &Closing, left: Left) -> Answer<Left> {
        let key = unit.attempt();
        if closing.outcome != Outcome::Lost {
            return Ok(left);
        }
        let expected = match self.memory.opened(key) {
            Some(open) => open.attempt.expected,
            None => read_attempt(self.connection(), key)?.and_then(|attempt| attempt.expected),
        };
        if expected.is_none() {
            return Ok(left);
        }
        let charges = limits::settled(closing.outcome, left.charges, expected);
        self.charge(key, &charges)?;
        Ok(Left { charges, ..left })
    }

    /// Ends the conversation and the record of an attempt, and says how that stands now.
    fn close_attempt(&mut self, unit: &HotUnit, closing: &Closing, left: &Left) -> Answer<Attempt> {
        let key = unit.attempt();
        let trace = self.end_conversation(key, unit.fence)?;
        let mut attempt = match self.memory.opened(key) {
            Some(open) => open.attempt.clone(),
            None => read_attempt(self.connection(), key)?.expect("a leased unit has an attempt"),
        };
        let failed = self.end_attempt(key);
        attempt.ended_at = Some(self.now.wall);
        attempt.outcome = Some(closing.outcome);
        attempt.is_counted = closing.is_counted;
        closing.explain(&mut attempt);
        attempt.message_count = Some(trace.message_count);
        attempt.head = Some(trace.head);
        attempt.messages_lost = attempt.messages_lost.saturating_add(left.messages_lost).saturating_add(failed);
        if left.session_id.is_some() {
            attempt.session_id.clone_from(&left.session_id);
        }
        self.write_end(&attempt)?;
        Ok(attempt)
    }

    fn write_end(&mut self, attempt: &Attempt) -> Read<()> {
        self.execute(
            "UPDATE attempts
             SET ended_at = $3, outcome = $4, is_counted = $5, failure_kind = $6, failure_message = $7,
                 message_count = $8, head = $9, messages_lost = $10, session_id = $11
             WHERE unit_key = $1 AND number = $2",
            &[
                &attempt.key.unit.0,
                &i64::from(attempt.key.number),
                &attempt.ended_at.map(|time| time.timestamp_millis()),
                &attempt.outcome.map(Outcome::name),
                &attempt.is_counted,
                &attempt.failure.as_ref().map(|failure| failure.kind.as_str().as_bytes()),
                &attempt.failure.as_ref().map(|failure| failure.message.as_bytes()),
                &attempt.message_count.map(i64::from),
                &attempt.head.as_ref().map(|head| Hash::as_bytes(head).as_slice()),
                &i64::from(attempt.messages_lost),
                &attempt.session_id.as_deref().map(str::as_bytes),
            ],
        )?;
        Ok(())
    }

    /// Keeps what was said of a message that will never be whole.
    fn end_conversation(&mut self, attempt: AttemptKey, fence: i64) -> Answer<Trace> {
        let mut trace = self.trace(attempt, fence)?;
        if trace.has_partial {
            let row = self.row(
                "SELECT text FROM partials WHERE unit_key = $1 AND attempt_number = $2",
                &[&attempt.unit.0, &i64::from(attempt.number)],
            )?;
            let text = row.map_or(Ok(String::new()), |row| row.text(0))?;
            self.set_partial(attempt, "")?;
            self.add_message(attempt, &mut trace, self.now.wall, &NewMessage::partial(text))?;
        }
        Ok(trace)
    }

    fn close_unit(
        &mut self,
        unit: &HotUnit,
        closing: &Closing,
        to: UnitStatus,
        fence: i64,
        pause: Option<Pause>,
    ) -> Read<()> {
        let is_given_back = closing.change == Change::Release && !closing.is_counted;
        let failure = closing.failure.as_ref().filter(|_| to == UnitStatus::Failed);
        self.execute(
            "UPDATE work_units
             SET status = $2, fence = $3, attempts_used = $4, releases = $5, not_before = $6, delay_ms = $7,
                 accepted_by = CASE WHEN $8 THEN accepted_by END, lease_owner = NULL, lease_worker = NULL,
                 until_lease_ms = NULL, failure_kind = $9, failure_message = $10, completed_at = $11
             WHERE key = $1",
            &[
                &unit.key.0,
                &to.name(),
                &fence,
                &i64::from(unit.attempts_used + u32::from(closing.is_counted)),
                &i64::from(unit.releases + u32::from(is_given_back)),
                &pause.map(|pause| pause.not_before.timestamp_millis()),
                &pause.map(|pause| pause.delay_ms),
                &matches!(closing.change, Change::Retry | Change::Release),
                &failure.map(|failure| failure.kind.as_str().as_bytes()),
                &failure.map(|failure| failure.message.as_bytes()),
                &to.is_terminal().then(|| self.now.wall.timestamp_millis()),
            ],
        )?;
        Ok(())
    }

    /// Takes an attempt off the load of its worker, and counts it.
    fn give_back(&mut self, unit: &HotUnit, attempt: &Attempt) -> Read<()> {
        let executed = attempt.execution_time().unwrap_or_default();
        self.execute(
            "UPDATE workers
             SET load = load - 1,
                 status = CASE WHEN status = 'BUSY' THEN 'READY' ELSE status END,
                 current_unit = nullif(current_unit, $3),
                 units_completed = units_completed + $4,
                 units_failed = units_failed + $5,
                 total_time_ms = total_time_ms + $6,
                 last_activity_at = $7
             WHERE owner_id = $1 AND id = $2",
            &[
                &attempt.owner.0,
                &attempt.worker_id.as_str(),
                &unit.key.0,
                &i64::from(attempt.outcome == Some(Outcome::Completed)),
                &i64::from(attempt.outcome.is_some_and(rules::is_failure)),
                &milliseconds(executed),
                &self.now.wall.timestamp_millis(),
            ],
        )?;
        Ok(())
    }
}
