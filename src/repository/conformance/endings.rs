//! How attempts and units end, and begin again: `finish`, `release`, `cancel`, `requeue`.

use std::time::Duration;

use serde_json::json;

use super::scene::{Act, SECOND, Scene, TTL, give_up, retry, retry_after, work};
use crate::attempt::{
    AttemptReport, Beginning, Failure, FailureKind, Next, Outcome, OutputFile, Progress, RELEASE_LIMIT,
};
use crate::chain::Hash;
use crate::conversation::{Message, to_json};
use crate::money::{Charge, Money, Tokens};
use crate::repository::{By, CancelAnswer, Closed, RepositoryError, Scope};
use crate::unit::{Change, UnitStatus};

cases![
    a_completed_attempt_completes_its_unit_with_all_it_found,
    what_was_never_started_cannot_complete,
    a_failed_attempt_keeps_what_it_said_and_cost,
    a_failure_is_followed_by_as_many_retries_as_the_unit_has,
    a_failure_that_is_final_fails_the_unit,
    an_attempt_that_took_too_long_is_timed_out,
    an_executor_that_stops_unasked_gives_its_unit_back,
    a_finish_that_is_sent_again_gets_the_same_answer,
    a_finish_that_is_sent_again_after_others_went_on_gets_the_same_answer,
    a_release_that_is_sent_again_gets_the_same_answer,
    a_release_frees_the_unit_and_counts_as_no_attempt,
    a_release_counts_after_a_hundred,
    a_cancel_says_what_it_found,
    after_a_cancel_request_every_ending_is_cancelled,
    what_failed_or_was_cancelled_can_be_done_after_all,
    only_what_failed_or_was_cancelled_is_requeued,
    a_late_report_stays_on_its_attempt_with_its_charges,
    a_late_report_that_is_sent_again_changes_nothing,
    another_report_is_not_the_same_sent_again,
    a_released_attempt_can_still_report,
    every_change_leads_where_the_machine_says,
];

fn a_completed_attempt_completes_its_unit_with_all_it_found(scene: &Scene<'_>) {
    // 003-F43, 004-F25 to 004-F31.
    let lease = scene.assigned("a").lease;
    scene.repository.start(&lease, &Beginning::default().rendered_prompt("do a, please")).expect("it is held");
    scene.repository.append(&lease, 0, &[Message::assistant("done")]).expect("it is held");
    scene.advance(3 * SECOND);
    let file = OutputFile { path: "out/ü.txt".into(), size_bytes: 9, hash: Hash::of(b"x") };
    let tokens = Tokens { input: 10, output: 20, ..Tokens::default() };
    let report = AttemptReport::completed()
        .result(json!({ "capital": "Paris", "odd": "\0" }))
        .output("Paris\0")
        .output_file(file.clone())
        .session("s1")
        .charge(Charge::reported("m", tokens, Money::from_nanos(42)));
    let closed = scene.finish(&lease, &report);
    assert_eq!((closed.status, closed.change, closed.not_before), (UnitStatus::Completed, Change::Complete, None));

    let unit = scene.unit("a");
    assert_eq!((unit.status, unit.completed_at, unit.failure), (UnitStatus::Completed, Some(scene.now()), None));
    assert_eq!((unit.result, unit.output.as_deref()), (report.result.clone(), Some("Paris\0")));
    assert_eq!((unit.output_files, unit.session_id.as_deref()), (vec![file], Some("s1")));
    assert_eq!((unit.rendered_prompt.as_deref(), unit.execution_time), (Some("do a, please"), Some(3 * SECOND)));
    assert_eq!((unit.cost.amount, unit.cost.unpriced, unit.tokens), (Money::from_nanos(42), 0, tokens));
    assert_eq!((unit.attempts_used, unit.accepted_by, unit.fence), (1, None, lease.fence));

    let attempt = scene.attempt(&lease);
    assert_eq!((attempt.outcome, attempt.is_counted), (Some(Outcome::Completed), true));
    assert_eq!((attempt.ended_at, attempt.message_count, attempt.messages_lost), (Some(scene.now()), Some(1), 0));
    let result = scene.repository.attempt_result(lease.attempt()).expect("it can be read");
    let expected = report.result.as_ref().map(|value| to_json(value).expect("it is not deep").into());
    assert_eq!((result.result, result.late_result, result.purged), (expected, None, None));
    let row = scene.last_row("a");
    assert_eq!((row.change, row.attempt_number, row.reason), (Change::Complete, Some(1), None));
    assert_eq!(row.actor, scene.owner.to_string());
}

