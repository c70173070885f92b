//! `workcrew requeue`: brings back what ended badly.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use workcrew::audit::questions::find;
use workcrew::audit::visible::line;
use workcrew::repository::UnitFilter;
use workcrew::{Repository, UnitStatus};

use crate::by::Who;
use crate::database::{Database, OfJob};
use crate::print;
use crate::trouble::{Trouble, code};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EndedBadly {
    Failed,
    Cancelled,
}

#[derive(Args)]
pub struct Options {
    /// The units
    #[arg(value_name = "UNIT", required_unless_present_any = ["status", "error"])]
    units: Vec<String>,
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// All units that ended like this
    #[arg(long, value_enum, conflicts_with = "units")]
    status: Option<EndedBadly>,
    /// All units that failed in this way, such as timed_out; `workcrew failures` lists the kinds
    #[arg(long, value_name = "KIND", conflicts_with = "units")]
    error: Option<String>,
    #[command(flatten)]
    who: Who,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let repository = options.database.existing()?;
    let by = options.who.by();
    if options.units.is_empty() {
        let mut filter: UnitFilter = options.job.filter(&repository)?;
        match options.status {
            Some(EndedBadly::Cancelled) => filter = filter.status(UnitStatus::Cancelled),
            Some(EndedBadly::Failed) | None => filter = filter.status(UnitStatus::Failed),
        }
        filter.failure_kind = options.error;
        let requeued = repository.requeue_all(&filter, &by)?;
        writeln!(out, "{} brought back", print::count(requeued.units, "unit"))?;
        if requeued.purged > 0 {
            writeln!(out, "{} purged, and cannot be", print::count(requeued.purged, "unit"))?;
        }
        return Ok(code::DONE);
    }
    for id in &options.units {
        let unit = find(&repository, options.job.job.as_deref(), id)?;
        repository.requeue(unit.job_id, id, &by)?;
        writeln!(out, "{}: PENDING", line(id))?;
    }
    Ok(code::DONE)
}
