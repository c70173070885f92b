//! Budgets: an attempt begins only if what it may cost is left.
//!
//! Every job and every owner (a pool instance) that has a budget has an [`Account`]. A claim reserves in it what the attempt is expected to
//! cost; whatever ends the attempt takes that off again, and what it was charged is spent instead. All of it happens in the transactions of
//! the claim and of the end, so several processes share a budget, and a crash leaves nothing reserved: the attempt is lost, and settled.
//!
//! ```text
//!           claim                     end of the attempt
//!   left ──────────▶ reserved ──────────────────────────▶ spent
//!    ▲                  │
//!    └──────────────────┘ what it has not cost
//! ```
//!
//! What an attempt is expected to cost is a guess, and what it costs is known only afterwards. So a budget may be overspent by as much as the
//! attempts that were under way together cost more than was expected of them, and by nothing else.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::attempt::Outcome;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::money::{Charge, Cost, Money, Price, Tokens};

/// So many bytes of a prompt are a token, at least: English has four, code three, and other scripts about as many.
const BYTES_PER_TOKEN: i64 = 3;

const BYTES_PER_MEGABYTE: i128 = 1_000_000;

/// What an attempt is taken to cost while nobody knows anything about it.
const FIRST_GUESS: Money = Money::from_nanos(500_000_000);

/// No attempt counts with more than this, so that no sum of attempts overflows.
const MOST: Money = Money::from_nanos(1_000_000_000_000_000);

/// The model under which what a lost attempt is taken to have cost stands in the ledger.
const ESTIMATED: &str = "(estimated)";

/// The model under which stands that nothing was used, for the answer is another attempt's.
const SHARED: &str = "(shared)";

/// What an attempt may cost, as far as its executor can tell from prices and limits alone.
///
/// ```
/// use workcrew::limits::Estimate;
/// use workcrew::{Money, Price};
///
/// let price = Price::new("2026-01-01T00:00:00Z".parse()?).input("3".parse()?).output("15".parse()?);
/// let estimate = Estimate::of(&price, 1_000).expect("both prices are known");
/// assert_eq!(estimate.answer.to_string(), "$0.015");
/// // Three bytes are a token.
/// assert_eq!(estimate.prompt(3_000).to_string(), "$0.003");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Estimate {
    /// What the longest answer costs.
    pub answer: Money,
    /// What a million bytes of prompt cost.
    pub prompt_megabyte: Money,
}

impl Estimate {
    /// What an answer of at most so many tokens costs, and the prompt; `None` if nobody knows what the model costs.
    pub fn of(price: &Price, max_tokens: u64) -> Option<Estimate> {
        let price = price.clone().without_tiers();
        let answer = price.amount(&Tokens { output: max_tokens, ..Tokens::default() })?;
        let million_tokens = price.amount(&Tokens { input: 1_000_000, ..Tokens::default() })?;
        let prompt_megabyte = Money::from_nanos(million_tokens.nanos() / BYTES_PER_TOKEN);
        Some(Estimate { answer, prompt_megabyte })
    }

    /// What a prompt of so many bytes costs, rounded up.
    pub fn prompt(&self, bytes: u64) -> Money {
        let scaled = i128::from(bytes) * i128::from(self.prompt_megabyte.nanos());
        let nanos = (scaled + BYTES_PER_MEGABYTE - 1).div_euclid(BYTES_PER_MEGABYTE);
        Money::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX))
    }
}

/// What a claimant expects attempts to cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Expectation {
    /// What the executor can tell.
    pub estimate: Option<Estimate>,
    /// What an attempt is taken to cost if that is nothing, and none has ended yet.
    pub otherwise: Money,
}

impl Default for Expectation {
    /// Half a dollar, until the first attempts have ended.
    fn default() -> Expectation {
        Expectation { estimate: None, otherwise: FIRST_GUESS }
    }
}

impl Expectation {
    /// What the executor can tell (nothing).
    pub fn estimate(mut self, estimate: Option<Estimate>) -> Expectation {
        self.estimate = estimate;
        self
    }

    /// What an attempt is taken to cost if that is nothing, and none has ended yet (half a dollar).
    pub fn otherwise(mut self, otherwise: Money) -> Expectation {
        self.otherwise = otherwise;
        self
    }
}

/// Whose budget it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AccountHolder {
    /// A job's, whoever works on it.
    Job(JobId),
    /// A pool instance's.
    Owner(OwnerId),
}

impl fmt::Display for AccountHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AccountHolder::Job(id) => id.fmt(f),
            AccountHolder::Owner(id) => id.fmt(f),
        }
    }
}

