//! What holds of sessions.

use super::*;

const W1: WorkerNumber = WorkerNumber(1);
const W2: WorkerNumber = WorkerNumber(2);
const DUE: Turn = Turn::Waits { is_due: true };

/// Those that have room, for one unit each.
impl Rooms for &[WorkerNumber] {
    fn room(&self, worker: WorkerNumber) -> usize {
        usize::from(self.contains(&worker))
    }

    fn open(&self) -> impl Iterator<Item = WorkerNumber> {
        self.iter().copied()
    }

    fn open_count(&self) -> usize {
        self.len()
    }
}

fn key(name: &str) -> Arc<str> {
    Arc::from(name)
}

fn order(unit: i64) -> Order {
    Order::new(0, UnitKey(unit))
}

/// The first unit that can go, and where to, if these workers have room.
fn first(sessions: &Sessions, with_room: &[WorkerNumber]) -> Option<(i64, Option<WorkerNumber>)> {
    let first = sessions.first(&with_room);
    first.map(|(order, worker)| (order.unit.0, worker))
}

#[test]
fn a_session_stays_on_its_worker_and_one_goes_after_the_other() {
    // 001-F42, 001-F44
    let (mut sessions, s) = (Sessions::new(1_000), key("s"));
    assert_eq!(sessions.seat("s", 0), Seat::Anywhere);
    sessions.begin_taking(&s);
    sessions.settle(&s, W1, 0);
    assert_eq!(sessions.seat("s", 0), Seat::Behind(W1), "the first has yet to begin");
    sessions.stand(&s, order(1), Turn::Runs);
    sessions.end_taking(&s);
    sessions.begin(&s, UnitKey(1));
    assert_eq!(sessions.seat("s", 0), Seat::On(W1));
    for unit in [3, 2] {
        sessions.stand(&s, order(unit), DUE);
    }
    assert_eq!((first(&sessions, &[]), first(&sessions, &[W2])), (None, None));
    assert_eq!(first(&sessions, &[W1, W2]), Some((2, Some(W1))));
    assert_eq!(sessions.ready_count(&&[W1][..]), 1);
    sessions.stand(&s, order(2), Turn::Runs);
    assert_eq!(first(&sessions, &[W1]), None, "it has yet to begin");
    sessions.begin(&s, UnitKey(2));
    assert_eq!(first(&sessions, &[W1]), Some((3, Some(W1))));
}

#[test]
fn what_waits_for_a_worker_that_goes_goes_elsewhere_once_nothing_is_left_there() {
    let (mut sessions, s) = (Sessions::new(1_000), key("s"));
    sessions.settle(&s, W1, 0);
    sessions.stand(&s, order(1), Turn::Runs);
    sessions.begin(&s, UnitKey(1));
    sessions.stand(&s, order(2), DUE);
    sessions.worker_goes(W1);
    assert_eq!((first(&sessions, &[W1, W2]), sessions.seat("s", 0)), (None, Seat::Nowhere));
    sessions.stand(&s, order(1), Turn::None);
    assert_eq!(first(&sessions, &[]), Some((2, None)));
    sessions.settle(&s, W2, 0);
    sessions.stand(&s, order(2), Turn::Runs);
    sessions.worker_goes(W1);
    assert_eq!(sessions.worker_of("s", 0), Some(W2));
}

#[test]
fn what_waits_for_workers_with_room_is_found_from_either_side() {
    let mut sessions = Sessions::new(1_000);
    for number in 1..=3 {
        let key = key(&format!("s{number}"));
        sessions.settle(&key, WorkerNumber(number), 0);
        sessions.stand(&key, order(i64::try_from(number).unwrap()), DUE);
    }
    let others = (10..20).map(WorkerNumber);
    for idle in [Vec::new(), others.collect()] {
        for (with_room, expected, count) in [(vec![], None, 0), (vec![3, 2], Some((2, Some(W2))), 2)] {
            let with_room: Vec<_> = with_room.into_iter().map(WorkerNumber).chain(idle.clone()).collect();
            assert_eq!(first(&sessions, &with_room), expected);
            assert_eq!(sessions.ready_count(&&*with_room), count);
        }
    }
}

#[test]
fn one_that_is_to_be_tried_again_holds_its_place() {
    let (mut sessions, s) = (Sessions::new(1_000), key("s"));
    sessions.settle(&s, W1, 0);
    sessions.stand(&s, order(1), Turn::Runs);
    sessions.stand(&s, order(2), DUE);
    sessions.stand(&s, order(1), Turn::Waits { is_due: false });
    assert_eq!((first(&sessions, &[W1]), sessions.before("s")), (None, None));
    sessions.stand(&s, order(1), DUE);
    assert_eq!((first(&sessions, &[W1]), sessions.before("s")), (Some((1, Some(W1))), Some(2)));
    sessions.stand(&s, order(1), Turn::None);
    assert_eq!(first(&sessions, &[W1]), Some((2, Some(W1))));
}

