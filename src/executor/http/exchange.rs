//! One request and its answer.
//!
//! A request has a connection of its own, which is given up as soon as the provider says that nothing more comes: one that lingers after that
//! keeps nobody. A cancel shuts the connection down, from whichever thread it comes, so that whoever waits for bytes returns at once; who waits for
//! a name or a connection is waited for by nobody any more ([`errand`]).
//!
//! Nothing is followed anywhere: a redirect would take the key to somebody else.

use std::io::{self, Read};
use std::time::Duration;

use serde_json::Value;
use ureq::http::{HeaderMap, HeaderValue, Response, header};
use ureq::{Agent, Body, Proxy};

use super::address::Address;
use super::errand::{self, Ended, LeftBehind};
use super::failure::{Failure, HowFar, Said, answer_as_evidence, shown};
use super::pause;
use super::secret::{End, Secrets};
use super::settings::Settings;
use super::sse::SseReader;
use super::trust;
use super::wire::{ANSWER_LIMIT_BYTES, Reply, Stop, Wire};
use crate::executor::trouble::Trouble;
use crate::executor::{Call, Then, kinds};

/// How much of an answer that is an error is read.
const ERROR_LIMIT_BYTES: u64 = 64 * 1024;

/// How much is read at a time.
const READ_BYTES: usize = 16 * 1024;

/// What ends a stream of chunks.
const END_MARK: &[u8] = b"[DONE]";

/// How far a request came before it failed, if it did.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) failure: Option<Failure>,
    /// Whether the provider took it: from then on it costs.
    pub(super) is_accepted: bool,
    pub(super) sent_bytes: usize,
}

/// Everything that a request needs, for one attempt.
pub(super) struct Exchange<'a> {
    settings: &'a Settings,
    left_behind: &'a LeftBehind,
    call: &'a Call<'a>,
    address: Address,
    agent: Agent,
}

impl<'a> Exchange<'a> {
    pub(super) fn new<W: Wire>(
        settings: &'a Settings,
        left_behind: &'a LeftBehind,
        call: &'a Call<'a>,
    ) -> Result<Exchange<'a>, Failure> {
        let address = Address::of(&settings.base_url, W::PATH)?;
        let proxy = if settings.uses_proxy { Proxy::try_from_env() } else { None };
        let trust = trust::config(settings.authorities.as_deref())?;
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .tls_config(trust)
            .user_agent(concat!("workcrew/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity")
            .timeout_resolve(Some(settings.connect_limit))
            .timeout_connect(Some(settings.connect_limit))
            .timeout_recv_response(settings.first_byte_limit)
            .timeout_per_read(settings.silence_limit)
            .build();
        Ok(Exchange { settings, left_behind, call, address, agent: Agent::new_with_config(config) })
    }

    /// Asks, and puts together what comes, telling of every step.
    pub(super) fn ask<W: Wire>(
        &self,
        body: &Value,
        reply: &mut W::Reply,
        heard: &mut dyn FnMut(&W::Reply, &Secrets),
    ) -> Outcome {
        let body = body.to_string();
        let mut outcome = Outcome { failure: None, is_accepted: false, sent_bytes: body.len() };
        let hang_up = {
            let agent = self.agent.clone();
            self.call.cancel_token().on_cancel(move || agent.shutdown())
        };
        let answered = self.answer::<W>(body, reply, heard, &mut outcome);
        drop(hang_up);
        outcome.failure = answered.err();
        outcome
    }

    fn answer<W: Wire>(
        &self,
        body: String,
        reply: &mut W::Reply,
        heard: &mut dyn FnMut(&W::Reply, &Secrets),
        outcome: &mut Outcome,
    ) -> Result<(), Failure> {
        let key = self.settings.key.read()?;
        let secrets = self.secrets(key.as_deref());
        let hidden = |failure: Failure| Failure { message: secrets.hide(&failure.message), ..failure };
        let response = self.send::<W>(body, key.as_deref()).map_err(hidden)?;
        let now = self.call.clock.now().wall;
        if !response.status().is_success() {
            let pause = pause::pause(response.headers(), now);
            let failure = self.refusal(response, pause.map(pause::rounded_up), &secrets);
            // Of an error that holds the pool by itself it hears in a moment.
            let told = pause.filter(|_| !matches!(failure.then, Then::Hold { .. }));
            self.wait(told);
            return Err(hidden(failure));
        }
        self.wait(pause::used_up(response.headers(), now));
        let taken = self.take(response, reply, heard, &secrets, &mut outcome.is_accepted);
        let end = if taken.is_ok() && reply.stop() != Stop::MaxTokens { End::Whole } else { End::CutOff };
        reply.hide(&secrets.veil(end));
        taken.map_err(hidden)
    }

    /// What somebody else has said, without what must not be recorded.
    pub(super) fn hidden(&self, said: Result<String, String>) -> Result<Result<String, String>, Failure> {
        let secrets = self.secrets(self.settings.key.read()?.as_deref());
        Ok(said.map(|text| secrets.hide(&text)).map_err(|error| secrets.hide(&error)))
    }

