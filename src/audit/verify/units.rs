//! The units: each against its journal, its attempts and its inputs.

use std::collections::HashSet;

use super::Audit;
use super::finding::{Invariant, Notes};
use super::history::History;
use super::sequence::Sequence;
use crate::attempt::{Attempt, Failure, FailureKind, RELEASE_LIMIT};
use crate::repository::{Result, StoredInputs, UnitFilter, rules};
use crate::unit::{Change, UnitKey, UnitStatus, WorkUnit, content_hash, inputs_digest, prompt_hash, unit_digest};

impl Audit<'_> {
    pub(super) fn units(&mut self) -> Result<()> {
        let archive = self.archive;
        let all = UnitFilter::default();
        for unit in Sequence::new(|after, limit| archive.units(&all, after, limit)) {
            match unit? {
                Ok(unit) => self.unit(&unit)?,
                Err(damage) => {
                    self.findings.add(Invariant::I13, "the units", damage.problem);
                    self.unreadable_units += 1;
                    // What else is known of it is under its key.
                    if let Some(key) = damage.position {
                        self.life(UnitKey(key), &format!("unit key {key}"), None)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn unit(&mut self, unit: &WorkUnit) -> Result<()> {
        let subject = &self.unit_name(unit);
        self.totals.units += 1;
        self.counts.entry(unit.job_id).or_default().add(unit.status, 1);
        self.search_record(subject, unit);
        if self.options.is_phantom(unit) {
            self.findings.add(Invariant::I2, subject, "was never submitted");
        }
        if self.options.is_settled && !unit.status.is_terminal() {
            self.findings.add(Invariant::I7, subject, format!("is still {}", unit.status));
        }
        self.acceptance(subject, unit);
        self.life(unit.key, subject, Some(unit))
    }

    /// A unit's name for people, unless it gives away a secret.
    fn unit_name(&self, unit: &WorkUnit) -> String {
        match self.options.secrets.find_in(unit.id.as_str().as_bytes()) {
            Some(_) => format!("unit key {}", unit.key.0),
            None => format!("unit `{}`", unit.id),
        }
    }

    /// Nobody else may claim what somebody accepted, so that one must still be there.
    fn acceptance(&mut self, subject: &str, unit: &WorkUnit) {
        let (Some(owners), Some(owner)) = (&self.owners, unit.accepted_by.filter(|_| !unit.status.is_terminal()))
        else {
            return;
        };
        if owners.get(&owner).is_none_or(|is_ended| *is_ended) {
            self.findings.add(Invariant::I7, subject, format!("waits for {owner}, which has ended"));
        }
    }

    /// All that is kept under a unit's key. The record is `None` if it cannot be read.
    fn life(&mut self, key: UnitKey, subject: &str, record: Option<&WorkUnit>) -> Result<()> {
        let attempts = self.archive.attempts(key);
        let attempts = self.readable(subject, attempts)?;
        self.unreadable_units += u64::from(attempts.is_none());
        let notes = &mut self.findings.about(subject);
        let history = History::read(self.archive, key, attempts.as_deref(), notes)?;
        self.rows_of_units += history.rows;
        if let Some(unit) = record {
            check_record(unit, &history, notes);
        }
        if let Some(attempts) = &attempts {
            check_numbers(attempts, &history, notes);
            check_lease(attempts, record, &history, notes);
            if let Some(unit) = record {
                check_bounds(unit, attempts, &history, notes);
                check_failure(unit, attempts, &history, notes);
            }
        }
        for attempt in attempts.iter().flatten() {
            self.attempt(subject, record.map(|unit| unit.job_id), attempt, &history)?;
        }
        self.inputs(key, subject, record, &history)?;
        self.checkpoint(key, subject, &history)
    }

    fn inputs(&mut self, key: UnitKey, subject: &str, record: Option<&WorkUnit>, history: &History) -> Result<()> {
        let inputs = self.archive.inputs(key);
        let Some(inputs) = self.readable(subject, inputs)? else { return Ok(()) };
        let texts = [&inputs.prompt, &inputs.template, &inputs.unit_type].into_iter().flatten();
        for bytes in texts.map(String::as_bytes).chain([&*inputs.options]).chain(inputs.payload.as_deref()) {
            self.search(subject, bytes);
        }
        let notes = &mut self.findings.about(subject);
        check_inputs(&inputs, history, notes);
        if let Some(unit) = record {
            check_digest(unit, &inputs, history, notes);
        }
        Ok(())
    }

    fn checkpoint(&mut self, key: UnitKey, subject: &str, history: &History) -> Result<()> {
        let checkpoint = self.archive.checkpoint(key);
        let Some(Some(checkpoint)) = self.readable(subject, checkpoint)? else { return Ok(()) };
        self.search_record(subject, &checkpoint);
        if history.is_purged {
            self.findings.add(Invariant::I13, subject, "has a checkpoint after a purge");
        }
        Ok(())
    }
}

/// The record says what the journal says.
fn check_record(unit: &WorkUnit, history: &History, notes: &mut Notes<'_>) {
    if let Some(last) = history.last {
        if unit.status != last.status {
            notes.add(Invariant::I3, format!("is {}, but the journal leads to {}", unit.status, last.status));
        }
        if unit.fence != last.fence {
            notes.add(Invariant::I6, format!("has fence {}, but the journal leads to {}", unit.fence, last.fence));
        }
    }
    if unit.purged_at.is_some() != history.is_purged && history.is_whole() {
        notes.add(Invariant::I13, "was purged by its record or by its journal, but not by both");
    }
    let is_purged_at_another_time = unit.purged_at.zip(history.purged_at).is_some_and(|(here, there)| here != there);
    let times = (Some(unit.created_at), unit.completed_at);
    let told = (history.created_at, history.ended.map(|(_, at)| at));
    if history.is_whole() && (times != told || is_purged_at_another_time) {
        notes.add(Invariant::I13, "its times are not those of its journal rows");
    }
}

/// A unit fails as its last attempt did, or because it waited too long for one.
fn check_failure(unit: &WorkUnit, attempts: &[Attempt], history: &History, notes: &mut Notes<'_>) {
    let mut waited = Failure::new(FailureKind::QUEUE_TIMEOUT, rules::QUEUE_TIMEOUT_MESSAGE);
    if history.is_purged {
        waited = waited.without_message();
    }
    let expected = match history.ended {
        Some((Change::QueueTimeout, _)) => Some(&waited),
        Some(_) if unit.status == UnitStatus::Failed => attempts.last().and_then(|last| last.failure.as_ref()),
        _ => None,
    };
    if history.is_whole() && unit.failure.as_ref() != expected {
        notes.add(Invariant::I13, "it failed otherwise than its last attempt");
    }
}

/// The attempts are those that the journal knows, from the first on.
fn check_numbers(attempts: &[Attempt], history: &History, notes: &mut Notes<'_>) {
    for (expected, attempt) in (1..).zip(attempts) {
        if attempt.key.number != expected {
            notes.add(Invariant::I8, format!("attempt {} is in place of attempt {expected}", attempt.key.number));
        }
    }
    let stored: HashSet<u32> = attempts.iter().map(|attempt| attempt.key.number).collect();
    for number in history.attempts.keys().filter(|number| !stored.contains(number)) {
        notes.add(Invariant::I8, format!("attempt {number} is in the journal, but is not stored"));
    }
}

/// Somebody holds it, or nobody does.
fn check_lease(attempts: &[Attempt], record: Option<&WorkUnit>, history: &History, notes: &mut Notes<'_>) {
    let status = record.map(|unit| unit.status).or(history.last.map(|last| last.status));
    let Some(status) = status else { return };
    let open = attempts.iter().filter(|attempt| attempt.outcome.is_none()).count();
    if open != usize::from(status.is_leased()) {
        notes.add(Invariant::I7, format!("is {status} and has {open} open attempts"));
    }
}

/// No more attempts than it may have.
fn check_bounds(unit: &WorkUnit, attempts: &[Attempt], history: &History, notes: &mut Notes<'_>) {
    if usize::try_from(unit.attempt_count) != Ok(attempts.len()) {
        let problem = format!("has {} attempts, but {} are stored", unit.attempt_count, attempts.len());
        notes.add(Invariant::I8, problem);
    }
    if u64::from(unit.attempts_used) > u64::from(unit.max_retries) + 1 {
        let problem = format!("used {} attempts with {} retries", unit.attempts_used, unit.max_retries);
        notes.add(Invariant::I8, problem);
    }
    // Without every row, nobody knows since when to count.
    if !history.is_whole() {
        return;
    }
    let since_requeue = attempts.iter().filter(|attempt| attempt.key.number > history.attempts_before_requeue);
    let (counted, free): (Vec<_>, Vec<_>) =
        since_requeue.filter(|attempt| attempt.outcome.is_some()).partition(|attempt| attempt.is_counted);
    if usize::try_from(unit.attempts_used) != Ok(counted.len()) {
        let problem = format!("used {} attempts, but {} are counted", unit.attempts_used, counted.len());
        notes.add(Invariant::I8, problem);
    }
    // One more may be given back by a worker that was asked to stop.
    if free.len() > RELEASE_LIMIT as usize + 1 {
        notes.add(Invariant::I8, format!("was given back {} times without being counted", free.len()));
    }
}

/// The inputs are what was inserted.
fn check_inputs(inputs: &StoredInputs, history: &History, notes: &mut Notes<'_>) {
    let StoredInputs { unit_type, payload, prompt, template, options, .. } = inputs;
    if let Some(payload) = payload {
        let hash = content_hash(unit_type.as_deref(), payload, template.as_deref(), options);
        if hash != inputs.content_hash {
            notes.add(Invariant::I13, "its inputs are not what was stored: their hash differs");
        }
    }
    if prompt.is_some() && prompt.as_deref().map(prompt_hash) != inputs.prompt_hash {
        notes.add(Invariant::I13, "its prompt is not what was stored: its hash differs");
    }
    let is_gone = payload.is_none() || (prompt.is_none() && inputs.prompt_hash.is_some());
    let is_there = payload.is_some() || prompt.is_some();
    if history.is_purged && is_there {
        notes.add(Invariant::I13, "has its inputs after a purge");
    } else if !history.is_purged && history.is_whole() && is_gone {
        notes.add(Invariant::I13, "has no inputs any more, but was never purged");
    }
}

/// The journal says what was inserted, under which name, in which job, and when and how often it is to be tried. An earlier version said only the
/// first two.
fn check_digest(unit: &WorkUnit, inputs: &StoredInputs, history: &History, notes: &mut Notes<'_>) {
    let StoredInputs { unit_type, template, options, content_hash, prompt_hash, .. } = inputs;
    let (unit_type, template) = (unit_type.as_deref(), template.as_deref());
    let inputs = inputs_digest(unit.id.as_str(), unit_type, template, options, content_hash, prompt_hash.as_ref());
    let whole = unit_digest(&inputs, unit.job_id, unit.priority, unit.max_retries);
    if history.is_whole() && ![Some(whole), Some(inputs)].contains(&history.inputs_digest) {
        notes.add(Invariant::I13, "its name, inputs, job, priority or retries are not what the journal says");
    }
}
