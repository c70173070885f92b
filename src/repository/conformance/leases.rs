//! Fences, heartbeats and the sweep: `renew`, `expire`, and every verb that takes a lease.

use std::time::Duration;

use serde_json::json;

use super::scene::{Act, SECOND, Scene, TTL, give_up, retry, work};
use crate::attempt::{AttemptReport, Beginning, FailureKind, Outcome, Progress};
use crate::conversation::Message;
use crate::lease::{Held, Lease, OwnerId};
use crate::process::Process;
use crate::repository::{By, CancelAnswer, Intake, RepositoryError, Result, Scope, Swept, actor, loss};
use crate::unit::{Change, UnitKey, UnitStatus};
use crate::worker::WorkerStatus;

cases![
    a_stale_lease_writes_nothing_of_its_unit,
    a_forged_lease_writes_nothing_at_all,
    a_fence_grows_with_every_claim_and_every_expiry_and_never_otherwise,
    a_heartbeat_extends_every_lease_of_its_owner,
    a_lease_that_ran_out_but_was_not_taken_is_renewed,
    a_heartbeat_does_not_name_what_was_lost,
    a_heartbeat_tells_who_is_to_be_cancelled,
    a_lease_lasts_until_its_time_and_no_longer,
    a_lost_lease_is_a_lost_attempt_and_its_unit_waits_again,
    a_sweep_takes_no_more_than_its_limit_in_the_order_of_keys,
    a_unit_that_loses_every_worker_ends_failed,
    a_cancelled_unit_whose_worker_vanishes_ends_cancelled,
    what_a_dead_owner_holds_is_taken_back_at_once,
    what_an_owner_of_another_boot_holds_is_taken_back_at_once,
    an_owner_of_an_unknown_boot_is_given_the_benefit_of_the_doubt,
    a_dead_owner_ends_when_it_holds_nothing_any_more,
    what_waits_for_an_owner_that_fell_silent_elsewhere_is_for_anybody,
    an_owner_that_was_silent_for_a_day_elsewhere_has_ended,
];

/// How a lease is lost; each leaves the unit in another status.
const WAYS_TO_LOSE: &[(&str, Act)] = &[
    ("expired", |scene, _| drop(scene.lose_all())),
    ("expired and claimed by another", |scene, _| {
        scene.lose_all();
        assert_eq!(scene.claim_as(scene.other_owner(), Scope::Pending, 1).len(), 1);
    }),
    ("expired and claimed again", |scene, _| {
        scene.advance(TTL);
        assert_eq!(scene.claim_up_to(1).len(), 1);
    }),
    ("completed", |scene, lease| {
        scene.start(lease);
        scene.finish(lease, &AttemptReport::completed());
    }),
    ("failed", |scene, lease| {
        scene.finish(lease, &give_up());
    }),
    ("retried", |scene, lease| {
        scene.finish(lease, &retry());
    }),
    ("cancelled", |scene, lease| {
        scene.cancel(lease.unit_id.as_str());
        scene.finish(lease, &AttemptReport::cancelled());
    }),
];

fn a_stale_lease_writes_nothing_of_its_unit(scene: &Scene<'_>) {
    // 003-F32, 003-F34.
    for (way, lose) in WAYS_TO_LOSE {
        let claim = scene.assigned(way);
        let lease = &claim.lease;
        lose(scene, lease);
        let before = scene.snapshot(way);
        for (verb, answer) in leased_verbs(scene, lease) {
            assert!(matches!(answer, Err(RepositoryError::Stale { .. })), "{way}: {verb} says {answer:?}");
        }
        assert_eq!(scene.snapshot(way), before, "{way}");

        // The report of a stale finish stays on its own attempt: see the late reports.
        let unit = scene.unit(way);
        let report = AttemptReport::completed().output("too late");
        assert_refused!(scene.repository.finish(lease, &report), RepositoryError::Stale { .. });
        assert_eq!(scene.unit(way), unit, "{way}");
        // The next round begins without anything that waits.
        scene.cancel(way);
    }
}

