//! Submitting: one place, one worker, one transaction.
//!
//! | the unit is | what the caller gets |
//! |---|---|
//! | new, or PENDING and due | a handle; the unit is stored, claimed, and with its worker |
//! | PENDING, not yet due | a handle; the pool claims it when it is due, the place is free again |
//! | being executed | a handle to the running unit, the place is free again |
//! | ended | a handle that has its end already; no callback, the place is free again |
//! | any of these, in a place promised before the pool was held | the same; what was claimed goes back unexecuted until `resume` |
//! | there with another content | [`Conflict`](crate::RepositoryError::Conflict) |
//! | bound to a worker that is busy | a handle; the unit waits in line for that worker, or is refused: see [`Affinity`](crate::Affinity) |
//!
//! So a loop that submits can be run again after any crash.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::capacity::Right;
use super::cell::WorkerCell;
use super::core::{Core, NoWorker};
use super::error::{Refusal, SubmitError};
use super::handle::UnitHandle;
use super::ledger::Left;
use super::open_unit::OpenUnit;
use super::ready::{Arrival, Place};
use super::stats::PoolPhase;
use super::timers::due_ms;
use super::{enqueue, homes, slot};
use crate::attempt::AttemptKey;
use crate::error::RepositoryError;
use crate::prompt::Prompt;
use crate::repository::{Claimant, Submitted};
use crate::unit::{NewUnit, UnitKey, WorkUnit};

/// How long to wait for a claim to be given back of which nothing is known here.
const PAUSE_AFTER_DOUBT: Duration = Duration::from_millis(100);

/// Takes a unit: see the [module](self).
pub(super) fn submit(core: &Arc<Core>, right: Right, unit: NewUnit, prompt: Prompt) -> Result<UnitHandle, SubmitError> {
    let drop_permit = || {
        if right == Right::Permit {
            core.ready.drop_permit();
        }
    };
    let unit = with_prompt(core, unit, prompt).inspect_err(|_| drop_permit())?;
    let claimable = core.claimable(&unit);
    let submitted = homes::move_in(core, &claimable).inspect_err(|_| drop_permit()).and_then(|stay| {
        let (place, arrival) = core.ready.begin_submission(right, &core.coming(&unit, &claimable))?;
        arrival.unit.stay(stay);
        bring(core, place, arrival, &unit)
    });
    match submitted {
        Ok(open) => Ok(UnitHandle::new(core, open)),
        Err(reason) => Err(SubmitError { unit: Box::new(unit), reason }),
    }
}

/// Brings a unit to its place.
pub(super) fn bring(
    core: &Arc<Core>,
    place: Place,
    mut arrival: Arrival,
    unit: &NewUnit,
) -> Result<Arc<OpenUnit>, Refusal> {
    let Place::Worker(taken) = place else { return enqueue::wait_in_line(core, &arrival, unit) };
    let given = match core.worker_for(taken, arrival.claimable.strict_key()) {
        Ok(cell) => give_to_worker(core, &cell, &arrival, unit)?,
        Err(NoWorker::NoPlace) => None,
        Err(NoWorker::Thread(error)) => {
            core.ready.submission_ends(&arrival);
            return Err(Refusal::Thread(error));
        }
    };
    match given {
        Some(open) => Ok(open),
        None => {
            core.ready.join_line(&mut arrival);
            enqueue::wait_in_line(core, &arrival, unit)
        }
    }
}

/// The unit with the prompt that it is submitted with, if there is anything to send.
pub(super) fn with_prompt(core: &Core, mut unit: NewUnit, prompt: Prompt) -> Result<NewUnit, SubmitError> {
    let refused = |unit, reason| Err(SubmitError { unit: Box::new(unit), reason });
    if !prompt.put_into(&mut unit) {
        return refused(unit, Refusal::TwoPrompts);
    }
    let can_send = |prompt: &Option<String>, template: &Option<String>| prompt.is_some() || template.is_some();
    if can_send(&unit.prompt, &unit.template) || core.job.template.is_some() {
        return Ok(unit);
    }
    // It may have been stored with a prompt before.
    match core.repository().unit(core.job.id, &unit.id) {
        Ok(stored) if can_send(&stored.prompt, &stored.template) => Ok(unit),
        Ok(_) | Err(RepositoryError::UnknownUnit { .. }) => refused(unit, Refusal::NoPrompt),
        Err(error) => refused(unit, Refusal::Repository(error)),
    }
}

