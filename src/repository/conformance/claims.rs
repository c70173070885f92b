//! Who gets which unit, and when: `claim`, `claimed`.

use std::time::Duration;

use chrono::TimeDelta;

use super::scene::{SECOND, Scene, TTL, give_up, ids, retry, retry_after, slot, work};
use crate::attempt::{FailureKind, Outcome};
use crate::job::NewJob;
use crate::lease::Claim;
use crate::repository::{ClaimRequest, Claimant, Intake, RepositoryError, Scope, Slot, actor, loss};
use crate::unit::{Change, NewUnit, UnitStatus};
use crate::worker::WorkerChange;

cases![
    larger_priority_goes_first_then_the_order_of_insertion,
    a_retry_keeps_its_place,
    the_first_unit_goes_to_the_first_slot,
    a_claim_is_an_assigned_unit_under_a_new_fence,
    a_live_lease_is_not_given_to_another,
    a_job_s_units_are_claimed_only_for_it,
    what_has_no_prompt_is_not_claimed_from_the_open,
    the_accepted_scope_is_what_the_owner_accepted,
    a_unit_belongs_to_its_owner_through_retries_and_releases,
    a_unit_that_was_lost_or_requeued_belongs_to_nobody,
    a_unit_is_not_claimed_before_its_time,
    a_calendar_that_was_set_back_holds_nothing_up,
    a_retry_and_a_release_wait_for_their_pause,
    an_accepted_unit_fails_when_its_queue_timeout_passes,
    a_queue_timeout_runs_only_for_what_is_accepted_and_was_never_claimed,
    a_claim_whose_answer_was_lost_is_found_by_its_token,
    a_claim_takes_back_what_ran_out,
    a_claim_takes_back_no_more_than_it_needs,
    a_claim_leaves_what_would_end_to_the_sweep,
    nothing_is_claimed_with_no_capacity_or_no_time,
    a_claim_for_a_worker_that_can_take_nothing_fails_as_a_whole,
    a_batch_does_not_overload_a_worker,
    an_owner_that_ended_claims_nothing,
];

fn larger_priority_goes_first_then_the_order_of_insertion(scene: &Scene<'_>) {
    // 003-F60.
    let units =
        [("c", 0), ("a", 5), ("b", 0), ("d", i32::MIN), ("e", 5), ("f", i32::MAX)].map(|(id, p)| work(id).priority(p));
    scene.repository.insert(scene.job, &units, Intake::Open).expect("all are valid");
    // An order by time would see this one as older than all.
    scene.set_calendar(TimeDelta::days(-1));
    scene.insert(work("g").priority(5));
    assert_eq!(ids(&scene.claim_up_to(9)), ["f", "a", "e", "g", "c", "b", "d"]);
}

fn a_retry_keeps_its_place(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c"]);
    let first = scene.claim();
    scene.finish(&first.lease, &retry());
    let again = scene.claim();
    assert_eq!(again.unit.id.as_str(), "a");
    scene.release(&again.lease, None, "no time");
    assert_eq!(ids(&scene.claim_up_to(9)), ["a", "b", "c"]);
}

fn the_first_unit_goes_to_the_first_slot(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c", "d", "e"]);
    let slots = scene.slots(3);
    let request = scene.request(scene.owner, Scope::Pending, slots.clone());
    let claims = scene.repository.claim(&request).expect("three can be taken");
    assert_eq!(ids(&claims), ["a", "b", "c"]);
    let is_for = |claim: &Claim, slot: &Slot| claim.lease.worker_id == slot.worker_id;
    assert!(claims.iter().zip(&slots).all(|(claim, slot)| is_for(claim, slot)), "{claims:?}");
    assert_eq!(ids(&scene.claim_up_to(3)), ["d", "e"], "as many as there are");
    assert_eq!(scene.claim_up_to(3), []);
    assert_eq!(scene.claim_up_to(0), []);
}

