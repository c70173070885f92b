//! Which process is meant, weeks later and after pids were used again.
//!
//! A pid alone names nothing: it is reused. With its start time, the boot and the
//! pid namespace it names one process for ever, and it can be told for certain that
//! this process is gone. About a process of another namespace nothing can be told from here.

use serde::{Deserialize, Serialize};

/// The identity of a process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// When it started, in the kernel's ticks since boot; 0 where the system does not tell.
    pub start_ticks: u64,
    /// The boot in which it runs.
    pub boot_id: String,
    /// The inode of the pid namespace that its number belongs to; 0 where there are none.
    pub pid_namespace: u64,
    /// The process that ends it together with all that it has started; `None` if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reaper: Option<Box<Process>>,
    /// Whether it works for several attempts, one after the other, and so outlives each of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_shared: bool,
}

impl Process {
    /// The running process, in the boot that a clock tells.
    pub fn this(boot_id: &str) -> Process {
        Process::of(std::process::id(), boot_id)
    }

    /// The process that has a number now. Ask while it cannot have been reaped yet, as a parent can.
    pub fn of(pid: u32, boot_id: &str) -> Process {
        let start_ticks = match system::look_up(pid) {
            Seen::Alive { start_ticks } => start_ticks,
            Seen::Gone | Seen::Unknown => 0,
        };
        let pid_namespace = system::pid_namespace();
        Process { pid, start_ticks, boot_id: boot_id.to_owned(), pid_namespace, reaper: None, is_shared: false }
    }

    /// The same process, which another one ends together with all that it has started.
    pub fn kept_by(self, reaper: Process) -> Process {
        Process { reaper: Some(Box::new(reaper)), ..self }
    }

    /// The same process, which works for several attempts.
    pub fn shared(self) -> Process {
        Process { is_shared: true, ..self }
    }

    /// Whether it is certain that the process no longer runs.
    ///
    /// `false` may mean that it runs, or that nobody can tell from here.
    pub fn is_provably_dead(&self, boot_id: &str) -> bool {
        if !self.is_comparable(boot_id) {
            return false;
        }
        match system::look_up(self.pid) {
            Seen::Gone => true,
            Seen::Alive { start_ticks } => start_ticks != self.start_ticks,
            Seen::Unknown => false,
        }
    }

    /// Whether it is certain that the process still runs.
    ///
    /// `false` may mean that it ended, or that nobody can tell from here.
    pub fn is_provably_alive(&self, boot_id: &str) -> bool {
        self.is_comparable(boot_id) && system::look_up(self.pid) == Seen::Alive { start_ticks: self.start_ticks }
    }

    /// Whether the process still runs, but somebody has stopped it: it does nothing until it is told to go on.
    ///
    /// `false` may mean that it was not stopped, or that nobody can tell from here.
    pub fn is_stopped(&self, boot_id: &str) -> bool {
        self.is_provably_alive(boot_id) && system::is_stopped(self.pid)
    }

    /// Whether its number means here what it meant where it was written down.
    fn is_comparable(&self, boot_id: &str) -> bool {
        let is_known = !self.boot_id.is_empty() && self.start_ticks != 0;
        is_known && self.boot_id == boot_id && self.pid_namespace == system::pid_namespace()
    }
}

/// The name of this machine, if it has one.
pub(crate) fn host_name() -> Option<String> {
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    Some(name).filter(|name| !name.is_empty())
}

/// What the system says about a pid.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Alive { start_ticks: u64 },
    Gone,
    Unknown,
}

#[cfg(target_os = "linux")]
mod system {
    use super::Seen;
    use rustix::io::Errno;
    use rustix::process::{Pid, test_kill_process};
    use std::os::unix::fs::MetadataExt;

    pub(super) fn pid_namespace() -> u64 {
        std::fs::metadata("/proc/self/ns/pid").map_or(0, |namespace| namespace.ino())
    }

