//! Cancelling across processes: one has the units, another cancels them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use workcrew::audit::verify::Verify;
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{By, CancelAnswer, PAGE_LIMIT};
use workcrew::testing::Gate;
use workcrew::{
    Archive, Call, ExecuteError, JobId, NewJob, NewUnit, Repository, RepositoryError, RetryPolicy, SqliteRepository,
    Stop, UnitStatus, WorkPool, WorkPoolBuilder, WorkResult, WorkUnit,
};

use crate::children::{self, Role, hear, say};
use crate::support;
use crate::support::Up as _;

const JOB: &str = "cancels";

/// How often a pool looks. Whatever else would let it notice anything is an hour away.
const HEARTBEAT: Duration = Duration::from_millis(50);
const HOUR: Duration = Duration::from_secs(3_600);

/// So many units, so many times.
const ROUNDS: usize = 100;
const CROWD: usize = 10;

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    match children::role().as_deref() {
        Some("holds") => hold(),
        Some("finishes") => finish(),
        Some("cancels") => cancel(),
        Some(role) => panic!("`{role}` is no role"),
        None => {}
    }
}

fn open(path: &Path) -> (SqliteRepository, JobId) {
    let repository = SqliteOptions::new().busy_timeout(Duration::from_secs(60)).open(path).unwrap();
    let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
    (repository, job)
}

/// Says how every unit ended that it is called back for.
fn saying(builder: WorkPoolBuilder) -> WorkPoolBuilder {
    let called_back = |unit: &WorkUnit| say(format_args!("callback {} {}", unit.id, unit.status));
    builder
        .on_unit_complete(move |unit, _| called_back(unit))
        .on_unit_failed(move |unit, _| called_back(unit))
        .on_unit_cancelled(called_back)
}

/// A pool that has a unit in every place where one can wait, and one that runs.
fn hold() {
    let (repository, job) = open(&children::path());
    let (begins, begun) = crossbeam_channel::bounded(1);
    let execute = move |call: &Call<'_>| match call.unit().id.as_str() {
        "in back-off" => Err(ExecuteError::retry("not yet")),
        "done" => Ok(WorkResult::empty()),
        _ => {
            begins.send(()).unwrap();
            call.cancel_token().wait_timeout(HOUR);
            say(format_args!("asked {:?}", call.cancel_reason().unwrap()));
            Err(ExecuteError::retry("stopped, as asked"))
        }
    };
    let builder = WorkPool::builder(job, execute, repository.clone()).max_workers(1).heartbeat(HEARTBEAT);
    let pool = saying(builder.retry(RetryPolicy::fixed(HOUR))).up();
    pool.enqueue(NewUnit::new("done"), "go").unwrap().wait().unwrap();
    let mut handles = vec![pool.enqueue(NewUnit::new("in back-off"), "go").unwrap()];
    // Its slot is free once it waits.
    assert!(pool.wait_for_available_slot());
    handles.push(pool.submit_work_unit(NewUnit::new("running"), "go").unwrap());
    handles.push(pool.enqueue(NewUnit::new("in line"), "go").unwrap());
    let later = chrono::Utc::now() + HOUR;
    handles.push(pool.enqueue(NewUnit::new("dated").not_before(later), "go").unwrap());
    repository.queue_unit(job, &NewUnit::new("for anybody").prompt("go")).unwrap();
    begun.recv().unwrap();
    say("ready");
    std::thread::scope(|threads| {
        for handle in &handles {
            threads.spawn(|| {
                let status = handle.wait().unwrap().status;
                say(format_args!("handle {} {status}", handle.id()));
            });
        }
    });
    pool.wait_for_completion();
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    say(format_args!("{} cancelled, {} lost, {} attempts", stats.cancelled, stats.lost, stats.attempts));
}

