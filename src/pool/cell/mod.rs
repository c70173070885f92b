//! A worker's own cell (L2): what it is, what it has in hand, who brings that to its end.
//!
//! Every change is published to the ready state before the cell's lock is released.
//!
//! ```text
//!   STARTING ── came up ──▶ up ── reserve, settle ──▶ up
//!      │  ▲                  │ │
//!      │  └── restart ── TAINTED└─ settle ──▶ SHUTTING_DOWN ── load 0 ──▶ TERMINATED
//!      └── did not ──▶ DEAD ◀── load 0 ─┘
//! ```
//!
//! One that is up is READY while it has room and BUSY when it has none; that follows from its load and is not kept. A worker that
//! starts on demand is up from the beginning: its first unit waits for it. One that crashed, or is on its way out, takes nothing
//! more, but what its other [lanes](lane) have in hand they bring to its end; with the last of them it ends.

mod lane;
mod starting;
#[cfg(test)]
mod tests;
mod words;

use std::sync::Arc;

pub(super) use self::lane::LaneNumber;
use self::lane::{Current, Lane, Stage};
use self::starting::Starting;
pub(super) use self::starting::{Birth, LateStart};
pub(super) use self::words::{Abandoned, After, LeftBehind, Reserved, Return, Settled, Spare, Wear};
use super::capacity::{Condition, Done, WorkerNumber};
use super::execution::Execution;
use super::inbox::{Inbox, Task};
use super::ledger::Left;
use super::lock::{Rank, Ranked};
use super::open_unit::OpenUnit;
use super::ready::Ready;
use super::timers::Alarm;
use crate::sync::thread::JoinHandle;
use crate::worker::{WorkerId, WorkerStatus};

/// A worker's place in the pool.
#[derive(Debug)]
pub(super) struct WorkerCell {
    pub(super) number: WorkerNumber,
    pub(super) id: WorkerId,
    state: Ranked<WorkerState>,
}

#[derive(Debug)]
struct WorkerState {
    /// READY while it is up, whatever its load.
    status: WorkerStatus,
    lanes: Vec<Lane>,
    /// How many units it can have in hand.
    capacity: u32,
    /// How many it has in hand, or is about to get. There are at least as many lanes.
    load: u32,
    /// Whether the executor has been asked how many it can have.
    is_capacity_known: bool,
    /// Whether the repository knows it.
    has_row: bool,
    /// While it is on its way up.
    start: Option<Starting>,
    starts_ever: u64,
    /// Whether the executor was asked to bring it up, and has yet to hear of its end.
    is_announced: bool,
    /// When it began to come up, by the pool's clock: it is as good as new after that.
    born_ms: i64,
    /// How many units it was given since then.
    units: u64,
    has_crashed: bool,
    /// Until when it rests after the crash, if it does.
    rests_until_ms: Option<i64>,
    /// Whether its threads were left behind, and somebody else ends it.
    is_left: bool,
    /// Whether somebody has begun to end it.
    is_ending: bool,
}

impl WorkerCell {
    /// A worker on its way up.
    pub(super) fn new(number: WorkerNumber, inbox: Inbox, birth: Birth) -> WorkerCell {
        let (status, load) = match birth {
            Birth::Ahead => (WorkerStatus::Starting, 0),
            Birth::ForUnit => (WorkerStatus::Ready, 1),
        };
        let state = WorkerState {
            status,
            lanes: vec![Lane::new(inbox)],
            capacity: 1,
            load,
            is_capacity_known: false,
            has_row: false,
            start: None,
            starts_ever: 0,
            is_announced: false,
            born_ms: 0,
            units: 0,
            has_crashed: false,
            rests_until_ms: None,
            is_left: false,
            is_ending: false,
        };
        WorkerCell { number, id: number.id(), state: Ranked::new(Rank::Worker, state) }
    }

    /// TAINTED: it crashed with a unit in hand, and takes nothing more.
    pub(super) fn taint(&self, ready: &Ready) {
        let mut state = self.state.lock();
        if matches!(state.status, WorkerStatus::Ready | WorkerStatus::ShuttingDown) {
            state.has_crashed = true;
        }
        if state.status == WorkerStatus::Ready {
            state.status = WorkerStatus::Tainted;
            ready.publish(self.number, Condition::Tainted);
        }
    }

