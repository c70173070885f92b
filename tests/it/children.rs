//! Processes that a test starts, stops and kills: the test binary, executing itself.
//!
//! A module that needs one has an ignored test that plays the [`role`] it is given. Parent and child talk in
//! lines: the child [says](say) them on its standard output and [hears](hear) them on its standard input.
#![expect(clippy::unwrap_used, reason = "a test that cannot start its processes fails")]

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use workcrew::clock::{Clock, Moment, SystemClock};
use workcrew::testing::ENVIRONMENT_VARIABLE;

const ROLE: &str = "WORKCREW_TEST_ROLE";
const PATH: &str = "WORKCREW_TEST_PATH";

/// What marks a line of ours among those of the test harness.
const MARK: &str = "» ";

/// Far longer than any role lasts: a child that hangs ends, and its parent sees why.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The role of this process, if it is a child.
pub(crate) fn role() -> Option<String> {
    role_within(WATCHDOG)
}

/// The role of this process, if it is a child that may take so long.
pub(crate) fn role_within(limit: Duration) -> Option<String> {
    let role = std::env::var(ROLE).ok()?;
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        eprintln!("the child took longer than {limit:?}");
        std::process::abort();
    });
    Some(role)
}

/// The file that this process shall work on.
pub(crate) fn path() -> PathBuf {
    std::env::var_os(PATH).unwrap().into()
}

/// Tells the parent something. Once this returns, the parent will read it whatever happens to this process.
pub(crate) fn say(line: impl std::fmt::Display) {
    // The harness leaves its own line open.
    std::io::stdout().lock().write_all(format!("\n{MARK}{line}\n").as_bytes()).unwrap();
}

/// The next line that the parent tells; `None` when it has nothing more to tell.
pub(crate) fn hear() -> Option<String> {
    let mut line = String::new();
    let read = std::io::stdin().lock().read_line(&mut line).unwrap();
    (read > 0).then(|| line.trim_end_matches('\n').to_owned())
}

