//! That what is simulated is believable, and the same every time.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use super::*;
use crate::conversation::{Part, Role};
use crate::executor::scene::{Scene, Told};
use crate::executor::{CancelReason, Then};
use crate::money::Tokens;
use crate::unit::NewUnit;

const PROMPT: &str = "Explain why lighthouses were painted in stripes, and which colours.";

fn at_once() -> Simulated {
    Simulated::new().latency(Duration::ZERO, Duration::ZERO)
}

fn scene(unit_id: &str) -> Scene {
    Scene::of(NewUnit::new(unit_id), PROMPT)
}

/// All that an attempt told, and how it ended.
fn played(executor: &Simulated, unit_id: &str) -> (Vec<Told>, Result<WorkResult, String>) {
    let scene = scene(unit_id);
    let result = executor.execute(&scene.call()).map_err(|error| error.to_string());
    (scene.told(), result)
}

#[test]
fn the_same_seed_gives_the_same_conversation() {
    let executor = at_once().failures(0.3);
    for unit_id in ["a", "b", "c", "ü"] {
        assert_eq!(played(&executor, unit_id), played(&executor.clone(), unit_id));
    }
}

#[test]
fn another_seed_unit_or_attempt_gives_another_conversation() {
    let first = played(&at_once(), "a");
    assert_ne!(first, played(&at_once().seed(1), "a"));
    assert_ne!(first, played(&at_once(), "b"));
    let mut again = scene("a");
    again.claim.lease.attempt_number = 2;
    at_once().execute(&again.call()).unwrap();
    assert_ne!(first.0, again.told());
}

#[test]
fn a_conversation_begins_with_the_session_and_the_prompt_and_ends_with_the_answer() {
    let scene = scene("a");
    let result = at_once().execute(&scene.call()).unwrap();
    let messages = scene.messages();
    assert!(matches!(&scene.told()[0], Told::Session(session) if result.session_id.as_ref() == Some(session)));
    assert_eq!((messages[0].role, messages[1].role), (Role::System, Role::User));
    assert_eq!(messages[1].text(), PROMPT);
    assert_eq!(messages.last().map(crate::Message::text), result.output);
    assert!(result.output.unwrap().contains("lighthouses"));
    assert_eq!(result.json.unwrap()["topics"][0], "Explain");
}

#[test]
fn every_tool_call_has_its_result_and_some_tools_fail() {
    let executor = at_once().turns(6).failures(0.3);
    let (mut results, mut failed) = (0, 0);
    for number in 0..100 {
        let scene = scene(&number.to_string());
        drop(executor.execute(&scene.call()));
        let mut open = BTreeSet::new();
        for part in scene.messages().into_iter().flat_map(|message| message.parts) {
            match part {
                Part::ToolUse { id, input, .. } => assert!(input.is_object() && open.insert(id)),
                Part::ToolResult { tool_use_id, is_error, .. } => {
                    assert!(open.remove(&tool_use_id), "{tool_use_id} was never called");
                    results += 1;
                    failed += usize::from(is_error);
                }
                _ => {}
            }
        }
        assert!(open.is_empty(), "without a result: {open:?}");
    }
    assert!(results > 100 && failed > 0 && failed < results / 2, "{failed} of {results}");
}

#[test]
fn what_is_used_never_shrinks_and_the_result_has_all_of_it() {
    for number in 0..50 {
        let (told, result) = played(&at_once().turns(5), &number.to_string());
        let mut before = Tokens::default();
        let mut last = None;
        for charge in
            told.into_iter().filter_map(|told| if let Told::Usage(charge) = told { Some(charge) } else { None })
        {
            let now = charge.tokens;
            for (before, now) in [
                (before.input, now.input),
                (before.output, now.output),
                (before.cache_read, now.cache_read),
                (before.cache_write, now.cache_write),
                (before.reasoning, now.reasoning),
            ] {
                assert!(before <= now);
            }
            assert!(before.total() < now.total() && charge.amount.is_some());
            before = now;
            last = Some(charge);
        }
        assert_eq!(result.unwrap().charges, [last.unwrap()]);
    }
}

