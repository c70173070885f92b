//! Every verb over storage that fails: the answer can be had by sending again, and the change is made once.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::json;
use workcrew::audit::verify::Verify;
use workcrew::clock::{Clock, ManualClock};
use workcrew::repository::sqlite::SqliteOptions;
use workcrew::repository::{By, ClaimRequest, Claimant, Intake, Result, Scope, Slot, Submitted, UnitFilter};
use workcrew::same_work::{Parameters, WorkKey};
use workcrew::testing::{Fault, FaultyRepository, Verb};
use workcrew::unit::UnitOptions;
use workcrew::worker::WorkerChange;
use workcrew::{
    Archive, AttemptReport, Beginning, Charge, Claim, Failure, FailureKind, JobChange, JobId, Lease, Message, Money,
    NewJob, NewOwner, NewUnit, Next, OwnerId, OwnerState, Process, Progress, Repository, SqliteRepository, Tokens,
    UnitStatus, WorkerId,
};

const LEASE: Duration = Duration::from_secs(60);
const JOB: JobId = JobId(1);
const OWNER: OwnerId = OwnerId(1);
const TOKEN: i64 = 4_711;

/// A database in which time stands still, so that the same calls leave the same records.
struct World {
    faulty: FaultyRepository,
    direct: SqliteRepository,
    clock: ManualClock,
    _folder: tempfile::TempDir,
}

/// How far the unit `a` of a world has got.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum State {
    Nothing,
    Job,
    Owner,
    Pending,
    Accepted,
    Assigned,
    Processing,
    Failed,
}

/// Brings a world one state further.
type Step = fn(&World);

impl World {
    fn in_state(state: State) -> World {
        let (folder, clock) = (tempfile::tempdir().unwrap(), ManualClock::new());
        let direct = SqliteOptions::new().clock(clock.clone()).open(folder.path().join("faulty.db")).unwrap();
        let world = World { faulty: FaultyRepository::new(direct.clone().into()), direct, clock, _folder: folder };
        let steps: [(State, Step); 7] = [
            (State::Job, |world| drop(world.direct.create_job(&NewJob::named("faulty")).unwrap())),
            (State::Owner, |world| assert_eq!(world.direct.register_owner(&new_owner()).unwrap(), OWNER)),
            (State::Pending, |world| drop(world.direct.insert(JOB, &[unit("a")], Intake::Open).unwrap())),
            (State::Accepted, |world| drop(world.direct.insert(JOB, &[unit("a")], Intake::AcceptedBy(OWNER)).unwrap())),
            (State::Assigned, |world| drop(world.direct.claim(&request(1)).unwrap())),
            (State::Processing, |world| world.direct.start(&world.lease(), &Beginning::default()).unwrap()),
            (State::Failed, |world| {
                let closed = world.direct.finish(&world.lease(), &failed(Next::GiveUp)).unwrap();
                assert_eq!(closed.status, UnitStatus::Failed);
            }),
        ];
        steps.iter().filter(|(reached, _)| *reached <= state).for_each(|(_, step)| step(&world));
        world
    }

    /// The lease of the unit, which is held.
    fn lease(&self) -> Lease {
        self.direct.claimed(OWNER, 1).unwrap()[0].lease.clone()
    }

    /// Everything that is stored, as text.
    fn snapshot(&self) -> String {
        let archive = &self.direct;
        let mut seen = format!("{:#?}\n", (archive.jobs(0, 100).unwrap(), archive.owners().unwrap()));
        for owner in archive.owners().unwrap() {
            seen += &format!("{:#?}\n", archive.workers(owner.id, "", 100).unwrap());
        }
        for unit in archive.units(&UnitFilter::default(), 0, 100).unwrap().items {
            seen += &format!("{unit:#?}\n{:?}\n", archive.checkpoint(unit.key).unwrap());
            for attempt in archive.attempts(unit.key).unwrap() {
                let key = attempt.key;
                let (result, charges) = (archive.attempt_result(key).unwrap(), archive.charges(key).unwrap());
                let (messages, partial) = (archive.messages(key, 0, 100).unwrap(), archive.partial_text(key).unwrap());
                seen += &format!("{attempt:#?}\n{result:#?}\n{charges:#?}\n{messages:#?}\n{partial:?}\n");
            }
        }
        seen + &format!("{:#?}", archive.journal(0, 1_000).unwrap())
    }

