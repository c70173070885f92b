//! What happens around the executions: leases are renewed and taken back, people interfere,
//! owners and workers come and go, and old contents are removed.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::intake::new_worker;
use super::read::is_meant;
use super::store::{Holder, Step, Store, UnitRecord, next_number};
use crate::attempt::{AttemptResult, Failure, FailureKind};
use crate::clock::{Moment, whole_milliseconds};
use crate::job::JobId;
use crate::lease::{Held, NewOwner, Owner, OwnerId, OwnerState};
use crate::limits::AccountHolder;
use crate::repository::rules::{self, End, Silence};
use crate::repository::{
    By, CancelAnswer, PURGE_LIMIT, Purged, RepositoryError, Result, Slot, Staleness, Swept, UnitFilter, actor, loss,
};
use crate::unit::{Change, UnitKey, UnitStatus};
use crate::worker::{Worker, WorkerChange, WorkerStatus};

impl Store {
    pub(super) fn renew(&mut self, owner: OwnerId, ttl: Duration, now: Moment) -> Result<Vec<Held>> {
        let ttl_ms = rules::check_ttl(ttl)?;
        self.check_owner(owner)?;
        if let Some(record) = self.owners.get_mut(&owner) {
            record.heartbeat_at = now.wall;
            record.lease = ttl;
        }
        self.heartbeats.insert(owner, now.boot_ms);
        let mut held = Vec::new();
        for unit in self.units.values_mut() {
            let Some(holder) = unit.holder.as_mut().filter(|holder| holder.owner == owner) else { continue };
            holder.until_ms = now.boot_ms.saturating_add(ttl_ms);
            let is_cancel_requested = unit.status == UnitStatus::CancelRequested;
            held.push(Held { unit: unit.key, fence: unit.fence, is_cancel_requested });
        }
        Ok(held)
    }

    pub(super) fn expire(&mut self, limit: usize, boot_id: &str, now: Moment) -> Vec<Swept> {
        let losses = self.owner_losses(boot_id);
        let mut swept = Vec::new();
        for (key, staleness) in self.abandoned(&losses, limit, now) {
            swept.push(self.lose(key, By::new(actor::SWEEP, staleness.reason()), now));
        }
        for key in self.waited_too_long(limit - swept.len(), now) {
            swept.push(self.time_out_in_queue(key, now));
        }
        let silent = self.silent_owners(boot_id, &losses, now);
        for &owner in silent.keys() {
            self.leave_to_anybody(owner);
        }
        let silent_for_good = silent.iter().filter(|&(_, &silence)| silence == Silence::ForGood);
        for &owner in losses.keys().chain(silent_for_good.map(|(owner, _)| owner)) {
            if self.leased(|_, holder| holder.owner == owner).next().is_none() {
                self.retire(owner, now);
            }
        }
        swept
    }

    /// The owners of which nothing was heard for too long, though nobody knows what became of them.
    fn silent_owners(
        &self,
        boot_id: &str,
        losses: &BTreeMap<OwnerId, Staleness>,
        now: Moment,
    ) -> BTreeMap<OwnerId, Silence> {
        let silence = |owner: &Owner| rules::owner_silence(owner, self.heartbeats[&owner.id], boot_id, now);
        let others = self.owners.values().filter(|owner| !losses.contains_key(&owner.id));
        others.filter_map(|owner| Some((owner.id, silence(owner)?))).collect()
    }

    /// The leased units that nobody looks after, and why.
    fn abandoned(&self, losses: &BTreeMap<OwnerId, Staleness>, limit: usize, now: Moment) -> Vec<(UnitKey, Staleness)> {
        let staleness = |unit: &UnitRecord| {
            let holder = unit.holder.as_ref()?;
            rules::staleness(losses.get(&holder.owner).copied(), holder.until_ms, now)
        };
        self.units.values().filter_map(|unit| Some((unit.key, staleness(unit)?))).take(limit).collect()
    }

    fn waited_too_long(&self, limit: usize, now: Moment) -> Vec<UnitKey> {
        let has_waited_too_long = |unit: &&UnitRecord| {
            let is_past = unit.queue_deadline_ms.is_some_and(|deadline_ms| deadline_ms <= now.boot_ms);
            unit.status == UnitStatus::Pending && is_past
        };
        self.units.values().filter(has_waited_too_long).map(|unit| unit.key).take(limit).collect()
    }