fn what_was_never_started_cannot_complete(scene: &Scene<'_>) {
    let lease = scene.assigned("a").lease;
    let before = scene.snapshot("a");
    let finished = scene.repository.finish(&lease, &AttemptReport::completed());
    assert_refused!(finished, RepositoryError::Illegal { status: "ASSIGNED", change: "COMPLETE", .. });
    assert_eq!(scene.snapshot("a"), before);
    scene.repository.finish(&lease, &give_up()).expect("but it can fail");
}

fn a_failed_attempt_keeps_what_it_said_and_cost(scene: &Scene<'_>) {
    // 004-F38.
    let first = scene.processing("a").lease;
    scene.repository.append(&first, 0, &[Message::user("hello")]).expect("it is held");
    let mut report = retry().output("half").charge(Charge::unpriced("m", Tokens { input: 5, ..Tokens::default() }));
    report.messages_lost = 2;
    scene.finish(&first, &report);
    let unit = scene.unit("a");
    assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Pending, Some("half")));
    assert_eq!((unit.failure, unit.completed_at, unit.attempts_used), (None, None, 1));
    assert_eq!(scene.last_row("a").reason.as_deref(), Some("executor"));

    let second = scene.claim();
    assert_eq!((second.unit.output, second.unit.started_at), (None, None), "a unit shows its last attempt");
    assert_eq!((second.unit.tokens.input, second.unit.cost.unpriced), (5, 1), "but the cost of all");
    let attempt = scene.attempt(&first);
    assert_eq!((attempt.outcome, attempt.failure), (Some(Outcome::Failed), report.ending.failure().cloned()));
    assert_eq!((attempt.message_count, attempt.messages_lost), (Some(1), 2));
    let result = scene.repository.attempt_result(first.attempt()).expect("it can be read");
    assert_eq!(result.output.as_deref(), Some("half"));
}

fn a_failure_is_followed_by_as_many_retries_as_the_unit_has(scene: &Scene<'_>) {
    scene.insert(work("a").max_retries(2));
    for expected in [Change::Retry, Change::Retry, Change::Fail] {
        let lease = scene.claim().lease;
        let closed = scene.finish(&lease, &retry_after(SECOND));
        assert_eq!(closed.change, expected);
        assert_eq!(closed.not_before.is_some(), expected == Change::Retry);
        scene.advance(SECOND);
    }
    let unit = scene.unit("a");
    assert_eq!((unit.status, unit.attempt_count, unit.attempts_used), (UnitStatus::Failed, 3, 3));
    assert_eq!((unit.failure, unit.not_before), (retry().ending.failure().cloned(), None));
    assert_eq!(scene.claim_up_to(1), []);
}

fn a_failure_that_is_final_fails_the_unit(scene: &Scene<'_>) {
    // 003-F44, 004-F31.
    for status in [UnitStatus::Assigned, UnitStatus::Processing] {
        let id = status.name();
        let lease = scene.bring(id, status).lease;
        let closed = scene.finish(&lease, &give_up());
        assert_eq!((closed.status, closed.change), (UnitStatus::Failed, Change::Fail));
        let unit = scene.unit(id);
        assert_eq!(unit.failure.as_ref(), give_up().ending.failure());
        assert_eq!((unit.status, unit.completed_at), (UnitStatus::Failed, Some(scene.now())));
    }
}

fn an_attempt_that_took_too_long_is_timed_out(scene: &Scene<'_>) {
    let failure = Failure::new(FailureKind::TIMED_OUT, "10 minutes");
    scene.insert(work("a").max_retries(1));
    for expected in [Change::Retry, Change::Fail] {
        let lease = scene.claim().lease;
        scene.start(&lease);
        let report = AttemptReport::timed_out(failure.clone(), Next::Retry { after: Duration::ZERO });
        assert_eq!(scene.finish(&lease, &report).change, expected);
        assert_eq!(scene.attempt(&lease).outcome, Some(Outcome::TimedOut));
    }
    assert_eq!(scene.unit("a").failure, Some(failure));
}

