//! Reading: every function here leaves the store as it is.

use std::collections::BTreeMap;
use std::ops::Bound;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::store::{AttemptRecord, Store, UnitRecord};
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Outcome};
use crate::clock::Moment;
use crate::conversation::{MessageContent, StoredMessage, from_json};
use crate::job::{Job, JobId};
use crate::lease::{Claim, Owner, OwnerId};
use crate::limits::{Account, AccountHolder};
use crate::money::{Charge, Cost, Tokens};
use crate::repository::rules::{self, PageItem};
use crate::repository::{
    Costs, Counts, JobEntry, JournalEntry, LeaseView, ModelCost, Page, Result, Staleness, StoredInputs, UnitFilter,
};
use crate::unit::{UnitKey, UnitStatus, WorkUnit};
use crate::worker::Worker;

impl Store {
    pub(super) fn job_named(&self, name: &str) -> Option<Job> {
        self.jobs.values().find(|job| job.name == name).cloned()
    }

    pub(super) fn jobs_page(&self, after: i64, limit: usize) -> Result<Page<Job>> {
        let jobs = self.jobs.range((Bound::Excluded(JobId(after)), Bound::Unbounded));
        rules::page(limit, jobs.map(|(id, job)| Ok(PageItem { key: id.0, len_bytes: 0, item: job.clone() })))
    }

    pub(super) fn job_journal_page(&self, after: i64, limit: usize) -> Result<Page<JobEntry>> {
        let rows = self.job_journal.iter().filter(|row| row.seq > after);
        rules::page(limit, rows.map(|row| Ok(PageItem { key: row.seq, len_bytes: row.len_bytes(), item: row.clone() })))
    }

    /// A unit with what its last attempt left, and the costs of all of them.
    pub(super) fn work_unit(&self, unit: &UnitRecord) -> WorkUnit {
        let last = self.attempts_of(unit.key).next_back();
        let attempt = last.map(|record| &record.attempt);
        let result = last.map(|record| record.result.clone()).unwrap_or_default();
        let charges = || self.attempts_of(unit.key).flat_map(|record| &record.charges);
        WorkUnit {
            key: unit.key,
            job_id: unit.job_id,
            id: unit.id.clone(),
            unit_type: unit.unit_type.clone(),
            status: unit.status,
            priority: unit.priority,
            payload: unit.payload.as_deref().map_or(Value::Null, parsed),
            prompt: unit.prompt.clone(),
            template: unit.template.clone(),
            options: unit.options.clone(),
            max_retries: unit.max_retries,
            attempt_count: unit.attempt_count,
            attempts_used: unit.attempts_used,
            fence: unit.fence,
            accepted_by: unit.accepted_by,
            not_before: unit.pause.map(|pause| pause.not_before),
            created_at: unit.created_at,
            assigned_at: attempt.map(|attempt| attempt.assigned_at),
            started_at: attempt.and_then(|attempt| attempt.started_at),
            first_message_at: last.and_then(|record| record.messages.first()).map(|message| message.at),
            completed_at: unit.completed_at,
            purged_at: unit.purged_at,
            worker_id: attempt.map(|attempt| attempt.worker_id.clone()),
            execution_time: attempt.and_then(Attempt::execution_time),
            rendered_prompt: last.and_then(|record| sent(unit, record)),
            result: result.result.as_ref().map(|json| parsed(json.as_bytes())),
            output: result.output,
            output_files: result.output_files,
            failure: unit.failure.clone(),
            session_id: attempt.and_then(|attempt| attempt.session_id.clone()),
            process: attempt.and_then(|attempt| attempt.process.clone()),
            tokens: charges().fold(Tokens::default(), |sum, charge| sum + charge.tokens),
            cost: charges().map(Charge::cost).sum(),
        }
    }

    pub(super) fn units_page(&self, filter: &UnitFilter, after: i64, limit: usize) -> Result<Page<WorkUnit>> {
        let behind = self.units.range((Bound::Excluded(UnitKey(after)), Bound::Unbounded)).map(|(_, unit)| unit);
        let meant = behind.filter(|unit| is_meant(filter, unit));
        let item = |unit: &UnitRecord| PageItem {
            key: unit.key.0,
            len_bytes: self.content_bytes(unit),
            item: self.work_unit(unit),
        };
        rules::page(limit, meant.map(|unit| Ok(item(unit))))
    }

