//! What is in a finished database? Counts, costs, failures, a conversation, and whether all is still as it was written.
//!
//! ```text
//! cargo run --release --example batch                         # makes batch.db
//! cargo run --release --example audit                         # reads it
//! cargo run --release --example audit -- batch.db page-017    # shows the conversation of this unit
//! ```
//!
//! The file is only read. It may be weeks old and need not be trusted: what it contains reaches the terminal escaped.

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use workcrew::conversation::StoredMessage;
use workcrew::repository::sqlite::{OpenError, SqliteArchive};
use workcrew::repository::{PAGE_LIMIT, UnitFilter};
use workcrew::{Archive, Attempt, Job, Outcome, Part, RepositoryError, UnitStatus, WorkUnit, audit};

fn main() -> ExitCode {
    env_logger::init();
    let mut arguments = std::env::args_os().skip(1);
    let path = PathBuf::from(arguments.next().unwrap_or_else(|| "batch.db".into()));
    let unit_id = arguments.next().map(|id| id.to_string_lossy().into_owned());
    match report(&path, unit_id.as_deref(), &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        // Such as of `audit | head`.
        Err(error) if is_broken_pipe(&*error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", printable(&error.to_string()));
            ExitCode::FAILURE
        }
    }
}

/// Whether nobody reads any more what is printed.
fn is_broken_pipe(error: &(dyn Error + 'static)) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn report(path: &Path, unit_id: Option<&str>, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let archive = SqliteArchive::open(path).map_err(|error| match error {
        OpenError::NotFound { path } => {
            format!("there is no {}: run `cargo run --release --example batch` first", path.display())
        }
        error => error.to_string(),
    })?;
    let mut shown = None;
    for job in archive.jobs(0, PAGE_LIMIT)?.items {
        let tally = Tally::of(&archive, &job)?;
        tally.write(&archive, &job, out)?;
        let named = unit_id.and_then(|id| archive.unit(job.id, id).ok());
        shown = shown.or(if unit_id.is_some() { named } else { tally.most_attempts });
    }
    match (&shown, unit_id) {
        (Some(unit), _) => write_conversation(&archive, unit, out)?,
        (None, Some(id)) => return Err(format!("there is no unit `{id}`").into()),
        (None, None) => {}
    }

    let verification = audit::verify(&archive)?;
    writeln!(out, "\nverified")?;
    verification.to_string().lines().try_for_each(|line| writeln!(out, "  {}", printable(line)))?;
    match verification.is_clean() {
        true => Ok(writeln!(out, "  nothing is missing, nothing was altered")?),
        false => Err("the database is not as it was written".into()),
    }
}

/// What became of the units of a job, read page by page.
#[derive(Default)]
struct Tally {
    units: BTreeMap<UnitStatus, u64>,
    attempts: BTreeMap<Outcome, u64>,
    failed_attempts: BTreeMap<String, u64>,
    failed_units: BTreeMap<String, u64>,
    /// The first of those that needed most attempts and came to a good end.
    most_attempts: Option<WorkUnit>,
}

impl Tally {
    fn of(archive: &dyn Archive, job: &Job) -> Result<Tally, RepositoryError> {
        let mut tally = Tally::default();
        let mut next = Some(0);
        while let Some(after) = next {
            let page = archive.units(&UnitFilter::job(job.id), after, PAGE_LIMIT)?;
            for unit in page.items {
                for attempt in archive.attempts(unit.key)? {
                    tally.add_attempt(attempt);
                }
                tally.add_unit(unit);
            }
            next = page.next;
        }
        Ok(tally)
    }

    fn add_attempt(&mut self, attempt: Attempt) {
        if let Some(outcome) = attempt.outcome {
            *self.attempts.entry(outcome).or_default() += 1;
        }
        if let Some(failure) = attempt.failure {
            *self.failed_attempts.entry(failure.kind.to_string()).or_default() += 1;
        }
    }

    fn add_unit(&mut self, unit: WorkUnit) {
        *self.units.entry(unit.status).or_default() += 1;
        if let Some(failure) = &unit.failure {
            *self.failed_units.entry(failure.kind.to_string()).or_default() += 1;
        }
        let interest = |unit: &WorkUnit| (unit.status == UnitStatus::Completed, unit.attempt_count);
        if self.most_attempts.as_ref().is_none_or(|most| interest(&unit) > interest(most)) {
            self.most_attempts = Some(unit);
        }
    }

