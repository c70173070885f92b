//! A tree that two threads of the host look after, where there are no reapers.
//!
//! One waits for the leader and then kills what is left of its group; the other hears when the tree is to end. Who started whom is asked
//! of `ps`, so that also what left the group is found, as long as its parents live.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};

use super::{ENDED, EXITED, Line, ORDER_BYTES, Times, Word, command};
use crate::executor::process::command::{ChildCommand, Input};
use crate::process::Process;

/// A child and all that it starts. Dropped, it is ended.
#[derive(Debug)]
pub(in crate::executor) struct Tree {
    pub(in crate::executor) line: Line,
    leader: u32,
    /// Only if its input was to stay open.
    #[cfg_attr(test, expect(dead_code, reason = "tested on a system where another one is used"))]
    pub(in crate::executor) stdin: Option<ChildStdin>,
    pub(in crate::executor) stdout: Option<ChildStdout>,
    pub(in crate::executor) stderr: Option<ChildStderr>,
}

/// The leader, as long as its number is its own.
#[derive(Debug)]
struct Leader {
    pid: Pid,
    /// Whether it was asked to end.
    is_asked: AtomicBool,
    has_ended: Mutex<bool>,
    ended: Condvar,
}

impl Tree {
    /// Starts a command.
    pub(in crate::executor) fn spawn(wanted: &ChildCommand, times: Times) -> io::Result<Tree> {
        let (ours, theirs) = UnixStream::pair()?;
        let orders = theirs.try_clone()?;
        let mut command = command(wanted);
        let input = match &wanted.input {
            Input::All(bytes) => Stdio::from(file(bytes)?),
            Input::Open => Stdio::piped(),
        };
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn()?;
        let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let tree = Tree { line: Line::new(ours), leader: child.id(), stdin, stdout, stderr };
        let leader = Leader {
            pid: Pid::from_child(&child),
            is_asked: AtomicBool::default(),
            has_ended: Mutex::default(),
            ended: Condvar::new(),
        };
        let leader = Arc::new(leader);
        let waiting = Arc::clone(&leader);
        thread("workcrew-waiter", move || waiting.wait_for(child, theirs))?;
        thread("workcrew-ender", move || leader.end_when_asked(orders, times))?;
        Ok(tree)
    }

    /// The command, as others can find it.
    pub(in crate::executor) fn process(&self, boot_id: &str) -> Process {
        Process::of(self.leader, boot_id)
    }

    /// Nothing is left to be taken in.
    #[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "there is a reaper elsewhere")]
    pub(in crate::executor) fn take_in(&mut self) {}

    /// Nor is there anything to be waited for.
    #[cfg_attr(test, expect(dead_code, reason = "tested on a system where another one is used"))]
    #[expect(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "there is a reaper elsewhere")]
    pub(in crate::executor) fn bury(&mut self) -> Option<UnixStream> {
        None
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.line.kill();
    }
}

impl Leader {
    /// Waits for the leader, tells how it ended, and kills whoever is left.
    fn wait_for(&self, mut child: Child, mut report: UnixStream) {
        // Its number is kept until it was waited for in earnest.
        let _ = waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
        let what = if self.is_asked.load(Ordering::SeqCst) { ENDED } else { EXITED };
        self.signal_all(Signal::KILL);
        *self.has_ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.ended.notify_all();
        let status = child.wait().map_or(0, ExitStatusExt::into_raw);
        let [what, status] = [what, status].map(i32::to_ne_bytes);
        let _ = report.write_all(&[what, status].concat());
        let _ = report.shutdown(std::net::Shutdown::Both);
    }

