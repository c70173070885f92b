//! What is there for whoever pulls: the open scope of `claim`, `backlog`, `listen`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;

use super::scene::{SECOND, Scene, TTL, give_up, ids, retry, retry_after, slot, work};
use crate::job::{JobId, NewJob};
use crate::repository::{Backlog, By, Intake, News, RepositoryError, Scope};
use crate::unit::{NewUnit, UnitStatus};

cases![
    the_open_scope_is_what_nobody_accepted,
    a_slot_for_a_unit_gets_what_its_owner_accepted_beside_what_is_open,
    a_claim_from_the_open_takes_back_nothing_of_its_own,
    a_backlog_counts_what_could_be_claimed_now,
    a_backlog_counts_no_further_than_asked,
    a_backlog_says_when_the_next_unit_falls_due,
    a_backlog_tells_whether_others_have_units_of_the_job,
    a_backlog_is_of_one_job,
    who_listens_is_told_when_units_come_to_wait_for_anybody,
    who_listens_is_told_what_ended_and_what_was_cancelled,
];

fn backlog(scene: &Scene<'_>) -> Backlog {
    scene.repository.backlog(scene.job, scene.owner, 1_000).expect("the job is known")
}

fn the_open_scope_is_what_nobody_accepted(scene: &Scene<'_>) {
    // 003-F28.
    scene.accept(work("mine").priority(9));
    scene.insert_all(&["a", "b"]);
    scene.insert(NewUnit::new("without a prompt"));
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Open, 9)), ["a", "b"]);
    assert_eq!(ids(&scene.claim_as(scene.owner, Scope::Accepted, 9)), ["mine"]);
}

fn a_slot_for_a_unit_gets_what_its_owner_accepted_beside_what_is_open(scene: &Scene<'_>) {
    let mine = scene.accept(work("mine"));
    scene.accept(work("also mine").priority(9));
    scene.insert_all(&["a", "b"]);
    let slots = vec![slot("w1"), slot("w2").for_unit(mine), slot("w3")];
    let claims = scene.repository.claim(&scene.request(scene.owner, Scope::Open, slots)).expect("all are free");
    assert_eq!(ids(&claims), ["a", "mine", "b"]);
}

fn a_claim_from_the_open_takes_back_nothing_of_its_own(scene: &Scene<'_>) {
    // Who slept through its lease has yet to find out whether it still has it.
    let slept = scene.processing("slept");
    scene.advance(TTL);
    assert_eq!(scene.claim_as(scene.owner, Scope::Open, 1), []);
    let named = vec![scene.slot().for_unit(slept.lease.unit)];
    assert_eq!(scene.repository.claim(&scene.request(scene.owner, Scope::Open, named)).expect("it is legal"), []);
    assert_eq!(scene.unit("slept").fence, slept.lease.fence);
    let other = scene.other_owner();
    assert_eq!(ids(&scene.claim_as(other, Scope::Open, 1)), ["slept"], "others may have it");
}

fn a_backlog_counts_what_could_be_claimed_now(scene: &Scene<'_>) {
    assert_eq!(backlog(scene), Backlog::default());
    scene.insert_all(&["a", "b"]);
    scene.insert(NewUnit::new("without a prompt"));
    scene.insert(work("later").not_before(scene.now() + TimeDelta::seconds(10)));
    scene.accept(work("mine"));
    assert_eq!(backlog(scene).due, 2);
    scene.advance(10 * SECOND);
    assert_eq!(backlog(scene).due, 3, "its time has come, though nobody has claimed since");
    let claims = scene.claim_as(scene.owner, Scope::Open, 9);
    assert_eq!((ids(&claims), backlog(scene).due), (vec!["a", "b", "later"], 0));
    scene.finish(&claims[0].lease, &retry());
    assert_eq!(backlog(scene).due, 0, "what is to be tried again belongs to who tried it");
    scene.advance(TTL);
    scene.expire();
    assert_eq!(backlog(scene).due, 2, "what was lost belongs to nobody");
}

fn a_backlog_counts_no_further_than_asked(scene: &Scene<'_>) {
    scene.insert_all(&["a", "b", "c"]);
    let counted = |limit| scene.repository.backlog(scene.job, scene.owner, limit).expect("the job is known").due;
    assert_eq!([0, 1, 2, 3, 4, usize::MAX].map(counted), [0, 1, 2, 3, 3, 3]);
}