/// What is left of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Account {
    /// Whose it is.
    pub holder: AccountHolder,
    /// How much may be spent.
    pub budget: Money,
    /// What the attempts cost that have ended. One that used a model whose price nobody knows counts with what was expected of it.
    pub spent: Money,
    /// What the attempts are expected to cost that are under way.
    pub reserved: Money,
    /// What the dearest attempt cost so far of those that are known to the last token; `None` if there is none.
    pub largest: Option<Money>,
}

impl Account {
    /// A budget of which nothing is spent.
    pub(crate) fn new(holder: AccountHolder, budget: Money) -> Account {
        Account { holder, budget, spent: Money::ZERO, reserved: Money::ZERO, largest: None }
    }

    /// Counts an attempt, from its beginning to its end if it has come to that.
    pub(crate) fn count(&mut self, expected: Option<Money>, has_ended: bool, charges: &[Charge]) {
        let expected = expected.unwrap_or_default();
        self.reserve(expected);
        if has_ended {
            self.settle(expected, &Bill::of(charges));
        }
    }

    /// What can still be reserved. It is less than nothing if the budget is overspent, or was lowered.
    pub fn left(&self) -> Money {
        let committed = self.spent.nanos().saturating_add(self.reserved.nanos());
        Money::from_nanos(self.budget.nanos().saturating_sub(committed))
    }

    /// An attempt begins of which so much is expected.
    pub(crate) fn reserve(&mut self, expected: Money) {
        self.reserved += expected;
    }

    /// An attempt has ended of which so much was expected.
    pub(crate) fn settle(&mut self, expected: Money, bill: &Bill) {
        self.reserved = Money::from_nanos(self.reserved.nanos().saturating_sub(expected.nanos()));
        self.spent += bill.counted(expected);
        if bill.is_exact {
            self.largest = self.largest.max(Some(bill.cost.amount));
        }
    }

    /// The bill of an attempt that has ended is another one than was known.
    pub(crate) fn correct(&mut self, expected: Money, before: &Bill, after: &Bill) {
        let difference = after.counted(expected).nanos().saturating_sub(before.counted(expected).nanos());
        self.spent = Money::from_nanos(self.spent.nanos().saturating_add(difference));
        if after.is_exact {
            self.largest = self.largest.max(Some(after.cost.amount));
        }
    }
}

/// What an attempt left in the ledger, as accounts see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bill {
    cost: Cost,
    /// Whether all of it is known, and none of it guessed.
    is_exact: bool,
}

impl Bill {
    pub(crate) fn of(charges: &[Charge]) -> Bill {
        let cost: Cost = charges.iter().map(Charge::cost).sum();
        // What an answer costs cannot be learnt from one that somebody else has paid for.
        let says_what_it_cost = |charge: &Charge| !charge.is_estimated && charge.model != SHARED;
        let is_exact = !charges.is_empty() && cost.is_known() && charges.iter().all(says_what_it_cost);
        Bill { cost, is_exact }
    }

    /// What is taken as spent. What has no price counts as what was expected.
    fn counted(&self, expected: Money) -> Money {
        let cost = if self.cost.is_known() { self.cost.amount } else { self.cost.amount.max(expected) };
        cost.min(MOST)
    }
}

/// The charge of an attempt that took the answer of another: it cost nothing, and that is known.
pub(crate) fn nothing() -> Charge {
    Charge::reported(SHARED, Tokens::default(), Money::ZERO)
}

/// The charges of a lost attempt of which so much was expected: nobody knows what it cost, so it is at least that.
pub(crate) fn settled(outcome: Outcome, charges: Vec<Charge>, expected: Option<Money>) -> Vec<Charge> {
    let Some(expected) = expected.filter(|_| outcome == Outcome::Lost) else { return charges };
    let known: Cost = charges.iter().map(Charge::cost).sum();
    let missing = expected.nanos().saturating_sub(known.amount.nanos());
    if missing <= 0 {
        return charges;
    }
    let mut settled = charges;
    settled.push(Charge::reported(ESTIMATED, Tokens::default(), Money::from_nanos(missing)).estimated());
    settled.sort_by(|one, other| one.model.cmp(&other.model));
    settled
}

/// The charges of an attempt once it has said what it cost after all: what was guessed is no longer needed.
pub(crate) fn told_late(charges: &[Charge], told: &[Charge]) -> Vec<Charge> {
    let is_guess = |charge: &Charge| charge.model == ESTIMATED && charge.is_estimated;
    let kept = charges.iter().filter(|charge| told.is_empty() || !is_guess(charge));
    kept.cloned().collect()
}

