//! Turns to ask a provider, and until when one is not to be asked.

use std::time::Duration;

use chrono::TimeDelta;

use super::scene::{Scene, retry};
use crate::attempt::AttemptReport;
use crate::lease::Lease;
use crate::limits::{Ask, Limit, NewHold, RateLimits, Turn};
use crate::money::{Charge, Money, Tokens};
use crate::repository::RepositoryError;

cases![
    a_turn_counts_for_a_window_and_a_little_longer,
    everybody_takes_turns_of_one_provider_and_of_no_other,
    tokens_are_reserved_and_counted_as_they_were_used,
    every_end_of_an_attempt_lets_another_be_under_way,
    who_has_lost_its_unit_gets_no_turn,
    senseless_limits_and_names_are_refused,
    nobody_asks_a_provider_that_is_held,
    of_two_holds_the_later_end_counts,
    a_hold_is_lifted_once,
];

const SECOND: Duration = Duration::from_secs(1);

fn take(scene: &Scene<'_>, lease: &Lease, limits: RateLimits) -> Turn {
    ask(scene, lease, limits, Ask::default())
}

fn ask(scene: &Scene<'_>, lease: &Lease, limits: RateLimits, ask: Ask) -> Turn {
    scene.repository.take_turn(lease, "provider", &limits, &ask).expect("the lease is held")
}

/// How long it has to wait for requests, in milliseconds.
fn waits_ms(turn: &Turn) -> u64 {
    match turn {
        Turn::Later { after, limit: Limit::Requests } => u64::try_from(after.as_millis()).expect("it is no age"),
        other => panic!("it does not wait for requests: {other:?}"),
    }
}

fn a_turn_counts_for_a_window_and_a_little_longer(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let limits = RateLimits::new().window(Duration::from_secs(20)).requests(2);
    assert_eq!(take(scene, &lease, limits), Turn::Taken);
    scene.advance(5 * SECOND);
    assert_eq!(take(scene, &lease, limits), Turn::Taken, "also the same attempt takes another");
    let waits = waits_ms(&take(scene, &lease, limits));
    assert!(
        (15_001..=16_333).contains(&waits),
        "the first counts for 20 s, a twentieth, and up to a sixtieth: {waits}"
    );
    scene.advance(Duration::from_millis(waits - 1));
    assert_eq!(waits_ms(&take(scene, &lease, limits)), 1, "who is refused takes nothing");
    scene.advance(Duration::from_millis(1));
    assert_eq!(take(scene, &lease, limits), Turn::Taken);
    let waits = waits_ms(&take(scene, &lease, limits));
    assert!((4_600..=5_400).contains(&waits), "the second came 5 s after the first: {waits}");
    if scene.set_calendar(TimeDelta::hours(5)) {
        assert_eq!(waits_ms(&take(scene, &lease, limits)), waits, "the calendar is for people");
    }
}

fn everybody_takes_turns_of_one_provider_and_of_no_other(scene: &Scene<'_>) {
    let (a, b) = (scene.processing("a").lease, scene.processing("b").lease);
    let limits = RateLimits::new().requests(1);
    assert_eq!(take(scene, &a, limits), Turn::Taken);
    assert!((62_000..=64_000).contains(&waits_ms(&take(scene, &b, limits))));
    let other = scene.repository.take_turn(&b, "another provider", &limits, &Ask::default());
    assert_eq!(other.expect("the lease is held"), Turn::Taken);
}

fn tokens_are_reserved_and_counted_as_they_were_used(scene: &Scene<'_>) {
    let limits = RateLimits::new().input_tokens(100).output_tokens(1_000);
    let (a, b) = (scene.processing("a").lease, scene.processing("b").lease);
    assert_eq!(ask(scene, &a, limits, Ask::new(90, 10)), Turn::Taken);
    let refused = ask(scene, &b, limits, Ask::new(20, 10));
    assert!(matches!(refused, Turn::Later { limit: Limit::InputTokens, .. }), "{refused:?}");
    let tokens = Tokens { input: 30, cache_write: 20, cache_read: 5_000, output: 400, reasoning: 100 };
    let charge = Charge::reported("large", tokens, Money::from_nanos(1));
    scene.finish(&a, &AttemptReport::completed().charge(charge));
    let refused = ask(scene, &b, limits, Ask::new(51, 0));
    assert!(matches!(refused, Turn::Later { limit: Limit::InputTokens, .. }), "{refused:?}");
    let refused = ask(scene, &b, limits, Ask::new(50, 501));
    assert!(matches!(refused, Turn::Later { limit: Limit::OutputTokens, .. }), "{refused:?}");
    assert_eq!(ask(scene, &b, limits, Ask::new(50, 500)), Turn::Taken);
}

