//! `workcrew requeue`: brings back what ended badly.

use std::io::Write;
use std::process::ExitCode;

use clap::{ArgGroup, Args, ValueEnum};
use workcrew::audit::questions::find;
use workcrew::audit::visible::line;
use workcrew::repository::UnitFilter;
use workcrew::{Repository, RepositoryError, UnitStatus};

use crate::by::Who;
use crate::database::{Database, OfJob};
use crate::each::each;
use crate::print;
use crate::trouble::{Trouble, code};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EndedBadly {
    Failed,
    Cancelled,
}

#[derive(Args)]
#[command(group = ArgGroup::new("ended").multiple(true))]
pub struct Options {
    /// The units
    #[arg(value_name = "UNIT", required_unless_present_any = ["ended", "all_jobs"])]
    units: Vec<String>,
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// All units that ended like this; --job says of which job
    #[arg(long, value_enum, conflicts_with = "units", group = "ended")]
    status: Option<EndedBadly>,
    /// All units that failed in this way, such as timed_out; `workcrew failures` lists the kinds
    #[arg(long, value_name = "KIND", conflicts_with = "units", group = "ended")]
    error: Option<String>,
    /// With --status or --error: those of all jobs
    #[arg(long, conflicts_with_all = ["units", "job"], requires = "ended")]
    all_jobs: bool,
    #[command(flatten)]
    who: Who,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let repository = options.database.existing()?;
    let by = options.who.by();
    if !options.units.is_empty() {
        return each(&options.units, |id| {
            let unit = find(&repository, options.job.job.as_deref(), id)?;
            repository.requeue(unit.job_id, id, &by).map_err(|error| match error {
                RepositoryError::Illegal { status, .. } => Trouble::usage(format!(
                    "unit `{}` is {status}: only what is FAILED or CANCELLED can be brought back",
                    line(id)
                )),
                error => error.into(),
            })?;
            Ok(writeln!(out, "{}: PENDING", line(id))?)
        });
    }
    let mut filter =
        if options.all_jobs { UnitFilter::default() } else { UnitFilter::job(options.job.one_or_all(&repository)?.id) };
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
    Ok(code::DONE)
}
