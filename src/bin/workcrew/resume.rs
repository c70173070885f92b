//! `workcrew resume`: goes on with what waits in the database.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::batch::{Batch, PoolOptions};
use crate::database::{Database, OfJob};
use crate::terms::Terms;
use crate::trouble::Trouble;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    #[command(flatten)]
    pool: PoolOptions,
    #[command(flatten)]
    terms: Terms,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let repository = options.database.existing()?;
    let job = options.job.one(&repository)?;
    let running = Batch::of_job(options.database, repository, job, options.pool, &options.terms)?.start()?;
    let completion = running.execute();
    running.end(None, completion, out)
}
