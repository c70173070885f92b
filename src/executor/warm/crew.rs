//! Who has which process, and who waits for one.
//!
//! There is one list of members, under one lock. A member takes up a place from before it is started until nothing of it is left, so there are
//! never more than there may be. It is in the hands of the thread of an attempt, or of the keeper, or idle:
//!
//! ```text
//!   a call wants a process of a key
//!     ├─ one of that key is idle ─────────────────────────────────▶ it gets that
//!     ├─ one of that session is busy, starting, ending or promised ▶ it waits for that
//!     ├─ there is a free place ───────────────────────────────────▶ it gets the place, and starts one
//!     ├─ another one is idle ─▶ that is told to end, its place is promised ─▶ it gets the place once that is gone
//!     └─ else ────────────────────────────────────────────────────▶ it waits in line
//! ```
//!
//! Whoever came first is served first, but a process that is there goes to whoever wants exactly that, until somebody who needs its place has
//! been passed by too often.

mod deal;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::dialect::{Dialect, Health, ProcessKey};
use super::process::WarmProcess;
use super::{Keep, ProcessEvent, ProcessView, Why, keeper};
use crate::executor::ipc::{ConnectionState, ProcessState};
use crate::executor::process::tree::Line as TreeLine;
use crate::nudge::Nudge;
use crate::panics;
use crate::pool::inside;
use crate::process::Process;

/// How long a process that was killed may take to be gone. The system may hold on to one that waits for a disk.
pub(super) const UNTIL_GONE: Duration = Duration::from_secs(5);

/// So often somebody who needs a place lets a process that is there go to others who came later.
const PASSED_BY_LIMIT: u32 = 16;

/// All processes of one kind, and those who wait for one.
pub(super) struct Crew<D: Dialect> {
    pub(super) dialect: D,
    pub(super) keep: Keep,
    /// Wakes the keeper.
    pub(super) bell: Bell,
    state: Mutex<State<D::Memory>>,
    /// Told when a member is gone.
    gone: Condvar,
}

pub(super) struct State<Memory> {
    members: BTreeMap<u64, Member<Memory>>,
    waiters: Vec<Waiter<Memory>>,
    /// On their way to the keeper.
    leaving: Vec<Leaving<Memory>>,
    phase: Phase,
    /// By when all have to be gone by themselves.
    ends_by: Option<Instant>,
    started_ever: u64,
    waited_ever: u64,
    /// How many did not come up since one did.
    failed_starts: u32,
}

/// Where the crew is in its life.
enum Phase {
    /// It has no keeper yet.
    New,
    Open(JoinHandle<()>),
    /// Nothing is begun any more.
    Closed,
    /// The keeper is gone, too.
    Over,
}

/// A place that is taken.
struct Member<Memory> {
    key: ProcessKey,
    /// What it is asked for while a call has it. It need not have been started for that.
    asked_for: Option<ProcessKey>,
    hands: Hands<Memory>,
    /// Who gets its place.
    promised_to: Option<u64>,
    /// It takes nothing more.
    is_to_end: bool,
    face: Face,
}

impl<Memory> Member<Memory> {
    /// Whether it is the one process of the session that a key names.
    fn is_of_session(&self, key: &ProcessKey) -> bool {
        key.session.is_some() && (self.key == *key || self.asked_for.as_ref() == Some(key))
    }
}

/// Who has a process.
enum Hands<Memory> {
    /// The thread of an attempt.
    Call,
    /// Nobody: whoever wants it can have it.
    Idle(Box<WarmProcess<Memory>>),
    /// The keeper, who looks at it and brings it back.
    Keeper,
    /// The keeper, who sees it off.
    Leaving,
}

/// What others see of a process that is in somebody's hands.
#[derive(Clone)]
pub(super) struct Face {
    pub(super) state: ProcessState,
    pub(super) connection: ConnectionState,
    pub(super) process: Option<Process>,
    pub(super) created_at: Instant,
    pub(super) last_activity: Instant,
    pub(super) queries_processed: u64,
    pub(super) active_request_id: Option<String>,
    pub(super) health: Option<Health>,
    /// Ends it, whoever has it.
    pub(super) line: Option<TreeLine>,
}

impl Face {
    fn new() -> Face {
        let now = Instant::now();
        Face {
            state: ProcessState::Starting,
            connection: ConnectionState::Disconnected,
            process: None,
            created_at: now,
            last_activity: now,
            queries_processed: 0,
            active_request_id: None,
            health: None,
            line: None,
        }
    }

    pub(super) fn see<Memory>(&mut self, process: &WarmProcess<Memory>) {
        self.state = process.state;
        self.connection = process.connection();
        self.created_at = process.created_at;
        self.last_activity = process.last_activity;
        self.queries_processed = process.queries_processed;
        self.health = process.health;
    }
}

