//! What the holder of a lease writes, and how an attempt ends.

use std::time::Duration;

use serde_json::Value;

use super::store::{Holder, Step, Store};
use crate::attempt::{AttemptKey, AttemptReport, Beginning, Closing, Outcome, Progress};
use crate::clock::Moment;
use crate::conversation::{Message, MessageContent, Raw, to_json};
use crate::lease::Lease;
use crate::limits::{self, Bill};
use crate::repository::rules::{self, Pause};
use crate::repository::{By, Closed, JournalEntry, RepositoryError, Result, Swept};
use crate::unit::{Change, UnitKey, UnitStatus};

impl Store {
    pub(super) fn start(&mut self, lease: &Lease, beginning: &Beginning, now: Moment) -> Result<()> {
        let unit = self.held(lease).ok_or_else(|| RepositoryError::stale(lease))?;
        if unit.status != UnitStatus::Assigned {
            return Ok(());
        }
        self.unit_mut(lease.unit).status = UnitStatus::Processing;
        let record = self.attempt_mut(lease.attempt());
        record.attempt.started_at = Some(now.wall);
        record.attempt.provenance.clone_from(&beginning.provenance);
        record.result.rendered_prompt.clone_from(&beginning.rendered_prompt);

        let step = Step::new(lease.unit, Change::Start, UnitStatus::Assigned, By::from(lease.owner));
        let digest = Some(beginning.digest());
        self.record(Step { attempt_number: Some(lease.attempt_number), digest, ..step }, now);
        Ok(())
    }

    pub(super) fn append(&mut self, lease: &Lease, follows: u32, messages: &[Message], now: Moment) -> Result<()> {
        let contents: Vec<MessageContent> =
            messages.iter().map(MessageContent::of).collect::<std::result::Result<_, _>>()?;
        contents.iter().try_for_each(rules::check_content)?;
        let record = self.held_attempt(lease)?;
        let count = record.message_count();
        let Some(known) = count.checked_sub(follows) else {
            // Written down as well: another repository may not be able to tell at once.
            record.attempt.messages_lost += u32::try_from(messages.len()).unwrap_or(u32::MAX);
            return Err(rules::gap(lease, count, follows));
        };

        if !messages.is_empty() {
            record.partial = None;
        }
        for (message, content) in messages.iter().zip(contents).skip(known as usize) {
            record.push_message(message.role, content, now);
        }
        Ok(())
    }

    pub(super) fn partial(&mut self, lease: &Lease, text: &str) -> Result<()> {
        rules::check_partial(text)?;
        self.held_attempt(lease)?.partial = Some(text.to_owned()).filter(|text| !text.is_empty());
        Ok(())
    }

    pub(super) fn flush(&mut self, lease: &Lease) -> Result<()> {
        match self.held_attempt(lease)?.attempt.messages_lost {
            0 => Ok(()),
            lost => Err(rules::lost(lease, lost)),
        }
    }

    pub(super) fn progress(&mut self, lease: &Lease, progress: &Progress) -> Result<()> {
        rules::check_charges(&progress.charges)?;
        let record = self.held_attempt(lease)?;
        if progress.session_id.is_some() {
            record.attempt.session_id.clone_from(&progress.session_id);
        }
        if progress.process.is_some() {
            record.attempt.process.clone_from(&progress.process);
        }
        if progress.failure.is_some() {
            record.attempt.failure.clone_from(&progress.failure);
        }
        if progress.is_unexecuted {
            record.attempt.started_at = None;
        }
        record.charge(&progress.charges);
        Ok(())
    }

    pub(super) fn checkpoint_at(&mut self, lease: &Lease, value: &Value) -> Result<()> {
        let json = to_json(value)?;
        self.held_attempt(lease)?.checkpoint = Some(json);
        Ok(())
    }

    pub(super) fn finish(&mut self, lease: &Lease, report: &AttemptReport, now: Moment) -> Result<Closed> {
        let result = rules::check_report(report)?;
        let Some(unit) = self.held(lease) else {
            return self.finish_without_lease(lease, report, result.as_ref(), now);
        };
        let closing = unit.standing().finished(&report.ending);
        rules::changed_unit(&unit.id, unit.status, closing.change)?;
        self.check_answer(report, result.as_ref())?;

        self.keep_report(lease.attempt(), report, result);
        let reason = closing.failure.as_ref().map(|failure| failure.kind.to_string());
        Ok(self.close(lease.unit, closing, By { reason, ..By::from(lease.owner) }, now))
    }

