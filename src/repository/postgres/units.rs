//! Units on their way in: insert, submit; and what people do to them: cancel, requeue.

use super::book::{Answer, Book, Entry};
use super::columns::Columns;
use super::connection::Read;
use super::{granted, read};
use crate::chain::Hash;
use crate::job::JobId;
use crate::lease::{Lease, OwnerId};
use crate::repository::prepared::{Grant, HotUnit, NewRow, Terms};
use crate::repository::rules::{self, End};
use crate::repository::{By, CancelAnswer, Insertion, Intake, RepositoryError, Slot, Submitted, actor};
use crate::unit::{Change, UnitKey, UnitStatus, WorkUnit, unit_digest};

/// What became of a submission, before the records are read.
#[derive(Debug)]
pub(super) enum Taken {
    /// It is new, and claimed or even started: its caller knows all else about it.
    Fresh(Lease, UnitStatus),
    /// Anything else.
    Found(Submitted),
}

impl Book<'_> {
    pub(super) fn insert(&mut self, job_id: JobId, rows: &mut [NewRow], intake: Intake) -> Answer<Vec<Insertion>> {
        let job_has_template = self.job_has_template(job_id)?;
        if let Intake::AcceptedBy(owner) = intake {
            self.check_owner(owner)?;
        }
        let mut insertions = Vec::with_capacity(rows.len());
        for row in rows {
            row.inserted_at(self.now, intake);
            insertions.push(match self.find_inputs(job_id, row)? {
                Some((key, None)) => {
                    self.accept_existing(key, row, intake)?;
                    Insertion::AlreadyExists(key)
                }
                Some((key, Some(_))) => Insertion::Conflict(key),
                None => Insertion::Inserted(self.insert_row(job_id, row, intake, None, job_has_template)?),
            });
        }
        Ok(insertions)
    }

    /// Inserts or attaches, and claims what is due; see `Repository::submit` for the table.
    pub(super) fn submit(&mut self, job_id: JobId, row: &mut NewRow, terms: &Terms, slot: &Slot) -> Answer<Taken> {
        row.inserted_at(self.now, Intake::Open);
        let job_has_template = self.job_has_template(job_id)?;
        self.check_owner(terms.owner)?;
        let Some((key, difference)) = self.find_inputs(job_id, row)? else {
            return self.submit_fresh(job_id, row, terms, slot, job_has_template);
        };
        if let Some(difference) = difference {
            return Err(rules::conflict(&row.id, difference).into());
        }
        let unit = self.unit(key)?.expect("its inputs were just found");
        // If it cannot be read, that is the answer, before anything of it changes.
        read::unit(self.settled()?, job_id, row.id.as_str())?;
        match unit.status {
            UnitStatus::Pending => self.submit_pending(unit, row, terms, slot),
            status if status.is_leased() => self.found(&unit, Submitted::Running),
            _ => self.found(&unit, Submitted::Finished),
        }
    }

    fn submit_pending(&mut self, unit: HotUnit, row: &NewRow, terms: &Terms, slot: &Slot) -> Answer<Taken> {
        let key = unit.key;
        let is_due = unit.pause.is_none_or(|pause| pause.is_over(self.now));
        if is_due {
            self.check_slots(terms.owner, std::slice::from_ref(slot))?;
        }
        self.add_prompt(&unit, row, terms.owner)?;
        let mut accounts = self.accounts(unit.job_id, terms.owner)?;
        match self.expect(&accounts, terms, |book| book.prompt_bytes(key))? {
            Ok(expected) if is_due => {
                self.reserve(&mut accounts, expected)?;
                let lease = self.grant(unit, terms, slot, expected)?;
                let claim = granted::claim_of(self.settled()?, lease)?;
                Ok(Taken::Found(Submitted::Claimed(Box::new(claim))))
            }
            // It is not its time, or it may cost more than is left.
            Ok(_) | Err(_) => {
                self.execute(
                    "UPDATE work_units SET accepted_by = $2, queue_deadline_lease_ms = NULL WHERE key = $1",
                    &[&key.0, &terms.owner.0],
                )?;
                self.found(&unit, Submitted::Waiting)
            }
        }
    }

    fn found(&mut self, unit: &HotUnit, answer: fn(Box<WorkUnit>) -> Submitted) -> Answer<Taken> {
        let unit = read::unit(self.settled()?, unit.job_id, unit.id.as_str())?;
        Ok(Taken::Found(answer(Box::new(unit))))
    }

    /// Inserts a unit and, if it is due, claims it, and even starts it, with the same row.
    fn submit_fresh(
        &mut self,
        job_id: JobId,
        row: &NewRow,
        terms: &Terms,
        slot: &Slot,
        job_has_template: bool,
    ) -> Answer<Taken> {
        let intake = Intake::AcceptedBy(terms.owner);
        if row.pause.is_none() {
            self.check_slots(terms.owner, std::slice::from_ref(slot))?;
        }
        let mut accounts = self.accounts(job_id, terms.owner)?;
        let expected = self.expect(&accounts, terms, |book| book.prompt_bytes_of(job_id, row))?;
        let (None, Ok(expected)) = (row.pause, expected) else {
            let key = self.insert_row(job_id, row, intake, None, job_has_template)?;
            return self.found(&row.inserted(key, job_id), Submitted::Waiting);
        };
        self.reserve(&mut accounts, expected)?;
        let mut grant = Grant::of(row.inserted(UnitKey(0), job_id), terms, slot, row.prompt.is_some(), expected);
        grant.unit.key = self.insert_row(job_id, row, intake, Some(&grant), job_has_template)?;
        let status = grant.unit.status;
        Ok(Taken::Fresh(self.begin_attempt(grant)?, status))
    }

    /// About how long the prompt is that will be sent for a unit that is to be stored.
    fn prompt_bytes_of(&mut self, job_id: JobId, row: &NewRow) -> Read<u64> {
        if let Some(prompt) = &row.prompt {
            return Ok(prompt.len() as u64);
        }
        let of_job = self.row("SELECT octet_length(template)::bigint FROM jobs WHERE id = $1", &[&job_id.0])?;
        let of_job = of_job.map_or(Ok(None), |row| row.optional_number(0))?.map(i64::unsigned_abs);
        let template = row.template.as_ref().map(|template| template.len() as u64).or(of_job);
        Ok(template.map_or(0, |template| template + row.inputs.payload.len() as u64))
    }

    /// If a unit that was there waits, it now waits for who accepts it.
    ///
    /// What was never claimed gets a queue timeout as if it were new, unless one is running for the same owner.
    fn accept_existing(&mut self, key: UnitKey, row: &NewRow, intake: Intake) -> Answer<()> {
        let Intake::AcceptedBy(owner) = intake else { return Ok(()) };
        let unit = self.unit(key)?.expect("its inputs were just found");
        if unit.status != UnitStatus::Pending {
            return Ok(());
        }
        self.execute(
            "UPDATE work_units
             SET accepted_by = $2,
                 queue_deadline_lease_ms = CASE
                     WHEN attempt_count > 0 THEN NULL
                     WHEN accepted_by = $2 THEN coalesce(queue_deadline_lease_ms, $3)
                     ELSE $3
                 END
             WHERE key = $1",
            &[&key.0, &owner.0, &row.queue_deadline_ms],
        )?;
        self.add_prompt(&unit, row, owner)
    }

    /// Stores the prompt of a waiting unit that had none.
    fn add_prompt(&mut self, unit: &HotUnit, row: &NewRow, owner: OwnerId) -> Answer<()> {
        let (Some(prompt), Some(prompt_hash)) = (&row.prompt, &row.inputs.prompt_hash) else { return Ok(()) };
        let added = self.execute(
            "UPDATE unit_inputs SET prompt = $2, prompt_hash = $3 WHERE unit_key = $1 AND prompt_hash IS NULL",
            &[&unit.key.0, &prompt.as_bytes(), &prompt_hash.as_bytes().as_slice()],
        )?;
        if added == 0 {
            return Ok(());
        }
        self.execute("UPDATE work_units SET has_prompt = true WHERE key = $1", &[&unit.key.0])?;
        self.record(Entry {
            unit: unit.key,
            attempt_number: None,
            fence: unit.fence,
            change: Change::AddPrompt,
            from: Some(unit.status),
            to: unit.status,
            actor: &owner.to_string(),
            reason: None,
            conversation: None,
            digest: Some(unit_digest(&row.inputs.digest, unit.job_id, unit.priority, unit.max_retries)),
        });
        Ok(())
    }

    /// The unit of this name, and how it differs from the row if it does.
    fn find_inputs(&mut self, job_id: JobId, row: &NewRow) -> Answer<Option<(UnitKey, Option<&'static str>)>> {
        let found = self.row(
            "SELECT u.key, i.content_hash, i.prompt_hash
             FROM work_units u
             JOIN unit_inputs i ON i.unit_key = u.key
             WHERE u.job_id = $1 AND u.id = $2",
            &[&job_id.0, &row.id.as_str()],
        )?;
        let Some(found) = found else { return Ok(None) };
        let (content_hash, prompt_hash) = (found.hash(1)?, found.optional_hash(2)?);
        let difference = rules::difference(&content_hash, prompt_hash.as_ref(), &row.inputs);
        Ok(Some((UnitKey(found.number(0)?), difference)))
    }

    /// Stores a unit, as PENDING or as what it is granted as at once; the journal has the insert in any case.
    fn insert_row(
        &mut self,
        job_id: JobId,
        row: &NewRow,
        intake: Intake,
        grant: Option<&Grant<'_>>,
        job_has_template: bool,
    ) -> Answer<UnitKey> {
        let owner = match intake {
            Intake::Open => None,
            Intake::AcceptedBy(owner) => Some(owner),
        };
        let key = self.next_unit();
        let status = grant.map_or(UnitStatus::Pending, |grant| grant.unit.status);
        let has_prompt = row.prompt.is_some() || row.template.is_some() || job_has_template;
        self.execute(
            "INSERT INTO work_units (key, job_id, id, status, priority, has_prompt, max_retries, accepted_by, not_before,
                                     delay_ms, queue_deadline_lease_ms, created_at, fence, attempt_count, lease_owner,
                                     lease_worker, until_lease_ms)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
            &[
                &key.0,
                &job_id.0,
                &row.id.as_str(),
                &status.name(),
                &i64::from(row.priority),
                &has_prompt,
                &i64::from(row.max_retries),
                &owner.map(|owner| owner.0),
                &row.pause.map(|pause| pause.not_before.timestamp_millis()),
                &row.pause.map(|pause| pause.delay_ms),
                &row.queue_deadline_ms,
                &self.now.wall.timestamp_millis(),
                &grant.map_or(0, |grant| grant.unit.fence),
                &grant.map_or(0, |grant| i64::from(grant.unit.attempt_count)),
                &grant.map(|grant| grant.terms.owner.0),
                &grant.map(|grant| grant.slot.worker_id.as_str()),
                &grant.map(|grant| grant.terms.until_ms),
            ],
        )?;
        self.insert_inputs(key, row)?;
        let owner = owner.map(|owner| owner.to_string());
        self.record(Entry {
            unit: key,
            attempt_number: None,
            fence: 0,
            change: Change::Insert,
            from: None,
            to: UnitStatus::Pending,
            actor: owner.as_deref().unwrap_or(actor::CALLER),
            reason: None,
            conversation: None,
            digest: Some(unit_digest(&row.inputs.digest, job_id, row.priority, row.max_retries)),
        });
        Ok(key)
    }

    fn insert_inputs(&mut self, key: UnitKey, row: &NewRow) -> Read<()> {
        let bytes = |text: &Option<String>| text.as_deref().map(|text| text.as_bytes().to_vec());
        self.execute(
            "INSERT INTO unit_inputs (unit_key, unit_type, payload, prompt, template, options, content_hash, prompt_hash)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)",
            &[
                &key.0,
                &bytes(&row.unit_type),
                &row.inputs.payload,
                &bytes(&row.prompt),
                &bytes(&row.template),
                &row.inputs.options,
                &row.inputs.content_hash.as_bytes().as_slice(),
                &row.inputs.prompt_hash.as_ref().map(|hash| Hash::as_bytes(hash).as_slice()),
            ],
        )?;
        Ok(())
    }

    pub(super) fn cancel(&mut self, job_id: JobId, id: &str, by: &By) -> Answer<(UnitKey, CancelAnswer)> {
        self.job_has_template(job_id)?;
        let Some(unit) = self.unit_named(job_id, id)? else {
            return Err(RepositoryError::unknown_unit(job_id, id).into());
        };
        let Some(to) = unit.status.after(Change::Cancel) else {
            let answer = match unit.status {
                UnitStatus::CancelRequested => CancelAnswer::AlreadyRequested,
                status => CancelAnswer::AlreadyEnded(status),
            };
            return Ok((unit.key, answer));
        };
        let is_over = to == UnitStatus::Cancelled;
        if is_over {
            self.execute(
                "UPDATE work_units
                 SET status = 'CANCELLED', completed_at = $2, not_before = NULL, delay_ms = NULL,
                     queue_deadline_lease_ms = NULL
                 WHERE key = $1",
                &[&unit.key.0, &self.now.wall.timestamp_millis()],
            )?;
        } else {
            self.execute("UPDATE work_units SET status = 'CANCEL_REQUESTED' WHERE key = $1", &[&unit.key.0])?;
        }
        self.memory.attempt_changes(unit.attempt());
        self.record_by(&unit, Change::Cancel, to, (!is_over).then_some(unit.attempt_count), by);
        Ok((unit.key, if is_over { CancelAnswer::Cancelled } else { CancelAnswer::Requested }))
    }

    /// Only as it was `read`, if it was.
    pub(super) fn requeue(&mut self, job_id: JobId, id: &str, read: Option<End>, by: &By) -> Answer<()> {
        self.job_has_template(job_id)?;
        let Some(unit) = self.unit_named(job_id, id)? else {
            return Err(RepositoryError::unknown_unit(job_id, id).into());
        };
        let row = self.row("SELECT completed_at FROM work_units WHERE key = $1", &[&unit.key.0])?;
        let completed_at = row.map_or(Ok(None), |row| row.optional_time(0))?;
        let end = End { status: unit.status, fence: unit.fence, completed_at };
        let to = rules::requeued(&unit.id, end, read, unit.is_purged)?;
        self.execute(
            "UPDATE work_units
             SET status = 'PENDING', attempts_used = 0, releases = 0, completed_at = NULL, failure_kind = NULL,
                 failure_message = NULL, accepted_by = NULL, not_before = NULL, delay_ms = NULL,
                 queue_deadline_lease_ms = NULL
             WHERE key = $1",
            &[&unit.key.0],
        )?;
        self.record_by(&unit, Change::Requeue, to, None, by);
        Ok(())
    }

    /// A journal row for what somebody did.
    pub(super) fn record_by(
        &mut self,
        unit: &HotUnit,
        change: Change,
        to: UnitStatus,
        attempt_number: Option<u32>,
        by: &By,
    ) {
        self.record(Entry {
            unit: unit.key,
            attempt_number,
            fence: unit.fence,
            change,
            from: Some(unit.status),
            to,
            actor: &by.actor,
            reason: by.reason.as_deref(),
            conversation: None,
            digest: None,
        });
    }
}
