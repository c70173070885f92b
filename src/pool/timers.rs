//! What is to happen when: one ordered set, kept under the ready lock and served by the supervisor.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::capacity::WorkerNumber;
use crate::clock::Moment;
use crate::unit::UnitKey;

/// Something that becomes due.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Alarm {
    /// An execution has used up its time, or its grace after that.
    Execution { worker: WorkerNumber, run: u64 },
    /// A place that a thread was promised was not used.
    Reservation(u64),
    /// A unit may be tried again.
    Retry(UnitKey),
    /// A unit has waited in line for too long.
    QueueTimeout(UnitKey),
    /// The leases end soon, and whether they were renewed is not known.
    Renewal,
    /// Other processes may have queued units, or died.
    Poll,
    /// It is to be looked again for units that wait for anybody.
    Look,
    /// A hold ends by itself.
    HoldEnds,
    /// A worker that was started this way is to be up.
    Startup { worker: WorkerNumber, start: u64 },
    /// The next workers may start.
    NextBatch,
    /// Workers are missing, perhaps.
    Reconcile,
    /// A worker may have been idle for too long.
    Idle,
    /// A worker is as old as it may become.
    WorkerAge(WorkerNumber),
    /// A worker that crashed may be used again.
    TaintEnds(WorkerNumber),
    /// A worker that has ended may be forgotten.
    Forget(WorkerNumber),
    /// Whoever is still on its way up while the pool stops is left behind.
    StartGrace,
    /// Whoever still executes while the pool stops is left behind.
    StopGrace,
}

/// The alarms in the order of their times, in milliseconds of the pool's clock.
#[derive(Debug)]
pub(super) struct Timers {
    /// All but those of [`Alarm::Retry`].
    alarms: BTreeSet<(i64, Alarm)>,
    /// Apart from the others: they are taken out all at once.
    retries: BTreeSet<(i64, UnitKey)>,
    /// When the supervisor looks again by itself, if nobody wakes it.
    looks_at_ms: i64,
}

impl Timers {
    /// No alarms, and a supervisor that has yet to look.
    pub(super) fn new() -> Timers {
        Timers { alarms: BTreeSet::new(), retries: BTreeSet::new(), looks_at_ms: i64::MIN }
    }

    /// Sets an alarm, and says whether the supervisor must be woken for it. Most of the time it need not: it
    /// sleeps until an earlier one, which may be gone by then, and looks again.
    pub(super) fn set(&mut self, at_ms: i64, alarm: Alarm) -> bool {
        match alarm {
            Alarm::Retry(unit) => self.retries.insert((at_ms, unit)),
            alarm => self.alarms.insert((at_ms, alarm)),
        };
        let is_early = at_ms < self.looks_at_ms;
        self.looks_at_ms = self.looks_at_ms.min(at_ms);
        is_early
    }

    pub(super) fn clear(&mut self, at_ms: i64, alarm: Alarm) {
        match alarm {
            Alarm::Retry(unit) => self.retries.remove(&(at_ms, unit)),
            alarm => self.alarms.remove(&(at_ms, alarm)),
        };
    }

    /// Takes out the next alarm that is due, but no [`Alarm::Retry`].
    pub(super) fn pop_due(&mut self, now_ms: i64) -> Option<Alarm> {
        let &(at_ms, _) = self.alarms.first()?;
        if at_ms > now_ms {
            return None;
        }
        self.alarms.pop_first().map(|(_, alarm)| alarm)
    }

    /// Takes out all units whose time has come.
    pub(super) fn take_retries(&mut self, now_ms: i64) -> Vec<UnitKey> {
        let mut due = Vec::new();
        while let Some(&(at_ms, unit)) = self.retries.first().filter(|&&(at_ms, _)| at_ms <= now_ms) {
            self.retries.remove(&(at_ms, unit));
            due.push(unit);
        }
        due
    }

    /// When the next alarm is due; the supervisor promises to look again then.
    pub(super) fn next_ms(&mut self) -> Option<i64> {
        let alarm_ms = self.alarms.first().map(|&(at_ms, _)| at_ms);
        let retry_ms = self.retries.first().map(|&(at_ms, _)| at_ms);
        let next_ms = alarm_ms.into_iter().chain(retry_ms).min();
        self.looks_at_ms = next_ms.unwrap_or(i64::MAX);
        next_ms
    }
}

/// A time of the calendar as the pool's clock has it.
pub(super) fn boot_ms_of(time: DateTime<Utc>, now: Moment) -> i64 {
    now.boot_ms.saturating_add((time - now.wall).num_milliseconds().max(0))
}

/// When a unit may be claimed that is not to be claimed before a time, if that is set.
pub(super) fn due_ms(not_before: Option<DateTime<Utc>>, now: Moment) -> i64 {
    not_before.map_or(now.boot_ms, |time| boot_ms_of(time, now))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_come_in_order_and_not_before_their_time() {
        let mut timers = Timers::new();
        timers.set(20, Alarm::HoldEnds);
        timers.set(10, Alarm::StopGrace);
        timers.set(30, Alarm::Retry(UnitKey(1)));
        timers.clear(20, Alarm::HoldEnds);
        assert_eq!(timers.next_ms(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.take_retries(29), []);
        assert_eq!(timers.take_retries(30), [UnitKey(1)]);
        assert_eq!(timers.pop_due(30), Some(Alarm::StopGrace));
        assert_eq!(timers.pop_due(i64::MAX), None);
    }

    #[test]
    fn units_that_wait_are_taken_out_all_at_once_and_apart_from_the_alarms_before_them() {
        let mut timers = Timers::new();
        for unit in 0..3 {
            timers.set(10, Alarm::QueueTimeout(UnitKey(unit)));
            timers.set(20, Alarm::Retry(UnitKey(unit)));
        }
        // As the supervisor does it.
        let pop = || {
            assert_eq!(timers.take_retries(10), []);
            timers.pop_due(10)
        };
        assert_eq!(std::iter::from_fn(pop).count(), 3);
        assert_eq!(timers.next_ms(), Some(20));
        assert_eq!(timers.take_retries(20), [0, 1, 2].map(UnitKey));
    }

    #[test]
    fn the_supervisor_is_woken_only_for_what_comes_before_it_looks_again() {
        let mut timers = Timers::new();
        assert_eq!(timers.next_ms(), None);
        assert!(timers.set(20, Alarm::HoldEnds));
        assert!(timers.set(10, Alarm::StopGrace));
        assert!(!timers.set(30, Alarm::Retry(UnitKey(1))));
        assert_eq!(timers.next_ms(), Some(10));
        timers.clear(10, Alarm::StopGrace);
        assert!(!timers.set(15, Alarm::StopGrace), "it looks at 10 anyway");
        assert!(timers.set(5, Alarm::Retry(UnitKey(2))));
    }
}