fn a_forged_lease_writes_nothing_at_all(scene: &Scene<'_>) {
    let claim = scene.processing("a");
    let forge = |fence, attempt_number| Lease { fence, attempt_number, ..claim.lease.clone() };
    let mut nowhere = claim.lease.clone();
    nowhere.unit = UnitKey(4_711);
    let before = scene.snapshot("a");
    for lease in [forge(0, 1), forge(2, 1), forge(1, 0), forge(1, 2), forge(2, 2), nowhere] {
        for (verb, answer) in leased_verbs(scene, &lease) {
            assert!(matches!(answer, Err(RepositoryError::Stale { .. })), "{verb} under {lease:?} says {answer:?}");
        }
        let finished = scene.repository.finish(&lease, &AttemptReport::completed());
        assert_refused!(finished, RepositoryError::Stale { .. });
    }
    assert_eq!(scene.snapshot("a"), before);

    // Nor is it a late report of an attempt that has ended.
    scene.finish(&claim.lease, &give_up());
    let before = scene.snapshot("a");
    for lease in [forge(0, 1), forge(2, 1), forge(1, 2)] {
        let finished = scene.repository.finish(&lease, &AttemptReport::completed());
        assert_refused!(finished, RepositoryError::Stale { .. });
    }
    assert_eq!(scene.snapshot("a"), before);
}

/// Everything but `finish` that a lease gives the right to do. An append may be told later, by the flush.
fn leased_verbs(scene: &Scene<'_>, lease: &Lease) -> Vec<(&'static str, Result<()>)> {
    let repository = scene.repository;
    let flushed = |sent: Result<()>| sent.and_then(|()| repository.flush(lease));
    vec![
        ("start", repository.start(lease, &Beginning::default())),
        ("append", flushed(repository.append(lease, 0, &[Message::user("late")]))),
        ("partial", flushed(repository.partial(lease, "la"))),
        ("flush", repository.flush(lease)),
        ("progress", repository.progress(lease, &Progress::default().session("late"))),
        ("checkpoint_at", repository.checkpoint_at(lease, &json!("late"))),
        ("release", repository.release(lease, None, "late").map(drop)),
    ]
}

fn a_fence_grows_with_every_claim_and_every_expiry_and_never_otherwise(scene: &Scene<'_>) {
    let repository = scene.repository;
    let fence = |expected: i64, after: &str| assert_eq!(scene.unit("a").fence, expected, "after {after}");
    scene.insert(work("a"));
    fence(0, "insert");
    let lease = scene.claim().lease;
    fence(1, "claim");
    scene.start(&lease);
    repository.append(&lease, 0, &[Message::user("hello")]).expect("it is held");
    repository.progress(&lease, &Progress::default().session("s")).expect("it is held");
    repository.checkpoint_at(&lease, &json!(1)).expect("it is held");
    repository.renew(scene.owner, TTL).expect("the owner lives");
    fence(1, "what a lease allows");
    repository.finish(&lease, &retry()).expect("it is held");
    fence(1, "retry");
    let lease = scene.claim().lease;
    fence(2, "the second claim");
    repository.release(&lease, None, "no time").expect("it is held");
    fence(2, "release");
    scene.claim();
    fence(3, "the third claim");
    scene.lose_all();
    fence(4, "expiry");
    scene.cancel("a");
    scene.requeue("a").expect("it is CANCELLED");
    fence(4, "cancel and requeue");
    scene.claim();
    scene.cancel("a");
    fence(5, "a requested cancel");
    scene.lose_all();
    fence(6, "its expiry");
}

fn a_heartbeat_extends_every_lease_of_its_owner(scene: &Scene<'_>) {
    // 003-F31, 003-F36.
    let (b, a) = (scene.assigned("b").lease, scene.processing("a").lease);
    let other = scene.other_owner();
    scene.assign_to(other, work("c"), &scene.slot());
    scene.advance(45 * SECOND);
    let held = scene.repository.renew(scene.owner, TTL).expect("the owner lives");
    assert_eq!(held, [held_by(&b, false), held_by(&a, false)], "in the order of keys, and only its own");
    let owners = scene.repository.owners().expect("owners can be read");
    let heartbeat = |id: OwnerId| owners.iter().find(|owner| owner.id == id).map(|owner| owner.heartbeat_at);
    assert_eq!(heartbeat(scene.owner), Some(scene.now()));
    assert_eq!(heartbeat(other), Some(scene.now() - 45 * SECOND));

    scene.advance(45 * SECOND);
    assert_eq!(unit_ids(&scene.expire()), ["c"], "the other owner's was not renewed");
    scene.repository.flush(&a).expect("it was renewed");
}

