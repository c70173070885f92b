//! What if processes die and freeze all the time? Several of them pull units from one file here, and every 50 ms one of them may be
//! killed, stopped or continued.
//!
//! ```text
//! cargo run --release --example chaos -- --seconds 60
//! cargo run --release --example chaos -- --minutes 30 --seed 7 --processes 3 --units 2000
//! ```
//!
//! It runs itself as those processes. Leases are short, so that whoever is stopped for long is robbed, and finds out when it goes
//! on. Units are added and cancelled all the while. When the time is over everybody is continued and nobody is killed any more: then
//! every unit has to come to its end, once. It is checked, the figures are printed, and what is wrong is said and makes it fail.
//! The seed repeats the choices, though not the moments at which they hit.

use std::collections::HashMap;
use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde_json::json;
use workcrew::audit::verify::{Verification, Verify};
use workcrew::repository::{By, Counts};
use workcrew::unit::Change;
use workcrew::{
    Archive, Call, Charge, ExecuteError, JobId, Message, Money, NewJob, NewUnit, Repository, RepositoryError,
    RetryPolicy, SqliteRepository, Stop, Tokens, WorkPool, WorkResult, WorkUnit,
};

type AnyError = Box<dyn Error + Send + Sync>;

/// The first argument of a process that pulls.
const PULL: &str = "pull-for-chaos";

const WORKERS: usize = 4;
const LEASE: Duration = Duration::from_millis(500);
const HEARTBEAT: Duration = Duration::from_millis(50);
const POLL: Duration = Duration::from_millis(50);

/// How often something happens to one of the processes.
const TICK: Duration = Duration::from_millis(50);

/// How long it may take, once nothing goes wrong any more, until another unit ends or a process has.
const PATIENCE: Duration = Duration::from_secs(30);

const HELP: &str = "\
Processes pull units from one file while they are killed, stopped and continued at random.

Usage: chaos [--seconds N | --minutes N] [--seed N] [--processes N] [--units N]

  --seconds N     for how long (10)
  --minutes N     the same in minutes
  --seed N        repeats the choices of an earlier run (others every time)
  --processes N   how many processes pull (3)
  --units N       how many units wait at the beginning (2000); more are added all the while
  --help          says this
";

fn main() -> ExitCode {
    // Whoever is robbed says so, again and again; set RUST_LOG to hear it.
    env_logger::Builder::from_env(env_logger::Env::default().default_filter_or("off")).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, path] = &arguments[..]
        && role == PULL
    {
        return ended(pull(Path::new(path)).map(|()| true));
    }
    match Plan::from_arguments(&arguments) {
        Ok(Some(plan)) => ended(plan.run()),
        Ok(None) => {
            print!("{HELP}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("chaos: {problem}\n\n{HELP}");
            ExitCode::from(2)
        }
    }
}

