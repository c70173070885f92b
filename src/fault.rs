//! Fault points: named places at which a test lets the process die, freeze or panic.
//!
//! The storage calls `point("finish", Stage::Inside)` on its way. Without the feature `testing`
//! that is nothing at all; with it, one relaxed load until somebody [arms](arm) a point.
#![cfg_attr(
    not(feature = "testing"),
    expect(unreachable_pub, reason = "public as `testing::{point, Stage}` where that is compiled")
)]
#![cfg_attr(
    not(any(feature = "testing", feature = "sqlite", feature = "sqlite-system", feature = "postgres")),
    expect(dead_code, reason = "only durable storage has something to lose")
)]

#[cfg(feature = "testing")]
pub use armed::{Action, ENVIRONMENT_VARIABLE, arm, arm_from_environment, disarm_all};

/// How far a verb has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Nothing was written.
    Before,
    /// It was written, but not committed.
    Inside,
    /// It was committed, but nobody was told.
    Committed,
}

/// A place at which a test may interfere: a verb, and how far it has got.
#[cfg(feature = "testing")]
#[inline]
pub fn point(verb: &'static str, stage: Stage) {
    armed::reach(verb, stage);
}

/// A place at which a test may interfere: a verb, and how far it has got.
#[cfg(not(feature = "testing"))]
#[inline]
pub fn point(_verb: &'static str, _stage: Stage) {}

#[cfg(feature = "testing")]
mod armed {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::Stage;

    /// The environment variable that [`arm_from_environment`] reads.
    pub const ENVIRONMENT_VARIABLE: &str = "WORKCREW_FAULT";

    /// What happens at an armed point.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Action {
        /// The process is killed, as by `kill -9`.
        Kill,
        /// The process is stopped until somebody sends it SIGCONT.
        Stop,
        /// The thread panics.
        Panic,
    }

    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Trap {
        verb: String,
        stage: Stage,
        /// How often the point is still passed; it strikes when this becomes 0.
        passes_left: u64,
        action: Action,
    }

    /// Whether there is any trap. It may be read late: whoever arms a point makes sure that it is reached later.
    static IS_ARMED: AtomicBool = AtomicBool::new(false);
    static TRAPS: Mutex<Vec<Trap>> = Mutex::new(Vec::new());

    /// Lets something happen when a point is reached for the `nth` time from now, once.
    ///
    /// Points are the whole process's. Tests that arm them run in a process of their own, or one after another.
    ///
    /// ```
    /// use workcrew::testing::{Action, Stage, arm, disarm_all, point};
    ///
    /// arm("claim", Stage::Inside, 2, Action::Panic);
    /// point("claim", Stage::Inside);
    /// assert!(std::panic::catch_unwind(|| point("claim", Stage::Inside)).is_err());
    /// point("claim", Stage::Inside);
    /// disarm_all();
    /// ```
    ///
    /// # Panics
    ///
    /// If `nth` is 0: the first time is 1.
    pub fn arm(verb: impl Into<String>, stage: Stage, nth: u64, action: Action) {
        assert!(nth > 0, "a point is reached for the first time, never for the 0th");
        let mut traps = traps();
        traps.push(Trap { verb: verb.into(), stage, passes_left: nth, action });
        IS_ARMED.store(true, Ordering::Relaxed);
    }

    /// From now on nothing happens at any point.
    pub fn disarm_all() {
        let mut traps = traps();
        traps.clear();
        IS_ARMED.store(false, Ordering::Relaxed);
    }

    /// Arms what [`ENVIRONMENT_VARIABLE`] names, for a child process that is to die.
    ///
    /// Its form is `verb:stage:nth:action`, such as `finish:inside:3:kill`, several separated by commas.
    ///
    /// # Panics
    ///
    /// If it has another form: a test that interferes with nothing would prove nothing.
    pub fn arm_from_environment() {
        let Ok(plan) = std::env::var(ENVIRONMENT_VARIABLE) else { return };
        for text in plan.split(',') {
            let trap = parse(text).unwrap_or_else(|| panic!("{ENVIRONMENT_VARIABLE}: `{text}` names no fault"));
            arm(trap.verb, trap.stage, trap.passes_left, trap.action);
        }
    }

    fn parse(text: &str) -> Option<Trap> {
        let fields: Vec<&str> = text.trim().split(':').collect();
        let [verb, stage, nth, action] = fields[..] else { return None };
        let stage = match stage {
            "before" => Stage::Before,
            "inside" => Stage::Inside,
            "committed" => Stage::Committed,
            _ => return None,
        };
        let action = match action {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "panic" => Action::Panic,
            _ => return None,
        };
        let passes_left = nth.parse().ok().filter(|&nth| nth > 0)?;
        Some(Trap { verb: verb.to_owned(), stage, passes_left, action })
    }

    #[inline]
    pub(super) fn reach(verb: &'static str, stage: Stage) {
        if IS_ARMED.load(Ordering::Relaxed) {
            // The lock is free again before anything happens.
            let action = spring(&mut traps(), verb, stage);
            if let Some(action) = action {
                strike(verb, stage, action);
            }
        }
    }

    fn spring(traps: &mut Vec<Trap>, verb: &str, stage: Stage) -> Option<Action> {
        let mut sprung = None;
        traps.retain_mut(|trap| {
            if trap.verb != verb || trap.stage != stage {
                return true;
            }
            trap.passes_left -= 1;
            if trap.passes_left == 0 {
                sprung = sprung.or(Some(trap.action));
            }
            trap.passes_left > 0
        });
        sprung
    }

    #[cold]
    fn strike(verb: &str, stage: Stage, action: Action) {
        match action {
            Action::Panic => panic!("fault point {verb}, {stage:?}"),
            Action::Kill => {
                kill_process(getpid(), Signal::KILL).expect("a process may signal itself");
                // The signal may reach another thread first; this one does not go on meanwhile.
                loop {
                    std::thread::park();
                }
            }
            Action::Stop => {
                kill_process(getpid(), Signal::STOP).expect("a process may signal itself");
                // Likewise, and on a busy machine much later: this thread does not go on before the whole process is stopped.
                while is_stop_pending() {
                    std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    /// Whether no thread has taken the signal yet that stops all of them. Whoever learns that one has is stopped on the way
    /// back from reading it.
    fn is_stop_pending() -> bool {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let pending = status.lines().find_map(|line| line.strip_prefix("ShdPnd:"));
        let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        pending.is_some_and(|mask| mask & 1 << (Signal::STOP.as_raw() - 1) != 0)
    }

    fn traps() -> MutexGuard<'static, Vec<Trap>> {
        TRAPS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use rustix::process::{Pid, WaitOptions, waitpid};
        use std::os::unix::process::ExitStatusExt;
        use std::process::{Child, Command, Stdio};

        /// Runs one of these tests again in a process of its own, with a fault.
        fn child(test: &str, fault: &str) -> Child {
            let this = std::env::current_exe().unwrap();
            let mut command = Command::new(this);
            command.args(["--exact", &format!("fault::armed::tests::{test}")]);
            command.env(ENVIRONMENT_VARIABLE, fault).stdout(Stdio::null()).spawn().unwrap()
        }

        /// Whether this is such a process; then its point was reached three times.
        fn was_child() -> bool {
            let is_child = std::env::var_os(ENVIRONMENT_VARIABLE).is_some();
            if is_child {
                arm_from_environment();
                (0..3).for_each(|_| reach("verb", Stage::Committed));
            }
            is_child
        }

        #[test]
        fn a_process_is_killed_at_its_point() {
            if !was_child() {
                let mut child = child("a_process_is_killed_at_its_point", "verb:committed:3:kill");
                assert_eq!(child.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
            }
        }

        #[test]
        fn a_process_is_stopped_at_its_point_and_goes_on_when_told() {
            if !was_child() {
                let test = "a_process_is_stopped_at_its_point_and_goes_on_when_told";
                let mut child = child(test, "verb:committed:2:stop");
                let pid = Pid::from_child(&child);
                let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
                assert!(status.stopped());
                kill_process(pid, Signal::CONT).unwrap();
                assert!(child.wait().unwrap().success());
            }
        }

        #[test]
        fn a_plan_reads_as_it_is_written() {
            let trap = parse("finish:inside:3:kill").unwrap();
            assert_eq!(
                trap,
                Trap { verb: "finish".into(), stage: Stage::Inside, passes_left: 3, action: Action::Kill }
            );
            for text in ["", "finish", "finish:inside:0:kill", "finish:outside:1:kill", "finish:inside:1:kill:x"] {
                assert_eq!(parse(text), None, "{text}");
            }
        }

        #[test]
        fn a_trap_strikes_once_and_only_at_its_own_point() {
            let trap = |verb: &str, action| Trap { verb: verb.into(), stage: Stage::Inside, passes_left: 2, action };
            let mut traps = vec![trap("claim", Action::Panic), trap("finish", Action::Stop)];
            assert_eq!(spring(&mut traps, "claim", Stage::Before), None);
            assert_eq!(spring(&mut traps, "claim", Stage::Inside), None);
            assert_eq!(spring(&mut traps, "claim", Stage::Inside), Some(Action::Panic));
            assert_eq!(spring(&mut traps, "claim", Stage::Inside), None);
            assert_eq!(traps, [trap("finish", Action::Stop)]);
        }
    }
}