fn a_lease_that_ran_out_but_was_not_taken_is_renewed(scene: &Scene<'_>) {
    let lease = scene.assigned("a").lease;
    scene.advance(10 * TTL);
    let held = scene.repository.renew(scene.owner, TTL).expect("the owner lives");
    assert_eq!(held, [held_by(&lease, false)]);
    assert_eq!(scene.expire(), []);
}

fn a_heartbeat_does_not_name_what_was_lost(scene: &Scene<'_>) {
    // 003-F32: what it does not name is lost.
    scene.assigned("lost");
    scene.lose_all();
    let kept = scene.assigned("kept").lease;
    let held = scene.repository.renew(scene.owner, TTL).expect("the owner lives");
    assert_eq!(held, [held_by(&kept, false)]);
    scene.finish(&kept, &give_up());
    assert_eq!(scene.repository.renew(scene.owner, TTL).expect("the owner lives"), []);
}

fn a_heartbeat_tells_who_is_to_be_cancelled(scene: &Scene<'_>) {
    // 003-F46.
    let (assigned, processing) = (scene.assigned("a").lease, scene.processing("b").lease);
    let by = By::new("ada", "changed her mind");
    for id in ["a", "b"] {
        let answer = scene.repository.cancel(scene.job, id, &by).expect("it exists");
        assert_eq!(answer, CancelAnswer::Requested);
    }
    let held = scene.repository.renew(scene.owner, TTL).expect("the owner lives");
    assert_eq!(held, [held_by(&assigned, true), held_by(&processing, true)]);
}

fn a_lease_lasts_until_its_time_and_no_longer(scene: &Scene<'_>) {
    // 003-F35.
    scene.assigned("a");
    scene.advance(TTL - Duration::from_millis(1));
    assert_eq!(scene.expire(), []);
    scene.advance(Duration::from_millis(1));
    assert_eq!(unit_ids(&scene.expire()), ["a"]);
}

fn a_lost_lease_is_a_lost_attempt_and_its_unit_waits_again(scene: &Scene<'_>) {
    // 003-F3, 003-F35, 003-F45.
    let lease = scene.processing("a").lease;
    let swept = scene.lose_all();
    assert_eq!(swept.len(), 1, "{swept:?}");
    assert_eq!((swept[0].unit, swept[0].unit_id.as_str(), swept[0].job_id), (lease.unit, "a", scene.job));
    assert_eq!((swept[0].attempt_number, swept[0].change), (Some(1), Change::Expire));
    assert_eq!(swept[0].status, UnitStatus::Pending);

    let unit = scene.unit("a");
    assert_eq!((unit.status, unit.attempts_used, unit.accepted_by), (UnitStatus::Pending, 1, None));
    assert_eq!((unit.failure, unit.completed_at), (None, None));
    let attempt = scene.attempt(&lease);
    assert_eq!((attempt.outcome, attempt.is_counted), (Some(Outcome::Lost), true));
    assert_eq!(attempt.failure.map(|failure| failure.kind), Some(FailureKind::LOST));
    let row = scene.last_row("a");
    assert_eq!((row.change, row.attempt_number, row.fence), (Change::Expire, Some(1), lease.fence + 1));
    assert_eq!((row.actor.as_str(), row.reason.as_deref()), (actor::SWEEP, Some(loss::LEASE_RAN_OUT)));
    assert_eq!(scene.expire(), [], "a second sweep finds nothing");
}

fn a_sweep_takes_no_more_than_its_limit_in_the_order_of_keys(scene: &Scene<'_>) {
    scene.accept(work("waiting").queue_timeout(SECOND));
    for id in ["c", "b", "a"] {
        scene.assigned(id);
    }
    scene.advance(TTL);
    let sweep = |limit| unit_ids(&scene.repository.expire(limit).expect("a sweep finds what it finds"));
    assert_eq!(sweep(0), [""; 0]);
    assert_eq!(sweep(2), ["c", "b"]);
    assert_eq!(sweep(2), ["a", "waiting"], "leases first, then queue timeouts");
    assert_eq!(sweep(2), [""; 0]);
}

