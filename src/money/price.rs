//! What a model costs.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use super::{Money, Tokens};

const TOKENS_PER_PRICE: i128 = 1_000_000;

/// What a million tokens of each class cost, and since when that was known.
///
/// ```
/// use workcrew::{Money, Price, Tokens};
///
/// let price = Price::new("2026-01-01T00:00:00Z".parse()?)
///     .input("3".parse()?)
///     .output("15".parse()?);
/// let used = Tokens { input: 1_000, output: 100, ..Tokens::default() };
/// assert_eq!(price.amount(&used), Some(Money::from_nanos(4_500_000)));
///
/// // Nobody said what reading the cache costs, so nobody knows the amount.
/// let cached = Tokens { cache_read: 1, ..used };
/// assert_eq!(price.amount(&cached), None);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Price {
    /// When this price was looked up.
    pub as_of: DateTime<Utc>,
    /// For a million input tokens.
    pub input: Option<Money>,
    /// For a million output tokens.
    pub output: Option<Money>,
    /// For a million tokens read from the cache.
    pub cache_read: Option<Money>,
    /// For a million tokens written into the cache.
    pub cache_write: Option<Money>,
    /// For a million reasoning tokens.
    pub reasoning: Option<Money>,
    /// What is dearer with a long prompt, the shorter one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tiers: Vec<Tier>,
}

/// What a million tokens cost in a request with a long prompt. A class that is not told costs what it always does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tier {
    /// It holds for a request that reads more tokens than this, cached or not: then for all its tokens.
    pub above_tokens: u64,
    /// For a million input tokens.
    pub input: Option<Money>,
    /// For a million output tokens, reasoning included.
    pub output: Option<Money>,
    /// For a million tokens read from the cache.
    pub cache_read: Option<Money>,
    /// For a million tokens written into the cache.
    pub cache_write: Option<Money>,
}

impl Tier {
    /// A tier in which nothing costs anything else.
    pub fn above(tokens: u64) -> Tier {
        Tier { above_tokens: tokens, input: None, output: None, cache_read: None, cache_write: None }
    }
}

impl Price {
    /// A price of which nothing is known but its date.
    pub fn new(as_of: DateTime<Utc>) -> Price {
        Price {
            as_of,
            input: None,
            output: None,
            cache_read: None,
            cache_write: None,
            reasoning: None,
            tiers: Vec::new(),
        }
    }

    /// For a million input tokens.
    pub fn input(mut self, price: Money) -> Price {
        self.input = Some(price);
        self
    }

    /// For a million output tokens. Reasoning costs the same unless it is set apart.
    pub fn output(mut self, price: Money) -> Price {
        self.output = Some(price);
        self.reasoning = self.reasoning.or(Some(price));
        self
    }

    /// For a million tokens read from the cache.
    pub fn cache_read(mut self, price: Money) -> Price {
        self.cache_read = Some(price);
        self
    }

    /// For a million tokens written into the cache.
    pub fn cache_write(mut self, price: Money) -> Price {
        self.cache_write = Some(price);
        self
    }

    /// For a million reasoning tokens.
    pub fn reasoning(mut self, price: Money) -> Price {
        self.reasoning = Some(price);
        self
    }

    /// What is dearer with a prompt that is longer than so.
    pub fn tier(mut self, tier: Tier) -> Price {
        self.tiers.retain(|other| other.above_tokens != tier.above_tokens);
        self.tiers.push(tier);
        self.tiers.sort_by_key(|tier| tier.above_tokens);
        self
    }

    /// The same for short prompts only: for whoever knows no more than the sum of many requests.
    pub fn without_tiers(mut self) -> Price {
        self.tiers.clear();
        self
    }

