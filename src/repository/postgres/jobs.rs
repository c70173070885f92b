//! Jobs, and the journal of what they were made with and became.

use postgres::Row;

use super::book::{Answer, Book};
use super::columns::{Columns, findable};
use super::connection::{Connection, Read};
use super::read::{found, page_of, understood};
use crate::chain::Hash;
use crate::conversation::to_json;
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::limits::AccountHolder;
use crate::money::Money;
use crate::repository::rules;
use crate::repository::{By, JobEntry, Page, RepositoryError, actor};

const JOB_COLUMNS: &str = "id, name, template, budget, settings, created_at FROM jobs";

const JOURNAL_COLUMNS: &str = "seq, at, job_id, budget, settings, actor, reason, journal_seq, journal_link, digest, \
     link FROM job_journal";

fn read_job(row: &Row) -> Read<Job> {
    Ok(Job {
        id: JobId(row.number(0)?),
        name: row.get_as(1)?,
        template: row.optional_text(2)?,
        budget: row.optional_money(3)?,
        settings: row.json(4)?,
        created_at: row.time(5)?,
    })
}

fn read_entry(row: &Row) -> Read<JobEntry> {
    Ok(JobEntry {
        seq: row.number(0)?,
        at: row.time(1)?,
        job_id: JobId(row.number(2)?),
        budget: row.optional_money(3)?,
        settings: row.json(4)?,
        actor: row.text(5)?,
        reason: row.optional_text(6)?,
        journal_seq: row.number(7)?,
        journal_link: row.optional_hash(8)?,
        digest: row.hash(9)?,
        link: row.hash(10)?,
    })
}

pub(super) fn job(connection: &mut Connection, id: JobId) -> Read<Job> {
    let row = connection.row(&format!("SELECT {JOB_COLUMNS} WHERE id = $1"), &[&id.0])?;
    match row {
        Some(row) => understood(read_job(&row), || (id.to_string(), id.0)),
        None => Err(RepositoryError::UnknownJob(id).into()),
    }
}

pub(super) fn job_named(connection: &mut Connection, name: &str) -> Read<Option<Job>> {
    let Some(findable) = findable(name) else { return Ok(None) };
    let row = connection.row(&format!("SELECT {JOB_COLUMNS} WHERE name = $1"), &[&findable])?;
    understood(found(row, read_job), || (format!("job `{name}`"), 0))
}

pub(super) fn jobs(connection: &mut Connection, after: i64, limit: usize) -> Read<Page<Job>> {
    let sql = format!("SELECT {JOB_COLUMNS} WHERE id > $1 ORDER BY id LIMIT $2");
    let rows = connection.rows(&sql, &[&after, &super::read::one_more_than(limit)])?;
    page_of(&rows, limit, |id| JobId(id).to_string(), |row| Ok((0, read_job(row)?)))
}

pub(super) fn journal(connection: &mut Connection, after: i64, limit: usize) -> Read<Page<JobEntry>> {
    let sql = format!("SELECT {JOURNAL_COLUMNS} WHERE seq > $1 ORDER BY seq LIMIT $2");
    let rows = connection.rows(&sql, &[&after, &super::read::one_more_than(limit)])?;
    page_of(
        &rows,
        limit,
        |seq| format!("row {seq} of the journal of jobs"),
        |row| {
            let entry = read_entry(row)?;
            Ok((entry.len_bytes(), entry))
        },
    )
}

impl Book<'_> {
    pub(super) fn create_job(&mut self, new: &NewJob) -> Answer<Job> {
        let row = self.row(&format!("SELECT {JOB_COLUMNS} WHERE name = $1"), &[&new.name])?;
        if let Some(job) = found(row, read_job)? {
            let made =
                self.row(&format!("SELECT {JOURNAL_COLUMNS} WHERE job_id = $1 ORDER BY seq LIMIT 1"), &[&job.id.0])?;
            let made = found(made, read_entry)?;
            return rules::same_job(job, made.as_ref(), new).map_err(Into::into);
        }
        let settings = to_json(&new.settings).map_err(RepositoryError::from)?;
        let created_at = self.now.wall;
        let row = self.row(
            "INSERT INTO jobs (name, template, budget, settings, created_at) VALUES ($1, $2, $3, $4, $5) RETURNING id",
            &[
                &new.name,
                &new.template.as_deref().map(str::as_bytes),
                &new.budget.map(Money::nanos),
                &settings,
                &created_at.timestamp_millis(),
            ],
        )?;
        let id = JobId(row.expect("an insert returns its row").number(0)?);
        let job = Job {
            id,
            name: new.name.clone(),
            template: new.template.clone(),
            budget: new.budget,
            settings: new.settings.clone(),
            created_at,
        };
        self.record_job(&job, &By::whom(actor::CALLER))?;
        self.set_budget(AccountHolder::Job(job.id), job.budget)?;
        Ok(job)
    }

    pub(super) fn change_job(&mut self, job_id: JobId, change: &JobChange, by: &By) -> Answer<Job> {
        let job = job(self.connection(), job_id)?;
        let row =
            self.row("SELECT digest FROM job_journal WHERE job_id = $1 ORDER BY seq DESC LIMIT 1", &[&job_id.0])?;
        if found(row, |row| row.hash(0))? != Some(job.digest()) {
            let why = "it is not what the journal of jobs says";
            return Err(RepositoryError::corrupt(job_id.to_string(), job_id.0, why).into());
        }
        let Some(changed) = rules::changed_job(&job, change) else { return Ok(job) };
        let settings = to_json(&changed.settings).map_err(RepositoryError::from)?;
        self.execute(
            "UPDATE jobs SET budget = $2, settings = $3 WHERE id = $1",
            &[&job_id.0, &changed.budget.map(Money::nanos), &settings],
        )?;
        self.record_job(&changed, by)?;
        self.set_budget(AccountHolder::Job(job_id), changed.budget)?;
        Ok(changed)
    }

    /// Adds a row to the journal of jobs.
    fn record_job(&mut self, job: &Job, by: &By) -> Answer<()> {
        let row = self.row("SELECT seq, link FROM job_journal ORDER BY seq DESC LIMIT 1", &[])?;
        let last = found(row, |row| Ok((row.number(0)?, row.hash(1)?)))?;
        let entry = JobEntry::following(last, self.journal_end(), job, by, self.now.wall);
        let settings = to_json(&entry.settings).expect("settings were checked when they were stored");
        self.execute(
            "INSERT INTO job_journal (seq, at, job_id, budget, settings, actor, reason, journal_seq, journal_link, digest,
                                      link)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)",
            &[
                &entry.seq,
                &entry.at.timestamp_millis(),
                &entry.job_id.0,
                &entry.budget.map(Money::nanos),
                &settings,
                &entry.actor.as_bytes(),
                &entry.reason.as_deref().map(str::as_bytes),
                &entry.journal_seq,
                &entry.journal_link.as_ref().map(|link| Hash::as_bytes(link).as_slice()),
                &entry.digest.as_bytes().as_slice(),
                &entry.link.as_bytes().as_slice(),
            ],
        )?;
        Ok(())
    }
}
