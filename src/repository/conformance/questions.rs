//! What runs, what waits, what nobody looks after any more: `leases`, and what `units` says of what is PENDING.

use super::scene::{SECOND, Scene, TTL, all_pages, ids, work};
use crate::audit::questions;
use crate::job::{JobId, NewJob};
use crate::process::Process;
use crate::repository::{Claimant, Intake, LeaseView, RepositoryError, Scope, Staleness, Submitted};
use crate::unit::{UnitKey, UnitStatus};

cases![
    what_is_leased_is_being_executed_and_nothing_else_is,
    a_lease_tells_who_has_the_unit_since_when_and_for_how_long,
    what_is_being_executed_comes_in_pages_by_job,
    what_waits_comes_in_the_order_in_which_it_was_created,
    a_lease_is_stale_from_the_moment_it_runs_out_until_it_is_renewed,
    a_lease_of_a_dead_owner_is_stale_at_once,
    a_lease_of_another_boot_is_stale_at_once_and_nothing_is_left_of_it,
    a_lease_of_an_unknown_boot_is_stale_when_it_ran_out,
    what_is_stale_is_what_a_sweep_takes_back,
    the_calendar_makes_no_lease_stale,
];

fn leases(scene: &Scene<'_>) -> Vec<LeaseView> {
    all_pages(|after| scene.repository.leases(None, after, 2))
}

/// The one lease that there is.
fn lease(scene: &Scene<'_>) -> LeaseView {
    let mut leases = leases(scene);
    assert_eq!(leases.len(), 1, "{leases:?}");
    leases.remove(0)
}

fn what_is_leased_is_being_executed_and_nothing_else_is(scene: &Scene<'_>) {
    // 003-F59, 003-F61: in the order of insertion, whatever the priority.
    for &status in UnitStatus::ALL {
        scene.bring_unit(work(status.name()).priority(status as i32), status);
    }
    let told: Vec<(String, UnitStatus)> =
        leases(scene).into_iter().map(|lease| (lease.unit_id.to_string(), lease.status)).collect();
    let expected = [UnitStatus::Assigned, UnitStatus::Processing, UnitStatus::CancelRequested];
    assert_eq!(told, expected.map(|status| (status.name().to_owned(), status)));
    assert_eq!(questions::active(scene.repository, Some(scene.job)).expect("it can be asked"), leases(scene));
    assert_eq!(questions::stale(scene.repository, None).expect("it can be asked"), []);
    let queued = questions::queued(scene.repository, None, 0, 9).expect("it can be asked").items;
    assert!(queued.iter().map(|unit| unit.id.as_str()).eq(["PENDING"]), "{queued:?}");
}

fn a_lease_tells_who_has_the_unit_since_when_and_for_how_long(scene: &Scene<'_>) {
    // 003-F59.
    scene.bring("a", UnitStatus::Pending);
    scene.advance(SECOND);
    let (other, slot) = (scene.other_owner(), scene.slot());
    let claim = scene.assign_to(other, work("a"), &slot);
    let since = scene.now();
    scene.advance(SECOND);
    let told = lease(scene);
    assert_eq!((told.unit, &told.unit_id, told.job_id), (claim.lease.unit, &claim.lease.unit_id, scene.job));
    assert_eq!((told.status, told.attempt_number, told.fence), (UnitStatus::Assigned, 2, claim.lease.fence));
    assert_eq!((told.owner, &told.worker_id, told.since), (other, &slot.worker_id, since));
    assert_eq!((told.left_ms, told.staleness, told.is_stale()), (59_000, None, false));
    scene.start(&claim.lease);
    assert_eq!(lease(scene), LeaseView { status: UnitStatus::Processing, ..told });
}

fn what_is_being_executed_comes_in_pages_by_job(scene: &Scene<'_>) {
    let other = scene.repository.create_job(&NewJob::named("other")).expect("a new name").id;
    let (a, b) = (scene.assigned("a").lease.unit, scene.assigned("b").lease.unit);
    let claimant = Claimant::new(scene.owner, TTL);
    let submitted = scene.repository.submit(other, &work("elsewhere"), &claimant, &scene.slot());
    let elsewhere = match submitted.expect("a due unit can be submitted") {
        Submitted::Claimed(claim) => claim.lease.unit,
        other => panic!("a due unit was not claimed: {other:?}"),
    };
    let c = scene.assigned("c").lease.unit;
    let page = |job, after: UnitKey, limit| {
        let page = scene.repository.leases(job, after.0, limit).expect("a page can be read");
        (page.items.iter().map(|lease| lease.unit).collect::<Vec<UnitKey>>(), page.next)
    };
    let first = UnitKey(0);
    assert_eq!(page(None, first, 9), (vec![a, b, elsewhere, c], None));
    assert_eq!(page(Some(other), first, 9), (vec![elsewhere], None));
    assert_eq!(page(Some(scene.job), first, 2), (vec![a, b], Some(b.0)));
    assert_eq!(page(Some(scene.job), b, 2), (vec![c], None));
    assert_eq!(page(Some(scene.job), first, 0), (vec![a], Some(a.0)), "a page has room for one");
    assert_eq!(page(None, c, 9), (vec![], None));
    assert_refused!(scene.repository.leases(Some(JobId(4_711)), 0, 9), RepositoryError::UnknownJob(JobId(4_711)));
}

