//! The doctor at real bedsides: processes that were killed, stopped and held, and a file that somebody keeps open.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use rustix::process::Signal;
use tempfile::TempDir;
use workcrew::audit::doctor::{Concern, Diagnosis, Doctor, Standing, Symptom, Urgency};
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::repository::{ClaimRequest, Claimant, Scope, Slot};
use workcrew::{
    Archive, Beginning, Call, ExecuteError, JobId, Lease, Message, NewJob, NewUnit, Repository, SqliteRepository, Stop,
    WorkPool, WorkResult, WorkerId,
};

use crate::children::{self, Child, Role, hear, say};
use crate::support::{self, Random};

const LONG: Duration = Duration::from_secs(3_600);

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The processes of these tests.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let Some(role) = children::role() else { return };
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named("a job").unwrap().unwrap().id;
    let executor = move |call: &Call<'_>| match role.as_str() {
        "executing" => {
            say("executing");
            call.cancel_token().wait_timeout(LONG);
            Ok(WorkResult::empty())
        }
        _ => Err(ExecuteError::hold("the key is wrong").kind("auth")),
    };
    let pool =
        WorkPool::builder(job, executor, repository).label("night shift").max_workers(1).lease(LONG).start().unwrap();
    std::thread::scope(|threads| {
        threads.spawn(|| pool.process_pending());
        hear();
        pool.stop(Stop::Now).unwrap();
    });
}

/// A file with a job, and whoever works on it.
struct Ward {
    _folder: TempDir,
    path: PathBuf,
    repository: SqliteRepository,
    job: JobId,
}

impl Ward {
    fn new() -> Ward {
        let folder = support::folder();
        let path = folder.path().join("batch.db");
        let repository = SqliteRepository::open(&path).unwrap();
        let job = repository.create_job(&NewJob::named("a job")).unwrap().id;
        Ward { _folder: folder, path, repository, job }
    }

    fn queue(&self, id: &str) {
        self.repository.queue_unit(self.job, &NewUnit::new(id).prompt("go")).unwrap();
    }

    /// A process that executes a unit and does not end.
    fn executing(&self) -> Child {
        self.queue("a");
        let mut child = Role::new("doctor::child", "executing", &self.path).start();
        child.wait_for("executing");
        child
    }

    fn examined(&self) -> Diagnosis {
        examined(&self.path)
    }
}

/// As somebody sees it who has only the file.
fn examined(path: &Path) -> Diagnosis {
    let archive = SqliteArchive::open(path).unwrap();
    Doctor::new().health(archive.health().unwrap()).run(&archive).unwrap()
}

fn found(diagnosis: &Diagnosis, concern: Concern) -> &Symptom {
    let found = diagnosis.findings.iter().find(|finding| finding.concern == concern);
    found.unwrap_or_else(|| panic!("no {concern} in {diagnosis}"))
}

#[test]
fn of_a_crew_at_work_in_another_process_there_is_nothing_to_say() {
    let ward = Ward::new();
    let child = ward.executing();
    ward.queue("b");
    let diagnosis = ward.examined();
    assert_eq!(diagnosis.findings, [], "{diagnosis}");
    let [owner] = &diagnosis.owners[..] else { panic!("{diagnosis}") };
    assert_eq!((owner.standing, owner.owner.label.as_str(), owner.leases), (Standing::Alive, "night shift", 1));
    assert!(owner.owner.host.is_some() && owner.owner.process.pid != std::process::id());
    let health = diagnosis.health.as_ref().unwrap();
    assert_eq!((health.mode, health.journal_mode.as_str(), health.search_index_bytes), (0o600, "wal", None));
    assert!(health.database_bytes > 0 && health.log_bytes > 0 && health.disk_free_bytes > 0 && health.pages > 1);
    assert_eq!(health.log_limit_bytes, 64 * 1024 * 1024);
    child.end_well();
}

#[test]
fn a_process_that_was_killed_is_found_with_what_it_held_and_what_takes_it_back() {
    let ward = Ward::new();
    let child = ward.executing();
    child.signal(Signal::KILL);
    let (status, _) = child.end();
    assert!(children::was_killed(status));
    let diagnosis = ward.examined();
    let died = found(&diagnosis, Concern::Died);
    assert_eq!(died.urgency, Urgency::Now);
    assert!(
        died.what.starts_with("`night shift` (process ") && died.what.ends_with("has died and holds 1 unit"),
        "{died}"
    );
    assert!(died.advice.contains("`workcrew worker`"));
    assert_eq!(found(&diagnosis, Concern::StaleLeases).urgency, Urgency::Now);
    assert_eq!(diagnosis.owners[0].standing, Standing::Died);
}

