//! The writer thread of a repository that outlives its process: all changes go through it, and it commits whatever waits as one
//! transaction.
//!
//! ```text
//!   callers ──▶ Queue ──▶ take all ──▶ begin
//!      ▲                                  apply each change to the book
//!      │                               commit (one wait for the disk for all)
//!      └────────── answers ◀───────────── settle each
//! ```
//!
//! What a book is, and how a transaction begins and ends, is the storage's own: see [`Engine`].
//!
//! **Why it is fast.** A caller waits for its own change to be durable, but 64 callers wait for one
//! commit together.
//!
//! **When it fails.** A change that is *rejected* (a stale fence, an unknown unit) has decided so before it wrote
//! anything, and does not disturb its group. If the storage fails or a change panics, the whole group is rolled back and its
//! changes are run again one by one, so that only the one at fault gets the error; but not while the storage is
//! locked or out of reach, which is nobody's fault. What fails for a passing reason is kept and tried again: while it is nobody's
//! fault for as long as its caller has patience, and what an attempt brought for as long as an answer that was paid for is
//! worth keeping. A change never overtakes an earlier one of the same attempt.
//!
//! **Who is told where.** The callers of a small group are woken by the writer itself, those of a large one by a
//! thread of its own, while the writer goes on.
//!
//! **When it panics**, the caller of that change is told, and the thread goes on.

mod answers;
mod queue;
mod thread;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use self::answers::{Promise, promise};
use self::queue::{Lane, Queue};
pub(in crate::repository) use self::thread::WriterThread;
use super::{RepositoryError, Result};
use crate::attempt::AttemptKey;
use crate::fault::{Stage, point};
use crate::lease::Backpressure;

/// How much may wait to be written. Beyond it callers wait for room.
pub(in crate::repository) const QUEUE_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// What a change weighs in the queue at least: its own bookkeeping.
const CHANGE_BYTES: usize = 512;

/// Makes the changes of a group in an open transaction.
pub(in crate::repository) type Make<'a, E> =
    dyn FnMut(&mut <E as Engine>::Book<'_>) -> std::result::Result<(), <E as Engine>::Error> + 'a;

/// A storage that makes changes in transactions.
pub(in crate::repository) trait Engine: Send + Sized + 'static {
    /// An open transaction, and what the writer remembers from one to the next.
    type Book<'a>;
    /// How the storage fails. Whatever was written in the transaction is void.
    type Error: Send;

    /// Whether what is written now would be found again.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Lets all of a group make its changes in one transaction, and commits it: all of them or none. It may let them do so
    /// again if the first transaction could not be. `attempts` are those that the changes are about, as far as they are known.
    fn transact(&mut self, attempts: &[AttemptKey], make: &mut Make<'_, Self>) -> std::result::Result<(), Self::Error>;

    /// Fails if the transaction has ended by itself, so that what follows would be none.
    fn check_open(_book: &Self::Book<'_>) -> std::result::Result<(), Self::Error> {
        Ok(())
    }

    /// Leaves nothing of a transaction in the midst of which somebody panicked.
    fn roll_back(&mut self);

    /// Remembers messages of an attempt that could not be stored.
    fn lose_messages(&mut self, attempt: AttemptKey, messages: u32);

    /// What an error means to a caller.
    fn failure_of(error: &Self::Error) -> RepositoryError;

    /// Whether no change can be at fault: others use the storage, or nobody can reach it.
    fn is_nobodys_fault(error: &Self::Error) -> bool;

    /// Leaves the storage in order behind itself.
    fn close(&mut self) {}
}

/// Why a change was not made.
#[derive(Debug)]
pub(in crate::repository) enum Fault<E> {
    /// The verb decided against it, and wrote nothing of the unit.
    Rejected(RepositoryError),
    /// The storage failed: the transaction is void.
    Failed(E),
}

/// How long changes that cannot be made are kept.
#[derive(Clone, Copy, Debug)]
pub(in crate::repository) struct Patience {
    /// While it is nobody's fault: another process has the storage locked, or it is out of reach.
    pub(in crate::repository) busy: Duration,
    /// While the storage fails in a way that may pass, for what an attempt brought.
    pub(in crate::repository) failing: Duration,
}

/// What the thread needs to know of a change besides how to make it.
#[derive(Clone, Copy, Debug)]
pub(in crate::repository) struct Order {
    pub(in crate::repository) verb: &'static str,
    pub(in crate::repository) lane: Lane,
    pub(in crate::repository) bytes: usize,
    /// The attempt whose writes must keep their order, and must not be dropped lightly.
    pub(in crate::repository) attempt: Option<AttemptKey>,
}

impl Order {
    pub(in crate::repository) fn new(verb: &'static str) -> Order {
        Order { verb, lane: Lane::Ordinary, bytes: 0, attempt: None }
    }

    pub(in crate::repository) fn urgent(mut self) -> Order {
        self.lane = Lane::Urgent;
        self
    }

    pub(in crate::repository) fn bytes(mut self, bytes: usize) -> Order {
        self.bytes = bytes;
        self
    }

    pub(in crate::repository) fn attempt(mut self, attempt: AttemptKey) -> Order {
        self.attempt = Some(attempt);
        self
    }
}

/// A change that waits, with whoever waits for it.
pub(in crate::repository) struct Waiting<E> {
    order: Order,
    since: Instant,
    change: Box<dyn Change<E>>,
}

impl<E: Engine> Waiting<E> {
    /// Tells the caller that the change was made. A caller that cannot be told must not keep others from it.
    pub(in crate::repository) fn tell_made(self) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.change.settle(None))) {
            // Dropping a payload may itself panic.
            std::mem::forget(payload);
        }
    }
}

