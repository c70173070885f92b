//! Waiting in line: a unit that finds no worker is stored, and claimed when it is its turn.
//!
//! | there is | what happens |
//! |---|---|
//! | a worker, and nothing else that waits for it, or a place that this thread was promised | the same as for a submission: stored, claimed and with its worker |
//! | room in the queue | stored as PENDING, accepted by this pool; the claimer claims it when a place is free |
//! | neither | [`Saturated`](Refusal::Saturated), at once; nothing is stored |
//!
//! What is there already is treated as by a submission: if it waits it waits in line, if it runs or has ended the handle is to that.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};

use super::core::Core;
use super::error::{Refusal, SubmitError};
use super::handle::UnitHandle;
use super::ledger::Left;
use super::observe::Event;
use super::open_unit::OpenUnit;
use super::ready::{Arrival, LineTimes};
use super::stats::PoolPhase;
use super::timers::due_ms;
use super::{homes, submit};
use crate::attempt::AttemptKey;
use crate::error::RepositoryError;
use crate::prompt::Prompt;
use crate::repository::{Insertion, Intake, rules};
use crate::sync::thread;
use crate::unit::{NewUnit, UnitId, UnitKey, UnitStatus, WorkUnit};

/// Takes a unit that may wait: see the [module](self).
pub(super) fn enqueue(core: &Arc<Core>, mut unit: NewUnit, prompt: Prompt) -> Result<UnitHandle, SubmitError> {
    let own_timeout = unit.queue_timeout;
    unit.queue_timeout = queue_timeout(core, &unit);
    let mut unit = submit::with_prompt(core, unit, prompt)?;
    let claimable = core.claimable(&unit);
    let enqueued = homes::move_in(core, &claimable).and_then(|stay| {
        let (place, arrival) = core.ready.begin_enqueuing(thread::current().id(), &core.coming(&unit, &claimable))?;
        arrival.unit.stay(stay);
        submit::bring(core, place, arrival, &unit)
    });
    match enqueued {
        Ok(open) => Ok(UnitHandle::new(core, open)),
        Err(reason) => {
            unit.queue_timeout = own_timeout;
            Err(SubmitError { unit: Box::new(unit), reason })
        }
    }
}

/// How long a unit may wait in line: as long as it says itself, or the pool.
fn queue_timeout(core: &Core, unit: &NewUnit) -> Option<Duration> {
    // Until it may begin it does not wait for a worker.
    let not_yet = || unit.not_before.and_then(|time| (time - core.clock.now().wall).to_std().ok()).unwrap_or_default();
    unit.queue_timeout.or_else(|| core.settings.queue_timeout.map(|timeout| timeout.saturating_add(not_yet())))
}

/// Stores a unit that has a place in the queue, where it waits.
pub(super) fn wait_in_line(core: &Arc<Core>, arrival: &Arrival, unit: &NewUnit) -> Result<Arc<OpenUnit>, Refusal> {
    let with_timeout = NewUnit { queue_timeout: queue_timeout(core, unit), ..unit.clone() };
    let unit = &with_timeout;
    // Another thread is about to start the pool, and nobody can wait for what the repository does not know yet.
    if !core.is_registered() {
        turn_away(core, arrival);
        return Err(Refusal::NotReady(PoolPhase::Initializing));
    }
    loop {
        let changes = core.ready.changes(&unit.id);
        let stored = catch_unwind(AssertUnwindSafe(|| store(core, unit))).unwrap_or_else(|payload| {
            turn_away(core, arrival);
            resume_unwind(payload)
        });
        let found = match stored {
            Ok(Stored::Waiting { after, not_before }) => stand_in_line(core, unit, after, not_before, arrival, changes),
            Ok(Stored::Running(key)) => {
                submit::attach(core, key, arrival, changes).inspect(|_| core.ready.leave_line())
            }
            Ok(Stored::Ended(stored)) => {
                turn_away(core, arrival);
                Some(submit::ended(core, &stored))
            }
            Err(error) => {
                turn_away(core, arrival);
                return Err(Refusal::Repository(error));
            }
        };
        // Stored, it can be claimed at once, and end. Then what was found is no longer so.
        if let Some(open) = found {
            return Ok(open);
        }
    }
}

/// A unit, as it is found to be stored.
enum Stored {
    Waiting { after: AttemptKey, not_before: Option<DateTime<Utc>> },
    Running(UnitKey),
    Ended(Box<WorkUnit>),
}

/// Stores the unit as one that waits for this pool. Sent again, it is the same unit, so an answer that was lost does no harm.
fn store(core: &Core, unit: &NewUnit) -> Result<Stored, RepositoryError> {
    let insert = || core.repository().insert(core.job.id, std::slice::from_ref(unit), Intake::AcceptedBy(core.owner()));
    let inserted = insert().or_else(|error| if error.is_rejection() { Err(error) } else { insert() })?;
    match inserted.first() {
        Some(&Insertion::Inserted(key)) => {
            Ok(Stored::Waiting { after: AttemptKey { unit: key, number: 0 }, not_before: unit.not_before })
        }
        Some(Insertion::Conflict(_)) => Err(rules::inserted_otherwise(&unit.id)),
        Some(Insertion::AlreadyExists(_)) | None => {
            let read = || core.repository().unit(core.job.id, &unit.id);
            let mut stored = read()?;
            if submit::is_lost_here(core, &stored) {
                core.resolve_doubts();
                stored = read()?;
            }
            Ok(match stored.status {
                UnitStatus::Pending => Stored::Waiting {
                    after: AttemptKey { unit: stored.key, number: stored.attempt_count },
                    not_before: stored.not_before,
                },
                status if status.is_terminal() => Stored::Ended(Box::new(stored)),
                // The claimer will give it back. Then the attempt that nobody here knows of is followed by another.
                _ if submit::is_lost_here(core, &stored) => Stored::Waiting {
                    after: AttemptKey { unit: stored.key, number: stored.attempt_count.saturating_sub(1) },
                    not_before: None,
                },
                _ => Stored::Running(stored.key),
            })
        }
    }
}

/// What is stored waits for its turn, unless it does not wait any more.
fn stand_in_line(
    core: &Arc<Core>,
    unit: &NewUnit,
    after: AttemptKey,
    not_before: Option<DateTime<Utc>>,
    arrival: &Arrival,
    changes: u64,
) -> Option<Arc<OpenUnit>> {
    arrival.unit.set_key(after.unit);
    let now = core.clock.now();
    // The repository began to count a little earlier; one that was claimed before may wait for as long as it takes.
    let timeout = unit.queue_timeout.filter(|_| after.number == 0);
    let times = LineTimes {
        now_ms: now.boot_ms,
        due_ms: due_ms(not_before, now),
        deadline_ms: timeout.map(|timeout| core.in_ms(timeout.saturating_add(Duration::from_millis(1)))),
    };
    let (open, waits) = core.ready.submission_queues(after, arrival, times, changes)?;
    if !waits {
        open.leave(Left::Pending);
    } else if let Ok(unit_id) = UnitId::new(&unit.id) {
        core.callbacks.tell_of(|| Event::UnitQueued { unit_id: &unit_id });
    }
    Some(open)
}

fn turn_away(core: &Core, arrival: &Arrival) {
    core.ready.leave_line();
    core.ready.submission_ends(arrival);
}