#[test]
fn text_arrives_bit_by_bit_until_the_message_takes_its_place() {
    let (told, _) = played(&at_once().turns(1), "a");
    let partials: Vec<&str> = told
        .iter()
        .filter_map(|told| if let Told::Partial(text) = told { Some(text.as_str()) } else { None })
        .collect();
    assert!(partials.len() > 1 && partials.windows(2).all(|pair| pair[1].starts_with(pair[0])));
    assert!(
        told.iter()
            .any(|told| matches!(told, Told::Message(message) if message.text() == partials[partials.len() - 1]))
    );
}

#[test]
fn a_session_that_is_to_be_carried_on_is_carried_on() {
    let mut scene = scene("a");
    scene.claim.resume_session = Some("s-17".to_owned());
    assert_eq!(at_once().execute(&scene.call()).unwrap().session_id.as_deref(), Some("s-17"));
    // Nothing else changes.
    assert_eq!(scene.told()[1..], played(&at_once(), "a").0[1..]);
}

#[test]
fn raw_bytes_and_checkpoints_are_there_now_and_then() {
    let told: Vec<Told> = (0..50).flat_map(|number| played(&at_once().turns(5), &number.to_string()).0).collect();
    let raw = |told: &&Told| matches!(told, Told::Message(message) if message.raw.as_ref().is_some_and(|raw| raw.json().is_some()));
    assert!(told.iter().filter(raw).count() > 50);
    assert!(told.iter().any(|told| matches!(told, Told::Checkpoint(value) if value["turn"].as_u64() > Some(0))));
}

#[test]
fn a_unit_may_ask_for_fewer_turns() {
    for number in 0..20 {
        let scene = Scene::of(NewUnit::new(number.to_string()).max_iterations(1), PROMPT);
        at_once().turns(9).execute(&scene.call()).unwrap();
        assert_eq!(scene.messages().len(), 3);
    }
}

#[test]
fn the_shares_are_roughly_kept() {
    let executor = at_once().failures(0.2).give_ups(0.1).panics(0.05).hangs(0.05).deaf_hangs(0.1);
    let fates: Vec<Fate> = (0..2_000).map(|number| executor.fate(&format!("unit-{number}"), 1)).collect();
    for (fate, expected) in [
        (Fate::Success, 1_000_usize),
        (Fate::Failure, 400),
        (Fate::GiveUp, 200),
        (Fate::Panic, 100),
        (Fate::Hang, 100),
        (Fate::DeafHang, 200),
    ] {
        let count = fates.iter().filter(|&&one| one == fate).count();
        // Four times the deviation that chance alone makes.
        assert!(count.abs_diff(expected) <= 4 * expected.isqrt(), "{fate:?}: {count}");
    }
}

#[test]
fn an_attempt_that_failed_may_succeed_the_next_time() {
    let executor = at_once().failures(0.5);
    let recovers = |id: &String| executor.fate(id, 1) == Fate::Failure && executor.fate(id, 2) == Fate::Success;
    assert!((0..100).map(|number| number.to_string()).filter(recovers).count() > 10);
}

#[test]
fn a_share_that_is_none_counts_as_the_nearest_that_is() {
    let all = |executor: Simulated, fate| (0..200).all(|number| executor.fate(&number.to_string(), 1) == fate);
    assert!(all(at_once().failures(f64::NAN).panics(-1.0).hangs(f64::NEG_INFINITY), Fate::Success));
    assert!(all(at_once().failures(f64::INFINITY), Fate::Failure));
    assert!(all(at_once().deaf_hangs(7.0), Fate::DeafHang));
    // The earlier ones leave nothing for the later.
    assert!(all(at_once().deaf_hangs(1.0).panics(1.0).failures(1.0), Fate::Failure));
}

