//! The claimer: claims the units that this pool accepted and that are due: those in line, and those that are to be tried again; and
//! those that nobody accepted, while somebody wants them to be [pulled](super::pull). It sleeps until something is due and a place is free.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::cell::WorkerCell;
use super::core::{Core, NoWorker};
use super::ledger::Left;
use super::line::Claimable;
use super::open_unit::OpenUnit;
use super::ready::{Pick, PickOrAsk};
use super::reporter::Report;
use super::stats::PoolPhase;
use super::timers::due_ms;
use super::{close, homes, inside, pull, scheduler, slot, stopping};
use crate::attempt::{AttemptKey, FailureKind, Outcome};
use crate::error::RepositoryError;
use crate::lease::{Claim, Lease};
use crate::panics;
use crate::repository::{ClaimRequest, Scope};
use crate::unit::{UnitKey, UnitStatus, WorkUnit};

/// How long to wait before asking a repository again that failed.
const PAUSE_AFTER_FAILURE: Duration = Duration::from_secs(1);

/// The life of the claimer's thread.
pub(super) fn serve(core: &Arc<Core>) {
    // A scheduler is the user's code, and must not wait here for what only this thread can give out.
    inside::enter(core.number);
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
    let picks = pick(core);
    // A scheduler is asked while no place is taken.
    let places = if core.scheduler.is_none() || picks.is_empty() { pull::take_places(core) } else { Vec::new() };
    if picks.is_empty() && places.is_empty() {
        return false;
    }
    let picks: Vec<Picked> = picks.into_iter().filter_map(|pick| give_worker(core, pick)).collect();
    let open: Vec<_> = places.into_iter().filter_map(|taken| pull::give_worker(core, taken)).collect();
    if picks.is_empty() && open.is_empty() {
        return true;
    }
    let ends_before = core.ready.ends();
    match claim(core, &picks, &open) {
        // What was picked and not granted has ended, or is not due yet by the repository's calendar.
        Ok(claims) => {
            let keys: HashSet<UnitKey> = picks.iter().map(|picked| picked.key).collect();
            let (own, pulled) = claims.into_iter().partition(|claim| keys.contains(&claim.lease.unit));
            pull::hand_out(core, open, pulled);
            look_after(core, hand_out(core, picks, own));
        }
        // One of them has crashed meanwhile, or the pool stops, and nothing was granted. It takes nothing more, so that it is not picked again.
        Err(RepositoryError::Illegal { .. })
            if is_stopping(core) || workers(&picks, &open).any(|cell| !cell.is_up()) =>
        {
            give_back(core, picks, open);
        }
        // What is due stays so, until there is money for it.
        Err(RepositoryError::OverBudget(over)) => {
            close::hold_until_funded(core, &over, ends_before);
            give_back(core, picks, open);
        }
        Err(error) => {
            log::warn!("{}: what is due could not be claimed: {error}", core.job.id);
            for picked in &picks {
                slot::give_back_after(core, &picked.cell, &error);
            }
            pull::give_up(core, open, PAUSE_AFTER_FAILURE, |cell| slot::give_back_after(core, cell, &error));
            if !picks.is_empty() {
                put_off(core);
            }
        }
    }
    true
}

/// Nothing was claimed: the units wait as before, and the workers are free.
fn give_back(core: &Core, picks: Vec<Picked>, open: Vec<Arc<WorkerCell>>) {
    for Picked { key, cell, .. } in picks {
        core.ready.unpick(key);
        slot::give_back(core, &cell, None);
    }
    pull::give_up(core, open, Duration::ZERO, |cell| slot::give_back(core, cell, None));
}

fn is_stopping(core: &Core) -> bool {
    core.ready.phase() == PoolPhase::Draining
}

/// The workers that units are claimed for.
fn workers<'a>(picks: &'a [Picked], open: &'a [Arc<WorkerCell>]) -> impl Iterator<Item = &'a Arc<WorkerCell>> {
    picks.iter().map(|picked| &picked.cell).chain(open)
}

