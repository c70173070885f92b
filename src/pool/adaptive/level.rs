//! The level: how many workers there may be at a time, found out by trying. Plain data, which the pool keeps under the ready lock.
//!
//! | what happens | what follows |
//! |---|---|
//! | an attempt ends well that was one of as many as there may be | one worker more; from what the last episode has left on, only one for as many such attempts as there are places |
//! | an attempt is refused | the cool-down begins, once the pause is over that was asked for; if the attempt began after the last cut, the level is cut to four fifths |
//! | the pause lasts | nothing is cut either: nobody was to ask |
//! | the cool-down lasts | nothing grows |
//!
//! From the first refusal to the end of the cool-down it is one episode. What its first cut leaves is what is taken to be borne: the level comes back there
//! as fast as it grew in the beginning, and goes on slowly. If attempts are refused that began after the cut, it was not enough, and there is another;
//! those that began before say nothing new, for the level that they met is gone.
//!
//! That an attempt was one of as many as there may be is the evidence: where fewer are executed than may be, nothing is learnt of how many are borne. So the
//! level never becomes larger than twice what was really executed at a time.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use super::{Adaptation, AdaptationReason, Sign};
use crate::clock::{Moment, milliseconds};
use crate::pool::ready::CrewLimits;

/// How many changes are remembered. Those between two episodes are about as many as a fifth of the level.
pub(super) const HISTORY_LIMIT: usize = 1_000;

/// See the [module](self).
#[derive(Debug)]
pub(in crate::pool) struct Level {
    min_workers: usize,
    max_workers: usize,
    cool_down_ms: i64,
    workers: usize,
    /// What the first cut of the last episode has left; `None` before there was one.
    borne: Option<usize>,
    /// When the pause is over that was asked for with the last refusal, or that was without one, by the pool's clock; `None` before there was one.
    pause_ends_ms: Option<i64>,
    /// The executions that are under way, and the how-manieth each was.
    executing: HashMap<u64, u64>,
    begun: u64,
    /// How many had begun when as many were executed as may be.
    full_after: u64,
    /// How many had begun when the level was cut.
    cut_after: u64,
    /// How many have ended well, that count, since the level was changed.
    well: usize,
    history: VecDeque<Adaptation>,
    last_cut: Option<Adaptation>,
}

impl Level {
    /// The level of a pool that begins: its minimum.
    pub(in crate::pool) fn new(limits: &CrewLimits, cool_down: Duration) -> Level {
        let mut level = Level {
            min_workers: limits.min_workers,
            max_workers: limits.max_workers,
            cool_down_ms: milliseconds(cool_down),
            workers: 0,
            borne: None,
            pause_ends_ms: None,
            executing: HashMap::new(),
            begun: 0,
            full_after: 0,
            cut_after: 0,
            well: 0,
            history: VecDeque::new(),
            last_cut: None,
        };
        level.workers = level.floor();
        level
    }

    /// How many workers there may be now.
    pub(in crate::pool) fn workers(&self) -> usize {
        self.workers
    }

    /// How many there may ever be.
    pub(in crate::pool) fn max_workers(&self) -> usize {
        self.max_workers
    }

    /// The last changes, the oldest first.
    pub(in crate::pool) fn history(&self) -> Vec<Adaptation> {
        self.history.iter().cloned().collect()
    }

    /// The last time that the provider asked for fewer.
    pub(in crate::pool) fn last_cut(&self) -> Option<&Adaptation> {
        self.last_cut.as_ref()
    }

    fn floor(&self) -> usize {
        self.min_workers.min(self.max_workers).max(1)
    }

    /// An execution begins; so many units can be executed at a time by as many workers as there may be.
    pub(in crate::pool) fn begin(&mut self, run: u64, places: usize) {
        self.begun += 1;
        self.executing.insert(run, self.begun);
        if self.executing.len() >= places {
            self.full_after = self.begun;
        }
    }

    /// An execution has ended, and this is what it says. What never began says nothing.
    pub(in crate::pool) fn end(
        &mut self,
        run: u64,
        sign: Option<&Sign>,
        places: usize,
        now: Moment,
    ) -> Option<Adaptation> {
        let began = self.executing.remove(&run)?;
        match sign? {
            Sign::Well => self.ended_well(began, places, now),
            Sign::Refused { kind, pause } => {
                let (is_first, was_to_ask) = (!self.is_cooling(now), !self.is_paused(now));
                self.pause(*pause, now);
                if began <= self.cut_after || !was_to_ask {
                    return None;
                }
                let reason = AdaptationReason::Refused(kind.clone());
                self.cut(is_first, reason, now)
            }
        }
    }

    /// There may be more or fewer workers than before, whatever is borne.
    pub(in crate::pool) fn set_max_workers(&mut self, max_workers: usize, now: Moment) -> Option<Adaptation> {
        self.max_workers = max_workers;
        let workers = self.workers.clamp(self.floor(), max_workers);
        self.change(workers, AdaptationReason::Bounded, now)
    }

    /// Whether nobody is to ask.
    fn is_paused(&self, now: Moment) -> bool {
        self.pause_ends_ms.is_some_and(|ends_ms| now.boot_ms < ends_ms)
    }

    /// Whether nothing grows.
    fn is_cooling(&self, now: Moment) -> bool {
        self.pause_ends_ms.is_some_and(|ends_ms| now.boot_ms < ends_ms.saturating_add(self.cool_down_ms))
    }

    fn pause(&mut self, pause: Duration, now: Moment) {
        let ends_ms = now.boot_ms.saturating_add(milliseconds(pause));
        self.pause_ends_ms = self.pause_ends_ms.max(Some(ends_ms));
    }

    fn ended_well(&mut self, began: u64, places: usize, now: Moment) -> Option<Adaptation> {
        let was_one_of_all = began <= self.full_after;
        if !was_one_of_all || self.is_cooling(now) || self.workers >= self.max_workers {
            return None;
        }
        self.well += 1;
        let is_known_to_be_borne = self.borne.is_none_or(|borne| self.workers < borne);
        // Where a worker has several places, one more is as many more.
        let enough = if is_known_to_be_borne { places / self.workers } else { places };
        if self.well < enough {
            return None;
        }
        self.change(self.workers + 1, AdaptationReason::Grown, now)
    }

    fn cut(&mut self, is_first: bool, reason: AdaptationReason, now: Moment) -> Option<Adaptation> {
        (self.cut_after, self.well) = (self.begun, 0);
        let workers = (self.workers * 4 / 5).max(self.floor());
        if is_first {
            self.borne = Some(workers);
        }
        let cut = self.change(workers, reason, now)?;
        self.last_cut = Some(cut.clone());
        Some(cut)
    }

    /// The one place where the level changes; `None` if it does not.
    fn change(&mut self, workers: usize, reason: AdaptationReason, now: Moment) -> Option<Adaptation> {
        let from = std::mem::replace(&mut self.workers, workers);
        if from == workers {
            return None;
        }
        self.well = 0;
        if self.history.len() == HISTORY_LIMIT {
            self.history.pop_front();
        }
        let adaptation = Adaptation { at: now.wall, from, to: workers, reason };
        self.history.push_back(adaptation.clone());
        Some(adaptation)
    }
}
