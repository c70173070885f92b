//! Rates: how often a provider may be asked, by all workers of all processes on a repository.
//!
//! Before each request whoever makes it takes a [turn](crate::Repository::take_turn). A turn counts for a window from then on, and a little
//! longer, so that a request that is slow to leave does not come to the provider together with those of the next window. So in no window,
//! wherever it begins, are there more requests than allowed.
//!
//! ```text
//!   taken          window           slack
//!     ├────────────────────────────────┼───┤
//!     ▲ sent by then                       ▲ another may take its place
//! ```
//!
//! Tokens are reserved with the turn, as many as are expected, and counted as they were used once the attempt has ended. What one attempt
//! alone needs more than the limit has to wait until nothing else counts.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::attempt::AttemptKey;
use crate::clock::milliseconds;
use crate::money::{Charge, Tokens};

/// So many bytes of a prompt are a token, at least.
const BYTES_PER_TOKEN: u64 = 3;

/// This part of a window a request may take to leave.
const SLACK_PART: i64 = 20;

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

    /// How long a turn counts.
    pub(crate) fn counted_ms(&self) -> i64 {
        let window_ms = milliseconds(self.window);
        window_ms.saturating_add(window_ms / SLACK_PART)
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

/// A turn that somebody has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TakenTurn {
    pub(crate) attempt: AttemptKey,
    /// Until then it counts, in milliseconds of the machine.
    pub(crate) free_at_ms: i64,
    pub(crate) ask: Ask,
    /// Whether the attempt has not ended.
    pub(crate) is_open: bool,
    /// What the attempt has used in all, if it has ended and that is known.
    pub(crate) used: Option<Ask>,
}

/// What counts of what an attempt was charged.
pub(crate) fn used(charges: &[Charge]) -> Option<Ask> {
    let tokens = charges.iter().map(|charge| charge.tokens).fold(None, |sum: Option<Ask>, tokens| {
        let Tokens { input, output, cache_write, reasoning, .. } = tokens;
        let sum = sum.unwrap_or_default();
        let more = |so_far: u64, more: [u64; 2]| more.into_iter().fold(so_far, u64::saturating_add);
        Some(Ask::new(more(sum.input_tokens, [input, cache_write]), more(sum.output_tokens, [output, reasoning])))
    });
    tokens.filter(|tokens| *tokens != Ask::default())
}

/// How long an attempt has to wait for its next turn, and for what; `None` if it is its turn.
///
/// The turns are those that count or whose attempts have not ended.
pub(crate) fn wait(
    limits: &RateLimits,
    ask: &Ask,
    attempt: AttemptKey,
    turns: &[TakenTurn],
    now_ms: i64,
) -> Option<(Duration, Limit)> {
    let others = || turns.iter().filter(|turn| turn.is_open && turn.attempt != attempt).map(|turn| turn.attempt);
    let under_way = others().collect::<std::collections::BTreeSet<_>>().len() as u64;
    if limits.concurrency.is_some_and(|limit| under_way >= limit) {
        return Some((LOOK_AGAIN, Limit::Concurrency));
    }
    let counted = counted(turns, now_ms);
    let each = |of: fn(&Ask) -> u64| counted.iter().map(move |(free_at_ms, ask)| (*free_at_ms, of(ask)));
    [
        (Limit::Requests, limits.requests, 1, each(|_| 1).collect::<Vec<_>>()),
        (Limit::InputTokens, limits.input_tokens, ask.input_tokens, each(|ask| ask.input_tokens).collect()),
        (Limit::OutputTokens, limits.output_tokens, ask.output_tokens, each(|ask| ask.output_tokens).collect()),
    ]
    .into_iter()
    .filter_map(|(limit, most, ask, taken)| Some((free_at_ms(most?, ask, &taken)?, limit)))
    .max_by_key(|&(free_at_ms, _)| free_at_ms)
    .map(|(free_at_ms, limit)| {
        let after_ms = u64::try_from(free_at_ms.saturating_sub(now_ms)).unwrap_or_default();
        (Duration::from_millis(after_ms.max(1)), limit)
    })
}

/// What counts now, in the order in which it will no longer: of attempts that have ended what they used, with their last turn.
fn counted(turns: &[TakenTurn], now_ms: i64) -> Vec<(i64, Ask)> {
    let mut last: BTreeMap<AttemptKey, i64> = BTreeMap::new();
    for turn in turns {
        let at = last.entry(turn.attempt).or_insert(turn.free_at_ms);
        *at = turn.free_at_ms.max(*at);
    }
    let mut settled = std::collections::BTreeSet::new();
    let mut counted = Vec::new();
    for turn in turns.iter().filter(|turn| turn.free_at_ms > now_ms) {
        let ask = match turn.used {
            None => turn.ask,
            Some(used) if last[&turn.attempt] == turn.free_at_ms && settled.insert(turn.attempt) => used,
            Some(_) => Ask::default(),
        };
        counted.push((turn.free_at_ms, ask));
    }
    counted.sort_by_key(|&(free_at_ms, _)| free_at_ms);
    counted
}

