//! Pulling where others have to do with it: other owners, sessions, other pools of a set.

use std::time::Duration;

use workcrew::repository::{ClaimRequest, Claimant, Scope, Slot};
use workcrew::{Affinity, Completion, Lease, NewUnit, OwnerId, PoolSet, Repository, Stop, UnitStatus, WorkerId};

use super::pulling::{pulling, unit};
use super::stage::stage;
use super::{World, assert_quiet, until};
use crate::support::{self, Up as _};

const MINUTE: Duration = Duration::from_secs(60);

impl World {
    /// Another owner claims the next unit, for a minute.
    pub(super) fn claimed_by_another(&self) -> (OwnerId, Lease) {
        let other = support::owner(&self.repository, "another");
        let slots = vec![Slot::new(WorkerId::new("theirs").unwrap())];
        let request = ClaimRequest::new(self.job, Claimant::new(other, MINUTE), Scope::Pending, slots);
        let mut claims = self.repository.claim(&request).unwrap();
        (other, claims.remove(0).lease)
    }
}

fn turn(id: &str, session: &str) -> NewUnit {
    unit(id).affinity_key(session)
}

#[test]
fn what_others_execute_is_waited_for_and_taken_over_when_their_lease_runs_out() {
    // 003-F3, 003-F35, 003-F45, 003-F62
    let world = World::new();
    world.queue_ids(&["theirs", "ours"]);
    let (_other, lease) = world.claimed_by_another();
    assert_eq!(lease.unit_id.as_str(), "theirs");
    let (pool, stage) = world.staged(2);
    let (completion, ()) = pulling(&pool, || {
        assert_eq!(stage.next().id, "ours");
        until(|| pool.all_idle());
        assert_eq!(pool.process_pending_timeout(Duration::from_millis(20)), Completion::TimedOut);
        world.clock.advance(MINUTE - Duration::from_secs(1));
        assert_quiet(&stage.calls);
        world.clock.advance(Duration::from_secs(10));
        let taken_over = stage.next();
        assert_eq!((taken_over.id.as_str(), taken_over.attempt_number), ("theirs", 2));
    });
    assert_eq!(completion, Completion::Done);
    assert_eq!(world.attempts("theirs").len(), 2);
}

#[test]
fn what_others_end_is_waited_for_and_not_done_again() {
    let world = World::new();
    world.queue_ids(&["theirs"]);
    let (other, lease) = world.claimed_by_another();
    let (pool, stage) = world.staged(2);
    let (completion, ()) = pulling(&pool, || {
        assert_eq!(pool.process_pending_timeout(Duration::from_millis(20)), Completion::TimedOut);
        world.repository.start(&lease, &workcrew::Beginning::default()).unwrap();
        world.repository.finish(&lease, &workcrew::AttemptReport::completed()).unwrap();
        world.clock.advance(Duration::from_secs(5));
    });
    assert_eq!((completion, stage.is_empty()), (Completion::Done, true));
    world.repository.end_owner(other).unwrap();
}

#[test]
fn pulled_units_of_a_strict_session_keep_to_one_worker_and_to_their_order() {
    for capacity in [1, 2] {
        let world = World::new();
        world.queue(&[turn("1", "s"), turn("2", "s"), unit("3"), turn("4", "s"), unit("5"), turn("6", "t")]);
        let (part, stage) = stage();
        let builder = world.pool(part).max_workers(4).worker_capacity(capacity);
        let pool = builder.affinity(Affinity::StrictQueue).up();
        let (completion, ()) = pulling(&pool, || {
            let at_once = if capacity == 1 { vec!["1", "3", "5", "6"] } else { vec!["1", "2", "3", "5", "6"] };
            let calls = stage.next_many(at_once.len());
            assert_eq!(calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), at_once);
            let home = calls[0].worker.clone();
            assert_quiet(&stage.calls);
            let mut calls = calls.into_iter();
            drop(calls.next());
            let rest = if capacity == 1 { vec!["2", "4"] } else { vec!["4"] };
            for id in rest {
                let call = stage.next();
                assert_eq!((call.id.as_str(), &call.worker), (id, &home));
            }
        });
        assert_eq!(completion, Completion::Done);
        assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 6);
        assert_eq!(world.unit("2").attempts_used, 1, "to wait for its worker costs no attempt");
        world.assert_clean();
    }
}

#[test]
fn no_more_pulled_units_wait_for_their_worker_than_may_stand_in_line() {
    let world = World::new();
    world.queue(&(0..20).map(|number| turn(&format!("{number:02}"), "s")).collect::<Vec<_>>());
    let (part, stage) = stage();
    let pool = world.pool(part).max_workers(4).max_queue_size(3).affinity(Affinity::StrictQueue).up();
    pulling(&pool, || {
        for number in 0..20 {
            let call = stage.next();
            assert_eq!(call.id, format!("{number:02}"));
            assert!(pool.stats().pending <= 3 + 3, "{}", pool.stats().pending);
        }
    });
    assert_eq!(pool.stop(Stop::Drain).unwrap().stats.completed, 20);
    world.assert_clean();
}

#[test]
fn a_pulled_unit_whose_session_lives_in_another_pool_of_the_set_waits_for_that() {
    // 001-F3
    let world = World::new();
    let ((a, stage_a), (b, stage_b)) = (stage(), stage());
    let strict = |part| world.pool(part).max_workers(1).affinity(Affinity::StrictQueue).affinity_ttl(Duration::ZERO);
    let set = PoolSet::builder().pool("a", strict(a)).pool("b", strict(b)).start().unwrap();
    for name in ["a", "b"] {
        set.pool(name).unwrap().await_init_complete().unwrap();
    }
    set.enqueue_to("a", turn("1", "s"), "go").unwrap();
    let first = stage_a.next();
    world.queue(&[turn("2", "s")]);
    let pool = set.pool("b").unwrap();
    let (completion, ()) = pulling(pool, || {
        until(|| world.unit("2").attempt_count > 0);
        for _ in 0..3 {
            world.clock.advance(Duration::from_secs(1));
            assert_quiet(&stage_b.calls);
        }
        drop(first);
        until(|| world.status("1") == UnitStatus::Completed);
        until(|| {
            world.clock.advance(Duration::from_secs(1));
            !stage_b.is_empty()
        });
        assert_eq!(stage_b.next().id, "2");
        until(|| world.status("2") == UnitStatus::Completed);
        world.clock.advance(Duration::from_secs(5));
    });
    assert_eq!(completion, Completion::Done);
    set.stop(Stop::Drain);
    world.assert_clean();
}
