//! How many requests a provider bears at a time, found out from its answers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use workcrew::clock::ManualClock;
use workcrew::{
    AdaptationReason, Archive, Event, MemoryRepository, NewJob, NewUnit, Repository, RetryPolicy, Scaling, Stop,
    UnitStatus, WorkPool,
};

use super::provider::{Provider, Step, answer, stream};
use super::{anthropic, speech};
use crate::commands::until;

const BEARS: usize = 3;
const UNITS: usize = 24;
const PAUSE: Duration = Duration::from_secs(3);
const COOL_DOWN: Duration = Duration::from_secs(10);

/// Who asks a provider that answers nobody before it is told to.
#[derive(Default)]
struct Desk {
    state: Mutex<Asking>,
    told: Condvar,
}

#[derive(Default)]
struct Asking {
    /// How many have asked since it answered last.
    asked: usize,
    /// Whether those of them that are too many are refused.
    refuses: bool,
    rounds: usize,
}

impl Desk {
    /// Somebody asks, and waits. Says whether it is one of too many.
    fn is_one_too_many(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.asked += 1;
        let (is_one_too_many, round) = (state.asked > BEARS, state.rounds);
        let waits = |state: &mut Asking| state.rounds == round && !(is_one_too_many && state.refuses);
        drop(self.told.wait_while(state, waits));
        is_one_too_many
    }

    fn asked(&self) -> usize {
        self.state.lock().unwrap().asked
    }

    fn refuse(&self) {
        self.state.lock().unwrap().refuses = true;
        self.told.notify_all();
    }

    /// Answers all others; says how many those are.
    fn answer(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        let answered = state.asked.min(BEARS);
        *state = Asking { rounds: state.rounds + 1, ..Asking::default() };
        self.told.notify_all();
        answered
    }
}

/// Lets a pool find out how many are borne by who refuses with this status and these headers. Returns how many have asked in each round,
/// and how many attempts were used.
fn found_out(status: u16, kind: &str, headers: &'static [(&'static str, &'static str)]) -> (Vec<usize>, u32) {
    let desk = Arc::new(Desk::default());
    let body = json!({ "error": { "type": kind, "message": "slow down" } }).to_string();
    let at_desk = Arc::clone(&desk);
    let provider = Provider::new(move |_, _| match at_desk.is_one_too_many() {
        true => vec![Step::Send(answer(status, headers, &body))],
        false => vec![Step::Send(stream(&speech::anthropic_text(&["Paris."])))],
    });
    let clock = ManualClock::new();
    let repository = MemoryRepository::with_clock(clock.clone());
    let job = repository.create_job(&NewJob::named("found out")).unwrap().id;
    let builder = WorkPool::builder(job, anthropic(&provider), repository.clone()).clock(clock.clone());
    let builder = builder.scaling(Scaling::ADAPTIVE).max_workers(8).retry(RetryPolicy::immediate());
    let ended = Arc::new(AtomicUsize::new(0));
    let end = Arc::clone(&ended);
    let builder = builder.observer(move |event: &Event<'_>| {
        end.fetch_add(usize::from(matches!(event, Event::AttemptEnded { .. })), Ordering::SeqCst);
    });
    let pool = builder.lease(Duration::from_secs(1_000_000)).start().unwrap();
    for number in 0..UNITS {
        pool.enqueue(NewUnit::new(number.to_string()), "Where?").unwrap();
    }
    let until_ended = |count: usize| until("as many have ended", || ended.load(Ordering::SeqCst) == count);
    let (mut rounds, mut completed, mut refused) = (Vec::new(), 0, 0);
    while completed < UNITS {
        let allowed = pool.stats().allowed_workers;
        let asking = allowed.min(UNITS - completed);
        until("all ask that may", || desk.asked() == asking);
        if asking > BEARS {
            desk.refuse();
            refused += asking - BEARS;
            until_ended(completed + refused);
        }
        completed += desk.answer();
        until_ended(completed + refused);
        rounds.push(asking);
        clock.advance(PAUSE + COOL_DOWN);
    }
    let history = pool.adaptations();
    let refusals = history.iter().filter(|change| matches!(change.reason, AdaptationReason::Refused(_)));
    let cuts: Vec<_> = refusals.map(|change| (change.from, change.to)).collect();
    assert!(cuts.len() >= 2 && cuts.iter().all(|cut| *cut == (4, 3)), "{cuts:?} {rounds:?}");
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    assert_eq!((stats.completed, stats.failed), (UNITS as u64, 0));
    assert_eq!(repository.counts(job).unwrap().of(UnitStatus::Completed), UNITS as u64);
    let used = (0..UNITS).map(|number| repository.unit(job, &number.to_string()).unwrap().attempts_used);
    (rounds, used.sum())
}

#[test]
fn a_pool_finds_out_how_many_a_provider_bears_that_refuses_with_a_pause() {
    let (rounds, used) = found_out(429, "rate_limit_error", &[("retry-after", "3")]);
    // When it tries one more again depends on when the pause is heard to be over.
    assert!(rounds.starts_with(&[1, 2, 4, 3]) && rounds[3..].iter().all(|asked| (1..=4).contains(asked)), "{rounds:?}");
    assert_eq!(used, UNITS as u32, "to be refused uses up no attempt");
}

#[test]
fn a_pool_finds_out_how_many_a_provider_bears_that_refuses_without_a_word() {
    for (status, kind) in [(429, "rate_limit_error"), (529, "overloaded_error")] {
        let (rounds, used) = found_out(status, kind, &[]);
        assert_eq!(rounds, [1, 2, 4, 3, 4, 3, 4, 3, 3], "{status}");
        assert_eq!(used, UNITS as u32 + 3, "three were refused once: {status}");
    }
}
