//! The writer's own end: it takes what waits, makes groups of it, and sees to what could not be written.

use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use super::answers::Answers;
use super::queue::{Lane, Queue};
use super::{CHANGE_BYTES, Engine, Patience, Waiting, Writer};
use crate::attempt::AttemptKey;
use crate::fault::{Stage, point};
use crate::repository::RepositoryError;

/// A bound on the work of one transaction, so that an urgent change never waits long.
const GROUP_LIMIT: usize = 1_024;

/// The pause before what failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What the storage had room for since it was last told whether the disk is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// Nobody knows: nothing was written.
    Unknown,
    Enough,
    /// There was something that it had none for.
    TooLittle,
}

/// The thread's end.
pub(in crate::repository) struct WriterThread<E: Engine> {
    queue: Arc<Queue<Waiting<E>>>,
    engine: E,
    patience: Patience,
    answers: Answers<E>,
    /// What could not be written yet, in order.
    kept: Vec<Waiting<E>>,
    room: Room,
}

impl<E: Engine> WriterThread<E> {
    pub(in crate::repository) fn new(
        writer: &Writer<E>,
        engine: E,
        patience: Patience,
    ) -> std::io::Result<WriterThread<E>> {
        let (queue, answers) = (Arc::clone(&writer.queue), Answers::start()?);
        Ok(WriterThread { queue, engine, patience, answers, kept: Vec::new(), room: Room::Unknown })
    }

    /// Writes until the queue is closed and empty.
    pub(in crate::repository) fn serve(mut self) {
        loop {
            let pause = (!self.kept.is_empty()).then_some(RETRY_PAUSE);
            let Some((urgent, ordinary)) = self.queue.take(pause) else {
                if self.kept.is_empty() {
                    break;
                }
                std::thread::sleep(RETRY_PAUSE);
                self.write_all(Vec::new(), Vec::new());
                continue;
            };
            self.write_all(urgent, ordinary);
        }
        self.engine.close();
    }

    /// Writes, whatever happens: a panic, even of the host's logger, costs the changes under way, not the thread.
    fn write_all(&mut self, urgent: Vec<Waiting<E>>, ordinary: Vec<Waiting<E>>) {
        let written = catch_unwind(AssertUnwindSafe(|| self.write_kept(urgent, ordinary)));
        if let Err(payload) = written {
            // Dropping a payload may itself panic. Whoever was not told learns that the answer is lost.
            std::mem::forget(payload);
            self.engine.roll_back();
        }
        self.queue.hold(self.kept.iter().map(|waiting| waiting.order.bytes + CHANGE_BYTES).sum());
        match std::mem::replace(&mut self.room, Room::Unknown) {
            Room::TooLittle => self.queue.set_disk_full(true),
            Room::Enough if self.kept.is_empty() => self.queue.set_disk_full(false),
            Room::Enough | Room::Unknown => {}
        }
    }

    /// Writes what is urgent, then what was kept, then what came, in groups of bounded size.
    fn write_kept(&mut self, urgent: Vec<Waiting<E>>, ordinary: Vec<Waiting<E>>) {
        let is_urgent = |waiting: &Waiting<E>| waiting.order.lane == Lane::Urgent;
        let (mut waiting, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut self.kept).into_iter().partition(is_urgent);
        waiting.extend(urgent);
        waiting.extend(kept);
        waiting.extend(ordinary);
        let mut waiting = waiting.into_iter().peekable();
        while waiting.peek().is_some() {
            let mut group = self.queue.take_urgent();
            group.extend(waiting.by_ref().take(GROUP_LIMIT));
            self.write(group);
            if !self.kept.is_empty() {
                // The storage fails: what comes later waits behind what was kept.
                self.kept.extend(waiting.by_ref());
            }
        }
    }

    /// Writes a group; gives the error back if it is nobody's fault.
    fn write(&mut self, mut group: Vec<Waiting<E>>) -> Option<E::Error> {
        // What is written where nobody can find it again is lost, however durable.
        if self.engine.check().is_err() {
            self.settle_gone(group);
            return None;
        }
        match self.transact(&mut group) {
            // It may have been taken away while this waited for the lock.
            Ok(()) if self.engine.check().is_err() => self.settle_gone(group),
            Ok(()) => {
                group.iter().for_each(|waiting| point(waiting.order.verb, Stage::Committed));
                self.answers.tell(group);
            }
            Err(Trouble::Failed(error)) if E::is_nobodys_fault(&error) => {
                group.into_iter().for_each(|waiting| self.keep_or_settle(waiting, &error));
                return Some(error);
            }
            Err(_) if group.len() > 1 => self.write_singly(group),
            Err(Trouble::Failed(error)) => {
                group.into_iter().for_each(|waiting| self.keep_or_settle(waiting, &error));
            }
            Err(Trouble::Panicked) => {
                group
                    .into_iter()
                    .for_each(|waiting| self.fail(waiting, RepositoryError::storage("the writer panicked")));
            }
        }
        None
    }