/// Claims what was picked for its workers, and whatever waits for anybody for the others, all at once.
fn claim(core: &Core, picks: &[Picked], open: &[Arc<WorkerCell>]) -> Result<Vec<Claim>, RepositoryError> {
    let claimant = core.claimant();
    let named = picks.iter().map(|picked| core.slot_of(&picked.cell).for_unit(picked.key));
    let slots = named.chain(open.iter().map(|cell| core.slot_of(cell))).collect();
    let scope = if open.is_empty() { Scope::Accepted } else { Scope::Open };
    let request = ClaimRequest::new(core.job.id, claimant.clone(), scope, slots);
    // The workers that are taken for it must come free, whatever happens.
    let surely = |verb: &dyn Fn() -> Result<Vec<Claim>, RepositoryError>| {
        panics::contain("a claim", verb).unwrap_or_else(|| Err(RepositoryError::storage("it panicked")))
    };
    let mut answer = surely(&|| core.repository().claim(&request));
    let is_unknown = |answer: &Result<_, RepositoryError>| answer.as_ref().is_err_and(|error| !error.is_rejection());
    if is_unknown(&answer) {
        answer = surely(&|| core.repository().claimed(claimant.owner, claimant.token));
        // Of units that nobody here has heard of nobody else would ask: it is asked until there is an answer.
        while is_unknown(&answer) && !open.is_empty() && core.ready.phase() == PoolPhase::Running {
            core.ready.claimer.wait(Some(PAUSE_AFTER_FAILURE));
            answer = surely(&|| core.repository().claimed(claimant.owner, claimant.token));
        }
        match &answer {
            // A storage that fails is not asked again at once.
            Ok(claims) if claims.is_empty() => core.ready.claimer.wait(Some(PAUSE_AFTER_FAILURE)),
            answer if is_unknown(answer) => {
                core.doubts.lock().unwrap_or_else(PoisonError::into_inner).push(claimant.token);
            }
            _ => {}
        }
    }
    answer
}

/// A unit that is due, and the worker that it is claimed for.
struct Picked {
    key: UnitKey,
    unit: Arc<OpenUnit>,
    cell: Arc<WorkerCell>,
}

/// The units whose turn it is, each with its place.
fn pick(core: &Core) -> Vec<Pick> {
    if core.scheduler.is_none() {
        return core.ready.pick_due(usize::MAX, None, core.now_ms());
    }
    // One by one: each choice depends on the one before, and a pool that stops need not wait for places until a scheduler answers.
    match core.ready.pick_or_ask(core.now_ms()) {
        PickOrAsk::Picked(pick) => pick.into_iter().collect(),
        PickOrAsk::Ask => {
            let wish = scheduler::wish(core);
            core.ready.end_asking();
            core.ready.pick_due(1, wish, core.now_ms())
        }
    }
}

/// The worker for a unit that has a place; `None` if there is none after all.
fn give_worker(core: &Arc<Core>, pick: Pick) -> Option<Picked> {
    let Pick { key, unit, strict_key, taken } = pick;
    match core.worker_for(taken, strict_key.as_ref()) {
        Ok(cell) => return Some(Picked { key, unit, cell }),
        // It is due, and gets the next place.
        Err(NoWorker::NoPlace) => core.ready.unpick(key),
        Err(NoWorker::Thread(error)) => {
            log::error!("{}: no thread for a worker: {error}", core.job.id);
            // A system without threads will not have one at once.
            put_off(core);
        }
    }
    None
}

/// What is due waits for a while, all of it: nothing is to overtake what was to be claimed.
fn put_off(core: &Core) {
    core.ready.put_off_due(core.in_ms(PAUSE_AFTER_FAILURE));
}

/// Each claim goes to the worker that it was made for; workers without one are free again. Returns the units that were not granted.
fn hand_out(core: &Core, picks: Vec<Picked>, claims: Vec<Claim>) -> Vec<(UnitKey, Arc<OpenUnit>)> {
    let mut claims: HashMap<_, _> = claims.into_iter().map(|claim| (claim.lease.unit, claim)).collect();
    let mut left = Vec::new();
    for Picked { key, unit, cell } in picks {
        let Some(claim) = claims.remove(&key) else {
            // Until it is known why, it goes before those who wait for a place.
            core.ready.unpick(key);
            slot::give_back(core, &cell, None);
            left.push((key, unit));
            continue;
        };
        let claimable = Claimable::of(&claim.unit, core.settings.affinity);
        match core.ready.claimed(claim.lease.attempt(), claim.lease.unit_id.as_str(), &claimable, cell.number) {
            Some(unit) if homes::lives_here(core, &unit, &claimable) => core.hand_over(&cell, claim, &unit),
            Some(unit) => {
                core.put_back(
                    &cell,
                    &core.execution(&cell, claim, &unit),
                    pull::PAUSE,
                    "its session is in another pool",
                );
            }
            // The pool began to stop, and has said that it stays PENDING.
            None => give_up(core, &claim.lease, &cell),
        }
    }
    left
}

/// Gives back a claim that nobody waits for any more, at once: its worker may have others in hand, for as long as those take.
pub(super) fn give_up(core: &Core, lease: &Lease, cell: &WorkerCell) {
    // The claim has recorded it, though it has never heard of the unit.
    cell.note_row();
    match panics::contain("giving back", || core.repository().release(lease, None, "the pool stops")) {
        Some(Ok(_)) => {
            slot::give_back(core, cell, None);
            stopping::let_go(core);
        }
        // Then it goes back with its worker.
        Some(Err(_)) | None => slot::dismiss(core, cell),
    }
}

