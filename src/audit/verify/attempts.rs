//! One attempt: its fence, its end, what it left, and what it left running.

use super::Audit;
use super::finding::{Invariant, Notes};
use super::history::{self, History, Told};
use crate::attempt::{Attempt, AttemptResult, Outcome, beginning_digest};
use crate::clock::{Clock, SystemClock};
use crate::job::JobId;
use crate::process::Process;
use crate::repository::Result;
use crate::repository::sharing::is_answer_of;

impl Audit<'_> {
    pub(super) fn attempt(
        &mut self,
        unit: &str,
        job_id: Option<JobId>,
        attempt: &Attempt,
        history: &History,
    ) -> Result<()> {
        let subject = &format!("attempt {} of {unit}", attempt.key.number);
        self.totals.attempts += 1;
        self.search_record(subject, attempt);
        let notes = &mut self.findings.about(subject);
        match history.attempts.get(&attempt.key.number) {
            Some(told) => check_course(attempt, told, history, notes),
            None if history.is_whole() => notes.add(Invariant::I8, "the journal says nothing about it"),
            None => {}
        }
        match attempt.outcome {
            None => self.lease(subject, attempt),
            Some(_) => check_process(attempt, notes),
        }
        self.result(subject, job_id, attempt, history)?;
        self.answer_of(subject, attempt)?;
        self.conversation(subject, attempt, history)
    }

    fn lease(&mut self, subject: &str, attempt: &Attempt) {
        let worker = (attempt.owner, attempt.worker_id.clone());
        self.held.entry(worker).or_default().push(attempt.key.unit);
        let owner = attempt.owner;
        match self.owners.as_ref().map(|owners| owners.get(&owner)) {
            Some(Some(is_ended)) if *is_ended => {
                self.findings.add(Invariant::I10, subject, format!("{owner} ended, but still holds it"));
            }
            Some(None) => self.findings.add(Invariant::I13, subject, format!("{owner} is not registered")),
            Some(Some(_)) | None => {}
        }
    }

    fn result(&mut self, subject: &str, job_id: Option<JobId>, attempt: &Attempt, history: &History) -> Result<()> {
        let result = self.archive.attempt_result(attempt.key);
        let result = self.readable(subject, result)?;
        let charges = self.archive.charges(attempt.key);
        let charges = self.readable(subject, charges)?;
        if let Some(result) = &result {
            self.search_result(subject, result);
            check_purge(attempt, result, history, &mut self.findings.about(subject));
        }
        if let Some(charges) = &charges {
            self.search_record(subject, charges);
            self.count_for_accounts(job_id, attempt, charges);
        }
        let told = history.attempts.get(&attempt.key.number);
        let (Some(result), Some(charges), Some(told)) = (result, charges, told) else { return Ok(()) };
        let rendered_prompt = result.hashes(attempt).rendered_prompt;
        let beginning = beginning_digest(rendered_prompt.as_ref(), attempt.provenance.as_ref());
        if told.beginning.is_some_and(|told| told != beginning) {
            self.findings.add(Invariant::I13, subject, "what it was started with is not what the journal says");
        }
        let digest = result.digest(attempt, &charges);
        if told.end.is_some() && told.digest != Some(digest) {
            let problem = "how it ended, what it left, or what it cost is not what the journal says";
            self.findings.add(Invariant::I13, subject, problem);
        }
        Ok(())
    }

    /// An answer that is another's is the one that it gave, also if that was purged since.
    fn answer_of(&mut self, subject: &str, attempt: &Attempt) -> Result<()> {
        let Some(of) = attempt.answer_of else { return Ok(()) };
        let attempts = self.archive.attempts(of.unit);
        let other = self.readable(subject, attempts)?.into_iter().flatten().find(|other| other.key == of);
        let (own, others) = (self.archive.attempt_result(attempt.key), self.archive.attempt_result(of));
        let (own, others) = (self.readable(subject, own)?, self.readable(subject, others)?);
        let (Some(other), Some(own), Some(others)) = (other, own, others) else { return Ok(()) };
        if !is_answer_of(&own.hashes(attempt), &other, &others) {
            let problem =
                format!("its answer is not that of attempt {} of the unit with the key {}", of.number, of.unit.0);
            self.findings.add(Invariant::I13, subject, problem);
        }
        Ok(())
    }

    fn search_result(&mut self, subject: &str, result: &AttemptResult) {
        self.search_record(subject, result);
        for json in [&result.result, &result.late_result].into_iter().flatten() {
            self.search(subject, json.as_bytes());
        }
    }
}

/// Its claim and its end, against the journal.
fn check_course(attempt: &Attempt, told: &Told, history: &History, notes: &mut Notes<'_>) {
    if told.fence.is_some_and(|fence| fence != attempt.fence) {
        notes.add(Invariant::I6, format!("has fence {}, which is not that of its claim", attempt.fence));
    }
    if attempt.outcome.is_some() != attempt.ended_at.is_some() {
        notes.add(Invariant::I8, "has an outcome without an end, or an end without an outcome");
    }
    match (attempt.outcome, &told.end) {
        (Some(outcome), Some(end)) => {
            let change = end.change;
            if !history::fits(outcome, change) {
                notes.add(Invariant::I8, format!("is {outcome}, which {change} of journal row {} is not", end.seq));
            } else if history::counts(outcome, change).is_some_and(|counts| counts != attempt.is_counted) {
                let is_counted = if attempt.is_counted { "is counted" } else { "is not counted" };
                notes.add(Invariant::I8, format!("is {outcome} by {change} and {is_counted}"));
            }
        }
        (Some(outcome), None) if history.is_whole() => {
            notes.add(Invariant::I8, format!("is {outcome}, but no journal row closes it"));
        }
        (None, Some(end)) => notes.add(Invariant::I8, format!("is open, but journal row {} closed it", end.seq)),
        (Some(_) | None, None) => {}
    }
}

fn check_process(attempt: &Attempt, notes: &mut Notes<'_>) {
    let Some(process) = &attempt.process else { return };
    let boot_id = SystemClock.boot_id();
    // Who asks is nobody's leftover.
    if process.is_provably_alive(&boot_id) && *process != Process::this(&boot_id) {
        let outcome = attempt.outcome.map_or("open", Outcome::name);
        notes.add(Invariant::I10, format!("is {outcome}, but its process {} still runs", process.pid));
    }
}

fn check_purge(attempt: &Attempt, result: &AttemptResult, history: &History, notes: &mut Notes<'_>) {
    let AttemptResult { rendered_prompt, result: json, output, late_result, .. } = result;
    if history.is_purged && attempt.failure.as_ref().is_some_and(|failure| !failure.message.is_empty()) {
        notes.add(Invariant::I13, "says why it failed after a purge");
    }
    let has_contents = rendered_prompt.is_some() || json.is_some() || output.is_some() || late_result.is_some();
    if history.is_purged && has_contents {
        notes.add(Invariant::I13, "has its results after a purge");
    } else if !history.is_purged && history.is_whole() && result.purged.is_some() {
        notes.add(Invariant::I13, "has no results any more, but was never purged");
    }
}
