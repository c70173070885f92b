//! From the start of a child to its end: what it says is read as it comes, and its limits are kept.
//!
//! ```text
//!              ┌── output, errors ──▶ lines ──▶ Reader ──▶ answer? ─┐
//!   started ───┤                                                    ├──▶ asked to end ──▶ gone ──▶ last words ──▶ Exit
//!              └── a limit, or the call is cancelled ───────────────┘
//! ```
//!
//! One thread does all of it, that of the attempt. If it is kept by something else, such as storage that is slow, the child waits for
//! its pipe; if the call is cancelled meanwhile, its token ends the tree without this thread.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

use super::command::{ChildCommand, Limits};
use super::lines::{Lines, Tail};
use super::tree::{Times, Tree, Word};
use super::{Exit, Heard, How, Reader, Reason};
use crate::executor::Call;

/// How much is read at a time.
const CHUNK_BYTES: usize = 64 * 1024;

/// How much of a line is kept.
const LINE_LIMIT_BYTES: usize = 10 * 1024 * 1024;

/// How much of the end of its other output is kept.
const TAIL_LIMIT_BYTES: usize = 64 * 1024;

/// How long what is left in the pipes of a tree that is gone is read, at most. Who still holds them is none of it.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How long a tree that was killed may take to be gone. The system may hold on to a process that waits for a disk.
const UNTIL_GONE: Duration = Duration::from_secs(5);

/// How long it is at most until it is looked whether the call was cancelled. Its token has told the tree already.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// How much longer than its call a tree may live if the host cannot end it.
const BEYOND_THE_CALL: Duration = Duration::from_secs(5);

/// Runs a child to its end.
///
/// # Errors
///
/// When it could not be started.
pub(super) fn watch(command: &ChildCommand, reader: &mut impl Reader, call: &Call<'_>) -> io::Result<Exit> {
    // The rest of the call's own grace is for what follows: to take it in, to store what it said.
    let grace = call.grace() * 2 / 3;
    let times = Times { grace, limit: call.time_left().saturating_add(grace + BEYOND_THE_CALL) };
    let tree = Tree::spawn(command, times)?;
    let line = tree.line.clone();
    let _ends_with_the_call = call.cancel_token().on_cancel(move || line.end());
    call.child_started(tree.process(&call.boot_id()));
    let mut watch = Watch::new(tree, &command.limits, grace);
    while !watch.is_over() {
        watch.step(reader, call);
    }
    Ok(watch.exit(reader, call))
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// It runs.
    NotYet,
    /// It was asked to end, or its leader has ended: it should be gone by then. Some are not, such as those of another user.
    Near { gone_by: Instant },
    /// All of it is gone; what it has said may still be read until then.
    Gone { until: Instant },
}

struct Watch<'a> {
    tree: Tree,
    limits: &'a Limits,
    grace: Duration,
    lines: Lines,
    tail: Tail,
    chunk: Vec<u8>,
    /// Whether it has said anything.
    has_spoken: bool,
    /// When it said something last, or was started.
    heard_at: Instant,
    /// When what may be its answer came, or its output ended.
    done_at: Option<Instant>,
    end: End,
    /// Why it was asked to end.
    reason: Option<Reason>,
    /// How the leader ended.
    leader: Option<Word>,
}

