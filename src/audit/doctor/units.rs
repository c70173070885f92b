//! What waits, for whom, and what does not get on.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::Examination;
use super::finding::{Concern, Urgency, many, named, span};
use crate::attempt::FailureKind;
use crate::audit::tail;
use crate::audit::visible::short;
use crate::job::{Job, JobId};
use crate::repository::{Counts, LeaseView, PAGE_LIMIT, Result, UnitFilter};
use crate::unit::{Change, UnitId, UnitKey, UnitStatus, WorkUnit};

/// How many units of one kind are looked at one by one; of the others only their number is known.
pub const LOOKED_AT_LIMIT: usize = 10_000;

/// How often a unit is tried before somebody should look at it.
const MANY_ATTEMPTS: u32 = 5;

/// How long a unit may run on after it was to be cancelled.
const CANCEL_GRACE_MS: i64 = 60_000;

/// How long what waits for anybody may wait before somebody should ask why: a process says within two beats that it takes it.
const PULL_GRACE_MS: i64 = 60_000;

/// How many units that run are looked at one by one.
const RUNNING_LIMIT: usize = 1_000;

/// A job, and what of it waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobFact {
    /// Its number.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// How many of its units are in each status.
    pub counts: Counts,
    /// The unit that has waited for longest of those that were looked at.
    pub oldest_pending: Option<OldestPending>,
    /// How many living processes work on it.
    pub workers_of: u64,
}

/// The unit that has waited for longest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OldestPending {
    /// The unit.
    pub id: UnitId,
    /// When it was created.
    pub since: DateTime<Utc>,
}

/// Some units that have something in common: how many, and the first of them.
#[derive(Debug, Default)]
struct Group {
    count: u64,
    names: Vec<String>,
    since: Option<DateTime<Utc>>,
}

impl Group {
    fn add(&mut self, unit: &WorkUnit) {
        const NAMED: usize = 3;
        self.count += 1;
        self.since = Some(self.since.map_or(unit.created_at, |since| since.min(unit.created_at)));
        if self.names.len() < NAMED {
            self.names.push(named(unit.id.as_str()));
        }
    }

    fn names(&self) -> String {
        let more = if self.count > self.names.len() as u64 { ", …" } else { "" };
        format!("{}{more}", self.names.join(", "))
    }
}

