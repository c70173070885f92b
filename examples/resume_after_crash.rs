//! What happens when the process dies? This one runs itself as a child, kills it in the middle of a batch, and goes on.
//!
//! ```text
//! cargo run --release --example resume_after_crash
//! ```
//!
//! One sees that what was finished stays finished, and that what was being executed is LOST and done again, with all that it
//! had said and cost until then still there. It takes two seconds and leaves nothing behind.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;
use workcrew::repository::UnitFilter;
use workcrew::{
    Archive, Charge, Cost, NewJob, NewUnit, Outcome, Prompt, Repository, RepositoryError, Simulated, SqliteRepository,
    Stop, UnitId, UnitStatus, WorkPool, WorkUnit, audit,
};

const UNITS: u32 = 24;

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    match std::env::args_os().nth(1) {
        Some(path) => run_batch(Path::new(&path)),
        None => kill_and_run_again(),
    }
}

/// The program that dies: a plain loop, the same in the first run and in every one after it.
fn run_batch(path: &Path) -> Result<(), Box<dyn Error>> {
    let repository = SqliteRepository::open(path)?;
    let job = repository.create_job(&NewJob::named("pages").template("Summarise page {{ page }}."))?;
    let model = Simulated::new().latency(Duration::from_millis(50), Duration::from_millis(400));
    let pool = WorkPool::builder(job.id, model, repository)
        .on_unit_complete(|unit, _| println!("    {} is finished", unit.id))
        .start()?;
    for page in 1..=UNITS {
        let unit = NewUnit::new(format!("page-{page:02}")).payload(json!({ "page": page }));
        pool.wait_for_available_slot();
        pool.submit_work_unit(unit, Prompt::OfUnit)?;
    }
    pool.wait_for_completion();
    pool.stop(Stop::Drain)?;
    Ok(())
}

fn kill_and_run_again() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("resume.db");

    println!("A child process runs {UNITS} units. It is killed when it has finished 10:");
    let mut child = Command::new(std::env::current_exe()?).arg(&path).stdout(Stdio::piped()).spawn()?;
    let said = BufReader::new(child.stdout.take().ok_or("the child has no output")?);
    for line in said.lines().take(10) {
        println!("{}", line?);
    }
    child.kill()?;
    println!("The child ended with {}.\n", child.wait()?);

    let repository = SqliteRepository::open(&path)?;
    let before = finished(&repository)?;
    println!("The same loop on the same file, which has {} units finished and goes on with the others:", before.len());
    run_batch(&path)?;

    let after = finished(&repository)?;
    println!("\nNow {} of {UNITS} units are finished.", after.len());
    let unchanged = before.iter().filter(|(id, unit)| after.get(id) == Some(unit)).count();
    println!("Of the {} from before the crash, {unchanged} are exactly what they were.", before.len());
    let completed_attempts = print_costs(&repository, &after)?;
    let verification = audit::verify(&repository)?;
    println!("Verified: {verification}.");

    let is_once = after.len() == UNITS as usize && completed_attempts == UNITS;
    let is_whole = unchanged == before.len() && verification.is_clean();
    if is_once && is_whole { Ok(()) } else { Err("the crash did harm".into()) }
}

fn finished(repository: &dyn Archive) -> Result<BTreeMap<UnitId, WorkUnit>, RepositoryError> {
    let units = repository.units(&UnitFilter::default().status(UnitStatus::Completed), 0, 1_000)?.items;
    Ok(units.into_iter().map(|unit| (unit.id.clone(), unit)).collect())
}

/// Tells which attempts died and what was paid. Returns how many attempts were completed.
fn print_costs(repository: &dyn Archive, units: &BTreeMap<UnitId, WorkUnit>) -> Result<u32, RepositoryError> {
    let (mut completed, mut paid) = (0, Cost::default());
    for unit in units.values() {
        for attempt in repository.attempts(unit.key)? {
            let cost: Cost = repository.charges(attempt.key)?.iter().map(Charge::cost).sum();
            if attempt.outcome == Some(Outcome::Completed) {
                completed += 1;
                paid = paid + cost;
            } else {
                let outcome = attempt.outcome.map_or("open", |outcome| outcome.name());
                let messages = attempt.message_count.unwrap_or(0);
                println!(
                    "{} was being executed: that attempt is {outcome}, with {messages} messages and {cost:.4} kept.",
                    unit.id
                );
            }
        }
    }
    println!("Nothing is paid twice: {completed} completed attempts for {} units, {paid:.4}.", units.len());
    Ok(completed)
}
