//! How fast a pool is: durable units per second, latency, and what many workers cost.
//!
//! ```text
//! cargo bench --bench throughput
//! ```
//!
//! One line for each figure, `name=value` pairs. `ratio` of a throughput is to the floor of the same run: what one thread of raw SQLite
//! does with the same rows, 64 changes to a transaction (as in bench `storage`). The executor does nothing but say four messages of
//! 1 KB, together. Latencies are given in multiples of one `fsync` of the same run. Absolute numbers mean nothing on a machine that is shared.

mod floor;

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use floor::{MEASURED, MESSAGES, cpu_us, id, task_cpu_us, tasks, text};
use serde_json::json;
use workcrew::{
    Affinity, Call, Charge, Event, ExecuteError, MemoryRepository, Message, Money, NewJob, NewUnit, Repository,
    SqliteRepository, Stop, Tokens, WorkPool, WorkResult,
};

const CONVERSATION_BYTES: usize = 4 * 1024;
const LATENCY_ROUNDS: usize = 1_000;

fn main() {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fsync = floor::fsync_ms(folder.path());
    println!("figure=fsync milliseconds={fsync:.3}");
    let floor = floor::in_its_own_thread(folder.path().join("floor.db"), CONVERSATION_BYTES / MESSAGES);
    floor.print_floor("floor");

    for workers in [4, 16, 64, 256] {
        // A worker and whoever keeps it busy.
        throughput(folder.path(), "throughput", workers, workers, floor.units);
    }
    throughput(folder.path(), "submit_loop", 64, 1, floor.units);
    for enqueuers in [1, 64] {
        queue(folder.path(), enqueuers, floor.units);
    }
    waiting(folder.path());
    latency(folder.path(), fsync);
    dispatch(folder.path(), fsync);
    sessions();
    for workers in [1_000, 10_000] {
        many_workers(folder.path(), workers);
    }
}

fn open(folder: &Path, name: &str) -> SqliteRepository {
    SqliteRepository::open(folder.join(name)).expect("a new database")
}

fn unit(number: usize) -> NewUnit {
    NewUnit::new(id(number)).payload(json!({ "page": 1 }))
}

/// Says what there is to say, and is done.
fn no_op() -> impl Fn(&Call<'_>) -> Result<WorkResult, ExecuteError> + Send + Sync + 'static {
    let messages: Vec<Message> =
        (0..MESSAGES).map(|seed| Message::assistant(text(CONVERSATION_BYTES / MESSAGES, seed))).collect();
    move |call| {
        call.messages(messages.iter().cloned());
        let tokens = Tokens { input: 1_000, output: 1_000, ..Tokens::default() };
        let charge = Charge::reported("large", tokens, Money::from_nanos(18_000_000));
        Ok(WorkResult::text("Done.").json(json!({ "pages": 1 })).charge(charge))
    }
}

/// The submit loop, from so many threads.
fn throughput(folder: &Path, figure: &str, workers: usize, submitters: usize, floor: f64) {
    let repository = open(folder, &format!("{figure}-{workers}.db"));
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let pool = WorkPool::builder(job.id, no_op(), repository).max_workers(workers).start().expect("a pool");
    let begun = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..submitters {
            scope.spawn(|| {
                while began.elapsed() < MEASURED {
                    assert!(pool.wait_for_available_slot());
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    pool.submit_work_unit(unit(number), "Answer at length.").expect("a place that was promised");
                }
            });
        }
    });
    pool.wait_for_completion();
    let elapsed = began.elapsed();
    let completed = pool.stats().completed as f64;
    let writer = cpu_us("workcrew-writer") / completed;
    pool.stop(Stop::Drain).expect("an orderly end");
    let per_second = completed / elapsed.as_secs_f64();
    println!(
        "figure={figure} workers={workers} submitters={submitters} units_per_second={per_second:.0} ratio={:.2} \
         writer_microseconds_per_unit={writer:.0}",
        per_second / floor
    );
}

/// Units that wait in line, put there by so many threads; 64 workers take them.
fn queue(folder: &Path, enqueuers: usize, floor: f64) {
    let repository = open(folder, &format!("queue-{enqueuers}.db"));
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let pool = WorkPool::builder(job.id, no_op(), repository).max_workers(64).max_queue_size(1_000);
    let pool = pool.start().expect("a pool");
    let begun = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..enqueuers {
            scope.spawn(|| {
                while began.elapsed() < MEASURED {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    let mut unit = unit(number);
                    // Whoever finds the queue full lets others go on.
                    while let Err(refused) = pool.enqueue(unit, "Answer at length.") {
                        assert!(refused.is_saturated(), "{refused}");
                        unit = *refused.unit;
                        std::thread::yield_now();
                    }
                }
            });
        }
    });
    pool.wait_for_completion();
    let elapsed = began.elapsed();
    let stats = pool.stop(Stop::Drain).expect("an orderly end").stats;
    let per_second = stats.completed as f64 / elapsed.as_secs_f64();
    println!(
        "figure=queue workers=64 enqueuers={enqueuers} units_per_second={per_second:.0} ratio={:.2} \
         queued_share={:.2}",
        per_second / floor,
        stats.queued as f64 / stats.completed as f64
    );
}