    /// What the tokens cost, rounded half up to a nano-dollar; `None` if a class
    /// that was used has no price.
    ///
    /// The tokens are those of one request where the price has [tiers](Price::tiers): the sum of several short ones is no long one.
    pub fn amount(&self, tokens: &Tokens) -> Option<Money> {
        let mut scaled: i128 = 0;
        for (count, price) in tokens.classes().into_iter().zip(self.rates(tokens)) {
            if count > 0 {
                scaled = scaled.saturating_add(i128::from(count) * i128::from(price?.nanos()));
            }
        }
        let nanos = (scaled + TOKENS_PER_PRICE / 2).div_euclid(TOKENS_PER_PRICE);
        Some(Money::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX)))
    }

    /// The prices of the classes, in the order of [`Tokens::classes`], for a request that used so many.
    fn rates(&self, tokens: &Tokens) -> [Option<Money>; 5] {
        let usual = [self.input, self.output, self.cache_read, self.cache_write, self.reasoning];
        let prompt = [tokens.input, tokens.cache_read, tokens.cache_write].into_iter().fold(0, u64::saturating_add);
        let Some(tier) = self.tiers.iter().rfind(|tier| prompt > tier.above_tokens) else { return usual };
        let dearer = [tier.input, tier.output, tier.cache_read, tier.cache_write, tier.output];
        std::array::from_fn(|class| dearer[class].or(usual[class]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dollars(text: &str) -> Money {
        text.parse().unwrap()
    }

    #[test]
    fn a_price_is_exact_to_the_nano_dollar_and_rounds_half_up() {
        let price = Price::new(DateTime::UNIX_EPOCH).input("0.0375".parse().unwrap());
        let tokens = |input| Tokens { input, ..Tokens::default() };
        assert_eq!(price.amount(&tokens(1)), Some(Money::from_nanos(38)));
        assert_eq!(price.amount(&tokens(2)), Some(Money::from_nanos(75)));
        assert_eq!(price.amount(&tokens(1_000_000)), Some(Money::from_nanos(37_500_000)));
    }

    #[test]
    fn an_unknown_price_gives_no_amount_and_an_unused_class_needs_none() {
        let price = Price::new(DateTime::UNIX_EPOCH).input(Money::from_nanos(1));
        assert_eq!(price.amount(&Tokens { output: 1, ..Tokens::default() }), None);
        assert_eq!(price.amount(&Tokens::default()), Some(Money::ZERO));
    }

    #[test]
    fn a_huge_bill_does_not_overflow() {
        let price = Price::new(DateTime::UNIX_EPOCH).input(Money::from_nanos(i64::MAX));
        assert_eq!(price.amount(&Tokens { input: u64::MAX, ..Tokens::default() }), Some(Money::from_nanos(i64::MAX)));
    }

    #[test]
    fn a_long_prompt_makes_the_whole_request_dearer() {
        let mut tier = Tier::above(200_000);
        (tier.input, tier.output) = (Some(dollars("6")), Some(dollars("22.5")));
        let usual =
            Price::new(DateTime::UNIX_EPOCH).input(dollars("3")).output(dollars("15")).cache_read(dollars("0.3"));
        let price = usual.clone().tier(Tier::above(1_000_000)).tier(tier);
        let tokens = |input, cache_read| Tokens { input, cache_read, output: 1_000_000, reasoning: 0, cache_write: 0 };
        for short in [tokens(200_000, 0), tokens(0, 200_000), tokens(100_000, 100_000)] {
            assert_eq!(price.amount(&short), usual.amount(&short));
        }
        assert_eq!(price.amount(&tokens(200_001, 0)), Some(dollars("23.700006")));
        assert_eq!(
            price.amount(&tokens(1, 200_000)),
            Some(dollars("22.560006")),
            "the cache costs what it always does"
        );
        let thought = Tokens { input: 200_001, reasoning: 1_000_000, ..Tokens::default() };
        assert_eq!(price.amount(&thought), Some(dollars("23.700006")), "thinking is output");
        assert_eq!(price.amount(&tokens(1_000_001, 0)), usual.amount(&tokens(1_000_001, 0)), "the longest tier counts");
    }

    #[test]
    fn a_price_that_was_stored_before_there_were_tiers_reads() {
        let stored = r#"{"as_of":"2026-01-01T00:00:00Z","input":1,"output":null,"cache_read":null,"cache_write":null,"reasoning":null}"#;
        let price: Price = serde_json::from_str(stored).unwrap();
        assert_eq!(price.input, Some(Money::from_nanos(1)));
        assert_eq!(serde_json::to_string(&price).unwrap(), stored);
    }
}
