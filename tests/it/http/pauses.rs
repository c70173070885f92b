//! Pauses that a provider asks for, before which nobody asks again.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::json;
use workcrew::clock::{Clock, ManualClock};
use workcrew::executor::http::Tool;
use workcrew::repository::By;
use workcrew::{
    Archive, Executor, JobId, MemoryRepository, NewJob, NewUnit, Repository, RetryPolicy, UnitStatus, WorkPool,
};

use super::provider::{Provider, Step, answer, stream, stream_saying};
use super::{anthropic, openai, speech};

/// A job of a provider that is asked by a clock of its own.
struct Timed {
    clock: ManualClock,
    repository: MemoryRepository,
    job: JobId,
    provider: Provider,
    asked_at_ms: Arc<Mutex<Vec<i64>>>,
}

impl Timed {
    fn new(play: impl Fn(usize, DateTime<Utc>) -> Vec<Step> + Send + Sync + 'static) -> Timed {
        let (clock, asked_at_ms) = (ManualClock::new(), Arc::new(Mutex::new(Vec::new())));
        let repository = MemoryRepository::with_clock(clock.clone());
        let job = repository.create_job(&NewJob::named("timed")).unwrap().id;
        let (time, times) = (clock.clone(), Arc::clone(&asked_at_ms));
        let provider = Provider::new(move |number, _| {
            let now = time.now();
            times.lock().unwrap().push(now.boot_ms);
            play(number, now.wall)
        });
        Timed { clock, repository, job, provider, asked_at_ms }
    }

    /// Each pool has an executor of its own, as another process would.
    fn pool(&self, api: impl Executor) -> WorkPool {
        self.pool_of(3, api)
    }

    fn pool_of(&self, workers: usize, api: impl Executor) -> WorkPool {
        let pool = WorkPool::builder(self.job, api, self.repository.clone()).clock(self.clock.clone());
        let pool = pool.max_workers(workers);
        pool.retry(RetryPolicy::immediate()).timeout(Duration::from_secs(1_000_000)).start().unwrap()
    }

    /// When somebody asked, since then.
    fn asked_since(&self, began_ms: i64) -> Vec<i64> {
        self.asked_at_ms.lock().unwrap().iter().map(|at_ms| at_ms - began_ms).collect()
    }

    fn pass_time_until(&self, what: &str, is_so: impl Fn() -> bool) {
        crate::commands::until(what, || {
            self.clock.advance(Duration::from_millis(100));
            is_so()
        });
    }

    fn completed(&self) -> u64 {
        self.repository.counts(self.job).unwrap().completed
    }
}

#[test]
fn nobody_asks_before_the_time_that_was_asked_for() {
    let limited = json!({ "error": { "type": "rate_limit_error", "message": "slow down" } }).to_string();
    let timed = Timed::new(move |number, _| {
        let refused = |pause: &str| Step::Send(answer(429, &[("retry-after", pause)], &limited));
        let good = || Step::Send(stream(&speech::anthropic_text(&["Paris."])));
        vec![[refused("3"), refused("5"), good()][number.min(2)].clone()]
    });
    let pool = timed.pool_of(1, anthropic(&timed.provider));
    let began_ms = timed.clock.now().boot_ms;
    for number in 0..5 {
        pool.enqueue(NewUnit::new(number.to_string()), "Where?").unwrap();
    }
    timed.pass_time_until("all are done", || timed.completed() == 5);
    let asked = timed.asked_since(began_ms);
    assert_eq!(asked.len(), 7);
    assert!(asked[0] < 3_000 && asked[1] >= asked[0] + 3_000, "{asked:?}");
    assert!(asked[2..].iter().all(|at_ms| *at_ms >= asked[1] + 5_000), "{asked:?}");
    let used: u32 = (0..5).map(|id| timed.repository.unit(timed.job, &id.to_string()).unwrap().attempts_used).sum();
    assert_eq!(used, 5, "to be one of too many uses up no attempt, nor does to wait");
}

