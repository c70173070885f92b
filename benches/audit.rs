//! How long it takes to look at a large batch, and how much memory: 100,000 units.
//!
//! ```text
//! cargo bench --bench audit
//! WORKCREW_BENCH_UNITS=1000000 cargo bench --bench audit
//! ```
//!
//! One line for each figure, `name=value` pairs. Each is measured in a process of its own, whose peak memory is told too. `ratio` is to a floor of
//! the same run: one thread of raw SQLite that reads the rows which the answer is made of and does nothing with them. Absolute numbers
//! mean nothing on a machine that is shared.

use std::hint::black_box;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use serde_json::json;
use workcrew::audit::cost::{CostBy, cost};
use workcrew::audit::failures::failures;
use workcrew::audit::list::{List, Sort, list};
use workcrew::audit::transcript::{self, Detail};
use workcrew::audit::{questions, verify};
use workcrew::repository::UnitFilter;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::{
    Call, Charge, ExecuteError, Message, Money, NewJob, NewUnit, Part, Repository, RetryPolicy, Role, SqliteRepository,
    Stop, Tokens, WorkPool, WorkResult,
};

const JOBS: usize = 4;

/// What is asked, and the statements that read the rows which the answer is made of.
const FIGURES: [(&str, &[&str]); 7] = [
    (
        "list_first_page",
        &[
            "SELECT u.id, u.status, i.unit_type FROM work_units u JOIN unit_inputs i ON i.unit_key = u.key ORDER BY u.key LIMIT 50",
        ],
    ),
    ("list_dearest", &[UNITS, ATTEMPTS, CHARGES]),
    ("show", &["SELECT body, raw FROM messages WHERE unit_key = 777"]),
    ("cost_by_job", &[UNITS, ATTEMPTS, CHARGES]),
    ("failures", &[UNITS, ATTEMPTS, CHARGES]),
    ("verify", &[UNITS, ATTEMPTS, CHARGES, MESSAGES, "SELECT * FROM journal", "SELECT * FROM attempt_results"]),
    ("counts", &["SELECT job_id, status, count(*) FROM work_units GROUP BY 1, 2"]),
];

const UNITS: &str = "SELECT u.*, i.unit_type FROM work_units u JOIN unit_inputs i ON i.unit_key = u.key";
const ATTEMPTS: &str = "SELECT * FROM attempts";
const CHARGES: &str = "SELECT * FROM charges";
const MESSAGES: &str = "SELECT * FROM messages";

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if arguments.iter().any(|argument| argument == "--test") {
        return;
    }
    if let Some(at) = arguments.iter().position(|argument| argument == "--figure") {
        return look(&arguments[at + 1], Path::new(&arguments[at + 2]));
    }
    let units = std::env::var("WORKCREW_BENCH_UNITS").ok().and_then(|units| units.parse().ok()).unwrap_or(100_000);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("audit.db");
    let began = Instant::now();
    fill(&path, units);
    let size_mb = std::fs::metadata(&path).map_or(0, |file| file.len()) / 1_000_000;
    println!("figure=database units={units} size_mb={size_mb} made_in_seconds={:.1}", began.elapsed().as_secs_f64());
    for (figure, statements) in FIGURES {
        let floor = floor(&path, statements);
        let mut asked = Command::new(std::env::current_exe().expect("this program"));
        let output = asked.arg("--figure").arg(figure).arg(&path).output().expect("it can be started again");
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<f64> = text.split_whitespace().filter_map(|number| number.parse().ok()).collect();
        let [ms, peak_mb] = numbers[..] else { panic!("{figure}: {text}{}", String::from_utf8_lossy(&output.stderr)) };
        println!("figure={figure} ms={ms:.2} peak_mb={peak_mb:.0} floor_ms={floor:.2} ratio={:.1}", ms / floor);
    }
}

