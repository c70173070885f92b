//! How do I run a batch? 200 units go through 4 workers into `batch.db`.
//!
//! ```text
//! cargo run --release --example batch               # about 12 seconds, into batch.db
//! cargo run --release --example batch -- other.db   # the same, into another file
//! ```
//!
//! One sees how far it is, then a summary. Kill it at any moment and start it again: it carries on at once, and nothing
//! that was finished is done twice. It needs no network and no key, because the model is simulated. It fails
//! now and then, as models do: most units that fail are tried again and succeed, a few are given up.
//!
//! `RUST_LOG=batch=info` shows each answer, `RUST_LOG=workcrew=debug` what the pool does.

use std::error::Error;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use workcrew::repository::UnitFilter;
use workcrew::{
    Archive, Cost, Failure, JobId, NewJob, NewUnit, Prompt, Repository, RepositoryError, RetryPolicy, Simulated,
    SqliteRepository, Stop, SubmitError, UnitStatus, WorkPool, WorkUnit,
};

const UNITS: u64 = 200;
const WORKERS: usize = 4;

fn main() -> ExitCode {
    env_logger::init();
    let path = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "batch.db".into()));
    match run(&path, &mut io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        // Such as of `batch | head`: nobody wants to hear the rest.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", with_causes(&*error));
            ExitCode::FAILURE
        }
    }
}

fn run(path: &Path, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let repository = SqliteRepository::open(path)?;
    let template = "Summarise page {{ page }} of “{{ book }}” in one sentence.";
    let job = repository.create_job(&NewJob::named("summaries").template(template))?;
    let before = Before::read(&repository, job.id)?;
    writeln!(out, "{}: {before}", path.display())?;

    let model = Simulated::new()
        .seed(7)
        .latency(Duration::from_millis(30), Duration::from_millis(600))
        .failures(0.2)
        .give_ups(0.01);
    let pool = WorkPool::builder(job.id, model, repository.clone())
        .max_workers(WORKERS)
        .retry(RetryPolicy::exponential(Duration::from_millis(200), Duration::from_secs(2)))
        .on_unit_complete(|unit, result| log::info!("{}: {}", unit.id, result.output.as_deref().unwrap_or_default()))
        .on_unit_failed(tell_failure)
        .start()?;

    thread::scope(|scope| {
        let (running, is_running) = mpsc::channel();
        scope.spawn(|| show_progress(&pool, &before, is_running));
        let submitted = submit_all(&pool);
        drop(running);
        submitted
    })?;
    pool.stop(Stop::Drain)?;
    write_summary(&repository, job.id, path, out)
}

/// All there is to it. A unit that was finished before is found to be, and not done again.
fn submit_all(pool: &WorkPool) -> Result<(), SubmitError> {
    for unit in units() {
        pool.wait_for_available_slot();
        pool.submit_work_unit(unit, Prompt::OfUnit)?;
    }
    pool.wait_for_completion();
    Ok(())
}

/// The same names with the same contents in every run: that is how a unit is known again.
fn units() -> impl Iterator<Item = NewUnit> {
    let unit = |page| {
        let payload = json!({ "page": page, "book": "The Voyage of the Beagle" });
        NewUnit::new(format!("page-{page:03}")).payload(payload).max_retries(2)
    };
    (1..=UNITS).map(unit)
}

fn tell_failure(unit: &WorkUnit, failure: &Failure) {
    eprintln!("{}{}: given up at attempt {}: {failure}", line_start(), unit.id, unit.attempt_count);
}

/// What the runs before this one did.
struct Before {
    completed: u64,
    failed: u64,
    cut_off: u64,
    cost: Cost,
}

impl Before {
    fn read(repository: &dyn Archive, job_id: JobId) -> Result<Before, RepositoryError> {
        let counts = repository.counts(job_id)?;
        let cut_off = counts.assigned + counts.processing;
        let cost = repository.costs(Some(job_id))?.total();
        Ok(Before { completed: counts.completed, failed: counts.failed, cut_off, cost })
    }
}