    fn write(&self, archive: &dyn Archive, job: &Job, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
        writeln!(out, "job `{}`, created {}", printable(&job.name), job.created_at.format("%F %T UTC"))?;
        write_counts("units", &self.units, out)?;
        write_counts("attempts", &self.attempts, out)?;
        write_counts("why attempts failed", &self.failed_attempts, out)?;
        write_counts("why units failed for good", &self.failed_units, out)?;
        writeln!(out, "  cost by model")?;
        for model in archive.costs(Some(job.id))?.by_model {
            let (name, tokens) = (printable(&model.model), model.tokens);
            writeln!(out, "    {:.4} for {} tokens of {name}", model.cost, tokens.total())?;
            let (cached, said) = (tokens.cache_read + tokens.cache_write, tokens.output + tokens.reasoning);
            writeln!(out, "      {} input, {cached} cached, {said} output", tokens.input)?;
        }
        Ok(())
    }
}

fn write_counts<T: ToString>(title: &str, counts: &BTreeMap<T, u64>, out: &mut dyn Write) -> io::Result<()> {
    if !counts.is_empty() {
        writeln!(out, "  {title}")?;
    }
    counts.iter().try_for_each(|(name, count)| writeln!(out, "    {count:>6} {}", printable(&name.to_string())))
}

/// Everything that was said about a unit, attempt by attempt.
fn write_conversation(archive: &dyn Archive, unit: &WorkUnit, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    writeln!(out, "\nunit `{}` is {} and cost {}", printable(unit.id.as_str()), unit.status, unit.cost)?;
    for attempt in archive.attempts(unit.key)? {
        let outcome = attempt.outcome.map_or("open", |outcome| outcome.name());
        let seconds = attempt.execution_time().unwrap_or_default().as_secs_f64();
        let worker = printable(attempt.worker_id.as_str());
        write!(out, "\n  attempt {} on worker {worker}: {outcome} after {seconds:.2} s", attempt.key.number)?;
        let failure = attempt.failure.map(|failure| format!(", {failure}")).unwrap_or_default();
        writeln!(out, "{}", printable(&failure))?;
        let mut next = Some(0);
        while let Some(after) = next {
            let page = archive.messages(attempt.key, u32::try_from(after)?, PAGE_LIMIT)?;
            for stored in page.items {
                write_message(&stored, out)?;
            }
            next = page.next;
        }
    }
    Ok(())
}

fn write_message(stored: &StoredMessage, out: &mut dyn Write) -> Result<(), Box<dyn Error>> {
    let mut label = stored.role.name();
    let Some(message) = stored.message()? else {
        return Ok(writeln!(out, "    {label:<9} (removed by a purge)")?);
    };
    for part in &message.parts {
        for line in described(part).lines() {
            writeln!(out, "    {label:<9} {}", printable(line))?;
            label = "";
        }
    }
    if message.is_partial {
        writeln!(out, "    {label:<9} (cut off here)")?;
    }
    Ok(())
}

fn described(part: &Part) -> String {
    match part {
        Part::Text { text } => text.clone(),
        Part::Thinking { text } => format!("(thinks) {text}"),
        Part::ToolUse { name, input, .. } => format!("→ {name} {input}"),
        Part::ToolResult { content, is_error, .. } => {
            let sign = if *is_error { "← failed: " } else { "← " };
            format!("{sign}{}", content.iter().map(described).collect::<Vec<_>>().join("\n"))
        }
        Part::Image { media_type, .. } => format!("(a picture, {media_type})"),
        Part::Other { kind, value } => format!("({kind}) {value}"),
        _ => "(something that this program does not know)".to_owned(),
    }
}

/// A text from the database as a terminal may have it: nothing in it moves the cursor, changes colours or turns the
/// direction of writing.
fn printable(text: &str) -> String {
    let is_harmful = |sign: char| {
        let turns_direction =
            matches!(sign, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        sign.is_control() || turns_direction
    };
    let escaped = |sign: char| match is_harmful(sign) {
        true => sign.escape_default().to_string(),
        false => sign.to_string(),
    };
    text.chars().map(escaped).collect()
}
