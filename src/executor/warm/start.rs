//! How an attempt comes to a process: it waits for one that is there, or for a place, in which it starts one.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::crew::{Crew, Grant};
use super::dialect::{Control, Dialect, Reach};
use super::held::Held;
use super::keeper::{crash_by, take_note};
use super::process::{UNTIL_KNOWN, WarmProcess, happens};
use super::{ProcessEvent, Why};
use crate::executor::ipc::ProcessChange;
use crate::executor::ipc::socket::{Door, SocketDirectory, SocketError};
use crate::executor::process::tree::Times;
use crate::executor::process::{self, ChildCommand, Line};
use crate::executor::{Call, ExecuteError, kinds};
use crate::nudge::Nudge;

/// So many processes in a row that do not come up say that none will.
const HOPELESS_STARTS: u32 = 3;

/// How much longer than it may take to come up a process may live if the host cannot end it.
const BEYOND_THE_START: Duration = Duration::from_secs(5);

/// Waits for a process, or for a place for one.
pub(super) fn acquire<D: Dialect>(crew: &Arc<Crew<D>>, call: &Call<'_>) -> Result<Held<D>, ExecuteError> {
    let not_started =
        |error| ExecuteError::retry("no thread to look after processes").kind(kinds::NOT_STARTED).source(error);
    crew.have_keeper().map_err(not_started)?;
    let nudge = Arc::new(Nudge::new());
    let _wakes = {
        let nudge = Arc::clone(&nudge);
        call.cancel_token().on_cancel(move || nudge.wake())
    };
    let key = crew.dialect.key(call);
    let (ticket, is_queued) = crew.stand_in_line(&key, crew.dialect.resumed(call), &nudge);
    if is_queued {
        crew.tell(&ProcessEvent::Queued { key: &key });
    }
    loop {
        match crew.take_grant(ticket) {
            Some(Grant::Process(process)) => return Ok(Held::new(crew, process.number, Some(process))),
            Some(Grant::Place(number)) => return Ok(Held::new(crew, number, None)),
            Some(Grant::Closed) => {
                return Err(ExecuteError::retry("no process takes it: all are to end").kind(kinds::REJECTED));
            }
            None if call.is_cancelled() => {
                crew.leave_line(ticket);
                return Err(ExecuteError::retry("it was to stop before a process was free").kind(kinds::CANCELLED));
            }
            None => nudge.wait(None),
        }
    }
}

