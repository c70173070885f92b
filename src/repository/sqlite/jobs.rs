//! Jobs, and the journal of what they were made with and became.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::book::{Answer, Book};
use super::read::{job, read_page, sql_limit, stored, understood_list};
use super::rows::{blob, json, optional_blob, time};
use crate::chain::Hash;
use crate::clock::Moment;
use crate::conversation::to_json;
use crate::job::{Job, JobChange, JobId, NewJob};
use crate::limits::AccountHolder;
use crate::money::Money;
use crate::repository::rules::{self, PageItem};
use crate::repository::{By, JobEntry, Page, RepositoryError, Result, actor};

pub(super) const JOB_COLUMNS: &str = "id, name, template, budget, settings, created_at FROM jobs";

const JOURNAL_COLUMNS_OF_JOBS: &str = "seq, at, job_id, budget, settings, actor, reason, journal_seq, journal_link, digest, \
     link FROM job_journal";

pub(super) fn read_job(row: &Row<'_>) -> rusqlite::Result<Job> {
    Ok(Job {
        id: JobId(row.get(0)?),
        name: row.get(1)?,
        template: row.get(2)?,
        budget: row.get::<_, Option<i64>>(3)?.map(Money::from_nanos),
        settings: json(row, 4)?,
        created_at: time(row, 5)?,
    })
}

fn read_entry(row: &Row<'_>) -> rusqlite::Result<JobEntry> {
    Ok(JobEntry {
        seq: row.get(0)?,
        at: time(row, 1)?,
        job_id: JobId(row.get(2)?),
        budget: row.get::<_, Option<i64>>(3)?.map(Money::from_nanos),
        settings: json(row, 4)?,
        actor: row.get(5)?,
        reason: row.get(6)?,
        journal_seq: row.get(7)?,
        journal_link: optional_blob(row, 8)?,
        digest: blob(row, 9)?,
        link: blob(row, 10)?,
    })
}

/// The journal of jobs, also of a file that has none yet: what bringing it up to date would write.
pub(super) fn journal(connection: &Connection, after: i64, limit: usize) -> Result<Page<JobEntry>> {
    let is_there = stored(connection.table_exists(None, "job_journal"))?;
    if !is_there {
        let rows = understood_list("a job", first_entries(connection))?;
        let behind = rows.into_iter().filter(|row| row.seq > after);
        return rules::page(
            limit,
            behind.map(|row| Ok(PageItem { key: row.seq, len_bytes: row.len_bytes(), item: row })),
        );
    }
    let sql = format!("SELECT {JOURNAL_COLUMNS_OF_JOBS} WHERE seq > ?1 ORDER BY seq LIMIT ?2");
    let what = |seq| format!("row {seq} of the journal of jobs");
    read_page(connection, &sql, [after, sql_limit(limit)], limit, what, |row| {
        let entry = read_entry(row)?;
        Ok((entry.len_bytes(), entry))
    })
}

/// A row for each job that was there before there was a journal of them. What it was until then nobody can tell: so the
/// same rows come of the same jobs, whenever they are asked for.
fn first_entries(connection: &Connection) -> rusqlite::Result<Vec<JobEntry>> {
    let by = By::new(actor::MIGRATION, "it was there before changes of jobs were kept");
    let mut select = connection.prepare(&format!("SELECT {JOB_COLUMNS} ORDER BY id"))?;
    let mut entries: Vec<JobEntry> = Vec::new();
    let mut rows = select.query([])?;
    while let Some(row) = rows.next()? {
        let job = read_job(row)?;
        let last = entries.last().map(|last| (last.seq, last.link));
        entries.push(JobEntry::following(last, None, &job, &by, job.created_at));
    }
    Ok(entries)
}

/// Begins the journal of a file that has jobs already.
pub(super) fn begin_journal(connection: &Connection) -> rusqlite::Result<()> {
    first_entries(connection)?.iter().try_for_each(|entry| insert_entry(connection, entry))
}

