//! The same work once: one of those that need it is executed, the others wait for it, and an answer that is there is taken.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::json;
use workcrew::limits::{AccountHolder, Estimate, RateLimits};
use workcrew::money::Cost;
use workcrew::repository::{By, Claimant, Shared, Slot, Submitted};
use workcrew::same_work::{Parameters, WorkKey};
use workcrew::testing::{Fault, FaultyRepository, Verb};
use workcrew::unit::UnitOptions;
use workcrew::{
    Affinity, Archive, AttemptKey, AttemptReport, Beginning, Call, Charge, Claim, Completion, ExecuteError, Executor,
    JobChange, Message, Money, NewJob, NewUnit, Outcome, Part, Prompt, Repository, RetryPolicy, Role, Simulated, Stop,
    Tokens, UnitHandle, UnitStatus, WorkPool, WorkPoolBuilder, WorkResult, WorkerId,
};

use super::stage::{Part as Play, Played, Stage};
use super::{World, assert_quiet, stage, tells_outcomes, until};
use crate::support;
use crate::support::Up as _;

const PROMPT: &str = "What is the capital of France?";

/// What the stage is told by, in all these tests.
const PARAMETERS: u8 = 1;

/// A pool that does the same work once, the test as its executor, and how often it was asked whose the work is.
struct Scene {
    world: World,
    faulty: Arc<FaultyRepository>,
    pool: WorkPool,
    stage: Stage,
}

impl Scene {
    fn new(workers: usize) -> Scene {
        Scene::with(World::new(), workers, |builder| builder)
    }

    fn with(world: World, workers: usize, set: impl FnOnce(WorkPoolBuilder) -> WorkPoolBuilder) -> Scene {
        let (part, stage): (Play, Stage) = stage();
        let (faulty, builder) = world.faulty_pool(part);
        let pool = set(builder.max_workers(workers).same_work_once_with(PARAMETERS)).up();
        Scene { world, faulty, pool, stage }
    }

    fn enqueue(&self, id: &str) -> UnitHandle {
        self.pool.enqueue(NewUnit::new(id), PROMPT).unwrap()
    }

    /// One that is executed, and one that waits for it.
    fn one_waits(&self) -> (Played, UnitHandle, UnitHandle) {
        self.one_waits_for(NewUnit::new("a"))
    }

    fn one_waits_for(&self, first: NewUnit) -> (Played, UnitHandle, UnitHandle) {
        let first = self.pool.enqueue(first, PROMPT).unwrap();
        let call = self.stage.next();
        let asked = self.faulty.calls(Verb::Share);
        let second = self.enqueue("b");
        // The second time it stands in line.
        until(|| self.faulty.calls(Verb::Share) >= asked + 2);
        (call, first, second)
    }

    /// Whose answer the last attempt of a unit has.
    fn answer_of(&self, id: &str) -> Option<AttemptKey> {
        self.world.attempts(id).pop().unwrap().answer_of
    }

    fn end(self) {
        let Scene { world, pool, stage, .. } = self;
        pool.stop(Stop::Drain).unwrap();
        drop(pool);
        // Who was left behind may still store what came of it.
        until(|| stage.is_gone());
        assert!(stage.is_empty(), "nothing else was executed");
        world.assert_clean();
    }
}

fn outcomes(scene: &Scene, id: &str) -> Vec<Outcome> {
    scene.world.attempts(id).iter().map(|attempt| attempt.outcome.unwrap()).collect()
}

fn charge() -> Charge {
    Charge::reported("large", Tokens { output: 7, ..Tokens::default() }, Money::from_nanos(21))
}

/// What a real answer consists of.
fn answer() -> WorkResult {
    WorkResult::text("Paris").json(json!({ "capital": "Paris", "surely": 0.1 })).charge(charge()).session("s-17")
}

