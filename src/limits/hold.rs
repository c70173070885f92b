//! Holds: until when a provider is not to be asked, as it has said itself.
//!
//! Whoever hears it stores it, and every process on the same repository that works for the same provider starts nothing before that. A hold
//! without an end, such as for a key that is wrong, is not stored: it is about one process and its environment.

use std::time::Duration;

use chrono::{DateTime, DurationRound, TimeDelta, Utc};
use serde::{Deserialize, Serialize};

use crate::clock::{Moment, milliseconds};

/// What is longer is cut when it is stored: it is for people.
const REASON_LIMIT_BYTES: usize = 1_000;

/// If the calendar and the clock of the machine differ by more, the calendar was set.
const CALENDAR_SET: TimeDelta = TimeDelta::seconds(1);

/// That a provider is not to be asked for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewHold {
    /// Which [provider](crate::Executor::provider).
    pub provider: String,
    /// For how long, from now on.
    pub pause: Duration,
    /// Why, for people.
    pub reason: String,
}

impl NewHold {
    /// A hold for so long from now on. Of a long reason only the beginning is kept.
    pub fn new(provider: impl Into<String>, pause: Duration, reason: impl Into<String>) -> NewHold {
        let mut reason = reason.into();
        let end = (0..=REASON_LIMIT_BYTES.min(reason.len())).rev().find(|&at| reason.is_char_boundary(at));
        reason.truncate(end.unwrap_or_default());
        NewHold { provider: provider.into(), pause, reason }
    }
}

/// That a provider is not to be asked before a time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ProviderHold {
    /// Which [provider](crate::Executor::provider).
    pub provider: String,
    /// When it may be asked again.
    pub until: DateTime<Utc>,
    /// Why, for people.
    pub reason: String,
}

/// A hold as it is kept: by the clock of the machine, which nobody sets, and by the calendar for after a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredHold {
    pub(crate) until: DateTime<Utc>,
    pub(crate) until_boot_ms: i64,
    pub(crate) boot_id: String,
    pub(crate) reason: String,
}

impl StoredHold {
    /// The hold that begins now.
    pub(crate) fn new(hold: &NewHold, now: Moment, boot_id: &str) -> StoredHold {
        let pause_ms = milliseconds(hold.pause);
        let until = now.wall.checked_add_signed(TimeDelta::milliseconds(pause_ms)).unwrap_or(now.wall);
        StoredHold {
            // Who names a time names it to the second, and a moment has passed since it was turned into a pause.
            until: until.duration_round(TimeDelta::milliseconds(100)).unwrap_or(until),
            until_boot_ms: now.boot_ms.saturating_add(pause_ms),
            boot_id: boot_id.to_owned(),
            reason: hold.reason.clone(),
        }
    }

    /// How much of it is left; `None` if it is over.
    pub(crate) fn left(&self, now: Moment, boot_id: &str) -> Option<Duration> {
        let left_ms = match self.boot_id == boot_id {
            true => self.until_boot_ms.saturating_sub(now.boot_ms),
            false => (self.until - now.wall).num_milliseconds(),
        };
        u64::try_from(left_ms).ok().filter(|&left_ms| left_ms > 0).map(Duration::from_millis)
    }

    /// The same for others, in the calendar of today; `None` if it is over.
    pub(crate) fn told(&self, provider: &str, now: Moment, boot_id: &str) -> Option<ProviderHold> {
        let left = TimeDelta::from_std(self.left(now, boot_id)?).ok();
        // What is stored may say anything.
        let counted = left.and_then(|left| now.wall.checked_add_signed(left)).unwrap_or(DateTime::<Utc>::MAX_UTC);
        // Two clocks never agree to the millisecond. Who named a time wants to read that, unless the calendar was set since.
        let until = if (counted - self.until).abs() < CALENDAR_SET { self.until } else { counted };
        Some(ProviderHold { provider: provider.to_owned(), until, reason: self.reason.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock, ManualClock};

    #[test]
    fn a_hold_is_counted_by_the_machine_and_after_a_restart_by_the_calendar() {
        let clock = ManualClock::new();
        let hold = StoredHold::new(&NewHold::new("p", Duration::from_secs(60), "closed"), clock.now(), "boot");
        clock.jump_wall(chrono::TimeDelta::hours(3));
        clock.advance(Duration::from_secs(20));
        assert_eq!(hold.left(clock.now(), "boot"), Some(Duration::from_secs(40)), "whatever the calendar says");
        assert_eq!(hold.told("p", clock.now(), "boot").unwrap().until, clock.now().wall + Duration::from_secs(40));
        assert_eq!(hold.left(clock.now(), "another boot"), None);
        clock.jump_wall(chrono::TimeDelta::hours(-3));
        assert_eq!(hold.left(clock.now(), "another boot"), Some(Duration::from_secs(40)));
        clock.advance(Duration::from_secs(40));
        assert_eq!(hold.left(clock.now(), "boot"), None);
        let for_ever = StoredHold { until_boot_ms: i64::MAX, ..hold };
        assert_eq!(for_ever.told("p", clock.now(), "boot").unwrap().until, DateTime::<Utc>::MAX_UTC);
    }

    #[test]
    fn of_a_long_reason_the_beginning_is_kept() {
        let hold = NewHold::new("p", Duration::ZERO, "ü".repeat(2_000));
        assert_eq!(hold.reason, "ü".repeat(500));
    }
}
