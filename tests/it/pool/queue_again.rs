//! Enqueuing what is there already, and storage that fails meanwhile: one place, one execution, one answer.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use workcrew::clock::{Clock, ManualClock, Moment};
use workcrew::repository::{By, Intake};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Completion, ExecuteError, NewUnit, Prompt, Refusal, Repository, RepositoryError, RetryPolicy, Stop, UnitStatus,
    WaitError,
};

use super::queue::{busy, enqueue, is_unknown};
use super::stage::Played;
use super::{Stage, World, next, stage, tells_outcomes, until};
use crate::support::Up as _;

/// The world's clock, which one thread can read only once the gate is open: it stops there between two steps of the pool.
#[derive(Clone, Debug)]
struct SlowClock {
    clock: ManualClock,
    gate: Gate,
}

const SLOW: &str = "slow";

/// The next execution, for which time passes; not so fast that a worker would be too late to come up.
fn next_in_time(world: &World, stage: &Stage) -> Played {
    until(|| {
        world.clock.advance(Duration::from_millis(10));
        !stage.is_empty()
    });
    stage.next()
}

impl Clock for SlowClock {
    fn now(&self) -> Moment {
        if thread::current().name() == Some(SLOW) {
            self.gate.pass();
        }
        self.clock.now()
    }

    fn boot_id(&self) -> Arc<str> {
        self.clock.boot_id()
    }

    fn on_jump(&self, told: Box<dyn Fn() -> bool + Send + Sync>) {
        self.clock.on_jump(told);
    }
}

#[test]
fn a_unit_that_is_enqueued_twice_has_one_place_and_runs_once() {
    // 001-F56, 001-F68
    let world = World::new();
    let (part, stage) = stage();
    let (builder, outcomes) = tells_outcomes(world.pool(part).max_queue_size(2), &world);
    let (pool, call) = busy(builder, &stage);
    let handles = ["a", "a"].map(|id| enqueue(&pool, id));
    let stats = pool.stats();
    assert_eq!((stats.queue_size, stats.queued, stats.accepted, stats.pending), (1, 1, 2, 1));
    let attached = enqueue(&pool, "first");
    assert_eq!((pool.stats().queue_size, pool.stats().running), (1, 1), "what runs needs no place");
    call.succeed("before");
    stage.next().succeed("once");
    for handle in handles {
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("once"));
    }
    assert_eq!(attached.wait().unwrap().output.as_deref(), Some("before"));
    pool.wait_for_completion();
    let again = enqueue(&pool, "a");
    assert!(again.is_done());
    assert_eq!(again.wait().unwrap().output.as_deref(), Some("once"));
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.attempts, stats.queue_size), (2, 2, 2, 0));
    assert_eq!(outcomes.try_iter().collect::<Vec<_>>(), ["complete first: COMPLETED", "complete a: COMPLETED"]);
    world.assert_clean();
}

#[test]
fn many_who_enqueue_one_unit_at_once_get_one_execution() {
    // 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    thread::scope(|threads| {
        let enqueuing: Vec<_> = (0..8).map(|_| threads.spawn(|| enqueue(&pool, "a"))).collect();
        drop(call);
        stage.next().succeed("once");
        for thread in enqueuing {
            assert_eq!(thread.join().unwrap().wait().unwrap().output.as_deref(), Some("once"));
        }
    });
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.queue_size), (2, 2, 0));
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_unit_that_waits_for_anybody_or_for_another_pool_is_taken_over() {
    let world = World::new();
    world.repository.insert(world.job, &[NewUnit::new("open").prompt("go")], Intake::Open).unwrap();
    let (part, other_stage) = stage();
    let (other, held_up) = busy(world.pool(part), &other_stage);
    let lost = enqueue(&other, "other's");
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).up();
    pool.pause();
    let handles = ["open", "other's"].map(|id| enqueue(&pool, id));
    assert_eq!(pool.stats().queue_size, 2);
    drop(held_up);
    assert!(matches!(lost.wait(), Err(WaitError::Lost)), "the other pool is told when it is its turn");
    pool.resume();
    for _ in 0..2 {
        drop(stage.next());
    }
    for handle in handles {
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    }
    let stats = other.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.lost, stats.queue_size), (2, 1, 1, 0));
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 2);
    assert!(other_stage.is_empty());
    world.assert_clean();
}

