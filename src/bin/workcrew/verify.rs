//! `workcrew verify`: whether all is as it was written.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::verify::{Heads, Verify};
use workcrew::audit::visible;

use crate::database::Database;
use crate::print;
use crate::trouble::{Trouble, code, told};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    /// Prints the heads of the chains instead, to be kept where nobody who can write the database can write
    #[arg(long, conflicts_with_all = ["expect", "json"])]
    head: bool,
    /// With --head: those of every conversation too, so that each can be shown alone
    #[arg(long, requires = "head")]
    conversations: bool,
    /// Compares with heads that were printed before: finds also what was rewritten as a whole, or cut off
    #[arg(long, value_name = "FILE")]
    expect: Option<PathBuf>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    if options.head {
        let heads = if options.conversations { Heads::with_conversations(&archive)? } else { Heads::of(&archive)? };
        write!(out, "{heads}")?;
        return Ok(code::DONE);
    }
    let mut verify = Verify::new();
    if let Some(path) = &options.expect {
        let refused = |what: &str, why: String| Trouble::usage(format!("`{}` {what}: {why}", path.display()));
        let bytes = std::fs::read(path).map_err(|error| refused("cannot be read", error.to_string()))?;
        let heads = Heads::read(bytes).map_err(|error| refused("cannot be compared with", told(&error)))?;
        verify = verify.heads(heads);
    }
    let verification = verify.run(&archive)?;
    if options.json {
        print::json(out, &verification)?;
    } else {
        writeln!(out, "{}", visible(verification.to_string().trim_end()))?;
        if verification.is_clean() {
            writeln!(out, "nothing is missing, nothing was altered")?;
        }
    }
    Ok(if verification.is_clean() { code::DONE } else { ExitCode::from(code::NOT_ALL_COMPLETED) })
}