/// What an attempt with a prompt of so many bytes is expected to cost, by the accounts that it counts for; `None` without any.
pub(crate) fn expected(accounts: &[Account], expectation: &Expectation, prompt_bytes: u64) -> Option<Money> {
    let largest = accounts.iter().find_map(|account| account.largest);
    let left = accounts.iter().map(Account::left).min()?;
    let expected = match (expectation.estimate, largest) {
        (Some(estimate), Some(largest)) => estimate.prompt(prompt_bytes) + estimate.answer.min(largest),
        (Some(estimate), None) => estimate.prompt(prompt_bytes) + estimate.answer,
        (None, Some(largest)) => largest,
        // What is only a guess must not bar the way to finding out.
        (None, None) => expectation.otherwise.min(left.max(Money::ZERO)),
    };
    Some(expected.clamp(Money::ZERO, MOST))
}

/// The account that has not enough left for an attempt of which so much is expected.
pub(crate) fn refusing(accounts: &[Account], expected: Money) -> Option<OverBudget> {
    let is_too_little = |account: &&Account| account.left() <= Money::ZERO || account.left() < expected;
    accounts.iter().find(is_too_little).map(|&account| OverBudget { account, expected })
}

/// Why an attempt does not begin: it may cost more than is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OverBudget {
    /// What is left of the budget.
    pub account: Account,
    /// What the attempt is expected to cost.
    pub expected: Money,
}

impl OverBudget {
    /// Whether more may be left once the attempts that are under way have ended.
    pub fn is_passing(&self) -> bool {
        self.account.reserved > Money::ZERO
    }
}

