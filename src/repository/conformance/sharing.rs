//! The same work once: who does it, who waits for it, and which answers are handed on.

use serde_json::{Value, json};

use super::scene::{Act, Scene, give_up, retry, work};
use crate::attempt::{AttemptKey, AttemptReport, Failure, FailureKind, Next, OutputFile};
use crate::chain::Hash;
use crate::job::NewJob;
use crate::lease::{Claim, Lease};
use crate::repository::{By, Claimant, RepositoryError, Shared, SharedBy, Submitted};
use crate::same_work::{Parameters, WorkKey};
use crate::unit::{UnitKey, UnitOptions, UnitStatus};

cases![
    of_those_who_need_the_same_one_does_it,
    an_answer_is_handed_on_to_whoever_needs_the_same,
    what_ends_without_an_answer_is_done_by_whoever_asks_next,
    an_answer_that_is_not_whole_is_not_handed_on,
    what_was_purged_answers_nobody,
    a_unit_that_is_tried_again_takes_up_its_own_work,
    a_success_that_nobody_wanted_any_more_is_an_answer_all_the_same,
    the_same_work_is_the_same_for_all_jobs_and_owners,
    who_has_lost_its_unit_has_no_work,
    an_answer_that_is_said_to_be_anothers_is_that_ones,
    an_answer_is_anothers_by_its_hashes_also_after_a_purge,
];

/// What is to be done with a prompt.
fn key(prompt: &str) -> WorkKey {
    WorkKey::of("suite", &Parameters::of(&Value::Null), &UnitOptions::default(), prompt)
}

fn share(scene: &Scene<'_>, lease: &Lease) -> Shared {
    scene.repository.share(lease, &key("the same")).expect("the lease is held")
}

/// The attempt of a lease, as others are told of it.
fn by(claim: &Claim) -> SharedBy {
    let Lease { job_id, unit_id, .. } = &claim.lease;
    SharedBy { job_id: *job_id, unit_id: unit_id.clone(), attempt: claim.lease.attempt() }
}

fn answer() -> AttemptReport {
    AttemptReport::completed().output("Paris").result(json!({ "capital": "Paris", "surely": 0.1 }))
}

fn purge(scene: &Scene<'_>) {
    scene.advance(super::scene::SECOND);
    scene.repository.purge(scene.now(), &By::whom("suite")).expect("what ended can be purged");
}

fn of_those_who_need_the_same_one_does_it(scene: &Scene<'_>) {
    let (a, b, c) = (scene.processing("a"), scene.processing("b"), scene.assigned("c"));
    assert_eq!(share(scene, &a.lease), Shared::Yours);
    assert_eq!(share(scene, &b.lease), Shared::InFlight(by(&a)));
    assert_eq!(share(scene, &c.lease), Shared::InFlight(by(&a)), "also before it has begun");
    assert_eq!(share(scene, &a.lease), Shared::Yours, "sent again");
    let other = scene.repository.share(&b.lease, &key("something else")).expect("the lease is held");
    assert_eq!(other, Shared::Yours);
}

fn an_answer_is_handed_on_to_whoever_needs_the_same(scene: &Scene<'_>) {
    let (a, b) = (scene.processing("a"), scene.processing("b"));
    assert_eq!(share(scene, &a.lease), Shared::Yours);
    scene.finish(&a.lease, &answer());
    for claim in [&b, &scene.processing("c")] {
        assert_eq!(share(scene, &claim.lease), Shared::Answered(by(&a)));
        let report = answer().answer_of(a.lease.attempt());
        let closed = scene.finish(&claim.lease, &report);
        assert_eq!(closed.status, UnitStatus::Completed);
        assert_eq!(scene.attempt(&claim.lease).answer_of, Some(a.lease.attempt()));
        assert_eq!(scene.finish(&claim.lease, &report), closed, "sent again");
        assert_eq!(scene.unit(claim.unit.id.as_str()).result, scene.unit("a").result);
    }
    assert_eq!(scene.attempt(&a.lease).answer_of, None);
    let nothing = scene.processing("d");
    assert_eq!(scene.repository.share(&nothing.lease, &key("nothing")).expect("the lease is held"), Shared::Yours);
    scene.finish(&nothing.lease, &AttemptReport::completed());
    let told = scene.repository.share(&scene.processing("e").lease, &key("nothing"));
    assert_eq!(told.expect("the lease is held"), Shared::Answered(by(&nothing)), "nothing is an answer too");
}

