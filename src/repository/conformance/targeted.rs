//! Slots that are for one unit: `claim` with `Slot::for_unit`.

use super::scene::{SECOND, Scene, TTL, ids, slot, work};
use crate::attempt::{Outcome, Provenance};
use crate::job::NewJob;
use crate::lease::{Claim, OwnerId};
use crate::repository::{Claimant, Intake, RepositoryError, Scope, Slot, Submitted, actor, loss};
use crate::unit::{Change, NewUnit, UnitKey, UnitStatus};
use crate::worker::{WorkerChange, WorkerStatus};

cases![
    a_slot_gets_the_unit_that_it_is_for_whoever_s_turn_it_is,
    a_slot_for_a_unit_that_cannot_be_had_gets_nothing,
    a_slot_for_a_unit_of_another_job_gets_nothing,
    a_slot_for_a_unit_gets_it_only_within_the_scope,
    a_slot_for_a_unit_that_has_no_prompt_gets_what_was_accepted,
    a_slot_for_a_unit_waits_for_its_time,
    a_slot_for_a_unit_that_waited_too_long_gets_nothing,
    the_other_slots_leave_alone_what_a_slot_is_for,
    the_other_slots_leave_alone_also_what_its_slot_cannot_have,
    of_two_slots_for_a_unit_the_first_gets_it,
    claims_come_in_the_order_of_the_slots,
    a_worker_has_a_slot_for_each_unit_that_it_can_take,
    a_slot_for_a_unit_that_cannot_be_had_still_needs_a_worker_that_could,
    a_slot_for_a_unit_takes_it_back_when_its_lease_ran_out,
    a_slot_for_a_unit_takes_back_nothing_else,
    a_slot_for_a_unit_takes_back_nothing_that_it_cannot_have,
    the_other_slots_do_not_take_back_what_a_slot_is_for,
    leases_are_taken_back_in_the_order_of_keys_whichever_slot_needs_it,
    what_slots_for_units_were_granted_is_found_by_the_token,
    a_slot_for_a_unit_starts_it_if_the_claimant_does,
    which_unit_a_slot_is_for_means_nothing_to_a_submission_or_a_worker,
];

/// Claims for the scene's owner from all that waits.
fn claim(scene: &Scene<'_>, slots: Vec<Slot>) -> Vec<Claim> {
    claim_as(scene, scene.owner, Scope::Pending, slots)
}

fn claim_as(scene: &Scene<'_>, owner: OwnerId, scope: Scope, slots: Vec<Slot>) -> Vec<Claim> {
    let request = scene.request(owner, scope, slots);
    scene.repository.claim(&request).expect("these workers can take what they are offered for")
}

/// Asserts that a slot for a unit gets nothing, and that nothing happens.
fn assert_nothing(scene: &Scene<'_>, owner: OwnerId, scope: Scope, unit: UnitKey, why: &str) {
    let before = scene.journal();
    assert_eq!(claim_as(scene, owner, scope, vec![scene.slot().for_unit(unit)]), [], "{why}");
    assert_eq!(scene.journal(), before, "{why}");
}

/// The units and their workers, in the order of the claim.
fn pairs(claims: &[Claim]) -> Vec<(&str, &str)> {
    claims.iter().map(|claim| (claim.unit.id.as_str(), claim.lease.worker_id.as_str())).collect()
}

fn a_slot_gets_the_unit_that_it_is_for_whoever_s_turn_it_is(scene: &Scene<'_>) {
    scene.insert_all(&["older"]);
    let key = scene.insert(work("meant").priority(-5));
    scene.insert(work("urgent").priority(9));
    let claims = claim(scene, vec![slot("w").for_unit(key)]);
    assert_eq!(pairs(&claims), [("meant", "w")]);
    let unit = scene.unit("meant");
    assert_eq!(claims[0].unit, unit);
    assert_eq!((unit.status, unit.fence, unit.attempt_count), (UnitStatus::Assigned, 1, 1));
    assert_eq!((scene.worker(&slot("w")).load, scene.worker(&slot("w")).current_unit), (1, Some(key)));
    assert_eq!(ids(&scene.claim_up_to(9)), ["urgent", "older"]);
}