#[test]
fn of_units_that_need_the_same_one_is_executed_and_all_have_its_answer() {
    let (world, (part, stage)) = (World::new(), stage());
    let builder = world.pool(part).max_workers(4).same_work_once_with(PARAMETERS);
    let (builder, told) = tells_outcomes(builder, &world);
    let pool = builder.up();
    let ids = ["a", "b", "c", "d", "e", "f"];
    let handles: Vec<UnitHandle> = ids.iter().map(|id| pool.enqueue(NewUnit::new(*id), PROMPT).unwrap()).collect();
    let call = stage.next();
    assert_quiet(&stage.calls);
    call.say("I know that.");
    let executed = call.id.clone();
    call.end(|_| Ok(answer()));
    let units: Vec<_> = handles.iter().map(|handle| handle.wait().unwrap()).collect();
    assert_eq!(pool.wait_for_completion(), Completion::Done);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert!(stage.is_empty());
    assert_eq!((stats.completed, stats.attempts, stats.errors), (6, 1, 0));

    let key = world.attempt_key(&executed, 1);
    for unit in units {
        assert_eq!(
            (unit.status, unit.output.as_deref(), unit.attempt_count),
            (UnitStatus::Completed, Some("Paris"), 1)
        );
        assert_eq!((unit.result, unit.session_id.as_deref()), (answer().json, Some("s-17")));
        let id = unit.id.as_str();
        let attempt = &world.attempts(id)[0];
        let charges = world.repository.charges(attempt.key).unwrap();
        if id == executed {
            assert_eq!((attempt.answer_of, &*charges), (None, &[charge()][..]));
            continue;
        }
        assert_eq!((attempt.answer_of, unit.tokens.total()), (Some(key), 0));
        assert_eq!(charges, [Charge::reported("(shared)", Tokens::default(), Money::ZERO)]);
        assert_eq!((attempt.cost(&charges), unit.cost.to_string()), (Cost::default(), "$0.00".to_owned()));
        let stored = world.repository.messages(attempt.key, 0, 10).unwrap().items;
        let messages: Vec<Message> = stored.iter().map(|stored| stored.message().unwrap().unwrap()).collect();
        let roles: Vec<Role> = messages.iter().map(|message| message.role).collect();
        assert_eq!(roles, [Role::System, Role::User, Role::Assistant]);
        assert_eq!((&*messages[1].text(), &*messages[2].text()), (PROMPT, "Paris"));
        let whose = format!(
            "Not executed: this is the answer of unit {executed} of job a job, attempt 1, which needed the same."
        );
        let value = json!({ "job": "a job", "job_id": 1, "unit": executed, "unit_key": key.unit, "attempt": 1 });
        assert_eq!(messages[0].parts, [Part::text(whose), Part::Other { kind: "same_work".to_owned(), value }]);
    }
    let told: BTreeSet<String> = told.try_iter().collect();
    assert_eq!(told, ids.iter().map(|id| format!("complete {id}: COMPLETED")).collect());
    assert_eq!(world.repository.costs(None).unwrap().spent().to_string(), "$0.000000021");
    world.assert_clean();
}

