//! Units that start as they are claimed: `submit` and `claim` of a claimant that is `starting`.

use super::scene::{SECOND, Scene, TTL, ids, retry, work};
use crate::attempt::{AttemptReport, Beginning, Outcome, Provenance};
use crate::conversation::Message;
use crate::job::NewJob;
use crate::lease::Claim;
use crate::repository::{ClaimRequest, Claimant, JournalEntry, RepositoryError, Scope, Submitted};
use crate::unit::{Change, NewUnit, UnitStatus};

cases![
    a_submission_that_starts_leaves_the_record_of_one_that_is_started,
    a_claim_that_starts_leaves_the_record_of_one_that_is_started,
    what_must_be_rendered_first_is_not_started_by_its_claim,
    a_prompt_that_comes_with_the_submission_starts_it,
    only_what_is_claimed_is_started,
    to_start_again_what_its_claim_started_changes_nothing,
    what_was_claimed_and_started_is_found_by_its_token,
    a_lost_attempt_that_its_claim_started_is_followed_by_another,
    messages_that_were_refused_since_are_counted_at_the_end,
    a_claim_that_starts_is_refused_as_any_other,
];

fn provenance() -> Provenance {
    Provenance { model: Some("large".to_owned()), ..Provenance::of("suite") }
}

fn starting(scene: &Scene<'_>) -> Claimant {
    Claimant::new(scene.owner, TTL).starting(provenance())
}

fn submit(scene: &Scene<'_>, unit: &NewUnit) -> Submitted {
    scene.repository.submit(scene.job, unit, &starting(scene), &scene.slot()).expect("it can be submitted")
}

fn submitted(scene: &Scene<'_>, unit: &NewUnit) -> Claim {
    match submit(scene, unit) {
        Submitted::Claimed(claim) => *claim,
        other => panic!("a due unit was not claimed: {other:?}"),
    }
}

fn claim_up_to(scene: &Scene<'_>, count: usize) -> Vec<Claim> {
    let request = ClaimRequest::new(scene.job, starting(scene), Scope::Pending, scene.slots(count));
    scene.repository.claim(&request).expect("a living owner's fresh workers can claim")
}

/// What a row says apart from its place.
fn said(row: &JournalEntry) -> impl PartialEq + std::fmt::Debug + use<> {
    let JournalEntry { at, attempt_number, fence, change, from, to, .. } = *row;
    (at, attempt_number, fence, change, from, to, row.actor.clone(), row.reason.clone(), row.message_count, row.head)
}

/// Asserts that two units, of the same moment and prompt, were claimed and started alike.
fn assert_alike(scene: &Scene<'_>, at_once: &Claim, step_by_step: &Claim) {
    let [rows, expected] = [at_once, step_by_step].map(|claim| scene.journal_of(claim.unit.id.as_str()).split_off(1));
    assert_eq!(rows.iter().map(said).collect::<Vec<_>>(), expected.iter().map(said).collect::<Vec<_>>());
    assert_eq!(rows.iter().map(|row| row.digest).collect::<Vec<_>>(), [None, expected[1].digest]);
    assert_eq!(rows[1].seq, rows[0].seq + 1, "nothing comes between a claim and its start");

    let [attempt, expected] = [at_once, step_by_step].map(|claim| scene.attempt(&claim.lease));
    assert_eq!((attempt.assigned_at, attempt.started_at), (expected.assigned_at, expected.started_at));
    assert_eq!((attempt.fence, &attempt.provenance), (expected.fence, &Some(provenance())));
    assert_eq!(attempt.provenance, expected.provenance);

    let unit = scene.unit(at_once.unit.id.as_str());
    assert_eq!(at_once.unit, unit);
    assert_eq!((unit.status, unit.started_at), (UnitStatus::Processing, Some(scene.now())));
    assert_eq!((&unit.rendered_prompt, unit.attempt_count), (&unit.prompt, 1));
    let [result, expected] = [at_once, step_by_step].map(|claim| {
        scene.repository.attempt_result(claim.lease.attempt()).expect("an attempt that was claimed is kept")
    });
    assert_eq!(result, expected, "nothing was rendered");
}

