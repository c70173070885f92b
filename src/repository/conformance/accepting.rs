//! What waits for one owner: an `insert` that is accepted, how long such a unit may wait, and `let_go`.

use std::time::Duration;

use super::scene::{SECOND, Scene, TTL, ids, retry, retry_after, work};
use crate::attempt::AttemptReport;
use crate::job::NewJob;
use crate::lease::OwnerId;
use crate::repository::{Claimant, Insertion, Intake, RepositoryError, Scope, Submitted};
use crate::unit::{Change, Inputs, NewUnit, UnitStatus, WorkUnit, unit_digest};

cases![
    an_accepted_unit_belongs_to_its_owner,
    only_a_living_owner_accepts,
    whoever_accepts_a_unit_that_waits_takes_it_over,
    whoever_accepts_a_unit_gives_it_the_prompt_that_was_missing,
    what_is_held_or_has_ended_is_accepted_by_nobody,
    nobody_accepts_a_unit_with_another_content,
    a_unit_that_is_accepted_again_waits_no_longer_than_before,
    a_unit_that_is_taken_over_waits_as_if_it_were_new,
    what_was_claimed_is_accepted_without_a_queue_timeout,
    an_id_that_is_accepted_twice_in_a_call_is_one_unit,
    what_waited_too_long_bars_the_way_for_nobody,
    a_sweep_fails_exactly_what_waited_too_long,
    what_is_cancelled_while_it_waits_is_out_of_the_queue,
    what_ends_while_it_waits_says_whose_it_was,
    what_waits_for_an_owner_is_told_in_pages,
    what_an_owner_lets_go_waits_for_anybody,
    what_is_let_go_has_no_queue_timeout,
    what_an_owner_executes_stays_its_own_when_it_lets_go,
    what_an_owner_accepts_after_it_let_go_is_its_own,
    nobody_lets_go_what_others_accepted,
    to_let_go_twice_is_to_let_go_once,
];

fn an_accepted_unit_belongs_to_its_owner(scene: &Scene<'_>) {
    scene.accept(work("a"));
    assert_eq!(scene.unit("a").accepted_by, Some(scene.owner));
    assert_eq!(scene.last_row("a").actor, scene.owner.to_string());
}

fn only_a_living_owner_accepts(scene: &Scene<'_>) {
    let ended = scene.other_owner();
    scene.repository.end_owner(ended).expect("an owner can end");
    for owner in [OwnerId(4_711), ended] {
        let inserted = scene.repository.insert(scene.job, &[work("a")], Intake::AcceptedBy(owner));
        assert_refused!(inserted, RepositoryError::UnknownOwner(_));
    }
    assert_refused!(scene.repository.unit(scene.job, "a"), RepositoryError::UnknownUnit { .. });
}

fn whoever_accepts_a_unit_that_waits_takes_it_over(scene: &Scene<'_>) {
    let other = scene.other_owner();
    let due = scene.now() + TTL;
    scene.insert(work("open").priority(3).not_before(due));
    insert_for(scene, other, work("accepted"));
    let before = scene.journal();
    for id in ["open", "accepted"] {
        let expected = WorkUnit { accepted_by: Some(scene.owner), ..scene.unit(id) };
        for _ in 0..2 {
            assert_eq!(insert_for(scene, scene.owner, work(id)), Insertion::AlreadyExists(expected.key));
            assert_eq!(scene.unit(id), expected, "priority and times stay");
        }
    }
    assert_eq!(scene.journal(), before, "no status changed");
    scene.advance(TTL);
    assert_eq!(scene.claim_as(other, Scope::Pending, 9), []);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 9)), ["open", "accepted"]);
}

fn whoever_accepts_a_unit_gives_it_the_prompt_that_was_missing(scene: &Scene<'_>) {
    let key = scene.insert(NewUnit::new("a"));
    for _ in 0..2 {
        assert_eq!(insert_for(scene, scene.owner, work("a")), Insertion::AlreadyExists(key));
    }
    assert_prompt_was_added(scene, "a");
    let rows = scene.journal_of("a");
    assert_eq!(rows.iter().map(|row| row.change).collect::<Vec<_>>(), [Change::Insert, Change::AddPrompt]);
    assert_eq!(insert_for(scene, scene.owner, work("a").prompt("other")), Insertion::Conflict(key));

    // What has a prompt now is claimed from the open like anything else.
    scene.repository.end_owner(scene.owner).expect("an owner can end");
    assert_eq!(ids(&scene.claim_as(scene.other_owner(), Scope::Pending, 9)), ["a"]);
}

