//! Jobs and units come in: `create_job`, `insert`, `submit`.

use std::time::Duration;

use chrono::TimeDelta;
use serde_json::json;

use super::accepting::assert_prompt_was_added;
use super::scene::{Scene, TTL, ids, too_deep, work};
use crate::attempt::AttemptReport;
use crate::job::{JobId, NewJob};
use crate::lease::OwnerId;
use crate::money::Money;
use crate::repository::{By, Claimant, Insertion, Intake, RepositoryError, Scope, Submitted, UnitFilter, actor};
use crate::unit::{Change, Inputs, NewUnit, UnitId, UnitStatus, content_hash, prompt_hash, unit_digest};
use crate::worker::WorkerStatus;

cases![
    a_job_is_created_once_and_found_by_its_name,
    a_job_of_the_same_name_with_another_content_is_a_conflict,
    a_job_needs_a_name_and_settings_that_can_be_read_again,
    what_is_not_there_is_unknown,
    a_new_unit_waits_with_all_that_it_was_given,
    what_makes_a_unit_is_kept_byte_for_byte,
    an_insert_answers_for_each_unit_in_order,
    an_insert_that_is_sent_again_changes_nothing,
    a_unit_is_queued_under_the_id_of_its_caller_with_all_that_an_agent_needs,
    a_unit_that_is_queued_again_is_found_whatever_became_of_it,
    a_unit_that_is_queued_with_another_content_is_a_conflict_and_stays_as_it_is,
    units_are_queued_all_together,
    priority_limits_and_times_are_not_content,
    type_payload_template_options_and_prompt_are_content,
    a_missing_prompt_differs_from_nothing,
    one_invalid_unit_refuses_the_whole_insert,
    an_id_that_is_none_is_refused,
    an_odd_id_names_a_unit_like_any_other,
    the_same_id_in_two_jobs_is_two_units,
    an_absent_unit_is_submitted_and_claimed_in_one_step,
    a_submission_with_another_content_is_a_conflict,
    a_submission_takes_a_unit_that_waits,
    a_submission_brings_the_prompt_that_was_missing,
    a_submission_that_is_not_due_waits,
    a_submission_that_is_not_due_brings_the_missing_prompt_too,
    a_submission_attaches_to_a_unit_that_is_being_executed,
    a_submission_shows_how_its_unit_ended,
    a_submission_that_is_sent_again_finds_its_claim,
    a_submission_is_not_too_late_for_a_queue_timeout,
    a_submission_for_a_busy_worker_stores_nothing,
];

const NO_JOB: JobId = JobId(4_711);
const NO_OWNER: OwnerId = OwnerId(4_711);

fn a_job_is_created_once_and_found_by_its_name(scene: &Scene<'_>) {
    let new = NewJob::named("summaries")
        .template("Summarise: {{ text }}")
        .budget(Money::from_nanos(7))
        .settings(json!({ "depth": [1, { "ü": null }] }));
    let job = scene.repository.create_job(&new).expect("a new name");
    assert!(job.matches(&new), "{job:?}");
    assert_eq!(job.created_at, scene.now());
    scene.advance(TTL);
    assert_eq!(scene.repository.create_job(&new).expect("the same content"), job);
    assert_eq!(scene.repository.job(job.id).expect("it exists"), job);
    assert_eq!(scene.repository.job_named("summaries").expect("names can be looked up"), Some(job));
    assert_eq!(scene.repository.job_named("summarie").expect("names can be looked up"), None);
}

fn a_job_of_the_same_name_with_another_content_is_a_conflict(scene: &Scene<'_>) {
    let job = scene.repository.create_job(&NewJob::named("a").template("x")).expect("a new name");
    let others = [
        NewJob::named("a"),
        NewJob::named("a").template("y"),
        NewJob::named("a").template("x").budget(Money::ZERO),
        NewJob::named("a").template("x").settings(json!({})),
    ];
    for other in others {
        assert_refused!(scene.repository.create_job(&other), RepositoryError::Conflict { .. });
    }
    assert_eq!(scene.repository.job_named("a").expect("names can be looked up"), Some(job));
}

