//! How do I bring my own executor? As a struct that implements `Executor`, or as a closure.
//!
//! ```text
//! cargo run --release --example custom_executor
//! ```
//!
//! The struct counts words line by line, where yours would call a model. One sees what it leaves in the record, and what
//! follows each kind of error: another attempt, one after a pause, a pause of the whole pool, or the end of the unit.

use std::error::Error;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use chrono::Utc;
use serde_json::json;
use workcrew::attempt::Provenance;
use workcrew::{
    Archive, Call, Charge, Cost, Event, ExecuteError, Executor, MemoryRepository, Message, NewJob, NewUnit, Price,
    Repository, RepositoryError, RetryPolicy, Stop, Tokens, WorkPool, WorkResult, WorkUnit,
};

/// Counts words. One value serves all workers at the same time.
struct WordCounter {
    pause_per_line: Duration,
    price: Price,
    calls: AtomicU32,
}

impl Executor for WordCounter {
    fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        // What is told to the call is stored at once, and stays when the attempt fails.
        call.session(format!("session-{}", call.unit().id));
        call.message(Message::user(call.prompt()));

        if call.prompt().trim().is_empty() {
            // It would fail again: the unit is FAILED.
            return Err(ExecuteError::give_up("there is nothing to count").kind("empty"));
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) == 0 {
            // Every unit would fail now: the pool starts nothing until then, and this attempt does not count. With
            // `hold` instead, such as for a wrong key, it waits until somebody calls `resume`.
            let until = Utc::now() + Duration::from_millis(300);
            return Err(ExecuteError::hold_until(until, "the quota is used up").kind("quota"));
        }

        // Another attempt begins where the last one saved how far it was.
        let saved = |name: &str| call.last_checkpoint().and_then(|checkpoint| checkpoint[name].as_u64()).unwrap_or(0);
        let (lines_done, mut words) = (saved("lines"), saved("words"));
        let mut tokens = Tokens::default();
        for (number, line) in (1..).zip(call.prompt().lines()).filter(|(number, _)| *number > lines_done) {
            // A sleep that ends early when the unit is cancelled, its time is up, or the pool stops.
            if let Some(reason) = call.cancel_token().wait_timeout(self.pause_per_line) {
                return Err(ExecuteError::retry(format!("stopped before line {number}: {reason:?}")));
            }
            if line.contains("[smudged]") && call.attempt_number() == 1 {
                // It may go better next time. Any other error that `?` returns is treated like this.
                return Err(ExecuteError::retry(format!("line {number} could not be read")).kind("unreadable"));
            }
            if line.contains("[busy]") && call.attempt_number() == 1 {
                // The provider says when to come back.
                let pause = Duration::from_millis(200);
                return Err(ExecuteError::retry_after(pause, "come back in 200 ms").kind("rate_limited"));
            }
            let words_in_line = line.split_whitespace().count();
            words += words_in_line as u64;
            tokens.input += words_in_line as u64;
            call.message(Message::assistant(format!("line {number} has {words_in_line} words")));
            call.usage(Charge::priced("word-counter-1", tokens, self.price.clone()));
            call.checkpoint(json!({ "lines": number, "words": words }));
        }
        Ok(WorkResult::text(format!("{words} words")).json(json!({ "words": words })))
    }

    fn name(&self) -> &str {
        "word-counter"
    }

    /// What an auditor will want to know of each attempt, without secrets.
    fn provenance(&self) -> Provenance {
        let pause = format!("pause_per_line={:?}", self.pause_per_line);
        Provenance::of(self.name()).program_version("1.0").argument(pause)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let repository = MemoryRepository::new();
    count_words(&repository)?;
    println!("\nThe same as a closure:");
    shout(&repository)
}

fn count_words(repository: &MemoryRepository) -> Result<(), Box<dyn Error>> {
    let executor = WordCounter {
        pause_per_line: Duration::from_millis(20),
        price: Price::new(Utc::now()).input("2.50".parse()?),
        calls: AtomicU32::new(0),
    };
    let job = repository.create_job(&NewJob::named("words"))?;
    let pool = WorkPool::builder(job.id, executor, repository.clone())
        .max_workers(1)
        .retry(RetryPolicy::fixed(Duration::from_millis(50)))
        .observer(tell_pause)
        .start()?;
    let texts = [
        ("plain", "one two three\nfour five"),
        ("smudged", "one two three\nfour five [smudged]"),
        ("busy", "one two three [busy]"),
        ("empty", "   "),
    ];
    for (id, text) in texts {
        pool.wait_for_available_slot();
        pool.submit_work_unit(NewUnit::new(id), text)?;
    }
    pool.wait_for_completion();
    println!();
    for (id, _) in texts {
        print_unit(repository, &repository.unit(job.id, id)?)?;
    }
    println!("In all: {}", pool.stop(Stop::Drain)?);
    Ok(())
}

fn tell_pause(event: &Event<'_>) {
    if let Event::Held { reason, .. } = event {
        println!("The pool starts nothing for a while: {reason}");
    }
}

fn shout(repository: &MemoryRepository) -> Result<(), Box<dyn Error>> {
    let job = repository.create_job(&NewJob::named("shouting"))?;
    let executor = |call: &Call<'_>| Ok(WorkResult::text(call.prompt().to_uppercase()));
    let pool = WorkPool::builder(job.id, executor, repository.clone()).start()?;
    let unit = pool.enqueue(NewUnit::new("hello"), "hello world")?.wait()?;
    print_unit(repository, &unit)?;
    Ok(())
}

fn print_unit(repository: &dyn Archive, unit: &WorkUnit) -> Result<(), RepositoryError> {
    println!("{:<9} {:<10} {}", unit.id, unit.status, unit.output.as_deref().unwrap_or("-"));
    for attempt in repository.attempts(unit.key)? {
        let outcome = attempt.outcome.map_or("open", |outcome| outcome.name());
        let failure = attempt.failure.map_or(String::new(), |failure| format!(", {failure}"));
        let messages = attempt.message_count.unwrap_or(0);
        let cost: Cost = repository.charges(attempt.key)?.iter().map(Charge::cost).sum();
        println!("  attempt {} {outcome:<10} messages: {messages}, cost: {cost}{failure}", attempt.key.number);
    }
    Ok(())
}