    pub(super) fn look_up(pid: u32) -> Seen {
        match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
            Ok(stat) => read_stat(&stat),
            // Where /proc hides other users' processes a missing entry proves nothing; a signal does.
            Err(_) if is_missing(pid) => Seen::Gone,
            Err(_) => Seen::Unknown,
        }
    }

    pub(super) fn is_stopped(pid: u32) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // By a signal, or by a debugger.
        stat.rsplit_once(") ").is_some_and(|(_, behind_name)| behind_name.starts_with(['T', 't']))
    }

    fn is_missing(pid: u32) -> bool {
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
        pid.is_some_and(|pid| test_kill_process(pid) == Err(Errno::SRCH))
    }

    /// Reads `pid (any name) state ... start_ticks ...`; the name may hold spaces and brackets.
    pub(super) fn read_stat(stat: &str) -> Seen {
        const START_TICKS_FIELD: usize = 19;
        let Some((_, behind_name)) = stat.rsplit_once(") ") else { return Seen::Unknown };
        let mut fields = behind_name.split_ascii_whitespace();
        // A zombie has ended: it holds nothing and will write nothing.
        if matches!(fields.clone().next(), Some("Z" | "X")) {
            return Seen::Gone;
        }
        match fields.nth(START_TICKS_FIELD).and_then(|ticks| ticks.parse().ok()) {
            Some(start_ticks) => Seen::Alive { start_ticks },
            None => Seen::Unknown,
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Seen;

    pub(super) fn pid_namespace() -> u64 {
        0
    }

    pub(super) fn look_up(_pid: u32) -> Seen {
        Seen::Unknown
    }

    pub(super) fn is_stopped(_pid: u32) -> bool {
        false
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};

    #[test]
    fn this_process_is_not_dead() {
        let boot_id = SystemClock.boot_id();
        let this = Process::this(&boot_id);
        assert!(this.start_ticks > 0);
        assert!(!this.is_provably_dead(&boot_id));
        assert!(this.is_provably_alive(&boot_id));
    }

    #[test]
    fn a_child_is_dead_once_it_ended_even_before_it_is_reaped() {
        let boot_id = SystemClock.boot_id();
        let mut child = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let process = Process::of(child.id(), &boot_id);
        assert!(!process.is_provably_dead(&boot_id));
        assert!(process.is_provably_alive(&boot_id));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(process.is_provably_dead(&boot_id));
        assert!(!process.is_provably_alive(&boot_id));
    }

    #[test]
    fn a_recycled_pid_is_another_process() {
        let boot_id = SystemClock.boot_id();
        let this = Process::this(&boot_id);
        let earlier = Process { start_ticks: this.start_ticks - 1, ..this };
        assert!(earlier.is_provably_dead(&boot_id));
    }

    #[test]
    fn nothing_is_proved_across_boots_and_namespaces_or_with_too_little_known() {
        let boot_id = SystemClock.boot_id();
        let gone = Process { start_ticks: 1, ..Process::this(&boot_id) };
        assert!(gone.is_provably_dead(&boot_id));
        assert!(!gone.is_provably_dead("another boot"));
        assert!(!Process { pid_namespace: 1, ..gone.clone() }.is_provably_dead(&boot_id));
        assert!(!Process { start_ticks: 0, ..gone }.is_provably_dead(&boot_id));
        let this = Process::this(&boot_id);
        assert!(!this.is_provably_alive("another boot"));
        assert!(!Process { pid_namespace: 1, ..this }.is_provably_alive(&boot_id));
    }

    #[test]
    fn a_name_with_brackets_does_not_confuse_and_a_zombie_is_gone() {
        let rest = "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 777 20";
        assert_eq!(system::read_stat(&format!("4 (a) S b) S {rest}")), Seen::Alive { start_ticks: 777 });
        assert_eq!(system::read_stat(&format!("4 (sh) Z {rest}")), Seen::Gone);
        assert_eq!(system::read_stat("4 (sh) S"), Seen::Unknown);
    }
}
