//! What a pool says of itself, so that others can see from another process why it does what it does.
//!
//! The heartbeat tells it, when it is new and not more often than it beats: a pool that is idle, or that works steadily, tells nothing.

use super::core::Core;
use crate::lease::OwnerState;

/// What was last said.
#[derive(Debug, Default)]
pub(super) struct Word {
    said: Option<OwnerState>,
    /// When there may be another.
    next_ms: i64,
}

impl Word {
    /// Says what is new. What could not be stored is said with another beat.
    pub(super) fn tell(&mut self, core: &Core) {
        let now_ms = core.now_ms();
        if now_ms < self.next_ms {
            return;
        }
        let state = state_of(core);
        if self.said.as_ref().is_some_and(|said| !state.is_news_after(said)) {
            return;
        }
        self.next_ms = core.in_ms(core.settings.heartbeat);
        match core.repository().tell(core.owner(), &state) {
            Ok(()) => self.said = Some(state),
            Err(error) => log::debug!("{}: what the pool does was not told: {error}", core.job.id),
        }
    }
}

fn state_of(core: &Core) -> OwnerState {
    let writing = core.repository().backpressure();
    OwnerState { job_id: Some(core.job.id), writing, ..core.ready.owner_state(core.clock.now()) }
}
