//! What the workers are doing, as an observer of the pool sees it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use workcrew::audit::visible::line;
use workcrew::{Event, Message, Part};

use crate::storage::Disk;

/// How much of what was said last is kept; as much is shown as fits.
const SAID_CHARS: usize = 160;

/// What a worker has in hand.
#[derive(Clone, Debug)]
pub struct InHand {
    pub unit_id: String,
    pub attempt_number: u32,
    pub since: Instant,
    /// What was said last, in one line.
    pub said: String,
}

/// Its clones are the same board.
#[derive(Clone, Debug, Default)]
pub struct Board(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// By worker, then by unit: a worker may have several.
    workers: BTreeMap<String, Vec<InHand>>,
    hold: Option<String>,
    /// Why nothing can be stored.
    full: Option<String>,
}

impl Board {
    /// The disk has become full, or has room again.
    pub fn see_disk(&self, disk: &Disk) {
        self.state().full = matches!(disk, Disk::Full { .. }).then(|| disk.told());
    }

    pub fn see(&self, event: &Event<'_>) {
        let mut state = self.state();
        match event {
            Event::AttemptStarted { unit_id, attempt_number, worker_id } => {
                state.hold = None;
                let in_hand = InHand {
                    unit_id: unit_id.to_string(),
                    attempt_number: *attempt_number,
                    since: Instant::now(),
                    said: String::new(),
                };
                state.workers.entry(worker_id.to_string()).or_default().push(in_hand);
            }
            Event::Said { unit_id, message, .. } => {
                let Some(said) = said(message) else { return };
                let mut units = state.workers.values_mut().flatten();
                if let Some(in_hand) = units.find(|in_hand| in_hand.unit_id == unit_id.as_str()) {
                    in_hand.said = said;
                }
            }
            Event::AttemptEnded { unit_id, .. } | Event::ThreadAbandoned { unit_id, .. } => {
                for units in state.workers.values_mut() {
                    units.retain(|in_hand| in_hand.unit_id != unit_id.as_str());
                }
            }
            Event::WorkerReady { worker_id } => drop(state.workers.entry(worker_id.to_string()).or_default()),
            Event::WorkerEnded { worker_id, .. } => drop(state.workers.remove(worker_id.as_str())),
            Event::Held { reason, until } => {
                let until = until.map(|until| format!(" until {}", until.format("%F %T UTC"))).unwrap_or_default();
                state.hold = Some(format!("held{until}: {}", line(reason)));
            }
            _ => {}
        }
    }

    /// Each worker with what it has in hand, by name.
    pub fn workers(&self) -> Vec<(String, Option<InHand>)> {
        let state = self.state();
        let rows = state.workers.iter().map(|(worker, units)| (worker.clone(), units.first().cloned()));
        let mut rows: Vec<_> = rows.collect();
        // So that w10 comes behind w9.
        rows.sort_by_key(|(worker, _)| worker.len());
        rows
    }

    /// Why nothing is started.
    pub fn hold(&self) -> Option<String> {
        let state = self.state();
        state.full.clone().or_else(|| state.hold.clone())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The last words of a message.
fn said(message: &Message) -> Option<String> {
    let part = message.parts.last()?;
    let text = match part {
        Part::Text { text } => text.clone(),
        Part::Thinking { .. } => "thinks".to_owned(),
        Part::ToolUse { name, input, .. } => format!("→ {name} {input}"),
        Part::ToolResult { is_error: true, .. } => "← the tool failed".to_owned(),
        Part::ToolResult { .. } => "← result".to_owned(),
        _ => return None,
    };
    Some(line(text.trim()).cut(SAID_CHARS))
}