fn every_end_of_an_attempt_lets_another_be_under_way(scene: &Scene<'_>) {
    let limits = RateLimits::new().concurrency(1);
    let is_refused =
        |lease: &Lease| matches!(take(scene, lease, limits), Turn::Later { limit: Limit::Concurrency, .. });
    let a = scene.processing("a").lease;
    let b = scene.processing("b").lease;
    assert_eq!(take(scene, &a, limits), Turn::Taken);
    assert_eq!(take(scene, &a, limits), Turn::Taken, "it is under way already");
    scene.advance(Duration::from_secs(20));
    assert!(is_refused(&b));
    scene.finish(&a, &retry());
    assert_eq!(take(scene, &b, limits), Turn::Taken);
    let a = scene.claim().lease;
    assert!(is_refused(&a));
    scene.release(&b, None, "given back");
    assert_eq!(take(scene, &a, limits), Turn::Taken);
    scene.lose_all();
    let again = scene.claim().lease;
    assert_eq!(take(scene, &again, limits), Turn::Taken, "what was lost is over too");
}

fn who_has_lost_its_unit_gets_no_turn(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    scene.lose_all();
    let refused = scene.repository.take_turn(&lease, "provider", &RateLimits::new().requests(1), &Ask::default());
    assert!(matches!(refused, Err(RepositoryError::Stale { .. })), "{refused:?}");
}

fn senseless_limits_and_names_are_refused(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let taken = |provider: &str, limits| scene.repository.take_turn(&lease, provider, &limits, &Ask::default());
    let long = "x".repeat(501);
    for (provider, limits) in [
        ("", RateLimits::new()),
        (&long, RateLimits::new()),
        ("provider", RateLimits::new().requests(0)),
        ("provider", RateLimits::new().window(Duration::ZERO)),
    ] {
        let refused = taken(provider, limits);
        assert!(matches!(refused, Err(RepositoryError::Invalid(_))), "{refused:?}");
    }
    let refused = scene.repository.hold(&NewHold::new("", SECOND, "closed"));
    assert!(matches!(refused, Err(RepositoryError::Invalid(_))), "{refused:?}");
    assert!(taken("'; DROP TABLE turns; --", RateLimits::new()).is_ok(), "a name is only a name");
}

fn nobody_asks_a_provider_that_is_held(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    assert_eq!(scene.repository.holds().expect("it can be read"), []);
    scene.repository.hold(&NewHold::new("provider", 10 * SECOND, "closed")).expect("a name");
    let held = take(scene, &lease, RateLimits::new());
    let Turn::Held(hold) = held else { panic!("{held:?}") };
    assert_eq!((&*hold.provider, &*hold.reason, hold.until), ("provider", "closed", scene.now() + 10 * SECOND));
    assert_eq!(scene.repository.holds().expect("it can be read"), [hold]);
    scene.advance(10 * SECOND - Duration::from_millis(1));
    if scene.set_calendar(TimeDelta::days(1)) {
        let until = scene.now() + Duration::from_millis(1);
        let holds = scene.repository.holds().expect("it can be read");
        assert_eq!(holds.iter().map(|hold| hold.until).collect::<Vec<_>>(), [until], "the calendar ends nothing");
    }
    assert!(matches!(take(scene, &lease, RateLimits::new()), Turn::Held(_)));
    scene.advance(Duration::from_millis(1));
    assert_eq!(take(scene, &lease, RateLimits::new()), Turn::Taken);
    assert_eq!(scene.repository.holds().expect("it can be read"), []);
}

fn of_two_holds_the_later_end_counts(scene: &Scene<'_>) {
    let hold = |seconds, reason: &str| {
        scene.repository.hold(&NewHold::new("provider", seconds * SECOND, reason)).expect("a name");
        let holds = scene.repository.holds().expect("it can be read");
        holds.into_iter().map(|hold| (hold.reason, (hold.until - scene.now()).num_seconds())).collect::<Vec<_>>()
    };
    assert_eq!(hold(10, "first"), [("first".to_owned(), 10)]);
    assert_eq!(hold(5, "shorter"), [("first".to_owned(), 10)]);
    scene.advance(3 * SECOND);
    assert_eq!(hold(8, "longer"), [("longer".to_owned(), 8)]);
    scene.advance(8 * SECOND);
    assert_eq!(hold(1, "once more"), [("once more".to_owned(), 1)]);
}

fn a_hold_is_lifted_once(scene: &Scene<'_>) {
    scene.repository.hold(&NewHold::new("provider", SECOND, "closed")).expect("a name");
    let lift = |provider| scene.repository.lift(provider).expect("it can be written");
    assert!(!lift("another"));
    assert!(lift("provider"));
    assert!(!lift("provider"));
    assert_eq!(scene.repository.holds().expect("it can be read"), []);
    scene.repository.hold(&NewHold::new("provider", SECOND, "closed")).expect("a name");
    scene.advance(SECOND);
    assert!(!lift("provider"), "it is over");
}
