//! Pools that find out how many workers their provider bears, which is played by the test.

use std::cmp::Reverse;
use std::time::Duration;

use crossbeam_channel::{Receiver, unbounded};
use workcrew::clock::Clock;
use workcrew::executor::kinds;
use workcrew::limits::RateLimits;
use workcrew::{
    AdaptationReason, Archive, Event, ExecuteError, FailureKind, NewUnit, OwnerState, Scaling, Stop, UnitStatus,
    WorkPool, WorkPoolBuilder,
};

use super::stage::Played;
use super::{Stage, World, assert_quiet, next, stage, until};
use crate::support::{self, Up as _};

const COOL_DOWN: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_secs(3);

/// How a provider says that an attempt is one of too many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Without a word of when it would not be.
    Bare,
    /// With a pause, for which the whole pool is held.
    Holding,
}

/// A pool that finds out how many its provider bears, and the provider. What is executed ends before the pool is dropped, which would wait for it.
struct Rush {
    answering: Vec<Played>,
    stage: Stage,
    pool: WorkPool,
    world: World,
    /// Attempts that have ended, as it is stored.
    ended: Receiver<()>,
    /// Changes of how many workers there may be.
    adapted: Receiver<String>,
    bears: usize,
    refusal: Refusal,
    completed: usize,
}

impl Rush {
    /// A pool of at most 32 workers.
    fn new(bears: usize, refusal: Refusal, build: impl FnOnce(WorkPoolBuilder) -> WorkPoolBuilder) -> Rush {
        let world = World::new();
        let (part, stage) = stage();
        let ((end, ended), (adapt, adapted)) = (unbounded(), unbounded());
        let builder = world.pool(part).scaling(Scaling::ADAPTIVE).max_workers(32);
        let handle = builder.handle();
        let pool = build(builder.observer(move |event: &Event<'_>| {
            match event {
                Event::AttemptEnded { .. } => end.send(()).unwrap(),
                Event::Adapted { .. } => adapt.send(serde_json::to_string(event).unwrap()).unwrap(),
                _ => {}
            }
            if let Some(stats) = handle.stats() {
                assert!(stats.total_workers <= 32 && stats.allowed_workers <= stats.max_workers, "{stats:?}");
            }
        }))
        .up();
        Rush { answering: Vec::new(), stage, pool, world, ended, adapted, bears, refusal, completed: 0 }
    }

    fn enqueue(&self, count: usize) {
        for number in 0..count {
            self.pool.enqueue(NewUnit::new(format!("u{number:03}")), "go").unwrap();
        }
    }

    fn allowed(&self) -> usize {
        self.pool.stats().allowed_workers
    }

    /// Waits until as many have begun as there may be. Returns how many that are.
    fn begin(&mut self) -> usize {
        let left = usize::try_from(self.pool.stats().accepted).unwrap() - self.completed;
        let count = self.allowed().min(left);
        while self.answering.len() < count {
            self.answering.push(self.stage.next());
        }
        count
    }

    /// Refuses those that are too many, which the pool has heard then.
    fn refuse(&mut self) {
        // Rather those that have not been refused before: none is to fail for it.
        self.answering.sort_by_key(|call| Reverse(call.attempt_number));
        let surplus = self.answering.split_off(self.bears.min(self.answering.len()));
        let count = surplus.len();
        for call in surplus {
            call.fail(self.slow_down());
        }
        (0..count).for_each(|_| next(&self.ended));
    }

    fn slow_down(&self) -> ExecuteError {
        let error = match self.refusal {
            Refusal::Bare => ExecuteError::retry("slow down"),
            Refusal::Holding => ExecuteError::hold_until(self.world.clock.now().wall + PAUSE, "slow down"),
        };
        error.kind(kinds::RATE_LIMITED)
    }

    /// Answers the others, which the pool has heard then.
    fn answer(&mut self) {
        let count = self.answering.len();
        self.answering.drain(..).for_each(|call| call.succeed("done"));
        (0..count).for_each(|_| next(&self.ended));
        self.completed += count;
    }

    /// As many as there may be are executed. Returns how many that were.
    fn round(&mut self) -> usize {
        let count = self.begin();
        self.refuse();
        self.answer();
        count
    }

    /// Rounds between which nothing of what was refused matters any more.
    fn calm_rounds(&mut self, count: usize) -> Vec<usize> {
        let round = |_| {
            let executed = self.round();
            self.world.clock.advance(PAUSE + COOL_DOWN);
            executed
        };
        (0..count).map(round).collect()
    }

    fn changes(&self) -> Vec<(usize, usize)> {
        self.pool.adaptations().iter().map(|change| (change.from, change.to)).collect()
    }

    fn end(self) {
        drop(self.answering);
        self.pool.wait_for_completion();
        let stats = self.pool.stop(Stop::Drain).unwrap().stats;
        assert_eq!((stats.completed, stats.failed), (stats.accepted, 0));
        self.world.assert_clean();
    }
}

