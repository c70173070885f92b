//! One call, from the wait for a process to what becomes of it afterwards. Read from the top, it is the life of a query.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::crew::{Crew, Fate, Grant, UNTIL_GONE};
use super::dialect::{Afterwards, Control, Dialect, End, Heard, Query, Reach};
use super::keeper::{UNTIL_KNOWN, ask_for_health, crash, take_note};
use super::process::{Descriptor, Leash, Source, WarmProcess, wait};
use super::{ProcessEvent, Why};
use crate::executor::ipc::socket::SocketDirectory;
use crate::executor::ipc::{ProcessChange, ProcessState, QueryChange, QueryState};
use crate::executor::process::tree::Times;
use crate::executor::process::{self, ChildCommand, Exit, How, Line, Reason};
use crate::executor::{Call, ExecuteError, WorkResult, kinds};
use crate::nudge::Nudge;

/// So many processes in a row that do not come up say that none will.
const HOPELESS_STARTS: u32 = 3;

/// So often a process may say what it must not while it works: then it is ended with its query, not after it.
const FAULT_LIMIT: u32 = 100;

/// How much longer than its call a process may live if the host cannot end it.
const BEYOND_THE_CALL: Duration = Duration::from_secs(5);

/// How much longer than it has to stop a query a process may live if the host cannot end it.
const BEYOND_THE_GRACE: Duration = Duration::from_millis(250);

/// Executes a call by a process that is there, or by one that is started for it.
pub(super) fn execute<D: Dialect>(crew: &Arc<Crew<D>>, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let command = crew.dialect.child(call);
    process::check_directory(&command)?;
    let mut held = acquire(crew, call)?;
    let directory = command.directory.clone();
    if held.process.is_none() {
        start(&mut held, command, call)?;
    }
    let (concluded, written) = Drive::begin(held, call)?.run();
    process::with_files(concluded, directory.as_deref(), &written, call)
}

/// A place in the crew, and the process in it once it was started. Dropped before it is done, whatever is there is ended.
struct Held<D: Dialect> {
    crew: Arc<Crew<D>>,
    number: u64,
    process: Option<Box<WarmProcess<D::Memory>>>,
    is_done: bool,
}

impl<D: Dialect> Held<D> {
    fn new(crew: &Arc<Crew<D>>, number: u64, process: Option<Box<WarmProcess<D::Memory>>>) -> Held<D> {
        Held { crew: Arc::clone(crew), number, process, is_done: false }
    }

    fn process(&self) -> &WarmProcess<D::Memory> {
        self.process.as_deref().expect("it was started before it is asked")
    }

    fn process_mut(&mut self) -> &mut WarmProcess<D::Memory> {
        self.process.as_deref_mut().expect("it was started before it is asked")
    }

