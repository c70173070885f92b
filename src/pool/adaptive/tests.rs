//! The level against tables, against whatever may happen, and against providers that bear so many and no more.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use proptest::prelude::*;

use super::level::HISTORY_LIMIT;
use super::*;
use crate::clock::{Clock, ManualClock, milliseconds};
use crate::pool::ready::CrewLimits;
use crate::pool::settings::Settings;

const COOL_DOWN: Duration = Duration::from_secs(10);
const MOMENT: Duration = Duration::from_millis(1);

/// How many cases there are of what is chosen at random.
const CASES: u32 = 100;

/// A level, the time, and what is executed.
struct World {
    level: Level,
    clock: ManualClock,
    runs: u64,
    /// How many units a worker can have in hand.
    capacity: usize,
}

impl World {
    fn new(min_workers: usize, max_workers: usize) -> World {
        let limits = CrewLimits { min_workers, max_workers, ..Settings::default().crew() };
        World { level: Level::new(&limits, COOL_DOWN), clock: ManualClock::new(), runs: 0, capacity: 1 }
    }

    fn places(&self) -> usize {
        self.level.workers() * self.capacity
    }

    fn begin(&mut self) -> u64 {
        self.runs += 1;
        self.level.begin(self.runs, self.places());
        self.runs
    }

    /// As many as there may be.
    fn begin_all(&mut self) -> Vec<u64> {
        (0..self.places()).map(|_| self.begin()).collect()
    }

    fn end(&mut self, run: u64, sign: Option<Sign>) -> Option<Adaptation> {
        self.level.end(run, sign.as_ref(), self.places(), self.clock.now())
    }

    fn end_well(&mut self, run: u64) -> usize {
        self.end(run, Some(Sign::Well));
        self.level.workers()
    }

    fn refuse(&mut self, run: u64) -> usize {
        self.refuse_for(run, Duration::ZERO)
    }

    fn refuse_for(&mut self, run: u64, pause: Duration) -> usize {
        self.end(run, Some(refused(pause)));
        self.level.workers()
    }

    /// All that there may be are executed, and end well.
    fn round(&mut self) -> usize {
        for run in self.begin_all() {
            self.end_well(run);
        }
        self.level.workers()
    }

    /// Brings the level to so many, with nothing refused.
    fn grown_to(min_workers: usize, max_workers: usize, workers: usize) -> World {
        let mut world = World::new(min_workers, max_workers);
        while world.level.workers() < workers {
            let runs = world.begin_all();
            world.end_well(runs[0]);
            for &run in &runs[1..] {
                world.end(run, None);
            }
        }
        world
    }

    fn changes(&self) -> Vec<(usize, usize)> {
        self.level.history().iter().map(|change| (change.from, change.to)).collect()
    }
}

fn refused(pause: Duration) -> Sign {
    Sign::Refused { kind: FailureKind::new(kinds::RATE_LIMITED), pause }
}

#[test]
fn while_nothing_is_refused_each_round_has_twice_as_many_as_the_one_before() {
    let mut world = World::new(1, 50);
    let rounds: Vec<usize> = (0..7).map(|_| world.round()).collect();
    assert_eq!(rounds, [2, 4, 8, 16, 32, 50, 50]);
    assert_eq!(world.changes().len(), 49);
}

#[test]
fn it_begins_with_the_minimum_and_never_goes_below() {
    for (min_workers, max_workers, floor) in [(0, 8, 1), (1, 8, 1), (3, 8, 3), (8, 8, 8)] {
        let mut world = World::new(min_workers, max_workers);
        assert_eq!(world.level.workers(), floor);
        for _ in 0..3 {
            let run = world.begin();
            assert_eq!(world.refuse(run), floor);
        }
        assert_eq!(world.changes(), [], "nothing has changed");
    }
}

#[test]
fn a_refusal_leaves_four_fifths_and_at_least_one_fewer() {
    for (workers, left) in [(100, 80), (16, 12), (10, 8), (9, 7), (6, 4), (5, 4), (4, 3), (3, 2), (2, 1), (1, 1)] {
        let mut world = World::grown_to(1, 100, workers);
        let run = world.begin();
        assert_eq!(world.refuse(run), left, "of {workers}");
    }
}

