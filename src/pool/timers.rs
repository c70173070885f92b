//! What is to happen when: one ordered set, kept under the ready lock and served by the supervisor.

use std::collections::BTreeSet;

use super::capacity::WorkerNumber;
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
    /// A hold ends by itself.
    HoldEnds,
    /// Whoever still executes while the pool stops is left behind.
    StopGrace,
}

/// The alarms in the order of their times, in milliseconds of the pool's clock.
#[derive(Debug, Default)]
pub(super) struct Timers(BTreeSet<(i64, Alarm)>);

impl Timers {
    /// Sets an alarm, and says whether it is now the first: then the supervisor must hear of it.
    pub(super) fn set(&mut self, at_ms: i64, alarm: Alarm) -> bool {
        self.0.insert((at_ms, alarm));
        self.0.first() == Some(&(at_ms, alarm))
    }

    pub(super) fn clear(&mut self, at_ms: i64, alarm: Alarm) {
        self.0.remove(&(at_ms, alarm));
    }

    /// Takes out the next alarm that is due.
    pub(super) fn pop_due(&mut self, now_ms: i64) -> Option<Alarm> {
        let &(at_ms, _) = self.0.first()?;
        if at_ms > now_ms {
            return None;
        }
        self.0.pop_first().map(|(_, alarm)| alarm)
    }

    /// When the next alarm is due.
    pub(super) fn next_ms(&self) -> Option<i64> {
        self.0.first().map(|&(at_ms, _)| at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alarms_come_in_order_and_not_before_their_time() {
        let mut timers = Timers::default();
        assert!(timers.set(20, Alarm::HoldEnds));
        assert!(timers.set(10, Alarm::StopGrace));
        assert!(!timers.set(30, Alarm::Retry(UnitKey(1))));
        timers.clear(20, Alarm::HoldEnds);
        assert_eq!(timers.next_ms(), Some(10));
        assert_eq!(timers.pop_due(9), None);
        assert_eq!(timers.pop_due(30), Some(Alarm::StopGrace));
        assert_eq!(timers.pop_due(30), Some(Alarm::Retry(UnitKey(1))));
        assert_eq!(timers.pop_due(i64::MAX), None);
    }
}
