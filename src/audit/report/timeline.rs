//! Who worked when: a lane for each worker, a bar for each attempt. When there are too many bars, those that lie so near to each
//! other that nobody could tell them apart are made one.

use std::collections::HashMap;

use serde::Serialize;

use crate::attempt::{Attempt, Outcome};
use crate::lease::OwnerId;
use crate::unit::UnitKey;
use crate::worker::WorkerId;

/// How many bars a page draws.
const BAR_LIMIT: usize = 5_000;

/// How many workers have a lane of their own; the others share one.
const LANE_LIMIT: usize = 48;

/// How many parts of the whole time can be told apart at first.
const RESOLUTION: i64 = 4_096;

#[derive(Debug, Default)]
pub(super) struct Timeline {
    lanes: HashMap<(OwnerId, WorkerId), usize>,
    names: Vec<(OwnerId, WorkerId)>,
    bars: Vec<Bar>,
    began_ms: Option<i64>,
    ended_ms: Option<i64>,
    /// Attempts of workers that have no lane of their own.
    is_lane_shared: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Bar {
    lane: usize,
    outcome: Option<Outcome>,
    from_ms: i64,
    /// `None` while it is open.
    to_ms: Option<i64>,
    attempts: u64,
    /// Of the first of them.
    unit: UnitKey,
}

/// What the page gets to know of it.
#[derive(Debug, Serialize)]
pub(super) struct TimelineTold {
    began_ms: Option<i64>,
    /// When the last attempt ended.
    ended_ms: Option<i64>,
    lanes: Vec<LaneTold>,
    bars: Vec<BarTold>,
}

/// Lane, from and to in milliseconds since the beginning, outcome, attempts, key of the unit if it is one attempt. Without
/// names, for there are many.
#[derive(Debug, PartialEq, Eq, Serialize)]
struct BarTold(usize, i64, Option<i64>, &'static str, u64, Option<i64>);

#[derive(Debug, Serialize)]
struct LaneTold {
    worker: Option<String>,
    /// Which owner's worker; left out if there is only one.
    owner: Option<i64>,
}

impl Timeline {
    /// Adds an attempt.
    pub(super) fn add(&mut self, attempt: &Attempt) {
        let from_ms = attempt.started_at.unwrap_or(attempt.assigned_at).timestamp_millis();
        // The calendar may have been set back in between.
        let to_ms = attempt.ended_at.map(|time| time.timestamp_millis().max(from_ms));
        let until_ms = to_ms.unwrap_or(from_ms);
        self.began_ms = Some(self.began_ms.map_or(from_ms, |began| began.min(from_ms)));
        self.ended_ms = Some(self.ended_ms.map_or(until_ms, |ended| ended.max(until_ms)));
        let lane = self.lane(attempt);
        self.bars.push(Bar { lane, outcome: attempt.outcome, from_ms, to_ms, attempts: 1, unit: attempt.key.unit });
        // Twice as many, so that it is seldom to be done.
        if self.bars.len() >= 2 * BAR_LIMIT {
            self.join_near_ones();
        }
    }

    fn lane(&mut self, attempt: &Attempt) -> usize {
        let worker = (attempt.owner, attempt.worker_id.clone());
        match self.lanes.get(&worker) {
            Some(&lane) => lane,
            None if self.names.len() < LANE_LIMIT => {
                self.names.push(worker.clone());
                self.lanes.insert(worker, self.names.len() - 1);
                self.names.len() - 1
            }
            None => {
                self.is_lane_shared = true;
                LANE_LIMIT
            }
        }
    }

    /// Makes fewer bars, by joining those of a lane and an outcome that follow each other closely; more coarsely until they are few enough.
    fn join_near_ones(&mut self) {
        let span_ms = self.ended_ms.zip(self.began_ms).map_or(0, |(ended, began)| ended.saturating_sub(began));
        let mut gap_ms = (span_ms / RESOLUTION).max(1);
        self.bars.sort_by_key(|bar| (bar.lane, bar.outcome, bar.to_ms.is_none(), bar.from_ms));
        while self.bars.len() > BAR_LIMIT {
            self.bars.dedup_by(|next, bar| bar.join(next, gap_ms));
            gap_ms = gap_ms.saturating_mul(2);
        }
    }

    pub(super) fn told(mut self) -> TimelineTold {
        self.join_near_ones();
        let began_ms = self.began_ms.unwrap_or(0);
        let has_one_owner = self.names.windows(2).all(|pair| pair[0].0 == pair[1].0);
        let lane = |(owner, worker): &(OwnerId, WorkerId)| LaneTold {
            worker: Some(worker.as_str().to_owned()),
            owner: (!has_one_owner).then_some(owner.0),
        };
        let mut lanes: Vec<LaneTold> = self.names.iter().map(lane).collect();
        if self.is_lane_shared {
            lanes.push(LaneTold { worker: None, owner: None });
        }
        let bar = |bar: &Bar| {
            let since = |time_ms: i64| time_ms.saturating_sub(began_ms);
            let unit = (bar.attempts == 1).then_some(bar.unit.0);
            let outcome = bar.outcome.map_or("OPEN", Outcome::name);
            BarTold(bar.lane, since(bar.from_ms), bar.to_ms.map(since), outcome, bar.attempts, unit)
        };
        let bars = self.bars.iter().map(bar).collect();
        TimelineTold { began_ms: self.began_ms, ended_ms: self.ended_ms, lanes, bars }
    }
}

impl Bar {
    /// Takes in the next one, if it is of the same kind and near.
    fn join(&mut self, next: &Bar, gap_ms: i64) -> bool {
        let is_same = (self.lane, self.outcome) == (next.lane, next.outcome);
        let is_near = match (self.to_ms, next.to_ms) {
            (Some(to_ms), Some(_)) => next.from_ms.saturating_sub(to_ms) <= gap_ms,
            // Both last until now.
            (None, None) => true,
            _ => false,
        };
        if is_same && is_near {
            self.to_ms = self.to_ms.max(next.to_ms);
            self.attempts += next.attempts;
        }
        is_same && is_near
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempt::AttemptKey;
    use chrono::DateTime;

    fn attempt(worker: usize, from_ms: i64, to_ms: Option<i64>, outcome: Option<Outcome>) -> Attempt {
        let at = |time_ms| DateTime::from_timestamp_millis(time_ms).unwrap();
        let key = AttemptKey { unit: UnitKey(from_ms), number: 1 };
        let worker = WorkerId::new(format!("w{worker}")).unwrap();
        let mut attempt = Attempt::claimed(key, 1, OwnerId(1), worker, at(from_ms));
        attempt.ended_at = to_ms.map(at);
        attempt.outcome = outcome;
        attempt
    }

    #[test]
    fn few_attempts_have_a_bar_each() {
        let mut timeline = Timeline::default();
        timeline.add(&attempt(1, 1_000, Some(1_500), Some(Outcome::Completed)));
        timeline.add(&attempt(2, 1_200, None, None));
        let told = timeline.told();
        assert_eq!((told.began_ms, told.ended_ms, told.lanes.len()), (Some(1_000), Some(1_500), 2));
        assert_eq!(
            told.bars,
            [BarTold(0, 0, Some(500), "COMPLETED", 1, Some(1_000)), BarTold(1, 200, None, "OPEN", 1, Some(1_200))]
        );
    }

    #[test]
    fn many_attempts_of_many_workers_become_few_bars_that_still_count_them_all() {
        let mut timeline = Timeline::default();
        let count: u64 = 200_000;
        for number in 0..count {
            let from_ms = i64::try_from(number).unwrap() * 10;
            let outcome = Outcome::ALL[number as usize * 7 % Outcome::ALL.len()];
            timeline.add(&attempt(number as usize % 100, from_ms, Some(from_ms + 700), Some(outcome)));
            assert!(timeline.bars.len() < 2 * BAR_LIMIT);
        }
        let told = timeline.told();
        assert!(told.bars.len() <= BAR_LIMIT);
        assert_eq!(told.lanes.len(), LANE_LIMIT + 1);
        assert_eq!(told.bars.iter().map(|bar| bar.4).sum::<u64>(), count);
    }

    #[test]
    fn a_calendar_that_was_set_back_harms_nothing() {
        let mut timeline = Timeline::default();
        timeline.add(&attempt(1, 5_000, Some(1_000), Some(Outcome::Failed)));
        assert_eq!(timeline.told().bars[0].2, Some(0));
    }
}
