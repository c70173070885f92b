//! Connections that are lost, sessions that are ended, a server that starts again: nothing that was acknowledged is lost, and
//! nothing is done twice.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use workcrew::repository::{Archive, Insertion, Intake, Repository};
use workcrew::{AttemptReport, Beginning, JobId, Message, PostgresRepository, UnitStatus};

use super::proxy::{Cut, Proxy};
use super::{Place, assert_sound, by_hand, pull, slots, units};
use crate::support;

/// A repository that is reached by way of a proxy.
fn behind_proxy() -> Option<(Place, Proxy, PostgresRepository)> {
    let server = support::postgres::server()?;
    let Some(folder) = &server.folder else {
        println!("skipped: the server is not one of our own");
        return None;
    };
    let (place, proxy) = (Place::on(server), Proxy::before(folder));
    let cut_off = PostgresRepository::connect(&proxy.address(&place.address)).unwrap();
    Some((place, proxy, cut_off))
}

#[test]
fn a_commit_whose_answer_was_lost_is_looked_up() {
    let Some((place, proxy, repository)) = behind_proxy() else { return };
    for round in 0..20 {
        let units: Vec<_> = units(3)
            .into_iter()
            .map(|mut unit| {
                unit.id = format!("{round} {}", unit.id);
                unit
            })
            .collect();
        proxy.cut(if round % 2 == 0 { Cut::Answer } else { Cut::Commit });
        let inserted = repository.insert(place.job, &units, Intake::Open).unwrap();
        assert!(!proxy.is_armed(), "nothing was cut");
        // Had it been guessed, the units would be found to exist, or not be there.
        assert!(inserted.iter().all(|unit| matches!(unit, Insertion::Inserted(_))), "{round}: {inserted:?}");
        assert_eq!(place.repository.counts(place.job).unwrap().pending, 3 * (round + 1));
    }
    assert_sound(&place.repository);
}

#[test]
fn a_conversation_goes_on_over_cut_connections_without_a_gap() {
    let Some((place, proxy, repository)) = behind_proxy() else { return };
    let owner = support::owner(&repository, "host");
    repository.insert(place.job, &units(1), Intake::Open).unwrap();
    let claim = pull(&repository, place.job, owner, slots(1, "w")).pop().unwrap();
    repository.start(&claim.lease, &Beginning::default()).unwrap();
    for number in 0..30 {
        proxy.cut(if number % 2 == 0 { Cut::Answer } else { Cut::Commit });
        repository.append(&claim.lease, number, &[Message::assistant(format!("{number}"))]).unwrap();
        repository.flush(&claim.lease).unwrap();
    }
    repository.finish(&claim.lease, &AttemptReport::completed()).unwrap();
    let messages = place.repository.messages(claim.lease.attempt(), 0, 100).unwrap().items;
    let said: Vec<String> = messages.iter().map(|message| message.message().unwrap().unwrap().text()).collect();
    assert_eq!(said, (0..30).map(|number| number.to_string()).collect::<Vec<_>>());
    assert_sound(&place.repository);
}

/// Executes a job to its end, and expects every verb to succeed.
fn work_to_the_end(repository: &PostgresRepository, job: JobId, name: &str) -> usize {
    let owner = support::owner(repository, name);
    let mut done = 0;
    loop {
        let claims = pull(repository, job, owner, slots(3, name));
        if claims.is_empty() {
            return done;
        }
        for claim in claims {
            repository.start(&claim.lease, &Beginning::default()).unwrap();
            repository.append(&claim.lease, 0, &[Message::assistant("so be it")]).unwrap();
            repository.renew(owner, super::TTL).unwrap();
            let closed = repository.finish(&claim.lease, &AttemptReport::completed()).unwrap();
            assert_eq!(closed.status, UnitStatus::Completed);
            assert_eq!(repository.unit(job, claim.unit.id.as_str()).unwrap().status, UnitStatus::Completed);
            done += 1;
        }
    }
}

