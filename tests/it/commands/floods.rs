//! Commands that say more than anybody can keep: what is kept is bounded, and so is the memory of the host.

use workcrew::executor::CommandExecutor;
use workcrew::{MemoryRepository, NewJob, NewUnit, Repository, Stop, WorkPool};

use crate::children::{self, Role, say};
use crate::support::{self, Up as _};

/// What the host may have needed at its most beyond what it had before, while a gigabyte passed through it.
const MEMORY_LIMIT_KIB: u64 = 200 * 1024;

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn host() {
    if children::role().is_some() {
        run();
    }
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Executes each of the floods, and says how much memory it took.
fn run() {
    let before = peak_kib();
    for (name, script) in [
        ("stderr", "head -c 300000000 /dev/zero >&2; echo done"),
        ("line", "head -c 1000000000 /dev/zero; echo; echo done"),
        ("lines", "yes 0123456789 | head -c 300000000; echo done"),
    ] {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named(name)).unwrap().id;
        let pool = WorkPool::builder(job, CommandExecutor::new("sh").args(["-c", script]), repository).up();
        let unit = pool.enqueue(NewUnit::new(name), "").unwrap().wait().unwrap();
        pool.stop(Stop::Drain).unwrap();
        say(format_args!("{name} {} {}", unit.status, unit.output.unwrap_or_default().len() <= 10 * 1024 * 1024));
    }
    say(format_args!("within {}", peak_kib().saturating_sub(before) < MEMORY_LIMIT_KIB));
    say(format_args!("peak {} KiB", peak_kib() - before));
}

#[test]
fn a_host_stays_small_while_its_commands_say_a_gigabyte() {
    let folder = support::folder();
    let lines = Role::new("commands::floods::host", "floods", folder.path()).start().end_well();
    let (peak, lines) = lines.split_last().unwrap();
    assert_eq!(
        lines,
        ["stderr COMPLETED true", "line COMPLETED true", "lines COMPLETED true", "within true"],
        "{peak}"
    );
}
