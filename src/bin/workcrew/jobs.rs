//! `workcrew jobs`: what a database holds.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use workcrew::Archive;
use workcrew::audit::questions::{all_job_changes, all_jobs};
use workcrew::repository::JobEntry;

use crate::database::Database;
use crate::print::{self, Table, number};
use crate::time::stamp;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    /// Prints one JSON object per line: also what is kept with each job, and who changed that, when and why
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let mut table =
        Table::new(["JOB", "UNITS", "COMPLETED", "FAILED", "CANCELLED", "RUNNING", "WAITING", "COST", "CREATED"])
            .right(&[1, 2, 3, 4, 5, 6, 7])
            .limit(0, 40);
    let changes = if options.json { all_job_changes(&archive)? } else { Vec::new() };
    for job in all_jobs(&archive)? {
        let counts = archive.counts(job.id)?;
        let cost = archive.costs(Some(job.id))?.spent();
        if options.json {
            let changes: Vec<&JobEntry> = changes.iter().filter(|change| change.job_id == job.id).collect();
            let line = json!({
                "job": job.name, "created_at": job.created_at, "counts": counts, "cost": cost,
                "has_template": job.template.is_some(), "budget": job.budget, "settings": job.settings, "changes": changes,
            });
            print::json(out, &line)?;
            continue;
        }
        let running = counts.assigned + counts.processing + counts.cancel_requested;
        let counted = [counts.total(), counts.completed, counts.failed, counts.cancelled, running, counts.pending];
        let [total, completed, failed, cancelled, running, waiting] = counted.map(number);
        let created = stamp(job.created_at);
        table.row([job.name, total, completed, failed, cancelled, running, waiting, print::cost(cost), created]);
    }
    if !options.json {
        table.write(out)?;
    }
    Ok(code::DONE)
}
