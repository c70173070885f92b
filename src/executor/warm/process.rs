//! One process that is kept: its tree, the way to speak to it, and what is known of it.
//!
//! It belongs to one thread at a time: to that of an attempt while it starts and works, to the keeper while it waits and ends. Nothing here
//! waits but [`happens`], and nothing that is read or written blocks.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;

use super::Keep;
use super::bell::{Bell, Descriptor, wait};
use super::dialect::{Health, Reach};
use crate::executor::ipc::socket::Door;
use crate::executor::ipc::{ConnectionState, MESSAGE_LIMIT_BYTES, ProcessChange, ProcessState, SOCKET_VARIABLE};
use crate::executor::process::lines::{Lines, Tail};
use crate::executor::process::tree::{Line as TreeLine, Times, Tree, Word};
use crate::executor::process::{ChildCommand, Exit, How, Line, how_of};
use crate::process::Process;

/// How much is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// How much of the end of what it writes elsewhere is kept.
const TAIL_LIMIT_BYTES: usize = 64 * 1024;

/// How much is read at most of what a process left that has ended.
const LAST_WORDS_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// How long it takes at most until it is known how a process ended that has hung up.
pub(super) const UNTIL_KNOWN: Duration = Duration::from_secs(1);

/// Where something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// It connects.
    Door,
    /// It says something.
    Speech,
    /// It listens, or there is room for what it has not heard yet.
    Ear,
    /// It writes where nobody answers: its error output, and its output if it is spoken to otherwise.
    Log(usize),
    /// Whoever ends it says something.
    Report,
}

/// A process that is kept.
pub(super) struct WarmProcess<Memory> {
    pub(super) number: u64,
    pub(super) state: ProcessState,
    pub(super) memory: Memory,
    /// The process and who ends it, as others can find them. Looked up when it has just been started: later its number may be another's.
    pub(super) process: Process,
    pub(super) created_at: Instant,
    pub(super) last_activity: Instant,
    pub(super) queries_processed: u64,
    /// When it was asked last whether it is well, or would have been if it could be asked.
    pub(super) checked_at: Instant,
    /// Since when it owes word that it is well.
    pub(super) health_asked_at: Option<Instant>,
    pub(super) health: Option<Health>,
    /// What it said that it must not: it is not to be used again.
    pub(super) fault: Option<String>,
    /// How often it has.
    pub(super) faults: u32,
    /// How much it has said since it answered last.
    pub(super) unasked_bytes: usize,
    /// When it was seen to have hung up or ended.
    pub(super) lost_at: Option<Instant>,
    /// Why it could not be let in when it came.
    pub(super) not_let_in: Option<io::Error>,
    /// Wakes the thread of an attempt that has it.
    bell: Arc<Bell>,
    tree: Tree,
    door: Option<Door>,
    speech: Option<Arc<OwnedFd>>,
    ear: Option<Arc<OwnedFd>>,
    logs: [Option<Arc<OwnedFd>>; 2],
    lines: Lines,
    chunk: Box<[u8]>,
    unsaid: Vec<u8>,
    said: usize,
    /// How often something was said to it.
    pub(super) said_ever: u64,
    /// It does not listen any more.
    is_deaf: bool,
    /// It could not be told all that was to be said.
    pub(super) has_missed: bool,
    /// It hung up before it had read all that was said, which only sockets tell.
    pub(super) has_left_unread: bool,
    tail: Tail,
    /// How its leader ended.
    leader: Option<Word>,
    /// What is closed once it is gone, if that was not so yet when there was nothing more to be heard of it.
    burial: Option<Arc<UnixStream>>,
    is_gone: bool,
}

impl<Memory: Default> WarmProcess<Memory> {
    /// Starts a process, which connects to a door if there is one.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    pub(super) fn start(
        number: u64,
        mut command: ChildCommand,
        reach: Reach,
        door: Option<Door>,
        times: Times,
        boot_id: &str,
    ) -> io::Result<WarmProcess<Memory>> {
        if let Some(door) = &door {
            command.environment.set(SOCKET_VARIABLE, door.path());
        }
        let bell = Arc::new(Bell::new()?);
        let mut tree = Tree::spawn(&command, times)?;
        let stdin = tree.stdin.take().map(|stdin| quiet(stdin.into())).transpose()?;
        let stdout = tree.stdout.take().map(|stdout| quiet(stdout.into())).transpose()?;
        let stderr = tree.stderr.take().map(|stderr| quiet(stderr.into())).transpose()?;
        let (speech, ear, logs) = match reach {
            Reach::Socket => (None, None, [stdout, stderr]),
            Reach::Pipes => (stdout, stdin, [stderr, None]),
        };
        let now = Instant::now();
        Ok(WarmProcess {
            number,
            state: ProcessState::Starting,
            memory: Memory::default(),
            process: tree.process(boot_id).shared(),
            created_at: now,
            last_activity: now,
            queries_processed: 0,
            checked_at: now,
            health_asked_at: None,
            health: None,
            fault: None,
            faults: 0,
            unasked_bytes: 0,
            lost_at: None,
            not_let_in: None,
            bell,
            tree,
            door,
            speech,
            ear,
            logs,
            lines: Lines::new(MESSAGE_LIMIT_BYTES),
            chunk: vec![0; CHUNK_BYTES].into(),
            unsaid: Vec::new(),
            said: 0,
            said_ever: 0,
            is_deaf: false,
            has_missed: false,
            has_left_unread: false,
            tail: Tail::new(TAIL_LIMIT_BYTES),
            leader: None,
            burial: None,
            is_gone: false,
        })
    }
}

