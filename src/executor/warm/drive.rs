//! One call, from the wait for a process to what becomes of it afterwards. Read from the top, it is the life of a query.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::crew::{Crew, Fate, UNTIL_GONE};
use super::dialect::{Afterwards, Control, Dialect, End, Heard, Query, Reach};
use super::held::Held;
use super::keeper::{ask_for_health, take_note};
use super::leash::Leash;
use super::process::{Source, UNTIL_KNOWN, happens};
use super::start::{acquire, start};
use super::{ProcessEvent, Why};
use crate::executor::ipc::{ProcessChange, QueryChange, QueryState};
use crate::executor::process::{self, Exit, How, Line, Reason};
use crate::executor::{Call, ExecuteError, WorkResult};

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
    loop {
        let mut held = acquire(crew, call)?;
        if held.process.is_none() {
            // Made only now: the session of a key may have begun while this waited for its process.
            start(&mut held, crew.dialect.child(call), call)?;
        }
        // One that was there may just have ended: then another is asked, and in the end a new one.
        if let Some((concluded, written)) = Drive::begin(held, call)?.run() {
            return process::with_files(concluded, command.directory.as_deref(), &written, call);
        }
    }
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
    /// It could not be told the query.
    is_unheard: bool,
    /// How often something had been said to it then.
    said_ever: u64,
    /// When something was said last that is about the query.
    spoke_at: Option<Instant>,
    /// When it was told to stop.
    cancelled_at: Option<Instant>,
    /// The query is over, and this becomes of the process.
    over: Option<(Afterwards, Instant)>,
    /// It has said since that it can go on.
    can_go_on: bool,
    /// The query will never be over.
    broken: Option<Ended>,
}

/// How a query came to its end.
#[derive(Clone)]
enum Ended {
    /// It was answered, and this becomes of the process.
    Over(Afterwards),
    /// The process has ended by itself, or has hung up.
    Lost,
    /// The process is to be ended for this reason.
    Limit(Reason),
    /// The process makes no sense any more.
    Broken(String),
    /// The process makes no sense any more, and has not begun with the query.
    NotTaken(String),
}