fn a_claim_is_an_assigned_unit_under_a_new_fence(scene: &Scene<'_>) {
    // 003-F28, 003-F30, 003-F42, 004-F4, 004-F18.
    let key = scene.insert(work("a"));
    scene.advance(SECOND);
    let claim = scene.claim();
    let (unit, lease) = (scene.unit("a"), &claim.lease);
    assert_eq!(claim.unit, unit);
    assert_eq!((unit.status, unit.fence, unit.attempt_count), (UnitStatus::Assigned, 1, 1));
    assert_eq!((unit.accepted_by, unit.attempts_used), (Some(scene.owner), 0));
    assert_eq!((lease.job_id, lease.unit, lease.unit_id.as_str()), (scene.job, key, "a"));
    assert_eq!((lease.attempt_number, lease.fence, lease.owner), (1, 1, scene.owner));
    assert_eq!((claim.checkpoint, claim.resume_session), (None, None));

    let attempt = scene.attempt(lease);
    assert_eq!((attempt.fence, attempt.owner, &attempt.worker_id), (1, scene.owner, &lease.worker_id));
    assert_eq!((attempt.assigned_at, attempt.started_at, attempt.outcome), (scene.now(), None, None));
    let row = scene.last_row("a");
    assert_eq!((row.change, row.attempt_number, row.fence), (Change::Claim, Some(1), 1));
    assert_eq!((row.actor, row.digest), (scene.owner.to_string(), None));
}

fn a_live_lease_is_not_given_to_another(scene: &Scene<'_>) {
    // 003-F2, 003-F29.
    scene.assigned("a");
    scene.processing("b");
    scene.advance(TTL - Duration::from_millis(1));
    for owner in [scene.owner, scene.other_owner()] {
        for scope in [Scope::Accepted, Scope::Pending] {
            assert_eq!(scene.claim_as(owner, scope, 9), []);
        }
    }
}

fn a_job_s_units_are_claimed_only_for_it(scene: &Scene<'_>) {
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    scene.repository.insert(other, &[work("a")], Intake::Open).expect("it is valid");
    assert_eq!(scene.claim_up_to(1), []);
    let mut request = scene.request(scene.owner, Scope::Pending, scene.slots(1));
    request.job_id = other;
    let claims = scene.repository.claim(&request).expect("one waits");
    assert_eq!(ids(&claims), ["a"]);

    scene.advance(TTL);
    assert_eq!(scene.claim_up_to(1), [], "what ran out in another job is not taken back either");
    assert_eq!(scene.repository.unit(other, "a").expect("it exists").status, UnitStatus::Assigned);
}

fn what_has_no_prompt_is_not_claimed_from_the_open(scene: &Scene<'_>) {
    scene.insert(NewUnit::new("bare"));
    scene.insert(NewUnit::new("templated").template("do {{ it }}"));
    assert_eq!(ids(&scene.claim_up_to(9)), ["templated"]);

    let job = NewJob::named("with a template").template("do {{ it }}");
    let job = scene.repository.create_job(&job).expect("a new name").id;
    scene.repository.insert(job, &[NewUnit::new("a")], Intake::Open).expect("it is valid");
    let request = ClaimRequest::new(job, Claimant::new(scene.owner, TTL), Scope::Pending, scene.slots(1));
    assert_eq!(ids(&scene.repository.claim(&request).expect("one waits")), ["a"]);

    // Whoever accepted a unit knows how to make its prompt.
    scene.accept(NewUnit::new("accepted"));
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 9)), ["accepted"]);
}

fn the_accepted_scope_is_what_the_owner_accepted(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.insert(work("open"));
    scene.accept(work("accepted"));
    assert_eq!(scene.claim_as(other, Scope::Accepted, 9), []);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 9)), ["accepted"]);
    scene.accept(work("accepted too"));
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 9)), ["open"]);
    assert_eq!(ids(&scene.claim_up_to(9)), ["accepted too"]);
}

fn a_unit_belongs_to_its_owner_through_retries_and_releases(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.insert(work("a"));
    let claim = scene.claim();
    scene.finish(&claim.lease, &retry());
    assert_eq!(scene.claim_as(other, Scope::Pending, 1), []);
    let claim = scene.claim_as(scene.owner, Scope::Accepted, 1).pop().expect("it is the owner's");
    scene.release(&claim.lease, None, "no time");
    assert_eq!(scene.claim_as(other, Scope::Pending, 1), []);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 1)), ["a"]);
}

