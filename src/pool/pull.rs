//! Pulling: a pool takes units that nobody has accepted, wherever they were queued, while a thread asks it to.
//!
//! ```text
//!    news ──▶ look ──▶ places ──▶ claim ──▶ hand out
//!     ▲      (backlog)  (for as many as are due and fit)     │
//!     ├──────────────────────────────────────────────────────┘ fewer were granted: others were faster
//!     ├── units were queued in this process, or ended by others of it, or the last one here has ended       at once
//!     └── the leases of the dead were taken back               every `poll_interval`
//! ```
//!
//! What the pool accepted itself goes first, and so does whoever waits for a place. A strict unit that is claimed for another worker
//! than the one that its session is on goes back and stands in line here. [`Pull`] is plain data under the ready lock.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::capacity::Taken;
use super::cell::WorkerCell;
use super::core::{Core, NoWorker};
use super::line::Claimable;
use super::ready::Completion;
use super::timers::boot_ms_of;
use super::{claimer, deadline, homes, inside, news, scheduler, slot};
use crate::lease::Claim;
use crate::repository::Backlog;

/// How long to wait before looking again where others were faster, every time.
const PAUSE_AFTER_NOTHING: Duration = Duration::from_millis(20);

/// How long to wait before asking a repository again that failed, or for a session that lives in another pool.
pub(super) const PAUSE: Duration = Duration::from_secs(1);

/// Until when a thread wants units to be pulled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Until {
    NothingIsLeft,
    TheEnd,
}

/// What is known of the units that wait for anybody.
#[derive(Debug, Default)]
pub(super) struct Pull {
    /// Threads that want units to be pulled.
    calls: usize,
    /// Those of them who wait until nothing is left.
    waits: usize,
    /// How often something may have come.
    news: u64,
    /// Up to where in those it was looked.
    seen: u64,
    /// How many units were due then, at least, and have not been taken since.
    backlog: usize,
    /// Whether others had units of the job then.
    is_with_others: bool,
    /// Whether an alarm is set for the next poll.
    pub(super) is_polling: bool,
}

impl Pull {
    /// A thread wants units to be pulled. Returns the news that it brings.
    pub(super) fn begin(&mut self, until: Until) -> u64 {
        self.calls += 1;
        self.waits += usize::from(until == Until::NothingIsLeft);
        self.come();
        self.news
    }

