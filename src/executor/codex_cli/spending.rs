//! What a run of Codex cost, from counters that go on from one run of a thread to the next.
//!
//! Codex has no prices, and counts tokens over the whole life of a thread. What an attempt used is the difference to where it began: zero
//! for a new thread, else what an earlier attempt has left in a checkpoint. Where nobody knows where it began, such as in a thread that
//! another unit began, what it used and cost is unknown rather than wrong.

use serde_json::{Value, json};

use crate::executor::Call;
use crate::executor::agent_cli::{Event, number, session_to_resume, text};
use crate::money::{Charge, Price, Tokens};

/// Where the counters of a thread are in a checkpoint.
const THREAD: &str = "codex_thread";
const USAGE: &str = "codex_usage";

/// What Codex counts, under its own names. What was cached is part of the input, and what was thought part of the output.
const COUNTERS: [&str; 5] =
    ["input_tokens", "cached_input_tokens", "cache_write_input_tokens", "output_tokens", "reasoning_output_tokens"];

type Counters = [u64; 5];

/// What was used so far.
#[derive(Debug)]
pub(super) struct Spending {
    model: String,
    price: Option<Price>,
    /// What the thread had used before; `None` if nobody knows.
    before: Option<Counters>,
    has_begun: bool,
    /// What the thread has used by now.
    now: Option<Counters>,
    thread: String,
}

impl Spending {
    /// Nothing yet, in the attempt of this call.
    pub(super) fn of(model: String, price: Option<Price>, call: &Call<'_>) -> Spending {
        let before = match session_to_resume(call) {
            None => Some(Counters::default()),
            Some(thread) => left_behind(call, thread),
        };
        Spending { model, price, before, has_begun: false, now: None, thread: String::new() }
    }

    /// A thread has begun, or is carried on.
    pub(super) fn thread_started(&mut self, thread: &str, call: &Call<'_>) {
        thread.clone_into(&mut self.thread);
        if session_to_resume(call).is_none() {
            // Should this attempt end before it has counted anything, the next one counts what the thread has kept of it: all of a turn that
            // failed, nothing of one that was killed, whose cost stays unknown.
            self.leave_behind(Counters::default(), call);
        }
    }

    /// The model is at work, and nobody knows what that costs.
    pub(super) fn turn_started(&mut self, call: &Call<'_>) {
        self.has_begun = true;
        self.charge().into_iter().for_each(|charge| call.usage(charge));
    }

    /// A turn has ended, with the counters of the thread.
    pub(super) fn turn_completed(&mut self, event: &Event, call: &Call<'_>) {
        self.has_begun = true;
        if let Some(Value::Object(usage)) = event.get("usage") {
            let now = COUNTERS.map(|name| number(usage, name));
            self.now = Some(now);
            self.leave_behind(now, call);
        }
        self.charge().into_iter().for_each(|charge| call.usage(charge));
    }

    /// What was used so far.
    pub(super) fn charge(&self) -> Option<Charge> {
        if !self.has_begun {
            return None;
        }
        let used = self.before.zip(self.now).and_then(|(before, now)| difference(now, before));
        Some(match (used.map(tokens), &self.price) {
            (Some(tokens), Some(price)) => Charge::priced(&self.model, tokens, price.clone()),
            (Some(tokens), None) => Charge::unpriced(&self.model, tokens),
            (None, _) => Charge::unpriced(&self.model, Tokens::default()).estimated(),
        })
    }

    fn leave_behind(&self, counters: Counters, call: &Call<'_>) {
        call.checkpoint(json!({ THREAD: self.thread, USAGE: counters }));
    }
}

/// What a thread had used when an earlier attempt last heard of it.
fn left_behind(call: &Call<'_>, thread: &str) -> Option<Counters> {
    let checkpoint = call.last_checkpoint()?.as_object()?;
    let usage = checkpoint.get(USAGE).filter(|_| text(checkpoint, THREAD) == thread)?;
    serde_json::from_value(usage.clone()).ok()
}

/// What was used since; `None` if the counters were set back, for then they say nothing.
fn difference(now: Counters, before: Counters) -> Option<Counters> {
    let mut used = Counters::default();
    for (used, (now, before)) in used.iter_mut().zip(now.into_iter().zip(before)) {
        *used = now.checked_sub(before)?;
    }
    Some(used)
}

fn tokens([input, cache_read, cache_write, output, reasoning]: Counters) -> Tokens {
    Tokens {
        input: input.saturating_sub(cache_read).saturating_sub(cache_write),
        output: output.saturating_sub(reasoning),
        cache_read,
        cache_write,
        reasoning,
    }
}