    /// How many bytes of content a unit brings onto a page.
    fn content_bytes(&self, unit: &UnitRecord) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let inputs = unit.payload.as_ref().map_or(0, Vec::len) + text(&unit.prompt) + text(&unit.template);
        let last = self.attempts_of(unit.key).next_back().map(|record| &record.result);
        let outputs = last.map_or(0, |result| {
            let json = result.result.as_ref().map_or(0, |json| json.as_bytes().len());
            json + text(&result.rendered_prompt) + text(&result.output)
        });
        inputs + outputs
    }

    pub(super) fn counts(&self, job_id: JobId) -> Result<Counts> {
        self.job(job_id)?;
        let mut counts = Counts::default();
        for unit in self.units.values().filter(|unit| unit.job_id == job_id) {
            counts.add(unit.status, 1);
        }
        Ok(counts)
    }

    pub(super) fn costs(&self, job_id: Option<JobId>) -> Result<Costs> {
        if let Some(job_id) = job_id {
            self.job(job_id)?;
        }
        let mut by_model: BTreeMap<&str, (Tokens, Cost)> = BTreeMap::new();
        let (mut in_vain, mut unbilled) = (Cost::default(), 0);
        let is_meant =
            |record: &&AttemptRecord| job_id.is_none_or(|job_id| self.unit(record.attempt.key.unit).job_id == job_id);
        for record in self.attempts.values().filter(is_meant) {
            unbilled += u64::from(record.charges.is_empty() && record.attempt.was_executed());
            for charge in &record.charges {
                let (tokens, cost) = by_model.entry(&charge.model).or_default();
                *tokens += charge.tokens;
                *cost = *cost + charge.cost();
                if record.attempt.outcome.is_some_and(|outcome| outcome != Outcome::Completed) {
                    in_vain = in_vain + charge.cost();
                }
            }
        }
        let model_cost = |(model, (tokens, cost)): (&str, _)| ModelCost { model: model.to_owned(), tokens, cost };
        Ok(Costs { by_model: by_model.into_iter().map(model_cost).collect(), in_vain, unbilled })
    }

    pub(super) fn account(&self, holder: AccountHolder) -> Option<Account> {
        self.accounts.get(&holder).copied()
    }

    pub(super) fn attempts(&self, unit: UnitKey) -> Vec<Attempt> {
        self.attempts_of(unit).map(|record| record.attempt.clone()).collect()
    }

    pub(super) fn attempt_result(&self, attempt: AttemptKey) -> Result<AttemptResult> {
        let record = self.attempts.get(&attempt).ok_or_else(|| rules::no_such_attempt(attempt))?;
        Ok(record.result.clone())
    }

    pub(super) fn charges(&self, attempt: AttemptKey) -> Vec<Charge> {
        self.attempts.get(&attempt).map(|record| record.charges.clone()).unwrap_or_default()
    }

    pub(super) fn messages(&self, attempt: AttemptKey, after: u32, limit: usize) -> Result<Page<StoredMessage>> {
        let all = self.attempts.get(&attempt).map_or(&[][..], |record| &record.messages);
        let behind = all.iter().filter(|message| message.number > after);
        let item = |message: &StoredMessage| PageItem {
            key: i64::from(message.number),
            len_bytes: message.content.as_ref().map_or(0, MessageContent::len_bytes),
            item: message.clone(),
        };
        rules::page(limit, behind.map(|message| Ok(item(message))))
    }

    pub(super) fn partial_text(&self, attempt: AttemptKey) -> Option<String> {
        self.attempts.get(&attempt)?.partial.clone()
    }

    pub(super) fn checkpoint(&self, unit: UnitKey) -> Option<Value> {
        self.attempts_of(unit).rev().find_map(|record| record.checkpoint.as_deref()).map(parsed)
    }

    pub(super) fn inputs(&self, unit: UnitKey) -> Result<StoredInputs> {
        let unit = self.units.get(&unit).ok_or_else(|| rules::no_such_key(unit))?;
        Ok(StoredInputs {
            unit_type: unit.unit_type.clone(),
            payload: unit.payload.clone(),
            prompt: unit.prompt.clone(),
            template: unit.template.clone(),
            options: unit.options_json.clone(),
            content_hash: unit.content_hash,
            prompt_hash: unit.prompt_hash,
        })
    }

    /// The rows of the journal that are meant, in pages.
    pub(super) fn journal_page(
        &self,
        after: i64,
        limit: usize,
        is_meant: impl Fn(&JournalEntry) -> bool,
    ) -> Result<Page<JournalEntry>> {
        let rows = self.journal.iter().filter(|row| row.seq > after && is_meant(row));
        rules::page(limit, rows.map(|row| Ok(PageItem { key: row.seq, len_bytes: row.len_bytes(), item: row.clone() })))
    }

    pub(super) fn accepted_page(&self, owner: OwnerId, after: i64, limit: usize) -> Result<Page<UnitKey>> {
        let behind = self.units.range((Bound::Excluded(UnitKey(after)), Bound::Unbounded)).map(|(_, unit)| unit);
        let waits = |unit: &&UnitRecord| unit.status == UnitStatus::Pending && unit.accepted_by == Some(owner);
        let item = |unit: &UnitRecord| Ok(PageItem { key: unit.key.0, len_bytes: 0, item: unit.key });
        rules::page(limit, behind.filter(waits).map(item))
    }

    pub(super) fn leases_page(
        &self,
        job_id: Option<JobId>,
        after: i64,
        limit: usize,
        boot_id: &str,
        now: Moment,
    ) -> Result<Page<LeaseView>> {
        if let Some(job_id) = job_id {
            self.job(job_id)?;
        }
        let losses = self.owner_losses(boot_id);
        let behind = self.units.range((Bound::Excluded(UnitKey(after)), Bound::Unbounded)).map(|(_, unit)| unit);
        let meant = behind.filter(|unit| job_id.is_none_or(|job_id| unit.job_id == job_id));
        let leased = meant.filter_map(|unit| {
            let (lease, since) = (unit.lease()?, self.attempts.get(&unit.current_attempt())?.attempt.assigned_at);
            let owner_loss = losses.get(&lease.owner).copied();
            let item = rules::lease_view(lease, unit.status, since, owner_loss, now);
            Some(Ok(PageItem { key: unit.key.0, len_bytes: 0, item }))
        });
        rules::page(limit, leased)
    }

    /// The owners from which nothing more is to be expected, and why.
    pub(super) fn owner_losses(&self, boot_id: &str) -> BTreeMap<OwnerId, Staleness> {
        let losses = self.owners.values().filter_map(|owner| Some((owner.id, rules::owner_loss(owner, boot_id)?)));
        losses.collect()
    }

    pub(super) fn owners(&self) -> Vec<Owner> {
        self.owners.values().cloned().collect()
    }

    pub(super) fn workers(&self, owner: OwnerId, after: &str, limit: usize) -> Vec<Worker> {
        let behind = self.workers.values().filter(|worker| worker.owner == owner && worker.id.as_str() > after);
        behind.take(rules::page_limit(limit)).cloned().collect()
    }

    /// What the request with this token was granted and still holds, in the order in which it was.
    pub(super) fn claimed(&self, owner: OwnerId, token: i64) -> Vec<Claim> {
        let is_granted =
            |unit: &UnitRecord| self.attempts.get(&unit.current_attempt()).is_some_and(|record| record.token == token);
        let mut keys: Vec<UnitKey> = self.leased(|unit, holder| holder.owner == owner && is_granted(unit)).collect();
        self.sort_by_turn(&mut keys);
        keys.into_iter().filter_map(|key| self.claim_of(key)).collect()
    }

    /// Whose turn it is: larger priority first, then the order of insertion.
    pub(super) fn sort_by_turn(&self, keys: &mut [UnitKey]) {
        keys.sort_by_key(|&key| (std::cmp::Reverse(self.unit(key).priority), key));
    }

    /// A leased unit with all that its execution needs; `None` if it is not leased.
    pub(super) fn claim_of(&self, key: UnitKey) -> Option<Claim> {
        let unit = self.unit(key);
        let lease = unit.lease()?;
        let earlier = || self.attempts_of(key).filter(|record| record.attempt.key.number < unit.attempt_count);
        let session = earlier().rev().map(|record| &record.attempt.session_id).find(|session| session.is_some());
        Some(Claim {
            lease,
            unit: self.work_unit(unit),
            checkpoint: self.checkpoint(key),
            resume_session: session.unwrap_or(&unit.options.resume_session).clone(),
            earlier_processes: earlier()
                .filter_map(|record| {
                    let Attempt { process, outcome, .. } = &record.attempt;
                    process.clone().filter(|process| rules::may_still_work(process, *outcome == Some(Outcome::Lost)))
                })
                .collect(),
        })
    }
}

pub(super) fn is_meant(filter: &UnitFilter, unit: &UnitRecord) -> bool {
    let kind = unit.failure.as_ref().map(|failure| failure.kind.as_str());
    filter.job_id.is_none_or(|job_id| unit.job_id == job_id)
        && (filter.statuses.is_empty() || filter.statuses.contains(&unit.status))
        && filter.unit_type.as_ref().is_none_or(|wanted| unit.unit_type.as_ref() == Some(wanted))
        && filter.failure_kind.as_deref().is_none_or(|wanted| kind == Some(wanted))
}

/// What an attempt really sent: what was rendered, else the unit's own prompt.
fn sent(unit: &UnitRecord, record: &AttemptRecord) -> Option<String> {
    let as_it_is = || unit.prompt.clone().filter(|_| record.attempt.started_at.is_some());
    record.result.rendered_prompt.clone().or_else(as_it_is)
}

fn parsed<T: DeserializeOwned>(json: &[u8]) -> T {
    from_json(json).expect("the store holds JSON only as it wrote it")
}
