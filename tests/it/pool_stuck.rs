//! A worker whose thread comes back just while the reporter brings its attempt to an end in its place.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::support::Up as _;
use workcrew::testing::Gate;
use workcrew::{Call, Event, MemoryRepository, NewJob, NewUnit, Repository, Stop, UnitHandle, WorkPool, WorkResult};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(20);

/// Waits until a thread is asleep, for good as far as one can see.
fn wait_until_asleep(thread: &Path) {
    let (began, mut times_asleep) = (Instant::now(), 0);
    while times_asleep < 50 {
        assert!(began.elapsed() < LONG, "the thread never waits");
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
        times_asleep = if stat.contains(") S ") { times_asleep + 1 } else { 0 };
        std::thread::yield_now();
    }
}

/// A pool of two, one of which runs something long; the thread of the other has come back too late, and waits until the reporter,
/// which waits in front of a gate, has brought its attempt to an end.
struct Scene {
    pool: WorkPool,
    reporting: Gate,
    long: Gate,
    deaf_unit: UnitHandle,
}

impl Scene {
    fn set() -> Scene {
        let repository = MemoryRepository::new();
        let job = repository.create_job(&NewJob::named("stuck")).unwrap().id;
        let (deaf, long, reporting) = (Gate::closed(), Gate::closed(), Gate::closed());
        let (told, threads) = mpsc::channel::<PathBuf>();
        let execute = {
            let (deaf, long) = (deaf.clone(), long.clone());
            move |call: &Call<'_>| {
                if call.unit().id.as_str() == "long" {
                    long.pass();
                } else {
                    told.send(Path::new("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())).unwrap();
                    deaf.pass();
                }
                Ok(WorkResult::empty())
            }
        };
        let waits = reporting.clone();
        let pool = WorkPool::builder(job, execute, repository)
            .max_workers(2)
            .max_abandoned(0)
            .kill_grace(Duration::from_millis(1))
            .observer(move |event: &Event<'_>| {
                if let Event::ThreadAbandoned { .. } = event {
                    waits.pass();
                }
            })
            .up();
        pool.submit_work_unit(NewUnit::new("long"), "go").unwrap();
        long.wait_for(1);
        let unit = NewUnit::new("deaf").timeout(Duration::from_millis(1)).max_retries(0);
        let deaf_unit = pool.submit_work_unit(unit, "go").unwrap();
        let thread = threads.recv_timeout(LONG).unwrap();
        reporting.wait_for(1);
        deaf.open();
        deaf.wait_for(1);
        wait_until_asleep(&thread);
        Scene { pool, reporting, long, deaf_unit }
    }
}

#[test]
fn it_ends_if_it_is_one_too_many_by_then() {
    let scene = Scene::set();
    scene.pool.set_max_workers(1).unwrap();
    scene.reporting.open();
    scene.deaf_unit.wait_timeout(LONG).unwrap();
    scene.long.open();
    let summary = scene.pool.stop_timeout(Stop::Drain, LONG).unwrap();
    assert!(summary.is_final, "{:?}", scene.pool.workers());
}

#[test]
fn it_ends_if_the_pool_stops_without_waiting() {
    let scene = Scene::set();
    let summary = scene.pool.stop_timeout(Stop::Now, LONG).unwrap();
    assert!(summary.is_final, "{:?}", scene.pool.workers());
    scene.reporting.open();
    scene.long.open();
    let began = Instant::now();
    while scene.pool.stats().abandoned_threads > 0 {
        assert!(began.elapsed() < LONG, "{:?}", scene.pool.stats());
        std::thread::yield_now();
    }
}
