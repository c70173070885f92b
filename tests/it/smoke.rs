use std::time::Duration;
use workcrew::clock::*;
use workcrew::repository::*;
use workcrew::*;
#[test]
fn life() {
    let dir = tempfile::tempdir().unwrap();
    let r = SqliteRepository::open(dir.path().join("a.db")).unwrap();
    let job = r.create_job(&NewJob::named("x")).unwrap();
    let owner = r.register_owner(&NewOwner::new(Process::this(&SystemClock.boot_id()), "me")).unwrap();
    let slot = Slot::new(WorkerId::new("w").unwrap());
    let c = Claimant::new(owner, Duration::from_secs(60));
    let Submitted::Claimed(claim) = r.submit(job.id, &NewUnit::new("a").prompt("hi"), &c, &slot).unwrap() else {
        panic!()
    };
    r.start(&claim.lease, &Beginning::default()).unwrap();
    r.append(&claim.lease, 0, &[Message::user("hi"), Message::assistant("ho")]).unwrap();
    r.partial(&claim.lease, "half").unwrap();
    let closed = r
        .finish(&claim.lease, &AttemptReport::completed().output("ho").charge(Charge::unpriced("m", Tokens::default())))
        .unwrap();
    assert_eq!(closed.status, UnitStatus::Completed);
    let unit = r.unit(job.id, "a").unwrap();
    println!("{unit:#?}");
    let v = audit::verify(&r).unwrap();
    assert!(v.is_clean(), "{v}");
}
