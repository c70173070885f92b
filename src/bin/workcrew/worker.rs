//! `workcrew worker`: keeps executing what others queue.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::batch::{Batch, PoolOptions};
use crate::crew::Crew;
use crate::database::{Database, OfJob};
use crate::terms::Terms;
use crate::trouble::{Trouble, code};

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

/// It ends when it is asked to, which is no failure of the batch.
pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let Options { database, job, pool: options, terms } = options;
    let is_given_up = if job.job.is_some() {
        let repository = database.existing()?;
        let job = job.one(&repository)?;
        let running = Batch::of_job(database, repository, job, options, &terms)?.start()?;
        let completion = running.pool.follow();
        running.end(None, completion, out)? == ExitCode::from(code::STORAGE)
    } else {
        let repository = database.or_new()?;
        Crew { database, repository, options, terms }.serve(out)?
    };
    Ok(if is_given_up { ExitCode::from(code::STORAGE) } else { code::DONE })
}
