//! An executor that only pretends: for trying everything out without a network, a key or a bill.
//!
//! [`Simulated`] makes conversations such as an agent leaves: thoughts, tool calls with their results, text that
//! arrives bit by bit, token counts that grow, and now and then a failure of the kinds that providers have. It does
//! no work; its answers are made of the words of the prompt.
//!
//! ```
//! use std::time::Duration;
//! use workcrew::{Executor, Simulated};
//!
//! let executor = Simulated::new()
//!     .seed(7)
//!     .latency(Duration::from_millis(5), Duration::from_millis(200))
//!     .failures(0.1)
//!     .hangs(0.01);
//! assert_eq!(executor.name(), "simulated");
//! assert_eq!(executor.provenance().arguments[0], "seed=7");
//! ```
//!
//! What happens to an attempt depends on nothing but the seed, the name of the unit and the number of the attempt. So a run
//! can be repeated, with any number of threads, and an attempt that failed may succeed when it is
//! tried again. Only the session is another's where the call says which one to carry on.
//!
//! An attempt waits nowhere but on its cancel token, so a cancel ends it at once, unless it is one of
//! the [deaf](Simulated::deaf_hangs).

mod attempt;
mod dice;
#[cfg(test)]
mod tests;

use std::thread;
use std::time::Duration;

use serde_json::json;

use self::attempt::Performance;
use self::dice::Dice;
use super::{Call, ExecuteError, Executor, WorkResult};
use crate::attempt::Provenance;
use crate::money::{Money, Price};
use crate::same_work::Parameters;

/// An executor that makes believable conversations from a seed.
///
/// A *share* is a part of all attempts, from 0.0 to 1.0. What is less counts as 0.0, as does what is not a number, and what is
/// more counts as 1.0. Where the shares add up to more than 1.0, each gets what those before it
/// leave: failures first, then those that give up, panics, hangs and deaf hangs.
///
/// ```
/// use std::time::Duration;
/// use workcrew::{NewUnit, Simulated, UnitStatus, WorkPool};
/// # use workcrew::{MemoryRepository, NewJob, Repository};
/// # let repository = MemoryRepository::new();
/// # let job = repository.create_job(&NewJob::named("a job"))?;
///
/// let model = Simulated::new().seed(7).latency(Duration::ZERO, Duration::from_millis(5));
/// let pool = WorkPool::builder(job.id, model, repository).start()?;
/// let unit = pool.enqueue(NewUnit::new("a"), "Summarise this page.")?.wait()?;
/// assert_eq!(unit.status, UnitStatus::Completed);
/// assert!(unit.output.is_some() && unit.tokens.total() > 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Simulated {
    seed: u64,
    latency_min: Duration,
    latency_max: Duration,
    turns_max: u32,
    failures: f64,
    give_ups: f64,
    panics: f64,
    hangs: f64,
    deaf_hangs: f64,
    model: String,
    price: Price,
}

/// What becomes of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Success,
    Failure,
    GiveUp,
    Panic,
    Hang,
    DeafHang,
}

impl Simulated {
    /// An executor whose attempts take up to two seconds and all succeed.
    pub fn new() -> Simulated {
        // Such as a middling model costs.
        let per_million = |cents: i64| Money::from_nanos(cents * 10_000_000);
        let price = Price::new(chrono::DateTime::UNIX_EPOCH)
            .input(per_million(300))
            .output(per_million(1_500))
            .cache_read(per_million(30))
            .cache_write(per_million(375));
        Simulated {
            seed: 0,
            latency_min: Duration::from_millis(100),
            latency_max: Duration::from_secs(2),
            turns_max: 4,
            failures: 0.0,
            give_ups: 0.0,
            panics: 0.0,
            hangs: 0.0,
            deaf_hangs: 0.0,
            model: "simulated-1".to_owned(),
            price,
        }
    }

    /// What all chance comes from (0).
    pub fn seed(mut self, seed: u64) -> Simulated {
        self.seed = seed;
        self
    }

    /// How long an attempt takes (0.1 to 2 seconds): most are nearer to the first, few to the second. A second that is
    /// less than the first counts as equal.
    pub fn latency(mut self, min: Duration, max: Duration) -> Simulated {
        self.latency_min = min;
        self.latency_max = max.max(min);
        self
    }

    /// How many turns an attempt takes at most (4, or fewer if the unit says so); none counts as one.
    pub fn turns(mut self, max: u32) -> Simulated {
        self.turns_max = max.max(1);
        self
    }

