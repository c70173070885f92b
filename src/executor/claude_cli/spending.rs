//! What a run of Claude Code cost, from counters that do not all begin at zero.
//!
//! A result has the counters of each model, cumulative since the process began. After `--resume` they go on from the session's total
//! in newer versions (2.1.325), and begin at zero in older ones (2.1.197). Newer ones say beside them what was used since the result
//! before, which is what is added up here. Where that is missing, it is the difference to the counters before; and where nobody knows
//! what they began with, the cost is unknown rather than wrong:
//!
//! | the process | the counters began |
//! |---|---|
//! | carries on no session | at zero |
//! | carries one on, up to version 2.1.197 | at zero |
//! | carries one on, and all counters are what this result alone used (`usage`) | at zero |
//! | carries one on otherwise | nobody knows where |
//!
//! A process that is asked again and again goes on counting, and begins anew when its conversation is cleared. What a request used that was
//! interrupted it does not count at all: then nobody knows.
//!
//! What was used since the last result nobody has counted yet. The messages say what the model has read for each of them; what they say
//! that it wrote is a placeholder. So tokens are told early, as a guess, without an amount; the result then takes their place.

use std::collections::BTreeMap;

use serde_json::Value;

use super::message::SYNTHETIC_MODEL;
use crate::executor::Call;
use crate::executor::agent_cli::{Event, number, text};
use crate::money::{Charge, Money, Tokens};

/// The last version that was seen to count from zero in each process.
const LAST_TO_COUNT_FROM_ZERO: [u64; 3] = [2, 1, 197];

/// The counters of one model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counters {
    tokens: Tokens,
    /// `None` if it is not known.
    amount: Option<Money>,
}

/// What was used of one model.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    counters: Counters,
    is_estimated: bool,
}

/// Where the counters of the process began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    AtZero,
    Unknown,
}

/// What was used so far.
#[derive(Debug)]
pub(super) struct Spending {
    beginning: Beginning,
    /// The model that the run began with, as the counters name it.
    model: Option<String>,
    /// Whether all that was used is in the counters.
    is_counted: bool,
    /// The cumulative counters of the last result.
    last: BTreeMap<String, Counters>,
    spent: BTreeMap<String, Spent>,
    /// What was read for the messages since the last result, by message.
    uncounted: BTreeMap<String, (String, Tokens)>,
    told: BTreeMap<String, Charge>,
}

