//! Processes whose calendars are years apart, and are set while they work on one file.
//!
//! A library that stands before the system's (libfaketime) tells them another time. Where it is not installed, a line says so.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use workcrew::audit::verify::Verify;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{PAGE_LIMIT, UnitFilter};
use workcrew::unit::Change;
use workcrew::{
    Archive, Call, Completion, ExecuteError, JobId, NewJob, NewUnit, Repository, RetryPolicy, SqliteRepository, Stop,
    UnitStatus, WorkPool, WorkResult,
};

use crate::children::{self, Child, Role, hear, say};
use crate::support;
use crate::support::Up as _;

const JOB: &str = "calendars";
const UNITS: usize = 60;

/// Measured by the calendar it would be over whenever that is set.
const LEASE: Duration = Duration::from_secs(20);
const HEARTBEAT: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_millis(300);

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn child() {
    if children::role().is_some() {
        work();
    }
}

fn open(path: &Path) -> (SqliteRepository, JobId) {
    let repository = SqliteOptions::new().busy_timeout(Duration::from_secs(60)).open(path).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    (repository, job)
}

/// Whether a unit fails the first time.
fn fails_once(id: &str) -> bool {
    id.ends_with('3')
}

/// A pool that pulls. With its first unit in hand it says what its calendar shows, and waits until that was set; the rest is left until then.
fn work() {
    let (repository, job) = open(&children::path());
    let is_first = std::sync::atomic::AtomicBool::new(true);
    let execute = move |call: &Call<'_>| {
        if is_first.swap(false, std::sync::atomic::Ordering::SeqCst) {
            say(Utc::now().to_rfc3339());
            hear();
            say(Utc::now().to_rfc3339());
            // Both pools renew and sweep several times meanwhile.
            if let Some(reason) = call.cancel_token().wait_timeout(20 * HEARTBEAT) {
                say(format_args!("asked {reason:?}"));
            }
        }
        call.cancel_token().wait_timeout(Duration::from_millis(5));
        match fails_once(call.unit().id.as_str()) && call.attempt_number() == 1 {
            true => Err(ExecuteError::retry("the first time")),
            false => Ok(WorkResult::empty()),
        }
    };
    let builder = WorkPool::builder(job, execute, repository).max_workers(1).lease(LEASE).heartbeat(HEARTBEAT);
    let pool = builder.poll_interval(HEARTBEAT).retry(RetryPolicy::fixed(PAUSE)).up();
    assert_eq!(pool.process_pending(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    say(format_args!("{} completed, {} lost", stats.completed, stats.lost));
}

/// Where the library is.
fn libfaketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|entry| entry.path());
    let folders = folders.chain(["/usr/lib", "/usr/local/lib", "/usr/lib64"].map(PathBuf::from));
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.exists())
}

/// A process with a calendar that can be set.
struct Calendar {
    file: PathBuf,
    child: Child,
}

impl Calendar {
    fn start(library: &Path, database: &Path, name: &str, shift: &str) -> Calendar {
        let file = database.with_extension(name);
        set(&file, shift);
        let child = Role::new("pool_calendar::child", "works", database)
            .env("LD_PRELOAD", library.display())
            .env("FAKETIME_TIMESTAMP_FILE", file.display())
            .env("FAKETIME_NO_CACHE", 1)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", 1)
            .env("DONT_FAKE_MONOTONIC", 1)
            .start();
        Calendar { file, child }
    }

    /// How far the calendar of the process, which tells it now, is ahead of this one's.
    fn ahead(&mut self) -> TimeDelta {
        let line = self.child.line().expect("it tells the time");
        DateTime::parse_from_rfc3339(&line).unwrap().to_utc() - Utc::now()
    }
}

/// Sets a calendar, all at once.
fn set(file: &Path, shift: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{shift}\n")).unwrap();
    std::fs::rename(new, file).unwrap();
}

#[test]
fn processes_whose_calendars_differ_and_jump_share_a_job_without_taking_from_each_other() {
    // 003-F1, 003-F2, 003-F35, 003-F38
    let Some(library) = libfaketime() else {
        // Not by a macro, whose output the harness would keep for itself.
        let _ = writeln!(std::io::stderr(), "libfaketime is not installed: no process was given another calendar");
        return;
    };
    let years = TimeDelta::days(3_650);
    for (shift, about) in [("1h", TimeDelta::hours(1)), ("10y", years)] {
        let folder = support::folder();
        let path = folder.path().join("calendars.db");
        let (repository, job) = open(&path);
        let unit = |number: usize| NewUnit::new(format!("u{number}")).prompt("go");
        repository.queue_units(job, &(0..UNITS).map(unit).collect::<Vec<_>>()).unwrap();
        let mut late = Calendar::start(&library, &path, "late", &format!("-{shift}"));
        let mut early = Calendar::start(&library, &path, "early", &format!("+{shift}"));
        let near = |ahead: TimeDelta, expected: TimeDelta| (ahead - expected).abs() < about / 10;
        let (behind, ahead) = (late.ahead(), early.ahead());
        assert!(near(behind, -about) && near(ahead, about), "{shift}: {behind}, {ahead}: the library does its work");
        // Both hold a lease: one is set forth, the other back, twice as far.
        set(&late.file, &format!("+{shift}"));
        set(&early.file, &format!("-{shift}"));
        late.child.tell("go on");
        early.child.tell("go on");
        let (ahead, behind) = (late.ahead(), early.ahead());
        assert!(near(behind, -about) && near(ahead, about), "{shift}: {behind}, {ahead}: a jump is seen");
        let lines = [late.child.end_well(), early.child.end_well()];
        let completed: Vec<usize> = lines.iter().map(|lines| completed(lines)).collect();
        assert_eq!(completed.iter().sum::<usize>(), UNITS, "{shift}: {lines:?}");
        assert!(completed.iter().all(|&count| count > 0), "{shift}: the work is shared: {lines:?}");
        check(&repository, shift);
    }
}

/// How many units a process completed, which has nothing else to tell.
fn completed(lines: &[String]) -> usize {
    match lines {
        [line] => line.strip_suffix(" completed, 0 lost").expect(line).parse().unwrap(),
        lines => panic!("{lines:?}"),
    }
}

fn check(repository: &SqliteRepository, shift: &str) {
    for unit in repository.units(&UnitFilter::default(), 0, PAGE_LIMIT).unwrap().items {
        let attempts = if fails_once(unit.id.as_str()) { 2 } else { 1 };
        assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Completed, attempts), "{shift}: {}", unit.id);
    }
    let rows = repository.journal(0, PAGE_LIMIT).unwrap().items;
    assert!(rows.iter().all(|row| row.change != Change::Expire), "{shift}: no lease ran out");
    let verification = Verify::new().settled().run(repository).unwrap();
    assert!(verification.is_clean(), "{shift}: {verification}");
}