#[test]
fn a_process_that_was_stopped_is_found_with_how_to_let_it_go_on() {
    let ward = Ward::new();
    let child = ward.executing();
    child.signal(Signal::STOP);
    child.wait_until_stopped();
    let diagnosis = ward.examined();
    let stopped = found(&diagnosis, Concern::Stopped);
    assert_eq!((stopped.urgency, diagnosis.owners[0].standing), (Urgency::Now, Standing::Stopped));
    let pid = diagnosis.owners[0].owner.process.pid;
    assert!(stopped.advice.contains(&format!("`kill -CONT {pid}`")), "{stopped}");
    child.signal(Signal::CONT);
    child.end_well();
}

#[test]
fn why_another_process_holds_its_pool_can_be_read_from_here() {
    let ward = Ward::new();
    ward.queue("a");
    let child = Role::new("doctor::child", "held", &ward.path).start();
    let began = Instant::now();
    let held = loop {
        let diagnosis = ward.examined();
        if let Some(held) = diagnosis.findings.into_iter().find(|finding| finding.concern == Concern::Held) {
            break held;
        }
        assert!(began.elapsed() < PATIENCE, "it was never told");
        std::thread::park_timeout(Duration::from_millis(10));
    };
    assert_eq!(held.urgency, Urgency::Now);
    assert!(held.what.ends_with("starts nothing: auth: the key is wrong"), "{held}");
    assert!(held.advice.contains("`workcrew resume`"));
    child.end_well();
    assert_eq!(ward.repository.owners().unwrap()[0].state, None, "who has ended is held by nothing");
}

#[test]
fn a_batch_that_nobody_works_on_is_found() {
    let ward = Ward::new();
    for id in ["a", "b", "c", "d"] {
        ward.queue(id);
    }
    let diagnosis = ward.examined();
    let nobody = found(&diagnosis, Concern::NobodyWorks);
    assert!(nobody.what.starts_with("job `a job`: 4 units waiting (`a`, `b`, `c`, …)"), "{nobody}");
    assert_eq!(diagnosis.findings.len(), 1);
    std::fs::set_permissions(&ward.path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    std::fs::write(ward.path.with_extension("db.search"), "an index").unwrap();
    let diagnosis = ward.examined();
    assert_eq!(found(&diagnosis, Concern::Permissions).advice, format!("`chmod 600 '{}'*`", ward.path.display()));
    assert_eq!(diagnosis.health.unwrap().search_index_bytes, Some(8));
}

/// Writes so much that cannot be made smaller.
fn write(repository: &SqliteRepository, lease: &Lease, mebibytes: u32) {
    let mut random = Random::new(7);
    for number in 0..mebibytes {
        let bytes: Vec<u8> =
            std::iter::repeat_with(|| random.below(usize::MAX).to_le_bytes()).take(1 << 17).flatten().collect();
        repository.append(lease, number, &[Message::assistant("").raw(bytes)]).unwrap();
    }
    repository.flush(lease).unwrap();
}

#[test]
fn a_log_that_somebody_keeps_from_being_emptied_is_found_and_one_that_is_only_used_is_not() {
    const MIB: u64 = 1 << 20;
    for is_read in [false, true] {
        let ward = Ward::new();
        ward.queue("a");
        let owner = support::owner(&ward.repository, "writer");
        let slots = vec![Slot::new(WorkerId::new("w1").unwrap())];
        let request = ClaimRequest::new(ward.job, Claimant::new(owner, LONG), Scope::Pending, slots);
        let lease = ward.repository.claim(&request).unwrap().pop().unwrap().lease;
        ward.repository.start(&lease, &Beginning::default()).unwrap();
        let reader = Connection::open(&ward.path).unwrap();
        if is_read {
            reader.execute_batch("BEGIN; SELECT count(*) FROM work_units").unwrap();
        }
        write(&ward.repository, &lease, 110);
        let archive = SqliteArchive::open(&ward.path).unwrap();
        let health = archive.health().unwrap();
        let diagnosis = Doctor::new().large_log_bytes(100 * MIB).health(health).run(&archive).unwrap();
        let is_found = diagnosis.findings.iter().any(|finding| finding.concern == Concern::LogLarge);
        assert_eq!(is_found, is_read, "{diagnosis}");
    }
}
