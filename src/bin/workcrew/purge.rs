//! `workcrew purge`: contents that must not be kept any longer.

use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

use chrono::{TimeDelta, Utc};
use clap::Args;
use workcrew::Repository;

use crate::by::Who;
use crate::database::{Database, OfJob};
use crate::print;
use crate::time;
use crate::trouble::{Trouble, code};

#[derive(Args)]
#[command(
    after_help = "What goes are payloads, prompts, messages, results, checkpoints and what failures say: from the database, its \
log and the search index. What stays are names, types, templates, options, models, paths of files, costs, kinds of failure, the journal \
with the reasons that people gave, and hashes of all that went. Backups, exports, reports and copies that a file system or a disk keeps are not reached."
)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// How long ago they ended at least, such as 90d
    #[arg(long, value_name = "TIME", value_parser = time::duration)]
    older_than: Duration,
    /// Writes the file anew afterwards, so that it becomes as small as what is in it; nobody may work on it meanwhile
    #[arg(long)]
    compact: bool,
    #[command(flatten)]
    who: Who,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let repository = options.database.existing()?;
    let age = TimeDelta::from_std(options.older_than).ok();
    let before = age.and_then(|age| Utc::now().checked_sub_signed(age));
    let before = before.ok_or_else(|| Trouble::usage("--older-than is longer than time itself"))?;
    let by = options.who.by();
    let filter = options.job.filter(&repository)?;
    let (mut units, mut messages) = (0, 0);
    let last = loop {
        let purged = repository.purge_where(&filter, before, &by)?;
        units += purged.units;
        messages += purged.messages;
        if purged.units == 0 {
            break purged;
        }
    };
    if units == 0 {
        writeln!(out, "nothing that has contents ended so long ago")?;
    } else {
        let (units, messages) = (print::count(units, "unit"), print::count(messages, "message"));
        writeln!(out, "the contents of {units} and {messages} are gone; costs, hashes and the journal stay")?;
    }
    let compacted = options.compact.then(|| repository.compact()).transpose()?;
    if let Some(compacted) = &compacted {
        let [before, after] = [compacted.before_bytes, compacted.after_bytes].map(print::number);
        writeln!(out, "the file was written anew: {before} bytes before, {after} now")?;
    }
    if last.is_in_log && !compacted.is_some_and(|compacted| compacted.is_log_empty) {
        writeln!(
            out,
            "somebody uses the file, so what was removed may still be in its log: purge again when that has ended"
        )?;
    }
    if last.is_in_index {
        writeln!(out, "the search index could not be written: the next search takes the words out of it")?;
    }
    Ok(code::DONE)
}
