//! Claims: who gets which units, and what the claimant is told of them.
//!
//! Writers take turns, so no two claims look for units at the same time. What somebody holds locked by hand is passed over rather
//! than waited for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use super::book::{Answer, Book, Entry};
use super::columns::{Columns, sql_limit};
use super::connection::{Connection, Read};
use super::granted;
use super::memory::Open;
use crate::attempt::Attempt;
use crate::job::JobId;
use crate::lease::{Claim, Lease, OwnerId};
use crate::money::Money;
use crate::repository::prepared::{Grant, HotUnit, Terms};
use crate::repository::rules::{self, Wishes};
use crate::repository::{ClaimRequest, RepositoryError, Scope, Slot};
use crate::unit::{Change, UnitKey, UnitStatus};
use crate::worker::{WorkerId, WorkerStatus};

impl Book<'_> {
    pub(super) fn claim(&mut self, request: &ClaimRequest, terms: &Terms) -> Answer<Vec<Claim>> {
        self.job_has_template(request.job_id)?;
        self.check_owner(terms.owner)?;
        self.check_slots(terms.owner, &request.slots)?;
        self.make_due_units_ready(request.job_id)?;
        let wishes = Wishes::of(&request.slots);
        let mut named = self.named_units(request, &wishes)?;
        let mut next = self.candidates(request, &wishes)?;
        let ran_out = self.ran_out(request, &wishes, &named, wishes.any - next.len())?;
        let has_taken_back = !ran_out.is_empty();
        if has_taken_back {
            self.take_back(ran_out)?;
            named = self.named_units(request, &wishes)?;
            next = self.candidates(request, &wishes)?;
        }
        let mut accounts = self.accounts(request.job_id, terms.owner)?;
        let mut leases = Vec::with_capacity(named.len() + next.len());
        for (unit, slot) in rules::deal(&request.slots, named, next) {
            let key = unit.key;
            let expected = match self.expect(&accounts, terms, |book| book.prompt_bytes(key))? {
                Ok(expected) => expected,
                Err(over) if leases.is_empty() && !has_taken_back => {
                    return Err(RepositoryError::over_budget(over).into());
                }
                Err(_) => break,
            };
            self.reserve(&mut accounts, expected)?;
            leases.push(self.grant(unit, terms, slot, expected)?);
        }
        self.claims_of(leases)
    }

    /// What a claimant needs to know of what it was granted. What cannot be read stays claimed and will be lost, so that in the end it
    /// fails instead of barring the way for ever.
    fn claims_of(&mut self, leases: Vec<Lease>) -> Answer<Vec<Claim>> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let connection = self.settled()?;
        match granted::claims_of(connection, leases.clone()) {
            Err(super::connection::Failure::Known(RepositoryError::Corrupt { .. })) => {}
            claims => return Ok(claims?),
        }
        let mut claims = Vec::new();
        for lease in leases {
            let unit_id = lease.unit_id.clone();
            match granted::claim_of(connection, lease) {
                Ok(claim) => claims.push(claim),
                Err(super::connection::Failure::Known(error @ RepositoryError::Corrupt { .. })) => {
                    log::error!("unit {unit_id}: claimed, but {error}");
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        Ok(claims)
    }

    /// Moves units of a job whose time has come into the indices that claims are served from.
    ///
    /// A unit that is further away than it ever was is due too: the calendar was set back.
    fn make_due_units_ready(&mut self, job_id: JobId) -> Answer<()> {
        self.execute(
            "UPDATE work_units
             SET not_before = NULL, delay_ms = NULL
             WHERE not_before IS NOT NULL AND job_id = $1 AND (not_before <= $2 OR not_before - delay_ms > $2)",
            &[&job_id.0, &self.now.wall.timestamp_millis()],
        )?;
        Ok(())
    }

    /// The units that slots are for, as far as they can be claimed, be it that their leases ran out and are taken back first.
    ///
    /// The same conditions as of those that are next, and of those that are taken back.
    fn named_units(&mut self, request: &ClaimRequest, wishes: &Wishes) -> Answer<BTreeMap<UnitKey, HotUnit>> {
        if wishes.named.is_empty() {
            return Ok(BTreeMap::new());
        }
        let keys: Vec<i64> = wishes.named.iter().map(|key| key.0).collect();
        let (job_id, owner, is_open) = (request.job_id.0, request.claimant.owner.0, request.scope.is_open());
        let units = self.units(
            "WHERE u.key = ANY($1) AND u.job_id = $2
               AND ((u.status = 'PENDING' AND u.not_before IS NULL
                     AND (u.accepted_by = $3 OR ($4 AND u.accepted_by IS NULL AND u.has_prompt))
                     AND (u.queue_deadline_lease_ms IS NULL OR u.queue_deadline_lease_ms > $5))
                    OR ($4 AND u.status IN ('ASSIGNED', 'PROCESSING') AND u.until_lease_ms <= $5
                        AND u.lease_owner IS DISTINCT FROM $6 AND u.attempts_used < u.max_retries AND u.has_prompt))
             FOR UPDATE SKIP LOCKED",
            &[&keys, &job_id, &owner, &is_open, &{ self.now.boot_ms }, &spared(request)],
        )?;
        Ok(units.into_iter().map(|unit| (unit.key, unit)).collect())
    }

    /// Units whose leases ran out: those that slots are for, and `missing` others for the slots that take any.
    fn ran_out(
        &mut self,
        request: &ClaimRequest,
        wishes: &Wishes,
        named: &BTreeMap<UnitKey, HotUnit>,
        missing: usize,
    ) -> Answer<Vec<HotUnit>> {
        let mut units: Vec<HotUnit> = named.values().filter(|unit| unit.lease.is_some()).cloned().collect();
        if missing > 0 && request.scope.is_open() {
            let others = self.leases_to_take_back(request, wishes.to_look_at(missing))?;
            units.extend(others.into_iter().filter(|unit| !wishes.named.contains(&unit.key)).take(missing));
        }
        Ok(units)
    }

    /// The units that can be claimed and that no slot is for, best first, at most one for each slot that takes any.
    fn candidates(&mut self, request: &ClaimRequest, wishes: &Wishes) -> Answer<Vec<HotUnit>> {
        if wishes.any == 0 {
            return Ok(Vec::new());
        }
        let limit = wishes.to_look_at(wishes.any);
        let mut units = match request.scope {
            Scope::Accepted => self.accepted_units(request, limit)?,
            Scope::Open => self.open_units(request, limit)?,
            Scope::Pending => [self.accepted_units(request, limit)?, self.open_units(request, limit)?].concat(),
        };
        units.sort_by_key(|unit| (Reverse(unit.priority), unit.key));
        units.retain(|unit| !wishes.named.contains(&unit.key));
        units.truncate(wishes.any);
        Ok(units)
    }

    fn accepted_units(&mut self, request: &ClaimRequest, limit: usize) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.status = 'PENDING' AND u.not_before IS NULL AND u.accepted_by = $2 AND u.job_id = $1
               AND (u.queue_deadline_lease_ms IS NULL OR u.queue_deadline_lease_ms > $3)
             ORDER BY u.priority DESC, u.key
             LIMIT $4
             FOR UPDATE SKIP LOCKED",
            &[&request.job_id.0, &request.claimant.owner.0, &{ self.now.boot_ms }, &sql_limit(limit)],
        )
    }

    fn open_units(&mut self, request: &ClaimRequest, limit: usize) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.status = 'PENDING' AND u.not_before IS NULL AND u.accepted_by IS NULL AND u.has_prompt
               AND u.job_id = $1
               AND (u.queue_deadline_lease_ms IS NULL OR u.queue_deadline_lease_ms > $2)
             ORDER BY u.priority DESC, u.key
             LIMIT $3
             FOR UPDATE SKIP LOCKED",
            &[&request.job_id.0, &{ self.now.boot_ms }, &sql_limit(limit)],
        )
    }

    /// PENDING → ASSIGNED, or on to PROCESSING at once. The slot was checked.
    pub(super) fn grant(
        &mut self,
        unit: HotUnit,
        terms: &Terms,
        slot: &Slot,
        expected: Option<Money>,
    ) -> Answer<Lease> {
        // Only who starts at once needs to know.
        let has_own_prompt = terms.beginning.is_some()
            && self.exists("SELECT 1 FROM unit_inputs WHERE unit_key = $1 AND prompt IS NOT NULL", &[&unit.key.0])?;
        let grant = Grant::of(unit, terms, slot, has_own_prompt, expected);
        self.execute(
            "UPDATE work_units
             SET status = $7, fence = $2, attempt_count = $3, accepted_by = $4, not_before = NULL,
                 delay_ms = NULL, queue_deadline_lease_ms = NULL, lease_owner = $4, lease_worker = $5,
                 until_lease_ms = $6
             WHERE key = $1",
            &[
                &grant.unit.key.0,
                &grant.unit.fence,
                &i64::from(grant.unit.attempt_count),
                &terms.owner.0,
                &slot.worker_id.as_str(),
                &terms.until_ms,
                &grant.unit.status.name(),
            ],
        )?;
        self.begin_attempt(grant)
    }

    /// Writes what a claim leaves beside the row of its unit; and what a start does, if it is one too.
    pub(super) fn begin_attempt(&mut self, grant: Grant<'_>) -> Answer<Lease> {
        let lease = grant.lease();
        let Grant { unit, terms, slot, beginning, expected } = grant;
        let now = self.now.wall;
        let mut attempt = Attempt::claimed(lease.attempt(), lease.fence, lease.owner, lease.worker_id.clone(), now);
        attempt.expected = expected;
        attempt.started_at = beginning.map(|_| now);
        attempt.provenance = beginning.and_then(|beginning| beginning.provenance.clone());
        let now_ms = now.timestamp_millis();
        self.execute(
            "INSERT INTO attempts (unit_key, number, fence, owner_id, worker_id, claim_token, assigned_at, started_at,
                                   provenance, expected)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)",
            &[
                &lease.unit.0,
                &i64::from(lease.attempt_number),
                &lease.fence,
                &lease.owner.0,
                &lease.worker_id.as_str(),
                &terms.token,
                &now_ms,
                &beginning.map(|_| now_ms),
                &beginning.and_then(|beginning| beginning.provenance_json.as_deref()),
                &expected.map(Money::nanos),
            ],
        )?;
        self.take_on(&lease, slot)?;
        self.record(Entry {
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
        });
        if let Some(beginning) = beginning {
            self.record_start(&lease, beginning);
        }
        self.open_attempt(Open { unit, attempt });
        Ok(lease)
    }

    /// Rejects slots whose workers cannot take as many units as they are offered for.
    pub(super) fn check_slots(&mut self, owner: OwnerId, slots: &[Slot]) -> Answer<()> {
        let names: Vec<&str> = slots.iter().map(|slot| slot.worker_id.as_str()).collect();
        let rows = self
            .rows("SELECT id, status, load FROM workers WHERE owner_id = $1 AND id = ANY($2)", &[&owner.0, &names])?;
        let standing = |row: &postgres::Row| {
            Ok((row.worker_id(0)?, (row.named(1, WorkerStatus::from_name)?, row.count::<u32>(2)?)))
        };
        let mut workers = rows.iter().map(standing).collect::<Read<HashMap<WorkerId, (WorkerStatus, u32)>>>()?;
        for slot in slots {
            let worker = workers.get(&slot.worker_id).copied();
            let status = rules::take(slot, worker)?;
            workers.insert(slot.worker_id.clone(), (status, worker.map_or(0, |(_, load)| load) + 1));
        }
        Ok(())
    }

    /// Adds a unit to the load of a worker, which may be new. That it can take it was checked.
    fn take_on(&mut self, lease: &Lease, slot: &Slot) -> Answer<()> {
        self.execute(
            "INSERT INTO workers AS w (owner_id, id, job_id, status, capacity, load, current_unit, created_at,
                                       last_activity_at)
             VALUES ($1, $2, $3, CASE WHEN $4::bigint <= 1 THEN 'BUSY' ELSE 'READY' END, $4, 1, $5, $6, $6)
             ON CONFLICT (owner_id, id) DO UPDATE
             SET load = w.load + 1, capacity = $4, status = CASE WHEN w.load + 1 >= $4 THEN 'BUSY' ELSE 'READY' END,
                 current_unit = $5, last_activity_at = $6",
            &[
                &lease.owner.0,
                &lease.worker_id.as_str(),
                &lease.job_id.0,
                &i64::from(slot.capacity),
                &lease.unit.0,
                &self.now.wall.timestamp_millis(),
            ],
        )?;
        Ok(())
    }
}

