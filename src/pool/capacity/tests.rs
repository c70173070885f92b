//! What holds of places.

use super::*;
use crate::worker::WorkerStatus;

fn worker_of(taken: Option<Taken>) -> WorkerNumber {
    taken.unwrap().worker()
}

#[test]
fn the_worker_that_was_idle_longest_is_taken_first() {
    // 000-F13, 000-F15, 000-F16
    let mut capacity = Capacity::new(3, Supply::OnDemand, None);
    let workers: Vec<_> = (0..3).map(|_| worker_of(capacity.take(None))).collect();
    for &index in &[1, 2, 0] {
        assert_eq!(capacity.settle(workers[index], &Done::default(), 0), Condition::Up);
    }
    for &index in &[1, 2, 0] {
        assert_eq!(capacity.take(None), Some(Taken::Up(workers[index])));
    }
    assert_eq!(capacity.take(None), None); // 000-F20
}

#[test]
fn entries_of_workers_that_retired_are_skipped() {
    // 000-F19, 000-F29
    let mut capacity = Capacity::new(2, Supply::OnDemand, None);
    let (first, second) = (worker_of(capacity.take(None)), worker_of(capacity.take(None)));
    capacity.settle(first, &Done::default(), 0);
    capacity.settle(second, &Done::default(), 0);
    assert_eq!(capacity.set_max_workers(1), [second]);
    assert_eq!((capacity.free(), capacity.room(second)), (1, 0));
    capacity.remove(second);
    assert_eq!(capacity.take(None), Some(Taken::Up(first)));
    capacity.set_max_workers(2);
    assert!(matches!(capacity.take(None), Some(Taken::New(worker)) if worker != second));
}

#[test]
fn an_entry_that_no_longer_counts_is_looked_at_once() {
    // 000-F19, 000-F20, 000-F21
    let mut capacity = Capacity::new(1_000, Supply::OnDemand, None);
    let workers: Vec<_> = (0..1_000).map(|_| worker_of(capacity.take(None))).collect();
    for &worker in &workers {
        capacity.settle(worker, &Done::default(), 0);
    }
    for &worker in &workers[..999] {
        capacity.remove(worker);
    }
    assert_eq!(capacity.take(None), Some(Taken::Up(workers[999])));
    assert!(capacity.open.is_empty(), "what has gone is not looked at");
    capacity.max_workers = 1;
    assert_eq!(capacity.take(None), None);
}

#[test]
fn there_are_never_more_workers_than_places() {
    // 004-F42
    let mut capacity = Capacity::new(4, Supply::OnDemand, None);
    let thread = std::thread::current().id();
    capacity.add_permit();
    capacity.reserve(thread, 0);
    assert_eq!(capacity.free(), 2);
    assert!(capacity.take(None).is_some() && capacity.take(None).is_some() && capacity.take(None).is_none());
    assert!(capacity.unreserve(thread).is_some());
    capacity.take_promised(None);
    assert!(capacity.take(None).is_none());
    capacity.drop_permit();
    capacity.take_promised(None);
    assert!(capacity.take(None).is_none());
    assert_eq!(capacity.live(), 4);
}

#[test]
fn a_worker_too_many_is_chosen_at_once_and_retires_when_it_is_done() {
    // 000-F32
    let mut capacity = Capacity::new(2, Supply::OnDemand, None);
    let (first, second) = (worker_of(capacity.take(None)), worker_of(capacity.take(None)));
    assert!(capacity.set_max_workers(1).is_empty(), "both have something in hand");
    assert_eq!(capacity.take_gone(), [second]);
    assert_eq!(capacity.settle(first, &Done::default(), 0), Condition::Up);
    assert_eq!(
        (capacity.room(first), capacity.free(), capacity.take(None)),
        (1, 0, None),
        "one is still with the other"
    );
    capacity.publish(second, Condition::Tainted);
    assert!(!capacity.restart(second), "whatever becomes of it, it is on its way out");
    assert_eq!(capacity.settle(second, &Done::default(), 0), Condition::Retiring);
    assert_eq!(capacity.take(None), Some(Taken::Up(first)), "it has nothing in hand any more");
    capacity.remove(second);
    assert!(capacity.set_max_workers(2).is_empty());
    assert!(matches!(capacity.take(None), Some(Taken::New(_))));
}

