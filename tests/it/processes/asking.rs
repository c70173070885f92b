//! One provider for all processes: together they ask it no more often than they may, and not at all while it is closed.

use std::time::Duration;

use workcrew::clock::{Clock as _, SystemClock};
use workcrew::limits::{NewHold, RateLimits};
use workcrew::{
    Archive as _, Call, Completion, NewUnit, Repository as _, SqliteRepository, Stop, WorkPool, WorkResult,
};

use super::{JOB, POLL, Shared};
use crate::children::{self, Role, note, say};
use crate::support::Up as _;

/// How many requests there may be in a window.
const REQUESTS: usize = 20;

const WINDOW: Duration = Duration::from_secs(2);

const PROVIDER: &str = "a provider";

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    let Some(name) = children::role() else { return };
    children::note_warnings();
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    // The moment of a request is noted by who makes it.
    let execute = |call: &Call<'_>| {
        note(format_args!("asked {}", SystemClock.now().boot_ms));
        Ok(WorkResult::text(call.prompt()))
    };
    let mut builder = WorkPool::builder(job, execute, repository).label(name).max_workers(16).poll_interval(POLL);
    builder = builder.provider(PROVIDER).rate_limits(RateLimits::new().window(WINDOW).requests(REQUESTS as u64));
    let pool = builder.up();
    let completion = pool.process_pending();
    pool.stop(Stop::Drain).unwrap();
    say(format_args!("{completion:?}"));
}

/// Two processes of 16 workers do all of it. Returns when they asked, in order.
fn asked_by_two(shared: &Shared) -> Vec<i64> {
    let start = |name| Role::new("processes::asking::child", name, &shared.path).start();
    let processes = [start("a"), start("b")];
    for process in processes {
        assert_eq!(process.end_well().last().unwrap(), &format!("{:?}", Completion::Done));
    }
    let mut asked: Vec<i64> = shared.notes("asked").iter().map(|words| words[0].parse().unwrap()).collect();
    asked.sort_unstable();
    asked
}

#[test]
fn in_no_window_is_a_provider_asked_more_often_than_it_may_be() {
    let shared = Shared::new((0..70).map(|id| NewUnit::new(id.to_string()).prompt("go")));
    let asked = asked_by_two(&shared);
    assert_eq!(asked.len(), 70);
    let window_ms = i64::try_from(WINDOW.as_millis()).unwrap();
    for (first, beyond) in asked.iter().zip(&asked[REQUESTS..]) {
        assert!(beyond - first >= window_ms, "{} requests in {} ms: {asked:?}", REQUESTS + 1, beyond - first);
    }
    assert_eq!(shared.repository.counts(shared.job).unwrap().completed, 70);
}

#[test]
fn a_provider_that_is_closed_is_asked_by_nobody_and_nothing_fails_for_it() {
    let shared = Shared::new((0..30).map(|id| NewUnit::new(id.to_string()).prompt("go")));
    let closed_at_ms = SystemClock.now().boot_ms;
    shared.repository.hold(&NewHold::new(PROVIDER, Duration::from_secs(3), "closed for a moment")).unwrap();
    let asked = asked_by_two(&shared);
    assert_eq!(asked.len(), 30);
    assert!(asked[0] >= closed_at_ms + 3_000, "{} ms early", closed_at_ms + 3_000 - asked[0]);
    for id in &shared.ids {
        let attempts = shared.attempts(id);
        assert_eq!(attempts.iter().filter(|attempt| attempt.is_counted).count(), 1, "{attempts:?}");
    }
}