    pub(super) fn end(&mut self, until: Until) {
        self.calls -= 1;
        self.waits -= usize::from(until == Until::NothingIsLeft);
        if self.calls == 0 {
            self.backlog = 0;
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.calls > 0
    }

    /// Something may have come.
    pub(super) fn come(&mut self) {
        self.news += 1;
    }

    /// Something has ended. Says whether anybody wants to know whether that was all, for which somebody has to look. Also if more is known
    /// to be due: somebody may be looking this moment, and have found the last of it gone.
    pub(super) fn may_be_done(&mut self) -> bool {
        let is_wanted = self.waits > 0;
        if is_wanted {
            self.come();
        }
        is_wanted
    }

    /// Whether somebody should look.
    pub(super) fn wants_look(&self) -> bool {
        self.is_active() && self.seen != self.news
    }

    /// What a look that begins now will have seen.
    pub(super) fn begin_look(&self) -> u64 {
        self.news
    }

    pub(super) fn end_look(&mut self, seen: u64, found: &Backlog) {
        if self.is_active() {
            self.seen = seen;
            (self.backlog, self.is_with_others) = (found.due, found.is_with_others);
        }
    }

    /// How many units are due, as far as anybody has looked.
    pub(super) fn backlog(&self) -> usize {
        self.backlog
    }

    /// A place was taken for one of them. Behind the last that was counted there may be more.
    pub(super) fn take(&mut self) {
        self.backlog = self.backlog.saturating_sub(1);
        if self.backlog == 0 {
            self.come();
        }
    }

    /// Whether nothing is due, as far as anybody knows.
    pub(super) fn is_dry(&self) -> bool {
        self.seen == self.news && self.backlog == 0
    }

    /// Whether somebody has looked since this news, and nothing may have come since then.
    pub(super) fn has_seen_all(&self, since: u64) -> bool {
        self.seen >= since && self.seen == self.news
    }

    /// Whether nothing was left to do at all for who brought this news: nothing due, and nothing that others have and might leave behind.
    pub(super) fn is_done(&self, since: u64) -> bool {
        self.has_seen_all(since) && self.backlog == 0 && !self.is_with_others
    }
}

/// Pulls until nothing is left: see [`WorkPool::process_pending`](super::WorkPool::process_pending).
pub(super) fn process_pending(core: &Core, timeout: Option<Duration>) -> Completion {
    pull(core, Until::NothingIsLeft, |since| core.ready.wait_for_pending(since, deadline(timeout)))
}

/// Pulls until the pool stops: see [`WorkPool::follow`](super::WorkPool::follow).
pub(super) fn follow(core: &Core, timeout: Option<Duration>) -> Completion {
    pull(core, Until::TheEnd, |_| core.ready.wait_while_following(deadline(timeout)))
}

fn pull(core: &Core, until: Until, wait: impl FnOnce(u64) -> Completion) -> Completion {
    if inside::is_inside(core.number) {
        return Completion::WouldDeadlock;
    }
    let since = core.ready.begin_pulling(until, core.in_ms(core.settings.poll_interval));
    // What the dead were holding may be all there is.
    core.heartbeat.wake();
    let completion = wait(since);
    core.ready.end_pulling(until);
    completion
}

/// Takes places for units that may be pulled, after a look if that is asked for.
pub(super) fn take_places(core: &Core) -> Vec<Taken> {
    if let Some((seen, limit)) = core.ready.begin_look() {
        match core.repository().backlog(core.job.id, core.owner(), limit) {
            Ok(found) => {
                log::trace!(
                    "{}: {} units wait for anybody, others have some: {}",
                    core.job.id,
                    found.due,
                    found.is_with_others
                );
                core.ready.end_look(seen, &found);
                look_when_due(core, found.next_due);
            }
            Err(error) => {
                log::warn!("{}: what waits could not be counted: {error}", core.job.id);
                look_again(core, PAUSE);
                return Vec::new();
            }
        }
    }
    if core.scheduler.is_none() {
        return core.ready.take_open(usize::MAX, None);
    }
    // One by one: each choice depends on the one before, and a pool that stops need not wait for places until a scheduler answers.
    let wish = if core.ready.begin_asking_for_open() {
        let wish = scheduler::wish(core);
        core.ready.end_asking();
        wish
    } else {
        None
    };
    core.ready.take_open(1, wish)
}

/// The worker for a place; `None` if there is none after all.
pub(super) fn give_worker(core: &Arc<Core>, taken: Taken) -> Option<Arc<WorkerCell>> {
    match core.worker_for(taken, None) {
        Ok(cell) => return Some(cell),
        Err(NoWorker::NoPlace) => core.ready.work_came(),
        Err(NoWorker::Thread(error)) => {
            log::error!("{}: no thread for a worker: {error}", core.job.id);
            look_again(core, PAUSE);
        }
    }
    None
}

/// Each claim goes to the worker that it was made for; workers without one are free again.
pub(super) fn hand_out(core: &Core, mut cells: Vec<Arc<WorkerCell>>, claims: Vec<Claim>) {
    let (asked, granted) = (cells.len(), claims.len());
    if asked > 0 {
        log::debug!("{}: {granted} units were pulled for {asked} places", core.job.id);
    }
    for claim in claims {
        match cells.iter().position(|cell| cell.id == claim.lease.worker_id) {
            Some(position) => give_to(core, &cells.swap_remove(position), claim),
            None => log::error!("unit {}: claimed for a worker that was not offered", claim.unit.id),
        }
    }
    if granted > 0 {
        news::were_pulled(core);
    }
    for cell in cells {
        slot::give_back(core, &cell, None);
    }
    if granted == 0 && asked > 0 {
        look_again(core, PAUSE_AFTER_NOTHING);
    } else if granted < asked {
        core.ready.work_came();
    }
}

/// Hands a unit to the worker that it was claimed for, unless its session is elsewhere: then it waits in line for that.
fn give_to(core: &Core, cell: &WorkerCell, claim: Claim) {
    let claimable = Claimable::of(&claim.unit, core.settings.affinity);
    let lease = &claim.lease;
    let pulled = core.ready.pulled(lease.attempt(), lease.unit_id.as_str(), &claimable, cell.number, core.now_ms());
    let Some((unit, is_seated)) = pulled else {
        // The pool began to stop.
        return claimer::give_up(core, lease, cell);
    };
    if !homes::lives_here(core, &unit, &claimable) {
        core.put_back(cell, &core.execution(cell, claim, &unit), PAUSE, "its session is in another pool");
    } else if !is_seated {
        core.put_back(cell, &core.execution(cell, claim, &unit), Duration::ZERO, "its session is on another worker");
    } else {
        core.hand_over(cell, claim, &unit);
    }
}

/// Gives places back for which nothing could be claimed.
pub(super) fn give_up(core: &Core, cells: Vec<Arc<WorkerCell>>, pause: Duration, give_back: impl Fn(&WorkerCell)) {
    if !cells.is_empty() {
        look_again(core, pause);
    }
    for cell in cells {
        give_back(&cell);
    }
}

/// Looks again when the next unit falls due, unless that is behind the next poll anyway.
fn look_when_due(core: &Core, next_due: Option<DateTime<Utc>>) {
    let Some(time) = next_due else { return };
    let due_ms = boot_ms_of(time, core.clock.now());
    if due_ms < core.in_ms(core.settings.poll_interval) {
        core.ready.look_again_at(due_ms);
    }
}

/// Looks again after a while.
fn look_again(core: &Core, after: Duration) {
    core.ready.look_again_at(core.in_ms(after));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(due: usize, is_with_others: bool) -> Backlog {
        Backlog { due, is_with_others, next_due: None }
    }

    #[test]
    fn nothing_is_done_before_somebody_has_looked_since_it_was_asked_for() {
        let mut pull = Pull::default();
        assert!(!pull.wants_look(), "nobody asks for it");
        let earlier = pull.begin_look();
        let since = pull.begin(Until::NothingIsLeft);
        pull.end_look(earlier, &found(0, false));
        assert!(pull.wants_look() && !pull.is_done(since));
        pull.end_look(pull.begin_look(), &found(0, true));
        assert!(!pull.wants_look() && !pull.is_done(since), "others may leave something behind");
        pull.come();
        let look = pull.begin_look();
        pull.come();
        pull.end_look(look, &found(0, false));
        assert!(pull.wants_look() && !pull.is_done(since), "something came while somebody looked");
        assert!(!pull.has_seen_all(since), "so nobody knows whether there is anything to be held up");
        pull.end_look(pull.begin_look(), &found(0, false));
        assert!(pull.is_done(since) && pull.is_dry() && pull.has_seen_all(since));
    }

    #[test]
    fn whether_that_was_all_is_looked_for_only_if_somebody_waits_for_it() {
        let mut pull = Pull::default();
        pull.begin(Until::TheEnd);
        pull.end_look(pull.begin_look(), &found(0, true));
        assert!(!pull.may_be_done() && !pull.wants_look());
        let since = pull.begin(Until::NothingIsLeft);
        pull.end_look(pull.begin_look(), &found(1, true));
        let look = pull.begin_look();
        assert!(pull.may_be_done());
        pull.end_look(look, &found(0, true));
        assert!(!pull.is_done(since) && pull.wants_look(), "it ended while somebody looked, who has not seen it");
    }

    #[test]
    fn what_is_due_is_taken_one_by_one_and_forgotten_when_nobody_wants_it_any_more() {
        let mut pull = Pull::default();
        pull.begin(Until::NothingIsLeft);
        pull.begin(Until::TheEnd);
        pull.end_look(pull.begin_look(), &found(2, false));
        pull.take();
        assert_eq!((pull.backlog(), pull.is_dry(), pull.wants_look()), (1, false, false));
        pull.take();
        assert_eq!(
            (pull.backlog(), pull.is_dry(), pull.wants_look()),
            (0, false, true),
            "more than one counts may wait"
        );
        pull.end_look(pull.begin_look(), &found(1, false));
        pull.end(Until::NothingIsLeft);
        assert_eq!((pull.backlog(), pull.is_active()), (1, true));
        pull.end(Until::TheEnd);
        assert_eq!((pull.backlog(), pull.is_active()), (0, false));
        pull.end_look(pull.begin_look(), &found(2, false));
        assert_eq!(pull.backlog(), 0, "a look that ends too late");
    }
}
