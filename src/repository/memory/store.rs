//! What is kept, and how it is found: plain records in ordered maps. Nothing is ever removed from them but holds that are over.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use chrono::{DateTime, Utc};

use super::providers::TakenTurn;
use crate::attempt::{Attempt, AttemptKey, AttemptResult, Failure, Standing};
use crate::chain::{Hash, conversation_genesis, journal_genesis, journal_link, message_link};
use crate::clock::Moment;
use crate::conversation::{MessageContent, Role, StoredMessage};
use crate::job::{Job, JobId};
use crate::lease::{Lease, Owner, OwnerId};
use crate::limits::{Account, AccountHolder, StoredHold};
use crate::money::{Charge, Money};
use crate::repository::rules::{self, Pause};
use crate::repository::{By, JobEntry, JournalEntry, RepositoryError, Result};
use crate::same_work::WorkKey;
use crate::unit::{Change, Inputs, NewUnit, UnitId, UnitKey, UnitOptions, UnitStatus, unit_digest};
use crate::worker::{Worker, WorkerId};

/// Everything that a memory repository holds.
#[derive(Default)]
pub(super) struct Store {
    pub(super) jobs: BTreeMap<JobId, Job>,
    pub(super) job_journal: Vec<JobEntry>,
    pub(super) units: BTreeMap<UnitKey, UnitRecord>,
    /// The keys of the units by their names.
    pub(super) names: BTreeMap<(JobId, String), UnitKey>,
    pub(super) attempts: BTreeMap<AttemptKey, AttemptRecord>,
    pub(super) owners: BTreeMap<OwnerId, Owner>,
    /// When each owner last renewed its leases, in milliseconds of the machine.
    pub(super) heartbeats: BTreeMap<OwnerId, i64>,
    pub(super) workers: BTreeMap<(OwnerId, WorkerId), Worker>,
    pub(super) journal: Vec<JournalEntry>,
    /// Of the jobs and owners that have a budget.
    pub(super) accounts: BTreeMap<AccountHolder, Account>,
    /// By provider, with those that no longer count.
    pub(super) turns: Vec<TakenTurn>,
    /// By provider, with those that are over.
    pub(super) holds: BTreeMap<String, StoredHold>,
    /// The attempt that has each piece of work.
    pub(super) works: BTreeMap<WorkKey, AttemptKey>,
}

/// A unit as it is kept: what it is, and where it stands.
pub(super) struct UnitRecord {
    pub(super) key: UnitKey,
    pub(super) job_id: JobId,
    pub(super) id: UnitId,
    pub(super) unit_type: Option<String>,
    pub(super) priority: i32,
    /// As JSON; `None` once it was purged.
    pub(super) payload: Option<Vec<u8>>,
    pub(super) prompt: Option<String>,
    pub(super) template: Option<String>,
    pub(super) options: UnitOptions,
    /// The same as the JSON over which the content hash was made.
    pub(super) options_json: Vec<u8>,
    pub(super) content_hash: Hash,
    pub(super) prompt_hash: Option<Hash>,
    pub(super) max_retries: u32,

    pub(super) status: UnitStatus,
    pub(super) attempt_count: u32,
    pub(super) attempts_used: u32,
    /// How often it was given back without being counted.
    pub(super) releases: u32,
    pub(super) fence: i64,
    pub(super) accepted_by: Option<OwnerId>,
    pub(super) pause: Option<Pause>,
    /// When it has waited too long, in boot time.
    pub(super) queue_deadline_ms: Option<i64>,
    /// There exactly while the status is a leased one.
    pub(super) holder: Option<Holder>,
    pub(super) created_at: DateTime<Utc>,
    pub(super) completed_at: Option<DateTime<Utc>>,
    pub(super) purged_at: Option<DateTime<Utc>>,
    pub(super) failure: Option<Failure>,
}

/// Who holds the lease of a unit, and until when.
#[derive(Clone)]
pub(super) struct Holder {
    pub(super) owner: OwnerId,
    pub(super) worker_id: WorkerId,
    pub(super) until_ms: i64,
}

