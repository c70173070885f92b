//! A rush and what follows it: units wait in line, urgent ones first; more workers come, and go again; one breaks and is replaced.
//!
//! ```text
//! cargo run --example rush
//! ```
//!
//! Needs nothing: pages are only pretended to be translated. Each translation, once it is done, brings a check with it, which
//! goes before the translations that still wait.

use std::error::Error;
use std::time::Duration;

use workcrew::{
    Call, Event, ExecuteError, MemoryRepository, NewJob, NewUnit, PoolHandle, Prompt, Repository, Scaling, Stop,
    SubmitError, WorkPool, WorkResult, WorkUnit,
};

const PAGES: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("a rush"))?;
    let builder = WorkPool::builder(job.id, translate, repository)
        .min_workers(1)
        .max_workers(6)
        .scaling(Scaling::Threshold { queued: 5, idle: Duration::from_millis(300) })
        // Room for every page, or for the check that takes its place.
        .max_queue_size(PAGES)
        .observer(tell_of_workers);
    let handle = builder.handle();
    let pool = builder.on_unit_complete(move |unit, _| check_next(&handle, unit)).start()?;
    pool.await_init_complete()?;

    for page in 1..=PAGES {
        line_up(&pool, NewUnit::new(format!("page-{page:02}")))?;
    }
    pool.wait_for_completion();
    let rush = pool.stats();
    println!("The rush is over: {} units, {} of them had to wait in line.", rush.completed, rush.queued);
    println!("{} executions broke their workers, and were done again by others.", rush.errors);

    // Whoever is idle for long enough goes, one at a time, down to the minimum.
    while pool.stats().total_workers > 1 {
        std::thread::sleep(Duration::from_millis(50));
    }
    println!("{}", pool.stop(Stop::Drain)?);
    Ok(())
}

/// Puts a unit in line. A full queue is a reason to wait for a place, not to give up.
fn line_up(pool: &WorkPool, unit: NewUnit) -> Result<(), SubmitError> {
    match pool.enqueue(unit, "Translate this page.") {
        Err(refused) if refused.is_saturated() => {
            pool.wait_for_available_slot();
            pool.enqueue(*refused.unit, Prompt::OfUnit).map(drop)
        }
        answer => answer.map(drop),
    }
}

/// Follow-up work, from a callback: it must not wait, and so it is put in line too.
fn check_next(pool: &PoolHandle, unit: &WorkUnit) {
    if let Some(page) = unit.id.as_str().strip_prefix("page-") {
        let check = NewUnit::new(format!("check-{page}")).priority(1);
        if let Err(error) = pool.enqueue(check, "Compare the translation with the page.") {
            println!("{error}");
        }
    }
}

/// Takes a moment, as a model would. Every tenth page breaks the first worker that gets it.
fn translate(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    call.cancel_token().wait_timeout(Duration::from_millis(15));
    if call.unit().id.as_str().ends_with("0") && call.attempt_number() == 1 && call.unit().priority == 0 {
        return Err(ExecuteError::broken("the connection was cut"));
    }
    Ok(WorkResult::text("done"))
}

fn tell_of_workers(event: &Event<'_>) {
    match event {
        Event::WorkerReady { worker_id } => println!("{worker_id} is up"),
        Event::WorkerTainted { worker_id, reason } => println!("{worker_id} broke: {reason}"),
        Event::WorkerEnded { worker_id, .. } => println!("{worker_id} has ended"),
        _ => {}
    }
}
