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

use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior, params};
use serde_json::json;
use workcrew::attempt::Provenance;
use workcrew::clock::{Clock, SystemClock};
use workcrew::repository::sqlite::{SqliteOptions, SqliteRepository};
use workcrew::repository::{ClaimRequest, Claimant, Intake, Repository, Scope, Slot, Submitted};
use workcrew::{
    AttemptReport, Charge, JobId, Message, Money, NewJob, NewOwner, NewUnit, OwnerId, Process, Tokens, WorkerId,
};

const CHANGES_PER_TRANSACTION: usize = 64;
const MESSAGES: usize = 4;
const TTL: Duration = Duration::from_secs(600);

/// How long each figure is measured.
const MEASURED: Duration = Duration::from_secs(4);

fn main() {
    // `cargo test` runs benches too, to see that they work; that is not the time to measure.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    println!("figure=fsync milliseconds={:.3}", fsync_ms(folder.path()));

    let conversation = 4 * 1024 / MESSAGES;
    let floor = floor_in_its_own_thread(folder.path().join("floor.db"), conversation);
    floor.print_floor("floor");
    for threads in [4, 16, 64, 256] {
        let path = folder.path().join(format!("life-{threads}.db"));
        lives(open(&path, Chain::On), threads, conversation).print("life", threads, &floor);
    }
    let unchained = open(&folder.path().join("unchained.db"), Chain::Off);
    lives(unchained, 64, conversation).print("life_without_chain", 64, &floor);

    for threads in [4, 64] {
        let path = folder.path().join(format!("queue-{threads}.db"));
        let (submits, claims) = submit_and_claim(open(&path, Chain::On), threads);
        println!("figure=submit threads={threads} per_second={submits:.0} ratio={:.2}", submits / floor.units);
        println!("figure=claim threads={threads} per_second={claims:.0} ratio={:.2}", claims / floor.units);
    }

    let conversation = 1024 * 1024 / MESSAGES;
    let floor = floor_in_its_own_thread(folder.path().join("floor-1mb.db"), conversation);
    floor.print_floor("floor_1mb");
    for threads in [4, 64] {
        let path = folder.path().join(format!("life-1mb-{threads}.db"));
        lives(open(&path, Chain::On), threads, conversation).print("life_1mb", threads, &floor);
    }
    let unchained = open(&folder.path().join("unchained-1mb.db"), Chain::Off);
    lives(unchained, 4, conversation).print("life_1mb_without_chain", 4, &floor);
}

/// In a thread with a name, by which its processor time is found.
fn floor_in_its_own_thread(path: std::path::PathBuf, message_bytes: usize) -> Rate {
    let thread = std::thread::Builder::new().name("storage-floor".to_owned());
    let floor = thread.spawn(move || floor(&path, message_bytes)).expect("a thread");
    floor.join().expect("the floor is solid")
}

impl Rate {
    fn print_floor(&self, figure: &str) {
        println!(
            "figure={figure} units_per_second={:.0} writer_microseconds_per_unit={:.0} \
             changes_per_transaction={CHANGES_PER_TRANSACTION}",
            self.units, self.writer_us
        );
    }

    fn print(&self, figure: &str, threads: usize, floor: &Rate) {
        println!(
            "figure={figure} threads={threads} units_per_second={:.0} ratio={:.2} writer_microseconds_per_unit={:.0}",
            self.units,
            self.units / floor.units,
            self.writer_us
        );
    }
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

/// What the disk takes to make 4 KB durable, on average.
fn fsync_ms(folder: &Path) -> f64 {
    use std::os::unix::fs::FileExt;
    const ROUNDS: u32 = 200;
    let file = std::fs::File::create(folder.join("fsync")).expect("a file");
    let began = Instant::now();
    for round in 0..ROUNDS {
        file.write_all_at(&[0; 4096], u64::from(round) * 4096).expect("room for a page");
        file.sync_all().expect("a disk that answers");
    }
    began.elapsed().as_secs_f64() * 1_000.0 / f64::from(ROUNDS)
}

/// Text that compresses like a conversation does, unlike any other.
fn text(length: usize, seed: usize) -> String {
    const WORDS: [&str; 16] = [
        "the", "function", "returns", "a", "value", "which", "error", "let", "result", "of", "file", "path", "tool",
        "call", "answer", "and",
    ];
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(WORDS[(state >> 60) as usize]);
        // A number now and then, as in code and logs.
        if state >> 58 & 3 == 0 {
            text.push_str(&(state >> 40 & 0xffff).to_string());
        }
        text.push(' ');
    }
    text.truncate(length);
    text
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

/// Whole lives, and what each took of the thread that writes.
///
/// The second number hardly depends on what else the machine does.
struct Rate {
    units: f64,
    writer_us: f64,
}

/// The time that the thread of this name spent on a processor; 0 where the system does not tell.
fn cpu_us(thread: &str) -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let is_meant = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == thread)
    };
    let schedstat = tasks.into_iter().find(is_meant).map(|task| task.path().join("schedstat"));
    let schedstat = schedstat.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let nanoseconds: f64 = schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_default();
    nanoseconds / 1_000.0
}

