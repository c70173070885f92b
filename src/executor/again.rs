//! When to try again, where it is said in words alone: `Please try again in 1m12.5s.`

use std::time::Duration;

/// What stands before a duration in the words of those who ask to wait.
const ASKS: [&str; 3] = ["ry again in ", "etry in ", "etry after "];

/// What is longer is a mistake, not a pause.
const PAUSE_LIMIT: Duration = Duration::from_secs(32 * 24 * 60 * 60);

/// How long a text asks to wait, if it does.
pub(super) fn asked(text: &str) -> Option<Duration> {
    let behind = |ask: &str| Some(duration(text.split_once(ask)?.1)?.0);
    ASKS.into_iter().find_map(behind).filter(|pause| !pause.is_zero() && *pause <= PAUSE_LIMIT)
}

/// A duration such as `1h2m3.5s`, `120ms` or `3 days 4 hours`, and what stands behind it.
pub(super) fn duration(text: &str) -> Option<(Duration, &str)> {
    let (mut seconds, mut rest) = (None, text);
    while let Some((part, behind)) = one_part(rest) {
        seconds = Some(seconds.unwrap_or(0.0) + part);
        rest = behind;
    }
    Some((Duration::try_from_secs_f64(seconds?).ok()?, rest))
}

/// The seconds of a number and its unit, and what stands behind them.
fn one_part(text: &str) -> Option<(f64, &str)> {
    let text = text.trim_start_matches([' ', ',']);
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let number: f64 = text[..digits].parse().ok()?;
    let behind = text[digits..].trim_start_matches(' ');
    let end = behind.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(behind.len());
    let unit = match &behind[..end] {
        "d" | "day" | "days" => 86_400.0,
        "h" | "hour" | "hours" => 3_600.0,
        "m" | "min" | "minute" | "minutes" => 60.0,
        "s" | "sec" | "second" | "seconds" => 1.0,
        "ms" | "millisecond" | "milliseconds" => 0.001,
        _ => return None,
    };
    Some((number * unit, &behind[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_found_in_what_providers_and_agents_say() {
        let ms = Duration::from_millis;
        for (said, pause) in [
            ("Rate limit reached for gpt-5: Limit 30000, Used 29000. Please try again in 1.898s. Visit …", ms(1_898)),
            ("Please try again in 6ms.", ms(6)),
            ("try again in 1m12.5s", ms(72_500)),
            ("Upgrade to Pro or try again in 3 days 1 hour 5 minutes.", ms(263_100_000)),
            ("You exceeded your current quota. Please retry in 34.07s.", ms(34_070)),
            ("Please retry after 26 seconds.", ms(26_000)),
            ("Try again in 1 day, 2 hours", ms(93_600_000)),
        ] {
            assert_eq!(asked(said), Some(pause), "{said}");
        }
        for said in [
            "",
            "try again",
            "try again in a moment",
            "try again in 3",
            "try again in 3 sheep",
            "try again in 0s",
            "try again in 99 days",
            "try again in 1.2.3s",
            "retry after Wed",
        ] {
            assert_eq!(asked(said), None, "{said}");
        }
    }
}
