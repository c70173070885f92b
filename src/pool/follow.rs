//! Following a conversation while it happens.
//!
//! What is said reaches a follower through a channel with little room. When it falls behind, or
//! begins late, it reads what it missed from the repository, so it gets everything and slows nobody down.

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_channel::{Receiver, RecvError};

use super::open_unit::{OpenUnit, Said};
use crate::attempt::AttemptKey;
use crate::error::RepositoryError;
use crate::repository::{PAGE_LIMIT, Repository};
use crate::unit::UnitKey;

/// The messages of a unit, through all its attempts, each as soon as it is said. It ends when the unit does.
///
/// Waiting for the next message blocks, also in a callback: follow from a thread of your own.
#[derive(Debug)]
pub struct Messages {
    unit: Arc<OpenUnit>,
    repository: Arc<dyn Repository>,
    live: Receiver<Arc<Said>>,
    number: u64,
    /// The last message that was given out: its attempt, its number.
    given: (u32, u32),
    found: VecDeque<Said>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// What was said before is to be read first.
    Begins,
    Follows,
    Ended,
}

impl Messages {
    pub(super) fn new(unit: Arc<OpenUnit>, repository: Arc<dyn Repository>) -> Messages {
        let (live, number) = unit.follow();
        Messages { unit, repository, live, number, given: (1, 0), found: VecDeque::new(), state: State::Begins }
    }

    /// Gives out what was found, leaving out what was given before.
    fn next_found(&mut self) -> Option<Said> {
        while let Some(said) = self.found.pop_front() {
            if (said.attempt_number, said.number) > self.given {
                self.given = (said.attempt_number, said.number);
                return Some(said);
            }
        }
        None
    }

    /// Waits for what is said next; `None` if something was missed before that, which need not wait.
    fn receive(&self) -> Option<Result<Arc<Said>, RecvError>> {
        match self.live.try_recv() {
            Ok(said) => Some(Ok(said)),
            // Asked once the channel is empty: what is said from now on has room.
            Err(_) if self.unit.has_missed(self.number) => None,
            Err(_) => Some(self.live.recv()),
        }
    }

    /// Reads everything behind what was given that is stored by now.
    fn catch_up(&mut self) -> Result<(), RepositoryError> {
        let Some(key) = self.unit.key() else { return Ok(()) };
        if let Some(lease) = self.unit.lease() {
            // What is under way gets stored. An attempt that has ended has everything stored already.
            let _ = self.repository.flush(&lease);
        }
        let last = self.repository.attempts(key)?.last().map_or(0, |attempt| attempt.key.number);
        for attempt_number in self.given.0..=last {
            let after = if attempt_number == self.given.0 { self.given.1 } else { 0 };
            self.read(key, attempt_number, after)?;
        }
        Ok(())
    }

    fn read(&mut self, unit: UnitKey, number: u32, mut after: u32) -> Result<(), RepositoryError> {
        loop {
            let page = self.repository.messages(AttemptKey { unit, number }, after, PAGE_LIMIT)?;
            for stored in &page.items {
                // What was purged cannot be told any more.
                let unreadable = |error| RepositoryError::corrupt("a message", i64::from(stored.number), error);
                if let Some(content) = stored.message().map_err(unreadable)? {
                    self.found.push_back(Said { attempt_number: number, number: stored.number, message: content });
                }
            }
            match page.next.and_then(|next| u32::try_from(next).ok()) {
                Some(next) => after = next,
                None => return Ok(()),
            }
        }
    }
}

impl Iterator for Messages {
    type Item = Result<Said, RepositoryError>;

    fn next(&mut self) -> Option<Result<Said, RepositoryError>> {
        loop {
            if let Some(said) = self.next_found() {
                return Some(Ok(said));
            }
            match self.state {
                State::Ended => return None,
                State::Begins => {
                    self.state = State::Follows;
                    if let Err(error) = self.catch_up() {
                        return Some(Err(error));
                    }
                }
                State::Follows => match self.receive() {
                    Some(Ok(said)) if follows(self.given, (said.attempt_number, said.number)) => {
                        self.found.push_back(Arc::unwrap_or_clone(said));
                    }
                    Some(Ok(said)) if (said.attempt_number, said.number) <= self.given => {}
                    missed_or_ended => {
                        if matches!(missed_or_ended, Some(Err(_))) {
                            self.state = State::Ended;
                        }
                        if let Err(error) = self.catch_up() {
                            return Some(Err(error));
                        }
                    }
                },
            }
        }
    }
}

/// Whether nothing is missing between two messages.
fn follows((attempt, number): (u32, u32), (next_attempt, next_number): (u32, u32)) -> bool {
    next_attempt == attempt && next_number == number + 1
}