    fn time_out_in_queue(&mut self, key: UnitKey, now: Moment) -> Swept {
        let change = Change::QueueTimeout;
        let unit = self.unit_mut(key);
        unit.status = UnitStatus::Failed;
        unit.failure = Some(Failure::new(FailureKind::QUEUE_TIMEOUT, rules::QUEUE_TIMEOUT_MESSAGE));
        unit.completed_at = Some(now.wall);
        unit.forget_waiting();
        let (job_id, unit_id, status) = (unit.job_id, unit.id.clone(), unit.status);
        self.record(Step::new(key, change, UnitStatus::Pending, By::whom(actor::SWEEP)), now);
        Swept { job_id, unit: key, unit_id, attempt_number: None, change, status }
    }

    pub(super) fn cancel(&mut self, job_id: JobId, id: &str, by: &By, now: Moment) -> Result<(UnitKey, CancelAnswer)> {
        let unit = self.unit_named(job_id, id)?;
        let (key, from) = (unit.key, unit.status);
        let Some(to) = from.after(Change::Cancel) else {
            let was_requested = from == UnitStatus::CancelRequested;
            let answer = if was_requested { CancelAnswer::AlreadyRequested } else { CancelAnswer::AlreadyEnded(from) };
            return Ok((key, answer));
        };
        let attempt_number = from.is_leased().then_some(unit.attempt_count);
        let unit = self.unit_mut(key);
        unit.status = to;
        if to == UnitStatus::Cancelled {
            unit.completed_at = Some(now.wall);
            unit.forget_waiting();
        }
        let step = Step::new(key, Change::Cancel, from, by.clone());
        self.record(Step { attempt_number, ..step }, now);
        Ok((key, if to == UnitStatus::Cancelled { CancelAnswer::Cancelled } else { CancelAnswer::Requested }))
    }

    /// Only as it was `read`, if it was.
    pub(super) fn requeue(&mut self, job_id: JobId, id: &str, read: Option<End>, by: &By, now: Moment) -> Result<()> {
        let unit = self.unit_named(job_id, id)?;
        let (key, from) = (unit.key, unit.status);
        let end = End { status: from, fence: unit.fence, completed_at: unit.completed_at };
        let to = rules::requeued(&unit.id, end, read, unit.purged_at.is_some())?;

        let unit = self.unit_mut(key);
        unit.status = to;
        unit.attempts_used = 0;
        unit.releases = 0;
        unit.completed_at = None;
        unit.failure = None;
        unit.accepted_by = None;
        unit.forget_waiting();
        self.record(Step::new(key, Change::Requeue, from, by.clone()), now);
        Ok(())
    }

    pub(super) fn register_owner(&mut self, owner: &NewOwner, now: Moment) -> OwnerId {
        if let Some(found) = self.owners.values().find(|found| found.instance == owner.instance) {
            return found.id;
        }
        let id = OwnerId(next_number(self.owners.len()));
        let NewOwner { process, instance, label, lease, host, budget } = owner.clone();
        let owner = Owner {
            id,
            process,
            instance,
            label,
            registered_at: now.wall,
            heartbeat_at: now.wall,
            lease,
            ended_at: None,
            host,
            state: None,
            told_at: None,
            budget,
        };
        self.owners.insert(id, owner);
        self.set_budget(AccountHolder::Owner(id), budget);
        self.heartbeats.insert(id, now.boot_ms);
        id
    }

    pub(super) fn tell(&mut self, owner: OwnerId, state: &OwnerState, now: Moment) -> Result<()> {
        self.check_owner(owner)?;
        if let Some(record) = self.owners.get_mut(&owner) {
            record.state = Some(state.clone());
            record.told_at = Some(now.wall);
        }
        Ok(())
    }

    pub(super) fn let_go(&mut self, owner: OwnerId) -> Result<u64> {
        // One that has ended has nothing that waits.
        if !self.owners.contains_key(&owner) {
            return Err(RepositoryError::UnknownOwner(owner));
        }
        Ok(self.leave_to_anybody(owner))
    }

    /// What an owner accepted and that waits is for anybody, as long as it takes. Tells how many.
    fn leave_to_anybody(&mut self, owner: OwnerId) -> u64 {
        let is_its = |unit: &&mut UnitRecord| unit.status == UnitStatus::Pending && unit.accepted_by == Some(owner);
        let mut count = 0;
        for unit in self.units.values_mut().filter(is_its) {
            unit.accepted_by = None;
            unit.queue_deadline_ms = None;
            count += 1;
        }
        count
    }

    pub(super) fn end_owner(&mut self, owner: OwnerId, now: Moment) -> Result<()> {
        let found = self.owners.get(&owner).ok_or(RepositoryError::UnknownOwner(owner))?;
        if found.ended_at.is_none() {
            self.retire(owner, now);
        }
        Ok(())
    }

