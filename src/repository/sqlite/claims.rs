//! Claims: who gets which units, and what the claimant is told of them.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use rusqlite::{Connection, OptionalExtension, params};

use super::book::{Answer, Book, Entry, Open};
use super::read;
use super::rows::{named, unit_id, worker_id};
use crate::attempt::Attempt;
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::{Claim, Lease, OwnerId};
use crate::money::Money;
use crate::repository::prepared::{Grant, HotUnit, Terms};
use crate::repository::rules::{self, Wishes};
use crate::repository::{ClaimRequest, RepositoryError, Scope, Slot};
use crate::unit::{Change, UnitKey, UnitStatus};
use crate::worker::{WorkerId, WorkerStatus};

impl Book<'_> {
    pub(super) fn claim(&mut self, now: Moment, request: &ClaimRequest, terms: &Terms) -> Answer<Vec<Claim>> {
        self.job_has_template(request.job_id)?;
        self.check_owner(terms.owner)?;
        self.check_slots(terms.owner, &request.slots)?;
        self.make_due_units_ready(now, request.job_id)?;
        let wishes = Wishes::of(&request.slots);
        let mut named = self.named_units(now, request, &wishes)?;
        let mut next = self.candidates(now, request, &wishes)?;
        let ran_out = self.ran_out(now, request, &wishes, &named, wishes.any - next.len())?;
        let has_taken_back = !ran_out.is_empty();
        if has_taken_back {
            self.take_back(now, ran_out)?;
            named = self.named_units(now, request, &wishes)?;
            next = self.candidates(now, request, &wishes)?;
        }
        let mut accounts = self.accounts(request.job_id, terms.owner)?;
        let mut claims = Vec::with_capacity(named.len() + next.len());
        for (unit, slot) in rules::deal(&request.slots, named, next) {
            let expected = match self.expect(&accounts, terms, || self.prompt_bytes(unit.key))? {
                Ok(expected) => expected,
                Err(over) if claims.is_empty() && !has_taken_back => {
                    return Err(RepositoryError::over_budget(over).into());
                }
                Err(_) => break,
            };
            self.reserve(&mut accounts, expected)?;
            let lease = self.grant(now, unit, terms, slot, expected)?;
            let unit_id = lease.unit_id.clone();
            match read::claim_of(self.connection, lease) {
                Ok(claim) => claims.push(claim),
                // It stays claimed and will be lost, so that in the end it fails instead of barring the way for ever.
                Err(error @ RepositoryError::Corrupt { .. }) => log::error!("unit {unit_id}: claimed, but {error}"),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(claims)
    }

    /// Moves units of a job whose time has come into the index that claims are served from.
    ///
    /// A unit that is further away than it ever was is due too: the calendar was set back.
    fn make_due_units_ready(&mut self, now: Moment, job_id: JobId) -> Answer<()> {
        let now_ms = now.wall.timestamp_millis();
        // Looking is cheap; an update of any number of rows is not, even if there is none.
        for (look, update) in [
            (
                "SELECT 1 FROM work_units WHERE not_before IS NOT NULL AND job_id = ?1 AND not_before <= ?2 LIMIT 1",
                "UPDATE work_units
                 SET not_before = NULL, delay_ms = NULL
                 WHERE not_before IS NOT NULL AND job_id = ?1 AND not_before <= ?2",
            ),
            (
                "SELECT 1 FROM work_units
                 WHERE not_before IS NOT NULL AND not_before - delay_ms > ?2 AND +job_id = ?1 LIMIT 1",
                "UPDATE work_units
                 SET not_before = NULL, delay_ms = NULL
                 WHERE not_before IS NOT NULL AND not_before - delay_ms > ?2 AND +job_id = ?1",
            ),
        ] {
            if self.connection.prepare_cached(look)?.exists([job_id.0, now_ms])? {
                self.connection.prepare_cached(update)?.execute([job_id.0, now_ms])?;
            }
        }
        Ok(())
    }

    /// The units that slots are for, as far as they can be claimed, be it that their leases ran out and are taken back first.
    fn named_units(&self, now: Moment, request: &ClaimRequest, wishes: &Wishes) -> Answer<BTreeMap<UnitKey, HotUnit>> {
        let mut units = BTreeMap::new();
        for &key in &wishes.named {
            units.extend(self.named_unit(now, request, key)?.map(|unit| (key, unit)));
        }
        Ok(units)
    }

    /// The same conditions as of those that are next, and of those that are taken back, for one unit.
    fn named_unit(&self, now: Moment, request: &ClaimRequest, key: UnitKey) -> Answer<Option<HotUnit>> {
        let (job_id, owner, is_open) = (request.job_id.0, request.claimant.owner.0, request.scope.is_open());
        let found = self.units(
            "WHERE u.key = ?1 AND +u.job_id = ?2
               AND ((u.status = 'PENDING' AND u.not_before IS NULL
                     AND (u.accepted_by = ?3 OR (?4 AND u.accepted_by IS NULL AND u.has_prompt))
                     AND (u.queue_deadline_boot_ms IS NULL OR u.queue_deadline_boot_ms > ?5))
                    OR (?4 AND u.status IN ('ASSIGNED', 'PROCESSING') AND u.lease_until_boot_ms <= ?5
                        AND u.lease_owner IS NOT ?6 AND u.attempts_used < u.max_retries AND u.has_prompt))",
            params![key.0, job_id, owner, is_open, now.boot_ms, spared(request)],
        )?;
        Ok(found.into_iter().next())
    }

    /// Units whose leases ran out: those that slots are for, and `missing` others for the slots that take any.
    fn ran_out(
        &self,
        now: Moment,
        request: &ClaimRequest,
        wishes: &Wishes,
        named: &BTreeMap<UnitKey, HotUnit>,
        missing: usize,
    ) -> Answer<Vec<HotUnit>> {
        let mut units: Vec<HotUnit> = named.values().filter(|unit| unit.lease.is_some()).cloned().collect();
        if missing > 0 && request.scope.is_open() {
            let others = self.to_take_back(now, request, wishes.to_look_at(missing))?;
            units.extend(others.into_iter().filter(|unit| !wishes.named.contains(&unit.key)).take(missing));
        }
        Ok(units)
    }

    /// The units that can be claimed and that no slot is for, best first, at most one for each slot that takes any.
    fn candidates(&self, now: Moment, request: &ClaimRequest, wishes: &Wishes) -> Answer<Vec<HotUnit>> {
        if wishes.any == 0 {
            return Ok(Vec::new());
        }
        let limit = wishes.to_look_at(wishes.any);
        let accepted = |owner| self.ready_units(now, request, owner, limit);
        let mut units = match request.scope {
            Scope::Accepted => accepted(Some(request.claimant.owner))?,
            Scope::Open => accepted(None)?,
            Scope::Pending => [accepted(Some(request.claimant.owner))?, accepted(None)?].concat(),
        };
        units.sort_by_key(|unit| (Reverse(unit.priority), unit.key));
        units.retain(|unit| !wishes.named.contains(&unit.key));
        units.truncate(wishes.any);
        Ok(units)
    }

    fn ready_units(
        &self,
        now: Moment,
        request: &ClaimRequest,
        accepted_by: Option<OwnerId>,
        limit: usize,
    ) -> Answer<Vec<HotUnit>> {
        let (job_id, accepted_by) = (request.job_id.0, accepted_by.map(|owner| owner.0));
        self.units(
            "WHERE u.status = 'PENDING' AND u.not_before IS NULL
               AND u.job_id = ?1 AND u.accepted_by IS ?2
               AND (u.has_prompt OR u.accepted_by IS NOT NULL)
               AND (u.queue_deadline_boot_ms IS NULL OR u.queue_deadline_boot_ms > ?3)
             ORDER BY u.priority DESC, u.key
             LIMIT ?4",
            params![job_id, accepted_by, now.boot_ms, i64::try_from(limit).unwrap_or(i64::MAX)],
        )
    }

    /// PENDING → ASSIGNED, or on to PROCESSING at once. The slot was checked.
    pub(super) fn grant(
        &mut self,
        now: Moment,
        unit: HotUnit,
        terms: &Terms,
        slot: &Slot,
        expected: Option<Money>,
    ) -> Answer<Lease> {
        // Only who starts at once needs to know.
        let has_own_prompt = terms.beginning.is_some() && self.has_own_prompt(unit.key)?;
        let grant = Grant::of(unit, terms, slot, has_own_prompt, expected);
        let mut update = self.connection.prepare_cached(
            "UPDATE work_units
             SET status = ?7, fence = ?2, attempt_count = ?3, accepted_by = ?4, not_before = NULL,
                 delay_ms = NULL, queue_deadline_boot_ms = NULL, lease_owner = ?4, lease_worker = ?5,
                 lease_until_boot_ms = ?6
             WHERE key = ?1",
        )?;
        update.execute(params![
            grant.unit.key.0,
            grant.unit.fence,
            grant.unit.attempt_count,
            terms.owner.0,
            slot.worker_id.as_str(),
            terms.until_ms,
            grant.unit.status.name(),
        ])?;
        self.begin_attempt(now, grant)
    }

    /// Whether there is something to send before anything is rendered.
    fn has_own_prompt(&self, unit: UnitKey) -> Answer<bool> {
        let mut select =
            self.connection.prepare_cached("SELECT 1 FROM unit_inputs WHERE unit_key = ?1 AND prompt IS NOT NULL")?;
        Ok(select.exists([unit.0])?)
    }

    /// Writes what a claim leaves beside the row of its unit; and what a start does, if it is one too.
    pub(super) fn begin_attempt(&mut self, now: Moment, grant: Grant<'_>) -> Answer<Lease> {
        let lease = grant.lease();
        let Grant { unit, terms, slot, beginning, expected } = grant;
        let mut attempt =
            Attempt::claimed(lease.attempt(), lease.fence, lease.owner, lease.worker_id.clone(), now.wall);
        attempt.expected = expected;
        attempt.started_at = beginning.map(|_| now.wall);
        attempt.provenance = beginning.and_then(|beginning| beginning.provenance.clone());
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO attempts (unit_key, number, fence, owner_id, worker_id, claim_token, assigned_at, started_at,
                                   provenance, expected)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )?;
        let now_ms = now.wall.timestamp_millis();
        insert.execute(params![
            lease.unit.0,
            lease.attempt_number,
            lease.fence,
            lease.owner.0,
            lease.worker_id.as_str(),
            terms.token,
            now_ms,
            beginning.map(|_| now_ms),
            beginning.and_then(|beginning| beginning.provenance_json.as_deref()),
            expected.map(Money::nanos),
        ])?;
        self.take_on(now, &lease, slot)?;
        self.record(
            now,
            Entry {
                unit: lease.unit,
                attempt_number: Some(lease.attempt_number),
                fence: lease.fence,
                change: Change::Claim,
                from: Some(UnitStatus::Pending),
                to: UnitStatus::Assigned,
                actor: &lease.owner.to_string(),
                reason: None,
                conversation: None,
                digest: None,
            },
        )?;
        if let Some(beginning) = beginning {
            self.record_start(now, &lease, beginning)?;
        }
        self.open_attempt(Open { unit, attempt });
        Ok(lease)
    }

    /// Rejects slots whose workers cannot take as many units as they are offered for.
    pub(super) fn check_slots(&self, owner: OwnerId, slots: &[Slot]) -> Answer<()> {
        let mut workers: HashMap<&WorkerId, Option<(WorkerStatus, u32)>> = HashMap::new();
        for slot in slots {
            let worker = match workers.get(&slot.worker_id) {
                Some(worker) => *worker,
                None => self.worker_standing(owner, &slot.worker_id)?,
            };
            let status = rules::take(slot, worker)?;
            workers.insert(&slot.worker_id, Some((status, worker.map_or(0, |(_, load)| load) + 1)));
        }
        Ok(())
    }

    /// The status and load of a worker, if there is one.
    fn worker_standing(&self, owner: OwnerId, id: &WorkerId) -> Answer<Option<(WorkerStatus, u32)>> {
        let mut select =
            self.connection.prepare_cached("SELECT status, load FROM workers WHERE owner_id = ?1 AND id = ?2")?;
        let standing = select
            .query_row(params![owner.0, id.as_str()], |row| Ok((named(row, 0, WorkerStatus::from_name)?, row.get(1)?)));
        Ok(standing.optional()?)
    }

    /// Adds a unit to the load of a worker, which may be new. That it can take it was checked.
    fn take_on(&mut self, now: Moment, lease: &Lease, slot: &Slot) -> Answer<()> {
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO workers (owner_id, id, job_id, status, capacity, load, current_unit, created_at,
                                  last_activity_at)
             VALUES (?1, ?2, ?3, iif(?4 <= 1, 'BUSY', 'READY'), ?4, 1, ?5, ?6, ?6)
             ON CONFLICT (owner_id, id) DO UPDATE
             SET load = load + 1, capacity = ?4, status = iif(load + 1 >= ?4, 'BUSY', 'READY'), current_unit = ?5,
                 last_activity_at = ?6",
        )?;
        let now_ms = now.wall.timestamp_millis();
        let (owner, job, unit) = (lease.owner.0, lease.job_id.0, lease.unit.0);
        upsert.execute(params![owner, lease.worker_id.as_str(), job, slot.capacity, unit, now_ms])?;
        Ok(())
    }
}

/// The owner whose leases a request leaves alone, though they ran out.
pub(super) fn spared(request: &ClaimRequest) -> Option<i64> {
    let owner = request.claimant.owner;
    (!request.scope.takes_back(owner, owner)).then_some(owner.0)
}

/// The leases that a request was granted and that are still held, in the order in which they were.
pub(super) fn read_claimed(connection: &Connection, owner: OwnerId, token: i64) -> rusqlite::Result<Vec<Lease>> {
    let mut select = connection.prepare_cached(
        "SELECT u.job_id, u.id, u.key, u.attempt_count, u.fence, u.lease_worker, u.lease_until_boot_ms
         FROM work_units u
         JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
         WHERE u.lease_owner = ?1 AND a.claim_token = ?2
         ORDER BY u.priority DESC, u.key",
    )?;
    let leases = select.query_map([owner.0, token], |row| {
        Ok(Lease {
            job_id: JobId(row.get(0)?),
            unit_id: unit_id(row, 1)?,
            unit: UnitKey(row.get(2)?),
            attempt_number: row.get(3)?,
            fence: row.get(4)?,
            owner,
            worker_id: worker_id(row, 5)?,
            until_ms: row.get(6)?,
        })
    })?;
    leases.collect()
}