#[test]
fn a_failure_comes_in_the_middle_and_says_what_should_follow() {
    let executor = at_once().failures(1.0);
    let mut kinds = BTreeSet::new();
    for number in 0..50 {
        let scene = scene(&number.to_string());
        let error = executor.execute(&scene.call()).unwrap_err();
        assert!(scene.messages().len() > 2);
        assert!(matches!(scene.told().last(), Some(Told::Partial(_))));
        let then = error.then();
        let (failure, _, result) = error.into_parts();
        assert_eq!(matches!(then, Then::RetryAfter(_)), failure.kind.as_str() == "rate_limited");
        assert_eq!(result.charges.len(), 1);
        kinds.insert(failure.kind.as_str().to_owned());
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["connection", "overloaded", "rate_limited"]);
}

#[test]
fn a_unit_that_is_given_up_was_refused_or_invalid() {
    let mut kinds = BTreeSet::new();
    for number in 0..50 {
        let error = at_once().give_ups(1.0).execute(&scene(&number.to_string()).call()).unwrap_err();
        assert_eq!(error.then(), Then::GiveUp);
        kinds.insert(error.into_parts().0.kind.as_str().to_owned());
    }
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["invalid_request", "refused"]);
}

#[test]
fn a_panic_names_the_unit() {
    let scene = scene("a41");
    let panic = catch_unwind(AssertUnwindSafe(|| at_once().panics(1.0).execute(&scene.call()))).unwrap_err();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "simulated panic in attempt 1 at unit `a41`");
    assert!(scene.messages().len() > 2);
}

/// Runs an attempt on a thread of its own, cancels it when it has told so much, and gives its error.
fn cancelled_after(told: usize, executor: Simulated) -> ExecuteError {
    let scene = Arc::new(scene("a"));
    let (send, receive) = mpsc::channel();
    let runner = thread::spawn({
        let scene = Arc::clone(&scene);
        move || send.send(executor.execute(&scene.call()).unwrap_err())
    });
    while scene.told().len() < told {
        thread::yield_now();
    }
    scene.cancel.cancel(CancelReason::Requested);
    let error = receive.recv_timeout(Duration::from_secs(60)).expect("it ends long before its time");
    runner.join().unwrap().unwrap();
    assert_eq!(scene.told().len(), told);
    error
}

#[test]
fn a_cancel_ends_it_at_once() {
    let hour = Duration::from_secs(3_600);
    let error = cancelled_after(3, Simulated::new().latency(hour, hour));
    assert_eq!(error.to_string(), "cancelled: cancelled");
    // A hang comes where another attempt would have failed.
    let (told, _) = played(&at_once().failures(1.0), "a");
    let error = cancelled_after(told.len(), at_once().hangs(1.0));
    assert_eq!(error.to_string(), "cancelled: cancelled");
}

#[test]
fn most_attempts_are_short_and_few_are_long() {
    let executor = Simulated::new().latency(Duration::from_secs(10), Duration::from_secs(110));
    let mut durations: Vec<u64> = (0..1_000)
        .map(|number| executor.duration(&mut Dice::of(0, &number.to_string(), 1, "attempt")).as_secs())
        .collect();
    durations.sort_unstable();
    assert!(durations[0] >= 10 && durations[999] <= 110);
    assert!((15..30).contains(&durations[500]), "{}", durations[500]);
    assert!(durations[950] > 80, "{}", durations[950]);
    let swapped = Simulated::new().latency(Duration::from_secs(2), Duration::from_secs(1));
    assert_eq!(swapped.duration(&mut Dice::of(0, "a", 1, "attempt")), Duration::from_secs(2));
}

#[test]
fn a_prompt_of_any_shape_will_do() {
    for prompt in ["", " ", "a b c", "日本語のとても長い文章です", &"x".repeat(100_000), "../../etc/passwd\0"]
    {
        let scene = Scene::of(NewUnit::new("a"), prompt);
        at_once().execute(&scene.call()).unwrap();
    }
}
