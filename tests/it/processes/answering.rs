//! The same work once, in all processes: each prompt is answered by one of them, also if that is killed over it.

use std::collections::BTreeMap;
use std::time::Duration;

use rustix::process::Signal;
use workcrew::audit::verify::Verify;
use workcrew::repository::UnitFilter;
use workcrew::{
    Archive as _, Attempt, Call, Completion, NewUnit, Outcome, OwnerId, Repository as _, SqliteRepository, Stop,
    UnitStatus, WorkPool, WorkResult,
};

use super::{JOB, POLL, Shared};
use crate::children::{self, Child, Role, hear, note, say, was_killed};
use crate::pool::until;
use crate::support::Up as _;

/// A prompt over which the first process that is asked waits to be killed.
const DEADLY: &str = "deadly";

#[test]
#[ignore = "a process of its own, which the other tests start"]
fn child() {
    let Some(name) = children::role() else { return };
    children::note_warnings();
    let repository = SqliteRepository::open(children::path()).unwrap();
    let job = repository.job_named(JOB).unwrap().unwrap().id;
    let execute = {
        let name = name.clone();
        move |call: &Call<'_>| {
            note(format_args!("asked {} {name}", call.prompt()));
            if call.prompt() == DEADLY && name == "first" {
                say("executing");
                hear();
            }
            call.cancel_token().wait_timeout(Duration::from_millis(20));
            Ok(WorkResult::text(format!("{} by {name}", call.prompt())))
        }
    };
    let builder = WorkPool::builder(job, execute, repository).label(name).max_workers(16).poll_interval(POLL);
    let pool = builder.same_work_once_with("these tests").up();
    let completion = pool.process_pending();
    pool.stop(Stop::Drain).unwrap();
    say(format_args!("{completion:?}"));
}

fn start(shared: &Shared, name: &str) -> Child {
    Role::new("processes::answering::child", name, &shared.path).start()
}

fn ends_well(process: Child) {
    assert_eq!(process.end_well().last().unwrap(), &format!("{:?}", Completion::Done));
}

/// By whom each prompt was answered.
fn asked(shared: &Shared) -> BTreeMap<String, Vec<String>> {
    let mut asked = BTreeMap::<String, Vec<String>>::new();
    for note in shared.notes("asked") {
        asked.entry(note[0].clone()).or_default().push(note[1].clone());
    }
    asked
}

fn assert_clean(shared: &Shared) {
    let verification = Verify::new().settled().run(&shared.repository).unwrap();
    assert!(verification.is_clean(), "{verification}");
}

fn last_attempts(shared: &Shared) -> Vec<Attempt> {
    shared.ids.iter().map(|id| shared.attempts(id).pop().unwrap()).collect()
}

#[test]
fn of_all_processes_one_answers_each_prompt_and_all_units_have_that_answer() {
    const PROMPTS: usize = 12;
    let unit = |number: usize| NewUnit::new(number.to_string()).prompt(format!("prompt-{}", number % PROMPTS));
    let shared = Shared::new((0..240).map(unit));
    for process in [start(&shared, "a"), start(&shared, "b"), start(&shared, "c")] {
        ends_well(process);
    }
    let asked = asked(&shared);
    assert_eq!(asked.len(), PROMPTS);
    assert!(asked.values().all(|by| by.len() == 1), "{asked:?}");
    let owners = shared.repository.owners().unwrap();
    let labels: BTreeMap<OwnerId, String> = owners.into_iter().map(|owner| (owner.id, owner.label)).collect();
    for (id, attempt) in shared.ids.iter().zip(last_attempts(&shared)) {
        let (unit, prompt) = (shared.unit(id), format!("prompt-{}", id.parse::<usize>().unwrap() % PROMPTS));
        assert_eq!(unit.status, UnitStatus::Completed);
        assert_eq!(unit.output, Some(format!("{prompt} by {}", asked[&prompt][0])));
        assert_eq!(unit.attempts_used, 1);
        let name = &labels[&attempt.owner];
        assert!(attempt.answer_of.is_some() || *name == asked[&prompt][0], "{id}: nobody's answer");
    }
    let own = last_attempts(&shared).iter().filter(|attempt| attempt.answer_of.is_none()).count();
    assert_eq!(own, PROMPTS);
    assert_clean(&shared);
}

#[test]
fn who_waits_for_an_answer_of_a_process_that_is_killed_answers_itself() {
    let shared = Shared::new([NewUnit::new("x").prompt(DEADLY)]);
    let mut first = start(&shared, "first");
    first.wait_for("executing");
    let others: Vec<NewUnit> = (0..5).map(|number| NewUnit::new(number.to_string()).prompt(DEADLY)).collect();
    let second = start(&shared, "second");
    until(|| shared.repository.owners().unwrap().len() == 2);
    shared.repository.queue_units(shared.job, &others).unwrap();
    let is_processing = |id: &str| shared.unit(id).status == UnitStatus::Processing;
    until(|| (0..5).all(|number| is_processing(&number.to_string())));
    assert_eq!(asked(&shared)[DEADLY], ["first"], "all others wait");
    first.signal(Signal::KILL);
    assert!(was_killed(first.end().0));
    ends_well(second);

    assert_eq!(asked(&shared)[DEADLY], ["first", "second"], "what was not finished is asked once more");
    let outcomes: Vec<_> = shared.attempts("x").iter().map(|attempt| attempt.outcome.unwrap()).collect();
    assert_eq!(outcomes, [Outcome::Lost, Outcome::Completed]);
    let units = shared.repository.units(&UnitFilter::job(shared.job), 0, 100).unwrap().items;
    assert_eq!(units.len(), 6);
    for unit in &units {
        assert_eq!((unit.status, unit.output.as_deref()), (UnitStatus::Completed, Some("deadly by second")));
    }
    assert_clean(&shared);
}