impl<Memory> WarmProcess<Memory> {
    /// Changes its state. What cannot happen now is a mistake of ours, and changes nothing.
    pub(super) fn change(&mut self, change: ProcessChange) {
        match self.state.after(change) {
            Some(state) => self.state = state,
            None => {
                debug_assert!(false, "{change} cannot happen to a process that is {}", self.state);
                log::error!("process {}: {change} cannot happen while it is {}", self.number, self.state);
            }
        }
    }

    /// When it is to be asked whether it is well, or should have said so.
    pub(super) fn health_due(&self, keep: &Keep) -> Instant {
        match self.health_asked_at {
            Some(asked_at) => asked_at + keep.health_timeout,
            None => self.checked_at + keep.health_interval,
        }
    }

    /// It has said what it must not.
    pub(super) fn misbehaves(&mut self, fault: String) {
        self.faults = self.faults.saturating_add(1);
        self.fault.get_or_insert(fault);
    }

    /// The line to whoever ends it.
    pub(super) fn line(&self) -> TreeLine {
        self.tree.line.clone()
    }

    /// Wakes whoever waits for it.
    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    pub(super) fn connection(&self) -> ConnectionState {
        match (&self.door, &self.speech) {
            (_, Some(_)) => ConnectionState::Connected,
            (Some(_), None) => ConnectionState::Connecting,
            (None, None) => ConnectionState::Disconnected,
        }
    }

    /// Whether it has ended, or cannot be spoken with any more.
    pub(super) fn is_lost(&self) -> bool {
        // One that has heard its query may do without an ear until it has answered.
        let is_deaf = self.is_deaf && self.state == ProcessState::Ready;
        self.has_ended() || self.has_hung_up() || self.has_missed || is_deaf
    }

    /// Whether it is lost and all is known of its end that can be, which takes a moment.
    pub(super) fn is_over(&mut self, now: Instant) -> bool {
        if !self.is_lost() {
            return false;
        }
        let lost_at = *self.lost_at.get_or_insert(now);
        self.has_ended() || now >= lost_at + UNTIL_KNOWN
    }

    /// Whether it cannot be heard any more.
    pub(super) fn has_hung_up(&self) -> bool {
        self.connection() == ConnectionState::Disconnected
    }

    /// Whether its end is known: how its leader ended, or that all of it is gone.
    pub(super) fn has_ended(&self) -> bool {
        self.leader.is_some() || self.is_gone
    }

    pub(super) fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Where something may happen, with what is to be waited for.
    pub(super) fn sources(&self) -> Vec<(Source, Descriptor, PollFlags)> {
        let mut sources: Vec<(Source, Descriptor, PollFlags)> = Vec::with_capacity(5);
        if let Some(door) = &self.door {
            sources.push((Source::Door, door.listener(), PollFlags::IN));
        }
        if let Some(speech) = &self.speech {
            sources.push((Source::Speech, Arc::clone(speech) as Descriptor, PollFlags::IN));
        }
        if let Some(ear) = self.ear.as_ref().filter(|_| !self.is_deaf) {
            // That a pipe is not listened to any more is told in any case; of a socket the other direction tells.
            let flags = if self.owes_words() { PollFlags::OUT } else { PollFlags::empty() };
            let is_pipe = self.speech.as_ref().is_none_or(|speech| !Arc::ptr_eq(speech, ear));
            if is_pipe || self.owes_words() {
                sources.push((Source::Ear, Arc::clone(ear) as Descriptor, flags));
            }
        }
        for (number, log) in self.logs.iter().enumerate() {
            if let Some(log) = log {
                sources.push((Source::Log(number), Arc::clone(log) as Descriptor, PollFlags::IN));
            }
        }
        if !self.is_gone {
            let report = self.burial.as_ref().map_or_else(|| self.tree.line.descriptor(), Arc::clone);
            sources.push((Source::Report, report, PollFlags::IN));
        }
        sources
    }

