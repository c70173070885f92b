//! The turns of an attempt: ask, keep the answer, do what it asks for, ask again.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::api::HttpApi;
use super::exchange::Exchange;
use super::failure::Failure;
use super::history;
use super::spending::Spending;
use super::tool;
use super::wire::{Reply, Stop, Wire};
use crate::conversation::{Message, Part, Role};
use crate::executor::trouble::Trouble;
use crate::executor::{Call, ExecuteError, Then, WorkResult};
use crate::limits::Ask;

/// How often the text of an answer is told while it is being written. Each time it is told as a whole.
const PARTIAL_EVERY: Duration = Duration::from_millis(250);

/// How much of a text that is still being written is told.
const PARTIAL_LIMIT_BYTES: usize = 1 << 20;

/// What the next attempt starts from: saved once the tools have done what an answer asked for.
#[derive(Debug, Serialize, Deserialize)]
struct Saved {
    /// Who speaks so.
    wire: String,
    /// The stored conversation that it is, up to so many messages.
    session: String,
    messages: usize,
    turns: u32,
    conversation: Vec<Value>,
}

/// Where it stands in a checkpoint.
const SAVED: &str = "http_conversation";

/// One attempt.
pub(super) struct Talk<'a, W: Wire> {
    api: &'a HttpApi<W>,
    call: &'a Call<'a>,
    session: String,
    /// What is sent.
    conversation: Vec<Value>,
    /// How many messages were told.
    told: usize,
    turns: u32,
    /// Whether this attempt has made a request.
    has_asked: bool,
    spending: Spending,
    /// The last answer, as far as it came.
    text: String,
    summary: Value,
}

/// Works on a unit until the model is done with it.
pub(super) fn talk<W: Wire>(api: &HttpApi<W>, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let mut talk = Talk {
        api,
        call,
        session: history::session_of(call),
        conversation: Vec::new(),
        told: 0,
        turns: 0,
        has_asked: false,
        spending: Spending::default(),
        text: String::new(),
        summary: Value::Null,
    };
    let ended = talk.run();
    let mut result = if talk.text.is_empty() { WorkResult::empty() } else { WorkResult::text(&talk.text) };
    result.charges = talk.spending.charges(&api.settings);
    result.session_id = Some(talk.session);
    match ended {
        Ok(json) => {
            result.output.get_or_insert_default();
            Ok(result.json(json))
        }
        Err(failure) => {
            result.json = Some(talk.summary).filter(|summary| !summary.is_null());
            Err(failure.error(result))
        }
    }
}

