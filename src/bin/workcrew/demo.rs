//! `workcrew demo`: needs nothing, and shows what there is to see.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use workcrew::source::{Format, UnitSource};

use crate::batch::{self, Batch, PoolOptions};
use crate::database::Database;
use crate::input::Input;
use crate::print;
use crate::reading::Reading;
use crate::terms::Terms;
use crate::trouble::{Trouble, code, told};

#[derive(Args)]
pub struct Options {
    /// The database
    #[arg(long, value_name = "FILE", default_value = "demo.db")]
    db: PathBuf,
    /// How many units are run
    #[arg(long, value_name = "N", default_value = "40", value_parser = print::positive)]
    units: usize,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let database = Database { db: options.db };
    let repository = database.or_new()?;
    let template = "Write a haiku about {{ thing }}, and count its syllables with the tool.";
    let (input, pool, terms): (Input, PoolOptions, Terms) = settings();
    let template = template.to_owned();
    let job = match batch::find_job(&repository, "demo", Some(&template))? {
        Some(job) => job,
        None => batch::make_job(&repository, "demo", Some(template), &terms)?,
    };
    let things = ["rust", "a queue", "the sea", "two locks", "an invoice", "a long night", "tea", "a quiet fan"];
    let lines: String = (0..options.units)
        .map(|number| {
            format!(
                "{{\"id\":\"haiku-{:03}\",\"payload\":{{\"thing\":\"{}\"}}}}\n",
                number + 1,
                things[number % things.len()]
            )
        })
        .collect();
    let source = UnitSource::from_reader(std::io::Cursor::new(lines), Format::JsonLines)?;
    let running = Batch::of_job(database.clone(), repository, job, pool, &terms)?.start()?;
    let units = Reading::start(source).map_err(|error| Trouble::Failed(told(&error)))?;
    let (stored, completion) = running.feed(&input, units)?;
    let ended = running.end(Some(stored), completion, out)?;
    let db = database.as_argument();
    writeln!(out, "\nThat is in {} now. Try:", workcrew::audit::visible::line(&database.db.display().to_string()))?;
    writeln!(out, "  workcrew show haiku-001{db}        what was said, attempt by attempt")?;
    writeln!(out, "  workcrew failures{db}              why some attempts failed")?;
    writeln!(out, "  workcrew report{db} -o demo.html   all of it as a page to open in a browser")?;
    // That some of them fail is part of the show.
    Ok(if ended == ExitCode::from(code::INTERRUPTED) { ended } else { code::DONE })
}

/// What one would get who gives no options but these.
fn settings() -> (Input, PoolOptions, Terms) {
    use clap::{FromArgMatches as _, Parser};

    #[derive(Parser)]
    struct All {
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        pool: PoolOptions,
        #[command(flatten)]
        terms: Terms,
    }
    let command = <All as clap::CommandFactory>::command();
    let arguments = ["demo", "-", "--executor", "simulated", "--failures", "0.1", "--seed", "7", "--latency", "60ms"];
    let all = All::from_arg_matches(&command.get_matches_from(arguments)).unwrap_or_else(|error| error.exit());
    (all.input, all.pool, all.terms)
}
