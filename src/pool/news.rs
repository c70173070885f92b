//! What a pool hears of its job's units from others in the process: that some came, ended, or were cancelled.
//!
//! Whoever brought it about tells, and is not to be kept waiting: what takes longer is left to the claimer and to the heartbeat.

use std::sync::{Arc, PoisonError};

use super::core::Core;
use super::{claimer, execution, supervisor};
use crate::attempt::AttemptKey;
use crate::executor::CancelReason;
use crate::repository::{By, CancelAnswer, News, RepositoryError};
use crate::unit::{UnitKey, UnitStatus};

/// Listens for as long as the pool is there.
pub(super) fn listen(core: &Arc<Core>) {
    let listener = Arc::downgrade(core);
    let hear = move |news: &News| listener.upgrade().inspect(|core| hear(core, news)).is_some();
    core.repository().listen(core.job.id, Box::new(hear));
}

fn hear(core: &Core, news: &News) {
    match news {
        News::Queued => core.ready.work_came(),
        // What ends here is known here.
        News::Ended(owner) if *owner == core.owner() => {}
        News::Ended(_) => core.ready.others_ended(),
        News::Cancelled { unit, id } => {
            core.ready.others_ended();
            // One that nobody here knows may have been claimed for this pool a moment ago.
            if core.ready.is_pulling() || core.ready.get_or_submitting(*unit, id).is_some() {
                note(core, *unit, id.clone());
            }
        }
    }
}

/// Leaves a unit to the heartbeat, which is woken now or when the pool has the unit.
fn note(core: &Core, unit: UnitKey, id: String) {
    core.cancelled.lock().unwrap_or_else(PoisonError::into_inner).insert(unit, id.clone());
    // Asked only now: either it is known here by now, or whoever brings it finds the note.
    if core.ready.get_or_submitting(unit, &id).is_some() {
        core.heartbeat.wake();
    }
}

/// Units were pulled, of which the pool may have heard before it had them.
pub(super) fn were_pulled(core: &Core) {
    if !core.cancelled.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
        core.heartbeat.wake();
    }
}

/// Sees to units of this pool of which it has heard that somebody cancelled them.
pub(super) fn look_at_cancelled(core: &Core) {
    let cancelled = std::mem::take(&mut *core.cancelled.lock().unwrap_or_else(PoisonError::into_inner));
    for (unit, id) in cancelled {
        match was_cancelled(core, &id) {
            Ok(Seen::Done) => {}
            Ok(Seen::TooEarly) => note(core, unit, id),
            // Then the next beat finds out.
            Err(error) => log::warn!("unit {id}: that it was cancelled could not be seen to: {error}"),
        }
    }
}

/// Cancels a unit in the repository, then here.
pub(super) fn cancel(core: &Core, id: &str, by: &By) -> Result<CancelAnswer, RepositoryError> {
    let answer = core.repository().cancel(core.job.id, id, by)?;
    if !matches!(answer, CancelAnswer::AlreadyEnded(_)) {
        was_cancelled(core, id)?;
    }
    Ok(answer)
}

/// What was done for a unit that was cancelled.
#[derive(Debug)]
pub(super) enum Seen {
    Done,
    /// It was claimed for this pool, which does not have it yet.
    TooEarly,
}

/// A unit was cancelled: it is told if it waited here, and asked to stop if it runs.
pub(super) fn was_cancelled(core: &Core, id: &str) -> Result<Seen, RepositoryError> {
    let stored = core.repository().unit(core.job.id, id)?;
    match stored.status {
        // Requeued since, it may run again, and that is not what was cancelled. Of what waited for another pool that one tells.
        UnitStatus::Cancelled if core.has_accepted(&stored) => {
            let after = AttemptKey { unit: stored.key, number: stored.attempt_count };
            claimer::ended(core, after, stored.status, None);
        }
        UnitStatus::CancelRequested => {
            let is_known = core.ready.get_or_submitting(stored.key, id).is_some();
            ask_to_stop(core, stored.key, id);
            if core.has_accepted(&stored) && !is_known {
                return Ok(Seen::TooEarly);
            }
        }
        _ => {}
    }
    Ok(Seen::Done)
}

fn ask_to_stop(core: &Core, unit: UnitKey, id: &str) {
    if let Some(token) = core.ready.get_or_submitting(unit, id).and_then(|unit| unit.request_cancel()) {
        token.cancel(CancelReason::Requested);
    }
    let is_it = |execution: &Arc<execution::Execution>| execution.claim.lease.unit == unit;
    for cell in core.registry.snapshot() {
        for execution in cell.executing().into_iter().filter(is_it) {
            supervisor::ask_to_stop(core, &cell, &execution, CancelReason::Requested);
        }
    }
}
