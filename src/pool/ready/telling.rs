//! What the state of a pool looks like to those who see only the repository.

use chrono::{DateTime, DurationRound, TimeDelta, Utc};

use super::Ready;
use super::waits::Hold;
use crate::clock::Moment;
use crate::lease::{OwnerHold, OwnerLevel, OwnerState};
use crate::pool::PAUSED;

/// What is told of a reason or a message, which may be of any length.
const TOLD_CHARS: usize = 1_000;

impl Ready {
    /// What the pool has to say of itself, all of it at one moment.
    pub(in crate::pool) fn owner_state(&self, now: Moment) -> OwnerState {
        let state = self.state.lock();
        let hold = state.hold.clone();
        let max_workers = state.max_workers();
        let level = state.level.as_ref();
        let level = level.map(|level| OwnerLevel::new(level.workers(), level.last_cut().map(|cut| cut.at)));
        let told = OwnerState {
            phase: state.phase.to_string(),
            is_pulling: state.pull.is_active(),
            is_paused: hold.as_ref().is_some_and(|hold| hold.reason == PAUSED),
            workers: state.capacity.live(),
            target_workers: state.crew.size(),
            max_workers,
            level,
            failed_starts: state.crew.failed_starts(),
            last_start_failure: state.crew.last_start_failure(),
            queue_size: state.ledger.queue.len(),
            max_queue_size: state.ledger.queue.limit(),
            abandoned_threads: state.abandoned,
            max_abandoned: state.crew.limits.max_abandoned.unwrap_or(max_workers),
            ..OwnerState::default()
        };
        drop(state);
        let hold = hold.filter(|_| !told.is_paused);
        let until = |until_ms: i64| date_of(until_ms, now);
        let told_hold = |hold: Hold| OwnerHold::new(cut(&hold.reason), hold.told_until_ms().map(until));
        let holds = hold.map(told_hold).into_iter().collect();
        OwnerState { holds, last_start_failure: told.last_start_failure.as_deref().map(cut), ..told }
    }
}

/// When it will be a time of the pool's clock, by the calendar: to a tenth of a second, since two clocks never agree to the millisecond.
fn date_of(at_ms: i64, now: Moment) -> DateTime<Utc> {
    let left = TimeDelta::try_milliseconds(at_ms.saturating_sub(now.boot_ms));
    let date = left.and_then(|left| now.wall.checked_add_signed(left));
    let rounded = date.and_then(|date| date.duration_round(TimeDelta::milliseconds(100)).ok());
    rounded.unwrap_or(DateTime::<Utc>::MAX_UTC)
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(TOLD_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}
