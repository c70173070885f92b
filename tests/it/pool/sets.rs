//! Several pools in one program: each call finds the pool it means, and none is harmed by what is wrong with another.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::iter::successors;
use std::sync::{Arc, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{bounded, unbounded};
use workcrew::attempt::Provenance;
use workcrew::executor::CancelReason;
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::{
    Archive, Call, Completion, ExecuteError, Executor, JobId, MemoryRepository, NewJob, NewUnit, PoolPhase, PoolSet,
    PoolSetError, Prompt, Refusal, Repository, StartError, Stop, UnitStatus, WaitError, WorkPool, WorkPoolBuilder,
    WorkResult,
};

use super::stage::stage_and_starts;
use super::{PATIENCE, Stage, World, assert_quiet, next, stage, until};
use crate::support;

/// A set of pools of the world's job, with one worker each, and the test as their executor.
fn staged<const N: usize>(world: &World, names: [&str; N]) -> (PoolSet, [Stage; N]) {
    let (mut builder, mut stages) = (PoolSet::builder(), Vec::new());
    for name in names {
        let (part, stage) = stage();
        builder = builder.pool(name, world.pool(part).max_workers(1));
        stages.push(stage);
    }
    let set = builder.start().unwrap();
    assert!(set.await_init_complete().into_values().all(|answer| answer.is_ok()));
    (set, stages.try_into().ok().unwrap())
}

/// Pools of a job of their own.
fn on_job(world: &World, name: &str, executor: impl Executor) -> (JobId, WorkPoolBuilder) {
    let job = world.repository.create_job(&NewJob::named(name)).unwrap().id;
    (job, WorkPool::builder(job, executor, world.repository.clone()).clock(world.clock.clone()))
}

fn names(set: &PoolSet) -> Vec<&str> {
    set.names().collect()
}

/// What each pool answered, in words.
fn told<T, E: ToString>(answers: BTreeMap<String, Result<T, E>>) -> Vec<(String, String)> {
    let word = |answer: Result<T, E>| answer.map_or_else(|error| error.to_string(), |_| "fine".to_owned());
    answers.into_iter().map(|(name, answer)| (name, word(answer))).collect()
}

fn pairs<const N: usize>(expected: [(&str, &str); N]) -> Vec<(String, String)> {
    expected.map(|(name, word)| (name.to_owned(), word.to_owned())).into()
}

#[test]
fn a_unit_goes_to_the_pool_that_is_named_and_else_to_the_first() {
    // 001-F1, 001-F2
    let world = World::new();
    let (set, [first, second]) = staged(&world, ["first", "second"]);
    assert_eq!((names(&set), set.default_name()), (vec!["first", "second"], "first"));
    assert_eq!(set.default_pool().unwrap().label(), "first");
    assert_eq!(set.pool("second").unwrap().label(), "second");
    assert!(set.broken().is_empty());

    assert!(set.wait_for_available_slot());
    set.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let a = first.next();
    assert_eq!((a.id.as_str(), second.is_empty()), ("a", true));
    // The default is full, whatever the other has.
    assert!(!set.wait_for_available_slot_timeout(Duration::from_millis(1)));
    assert!(set.submit_work_unit(NewUnit::new("b"), "go").unwrap_err().is_at_capacity());
    let b = set.enqueue(NewUnit::new("b"), "go").unwrap();
    set.submit_to("second", NewUnit::new("c"), "go").unwrap();
    let c = second.next();
    assert_eq!(c.id, "c");
    set.enqueue_to("second", NewUnit::new("d"), "go").unwrap();
    let stats = set.stats();
    assert_eq!((stats["first"].queue_size, stats["second"].queue_size), (1, 1));
    a.succeed("a");
    assert_eq!(first.next().id, "b");
    assert_eq!(b.wait().unwrap().status, UnitStatus::Completed);
    c.succeed("c");
    assert_eq!(second.next().id, "d");
    set.submit_to("first", NewUnit::new("e"), "go").unwrap();
    assert_eq!(first.next().id, "e");

    let all_done = BTreeMap::from(["first", "second"].map(|name| (name.to_owned(), Completion::Done)));
    assert_eq!(set.wait_for_completion(), all_done);
    assert_eq!(set.wait_for_completion_timeout(Duration::ZERO), all_done);
    let stats = set.stats();
    assert_eq!((stats["first"].completed, stats["second"].completed, stats.len()), (3, 2, 2));
    let summaries = set.stop(Stop::Drain);
    assert!(summaries.len() == 2 && summaries.values().all(|summary| summary.as_ref().unwrap().is_final));
    assert_eq!(set.home_of("a session that nobody has"), None);
    drop(set);
    assert!(first.is_gone() && second.is_gone());
    world.assert_clean();
}

#[test]
fn another_than_the_first_can_be_the_default() {
    // 001-F2
    let world = World::new();
    let ((one, first), (two, second)) = (stage(), stage());
    let set = PoolSet::builder().pool("first", world.pool(one)).default_pool("second").pool("second", world.pool(two));
    let set = set.start().unwrap();
    assert_eq!((names(&set), set.default_name()), (vec!["first", "second"], "second"));
    set.enqueue(NewUnit::new("a"), "go").unwrap().wait_timeout(Duration::ZERO).unwrap_err();
    assert_eq!(second.next().id, "a");
    assert!(first.is_empty());
    set.wait_for_completion();
}

#[test]
fn pools_with_different_executors_and_jobs_share_a_database() {
    // 001-F1
    let world = World::new();
    let shout = |call: &Call<'_>| Ok(WorkResult::text(call.prompt().to_uppercase()));
    let count = |call: &Call<'_>| Ok(WorkResult::text(call.prompt().len().to_string()));
    let ((shouting, shouts), (counting, counts)) =
        (on_job(&world, "shouting", shout), on_job(&world, "counting", count));
    let set = PoolSet::builder().pool("shouts", shouts).pool("counts", counts.label("numbers")).start().unwrap();
    assert_eq!(told(set.await_ready()), pairs([("counts", "fine"), ("shouts", "fine")]));
    // The same name twice is two units, for they are of two jobs.
    let handles = ["shouts", "counts"].map(|name| set.enqueue_to(name, NewUnit::new("a"), "hello").unwrap());
    let outputs = handles.map(|handle| handle.wait().unwrap().output.unwrap());
    assert_eq!(outputs, ["HELLO", "5"]);
    assert_eq!(world.repository.unit(shouting, "a").unwrap().output.as_deref(), Some("HELLO"));
    assert_eq!(world.repository.unit(counting, "a").unwrap().output.as_deref(), Some("5"));
    set.stop(Stop::Drain);
    // A pool is called what it is named, unless it has a label.
    let labels: Vec<String> = world.repository.owners().unwrap().into_iter().map(|owner| owner.label).collect();
    assert_eq!(labels, ["shouts", "numbers"]);
    world.assert_clean();
}

#[test]
fn two_pools_on_one_job_execute_each_unit_once() {
    // 001-F1
    let world = World::new();
    let (set, [one, two]) = staged(&world, ["one", "two"]);
    for number in 0..10 {
        let name = if number % 2 == 0 { "one" } else { "two" };
        set.enqueue_to(name, NewUnit::new(format!("u{number}")), "go").unwrap();
    }
    let mut ids = Vec::new();
    for _ in 0..5 {
        for (stage, parity) in [(&one, 0), (&two, 1)] {
            let call = stage.next();
            assert_eq!(call.id[1..].parse::<usize>().unwrap() % 2, parity, "a pool claims only what it accepted");
            ids.push(call.id.clone());
        }
    }
    set.wait_for_completion();
    ids.sort();
    assert_eq!(ids, (0..10).map(|number| format!("u{number}")).collect::<Vec<_>>());
    // What one has done the other need not do.
    let again = set.submit_to("two", NewUnit::new("u0"), "go").unwrap();
    assert_eq!(again.wait().unwrap().status, UnitStatus::Completed);
    assert!(one.is_empty() && two.is_empty());
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_pool_that_is_not_there_is_named_and_the_unit_comes_back() {
    // 001-F39
    let world = World::new();
    let (set, [stage, _]) = staged(&world, ["a", "b"]);
    let error = set.pool("x").unwrap_err();
    assert!(matches!(&error, PoolSetError::PoolNotFound { name, known } if name == "x" && *known == ["a", "b"]));
    assert_eq!((error.name(), error.to_string().as_str()), (Some("x"), "there is no pool `x`: there are `a` and `b`"));
    type Give = fn(&PoolSet, NewUnit, Prompt) -> Result<workcrew::UnitHandle, workcrew::SubmitError>;
    let gives: [Give; 2] =
        [|set, unit, prompt| set.submit_to("x", unit, prompt), |set, unit, prompt| set.enqueue_to("x", unit, prompt)];
    for (give, id) in gives.into_iter().zip(["u", "v"]) {
        let refused = give(&set, NewUnit::new(id).priority(7), "go".into()).unwrap_err();
        assert!(matches!(&refused.reason, Refusal::PoolNotFound(name) if name == "x"));
        assert_eq!(refused.to_string(), format!("unit `{id}` cannot be taken: there is no pool `x`"));
        assert_eq!((refused.unit.priority, refused.unit.prompt.as_deref()), (7, Some("go")));
        assert!(world.repository.unit(world.job, id).is_err(), "nothing is stored");
        let two_prompts = give(&set, NewUnit::new("u").prompt("go"), "stop".into()).unwrap_err();
        assert!(matches!(two_prompts.reason, Refusal::TwoPrompts));
        let own_prompt = give(&set, NewUnit::new("u").prompt("go"), Prompt::OfUnit).unwrap_err();
        assert_eq!(own_prompt.unit.prompt.as_deref(), Some("go"));
        // It can be given to another as it is.
        set.enqueue(*refused.unit, Prompt::OfUnit).unwrap();
        assert_eq!(stage.next().prompt, "go");
    }
    set.wait_for_completion();
    // Nothing is a pool but its exact name.
    for name in ["", "A", "a ", "a\0", &"x".repeat(10_000)] {
        let error = set.pool(name).unwrap_err();
        assert_eq!(error.name(), Some(name));
        assert!(error.to_string().len() < 200);
    }
}

#[test]
fn what_is_wrong_with_the_set_itself_is_an_error_and_nothing_is_built() {
    // 001-F1
    let world = World::new();
    let long = "x".repeat(201);
    let cases: [(&[&str], Option<&str>, &str); 9] = [
        (&[], None, "there is no pool in the set"),
        (&[], Some("a"), "there is no pool in the set"),
        (&["a", "b", "a"], None, "two pools have the name `a`"),
        (&["a", ""], None, "the name `` of a pool is empty"),
        (&["a\nb"], None, "the name `a\\nb` of a pool has a control character"),
        (&[&long], None, "x…` of a pool is too long"),
        (&["a"], Some("b"), "there is no pool `b`: there is `a`"),
        (&["a", "b", "c"], Some("d"), "there is no pool `d`: there are `a`, `b` and `c`"),
        (&["1", "2", "3", "4", "5", "6", "7"], Some("8"), "there are `1`, `2`, `3`, `4`, `5` and 2 more"),
    ];
    for (names, default, reason) in cases {
        let (faulty, mut set, mut stages) = (faulty(&world), PoolSet::builder(), Vec::new());
        for &name in names {
            let (part, stage) = stage();
            set = set.pool(name, world.pool_on(Arc::clone(&faulty) as Arc<dyn Repository>, part));
            stages.push(stage);
        }
        if let Some(default) = default {
            set = set.default_pool(default);
        }
        let error = set.start().unwrap_err();
        assert!(error.to_string().ends_with(reason), "{error}");
        assert!(error.source().is_none());
        assert_eq!(error.name().is_none(), matches!(error, PoolSetError::NoPools));
        assert_eq!(faulty.calls(Verb::Read), 0);
        assert!(stages.iter().all(Stage::is_gone));
    }
    let fits = "ü".repeat(100);
    let set = PoolSet::builder().pool(&*fits, world.pool(stage().0)).pool(" ", world.pool(stage().0)).build().unwrap();
    assert_eq!(names(&set), [&fits, " "]);
    world.assert_clean();
}

fn faulty(world: &World) -> Arc<FaultyRepository> {
    Arc::new(FaultyRepository::new(world.repository.clone().into()))
}

/// An executor that cannot say what it is.
struct Speechless;

impl Executor for Speechless {
    fn execute(&self, _: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }

    fn provenance(&self) -> Provenance {
        panic!("no idea")
    }
}

/// Everything that asks for a broken pool is told why, and the others serve.
fn assert_one_is_broken(world: &World, broken: WorkPoolBuilder, reason: &str, is_built: bool) {
    let ((one, first), (two, last)) = (stage(), stage());
    let to_broken = broken.handle();
    let set = PoolSet::builder()
        .pool("first", world.pool(one))
        .pool("broken", broken)
        .pool("last", world.pool(two))
        .default_pool("broken");
    let set = set.start().unwrap();
    let why = format!("the pool did not start: {reason}");
    let expected = pairs([("broken", why.as_str()), ("first", "fine"), ("last", "fine")]);
    assert_eq!(told(set.await_init_complete()), expected);
    assert_eq!(told(set.await_init_complete_timeout(PATIENCE)), expected);
    assert_eq!(told(set.await_ready()), expected);
    assert_eq!(told(set.await_ready_timeout(PATIENCE)), expected);

    for error in [set.pool("broken").unwrap_err(), set.default_pool().unwrap_err(), set.broken().remove(0)] {
        assert_eq!(error.name(), Some("broken"));
        assert!(matches!(&error, PoolSetError::PoolBroken { reason: why, .. } if why == reason), "{error:?}");
        let causes = successors(error.source(), |&cause| cause.source()).map(|cause| format!(": {cause}"));
        assert_eq!(format!("{error}{}", causes.collect::<String>()), format!("the pool `broken` is broken: {reason}"));
    }
    assert_eq!(set.start().len(), 1, "to start again repairs nothing");
    assert_eq!((names(&set), set.default_name()), (vec!["first", "broken", "last"], "broken"));
    let refusals = [
        set.submit_to("broken", NewUnit::new("u"), "go"),
        set.enqueue_to("broken", NewUnit::new("u"), "go"),
        set.submit_work_unit(NewUnit::new("u"), "go"),
        set.enqueue(NewUnit::new("u"), "go"),
    ];
    for refused in [to_broken.enqueue(NewUnit::new("u"), "go"), to_broken.submit_work_unit(NewUnit::new("u"), "go")] {
        let refused = refused.unwrap_err();
        assert!(matches!(&refused.reason, Refusal::InitFailed(why) if why == reason), "{refused}");
    }
    for refused in refusals.map(Result::unwrap_err) {
        assert!(
            matches!(&refused.reason, Refusal::PoolBroken { name, reason: why } if name == "broken" && why == reason),
            "{refused}"
        );
        assert_eq!(refused.unit.prompt.as_deref(), Some("go"));
    }
    assert!(!set.wait_for_available_slot() && !set.wait_for_available_slot_timeout(PATIENCE));
    let stats = set.stats();
    assert_eq!(stats.get("broken").map(|stats| stats.phase), is_built.then_some(PoolPhase::InitFailed));

    for (name, stage) in [("first", &first), ("last", &last)] {
        let handle = set.enqueue_to(name, NewUnit::new(name), "go").unwrap();
        stage.next().succeed("done");
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("done"));
    }
    let completions = set.wait_for_completion();
    let words = ["broken", "first", "last"].map(|name| completions[name].clone());
    assert_eq!(words, [Completion::Stopped, Completion::Done, Completion::Done]);
    let summaries = set.stop(Stop::Drain);
    assert_eq!(summaries.contains_key("broken"), is_built);
    assert!(summaries.values().all(|summary| summary.as_ref().unwrap().is_final));
    drop(set);
    assert!(first.is_gone() && last.is_gone());
}

#[test]
fn a_bad_setting_breaks_one_pool_and_no_other() {
    // 001-F1, 001-F22
    let world = World::new();
    let reason = "the setting `max_workers` is 0, which lets nothing be done";
    assert_one_is_broken(&world, world.pool(stage().0).max_workers(0), reason, false);
    world.assert_clean();
}

#[test]
fn a_job_that_is_not_there_breaks_one_pool_and_no_other() {
    // 001-F1, 001-F22
    let world = World::new();
    let broken = WorkPool::builder(JobId(99), stage().0, world.repository.clone());
    assert_one_is_broken(&world, broken, "the repository does not let the pool start: there is no job 99", false);
    world.assert_clean();
}

#[test]
fn a_repository_that_fails_breaks_one_pool_and_no_other() {
    // 001-F1, 001-F22
    for (verb, is_built) in [(Verb::Read, false), (Verb::RegisterOwner, true)] {
        let world = World::new();
        let (faulty, broken) = world.faulty_pool(stage().0);
        faulty.on(verb, Fault::ErrorAlways);
        let reason = "the repository does not let the pool start: the storage failed: a fault that the test planned";
        assert_one_is_broken(&world, broken, reason, is_built);
        world.assert_clean();
    }
}

#[test]
fn a_repository_that_panics_breaks_one_pool_and_no_other() {
    // 001-F1, 001-F22
    let world = World::new();
    let faulty = FaultyRepository::new(world.repository.clone().into()).error(|| panic!("no idea"));
    faulty.on(Verb::RegisterOwner, Fault::ErrorAlways);
    let broken = world.pool_on(Arc::new(faulty) as Arc<dyn Repository>, stage().0);
    assert_one_is_broken(&world, broken, "it panicked: no idea", true);
    world.assert_clean();
}

#[test]
fn an_executor_that_panics_when_its_pool_is_built_breaks_one_pool_and_no_other() {
    // 001-F1
    let world = World::new();
    assert_one_is_broken(&world, world.pool(Speechless), "it panicked: no idea", false);
    world.assert_clean();
}

#[test]
fn an_init_hook_that_fails_breaks_one_pool_and_no_other() {
    // 001-F1, 001-F22
    let world = World::new();
    let broken = world.pool(stage().0).init_hook(|_| Err(ExecuteError::give_up("the server is down")));
    assert_one_is_broken(&world, broken, "init_hook: executor: the server is down", true);
    world.assert_clean();
}

/// An executor none of whose workers comes up.
struct Unable;

impl Executor for Unable {
    fn execute(&self, _: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }

    fn start_worker(&self, _: &workcrew::WorkerId, _: &workcrew::executor::CancelToken) -> Result<(), ExecuteError> {
        Err(ExecuteError::give_up("no program"))
    }
}

#[test]
fn workers_that_do_not_come_up_break_one_pool_and_no_other() {
    // 001-F1, 001-F22
    let world = World::new();
    let probe = world.pool(Unable).start().unwrap();
    let WaitError::InitFailed(reason) = probe.await_init_complete().unwrap_err() else { panic!("it came up") };
    assert!(reason.contains("no program"), "{reason}");
    drop(probe);
    assert_one_is_broken(&world, world.pool(Unable), &reason, true);
}

#[test]
fn what_is_behind_a_broken_pool_can_be_matched() {
    // 001-F22
    let world = World::new();
    let (faulty, unreadable) = world.faulty_pool(stage().0);
    faulty.on(Verb::Read, Fault::ErrorAlways);
    let set = PoolSet::builder()
        .pool("zero", world.pool(stage().0).max_workers(0))
        .pool("unreadable", unreadable)
        .pool("hook", world.pool(stage().0).init_hook(|_| Err(ExecuteError::give_up("no"))))
        .build()
        .unwrap();
    assert_eq!(set.broken().len(), 2, "what is not started has not failed to");
    assert_eq!(set.stats().into_keys().collect::<Vec<_>>(), ["hook"]);
    set.start();
    set.await_init_complete();
    let errors = set.broken().into_iter().map(|broken| match broken {
        PoolSetError::PoolBroken { error, .. } => error,
        other => panic!("{other}"),
    });
    let errors: Vec<Option<Arc<StartError>>> = errors.collect();
    assert!(matches!(errors[0].as_deref(), Some(StartError::Setting { name: "max_workers", .. })));
    assert!(matches!(errors[1].as_deref(), Some(StartError::Repository(_))));
    assert!(errors[2].is_none() && errors.len() == 3);
    assert!(set.pool("unreadable").unwrap_err().source().unwrap().is::<workcrew::RepositoryError>());
}

#[test]
fn a_set_whose_pools_are_all_broken_is_still_a_set() {
    let world = World::new();
    let zero = || world.pool(stage().0).max_workers(0);
    let set = PoolSet::builder().pool("a", zero()).pool("b", zero()).start().unwrap();
    assert_eq!(set.broken().len(), 2);
    assert!(set.stats().is_empty() && set.stop(Stop::Now).is_empty());
    assert_eq!(set.wait_for_completion().into_values().collect::<Vec<_>>(), [Completion::Stopped, Completion::Stopped]);
}

#[test]
fn a_broken_pool_is_logged_with_the_reason() {
    support::keep_log();
    let world = World::new();
    let (faulty, broken) = world.faulty_pool(stage().0);
    faulty.on(Verb::RegisterOwner, Fault::ErrorAlways);
    let builder = PoolSet::builder().pool("cannot start", broken);
    let set = builder.pool("cannot be built", world.pool(stage().0).timeout(Duration::ZERO)).build().unwrap();
    let built = ["WARN the setting `timeout` is 0ns, which leaves no time at all"];
    assert_eq!(support::logged("cannot be built"), built);
    for _ in 0..2 {
        set.start();
        let reason = "the repository does not let the pool start: the storage failed: a fault that the test planned";
        let info = format!("INFO the pool `cannot start` could not be started: {reason}");
        assert_eq!(support::logged("cannot start"), [info, format!("WARN {reason}")]);
    }
    assert_eq!(support::logged("cannot be built"), built);
}

#[test]
fn to_start_all_starts_those_that_are_not() {
    let world = World::new();
    let ((one, first), (two, second)) = (stage(), stage());
    let set = PoolSet::builder().pool("first", world.pool(one)).pool("second", world.pool(two)).build().unwrap();
    let phases = || set.stats().into_values().map(|stats| stats.phase).collect::<Vec<_>>();
    assert_eq!(phases(), [PoolPhase::Configuring, PoolPhase::Configuring]);
    assert_eq!(
        told(set.await_ready()),
        pairs([("first", "the pool is not running"), ("second", "the pool is not running")])
    );
    let refused = set.enqueue(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::NotReady(PoolPhase::Configuring)));
    set.pool("second").unwrap().start().unwrap();
    assert!(set.start().is_empty() && set.start().is_empty());
    assert_eq!(told(set.await_init_complete()), pairs([("first", "fine"), ("second", "fine")]));
    assert_eq!(phases(), [PoolPhase::Running, PoolPhase::Running]);
    set.pool("first").unwrap().stop(Stop::Drain).unwrap();
    assert!(set.start().is_empty());
    assert_eq!(phases(), [PoolPhase::Stopped, PoolPhase::Running], "what has stopped has stopped");
    let refused = set.enqueue(NewUnit::new("a"), "go").unwrap_err();
    assert!(matches!(refused.reason, Refusal::Stopped));
    set.enqueue_to("second", *refused.unit, Prompt::OfUnit).unwrap();
    drop(second.next());
    set.wait_for_completion();
    drop(set);
    assert!(first.is_gone() && second.is_gone());
    world.assert_clean();
}

