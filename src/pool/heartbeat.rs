//! The heartbeat: renews all leases of the pool in one statement, and learns from it what was lost and what is to be cancelled.
//!
//! With each beat it also looks which of the units that wait here do not wait any more, because somebody else cancelled them or has them,
//! whether its provider may be asked, and says of the pool what others should know, if that is new ([`Word`]).
//! What is cancelled in this process it sees to at once.
//! If it cannot renew in time it stops the pool's executions itself, before anybody else may begin the same units; and if it does not
//! come back from renewing, the supervisor does ([`Leases`]).

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::cell::WorkerCell;
use super::core::Core;
use super::execution::Execution;
use super::ledger::Left;
use super::open_unit::OpenUnit;
use super::ready::Stop;
use super::reporter::Report;
use super::stats::PoolPhase;
use super::timers::Alarm;
use super::word::Word;
use super::{claimer, news, provider, slot, start, supervisor};
use crate::attempt::AttemptKey;
use crate::clock::milliseconds;
use crate::error::RepositoryError;
use crate::executor::CancelReason;
use crate::lease::{Held, OwnerId};
use crate::panics;
use crate::repository::{PAGE_LIMIT, Swept};
use crate::sync::thread::JoinHandle;
use crate::unit::{Change, UnitKey, UnitStatus};

/// How often a unit is looked at that another process executes and somebody here waits for.
const WATCH_EVERY: Duration = Duration::from_secs(5);

/// How many leases of the dead are taken back with one beat.
const SWEEP_LIMIT: usize = 1_000;

/// The life of the heartbeat's thread, which counts from the first beat of the pool, however late the thread begins.
pub(super) fn serve(core: &Arc<Core>, mut beat: Beat) {
    while !core.is_ending() {
        panics::contain("the heartbeat", || beat.go(core));
        // Whoever sleeps while the machine does sleeps so much longer: the supervisor may have hours to go.
        core.ready.supervisor.wake();
        if beat.unseen.is_empty() {
            let next_ms = if !core.ready.watched().is_empty() { beat.next_ms.min(beat.watch_ms) } else { beat.next_ms };
            core.heartbeat.wait(Some(supervisor::until(core, next_ms)));
        }
    }
    supervisor::join(beat.catching_up);
    stop_watching(core);
}

/// When the heart beat last, and when it beats next.
#[derive(Debug)]
pub(super) struct Beat {
    next_ms: i64,
    watch_ms: i64,
    /// Whether the records say that the pool stops.
    has_told_of_stop: bool,
    /// What waited here at the last beat and was not looked at since.
    unseen: BTreeSet<UnitKey>,
    /// The thread that does what could not be done before.
    catching_up: Option<JoinHandle<()>>,
    /// What the pool last said of itself.
    word: Word,
}

impl Beat {
    /// The pool has registered just now, and holds nothing yet.
    pub(super) fn first(core: &Core) -> Beat {
        core.note_renewed(core.now_ms());
        core.ready.set_alarm(Leases::last_moment_ms(core), Alarm::Leases);
        let next_ms = core.in_ms(core.settings.heartbeat);
        Beat {
            next_ms,
            watch_ms: 0,
            has_told_of_stop: false,
            unseen: BTreeSet::new(),
            catching_up: None,
            word: Word::default(),
        }
    }

    /// Does whatever is due.
    fn go(&mut self, core: &Arc<Core>) {
        let now_ms = core.now_ms();
        news::look_at_cancelled(core);
        if !self.has_told_of_stop && core.ready.phase() == PoolPhase::Draining {
            self.has_told_of_stop = true;
            // Whoever stops now is over at once.
            if core.ready.stop_mode() != Some(Stop::Now) {
                slot::tell_shutting_down(core);
            }
        }
        let is_beat = now_ms >= self.next_ms;
        if is_beat {
            self.next_ms = core.in_ms(core.settings.heartbeat);
            renew(core);
            self.catch_up(core);
            if is_fresh(core) {
                sweep(core);
                provider::look(core);
            }
            self.unseen = core.ready.waiting().into_iter().collect();
        }
        // While it comes up there is something new all the time. And if not even leases are renewed, the storage has better things to do.
        if (is_beat || core.ready.phase() == PoolPhase::Running) && is_fresh(core) {
            self.word.tell(core);
        }
        self.look_at_waiting(core);
        if core.ready.take_sweep_due() {
            // Should the machine have slept meanwhile, a sweep would take the pool's own leases for lost. Otherwise there is nothing to write.
            if !is_fresh(core) {
                renew(core);
            }
            if is_fresh(core) {
                sweep(core);
            }
            // What is left was failed by somebody else's sweep, or by one of ours whose answer was lost.
            claimer::look_after(core, core.ready.overdue());
            // What was taken back waits for anybody.
            core.ready.work_came();
        }
        if now_ms >= self.watch_ms {
            self.watch_ms = core.in_ms(WATCH_EVERY);
            look_at_watched(core);
        }
    }

