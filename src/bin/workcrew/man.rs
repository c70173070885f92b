//! `workcrew man`: the manual page, of the whole or of one command.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, CommandFactory};
use clap_mangen::Man;

use crate::trouble::{Trouble, code};

#[derive(Args)]
pub struct Options {
    /// The command whose page it is [default: the page of all of them]
    #[arg(value_name = "COMMAND")]
    command: Option<String>,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let mut whole = crate::Cli::command();
    whole.build();
    let page = match &options.command {
        None => Man::new(whole),
        Some(name) => {
            let found = whole.find_subcommand(name).cloned();
            let command = found.ok_or_else(|| Trouble::usage(format!("there is no command `{name}`")))?;
            let version = whole.get_version().unwrap_or_default();
            Man::new(command).title(format!("workcrew-{name}")).source(format!("workcrew {version}"))
        }
    };
    page.render(out)?;
    Ok(code::DONE)
}