/// An attempt as it is kept, with all that belongs to it.
pub(super) struct AttemptRecord {
    pub(super) attempt: Attempt,
    /// Of the request that claimed it.
    pub(super) token: i64,
    pub(super) result: AttemptResult,
    /// By model.
    pub(super) charges: Vec<Charge>,
    pub(super) messages: Vec<StoredMessage>,
    /// What is there of a message that is being written.
    pub(super) partial: Option<String>,
    /// As JSON.
    pub(super) checkpoint: Option<Vec<u8>>,
}

/// What is to be said in the journal. The status after, and the fence, are read from the unit.
pub(super) struct Step {
    pub(super) unit: UnitKey,
    pub(super) attempt_number: Option<u32>,
    pub(super) change: Change,
    pub(super) from: Option<UnitStatus>,
    pub(super) by: By,
    /// The number of messages and the last link, where an attempt is closed.
    pub(super) seal: Option<(u32, Hash)>,
    pub(super) digest: Option<Hash>,
}

impl Step {
    /// A change that concerns no attempt and stores nothing.
    pub(super) fn new(unit: UnitKey, change: Change, from: UnitStatus, by: By) -> Step {
        Step { unit, attempt_number: None, change, from: Some(from), by, seal: None, digest: None }
    }
}

impl Store {
    /// A job that must exist.
    pub(super) fn job(&self, id: JobId) -> Result<&Job> {
        self.jobs.get(&id).ok_or(RepositoryError::UnknownJob(id))
    }

    /// Checks that an owner was registered and has not ended.
    pub(super) fn check_owner(&self, owner: OwnerId) -> Result<()> {
        match self.owners.get(&owner) {
            Some(found) if found.ended_at.is_none() => Ok(()),
            _ => Err(RepositoryError::UnknownOwner(owner)),
        }
    }

    /// A unit by its name, if there is one.
    pub(super) fn find(&self, job_id: JobId, id: &str) -> Option<&UnitRecord> {
        self.names.get(&(job_id, id.to_owned())).map(|&key| self.unit(key))
    }

    /// A unit by its name, which must exist.
    pub(super) fn unit_named(&self, job_id: JobId, id: &str) -> Result<&UnitRecord> {
        self.job(job_id)?;
        self.find(job_id, id).ok_or_else(|| RepositoryError::unknown_unit(job_id, id))
    }

    /// A unit by a key that the store itself gave.
    pub(super) fn unit(&self, key: UnitKey) -> &UnitRecord {
        self.units.get(&key).expect("the key is the store's own, and units are never deleted")
    }

    pub(super) fn unit_mut(&mut self, key: UnitKey) -> &mut UnitRecord {
        self.units.get_mut(&key).expect("the key is the store's own, and units are never deleted")
    }

    /// The attempts of a unit, in order.
    pub(super) fn attempts_of(&self, unit: UnitKey) -> impl DoubleEndedIterator<Item = &AttemptRecord> {
        self.attempts.range(attempt_keys(unit)).map(|(_, record)| record)
    }

    pub(super) fn attempts_of_mut(&mut self, unit: UnitKey) -> impl Iterator<Item = &mut AttemptRecord> {
        self.attempts.range_mut(attempt_keys(unit)).map(|(_, record)| record)
    }

    /// An attempt by a key that the store itself gave.
    pub(super) fn attempt_mut(&mut self, key: AttemptKey) -> &mut AttemptRecord {
        self.attempts.get_mut(&key).expect("the key is the store's own, and attempts are never deleted")
    }

    /// The unit of a lease, if the lease still gives the right to write it.
    pub(super) fn held(&self, lease: &Lease) -> Option<&UnitRecord> {
        self.units.get(&lease.unit).filter(|unit| {
            unit.status.is_leased() && unit.fence == lease.fence && unit.attempt_count == lease.attempt_number
        })
    }

    /// The attempt of a lease, to be written, if the lease still gives the right to.
    pub(super) fn held_attempt(&mut self, lease: &Lease) -> Result<&mut AttemptRecord> {
        match self.held(lease) {
            Some(_) => Ok(self.attempt_mut(lease.attempt())),
            None => Err(RepositoryError::stale(lease)),
        }
    }

