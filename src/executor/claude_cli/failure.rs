//! What a result that is an error means.
//!
//! An API error is a result of subtype `success` that is an error, preceded by an assistant message with an error's code. Neither the code
//! nor the status says all: a used up quota is a 429 too, and is known by the `rate_limit_event` with a time at which it resets.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::executor::Call;
use crate::executor::agent_cli::{Event, Trouble, by_status, number, session_not_found, text};

/// Times from here on are milliseconds since 1970; as seconds they would be after the year 5000.
const MILLISECONDS_FROM: i64 = 100_000_000_000;

/// What was said on the way that explains an error.
#[derive(Debug, Default)]
pub(super) struct Hints {
    /// The code of the last message that was an error.
    code: String,
    /// How long Claude Code itself waited after the last refusal because of too many requests.
    pause: Option<Duration>,
    /// When a used up quota can be used again.
    resets_at: Option<DateTime<Utc>>,
}

impl Hints {
    /// Takes note of what an event says about errors. Returns for how long nobody is to ask, if it says that.
    pub(super) fn note(&mut self, event: &Event, now: DateTime<Utc>) -> Option<Duration> {
        match (text(event, "type"), text(event, "subtype")) {
            // What stopped a subagent is not what stopped the run.
            ("assistant", _) if event.get("parent_tool_use_id").is_some_and(Value::is_string) => None,
            ("assistant", _) => {
                text(event, "error").clone_into(&mut self.code);
                None
            }
            ("system", "api_retry") => {
                let pause_ms = number(event, "retry_delay_ms");
                let is_known = number(event, "error_status") == 429 && pause_ms > 0;
                self.pause = is_known.then_some(Duration::from_millis(pause_ms));
                self.pause
            }
            ("rate_limit_event", _) => {
                let limit = event.get("rate_limit_info").and_then(Value::as_object);
                // What goes on at a higher price is not refused.
                let is_refused = |limit: &&Event| {
                    text(limit, "status") == "rejected" && limit.get("isUsingOverage") != Some(&Value::Bool(true))
                };
                let rejected = limit.filter(is_refused);
                self.resets_at =
                    rejected.and_then(|limit| limit.get("resetsAt")).and_then(Value::as_i64).and_then(time);
                self.resets_at.and_then(|time| (time - now).to_std().ok())
            }
            _ => None,
        }
    }
}

/// What went wrong.
pub(super) fn trouble(result: &Event, hints: &Hints, call: &Call<'_>) -> Trouble {
    match text(result, "subtype") {
        "error_max_turns" => Trouble::MaxTurns,
        "error_max_budget_usd" => Trouble::CostLimit,
        "error_max_structured_output_retries" => Trouble::BadStructuredOutput,
        "error_during_execution" => during_execution(result, call),
        _ => of_api(result, hints, call.clock.now().wall),
    }
}

fn during_execution(result: &Event, call: &Call<'_>) -> Trouble {
    if lacks_session(result) {
        session_not_found(call)
    } else if text(result, "terminal_reason").starts_with("aborted") {
        Trouble::Interrupted
    } else {
        Trouble::Agent
    }
}

/// Whether the session that was to be carried on is not there.
pub(super) fn lacks_session(result: &Event) -> bool {
    let errors = result.get("errors").and_then(Value::as_array);
    let says = |text: &str| errors.into_iter().flatten().filter_map(Value::as_str).any(|error| error.contains(text));
    says("No conversation found") || says("--resume requires a valid session")
}

fn of_api(result: &Event, hints: &Hints, now: DateTime<Utc>) -> Trouble {
    let status = by_status(number(result, "api_error_status"));
    let said = text(result, "result");
    if text(result, "stop_reason") == "refusal" {
        return Trouble::Refused;
    }
    match hints.code.as_str() {
        "max_output_tokens" => return Trouble::MaxTokens,
        "billing_error" => return Trouble::Quota { resets_at: None },
        "authentication_failed" | "oauth_org_not_allowed" => return Trouble::Authentication,
        "model_not_found" => return Trouble::ModelNotFound,
        _ => {}
    }
    let is_overload = text(result, "api_error_type") == "overloaded_error";
    match (status, hints.code.as_str()) {
        (Some(Trouble::RateLimited { .. }), _) | (None, "rate_limit") => limited(said, hints, now),
        _ if is_overload => Trouble::Overloaded,
        (Some(trouble), _) => trouble,
        (None, "invalid_request") => Trouble::InvalidRequest,
        (None, "overloaded") => Trouble::Overloaded,
        // Without a status there was no answer at all.
        (None, "server_error") => Trouble::Connection,
        (None, _) => Trouble::Agent,
    }
}

/// Too many requests for now, or for a longer while.
fn limited(said: &str, hints: &Hints, now: DateTime<Utc>) -> Trouble {
    // Older versions put the time behind the text.
    let behind = || said.rsplit_once('|').and_then(|(_, seconds)| seconds.trim().parse().ok()).and_then(time);
    let resets_at = hints.resets_at.or_else(behind);
    let is_quota = said.contains("You've hit your")
        || said.contains("usage limit reached")
        || said.contains("Usage credits required")
        || said.contains("out of extra usage");
    match resets_at {
        Some(time) if time > now => Trouble::Quota { resets_at },
        None if is_quota => Trouble::Quota { resets_at: None },
        // Whoever waits for a time that is over does not wait at all; the usual pauses do better.
        _ => Trouble::RateLimited {
            until: hints.pause.and_then(|pause| now.checked_add_signed(TimeDelta::from_std(pause).ok()?)),
        },
    }
}

/// A time in seconds or milliseconds since 1970.
fn time(number: i64) -> Option<DateTime<Utc>> {
    if number >= MILLISECONDS_FROM {
        DateTime::from_timestamp_millis(number)
    } else {
        DateTime::from_timestamp(number, 0)
    }
}
