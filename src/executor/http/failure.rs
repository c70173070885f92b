//! What went wrong between here and a provider, and what follows.
//!
//! | what came | what it means |
//! |---|---|
//! | an error with a name that says all, such as `insufficient_quota` | what the name says, whatever the status: a used up quota is a 429 too |
//! | another error, with a status | what the status says |
//! | an error in the middle of a stream, which has no status | what its name says |
//! | a redirect; 404 or 405 in no form of a provider, or about the path | there is no such service at the address |
//! | a connection that failed | depends on how far it was: see [`Failure::broken`] |

use std::io;
use std::time::Duration;

use chrono::{DateTime, NaiveDateTime, Utc};
use serde_json::{Value, json};
use ureq::Timeout;

use crate::conversation::{Message, Part, Role};
use crate::executor::trouble::{Trouble, by_status};
use crate::executor::{Call, CancelReason, ExecuteError, Then, WorkResult, again};

/// How much of a text that a provider sent is part of an error's message.
const SHOWN_LIMIT_CHARS: usize = 500;

/// One thing that went wrong.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) trouble: Trouble,
    pub(super) message: String,
    pub(super) then: Then,
    /// What the provider sent that shows it, for the conversation.
    pub(super) evidence: Option<Box<Message>>,
}

impl Failure {
    pub(super) fn new(trouble: Trouble, message: impl Into<String>) -> Failure {
        Failure { trouble, message: message.into(), then: trouble.then(), evidence: None }
    }

    /// Something else follows than usually does.
    pub(super) fn then(mut self, then: Then) -> Failure {
        self.then = then;
        self
    }

    /// Keeps what shows it.
    pub(super) fn evidence(mut self, kind: &str, value: Value, raw: Vec<u8>) -> Failure {
        let part = Part::Other { kind: kind.to_owned(), value };
        self.evidence = Some(Box::new(Message::new(Role::System).part(part).raw(raw)));
        self
    }

    /// If it is to be tried again, then not before that. Who is one of too many holds the whole pool: it is not about this attempt, which does
    /// not count.
    fn pausing(mut self, pause: Option<Duration>, now: DateTime<Utc>) -> Failure {
        if let (Then::Retry | Then::RetryAfter(_), Some(pause)) = (self.then, pause) {
            self.then = match self.trouble {
                Trouble::RateLimited { .. } if !pause.is_zero() => Then::Hold { until: Some(now + pause) },
                _ => Then::RetryAfter(pause),
            };
        }
        self
    }

    /// The error for the pool, with what came out of the attempt all the same.
    pub(super) fn error(self, result: WorkResult) -> ExecuteError {
        ExecuteError::following(self.then, self.message).kind(self.trouble.kind()).result(result)
    }

    /// The provider says that something is wrong. How long it asks to wait it may say in words alone.
    pub(super) fn told(said: &Said, pause: Option<Duration>, now: DateTime<Utc>) -> Failure {
        let pause = pause.or_else(|| again::asked(&said.message));
        let trouble = said.trouble(pause, now);
        Failure::new(trouble, said.to_string()).pausing(pause, now)
    }

    /// What is at the address is no such service.
    pub(super) fn nobody_there(status: u16, text: &str) -> Failure {
        let what = if (300..400).contains(&status) { "leads elsewhere" } else { "has no such service" };
        Failure::new(Trouble::WrongUrl, format!("the base URL {what}: status {status}{}", behind(text)))
    }

    /// What came back makes no sense.
    pub(super) fn senseless(what: &str, bytes: &[u8]) -> Failure {
        let text = shown(&String::from_utf8_lossy(bytes));
        Failure::new(Trouble::BadResponse, format!("{what}{}", behind(&text)))
    }

