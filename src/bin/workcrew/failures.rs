//! `workcrew failures`: what went wrong, and how often.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::failures::failures;
use workcrew::audit::visible::line;

use crate::database::{Database, OfJob};
use crate::print;
use crate::time::stamp;
use crate::trouble::{Trouble, code};

/// How much of a message is shown.
const MESSAGE_CHARS: usize = 300;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// How many groups are shown at most
    #[arg(long, short = 'n', value_name = "N", default_value = "20", value_parser = print::positive)]
    limit: usize,
    /// Prints one JSON object per line
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let groups = failures(&archive, &options.job.filter(&archive)?)?;
    if options.json {
        for group in groups.iter().take(options.limit) {
            print::json(out, group)?;
        }
        return Ok(code::DONE);
    }
    if groups.is_empty() {
        writeln!(out, "nothing has failed")?;
    }
    for group in groups.iter().take(options.limit) {
        let (units, attempts) = (print::count(group.units, "unit"), print::count(group.attempts, "attempt"));
        let shape = if group.shape.is_empty() { "(what it said is gone)" } else { &group.shape };
        writeln!(out, "{}: {shape}", line(&group.kind))?;
        writeln!(
            out,
            "  {units} failed for good, {attempts}, {}, last {}",
            print::spent(group.cost),
            stamp(group.latest_at)
        )?;
        if group.latest != group.shape {
            writeln!(out, "  such as: {}", line(&group.latest).cut(MESSAGE_CHARS))?;
        }
        let examples: Vec<String> = group.examples.iter().map(|id| line(id.as_str()).to_string()).collect();
        writeln!(out, "  in: {}", examples.join(", "))?;
    }
    if groups.len() > options.limit {
        writeln!(out, "and {} more: --limit", groups.len() - options.limit)?;
    }
    Ok(code::DONE)
}
