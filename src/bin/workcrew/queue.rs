//! `workcrew queue`: stores units for whoever executes them.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::batch::{self, Stored};
use crate::board::Board;
use crate::database::Database;
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::print;
use crate::storage::Storage;
use crate::summary;
use crate::terms::Terms;
use crate::trouble::{Trouble, code, told};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    database: Database,
    /// The job that the units belong to [default: the name of the file without its ending, or `batch`]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Prints one JSON object: the job, and how many units were added, known, conflicts, bad
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    terms: Terms,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let Options { input, database, job, json, terms } = options;
    let template = input.template()?;
    let name = job.unwrap_or_else(|| input.job_name());
    terms.check(database.peek(&name).as_ref())?;
    let source = batch::open(&input, &database, &name)?;
    let repository = database.or_new()?;
    let job = match batch::find_job(&repository, &name, template.as_ref())? {
        Some(job) => terms.keep(&repository, job)?,
        None => batch::make_job(&repository, &name, template, &terms)?,
    };
    let missing = if terms.execution(&job).is_ok() { "" } else { " --executor …" };
    let storage =
        Storage::watch(repository.clone(), Interrupt::default(), |_| {}, batch::tell_of_disk(Board::default(), None));
    let storage = storage.map_err(|error| Trouble::Failed(told(&error)))?;
    let Stored { fed, is_all } = batch::store(&repository, &job, &input, source, || !storage.is_given_up())?;
    if !is_all {
        let added = print::count(fed.added, "unit");
        return Err(Trouble::Storage(format!(
            "the disk is full: {added} stored; make room, and run the same command again"
        )));
    }
    if json {
        print::json(out, &json!({ "job": job.name, "fed": fed }))?;
    } else {
        writeln!(out, "job {}", workcrew::audit::visible::line(&job.name))?;
        summary::write_fed(&fed, out)?;
        let (db, job) = (database.as_argument(), summary::job_argument(&job.name));
        writeln!(out, "execute them: workcrew resume{db}{job}{missing}, or workcrew worker{db}{job}{missing}")?;
    }
    Ok(if fed.bad + fed.conflicts == 0 { code::DONE } else { ExitCode::from(code::NOT_ALL_COMPLETED) })
}
