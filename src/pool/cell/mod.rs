//! A worker's own cell (L2): what it is, what it has in hand, who brings that to its end.
//!
//! Every change is published to the ready state before the cell's lock is released.
//!
//! ```text
//!   STARTING ── came up ──▶ READY ── reserve ──▶ BUSY ── settle ──▶ READY
//!      │  ▲                                       │ │
//!      │  └── restart ── TAINTED ◀──── taint ─────┘ └─ settle ──▶ SHUTTING_DOWN ──▶ TERMINATED
//!      └── did not ──▶ DEAD ◀── settle ─┘
//! ```
//!
//! A worker that starts on demand is BUSY from the beginning: its first unit waits for it to come up.

mod starting;

use std::sync::Arc;

use self::starting::Starting;
pub(super) use self::starting::{Birth, LateStart};
use super::capacity::{Load, WorkerNumber};
use super::execution::Execution;
use super::inbox::{Inbox, Task};
use super::ledger::Left;
use super::lock::{Rank, Ranked};
use super::ready::Ready;
use super::timers::Alarm;
use crate::sync::thread::JoinHandle;
use crate::worker::{WorkerId, WorkerStatus};

/// Who brings an execution to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Its own thread, once the executor returns.
    Executing,
    /// The same, but it was asked to hurry.
    Asked,
    /// Somebody has begun to.
    Closing,
}

/// A worker's place in the pool.
#[derive(Debug)]
pub(super) struct WorkerCell {
    pub(super) number: WorkerNumber,
    pub(super) id: WorkerId,
    state: Ranked<WorkerState>,
}

#[derive(Debug)]
struct WorkerState {
    status: WorkerStatus,
    inbox: Inbox,
    /// Counts the threads that were behind this worker.
    generation: u64,
    thread: Option<JoinHandle<()>>,
    current: Option<Current>,
    /// Whether the repository knows it.
    has_row: bool,
    /// While it is on its way up.
    start: Option<Starting>,
    starts_ever: u64,
    /// Whether the executor was asked to bring it up, and has yet to hear of its end.
    is_announced: bool,
    /// When it began to come up, by the pool's clock: it is as good as new after that.
    born_ms: i64,
    /// How many units it was given.
    units: u64,
    has_crashed: bool,
}

/// How long a worker may be used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wear {
    pub(super) max_age_ms: Option<i64>,
    pub(super) max_units: Option<u64>,
}

/// What a worker does after a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// It takes the next, unless it is worn out or one too many.
    GoOn,
    /// It crashed, and rests until then before it is brought up again; `None` ends it.
    Crash { rests_until_ms: Option<i64> },
    /// It ends.
    Retire,
}

#[derive(Debug)]
struct Current {
    execution: Arc<Execution>,
    stage: Stage,
    alarm_ms: Option<i64>,
    /// Whether it has been brought to its end, and only its thread is still to come back.
    is_closed: bool,
    /// How its unit leaves if the pool stops, once the end is stored or cannot be.
    stored: Option<Left>,
}

/// How a thread comes back from an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Return {
    /// It is to bring the attempt to its end.
    InTime,
    /// Somebody else does that; the thread still belongs to its worker.
    Late,
    /// Somebody else does that, and another thread has taken its place.
    Replaced,
}

/// Who is not left behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spare {
    /// Whoever is storing how its attempt ended: that was paid for.
    WhoStores,
    Nobody,
}

/// What a thread had in hand that was left behind because the pool stops.
#[derive(Debug)]
pub(super) enum LeftBehind {
    /// An execution, which nobody else brings to its end.
    Executing(Arc<Execution>),
    /// One whose end it is storing.
    Storing(Arc<Execution>),
    /// One whose end it has stored, or cannot, and may never come to tell.
    Stored(Arc<Execution>, Left),
}

/// What became of an attempt to leave a thread behind.
#[derive(Debug)]
pub(super) enum Abandoned {
    /// The execution ended in time.
    No,
    /// The caller has to start another thread in its place, of this generation, to close the attempt.
    Replace { generation: u64, execution: Arc<Execution> },
    /// There are too many already: the worker is stuck until its executor returns. Somebody else has to close the attempt.
    Stuck(Arc<Execution>),
}