fn a_unit_that_loses_every_worker_ends_failed(scene: &Scene<'_>) {
    // 003-F35, 003-F44: losses count against the bound on attempts.
    scene.insert(work("poison").max_retries(2));
    for expected in [Change::Expire, Change::Expire, Change::ExpireFinally] {
        scene.claim();
        let changes: Vec<Change> = scene.lose_all().iter().map(|swept| swept.change).collect();
        assert_eq!(changes, [expected]);
    }
    let unit = scene.unit("poison");
    assert_eq!((unit.status, unit.attempt_count, unit.attempts_used), (UnitStatus::Failed, 3, 3));
    assert_eq!(unit.failure.map(|failure| failure.kind), Some(FailureKind::LOST));
    assert_eq!(unit.completed_at, Some(scene.now()));
    assert_eq!(scene.claim_up_to(1), []);
}

fn a_cancelled_unit_whose_worker_vanishes_ends_cancelled(scene: &Scene<'_>) {
    // 003-F47.
    let lease = scene.bring("a", UnitStatus::CancelRequested).lease;
    let swept = scene.lose_all();
    assert_eq!(swept.iter().map(|swept| swept.change).collect::<Vec<_>>(), [Change::EndCancelled]);
    let unit = scene.unit("a");
    assert_eq!((unit.status, unit.fence, unit.failure), (UnitStatus::Cancelled, lease.fence + 1, None));
    assert_eq!(scene.attempt(&lease).outcome, Some(Outcome::Lost));
}

fn what_a_dead_owner_holds_is_taken_back_at_once(scene: &Scene<'_>) {
    // 003-F3. A process with the same number that began earlier is gone for certain.
    let this = scene.this_process();
    if this.start_ticks == 0 {
        return; // The system does not tell, so nothing can be proved.
    }
    let dead = scene.owner_in(Process { start_ticks: this.start_ticks - 1, ..this });
    takes_back_at_once(scene, dead, loss::OWNER_DIED);
}

fn what_an_owner_of_another_boot_holds_is_taken_back_at_once(scene: &Scene<'_>) {
    let before = Process { boot_id: "another boot".into(), ..scene.this_process() };
    let owner = scene.owner_in(before);
    if scene.spans_machines() {
        waits_until_it_runs_out(scene, owner);
    } else {
        takes_back_at_once(scene, owner, loss::OTHER_BOOT);
    }
}

fn waits_until_it_runs_out(scene: &Scene<'_>, elsewhere: OwnerId) {
    let lease = scene.assign_to(elsewhere, work("elsewhere"), &scene.slot()).lease;
    assert_eq!(scene.expire(), [], "nobody here can tell whether it lives");
    scene.repository.flush(&lease).expect("it keeps what it has");
    assert_eq!(unit_ids(&scene.lose_all()), ["elsewhere"]);
    assert_eq!(scene.last_row("elsewhere").reason.as_deref(), Some(loss::LEASE_RAN_OUT));
}

fn takes_back_at_once(scene: &Scene<'_>, gone: OwnerId, reason: &str) {
    let alive = scene.assigned("alive").lease;
    let slot = scene.slot();
    scene.assign_to(gone, work("orphan"), &slot);
    let accepted = work("accepted").queue_timeout(SECOND);
    scene.repository.insert(scene.job, &[accepted], Intake::AcceptedBy(gone)).expect("nobody knows yet");
    assert_eq!(unit_ids(&scene.expire()), ["orphan"]);
    assert_eq!(scene.last_row("orphan").reason.as_deref(), Some(reason));
    scene.repository.flush(&alive).expect("the living keep what they have");

    let owners = scene.repository.owners().expect("owners can be read");
    let ended: Vec<OwnerId> = owners.iter().filter(|owner| owner.ended_at.is_some()).map(|owner| owner.id).collect();
    assert_eq!(ended, [gone]);
    let workers = scene.repository.workers(gone, "", 9).expect("workers can be read");
    assert_eq!(workers.iter().map(|worker| worker.status).collect::<Vec<_>>(), [WorkerStatus::Dead]);
    assert_eq!(scene.unit("accepted").accepted_by, None);
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), [], "what it accepted waits for anybody, without a timeout");
}

fn an_owner_of_an_unknown_boot_is_given_the_benefit_of_the_doubt(scene: &Scene<'_>) {
    let owner = scene.owner_in(Process { boot_id: String::new(), ..scene.this_process() });
    scene.assign_to(owner, work("a"), &scene.slot());
    assert_eq!(scene.expire(), []);
    assert_eq!(unit_ids(&scene.lose_all()), ["a"], "but its leases run out like any other");
}