/// Finds out what has become of units that wait here.
pub(super) fn look_after(core: &Core, units: Vec<(UnitKey, Arc<OpenUnit>)>) {
    for (key, unit) in units {
        // Before it is read: brought again after that, it may be this pool's once more.
        let arrivals = core.ready.arrivals(key).map_or(0, |(_, arrivals)| arrivals);
        let stored = core.repository().unit(core.job.id, unit.id());
        // Somebody has submitted it once more meanwhile, and who has it tells. Asked only now: whatever has ended here ran before.
        if core.ready.is_running(key) {
            continue;
        }
        match stored {
            Ok(stored) if stored.status == UnitStatus::Pending && core.has_accepted(&stored) => {
                let now = core.clock.now();
                let again_ms = match core.ready.is_overdue(key) {
                    // The repository grants it to nobody, and will say so once it has been swept.
                    true => core.in_ms(PAUSE_AFTER_FAILURE),
                    false => now.boot_ms + 1,
                };
                core.ready.wait_again(key, due_ms(stored.not_before, now).max(again_ms));
            }
            // It runs here: by a submission that is not yet over, or by a claim whose answer was lost.
            Ok(stored) if stored.status.is_leased() && core.has_accepted(&stored) => {
                core.resolve_doubts();
                core.ready.wait_again(key, core.in_ms(PAUSE_AFTER_FAILURE));
            }
            Ok(stored) => waits_no_more(core, &stored, arrivals),
            Err(RepositoryError::UnknownUnit { .. }) => is_gone(core, key),
            Err(error) => {
                log::warn!("unit {}: could not be read: {error}", unit.id());
                core.ready.wait_again(key, core.in_ms(PAUSE_AFTER_FAILURE));
            }
        }
    }
}

/// Finds out what has become of units of which the repository says that they do not wait for this pool.
pub(super) fn look_for(core: &Core, keys: impl IntoIterator<Item = UnitKey>) {
    for key in keys {
        let Some((unit, arrivals)) = core.ready.arrivals(key) else { continue };
        let stored = core.repository().unit(core.job.id, unit.id());
        // As above.
        if core.ready.is_running(key) {
            continue;
        }
        match stored {
            // It is about to run here, or has been given back meanwhile.
            Ok(stored) if !stored.status.is_terminal() && core.has_accepted(&stored) => {}
            Ok(stored) => waits_no_more(core, &stored, arrivals),
            Err(RepositoryError::UnknownUnit { .. }) => is_gone(core, key),
            Err(error) => log::warn!("unit {}: could not be read: {error}", unit.id()),
        }
    }
}

/// A unit that waited here has ended, or is somebody else's, as it was read after it had been brought here so often.
fn waits_no_more(core: &Core, stored: &WorkUnit, arrivals: u64) {
    let after = AttemptKey { unit: stored.key, number: stored.attempt_count };
    if stored.status.is_terminal() && was_ours(core, stored) {
        ended(core, after, stored.status, stored.failure.as_ref().map(|failure| &failure.kind));
    } else if let Some(unit) = core.ready.unit_is_lost(after, arrivals) {
        unit.leave(Left::Lost);
    }
}

/// Whether this pool had a unit when it ended, and so nobody else tells: it waited for this pool, or was ended by an attempt of its own
/// that could not be closed at first. What was taken from it and ended then, whoever took it has told.
fn was_ours(core: &Core, stored: &WorkUnit) -> bool {
    if stored.accepted_by.is_some() || core.ready.is_later(stored.key, stored.attempt_count) {
        return core.has_accepted(stored);
    }
    let attempts = core.repository().attempts(stored.key).unwrap_or_default();
    attempts.last().is_some_and(|last| last.owner == core.owner() && last.outcome != Some(Outcome::Lost))
}

/// There is no such unit any more.
fn is_gone(core: &Core, key: UnitKey) {
    ended(core, AttemptKey { unit: key, number: u32::MAX }, UnitStatus::Cancelled, None);
}

/// A unit ended without a worker, in a failure of this kind if in one: the reporter tells, if it was this pool's. Says whether it was.
pub(super) fn ended(core: &Core, after: AttemptKey, status: UnitStatus, kind: Option<&FailureKind>) -> bool {
    let Some(unit) = core.ready.unit_ends(after, status, kind) else { return false };
    core.reports.put(Report::Ended { key: after.unit, unit, status });
    true
}