fn a_backlog_says_when_the_next_unit_falls_due(scene: &Scene<'_>) {
    let at = |seconds| scene.now() + TimeDelta::seconds(seconds);
    let (soon, late) = (at(10), at(20));
    scene.insert(work("late").not_before(late));
    scene.insert(work("soon").not_before(soon));
    scene.insert(NewUnit::new("without a prompt").not_before(at(1)));
    scene.accept(work("mine").not_before(at(2)));
    assert_eq!((backlog(scene).due, backlog(scene).next_due), (0, Some(soon)));
    scene.advance(Duration::from_secs(15));
    assert_eq!((backlog(scene).due, backlog(scene).next_due), (1, Some(late)));
    if scene.set_calendar(TimeDelta::days(-1)) {
        assert_eq!((backlog(scene).due, backlog(scene).next_due), (2, None), "the calendar holds nothing up");
    }
}

fn a_backlog_tells_whether_others_have_units_of_the_job(scene: &Scene<'_>) {
    let other = scene.other_owner();
    let is_with_others = || backlog(scene).is_with_others;
    scene.accept(work("mine"));
    scene.assigned("mine too");
    assert!(!is_with_others());
    let theirs = scene.assign_to(other, work("theirs").max_retries(1), &scene.slot());
    assert!(is_with_others(), "they execute it");
    scene.finish(&theirs.lease, &retry_after(10 * SECOND));
    assert!(is_with_others(), "they will try it again");
    scene.advance(10 * SECOND);
    let again = scene.claim_as(other, Scope::Accepted, 1).pop().expect("it is due");
    scene.finish(&again.lease, &give_up());
    assert!(!is_with_others());
    scene.repository.insert(scene.job, &[work("waits")], Intake::AcceptedBy(other)).expect("it is valid");
    assert!(is_with_others(), "it waits for them");
    scene.repository.end_owner(other).expect("they live");
    assert_eq!((is_with_others(), backlog(scene).due), (false, 1));
}

fn a_backlog_is_of_one_job(scene: &Scene<'_>) {
    let (other_job, other) =
        (scene.repository.create_job(&NewJob::named("other")).expect("a new name").id, scene.other_owner());
    scene.repository.insert(other_job, &[work("a")], Intake::Open).expect("it is valid");
    scene.repository.insert(other_job, &[work("b")], Intake::AcceptedBy(other)).expect("it is valid");
    assert_eq!(backlog(scene), Backlog::default());
    assert_refused!(scene.repository.backlog(JobId(4_711), scene.owner, 1), RepositoryError::UnknownJob(JobId(4_711)));
}

fn who_listens_is_told_when_units_come_to_wait_for_anybody(scene: &Scene<'_>) {
    let told = Arc::new(AtomicUsize::new(0));
    let listener = Arc::clone(&told);
    scene.repository.listen(
        scene.job,
        Box::new(move |news| {
            listener.fetch_add(usize::from(*news == News::Queued), Ordering::SeqCst);
            true
        }),
    );
    let is_told = || told.swap(0, Ordering::SeqCst) > 0;
    scene.insert(work("a"));
    if !is_told() {
        // It need not tell: then it is asked.
        return;
    }
    scene.repository.insert(scene.job, &[work("a")], Intake::Open).expect("it is there");
    scene.accept(work("mine"));
    assert!(!is_told(), "nothing came");
    scene.bring("failed", UnitStatus::Failed);
    is_told();
    scene.repository.requeue(scene.job, "failed", &By::whom("ada")).expect("it has failed");
    assert!(is_told());
    scene.repository.let_go(scene.owner).expect("it lives");
    assert!(is_told());
    let claim = scene.claim();
    scene.advance(TTL);
    assert!(!is_told());
    scene.expire();
    assert!(is_told(), "{} was taken back", claim.unit.id);
}

fn who_listens_is_told_what_ended_and_what_was_cancelled(scene: &Scene<'_>) {
    let heard: Arc<Mutex<Vec<News>>> = Arc::default();
    let listener = Arc::clone(&heard);
    let hear = move |news: &News| {
        listener.lock().expect("nobody panics").push(news.clone());
        true
    };
    scene.repository.listen(scene.job, Box::new(hear));
    let take = || std::mem::take(&mut *heard.lock().expect("nobody panics"));
    scene.insert(work("a"));
    if take().is_empty() {
        // It need not tell: then it is asked.
        return;
    }
    let claim = scene.claim();
    scene.finish(&claim.lease, &retry());
    assert_eq!(take(), [], "it waits for its owner");
    let again = scene.claim();
    scene.finish(&again.lease, &give_up());
    assert_eq!(take(), [News::Ended(scene.owner)]);

    let cancelled = |id: &str| News::Cancelled { unit: scene.unit(id).key, id: id.to_owned() };
    scene.accept(work("waits"));
    scene.cancel("waits");
    assert_eq!(take(), [cancelled("waits")]);
    scene.assigned("runs");
    take();
    scene.cancel("runs");
    assert_eq!(take(), [cancelled("runs")]);
    scene.cancel("runs");
    scene.cancel("waits");
    assert_eq!(take(), [], "nothing changed");
}
