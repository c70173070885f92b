//! A batch that is run again from its own database: the same comes out, nothing is paid, and what was changed shows.

use std::path::Path;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use serde_json::json;
use workcrew::attempt::OutputFile;
use workcrew::audit::verify::Verify;
use workcrew::chain::Hash;
use workcrew::conversation::MessageContent;
use workcrew::executor::replay;
use workcrew::repository::sqlite::SqliteArchive;
use workcrew::repository::{By, UnitFilter};
use workcrew::{
    Archive, Call, Charge, ExecuteError, Executor, Failure, MemoryRepository, Message, Money, NewJob, NewUnit, Outcome,
    Part, Replay, Repository, RetryPolicy, Role, Simulated, SqliteRepository, Stop, Tokens, UnitStatus, WorkPool,
    WorkResult, WorkUnit,
};

use crate::support::folder;

const TEMPLATES: [&str; 3] =
    ["Summarise page {{ page }}.\nBe brief.", "Translate page {{ page }}.", "Count the words of page {{ page }}."];

/// The program that is run twice: its units, its pool and nothing else.
fn orchestrate(path: &Path, executor: impl Executor, templates: [&str; 3]) {
    let repository = SqliteRepository::open(path).unwrap();
    let job = repository.create_job(&NewJob::named("pages")).unwrap().id;
    let unit = |page: usize| {
        let unit = NewUnit::new(format!("page-{page:02}")).payload(json!({ "page": page })).max_retries(3);
        if page.is_multiple_of(10) { unit.prompt("As it is.") } else { unit.template(templates[page % 3]) }
    };
    repository.queue_units(job, &(1..=40).map(unit).collect::<Vec<_>>()).unwrap();
    let pool =
        WorkPool::builder(job, executor, repository).max_workers(8).retry(RetryPolicy::immediate()).start().unwrap();
    pool.process_pending();
    pool.wait_for_completion();
    pool.stop(Stop::Drain).unwrap();
}

/// All units of a file, in order.
fn units(path: &Path) -> (SqliteArchive, Vec<WorkUnit>) {
    let archive = SqliteArchive::open(path).unwrap();
    let units = archive.units(&UnitFilter::default(), 0, 1_000).unwrap().items;
    (archive, units)
}

/// What an attempt said and left: everything but who did it, when, and for how much.
type Left = (Option<Outcome>, Option<Failure>, Option<String>, Vec<(Role, Option<MessageContent>)>, Option<String>);

fn attempts(archive: &dyn Archive, unit: &WorkUnit) -> Vec<Left> {
    let counted = archive.attempts(unit.key).unwrap().into_iter().filter(|attempt| attempt.is_counted);
    let left = |attempt: workcrew::Attempt| {
        let messages = archive.messages(attempt.key, 0, 1_000).unwrap().items;
        let said = messages.into_iter().map(|message| (message.role, message.content)).collect();
        let output = archive.attempt_result(attempt.key).unwrap().output;
        (attempt.outcome, attempt.failure, attempt.session_id, said, output)
    };
    counted.map(left).collect()
}