    /// Sees to what has happened. Every line that it says is given.
    pub(super) fn attend(&mut self, source: Source, give: &mut dyn FnMut(Line<'_>)) {
        match source {
            Source::Door => self.let_in(),
            Source::Speech => {
                self.listen(give);
            }
            Source::Ear if self.owes_words() => self.say_on(),
            Source::Ear if self.still_happens(source) => self.is_not_heard(),
            Source::Log(number) => {
                self.read_log(number);
            }
            Source::Report if self.still_happens(source) => self.hear_report(give),
            Source::Ear | Source::Report => {}
        }
    }

    /// Whether what was seen before still is: somebody else may have seen to it since.
    fn still_happens(&self, source: Source) -> bool {
        let found = self.sources().into_iter().find(|(one, ..)| *one == source);
        found.is_some_and(|(_, descriptor, flags)| wait(&[(descriptor, flags)], Some(Instant::now())) == [true])
    }

    fn let_in(&mut self) {
        let Some(door) = &self.door else { return };
        let connected = match door.accept() {
            Ok(connected) => connected,
            Err(error) => {
                self.not_let_in = Some(error);
                return;
            }
        };
        let Some(stream) = connected else { return };
        let stream = Arc::new(OwnedFd::from(stream));
        (self.speech, self.ear) = (Some(Arc::clone(&stream)), Some(stream));
        // Nobody else is expected.
        self.door = None;
    }

    /// Reads once; how much there was.
    fn listen(&mut self, give: &mut dyn FnMut(Line<'_>)) -> usize {
        let Some(speech) = &self.speech else { return 0 };
        match read(speech, &mut self.chunk) {
            Read::Nothing => 0,
            Read::Some(count) => {
                self.unasked_bytes = self.unasked_bytes.saturating_add(count);
                self.lines.push(&self.chunk[..count], give);
                count
            }
            end @ (Read::End | Read::Reset) => {
                self.has_left_unread |= matches!(end, Read::Reset);
                (self.speech, self.ear) = (None, None);
                self.lines.finish(give);
                0
            }
        }
    }

    fn read_log(&mut self, number: usize) -> usize {
        let Some(log) = &self.logs[number] else { return 0 };
        match read(log, &mut self.chunk) {
            Read::Nothing => 0,
            Read::Some(count) => {
                self.tail.push(&self.chunk[..count]);
                count
            }
            Read::End | Read::Reset => {
                self.logs[number] = None;
                0
            }
        }
    }

    fn hear_report(&mut self, give: &mut dyn FnMut(Line<'_>)) {
        if self.burial.take().is_some() {
            self.is_gone = true;
            self.hear_last_words(give);
            return;
        }
        match self.tree.line.hear() {
            word @ (Word::Exited(_) | Word::Ended(_)) => {
                self.leader = Some(word);
                self.hear_last_words(give);
            }
            Word::Gone => {
                // Whoever hangs up on it, to kill it, hears the same long before it is.
                self.burial = self.tree.bury().map(Arc::new);
                self.is_gone = self.burial.is_none();
                self.hear_last_words(give);
            }
        }
    }

    /// Reads what a process has left that has ended: it is all there already.
    fn hear_last_words(&mut self, give: &mut dyn FnMut(Line<'_>)) {
        let mut left = LAST_WORDS_LIMIT_BYTES;
        loop {
            let count = self.listen(give) + self.read_log(0) + self.read_log(1);
            left = left.saturating_sub(count);
            if count == 0 || left == 0 {
                return;
            }
        }
    }

    /// Says something, as far as there is room; the rest follows.
    pub(super) fn say(&mut self, words: &[u8]) {
        self.said_ever += 1;
        self.unsaid.extend_from_slice(words);
        self.say_on();
    }

    /// Whether it has yet to take what was said.
    pub(super) fn owes_words(&self) -> bool {
        self.said < self.unsaid.len()
    }

    fn say_on(&mut self) {
        let Some(ear) = &self.ear else { return };
        while self.said < self.unsaid.len() {
            match rustix::io::write(ear, &self.unsaid[self.said..]) {
                Ok(count) => self.said += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    // Its end is heard elsewhere, if it has come to that.
                    log::debug!("process {}: it does not listen: {error}", self.number);
                    self.has_missed = true;
                    self.is_not_heard();
                    break;
                }
            }
        }
        self.unsaid = Vec::new();
        self.said = 0;
    }

    /// It does not listen any more.
    fn is_not_heard(&mut self) {
        self.is_deaf = true;
    }

    /// Nobody listens to it any more, or speaks to it.
    pub(super) fn hang_up(&mut self) {
        (self.door, self.speech, self.ear) = (None, None, None);
    }

    /// Nothing more is said. A process that is reached by its input ends with that.
    pub(super) fn fall_silent(&mut self) {
        self.ear = None;
    }

    /// How much longer it may live if nobody says anything more.
    pub(super) fn may_live(&self, limit: Duration) {
        self.tree.line.may_live(limit);
    }

    /// Kills all of it.
    pub(super) fn kill(&self) {
        self.tree.line.kill();
    }

    /// Its end, told as it is of a process that ran once.
    pub(super) fn exit(&self, otherwise: How) -> Exit {
        let how = match self.leader {
            Some(Word::Exited(status)) => how_of(status),
            _ => otherwise,
        };
        let (stderr_tail, stderr_bytes) = self.tail.so_far();
        Exit { how, stderr_tail, stderr_bytes }
    }

    /// Whether it ended by itself, and well.
    pub(super) fn ended_well(&self) -> bool {
        matches!(self.leader, Some(Word::Exited(0)))
    }

    /// What its end looks like, for people.
    pub(super) fn obituary(&self, when: &str) -> String {
        let exit = self.exit(How::Signalled(libc::SIGKILL));
        let ended = match self.leader {
            Some(Word::Exited(status) | Word::Ended(status)) => how_of(status),
            Some(Word::Gone) | None => exit.how,
        };
        let how = match ended {
            _ if !self.has_ended() => "it hung up".to_owned(),
            How::Exited(code) => format!("it ended with exit code {code}"),
            How::Signalled(signal) => format!("it was ended by signal {signal}"),
            How::Ended(_) => "it was ended".to_owned(),
        };
        let complaint = exit.stderr_text();
        if complaint.is_empty() { format!("{how}{when}") } else { format!("{how}{when}: {complaint}") }
    }
}

/// Waits until something happens to a process, or somebody rings; where it did.
pub(super) fn happens<Memory>(process: &WarmProcess<Memory>, until: Option<Instant>) -> Vec<Source> {
    let bell = process.bell();
    let (mut sources, mut watched): (Vec<Source>, Vec<(Descriptor, PollFlags)>) = (Vec::new(), Vec::new());
    for (source, descriptor, flags) in process.sources() {
        sources.push(source);
        watched.push((descriptor, flags));
    }
    watched.push((bell.sound(), PollFlags::IN));
    let happened = wait(&watched, until);
    if happened.last() == Some(&true) {
        bell.hush();
    }
    sources.into_iter().zip(happened).filter(|(_, happened)| *happened).map(|(source, _)| source).collect()
}

enum Read {
    Nothing,
    Some(usize),
    End,
    /// The same, and not all was read that was said to it.
    Reset,
}

fn read(from: &Arc<OwnedFd>, to: &mut [u8]) -> Read {
    loop {
        match rustix::io::read(from, &mut *to) {
            Ok(0) => return Read::End,
            Ok(count) => return Read::Some(count),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Read::Nothing,
            Err(Errno::CONNRESET) => return Read::Reset,
            Err(error) => {
                log::debug!("a process could not be read: {error}");
                return Read::End;
            }
        }
    }
}

/// A descriptor that never makes anybody wait.
fn quiet(descriptor: OwnedFd) -> io::Result<Arc<OwnedFd>> {
    rustix::io::ioctl_fionbio(&descriptor, true)?;
    Ok(Arc::new(descriptor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::process::Input;

    fn start(script: &str) -> WarmProcess<()> {
        let arguments = vec!["-c".into(), script.into()];
        let command = ChildCommand { input: Input::Open, arguments, ..ChildCommand::new("sh") };
        let times = Times { grace: Duration::ZERO, limit: Duration::from_secs(60) };
        let mut process = WarmProcess::start(1, command, Reach::Pipes, None, times, "a boot").unwrap();
        process.change(ProcessChange::Ready);
        process
    }

    #[test]
    fn what_was_seen_before_and_is_over_by_now_changes_nothing() {
        let mut process = start("cat");
        for source in [Source::Ear, Source::Report, Source::Door, Source::Speech, Source::Log(0)] {
            process.attend(source, &mut |_| {});
        }
        assert!(!process.is_lost());
        let mut deaf = start("exec 0</dev/null; echo; exec sleep 60");
        while !deaf.is_lost() {
            for source in happens(&deaf, None) {
                deaf.attend(source, &mut |_| {});
            }
        }
        assert!(!deaf.has_ended(), "but who does not listen is found out");
    }
}
