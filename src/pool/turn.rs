//! The turn of an attempt to ask its provider: taken before its first request, and by the executor before each further one.
//!
//! Whoever has to wait does so in its slot, with no lock held. That keeps nobody from working: all other workers of the pool wait for the
//! same provider. A stop, a cancel or a hold ends the wait, and the attempt is given back, uncounted.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::close::{hold_here, patiently};
use super::core::Core;
use super::execution::Execution;
use super::judge::{End, How, release};
use super::run::end_while_waiting;
use crate::error::RepositoryError;
use crate::executor::{ExecuteError, kinds};
use crate::limits::{Ask, ProviderHold, Turn};

/// Who waits looks at least this often whether it is still to.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why an attempt has no turn.
enum NoTurn {
    /// It does not begin.
    Ends(Box<End>),
    /// The provider is not to be asked before that.
    Held { until: DateTime<Utc>, reason: String },
}

/// Waits for the first turn of an attempt. `None` once it has it.
pub(super) fn end_without_turn(core: &Core, execution: &Execution, prompt: &str) -> Option<End> {
    let ask = Ask::of_bytes(prompt.len(), core.answer_tokens);
    match wait(core, execution, &ask, || end_while_waiting(core, execution)).err()? {
        NoTurn::Ends(end) => Some(*end),
        NoTurn::Held { until, reason } => {
            // Whoever stored it has told the others.
            hold_here(core, Some(until), &reason);
            Some(release("its provider is not to be asked yet"))
        }
    }
}

/// Waits for a further turn, for the executor that asks for it.
pub(super) fn next(core: &Core, execution: &Execution, ask: &Ask) -> Result<(), ExecuteError> {
    // What has begun goes on also while the pool is held, or drains.
    let is_over = || execution.cancel.is_cancelled().then(|| End::new(How::Lost));
    match wait(core, execution, ask, is_over) {
        Ok(()) => Ok(()),
        Err(NoTurn::Held { until, reason }) => Err(ExecuteError::hold_until(until, reason).kind(kinds::RATE_LIMITED)),
        Err(NoTurn::Ends(_)) => {
            Err(ExecuteError::retry("it is not to ask its provider any more").kind(kinds::CANCELLED))
        }
    }
}

fn wait(core: &Core, execution: &Execution, ask: &Ask, is_over: impl Fn() -> Option<End>) -> Result<(), NoTurn> {
    let Some(provider) = &core.provider else { return Ok(()) };
    let lease = &execution.claim.lease;
    loop {
        let turn = patiently(core, &execution.claim.unit.id, || match &core.settings.rate_limits {
            Some(limits) => core.repository().take_turn(lease, provider, limits, ask),
            // To look is enough, and costs no commit.
            None => core.repository().holds().map(|holds| held(holds, provider)),
        });
        let pause = match turn {
            Ok(Turn::Taken) => return Ok(()),
            Ok(Turn::Held(ProviderHold { until, reason, .. })) => return Err(NoTurn::Held { until, reason }),
            Ok(Turn::Later { after, limit }) => {
                log::trace!("unit {}: waits {after:?} for its turn at {provider}: {limit}", execution.claim.unit.id);
                after.min(LOOK_EVERY)
            }
            Err(RepositoryError::Stale { .. }) => return Err(ends(End::new(How::Lost))),
            Err(error) => return Err(ends(release(&format!("its turn could not be stored: {error}")))),
        };
        execution.cancel.wait_timeout(pause);
        if let Some(end) = is_over() {
            return Err(ends(end));
        }
    }
}

fn ends(end: End) -> NoTurn {
    NoTurn::Ends(Box::new(end))
}

fn held(holds: Vec<ProviderHold>, provider: &str) -> Turn {
    let hold = holds.into_iter().find(|hold| hold.provider == provider);
    hold.map_or(Turn::Taken, Turn::Held)
}
