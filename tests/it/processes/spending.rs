//! One budget for all processes: whatever happens to one of them, nothing begins that there is no money for, and nothing stays reserved.

use std::collections::HashMap;
use std::time::Duration;

use rustix::process::Signal;
use workcrew::audit::verify::Verify;
use workcrew::limits::{Account, AccountHolder};
use workcrew::money::Cost;
use workcrew::repository::By;
use workcrew::testing::Gate;
use workcrew::unit::Change;
use workcrew::{
    Archive as _, Attempt, AttemptKey, Call, Charge, ExecuteError, JobChange, Money, NewUnit, Outcome, Repository as _,
    RetryPolicy, SqliteRepository, Stop, Tokens, WorkPool, WorkResult,
};

use super::{JOB, POLL, Shared, pages};
use crate::children::{self, Role, hear, say, was_killed};
use crate::support::Up as _;

/// How many workers each process has: 64 together.
const PROCESSES: [(&str, usize); 3] = [("killed", 22), ("b", 21), ("c", 21)];

const UNITS: usize = 300;

const CENT: i64 = 10_000_000;

/// What an attempt is taken to cost before one has ended: less than most do.
const GUESS: Money = Money::from_nanos(CENT);

#[test]
#[ignore = "a process of its own, which the other test starts"]
fn child() {
    let Some(name) = children::role() else { return };
    children::note_warnings();
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let workers = PROCESSES.iter().find(|(other, _)| *other == name).map_or(8, |&(_, workers)| workers);
    let gate = Gate::closed();
    let execute = {
        let gate = gate.clone();
        move |call: &Call<'_>| execute(&gate, call)
    };
    let pool = WorkPool::builder(job, execute, repository)
        .label(name)
        .max_workers(workers)
        .expected_cost(GUESS)
        .heartbeat(Duration::from_millis(100))
        .poll_interval(POLL)
        .retry(RetryPolicy::immediate())
        .up();
    std::thread::spawn(move || {
        hear();
        gate.open();
    });
    let completion = pool.process_pending();
    pool.stop(Stop::Drain).unwrap();
    say(format_args!("{completion:?}"));
}

/// Costs from one to four cents, once the parent lets everybody in this process go on.
fn execute(gate: &Gate, call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
    let number: i64 = call.unit().id.as_str().parse().unwrap();
    say("executing");
    gate.pass();
    call.usage(Charge::reported("large", Tokens::default(), Money::from_nanos(CENT * (1 + number % 4))));
    call.cancel_token().wait_timeout(Duration::from_millis(1));
    if number % 7 == 0 && call.attempt_number() == 1 {
        return Err(ExecuteError::retry("again"));
    }
    Ok(WorkResult::text("done"))
}

fn start(shared: &Shared, name: &str) -> children::Child {
    Role::new("processes::spending::child", name, &shared.path).start()
}

fn set_budget(shared: &Shared, dollars: i64) {
    let change = JobChange::default().budget(Money::from_nanos(dollars * 100 * CENT));
    shared.repository.change_job(shared.job, &change, &By::whom("ada")).unwrap();
}

fn account(shared: &Shared) -> Account {
    shared.repository.account(AccountHolder::Job(shared.job)).unwrap().unwrap()
}

fn cost(shared: &Shared, attempt: AttemptKey) -> Money {
    let charges = shared.repository.charges(attempt).unwrap();
    charges.iter().map(Charge::cost).sum::<Cost>().amount
}

fn assert_clean(shared: &Shared) {
    let verification = Verify::new().run(&shared.repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

/// Follows the journal: each attempt began when what it was expected to cost was left. Returns what was spent in the end, and by how much
/// attempts that were under way together cost more at most than was expected of them.
fn replay(shared: &Shared, budget: Money) -> (Money, Money) {
    let (mut spent, mut under_way) = (0, HashMap::new());
    let mut worst = 0;
    for entry in pages(|after| shared.repository.journal(after, 1_000)) {
        let Some(number) = entry.attempt_number else { continue };
        let key = AttemptKey { unit: entry.unit, number };
        let attempts = || shared.repository.attempts(entry.unit).unwrap();
        let attempt = || -> Attempt { attempts().into_iter().find(|attempt| attempt.key == key).unwrap() };
        if entry.change == Change::Claim {
            let expected = attempt().expected.unwrap().nanos();
            under_way.insert(key, (expected, cost(shared, key).nanos()));
            let reserved: i64 = under_way.values().map(|(expected, _)| expected).sum();
            assert!(spent + reserved <= budget.nanos(), "{key:?} began with {spent} spent and {reserved} reserved");
            worst = worst.max(under_way.values().map(|(expected, cost)| (cost - expected).max(0)).sum());
        } else if entry.head.is_some() {
            spent += under_way.remove(&key).unwrap().1;
        }
    }
    assert!(under_way.is_empty(), "{under_way:?}");
    (Money::from_nanos(spent), Money::from_nanos(worst))
}

#[test]
fn a_budget_is_kept_by_three_processes_of_which_one_is_killed() {
    let units = (0..UNITS).map(|id| NewUnit::new(id.to_string()).prompt("go").max_retries(3));
    let shared = Shared::new(units);
    set_budget(&shared, 1);
    let mut processes = PROCESSES.map(|(name, workers)| (start(&shared, name), workers));
    for (process, workers) in &mut processes {
        for _ in 0..*workers {
            process.wait_for("executing");
        }
    }
    assert_eq!(account(&shared).reserved, Money::from_nanos(64 * GUESS.nanos()), "all of them are in the middle");
    let [(killed, workers), mut others @ ..] = processes;
    killed.signal(Signal::KILL);
    assert!(was_killed(killed.end().0));
    for (other, _) in &mut others {
        other.tell("go on");
    }
    for (other, _) in others {
        let lines = other.end_well();
        assert!(lines.last().unwrap().starts_with("Blocked("), "{lines:?}");
    }

    let Account { budget, spent, reserved, .. } = account(&shared);
    assert_eq!(reserved, Money::ZERO, "the dead have nothing reserved");
    let (counted, worst) = replay(&shared, budget);
    assert_eq!(spent, counted);
    assert!(spent.nanos() - budget.nanos() <= worst.nanos(), "{spent} of {budget}, and {worst} was not expected");
    assert!(spent.nanos() > budget.nanos() - 4 * CENT, "hardly anything is left: {spent}");
    let owner = shared.owner("killed").id;
    let lost: Vec<Attempt> =
        shared.ids.iter().flat_map(|id| shared.attempts(id)).filter(|one| one.owner == owner).collect();
    assert_eq!(lost.len(), workers);
    for attempt in lost {
        assert_eq!(attempt.outcome, Some(Outcome::Lost));
        let charges = shared.repository.charges(attempt.key).unwrap();
        assert!(charges.iter().all(|charge| charge.is_estimated), "{charges:?}");
        assert_eq!(Some(cost(&shared, attempt.key)), attempt.expected);
    }
    assert_clean(&shared);

    // Nothing has failed for it, and with more money all of it is done.
    set_budget(&shared, 100);
    assert_eq!(start(&shared, "later").end_well().last().unwrap(), "Done");
    assert_eq!(shared.repository.counts(shared.job).unwrap().completed, UNITS as u64);
    assert_eq!(account(&shared).reserved, Money::ZERO);
    assert_clean(&shared);
}
