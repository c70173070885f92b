//! `workcrew slow`: what took longest, all attempts of a unit together.

use std::io::Write;
use std::process::ExitCode;

use clap::Args;

use crate::list::{self, By, Meant};
use crate::trouble::Trouble;

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    meant: Meant,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    list::write(&options.meant, By::Duration, false, out)
}