#[test]
fn each_pool_is_waited_for_until_it_is_up() {
    // 001-F21
    let world = World::new();
    let ((one, _, starts_of_one), (two, _, starts_of_two)) = (stage_and_starts(), stage_and_starts());
    let set = PoolSet::builder().pool("one", world.pool(one)).pool("two", world.pool(two)).start().unwrap();
    let (first, second) = (next(&starts_of_one), next(&starts_of_two));
    let short = Duration::from_millis(1);
    assert_eq!(told(set.await_ready_timeout(short)), pairs([("one", "the time was up"), ("two", "the time was up")]));
    drop(second);
    set.pool("two").unwrap().await_init_complete().unwrap();
    let expected = pairs([("one", "the time was up"), ("two", "fine")]);
    assert_eq!(told(set.await_ready_timeout(short)), expected);
    assert_eq!(told(set.await_init_complete_timeout(short)), expected);
    thread::scope(|threads| {
        let ready = threads.spawn(|| set.await_ready());
        let complete = threads.spawn(|| set.await_init_complete());
        until(|| set.stats()["one"].init_waiters == 2);
        first.fail(ExecuteError::give_up("no"));
        for answers in [ready.join().unwrap(), complete.join().unwrap()] {
            assert!(matches!(answers["one"], Err(WaitError::InitFailed(_))) && answers["two"].is_ok());
        }
    });
    assert_eq!(set.broken().len(), 1);
}