fn a_unit_that_was_lost_or_requeued_belongs_to_nobody(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.assigned("lost");
    scene.lose_all();
    assert_eq!(scene.unit("lost").accepted_by, None);
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 1)), ["lost"]);

    let claim = scene.assigned("failed");
    scene.finish(&claim.lease, &give_up());
    assert_eq!(scene.unit("failed").accepted_by, None);
    scene.requeue("failed").expect("it is FAILED");
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 1)), ["failed"]);
}

fn a_unit_is_not_claimed_before_its_time(scene: &Scene<'_>) {
    let now = scene.now();
    scene.insert(work("later").not_before(now + TTL));
    scene.insert(work("past").not_before(now - TTL));
    assert_eq!((scene.unit("later").not_before, scene.unit("past").not_before), (Some(now + TTL), None));
    assert_eq!(ids(&scene.claim_up_to(9)), ["past"]);
    scene.advance(TTL - SECOND);
    assert_eq!(scene.claim_up_to(9), []);
    scene.advance(SECOND);
    let claims = scene.claim_as(scene.other_owner(), Scope::Pending, 1);
    assert_eq!(ids(&claims), ["later"]);
    assert_eq!(claims[0].unit.not_before, None);
}

fn a_calendar_that_was_set_back_holds_nothing_up(scene: &Scene<'_>) {
    scene.insert(work("a").not_before(scene.now() + TTL));
    if scene.set_calendar(TimeDelta::days(-3_650)) {
        assert_eq!(ids(&scene.claim_up_to(1)), ["a"], "it is further away than it ever was");
    }
}

fn a_retry_and_a_release_wait_for_their_pause(scene: &Scene<'_>) {
    let (failed, released, at_once) = (scene.assigned("failed"), scene.assigned("released"), scene.assigned("at once"));
    let due = scene.now() + 30 * SECOND;
    let closed = scene.finish(&failed.lease, &retry_after(30 * SECOND));
    assert_eq!((closed.status, closed.not_before), (UnitStatus::Pending, Some(due)));
    let closed = scene.release(&released.lease, Some(30 * SECOND), "busy");
    assert_eq!((closed.status, closed.not_before), (UnitStatus::Pending, Some(due)));
    let closed = scene.finish(&at_once.lease, &retry());
    assert_eq!((closed.status, closed.not_before), (UnitStatus::Pending, None));
    assert_eq!(scene.unit("failed").not_before, Some(due));

    assert_eq!(ids(&scene.claim_up_to(9)), ["at once"]);
    scene.advance(29 * SECOND);
    assert_eq!(scene.claim_up_to(9), []);
    scene.advance(SECOND);
    assert_eq!(ids(&scene.claim_up_to(9)), ["failed", "released"]);
}

fn an_accepted_unit_fails_when_its_queue_timeout_passes(scene: &Scene<'_>) {
    let key = scene.accept(work("a").queue_timeout(5 * SECOND));
    scene.advance(5 * SECOND - Duration::from_millis(1));
    assert_eq!(scene.expire(), []);
    scene.advance(Duration::from_millis(1));
    assert_eq!(scene.claim_as(scene.owner, Scope::Accepted, 1), [], "it is too late for it");
    let swept = scene.expire();
    assert_eq!(swept.len(), 1, "{swept:?}");
    assert_eq!((swept[0].unit, swept[0].unit_id.as_str(), swept[0].job_id), (key, "a", scene.job));
    assert_eq!((swept[0].change, swept[0].attempt_number), (Change::QueueTimeout, None));
    assert_eq!(swept[0].status, UnitStatus::Failed);

    let unit = scene.unit("a");
    assert_eq!(unit.failure.map(|failure| failure.kind), Some(FailureKind::QUEUE_TIMEOUT));
    assert_eq!((unit.completed_at, unit.accepted_by), (Some(scene.now()), Some(scene.owner)));
    let row = scene.last_row("a");
    assert_eq!((row.change, row.actor.as_str(), row.attempt_number), (Change::QueueTimeout, actor::SWEEP, None));
    assert_eq!(scene.expire(), []);
}

fn a_queue_timeout_runs_only_for_what_is_accepted_and_was_never_claimed(scene: &Scene<'_>) {
    scene.insert(work("open").queue_timeout(SECOND));
    let other = scene.other_owner();
    let intake = Intake::AcceptedBy(other);
    scene.repository.insert(scene.job, &[work("orphan").queue_timeout(SECOND)], intake).expect("it is valid");
    scene.repository.end_owner(other).expect("an owner can end");
    scene.accept(work("released").queue_timeout(SECOND));
    let claim = scene.claim_as(scene.owner, Scope::Accepted, 1).pop().expect("it is in time");
    scene.release(&claim.lease, None, "no time");
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), []);
    assert_eq!(ids(&scene.claim_up_to(9)), ["open", "orphan", "released"]);
}

