//! A worker on its way up: for how long, and what becomes of one that does not make it.

use super::{LaneNumber, WorkerCell, WorkerState};
use crate::executor::CancelToken;
use crate::pool::capacity::{Condition, WorkerNumber};
use crate::pool::inbox::Task;
use crate::pool::ready::Ready;
use crate::pool::timers::Alarm;
use crate::worker::WorkerStatus;

/// A worker on its way up.
#[derive(Clone, Debug)]
pub(super) struct Starting {
    number: u64,
    birth: Birth,
    cancel: CancelToken,
    alarm_ms: i64,
}

/// What a worker is started for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::pool) enum Birth {
    /// To be there when it is needed.
    Ahead,
    /// For a unit that is about to be handed to it.
    ForUnit,
}

/// What to do about a worker that did not come up in time.
#[derive(Debug)]
pub(in crate::pool) enum LateStart {
    /// It did, or somebody else has seen to it.
    Not,
    /// It has ended; its thread is left behind, and to be told so by this.
    Ended(CancelToken),
    /// It has a unit in hand, which must be taken from its thread.
    WithUnit { run: u64, cancel: CancelToken },
}

impl WorkerCell {
    /// It begins to come up, and has until then.
    pub(in crate::pool) fn begin_start(&self, ready: &Ready, now_ms: i64, alarm_ms: i64) {
        self.state.lock().begin_start(self.number, ready, now_ms, alarm_ms);
    }

    /// What asks it to give up coming up; `None` if it is up, or no longer wanted.
    pub(in crate::pool) fn start_token(&self) -> Option<CancelToken> {
        self.state.lock().start.as_ref().map(|start| start.cancel.clone())
    }

    /// Its thread is about to ask the executor to bring it up, who is to hear of its end from now on. Returns what asks it to give up;
    /// `None` if it is up, or no longer wanted.
    pub(in crate::pool) fn announce(&self, generation: u64) -> Option<CancelToken> {
        let mut state = self.state.lock();
        let start = state.start.as_ref().filter(|_| state.first_generation() == generation)?;
        let cancel = start.cancel.clone();
        state.is_announced = true;
        Some(cancel)
    }

    /// It has ended: whether the executor is to hear of that, which is said once.
    pub(in crate::pool) fn take_announced(&self) -> bool {
        std::mem::take(&mut self.state.lock().is_announced)
    }

    /// It says that it can work, and how many units it can have in hand if that is known. That counts only while it is on its way up. Says
    /// where it is in its life now; `None` if it does not count.
    pub(in crate::pool) fn came_up(
        &self,
        ready: &Ready,
        generation: u64,
        capacity: Option<u32>,
        now_ms: i64,
    ) -> Option<Condition> {
        let mut state = self.state.lock();
        if state.first_generation() != generation {
            return None;
        }
        state.end_start(self.number, ready)?;
        if let Some(capacity) = capacity {
            state.capacity = capacity.max(state.load).max(1);
            state.is_capacity_known = true;
        }
        if state.status != WorkerStatus::Starting {
            ready.widen(self.number, state.capacity);
            return Some(Condition::Up);
        }
        let condition = ready.worker_is_up(self.number, state.capacity, now_ms);
        state.status = match condition {
            Condition::Retiring => WorkerStatus::ShuttingDown,
            _ => WorkerStatus::Ready,
        };
        Some(condition)
    }

    /// It cannot work. Unless it was started for a unit, which it has to give back first, that is its end; says whether it is.
    pub(in crate::pool) fn fail_start(&self, ready: &Ready, generation: u64, reason: &str) -> bool {
        let mut state = self.state.lock();
        if state.first_generation() != generation {
            return false;
        }
        state.has_crashed = true;
        state.end_start(self.number, ready);
        // One that got no unit after all is READY by now.
        let ends = match state.status {
            WorkerStatus::Starting => true,
            // Unless it is about to get the next one.
            WorkerStatus::Ready => ready.is_idle(self.number),
            _ => false,
        };
        if ends {
            state.status = WorkerStatus::Dead;
            let thread = state.lanes[LaneNumber::FIRST.0].thread.take();
            ready.start_failed(self.number, reason, thread);
        }
        ends
    }

    /// There is no thread for it.
    pub(in crate::pool) fn has_no_thread(&self, ready: &Ready, reason: &str) {
        let mut state = self.state.lock();
        state.end_start(self.number, ready);
        state.status = WorkerStatus::Dead;
        ready.start_failed(self.number, reason, None);
    }

    /// It has had its time to come up; `start` says which time it was meant, `None` whichever.
    pub(in crate::pool) fn give_up_start(&self, ready: &Ready, start: Option<u64>, reason: &str) -> LateStart {
        let mut state = self.state.lock();
        let is_another = |starting: &Starting| start.is_some_and(|number| starting.number != number);
        if state.start.as_ref().is_some_and(is_another) {
            return LateStart::Not;
        }
        let Some(Starting { cancel, .. }) = state.end_start(self.number, ready) else { return LateStart::Not };
        if state.status.is_ended() {
            // It was left behind with its unit, and is counted: its thread is only to be told.
            return LateStart::Ended(cancel);
        }
        // One that is on its way out anyway has not failed.
        state.has_crashed |= state.status != WorkerStatus::ShuttingDown;
        if let Some(current) = &state.lanes[LaneNumber::FIRST.0].current {
            return LateStart::WithUnit { run: current.execution.run, cancel };
        }
        state.status = if state.has_crashed { WorkerStatus::Dead } else { WorkerStatus::Terminated };
        state.lanes[LaneNumber::FIRST.0].leave();
        ready.abandon();
        // It may have had others before it crashed.
        let threads = state.dismiss_lanes();
        ready.start_failed(self.number, reason, threads);
        LateStart::Ended(cancel)
    }