fn what_is_held_or_has_ended_is_accepted_by_nobody(scene: &Scene<'_>) {
    let other = scene.other_owner();
    for &status in UnitStatus::ALL.iter().filter(|&&status| status != UnitStatus::Pending) {
        let id = status.name();
        let key = scene.bring_unit(NewUnit::new(id), status).lease.unit;
        let before = scene.snapshot(id);
        assert_eq!(insert_for(scene, other, work(id).queue_timeout(SECOND)), Insertion::AlreadyExists(key), "{id}");
        assert_eq!(scene.snapshot(id), before);
    }
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), []);
}

fn nobody_accepts_a_unit_with_another_content(scene: &Scene<'_>) {
    let other = scene.other_owner();
    let (with, without) = (scene.accept(work("with")), scene.insert(NewUnit::new("without")));
    let before = ["with", "without"].map(|id| scene.snapshot(id));
    assert_eq!(insert_for(scene, other, work("with").prompt("other")), Insertion::Conflict(with));
    assert_eq!(insert_for(scene, other, work("with").payload(1)), Insertion::Conflict(with));
    assert_eq!(insert_for(scene, other, work("without").payload(1)), Insertion::Conflict(without));
    assert_eq!(["with", "without"].map(|id| scene.snapshot(id)), before);
}

fn a_unit_that_is_accepted_again_waits_no_longer_than_before(scene: &Scene<'_>) {
    scene.accept(work("patient"));
    scene.accept(work("running").queue_timeout(5 * SECOND));
    scene.advance(3 * SECOND);
    for unit in [work("running").queue_timeout(5 * SECOND), work("running"), work("patient").queue_timeout(5 * SECOND)]
    {
        insert_for(scene, scene.owner, unit);
    }
    let timed_out = || scene.expire().iter().map(|swept| swept.unit_id.to_string()).collect::<Vec<_>>();
    scene.advance(2 * SECOND);
    insert_for(scene, scene.owner, work("running").queue_timeout(5 * SECOND));
    assert_eq!(timed_out(), ["running"], "it waits since it was accepted first");
    scene.advance(2 * SECOND);
    assert_eq!(timed_out(), [""; 0]);
    scene.advance(SECOND);
    assert_eq!(timed_out(), ["patient"], "no timeout was running that could be kept");
}

fn a_unit_that_is_taken_over_waits_as_if_it_were_new(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.insert(work("open").queue_timeout(SECOND));
    for id in ["longer", "for ever"] {
        insert_for(scene, other, work(id).queue_timeout(SECOND));
    }
    scene.advance(SECOND);
    insert_for(scene, scene.owner, work("open").queue_timeout(5 * SECOND));
    insert_for(scene, scene.owner, work("longer").queue_timeout(5 * SECOND));
    insert_for(scene, scene.owner, work("for ever"));
    scene.advance(5 * SECOND - Duration::from_millis(1));
    assert_eq!(scene.expire(), []);
    scene.advance(Duration::from_millis(1));
    let swept: Vec<Change> = scene.expire().iter().map(|swept| swept.change).collect();
    assert_eq!(swept, [Change::QueueTimeout; 2]);
    assert_eq!(scene.status("for ever"), UnitStatus::Pending);
}

fn what_was_claimed_is_accepted_without_a_queue_timeout(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.bring("released", UnitStatus::Pending);
    scene.bring("requeued", UnitStatus::Failed);
    scene.requeue("requeued").expect("it is FAILED");
    for id in ["released", "requeued"] {
        insert_for(scene, other, work(id).queue_timeout(SECOND));
        assert_eq!(scene.unit(id).accepted_by, Some(other));
    }
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), []);
    assert_eq!(ids(&scene.claim_as(other, Scope::Accepted, 9)), ["released", "requeued"]);
}