#[test]
fn those_go_first_that_can_take_nothing_and_then_those_with_the_least_in_hand() {
    // 000-F32
    let mut capacity = Capacity::new(6, Supply::Ahead, None);
    let workers = capacity.begin_starting(6);
    for &worker in &workers[..5] {
        capacity.come_up(worker, 3, 0);
    }
    let [crashed, rests, full, busy, idle, upcoming] = workers[..] else { unreachable!() };
    for (worker, load) in [(crashed, 1), (full, 3), (busy, 1)] {
        assert!((0..load).all(|_| capacity.take_of(worker)));
    }
    capacity.publish(crashed, Condition::Tainted);
    capacity.publish(rests, Condition::Tainted);
    let mut retire_to = |max_workers| {
        let told = capacity.set_max_workers(max_workers);
        let is_retiring = |&&worker: &&WorkerNumber| capacity.workers[&worker].condition == Condition::Retiring;
        (told, workers.iter().filter(is_retiring).copied().collect::<Vec<_>>())
    };
    assert_eq!(retire_to(5), (vec![], vec![]), "who is on its way up goes when it has come up");
    assert_eq!(retire_to(4), (vec![rests], vec![rests]));
    assert_eq!(retire_to(3), (vec![], vec![crashed, rests]));
    assert_eq!(retire_to(2), (vec![idle], vec![crashed, rests, idle]));
    assert_eq!(capacity.come_up(upcoming, 3, 0), Condition::Retiring);
    let told = capacity.set_max_workers(1);
    assert_eq!((told, capacity.workers[&busy].condition), (vec![], Condition::Retiring));
    assert_eq!((capacity.workers[&full].condition, capacity.free()), (Condition::Up, 0));
}

#[test]
fn what_those_have_in_hand_that_go_the_others_have_less() {
    let mut capacity = Capacity::new(3, Supply::Ahead, None);
    for worker in capacity.begin_starting(3) {
        capacity.come_up(worker, 4, 0);
    }
    assert!((0..4).all(|_| capacity.take(None).is_some()), "two, one and one");
    capacity.add_permit();
    capacity.set_max_workers(2);
    assert_eq!((capacity.tally().rooms, capacity.free()), (5, 3), "one is too much, and one promised");
    capacity.set_max_workers(1);
    assert_eq!((capacity.tally().rooms, capacity.free()), (2, 0), "two are too much");
    capacity.drop_permit();
    assert_eq!(capacity.take_promised(None), None, "a promise is none any more");
    assert!(!capacity.take_of(WorkerNumber(1)));
    assert_eq!(capacity.settle(WorkerNumber(2), &Done::default(), 0), Condition::Retiring);
    assert_eq!(capacity.take(None), Some(Taken::Up(WorkerNumber(1))));
    assert_eq!(capacity.tally().load, 4, "as many as one can have");
}

#[test]
fn a_promise_lapses_once() {
    let mut capacity = Capacity::new(1, Supply::OnDemand, None);
    let thread = std::thread::current().id();
    let first = capacity.reserve(thread, 10);
    let second = capacity.reserve(thread, 20);
    assert!(!capacity.lapse(first), "it was renewed");
    assert!(capacity.lapse(second));
    assert!(!capacity.lapse(second));
    assert_eq!(capacity.free(), 1);
}

#[test]
fn started_ahead_there_are_as_many_places_as_workers_that_are_up() {
    // 001-F9, 001-F57, 001-F80
    let mut capacity = Capacity::new(3, Supply::Ahead, None);
    let starting = capacity.begin_starting(2);
    assert_eq!((starting.len(), capacity.free(), capacity.take(None)), (2, 0, None));
    capacity.come_up(starting[0], 1, 0);
    assert_eq!(capacity.free(), 1);
    capacity.add_permit();
    assert_eq!((capacity.free(), capacity.take(None)), (0, None));
    // The worker behind the promise dies: whoever has it gets another, and still there are no more than three.
    capacity.remove(starting[0]);
    assert_eq!(capacity.begin_starting(9).len(), 1, "one place is promised, one is on its way up");
    capacity.drop_permit();
    assert!(matches!(capacity.take_promised(None), Some(Taken::New(_))));
    assert_eq!((capacity.live(), capacity.begin_starting(9).len()), (3, 0));
}