    /// Does what could not be done before, on a thread of its own: if the storage fails it may take as long as a lease.
    fn catch_up(&mut self, core: &Arc<Core>) {
        if !core.begin_catching_up() {
            return;
        }
        supervisor::join(self.catching_up.take());
        match start::spawn(core, "workcrew-catching-up", |core| core.catch_up()) {
            Ok(thread) => self.catching_up = Some(thread),
            Err(error) => {
                log::error!("{}: no thread to store what could not be stored: {error}", core.job.id);
                core.catch_up();
            }
        }
    }

    /// Looks at one page of what waits here: what the repository does not know to wait for this pool has ended, or is somebody else's.
    /// The next page has to wait until it is seen whether anything more urgent is due.
    fn look_at_waiting(&mut self, core: &Core) {
        let mut seen = std::mem::take(&mut self.unseen);
        let Some(first) = seen.first() else { return };
        match core.repository().accepted(core.owner(), first.0 - 1, PAGE_LIMIT) {
            Ok(page) => {
                self.unseen = page.next.map(|last| seen.split_off(&UnitKey(last + 1))).unwrap_or_default();
                let waiting: BTreeSet<UnitKey> = page.items.into_iter().collect();
                claimer::look_for(core, seen.difference(&waiting).copied());
            }
            Err(error) => log::warn!("{}: what waits could not be looked at: {error}", core.job.id),
        }
    }
}

/// Whether the pool's own leases are good. If the machine slept since they were renewed, a sweep would take them for lost.
fn is_fresh(core: &Core) -> bool {
    core.now_ms() < core.renewed_at_ms().saturating_add(milliseconds(core.settings.lease) / 2)
}

fn renew(core: &Arc<Core>) {
    let asked_at_ms = core.now_ms();
    match core.repository().renew(core.owner(), core.settings.lease) {
        Ok(held) => {
            core.note_renewed(asked_at_ms);
            compare(core, &held, asked_at_ms);
        }
        Err(RepositoryError::Gone { path }) => {
            log::error!("{}: the database at {path} is gone, the pool stops", core.job.id);
            super::stopping::begin_stop(core, Stop::Now, "its database is gone");
        }
        Err(error @ RepositoryError::UnknownOwner(_)) => {
            // Others have taken it for dead. Nothing is its own any more, and nothing can become so.
            log::error!("{}: the pool was ended by others and stops: {error}", core.job.id);
            let_go_of_all(core);
            let grace = core.settings.kill_grace;
            super::stopping::begin_stop(core, Stop::Cancel { grace }, "others have ended it");
        }
        Err(error) => {
            log::warn!("{}: leases were not renewed: {error}", core.job.id);
            let (lease_ms, beat_ms) = (milliseconds(core.settings.lease), milliseconds(core.settings.heartbeat));
            let was_last_chance = core.now_ms() + beat_ms >= core.renewed_at_ms().saturating_add(lease_ms);
            if error.is_rejection() || was_last_chance {
                let_go_of_all(core);
            }
        }
    }
}

/// Asks everything to stop that is executed: the storage is lost, and with it the right to go on.
fn let_go_of_all(core: &Core) {
    for (cell, execution) in executing(core) {
        execution.forsake();
        supervisor::ask_to_stop(core, &cell, &execution, CancelReason::LeaseLost);
    }
}

/// Sees to it that nothing is executed any more when the leases end, should a renewal neither succeed nor fail: it may wait for a file that
/// somebody has locked, or for a disk, and then begin to be refused when another has the units.
#[derive(Debug, Default)]
pub(super) struct Leases {
    /// The last renewal at the time when the last moment was found to have passed long ago.
    overslept: Option<i64>,
}

impl Leases {
    /// When it is too late to wait for a renewal: half a heartbeat before the leases end, but never before the second one was tried.
    fn last_moment_ms(core: &Core) -> i64 {
        core.renewed_at_ms().saturating_add(milliseconds(core.settings.lease)).saturating_sub(Leases::margin_ms(core))
    }

    fn margin_ms(core: &Core) -> i64 {
        let (lease_ms, beat_ms) = (milliseconds(core.settings.lease), milliseconds(core.settings.heartbeat));
        (beat_ms.min(lease_ms.saturating_sub(beat_ms.saturating_mul(2))) / 2).max(1)
    }

