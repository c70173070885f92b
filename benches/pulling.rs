//! How fast pools pull: durable units per second by one process and by several on one file, and what it costs to look.
//!
//! ```text
//! cargo bench --bench pulling
//! ```
//!
//! One line for each figure, `name=value` pairs, as in bench `throughput`, whose executor does the same. The processes are this program
//! once more. `ratio` is to the floor of the same run, though its one thread also inserts the units, which here was done before.
//! Absolute numbers mean nothing on a machine that is shared.

mod floor;

use std::io::{BufRead, BufReader, Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use floor::{MEASURED, MESSAGES, Rate, cpu_us, id, task_cpu_us, tasks, text};
use serde_json::json;
use workcrew::repository::{ClaimRequest, Claimant, Scope, Slot};
use workcrew::{
    Call, Charge, Completion, ExecuteError, JobId, Message, Money, NewJob, NewOwner, NewUnit, OwnerId, Repository,
    SqliteRepository, Stop, Tokens, WorkPool, WorkResult, WorkerId,
};

const CONVERSATION_BYTES: usize = 4 * 1024;
/// How many units each figure of throughput shares out.
const UNITS: usize = 12_000;
/// How many units are queued in one transaction.
const TOGETHER: usize = 1_000;
const JOB: &str = "bench";
/// The argument that makes this program one of those that pull.
const PULLER: &str = "--puller";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    if let Some(position) = arguments.iter().position(|argument| argument == PULLER) {
        return pull(&arguments[position + 1], arguments[position + 2].parse().expect("a number of workers"));
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    println!("figure=fsync milliseconds={:.3}", floor::fsync_ms(folder.path()));
    let floor = floor::in_its_own_thread(folder.path().join("floor.db"), CONVERSATION_BYTES / MESSAGES);
    floor.print_floor("floor");
    for workers in [4, 16, 64] {
        for processes in [1, 2, 4] {
            throughput(folder.path(), processes, workers, &floor);
        }
    }
    for units in [1_000, 100_000] {
        depth(folder.path(), units);
    }
    for workers in [4, 64] {
        idle(folder.path(), workers);
    }
}

fn open(path: &Path) -> SqliteRepository {
    SqliteRepository::open(path).expect("a database")
}

fn queue(repository: &SqliteRepository, job: JobId, units: impl Iterator<Item = NewUnit>) {
    let mut units = units.peekable();
    while units.peek().is_some() {
        let together: Vec<NewUnit> = units.by_ref().take(TOGETHER).collect();
        repository.queue_units(job, &together).expect("room");
    }
}

fn unit(number: usize) -> NewUnit {
    NewUnit::new(id(number)).payload(json!({ "page": 1 })).prompt("Answer at length.")
}

/// Says what there is to say, and is done.
fn no_op() -> impl Fn(&Call<'_>) -> Result<WorkResult, ExecuteError> + Send + Sync + 'static {
    let messages: Vec<Message> =
        (0..MESSAGES).map(|seed| Message::assistant(text(CONVERSATION_BYTES / MESSAGES, seed))).collect();
    move |call| {
        call.messages(messages.iter().cloned());
        let tokens = Tokens { input: 1_000, output: 1_000, ..Tokens::default() };
        let charge = Charge::reported("large", tokens, Money::from_nanos(18_000_000));
        Ok(WorkResult::text("Done.").json(json!({ "pages": 1 })).charge(charge))
    }
}

/// A clock that all processes share.
fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970");
    u64::try_from(now.as_micros()).expect("it is before the year 500,000")
}

/// One of the processes that pull: comes up, says so, waits to be told to begin, and tells what it has done.
fn pull(path: &str, workers: usize) {
    let repository = open(Path::new(path));
    let job = repository.create_job(&NewJob::named(JOB)).expect("a job").id;
    let last_us = Arc::new(AtomicU64::new(0));
    let ended = Arc::clone(&last_us);
    let pool = WorkPool::builder(job, no_op(), repository)
        .max_workers(workers)
        .on_unit_complete(move |_, _| {
            ended.fetch_max(now_us(), Ordering::Relaxed);
        })
        // That the others are done is found out in time.
        .poll_interval(Duration::from_millis(500))
        .start()
        .expect("a pool");
    pool.await_init_complete().expect("a pool that is up");
    println!("ready");
    std::io::stdin().read_exact(&mut [0]).expect("a sign to begin");
    assert_eq!(pool.process_pending(), Completion::Done);
    let writer_us = cpu_us("workcrew-writer");
    let claimer_us = cpu_us("workcrew-claime");
    let completed = pool.stop(Stop::Drain).expect("an orderly end").stats.completed;
    println!("{completed} {} {writer_us} {claimer_us}", last_us.load(Ordering::Relaxed));
}

/// A process that pulls, seen from here.
struct Puller {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

/// What it did, and until when.
struct Pulled {
    completed: u64,
    last_us: u64,
    writer_us: f64,
    claimer_us: f64,
}

impl Puller {
    fn start(path: &Path, workers: usize) -> Puller {
        let program = std::env::current_exe().expect("this program");
        let mut command = Command::new(program);
        command.arg(PULLER).arg(path).arg(workers.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a process");
        let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let mut puller = Puller { child, input, output: BufReader::new(output) };
        assert_eq!(puller.line(), "ready");
        puller
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    fn begin(&mut self) {
        self.input.write_all(b"!").expect("a process that listens");
    }

    fn end(mut self) -> Pulled {
        let line = self.line();
        assert!(self.child.wait().expect("a child").success());
        let mut fields = line.split(' ');
        let mut field = || fields.next().expect("four fields");
        Pulled {
            completed: field().parse().expect("a count"),
            last_us: field().parse().expect("a time"),
            writer_us: field().parse().expect("a duration"),
            claimer_us: field().parse().expect("a duration"),
        }
    }
}

/// What was queued before, shared out among so many processes: from the sign to begin until the last unit is completed.
fn throughput(folder: &Path, processes: usize, workers: usize, floor: &Rate) {
    let path = folder.join(format!("pulling-{processes}-{workers}.db"));
    let repository = open(&path);
    let job = repository.create_job(&NewJob::named(JOB)).expect("a job").id;
    let began = Instant::now();
    queue(&repository, job, (0..UNITS).map(unit));
    let queued_per_second = UNITS as f64 / began.elapsed().as_secs_f64();
    // What was queued is no longer in the log.
    drop(repository);
    let mut pullers: Vec<Puller> = (0..processes).map(|_| Puller::start(&path, workers)).collect();
    let began_us = now_us();
    for puller in &mut pullers {
        puller.begin();
    }
    let pulled: Vec<Pulled> = pullers.into_iter().map(Puller::end).collect();
    assert_eq!(pulled.iter().map(|pulled| pulled.completed).sum::<u64>(), UNITS as u64);
    let last_us = pulled.iter().map(|pulled| pulled.last_us).max().expect("a process");
    let per_second = UNITS as f64 * 1_000_000.0 / (last_us - began_us) as f64;
    let least = pulled.iter().map(|pulled| pulled.completed).min().unwrap_or_default();
    let share = least as f64 * processes as f64 / UNITS as f64;
    let writer_us = pulled.iter().map(|pulled| pulled.writer_us).sum::<f64>() / UNITS as f64;
    let claimer_us = pulled.iter().map(|pulled| pulled.claimer_us).sum::<f64>() / UNITS as f64;
    println!(
        "figure=pulling processes={processes} workers={workers} units_per_second={per_second:.0} ratio={:.2} \
         least_share={share:.2} writer_microseconds_per_unit={writer_us:.0} \
         claimer_microseconds_per_unit={claimer_us:.0} queued_per_second={queued_per_second:.0}",
        per_second / floor.units
    );
}

/// What makes a unit wait, which may be a date.
type Waits = fn(NewUnit, chrono::DateTime<chrono::Utc>) -> NewUnit;

/// One look and one claim of 16 units where so many wait, for each of what they may wait for. The best of many, for most else is the disk.
fn depth(folder: &Path, units: usize) {
    const PLACES: usize = 16;
    let tomorrow = chrono::Utc::now() + chrono::TimeDelta::days(1);
    let kinds: [(&str, Waits); 5] = [
        ("due", |unit, _| unit),
        ("not_due", |unit, tomorrow| unit.not_before(tomorrow)),
        ("without_a_prompt", |unit, _| NewUnit::new(unit.id)),
        ("of_another_job", |unit, _| unit),
        ("not_due_of_another_job", |unit, tomorrow| unit.not_before(tomorrow)),
    ];
    for (kind, waits) in kinds {
        let repository = open(&folder.join(format!("depth-{kind}-{units}.db")));
        let job = repository.create_job(&NewJob::named(JOB)).expect("a job").id;
        let other = repository.create_job(&NewJob::named("another")).expect("a job").id;
        let theirs = if kind.ends_with("of_another_job") { other } else { job };
        queue(&repository, theirs, (0..units).map(|number| waits(unit(number), tomorrow)));
        queue(&repository, job, (units..units + 2_000).map(unit));
        let owner =
            repository.register_owner(&NewOwner::new(workcrew::Process::this("bench"), "bench")).expect("an owner");
        let fastest = |times: Vec<Duration>| times.into_iter().min().expect("a round").as_secs_f64() * 1_000_000.0;
        let looks = (0..100).map(|_| {
            let began = Instant::now();
            repository.backlog(job, owner, PLACES + 1).expect("an answer");
            began.elapsed()
        });
        let look = fastest(looks.collect());
        let claims = (0..100).map(|round| {
            let request = request(job, owner, round, PLACES);
            let began = Instant::now();
            assert_eq!(repository.claim(&request).expect("units").len(), PLACES);
            began.elapsed()
        });
        let claim = fastest(claims.collect());
        println!("figure=depth units={units} kind={kind} look_microseconds={look:.0} claim_microseconds={claim:.0}");
    }
}

fn request(job: JobId, owner: OwnerId, round: usize, places: usize) -> ClaimRequest {
    let worker = |place| WorkerId::new(format!("w{round}-{place}")).expect("a name");
    let slots = (0..places).map(|place| Slot::new(worker(place))).collect();
    ClaimRequest::new(job, Claimant::new(owner, Duration::from_secs(600)), Scope::Open, slots)
}

/// A pool that follows, and finds nothing with any of its polls, though others have 10,000 units in the file, due and not.
fn idle(folder: &Path, workers: usize) {
    const OTHERS: usize = 10_000;
    let poll_interval = Duration::from_millis(10);
    let repository = open(&folder.join(format!("idle-{workers}.db")));
    let job = repository.create_job(&NewJob::named(JOB)).expect("a job").id;
    let other = repository.create_job(&NewJob::named("another")).expect("a job").id;
    let tomorrow = chrono::Utc::now() + chrono::TimeDelta::days(1);
    queue(
        &repository,
        other,
        (0..OTHERS).map(|number| match number % 2 {
            0 => unit(number),
            _ => unit(number).not_before(tomorrow),
        }),
    );

    let pool = WorkPool::builder(job, no_op(), repository).max_workers(workers).poll_interval(poll_interval);
    let pool = pool.start().expect("a pool");
    pool.await_init_complete().expect("a pool that is up");
    std::thread::scope(|scope| {
        scope.spawn(|| pool.follow());
        std::thread::sleep(Duration::from_secs(1));
        let (cpu, written, began) = (process_cpu_us(), written_bytes(), Instant::now());
        std::thread::sleep(MEASURED);
        let polls = began.elapsed().as_secs_f64() / poll_interval.as_secs_f64();
        let (cpu, written) = ((process_cpu_us() - cpu) / polls, (written_bytes() - written) as f64 / polls);

        println!(
            "figure=idle workers={workers} units_of_others={OTHERS} cpu_microseconds_per_poll={cpu:.0} \
             written_bytes_per_poll={written:.0}"
        );
        pool.stop(Stop::Drain).expect("an orderly end");
    });
}

fn process_cpu_us() -> f64 {
    tasks().map(task_cpu_us).sum()
}

/// What this process has written to the disk; 0 where the system does not tell.
fn written_bytes() -> u64 {
    let io = std::fs::read_to_string("/proc/self/io").unwrap_or_default();
    let line = io.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.and_then(|bytes| bytes.parse().ok()).unwrap_or_default()
}
