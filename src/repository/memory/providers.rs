//! Turns to ask a provider, and until when one is not to be asked.

use super::store::Store;
use crate::clock::Moment;
use crate::lease::Lease;
use crate::limits::{self, Ask, NewHold, ProviderHold, RateLimits, StoredHold, TakenTurn, Turn};
use crate::repository::Result;

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
        let turns: Vec<TakenTurn> =
            self.turns.iter().filter(|(of, _)| of == provider).map(|(_, turn)| self.as_it_stands(*turn)).collect();
        if let Some((after, limit)) = limits::wait(limits, ask, lease.attempt(), &turns, now.boot_ms) {
            return Ok(Turn::Later { after, limit });
        }
        let free_at_ms = now.boot_ms.saturating_add(limits.counted_ms());
        let turn = TakenTurn { attempt: lease.attempt(), free_at_ms, ask: *ask, is_open: true, used: None };
        self.turns.push((provider.to_owned(), turn));
        Ok(Turn::Taken)
    }

    /// What is known by now of an attempt that took a turn.
    fn as_it_stands(&self, turn: TakenTurn) -> TakenTurn {
        let Some(record) = self.attempts.get(&turn.attempt) else { return turn };
        let is_open = record.attempt.outcome.is_none();
        TakenTurn { is_open, used: if is_open { None } else { limits::used(&record.charges) }, ..turn }
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