#[test]
fn another_process_cancels_units_in_every_state_and_their_pool_tells_within_a_heartbeat() {
    // 003-F46, 003-F47
    let folder = support::folder();
    let path = folder.path().join("cancels.db");
    let mut holder = Role::new("pool_cancel::child", "holds", &path).start();
    holder.wait_for("callback done COMPLETED");
    holder.wait_for("ready");
    let (repository, job) = open(&path);
    let cancel = |id: &str| repository.cancel(job, id, &By::whom("another process")).unwrap();
    let rows = || repository.journal(0, PAGE_LIMIT).unwrap().items.len();

    // What waits, at once; the pool hears of it though its only worker is busy and nothing else is due for an hour.
    for id in ["in line", "in back-off", "dated"] {
        assert_eq!(cancel(id), CancelAnswer::Cancelled);
        assert_eq!(repository.unit(job, id).unwrap().status, UnitStatus::Cancelled);
        holder.wait_for(&format!("callback {id} CANCELLED"));
        holder.wait_for(&format!("handle {id} CANCELLED"));
    }
    assert_eq!(cancel("for anybody"), CancelAnswer::Cancelled);
    assert_eq!(repository.unit(job, "running").unwrap().status, UnitStatus::Processing);
    // What runs, through its worker.
    assert_eq!(cancel("running"), CancelAnswer::Requested);
    for line in ["asked Requested", "callback running CANCELLED", "handle running CANCELLED"] {
        holder.wait_for(line);
    }
    // What has ended, and what never was.
    let before = rows();
    for id in ["in line", "in back-off", "dated", "for anybody", "running"] {
        assert_eq!(cancel(id), CancelAnswer::AlreadyEnded(UnitStatus::Cancelled));
    }
    assert_eq!(cancel("done"), CancelAnswer::AlreadyEnded(UnitStatus::Completed));
    let unknown = repository.cancel(job, "nothing", &By::whom("another process")).unwrap_err();
    assert!(matches!(unknown, RepositoryError::UnknownUnit { .. }), "{unknown}");
    assert_eq!(rows(), before, "nothing has changed");
    assert_eq!(holder.end_well(), ["4 cancelled, 0 lost, 3 attempts"]);
    let verification = Verify::new().settled().run(&repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

fn name(round: usize, number: usize) -> String {
    format!("{round}-{number}")
}

/// Executes a crowd of units, which all end at a word of the parent; again and again.
fn finish() {
    let (repository, job) = open(&children::path());
    let gate = Arc::new(Mutex::new(Gate::closed()));
    let execute = {
        let gate = Arc::clone(&gate);
        move |call: &Call<'_>| {
            let gate = gate.lock().unwrap().clone();
            gate.pass();
            Ok(WorkResult::text(call.prompt()))
        }
    };
    let builder = WorkPool::builder(job, execute, repository).max_workers(CROWD).heartbeat(HEARTBEAT);
    let pool = saying(builder).up();
    for round in 0..ROUNDS {
        *gate.lock().unwrap() = Gate::closed();
        let submit = |number| {
            assert!(pool.wait_for_available_slot());
            pool.submit_work_unit(NewUnit::new(name(round, number)), "go").unwrap()
        };
        let handles: Vec<_> = (0..CROWD).map(submit).collect();
        let gate = gate.lock().unwrap().clone();
        gate.wait_for(CROWD as u64);
        say("ready");
        hear();
        gate.open();
        for handle in handles {
            say(format_args!("handle {} {}", handle.id(), handle.wait().unwrap().status));
        }
        say("over");
    }
    pool.stop(Stop::Drain).unwrap();
}

/// Cancels the units of a round, whenever it is told one.
fn cancel() {
    let (repository, job) = open(&children::path());
    say("ready");
    while let Some(round) = hear() {
        let round: usize = round.parse().unwrap();
        for number in 0..CROWD {
            let id = name(round, number);
            let answer = repository.cancel(job, &id, &By::whom("another process")).unwrap();
            say(format_args!("answer {id} {answer:?}"));
        }
        say("over");
    }
}

/// The lines of a child until it says that a round is over.
fn round_of(child: &mut children::Child) -> Vec<String> {
    let lines = std::iter::from_fn(|| Some(child.line().expect("the child goes on")));
    lines.take_while(|line| line != "over").collect()
}

/// What was said about units: the third word of each line with this first one.
fn said(lines: &[String], what: &str) -> BTreeMap<String, String> {
    let words = lines.iter().map(|line| line.splitn(3, ' ').collect::<Vec<_>>());
    let meant: Vec<_> = words.filter(|words| words[0] == what).collect();
    let said: BTreeMap<_, _> = meant.iter().map(|words| (words[1].to_owned(), words[2].to_owned())).collect();
    assert_eq!(said.len(), meant.len(), "{what}: something is said twice of one unit");
    said
}

#[test]
fn a_cancel_and_a_finish_of_two_processes_have_one_outcome_a_thousand_times() {
    // 003-F43, 003-F46, 003-F47, P17
    let folder = support::folder();
    let path = folder.path().join("race.db");
    drop(open(&path));
    let mut finisher = Role::new("pool_cancel::child", "finishes", &path).start();
    let mut canceller = Role::new("pool_cancel::child", "cancels", &path).start();
    canceller.wait_for("ready");
    let (mut finished, mut cancelled) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        finisher.wait_for("ready");
        // Each has the lead in turn, so that both come first often enough.
        if round % 2 == 0 {
            finisher.tell("go");
            canceller.tell(round);
        } else {
            canceller.tell(round);
            finisher.tell("go");
        }
        finished.extend(round_of(&mut finisher));
        cancelled.extend(round_of(&mut canceller));
    }
    finished.extend(finisher.end_well());
    canceller.end_well();

    let (repository, job) = open(&path);
    let (callbacks, handles, answers) =
        (said(&finished, "callback"), said(&finished, "handle"), said(&cancelled, "answer"));
    let ends = outcomes(&repository);
    let mut seen = BTreeSet::new();
    for id in (0..ROUNDS).flat_map(|round| (0..CROWD).map(move |number| name(round, number))) {
        let unit = repository.unit(job, &id).unwrap();
        let status = unit.status.to_string();
        assert_eq!((&callbacks[&id], &handles[&id]), (&status, &status), "{id}");
        let expected = match unit.status {
            UnitStatus::Cancelled => "Requested",
            UnitStatus::Completed => "AlreadyEnded(Completed)",
            status => panic!("{id} is {status}"),
        };
        assert_eq!(answers[&id], expected, "{id}");
        assert_eq!(ends[&unit.key.0], [unit.status], "{id}: one outcome");
        seen.insert(unit.status);
    }
    assert_eq!((callbacks.len(), ends.len(), seen.len()), (ROUNDS * CROWD, ROUNDS * CROWD, 2), "{seen:?}");
    let verification = Verify::new().settled().run(&repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

/// How each unit ended, as often as it did.
fn outcomes(archive: &dyn Archive) -> BTreeMap<i64, Vec<UnitStatus>> {
    let (mut ends, mut next) = (BTreeMap::<i64, Vec<UnitStatus>>::new(), Some(0));
    while let Some(after) = next {
        let page = archive.outcomes_since(after, PAGE_LIMIT).unwrap();
        for row in page.items {
            ends.entry(row.unit.0).or_default().push(row.to);
        }
        next = page.next;
    }
    ends
}
