//! What `run`, `resume`, `worker` and `demo` have in common: a pool that executes the units of a job, and what is told of it.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::Utc;
use clap::Args;
use serde_json::{Value, json};
use workcrew::audit::cost::{CostBy, cost};
use workcrew::audit::list;
use workcrew::audit::verify::verify_jobs;
use workcrew::repository::UnitFilter;
use workcrew::source::{BadUnit, Fed, FeedError, Placed, UnitSource, feed};
use workcrew::{
    Archive, Completion, Event, Executor, Job, NewJob, NewUnit, Repository, SqliteRepository, Stop, UnitStatus,
    WorkPool, WorkUnit,
};

use crate::board::Board;
use crate::database::Database;
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::notes;
use crate::print;
use crate::progress::{Pause, Progress, Telling, Work};
use crate::reading::{Read, Reading};
use crate::terms::{Execution, Terms};
use crate::time::short;
use crate::trouble::{Trouble, code, told};

/// How often it is looked whether units that are to be tried later have fallen due.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

#[derive(Args, Clone, Debug)]
pub struct PoolOptions {
    /// How many units are executed at a time
    #[arg(long, value_name = "N", default_value = "4", value_parser = print::positive)]
    workers: usize,
    /// Prints one JSON event per line instead of a bar and a summary; the last one is the summary
    #[arg(long)]
    pub json: bool,
    /// Tells nothing until the summary, but what executes the units if that is kept with the job, or made up
    #[arg(long, short)]
    quiet: bool,
}

/// A job and what executes it.
pub struct Batch {
    pub database: Database,
    pub repository: SqliteRepository,
    pub job: Job,
    pub options: PoolOptions,
    executor: Box<dyn Executor>,
    execution: Execution,
}

impl Batch {
    /// The batch of a job that is there, with which is kept what executes it.
    pub fn of_job(
        database: Database,
        repository: SqliteRepository,
        job: Job,
        options: PoolOptions,
        terms: &Terms,
    ) -> Result<Batch, Trouble> {
        check_jobs(&repository, &database)?;
        let execution = terms.execution(&job)?;
        let executor = execution.executor.make(execution.kind)?;
        let job = terms.keep(&repository, job)?;
        Ok(Batch { database, repository, job, options, executor, execution })
    }

    /// Starts the pool. Nothing is executed before it pulls.
    pub fn start(self) -> Result<Running, Trouble> {
        let board = Board::default();
        let events = self.options.json.then(|| Arc::new(Events::default()));
        let seen = (board.clone(), events.clone());
        let builder = WorkPool::builder(self.job.id, self.executor, self.repository.clone())
            .max_workers(self.options.workers)
            .timeout(self.execution.timeout)
            .label("workcrew")
            .observer(move |event: &Event<'_>| {
                seen.0.see(event);
                if let Some(events) = &seen.1 {
                    events.print(event);
                }
            });
        let before = self.repository.counts(self.job.id)?;
        let Execution { warning, note, .. } = &self.execution;
        warning.iter().for_each(|warning| notes::tell(warning));
        note.iter().filter(|_| !self.options.json && !self.options.quiet).for_each(|note| notes::tell(note));
        let pool = builder.start()?;
        let interrupt = Interrupt::watch(pool.handle()).map_err(|error| Trouble::Failed(told(&error)))?;
        let work = Work::of(before);
        let telling = if self.options.json || self.options.quiet { Telling::Nothing } else { Telling::People };
        let progress = Progress::start(telling, pool.handle(), board, work.clone());
        let Batch { database, repository, job, options, .. } = self;
        Ok(Running { database, repository, job, options, pool, interrupt, work, progress, events })
    }
}

/// Refuses to execute what is kept with a job if somebody may have put it there without this command or the library.
fn check_jobs(repository: &SqliteRepository, database: &Database) -> Result<(), Trouble> {
    let verification = verify_jobs(repository)?;
    let Some(finding) = verification.findings.first() else { return Ok(()) };
    let advice =
        format!("look at it with `workcrew verify{}`, and go on with a copy that is whole", database.as_argument());
    Err(Trouble::Storage(format!("nothing is executed: {finding}; {advice}")))
}

