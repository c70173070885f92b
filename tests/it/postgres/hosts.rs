//! Several hosts at one queue. A host here is a process, or a repository with connections of its own.

use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use workcrew::repository::{Archive, By, Intake, News, Repository};
use workcrew::{AttemptReport, Beginning, Message, NewUnit, PostgresRepository, UnitStatus};

use super::{Place, assert_sound, pull, slots, units};
use crate::support;

/// Where a child finds its schema, and how it is called there.
const ADDRESS: &str = "WORKCREW_TEST_ADDRESS";
const NAME: &str = "WORKCREW_TEST_NAME";

/// How long anybody waits for another process on a slow machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn child(test: &str, place: &Place, name: &str) -> std::process::Command {
    let mut command = support::child(&format!("postgres::hosts::{test}"));
    command.env(ADDRESS, &place.address).env(NAME, name).stdout(Stdio::null());
    command
}

#[test]
#[ignore = "it is run by others, in a process of its own"]
fn child_that_pulls() {
    let (Ok(address), Ok(name)) = (std::env::var(ADDRESS), std::env::var(NAME)) else { return };
    workcrew::testing::arm_from_environment();
    let repository = PostgresRepository::connect(&address).unwrap();
    let job = repository.job_named("work").unwrap().unwrap().id;
    let owner = support::owner(&repository, &name);
    loop {
        let claims = pull(&repository, job, owner, slots(5, &name));
        if claims.is_empty() {
            break;
        }
        for claim in claims {
            repository.start(&claim.lease, &Beginning::default()).unwrap();
            repository.append(&claim.lease, 0, &[Message::assistant(name.as_str())]).unwrap();
            repository.finish(&claim.lease, &AttemptReport::completed()).unwrap();
        }
    }
}

#[test]
fn eight_processes_do_every_unit_once_and_none_is_left_out() {
    const COUNT: usize = 1_000;
    let Some(place) = Place::fresh() else { return };
    place.repository.insert(place.job, &units(COUNT), Intake::Open).unwrap();
    let names: Vec<String> = (0..8).map(|number| format!("host {number}")).collect();
    let children: Vec<Child> =
        names.iter().map(|name| child("child_that_pulls", &place, name).spawn().unwrap()).collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let counts = place.repository.counts(place.job).unwrap();
    assert_eq!((counts.completed, counts.total()), (COUNT as u64, COUNT as u64));
    let owners = place.repository.owners().unwrap();
    assert_eq!(owners.len(), 8);
    for owner in owners {
        let workers = place.repository.workers(owner.id, "", 100).unwrap();
        let done: u64 = workers.iter().map(|worker| worker.units_completed).sum();
        println!("{}: {done}", owner.label);
        assert!(done > 0, "{} got nothing", owner.label);
    }
    assert_sound(&place.repository);
}

#[test]
fn what_a_killed_process_held_is_taken_back_by_the_others() {
    let Some(place) = Place::fresh() else { return };
    place.repository.insert(place.job, &units(20), Intake::Open).unwrap();
    let mut killed = child("child_that_pulls", &place, "killed");
    let mut killed = killed.env("WORKCREW_FAULT", "finish:inside:3:kill").spawn().unwrap();
    assert!(!killed.wait().unwrap().success());
    // It had claimed five and finished two; the third was in a transaction that nobody will commit.
    let before = place.repository.counts(place.job).unwrap();
    assert_eq!((before.completed, before.processing + before.assigned), (2, 3));
    // It was on this host, so that it is certainly dead.
    assert_eq!(place.repository.expire(100).unwrap().len(), 3);
    assert!(child("child_that_pulls", &place, "other").status().unwrap().success());
    assert_eq!(place.repository.counts(place.job).unwrap().completed, 20);
    assert_sound(&place.repository);
}

