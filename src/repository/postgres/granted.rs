//! What a claimant is told of the units that it was granted, and of what their earlier attempts left.

use std::collections::HashMap;

use serde_json::Value;

use super::columns::Columns;
use super::connection::{Connection, Read};
use super::read::{Beside, UNIT_COLUMNS, UNIT_TABLES, measured_unit, understood};
use crate::lease::{Claim, Lease};
use crate::process::Process;
use crate::repository::{RepositoryError, rules};
use crate::unit::UnitKey;

/// What somebody who was granted a lease needs to know.
pub(super) fn claim_of(connection: &mut Connection, lease: Lease) -> Read<Claim> {
    let unknown = RepositoryError::unknown_unit(lease.job_id, lease.unit_id.as_str());
    claims_of(connection, vec![lease])?.pop().ok_or_else(|| unknown.into())
}

/// The same for several, in their order.
pub(super) fn claims_of(connection: &mut Connection, leases: Vec<Lease>) -> Read<Vec<Claim>> {
    if leases.is_empty() {
        return Ok(Vec::new());
    }
    let keys: Vec<i64> = leases.iter().map(|lease| lease.unit.0).collect();
    let rows = connection.rows(&format!("SELECT {UNIT_COLUMNS} FROM {UNIT_TABLES} WHERE u.key = ANY($1)"), &[&keys])?;
    let beside = Beside::read(connection, &rows)?;
    let mut units = HashMap::new();
    for row in &rows {
        let key: i64 = row.number(0)?;
        let unit = understood(measured_unit(row, &beside), || (format!("unit key {key}"), key));
        units.insert(UnitKey(key), unit?.1);
    }
    // A first attempt has nothing before it.
    let again: Vec<i64> = leases.iter().filter(|lease| lease.attempt_number > 1).map(|lease| lease.unit.0).collect();
    let mut before = read_before(connection, &again)?;
    let claim = |lease: Lease| {
        let unit = units.remove(&lease.unit)?;
        let Before { checkpoint, session, processes } = before.remove(&lease.unit).unwrap_or_default();
        let resume_session = session.or_else(|| unit.options.resume_session.clone());
        Some(Claim { lease, unit, checkpoint, resume_session, earlier_processes: processes })
    };
    Ok(leases.into_iter().filter_map(claim).collect())
}

/// What earlier attempts left for the next one.
#[derive(Default)]
struct Before {
    checkpoint: Option<Value>,
    /// The session of the latest that had any.
    session: Option<String>,
    /// Their child processes that may still be at work.
    processes: Vec<Process>,
}

fn read_before(connection: &mut Connection, units: &[i64]) -> Read<HashMap<UnitKey, Before>> {
    let mut before: HashMap<UnitKey, Before> = HashMap::new();
    if units.is_empty() {
        return Ok(before);
    }
    let rows = connection.rows(
        "SELECT a.unit_key, a.session_id, a.process, a.outcome = 'LOST', c.value
         FROM attempts a
         JOIN work_units u ON u.key = a.unit_key AND a.number < u.attempt_count
         LEFT JOIN checkpoints c ON c.unit_key = a.unit_key AND c.attempt_number = a.number
         WHERE a.unit_key = ANY($1)
         ORDER BY a.unit_key, a.number",
        &[&units],
    )?;
    for row in &rows {
        let key: i64 = row.number(0)?;
        let damaged = || (format!("an earlier attempt of unit key {key}"), key);
        let of_unit = before.entry(UnitKey(key)).or_default();
        if let Some(session) = understood(row.optional_text(1), damaged)? {
            of_unit.session = Some(session);
        }
        if let Some(process) = understood(row.optional_json::<Process>(2), damaged)? {
            let was_lost = row.get_as::<Option<bool>>(3)?.unwrap_or_default();
            of_unit.processes.extend(rules::may_still_work(&process, was_lost).then_some(process));
        }
        if let Some(value) = understood(row.optional_json(4), damaged)? {
            of_unit.checkpoint = Some(value);
        }
    }
    Ok(before)
}