impl Examination<'_> {
    pub(super) fn jobs(&mut self) -> Result<()> {
        let mut next = Some(0);
        while let Some(after) = next {
            let page = self.archive.jobs(after, PAGE_LIMIT);
            let Some(page) = self.readable("the jobs", page)? else { return Ok(()) };
            for job in page.items {
                self.time("a job was created", job.created_at);
                self.job(job)?;
            }
            next = page.next.filter(|&next| next > after);
        }
        Ok(())
    }

    fn job(&mut self, job: Job) -> Result<()> {
        let counts = self.archive.counts(job.id);
        let counts = self.readable(&format!("job {}", named(&job.name)), counts)?.unwrap_or_default();
        let workers_of = self.diagnosis.owners.iter().filter(|fact| fact.works_on(job.id)).count() as u64;
        let oldest_pending = if counts.pending > 0 { self.pending(&job, workers_of)? } else { None };
        if counts.failed > 0 {
            self.failed(&job)?;
        }
        self.diagnosis.jobs.push(JobFact { id: job.id, name: job.name, counts, oldest_pending, workers_of });
        Ok(())
    }

    /// What of a job waits, and for whom. Tells the one that has waited for longest.
    fn pending(&mut self, job: &Job, workers_of: u64) -> Result<Option<OldestPending>> {
        let (mut for_nobody, mut for_anybody, mut without_prompt) =
            (Group::default(), Group::default(), Group::default());
        let mut oldest: Option<OldestPending> = None;
        let is_pulled = self.diagnosis.owners.iter().any(|fact| fact.pulls(job.id));
        let waiting = self.some_units(&UnitFilter::job(job.id).status(UnitStatus::Pending))?;
        for unit in &waiting {
            if oldest.as_ref().is_none_or(|oldest| unit.created_at < oldest.since) {
                oldest = Some(OldestPending { id: unit.id.clone(), since: unit.created_at });
            }
            self.tried_again(unit);
            let is_due = unit.not_before.is_none_or(|time| time <= self.now.wall);
            let has_prompt = unit.prompt.is_some() || unit.template.is_some() || job.template.is_some();
            let is_taken =
                |owner| self.diagnosis.owners.iter().any(|fact| fact.owner.id == owner && fact.standing.is_living());
            match unit.accepted_by {
                Some(owner) if is_taken(owner) => {}
                _ if !has_prompt => without_prompt.add(unit),
                _ if !is_due => {}
                _ if workers_of == 0 => for_nobody.add(unit),
                _ => for_anybody.add(unit),
            }
        }
        let (job_name, start) =
            (named(&job.name), format!("start one: `workcrew worker`, for job {}", named(&job.name)));
        let since = |some: &Group| some.since.map_or(0, |since| (self.now.wall - since).num_milliseconds());
        let (nobody_ms, anybody_ms) = (since(&for_nobody), since(&for_anybody));
        if for_nobody.count > 0 {
            let (count, names, waited) = (many(for_nobody.count, "unit"), for_nobody.names(), span(nobody_ms));
            let what = format!(
                "job {job_name}: {count} waiting ({names}) for up to {waited}, and no living process works on it"
            );
            self.add(Urgency::Now, Concern::NobodyWorks, what, &start);
        }
        if for_anybody.count > 0 && !is_pulled && anybody_ms > PULL_GRACE_MS {
            let (count, names, waited) = (many(for_anybody.count, "unit"), for_anybody.names(), span(anybody_ms));
            let what = format!(
                "job {job_name}: {count} waiting for anybody ({names}) for up to {waited}, and no living process takes such units"
            );
            self.add(Urgency::Soon, Concern::NobodyPulls, what, start);
        }
        if without_prompt.count > 0 {
            let (count, names) = (many(without_prompt.count, "unit"), without_prompt.names());
            let what = format!("job {job_name}: {count} without a prompt ({names}), which nobody can execute");
            self.add(
                Urgency::Soon,
                Concern::PromptMissing,
                what,
                "submit them with a prompt, or `workcrew cancel` them",
            );
        }
        Ok(oldest)
    }

    /// Which kinds of failure there are, and how often.
    fn failed(&mut self, job: &Job) -> Result<()> {
        let mut kinds: BTreeMap<String, (Group, String)> = BTreeMap::new();
        for unit in self.some_units(&UnitFilter::job(job.id).status(UnitStatus::Failed))? {
            let Some(failure) = &unit.failure else { continue };
            let kind = kinds.entry(failure.kind.as_str().to_owned());
            kind.or_insert_with(|| (Group::default(), failure.message.clone())).0.add(&unit);
        }
        for (kind, (some, message)) in kinds {
            let is_final = kind == FailureKind::COST_LIMIT.as_str();
            let kind = short(&kind);
            let (count, names, message) = (many(some.count, "unit"), some.names(), short(&message));
            let job_name = named(&job.name);
            let what = format!("job {job_name}: {count} FAILED with {kind} ({names}): {message}");
            let advice = if is_final {
                "they are not executed again, also if they are brought back: bring them under other names, with a higher `--max-cost`"
                    .to_owned()
            } else {
                format!("once that is mended: `workcrew requeue --error {kind}`, for job {job_name}")
            };
            self.add(Urgency::Note, Concern::Failed, what, advice);
        }
        Ok(())
    }

    fn tried_again(&mut self, unit: &WorkUnit) {
        if unit.attempt_count >= MANY_ATTEMPTS {
            let failure = unit.failure.as_ref().map(|failure| format!(": {}", short(&failure.message)));
            let (id, used) = (named(unit.id.as_str()), unit.attempts_used);
            let what = format!(
                "unit {id} is at attempt {}, of which {used} count against its {}{}",
                unit.attempt_count,
                many(unit.max_retries.into(), "retry").replace("retrys", "retries"),
                failure.unwrap_or_default()
            );
            self.tried.push((unit.attempt_count, what, id));
        }
    }

    /// Those that were tried most often.
    pub(super) fn most_tried(&mut self) {
        const SHOWN: usize = 5;
        let mut tried = std::mem::take(&mut self.tried);
        tried.sort_by_key(|(attempts, ..)| std::cmp::Reverse(*attempts));
        let others = tried.len().saturating_sub(SHOWN);
        for (index, (_, what, id)) in tried.into_iter().take(SHOWN).enumerate() {
            let more = if others > 0 && index + 1 == SHOWN { format!("; so are {others} more") } else { String::new() };
            let advice = format!("see what its attempts say; to end it: `workcrew cancel` {id}");
            self.add(Urgency::Soon, Concern::TriedAgain, format!("{what}{more}"), advice);
        }
    }

    /// What is being executed.
    pub(super) fn leases(&mut self, leases: &[LeaseView]) -> Result<()> {
        self.diagnosis.leases = leases.len() as u64;
        let stale: Vec<&LeaseView> = leases.iter().filter(|lease| lease.is_stale()).collect();
        self.diagnosis.stale_leases = stale.len() as u64;
        if let Some(first) = stale.first() {
            let is_swept = self.diagnosis.owners.iter().any(|fact| fact.standing.is_living());
            let reason = first.staleness.map_or("", |staleness| staleness.reason());
            let what = format!(
                "{} held by nobody who looks after them, such as {}: {reason}",
                many(stale.len() as u64, "unit"),
                named(first.unit_id.as_str())
            );
            match is_swept {
                true => self.add(
                    Urgency::Note,
                    Concern::StaleLeases,
                    what,
                    "nothing: a living process takes them back with its next heartbeat",
                ),
                false => self.add(
                    Urgency::Now,
                    Concern::StaleLeases,
                    what,
                    "a process that works takes them back: `workcrew worker` starts one",
                ),
            }
        }
        for lease in leases.iter().take(RUNNING_LIMIT) {
            self.lease(lease)?;
        }
        Ok(())
    }

    fn lease(&mut self, lease: &LeaseView) -> Result<()> {
        let unit = self.archive.unit(lease.job_id, lease.unit_id.as_str());
        if let Some(unit) = self.readable(&format!("unit {}", named(lease.unit_id.as_str())), unit)? {
            self.tried_again(&unit);
        }
        if lease.status != UnitStatus::CancelRequested || lease.is_stale() {
            return Ok(());
        }
        let rows = self.archive.unit_journal(lease.unit, 0, PAGE_LIMIT);
        let rows = self.readable("the journal", rows)?.map_or_else(Vec::new, |page| page.items);
        let Some(cancelled) = rows.iter().rev().find(|row| row.change == Change::Cancel) else { return Ok(()) };
        let for_ms = (self.now.wall - cancelled.at).num_milliseconds();
        if for_ms > CANCEL_GRACE_MS {
            let owner = self.diagnosis.owners.iter().find(|fact| fact.owner.id == lease.owner);
            let (name, pid) = owner.map_or((lease.owner.to_string(), 0), |fact| (fact.name(), fact.owner.process.pid));
            let (id, by, ago) = (named(lease.unit_id.as_str()), named(&cancelled.actor), span(for_ms));
            let what = format!("unit {id} was to be cancelled {ago} ago by {by} and still runs in {name}");
            self.add(Urgency::Soon, Concern::CancelUnheard, what, format!("if it does not end: `kill {pid}`"));
        }
        Ok(())
    }

    /// The first of the units that a filter means.
    fn some_units(&mut self, filter: &UnitFilter) -> Result<Vec<WorkUnit>> {
        let (mut units, mut next) = (Vec::new(), Some(0));
        while let Some(after) = next.filter(|_| units.len() < LOOKED_AT_LIMIT) {
            let page = self.archive.units(filter, after, PAGE_LIMIT);
            let Some(page) = self.readable("the units", page)? else { break };
            units.extend(page.items.into_iter().map(without_contents));
            next = page.next.filter(|&next| next > after);
        }
        Ok(units)
    }
}

