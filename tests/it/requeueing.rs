//! Many units are requeued while others are at work, and while the storage fails.

use std::sync::Arc;
use std::time::Duration;

use workcrew::repository::{By, ClaimRequest, Claimant, Scope, Slot, UnitFilter};
use workcrew::testing::{Fault, FaultyRepository, Gate, Verb};
use workcrew::unit::Change;
use workcrew::{
    Archive, AttemptReport, Failure, FailureKind, JobId, MemoryRepository, NewJob, NewUnit, Next, Repository,
    UnitStatus, WorkerId,
};

use crate::support;

/// A repository with FAILED units of these names, behind one that can fail.
fn failed_units(ids: &[&str]) -> (MemoryRepository, FaultyRepository, JobId) {
    let repository = MemoryRepository::new();
    let job = repository.create_job(&NewJob::named("job")).unwrap().id;
    let units: Vec<NewUnit> = ids.iter().map(|&id| NewUnit::new(id).prompt("Do it.")).collect();
    repository.queue_units(job, &units).unwrap();
    ids.iter().for_each(|id| fail(&repository, job, id));
    (repository.clone(), FaultyRepository::new(Arc::new(repository)), job)
}

/// Executes a unit that waits, and fails.
fn fail(repository: &MemoryRepository, job: JobId, id: &str) {
    let (owner, key) = (support::owner(repository, "test"), repository.unit(job, id).unwrap().key);
    let slots = vec![Slot::new(WorkerId::new("w1").unwrap()).for_unit(key)];
    let claimant = Claimant::new(owner, Duration::from_secs(60));
    let claims = repository.claim(&ClaimRequest::new(job, claimant, Scope::Pending, slots)).unwrap();
    let failure = Failure::new(FailureKind::EXECUTOR, "no luck");
    repository.finish(&claims[0].lease, &AttemptReport::failed(failure, Next::GiveUp)).unwrap();
    repository.end_owner(owner).unwrap();
}

fn times_requeued(repository: &MemoryRepository, job: JobId, id: &str) -> usize {
    let rows = repository.unit_journal(repository.unit(job, id).unwrap().key, 0, 100).unwrap().items;
    rows.iter().filter(|row| row.change == Change::Requeue).count()
}

#[test]
fn no_unit_is_requeued_twice_and_what_somebody_else_brought_back_is_skipped() {
    // 003-F68.
    let (repository, faulty, job) = failed_units(&["a", "b", "c"]);
    let by = By::whom("ada");
    let (before_a, before_b) = (Gate::closed(), Gate::closed());
    faulty.on(Verb::Requeue, Fault::Gate(before_a.clone()));
    faulty.on(Verb::Requeue, Fault::Gate(before_b.clone()));
    let requeued = std::thread::scope(|threads| {
        let requeueing = threads.spawn(|| faulty.requeue_all(&UnitFilter::job(job), &by).unwrap());
        before_a.wait_for(1);
        repository.requeue(job, "c", &By::whom("bob")).unwrap();
        before_a.open();
        before_b.wait_for(1);
        fail(&repository, job, "a");
        before_b.open();
        requeueing.join().unwrap()
    });
    assert_eq!((requeued.units, requeued.purged, requeued.changed), (2, 0, 1));
    assert_eq!(["a", "b", "c"].map(|id| times_requeued(&repository, job, id)), [1, 1, 1]);
    let statuses = ["a", "b", "c"].map(|id| repository.unit(job, id).unwrap().status);
    assert_eq!(statuses, [UnitStatus::Failed, UnitStatus::Pending, UnitStatus::Pending]);
}

#[test]
fn what_somebody_else_brought_back_and_has_ended_again_since_it_was_read_stays_as_it_is() {
    // 003-F68.
    let (repository, faulty, job) = failed_units(&["a", "b", "c"]);
    let (ada, bob) = (By::whom("ada"), By::whom("bob"));
    let before_a = Gate::closed();
    faulty.on(Verb::Requeue, Fault::Gate(before_a.clone()));
    let requeued = std::thread::scope(|threads| {
        let requeueing = threads.spawn(|| faulty.requeue_all(&UnitFilter::job(job), &ada).unwrap());
        before_a.wait_for(1);
        for id in ["b", "c"] {
            repository.requeue(job, id, &bob).unwrap();
        }
        fail(&repository, job, "b");
        repository.cancel(job, "c", &bob).unwrap();
        before_a.open();
        requeueing.join().unwrap()
    });
    assert_eq!((requeued.units, requeued.purged, requeued.changed), (1, 0, 2));
    assert_eq!(["a", "b", "c"].map(|id| times_requeued(&repository, job, id)), [1, 1, 1]);
    let statuses = ["a", "b", "c"].map(|id| repository.unit(job, id).unwrap().status);
    assert_eq!(statuses, [UnitStatus::Pending, UnitStatus::Failed, UnitStatus::Cancelled]);
}

#[test]
fn after_an_error_the_same_call_goes_on_with_the_rest() {
    // 003-F68.
    let by = By::whom("ada");
    for (fault, left) in [(Fault::ErrorOnce, 2), (Fault::ExecutedThenError, 1)] {
        let (repository, faulty, job) = failed_units(&["a", "b"]);
        faulty.on(Verb::Requeue, fault);
        assert!(!faulty.requeue_all(&UnitFilter::job(job), &by).unwrap_err().is_rejection());
        assert_eq!(faulty.requeue_all(&UnitFilter::job(job), &by).unwrap().units, left);
        assert_eq!(["a", "b"].map(|id| times_requeued(&repository, job, id)), [1, 1]);
    }
}
