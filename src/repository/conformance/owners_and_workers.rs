//! Who works, on what, and what becomes of it: `register_owner`, `end_owner`, `change_worker`.

use super::scene::{Act, SECOND, Scene, TTL, give_up, retry, slot, work};
use crate::attempt::{AttemptReport, Failure, FailureKind, Next, Outcome};
use crate::lease::{NewOwner, OwnerHold, OwnerId, OwnerState};
use crate::repository::{Intake, RepositoryError, STATE_LIMIT_BYTES, Scope, Slot, loss};
use crate::unit::{Change, UnitStatus};
use crate::worker::{Worker, WorkerChange, WorkerStatus};

cases![
    the_same_instance_is_one_owner,
    an_owner_that_ends_leaves_everything_to_others,
    an_owner_ends_once,
    what_an_owner_says_of_itself_is_kept_until_it_ends,
    an_owner_that_is_not_there_says_nothing,
    a_worker_s_life_is_what_its_machine_says,
    only_claims_and_endings_load_a_worker,
    a_claim_brings_its_worker_into_the_table,
    a_worker_with_room_is_ready_and_a_full_one_is_busy,
    a_worker_counts_what_it_completed_and_what_failed,
    a_worker_on_its_way_out_stays_on_it,
    what_a_terminated_worker_holds_is_given_back,
    what_a_dead_worker_holds_is_lost,
    a_worker_belongs_to_one_owner,
    workers_are_read_by_name_in_pages,
];

fn the_same_instance_is_one_owner(scene: &Scene<'_>) {
    // 003-F14.
    let new = NewOwner::new(scene.this_process(), "ü \0 pool");
    let id = scene.repository.register_owner(&new).expect("it is new");
    let registered = scene.now();
    scene.advance(SECOND);
    assert_eq!(scene.repository.register_owner(&new).expect("it is known"), id);
    let another = scene.other_owner();
    let owners = scene.repository.owners().expect("owners can be read");
    let ids: Vec<_> = owners.iter().map(|owner| owner.id).collect();
    assert_eq!(ids, [scene.owner, id, another], "in the order of registration");
    let owner = &owners[1];
    assert_eq!((&owner.process, &owner.instance, &owner.label), (&new.process, &new.instance, &new.label));
    assert_eq!((owner.registered_at, owner.heartbeat_at, owner.ended_at), (registered, registered, None));
    assert_eq!(owner.host, new.host);
}

fn an_owner_that_ends_leaves_everything_to_others(scene: &Scene<'_>) {
    let other = scene.other_owner();
    let (held, last) = (scene.slot(), scene.slot());
    let lease = scene.assign_to(scene.owner, work("held"), &held).lease;
    scene.assign_to(scene.owner, work("last").max_retries(0), &last);
    scene.accept(work("accepted").queue_timeout(SECOND));
    scene.change_worker(&slot("idle"), WorkerChange::Start).expect("a new worker");
    scene.repository.end_owner(scene.owner).expect("it is registered");

    let unit = scene.unit("held");
    assert_eq!((unit.status, unit.fence, unit.accepted_by), (UnitStatus::Pending, lease.fence + 1, None));
    let row = scene.last_row("held");
    assert_eq!((row.change, row.actor), (Change::Expire, scene.owner.to_string()));
    assert_eq!(row.reason.as_deref(), Some(loss::OWNER_ENDED));
    assert_eq!(scene.attempt(&lease).outcome, Some(Outcome::Lost));
    assert_eq!(scene.status("last"), UnitStatus::Failed);
    for slot in [held, last, slot("idle")] {
        let worker = scene.worker(&slot);
        assert_eq!((worker.status, worker.load, worker.current_unit), (WorkerStatus::Dead, 0, None));
    }
    let accepted = scene.unit("accepted");
    assert_eq!((accepted.status, accepted.accepted_by), (UnitStatus::Pending, None));
    scene.advance(2 * SECOND);
    assert_eq!(scene.expire(), [], "its queue timeout ended with its owner");
    assert_eq!(scene.claim_as(other, Scope::Pending, 9).len(), 2);
}