    /// TAINTED → STARTING, if it still is and has nothing in hand. If it was one too many while something was on its way to it, which it
    /// did not take, nobody else has told it: it ends.
    pub(in crate::pool) fn restart(&self, ready: &Ready, now_ms: i64, alarm_ms: i64) {
        let mut state = self.state.lock();
        if state.status != WorkerStatus::Tainted || state.load > 0 {
            return;
        }
        if !ready.worker_restarts(self.number) {
            state.status = WorkerStatus::ShuttingDown;
            state.lanes[LaneNumber::FIRST.0].inbox.put(Task::Quit);
            return;
        }
        state.status = WorkerStatus::Starting;
        state.has_crashed = false;
        state.units = 0;
        state.begin_start(self.number, ready, now_ms, alarm_ms);
        state.lanes[LaneNumber::FIRST.0].inbox.put(Task::Restart);
    }

    /// Whether it comes up without a unit whose claim would record it.
    pub(in crate::pool) fn records_itself(&self) -> bool {
        self.state.lock().start.as_ref().is_some_and(|start| start.birth == Birth::Ahead)
    }
}

impl WorkerState {
    /// Which thread is behind the lane that brings the worker up.
    fn first_generation(&self) -> u64 {
        self.lanes[LaneNumber::FIRST.0].generation
    }

    fn begin_start(&mut self, worker: WorkerNumber, ready: &Ready, now_ms: i64, alarm_ms: i64) {
        self.starts_ever += 1;
        let birth = if self.status == WorkerStatus::Starting { Birth::Ahead } else { Birth::ForUnit };
        let start = Starting { number: self.starts_ever, birth, cancel: CancelToken::new(), alarm_ms };
        self.born_ms = now_ms;
        ready.set_alarm(alarm_ms, Alarm::Startup { worker, start: start.number });
        self.start = Some(start);
    }

    /// It is not on its way up any more. Returns what it was, if it was.
    pub(super) fn end_start(&mut self, worker: WorkerNumber, ready: &Ready) -> Option<Starting> {
        let start = self.start.take()?;
        ready.clear_alarm(start.alarm_ms, Alarm::Startup { worker, start: start.number });
        Some(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::cell::tests::takes;
    use crate::pool::inbox::Inbox;
    use crate::pool::ready::tests::ready;

    #[test]
    fn that_it_is_ready_counts_only_from_one_that_is_starting() {
        // 000-F25, 000-F30, 001-F84
        let ready = ready(1);
        let cell = WorkerCell::new(ready.starting_worker(), Inbox::new(), Birth::Ahead);
        assert!(cell.came_up(&ready, 0, None, 0).is_none(), "it has not begun to");
        cell.begin_start(&ready, 0, 1_000);
        assert!(!takes(&cell));
        assert!(cell.came_up(&ready, 1, None, 0).is_none(), "another thread than the one behind it");
        assert_eq!(cell.came_up(&ready, 0, None, 0), Some(Condition::Up));
        assert_eq!(cell.status(), WorkerStatus::Ready);
        assert!(cell.came_up(&ready, 0, None, 0).is_none(), "it is up already");
        assert!(takes(&cell));
        cell.end(&ready);
        assert!(cell.came_up(&ready, 0, None, 0).is_none() && !takes(&cell));
        assert_eq!(cell.status(), WorkerStatus::Terminated);
    }

    #[test]
    fn who_was_asked_to_bring_it_up_hears_once_of_its_end() {
        // 001-F90
        let ready = ready(1);
        let cell = WorkerCell::new(WorkerNumber(1), Inbox::new(), Birth::Ahead);
        cell.begin_start(&ready, 0, 1_000);
        assert!(cell.announce(1).is_none() && !cell.take_announced(), "another thread than the one behind it");
        assert!(cell.announce(0).is_some());
        cell.came_up(&ready, 0, None, 0);
        assert!(cell.announce(0).is_none(), "it is up already");
        cell.begin_start(&ready, 0, 1_000);
        assert!(cell.announce(0).is_some());
        assert!(cell.take_announced() && !cell.take_announced(), "however often it was brought up");
    }

    #[test]
    fn what_did_not_come_up_in_time_is_dead_and_what_it_says_later_counts_for_nothing() {
        // 001-F34, 001-F84
        let ready = ready(1);
        let cell = WorkerCell::new(ready.starting_worker(), Inbox::new(), Birth::Ahead);
        cell.begin_start(&ready, 0, 1_000);
        let token = cell.start_token().unwrap();
        assert!(matches!(cell.give_up_start(&ready, Some(2), "late"), LateStart::Not), "another start was meant");
        assert!(
            matches!(cell.give_up_start(&ready, Some(1), "late"), LateStart::Ended(cancel) if cancel.reason() == token.reason())
        );
        assert!(cell.came_up(&ready, 0, None, 0).is_none() && !cell.fail_start(&ready, 0, "too late"));
        assert_eq!(cell.status(), WorkerStatus::Dead);
    }
}