    fn done(mut self, fate: Fate) {
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

/// Waits for a process, or for a place for one.
fn acquire<D: Dialect>(crew: &Arc<Crew<D>>, call: &Call<'_>) -> Result<Held<D>, ExecuteError> {
    let not_started =
        |error| ExecuteError::retry("no thread to look after processes").kind(kinds::NOT_STARTED).source(error);
    crew.have_keeper().map_err(not_started)?;
    let nudge = Arc::new(Nudge::new());
    let _wakes = {
        let nudge = Arc::clone(&nudge);
        call.cancel_token().on_cancel(move || nudge.wake())
    };
    let key = crew.dialect.key(call);
    let (ticket, is_queued) = crew.stand_in_line(&key, call.resume_session(), &nudge);
    if is_queued {
        crew.tell(&ProcessEvent::Queued { key: &key });
    }
    loop {
        match crew.take_grant(ticket) {
            Some(Grant::Process(process)) => return Ok(Held::new(crew, process.number, Some(process))),
            Some(Grant::Place(number)) => return Ok(Held::new(crew, number, None)),
            Some(Grant::Closed) => {
                return Err(ExecuteError::retry("no process takes it: all are to end").kind(kinds::REJECTED));
            }
            None if call.is_cancelled() => {
                crew.leave_line(ticket);
                return Err(ExecuteError::retry("it was to stop before a process was free").kind(kinds::CANCELLED));
            }
            None => nudge.wait(None),
        }
    }
}

/// Starts a process, and waits until it takes queries.
fn start<D: Dialect>(held: &mut Held<D>, command: ChildCommand, call: &Call<'_>) -> Result<(), ExecuteError> {
    let crew = Arc::clone(&held.crew);
    let mut process = spawn(held, command, call)?;
    let (line, bell) = (process.line(), Arc::clone(&process.bell));
    let _wakes = call.cancel_token().on_cancel(move || {
        line.end();
        bell.ring();
    });
    let until = Instant::now() + crew.keep.ready_timeout;
    let mut is_ready = D::REACH == Reach::Pipes;
    while !is_ready {
        for source in happens(&process, Some(until)) {
            let mut controls = Vec::new();
            process.attend(source, &mut |line: Line<'_>| controls.push(crew.dialect.control(line)));
            is_ready |= controls.contains(&Control::Ready);
            controls.into_iter().for_each(|control| take_note(&crew, &mut process, control));
        }
        let failure = if is_ready && process.fault.is_none() {
            break;
        } else if let Some(fault) = process.fault.take() {
            Some((ProcessChange::NotStarted, fault))
        } else if process.has_ended() {
            Some((ProcessChange::NotStarted, format!("{} before it was ready", process.obituary())))
        } else if call.is_cancelled() {
            Some((ProcessChange::NotStarted, "it was to stop before it was ready".to_owned()))
        } else if Instant::now() >= until {
            let limit = crew.keep.ready_timeout;
            Some((ProcessChange::NotReady, format!("it did not say within {limit:?} that it is ready")))
        } else {
            None
        };
        if let Some((change, reason)) = failure {
            return Err(not_up(held, process, change, &reason, call));
        }
    }
    crew.count_start(true);
    process.change(ProcessChange::Ready);
    crew.dialect.remember_start(&mut process.memory, call);
    crew.tell(&ProcessEvent::Ready { number: held.number });
    held.process = Some(process);
    Ok(())
}

fn spawn<D: Dialect>(
    held: &Held<D>,
    command: ChildCommand,
    call: &Call<'_>,
) -> Result<Box<WarmProcess<D::Memory>>, ExecuteError> {
    let (crew, number) = (&held.crew, held.number);
    let key = crew.dialect.key(call);
    crew.tell(&ProcessEvent::Starting { number, key: &key });
    let failed = |error: ExecuteError| {
        crew.tell(&ProcessEvent::Crashed { number, reason: "it could not be started" });
        error
    };
    let door = match D::REACH {
        Reach::Pipes => None,
        Reach::Socket => Some(door(crew, number).map_err(failed)?),
    };
    let limit = crew.keep.ready_timeout + BEYOND_THE_CALL;
    let times = Times { grace: crew.keep.kill_grace, limit };
    let started = WarmProcess::start(number, command.clone(), D::REACH, door, times, &call.boot_id());
    let process = started.map_err(|error| failed(process::not_started(&command, error)))?;
    let (line, known) = (process.line(), process.process.clone());
    crew.show(number, |face| {
        face.see(&process);
        (face.line, face.process) = (Some(line), Some(known));
    });
    Ok(Box::new(process))
}

/// Where the process is to connect. What is wrong with it is wrong for every unit.
fn door<D: Dialect>(crew: &Crew<D>, number: u64) -> Result<crate::executor::ipc::socket::Door, ExecuteError> {
    let directory = crew.keep.socket_directory.clone().unwrap_or_else(SocketDirectory::usual);
    // Nobody else's has the name, wherever it lives.
    let name = format!("{number}-{}", uuid::Uuid::new_v4().simple());
    let opened = SocketDirectory::open(&directory).and_then(|directory| directory.door(&name));
    opened.map_err(|error| ExecuteError::hold("there is no socket for a worker").kind(kinds::NOT_STARTED).source(error))
}

/// A process did not come up.
fn not_up<D: Dialect>(
    held: &mut Held<D>,
    mut process: Box<WarmProcess<D::Memory>>,
    change: ProcessChange,
    reason: &str,
    call: &Call<'_>,
) -> ExecuteError {
    let crew = Arc::clone(&held.crew);
    process.change(change);
    crew.tell(&ProcessEvent::Crashed { number: held.number, reason });
    held.process = Some(process);
    if call.is_cancelled() {
        return ExecuteError::retry(reason).kind(kinds::CANCELLED);
    }
    let message = format!("a worker did not come up: {reason}");
    let is_hopeless = crew.count_start(false) >= HOPELESS_STARTS;
    let error = if is_hopeless { ExecuteError::hold(message) } else { ExecuteError::retry(message) };
    error.kind(kinds::WORKER_NOT_READY)
}

/// Waits until something happens to a process, or somebody rings; where it did.
fn happens<Memory>(process: &WarmProcess<Memory>, until: Option<Instant>) -> Vec<Source> {
    let (mut sources, mut watched): (Vec<Source>, Vec<(Descriptor, PollFlags)>) = (Vec::new(), Vec::new());
    for (source, descriptor, flags) in process.sources() {
        sources.push(source);
        watched.push((descriptor, flags));
    }
    watched.push((process.bell.sound(), PollFlags::IN));
    let happened = wait(&watched, until);
    if happened.last() == Some(&true) {
        process.bell.hush();
    }
    sources.into_iter().zip(happened).filter(|(_, happened)| *happened).map(|(source, _)| source).collect()
}

/// A query that is under way.
struct Drive<'a, D: Dialect> {
    held: Held<D>,
    call: &'a Call<'a>,
    query: D::Query,
    /// What was told last of where the query is in its life.
    query_state: Option<QueryState>,
    request_id: String,
    leash: Arc<Leash>,
    asked_at: Instant,
    has_spoken: bool,
    /// When it was told to stop.
    cancelled_at: Option<Instant>,
    /// The query is over, and this becomes of the process.
    over: Option<(Afterwards, Instant)>,
    /// It has said since that it can go on.
    can_go_on: bool,
    /// The query will never be over, for this reason.
    broken: Option<String>,
}

/// How a query came to its end.
enum Ended {
    /// It was answered, and this becomes of the process.
    Over(Afterwards),
    /// The process has ended by itself, or has hung up.
    Lost,
    /// The process is to be ended for this reason.
    Limit(Reason),
    /// The process makes no sense any more.
    Broken(String),
}

impl<'a, D: Dialect> Drive<'a, D> {
    /// Asks a process.
    fn begin(mut held: Held<D>, call: &'a Call<'a>) -> Result<Drive<'a, D>, ExecuteError> {
        let now = Instant::now();
        let crew = Arc::clone(&held.crew);
        let process = held.process_mut();
        let request_id = format!("{}.{}", process.number, process.queries_processed + 1);
        let (words, query) = match crew.dialect.ask(&mut process.memory, &request_id, call) {
            Ok(asked) => asked,
            Err(error) => {
                held.done(Fate::Idle);
                return Err(error);
            }
        };
        process.queries_processed += 1;
        (process.last_activity, process.heard_at, process.health_asked_at) = (now, now, None);
        process.change(ProcessChange::Query);
        crew.show(process.number, |face| {
            face.see(process);
            face.active_request_id = Some(request_id.clone());
        });
        crew.tell(&ProcessEvent::Busy { number: process.number, request_id: &request_id });
        call.child_started(process.process.clone());
        let leash = Leash::new(process.line(), call.time_left().saturating_add(call.grace() + BEYOND_THE_CALL));
        process.say(&words);
        Ok(Drive {
            held,
            call,
            query_state: query.state(),
            query,
            request_id,
            leash: Arc::new(leash),
            asked_at: now,
            has_spoken: false,
            cancelled_at: None,
            over: None,
            can_go_on: false,
            broken: None,
        })
    }

    /// Hears the process out; gives what came of it, and the files that it says to have written.
    fn run(mut self) -> (Result<WorkResult, ExecuteError>, Vec<String>) {
        let (leash, bell) = (Arc::clone(&self.leash), Arc::clone(&self.held.process().bell));
        let limit = self.cancel_grace() + BEYOND_THE_GRACE;
        // It is to stop also if this thread is kept by something else.
        let ends_with_the_call = self.call.cancel_token().on_cancel(move || {
            leash.shorten(limit);
            bell.ring();
        });
        let ended = loop {
            self.step();
            if let Some(ended) = self.ended(Instant::now()) {
                break ended;
            }
        };
        drop(ends_with_the_call);
        self.settle(ended)
    }

    fn cancel_grace(&self) -> Duration {
        self.held.crew.keep.cancel_grace.min(self.call.grace() / 3)
    }

    /// Waits until something happens, and sees to it.
    fn step(&mut self) {
        let until = self.next_time();
        for source in happens(self.held.process(), until) {
            self.attend(source);
        }
        if self.cancelled_at.is_none() && self.call.is_cancelled() {
            self.cancelled_at = Some(Instant::now());
            let words = self.held.crew.dialect.cancel(&self.request_id);
            self.held.process_mut().say(&words);
        }
    }

    fn attend(&mut self, source: Source) {
        let Drive { held, call, query, query_state, request_id, over, can_go_on, broken, has_spoken, .. } = self;
        let (crew, Some(process)) = (Arc::clone(&held.crew), held.process.as_mut()) else { return };
        let (mut controls, mut words) = (Vec::new(), Vec::new());
        process.attend(source, &mut |line: Line<'_>| {
            *has_spoken = true;
            let heard = match over {
                Some((Afterwards::GoesOn | Afterwards::Replaced(_), _)) => Heard::Control(crew.dialect.control(line)),
                Some((Afterwards::HeardOut, _)) | None => query.hear(line, call),
            };
            match heard {
                Heard::More => {}
                Heard::Control(control) => controls.push(control),
                Heard::Say(more) => words.extend(more),
                Heard::Over(afterwards) => *over = Some((afterwards, Instant::now())),
                Heard::Broken(reason) => *broken = Some(reason),
            }
        });
        if !words.is_empty() {
            process.say(&words);
        }
        if query.state() != *query_state
            && let Some(state) = query.state()
        {
            *query_state = Some(state);
            crew.tell(&ProcessEvent::Query { number: process.number, request_id, state });
        }
        *can_go_on |= over.is_some() && controls.contains(&Control::Ready);
        controls.into_iter().for_each(|control| take_note(&crew, process, control));
        if matches!(over, Some((Afterwards::HeardOut, _))) {
            process.fall_silent();
        }
    }

