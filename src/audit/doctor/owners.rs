//! Who works on a database: which processes live, which do not, and what they say of themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Examination;
use super::finding::{Concern, Symptom, Urgency, many, named, span};
use crate::audit::visible::short;
use crate::clock::milliseconds;
use crate::job::JobId;
use crate::lease::{Owner, OwnerState};
use crate::repository::{LeaseView, PAGE_LIMIT, Result, Staleness, rules};
use crate::unit::names;
use crate::worker::{Worker, WorkerStatus};

/// How long ago a worker may have crashed that is still spoken of.
const RECENT_CRASH: Duration = Duration::from_secs(3_600);

/// What is to be expected of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[non_exhaustive]
pub enum Standing {
    /// It lives and renews its leases.
    Alive,
    /// It cannot be seen from here, for it is in another pid namespace, but was heard of not long ago.
    Heard,
    /// It is there, but somebody has stopped it.
    Stopped,
    /// It is there, but has not renewed its leases for longer than they last.
    Stuck,
    /// It cannot be seen from here, and was not heard of for longer than its leases last.
    Silent,
    /// It has died.
    Died,
    /// The machine was started again since.
    OtherBoot,
}

names!(Standing {
    Alive => "alive",
    Heard => "heard of",
    Stopped => "stopped",
    Stuck => "stuck",
    Silent => "silent",
    Died => "died",
    OtherBoot => "other boot",
});

impl Standing {
    /// Whether it may go on to work by itself.
    pub fn is_living(self) -> bool {
        matches!(self, Standing::Alive | Standing::Heard)
    }
}

/// A process that has not ended in order, as it is seen from here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OwnerFact {
    /// Its record, with what it says of itself.
    pub owner: Owner,
    /// What is to be expected of it.
    pub standing: Standing,
    /// For how many milliseconds nothing was heard of it, by the calendar.
    pub silent_ms: i64,
    /// How many units it holds.
    pub leases: u64,
    /// Its workers that have not ended, and those that crashed within the hour, by status.
    pub workers: BTreeMap<WorkerStatus, u64>,
    /// The jobs of its workers.
    pub jobs: Vec<JobId>,
}

impl OwnerFact {
    /// Whether it works on a job, as far as that is known.
    pub(super) fn works_on(&self, job_id: JobId) -> bool {
        let told = self.owner.state.as_ref().and_then(|state| state.job_id);
        self.standing.is_living()
            && told.map_or_else(|| self.jobs.is_empty() || self.jobs.contains(&job_id), |told| told == job_id)
    }

    /// Whether it takes units of a job that nobody has accepted; one that has said nothing may.
    pub(super) fn pulls(&self, job_id: JobId) -> bool {
        self.works_on(job_id) && self.owner.state.as_ref().is_none_or(|state| state.is_pulling)
    }

    /// What people call it.
    pub(super) fn name(&self) -> String {
        let host = self.owner.host.as_deref().map(|host| format!(" on {}", named(host))).unwrap_or_default();
        format!("{} (process {}{host})", named(&self.owner.label), self.owner.process.pid)
    }
}

