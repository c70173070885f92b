//! `--canary`: a few units first, and a look at them before the rest is paid for.

use std::io::{self, BufRead, IsTerminal, Write};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde_json::json;
use workcrew::audit::forecast::{Forecast, SoFar};
use workcrew::audit::visible::line;
use workcrew::{Cost, Prompt, UnitHandle, UnitStatus, WaitError, WorkUnit};

use crate::batch::Running;
use crate::input::Input;
use crate::notes;
use crate::print;
use crate::reading::{Read, Reading};
use crate::time::short;
use crate::trouble::{Trouble, told};

/// How much of an answer is shown.
const ANSWER_CHARS: usize = 400;

/// How often it is looked whether somebody interrupts instead of answering.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Executes the first units of a source alone, shows what came of them, and asks whether to go on. Of what can be read only once, what was
/// read is put back: it is known by its name when it is brought again.
pub fn try_out(
    running: &Running,
    input: &Input,
    source: &mut Reading,
    count: usize,
    yes: bool,
    out: &mut dyn Write,
) -> Result<bool, Trouble> {
    let began = std::time::Instant::now();
    let Tried { read, handles, troubles } = submit(running, input, source, count)?;
    running.pool.wait_for_completion();
    let units = handles.iter().map(unit).collect::<Result<Vec<_>, _>>()?;
    let _quiet = running.pause_telling();
    let mut told = Vec::new();
    if !running.options.json {
        units.iter().try_for_each(|unit| write_unit(unit, &mut told))?;
    }
    let mut goes_on = false;
    if !running.is_interrupted() {
        // Counting them stores nothing. What comes over a pipe can be read only once.
        let left = (!input.is_read_once()).then(|| count_left(running, source));
        let ended = units.iter().filter(|unit| unit.status.is_terminal()).count() as u64;
        let spent = units.iter().fold(Cost::default(), |spent, unit| spent + unit.cost);
        let so_far = SoFar { ended, left: left.unwrap_or(0), elapsed: began.elapsed(), spent };
        let forecast = left.map(|_| so_far.forecast()).unwrap_or_default();
        if running.options.json {
            let line = json!({ "event": "canary", "units": units, "cost": spent, "left": left, "forecast": forecast });
            print::json(&mut told, &line)?;
        } else {
            write_forecast(so_far, left, forecast, &mut told)?;
        }
        print::if_read(out, &std::mem::take(&mut told))?;
        // Where nothing is left there is nothing to be asked.
        goes_on = !running.is_interrupted() && (yes || left == Some(0) || ask(running, input)?);
    }
    if goes_on {
        source.put_back(read);
    } else {
        // Who goes on is told of these as the rest is stored.
        troubles.iter().for_each(|trouble| notes::tell(trouble));
        if !running.options.json && !running.is_interrupted() {
            writeln!(told, "stopped after the canary; with --yes it goes on")?;
        }
    }
    print::if_read(out, &told)?;
    Ok(goes_on)
}

/// How many units there are behind what was tried.
fn count_left(running: &Running, source: &mut Reading) -> u64 {
    let next = || source.next(|| !running.is_interrupted());
    std::iter::from_fn(next).filter(Result::is_ok).count() as u64
}

/// What was read, what is executed of it, and what is not.
struct Tried {
    read: Vec<Read>,
    handles: Vec<UnitHandle>,
    troubles: Vec<String>,
}

fn submit(running: &Running, input: &Input, source: &mut Reading, count: usize) -> Result<Tried, Trouble> {
    let (mut read, mut handles, mut troubles) = (Vec::new(), Vec::new(), Vec::new());
    while handles.len() < count {
        let Some(next) = source.next(|| !running.is_interrupted()) else { break };
        let trouble = match &next {
            Err(bad) => Some(bad.to_string()),
            Ok(placed) => {
                if !running.pool.wait_for_available_slot() {
                    break;
                }
                match running.pool.submit_work_unit(placed.unit.clone(), Prompt::OfUnit) {
                    Ok(handle) => {
                        handles.push(handle);
                        None
                    }
                    Err(error) => Some(format!("{}: {}", placed.place, told(&error))),
                }
            }
        };
        read.push(next);
        match trouble {
            Some(trouble) if input.strict => return Err(Trouble::usage(format!("{trouble} (--strict)"))),
            trouble => troubles.extend(trouble.map(|trouble| format!("workcrew: {trouble}"))),
        }
    }
    Ok(Tried { read, handles, troubles })
}

fn unit(handle: &UnitHandle) -> Result<WorkUnit, Trouble> {
    match handle.wait_timeout(std::time::Duration::ZERO) {
        Ok(unit) => Ok(unit),
        // Whoever interrupts it, or what holds it, is told of at the end.
        Err(WaitError::LeftPending | WaitError::TimedOut) => Ok(handle.unit()?),
        Err(error) => Err(Trouble::Failed(told(&error))),
    }
}

fn write_unit(unit: &WorkUnit, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} {}, {}", line(unit.id.as_str()), unit.status, print::cost(unit.cost))?;
    match (&unit.failure, &unit.output) {
        (Some(failure), _) if unit.status == UnitStatus::Failed => writeln!(out, "  {}", line(&failure.to_string())),
        (_, Some(output)) => writeln!(out, "  {}", line(output).cut(ANSWER_CHARS)),
        _ => Ok(()),
    }
}

fn write_forecast(so_far: SoFar, left: Option<u64>, forecast: Forecast, out: &mut dyn Write) -> io::Result<()> {
    write!(out, "{} cost {}", print::count(so_far.ended, "unit"), print::cost(so_far.spent))?;
    match (left, forecast.cost) {
        (Some(left @ 1..), Some(all)) => {
            let time = forecast.time_left.map(|time| format!(" and about {}", short(time))).unwrap_or_default();
            writeln!(out, "; with the other {}: about {}{time}", print::number(left), print::cost(all))
        }
        _ => writeln!(out),
    }
}

/// Asks on the terminal, if there is somebody to be asked. Whoever interrupts it does not want to go on.
fn ask(running: &Running, input: &Input) -> Result<bool, Trouble> {
    if input.is_stdin() || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    let _ = write!(io::stderr(), "go on with the rest? [y/N] ");
    let cannot = |error: io::Error| Trouble::Failed(format!("no answer can be read: {error}"));
    let stdin = io::stdin();
    // A signal ends the wait before it is counted.
    while let Ok(0) | Err(Errno::INTR) = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&LOOK)) {
        if running.is_interrupted() {
            return Ok(false);
        }
    }
    let mut answer = String::new();
    stdin.lock().read_line(&mut answer).map_err(cannot)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