fn a_submission_that_starts_leaves_the_record_of_one_that_is_started(scene: &Scene<'_>) {
    let step_by_step = scene.assigned("a");
    let beginning = Beginning::default().provenance(provenance());
    scene.repository.start(&step_by_step.lease, &beginning).expect("a live lease can start");
    let fresh = submitted(scene, &work("b"));
    assert_alike(scene, &fresh, &step_by_step);
    scene.insert(work("c"));
    let found = submitted(scene, &work("c"));
    assert_alike(scene, &found, &step_by_step);
    for claim in [fresh, found] {
        let closed = scene.finish(&claim.lease, &AttemptReport::completed());
        assert_eq!(closed.status, UnitStatus::Completed);
    }
}

fn a_claim_that_starts_leaves_the_record_of_one_that_is_started(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c"]);
    scene.advance(SECOND);
    let step_by_step = scene.claim();
    let beginning = Beginning::default().provenance(provenance());
    scene.repository.start(&step_by_step.lease, &beginning).expect("a live lease can start");
    let claims = claim_up_to(scene, 9);
    assert_eq!(ids(&claims), ["b", "c"]);
    for claim in &claims {
        assert_alike(scene, claim, &step_by_step);
    }
}

fn what_must_be_rendered_first_is_not_started_by_its_claim(scene: &Scene<'_>) {
    let templated = |id: &str| NewUnit::new(id).template("do {{ it }}");
    let assert_waits_for_its_prompt = |claim: &Claim| {
        let unit = scene.repository.unit(claim.lease.job_id, claim.unit.id.as_str()).expect("it exists");
        assert_eq!((&claim.unit, unit.status), (&unit, UnitStatus::Assigned));
        let attempt = scene.attempt(&claim.lease);
        assert_eq!((attempt.started_at, attempt.provenance), (None, None));
        let beginning = Beginning::default().rendered_prompt("do this").provenance(provenance());
        scene.repository.start(&claim.lease, &beginning).expect("a live lease can start");
        assert_eq!(scene.attempt(&claim.lease).provenance, Some(provenance()));
    };
    assert_waits_for_its_prompt(&submitted(scene, &templated("submitted")));
    scene.insert(templated("found"));
    assert_waits_for_its_prompt(&submitted(scene, &templated("found")));

    // In one request there may be both.
    scene.insert(templated("templated"));
    scene.insert(work("prompted"));
    scene.insert(work("both").template("do {{ it }}"));
    scene.accept(NewUnit::new("bare"));
    let claims = claim_up_to(scene, 9);
    assert_eq!(ids(&claims), ["templated", "prompted", "both", "bare"]);
    let statuses: Vec<UnitStatus> = claims.iter().map(|claim| claim.unit.status).collect();
    use UnitStatus::{Assigned, Processing};
    assert_eq!(statuses, [Assigned, Processing, Processing, Assigned]);
    assert_waits_for_its_prompt(&claims[0]);
    assert_waits_for_its_prompt(&claims[3]);

    let job = NewJob::named("with a template").template("do {{ it }}");
    let job = scene.repository.create_job(&job).expect("a new name").id;
    let of_job = scene.repository.submit(job, &NewUnit::new("a"), &starting(scene), &scene.slot());
    match of_job.expect("it can be submitted") {
        Submitted::Claimed(claim) => assert_waits_for_its_prompt(&claim),
        other => panic!("a due unit was not claimed: {other:?}"),
    }
}