#[test]
fn a_batch_runs_again_from_its_database_and_only_what_was_changed_fails() {
    let folder = folder();
    let [first, second, third] = ["first.db", "second.db", "third.db"].map(|name| folder.path().join(name));
    let model = Simulated::new().seed(5).latency(Duration::ZERO, Duration::from_millis(2)).failures(0.3).give_ups(0.1);
    orchestrate(&first, model, TEMPLATES);
    let (recorded, before) = units(&first);
    let count = |status| before.iter().filter(|unit| unit.status == status).count();
    assert!(count(UnitStatus::Completed) > 10 && count(UnitStatus::Failed) > 1, "{before:#?}");
    assert!(before.iter().any(|unit| unit.attempt_count > 1 && unit.status == UnitStatus::Completed));

    orchestrate(&second, Replay::open(&first).unwrap(), TEMPLATES);
    let (replayed, after) = units(&second);
    assert_eq!(after.len(), before.len());
    for (one, two) in before.iter().zip(&after) {
        assert_eq!((&one.id, one.status, &one.failure), (&two.id, two.status, &two.failure));
        assert_eq!(
            (&one.output, &one.result, &one.session_id),
            (&two.output, &two.result, &two.session_id),
            "{}",
            one.id
        );
        assert_eq!(attempts(&recorded, one), attempts(&replayed, two), "{}", one.id);
        assert!(one.tokens.total() > 0 && two.tokens.total() == 0 && two.cost.is_known(), "nothing was paid again");
    }
    let verification = Verify::new().settled().run(&replayed).unwrap();
    assert!(verification.is_clean(), "{verification}");
    let provenance = replayed.attempts(after[0].key).unwrap().remove(0).provenance.unwrap();
    assert_eq!((&*provenance.executor, &*provenance.crate_version), ("replay", env!("CARGO_PKG_VERSION")));
    let from = format!("database={}", first.canonicalize().unwrap().display());
    assert!(provenance.arguments.contains(&from), "{provenance:?}");
    assert!(provenance.program_version.unwrap().ends_with(env!("CARGO_PKG_VERSION")));

    let changed = [TEMPLATES[0], "Translate page {{ page }}!", TEMPLATES[2]];
    orchestrate(&third, Replay::open(&first).unwrap().job("pages"), changed);
    let (_, after) = units(&third);
    for (page, (one, two)) in (1..).zip(before.iter().zip(&after)) {
        if page % 3 != 1 || page % 10 == 0 {
            assert_eq!((one.status, &one.output), (two.status, &two.output), "{}", one.id);
            continue;
        }
        let failure = two.failure.as_ref().unwrap();
        assert_eq!((failure.kind.as_str(), two.attempt_count), (replay::PROMPT_DIFFERS, 1), "not tried again");
        let expected = format!(
            "the prompt is not the stored one: line 1 differs\n- 1: Translate page {page}.\n+ 1: Translate page {page}!"
        );
        assert_eq!(failure.message, expected);
    }
}

/// A repository in which units with these names were executed, each in a job of its own.
fn executed(jobs: &[&str], id: &str, executor: impl Executor + Clone) -> MemoryRepository {
    let repository = MemoryRepository::new();
    for &job in jobs {
        let job = repository.create_job(&NewJob::named(job)).unwrap().id;
        let pool = WorkPool::builder(job, executor.clone(), repository.clone());
        let pool = pool.retry(RetryPolicy::immediate()).start().unwrap();
        drop(pool.enqueue(NewUnit::new(id), "Go.").unwrap().wait());
        pool.stop(Stop::Drain).unwrap();
    }
    repository
}

/// What becomes of a unit that is replayed, in a repository of its own.
fn replayed(replay: Replay, id: &str) -> (MemoryRepository, WorkUnit) {
    let repository = executed(&["again"], id, replay);
    let unit = repository.units(&UnitFilter::default(), 0, 1).unwrap().items.remove(0);
    (repository, unit)
}

fn failure_kind(replay: Replay, id: &str) -> (String, String) {
    let (_, unit) = replayed(replay, id);
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, 1), "{unit:?}");
    let failure = unit.failure.unwrap();
    (failure.kind.to_string(), failure.message)
}

#[test]
fn what_cannot_be_replayed_says_why_at_once() {
    let model = |call: &Call<'_>| Ok(WorkResult::text(call.prompt()));
    let one = executed(&["one"], "a", model);
    let (kind, message) = failure_kind(Replay::from(one.clone()), "b");
    assert_eq!((&*kind, &*message), (replay::UNKNOWN_UNIT, "the database has no unit `b`"));
    let (kind, message) = failure_kind(Replay::from(one.clone()).job("two"), "a");
    assert_eq!((&*kind, &*message), (replay::UNKNOWN_UNIT, "the database has no job `two`"));
    let (kind, message) = failure_kind(Replay::from(one.clone()).job("one"), "b");
    assert_eq!((&*kind, &*message), (replay::UNKNOWN_UNIT, "job `one` has no unit `b`"));

    let two = executed(&["one", "two"], "a", model);
    let (kind, message) = failure_kind(Replay::from(two.clone()), "a");
    assert_eq!(kind, replay::AMBIGUOUS);
    assert!(message.contains("job 1") && message.contains("job 2"), "{message}");
    assert_eq!(replayed(Replay::from(two).job("two"), "a").1.output.as_deref(), Some("Go."));

    let waiting = MemoryRepository::new();
    let job = waiting.create_job(&NewJob::named("one")).unwrap().id;
    waiting.queue_unit(job, &NewUnit::new("a").prompt("Go.")).unwrap();
    let (kind, message) = failure_kind(Replay::from(waiting.clone()), "a");
    assert_eq!((&*kind, &*message), (replay::NOT_ENDED, "the stored unit `a` is PENDING and has not ended"));
    waiting.cancel(job, "a", &By::whom("test")).unwrap();
    let (kind, message) = failure_kind(Replay::from(waiting), "a");
    assert_eq!((&*kind, &*message), ("cancelled", "the stored unit `a` was cancelled"));

    one.purge(Utc::now() + TimeDelta::days(1), &By::whom("test")).unwrap();
    let (kind, message) = failure_kind(Replay::from(one), "a");
    assert_eq!((&*kind, &*message), (replay::PURGED, "the contents of the stored unit `a` were removed"));
    let (kind, _) = failure_kind(Replay::from(MemoryRepository::new()), "a");
    assert_eq!(kind, replay::UNKNOWN_UNIT, "of an empty database");
}

