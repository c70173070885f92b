//! Pulling: units that were queued without a pool, and what a pool does with them that is asked to.

use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::Duration;

use workcrew::clock::Clock;
use workcrew::repository::{By, Intake};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, Completion, ExecuteError, NewJob, NewUnit, Repository, RetryPolicy, Scaling, Stop, UnitStatus, WorkPool,
};

use super::stage::{Stage, stage};
use super::{PATIENCE, World, assert_quiet, next, tells_outcomes, until};
use crate::support::Up as _;

pub(super) fn unit(id: &str) -> NewUnit {
    NewUnit::new(id).prompt("go")
}

impl World {
    /// Queues units for anybody, together.
    pub(super) fn queue(&self, units: &[NewUnit]) {
        self.repository.insert(self.job, units, Intake::Open).unwrap();
    }

    pub(super) fn queue_ids(&self, ids: &[&str]) {
        self.queue(&ids.iter().map(|id| unit(id)).collect::<Vec<_>>());
    }
}

/// Lets a pool pull in a thread of its own while the test plays; returns how that ended.
pub(super) fn pulling<T>(pool: &WorkPool, play: impl FnOnce() -> T) -> (Completion, T) {
    thread::scope(|threads| {
        let pulls = threads.spawn(|| pool.process_pending_timeout(PATIENCE));
        let played = play();
        (pulls.join().unwrap(), played)
    })
}

/// The next executions, one after the other, each of which ends well.
fn play(stage: &Stage, count: usize) -> Vec<String> {
    (0..count).map(|_| stage.next().id.clone()).collect()
}

#[test]
fn what_was_queued_without_a_pool_waits_until_a_pool_is_asked_to_pull() {
    // 003-F1, 003-F18, 003-F30, 003-F39
    let world = World::new();
    world.queue_ids(&["a", "b", "c"]);
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_workers(1), &world);
    let pool = builder.up();
    assert_eq!(pool.wait_for_completion(), Completion::Done, "it is not this pool's");
    assert_quiet(&stage.calls);
    let (completion, played) = pulling(&pool, || play(&stage, 3));
    assert_eq!((completion, played), (Completion::Done, ["a", "b", "c"].map(str::to_owned).to_vec()));
    assert_eq!(outcomes.try_iter().count(), 3, "they are called back as if they had been submitted");
    assert_eq!((pool.stats().accepted, pool.stats().completed), (3, 3));

    world.queue_ids(&["d"]);
    assert_quiet(&stage.calls);
    assert_eq!(world.status("d"), UnitStatus::Pending, "it is not asked any more");
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn larger_priorities_go_first_and_then_whoever_was_queued_first() {
    // 003-F60
    let world = World::new();
    world.queue(&[unit("a"), unit("b").priority(5), unit("c").priority(-1), unit("d").priority(5)]);
    let (pool, stage) = world.staged(1);
    assert_eq!(pulling(&pool, || play(&stage, 4)).1, ["b", "d", "a", "c"]);
}

#[test]
fn all_free_places_are_filled_by_one_claim() {
    let world = World::new();
    world.queue(&(0..10).map(|number| unit(&format!("u{number}"))).collect::<Vec<_>>());
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.scaling(Scaling::Fixed).max_workers(4).worker_capacity(2).up();
    let (completion, _) = pulling(&pool, || {
        let calls = stage.next_many(8);
        assert_eq!(faulty.calls(Verb::Claim), 1);
        assert_eq!(pool.stats().load, 8);
        drop(calls);
        play(&stage, 2)
    });
    assert_eq!(completion, Completion::Done);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 10);
    world.assert_clean();
}

#[test]
fn no_worker_is_started_for_which_there_is_nothing() {
    let world = World::new();
    world.queue_ids(&["a", "b"]);
    let (pool, stage) = world.staged(16);
    pulling(&pool, || play(&stage, 2));
    assert!(pool.stats().total_workers <= 2, "{:?}", pool.stats());
}

