//! From the caller into somebody's hands: create and change a job, insert, submit, claim.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use super::store::{AttemptRecord, Holder, Step, Store, UnitRecord, next_number};
use crate::attempt::Beginning;
use crate::chain::Hash;
use crate::clock::Moment;
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::lease::{Claim, OwnerId};
use crate::limits::{self, Account, AccountHolder, Expectation, OverBudget};
use crate::money::Money;
use crate::repository::rules::{self, Wishes};
use crate::repository::{
    Backlog, By, ClaimRequest, Claimant, Insertion, Intake, RepositoryError, Result, Scope, Slot, Submitted, actor,
    loss,
};
use crate::unit::{Change, Inputs, NewUnit, UnitId, UnitKey, UnitStatus};
use crate::worker::{Worker, WorkerId, WorkerStatus};

/// What a claim is granted under.
struct Terms {
    owner: OwnerId,
    token: i64,
    until_ms: i64,
    /// What units with a prompt of their own begin with at once.
    beginning: Option<Beginning>,
    expectation: Expectation,
}

impl Terms {
    fn of(claimant: &Claimant, now: Moment) -> Result<Terms> {
        let until_ms = now.boot_ms.saturating_add(rules::check_ttl(claimant.ttl)?);
        let beginning = claimant.starting.clone().map(|provenance| Beginning::default().provenance(provenance));
        let (owner, token, expectation) = (claimant.owner, claimant.token, claimant.expectation);
        Ok(Terms { owner, token, until_ms, beginning, expectation })
    }
}

impl Store {
    pub(super) fn create_job(&mut self, job: &NewJob, now: Moment) -> Result<Job> {
        let new = rules::check_new_job(job)?;
        if let Some(found) = self.job_named(&new.name) {
            let made = self.job_journal.iter().find(|row| row.job_id == found.id);
            return rules::same_job(found, made, &new);
        }
        let NewJob { name, template, budget, settings } = new;
        let id = JobId(next_number(self.jobs.len()));
        let job = Job { id, name, template, budget, settings, created_at: now.wall };
        self.jobs.insert(id, job.clone());
        self.record_job(&job, &By::whom(actor::CALLER), now);
        self.set_budget(AccountHolder::Job(id), budget);
        Ok(job)
    }

    pub(super) fn change_job(&mut self, job_id: JobId, change: &JobChange, by: &By, now: Moment) -> Result<Job> {
        let change = rules::check_job_change(change)?;
        let job = self.job(job_id)?;
        let Some(changed) = rules::changed_job(job, &change) else { return Ok(job.clone()) };
        self.jobs.insert(job_id, changed.clone());
        self.record_job(&changed, by, now);
        self.set_budget(AccountHolder::Job(job_id), changed.budget);
        Ok(changed)
    }

    pub(super) fn insert(
        &mut self,
        job_id: JobId,
        units: &[NewUnit],
        intake: Intake,
        now: Moment,
    ) -> Result<Vec<Insertion>> {
        let checked: Vec<(UnitId, Inputs)> = units.iter().map(rules::check_new_unit).collect::<Result<_>>()?;
        self.job(job_id)?;
        let accepted_by = match intake {
            Intake::Open => None,
            Intake::AcceptedBy(owner) => Some(owner),
        };
        accepted_by.map_or(Ok(()), |owner| self.check_owner(owner))?;

        let mut insertions = Vec::with_capacity(units.len());
        for (new, (id, inputs)) in units.iter().zip(checked) {
            let found = self.find(job_id, id.as_str()).map(|found| (found.key, is_same(found, &inputs)));
            let insertion = match found {
                Some((key, true)) => {
                    self.accept_existing(key, new, &inputs, intake, now);
                    Insertion::AlreadyExists(key)
                }
                Some((key, false)) => Insertion::Conflict(key),
                None => {
                    let (deadline_ms, digest) =
                        (rules::queue_deadline_ms(new.queue_timeout, intake, now), inputs.digest);
                    let mut unit = UnitRecord::new(self.next_unit_key(), job_id, new, (id, inputs), now);
                    unit.accepted_by = accepted_by;
                    unit.queue_deadline_ms = deadline_ms;
                    Insertion::Inserted(self.add_unit(unit, digest, now))
                }
            };
            insertions.push(insertion);
        }
        Ok(insertions)
    }

