//! Ends what an earlier attempt has left behind: never two agents in one workspace.
//!
//! The reaper of a process that died ends its tree by itself. What is left to be ended here belongs to an owner that is only stopped, or
//! that lost its lease and has not noticed yet.

use std::fmt;

use crate::process::Process;

/// A process of an earlier attempt that could not be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StillThere {
    pub(crate) pid: u32,
}

impl fmt::Display for StillThere {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} of an earlier attempt is still there", self.pid)
    }
}

/// Ends the processes of earlier attempts that certainly still run here, and waits until they are gone.
///
/// That is for those that have a reaper. Others may serve several attempts, and are for whoever started them.
///
/// # Errors
///
/// When one of them does not go.
pub(crate) fn end_orphans(processes: &[Process], boot_id: &str) -> Result<(), StillThere> {
    processes.iter().filter_map(|process| process.reaper.as_deref()).try_for_each(|reaper| system::end(reaper, boot_id))
}

#[cfg(target_os = "linux")]
mod system {
    use std::time::{Duration, Instant};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

    use super::StillThere;
    use crate::process::Process;

    /// How long an orphan has to be gone, with its grace.
    const PATIENCE: Duration = Duration::from_secs(10);

    pub(super) fn end(process: &Process, boot_id: &str) -> Result<(), StillThere> {
        let Some(pid) = i32::try_from(process.pid).ok().and_then(Pid::from_raw) else { return Ok(()) };
        if !process.is_provably_alive(boot_id) {
            return Ok(());
        }
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return Ok(()) };
        // Looked at again: from now on the number cannot be another's.
        if !process.is_provably_alive(boot_id) {
            return Ok(());
        }
        log::warn!("process {} of an earlier attempt still runs, and is ended", process.pid);
        let still_there = StillThere { pid: process.pid };
        pidfd_send_signal(&handle, Signal::TERM).map_err(|_| still_there)?;
        // Should somebody have stopped it, it would hear of that only when it goes on.
        let _ = pidfd_send_signal(&handle, Signal::CONT);
        let until = Instant::now() + PATIENCE;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(|_| still_there)?;
            match poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&left)) {
                Ok(0) => return Err(still_there),
                Ok(_) => return Ok(()),
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(still_there),
            }
        }
    }
}

/// Elsewhere there are no reapers.
#[cfg(not(target_os = "linux"))]
mod system {
    use super::StillThere;
    use crate::process::Process;

    pub(super) fn end(_process: &Process, _boot_id: &str) -> Result<(), StillThere> {
        Ok(())
    }
}