    fn secrets(&self, key: Option<&str>) -> Secrets {
        let headers = self.settings.headers.iter().map(|(_, value)| value.clone());
        let known = headers.chain(self.address.secrets.iter().cloned()).chain(self.proxy_secrets());
        Secrets::of(key.map(str::to_owned).into_iter().chain(known))
    }

    /// Who goes through a proxy may be known to it by a password.
    fn proxy_secrets(&self) -> impl Iterator<Item = String> {
        let proxy = self.agent.config().proxy();
        let parts = proxy.map(|proxy| (proxy.username().unwrap_or_default(), proxy.password().unwrap_or_default()));
        parts.into_iter().flat_map(|(user, password)| [format!("{user}:{password}"), password.to_owned()])
    }

    /// Lets nobody ask before the time that the provider has asked for.
    fn wait(&self, pause: Option<Duration>) {
        if let Some(pause) = pause {
            let reason = format!("{}: the provider asks to wait for {pause:?}", kinds::RATE_LIMITED);
            self.call.hold(pause::rounded_up(pause), reason);
        }
    }

    fn send<W: Wire>(&self, body: String, key: Option<&str>) -> Result<Response<Body>, Failure> {
        let own = self.settings.headers.iter().map(|(name, value)| (name.as_str(), value.clone()));
        let mut request = self.agent.post(&self.address.url);
        request = request.header(header::CONTENT_TYPE, "application/json");
        request = request.header(header::ACCEPT, "text/event-stream, application/json");
        for (name, value) in W::headers(key).into_iter().chain(own) {
            let mut value = HeaderValue::try_from(value).map_err(|_| not_to_be_sent(name))?;
            value.set_sensitive(true);
            request = request.header(name, value);
        }
        let ended = errand::run(move || request.send(body), self.call.cancel_token(), self.left_behind);
        let answered = match ended.unwrap_or_else(|error| Ended::Answered(Err(error.into()))) {
            Ended::Answered(answered) => answered,
            Ended::Cancelled(reason) => return Err(Failure::stopped(reason)),
        };
        answered.map_err(|error| {
            let untrusted = trust::failure(&error.to_string(), self.settings.authorities.as_deref());
            let failure = untrusted.unwrap_or_else(|| Failure::broken(error, HowFar::Asked, self.call));
            Failure { message: format!("{}: {}", self.address.shown, failure.message), ..failure }
        })
    }

    /// What an answer means that is an error.
    fn refusal(&self, response: Response<Body>, pause: Option<Duration>, secrets: &Secrets) -> Failure {
        let status = response.status().as_u16();
        let id = request_id(response.headers()).map(|id| secrets.hide(&id));
        let packed = packed(response.headers());
        let mut body = Vec::new();
        // Nobody can say what is in what is packed: a key may be. Else what there is of it says more than why there is not all.
        if packed.is_none() {
            let _ = response.into_body().into_reader().take(ERROR_LIMIT_BYTES).read_to_end(&mut body);
            secrets.hide_in(&mut body);
        }
        if let Some(reason) = self.call.cancel_reason() {
            return Failure::stopped(reason);
        }
        let said = serde_json::from_slice(&body).ok().and_then(|body| Said::read(&body));
        let text = || packed.clone().unwrap_or_else(|| shown(&String::from_utf8_lossy(&body)));
        let is_there = |said: &Said| !matches!(status, 404 | 405) || !said.is_about_the_path();
        let failure = match (said.filter(is_there), status) {
            (_, 300..400) | (None, 404 | 405) => Failure::nobody_there(status, &text()),
            (None, 400) if trust::wants_tls(&text()) => Failure::nobody_there(status, &text()),
            (said, _) => {
                let said = said.unwrap_or_else(|| Said { message: text(), ..Said::default() });
                Failure::told(&said.with_status(status), pause, self.call.clock.now().wall)
            }
        };
        let evidence = answer_as_evidence(status, id.as_deref(), &body);
        failure.evidence("http_error", evidence, body)
    }

