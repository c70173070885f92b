//! `workcrew status`: how far it is, what runs and who runs it.

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use chrono::Utc;
use clap::Args;
use serde_json::json;
use workcrew::audit::questions::{active, all_jobs};
use workcrew::audit::visible::line;
use workcrew::limits::AccountHolder;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::{Archive, Job, Owner};

use crate::database::{Database, OfJob};
use crate::print::{self, Table, number};
use crate::summary;
use crate::time::{short, stamp};
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// Shows it again and again, until Ctrl-C
    #[arg(long)]
    watch: bool,
    /// How often it is shown
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = crate::time::positive, requires = "watch")]
    every: Duration,
    /// Prints one JSON object per line and job
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    loop {
        let jobs = match options.job.find(&archive)? {
            Some(job) => vec![job],
            None => all_jobs(&archive)?,
        };
        if options.watch && !options.json && std::io::stdout().is_terminal() {
            // From the top of an empty screen.
            write!(out, "\x1b[H\x1b[2J")?;
        }
        for job in jobs {
            if options.json { write_json(&archive, &job, out)? } else { write(&archive, &job, out)? }
        }
        if !options.json {
            write_providers(&archive, &options.database, out)?;
        }
        out.flush()?;
        if !options.watch {
            return Ok(code::DONE);
        }
        std::thread::sleep(options.every);
    }
}

fn write(archive: &SqliteArchive, job: &Job, out: &mut dyn Write) -> Result<(), Trouble> {
    let counts = archive.counts(job.id)?;
    let running = active(archive, Some(job.id))?;
    let cost = archive.costs(Some(job.id))?.spent();
    writeln!(out, "job {}: {}, {}", line(&job.name), print::count(counts.total(), "unit"), print::spent(cost))?;
    let words = [
        ("completed", counts.completed),
        ("failed", counts.failed),
        ("cancelled", counts.cancelled),
        ("running", running.len() as u64),
        ("waiting", counts.pending),
    ];
    let words: Vec<String> = words.iter().map(|(name, units)| format!("{} {name}", number(*units))).collect();
    writeln!(out, "  {}", words.join(", "))?;
    if let Some(account) = archive.account(AccountHolder::Job(job.id))? {
        writeln!(out, "  {}", summary::budget(&account))?;
    }
    let owners = archive.owners()?;
    write_holds(&owners, job, out)?;
    if running.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(["  WORKER", "PROCESS", "UNIT", "ATTEMPT", "SINCE", ""]).right(&[3]).limit(2, 40);
    for lease in running {
        let owner = owners.iter().find(|owner| owner.id == lease.owner);
        let process = owner.map_or_else(|| lease.owner.to_string(), |owner| format!("pid {}", owner.process.pid));
        let since = (Utc::now() - lease.since).to_std().map(short).unwrap_or_default();
        let note = lease.staleness.map(|why| why.reason().to_owned()).unwrap_or_default();
        let worker = format!("  {}", lease.worker_id);
        table.row([worker, process, lease.unit_id.to_string(), lease.attempt_number.to_string(), since, note]);
    }
    Ok(table.write(out)?)
}

/// Why those who work on a job start nothing, or have fewer workers than they could, if they say so.
fn write_holds(owners: &[Owner], job: &Job, out: &mut dyn Write) -> Result<(), Trouble> {
    for owner in owners.iter().filter(|owner| owner.ended_at.is_none()) {
        let Some(state) = owner.state.as_ref().filter(|state| state.job_id == Some(job.id)) else { continue };
        let pid = owner.process.pid;
        if state.is_paused {
            writeln!(out, "  pid {pid} is paused")?;
        }
        if let Some(level) = state.level.filter(|level| level.workers < state.max_workers)
            && let Some(at) = level.cut_at
        {
            let (allowed, limit, at) = (level.workers, state.max_workers, stamp(at));
            writeln!(
                out,
                "  pid {pid} may have {allowed} of {limit} workers since its provider asked for fewer at {at} UTC"
            )?;
        }
        for hold in &state.holds {
            let until = hold.until.map(|until| format!(" until {} UTC", stamp(until))).unwrap_or_default();
            writeln!(out, "  pid {pid} is held{until}: {}", line(&hold.reason))?;
        }
    }
    Ok(())
}

/// Who is not to be asked yet, by nobody who works on the database.
fn write_providers(archive: &SqliteArchive, database: &Database, out: &mut dyn Write) -> Result<(), Trouble> {
    let holds = archive.holds()?;
    for hold in &holds {
        let which = if holds.len() > 1 { format!(" {}", print::word(&hold.provider)) } else { String::new() };
        let (provider, until, reason) = (line(&hold.provider), stamp(hold.until), line(&hold.reason));
        let lift = format!("workcrew lift{which}{}", database.as_argument());
        writeln!(out, "{provider} is not asked until {until} UTC: {reason} (end that with `{lift}`)")?;
    }
    Ok(())
}

fn write_json(archive: &SqliteArchive, job: &Job, out: &mut dyn Write) -> Result<(), Trouble> {
    let status = json!({
        "job": job.name,
        "counts": archive.counts(job.id)?,
        "cost": archive.costs(Some(job.id))?.spent(),
        "budget": archive.account(AccountHolder::Job(job.id))?,
        "running": active(archive, Some(job.id))?,
        "providers": archive.holds()?,
        "owners": archive.owners()?.into_iter().filter(|owner| owner.ended_at.is_none()).collect::<Vec<_>>(),
    });
    print::json(out, &status)
}