fn an_owner_ends_once(scene: &Scene<'_>) {
    let owner = scene.other_owner();
    scene.repository.end_owner(owner).expect("it is registered");
    let ended = scene.now();
    scene.advance(SECOND);
    scene.repository.end_owner(owner).expect("sent again");
    let owners = scene.repository.owners().expect("owners can be read");
    assert_eq!(owners.iter().map(|owner| owner.ended_at).collect::<Vec<_>>(), [None, Some(ended)]);
    assert_refused!(scene.repository.renew(owner, TTL), RepositoryError::UnknownOwner(_));
    let changed = scene.repository.change_worker(owner, scene.job, &slot("w"), WorkerChange::Start);
    assert_refused!(changed, RepositoryError::UnknownOwner(_));
    let inserted = scene.repository.insert(scene.job, &[work("a")], Intake::AcceptedBy(owner));
    assert_refused!(inserted, RepositoryError::UnknownOwner(_));
}

fn what_an_owner_says_of_itself_is_kept_until_it_ends(scene: &Scene<'_>) {
    let other = scene.other_owner();
    let said = |owner: OwnerId| {
        let owners = scene.repository.owners().expect("owners can be read");
        let owner = owners.into_iter().find(|found| found.id == owner).expect("it is registered");
        (owner.state, owner.told_at)
    };
    assert_eq!(said(scene.owner), (None, None));
    let state = OwnerState {
        job_id: Some(scene.job),
        holds: vec![OwnerHold::new("ü \0 quota", Some(scene.now())), OwnerHold::new("the key is wrong", None)],
        abandoned_threads: usize::MAX >> 1,
        ..OwnerState::default()
    };
    scene.advance(SECOND);
    for _ in 0..2 {
        scene.repository.tell(scene.owner, &state).expect("it lives");
        assert_eq!(said(scene.owner), (Some(state.clone()), Some(scene.now())));
    }
    scene.advance(SECOND);
    let calm = OwnerState::default();
    scene.repository.tell(scene.owner, &calm).expect("it lives");
    assert_eq!(said(scene.owner), (Some(calm), Some(scene.now())), "in place of what it said before");
    assert_eq!(said(other), (None, None), "and of nobody else");
    scene.repository.end_owner(scene.owner).expect("it is registered");
    assert_eq!(said(scene.owner), (None, None));
}

fn an_owner_that_is_not_there_says_nothing(scene: &Scene<'_>) {
    let ended = scene.other_owner();
    scene.repository.end_owner(ended).expect("it is registered");
    for owner in [ended, OwnerId(4711)] {
        assert_refused!(scene.repository.tell(owner, &OwnerState::default()), RepositoryError::UnknownOwner(_));
    }
    let long = OwnerState { last_start_failure: Some("x".repeat(STATE_LIMIT_BYTES)), ..OwnerState::default() };
    assert_refused!(scene.repository.tell(scene.owner, &long), RepositoryError::Invalid(_));
    assert!(scene.repository.owners().expect("owners can be read").iter().all(|owner| owner.state.is_none()));
}

fn a_worker_s_life_is_what_its_machine_says(scene: &Scene<'_>) {
    use WorkerChange::{Die, Ready, ShutDown, Start, Taint, Terminate};
    let lives: [(Option<WorkerStatus>, &[WorkerChange]); 7] = [
        (None, &[]),
        (Some(WorkerStatus::Starting), &[Start]),
        (Some(WorkerStatus::Ready), &[Start, Ready]),
        (Some(WorkerStatus::Tainted), &[Start, Ready, Taint]),
        (Some(WorkerStatus::ShuttingDown), &[Start, ShutDown]),
        (Some(WorkerStatus::Terminated), &[Start, ShutDown, Terminate]),
        (Some(WorkerStatus::Dead), &[Start, Die]),
    ];
    let changes = [Start, Ready, Taint, WorkerChange::Restart, ShutDown, Terminate, Die];
    for (from, life) in lives {
        for change in changes {
            let slot = scene.slot();
            for &step in life {
                scene.change_worker(&slot, step).expect("a life in order");
            }
            check_step(scene, &slot, from, change);
        }
    }
    // BUSY is reached only by taking a unit.
    for change in changes {
        let (slot, id) = (scene.slot(), format!("busy, {change}"));
        scene.assign_to(scene.owner, work(&id), &slot);
        check_step(scene, &slot, Some(WorkerStatus::Busy), change);
    }
}

