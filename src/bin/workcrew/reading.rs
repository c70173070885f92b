//! Reads units on a thread of its own: neither a slow pipe nor one that never ends keeps what has come from being executed, or anybody from
//! stopping.

use std::collections::VecDeque;
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
    /// What was read and is still to be given.
    ahead: VecDeque<Read>,
    thread: Option<JoinHandle<()>>,
    is_over: bool,
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
        Ok(Reading { units: receive, ahead: VecDeque::new(), thread: Some(thread), is_over: false })
    }

    /// The next one, as long as it goes on.
    pub fn next(&mut self, goes_on: impl Fn() -> bool) -> Option<Read> {
        if self.has_more(goes_on) { self.ahead.pop_front() } else { None }
    }

    /// Waits until there is one more, as long as it goes on. It stays where it is.
    pub fn has_more(&mut self, goes_on: impl Fn() -> bool) -> bool {
        while self.ahead.is_empty() && !self.is_over && goes_on() {
            match self.units.recv_timeout(ASK) {
                Ok(unit) => self.ahead.push_back(unit),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => self.end(),
            }
        }
        !self.ahead.is_empty() && goes_on()
    }

    /// What has come, until there is a pause or it is time to store it.
    pub fn at_hand(&mut self) -> impl Iterator<Item = Read> {
        let until = Instant::now() + GATHER;
        std::iter::from_fn(move || {
            let at_hand = self.ahead.pop_front();
            at_hand.or_else(|| if Instant::now() < until { self.units.recv_timeout(PATIENCE).ok() } else { None })
        })
    }

    /// Gives these once more, before all others.
    pub fn put_back(&mut self, read: Vec<Read>) {
        read.into_iter().rev().for_each(|unit| self.ahead.push_front(unit));
    }

    /// Whether there was nothing more to be read.
    pub fn is_over(&self) -> bool {
        self.is_over && self.ahead.is_empty()
    }

    /// A reader that died has not read all.
    fn end(&mut self) {
        self.is_over = true;
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}
