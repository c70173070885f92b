//! `workcrew report`: a page to open in a browser, or to send to somebody.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::report::{self, Report, ReportError, Written};
use workcrew::audit::visible::line;

use crate::database::{Database, OfJob};
use crate::export::write_file;
use crate::print::count;
use crate::terminal::shown;
use crate::trouble::{Trouble, code, told};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// Where it is written, for nobody else to read; - for standard output
    #[arg(long, short, value_name = "FILE", default_value = "report.html")]
    output: PathBuf,
    /// The title of the page (the name of the job or of the database)
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
    /// How many MiB of prompts and conversations it may hold; what has no room is told on the page
    #[arg(long, value_name = "MIB", default_value_t = report::DEFAULT_LIMIT_BYTES >> 20)]
    limit: u64,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let mut wanted = Report::new().limit_bytes(options.limit.saturating_mul(1 << 20));
    let job = options.job.find(&archive)?;
    let name = job.as_ref().map_or_else(|| options.database.db.display().to_string(), |job| job.name.clone());
    wanted = wanted.title(options.title.unwrap_or(name));
    if let Some(job) = job {
        wanted = wanted.job(job.id);
    }
    if options.output.as_os_str() == "-" {
        report::write(&archive, &wanted, &mut shown(out)).map_err(trouble)?;
        return Ok(code::DONE);
    }
    let write = |to: &mut dyn Write| report::write(&archive, &wanted, to).map_err(trouble);
    let written = write_file(&options.database, &options.output, write)?;
    let path = options.output.display().to_string();
    writeln!(out, "{}: {}", line(&path), count(written.units, "unit"))?;
    if !written.is_complete() {
        writeln!(out, "not all of it had room, and the page says so: {}", left_out(&written))?;
    }
    Ok(code::DONE)
}

fn left_out(written: &Written) -> String {
    let parts = [
        (written.units - written.rows, "unit", "not in the table"),
        (written.units_without_contents, "unit", "not with all contents"),
        (written.texts_cut, "text", "cut short"),
        (written.unreadable, "record", "not readable"),
    ];
    let told = parts.iter().filter(|(of, ..)| *of > 0).map(|(of, what, how)| format!("{} {how}", count(*of, what)));
    told.collect::<Vec<_>>().join(", ")
}

fn trouble(error: ReportError) -> Trouble {
    match error {
        ReportError::Archive(error) => error.into(),
        ReportError::Output(error) => error.into(),
        error => Trouble::Failed(told(&error)),
    }
}
