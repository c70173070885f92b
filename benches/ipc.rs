//! What it costs to have a unit executed by another process: what is said on the way, and what it saves to keep the process.
//!
//! ```text
//! cargo bench --bench ipc
//! ```
//!
//! One line for each figure, `name=value` pairs. All are taken in turns, so that each has its share of whatever else the machine does:
//!
//! | figure | what is measured |
//! |---|---|
//! | `ping_pong` | the floor: a line to a process and so many back over a Unix socket, and nothing else |
//! | `closure` | the other floor: a unit of a pool whose executor says the same without any process |
//! | `worker` | the same unit by a worker process that is kept |
//! | `protocol` | what the process adds to the unit, as a ratio to `ping_pong` |
//! | `cold` | a unit whose process is started for it and ends with it: as a worker, and as a command that speaks no protocol |
//!
//! The processes are this program once more. Absolute numbers mean nothing on a machine that is shared.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use workcrew::executor::warm::Keep;
use workcrew::executor::{CommandExecutor, WorkerCommand, WorkerProcesses};
use workcrew::{
    Call, ExecuteError, Executor, MemoryRepository, Message, NewJob, NewUnit, Repository, Stop, WorkPool, WorkResult,
};

const ROUNDS: usize = 3_000;
const COLD_ROUNDS: usize = 100;

/// What a query and a message have on the wire, near enough.
const QUERY_BYTES: usize = 165;
const MESSAGE_BYTES: usize = 206;

/// What the model says, message by message.
const TEXT: &str = "The capital of France is Paris, and has been so for longer than anybody remembers.";

/// The arguments that make this program one of the processes.
const WORKER: &str = "--worker";
const COMMAND: &str = "--command";
const ECHO: &str = "--echo";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    match arguments.get(1).map(String::as_str) {
        Some(WORKER) => return workcrew::ipc::serve(say_so_much).expect("a parent"),
        Some(COMMAND) => return println!("{TEXT}"),
        Some(ECHO) => return echo(&arguments[2]),
        _ => {}
    }
    for messages in [1, 20] {
        warm(messages);
    }
    cold();
}

/// Says as many messages as the prompt wants.
fn say_so_much(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let count: usize = call.prompt().parse().map_err(|_| ExecuteError::give_up("the prompt is a number"))?;
    (0..count).for_each(|_| call.message(Message::assistant(TEXT)));
    Ok(WorkResult::text(TEXT))
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("this program")
}

/// Times of one figure.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn take(&mut self, act: impl FnOnce()) {
        let began = Instant::now();
        act();
        self.0.push(began.elapsed());
    }

    /// How long it took at most in so many of a hundred cases.
    fn percentile(&self, percent: usize) -> Duration {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        sorted[sorted.len() * percent / 100]
    }

    fn per_second(&self) -> f64 {
        self.0.len() as f64 / self.0.iter().sum::<Duration>().as_secs_f64()
    }

    fn print(&self, figure: &str, messages: usize, floor: &Times) {
        let (per_second, p50, p99) = (self.per_second(), self.percentile(50), self.percentile(99));
        let ratio = p50.as_secs_f64() / floor.percentile(50).as_secs_f64();
        println!(
            "figure={figure} messages={messages} per_second={per_second:.0} p50={p50:.1?} p99={p99:.1?} ratio={ratio:.2}"
        );
    }
}

/// A pool of one worker, and how many units it has had.
struct Units {
    pool: WorkPool,
    count: usize,
}

impl Units {
    fn by(executor: impl Executor) -> Units {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("bench")).expect("a job");
        let pool = WorkPool::builder(job.id, executor, repository).max_workers(1).start().expect("a pool");
        pool.await_init_complete().expect("it comes up");
        Units { pool, count: 0 }
    }

    fn ask(&mut self, messages: usize) {
        self.count += 1;
        let unit = NewUnit::new(self.count.to_string());
        let handle = self.pool.enqueue(unit, messages.to_string()).expect("there is room");
        let unit = handle.wait().expect("it ends");
        assert_eq!(unit.output.as_deref().map(str::trim_end), Some(TEXT), "{:?}", unit.failure);
    }

    fn end(self) {
        self.pool.stop(Stop::Drain).expect("an orderly end");
    }
}