    /// When it is to be looked at although nothing happens.
    fn next_time(&self) -> Option<Instant> {
        let (process, keep, limits) = (self.held.process(), &self.held.crew.keep, self.held.crew.dialect.limits());
        let health =
            process.health_asked_at.map_or(process.heard_at + keep.health_interval, |at| at + keep.health_timeout);
        let times = [
            Some(health),
            self.cancelled_at.map(|at| at + self.cancel_grace()),
            limits.silence.and_then(|limit| process.heard_at.checked_add(limit)),
            limits.start.filter(|_| !self.has_spoken).and_then(|limit| self.asked_at.checked_add(limit)),
            self.over.as_ref().map(|(_, at)| *at + limits.after_answer),
            process.is_lost().then(|| process.heard_at.max(self.asked_at) + UNTIL_KNOWN),
        ];
        times.into_iter().flatten().min()
    }

    /// Whether it has come to an end.
    fn ended(&mut self, now: Instant) -> Option<Ended> {
        let (grace, limits) = (self.cancel_grace(), self.held.crew.dialect.limits());
        let is_out_of_patience = self.cancelled_at.is_some_and(|at| now >= at + grace);
        if let Some(reason) = self.broken.take() {
            return Some(Ended::Broken(reason));
        }
        match &self.over {
            Some((Afterwards::GoesOn, _)) if self.cancelled_at.is_some() && !self.can_go_on && !is_out_of_patience => {}
            Some((Afterwards::HeardOut, at)) if !self.held.process().has_ended() && now < *at + limits.after_answer => {
            }
            Some((afterwards, _)) => return Some(Ended::Over(afterwards.clone())),
            None if is_out_of_patience => {
                return self.call.cancel_reason().map(|reason| Ended::Limit(Reason::Cancelled(reason)));
            }
            None => {}
        }
        let crew = Arc::clone(&self.held.crew);
        let process = self.held.process_mut();
        if process.is_lost() {
            let lost_at = *process.lost_at.get_or_insert(now);
            let is_known = process.has_ended() || now >= lost_at + UNTIL_KNOWN;
            return is_known.then_some(Ended::Lost);
        }
        if process.faults > FAULT_LIMIT {
            return process.fault.clone().map(Ended::Broken);
        }
        if let Some(limit) = limits.start.filter(|&limit| !self.has_spoken && now >= self.asked_at + limit) {
            return Some(Ended::Limit(Reason::NeverSpoke(limit)));
        }
        if let Some(limit) = limits.silence.filter(|&limit| now >= process.heard_at + limit) {
            return Some(Ended::Limit(Reason::Silent(limit)));
        }
        match process.health_asked_at {
            Some(asked_at) if now >= asked_at + crew.keep.health_timeout => {
                let limit = crew.keep.health_timeout;
                return Some(Ended::Broken(format!("it did not say that it is well within {limit:?}")));
            }
            None if now >= process.heard_at + crew.keep.health_interval => ask_for_health(&crew, process, now),
            Some(_) | None => {}
        }
        None
    }