impl<W: Wire> Talk<'_, W> {
    fn run(&mut self) -> Result<Value, Failure> {
        let exchange = Exchange::new::<W>(&self.api.settings, &self.api.left_behind, self.call)?;
        self.begin()?;
        let max_turns = self.call.unit().options.max_iterations.unwrap_or(self.api.settings.max_turns).max(1);
        loop {
            if self.turns >= max_turns {
                return Err(Failure::new(Trouble::MaxTurns, format!("it took the {max_turns} turns that it may")));
            }
            let reply = self.ask(&exchange)?;
            let calls: Vec<Part> =
                reply.parts().into_iter().filter(|part| matches!(part, Part::ToolUse { .. })).collect();
            match reply.stop() {
                Stop::MaxTokens => {
                    return Err(Failure::new(Trouble::MaxTokens, "the answer is longer than it may be"));
                }
                Stop::Refused(why) if why.is_empty() => {
                    return Err(Failure::new(Trouble::Refused, "the model refuses"));
                }
                Stop::Refused(why) => return Err(Failure::new(Trouble::Refused, format!("the model refuses: {why}"))),
                Stop::Filtered => {
                    return Err(Failure::new(Trouble::ContentFilter, "a filter has stopped the answer"));
                }
                Stop::Done if calls.is_empty() => return self.conclude(),
                Stop::Done | Stop::Paused => {
                    self.conversation.push(reply.written());
                    self.answer_calls(&calls, &exchange)?;
                    self.save();
                }
            }
        }
    }

    /// Says what it is about, or goes on from where an earlier attempt was.
    fn begin(&mut self) -> Result<(), Failure> {
        let settings = &self.api.settings;
        let named = self.call.unit().options.resume_session.as_deref().filter(|session| !session.is_empty());
        let earlier = match (named, &settings.history) {
            (None, _) => Vec::new(),
            (Some(session), Some(archive)) => history::read(&**archive, session)?,
            (Some(session), None) => {
                let message = format!("session `{session}` cannot be looked up: no history was given");
                return Err(Failure::new(Trouble::NamedSessionNotFound, message));
            }
        };
        let prompt = Message::user(self.call.prompt());
        let said: Vec<Message> = earlier.into_iter().chain([prompt.clone()]).collect();
        let opening = W::written(&said);
        self.call.session(&self.session);
        if let Some(saved) = self.saved(&opening) {
            self.tell([history::note(&saved.session, Some(saved.messages))]);
            (self.conversation, self.turns) = (saved.conversation, saved.turns);
            return Ok(());
        }
        let system = settings.system_prompt.as_ref().map(|text| Message::new(Role::System).part(Part::text(text)));
        self.tell(named.map(|session| history::note(session, None)).into_iter().chain(system).chain([prompt]));
        self.conversation = opening;
        Ok(())
    }

    /// What an earlier attempt has saved of the same conversation.
    fn saved(&self, opening: &[Value]) -> Option<Saved> {
        let saved = self.call.last_checkpoint()?.get(SAVED)?;
        let saved = Saved::deserialize(saved).ok()?;
        (saved.wire == W::NAME && saved.conversation.starts_with(opening)).then_some(saved)
    }

    fn save(&self) {
        let saved = Saved {
            wire: W::NAME.to_owned(),
            session: self.session.clone(),
            messages: self.told,
            turns: self.turns,
            conversation: self.conversation.clone(),
        };
        self.call.checkpoint(json!({ SAVED: saved }));
    }

    fn tell(&mut self, messages: impl IntoIterator<Item = Message>) {
        let messages: Vec<Message> = messages.into_iter().collect();
        self.told += messages.len();
        self.call.messages(messages);
    }

    /// One request, and what came of it.
    fn ask(&mut self, exchange: &Exchange<'_>) -> Result<W::Reply, Failure> {
        if let Some(reason) = self.call.cancel_reason() {
            return Err(Failure::stopped(reason));
        }
        self.check_not_held()?;
        let settings = &self.api.settings;
        let body = settings.body::<W>(&self.conversation);
        if self.has_asked {
            self.wait_for_turn(body.to_string().len())?;
        }
        self.has_asked = true;
        self.turns += 1;
        let mut reply = W::Reply::default();
        let (call, spending) = (self.call, &mut self.spending);
        let (mut told_at, mut is_usage_told) = (None::<Instant>, false);
        let outcome = exchange.ask::<W>(&body, &mut reply, &mut |reply, secrets| {
            if let Some(usage) = (!is_usage_told).then(|| reply.usage()).flatten() {
                is_usage_told = true;
                spending.counts(reply.model().unwrap_or(&settings.model), usage.tokens);
                spending.tell(settings, call);
            }
            let is_due = told_at.is_none_or(|at| at.elapsed() >= PARTIAL_EVERY);
            if is_due && !reply.text().is_empty() && reply.text().len() <= PARTIAL_LIMIT_BYTES {
                told_at = Some(Instant::now());
                call.partial(&secrets.hide_so_far(reply.text()));
            }
        });
        if outcome.is_accepted {
            let model = reply.model().unwrap_or(&settings.model);
            let (sent_bytes, kept_bytes) = (outcome.sent_bytes, reply.kept_bytes());
            self.spending.request_over(settings, model, reply.usage(), sent_bytes, kept_bytes);
            self.spending.tell(settings, self.call);
        }
        self.keep(&reply, outcome.failure.as_ref());
        match outcome.failure {
            Some(failure) => Err(failure),
            None => Ok(reply),
        }
    }

    /// Others may have been told to wait meanwhile. Then the whole pool does: no attempt is used up for it.
    fn check_not_held(&self) -> Result<(), Failure> {
        let Some(until) = self.call.held_until() else { return Ok(()) };
        let message = format!("the provider is not to be asked before {until}");
        Err(Failure::new(Trouble::RateLimited { until: None }, message).then(Then::Hold { until: Some(until) }))
    }

    /// The pool has taken the first turn of the attempt; this is for a further one.
    fn wait_for_turn(&self, bytes: usize) -> Result<(), Failure> {
        let ask = Ask::of_bytes(bytes, self.api.settings.answer_tokens::<W>());
        self.call.turn(ask).map_err(|error| match self.call.cancel_reason() {
            Some(reason) => Failure::stopped(reason),
            None => Failure::new(Trouble::RateLimited { until: None }, error.to_string()).then(error.then()),
        })
    }

    /// Keeps an answer, also one that was cut off, and what shows why.
    fn keep(&mut self, reply: &W::Reply, failure: Option<&Failure>) {
        reply.text().clone_into(&mut self.text);
        let (parts, raw) = (reply.parts(), reply.raw());
        let (stop_reason, model) = (reply.stop_reason(), reply.model());
        self.summary = json!({ "turns": self.turns, "stop_reason": stop_reason, "id": raw.get("id"), "model": model });
        let mut messages = Vec::new();
        if !parts.is_empty() || failure.is_none() {
            let message = parts.into_iter().fold(Message::new(Role::Assistant), Message::part);
            let message = message.raw(raw.to_string());
            messages.push(if failure.is_some() { message.partial() } else { message });
        }
        messages.extend(failure.and_then(|failure| failure.evidence.as_deref().cloned()));
        if !messages.is_empty() {
            self.tell(messages);
        }
    }

    /// Does what the model asks for, one after the other, each kept as it comes.
    fn answer_calls(&mut self, calls: &[Part], exchange: &Exchange<'_>) -> Result<(), Failure> {
        let mut results = Vec::new();
        for part in calls {
            let Part::ToolUse { id, name, input } = part else { continue };
            let settings = &self.api.settings;
            let said = exchange.hidden(tool::called(&settings.tools, name, input, self.call))?;
            if let Some(reason) = self.call.cancel_reason() {
                return Err(Failure::stopped(reason));
            }
            let result = tool::result_of(id, said, settings.tool_result_limit_bytes);
            let message = Message::new(Role::Tool).part(result);
            self.tell([message.clone()]);
            results.push(message);
        }
        self.conversation.extend(W::written(&results));
        Ok(())
    }

    /// What comes out of it: what was asked for in a form, or how it went.
    fn conclude(&self) -> Result<Value, Failure> {
        if self.api.settings.json_schema.is_none() {
            return Ok(self.summary.clone());
        }
        serde_json::from_str(&self.text).map_err(|error| {
            let message = format!("the answer is not in the form that was asked for: {error}");
            Failure::new(Trouble::NoStructuredOutput, message)
        })
    }
}