/// What 10,000 units cost that wait in line, and what a pool costs that has nothing to do but to let them wait.
fn waiting(folder: &Path) {
    const UNITS: usize = 10_000;
    let repository = open(folder, "waiting.db");
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let pool = WorkPool::builder(job.id, no_op(), repository).max_workers(64).max_queue_size(UNITS);
    let pool = pool.start().expect("a pool");
    pool.await_init_complete().expect("a pool that is up");
    pool.pause();
    let (threads, memory) = (thread_count(), resident_bytes());
    std::thread::scope(|scope| {
        for first in 0..16 {
            let pool = &pool;
            scope.spawn(move || {
                for number in (first..UNITS).step_by(16) {
                    pool.enqueue(unit(number), "Answer at length.").expect("room in line");
                }
            });
        }
    });
    assert_eq!(pool.stats().queue_size, UNITS);
    let more_threads = thread_count() as i64 - threads as i64;
    let bytes = resident_bytes().saturating_sub(memory) / UNITS as u64;
    println!("figure=waiting units={UNITS} more_threads={more_threads} resident_bytes_per_unit={bytes}");

    // The checkpoint of the log that so many units left behind is not idleness.
    std::thread::sleep(Duration::from_secs(1));
    let (cpu, began) = (process_cpu_us(), Instant::now());
    std::thread::sleep(MEASURED);
    let share = (process_cpu_us() - cpu) / began.elapsed().as_micros() as f64;
    println!("figure=idle threads={} cpu_share={share:.6}", thread_count());
    pool.stop(Stop::Drain).expect("an orderly end");
}

/// One unit at a time: from the call that submits it to the commit that completes it.
fn latency(folder: &Path, fsync_ms: f64) {
    let repository = open(folder, "latency.db");
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let (ended, end): (Sender<Instant>, Receiver<Instant>) = unbounded();
    let pool = WorkPool::builder(job.id, no_op(), repository)
        .observer(move |event: &Event<'_>| {
            if matches!(event, Event::AttemptEnded { .. }) {
                ended.send(Instant::now()).expect("somebody who counts");
            }
        })
        .start()
        .expect("a pool");
    let times = (0..LATENCY_ROUNDS).map(|number| {
        assert!(pool.wait_for_available_slot());
        let began = Instant::now();
        pool.submit_work_unit(unit(number), "Answer at length.").expect("a place that was promised");
        end.recv().expect("an end") - began
    });
    print_latency("latency", "sqlite", times.collect(), fsync_ms);
}

/// One worker that is always busy: from its free slot to the first instruction of the next execution, whose submitter waits.
fn dispatch(folder: &Path, fsync_ms: f64) {
    let sqlite = open(folder, "dispatch.db");
    let memory = MemoryRepository::new();
    for (name, repository) in [("sqlite", Arc::new(sqlite) as Arc<dyn Repository>), ("memory", Arc::new(memory))] {
        let job = repository.create_job(&NewJob::named("bench")).expect("a job");
        let freed: Arc<Mutex<Option<Instant>>> = Arc::default();
        let times: Arc<Mutex<Vec<Duration>>> = Arc::default();
        let executor = {
            let (freed, times) = (Arc::clone(&freed), Arc::clone(&times));
            move |_: &Call<'_>| {
                if let Some(freed) = freed.lock().expect("no panics").take() {
                    times.lock().expect("no panics").push(freed.elapsed());
                }
                Ok(WorkResult::empty())
            }
        };
        let pool = WorkPool::builder(job.id, executor, repository)
            .max_workers(1)
            // The last thing that happens before the slot is free.
            .on_unit_complete(move |_, _| *freed.lock().expect("no panics") = Some(Instant::now()))
            .start()
            .expect("a pool");
        for number in 0..LATENCY_ROUNDS {
            assert!(pool.wait_for_available_slot());
            pool.submit_work_unit(unit(number), "Answer at length.").expect("a place that was promised");
        }
        pool.stop(Stop::Drain).expect("an orderly end");
        let times = std::mem::take(&mut *times.lock().expect("no panics"));
        print_latency("dispatch", name, times, fsync_ms);
    }
}