    /// The share of attempts that fail and may be tried again (0.0): overloaded, rate limited, cut off.
    pub fn failures(mut self, share: f64) -> Simulated {
        self.failures = clamped(share);
        self
    }

    /// The share of attempts after which the unit is given up (0.0): refused, or found invalid.
    pub fn give_ups(mut self, share: f64) -> Simulated {
        self.give_ups = clamped(share);
        self
    }

    /// The share of attempts that panic (0.0).
    pub fn panics(mut self, share: f64) -> Simulated {
        self.panics = clamped(share);
        self
    }

    /// The share of attempts that stop half-way until they are cancelled (0.0).
    pub fn hangs(mut self, share: f64) -> Simulated {
        self.hangs = clamped(share);
        self
    }

    /// The share of attempts that stop half-way and never return, cancelled or not (0.0).
    ///
    /// Each of them keeps its thread for as long as the process lives: a pool can only leave it behind and start
    /// another, until it has left behind as many as it may. It shows what a pool does about that, and is good for
    /// nothing else.
    pub fn deaf_hangs(mut self, share: f64) -> Simulated {
        self.deaf_hangs = clamped(share);
        self
    }

    /// What the model is called (`simulated-1`).
    pub fn model(mut self, name: impl Into<String>) -> Simulated {
        self.model = name.into();
        self
    }

    /// What the tokens cost ($3 for a million of input, $15 of output, $0.30 read from the cache, $3.75 written).
    pub fn price(mut self, price: Price) -> Simulated {
        self.price = price;
        self
    }

    /// What becomes of an attempt at a unit.
    fn fate(&self, unit_id: &str, attempt_number: u32) -> Fate {
        let mut left = Dice::of(self.seed, unit_id, attempt_number, "fate").fraction();
        for (share, fate) in [
            (self.failures, Fate::Failure),
            (self.give_ups, Fate::GiveUp),
            (self.panics, Fate::Panic),
            (self.hangs, Fate::Hang),
            (self.deaf_hangs, Fate::DeafHang),
        ] {
            if left < share {
                return fate;
            }
            left -= share;
        }
        Fate::Success
    }

    /// How long an attempt takes: half of them an eighth of the way, one in ten more than two thirds.
    fn duration(&self, dice: &mut Dice) -> Duration {
        (self.latency_max - self.latency_min).mul_f64(dice.fraction().powi(3)) + self.latency_min
    }
}

impl Default for Simulated {
    fn default() -> Simulated {
        Simulated::new()
    }
}

impl Executor for Simulated {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let (unit_id, number) = (call.unit().id.as_str(), call.attempt_number());
        let mut dice = Dice::of(self.seed, unit_id, number, "attempt");
        let duration = self.duration(&mut dice);
        let turns_allowed = call.unit().options.max_iterations.unwrap_or(u32::MAX).clamp(1, self.turns_max);
        let turns = dice.between(1, turns_allowed);
        let mut performance = Performance::new(call, dice, &self.model, &self.price, turns, duration);
        let fate = self.fate(unit_id, number);
        performance.open();
        if fate == Fate::Success {
            return performance.play_out();
        }
        performance.play_half()?;
        match fate {
            Fate::Success | Fate::Failure => Err(performance.failure()),
            Fate::GiveUp => Err(performance.refusal()),
            Fate::Panic => panic!("simulated panic in attempt {number} at unit `{unit_id}`"),
            Fate::Hang => Err(attempt::wait(call, Duration::MAX).err().unwrap_or_else(attempt::cancelled)),
            Fate::DeafHang => loop {
                thread::park();
            },
        }
    }

    fn name(&self) -> &str {
        "simulated"
    }

    /// The name of a unit only throws the dice, as chance does with a real model.
    fn parameters(&self) -> Option<Parameters> {
        Some(Parameters::of(&json!({ "model": self.model, "seed": self.seed, "turns": self.turns_max })))
    }

    fn provenance(&self) -> Provenance {
        let mut arguments = vec![
            format!("seed={}", self.seed),
            format!("latency={:?}..={:?}", self.latency_min, self.latency_max),
            format!("turns={}", self.turns_max),
        ];
        for (name, share) in [
            ("failures", self.failures),
            ("give_ups", self.give_ups),
            ("panics", self.panics),
            ("hangs", self.hangs),
            ("deaf_hangs", self.deaf_hangs),
        ] {
            if share > 0.0 {
                arguments.push(format!("{name}={share}"));
            }
        }
        Provenance { model: Some(self.model.clone()), arguments, ..Provenance::of(self.name()) }
    }
}

/// A share as it counts.
fn clamped(share: f64) -> f64 {
    if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
}
