//! `workcrew show`: all about a unit.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use workcrew::Archive;
use workcrew::audit::questions::find;
use workcrew::audit::transcript::{self, Detail};
use workcrew::repository::PAGE_LIMIT;
use workcrew::repository::sqlite::SqliteArchive;

use crate::database::{Database, OfJob};
use crate::print;
use crate::terminal::shown;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    /// The unit
    #[arg(value_name = "UNIT")]
    unit: String,
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// Shows all of what tools were given and gave, and of what was thought
    #[arg(long, conflicts_with_all = ["json", "raw"])]
    unfold: bool,
    /// Prints JSON: the unit, then each attempt with its messages, one object per line
    #[arg(long)]
    json: bool,
    /// Prints what the provider sent, byte for byte, one message after the other
    #[arg(long, conflicts_with = "json")]
    raw: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let unit = find(&archive, options.job.job.as_deref(), &options.unit)?;
    if options.json {
        print::json(out, &json!({ "unit": unit }))?;
        for attempt in archive.attempts(unit.key)? {
            let (key, charges) = (attempt.key, archive.charges(attempt.key)?);
            print::json(out, &json!({ "attempt": attempt, "charges": charges }))?;
            each_message(&archive, key, |stored| {
                let message = stored.message().map_err(|error| Trouble::Storage(error.to_string()))?;
                print::json(
                    out,
                    &json!({ "number": stored.number, "at": stored.at, "role": stored.role, "message": message }),
                )
            })?;
        }
    } else if options.raw {
        let mut out = shown(out);
        for attempt in archive.attempts(unit.key)? {
            each_message(&archive, attempt.key, |stored| {
                let message = stored.message().map_err(|error| Trouble::Storage(error.to_string()))?;
                if let Some(raw) = message.and_then(|message| message.raw) {
                    out.write_all(raw.as_bytes())?;
                    out.write_all(b"\n")?;
                }
                Ok(())
            })?;
        }
    } else {
        let detail = if options.unfold { Detail::ALL } else { Detail::default() };
        transcript::write(&archive, &unit, detail, out)?;
    }
    Ok(code::DONE)
}

fn each_message(
    archive: &SqliteArchive,
    attempt: workcrew::AttemptKey,
    mut see: impl FnMut(&workcrew::conversation::StoredMessage) -> Result<(), Trouble>,
) -> Result<(), Trouble> {
    let mut next = Some(0);
    while let Some(after) = next {
        let page = archive.messages(attempt, u32::try_from(after).unwrap_or(u32::MAX), PAGE_LIMIT)?;
        page.items.iter().try_for_each(&mut see)?;
        next = page.next;
    }
    Ok(())
}
