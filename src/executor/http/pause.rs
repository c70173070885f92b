//! How long a provider asks to wait, as its headers say.
//!
//! | header | what it says |
//! |---|---|
//! | `retry-after-ms` | milliseconds |
//! | `retry-after` | seconds, or a date |
//! | `anthropic-ratelimit-…-reset`, `x-ratelimit-reset-…`, `x-ratelimit-reset`, `ratelimit-reset` | a time in any form: a date, a duration such as `6m0s`, seconds, or a time since 1970; it counts if nothing of that limit remains |
//!
//! Of an answer that is an error the first one that is there counts, or if there is none what its message says ([`again`]); beside a good answer only what says that nothing remains. Among several limits that
//! are used up, the one that is free last. Many providers say when all of a limit is there again, which is later than when the next request may come: who
//! obeys them waits longer than needed, and is refused by nobody.

use std::time::Duration;

use chrono::{DateTime, Utc};
use ureq::http::HeaderMap;

use crate::executor::again;

/// What is longer is a mistake, not a pause.
const PAUSE_LIMIT: Duration = Duration::from_secs(32 * 24 * 60 * 60);

/// Numbers from here on are seconds since 1970: as a pause they would be longer than thirty years.
const SINCE_1970_FROM: f64 = 1e9;

/// And from here on milliseconds.
const MILLISECONDS_FROM: f64 = 1e11;

/// Clocks are read in whole milliseconds, twice until a pause is over: so much longer it has to be so as not to end early.
const CLOCK_STEPS: Duration = Duration::from_millis(2);

/// The same, in which no clock sees less than there is.
pub(super) fn rounded_up(pause: Duration) -> Duration {
    if pause.is_zero() { pause } else { pause.saturating_add(CLOCK_STEPS) }
}

/// How long a provider asks to wait that will not do what it was asked for, if it says so.
pub(super) fn pause(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let asked = text("retry-after-ms")
        .and_then(|text| text.parse().ok().and_then(|ms: f64| Duration::try_from_secs_f64(ms / 1_000.0).ok()))
        .or_else(|| text("retry-after").and_then(|text| seconds(text).or_else(|| until_date(text, now))))
        .or_else(|| used_up(headers, now));
    asked.filter(|pause| *pause <= PAUSE_LIMIT)
}

/// How long it takes until every limit is free again of which nothing is left, if there is one.
pub(super) fn used_up(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let pause = |name: &str| {
        let pause = reset(text(name)?, now).filter(|pause| !pause.is_zero() && *pause <= PAUSE_LIMIT)?;
        (text(&remaining(name)?) == Some("0")).then_some(pause)
    };
    headers.keys().filter_map(|name| pause(name.as_str())).max()
}

/// The header with what remains of a limit, by that with its reset.
fn remaining(reset: &str) -> Option<String> {
    let anthropics = reset.strip_prefix("anthropic-ratelimit-").and_then(|limit| limit.strip_suffix("-reset"));
    if let Some(limit) = anthropics {
        return Some(format!("anthropic-ratelimit-{limit}-remaining"));
    }
    let of = reset.strip_suffix("ratelimit-reset").filter(|of| ["", "x-"].contains(of));
    let others = reset.strip_prefix("x-ratelimit-reset-").map(|limit| format!("x-ratelimit-remaining-{limit}"));
    of.map(|of| format!("{of}ratelimit-remaining")).or(others)
}

/// How long it takes until a time in one of the forms that providers write it in.
fn reset(text: &str, now: DateTime<Utc>) -> Option<Duration> {
    let since_1970 = || {
        let number: f64 = text.parse().ok()?;
        let seconds = if number >= MILLISECONDS_FROM { number / 1_000.0 } else { number };
        let then = Duration::try_from_secs_f64(seconds).ok().filter(|_| number >= SINCE_1970_FROM)?;
        Some(then.saturating_sub((now - DateTime::UNIX_EPOCH).to_std().ok()?))
    };
    until(text, now).or_else(since_1970).or_else(|| span(text))
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
    seconds(text).or_else(|| again::duration(text).filter(|(_, behind)| behind.is_empty()).map(|(pause, _)| pause))
}

#[cfg(test)]
mod tests {
    use ureq::http::{HeaderName, HeaderValue};

    use super::*;

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
        let plain = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1792567690"), ("ratelimit-remaining", "1")];
        assert_eq!(asked(&plain), Some(Duration::from_secs(10)));
        assert_eq!(asked(&[("ratelimit-remaining", "0"), ("ratelimit-reset", "7")]), Some(Duration::from_secs(7)));
        for nobodys in ["x-ratelimit-reset-", "my-ratelimit-reset", "ratelimit-reset-requests", "retry-reset"] {
            assert_eq!(asked(&[(nobodys, "7"), ("x-ratelimit-remaining", "0")]), None, "{nobodys}");
        }
    }

    #[test]
    fn a_reset_is_a_date_a_duration_seconds_or_a_time_since_1970() {
        let now: DateTime<Utc> = "2026-10-21T07:28:00Z".parse().unwrap();
        let in_ten = now.timestamp() + 10;
        for text in ["2026-10-21T07:28:10Z", "2026-10-21T09:28:10+02:00", "10s", "10", "10.0", &in_ten.to_string()] {
            assert_eq!(reset(text, now), Some(Duration::from_secs(10)), "{text}");
        }
        assert_eq!(reset(&format!("{in_ten}000"), now), Some(Duration::from_secs(10)));
        assert_eq!(reset("1000000000", now), Some(Duration::ZERO), "that is over");
        assert_eq!((reset("soon", now), reset("-1", now)), (None, None));
    }

    #[test]
    fn durations_are_read_as_providers_write_them() {
        for (text, ms) in [("6m0s", 360_000), ("120ms", 120), ("1d2h", 93_600_000), ("7", 7_000), ("0.5s", 500)] {
            assert_eq!(span(text), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in ["s", "5x", "5s later", "1.2.3s", "m5", ""] {
            assert_eq!(span(text), None, "{text}");
        }
    }
}