impl WorkerCell {
    /// A worker on its way up.
    pub(super) fn new(number: WorkerNumber, inbox: Inbox, birth: Birth) -> WorkerCell {
        let state = WorkerState {
            status: match birth {
                Birth::Ahead => WorkerStatus::Starting,
                Birth::ForUnit => WorkerStatus::Busy,
            },
            inbox,
            generation: 0,
            thread: None,
            current: None,
            has_row: false,
            start: None,
            starts_ever: 0,
            is_announced: false,
            born_ms: 0,
            units: 0,
            has_crashed: false,
        };
        WorkerCell { number, id: number.id(), state: Ranked::new(Rank::Worker, state) }
    }

    /// TAINTED: it crashed with a unit in hand, and takes nothing more.
    pub(super) fn taint(&self, ready: &Ready) {
        let mut state = self.state.lock();
        if state.status == WorkerStatus::Busy {
            state.status = WorkerStatus::Tainted;
            state.has_crashed = true;
            ready.publish(self.number, Load::Tainted);
        }
    }

    /// Keeps the thread behind the worker, so that it can be joined; gives it back if the worker has ended already.
    pub(super) fn set_thread(&self, thread: JoinHandle<()>, generation: u64) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        if state.generation != generation {
            return None;
        }
        if state.status.is_ended() {
            return Some(thread);
        }
        state.thread = Some(thread);
        None
    }

    /// READY → BUSY, if it still is ready.
    pub(super) fn reserve(&self) -> bool {
        let mut state = self.state.lock();
        // Looked at again under the worker's own lock, and marked in the same breath.
        let is_ready = state.status == WorkerStatus::Ready && state.current.is_none();
        if is_ready {
            state.status = WorkerStatus::Busy;
        }
        is_ready
    }

    /// Hands it an attempt; gives it back if the worker is gone.
    pub(super) fn hand_over(&self, execution: Arc<Execution>) -> Result<(), Arc<Execution>> {
        let mut state = self.state.lock();
        state.has_row = true;
        if state.status != WorkerStatus::Busy || state.current.is_some() {
            return Err(execution);
        }
        let current = Current {
            execution: Arc::clone(&execution),
            stage: Stage::Executing,
            alarm_ms: None,
            is_closed: false,
            stored: None,
        };
        if !state.inbox.put(Task::Run(Arc::clone(&execution))) {
            return Err(execution);
        }
        state.current = Some(current);
        state.units += 1;
        Ok(())
    }

    /// The execution begins: from now on it has a deadline.
    pub(super) fn watch(&self, ready: &Ready, execution: &Execution, deadline_ms: i64) {
        let mut state = self.state.lock();
        if let Some(current) = state.current_of(execution) {
            current.alarm_ms = Some(deadline_ms);
            ready.attempt_begins(self.number, execution.run, deadline_ms);
        }
    }

    /// Notes that an execution was asked to stop, which it is to do until then. `None` if that is not, or no longer, for it.
    pub(super) fn ask(&self, ready: &Ready, run: u64, until_ms: i64) -> Option<Arc<Execution>> {
        let mut state = self.state.lock();
        let current = state.current.as_mut().filter(|current| current.execution.run == run)?;
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
        let is_meant = |current: &&mut Current| current.execution.run == run && current.stage != Stage::Closing;
        let Some(current) = state.current.as_mut().filter(is_meant) else { return Abandoned::No };
        current.stage = Stage::Closing;
        let execution = Arc::clone(&current.execution);
        if !ready.abandon_up_to(limit) {
            return Abandoned::Stuck(execution);
        }
        state.generation += 1;
        state.inbox = inbox.clone();
        // Whoever was left behind is joined by nobody, and given up once.
        state.thread = None;
        state.end_start(self.number, ready);
        Abandoned::Replace { generation: state.generation, execution }
    }

    /// A thread has come back from its executor.
    pub(super) fn come_back(&self, ready: &Ready, execution: &Execution, generation: u64) -> Return {
        let mut state = self.state.lock();
        if state.generation != generation {
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

    /// Its unit has ended, the callback is to run.
    pub(super) fn report(&self, ready: &Ready) {
        let state = self.state.lock();
        if state.status == WorkerStatus::Busy {
            ready.publish(self.number, Load::Reporting);
        }
    }

    /// It is done with its unit, or got none: it is idle, resting after a crash, or on its way out. Says which.
    pub(super) fn settle(&self, ready: &Ready, after: After, wear: Wear, now_ms: i64) -> Load {
        let mut state = self.state.lock();
        // Somebody is ending it, and its place with it.
        if state.status == WorkerStatus::ShuttingDown || state.status.is_ended() {
            return Load::Retiring;
        }
        state.current = None;
        if let (WorkerStatus::Tainted, After::Crash { rests_until_ms: Some(until_ms) }) = (state.status, after) {
            ready.rest_tainted(self.number, until_ms);
            return Load::Tainted;
        }
        let must_retire = after != After::GoOn || state.has_crashed || state.is_worn(wear, now_ms);
        let load = ready.settle_worker(self.number, must_retire, now_ms);
        state.status = match load {
            Load::Retiring => WorkerStatus::ShuttingDown,
            _ => WorkerStatus::Ready,
        };
        load
    }

    /// Whether it has been used for as long as it may be.
    pub(super) fn is_worn(&self, wear: Wear, now_ms: i64) -> bool {
        self.state.lock().is_worn(wear, now_ms)
    }

    /// It was idle, and is to end.
    pub(super) fn retire(&self) {
        let mut state = self.state.lock();
        if state.status.is_ended() {
            return;
        }
        state.status = WorkerStatus::ShuttingDown;
        // It was idle, so there is room; if it has been told before, there need not be.
        state.inbox.put(Task::Quit);
    }

    /// It crashed and rests, but the pool stops: it ends.
    pub(super) fn retire_tainted(&self, ready: &Ready) {
        let mut state = self.state.lock();
        if state.status == WorkerStatus::Tainted && state.current.is_none() {
            state.status = WorkerStatus::ShuttingDown;
            ready.publish(self.number, Load::Retiring);
            state.inbox.put(Task::Quit);
        }
    }

    /// The pool stops without waiting any longer: if its thread has not come back it is left behind. Returns what it had in
    /// hand; `None` if it has nothing.
    pub(super) fn leave_behind(&self, ready: &Ready, spare: Spare) -> Option<LeftBehind> {
        let mut state = self.state.lock();
        if !matches!(state.status, WorkerStatus::Busy | WorkerStatus::Tainted) {
            return None;
        }
        let current = state.current.as_mut()?;
        let execution = Arc::clone(&current.execution);
        let had = match (current.stage, current.stored) {
            (Stage::Executing | Stage::Asked, _) => LeftBehind::Executing(execution),
            (Stage::Closing, Some(left)) => LeftBehind::Stored(execution, left),
            (Stage::Closing, None) if spare == Spare::WhoStores => return None,
            (Stage::Closing, None) => LeftBehind::Storing(execution),
        };
        current.stage = Stage::Closing;
        // From now on its thread has no part in it, also if it returns before the worker has ended.
        state.status = WorkerStatus::ShuttingDown;
        state.generation += 1;
        state.thread = None;
        // It may be waiting for its attempt to be closed.
        state.inbox.put(Task::Quit);
        ready.abandon();
        Some(had)
    }

    /// The end of its attempt is stored, or cannot be. If the pool stops, its unit leaves like that.
    pub(super) fn note_stored(&self, execution: &Execution, left: Left) {
        if let Some(current) = self.state.lock().current_of(execution) {
            current.stored = Some(left);
        }
    }

    /// The attempt of its stuck thread has been brought to its end.
    pub(super) fn note_closed(&self, execution: &Execution) {
        if let Some(current) = self.state.lock().current_of(execution) {
            current.is_closed = true;
        }
    }

    /// Whether it has nothing left to do but to wait for a thread that is stuck.
    pub(super) fn is_stuck(&self) -> bool {
        self.state.lock().current.as_ref().is_some_and(|current| current.is_closed)
    }

    /// Whether another thread, or none, is this worker now.
    pub(super) fn is_replaced(&self, generation: u64) -> bool {
        self.state.lock().generation != generation
    }

    /// It has ended. Returns its thread if that is still to be joined.
    pub(super) fn end(&self, ready: &Ready) -> Option<JoinHandle<()>> {
        let mut state = self.state.lock();
        if state.status.is_ended() {
            return state.thread.take();
        }
        state.status = if state.has_crashed { WorkerStatus::Dead } else { WorkerStatus::Terminated };
        state.current = None;
        ready.worker_ends(self.number, state.thread.take());
        None
    }

    /// The repository may know it, by a claim of which nobody here knows.
    pub(super) fn note_row(&self) {
        self.state.lock().has_row = true;
    }

    pub(super) fn has_row(&self) -> bool {
        self.state.lock().has_row
    }

    /// What it executes, unless that is being brought to its end already.
    pub(super) fn executing(&self) -> Option<Arc<Execution>> {
        let state = self.state.lock();
        let current = state.current.as_ref().filter(|current| current.stage != Stage::Closing)?;
        Some(Arc::clone(&current.execution))
    }

    /// Whether it ends because it crashed.
    pub(super) fn has_crashed(&self) -> bool {
        self.state.lock().has_crashed
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

    fn current_of(&mut self, execution: &Execution) -> Option<&mut Current> {
        self.current.as_mut().filter(|current| current.execution.run == execution.run)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::pool::ready::tests::ready;

    const ANY_WEAR: Wear = Wear { max_age_ms: None, max_units: None };

    fn busy(number: u64) -> Arc<WorkerCell> {
        Arc::new(WorkerCell::new(WorkerNumber(number), Inbox::new(), Birth::ForUnit))
    }

    /// Whether a call comes back, on a thread of its own, while this one holds a lock.
    fn comes_back(call: impl FnOnce() + Send + 'static) -> bool {
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            call();
            tell.send(())
        });
        told.recv_timeout(Duration::from_secs(20)).is_ok()
    }

    #[test]
    fn what_a_worker_does_is_under_its_own_lock_alone() {
        // 000-F4, 000-F9, 000-F10
        let (first, second) = (busy(1), busy(2));
        let held = first.state.lock();
        let change = move || {
            second.settle(&ready(2), After::GoOn, ANY_WEAR, 0);
            assert!(second.reserve());
            assert_eq!(second.status(), WorkerStatus::Busy);
        };
        assert!(comes_back(change), "another worker is not needed");
        drop(held);
    }

    #[test]
    fn of_many_who_want_a_worker_one_gets_it_and_only_while_it_is_ready() {
        // 000-F14, 000-F17, 000-F18, 000-F19
        let (ready, cell) = (ready(1), busy(1));
        assert!(!cell.reserve(), "it begins with a unit on its way");
        for _ in 0..100 {
            assert_eq!(cell.settle(&ready, After::GoOn, ANY_WEAR, 0), Load::Idle);
            let reserved = thread::scope(|threads| {
                let reserving: Vec<_> = (0..4).map(|_| threads.spawn(|| cell.reserve())).collect();
                reserving.into_iter().map(|thread| thread.join().unwrap()).filter(|&got| got).count()
            });
            assert_eq!(reserved, 1);
        }
        assert_eq!(cell.settle(&ready, After::Retire, ANY_WEAR, 0), Load::Retiring);
        assert!(!cell.reserve(), "it is on its way out");
        cell.end(&ready);
        assert_eq!((cell.status(), cell.reserve()), (WorkerStatus::Terminated, false));
    }

    #[test]
    fn it_retires_between_units_when_it_is_worn() {
        let ready = ready(4);
        for (wear, is_worn) in [
            (ANY_WEAR, false),
            (Wear { max_age_ms: Some(101), ..ANY_WEAR }, false),
            (Wear { max_age_ms: Some(100), ..ANY_WEAR }, true),
            (Wear { max_units: Some(1), ..ANY_WEAR }, false),
            (Wear { max_units: Some(0), ..ANY_WEAR }, true),
        ] {
            let load = busy(1).settle(&ready, After::GoOn, wear, 100);
            assert_eq!(load == Load::Retiring, is_worn, "{wear:?}");
        }
    }
}
