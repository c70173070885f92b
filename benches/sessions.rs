//! What it is worth to keep Claude Code alive: a unit by a process of its own against one by a process that is there.
//!
//! ```text
//! .ci/real-cli cargo bench --bench sessions
//! ```
//!
//! The script brings the real program and a server that answers at once, so what is measured is the program. One line for each figure,
//! `name=value` pairs; `ratio` is to a process for each unit in the same run. Without the script there is nothing to measure.

use std::time::{Duration, Instant};

use workcrew::executor::claude_cli::Between;
use workcrew::executor::warm::Keep;
use workcrew::{
    ClaudeCli, ClaudeSession, Executor, MemoryRepository, NewJob, NewUnit, Repository, Stop, UnitStatus, WorkPool,
};

const ROUNDS: usize = 20;

fn main() {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let (Ok(program), Ok(url)) = (std::env::var("WORKCREW_REAL_CLAUDE"), std::env::var("WORKCREW_MODELS_URL")) else {
        println!("nothing to measure: run this through `.ci/real-cli`");
        return;
    };
    let home = tempfile::tempdir().expect("a folder");
    let agent = ClaudeCli::new()
        .program(program)
        .model("opus")
        .env("HOME", home.path())
        .env("ANTHROPIC_BASE_URL", url)
        .env("ANTHROPIC_API_KEY", "no key")
        .env("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
    let session = |between| ClaudeSession::new(agent.clone(), between, Keep::up_to(1)).expect("it makes sense");
    let mut pools = [
        ("process_for_each", pool(agent.clone())),
        ("kept_cleared", pool(session(Between::Clear))),
        ("kept_new_process", pool(session(Between::NewProcess))),
    ];
    let mut times: [Vec<Duration>; 3] = Default::default();
    for round in 0..=ROUNDS {
        // They take turns, so that whatever else the machine does is in all of them.
        for ((_, pool), times) in pools.iter_mut().zip(&mut times) {
            let time = unit(pool, round);
            // The first of those that are kept is a cold one too.
            if round > 0 {
                times.push(time);
            }
        }
    }
    let floor = median(&mut times[0]);
    for ((name, pool), times) in pools.into_iter().zip(&mut times) {
        let (time, slowest) = (median(times), times.iter().max().copied().unwrap_or_default());
        let ratio = time.as_secs_f64() / floor.as_secs_f64();
        println!("figure=unit agent={name} median={time:.1?} slowest={slowest:.1?} ratio={ratio:.3}");
        pool.stop(Stop::Drain).expect("it stops");
    }
}

fn pool(executor: impl Executor) -> WorkPool {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let pool = WorkPool::builder(job.id, executor, repository).max_workers(1).start().expect("a pool");
    pool.await_init_complete().expect("it comes up");
    pool
}

fn unit(pool: &WorkPool, round: usize) -> Duration {
    let began = Instant::now();
    let unit = pool.enqueue(NewUnit::new(round.to_string()), "Say something.").expect("there is room");
    assert_eq!(unit.wait().expect("it ends").status, UnitStatus::Completed);
    began.elapsed()
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
