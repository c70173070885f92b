//! The units that a pool took upon itself, and what became of them. Plain data under the ready lock.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use super::capacity::WorkerNumber;
use super::line::{Claimable, Line, Next};
use super::open_unit::OpenUnit;
use super::queue::Queue;
use super::sessions::{Rooms, Turn};
use crate::attempt::AttemptKey;
use crate::money::{Charge, Cost, Tokens};
use crate::unit::{UnitKey, UnitStatus};

/// Where an open unit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A worker has it.
    Running,
    /// It waits for its next attempt.
    Waiting { until_ms: i64 },
    /// Its time has come, and it waits for a place.
    Due,
    /// It has a place, and is being claimed for it.
    Picked,
}

/// How a unit left the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Left {
    /// It ended.
    Ended(UnitStatus),
    /// The pool stopped first.
    Pending,
    /// Somebody else has it.
    Lost,
    /// Its end could not be stored.
    Unrecorded,
}

#[derive(Debug)]
struct Entry {
    unit: Arc<OpenUnit>,
    claimable: Claimable,
    standing: Standing,
    /// Whether it was its turn before. Then it keeps its place, also while it waits for something else.
    was_due: bool,
    /// The last attempt that is known of it. What an earlier one has to say comes too late.
    attempt_number: u32,
    /// The session that it has told of, while a worker has it.
    told: Option<Arc<str>>,
    /// How often somebody brought it. What was read of it before the last time is no longer so.
    arrivals: u64,
}

impl Entry {
    /// When it is looked at, if it waits for its time.
    fn until_ms(&self) -> Option<i64> {
        match self.standing {
            Standing::Waiting { until_ms } => Some(until_ms),
            Standing::Running | Standing::Due | Standing::Picked => None,
        }
    }

    /// Where it stands in line.
    fn turn(&self) -> Turn {
        match self.standing {
            Standing::Running | Standing::Picked => Turn::Runs,
            Standing::Due => Turn::Waits { is_due: true },
            Standing::Waiting { .. } if self.was_due || self.attempt_number > 0 => Turn::Waits { is_due: false },
            Standing::Waiting { .. } => Turn::None,
        }
    }
}

/// A call that submits a unit, so that another one for the same id finds it.
#[derive(Debug)]
struct Submission {
    unit: Arc<OpenUnit>,
    callers: usize,
    /// How often the unit has begun or left here meanwhile: what was read of it before that is no longer so.
    changes: u64,
}

/// What the pool has done so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) queued: u64,
    pub(super) saturated: u64,
    pub(super) queue_timeouts: u64,
    pub(super) errors: u64,
    pub(super) accepted: u64,
    pub(super) completed: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) left_pending: u64,
    pub(super) lost: u64,
    pub(super) attempts: u64,
    pub(super) retried: u64,
    pub(super) tokens: Tokens,
    pub(super) cost: Cost,
}

/// The units that are open, by their keys, and the sums over all that ever were.
#[derive(Debug)]
pub(super) struct Ledger {
    open: HashMap<UnitKey, Entry>,
    /// Those of the open ones that are due, in order.
    pub(super) line: Line,
    /// Those of the open ones that wait in line for their first attempt.
    pub(super) queue: Queue,
    /// Units that have ended and whose callbacks have not. One that was requeued by its callback may be open again too.
    reporting: HashMap<UnitKey, Vec<(Arc<OpenUnit>, Left)>>,
    submitting: HashMap<String, Submission>,
    /// Units that others execute and somebody here waits for.
    watched: HashMap<UnitKey, Weak<OpenUnit>>,
    /// Alarms of units that waited for their time and do not any more.
    idle_alarms: Vec<(UnitKey, i64)>,
    pub(super) totals: Totals,
}

