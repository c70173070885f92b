//! Agents whose provider asks to wait: nobody else begins before that, in all pools on the database, and nothing is used up.

use std::time::Duration;

use chrono::{DateTime, Utc};
use workcrew::clock::{Clock, ManualClock};
use workcrew::{Archive, Executor, NewUnit, RetryPolicy, Stop, UnitStatus, WorkPool};

use super::agents::{captured, replays};
use super::{World, until};
use crate::support::Up as _;

/// What the real program printed in a run, with something in place of something else.
fn printed(name: &str, from: &str, to: &str) -> String {
    let printed = std::fs::read_to_string(captured(name, "stdout.ndjson")).unwrap();
    assert!(printed.contains(from), "{name}");
    printed.replace(from, to)
}

/// A database and two pools on it, each as another process would have it.
struct Pair {
    world: World,
    clock: ManualClock,
    pools: [WorkPool; 2],
}

impl Pair {
    fn of(clock: ManualClock, world: World, agent: impl Fn(&World) -> Box<dyn Executor>) -> Pair {
        let pool = |_| {
            let pool = WorkPool::builder(world.job, agent(&world), world.repository.clone()).clock(clock.clone());
            pool.retry(RetryPolicy::immediate()).max_workers(2).up()
        };
        let pools = [0, 1].map(pool);
        Pair { world, clock, pools }
    }

    fn enqueue(&self, pool: usize, id: &str) {
        self.pools[pool].enqueue(NewUnit::new(id).max_retries(0), "the prompt").unwrap();
    }

    /// Until when the provider is held, once it is.
    fn held_until(&self, provider: &str) -> DateTime<Utc> {
        until("it is held", || !self.world.repository.holds().unwrap().is_empty());
        let hold = self.world.repository.holds().unwrap().remove(0);
        assert_eq!(hold.provider, provider);
        hold.until
    }

    /// How often the agent was started.
    fn runs(&self) -> usize {
        self.world.notes().iter().filter(|note| *note == "the prompt").count()
    }

    /// The time has come, and all goes well.
    fn assert_done(self, until_then: Duration, ids: &[&str]) {
        let before = self.runs();
        self.clock.advance(until_then - Duration::from_millis(1));
        assert!(self.pools.iter().all(|pool| pool.stats().hold.is_some()), "not a moment early");
        assert_eq!(self.runs(), before);
        self.clock.advance(Duration::from_millis(1));
        let unit = |id: &&str| self.world.repository.unit(self.world.job, id).unwrap();
        until("all is done", || ids.iter().map(unit).all(|unit| unit.status == UnitStatus::Completed));
        assert!(ids.iter().map(unit).all(|unit| unit.attempts_used == 1), "to wait uses up nothing");
        self.pools.into_iter().for_each(|pool| drop(pool.stop(Stop::Drain).unwrap()));
        self.world.assert_clean();
    }
}

/// An agent that is refused in its first run, in these words, and then does well.
fn refused_at_first(world: &World, refused: &str, then: &str) -> String {
    let first = world.folder.path().join("first");
    let said = world.folder.path().join("said");
    std::fs::write(&said, refused).unwrap();
    format!("if mkdir '{}' 2>/dev/null; then cat '{}'; exit 1; fi; {}", first.display(), said.display(), replays(then))
}

#[test]
fn a_limit_with_a_time_that_an_agent_tells_is_waited_for_by_all_who_ask_the_same() {
    let in_three_hours = (ManualClock::new().now().wall + Duration::from_secs(10_800)).timestamp().to_string();
    let claude_quota = printed("claude-quota-5h", "1799999999", &in_three_hours);
    let claude_limited = {
        let mut lines: Vec<String> =
            printed("claude-r429-inf-maxretries0", "", "").lines().map(str::to_owned).collect();
        lines.insert(1, printed("claude-r429", "", "").lines().nth(1).unwrap().to_owned());
        lines.join("\n")
    };
    let said = "exceeded retry limit, last status: 429 Too Many Requests";
    let codex_limited = printed("codex-r429", said, "Rate limit reached for gpt-5. Please try again in 20s.");
    let codex_quota = printed("codex-quota", "Nov 21st, 2026 12:09 AM", "Jan 1st, 2026 3:00 PM");
    for (refused, name, seconds) in [
        (claude_quota, "claude", 10_800..10_801),
        (claude_limited, "claude", 2..3),
        (codex_limited, "codex", 20..21),
        // It is said without seconds, in the time of wherever this is.
        (codex_quota, "codex", 1..97_261),
    ] {
        let clock = ManualClock::new();
        let world = World::with_clock(clock.clone());
        let pair = Pair::of(clock, world, |world| match name {
            "claude" => Box::new(world.claude(&refused_at_first(world, &refused, "claude-text"))),
            _ => Box::new(world.codex(&refused_at_first(world, &refused, "codex-text"))),
        });
        pair.enqueue(0, "a");
        let left = (pair.held_until(name) - pair.clock.now().wall).to_std().unwrap();
        assert!(seconds.contains(&left.as_secs()), "{name}: {left:?}");
        let is_back = || pair.world.repository.unit(pair.world.job, "a").unwrap().status == UnitStatus::Pending;
        until("it is given back", is_back);
        for (pool, id) in [(0, "b"), (1, "c"), (1, "d")] {
            pair.enqueue(pool, id);
        }
        until("the other one has heard", || pair.pools[1].stats().hold.is_some());
        assert_eq!(pair.runs(), 1, "{name}");
        pair.assert_done(left, &["a", "b", "c", "d"]);
    }
}

#[test]
fn while_an_agent_waits_by_itself_nobody_else_begins() {
    let clock = ManualClock::new();
    let world = World::with_clock(clock.clone());
    let limited = captured("claude-r429", "stdout.ndjson").display().to_string();
    let (first, go) = (world.folder.path().join("first"), world.folder.path().join("go"));
    let waits =
        format!("head -n 2 '{limited}'; until test -e '{}'; do sleep 0.01; done; tail -n +3 '{limited}'", go.display());
    let script =
        format!("if mkdir '{}' 2>/dev/null; then {waits}; exit 0; fi; {}", first.display(), replays("claude-text"));
    let pair = Pair::of(clock, world, |world| Box::new(world.claude(&script)));
    pair.enqueue(0, "a");
    let left = (pair.held_until("claude") - pair.clock.now().wall).to_std().unwrap();
    assert_eq!(left, Duration::from_secs(2));
    pair.enqueue(0, "b");
    pair.enqueue(1, "c");
    until("the other one has heard", || pair.pools[1].stats().hold.is_some());
    std::fs::write(go, "").unwrap();
    let is_done = || pair.world.repository.unit(pair.world.job, "a").unwrap().status == UnitStatus::Completed;
    until("it has done well after all", is_done);
    assert_eq!(pair.runs(), 1);
    pair.assert_done(left, &["a", "b", "c"]);
}