    /// Keeps the thread behind a lane, so that it can be joined; gives it back if the worker has ended already.
    pub(super) fn set_thread(
        &self,
        lane: LaneNumber,
        thread: JoinHandle<()>,
        generation: u64,
    ) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        let is_ended = state.status.is_ended();
        let lane = &mut state.lanes[lane.0];
        if lane.generation != generation {
            return None;
        }
        if is_ended {
            return Some(thread);
        }
        (lane.thread, lane.is_coming) = (Some(thread), false);
        None
    }

    /// Takes a unit upon itself, if it still is up and has room.
    pub(super) fn reserve(&self) -> Reserved {
        let mut state = self.state.lock();
        // Looked at again under the worker's own lock, and marked in the same breath.
        if state.status != WorkerStatus::Ready || state.load >= state.capacity {
            return Reserved::No;
        }
        state.load += 1;
        let open = state.lanes.iter().filter(|lane| lane.is_open).count();
        if open >= usize::try_from(state.load).unwrap_or(usize::MAX) {
            return Reserved::Yes;
        }
        state.add_lane()
    }

    /// The system gave no thread for a lane: the worker has one fewer.
    pub(super) fn lose_lane(&self, lane: LaneNumber) {
        self.state.lock().lanes[lane.0].is_open = false;
    }

    /// Whether there is no thread behind the lane that has an attempt in hand.
    pub(super) fn has_lost_lane(&self, execution: &Execution) -> bool {
        self.state.lock().lanes.iter().any(|lane| lane.has(execution.run) && !lane.is_open)
    }

    /// Hands it an attempt; gives it back if the worker does not take it any more.
    pub(super) fn hand_over(&self, execution: Arc<Execution>) -> Result<(), Arc<Execution>> {
        let mut state = self.state.lock();
        state.has_row = true;
        if state.status != WorkerStatus::Ready {
            return Err(execution);
        }
        // There is one: whoever needed one more thread comes here only when that is there.
        let Some(lane) = state.lanes.iter_mut().find(|lane| lane.is_free()) else { return Err(execution) };
        if !lane.inbox.put(Task::Run(Arc::clone(&execution))) {
            return Err(execution);
        }
        lane.current = Some(Current::new(&execution));
        state.units += 1;
        Ok(())
    }

    /// The execution begins: from now on it has a deadline. One that was given up before is for somebody else to bring to its end.
    pub(super) fn watch(&self, ready: &Ready, execution: &Execution, deadline_ms: i64) {
        let mut state = self.state.lock();
        if let Some(current) = state.current_of(execution).filter(|current| current.stage != Stage::Closing) {
            current.alarm_ms = Some(deadline_ms);
            ready.attempt_begins(self.number, execution.run, deadline_ms);
        }
    }

    /// Notes that an execution was asked to stop, which it is to do until then. `None` if that is not, or no longer, for it.
    pub(super) fn ask(&self, ready: &Ready, run: u64, until_ms: i64) -> Option<Arc<Execution>> {
        let mut state = self.state.lock();
        let current = state.current_run(run)?;
        if current.stage != Stage::Executing {
            return None;
        }
        current.stage = Stage::Asked;
        let alarm = Alarm::Execution { worker: self.number, run };
        if let Some(at_ms) = current.alarm_ms.replace(until_ms) {
            ready.clear_alarm(at_ms, alarm);
        }
        ready.set_alarm(until_ms, alarm);
        Some(Arc::clone(&current.execution))
    }

    /// Takes an execution from the thread that did not return, if it still has not.
    pub(super) fn abandon(&self, ready: &Ready, run: u64, limit: Option<usize>, inbox: &Inbox) -> Abandoned {
        let mut state = self.state.lock();
        let Some(current) = state.current_run(run).filter(|current| current.stage != Stage::Closing) else {
            return Abandoned::No;
        };
        current.stage = Stage::Closing;
        let execution = Arc::clone(&current.execution);
        if !ready.abandon_up_to(limit) {
            return Abandoned::Stuck(execution);
        }
        let index = state.lanes.iter().position(|lane| lane.has(run)).expect("it was found just now");
        let lane = &mut state.lanes[index];
        lane.replace(inbox);
        let generation = lane.generation;
        // Whoever was left behind on the way up is given up once.
        if index == LaneNumber::FIRST.0 {
            state.end_start(self.number, ready);
        }
        Abandoned::Replace { lane: LaneNumber(index), generation, execution }
    }

    /// A thread has come back from its executor.
    pub(super) fn come_back(&self, ready: &Ready, execution: &Execution, lane: LaneNumber, generation: u64) -> Return {
        let mut state = self.state.lock();
        if state.lanes[lane.0].generation != generation {
            return Return::Replaced;
        }
        let number = self.number;
        let Some(current) = state.current_of(execution).filter(|current| current.stage != Stage::Closing) else {
            return Return::Late;
        };
        current.stage = Stage::Closing;
        if let Some(at_ms) = current.alarm_ms.take() {
            ready.clear_alarm(at_ms, Alarm::Execution { worker: number, run: execution.run });
        }
        Return::InTime
    }

    /// A unit of its has ended, the callback is to run.
    pub(super) fn report(&self, ready: &Ready, execution: &Execution) {
        let mut state = self.state.lock();
        if state.is_left {
            return;
        }
        if let Some(current) = state.current_of(execution).filter(|current| !current.is_reporting) {
            current.is_reporting = true;
            ready.report(self.number);
        }
    }

    /// It is done with a unit. See [`Settled`]. If the end of that is yet to be stored, its place is kept until it is.
    pub(super) fn settle(
        &self,
        ready: &Ready,
        execution: &Execution,
        after: After,
        wear: Wear,
        now_ms: i64,
    ) -> Settled {
        let mut state = self.state.lock();
        if let Some(current) = state.current_of(execution).filter(|current| current.stored == Some(Left::Unrecorded)) {
            current.kept = Some(after);
            ready.place_is_kept();
            return Settled::GoesOn;
        }
        state.settle_execution(self.number, ready, execution, after, wear, now_ms)
    }

    /// The end of a unit is stored after all, or never will be: its place is free, if it was kept only for that. See [`Settled`].
    pub(super) fn settle_stored(&self, ready: &Ready, execution: &Execution, wear: Wear, now_ms: i64) -> Settled {
        let mut state = self.state.lock();
        let Some(current) = state.current_of(execution) else { return Settled::GoesOn };
        current.stored = Some(Left::Lost);
        match current.kept.take() {
            Some(after) => state.settle_execution(self.number, ready, execution, after, wear, now_ms),
            // Its thread has yet to come back.
            None => Settled::GoesOn,
        }
    }

    /// It was to have a unit, and did not get it after all; if it was assigned one, that is told. See [`Settled`].
    pub(super) fn settle_without(
        &self,
        ready: &Ready,
        unit: Option<&Arc<OpenUnit>>,
        after: After,
        wear: Wear,
        now_ms: i64,
    ) -> Settled {
        let mut state = self.state.lock();
        if state.is_left || state.status.is_ended() {
            return Settled::GoesOn;
        }
        let must_retire = state.must_retire(after, wear, now_ms);
        let done = Done { unit, must_retire, ..Done::default() };
        state.settle(self.number, ready, &done, after, now_ms)
    }

    /// Whether it has been used for as long as it may be.
    pub(super) fn is_worn(&self, wear: Wear, now_ms: i64) -> bool {
        self.state.lock().is_worn(wear, now_ms)
    }

    /// It has nothing in hand, and is to end. Says whether one of its threads does that; if it has lost them all, it is for the caller.
    pub(super) fn retire(&self) -> bool {
        let mut state = self.state.lock();
        if state.status.is_ended() {
            return true;
        }
        state.status = WorkerStatus::ShuttingDown;
        let Some(lane) = state.lanes.iter().find(|lane| lane.is_open) else { return false };
        // It was idle, so there is room; if it has been told before, there need not be.
        lane.inbox.put(Task::Quit);
        true
    }

    /// It crashed and rests, but the pool stops: it ends.
    pub(super) fn retire_tainted(&self, ready: &Ready) {
        let mut state = self.state.lock();
        if state.status == WorkerStatus::Tainted && state.load == 0 {
            state.status = WorkerStatus::ShuttingDown;
            ready.publish(self.number, Condition::Retiring);
            state.lanes[LaneNumber::FIRST.0].inbox.put(Task::Quit);
        }
    }

    /// The pool stops without waiting any longer: the threads that have not come back are left behind. Returns what they had in
    /// hand; nothing if they have nothing, or if one is spared, for which its worker has to stay.
    pub(super) fn leave_behind(&self, ready: &Ready, spare: Spare) -> Vec<LeftBehind> {
        let mut state = self.state.lock();
        if state.is_left || state.status.is_ended() {
            return Vec::new();
        }
        let is_spared = |current: &Current| {
            spare == Spare::WhoStores && current.stage == Stage::Closing && current.stored.is_none()
        };
        if state.currents().any(is_spared) || state.currents().next().is_none() {
            return Vec::new();
        }
        // From now on their threads have no part in it, also if they return before the worker has ended.
        state.is_left = true;
        state.status = WorkerStatus::ShuttingDown;
        ready.publish(self.number, Condition::Retiring);
        let mut had = Vec::new();
        for lane in &mut state.lanes {
            let Some(current) = &mut lane.current else { continue };
            let execution = Arc::clone(&current.execution);
            if let (Some(left), Some(_)) = (current.stored, current.kept) {
                // Its thread waits, and ends with its worker.
                had.push(LeftBehind::Stored(execution, left));
                continue;
            }
            had.push(match (current.stage, current.stored) {
                (Stage::Executing | Stage::Asked, _) => LeftBehind::Executing(execution),
                (Stage::Closing, Some(left)) => LeftBehind::Stored(execution, left),
                (Stage::Closing, None) => LeftBehind::Storing(execution),
            });
            current.stage = Stage::Closing;
            lane.leave();
            // It may be waiting for its attempt to be closed.
            lane.inbox.put(Task::Leave);
            ready.abandon();
        }
        had
    }

    /// The end of an attempt is stored, or cannot be. If the pool stops, its unit leaves like that.
    pub(super) fn note_stored(&self, execution: &Execution, left: Left) {
        if let Some(current) = self.state.lock().current_of(execution) {
            current.stored = Some(left);
        }
    }

    /// The attempt of a stuck thread has been brought to its end.
    pub(super) fn note_closed(&self, ready: &Ready, execution: &Execution) {
        let mut state = self.state.lock();
        if let Some(current) = state.current_of(execution) {
            current.is_closed = true;
            let is_stuck = |current: &&Current| current.is_closed && current.kept.is_none();
            ready.worker_is_stuck(self.number, state.currents().filter(is_stuck).count());
        }
    }

    /// Whether it has nothing left to do but to wait for threads that are stuck, or for ends to be stored.
    pub(super) fn is_stuck(&self) -> bool {
        let state = self.state.lock();
        let is_over = |current: &Current| current.is_closed || current.kept.is_some();
        state.currents().next().is_some() && state.currents().all(is_over)
    }

    /// Whether another thread, or none, is behind a lane now.
    pub(super) fn is_replaced(&self, lane: LaneNumber, generation: u64) -> bool {
        self.state.lock().lanes[lane.0].generation != generation
    }

    /// Whether whoever asks is the one to end it, because nobody was before.
    pub(super) fn begin_end(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_ending, true)
    }

    /// It has ended, and all its threads are to. Returns those that are still to be joined.
    pub(super) fn end(&self, ready: &Ready) -> Vec<JoinHandle<()>> {
        let mut state = self.state.lock();
        let threads = state.dismiss_lanes();
        if state.status.is_ended() {
            return threads;
        }
        state.status = if state.has_crashed { WorkerStatus::Dead } else { WorkerStatus::Terminated };
        ready.worker_ends(self.number, threads);
        Vec::new()
    }

    /// The repository may know it, by a claim of which nobody here knows.
    pub(super) fn note_row(&self) {
        self.state.lock().has_row = true;
    }

    pub(super) fn has_row(&self) -> bool {
        self.state.lock().has_row
    }

    /// What it executes, unless that is being brought to its end already.
    pub(super) fn executing(&self) -> Vec<Arc<Execution>> {
        let state = self.state.lock();
        let executing = state.currents().filter(|current| current.stage != Stage::Closing);
        executing.map(|current| Arc::clone(&current.execution)).collect()
    }

    /// Whether nothing is on its way to it.
    pub(super) fn has_all_in_hand(&self) -> bool {
        let state = self.state.lock();
        state.currents().count() == state.load as usize
    }

    /// How many units it can have in hand, as far as that is known.
    pub(super) fn capacity(&self) -> u32 {
        self.state.lock().capacity
    }

    /// Whether somebody has yet to find out how many units it can have in hand. Whoever is told so is to do it.
    pub(super) fn ask_capacity(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_capacity_known, true)
    }

    /// It is known how many units it can have in hand, from the one that it has. If that was taken from it meanwhile, somebody else is to
    /// find out.
    pub(super) fn widen(&self, ready: &Ready, execution: &Execution, capacity: u32) {
        let mut state = self.state.lock();
        if state.current_of(execution).is_none_or(|current| current.stage == Stage::Closing) {
            state.is_capacity_known = false;
            return;
        }
        state.capacity = capacity.max(state.load).max(1);
        ready.widen(self.number, state.capacity);
    }

    /// Whether it takes units while it has room.
    pub(super) fn is_up(&self) -> bool {
        self.state.lock().status == WorkerStatus::Ready
    }

    pub(super) fn has_ended(&self) -> bool {
        self.state.lock().status.is_ended()
    }

    /// Whether it ends because it crashed.
    pub(super) fn has_crashed(&self) -> bool {
        self.state.lock().has_crashed
    }

    #[cfg(test)]
    fn set_capacity(&self, ready: &Ready, capacity: u32) {
        self.state.lock().capacity = capacity;
        ready.widen(self.number, capacity);
    }

    #[cfg(test)]
    pub(super) fn status(&self) -> WorkerStatus {
        self.state.lock().status
    }
}