impl Ledger {
    pub(super) fn new(max_queue_size: usize, sessions_for_ms: i64) -> Ledger {
        Ledger {
            open: HashMap::new(),
            line: Line::new(sessions_for_ms),
            queue: Queue::new(max_queue_size),
            reporting: HashMap::new(),
            submitting: HashMap::new(),
            watched: HashMap::new(),
            idle_alarms: Vec::new(),
            totals: Totals::default(),
        }
    }

    /// Begins to submit a unit of this id. All who submit it at the same time share what they will see of it.
    pub(super) fn begin_submission(&mut self, id: &str) -> Arc<OpenUnit> {
        let submission = self.submitting.entry(id.to_owned()).or_insert_with(|| Submission {
            unit: Arc::new(OpenUnit::new(id)),
            callers: 0,
            changes: 0,
        });
        submission.callers += 1;
        Arc::clone(&submission.unit)
    }

    /// Ends what [`begin_submission`](Ledger::begin_submission) began.
    pub(super) fn end_submission(&mut self, id: &str) {
        let Some(submission) = self.submitting.get_mut(id) else { return };
        submission.callers -= 1;
        if submission.callers == 0 {
            self.submitting.remove(id);
        }
    }

    pub(super) fn get(&self, key: UnitKey) -> Option<Arc<OpenUnit>> {
        let reporting = || self.reporting.get(&key).and_then(|units| units.last()).map(|(unit, _)| unit);
        self.open.get(&key).map(|entry| &entry.unit).or_else(reporting).cloned()
    }

    /// An open unit, and how often it was brought here.
    pub(super) fn arrivals(&self, key: UnitKey) -> Option<(Arc<OpenUnit>, u64)> {
        self.open.get(&key).map(|entry| (Arc::clone(&entry.unit), entry.arrivals))
    }

    /// Whether the pool has taken a unit upon itself, and it has not left.
    pub(super) fn is_open(&self, key: UnitKey) -> bool {
        self.open.contains_key(&key)
    }

    /// What those share who are submitting a unit of this id.
    pub(super) fn submitting(&self, id: &str) -> Option<Arc<OpenUnit>> {
        self.submitting.get(id).map(|submission| Arc::clone(&submission.unit))
    }

    /// How often a unit has begun or left here while it is being submitted.
    pub(super) fn changes(&self, id: &str) -> u64 {
        self.submitting.get(id).map_or(0, |submission| submission.changes)
    }

    /// Whether an open unit is being submitted once more.
    pub(super) fn is_submitted(&self, key: UnitKey) -> bool {
        self.open.get(&key).is_some_and(|entry| self.submitting.contains_key(entry.unit.id()))
    }

    /// A unit that was claimed here. One that nobody has told of yet is what those who are storing it see.
    pub(super) fn run_claimed(
        &mut self,
        key: UnitKey,
        id: &str,
        claimable: &Claimable,
        attempt_number: u32,
    ) -> Arc<OpenUnit> {
        let unit = self.submitting(id).unwrap_or_else(|| Arc::new(OpenUnit::new(id)));
        self.stand(key, (&unit, claimable), attempt_number, Standing::Running)
    }

    /// Whether a worker has an open unit.
    pub(super) fn is_running(&self, key: UnitKey) -> bool {
        self.open.get(&key).is_some_and(|entry| entry.standing == Standing::Running)
    }

    /// Whether a worker has an open unit in this very attempt.
    pub(super) fn is_running_in(&self, attempt: AttemptKey) -> bool {
        let is_in = |entry: &Entry| entry.standing == Standing::Running && entry.attempt_number == attempt.number;
        self.open.get(&attempt.unit).is_some_and(is_in)
    }

    /// An attempt tells which session it is in, if it still runs; says whether it does. Of several the last counts.
    pub(super) fn tell_session(
        &mut self,
        attempt: AttemptKey,
        key: &Arc<str>,
        worker: WorkerNumber,
        now_ms: i64,
    ) -> bool {
        if !self.is_running_in(attempt) {
            return false;
        }
        let Some(entry) = self.open.get_mut(&attempt.unit) else { return false };
        let before = entry.told.replace(Arc::clone(key)).filter(|before| before != key);
        self.line.sessions.tell(key, worker, attempt.unit, now_ms);
        if let Some(before) = before {
            self.line.sessions.end_telling(&before, attempt.unit);
        }
        true
    }

