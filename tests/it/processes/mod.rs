//! Several processes that pull the units of one job from one file: they share the work, and whatever happens to one of them, the
//! others carry on.
//!
//! Each is a [`child`] with a name, whose pool executes whatever there is until nothing is left. What it does with a unit says the
//! unit's prompt: see [`Act`]. What it executes and calls back it also notes beside the database, which no crash takes back.

mod answering;
mod asking;
#[cfg(feature = "http")]
mod closing;
mod failover;
mod handling;
mod leaving;
mod sharing;
mod spending;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use serde_json::json;
use workcrew::audit::verify::Verify;
use workcrew::clock::{Clock as _, SystemClock};
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{JournalEntry, Page, UnitFilter};
use workcrew::testing::Gate;
use workcrew::unit::Change;
use workcrew::{
    Archive, Attempt, Call, ExecuteError, JobId, Message, NewJob, NewUnit, Owner, PoolHandle, Process, Repository,
    RepositoryError, RetryPolicy, SqliteRepository, Stop, UnitStatus, WorkPool, WorkResult, WorkUnit, Worker,
};

use crate::children::{self, Child, Role, hear, note, say};
use crate::support::{self, Up as _};

const JOB: &str = "shared";

/// How many units a process executes at a time.
const WORKERS: usize = 4;

/// How long the leases of a process are, in milliseconds; an hour if not set.
const LEASE_MS: &str = "WORKCREW_TEST_LEASE_MS";
const HOUR_MS: u64 = 3_600_000;

/// Set for a process that is to go on until it is told to stop.
const FOLLOWS: &str = "WORKCREW_TEST_FOLLOWS";

/// How often a process looks for what others leave behind.
const POLL: Duration = Duration::from_millis(20);

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// What a unit's executor does, which its prompt names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    /// Takes a moment.
    Work,
    /// Waits until the parent lets everybody in this process go on.
    Gate,
    /// The first attempt saves what it has, and waits until it is asked to stop. The next one notes what it goes on from.
    Stay,
    /// The same, but what asks it to stop is not heard.
    Deaf,
    /// The same, but it has a child process, which it ends when it is asked to stop; then it answers all the same.
    Hold,
    /// The first attempt saves what it has, and finds that what it needs cannot be reached. The next one notes what it goes on from.
    Unreachable,
    /// Kills the process that executes it.
    Die,
}

impl Act {
    const ALL: [(Act, &str); 7] = [
        (Act::Work, "work"),
        (Act::Gate, "gate"),
        (Act::Stay, "stay"),
        (Act::Deaf, "deaf"),
        (Act::Hold, "hold"),
        (Act::Unreachable, "unreachable"),
        (Act::Die, "die"),
    ];

    fn prompt(self) -> &'static str {
        Act::ALL.iter().find(|(act, _)| *act == self).unwrap().1
    }

    fn of(prompt: &str) -> Act {
        Act::ALL.iter().find(|(_, name)| *name == prompt).unwrap().0
    }

    fn unit(self, id: impl Into<String>) -> NewUnit {
        NewUnit::new(id).prompt(self.prompt())
    }

    /// So many units, numbered behind their name.
    fn units(self, count: usize) -> Vec<NewUnit> {
        (0..count).map(|number| self.unit(format!("{}-{number:04}", self.prompt()))).collect()
    }
}

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    if let Some(name) = children::role() {
        pull(&name);
    }
}

/// Pulls until nothing is left, or it is told to stop.
fn pull(name: &str) {
    children::note_warnings();
    let lease = Duration::from_millis(std::env::var(LEASE_MS).map_or(HOUR_MS, |ms| ms.parse().unwrap()));
    // Whoever waits for the file for longer than that would not notice in time that its leases end.
    let patience = Duration::from_secs(5).min(lease / 6);
    let repository = SqliteOptions::new().busy_timeout(patience).open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let gate = Gate::closed();
    let called_back = {
        let name = name.to_owned();
        move |unit: &WorkUnit| note(format_args!("callback {name} {} {}", unit.id, unit.status))
    };
    let (completed, failed, cancelled) = (called_back.clone(), called_back.clone(), called_back);
    let execute = {
        let (name, gate) = (name.to_owned(), gate.clone());
        move |call: &Call<'_>| execute(&name, &gate, call)
    };
    let pool = WorkPool::builder(job, execute, repository)
        .label(name)
        .max_workers(WORKERS)
        .lease(lease)
        .heartbeat(lease / 6)
        .poll_interval(POLL)
        .retry(RetryPolicy::immediate())
        .on_unit_complete(move |unit, _| completed(unit))
        .on_unit_failed(move |unit, _| failed(unit))
        .on_unit_cancelled(cancelled)
        .up();
    let handle = pool.handle();
    std::thread::spawn(move || obey(&gate, &handle));
    let completion = if std::env::var_os(FOLLOWS).is_some() { pool.follow() } else { pool.process_pending() };
    let stats = pool.stop(Stop::Drain).unwrap().stats;
    say(format_args!(
        "{completion:?}: {} completed, {} left, {} lost",
        stats.completed, stats.left_pending, stats.lost
    ));
}