#[test]
fn everything_that_an_attempt_left_comes_again_and_its_price_only_if_asked_for() {
    fn model(call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        let said = [
            Message::user(call.prompt()),
            Message::new(Role::Assistant)
                .part(Part::thinking("\u{0}"))
                .part(Part::tool_use("t", "x", json!({ "a": [1, null] })))
                .raw(vec![0xff, 0x00]),
            Message::assistant("x".repeat(10_000_000)),
        ];
        call.messages(said);
        call.session("s-1");
        let tokens = Tokens { input: 7, ..Tokens::default() };
        call.usage(Charge::reported("large", tokens, Money::from_nanos(11)));
        if call.attempt_number() < 3 {
            let failed = ExecuteError::retry(format!("no {}", call.attempt_number())).kind("flaky");
            return Err(failed.result(WorkResult::text("half")));
        }
        let file = OutputFile { path: "a.txt".to_owned(), size_bytes: 3, hash: Hash::of(b"abc") };
        Ok(WorkResult::text("whole").json(json!({ "ok": 1 })).output_file(file))
    }
    let first = executed(&["one"], "a", model);
    let stored = first.units(&UnitFilter::default(), 0, 1).unwrap().items.remove(0);
    for (replay, nanos) in [(Replay::from(first.clone()), 0), (Replay::from(first.clone()).with_charges(), 33)] {
        let (second, unit) = replayed(replay, "a");
        assert_eq!((unit.status, &unit.output, &unit.result), (UnitStatus::Completed, &stored.output, &stored.result));
        assert_eq!((&unit.output_files, &unit.session_id), (&stored.output_files, &stored.session_id));
        assert_eq!(unit.cost.amount, Money::from_nanos(nanos));
        let (before, after) = (attempts(&first, &stored), attempts(&second, &unit));
        assert_eq!(before.len(), 3);
        assert!(before == after, "all that was said and left is the same");
        assert_eq!(after[0].4.as_deref(), Some("half"));
    }
}

#[test]
fn beyond_the_stored_attempts_the_last_one_answers() {
    let model = |call: &Call<'_>| -> Result<WorkResult, ExecuteError> {
        if call.attempt_number() == 1 { Err(ExecuteError::retry("once")) } else { Ok(WorkResult::text("then")) }
    };
    let first = executed(&["one"], "a", model);
    let (repository, unit) = replayed(Replay::from(first), "a");
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Completed, 2));

    // A unit that was given up then, and is brought back now, is given up again for the same reason.
    let given_up = executed(&["one"], "a", |_: &Call<'_>| Err(ExecuteError::give_up("never").kind("refused")));
    let replay = Replay::from(given_up);
    let (repository_2, unit) = replayed(replay.clone(), "a");
    assert_eq!(unit.failure.as_ref().unwrap().to_string(), "refused: never");
    repository_2.requeue(unit.job_id, "a", &By::whom("test")).unwrap();
    let pool = WorkPool::builder(unit.job_id, replay, repository_2.clone()).start().unwrap();
    pool.process_pending();
    let unit = repository_2.unit(unit.job_id, "a").unwrap();
    assert_eq!((unit.attempt_count, unit.failure.unwrap().to_string()), (2, "refused: never".to_owned()));
    drop(repository);
}
