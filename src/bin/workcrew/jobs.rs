//! `workcrew jobs`: what a database holds.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use workcrew::Archive;
use workcrew::audit::questions::all_jobs;

use crate::database::Database;
use crate::print::{self, Table, number};
use crate::time::stamp;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    /// Prints one JSON object per line
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let mut table =
        Table::new(["JOB", "UNITS", "COMPLETED", "FAILED", "CANCELLED", "RUNNING", "WAITING", "COST", "CREATED"])
            .right(&[1, 2, 3, 4, 5, 6, 7])
            .limit(0, 40);
    for job in all_jobs(&archive)? {
        let counts = archive.counts(job.id)?;
        let cost = archive.costs(Some(job.id))?.spent();
        if options.json {
            let budget = job.budget;
            let line = json!({
                "job": job.name, "created_at": job.created_at, "counts": counts, "cost": cost,
                "has_template": job.template.is_some(), "budget": budget,
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