impl Spending {
    /// Nothing yet, in a process that begins a session.
    pub(super) fn of_new_session() -> Spending {
        Spending {
            beginning: Beginning::AtZero,
            model: None,
            is_counted: false,
            last: BTreeMap::new(),
            spent: BTreeMap::new(),
            uncounted: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    /// Nothing yet, in a process that carries one on.
    pub(super) fn of_resumed_session() -> Spending {
        Spending { beginning: Beginning::Unknown, ..Spending::of_new_session() }
    }

    /// Nothing yet of the next query, in a process that has answered one.
    pub(super) fn next_query(self) -> Spending {
        // What its counters were is known, so what they will be more is what the next one used.
        let beginning = if self.last.is_empty() { self.beginning } else { Beginning::AtZero };
        Spending { beginning, last: self.last, ..Spending::of_new_session() }
    }

    /// The conversation was cleared, and with it the counters.
    pub(super) fn cleared(&mut self) {
        self.beginning = Beginning::AtZero;
        self.last.clear();
    }

    /// The process has begun, or a turn of it.
    pub(super) fn began(&mut self, init: &Event) {
        if version(text(init, "claude_code_version")).is_some_and(|version| version <= LAST_TO_COUNT_FROM_ZERO) {
            self.beginning = Beginning::AtZero;
        }
        if self.model.is_none() {
            self.model = init.get("model").and_then(Value::as_str).map(str::to_owned);
        }
    }

    /// The model has said something. Several events may belong to the same message.
    pub(super) fn said(&mut self, message: &Event) {
        let (id, model) = (text(message, "id"), text(message, "model"));
        let Some(Value::Object(usage)) = message.get("usage") else { return };
        if model != SYNTHETIC_MODEL {
            self.uncounted.insert(id.to_owned(), (self.counted_as(model), usage_tokens(usage)));
        }
    }

    /// A result has come, with the counters.
    pub(super) fn counted(&mut self, result: &Event) {
        let empty = Event::new();
        let object = |name: &str| result.get(name).and_then(Value::as_object);
        let cumulative = object("modelUsage").unwrap_or(&empty);
        let now: BTreeMap<String, Counters> = counters(cumulative).collect();
        if let Some(since) = object("model_usage_since_last_result") {
            counters(since).for_each(|(model, used)| self.add(model, used));
        } else if self.beginning == Beginning::AtZero || !self.last.is_empty() || is_all(&now, object("usage")) {
            let used = now.iter().map(|(model, now)| (model.clone(), difference(now, self.last.get(model))));
            used.collect::<Vec<_>>().into_iter().for_each(|(model, used)| self.add(model, used));
        } else {
            let model = self.model.clone().or_else(|| now.keys().next().cloned()).unwrap_or_default();
            let tokens = object("usage").map(usage_tokens).unwrap_or_default();
            let spent = Spent { counters: Counters { tokens, amount: None }, is_estimated: true };
            self.spent.insert(model, spent);
        }
        self.last = now;
        self.is_counted = text(result, "terminal_reason") != "aborted_streaming";
        self.uncounted.clear();
    }

    /// What was used so far, a charge for each model.
    pub(super) fn charges(&self) -> Vec<Charge> {
        let mut all = self.spent.clone();
        for (model, tokens) in self.uncounted.values() {
            let spent = all.entry(model.clone()).or_default();
            spent.counters.tokens += *tokens;
            spent.is_estimated = true;
        }
        if let Some(model) = self.model.as_ref().filter(|_| !self.is_counted) {
            // It has begun, or was interrupted, so it may have cost something, and nobody knows how much.
            all.entry(model.clone()).or_default().is_estimated = true;
        }
        for model in self.told.keys() {
            // Told before it was known that it is counted under another name, or not at all.
            let nothing = Counters { tokens: Tokens::default(), amount: Some(Money::ZERO) };
            all.entry(model.clone()).or_insert(Spent { counters: nothing, is_estimated: false });
        }
        all.iter().map(|(model, spent)| charge(model, *spent)).collect()
    }

    /// Tells what has changed.
    pub(super) fn tell(&mut self, call: &Call<'_>) {
        for charge in self.charges() {
            if self.told.get(&charge.model) != Some(&charge) {
                self.told.insert(charge.model.clone(), charge.clone());
                call.usage(charge);
            }
        }
    }

    fn add(&mut self, model: String, used: Counters) {
        let spent = self.spent.entry(model).or_insert(Spent {
            counters: Counters { tokens: Tokens::default(), amount: Some(Money::ZERO) },
            is_estimated: false,
        });
        spent.counters.tokens += used.tokens;
        spent.counters.amount = spent.counters.amount.zip(used.amount).map(|(sum, amount)| sum + amount);
    }

    /// The name under which the counters have a model: they know `model[1m]` where messages have `model`.
    fn counted_as(&self, model: &str) -> String {
        let is_same = |main: &&String| main.split('[').next() == Some(model);
        self.model.as_ref().filter(is_same).map_or_else(|| model.to_owned(), Clone::clone)
    }
}

fn charge(model: &str, spent: Spent) -> Charge {
    let Counters { tokens, amount } = spent.counters;
    let charge = match amount {
        Some(amount) => Charge::reported(model, tokens, amount),
        None => Charge::unpriced(model, tokens),
    };
    if spent.is_estimated { charge.estimated() } else { charge }
}

/// The counters of each model.
fn counters(models: &Event) -> impl Iterator<Item = (String, Counters)> + '_ {
    models.iter().filter_map(|(model, counters)| {
        let counters = counters.as_object()?;
        let thinking = number(counters, "thinkingTokens");
        let tokens = Tokens {
            input: number(counters, "inputTokens"),
            // What was thought is counted as output too.
            output: number(counters, "outputTokens").saturating_sub(thinking),
            cache_read: number(counters, "cacheReadInputTokens"),
            cache_write: number(counters, "cacheCreationInputTokens"),
            reasoning: thinking,
        };
        Some((model.clone(), Counters { tokens, amount: counters.get("costUSD").and_then(dollars) }))
    })
}

/// The tokens of a single result or message.
fn usage_tokens(usage: &Event) -> Tokens {
    let details = usage.get("output_tokens_details").and_then(Value::as_object);
    let thinking = details.map(|details| number(details, "thinking_tokens")).unwrap_or_default();
    Tokens {
        input: number(usage, "input_tokens"),
        output: number(usage, "output_tokens").saturating_sub(thinking),
        cache_read: number(usage, "cache_read_input_tokens"),
        cache_write: number(usage, "cache_creation_input_tokens"),
        reasoning: thinking,
    }
}

/// Whether the counters hold what this result used and nothing else.
fn is_all(counters: &BTreeMap<String, Counters>, usage: Option<&Event>) -> bool {
    let sum = counters.values().fold(Tokens::default(), |sum, counters| sum + counters.tokens);
    // The split between answer and thought may be missing on one side.
    let whole = |tokens: Tokens| {
        (tokens.input, tokens.output.saturating_add(tokens.reasoning), tokens.cache_read, tokens.cache_write)
    };
    usage.is_some_and(|usage| whole(usage_tokens(usage)) == whole(sum))
}

/// What was used since; all of it if the counters were set back meanwhile.
fn difference(now: &Counters, before: Option<&Counters>) -> Counters {
    let Some(before) = before else { return *now };
    let less = |now: u64, before: u64| now.checked_sub(before);
    let (a, b) = (&now.tokens, &before.tokens);
    let tokens = (|| {
        Some(Tokens {
            input: less(a.input, b.input)?,
            output: less(a.output, b.output)?,
            cache_read: less(a.cache_read, b.cache_read)?,
            cache_write: less(a.cache_write, b.cache_write)?,
            reasoning: less(a.reasoning, b.reasoning)?,
        })
    })();
    let Some(tokens) = tokens else { return *now };
    let amount = now.amount.zip(before.amount);
    let amount = amount.map(|(now, before)| Money::from_nanos(now.nanos().saturating_sub(before.nanos()).max(0)));
    Counters { tokens, amount }
}

/// An amount of dollars as a whole number of nano-dollars; `None` if it is none.
fn dollars(value: &Value) -> Option<Money> {
    let nanos = (value.as_f64()? * 1e9).round();
    #[expect(clippy::cast_possible_truncation, reason = "checked to be within what fits")]
    (0.0..9e18).contains(&nanos).then_some(Money::from_nanos(nanos as i64))
}

fn version(text: &str) -> Option<[u64; 3]> {
    let mut numbers = text.split(['.', '-', '+', ' ']).map(str::parse);
    Some([numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?])
}