    /// Whether an attempt comes after all that are known of an open unit.
    pub(super) fn is_later(&self, key: UnitKey, attempt_number: u32) -> bool {
        self.open.get(&key).is_some_and(|entry| entry.attempt_number < attempt_number)
    }

    /// Takes a unit upon the pool, unless it is there already, and says where it stands after an attempt, unless a later
    /// one has begun. Returns what those see of it who wait for it here.
    pub(super) fn stand(
        &mut self,
        key: UnitKey,
        (unit, claimable): (&Arc<OpenUnit>, &Claimable),
        attempt_number: u32,
        standing: Standing,
    ) -> Arc<OpenUnit> {
        let entry = self.open.entry(key).or_insert_with(|| {
            self.totals.accepted += 1;
            // What was another's, and waited for, is this pool's now.
            let watched = self.watched.remove(&key).and_then(|watched| watched.upgrade());
            let unit = watched.unwrap_or_else(|| Arc::clone(unit));
            let claimable = claimable.clone();
            Entry { unit, claimable, standing, was_due: false, attempt_number, told: None, arrivals: 0 }
        });
        entry.arrivals += 1;
        if entry.attempt_number <= attempt_number {
            if (entry.standing, entry.attempt_number) != (standing, attempt_number)
                && let Some(told) = entry.told.take()
            {
                self.line.sessions.end_telling(&told, key);
            }
            let before_ms = entry.until_ms();
            entry.standing = standing;
            entry.attempt_number = attempt_number;
            let idle_ms = before_ms.filter(|_| entry.until_ms() != before_ms);
            self.idle_alarms.extend(idle_ms.map(|at_ms| (key, at_ms)));
            self.line.stand(key, &entry.claimable, entry.turn());
            if standing == Standing::Running {
                self.queue.leave(key);
                if let Some(submission) = self.submitting.get_mut(entry.unit.id()) {
                    submission.changes += 1;
                }
            }
        }
        Arc::clone(&entry.unit)
    }

    /// A unit waits for its time after an attempt. `false` if it has left since, or if a later attempt has begun.
    pub(super) fn wait_after(&mut self, key: UnitKey, attempt_number: u32, until_ms: i64) -> bool {
        let is_of_attempt =
            |entry: &&mut Entry| entry.standing == Standing::Running && entry.attempt_number == attempt_number;
        let Some(entry) = self.open.get_mut(&key).filter(is_of_attempt) else { return false };
        entry.standing = Standing::Waiting { until_ms };
        self.line.stand(key, &entry.claimable, entry.turn());
        if let Some(told) = entry.told.take() {
            self.line.sessions.end_telling(&told, key);
        }
        true
    }

    /// What is known here of a unit that is being executed; if it is another's, it is watched from now on.
    pub(super) fn attach(&mut self, key: UnitKey, unit: &Arc<OpenUnit>) -> Arc<OpenUnit> {
        let watched = || self.watched.get(&key).and_then(Weak::upgrade);
        if let Some(known) = self.get(key).or_else(watched) {
            return known;
        }
        self.watched.insert(key, Arc::downgrade(unit));
        Arc::clone(unit)
    }

    /// The units that others execute and somebody here still waits for.
    pub(super) fn watched(&mut self) -> Vec<(UnitKey, Arc<OpenUnit>)> {
        self.watched.retain(|_, unit| unit.strong_count() > 0);
        self.watched.iter().filter_map(|(&key, unit)| Some((key, unit.upgrade()?))).collect()
    }

    /// A unit need not be watched any more; says whether it was.
    pub(super) fn unwatch(&mut self, key: UnitKey) -> bool {
        self.watched.remove(&key).is_some()
    }

