//! `workcrew export`: for other programs.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use workcrew::audit::draft::Draft;
use workcrew::audit::export::{Export, ExportError, Format};
use workcrew::audit::questions::find;

use crate::database::{Database, OfJob};
use crate::list::Status;
use crate::print::count;
use crate::terminal::shown;
use crate::trouble::{Trouble, code, told};

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum As {
    /// A line of JSON for each unit, with everything
    #[default]
    Jsonl,
    /// A document for each unit, to be read by people; what is said is in it as it was, control characters too, but on a terminal
    Markdown,
    /// A trace for each unit, by OpenTelemetry's conventions for GenAI
    Otel,
}

#[derive(Args)]
pub struct Options {
    /// The units (all of them)
    #[arg(value_name = "UNIT")]
    units: Vec<String>,
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// Only in this status; several may be given
    #[arg(long, value_enum, conflicts_with = "units")]
    status: Vec<Status>,
    /// How it is written
    #[arg(long, value_enum, default_value_t)]
    format: As,
    /// With what the providers sent, byte for byte
    #[arg(long)]
    raw: bool,
    /// Into this file instead of standard output, which nobody else may read; what is there is replaced
    #[arg(long, short, value_name = "FILE", conflicts_with = "folder")]
    output: Option<PathBuf>,
    /// Into this folder, with a file for each unit
    #[arg(long, value_name = "DIR", conflicts_with = "units")]
    folder: Option<PathBuf>,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let format = match options.format {
        As::Jsonl => Format::Jsonl,
        As::Markdown => Format::Markdown,
        As::Otel => Format::OpenTelemetry,
    };
    let mut filter = options.job.filter(&archive)?;
    filter.statuses = options.status.iter().map(|&status| status.into()).collect();
    let mut export = Export::new(&archive).units(filter);
    if options.raw {
        export = export.with_raw();
    }
    if let Some(folder) = &options.folder {
        let written = export.write_folder(format, folder).map_err(trouble)?;
        eprintln!("{} in {}", count(written, "unit"), folder.display());
        return Ok(code::DONE);
    }
    // Who is not there is told before a file is emptied.
    let job = options.job.job.as_deref();
    let units = options.units.iter().map(|id| find(&archive, job, id)).collect::<Result<Vec<_>, _>>()?;
    let write = |to: &mut dyn Write| -> Result<(), Trouble> {
        if units.is_empty() {
            export.write(format, to).map_err(trouble)?;
        }
        let mut units = units.iter();
        units.try_for_each(|unit| export.write_unit(format, unit.job_id, unit.id.as_str(), to)).map_err(trouble)
    };
    match &options.output {
        Some(path) => write_file(&options.database, path, write)?,
        None => write(&mut shown(out))?,
    }
    Ok(code::DONE)
}

/// Writes a file that appears when it is whole, which is not the database.
pub fn write_file<T>(
    database: &Database,
    path: &Path,
    write: impl FnOnce(&mut dyn Write) -> Result<T, Trouble>,
) -> Result<T, Trouble> {
    database.spare(path)?;
    let cannot = |error| Trouble::usage(format!("`{}` cannot be written: {error}", path.display()));
    let mut draft = Draft::at(path).map_err(cannot)?;
    let written = write(&mut draft)?;
    draft.finish().map_err(cannot)?;
    Ok(written)
}

fn trouble(error: ExportError) -> Trouble {
    match error {
        ExportError::Read(error) => error.into(),
        ExportError::Write(error) => error.into(),
        error => Trouble::Storage(told(&error)),
    }
}
