//! What wakes a thread that waits for descriptors: what happens to one of them, a time that has come, or a tap on its bell.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Something that can be waited for, shared with whoever else waits for it.
pub(super) type Descriptor = Arc<dyn AsFd + Send + Sync>;

/// Waits until something happens, but no longer than that; which of what was watched it happened to.
pub(super) fn wait(watched: &[(Descriptor, PollFlags)], until: Option<Instant>) -> Vec<bool> {
    // Rounded up: nothing is over before its time.
    let left = until.map(|until| until.saturating_duration_since(Instant::now()) + Duration::from_millis(1));
    let timeout = left.and_then(|left| Timespec::try_from(left).ok());
    let mut polled: Vec<PollFd<'_>> =
        watched.iter().map(|(descriptor, flags)| PollFd::from_borrowed_fd(descriptor.as_fd(), *flags)).collect();
    match poll(&mut polled, timeout.as_ref()) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => log::warn!("processes could not be waited for: {error}"),
    }
    polled.iter().map(|polled| !polled.revents().is_empty()).collect()
}

/// Wakes a thread that waits for descriptors. Many taps are one.
#[derive(Debug)]
pub(super) struct Bell {
    rope: UnixStream,
    sound: Arc<UnixStream>,
}

impl Bell {
    pub(super) fn new() -> io::Result<Bell> {
        let (rope, sound) = UnixStream::pair()?;
        rope.set_nonblocking(true)?;
        sound.set_nonblocking(true)?;
        Ok(Bell { rope, sound: Arc::new(sound) })
    }

    /// Wakes whoever waits. If there is no room for it, there is enough to wake anybody already.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&self.rope, &[1]);
    }

    pub(super) fn sound(&self) -> Descriptor {
        Arc::clone(&self.sound) as Descriptor
    }

    /// Has been heard.
    pub(super) fn hush(&self) {
        let mut taps = [0; 64];
        while matches!(rustix::io::read(&self.sound, &mut taps), Ok(64)) {}
    }
}