fn a_dead_owner_ends_when_it_holds_nothing_any_more(scene: &Scene<'_>) {
    let this = scene.this_process();
    if this.start_ticks == 0 {
        return; // The system does not tell, so nothing can be proved.
    }
    let gone = scene.owner_in(Process { start_ticks: this.start_ticks - 1, ..this });
    for id in ["a", "b"] {
        scene.assign_to(gone, work(id), &scene.slot());
    }
    let has_ended = || {
        let owners = scene.repository.owners().expect("owners can be read");
        owners.iter().any(|owner| owner.id == gone && owner.ended_at.is_some())
    };
    let sweep = || unit_ids(&scene.repository.expire(1).expect("a sweep finds what it finds"));
    assert_eq!((sweep(), has_ended()), (vec!["a".to_owned()], false));
    assert_eq!((sweep(), has_ended()), (vec!["b".to_owned()], true));
}

fn held_by(lease: &Lease, is_cancel_requested: bool) -> Held {
    Held { unit: lease.unit, fence: lease.fence, is_cancel_requested }
}

fn unit_ids(swept: &[Swept]) -> Vec<String> {
    swept.iter().map(|swept| swept.unit_id.to_string()).collect()
}

/// An owner of which nobody here can tell whether it lives.
fn owner_elsewhere(scene: &Scene<'_>) -> OwnerId {
    let this = scene.this_process();
    scene.owner_in(Process { pid_namespace: this.pid_namespace + 1, ..this })
}

fn accept_for(scene: &Scene<'_>, owner: OwnerId, id: &str) {
    let unit = work(id).queue_timeout(1_000 * TTL);
    let inserted = scene.repository.insert(scene.job, &[unit], Intake::AcceptedBy(owner));
    assert_eq!(inserted.expect("it is registered").len(), 1);
}

fn what_waits_for_an_owner_that_fell_silent_elsewhere_is_for_anybody(scene: &Scene<'_>) {
    // 003-F22, 003-F44: accepted is never lost, also if nobody can prove that its owner died.
    let (elsewhere, here) = (owner_elsewhere(scene), scene.other_owner());
    scene.repository.renew(elsewhere, 2 * TTL).expect("it is registered");
    for owner in [elsewhere, here] {
        accept_for(scene, owner, &owner.to_string());
    }
    let accepted_by = |owner: OwnerId| scene.unit(&owner.to_string()).accepted_by;
    scene.advance(2 * TTL - SECOND);
    assert_eq!(scene.expire(), []);
    assert_eq!(accepted_by(elsewhere), Some(elsewhere), "its leases would still be good");
    scene.advance(SECOND);
    assert_eq!(scene.expire(), [], "nothing ends by it");
    assert_eq!(accepted_by(elsewhere), None);
    assert_eq!(accepted_by(here), Some(here), "this one lives, for everybody to see");
    assert_eq!(scene.claim_as(scene.owner, Scope::Open, 9).len(), 1);
    // It was only slow: it goes on, without what it had.
    scene.repository.renew(elsewhere, TTL).expect("it has not ended");
    let waiting = scene.repository.accepted(elsewhere, 0, 9).expect("it is registered");
    assert_eq!(waiting.items, []);
}

fn an_owner_that_was_silent_for_a_day_elsewhere_has_ended(scene: &Scene<'_>) {
    const DAY: Duration = Duration::from_secs(24 * 3_600);
    let (elsewhere, holding) = (owner_elsewhere(scene), owner_elsewhere(scene));
    let lease = scene.assign_to(holding, work("a"), &scene.slot()).lease;
    scene.repository.renew(holding, 3 * DAY).expect("it is registered");
    let has_ended = || -> Vec<bool> {
        let owners = scene.repository.owners().expect("owners can be read");
        owners.iter().map(|owner| owner.ended_at.is_some()).collect()
    };
    scene.advance(DAY - SECOND);
    assert_eq!(scene.expire(), []);
    assert_eq!(has_ended(), [false; 3]);
    scene.advance(SECOND);
    assert_eq!(scene.expire(), []);
    assert_eq!(has_ended(), [false, true, false], "whoever holds a good lease is waited for");
    assert_refused!(scene.repository.renew(elsewhere, TTL), RepositoryError::UnknownOwner(_));
    scene.advance(2 * DAY);
    assert_eq!(scene.expire().len(), 1);
    assert_eq!(has_ended(), [false, true, true]);
    assert_eq!(scene.attempt(&lease).outcome, Some(Outcome::Lost));
}