/// Starts a process, and waits until it takes queries.
pub(super) fn start<D: Dialect>(
    held: &mut Held<D>,
    command: ChildCommand,
    call: &Call<'_>,
) -> Result<(), ExecuteError> {
    let crew = Arc::clone(&held.crew);
    let mut process = spawn(held, command, call)?;
    let _wakes = {
        let bell = process.bell();
        call.cancel_token().on_cancel(move || bell.ring())
    };
    let limit = crew.keep.ready_timeout;
    let until = Instant::now() + limit;
    let mut is_ready = D::REACH == Reach::Pipes;
    while !is_ready {
        let known_at = process.lost_at.map(|at| at + UNTIL_KNOWN);
        for source in happens(&process, Some(known_at.map_or(until, |at| at.min(until)))) {
            let mut controls = Vec::new();
            process.attend(source, &mut |line: Line<'_>| controls.push(crew.dialect.control(line)));
            is_ready |= controls.contains(&Control::Ready);
            controls.into_iter().for_each(|control| take_note(&crew, &mut process, control));
        }
        let now = Instant::now();
        if is_ready && process.fault.is_none() && !call.is_cancelled() {
            break;
        } else if let Some(error) = process.not_let_in.take() {
            return Err(not_let_in(held, process, error));
        } else if let Some(fault) = process.fault.take() {
            return Err(not_up(held, process, ProcessChange::NotStarted, &fault, call));
        } else if process.is_over(now) {
            let reason = process.obituary(" before it was ready");
            return Err(not_up(held, process, ProcessChange::NotStarted, &reason, call));
        } else if call.is_cancelled() {
            return Err(not_needed(held, process));
        } else if now >= until {
            let reason = format!("it did not say within {limit:?} that it is ready");
            return Err(not_up(held, process, ProcessChange::NotReady, &reason, call));
        }
    }
    crew.count_start(true);
    process.change(ProcessChange::Ready);
    crew.dialect.remember_start(&mut process.memory, call);
    crew.tell(&ProcessEvent::Ready { number: held.number });
    held.process = Some(process);
    Ok(())
}

fn spawn<D: Dialect>(
    held: &Held<D>,
    command: ChildCommand,
    call: &Call<'_>,
) -> Result<Box<WarmProcess<D::Memory>>, ExecuteError> {
    let (crew, number) = (&held.crew, held.number);
    let key = crew.dialect.key(call);
    crew.tell(&ProcessEvent::Starting { number, key: &key });
    let failed = |error: ExecuteError| {
        crew.tell(&ProcessEvent::Crashed { number, reason: "it could not be started" });
        error
    };
    let door = match D::REACH {
        Reach::Pipes => None,
        Reach::Socket => Some(door(crew, number).map_err(failed)?),
    };
    let limit = crew.keep.ready_timeout + BEYOND_THE_START;
    let times = Times { grace: crew.keep.kill_grace, limit };
    let started = WarmProcess::start(number, command.clone(), D::REACH, door, times, &call.boot_id());
    let process = started.map_err(|error| failed(process::not_started(&command, error)))?;
    let (line, known) = (process.line(), process.process.clone());
    crew.show(number, |face| {
        face.see(&process);
        (face.line, face.process) = (Some(line), Some(known));
    });
    Ok(Box::new(process))
}

/// Where the process is to connect.
fn door<D: Dialect>(crew: &Crew<D>, number: u64) -> Result<Door, ExecuteError> {
    let directory = crew.keep.socket_directory.clone().unwrap_or_else(SocketDirectory::usual);
    // Nobody else's has the name, wherever it lives.
    let name = format!("{number}-{}", uuid::Uuid::new_v4().simple());
    let opened = SocketDirectory::open(&directory).and_then(|directory| directory.door(&name));
    opened.map_err(no_door)
}

/// What needs a person is wrong for every unit. All else may be over soon.
fn no_door(error: SocketError) -> ExecuteError {
    let then = if error.needs_a_person() { ExecuteError::hold } else { ExecuteError::retry };
    then("there is no socket for a worker".to_owned()).kind(kinds::NOT_STARTED).source(error)
}

/// A process that has connected could not be let in, which is not its fault: the next one may be.
fn not_let_in<D: Dialect>(held: &mut Held<D>, process: Box<WarmProcess<D::Memory>>, error: io::Error) -> ExecuteError {
    lost(held, process, ProcessChange::NotStarted, &format!("it could not be let in: {error}"));
    ExecuteError::retry("a worker could not be let in").kind(kinds::NOT_STARTED).source(error)
}

/// Nobody needs a process any more before it is ready. There is nothing that it could be told.
fn not_needed<D: Dialect>(held: &mut Held<D>, mut process: Box<WarmProcess<D::Memory>>) -> ExecuteError {
    let (crew, number) = (Arc::clone(&held.crew), held.number);
    crew.tell(&ProcessEvent::ShuttingDown { number, why: Why::Cancelled });
    process.hang_up();
    process.change(ProcessChange::NotReady);
    crew.tell(&ProcessEvent::Ended { number, was_killed: true });
    held.process = Some(process);
    ExecuteError::retry("it was to stop before a process was ready").kind(kinds::CANCELLED)
}

/// A process is dead before it was ready.
fn lost<D: Dialect>(held: &mut Held<D>, mut process: Box<WarmProcess<D::Memory>>, change: ProcessChange, reason: &str) {
    crash_by(&held.crew, &mut process, change, reason);
    held.process = Some(process);
}

/// A process did not come up.
fn not_up<D: Dialect>(
    held: &mut Held<D>,
    process: Box<WarmProcess<D::Memory>>,
    change: ProcessChange,
    reason: &str,
    call: &Call<'_>,
) -> ExecuteError {
    let crew = Arc::clone(&held.crew);
    lost(held, process, change, reason);
    if call.is_cancelled() {
        return ExecuteError::retry(reason).kind(kinds::CANCELLED);
    }
    let message = format!("a worker did not come up: {reason}");
    let is_hopeless = crew.count_start(false) >= HOPELESS_STARTS;
    let error = if is_hopeless { ExecuteError::hold(message) } else { ExecuteError::retry(message) };
    error.kind(kinds::WORKER_NOT_READY)
}