#[test]
fn the_worker_behind_a_promise_is_not_sent_away() {
    // 000-F32, 003-F50
    let mut capacity = Capacity::new(2, Supply::Ahead, None);
    for worker in capacity.begin_starting(2) {
        capacity.come_up(worker, 1, 1_000);
    }
    capacity.add_permit();
    assert_eq!(capacity.idle_for(4_000), Some(Duration::from_secs(3)));
    assert_eq!(capacity.retire_longest_idle(), Some(WorkerNumber(1)));
    assert_eq!((capacity.idle_for(4_000), capacity.retire_longest_idle()), (None, None));
    assert!(!capacity.retire_if_idle(WorkerNumber(2)));
    capacity.drop_permit();
    assert!(capacity.retire_if_idle(WorkerNumber(2)));
}

#[test]
fn load_and_availability_follow_from_what_is_taken_and_given_back() {
    // 001-F58, 001-F59, 001-F60, 001-F61, 000-F16
    let mut capacity = Capacity::new(1, Supply::OnDemand, None);
    let worker = worker_of(capacity.take(None));
    assert_eq!((capacity.free(), capacity.take(None)), (0, None), "until it has come up it has one place");
    capacity.widen(worker, 3);
    let seen = |capacity: &Capacity| {
        let known = &capacity.workers[&worker];
        (known.load, known.status(), capacity.free(), capacity.tally().full)
    };
    assert_eq!(seen(&capacity), (1, WorkerStatus::Ready, 2, 0));
    assert_eq!(capacity.take(None), Some(Taken::Up(worker)));
    assert_eq!(seen(&capacity), (2, WorkerStatus::Ready, 1, 0), "below capacity it stays available");
    assert_eq!(capacity.take(None), Some(Taken::Up(worker)));
    assert_eq!(seen(&capacity), (3, WorkerStatus::Busy, 0, 1), "at capacity it is busy");
    assert_eq!(capacity.take(None), None);
    capacity.widen(worker, 2);
    assert_eq!(seen(&capacity), (3, WorkerStatus::Busy, 0, 1), "nothing is taken from it");
    capacity.settle(worker, &Done::default(), 0);
    assert_eq!(seen(&capacity), (2, WorkerStatus::Ready, 1, 0), "given back below capacity it is available");
}

#[test]
fn what_is_given_back_while_it_still_has_too_much_leaves_it_busy() {
    // 001-F61
    let mut capacity = Capacity::new(1, Supply::OnDemand, Some(3));
    let worker = worker_of(capacity.take(None));
    capacity.widen(worker, 4);
    while capacity.take(None).is_some() {}
    assert_eq!(capacity.tally().load, 3, "it is good for three units, however many it could have");
    capacity.settle(worker, &Done { is_spent: true, ..Done::default() }, 0);
    assert_eq!((capacity.tally().full, capacity.take(None)), (1, None));
}

#[test]
fn the_least_loaded_is_taken_and_the_one_that_is_wished_for_if_it_has_room() {
    // 001-F91, 000-F13
    let mut capacity = Capacity::new(2, Supply::Ahead, None);
    let workers = capacity.begin_starting(2);
    for &worker in &workers {
        capacity.come_up(worker, 2, 0);
    }
    let order: Vec<_> = std::iter::from_fn(|| capacity.take(None)).map(Taken::worker).collect();
    assert_eq!(order, [workers[0], workers[1], workers[0], workers[1]]);
    capacity.settle(workers[0], &Done::default(), 0);
    assert_eq!(capacity.take(Some(workers[1])), Some(Taken::Up(workers[0])), "the other has no room");
    capacity.settle(workers[1], &Done::default(), 0);
    capacity.settle(workers[1], &Done::default(), 0);
    capacity.settle(workers[0], &Done::default(), 0);
    assert_eq!(capacity.take(Some(workers[0])), Some(Taken::Up(workers[0])), "though the other is idle");
}

#[test]
fn a_promise_whose_places_are_gone_never_makes_a_worker_too_many() {
    // 004-F42
    let mut capacity = Capacity::new(1, Supply::OnDemand, None);
    let worker = worker_of(capacity.take(None));
    capacity.widen(worker, 2);
    capacity.add_permit();
    assert_eq!(capacity.free(), 0);
    capacity.publish(worker, Condition::Tainted);
    capacity.drop_permit();
    assert_eq!((capacity.take_promised(None), capacity.live()), (None, 1));
}
