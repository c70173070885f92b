//! Money and tokens: integers, and unknown is not zero.
//!
//! An amount is a whole number of nano-dollars, so that adding a million small
//! charges gives the same sum in any order. A model whose price nobody knows has
//! no amount at all; a sum over such charges says how many it could not price.

mod price;
mod table;

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

pub use self::price::{Price, Tier};
pub use self::table::{PriceTable, PriceTableError};

const NANOS_PER_DOLLAR: i64 = 1_000_000_000;

/// An amount in nano-dollars, which prints as dollars.
///
/// Sums and differences stop at the largest amount (about nine billion dollars) instead of wrapping.
///
/// ```
/// use workcrew::Money;
///
/// assert_eq!(Money::from_nanos(1_500_000_000).to_string(), "$1.50");
/// assert_eq!(Money::from_nanos(37).to_string(), "$0.000000037");
/// assert_eq!("0.075".parse(), Ok(Money::from_nanos(75_000_000)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(i64);

impl Money {
    /// No money, which is a known amount.
    pub const ZERO: Money = Money(0);

    /// An amount given in nano-dollars.
    pub const fn from_nanos(nanos: i64) -> Money {
        Money(nanos)
    }

    /// The amount in nano-dollars.
    pub const fn nanos(self) -> i64 {
        self.0
    }
}

impl Add for Money {
    type Output = Money;

    fn add(self, other: Money) -> Money {
        Money(self.0.saturating_add(other.0))
    }
}

impl Sub for Money {
    type Output = Money;

    fn sub(self, other: Money) -> Money {
        Money(self.0.saturating_sub(other.0))
    }
}

impl AddAssign for Money {
    fn add_assign(&mut self, other: Money) {
        *self = *self + other;
    }
}

impl Sum for Money {
    fn sum<I: Iterator<Item = Money>>(amounts: I) -> Money {
        amounts.fold(Money::ZERO, Money::add)
    }
}

impl fmt::Display for Money {
    /// Exact, with at least cents; with a precision, as in `{:.4}`, rounded to so many decimals.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let mut nanos = self.0.unsigned_abs();
        if let Some(dropped) = f.precision().and_then(|decimals| 9_u32.checked_sub(u32::try_from(decimals).ok()?)) {
            let step = 10_u64.pow(dropped);
            nanos = (nanos + step / 2) / step * step;
        }
        let dollars = nanos / NANOS_PER_DOLLAR.unsigned_abs();
        let fraction = format!("{:09}", nanos % NANOS_PER_DOLLAR.unsigned_abs());
        let text = match f.precision() {
            Some(0) => format!("{sign}${dollars}"),
            Some(decimals) => format!("{sign}${dollars}.{:0<decimals$}", &fraction[..decimals.min(9)]),
            // At least cents, and no zeros behind them that say nothing.
            None => format!("{sign}${dollars}.{}", &fraction[..fraction.trim_end_matches('0').len().max(2)]),
        };
        // Unlike `pad`, which would cut the text to the precision.
        f.pad_integral(true, "", &text)
    }
}

/// A text that is no amount of dollars.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseMoneyError(String);

impl fmt::Display for ParseMoneyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not an amount of dollars with at most nine decimals", self.0)
    }
}

impl std::error::Error for ParseMoneyError {}

impl std::str::FromStr for Money {
    type Err = ParseMoneyError;

    /// Reads `5`, `0.075`, `$1.50` or `-2.00`, exactly: nothing is rounded.
    fn from_str(text: &str) -> Result<Money, ParseMoneyError> {
        parse_nanos(text).map(Money).ok_or_else(|| ParseMoneyError(text.to_owned()))
    }
}

fn parse_nanos(text: &str) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    let digits = digits.strip_prefix('$').unwrap_or(digits);
    let (dollars, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
    let all_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !all_digits(dollars) || !all_digits(fraction) || fraction.len() > 9 {
        return None;
    }
    let nanos: i64 = format!("{fraction:0<9}").parse().ok()?;
    let dollars: i64 = dollars.parse().ok()?;
    dollars.checked_mul(NANOS_PER_DOLLAR)?.checked_add(nanos)?.checked_mul(sign)
}

/// Token counts in classes that do not overlap: no token is in two of them.
///
/// Providers often report reasoning tokens as a part of the output and cached
/// ones as a part of the input. Whoever fills this in takes them out there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(default)]
pub struct Tokens {
    /// Read at the full price.
    pub input: u64,
    /// Written for the answer.
    pub output: u64,
    /// Read from the provider's cache.
    pub cache_read: u64,
    /// Written into the provider's cache.
    pub cache_write: u64,
    /// Written while thinking.
    pub reasoning: u64,
}

impl Tokens {
    /// All tokens of all classes.
    pub fn total(&self) -> u64 {
        self.classes().into_iter().fold(0, u64::saturating_add)
    }

    fn classes(&self) -> [u64; 5] {
        [self.input, self.output, self.cache_read, self.cache_write, self.reasoning]
    }
}

impl Add for Tokens {
    type Output = Tokens;

    fn add(self, other: Tokens) -> Tokens {
        Tokens {
            input: self.input.saturating_add(other.input),
            output: self.output.saturating_add(other.output),
            cache_read: self.cache_read.saturating_add(other.cache_read),
            cache_write: self.cache_write.saturating_add(other.cache_write),
            reasoning: self.reasoning.saturating_add(other.reasoning),
        }
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Tokens) {
        *self = *self + other;
    }
}

