//! What the requests of an attempt have used, model by model.
//!
//! Within a request counters are cumulative, so the last one counts; requests add up. A request that ended before its usage was told is
//! guessed from what was sent and received, and marked so. Each is priced by itself: many short prompts are no long one.

use std::collections::BTreeMap;

use super::settings::Settings;
use super::wire::Usage;
use crate::executor::Call;
use crate::money::{Charge, Money, Price, Tokens};

/// About how long a token is.
const BYTES_PER_TOKEN: usize = 4;

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Spending {
    models: BTreeMap<String, Used>,
}

#[derive(Clone, Copy, Debug)]
struct Used {
    /// By requests that are over.
    before: Tokens,
    /// What those cost; `None` if nobody knows.
    before_cost: Option<Money>,
    /// By the one that is not.
    now: Tokens,
    is_guess: bool,
}

impl Default for Used {
    fn default() -> Used {
        Used { before: Tokens::default(), before_cost: Some(Money::ZERO), now: Tokens::default(), is_guess: false }
    }
}

impl Used {
    /// What all requests cost so far.
    fn cost(&self, price: Option<&Price>) -> Option<Money> {
        Some(self.before_cost? + price?.amount(&self.now)?)
    }
}

impl Spending {
    /// The request that is under way has used this so far, whatever was told of it before.
    pub(super) fn counts(&mut self, model: &str, tokens: Tokens) {
        self.models.entry(model.to_owned()).or_default().now = tokens;
    }

    /// The request is over, after it was accepted. So much was sent and received, which says something if the usage was not told.
    pub(super) fn request_over(
        &mut self,
        settings: &Settings,
        model: &str,
        usage: Option<Usage>,
        sent_bytes: usize,
        received_bytes: usize,
    ) {
        let used = self.models.entry(model.to_owned()).or_default();
        let told = usage.map(|usage| usage.tokens).unwrap_or_default();
        let is_final = usage.is_some_and(|usage| usage.is_final);
        used.is_guess |= !is_final;
        let guess = |bytes: usize| (bytes / BYTES_PER_TOKEN) as u64;
        used.now = match usage {
            Some(_) if is_final => told,
            // What was read is known from the beginning, what was written is not.
            Some(_) => Tokens { output: told.output.max(guess(received_bytes).saturating_sub(told.reasoning)), ..told },
            None => Tokens { input: guess(sent_bytes), output: guess(received_bytes), ..Tokens::default() },
        };
        used.before_cost = used.cost(settings.price(model));
        used.before += std::mem::take(&mut used.now);
    }

    /// What is charged so far.
    pub(super) fn charges(&self, settings: &Settings) -> Vec<Charge> {
        let charge = |(model, used): (&String, &Used)| {
            let price = settings.price(model);
            let mut charge = Charge::unpriced(model, used.before + used.now);
            (charge.amount, charge.price) = (used.cost(price), price.cloned());
            let is_under_way = used.now != Tokens::default();
            if used.is_guess || is_under_way { charge.estimated() } else { charge }
        };
        self.models.iter().map(charge).collect()
    }

    /// Tells what is charged so far.
    pub(super) fn tell(&self, settings: &Settings, call: &Call<'_>) {
        for charge in self.charges(settings) {
            call.usage(charge);
        }
    }
}
