//! A child and all that it starts, as something that can be ended.
//!
//! | system | what ends it | what may get away |
//! |---|---|---|
//! | `linux` | a [reaper](reaper), a process of its own | nothing, also when the host is killed |
//! | `elsewhere` | two threads of the host, by process group and by who started whom | what left its group and lost its parent; everything when the host is killed |
//!
//! Both have the same signatures: a `Tree` that is spawned, a `Line` over which it is asked to end, `Word`s that it sends.

#[cfg(any(not(target_os = "linux"), test))]
mod elsewhere;
#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "linux")]
mod reaper;

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustix::net::SendFlags;

#[cfg(not(target_os = "linux"))]
pub(in crate::executor) use self::elsewhere::Tree;
#[cfg(target_os = "linux")]
pub(in crate::executor) use self::linux::Tree;
use super::command::ChildCommand;
use crate::clock::milliseconds;

/// How long it is what a host says: a number of milliseconds.
const ORDER_BYTES: usize = 8;

/// What is written to the host: which of these, and a number.
const STARTED: i32 = 1;
const EXITED: i32 = 2;
const ENDED: i32 = 3;
/// How long one of them is.
const REPORT_BYTES: usize = 8;

/// How long a tree has in which case.
#[derive(Clone, Copy, Debug)]
pub(in crate::executor) struct Times {
    /// Between TERM and KILL.
    pub(in crate::executor) grace: Duration,
    /// In all, whatever the host does; unless it says otherwise while it lives ([`Line::may_live`]).
    pub(in crate::executor) limit: Duration,
}

/// What is said about a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::executor) enum Word {
    /// The leader has ended by itself, with this status.
    Exited(i32),
    /// The leader has ended with this status after it was asked to.
    Ended(i32),
    /// The whole tree has.
    Gone,
}

/// The connection to whoever ends the tree. Whoever has it can ask for that.
#[derive(Clone, Debug)]
pub(in crate::executor) struct Line(Arc<UnixStream>);

impl Line {
    pub(in crate::executor) fn new(stream: UnixStream) -> Line {
        Line(Arc::new(stream))
    }

    /// Asks the tree to end: TERM, and KILL after the grace.
    pub(in crate::executor) fn end(&self) {
        // It fails only where there is nobody left to be asked.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Says how much longer the tree may live if nothing more is said, which takes the place of what was said before.
    ///
    /// It never waits: whoever cannot be told now, because it was stopped, could not do as it is told either.
    pub(in crate::executor) fn may_live(&self, limit: Duration) {
        // A host that has not asked to be told by a signal is told by an error, which says that there is nobody left.
        #[cfg(target_os = "linux")]
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        #[cfg(not(target_os = "linux"))]
        let flags = SendFlags::DONTWAIT;
        let _ = rustix::net::send(&*self.0, &milliseconds(limit).to_ne_bytes(), flags);
    }

    /// Kills the tree.
    pub(in crate::executor) fn kill(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }

    /// What becomes readable when there is something to hear.
    pub(in crate::executor) fn reports(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// The same, shared with whoever waits for it.
    pub(in crate::executor) fn descriptor(&self) -> Arc<UnixStream> {
        Arc::clone(&self.0)
    }

    /// What is said, which has become readable.
    pub(in crate::executor) fn hear(&self) -> Word {
        match self.read_report() {
            Ok(Some((ENDED, status))) => Word::Ended(status),
            Ok(Some((_, status))) => Word::Exited(status),
            Ok(None) | Err(_) => Word::Gone,
        }
    }

    fn read_report(&self) -> io::Result<Option<(i32, i32)>> {
        let mut report = [0; REPORT_BYTES];
        match (&*self.0).read_exact(&mut report) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        let [a, b, c, d, e, f, g, h] = report;
        Ok(Some((i32::from_ne_bytes([a, b, c, d]), i32::from_ne_bytes([e, f, g, h]))))
    }
}

/// The command as the standard library starts it, without its input and outputs.
fn command(wanted: &ChildCommand) -> Command {
    let mut command = Command::new(&wanted.program);
    command.args(&wanted.arguments).env_clear().envs(wanted.environment.out_of(std::env::vars_os()));
    if let Some(directory) = &wanted.directory {
        command.current_dir(directory);
    }
    command
}