fn a_claim_whose_answer_was_lost_is_found_by_its_token(scene: &Scene<'_>) {
    scene.insert(work("a"));
    scene.insert(work("b").priority(1));
    let request = scene.request(scene.owner, Scope::Pending, scene.slots(2));
    let claims = scene.repository.claim(&request).expect("two wait");
    let token = request.claimant.token;
    let claimed = |owner, token| scene.repository.claimed(owner, token).expect("claims can be looked up");
    assert_eq!(claimed(scene.owner, token), claims);
    assert_eq!(claimed(scene.owner, token.wrapping_add(1)), []);
    assert_eq!(claimed(scene.other_owner(), token), []);

    scene.release(&claims[0].lease, None, "no time");
    assert_eq!(claimed(scene.owner, token), claims[1..], "only what is still held");
    scene.claim();
    assert_eq!(claimed(scene.owner, token), claims[1..], "another request is not this one");
}

fn a_claim_takes_back_what_ran_out(scene: &Scene<'_>) {
    // 003-F28, 003-F35, 003-F37, 003-F45: without a heartbeat others go on with it.
    let first = scene.processing("a");
    scene.advance(TTL);
    let other = scene.other_owner();
    assert_eq!(scene.claim_as(other, Scope::Accepted, 1), [], "only who pulls open units takes back");
    let second = scene.claim_as(other, Scope::Pending, 1).pop().expect("the lease ran out");
    assert_eq!((second.lease.unit, second.lease.attempt_number), (first.lease.unit, 2));
    assert_eq!(second.lease.fence, first.lease.fence + 2, "one for the expiry, one for the claim");
    assert_eq!((second.unit.accepted_by, second.unit.attempts_used), (Some(other), 1));
    assert_eq!(scene.attempt(&first.lease).outcome, Some(Outcome::Lost));
    let rows = scene.journal_of("a");
    let expiry = &rows[rows.len() - 2];
    assert_eq!((expiry.change, expiry.actor.as_str()), (Change::Expire, actor::SWEEP));
    assert_eq!((expiry.attempt_number, expiry.reason.as_deref()), (Some(1), Some(loss::LEASE_RAN_OUT)));
    assert_eq!(scene.expire(), [], "nothing is left to take back");
}

fn a_claim_takes_back_no_more_than_it_needs(scene: &Scene<'_>) {
    for id in ["a", "b", "c"] {
        scene.assigned(id);
    }
    scene.advance(TTL);
    scene.insert(work("d"));
    let other = scene.other_owner();
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 1)), ["d"], "what waits comes before what ran out");
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 2)), ["a", "b"]);
    assert_eq!(scene.unit("c").fence, 1, "nobody needed it");
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 2)), ["c"]);
}

fn a_claim_leaves_what_would_end_to_the_sweep(scene: &Scene<'_>) {
    scene.assign(work("last").max_retries(0));
    scene.bring("cancelling", UnitStatus::CancelRequested);
    scene.advance(TTL);
    assert_eq!(scene.claim_up_to(9), []);
    assert_eq!(scene.status("last"), UnitStatus::Assigned);
    assert_eq!(scene.status("cancelling"), UnitStatus::CancelRequested);
    let statuses: Vec<UnitStatus> = scene.expire().iter().map(|swept| swept.status).collect();
    assert_eq!(statuses, [UnitStatus::Failed, UnitStatus::Cancelled]);
}

