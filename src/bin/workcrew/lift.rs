//! `workcrew lift`: a provider may be asked again before the time that it has named.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use workcrew::audit::visible::line;
use workcrew::{Archive, Repository};

use crate::database::Database;
use crate::time::stamp;
use crate::trouble::{Trouble, code};

/// A process that waits for the provider goes on with its next heartbeat, which is 15 seconds away at most.
#[derive(Args)]
pub struct Options {
    /// The provider, as `workcrew status` names it [default: the one that is held]
    #[arg(value_name = "PROVIDER")]
    provider: Option<String>,
    #[command(flatten)]
    database: Database,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let repository = options.database.existing()?;
    let mut holds = repository.holds()?;
    if let Some(provider) = &options.provider {
        holds.retain(|hold| hold.provider == *provider);
    }
    match (&*holds, &options.provider) {
        ([hold], _) => {
            repository.lift(&hold.provider)?;
            let (provider, until) = (line(&hold.provider), stamp(hold.until));
            writeln!(out, "{provider} was not to be asked until {until} UTC, and may be from now on")?;
            Ok(code::DONE)
        }
        ([], None) => {
            writeln!(out, "no provider is held")?;
            Ok(code::DONE)
        }
        ([], Some(provider)) => Err(Trouble::usage(format!("provider `{}` is not held", line(provider)))),
        (several, _) => {
            let names: Vec<String> = several.iter().map(|hold| format!("`{}`", line(&hold.provider))).collect();
            Err(Trouble::usage(format!("several providers are held, say which: {}", names.join(", "))))
        }
    }
}