fn a_slot_for_a_unit_that_cannot_be_had_gets_nothing(scene: &Scene<'_>) {
    use UnitStatus::{Assigned, CancelRequested, Cancelled, Completed, Failed, Processing};
    for status in [Assigned, Processing, CancelRequested, Completed, Failed, Cancelled] {
        let key = scene.bring(status.name(), status).lease.unit;
        for scope in [Scope::Accepted, Scope::Pending] {
            assert_nothing(scene, scene.owner, scope, key, status.name());
        }
    }
    scene.insert(work("waiting"));
    for never in [i64::MIN, -1, 0, 4_711, i64::MAX] {
        assert_nothing(scene, scene.owner, Scope::Pending, UnitKey(never), "there is no such unit");
    }
}

fn a_slot_for_a_unit_of_another_job_gets_nothing(scene: &Scene<'_>) {
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    scene.repository.insert(other, &[work("a"), work("b")], Intake::Open).expect("both are valid");
    let key = |id| scene.repository.unit(other, id).expect("it was inserted").key;
    assert_nothing(scene, scene.owner, Scope::Pending, key("a"), "it waits in another job");

    let mut request = scene.request(scene.owner, Scope::Pending, vec![scene.slot().for_unit(key("b"))]);
    request.job_id = other;
    assert_eq!(ids(&scene.repository.claim(&request).expect("it waits")), ["b"]);
    scene.advance(TTL);
    assert_nothing(scene, scene.owner, Scope::Pending, key("b"), "it ran out in another job");
}

fn a_slot_for_a_unit_gets_it_only_within_the_scope(scene: &Scene<'_>) {
    let other = scene.other_owner();
    let (open, accepted) = (scene.insert(work("open")), scene.accept(work("accepted")));
    for scope in [Scope::Accepted, Scope::Pending] {
        assert_nothing(scene, other, scope, accepted, "it is another's");
    }
    assert_nothing(scene, scene.owner, Scope::Accepted, open, "nobody accepted it");
    let slots = vec![scene.slot().for_unit(open), scene.slot().for_unit(accepted)];
    assert_eq!(ids(&claim_as(scene, scene.owner, Scope::Accepted, slots)), ["accepted"]);
    let too = scene.accept(work("accepted too"));
    let slots = vec![scene.slot().for_unit(open), scene.slot().for_unit(too)];
    assert_eq!(ids(&claim_as(scene, scene.owner, Scope::Pending, slots)), ["open", "accepted too"]);
}

fn a_slot_for_a_unit_that_has_no_prompt_gets_what_was_accepted(scene: &Scene<'_>) {
    let open = scene.insert(NewUnit::new("open"));
    assert_nothing(scene, scene.owner, Scope::Pending, open, "there is nothing to send");
    let accepted = scene.accept(NewUnit::new("accepted"));
    assert_eq!(ids(&claim(scene, vec![scene.slot().for_unit(accepted)])), ["accepted"]);
}

fn a_slot_for_a_unit_waits_for_its_time(scene: &Scene<'_>) {
    let key = scene.insert(work("later").not_before(scene.now() + TTL));
    let released = scene.assigned("released");
    scene.release(&released.lease, Some(TTL), "busy");
    scene.advance(TTL - SECOND);
    for unit in [key, released.lease.unit] {
        assert_nothing(scene, scene.owner, Scope::Pending, unit, "it is not due");
    }
    scene.advance(SECOND);
    let slots = vec![scene.slot().for_unit(released.lease.unit), scene.slot().for_unit(key)];
    let claims = claim(scene, slots);
    assert_eq!(ids(&claims), ["released", "later"]);
    assert_eq!(claims[1].unit.not_before, None);
}

fn a_slot_for_a_unit_that_waited_too_long_gets_nothing(scene: &Scene<'_>) {
    let late = scene.accept(work("late").queue_timeout(SECOND));
    let in_time = scene.accept(work("in time").queue_timeout(2 * SECOND));
    scene.advance(SECOND);
    assert_nothing(scene, scene.owner, Scope::Accepted, late, "it is too late for it");
    assert_eq!(ids(&claim_as(scene, scene.owner, Scope::Accepted, vec![scene.slot().for_unit(in_time)])), ["in time"]);
    assert_eq!(scene.expire().len(), 1, "the sweep tells of it");
}

