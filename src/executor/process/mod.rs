//! Runs a child so that it can always be ended.
//!
//! | | |
//! |---|---|
//! | `command` | what is to be run: a program, what it gets and what it may take |
//! | `tree` | the child and all that it starts, as something that can be ended; the only platform code, and the only unsafe one |
//! | `watch` | from the start to the end: what it says, its limits |
//! | `lines` | bytes become lines, each with a bound |
//! | `reader` | the seam to whoever understands what it says |
//! | `orphan` | ends what an earlier attempt has left behind |

mod command;
pub(in crate::executor) mod lines;
mod orphan;
mod reader;
#[cfg(test)]
mod tests;
pub(in crate::executor) mod tree;
mod watch;

use std::io;
use std::path::Path;
use std::time::Instant;

pub(crate) use self::command::{ChildCommand, Environment, Input, Limits};
pub(crate) use self::orphan::end_orphans;
pub(crate) use self::reader::{Exit, Heard, How, Line, Reader, Reason};
pub(in crate::executor) use self::watch::how_of;
use super::{Call, ExecuteError, WorkResult, files, kinds};

/// Runs a child to its end, and gives what its reader makes of it.
pub(crate) fn run<R: Reader>(
    command: &ChildCommand,
    mut reader: R,
    call: &Call<'_>,
) -> Result<WorkResult, ExecuteError> {
    check_directory(command)?;
    let exit = watch::watch(command, &mut reader, call).map_err(|error| not_started(command, error))?;
    let written = reader.written_files();
    let concluded = reader.conclude(&exit, call);
    with_files(concluded, command.directory.as_deref(), &written, call)
}

/// Whether there is a directory to run a child in.
pub(in crate::executor) fn check_directory(command: &ChildCommand) -> Result<(), ExecuteError> {
    let Some(directory) = command.directory.as_deref().filter(|directory| !directory.is_dir()) else { return Ok(()) };
    let message = format!("there is no directory `{}` to run it in", directory.display());
    Err(ExecuteError::give_up(message).kind(kinds::WORKSPACE))
}

/// Adds the files that were made in a workspace, of those that the unit declares and those that somebody says to have written.
pub(in crate::executor) fn with_files(
    mut concluded: Result<WorkResult, ExecuteError>,
    workspace: Option<&Path>,
    written: &[String],
    call: &Call<'_>,
) -> Result<WorkResult, ExecuteError> {
    if let Some(workspace) = workspace {
        let result = concluded.as_mut().unwrap_or_else(|error| error.result_mut());
        let declared = call.unit().options.output_files.iter();
        let names = declared.chain(written).map(String::as_str);
        result.output_files.extend(files::list(workspace, names, time_for_files(call)));
    }
    concluded
}

/// Says whether there is time to look at files: as long as the call is not to stop, and for a part of its grace then. An answer that came
/// must not be lost because there is much beside it.
fn time_for_files(call: &Call<'_>) -> impl FnMut() -> bool {
    let mut until = None;
    move || !call.is_cancelled() || Instant::now() < *until.get_or_insert_with(|| Instant::now() + call.grace() / 6)
}

/// What follows when a child could not be started.
pub(in crate::executor) fn not_started(command: &ChildCommand, error: io::Error) -> ExecuteError {
    let program = command.program.to_string_lossy();
    let could_not = |then: fn(String) -> ExecuteError| then(format!("`{program}` could not be started"));
    match error.kind() {
        // It is the same for every unit, until a person has seen to it.
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => {
            could_not(ExecuteError::hold).kind(kinds::NO_PROGRAM)
        }
        // It would not be started a second time either.
        io::ErrorKind::ArgumentListTooLong | io::ErrorKind::InvalidInput => {
            could_not(ExecuteError::give_up).kind(kinds::INVALID_ARGUMENTS)
        }
        _ => could_not(ExecuteError::retry).kind(kinds::NOT_STARTED),
    }
    .source(error)
}
