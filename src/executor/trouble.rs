//! What went wrong, and what follows: the table of [`kinds`](crate::executor::kinds) as code.

use chrono::{DateTime, Utc};

use crate::executor::{ExecuteError, Then, WorkResult, kinds};

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "http"), expect(dead_code, reason = "some are told apart only over HTTP"))]
pub(super) enum Trouble {
    RateLimited {
        until: Option<DateTime<Utc>>,
    },
    Quota {
        resets_at: Option<DateTime<Utc>>,
    },
    Overloaded,
    ServerError,
    Connection,
    Dropped,
    Truncated,
    BadResponse,
    WrongUrl,
    Certificate,
    Authentication,
    InvalidRequest,
    ModelNotFound,
    MaxTurns,
    CostLimit,
    MaxTokens,
    Refused,
    ContentFilter,
    NoStructuredOutput,
    BadStructuredOutput,
    /// The unit itself names a session that is not there.
    NamedSessionNotFound,
    /// The session of an earlier attempt is not there.
    OwnSessionNotFound,
    InvalidArguments,
    Agent,
    Interrupted,
    NoResult,
    Killed,
    Silent,
    NeverSpoke,
    TimedOut,
    Cancelled,
}

impl Trouble {
    /// The name under which it is stored.
    pub(super) fn kind(self) -> &'static str {
        match self {
            Trouble::RateLimited { .. } => kinds::RATE_LIMITED,
            Trouble::Quota { .. } => kinds::QUOTA,
            Trouble::Overloaded => kinds::OVERLOADED,
            Trouble::ServerError => kinds::SERVER_ERROR,
            Trouble::Connection => kinds::CONNECTION,
            Trouble::Dropped => kinds::DROPPED,
            Trouble::Truncated => kinds::TRUNCATED,
            Trouble::BadResponse => kinds::BAD_RESPONSE,
            Trouble::WrongUrl => kinds::WRONG_URL,
            Trouble::Certificate => kinds::CERTIFICATE,
            Trouble::Authentication => kinds::AUTHENTICATION,
            Trouble::InvalidRequest => kinds::INVALID_REQUEST,
            Trouble::ModelNotFound => kinds::MODEL_NOT_FOUND,
            Trouble::MaxTurns => kinds::MAX_TURNS,
            Trouble::CostLimit => kinds::COST_LIMIT,
            Trouble::MaxTokens => kinds::MAX_TOKENS,
            Trouble::Refused => kinds::REFUSED,
            Trouble::ContentFilter => kinds::CONTENT_FILTER,
            Trouble::NoStructuredOutput => kinds::NO_STRUCTURED_OUTPUT,
            Trouble::BadStructuredOutput => kinds::BAD_STRUCTURED_OUTPUT,
            Trouble::NamedSessionNotFound | Trouble::OwnSessionNotFound => kinds::SESSION_NOT_FOUND,
            Trouble::InvalidArguments => kinds::INVALID_ARGUMENTS,
            Trouble::Agent => kinds::AGENT,
            Trouble::Interrupted => kinds::INTERRUPTED,
            Trouble::NoResult => kinds::NO_RESULT,
            Trouble::Killed => kinds::KILLED,
            Trouble::Silent => kinds::SILENT,
            Trouble::NeverSpoke => kinds::NEVER_SPOKE,
            Trouble::TimedOut => kinds::TIMED_OUT,
            Trouble::Cancelled => kinds::CANCELLED,
        }
    }

    /// What follows.
    pub(super) fn then(self) -> Then {
        match self {
            // Who is one of too many is not to blame.
            Trouble::RateLimited { until: until @ Some(_) } => Then::Hold { until },
            Trouble::RateLimited { until: None }
            | Trouble::Overloaded
            | Trouble::ServerError
            | Trouble::Connection
            | Trouble::Dropped
            | Trouble::Truncated
            | Trouble::BadResponse
            | Trouble::NoStructuredOutput
            | Trouble::OwnSessionNotFound
            | Trouble::Agent
            | Trouble::Interrupted
            | Trouble::NoResult
            | Trouble::Killed
            | Trouble::Silent
            | Trouble::NeverSpoke
            | Trouble::TimedOut
            | Trouble::Cancelled => Then::Retry,
            Trouble::Quota { resets_at } => Then::Hold { until: resets_at },
            Trouble::WrongUrl | Trouble::Certificate | Trouble::Authentication => Then::Hold { until: None },
            Trouble::InvalidRequest
            | Trouble::ModelNotFound
            | Trouble::MaxTurns
            | Trouble::CostLimit
            | Trouble::MaxTokens
            | Trouble::Refused
            | Trouble::ContentFilter
            | Trouble::BadStructuredOutput
            | Trouble::NamedSessionNotFound
            | Trouble::InvalidArguments => Then::GiveUp,
        }
    }

    /// The error for the pool, with what came out of the attempt all the same.
    pub(super) fn error(self, message: impl Into<String>, result: WorkResult) -> ExecuteError {
        ExecuteError::following(self.then(), message).kind(self.kind()).result(result)
    }
}

/// What the status of a provider's answer means; `None` if it means nothing in particular.
pub(super) fn by_status(status: u64) -> Option<Trouble> {
    match status {
        401 | 403 => Some(Trouble::Authentication),
        402 => Some(Trouble::Quota { resets_at: None }),
        404 => Some(Trouble::ModelNotFound),
        408 => Some(Trouble::Connection),
        429 => Some(Trouble::RateLimited { until: None }),
        529 => Some(Trouble::Overloaded),
        400..500 => Some(Trouble::InvalidRequest),
        500..600 => Some(Trouble::ServerError),
        _ => None,
    }
}