/// Works while somebody does something to the server again and again.
fn work_while(place: &Place, count: usize, disturb: impl Fn() + Sync) {
    place.repository.insert(place.job, &units(count), Intake::Open).unwrap();
    let is_done = AtomicBool::new(false);
    // Whoever connects is told why it cannot be; only who is connected goes on whatever happens.
    let hosts = ["a", "b", "c"].map(|name| (name, place.other_host()));
    std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| {
            let mut times = 0;
            while !is_done.load(Ordering::SeqCst) {
                disturb();
                times += 1;
            }
            times
        });
        let job = place.job;
        let working = hosts.map(|(name, host)| scope.spawn(move || work_to_the_end(&host, job, name)));
        let done = working.map(std::thread::ScopedJoinHandle::join);
        is_done.store(true, Ordering::SeqCst);
        let done: usize = done.map(Result::unwrap).into_iter().sum();
        let times = disturbing.join().unwrap();
        println!("{done} units were done while it was disturbed {times} times");
        assert_eq!(done, count);
        assert!(times > 0);
    });
    let counts = place.repository.counts(place.job).unwrap();
    assert_eq!(counts.completed, count as u64);
    let claims = place.repository.journal(0, 1_000).unwrap();
    assert_eq!(claims.items.iter().filter(|row| row.change == workcrew::unit::Change::Claim).count(), count);
    assert_sound(&place.repository);
}

/// The sessions of hosts, by the numbers of their processes.
const SESSIONS: &str = "SELECT pid FROM pg_stat_activity WHERE application_name = $1 AND pid <> pg_backend_pid()";

/// A server that nobody else is on, since it will be hard to bear.
fn own_place() -> Option<(support::postgres::Server, Place)> {
    support::postgres::server()?.folder.as_ref()?;
    let server = support::postgres::Server::start_own(&["fsync=off", "restart_after_crash=on"]).unwrap();
    let place = Place::on(&server);
    Some((server, place))
}

#[test]
fn sessions_that_are_ended_while_hosts_work_cost_nothing() {
    let Some((_server, place)) = own_place() else { return };
    let end_all = || {
        let mut client = by_hand(&place.address);
        let ended = format!("SELECT pg_terminate_backend(pid) FROM ({SESSIONS}) sessions");
        for _ in 0..10 {
            client.query(&ended, &[&"workcrew"]).unwrap();
            client.batch_execute("SELECT pg_sleep(0.05)").unwrap();
        }
    };
    work_while(&place, 120, end_all);
}

#[test]
fn a_server_that_crashes_again_and_again_loses_nothing_that_was_acknowledged() {
    let Some((_server, place)) = own_place() else { return };
    let is_up = || postgres::Client::connect(place.address.split_once('?').unwrap().0, postgres::NoTls);
    let crash = || {
        // A session that is killed takes all others with it, and the server's memory: it recovers from its log.
        let Ok(mut client) = is_up() else { return };
        if client.batch_execute("SELECT pg_sleep(0.4)").is_err() {
            return;
        }
        let Ok(sessions) = client.query(SESSIONS, &[&"workcrew"]) else { return };
        if let Some(session) = sessions.first() {
            let _ = kill_process(Pid::from_raw(session.get(0)).unwrap(), Signal::KILL);
        }
    };
    work_while(&place, 60, crash);
}

#[test]
fn a_session_that_is_frozen_for_a_while_goes_on() {
    let Some((_server, place)) = own_place() else { return };
    let freeze = || {
        let mut client = by_hand(&place.address);
        let sessions = client.query(SESSIONS, &[&"workcrew"]).unwrap();
        let pids: Vec<Pid> = sessions.iter().map(|session| Pid::from_raw(session.get(0)).unwrap()).collect();
        for &pid in &pids {
            let _ = kill_process(pid, Signal::STOP);
        }
        client.batch_execute("SELECT pg_sleep(0.3)").unwrap();
        for &pid in &pids {
            let _ = kill_process(pid, Signal::CONT);
        }
        client.batch_execute("SELECT pg_sleep(0.1)").unwrap();
    };
    work_while(&place, 60, freeze);
}

#[test]
fn what_cannot_be_written_is_told_once_patience_is_over() {
    let Some((server, place)) = own_place() else { return };
    let options = workcrew::repository::postgres::PostgresOptions::new();
    let options = options.busy_timeout(Duration::from_millis(200)).write_patience(Duration::from_millis(400));
    let repository = options.connect(&place.address).unwrap();
    drop(server);
    let gone = repository.insert(place.job, &units(1), Intake::Open).unwrap_err();
    assert!(gone.is_passing() && !gone.is_rejection(), "{gone}");
    let gone = repository.counts(place.job).unwrap_err();
    assert!(gone.is_passing() && !gone.is_rejection(), "{gone}");
}