    /// A unit that waited for its time is due; says whether it was still waiting for that.
    pub(super) fn fall_due(&mut self, key: UnitKey, now_ms: i64) -> bool {
        let Some(entry) = self.open.get_mut(&key) else { return false };
        let was_waiting = matches!(entry.standing, Standing::Waiting { until_ms } if until_ms <= now_ms);
        if was_waiting {
            (entry.standing, entry.was_due) = (Standing::Due, true);
            self.line.stand(key, &entry.claimable, entry.turn());
        }
        was_waiting
    }

    /// A unit that was due waits once more; says whether it was.
    pub(super) fn wait_again(&mut self, key: UnitKey, until_ms: i64) -> bool {
        let was_due = |entry: &&mut Entry| matches!(entry.standing, Standing::Due | Standing::Picked);
        let Some(entry) = self.open.get_mut(&key).filter(was_due) else { return false };
        entry.standing = Standing::Waiting { until_ms };
        self.line.stand(key, &entry.claimable, entry.turn());
        true
    }

    /// A unit that waits was claimed before, of which nobody here knows any more: it keeps its place.
    pub(super) fn keep_place(&mut self, key: UnitKey) {
        let is_waiting = |entry: &&mut Entry| matches!(entry.standing, Standing::Waiting { .. });
        if let Some(entry) = self.open.get_mut(&key).filter(is_waiting) {
            entry.was_due = true;
            self.line.stand(key, &entry.claimable, entry.turn());
        }
    }

    /// The alarms of units that need not ring any more.
    pub(super) fn take_idle_alarms(&mut self) -> Vec<(UnitKey, i64)> {
        std::mem::take(&mut self.idle_alarms)
    }

    /// The units that are due, or about to be claimed.
    pub(super) fn due(&self) -> Vec<UnitKey> {
        let is_due = |entry: &Entry| matches!(entry.standing, Standing::Due | Standing::Picked);
        self.open.iter().filter(|(_, entry)| is_due(entry)).map(|(&key, _)| key).collect()
    }

    /// The units that wait for their time or for a place, in no order. Those that are being claimed are not among them.
    pub(super) fn waiting(&self) -> Vec<UnitKey> {
        let is_waiting = |entry: &Entry| matches!(entry.standing, Standing::Waiting { .. } | Standing::Due);
        self.open.iter().filter(|(_, entry)| is_waiting(entry)).map(|(&key, _)| key).collect()
    }

    /// A unit that had a place has none after all: it is its turn again.
    pub(super) fn unpick(&mut self, key: UnitKey) {
        if let Some(entry) = self.open.get_mut(&key).filter(|entry| entry.standing == Standing::Picked) {
            entry.standing = Standing::Due;
            self.line.stand(key, &entry.claimable, entry.turn());
        }
    }

    /// Whose turn it is, if these workers have room; and the key of its session.
    pub(super) fn next(&self, rooms: &impl Rooms) -> Option<(Next, &Claimable)> {
        let next = self.line.next(rooms)?;
        Some((next, &self.open.get(&next.unit)?.claimable))
    }

    /// A unit has a place, and is about to be claimed for it.
    pub(super) fn pick(&mut self, key: UnitKey) -> Option<Arc<OpenUnit>> {
        let entry = self.open.get_mut(&key)?;
        entry.standing = Standing::Picked;
        self.line.stand(key, &entry.claimable, entry.turn());
        Some(Arc::clone(&entry.unit))
    }