    /// The last moment has come, unless the leases were renewed meanwhile.
    pub(super) fn are_about_to_end(&mut self, core: &Core) {
        let (now_ms, last_moment_ms) = (core.now_ms(), Leases::last_moment_ms(core));
        if now_ms < last_moment_ms {
            core.ready.set_alarm(last_moment_ms, Alarm::Leases);
            return;
        }
        let renewed_at_ms = core.renewed_at_ms();
        // The machine or the process slept: what could be taken away is, and only the repository knows. It is about to be asked.
        let has_overslept = now_ms >= last_moment_ms.saturating_add(Leases::margin_ms(core));
        if has_overslept && self.overslept.replace(renewed_at_ms) != Some(renewed_at_ms) {
            core.heartbeat.wake();
        } else {
            log::warn!("{}: leases were not renewed in time", core.job.id);
            let_go_of_all(core);
        }
        core.ready.set_alarm(core.in_ms(core.settings.heartbeat / 2), Alarm::Leases);
    }
}

/// Stops what was lost, and what somebody asked to cancel.
fn compare(core: &Arc<Core>, held: &[Held], asked_at_ms: i64) {
    let held: HashMap<_, _> = held.iter().map(|held| ((held.unit, held.fence), held.is_cancel_requested)).collect();
    for (cell, execution) in executing(core) {
        let lease = &execution.claim.lease;
        match held.get(&(lease.unit, lease.fence)) {
            Some(true) => {
                execution.unit.request_cancel();
                supervisor::ask_to_stop(core, &cell, &execution, CancelReason::Requested);
            }
            Some(false) => {}
            // Claimed since: the answer could not have it.
            None if execution.claimed_at_ms >= asked_at_ms => {}
            None => {
                log::warn!("unit {}: its lease was lost", lease.unit_id);
                supervisor::ask_to_stop(core, &cell, &execution, CancelReason::LeaseLost);
            }
        }
    }
}

fn executing(core: &Core) -> Vec<(Arc<WorkerCell>, Arc<Execution>)> {
    let cells = core.registry.snapshot();
    let of = |cell: Arc<WorkerCell>| cell.executing().into_iter().map(move |execution| (Arc::clone(&cell), execution));
    cells.into_iter().flat_map(of).collect()
}

/// Takes back what the dead were holding. Those units wait for whoever submits or pulls them. What ended by it and is
/// this pool's own, such as a unit that waited too long, is told.
pub(super) fn sweep(core: &Core) {
    if core.ready.phase() == PoolPhase::Draining {
        return;
    }
    match core.repository().expire(SWEEP_LIMIT) {
        Ok(swept) if !swept.is_empty() => {
            log::info!("{}: {} units that nobody looked after were taken back", core.job.id, swept.len());
            let ended = swept.iter().filter(|swept| swept.job_id == core.job.id && swept.status.is_terminal());
            let (waited, executed): (Vec<_>, Vec<_>) = ended.partition(|swept| swept.change == Change::QueueTimeout);
            for swept in executed {
                tell_swept(core, swept);
            }
            // Another pool may know a unit that waits, and only one had it.
            claimer::look_for(core, waited.into_iter().map(|swept| swept.unit));
        }
        Ok(_) => {}
        Err(error) => log::warn!("{}: leases of the dead were not taken back: {error}", core.job.id),
    }
}

/// A unit ended because whoever executed it is gone. Nobody else can tell, so it is told here, be it this pool's or not.
fn tell_swept(core: &Core, swept: &Swept) {
    let after = AttemptKey { unit: swept.unit, number: u32::MAX };
    if !claimer::ended(core, after, swept.status, None) {
        core.report(Report::Swept { unit_id: swept.unit_id.clone(), status: swept.status });
    }
}

/// Looks at units that others execute and somebody here waits for.
fn look_at_watched(core: &Core) {
    for (key, unit) in core.ready.watched() {
        let left = match core.repository().unit(core.job.id, unit.id()) {
            Ok(stored) if stored.status.is_terminal() => Left::Ended(stored.status),
            Ok(stored) if stored.status == UnitStatus::Pending && is_left(core, stored.accepted_by) => Left::Pending,
            Ok(_) => continue,
            Err(error) => {
                log::warn!("unit {}: could not be looked at: {error}", unit.id());
                continue;
            }
        };
        tell_watched(core, key, &unit, left);
    }
}

/// Whether nobody is about to claim what such an owner has accepted.
fn is_left(core: &Core, accepted_by: Option<OwnerId>) -> bool {
    accepted_by.is_none_or(|owner| owner == core.owner() && core.is_ending())
}

/// Nobody looks any more: those who still wait are told.
fn stop_watching(core: &Core) {
    look_at_watched(core);
    for (key, unit) in core.ready.watched() {
        tell_watched(core, key, &unit, Left::Lost);
    }
}

/// Tells those who wait for another's unit, unless it has become this pool's meanwhile.
fn tell_watched(core: &Core, key: UnitKey, unit: &OpenUnit, left: Left) {
    if core.ready.unwatch(key) {
        unit.leave(left);
    }
}
