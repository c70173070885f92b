//! How fast a durable unit is, as a ratio to the best that raw SQLite does with the same rows in the same run.
//!
//! ```text
//! cargo bench --bench storage
//! ```
//!
//! One line for each figure, `name=value` pairs. `units_per_second` are whole lives of a unit: submitted, claimed and
//! started in one step, a conversation of four messages appended, finished with a result and a charge. A caller waits
//! twice, for the first step and for the last. `ratio` is that to the floor above it, which writes the same rows step
//! by step. Absolute numbers mean nothing on a machine that is shared.

mod floor;

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use floor::{MEASURED, MESSAGES, Rate, cpu_us, id, text};
use serde_json::json;
use workcrew::attempt::Provenance;
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::sqlite::{SqliteOptions, SqliteRepository};
use workcrew::repository::{ClaimRequest, Claimant, Intake, Repository, Scope, Slot, Submitted};
use workcrew::{
    AttemptReport, Charge, JobId, Message, Money, NewJob, NewOwner, NewUnit, OwnerId, Process, Tokens, WorkerId,
};

const TTL: Duration = Duration::from_secs(600);

fn main() {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    println!("figure=fsync milliseconds={:.3}", floor::fsync_ms(folder.path()));

    let conversation = 4 * 1024 / MESSAGES;
    let floor = floor::in_its_own_thread(folder.path().join("floor.db"), conversation);
    floor.print_floor("floor");
    for threads in [4, 16, 64, 256] {
        let path = folder.path().join(format!("life-{threads}.db"));
        print(&lives(open(&path, Chain::On), threads, conversation), "life", threads, &floor);
    }
    let unchained = open(&folder.path().join("unchained.db"), Chain::Off);
    print(&lives(unchained, 64, conversation), "life_without_chain", 64, &floor);

    for threads in [4, 64] {
        let path = folder.path().join(format!("queue-{threads}.db"));
        let (submits, claims) = submit_and_claim(open(&path, Chain::On), threads);
        println!("figure=submit threads={threads} per_second={submits:.0} ratio={:.2}", submits / floor.units);
        println!("figure=claim threads={threads} per_second={claims:.0} ratio={:.2}", claims / floor.units);
    }

    let conversation = 1024 * 1024 / MESSAGES;
    let floor = floor::in_its_own_thread(folder.path().join("floor-1mb.db"), conversation);
    floor.print_floor("floor_1mb");
    for threads in [4, 64] {
        let path = folder.path().join(format!("life-1mb-{threads}.db"));
        print(&lives(open(&path, Chain::On), threads, conversation), "life_1mb", threads, &floor);
    }
    let unchained = open(&folder.path().join("unchained-1mb.db"), Chain::Off);
    print(&lives(unchained, 4, conversation), "life_1mb_without_chain", 4, &floor);
}

fn print(rate: &Rate, figure: &str, threads: usize, floor: &Rate) {
    println!(
        "figure={figure} threads={threads} units_per_second={:.0} ratio={:.2} writer_microseconds_per_unit={:.0}",
        rate.units,
        rate.units / floor.units,
        rate.writer_us
    );
}

enum Chain {
    On,
    Off,
}

fn open(path: &Path, chain: Chain) -> SqliteRepository {
    let options = match chain {
        Chain::On => SqliteOptions::new(),
        Chain::Off => SqliteOptions::new().without_chain(),
    };
    options.open(path).expect("a new database")
}

/// Whole lives of units through the repository, by so many threads at once.
fn lives(repository: SqliteRepository, threads: usize, message_bytes: usize) -> Rate {
    let (job_id, owner) = begin(&repository);
    let messages: Vec<Message> = (0..MESSAGES).map(|seed| Message::assistant(text(message_bytes, seed))).collect();
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let barrier = Barrier::new(threads + 1);
    let elapsed = std::thread::scope(|scope| {
        for thread in 0..threads {
            let (repository, messages, begun, done, barrier) = (&repository, &messages, &begun, &done, &barrier);
            scope.spawn(move || {
                let slot = Slot::new(WorkerId::new(format!("w{thread}")).expect("a name"));
                barrier.wait();
                let began = Instant::now();
                while began.elapsed() < MEASURED {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    life(repository, job_id, owner, &slot, id(number), messages);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        barrier.wait();
        Instant::now()
    })
    .elapsed();
    let lives = done.into_inner();
    Rate { units: lives as f64 / elapsed.as_secs_f64(), writer_us: cpu_us("workcrew-writer") / lives as f64 }
}

fn begin(repository: &SqliteRepository) -> (JobId, OwnerId) {
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let process = Process::this(&SystemClock.boot_id());
    let owner = repository.register_owner(&NewOwner::new(process, "bench")).expect("an owner");
    (job.id, owner)
}

fn life(repository: &SqliteRepository, job_id: JobId, owner: OwnerId, slot: &Slot, id: String, messages: &[Message]) {
    let unit = NewUnit::new(id).prompt("Answer at length.").payload(json!({ "page": 1 }));
    let claimant = Claimant::new(owner, TTL).starting(Provenance::of("bench"));
    let Submitted::Claimed(claim) = repository.submit(job_id, &unit, &claimant, slot).expect("room") else {
        panic!("a fresh unit is claimed");
    };
    let lease = &claim.lease;
    repository.append(lease, 0, messages).expect("a lease that holds");
    let tokens = Tokens { input: 1_000, output: 1_000, ..Tokens::default() };
    let report = AttemptReport::completed().output("Done.").result(json!({ "pages": 1 })).charge(Charge::reported(
        "large",
        tokens,
        Money::from_nanos(18_000_000),
    ));
    repository.finish(lease, &report).expect("a lease that holds");
}

/// Units inserted one by one, then claimed one by one.
fn submit_and_claim(repository: SqliteRepository, threads: usize) -> (f64, f64) {
    let (job_id, owner) = begin(&repository);
    let units_each = 32_000 / threads;
    let timed = |work: &(dyn Fn(usize) + Sync)| {
        let began = Instant::now();
        std::thread::scope(|scope| {
            for thread in 0..threads {
                scope.spawn(move || work(thread));
            }
        });
        (units_each * threads) as f64 / began.elapsed().as_secs_f64()
    };
    let submits = timed(&|thread| {
        for number in 0..units_each {
            let unit = NewUnit::new(id(number * threads + thread)).prompt("Answer at length.");
            repository.insert(job_id, &[unit], Intake::Open).expect("room");
        }
    });
    let claims = timed(&|thread| {
        for number in 0..units_each {
            let slot = Slot::new(WorkerId::new(format!("w{thread}-{number}")).expect("a name"));
            let request = ClaimRequest::new(job_id, Claimant::new(owner, TTL), Scope::Pending, vec![slot]);
            assert_eq!(repository.claim(&request).expect("a claim").len(), 1);
        }
    });
    (submits, claims)
}