fn what_ends_without_an_answer_is_done_by_whoever_asks_next(scene: &Scene<'_>) {
    let timed_out = || AttemptReport::timed_out(Failure::new(FailureKind::TIMED_OUT, "too slow"), Next::GiveUp);
    let ends: [Act; 6] = [
        |scene, lease| _ = scene.finish(lease, &retry()),
        |scene, lease| _ = scene.finish(lease, &give_up().output("I cannot help with that.")),
        |scene, lease| _ = scene.finish(lease, &AttemptReport::cancelled()),
        |scene, lease| _ = scene.release(lease, None, "given back"),
        |scene, lease| scene.cancel(lease.unit_id.as_str()),
        |scene, _| drop(scene.lose_all()),
    ];
    let mut before = scene.processing("first");
    assert_eq!(share(scene, &before.lease), Shared::Yours);
    scene.finish(&before.lease, &timed_out());
    for (number, end) in ends.into_iter().enumerate() {
        before = scene.processing(&format!("unit-{number}"));
        assert_eq!(share(scene, &before.lease), Shared::Yours, "what the one before left, end {number}");
        let waiting = scene.processing(&format!("waiting-{number}"));
        assert_eq!(share(scene, &waiting.lease), Shared::InFlight(by(&before)), "end {number}");
        end(scene, &before.lease);
        if scene.attempt(&before.lease).outcome.is_none() {
            scene.finish(&before.lease, &AttemptReport::cancelled());
        }
        // Who lost its own lease as well asks no more.
        if scene.status(waiting.unit.id.as_str()).is_leased() {
            assert_eq!(share(scene, &waiting.lease), Shared::Yours, "end {number}");
            scene.finish(&waiting.lease, &give_up());
        }
    }
}

fn an_answer_that_is_not_whole_is_not_handed_on(scene: &Scene<'_>) {
    let file = OutputFile { path: "out.txt".to_owned(), size_bytes: 3, hash: Hash::of(b"out") };
    let mut lossy = answer();
    lossy.messages_lost = 1;
    for (id, report) in [("a", answer().output_file(file)), ("b", lossy)] {
        let claim = scene.processing(id);
        assert_eq!(share(scene, &claim.lease), Shared::Yours);
        scene.finish(&claim.lease, &report);
    }
    let last = scene.processing("c");
    assert_eq!(share(scene, &last.lease), Shared::Yours);
    scene.finish(&last.lease, &answer());
    assert_eq!(share(scene, &scene.processing("d").lease), Shared::Answered(by(&last)));
}

fn what_was_purged_answers_nobody(scene: &Scene<'_>) {
    let a = scene.processing("a");
    assert_eq!(share(scene, &a.lease), Shared::Yours);
    scene.finish(&a.lease, &answer());
    let b = scene.processing("b");
    assert_eq!(share(scene, &b.lease), Shared::Answered(by(&a)));
    purge(scene);
    assert_eq!(share(scene, &b.lease), Shared::Yours);
    assert_eq!(share(scene, &scene.processing("c").lease), Shared::InFlight(by(&b)));
}

fn a_unit_that_is_tried_again_takes_up_its_own_work(scene: &Scene<'_>) {
    let first = scene.processing("a");
    assert_eq!(share(scene, &first.lease), Shared::Yours);
    scene.finish(&first.lease, &retry());
    let second = scene.claim();
    assert_eq!((second.unit.id.as_str(), share(scene, &second.lease)), ("a", Shared::Yours));
    scene.finish(&second.lease, &retry());
    let b = scene.processing("b");
    assert_eq!(share(scene, &b.lease), Shared::Yours);
    let third = scene.claim();
    assert_eq!(share(scene, &third.lease), Shared::InFlight(by(&b)), "another has taken it up first");
}

