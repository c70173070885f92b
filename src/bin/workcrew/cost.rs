//! `workcrew cost`: what was spent, and for what.

use std::io::Write;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use workcrew::audit::cost::{CostBy, CostGroup, cost};
use workcrew::audit::visible::line;

use crate::database::{Database, OfJob};
use crate::print::{self, Table, number};
use crate::trouble::{Trouble, code};

/// How much of a name is shown: models are named by strangers.
const NAME_CHARS: usize = 48;

/// How many models without a price are named.
const MODELS: usize = 20;

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum By {
    /// The job
    #[default]
    Job,
    /// The model
    Model,
    /// What the units are now
    Status,
    /// The day (UTC) on which attempts ended
    Day,
}

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// What it is grouped by
    #[arg(long, value_enum, default_value_t)]
    by: By,
    /// Prints one JSON object: groups, total, unpriced_models; amounts are in billionths of a dollar
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let (title, by) = match options.by {
        By::Job => ("JOB", CostBy::Job),
        By::Model => ("MODEL", CostBy::Model),
        By::Status => ("STATUS", CostBy::Status),
        By::Day => ("DAY", CostBy::Day),
    };
    let bill = cost(&archive, &options.job.filter(&archive)?, by)?;
    if options.json {
        print::json(out, &bill)?;
        return Ok(code::DONE);
    }
    let mut table = Table::new([title, "ATTEMPTS", "INPUT", "CACHED", "OUTPUT", "COST", "IN VAIN"])
        .right(&[1, 2, 3, 4, 5, 6])
        .limit(0, NAME_CHARS);
    for group in &bill.groups {
        table.row(row(&group.name, group));
    }
    if bill.groups.len() != 1 {
        table.row(row("all", &bill.total));
    }
    table.write(out)?;
    if !bill.unpriced_models.is_empty() {
        let shown = bill.unpriced_models.iter().take(MODELS).map(|model| line(model).cut(NAME_CHARS));
        let shown = shown.collect::<Vec<_>>().join(", ");
        let others = bill.unpriced_models.len().saturating_sub(MODELS) as u64;
        let others = if others > 0 { format!(", and {} more", number(others)) } else { String::new() };
        writeln!(out, "nobody knows the price of: {shown}{others}")?;
    }
    if bill.total.unbilled > 0 {
        writeln!(out, "{} left no bill: nobody knows what that cost", print::count(bill.total.unbilled, "attempt"))?;
    }
    if bill.total.estimated > 0 {
        writeln!(
            out,
            "{} of these are guesses: their attempts ended before they could tell",
            print::count(bill.total.estimated, "amount")
        )?;
    }
    Ok(code::DONE)
}

fn row(name: &str, group: &CostGroup) -> [String; 7] {
    let tokens = group.tokens;
    [
        name.to_owned(),
        number(group.attempts),
        number(tokens.input),
        number(tokens.cache_read + tokens.cache_write),
        number(tokens.output + tokens.reasoning),
        print::cost(group.cost),
        print::cost(group.in_vain),
    ]
}