    /// The keys of units that are leased to somebody, in order.
    pub(super) fn leased(&self, is_meant: impl Fn(&UnitRecord, &Holder) -> bool) -> impl Iterator<Item = UnitKey> {
        let meant = move |unit: &&UnitRecord| unit.holder.as_ref().is_some_and(|holder| is_meant(unit, holder));
        self.units.values().filter(meant).map(|unit| unit.key)
    }

    /// Adds a row to the journal of jobs, once the job was made or changed.
    pub(super) fn record_job(&mut self, job: &Job, by: &By, now: Moment) {
        let last = self.job_journal.last().map(|row| (row.seq, row.link));
        let journal = self.journal.last().map(|row| (row.seq, row.link));
        self.job_journal.push(JobEntry::following(last, journal, job, by, now.wall));
    }

    /// A job or an owner has this budget from now on, or none. What its attempts have left counts from the beginning.
    pub(super) fn set_budget(&mut self, holder: AccountHolder, budget: Option<Money>) {
        let Some(budget) = budget else {
            self.accounts.remove(&holder);
            return;
        };
        if let Some(account) = self.accounts.get_mut(&holder) {
            account.budget = budget;
            return;
        }
        let is_meant = |record: &&AttemptRecord| match holder {
            AccountHolder::Job(id) => self.unit(record.attempt.key.unit).job_id == id,
            AccountHolder::Owner(id) => record.attempt.owner == id,
        };
        let mut account = Account::new(holder, budget);
        for AttemptRecord { attempt, charges, .. } in self.attempts.values().filter(is_meant) {
            account.count(attempt.expected, attempt.outcome.is_some(), charges);
        }
        self.accounts.insert(holder, account);
    }

    /// Changes the accounts that an attempt counts for, given what was expected of it.
    pub(super) fn change_accounts(&mut self, key: AttemptKey, change: impl Fn(&mut Account, Money)) {
        let job_id = self.unit(key.unit).job_id;
        let Attempt { owner, expected, .. } = self.attempt_mut(key).attempt;
        for holder in [AccountHolder::Job(job_id), AccountHolder::Owner(owner)] {
            if let Some(account) = self.accounts.get_mut(&holder) {
                change(account, expected.unwrap_or_default());
            }
        }
    }

    /// Adds a row to the journal, once the unit was changed.
    pub(super) fn record(&mut self, step: Step, now: Moment) {
        let unit = self.unit(step.unit);
        let previous = self.journal.last().map_or_else(journal_genesis, |row| row.link);
        let mut row = JournalEntry {
            seq: next_number(self.journal.len()),
            at: now.wall,
            unit: step.unit,
            attempt_number: step.attempt_number,
            fence: unit.fence,
            change: step.change,
            from: step.from,
            to: unit.status,
            actor: step.by.actor,
            reason: step.by.reason,
            message_count: step.seal.map(|(count, _)| count),
            head: step.seal.map(|(_, head)| head),
            digest: step.digest,
            link: previous,
        };
        row.link = journal_link(&previous, &row);
        self.journal.push(row);
    }
}

fn attempt_keys(unit: UnitKey) -> RangeInclusive<AttemptKey> {
    AttemptKey { unit, number: 0 }..=AttemptKey { unit, number: u32::MAX }
}

/// The key of what is added to so many others: keys begin at 1 and have no gaps.
pub(super) fn next_number(count: usize) -> i64 {
    i64::try_from(count).expect("memory holds fewer records than there are numbers") + 1
}