    fn assert_clean(&self, case: &Case) {
        let verification = Verify::new().run(&self.direct).unwrap();
        assert!(verification.is_clean(), "{:?}: {verification}", case.verb);
    }
}

/// The same owner in every world.
fn new_owner() -> NewOwner {
    let mut owner = NewOwner::new(Process::this(&ManualClock::new().boot_id()), "a test");
    owner.instance = "an instance".to_owned();
    owner
}

fn unit(id: &str) -> NewUnit {
    NewUnit::new(id).prompt("do it")
}

fn slot() -> Slot {
    Slot::new(WorkerId::new("w1").unwrap())
}

fn claimant(token: i64) -> Claimant {
    let mut claimant = Claimant::new(OWNER, LEASE);
    claimant.token = token;
    claimant
}

fn request(token: i64) -> ClaimRequest {
    ClaimRequest::new(JOB, claimant(token), Scope::Pending, vec![slot()])
}

fn failed(next: Next) -> AttemptReport {
    AttemptReport::failed(Failure::new(FailureKind::EXECUTOR, "no"), next).charge(charge())
}

fn charge() -> Charge {
    Charge::reported("large", Tokens { output: 7, ..Tokens::default() }, Money::from_nanos(21))
}

fn shown<T: std::fmt::Debug>(answer: Result<T>) -> Result<String> {
    answer.map(|answer| format!("{answer:?}"))
}

/// What is granted, in whatever way it was asked for.
fn granted(claims: &[Claim]) -> String {
    format!("{claims:?}")
}