/// One line of the ledger: what an attempt used of one model, and what that cost.
///
/// It is cumulative: a later charge for the same attempt and model replaces it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Charge {
    /// The model as the provider names it.
    pub model: String,
    /// What was used.
    pub tokens: Tokens,
    /// What it cost; `None` if nobody knows.
    pub amount: Option<Money>,
    /// The price it was computed with, if it was computed here.
    pub price: Option<Price>,
    /// Whether the numbers are a guess, because the attempt ended before it could report them.
    #[serde(default)]
    pub is_estimated: bool,
}

impl Charge {
    /// Tokens of a model whose price is not known.
    pub fn unpriced(model: impl Into<String>, tokens: Tokens) -> Charge {
        Charge { model: model.into(), tokens, amount: None, price: None, is_estimated: false }
    }

    /// Tokens with the amount that the provider itself reported.
    pub fn reported(model: impl Into<String>, tokens: Tokens, amount: Money) -> Charge {
        Charge { amount: Some(amount), ..Charge::unpriced(model, tokens) }
    }

    /// Tokens at a price, which is kept beside the amount.
    pub fn priced(model: impl Into<String>, tokens: Tokens, price: Price) -> Charge {
        Charge { amount: price.amount(&tokens), price: Some(price), ..Charge::unpriced(model, tokens) }
    }

    /// The same, marked as a guess.
    pub fn estimated(mut self) -> Charge {
        self.is_estimated = true;
        self
    }

    /// This charge as a sum of one.
    pub fn cost(&self) -> Cost {
        match self.amount {
            Some(amount) => Cost { amount, unpriced: 0 },
            None => Cost::UNKNOWN,
        }
    }
}

/// A sum of charges that remembers how many of them nobody could price.
///
/// ```
/// use workcrew::{Charge, Cost, Money, Tokens};
///
/// let known = Charge::reported("large", Tokens::default(), Money::from_nanos(20_000_000));
/// let unknown = Charge::unpriced("local", Tokens::default());
/// let cost: Cost = [&known, &unknown].into_iter().map(Charge::cost).sum();
/// assert_eq!(cost.to_string(), "$0.02 and 1 unpriced");
/// assert_eq!(unknown.cost().to_string(), "unknown");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "CostForm", into = "CostForm")]
pub struct Cost {
    /// The sum of what is known.
    pub amount: Money,
    /// How many charges, or executions without a bill, have no known amount.
    pub unpriced: u64,
}

/// A cost as it is written: an amount of which nothing is known is none.
#[derive(Serialize, Deserialize)]
struct CostForm {
    amount: Option<Money>,
    unpriced: u64,
}

impl From<CostForm> for Cost {
    fn from(form: CostForm) -> Cost {
        Cost { amount: form.amount.unwrap_or_default(), unpriced: form.unpriced }
    }
}

impl From<Cost> for CostForm {
    fn from(cost: Cost) -> CostForm {
        CostForm { amount: cost.known(), unpriced: cost.unpriced }
    }
}

impl Cost {
    /// Something was used, and nobody knows what it cost.
    pub const UNKNOWN: Cost = Cost { amount: Money::ZERO, unpriced: 1 };

    /// The sum of what is known; `None` if that is nothing though something was used.
    pub fn known(&self) -> Option<Money> {
        (self.is_known() || self.amount != Money::ZERO).then_some(self.amount)
    }

    /// Whether every charge in the sum had an amount.
    pub fn is_known(&self) -> bool {
        self.unpriced == 0
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost { amount: self.amount + other.amount, unpriced: self.unpriced.saturating_add(other.unpriced) }
    }
}

impl Sum for Cost {
    fn sum<I: Iterator<Item = Cost>>(costs: I) -> Cost {
        costs.fold(Cost::default(), Cost::add)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.known(), self.unpriced) {
            (Some(amount), 0) => amount.fmt(f),
            (None, _) => f.pad_integral(true, "", "unknown"),
            (Some(amount), unpriced) => {
                amount.fmt(f)?;
                write!(f, " and {unpriced} unpriced")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_print_as_dollars_and_read_back() {
        for (nanos, text) in [
            (0, "$0.00"),
            (1, "$0.000000001"),
            (-1_500_000_000, "-$1.50"),
            (123_456_789_000, "$123.456789"),
            (i64::MAX, "$9223372036.854775807"),
        ] {
            assert_eq!(Money(nanos).to_string(), text);
            assert_eq!(text.parse(), Ok(Money(nanos)));
        }
    }

    #[test]
    fn with_a_precision_amounts_are_rounded_and_not_cut() {
        let amount = Money(-1_234_567_891);
        assert_eq!(format!("{amount:.0} {amount:.1} {amount:.4}"), "-$1 -$1.2 -$1.2346");
        assert_eq!(format!("{amount:.9} {amount:.11}"), "-$1.234567891 -$1.23456789100");
        assert_eq!(
            format!("{:.2}|{:8.2}|{:<8.2}|", Money(1_999_999_999), Money(5), Money(5)),
            "$2.00|   $0.00|$0.00   |"
        );
        assert_eq!(format!("{:.0}", Money(i64::MAX)), "$9223372037");
        let cost = Cost { amount: Money(1_500_000_000), unpriced: 2 };
        assert_eq!(format!("{cost:.1}"), "$1.5 and 2 unpriced");
        assert_eq!(format!("{:.1}", Cost { amount: Money::ZERO, unpriced: 1 }), "unknown");
    }

    #[test]
    fn what_is_no_amount_is_refused() {
        for text in ["", "$", ".", "1.", ".5", "1.0000000001", "1e3", "+1", "1,5", "9223372036.854775808", "--1"] {
            assert!(text.parse::<Money>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_sum_stops_at_the_largest_amount() {
        assert_eq!(Money(i64::MAX) + Money(1), Money(i64::MAX));
        assert_eq!(Money(i64::MIN) - Money(1), Money(i64::MIN));
    }
}