/// Somebody who wants a process.
struct Waiter<Memory> {
    ticket: u64,
    key: ProcessKey,
    /// The session that its call carries on.
    resumed: Option<String>,
    nudge: Arc<Nudge>,
    grant: Option<Grant<Memory>>,
    /// How often others who came later have got something first.
    passed_by: u32,
}

/// What somebody gets who waited.
pub(super) enum Grant<Memory> {
    Process(Box<WarmProcess<Memory>>),
    /// A place for a process that it is to start.
    Place(u64),
    /// Nothing: all are to end.
    Closed,
}

/// A process on its way out.
pub(super) struct Leaving<Memory> {
    pub(super) process: Box<WarmProcess<Memory>>,
    pub(super) how: Leave,
}

/// How a process goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// It is told to end, and has so long.
    ShutDown { why: Why, grace: Duration },
    /// It is killed.
    Kill,
}

/// What became of a process that was in somebody's hands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// It waits for the next.
    Idle,
    /// It is told to end.
    ShutDown(Why),
    /// It is dead, and what is left of it is killed. Whoever had it has told of it.
    Dead,
}

impl<D: Dialect> Crew<D> {
    pub(super) fn new(dialect: D, keep: Keep) -> std::io::Result<Crew<D>> {
        let state = State {
            members: BTreeMap::new(),
            waiters: Vec::new(),
            leaving: Vec::new(),
            phase: Phase::New,
            ends_by: None,
            started_ever: 0,
            waited_ever: 0,
            failed_starts: 0,
        };
        Ok(Crew { dialect, keep, bell: Bell::new()?, state: Mutex::new(state), gone: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, State<D::Memory>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells whoever wants to know, with no lock held.
    pub(super) fn tell(&self, event: &ProcessEvent<'_>) {
        match event {
            // What it complained of may be anything, and is with its unit.
            ProcessEvent::Crashed { number, reason } => {
                log::warn!("process {number} crashed: {}", reason.split(": ").next().unwrap_or_default());
            }
            event => log::debug!("{event}"),
        }
        if let Some(observer) = &self.keep.observer {
            panics::contain("an observer of processes", || observer(event));
        }
    }

    /// Stands in line; gives the ticket, and says whether there is nothing to be had for now.
    pub(super) fn stand_in_line(&self, key: &ProcessKey, resumed: Option<&str>, nudge: &Arc<Nudge>) -> (u64, bool) {
        let mut state = self.lock();
        state.waited_ever += 1;
        let ticket = state.waited_ever;
        let (key, resumed, nudge) = (key.clone(), resumed.map(str::to_owned), Arc::clone(nudge));
        state.waiters.push(Waiter { ticket, key, resumed, nudge, grant: None, passed_by: 0 });
        self.deal(&mut state);
        let waits = state.waiters.iter().any(|waiter| waiter.ticket == ticket && waiter.grant.is_none());
        (ticket, waits && !state.is_promised(ticket))
    }

    /// What somebody gets who waits; `None` if that is yet to come. Whoever has got something waits no more.
    pub(super) fn take_grant(&self, ticket: u64) -> Option<Grant<D::Memory>> {
        let mut state = self.lock();
        let place = state.waiters.iter().position(|waiter| waiter.ticket == ticket && waiter.grant.is_some())?;
        state.waiters.remove(place).grant
    }

    /// Whoever waits has other plans.
    pub(super) fn leave_line(&self, ticket: u64) {
        let mut state = self.lock();
        let Some(place) = state.waiters.iter().position(|waiter| waiter.ticket == ticket) else { return };
        let grant = state.waiters.remove(place).grant;
        drop(state);
        // What came at the last moment goes back as if it had been used: all may have to end meanwhile.
        match grant {
            Some(Grant::Process(process)) => self.give_back(process, Fate::Idle),
            Some(Grant::Place(number)) => self.free(number),
            Some(Grant::Closed) | None => {}
        }
    }

    /// The thread that looks after those that nobody has, if there is none yet.
    pub(super) fn have_keeper(self: &Arc<Self>) -> std::io::Result<()> {
        let mut state = self.lock();
        if matches!(state.phase, Phase::New) {
            let (crew, pool) = (Arc::clone(self), inside::current());
            let builder = std::thread::Builder::new().name("workcrew-keeper".to_owned());
            let keeper = builder.spawn(move || {
                // The pool waits for it when it stops, so what it calls must not wait for the pool.
                inside::enter(pool);
                keeper::keep(&crew);
            });
            state.phase = Phase::Open(keeper?);
        }
        Ok(())
    }

    /// Changes what others see of a process.
    pub(super) fn show(&self, number: u64, change: impl FnOnce(&mut Face)) {
        if let Some(member) = self.lock().members.get_mut(&number) {
            change(&mut member.face);
        }
    }

    /// A process did not come up, or did; how many have not since one did.
    pub(super) fn count_start(&self, has_come_up: bool) -> u32 {
        let mut state = self.lock();
        state.failed_starts = if has_come_up { 0 } else { state.failed_starts.saturating_add(1) };
        state.failed_starts
    }

    /// Whoever had a process is done with it.
    pub(super) fn give_back(&self, process: Box<WarmProcess<D::Memory>>, fate: Fate) {
        let mut state = self.lock();
        let Some(member) = state.members.get_mut(&process.number) else { return };
        member.face.see(&process);
        member.face.active_request_id = None;
        let shut_down = |why| Some(Leave::ShutDown { why, grace: self.keep.shutdown_grace });
        let leaves = match fate {
            Fate::Idle if !member.is_to_end => None,
            Fate::Idle => shut_down(Why::Stopped),
            Fate::ShutDown(why) => shut_down(why),
            Fate::Dead => Some(Leave::Kill),
        };
        if let Some(how) = leaves {
            self.see_off(state, process, how);
            return;
        }
        state.lay_down(process);
        self.deal(&mut state);
        drop(state);
        self.bell.ring();
    }

    /// Gives a process to the keeper, who sees it off; if there is none any more it is killed here.
    fn see_off(&self, mut state: MutexGuard<'_, State<D::Memory>>, process: Box<WarmProcess<D::Memory>>, how: Leave) {
        if matches!(state.phase, Phase::Over) {
            state.members.remove(&process.number);
            drop(state);
            self.gone.notify_all();
            // Killed with the last that holds it.
            drop(process);
            return;
        }
        state.send_off(process, how);
        // Whoever might have got it gets something else.
        self.deal(&mut state);
        drop(state);
        self.bell.ring();
    }

    /// Nothing is left of a process, or there never was one: its place is whose it was promised to, or anybody's.
    pub(super) fn free(&self, number: u64) {
        let mut state = self.lock();
        let promised_to = state.members.remove(&number).and_then(|member| member.promised_to);
        let waits = |waiter: &Waiter<D::Memory>| Some(waiter.ticket) == promised_to && waiter.grant.is_none();
        // Its session may have got a process meanwhile, for which it waits then.
        if let Some(place) = state.waiters.iter().position(waits)
            && !state.has_session(&state.waiters[place].key)
        {
            state.grant_place(place);
        }
        self.deal(&mut state);
        drop(state);
        self.gone.notify_all();
    }

    /// Gives everybody who waits what there is for them.
    fn deal(&self, state: &mut State<D::Memory>) {
        if state.waiters.is_empty() {
            return;
        }
        if matches!(state.phase, Phase::Closed | Phase::Over) {
            for waiter in state.waiters.iter_mut().filter(|waiter| waiter.grant.is_none()) {
                waiter.grant = Some(Grant::Closed);
                waiter.nudge.wake();
            }
            return;
        }
        state.deal_idle(|waiter, key, process| {
            let resumed = waiter.resumed.as_deref();
            // It need not have been started for a session to be in it.
            let is_in_session = resumed.is_some() && self.dialect.session(&process.memory) == resumed;
            let wants_session = waiter.key.session.as_deref() == resumed;
            let is_same_but_for_session = ProcessKey { session: None, ..waiter.key.clone() } == *key;
            (waiter.key == *key && self.dialect.fits(&process.memory, resumed))
                || (wants_session && is_in_session && is_same_but_for_session)
        });
        if state.deal_places(self.keep.max_workers, self.keep.eviction, self.keep.shutdown_grace) {
            self.bell.ring();
        }
    }
}

/// What the keeper asks for.
impl<D: Dialect> Crew<D> {
    /// Those that are to be seen off from now on.
    pub(super) fn take_leaving(&self) -> Vec<Leaving<D::Memory>> {
        std::mem::take(&mut self.lock().leaving)
    }

    /// By when all have to be gone by themselves, if they have to.
    pub(super) fn ends_by(&self) -> Option<Instant> {
        self.lock().ends_by
    }

    /// Looks at every process that nobody has.
    pub(super) fn for_each_idle(&self, mut look: impl FnMut(&WarmProcess<D::Memory>)) {
        for member in self.lock().members.values() {
            if let Hands::Idle(process) = &member.hands {
                look(process);
            }
        }
    }

    /// Takes an idle process to look after it; `None` if somebody else has it by now.
    pub(super) fn borrow_idle(&self, number: u64) -> Option<Box<WarmProcess<D::Memory>>> {
        let mut state = self.lock();
        let member = state.members.get_mut(&number)?;
        match std::mem::replace(&mut member.hands, Hands::Keeper) {
            Hands::Idle(process) => Some(process),
            hands => {
                member.hands = hands;
                None
            }
        }
    }

    /// Whether all are to end and nobody is left that the keeper has to see off. Then there is no keeper any more.
    pub(super) fn is_over(&self) -> bool {
        let mut state = self.lock();
        let is_over = matches!(state.phase, Phase::Closed)
            && state.leaving.is_empty()
            && state.members.values().all(|member| matches!(member.hands, Hands::Call));
        if is_over {
            state.phase = Phase::Over;
            self.gone.notify_all();
        }
        is_over
    }
}

/// What others see, and how all of it ends.
impl<D: Dialect> Crew<D> {
    pub(super) fn views(&self) -> Vec<ProcessView> {
        let now = Instant::now();
        let view = |(&number, member): (&u64, &Member<D::Memory>)| {
            let mut face = member.face.clone();
            if let Hands::Idle(process) = &member.hands {
                face.see(process);
            }
            ProcessView {
                number,
                key: member.key.clone(),
                state: face.state,
                connection: face.connection,
                process: face.process,
                age: now.saturating_duration_since(face.created_at),
                idle_for: now.saturating_duration_since(face.last_activity),
                queries_processed: face.queries_processed,
                active_request_id: face.active_request_id,
                health: face.health,
            }
        };
        self.lock().members.iter().map(view).collect()
    }

    /// How many processes there are, those that start and end included.
    pub(super) fn count(&self) -> usize {
        self.lock().members.len()
    }

    /// Ends all that there are now, each when it is done with what it has, and waits for that, unless this thread may be the one that
    /// it would wait for.
    pub(super) fn shut_down_all(&self) {
        let mut state = self.lock();
        let those: Vec<u64> = state.members.keys().copied().collect();
        state.send_all_off(self.keep.shutdown_grace);
        self.bell.ring();
        // Once the keeper is gone, what there is is in the hands of threads that were left behind.
        while inside::current() == 0
            && !matches!(state.phase, Phase::Over)
            && those.iter().any(|number| state.members.contains_key(number))
        {
            state = self.gone.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins nothing any more, ends all that there are, and waits for that: those that are idle have so long to end by themselves, and
    /// so long is waited for those that somebody has.
    pub(super) fn close(&self, grace: Duration) {
        let grace = grace.min(self.keep.shutdown_grace);
        let mut state = self.lock();
        let keeper = match std::mem::replace(&mut state.phase, Phase::Closed) {
            Phase::Open(keeper) => Some(keeper),
            Phase::Over => {
                state.phase = Phase::Over;
                return;
            }
            Phase::New => {
                state.phase = Phase::Over;
                None
            }
            Phase::Closed => None,
        };
        let until = Instant::now() + grace;
        state.ends_by = Some(state.ends_by.map_or(until, |earlier| earlier.min(until)));
        state.send_all_off(grace);
        self.deal(&mut state);
        self.bell.ring();
        while state.members.values().any(|member| matches!(member.hands, Hands::Call)) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Their threads do not come back. What they have ends without them.
                for member in state.members.values().filter(|member| matches!(member.hands, Hands::Call)) {
                    member.face.line.iter().for_each(TreeLine::kill);
                }
                break;
            }
            state = self.gone.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        if let Some(keeper) = keeper
            && keeper.thread().id() != std::thread::current().id()
        {
            let _ = keeper.join();
        }
    }
}

impl<Memory> State<Memory> {
    /// Nobody has it.
    fn lay_down(&mut self, process: Box<WarmProcess<Memory>>) {
        if let Some(member) = self.members.get_mut(&process.number) {
            member.face.see(&process);
            member.asked_for = None;
            member.hands = Hands::Idle(process);
        }
    }

    fn send_off(&mut self, process: Box<WarmProcess<Memory>>, how: Leave) {
        if let Some(member) = self.members.get_mut(&process.number) {
            member.hands = Hands::Leaving;
        }
        self.leaving.push(Leaving { process, how });
    }

    /// All that are idle are to end now, all others when they are not needed any more.
    fn send_all_off(&mut self, grace: Duration) {
        let mut idle = Vec::new();
        for member in self.members.values_mut() {
            member.is_to_end = true;
            match std::mem::replace(&mut member.hands, Hands::Leaving) {
                Hands::Idle(process) => idle.push(process),
                hands => member.hands = hands,
            }
        }
        for process in idle {
            let how = if grace.is_zero() { Leave::Kill } else { Leave::ShutDown { why: Why::Stopped, grace } };
            self.leaving.push(Leaving { process, how });
        }
    }
}
