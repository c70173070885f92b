//! A full disk: it is told, there is some time to make room, and then the batch is given up.
//!
//! What was executed and cannot be stored is kept by the library, which tries again and again; nothing new begins meanwhile, since that would have to be
//! stored as well. What is here is the limit to it, and that whoever interrupts need not wait for a disk.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use workcrew::{Repository, SqliteRepository, Stop};

use crate::interrupt::Interrupt;
use crate::time::{self, short};

/// How long there is to make room.
const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// How often it is looked whether there is room.
const LOOK: Duration = Duration::from_millis(100);

/// Not in the help: so that tests need not wait for it.
fn patience() -> Duration {
    let set = std::env::var("WORKCREW_PATIENCE").ok().and_then(|text| time::positive(&text).ok());
    set.unwrap_or(PATIENCE)
}

/// What changes.
#[derive(Clone, Debug)]
pub enum Disk {
    Full { patience: Duration },
    HasRoom,
}

impl Disk {
    /// As an event.
    pub fn name(&self) -> &'static str {
        match self {
            Disk::Full { .. } => "disk_full",
            Disk::HasRoom => "disk_has_room",
        }
    }

    /// What is told of it.
    pub fn told(&self) -> String {
        match self {
            Disk::Full { patience } => {
                format!("the disk is full: what is done waits for room, for {} at most", short(*patience))
            }
            Disk::HasRoom => "the disk has room again".to_owned(),
        }
    }
}

/// Watches over the disk until it is dropped.
pub struct Storage {
    ends: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    full_since: Option<Instant>,
    is_given_up: bool,
}

impl Storage {
    /// Tells of a full disk, and stops the pool when it was full for too long, or somebody has asked to stop.
    pub fn watch(
        repository: SqliteRepository,
        interrupt: Interrupt,
        stop: impl Fn(Stop) + Send + 'static,
        tell: impl Fn(&Disk) + Send + 'static,
    ) -> io::Result<Storage> {
        let state = Arc::<Mutex<State>>::default();
        let of_thread = Arc::clone(&state);
        let (ends, over) = bounded(0);
        let watch = move || {
            let patience = patience();
            while over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                let is_full = repository.backpressure().is_some_and(|writing| writing.is_disk_full);
                let mut state = of_thread.lock().unwrap_or_else(PoisonError::into_inner);
                match (state.full_since, is_full) {
                    (None, true) => {
                        state.full_since = Some(Instant::now());
                        tell(&Disk::Full { patience });
                    }
                    (Some(_), false) => {
                        state.full_since = None;
                        tell(&Disk::HasRoom);
                    }
                    _ => {}
                }
                state.is_given_up |= state.full_since.is_some_and(|since| since.elapsed() >= patience);
                if state.is_given_up || (is_full && interrupt.is_asked()) {
                    stop(Stop::Now);
                }
            }
        };
        let thread = std::thread::Builder::new().name("storage".to_owned()).spawn(watch)?;
        Ok(Storage { ends: Some(ends), thread: Some(thread), state })
    }

    /// Whether the disk is full.
    pub fn is_full(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).full_since.is_some()
    }

    /// Whether the disk was full for too long.
    pub fn is_given_up(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).is_given_up
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        drop(self.ends.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