fn a_job_needs_a_name_and_settings_that_can_be_read_again(scene: &Scene<'_>) {
    for name in no_names() {
        assert_refused!(scene.repository.create_job(&NewJob::named(name)), RepositoryError::Invalid(_));
    }
    let deep = NewJob::named("deep").settings(too_deep());
    assert_refused!(scene.repository.create_job(&deep), RepositoryError::Invalid(_));
    for name in ODD_NAMES {
        let job = scene.repository.create_job(&NewJob::named(*name)).expect("an odd name is a name");
        assert_eq!(scene.repository.job(job.id).expect("it exists").name, *name);
    }
}

fn what_is_not_there_is_unknown(scene: &Scene<'_>) {
    let Scene { repository, job, .. } = *scene;
    let (by, slot) = (By::whom("suite"), scene.slot());
    let claimant = Claimant::new(scene.owner, TTL);
    assert_refused!(repository.job(NO_JOB), RepositoryError::UnknownJob(NO_JOB));
    assert_refused!(repository.insert(NO_JOB, &[work("a")], Intake::Open), RepositoryError::UnknownJob(NO_JOB));
    assert_refused!(repository.submit(NO_JOB, &work("a"), &claimant, &slot), RepositoryError::UnknownJob(NO_JOB));
    let mut request = scene.request(scene.owner, Scope::Pending, vec![slot.clone()]);
    request.job_id = NO_JOB;
    assert_refused!(repository.claim(&request), RepositoryError::UnknownJob(NO_JOB));

    assert_refused!(repository.unit(job, "a"), RepositoryError::UnknownUnit { .. });
    assert_refused!(repository.cancel(job, "a", &by), RepositoryError::UnknownUnit { .. });
    assert_refused!(repository.requeue(job, "a", &by), RepositoryError::UnknownUnit { .. });

    let stranger = Claimant::new(NO_OWNER, TTL);
    assert_refused!(repository.submit(job, &work("a"), &stranger, &slot), RepositoryError::UnknownOwner(NO_OWNER));
    let request = scene.request(NO_OWNER, Scope::Pending, vec![slot]);
    assert_refused!(repository.claim(&request), RepositoryError::UnknownOwner(NO_OWNER));
    assert_refused!(repository.renew(NO_OWNER, TTL), RepositoryError::UnknownOwner(NO_OWNER));
    assert_refused!(repository.let_go(NO_OWNER), RepositoryError::UnknownOwner(NO_OWNER));
    assert_refused!(repository.end_owner(NO_OWNER), RepositoryError::UnknownOwner(NO_OWNER));
}

fn a_new_unit_waits_with_all_that_it_was_given(scene: &Scene<'_>) {
    // 003-F56: the prompt is stored with the unit.
    let new = full_unit().priority(-7).max_retries(9).queue_timeout(TTL);
    let key = scene.insert(new.clone());
    let unit = scene.unit("full");
    assert_eq!((unit.key, unit.job_id, unit.id.as_str()), (key, scene.job, "full"));
    assert_eq!((unit.status, unit.fence, unit.attempt_count), (UnitStatus::Pending, 0, 0));
    assert_eq!((unit.unit_type, unit.payload, unit.prompt), (new.unit_type, new.payload, new.prompt));
    assert_eq!((unit.template, unit.options), (new.template, new.options));
    assert_eq!((unit.priority, unit.max_retries, unit.attempts_used), (-7, 9, 0));
    assert_eq!((unit.accepted_by, unit.not_before, unit.created_at), (None, None, scene.now()));
    assert_eq!((unit.assigned_at, unit.started_at, unit.completed_at), (None, None, None));
    assert_eq!((unit.worker_id, unit.rendered_prompt, unit.result, unit.output), (None, None, None, None));

    let row = scene.last_row("full");
    assert_eq!((row.change, row.from, row.to), (Change::Insert, None, UnitStatus::Pending));
    assert_eq!((row.actor.as_str(), row.attempt_number, row.fence), (actor::CALLER, None, 0));
}