fn ended(outcome: Result<bool, AnyError>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("chaos: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What was asked for.
#[derive(Clone, Copy, Debug)]
struct Plan {
    time: Duration,
    seed: u64,
    processes: usize,
    units: usize,
}

impl Plan {
    /// Reads the arguments; `None` if help was asked for.
    fn from_arguments(arguments: &[String]) -> Result<Option<Plan>, String> {
        let seed = RandomState::new().hash_one(0);
        let mut plan = Plan { time: Duration::from_secs(10), seed, processes: 3, units: 2_000 };
        let mut arguments = arguments.iter();
        while let Some(name) = arguments.next() {
            if name == "--help" {
                return Ok(None);
            }
            if !["--seconds", "--minutes", "--seed", "--processes", "--units"].contains(&name.as_str()) {
                return Err(format!("there is no `{name}`"));
            }
            let value = arguments.next().ok_or(format!("`{name}` needs a number"))?;
            let number: u64 = value.parse().map_err(|_| format!("`{value}` of `{name}` is not a whole number"))?;
            let within = |limit: u64| match number {
                0 => Err(format!("`{name}` must be at least 1")),
                number if number > limit => Err(format!("`{name}` may be {limit} at most")),
                number => Ok(number),
            };
            match name.as_str() {
                "--seconds" => plan.time = Duration::from_secs(within(1_000_000)?),
                "--minutes" => plan.time = Duration::from_secs(60 * within(10_000)?),
                "--processes" => plan.processes = within(100)? as usize,
                "--units" => plan.units = within(1_000_000)? as usize,
                _ => plan.seed = number,
            }
        }
        Ok(Some(plan))
    }

    /// Lets it all happen; says whether everything is in order.
    fn run(self) -> Result<bool, AnyError> {
        let Plan { time, seed, processes, units } = self;
        println!(
            "{time:?} of chaos: {processes} processes of {WORKERS} workers, {units} units at first, --seed {seed}"
        );
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("chaos.db");
        let repository = SqliteRepository::open(&path)?;
        let job = repository.create_job(&NewJob::named("chaos"))?.id;
        let mut queue = Queue::new(repository.clone(), job, seed ^ 1);
        queue.add(units)?;

        let mut crew = Crew::start(&path, processes)?;
        let is_over = AtomicBool::new(false);
        thread::scope(|threads| {
            // Not on this thread: whoever is stopped while it writes keeps all others from writing until it is continued.
            let queueing = threads.spawn(|| queue.keep_busy(&is_over));
            let disturbed = crew.disturb(time, &mut Random(seed));
            is_over.store(true, Ordering::SeqCst);
            crew.heal()?;
            disturbed?;
            queueing.join().unwrap_or_else(|_| Err("the thread that adds units panicked".into()))
        })?;
        println!("Now nobody is disturbed any more, and {} units are left.", open_units(&repository.counts(job)?));
        let stuck = settle(&repository, job)?;
        crew.end()?;

        let report = Report::of(&repository, queue, crew, stuck)?;
        println!("{report}");
        let problems = report.problems();
        for problem in &problems {
            eprintln!("WRONG: {problem}");
        }
        if !problems.is_empty() {
            eprintln!("The database is kept at {}.", folder.keep().join("chaos.db").display());
        }
        Ok(problems.is_empty())
    }
}

/// What a process of the crew does: it pulls whatever there is until it is told to stop.
fn pull(path: &Path) -> Result<(), AnyError> {
    // While it is stopped it would not notice that nobody is there any more who continues it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let repository = SqliteRepository::open(path)?;
    let job = repository.create_job(&NewJob::named("chaos"))?;
    let pool = WorkPool::builder(job.id, execute, repository)
        .max_workers(WORKERS)
        .lease(LEASE)
        .heartbeat(HEARTBEAT)
        .poll_interval(POLL)
        .retry(RetryPolicy::immediate())
        .on_unit_complete(|unit, _| tell(unit))
        .on_unit_failed(|unit, _| tell(unit))
        .on_unit_cancelled(tell)
        .start()?;
    let handle = pool.handle();
    thread::spawn(move || {
        let _ = std::io::stdin().read_line(&mut String::new());
        handle.stop(Stop::Drain);
    });
    pool.follow();
    pool.stop(Stop::Drain)?;
    Ok(())
}

/// Tells the parent of a callback, in one write: whatever happens to this process, it is told or it is not.
fn tell(unit: &WorkUnit) {
    let line = format!("{} {}\n", unit.status, unit.id);
    if let Err(error) = std::io::stdout().lock().write_all(line.as_bytes()) {
        eprintln!("{}: its callback could not be told: {error}", unit.id);
    }
}

/// Small work in steps. It goes on where an earlier attempt was; some of it does not stop when it is asked to.
fn execute(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    const STEPS: u64 = 3;
    let number = call.payload()["number"].as_u64().unwrap_or(0);
    let done = call.last_checkpoint().and_then(|step| step.as_u64()).unwrap_or(0);
    call.session(format!("session of {}", call.unit().id));
    for step in done..STEPS {
        call.message(Message::assistant(format!("step {step} in attempt {}", call.attempt_number())));
        let pause = Duration::from_millis(1 + (number + step) % 5);
        let cancelled = call.cancel_token().wait_timeout(pause);
        if let (Some(reason), false) = (cancelled, number.is_multiple_of(2)) {
            return Err(ExecuteError::retry(format!("{reason:?}")));
        }
        call.checkpoint(step + 1);
    }
    let tokens = Tokens { output: STEPS, ..Tokens::default() };
    call.usage(Charge::reported("a-model", tokens, Money::from_nanos(1_000)));
    if number % 10 == 3 && call.attempt_number() == 1 {
        return Err(ExecuteError::retry("the first time"));
    }
    Ok(WorkResult::text(format!("done in attempt {}", call.attempt_number())))
}

/// Where units come from.
struct Queue {
    repository: SqliteRepository,
    job: JobId,
    random: Random,
    /// How many were added: their names are the numbers below.
    added: usize,
    /// How often somebody wanted one no longer.
    cancels: usize,
    /// How often the file was locked for too long.
    busy: usize,
}

impl Queue {
    fn new(repository: SqliteRepository, job: JobId, seed: u64) -> Queue {
        Queue { repository, job, random: Random(seed), added: 0, cancels: 0, busy: 0 }
    }

    fn add(&mut self, count: usize) -> Result<(), AnyError> {
        let unit = |number: usize| {
            // However often its process is killed, no unit is to be given up for that.
            NewUnit::new(name(number)).prompt("go").payload(json!({ "number": number })).max_retries(10_000)
        };
        let units: Vec<NewUnit> = (self.added..self.added + count).map(unit).collect();
        self.patiently(|queue| queue.repository.queue_units(queue.job, &units))?;
        self.added += count;
        Ok(())
    }

    /// Adds units and cancels some, until it is over.
    fn keep_busy(&mut self, is_over: &AtomicBool) -> Result<(), AnyError> {
        while !is_over.load(Ordering::SeqCst) {
            let count = self.random.below(10);
            self.add(count)?;
            if self.random.below(3) == 0 {
                let id = name(self.random.below(self.added));
                self.patiently(|queue| queue.repository.cancel(queue.job, &id, &By::whom("chaos")))?;
                self.cancels += 1;
            }
            thread::sleep(TICK);
        }
        Ok(())
    }

    /// Whoever was stopped while it wrote keeps the file locked until it is continued. All that is asked here can be asked again.
    fn patiently<T>(&mut self, ask: impl Fn(&Queue) -> Result<T, RepositoryError>) -> Result<T, RepositoryError> {
        let began = Instant::now();
        loop {
            match ask(self) {
                Err(error) if error.is_passing() && began.elapsed() < PATIENCE => self.busy += 1,
                answer => return answer,
            }
        }
    }
}

fn name(number: usize) -> String {
    format!("unit-{number}")
}

/// One process of the crew.
struct Process {
    child: Child,
    stdin: Option<ChildStdin>,
    told: JoinHandle<()>,
    /// Not to be continued before, if it is stopped.
    stopped_until: Option<Instant>,
}

/// How often each unit was told to have ended.
type Callbacks = Arc<Mutex<HashMap<String, u32>>>;

impl Process {
    fn start(path: &Path, callbacks: &Callbacks) -> Result<Process, AnyError> {
        let mut command = Command::new(std::env::current_exe()?);
        let mut child = command.arg(PULL).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let stdout = BufReader::new(child.stdout.take().ok_or("a process has no output")?);
        let callbacks = Arc::clone(callbacks);
        let told = thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                *callbacks.lock().unwrap_or_else(PoisonError::into_inner).entry(line).or_default() += 1;
            }
        });
        Ok(Process { stdin: child.stdin.take(), child, told, stopped_until: None })
    }

    fn signal(&self, signal: Signal) -> Result<(), AnyError> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Waits for its end, and until everything was read that it told.
    fn end(mut self) -> Result<ExitStatus, AnyError> {
        drop(self.stdin.take());
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if began.elapsed() > PATIENCE {
                self.child.kill()?;
            }
            thread::sleep(TICK / 10);
        };
        self.told.join().map_err(|_| "the thread that reads what a process tells panicked")?;
        Ok(status)
    }
}