    /// Runs each change in a transaction of its own, so that only the one at fault fails.
    fn write_singly(&mut self, group: Vec<Waiting<E>>) {
        let mut behind: HashSet<AttemptKey> = HashSet::new();
        let mut unreachable = None;
        for waiting in group {
            let attempt = waiting.order.attempt;
            if let Some(error) = &unreachable {
                // It is nobody's fault: all wait together.
                self.keep_or_settle(waiting, error);
            } else if attempt.is_some_and(|attempt| behind.contains(&attempt)) {
                self.kept.push(waiting);
            } else {
                let kept_before = self.kept.len();
                unreachable = self.write(vec![waiting]);
                if self.kept.len() > kept_before {
                    behind.extend(attempt);
                }
            }
        }
    }

    /// Keeps a change that failed for a passing reason, or tells its caller.
    fn keep_or_settle(&mut self, waiting: Waiting<E>, error: &E::Error) {
        let failure = E::failure_of(error);
        let is_of_attempt = waiting.order.attempt.is_some();
        let patience = match failure {
            _ if E::is_nobodys_fault(error) && is_of_attempt => self.patience.busy.max(self.patience.failing),
            _ if E::is_nobodys_fault(error) => self.patience.busy,
            ref failure if failure.is_passing() && is_of_attempt => self.patience.failing,
            _ => Duration::ZERO,
        };
        if waiting.since.elapsed() < patience {
            log::debug!("{}: kept to be written later: {failure}", waiting.order.verb);
            self.kept.push(waiting);
        } else {
            self.fail(waiting, failure);
        }
    }

    /// Tells that a change was not made, and remembers what that loses.
    fn fail(&mut self, waiting: Waiting<E>, failure: RepositoryError) {
        if let Some((attempt, messages)) = waiting.change.messages_at_stake() {
            self.engine.lose_messages(attempt, messages);
        }
        waiting.change.settle(Some(failure));
    }

    fn settle_gone(&mut self, group: Vec<Waiting<E>>) {
        for waiting in group {
            let gone = self.engine.check().err().unwrap_or(RepositoryError::Closed);
            self.fail(waiting, gone);
        }
    }

    /// Makes all changes of a group in one transaction, or none.
    fn transact(&mut self, group: &mut Vec<Waiting<E>>) -> std::result::Result<(), Trouble<E::Error>> {
        let (engine, queue) = (&mut self.engine, &self.queue);
        let attempts: Vec<AttemptKey> = group.iter().filter_map(|waiting| waiting.order.attempt).collect();
        let mut make = |book: &mut E::Book<'_>| {
            // What became urgent while this waited for the lock, behind what was so before.
            let urgent = group.iter().take_while(|waiting| waiting.order.lane == Lane::Urgent).count();
            group.splice(urgent..urgent, queue.take_urgent());
            for waiting in group.iter_mut() {
                waiting.change.apply(book)?;
                E::check_open(book)?;
                point(waiting.order.verb, Stage::Inside);
            }
            Ok(())
        };
        let attempted = catch_unwind(AssertUnwindSafe(|| engine.transact(&attempts, &mut make)));
        match attempted {
            Ok(made) => {
                self.note_room(made.as_ref().err());
                made.map_err(Trouble::Failed)
            }
            Err(payload) => {
                log::error!("the writer panicked: {}", message_of(&*payload));
                // Dropping a payload may itself panic.
                std::mem::forget(payload);
                self.engine.roll_back();
                Err(Trouble::Panicked)
            }
        }
    }

    fn note_room(&mut self, error: Option<&E::Error>) {
        let is_full = |error| matches!(E::failure_of(error), RepositoryError::StorageFull);
        match error {
            Some(error) if is_full(error) => self.room = Room::TooLittle,
            None if self.room == Room::Unknown => self.room = Room::Enough,
            _ => {}
        }
    }
}

impl<E: Engine> Drop for WriterThread<E> {
    /// Should the thread end in any other way than in order, nobody waits for it.
    fn drop(&mut self) {
        self.queue.close();
        while self.queue.take(Some(Duration::ZERO)).is_some() {}
    }
}

enum Trouble<E> {
    Failed(E),
    Panicked,
}

fn message_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