fn what_makes_a_unit_is_kept_byte_for_byte(scene: &Scene<'_>) {
    let long = "ß".repeat(1_000_000);
    for (id, prompt) in [("empty", ""), ("nul", "a\0b"), ("odd", "\u{202e}\u{feff}✓\r\n'\"\\"), ("long", &long)] {
        let new = full_unit().prompt(prompt).payload(json!({ "a\0\u{e000}": [prompt, 1.5e300, u64::MAX, i64::MIN] }));
        let new = NewUnit { id: id.into(), ..new };
        let key = scene.insert(new.clone());
        let unit = scene.unit(id);
        assert!(unit.prompt == new.prompt && unit.payload == new.payload, "{id} came back otherwise");

        let expected = Inputs::of(&new).expect("it is not deep");
        let digest = unit_digest(&expected.digest, scene.job, new.priority, new.max_retries);
        assert_eq!(scene.last_row(id).digest, Some(digest), "{id}");
        let stored = scene.repository.inputs(key).expect("inputs can be read");
        assert!(stored.payload == Some(expected.payload) && stored.options == expected.options, "{id}: other bytes");
        let hash = content_hash(
            new.unit_type.as_deref(),
            &stored.payload.unwrap_or_default(),
            new.template.as_deref(),
            &stored.options,
        );
        assert_eq!((stored.content_hash, stored.prompt_hash), (hash, Some(prompt_hash(prompt))), "{id}");
        assert!(stored.prompt == new.prompt && stored.template == new.template && stored.unit_type == new.unit_type);
    }
}

fn an_insert_answers_for_each_unit_in_order(scene: &Scene<'_>) {
    let known = scene.insert(work("known"));
    let units = [work("a"), work("known"), work("b"), work("a"), work("b").payload(1), work("known").prompt("other")];
    let answers = scene.repository.insert(scene.job, &units, Intake::Open).expect("all are valid");
    let (a, b) = (scene.unit("a").key, scene.unit("b").key);
    assert_eq!(
        answers,
        [
            Insertion::Inserted(a),
            Insertion::AlreadyExists(known),
            Insertion::Inserted(b),
            Insertion::AlreadyExists(a),
            Insertion::Conflict(b),
            Insertion::Conflict(known),
        ]
    );
    assert!(known < a && a < b, "keys grow with every insert");
    assert_eq!(scene.repository.insert(scene.job, &[], Intake::Open).expect("nothing is valid"), []);
}

fn an_insert_that_is_sent_again_changes_nothing(scene: &Scene<'_>) {
    for (number, &status) in UnitStatus::ALL.iter().enumerate() {
        let id = format!("unit-{number}");
        let key = scene.bring(&id, status).lease.unit;
        let before = scene.snapshot(&id);
        for intake in [Intake::Open, Intake::AcceptedBy(scene.owner)] {
            let answers = scene.repository.insert(scene.job, &[work(&id)], intake).expect("it is valid");
            assert_eq!(answers, [Insertion::AlreadyExists(key)], "{status}");
        }
        assert_eq!(scene.snapshot(&id), before);
    }
}

fn a_unit_is_queued_under_the_id_of_its_caller_with_all_that_an_agent_needs(scene: &Scene<'_>) {
    // 003-F39, 003-F40.
    let unit = NewUnit::new("run 7/ü").prompt("Review it.\n").workspace_dir("/srv/run 7").max_iterations(20);
    let answer = scene.repository.queue_unit(scene.job, &unit).expect("it is valid");
    let stored = scene.unit("run 7/ü");
    assert_eq!(answer, Insertion::Inserted(stored.key));
    assert_eq!((stored.status, stored.accepted_by), (UnitStatus::Pending, None), "it waits for anybody");
    assert_eq!((stored.prompt.as_deref(), &stored.options), (Some("Review it.\n"), &unit.options));

    // Whoever claims it gets the same.
    let claims = scene.claim_as(scene.other_owner(), Scope::Pending, 1);
    let claimed = &claims.first().expect("it waits for anybody").unit;
    assert_eq!((claimed.id.as_str(), claimed.prompt.as_deref()), ("run 7/ü", Some("Review it.\n")));
    assert_eq!(claimed.options.workspace_dir.as_deref(), Some("/srv/run 7"));
    assert_eq!(claimed.options.max_iterations, Some(20));
}