#[test]
fn without_being_asked_for_every_unit_is_executed_by_itself() {
    let world = World::new();
    let (pool, stage) = world.staged(2);
    for id in ["a", "b"] {
        pool.enqueue(NewUnit::new(id), PROMPT).unwrap();
    }
    for call in stage.next_many(2) {
        call.succeed("Paris");
    }
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn what_differs_in_anything_that_counts_is_not_the_same() {
    let scene = Scene::new(8);
    let same = |id: &str| NewUnit::new(id);
    for (unit, prompt) in [
        (same("a"), PROMPT),
        (same("another prompt"), "What is the capital of Peru?"),
        (same("elsewhere"), PROMPT),
        (same("in few turns"), PROMPT),
        (same("carries on"), PROMPT),
        (same("makes files"), PROMPT),
    ] {
        let unit = match unit.id.as_str() {
            "elsewhere" => unit.workspace_dir("/tmp"),
            "in few turns" => unit.max_iterations(1),
            "carries on" => unit.resume_session("s-1"),
            "makes files" => unit.output_file("out.txt"),
            _ => unit,
        };
        scene.pool.enqueue(unit, prompt).unwrap();
    }
    let mut calls = scene.stage.next_many(6);
    // Neither does anybody wait for, nor take the answer of, what cannot be told.
    scene.pool.enqueue(same("carries on too").resume_session("s-1"), PROMPT).unwrap();
    calls.push(scene.stage.next());
    for call in calls {
        call.succeed("done");
    }
    scene.pool.wait_for_completion();
    let unit = same("b").payload(json!(7)).unit_type("page").priority(3).timeout(Duration::from_secs(9));
    scene.pool.enqueue(unit.affinity_key("with ada").max_retries(0), PROMPT).unwrap().wait().unwrap();
    assert_eq!(scene.answer_of("b"), Some(scene.world.attempt_key("a", 1)));
    scene.end();
}

#[test]
fn a_prompt_that_was_rendered_is_the_same_as_one_that_was_given() {
    let scene = Scene::new(2);
    scene.enqueue("a");
    scene.stage.next().succeed("Paris");
    let unit =
        NewUnit::new("b").template("What is the capital of {{ country }}?").payload(json!({ "country": "France" }));
    let handle = scene.pool.enqueue(unit, Prompt::OfUnit).unwrap();
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    assert_eq!(scene.world.said("b", 1)[1], PROMPT);
    scene.end();
}

#[test]
fn an_answer_without_text_or_with_nothing_at_all_is_taken_as_it_is() {
    let scene = Scene::new(1);
    for (number, result) in
        [WorkResult::empty(), WorkResult::empty().json(json!([1, null])), WorkResult::text("")].into_iter().enumerate()
    {
        let prompt = format!("{PROMPT} {number}");
        let [first, second] = ["first", "second"].map(|id| NewUnit::new(format!("{id}-{number}")));
        scene.pool.enqueue(first, prompt.as_str()).unwrap();
        let expected = (result.output.clone(), result.json.clone());
        scene.stage.next().end(move |_| Ok(result));
        let unit = scene.pool.enqueue(second, prompt.as_str()).unwrap().wait().unwrap();
        assert_eq!((unit.output, unit.result), expected);
    }
    assert_eq!(scene.world.said("second-1", 1)[2], "[1,null]");
    scene.end();
}

#[test]
fn whatever_is_no_answer_is_handed_on_to_nobody_and_the_next_is_executed() {
    let scene = Scene::new(4);
    for id in ["a", "b", "c", "d"] {
        scene.pool.enqueue(NewUnit::new(id).max_retries(0), PROMPT).unwrap();
    }
    let refused = || ExecuteError::give_up("it refuses").kind("refused").result(WorkResult::text("I cannot help."));
    for error in [refused(), ExecuteError::retry("cut off").result(WorkResult::text("It is Pa"))] {
        let call = scene.stage.next();
        assert_quiet(&scene.stage.calls);
        call.fail(error);
    }
    scene.stage.next().succeed("Paris");
    scene.pool.wait_for_completion();
    let counts = scene.world.repository.counts(scene.world.job).unwrap();
    assert_eq!((counts.completed, counts.failed), (2, 2));
    scene.end();
}

#[test]
fn an_answer_with_files_is_its_units_own() {
    let scene = Scene::new(2);
    let (call, ..) = scene.one_waits();
    let file = workcrew::attempt::OutputFile {
        path: "out.txt".to_owned(),
        size_bytes: 3,
        hash: workcrew::chain::Hash::of(b"out"),
    };
    call.end(|_| Ok(WorkResult::text("see there").output_file(file)));
    scene.stage.next().succeed("Paris");
    scene.pool.wait_for_completion();
    assert_eq!(scene.answer_of("b"), None);
    scene.end();
}

#[test]
fn who_waits_goes_on_when_the_one_it_waits_for_has_failed_and_that_one_then_waits_for_it() {
    let scene = Scene::with(World::new(), 2, |builder| builder.retry(RetryPolicy::fixed(Duration::from_secs(60))));
    let (call, first, second) = scene.one_waits();
    call.fail(ExecuteError::retry("overloaded"));
    let call = scene.stage.next();
    assert_eq!(&*call.id, "b");
    let asked = scene.faulty.calls(Verb::Share);
    scene.world.clock.advance(Duration::from_secs(60));
    until(|| scene.faulty.calls(Verb::Share) >= asked + 2);
    assert!(scene.stage.is_empty());
    call.succeed("Paris");
    assert_eq!(first.wait().unwrap().output.as_deref(), Some("Paris"));
    second.wait().unwrap();
    assert_eq!(outcomes(&scene, "a"), [Outcome::Failed, Outcome::Completed]);
    assert_eq!(scene.answer_of("a"), Some(scene.world.attempt_key("b", 1)));
    scene.end();
}

#[test]
fn a_unit_that_nobody_waits_for_takes_up_its_own_work_again() {
    let scene = Scene::new(1);
    let handle = scene.enqueue("a");
    scene.stage.next().fail(ExecuteError::retry("overloaded"));
    scene.stage.next().succeed("Paris");
    assert_eq!(handle.wait().unwrap().attempt_count, 2);
    assert_eq!(scene.answer_of("a"), None);
    scene.end();
}

#[test]
fn a_unit_that_goes_on_from_what_it_saved_is_executed_by_itself() {
    let scene = Scene::new(2);
    let (call, ..) = scene.one_waits();
    call.act(|call| call.checkpoint(7));
    call.fail(ExecuteError::retry("cut off"));
    for call in scene.stage.next_many(2) {
        call.succeed("Paris");
    }
    scene.pool.wait_for_completion();
    assert_eq!((scene.answer_of("a"), scene.answer_of("b")), (None, None));
    scene.end();
}

#[test]
fn who_waits_is_cancelled_at_once() {
    let scene = Scene::new(2);
    let (call, _, second) = scene.one_waits();
    second.cancel(By::whom("ada")).unwrap();
    assert_eq!(second.wait().unwrap().status, UnitStatus::Cancelled);
    call.succeed("Paris");
    scene.pool.wait_for_completion();
    assert_eq!(outcomes(&scene, "b"), [Outcome::Cancelled]);
    scene.end();
}

#[test]
fn who_waits_takes_over_when_the_one_it_waits_for_is_cancelled_or_too_slow() {
    type End = fn(&Scene, &UnitHandle);
    let ends: [End; 2] = [
        |_, first| _ = first.cancel(By::whom("ada")).unwrap(),
        |scene, _| scene.world.clock.advance(Duration::from_secs(601)),
    ];
    for end in ends {
        let scene = Scene::new(2);
        let (call, first, second) = scene.one_waits_for(NewUnit::new("a").max_retries(0));
        end(&scene, &first);
        call.asked();
        call.fail(ExecuteError::give_up("stopped"));
        let call = scene.stage.next();
        assert_eq!((&*call.id, call.timeout), ("b", Duration::from_secs(600)));
        call.succeed("Paris");
        assert_eq!(second.wait().unwrap().status, UnitStatus::Completed, "its own time had not begun");
        assert_ne!(first.wait().unwrap().status, UnitStatus::Completed);
        scene.end();
    }
}

#[test]
fn a_stop_gives_back_who_waits_and_that_uses_up_nothing() {
    for stop in [Stop::Drain, Stop::Cancel { grace: Duration::from_secs(600) }, Stop::Now] {
        let scene = Scene::new(2);
        let (call, ..) = scene.one_waits();
        scene.pool.handle().stop(stop);
        until(|| scene.world.status("b") == UnitStatus::Pending);
        assert_eq!((scene.world.unit("b").attempts_used, outcomes(&scene, "b")), (0, vec![Outcome::Released]));
        call.succeed("Paris");
        scene.end();
    }
}

#[test]
fn a_pause_gives_back_who_waits_and_it_goes_on_afterwards() {
    let scene = Scene::new(2);
    let (call, _, second) = scene.one_waits();
    scene.pool.pause();
    until(|| scene.world.status("b") == UnitStatus::Pending);
    call.succeed("Paris");
    scene.pool.resume();
    assert_eq!(second.wait().unwrap().output.as_deref(), Some("Paris"));
    assert_eq!(outcomes(&scene, "b"), [Outcome::Released, Outcome::Completed]);
    scene.end();
}

/// Somebody else, in another job, who does the same by hand.
fn another(scene: &Scene) -> Claim {
    let repository = &scene.world.repository;
    let job = repository.create_job(&NewJob::named("another")).unwrap().id;
    let owner = support::owner(repository, "somebody else");
    let (unit, slot) = (NewUnit::new("theirs").prompt(PROMPT), Slot::new(WorkerId::new("w1").unwrap()));
    let claimant = Claimant::new(owner, Duration::from_secs(3_600));
    let Submitted::Claimed(claim) = repository.submit(job, &unit, &claimant, &slot).unwrap() else { panic!() };
    repository.start(&claim.lease, &Beginning::default()).unwrap();
    assert_eq!(repository.share(&claim.lease, &key()).unwrap(), Shared::Yours);
    *claim
}

fn key() -> WorkKey {
    WorkKey::of("a play", &Parameters::of(&json!(PARAMETERS)), &UnitOptions::default(), PROMPT)
}

/// The pool's only unit waits for them.
fn waits_for(scene: &Scene) -> UnitHandle {
    let handle = scene.enqueue("a");
    until(|| scene.faulty.calls(Verb::Share) >= 2);
    assert!(scene.stage.is_empty());
    handle
}

#[test]
fn the_answer_of_another_pool_and_another_job_is_taken_too() {
    let scene = Scene::new(1);
    let theirs = another(&scene);
    let handle = waits_for(&scene);
    scene.world.repository.finish(&theirs.lease, &AttemptReport::completed().output("Paris")).unwrap();
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    assert_eq!(scene.answer_of("a"), Some(theirs.lease.attempt()));
    assert!(scene.world.said("a", 1)[0].contains("unit theirs of job another"));
    scene.world.repository.end_owner(theirs.lease.owner).unwrap();
    scene.pool.stop(Stop::Drain).unwrap();
    assert!(scene.stage.is_empty());
}

#[test]
fn who_waits_for_somebody_who_is_lost_takes_over() {
    let scene = Scene::new(1);
    let theirs = another(&scene);
    let handle = waits_for(&scene);
    // As a sweep does that finds its process gone.
    scene.world.repository.end_owner(theirs.lease.owner).unwrap();
    scene.stage.next().succeed("Paris");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    assert_eq!(scene.answer_of("a"), None);
    scene.pool.stop(Stop::Drain).unwrap();
    assert!(scene.stage.is_empty());
}

#[test]
fn what_was_purged_is_executed_again() {
    let scene = Scene::new(1);
    scene.enqueue("a").wait_timeout(Duration::ZERO).unwrap_err();
    scene.stage.next().succeed("Paris");
    scene.pool.wait_for_completion();
    scene.world.clock.advance(Duration::from_secs(1));
    let now = workcrew::clock::Clock::now(&scene.world.clock).wall;
    assert_eq!(scene.world.repository.purge(now, &By::whom("ada")).unwrap().units, 1);
    let handle = scene.enqueue("b");
    scene.stage.next().succeed("Still Paris");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Still Paris"));
    scene.end();
}

#[test]
fn an_answer_that_is_damaged_is_nobodys_and_the_unit_is_executed() {
    let scene = Scene::new(1);
    scene.enqueue("a");
    scene.stage.next().end(|_| Ok(answer()));
    scene.pool.wait_for_completion();
    let file = Connection::open(scene.world.repository.path()).unwrap();
    file.execute("UPDATE attempt_results SET result = x'7b' WHERE unit_key = 1", []).unwrap();
    let handle = scene.enqueue("b");
    scene.stage.next().succeed("Paris");
    assert_eq!(handle.wait().unwrap().status, UnitStatus::Completed);
    assert_eq!(scene.answer_of("b"), None);
    scene.pool.stop(Stop::Drain).unwrap();
    assert!(scene.stage.is_empty());
}

#[test]
fn an_answer_to_something_else_is_not_taken_though_the_file_says_that_it_is_the_same() {
    let scene = Scene::new(1);
    for (id, prompt) in [("a", PROMPT), ("b", "What is the capital of Peru?")] {
        scene.pool.enqueue(NewUnit::new(id), prompt).unwrap();
        scene.stage.next().succeed(id);
    }
    scene.pool.wait_for_completion();
    let file = Connection::open(scene.world.repository.path()).unwrap();
    file.execute("UPDATE works SET unit_key = 2 WHERE unit_key = 1", []).unwrap();
    let handle = scene.enqueue("c");
    scene.stage.next().succeed("Paris");
    assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    scene.end();
}

#[test]
fn storage_that_fails_for_a_moment_lets_nobody_do_what_another_does() {
    for fault in [Fault::ErrorOnce, Fault::ExecutedThenError] {
        let scene = Scene::new(2);
        scene.faulty.on(Verb::Share, fault.clone());
        let first = scene.enqueue("a");
        let call = scene.stage.next();
        scene.faulty.on(Verb::Share, fault);
        let second = scene.enqueue("b");
        until(|| scene.faulty.calls(Verb::Share) >= 5);
        assert!(scene.stage.is_empty());
        call.succeed("Paris");
        for handle in [first, second] {
            assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
        }
        scene.end();
    }
}

#[test]
fn an_answer_that_is_there_takes_no_turn_at_the_provider() {
    let limits = RateLimits::new().requests(1).window(Duration::from_secs(600));
    let scene = Scene::with(World::new(), 4, |builder| builder.rate_limits(limits));
    let handles: Vec<UnitHandle> = (0..20).map(|number| scene.enqueue(&number.to_string())).collect();
    scene.stage.next().succeed("Paris");
    // The clock stands still: there is no other turn.
    for handle in handles {
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    }
    scene.end();
}

#[test]
fn who_waits_for_its_turn_is_waited_for_by_those_who_need_the_same() {
    let limits = RateLimits::new().requests(1).window(Duration::from_secs(20));
    let scene = Scene::with(World::new(), 3, |builder| builder.rate_limits(limits));
    scene.pool.enqueue(NewUnit::new("other"), "What is the capital of Peru?").unwrap();
    scene.stage.next().succeed("Lima");
    let handles = [scene.enqueue("a"), scene.enqueue("b")];
    until(|| scene.faulty.calls(Verb::Share) >= 4 && scene.faulty.calls(Verb::TakeTurn) >= 2);
    assert!(scene.stage.is_empty());
    scene.world.clock.advance(Duration::from_secs(22));
    scene.stage.next().succeed("Paris");
    for handle in handles {
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    }
    scene.end();
}

#[test]
fn a_budget_is_spent_by_the_one_that_is_executed_and_a_free_answer_says_nothing_of_the_next() {
    let world = World::with_job(&NewJob::named("a job").budget("1".parse().unwrap()));
    let (part, stage) = stage();
    let earlier = world.repository.create_job(&NewJob::named("earlier")).unwrap().id;
    let pool = WorkPool::builder(earlier, part, world.repository.clone()).clock(world.clock.clone());
    let pool = pool.same_work_once_with(PARAMETERS).up();
    pool.enqueue(NewUnit::new("a"), PROMPT).unwrap();
    stage.next().end(|_| Ok(answer()));
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();

    let scene = Scene::with(world, 1, |builder| builder.expected_cost("0.4".parse().unwrap()));
    scene.enqueue("b").wait().unwrap();
    let account = || scene.world.repository.account(AccountHolder::Job(scene.world.job)).unwrap().unwrap();
    assert_eq!((account().spent, account().reserved, account().largest), (Money::ZERO, Money::ZERO, None));
    scene.pool.enqueue(NewUnit::new("c"), "something else").unwrap();
    let call = scene.stage.next();
    assert_eq!(account().reserved, "0.4".parse().unwrap(), "as if nothing had been before");
    call.end(|_| Ok(WorkResult::text("dear").charge(Charge::reported("m", Tokens::default(), "1".parse().unwrap()))));
    scene.pool.wait_for_completion();
    // What costs nothing waits too: that is seen only once it is claimed.
    scene.enqueue("d");
    assert!(matches!(scene.pool.wait_for_completion(), Completion::Blocked(_)));
    let more = JobChange::default().budget("2".parse::<Money>().unwrap());
    scene.world.repository.change_job(scene.world.job, &more, &By::whom("ada")).unwrap();
    scene.world.clock.advance(Duration::from_secs(2));
    until(|| scene.world.status("d") == UnitStatus::Completed);
    assert_eq!(scene.pool.wait_for_completion(), Completion::Done);
    assert_eq!(account().spent, "1".parse().unwrap());
    scene.end();
}

#[test]
fn units_of_a_strict_session_have_one_answer_too() {
    let scene = Scene::with(World::new(), 2, |builder| builder.affinity(Affinity::StrictQueue).worker_capacity(2));
    let handles: Vec<UnitHandle> = (0..4)
        .map(|number| scene.pool.enqueue(NewUnit::new(number.to_string()).affinity_key("ada"), PROMPT).unwrap())
        .collect();
    let call = scene.stage.next();
    assert_quiet(&scene.stage.calls);
    call.succeed("Paris");
    for handle in handles {
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some("Paris"));
    }
    scene.end();
}