#[test]
fn whoever_has_nothing_to_pull_is_done_at_once() {
    let world = World::new();
    let (part, _stage) = stage();
    let pool = world.pool(part).build().unwrap();
    assert_eq!(pool.process_pending(), Completion::Stopped, "it was never started");
    assert_eq!(pool.follow(), Completion::Stopped);
    pool.start().unwrap();
    assert_eq!(pool.process_pending(), Completion::Done);
    assert_eq!(pool.follow_timeout(Duration::from_millis(1)), Completion::TimedOut);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!((pool.process_pending(), pool.follow()), (Completion::Stopped, Completion::Stopped));
}

#[test]
fn a_callback_that_would_wait_for_itself_is_told_so_and_may_queue_instead() {
    let world = World::new();
    world.queue_ids(&["a"]);
    let (part, stage) = stage();
    let (tell, told) = crossbeam_channel::unbounded();
    let pool = Arc::new(OnceLock::<WorkPool>::new());
    let builder = world.pool(part).max_workers(1).on_unit_complete({
        let (pool, repository, job) = (Arc::clone(&pool), world.repository.clone(), world.job);
        move |done, _| {
            let pool = pool.get().expect("it was set");
            tell.send((pool.process_pending(), pool.follow())).unwrap();
            if done.id.as_str() == "a" {
                repository.insert(job, &[unit("b")], Intake::Open).unwrap();
            }
        }
    });
    pool.set(builder.up()).unwrap();
    let pool_ref = pool.get().unwrap();
    let (completion, played) = pulling(pool_ref, || play(&stage, 2));
    assert_eq!((completion, played), (Completion::Done, vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(next(&told), (Completion::WouldDeadlock, Completion::WouldDeadlock));
    pool_ref.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_is_queued_in_this_process_begins_at_once_and_what_is_not_due_when_it_is() {
    // 003-F18
    let world = World::new();
    let (pool, stage) = world.staged(1);
    thread::scope(|threads| {
        let follows = threads.spawn(|| pool.follow());
        world.queue_ids(&["a"]);
        assert_eq!(play(&stage, 1), ["a"], "no time has passed");
        let in_seconds = |seconds| world.clock.now().wall + chrono::TimeDelta::seconds(seconds);
        world.queue(&[unit("b").not_before(in_seconds(1)), unit("c").not_before(in_seconds(7))]);
        until(|| pool.all_idle());
        for (id, seconds) in [("b", 1), ("c", 6)] {
            assert_quiet(&stage.calls);
            world.clock.advance(Duration::from_secs(seconds));
            assert_eq!(play(&stage, 1), [id]);
        }
        pool.stop(Stop::Drain).unwrap();
        assert_eq!(follows.join().unwrap(), Completion::Stopped);
    });
    world.assert_clean();
}

#[test]
fn what_another_process_queues_is_found_with_the_next_poll() {
    // 003-F12
    let world = World::new();
    let (part, stage) = stage();
    let deaf = Arc::new(FaultyRepository::new(world.repository.clone().into()).silent());
    let pool = world.pool_on(Arc::clone(&deaf) as Arc<dyn Repository>, part).max_workers(1).up();
    // The pool looks twice when it begins: at once, and when what the dead were holding has been taken back.
    let sweep = Gate::closed();
    deaf.on(Verb::Expire, Fault::Gate(sweep.clone()));
    thread::scope(|threads| {
        threads.spawn(|| pool.follow());
        sweep.wait_for(1);
        assert_eq!((pool.wait_for_completion(), deaf.calls(Verb::Backlog)), (Completion::Done, 1));
        sweep.open();
        until(|| deaf.calls(Verb::Backlog) == 2);
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        world.queue_ids(&["a"]);
        world.clock.advance(Duration::from_secs(5) - Duration::from_millis(1));
        assert_quiet(&stage.calls);
        world.clock.advance(Duration::from_millis(1));
        assert_eq!(play(&stage, 1), ["a"]);
        pool.stop(Stop::Drain).unwrap();
    });
    world.assert_clean();
}

#[test]
fn what_was_failed_cancelled_or_let_go_and_waits_again_is_heard_of_too() {
    // 003-F68
    let world = World::new();
    world.queue_ids(&["failed", "cancelled"]);
    world.repository.cancel(world.job, "cancelled", &By::whom("ada")).unwrap();
    let (pool, stage) = world.staged(1);
    thread::scope(|threads| {
        threads.spawn(|| pool.follow());
        stage.next().fail(ExecuteError::give_up("no"));
        until(|| world.status("failed") == UnitStatus::Failed);
        for id in ["failed", "cancelled"] {
            world.repository.requeue(world.job, id, &By::whom("ada")).unwrap();
            assert_eq!(play(&stage, 1), [id]);
        }
        let other = crate::support::owner(&world.repository, "another");
        world.repository.insert(world.job, &[unit("let go")], Intake::AcceptedBy(other)).unwrap();
        until(|| pool.all_idle());
        assert_quiet(&stage.calls);
        world.repository.let_go(other).unwrap();
        assert_eq!(play(&stage, 1), ["let go"]);
        world.repository.end_owner(other).unwrap();
        pool.stop(Stop::Drain).unwrap();
    });
    assert_eq!(world.attempts("failed").len(), 2, "its history is kept");
    world.assert_clean();
}

#[test]
fn what_is_not_due_or_has_nothing_to_send_is_not_waited_for() {
    let world = World::new();
    let later = world.clock.now().wall + chrono::TimeDelta::seconds(60);
    world.queue(&[NewUnit::new("no prompt"), unit("later").not_before(later), unit("now")]);
    let (pool, stage) = world.staged(2);
    let (completion, played) = pulling(&pool, || play(&stage, 1));
    assert_eq!((completion, played), (Completion::Done, vec!["now".to_owned()]));
    assert_eq!((world.status("no prompt"), world.status("later")), (UnitStatus::Pending, UnitStatus::Pending));
}

#[test]
fn a_pulled_unit_that_fails_is_tried_again_here_and_waited_for() {
    // 003-F37
    let world = World::new();
    world.queue_ids(&["a"]);
    let (part, stage) = stage();
    let minute = Duration::from_secs(60);
    let pool = world.pool(part).retry(RetryPolicy::fixed(minute)).up();
    let (completion, _) = pulling(&pool, || {
        let first = stage.next();
        first.act(|call| {
            call.checkpoint(7);
            call.session("s-1");
        });
        first.fail(ExecuteError::retry("not yet"));
        until(|| world.status("a") == UnitStatus::Pending);
        assert_quiet(&stage.calls);
        world.clock.advance(minute);
        let second = stage.next();
        let resumed = second.act(|call| (call.last_checkpoint().cloned(), call.resume_session().map(str::to_owned)));
        assert_eq!(resumed, (Some(7.into()), Some("s-1".to_owned())));
    });
    assert_eq!((completion, world.attempts("a").len()), (Completion::Done, 2));
}

#[test]
fn other_jobs_are_left_alone() {
    let world = World::new();
    let other = world.repository.create_job(&NewJob::named("another")).unwrap().id;
    world.repository.insert(other, &[unit("theirs")], Intake::Open).unwrap();
    world.queue_ids(&["ours"]);
    let (pool, stage) = world.staged(2);
    let (completion, played) = pulling(&pool, || play(&stage, 1));
    assert_eq!((completion, played), (Completion::Done, vec!["ours".to_owned()]));
    assert_eq!(world.repository.unit(other, "theirs").unwrap().status, UnitStatus::Pending);
}

#[test]
fn whoever_waits_for_a_place_goes_before_what_is_pulled() {
    let world = World::new();
    world.queue_ids(&["a", "b", "c"]);
    let (pool, stage) = world.staged(1);
    pulling(&pool, || {
        let first = stage.next();
        thread::scope(|threads| {
            threads.spawn(|| {
                assert!(pool.wait_for_available_slot());
                pool.submit_work_unit(NewUnit::new("submitted"), "go").unwrap();
            });
            until(|| pool.stats().slot_waiters == 1);
            drop(first);
            assert_eq!(play(&stage, 1), ["submitted"]);
        });
        assert_eq!(play(&stage, 2), ["b", "c"]);
    });
}

#[test]
fn a_held_pool_pulls_nothing_and_says_why() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    pool.pause();
    assert_eq!(pool.process_pending(), Completion::Done, "there is nothing to hold up");
    world.queue_ids(&["a"]);
    assert_eq!(pool.process_pending(), Completion::Blocked("paused".to_owned()));
    pool.resume();
    assert_eq!(pulling(&pool, || play(&stage, 1)).0, Completion::Done);
}

#[test]
fn what_was_not_pulled_before_the_pool_stops_stays_for_others() {
    let world = World::new();
    world.queue_ids(&["a", "b", "c"]);
    let (pool, stage) = world.staged(1);
    let (completion, ()) = pulling(&pool, || {
        let running = stage.next();
        pool.handle().stop(Stop::Drain);
        drop(running);
    });
    assert_eq!(completion, Completion::Stopped);
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 1);
    for id in ["b", "c"] {
        assert_eq!((world.status(id), world.unit(id).accepted_by), (UnitStatus::Pending, None));
    }
    world.assert_clean();
}

#[test]
fn workers_are_added_while_more_is_queued_than_the_threshold_says() {
    // 003-F4, 003-F8, 003-F48, 003-F49
    let world = World::new();
    let (part, stage) = stage();
    let scaling = Scaling::Threshold { queued: 5, idle: Duration::from_secs(300) };
    let pool = world.pool(part).scaling(scaling).min_workers(1).max_workers(3).up();
    assert_eq!(pool.stats().total_workers, 1);
    thread::scope(|threads| {
        threads.spawn(|| pool.follow());
        world.queue(&(0..5).map(|number| unit(&format!("u{number}"))).collect::<Vec<_>>());
        let running = stage.next();
        until(|| pool.all_idle() || pool.stats().running == 1);
        assert_eq!(pool.stats().total_workers, 1, "four wait");
        world.queue(&(5..40).map(|number| unit(&format!("u{number}"))).collect::<Vec<_>>());
        until(|| pool.stats().total_workers == 3);
        drop(running);
        for _ in 1..40 {
            drop(stage.next());
        }
        pool.stop(Stop::Drain).unwrap();
    });
    assert_eq!(pool.stats().completed, 40);
    world.assert_clean();
}

#[test]
fn nothing_is_lost_when_the_answers_to_claims_are() {
    for fault in [Fault::ErrorOnce, Fault::ExecutedThenError] {
        let world = World::new();
        let (part, stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let pool = builder.max_workers(2).up();
        faulty.on(Verb::Claim, fault);
        faulty.on(Verb::Claimed, Fault::ErrorOnce);
        faulty.on(Verb::Backlog, Fault::ErrorOnce);
        world.queue_ids(&["a", "b", "c"]);
        let (completion, _) = pulling(&pool, || {
            let ticks = || world.clock.advance(Duration::from_secs(1));
            for _ in 0..3 {
                until(|| {
                    ticks();
                    !stage.is_empty()
                });
                drop(stage.next());
            }
            let done = |id: &str| world.status(id) == UnitStatus::Completed;
            until(|| ["a", "b", "c"].into_iter().all(done));
            until(|| {
                ticks();
                pool.stats().pending + pool.stats().running == 0
            });
        });
        assert_eq!(completion, Completion::Done);
        pool.stop(Stop::Drain).unwrap();
        world.assert_clean();
    }
}
