//! What the reason of a failed turn means. Codex gives it in words alone.

use chrono::{DateTime, Local, NaiveDateTime, NaiveTime, TimeDelta, TimeZone, Utc};
use serde_json::Value;

use crate::executor::again;
use crate::executor::agent_cli::{Trouble, by_status};

/// What went wrong.
pub(super) fn trouble(said: &str, now: DateTime<Utc>) -> Trouble {
    let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
    if says(&["hit your usage limit"]) {
        return match reset(said, &Local, now).or_else(|| after_pause(said, now)) {
            // Whoever waits for a time that is over does not wait at all; the usual pauses do better.
            Some(time) if time <= now => Trouble::RateLimited { until: None },
            resets_at => Trouble::Quota { resets_at },
        };
    }
    if says(&["Quota exceeded", "insufficient_quota"]) {
        return Trouble::Quota { resets_at: None };
    }
    if says(&["Missing environment variable", "ot logged in", "codex login"]) {
        return Trouble::Authentication;
    }
    if says(&["max_output_tokens"]) {
        return Trouble::MaxTokens;
    }
    if says(&["high demand", "verloaded", "at capacity"]) {
        return Trouble::Overloaded;
    }
    let is_limited = says(&["ate limit reached", "ate limit exceeded", "oo Many Requests"]);
    match status(said).and_then(by_status) {
        Some(Trouble::RateLimited { .. }) => return Trouble::RateLimited { until: after_pause(said, now) },
        None if is_limited => return Trouble::RateLimited { until: after_pause(said, now) },
        Some(trouble) => return trouble,
        None => {}
    }
    if says(&["does not exist", "model_not_found"]) {
        return Trouble::ModelNotFound;
    }
    if says(&["invalid_request_error", "context window", "context_length_exceeded"]) || is_api_error(said) {
        return Trouble::InvalidRequest;
    }
    if says(&["stream disconnected", "error sending request", "imeout", "timed out", "onnection"]) {
        return Trouble::Connection;
    }
    Trouble::Agent
}

/// Until when nobody is to ask, if it says that.
pub(super) fn closed_until(said: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    match trouble(said, now) {
        Trouble::RateLimited { until } | Trouble::Quota { resets_at: until } => until,
        _ => None,
    }
}

/// The end of the pause in `Please try again in 1.898s.`
fn after_pause(said: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    now.checked_add_signed(TimeDelta::from_std(again::asked(said)?).ok()?)
}

/// The status in `unexpected status 401 Unauthorized: …` or `last status: 429 Too Many Requests`.
fn status(said: &str) -> Option<u64> {
    let (_, behind) = said.split_once("unexpected status ").or_else(|| said.split_once("last status: "))?;
    behind.split(' ').next()?.parse().ok()
}

/// Whether it is the answer of the provider as it came, which Codex repeats where it will not take a request.
fn is_api_error(said: &str) -> bool {
    serde_json::from_str::<Value>(said).is_ok_and(|answer| answer.get("error").is_some_and(Value::is_object))
}

/// The time in `try again at Nov 21st, 2026 12:09 AM.` or, on the same day, `try again at 3:04 PM.`, which is of the place where Codex runs. It
/// leaves out the seconds, so it is the minute after that.
fn reset<Zone: TimeZone>(said: &str, zone: &Zone, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let (_, behind) = said.split_once("try again at ")?;
    let words: Vec<&str> = behind.trim_end_matches('.').split_whitespace().collect();
    let there = match words.as_slice() {
        [month, day, year, time, half, ..] => {
            let day = day.trim_end_matches(',').trim_end_matches(char::is_alphabetic);
            let half = half.trim_end_matches('.');
            NaiveDateTime::parse_from_str(&format!("{month} {day} {year} {time} {half}"), "%b %d %Y %I:%M %p").ok()?
        }
        [time, half] => {
            let time = NaiveTime::parse_from_str(&format!("{time} {half}"), "%I:%M %p").ok()?;
            let today = now.with_timezone(zone).date_naive().and_time(time);
            let is_past = today < now.with_timezone(zone).naive_local();
            if is_past { today.checked_add_signed(TimeDelta::days(1))? } else { today }
        }
        _ => return None,
    };
    let minute = zone.from_local_datetime(&there).earliest()?.with_timezone(&Utc);
    minute.checked_add_signed(TimeDelta::minutes(1))
}

#[cfg(test)]
mod tests {
    use chrono::FixedOffset;

    use super::*;

    #[test]
    fn a_reset_is_read_with_and_without_its_day_and_never_in_the_past() {
        let zone = FixedOffset::east_opt(2 * 3_600).unwrap();
        let now: DateTime<Utc> = "2026-11-17T13:00:00Z".parse().unwrap();
        let read = |said: &str| reset(said, &zone, now).map(|time| time.to_rfc3339());
        let some = |time: &str| Some(format!("{time}+00:00"));
        assert_eq!(read("or try again at Nov 21st, 2026 12:09 AM."), some("2026-11-20T22:10:00"));
        assert_eq!(read("try again at Dec 2nd, 2026 1:30 PM."), some("2026-12-02T11:31:00"));
        assert_eq!(read("try again at 3:04 PM."), some("2026-11-17T13:05:00"));
        assert_eq!(read("try again at 2:59 PM."), some("2026-11-18T13:00:00"));
        for said in
            ["", "try again later", "try again at", "try again at noon.", "try again at Foo 99th, 2026 1:00 AM."]
        {
            assert_eq!(read(said), None, "{said}");
        }
    }

    #[test]
    fn what_is_said_is_told_apart() {
        let now = DateTime::UNIX_EPOCH;
        let time = |text: &str| Some(text.parse().unwrap());
        let limited = |text: &str| Trouble::RateLimited { until: time(text) };
        for (said, expected) in [
            ("unexpected status 401 Unauthorized: no, url: http://h/", Trouble::Authentication),
            ("exceeded retry limit, last status: 429 Too Many Requests", Trouble::RateLimited { until: None }),
            (
                "Rate limit reached for gpt-5 on tokens per min. Please try again in 20s.",
                limited("1970-01-01T00:00:20Z"),
            ),
            (
                "unexpected status 429 Too Many Requests: {}, url: x. Please retry after 7 seconds",
                limited("1970-01-01T00:00:07Z"),
            ),
            ("unexpected status 413 Payload Too Large: x", Trouble::InvalidRequest),
            ("unexpected status 502 Bad Gateway", Trouble::ServerError),
            ("unexpected status 503 Service Unavailable: Overloaded, url: x", Trouble::Overloaded),
            ("{\"error\": {\"message\": \"no\"}}", Trouble::InvalidRequest),
            ("You’ve hit your usage limit.", Trouble::Quota { resets_at: None }),
            (
                "You've hit your usage limit. Try again in 1 hour 5 minutes.",
                Trouble::Quota { resets_at: time("1970-01-01T01:05:00Z") },
            ),
            ("something new", Trouble::Agent),
        ] {
            assert_eq!(trouble(said, now), expected, "{said}");
        }
    }
}