impl<E> std::fmt::Debug for Waiting<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({})", self.order.verb)
    }
}

/// A change that can be made, and made again if the transaction was rolled back.
trait Change<E: Engine>: Send {
    fn apply(&mut self, book: &mut E::Book<'_>) -> std::result::Result<(), E::Error>;

    /// The messages that are lost if the change is not made and nobody waits to be told.
    fn messages_at_stake(&self) -> Option<(AttemptKey, u32)> {
        None
    }

    /// Called once: after the commit, or with the reason why there was none.
    fn settle(self: Box<Self>, failure: Option<RepositoryError>);
}

/// A change whose caller waits for the answer.
struct Awaited<T, Work> {
    work: Work,
    answer: Option<Result<T>>,
    promise: Promise<T>,
}

impl<E, T, Work> Change<E> for Awaited<T, Work>
where
    E: Engine,
    T: Send,
    Work: FnMut(&mut E::Book<'_>) -> std::result::Result<T, Fault<E::Error>> + Send,
{
    fn apply(&mut self, book: &mut E::Book<'_>) -> std::result::Result<(), E::Error> {
        self.answer = Some(match (self.work)(book) {
            Ok(answer) => Ok(answer),
            Err(Fault::Rejected(rejection)) => Err(rejection),
            Err(Fault::Failed(error)) => return Err(error),
        });
        Ok(())
    }

    fn settle(self: Box<Self>, failure: Option<RepositoryError>) {
        let answer = failure.map_or(self.answer, |failure| Some(Err(failure)));
        self.promise.keep(answer.unwrap_or(Err(RepositoryError::Closed)));
    }
}

/// Messages, for which nobody waits. What becomes of them is told with the next change of the attempt.
struct Unawaited<Work> {
    attempt: AttemptKey,
    messages: u32,
    work: Work,
}

impl<E, Work> Change<E> for Unawaited<Work>
where
    E: Engine,
    Work: FnMut(&mut E::Book<'_>) -> std::result::Result<(), Fault<E::Error>> + Send,
{
    fn apply(&mut self, book: &mut E::Book<'_>) -> std::result::Result<(), E::Error> {
        match (self.work)(book) {
            Ok(()) => {}
            // The work itself wrote down what it did not take, unless the attempt is over.
            Err(Fault::Rejected(rejection)) => {
                log::debug!("attempt {:?}: {} messages not stored: {rejection}", self.attempt, self.messages);
            }
            Err(Fault::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn messages_at_stake(&self) -> Option<(AttemptKey, u32)> {
        Some((self.attempt, self.messages)).filter(|(_, messages)| *messages > 0)
    }

    fn settle(self: Box<Self>, failure: Option<RepositoryError>) {
        if let Some(failure) = failure.filter(|_| self.messages > 0) {
            log::error!("attempt {:?}: {} messages lost: {failure}", self.attempt, self.messages);
        }
    }
}

/// The callers' end.
#[derive(Debug)]
pub(in crate::repository) struct Writer<E> {
    queue: Arc<Queue<Waiting<E>>>,
}

impl<E: Engine> Writer<E> {
    pub(in crate::repository) fn new() -> Writer<E> {
        Writer { queue: Arc::new(Queue::new(QUEUE_LIMIT_BYTES)) }
    }

    /// Makes a change and waits until it is durable. The work decides before it writes, and may be run again.
    pub(in crate::repository) fn run<T, Work>(&self, order: Order, work: Work) -> Result<T>
    where
        T: Send + 'static,
        Work: FnMut(&mut E::Book<'_>) -> std::result::Result<T, Fault<E::Error>> + Send + 'static,
    {
        self.begin(order, work)()
    }

    /// Hands over a change. What this gives waits until it is durable.
    pub(in crate::repository) fn begin<T, Work>(
        &self,
        order: Order,
        work: Work,
    ) -> impl FnOnce() -> Result<T> + use<T, Work, E>
    where
        T: Send + 'static,
        Work: FnMut(&mut E::Book<'_>) -> std::result::Result<T, Fault<E::Error>> + Send + 'static,
    {
        point(order.verb, Stage::Before);
        let (promise, pending) = promise();
        let sent = self.send(order, Box::new(Awaited { work, answer: None, promise }));
        move || sent.and_then(|()| pending.wait())
    }

    /// Hands over messages, and waits only if there is no room for them.
    pub(in crate::repository) fn run_unawaited<Work>(
        &self,
        order: Order,
        attempt: AttemptKey,
        messages: u32,
        work: Work,
    ) -> Result<()>
    where
        Work: FnMut(&mut E::Book<'_>) -> std::result::Result<(), Fault<E::Error>> + Send + 'static,
    {
        point(order.verb, Stage::Before);
        self.send(order, Box::new(Unawaited { attempt, messages, work }))
    }

    fn send(&self, order: Order, change: Box<dyn Change<E>>) -> Result<()> {
        let waiting = Waiting { order, since: Instant::now(), change };
        let sent = self.queue.send(order.lane, order.bytes + CHANGE_BYTES, waiting);
        sent.map_err(|_| RepositoryError::Closed)
    }

    /// What waits to be written.
    pub(in crate::repository) fn backpressure(&self) -> Backpressure {
        self.queue.backpressure()
    }

    /// Lets nothing more in; the thread ends when it has written what waits.
    pub(in crate::repository) fn close(&self) {
        self.queue.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that is made, and panics when that is told.
    struct Untellable;

    impl<E: Engine> Change<E> for Untellable {
        fn apply(&mut self, _book: &mut E::Book<'_>) -> std::result::Result<(), E::Error> {
            Ok(())
        }

        fn settle(self: Box<Self>, _failure: Option<RepositoryError>) {
            panic!("as planned");
        }
    }

    impl<E: Engine> Writer<E> {
        pub(in crate::repository) fn send_untellable(&self) {
            self.send(Order::new("untellable"), Box::new(Untellable)).expect("the writer is open");
        }
    }
}