    /// Counts how a unit left after an attempt. If it ended, it stays open until its callback has. `None` if it has left
    /// before, or if a later attempt has begun.
    pub(super) fn leave(&mut self, key: UnitKey, attempt_number: u32, left: Left) -> Option<Arc<OpenUnit>> {
        self.open.get(&key).filter(|entry| entry.attempt_number <= attempt_number)?;
        let entry = self.open.remove(&key)?;
        self.idle_alarms.extend(entry.until_ms().map(|at_ms| (key, at_ms)));
        let Entry { unit, claimable, told, .. } = entry;
        self.line.stand(key, &claimable, Turn::None);
        if let Some(told) = told {
            self.line.sessions.end_telling(&told, key);
        }
        self.queue.leave(key);
        if let Some(submission) = self.submitting.get_mut(unit.id()) {
            submission.changes += 1;
        }
        let total = match left {
            Left::Ended(UnitStatus::Completed) => &mut self.totals.completed,
            Left::Ended(UnitStatus::Failed) => &mut self.totals.failed,
            Left::Ended(_) => &mut self.totals.cancelled,
            Left::Pending => &mut self.totals.left_pending,
            Left::Lost | Left::Unrecorded => &mut self.totals.lost,
        };
        *total += 1;
        if matches!(left, Left::Ended(_)) {
            self.reporting.entry(key).or_default().push((Arc::clone(&unit), left));
        }
        Some(unit)
    }

    /// A unit's callback has run.
    pub(super) fn close(&mut self, key: UnitKey, unit: &Arc<OpenUnit>) {
        if let Some(units) = self.reporting.get_mut(&key) {
            units.retain(|(other, _)| !Arc::ptr_eq(other, unit));
            if units.is_empty() {
                self.reporting.remove(&key);
            }
        }
    }

    /// Units that have ended and whose callbacks have not, and how they ended.
    pub(super) fn reporting(&self) -> Vec<(Arc<OpenUnit>, Left)> {
        self.reporting.values().flatten().cloned().collect()
    }

    /// Everything that waits leaves, because the pool stops; but not what is just being submitted once more: it may have been claimed
    /// for that, and then it is executed.
    pub(super) fn leave_waiting(&mut self) -> Vec<Arc<OpenUnit>> {
        self.leave_pending(|entry, is_submitted| entry.standing != Standing::Running && !is_submitted)
    }

    /// Everything leaves that is still open, because nobody works any more.
    pub(super) fn leave_all(&mut self) -> Vec<Arc<OpenUnit>> {
        self.leave_pending(|_, _| true)
    }

    /// Leaves what is meant, by what is known of it and by whether it is being submitted once more.
    fn leave_pending(&mut self, is_meant: impl Fn(&Entry, bool) -> bool) -> Vec<Arc<OpenUnit>> {
        let is_submitted = |entry: &Entry| self.submitting.contains_key(entry.unit.id());
        let meant = self.open.iter().filter(|(_, entry)| is_meant(entry, is_submitted(entry)));
        let keys: BTreeSet<UnitKey> = meant.map(|(&key, _)| key).collect();
        keys.into_iter().filter_map(|key| self.leave(key, u32::MAX, Left::Pending)).collect()
    }

    /// Adds what an attempt used.
    pub(super) fn charge(&mut self, charges: &[Charge]) {
        for charge in charges {
            self.totals.tokens += charge.tokens;
            self.totals.cost = self.totals.cost + charge.cost();
        }
    }

    /// Whether nothing is open.
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.reporting.is_empty()
    }

    /// Whether all that is open has ended, and only its callbacks have not.
    pub(super) fn is_only_reporting(&self) -> bool {
        self.open.is_empty()
    }

    /// How many units wait, and how many a worker has.
    pub(super) fn pending_and_running(&self) -> (u64, u64) {
        let count =
            |wanted: fn(Standing) -> bool| self.open.values().filter(|entry| wanted(entry.standing)).count() as u64;
        let pending = count(|standing| standing != Standing::Running);
        (pending, count(|standing| standing == Standing::Running))
    }

    /// How many units are open.
    pub(super) fn open_count(&self) -> usize {
        self.open.len()
    }

    /// Whether all that is open only waits.
    pub(super) fn is_only_waiting(&self) -> bool {
        let is_waiting = |entry: &Entry| entry.standing != Standing::Running;
        self.reporting.is_empty() && self.open.values().all(is_waiting)
    }
}