fn an_executor_that_stops_unasked_gives_its_unit_back(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let closed = scene.finish(&lease, &AttemptReport::cancelled());
    assert_eq!((closed.status, closed.change), (UnitStatus::Pending, Change::Release));
    let attempt = scene.attempt(&lease);
    assert_eq!((attempt.outcome, attempt.is_counted), (Some(Outcome::Cancelled), false));
    assert_eq!(scene.unit("a").attempts_used, 0);
}

fn a_finish_that_is_sent_again_gets_the_same_answer(scene: &Scene<'_>) {
    let charge = |amount| Charge::reported("m", Tokens::default(), Money::from_nanos(amount));
    let reports = [
        AttemptReport::completed().result(json!([1])).output("1").session("s").charge(charge(2)),
        retry().charge(charge(3)),
        give_up().output("x"),
        AttemptReport::timed_out(Failure::new(FailureKind::TIMED_OUT, "slow"), Next::GiveUp),
        AttemptReport::cancelled(),
    ];
    for (number, report) in reports.iter().enumerate() {
        let id = format!("unit-{number}");
        let lease = scene.processing(&id).lease;
        // What was recorded before is replaced by the report, and neither confuses the second sending.
        scene.repository.progress(&lease, &Progress::default().charge(charge(1))).expect("it is held");
        scene.repository.partial(&lease, "par").expect("it is held");
        let first = scene.finish(&lease, report);
        let before = scene.snapshot(&id);
        scene.advance(SECOND);
        let second = scene.repository.finish(&lease, report).expect("it is its own attempt");
        assert_same(&first, &second);
        assert_eq!(scene.snapshot(&id), before);
    }
}

fn a_finish_that_is_sent_again_after_others_went_on_gets_the_same_answer(scene: &Scene<'_>) {
    let first = scene.processing("a").lease;
    let report = retry().output("half");
    let closed = scene.finish(&first, &report);
    let second = scene.claim().lease;
    scene.start(&second);
    let before = scene.snapshot("a");
    assert_same(&closed, &scene.repository.finish(&first, &report).expect("it is its own attempt"));
    assert_eq!(scene.snapshot("a"), before);
    scene.repository.finish(&second, &AttemptReport::completed()).expect("the second attempt is not disturbed");
    assert_same(&closed, &scene.repository.finish(&first, &report).expect("it is its own attempt"));
    assert_eq!(scene.status("a"), UnitStatus::Completed);
}

fn a_release_that_is_sent_again_gets_the_same_answer(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    let first = scene.release(&lease, Some(SECOND), "no time");
    let before = scene.snapshot("a");
    let release = || scene.repository.release(&lease, Some(SECOND), "no time").expect("it is its own attempt");
    assert_same(&first, &release());
    assert_eq!(scene.snapshot("a"), before);
    scene.advance(SECOND);
    scene.claim();
    let before = scene.snapshot("a");
    assert_same(&first, &release());
    assert_eq!(scene.snapshot("a"), before, "the next attempt is not disturbed");
}

fn a_release_frees_the_unit_and_counts_as_no_attempt(scene: &Scene<'_>) {
    // 003-F33.
    for status in [UnitStatus::Assigned, UnitStatus::Processing] {
        let id = status.name();
        let lease = scene.bring(id, status).lease;
        let closed = scene.release(&lease, None, "shutting down");
        assert_eq!((closed.status, closed.change, closed.not_before), (UnitStatus::Pending, Change::Release, None));
        let (unit, attempt) = (scene.unit(id), scene.attempt(&lease));
        assert_eq!((unit.attempt_count, unit.attempts_used), (1, 0));
        assert_eq!((attempt.outcome, attempt.is_counted), (Some(Outcome::Released), false));
        let row = scene.last_row(id);
        assert_eq!((row.actor, row.reason.as_deref()), (scene.owner.to_string(), Some("shutting down")));
    }
}

