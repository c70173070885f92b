//! The claimer: claims the units that this pool accepted and that are due: those in line, and those that are to be tried again.
//! It sleeps until something is due and a place is free.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::cell::WorkerCell;
use super::core::Core;
use super::ledger::Left;
use super::open_unit::OpenUnit;
use super::reporter::Report;
use super::timers::due_ms;
use super::{panics, slot};
use crate::attempt::{AttemptKey, FailureKind};
use crate::error::RepositoryError;
use crate::lease::Claim;
use crate::repository::{ClaimRequest, Scope};
use crate::unit::{UnitKey, UnitStatus};

/// How long to wait before asking a repository again that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The life of the claimer's thread.
pub(super) fn serve(core: &Arc<Core>) {
    while !core.is_ending() {
        match panics::contain("the claimer", || claim_due(core)) {
            Some(true) => {}
            Some(false) => core.ready.claimer.wait(None),
            // What is due still is, and nobody will say so again.
            None => core.ready.claimer.wait(Some(PAUSE_AFTER_FAILURE)),
        }
    }
}

/// Claims what is due, as far as there are places; `false` if there was nothing to do.
fn claim_due(core: &Arc<Core>) -> bool {
    let cells = workers_for_due(core);
    if cells.is_empty() {
        core.ready.claim_ends();
        return false;
    }
    // What falls due later is not to be looked for in the answer.
    let dues_before = core.ready.dues_ever();
    let claimant = core.claimant();
    let slots = cells.iter().map(|cell| core.slot_of(cell)).collect();
    let request = ClaimRequest::new(core.job.id, claimant.clone(), Scope::Accepted, slots);
    let claim = || match core.repository().claim(&request) {
        Err(error) if !error.is_rejection() => {
            core.repository().claimed(claimant.owner, claimant.token).inspect_err(|_| {
                core.doubts.lock().unwrap_or_else(PoisonError::into_inner).push(claimant.token);
            })
        }
        answer => answer,
    };
    // The workers that are taken for it must come free, whatever happens.
    let answer = panics::contain("a claim", claim).unwrap_or_else(|| Err(RepositoryError::storage("it panicked")));
    let handed_out = answer.map(|claims| {
        let is_short = claims.len() < cells.len();
        hand_out(core, &cells, claims);
        is_short
    });
    core.ready.claim_ends();
    match handed_out {
        Ok(is_short) => {
            if is_short {
                // What is due here but was not granted: it has ended, or is not due yet by the repository's calendar.
                look_after(core, core.ready.due(dues_before));
            }
        }
        Err(error) => {
            log::warn!("{}: what is due could not be claimed: {error}", core.job.id);
            for cell in cells {
                slot::give_back_after(core, &cell, &error);
            }
            put_off(core);
        }
    }
    true
}

/// A place and a worker for each unit that is due, as far as there are any.
fn workers_for_due(core: &Arc<Core>) -> Vec<Arc<WorkerCell>> {
    let start = |taken| core.worker_for(taken).inspect_err(|error| log::error!("no worker: {error:?}")).ok();
    let places = core.ready.take_for_due();
    let has_places = !places.is_empty();
    let cells: Vec<_> = places.into_iter().filter_map(start).collect();
    if has_places && cells.is_empty() {
        // A system without threads will not have one at once.
        put_off(core);
    }
    cells
}

/// What is due waits for a while.
fn put_off(core: &Core) {
    let until_ms = core.in_ms(PAUSE_AFTER_FAILURE);
    for (key, _) in core.ready.due(u64::MAX) {
        core.ready.wait_again(key, until_ms);
    }
}

/// Each claim goes to the worker that it was made for; workers without one are free again.
fn hand_out(core: &Core, cells: &[Arc<WorkerCell>], claims: Vec<Claim>) {
    let mut claims: HashMap<_, _> = claims.into_iter().map(|claim| (claim.lease.worker_id.clone(), claim)).collect();
    for cell in cells {
        let Some(claim) = claims.remove(&cell.id) else {
            slot::give_back(core, cell, None);
            continue;
        };
        match core.ready.claimed(claim.lease.attempt(), claim.lease.unit_id.as_str(), cell.number) {
            Some(unit) => core.hand_over(cell, claim, &unit),
            // The pool began to stop, and has said that it stays PENDING: it goes back with its worker.
            None => slot::dismiss(core, cell),
        }
    }
}

/// Finds out what has become of units that wait here.
pub(super) fn look_after(core: &Core, units: Vec<(UnitKey, Arc<OpenUnit>)>) {
    for (key, unit) in units {
        let after = |number| AttemptKey { unit: key, number };
        match core.repository().unit(core.job.id, unit.id()) {
            Ok(stored) if stored.status == UnitStatus::Pending && stored.accepted_by == Some(core.owner()) => {
                let now = core.clock.now();
                let again_ms = match core.ready.is_overdue(key) {
                    // The repository grants it to nobody, and will say so once it has been swept.
                    true => core.in_ms(PAUSE_AFTER_FAILURE),
                    false => now.boot_ms + 1,
                };
                core.ready.wait_again(key, due_ms(stored.not_before, now).max(again_ms));
            }
            // It runs here: by a submission that is not yet over, or by a claim whose answer was lost.
            Ok(stored) if stored.status.is_leased() && stored.accepted_by == Some(core.owner()) => {
                core.resolve_doubts();
                core.ready.wait_again(key, core.in_ms(PAUSE_AFTER_FAILURE));
            }
            // Nobody else has executed it, so nobody else tells.
            Ok(stored) if stored.status.is_terminal() && !core.ready.is_later(key, stored.attempt_count) => {
                let kind = stored.failure.as_ref().map(|failure| &failure.kind);
                ended(core, after(stored.attempt_count), stored.status, kind);
            }
            // Somebody else has it, or had it.
            Ok(stored) => {
                if let Some(unit) = core.ready.unit_leaves(after(stored.attempt_count), Left::Lost) {
                    unit.leave(Left::Lost);
                }
            }
            Err(RepositoryError::UnknownUnit { .. }) => {
                ended(core, after(u32::MAX), UnitStatus::Cancelled, None);
            }
            Err(error) => {
                log::warn!("unit {}: could not be read: {error}", unit.id());
                core.ready.wait_again(key, core.in_ms(PAUSE_AFTER_FAILURE));
            }
        }
    }
}

/// A unit ended without a worker, in a failure of this kind if in one: the reporter tells, if it was this pool's.
pub(super) fn ended(core: &Core, after: AttemptKey, status: UnitStatus, kind: Option<&FailureKind>) {
    if let Some(unit) = core.ready.unit_ends(after, status, kind) {
        core.reports.put(Report::Ended { key: after.unit, unit, status });
    }
}
