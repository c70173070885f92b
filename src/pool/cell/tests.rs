//! What holds of a worker's cell.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::pool::ready::tests::ready;

const ANY_WEAR: Wear = Wear { max_age_ms: None, max_units: None };

/// A worker with a unit on its way.
fn busy(ready: &Ready) -> Arc<WorkerCell> {
    Arc::new(WorkerCell::new(ready.busy_worker(), Inbox::new(), Birth::ForUnit))
}

/// Whether a worker takes a unit, once it was chosen for it.
pub(super) fn takes(cell: &WorkerCell) -> bool {
    !matches!(cell.reserve(), Reserved::No)
}

/// Whether a call comes back, on a thread of its own, while this one holds a lock.
fn comes_back(call: impl FnOnce() + Send + 'static) -> bool {
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        call();
        tell.send(())
    });
    told.recv_timeout(Duration::from_secs(20)).is_ok()
}

#[test]
fn what_a_worker_does_is_under_its_own_lock_alone() {
    // 000-F4, 000-F9, 000-F10
    let ready = ready(2);
    let (first, second) = (busy(&ready), busy(&ready));
    let held = first.state.lock();
    let change = move || {
        second.settle_without(&ready, None, After::GoOn, ANY_WEAR, 0);
        assert!(takes(&second));
    };
    assert!(comes_back(change), "another worker is not needed");
    drop(held);
}

#[test]
fn of_many_who_want_a_worker_one_gets_it_and_only_while_it_is_ready() {
    // 000-F14, 000-F17, 000-F18, 000-F19
    let ready = ready(1);
    let cell = busy(&ready);
    assert!(!takes(&cell), "it begins with a unit on its way");
    for _ in 0..100 {
        assert_eq!(cell.settle_without(&ready, None, After::GoOn, ANY_WEAR, 0), Settled::GoesOn);
        assert_eq!(ready.busy_worker(), cell.number);
        let reserved = thread::scope(|threads| {
            let reserving: Vec<_> = (0..4).map(|_| threads.spawn(|| takes(&cell))).collect();
            reserving.into_iter().map(|thread| thread.join().unwrap()).filter(|&got| got).count()
        });
        assert_eq!(reserved, 1);
    }
    assert_eq!(cell.settle_without(&ready, None, After::Retire, ANY_WEAR, 0), Settled::Ends);
    assert!(!takes(&cell), "it is on its way out");
    cell.end(&ready);
    assert_eq!((cell.status(), takes(&cell)), (WorkerStatus::Terminated, false));
}

#[test]
fn it_takes_as_many_units_as_it_can_have_and_has_a_lane_for_each() {
    // 001-F58, 001-F59, 001-F60, 001-F61
    let ready = ready(1);
    let cell = busy(&ready);
    cell.set_capacity(&ready, 3);
    for lane in [1, 2] {
        assert_eq!(ready.busy_worker(), cell.number);
        assert!(matches!(cell.reserve(), Reserved::WithLane { lane: LaneNumber(number), .. } if number == lane));
    }
    assert!(!takes(&cell), "three are three");
    assert_eq!(cell.settle_without(&ready, None, After::GoOn, ANY_WEAR, 0), Settled::GoesOn);
    assert!(matches!(cell.reserve(), Reserved::Yes), "a lane is free");
    cell.taint(&ready);
    for _ in 0..2 {
        assert_eq!(cell.settle_without(&ready, None, After::GoOn, ANY_WEAR, 0), Settled::GoesOn);
        assert!(!takes(&cell), "it crashed");
    }
    assert_eq!(
        cell.settle_without(&ready, None, After::GoOn, ANY_WEAR, 0),
        Settled::Ends,
        "with the last of them it ends"
    );
}

#[test]
fn a_lane_gets_nothing_before_it_has_a_thread() {
    let ready = ready(1);
    let cell = busy(&ready);
    cell.set_capacity(&ready, 2);
    let is_free = |lane: LaneNumber| cell.state.lock().lanes[lane.0].is_free();
    assert!(is_free(LaneNumber::FIRST), "that one brings the worker up");
    for attempt in ["refused", "there"] {
        assert_eq!(ready.busy_worker(), cell.number);
        let Reserved::WithLane { lane, generation, .. } = cell.reserve() else { panic!("{attempt}: it needs one") };
        assert!(!is_free(lane), "{attempt}: whoever comes meanwhile would wait for a thread that may never be");
        if attempt == "refused" {
            cell.lose_lane(lane);
            assert_eq!(cell.settle_without(&ready, None, After::GoOn, ANY_WEAR, 0), Settled::GoesOn);
            assert!(!is_free(lane));
        } else {
            assert!(cell.set_thread(lane, thread::spawn(|| ()), generation).is_none());
            assert!(is_free(lane));
        }
    }
}

#[test]
fn one_that_crashed_does_not_rest_if_it_is_to_end_anyway() {
    let rest = After::Crash { rests_until_ms: Some(10) };
    for (first, second) in [(rest, After::Retire), (After::Retire, rest)] {
        let ready = ready(1);
        let cell = busy(&ready);
        cell.set_capacity(&ready, 2);
        assert!(ready.busy_worker() == cell.number && takes(&cell));
        cell.taint(&ready);
        assert_eq!(cell.settle_without(&ready, None, first, ANY_WEAR, 0), Settled::GoesOn);
        assert_eq!(cell.settle_without(&ready, None, second, ANY_WEAR, 0), Settled::Ends);
        cell.end(&ready);
        assert_eq!(cell.status(), WorkerStatus::Dead);
    }
}

#[test]
fn it_retires_between_units_when_it_is_worn() {
    for (wear, is_worn) in [
        (ANY_WEAR, false),
        (Wear { max_age_ms: Some(101), ..ANY_WEAR }, false),
        (Wear { max_age_ms: Some(100), ..ANY_WEAR }, true),
        (Wear { max_units: Some(1), ..ANY_WEAR }, false),
        (Wear { max_units: Some(0), ..ANY_WEAR }, true),
    ] {
        let ready = ready(1);
        let settled = busy(&ready).settle_without(&ready, None, After::GoOn, wear, 100);
        assert_eq!(settled == Settled::Ends, is_worn, "{wear:?}");
    }
}
