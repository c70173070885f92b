//! The writer thread: all changes go through it, and it commits whatever waits as one transaction.
//!
//! ```text
//!   callers ──▶ Queue ──▶ take all ──▶ BEGIN IMMEDIATE
//!      ▲                                  apply each change to the Book
//!      │                               COMMIT (one fsync for all)
//!      └────────── answers ◀───────────── settle each
//! ```
//!
//! **Why it is fast.** A caller waits for its own change to be durable, but 64 callers wait for one
//! `fsync` together.
//!
//! **When it fails.** A change that is *rejected* (a stale fence, an unknown unit) has decided so before it wrote
//! anything, and does not disturb its group. If SQLite fails or a change panics, the whole group is rolled back and its
//! changes are run again one by one, so that only the one at fault gets the error; but not while the file is
//! locked, which is nobody's fault. What fails for a passing reason is kept and tried again: while the file is locked
//! for as long as its caller has patience, and what an attempt brought for as long as an answer that was paid for is
//! worth keeping. Where the disk is full, the log beside the file is emptied first.
//! A change never overtakes an earlier one of the same attempt.
//!
//! **Who is told where.** The callers of a small group are woken by the writer itself, those of a large one by a
//! thread of its own, while the writer goes on.
//!
//! **When it panics**, the caller of that change is told, and the thread goes on.

use std::any::Any;
use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::{Connection, ErrorCode};

use super::answers::{Answers, Promise, promise};
use super::book::{Answer, Book, Fault, Memory, storage_failure};

use super::open::Place;
use super::queue::{Lane, Queue};
use super::wal::{Log, Room};
use crate::attempt::AttemptKey;
use crate::fault::{Stage, point};
use crate::lease::Backpressure;
use crate::repository::{RepositoryError, Result};

/// How much may wait to be written. Beyond it callers wait for room.
pub(super) const QUEUE_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// A bound on the work of one transaction, so that an urgent change never waits long.
const GROUP_LIMIT: usize = 1_024;

/// The pause before what failed is tried again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// How long one attempt to get the lock takes. In between it is seen who has no patience left.
const LOCK_TURN: Duration = Duration::from_millis(100);

/// What a change weighs in the queue at least: its own bookkeeping.
const CHANGE_BYTES: usize = 512;

/// How long changes that cannot be made are kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// While another process has the file locked.
    pub(super) busy: Duration,
    /// While the storage fails in a way that may pass, for what an attempt brought.
    pub(super) failing: Duration,
}

/// What the thread needs to know of a change besides how to make it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Order {
    pub(super) verb: &'static str,
    pub(super) lane: Lane,
    pub(super) bytes: usize,
    /// The attempt whose writes must keep their order, and must not be dropped lightly.
    pub(super) attempt: Option<AttemptKey>,
}

impl Order {
    pub(super) fn new(verb: &'static str) -> Order {
        Order { verb, lane: Lane::Ordinary, bytes: 0, attempt: None }
    }

    pub(super) fn urgent(mut self) -> Order {
        self.lane = Lane::Urgent;
        self
    }

    pub(super) fn bytes(mut self, bytes: usize) -> Order {
        self.bytes = bytes;
        self
    }

    pub(super) fn attempt(mut self, attempt: AttemptKey) -> Order {
        self.attempt = Some(attempt);
        self
    }
}

/// A change that waits, with whoever waits for it.
pub(super) struct Waiting {
    order: Order,
    since: Instant,
    change: Box<dyn Change>,
}

impl Waiting {
    /// Tells the caller that the change was made. A caller that cannot be told must not keep others from it.
    pub(super) fn tell_made(self) {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.change.settle(None))) {
            // Dropping a payload may itself panic.
            std::mem::forget(payload);
        }
    }
}

impl std::fmt::Debug for Waiting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Waiting({})", self.order.verb)
    }
}