impl UnitRecord {
    /// A unit that waits and belongs to nobody.
    pub(super) fn new(
        key: UnitKey,
        job_id: JobId,
        new: &NewUnit,
        checked: (UnitId, Inputs),
        now: Moment,
    ) -> UnitRecord {
        let (id, inputs) = checked;
        UnitRecord {
            key,
            job_id,
            id,
            unit_type: new.unit_type.clone(),
            priority: new.priority,
            payload: Some(inputs.payload),
            prompt: new.prompt.clone(),
            template: new.template.clone(),
            options: new.options.clone(),
            options_json: inputs.options,
            content_hash: inputs.content_hash,
            prompt_hash: inputs.prompt_hash,
            max_retries: new.max_retries,
            status: UnitStatus::Pending,
            attempt_count: 0,
            attempts_used: 0,
            releases: 0,
            fence: 0,
            accepted_by: None,
            pause: new.not_before.and_then(|not_before| Pause::until(not_before, now)),
            queue_deadline_ms: None,
            holder: None,
            created_at: now.wall,
            completed_at: None,
            purged_at: None,
            failure: None,
        }
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.pause.is_none_or(|pause| pause.is_over(now))
    }

    /// Whether it waits, is due, and has not waited too long.
    pub(super) fn is_claimable(&self, now: Moment) -> bool {
        let has_waited_too_long = self.queue_deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now.boot_ms);
        self.status == UnitStatus::Pending && self.is_due(now) && !has_waited_too_long
    }

    /// What the end of its attempt depends on.
    pub(super) fn standing(&self) -> Standing {
        let UnitRecord { status, attempts_used, max_retries, releases, .. } = *self;
        Standing { status, attempts_used, max_retries, releases }
    }

    /// The attempt that is open while it is leased.
    pub(super) fn current_attempt(&self) -> AttemptKey {
        AttemptKey { unit: self.key, number: self.attempt_count }
    }

    /// The hash of all that it is, given that of its inputs.
    pub(super) fn digest(&self, inputs: &Hash) -> Hash {
        unit_digest(inputs, self.job_id, self.priority, self.max_retries)
    }

    /// The lease of whoever holds it.
    pub(super) fn lease(&self) -> Option<Lease> {
        let holder = self.holder.as_ref()?;
        Some(Lease {
            job_id: self.job_id,
            unit_id: self.id.clone(),
            unit: self.key,
            attempt_number: self.attempt_count,
            fence: self.fence,
            owner: holder.owner,
            worker_id: holder.worker_id.clone(),
            until_ms: holder.until_ms,
        })
    }

    /// It waits for nothing.
    pub(super) fn forget_waiting(&mut self) {
        self.pause = None;
        self.queue_deadline_ms = None;
    }
}

impl AttemptRecord {
    /// An attempt that was just claimed.
    pub(super) fn new(unit: &UnitRecord, holder: &Holder, token: i64, now: Moment) -> AttemptRecord {
        let (key, worker_id) = (unit.current_attempt(), holder.worker_id.clone());
        let attempt = Attempt::claimed(key, unit.fence, holder.owner, worker_id, now.wall);
        AttemptRecord {
            attempt,
            token,
            result: AttemptResult::default(),
            charges: Vec::new(),
            messages: Vec::new(),
            partial: None,
            checkpoint: None,
        }
    }

    pub(super) fn message_count(&self) -> u32 {
        u32::try_from(self.messages.len()).expect("a conversation has fewer than four billion messages")
    }

    /// The last link of the conversation so far.
    pub(super) fn head(&self) -> Hash {
        let genesis = || conversation_genesis(self.attempt.key, self.attempt.fence);
        self.messages.last().map_or_else(genesis, |message| message.link)
    }

    /// Adds a message behind the others.
    pub(super) fn push_message(&mut self, role: Role, content: MessageContent, now: Moment) {
        let number = self.message_count() + 1;
        let content_hash = content.hash();
        let link = message_link(&self.head(), number, now.wall, role, &content_hash);
        self.messages.push(StoredMessage::new(number, now.wall, role, Some(content), content_hash, link));
    }

    /// Replaces the charges of the same models, and adds the others.
    pub(super) fn charge(&mut self, further: &[Charge]) {
        self.charges = rules::charged(&self.charges, further);
    }

    /// The hash over how it ended and what it left behind.
    pub(super) fn digest(&self) -> Hash {
        self.result.digest(&self.attempt, &self.charges)
    }
}