impl WorkerState {
    fn is_worn(&self, wear: Wear, now_ms: i64) -> bool {
        let age_ms = now_ms.saturating_sub(self.born_ms);
        wear.max_age_ms.is_some_and(|max_age_ms| age_ms >= max_age_ms)
            || wear.max_units.is_some_and(|max_units| self.units >= max_units)
    }

    fn must_retire(&self, after: After, wear: Wear, now_ms: i64) -> bool {
        after != After::GoOn || self.has_crashed || self.is_worn(wear, now_ms)
    }

    /// It is done with what an execution was for. Otherwise somebody is ending it, and its place with it.
    fn settle_execution(
        &mut self,
        worker: WorkerNumber,
        ready: &Ready,
        execution: &Execution,
        after: After,
        wear: Wear,
        now_ms: i64,
    ) -> Settled {
        let lane = if self.is_left { None } else { self.lanes.iter_mut().find(|lane| lane.has(execution.run)) };
        let Some(current) = lane.and_then(|lane| lane.current.take()) else { return Settled::GoesOn };
        let done = Done {
            unit: Some(&execution.unit),
            is_spent: true,
            was_reporting: current.is_reporting,
            must_retire: self.must_retire(after, wear, now_ms),
        };
        self.settle(worker, ready, &done, after, now_ms)
    }