fn workers() -> WorkerProcesses {
    WorkerProcesses::new(WorkerCommand::new(this_program()).arg(WORKER), Keep::up_to(1))
        .expect("settings that make sense")
}

/// So many units of so many messages by a process that is there.
fn warm(messages: usize) {
    let (mut echo, mut closure, mut worker) = (Echo::start(), Units::by(say_so_much), Units::by(workers()));
    let mut rounds = || {
        let (mut floor, mut closures, mut queries) = (Times::default(), Times::default(), Times::default());
        for _ in 0..ROUNDS {
            floor.take(|| echo.ask(messages));
            closures.take(|| closure.ask(messages));
            queries.take(|| worker.ask(messages));
        }
        (floor, closures, queries)
    };
    // The first rounds bring in what is there once.
    rounds();
    let (floor, closures, queries) = rounds();
    floor.print("ping_pong", messages, &floor);
    closures.print("closure", messages, &floor);
    queries.print("worker", messages, &floor);
    let added = queries.percentile(50).saturating_sub(closures.percentile(50));
    let ratio = added.as_secs_f64() / floor.percentile(50).as_secs_f64();
    println!("figure=protocol messages={messages} added_p50={added:.1?} ratio={ratio:.2}");
    echo.end();
    closure.end();
    worker.end();
}

/// One unit by a process that was kept, and by one that is started for it.
fn cold() {
    let mut kept = Units::by(workers());
    let mut command = Units::by(CommandExecutor::new(this_program()).arg(COMMAND));
    // The one that is kept was started before.
    kept.ask(1);
    let (mut warm, mut started, mut commands) = (Times::default(), Times::default(), Times::default());
    for _ in 0..COLD_ROUNDS {
        warm.take(|| kept.ask(1));
        commands.take(|| command.ask(1));
        let mut fresh = Units::by(workers());
        started.take(|| fresh.ask(1));
        fresh.end();
    }
    warm.print("warm", 1, &warm);
    started.print("cold_worker", 1, &warm);
    commands.print("cold_command", 1, &warm);
    kept.end();
    command.end();
}

/// A process that answers lines with lines, seen from here.
struct Echo {
    process: Child,
    stream: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Echo {
    fn start() -> Echo {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("echo");
        let listener = UnixListener::bind(&path).expect("a socket");
        let process = Command::new(this_program()).arg(ECHO).arg(&path).spawn().expect("a process");
        let (stream, _) = listener.accept().expect("a connection");
        Echo { process, stream: BufReader::new(stream), line: Vec::new() }
    }

    /// Says a line that ends with how many are to come back: as many as messages, and one for the answer.
    fn ask(&mut self, messages: usize) {
        let words = format!("{:>QUERY_BYTES$}\n", messages + 1);
        self.stream.get_mut().write_all(words.as_bytes()).expect("a process that listens");
        for _ in 0..=messages {
            self.line.clear();
            self.stream.read_until(b'\n', &mut self.line).expect("a line");
            assert_eq!(self.line.len(), MESSAGE_BYTES + 1);
        }
    }

    fn end(mut self) {
        drop(self.stream);
        self.process.wait().expect("a child");
    }
}

/// That process: a write for each line, as a worker says each message at once.
fn echo(path: &str) {
    let mut stream = BufReader::new(UnixStream::connect(path).expect("a parent"));
    let (answer, mut line) = (format!("{TEXT:>MESSAGE_BYTES$}\n"), String::new());
    while stream.read_line(&mut line).expect("a line") > 0 {
        let count: usize = line.trim().parse().expect("a number");
        for _ in 0..count {
            stream.get_mut().write_all(answer.as_bytes()).expect("a parent that listens");
        }
        line.clear();
    }
}
