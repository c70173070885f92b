//! What is kept of each attempt, however it ended.

use serde_json::json;
use std::time::Duration;
use workcrew::chain::Hash;
use workcrew::{
    Archive, Attempt, Charge, ExecuteError, FailureKind, Message, Money, NewUnit, Outcome, Part, Role, Stop, Tokens,
    UnitStatus, WorkResult,
};

use super::{World, stage, until};
use crate::support::Up as _;

pub(super) fn cents(cents: i64) -> Money {
    Money::from_nanos(cents * 10_000_000)
}

/// What one call of a model cost.
pub(super) fn charge(amount: i64) -> Charge {
    let tokens = Tokens { input: 10, output: 5, ..Tokens::default() };
    Charge::reported("large", tokens, cents(amount))
}

#[test]
fn everything_that_an_execution_brings_is_stored() {
    // 004-F6, 004-F25, 004-F26, 004-F27, 004-F28, 004-F29, 004-F30, 004-F35, 004-F36, 004-F37, 004-F38, 004-F53
    let world = World::new();
    let (part, stage) = stage();
    let (tell, results) = crossbeam_channel::unbounded();
    let pool =
        world.pool(part).on_unit_complete(move |unit, result| tell.send((unit.clone(), result.clone())).unwrap()).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    let messages = [
        Message::user("go"),
        Message::new(Role::Assistant)
            .part(Part::thinking("hm"))
            .part(Part::tool_use("t1", "search", json!({ "q": "capital" })))
            .raw(r#"{"type":"assistant"}"#),
        Message::new(Role::Tool).part(Part::tool_result("t1", "Paris")),
        Message::assistant("Paris."),
    ];
    call.act({
        let messages = messages.clone();
        move |call| {
            let [first, rest @ ..] = messages;
            call.message(first);
            call.messages(rest);
        }
    });
    let file = workcrew::attempt::OutputFile { path: "out.txt".into(), size_bytes: 5, hash: Hash::of(b"Paris") };
    let result = WorkResult::text("Paris")
        .json(json!({ "capital": "Paris" }))
        .session("s-17")
        .charge(charge(2))
        .output_file(file.clone());
    world.clock.advance(Duration::from_millis(1_250));
    call.end({
        let result = result.clone();
        |_| Ok(result)
    });
    let unit = handle.wait().unwrap();
    assert_eq!(unit.result, Some(json!({ "capital": "Paris" })));
    assert_eq!(unit.output.as_deref(), Some("Paris"));
    assert_eq!(unit.output_files, [file]);
    assert_eq!(unit.session_id.as_deref(), Some("s-17"));
    assert_eq!((unit.cost.amount, unit.tokens.input), (cents(2), 10));
    assert_eq!(unit.execution_time, Some(Duration::from_millis(1_250)));
    assert!(unit.first_message_at.is_some() && unit.completed_at.is_some());
    assert_eq!(super::next(&results), (unit, result));
    let stored = world.repository.messages(world.attempt_key("a", 1), 0, 10).unwrap();
    let stored: Vec<_> = stored.items.iter().map(|stored| stored.message().unwrap().unwrap()).collect();
    assert_eq!(stored, messages);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.cost.amount, stats.tokens.output), (cents(2), 5));
    world.assert_clean();
}