#[test]
fn a_session_is_remembered_for_a_while_after_its_last_use_and_not_after_its_worker_went() {
    let mut sessions = Sessions::new(1_000);
    let (strict, hint, lost) = (key("strict"), key("hint"), key("lost"));
    sessions.visit(&hint, W1, 0);
    sessions.visit(&lost, W2, 0);
    sessions.settle(&strict, W1, 0);
    sessions.stand(&strict, order(1), Turn::Runs);
    sessions.worker_goes(W2);
    assert_eq!((sessions.worker_of("hint", 999), sessions.worker_of("lost", 999)), (Some(W1), None));
    assert_eq!((sessions.worker_of("hint", 1_000), sessions.worker_of("strict", 9_000)), (None, Some(W1)));
    sessions.stayed(&strict, W1, 9_000);
    sessions.stayed(&strict, W2, 9_500);
    sessions.stand(&strict, order(1), Turn::None);
    assert_eq!((sessions.worker_of("strict", 9_999), sessions.worker_of("strict", 10_000)), (Some(W1), None));
    sessions.stayed(&strict, W1, 10_000);
    assert!(sessions.by_key.is_empty() && sessions.by_worker.is_empty() && sessions.remembered.is_empty());
}

#[test]
fn a_hint_does_not_move_a_session_that_is_in_use() {
    let (mut sessions, s) = (Sessions::new(1_000), key("s"));
    sessions.settle(&s, W1, 0);
    sessions.stand(&s, order(1), Turn::Runs);
    sessions.visit(&s, W2, 0);
    assert_eq!(sessions.worker_of("s", 0), Some(W1));
    sessions.stand(&s, order(1), Turn::None);
    sessions.visit(&s, W2, 0);
    assert_eq!(sessions.worker_of("s", 0), Some(W2));
}

#[test]
fn a_session_that_was_told_of_is_not_forgotten_while_that_unit_is_executed() {
    let (mut sessions, s, unit) = (Sessions::new(1_000), key("s"), UnitKey(1));
    sessions.tell(&s, W1, unit, 0);
    assert_eq!(sessions.worker_of("s", 9_000), Some(W1));
    sessions.tell(&s, W1, unit, 9_000);
    sessions.end_telling(&s, unit);
    assert_eq!((sessions.worker_of("s", 9_999), sessions.worker_of("s", 10_000)), (Some(W1), None));
    sessions.end_telling(&s, unit);
    sessions.tell(&s, W1, unit, 20_000);
    sessions.visit(&s, W2, 20_000);
    assert_eq!((sessions.worker_of("s", 20_999), sessions.worker_of("s", 21_000)), (Some(W2), None), "it moved");
    sessions.tell(&s, W1, unit, 30_000);
    sessions.worker_goes(W1);
    assert_eq!(sessions.worker_of("s", 30_000), None);
    assert!(sessions.by_key.is_empty() && sessions.by_worker.is_empty() && sessions.remembered.is_empty());
}

#[test]
fn what_is_over_is_forgotten_bit_by_bit_and_at_once_if_it_is_asked_for() {
    let mut sessions = Sessions::new(1_000);
    for number in 0..20 {
        sessions.visit(&key(&format!("s{number}")), W1, number);
    }
    assert_eq!((sessions.seat("s19", 2_000), sessions.remembered.len()), (Seat::Anywhere, 11));
    assert_eq!((sessions.worker_of("s18", 2_000), sessions.remembered.len()), (None, 2));
    assert_eq!((sessions.worker_of("s18", 2_000), sessions.by_key.len()), (None, 0));
    assert!(sessions.by_worker.is_empty() && sessions.remembered.is_empty());
}

#[test]
fn sessions_that_nobody_uses_are_bounded() {
    let mut sessions = Sessions::new(i64::MAX);
    for number in 0..REMEMBERED_LIMIT as i64 + 5 {
        sessions.visit(&key(&format!("s{number}")), W1, number);
    }
    // Also while nobody asks: an executor may tell of a new session with every unit, of which none names one.
    assert!(sessions.remembered.len() <= REMEMBERED_LIMIT + 1, "{} are remembered", sessions.remembered.len());
    assert_eq!(sessions.worker_of("s4", 0), None, "those used longest ago are forgotten");
    assert_eq!((sessions.worker_of("s5", 0), sessions.by_key.len()), (Some(W1), REMEMBERED_LIMIT));
}