fn a_unit_that_is_queued_again_is_found_whatever_became_of_it(scene: &Scene<'_>) {
    // 003-F39: whoever does not know whether it was stored may say it again.
    for &status in UnitStatus::ALL {
        let key = scene.bring(status.name(), status).lease.unit;
        let before = scene.snapshot(status.name());
        let answer = scene.repository.queue_unit(scene.job, &work(status.name())).expect("it is the same");
        assert_eq!(answer, Insertion::AlreadyExists(key), "{status}");
        assert_eq!(scene.snapshot(status.name()), before, "{status}");
    }
}

fn a_unit_that_is_queued_with_another_content_is_a_conflict_and_stays_as_it_is(scene: &Scene<'_>) {
    // 003-F40: an id stands for one unit.
    scene.insert(work("a").workspace_dir("/srv/a").max_iterations(1));
    let before = scene.snapshot("a");
    let others = [
        work("a").workspace_dir("/srv/a").max_iterations(2),
        work("a").workspace_dir("/srv/b").max_iterations(1),
        work("a").workspace_dir("/srv/a").max_iterations(1).prompt("another"),
    ];
    for other in &others {
        let error = scene.repository.queue_unit(scene.job, other).expect_err("it is another one");
        assert_eq!(error.to_string(), "unit `a` already exists with another content");
        assert_refused!(Err::<(), _>(error), RepositoryError::Conflict { .. });
    }
    assert_refused!(scene.repository.queue_unit(NO_JOB, &work("a")), RepositoryError::UnknownJob(NO_JOB));
    assert_refused!(scene.repository.queue_unit(scene.job, &work("")), RepositoryError::Invalid(_));
    assert_eq!(scene.snapshot("a"), before);
}

fn units_are_queued_all_together(scene: &Scene<'_>) {
    // 003-F39.
    use Insertion::{AlreadyExists, Conflict, Inserted};
    let first = scene.insert(work("a"));
    let units = [work("b"), work("a"), work("a").prompt("another"), work("b")];
    let answers = scene.repository.queue_units(scene.job, &units).expect("all are valid");
    let second = scene.unit("b").key;
    assert_eq!(answers, [Inserted(second), AlreadyExists(first), Conflict(first), AlreadyExists(second)]);
    assert_refused!(scene.repository.queue_units(scene.job, &[work("c"), work("")]), RepositoryError::Invalid(_));
    assert_refused!(scene.repository.unit(scene.job, "c"), RepositoryError::UnknownUnit { .. });
    assert_eq!(scene.repository.queue_units(scene.job, &[]).expect("nothing is valid"), []);
}

fn priority_limits_and_times_are_not_content(scene: &Scene<'_>) {
    let key = scene.insert(work("a"));
    let before = scene.snapshot("a");
    let later = scene.now() + TimeDelta::days(1);
    let others =
        [work("a").priority(9), work("a").max_retries(0), work("a").queue_timeout(TTL), work("a").not_before(later)];
    let answers = scene.repository.insert(scene.job, &others, Intake::Open).expect("all are valid");
    assert_eq!(answers, [Insertion::AlreadyExists(key); 4]);
    assert_eq!(scene.snapshot("a"), before);
}

