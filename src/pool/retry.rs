//! How long to wait before another attempt.

use std::time::Duration;

use crate::chain::Hash;
use crate::unit::UnitKey;

/// The pause before an attempt that follows a failed one: it doubles each time, up to a limit, and is shortened at
/// random by up to half, so that what failed together does not come back together.
///
/// How many attempts a unit has is its own affair ([`NewUnit::max_retries`](crate::NewUnit::max_retries), 3 unless set:
/// four executions in all). When a provider says how long to wait, that is what is waited.
///
/// ```
/// use std::time::Duration;
/// use workcrew::RetryPolicy;
///
/// let policy = RetryPolicy::exponential(Duration::from_secs(2), Duration::from_secs(60));
/// assert_eq!(policy.longest_pause(1), Duration::from_secs(2));
/// assert_eq!(policy.longest_pause(4), Duration::from_secs(16));
/// assert_eq!(policy.longest_pause(40), Duration::from_secs(60));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    base: Duration,
    limit: Duration,
    is_jittered: bool,
    after_crash: AfterCrash,
}

/// Which units are tried again after their worker crashed: its executor panicked or said that it is [broken](crate::ExecuteError::broken).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum AfterCrash {
    /// All that have an attempt left.
    #[default]
    Retry,
    /// Of those only the ones that are [`idempotent`](crate::NewUnit::idempotent): nobody knows how far the others came.
    OnlyIdempotent,
}

impl RetryPolicy {
    /// A pause that doubles from `base` up to `limit`.
    pub fn exponential(base: Duration, limit: Duration) -> RetryPolicy {
        RetryPolicy { base, limit, is_jittered: true, after_crash: AfterCrash::Retry }
    }

    /// The same pause every time.
    pub fn fixed(pause: Duration) -> RetryPolicy {
        RetryPolicy { base: pause, limit: pause, is_jittered: false, after_crash: AfterCrash::Retry }
    }

    /// No pause.
    pub fn immediate() -> RetryPolicy {
        RetryPolicy::fixed(Duration::ZERO)
    }

    /// Which units are tried again after their worker crashed (all).
    ///
    /// ```
    /// use workcrew::{AfterCrash, RetryPolicy};
    ///
    /// let policy = RetryPolicy::default().after_crash(AfterCrash::OnlyIdempotent);
    /// ```
    #[must_use]
    pub fn after_crash(mut self, after_crash: AfterCrash) -> RetryPolicy {
        self.after_crash = after_crash;
        self
    }

    /// Whether a unit is tried again after its worker crashed.
    pub(super) fn is_retried_after_crash(&self, is_idempotent: bool) -> bool {
        is_idempotent || self.after_crash == AfterCrash::Retry
    }

    /// The longest pause of all.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// The longest pause after so many failed attempts.
    pub fn longest_pause(&self, failed_attempts: u32) -> Duration {
        let doublings = failed_attempts.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.limit)
    }

    /// The pause of a unit after so many failed attempts: always the same for the same unit and number.
    pub(super) fn pause(&self, unit: UnitKey, failed_attempts: u32) -> Duration {
        let longest = self.longest_pause(failed_attempts);
        if !self.is_jittered {
            return longest;
        }
        shortened(longest, "retry jitter", unit, failed_attempts)
    }
}

/// A pause that is shortened at random by up to half: always the same for the same unit and number.
fn shortened(longest: Duration, purpose: &'static str, unit: UnitKey, number: u32) -> Duration {
    let hash = Hash::builder(purpose).number(unit.0).number(i64::from(number)).finish();
    let share = f64::from(u16::from_le_bytes([hash.as_bytes()[0], hash.as_bytes()[1]])) / f64::from(u16::MAX);
    longest.mul_f64(1.0 - share / 2.0)
}

impl Default for RetryPolicy {
    /// One second, doubling up to a minute.
    fn default() -> RetryPolicy {
        RetryPolicy::exponential(Duration::from_secs(1), Duration::from_secs(60))
    }
}

/// So often a unit is given back without having to wait for it.
const FREE_RELEASES: u32 = 20;

/// The longest that a unit waits because it was given back often.
const RELEASE_PAUSE_LIMIT: Duration = Duration::from_secs(15 * 60);

/// How long a unit waits, beside all other pauses, that was given back so often. It has done nothing wrong, but many may ask for what only a few can have:
/// they are not all to come back at the same time, again and again, until they have been given back [as often as they may](crate::attempt::RELEASE_LIMIT).
/// That takes some seven hours.
pub(super) fn pause_after_releases(unit: UnitKey, releases: u32) -> Duration {
    let often = releases.saturating_sub(FREE_RELEASES);
    let longest = Duration::from_millis(250).saturating_mul(often.saturating_mul(often)).min(RELEASE_PAUSE_LIMIT);
    shortened(longest, "release jitter", unit, releases)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_between_half_and_all_of_the_longest_and_differs_between_units() {
        let policy = RetryPolicy::default();
        let pauses: Vec<Duration> = (0..100).map(|unit| policy.pause(UnitKey(unit), 3)).collect();
        assert!(pauses.iter().all(|&pause| pause >= Duration::from_secs(2) && pause <= Duration::from_secs(4)));
        let distinct: std::collections::HashSet<_> = pauses.iter().collect();
        assert!(distinct.len() > 90);
    }

    #[test]
    fn who_is_given_back_often_waits_ever_longer_and_as_often_as_may_be_takes_hours() {
        let pauses: Vec<Duration> = (0..=100).map(|releases| pause_after_releases(UnitKey(7), releases)).collect();
        assert!(pauses[..=20].iter().all(Duration::is_zero), "a few times nobody notices");
        assert!(pauses[25] < Duration::from_secs(7) && pauses[40] > Duration::from_secs(50), "{pauses:?}");
        assert!(pauses.iter().all(|pause| *pause <= RELEASE_PAUSE_LIMIT));
        let all: Duration = pauses.iter().sum();
        assert!((5..10).contains(&(all.as_secs() / 3_600)), "{all:?}");
        assert!(pause_after_releases(UnitKey(1), u32::MAX) <= RELEASE_PAUSE_LIMIT);
    }

    #[test]
    fn nothing_overflows() {
        let policy = RetryPolicy::exponential(Duration::MAX, Duration::MAX);
        assert_eq!(policy.longest_pause(u32::MAX), Duration::MAX);
        assert_eq!(RetryPolicy::immediate().pause(UnitKey(1), u32::MAX), Duration::ZERO);
    }
}