#[test]
fn a_unit_that_another_pool_executes_is_waited_for_without_a_place() {
    let world = World::new();
    let (part, other_stage) = stage();
    let (other, running) = busy(world.pool(part), &other_stage);
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(1).up();
    pool.pause();
    let handle = enqueue(&pool, "first");
    assert_eq!((pool.stats().queue_size, pool.stats().accepted), (0, 0));
    running.succeed("elsewhere");
    other.wait_for_completion();
    until(|| {
        world.clock.advance(Duration::from_secs(5));
        handle.is_done()
    });
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("elsewhere"));
    for pool in [&pool, &other] {
        pool.stop(Stop::Drain).unwrap();
    }
    assert!(stage.is_empty());
    world.assert_clean();
}

#[test]
fn what_makes_no_sense_is_refused_and_takes_no_place() {
    // 001-F72
    let world = World::new();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part).max_queue_size(1), &stage);
    let refusal = |unit: NewUnit, prompt: Prompt| pool.enqueue(unit, prompt).unwrap_err().reason;
    assert!(matches!(refusal(NewUnit::new("a"), Prompt::OfUnit), Refusal::NoPrompt));
    assert!(matches!(refusal(NewUnit::new("a").prompt("one"), "two".into()), Refusal::TwoPrompts));
    for id in ["", "a\0b", &"x".repeat(1_000_000)] {
        let refused = refusal(NewUnit::new(id), "go".into());
        assert!(matches!(refused, Refusal::Repository(RepositoryError::Invalid(_))), "{refused:?}");
    }
    for unit in [NewUnit::new("first").payload(2), NewUnit::new("first").template("x")] {
        let refused = refusal(unit, "go".into());
        assert!(matches!(refused, Refusal::Repository(RepositoryError::Conflict { .. })), "{refused:?}");
    }
    assert_eq!((pool.stats().queue_size, pool.stats().queued), (0, 0));
    enqueue(&pool, "b");
    drop(call);
    assert_eq!(stage.next().id, "b");
    pool.stop(Stop::Drain).unwrap();
    assert!(is_unknown(&world, "a"));
    world.assert_clean();
}

#[test]
fn a_unit_without_a_prompt_takes_the_one_it_is_enqueued_with() {
    let world = World::new();
    world.repository.insert(world.job, &[NewUnit::new("a")], Intake::Open).unwrap();
    world.repository.insert(world.job, &[NewUnit::new("b").prompt("its own")], Intake::Open).unwrap();
    let (part, stage) = stage();
    let (pool, call) = busy(world.pool(part), &stage);
    let refused = pool.enqueue(NewUnit::new("a"), Prompt::OfUnit).unwrap_err();
    assert!(matches!(refused.reason, Refusal::NoPrompt));
    pool.enqueue(NewUnit::new("a"), "the first").unwrap();
    pool.enqueue(NewUnit::new("b"), Prompt::OfUnit).unwrap();
    let refused = pool.enqueue(NewUnit::new("a"), "the second").unwrap_err();
    assert!(matches!(refused.reason, Refusal::Repository(RepositoryError::Conflict { .. })));
    drop(call);
    for prompt in ["the first", "its own"] {
        assert_eq!(stage.next().prompt, prompt);
    }
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_that_waits_to_be_tried_again_needs_no_place_in_line() {
    // 001-F68
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_queue_size(1).retry(RetryPolicy::fixed(Duration::from_secs(60)));
    let (pool, call) = busy(builder, &stage);
    enqueue(&pool, "a");
    call.fail(ExecuteError::retry("later"));
    let call = stage.next();
    let again = enqueue(&pool, "first");
    assert_eq!((pool.stats().queue_size, pool.stats().pending), (0, 1), "it is not its first attempt");
    enqueue(&pool, "b");
    drop(call);
    drop(stage.next());
    world.clock.advance(Duration::from_secs(60));
    let call = stage.next();
    assert_eq!((call.id.as_str(), call.attempt_number), ("first", 2));
    drop(call);
    assert_eq!(again.wait().unwrap().status, UnitStatus::Completed);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.queued), (3, 3, 2));
    world.assert_clean();
}

