//! Who works, and what happens when they stop: renew, expire, owners and workers.

use std::collections::BTreeMap;
use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::accounts;
use super::book::{Answer, Book, Entry};
use super::endings::Cause;
use super::migrate;
use super::rows::{named, optional_json, optional_time, time, unsigned, worker_id};
use crate::attempt::{Closing, FailureKind, Process};
use crate::clock::{Moment, milliseconds};
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
     heartbeat_at, ended_at, lease_ms, heartbeat_boot_ms FROM owners";

/// What an owner says of itself, with its number.
const SAID_COLUMNS: &str = "id, host, state, told_at FROM owners";

/// The first version of the schema that has them.
const SAID_SINCE_VERSION: u32 = 2;

fn owner(row: &rusqlite::Row<'_>) -> rusqlite::Result<Owner> {
    let process = Process {
        pid: row.get(3)?,
        start_ticks: row.get::<_, i64>(4)?.cast_unsigned(),
        boot_id: row.get(5)?,
        pid_namespace: row.get::<_, i64>(6)?.cast_unsigned(),
        reaper: None,
        is_shared: false,
    };
    Ok(Owner {
        id: OwnerId(row.get(0)?),
        process,
        instance: row.get(1)?,
        label: row.get(2)?,
        registered_at: time(row, 7)?,
        heartbeat_at: time(row, 8)?,
        ended_at: optional_time(row, 9)?,
        lease: Duration::from_millis(unsigned(row, 10)?),
        host: None,
        state: None,
        told_at: None,
        budget: None,
    })
}

/// When an owner last renewed its leases, in milliseconds of the machine.
fn heartbeat_boot_ms(row: &rusqlite::Row<'_>) -> rusqlite::Result<i64> {
    row.get(11)
}

/// All owners, in the order of registration, with what they say of themselves.
pub(super) fn read_owners(connection: &rusqlite::Connection) -> rusqlite::Result<Vec<Owner>> {
    let mut select = connection.prepare_cached(&format!("SELECT {OWNER_COLUMNS} ORDER BY id"))?;
    let mut owners = select.query_map([], owner)?.collect::<rusqlite::Result<Vec<_>>>()?;
    if migrate::version(connection)? >= SAID_SINCE_VERSION {
        let mut select = connection.prepare_cached(&format!("SELECT {SAID_COLUMNS} ORDER BY id"))?;
        let mut rows = select.query([])?;
        for owner in &mut owners {
            let Some(row) = rows.next()? else { break };
            owner.host = row.get(1)?;
            owner.state = optional_json(row, 2)?;
            owner.told_at = optional_time(row, 3)?;
        }
    }
    if accounts::are_known(connection)? {
        let mut select = connection.prepare_cached("SELECT budget FROM owners ORDER BY id")?;
        let mut rows = select.query([])?;
        for owner in &mut owners {
            let Some(row) = rows.next()? else { break };
            owner.budget = row.get::<_, Option<i64>>(0)?.map(Money::from_nanos);
        }
    }
    Ok(owners)
}

/// The owners that have not ended, each with when it last renewed its leases in milliseconds of the machine.
pub(super) fn read_open_owners(connection: &rusqlite::Connection) -> rusqlite::Result<Vec<(Owner, i64)>> {
    let mut select =
        connection.prepare_cached(&format!("SELECT {OWNER_COLUMNS} WHERE ended_at IS NULL ORDER BY id"))?;
    let owners = select.query_map([], |row| Ok((owner(row)?, heartbeat_boot_ms(row)?)))?;
    owners.collect()
}

/// One owner, if there is such a one.
pub(super) fn read_owner(connection: &rusqlite::Connection, id: OwnerId) -> rusqlite::Result<Option<Owner>> {
    let mut select = connection.prepare_cached(&format!("SELECT {OWNER_COLUMNS} WHERE id = ?1"))?;
    select.query_row([id.0], owner).optional()
}

const WORKER_COLUMNS: &str = "owner_id, id, job_id, status, capacity, load, current_unit, units_completed, \
     units_failed, total_time_ms, created_at, last_activity_at FROM workers";

fn worker(row: &rusqlite::Row<'_>) -> rusqlite::Result<Worker> {
    Ok(Worker {
        owner: OwnerId(row.get(0)?),
        id: worker_id(row, 1)?,
        job_id: JobId(row.get(2)?),
        status: named(row, 3, WorkerStatus::from_name)?,
        capacity: row.get(4)?,
        load: row.get(5)?,
        current_unit: row.get::<_, Option<i64>>(6)?.map(UnitKey),
        units_completed: unsigned(row, 7)?,
        units_failed: unsigned(row, 8)?,
        total_time: Duration::from_millis(unsigned(row, 9)?),
        created_at: time(row, 10)?,
        last_activity_at: time(row, 11)?,
    })
}