/// Does what the parent says.
fn obey(gate: &Gate, pool: &PoolHandle) {
    while let Some(order) = hear() {
        match order.as_str() {
            "go on" => gate.open(),
            "drain" => pool.stop(Stop::Drain),
            "cancel" => pool.stop(Stop::Cancel { grace: LONG }),
            "now" => pool.stop(Stop::Now),
            _ => panic!("`{order}` is no order"),
        }
        say(format_args!("heard {order}"));
    }
}

fn execute(name: &str, gate: &Gate, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let (id, attempt) = (&call.unit().id, call.attempt_number());
    note(format_args!("run {name} {id} {attempt}"));
    let act = Act::of(call.prompt());
    let is_first = attempt == 1;
    match act {
        Act::Work => {}
        Act::Gate if gate.is_open() => {}
        Act::Gate => {
            say("executing");
            gate.pass();
            if let Some(reason) = call.cancel_reason() {
                return Err(ExecuteError::retry(format!("it was hurried: {reason:?}")));
            }
        }
        Act::Die => {
            kill_process(getpid(), Signal::KILL).unwrap();
            std::thread::park();
        }
        Act::Stay | Act::Deaf | Act::Hold | Act::Unreachable if !is_first => {
            let (session, checkpoint) = (call.resume_session().unwrap_or("none"), call.last_checkpoint());
            note(format_args!("resumed {name} {id} {session} {}", checkpoint.unwrap_or(&json!(null))));
        }
        Act::Stay | Act::Deaf | Act::Hold | Act::Unreachable => return stay(act, gate, call),
    }
    call.cancel_token().wait_timeout(Duration::from_millis(1));
    Ok(WorkResult::text(format!("{name} in attempt {attempt}")))
}

fn session(id: &str) -> String {
    format!("session-of-{id}")
}

/// Saves what it has, and waits.
fn stay(act: Act, gate: &Gate, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    call.message(Message::assistant("so far"));
    call.session(session(call.unit().id.as_str()));
    call.checkpoint(7);
    match act {
        Act::Unreachable => {
            // Nobody listens on a port that was given back.
            let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let error = TcpStream::connect(port).unwrap_err();
            return Err(ExecuteError::give_up(error.to_string()).kind("gateway"));
        }
        Act::Deaf => {
            say("executing");
            gate.pass();
        }
        Act::Hold => {
            let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
            call.process_started(cat.id());
            say(format_args!("executing {}", cat.id()));
            let reason = call.cancel_token().wait_timeout(LONG);
            cat.kill().unwrap();
            cat.wait().unwrap();
            say(format_args!("asked to stop: {:?}", reason.unwrap()));
            call.message(Message::assistant("too late"));
            return Ok(WorkResult::text("too late"));
        }
        _ => {
            say("executing");
            call.cancel_token().wait_timeout(LONG);
        }
    }
    Err(ExecuteError::retry(format!("{:?}", call.cancel_reason())))
}

/// A file with the units of a job, that processes pull from.
struct Shared {
    _folder: tempfile::TempDir,
    path: PathBuf,
    repository: SqliteRepository,
    job: JobId,
    ids: Vec<String>,
}

impl Shared {
    /// Queues units, without a pool.
    fn new(units: impl IntoIterator<Item = NewUnit>) -> Shared {
        let folder = support::folder();
        let path = folder.path().join("shared.db");
        let repository = SqliteRepository::open(&path).unwrap();
        let job = repository.create_job(&NewJob::named(JOB)).unwrap().id;
        let units: Vec<NewUnit> = units.into_iter().collect();
        repository.queue_units(job, &units).unwrap();
        let ids = units.into_iter().map(|unit| unit.id).collect();
        Shared { _folder: folder, path, repository, job, ids }
    }

    fn role(&self, name: &str) -> Role {
        Role::new("processes::child", name, &self.path)
    }

    /// A process that pulls, with leases of an hour.
    fn start(&self, name: &str) -> Child {
        self.role(name).start()
    }

    fn unit(&self, id: &str) -> WorkUnit {
        self.repository.unit(self.job, id).unwrap()
    }

    fn attempts(&self, id: &str) -> Vec<Attempt> {
        self.repository.attempts(self.unit(id).key).unwrap()
    }

    fn ids_of(&self, act: Act) -> Vec<&str> {
        self.ids.iter().map(String::as_str).filter(|id| id.starts_with(act.prompt())).collect()
    }