#[test]
fn who_enqueues_a_unit_that_begins_meanwhile_takes_no_place_from_others() {
    // 001-F56, 001-F68
    let world = World::new();
    let (part, stage) = stage();
    let slow = SlowClock { clock: world.clock.clone(), gate: Gate::closed() };
    let (pool, call) = busy(world.pool(part).clock(slow.clone()), &stage);
    let first = enqueue(&pool, "a");
    thread::scope(|threads| {
        // It has seen the unit wait, and not yet said so.
        let enqueue_slowly = || enqueue(&pool, "a");
        let enqueuing = thread::Builder::new().name(SLOW.to_owned()).spawn_scoped(threads, enqueue_slowly).unwrap();
        slow.gate.wait_for(1);
        drop(call);
        let call = stage.next();
        slow.gate.open();
        let second = enqueuing.join().unwrap();
        let stats = pool.stats();
        assert_eq!((stats.queue_size, stats.queued, stats.running, stats.pending), (0, 1, 1, 0));
        call.succeed("once");
        for handle in [first, second] {
            assert_eq!(handle.wait().unwrap().output.as_deref(), Some("once"));
        }
    });
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.accepted, 2);
    world.assert_clean();
}

#[test]
fn who_enqueues_a_unit_that_ends_meanwhile_is_told_and_nobody_is_told_twice() {
    // 001-F56
    for is_cancelled in [false, true] {
        let world = World::new();
        let (part, stage) = stage();
        let slow = SlowClock { clock: world.clock.clone(), gate: Gate::closed() };
        let (builder, outcomes) = tells_outcomes(world.pool(part).clock(slow.clone()), &world);
        let (pool, call) = busy(builder, &stage);
        let first = enqueue(&pool, "a");
        thread::scope(|threads| {
            let enqueue_slowly = || enqueue(&pool, "a");
            let enqueuing = thread::Builder::new().name(SLOW.to_owned()).spawn_scoped(threads, enqueue_slowly).unwrap();
            slow.gate.wait_for(1);
            let end = if is_cancelled {
                pool.cancel("a", By::whom("ada")).unwrap();
                drop(call);
                UnitStatus::Cancelled
            } else {
                drop(call);
                drop(stage.next());
                UnitStatus::Completed
            };
            assert_eq!(first.wait().unwrap().status, end);
            assert_eq!(pool.wait_for_completion(), Completion::Done);
            slow.gate.open();
            assert_eq!(enqueuing.join().unwrap().wait().unwrap().status, end);
        });
        assert_eq!(pool.wait_for_completion(), Completion::Done);
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_eq!((stats.accepted, stats.completed + stats.cancelled, stats.queue_size), (2, 2, 0));
        assert_eq!(outcomes.len(), 2, "{:?}", outcomes.try_iter().collect::<Vec<_>>());
        world.assert_clean();
    }
}