fn what_waits_comes_in_the_order_in_which_it_was_created(scene: &Scene<'_>) {
    // 003-F60. Neither priority nor an earlier attempt nor a time to wait for changes that order.
    let soon = scene.now() + SECOND;
    scene.bring("tried", UnitStatus::Pending);
    scene.insert(work("later").not_before(soon));
    scene.assigned("running");
    scene.insert(work("urgent").priority(9));
    scene.accept(work("accepted"));
    scene.bring("done", UnitStatus::Completed);
    let queued = all_pages(|after| questions::queued(scene.repository, Some(scene.job), after, 2));
    assert!(queued.iter().map(|unit| unit.id.as_str()).eq(["tried", "later", "urgent", "accepted"]), "{queued:?}");
    assert!(queued.is_sorted_by_key(|unit| unit.created_at), "{queued:?}");
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Pending, 1)), ["urgent"], "whose turn it is is another matter");
}

fn a_lease_is_stale_from_the_moment_it_runs_out_until_it_is_renewed(scene: &Scene<'_>) {
    // 003-F61.
    scene.assigned("a");
    let left = || {
        let lease = lease(scene);
        (lease.left_ms, lease.staleness)
    };
    scene.advance(TTL - SECOND);
    assert_eq!(left(), (1_000, None));
    scene.advance(SECOND);
    assert_eq!(left(), (0, Some(Staleness::RanOut)), "at that very time it may be taken back");
    scene.advance(SECOND);
    assert_eq!(left(), (-1_000, Some(Staleness::RanOut)));
    scene.repository.renew(scene.owner, TTL).expect("nobody has taken it");
    assert_eq!(left(), (60_000, None));
    scene.repository.renew(scene.owner, std::time::Duration::MAX).expect("as long as can be");
    assert!(left().0 > 0, "{:?}", left());
}

fn a_lease_of_a_dead_owner_is_stale_at_once(scene: &Scene<'_>) {
    // 003-F61. A process with the same number that began earlier is gone for certain.
    let this = scene.this_process();
    if this.start_ticks == 0 {
        return; // The system does not tell, so nothing can be proved.
    }
    let dead = scene.owner_in(Process { start_ticks: this.start_ticks - 1, ..this });
    scene.assign_to(dead, work("a"), &scene.slot());
    let told = lease(scene);
    assert_eq!((told.left_ms, told.staleness), (60_000, Some(Staleness::OwnerDied)));
}

fn a_lease_of_another_boot_is_stale_at_once_and_nothing_is_left_of_it(scene: &Scene<'_>) {
    // 003-F61.
    let gone = scene.owner_in(Process { boot_id: "another boot".into(), ..scene.this_process() });
    scene.assign_to(gone, work("a"), &scene.slot());
    let told = lease(scene);
    let expected = if scene.spans_machines() { (60_000, None) } else { (0, Some(Staleness::OtherBoot)) };
    assert_eq!((told.left_ms, told.staleness), expected);
}

fn a_lease_of_an_unknown_boot_is_stale_when_it_ran_out(scene: &Scene<'_>) {
    let owner = scene.owner_in(Process { boot_id: String::new(), ..scene.this_process() });
    scene.assign_to(owner, work("a"), &scene.slot());
    assert_eq!(lease(scene).staleness, None);
    scene.advance(TTL);
    assert_eq!(lease(scene).staleness, Some(Staleness::RanOut));
}

fn what_is_stale_is_what_a_sweep_takes_back(scene: &Scene<'_>) {
    // 003-F61: asking changes nothing; the sweep finds the same units for the same reasons.
    let this = scene.this_process();
    let before = scene.owner_in(Process { boot_id: "another boot".into(), ..this.clone() });
    let dead = scene.owner_in(Process { start_ticks: this.start_ticks.saturating_sub(1), ..this });
    let alive = scene.other_owner();
    for (id, owner) in [("of before", before), ("of the dead", dead), ("ran out", alive), ("held", scene.owner)] {
        scene.assign_to(owner, work(id), &scene.slot());
    }
    scene.repository.insert(scene.job, &[work("waits")], Intake::AcceptedBy(dead)).expect("nobody knows yet");
    scene.advance(TTL);
    scene.repository.renew(scene.owner, TTL).expect("the owner lives");

    let rows = scene.journal().len();
    let stale = questions::stale(scene.repository, None).expect("it can be asked");
    assert_eq!(scene.journal().len(), rows);
    let told: Vec<_> = stale.iter().map(|lease| (lease.unit, lease.staleness.map(Staleness::reason))).collect();
    assert_eq!(told.len(), 3, "{stale:?}");
    let swept = scene.expire();
    let reason = |id: &str| scene.last_row(id).reason;
    let taken: Vec<_> = swept.iter().map(|swept| (swept.unit, reason(swept.unit_id.as_str()))).collect();
    let told: Vec<_> = told.into_iter().map(|(unit, reason)| (unit, reason.map(str::to_owned))).collect();
    assert_eq!(told, taken);
    assert_eq!(questions::stale(scene.repository, None).expect("it can be asked"), []);
    assert_eq!(lease(scene).unit_id.as_str(), "held");
}

fn the_calendar_makes_no_lease_stale(scene: &Scene<'_>) {
    scene.assigned("a");
    if scene.set_calendar(chrono::TimeDelta::days(3_650)) {
        assert_eq!((lease(scene).left_ms, lease(scene).staleness), (60_000, None));
    }
}
