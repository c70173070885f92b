//! A unit on its way in, and the part of one that is stored which decides what may happen to it.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::attempt::{AttemptKey, Standing};
use crate::clock::Moment;
use crate::job::JobId;
use crate::lease::OwnerId;
use crate::repository::rules::{self, Pause};
use crate::repository::{Intake, RepositoryError};
use crate::unit::{Inputs, NewUnit, UnitId, UnitKey, UnitStatus};
use crate::worker::WorkerId;

/// A unit that is to be stored, checked and serialised by its caller, so that the writer need not.
#[derive(Debug)]
pub(in crate::repository) struct NewRow {
    pub(in crate::repository) id: UnitId,
    pub(in crate::repository) inputs: Inputs,
    pub(in crate::repository) unit_type: Option<String>,
    pub(in crate::repository) prompt: Option<String>,
    pub(in crate::repository) template: Option<String>,
    pub(in crate::repository) priority: i32,
    pub(in crate::repository) max_retries: u32,
    not_before: Option<DateTime<Utc>>,
    queue_timeout: Option<Duration>,
    pub(in crate::repository) pause: Option<Pause>,
    pub(in crate::repository) queue_deadline_ms: Option<i64>,
}

impl NewRow {
    pub(in crate::repository) fn of(unit: &NewUnit) -> Result<NewRow, RepositoryError> {
        let (id, inputs) = rules::check_new_unit(unit)?;
        Ok(NewRow {
            id,
            inputs,
            unit_type: unit.unit_type.clone(),
            prompt: unit.prompt.clone(),
            template: unit.template.clone(),
            priority: unit.priority,
            max_retries: unit.max_retries,
            not_before: unit.not_before,
            queue_timeout: unit.queue_timeout,
            pause: None,
            queue_deadline_ms: None,
        })
    }

    /// Its times, counted from when it is inserted. Whoever submits a unit is there to execute it, so that it waits for nobody: that
    /// is as [open](Intake::Open) an intake as any.
    pub(in crate::repository) fn inserted_at(&mut self, now: Moment, intake: Intake) {
        self.pause = self.not_before.and_then(|time| Pause::until(time, now));
        self.queue_deadline_ms = rules::queue_deadline_ms(self.queue_timeout, intake, now);
    }

    /// Its row as it stands right after it was inserted.
    pub(in crate::repository) fn inserted(&self, key: UnitKey, job_id: JobId) -> HotUnit {
        HotUnit {
            key,
            job_id,
            id: self.id.clone(),
            status: UnitStatus::Pending,
            fence: 0,
            attempt_count: 0,
            attempts_used: 0,
            releases: 0,
            max_retries: self.max_retries,
            priority: self.priority,
            pause: self.pause,
            is_purged: false,
            lease: None,
        }
    }

    pub(in crate::repository) fn len_bytes(&self) -> usize {
        self.inputs.payload.len() + self.prompt.as_ref().map_or(0, String::len)
    }
}

/// The part of a unit's row that decides what may happen to it.
#[derive(Clone, Debug)]
pub(in crate::repository) struct HotUnit {
    pub(in crate::repository) key: UnitKey,
    pub(in crate::repository) job_id: JobId,
    pub(in crate::repository) id: UnitId,
    pub(in crate::repository) status: UnitStatus,
    pub(in crate::repository) fence: i64,
    pub(in crate::repository) attempt_count: u32,
    pub(in crate::repository) attempts_used: u32,
    pub(in crate::repository) releases: u32,
    pub(in crate::repository) max_retries: u32,
    pub(in crate::repository) priority: i32,
    pub(in crate::repository) pause: Option<Pause>,
    pub(in crate::repository) is_purged: bool,
    pub(in crate::repository) lease: Option<(OwnerId, WorkerId)>,
}

impl HotUnit {
    /// The attempt that was made last, or is being made.
    pub(in crate::repository) fn attempt(&self) -> AttemptKey {
        AttemptKey { unit: self.key, number: self.attempt_count }
    }

    pub(in crate::repository) fn standing(&self) -> Standing {
        Standing {
            status: self.status,
            attempts_used: self.attempts_used,
            max_retries: self.max_retries,
            releases: self.releases,
        }
    }
}
