//! When a provider may be asked again, as its headers say, and that nobody asks before.
//!
//! | header | what it says |
//! |---|---|
//! | `retry-after-ms` | milliseconds |
//! | `retry-after` | seconds, or a date |
//! | `anthropic-ratelimit-…-reset` | a time, which counts if nothing of that limit remains |
//! | `x-ratelimit-reset-…` | a duration such as `6m0s` or seconds, which counts if nothing of that limit remains |
//!
//! The first one that is there counts; among several limits that are used up, the one that is free last.

use std::sync::PoisonError;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ureq::http::HeaderMap;

use super::failure::Failure;
use crate::clock::{Clock, milliseconds};
use crate::executor::Then;
use crate::executor::trouble::Trouble;
use crate::sync::Mutex;

/// What is longer is a mistake, not a pause.
const PAUSE_LIMIT: Duration = Duration::from_secs(32 * 24 * 60 * 60);

/// How long a provider asks to wait, if it does.
pub(super) fn pause(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let asked = text("retry-after-ms")
        .and_then(|text| text.parse().ok().and_then(|ms: f64| Duration::try_from_secs_f64(ms / 1_000.0).ok()))
        .or_else(|| text("retry-after").and_then(|text| seconds(text).or_else(|| until_date(text, now))))
        .or_else(|| used_up(headers, now));
    asked.filter(|pause| *pause <= PAUSE_LIMIT)
}

/// How long it takes until every limit that is used up is free again.
fn used_up(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let pause = |name: &str| {
        let limit = name.strip_prefix("anthropic-ratelimit-").and_then(|limit| limit.strip_suffix("-reset"));
        let (remaining, pause) = match (limit, name.strip_prefix("x-ratelimit-reset-")) {
            (Some(limit), _) => (format!("anthropic-ratelimit-{limit}-remaining"), until(text(name)?, now)),
            (None, Some(limit)) => (format!("x-ratelimit-remaining-{limit}"), span(text(name)?)),
            (None, None) => return None,
        };
        pause.filter(|_| text(&remaining) == Some("0"))
    };
    headers.keys().filter_map(|name| pause(name.as_str())).max().filter(|pause| !pause.is_zero())
}

fn seconds(text: &str) -> Option<Duration> {
    text.parse().ok().and_then(|seconds: f64| Duration::try_from_secs_f64(seconds).ok())
}

/// Until a date such as `Wed, 21 Oct 2026 07:28:00 GMT`; one that is over is now.
fn until_date(text: &str, now: DateTime<Utc>) -> Option<Duration> {
    let date = DateTime::parse_from_rfc2822(text).ok()?;
    Some((date.to_utc() - now).to_std().unwrap_or_default())
}

/// Until a time such as `2026-10-21T07:28:00Z`; one that is over is now.
fn until(text: &str, now: DateTime<Utc>) -> Option<Duration> {
    let date = DateTime::parse_from_rfc3339(text).ok()?;
    Some((date.to_utc() - now).to_std().unwrap_or_default())
}

/// A duration such as `1h2m3.5s`, `120ms` or `7`, which are seconds.
fn span(text: &str) -> Option<Duration> {
    if let Some(pause) = seconds(text) {
        return Some(pause);
    }
    let (mut total, mut rest) = (0.0, text);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        let unit = &rest[digits..];
        let unit = &unit[..unit.find(|c: char| c.is_ascii_digit()).unwrap_or(unit.len())];
        total += number
            * match unit {
                "d" => 86_400.0,
                "h" => 3_600.0,
                "m" => 60.0,
                "s" => 1.0,
                "ms" => 0.001,
                _ => return None,
            };
        rest = &rest[digits + unit.len()..];
    }
    Duration::try_from_secs_f64(total).ok()
}

/// Keeps all workers of an executor from asking before the time that a provider has asked for.
#[derive(Debug, Default)]
pub(super) struct Gate {
    /// By the clock that counts from when the machine started.
    opens_at_ms: Mutex<Option<i64>>,
}

impl Gate {
    /// Nobody is to ask before that.
    pub(super) fn close_for(&self, pause: Duration, clock: &dyn Clock) {
        let until_ms = clock.now().boot_ms.saturating_add(milliseconds(pause));
        let mut opens_at_ms = self.opens_at_ms.lock().unwrap_or_else(PoisonError::into_inner);
        *opens_at_ms = Some(opens_at_ms.map_or(until_ms, |at_ms| at_ms.max(until_ms)));
    }

