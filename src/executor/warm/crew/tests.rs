//! Who gets what, with processes that only echo.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::executor::process::tree::Times;
use crate::executor::process::{ChildCommand, Input, Line};
use crate::executor::warm::process::happens;
use crate::executor::warm::{Control, End, Heard, Query, Reach};
use crate::executor::{Call, ExecuteError, WorkResult};

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Has nothing to say to a process, which ends with its input.
struct Mute;

impl Dialect for Mute {
    type Memory = ();
    type Query = Mute;

    const REACH: Reach = Reach::Pipes;

    fn key(&self, _call: &Call<'_>) -> ProcessKey {
        ProcessKey::default()
    }

    fn session<'a>(&self, (): &'a ()) -> Option<&'a str> {
        None
    }

    fn fits(&self, (): &(), _resumed: Option<&str>) -> bool {
        true
    }

    fn child(&self, _call: &Call<'_>) -> ChildCommand {
        cat()
    }

    fn remember_start(&self, (): &mut (), _call: &Call<'_>) {}

    fn ask(
        &self,
        (): &mut (),
        _request_id: &str,
        _grace: Duration,
        _call: &Call<'_>,
    ) -> Result<(Vec<u8>, Mute), ExecuteError> {
        Ok((Vec::new(), Mute))
    }

    fn control(&self, _line: Line<'_>) -> Control {
        Control::Nothing
    }

    fn cancel(&self, _request_id: &str) -> Vec<u8> {
        Vec::new()
    }

    fn health_check(&self) -> Option<Vec<u8>> {
        None
    }

    fn shutdown(&self) -> Option<Vec<u8>> {
        None
    }
}

impl Query<()> for Mute {
    fn hear(&mut self, _line: Line<'_>, _call: &Call<'_>) -> Heard {
        Heard::More
    }

    fn conclude(self, _end: End<'_>, (): &mut (), _call: &Call<'_>) -> Result<WorkResult, ExecuteError> {
        Ok(WorkResult::empty())
    }
}

fn cat() -> ChildCommand {
    ChildCommand { input: Input::Open, ..ChildCommand::new("cat") }
}

/// A crew without a keeper: what goes is gone only when the test says so.
fn unkept(max_workers: usize) -> Arc<Crew<Mute>> {
    Arc::new(Crew::new(Mute, Keep::up_to(max_workers)).unwrap())
}

fn crew() -> Arc<Crew<Mute>> {
    let crew = unkept(1);
    crew.have_keeper().unwrap();
    crew
}

fn wait(crew: &Crew<Mute>) -> u64 {
    wait_for(crew, &ProcessKey::default())
}

fn wait_for(crew: &Crew<Mute>, key: &ProcessKey) -> u64 {
    crew.stand_in_line(key, None, &Arc::default()).0
}

fn key(session: &str) -> ProcessKey {
    ProcessKey { session: Some(session.to_owned()), ..ProcessKey::default() }
}

/// A crew of two that are idle and were started without a key.
fn two_idle() -> Arc<Crew<Mute>> {
    two_idle_of(2)
}

/// The same, of which there may be more.
fn two_idle_of(max_workers: usize) -> Arc<Crew<Mute>> {
    let crew = unkept(max_workers);
    let those = [wait(&crew), wait(&crew)].map(|ticket| process(&crew, ticket));
    those.into_iter().for_each(|process| crew.give_back(process, Fate::Idle));
    crew
}

/// Those that are on their way out.
fn leaving(crew: &Crew<Mute>) -> Vec<u64> {
    crew.lock().leaving.iter().map(|leaving| leaving.process.number).collect()
}

/// A process that is up, in the place that somebody has got.
fn process(crew: &Crew<Mute>, ticket: u64) -> Box<WarmProcess<()>> {
    let Some(Grant::Place(number)) = crew.take_grant(ticket) else { panic!("there was a place") };
    let times = Times { grace: Duration::ZERO, limit: LONG };
    let mut process = WarmProcess::start(number, cat(), Reach::Pipes, None, times, "a boot").unwrap();
    process.change(crate::executor::ipc::ProcessChange::Ready);
    Box::new(process)
}

/// Has all end, and says when they have.
fn shuts_down(crew: &Arc<Crew<Mute>>) -> Receiver<()> {
    let (send, over) = channel();
    let shuts = Arc::clone(crew);
    std::thread::spawn(move || {
        shuts.shut_down_all();
        send.send(())
    });
    while !crew.lock().members.values().all(|member| member.is_to_end) {
        std::thread::yield_now();
    }
    over
}

#[test]
fn who_leaves_the_line_with_a_place_or_a_process_keeps_nobody_waiting() {
    let crew = crew();
    let has_place = wait(&crew);
    let over = shuts_down(&crew);
    crew.leave_line(has_place);
    over.recv_timeout(LONG).expect("the place was given back");
    let (first, second) = (wait(&crew), wait(&crew));
    crew.give_back(process(&crew, first), Fate::Idle);
    let over = shuts_down(&crew);
    crew.leave_line(second);
    over.recv_timeout(LONG).expect("the process was seen off");
    assert_eq!(crew.count(), 0);
    crew.close(LONG);
}

#[test]
fn nobody_waits_for_what_a_thread_has_that_was_left_behind() {
    let left_behind = crew();
    let ticket = wait(&left_behind);
    let held = process(&left_behind, ticket);
    let over = shuts_down(&left_behind);
    left_behind.close(Duration::ZERO);
    over.recv_timeout(LONG).expect("all of it is over");
    let over = shuts_down(&left_behind);
    over.recv_timeout(LONG).expect("it is still over");
    left_behind.give_back(held, Fate::Idle);
    assert_eq!(left_behind.count(), 0);
}

