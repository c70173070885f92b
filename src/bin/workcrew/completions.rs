//! `workcrew completions`: for bash, zsh, fish and others.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_complete::{Shell, generate};

use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let mut script = Vec::new();
    generate(options.shell, &mut crate::Cli::command(), "workcrew", &mut script);
    out.write_all(&script)?;
    Ok(code::DONE)
}