fn type_payload_template_options_and_prompt_are_content(scene: &Scene<'_>) {
    let key = scene.insert(full_unit());
    let before = scene.snapshot("full");
    let others = [
        full_unit().unit_type("other"),
        full_unit().payload(json!({})),
        full_unit().template("other"),
        full_unit().timeout(2 * TTL),
        full_unit().prompt("other"),
    ];
    let answers = scene.repository.insert(scene.job, &others, Intake::Open).expect("all are valid");
    assert_eq!(answers, [Insertion::Conflict(key); 5]);
    assert_eq!(scene.snapshot("full"), before);
}

fn a_missing_prompt_differs_from_nothing(scene: &Scene<'_>) {
    let without = scene.insert(NewUnit::new("without"));
    let with = scene.insert(work("with"));
    let units = [work("without"), NewUnit::new("with")];
    let answers = scene.repository.insert(scene.job, &units, Intake::Open).expect("all are valid");
    assert_eq!(answers, [Insertion::AlreadyExists(without), Insertion::AlreadyExists(with)]);
    assert_eq!(scene.unit("without").prompt, None, "an open insert changes nothing of a unit that exists");
    assert_eq!(scene.unit("with").prompt.as_deref(), Some("do with"));
}

fn one_invalid_unit_refuses_the_whole_insert(scene: &Scene<'_>) {
    let invalid = [work(""), work("b").payload(too_deep())];
    for invalid in invalid {
        let units = [work("a"), invalid];
        assert_refused!(scene.repository.insert(scene.job, &units, Intake::Open), RepositoryError::Invalid(_));
    }
    let page = scene.repository.units(&UnitFilter::default(), 0, 10).expect("units can be read");
    assert_eq!(page.items, [], "nothing of a refused insert is stored");
    assert_eq!(scene.journal(), []);
}

fn an_id_that_is_none_is_refused(scene: &Scene<'_>) {
    let (claimant, slot) = (Claimant::new(scene.owner, TTL), scene.slot());
    for id in no_names() {
        let unit = work(&id);
        let inserted = scene.repository.insert(scene.job, std::slice::from_ref(&unit), Intake::Open);
        assert_refused!(inserted, RepositoryError::Invalid(_));
        assert_refused!(scene.repository.submit(scene.job, &unit, &claimant, &slot), RepositoryError::Invalid(_));
        let read = scene.repository.unit(scene.job, &id).expect_err("there is no such unit");
        assert!(read.is_rejection() && read.to_string().len() < 1_000, "{read}");
    }
    assert_eq!(scene.journal(), []);
}

fn an_odd_id_names_a_unit_like_any_other(scene: &Scene<'_>) {
    let longest = "x".repeat(UnitId::LIMIT_BYTES);
    for id in ODD_NAMES.iter().copied().chain([&*longest]) {
        scene.insert(work(id));
        assert_eq!(scene.unit(id).id.as_str(), id);
        assert_eq!(ids(&scene.claim_up_to(9)), [id]);
        scene.cancel(id);
        assert_eq!(scene.status(id), UnitStatus::CancelRequested);
    }
}

fn the_same_id_in_two_jobs_is_two_units(scene: &Scene<'_>) {
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    let key = scene.insert(work("a"));
    let answers = scene.repository.insert(other, &[work("a").payload(1)], Intake::Open).expect("it is valid");
    assert!(matches!(answers[..], [Insertion::Inserted(other)] if other != key), "{answers:?}");
    scene.cancel("a");
    assert_eq!(scene.repository.unit(other, "a").expect("it exists").status, UnitStatus::Pending);
}

fn an_absent_unit_is_submitted_and_claimed_in_one_step(scene: &Scene<'_>) {
    // 004-F3, 004-F4, 004-F17, 004-F18, 004-F19: the unit is ASSIGNED, its worker is on record and BUSY.
    let slot = scene.slot();
    let claim = scene.assign_to(scene.owner, full_unit(), &slot);
    let unit = scene.unit("full");
    assert_eq!(claim.unit, unit, "a claim shows the unit as it is now");
    assert_eq!((unit.status, unit.fence, unit.attempt_count), (UnitStatus::Assigned, 1, 1));
    assert_eq!((unit.accepted_by, unit.worker_id), (Some(scene.owner), Some(slot.worker_id.clone())));
    assert_eq!(scene.worker(&slot).status, WorkerStatus::Busy);
    let rows = scene.journal_of("full");
    assert_eq!(rows.iter().map(|row| row.change).collect::<Vec<_>>(), [Change::Insert, Change::Claim]);
    assert!(rows.iter().all(|row| row.actor == scene.owner.to_string()), "{rows:?}");
}