/// Names in the order of insertion, as most callers give them and as generated ones are.
fn id(number: usize) -> String {
    format!("unit-{number:09}")
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

/// The rows of a unit's life by the best raw loop: one thread, prepared statements, no hashes, no questions asked.
fn floor(path: &Path, message_bytes: usize) -> Rate {
    let connection = Connection::open(path).expect("a new file");
    connection.set_prepared_statement_cache_capacity(64);
    connection.set_db_config(rusqlite::config::DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).expect("an option");
    connection.pragma_update(None, "page_size", 16 * 1024).expect("an empty file");
    connection.pragma_update(None, "journal_mode", "WAL").expect("a local disk");
    connection.pragma_update(None, "synchronous", "FULL").expect("a pragma");
    connection.pragma_update(None, "foreign_keys", true).expect("a pragma");
    connection.pragma_update(None, "wal_autocheckpoint", 4_096).expect("a pragma");
    connection.pragma_update(None, "cache_size", -64 * 1024).expect("a pragma");
    connection.execute_batch(include_str!("../schema.sql")).expect("the schema");
    connection
        .execute_batch(
            "INSERT INTO jobs (id, name, settings, created_at) VALUES (1, 'bench', x'6e756c6c', 0);
             INSERT INTO owners (id, instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at,
                                 heartbeat_at)
             VALUES (1, 'i', 'bench', 1, 1, '', 0, 0, 0);",
        )
        .expect("two rows");
    let texts: Vec<String> = (0..MESSAGES)
        .map(|seed| format!(r#"{{"parts":[{{"type":"text","text":"{}"}}]}}"#, text(message_bytes, seed)))
        .collect();
    let mut floor = Floor { connection: &connection, texts: &texts, units: 0, journal_rows: 0 };
    let began = Instant::now();
    while began.elapsed() < MEASURED {
        floor.run_units().expect("room");
    }
    let units = floor.units as f64;
    Rate { units: units / began.elapsed().as_secs_f64(), writer_us: cpu_us("storage-floor") / units }
}

struct Floor<'a> {
    connection: &'a Connection,
    texts: &'a [String],
    units: i64,
    journal_rows: i64,
}

impl Floor<'_> {
    /// As many units as make each of their four changes fill a transaction.
    fn run_units(&mut self) -> rusqlite::Result<()> {
        let keys = self.units + 1..=self.units + CHANGES_PER_TRANSACTION as i64;
        for step in [Floor::submit, Floor::start, Floor::append, Floor::finish] {
            let transaction = Transaction::new_unchecked(self.connection, TransactionBehavior::Immediate)?;
            for key in keys.clone() {
                step(self, key)?;
            }
            transaction.commit()?;
        }
        self.units = *keys.end();
        Ok(())
    }

    fn execute(&self, sql: &str, parameters: impl rusqlite::Params) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(sql)?.execute(parameters)
    }

    fn submit(&mut self, key: i64) -> rusqlite::Result<()> {
        self.execute(
            "INSERT INTO work_units (key, job_id, id, status, priority, has_prompt, fence, attempt_count, max_retries,
                                     accepted_by, lease_owner, lease_worker, lease_until_boot_ms, created_at)
             VALUES (?1, 1, ?2, 'ASSIGNED', 0, 1, 1, 1, 3, 1, 1, ?3, 600000, 1767225600000)",
            params![key, id(key as usize), format!("w{}", key % 64)],
        )?;
        self.execute(
            "INSERT INTO unit_inputs (unit_key, payload, prompt, options, content_hash, prompt_hash)
             VALUES (?1, ?2, 'Answer at length.', x'7b7d', ?3, ?3)",
            params![key, b"{\"page\":1}", [0_u8; 32]],
        )?;
        self.execute(
            "INSERT INTO attempts (unit_key, number, fence, owner_id, worker_id, claim_token, assigned_at)
             VALUES (?1, 1, 1, 1, ?2, 9223372036854775, 1767225600000)",
            params![key, format!("w{}", key % 64)],
        )?;
        self.execute(
            "INSERT INTO workers (owner_id, id, job_id, status, capacity, load, current_unit, created_at,
                                  last_activity_at)
             VALUES (1, ?1, 1, 'BUSY', 1, 1, ?2, 1767225600000, 1767225600000)
             ON CONFLICT (owner_id, id) DO UPDATE
             SET load = load + 1, status = 'BUSY', current_unit = ?2, last_activity_at = 1767225600000",
            params![format!("w{}", key % 64), key],
        )?;
        self.journal(key, "INSERT", None, "PENDING", false)?;
        self.journal(key, "CLAIM", Some("PENDING"), "ASSIGNED", false)
    }

    fn start(&mut self, key: i64) -> rusqlite::Result<()> {
        self.execute("UPDATE work_units SET status = 'PROCESSING' WHERE key = ?1", [key])?;
        self.execute("UPDATE attempts SET started_at = 1767225600000 WHERE unit_key = ?1 AND number = 1", [key])?;
        self.journal(key, "START", Some("ASSIGNED"), "PROCESSING", false)
    }

    fn append(&mut self, key: i64) -> rusqlite::Result<()> {
        for (number, text) in (1..).zip(self.texts) {
            self.execute(
                "INSERT INTO messages (unit_key, attempt_number, number, at, role, encoding, body, content_hash, link)
                 VALUES (?1, 1, ?2, 1767225600000, 'assistant', 'plain', ?3, ?4, ?4)",
                params![key, number, text.as_bytes(), [0_u8; 32]],
            )?;
        }
        Ok(())
    }

    fn finish(&mut self, key: i64) -> rusqlite::Result<()> {
        self.execute(
            "INSERT INTO attempt_results (unit_key, attempt_number, result, output) VALUES (?1, 1, ?2, 'Done.')",
            params![key, b"{\"pages\":1}"],
        )?;
        self.execute(
            "INSERT INTO charges (unit_key, attempt_number, model, input, output, cache_read, cache_write, reasoning,
                                  amount, is_estimated)
             VALUES (?1, 1, 'large', 1000, 1000, 0, 0, 0, 18000000, 0)",
            [key],
        )?;
        self.execute(
            "UPDATE attempts
             SET ended_at = 1767225600000, outcome = 'COMPLETED', is_counted = 1, message_count = 4, head = ?2
             WHERE unit_key = ?1 AND number = 1",
            params![key, [0_u8; 32]],
        )?;
        self.execute(
            "UPDATE work_units
             SET status = 'COMPLETED', attempts_used = 1, accepted_by = NULL, lease_owner = NULL, lease_worker = NULL,
                 lease_until_boot_ms = NULL, completed_at = 1767225600000
             WHERE key = ?1",
            [key],
        )?;
        self.execute(
            "UPDATE workers
             SET load = load - 1, status = 'READY', current_unit = NULL, units_completed = units_completed + 1
             WHERE owner_id = 1 AND id = ?1",
            [format!("w{}", key % 64)],
        )?;
        self.journal(key, "COMPLETE", Some("PROCESSING"), "COMPLETED", true)
    }

    fn journal(
        &mut self,
        key: i64,
        change: &str,
        from: Option<&str>,
        to: &str,
        is_closing: bool,
    ) -> rusqlite::Result<()> {
        self.journal_rows += 1;
        let hash = is_closing.then_some([0_u8; 32]);
        self.execute(
            "INSERT INTO journal (seq, at, unit_key, attempt_number, fence, change, from_status, to_status, actor,
                                  message_count, head, digest, link)
             VALUES (?1, 1767225600000, ?2, 1, 1, ?3, ?4, ?5, 'owner 1', ?6, ?7, ?7, ?8)",
            params![self.journal_rows, key, change, from, to, is_closing.then_some(4), hash, [0_u8; 32]],
        )?;
        Ok(())
    }
}