    /// One unit fewer is in hand. What follows from that for the worker is the same on all lanes.
    fn settle(&mut self, worker: WorkerNumber, ready: &Ready, done: &Done<'_>, after: After, now_ms: i64) -> Settled {
        self.load -= 1;
        match after {
            // Of several crashes the last counts, whichever is told last.
            After::Crash { rests_until_ms } => self.rests_until_ms = self.rests_until_ms.max(rests_until_ms),
            After::Retire if self.status == WorkerStatus::Tainted => {
                self.status = WorkerStatus::ShuttingDown;
                ready.publish(worker, Condition::Retiring);
            }
            After::GoOn | After::Retire => {}
        }
        let condition = ready.settle_worker(worker, done, now_ms);
        if condition == Condition::Retiring {
            self.status = WorkerStatus::ShuttingDown;
        }
        match (self.load, self.status) {
            (0, WorkerStatus::Tainted) => match self.rests_until_ms.take() {
                Some(until_ms) => {
                    ready.rest_tainted(worker, until_ms);
                    Settled::GoesOn
                }
                None => {
                    self.status = WorkerStatus::ShuttingDown;
                    ready.publish(worker, Condition::Retiring);
                    Settled::Ends
                }
            },
            (0, WorkerStatus::ShuttingDown) => Settled::Ends,
            _ => Settled::GoesOn,
        }
    }