impl<'a> Watch<'a> {
    fn new(tree: Tree, limits: &'a Limits, grace: Duration) -> Watch<'a> {
        Watch {
            tree,
            limits,
            grace,
            lines: Lines::new(LINE_LIMIT_BYTES),
            tail: Tail::new(TAIL_LIMIT_BYTES),
            chunk: vec![0; CHUNK_BYTES],
            has_spoken: false,
            heard_at: Instant::now(),
            done_at: None,
            end: End::NotYet,
            reason: None,
            leader: None,
        }
    }

    fn is_over(&self) -> bool {
        let is_silent = self.tree.stdout.is_none() && self.tree.stderr.is_none();
        match self.end {
            End::NotYet => false,
            End::Near { gone_by } => Instant::now() >= gone_by,
            End::Gone { until } => is_silent || Instant::now() >= until,
        }
    }

    /// Waits until something happens, and sees to it. Limits count only then: if this thread was kept, there may be much to be heard.
    fn step(&mut self, reader: &mut impl Reader, call: &Call<'_>) {
        let Ready { stdout, stderr, report } = self.wait();
        if stdout {
            self.read_stdout(reader, call);
        }
        if stderr {
            self.read_stderr();
        }
        if report {
            self.hear_report();
        }
        if self.end == End::NotYet {
            self.keep_limits(call);
        }
    }

    fn wait(&self) -> Ready {
        let limit = self.next_limit().map(|(at, _)| at);
        let until = match self.end {
            End::NotYet => limit,
            End::Near { gone_by: until } | End::Gone { until } => Some(until),
        };
        // Rounded up: nothing is over before its time.
        let left = |until: Instant| until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        let timeout = until.map_or(LOOK_AGAIN, left).min(LOOK_AGAIN);
        let timeout = rustix::event::Timespec::try_from(timeout).ok();
        let reports = (!matches!(self.end, End::Gone { .. })).then(|| self.tree.line.reports());
        let (stdout, stderr) = (self.tree.stdout.as_ref().map(AsFd::as_fd), self.tree.stderr.as_ref().map(AsFd::as_fd));
        let watched = [stdout, stderr, reports];
        let mut polled: Vec<_> =
            watched.iter().flatten().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
        if let Err(error) = poll(&mut polled, timeout.as_ref()) {
            log::debug!("a child could not be waited for: {error}");
            return Ready::default();
        }
        let mut happened = polled.iter().map(|polled| !polled.revents().is_empty());
        let mut next = |is_watched: bool| is_watched && happened.next().unwrap_or(false);
        Ready { stdout: next(stdout.is_some()), stderr: next(stderr.is_some()), report: next(reports.is_some()) }
    }

    fn read_stdout(&mut self, reader: &mut impl Reader, call: &Call<'_>) {
        let Some(stdout) = &mut self.tree.stdout else { return };
        let count = read(stdout, &mut self.chunk);
        if count == 0 {
            self.tree.stdout = None;
            // Nothing that it says from now on can be heard.
            self.done_at.get_or_insert_with(Instant::now);
            return;
        }
        self.spoke();
        let done_at = &mut self.done_at;
        self.lines.push(&self.chunk[..count], |line| match reader.read(line, call) {
            Heard::More => {}
            Heard::Answer => *done_at = Some(Instant::now()),
            Heard::AtWork => *done_at = None,
        });
    }

    fn read_stderr(&mut self) {
        let Some(stderr) = &mut self.tree.stderr else { return };
        let count = read(stderr, &mut self.chunk);
        if count == 0 {
            self.tree.stderr = None;
            return;
        }
        self.tail.push(&self.chunk[..count]);
        self.spoke();
    }

    fn spoke(&mut self) {
        self.has_spoken = true;
        self.heard_at = Instant::now();
    }

    fn hear_report(&mut self) {
        match self.tree.line.hear() {
            word @ (Word::Exited(_) | Word::Ended(_)) => {
                self.leader = Some(word);
                // What it left behind is killed at once.
                self.end = End::Near { gone_by: Instant::now() + UNTIL_GONE };
            }
            Word::Gone => {
                self.tree.take_in();
                self.end = End::Gone { until: Instant::now() + LAST_WORDS };
            }
        }
    }

    /// Ends what has used up a limit, and notes that what was cancelled is ending.
    fn keep_limits(&mut self, call: &Call<'_>) {
        let now = Instant::now();
        self.reason = self.next_limit().filter(|&(at, _)| now >= at).map(|(_, reason)| reason);
        if self.reason.is_some() {
            self.tree.line.end();
        } else if !call.is_cancelled() {
            return;
        }
        self.end = End::Near { gone_by: now + self.grace + UNTIL_GONE };
    }

    /// The limit that is reached first, if nothing happens.
    fn next_limit(&self) -> Option<(Instant, Reason)> {
        let Limits { start, silence, after_answer } = *self.limits;
        let why_done = if self.tree.stdout.is_some() { Reason::Lingered } else { Reason::ClosedItsOutput };
        let limits = [
            start.filter(|_| !self.has_spoken).map(|limit| (self.heard_at, limit, Reason::NeverSpoke(limit))),
            silence.map(|limit| (self.heard_at, limit, Reason::Silent(limit))),
            self.done_at.map(|since| (since, after_answer, why_done)),
        ];
        // What is too far away to be told never comes.
        let reached = |(since, limit, reason): (Instant, Duration, Reason)| Some((since.checked_add(limit)?, reason));
        limits.into_iter().flatten().filter_map(reached).min_by_key(|&(at, _)| at)
    }

    fn exit(mut self, reader: &mut impl Reader, call: &Call<'_>) -> Exit {
        self.lines.finish(|line| {
            reader.read(line, call);
        });
        if !matches!(self.end, End::Gone { .. }) {
            log::warn!("unit {}: its process is still not gone after it was killed", call.unit().id);
        }
        let (stderr_tail, stderr_bytes) = self.tail.so_far();
        let how = match (self.leader, self.reason, call.cancel_reason()) {
            (Some(Word::Exited(status)), _, _) => how_of(status),
            (_, Some(reason), _) => How::Ended(reason),
            (_, None, Some(reason)) => How::Ended(Reason::Cancelled(reason)),
            (Some(Word::Ended(status)), None, None) => how_of(status),
            // Only who kills the reaper keeps it from telling, and then the system kills the leader.
            (Some(Word::Gone) | None, None, None) => How::Signalled(libc::SIGKILL),
        };
        Exit { how, stderr_tail, stderr_bytes }
    }
}

/// What has something to be read.
#[derive(Clone, Copy, Debug, Default)]
struct Ready {
    stdout: bool,
    stderr: bool,
    report: bool,
}

/// What a status of the system means.
pub(in crate::executor) fn how_of(status: i32) -> How {
    use std::os::unix::process::ExitStatusExt;
    let status = std::process::ExitStatus::from_raw(status);
    match (status.code(), status.signal()) {
        (Some(code), _) => How::Exited(code),
        (None, signal) => How::Signalled(signal.unwrap_or_default()),
    }
}

/// Reads once; nothing means that there is no more.
fn read(from: &mut impl Read, to: &mut [u8]) -> usize {
    loop {
        match from.read(to) {
            Ok(count) => return count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                log::debug!("the output of a child could not be read: {error}");
                return 0;
            }
        }
    }
}