impl<'a, D: Dialect> Drive<'a, D> {
    /// Asks a process.
    fn begin(mut held: Held<D>, call: &'a Call<'a>) -> Result<Drive<'a, D>, ExecuteError> {
        let (now, grace) = (Instant::now(), held.cancel_grace(call));
        let crew = Arc::clone(&held.crew);
        let process = held.process_mut();
        let request_id = format!("{}.{}", process.number, process.queries_processed + 1);
        let (words, query) = match crew.dialect.ask(&mut process.memory, &request_id, grace, call) {
            Ok(asked) => asked,
            Err(error) => {
                process.may_live(crew.keep.idle_limit());
                held.done(Fate::Idle);
                return Err(error);
            }
        };
        process.queries_processed += 1;
        (process.last_activity, process.health_asked_at) = (now, None);
        process.change(ProcessChange::Query);
        crew.show(process.number, |face| {
            face.see(process);
            face.active_request_id = Some(request_id.clone());
        });
        crew.tell(&ProcessEvent::Busy { number: process.number, request_id: &request_id });
        call.child_started(process.process.clone());
        // The process has begun when the reaper hears of it: what waits for the answer is the way there.
        process.say(&words);
        let (is_unheard, said_ever) = (process.has_missed || process.has_hung_up(), process.said_ever);
        let leash = Leash::new(process.line(), call.time_left().saturating_add(call.grace() + BEYOND_THE_CALL));
        Ok(Drive {
            held,
            call,
            query_state: query.state(),
            query,
            request_id,
            leash: Arc::new(leash),
            asked_at: now,
            is_unheard,
            said_ever,
            spoke_at: None,
            cancelled_at: None,
            over: None,
            can_go_on: false,
            broken: None,
        })
    }

    /// Hears the process out; gives what came of it, and the files that it says to have written. `None` if the process, which had answered
    /// others before, never got the query.
    fn run(mut self) -> Option<(Result<WorkResult, ExecuteError>, Vec<String>)> {
        let (leash, bell, limit) =
            (Arc::clone(&self.leash), self.held.process().bell(), self.held.cancel_grace(self.call) + BEYOND_THE_GRACE);
        // It is to stop also if this thread is kept by something else.
        let ends_with_the_call = self.call.cancel_token().on_cancel(move || {
            leash.shorten(limit);
            bell.ring();
        });
        // Looked at first: it may be lost already.
        let ended = loop {
            if let Some(ended) = self.ended(Instant::now()) {
                break ended;
            }
            self.step();
        };
        drop(ends_with_the_call);
        self.settle(ended)
    }

    /// Whether the process takes the next query once this one is over.
    fn may_go_on(&self) -> bool {
        self.cancelled_at.is_none() || self.can_go_on || self.held.crew.dialect.goes_on_after_cancel()
    }

    /// Waits until something happens, and sees to it.
    fn step(&mut self) {
        let until = self.next_time();
        for source in happens(self.held.process(), until) {
            self.attend(source);
        }
        // What was answered has nothing left to stop.
        let is_answered = matches!(self.over, Some((Afterwards::GoesOn | Afterwards::Replaced(_), _)));
        if self.cancelled_at.is_none() && !is_answered && self.call.is_cancelled() {
            self.cancelled_at = Some(Instant::now());
            let words = self.held.crew.dialect.cancel(&self.request_id);
            self.held.process_mut().say(&words);
            self.query.cancel();
            self.tell_state();
        }
    }

    fn attend(&mut self, source: Source) {
        let Drive { held, call, query, query_state, request_id, over, can_go_on, broken, spoke_at, .. } = self;
        let (crew, Some(process)) = (Arc::clone(&held.crew), held.process.as_mut()) else { return };
        let (number, mut controls, mut words) = (process.number, Vec::new(), Vec::new());
        process.attend(source, &mut |line: Line<'_>| {
            if broken.is_some() {
                // What it says from then on makes no more sense, however it is cut into pieces.
                return;
            }
            let heard = match over {
                Some((Afterwards::GoesOn | Afterwards::Replaced(_), _)) => Heard::Control(crew.dialect.control(line)),
                Some((Afterwards::HeardOut, _)) | None => query.hear(line, call),
            };
            if !matches!(heard, Heard::Control(_)) {
                *spoke_at = Some(Instant::now());
            }
            match heard {
                Heard::More => {}
                Heard::Control(control) => {
                    *can_go_on |= over.is_some() && control == Control::Ready;
                    controls.push(control);
                }
                Heard::Say(more) => words.extend(more),
                Heard::Over(afterwards) => *over = Some((afterwards, Instant::now())),
                Heard::Broken(reason) => *broken = Some(Ended::Broken(reason)),
                Heard::NotTaken(reason) => *broken = Some(Ended::NotTaken(reason)),
            }
            tell_change(&crew, number, request_id, query_state, query.state());
        });
        if spoke_at.is_some_and(|at| process.health_asked_at.is_some_and(|asked_at| at >= asked_at)) {
            // Who speaks lives.
            process.health_asked_at = None;
        }
        if !words.is_empty() {
            process.say(&words);
        }
        controls.into_iter().for_each(|control| take_note(&crew, process, control));
        if matches!(over, Some((Afterwards::HeardOut, _))) {
            process.fall_silent();
        }
    }

    fn tell_state(&mut self) {
        let state = self.query.state();
        tell_change(&self.held.crew, self.held.number, &self.request_id, &mut self.query_state, state);
    }

    /// Whether it still may say something after what may have been all.
    fn is_heard_out(&self, since: Instant, now: Instant) -> bool {
        let limit = self.held.crew.dialect.limits().after_answer;
        !self.held.process().has_ended() && now.saturating_duration_since(since) < limit
    }

    fn silence_limit(&self) -> Option<Duration> {
        let limits = [self.held.crew.dialect.limits().silence, self.query.patience()];
        limits.into_iter().flatten().min()
    }

    /// When it is to be looked at although nothing happens.
    fn next_time(&self) -> Option<Instant> {
        let (process, keep, limits) = (self.held.process(), &self.held.crew.keep, self.held.crew.dialect.limits());
        let heard_out_at = match self.over {
            Some((Afterwards::HeardOut, at)) => Some(at),
            _ => None,
        };
        let patience = [
            self.cancelled_at.map(|at| at + self.held.cancel_grace(self.call)),
            heard_out_at.and_then(|at| at.checked_add(limits.after_answer)),
        ];
        if let Some(lost_at) = process.lost_at {
            return patience.into_iter().flatten().chain([lost_at + UNTIL_KNOWN]).min();
        }
        let times = [
            Some(process.health_due(keep)),
            self.silence_limit().and_then(|limit| self.spoke_at.unwrap_or(self.asked_at).checked_add(limit)),
            limits.start.filter(|_| self.spoke_at.is_none()).and_then(|limit| self.asked_at.checked_add(limit)),
        ];
        times.into_iter().chain(patience).flatten().min()
    }

    /// Whether it has come to an end.
    fn ended(&mut self, now: Instant) -> Option<Ended> {
        let (grace, silence, limits) =
            (self.held.cancel_grace(self.call), self.silence_limit(), self.held.crew.dialect.limits());
        let is_out_of_patience = self.cancelled_at.is_some_and(|at| now >= at + grace);
        if self.broken.is_some() {
            return self.broken.clone();
        }
        match &self.over {
            Some((Afterwards::GoesOn, _)) if !self.may_go_on() && !is_out_of_patience => {}
            Some((Afterwards::HeardOut, at)) if !is_out_of_patience && self.is_heard_out(*at, now) => {}
            Some((afterwards, _)) => return Some(Ended::Over(afterwards.clone())),
            None if is_out_of_patience => {
                return self.call.cancel_reason().map(|reason| Ended::Limit(Reason::Cancelled(reason)));
            }
            None => {}
        }
        let (asked_at, spoke_at) = (self.asked_at, self.spoke_at);
        let since = |at: Instant| now.saturating_duration_since(at);
        let crew = Arc::clone(&self.held.crew);
        let process = self.held.process_mut();
        if process.is_lost() {
            return match process.is_over(now) {
                true if process.has_ended() => Some(Ended::Lost),
                true => Some(Ended::Broken("it hung up".to_owned())),
                false => None,
            };
        }
        if process.faults > FAULT_LIMIT {
            return process.fault.clone().map(Ended::Broken);
        }
        if let Some(limit) = limits.start.filter(|&limit| spoke_at.is_none() && since(asked_at) >= limit) {
            return Some(Ended::Limit(Reason::NeverSpoke(limit)));
        }
        if let Some(limit) = silence.filter(|&limit| since(spoke_at.unwrap_or(asked_at)) >= limit) {
            return Some(Ended::Limit(Reason::Silent(limit)));
        }
        match process.health_asked_at {
            Some(asked_at) if now >= asked_at + crew.keep.health_timeout => {
                let limit = crew.keep.health_timeout;
                return Some(Ended::Broken(format!("it did not say that it is well within {limit:?}")));
            }
            None if now >= process.health_due(&crew.keep) => ask_for_health(&crew, process, now),
            Some(_) | None => {}
        }
        None
    }

    /// Says what came of it, and lets the process go on or go.
    fn settle(mut self, ended: Ended) -> Option<(Result<WorkResult, ExecuteError>, Vec<String>)> {
        let exit = match &ended {
            Ended::Over(Afterwards::GoesOn | Afterwards::Replaced(_)) => None,
            Ended::Over(Afterwards::HeardOut) => Some(self.see_it_end(How::Ended(Reason::Lingered))),
            Ended::Lost | Ended::Broken(_) | Ended::NotTaken(_) => Some(self.see_it_end(How::Signalled(libc::SIGKILL))),
            Ended::Limit(reason) => Some(self.see_it_end(How::Ended(*reason))),
        };
        let end = match (&ended, &exit) {
            (Ended::Broken(reason) | Ended::NotTaken(reason), _) => End::Broken(reason),
            (_, Some(exit)) => End::Exit(exit),
            (_, None) => End::Over,
        };
        self.tell_last_state();
        let (has_left, is_for_another) = (self.has_left(&ended), self.is_for_another(&ended));
        let (may_go_on, is_answered) = (self.may_go_on(), self.over.is_some());
        let Drive { mut held, query, call, leash, .. } = self;
        let written = query.written_files();
        let concluded = query.conclude(end, &mut held.process_mut().memory, call);
        held.crew.dialect.answered(&held.process().memory, call);
        let change = if concluded.is_ok() { ProcessChange::Complete } else { ProcessChange::Error };
        let fate = match ended {
            Ended::Over(Afterwards::GoesOn) if !may_go_on => Fate::ShutDown(Why::Cancelled),
            Ended::Over(Afterwards::GoesOn) => held.goes_on(change, &leash),
            Ended::Over(Afterwards::Replaced(reason)) => held.is_replaced(change, reason),
            Ended::Over(Afterwards::HeardOut) => held.was_heard_out(change),
            Ended::Limit(Reason::Cancelled(_)) => held.was_killed(),
            Ended::Lost if has_left => held.has_left(),
            Ended::Lost if is_answered && held.process().ended_well() => held.has_left_after(change),
            Ended::Lost => held.crashed(&held.process().obituary("")),
            Ended::Limit(_) => held.crashed("it said nothing for too long"),
            Ended::Broken(reason) | Ended::NotTaken(reason) => held.crashed(&reason),
        };
        held.done(fate);
        (!is_for_another).then_some((concluded, written))
    }

    /// Whether it ended by itself and in order before it had read the query.
    fn has_left(&self, ended: &Ended) -> bool {
        let process = self.held.process();
        let is_unread = match D::REACH {
            Reach::Socket => process.has_left_unread && process.said_ever == self.said_ever,
            // Of a pipe nobody knows, but who begins says so.
            Reach::Pipes => true,
        };
        let has_not_begun = self.is_unheard || (is_unread && self.spoke_at.is_none());
        matches!(ended, Ended::Lost) && has_not_begun && process.ended_well()
    }

    /// Whether another process is to be asked, and this one costs no attempt: it never got the query.
    fn is_for_another(&self, ended: &Ended) -> bool {
        // One that is new has nothing from before to be blamed for, and the next one would be as new.
        let is_new = self.held.process().queries_processed == 1;
        let was_not_taken = matches!(ended, Ended::NotTaken(_)) || self.is_unheard || self.has_left(ended);
        was_not_taken && !is_new && self.cancelled_at.is_none()
    }

    /// A query that has not come to an end by itself has failed with its process, or was never taken.
    fn tell_last_state(&mut self) {
        let Some(state) = self.query.state().filter(|state| !state.is_terminal()) else { return };
        let change = if state == QueryState::Pending { QueryChange::Reject } else { QueryChange::Error };
        let (number, last) = (self.held.number, state.after(change));
        tell_change(&self.held.crew, number, &self.request_id, &mut self.query_state, last);
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

/// Tells of the state of a query, if it has changed.
fn tell_change<D: Dialect>(
    crew: &Crew<D>,
    number: u64,
    request_id: &str,
    told: &mut Option<QueryState>,
    state: Option<QueryState>,
) {
    if let Some(state) = state.filter(|&state| Some(state) != *told) {
        *told = Some(state);
        crew.tell(&ProcessEvent::Query { number, request_id, state });
    }
}