fn a_release_counts_after_a_hundred(scene: &Scene<'_>) {
    let slot = scene.slot();
    let assign = || scene.assign_to(scene.owner, work("a").max_retries(2), &slot).lease;
    let release = || scene.release(&assign(), None, "again");
    scene.finish(&assign(), &retry());
    for _ in 0..RELEASE_LIMIT {
        assert_eq!(release().change, Change::Release);
    }
    assert_eq!(scene.unit("a").attempts_used, 1, "only the retry counts");
    assert_eq!(release().change, Change::Release);
    assert_eq!(scene.unit("a").attempts_used, 2, "one too many is an attempt");
    assert_eq!(release().change, Change::Fail);
    let unit = scene.unit("a");
    assert_eq!((unit.status, unit.attempt_count), (UnitStatus::Failed, RELEASE_LIMIT + 3));
    assert_eq!(unit.failure.map(|failure| failure.kind), Some(FailureKind::RELEASED));

    scene.requeue("a").expect("it is FAILED");
    assert_eq!(release().change, Change::Release);
    assert_eq!(scene.unit("a").attempts_used, 0, "a requeue counts afresh");
}

fn a_cancel_says_what_it_found(scene: &Scene<'_>) {
    // 003-F46.
    let by = By::new("ada", "the input was wrong");
    for &status in UnitStatus::ALL {
        let id = status.name();
        scene.bring(id, status);
        let expected = match status {
            UnitStatus::Pending => CancelAnswer::Cancelled,
            UnitStatus::Assigned | UnitStatus::Processing => CancelAnswer::Requested,
            UnitStatus::CancelRequested => CancelAnswer::AlreadyRequested,
            ended => CancelAnswer::AlreadyEnded(ended),
        };
        let before = scene.snapshot(id);
        assert_eq!(scene.repository.cancel(scene.job, id, &by).expect("it exists"), expected);
        let has_changed = matches!(expected, CancelAnswer::Cancelled | CancelAnswer::Requested);
        assert_eq!(scene.snapshot(id) != before, has_changed, "{status}");
        if has_changed {
            let row = scene.last_row(id);
            assert_eq!((row.change, row.actor, row.reason), (Change::Cancel, by.actor.clone(), by.reason.clone()));
            let attempt = (status != UnitStatus::Pending).then_some(1);
            assert_eq!(row.attempt_number, attempt, "{status}");
        }
        let again = match expected {
            CancelAnswer::Cancelled => CancelAnswer::AlreadyEnded(UnitStatus::Cancelled),
            CancelAnswer::Requested => CancelAnswer::AlreadyRequested,
            unchanged => unchanged,
        };
        assert_eq!(scene.repository.cancel(scene.job, id, &by).expect("it exists"), again, "{status}");
    }
    let cancelled = scene.unit("PENDING");
    assert_eq!((cancelled.completed_at, cancelled.accepted_by), (Some(scene.now()), Some(scene.owner)));
}

fn after_a_cancel_request_every_ending_is_cancelled(scene: &Scene<'_>) {
    // 003-F47.
    let slow = || Failure::new(FailureKind::TIMED_OUT, "slow");
    let reports = [
        AttemptReport::completed().output("done"),
        AttemptReport::cancelled(),
        retry(),
        give_up(),
        AttemptReport::timed_out(slow(), Next::Retry { after: TTL }),
    ];
    for (number, report) in reports.iter().enumerate() {
        let id = format!("unit-{number}");
        let lease = scene.processing(&id).lease;
        scene.cancel(&id);
        scene.repository.flush(&lease).expect("the lease goes on until the worker answers");
        let closed = scene.finish(&lease, report);
        assert_eq!((closed.status, closed.change), (UnitStatus::Cancelled, Change::EndCancelled));
        assert_eq!(scene.attempt(&lease).outcome, Some(report.ending.outcome()), "the attempt says how it was");
        let unit = scene.unit(&id);
        assert_eq!((unit.output, unit.failure), (report.output.clone(), None));
        assert_eq!(unit.completed_at, Some(scene.now()));
    }
    let lease = scene.bring("released", UnitStatus::CancelRequested).lease;
    let closed = scene.release(&lease, Some(TTL), "no time");
    assert_eq!((closed.status, closed.not_before), (UnitStatus::Cancelled, None));
    assert_eq!(scene.attempt(&lease).outcome, Some(Outcome::Released));
}

