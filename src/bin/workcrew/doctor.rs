//! `workcrew doctor`: what is wrong, and what can be done about it.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::doctor::Doctor;
use workcrew::audit::visible;

use crate::database::Database;
use crate::print;
use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let diagnosis = Doctor::new().health(archive.health()?).run(&archive)?;
    if options.json {
        print::json(out, &diagnosis)?;
    } else {
        writeln!(out, "{}", visible(diagnosis.to_string().trim_end()))?;
    }
    Ok(if diagnosis.is_well() { code::DONE } else { ExitCode::from(code::NOT_ALL_COMPLETED) })
}
