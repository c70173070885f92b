//! Reads units on a thread of its own: neither a slow pipe nor one that never ends keeps what has come from being executed, or anybody from
//! stopping.

use std::io;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};
use workcrew::source::{BadUnit, Placed};

/// How many units are read ahead. Few: each may be large.
const AHEAD: usize = 16;

/// How long more is waited for before what has come is stored.
const PATIENCE: Duration = Duration::from_millis(100);

/// How long what comes without a pause is gathered.
const GATHER: Duration = Duration::from_secs(1);

/// How often it is asked whether to go on while nothing comes.
const ASK: Duration = Duration::from_millis(50);

pub type Read = Result<Placed, BadUnit>;

/// What is being read.
pub struct Reading {
    units: Receiver<Read>,
    next: Option<Read>,
    thread: Option<JoinHandle<()>>,
}

impl Reading {
    pub fn start(units: impl Iterator<Item = Read> + Send + 'static) -> io::Result<Reading> {
        let (send, receive) = bounded(AHEAD);
        let read = move || {
            for unit in units {
                if send.send(unit).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().name("reader".to_owned()).spawn(read)?;
        Ok(Reading { units: receive, next: None, thread: Some(thread) })
    }

    /// Waits until there is one more, as long as it goes on. It stays where it is: [`at_hand`](Reading::at_hand) gives it.
    pub fn has_more(&mut self, goes_on: impl Fn() -> bool) -> bool {
        while goes_on() {
            match self.units.recv_timeout(ASK) {
                Ok(unit) => {
                    self.next = Some(unit);
                    return true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.end();
                    return false;
                }
            }
        }
        false
    }

    /// What has come, until there is a pause or it is time to store it.
    pub fn at_hand(&mut self) -> impl Iterator<Item = Read> {
        let until = Instant::now() + GATHER;
        std::iter::from_fn(move || {
            let at_hand = self.next.take();
            at_hand.or_else(|| if Instant::now() < until { self.units.recv_timeout(PATIENCE).ok() } else { None })
        })
    }

    /// A reader that died has not read all.
    fn end(&mut self) {
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}
