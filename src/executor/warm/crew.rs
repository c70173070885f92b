//! Who has which process, and who waits for one.
//!
//! There is one list of members, under one lock. A member takes up a place from before it is started until nothing of it is left, so there are
//! never more than there may be. It is in the hands of the thread of an attempt, or of the keeper, or idle:
//!
//! ```text
//!   a call wants a process of a key
//!     ├─ one of that key is idle ─────────────────────────────────▶ it gets that
//!     ├─ one of that session is busy, starting or ending ─────────▶ it waits for that
//!     ├─ there is a free place ───────────────────────────────────▶ it gets the place, and starts one
//!     ├─ another one is idle ─▶ that is told to end, its place is promised ─▶ it gets the place once that is gone
//!     └─ else ────────────────────────────────────────────────────▶ it waits in line
//! ```
//!
//! Whoever came first is served first, but a process that is there goes to whoever wants exactly that, until somebody who needs its place has
//! been passed by too often.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::dialect::{Dialect, Health, ProcessKey};
use super::eviction::Candidate;
use super::process::{Bell, WarmProcess};
use super::{Eviction, Keep, ProcessEvent, ProcessView, Why, keeper};
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
        log::debug!("{event}");
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
        let is_to_end = member.is_to_end || matches!(state.phase, Phase::Closed | Phase::Over);
        let shut_down = |why| Some(Leave::ShutDown { why, grace: self.keep.shutdown_grace });
        let leaves = match fate {
            Fate::Idle if !is_to_end => None,
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
        drop(state);
        self.bell.ring();
    }

    /// Nothing is left of a process, or there never was one: its place is whose it was promised to, or anybody's.
    pub(super) fn free(&self, number: u64) {
        let mut state = self.lock();
        let promised_to = state.members.remove(&number).and_then(|member| member.promised_to);
        let waits = |waiter: &Waiter<D::Memory>| Some(waiter.ticket) == promised_to && waiter.grant.is_none();
        if let Some(place) = state.waiters.iter().position(waits) {
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
    fn is_promised(&self, ticket: u64) -> bool {
        self.members.values().any(|member| member.promised_to == Some(ticket))
    }

    /// Whether somebody waits for a place, and not for a process that is there, and was not promised one.
    fn needs_place(&self, waiter: &Waiter<Memory>) -> bool {
        waiter.grant.is_none()
            && !self.is_promised(waiter.ticket)
            && !self.members.values().any(|member| member.is_of_session(&waiter.key))
    }

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

    /// Gives those who wait for a process of a key one that is there, the one that was used last.
    fn deal_idle(&mut self, will_do: impl Fn(&Waiter<Memory>, &ProcessKey, &WarmProcess<Memory>) -> bool) {
        for place in 0..self.waiters.len() {
            let waiter = &self.waiters[place];
            if waiter.grant.is_some() {
                continue;
            }
            let will_do = |member: &Member<Memory>| match &member.hands {
                Hands::Idle(process) => !process.is_lost() && will_do(waiter, &member.key, process),
                _ => false,
            };
            let found = self.members.iter().filter(|(_, member)| will_do(member));
            let Some(number) = found.max_by_key(|(_, member)| member.face.last_activity).map(|(&number, _)| number)
            else {
                continue;
            };
            let passed: Vec<usize> = (0..place).filter(|&earlier| self.needs_place(&self.waiters[earlier])).collect();
            if passed.iter().any(|&earlier| self.waiters[earlier].passed_by >= PASSED_BY_LIMIT) {
                continue;
            }
            let Some(member) = self.members.get_mut(&number) else { continue };
            if let Hands::Idle(process) = std::mem::replace(&mut member.hands, Hands::Call) {
                passed.into_iter().for_each(|earlier| self.waiters[earlier].passed_by += 1);
                let waiter = &mut self.waiters[place];
                member.asked_for = Some(waiter.key.clone());
                waiter.grant = Some(Grant::Process(process));
                waiter.nudge.wake();
            }
        }
    }

    /// Gives those who still wait the places that are free, and promises them those of processes that can go. Says whether any has to.
    fn deal_places(&mut self, max_workers: usize, eviction: Eviction, grace: Duration) -> bool {
        let mut has_evicted = false;
        for place in 0..self.waiters.len() {
            let (ticket, key) = (self.waiters[place].ticket, self.waiters[place].key.clone());
            if self.waiters[place].grant.is_some() || self.is_promised(ticket) {
                continue;
            }
            let same = self.members.iter().find(|(_, member)| member.is_of_session(&key));
            let victim = match same {
                // It is there, and will not do: nobody else wants it either.
                Some((&number, Member { hands: Hands::Idle(process), .. })) if !process.is_lost() => Some(number),
                Some(_) => continue,
                None if self.members.len() < max_workers => {
                    self.grant_place(place);
                    continue;
                }
                None => eviction.choose(self.candidates()),
            };
            let Some(member) = victim.and_then(|victim| self.members.get_mut(&victim)) else { continue };
            if let Hands::Idle(process) = std::mem::replace(&mut member.hands, Hands::Leaving) {
                // The place is promised before anybody is told to end: there are never more than there may be.
                member.promised_to = Some(ticket);
                self.leaving.push(Leaving { process, how: Leave::ShutDown { why: Why::Evicted, grace } });
                has_evicted = true;
            }
        }
        has_evicted
    }

    fn candidates(&self) -> impl Iterator<Item = Candidate> {
        self.members.iter().filter_map(|(&number, member)| match &member.hands {
            Hands::Idle(process) if !process.is_lost() => Some(Candidate {
                number,
                created_at: process.created_at,
                last_activity: process.last_activity,
                queries_processed: process.queries_processed,
            }),
            _ => None,
        })
    }

    /// Gives somebody who waits a place for a process.
    fn grant_place(&mut self, place: usize) {
        self.started_ever += 1;
        let number = self.started_ever;
        let waiter = &mut self.waiters[place];
        let (key, face) = (waiter.key.clone(), Face::new());
        waiter.grant = Some(Grant::Place(number));
        waiter.nudge.wake();
        let member =
            Member { key, asked_for: None, hands: Hands::Call, promised_to: None, is_to_end: false, face };
        self.members.insert(number, member);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::executor::process::tree::Times;
    use crate::executor::process::{ChildCommand, Input, Line};
    use crate::executor::warm::{Control, End, Heard, Query, Reach};
    use crate::executor::{Call, ExecuteError, WorkResult};

    /// Far longer than anything here takes.
    const LONG: Duration = Duration::from_secs(60);

    /// Has nothing to say to a process, which ends with its input.
    struct Mute;

    impl Dialect for Mute {
        type Memory = ();
        type Query = Mute;

        const REACH: Reach = Reach::Pipes;

        fn key(&self, _call: &Call<'_>) -> ProcessKey {
            ProcessKey::default()
        }

        fn session<'a>(&self, (): &'a ()) -> Option<&'a str> {
            None
        }

        fn fits(&self, (): &(), _resumed: Option<&str>) -> bool {
            true
        }

        fn child(&self, _call: &Call<'_>) -> ChildCommand {
            cat()
        }

        fn remember_start(&self, (): &mut (), _call: &Call<'_>) {}

        fn ask(
            &self,
            (): &mut (),
            _request_id: &str,
            _grace: Duration,
            _call: &Call<'_>,
        ) -> Result<(Vec<u8>, Mute), ExecuteError> {
            Ok((Vec::new(), Mute))
        }

        fn control(&self, _line: Line<'_>) -> Control {
            Control::Nothing
        }

        fn cancel(&self, _request_id: &str) -> Vec<u8> {
            Vec::new()
        }

        fn health_check(&self) -> Option<Vec<u8>> {
            None
        }

        fn shutdown(&self) -> Option<Vec<u8>> {
            None
        }
    }

    impl Query<()> for Mute {
        fn hear(&mut self, _line: Line<'_>, _call: &Call<'_>) -> Heard {
            Heard::More
        }

        fn conclude(self, _end: End<'_>, (): &mut (), _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
            Ok(WorkResult::empty())
        }
    }

    fn cat() -> ChildCommand {
        ChildCommand { input: Input::Open, ..ChildCommand::new("cat") }
    }

    fn crew() -> Arc<Crew<Mute>> {
        let crew = Arc::new(Crew::new(Mute, Keep::up_to(1)).unwrap());
        crew.have_keeper().unwrap();
        crew
    }

    fn wait(crew: &Crew<Mute>) -> u64 {
        crew.stand_in_line(&ProcessKey::default(), None, &Arc::default()).0
    }

    /// A process that is up, in the place that somebody has got.
    fn process(crew: &Crew<Mute>, ticket: u64) -> Box<WarmProcess<()>> {
        let Some(Grant::Place(number)) = crew.take_grant(ticket) else { panic!("there was a place") };
        let times = Times { grace: Duration::ZERO, limit: LONG };
        let mut process = WarmProcess::start(number, cat(), Reach::Pipes, None, times).unwrap();
        process.change(crate::executor::ipc::ProcessChange::Ready);
        Box::new(process)
    }

    /// Has all end, and says when they have.
    fn shuts_down(crew: &Arc<Crew<Mute>>) -> Receiver<()> {
        let (send, over) = channel();
        let shuts = Arc::clone(crew);
        std::thread::spawn(move || {
            shuts.shut_down_all();
            send.send(())
        });
        while !crew.lock().members.values().all(|member| member.is_to_end) {
            std::thread::yield_now();
        }
        over
    }

    #[test]
    fn who_leaves_the_line_with_a_place_or_a_process_keeps_nobody_waiting() {
        let crew = crew();
        let has_place = wait(&crew);
        let over = shuts_down(&crew);
        crew.leave_line(has_place);
        over.recv_timeout(LONG).expect("the place was given back");
        let (first, second) = (wait(&crew), wait(&crew));
        crew.give_back(process(&crew, first), Fate::Idle);
        let over = shuts_down(&crew);
        crew.leave_line(second);
        over.recv_timeout(LONG).expect("the process was seen off");
        assert_eq!(crew.count(), 0);
        crew.close(LONG);
    }

    #[test]
    fn nobody_waits_for_what_a_thread_has_that_was_left_behind() {
        let left_behind = crew();
        let ticket = wait(&left_behind);
        let held = process(&left_behind, ticket);
        let over = shuts_down(&left_behind);
        left_behind.close(Duration::ZERO);
        over.recv_timeout(LONG).expect("all of it is over");
        let over = shuts_down(&left_behind);
        over.recv_timeout(LONG).expect("it is still over");
        left_behind.give_back(held, Fate::Idle);
        assert_eq!(left_behind.count(), 0);
    }
}