    /// Asks the tree to end when that is asked for, and kills it after the grace.
    fn end_when_asked(&self, mut orders: UnixStream, times: Times) {
        let mut limit = times.limit;
        let mut order = [0; ORDER_BYTES];
        loop {
            let _ = orders.set_read_timeout(Some(limit.max(Duration::from_millis(1))));
            if orders.read_exact(&mut order).is_err() {
                break;
            }
            limit = Duration::from_millis(i64::from_ne_bytes(order).try_into().unwrap_or_default());
        }
        self.is_asked.store(true, Ordering::SeqCst);
        self.unless_ended(|| self.signal_all(Signal::TERM));
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.ended.wait_timeout_while(has_ended, times.grace, |has_ended| !*has_ended);
        drop(waited);
        self.unless_ended(|| self.signal_all(Signal::KILL));
    }

    fn unless_ended(&self, act: impl FnOnce()) {
        let has_ended = self.has_ended.lock().unwrap_or_else(PoisonError::into_inner);
        if !*has_ended {
            act();
        }
    }

    fn signal_all(&self, signal: Signal) {
        let descendants = descendants(self.pid);
        // Who is gone already needs no signal.
        let _ = kill_process_group(self.pid, signal);
        for pid in descendants {
            let _ = kill_process(pid, signal);
        }
        let _ = kill_process_group(self.pid, Signal::CONT);
    }
}

/// Whoever was started by this process, or by one that was.
fn descendants(of: Pid) -> Vec<Pid> {
    let listed = Command::new("ps").args(["-A", "-o", "pid=", "-o", "ppid="]).stdin(Stdio::null()).output();
    let listed = listed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
    for line in listed.lines() {
        let mut numbers = line.split_ascii_whitespace().filter_map(|number| number.parse().ok());
        if let (Some(pid), Some(parent)) = (numbers.next(), numbers.next()) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut found, mut left) = (Vec::new(), vec![of.as_raw_nonzero().get()]);
    while let Some(parent) = left.pop() {
        let below = children.remove(&parent).unwrap_or_default();
        found.extend(below.iter().copied().filter_map(Pid::from_raw));
        left.extend(below);
    }
    found
}

fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

/// What the command reads: a file that has lost its name.
fn file(bytes: &[u8]) -> io::Result<File> {
    let path = std::env::temp_dir().join(format!("workcrew-input-{}", uuid::Uuid::new_v4().simple()));
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path)?;
    std::fs::remove_file(&path)?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use rustix::event::PollFlags;

    use super::*;

    const TIMES: Times = Times { grace: Duration::from_millis(100), limit: Duration::from_secs(60) };

    fn shell(script: &str, input: &[u8]) -> Tree {
        let mut command = ChildCommand::new("sh");
        command.arguments = vec!["-c".into(), script.into()];
        command.input = Input::All(input.to_vec());
        Tree::spawn(&command, TIMES).unwrap()
    }

    fn said(tree: &mut Tree) -> String {
        let mut said = String::new();
        tree.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }

    #[test]
    fn it_reads_its_input_and_says_how_it_ended() {
        let mut tree = shell("cat; exit 3", b"hello");
        assert_ne!(tree.process("a boot").pid, 0);
        assert_eq!(said(&mut tree), "hello");
        rustix::event::poll(&mut [rustix::event::PollFd::new(&tree.line.reports(), PollFlags::IN)], None).unwrap();
        assert_eq!((tree.line.hear(), tree.line.hear()), (Word::Exited(3 << 8), Word::Gone));
        tree.take_in();
        assert!(tree.stderr.is_some());
    }

    #[test]
    fn what_does_not_end_is_killed_with_what_left_its_session() {
        if Command::new("ps").output().is_err() {
            eprintln!("there is no `ps` here, without which nobody knows who started whom");
            return;
        }
        let mut tree = shell("trap '' TERM; setsid sh -c 'trap \"\" TERM; echo up; sleep 999' & sleep 999", b"");
        let mut first = [0; 3];
        tree.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
        tree.line.end();
        assert_eq!((tree.line.hear(), tree.line.hear()), (Word::Ended(libc::SIGKILL), Word::Gone));
        assert_eq!(said(&mut tree), "", "nobody holds its output any more");
    }
}