    /// Says what came of it, and lets the process go on or go.
    fn settle(mut self, ended: Ended) -> (Result<WorkResult, ExecuteError>, Vec<String>) {
        let exit = match &ended {
            Ended::Over(Afterwards::GoesOn | Afterwards::Replaced(_)) => None,
            Ended::Over(Afterwards::HeardOut) => Some(self.see_it_end(How::Ended(Reason::Lingered))),
            Ended::Lost | Ended::Broken(_) => Some(self.see_it_end(How::Signalled(libc::SIGKILL))),
            Ended::Limit(reason) => Some(self.see_it_end(How::Ended(*reason))),
        };
        let end = match (&ended, &exit) {
            (Ended::Broken(reason), _) => End::Broken(reason),
            (_, Some(exit)) => End::Exit(exit),
            (_, None) => End::Over,
        };
        self.tell_last_state();
        let may_go_on = self.cancelled_at.is_none() || self.can_go_on;
        let Drive { mut held, query, call, leash, .. } = self;
        let written = query.written_files();
        let concluded = query.conclude(end, &mut held.process_mut().memory, call);
        let change = if concluded.is_ok() { ProcessChange::Complete } else { ProcessChange::Error };
        let fate = match ended {
            Ended::Over(Afterwards::GoesOn) if !may_go_on => Fate::ShutDown(Why::Cancelled),
            Ended::Over(Afterwards::GoesOn) => held.goes_on(change, &leash),
            Ended::Over(Afterwards::Replaced(reason)) => held.is_replaced(change, reason),
            Ended::Over(Afterwards::HeardOut) => held.was_heard_out(change),
            Ended::Limit(Reason::Cancelled(_)) => held.was_killed(),
            Ended::Lost => held.crashed(&held.process().obituary()),
            Ended::Limit(_) => held.crashed("it said nothing for too long"),
            Ended::Broken(reason) => held.crashed(&reason),
        };
        held.done(fate);
        (concluded, written)
    }