/// How the answer of a call is found after it was lost.
enum Again {
    /// The same call gives the same answer.
    Same,
    /// The same call says that it is done, in these words.
    Done(&'static str),
    /// The same call is refused, since it is done.
    Refused(&'static str),
    /// The claims are asked for by their token.
    Claimed,
}

struct Case {
    verb: Verb,
    state: State,
    call: fn(&World) -> Result<String>,
    again: Again,
}

const CASES: &[Case] = &[
    Case {
        verb: Verb::CreateJob,
        state: State::Nothing,
        call: |world| shown(world.faulty.create_job(&NewJob::named("faulty"))),
        again: Again::Same,
    },
    Case {
        verb: Verb::ChangeJob,
        state: State::Job,
        call: |world| shown(world.faulty.change_job(JOB, &JobChange::default().settings(7), &By::whom("ada"))),
        again: Again::Same,
    },
    Case {
        verb: Verb::RegisterOwner,
        state: State::Job,
        call: |world| shown(world.faulty.register_owner(&new_owner())),
        again: Again::Same,
    },
    Case {
        verb: Verb::Insert,
        state: State::Owner,
        call: |world| shown(world.faulty.insert(JOB, &[unit("a"), unit("b")], Intake::AcceptedBy(OWNER))),
        again: Again::Done("[AlreadyExists(UnitKey(1)), AlreadyExists(UnitKey(2))]"),
    },
    Case {
        verb: Verb::Submit,
        state: State::Owner,
        call: |world| {
            Ok(match world.faulty.submit(JOB, &unit("a"), &claimant(TOKEN), &slot())? {
                Submitted::Claimed(claim) => granted(&[*claim]),
                other => format!("{other:?}"),
            })
        },
        again: Again::Claimed,
    },
    Case {
        verb: Verb::Claim,
        state: State::Pending,
        call: |world| Ok(granted(&world.faulty.claim(&request(TOKEN))?)),
        again: Again::Claimed,
    },
    Case {
        verb: Verb::Claimed,
        state: State::Assigned,
        call: |world| Ok(granted(&world.faulty.claimed(OWNER, 1)?)),
        again: Again::Same,
    },
    Case {
        verb: Verb::Start,
        state: State::Assigned,
        call: |world| shown(world.faulty.start(&world.lease(), &Beginning::default().rendered_prompt("really"))),
        again: Again::Same,
    },
    Case {
        verb: Verb::Append,
        state: State::Processing,
        call: |world| {
            let messages = [Message::user("one"), Message::assistant("two")];
            world.faulty.append(&world.lease(), 0, &messages)?;
            shown(world.direct.flush(&world.lease()))
        },
        again: Again::Same,
    },
    Case {
        verb: Verb::Partial,
        state: State::Processing,
        call: |world| {
            world.faulty.partial(&world.lease(), "half a mess")?;
            shown(world.direct.flush(&world.lease()))
        },
        again: Again::Same,
    },
    Case {
        verb: Verb::Flush,
        state: State::Processing,
        call: |world| shown(world.faulty.flush(&world.lease())),
        again: Again::Same,
    },
    Case {
        verb: Verb::Progress,
        state: State::Processing,
        call: |world| {
            let progress = Progress::default().session("s1").charge(charge());
            shown(world.faulty.progress(&world.lease(), &progress))
        },
        again: Again::Same,
    },
    Case {
        verb: Verb::CheckpointAt,
        state: State::Processing,
        call: |world| shown(world.faulty.checkpoint_at(&world.lease(), &json!({ "step": 2 }))),
        again: Again::Same,
    },
    Case {
        verb: Verb::Share,
        state: State::Processing,
        call: |world| {
            let key = WorkKey::of("a test", &Parameters::of(&json!(1)), &UnitOptions::default(), "do it");
            shown(world.faulty.share(&world.lease(), &key))
        },
        again: Again::Same,
    },
    Case {
        verb: Verb::Finish,
        state: State::Processing,
        call: |world| {
            let report = AttemptReport::completed().output("done").result(json!([1])).charge(charge());
            shown(world.faulty.finish(&held_before(world), &report))
        },
        again: Again::Same,
    },
    Case {
        verb: Verb::Finish,
        state: State::Processing,
        call: |world| shown(world.faulty.finish(&held_before(world), &failed(Next::Retry { after: Duration::ZERO }))),
        again: Again::Same,
    },
    Case {
        verb: Verb::Finish,
        state: State::Processing,
        call: |world| shown(world.faulty.finish(&held_before(world), &failed(Next::GiveUp))),
        again: Again::Same,
    },
    Case {
        verb: Verb::Release,
        state: State::Processing,
        call: |world| shown(world.faulty.release(&held_before(world), None, "not now")),
        again: Again::Same,
    },
    Case {
        verb: Verb::Renew,
        state: State::Processing,
        call: |world| shown(world.faulty.renew(OWNER, 2 * LEASE)),
        again: Again::Same,
    },
    Case {
        verb: Verb::Expire,
        state: State::Processing,
        call: |world| {
            world.clock.advance(2 * LEASE - world.elapsed());
            shown(world.faulty.expire(10))
        },
        again: Again::Done("[]"),
    },
    Case {
        verb: Verb::Cancel,
        state: State::Pending,
        call: |world| shown(world.faulty.cancel(JOB, "a", &By::whom("ada"))),
        again: Again::Done("AlreadyEnded(Cancelled)"),
    },
    Case {
        verb: Verb::Cancel,
        state: State::Processing,
        call: |world| shown(world.faulty.cancel(JOB, "a", &By::whom("ada"))),
        again: Again::Done("AlreadyRequested"),
    },
    Case {
        verb: Verb::Requeue,
        state: State::Failed,
        call: |world| shown(world.faulty.requeue(JOB, "a", &By::whom("ada"))),
        again: Again::Refused("unit `a` is PENDING, which allows no REQUEUE"),
    },
    Case {
        verb: Verb::LetGo,
        state: State::Accepted,
        call: |world| shown(world.faulty.let_go(OWNER)),
        again: Again::Done("0"),
    },
    Case {
        verb: Verb::Tell,
        state: State::Owner,
        call: |world| shown(world.faulty.tell(OWNER, &OwnerState::default())),
        again: Again::Same,
    },
    Case {
        verb: Verb::EndOwner,
        state: State::Processing,
        call: |world| shown(world.faulty.end_owner(OWNER)),
        again: Again::Same,
    },
    Case {
        verb: Verb::ChangeWorker,
        state: State::Owner,
        call: |world| shown(world.faulty.change_worker(OWNER, JOB, &slot(), WorkerChange::Start)),
        again: Again::Refused("worker `w1` is STARTING, which allows no START"),
    },
    Case {
        verb: Verb::ChangeWorker,
        state: State::Processing,
        call: |world| shown(world.faulty.change_worker(OWNER, JOB, &slot(), WorkerChange::Die)),
        again: Again::Refused("worker `w1` is DEAD, which allows no DIE"),
    },
    Case {
        verb: Verb::Purge,
        state: State::Failed,
        call: |world| shown(world.faulty.purge(world.clock.now().wall + TimeDelta::days(1), &By::whom("ada"))),
        again: Again::Done("Purged { units: 0, messages: 0, is_in_log: false, is_in_index: false }"),
    },
    Case {
        verb: Verb::Read,
        state: State::Processing,
        call: |world| shown(world.faulty.unit(JOB, "a")),
        again: Again::Same,
    },
];

/// The lease under which the unit is or was held: its finish is sent again after it was closed.
fn held_before(world: &World) -> Lease {
    let held = world.direct.claimed(OWNER, 1).unwrap();
    if let Some(claim) = held.first() {
        return claim.lease.clone();
    }
    World::in_state(State::Processing).lease()
}

impl World {
    /// How far its clock was advanced.
    fn elapsed(&self) -> Duration {
        (self.clock.now().wall - ManualClock::new().now().wall).to_std().unwrap()
    }
}

/// The answer and the records of a call with which nothing goes wrong.
fn undisturbed(case: &Case) -> (String, String) {
    let world = World::in_state(case.state);
    let answer = (case.call)(&world).unwrap();
    world.assert_clean(case);
    (answer, world.snapshot())
}

#[test]
fn a_call_that_failed_changed_nothing_and_succeeds_when_it_is_sent_again() {
    for case in CASES {
        let (answer, left) = undisturbed(case);
        let world = World::in_state(case.state);
        let before = world.snapshot();
        world.faulty.on(case.verb, Fault::ErrorOnce);
        let error = (case.call)(&world).unwrap_err();
        assert!(!error.is_rejection(), "{:?}: {error}", case.verb);
        assert_eq!(world.snapshot(), before, "{:?}", case.verb);
        assert_eq!((case.call)(&world).unwrap(), answer, "{:?}", case.verb);
        assert_eq!(world.snapshot(), left, "{:?}", case.verb);
        world.assert_clean(case);
    }
}

#[test]
fn a_call_whose_answer_was_lost_is_made_once_and_its_answer_can_be_found() {
    for case in CASES {
        let (answer, left) = undisturbed(case);
        let world = World::in_state(case.state);
        world.faulty.on(case.verb, Fault::ExecutedThenError);
        let error = (case.call)(&world).unwrap_err();
        assert!(!error.is_rejection(), "{:?}: {error}", case.verb);
        // What nobody waits for is done once something that waits for it is.
        if let (Verb::Append | Verb::Partial, Ok(claims)) = (case.verb, world.direct.claimed(OWNER, 1)) {
            world.direct.flush(&claims[0].lease).unwrap();
        }
        assert_eq!(world.snapshot(), left, "{:?}", case.verb);
        match case.again {
            Again::Same => assert_eq!((case.call)(&world).unwrap(), answer, "{:?}", case.verb),
            Again::Done(done) => assert_eq!((case.call)(&world).unwrap(), done, "{:?}", case.verb),
            Again::Refused(refusal) => {
                let error = (case.call)(&world).unwrap_err();
                assert!(error.is_rejection(), "{:?}", case.verb);
                assert_eq!(error.to_string(), refusal);
            }
            Again::Claimed => {
                assert_eq!(granted(&world.faulty.claimed(OWNER, TOKEN).unwrap()), answer, "{:?}", case.verb);
            }
        }
        assert_eq!(world.snapshot(), left, "{:?}", case.verb);
        world.assert_clean(case);
    }
}

#[test]
fn a_verb_that_fails_for_good_tells_so_every_time_and_leaves_everything_as_it_was() {
    for case in CASES {
        let (answer, left) = undisturbed(case);
        let world = World::in_state(case.state);
        let before = world.snapshot();
        world.faulty.on(case.verb, Fault::ErrorAlways);
        for _ in 0..3 {
            assert!(!(case.call)(&world).unwrap_err().is_rejection(), "{:?}", case.verb);
        }
        assert_eq!(world.faulty.calls(case.verb), 3, "{:?}", case.verb);
        assert_eq!(world.snapshot(), before, "{:?}", case.verb);
        world.assert_clean(case);
        world.faulty.heal(case.verb);
        assert_eq!((case.call)(&world).unwrap(), answer, "{:?}", case.verb);
        assert_eq!(world.snapshot(), left, "{:?}", case.verb);
    }
}

#[test]
fn messages_whose_answers_are_lost_again_and_again_are_stored_once_and_in_order() {
    let world = World::in_state(State::Processing);
    let lease = world.lease();
    for number in 0..6 {
        world.faulty.on(Verb::Append, if number % 2 == 0 { Fault::ExecutedThenError } else { Fault::ErrorOnce });
        let messages = [Message::assistant(format!("message {number}"))];
        world.faulty.append(&lease, number, &messages).unwrap_err();
        world.faulty.append(&lease, number, &messages).unwrap();
    }
    world.faulty.finish(&lease, &AttemptReport::completed()).unwrap();
    let stored = world.direct.messages(lease.attempt(), 0, 100).unwrap().items;
    let texts: Vec<String> = stored.iter().map(|stored| stored.message().unwrap().unwrap().text()).collect();
    assert_eq!(texts, (0..6).map(|number| format!("message {number}")).collect::<Vec<_>>());
    assert_eq!(world.direct.attempts(lease.unit).unwrap()[0].messages_lost, 0);
    assert!(Verify::new().settled().run(&world.direct).unwrap().is_clean());
}

#[test]
fn a_finish_whose_answer_was_lost_is_no_late_report_even_after_the_unit_went_on() {
    let world = World::in_state(State::Processing);
    let (lease, report) = (world.lease(), failed(Next::Retry { after: Duration::ZERO }));
    world.faulty.on(Verb::Finish, Fault::ExecutedThenError);
    world.faulty.finish(&lease, &report).unwrap_err();
    let next = world.direct.claim(&request(TOKEN)).unwrap()[0].lease.clone();
    world.direct.start(&next, &Beginning::default()).unwrap();
    let before = world.snapshot();
    world.faulty.finish(&lease, &report).unwrap();
    assert_eq!(world.snapshot(), before);
    world.direct.finish(&next, &AttemptReport::completed()).unwrap();
    let archive: Arc<dyn Repository> = world.direct.clone().into();
    assert!(Verify::new().settled().run(&*archive).unwrap().is_clean());
}
