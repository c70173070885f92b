//! What the state of a pool looks like to those who see only the repository.

use chrono::{DateTime, TimeDelta, Utc};

use super::Ready;
use crate::clock::Moment;
use crate::lease::{OwnerHold, OwnerState};
use crate::pool::PAUSED;

/// What is told of a reason or a message, which may be of any length.
const TOLD_CHARS: usize = 1_000;

impl Ready {
    /// What the pool has to say of itself, all of it at one moment.
    pub(in crate::pool) fn owner_state(&self, now: Moment) -> OwnerState {
        let state = self.state.lock();
        let hold = state.hold.clone();
        let mut told = OwnerState::default();
        told.phase = state.phase.to_string();
        told.is_pulling = state.pull.is_active();
        told.workers = state.capacity.live();
        told.target_workers = state.crew.size();
        told.max_workers = state.capacity.max_workers();
        told.failed_starts = state.crew.failed_starts();
        told.last_start_failure = state.crew.last_start_failure();
        told.queue_size = state.ledger.queue.len();
        told.max_queue_size = state.ledger.queue.limit();
        told.abandoned_threads = state.abandoned;
        told.max_abandoned = state.crew.limits.max_abandoned.unwrap_or(told.max_workers);
        drop(state);
        told.last_start_failure = told.last_start_failure.map(cut);
        told.is_paused = hold.as_ref().is_some_and(|hold| hold.reason == PAUSED);
        let hold = hold.filter(|_| !told.is_paused);
        let until = |until_ms: i64| date_of(until_ms, now);
        told.holds = hold.map(|hold| OwnerHold::new(cut(hold.reason), hold.until_ms.map(until))).into_iter().collect();
        told
    }
}

/// When it will be a time of the pool's clock, by the calendar.
fn date_of(at_ms: i64, now: Moment) -> DateTime<Utc> {
    let left = TimeDelta::try_milliseconds(at_ms.saturating_sub(now.boot_ms));
    left.and_then(|left| now.wall.checked_add_signed(left)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn cut(text: String) -> String {
    match text.char_indices().nth(TOLD_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}
