//! Who works, and what happens when they stop: renew, expire, owners and workers.
//!
//! Of an owner on another host nobody here can tell whether it lives, whatever boot it names: there its leases decide. One on
//! this host that is certainly dead loses them at once.

use std::collections::BTreeMap;
use std::time::Duration;

use postgres::Row;

use super::book::{Answer, Book, Entry};
use super::columns::{Columns, findable, sql_limit};
use super::connection::{Connection, Read};
use super::endings::Cause;
use super::read::found;
use crate::attempt::{Closing, FailureKind, Process};
use crate::clock::milliseconds;
use crate::job::JobId;
use crate::lease::{Held, NewOwner, Owner, OwnerId};
use crate::limits::AccountHolder;
use crate::money::Money;
use crate::repository::prepared::HotUnit;
use crate::repository::rules::{self, QUEUE_TIMEOUT_MESSAGE, Silence};
use crate::repository::{ClaimRequest, RepositoryError, Slot, Staleness, Swept, actor, loss};
use crate::unit::{Change, UnitKey, UnitStatus};
use crate::worker::{Worker, WorkerChange, WorkerId, WorkerStatus};

const OWNER_COLUMNS: &str = "id, instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at, \
     heartbeat_at, ended_at, lease_ms, host, state, told_at, budget, heartbeat_lease_ms FROM owners";

fn owner(row: &Row) -> Read<Owner> {
    let process = Process {
        pid: row.count(3)?,
        start_ticks: row.number(4)?.cast_unsigned(),
        boot_id: row.text(5)?,
        pid_namespace: row.number(6)?.cast_unsigned(),
        reaper: None,
        is_shared: false,
    };
    Ok(Owner {
        id: OwnerId(row.number(0)?),
        process,
        instance: row.text(1)?,
        label: row.text(2)?,
        registered_at: row.time(7)?,
        heartbeat_at: row.time(8)?,
        ended_at: row.optional_time(9)?,
        lease: Duration::from_millis(row.count(10)?),
        host: row.optional_text(11)?,
        state: row.optional_json(12)?,
        told_at: row.optional_time(13)?,
        budget: row.optional_money(14)?,
    })
}

/// All owners, in the order of registration, with what they say of themselves.
pub(super) fn read_owners(connection: &mut Connection) -> Read<Vec<Owner>> {
    connection.rows(&format!("SELECT {OWNER_COLUMNS} ORDER BY id"), &[])?.iter().map(owner).collect()
}

/// One owner, if there is such a one.
pub(super) fn read_owner(connection: &mut Connection, id: OwnerId) -> Read<Option<Owner>> {
    found(connection.row(&format!("SELECT {OWNER_COLUMNS} WHERE id = $1"), &[&id.0])?, owner)
}

const WORKER_COLUMNS: &str = "owner_id, id, job_id, status, capacity, load, current_unit, units_completed, \
     units_failed, total_time_ms, created_at, last_activity_at FROM workers";

fn worker(row: &Row) -> Read<Worker> {
    Ok(Worker {
        owner: OwnerId(row.number(0)?),
        id: row.worker_id(1)?,
        job_id: JobId(row.number(2)?),
        status: row.named(3, WorkerStatus::from_name)?,
        capacity: row.count(4)?,
        load: row.count(5)?,
        current_unit: row.optional_number(6)?.map(UnitKey),
        units_completed: row.count(7)?,
        units_failed: row.count(8)?,
        total_time: Duration::from_millis(row.count(9)?),
        created_at: row.time(10)?,
        last_activity_at: row.time(11)?,
    })
}

/// The workers of an owner whose names come after one, by name.
pub(super) fn read_workers(
    connection: &mut Connection,
    owner: OwnerId,
    after: &str,
    limit: usize,
) -> Read<Vec<Worker>> {
    // No name of a worker has a NUL, so that behind one that has there is what is behind the part before it.
    let after = findable(after).unwrap_or_else(|| after.split('\0').next().unwrap_or_default());
    let sql = format!("SELECT {WORKER_COLUMNS} WHERE owner_id = $1 AND id > $2 ORDER BY id LIMIT $3");
    connection.rows(&sql, &[&owner.0, &after, &sql_limit(limit)])?.iter().map(worker).collect()
}

/// What is to be expected of the owners that have not ended.
#[derive(Debug, Default)]
struct Standings {
    /// Those that are certainly dead.
    gone: Vec<OwnerId>,
    /// Those of the others of which nothing was heard for too long.
    silent: BTreeMap<OwnerId, Silence>,
}