fn the_other_slots_leave_alone_what_a_slot_is_for(scene: &Scene<'_>) {
    let first = scene.insert(work("a").priority(9));
    scene.insert_all(&["b", "c", "d"]);
    // The unit whose turn it is has a slot that comes later.
    let claims = claim(scene, vec![slot("w1"), slot("w2").for_unit(first), slot("w3")]);
    assert_eq!(pairs(&claims), [("b", "w1"), ("a", "w2"), ("c", "w3")]);
    assert_eq!(ids(&scene.claim_up_to(9)), ["d"]);
}

fn the_other_slots_leave_alone_also_what_its_slot_cannot_have(scene: &Scene<'_>) {
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    scene.repository.insert(other, &[work("foreign")], Intake::Open).expect("it is valid");
    let foreign = scene.repository.unit(other, "foreign").expect("it was inserted").key;
    let bare = scene.insert(NewUnit::new("bare"));
    let twice = scene.insert(work("twice"));
    scene.insert_all(&["a", "b"]);
    let slots = vec![
        slot("w1").for_unit(foreign),
        slot("w2").for_unit(twice),
        slot("w3"),
        slot("w4").for_unit(twice),
        slot("w5").for_unit(bare),
        slot("w6").for_unit(UnitKey(4_711)),
        slot("w7"),
        slot("w8"),
    ];
    assert_eq!(pairs(&claim(scene, slots)), [("twice", "w2"), ("a", "w3"), ("b", "w7")]);
    let mut request = scene.request(scene.owner, Scope::Pending, vec![slot("w9").for_unit(bare), slot("w10")]);
    request.job_id = other;
    assert_eq!(ids(&scene.repository.claim(&request).expect("one waits")), ["foreign"]);
}

fn of_two_slots_for_a_unit_the_first_gets_it(scene: &Scene<'_>) {
    let key = scene.insert(work("a"));
    scene.insert(work("b"));
    let claims = claim(scene, vec![slot("w1").for_unit(key), slot("w2").for_unit(key)]);
    assert_eq!(pairs(&claims), [("a", "w1")]);
    assert_eq!((scene.unit("a").fence, scene.status("b")), (1, UnitStatus::Pending));
}

fn claims_come_in_the_order_of_the_slots(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c", "d"]);
    let last = scene.insert(work("last").priority(-1));
    let gone = scene.bring("gone", UnitStatus::Completed).lease.unit;
    let c = scene.unit("c").key;
    let slots = vec![slot("w1").for_unit(last), slot("w2").for_unit(gone), slot("w3"), slot("w4").for_unit(c)];
    assert_eq!(pairs(&claim(scene, slots)), [("last", "w1"), ("a", "w3"), ("c", "w4")]);
}

fn a_worker_has_a_slot_for_each_unit_that_it_can_take(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c", "d"]);
    let key = |id| scene.unit(id).key;
    let two = Slot::with_capacity(scene.slot().worker_id, 2);
    let claims = claim(scene, vec![two.clone().for_unit(key("c")), two.clone()]);
    let name = two.worker_id.as_str();
    assert_eq!(pairs(&claims), [("c", name), ("a", name)]);
    let worker = scene.worker(&two);
    assert_eq!((worker.load, worker.status, worker.current_unit), (2, WorkerStatus::Busy, Some(key("a"))));

    let full = scene.request(scene.owner, Scope::Pending, vec![two.clone().for_unit(key("b"))]);
    assert_refused!(scene.repository.claim(&full), RepositoryError::Illegal { .. });
    let one = scene.slot();
    let slots = vec![one.clone().for_unit(key("b")), one.for_unit(key("d"))];
    let overloaded = scene.request(scene.owner, Scope::Pending, slots);
    assert_refused!(scene.repository.claim(&overloaded), RepositoryError::Illegal { .. });
    assert_eq!(scene.repository.counts(scene.job).expect("units can be counted").pending, 2);

    // Of the two slots one gets nothing, and counts for nothing.
    scene.release(&claims[0].lease, None, "no time");
    scene.release(&claims[1].lease, None, "no time");
    let slots = vec![two.clone().for_unit(UnitKey(4_711)), two.clone().for_unit(key("d"))];
    assert_eq!(pairs(&claim(scene, slots)), [("d", name)]);
    let worker = scene.worker(&two);
    assert_eq!((worker.load, worker.status), (1, WorkerStatus::Ready));
}

