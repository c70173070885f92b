//! The command `workcrew`, as a person or a script meets it: real processes, real files, real terminals.

mod budgets;
mod canary;
mod databases;
mod executors;
mod full_disk;
mod golden;
mod held;
mod help;
mod hostile;
mod input;
mod interrupted;
mod kept;
mod outputs;
mod prices;
mod purged;
mod rates;
mod same_work;
mod screen;
mod stream;
mod together;

use std::fs;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::support;

pub(crate) const WORKCREW: &str = env!("CARGO_BIN_EXE_workcrew");

/// Far longer than anything here takes: what hangs is killed, and the test fails.
const WATCHDOG: Duration = Duration::from_secs(120);

/// A folder in which commands are given.
pub(crate) struct Scene(TempDir);

impl Scene {
    pub(crate) fn new() -> Scene {
        Scene(support::folder())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// So many units `u0001`, `u0002` … whose prompts are their names.
    pub(crate) fn write_units(&self, name: &str, count: usize) {
        let lines = (1..=count).map(|number| format!("{{\"id\":\"u{number:04}\",\"prompt\":\"u{number:04}\"}}\n"));
        self.write(name, lines.collect::<String>());
    }

    /// The command in this folder, with nothing of this environment but where programs are.
    pub(crate) fn command<S: AsRef<str>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(WORKCREW);
        command.args(arguments.iter().map(AsRef::as_ref)).current_dir(self.0.path());
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap()).env("USER", "ada");
        command
    }

    /// The same as somebody who has no rights but those of everybody.
    pub(crate) fn run_as_nobody(&self, line: &str) -> Ran {
        // Nobody may not look into where it was built.
        let copy = self.path("workcrew");
        if !copy.exists() {
            fs::copy(WORKCREW, &copy).unwrap();
        }
        let mut command = Command::new(copy);
        command.args(line.split_whitespace()).current_dir(self.0.path()).env_clear().uid(65_534).gid(65_534);
        Started::of(&mut command).end()
    }

    /// Words of a command line, none of which has a blank in it.
    pub(crate) fn run(&self, line: &str) -> Ran {
        self.run_all(&line.split_whitespace().collect::<Vec<_>>())
    }

    pub(crate) fn run_all<S: AsRef<str>>(&self, arguments: &[S]) -> Ran {
        self.start(arguments).end()
    }

    /// With something on its standard input.
    pub(crate) fn pipe(&self, line: &str, input: &[u8]) -> Ran {
        let mut started = self.start(&line.split_whitespace().collect::<Vec<_>>());
        // Who does not read all of it need not.
        let _ = started.stdin().write_all(input);
        started.end()
    }

    pub(crate) fn start<S: AsRef<str>>(&self, arguments: &[S]) -> Started {
        Started::of(self.command(arguments).stdin(Stdio::piped()))
    }

    /// The status of each unit, by `list`.
    pub(crate) fn units(&self, line: &str) -> Vec<(String, String)> {
        let listed = self.run(&format!("list --json -n 100000 {line}")).well().json();
        let text = |unit: &Value, field: &str| unit[field].as_str().unwrap().to_owned();
        listed.iter().map(|unit| (text(unit, "id"), text(unit, "status"))).collect()
    }

    /// How many units are in a status.
    pub(crate) fn count(&self, status: &str) -> usize {
        self.units("").iter().filter(|(_, of)| of == status).count()
    }
}

/// Text without what differs from time to time: moments, durations, process ids, and how wide columns are.
pub(crate) fn settled(text: &str) -> String {
    let mut settled = String::new();
    for line in text.lines() {
        settled.push_str(&" ".repeat(line.len() - line.trim_start().len()));
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut told: Vec<String> = Vec::new();
        for word in words {
            let core = word.trim_end_matches([',', ':', ';']);
            let rest = &word[core.len()..];
            let is_number =
                |text: &str| !text.is_empty() && text.chars().all(|sign| sign.is_ascii_digit() || sign == '.');
            let is_day = core.len() == 10 && core.split('-').count() == 3 && is_number(&core.replace('-', ""));
            let is_clock = core.len() >= 8 && core.split(':').count() == 3 && is_number(&core.replace(':', ""));
            let is_moment = core.contains('T') && core.ends_with("+00:00");
            let is_spent = core.strip_suffix("ms").is_some_and(is_number);
            let is_span = matches!(core, "ms" | "s") && told.last().is_some_and(|word| is_number(word));
            if is_span {
                told.pop();
            }
            told.push(if is_span || is_spent {
                format!("<span>{rest}")
            } else if is_moment {
                format!("<moment>{rest}")
            } else if is_day {
                format!("<day>{rest}")
            } else if is_clock {
                format!("<clock>{rest}")
            } else {
                word.to_owned()
            });
        }
        settled.push_str(&told.join(" "));
        settled.push('\n');
    }
    settled
}

