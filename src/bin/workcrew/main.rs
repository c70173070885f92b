//! The command `workcrew`: runs a batch, and looks at it weeks later.
//!
//! It parses, calls the library and prints; there is a file for each command. What is found out goes to standard output, what happens meanwhile and
//! what went wrong to standard error. Content is untrusted: whatever a terminal would obey is shown instead.

#![expect(unreachable_pub, reason = "a program has no public items")]

mod backup;
mod batch;
mod board;
mod by;
mod canary;
mod cancel;
mod completions;
mod cost;
mod crew;
mod database;
mod demo;
mod doctor;
mod each;
mod executor;
mod export;
mod failures;
mod input;
mod interrupt;
mod jobs;
mod lift;
mod list;
mod man;
mod notes;
mod print;
mod progress;
mod purge;
mod queue;
mod rates;
mod reading;
mod report;
mod requeue;
mod resume;
mod run;
mod search;
mod show;
mod slow;
mod status;
mod storage;
mod summary;
mod terminal;
mod terms;
mod time;
mod trouble;
mod verify;
mod worker;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::trouble::{Trouble, code};

/// What follows the list of commands in the help.
const AFTER_HELP: &str = "\
Exit codes:
    0  all went well; of a batch: every unit is completed
    1  a batch has units that failed, were cancelled or wait, or lines that are no units,
       or ended after its canary; verify found something;
       of several units that were named, some could not be changed
    2  what was asked for makes no sense: an option, a missing file, a unit or job that is not there
    3  the database cannot be opened, read or written, or its disk stays full,
       or what is kept with a job in it was altered
  130  interrupted by Ctrl-C or a signal before all was read and executed;
       run the same command again, or `workcrew resume`, to go on

Begin with `workcrew demo`, which needs nothing.";

/// Runs LLM work units: thousands of prompts or agent runs, each durable, each accounted for in money, each readable weeks later.
#[derive(Parser)]
#[command(name = "workcrew", version, after_help = AFTER_HELP, max_term_width = 120)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the units of a file or folder; run it again to go on where it was
    Run(run::Options),
    /// Goes on with a job whose units are in the database already
    Resume(resume::Options),
    /// Keeps executing what others queue in a shared database
    ///
    /// It serves all jobs, also those that come later, each with what is kept with it; what is said here is for those of which nobody has said what
    /// executes them. --job restricts it to one, of which all can be said. A database that is not there yet is made. The workers are for all jobs
    /// together: each that has something to do gets the same share of them, and with more jobs than workers the oldest go first. It ends when it is
    /// interrupted, with 0.
    Worker(worker::Options),
    /// Stores units without executing them
    Queue(queue::Options),
    /// Cancels units
    Cancel(cancel::Options),
    /// Brings failed or cancelled units back
    Requeue(requeue::Options),
    /// Lets a provider be asked again before the time that it has named
    Lift(lift::Options),
    /// Lists the jobs of a database
    Jobs(jobs::Options),
    /// Shows how far a batch is, what runs and who runs it
    Status(status::Options),
    /// Runs simulated units, and says what to try next
    Demo(demo::Options),
    /// Says what is wrong and what to do about it; for whoever is woken at night
    Doctor(doctor::Options),
    /// Lists units: filtered, sorted, in pages
    List(list::Options),
    /// Shows a unit: every attempt with its whole conversation
    Show(show::Options),
    /// Finds where something was said, in prompts, messages, tool calls and errors
    Search(search::Options),
    /// Shows what it cost, failed attempts included
    Cost(cost::Options),
    /// Lists the units that took longest, all their attempts together
    Slow(slow::Options),
    /// Shows why units and attempts failed, those that look alike together
    Failures(failures::Options),
    /// Writes units for other programs: JSON, Markdown, OpenTelemetry
    Export(export::Options),
    /// Checks that nothing is missing and nothing was altered
    Verify(verify::Options),
    /// Writes one HTML file that shows all of it
    Report(report::Options),
    /// Removes the contents of units that ended long ago; costs and hashes stay
    Purge(purge::Options),
    /// Copies a database, also while it is in use
    Backup(backup::Options),
    /// Prints a script that lets a shell complete this command
    Completions(completions::Options),
    /// Prints the manual page
    Man(man::Options),
}

fn main() -> ExitCode {
    notes::init_log();
    let cli = Cli::parse();
    // Not locked: events are printed from the threads of the pool.
    let mut out = io::BufWriter::new(io::stdout());
    let done = run(cli.command, &mut out).and_then(|code| match out.flush().map_err(Trouble::from) {
        // What came of it is told by its code all the same.
        Ok(()) | Err(Trouble::NobodyReads) => Ok(code),
        Err(trouble) => Err(trouble),
    });
    match done {
        Ok(code) => {
            let (_, _) = out.into_parts();
            code
        }
        // Such as of `| head`: whoever does not read any more has seen enough.
        Err(Trouble::NobodyReads) => {
            // Nor is what is left in the buffer for anybody.
            let (_, _) = out.into_parts();
            code::DONE
        }
        Err(trouble) => {
            let _ = out.flush();
            let _ = writeln!(io::stderr(), "workcrew: {trouble}");
            trouble.code()
        }
    }
}

fn run(command: Command, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    match command {
        Command::Run(options) => run::run(options, out),
        Command::Resume(options) => resume::run(options, out),
        Command::Worker(options) => worker::run(options, out),
        Command::Queue(options) => queue::run(options, out),
        Command::Cancel(options) => cancel::run(options, out),
        Command::Requeue(options) => requeue::run(options, out),
        Command::Lift(options) => lift::run(options, out),
        Command::Jobs(options) => jobs::run(options, out),
        Command::Status(options) => status::run(options, out),
        Command::Demo(options) => demo::run(options, out),
        Command::Doctor(options) => doctor::run(options, out),
        Command::List(options) => list::run(options, out),
        Command::Show(options) => show::run(options, out),
        Command::Search(options) => search::run(options, out),
        Command::Cost(options) => cost::run(options, out),
        Command::Slow(options) => slow::run(options, out),
        Command::Failures(options) => failures::run(options, out),
        Command::Export(options) => export::run(options, out),
        Command::Verify(options) => verify::run(options, out),
        Command::Report(options) => report::run(options, out),
        Command::Purge(options) => purge::run(options, out),
        Command::Backup(options) => backup::run(options, out),
        Command::Completions(options) => completions::run(options, out),
        Command::Man(options) => man::run(options, out),
    }
}