    /// Takes an answer, as a stream or as a whole.
    fn take<R: Reply>(
        &self,
        response: Response<Body>,
        reply: &mut R,
        heard: &mut dyn FnMut(&R, &Secrets),
        secrets: &Secrets,
        is_accepted: &mut bool,
    ) -> Result<(), Failure> {
        let headers = response.headers();
        let text = |name| headers.get(name).and_then(|value: &HeaderValue| value.to_str().ok()).unwrap_or_default();
        let kind = text(header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim().to_owned();
        if let Some(what) = packed(headers) {
            return Err(Failure::new(Trouble::BadResponse, what));
        }
        let body = response.into_body().into_reader();
        match kind.to_ascii_lowercase().as_str() {
            "" | "text/event-stream" => {
                *is_accepted = true;
                self.take_stream(body, reply, heard, secrets)
            }
            "application/json" => self.take_whole(body, reply, secrets, is_accepted),
            _ => {
                let mut beginning = Vec::new();
                let _ = body.take(ERROR_LIMIT_BYTES).read_to_end(&mut beginning);
                secrets.hide_in(&mut beginning);
                Err(Failure::senseless(&format!("the answer is of type `{kind}`"), &beginning))
            }
        }
    }

    fn take_stream<R: Reply>(
        &self,
        mut body: impl Read,
        reply: &mut R,
        heard: &mut dyn FnMut(&R, &Secrets),
        secrets: &Secrets,
    ) -> Result<(), Failure> {
        let (mut reader, mut events, mut bytes) = (SseReader::new(), Vec::new(), vec![0; READ_BYTES]);
        while !reply.is_over() {
            let count = match body.read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => count,
                // What is missing is only about money.
                Err(_) if reply.is_answered() => return Ok(()),
                Err(error) => return Err(self.lost(error)),
            };
            let pushed = reader.push(&bytes[..count], &mut events);
            for mut event in events.drain(..) {
                if event.data.trim_ascii() == END_MARK {
                    return self.ended(reply);
                }
                secrets.hide_in(&mut event.data);
                self.take_event(&event.data, reply)?;
                heard(reply, secrets);
            }
            pushed.map_err(|too_long| Failure::new(Trouble::BadResponse, too_long.to_string()))?;
        }
        self.ended(reply)
    }

    fn take_event<R: Reply>(&self, data: &[u8], reply: &mut R) -> Result<(), Failure> {
        let Ok(event) = serde_json::from_slice::<Value>(data) else {
            let failure = Failure::senseless("an event of the stream is no JSON", data);
            let text = String::from_utf8_lossy(data).into_owned();
            return Err(failure.evidence("unread_event", Value::String(text), data.to_vec()));
        };
        if let Err(said) = reply.take(&event) {
            let failure = Failure::told(&said, None, self.call.clock.now().wall);
            return Err(failure.evidence("error", event, data.to_vec()));
        }
        if reply.kept_bytes() > ANSWER_LIMIT_BYTES {
            let what = format!("the answer is longer than {ANSWER_LIMIT_BYTES} bytes");
            return Err(Failure::new(Trouble::BadResponse, what));
        }
        Ok(())
    }

    fn take_whole<R: Reply>(
        &self,
        body: impl Read,
        reply: &mut R,
        secrets: &Secrets,
        is_accepted: &mut bool,
    ) -> Result<(), Failure> {
        *is_accepted = true;
        let mut bytes = Vec::new();
        let limit_bytes = ANSWER_LIMIT_BYTES as u64;
        body.take(limit_bytes + 1).read_to_end(&mut bytes).map_err(|error| self.lost(error))?;
        if bytes.len() as u64 > limit_bytes {
            let what = format!("the answer is longer than {limit_bytes} bytes");
            return Err(Failure::new(Trouble::BadResponse, what));
        }
        secrets.hide_in(&mut bytes);
        let body: Value =
            serde_json::from_slice(&bytes).map_err(|_| Failure::senseless("the answer is no JSON", &bytes))?;
        if let Some(said) = Said::read(&body) {
            *is_accepted = false;
            let failure = Failure::told(&said, None, self.call.clock.now().wall);
            return Err(failure.evidence("error", body, bytes));
        }
        reply.take_whole(&body);
        self.ended(reply)
    }

    fn lost(&self, error: io::Error) -> Failure {
        Failure::broken(error.into(), HowFar::Answering, self.call)
    }

    /// Nothing more comes: that is the end of an answer, if it has one.
    fn ended<R: Reply>(&self, reply: &R) -> Result<(), Failure> {
        match self.call.cancel_reason() {
            _ if reply.is_answered() => Ok(()),
            // A connection that was shut down looks like one that has ended.
            Some(reason) => Err(Failure::stopped(reason)),
            None => Err(Failure::new(Trouble::Truncated, "the answer stopped before its end")),
        }
    }
}

fn not_to_be_sent(name: &str) -> Failure {
    Failure::new(Trouble::InvalidRequest, format!("the header `{name}` has a value that cannot be sent"))
}

/// That an answer is packed, if it is.
fn packed(headers: &HeaderMap) -> Option<String> {
    let encoding = headers.get(header::CONTENT_ENCODING)?.to_str().unwrap_or("something");
    let is_plain = encoding.trim().is_empty() || encoding.trim().eq_ignore_ascii_case("identity");
    (!is_plain).then(|| format!("the answer is packed as `{encoding}`, which nobody asked for"))
}

/// What the provider calls the request, for whoever asks it about this one.
fn request_id(headers: &HeaderMap) -> Option<String> {
    let id = headers.get("request-id").or_else(|| headers.get("x-request-id"))?;
    id.to_str().ok().map(str::to_owned)
}
