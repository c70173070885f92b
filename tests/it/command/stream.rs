//! Units by the million: what is read is not kept.

use std::io::Write;

use super::{Scene, wait};

/// Queues so many units through a pipe; says how many bytes of memory the command had at most.
fn peak_bytes(units: usize) -> u64 {
    let scene = Scene::new();
    let mut child = scene
        .command(&["queue", "-"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = std::io::BufWriter::new(child.stdin.take().unwrap());
    let began = std::time::Instant::now();
    for number in 0..units {
        writeln!(stdin, "{{\"id\":\"unit-{number}\",\"prompt\":\"Summarise page {number} in one sentence.\"}}")
            .unwrap();
    }
    // It waits for more, so that it can be looked at.
    stdin.flush().unwrap();
    let database = scene.path("batch.db");
    super::until("all are stored", || stored(&database) == units as u64);
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024;
    println!("{units} units: {peak} bytes at most, {:?}", began.elapsed());
    drop(stdin);
    assert!(wait(&mut child).success());
    peak
}

fn stored(database: &std::path::Path) -> u64 {
    use workcrew::Archive;
    let Ok(archive) = workcrew::repository::sqlite::SqliteArchive::open(database) else { return 0 };
    let Ok(Some(job)) = archive.job_named("batch") else { return 0 };
    archive.counts(job.id).map_or(0, |counts| counts.total())
}

/// How many bytes a batch that is larger may need more.
const SLACK_BYTES: u64 = 24 * 1024 * 1024;

#[test]
fn ten_times_as_many_units_need_no_more_memory() {
    let (few, many) = (peak_bytes(4_000), peak_bytes(40_000));
    assert!(many < few + SLACK_BYTES, "{few} bytes became {many}");
}

#[test]
#[ignore = "takes minutes; run it in release"]
fn a_million_units_need_no_more_memory_than_a_hundred_thousand() {
    let (few, many) = (peak_bytes(100_000), peak_bytes(1_000_000));
    assert!(many < few + SLACK_BYTES, "{few} bytes became {many}");
}
