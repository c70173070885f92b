//! `workcrew run`: the units of a file, executed.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::Completion;

use crate::batch::{self, Batch, PoolOptions};
use crate::canary::{self, Verdict};
use crate::database::Database;
use crate::executor::ExecutorOptions;
use crate::input::Input;
use crate::trouble::Trouble;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    input: Input,
    #[command(flatten)]
    database: Database,
    /// The job that the units belong to (the name of the file)
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    #[command(flatten)]
    pool: PoolOptions,
    /// Runs the first N units alone, shows what they gave and cost and what the rest will cost, and asks
    #[arg(long, value_name = "N")]
    canary: Option<usize>,
    /// Goes on after the canary without asking
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    executor: ExecutorOptions,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let Options { input, database, job, pool, canary, yes, executor } = options;
    let template = input.template()?;
    let source = input.open()?;
    let name = job.unwrap_or_else(|| input.job_name());
    // Whether it can work is known before a file is made.
    executor.make()?;
    let repository = database.or_new()?;
    let job = batch::job(&repository, &name, template, Some(&executor))?;
    let running = Batch::of_job(database, repository, job, pool, executor)?.start()?;
    let mut first = Vec::new();
    let mut source = source;
    if let Some(count) = canary {
        let verdict = canary::try_out(&running, &input, &mut source, count, yes, out)?;
        match verdict {
            Verdict::GoOn { tried } if input.is_stdin() => first = tried,
            Verdict::GoOn { .. } => source = input.open()?,
            Verdict::Stop => return running.end(None, Completion::Stopped, out),
        }
    }
    let (fed, completion) = running.feed(&input, first.into_iter().map(Ok).chain(source))?;
    running.end(Some(fed), completion, out)
}