/// The processes that pull, and what was done to them.
struct Crew {
    path: PathBuf,
    processes: Vec<Process>,
    callbacks: Callbacks,
    started: usize,
    kills: usize,
    stops: usize,
    /// How those ended that nobody killed and that did not come to a good end.
    failures: Vec<ExitStatus>,
}

impl Crew {
    fn start(path: &Path, count: usize) -> Result<Crew, AnyError> {
        let callbacks = Callbacks::default();
        let processes = (0..count).map(|_| Process::start(path, &callbacks)).collect::<Result<_, _>>()?;
        let failures = Vec::new();
        Ok(Crew { path: path.to_owned(), processes, callbacks, started: count, kills: 0, stops: 0, failures })
    }

    /// Kills, stops and continues at random.
    fn disturb(&mut self, time: Duration, random: &mut Random) -> Result<(), AnyError> {
        let ends_at = Instant::now() + time;
        while Instant::now() < ends_at {
            thread::sleep(TICK);
            let place = random.below(self.processes.len());
            if self.processes[place].child.try_wait()?.is_some() {
                let status = self.replace(place)?;
                self.failures.push(status);
            }
            let process = &mut self.processes[place];
            match (random.below(6), process.stopped_until) {
                (0, _) => {
                    process.signal(Signal::KILL)?;
                    self.kills += 1;
                    self.replace(place)?;
                }
                (chance @ 1..3, None) => {
                    process.signal(Signal::STOP)?;
                    self.stops += 1;
                    // Some sleep through their leases for certain.
                    let at_least = if chance == 1 && random.below(2) == 0 { LEASE * 3 / 2 } else { TICK };
                    process.stopped_until = Some(Instant::now() + at_least);
                }
                (_, Some(until)) if until < Instant::now() => {
                    process.signal(Signal::CONT)?;
                    process.stopped_until = None;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts another process in the place of one that has ended or is about to.
    fn replace(&mut self, place: usize) -> Result<ExitStatus, AnyError> {
        let process = Process::start(&self.path, &self.callbacks)?;
        self.started += 1;
        std::mem::replace(&mut self.processes[place], process).end()
    }

    /// Everybody goes on.
    fn heal(&mut self) -> Result<(), AnyError> {
        for process in &mut self.processes {
            process.signal(Signal::CONT)?;
            process.stopped_until = None;
        }
        Ok(())
    }

    /// Tells everybody to stop, and waits for them.
    fn end(&mut self) -> Result<(), AnyError> {
        for mut process in std::mem::take(&mut self.processes) {
            drop(process.stdin.take());
            let status = process.end()?;
            if !status.success() {
                self.failures.push(status);
            }
        }
        Ok(())
    }
}

/// Waits until every unit has ended, or none does any more. Returns how many are left.
fn settle(repository: &SqliteRepository, job: JobId) -> Result<u64, AnyError> {
    let mut fewest = u64::MAX;
    let mut since = Instant::now();
    while fewest > 0 && since.elapsed() < PATIENCE {
        let left = open_units(&repository.counts(job)?);
        if left < fewest {
            (fewest, since) = (left, Instant::now());
        }
        thread::sleep(TICK);
    }
    Ok(fewest)
}

fn open_units(counts: &Counts) -> u64 {
    counts.total() - counts.completed - counts.failed - counts.cancelled
}

/// What happened, and what came of it.
struct Report {
    counts: Counts,
    verification: Verification,
    queue: Queue,
    crew: Crew,
    stuck: u64,
    changes: HashMap<Change, usize>,
    completed_twice: usize,
    called_back: usize,
    called_back_twice: usize,
    completed_untold: usize,
    owners_left: usize,
}

impl Report {
    fn of(repository: &SqliteRepository, queue: Queue, crew: Crew, stuck: u64) -> Result<Report, AnyError> {
        let all = || (0..queue.added).map(|number| (queue.job, name(number)));
        let verification = Verify::new().acknowledged(all()).submitted(all()).settled().run(repository)?;
        let (mut changes, mut completions) = (HashMap::new(), HashMap::new());
        let mut next = Some(0);
        while let Some(after) = next {
            let page = repository.journal(after, usize::MAX)?;
            for entry in &page.items {
                *changes.entry(entry.change).or_default() += 1;
                if entry.change == Change::Complete {
                    *completions.entry(entry.unit).or_insert(0) += 1;
                }
            }
            next = page.next;
        }
        let callbacks = std::mem::take(&mut *crew.callbacks.lock().unwrap_or_else(PoisonError::into_inner));
        let told = callbacks.keys().filter(|line| line.starts_with("COMPLETED ")).count();
        let counts = repository.counts(queue.job)?;
        Ok(Report {
            counts,
            verification,
            stuck,
            changes,
            completed_twice: completions.values().filter(|&&count| count > 1).count(),
            called_back: callbacks.len(),
            called_back_twice: callbacks.values().filter(|&&count| count > 1).count(),
            completed_untold: (counts.completed as usize).saturating_sub(told),
            owners_left: repository.owners()?.iter().filter(|owner| owner.ended_at.is_none()).count(),
            queue,
            crew,
        })
    }

    fn count(&self, change: Change) -> usize {
        self.changes.get(&change).copied().unwrap_or(0)
    }

    /// What must not be.
    fn problems(&self) -> Vec<String> {
        let Report { counts, queue, crew, .. } = self;
        let lost = (queue.added as u64).abs_diff(counts.total());
        // Each worker may have been about to call back when its process was killed.
        let untold_too_often = self.completed_untold.saturating_sub(crew.kills * WORKERS);
        let wrong = [
            (lost, "units were lost, or came from nowhere"),
            (self.stuck, "units never ended"),
            (counts.failed, "units failed"),
            (self.completed_twice as u64, "units were completed twice"),
            (self.called_back_twice as u64, "callbacks came twice"),
            (untold_too_often as u64, "callbacks are missing"),
            (self.owners_left as u64, "processes have not ended in the records"),
            (crew.failures.len() as u64, "processes came to a bad end"),
        ];
        let mut problems: Vec<String> =
            wrong.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")).collect();
        problems.extend(crew.failures.iter().map(|status| format!("a process ended with {status}")));
        if !self.verification.is_clean() {
            problems.push(format!("verified: {}", self.verification));
        }
        problems
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { counts, verification, queue, crew, .. } = self;
        let Counts { completed, failed, cancelled, .. } = counts;
        let findings = verification.findings.len() as u64 + verification.findings_left_out;
        writeln!(f, "processes  {} started, {} killed, {} stopped", crew.started, crew.kills, crew.stops)?;
        writeln!(f, "units      {} added: {completed} completed, {failed} failed, {cancelled} cancelled", queue.added)?;
        writeln!(
            f,
            "attempts   {}: {} lost, {} given back, {} failed and tried again, {} late results",
            verification.attempts,
            self.count(Change::Expire) + self.count(Change::ExpireFinally),
            self.count(Change::Release),
            self.count(Change::Retry),
            self.count(Change::LateReport),
        )?;
        writeln!(f, "callbacks  {}, {} of completed units missing", self.called_back, self.completed_untold)?;
        writeln!(f, "queue      {} asked to cancel, {} times busy", queue.cancels, queue.busy)?;
        writeln!(f, "stuck      {}", self.stuck)?;
        writeln!(f, "twice      {} completed, {} called back", self.completed_twice, self.called_back_twice)?;
        write!(f, "verified   {} journal rows, {findings} findings", verification.journal_rows)
    }
}

/// Choices that can be made again from their seed.
struct Random(u64);

impl Random {
    /// A number below a limit (SplitMix64).
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
