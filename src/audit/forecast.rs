//! How long it will take and what it will cost, if what is left is like what is done.

use std::time::Duration;

use serde::Serialize;

use crate::money::{Cost, Money};

/// What is known after a part of the work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoFar {
    /// How many units have ended.
    pub ended: u64,
    /// How many are left.
    pub left: u64,
    /// In what time those ended.
    pub elapsed: Duration,
    /// What has been spent, also on those that are being executed.
    pub spent: Cost,
}

/// What is to be expected. Nothing is while nothing has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Forecast {
    /// How many units end in a minute.
    pub units_per_minute: Option<f64>,
    /// How much longer it takes.
    pub time_left: Option<Duration>,
    /// What all of it will have cost in the end. What nobody could price is in it as what it is: not known.
    pub cost: Option<Cost>,
}

impl SoFar {
    /// If what is left takes and costs on average what is done did.
    ///
    /// ```
    /// use std::time::Duration;
    /// use workcrew::audit::forecast::SoFar;
    /// use workcrew::{Cost, Money};
    ///
    /// let spent = Cost { amount: Money::from_nanos(40_000_000), unpriced: 0 };
    /// let so_far = SoFar { ended: 4, left: 6, elapsed: Duration::from_secs(60), spent };
    /// let forecast = so_far.forecast();
    /// assert_eq!(forecast.time_left, Some(Duration::from_secs(90)));
    /// assert_eq!(forecast.cost.unwrap().to_string(), "$0.10");
    /// ```
    pub fn forecast(&self) -> Forecast {
        if self.ended == 0 {
            return Forecast::default();
        }
        let ended = self.ended as f64;
        let seconds = self.elapsed.as_secs_f64();
        let time_left = Duration::try_from_secs_f64(seconds / ended * self.left as f64).ok();
        let all = i128::from(self.ended) + i128::from(self.left);
        let nanos = i128::from(self.spent.amount.nanos()) * all / i128::from(self.ended);
        let amount = Money::from_nanos(i64::try_from(nanos).unwrap_or(i64::MAX));
        Forecast {
            units_per_minute: (seconds > 0.0).then_some(ended / seconds * 60.0),
            time_left,
            cost: Some(Cost { amount, unpriced: self.spent.unpriced }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_foretold_from_nothing_and_nothing_overflows() {
        assert_eq!(SoFar::default().forecast(), Forecast::default());
        let spent = Cost { amount: Money::from_nanos(i64::MAX), unpriced: 2 };
        let far = SoFar { ended: 1, left: u64::MAX, elapsed: Duration::MAX, spent }.forecast();
        assert_eq!((far.time_left, far.cost.unwrap()), (None, spent));
        let still = SoFar { ended: 3, left: 0, elapsed: Duration::ZERO, spent: Cost::default() }.forecast();
        assert_eq!((still.units_per_minute, still.time_left), (None, Some(Duration::ZERO)));
    }
}
