//! Two kinds of work in one program: a pool of many workers drafts answers, a pool of two checks them, and both are kept in one file.
//!
//! ```text
//! cargo run --example two_pools
//! ```
//!
//! Needs nothing: the model is simulated, and the check is a plain function. Each draft, once it is done, is given to the pool that
//! checks. A third pool cannot be started, which harms neither of them. `RUST_LOG=workcrew=info` shows what the pools do.

use std::error::Error;
use std::time::Duration;

use workcrew::{
    Call, ExecuteError, NewJob, NewUnit, PoolHandle, PoolSet, Repository, Simulated, SqliteRepository, Stop, WorkPool,
    WorkResult, WorkUnit,
};

const QUESTIONS: usize = 30;

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let folder = tempfile::tempdir()?;
    let repository = SqliteRepository::open(folder.path().join("two_pools.db"))?;
    let drafts = repository.create_job(&NewJob::named("drafts"))?;
    let checks = repository.create_job(&NewJob::named("checks"))?;

    let checking = WorkPool::builder(checks.id, check, repository.clone()).max_workers(2);
    let to_check = checking.handle();
    let model = Simulated::new().latency(Duration::from_millis(5), Duration::from_millis(40));
    let drafting = WorkPool::builder(drafts.id, model, repository.clone())
        .max_workers(8)
        .on_unit_complete(move |unit, draft| check_next(&to_check, unit, draft));
    let searching = WorkPool::builder(drafts.id, check, repository)
        .init_hook(|_| Err(ExecuteError::give_up("the search engine is down")));

    // The first is the one for calls that name none.
    let pools = PoolSet::builder()
        .pool("drafting", drafting)
        .pool("checking", checking)
        .pool("searching", searching)
        .start()?;
    pools.await_init_complete();
    for broken in pools.broken() {
        println!("Without it, then: {broken}.");
    }

    for question in 1..=QUESTIONS {
        pools.wait_for_available_slot();
        pools.submit_work_unit(NewUnit::new(format!("question-{question:02}")), "What makes a good question?")?;
    }
    let by_hand = pools.enqueue_to("checking", NewUnit::new("by hand"), "A draft that a person wrote.")?;
    println!("By hand: {}.", by_hand.wait()?.output.unwrap_or_default());
    if let Err(refused) = pools.enqueue_to("translating", NewUnit::new("question-01"), "…") {
        println!("Refused: {refused}.");
    }

    // Until neither has anything left to do, nor to give to the other.
    pools.wait_for_completion();
    for (name, summary) in pools.stop(Stop::Drain) {
        println!("{name}: {}", summary?);
    }
    Ok(())
}

/// What is drafted is checked by others, who may take their time: the draft's worker does not wait for them.
fn check_next(pool: &PoolHandle, unit: &WorkUnit, draft: &WorkResult) {
    let draft = draft.output.as_deref().unwrap_or_default();
    if let Err(error) = pool.enqueue(NewUnit::new(unit.id.as_str()), draft) {
        println!("{error}");
    }
}

fn check(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    Ok(WorkResult::text(format!("{} words", call.prompt().split_whitespace().count())))
}