    /// A connection that failed, before an answer began or in the middle of it.
    pub(super) fn broken(error: ureq::Error, how_far: HowFar, call: &Call<'_>) -> Failure {
        if let Some(reason) = call.cancel_reason() {
            return Failure::stopped(reason);
        }
        let lost = match how_far {
            HowFar::Asked => Trouble::Connection,
            HowFar::Answering => Trouble::Dropped,
        };
        match error {
            ureq::Error::Timeout(Timeout::Resolve | Timeout::Connect) => {
                Failure::new(Trouble::Connection, "no connection in time")
            }
            ureq::Error::Timeout(Timeout::RecvResponse) => {
                Failure::new(Trouble::NeverSpoke, "the provider did not begin to answer in time")
            }
            ureq::Error::Timeout(_) => Failure::new(Trouble::Silent, "the provider sent nothing for too long"),
            ureq::Error::Io(error) => Failure::new(lost, lost_text(&error, how_far)),
            ureq::Error::HostNotFound => Failure::new(Trouble::Connection, "there is no such host"),
            // It repeats the address, which may hold a secret.
            ureq::Error::BadUri(_) => Failure::new(Trouble::WrongUrl, "the base URL is none"),
            ureq::Error::Protocol(error) => {
                Failure::new(Trouble::BadResponse, format!("what came back is not HTTP: {error}"))
            }
            error @ ureq::Error::LargeResponseHeader(..) => Failure::new(Trouble::BadResponse, error.to_string()),
            error => Failure::new(lost, error.to_string()),
        }
    }

    /// It was to stop.
    pub(super) fn stopped(reason: CancelReason) -> Failure {
        match reason {
            CancelReason::TimedOut => Failure::new(Trouble::TimedOut, "the answer took too long"),
            _ => Failure::new(Trouble::Cancelled, "it was to stop, and hung up"),
        }
    }
}

/// How far a request was when its connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HowFar {
    /// Nothing of an answer was there.
    Asked,
    /// An answer had begun.
    Answering,
}

fn lost_text(error: &io::Error, how_far: HowFar) -> String {
    match (error.kind(), how_far) {
        (io::ErrorKind::UnexpectedEof, HowFar::Asked) => "the connection was closed before an answer".to_owned(),
        (io::ErrorKind::UnexpectedEof, HowFar::Answering) => {
            "the connection was lost in the middle of an answer".to_owned()
        }
        (_, HowFar::Asked) => format!("no connection: {error}"),
        (_, HowFar::Answering) => format!("the connection was lost in the middle of an answer: {error}"),
    }
}

/// An error in the words of a provider.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The status of the answer, if it is one.
    pub(super) status: Option<u16>,
    /// What the provider calls it, the most exact name first.
    pub(super) names: Vec<String>,
    pub(super) message: String,
}

impl Said {
    /// Reads an error in any of the forms that providers and their imitators have; `None` if it is none.
    pub(super) fn read(body: &Value) -> Option<Said> {
        let error = match body.get("error") {
            Some(Value::Object(error)) => error,
            Some(Value::String(message)) => return Some(Said { message: message.clone(), ..Said::default() }),
            _ if body.get("object").and_then(Value::as_str) == Some("error") => body.as_object()?,
            _ => {
                let detail = body.get("detail").filter(|detail| !detail.is_null())?;
                let message = detail.as_str().map_or_else(|| detail.to_string(), str::to_owned);
                return Some(Said { message, ..Said::default() });
            }
        };
        let code = error.get("code");
        let details = error.get("details").and_then(|details| details.get("error_code"));
        let names = [details, code, error.get("type")].into_iter().flatten().filter_map(Value::as_str);
        Some(Said {
            status: code.and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok()),
            names: names.map(str::to_owned).collect(),
            message: error.get("message").and_then(Value::as_str).unwrap_or_default().to_owned(),
        })
    }

    /// Whether nothing is where it was asked for, which is told as an error like all others.
    pub(super) fn is_about_the_path(&self) -> bool {
        ["Not Found", "Method Not Allowed"].contains(&self.message.as_str()) || self.message.starts_with("Invalid URL")
    }

    /// The same, said with a status.
    pub(super) fn with_status(mut self, status: u16) -> Said {
        self.status = Some(status);
        self
    }

    fn trouble(&self, pause: Option<Duration>, now: DateTime<Utc>) -> Trouble {
        let by_name = |is_exact| self.names.iter().find_map(move |name| by_name(name, is_exact));
        // A request that is more than a limit will be so at any time.
        if self.message.starts_with("Request too large") {
            return Trouble::InvalidRequest;
        }
        if let Some(trouble) = by_name(true).or_else(|| self.spent()) {
            return match trouble {
                Trouble::Quota { resets_at: None } => {
                    Trouble::Quota { resets_at: regained_at(&self.message).or_else(|| pause.map(|pause| now + pause)) }
                }
                trouble => trouble,
            };
        }
        match self.status {
            // Somebody else does the same at this moment.
            Some(409 | 425) => Trouble::ServerError,
            Some(status @ 400..600) => by_status(u64::from(status)).unwrap_or(Trouble::BadResponse),
            _ => by_name(false).unwrap_or(Trouble::ServerError),
        }
    }

    /// An account without money is told only in words by some.
    fn spent(&self) -> Option<Trouble> {
        let says = |text: &str| self.message.contains(text);
        let is_spent =
            says("credit balance is too low") || says("API usage limits") || says("exceeded your current quota");
        is_spent.then_some(Trouble::Quota { resets_at: None })
    }
}

