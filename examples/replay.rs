//! How do I run a batch again without paying for it? With `Replay`, which answers from the database of the first run.
//!
//! ```text
//! cargo run --release --example replay
//! ```
//!
//! Needs nothing: the model of the first run is simulated. The same program then runs from the first run's file: the same answers, for
//! nothing. A third time one prompt has been changed, and exactly its units fail and show the line that differs.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use workcrew::{
    Archive, Executor, NewJob, NewUnit, Replay, Repository, RetryPolicy, Simulated, SqliteRepository, Stop, WorkPool,
};

const PAGES: usize = 12;

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let folder = tempfile::tempdir()?;
    let recorded = folder.path().join("first.db");

    let model = Simulated::new().latency(Duration::from_millis(5), Duration::from_millis(50)).failures(0.2);
    println!("The first run:");
    summarise(&recorded, model, "Summarise")?;
    println!("\nThe same again, from its database:");
    summarise(&folder.path().join("second.db"), Replay::open(&recorded)?, "Summarise")?;
    println!("\nWith another prompt for the last pages:");
    summarise(&folder.path().join("third.db"), Replay::open(&recorded)?, "Sum up")
}

/// The program: it does not know whether it is asking a model.
fn summarise(path: &Path, executor: impl Executor, verb_of_last: &str) -> Result<(), Box<dyn Error>> {
    let repository = SqliteRepository::open(path)?;
    let job = repository.create_job(&NewJob::named("pages"))?.id;
    let pool = WorkPool::builder(job, executor, repository.clone()).retry(RetryPolicy::immediate()).start()?;
    for page in 1..=PAGES {
        let verb = if page + 1 < PAGES { "Summarise" } else { verb_of_last };
        pool.wait_for_available_slot();
        pool.submit_work_unit(NewUnit::new(format!("page-{page}")), format!("Be brief.\n{verb} page {page}."))?;
    }
    pool.wait_for_completion();
    pool.stop(Stop::Drain)?;

    let (counts, costs) = (repository.counts(job)?, repository.costs(Some(job))?);
    println!("{} completed, {} failed, cost {}", counts.completed, counts.failed, costs.total());
    let last = repository.unit(job, &format!("page-{PAGES}"))?;
    match (last.output, last.failure) {
        (_, Some(failure)) => println!("{}: {failure}", last.id),
        (output, None) => println!("{}: {}", last.id, output.unwrap_or_default()),
    }
    Ok(())
}