/// The job of a name, if it is there, and with this template.
pub fn find_job(repository: &SqliteRepository, name: &str, template: Option<&String>) -> Result<Option<Job>, Trouble> {
    let Some(job) = repository.job_named(name)? else { return Ok(None) };
    if template.is_some() && template != job.template.as_ref() {
        let made = if job.template.is_some() { "with another template" } else { "without a template" };
        let advice = "give the job another name with --job, or leave --template out";
        return Err(Trouble::usage(format!("job `{name}` was made {made}: {advice}")));
    }
    Ok(Some(job))
}

/// Makes a job with a template, and keeps with it what is said of its execution.
pub fn make_job(
    repository: &SqliteRepository,
    name: &str,
    template: Option<String>,
    terms: &Terms,
) -> Result<Job, Trouble> {
    let mut new = NewJob::named(name).settings(terms.settings()?);
    new.template = template;
    Ok(repository.create_job(&new)?)
}

/// A pool at work.
pub struct Running {
    database: Database,
    pub repository: SqliteRepository,
    pub job: Job,
    pub options: PoolOptions,
    pub pool: WorkPool,
    interrupt: Interrupt,
    work: Work,
    progress: Progress,
    events: Option<Arc<Events>>,
}

impl Running {
    /// Stores units while what is stored already is executed, and then executes the rest.
    pub fn feed(
        &self,
        input: &Input,
        units: impl Iterator<Item = Read> + Send + 'static,
    ) -> Result<(Fed, Completion), Trouble> {
        std::thread::scope(|threads| {
            threads.spawn(|| self.pool.follow());
            let fed = store(&self.repository, &self.job, input, units, |fed| {
                self.work.set_added(fed.added);
                !self.interrupt.is_asked()
            });
            let done = fed.map(|fed| (fed, self.execute()));
            // Who follows does so until it is told.
            self.pool.handle().stop(Stop::Drain);
            done
        })
    }

    /// Executes all that waits, also what is to be tried again later.
    pub fn execute(&self) -> Completion {
        loop {
            let completion = self.pool.process_pending();
            if completion != Completion::Done || !self.waits_for_its_time() {
                return completion;
            }
            if self.pool.follow_timeout(LOOK_AGAIN) == Completion::Stopped {
                return Completion::Stopped;
            }
        }
    }

    /// Whether units are left whose time will come.
    fn waits_for_its_time(&self) -> bool {
        let filter = UnitFilter::job(self.job.id).status(UnitStatus::Pending);
        let mut waits = false;
        let looked = list::for_each(&self.repository, &filter, |unit| {
            waits = unit.not_before.is_some_and(|at| at > Utc::now() - chrono::TimeDelta::seconds(1));
            !waits
        });
        looked.is_ok() && waits
    }