    /// All its threads are to end. Returns those that are still to be joined.
    fn dismiss_lanes(&mut self) -> Vec<JoinHandle<()>> {
        let mut threads = Vec::new();
        for lane in &mut self.lanes {
            lane.current = None;
            // It waits for a task, unless it is the one that ends the worker.
            lane.inbox.put(Task::Leave);
            threads.extend(lane.thread.take());
        }
        threads
    }

    /// One more lane, or one again that had lost its thread. It takes nothing before its thread is there.
    fn add_lane(&mut self) -> Reserved {
        let inbox = Inbox::new();
        let lane =
            self.lanes.iter().position(|lane| !lane.is_open && lane.current.is_none()).unwrap_or(self.lanes.len());
        match self.lanes.get_mut(lane) {
            Some(closed) => closed.replace(&inbox),
            None => self.lanes.push(Lane::new(inbox.clone())),
        }
        self.lanes[lane].is_coming = true;
        Reserved::WithLane { lane: LaneNumber(lane), generation: self.lanes[lane].generation, inbox }
    }

    fn currents(&self) -> impl Iterator<Item = &Current> {
        self.lanes.iter().filter_map(|lane| lane.current.as_ref())
    }

    fn current_run(&mut self, run: u64) -> Option<&mut Current> {
        let mut currents = self.lanes.iter_mut().filter_map(|lane| lane.current.as_mut());
        currents.find(|current| current.execution.run == run)
    }

    fn current_of(&mut self, execution: &Execution) -> Option<&mut Current> {
        self.current_run(execution.run)
    }
}