fn a_prompt_that_comes_with_the_submission_starts_it(scene: &Scene<'_>) {
    scene.insert(NewUnit::new("a"));
    let claim = submitted(scene, &work("a"));
    assert_eq!((claim.unit.status, claim.unit.prompt.as_deref()), (UnitStatus::Processing, Some("do a")));
    let rows = scene.journal_of("a");
    let changes: Vec<Change> = rows.iter().map(|row| row.change).collect();
    assert_eq!(changes, [Change::Insert, Change::AddPrompt, Change::Claim, Change::Start]);
    assert_ne!(rows[3].digest, rows[1].digest, "one is about the prompt, the other about what it was started with");

    // One that it has already needs not be brought again.
    scene.insert(work("b"));
    assert_eq!(submitted(scene, &NewUnit::new("b")).unit.status, UnitStatus::Processing);
}

fn only_what_is_claimed_is_started(scene: &Scene<'_>) {
    let later = work("later").not_before(scene.now() + TTL);
    for _ in 0..2 {
        assert!(matches!(submit(scene, &later), Submitted::Waiting(unit) if unit.started_at.is_none()));
    }
    assert_eq!(scene.status("later"), UnitStatus::Pending);

    let assigned = scene.assigned("assigned");
    let before = scene.snapshot("assigned");
    assert!(matches!(submit(scene, &work("assigned")), Submitted::Running(unit) if *unit == assigned.unit));
    assert_eq!(scene.snapshot("assigned"), before);
}

fn to_start_again_what_its_claim_started_changes_nothing(scene: &Scene<'_>) {
    let claim = submitted(scene, &work("a"));
    let before = scene.snapshot("a");
    scene.advance(SECOND);
    let beginning = Beginning::default().rendered_prompt("something else").provenance(Provenance::of("another"));
    scene.repository.start(&claim.lease, &beginning).expect("it was started");
    assert_eq!(scene.snapshot("a"), before);
}

fn what_was_claimed_and_started_is_found_by_its_token(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b"]);
    let request = ClaimRequest::new(scene.job, starting(scene), Scope::Pending, scene.slots(2));
    let claims = scene.repository.claim(&request).expect("two wait");
    let claimed = scene.repository.claimed(scene.owner, request.claimant.token).expect("claims can be looked up");
    assert_eq!(claimed, claims);
    assert!(claimed.iter().all(|claim| claim.unit.status == UnitStatus::Processing), "{claimed:?}");
}

fn a_lost_attempt_that_its_claim_started_is_followed_by_another(scene: &Scene<'_>) {
    let lost = submitted(scene, &work("a"));
    scene.advance(TTL);
    let second = claim_up_to(scene, 1).pop().expect("the lease ran out");
    assert_eq!(scene.attempt(&lost.lease).outcome, Some(Outcome::Lost));
    assert_eq!((second.lease.attempt_number, second.lease.fence), (2, 3));
    assert_eq!((second.unit.status, second.unit.started_at), (UnitStatus::Processing, Some(scene.now())));
    scene.finish(&second.lease, &retry());
    let third = submitted(scene, &work("a"));
    assert_eq!((third.lease.attempt_number, third.unit.status), (3, UnitStatus::Processing));
    let changes: Vec<Change> = scene.journal_of("a").iter().map(|row| row.change).collect();
    use Change::{Claim, Expire, Insert, Retry, Start};
    assert_eq!(changes, [Insert, Claim, Start, Expire, Claim, Start, Retry, Claim, Start]);
}

fn messages_that_were_refused_since_are_counted_at_the_end(scene: &Scene<'_>) {
    let claim = submitted(scene, &work("a"));
    // It may be told now or by the next verb that waits.
    let _ = scene.repository.append(&claim.lease, 7, &[Message::assistant("behind a gap")]);
    scene.finish(&claim.lease, &AttemptReport::completed());
    assert_eq!(scene.attempt(&claim.lease).messages_lost, 1);
}

fn a_claim_that_starts_is_refused_as_any_other(scene: &Scene<'_>) {
    scene.insert(work("a"));
    let one = scene.slot();
    let slots = vec![one.clone(), one];
    let request = ClaimRequest::new(scene.job, starting(scene), Scope::Pending, slots);
    assert_refused!(scene.repository.claim(&request), RepositoryError::Illegal { .. });
    assert_eq!((scene.status("a"), scene.journal().len()), (UnitStatus::Pending, 1));
}