/// Stores the unit, claims it and hands it to the worker that was taken for it; `None` if that has crashed meanwhile.
fn give_to_worker(
    core: &Arc<Core>,
    cell: &Arc<WorkerCell>,
    arrival: &Arrival,
    unit: &NewUnit,
) -> Result<Option<Arc<OpenUnit>>, Refusal> {
    loop {
        let changes = core.ready.changes(&unit.id);
        let submitted = catch_unwind(AssertUnwindSafe(|| submit_surely(core, unit, cell))).unwrap_or_else(|payload| {
            // Nobody knows whether it was done: what the worker may hold is given back with it.
            slot::dismiss(core, cell);
            core.ready.submission_ends(arrival);
            resume_unwind(payload)
        });
        let found = match submitted {
            Ok(Submitted::Claimed(claim)) => {
                let open = core.ready.submission_runs(claim.lease.attempt(), arrival, cell.number);
                core.hand_over(cell, *claim, &open);
                return Ok(Some(open));
            }
            Ok(Submitted::Waiting(stored)) => {
                let until_ms = due_ms(stored.not_before, core.clock.now());
                wait_until(core, &stored, stored.attempt_count, until_ms, arrival, changes)
            }
            Ok(Submitted::Running(stored)) if is_lost_here(core, &stored) => {
                // Once it was given back, the attempt that nobody here knows of is followed by another.
                let before = stored.attempt_count.saturating_sub(1);
                wait_until(core, &stored, before, core.in_ms(PAUSE_AFTER_DOUBT), arrival, changes)
                    .inspect(|_| core.ready.keep_place(stored.key))
            }
            Ok(Submitted::Running(stored)) => attach(core, stored.key, arrival, changes),
            Ok(Submitted::Finished(stored)) => {
                core.ready.submission_ends(arrival);
                Some(ended(core, &stored))
            }
            // Or the records say already that it takes nothing more.
            Err(RepositoryError::Illegal { .. }) if !cell.is_up() || core.ready.phase() == PoolPhase::Draining => {
                slot::give_back(core, cell, None);
                return Ok(None);
            }
            Err(error) => {
                // If it was done after all, the worker holds what nobody here knows of, and must not take anything else.
                slot::give_back_after(core, cell, &error);
                core.ready.submission_ends(arrival);
                return Err(Refusal::Repository(error));
            }
        };
        // It may have begun or ended here since that was found out.
        if found.is_some() {
            slot::give_back(core, cell, None);
            return Ok(found);
        }
    }
}

/// A unit that has ended, though its callback may be running here.
pub(super) fn ended(core: &Core, stored: &WorkUnit) -> Arc<OpenUnit> {
    let ended = || OpenUnit::with_left(stored.id.as_str(), stored.key, Left::Ended(stored.status));
    core.ready.get(stored.key).unwrap_or_else(|| Arc::new(ended()))
}

/// A unit that is being executed, here or elsewhere. `None` if it has left since it was looked at.
pub(super) fn attach(core: &Core, key: UnitKey, arrival: &Arrival, changes: u64) -> Option<Arc<OpenUnit>> {
    arrival.unit.set_key(key);
    let open = core.ready.submission_attaches(key, arrival, changes)?;
    core.heartbeat.wake();
    Some(open)
}

/// Submits to the repository, and looks again if the answer was lost.
fn submit_surely(core: &Core, unit: &NewUnit, cell: &WorkerCell) -> Result<Submitted, RepositoryError> {
    let claimant = core.claimant();
    let submit = || core.repository().submit(core.job.id, unit, &claimant, &core.slot_of(cell));
    let answer = match submit() {
        Err(error) if !error.is_rejection() => {
            log::warn!("unit {}: the answer to its submission was lost, looking again: {error}", unit.id);
            match claimed(core, &claimant) {
                Ok(None) => submit(),
                Ok(Some(claimed)) => return Ok(claimed),
                Err(error) => Err(error),
            }
        }
        answer => answer,
    };
    match answer {
        Ok(Submitted::Running(stored)) if is_lost_here(core, &stored) => {
            core.resolve_doubts();
            submit()
        }
        Err(error) if !error.is_rejection() => {
            // If it was done after all, nobody here knows: the heartbeat will give it back.
            core.doubts.lock().unwrap_or_else(PoisonError::into_inner).push(claimant.token);
            Err(error)
        }
        answer => answer,
    }
}

/// What a request was granted whose answer was lost.
fn claimed(core: &Core, claimant: &Claimant) -> Result<Option<Submitted>, RepositoryError> {
    let claims = core.repository().claimed(claimant.owner, claimant.token)?;
    Ok(claims.into_iter().next().map(|claim| Submitted::Claimed(Box::new(claim))))
}

/// Whether this pool holds a unit of which it has lost the claim.
pub(super) fn is_lost_here(core: &Core, unit: &WorkUnit) -> bool {
    let has_doubts = !core.doubts.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    has_doubts && unit.accepted_by == Some(core.owner()) && core.ready.get(unit.key).is_none()
}

/// The pool takes the unit upon itself, and claims it when its time has come. `None` if that has come since it was looked at.
fn wait_until(
    core: &Core,
    stored: &WorkUnit,
    after: u32,
    until_ms: i64,
    arrival: &Arrival,
    changes: u64,
) -> Option<Arc<OpenUnit>> {
    let after = AttemptKey { unit: stored.key, number: after };
    arrival.unit.set_key(stored.key);
    let (open, waits) = core.ready.submission_waits(after, arrival, until_ms, changes)?;
    if !waits {
        open.leave(Left::Pending);
    }
    Some(open)
}