    /// Keeps what a report says beside how it ended.
    fn keep_report(&mut self, attempt: AttemptKey, report: &AttemptReport, result: Option<Raw>) {
        let record = self.attempt_mut(attempt);
        record.result.result = result;
        record.result.output.clone_from(&report.output);
        record.result.output_files.clone_from(&report.output_files);
        record.attempt.messages_lost += report.messages_lost;
        record.attempt.answer_of = report.answer_of;
        if report.session_id.is_some() {
            record.attempt.session_id.clone_from(&report.session_id);
        }
        record.charge(&report.charges);
    }

    pub(super) fn release(
        &mut self,
        lease: &Lease,
        after: Option<Duration>,
        reason: &str,
        now: Moment,
    ) -> Result<Closed> {
        let Some(unit) = self.held(lease) else {
            let row = self.closing_row(lease).ok_or_else(|| RepositoryError::stale(lease))?;
            let outcome = self.attempts.get(&lease.attempt()).and_then(|record| record.attempt.outcome);
            return if outcome == Some(Outcome::Released) {
                Ok(closed_by(row))
            } else {
                Err(RepositoryError::stale(lease))
            };
        };
        let closing = unit.standing().released(after);
        Ok(self.close(lease.unit, closing, By::new(lease.owner.to_string(), reason), now))
    }

    /// The row that closed the attempt of a lease, if there was such a lease and it is closed.
    fn closing_row(&self, lease: &Lease) -> Option<&JournalEntry> {
        self.attempts.get(&lease.attempt()).filter(|record| record.attempt.fence == lease.fence)?;
        let is_closing = |row: &&JournalEntry| {
            row.unit == lease.unit && row.attempt_number == Some(lease.attempt_number) && row.head.is_some()
        };
        self.journal.iter().rev().find(is_closing)
    }

    /// The report that closed the attempt is answered as it was; any other is kept as a late one.
    fn finish_without_lease(
        &mut self,
        lease: &Lease,
        report: &AttemptReport,
        result: Option<&Raw>,
        now: Moment,
    ) -> Result<Closed> {
        let row = self.closing_row(lease).ok_or_else(|| RepositoryError::stale(lease))?;
        if let Some(record) = self.attempts.get(&lease.attempt()) {
            let digest = row.digest.as_ref();
            if rules::is_own_report(&record.attempt, &record.result, &record.charges, digest, report, result) {
                return Ok(closed_by(row));
            }
        }
        self.add_late_report(lease, report, now);
        Err(RepositoryError::stale(lease))
    }

    fn add_late_report(&mut self, lease: &Lease, report: &AttemptReport, now: Moment) {
        let unit = self.unit(lease.unit);
        let (status, is_purged) = (unit.status, unit.purged_at.is_some());
        let record = self.attempt_mut(lease.attempt());
        let late_result = Some(rules::late_result(report));
        let known = limits::told_late(&record.charges, &report.charges);
        let charges = rules::charged(&known, &report.charges);
        let is_known = record.result.late_result == late_result && record.charges == charges;
        if is_purged || is_known {
            return;
        }
        record.result.late_result = late_result;
        let bills = [&record.charges, &charges].map(|charges| Bill::of(charges));
        record.charges = charges;
        let digest = Some(record.digest());
        self.change_accounts(lease.attempt(), |account, expected| account.correct(expected, &bills[0], &bills[1]));
        let step = Step::new(lease.unit, Change::LateReport, status, By::from(lease.owner));
        self.record(Step { attempt_number: Some(lease.attempt_number), digest, ..step }, now);
    }

    /// Takes a leased unit from whoever held it.
    pub(super) fn lose(&mut self, key: UnitKey, by: By, now: Moment) -> Swept {
        let closing = self.unit(key).standing().lost();
        let Closed { status, change, .. } = self.close(key, closing, by, now);
        let unit = self.unit(key);
        let attempt_number = Some(unit.attempt_count);
        Swept { job_id: unit.job_id, unit: key, unit_id: unit.id.clone(), attempt_number, change, status }
    }