fn a_slot_for_a_unit_that_cannot_be_had_still_needs_a_worker_that_could(scene: &Scene<'_>) {
    scene.insert(work("a"));
    let (busy, starting) = (scene.slot(), scene.slot());
    let leased = scene.assign_to(scene.owner, work("b"), &busy).lease.unit;
    scene.change_worker(&starting, WorkerChange::Start).expect("a worker can start");
    for unable in [busy, starting] {
        let request = scene.request(scene.owner, Scope::Pending, vec![scene.slot(), unable.for_unit(leased)]);
        assert_refused!(scene.repository.claim(&request), RepositoryError::Illegal { .. });
    }
    let nobody = Slot::with_capacity(scene.slot().worker_id, 0).for_unit(leased);
    let request = scene.request(scene.owner, Scope::Pending, vec![nobody]);
    assert_refused!(scene.repository.claim(&request), RepositoryError::Invalid(_));
    assert_eq!(scene.status("a"), UnitStatus::Pending);
}

fn a_slot_for_a_unit_takes_it_back_when_its_lease_ran_out(scene: &Scene<'_>) {
    let first = scene.processing("a");
    scene.advance(TTL);
    scene.insert(work("b").priority(9));
    let (other, unit) = (scene.other_owner(), first.lease.unit);
    assert_nothing(scene, other, Scope::Accepted, unit, "only who pulls open units takes back");
    let claims = claim_as(scene, other, Scope::Pending, vec![scene.slot().for_unit(unit)]);
    assert_eq!(ids(&claims), ["a"], "though another waits");
    assert_eq!(claims[0].lease.fence, first.lease.fence + 2, "one for the expiry, one for the claim");
    assert_eq!((claims[0].unit.accepted_by, claims[0].unit.attempts_used), (Some(other), 1));
    assert_eq!(scene.attempt(&first.lease).outcome, Some(Outcome::Lost));
    let rows = scene.journal_of("a");
    let expiry = &rows[rows.len() - 2];
    assert_eq!((expiry.change, expiry.actor.as_str()), (Change::Expire, actor::SWEEP));
    assert_eq!((expiry.attempt_number, expiry.reason.as_deref()), (Some(1), Some(loss::LEASE_RAN_OUT)));
}

fn a_slot_for_a_unit_takes_back_nothing_else(scene: &Scene<'_>) {
    let before = scene.assigned("before");
    let meant = scene.assigned("meant");
    scene.advance(TTL);
    let not_due = scene.insert(work("not due").not_before(scene.now() + TTL));
    assert_nothing(scene, scene.owner, Scope::Pending, not_due, "others ran out, which is of no use to it");
    assert_eq!(ids(&claim(scene, vec![scene.slot().for_unit(meant.lease.unit)])), ["meant"]);
    assert_eq!(scene.unit("before").fence, before.lease.fence, "nobody needed it");
}

fn a_slot_for_a_unit_takes_back_nothing_that_it_cannot_have(scene: &Scene<'_>) {
    let last = scene.assign(work("last").max_retries(0)).lease.unit;
    let cancelling = scene.bring("cancelling", UnitStatus::CancelRequested).lease.unit;
    let bare = scene.assign(NewUnit::new("bare")).lease.unit;
    scene.advance(TTL);
    assert_nothing(scene, scene.owner, Scope::Pending, last, "the sweep tells how it ended");
    assert_nothing(scene, scene.owner, Scope::Pending, cancelling, "the sweep tells how it ended");
    assert_nothing(scene, scene.owner, Scope::Pending, bare, "taken back it would have nothing to send");
    assert_eq!(scene.expire().len(), 3);
}

