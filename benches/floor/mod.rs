//! The floor: what one thread of raw SQLite does with the same rows, and what the benches measure against it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::{Connection, Transaction, TransactionBehavior, params};

const CHANGES_PER_TRANSACTION: usize = 64;
pub(crate) const MESSAGES: usize = 4;

/// How long each figure is measured.
pub(crate) const MEASURED: Duration = Duration::from_secs(4);

/// Whole lives, and what each took of the thread that writes.
///
/// The second number hardly depends on what else the machine does.
pub(crate) struct Rate {
    pub(crate) units: f64,
    pub(crate) writer_us: f64,
}

/// The time that the thread of this name spent on a processor; 0 where the system does not tell.
pub(crate) fn cpu_us(thread: &str) -> f64 {
    let is_meant = |task: &std::fs::DirEntry| {
        std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == thread)
    };
    tasks().find(is_meant).map(task_cpu_us).unwrap_or_default()
}

/// The threads of this process.
pub(crate) fn tasks() -> impl Iterator<Item = std::fs::DirEntry> {
    std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten()
}

/// The time that a thread spent on a processor.
pub(crate) fn task_cpu_us(task: std::fs::DirEntry) -> f64 {
    let schedstat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
    let nanoseconds: f64 = schedstat.split(' ').next().and_then(|ns| ns.parse().ok()).unwrap_or_default();
    nanoseconds / 1_000.0
}

impl Rate {
    pub(crate) fn print_floor(&self, figure: &str) {
        println!(
            "figure={figure} units_per_second={:.0} writer_microseconds_per_unit={:.0} \
             changes_per_transaction={CHANGES_PER_TRANSACTION}",
            self.units, self.writer_us
        );
    }
}

/// In a thread with a name, by which its processor time is found.
pub(crate) fn in_its_own_thread(path: PathBuf, message_bytes: usize) -> Rate {
    let thread = std::thread::Builder::new().name("storage-floor".to_owned());
    let floor = thread.spawn(move || floor(&path, message_bytes)).expect("a thread");
    floor.join().expect("the floor is solid")
}

/// What the disk takes to make 4 KB durable, on average.
pub(crate) fn fsync_ms(folder: &Path) -> f64 {
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
pub(crate) fn text(length: usize, seed: usize) -> String {
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

/// Names in the order of insertion, as most callers give them and as generated ones are.
pub(crate) fn id(number: usize) -> String {
    format!("unit-{number:09}")
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
    connection.execute_batch(include_str!("../../schema.sql")).expect("the schema");
    connection
        .execute_batch(
            "INSERT INTO jobs (id, name, settings, created_at) VALUES (1, 'bench', x'6e756c6c', 0);
             INSERT INTO owners (id, instance, label, pid, start_ticks, boot_id, pid_namespace, registered_at,
                                 heartbeat_at, heartbeat_boot_ms, lease_ms)
             VALUES (1, 'i', 'bench', 1, 1, '', 0, 0, 0, 0, 60000);",
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
