//! A place in the crew, in the hands of the thread of an attempt, and what becomes of the process in it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::crew::{Crew, Fate};
use super::dialect::Dialect;
use super::keeper::{crash, leave};
use super::leash::Leash;
use super::process::WarmProcess;
use super::{ProcessEvent, Why};
use crate::executor::Call;
use crate::executor::ipc::{ProcessChange, ProcessState};

/// A place in the crew, and the process in it once it was started. Dropped before it is done, whatever is there is ended.
pub(super) struct Held<D: Dialect> {
    pub(super) crew: Arc<Crew<D>>,
    pub(super) number: u64,
    pub(super) process: Option<Box<WarmProcess<D::Memory>>>,
    is_done: bool,
}

impl<D: Dialect> Held<D> {
    pub(super) fn new(crew: &Arc<Crew<D>>, number: u64, process: Option<Box<WarmProcess<D::Memory>>>) -> Held<D> {
        Held { crew: Arc::clone(crew), number, process, is_done: false }
    }

    /// How long a process has to stop what it does for a call.
    pub(super) fn cancel_grace(&self, call: &Call<'_>) -> Duration {
        self.crew.keep.cancel_grace.min(call.grace() / 3)
    }

    pub(super) fn process(&self) -> &WarmProcess<D::Memory> {
        self.process.as_deref().expect("it was started before it is asked")
    }

    pub(super) fn process_mut(&mut self) -> &mut WarmProcess<D::Memory> {
        self.process.as_deref_mut().expect("it was started before it is asked")
    }

    pub(super) fn done(mut self, fate: Fate) {
        self.is_done = true;
        if let Some(process) = self.process.take() {
            self.crew.give_back(process, fate);
        }
    }
}

impl<D: Dialect> Drop for Held<D> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        match self.process.take() {
            Some(mut process) => {
                if process.state == ProcessState::Busy {
                    crash(&self.crew, &mut process, "whoever had asked it came to grief");
                }
                self.crew.give_back(process, Fate::Dead);
            }
            None => self.crew.free(self.number),
        }
    }
}

/// What becomes of a process after a query.
impl<D: Dialect> Held<D> {
    /// It takes the next query, unless it has said what it must not.
    pub(super) fn goes_on(&mut self, change: ProcessChange, leash: &Leash) -> Fate {
        let (crew, now) = (Arc::clone(&self.crew), Instant::now());
        let keep = &crew.keep;
        let process = self.process_mut();
        process.change(change);
        (process.last_activity, process.unasked_bytes) = (now, 0);
        leash.loosen(keep.idle_limit());
        crew.tell(&ProcessEvent::Idle { number: process.number });
        if process.fault.is_some() {
            // What it said is with its unit.
            log::warn!("process {} is replaced: it said what it must not", process.number);
            return Fate::ShutDown(Why::Unfit);
        }
        if now >= process.created_at + keep.max_age { Fate::ShutDown(Why::Old) } else { Fate::Idle }
    }

    pub(super) fn is_replaced(&mut self, change: ProcessChange, reason: String) -> Fate {
        let process = self.process_mut();
        process.change(change);
        log::debug!("process {} is replaced: {reason}", process.number);
        Fate::ShutDown(Why::Unfit)
    }

    /// It has ended, as it was to.
    pub(super) fn was_heard_out(&mut self, change: ProcessChange) -> Fate {
        self.process_mut().change(change);
        self.went(ProcessChange::ShutDown, ProcessChange::Ended, Why::Unfit)
    }

    /// It did not stop its query in time.
    pub(super) fn was_killed(&mut self) -> Fate {
        self.went(ProcessChange::CancelAndShutDown, ProcessChange::Timeout, Why::Cancelled)
    }

    fn went(&mut self, first: ProcessChange, last: ProcessChange, why: Why) -> Fate {
        let (crew, number) = (Arc::clone(&self.crew), self.number);
        self.process_mut().change(first);
        crew.tell(&ProcessEvent::ShuttingDown { number, why });
        self.process_mut().change(last);
        crew.tell(&ProcessEvent::Ended { number, was_killed: last == ProcessChange::Timeout });
        Fate::Dead
    }

    /// It had ended by itself, in order, before it could begin.
    pub(super) fn has_left(&mut self) -> Fate {
        let crew = Arc::clone(&self.crew);
        leave(&crew, self.process_mut());
        Fate::Dead
    }

    /// The same, once its query was over.
    pub(super) fn has_left_after(&mut self, change: ProcessChange) -> Fate {
        self.process_mut().change(change);
        self.has_left()
    }

    pub(super) fn crashed(&mut self, reason: &str) -> Fate {
        let crew = Arc::clone(&self.crew);
        crash(&crew, self.process_mut(), reason);
        Fate::Dead
    }
}