    /// Ends an owner that has not ended: what it holds is lost, what it accepted waits for anybody.
    fn retire(&mut self, owner: OwnerId, now: Moment) {
        let held: Vec<UnitKey> = self.leased(|_, holder| holder.owner == owner).collect();
        for key in held {
            self.lose(key, By::new(owner.to_string(), loss::OWNER_ENDED), now);
        }
        self.leave_to_anybody(owner);
        let of_owner = self.workers.values_mut().filter(|worker| worker.owner == owner);
        for worker in of_owner.filter(|worker| !worker.status.is_ended()) {
            worker.status = WorkerStatus::Dead;
            worker.load = 0;
            worker.current_unit = None;
            worker.last_activity_at = now.wall;
        }
        if let Some(record) = self.owners.get_mut(&owner) {
            record.ended_at = Some(now.wall);
            (record.state, record.told_at) = (None, None);
        }
    }

    pub(super) fn change_worker(
        &mut self,
        owner: OwnerId,
        job_id: JobId,
        slot: &Slot,
        change: WorkerChange,
        now: Moment,
    ) -> Result<Worker> {
        rules::check_slot(slot)?;
        rules::check_worker_change(change)?;
        self.job(job_id)?;
        self.check_owner(owner)?;
        let key = (owner, slot.worker_id.clone());
        let before = self.workers.get(&key).map(|worker| worker.status);
        let status = rules::changed_worker(&slot.worker_id, before, change)?;

        if status.is_ended() {
            self.resolve_leases(owner, slot, change, now);
        }
        let worker = self.workers.entry(key).or_insert_with(|| new_worker(owner, job_id, slot, now));
        worker.status = status;
        worker.last_activity_at = now.wall;
        Ok(worker.clone())
    }

    /// Gives back what a worker holds that terminates, and takes it from one that died.
    fn resolve_leases(&mut self, owner: OwnerId, slot: &Slot, change: WorkerChange, now: Moment) {
        let is_its = |holder: &Holder| holder.owner == owner && holder.worker_id == slot.worker_id;
        let held: Vec<UnitKey> = self.leased(|_, holder| is_its(holder)).collect();
        for key in held {
            if change == WorkerChange::Terminate {
                let closing = self.unit(key).standing().released(None);
                self.close(key, closing, By::new(owner.to_string(), loss::WORKER_TERMINATED), now);
            } else {
                self.lose(key, By::new(owner.to_string(), loss::WORKER_DIED), now);
            }
        }
    }

    pub(super) fn purge(&mut self, filter: &UnitFilter, before: DateTime<Utc>, by: &By, now: Moment) -> Result<Purged> {
        if let Some(job_id) = filter.job_id {
            self.job(job_id)?;
        }
        let before = whole_milliseconds(before);
        let ended_before = |unit: &&UnitRecord| unit.completed_at.is_some_and(|completed_at| completed_at < before);
        let ended = self.units.values().filter(ended_before).filter(|unit| unit.purged_at.is_none());
        let to_purge = ended.filter(|unit| is_meant(filter, unit));
        let mut to_purge: Vec<_> = to_purge.map(|unit| (unit.completed_at, unit.key)).collect();
        to_purge.sort_unstable();
        let keys = to_purge.into_iter().map(|(_, key)| key).take(PURGE_LIMIT);

        let mut purged = Purged::default();
        for key in keys {
            purged.units += 1;
            purged.messages += self.purge_attempts(key);
            let unit = self.unit_mut(key);
            unit.payload = None;
            unit.prompt = None;
            unit.failure = unit.failure.as_ref().map(Failure::without_message);
            unit.purged_at = Some(now.wall);
            let step = Step::new(key, Change::Purge, unit.status, by.clone());
            self.record(step, now);
        }
        Ok(purged)
    }

    /// Removes what the attempts of a unit left, except for the hashes; counts the messages.
    fn purge_attempts(&mut self, unit: UnitKey) -> u64 {
        let mut message_count = 0;
        for record in self.attempts_of_mut(unit) {
            for message in &mut record.messages {
                message_count += u64::from(message.content.take().is_some());
            }
            record.checkpoint = None;
            let purged = Some(record.result.hashes(&record.attempt));
            record.attempt.failure = record.attempt.failure.as_ref().map(Failure::without_message);
            let output_files = std::mem::take(&mut record.result.output_files);
            record.result = AttemptResult { output_files, purged, ..AttemptResult::default() };
        }
        message_count
    }
}
