//! `workcrew backup`: a copy that is whole.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use crate::database::Database;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    /// Where the copy goes; what is there is never replaced
    #[arg(value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    database: Database,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let copy = archive.backup(&options.to)?;
    writeln!(out, "copied to {}", workcrew::audit::visible::line(&copy.display().to_string()))?;
    Ok(code::DONE)
}