    fn next_unit_key(&self) -> UnitKey {
        UnitKey(next_number(self.units.len()))
    }

    fn add_unit(&mut self, unit: UnitRecord, inputs: Hash, now: Moment) -> UnitKey {
        let (key, digest) = (unit.key, unit.digest(&inputs));
        let by = unit.accepted_by.map_or_else(|| By::whom(actor::CALLER), By::from);
        self.names.insert((unit.job_id, unit.id.to_string()), key);
        self.units.insert(key, unit);
        let change = Change::Insert;
        self.record(
            Step { unit: key, attempt_number: None, change, from: None, by, seal: None, digest: Some(digest) },
            now,
        );
        key
    }

    pub(super) fn submit(
        &mut self,
        job_id: JobId,
        new: &NewUnit,
        claimant: &Claimant,
        slot: &Slot,
        now: Moment,
    ) -> Result<Submitted> {
        let (id, inputs) = rules::check_new_unit(new)?;
        rules::check_slot(slot)?;
        let terms = Terms::of(claimant, now)?;
        self.job(job_id)?;
        self.check_owner(terms.owner)?;

        let Some(found) = self.find(job_id, id.as_str()) else {
            let digest = inputs.digest;
            let mut unit = UnitRecord::new(self.next_unit_key(), job_id, new, (id, inputs), now);
            unit.accepted_by = Some(terms.owner);
            if unit.is_due(now) {
                self.check_take(terms.owner, slot)?;
            }
            let key = self.add_unit(unit, digest, now);
            return self.claim_if_due(key, slot, &terms, now);
        };
        if let Some(difference) = rules::difference(&found.content_hash, found.prompt_hash.as_ref(), &inputs) {
            return Err(rules::conflict(&found.id, difference));
        }
        if found.status.is_leased() {
            return Ok(Submitted::Running(Box::new(self.work_unit(found))));
        }
        if found.status.is_terminal() {
            return Ok(Submitted::Finished(Box::new(self.work_unit(found))));
        }
        let (key, is_due) = (found.key, found.is_due(now));
        if is_due {
            self.check_take(terms.owner, slot)?;
        }
        let unit = self.unit_mut(key);
        unit.accepted_by = Some(terms.owner);
        unit.queue_deadline_ms = None;
        self.add_prompt(key, new, &inputs, terms.owner, now);
        self.claim_if_due(key, slot, &terms, now)
    }

    /// If a unit that was there waits, it now waits for who accepts it.
    fn accept_existing(&mut self, key: UnitKey, new: &NewUnit, inputs: &Inputs, intake: Intake, now: Moment) {
        let Intake::AcceptedBy(owner) = intake else { return };
        let unit = self.unit_mut(key);
        if unit.status != UnitStatus::Pending {
            return;
        }
        let running_ms = unit.queue_deadline_ms.filter(|_| unit.accepted_by == Some(owner));
        let deadline_ms = running_ms.or(rules::queue_deadline_ms(new.queue_timeout, intake, now));
        unit.queue_deadline_ms = deadline_ms.filter(|_| unit.attempt_count == 0);
        unit.accepted_by = Some(owner);
        self.add_prompt(key, new, inputs, owner, now);
    }

    /// Stores the prompt of a waiting unit that had none.
    fn add_prompt(&mut self, key: UnitKey, new: &NewUnit, inputs: &Inputs, owner: OwnerId, now: Moment) {
        let unit = self.unit_mut(key);
        if unit.prompt_hash.is_some() || inputs.prompt_hash.is_none() {
            return;
        }
        unit.prompt.clone_from(&new.prompt);
        unit.prompt_hash = inputs.prompt_hash;
        let digest = unit.digest(&inputs.digest);
        let step = Step::new(key, Change::AddPrompt, UnitStatus::Pending, By::from(owner));
        self.record(Step { digest: Some(digest), ..step }, now);
    }