/// How a provider says that nothing is left for some seconds.
type Says = fn(DateTime<Utc>) -> [(&'static str, String); 2];

const NOTHING_LEFT: [(Says, bool); 4] = [
    (
        |now| {
            let reset = (now + Duration::from_secs(6)).to_rfc3339();
            [("anthropic-ratelimit-requests-remaining", "0".to_owned()), ("anthropic-ratelimit-requests-reset", reset)]
        },
        true,
    ),
    (|_| [("x-ratelimit-remaining-requests", "0".to_owned()), ("x-ratelimit-reset-requests", "6s".to_owned())], false),
    (|_| [("x-ratelimit-remaining-tokens", "0".to_owned()), ("x-ratelimit-reset-tokens", "0m6.0s".to_owned())], false),
    (
        |now| {
            let reset = (now + Duration::from_secs(6)).timestamp_millis().to_string();
            [("x-ratelimit-remaining", "0".to_owned()), ("x-ratelimit-reset", reset)]
        },
        false,
    ),
];

#[test]
fn who_is_told_beside_an_answer_that_nothing_is_left_asks_no_more_nor_does_any_other_pool() {
    for (says, is_anthropic) in NOTHING_LEFT {
        let good = if is_anthropic { speech::anthropic_text(&["Paris."]) } else { speech::openai_text(&["Paris."]) };
        let timed = Timed::new(move |number, now| {
            let headers = says(now);
            let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
            let answer = stream_saying(&headers, &good);
            // It is still being written while others would ask.
            let begun = answer.len() - 200;
            if number == 0 {
                vec![Step::Send(answer[..begun].to_vec()), Step::Linger]
            } else {
                vec![Step::Send(stream(&good))]
            }
        });
        let pools: [WorkPool; 2] = std::array::from_fn(|_| match is_anthropic {
            true => timed.pool(anthropic(&timed.provider)),
            false => timed.pool(openai(&timed.provider)),
        });
        let began_ms = timed.clock.now().boot_ms;
        let first = pools[0].enqueue(NewUnit::new("first"), "Where?").unwrap();
        crate::commands::until("all are told", || !timed.repository.holds().unwrap().is_empty());
        for number in 0..6 {
            pools[number % 2].enqueue(NewUnit::new(number.to_string()).max_retries(0), "Where?").unwrap();
        }
        crate::commands::until("the other one has heard", || pools[1].stats().hold.is_some());
        timed.pass_time_until("all are done", || timed.completed() == 6);
        let asked = timed.asked_since(began_ms);
        assert!(asked.len() == 7 && asked[1..].iter().all(|at_ms| *at_ms >= 6_000), "{asked:?}");
        let failed = timed.repository.counts(timed.job).unwrap().failed;
        let used: u32 = (0..6).map(|id| timed.repository.unit(timed.job, &id.to_string()).unwrap().attempts_used).sum();
        assert_eq!((failed, used), (0, 6), "to wait uses up nothing");
        first.cancel(By::new("a test", "enough")).unwrap();
        timed.provider.wait_until_hung_up();
    }
}

#[test]
fn a_conversation_waits_too_and_goes_on_where_it_was() {
    let call = speech::anthropic(vec![speech::tool_block(0, "t", "look", &["{}"])], "tool_use");
    let timed = Timed::new(move |number, now| {
        let headers = NOTHING_LEFT[0].0(now);
        let headers = headers.each_ref().map(|(name, value)| (*name, value.as_str()));
        let last = stream(&speech::anthropic_text(&["Paris."]));
        vec![Step::Send(if number == 0 { stream_saying(&headers, &call) } else { last })]
    });
    let looked = Arc::new(Mutex::new(0));
    let looks = Arc::clone(&looked);
    let look = Tool::new("look", "", json!({ "type": "object" }), move |_, _| {
        *looks.lock().unwrap() += 1;
        Ok("a map".to_owned())
    });
    let pool = timed.pool(anthropic(&timed.provider).tool(look));
    let began_ms = timed.clock.now().boot_ms;
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "Where?").unwrap();
    timed.pass_time_until("it is done", || timed.completed() == 1);
    let asked = timed.asked_since(began_ms);
    assert!(asked.len() == 2 && asked[1] >= 6_000, "{asked:?}");
    let unit = unit.wait().unwrap();
    assert_eq!((unit.output.as_deref(), unit.attempts_used, *looked.lock().unwrap()), (Some("Paris."), 1, 1));
}

#[test]
fn a_provider_that_is_broken_for_a_while_is_left_in_peace_by_all() {
    let broken = json!({ "error": { "type": "overloaded_error", "message": "come back later" } }).to_string();
    let timed = Timed::new(move |number, _| {
        let later = answer(529, &[("retry-after", "6")], &broken);
        vec![Step::Send(if number == 0 { later } else { stream(&speech::anthropic_text(&["Paris."])) })]
    });
    let pools: [WorkPool; 2] = std::array::from_fn(|_| timed.pool(anthropic(&timed.provider)));
    let began_ms = timed.clock.now().boot_ms;
    pools[0].enqueue(NewUnit::new("first"), "Where?").unwrap();
    crate::commands::until("all are told", || !timed.repository.holds().unwrap().is_empty());
    for number in 0..6 {
        pools[number % 2].enqueue(NewUnit::new(number.to_string()).max_retries(0), "Where?").unwrap();
    }
    timed.pass_time_until("all are done", || timed.completed() == 7);
    let asked = timed.asked_since(began_ms);
    assert!(asked.len() == 8 && asked[1..].iter().all(|at_ms| *at_ms >= 6_000), "{asked:?}");
    assert_eq!(
        timed.repository.unit(timed.job, "first").unwrap().attempts_used,
        2,
        "what is broken is tried, and counted"
    );
}

#[test]
fn a_person_who_knows_better_ends_the_wait() {
    let limited = json!({ "error": { "type": "rate_limit_error", "message": "slow down" } }).to_string();
    let timed = Timed::new(move |number, _| {
        let later = answer(429, &[("retry-after", "3600")], &limited);
        vec![Step::Send(if number == 0 { later } else { stream(&speech::anthropic_text(&["Paris."])) })]
    });
    let pool = timed.pool(anthropic(&timed.provider));
    let unit = pool.enqueue(NewUnit::new("a").max_retries(0), "Where?").unwrap();
    crate::commands::until("it is held", || pool.stats().hold.is_some());
    crate::commands::until("the unit is back", || {
        timed.repository.unit(timed.job, "a").unwrap().status == UnitStatus::Pending
    });
    pool.resume();
    pool.enqueue(NewUnit::new("b"), "Where?").unwrap();
    crate::commands::until("both are done", || timed.completed() == 2);
    assert_eq!(timed.repository.holds().unwrap(), []);
    assert_eq!(unit.wait().unwrap().status, UnitStatus::Completed);
}
