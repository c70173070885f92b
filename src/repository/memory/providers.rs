//! Turns to ask a provider, and until when one is not to be asked.

use std::collections::{BTreeMap, BTreeSet};

use super::store::Store;
use crate::attempt::AttemptKey;
use crate::clock::Moment;
use crate::lease::Lease;
use crate::limits::{self, Ask, Counted, NewHold, ProviderHold, RateLimits, StoredHold, Turn};
use crate::repository::Result;

/// A turn that somebody has taken.
#[derive(Clone, Debug)]
pub(super) struct TakenTurn {
    provider: String,
    attempt: AttemptKey,
    /// Until then it counts, in milliseconds of the machine.
    free_at_ms: i64,
    ask: Ask,
}

impl Store {
    pub(super) fn take_turn(
        &mut self,
        lease: &Lease,
        provider: &str,
        limits: &RateLimits,
        ask: &Ask,
        now: Moment,
        boot_id: &str,
    ) -> Result<Turn> {
        self.held_attempt(lease)?;
        if let Some(hold) = self.holds.get(provider).and_then(|hold| hold.told(provider, now, boot_id)) {
            return Ok(Turn::Held(hold));
        }
        let counted = self.counted(provider, now.boot_ms);
        let under_way = self.under_way(provider, lease.attempt());
        if let Some((after, limit)) = limits::wait(limits, ask, under_way, &counted, now.boot_ms) {
            return Ok(Turn::Later { after, limit });
        }
        let free_at_ms = limits.free_at_ms(now.boot_ms);
        self.turns.push(TakenTurn { provider: provider.to_owned(), attempt: lease.attempt(), free_at_ms, ask: *ask });
        Ok(Turn::Taken)
    }

    /// How many other attempts have taken a turn and not ended.
    fn under_way(&self, provider: &str, but: AttemptKey) -> u64 {
        let turns = self.turns.iter().filter(|turn| turn.provider == provider && turn.attempt != but);
        let open = turns.filter(|turn| self.is_open(turn.attempt)).map(|turn| turn.attempt);
        open.collect::<BTreeSet<_>>().len() as u64
    }

    /// What counts now: of attempts that have ended what they used.
    fn counted(&self, provider: &str, now_ms: i64) -> Vec<Counted> {
        let mut by_attempt: BTreeMap<AttemptKey, Vec<&TakenTurn>> = BTreeMap::new();
        for turn in self.turns.iter().filter(|turn| turn.provider == provider) {
            by_attempt.entry(turn.attempt).or_default().push(turn);
        }
        let mut counted: BTreeMap<i64, Counted> = BTreeMap::new();
        for (attempt, turns) in by_attempt {
            let asks: Vec<Ask> = turns.iter().map(|turn| turn.ask).collect();
            let ended = self.attempts.get(&attempt).filter(|_| !self.is_open(attempt));
            let used = ended.and_then(|record| limits::used(&record.charges));
            for (turn, ask) in turns.iter().zip(limits::settled_turns(&asks, used)) {
                let free_at_ms = turn.free_at_ms;
                counted.entry(free_at_ms).or_insert(Counted { free_at_ms, ..Counted::default() }).add(&ask);
            }
        }
        counted.into_values().filter(|counted| counted.free_at_ms > now_ms).collect()
    }

    fn is_open(&self, attempt: AttemptKey) -> bool {
        self.attempts.get(&attempt).is_some_and(|record| record.attempt.outcome.is_none())
    }

    pub(super) fn hold(&mut self, hold: &NewHold, now: Moment, boot_id: &str) {
        let stored = StoredHold::new(hold, now, boot_id);
        let before = self.holds.get(&hold.provider).and_then(|before| before.left(now, boot_id));
        if before.is_none_or(|before| before < hold.pause) {
            self.holds.insert(hold.provider.clone(), stored);
        }
    }

    pub(super) fn lift(&mut self, provider: &str, now: Moment, boot_id: &str) -> bool {
        self.holds.remove(provider).is_some_and(|hold| hold.left(now, boot_id).is_some())
    }

    pub(super) fn provider_holds(&self, now: Moment, boot_id: &str) -> Vec<ProviderHold> {
        self.holds.iter().filter_map(|(provider, hold)| hold.told(provider, now, boot_id)).collect()
    }
}