#[test]
fn a_host_that_stops_in_the_midst_of_a_transaction_is_thrown_out_and_goes_on_later() {
    let Some(place) = Place::fresh() else { return };
    place.repository.insert(place.job, &units(20), Intake::Open).unwrap();
    let mut stopped = child("child_that_pulls", &place, "stopped");
    let mut stopped = stopped.env("WORKCREW_FAULT", "finish:inside:3:stop").spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&stopped);
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::UNTRACED).unwrap().unwrap();
    assert!(status.stopped());
    let began = Instant::now();
    let options = workcrew::repository::postgres::PostgresOptions::new().busy_timeout(PATIENCE);
    let other = options.connect(&place.address).unwrap();
    let owner = support::owner(&other, "other");
    println!("it was waited for {:?}", began.elapsed());
    let claims = pull(&other, place.job, owner, slots(3, "other"));
    assert_eq!(claims.len(), 3);
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).unwrap();
    assert!(stopped.wait().unwrap().success(), "it writes again what was never committed");
    for claim in claims {
        other.start(&claim.lease, &Beginning::default()).unwrap();
        other.finish(&claim.lease, &AttemptReport::completed()).unwrap();
    }
    assert_eq!(place.repository.counts(place.job).unwrap().completed, 20);
    assert_sound(&place.repository);
}

#[test]
fn whoever_listens_hears_of_other_hosts_at_once() {
    let Some(place) = Place::fresh() else { return };
    let (told, heard) = channel();
    place.repository.listen(place.job, Box::new(move |news| told.send(news.clone()).is_ok()));
    let other = place.other_host();
    let owner = support::owner(&other, "other");
    // What is written before the thread listens nobody tells: so again until it is heard.
    let mut number = 0;
    let deadline = Instant::now() + PATIENCE;
    let first = loop {
        other.queue_unit(place.job, &NewUnit::new(format!("u{number}")).prompt("do it")).unwrap();
        number += 1;
        match heard.recv_timeout(Duration::from_millis(200)) {
            Ok(news) => break news,
            Err(_) => assert!(Instant::now() < deadline, "nothing was heard"),
        }
    };
    assert_eq!(first, News::Queued);
    let next = |is_meant: &dyn Fn(&News) -> bool| loop {
        let news = heard.recv_timeout(PATIENCE).unwrap();
        if is_meant(&news) {
            return news;
        }
    };
    other.cancel(place.job, "u0", &By::whom("ada")).unwrap();
    let cancelled = next(&|news| matches!(news, News::Cancelled { .. }));
    let unit = place.repository.unit(place.job, "u0").unwrap();
    assert_eq!(
        (unit.status, cancelled),
        (UnitStatus::Cancelled, News::Cancelled { unit: unit.key, id: "u0".to_owned() })
    );
    let claim = {
        other.queue_unit(place.job, &NewUnit::new("last").prompt("do it")).unwrap();
        pull(&other, place.job, owner, slots(100, "w")).pop().unwrap()
    };
    other.start(&claim.lease, &Beginning::default()).unwrap();
    other.finish(&claim.lease, &AttemptReport::completed()).unwrap();
    assert_eq!(next(&|news| matches!(news, News::Ended(_))), News::Ended(owner));
}

#[test]
fn what_one_host_remembers_of_an_attempt_another_may_have_changed() {
    let Some(place) = Place::fresh() else { return };
    let other = place.other_host();
    let owner = support::owner(&place.repository, "host");
    let claim = place.claimed(owner, &NewUnit::new("a").prompt("do it"));
    // A lease may be used by more than one process: each goes on where the other has got to.
    for number in 0..6 {
        let host = if number % 2 == 0 { &place.repository } else { &other };
        host.append(&claim.lease, number, &[Message::assistant(format!("{number}"))]).unwrap();
        host.flush(&claim.lease).unwrap();
    }
    other.start(&claim.lease, &Beginning::default()).unwrap();
    other.cancel(place.job, "a", &By::whom("ada")).unwrap();
    let closed = place.repository.finish(&claim.lease, &AttemptReport::completed()).unwrap();
    assert_eq!(closed.status, UnitStatus::Cancelled);
    assert_eq!(place.repository.messages(claim.lease.attempt(), 0, 10).unwrap().items.len(), 6);
    assert!(other.append(&claim.lease, 6, &[Message::assistant("late")]).is_ok(), "nobody waits for that");
    assert!(other.flush(&claim.lease).unwrap_err().is_rejection());
    assert_sound(&place.repository);
}
