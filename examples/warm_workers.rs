//! Processes that stay alive: started once, asked again and again, each session by the process that remembers it.
//!
//! ```text
//! cargo run --example warm_workers
//! ```
//!
//! The workers are `examples/worker.py`, which speaks the protocol of `docs/worker-protocol.md` without any of our code. Where there is no
//! Python, this program is its own worker: started by `WorkerProcesses`, it finds out where its parent is and serves it.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Mutex;

use serde_json::json;
use workcrew::executor::warm::{Keep, ProcessEvent};
use workcrew::executor::{WorkerCommand, WorkerProcesses};
use workcrew::{
    Affinity, Call, Charge, ExecuteError, Executor, MemoryRepository, Message, Money, NewJob, NewUnit, Repository,
    Stop, Tokens, WorkPool, WorkResult, ipc,
};

const PEOPLE: [&str; 2] = ["ada", "grace"];
const TURNS: usize = 3;

fn main() -> Result<(), Box<dyn Error>> {
    if std::env::var_os(ipc::SOCKET_VARIABLE).is_some() {
        return serve();
    }
    // Two for whatever comes, and one for each session.
    let keep = Keep::up_to(2 + PEOPLE.len()).observer(tell);
    let python = WorkerCommand::new("python3").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/examples/worker.py"));
    let mut workers = WorkerProcesses::new(python, keep.clone())?;
    if let Err(missing) = workers.is_available() {
        println!("{missing}. So this program is its own worker.");
        workers = WorkerProcesses::new(WorkerCommand::new(std::env::current_exe()?), keep)?;
    }

    let processes = workers.processes();
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("words"))?;
    let pool = WorkPool::builder(job.id, workers, repository)
        .max_workers(2)
        .affinity(Affinity::StrictQueue)
        .on_unit_failed(|unit, failure| eprintln!("{}: {failure}", unit.id))
        .start()?;

    let pages = (1..=20).map(|page| pool.enqueue(NewUnit::new(format!("page {page}")), "How many words are these?"));
    for page in pages.collect::<Result<Vec<_>, _>>()? {
        page.wait()?;
    }
    for process in processes.list() {
        println!("process {} has had {} of the 20 pages", process.number, process.queries_processed);
    }

    // What was said in a session is known to one process and nowhere else.
    let mut turns = Vec::new();
    for turn in 1..=TURNS {
        for person in PEOPLE {
            let unit = NewUnit::new(format!("{person}, turn {turn}")).affinity_key(person);
            turns.push(pool.enqueue(unit, "And how many are these?")?);
        }
    }
    for turn in turns {
        let unit = turn.wait()?;
        let knows = unit.result.unwrap_or_default();
        println!("{}: process {} has heard {} of them, for {}", unit.id, knows["pid"], knows["turn"], unit.cost);
    }

    println!("{}", pool.stop(Stop::Drain)?);
    println!("{} processes are left", processes.list().len());
    Ok(())
}

/// Tells of the processes, but not of every query.
fn tell(event: &ProcessEvent<'_>) {
    use ProcessEvent::{Crashed, Ended, Ready, ShuttingDown, Starting};
    if matches!(event, Starting { .. } | Ready { .. } | ShuttingDown { .. } | Ended { .. } | Crashed { .. }) {
        println!("{event}");
    }
}

/// The other side: the same worker in Rust, which is any executor, in a process of its own.
fn serve() -> Result<(), Box<dyn Error>> {
    let turns = Mutex::new(BTreeMap::new());
    ipc::serve(move |call: &Call<'_>| {
        let mut turns = turns.lock().map_err(|_| ExecuteError::broken("it panicked before"))?;
        let session = call.unit().options.affinity_key.clone().unwrap_or(call.unit().id.to_string());
        let turn = turns.entry(session).or_insert(0);
        *turn += 1;
        let words = call.prompt().split_whitespace().count() as u64;
        let tokens = Tokens { input: words, output: 2, ..Tokens::default() };
        call.usage(Charge::reported("toy", tokens, Money::from_nanos(3_000 * words as i64 + 2 * 15_000)));
        call.message(Message::assistant(format!("{words} words")));
        Ok(WorkResult::text(format!("{words} words")).json(json!({ "pid": std::process::id(), "turn": turn })))
    })?;
    Ok(())
}