/// A change that can be made, and made again if the transaction was rolled back.
trait Change: Send {
    fn apply(&mut self, book: &mut Book<'_>) -> rusqlite::Result<()>;

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

impl<T: Send, Work: FnMut(&mut Book<'_>) -> Answer<T> + Send> Change for Awaited<T, Work> {
    fn apply(&mut self, book: &mut Book<'_>) -> rusqlite::Result<()> {
        self.answer = Some(match (self.work)(book) {
            Ok(answer) => Ok(answer),
            Err(Fault::Rejected(rejection)) => Err(rejection),
            Err(Fault::Sqlite(error)) => return Err(error),
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

impl<Work: FnMut(&mut Book<'_>) -> Answer<()> + Send> Change for Unawaited<Work> {
    fn apply(&mut self, book: &mut Book<'_>) -> rusqlite::Result<()> {
        match (self.work)(book) {
            Ok(()) => {}
            // The work itself wrote down what it did not take, unless the attempt is over.
            Err(Fault::Rejected(rejection)) => {
                log::debug!("attempt {:?}: {} messages not stored: {rejection}", self.attempt, self.messages);
            }
            Err(Fault::Sqlite(error)) => return Err(error),
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
#[derive(Clone, Debug)]
pub(super) struct Writer {
    queue: Arc<Queue<Waiting>>,
}

impl Writer {
    pub(super) fn new() -> Writer {
        Writer { queue: Arc::new(Queue::new(QUEUE_LIMIT_BYTES)) }
    }

    /// Makes a change and waits until it is durable. The work decides before it writes, and may be run again.
    pub(super) fn run<T, Work>(&self, order: Order, work: Work) -> Result<T>
    where
        T: Send + 'static,
        Work: FnMut(&mut Book<'_>) -> Answer<T> + Send + 'static,
    {
        point(order.verb, Stage::Before);
        let (promise, pending) = promise();
        self.send(order, Box::new(Awaited { work, answer: None, promise }))?;
        pending.wait()
    }

    /// Hands over messages, and waits only if there is no room for them.
    pub(super) fn run_unawaited<Work>(&self, order: Order, attempt: AttemptKey, messages: u32, work: Work) -> Result<()>
    where
        Work: FnMut(&mut Book<'_>) -> Answer<()> + Send + 'static,
    {
        point(order.verb, Stage::Before);
        self.send(order, Box::new(Unawaited { attempt, messages, work }))
    }

    fn send(&self, order: Order, change: Box<dyn Change>) -> Result<()> {
        let waiting = Waiting { order, since: Instant::now(), change };
        let sent = self.queue.send(order.lane, order.bytes + CHANGE_BYTES, waiting);
        sent.map_err(|_| RepositoryError::Closed)
    }

    /// What waits to be written.
    pub(super) fn backpressure(&self) -> Backpressure {
        self.queue.backpressure()
    }

    /// Lets nothing more in; the thread ends when it has written what waits.
    pub(super) fn close(&self) {
        self.queue.close();
    }
}

/// The thread's end.
pub(super) struct WriterThread {
    queue: Arc<Queue<Waiting>>,
    connection: Connection,
    memory: Memory,
    patience: Patience,
    place: Place,
    answers: Answers,
    log: Log,
    /// What could not be written yet, in order.
    kept: Vec<Waiting>,
    /// What the disk had for what was written last.
    room: Room,
}

impl WriterThread {
    pub(super) fn new(
        writer: &Writer,
        connection: Connection,
        memory: Memory,
        patience: Patience,
        place: Place,
    ) -> std::io::Result<WriterThread> {
        let (queue, answers) = (Arc::clone(&writer.queue), Answers::start()?);
        let (log, kept, room) = (Log::beside(place.path()), Vec::new(), Room::Unknown);
        Ok(WriterThread { queue, connection, memory, patience, place, answers, log, kept, room })
    }

    /// Writes until the queue is closed and empty, then leaves a file without a log behind it.
    pub(super) fn serve(mut self) {
        // It cannot fail: a number is stored.
        let _ = self.connection.busy_timeout(LOCK_TURN.min(self.patience.busy));
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
        // Best effort: the next process that opens the file does it otherwise.
        let _ = self.connection.pragma_update(None, "wal_checkpoint", "TRUNCATE");
    }

    /// Writes, whatever happens: a panic, even of the host's logger, costs the changes under way, not the thread.
    fn write_all(&mut self, urgent: Vec<Waiting>, ordinary: Vec<Waiting>) {
        let written = catch_unwind(AssertUnwindSafe(|| self.write_kept(urgent, ordinary)));
        if let Err(payload) = written {
            // Dropping a payload may itself panic. Whoever was not told learns that the answer is lost.
            std::mem::forget(payload);
            self.roll_back();
        }
        self.queue.hold(self.kept.iter().map(|waiting| waiting.order.bytes + CHANGE_BYTES).sum());
        match std::mem::replace(&mut self.room, Room::Unknown) {
            Room::TooLittle => self.queue.set_disk_full(true),
            Room::Enough if self.kept.is_empty() => self.queue.set_disk_full(false),
            Room::Enough | Room::Unknown => {}
        }
    }

    /// Writes what is urgent, then what was kept, then what came, in groups of bounded size.
    fn write_kept(&mut self, urgent: Vec<Waiting>, ordinary: Vec<Waiting>) {
        let is_urgent = |waiting: &Waiting| waiting.order.lane == Lane::Urgent;
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

    /// Writes a group; gives the error back if the file is locked.
    fn write(&mut self, mut group: Vec<Waiting>) -> Option<rusqlite::Error> {
        // What is written to a file that nobody can find again is lost, however durable.
        if self.place.check().is_err() {
            self.settle_gone(group);
            return None;
        }
        match self.transact_in_room(&mut group) {
            // It may have been taken away while this waited for the lock.
            Ok(()) if self.place.check().is_err() => self.settle_gone(group),
            Ok(()) => {
                group.iter().for_each(|waiting| point(waiting.order.verb, Stage::Committed));
                self.answers.tell(group);
            }
            Err(trouble) if group.len() > 1 && !trouble.is_lock() => self.write_singly(group),
            Err(Trouble::Panicked) => {
                group
                    .into_iter()
                    .for_each(|waiting| self.fail(waiting, RepositoryError::storage("the writer panicked")));
            }
            Err(Trouble::Sqlite(error)) => {
                let is_lock = matches!(failure_of(&error), RepositoryError::Busy);
                group.into_iter().for_each(|waiting| self.keep_or_settle(waiting, &error));
                return is_lock.then_some(error);
            }
        }
        None
    }

    /// Runs each change in a transaction of its own, so that only the one at fault fails.
    fn write_singly(&mut self, group: Vec<Waiting>) {
        let mut behind: HashSet<AttemptKey> = HashSet::new();
        let mut locked = None;
        for waiting in group {
            let attempt = waiting.order.attempt;
            if let Some(error) = &locked {
                // A lock is nobody's fault: all wait for it together.
                self.keep_or_settle(waiting, error);
            } else if attempt.is_some_and(|attempt| behind.contains(&attempt)) {
                self.kept.push(waiting);
            } else {
                let kept_before = self.kept.len();
                locked = self.write(vec![waiting]);
                if self.kept.len() > kept_before {
                    behind.extend(attempt);
                }
            }
        }
    }

    /// Keeps a change that failed for a passing reason, or tells its caller.
    fn keep_or_settle(&mut self, waiting: Waiting, error: &rusqlite::Error) {
        let failure = failure_of(error);
        let is_of_attempt = waiting.order.attempt.is_some();
        let patience = match failure {
            RepositoryError::Busy if is_of_attempt => self.patience.busy.max(self.patience.failing),
            RepositoryError::Busy => self.patience.busy,
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
    fn fail(&mut self, waiting: Waiting, failure: RepositoryError) {
        if let Some((attempt, messages)) = waiting.change.messages_at_stake() {
            self.memory.lose_messages(attempt, messages);
        }
        waiting.change.settle(Some(failure));
    }

    fn settle_gone(&mut self, group: Vec<Waiting>) {
        for waiting in group {
            let gone = self.place.gone();
            self.fail(waiting, gone);
        }
    }

    /// The same as [`transact`](WriterThread::transact); what the log takes of a full disk is given back first.
    fn transact_in_room(&mut self, group: &mut Vec<Waiting>) -> std::result::Result<(), Trouble> {
        let mut made = self.transact(group);
        if made.as_ref().is_err_and(Trouble::is_full) && self.log.empty(&self.connection) {
            made = self.transact(group);
        }
        match &made {
            Ok(()) => {
                self.log.keep_small(&self.connection);
                if self.room == Room::Unknown {
                    self.room = Room::Enough;
                }
            }
            Err(trouble) if trouble.is_full() => self.room = Room::TooLittle,
            Err(_) => {}
        }
        made
    }

    /// Makes all changes of a group in one transaction, or none.
    fn transact(&mut self, group: &mut Vec<Waiting>) -> std::result::Result<(), Trouble> {
        let (connection, memory) = (&self.connection, &mut self.memory);
        let attempted = catch_unwind(AssertUnwindSafe(|| {
            let transaction =
                rusqlite::Transaction::new_unchecked(connection, rusqlite::TransactionBehavior::Immediate)?;
            // What became urgent while this waited for the lock, behind what was so before.
            let urgent = group.iter().take_while(|waiting| waiting.order.lane == Lane::Urgent).count();
            group.splice(urgent..urgent, self.queue.take_urgent());
            let mut book = Book::open(connection, memory)?;
            for waiting in group.iter_mut() {
                waiting.change.apply(&mut book)?;
                // After some errors SQLite has rolled back by itself, and what follows would be no transaction.
                if connection.is_autocommit() {
                    return Err(storage_failure("the transaction was rolled back".to_owned()));
                }
                point(waiting.order.verb, Stage::Inside);
            }
            transaction.commit()
        }));
        let trouble = match attempted {
            Ok(Ok(())) => {
                self.memory.forget_ended();
                return Ok(());
            }
            Ok(Err(error)) => Trouble::Sqlite(error),
            Err(payload) => {
                log::error!("the writer panicked: {}", message_of(&*payload));
                // Dropping a payload may itself panic.
                std::mem::forget(payload);
                Trouble::Panicked
            }
        };
        self.roll_back();
        Err(trouble)
    }

    fn roll_back(&mut self) {
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.memory.forget_uncommitted();
    }
}

impl Drop for WriterThread {
    /// Should the thread end in any other way than in order, nobody waits for it.
    fn drop(&mut self) {
        self.queue.close();
        while self.queue.take(Some(Duration::ZERO)).is_some() {}
    }
}

enum Trouble {
    Sqlite(rusqlite::Error),
    Panicked,
}

impl Trouble {
    fn is_lock(&self) -> bool {
        matches!(self, Trouble::Sqlite(error) if matches!(failure_of(error), RepositoryError::Busy))
    }

    fn is_full(&self) -> bool {
        matches!(self, Trouble::Sqlite(error) if matches!(failure_of(error), RepositoryError::StorageFull))
    }
}

fn message_of(payload: &(dyn Any + Send)) -> &str {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}

/// What an error of SQLite means to a caller.
pub(super) fn failure_of(error: &rusqlite::Error) -> RepositoryError {
    let code = match error {
        rusqlite::Error::SqliteFailure(failure, _) => Some(failure.code),
        _ => None,
    };
    match code {
        Some(ErrorCode::DiskFull) => RepositoryError::StorageFull,
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => RepositoryError::Busy,
        Some(ErrorCode::ReadOnly) => RepositoryError::ReadOnly,
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            RepositoryError::corrupt("the database file", 0, error.to_string())
        }
        _ => RepositoryError::storage(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use crate::job::NewJob;
    use crate::repository::sqlite::open;
    use std::path::Path;

    /// A change that is made, and panics when that is told.
    struct Untellable;

    impl Change for Untellable {
        fn apply(&mut self, _book: &mut Book<'_>) -> rusqlite::Result<()> {
            Ok(())
        }

        fn settle(self: Box<Self>, _failure: Option<RepositoryError>) {
            panic!("as planned");
        }
    }

    fn writer_on(path: &Path) -> (Writer, WriterThread) {
        let place = open::find_or_create(path).unwrap();
        let connection = open::writing_connection(&place, &crate::clock::SystemClock, Duration::from_secs(5)).unwrap();
        let writer = Writer::new();
        let patience = Patience { busy: Duration::from_secs(5), failing: Duration::ZERO };
        let thread = WriterThread::new(&writer, connection, Memory::new(true), patience, place).unwrap();
        (writer, thread)
    }

    #[test]
    fn a_panic_outside_the_transaction_costs_neither_the_thread_nor_anybody_else_an_answer() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, thread) = writer_on(&folder.path().join("a.db"));
        let serving = std::thread::spawn(move || thread.serve());
        for number in 0..50 {
            writer.send(Order::new("untellable"), Box::new(Untellable)).unwrap();
            assert_eq!(writer.run(Order::new("number"), move |_| Ok(number)).unwrap(), number);
        }
        writer.close();
        serving.join().unwrap();
    }

    #[test]
    fn what_sqlite_rolls_back_by_itself_fails_alone_and_the_rest_of_its_group_is_a_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, thread) = writer_on(&folder.path().join("a.db"));
        let job = |name: &'static str| {
            let (promise, answer) = promise();
            let now = SystemClock.now();
            let work = move |book: &mut Book<'_>| book.create_job(now, &NewJob::named(name));
            writer.send(Order::new("create_job"), Box::new(Awaited { work, answer: None, promise })).unwrap();
            answer
        };
        // All wait before the thread begins, so that they are one group.
        let first = job("first");
        let (promise, rolled_back) = promise();
        let work = |book: &mut Book<'_>| Ok(book.connection.execute_batch("ROLLBACK")?);
        writer.send(Order::new("rolled back"), Box::new(Awaited { work, answer: None, promise })).unwrap();
        let last = job("last");
        writer.close();
        thread.serve();
        assert_eq!(first.wait().unwrap().id.0, 1);
        assert!(matches!(rolled_back.wait(), Err(RepositoryError::Storage(_))));
        assert_eq!(last.wait().unwrap().id.0, 2);
    }

    #[test]
    fn a_thread_that_is_gone_leaves_nobody_waiting() {
        let folder = tempfile::tempdir().unwrap();
        let (writer, thread) = writer_on(&folder.path().join("a.db"));
        let waiting = std::thread::spawn({
            let writer = writer.clone();
            move || writer.run(Order::new("never"), |_| Ok(()))
        });
        drop(thread);
        assert!(matches!(waiting.join().unwrap(), Err(RepositoryError::Closed)));
        assert!(matches!(writer.run(Order::new("never"), |_| Ok(())), Err(RepositoryError::Closed)));
    }
}