    /// Ends the open attempt of a leased unit: the attempt, the unit, the worker, the journal.
    ///
    /// The unit must be able to make the change.
    pub(super) fn close(&mut self, key: UnitKey, closing: Closing, by: By, now: Moment) -> Closed {
        let from = self.unit(key).status;
        let to = from.after(closing.change).expect("the caller closes only as the status allows");
        let attempt = self.unit(key).current_attempt();

        let step = Step { attempt_number: Some(attempt.number), ..Step::new(key, closing.change, from, by) };
        let step = self.close_attempt(attempt, &closing, step, now);
        if let Some(holder) = self.end_lease(key, to, &closing, now) {
            self.unload_worker(&holder, attempt, now);
        }
        self.record(step, now);
        let not_before = self.unit(key).pause.map(|pause| pause.not_before);
        Closed { status: to, change: closing.change, not_before }
    }

    /// Writes the end of an attempt, and adds to its journal row what it left.
    fn close_attempt(&mut self, key: AttemptKey, closing: &Closing, step: Step, now: Moment) -> Step {
        let record = self.attempt_mut(key);
        let charges = std::mem::take(&mut record.charges);
        record.charges = limits::settled(closing.outcome, charges, record.attempt.expected);
        if let Some(text) = record.partial.take() {
            let message = Message::assistant(text).partial();
            let content = MessageContent::of(&message).expect("a text is not nested");
            record.push_message(message.role, content, now);
        }
        let (count, head) = (record.message_count(), record.head());
        record.attempt.ended_at = Some(now.wall);
        record.attempt.outcome = Some(closing.outcome);
        record.attempt.is_counted = closing.is_counted;
        closing.explain(&mut record.attempt);
        record.attempt.message_count = Some(count);
        record.attempt.head = Some(head);
        let step = Step { seal: Some((count, head)), digest: Some(record.digest()), ..step };
        let bill = Bill::of(&record.charges);
        self.change_accounts(key, |account, expected| account.settle(expected, &bill));
        step
    }

    /// Brings a unit into the status that follows its attempt, and tells who held it.
    fn end_lease(&mut self, key: UnitKey, to: UnitStatus, closing: &Closing, now: Moment) -> Option<Holder> {
        let unit = self.unit_mut(key);
        unit.status = to;
        unit.attempts_used += u32::from(closing.is_counted);
        unit.releases += u32::from(!closing.is_counted && closing.change == Change::Release);
        unit.pause = closing.delay.and_then(|delay| Pause::lasting(delay, now));
        unit.completed_at = to.is_terminal().then_some(now.wall);
        unit.failure = closing.failure.clone().filter(|_| to == UnitStatus::Failed);
        if !matches!(closing.change, Change::Retry | Change::Release) {
            unit.accepted_by = None;
        }
        if closing.outcome == Outcome::Lost {
            unit.fence += 1;
        }
        unit.holder.take()
    }

    /// Takes an ended attempt off its worker.
    fn unload_worker(&mut self, holder: &Holder, attempt: AttemptKey, now: Moment) {
        let ended = &self.attempt_mut(attempt).attempt;
        let (outcome, execution_time) = (ended.outcome, ended.execution_time().unwrap_or_default());
        let worker = self.workers.get_mut(&(holder.owner, holder.worker_id.clone()));
        let worker = worker.expect("the claim brought the worker into being, and workers are never deleted");
        worker.status = rules::give_back(worker.status);
        worker.load = worker.load.saturating_sub(1);
        worker.units_completed += u64::from(outcome == Some(Outcome::Completed));
        worker.units_failed += u64::from(outcome.is_some_and(rules::is_failure));
        worker.total_time = worker.total_time.saturating_add(execution_time);
        worker.current_unit = worker.current_unit.filter(|&unit| unit != attempt.unit);
        worker.last_activity_at = now.wall;
    }
}

/// What is answered to somebody whose call closed an attempt before.
fn closed_by(row: &JournalEntry) -> Closed {
    Closed { status: row.to, change: row.change, not_before: None }
}