#[test]
fn refusals_of_attempts_that_began_together_are_one_cut_and_one_that_began_later_is_another() {
    let mut world = World::grown_to(1, 100, 20);
    let runs = world.begin_all();
    assert_eq!(world.refuse(runs[7]), 16);
    let later = world.begin();
    for run in [0, 3, 19] {
        assert_eq!(world.refuse(runs[run]), 16, "it met what was cut already");
    }
    assert_eq!(world.refuse(later), 12, "the cut was not enough");
    let last = world.level.last_cut().unwrap();
    assert_eq!((last.from, last.to), (16, 12));
}

#[test]
fn nothing_grows_before_the_cool_down_is_over_which_begins_when_the_pause_is() {
    let pause = Duration::from_secs(20);
    let mut world = World::grown_to(1, 100, 20);
    let runs = world.begin_all();
    assert_eq!(world.refuse_for(runs[0], pause), 16);
    world.clock.advance(Duration::from_secs(5));
    // It belongs to the same cut, and asks for less.
    assert_eq!(world.refuse(runs[1]), 16);
    world.clock.advance(Duration::from_secs(25) - MOMENT);
    assert_eq!(world.round(), 16, "the cool-down has a millisecond left");
    world.clock.advance(MOMENT);
    assert_eq!(world.round(), 17);
}

#[test]
fn what_is_refused_while_nobody_is_to_ask_is_no_reason_for_another_cut() {
    let mut world = World::grown_to(1, 100, 20);
    let run = world.begin();
    assert_eq!(world.refuse_for(run, Duration::from_secs(5)), 16);
    let (early, late) = (world.begin(), world.begin());
    world.clock.advance(Duration::from_secs(5) - MOMENT);
    assert_eq!(world.refuse(early), 16, "it asked all the same, or was kept from it");
    world.clock.advance(MOMENT);
    assert_eq!(world.refuse(late), 12);
}

#[test]
fn a_refusal_that_belongs_to_the_last_cut_makes_the_cool_down_longer() {
    let mut world = World::grown_to(1, 100, 20);
    let runs = world.begin_all();
    assert_eq!(world.refuse(runs[0]), 16);
    world.clock.advance(Duration::from_secs(9));
    assert_eq!(world.refuse_for(runs[1], Duration::from_secs(1)), 16);
    world.clock.advance(Duration::from_secs(11) - MOMENT);
    assert_eq!(world.round(), 16);
    world.clock.advance(MOMENT);
    assert_eq!(world.round(), 17);
}

#[test]
fn after_an_episode_it_comes_back_fast_to_what_its_first_cut_has_left_and_goes_on_slowly() {
    let mut world = World::grown_to(1, 100, 20);
    // Sixteen, twelve, nine, seven, five: the provider bears nothing for a while.
    for _ in 0..5 {
        let run = world.begin();
        world.refuse(run);
    }
    world.clock.advance(COOL_DOWN);
    let rounds: Vec<usize> = (0..5).map(|_| world.round()).collect();
    assert_eq!(rounds, [10, 16, 17, 18, 19]);
    let run = world.begin();
    assert_eq!(world.refuse(run), 15, "another episode");
    world.clock.advance(COOL_DOWN);
    assert_eq!([world.round(), world.round()], [16, 17], "one by one from what that has left");
}

#[test]
fn where_fewer_are_executed_than_may_be_nothing_is_learnt() {
    let mut world = World::grown_to(1, 100, 8);
    for _ in 0..50 {
        let runs: Vec<u64> = (0..7).map(|_| world.begin()).collect();
        for run in runs {
            assert_eq!(world.end_well(run), 8);
        }
    }
    let runs = world.begin_all();
    // Who was one of all of them shows it whenever it ends, up to twice as many.
    assert_eq!(runs.into_iter().map(|run| world.end_well(run)).max(), Some(16));
    let run = world.begin();
    assert_eq!(world.end_well(run), 16, "alone it shows nothing");
}

#[test]
fn what_says_nothing_changes_nothing() {
    let mut world = World::grown_to(1, 100, 4);
    let runs = world.begin_all();
    for run in runs {
        assert_eq!(world.end(run, None), None);
    }
    assert_eq!(world.end(7_777, Some(Sign::Well)), None, "it never began");
    assert_eq!(world.end(7_777, Some(refused(COOL_DOWN))), None);
    assert_eq!(world.round(), 8, "nor has the cool-down begun");
}

