//! How do several programs share one job? This one queues a batch, runs itself three times, and kills one of the three in the middle.
//!
//! ```text
//! cargo run --release --example many_processes
//! ```
//!
//! One sees that the work is shared, that the others take over at once what the dead one was executing, without waiting for a lease of
//! an hour, and that every unit was completed once. It takes a few seconds and leaves nothing behind.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use workcrew::audit;
use workcrew::repository::UnitFilter;
use workcrew::{
    Archive, Completion, NewJob, NewUnit, Outcome, Repository, Simulated, SqliteRepository, Stop, UnitStatus, WorkPool,
};

const UNITS: u32 = 90;
const PROCESSES: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    match std::env::args_os().nth(1) {
        Some(path) => work(Path::new(&path)),
        None => share(),
    }
}

fn job() -> NewJob {
    NewJob::named("pages").template("Summarise page {{ page }}.")
}

/// What each of the programs does, however many there are and whenever they are started: whatever is left to do.
fn work(path: &Path) -> Result<(), Box<dyn Error>> {
    let repository = SqliteRepository::open(path)?;
    let job = repository.create_job(&job())?;
    let model = Simulated::new().latency(Duration::from_millis(20), Duration::from_millis(120));
    let pool = WorkPool::builder(job.id, model, repository)
        .lease(Duration::from_secs(3_600))
        .heartbeat(Duration::from_secs(600))
        .poll_interval(Duration::from_millis(200))
        .on_unit_complete(|unit, _| println!("{}", unit.id))
        .start()?;
    match pool.process_pending() {
        Completion::Done => {}
        other => return Err(format!("there is something left to do: {other:?}").into()),
    }
    pool.stop(Stop::Drain)?;
    Ok(())
}

fn share() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("shared.db");
    let repository = SqliteRepository::open(&path)?;
    let job = repository.create_job(&job())?;
    let page = |page: u32| NewUnit::new(format!("page-{page:02}")).payload(json!({ "page": page }));
    repository.queue_units(job.id, &(1..=UNITS).map(page).collect::<Vec<_>>())?;
    println!(
        "{UNITS} units are queued. {PROCESSES} processes share them, the first of which is killed when it has finished 8."
    );

    let program = std::env::current_exe()?;
    let start = || Command::new(&program).arg(&path).stdout(Stdio::piped()).spawn();
    let mut children: Vec<Child> = (0..PROCESSES).map(|_| start()).collect::<Result<_, _>>()?;
    for (number, child) in children.iter_mut().enumerate() {
        let lines = BufReader::new(child.stdout.take().ok_or("the child has no output")?).lines();
        let finished = if number == 0 { lines.take(8).count() } else { lines.count() };
        if number == 0 {
            child.kill()?;
        }
        println!("Process {} finished {finished} units and ended with {}.", number + 1, child.wait()?);
    }

    let units = repository.units(&UnitFilter::job(job.id), 0, 1_000)?.items;
    let completed = units.iter().filter(|unit| unit.status == UnitStatus::Completed).count();
    let mut outcomes: BTreeMap<String, u32> = BTreeMap::new();
    for unit in &units {
        for attempt in repository.attempts(unit.key)? {
            *outcomes.entry(attempt.outcome.map_or("open".to_owned(), |outcome| outcome.to_string())).or_default() += 1;
        }
    }
    println!("{completed} of {UNITS} units are completed. Attempts: {outcomes:?}.");
    let verification = audit::verify(&repository)?;
    println!("Verified: {verification}.");
    let once = outcomes.get(&Outcome::Completed.to_string()) == Some(&UNITS);
    if once && completed == UNITS as usize && verification.is_clean() {
        Ok(())
    } else {
        Err("the crash did harm".into())
    }
}