fn check_step(scene: &Scene<'_>, slot: &Slot, from: Option<WorkerStatus>, change: WorkerChange) {
    scene.advance(SECOND);
    let answer = scene.change_worker(slot, change);
    match WorkerStatus::after(from, change) {
        Some(to) => {
            let worker = answer.unwrap_or_else(|error| panic!("{from:?} allows {change}: {error}"));
            assert_eq!(worker.status, to, "{from:?} {change}");
            assert_eq!(worker, scene.worker(slot));
            assert_eq!((worker.job_id, worker.last_activity_at), (scene.job, scene.now()));
        }
        None => {
            let name = from.map_or("ABSENT", WorkerStatus::name);
            let is_refused = matches!(answer, Err(RepositoryError::Illegal { status, .. }) if status == name);
            assert!(is_refused, "{name} allows no {change}");
        }
    }
}

fn only_claims_and_endings_load_a_worker(scene: &Scene<'_>) {
    let slot = scene.slot();
    scene.change_worker(&slot, WorkerChange::Start).expect("a new worker");
    scene.change_worker(&slot, WorkerChange::Ready).expect("it starts");
    let before = scene.worker(&slot);
    for change in [WorkerChange::TakeBelowCapacity, WorkerChange::TakeToCapacity, WorkerChange::GiveBack] {
        assert_refused!(scene.change_worker(&slot, change), RepositoryError::Invalid(_));
    }
    assert_eq!(scene.worker(&slot), before);
}

fn a_claim_brings_its_worker_into_the_table(scene: &Scene<'_>) {
    // 004-F3, 004-F17, 004-F19.
    let slot = scene.slot();
    let key = scene.insert(work("a"));
    let request = scene.request(scene.owner, Scope::Pending, vec![slot.clone()]);
    let lease = scene.repository.claim(&request).expect("one waits").remove(0).lease;
    let worker = scene.worker(&slot);
    assert_eq!((worker.owner, &worker.id, worker.job_id), (scene.owner, &slot.worker_id, scene.job));
    assert_eq!((worker.status, worker.capacity, worker.load), (WorkerStatus::Busy, 1, 1));
    assert_eq!((worker.current_unit, worker.created_at), (Some(key), scene.now()));
    assert_eq!((worker.units_completed, worker.units_failed), (0, 0));

    let created = scene.now();
    scene.start(&lease);
    scene.advance(3 * SECOND);
    scene.finish(&lease, &AttemptReport::completed());
    let worker = scene.worker(&slot);
    assert_eq!((worker.status, worker.load, worker.current_unit), (WorkerStatus::Ready, 0, None));
    assert_eq!((worker.units_completed, worker.units_failed, worker.total_time), (1, 0, 3 * SECOND));
    assert_eq!((worker.created_at, worker.last_activity_at), (created, scene.now()));
}

