//! Times as people write and read them.

use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};

/// Reads `10m`, `90s`, `1h30m`, `500ms`, `7d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let no_duration = || format!("`{text}` is no duration such as 90s, 10m, 1h30m or 7d");
    let (mut total, mut rest) = (Duration::ZERO, text.trim());
    if rest.is_empty() {
        return Err(no_duration());
    }
    while !rest.is_empty() {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit()).unwrap_or(rest.len());
        let behind = &rest[digits..];
        let letters = behind.find(|sign: char| !sign.is_ascii_alphabetic()).unwrap_or(behind.len());
        let number: u64 = rest[..digits].parse().map_err(|_| no_duration())?;
        let milliseconds: u64 = match &behind[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" | "min" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(no_duration()),
        };
        let part = number.checked_mul(milliseconds).map(Duration::from_millis).ok_or_else(no_duration)?;
        total = total.checked_add(part).ok_or_else(no_duration)?;
        rest = &behind[letters..];
    }
    Ok(total)
}

/// Reads a duration that leaves some time.
pub fn positive(text: &str) -> Result<Duration, String> {
    let read = duration(text)?;
    if read.is_zero() { Err(format!("`{text}` leaves no time at all")) } else { Ok(read) }
}

/// Reads `2026-05-01`, `2026-05-01T10:00:00Z`, or how long ago it was: `2h`.
pub fn moment(text: &str) -> Result<DateTime<Utc>, String> {
    if let Ok(time) = DateTime::parse_from_rfc3339(text) {
        return Ok(time.to_utc());
    }
    if let Ok(time) = NaiveDateTime::parse_from_str(text, "%Y-%m-%d %H:%M:%S") {
        return Ok(time.and_utc());
    }
    if let Some(day) = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok().and_then(|day| day.and_hms_opt(0, 0, 0)) {
        return Ok(day.and_utc());
    }
    let ago = duration(text).ok().and_then(|ago| chrono::TimeDelta::from_std(ago).ok());
    let then = ago.and_then(|ago| Utc::now().checked_sub_signed(ago));
    then.ok_or_else(|| format!("`{text}` is neither a day such as 2026-05-01 nor how long ago it was, such as 2h"))
}

/// In few letters: `340 ms`, `1.4 s`, `2 m 05 s`, `3 h 20 m`, `2 d 4 h`.
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 => format!("{} ms", time.as_millis()),
        1..=59 => format!("{:.1} s", time.as_secs_f64()),
        60..=3_599 => format!("{} m {:02} s", seconds / 60, seconds % 60),
        3_600..=86_399 => format!("{} h {:02} m", seconds / 3_600, seconds % 3_600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3_600),
    }
}

/// A time as it is printed everywhere.
pub fn stamp(at: DateTime<Utc>) -> String {
    at.format("%F %T").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, seconds) in
            [("90s", 90), ("10m", 600), ("1h30m", 5_400), ("7d", 604_800), ("2000ms", 2), ("1min", 60)]
        {
            assert_eq!(duration(text), Ok(Duration::from_secs(seconds)));
        }
        for text in ["", "10", "m", "-1s", "1.5h", "1y", "99999999999999999999s", "18446744073709551615d", "1s 2s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn moments_are_days_times_and_how_long_ago_it_was() {
        assert_eq!(moment("2026-05-01").unwrap().to_rfc3339(), "2026-05-01T00:00:00+00:00");
        assert_eq!(moment("2026-05-01T12:00:00+02:00").unwrap().to_rfc3339(), "2026-05-01T10:00:00+00:00");
        assert_eq!(moment("2026-05-01 12:00:00").unwrap().to_rfc3339(), "2026-05-01T12:00:00+00:00");
        assert!((Utc::now() - moment("2h").unwrap()).num_minutes() >= 119);
        assert!(moment("yesterday").is_err());
        assert!(moment("300000000d").is_err());
    }

    #[test]
    fn a_time_is_told_in_few_letters() {
        let told = [340, 1_400, 125_000, 12_000_000, 187_200_000].map(|ms| short(Duration::from_millis(ms)));
        assert_eq!(told, ["340 ms", "1.4 s", "2 m 05 s", "3 h 20 m", "2 d 4 h"]);
    }
}