#[test]
fn an_executor_that_tells_its_parameters_is_asked_for_them() {
    struct Telling(&'static str, Play);
    impl Executor for Telling {
        fn execute(&self, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
            self.1.execute(call)
        }

        fn parameters(&self) -> Option<Parameters> {
            Some(Parameters::of(&json!({ "model": self.0 })))
        }

        fn estimate(&self) -> Option<Estimate> {
            None
        }
    }
    let (world, mut executed) = (World::new(), 0);
    for (number, model) in ["large", "small", "large"].into_iter().enumerate() {
        let (part, stage) = stage();
        let boxed: Box<dyn Executor> = Box::new(Telling(model, part));
        let pool = world.pool(boxed).same_work_once().up();
        let handle = pool.enqueue(NewUnit::new(number.to_string()), PROMPT).unwrap();
        let call = stage.calls.recv_timeout(Duration::from_secs(if number < 2 { 20 } else { 0 }));
        executed += call.into_iter().map(|call| call.succeed(model)).count();
        assert_eq!(handle.wait().unwrap().output.as_deref(), Some(model));
        pool.stop(Stop::Drain).unwrap();
    }
    assert_eq!(executed, 2);
    world.assert_clean();
}

#[test]
fn a_simulation_is_the_same_by_model_seed_and_turns() {
    let parameters = |model: Simulated| model.parameters().unwrap();
    let new = || Simulated::new();
    assert_eq!(parameters(new()), parameters(new().failures(0.5).latency(Duration::ZERO, Duration::ZERO)));
    for other in [new().seed(1), new().turns(1), new().model("another")] {
        assert_ne!(parameters(new()), parameters(other));
    }
}