/// When there is room for so much more; `None` if there is now. What is more than the limit needs all of it.
fn free_at_ms(most: u64, ask: u64, taken: &[(i64, u64)]) -> Option<i64> {
    let mut left = taken.iter().fold(ask.min(most), |sum, (_, amount)| sum.saturating_add(*amount));
    let mut free_at_ms = None;
    for &(at_ms, amount) in taken {
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
    use crate::unit::UnitKey;

    fn attempt(unit: i64) -> AttemptKey {
        AttemptKey { unit: UnitKey(unit), number: 1 }
    }

    fn taken(unit: i64, free_at_ms: i64, input: u64) -> TakenTurn {
        TakenTurn { attempt: attempt(unit), free_at_ms, ask: Ask::new(input, 0), is_open: false, used: None }
    }

    fn waits(limits: &RateLimits, input: u64, turns: &[TakenTurn], now_ms: i64) -> Option<(u64, Limit)> {
        let wait = wait(limits, &Ask::new(input, 0), attempt(99), turns, now_ms);
        wait.map(|(after, limit)| (u64::try_from(after.as_millis()).unwrap(), limit))
    }

    #[test]
    fn a_request_waits_for_the_oldest_that_counts() {
        let limits = RateLimits::new().requests(2);
        assert_eq!(waits(&limits, 0, &[taken(1, 50, 0)], 10), None);
        assert_eq!(waits(&limits, 0, &[taken(1, 70, 0), taken(2, 50, 0)], 10), Some((40, Limit::Requests)));
        assert_eq!(waits(&limits, 0, &[taken(1, 70, 0), taken(2, 50, 0)], 50), None, "at that time it is free");
        let crowded = [taken(1, 70, 0), taken(2, 50, 0), taken(3, 60, 0)];
        assert_eq!(waits(&limits, 0, &crowded, 10), Some((50, Limit::Requests)), "a limit that was lowered");
    }

    #[test]
    fn tokens_wait_until_enough_of_them_no_longer_count() {
        let limits = RateLimits::new().input_tokens(100);
        let turns = [taken(1, 50, 40), taken(2, 60, 40)];
        assert_eq!(waits(&limits, 20, &turns, 10), None);
        assert_eq!(waits(&limits, 21, &turns, 10), Some((40, Limit::InputTokens)));
        assert_eq!(waits(&limits, 61, &turns, 10), Some((50, Limit::InputTokens)));
        assert_eq!(waits(&limits, 1_000, &turns, 10), Some((50, Limit::InputTokens)), "it needs all of it");
        assert_eq!(waits(&limits, 1_000, &[], 10), None, "and then it goes");
    }

    #[test]
    fn what_was_used_takes_the_place_of_what_was_expected() {
        let limits = RateLimits::new().input_tokens(100);
        let ended = TakenTurn { used: Some(Ask::new(10, 0)), ..taken(1, 50, 90) };
        assert_eq!(waits(&limits, 80, &[ended], 10), None);
        let earlier = TakenTurn { free_at_ms: 40, ..ended };
        assert_eq!(waits(&limits, 90, &[earlier, ended], 10), None, "once, though it had two turns");
        assert_eq!(waits(&limits, 91, &[earlier, ended], 10), Some((40, Limit::InputTokens)));
        let twins = [ended, ended];
        assert_eq!(waits(&limits, 90, &twins, 10), None, "also if both were taken in the same moment");
    }

    #[test]
    fn attempts_under_way_are_counted_once_and_without_oneself() {
        let limits = RateLimits::new().concurrency(2);
        let open = |unit| TakenTurn { is_open: true, ..taken(unit, 0, 0) };
        assert_eq!(waits(&limits, 0, &[open(1), open(1), open(99)], 10), None);
        assert_eq!(waits(&limits, 0, &[open(1), open(2)], 10), Some((250, Limit::Concurrency)));
        assert_eq!(waits(&limits, 0, &[open(1), taken(2, 50, 0)], 10), None, "that one has ended");
    }

    #[test]
    fn of_several_limits_the_last_one_counts() {
        let limits = RateLimits::new().requests(1).input_tokens(50);
        assert_eq!(waits(&limits, 10, &[taken(1, 80, 50)], 10), Some((70, Limit::InputTokens)));
        let turns = [taken(1, 30, 50), taken(2, 80, 0)];
        assert_eq!(waits(&limits, 10, &turns, 10), Some((70, Limit::Requests)));
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