impl std::fmt::Display for Said {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the provider says")?;
        if let Some(status) = self.status {
            write!(f, " {status}")?;
        }
        if let Some(name) = self.names.first() {
            write!(f, " {name}")?;
        }
        f.write_str(&behind(&shown(&self.message)))
    }
}

/// What the name of an error means: one that says more than a status does, or any.
fn by_name(name: &str, is_exact: bool) -> Option<Trouble> {
    let exact = match name {
        "insufficient_quota"
        | "credit_balance_exhausted"
        | "enforced_spend_limit_reached"
        | "billing_error"
        | "billing_hard_limit_reached"
        | "billing_not_active"
        | "insufficient_credits"
        | "insufficient_balance" => Some(Trouble::Quota { resets_at: None }),
        "content_filter" | "content_policy_violation" => Some(Trouble::ContentFilter),
        "model_not_found" => Some(Trouble::ModelNotFound),
        "overloaded_error" | "engine_overloaded" => Some(Trouble::Overloaded),
        "context_length_exceeded" | "request_too_large" => Some(Trouble::InvalidRequest),
        "invalid_api_key" => Some(Trouble::Authentication),
        _ => None,
    };
    if is_exact || exact.is_some() {
        return exact;
    }
    match name {
        "rate_limit_error" | "rate_limit_exceeded" => Some(Trouble::RateLimited { until: None }),
        "authentication_error" | "permission_error" => Some(Trouble::Authentication),
        "not_found_error" => Some(Trouble::ModelNotFound),
        "invalid_request_error" => Some(Trouble::InvalidRequest),
        _ => None,
    }
}

/// When an account may be used again, as Anthropic says it: `You will regain access on 2026-12-01 at 00:00 UTC.`
fn regained_at(message: &str) -> Option<DateTime<Utc>> {
    let (_, time) = message.split_once("regain access on ")?;
    let time = time.get(..time.find(" UTC")?)?;
    NaiveDateTime::parse_from_str(time, "%Y-%m-%d at %H:%M").ok().map(|time| time.and_utc())
}

/// A text as it stands in an error: on one line, and not too long.
pub(super) fn shown(text: &str) -> String {
    let mut shown: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = shown.char_indices().nth(SHOWN_LIMIT_CHARS) {
        shown.truncate(end);
        shown.push('…');
    }
    shown
}

/// A text behind another.
fn behind(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(": {text}") }
}

