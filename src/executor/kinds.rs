//! The kinds of failure that agents and providers have, and what follows each of them.
//!
//! Each is the name under which a failure is stored ([`FailureKind`](crate::FailureKind)), so that it can be counted and looked for.
//!
//! | kind | what happened | what follows |
//! |---|---|---|
//! | [`RATE_LIMITED`] | too many requests for now (429) | the pool waits for as long as it was asked to, and so does every other that asks the same provider; no attempt is used up. If nobody has said for how long, another attempt |
//! | [`QUOTA`] | what the account may use is used up, or it has no money left | the pool waits: until the reset if that is known, else for a person |
//! | [`OVERLOADED`] | the provider has too much to do (529) | another attempt; if it says when, not before that, and nobody else asks before either |
//! | [`SERVER_ERROR`] | the provider is broken (500, 502, 503) | the same |
//! | [`CONNECTION`] | no connection, or it was cut or timed out | another attempt |
//! | [`DROPPED`] | the connection was lost in the middle of an answer | another attempt |
//! | [`TRUNCATED`] | an answer stopped before its end, and nothing says why | another attempt |
//! | [`BAD_RESPONSE`] | what came back is not in the provider's form, or too much | another attempt |
//! | [`WRONG_URL`] | there is no such service at the address: no URL, a redirect, or nothing where it should be | the pool waits for a person |
//! | [`CERTIFICATE`] | nobody who is believed vouches for the server: an authority of one's own, an old certificate, another name | the pool waits for a person |
//! | [`AUTHENTICATION`] | no key, a wrong one, or one without the right (401, 403) | the pool waits for a person |
//! | [`INVALID_REQUEST`] | the provider will not take the request (400, 413), or it is too long | nothing: it would fail again |
//! | [`MODEL_NOT_FOUND`] | there is no such model for this account (404) | nothing |
//! | [`MAX_TURNS`] | it took as many turns as it may | nothing |
//! | [`COST_LIMIT`] | its unit has cost as much as it may ([`max_cost`](crate::NewUnit::max_cost)) | nothing: a further attempt would cost more |
//! | [`MAX_TOKENS`] | the answer is longer than the model may write | nothing: the next one would be as long, and as dear |
//! | [`REFUSED`] | the model, or what watches over it, refuses | nothing |
//! | [`CONTENT_FILTER`] | a filter of the provider's stopped the request or the answer | nothing |
//! | [`NO_STRUCTURED_OUTPUT`] | it answered, but not in the form that was asked for | another attempt |
//! | [`BAD_STRUCTURED_OUTPUT`] | it tried that form again and again, and never met it | nothing |
//! | [`SESSION_NOT_FOUND`] | the session to carry on is not there | nothing if the unit names it; another attempt without it if it is an earlier attempt's |
//! | [`INVALID_ARGUMENTS`] | the program does not take its arguments or its prompt | nothing |
//! | [`AGENT`] | the agent says that it failed, and nothing above fits | another attempt |
//! | [`INTERRUPTED`] | somebody else told the agent to stop | another attempt |
//! | [`NO_RESULT`] | the program ended without a result | another attempt |
//! | [`KILLED`] | a signal ended the program before it had a result | another attempt |
//! | [`SILENT`] | it said nothing for longer than allowed, and was ended | another attempt |
//! | [`NEVER_SPOKE`] | it said nothing at all after it was started or asked, and was ended | another attempt |
//! | [`EXIT_CODE`] | a command ended with another exit code than 0 | another attempt, unless it says otherwise |
//! | [`NO_PROGRAM`] | there is no such program, or it may not be run | the pool waits for a person |
//! | [`NOT_STARTED`] | the system could not start it now | another attempt |
//! | [`WORKSPACE`] | there is no directory to run it in, or it cannot be used | nothing |
//! | [`WORKER`] | a worker process says that it failed, and not of which kind | another attempt, unless it says otherwise |
//! | [`WORKER_CRASHED`] | a worker process ended, hung up, fell silent or made no sense while it worked | another attempt, as after every crash |
//! | [`WORKER_NOT_READY`] | a worker process did not come up | another attempt; after three in a row the pool waits for a person |
//! | [`REJECTED`] | no worker process took it: all are to end | another attempt |
//! | [`TIMED_OUT`] | it took longer than allowed, and was ended | as the pool says |
//! | [`CANCELLED`] | it was asked to stop, and was ended | as the pool says |

