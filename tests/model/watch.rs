//! Who executes what right now, and what must hold meanwhile: looked at from inside of the executions.
//!
//! One that was asked to stop does not count any more: its thread may have been left behind, and its unit be with another.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use workcrew::{Affinity, Call, CancelToken, Event, WorkerId};

/// See the [module](self). Its lock is the standard library's: nothing happens under it.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    executing: BTreeMap<u64, Executing>,
    entered_ever: u64,
    max_workers: Option<usize>,
    /// One unless it is said otherwise.
    capacity: Option<usize>,
    /// The session of each unit that is strict.
    sessions: BTreeMap<String, String>,
    /// The units of a thread in a session that have begun, by number.
    begun: BTreeMap<(String, String), BTreeSet<usize>>,
    /// The most that were executed by one worker at a time.
    most: usize,
}

#[derive(Clone)]
struct Executing {
    worker: WorkerId,
    /// The session that it keeps to strictly.
    session: Option<String>,
    cancel: CancelToken,
}

/// An execution, until it is dropped.
pub(crate) struct Entered {
    watch: Watch,
    number: u64,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.watch.0.lock().unwrap().executing.remove(&self.number);
    }
}

impl Watch {
    /// Says how many workers there may be, and how many units each may execute at a time.
    pub(crate) fn expect_at_most(&self, max_workers: usize, capacity: u32) {
        let mut state = self.0.lock().unwrap();
        (state.max_workers, state.capacity) = (Some(max_workers), usize::try_from(capacity).ok());
    }

    /// The most units that one worker had at a time.
    pub(crate) fn most(&self) -> usize {
        self.0.lock().unwrap().most
    }

    /// An execution begins.
    pub(crate) fn enter(&self, call: &Call<'_>) -> Entered {
        let options = &call.unit().options;
        let is_strict = options.affinity.is_some_and(|affinity| affinity != Affinity::Hint);
        let session = options.affinity_key.clone().filter(|_| is_strict);
        let me = Executing { worker: call.worker_id().clone(), session, cancel: call.cancel_token().clone() };
        let mut state = self.0.lock().unwrap();
        state.entered_ever += 1;
        let entered = Entered { watch: self.clone(), number: state.entered_ever };
        state.executing.insert(entered.number, me.clone());
        let (max_workers, capacity) = (state.max_workers, state.capacity.unwrap_or(1));
        let executing: Vec<_> = state.executing.values().cloned().collect();
        drop(state);
        // Who has not been asked to stop by now had not then.
        let executing: Vec<_> = executing.into_iter().filter(|other| !other.cancel.is_cancelled()).collect();
        let workers: BTreeSet<_> = executing.iter().map(|other| &other.worker).collect();
        assert!(max_workers.is_none_or(|max_workers| workers.len() <= max_workers), "{workers:?}");
        let load = executing.iter().filter(|other| other.worker == me.worker).count();
        assert!(load <= capacity, "{} executes {load} units", me.worker);
        let of_session = |other: &&Executing| me.session.is_some() && other.session == me.session;
        let elsewhere = executing.iter().filter(of_session).find(|other| other.worker != me.worker);
        assert!(
            elsewhere.is_none() || me.cancel.is_cancelled(),
            "session {:?} is on {} and {:?}",
            me.session,
            me.worker,
            elsewhere.map(|other| &other.worker)
        );
        let mut state = self.0.lock().unwrap();
        state.most = state.most.max(load);
        drop(state);
        entered
    }

    /// Remembers which session a unit belongs to, whose units are to begin in order.
    pub(crate) fn keep_order(&self, unit: &str, session: &str) {
        self.0.lock().unwrap().sessions.insert(unit.to_owned(), session.to_owned());
    }

    /// Units of a strict session that one thread brought begin for the first time in the order in which it did.
    pub(crate) fn look(&self, event: &Event<'_>) {
        let Event::AttemptStarted { unit_id, .. } = event else { return };
        let mut state = self.0.lock().unwrap();
        let Some(session) = state.sessions.get(unit_id.as_str()).cloned() else { return };
        let (thread, number) = unit_id.as_str().rsplit_once('-').unwrap();
        let number: usize = number.parse().unwrap();
        let begun = state.begun.entry((session, thread.to_owned())).or_default();
        let is_first = begun.insert(number);
        let last = begun.last().copied();
        drop(state);
        assert!(!is_first || last == Some(number), "{unit_id} begins after {last:?}");
    }

    /// Everybody has come back.
    pub(crate) fn assert_nobody_executes(&self) {
        assert!(self.0.lock().unwrap().executing.is_empty());
    }
}
