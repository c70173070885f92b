//! Rates: how often a provider may be asked, by all workers of all processes on a repository.
//!
//! Before each request whoever makes it takes a [turn](crate::Repository::take_turn). A turn counts for a window from then on, and a little
//! longer, so that a request that is slow to leave does not come to the provider together with those of the next window. So in no window,
//! wherever it begins, are there more requests than allowed.
//!
//! ```text
//!   taken  grain       window          slack
//!     ├──────┼─────────────────────────┼───┤
//!            ▲ another one counts so       ▲ others may take their places
//! ```
//!
//! Tokens are reserved with the turn, as many as are expected, and counted as they were used once the attempt has ended. What one attempt
//! alone needs more than the limit has to wait until nothing else counts.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::clock::milliseconds;
use crate::money::{Charge, Tokens};

/// So many bytes of a prompt are a token, at least.
const BYTES_PER_TOKEN: u64 = 3;

/// This part of a window a request may take to leave.
const SLACK_PART: i64 = 20;

/// In so many parts of a window turns are counted.
const GRAINS: i64 = 60;

/// Who waits for another to end looks again after this.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// How often a provider may be asked.
///
/// ```
/// use std::time::Duration;
/// use workcrew::limits::RateLimits;
///
/// let limits = RateLimits::new().requests(60).input_tokens(200_000).concurrency(8);
/// assert_eq!(limits.window, Duration::from_secs(60));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RateLimits {
    /// The time that the limits are for.
    pub window: Duration,
    /// How many requests there may be in any window.
    pub requests: Option<u64>,
    /// How many tokens may be sent in any window. What is read from a provider's cache does not count.
    pub input_tokens: Option<u64>,
    /// How many tokens may be answered in any window.
    pub output_tokens: Option<u64>,
    /// How many attempts may be under way at a time.
    pub concurrency: Option<u64>,
}

impl Default for RateLimits {
    fn default() -> RateLimits {
        RateLimits::new()
    }
}

impl RateLimits {
    /// No limits, for windows of a minute.
    pub const fn new() -> RateLimits {
        let window = Duration::from_secs(60);
        RateLimits { window, requests: None, input_tokens: None, output_tokens: None, concurrency: None }
    }

    /// The time that the limits are for (a minute).
    pub fn window(mut self, window: Duration) -> RateLimits {
        self.window = window;
        self
    }

    /// How many requests there may be in any window (any number).
    pub fn requests(mut self, requests: u64) -> RateLimits {
        self.requests = Some(requests);
        self
    }

    /// How many tokens may be sent in any window (any number).
    pub fn input_tokens(mut self, tokens: u64) -> RateLimits {
        self.input_tokens = Some(tokens);
        self
    }

    /// How many tokens may be answered in any window (any number).
    pub fn output_tokens(mut self, tokens: u64) -> RateLimits {
        self.output_tokens = Some(tokens);
        self
    }

    /// How many attempts may be under way at a time, in all processes (any number).
    pub fn concurrency(mut self, attempts: u64) -> RateLimits {
        self.concurrency = Some(attempts);
        self
    }

    /// What is wrong with them, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        let limits = [self.requests, self.input_tokens, self.output_tokens, self.concurrency];
        match () {
            () if self.window < Duration::from_millis(1) => Some("has a window of nothing".to_owned()),
            () if self.window > Duration::from_secs(7 * 24 * 3_600) => {
                Some("has a window of more than a week".to_owned())
            }
            () if limits.contains(&Some(0)) => Some("has a limit of 0, which lets nothing begin".to_owned()),
            () => None,
        }
    }

    /// Until when a turn counts that is taken now. Those that are taken within a small part of a window count until the same moment, so that
    /// to count them takes no longer the more there are.
    pub(crate) fn free_at_ms(&self, now_ms: i64) -> i64 {
        let window_ms = milliseconds(self.window);
        let grain_ms = (window_ms / GRAINS).max(1);
        let taken_ms = now_ms.div_euclid(grain_ms).saturating_add(1).saturating_mul(grain_ms);
        taken_ms.saturating_add(window_ms).saturating_add(window_ms / SLACK_PART)
    }
}

/// What a request is expected to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ask {
    /// Tokens that are sent.
    pub input_tokens: u64,
    /// Tokens that are answered, at most.
    pub output_tokens: u64,
}

impl Ask {
    /// A request of so many tokens, and an answer of at most so many.
    pub fn new(input_tokens: u64, output_tokens: u64) -> Ask {
        Ask { input_tokens, output_tokens }
    }

    /// Both together.
    pub(crate) fn plus(&self, other: &Ask) -> Ask {
        Ask::new(
            self.input_tokens.saturating_add(other.input_tokens),
            self.output_tokens.saturating_add(other.output_tokens),
        )
    }

    /// The same for a text of so many bytes.
    pub(crate) fn of_bytes(bytes: usize, output_tokens: Option<u64>) -> Ask {
        Ask::new((bytes as u64).div_ceil(BYTES_PER_TOKEN), output_tokens.unwrap_or_default())
    }
}