fn a_worker_with_room_is_ready_and_a_full_one_is_busy(scene: &Scene<'_>) {
    let slot = Slot::with_capacity(scene.slot().worker_id, 2);
    let shown = |worker: &Worker| (worker.status, worker.load, worker.current_unit);
    let a = scene.assign_to(scene.owner, work("a"), &slot).lease;
    assert_eq!(shown(&scene.worker(&slot)), (WorkerStatus::Ready, 1, Some(a.unit)));
    let b = scene.assign_to(scene.owner, work("b"), &slot).lease;
    assert_eq!(shown(&scene.worker(&slot)), (WorkerStatus::Busy, 2, Some(b.unit)));
    scene.finish(&a, &retry());
    assert_eq!(shown(&scene.worker(&slot)), (WorkerStatus::Ready, 1, Some(b.unit)), "b was taken last");
    scene.finish(&b, &retry());
    assert_eq!(shown(&scene.worker(&slot)), (WorkerStatus::Ready, 0, None));

    let smaller = Slot::with_capacity(slot.worker_id, 1);
    scene.assign_to(scene.owner, work("c"), &smaller);
    let worker = scene.worker(&smaller);
    assert_eq!((worker.capacity, worker.status), (1, WorkerStatus::Busy), "its capacity is what the last claim says");

    let larger = Slot::with_capacity(smaller.worker_id, 3);
    for (id, status, load) in [("d", WorkerStatus::Ready, 2), ("e", WorkerStatus::Busy, 3)] {
        scene.assign_to(scene.owner, work(id), &larger);
        let worker = scene.worker(&larger);
        assert_eq!(
            (worker.capacity, worker.status, worker.load),
            (3, status, load),
            "it was full, and can have more now"
        );
    }
}

fn a_worker_counts_what_it_completed_and_what_failed(scene: &Scene<'_>) {
    let slot = scene.slot();
    let ends: [(&str, Act, (u64, u64)); 6] = [
        ("completed", |scene, lease| drop(scene.repository.finish(lease, &AttemptReport::completed())), (1, 0)),
        ("failed", |scene, lease| drop(scene.repository.finish(lease, &give_up())), (1, 1)),
        ("timed out", |scene, lease| drop(scene.repository.finish(lease, &too_slow())), (1, 2)),
        ("lost", |scene, _| drop(scene.lose_all()), (1, 3)),
        ("released", |scene, lease| drop(scene.repository.release(lease, None, "no time")), (1, 3)),
        ("stopped", |scene, lease| drop(scene.repository.finish(lease, &AttemptReport::cancelled())), (1, 3)),
    ];
    for (way, end, expected) in ends {
        let lease = scene.assign_to(scene.owner, work(way), &slot).lease;
        scene.start(&lease);
        end(scene, &lease);
        let worker = scene.worker(&slot);
        assert_eq!((worker.units_completed, worker.units_failed), expected, "{way}");
        assert_eq!((worker.status, worker.load), (WorkerStatus::Ready, 0), "{way}");
    }
    assert_eq!(scene.worker(&slot).total_time, TTL, "the lost attempt is the one that took time");
}

fn too_slow() -> AttemptReport {
    AttemptReport::timed_out(Failure::new(FailureKind::TIMED_OUT, "slow"), Next::GiveUp)
}

fn a_worker_on_its_way_out_stays_on_it(scene: &Scene<'_>) {
    use WorkerChange::{Restart, ShutDown, Taint};
    let lives: [(&[WorkerChange], WorkerStatus); 3] = [
        (&[Taint], WorkerStatus::Tainted),
        (&[Taint, Restart], WorkerStatus::Starting),
        (&[ShutDown], WorkerStatus::ShuttingDown),
    ];
    for (life, status) in lives {
        let slot = scene.slot();
        let lease = scene.assign_to(scene.owner, work(status.name()), &slot).lease;
        for &change in life {
            scene.change_worker(&slot, change).expect("a life in order");
        }
        scene.repository.flush(&lease).expect("it keeps what it has");
        scene.finish(&lease, &give_up());
        let worker = scene.worker(&slot);
        assert_eq!((worker.status, worker.load, worker.units_failed), (status, 0, 1));
    }
}