    /// Whether one may ask. If not, the whole pool waits: nobody could, and no attempt is used up for it.
    pub(super) fn pass(&self, clock: &dyn Clock) -> Result<(), Failure> {
        let now = clock.now();
        let opens_at_ms = *self.opens_at_ms.lock().unwrap_or_else(PoisonError::into_inner);
        let left_ms = opens_at_ms.map_or(0, |at_ms| at_ms.saturating_sub(now.boot_ms));
        let Some(left) = u64::try_from(left_ms).ok().filter(|&left_ms| left_ms > 0).map(Duration::from_millis) else {
            return Ok(());
        };
        let message = format!("the provider has asked to wait, and {left:?} of it are left");
        Err(Failure::new(Trouble::RateLimited { pause: None }, message)
            .then(Then::Hold { until: Some(now.wall + left) }))
    }
}

#[cfg(test)]
mod tests {
    use ureq::http::{HeaderName, HeaderValue};

    use super::*;
    use crate::clock::ManualClock;

    fn asked(headers: &[(&'static str, &'static str)]) -> Option<Duration> {
        let pair =
            |&(name, value): &(&'static str, _)| (HeaderName::from_static(name), HeaderValue::from_static(value));
        let now = "2026-10-21T07:28:00Z".parse().unwrap();
        pause(&headers.iter().map(pair).collect(), now)
    }

    #[test]
    fn a_pause_is_given_in_seconds_or_as_a_date() {
        let seconds = Duration::from_secs;
        for (value, pause) in [
            ("3", Some(seconds(3))),
            (" 0.5", Some(Duration::from_millis(500))),
            ("0", Some(seconds(0))),
            ("Wed, 21 Oct 2026 07:28:30 GMT", Some(seconds(30))),
            ("Wed, 21 Oct 2026 07:27:30 GMT", Some(seconds(0))),
            ("soon", None),
            ("-1", None),
            ("nan", None),
            ("1e300", None),
            ("99999999999", None),
        ] {
            assert_eq!(asked(&[("retry-after", value)]), pause, "{value}");
        }
        assert_eq!(asked(&[("retry-after-ms", "250"), ("retry-after", "1")]), Some(Duration::from_millis(250)));
    }

    #[test]
    fn a_limit_counts_that_is_used_up_and_of_several_the_last() {
        let anthropic = [
            ("anthropic-ratelimit-requests-remaining", "0"),
            ("anthropic-ratelimit-requests-reset", "2026-10-21T07:28:10Z"),
            ("anthropic-ratelimit-input-tokens-remaining", "0"),
            ("anthropic-ratelimit-input-tokens-reset", "2026-10-21T07:28:20Z"),
            ("anthropic-ratelimit-output-tokens-remaining", "8000"),
            ("anthropic-ratelimit-output-tokens-reset", "2026-10-21T07:30:00Z"),
        ];
        assert_eq!(asked(&anthropic), Some(Duration::from_secs(20)));
        let openai = [
            ("x-ratelimit-remaining-requests", "59"),
            ("x-ratelimit-reset-requests", "8m"),
            ("x-ratelimit-remaining-tokens", "0"),
            ("x-ratelimit-reset-tokens", "1m2.5s"),
        ];
        assert_eq!(asked(&openai), Some(Duration::from_millis(62_500)));
        assert_eq!(asked(&[("x-ratelimit-remaining-tokens", "-1"), ("x-ratelimit-reset-tokens", "0")]), None);
        assert_eq!(asked(&[("retry-after", "1"), openai[2], openai[3]]), Some(Duration::from_secs(1)));
    }

    #[test]
    fn durations_are_read_as_providers_write_them() {
        for (text, ms) in [("6m0s", 360_000), ("120ms", 120), ("1d2h", 93_600_000), ("7", 7_000), ("0.5s", 500)] {
            assert_eq!(span(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["s", "5x", "5 s", "1.2.3s", "m5"] {
            assert_eq!(span(text), None, "{text}");
        }
    }

    #[test]
    fn a_gate_opens_when_the_longest_pause_is_over() {
        let (gate, clock) = (Gate::default(), ManualClock::new());
        assert!(gate.pass(&clock).is_ok());
        gate.close_for(Duration::from_secs(3), &clock);
        gate.close_for(Duration::from_secs(1), &clock);
        clock.advance(Duration::from_millis(2_999));
        let until = clock.now().wall + Duration::from_millis(1);
        assert_eq!(gate.pass(&clock).unwrap_err().then, Then::Hold { until: Some(until) });
        clock.advance(Duration::from_millis(1));
        assert!(gate.pass(&clock).is_ok());
    }
}