    fn claim_if_due(&mut self, key: UnitKey, slot: &Slot, terms: &Terms, now: Moment) -> Result<Submitted> {
        let unit = self.unit(key);
        let expected = self.expect(unit, terms);
        match expected {
            Ok(expected) if unit.is_due(now) => {
                let claim = self.grant(key, slot, terms, expected, now)?;
                Ok(Submitted::Claimed(Box::new(claim)))
            }
            // It is not its time, or it may cost more than is left.
            Ok(_) | Err(_) => Ok(Submitted::Waiting(Box::new(self.work_unit(unit)))),
        }
    }

    pub(super) fn claim(&mut self, request: &ClaimRequest, now: Moment) -> Result<Vec<Claim>> {
        request.slots.iter().try_for_each(rules::check_slot)?;
        let terms = Terms::of(&request.claimant, now)?;
        self.job(request.job_id)?;
        self.check_owner(terms.owner)?;
        self.check_takes(terms.owner, &request.slots)?;

        self.end_pauses(request.job_id, now);
        let wishes = Wishes::of(&request.slots);
        let mut next = self.candidates(request, &wishes, now);
        let mut lost = self.to_take_back(request, &wishes, wishes.any - next.len(), now);
        // Taken back, they wait for anybody and are due at once; so each is granted that has something to send.
        next.extend(lost.iter().copied().filter(|&key| self.has_prompt(self.unit(key))));
        self.sort_by_turn(&mut next);

        let mut named = BTreeMap::new();
        for unit in wishes.named.iter().filter_map(|key| self.units.get(key)) {
            let is_lost = self.is_to_take_back(unit, request, now) && self.has_prompt(unit);
            if is_lost {
                lost.push(unit.key);
            }
            if is_lost || self.is_candidate(unit, request, now) {
                named.insert(unit.key, unit.key);
            }
        }

        lost.sort_unstable();
        for &key in &lost {
            self.lose(key, By::new(actor::SWEEP, loss::LEASE_RAN_OUT), now);
        }
        let mut claims = Vec::new();
        for (key, slot) in rules::deal(&request.slots, named, next) {
            match self.expect(self.unit(key), &terms) {
                Ok(expected) => claims.push(self.grant(key, slot, &terms, expected, now)?),
                Err(over) if claims.is_empty() && lost.is_empty() => return Err(RepositoryError::over_budget(over)),
                Err(_) => break,
            }
        }
        Ok(claims)
    }

    /// What an attempt at a unit is expected to cost, if a budget counts and has as much left.
    fn expect(&self, unit: &UnitRecord, terms: &Terms) -> std::result::Result<Option<Money>, OverBudget> {
        let holders = [AccountHolder::Job(unit.job_id), AccountHolder::Owner(terms.owner)];
        let accounts: Vec<Account> = holders.into_iter().filter_map(|holder| self.account(holder)).collect();
        let expected = limits::expected(&accounts, &terms.expectation, self.prompt_bytes(unit));
        match expected.and_then(|expected| limits::refusing(&accounts, expected)) {
            None => Ok(expected),
            Some(over) => Err(over),
        }
    }

    /// About how long the prompt is that will be sent.
    fn prompt_bytes(&self, unit: &UnitRecord) -> u64 {
        let job_template = self.jobs.get(&unit.job_id).and_then(|job| job.template.as_ref());
        let payload = unit.payload.as_ref().map_or(0, Vec::len);
        let rendered = |template: &String| template.len() + payload;
        let of_template = unit.template.as_ref().or(job_template).map_or(0, rendered);
        unit.prompt.as_ref().map_or(of_template, String::len) as u64
    }