fn what_failed_or_was_cancelled_can_be_done_after_all(scene: &Scene<'_>) {
    // 003-F68.
    for status in [UnitStatus::Failed, UnitStatus::Cancelled] {
        let id = status.name();
        let first = scene.bring(id, status).lease;
        let by = By::new("ada", "the provider is back");
        scene.repository.requeue(scene.job, id, &by).expect("it can be requeued");
        let unit = scene.unit(id);
        assert_eq!((unit.status, unit.attempt_count, unit.attempts_used), (UnitStatus::Pending, 1, 0));
        assert_eq!((unit.failure, unit.completed_at, unit.accepted_by), (None, None, None));
        assert_eq!((unit.not_before, unit.fence), (None, first.fence));
        let row = scene.last_row(id);
        assert_eq!((row.change, row.from, row.actor, row.reason), (Change::Requeue, Some(status), by.actor, by.reason));

        let second = scene.claim_as(scene.other_owner(), Scope::Pending, 1).pop().expect("anybody may do it");
        assert_eq!((second.lease.unit, second.lease.attempt_number), (first.unit, 2));
        assert_eq!(second.lease.fence, first.fence + 1);
        assert_eq!(scene.attempts(id).len(), 2, "the first attempt is kept");
    }
}

fn only_what_failed_or_was_cancelled_is_requeued(scene: &Scene<'_>) {
    for &status in UnitStatus::ALL {
        if status.after(Change::Requeue).is_some() {
            continue;
        }
        let id = status.name();
        scene.bring(id, status);
        let before = scene.snapshot(id);
        assert_refused!(scene.requeue(id), RepositoryError::Illegal { change: "REQUEUE", .. });
        assert_eq!(scene.snapshot(id), before);
    }
}

fn a_late_report_stays_on_its_attempt_with_its_charges(scene: &Scene<'_>) {
    let first = scene.processing("a").lease;
    let tokens = Tokens { output: 7, ..Tokens::default() };
    scene.repository.progress(&first, &Progress::default().session("s1")).expect("it is held");
    scene.lose_all();
    let second = scene.claim().lease;
    scene.start(&second);
    let before = (scene.unit("a"), scene.attempts("a"));
    let report = AttemptReport::completed().output("too late").session("s2").charge(Charge::reported(
        "m",
        tokens,
        Money::from_nanos(9),
    ));
    assert_refused!(scene.repository.finish(&first, &report), RepositoryError::Stale { attempt_number: 1, .. });

    let mut unit = scene.unit("a");
    assert_eq!((unit.cost.amount, unit.tokens), (Money::from_nanos(9), tokens), "what was paid was paid");
    (unit.cost, unit.tokens) = (before.0.cost, before.0.tokens);
    assert_eq!((unit, scene.attempts("a")), before, "nothing else of the unit changed");
    let result = scene.repository.attempt_result(first.attempt()).expect("it can be read");
    let expected = to_json(&report).expect("it is not deep");
    assert_eq!((result.late_result, result.output), (Some(expected.into()), None));
    let row = scene.last_row("a");
    assert_eq!(
        (row.change, row.from, row.to),
        (Change::LateReport, Some(UnitStatus::Processing), UnitStatus::Processing)
    );
    assert_eq!((row.attempt_number, row.fence, row.actor), (Some(1), second.fence, scene.owner.to_string()));
    assert_eq!((row.head, row.message_count), (None, None));

    let costs = scene.repository.costs(Some(scene.job)).expect("costs can be read");
    assert_eq!(costs.total().amount, Money::from_nanos(9));
    scene.repository.finish(&second, &AttemptReport::completed()).expect("the second attempt is not disturbed");
}