impl Book<'_> {
    pub(super) fn register_owner(&mut self, new: &NewOwner) -> Answer<OwnerId> {
        let instance = new.instance.as_bytes();
        if let Some(row) = self.row("SELECT id FROM owners WHERE instance = $1", &[&instance])? {
            return Ok(OwnerId(row.number(0)?));
        }
        let row = self.row(
            "INSERT INTO owners (instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at, heartbeat_at,
                                 heartbeat_lease_ms, lease_ms, host, budget)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $7, $8, $9, $10, $11)
             RETURNING id",
            &[
                &instance,
                &new.label.as_bytes(),
                &i64::from(new.process.pid),
                &new.process.start_ticks.cast_signed(),
                &new.process.boot_id.as_bytes(),
                &new.process.pid_namespace.cast_signed(),
                &self.now.wall.timestamp_millis(),
                &{ self.now.boot_ms },
                &milliseconds(new.lease),
                &new.host.as_deref().map(str::as_bytes),
                &new.budget.map(Money::nanos),
            ],
        )?;
        let id = OwnerId(row.expect("an insert returns its row").number(0)?);
        self.set_budget(AccountHolder::Owner(id), new.budget)?;
        Ok(id)
    }

    /// Extends all leases of an owner in one statement.
    pub(super) fn renew(&mut self, owner: OwnerId, ttl_ms: i64) -> Answer<Vec<Held>> {
        self.check_owner(owner)?;
        self.execute(
            "UPDATE owners SET heartbeat_at = $2, heartbeat_lease_ms = $3, lease_ms = $4 WHERE id = $1",
            &[&owner.0, &self.now.wall.timestamp_millis(), &{ self.now.boot_ms }, &ttl_ms],
        )?;
        let rows = self.rows(
            "UPDATE work_units SET until_lease_ms = $2 WHERE lease_owner = $1 RETURNING key, fence, status",
            &[&owner.0, &{ self.now.boot_ms }.saturating_add(ttl_ms)],
        )?;
        let held = |row: &Row| {
            let is_cancel_requested = row.named(2, UnitStatus::from_name)? == UnitStatus::CancelRequested;
            Ok(Held { unit: UnitKey(row.number(0)?), fence: row.number(1)?, is_cancel_requested })
        };
        let mut held = rows.iter().map(held).collect::<Read<Vec<Held>>>()?;
        held.sort_by_key(|held| held.unit);
        Ok(held)
    }

    /// Keeps what an owner says of itself.
    pub(super) fn tell(&mut self, owner: OwnerId, state: &[u8]) -> Answer<()> {
        self.check_owner(owner)?;
        self.execute(
            "UPDATE owners SET state = $2, told_at = $3 WHERE id = $1",
            &[&owner.0, &state, &self.now.wall.timestamp_millis()],
        )?;
        Ok(())
    }

    /// Takes back what nobody looks after any more.
    pub(super) fn expire(&mut self, boot_id: &str, limit: usize) -> Answer<Vec<Swept>> {
        let Standings { gone, silent } = self.standings(boot_id)?;
        let mut swept = Vec::new();
        for (unit, staleness) in self.lost_leases(&gone, limit)? {
            swept.push(self.lose(&unit, actor::SWEEP, staleness.reason())?);
        }
        for unit in self.overdue_units(limit - swept.len())? {
            swept.push(self.fail_overdue(&unit)?);
        }
        for &owner in silent.keys() {
            self.leave_to_anybody(owner)?;
        }
        let silent_for_good = silent.iter().filter(|&(_, &silence)| silence == Silence::ForGood);
        for owner in gone.into_iter().chain(silent_for_good.map(|(&owner, _)| owner)) {
            if self.leases_of(owner, None)?.is_empty() {
                self.mark_ended(owner)?;
            }
        }
        Ok(swept)
    }

    /// What is to be expected of the owners that have not ended.
    fn standings(&mut self, boot_id: &str) -> Answer<Standings> {
        let rows = self.rows(&format!("SELECT {OWNER_COLUMNS} WHERE ended_at IS NULL ORDER BY id"), &[])?;
        let mut standings = Standings::default();
        for row in &rows {
            let owner = owner(row)?;
            if rules::owner_death(&owner, boot_id).is_some() {
                standings.gone.push(owner.id);
            } else if let Some(silence) = rules::owner_silence(&owner, row.number(15)?, boot_id, self.now) {
                standings.silent.insert(owner.id, silence);
            }
        }
        Ok(standings)
    }

    /// Leases that ran out or whose owner is certainly dead, in the order of keys.
    fn lost_leases(&mut self, gone: &[OwnerId], limit: usize) -> Answer<Vec<(HotUnit, Staleness)>> {
        let ids: Vec<i64> = gone.iter().map(|owner| owner.0).collect();
        let units = self.units(
            "WHERE u.lease_owner IS NOT NULL AND (u.lease_owner = ANY($1) OR u.until_lease_ms <= $2)
             ORDER BY u.key
             LIMIT $3",
            &[&ids, &{ self.now.boot_ms }, &sql_limit(limit)],
        )?;
        let reason = |unit: HotUnit| {
            let is_gone = unit.lease.as_ref().is_some_and(|(owner, _)| gone.contains(owner));
            (unit, if is_gone { Staleness::OwnerDied } else { Staleness::RanOut })
        };
        Ok(units.into_iter().map(reason).collect())
    }

    /// What an owner, or one of its workers, holds, in the order of keys.
    fn leases_of(&mut self, owner: OwnerId, worker_id: Option<&WorkerId>) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.lease_owner = $1 AND ($2::text IS NULL OR u.lease_worker = $2) ORDER BY u.key",
            &[&owner.0, &worker_id.map(WorkerId::as_str)],
        )
    }

    /// Units of a job whose leases ran out, as far as the request may claim them at once, in the order of keys.
    pub(super) fn leases_to_take_back(&mut self, request: &ClaimRequest, limit: usize) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.lease_owner IS NOT NULL AND u.until_lease_ms <= $1 AND u.job_id = $2
               AND u.lease_owner IS DISTINCT FROM $3 AND u.status IN ('ASSIGNED', 'PROCESSING')
               AND u.attempts_used < u.max_retries
             ORDER BY u.key
             LIMIT $4
             FOR UPDATE SKIP LOCKED",
            &[&{ self.now.boot_ms }, &request.job_id.0, &super::claims::spared(request), &sql_limit(limit)],
        )
    }

    /// Takes back leases that ran out, in the order of keys.
    pub(super) fn take_back(&mut self, mut units: Vec<HotUnit>) -> Answer<()> {
        units.sort_by_key(|unit| unit.key);
        for unit in &units {
            self.lose(unit, actor::SWEEP, loss::LEASE_RAN_OUT)?;
        }
        Ok(())
    }

    /// Ends the attempt of a unit whose worker vanished.
    fn lose(&mut self, unit: &HotUnit, actor: &str, reason: &str) -> Answer<Swept> {
        let closing = unit.standing().lost();
        self.close_as(unit, &closing, actor, reason)
    }

    fn close_as(&mut self, unit: &HotUnit, closing: &Closing, actor: &str, reason: &str) -> Answer<Swept> {
        let closed = self.close_without_report(unit, closing, Cause { actor, reason: Some(reason) })?;
        Ok(Swept {
            job_id: unit.job_id,
            unit: unit.key,
            unit_id: unit.id.clone(),
            attempt_number: Some(unit.attempt_count),
            change: closed.change,
            status: closed.status,
        })
    }

    /// Units that waited longer than their caller allows, in the order of keys.
    fn overdue_units(&mut self, limit: usize) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.queue_deadline_lease_ms IS NOT NULL AND u.queue_deadline_lease_ms <= $1 AND u.status = 'PENDING'
             ORDER BY u.key
             LIMIT $2",
            &[&{ self.now.boot_ms }, &sql_limit(limit)],
        )
    }

    fn fail_overdue(&mut self, unit: &HotUnit) -> Answer<Swept> {
        let status = rules::changed_unit(&unit.id, unit.status, Change::QueueTimeout)?;
        let kind = FailureKind::QUEUE_TIMEOUT;
        self.execute(
            "UPDATE work_units
             SET status = 'FAILED', failure_kind = $2, failure_message = $3, completed_at = $4,
                 queue_deadline_lease_ms = NULL, not_before = NULL, delay_ms = NULL
             WHERE key = $1",
            &[
                &unit.key.0,
                &kind.as_str().as_bytes(),
                &QUEUE_TIMEOUT_MESSAGE.as_bytes(),
                &self.now.wall.timestamp_millis(),
            ],
        )?;
        self.record(Entry {
            unit: unit.key,
            attempt_number: None,
            fence: unit.fence,
            change: Change::QueueTimeout,
            from: Some(unit.status),
            to: status,
            actor: actor::SWEEP,
            reason: None,
            conversation: None,
            digest: None,
        });
        Ok(Swept {
            job_id: unit.job_id,
            unit: unit.key,
            unit_id: unit.id.clone(),
            attempt_number: None,
            change: Change::QueueTimeout,
            status,
        })
    }

    pub(super) fn let_go(&mut self, owner: OwnerId) -> Answer<u64> {
        match self.has_ended(owner)? {
            true => Ok(0),
            false => self.leave_to_anybody(owner),
        }
    }

    pub(super) fn end_owner(&mut self, owner: OwnerId) -> Answer<()> {
        if self.has_ended(owner)? {
            return Ok(());
        }
        for unit in self.leases_of(owner, None)? {
            self.lose(&unit, &owner.to_string(), loss::OWNER_ENDED)?;
        }
        self.mark_ended(owner)
    }

    /// Whether an owner, which must be known, has ended.
    fn has_ended(&mut self, owner: OwnerId) -> Answer<bool> {
        let row = self.row("SELECT ended_at IS NOT NULL FROM owners WHERE id = $1", &[&owner.0])?;
        Ok(row.ok_or(RepositoryError::UnknownOwner(owner))?.flag(0)?)
    }

    /// What an owner accepted and that waits is for anybody, as long as it takes. Tells how many.
    fn leave_to_anybody(&mut self, owner: OwnerId) -> Answer<u64> {
        Ok(self.execute(
            "UPDATE work_units
             SET accepted_by = NULL, queue_deadline_lease_ms = NULL
             WHERE status = 'PENDING' AND accepted_by IS NOT NULL AND accepted_by = $1",
            &[&owner.0],
        )?)
    }

    /// Gives back what an owner accepted, and ends it and its workers. It holds no lease.
    fn mark_ended(&mut self, owner: OwnerId) -> Answer<()> {
        self.bury(owner);
        let now_ms = self.now.wall.timestamp_millis();
        self.leave_to_anybody(owner)?;
        self.execute(
            "UPDATE workers
             SET status = 'DEAD', load = 0, current_unit = NULL, last_activity_at = $2
             WHERE owner_id = $1 AND status NOT IN ('TERMINATED', 'DEAD')",
            &[&owner.0, &now_ms],
        )?;
        self.execute(
            "UPDATE owners SET ended_at = $2, state = NULL, told_at = NULL WHERE id = $1",
            &[&owner.0, &now_ms],
        )?;
        Ok(())
    }

    pub(super) fn change_worker(
        &mut self,
        owner: OwnerId,
        job_id: JobId,
        slot: &Slot,
        change: WorkerChange,
    ) -> Answer<Worker> {
        self.job_has_template(job_id)?;
        self.check_owner(owner)?;
        let id = &slot.worker_id;
        let status = self.worker(owner, id)?.map(|worker| worker.status);
        let next = rules::changed_worker(id, status, change)?;
        self.resolve_held(owner, id, change)?;
        self.execute(
            "INSERT INTO workers (owner_id, id, job_id, status, capacity, load, created_at, last_activity_at)
             VALUES ($1, $2, $3, $4, $5, 0, $6, $6)
             ON CONFLICT (owner_id, id) DO UPDATE SET status = $4, last_activity_at = $6",
            &[
                &owner.0,
                &id.as_str(),
                &job_id.0,
                &next.name(),
                &i64::from(slot.capacity),
                &self.now.wall.timestamp_millis(),
            ],
        )?;
        Ok(self.worker(owner, id)?.expect("it was just written"))
    }

    /// Ends what a worker holds when it ends itself.
    fn resolve_held(&mut self, owner: OwnerId, id: &WorkerId, change: WorkerChange) -> Answer<()> {
        if !matches!(change, WorkerChange::Terminate | WorkerChange::Die) {
            return Ok(());
        }
        let actor = owner.to_string();
        for unit in self.leases_of(owner, Some(id))? {
            if change == WorkerChange::Terminate {
                let closing = unit.standing().released(None);
                self.close_as(&unit, &closing, &actor, loss::WORKER_TERMINATED)?;
            } else {
                self.lose(&unit, &actor, loss::WORKER_DIED)?;
            }
        }
        Ok(())
    }

    fn worker(&mut self, owner: OwnerId, id: &WorkerId) -> Answer<Option<Worker>> {
        let sql = format!("SELECT {WORKER_COLUMNS} WHERE owner_id = $1 AND id = $2");
        Ok(found(self.row(&sql, &[&owner.0, &id.as_str()])?, worker)?)
    }
}