impl Examination<'_> {
    pub(super) fn owners(&mut self, leases: &[LeaseView]) -> Result<()> {
        let owners = self.archive.owners();
        let Some(owners) = self.readable("the owners", owners)? else { return Ok(()) };
        self.diagnosis.ended_owners = owners.iter().filter(|owner| owner.ended_at.is_some()).count() as u64;
        for owner in owners.into_iter().filter(|owner| owner.ended_at.is_none()) {
            let workers = self.archive.workers(owner.id, "", PAGE_LIMIT);
            let workers = self.readable("the workers", workers)?.unwrap_or_default();
            let fact = self.owner_fact(owner, &workers, leases);
            self.standing_of(&fact);
            self.workers_of(&fact);
            if let Some(state) = fact.owner.state.clone().filter(|_| fact.standing.is_living()) {
                self.word_of(&fact, &state);
            }
            self.diagnosis.owners.push(fact);
        }
        Ok(())
    }

    fn owner_fact(&self, owner: Owner, workers: &[Worker], leases: &[LeaseView]) -> OwnerFact {
        let silent_ms = (self.now.wall - owner.heartbeat_at).num_milliseconds().max(0);
        let is_silent = silent_ms > milliseconds(owner.lease);
        let process = &owner.process;
        let standing = match rules::owner_loss(&owner, &self.boot_id) {
            Some(Staleness::OtherBoot) => Standing::OtherBoot,
            Some(_) => Standing::Died,
            None if process.is_stopped(&self.boot_id) => Standing::Stopped,
            None if process.is_provably_alive(&self.boot_id) && is_silent => Standing::Stuck,
            None if process.is_provably_alive(&self.boot_id) => Standing::Alive,
            None if is_silent => Standing::Silent,
            None => Standing::Heard,
        };
        let is_meant = |worker: &&Worker| {
            let age_ms = (self.now.wall - worker.last_activity_at).num_milliseconds();
            let is_recent = age_ms <= milliseconds(RECENT_CRASH);
            !worker.status.is_ended() || (worker.status == WorkerStatus::Dead && is_recent)
        };
        let mut by_status = BTreeMap::new();
        for worker in workers.iter().filter(is_meant) {
            *by_status.entry(worker.status).or_insert(0) += 1;
        }
        let mut jobs: Vec<JobId> = workers.iter().map(|worker| worker.job_id).collect();
        jobs.sort_unstable();
        jobs.dedup();
        let held = leases.iter().filter(|lease| lease.owner == owner.id).count() as u64;
        OwnerFact { owner, standing, silent_ms, leases: held, workers: by_status, jobs }
    }

    /// What of a process that does not work any more somebody should know.
    fn standing_of(&mut self, fact: &OwnerFact) {
        let (name, pid, silence) = (fact.name(), fact.owner.process.pid, span(fact.silent_ms));
        let holding = match fact.leases {
            0 => "and holds nothing".to_owned(),
            held => format!("and holds {}", many(held, "unit")),
        };
        // With nothing in its hands nobody waits for it.
        let urgency = if fact.leases > 0 { Urgency::Now } else { Urgency::Note };
        let take_back = "a process that works takes back what it held: `workcrew worker` starts one";
        match fact.standing {
            Standing::Alive | Standing::Heard => {}
            Standing::Died => {
                self.add(urgency, Concern::Died, format!("{name} has died {holding}"), take_back);
            }
            Standing::OtherBoot => {
                let what = format!("{name} ended when the machine was started again, {holding}");
                self.add(urgency, Concern::Died, what, take_back);
            }
            Standing::Stopped => {
                let what = format!("{name} is stopped, was last heard of {silence} ago, {holding}");
                self.add(
                    Urgency::Now,
                    Concern::Stopped,
                    what,
                    format!("let it go on: `kill -CONT {pid}`; or end it: `kill {pid}`"),
                );
            }
            Standing::Stuck => {
                let what = format!("{name} lives, but has not renewed its leases for {silence}, {holding}");
                let advice =
                    format!("see whether its disk hangs; if it stays so: `kill {pid}`, then `workcrew worker`");
                self.add(Urgency::Now, Concern::Stopped, what, advice);
            }
            Standing::Silent => {
                let what = format!("{name} cannot be seen from here and was not heard of for {silence}, {holding}");
                self.add(
                    Urgency::Soon,
                    Concern::Silent,
                    what,
                    "look for it where it was started; if it is gone there is nothing to do",
                );
            }
        }
    }

    fn workers_of(&mut self, fact: &OwnerFact) {
        let count = |status: WorkerStatus| fact.workers.get(&status).copied().unwrap_or_default();
        let (dead, tainted) = (count(WorkerStatus::Dead), count(WorkerStatus::Tainted));
        if fact.standing.is_living() && dead + tainted > 0 {
            let what = format!(
                "{}: {} crashed within the hour, {tainted} of them TAINTED",
                fact.name(),
                many(dead + tainted, "worker")
            );
            let advice =
                format!("see in the log of process {} why; they are replaced by themselves", fact.owner.process.pid);
            self.add(Urgency::Soon, Concern::WorkersBroken, what, advice);
        }
    }

    /// Who is not to be asked yet, whoever heard it.
    pub(super) fn providers(&mut self) -> Result<()> {
        let holds = self.archive.holds();
        for hold in self.readable("the holds of providers", holds)?.unwrap_or_default() {
            let (provider, until) = (named(&hold.provider), super::date(hold.until));
            let what = format!("{provider} is not asked until {until}: {}", short(&hold.reason));
            let advice = "nothing: it is asked again then; `workcrew lift` ends that before, if it is wrong";
            self.add(Urgency::Note, Concern::Held, what, advice);
            self.diagnosis.providers.push(hold);
        }
        Ok(())
    }

    /// What a process that lives says of itself.
    fn word_of(&mut self, fact: &OwnerFact, state: &OwnerState) {
        let (name, pid) = (fact.name(), fact.owner.process.pid);
        if state.is_paused {
            let advice =
                format!("its program can let it go on; else end it with `kill -INT {pid}`, then `workcrew resume`");
            self.add(Urgency::Soon, Concern::Paused, format!("{name} is paused"), advice);
        }
        for hold in &state.holds {
            let reason = short(&hold.reason);
            match hold.until {
                None => {
                    let what = format!("{name} starts nothing: {reason}");
                    let advice = format!("mend what it says, end it with `kill -INT {pid}`, then `workcrew resume`");
                    self.add(Urgency::Now, Concern::Held, what, advice);
                }
                Some(until) => {
                    let what = format!("{name} starts nothing until {}: {reason}", super::date(until));
                    let advice = "nothing: it goes on by itself then";
                    self.add(Urgency::Note, Concern::Held, what, advice);
                }
            }
        }
        if state.abandoned_threads > 0 {
            let (left, limit) = (state.abandoned_threads, state.max_abandoned);
            let urgency = if left >= limit { Urgency::Now } else { Urgency::Soon };
            let what = format!("{name} has left {} behind of at most {limit}", many(left as u64, "thread"));
            let advice = format!(
                "its executor does not return when it is told to; at the limit it works no more: `kill {pid}`, then `workcrew worker`"
            );
            self.add(urgency, Concern::AbandonedThreads, what, advice);
        }
        if let Some(failure) = state.last_start_failure.as_ref().filter(|_| state.workers < state.target_workers) {
            let failure = short(failure);
            let what = format!("{name} has {} of {} workers: {failure}", state.workers, state.target_workers);
            self.add(
                Urgency::Soon,
                Concern::WorkersMissing,
                what,
                "mend what it says; they are tried again every minute",
            );
        }
        if state.max_queue_size > 0 && state.queue_size >= state.max_queue_size {
            let what = format!("{name}: its queue is full with {}", many(state.queue_size as u64, "unit"));
            self.add(
                Urgency::Note,
                Concern::QueueFull,
                what,
                "whoever enqueues is refused for now; more workers, or patience",
            );
        }
        if let Some(level) = state.level.filter(|level| level.workers < state.max_workers)
            && let Some(at) = level.cut_at
        {
            let (allowed, limit, at) = (level.workers, state.max_workers, super::date(at));
            let what =
                format!("{name} may have {allowed} of {limit} workers since its provider asked for fewer at {at}");
            let advice = "nothing: it finds out by itself how many the provider bears";
            self.add(Urgency::Note, Concern::FewerWorkers, what, advice);
        }
        if let Some(writing) = state.writing.filter(|writing| writing.is_high()) {
            let (bytes, limit) =
                (super::finding::size(writing.bytes as u64), super::finding::size(writing.limit_bytes as u64));
            let what = format!("{name} has {bytes} of {limit} waiting to be written");
            self.add(
                Urgency::Soon,
                Concern::WritingSlow,
                what,
                "the disk does not keep up, or another process has the file locked",
            );
        }
    }

    pub(super) fn add(&mut self, urgency: Urgency, concern: Concern, what: impl AsRef<str>, advice: impl AsRef<str>) {
        self.diagnosis.findings.push(Symptom::new(urgency, concern, what, advice));
    }
}
