//! Units that are wanted after all, many at once: `requeue_all`.

use super::scene::{SECOND, Scene, give_up, work};
use crate::attempt::{AttemptReport, Failure, FailureKind, Next};
use crate::job::{JobId, NewJob};
use crate::repository::{By, Intake, RepositoryError, Requeued, UnitFilter};
use crate::unit::{Change, NewUnit, UnitStatus};

cases![
    what_failed_or_was_cancelled_waits_again_with_its_history_and_nothing_else_does,
    only_what_the_filter_means_is_requeued,
    a_unit_is_requeued_once_and_what_is_left_the_next_time,
    what_was_purged_is_skipped_and_counted,
    more_units_than_a_page_has_are_requeued,
    a_filter_for_what_cannot_be_requeued_is_refused,
];

fn requeue_all(scene: &Scene<'_>, filter: UnitFilter) -> Requeued {
    scene.repository.requeue_all(&filter, &By::new("ada", "once more")).expect("the filter is for what ended badly")
}

fn requeued(units: u64) -> Requeued {
    Requeued { units, ..Requeued::default() }
}

fn what_failed_or_was_cancelled_waits_again_with_its_history_and_nothing_else_does(scene: &Scene<'_>) {
    // 003-F68.
    for &status in UnitStatus::ALL {
        scene.bring(status.name(), status);
    }
    let before: Vec<_> = UnitStatus::ALL.iter().map(|status| scene.snapshot(status.name())).collect();
    let attempts = |status: UnitStatus| scene.attempts(status.name());
    let attempts_before = [UnitStatus::Failed, UnitStatus::Cancelled].map(attempts);
    assert_eq!(requeue_all(scene, UnitFilter::job(scene.job)), requeued(2));

    for (&status, before) in UnitStatus::ALL.iter().zip(before) {
        let id = status.name();
        if !matches!(status, UnitStatus::Failed | UnitStatus::Cancelled) {
            assert_eq!(scene.snapshot(id), before, "{status}");
            continue;
        }
        let unit = scene.unit(id);
        assert_eq!((unit.status, unit.attempts_used, unit.attempt_count), (UnitStatus::Pending, 0, 1), "{status}");
        assert_eq!((unit.failure, unit.completed_at), (None, None), "{status}");
        let row = scene.last_row(id);
        assert_eq!((row.change, row.from), (Change::Requeue, Some(status)));
        assert_eq!((row.actor.as_str(), row.reason.as_deref()), ("ada", Some("once more")));
    }
    assert_eq!([UnitStatus::Failed, UnitStatus::Cancelled].map(attempts), attempts_before, "the history is kept");
}

fn only_what_the_filter_means_is_requeued(scene: &Scene<'_>) {
    // 003-F68.
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    scene.repository.insert(other, &[work("elsewhere")], Intake::Open).expect("it is valid");
    scene.repository.cancel(other, "elsewhere", &By::whom("suite")).expect("it waits");
    scene.bring_unit(work("page").unit_type("page"), UnitStatus::Failed);
    scene.bring("failed", UnitStatus::Failed);
    scene.bring("cancelled", UnitStatus::Cancelled);
    let slow = scene.assigned("slow").lease;
    scene.finish(&slow, &AttemptReport::timed_out(Failure::new(FailureKind::TIMED_OUT, "an hour"), Next::GiveUp));

    let here = || UnitFilter::job(scene.job);
    assert_eq!(requeue_all(scene, here().unit_type("page")), requeued(1));
    assert_eq!(requeue_all(scene, here().failure_kind(FailureKind::TIMED_OUT.as_str())), requeued(1));
    assert_eq!((scene.status("page"), scene.status("slow")), (UnitStatus::Pending, UnitStatus::Pending));
    assert_eq!((scene.status("failed"), scene.status("cancelled")), (UnitStatus::Failed, UnitStatus::Cancelled));
    assert_eq!(requeue_all(scene, here().status(UnitStatus::Cancelled)), requeued(1));
    assert_eq!(scene.status("failed"), UnitStatus::Failed);
    assert_eq!(requeue_all(scene, here().status(UnitStatus::Failed).status(UnitStatus::Cancelled)), requeued(1));
    let elsewhere = scene.repository.unit(other, "elsewhere").expect("it exists");
    assert_eq!(elsewhere.status, UnitStatus::Cancelled);
    assert_eq!(requeue_all(scene, UnitFilter::default()), requeued(1), "without a job it means every one");
}

fn a_unit_is_requeued_once_and_what_is_left_the_next_time(scene: &Scene<'_>) {
    // 003-F68.
    for id in ["a", "b"] {
        scene.bring(id, UnitStatus::Failed);
    }
    assert_eq!(requeue_all(scene, UnitFilter::job(scene.job)), requeued(2));
    assert_eq!(requeue_all(scene, UnitFilter::job(scene.job)), requeued(0), "they wait");
    let lease = scene.claim().lease;
    scene.finish(&lease, &give_up());
    assert_eq!(requeue_all(scene, UnitFilter::job(scene.job)), requeued(1), "one has failed again");
    let rows = scene.journal_of("a");
    assert_eq!(rows.iter().filter(|row| row.change == Change::Requeue).count(), 2);
}

fn what_was_purged_is_skipped_and_counted(scene: &Scene<'_>) {
    scene.bring("purged", UnitStatus::Failed);
    scene.advance(SECOND);
    scene.repository.purge(scene.now(), &By::whom("suite")).expect("it can be purged");
    scene.bring("whole", UnitStatus::Failed);
    let before = scene.snapshot("purged");
    let told = requeue_all(scene, UnitFilter::job(scene.job));
    assert_eq!((told.units, told.purged, told.changed, told.skipped()), (1, 1, 0, 1));
    assert_eq!(scene.snapshot("purged"), before);
    assert_eq!(scene.status("whole"), UnitStatus::Pending);
}

fn more_units_than_a_page_has_are_requeued(scene: &Scene<'_>) {
    let units: Vec<NewUnit> = (0..230).map(|number| work(&format!("unit-{number}"))).collect();
    scene.repository.queue_units(scene.job, &units).expect("all are valid");
    units.iter().for_each(|unit| scene.cancel(&unit.id));
    assert_eq!(requeue_all(scene, UnitFilter::job(scene.job)), requeued(230));
    let counts = scene.repository.counts(scene.job).expect("units can be counted");
    assert_eq!((counts.pending, counts.total()), (230, 230));
}

fn a_filter_for_what_cannot_be_requeued_is_refused(scene: &Scene<'_>) {
    scene.bring("failed", UnitStatus::Failed);
    let before = scene.snapshot("failed");
    let by = By::whom("suite");
    for &status in UnitStatus::ALL {
        if matches!(status, UnitStatus::Failed | UnitStatus::Cancelled) {
            continue;
        }
        let filter = UnitFilter::job(scene.job).status(UnitStatus::Failed).status(status);
        let error = scene.repository.requeue_all(&filter, &by).expect_err("some of it cannot be");
        let reason = format!("a unit that is {status} cannot be requeued, only FAILED or CANCELLED");
        assert_eq!(error.to_string(), reason);
        assert_refused!(Err::<(), _>(error), RepositoryError::Invalid(_));
    }
    let nowhere = UnitFilter::job(JobId(4_711));
    assert_refused!(scene.repository.requeue_all(&nowhere, &by), RepositoryError::UnknownJob(JobId(4_711)));
    assert_eq!(scene.snapshot("failed"), before);
}
