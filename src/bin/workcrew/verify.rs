//! `workcrew verify`: whether all is as it was written.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::{verify, visible};

use crate::database::Database;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let verification = verify(&archive)?;
    write!(out, "{}", visible(&format!("{verification}\n")))?;
    if verification.is_clean() {
        writeln!(out, "nothing is missing, nothing was altered")?;
        return Ok(code::DONE);
    }
    Ok(ExitCode::from(code::NOT_ALL_COMPLETED))
}