fn a_submission_with_another_content_is_a_conflict(scene: &Scene<'_>) {
    let (claimant, slot) = (Claimant::new(scene.owner, TTL), scene.slot());
    for (number, &status) in UnitStatus::ALL.iter().enumerate() {
        let id = format!("unit-{number}");
        scene.bring(&id, status);
        let before = scene.snapshot(&id);
        for other in [work(&id).payload(1), work(&id).prompt("other")] {
            let submitted = scene.repository.submit(scene.job, &other, &claimant, &slot);
            assert_refused!(submitted, RepositoryError::Conflict { .. });
        }
        assert_eq!(scene.snapshot(&id), before);
    }
}

fn a_submission_takes_a_unit_that_waits(scene: &Scene<'_>) {
    let open = scene.insert(work("open"));
    let accepted = scene.accept(work("accepted"));
    assert_eq!(scene.assigned("accepted").lease.unit, accepted);
    let claim = scene.assigned("open");
    assert_eq!((claim.lease.unit, claim.unit.accepted_by), (open, Some(scene.owner)));
}

fn a_submission_brings_the_prompt_that_was_missing(scene: &Scene<'_>) {
    scene.insert(NewUnit::new("a"));
    let claim = scene.assigned("a");
    assert_eq!(claim.unit.prompt.as_deref(), Some("do a"));
    assert_prompt_was_added(scene, "a");
    let rows = scene.journal_of("a");
    let changes: Vec<Change> = rows.iter().map(|row| row.change).collect();
    assert_eq!(changes, [Change::Insert, Change::AddPrompt, Change::Claim]);
}

fn a_submission_that_is_not_due_waits(scene: &Scene<'_>) {
    let (claimant, slot) = (Claimant::new(scene.owner, TTL), scene.slot());
    let later = scene.now() + TTL;
    scene.insert(work("known").not_before(later));
    for id in ["known", "new"] {
        let unit = work(id).not_before(later);
        let submitted = scene.repository.submit(scene.job, &unit, &claimant, &slot).expect("it is valid");
        let Submitted::Waiting(waiting) = submitted else { panic!("{id} is not due: {submitted:?}") };
        assert_eq!(*waiting, scene.unit(id));
        assert_eq!((waiting.status, waiting.accepted_by), (UnitStatus::Pending, Some(scene.owner)));
        assert_eq!(waiting.not_before, Some(later));
    }
    assert_eq!(scene.claim_as(scene.owner, Scope::Accepted, 2), []);
    scene.advance(TTL);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 2)), ["known", "new"]);
}

fn a_submission_that_is_not_due_brings_the_missing_prompt_too(scene: &Scene<'_>) {
    scene.insert(NewUnit::new("a").not_before(scene.now() + TTL));
    let (claimant, slot) = (Claimant::new(scene.owner, TTL), scene.slot());
    for _ in 0..2 {
        let submitted = scene.repository.submit(scene.job, &work("a"), &claimant, &slot).expect("it is valid");
        assert!(matches!(submitted, Submitted::Waiting(unit) if unit.prompt.as_deref() == Some("do a")));
    }
    assert_prompt_was_added(scene, "a");
    assert_eq!(scene.journal_of("a").len(), 2, "it is added once");
}