/// The owner whose leases a request leaves alone, though they ran out.
pub(super) fn spared(request: &ClaimRequest) -> Option<i64> {
    let owner = request.claimant.owner;
    (!request.scope.takes_back(owner, owner)).then_some(owner.0)
}

/// The leases that a request was granted and that are still held, in the order in which they were.
pub(super) fn claimed(connection: &mut Connection, owner: OwnerId, token: i64) -> Read<Vec<Lease>> {
    let rows = connection.rows(
        "SELECT u.job_id, u.id, u.key, u.attempt_count, u.fence, u.lease_worker, u.until_lease_ms
         FROM work_units u
         JOIN attempts a ON a.unit_key = u.key AND a.number = u.attempt_count
         WHERE u.lease_owner = $1 AND a.claim_token = $2
         ORDER BY u.priority DESC, u.key",
        &[&owner.0, &token],
    )?;
    let lease = |row: &postgres::Row| {
        Ok(Lease {
            job_id: JobId(row.number(0)?),
            unit_id: row.unit_id(1)?,
            unit: UnitKey(row.number(2)?),
            attempt_number: row.count(3)?,
            fence: row.number(4)?,
            owner,
            worker_id: row.worker_id(5)?,
            until_ms: row.number(6)?,
        })
    };
    rows.iter().map(lease).collect()
}