impl fmt::Display for Before {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.completed + self.failed {
            UNITS => write!(f, "all {UNITS} units were done before, nothing is left to do"),
            0 if self.cut_off == 0 => write!(f, "{UNITS} units for {WORKERS} workers"),
            done => write!(f, "{done} of {UNITS} units were done before, {} were cut off; it carries on", self.cut_off),
        }
    }
}

/// Shows where the pool is until the sender is gone: on a terminal in one line, elsewhere in a line a second.
fn show_progress(pool: &WorkPool, before: &Before, is_running: Receiver<()>) {
    let (began, is_terminal) = (Instant::now(), io::stderr().is_terminal());
    let every = Duration::from_millis(if is_terminal { 100 } else { 1_000 });
    while is_running.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
        let stats = pool.stats();
        let (completed, failed) = (before.completed + stats.completed, before.failed + stats.failed);
        let line = format!(
            "{:>3}/{UNITS}: {completed} completed, {failed} failed, {} retried, {} running, {:.4}, {:.1} s",
            completed + failed,
            stats.retried,
            stats.running,
            before.cost + stats.cost,
            began.elapsed().as_secs_f64(),
        );
        eprint!("{}{line}{}", line_start(), if is_terminal { "" } else { "\n" });
        // Nobody to show it to is no reason to stop.
        let _ = io::stderr().flush();
    }
    eprint!("{}", line_start());
}

/// On a terminal, what takes the line of progress away.
fn line_start() -> &'static str {
    if io::stderr().is_terminal() { "\r\x1b[2K" } else { "" }
}

/// Tells what is stored, so it is the same after one run or after ten.
fn write_summary(
    repository: &dyn Archive,
    job_id: JobId,
    path: &Path,
    out: &mut dyn Write,
) -> Result<(), Box<dyn Error>> {
    let units = repository.units(&UnitFilter::job(job_id), 0, 1_000)?.items;
    let in_status = |status| units.iter().filter(|unit| unit.status == status).count();
    let (completed, failed) = (in_status(UnitStatus::Completed), in_status(UnitStatus::Failed));
    let costs = repository.costs(Some(job_id))?;
    let attempts: u32 = units.iter().map(|unit| unit.attempt_count).sum();
    let retries: u32 = units.iter().map(|unit| unit.attempt_count.saturating_sub(1)).sum();
    let began = units.iter().map(|unit| unit.created_at).min().unwrap_or_default();
    let ended = units.iter().filter_map(|unit| unit.completed_at).max().unwrap_or_default();

    writeln!(out, "completed  {completed}")?;
    writeln!(out, "failed     {failed}")?;
    if completed + failed < units.len() {
        writeln!(out, "not ended  {}: another process has them in hand", units.len() - completed - failed)?;
    }
    writeln!(out, "retried    {retries} times, {attempts} attempts in all")?;
    writeln!(out, "tokens     {}", costs.tokens().total())?;
    writeln!(out, "cost       {:.4}, all attempts included", costs.total())?;
    writeln!(out, "time       {:.1} s from the first unit to the last", (ended - began).as_seconds_f64())?;
    let mut slowest: Vec<&WorkUnit> = units.iter().collect();
    slowest.sort_by_key(|unit| std::cmp::Reverse(unit.execution_time));
    for (number, unit) in slowest.iter().take(3).enumerate() {
        let seconds = unit.execution_time.unwrap_or_default().as_secs_f64();
        writeln!(out, "{:<10} {} took {seconds:.2} s", if number == 0 { "slowest" } else { "" }, unit.id)?;
    }

    writeln!(out, "\nEvery message, attempt and cent of it is in {}. To look at it:", path.display())?;
    let argument = if path == Path::new("batch.db") { String::new() } else { format!(" -- {}", path.display()) };
    writeln!(out, "    cargo run --release --example audit{argument}")?;
    writeln!(out, "How it works, and what to do with a model of your own: README.md")?;
    Ok(())
}

/// Whether nobody reads any more what is printed.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

/// An error and what is behind it, in one line.
fn with_causes(error: &dyn Error) -> String {
    let (mut text, mut cause) = (error.to_string(), error.source());
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