    /// Whether the request may have a unit at once.
    fn is_candidate(&self, unit: &UnitRecord, request: &ClaimRequest, now: Moment) -> bool {
        let may_have = match unit.accepted_by {
            Some(accepted_by) => accepted_by == request.claimant.owner,
            None => request.scope.is_open() && self.has_prompt(unit),
        };
        unit.job_id == request.job_id && unit.is_claimable(now) && may_have
    }

    /// The units that the request may have at once and that no slot is for, whose turn it is first.
    fn candidates(&self, request: &ClaimRequest, wishes: &Wishes, now: Moment) -> Vec<UnitKey> {
        let is_free = |unit: &&UnitRecord| {
            let is_meant = request.scope != Scope::Open || unit.accepted_by.is_none();
            is_meant && !wishes.named.contains(&unit.key)
        };
        let candidates = self.units.values().filter(|unit| self.is_candidate(unit, request, now)).filter(is_free);
        // Thousands may wait where one is wanted: only those are sorted.
        let mut turns: Vec<_> = candidates.map(|unit| (Reverse(unit.priority), unit.key)).collect();
        if wishes.any < turns.len() {
            turns.select_nth_unstable(wishes.any);
            turns.truncate(wishes.any);
        }
        turns.sort_unstable();
        turns.into_iter().map(|(_, key)| key).collect()
    }

    /// Whether the lease of a unit ran out, and the request may have the unit again.
    fn is_to_take_back(&self, unit: &UnitRecord, request: &ClaimRequest, now: Moment) -> bool {
        let (scope, claimant) = (request.scope, request.claimant.owner);
        let may_take_back = |holder: &&Holder| scope.takes_back(holder.owner, claimant);
        let ran_out = unit.holder.as_ref().filter(may_take_back).is_some_and(|holder| holder.until_ms <= now.boot_ms);
        unit.job_id == request.job_id && ran_out && unit.standing().lost().change == Change::Expire
    }

    /// The units whose leases ran out, which can be claimed again and which no slot is for.
    fn to_take_back(&self, request: &ClaimRequest, wishes: &Wishes, limit: usize, now: Moment) -> Vec<UnitKey> {
        let ran_out = self.units.values().filter(|unit| self.is_to_take_back(unit, request, now));
        ran_out.map(|unit| unit.key).filter(|key| !wishes.named.contains(key)).take(limit).collect()
    }

    pub(super) fn backlog(&self, job_id: JobId, owner: OwnerId, limit: usize, now: Moment) -> Result<Backlog> {
        self.job(job_id)?;
        let units = || self.units.values().filter(|unit| unit.job_id == job_id);
        let waits = |unit: &&UnitRecord| unit.status == UnitStatus::Pending;
        let open = || units().filter(waits).filter(|unit| unit.accepted_by.is_none() && self.has_prompt(unit));
        let has = |unit: &UnitRecord| match &unit.holder {
            Some(holder) => Some(holder.owner),
            None => unit.accepted_by.filter(|_| unit.status == UnitStatus::Pending),
        };
        Ok(Backlog {
            due: open().filter(|unit| unit.is_due(now)).take(limit).count(),
            is_with_others: units().filter_map(has).any(|other| other != owner),
            next_due: open().filter(|unit| !unit.is_due(now)).filter_map(|unit| Some(unit.pause?.not_before)).min(),
        })
    }

    /// Whether an executor that knows nothing but the unit has something to send.
    fn has_prompt(&self, unit: &UnitRecord) -> bool {
        let job_template = self.jobs.get(&unit.job_id).and_then(|job| job.template.as_ref());
        unit.prompt.is_some() || unit.template.is_some() || job_template.is_some()
    }

    /// Checks that a worker can take a unit now.
    fn check_take(&self, owner: OwnerId, slot: &Slot) -> Result<()> {
        let worker = self.workers.get(&(owner, slot.worker_id.clone()));
        rules::take(slot, worker.map(|worker| (worker.status, worker.load))).map(drop)
    }

