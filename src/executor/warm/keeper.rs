//! The keeper: one thread that looks after the processes that nobody has. It hears when one of those that wait has crashed, asks them whether they
//! are well, tells those to end that are too old or were not used for too long, and sees off all that go.

use std::time::{Duration, Instant};

use rustix::event::PollFlags;

use super::bell::{Descriptor, wait};
use super::crew::{Crew, Fate, Leave, Leaving, UNTIL_GONE};
use super::dialect::{Control, Dialect};
use super::process::{Source, UNTIL_KNOWN, WarmProcess};
use super::{Keep, ProcessEvent, Why};
use crate::executor::ipc::{ProcessChange, ProcessState};
use crate::executor::process::Line;

/// How long a process has to be gone that has said that it ends.
const AFTER_ACK: Duration = Duration::from_secs(1);

/// How much a process may say while nobody asks it anything.
const UNASKED_LIMIT_BYTES: usize = 1 << 20;

/// The life of the keeper's thread.
pub(super) fn keep<D: Dialect>(crew: &Crew<D>) {
    let mut leaving: Vec<Gone<D>> = Vec::new();
    loop {
        leaving.extend(crew.take_leaving().into_iter().map(|process| Gone::begin(crew, process)));
        if let Some(ends_by) = crew.ends_by() {
            leaving.iter_mut().for_each(|gone| gone.end_by(ends_by));
        }
        leaving.retain_mut(|gone| !gone.is_over(crew));
        if leaving.is_empty() && crew.is_over() {
            return;
        }
        for (whose, source) in watch(crew, &leaving) {
            match whose {
                Whose::Idle(number) => look_after(crew, number, Some(source)),
                Whose::Leaving(place) => leaving[place].attend(crew, source),
            }
        }
        for number in those_due(crew) {
            look_after(crew, number, None);
        }
    }
}

/// Whom something happened to.
#[derive(Clone, Copy)]
enum Whose {
    Idle(u64),
    Leaving(usize),
}

/// Waits until something happens to anybody, or the time of one of them has come.
fn watch<D: Dialect>(crew: &Crew<D>, leaving: &[Gone<D>]) -> Vec<(Whose, Source)> {
    let mut whose = Vec::new();
    let mut watched: Vec<(Descriptor, PollFlags)> = vec![(crew.bell.sound(), PollFlags::IN)];
    let mut until: Option<Instant> = None;
    let mut earlier = |at: Instant| until = Some(until.map_or(at, |until| until.min(at)));
    let mut add = |one: Whose, process: &WarmProcess<D::Memory>| {
        for (source, descriptor, flags) in process.sources() {
            whose.push((one, source));
            watched.push((descriptor, flags));
        }
    };
    crew.for_each_idle(|process| {
        add(Whose::Idle(process.number), process);
        earlier(next_due(&crew.keep, process));
    });
    for (place, gone) in leaving.iter().enumerate() {
        add(Whose::Leaving(place), &gone.process);
        earlier(gone.until);
    }
    let happened = wait(&watched, until);
    if happened.first() == Some(&true) {
        crew.bell.hush();
    }
    whose
        .into_iter()
        .zip(happened.into_iter().skip(1))
        .filter(|(_, happened)| *happened)
        .map(|(what, _)| what)
        .collect()
}

/// When an idle process is to be looked at although nothing happens.
fn next_due<Memory>(keep: &Keep, process: &WarmProcess<Memory>) -> Instant {
    match process.lost_at {
        Some(lost_at) => lost_at + UNTIL_KNOWN,
        // Whoever had it last has not looked.
        None if process.is_lost() => process.created_at,
        None => {
            let unused = process.last_activity + keep.inactivity_limit;
            process.health_due(keep).min(unused).min(process.created_at + keep.max_age)
        }
    }
}

fn those_due<D: Dialect>(crew: &Crew<D>) -> Vec<u64> {
    let (now, mut due) = (Instant::now(), Vec::new());
    crew.for_each_idle(|process| {
        if now >= next_due(&crew.keep, process) {
            due.push(process.number);
        }
    });
    due
}

