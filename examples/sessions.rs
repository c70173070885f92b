//! Conversations that keep to their workers: each worker has a few at a time, and remembers what was said in them.
//!
//! ```text
//! cargo run --example sessions
//! ```
//!
//! Needs nothing: the assistant only counts what it has heard. What it knows of a conversation is on one worker and nowhere else, so every
//! turn has to go there, after the one before; that is what `Affinity::StrictQueue` is for. One conversation asks for too much: its
//! worker breaks, and all that were on it go on elsewhere, from the beginning.

use std::collections::HashMap;
use std::error::Error;
use std::sync::Mutex;

use workcrew::{
    Affinity, Archive, Call, ExecuteError, Executor, MemoryRepository, NewJob, NewUnit, Repository, RetryPolicy,
    Scaling, Stop, WorkPool, WorkResult, WorkerId,
};

const PEOPLE: [&str; 6] = ["ada", "barbara", "edsger", "grace", "leslie", "tony"];
const TURNS: usize = 5;

/// What each worker knows of the conversations that are with it.
#[derive(Default)]
struct Assistant {
    heard: Mutex<HashMap<(WorkerId, String), usize>>,
}

impl Executor for Assistant {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let person = call.unit().options.affinity_key.clone().unwrap_or_default();
        if call.prompt().contains("everything") && call.attempt_number() == 1 {
            return Err(ExecuteError::broken("out of memory"));
        }
        let mut heard = self.heard.lock().map_err(|_| ExecuteError::broken("it panicked before"))?;
        let turns = heard.entry((call.worker_id().clone(), person)).or_default();
        *turns += 1;
        Ok(WorkResult::text(format!("{} has heard {turns} of your turns", call.worker_id())))
    }

    fn end_worker(&self, worker_id: &WorkerId) {
        if let Ok(mut heard) = self.heard.lock() {
            heard.retain(|(worker, _), _| worker != worker_id);
        }
    }

    fn name(&self) -> &str {
        "an assistant"
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("conversations"))?;
    let pool = WorkPool::builder(job.id, Assistant::default(), repository.clone())
        .max_workers(2)
        .worker_capacity(3)
        .scaling(Scaling::Fixed)
        .affinity(Affinity::StrictQueue)
        .retry(RetryPolicy::immediate())
        .start()?;

    // All at once: what has to wait for its worker waits in line, and keeps nobody else waiting.
    let mut turns = Vec::new();
    for turn in 1..=TURNS {
        for person in PEOPLE {
            let prompt = if (turn, person) == (3, "edsger") { "Tell me everything." } else { "Go on." };
            let unit = NewUnit::new(format!("{person}, turn {turn}")).affinity_key(person);
            turns.push(pool.enqueue(unit, prompt)?);
        }
    }
    for turn in &turns {
        let unit = turn.wait()?;
        println!("{:<16} {}", unit.id.as_str(), unit.output.unwrap_or_default());
    }

    for person in PEOPLE {
        println!("{person} was with {}", workers_of(&repository, &turns, person)?.join(", then with "));
    }
    println!("{}", pool.stop(Stop::Drain)?);
    Ok(())
}

/// The workers that a conversation was with, in the order of its turns.
fn workers_of(
    archive: &impl Archive,
    turns: &[workcrew::UnitHandle],
    person: &str,
) -> Result<Vec<String>, Box<dyn Error>> {
    let mut workers = Vec::new();
    for turn in turns.iter().filter(|turn| turn.id().starts_with(person)) {
        for attempt in archive.attempts(turn.unit()?.key)? {
            workers.push(attempt.worker_id.to_string());
        }
    }
    workers.dedup();
    Ok(workers)
}