fn a_late_report_that_is_sent_again_changes_nothing(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    scene.lose_all();
    let report =
        |output: &str| AttemptReport::completed().output(output).charge(Charge::unpriced("m", Tokens::default()));
    assert_refused!(scene.repository.finish(&lease, &report("one")), RepositoryError::Stale { .. });
    let before = scene.journal();
    assert_refused!(scene.repository.finish(&lease, &report("one")), RepositoryError::Stale { .. });
    assert_eq!(scene.journal(), before);
    assert_refused!(scene.repository.finish(&lease, &report("two")), RepositoryError::Stale { .. });
    assert_eq!(scene.journal().len(), before.len() + 1, "another report is another row");
}

fn another_report_is_not_the_same_sent_again(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    scene.finish(&lease, &give_up());
    let failed = |message: &str| AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, message), Next::GiveUp);
    for report in [failed("otherwise"), AttemptReport::completed(), give_up().output("and this")] {
        let row_count = scene.journal().len();
        assert_refused!(scene.repository.finish(&lease, &report), RepositoryError::Stale { .. });
        assert_eq!(scene.journal().len(), row_count + 1, "it is a late report: {report:?}");
    }
    assert_eq!(scene.attempt(&lease).failure.as_ref(), give_up().ending.failure());
}

fn a_released_attempt_can_still_report(scene: &Scene<'_>) {
    let lease = scene.processing("a").lease;
    scene.release(&lease, None, "shutting down");
    let report = AttemptReport::completed().output("done after all");
    assert_refused!(scene.repository.finish(&lease, &report), RepositoryError::Stale { .. });
    let result = scene.repository.attempt_result(lease.attempt()).expect("it can be read");
    assert!(result.late_result.is_some(), "{result:?}");
    assert_eq!(scene.status("a"), UnitStatus::Pending);
}

/// Every verb on a unit in every status: it goes where the machine says, or stays where it is.
fn every_change_leads_where_the_machine_says(scene: &Scene<'_>) {
    // 003-F41 to 003-F47, 004-F31.
    let changes: [(Change, Act); 9] = [
        (Change::Claim, |scene, _| drop(scene.claim_up_to(1))),
        (Change::Start, |scene, lease| drop(scene.repository.start(lease, &Beginning::default()))),
        (Change::Complete, |scene, lease| {
            drop(scene.repository.finish(lease, &AttemptReport::completed().output("x")));
        }),
        (Change::Retry, |scene, lease| drop(scene.repository.finish(lease, &retry().output("x")))),
        (Change::Fail, |scene, lease| drop(scene.repository.finish(lease, &give_up().output("x")))),
        (Change::Release, |scene, lease| drop(scene.repository.release(lease, None, "x"))),
        (Change::Expire, |scene, _| drop(scene.lose_all())),
        (Change::Cancel, |scene, lease| scene.cancel(lease.unit_id.as_str())),
        (Change::Requeue, |scene, lease| drop(scene.requeue(lease.unit_id.as_str()))),
    ];
    for &from in UnitStatus::ALL {
        for (change, attempt) in changes {
            let id = format!("{change} {from}");
            let lease = scene.bring(&id, from).lease;
            attempt(scene, &lease);
            let expected = match from.after(change) {
                Some(to) => to,
                // Whatever ends the attempt, the machine knows it as another change.
                None if from == UnitStatus::CancelRequested && is_ending(change) => UnitStatus::Cancelled,
                None => from,
            };
            assert_eq!(scene.status(&id), expected, "{change} of a unit that is {from}");
            put_away(scene, &id);
        }
    }
}

fn is_ending(change: Change) -> bool {
    matches!(change, Change::Complete | Change::Retry | Change::Fail | Change::Release | Change::Expire)
}

/// Ends a unit, so that nothing finds it any more.
fn put_away(scene: &Scene<'_>, id: &str) {
    scene.cancel(id);
    if scene.status(id).is_leased() {
        scene.lose_all();
    }
    assert!(scene.status(id).is_terminal(), "{id} could not be put away");
}

/// The answer to a call that was sent again need not repeat when the unit is due.
fn assert_same(first: &Closed, second: &Closed) {
    assert_eq!((first.status, first.change), (second.status, second.change));
}