/// Looks after an idle process: hears what it says, and sees whether it is well and still wanted.
fn look_after<D: Dialect>(crew: &Crew<D>, number: u64, source: Option<Source>) {
    let Some(mut process) = crew.borrow_idle(number) else { return };
    if let Some(source) = source {
        let mut controls = Vec::new();
        process.attend(source, &mut |line: Line<'_>| controls.push(crew.dialect.control(line)));
        controls.into_iter().for_each(|control| take_note(crew, &mut process, control));
    }
    let fate = judge(crew, &mut process, Instant::now());
    crew.give_back(process, fate);
}

/// Takes note of what a process says that is about no query.
pub(super) fn take_note<D: Dialect>(crew: &Crew<D>, process: &mut WarmProcess<D::Memory>, control: Control) {
    match control {
        Control::Nothing | Control::Ready => {}
        Control::Health(health) => {
            if process.health_asked_at.take().is_some() {
                process.unasked_bytes = 0;
            }
            process.health = Some(health);
            crew.show(process.number, |face| face.health = Some(health));
            crew.tell(&ProcessEvent::Healthy { number: process.number, health });
        }
        Control::ShutdownAck => process.misbehaves("it says that it ends, though nobody told it to".to_owned()),
        Control::Fault(fault) => process.misbehaves(fault),
    }
}

/// What becomes of an idle process.
fn judge<D: Dialect>(crew: &Crew<D>, process: &mut WarmProcess<D::Memory>, now: Instant) -> Fate {
    let keep = &crew.keep;
    if process.is_lost() {
        if !process.is_over(now) {
            // It is about to be told how it ended.
            return Fate::Idle;
        }
        if process.ended_well() {
            leave(crew, process);
        } else {
            crash(crew, process, &process.obituary(""));
        }
        return Fate::Dead;
    }
    if process.unasked_bytes > UNASKED_LIMIT_BYTES {
        process.misbehaves("it says too much though nobody has asked".to_owned());
    }
    if let Some(fault) = process.fault.take() {
        crash(crew, process, &fault);
        return Fate::Dead;
    }
    match process.health_asked_at {
        Some(asked_at) if now >= asked_at + keep.health_timeout => {
            crash(crew, process, &format!("it did not say that it is well within {:?}", keep.health_timeout));
            return Fate::Dead;
        }
        Some(_) => {}
        None if now >= process.health_due(keep) => ask_for_health(crew, process, now),
        None => {}
    }
    if now >= process.created_at + keep.max_age {
        Fate::ShutDown(Why::Old)
    } else if now >= process.last_activity + keep.inactivity_limit {
        Fate::ShutDown(Why::Inactive)
    } else {
        Fate::Idle
    }
}

/// Asks a process whether it is well. One that cannot be asked is.
pub(super) fn ask_for_health<D: Dialect>(crew: &Crew<D>, process: &mut WarmProcess<D::Memory>, now: Instant) {
    process.checked_at = now;
    if let Some(question) = crew.dialect.health_check() {
        process.health_asked_at = Some(now);
        process.say(&question);
    }
}

/// A process is dead, and it was not told to.
pub(super) fn crash<D: Dialect>(crew: &Crew<D>, process: &mut WarmProcess<D::Memory>, reason: &str) {
    crash_by(crew, process, ProcessChange::Crash, reason);
}

/// The same, by this change.
pub(super) fn crash_by<D: Dialect>(
    crew: &Crew<D>,
    process: &mut WarmProcess<D::Memory>,
    change: ProcessChange,
    reason: &str,
) {
    process.change(change);
    // Nobody speaks with it any more, whatever is left of it.
    process.hang_up();
    crew.show(process.number, |face| face.see(process));
    crew.tell(&ProcessEvent::Crashed { number: process.number, reason });
}

/// A process has ended by itself, in order.
pub(super) fn leave<D: Dialect>(crew: &Crew<D>, process: &mut WarmProcess<D::Memory>) {
    process.change(ProcessChange::Ended);
    crew.tell(&ProcessEvent::Ended { number: process.number, was_killed: false });
}

/// A process that goes.
struct Gone<D: Dialect> {
    process: Box<WarmProcess<D::Memory>>,
    /// Until when it may stay as it is.
    until: Instant,
    stage: Stage,
}

/// How far its end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// It was told to end, and has time for that.
    Told,
    /// It has said that it ends, and has a moment for that.
    Acknowledged,
    /// It is killed.
    Killed,
}