fn the_other_slots_do_not_take_back_what_a_slot_is_for(scene: &Scene<'_>) {
    let bare = scene.assign(NewUnit::new("bare"));
    let [a, b, c] = ["a", "b", "c"].map(|id| scene.assigned(id));
    scene.advance(TTL);
    let slots = vec![slot("w1"), slot("w2").for_unit(bare.lease.unit), slot("w3").for_unit(a.lease.unit)];
    let claims = claim_as(scene, scene.other_owner(), Scope::Pending, slots);
    assert_eq!(pairs(&claims), [("b", "w1"), ("a", "w3")]);
    assert_eq!(scene.unit("bare").fence, bare.lease.fence, "its slot cannot have it");
    assert_eq!(scene.unit("c").fence, c.lease.fence, "nobody needed it");
    assert_eq!(claims[0].lease.fence, b.lease.fence + 2);
}

fn leases_are_taken_back_in_the_order_of_keys_whichever_slot_needs_it(scene: &Scene<'_>) {
    let [_, b, _, d] = ["a", "b", "c", "d"].map(|id| scene.assigned(id).lease.unit);
    scene.advance(TTL);
    let seen = scene.journal().len();
    let slots = vec![slot("w1").for_unit(d), slot("w2"), slot("w3").for_unit(b), slot("w4")];
    let claims = claim_as(scene, scene.other_owner(), Scope::Pending, slots);
    assert_eq!(pairs(&claims), [("d", "w1"), ("a", "w2"), ("b", "w3"), ("c", "w4")]);
    let rows = scene.journal().split_off(seen);
    let expired = rows.iter().take_while(|row| row.change == Change::Expire);
    assert!(expired.map(|row| row.unit).is_sorted() && rows[4..].iter().all(|row| row.change == Change::Claim));
    assert_eq!(rows.len(), 8);
}

fn what_slots_for_units_were_granted_is_found_by_the_token(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b"]);
    let b = scene.unit("b").key;
    scene.insert(work("urgent").priority(9));
    let two = Slot::with_capacity(scene.slot().worker_id, 2);
    let request = scene.request(scene.owner, Scope::Pending, vec![two.clone().for_unit(b), two]);
    let claims = scene.repository.claim(&request).expect("both wait");
    assert_eq!(ids(&claims), ["b", "urgent"]);
    let token = request.claimant.token;
    let claimed = || scene.repository.claimed(scene.owner, token).expect("claims can be looked up");
    assert_eq!(claimed(), [claims[1].clone(), claims[0].clone()], "in the order of turns");
    scene.release(&claims[1].lease, None, "no time");
    assert_eq!(claimed(), claims[..1], "only what is still held");
}

fn a_slot_for_a_unit_starts_it_if_the_claimant_does(scene: &Scene<'_>) {
    let prompted = scene.insert(work("prompted"));
    let templated = scene.insert(NewUnit::new("templated").template("do {{ it }}"));
    let slots = vec![scene.slot().for_unit(templated), scene.slot().for_unit(prompted)];
    let mut request = scene.request(scene.owner, Scope::Pending, slots);
    request.claimant = request.claimant.starting(Provenance::of("suite"));
    let claims = scene.repository.claim(&request).expect("both wait");
    let statuses: Vec<UnitStatus> = claims.iter().map(|claim| claim.unit.status).collect();
    assert_eq!(
        (ids(&claims), statuses),
        (vec!["templated", "prompted"], vec![UnitStatus::Assigned, UnitStatus::Processing])
    );
}

fn which_unit_a_slot_is_for_means_nothing_to_a_submission_or_a_worker(scene: &Scene<'_>) {
    let other = scene.insert(work("other"));
    let for_other = scene.slot().for_unit(other);
    scene.change_worker(&for_other, WorkerChange::Start).expect("a worker can start");
    scene.change_worker(&for_other, WorkerChange::Ready).expect("and be ready");
    let claimant = Claimant::new(scene.owner, TTL);
    let submitted = scene.repository.submit(scene.job, &work("a"), &claimant, &for_other).expect("it is due");
    assert!(matches!(submitted, Submitted::Claimed(claim) if claim.unit.id.as_str() == "a"));
    assert_eq!((scene.status("other"), scene.worker(&for_other).load), (UnitStatus::Pending, 1));
}