/// The same in memory where workers could have several units, and where units name a session: as a ratio to where neither is so. Each
/// has fresh pools again and again, and they take turns: how long a thread takes to wake depends on where the system has put it. So it
/// is the fast tenth that is compared.
fn sessions() {
    const TURNS: usize = 20;
    let kinds = [
        ("plain", 1, None),
        ("capacity", 4, None),
        ("hint", 1, Some(Affinity::Hint)),
        ("strict", 1, Some(Affinity::StrictQueue)),
    ];
    let mut times = kinds.map(|_| Vec::new());
    for _ in 0..TURNS {
        for ((_, capacity, affinity), times) in kinds.iter().zip(&mut times) {
            let mut dispatched = Dispatched::new(*capacity);
            for number in 0..2 * LATENCY_ROUNDS / TURNS {
                let unit = NewUnit::new(format!("{number}"));
                dispatched.measure(match *affinity {
                    Some(affinity) => unit.affinity_key(format!("{}", number % 10)).affinity(affinity),
                    None => unit,
                });
            }
            times.extend(dispatched.end());
        }
    }
    let fast = times.map(|mut times| {
        times.sort();
        times[times.len() / 10].as_secs_f64() * 1_000.0
    });
    for ((name, _, _), milliseconds) in kinds.iter().zip(fast) {
        let ratio = milliseconds / fast[0];
        println!("figure=sessions kind={name} p10_milliseconds={milliseconds:.4} ratio={ratio:.2}");
    }
}

/// A pool with one worker, and the times from a call that submits to the first instruction of its execution.
struct Dispatched {
    pool: WorkPool,
    began: Receiver<Instant>,
    times: Vec<Duration>,
}

impl Dispatched {
    fn new(capacity: u32) -> Dispatched {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("bench")).expect("a job");
        let (begin, began) = unbounded();
        let executor = move |_: &Call<'_>| {
            begin.send(Instant::now()).expect("somebody who counts");
            Ok(WorkResult::empty())
        };
        let builder = WorkPool::builder(job.id, executor, repository).max_workers(1).worker_capacity(capacity);
        let pool = builder.start().expect("a pool");
        pool.await_init_complete().expect("a worker");
        Dispatched { pool, began, times: Vec::new() }
    }

    fn measure(&mut self, unit: NewUnit) {
        assert!(self.pool.wait_for_available_slot());
        let submitted = Instant::now();
        let handle = self.pool.submit_work_unit(unit, "Answer at length.").expect("a place that was promised");
        self.times.push(self.began.recv().expect("a beginning") - submitted);
        handle.wait().expect("an end");
    }

    fn end(self) -> Vec<Duration> {
        self.pool.stop(Stop::Drain).expect("an orderly end");
        self.times
    }
}

fn print_latency(figure: &str, repository: &str, mut times: Vec<Duration>, fsync_ms: f64) {
    times.sort();
    let milliseconds = |share: f64| times[((times.len() - 1) as f64 * share) as usize].as_secs_f64() * 1_000.0;
    let (p50, p99) = (milliseconds(0.5), milliseconds(0.99));
    println!(
        "figure={figure} repository={repository} workers=1 p50_milliseconds={p50:.3} p99_milliseconds={p99:.3} \
         p50_fsyncs={:.1} p99_fsyncs={:.1}",
        p50 / fsync_ms,
        p99 / fsync_ms
    );
}

/// Workers that are all busy at once: how long until they are, how much memory they take, how long until they have ended.
fn many_workers(folder: &Path, workers: usize) {
    let repository = open(folder, &format!("many-{workers}.db"));
    let job = repository.create_job(&NewJob::named("bench")).expect("a job");
    let (open_gate, gate) = bounded::<()>(0);
    let executor = move |_: &Call<'_>| {
        // It opens by being dropped.
        let _ = gate.recv();
        Ok(WorkResult::empty())
    };
    let before = resident_bytes();
    let pool = WorkPool::builder(job.id, executor, repository).max_workers(workers).start().expect("a pool");
    pool.await_init_complete().expect("a pool that is up");
    let begun = AtomicUsize::new(0);
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                loop {
                    let number = begun.fetch_add(1, Ordering::Relaxed);
                    if number >= workers {
                        return;
                    }
                    pool.submit_work_unit(unit(number), "Wait.").expect("a free place");
                }
            });
        }
    });
    assert_eq!(pool.busy_count(), workers);
    let started = began.elapsed();
    let memory = resident_bytes().saturating_sub(before) / workers as u64;
    let began = Instant::now();
    drop(open_gate);
    pool.stop(Stop::Drain).expect("an orderly end");
    println!(
        "figure=many_workers workers={workers} start_seconds={:.2} resident_bytes_per_worker={memory} stop_seconds={:.2}",
        started.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
}

/// How many threads this process has; 0 where the system does not tell.
fn thread_count() -> usize {
    tasks().count()
}

/// The time that all threads together, as far as they still live, spent on processors.
fn process_cpu_us() -> f64 {
    tasks().map(task_cpu_us).sum()
}

/// The memory that this process has; 0 where the system does not tell.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    kilobytes.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or_default() * 1024
}
