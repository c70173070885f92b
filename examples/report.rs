//! How do I show a batch to somebody? 160 units go through three simulated models, and `report.html` shows what became of them.
//!
//! ```text
//! cargo run --release --example report               # about 10 seconds, into report.html
//! cargo run --release --example report -- other.html
//! ```
//!
//! The page opens from disk and needs no network. One of the models has no price, some attempts fail, some hang until their
//! time is up: look at what the page says of them.

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::time::Duration;

use chrono::DateTime;
use serde_json::json;
use workcrew::audit::report::{self, Report};
use workcrew::{
    Call, Executor, JobId, MemoryRepository, Money, NewJob, NewUnit, Price, Prompt, Repository, RetryPolicy, Scaling,
    Simulated, Stop, WorkPool,
};

const UNITS: u64 = 160;
const WORKERS: usize = 6;

fn main() -> Result<(), Box<dyn Error>> {
    env_logger::init();
    let path = PathBuf::from(std::env::args_os().nth(1).unwrap_or_else(|| "report.html".into()));
    let repository = MemoryRepository::new();
    let job = work(&repository)?;

    let mut page = BufWriter::new(File::create(&path)?);
    let written = report::write(&repository, &Report::new().job(job), &mut page)?;
    page.flush()?;
    println!("{} units, {} messages: open {}", written.units, written.messages, path.display());
    Ok(())
}

/// A batch such as there are many: most of it goes well.
fn work(repository: &MemoryRepository) -> Result<JobId, Box<dyn Error>> {
    let template = "Summarise page {{ page }} of “{{ book }}” in one sentence, and name every place that it mentions.";
    let job = repository.create_job(&NewJob::named("The Voyage of the Beagle").template(template))?.id;
    let models = models();
    let by_size = move |call: &Call<'_>| models[call.unit().payload["page"].as_u64().map_or(0, kind_of)].execute(call);
    let pool = WorkPool::builder(job, by_size, repository.clone())
        .max_workers(WORKERS)
        .scaling(Scaling::Fixed)
        .timeout(Duration::from_millis(1_800))
        .retry(RetryPolicy::exponential(Duration::from_millis(100), Duration::from_secs(1)))
        .start()?;
    for page in 1..=UNITS {
        let payload = json!({ "page": page, "book": "The Voyage of the Beagle" });
        pool.wait_for_available_slot();
        pool.submit_work_unit(NewUnit::new(format!("page-{page:03}")).payload(payload).max_retries(2), Prompt::OfUnit)?;
    }
    pool.wait_for_completion();
    pool.stop(Stop::Drain)?;
    Ok(job)
}

/// Which model a page is for: most are for the small one.
fn kind_of(page: u64) -> usize {
    match page % 8 {
        0 | 3 | 5 => 0,
        7 => 2,
        _ => 1,
    }
}

/// A large model, a small one, and one whose price nobody knows.
fn models() -> [Simulated; 3] {
    let price = |input: i64, output: i64| {
        let per_million = |cents: i64| Money::from_nanos(cents * 10_000_000);
        let price = Price::new(DateTime::UNIX_EPOCH).input(per_million(input)).output(per_million(output));
        price.cache_read(per_million(input / 10)).cache_write(per_million(input * 5 / 4))
    };
    let common = || Simulated::new().seed(7).failures(0.13).give_ups(0.015).hangs(0.012);
    let ms = Duration::from_millis;
    [
        common().model("large-4").price(price(300, 1_500)).latency(ms(120), ms(1_100)).turns(6),
        common().model("small-4").price(price(60, 300)).latency(ms(50), ms(600)),
        common().model("local-70b").price(Price::new(DateTime::UNIX_EPOCH)).latency(ms(150), ms(900)),
    ]
}