impl<D: Dialect> Gone<D> {
    fn begin(crew: &Crew<D>, Leaving { mut process, how }: Leaving<D::Memory>) -> Gone<D> {
        let now = Instant::now();
        let (grace, why) = match how {
            Leave::ShutDown { why, grace } => (grace, why),
            Leave::Kill => {
                if process.state == ProcessState::Ready {
                    process.change(ProcessChange::ShutDown);
                    crew.tell(&ProcessEvent::ShuttingDown { number: process.number, why: Why::Stopped });
                }
                return Gone { process, until: now, stage: Stage::Told }.killed(crew);
            }
        };
        let change = match process.state {
            ProcessState::Busy => ProcessChange::CancelAndShutDown,
            _ => ProcessChange::ShutDown,
        };
        process.change(change);
        crew.show(process.number, |face| face.state = ProcessState::ShuttingDown);
        crew.tell(&ProcessEvent::ShuttingDown { number: process.number, why });
        process.may_live(grace + UNTIL_GONE);
        match crew.dialect.shutdown() {
            Some(words) => process.say(&words),
            None => process.fall_silent(),
        }
        let mut gone = Gone { process, until: now + grace, stage: Stage::Told };
        gone.hurry();
        gone
    }

    fn killed(mut self, crew: &Crew<D>) -> Gone<D> {
        self.kill(crew);
        self
    }

    fn attend(&mut self, crew: &Crew<D>, source: Source) {
        let mut has_acknowledged = false;
        self.process.attend(source, &mut |line: Line<'_>| {
            has_acknowledged |= crew.dialect.control(line) == Control::ShutdownAck;
        });
        if self.stage == Stage::Told {
            if has_acknowledged {
                self.die(crew, ProcessChange::Acknowledged, false);
                (self.stage, self.until) = (Stage::Acknowledged, Instant::now() + AFTER_ACK);
            } else if self.process.has_ended() {
                self.die(crew, ProcessChange::Ended, false);
                (self.stage, self.until) = (Stage::Killed, Instant::now() + UNTIL_GONE);
            }
        }
        self.hurry();
    }

    /// Who has hung up, or could not be told, hears nothing any more: it has a moment to be gone.
    fn hurry(&mut self) {
        if self.stage == Stage::Told && (self.process.has_hung_up() || self.process.has_missed) {
            self.until = self.until.min(Instant::now() + AFTER_ACK);
        }
    }

    /// It has no longer than that to go by itself, whatever it was told.
    fn end_by(&mut self, at: Instant) {
        if self.stage != Stage::Killed {
            self.until = self.until.min(at);
        }
    }

    fn die(&mut self, crew: &Crew<D>, change: ProcessChange, was_killed: bool) {
        if self.process.state == ProcessState::ShuttingDown {
            self.process.change(change);
            crew.tell(&ProcessEvent::Ended { number: self.process.number, was_killed });
        }
        crew.show(self.process.number, |face| face.state = ProcessState::Dead);
    }

    fn kill(&mut self, crew: &Crew<D>) {
        self.process.kill();
        self.die(crew, ProcessChange::Timeout, true);
        (self.stage, self.until) = (Stage::Killed, Instant::now() + UNTIL_GONE);
    }

    /// Whether nothing is left to be done; then its place is free.
    fn is_over(&mut self, crew: &Crew<D>) -> bool {
        if !self.process.is_gone() && Instant::now() >= self.until {
            if self.stage != Stage::Killed {
                self.kill(crew);
                return false;
            }
            log::warn!("process {} is still not gone after it was killed", self.process.number);
        } else if !self.process.is_gone() {
            return false;
        }
        crew.free(self.process.number);
        true
    }
}