/// Too many requests for now.
pub const RATE_LIMITED: &str = "rate_limited";
/// What the account may use is used up.
pub const QUOTA: &str = "quota";
/// The provider has too much to do.
pub const OVERLOADED: &str = "overloaded";
/// The provider is broken.
pub const SERVER_ERROR: &str = "server_error";
/// No connection, or it was cut.
pub const CONNECTION: &str = "connection";
/// The connection was lost in the middle of an answer.
pub const DROPPED: &str = "dropped";
/// An answer stopped before its end.
pub const TRUNCATED: &str = "truncated";
/// What came back is not in the provider's form.
pub const BAD_RESPONSE: &str = "bad_response";
/// There is no such service at the address.
pub const WRONG_URL: &str = "wrong_url";
/// Nobody who is believed vouches for the server.
pub const CERTIFICATE: &str = "certificate";
/// No key, a wrong one, or one without the right.
pub const AUTHENTICATION: &str = "authentication";
/// The provider will not take the request.
pub const INVALID_REQUEST: &str = "invalid_request";
/// There is no such model.
pub const MODEL_NOT_FOUND: &str = "model_not_found";
/// It took as many turns as it may.
pub const MAX_TURNS: &str = "max_turns";
/// Its unit has cost as much as it may.
pub const COST_LIMIT: &str = "cost_limit";
/// The answer is longer than the model may write.
pub const MAX_TOKENS: &str = "max_tokens";
/// The model refuses.
pub const REFUSED: &str = "refused";
/// A filter of the provider's stopped it.
pub const CONTENT_FILTER: &str = "content_filter";
/// It answered, but not in the form that was asked for.
pub const NO_STRUCTURED_OUTPUT: &str = "no_structured_output";
/// It never met the form that was asked for.
pub const BAD_STRUCTURED_OUTPUT: &str = "bad_structured_output";
/// The session to carry on is not there.
pub const SESSION_NOT_FOUND: &str = "session_not_found";
/// The program does not take its arguments or its prompt.
pub const INVALID_ARGUMENTS: &str = "invalid_arguments";
/// The agent says that it failed.
pub const AGENT: &str = "agent";
/// Somebody else told the agent to stop.
pub const INTERRUPTED: &str = "interrupted";
/// The program ended without a result.
pub const NO_RESULT: &str = "no_result";
/// A signal ended the program.
pub const KILLED: &str = "killed";
/// It said nothing for longer than allowed.
pub const SILENT: &str = "silent";
/// It said nothing at all.
pub const NEVER_SPOKE: &str = "never_spoke";
/// A command ended with another exit code than 0.
pub const EXIT_CODE: &str = "exit_code";
/// There is no such program.
pub const NO_PROGRAM: &str = "no_program";
/// The system could not start it now.
pub const NOT_STARTED: &str = "not_started";
/// There is no directory to run it in.
pub const WORKSPACE: &str = "workspace";
/// A worker process says that it failed.
pub const WORKER: &str = "worker";
/// A worker process ended while it worked.
pub const WORKER_CRASHED: &str = "worker_crashed";
/// A worker process did not come up.
pub const WORKER_NOT_READY: &str = "worker_not_ready";
/// No worker process took it.
pub const REJECTED: &str = "rejected";
/// It took longer than allowed.
pub const TIMED_OUT: &str = "timed_out";
/// It was asked to stop.
pub const CANCELLED: &str = "cancelled";
