//! A tree that a reaper holds.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Stdio};
use std::time::Duration;

use super::reaper::{self, Orders};
use super::{Line, STARTED, Times, command};
use crate::clock::milliseconds;
use crate::executor::process::command::{ChildCommand, Input};
use crate::process::Process;

/// How long a reaper may take to say that it is there. It has nothing else to do.
const FIRST_WORD: Duration = Duration::from_secs(10);

/// The first descriptor that is not one of the three that every program has.
const FIRST_FREE: i32 = 3;

/// A child and all that it starts. Dropped, it is killed.
#[derive(Debug)]
pub(in crate::executor) struct Tree {
    reaper: Option<Child>,
    pub(in crate::executor) line: Line,
    leader: Option<u32>,
    /// Only if its input was to stay open.
    pub(in crate::executor) stdin: Option<ChildStdin>,
    pub(in crate::executor) stdout: Option<ChildStdout>,
    pub(in crate::executor) stderr: Option<ChildStderr>,
}

impl Tree {
    /// Starts a command.
    #[expect(unsafe_code, reason = "what happens between fork and exec has no safe form")]
    pub(in crate::executor) fn spawn(wanted: &ChildCommand, times: Times) -> io::Result<Tree> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = out_of_the_way(theirs.into())?;
        let orders = Orders {
            socket: theirs.as_raw_fd(),
            host: rustix::process::getpid().as_raw_nonzero().get(),
            grace_ms: milliseconds(times.grace),
            limit_ms: milliseconds(times.limit),
        };
        let mut command = command(wanted);
        let input = match &wanted.input {
            Input::All(bytes) => Stdio::from(file(bytes)?),
            Input::Open => Stdio::piped(),
        };
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        // SAFETY: the function is made to be called there.
        unsafe { command.pre_exec(move || reaper::split(orders)) };
        let mut reaper = command.spawn()?;
        drop(theirs);
        let (stdin, stdout, stderr) = (reaper.stdin.take(), reaper.stdout.take(), reaper.stderr.take());
        let mut tree = Tree { reaper: Some(reaper), line: Line::new(ours), leader: None, stdin, stdout, stderr };
        tree.hear_the_first_word()?;
        Ok(tree)
    }

    fn hear_the_first_word(&mut self) -> io::Result<()> {
        self.line.0.set_read_timeout(Some(FIRST_WORD))?;
        let (what, number) = self.line.read_report()?.ok_or(io::ErrorKind::UnexpectedEof)?;
        self.line.0.set_read_timeout(None)?;
        self.leader = u32::try_from(number).ok().filter(|_| what == STARTED);
        Ok(())
    }

    /// The command and its reaper, as others can find them.
    pub(in crate::executor) fn process(&self, boot_id: &str) -> Process {
        let reaper = self.reaper.as_ref().map_or(0, Child::id);
        Process::of(self.leader.unwrap_or(reaper), boot_id).kept_by(Process::of(reaper, boot_id))
    }

    /// Takes the reaper in, which is gone.
    pub(in crate::executor) fn take_in(&mut self) {
        if let Some(mut reaper) = self.reaper.take() {
            // Where the host ignores the deaths of its children there is nobody to be taken in.
            let _ = reaper.wait();
        }
    }

    /// Takes the reaper in, or has it taken in if it is not gone yet: then it gives what is closed once it is.
    pub(in crate::executor) fn bury(&mut self) -> Option<UnixStream> {
        let mut reaper = self.reaper.take()?;
        if !matches!(reaper.try_wait(), Ok(None)) {
            return None;
        }
        // Should somebody have stopped it, it would hear of that only when it goes on.
        let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&reaper), rustix::process::Signal::CONT);
        let (waits, watched) = UnixStream::pair().ok().unzip();
        // Somebody has to take it in, and it may take as long as the system needs to end what cannot be interrupted.
        let undertaker = std::thread::Builder::new().name("workcrew-undertaker".to_owned());
        let taken_in = undertaker.spawn(move || {
            let _ = reaper.wait();
            drop(waits);
        });
        if let Err(error) = taken_in {
            log::warn!("no thread to take in a process that ends: {error}");
        }
        watched
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.line.kill();
        self.bury();
    }
}

/// A descriptor that is none of those which the command's own take the place of.
fn out_of_the_way(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    if descriptor.as_raw_fd() >= FIRST_FREE {
        return Ok(descriptor);
    }
    Ok(rustix::io::fcntl_dupfd_cloexec(&descriptor, FIRST_FREE)?)
}

/// What the command reads: a file without a name, so that nobody has to feed it, and nothing is seen of it elsewhere.
fn file(bytes: &[u8]) -> io::Result<File> {
    let file = rustix::fs::memfd_create(c"workcrew-input", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}