/// Which limit one has to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limit {
    /// Requests in a window.
    Requests,
    /// Tokens that are sent in a window.
    InputTokens,
    /// Tokens that are answered in a window.
    OutputTokens,
    /// Attempts at a time.
    Concurrency,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Limit::Requests => "requests",
            Limit::InputTokens => "input tokens",
            Limit::OutputTokens => "output tokens",
            Limit::Concurrency => "concurrency",
        })
    }
}

/// Whether it is somebody's turn to ask a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Turn {
    /// It is, now.
    Taken,
    /// It is not. One may look again after so long.
    Later {
        /// For how long at least.
        after: Duration,
        /// What one waits for.
        limit: Limit,
    },
    /// The provider is not to be asked at all.
    Held(super::ProviderHold),
}

/// What counts until the same moment, of all turns together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Until then it counts, in milliseconds of the machine.
    pub(crate) free_at_ms: i64,
    pub(crate) requests: u64,
    pub(crate) tokens: Ask,
}

impl Counted {
    /// One turn more.
    pub(crate) fn add(&mut self, ask: &Ask) {
        self.requests = self.requests.saturating_add(1);
        self.tokens = self.tokens.plus(ask);
    }

    /// What was expected of a turn has turned out to be that.
    #[cfg(any(feature = "sqlite", feature = "sqlite-system", test))]
    pub(crate) fn settle(&mut self, expected: &Ask, used: &Ask) {
        let settled = |sum: u64, expected: u64, used: u64| sum.saturating_sub(expected).saturating_add(used);
        let Ask { input_tokens, output_tokens } = self.tokens;
        self.tokens = Ask::new(
            settled(input_tokens, expected.input_tokens, used.input_tokens),
            settled(output_tokens, expected.output_tokens, used.output_tokens),
        );
    }
}

/// What an attempt that has ended used, of what counts; `None` if nobody knows.
pub(crate) fn used(charges: &[Charge]) -> Option<Ask> {
    let counts = |Tokens { input, output, cache_write, reasoning, .. }: Tokens| {
        Ask::new(input.saturating_add(cache_write), output.saturating_add(reasoning))
    };
    let used = charges.iter().fold(Ask::default(), |sum, charge| sum.plus(&counts(charge.tokens)));
    Some(used).filter(|used| *used != Ask::default())
}

/// What the turns of an attempt that has ended were used for, in the order in which they were taken: all of it counts with the last one.
pub(crate) fn settled(asks: &[Ask], used: Option<Ask>) -> Vec<Ask> {
    let Some(used) = used else { return asks.to_vec() };
    let earlier = asks.len().saturating_sub(1);
    asks.iter().enumerate().map(|(number, _)| if number < earlier { Ask::default() } else { used }).collect()
}

/// How long an attempt has to wait for its next turn, and for what; `None` if it is its turn.
///
/// So many others have asked and not ended. What counts is in the order in which it no longer will.
pub(crate) fn wait(
    limits: &RateLimits,
    ask: &Ask,
    under_way: u64,
    counted: &[Counted],
    now_ms: i64,
) -> Option<(Duration, Limit)> {
    if limits.concurrency.is_some_and(|limit| under_way >= limit) {
        return Some((LOOK_AGAIN, Limit::Concurrency));
    }
    type Amount = fn(&Counted) -> u64;
    let each: [(Limit, Option<u64>, u64, Amount); 3] = [
        (Limit::Requests, limits.requests, 1, |counted| counted.requests),
        (Limit::InputTokens, limits.input_tokens, ask.input_tokens, |counted| counted.tokens.input_tokens),
        (Limit::OutputTokens, limits.output_tokens, ask.output_tokens, |counted| counted.tokens.output_tokens),
    ];
    each.into_iter()
        .filter_map(|(limit, most, ask, amount)| {
            let taken = counted.iter().map(|counted| (counted.free_at_ms, amount(counted)));
            Some((free_at_ms(most?, ask, taken)?, limit))
        })
        .max_by_key(|&(free_at_ms, _)| free_at_ms)
        .map(|(free_at_ms, limit)| {
            let after_ms = u64::try_from(free_at_ms.saturating_sub(now_ms)).unwrap_or_default();
            (Duration::from_millis(after_ms.max(1)), limit)
        })
}