/// A batch in several jobs, with tools, retries and failures.
fn fill(path: &Path, units: usize) {
    let repository = SqliteRepository::open(path).expect("a new database");
    let execute = |call: &Call<'_>| -> Result<WorkResult, ExecuteError> {
        let number: usize = call.unit().id.as_str()[5..].parse().expect("a number");
        let words = ["apple", "bridge", "cloud", "dragon", "ember", "forest", "garden", "harbour"];
        let text = (0..40).map(|at| words[(number * 7 + at * at) % words.len()]).collect::<Vec<_>>().join(" ");
        call.messages([
            Message::user(call.prompt()),
            Message::assistant("I look.").part(Part::tool_use(
                "t",
                "bash",
                json!({ "command": format!("ls {number}") }),
            )),
            Message::new(Role::Tool).part(Part::tool_result("t", text.clone())),
            Message::assistant(format!("{text} needle-{number}")),
        ]);
        let tokens = Tokens { input: 1_000, output: 100, ..Tokens::default() };
        call.usage(Charge::reported(
            ["large", "small"][number % 2],
            tokens,
            Money::from_nanos(18_000_000 + number as i64),
        ));
        match (number % 50, call.attempt_number()) {
            (0, _) => Err(ExecuteError::give_up(format!("exit code {number}")).kind("command_failed")),
            (1, 1) => Err(ExecuteError::retry(format!("request {number} was refused")).kind("overloaded")),
            _ => Ok(WorkResult::text(text)),
        }
    };
    let execute = Arc::new(execute);
    for job in 0..JOBS {
        let job_id = repository.create_job(&NewJob::named(format!("job {job}"))).expect("a job").id;
        let numbers: Vec<usize> = (0..units).filter(|number| number % JOBS == job).collect();
        for numbers in numbers.chunks(1_000) {
            let new = |number: &usize| NewUnit::new(format!("unit-{number}")).prompt("Summarise what you find.");
            repository.queue_units(job_id, &numbers.iter().map(new).collect::<Vec<_>>()).expect("they are valid");
        }
        let execute = Arc::clone(&execute);
        let pool = WorkPool::builder(job_id, move |call: &Call<'_>| execute(call), repository.clone())
            .max_workers(64)
            .retry(RetryPolicy::immediate())
            .start()
            .expect("a pool");
        pool.process_pending();
        pool.stop(Stop::Drain).expect("it stops");
    }
}

/// Reads rows and drops them.
fn floor(path: &Path, statements: &[&str]) -> f64 {
    let connection = Connection::open(path).expect("the database");
    // Once, so that both find the file in memory.
    read(&connection, statements);
    let began = Instant::now();
    read(&connection, statements);
    milliseconds(began.elapsed())
}

fn read(connection: &Connection, statements: &[&str]) {
    for statement in statements {
        let mut select = connection.prepare(statement).expect("a statement");
        let columns = select.column_count();
        let mut rows = select.query([]).expect("rows");
        while let Some(row) = rows.next().expect("a row") {
            for column in 0..columns {
                black_box(row.get_ref(column).expect("a column"));
            }
        }
    }
}

/// Answers one question in this process, and prints how long that took and how much memory.
fn look(figure: &str, path: &Path) {
    let archive = SqliteArchive::open(path).expect("the database");
    let all = UnitFilter::default();
    let began = Instant::now();
    match figure {
        "list_first_page" => {
            let mut wanted = List::default();
            wanted.limit = 50;
            black_box(list(&archive, &wanted).expect("a list"));
        }
        "list_dearest" => {
            let mut wanted = List::default();
            (wanted.limit, wanted.sort) = (50, Sort::Cost);
            black_box(list(&archive, &wanted).expect("a list"));
        }
        "show" => {
            let unit = questions::find(&archive, None, "unit-777").expect("it is there");
            transcript::write(&archive, &unit, Detail::ALL, &mut io::sink()).expect("it can be read");
        }
        "cost_by_job" => drop(black_box(cost(&archive, &all, CostBy::Job).expect("a bill"))),
        "failures" => drop(black_box(failures(&archive, &all).expect("groups"))),
        "verify" => assert!(verify(&archive).expect("it can be read").is_clean()),
        "counts" => {
            for job in questions::all_jobs(&archive).expect("jobs") {
                black_box(workcrew::Archive::counts(&archive, job.id).expect("counts"));
            }
        }
        other => panic!("no figure {other}"),
    }
    println!("{} {}", milliseconds(began.elapsed()), peak_mb());
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1_000.0
}

/// The most memory that this process ever had.
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().split(' ').next()?.parse::<f64>().ok());
    kilobytes.unwrap_or_default() / 1_000.0
}