impl fmt::Display for OverBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OverBudget { account: Account { holder, budget, spent, reserved, .. }, expected } = self;
        write!(f, "{holder} may cost {budget}: {spent} is spent, ")?;
        if *reserved > Money::ZERO {
            write!(f, "{reserved} reserved, ")?;
        }
        write!(f, "and the next attempt may cost {expected}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dollars(text: &str) -> Money {
        text.parse().unwrap()
    }

    fn account(budget: &str, spent: &str, reserved: &str, largest: Option<&str>) -> Account {
        Account {
            spent: dollars(spent),
            reserved: dollars(reserved),
            largest: largest.map(dollars),
            ..Account::new(AccountHolder::Job(JobId(3)), dollars(budget))
        }
    }

    fn cost(amount: &str) -> Charge {
        Charge::reported("m", Tokens::default(), dollars(amount))
    }

    fn unpriced() -> Charge {
        Charge::unpriced("local", Tokens::default())
    }

    #[test]
    fn what_is_expected_comes_from_limits_and_from_what_others_have_cost() {
        let estimate = Estimate { answer: dollars("0.9"), prompt_megabyte: dollars("1") };
        let told = Expectation::default().estimate(Some(estimate));
        let (new, known) = (account("5", "0", "0", None), account("5", "1", "0", Some("0.02")));
        let expected = |account, expectation: &Expectation| expected(&[account], expectation, 10_000).unwrap();
        assert_eq!(expected(new, &told), dollars("0.91"));
        assert_eq!(expected(known, &told), dollars("0.03"), "no answer was as long as it may be");
        assert_eq!(expected(account("5", "1", "0", Some("2")), &told), dollars("0.91"), "nor can one be longer");
        assert_eq!(expected(new, &Expectation::default()), dollars("0.5"));
        assert_eq!(expected(known, &Expectation::default()), dollars("0.02"));
        assert_eq!(expected(account("0.2", "0.1", "0.05", None), &Expectation::default()), dollars("0.05"));
        assert_eq!(super::expected(&[], &told, 10_000), None);
    }

    #[test]
    fn a_prompt_is_rounded_up_and_overflows_nothing() {
        let estimate = Estimate { answer: Money::ZERO, prompt_megabyte: Money::from_nanos(1) };
        assert_eq!([0, 1, 1_000_000, 1_000_001].map(|bytes| estimate.prompt(bytes).nanos()), [0, 1, 1, 2]);
        let estimate = Estimate { prompt_megabyte: Money::from_nanos(i64::MAX), ..estimate };
        assert_eq!(estimate.prompt(u64::MAX), Money::from_nanos(i64::MAX));
        assert_eq!(Estimate::of(&Price::new(chrono::DateTime::UNIX_EPOCH).input(dollars("1")), 1), None);
    }

    #[test]
    fn nothing_begins_that_may_cost_more_than_is_left() {
        let refused = |account, expected| refusing(&[account], dollars(expected)).map(|over| over.to_string());
        assert_eq!(refused(account("1", "0.5", "0.3", None), "0.2"), None);
        assert_eq!(
            refused(account("1", "0.5", "0.3", None), "0.21").as_deref(),
            Some("job 3 may cost $1.00: $0.50 is spent, $0.30 reserved, and the next attempt may cost $0.21")
        );
        assert_eq!(
            refused(account("1", "1.2", "0", None), "0").as_deref(),
            Some("job 3 may cost $1.00: $1.20 is spent, and the next attempt may cost $0.00"),
            "where nothing is left not even what is free begins: nobody knows that before"
        );
        assert!(refused(account("0", "0", "0", None), "0").is_some());
    }

    #[test]
    fn of_two_budgets_both_must_have_enough() {
        let job = account("5", "0", "0", Some("0.4"));
        let owner = Account::new(AccountHolder::Owner(OwnerId(7)), dollars("0.3"));
        let expected = expected(&[job, owner], &Expectation::default(), 0).unwrap();
        assert_eq!(expected, dollars("0.4"), "what is known of the job");
        assert_eq!(refusing(&[job, owner], expected).unwrap().account.holder, owner.holder);
        let guess = super::expected(&[account("5", "0", "0", None), owner], &Expectation::default(), 0);
        assert_eq!(guess, Some(dollars("0.3")));
    }

    #[test]
    fn what_has_ended_is_spent_and_no_longer_reserved() {
        let mut account = account("5", "0", "0", None);
        account.reserve(dollars("0.5"));
        account.reserve(dollars("0.5"));
        assert_eq!(account.left(), dollars("4"));
        account.settle(dollars("0.5"), &Bill::of(&[cost("0.2"), Charge { model: "n".to_owned(), ..cost("0.1") }]));
        assert_eq!((account.spent, account.reserved), (dollars("0.3"), dollars("0.5")));
        assert_eq!(account.largest, Some(dollars("0.3")));
        account.settle(dollars("0.5"), &Bill::of(&[]));
        assert_eq!(
            (account.spent, account.reserved, account.largest),
            (dollars("0.3"), Money::ZERO, Some(dollars("0.3")))
        );
    }

    #[test]
    fn an_answer_that_somebody_else_has_paid_for_says_nothing_of_what_one_costs() {
        let mut account = account("5", "0", "1", None);
        account.settle(dollars("0.5"), &Bill::of(&[nothing()]));
        assert_eq!((account.spent, account.reserved, account.largest), (Money::ZERO, dollars("0.5"), None));
        let sum: Cost = [nothing()].iter().map(Charge::cost).sum();
        assert_eq!((sum.to_string(), sum.is_known()), ("$0.00".to_owned(), true));
    }

    #[test]
    fn what_has_no_price_counts_as_what_was_expected() {
        for (charges, spent) in
            [(vec![unpriced()], "0.5"), (vec![cost("0.2"), unpriced()], "0.5"), (vec![cost("0.7"), unpriced()], "0.7")]
        {
            let mut account = account("5", "0", "0.5", None);
            account.settle(dollars("0.5"), &Bill::of(&charges));
            assert_eq!((account.spent, account.largest), (dollars(spent), None), "{charges:?}");
        }
    }

    #[test]
    fn a_lost_attempt_has_cost_at_least_what_was_expected_until_it_says_otherwise() {
        let lost = |charges, expected: &str| settled(Outcome::Lost, charges, Some(dollars(expected)));
        assert_eq!(lost(vec![cost("0.7")], "0.5"), [cost("0.7")]);
        let guessed = lost(vec![cost("0.2")], "0.5");
        let sum: Cost = guessed.iter().map(Charge::cost).sum();
        assert_eq!((guessed.len(), sum.amount, guessed[0].is_estimated), (2, dollars("0.5"), true));
        assert!(!Bill::of(&guessed).is_exact);
        assert_eq!(settled(Outcome::Failed, vec![cost("0.2")], Some(dollars("0.5"))), [cost("0.2")]);
        assert_eq!(settled(Outcome::Lost, vec![cost("0.2")], None), [cost("0.2")]);

        assert_eq!(told_late(&guessed, &[cost("0.3")]), [cost("0.2")]);
        assert_eq!(told_late(&guessed, &[]), guessed, "it has said nothing of what it cost");
        let mut account = account("5", "0", "0.5", None);
        account.settle(dollars("0.5"), &Bill::of(&guessed));
        assert_eq!((account.spent, account.largest), (dollars("0.5"), None));
        account.correct(dollars("0.5"), &Bill::of(&guessed), &Bill::of(&[cost("0.3")]));
        assert_eq!((account.spent, account.largest), (dollars("0.3"), Some(dollars("0.3"))));
    }
}
