//! `workcrew search`: where something was said.

use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;

use chrono::{DateTime, Utc};
use clap::{Args, ValueEnum};
use workcrew::Archive;
use workcrew::audit::search::{Hit, Kind, Query, SearchError, SearchIndex};
use workcrew::audit::visible::line;

use crate::database::{Database, OfJob};
use crate::list::Status;
use crate::print::{self, count};
use crate::time;
use crate::trouble::{Trouble, code, told};

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Where {
    /// What was asked
    Prompt,
    /// What the model said, thought and answered
    Assistant,
    /// What tools were asked and answered
    Tool,
    /// Why something failed
    Error,
}

#[derive(Args)]
pub struct Options {
    /// What is looked for: words that must all occur, beginnings*, and in quotes of the shell also '"a phrase" -without'
    #[arg(value_name = "WORDS", required = true)]
    words: Vec<String>,
    #[command(flatten)]
    database: Database,
    #[command(flatten)]
    job: OfJob,
    /// Only there; several may be given
    #[arg(long = "in", value_enum, value_name = "WHERE")]
    kinds: Vec<Where>,
    /// Only of units in this status; several may be given
    #[arg(long, value_enum)]
    status: Vec<Status>,
    /// Only what was stored since then: a day, a time, or how long ago
    #[arg(long, value_name = "TIME", value_parser = time::moment)]
    since: Option<DateTime<Utc>>,
    /// Every place, instead of the best of each unit
    #[arg(long)]
    all: bool,
    /// How many
    #[arg(long, short = 'n', value_name = "N", default_value_t = 20)]
    limit: usize,
    /// How many come before the first
    #[arg(long, value_name = "N", default_value_t = 0)]
    offset: usize,
    /// Prints one JSON object per line
    #[arg(long)]
    json: bool,
}

pub fn run(options: Options, out: &mut dyn Write) -> Result<ExitCode, Trouble> {
    let archive = options.database.archive()?;
    let query = query(&options, &archive)?;
    let index = SearchIndex::beside(&options.database.db).map_err(trouble)?;
    catch_up(&index)?;
    let mut hits = index.find(&query);
    // It is empty now, and can be made again from the database.
    if let Err(SearchError::Damaged) = hits {
        eprintln!("workcrew: the search index was damaged and is made anew");
        catch_up(&index)?;
        hits = index.find(&query);
    }
    let hits = hits.map_err(trouble)?;
    if options.json {
        hits.iter().try_for_each(|hit| print::json(out, hit))?;
        return Ok(code::DONE);
    }
    if hits.is_empty() {
        writeln!(out, "nothing was found")?;
    }
    let marks = if std::io::stdout().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("«", "»") };
    hits.iter().try_for_each(|hit| write(hit, marks, out))?;
    if hits.len() == options.limit {
        writeln!(out, "perhaps more: --offset {}", options.offset + hits.len())?;
    }
    Ok(code::DONE)
}

fn query(options: &Options, archive: &dyn Archive) -> Result<Query, Trouble> {
    let words = options.words.join(" ");
    let mut query = Query::parse(&words).map_err(|error| Trouble::usage(told(&error)))?;
    query = query.limit(options.limit).offset(options.offset);
    if let Some(job) = options.job.find(archive)? {
        query = query.job(job.id);
    }
    for kind in &options.kinds {
        query = query.kind(match kind {
            Where::Prompt => Kind::Prompt,
            Where::Assistant => Kind::Assistant,
            Where::Tool => Kind::Tool,
            Where::Error => Kind::Error,
        });
    }
    for &status in &options.status {
        query = query.status(status.into());
    }
    if let Some(since) = options.since {
        query = query.since(since);
    }
    Ok(if options.all { query } else { query.by_unit() })
}

/// Takes in what was stored since somebody searched last, and says so if that takes long.
fn catch_up(index: &SearchIndex) -> Result<(), Trouble> {
    let is_watched = std::io::stderr().is_terminal();
    let mut is_told = false;
    let done = index.catch_up_with(|progress| {
        if is_watched {
            eprint!(
                "\rreading what is new: {} of {}",
                print::number(progress.rows),
                print::number(progress.rows_total)
            );
            is_told = true;
        }
        ControlFlow::Continue(())
    });
    if is_told {
        eprint!("\r\x1b[K");
    }
    let done = done.map_err(trouble)?;
    if done.unreadable > 0 {
        eprintln!("workcrew: {} cannot be read, and nothing is found in there", count(done.unreadable, "record"));
    }
    if index.is_temporary() && done.texts > 0 {
        eprintln!("workcrew: the folder cannot be written, so the index is not kept");
    }
    Ok(())
}

fn write(hit: &Hit, (on, off): (&str, &str), out: &mut dyn Write) -> Result<(), Trouble> {
    let mut place = hit.place.to_string().replace('_', " ");
    if let Some(number) = hit.attempt_number {
        place.push_str(&format!(" of attempt {number}"));
    }
    if let (Some(number), Some(role)) = (hit.message_number, hit.role) {
        place.push_str(&format!(", number {number}, {role}"));
    }
    let others = if hit.others > 0 { format!(", and {} more", count(hit.others, "place")) } else { String::new() };
    writeln!(out, "{} {} ({place}{others})", line(hit.unit_id.as_str()), hit.status)?;
    write!(out, "    ")?;
    for (text, is_match) in hit.snippet.parts() {
        let text = line(text).to_string().replace("\\n", " ");
        if is_match { write!(out, "{on}{text}{off}")? } else { write!(out, "{text}")? }
    }
    Ok(writeln!(out)?)
}

fn trouble(error: SearchError) -> Trouble {
    match error {
        SearchError::Open(error) => error.into(),
        SearchError::Read(error) => error.into(),
        error => Trouble::Storage(told(&error)),
    }
}