#[test]
fn a_session_has_one_process_also_while_the_place_for_it_is_only_promised() {
    let (crew, ada) = (two_idle(), key("ada"));
    let (first, second) = (wait_for(&crew, &ada), wait_for(&crew, &ada));
    assert_eq!(leaving(&crew), [1], "one has to go, not both");
    crew.free(1);
    let held = process(&crew, first);
    assert!(crew.take_grant(second).is_none(), "it waits for the one of its session");
    crew.give_back(held, Fate::Idle);
    assert!(matches!(crew.take_grant(second), Some(Grant::Process(process)) if process.number == 3));
}

#[test]
fn who_waits_for_the_place_of_a_session_gets_it_also_if_the_one_before_goes() {
    let (crew, ada) = (two_idle(), key("ada"));
    let (first, second) = (wait_for(&crew, &ada), wait_for(&crew, &ada));
    crew.leave_line(first);
    crew.free(1);
    assert!(matches!(crew.take_grant(second), Some(Grant::Place(3))));
}

#[test]
fn who_comes_while_the_keeper_looks_at_an_idle_process_gets_that_or_a_place_if_it_goes() {
    let crew = two_idle_of(3);
    let looked_at = [1, 2].map(|number| crew.borrow_idle(number).unwrap());
    let (first, second) = (wait(&crew), wait(&crew));
    assert!(crew.take_grant(first).is_none() && crew.take_grant(second).is_none(), "none is started for them");
    let [one, two] = looked_at;
    crew.give_back(one, Fate::Idle);
    assert!(matches!(crew.take_grant(first), Some(Grant::Process(process)) if process.number == 1));
    assert!(crew.take_grant(second).is_none());
    crew.give_back(two, Fate::Dead);
    assert!(matches!(crew.take_grant(second), Some(Grant::Place(3))));
}

#[test]
fn a_place_that_was_promised_is_not_used_for_a_session_that_has_its_process_by_now() {
    let (crew, ada) = (two_idle(), key("ada"));
    let first = wait_for(&crew, &ada);
    // One that was started for another is asked in the session.
    let mut state = crew.lock();
    let other = state.members.get_mut(&2).unwrap();
    let Hands::Idle(held) = std::mem::replace(&mut other.hands, Hands::Call) else { panic!("it is idle") };
    other.asked_for = Some(ada);
    drop(state);
    crew.free(1);
    assert!(crew.take_grant(first).is_none(), "it waits for that one");
    crew.give_back(held, Fate::Idle);
    assert!(matches!(crew.take_grant(first), Some(Grant::Place(3))));
}

#[test]
fn a_place_goes_to_whom_it_was_promised() {
    let crew = unkept(2);
    let those = [wait(&crew), wait_for(&crew, &key("bob"))].map(|ticket| process(&crew, ticket));
    those.into_iter().for_each(|process| crew.give_back(process, Fate::Idle));
    let looked_at = crew.borrow_idle(1).unwrap();
    // The first may get what is just looked at, so the second is promised a place before it.
    let (first, second) = (wait(&crew), wait_for(&crew, &key("ada")));
    assert_eq!(leaving(&crew), [2]);
    crew.give_back(looked_at, Fate::Dead);
    crew.free(2);
    assert!(matches!(crew.take_grant(second), Some(Grant::Place(3))));
    assert!(crew.take_grant(first).is_none(), "the other one is not gone yet");
    crew.free(1);
    assert!(matches!(crew.take_grant(first), Some(Grant::Place(4))));
}

#[test]
fn of_two_that_are_idle_the_one_that_was_used_last_is_asked() {
    let crew = two_idle();
    let ticket = wait(&crew);
    assert!(matches!(crew.take_grant(ticket), Some(Grant::Process(process)) if process.number == 2));
}

#[test]
fn only_who_was_promised_nothing_waits_in_line() {
    let crew = two_idle();
    let waits = ["ada", "bob", "eve"].map(|session| crew.stand_in_line(&key(session), None, &Arc::default()).1);
    assert_eq!(waits, [false, false, true]);
}

#[test]
fn who_needs_a_place_is_passed_by_so_often_and_no_more() {
    let crew = unkept(1);
    let first = wait(&crew);
    let mut held = process(&crew, first);
    let ada = wait_for(&crew, &key("ada"));
    for _ in 0..PASSED_BY_LIMIT {
        let other = wait(&crew);
        crew.give_back(held, Fate::Idle);
        let Some(Grant::Process(process)) = crew.take_grant(other) else { panic!("it is there, and fits") };
        held = process;
    }
    let other = wait(&crew);
    crew.give_back(held, Fate::Idle);
    assert!(crew.take_grant(other).is_none());
    crew.free(1);
    assert!(matches!(crew.take_grant(ada), Some(Grant::Place(2))));
}

#[test]
fn only_those_that_did_not_come_up_since_one_did_are_counted() {
    let crew = unkept(1);
    let counted = [false, false, true, false].map(|has_come_up| crew.count_start(has_come_up));
    assert_eq!(counted, [1, 2, 0, 1]);
}

#[test]
fn what_a_thread_has_that_does_not_come_back_ends_without_it() {
    let crew = crew();
    let ticket = wait(&crew);
    let mut held = process(&crew, ticket);
    crew.show(held.number, |face| face.line = Some(held.line()));
    crew.close(Duration::ZERO);
    let until = Instant::now() + LONG / 2;
    while !held.is_gone() && Instant::now() < until {
        for source in happens(&held, Some(until)) {
            held.attend(source, &mut |_| {});
        }
    }
    assert!(held.is_gone());
}
