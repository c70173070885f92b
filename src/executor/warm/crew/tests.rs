//! Who gets what, with processes that only echo.

use std::sync::mpsc::{Receiver, channel};

use super::*;
use crate::executor::process::tree::Times;
use crate::executor::process::{ChildCommand, Input, Line};
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

fn crew() -> Arc<Crew<Mute>> {
    let crew = Arc::new(Crew::new(Mute, Keep::up_to(1)).unwrap());
    crew.have_keeper().unwrap();
    crew
}

fn wait(crew: &Crew<Mute>) -> u64 {
    crew.stand_in_line(&ProcessKey::default(), None, &Arc::default()).0
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