fn a_success_that_nobody_wanted_any_more_is_an_answer_all_the_same(scene: &Scene<'_>) {
    let a = scene.processing("a");
    assert_eq!(share(scene, &a.lease), Shared::Yours);
    scene.cancel("a");
    assert_eq!(scene.finish(&a.lease, &answer()).status, UnitStatus::Cancelled);
    assert_eq!(share(scene, &scene.processing("b").lease), Shared::Answered(by(&a)));
    scene.requeue("a").expect("it was cancelled");
    let again = scene.claim();
    assert_eq!((again.unit.id.as_str(), share(scene, &again.lease)), ("a", Shared::Answered(by(&a))));
}

fn the_same_work_is_the_same_for_all_jobs_and_owners(scene: &Scene<'_>) {
    let a = scene.processing("a");
    assert_eq!(share(scene, &a.lease), Shared::Yours);
    let job = scene.repository.create_job(&NewJob::named("another")).expect("a new name").id;
    let claimant = Claimant::new(scene.other_owner(), super::scene::TTL);
    let submitted = scene.repository.submit(job, &work("a"), &claimant, &scene.slot());
    let Ok(Submitted::Claimed(other)) = submitted else { panic!("a due unit was not claimed: {submitted:?}") };
    assert_eq!(share(scene, &other.lease), Shared::InFlight(by(&a)));
    scene.finish(&a.lease, &answer());
    assert_eq!(share(scene, &other.lease), Shared::Answered(by(&a)));
}

fn who_has_lost_its_unit_has_no_work(scene: &Scene<'_>) {
    let a = scene.processing("a");
    scene.lose_all();
    let refused = scene.repository.share(&a.lease, &key("the same"));
    assert_refused!(refused, RepositoryError::Stale { .. });
    let again = scene.claim();
    assert_eq!(share(scene, &again.lease), Shared::Yours);
}

fn an_answer_that_is_said_to_be_anothers_is_that_ones(scene: &Scene<'_>) {
    let (a, b, open) = (scene.processing("a"), scene.processing("b"), scene.processing("open"));
    scene.finish(&a.lease, &answer());
    let failed = scene.processing("failed");
    scene.finish(&failed.lease, &give_up().output("Paris").result(json!({ "capital": "Paris", "surely": 0.1 })));
    let before = scene.snapshot("b");
    let of = a.lease.attempt();
    let nobodys = AttemptKey { unit: UnitKey(4_711), number: 1 };
    for report in [
        AttemptReport::completed().answer_of(of),
        answer().output("Lyon").answer_of(of),
        answer().result(json!({ "capital": "Lyon" })).answer_of(of),
        answer().answer_of(AttemptKey { number: 2, ..of }),
        answer().answer_of(nobodys),
        answer().answer_of(open.lease.attempt()),
        answer().answer_of(failed.lease.attempt()),
        answer().answer_of(b.lease.attempt()),
    ] {
        assert_refused!(scene.repository.finish(&b.lease, &report), RepositoryError::Invalid(_));
        assert_eq!(scene.snapshot("b"), before, "{report:?}");
    }
    scene.finish(&b.lease, &answer().answer_of(of));
}

fn an_answer_is_anothers_by_its_hashes_also_after_a_purge(scene: &Scene<'_>) {
    let (a, b) = (scene.processing("a"), scene.processing("b"));
    scene.finish(&a.lease, &answer());
    purge(scene);
    let wrong = answer().output("Lyon").answer_of(a.lease.attempt());
    assert_refused!(scene.repository.finish(&b.lease, &wrong), RepositoryError::Invalid(_));
    scene.finish(&b.lease, &answer().answer_of(a.lease.attempt()));
    purge(scene);
    assert_eq!(scene.attempt(&b.lease).answer_of, Some(a.lease.attempt()), "it is known for ever");
}
