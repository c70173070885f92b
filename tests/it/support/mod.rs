//! What several tests need: folders, owners, chance, and children of this very binary.

#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub(crate) mod small_disk;

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, Once};

use tempfile::TempDir;
use workcrew::clock::{Clock, SystemClock};
use workcrew::{NewOwner, OwnerId, Process, Repository, WorkPool, WorkPoolBuilder};

/// A folder that vanishes with the test, in memory where that is possible: an `fsync` costs nothing there.
pub(crate) fn folder() -> TempDir {
    let shared_memory = Path::new("/dev/shm");
    let made = if shared_memory.is_dir() { tempfile::tempdir_in(shared_memory) } else { tempfile::tempdir() };
    made.unwrap()
}

/// Registers this process as an owner of its own.
pub(crate) fn owner(repository: &dyn Repository, label: &str) -> OwnerId {
    repository.register_owner(&NewOwner::new(Process::this(&SystemClock.boot_id()), label)).unwrap()
}

/// Starts a pool and waits until it takes work.
pub(crate) trait Up {
    fn up(self) -> WorkPool;
}

impl Up for WorkPoolBuilder {
    fn up(self) -> WorkPool {
        let pool = self.start().unwrap();
        pool.await_init_complete().unwrap();
        pool
    }
}

/// This binary again, running one of its ignored tests and nothing else. Its output is not captured.
pub(crate) fn child(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]);
    command
}

/// What pools have said of themselves by name since somebody wanted to know, each line after its level.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Keeper;

impl log::Log for Keeper {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}", record.level(), record.args());
        if line.contains("the pool `") {
            LOG.lock().unwrap().push(line);
        }
    }

    fn flush(&self) {}
}

/// Begins to keep what pools say of themselves in their log. All tests of this binary share it.
pub(crate) fn keep_log() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        log::set_logger(&Keeper).unwrap();
        log::set_max_level(log::LevelFilter::Debug);
    });
}

/// What the pool of this label has said, without the number of its job.
pub(crate) fn logged(label: &str) -> Vec<String> {
    let (name, log) = (format!("the pool `{label}`"), LOG.lock().unwrap());
    let without_job = |line: &String| {
        let (level, rest) = line.split_once(' ').unwrap();
        format!("{level} {}", rest.split_once(": ").unwrap().1)
    };
    log.iter().filter(|line| line.contains(&name)).map(without_job).collect()
}

/// Choices that can be made again from their seed.
pub(crate) struct Random(u64);

impl Random {
    /// The seed of this run, which is printed: given as `WORKCREW_SEED`, or fresh.
    pub(crate) fn seed() -> u64 {
        let fresh = || RandomState::new().hash_one(0);
        let given = std::env::var("WORKCREW_SEED").ok();
        let seed = given.map_or_else(fresh, |seed| seed.parse().expect("WORKCREW_SEED is a number"));
        println!("WORKCREW_SEED={seed}");
        seed
    }

    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// A number below a limit (SplitMix64).
    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % limit as u64) as usize
    }
}