fn a_submission_attaches_to_a_unit_that_is_being_executed(scene: &Scene<'_>) {
    // 003-F2, 003-F29.
    let other = Claimant::new(scene.other_owner(), TTL);
    for (id, status) in [
        ("assigned", UnitStatus::Assigned),
        ("processing", UnitStatus::Processing),
        ("cancelling", UnitStatus::CancelRequested),
    ] {
        let busy = scene.slot();
        scene.assign_to(other.owner, work(&format!("busy {id}")), &busy);
        scene.bring(id, status);
        let before = scene.snapshot(id);
        // No unit is taken, so it does not matter that the worker could take none.
        let submitted = scene.repository.submit(scene.job, &work(id), &other, &busy).expect("it is valid");
        let Submitted::Running(unit) = submitted else { panic!("{id} is being executed: {submitted:?}") };
        assert_eq!(unit.status, status);
        assert_eq!(scene.snapshot(id), before);
    }
}

fn a_submission_shows_how_its_unit_ended(scene: &Scene<'_>) {
    let (claimant, slot) = (Claimant::new(scene.owner, TTL), scene.slot());
    for status in [UnitStatus::Completed, UnitStatus::Failed, UnitStatus::Cancelled] {
        let id = status.name();
        scene.bring(id, status);
        let before = scene.snapshot(id);
        let submitted = scene.repository.submit(scene.job, &work(id), &claimant, &slot).expect("it is valid");
        let Submitted::Finished(unit) = submitted else { panic!("{id} had ended: {submitted:?}") };
        assert_eq!(*unit, scene.unit(id));
        assert_eq!(scene.snapshot(id), before);
    }
}

fn a_submission_that_is_sent_again_finds_its_claim(scene: &Scene<'_>) {
    let (claimant, slot) = (Claimant::new(scene.owner, TTL), scene.slot());
    let submit = || scene.repository.submit(scene.job, &work("a"), &claimant, &slot).expect("it is valid");
    let Submitted::Claimed(claim) = submit() else { panic!("an absent unit is claimed") };
    let before = scene.snapshot("a");
    assert!(matches!(submit(), Submitted::Running(_)), "it is the sender's own");
    assert_eq!(scene.snapshot("a"), before);
    let found = scene.repository.claimed(scene.owner, claimant.token).expect("claims can be looked up");
    assert_eq!(found, [*claim]);
}

fn a_submission_is_not_too_late_for_a_queue_timeout(scene: &Scene<'_>) {
    let timeout = Duration::from_secs(5);
    scene.accept(work("a").queue_timeout(timeout));
    scene.advance(2 * timeout);
    let claim = scene.assigned("a");
    scene.repository.finish(&claim.lease, &AttemptReport::cancelled()).expect("it is given back");
    assert_eq!(scene.expire(), [], "it was claimed, so the queue timeout is over");
}

fn a_submission_for_a_busy_worker_stores_nothing(scene: &Scene<'_>) {
    let slot = scene.slot();
    scene.assign_to(scene.owner, work("a"), &slot);
    let claimant = Claimant::new(scene.owner, TTL);
    let submitted = scene.repository.submit(scene.job, &work("b"), &claimant, &slot);
    assert_refused!(submitted, RepositoryError::Illegal { .. });
    assert_refused!(scene.repository.unit(scene.job, "b"), RepositoryError::UnknownUnit { .. });
}

const ODD_NAMES: &[&str] = &["../x", "'; DROP TABLE work_units; --", "\"", "ü\u{202e}", " ", "%_*?", "-", "--flag"];

fn no_names() -> [String; 4] {
    [String::new(), "x".repeat(1_000_000), "a\0b".into(), "line\nbreak".into()]
}

fn full_unit() -> NewUnit {
    NewUnit::new("full")
        .unit_type("summary")
        .payload(json!({ "text": "…", "page": 17 }))
        .prompt("Summarise page 17.")
        .template("Summarise page {{ page }}.")
        .timeout(TTL)
        .max_cost(Money::from_nanos(5))
        .affinity_key("book")
        .workspace_dir("/tmp/book")
        .max_iterations(4)
        .idempotent()
}
