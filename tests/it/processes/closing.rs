//! A model over HTTP that closes for a while, for all processes together: nobody asks before the time that it names, nothing fails for it, and nothing is used up.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use workcrew::{
    AnthropicApi, Archive as _, Completion, Executor, NewUnit, OpenAiApi, Outcome, SqliteRepository, Stop, WorkPool,
};

use super::{JOB, LONG, POLL, Shared};
use crate::children::{self, Role, say};
use crate::http::provider::{Provider, Step, answer, stream};
use crate::http::speech;
use crate::support::Up as _;

/// Where the model is that a process asks.
const URL: &str = "WORKCREW_TEST_URL";

/// How many ask at a time: two processes of 16 workers.
const ASKERS: usize = 32;

const UNITS: usize = 100;

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    let Some(name) = children::role() else { return };
    children::note_warnings();
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let url = std::env::var(URL).unwrap();
    let api: Box<dyn Executor> = match name.starts_with("anthropic") {
        true => Box::new(AnthropicApi::new("m").base_url(url).without_key()),
        false => Box::new(OpenAiApi::new("m").base_url(url).without_key()),
    };
    let pool = WorkPool::builder(job, api, repository).label(name).max_workers(ASKERS / 2).poll_interval(POLL).up();
    let completion = pool.process_pending();
    pool.stop(Stop::Drain).unwrap();
    say(format_args!("{completion:?}"));
}

/// Who asked, in rounds: each but the last is closed once all ask at the same time, and none is answered before.
#[derive(Default)]
struct Rounds {
    asked_at: Vec<Instant>,
    closed_at: Vec<Instant>,
}

/// A provider that closes again and again, for so many seconds each time, and tells everybody so with this error.
struct Closing {
    pauses: Vec<u64>,
    rounds: Arc<(Mutex<Rounds>, Condvar)>,
    provider: Provider,
}

impl Closing {
    fn new(pauses: &[u64], status: u16, error: &Value, good: &[String]) -> Closing {
        let rounds: Arc<(Mutex<Rounds>, Condvar)> = Arc::default();
        let (pauses, error, good) = (pauses.to_vec(), error.to_string(), stream(good));
        let provider = {
            let (pauses, rounds) = (pauses.clone(), Arc::clone(&rounds));
            Provider::new(move |_, _| {
                let (state, all_are_there) = &*rounds;
                let mut state = state.lock().unwrap();
                let round = state.asked_at.len() / ASKERS;
                state.asked_at.push(Instant::now());
                let Some(pause) = pauses.get(round) else { return vec![Step::Send(good.clone())] };
                if state.asked_at.len() == (round + 1) * ASKERS {
                    state.closed_at.push(Instant::now());
                    all_are_there.notify_all();
                }
                let (_state, waited) =
                    all_are_there.wait_timeout_while(state, LONG, |state| state.closed_at.len() <= round).unwrap();
                assert!(!waited.timed_out(), "all ask at the same time");
                vec![Step::Send(answer(status, &[("retry-after", &pause.to_string())], &error))]
            })
        };
        Closing { pauses, rounds, provider }
    }

    /// Two processes do all units, and nobody comes too early.
    fn assert_kept_by_two(self, api: &str) {
        let shared = Shared::new((0..UNITS).map(|id| NewUnit::new(id.to_string()).prompt("go").max_retries(0)));
        let start = |name: &str| {
            let role = Role::new("processes::closing::child", &format!("{api}-{name}"), &shared.path);
            role.env(URL, &self.provider.url).start()
        };
        for process in ["a", "b"].map(start) {
            assert_eq!(process.end_well().last().unwrap(), &format!("{:?}", Completion::Done));
        }
        let rounds = self.rounds.0.lock().unwrap();
        assert_eq!(rounds.asked_at.len(), self.pauses.len() * ASKERS + UNITS, "nobody asked in vain but once a round");
        for (round, (closed_at, pause)) in rounds.closed_at.iter().zip(&self.pauses).enumerate() {
            let opens_at = *closed_at + Duration::from_secs(*pause);
            let early = |at: &&Instant| **at < opens_at;
            let early: Vec<Duration> =
                rounds.asked_at[(round + 1) * ASKERS..].iter().filter(early).map(|at| opens_at - *at).collect();
            assert!(early.is_empty(), "round {round}: so much too early: {early:?}");
        }
        let counts = shared.repository.counts(shared.job).unwrap();
        assert_eq!((counts.completed, counts.failed), (UNITS as u64, 0));
        let attempts: Vec<_> = shared.ids.iter().flat_map(|id| shared.attempts(id)).collect();
        let refused = attempts.iter().filter(|attempt| attempt.outcome == Some(Outcome::Released)).count();
        assert!(refused >= self.pauses.len() * ASKERS);
        assert_eq!(attempts.iter().filter(|attempt| attempt.is_counted).count(), UNITS, "nothing was used up");
        assert!(shared.ids.iter().all(|id| shared.unit(id).attempts_used == 1));
    }
}

fn anthropics(kind: &str) -> Value {
    json!({ "type": "error", "error": { "type": kind, "message": "come back later" } })
}

fn openais(code: &str) -> Value {
    json!({ "error": { "message": "come back later", "type": "requests", "code": code } })
}

#[test]
fn a_rate_limit_of_anthropics_fails_nothing() {
    let good = speech::anthropic_text(&["Paris."]);
    Closing::new(&[5], 429, &anthropics("rate_limit_error"), &good).assert_kept_by_two("anthropic");
}

#[test]
fn a_quota_of_anthropics_that_says_until_when_fails_nothing() {
    let good = speech::anthropic_text(&["Paris."]);
    Closing::new(&[5], 402, &anthropics("billing_error"), &good).assert_kept_by_two("anthropic");
}

#[test]
fn a_quota_of_openais_that_says_until_when_fails_nothing() {
    let good = speech::openai_text(&["Paris."]);
    Closing::new(&[5], 429, &openais("insufficient_quota"), &good).assert_kept_by_two("openai");
}

#[test]
fn a_rate_limit_of_openais_that_grows_is_kept_each_time() {
    let good = speech::openai_text(&["Paris."]);
    Closing::new(&[3, 4, 5], 429, &openais("rate_limit_exceeded"), &good).assert_kept_by_two("openai");
}