/// What is kept of an answer that is an error.
pub(super) fn answer_as_evidence(status: u16, request_id: Option<&str>, body: &[u8]) -> Value {
    let text = || Value::String(String::from_utf8_lossy(body).into_owned());
    let body = serde_json::from_slice(body).unwrap_or_else(|_| text());
    json!({ "status": status, "request_id": request_id, "body": body })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        "2026-10-21T07:28:00Z".parse().unwrap()
    }

    fn trouble(status: Option<u16>, body: Value) -> Trouble {
        let said = Said::read(&body).unwrap();
        Said { status: status.or(said.status), ..said }.trouble(None, now())
    }

    #[test]
    fn errors_are_read_in_every_form() {
        let read = |body: Value| Said::read(&body).map(|said| (said.status, said.names.join(" "), said.message));
        let said = |status, names: &str, message: &str| Some((status, names.to_owned(), message.to_owned()));
        let anthropic =
            json!({ "type": "error", "error": { "type": "api_error", "message": "oh" }, "request_id": "r" });
        assert_eq!(read(anthropic), said(None, "api_error", "oh"));
        let openai =
            json!({ "error": { "message": "oh", "type": "tokens", "param": null, "code": "rate_limit_exceeded" } });
        assert_eq!(read(openai), said(None, "rate_limit_exceeded tokens", "oh"));
        assert_eq!(read(json!({ "error": { "code": 502, "message": "oh" } })), said(Some(502), "", "oh"));
        assert_eq!(read(json!({ "error": "oh" })), said(None, "", "oh"));
        assert_eq!(read(json!({ "detail": "oh" })), said(None, "", "oh"));
        assert_eq!(read(json!({ "detail": [{ "msg": "oh" }] })), said(None, "", r#"[{"msg":"oh"}]"#));
        let vllm = json!({ "object": "error", "message": "oh", "type": "BadRequestError", "code": 400 });
        assert_eq!(read(vllm), said(Some(400), "BadRequestError", "oh"));
        for body in [json!({ "id": "x" }), json!([]), json!("x"), json!({ "error": null }), json!({ "detail": null })] {
            assert_eq!(read(body), None);
        }
    }

    #[test]
    fn an_exact_name_counts_more_than_a_status_and_a_status_more_than_another_name() {
        let error = |name: &str| json!({ "error": { "type": name, "message": "oh" } });
        let quota = Trouble::Quota { resets_at: None };
        let limited = Trouble::RateLimited { until: None };
        for (status, name, expected) in [
            (Some(429), "insufficient_quota", quota),
            (Some(429), "rate_limit_error", limited),
            (Some(400), "content_filter", Trouble::ContentFilter),
            (Some(400), "invalid_request_error", Trouble::InvalidRequest),
            (Some(401), "invalid_request_error", Trouble::Authentication),
            (Some(402), "whatever", quota),
            (Some(403), "permission_error", Trouble::Authentication),
            (Some(404), "not_found_error", Trouble::ModelNotFound),
            (Some(409), "conflict_error", Trouble::ServerError),
            (Some(413), "request_too_large", Trouble::InvalidRequest),
            (Some(500), "api_error", Trouble::ServerError),
            (Some(503), "engine_overloaded", Trouble::Overloaded),
            (Some(529), "overloaded_error", Trouble::Overloaded),
            (None, "overloaded_error", Trouble::Overloaded),
            (None, "rate_limit_error", limited),
            (None, "invalid_request_error", Trouble::InvalidRequest),
            (None, "something_new", Trouble::ServerError),
        ] {
            assert_eq!(trouble(status, error(name)), expected, "{status:?} {name}");
        }
    }

    #[test]
    fn an_account_without_money_is_known_by_its_words_and_may_say_until_when() {
        let error = |message: &str| json!({ "error": { "type": "invalid_request_error", "message": message } });
        let low = error("Your credit balance is too low to access the Anthropic API.");
        assert_eq!(trouble(Some(400), low), Trouble::Quota { resets_at: None });
        let limit =
            "You have reached your specified API usage limits. You will regain access on 2026-12-01 at 00:00 UTC.";
        let resets_at = Some("2026-12-01T00:00:00Z".parse().unwrap());
        assert_eq!(trouble(Some(400), error(limit)), Trouble::Quota { resets_at });
        assert_eq!(regained_at("regain access on tomorrow UTC"), None);
    }

    #[test]
    fn a_quota_with_a_pause_is_over_then() {
        let said = Said { names: vec!["insufficient_quota".to_owned()], ..Said::default() }.with_status(429);
        let failure = Failure::told(&said, Some(Duration::from_secs(60)), now());
        assert_eq!(failure.then, Then::Hold { until: Some(now() + Duration::from_secs(60)) });
    }

    #[test]
    fn whatever_is_tried_again_is_so_not_before_it_was_asked_for() {
        let pause = Duration::from_secs(7);
        let follows = |status, pause| Failure::told(&Said::default().with_status(status), pause, now()).then;
        for status in [500, 503, 529] {
            assert_eq!(follows(status, Some(pause)), Then::RetryAfter(pause), "{status}");
            assert_eq!(follows(status, None), Then::Retry, "{status}");
        }
        // One of too many is not to blame: all wait.
        assert_eq!(follows(429, Some(pause)), Then::Hold { until: Some(now() + pause) });
        assert_eq!(follows(429, Some(Duration::ZERO)), Then::RetryAfter(Duration::ZERO));
        assert_eq!(follows(429, None), Then::Retry);
        let given_up = Failure::told(&Said::default().with_status(400), Some(Duration::ZERO), now());
        assert_eq!(given_up.then, Then::GiveUp);
    }

    #[test]
    fn a_long_page_is_shown_on_one_short_line() {
        let said = shown(&format!("<html>\n\n  <b>502</b>{}", "é".repeat(1_000)));
        assert!(said.starts_with("<html> <b>502</b>é") && said.ends_with("é…"));
        assert_eq!(said.chars().count(), SHOWN_LIMIT_CHARS + 1);
    }
}
