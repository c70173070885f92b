//! How is a unit kept? Twenty units are taken through the record by hand, by two workers, into `batch.db`.
//!
//! ```text
//! cargo run --release --example record
//! ```
//!
//! Run it again and nothing is done twice; kill it in the middle and the next run goes on at once.

use std::error::Error;
use std::time::Duration;

use serde_json::json;
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::sqlite::SqliteRepository;
use workcrew::repository::{Claimant, Slot, Submitted};
use workcrew::{
    Archive, AttemptReport, Beginning, Charge, Claim, Failure, FailureKind, Message, NewJob, NewOwner, NewUnit, Next,
    Part, Price, Process, Repository, Role, Tokens, WorkUnit, WorkerId, audit,
};

const UNITS: u32 = 20;
const WORKERS: u32 = 2;
const LEASE: Duration = Duration::from_secs(60);

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let repository = SqliteRepository::open("batch.db")?;
    let job = repository.create_job(&NewJob::named("capitals").template("What is the capital of {{ country }}?"))?;
    let owner = repository.register_owner(&NewOwner::new(Process::this(&SystemClock.boot_id()), "example record"))?;
    // What a process that died was working on is free again, whatever its leases say.
    let freed = repository.expire(1_000)?;
    if !freed.is_empty() {
        println!("{} units were left behind by a process that died; they are done again", freed.len());
    }

    let workers: Vec<Slot> =
        (1..=WORKERS).map(|number| WorkerId::new(format!("w{number}")).map(Slot::new)).collect::<Result<_, _>>()?;
    let mut executed = 0;
    for (number, slot) in (1..=UNITS).zip(workers.iter().cycle()) {
        let unit = NewUnit::new(format!("country-{number:02}")).payload(json!({ "country": format!("C{number}") }));
        // An attempt that fails frees its worker, and is followed by another until there is none left.
        while let Submitted::Claimed(claim) = repository.submit(job.id, &unit, &Claimant::new(owner, LEASE), slot)? {
            work_on(&repository, &claim, number)?;
            executed += 1;
        }
    }
    repository.end_owner(owner)?;

    print_summary(&repository, job.id, executed)?;
    let verification = audit::verify(&repository)?;
    println!("{verification}");
    if !verification.is_clean() {
        return Err("the record does not hold".into());
    }
    Ok(())
}

/// What an executor does: say what it is about to do, everything it hears, and how it ended.
fn work_on(repository: &SqliteRepository, claim: &Claim, number: u32) -> Result<(), Box<dyn Error>> {
    let country = claim.unit.payload["country"].as_str().unwrap_or_default();
    let prompt = format!("What is the capital of {country}?");
    repository.start(&claim.lease, &Beginning::default().rendered_prompt(prompt.as_str()))?;
    let question = [Message::user(prompt)];
    repository.append(&claim.lease, 0, &question)?;

    // Every seventh unit fails once, so that there is something to look at.
    if number.is_multiple_of(7) && claim.lease.attempt_number == 1 {
        let failure = Failure::new(FailureKind::EXECUTOR, "the model is overloaded");
        let next = Next::Retry { after: Duration::ZERO };
        repository.finish(&claim.lease, &AttemptReport::failed(failure, next))?;
        return Ok(());
    }

    let answer = format!("{country} City");
    let said = [
        Message::new(Role::Assistant).part(Part::tool_use("t1", "search", json!({ "query": country }))),
        Message::new(Role::Tool).part(Part::tool_result("t1", answer.as_str())),
        Message::assistant(answer.as_str()),
    ];
    repository.append(&claim.lease, 1, &said)?;
    let price = Price::new("2026-01-01T00:00:00Z".parse()?).input("3".parse()?).output("15".parse()?);
    let tokens = Tokens { input: 412, output: 35, ..Tokens::default() };
    let report = AttemptReport::completed().output(answer).charge(Charge::priced("large", tokens, price));
    repository.finish(&claim.lease, &report)?;
    Ok(())
}

fn print_summary(repository: &SqliteRepository, job_id: workcrew::JobId, executed: u32) -> Result<(), Box<dyn Error>> {
    let counts = repository.counts(job_id)?;
    let costs = repository.costs(Some(job_id))?;
    println!("{} of {} units completed, {executed} executed just now", counts.completed, counts.total());
    println!("all attempts cost {} for {} tokens", costs.total(), costs.tokens().total());
    print_conversation(repository, &repository.unit(job_id, "country-07")?)
}

fn print_conversation(repository: &SqliteRepository, unit: &WorkUnit) -> Result<(), Box<dyn Error>> {
    println!("\nunit {}: {}, {} attempts, {}", unit.id, unit.status, unit.attempt_count, unit.cost);
    for attempt in repository.attempts(unit.key)? {
        let outcome = attempt.outcome.map_or("open", |outcome| outcome.name());
        println!("  attempt {} on {}: {outcome}", attempt.key.number, attempt.worker_id);
        for stored in repository.messages(attempt.key, 0, 100)?.items {
            let Some(message) = stored.message()? else { continue };
            println!("    {:<9} {}", message.role, serde_json::to_string(&message.parts)?);
        }
    }
    println!();
    Ok(())
}
