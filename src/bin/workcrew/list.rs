//! `workcrew list`: which units there are.

use std::io::Write;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use serde_json::json;
use workcrew::UnitStatus;
use workcrew::audit::list::{List, Sort, list};
use workcrew::repository::UnitSummary;

use crate::database::{Database, OfJob};
use crate::print::{self, Table};
use crate::time::{self, short, stamp};
use crate::trouble::{Trouble, code};

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Status {
    Pending,
    Assigned,
    Processing,
    CancelRequested,
    Completed,
    Failed,
    Cancelled,
}

impl From<Status> for UnitStatus {
    fn from(status: Status) -> UnitStatus {
        match status {
            Status::Pending => UnitStatus::Pending,
            Status::Assigned => UnitStatus::Assigned,
            Status::Processing => UnitStatus::Processing,
            Status::CancelRequested => UnitStatus::CancelRequested,
            Status::Completed => UnitStatus::Completed,
            Status::Failed => UnitStatus::Failed,
            Status::Cancelled => UnitStatus::Cancelled,
        }
    }
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum By {
    /// When they were inserted
    #[default]
    Inserted,
    /// Their names
    Id,
    /// When they ended, latest first
    Ended,
    /// How long they took, all their attempts together, longest first
    Duration,
    /// What they cost, dearest first
    Cost,
    /// How many attempts they had, most first
    Attempts,
}

/// Which units are meant; `slow` asks for the same.
#[derive(Args)]
pub struct Meant {
    #[command(flatten)]
    pub database: Database,
    #[command(flatten)]
    pub job: OfJob,
    /// Only in this status; give it again for several
    #[arg(long, value_enum)]
    status: Vec<Status>,
    /// Only those that failed in this way, such as timed_out
    #[arg(long, value_name = "KIND")]
    error: Option<String>,
    /// Only of this type
    #[arg(long = "type", value_name = "TYPE")]
    unit_type: Option<String>,
    /// Only with this in their names
    #[arg(long, value_name = "TEXT")]
    id: Option<String>,
    /// Only those of which an attempt used this model
    #[arg(long, value_name = "M")]
    model: Option<String>,
    /// Only those of which an attempt was made by this worker
    #[arg(long, value_name = "NAME")]
    worker: Option<String>,
    /// Only those that ended since then, or came if they have not ended: a day, a time, or how long ago, such as 2h
    #[arg(long, value_name = "TIME", value_parser = time::moment)]
    since: Option<DateTime<Utc>>,
    /// Only those that ended before then, or came if they have not ended
    #[arg(long, value_name = "TIME", value_parser = time::moment)]
    until: Option<DateTime<Utc>>,
    /// How many are listed at most
    #[arg(long, short = 'n', value_name = "N", default_value = "50", value_parser = print::positive)]
    limit: usize,
    /// How many are skipped before the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: usize,
    /// Prints one JSON object per line
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    meant: Meant,
    /// What they are sorted by; those that have none of it come last
    #[arg(long, value_enum, default_value_t)]
    sort: By,
    /// Sorts the other way round
    #[arg(long)]
    reverse: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    write(&options.meant, options.sort, options.reverse, out)
}

/// Lists what is meant in an order.
pub fn write(meant: &Meant, by: By, is_reversed: bool, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = meant.database.archive()?;
    let mut wanted = List::default();
    wanted.filter = meant.job.filter(&archive)?;
    wanted.filter.statuses = meant.status.iter().map(|&status| status.into()).collect();
    wanted.filter.failure_kind.clone_from(&meant.error);
    wanted.filter.unit_type.clone_from(&meant.unit_type);
    wanted.id_contains.clone_from(&meant.id);
    wanted.model.clone_from(&meant.model);
    wanted.worker.clone_from(&meant.worker);
    (wanted.since, wanted.until) = (meant.since, meant.until);
    (wanted.limit, wanted.offset, wanted.is_reversed) = (meant.limit, meant.offset, is_reversed);
    wanted.sort = match by {
        By::Inserted => Sort::Inserted,
        By::Id => Sort::Id,
        By::Ended => Sort::Ended,
        By::Duration => Sort::Duration,
        By::Cost => Sort::Cost,
        By::Attempts => Sort::Attempts,
    };
    let listed = list(&archive, &wanted)?;
    if meant.json {
        for unit in &listed.units {
            print::json(out, unit)?;
        }
        return Ok(code::DONE);
    }
    let mut table = Table::new(["UNIT", "STATUS", "ATTEMPTS", "TIME", "COST", "ENDED", "WHY"])
        .right(&[2, 3, 4])
        .limit(0, 48)
        .limit(6, 60);
    let now = Utc::now();
    for unit in &listed.units {
        table.row(row(unit, now));
    }
    table.write(out)?;
    if listed.units.is_empty() && !listed.has_more {
        writeln!(out, "no units")?;
    }
    if listed.has_more {
        let next = json!(meant.offset + listed.units.len());
        writeln!(out, "and more: --offset {next}")?;
    }
    Ok(code::DONE)
}

fn row(unit: &UnitSummary, now: DateTime<Utc>) -> [String; 7] {
    [
        unit.id.to_string(),
        unit.status.to_string(),
        unit.attempts.len().to_string(),
        unit.duration(now).map(short).unwrap_or_default(),
        match (unit.charges().next(), unit.last_attempt()) {
            (Some(_), _) => print::cost(unit.cost()),
            // What nobody has told is not nothing.
            (None, Some(last)) if last.started_at.is_some() && last.outcome.is_some() => "no bill".to_owned(),
            (None, _) => String::new(),
        },
        unit.completed_at.map(stamp).unwrap_or_default(),
        unit.failure.as_ref().map(ToString::to_string).unwrap_or_default(),
    ]
}