/// Writes a line beside the file of this process that survives the process.
pub(crate) fn note(line: impl std::fmt::Display) {
    let mut notes = OpenOptions::new().create(true).append(true).open(notes_beside(&path())).unwrap();
    notes.write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// What processes have noted beside a file, in the order in which they did, each line as its words.
pub(crate) fn notes(path: &Path) -> Vec<Vec<String>> {
    let notes = std::fs::read_to_string(notes_beside(path)).unwrap_or_default();
    notes.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

/// Notes, in this process, whatever a person should look at.
pub(crate) fn note_warnings() {
    struct Notes;
    impl log::Log for Notes {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            note(format_args!("log {} {}", record.level(), record.args()));
        }

        fn flush(&self) {}
    }
    log::set_logger(&Notes).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
}

fn notes_beside(path: &Path) -> PathBuf {
    path.with_extension("log")
}

/// A child process. Dropped, it is killed.
pub(crate) struct Child {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

/// How a child is started.
pub(crate) struct Role(Command);

impl Role {
    /// Runs an ignored test of this binary in a role, on a file.
    pub(crate) fn new(test: &str, role: &str, path: impl AsRef<OsStr>) -> Role {
        Role::of(std::env::current_exe().unwrap(), test, role, path)
    }

    /// The same with another copy of this binary.
    pub(crate) fn of(binary: PathBuf, test: &str, role: &str, path: impl AsRef<OsStr>) -> Role {
        let mut command = Command::new(binary);
        command.args([test, "--exact", "--ignored", "--nocapture", "--test-threads=1"]);
        command.env(ROLE, role).env(PATH, path).env_remove(ENVIRONMENT_VARIABLE);
        Role(command)
    }

    /// Arms a fault point in the child.
    pub(crate) fn fault(mut self, plan: &str) -> Role {
        self.0.env(ENVIRONMENT_VARIABLE, plan);
        self
    }

    /// Sets a variable of the child's environment.
    pub(crate) fn env(mut self, name: &str, value: impl std::fmt::Display) -> Role {
        self.0.env(name, value.to_string());
        self
    }

    /// Takes all rights from the child: it becomes another user.
    pub(crate) fn user(mut self, id: u32) -> Role {
        self.0.uid(id).gid(id);
        self
    }

    /// Lets the child live in a pid namespace of its own, where its number means nothing to others. What is started, and can be
    /// signalled, is its keeper, with which it dies.
    pub(crate) fn in_pid_namespace(self) -> Role {
        let mut keeper = Role::keeper();
        keeper.arg(self.0.get_program()).args(self.0.get_args());
        for (name, value) in self.0.get_envs() {
            match value {
                Some(value) => keeper.env(name, value),
                None => keeper.env_remove(name),
            };
        }
        Role(keeper)
    }

    /// Whether this system and user may have pid namespaces.
    pub(crate) fn may_have_pid_namespace() -> bool {
        Role::keeper().arg("true").stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn keeper() -> Command {
        let mut keeper = Command::new("unshare");
        keeper.args(["--pid", "--fork", "--mount-proc", "--kill-child=KILL"]);
        keeper
    }

    pub(crate) fn start(mut self) -> Child {
        let mut process = self.0.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Child { stdin: process.stdin.take(), lines, process }
    }
}

impl Child {
    /// The next line that the child says; `None` once it has ended.
    pub(crate) fn line(&mut self) -> Option<String> {
        loop {
            let line = self.lines.next()?.unwrap();
            if let Some(said) = line.strip_prefix(MARK) {
                return Some(said.to_owned());
            }
        }
    }

    /// Waits until the child says exactly this.
    pub(crate) fn wait_for(&mut self, expected: &str) {
        while let Some(line) = self.line() {
            if line == expected {
                return;
            }
        }
        panic!("the child ended and never said `{expected}`");
    }

    pub(crate) fn tell(&mut self, line: impl std::fmt::Display) {
        writeln!(self.stdin.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Reads what is left and waits for the end.
    pub(crate) fn end(mut self) -> (ExitStatus, Vec<String>) {
        self.stdin = None;
        let lines = std::iter::from_fn(|| self.line()).collect();
        (self.process.wait().unwrap(), lines)
    }

    /// Like [`end`](Child::end), for a child that must come to a good end.
    pub(crate) fn end_well(self) -> Vec<String> {
        let (status, lines) = self.end();
        assert!(status.success(), "{status}: {lines:?}");
        lines
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// Waits until the child was stopped by a signal.
    pub(crate) fn wait_until_stopped(&self) {
        let (_, status) = waitpid(Some(self.pid()), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "it did not stop but end: {status:?}");
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Starts a thread and returns once it is asleep: it waits for something, as the caller means it to.
pub(crate) fn spawn_waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    /// Once may be by chance: a lock that another thread has for a moment.
    const TIMES_ASLEEP: u32 = 20;
    let (send, receive) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        send.send(std::fs::read_link("/proc/thread-self").unwrap()).unwrap();
        work()
    });
    let stat = std::path::Path::new("/proc").join(receive.recv().unwrap()).join("stat");
    let is_asleep = || std::fs::read_to_string(&stat).is_ok_and(|stat| stat.contains(") S "));
    let (began, mut times_asleep) = (Instant::now(), 0);
    while times_asleep < TIMES_ASLEEP {
        assert!(!thread.is_finished(), "the thread did not wait but end");
        assert!(began.elapsed() < WATCHDOG, "the thread never waits");
        times_asleep = if is_asleep() { times_asleep + 1 } else { 0 };
        std::thread::yield_now();
    }
    thread
}

/// Whether a process died of `kill -9`.
pub(crate) fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// The machine's clocks, put forward. Its clones are the same clock.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClockAhead(Arc<AtomicI64>);

impl ClockAhead {
    pub(crate) fn by(ahead: Duration) -> ClockAhead {
        let clock = ClockAhead::default();
        clock.advance(ahead);
        clock
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for ClockAhead {
    fn now(&self) -> Moment {
        let (now, ahead_ms) = (SystemClock.now(), self.0.load(Ordering::SeqCst));
        Moment { wall: now.wall + TimeDelta::milliseconds(ahead_ms), boot_ms: now.boot_ms + ahead_ms }
    }
}