#[test]
fn workers_with_several_places_are_added_as_their_places_are_used() {
    let mut world = World { capacity: 4, ..World::new(1, 64) };
    let rounds: Vec<usize> = (0..4).map(|_| world.round()).collect();
    assert_eq!(rounds, [2, 4, 8, 16], "as fast as with a single one");
    let run = world.begin();
    assert_eq!(world.refuse(run), 12);
    world.clock.advance(COOL_DOWN);
    let rounds: Vec<usize> = (0..3).map(|_| world.round()).collect();
    assert_eq!(rounds, [13, 14, 15]);
}

#[test]
fn another_maximum_moves_the_level_only_if_it_has_to() {
    let mut world = World::grown_to(2, 16, 10);
    let now = world.clock.now();
    assert_eq!(world.level.set_max_workers(12, now), None);
    let change = world.level.set_max_workers(4, now).unwrap();
    assert_eq!((change.from, change.to, change.reason), (10, 4, AdaptationReason::Bounded));
    assert_eq!(world.round(), 4, "there may never be more");
    assert_eq!(world.level.set_max_workers(1, now).unwrap().to, 1, "fewer than the minimum");
    assert_eq!(world.level.set_max_workers(16, now).unwrap().to, 2, "the minimum is there again");
    assert_eq!(world.round(), 4, "and from there on it is found out");
    assert!(world.level.last_cut().is_none(), "nobody was refused");
}

#[test]
fn the_last_changes_are_remembered_and_no_more() {
    let mut world = World::new(1, HISTORY_LIMIT + 500);
    while world.level.workers() < HISTORY_LIMIT + 500 {
        world.round();
    }
    let history = world.level.history();
    assert_eq!(history.len(), HISTORY_LIMIT);
    assert_eq!((history[0].from, history[HISTORY_LIMIT - 1].to), (500, HISTORY_LIMIT + 500));
}

#[test]
fn the_kinds_and_what_follows_say_whether_an_attempt_was_refused() {
    let now = ManualClock::new().now();
    let minute = Duration::from_secs(60);
    let of = |kind: &'static str, then| Sign::of(Some(&Failure::new(FailureKind::new(kind), "why")), then, now);
    let refused = |kind: &'static str, pause| Some(Sign::Refused { kind: FailureKind::new(kind), pause });
    let (until, past) = (Some(now.wall + minute), Some(now.wall - minute));
    assert_eq!(Sign::of(None, Then::Retry, now), Some(Sign::Well));
    for (kind, then, pause) in [
        (kinds::RATE_LIMITED, Then::Retry, Duration::ZERO),
        (kinds::RATE_LIMITED, Then::RetryAfter(minute), minute),
        (kinds::RATE_LIMITED, Then::Hold { until }, minute),
        (kinds::RATE_LIMITED, Then::Hold { until: past }, Duration::ZERO),
        (kinds::RATE_LIMITED, Then::Hold { until: None }, Duration::ZERO),
        (kinds::OVERLOADED, Then::Retry, Duration::ZERO),
        (kinds::OVERLOADED, Then::GiveUp, Duration::ZERO),
    ] {
        assert_eq!(of(kind, then), refused(kind, pause), "{kind}, {then:?}");
    }
    for kind in [kinds::QUOTA, kinds::SERVER_ERROR, kinds::CONNECTION, kinds::TIMED_OUT, kinds::REFUSED, "executor"] {
        assert_eq!(of(kind, Then::Hold { until }), None, "{kind}");
    }
}