/// A unit that many are kept of.
fn without_contents(mut unit: WorkUnit) -> WorkUnit {
    unit.payload = serde_json::Value::Null;
    (unit.result, unit.output, unit.rendered_prompt) = (None, None, None);
    unit.prompt = unit.prompt.map(|_| String::new());
    unit.template = unit.template.map(|_| String::new());
    unit
}

/// How many rows of the journal are looked at, from its end.
const TAIL_ROWS: i64 = 5_000;

/// How long ago they may be.
const TAIL_MS: i64 = 15 * 60_000;

/// How many attempts must have ended badly before that is a storm.
const STORM: u64 = 20;

impl Examination<'_> {
    /// What happened last.
    pub(super) fn journal(&mut self) -> Result<()> {
        let last = tail::last_seq(|after, limit| self.archive.journal(after, limit));
        let Some(last) = self.readable("the journal", last)? else { return Ok(()) };
        self.diagnosis.journal_rows = last.cast_unsigned();
        let (mut good, mut bad, mut after) = (0_u64, Vec::new(), (last - TAIL_ROWS).max(0));
        while after < last {
            let page = self.archive.journal(after, PAGE_LIMIT);
            let Some(page) = self.readable("the journal", page)? else { return Ok(()) };
            for row in &page.items {
                self.time("something was written into the journal", row.at);
                let is_recent = (self.now.wall - row.at).num_milliseconds() <= TAIL_MS;
                match row.change {
                    _ if !is_recent => {}
                    Change::Complete => good += 1,
                    Change::Retry | Change::Fail | Change::Release | Change::Expire | Change::ExpireFinally => {
                        bad.push((row.unit, row.attempt_number));
                    }
                    _ => {}
                }
            }
            after = page.next.filter(|&next| next > after).unwrap_or(last);
        }
        let ended_badly = bad.len() as u64;
        if ended_badly >= STORM && ended_badly >= 2 * good {
            let kinds = self.kinds_of(&bad)?;
            let what = format!("{ended_badly} attempts ended badly within {}, {good} well{kinds}", span(TAIL_MS));
            let advice = "the same will happen to the next: find out why before it is paid for again; Ctrl-C keeps what waits waiting";
            self.add(Urgency::Now, Concern::RetryStorm, what, advice);
        }
        Ok(())
    }

    /// What the last of some attempts failed with most often.
    fn kinds_of(&mut self, attempts: &[(UnitKey, Option<u32>)]) -> Result<String> {
        const ASKED: usize = 50;
        let mut kinds: BTreeMap<String, u64> = BTreeMap::new();
        for &(unit, number) in attempts.iter().rev().take(ASKED) {
            let found = self.archive.attempts(unit);
            for attempt in self.readable("the attempts", found)?.unwrap_or_default() {
                if let Some(failure) = attempt.failure.filter(|_| Some(attempt.key.number) == number) {
                    *kinds.entry(failure.kind.as_str().to_owned()).or_default() += 1;
                }
            }
        }
        let most = kinds.into_iter().max_by_key(|(_, count)| *count);
        Ok(most.map(|(kind, _)| format!("; most with {}", short(&kind))).unwrap_or_default())
    }
}