/// A command on its way.
pub(crate) struct Started {
    child: Child,
    out: Heard,
    err: Heard,
}

impl Started {
    pub(crate) fn of(command: &mut Command) -> Started {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = Heard::of(child.stdout.take().unwrap());
        let err = Heard::of(child.stderr.take().unwrap());
        Started { child, out, err }
    }

    pub(crate) fn stdin(&mut self) -> &mut impl Write {
        self.child.stdin.as_mut().unwrap()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    /// What it has told on standard error.
    pub(crate) fn told(&self) -> String {
        self.err.so_far()
    }

    /// Waits for the end.
    pub(crate) fn end(mut self) -> Ran {
        drop(self.child.stdin.take());
        let status = wait(&mut self.child);
        Ran { status, out: self.out.end(), err: self.err.end() }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What comes from a process.
struct Heard {
    text: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

impl Heard {
    fn of(mut from: impl Read + Send + 'static) -> Heard {
        let text = Arc::<Mutex<Vec<u8>>>::default();
        let to = Arc::clone(&text);
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = from.read(&mut buffer) {
                to.lock().unwrap().extend_from_slice(&buffer[..count]);
            }
        });
        Heard { text, thread: Some(thread) }
    }

    fn so_far(&self) -> String {
        String::from_utf8(self.text.lock().unwrap().clone()).unwrap()
    }

    fn end(&mut self) -> String {
        self.thread.take().unwrap().join().unwrap();
        self.so_far()
    }
}

/// Waits for the end of a process, and kills one that does not come to it.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let pid = Pid::from_child(child);
    let (over, is_over) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if is_over.recv_timeout(WATCHDOG) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let status = child.wait().unwrap();
    drop(over);
    watchdog.join().unwrap();
    status
}

/// A command that has ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) status: ExitStatus,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    #[track_caller]
    pub(crate) fn code(self, code: i32) -> Ran {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn well(self) -> Ran {
        self.code(0)
    }

    #[track_caller]
    pub(crate) fn says(self, part: &str) -> Ran {
        assert!(self.out.contains(part), "`{part}` is not in {self:#?}");
        self
    }

    /// That it tells this on standard error.
    #[track_caller]
    pub(crate) fn tells(self, part: &str) -> Ran {
        assert!(self.err.contains(part), "`{part}` is not in {self:#?}");
        self
    }

    /// That it tells nothing but one line, and prints nothing.
    #[track_caller]
    pub(crate) fn tells_only(self, line: &str) -> Ran {
        assert_eq!((&*self.err, &*self.out), (&*format!("{line}\n"), ""));
        self
    }

    /// Each line of its output.
    #[track_caller]
    pub(crate) fn json(&self) -> Vec<Value> {
        let parse = |line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.out.lines().map(parse).collect()
    }
}

/// Waits until something is so.
#[track_caller]
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < WATCHDOG, "it never came: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A command line for `--executor command`: a shell that notes the prompt in `log` before it does something.
pub(crate) fn noting<'a>(line: &'a str, then: &'a str) -> Vec<String> {
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    words.extend(["--executor", "command", "--", "sh", "-c"].map(str::to_owned));
    words.push(format!("read unit; echo $unit >> log; {then}"));
    words
}

/// The lines of a log, each with how often it is there.
pub(crate) fn tally(log: &str) -> std::collections::BTreeMap<&str, usize> {
    let mut tally = std::collections::BTreeMap::new();
    log.lines().for_each(|line| *tally.entry(line).or_default() += 1);
    tally
}

/// Whether a process of this folder is left, whatever its name.
pub(crate) fn is_anybody_in(folder: &Path) -> bool {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    processes.filter_map(|process| fs::read_link(process.path().join("cwd")).ok()).any(|cwd| cwd == folder)
}