    /// Nothing else is told meanwhile.
    pub fn pause_telling(&self) -> Pause<'_> {
        self.progress.pause()
    }

    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_asked()
    }

    /// Stops the pool, and says what came of it, by its code also to whoever reads nothing any more.
    pub fn end(self, fed: Option<Fed>, completion: Completion, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
        let mut told = Vec::new();
        let code = self.conclude(fed, completion, &mut told)?;
        match out.write_all(&told).map_err(Trouble::from) {
            Ok(()) | Err(Trouble::NobodyReads) => Ok(code),
            Err(trouble) => Err(trouble),
        }
    }

    fn conclude(self, fed: Option<Fed>, completion: Completion, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
        let summary = self.pool.stop(Stop::Drain)?;
        drop(self.progress);
        let counts = self.repository.counts(self.job.id)?;
        let bill = cost(&self.repository, &UnitFilter::job(self.job.id), CostBy::Job)?.total;
        let left = counts.total() - counts.completed - counts.failed - counts.cancelled;
        let is_interrupted = self.interrupt.is_asked();
        let is_over = completion == Completion::Done && !is_interrupted;
        let stuck = if is_over { without_prompt(&self.repository, &self.job)? } else { None };
        if self.events.is_some() {
            let held = if let Completion::Blocked(reason) = &completion { Some(reason) } else { None };
            let summary = json!({
                "event": "summary", "job": self.job.name, "counts": counts, "fed": fed, "cost": bill,
                "held": held, "interrupted": is_interrupted, "elapsed_ms": summary.elapsed.as_millis() as u64,
            });
            print::json(out, &summary)?;
        } else {
            let (job, db) = (&self.job.name, self.database.as_argument());
            let number = print::number;
            writeln!(out, "job {}: {}", workcrew::audit::visible::line(job), print::count(counts.total(), "unit"))?;
            let ended = [
                ("completed", counts.completed),
                ("failed", counts.failed),
                ("cancelled", counts.cancelled),
                ("left", left),
            ];
            let told = ended.iter().filter(|(name, units)| *units > 0 || *name == "completed");
            let told: Vec<String> = told.map(|(name, units)| format!("{} {name}", number(*units))).collect();
            writeln!(out, "  {}", told.join(", "))?;
            if let Some(fed) = fed {
                write_fed(&fed, out)?;
            }
            let vain = if bill.in_vain.amount.nanos() > 0 {
                format!(", {} of it in vain", print::cost(bill.in_vain))
            } else {
                String::new()
            };
            let (tokens, time) = (number(bill.tokens.total()), short(summary.elapsed));
            writeln!(out, "  {}{vain}, {tokens} tokens, {time}", print::spent(bill.cost))?;
            if bill.unbilled > 0 {
                writeln!(
                    out,
                    "  {} left no bill: nobody knows what they cost",
                    print::count(bill.unbilled, "attempt")
                )?;
            }
            if let Completion::Blocked(reason) = &completion {
                writeln!(out, "  held: {}", workcrew::audit::visible(reason))?;
            }
            let job = job_argument(job);
            if counts.failed > 0 {
                writeln!(out, "why: workcrew failures{db}{job}   again: workcrew requeue --status failed{db}{job}")?;
            }
            if let Some(unit) = stuck {
                writeln!(
                    out,
                    "  those that are left cannot be executed: unit `{}` {NO_PROMPT}",
                    workcrew::audit::visible::line(&unit)
                )?;
            } else if left > 0 {
                writeln!(out, "go on: workcrew resume{db}{job}")?;
            }
        }
        Ok(match (is_interrupted, left + counts.failed) {
            (true, _) if left > 0 => ExitCode::from(code::INTERRUPTED),
            (_, 0) if fed.is_none_or(|fed| fed.bad + fed.conflicts == 0) => code::DONE,
            _ => ExitCode::from(code::NOT_ALL_COMPLETED),
        })
    }
}

/// A unit that waits and that nobody will ever execute, such as one that a program stored without a prompt.
fn without_prompt(repository: &SqliteRepository, job: &Job) -> Result<Option<String>, Trouble> {
    let waiting = UnitFilter::job(job.id).status(UnitStatus::Pending);
    let first = repository.units(&waiting, 0, 1)?.items.into_iter().next();
    let is_stuck = |unit: &WorkUnit| job.template.is_none() && unit.prompt.is_none() && unit.template.is_none();
    Ok(first.filter(is_stuck).map(|unit| unit.id.to_string()))
}

/// A job as it is written on a command line.
pub fn job_argument(name: &str) -> String {
    format!(" --job {}", print::word(name))
}

pub fn write_fed(fed: &Fed, out: &mut dyn Write) -> io::Result<()> {
    let number = print::number;
    let mut words = vec![format!("{} new", number(fed.added)), format!("{} known before", number(fed.known))];
    if fed.conflicts > 0 {
        words.push(match fed.conflicts {
            1 => "1 contradicts a known one".to_owned(),
            units => format!("{} contradict known ones", number(units)),
        });
    }
    if fed.bad > 0 {
        words.push(if fed.bad == 1 { "1 is no unit".to_owned() } else { format!("{} are no units", number(fed.bad)) });
    }
    writeln!(out, "  read: {}", words.join(", "))
}