    /// A query that has not come to an end by itself was cancelled, has failed with its process, or was never taken.
    fn tell_last_state(&self) {
        let Some(state) = self.query.state().filter(|state| !state.is_terminal()) else { return };
        let change = match (state, self.cancelled_at) {
            (QueryState::Pending, _) => QueryChange::Reject,
            (_, Some(_)) => QueryChange::Cancel,
            (_, None) => QueryChange::Error,
        };
        if let Some(state) = state.after(change) {
            let (number, request_id) = (self.held.number, self.request_id.as_str());
            self.held.crew.tell(&ProcessEvent::Query { number, request_id, state });
        }
    }

    /// Kills it, and hears what it said last. What cannot be killed keeps nobody waiting.
    fn see_it_end(&mut self, otherwise: How) -> Exit {
        let until = Instant::now() + UNTIL_GONE.min(self.call.grace() / 3);
        self.held.process().kill();
        while !self.held.process().is_gone() && Instant::now() < until {
            for source in happens(self.held.process(), Some(until)) {
                self.attend(source);
            }
        }
        self.held.process().exit(otherwise)
    }
}

/// What becomes of a process after a query.
impl<D: Dialect> Held<D> {
    /// It takes the next query, unless it has said what it must not.
    fn goes_on(&mut self, change: ProcessChange, leash: &Leash) -> Fate {
        let (crew, now) = (Arc::clone(&self.crew), Instant::now());
        let keep = &crew.keep;
        let process = self.process_mut();
        process.change(change);
        process.last_activity = now;
        leash.loosen(keep.inactivity_limit + keep.shutdown_grace + BEYOND_THE_CALL);
        crew.tell(&ProcessEvent::Idle { number: process.number });
        if let Some(fault) = &process.fault {
            log::warn!("process {} is replaced: {fault}", process.number);
            return Fate::ShutDown(Why::Unfit);
        }
        if now >= process.created_at + keep.max_age { Fate::ShutDown(Why::Old) } else { Fate::Idle }
    }

    fn is_replaced(&mut self, change: ProcessChange, reason: String) -> Fate {
        let process = self.process_mut();
        process.change(change);
        log::debug!("process {} is replaced: {reason}", process.number);
        Fate::ShutDown(Why::Unfit)
    }

    /// It has ended, as it was to.
    fn was_heard_out(&mut self, change: ProcessChange) -> Fate {
        self.process_mut().change(change);
        self.went(ProcessChange::ShutDown, ProcessChange::Ended, Why::Unfit)
    }

    /// It did not stop its query in time.
    fn was_killed(&mut self) -> Fate {
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

    fn crashed(&mut self, reason: &str) -> Fate {
        let crew = Arc::clone(&self.crew);
        crash(&crew, self.process_mut(), reason);
        Fate::Dead
    }
}
