//! Cancelling a unit of the pool's job: what waits has ended with that, what is executed is asked to stop.

use std::sync::Arc;

use super::core::Core;
use super::execution::Execution;
use super::{claimer, supervisor};
use crate::attempt::AttemptKey;
use crate::error::RepositoryError;
use crate::executor::CancelReason;
use crate::repository::{By, CancelAnswer};
use crate::unit::UnitStatus;

/// Cancels a unit in the repository, then here.
pub(super) fn cancel(core: &Core, id: &str, by: &By) -> Result<CancelAnswer, RepositoryError> {
    let answer = core.repository().cancel(core.job.id, id, by)?;
    match answer {
        CancelAnswer::Cancelled => {
            let stored = core.repository().unit(core.job.id, id)?;
            // Requeued since, it may run again, and that is not what was cancelled. Of what waited for another pool that one tells.
            if stored.status == UnitStatus::Cancelled && core.has_accepted(&stored) {
                let after = AttemptKey { unit: stored.key, number: stored.attempt_count };
                claimer::ended(core, after, stored.status, None);
            }
        }
        CancelAnswer::Requested | CancelAnswer::AlreadyRequested => {
            let stored = core.repository().unit(core.job.id, id)?;
            if stored.status != UnitStatus::CancelRequested {
                return Ok(answer);
            }
            if let Some(token) = core.ready.get_or_submitting(stored.key, id).and_then(|unit| unit.request_cancel()) {
                token.cancel(CancelReason::Requested);
            }
            let is_it = |execution: &Arc<Execution>| execution.claim.lease.unit == stored.key;
            for cell in core.registry.snapshot() {
                for execution in cell.executing().into_iter().filter(is_it) {
                    supervisor::ask_to_stop(core, &cell, &execution, CancelReason::Requested);
                }
            }
        }
        CancelAnswer::AlreadyEnded(_) => {}
    }
    Ok(answer)
}
