//! What `run`, `resume`, `worker` and `demo` have in common: a pool that executes the units of a job, and what is told of it.

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::Utc;
use clap::Args;
use serde_json::{Value, json};
use workcrew::audit::verify::verify_jobs;
use workcrew::limits::AccountHolder;
use workcrew::repository::UnitFilter;
use workcrew::source::{BadUnit, Fed, FeedError, Placed, feed};
use workcrew::{
    Archive, Completion, Event, Executor, Job, NewUnit, OwnerId, PoolHandle, Repository, Scaling, SqliteRepository,
    Stop, UnitStatus, WorkPool, WorkUnit,
};

use crate::board::Board;
use crate::database::Database;
use crate::input::Input;
use crate::interrupt::Interrupt;
use crate::notes;
use crate::print;
use crate::progress::{Pause, Progress, Telling};
use crate::reading::Reading;
use crate::storage::{Disk, Storage};
use crate::summary::{self, Summary};
use crate::terms::{Execution, Terms};
use crate::trouble::{Trouble, told};

/// How often it is looked whether units that are to be tried later have fallen due.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// No owner has this number.
pub const NOBODY: OwnerId = OwnerId(0);

#[derive(Args, Clone, Debug)]
pub struct PoolOptions {
    /// How many units are executed at a time
    #[arg(long, value_name = "N", default_value = "4", value_parser = print::positive)]
    pub workers: usize,
    /// Begins with one unit at a time and finds out how many the provider bears, up to --workers: more while none is refused, fewer when one is
    #[arg(long)]
    adaptive: bool,
    /// Prints one JSON event per line instead of a bar and a summary; the last one is the summary
    #[arg(long)]
    pub json: bool,
    /// Tells nothing until the summary, but what executes the units if that is kept with the job, or made up
    #[arg(long, short)]
    quiet: bool,
}

impl PoolOptions {
    pub fn telling(&self) -> Telling {
        if self.json || self.quiet { Telling::Nothing } else { Telling::People }
    }
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
        let executor = execution.make()?;
        let job = terms.keep(&repository, job)?;
        Ok(Batch { database, repository, job, options, executor, execution })
    }

    /// Starts the pool. Nothing is executed before it pulls.
    pub fn start(self) -> Result<Running, Trouble> {
        let (board, events) = (Board::default(), Events::if_wanted(&self.options));
        let (database, options, began) = (self.database.clone(), self.options.clone(), Instant::now());
        let (repository, job) = (self.repository.clone(), self.job.clone());
        let pool = self.pool(options.workers, &board, events.clone())?;
        let cannot = |error: io::Error| Trouble::Failed(told(&error));
        let stop = |pool: PoolHandle| move |stop| pool.stop(stop);
        let interrupt = Interrupt::watch(stop(pool.handle())).map_err(cannot)?;
        let tell = tell_of_disk(board.clone(), events.clone());
        let storage =
            Storage::watch(repository.clone(), interrupt.clone(), stop(pool.handle()), tell).map_err(cannot)?;
        let progress = Progress::start(options.telling(), pool.handle(), board, repository.clone(), job.id);
        Ok(Running { database, repository, job, options, pool, began, interrupt, storage, progress, events })
    }

    /// A pool of so many workers, and nothing that watches over it.
    pub fn pool(self, workers: usize, board: &Board, events: Option<Arc<Events>>) -> Result<WorkPool, Trouble> {
        let Execution { warning, note, timeout, expected_cost, rate_limits, same_work_once, .. } = self.execution;
        warning.iter().for_each(|warning| notes::tell(warning));
        note.iter().filter(|_| self.options.telling() == Telling::People).for_each(|note| notes::tell(note));
        let (board, job) = (board.clone(), self.job.name);
        let scaling = if self.options.adaptive { Scaling::ADAPTIVE } else { Scaling::default() };
        let builder = WorkPool::builder(self.job.id, self.executor, self.repository)
            .max_workers(workers)
            .scaling(scaling)
            .timeout(timeout)
            .label("workcrew")
            .observer(move |event: &Event<'_>| {
                board.see(event);
                if let Some(events) = &events {
                    events.print(&job, event);
                }
            });
        let builder = expected_cost.into_iter().fold(builder, |builder, cost| builder.expected_cost(cost));
        let builder = rate_limits.into_iter().fold(builder, |builder, limits| builder.rate_limits(limits));
        let builder = if same_work_once { builder.same_work_once() } else { builder };
        Ok(builder.start()?)
    }
}