fn an_id_that_is_accepted_twice_in_a_call_is_one_unit(scene: &Scene<'_>) {
    let units = [NewUnit::new("a"), work("a"), NewUnit::new("a"), work("a").prompt("other")];
    let insert = || scene.repository.insert(scene.job, &units, Intake::AcceptedBy(scene.owner)).expect("all are valid");
    let first = insert();
    let key = scene.unit("a").key;
    let again = [
        Insertion::AlreadyExists(key),
        Insertion::AlreadyExists(key),
        Insertion::AlreadyExists(key),
        Insertion::Conflict(key),
    ];
    assert_eq!((first[0], &first[1..]), (Insertion::Inserted(key), &again[1..]));
    assert_prompt_was_added(scene, "a");
    let before = scene.snapshot("a");
    assert_eq!(insert(), again);
    assert_eq!(scene.snapshot("a"), before);
}

fn what_waited_too_long_bars_the_way_for_nobody(scene: &Scene<'_>) {
    for id in ["late", "late too"] {
        scene.accept(work(id).priority(9).queue_timeout(SECOND));
    }
    scene.accept(work("in time").priority(1).queue_timeout(2 * SECOND));
    scene.accept(work("patient"));
    scene.advance(SECOND);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 1)), ["in time"]);
    assert_eq!(ids(&scene.claim_up_to(1)), ["patient"]);
    assert_eq!(scene.claim_up_to(9), [], "the late ones are left to the sweep");
}

fn a_sweep_fails_exactly_what_waited_too_long(scene: &Scene<'_>) {
    scene.insert(work("open").queue_timeout(SECOND));
    scene.accept(work("late").queue_timeout(SECOND));
    scene.accept(work("in time").queue_timeout(SECOND + Duration::from_millis(1)));
    scene.accept(work("patient"));
    scene.accept(work("claimed").priority(9).queue_timeout(SECOND));
    scene.claim();
    scene.accept(work("not due").not_before(scene.now() + TTL).queue_timeout(SECOND));
    scene.advance(SECOND);
    let swept = scene.expire();
    let changes: Vec<_> = swept.iter().map(|swept| (swept.unit_id.as_str(), swept.change, swept.status)).collect();
    let (change, status) = (Change::QueueTimeout, UnitStatus::Failed);
    assert_eq!(changes, [("late", change, status), ("not due", change, status)]);
    assert_eq!(scene.expire(), []);
}

fn what_is_cancelled_while_it_waits_is_out_of_the_queue(scene: &Scene<'_>) {
    scene.accept(work("a").queue_timeout(SECOND));
    scene.cancel("a");
    let unit = scene.unit("a");
    assert_eq!(unit.status, UnitStatus::Cancelled);
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), [], "its queue timeout ended with it");
    scene.requeue("a").expect("it is CANCELLED");
    assert_eq!(scene.expire(), [], "and does not come back");
    assert_eq!(scene.claim_as(scene.owner, Scope::Accepted, 1), []);
    assert_eq!(ids(&scene.claim_as(scene.other_owner(), Scope::Pending, 1)), ["a"]);
}

fn what_ends_while_it_waits_says_whose_it_was(scene: &Scene<'_>) {
    // 003-F46. Of two pools that know a unit, one had it: the one that tells.
    let other = scene.other_owner();
    for id in ["cancelled", "waited"] {
        scene.accept(work(id).queue_timeout(SECOND));
        insert_for(scene, other, work(id).queue_timeout(SECOND));
    }
    scene.cancel("cancelled");
    scene.advance(SECOND);
    assert_eq!(scene.expire().len(), 1);
    for id in ["cancelled", "waited"] {
        assert_eq!(scene.unit(id).accepted_by, Some(other), "{id}");
        scene.repository.end_owner(other).expect("an owner can end");
        assert_eq!(scene.unit(id).accepted_by, Some(other), "{id}: that is past");
        scene.requeue(id).expect("it has ended badly");
        assert_eq!(scene.unit(id).accepted_by, None, "{id}");
    }
    scene.insert(work("open"));
    scene.cancel("open");
    let ran = scene.processing("ran");
    scene.cancel("ran");
    scene.finish(&ran.lease, &AttemptReport::cancelled());
    assert_eq!((scene.unit("open").accepted_by, scene.unit("ran").accepted_by), (None, None));
}