#[test]
fn one_deadline_is_for_all_pools() {
    let (job, patience, mut builder, mut parts) =
        (memory_job(), Duration::from_millis(200), PoolSet::builder(), Vec::new());
    for number in 0..10 {
        let (part, stage, starts) = stage_and_starts();
        builder = builder.pool(number.to_string(), WorkPool::builder(job.1, part, Arc::clone(&job.0)));
        parts.push((stage, starts));
    }
    let set = builder.start().unwrap();
    let upcoming: Vec<_> = parts.iter().map(|(_, starts)| next(starts)).collect();
    let began = Instant::now();
    assert!(set.await_ready_timeout(patience).values().all(|answer| matches!(answer, Err(WaitError::TimedOut))));
    assert!((patience..patience * 9).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop(upcoming);
    set.await_init_complete();
    let call = |(number, (stage, _)): (usize, &(Stage, _))| {
        set.enqueue_to(&number.to_string(), NewUnit::new(number.to_string()), "go").unwrap();
        stage.next()
    };
    let calls: Vec<_> = parts.iter().enumerate().map(call).collect();
    let began = Instant::now();
    assert!(set.wait_for_completion_timeout(patience).values().all(|end| *end == Completion::TimedOut));
    assert!(set.stop_timeout(Stop::Drain, patience).values().all(|summary| !summary.as_ref().unwrap().is_final));
    assert!((patience * 2..patience * 10).contains(&began.elapsed()), "{:?}", began.elapsed());
    drop(calls);
    assert!(set.stop(Stop::Drain).values().all(|summary| summary.as_ref().unwrap().is_final));
}

fn memory_job() -> (Arc<dyn Repository>, JobId) {
    let repository: Arc<dyn Repository> = MemoryRepository::new().into();
    let job = repository.create_job(&NewJob::named("a job")).unwrap().id;
    (repository, job)
}

#[test]
fn what_one_pool_gives_to_another_is_waited_for_too() {
    let world = World::new();
    let ((one, first), (two, second)) = (stage(), stage());
    let to = world.pool(one);
    let to_first = to.handle();
    let from = world.pool(two).on_unit_complete(move |unit, _| {
        to_first.enqueue(NewUnit::new(format!("after {}", unit.id)), "go").unwrap();
    });
    // The one that gets something is looked at before the one that gives it.
    let set = PoolSet::builder().pool("to", to).pool("from", from).start().unwrap();
    set.await_init_complete();
    let given = set.enqueue_to("from", NewUnit::new("a"), "go").unwrap();
    let call = second.next();
    thread::scope(|threads| {
        let (tell, ended) = bounded(1);
        let set = &set;
        threads.spawn(move || tell.send(set.wait_for_completion()).unwrap());
        assert_quiet(&ended);
        call.succeed("done");
        let follow_up = first.next();
        given.wait().unwrap();
        assert_quiet(&ended);
        assert_eq!(follow_up.id, "after a");
        let ends = set.wait_for_completion_timeout(Duration::from_millis(1));
        assert_eq!((&ends["to"], &ends["from"]), (&Completion::TimedOut, &Completion::Done));
        drop(follow_up);
        assert!(next(&ended).into_values().all(|end| end == Completion::Done));
    });
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn a_pool_that_is_blocked_says_so_and_keeps_no_other_waiting() {
    let world = World::new();
    let (set, [one, two]) = staged(&world, ["one", "two"]);
    set.enqueue(NewUnit::new("a"), "go").unwrap();
    one.next().fail(ExecuteError::hold("no key"));
    set.enqueue_to("two", NewUnit::new("b"), "go").unwrap();
    drop(two.next());
    let ends = set.wait_for_completion();
    assert_eq!(ends["one"], Completion::Blocked("executor: no key".to_owned()));
    assert_eq!(ends["two"], Completion::Done);
    set.pool("one").unwrap().resume();
    drop(one.next());
    assert_eq!(set.wait_for_completion()["one"], Completion::Done);
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn all_pools_stop_at_the_same_time() {
    // 001-F1, 004-F46
    let world = World::new();
    let (set, stages) = staged(&world, ["one", "two", "three"]);
    let handles = ["one", "two", "three"].map(|name| set.submit_to(name, NewUnit::new(name), "go").unwrap());
    let deaf = stages.each_ref().map(Stage::next);
    thread::scope(|threads| {
        let stopping = threads.spawn(|| set.stop(Stop::Cancel { grace: Duration::from_secs(5) }));
        for call in &deaf {
            assert_eq!(call.asked(), CancelReason::Shutdown);
        }
        assert!(set.stats().values().all(|stats| stats.phase == PoolPhase::Draining));
        assert!(!stopping.is_finished());
        // One grace for all of them.
        world.clock.advance(Duration::from_secs(5));
        for (name, summary) in stopping.join().unwrap() {
            let summary = summary.unwrap();
            assert_eq!((summary.is_final, summary.stats.left_pending), (true, 1), "{name}");
        }
    });
    assert!(handles.iter().all(|handle| matches!(handle.wait(), Err(WaitError::LeftPending))));
    drop(deaf);
    drop(set);
    stages.iter().for_each(|stage| until(|| stage.is_gone()));
    world.assert_clean();
}

#[test]
fn a_pool_that_takes_its_time_to_stop_keeps_no_other_running() {
    let world = World::new();
    let (set, [one, two]) = staged(&world, ["one", "two"]);
    set.submit_to("one", NewUnit::new("a"), "go").unwrap();
    let slow = one.next();
    set.submit_to("two", NewUnit::new("b"), "go").unwrap();
    let in_line = set.enqueue_to("two", NewUnit::new("c"), "go").unwrap();
    let quick = two.next();
    thread::scope(|threads| {
        let stopping = threads.spawn(|| set.stop(Stop::Drain));
        assert!(matches!(in_line.wait(), Err(WaitError::LeftPending)));
        drop(quick);
        until(|| set.stats()["two"].phase == PoolPhase::Stopped);
        assert_eq!(set.stats()["one"].phase, PoolPhase::Draining);
        let summaries = set.stop_timeout(Stop::Drain, Duration::from_millis(1));
        let is_final = |name: &str| summaries[name].as_ref().unwrap().is_final;
        assert!(!is_final("one") && is_final("two"));
        assert!(!stopping.is_finished());
        slow.succeed("done");
        let summaries = stopping.join().unwrap();
        assert!(summaries.values().all(|summary| summary.as_ref().unwrap().is_final));
        assert_eq!(summaries["one"].as_ref().unwrap().stats.completed, 1);
        assert_eq!(summaries["two"].as_ref().unwrap().stats.left_pending, 1);
    });
    assert!(set.stop(Stop::Now).values().all(|summary| summary.as_ref().unwrap().is_final), "twice is once");
    world.assert_clean();
}

#[test]
fn a_repository_that_does_not_answer_keeps_no_other_pool_from_hearing_of_the_end() {
    let stop = |set: PoolSet| drop(set.stop(Stop::Cancel { grace: Duration::from_secs(5) }));
    for end in [stop, drop] {
        let world = World::new();
        let ((one, first), (two, second)) = (stage(), stage());
        let (faulty, silent) = world.faulty_pool(one);
        let builder = PoolSet::builder().pool("silent", silent.max_workers(1)).pool("other", world.pool(two));
        let set = builder.start().unwrap();
        set.await_init_complete();
        // What waits in line is to be let go.
        let silent = ["a", "b"].map(|id| set.enqueue(NewUnit::new(id), "go").unwrap());
        set.enqueue_to("other", NewUnit::new("c"), "go").unwrap();
        let (call, other) = (first.next(), second.next());
        let gate = Gate::closed();
        faulty.on(Verb::LetGo, Fault::Gate(gate.clone()));
        thread::scope(|threads| {
            threads.spawn(move || end(set));
            gate.wait_for(1);
            assert_eq!(other.asked(), CancelReason::Shutdown);
            assert!(!silent[1].is_done());
            gate.open();
            drop((call, other));
        });
        assert!(matches!(silent[1].wait(), Err(WaitError::LeftPending)));
        world.assert_clean();
    }
}

#[test]
fn a_stop_that_cannot_be_stored_is_told_of_one_pool_and_the_others_end() {
    let world = World::new();
    let (faulty, failing) = world.faulty_pool(stage().0);
    let set = PoolSet::builder().pool("failing", failing).pool("fine", world.pool(stage().0)).start().unwrap();
    set.await_init_complete();
    faulty.on(Verb::EndOwner, Fault::ErrorAlways);
    let expected = pairs([("failing", "the end of the pool could not be stored"), ("fine", "fine")]);
    assert_eq!(told(set.stop(Stop::Drain)), expected);
}

#[test]
fn threads_of_the_pools_wait_for_none_of_them() {
    let world = World::new();
    let (shared, (tell, told)) = (Arc::new(OnceLock::<PoolSet>::new()), unbounded());
    let both = Gate::closed();
    let pool = |executor| {
        let (shared, tell, both) = (Arc::clone(&shared), tell.clone(), both.clone());
        world.pool(executor).on_unit_complete(move |_, _| {
            // In both pools at once: each would wait for the other.
            both.pass();
            let set = shared.get().unwrap();
            let ends = set.wait_for_completion();
            assert!(ends.values().all(|end| *end == Completion::WouldDeadlock));
            let waits = [set.await_ready(), set.await_init_complete_timeout(PATIENCE)];
            let would_deadlock = |answer: &Result<(), WaitError>| matches!(answer, Err(WaitError::WouldDeadlock));
            assert!(waits.iter().all(|answers| answers.values().all(would_deadlock)));
            let summaries = set.stop(Stop::Drain);
            tell.send(summaries.values().all(|summary| !summary.as_ref().unwrap().is_final)).unwrap();
        })
    };
    let ((one, first), (two, second)) = (stage(), stage());
    let set = PoolSet::builder().pool("one", pool(one)).pool("two", pool(two)).start().unwrap();
    set.await_init_complete();
    let set = shared.get_or_init(|| set);
    let handles = ["one", "two"].map(|name| set.enqueue_to(name, NewUnit::new(name), "go").unwrap());
    drop((first.next(), second.next()));
    both.wait_for(2);
    both.open();
    assert!(next(&told) && next(&told));
    assert!(handles.iter().all(|handle| handle.wait().unwrap().status == UnitStatus::Completed));
    assert!(set.stop(Stop::Drain).values().all(|summary| summary.as_ref().unwrap().is_final));
    world.assert_clean();
}

#[test]
fn a_thread_of_one_pool_does_not_wait_for_a_place_in_another() {
    let world = World::new();
    let (shared, (tell, told)) = (Arc::new(OnceLock::<PoolSet>::new()), unbounded());
    let ((one, first), (two, second)) = (stage(), stage());
    let other = {
        let shared = Arc::clone(&shared);
        world.pool(two).on_unit_complete(move |_, _| {
            let set = shared.get().unwrap();
            tell.send([set.wait_for_available_slot(), set.wait_for_available_slot_timeout(PATIENCE)]).unwrap();
        })
    };
    let set = PoolSet::builder().pool("full", world.pool(one).max_workers(1)).pool("other", other).start().unwrap();
    set.await_init_complete();
    let set = shared.get_or_init(|| set);
    // Also if there is one: it would be this thread's for a while.
    for id in ["a", "b"] {
        set.enqueue_to("other", NewUnit::new(id), "go").unwrap();
        drop(second.next());
        assert_eq!(next(&told), [false, false]);
        assert_eq!(set.stats()["full"].reserved_slots, 0);
        set.enqueue(NewUnit::new(format!("after {id}")), "go").unwrap();
    }
    drop(first.next());
    drop(first.next());
    set.wait_for_completion();
    set.stop(Stop::Drain);
    world.assert_clean();
}

#[test]
fn dropped_without_a_stop_all_pools_end_at_the_same_time() {
    let world = World::new();
    let ((one, first), (two, second)) = (stage(), stage());
    let grace = Duration::from_secs(5);
    let pool = |part| world.pool(part).max_workers(1).shutdown_grace(grace);
    let set = PoolSet::builder().pool("one", pool(one)).pool("two", pool(two)).start().unwrap();
    set.await_init_complete();
    let handles = ["one", "two"].map(|name| set.enqueue_to(name, NewUnit::new(name), "go").unwrap());
    let deaf = [first.next(), second.next()];
    thread::scope(|threads| {
        let dropping = threads.spawn(move || drop(set));
        for call in &deaf {
            assert_eq!(call.asked(), CancelReason::Shutdown);
        }
        assert!(!dropping.is_finished());
        world.clock.advance(grace);
        dropping.join().unwrap();
    });
    assert!(handles.iter().all(|handle| matches!(handle.wait(), Err(WaitError::LeftPending))));
    world.assert_clean();
    drop(deaf);
    until(|| first.is_gone() && second.is_gone());
    assert_eq!(world.unit("one").attempts_used, 0);
}

#[test]
fn dropped_on_a_thread_of_one_of_its_pools_a_set_waits_for_none() {
    let world = World::new();
    let ((one, first), (two, second)) = (stage(), stage());
    let (shared, (tell, dropped)) = (Arc::new(Mutex::new(None::<PoolSet>)), bounded(1));
    let drops = {
        let shared = Arc::clone(&shared);
        world.pool(one).on_unit_complete(move |_, _| {
            drop(shared.lock().unwrap().take());
            tell.send(()).unwrap();
        })
    };
    let set = PoolSet::builder().pool("drops", drops).pool("other", world.pool(two)).start().unwrap();
    set.await_init_complete();
    set.enqueue_to("other", NewUnit::new("deaf"), "go").unwrap();
    let deaf = second.next();
    let handle = set.enqueue(NewUnit::new("a"), "go").unwrap();
    *shared.lock().unwrap() = Some(set);
    drop(first.next());
    assert_eq!(deaf.asked(), CancelReason::Shutdown);
    next(&dropped);
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    drop(deaf);
    until(|| first.is_gone() && second.is_gone());
    world.assert_clean();
}

#[test]
fn sets_that_were_never_started_just_go() {
    let world = World::new();
    let ((one, first), (two, second)) = (stage(), stage());
    let set = PoolSet::builder().pool("one", world.pool(one)).pool("two", world.pool(two)).build().unwrap();
    assert!(format!("{set:?}").contains("\"two\""));
    drop(set);
    assert!(first.is_gone() && second.is_gone());
    world.assert_clean();
}
