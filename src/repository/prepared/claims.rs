//! What units are claimed under, and what the claimant is told of one that is new.

use super::{BeginningRow, HotUnit};
use crate::attempt::Beginning;
use crate::clock::Moment;
use crate::lease::{Claim, Lease, OwnerId};
use crate::limits::Expectation;
use crate::money::{Cost, Money, Tokens};
use crate::repository::{Claimant, Result, Slot, rules};
use crate::unit::{NewUnit, UnitStatus, WorkUnit};

/// What units are claimed under, checked and serialised by the claimant, so that the writer need not.
#[derive(Debug)]
pub(in crate::repository) struct Terms {
    pub(in crate::repository) owner: OwnerId,
    pub(in crate::repository) token: i64,
    ttl_ms: i64,
    /// When the leases end, once it is their turn to be granted.
    pub(in crate::repository) until_ms: i64,
    /// What units with a prompt of their own begin with at once.
    pub(in crate::repository) beginning: Option<BeginningRow>,
    pub(in crate::repository) expectation: Expectation,
}

impl Terms {
    pub(in crate::repository) fn of(claimant: &Claimant) -> Result<Terms> {
        let ttl_ms = rules::check_ttl(claimant.ttl)?;
        let beginning = claimant.starting.clone().map(|provenance| Beginning::default().provenance(provenance));
        let beginning = beginning.as_ref().map(BeginningRow::of).transpose()?;
        let (owner, token, expectation) = (claimant.owner, claimant.token, claimant.expectation);
        Ok(Terms { owner, token, ttl_ms, until_ms: 0, beginning, expectation })
    }

    /// Leases last from now on, not from when they were asked for: while a claim waits to be written a renewal may overtake it, and
    /// whoever has renewed counts on all its leases for as long.
    pub(in crate::repository) fn granted(&mut self, now: Moment) -> &Terms {
        self.until_ms = now.boot_ms.saturating_add(self.ttl_ms);
        self
    }
}

/// The claim that comes next for a unit.
#[derive(Debug)]
pub(in crate::repository) struct Grant<'a> {
    /// The unit as it stands then.
    pub(in crate::repository) unit: HotUnit,
    pub(in crate::repository) terms: &'a Terms,
    pub(in crate::repository) slot: &'a Slot,
    /// What it begins with, if it does at once.
    pub(in crate::repository) beginning: Option<&'a BeginningRow>,
    /// What it is expected to cost, where a budget counts.
    pub(in crate::repository) expected: Option<Money>,
}

impl<'a> Grant<'a> {
    pub(in crate::repository) fn of(
        unit: HotUnit,
        terms: &'a Terms,
        slot: &'a Slot,
        has_own_prompt: bool,
        expected: Option<Money>,
    ) -> Grant<'a> {
        let beginning = terms.beginning.as_ref().filter(|_| has_own_prompt);
        let unit = HotUnit {
            status: if beginning.is_some() { UnitStatus::Processing } else { UnitStatus::Assigned },
            fence: unit.fence + 1,
            attempt_count: unit.attempt_count + 1,
            pause: None,
            lease: Some((terms.owner, slot.worker_id.clone())),
            ..unit
        };
        Grant { unit, terms, slot, beginning, expected }
    }

    pub(in crate::repository) fn lease(&self) -> Lease {
        let Grant { unit, terms, slot, .. } = self;
        Lease {
            job_id: unit.job_id,
            unit_id: unit.id.clone(),
            unit: unit.key,
            attempt_number: unit.attempt_count,
            fence: unit.fence,
            owner: terms.owner,
            worker_id: slot.worker_id.clone(),
            until_ms: terms.until_ms,
        }
    }
}

/// The claim of a unit that was inserted and claimed at once: all there is to know is in what was inserted.
pub(in crate::repository) fn fresh_claim(new: &NewUnit, lease: Lease, status: UnitStatus, now: Moment) -> Claim {
    let is_started = status == UnitStatus::Processing;
    let unit = WorkUnit {
        key: lease.unit,
        job_id: lease.job_id,
        id: lease.unit_id.clone(),
        unit_type: new.unit_type.clone(),
        status,
        priority: new.priority,
        payload: new.payload.clone(),
        prompt: new.prompt.clone(),
        template: new.template.clone(),
        options: new.options.clone(),
        max_retries: new.max_retries,
        attempt_count: 1,
        attempts_used: 0,
        fence: lease.fence,
        accepted_by: Some(lease.owner),
        not_before: None,
        created_at: now.wall,
        assigned_at: Some(now.wall),
        started_at: is_started.then_some(now.wall),
        first_message_at: None,
        completed_at: None,
        purged_at: None,
        worker_id: Some(lease.worker_id.clone()),
        execution_time: None,
        rendered_prompt: new.prompt.clone().filter(|_| is_started),
        result: None,
        output: None,
        output_files: Vec::new(),
        failure: None,
        session_id: None,
        process: None,
        tokens: Tokens::default(),
        cost: Cost::default(),
    };
    let resume_session = new.options.resume_session.clone();
    Claim { lease, unit, checkpoint: None, resume_session, earlier_processes: Vec::new() }
}
