//! How many workers there may be: as many as somebody said last, or of these as many as were found to be borne.

use super::{Ready, State};
use crate::clock::Moment;
use crate::pool::adaptive::{Adaptation, Sign};
use crate::pool::capacity::WorkerNumber;

impl Ready {
    /// Changes how many workers there may ever be. Returns those that are to go and have nothing in hand, and what that changes if it was being found
    /// out how many there may be now.
    pub(in crate::pool) fn set_max_workers(
        &self,
        max_workers: usize,
        now: Moment,
    ) -> (Vec<WorkerNumber>, Option<Adaptation>) {
        self.change(|state, wake| {
            let adaptation = state.level.as_mut().and_then(|level| level.set_max_workers(max_workers, now));
            let allowed = state.level.as_ref().map_or(max_workers, |level| level.workers());
            (wake.all_slots, wake.claimer, wake.supervisor) = (true, true, true);
            (state.capacity.set_max_workers(allowed), adaptation)
        })
    }

    /// An execution has ended, with what that says of how many are borne. If there may be more or fewer workers since, returns that, and those
    /// that are to go and have nothing in hand.
    pub(in crate::pool) fn learn(
        &self,
        run: u64,
        sign: Option<&Sign>,
        now: Moment,
    ) -> Option<(Adaptation, Vec<WorkerNumber>)> {
        self.change(|state, wake| {
            let places = state.places();
            let adaptation = state.level.as_mut()?.end(run, sign, places, now)?;
            // Who waits for one place more is woken as for any other.
            wake.supervisor = adaptation.to < adaptation.from;
            let idle = state.capacity.set_max_workers(adaptation.to);
            Some((adaptation, idle))
        })
    }

    /// The last changes of how many workers there may be, if that is being found out.
    pub(in crate::pool) fn adaptations(&self) -> Vec<Adaptation> {
        self.state.lock().level.as_ref().map(|level| level.history()).unwrap_or_default()
    }
}

impl State {
    /// How many workers there may ever be.
    pub(super) fn max_workers(&self) -> usize {
        self.level.as_ref().map_or(self.capacity.max_workers(), |level| level.max_workers())
    }

    /// An execution begins, by which it may be found out how many are borne.
    pub(super) fn begin_to_learn(&mut self, run: u64) {
        let places = self.places();
        if let Some(level) = &mut self.level {
            level.begin(run, places);
        }
    }

    /// How many units can be executed at a time by as many workers as there may be now.
    fn places(&self) -> usize {
        let tally = self.capacity.tally();
        // Who is yet to come up has one.
        tally.capacity + self.capacity.max_workers().saturating_sub(tally.up)
    }
}