/// Opens what units come from, and says so before anything is stored if the template was forgotten: a job keeps the one it was made with.
pub fn open(
    input: &Input,
    database: &Database,
    job: &str,
) -> Result<impl Iterator<Item = Read> + Send + 'static, Trouble> {
    let mut source: UnitSource = input.open()?;
    let first = source.next();
    if let Some(Ok(Placed { place, unit })) = &first
        && input.template.is_none()
        && !has_prompt(unit)
    {
        let kept = database.peek(job);
        if kept.is_none_or(|job| job.template.is_none()) {
            let id = workcrew::audit::visible::line(&unit.id);
            return Err(Trouble::usage(format!("{place}: unit `{id}` {NO_PROMPT}: give one with --template")));
        }
    }
    Ok(first.into_iter().chain(source))
}

const NO_PROMPT: &str = "has neither a prompt nor a template";

fn has_prompt(unit: &NewUnit) -> bool {
    unit.prompt.is_some() || unit.template.is_some()
}

/// Stores units, and tells of those that are none.
pub fn store(
    repository: &SqliteRepository,
    job: &Job,
    input: &Input,
    units: impl Iterator<Item = Read> + Send + 'static,
    goes_on: impl Fn(&Fed) -> bool,
) -> Result<Fed, Trouble> {
    let has_template = job.template.is_some();
    // Nobody could ever execute them, so they are not stored.
    let units = units.map(move |read| match read {
        Ok(Placed { place, unit }) if !has_template && !has_prompt(&unit) => {
            Err(BadUnit { place, reason: format!("unit `{}` {NO_PROMPT}", unit.id) })
        }
        read => read,
    });
    let mut reading = Reading::start(units).map_err(|error| Trouble::Failed(told(&error)))?;
    let mut all = Fed::default();
    while reading.has_more(|| goes_on(&all)) {
        let mut refused = None;
        let tell = |group: &Fed, trouble: Option<workcrew::source::Trouble<'_>>| {
            match trouble {
                Some(trouble) if input.strict => refused = Some(trouble.to_string()),
                Some(trouble) => notes::tell(&format!("workcrew: {trouble}")),
                None => {}
            }
            refused.is_none() && goes_on(&sum(all, *group))
        };
        let stored = feed(repository, job.id, reading.at_hand(), |unit| input.prepare(unit), tell);
        let (group, is_over) = match stored {
            Ok(group) => (group, false),
            Err(FeedError::Ended(group)) => (group, true),
            Err(error) => return Err(error.into()),
        };
        all = sum(all, group);
        if let Some(reason) = refused {
            let kept = if all.added > 0 {
                format!("; {} before it stay", print::count(all.added, "unit"))
            } else {
                String::new()
            };
            return Err(Trouble::usage(format!("{reason} (--strict{kept})")));
        }
        if is_over {
            break;
        }
    }
    Ok(all)
}

fn sum(mut one: Fed, other: Fed) -> Fed {
    one.added += other.added;
    one.known += other.known;
    one.conflicts += other.conflicts;
    one.bad += other.bad;
    one
}

/// Events as lines of JSON on standard output.
#[derive(Debug, Default)]
pub struct Events(Mutex<()>);

impl Events {
    fn print(&self, event: &Event<'_>) {
        let Ok(mut value) = serde_json::to_value(event) else { return };
        if let Value::Object(fields) = &mut value {
            fields.insert("at".to_owned(), json!(Utc::now()));
        }
        let _one_at_a_time = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who reads no more has seen enough; the batch goes on.
        let mut line = Vec::new();
        let _ = print::json(&mut line, &value);
        let _ = io::stdout().write_all(&line);
    }
}
