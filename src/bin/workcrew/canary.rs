//! `--canary`: a few units first, and a look at them before the rest is paid for.

use std::io::{self, BufRead, IsTerminal, Write};

use workcrew::audit::forecast::SoFar;
use workcrew::audit::visible::line;
use workcrew::source::{Placed, UnitSource};
use workcrew::{Cost, Prompt, UnitStatus, WaitError};

use crate::batch::Running;
use crate::input::Input;
use crate::print;
use crate::time::short;
use crate::trouble::{Trouble, told};

/// How much of an answer is shown.
const ANSWER_CHARS: usize = 400;

/// What follows.
pub enum Verdict {
    /// The rest. What was tried is known by its name if it is brought again.
    GoOn {
        tried: Vec<Placed>,
    },
    Stop,
}

/// Executes the first units of a source alone, shows what came of them, and asks whether to go on.
pub fn try_out(
    running: &Running,
    input: &Input,
    source: &mut UnitSource,
    count: usize,
    yes: bool,
    out: &mut dyn Write,
) -> Result<Verdict, Trouble> {
    let tried: Vec<Placed> = source.by_ref().filter_map(Result::ok).take(count).collect();
    let began = std::time::Instant::now();
    let mut handles = Vec::new();
    for placed in &tried {
        let mut unit = placed.unit.clone();
        input.prepare(&mut unit);
        let handle = running.pool.enqueue(unit, Prompt::OfUnit);
        handles.push(handle.map_err(|error| Trouble::usage(format!("{}: {}", placed.place, told(&error))))?);
    }
    running.pool.wait_for_completion();
    let (mut spent, mut ended) = (Cost::default(), 0);
    for handle in &handles {
        let unit = match handle.wait_timeout(std::time::Duration::ZERO) {
            Ok(unit) => unit,
            // Whoever interrupts it, or what holds it, is told of at the end.
            Err(WaitError::LeftPending | WaitError::TimedOut) => handle.unit()?,
            Err(error) => return Err(Trouble::Failed(error.to_string())),
        };
        ended += u64::from(unit.status.is_terminal());
        spent = spent + unit.cost;
        writeln!(out, "{} {}, {}", line(unit.id.as_str()), unit.status, print::cost(unit.cost))?;
        match (&unit.failure, &unit.output) {
            (Some(failure), _) if unit.status == UnitStatus::Failed => {
                writeln!(out, "  {}", line(&failure.to_string()))?
            }
            (_, Some(output)) => writeln!(out, "  {}", line(output).cut(ANSWER_CHARS))?,
            _ => {}
        }
    }
    if running.is_interrupted() {
        return Ok(Verdict::Stop);
    }
    // Counting them stores nothing. What comes over a pipe can be read only once.
    let left = (!input.is_stdin()).then(|| source.filter(Result::is_ok).count() as u64);
    write_forecast(SoFar { ended, left: left.unwrap_or(0), elapsed: began.elapsed(), spent }, left, out)?;
    out.flush()?;
    let goes_on = yes || ask(input)?;
    if !goes_on {
        writeln!(out, "stopped after the canary; with --yes it goes on")?;
        return Ok(Verdict::Stop);
    }
    Ok(Verdict::GoOn { tried })
}

fn write_forecast(so_far: SoFar, left: Option<u64>, out: &mut dyn Write) -> io::Result<()> {
    let forecast = so_far.forecast();
    let spent = print::cost(so_far.spent);
    write!(out, "{} cost {spent}", print::count(so_far.ended, "unit"))?;
    match (left, forecast.cost) {
        (Some(left), Some(all)) => {
            let time = forecast.time_left.map(|time| format!(" and about {}", short(time))).unwrap_or_default();
            writeln!(out, "; with the other {}: about {}{time}", print::number(left), print::cost(all))
        }
        _ => writeln!(out),
    }
}

/// Asks on the terminal, if there is somebody to be asked.
fn ask(input: &Input) -> Result<bool, Trouble> {
    if input.is_stdin() || !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Ok(false);
    }
    eprint!("go on with the rest? [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}
