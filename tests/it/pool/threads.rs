//! No thread is left when a pool has stopped, however it did. Counted in a process of its own, where nobody else has any.

use std::time::Duration;

use workcrew::testing::Gate;
use workcrew::{Call, MemoryRepository, NewJob, NewUnit, Repository, Stop, WorkPool, WorkResult};

use super::until;
use crate::children::{self, Role};
use crate::support::Up as _;

/// The threads of this process that belong to a pool.
fn threads() -> Vec<String> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).ok());
    names.map(|name| name.trim_end().to_owned()).filter(|name| name.starts_with("workcrew-")).collect()
}

#[test]
fn no_thread_is_left_when_a_pool_has_stopped() {
    // I10
    Role::new("pool::threads::plays_a_role", "threads", "/dev/null").start().end_well();
}

#[test]
#[ignore = "the child of the test above"]
fn plays_a_role() {
    if children::role().is_none() {
        return;
    }
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("a job")).unwrap().id;
    let repository: std::sync::Arc<dyn Repository> = std::sync::Arc::new(repository);
    for round in 0..5 {
        let leave = Gate::closed();
        let executor = {
            let leave = leave.clone();
            move |call: &Call<'_>| {
                if call.unit().id.as_str().starts_with("deaf") {
                    leave.pass();
                } else {
                    call.cancel_token().wait_timeout(Duration::from_millis(1));
                }
                Ok(WorkResult::empty())
            }
        };
        let pool = WorkPool::builder(job, executor, repository.clone()).max_workers(3).up();
        for id in ["a", "b", "c", "d", "e"] {
            assert!(pool.wait_for_available_slot());
            pool.submit_work_unit(NewUnit::new(format!("{id}{round}")), "go").unwrap();
        }
        until(|| threads().len() >= 5);
        match round {
            0 => drop(pool.stop(Stop::Drain).unwrap()),
            1 => drop(pool.stop(Stop::Cancel { grace: Duration::from_secs(60) }).unwrap()),
            2 => drop(pool),
            3 => {
                assert!(pool.wait_for_available_slot());
                pool.submit_work_unit(NewUnit::new("deaf"), "go").unwrap();
                leave.wait_for(1);
                pool.wait_for_available_slot();
                let stats = pool.stop(Stop::Now).unwrap().stats;
                // A thread that was joined may be listed for a moment longer.
                until(|| threads().len() == stats.abandoned_threads);
                leave.open();
            }
            _ => drop(pool.stop(Stop::Now).unwrap()),
        }
        until(|| threads().is_empty());
    }
}