fn what_waits_for_an_owner_is_told_in_pages(scene: &Scene<'_>) {
    let page = |owner, after, limit| {
        let page = scene.repository.accepted(owner, after, limit).expect("it can be read");
        (page.items, page.next)
    };
    assert_eq!(page(scene.owner, 0, 9), (vec![], None));
    let other = scene.other_owner();
    let later = work("later").priority(9).not_before(scene.now() + chrono::TimeDelta::hours(1));
    let (first, later) = (scene.accept(work("first")), scene.accept(later));
    scene.insert(work("open"));
    insert_for(scene, other, work("of another"));
    scene.accept(work("cancelled"));
    let again = scene.processing("again").lease;
    scene.finish(&again, &retry_after(SECOND));
    let last = scene.accept(work("last"));
    scene.bring("ran", UnitStatus::Processing);
    scene.cancel("cancelled");
    assert_eq!(page(scene.owner, 0, 9), (vec![first, later, again.unit, last], None));
    assert_eq!(page(scene.owner, 0, 2), (vec![first, later], Some(later.0)));
    assert_eq!(page(scene.owner, later.0, 2), (vec![again.unit, last], None));
    assert_eq!(page(scene.owner, last.0, 2), (vec![], None));
    insert_for(scene, other, work("first"));
    assert_eq!(page(scene.owner, 0, 1), (vec![later], Some(later.0)), "what was taken over is not its own");
    let_go(scene, scene.owner);
    assert_eq!(page(scene.owner, 0, 9), (vec![], None));
    assert_eq!(page(OwnerId(4_711), 0, 9), (vec![], None), "nothing waits for who never was");
}

fn what_an_owner_lets_go_waits_for_anybody(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.bring("released", UnitStatus::Pending);
    let lease = scene.assigned("retried").lease;
    scene.finish(&lease, &retry_after(TTL));
    scene.accept(work("accepted").priority(3).queue_timeout(2 * TTL));
    let ids_of_all = ["released", "retried", "accepted"];
    let expected = ids_of_all.map(|id| WorkUnit { accepted_by: None, ..scene.unit(id) });
    let before = scene.journal();
    assert_eq!(scene.claim_as(other, Scope::Pending, 9), []);
    assert_eq!(let_go(scene, scene.owner), 3);
    assert_eq!(ids_of_all.map(|id| scene.unit(id)), expected, "priority and times stay");
    assert_eq!(scene.journal(), before, "no status changed");
    assert_eq!(scene.claim_as(scene.owner, Scope::Accepted, 9), []);
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 9)), ["accepted", "released"]);
    scene.advance(TTL);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Pending, 1)), ["retried"], "anybody is also who let go");
}

fn what_is_let_go_has_no_queue_timeout(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.accept(work("late").queue_timeout(SECOND));
    scene.accept(work("in time").queue_timeout(3 * SECOND));
    scene.accept(work("not due").not_before(scene.now() + TTL).queue_timeout(3 * SECOND));
    scene.advance(2 * SECOND);
    assert_eq!(let_go(scene, scene.owner), 3, "nobody has failed the late one yet");
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), []);
    assert_eq!(ids(&scene.claim_as(other, Scope::Pending, 9)), ["late", "in time"]);

    insert_for(scene, scene.owner, work("not due").queue_timeout(5 * SECOND));
    scene.advance(5 * SECOND - Duration::from_millis(1));
    assert_eq!(scene.expire(), [], "none was running when it was accepted again");
    scene.advance(Duration::from_millis(1));
    assert_eq!(scene.expire().len(), 1);
    assert_eq!(scene.status("not due"), UnitStatus::Failed);
}

fn what_an_owner_executes_stays_its_own_when_it_lets_go(scene: &Scene<'_>) {
    let leased = [UnitStatus::Assigned, UnitStatus::Processing, UnitStatus::CancelRequested];
    let leases = leased.map(|status| scene.bring(status.name(), status).lease);
    let before = leased.map(|status| scene.snapshot(status.name()));
    assert_eq!(let_go(scene, scene.owner), 0);
    assert_eq!(leased.map(|status| scene.snapshot(status.name())), before);
    for lease in &leases {
        scene.repository.flush(lease).expect("it is held");
    }
    scene.release(&leases[0], None, "not now");
    scene.finish(&leases[1], &retry());
    for status in &leased[..2] {
        assert_eq!(scene.unit(status.name()).accepted_by, Some(scene.owner), "through retries and releases");
    }
    assert_eq!(let_go(scene, scene.owner), 2, "now they wait");
}

