//! `workcrew cancel`: units that nobody wants any more.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::list::for_each;
use workcrew::audit::questions::find;
use workcrew::audit::visible::line;
use workcrew::repository::{CancelAnswer, UnitFilter};
use workcrew::{Repository, UnitStatus};

use crate::by::Who;
use crate::database::{Database, OfJob};
use crate::each::each;
use crate::list::Status;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    /// The units
    #[arg(value_name = "UNIT", required_unless_present = "status")]
    units: Vec<String>,
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// All units in this status; --job says of which job
    #[arg(long, value_enum, conflicts_with = "units", requires = "job")]
    status: Option<Status>,
    #[command(flatten)]
    who: Who,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let repository = options.database.existing()?;
    let by = options.who.by();
    let mut cancel = |job_id, id: &str| -> Result<(), Trouble> {
        let answer = match repository.cancel(job_id, id, &by)? {
            CancelAnswer::Cancelled => "CANCELLED".to_owned(),
            CancelAnswer::Requested => "is being executed: its worker is asked to stop".to_owned(),
            CancelAnswer::AlreadyRequested => "its worker was asked to stop before".to_owned(),
            CancelAnswer::AlreadyEnded(status) => format!("had ended: {status}"),
        };
        Ok(writeln!(out, "{}: {answer}", line(id))?)
    };
    let Some(status) = options.status else {
        return each(&options.units, |id| cancel(find(&repository, options.job.job.as_deref(), id)?.job_id, id));
    };
    let job = options.job.one(&repository)?;
    let mut meant = Vec::new();
    for_each(&repository, &UnitFilter::job(job.id).status(status.into()), |unit| {
        meant.push(unit.id);
        true
    })?;
    meant.iter().try_for_each(|id| cancel(job.id, id.as_str()))?;
    if meant.is_empty() {
        writeln!(out, "no unit of job {} is {}", line(&job.name), UnitStatus::from(status))?;
    }
    Ok(code::DONE)
}