/// One thing that happens to a level.
#[derive(Clone, Debug)]
enum Step {
    Begin,
    Well(usize),
    Refused { run: usize, pause_ms: u64 },
    Nothing(usize),
    SetMaxWorkers(usize),
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let run = 0..100_usize;
    prop_oneof![
        8 => Just(Step::Begin),
        6 => run.clone().prop_map(Step::Well),
        1 => (run.clone(), 0..30_000_u64).prop_map(|(run, pause_ms)| Step::Refused { run, pause_ms }),
        1 => run.prop_map(Step::Nothing),
        1 => (1..40_usize).prop_map(Step::SetMaxWorkers),
        2 => (1..20_000_u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

/// A level to which anything happens, and what must hold of it.
struct Watched {
    world: World,
    min_workers: usize,
    max_workers: usize,
    executing: Vec<u64>,
    executed_at_most: usize,
    pause_ends_ms: i64,
    /// The last one that had begun when the level was cut.
    cut_after: u64,
}

impl Watched {
    fn floor(&self) -> usize {
        self.min_workers.min(self.max_workers).max(1)
    }

    fn take(&mut self, run: usize) -> Option<u64> {
        let count = self.executing.len();
        (count > 0).then(|| self.executing.swap_remove(run % count))
    }

    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        let (now, before) = (self.world.clock.now(), self.world.level.workers());
        let change = match *step {
            Step::Begin if self.executing.len() < self.world.places() => {
                self.executing.push(self.world.begin());
                self.executed_at_most = self.executed_at_most.max(self.executing.len());
                None
            }
            Step::Begin => None,
            Step::Well(run) => self.take(run).and_then(|run| self.world.end(run, Some(Sign::Well))),
            Step::Nothing(run) => self.take(run).and_then(|run| self.world.end(run, None)),
            Step::Refused { run, pause_ms } => match self.take(run) {
                Some(run) => self.refuse(run, Duration::from_millis(pause_ms))?,
                None => None,
            },
            Step::SetMaxWorkers(max_workers) => {
                self.max_workers = max_workers;
                self.world.level.set_max_workers(max_workers, now)
            }
            Step::Pass { ms } => {
                self.world.clock.advance(Duration::from_millis(ms));
                None
            }
        };
        let after = self.world.level.workers();
        prop_assert!((self.floor()..=self.max_workers).contains(&after), "{} is no level", after);
        prop_assert_eq!(change.as_ref().map_or((before, before), |change| (change.from, change.to)), (before, after));
        if change.is_some_and(|change| change.reason == AdaptationReason::Grown) {
            prop_assert_eq!(after, before + 1);
            prop_assert!(now.boot_ms >= self.pause_ends_ms + milliseconds(COOL_DOWN), "it cools down");
            // What somebody wants at least need not be shown.
            let (wanted, shown) = (self.floor() * self.world.capacity, 2 * self.executed_at_most);
            prop_assert!(before * self.world.capacity < wanted + shown, "nobody has shown that");
        }
        Ok(())
    }

    fn refuse(&mut self, run: u64, pause: Duration) -> Result<Option<Adaptation>, TestCaseError> {
        let (now, before) = (self.world.clock.now(), self.world.level.workers());
        let is_new = run > self.cut_after && now.boot_ms >= self.pause_ends_ms;
        self.pause_ends_ms = self.pause_ends_ms.max(now.boot_ms + milliseconds(pause));
        let change = self.world.end(run, Some(refused(pause)));
        let after = if is_new { (before * 4 / 5).max(self.floor()) } else { before };
        prop_assert_eq!(self.world.level.workers(), after);
        if is_new {
            self.cut_after = self.world.runs;
        }
        Ok(change)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn whatever_happens_the_level_keeps_its_bounds_and_grows_only_on_evidence(
        (min_workers, max_workers) in (0..6_usize, 6..40_usize),
        capacity in 1..4_usize,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let world = World { capacity, ..World::new(min_workers, max_workers) };
        let (executing, pause_ends_ms) = (Vec::new(), i64::MIN / 2);
        let (executed_at_most, cut_after) = (0, 0);
        let mut watched =
            Watched { world, min_workers, max_workers, executing, executed_at_most, pause_ends_ms, cut_after };
        for (number, step) in steps.iter().enumerate() {
            watched.step(step).map_err(|error| TestCaseError::fail(format!("step {number}, {step:?}: {error}")))?;
        }
        let history = watched.world.level.history();
        prop_assert!(history.windows(2).all(|pair| pair[0].to == pair[1].from && pair[0].at <= pair[1].at));
        let last = history.last().map_or(min_workers.max(1), |last| last.to);
        prop_assert_eq!(last, watched.world.level.workers());
    }
}

/// A provider that bears so many at a time, asked by as many as there may be.
#[derive(Clone, Debug)]
struct Provider {
    bears: usize,
    /// An answer takes at least that long, and at most twice as long.
    answer_ms: u64,
    refusal_ms: u64,
    /// Whether all that begin together take equally long.
    is_in_step: bool,
}

/// What came of some minutes with a provider.
#[derive(Debug, Default)]
struct Outcome {
    answered: u64,
    refused: u64,
    /// How many were answered at a time, in the mean.
    used: f64,
    highest: usize,
    lowest: usize,
}

impl Provider {
    /// Asks for so long, and says what came of it in the end.
    fn ask(&self, world: &mut World, minutes: u64) -> Outcome {
        let end_ms = minutes * 60_000;
        let mut outcome = Outcome { lowest: usize::MAX, ..Outcome::default() };
        let (mut now_ms, mut answering, mut executing, mut answering_ms) = (0, 0_usize, 0_usize, 0);
        let mut ends = BinaryHeap::new();
        while now_ms < end_ms {
            while executing < world.level.workers() {
                let run = world.begin();
                executing += 1;
                let is_refused = answering >= self.bears;
                answering += usize::from(!is_refused);
                let longer_ms = if self.is_in_step { 0 } else { run * 7_919 % self.answer_ms };
                let takes_ms = if is_refused { self.refusal_ms } else { self.answer_ms + longer_ms };
                ends.push(Reverse((now_ms + takes_ms, run, is_refused)));
            }
            let Some(Reverse((at_ms, run, is_refused))) = ends.pop() else { break };
            answering_ms += (at_ms - now_ms) * answering as u64;
            world.clock.advance(Duration::from_millis(at_ms - now_ms));
            (now_ms, executing) = (at_ms, executing - 1);
            if is_refused {
                outcome.refused += 1;
                world.refuse(run);
            } else {
                (answering, outcome.answered) = (answering - 1, outcome.answered + 1);
                world.end_well(run);
            }
            outcome.highest = outcome.highest.max(world.level.workers());
            outcome.lowest = outcome.lowest.min(world.level.workers());
        }
        for Reverse((_, run, _)) in ends {
            world.end(run, None);
        }
        outcome.used = answering_ms as f64 / now_ms.max(1) as f64;
        outcome
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(CASES) })]

    #[test]
    fn what_a_provider_bears_is_found_and_at_least_four_fifths_of_it_are_used(
        bears in 1..60_usize,
        answer_ms in 200..5_000_u64,
        refusal_ms in 1..200_u64,
        is_in_step in any::<bool>(),
    ) {
        let provider = Provider { bears, answer_ms, refusal_ms, is_in_step };
        let mut world = World::new(1, 100);
        let found = provider.ask(&mut world, 3);
        let settled = provider.ask(&mut world, 30);
        prop_assert!(settled.highest <= bears + 2 && settled.lowest >= (bears + 1) * 4 / 5, "{:?}", settled);
        prop_assert!(settled.used >= 0.8 * bears as f64 && settled.used <= bears as f64, "{:?}", settled);
        // A cool-down, at least, lies between two episodes.
        prop_assert!(settled.refused <= 2 * 30 * 6, "{:?}", settled);
        prop_assert!(found.refused <= 3 * bears as u64 + 40, "{:?}", found);
    }
}

#[test]
fn a_provider_that_bears_much_less_all_at_once_refuses_few() {
    let provider = |bears| Provider { bears, answer_ms: 2_000, refusal_ms: 10, is_in_step: false };
    let mut world = World::new(1, 100);
    let before = provider(40).ask(&mut world, 10);
    assert!((32..=41).contains(&world.level.workers()), "{before:?}");
    let after = provider(5).ask(&mut world, 10);
    assert!(after.refused < 200 && after.used > 4.0, "{after:?}");
    assert!((4..=6).contains(&world.level.workers()), "{after:?}");
}

#[test]
fn a_provider_that_bore_nothing_for_a_while_is_soon_used_as_before() {
    let provider = |bears| Provider { bears, answer_ms: 2_000, refusal_ms: 10, is_in_step: false };
    let mut world = World::new(1, 100);
    provider(40).ask(&mut world, 10);
    provider(0).ask(&mut world, 1);
    assert_eq!(world.level.workers(), 1);
    world.clock.advance(COOL_DOWN);
    let after = provider(40).ask(&mut world, 1);
    assert!(after.refused == 0 && world.level.workers() >= 25, "{after:?}");
}

#[test]
fn a_provider_that_takes_its_time_to_refuse_is_found_out_all_the_same() {
    // Twice as many are asked for before the first refusal comes.
    let provider = Provider { bears: 10, answer_ms: 2_000, refusal_ms: 1_900, is_in_step: true };
    let mut world = World::new(1, 100);
    let found = provider.ask(&mut world, 1);
    assert!(found.highest == 16 && found.refused < 30, "{found:?}");
    let settled = provider.ask(&mut world, 30);
    assert!((8..=12).contains(&settled.lowest) && settled.highest <= 12 && settled.used >= 8.0, "{settled:?}");
}