    /// Forgets the pauses of a job's units that are due.
    fn end_pauses(&mut self, job_id: JobId, now: Moment) {
        for unit in self.units.values_mut().filter(|unit| unit.job_id == job_id) {
            unit.pause = unit.pause.filter(|pause| !pause.is_over(now));
        }
    }

    /// Checks, on a copy, that the workers can take a unit for each slot.
    fn check_takes(&self, owner: OwnerId, slots: &[Slot]) -> Result<()> {
        let of_owner = self.workers.values().filter(|worker| worker.owner == owner);
        let mut workers: BTreeMap<&WorkerId, _> =
            of_owner.map(|worker| (&worker.id, (worker.status, worker.load))).collect();
        for slot in slots {
            let before = workers.get(&slot.worker_id).copied();
            let status = rules::take(slot, before)?;
            workers.insert(&slot.worker_id, (status, before.map_or(1, |(_, load)| load + 1)));
        }
        Ok(())
    }

    /// Gives a waiting unit to a worker that was found able to take it, and starts it if the terms say so.
    fn grant(
        &mut self,
        key: UnitKey,
        slot: &Slot,
        terms: &Terms,
        expected: Option<Money>,
        now: Moment,
    ) -> Result<Claim> {
        self.load_worker(key, terms.owner, slot, now)?;
        let holder = Holder { owner: terms.owner, worker_id: slot.worker_id.clone(), until_ms: terms.until_ms };

        let unit = self.unit_mut(key);
        unit.status = UnitStatus::Assigned;
        unit.fence += 1;
        unit.attempt_count += 1;
        unit.forget_waiting();
        unit.accepted_by = Some(terms.owner);
        unit.holder = Some(holder.clone());
        let attempt = unit.current_attempt();
        let mut record = AttemptRecord::new(unit, &holder, terms.token, now);
        record.attempt.expected = expected;
        self.attempts.insert(attempt, record);
        self.change_accounts(attempt, |account, expected| account.reserve(expected));

        let step = Step::new(key, Change::Claim, UnitStatus::Pending, By::from(terms.owner));
        self.record(Step { attempt_number: Some(attempt.number), ..step }, now);
        let claim = self.claim_of(key).expect("it was just leased");
        let Some(beginning) = terms.beginning.as_ref().filter(|_| claim.unit.prompt.is_some()) else {
            return Ok(claim);
        };
        self.start(&claim.lease, beginning, now)?;
        Ok(self.claim_of(key).expect("a start keeps the lease"))
    }

    /// Adds one to the load of a worker, which comes into being if need be.
    fn load_worker(&mut self, key: UnitKey, owner: OwnerId, slot: &Slot, now: Moment) -> Result<()> {
        let worker_key = (owner, slot.worker_id.clone());
        let found = self.workers.get(&worker_key);
        let status = rules::take(slot, found.map(|worker| (worker.status, worker.load)))?;
        let job_id = self.unit(key).job_id;
        let worker = self.workers.entry(worker_key).or_insert_with(|| new_worker(owner, job_id, slot, now));
        worker.status = status;
        worker.capacity = slot.capacity;
        worker.load += 1;
        worker.current_unit = Some(key);
        worker.last_activity_at = now.wall;
        Ok(())
    }
}

fn is_same(found: &UnitRecord, inputs: &Inputs) -> bool {
    rules::difference(&found.content_hash, found.prompt_hash.as_ref(), inputs).is_none()
}

/// A worker that has done nothing yet.
pub(super) fn new_worker(owner: OwnerId, job_id: JobId, slot: &Slot, now: Moment) -> Worker {
    Worker {
        owner,
        id: slot.worker_id.clone(),
        job_id,
        status: WorkerStatus::Starting,
        capacity: slot.capacity,
        load: 0,
        current_unit: None,
        units_completed: 0,
        units_failed: 0,
        total_time: Duration::ZERO,
        created_at: now.wall,
        last_activity_at: now.wall,
    }
}
