//! What it costs to run a child that can always be ended, and how soon one ends that does not want to.
//!
//! ```text
//! cargo bench --bench children
//! ```
//!
//! One line for each figure, `name=value` pairs. `ratio` is to the floor of the same run: the same program, started and waited for by the
//! standard library alone. Absolute numbers mean nothing on a machine that is shared.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use workcrew::executor::CommandExecutor;
use workcrew::repository::By;
use workcrew::{MemoryRepository, NewJob, NewUnit, Repository, WorkPool};

const ROUNDS: usize = 300;

/// What is between TERM and KILL.
const KILL_GRACE: Duration = Duration::from_millis(1_500);

fn main() {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    for held_mib in [0, 200] {
        // What a host has in memory is what a fork has to copy the tables of.
        let held = vec![1_u8; held_mib << 20];
        start_to_end(held_mib);
        drop(held);
    }
    for (name, script) in [
        ("obeys", "echo up; exec sleep 999"),
        ("ignores_term", "trap '' TERM; echo up; while :; do sleep 999; done"),
        ("left_its_session", "setsid sh -c 'trap \"\" TERM; echo up; sleep 999' & trap '' TERM; wait; sleep 999"),
        ("stopped_itself", "echo up; kill -STOP $$"),
    ] {
        end(name, script);
    }
}

fn pool(executor: CommandExecutor) -> WorkPool {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let builder = WorkPool::builder(job.id, executor, repository).max_workers(1).kill_grace(KILL_GRACE);
    let pool = builder.start().expect("a pool");
    pool.await_init_complete().expect("it comes up");
    pool
}

/// From the start of a program that does nothing to the end of its unit.
fn start_to_end(held_mib: usize) {
    let floor = || {
        let began = Instant::now();
        let mut command = Command::new("true");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("it runs");
        began.elapsed()
    };
    let pool = pool(CommandExecutor::new("true"));
    let mut number = 0;
    let mut ours = || {
        number += 1;
        let began = Instant::now();
        pool.enqueue(NewUnit::new(number.to_string()), "").expect("there is room").wait().expect("it ends");
        began.elapsed()
    };
    let (mut floors, mut units) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        floors.push(floor());
        units.push(ours());
    }
    let (floor, unit) = (median(&mut floors), median(&mut units));
    let ratio = unit.as_secs_f64() / floor.as_secs_f64();
    println!("figure=start_to_end held_mib={held_mib} floor={floor:.2?} unit={unit:.2?} ratio={ratio:.2}");
}

/// From a cancel to the end of the unit, when nothing of its tree is left.
fn end(name: &str, script: &str) {
    let pool = pool(CommandExecutor::new("sh").args(["-c", script]).ndjson());
    let mut times: Vec<Duration> = (0..10)
        .map(|round| {
            let handle = pool.enqueue(NewUnit::new(round.to_string()), "").expect("there is room");
            // The first message says that it is up.
            handle.messages().next();
            let began = Instant::now();
            pool.cancel(&round.to_string(), By::new("bench", "")).expect("it runs");
            handle.wait().expect("it ends");
            began.elapsed()
        })
        .collect();
    let slowest = times.iter().max().copied().unwrap_or_default();
    let time = median(&mut times);
    println!("figure=end child={name} median={time:.2?} slowest={slowest:.2?} kill_grace={KILL_GRACE:?}");
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