#[test]
fn a_unit_gets_its_turn_once_it_was_taken_and_not_as_soon_as_it_is_stored() {
    // 001-F56, 001-F67
    let world = World::new();
    let (part, stage) = stage();
    let slow = SlowClock { clock: world.clock.clone(), gate: Gate::closed() };
    let (builder, outcomes) = tells_outcomes(world.pool(part).clock(slow.clone()), &world);
    let (pool, call) = busy(builder, &stage);
    let last = enqueue(&pool, "last");
    thread::scope(|threads| {
        let enqueue_slowly = || pool.enqueue(NewUnit::new("a").priority(1), "go").unwrap();
        let enqueuing = thread::Builder::new().name(SLOW.to_owned()).spawn_scoped(threads, enqueue_slowly).unwrap();
        slow.gate.wait_for(1);
        assert_eq!(world.status("a"), UnitStatus::Pending, "it is stored, but nobody has been told so");
        drop(call);
        let call = stage.next();
        assert_eq!(call.id, "last");
        slow.gate.open();
        let handle = enqueuing.join().unwrap();
        assert_eq!((pool.stats().queue_size, handle.is_done()), (1, false));
        drop(call);
        drop(stage.next());
        assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    });
    last.wait().unwrap();
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.completed, stats.queue_size), (3, 3, 0));
    assert_eq!(outcomes.len(), 3);
    world.assert_clean();
}

#[test]
fn an_insert_that_fails_once_is_sent_again_and_stored_once() {
    // 001-F56
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (pool, call) = busy(builder, &stage);
    let mut handles = Vec::new();
    for (id, fault) in [("not", Fault::ErrorOnce), ("executed", Fault::ExecutedThenError)] {
        faulty.on(Verb::Insert, fault);
        handles.push(enqueue(&pool, id));
    }
    assert_eq!((pool.stats().queue_size, pool.stats().pending), (2, 2));
    drop(call);
    for handle in handles {
        stage.next().succeed("once");
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("once"));
        assert_eq!(world.attempts(handle.id()).len(), 1);
    }
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.queued, stats.completed), (3, 2, 3));
    world.assert_clean();
}