#[test]
fn it_finds_how_many_are_borne_and_stays_near_that_and_nothing_fails() {
    for refusal in [Refusal::Bare, Refusal::Holding] {
        let mut rush = Rush::new(6, refusal, |builder| builder);
        rush.enqueue(100);
        let rounds = rush.calm_rounds(16);
        assert_eq!(rounds, [1, 2, 4, 8, 6, 7, 5, 6, 7, 5, 6, 7, 5, 6, 7, 5], "{refusal:?}");
        while rush.completed < 100 {
            rush.calm_rounds(1);
        }
        let used: u32 = (0..100).map(|number| rush.world.unit(&format!("u{number:03}")).attempts_used).sum();
        match refusal {
            Refusal::Bare => assert!((100..115).contains(&used), "{used}"),
            Refusal::Holding => assert_eq!(used, 100, "to wait uses up no attempt"),
        }
        rush.end();
    }
}

#[test]
fn what_was_changed_when_and_why_is_remembered_and_told() {
    let label = "finds out";
    support::keep_log();
    let mut rush = Rush::new(2, Refusal::Bare, |builder| builder.label(label));
    let (began, handle) = (rush.world.clock.now().wall, rush.pool.handle());
    rush.enqueue(9);
    assert_eq!(rush.calm_rounds(2), [1, 2]);
    rush.round();
    rush.pool.set_max_workers(1).unwrap();
    let history = rush.pool.adaptations();
    assert_eq!(handle.adaptations(), Some(history.clone()));
    let changes: Vec<_> = history.iter().map(|change| (change.from, change.to, change.reason.clone())).collect();
    let refused = AdaptationReason::Refused(FailureKind::new(kinds::RATE_LIMITED));
    let grown = AdaptationReason::Grown;
    let expected = [
        (1, 2, grown.clone()),
        (2, 3, grown.clone()),
        (3, 4, grown),
        (4, 3, refused),
        (3, 1, AdaptationReason::Bounded),
    ];
    assert_eq!(changes, expected);
    let round = PAUSE + COOL_DOWN;
    assert_eq!(history.iter().map(|change| change.at).collect::<Vec<_>>(), [0, 1, 1, 2, 2].map(|n| began + round * n));
    // Two that grow at once may be told in any order.
    let told: Vec<String> = rush.adapted.try_iter().collect();
    assert_eq!(told.len(), 5);
    assert_eq!(told[0], r#"{"event":"adapted","from":1,"to":2,"reason":"grown"}"#);
    assert_eq!(told[3], r#"{"event":"adapted","from":4,"to":3,"reason":{"refused":"rate_limited"}}"#);
    assert_eq!(told[4], r#"{"event":"adapted","from":3,"to":1,"reason":"bounded"}"#);
    let logged: Vec<String> = support::logged(label).into_iter().filter(|line| line.contains("may have")).collect();
    let say = |line: &str| line.replace("the pool", &format!("the pool `{label}`"));
    assert_eq!(logged.len(), 5);
    assert_eq!(logged[0], say("DEBUG the pool may have 2 workers, not 1: nothing was refused"));
    assert_eq!(logged[3], say("INFO the pool may have 3 workers, not 4: the provider asked for fewer (rate_limited)"));
    assert_eq!(logged[4], say("DEBUG the pool may have 1 worker, not 3: `max_workers` was changed"));
    while rush.completed < 9 {
        rush.round();
    }
    rush.end();
    assert_eq!(handle.adaptations(), None, "the pool is gone");
}

#[test]
fn those_too_many_finish_what_they_have_and_nothing_begins_before_there_is_room() {
    let mut rush = Rush::new(5, Refusal::Bare, |builder| builder);
    rush.enqueue(40);
    assert_eq!([rush.round(), rush.round(), rush.round()], [1, 2, 4]);
    assert_eq!(rush.begin(), 8);
    rush.refuse();
    assert_eq!((rush.allowed(), rush.pool.stats().max_workers), (6, 32));
    // One more may begin, which the provider does not bear.
    rush.stage.next().fail(rush.slow_down());
    next(&rush.ended);
    assert_eq!(rush.allowed(), 4, "that was not enough");
    for _ in 0..2 {
        assert_quiet(&rush.stage.calls);
        rush.answering.pop().unwrap().succeed("done");
        next(&rush.ended);
        rush.completed += 1;
    }
    assert_eq!(rush.begin(), 4, "one more");
    assert_quiet(&rush.stage.calls);
    rush.answer();
    until(|| rush.pool.workers().len() == 4);
    while rush.completed < 40 {
        rush.calm_rounds(1);
    }
    rush.end();
}

#[test]
fn nothing_grows_before_the_cool_down_after_the_pause_is_over() {
    let mut rush = Rush::new(3, Refusal::Holding, |builder| builder);
    rush.enqueue(40);
    assert_eq!([rush.round(), rush.round(), rush.round()], [1, 2, 4]);
    assert_eq!(rush.allowed(), 3, "one of four was refused");
    assert_quiet(&rush.stage.calls);
    rush.world.clock.advance(PAUSE);
    for _ in 0..4 {
        assert_eq!(rush.round(), 3);
    }
    rush.world.clock.advance(COOL_DOWN - Duration::from_millis(1));
    assert_eq!(rush.round(), 3);
    rush.world.clock.advance(Duration::from_millis(1));
    assert_eq!([rush.round(), rush.begin()], [3, 4]);
    rush.answer();
    while rush.completed < 40 {
        rush.calm_rounds(1);
    }
    rush.end();
}

#[test]
fn with_too_little_to_do_nothing_is_learnt() {
    let rush = Rush::new(32, Refusal::Bare, |builder| builder);
    for number in 0..5 {
        rush.pool.submit_work_unit(NewUnit::new(format!("u{number}")), "go").unwrap();
        rush.stage.next().succeed("done");
        next(&rush.ended);
        until(|| rush.pool.stats().free_slots == 2);
    }
    assert_eq!(rush.changes(), [(1, 2)], "one at a time shows that one is borne");
    rush.end();
}

#[test]
fn a_thread_that_submits_one_unit_after_the_other_gets_more_and_more_places() {
    let mut rush = Rush::new(32, Refusal::Bare, |builder| builder.max_workers(4));
    std::thread::scope(|threads| {
        let pool = rush.pool.handle();
        threads.spawn(move || {
            for number in 0..30 {
                assert!(pool.wait_for_available_slot());
                pool.submit_work_unit(NewUnit::new(format!("u{number:03}")), "go").unwrap();
            }
        });
        let mut rounds = Vec::new();
        while rush.completed < 30 {
            let brought = || usize::try_from(rush.pool.stats().accepted).unwrap();
            until(|| brought() == 30 || brought() - rush.completed == rush.allowed());
            rounds.push(rush.round());
        }
        assert_eq!(rounds[..4], [1, 2, 4, 4]);
    });
    rush.end();
}

#[test]
fn there_are_never_fewer_than_the_minimum() {
    let mut rush = Rush::new(0, Refusal::Holding, |builder| builder.min_workers(3).max_workers(8));
    assert_eq!((rush.allowed(), rush.pool.stats().idle_workers), (3, 3));
    rush.enqueue(3);
    for _ in 0..3 {
        rush.begin();
        rush.refuse();
        assert_eq!((rush.allowed(), rush.changes()), (3, vec![]));
        rush.world.clock.advance(PAUSE);
    }
    rush.bears = 8;
    rush.round();
    rush.end();
}

#[test]
fn another_maximum_is_the_most_that_is_found_out() {
    let mut rush = Rush::new(6, Refusal::Bare, |builder| builder.max_workers(3));
    rush.enqueue(120);
    assert_eq!(rush.calm_rounds(4), [1, 2, 3, 3]);
    rush.pool.set_max_workers(32).unwrap();
    assert_eq!(rush.calm_rounds(4), [3, 6, 12, 9]);
    assert_eq!(rush.begin(), 7);
    rush.pool.set_max_workers(2).unwrap();
    let stats = rush.pool.stats();
    assert_eq!((stats.allowed_workers, stats.max_workers, stats.target_workers.min(7)), (2, 2, stats.target_workers));
    rush.bears = 7;
    rush.answer();
    until(|| rush.pool.workers().len() == 2);
    rush.bears = 6;
    assert_eq!(rush.calm_rounds(2), [2, 2]);
    rush.pool.set_max_workers(32).unwrap();
    // It comes back fast to what the first cut of the last episode has left.
    let rounds = rush.calm_rounds(4);
    assert_eq!(rounds[..2], [2, 4]);
    let history = rush.pool.adaptations();
    assert!(history.windows(2).all(|pair| pair[0].to == pair[1].from), "{history:?}");
    while rush.completed < 120 {
        rush.calm_rounds(1);
    }
    rush.end();
}

#[test]
fn what_is_no_refusal_says_nothing_of_how_many_are_borne() {
    let rush = Rush::new(32, Refusal::Bare, |builder| builder);
    let far = rush.world.clock.now().wall + Duration::from_secs(3_600);
    rush.pool.enqueue(NewUnit::new("a"), "go").unwrap();
    for error in [
        ExecuteError::hold_until(far, "come back tomorrow").kind(kinds::QUOTA),
        ExecuteError::retry("oh").kind(kinds::SERVER_ERROR),
        ExecuteError::retry("lost").kind(kinds::CONNECTION),
        ExecuteError::broken("it fell"),
    ] {
        rush.stage.next().fail(error);
        next(&rush.ended);
        if rush.pool.stats().hold.is_some() {
            rush.world.clock.advance(Duration::from_secs(3_600));
        }
    }
    assert_eq!(rush.changes(), []);
    // Nor has a cool-down begun.
    rush.stage.next().succeed("done");
    next(&rush.ended);
    assert_eq!(rush.changes(), [(1, 2)]);
    rush.pool.stop(Stop::Drain).unwrap();
    rush.world.assert_clean_after_crashes();
}

#[test]
fn an_attempt_that_waits_for_its_turn_shows_nothing() {
    let limits = |builder: WorkPoolBuilder| {
        builder.max_workers(8).provider("a provider").rate_limits(RateLimits::new().concurrency(2))
    };
    let mut rush = Rush::new(32, Refusal::Bare, limits);
    rush.enqueue(12);
    // Two are asked for at a time; all others wait for their turn, however many there may be.
    while rush.completed < 12 {
        let count = rush.allowed().min(2).min(12 - rush.completed);
        while rush.answering.len() < count {
            rush.answering.push(rush.stage.next());
        }
        rush.answering.remove(0).succeed("done");
        next(&rush.ended);
        rush.completed += 1;
    }
    assert!(rush.allowed() <= 4, "{:?}", rush.changes());
    rush.end();
}

#[test]
fn an_attempt_that_is_left_behind_is_not_counted_for_ever() {
    let mut rush = Rush::new(32, Refusal::Bare, |builder| builder.max_workers(2).kill_grace(PAUSE));
    rush.pool.enqueue(NewUnit::new("stuck").timeout(PAUSE).max_retries(0), "go").unwrap();
    let stuck = rush.stage.next();
    rush.world.clock.advance(PAUSE);
    stuck.asked();
    rush.world.clock.advance(PAUSE);
    next(&rush.ended);
    assert_eq!(rush.changes(), [], "it was not answered");
    rush.enqueue(1);
    assert_eq!(rush.round(), 1);
    assert_eq!(rush.changes(), [(1, 2)]);
    stuck.succeed("too late");
    until(|| rush.pool.stats().abandoned_threads == 0);
    rush.pool.stop(Stop::Drain).unwrap();
    assert_eq!(rush.world.status("stuck"), UnitStatus::Failed);
    rush.world.assert_clean();
}

#[test]
fn workers_with_several_places_are_counted_as_workers() {
    let mut rush = Rush::new(10, Refusal::Bare, |builder| builder.worker_capacity(4));
    rush.enqueue(80);
    let mut rounds = Vec::new();
    for _ in 0..3 {
        // Who is yet to come up has one place, and more when it is there.
        let count = (4 * rush.allowed()).min(80 - rush.completed);
        while rush.answering.len() < count {
            rush.answering.push(rush.stage.next());
        }
        rush.refuse();
        rush.answer();
        rounds.push(count);
    }
    assert_eq!(rounds, [4, 8, 16]);
    assert_eq!(rush.allowed(), 3, "four fifths of four");
    rush.bears = 32;
    while rush.completed < 80 {
        rush.answering.extend(rush.stage.calls.try_iter());
        rush.answer();
    }
    rush.end();
}

#[test]
fn a_cut_is_told_to_other_processes_with_the_next_beat() {
    let mut rush = Rush::new(2, Refusal::Bare, |builder| builder.max_workers(16));
    rush.enqueue(9);
    assert_eq!(rush.calm_rounds(2), [1, 2]);
    let now = rush.world.clock.now().wall;
    rush.round();
    rush.world.clock.advance(Duration::from_secs(15));
    let told = || -> Option<OwnerState> { rush.world.repository.owners().unwrap().pop().unwrap().state };
    until(|| told().is_some_and(|state| state.level.is_some_and(|level| level.cut_at == Some(now))));
    let state = told().unwrap();
    assert_eq!((state.level.unwrap().workers, state.max_workers, state.max_abandoned), (3, 16, 16));
    while rush.completed < 9 {
        rush.calm_rounds(1);
    }
    rush.end();
}

#[test]
fn another_pool_begins_anew_and_who_does_not_find_out_has_nothing_to_tell() {
    let mut rush = Rush::new(32, Refusal::Bare, |builder| builder);
    rush.enqueue(3);
    assert_eq!([rush.round(), rush.round(), rush.allowed()], [1, 2, 4]);
    let (part, _stage) = stage();
    let again = rush.world.pool(part).scaling(Scaling::ADAPTIVE).max_workers(32).up();
    assert_eq!((again.stats().allowed_workers, again.adaptations()), (1, vec![]));
    again.stop(Stop::Drain).unwrap();
    let (part, _stage) = stage();
    let on_demand = rush.world.pool(part).max_workers(32).up();
    on_demand.set_max_workers(8).unwrap();
    assert_eq!((on_demand.stats().allowed_workers, on_demand.stats().max_workers), (8, 8));
    assert_eq!(on_demand.adaptations(), []);
    on_demand.stop(Stop::Drain).unwrap();
    rush.end();
}