fn what_a_terminated_worker_holds_is_given_back(scene: &Scene<'_>) {
    let slot = Slot::with_capacity(scene.slot().worker_id, 3);
    let leases = ["a", "b"].map(|id| scene.assign_to(scene.owner, work(id), &slot).lease);
    let kept = scene.assigned("c").lease;
    scene.change_worker(&slot, WorkerChange::ShutDown).expect("it is ready");
    let worker = scene.change_worker(&slot, WorkerChange::Terminate).expect("it shuts down");
    assert_eq!((worker.status, worker.load, worker.current_unit), (WorkerStatus::Terminated, 0, None));
    assert_eq!((worker.units_completed, worker.units_failed), (0, 0));
    for (id, lease) in ["a", "b"].into_iter().zip(&leases) {
        let unit = scene.unit(id);
        assert_eq!((unit.status, unit.attempts_used, unit.fence), (UnitStatus::Pending, 0, lease.fence));
        assert_eq!(unit.accepted_by, Some(scene.owner));
        assert_eq!(scene.attempt(lease).outcome, Some(Outcome::Released));
        let row = scene.last_row(id);
        assert_eq!((row.change, row.reason.as_deref()), (Change::Release, Some(loss::WORKER_TERMINATED)));
        assert_eq!(row.actor, scene.owner.to_string());
    }
    scene.repository.flush(&kept).expect("another worker's unit is not touched");
}

fn what_a_dead_worker_holds_is_lost(scene: &Scene<'_>) {
    let slot = Slot::with_capacity(scene.slot().worker_id, 3);
    let lease = scene.assign_to(scene.owner, work("a"), &slot).lease;
    scene.assign_to(scene.owner, work("last").max_retries(0), &slot);
    scene.assign_to(scene.owner, work("cancelling"), &slot);
    scene.cancel("cancelling");
    let worker = scene.change_worker(&slot, WorkerChange::Die).expect("anything alive can die");
    assert_eq!((worker.status, worker.load, worker.units_failed), (WorkerStatus::Dead, 0, 3));
    let statuses = ["a", "last", "cancelling"].map(|id| scene.status(id));
    assert_eq!(statuses, [UnitStatus::Pending, UnitStatus::Failed, UnitStatus::Cancelled]);
    let unit = scene.unit("a");
    assert_eq!((unit.attempts_used, unit.fence, unit.accepted_by), (1, lease.fence + 1, None));
    let row = scene.last_row("a");
    assert_eq!((row.change, row.reason.as_deref()), (Change::Expire, Some(loss::WORKER_DIED)));
    assert_eq!(row.actor, scene.owner.to_string());
    assert_refused!(scene.repository.flush(&lease), RepositoryError::Stale { .. });
}

fn a_worker_belongs_to_one_owner(scene: &Scene<'_>) {
    let (other, slot) = (scene.other_owner(), scene.slot());
    scene.assign_to(scene.owner, work("a"), &slot);
    scene.assign_to(other, work("b"), &slot);
    let worker = scene.repository.change_worker(other, scene.job, &slot, WorkerChange::Die).expect("it is alive");
    assert_eq!((worker.owner, worker.status), (other, WorkerStatus::Dead));
    assert_eq!(scene.worker(&slot).status, WorkerStatus::Busy, "the other of the same name is not meant");
    assert_eq!([scene.status("a"), scene.status("b")], [UnitStatus::Assigned, UnitStatus::Pending]);
}

fn workers_are_read_by_name_in_pages(scene: &Scene<'_>) {
    for name in ["b", "ü", "a", "c", "A"] {
        scene.change_worker(&slot(name), WorkerChange::Start).expect("a new worker");
    }
    let other = scene.other_owner();
    scene.repository.change_worker(other, scene.job, &slot("x"), WorkerChange::Start).expect("a new worker");
    let names = |after: &str, limit| {
        let workers = scene.repository.workers(scene.owner, after, limit).expect("workers can be read");
        workers.into_iter().map(|worker| worker.id.to_string()).collect::<Vec<String>>()
    };
    assert_eq!(names("", 9), ["A", "a", "b", "c", "ü"]);
    assert_eq!(names("", 2), ["A", "a"]);
    assert_eq!(names("a", 2), ["b", "c"]);
    assert_eq!(names("c", 2), ["ü"]);
    assert_eq!(names("ü", 2), [""; 0]);
}