#[test]
fn an_insert_that_fails_for_good_takes_no_place_and_can_be_sent_again() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let (pool, call) = busy(builder.max_queue_size(1), &stage);
    faulty.on(Verb::Insert, Fault::ErrorAlways);
    let error = pool.enqueue(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(&error.reason, Refusal::Repository(error) if !error.is_rejection()), "{error:?}");
    assert_eq!((pool.stats().queue_size, pool.stats().queued, pool.stats().accepted), (0, 0, 1));
    assert!(is_unknown(&world, "a"));
    faulty.heal(Verb::Insert);
    // Stored both times, and nobody knows.
    for _ in 0..2 {
        faulty.on(Verb::Insert, Fault::ExecutedThenError);
    }
    let error = pool.enqueue(*error.unit, Prompt::OfUnit).unwrap_err();
    assert_eq!((pool.stats().queue_size, world.status("a")), (0, UnitStatus::Pending));
    // Stored, and how it is cannot be read.
    faulty.on(Verb::Read, Fault::ErrorOnce);
    let error = pool.enqueue(*error.unit, Prompt::OfUnit).unwrap_err();
    assert_eq!(pool.stats().queue_size, 0);
    let handle = pool.enqueue(*error.unit, Prompt::OfUnit).unwrap();
    assert_eq!((pool.stats().queue_size, pool.stats().queued), (1, 1));
    drop(call);
    drop(stage.next());
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(world.attempts("a").len(), 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_repository_that_panics_takes_no_place_with_it() {
    let world = World::new();
    let (part, stage) = stage();
    let planned = || panic!("a panic that the test planned");
    let faulty = Arc::new(FaultyRepository::new(world.repository.clone().into()).error(planned));
    let builder = world.pool_on(Arc::clone(&faulty) as Arc<dyn Repository>, part);
    let (pool, call) = busy(builder.max_queue_size(1), &stage);
    faulty.on(Verb::Insert, Fault::ErrorOnce);
    let panicked = catch_unwind(AssertUnwindSafe(|| pool.enqueue(NewUnit::new("a"), "go")));
    assert!(panicked.is_err());
    assert_eq!(pool.stats().queue_size, 0);
    let handle = enqueue(&pool, "a");
    faulty.on(Verb::Claim, Fault::ErrorOnce);
    drop(call);
    // The claimer looks again after a while.
    drop(next_in_time(&world, &stage));
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_claim_that_fails_leaves_the_queue_as_it_was() {
    // 001-F49, 001-F67
    for fault in [Fault::ErrorOnce, Fault::ExecutedThenError] {
        let world = World::new();
        let (part, stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let (pool, call) = busy(builder, &stage);
        let handles = ["a", "b"].map(|id| enqueue(&pool, id));
        faulty.on(Verb::Claim, fault);
        faulty.on(Verb::Claimed, Fault::ErrorOnce);
        drop(call);
        until(|| faulty.calls(Verb::Claimed) > 0);
        for id in ["a", "b"] {
            assert_eq!(next_in_time(&world, &stage).id, id);
        }
        for handle in handles {
            assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
        }
        let stats = pool.stop(Stop::Drain).unwrap().stats;
        assert_eq!((stats.accepted, stats.completed, stats.attempts, stats.queue_size), (3, 3, 3, 0));
        world.assert_clean();
    }
}

#[test]
fn a_unit_that_comes_while_a_claim_finds_nothing_runs_at_once() {
    // 000-F27, 001-F55
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.deaf_pool(part);
    let (pool, call) = busy(builder, &stage);
    let gone = enqueue(&pool, "gone");
    // Behind the pool's back: the claim finds nothing, and before the pool knows there is something.
    world.repository.cancel(world.job, "gone", &By::whom("somebody else")).unwrap();
    let gate = Gate::closed();
    faulty.on(Verb::Claim, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::Gate(gate.clone()));
    drop(call);
    gate.wait_for(1);
    let handle = enqueue(&pool, "a");
    assert_eq!(pool.stats().queue_size, 2);
    gate.open();
    assert_eq!(stage.next().id, "a");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(gone.wait().unwrap().status, UnitStatus::Cancelled);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_unit_whose_claim_was_lost_here_is_executed_when_it_is_enqueued() {
    let world = World::new();
    let (part, stage) = stage();
    let (faulty, builder) = world.faulty_pool(part);
    let pool = builder.max_workers(1).up();
    faulty.on(Verb::Submit, Fault::ExecutedThenError);
    faulty.on(Verb::Claimed, Fault::ErrorOnce);
    // Not even the end of the worker that was to have it is stored, which would give it back.
    faulty.on(Verb::ChangeWorker, Fault::ErrorAlways);
    let error = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(&error.reason, Refusal::Repository(error) if !error.is_rejection()), "{error:?}");
    until(|| faulty.calls(Verb::ChangeWorker) >= 4);
    faulty.heal(Verb::ChangeWorker);
    until(|| pool.stats().free_slots == 1);
    assert_eq!(world.status("a"), UnitStatus::Processing);
    enqueue(&pool, "busy");
    let call = stage.next();
    let handle = pool.enqueue(*error.unit, Prompt::OfUnit).unwrap();
    drop(call);
    next_in_time(&world, &stage).succeed("once");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("once"));
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.unit("a").attempts_used, 1);
    world.assert_clean_after_crashes();
}

#[test]
fn a_failed_unit_may_be_requeued_and_enqueued_in_its_own_callback() {
    let world = World::new();
    let (part, stage) = stage();
    let builder = world.pool(part).max_workers(1);
    let (handle, repository, job) = (builder.handle(), world.repository.clone(), world.job);
    let (tell, again) = crossbeam_channel::unbounded();
    let pool = builder
        .on_unit_failed(move |unit, _| {
            repository.requeue(job, unit.id.as_str(), &By::whom("a callback")).unwrap();
            tell.send(handle.enqueue(NewUnit::new(unit.id.as_str()), "go").unwrap()).unwrap();
        })
        .up();
    let first = enqueue(&pool, "a");
    stage.next().fail(ExecuteError::give_up("no"));
    let again = next(&again);
    stage.next().succeed("at last");
    assert!(first.wait().is_ok());
    assert_eq!(again.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.accepted, stats.failed, stats.completed, stats.queued), (2, 1, 1, 1));
    world.assert_clean();
}