fn nothing_is_claimed_with_no_capacity_or_no_time(scene: &Scene<'_>) {
    scene.insert(work("a"));
    let nobody = Slot::with_capacity(scene.slot().worker_id, 0);
    let request = scene.request(scene.owner, Scope::Pending, vec![nobody.clone()]);
    assert_refused!(scene.repository.claim(&request), RepositoryError::Invalid(_));
    let claimant = Claimant::new(scene.owner, TTL);
    let submitted = scene.repository.submit(scene.job, &work("b"), &claimant, &nobody);
    assert_refused!(submitted, RepositoryError::Invalid(_));
    assert_refused!(scene.change_worker(&nobody, WorkerChange::Start), RepositoryError::Invalid(_));

    let timeless = Claimant::new(scene.owner, Duration::ZERO);
    let request = ClaimRequest::new(scene.job, timeless.clone(), Scope::Pending, scene.slots(1));
    assert_refused!(scene.repository.claim(&request), RepositoryError::Invalid(_));
    let submitted = scene.repository.submit(scene.job, &work("b"), &timeless, &scene.slot());
    assert_refused!(submitted, RepositoryError::Invalid(_));
    assert_refused!(scene.repository.renew(scene.owner, Duration::ZERO), RepositoryError::Invalid(_));
    assert_eq!(scene.journal().len(), 1, "nothing happened but the insert");
}

fn a_claim_for_a_worker_that_can_take_nothing_fails_as_a_whole(scene: &Scene<'_>) {
    use WorkerChange::{Die, Ready, ShutDown, Start, Taint, Terminate};
    scene.insert(work("a"));
    let lives: [(&str, &[WorkerChange]); 5] = [
        ("starting", &[Start]),
        ("tainted", &[Start, Ready, Taint]),
        ("shutting down", &[Start, Ready, ShutDown]),
        ("terminated", &[Start, Ready, ShutDown, Terminate]),
        ("dead", &[Start, Die]),
    ];
    for (name, life) in lives {
        for &change in life {
            scene.change_worker(&slot(name), change).expect("a life in order");
        }
    }
    let busy = slot("busy");
    scene.assign_to(scene.owner, work("b"), &busy);
    let before = scene.journal();
    for name in ["starting", "tainted", "shutting down", "terminated", "dead", "busy"] {
        let request = scene.request(scene.owner, Scope::Pending, vec![scene.slot(), slot(name)]);
        assert_refused!(scene.repository.claim(&request), RepositoryError::Illegal { .. });
    }
    assert_eq!(scene.journal(), before);
    assert_eq!(scene.status("a"), UnitStatus::Pending);
}

fn a_batch_does_not_overload_a_worker(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c"]);
    let one = scene.slot();
    let request = scene.request(scene.owner, Scope::Pending, vec![one.clone(), one.clone()]);
    assert_refused!(scene.repository.claim(&request), RepositoryError::Illegal { .. });
    assert_eq!(scene.repository.counts(scene.job).expect("units can be counted").pending, 3);

    let two = Slot::with_capacity(scene.slot().worker_id, 2);
    let request = scene.request(scene.owner, Scope::Pending, vec![two.clone(), two.clone()]);
    assert_eq!(ids(&scene.repository.claim(&request).expect("it can take two")), ["a", "b"]);
    assert_eq!(scene.worker(&two).load, 2);

    let many = Slot::with_capacity(scene.slot().worker_id, 9);
    scene.assign_to(scene.owner, work("d"), &many);
    let fewer = Slot::with_capacity(many.worker_id, 1);
    let request = scene.request(scene.owner, Scope::Pending, vec![fewer]);
    assert_refused!(scene.repository.claim(&request), RepositoryError::Illegal { .. });

    // Whether a request is one that can be granted does not depend on how many units wait.
    let request = scene.request(scene.owner, Scope::Pending, vec![one.clone(), one.clone()]);
    assert_refused!(scene.repository.claim(&request), RepositoryError::Illegal { .. });
    let request = scene.request(scene.owner, Scope::Pending, vec![one]);
    assert_eq!(ids(&scene.repository.claim(&request).expect("it can take one")), ["c"]);
}

fn an_owner_that_ended_claims_nothing(scene: &Scene<'_>) {
    scene.insert(work("a"));
    let ended = scene.other_owner();
    scene.repository.end_owner(ended).expect("an owner can end");
    let request = scene.request(ended, Scope::Pending, scene.slots(1));
    assert_refused!(scene.repository.claim(&request), RepositoryError::UnknownOwner(_));
    let submitted = scene.repository.submit(scene.job, &work("b"), &Claimant::new(ended, TTL), &scene.slot());
    assert_refused!(submitted, RepositoryError::UnknownOwner(_));
    assert_refused!(scene.repository.renew(ended, TTL), RepositoryError::UnknownOwner(_));
}