#[test]
fn every_attempt_keeps_its_conversation_cost_and_provenance() {
    // 004-F28, 004-F29, 004-F30, 004-F38, 004-F39, 004-F40, 004-F41
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let told = |number: u32| {
        let call = stage.next();
        assert_eq!(call.attempt_number, number);
        call.say(&format!("said in {number}"));
        call.act(move |call| {
            call.session(format!("s-{number}"));
            call.usage(charge(1));
            call.usage(charge(i64::from(number)));
            call.partial("and th");
        });
        call
    };
    told(1).fail(ExecuteError::retry("refused").kind("rate_limited").result(WorkResult::text("half")));
    told(2).end(|_| panic!("oh"));
    let third = told(3);
    world.clock.advance(Duration::from_secs(600));
    third.obey(Err(ExecuteError::retry("interrupted")));
    let deaf = told(4);
    world.clock.advance(Duration::from_secs(600));
    deaf.asked();
    world.clock.advance(Duration::from_millis(1_500));

    let unit = handle.wait().unwrap();
    assert_eq!((unit.status, unit.attempt_count, unit.attempts_used), (UnitStatus::Failed, 4, 4));
    assert_eq!(unit.failure.unwrap().kind, FailureKind::TIMED_OUT);
    assert_eq!((unit.session_id.as_deref(), unit.cost.amount), (Some("s-4"), cents(1 + 2 + 3 + 4)));
    let attempts = world.attempts("a");
    let failures: Vec<String> = attempts.iter().map(|attempt| attempt.failure.as_ref().unwrap().to_string()).collect();
    assert_eq!(
        failures,
        [
            "rate_limited: refused",
            "panic: oh",
            "timed_out: it took longer than 600s: interrupted",
            "timed_out: it took longer than 600s: the executor did not return when it was to stop",
        ]
    );
    let of = |outcome: fn(&Attempt) -> Outcome| attempts.iter().map(outcome).collect::<Vec<_>>();
    let expected = [Outcome::Failed, Outcome::Failed, Outcome::TimedOut, Outcome::TimedOut];
    assert_eq!(of(|attempt| attempt.outcome.unwrap()), expected);
    for (number, attempt) in (1..).zip(&attempts) {
        assert_eq!(world.said("a", number), [format!("said in {number}"), "and th".to_owned()]);
        assert_eq!(attempt.session_id, Some(format!("s-{number}")));
        assert_eq!(attempt.provenance.as_ref().unwrap().executor, "a play");
        assert_eq!(world.repository.charges(attempt.key).unwrap(), [charge(i64::from(number))]);
    }
    let first = world.repository.attempt_result(attempts[0].key).unwrap();
    assert_eq!(first.output.as_deref(), Some("half"));
    drop(deaf);
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    // The pool does not wait for who was left behind.
    until(|| world.repository.attempt_result(attempts[3].key).unwrap().late_result.is_some());
    assert_eq!((stats.failed, stats.attempts, stats.retried), (1, 4, 3));
    assert_eq!(stats.cost.amount, cents(10));
    world.assert_clean_after_crashes();
}

#[test]
fn an_attempt_starts_from_what_the_one_before_saved() {
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a").resume_session("s-0"), "go").unwrap();
    let session = |call: &workcrew::Call<'_>| call.resume_session().map(str::to_owned);
    let first = stage.next();
    assert_eq!(first.act(session).as_deref(), Some("s-0"));
    assert_eq!(first.act(|call| call.last_checkpoint().cloned()), None);
    first.act(|call| call.checkpoint(json!({ "page": 17 })));
    first.fail(ExecuteError::retry("again"));
    let second = stage.next();
    assert_eq!(second.act(|call| call.last_checkpoint().cloned()), Some(json!({ "page": 17 })));
    second.succeed("done");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn a_conversation_that_grows_too_long_ends_its_unit_and_keeps_what_fits() {
    let world = World::new();
    let (part, stage) = stage();
    let pool = world.pool(part).conversation_limit_bytes(10).up();
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    call.say("12345");
    call.say("678901");
    assert_eq!(call.asked(), workcrew::executor::CancelReason::ConversationLimit);
    call.succeed("an answer");
    let unit = handle.wait().unwrap();
    assert_eq!(unit.status, UnitStatus::Failed);
    assert_eq!(unit.failure.unwrap().kind, FailureKind::CONVERSATION_LIMIT);
    assert_eq!(world.said("a", 1), ["12345"]);
    assert_eq!(world.attempts("a")[0].messages_lost, 1);
    pool.stop(Stop::Drain).unwrap();
    world.assert_clean();
}

#[test]
fn of_a_message_that_cannot_be_stored_it_is_kept_that_it_was_there() {
    // I9
    let world = World::new();
    let (pool, stage) = world.staged(1);
    let handle = pool.submit_work_unit(NewUnit::new("a"), "go").unwrap();
    let call = stage.next();
    call.act(|call| {
        let too_deep = (0..300).fold(json!(1), |inner, _| serde_json::Value::Array(vec![inner]));
        let refused = Message::new(Role::Tool).part(Part::tool_use("t1", "search", too_deep)).raw("as it came");
        call.messages([Message::assistant("one"), refused, Message::assistant("three")]);
        call.message(Message::assistant("four"));
    });
    call.succeed("done");
    handle.wait().unwrap();
    pool.stop(Stop::Drain).unwrap();
    assert_eq!(world.said("a", 1), ["one", "", "three", "four"]);
    let stored = world.repository.messages(world.attempt_key("a", 1), 1, 1).unwrap().items;
    let cut = stored[0].message().unwrap().unwrap();
    assert_eq!((cut.role, cut.truncated.unwrap().hash), (Role::Tool, Hash::of(b"as it came")));
    assert_eq!(world.attempts("a")[0].messages_lost, 0);
    world.assert_clean();
}
