//! How values are spread, in a memory that does not grow with their number.

use std::collections::BTreeMap;

use serde::Serialize;

/// How many steps a doubling has: a value is known to about two percent.
const STEPS_PER_DOUBLING: f64 = 16.0;

/// Counts of values on a scale of equal ratios.
#[derive(Debug, Default)]
pub(super) struct Spread {
    /// How many values are in each step. An `i64` has fewer than 64 doublings, so there are about a thousand at most.
    counts: BTreeMap<i32, u64>,
    total: u64,
    smallest: Option<i64>,
    largest: Option<i64>,
}

/// What the page gets to know of it.
#[derive(Debug, Serialize)]
pub(super) struct SpreadTold {
    values: u64,
    smallest: Option<i64>,
    largest: Option<i64>,
    /// About so much: half of the values are smaller.
    median: Option<i64>,
    /// About so much: nine tenths of the values are smaller.
    ninth_decile: Option<i64>,
    steps_per_doubling: f64,
    /// Step and count, in order.
    counts: Vec<(i32, u64)>,
}

impl Spread {
    /// Counts a value; what is less than 1 counts as 1, which has no smaller step.
    pub(super) fn add(&mut self, value: i64) {
        let value = value.max(1);
        #[expect(clippy::cast_possible_truncation, reason = "at most 64 times 16")]
        let step = ((value as f64).log2() * STEPS_PER_DOUBLING).floor() as i32;
        *self.counts.entry(step).or_default() += 1;
        self.total += 1;
        self.smallest = Some(self.smallest.map_or(value, |smallest| smallest.min(value)));
        self.largest = Some(self.largest.map_or(value, |largest| largest.max(value)));
    }

    /// The middle of the step below which this share of the values is.
    fn quantile(&self, share: f64) -> Option<i64> {
        let (smallest, largest) = (self.smallest?, self.largest?);
        let rank = (self.total as f64 * share).ceil().max(1.0);
        let mut passed = 0;
        let reached = |(_, count): &(&i32, &u64)| {
            passed += **count;
            passed as f64 >= rank
        };
        let (&step, _) = self.counts.iter().find(reached)?;
        let middle = ((f64::from(step) + 0.5) / STEPS_PER_DOUBLING).exp2();
        #[expect(clippy::cast_possible_truncation, reason = "it is between two values that are none")]
        Some((middle.round() as i64).clamp(smallest, largest))
    }

    pub(super) fn told(&self) -> SpreadTold {
        SpreadTold {
            values: self.total,
            smallest: self.smallest,
            largest: self.largest,
            median: self.quantile(0.5),
            ninth_decile: self.quantile(0.9),
            steps_per_doubling: STEPS_PER_DOUBLING,
            counts: self.counts.iter().map(|(&step, &count)| (step, count)).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_right_to_a_few_percent() {
        let mut spread = Spread::default();
        (1..=10_000).for_each(|value| spread.add(value));
        let told = spread.told();
        let near = |told: Option<i64>, exact: f64| (told.unwrap() as f64 / exact - 1.0).abs() < 0.04;
        assert!(near(told.median, 5_000.0) && near(told.ninth_decile, 9_000.0), "{told:?}");
        assert_eq!((told.values, told.smallest, told.largest), (10_000, Some(1), Some(10_000)));
    }

    #[test]
    fn any_value_finds_its_step_and_there_are_few() {
        let mut spread = Spread::default();
        [i64::MIN, 0, 1, i64::MAX].into_iter().for_each(|value| spread.add(value));
        (0..62).for_each(|bit| spread.add(1 << bit));
        assert_eq!(spread.total, 66);
        assert!(spread.counts.len() <= 1_024);
        assert!(Spread::default().told().median.is_none());
    }
}