/// The workers of an owner whose names come after one, by name.
pub(super) fn read_workers(
    connection: &rusqlite::Connection,
    owner: OwnerId,
    after: &str,
    limit: usize,
) -> rusqlite::Result<Vec<Worker>> {
    let mut select = connection
        .prepare_cached(&format!("SELECT {WORKER_COLUMNS} WHERE owner_id = ?1 AND id > ?2 ORDER BY id LIMIT ?3"))?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let workers = select.query_map(params![owner.0, after, limit], worker)?;
    workers.collect()
}

/// What is to be expected of the owners that have not ended.
#[derive(Debug, Default)]
struct Standings {
    /// Those that never will end by themselves, and why.
    gone: BTreeMap<OwnerId, Staleness>,
    /// The others.
    living: Vec<OwnerId>,
    /// Those of the others of which nothing was heard for too long.
    silent: BTreeMap<OwnerId, Silence>,
}

impl Book<'_> {
    pub(super) fn register_owner(&mut self, now: Moment, new: &NewOwner) -> Answer<OwnerId> {
        let mut select = self.connection.prepare_cached("SELECT id FROM owners WHERE instance = ?1")?;
        if let Some(id) = select.query_row([&new.instance], |row| row.get(0)).optional()? {
            return Ok(OwnerId(id));
        }
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO owners (instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at, heartbeat_at,
                                 heartbeat_boot_ms, lease_ms, host, budget)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8, ?9, ?10, ?11)",
        )?;
        let id = insert.insert(params![
            new.instance,
            new.label,
            new.process.pid,
            new.process.start_ticks.cast_signed(),
            new.process.boot_id,
            new.process.pid_namespace.cast_signed(),
            now.wall.timestamp_millis(),
            now.boot_ms,
            milliseconds(new.lease),
            new.host,
            new.budget.map(Money::nanos),
        ])?;
        let id = OwnerId(id);
        self.set_budget(AccountHolder::Owner(id), new.budget)?;
        Ok(id)
    }

    /// Extends all leases of an owner in one statement.
    pub(super) fn renew(&mut self, now: Moment, owner: OwnerId, ttl_ms: i64) -> Answer<Vec<Held>> {
        self.check_owner(owner)?;
        let mut update = self.connection.prepare_cached(
            "UPDATE owners SET heartbeat_at = ?2, heartbeat_boot_ms = ?3, lease_ms = ?4 WHERE id = ?1",
        )?;
        update.execute([owner.0, now.wall.timestamp_millis(), now.boot_ms, ttl_ms])?;
        let mut update =
            self.connection.prepare_cached("UPDATE work_units SET lease_until_boot_ms = ?2 WHERE lease_owner = ?1")?;
        update.execute([owner.0, now.boot_ms.saturating_add(ttl_ms)])?;
        let mut select = self
            .connection
            .prepare_cached("SELECT key, fence, status FROM work_units WHERE lease_owner = ?1 ORDER BY key")?;
        let held = select.query_map([owner.0], |row| {
            let status = named(row, 2, UnitStatus::from_name)?;
            let is_cancel_requested = status == UnitStatus::CancelRequested;
            Ok(Held { unit: UnitKey(row.get(0)?), fence: row.get(1)?, is_cancel_requested })
        })?;
        Ok(held.collect::<rusqlite::Result<_>>()?)
    }

    /// Keeps what an owner says of itself.
    pub(super) fn tell(&mut self, now: Moment, owner: OwnerId, state: &[u8]) -> Answer<()> {
        self.check_owner(owner)?;
        let mut update = self.connection.prepare_cached("UPDATE owners SET state = ?2, told_at = ?3 WHERE id = ?1")?;
        update.execute(params![owner.0, state, now.wall.timestamp_millis()])?;
        Ok(())
    }

    /// Takes back what nobody looks after any more.
    pub(super) fn expire(&mut self, now: Moment, boot_id: &str, limit: usize) -> Answer<Vec<Swept>> {
        let Standings { gone, living, silent } = self.standings(now, boot_id)?;
        let mut swept = Vec::new();
        for (unit, staleness) in self.lost_leases(now, &gone, &living, limit)? {
            swept.push(self.lose(now, &unit, actor::SWEEP, staleness.reason())?);
        }
        for unit in self.overdue_units(now, limit - swept.len())? {
            swept.push(self.fail_overdue(now, &unit)?);
        }
        for &owner in silent.keys() {
            self.leave_to_anybody(owner)?;
        }
        let silent_for_good = silent.iter().filter(|&(_, &silence)| silence == Silence::ForGood);
        for &owner in gone.keys().chain(silent_for_good.map(|(owner, _)| owner)) {
            if self.leases_before(owner, i64::MAX, 1)?.is_empty() {
                self.mark_ended(now, owner)?;
            }
        }
        Ok(swept)
    }

    /// What is to be expected of the owners that have not ended.
    fn standings(&self, now: Moment, boot_id: &str) -> Answer<Standings> {
        let mut standings = Standings::default();
        for (owner, heartbeat_boot_ms) in read_open_owners(self.connection)? {
            if let Some(loss) = rules::owner_loss(&owner, boot_id) {
                standings.gone.insert(owner.id, loss);
                continue;
            }
            standings.living.push(owner.id);
            if let Some(silence) = rules::owner_silence(&owner, heartbeat_boot_ms, boot_id, now) {
                standings.silent.insert(owner.id, silence);
            }
        }
        Ok(standings)
    }

    /// Leases that ran out or whose owner is gone, in the order of keys: [`rules::staleness`], asked owner by owner as the index has
    /// them. Nobody's leases are looked at that are good.
    fn lost_leases(
        &self,
        now: Moment,
        gone: &BTreeMap<OwnerId, Staleness>,
        living: &[OwnerId],
        limit: usize,
    ) -> Answer<Vec<(HotUnit, Staleness)>> {
        let mut lost = Vec::new();
        let of_the_gone = gone.iter().map(|(&owner, &loss)| (owner, i64::MAX, loss));
        let ran_out = living.iter().map(|&owner| (owner, now.boot_ms, Staleness::RanOut));
        for (owner, until_ms, loss) in of_the_gone.chain(ran_out) {
            lost.extend(self.leases_before(owner, until_ms, limit)?.into_iter().map(|unit| (unit, loss)));
        }
        lost.sort_by_key(|(unit, _)| unit.key);
        lost.truncate(limit);
        Ok(lost)
    }

    /// What an owner holds until then at the latest, in the order of keys.
    fn leases_before(&self, owner: OwnerId, until_ms: i64, limit: usize) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.lease_owner = ?1 AND u.lease_until_boot_ms <= ?2 ORDER BY +u.key LIMIT ?3",
            params![owner.0, until_ms, i64::try_from(limit).unwrap_or(i64::MAX)],
        )
    }

    /// What an owner, or one of its workers, holds, in the order of keys.
    fn leases_of(&self, owner: OwnerId, worker_id: Option<&WorkerId>) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.lease_owner = ?1 AND (?2 IS NULL OR u.lease_worker = ?2) ORDER BY u.key",
            params![owner.0, worker_id.map(WorkerId::as_str)],
        )
    }

    /// Units of a job whose leases ran out, as far as the request may claim them at once, in the order of keys.
    pub(super) fn to_take_back(&self, now: Moment, request: &ClaimRequest, limit: usize) -> Answer<Vec<HotUnit>> {
        let (job_id, spared) = (request.job_id.0, super::claims::spared(request));
        self.units(
            "WHERE u.lease_owner IS NOT NULL AND u.lease_until_boot_ms <= ?1 AND +u.job_id = ?2
               AND u.lease_owner IS NOT ?3 AND u.status IN ('ASSIGNED', 'PROCESSING') AND u.attempts_used < u.max_retries
             ORDER BY +u.key
             LIMIT ?4",
            params![now.boot_ms, job_id, spared, i64::try_from(limit).unwrap_or(i64::MAX)],
        )
    }

    /// Takes back leases that ran out, in the order of keys.
    pub(super) fn take_back(&mut self, now: Moment, mut units: Vec<HotUnit>) -> Answer<()> {
        units.sort_by_key(|unit| unit.key);
        for unit in &units {
            self.lose(now, unit, actor::SWEEP, loss::LEASE_RAN_OUT)?;
        }
        Ok(())
    }

    /// Ends the attempt of a unit whose worker vanished.
    fn lose(&mut self, now: Moment, unit: &HotUnit, actor: &str, reason: &str) -> Answer<Swept> {
        let closing = unit.standing().lost();
        self.close_as(now, unit, &closing, actor, reason)
    }

    fn close_as(&mut self, now: Moment, unit: &HotUnit, closing: &Closing, actor: &str, reason: &str) -> Answer<Swept> {
        let closed = self.close_without_report(now, unit, closing, Cause { actor, reason: Some(reason) })?;
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
    fn overdue_units(&self, now: Moment, limit: usize) -> Answer<Vec<HotUnit>> {
        self.units(
            "WHERE u.queue_deadline_boot_ms IS NOT NULL AND u.queue_deadline_boot_ms <= ?1 AND u.status = 'PENDING'
             ORDER BY u.key
             LIMIT ?2",
            params![now.boot_ms, i64::try_from(limit).unwrap_or(i64::MAX)],
        )
    }

    fn fail_overdue(&mut self, now: Moment, unit: &HotUnit) -> Answer<Swept> {
        let status = rules::changed_unit(&unit.id, unit.status, Change::QueueTimeout)?;
        let mut update = self.connection.prepare_cached(
            "UPDATE work_units
             SET status = 'FAILED', failure_kind = ?2, failure_message = ?3, completed_at = ?4,
                 queue_deadline_boot_ms = NULL, not_before = NULL, delay_ms = NULL
             WHERE key = ?1",
        )?;
        let (kind, message) = (FailureKind::QUEUE_TIMEOUT, QUEUE_TIMEOUT_MESSAGE);
        update.execute(params![unit.key.0, kind.as_str(), message, now.wall.timestamp_millis()])?;
        self.record(
            now,
            Entry {
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
            },
        )?;
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

    pub(super) fn end_owner(&mut self, now: Moment, owner: OwnerId) -> Answer<()> {
        if self.has_ended(owner)? {
            return Ok(());
        }
        for unit in self.leases_of(owner, None)? {
            self.lose(now, &unit, &owner.to_string(), loss::OWNER_ENDED)?;
        }
        self.mark_ended(now, owner)
    }

    /// Whether an owner, which must be known, has ended.
    fn has_ended(&self, owner: OwnerId) -> Answer<bool> {
        let mut select = self.connection.prepare_cached("SELECT ended_at IS NOT NULL FROM owners WHERE id = ?1")?;
        let has_ended = select.query_row([owner.0], |row| row.get(0)).optional()?;
        Ok(has_ended.ok_or(RepositoryError::UnknownOwner(owner))?)
    }

    /// What an owner accepted and that waits is for anybody, as long as it takes. Tells how many.
    fn leave_to_anybody(&self, owner: OwnerId) -> Answer<u64> {
        let mut update = self.connection.prepare_cached(
            "UPDATE work_units
             SET accepted_by = NULL, queue_deadline_boot_ms = NULL
             WHERE status = 'PENDING' AND accepted_by IS NOT NULL AND accepted_by = ?1",
        )?;
        Ok(update.execute([owner.0])? as u64)
    }

    /// Gives back what an owner accepted, and ends it and its workers. It holds no lease.
    fn mark_ended(&mut self, now: Moment, owner: OwnerId) -> Answer<()> {
        self.bury(owner);
        let now_ms = now.wall.timestamp_millis();
        self.leave_to_anybody(owner)?;
        let mut update = self.connection.prepare_cached(
            "UPDATE workers
             SET status = 'DEAD', load = 0, current_unit = NULL, last_activity_at = ?2
             WHERE owner_id = ?1 AND status NOT IN ('TERMINATED', 'DEAD')",
        )?;
        update.execute([owner.0, now_ms])?;
        let mut update = self
            .connection
            .prepare_cached("UPDATE owners SET ended_at = ?2, state = NULL, told_at = NULL WHERE id = ?1")?;
        update.execute([owner.0, now_ms])?;
        Ok(())
    }

    pub(super) fn change_worker(
        &mut self,
        now: Moment,
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
        self.resolve_held(now, owner, id, change)?;
        let mut upsert = self.connection.prepare_cached(
            "INSERT INTO workers (owner_id, id, job_id, status, capacity, load, created_at, last_activity_at)
             VALUES (?1, ?2, ?3, ?4, ?5, 0, ?6, ?6)
             ON CONFLICT (owner_id, id) DO UPDATE SET status = ?4, last_activity_at = ?6",
        )?;
        let now_ms = now.wall.timestamp_millis();
        upsert.execute(params![owner.0, id.as_str(), job_id.0, next.name(), slot.capacity, now_ms])?;
        Ok(self.worker(owner, id)?.expect("it was just written"))
    }

    /// Ends what a worker holds when it ends itself.
    fn resolve_held(&mut self, now: Moment, owner: OwnerId, id: &WorkerId, change: WorkerChange) -> Answer<()> {
        if !matches!(change, WorkerChange::Terminate | WorkerChange::Die) {
            return Ok(());
        }
        let actor = owner.to_string();
        for unit in self.leases_of(owner, Some(id))? {
            if change == WorkerChange::Terminate {
                let closing = unit.standing().released(None);
                self.close_as(now, &unit, &closing, &actor, loss::WORKER_TERMINATED)?;
            } else {
                self.lose(now, &unit, &actor, loss::WORKER_DIED)?;
            }
        }
        Ok(())
    }

    fn worker(&self, owner: OwnerId, id: &WorkerId) -> Answer<Option<Worker>> {
        let mut select =
            self.connection.prepare_cached(&format!("SELECT {WORKER_COLUMNS} WHERE owner_id = ?1 AND id = ?2"))?;
        Ok(select.query_row(params![owner.0, id.as_str()], worker).optional()?)
    }
}