/// Tells of a full disk, and that there is room again, wherever anybody looks.
pub fn tell_of_disk(board: Board, events: Option<Arc<Events>>) -> impl Fn(&Disk) + Send + 'static {
    move |disk| {
        board.see_disk(disk);
        notes::tell(&format!("workcrew: {}", disk.told()));
        if let Some(events) = &events {
            events.print_value(json!({ "event": disk.name(), "at": Utc::now() }));
        }
    }
}

/// Refuses to execute what is kept with a job if somebody may have put it there without this command or the library.
pub fn check_jobs(repository: &SqliteRepository, database: &Database) -> Result<(), Trouble> {
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
    let mut new = terms.new_job(name)?;
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
    began: Instant,
    interrupt: Interrupt,
    storage: Storage,
    progress: Progress,
    events: Option<Arc<Events>>,
}

impl Running {
    /// Stores units while what is stored already is executed, and then executes the rest.
    pub fn feed(&self, input: &Input, units: Reading) -> Result<(Stored, Completion), Trouble> {
        std::thread::scope(|threads| {
            threads.spawn(|| self.pool.follow());
            let goes_on = || !self.interrupt.is_asked() && !self.storage.is_given_up();
            let stored = store(&self.repository, &self.job, input, units, goes_on);
            let done = stored.map(|stored| (stored, self.execute()));
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

    /// Whether units are left whose time will come, or has come since.
    fn waits_for_its_time(&self) -> bool {
        let backlog = self.repository.backlog(self.job.id, NOBODY, 1);
        backlog.is_ok_and(|backlog| backlog.due > 0 || backlog.next_due.is_some())
    }

    /// Nothing else is told meanwhile.
    pub fn pause_telling(&self) -> Pause<'_> {
        self.progress.pause()
    }

    pub fn is_interrupted(&self) -> bool {
        self.interrupt.is_asked()
    }

    /// Stops the pool, and says what came of it, by its code also to whoever reads nothing any more.
    pub fn end(self, stored: Option<Stored>, completion: Completion, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
        let mut told = Vec::new();
        let code = self.conclude(stored, completion, &mut told)?;
        print::if_read(out, &told)?;
        Ok(code)
    }

    fn conclude(
        self,
        stored: Option<Stored>,
        completion: Completion,
        out: &mut dyn Write,
    ) -> Result<ExitCode, Trouble> {
        let stopped = self.pool.stop(Stop::Drain);
        drop(self.progress);
        let is_disk_full = self.storage.is_full() || self.storage.is_given_up();
        if is_disk_full {
            // Nobody waits for what a full disk cannot take.
            std::mem::forget(self.repository.clone());
            notes::tell(STAYED_FULL);
        } else {
            stopped?;
        }
        let (counts, costs) = (self.repository.counts(self.job.id)?, self.repository.costs(Some(self.job.id))?);
        let is_interrupted = self.interrupt.is_asked();
        let may_be_stuck = completion == Completion::Done && !is_interrupted && summary::left(&counts) > 0;
        let stuck = if may_be_stuck { without_prompt(&self.repository, &self.job)? } else { None };
        let (job, db, elapsed) = (self.job.name, self.database.as_argument(), self.began.elapsed());
        let account = self.repository.account(AccountHolder::Job(self.job.id))?;
        let summary = Summary {
            job,
            db,
            counts,
            costs,
            account,
            stored,
            completion,
            stuck,
            is_interrupted,
            is_disk_full,
            elapsed,
        };
        if self.events.is_some() {
            print::json(out, &summary.event())?;
        } else {
            summary.write(out)?;
        }
        Ok(summary.code())
    }
}

const STAYED_FULL: &str =
    "workcrew: the disk is full: what was executed and could not be stored is lost; make room to go on";

/// A unit that waits and that nobody will ever execute, such as one that a program stored without a prompt.
fn without_prompt(repository: &SqliteRepository, job: &Job) -> Result<Option<String>, Trouble> {
    let waiting = UnitFilter::job(job.id).status(UnitStatus::Pending);
    let first = repository.units(&waiting, 0, 1)?.items.into_iter().next();
    let is_stuck = |unit: &WorkUnit| job.template.is_none() && unit.prompt.is_none() && unit.template.is_none();
    Ok(first.filter(is_stuck).map(|unit| unit.id.to_string()))
}

/// Opens what units come from, and says so before anything is stored if the template was forgotten: a job keeps the one it was made with.
pub fn open(input: &Input, database: &Database, job: &str) -> Result<Reading, Trouble> {
    let has_template = input.template.is_some() || database.peek(job).is_some_and(|job| job.template.is_some());
    // The database may lie in the folder that it is filled from.
    let own = database.clone();
    let mut source = input.open()?.leave_out(move |path| own.own(path).is_some());
    if has_template {
        source = source.for_template();
    }
    let first = source.next();
    if first.is_none() {
        notes::tell(&format!("workcrew: there are no units in {}", input.name()));
    }
    if let Some(Ok(Placed { place, unit })) = &first
        && !has_template
        && !has_prompt(unit)
    {
        let id = workcrew::audit::visible::line(&unit.id);
        return Err(Trouble::usage(format!("{place}: unit `{id}` {NO_PROMPT}: give one with --template")));
    }
    let max_cost = input.max_cost;
    let units = first.into_iter().chain(source).map(move |read| {
        let Placed { place, mut unit } = read?;
        // Nobody could ever execute them, so they are not stored.
        if !has_template && !has_prompt(&unit) {
            return Err(BadUnit { place, reason: format!("unit `{}` {NO_PROMPT}", unit.id) });
        }
        unit.options.max_cost = unit.options.max_cost.or(max_cost);
        Ok(Placed { place, unit })
    });
    Reading::start(units).map_err(|error| Trouble::Failed(told(&error)))
}

pub const NO_PROMPT: &str = "has neither a prompt nor a template";

fn has_prompt(unit: &NewUnit) -> bool {
    unit.prompt.is_some() || unit.template.is_some()
}

/// What was read and stored.
#[derive(Clone, Copy, Debug)]
pub struct Stored {
    pub fed: Fed,
    /// Whether that is all that there was to be read.
    pub is_all: bool,
}

/// Stores units, and tells of those that are none.
pub fn store(
    repository: &SqliteRepository,
    job: &Job,
    input: &Input,
    mut units: Reading,
    goes_on: impl Fn() -> bool,
) -> Result<Stored, Trouble> {
    let mut all = Fed::default();
    while units.has_more(&goes_on) {
        let mut refused = None;
        let tell = |_: &Fed, trouble: Option<workcrew::source::Trouble<'_>>| {
            match trouble {
                // Whoever watches over the disk tells of it.
                Some(workcrew::source::Trouble::DiskFull) | None => {}
                Some(trouble) if input.strict => refused = Some(trouble.to_string()),
                Some(trouble) => notes::tell(&format!("workcrew: {trouble}")),
            }
            refused.is_none() && goes_on()
        };
        let (group, is_over) = match feed(repository, job.id, units.at_hand(), tell) {
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
            return Ok(Stored { fed: all, is_all: false });
        }
    }
    Ok(Stored { fed: all, is_all: units.is_over() })
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
    pub fn if_wanted(options: &PoolOptions) -> Option<Arc<Events>> {
        options.json.then(Arc::default)
    }

    fn print(&self, job: &str, event: &Event<'_>) {
        let Ok(mut value) = serde_json::to_value(event) else { return };
        if let Value::Object(fields) = &mut value {
            fields.insert("at".to_owned(), json!(Utc::now()));
            fields.insert("job".to_owned(), job.into());
        }
        self.print_value(value);
    }

    fn print_value(&self, value: Value) {
        let _one_at_a_time = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Who reads no more has seen enough; the batch goes on.
        let mut line = Vec::new();
        let _ = print::json(&mut line, &value);
        let _ = io::stdout().write_all(&line);
    }
}
