//! User code is never called under a lock: while it blocks, everything else answers.

use std::thread;

use workcrew::repository::By;
use workcrew::testing::{Fault, Gate, Verb};
use workcrew::{Event, ExecuteError, NewUnit, Stop, UnitStatus, WorkPool};

use super::{World, stage};
use crate::support::Up as _;

/// Everything that can be asked of a pool is asked, from another thread, and answers.
fn assert_answers(pool: &WorkPool, world: &World, name: &str) {
    thread::scope(|threads| {
        let asking = threads.spawn(|| {
            let stats = pool.stats();
            assert!(stats.busy_workers >= 1 && !pool.all_idle() && pool.busy_count() >= 1);
            assert!(!pool.workers().is_empty());
            pool.set_max_workers(stats.max_workers + 1).unwrap();
            assert!(pool.wait_for_available_slot());
            pool.pause();
            pool.resume();
            let handle = pool.submit_work_unit(NewUnit::new(name), "bystander").unwrap();
            assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
            handle.cancel(By::whom("ada")).unwrap();
            drop(pool.acquire_slot().unwrap());
            pool.set_max_workers(stats.max_workers).unwrap();
            assert!(format!("{pool:?}").contains("WorkPool"));
        });
        asking.join().unwrap();
    });
    assert_eq!(world.status(name), UnitStatus::Completed);
}

#[test]
fn while_user_code_blocks_everything_else_answers() {
    // 000-F3, 000-F10, 000-F12, 000-F36, 004-F9, 004-F48
    let world = World::new();
    let gates: [Gate; 5] = std::array::from_fn(|_| Gate::closed());
    let [executor, said, ended, callback, cancelled] = gates.clone();
    let is_blocked = |id: &str| id.starts_with("blocked");
    let pool = world
        .pool(move |call: &workcrew::Call<'_>| {
            if is_blocked(call.unit().id.as_str()) {
                call.message(workcrew::Message::assistant("hm"));
                executor.pass();
            }
            match call.attempt_number() {
                1 if call.unit().id.as_str() == "blocked-twice" => Err(ExecuteError::retry("again")),
                _ => Ok(workcrew::WorkResult::empty()),
            }
        })
        .max_workers(2)
        .observer(move |event: &Event<'_>| match event {
            Event::Said { .. } => said.pass(),
            Event::AttemptEnded { unit_id, .. } if is_blocked(unit_id.as_str()) => ended.pass(),
            _ => {}
        })
        .on_unit_complete(move |unit, _| {
            if is_blocked(unit.id.as_str()) {
                callback.pass();
            }
        })
        .on_unit_cancelled(move |_| cancelled.pass())
        .up();
    let handle = pool.submit_work_unit(NewUnit::new("blocked"), "go").unwrap();
    // One after the other: an observer of a message, the executor, an observer of an end, a callback.
    for (gate, name) in [(&gates[1], "said"), (&gates[0], "executor"), (&gates[2], "ended"), (&gates[3], "callback")] {
        gate.wait_for(1);
        assert_answers(&pool, &world, name);
        gate.open();
    }
    handle.wait().unwrap();

    // The reporter's thread, which tells of what no worker brought about.
    let later = workcrew::clock::Clock::now(&world.clock).wall + chrono::TimeDelta::hours(1);
    let waiting = pool.submit_work_unit(NewUnit::new("waiting").not_before(later), "go").unwrap();
    waiting.cancel(By::whom("ada")).unwrap();
    gates[4].wait_for(1);
    let busy = pool.submit_work_unit(NewUnit::new("blocked-twice"), "go").unwrap();
    assert!(!waiting.is_done());
    gates[4].open();
    waiting.wait().unwrap();
    busy.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn while_the_storage_blocks_one_submission_everything_else_answers() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(2).up();
    let gate = Gate::closed();
    faulty.on(Verb::Submit, Fault::Gate(gate.clone()));
    thread::scope(|threads| {
        let submitting = threads.spawn(|| pool.submit_work_unit(NewUnit::new("a"), "go").unwrap());
        gate.wait_for(1);
        assert_eq!(pool.stats().busy_workers, 1);
        assert_eq!(pool.workers().len(), 1);
        assert!(pool.wait_for_available_slot());
        pool.pause();
        pool.resume();
        pool.set_max_workers(3).unwrap();
        gate.open();
        submitting.join().unwrap();
    });
    drop(stage.next());
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn numbers_add_up_at_every_moment() {
    // 000-F5, 000-F6, 000-F7, 000-F8, 000-F34
    let world = World::new();
    let pool = world
        .pool(|call: &workcrew::Call<'_>| match call.attempt_number() {
            1 => Err(ExecuteError::retry("again")),
            _ => Ok(workcrew::WorkResult::empty()),
        })
        .max_workers(3)
        .up();
    let is_over = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|threads| {
        threads.spawn(|| {
            while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                let stats = pool.stats();
                let ended = stats.completed + stats.failed + stats.cancelled + stats.left_pending + stats.lost;
                assert_eq!(stats.accepted, stats.pending + stats.running + ended, "{stats:?}");
                assert!(stats.busy_workers + stats.idle_workers <= 3, "{stats:?}");
                assert!(stats.busy_workers + stats.reserved_slots + stats.free_slots <= 3, "{stats:?}");
                assert!(pool.busy_count() <= 3);
                let workers = pool.workers();
                assert!(workers.len() <= 3 && workers.is_sorted_by_key(|worker| worker.id.to_string()), "{workers:?}");
                thread::yield_now();
            }
        });
        for number in 0..60 {
            assert!(pool.wait_for_available_slot());
            pool.submit_work_unit(NewUnit::new(number.to_string()), "go").unwrap();
        }
        pool.wait_for_completion();
        is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    });
    assert!(pool.all_idle() && pool.busy_count() == 0);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 60);
    world.assert_clean();
}
