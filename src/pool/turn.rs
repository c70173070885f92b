//! The turn of an attempt to ask its provider: taken before its first request, and by the executor before each further one.
//!
//! Whoever has to wait does so in its slot, with no lock held, in a [line](super::turn_line). That keeps nobody from working: all other
//! workers of the pool wait for the same provider. A stop, a cancel or a hold ends the wait, and the attempt is given back, uncounted.

use std::time::Duration;

use super::close::patiently;
use super::core::Core;
use super::execution::Execution;
use super::judge::{End, How, release};
use super::provider;
use super::run::end_while_waiting;
use super::turn_line::Stage;
use crate::error::RepositoryError;
use crate::executor::{ExecuteError, kinds};
use crate::limits::{Ask, Limit, ProviderHold, Turn};

/// Who waits looks at least this often whether it is still to.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Why an attempt has no turn.
enum NoTurn {
    /// It does not begin.
    Ends(Box<End>),
    /// The provider is not to be asked yet.
    Held(ProviderHold),
}

/// Waits for the first turn of an attempt. `None` once it has it.
pub(super) fn end_without_turn(core: &Core, execution: &Execution, prompt: &str) -> Option<End> {
    let ask = Ask::of_bytes(prompt.len(), core.answer_tokens);
    match wait(core, execution, Stage::Begins, &ask, || end_while_waiting(core, execution)).err()? {
        NoTurn::Ends(end) => Some(*end),
        NoTurn::Held(hold) => {
            provider::obey(core, &hold);
            Some(release("its provider is not to be asked yet"))
        }
    }
}

/// Waits for a further turn, for the executor that asks for it.
pub(super) fn next(core: &Core, execution: &Execution, ask: &Ask) -> Result<(), ExecuteError> {
    // What has begun goes on also while the pool is held, or drains.
    let is_over = || execution.cancel.is_cancelled().then(|| End::new(How::Lost));
    match wait(core, execution, Stage::GoesOn, ask, is_over) {
        Ok(()) => Ok(()),
        Err(NoTurn::Held(ProviderHold { until, reason, .. })) => {
            Err(ExecuteError::hold_until(until, reason).kind(kinds::RATE_LIMITED))
        }
        Err(NoTurn::Ends(_)) => {
            Err(ExecuteError::retry("it is not to ask its provider any more").kind(kinds::CANCELLED))
        }
    }
}

fn wait(
    core: &Core,
    execution: &Execution,
    stage: Stage,
    ask: &Ask,
    is_over: impl Fn() -> Option<End>,
) -> Result<(), NoTurn> {
    let Some(provider) = &core.provider else { return Ok(()) };
    let Some(limits) = &core.settings.rate_limits else { return look(core, execution, provider) };
    let lease = &execution.claim.lease;
    let place = core.turns.join(stage);
    let nudge = place.nudge();
    let _wakes = execution.cancel.on_cancel(move || nudge.wake());
    loop {
        let mut pause = LOOK_EVERY;
        if place.is_first() {
            let take = || core.repository().take_turn(lease, provider, limits, ask);
            match read(patiently(core, &lease.unit_id, take))? {
                None => return Ok(()),
                Some((after, limit)) => {
                    log::trace!("unit {}: waits {after:?} for its turn at {provider}: {limit}", lease.unit_id);
                    pause = pause.min(after);
                }
            }
        }
        place.wait(pause);
        if let Some(end) = is_over() {
            return Err(ends(end));
        }
    }
}

/// Without limits it is everybody's turn, unless the provider is held. To look is enough, and costs no commit.
fn look(core: &Core, execution: &Execution, provider: &str) -> Result<(), NoTurn> {
    let held = || core.repository().holds().map(|holds| holds.into_iter().find(|hold| hold.provider == provider));
    let turn = patiently(core, &execution.claim.unit.id, || Ok(held()?.map_or(Turn::Taken, Turn::Held)));
    read(turn).map(drop)
}

/// How long it is to be waited, and for what, if it is not its turn.
fn read(turn: Result<Turn, RepositoryError>) -> Result<Option<(Duration, Limit)>, NoTurn> {
    match turn {
        Ok(Turn::Taken) => Ok(None),
        Ok(Turn::Later { after, limit }) => Ok(Some((after, limit))),
        Ok(Turn::Held(hold)) => Err(NoTurn::Held(hold)),
        Err(RepositoryError::Stale { .. }) => Err(ends(End::new(How::Lost))),
        Err(error) => Err(ends(release(&format!("its turn could not be stored: {error}")))),
    }
}

fn ends(end: End) -> NoTurn {
    NoTurn::Ends(Box::new(end))
}
