//! `workcrew run`: the units of a file, executed.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::Completion;

use crate::batch::{self, Batch, PoolOptions, Running};
use crate::canary;
use crate::database::Database;
use crate::input::Input;
use crate::print;
use crate::terms::Terms;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    database: Database,
    /// The job that the units belong to [default: the name of the file without its ending, or `batch`]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    #[command(flatten)]
    pool: PoolOptions,
    /// Runs the first N units alone, shows what they gave and cost and what the rest will cost, and asks whether to go on; without a terminal it stops there
    #[arg(long, value_name = "N", value_parser = print::positive)]
    canary: Option<usize>,
    /// Goes on after the canary without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    terms: Terms,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let Options { input, database, job, pool, canary, yes, terms } = options;
    let template = input.template()?;
    let name = job.unwrap_or_else(|| input.job_name());
    // Whether it can work is known before a file is made.
    match database.peek(&name) {
        Some(job) => terms.check(Some(&job))?,
        None => terms.clone().or_simulated().check_here()?,
    }
    let mut source = batch::open(&input, &database, &name)?;
    let repository = database.or_new()?;
    let (job, terms) = match batch::find_job(&repository, &name, template.as_ref())? {
        Some(job) => (job, terms),
        None => {
            let terms = terms.or_simulated();
            (batch::make_job(&repository, &name, template, &terms)?, terms)
        }
    };
    let running = Batch::of_job(database.clone(), repository, job, pool, &terms)?.start()?;
    if let Some(count) = canary {
        if !canary::try_out(&running, &input, &mut source, count, yes, out)? {
            return stop_after_canary(running, out);
        }
        if !input.is_read_once() {
            source = batch::open(&input, &database, &name)?;
        }
    }
    let (stored, completion) = running.feed(&input, source)?;
    running.end(Some(stored), completion, out)
}

/// What the canary gave is no batch yet.
fn stop_after_canary(running: Running, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let is_interrupted = running.is_interrupted();
    let ended = running.end(None, Completion::Stopped, out)?;
    Ok(match is_interrupted {
        true => ExitCode::from(code::INTERRUPTED),
        false if ended == code::DONE => ExitCode::from(code::NOT_ALL_COMPLETED),
        false => ended,
    })
}