    /// What the journal says of a unit.
    fn journal(&self, id: &str) -> Vec<JournalEntry> {
        let key = self.unit(id).key;
        pages(|after| self.repository.unit_journal(key, after, 1_000))
    }

    fn owner(&self, name: &str) -> Owner {
        let owners = self.repository.owners().unwrap();
        owners.into_iter().find(|owner| owner.label == name).unwrap()
    }

    fn workers(&self, name: &str) -> Vec<Worker> {
        self.repository.workers(self.owner(name).id, "", 100).unwrap()
    }

    /// The notes of a kind, without that word.
    fn notes(&self, kind: &str) -> Vec<Vec<String>> {
        let notes = children::notes(&self.path).into_iter().filter(|note| note[0] == kind);
        notes.map(|note| note[1..].to_vec()).collect()
    }

    /// Which units a process has executed, in which attempts.
    fn executed_by(&self, name: &str) -> BTreeSet<(String, u32)> {
        let runs = self.notes("run").into_iter().filter(|run| run[0] == name);
        runs.map(|run| (run[1].clone(), run[2].parse().unwrap())).collect()
    }

    /// That an attempt which follows one that stayed went on from what that had saved.
    fn assert_resumed(&self, id: &str) {
        let resumed: Vec<_> = self.notes("resumed").into_iter().filter(|note| note[1] == id).collect();
        let expected = vec![session(id), "7".to_owned()];
        assert_eq!(resumed.iter().map(|note| note[2..].to_vec()).collect::<Vec<_>>(), [expected], "{id}");
        let stayed = &self.attempts(id)[0];
        assert_eq!((stayed.session_id.clone(), stayed.message_count), (Some(session(id)), Some(1)), "{id}");
    }

    /// What must hold when all processes have ended of which so many were killed: the invariants, one end for every unit, at most one
    /// callback for each and as many as nobody was killed before, no attempt executed twice, nobody left in the records.
    fn assert_in_order(&self, kills: usize) {
        let ids = || self.ids.iter().map(|id| (self.job, id));
        let verification = Verify::new().acknowledged(ids()).submitted(ids()).settled().run(&self.repository).unwrap();
        assert!(verification.is_clean(), "{verification}");

        let units: Vec<WorkUnit> = pages(|after| self.repository.units(&UnitFilter::job(self.job), after, 1_000));
        let mut ends = BTreeMap::new();
        for entry in pages(|after| self.repository.outcomes_since(after, 1_000)) {
            assert_eq!(ends.insert(entry.unit, entry.to), None, "{:?} ended twice", entry.unit);
        }
        assert_eq!(units.len(), self.ids.len());
        assert!(units.iter().all(|unit| ends.get(&unit.key) == Some(&unit.status)), "{ends:?}");
        let completions = pages(|after| self.repository.journal(after, 1_000)).into_iter();
        let completions = completions.filter(|entry| entry.change == Change::Complete).count();
        assert_eq!(completions, units.iter().filter(|unit| unit.status == UnitStatus::Completed).count());

        let mut executed = BTreeSet::new();
        for run in self.notes("run") {
            assert!(executed.insert(run[1..].to_vec()), "an attempt was executed twice: {run:?}");
        }
        let mut told = BTreeMap::new();
        for callback in self.notes("callback") {
            let before = told.insert(callback[1].clone(), callback[2].clone());
            assert_eq!(before, None, "a second callback: {callback:?}");
        }
        for (id, status) in &told {
            assert_eq!(status, self.unit(id).status.name(), "{id}");
        }
        // What the sweep has failed nobody had in hand.
        let ended_by_sweep = units.iter().filter(|unit| unit.status == UnitStatus::Failed).count();
        assert!(told.len() + ended_by_sweep + WORKERS * kills >= units.len(), "{} callbacks", told.len());

        for owner in self.repository.owners().unwrap() {
            // Of one in another namespace nobody can tell that it is dead.
            if owner.process.pid_namespace != Process::this(&SystemClock.boot_id()).pid_namespace {
                continue;
            }
            assert!(owner.ended_at.is_some(), "{owner:?}");
            let workers = self.repository.workers(owner.id, "", 100).unwrap();
            assert!(workers.iter().all(|worker| worker.status.is_ended() && worker.load == 0), "{workers:?}");
        }
    }
}

/// All of what comes in pages.
fn pages<T>(mut read: impl FnMut(i64) -> Result<Page<T>, RepositoryError>) -> Vec<T> {
    let (mut items, mut next) = (Vec::new(), Some(0));
    while let Some(after) = next {
        let page = read(after).unwrap();
        items.extend(page.items);
        next = page.next;
    }
    items
}