fn what_an_owner_accepts_after_it_let_go_is_its_own(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.accept(work("again"));
    scene.accept(work("submitted").not_before(scene.now() + TTL));
    assert_eq!(let_go(scene, scene.owner), 2);
    insert_for(scene, scene.owner, work("again"));
    scene.accept(work("new").queue_timeout(SECOND));
    let claimant = Claimant::new(scene.owner, TTL);
    let submitted = scene.repository.submit(scene.job, &work("submitted"), &claimant, &scene.slot());
    assert!(matches!(submitted, Ok(Submitted::Waiting(_))), "{submitted:?}");
    for id in ["again", "new", "submitted"] {
        assert_eq!(scene.unit(id).accepted_by, Some(scene.owner), "{id}");
    }
    assert_eq!(scene.claim_as(other, Scope::Pending, 9), []);
    scene.advance(SECOND);
    let swept = scene.expire();
    assert_eq!(swept.iter().map(|swept| swept.unit_id.as_str()).collect::<Vec<_>>(), ["new"]);
}

fn nobody_lets_go_what_others_accepted(scene: &Scene<'_>) {
    let other = scene.other_owner();
    scene.insert(work("open"));
    scene.bring("ended", UnitStatus::Completed);
    insert_for(scene, other, work("of another").queue_timeout(SECOND));
    let of_others = ["open", "ended", "of another"];
    let before = of_others.map(|id| scene.snapshot(id));
    assert_eq!(let_go(scene, scene.owner), 0);
    let elsewhere = scene.repository.create_job(&NewJob::named("elsewhere")).expect("a new job").id;
    let accepted = Intake::AcceptedBy(scene.owner);
    scene.repository.insert(elsewhere, &[work("a"), work("b")], accepted).expect("they are valid");
    assert_eq!(let_go(scene, scene.owner), 2, "in whatever job");
    assert_eq!(of_others.map(|id| scene.snapshot(id)), before);
    scene.advance(SECOND);
    assert_eq!(scene.expire().len(), 1, "the queue timeout of another runs on");
}

fn to_let_go_twice_is_to_let_go_once(scene: &Scene<'_>) {
    scene.accept(work("a").queue_timeout(SECOND));
    scene.accept(work("b"));
    assert_eq!(let_go(scene, scene.owner), 2);
    insert_for(scene, scene.other_owner(), work("b"));
    let before = ["a", "b"].map(|id| scene.snapshot(id));
    assert_eq!(let_go(scene, scene.owner), 0);
    scene.repository.end_owner(scene.owner).expect("an owner can end");
    assert_eq!(let_go(scene, scene.owner), 0, "an owner that ended has nothing");
    assert_eq!(["a", "b"].map(|id| scene.snapshot(id)), before);
}

fn let_go(scene: &Scene<'_>, owner: OwnerId) -> u64 {
    scene.repository.let_go(owner).expect("it is registered")
}

/// Inserts a unit that may be there for an owner.
fn insert_for(scene: &Scene<'_>, owner: OwnerId, unit: NewUnit) -> Insertion {
    let answers = scene.repository.insert(scene.job, &[unit], Intake::AcceptedBy(owner)).expect("it is valid");
    answers[0]
}

/// A unit that was inserted with nothing but its name has the prompt of [`work`], and the journal knows.
pub(super) fn assert_prompt_was_added(scene: &Scene<'_>, id: &str) {
    let unit = scene.unit(id);
    assert_eq!(unit.prompt, work(id).prompt);
    let rows = scene.journal_of(id);
    let row = rows.iter().find(|row| row.change == Change::AddPrompt).expect("a row tells of the prompt");
    assert_eq!((row.from, row.to), (Some(UnitStatus::Pending), UnitStatus::Pending));
    assert_eq!((row.actor.clone(), row.attempt_number), (scene.owner.to_string(), None));
    let expected = Inputs::of(&work(id)).expect("it is not deep");
    let digest = unit_digest(&expected.digest, scene.job, unit.priority, unit.max_retries);
    assert_eq!(row.digest, Some(digest), "the journal knows what was added");
    let stored = scene.repository.inputs(unit.key).expect("inputs can be read");
    assert_eq!((stored.content_hash, stored.prompt_hash), (expected.content_hash, expected.prompt_hash));
}