/// When there is room for so much more; `None` if there is now. What is more than the limit needs all of it.
fn free_at_ms(most: u64, ask: u64, taken: impl Iterator<Item = (i64, u64)> + Clone) -> Option<i64> {
    let mut left = taken.clone().fold(ask.min(most), |sum, (_, amount)| sum.saturating_add(amount));
    let mut free_at_ms = None;
    for (at_ms, amount) in taken {
        if left <= most {
            break;
        }
        left = left.saturating_sub(amount);
        free_at_ms = Some(at_ms);
    }
    free_at_ms
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::money::Money;

    fn taken(free_at_ms: i64, requests: u64, input: u64) -> Counted {
        Counted { free_at_ms, requests, tokens: Ask::new(input, 0) }
    }

    fn waits(limits: &RateLimits, input: u64, counted: &[Counted], now_ms: i64) -> Option<(u64, Limit)> {
        let wait = wait(limits, &Ask::new(input, 0), 0, counted, now_ms);
        wait.map(|(after, limit)| (u64::try_from(after.as_millis()).unwrap(), limit))
    }

    #[test]
    fn a_request_waits_for_the_oldest_that_counts() {
        let limits = RateLimits::new().requests(2);
        assert_eq!(waits(&limits, 0, &[taken(50, 1, 0)], 10), None);
        assert_eq!(waits(&limits, 0, &[taken(50, 1, 0), taken(70, 1, 0)], 10), Some((40, Limit::Requests)));
        assert_eq!(waits(&limits, 0, &[taken(50, 1, 0), taken(70, 2, 0)], 10), Some((60, Limit::Requests)));
        let crowded = [taken(50, 1, 0), taken(60, 1, 0), taken(70, 1, 0)];
        assert_eq!(waits(&limits, 0, &crowded, 10), Some((50, Limit::Requests)), "a limit that was lowered");
    }

    #[test]
    fn tokens_wait_until_enough_of_them_no_longer_count() {
        let limits = RateLimits::new().input_tokens(100);
        let counted = [taken(50, 1, 40), taken(60, 1, 40)];
        assert_eq!(waits(&limits, 20, &counted, 10), None);
        assert_eq!(waits(&limits, 21, &counted, 10), Some((40, Limit::InputTokens)));
        assert_eq!(waits(&limits, 61, &counted, 10), Some((50, Limit::InputTokens)));
        assert_eq!(waits(&limits, 1_000, &counted, 10), Some((50, Limit::InputTokens)), "it needs all of it");
        assert_eq!(waits(&limits, 1_000, &[], 10), None, "and then it goes");
    }

    #[test]
    fn what_was_used_takes_the_place_of_what_was_expected() {
        let mut counted = taken(50, 2, 0);
        let asks = [Ask::new(90, 5), Ask::new(80, 7)];
        asks.iter().for_each(|ask| counted.add(ask));
        assert_eq!((counted.requests, counted.tokens), (4, Ask::new(170, 12)));
        for (ask, used) in asks.iter().zip(settled(&asks, Some(Ask::new(10, 3)))) {
            counted.settle(ask, &used);
        }
        assert_eq!((counted.requests, counted.tokens), (4, Ask::new(10, 3)), "once, though it had two turns");
        assert_eq!(settled(&asks, None), asks, "who tells nothing has used what was expected");
    }

    #[test]
    fn what_a_provider_has_in_its_cache_does_not_count() {
        let tokens = Tokens { input: 30, cache_write: 20, cache_read: 5_000, output: 400, reasoning: 100 };
        let charge = Charge::reported("large", tokens, Money::ZERO);
        assert_eq!(used(&[charge.clone(), charge]), Some(Ask::new(100, 1_000)));
        assert_eq!(used(&[Charge::reported("unknown", Tokens::default(), Money::ZERO)]), None);
    }

    #[test]
    fn who_is_under_way_keeps_others_from_beginning() {
        let limits = RateLimits::new().concurrency(2);
        let waits = |under_way| wait(&limits, &Ask::default(), under_way, &[], 10).map(|(_, limit)| limit);
        assert_eq!([0, 1, 2, 3].map(waits), [None, None, Some(Limit::Concurrency), Some(Limit::Concurrency)]);
    }

    #[test]
    fn of_several_limits_the_last_one_counts() {
        let limits = RateLimits::new().requests(1).input_tokens(50);
        assert_eq!(waits(&limits, 10, &[taken(80, 1, 50)], 10), Some((70, Limit::InputTokens)));
        let counted = [taken(30, 1, 50), taken(80, 1, 0)];
        assert_eq!(waits(&limits, 10, &counted, 10), Some((70, Limit::Requests)));
    }

    #[test]
    fn a_turn_counts_for_a_window_at_least_and_not_for_much_longer() {
        for window_ms in [1, 7, 59, 60, 61, 2_000, 60_000, 7 * 24 * 3_600_000] {
            let limits = RateLimits::new().window(Duration::from_millis(window_ms));
            let window_ms = i64::try_from(window_ms).unwrap();
            for now_ms in [-1, 0, 1, 59, 60, 999, 1_000, 123_456_789] {
                let counts_ms = limits.free_at_ms(now_ms) - now_ms;
                let most_ms = window_ms + window_ms / SLACK_PART + (window_ms / GRAINS).max(1);
                assert!((window_ms + 1..=most_ms).contains(&counts_ms), "{window_ms} {now_ms}: {counts_ms}");
            }
        }
        assert_eq!(RateLimits::new().window(Duration::MAX).free_at_ms(0), i64::MAX);
    }

    #[test]
    fn senseless_limits_are_found() {
        assert_eq!(RateLimits::new().requests(1).problem(), None);
        for wrong in [
            RateLimits::new().requests(0),
            RateLimits::new().concurrency(0),
            RateLimits::new().window(Duration::ZERO),
            RateLimits::new().window(Duration::MAX),
        ] {
            assert!(wrong.problem().is_some(), "{wrong:?}");
        }
    }
}