fn insert_entry(connection: &Connection, entry: &JobEntry) -> rusqlite::Result<()> {
    let mut insert = connection.prepare_cached(
        "INSERT INTO job_journal (seq, at, job_id, budget, settings, actor, reason, journal_seq, journal_link, digest, link)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
    )?;
    insert.execute(params![
        entry.seq,
        entry.at.timestamp_millis(),
        entry.job_id.0,
        entry.budget.map(Money::nanos),
        to_json(&entry.settings).expect("settings were checked when they were stored"),
        entry.actor,
        entry.reason,
        entry.journal_seq,
        entry.journal_link.as_ref().map(Hash::as_bytes),
        entry.digest.as_bytes(),
        entry.link.as_bytes(),
    ])?;
    Ok(())
}

impl Book<'_> {
    pub(super) fn create_job(&mut self, now: Moment, new: &NewJob) -> Answer<Job> {
        let mut select = self.connection.prepare_cached(&format!("SELECT {JOB_COLUMNS} WHERE name = ?1"))?;
        if let Some(job) = select.query_row([&new.name], read_job).optional()? {
            let mut select = self
                .connection
                .prepare_cached(&format!("SELECT {JOURNAL_COLUMNS_OF_JOBS} WHERE job_id = ?1 ORDER BY seq LIMIT 1"))?;
            let made = select.query_row([job.id.0], read_entry).optional()?;
            return rules::same_job(job, made.as_ref(), new).map_err(Into::into);
        }
        let settings = to_json(&new.settings).map_err(RepositoryError::from)?;
        let mut insert = self.connection.prepare_cached(
            "INSERT INTO jobs (name, template, budget, settings, created_at) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let budget = new.budget.map(Money::nanos);
        let id = insert.insert(params![new.name, new.template, budget, settings, now.wall.timestamp_millis()])?;
        let job = Job {
            id: JobId(id),
            name: new.name.clone(),
            template: new.template.clone(),
            budget: new.budget,
            settings: new.settings.clone(),
            created_at: now.wall,
        };
        self.record_job(now, &job, &By::whom(actor::CALLER))?;
        self.set_budget(AccountHolder::Job(job.id), job.budget)?;
        Ok(job)
    }

    pub(super) fn change_job(&mut self, now: Moment, job_id: JobId, change: &JobChange, by: &By) -> Answer<Job> {
        let job = job(self.connection, job_id)?;
        let mut select = self
            .connection
            .prepare_cached("SELECT digest FROM job_journal WHERE job_id = ?1 ORDER BY seq DESC LIMIT 1")?;
        let recorded = select.query_row([job_id.0], |row| blob(row, 0)).optional()?;
        if recorded != Some(job.digest()) {
            let why = "it is not what the journal of jobs says";
            return Err(RepositoryError::corrupt(job_id.to_string(), job_id.0, why).into());
        }
        let Some(changed) = rules::changed_job(&job, change) else { return Ok(job) };
        let settings = to_json(&changed.settings).map_err(RepositoryError::from)?;
        let mut update = self.connection.prepare_cached("UPDATE jobs SET budget = ?2, settings = ?3 WHERE id = ?1")?;
        update.execute(params![job_id.0, changed.budget.map(Money::nanos), settings])?;
        self.record_job(now, &changed, by)?;
        self.set_budget(AccountHolder::Job(job_id), changed.budget)?;
        Ok(changed)
    }

    /// Adds a row to the journal of jobs.
    fn record_job(&mut self, now: Moment, job: &Job, by: &By) -> rusqlite::Result<()> {
        let journal = self.journal_end()?;
        let mut select =
            self.connection.prepare_cached("SELECT seq, link FROM job_journal ORDER BY seq DESC LIMIT 1")?;
        let last = select.query_row([], |row| Ok((row.get(0)?, blob(row, 1)?))).optional()?;
        insert_entry(self.connection, &JobEntry::following(last, journal, job, by, now.wall))
    }
}
