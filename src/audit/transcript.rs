//! A unit as people read it: what was asked, what was said, attempt by attempt, with tools and their results together.
//!
//! Everything is written as [`visible`] text, so that nothing in a conversation reaches a terminal as a command.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::cost::cost_of;
use super::visible::{line, visible};
use crate::attempt::{Attempt, AttemptKey};
use crate::conversation::{Part, StoredMessage};
use crate::money::{Charge, Cost};
use crate::repository::{Archive, PAGE_LIMIT, RepositoryError, UnitFilter};
use crate::unit::WorkUnit;

/// How much of a conversation is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Detail {
    /// How many lines of what a tool was given or gave, and of what was thought, are written; the rest is counted.
    pub folded_lines: usize,
    /// How many characters of such a line.
    pub folded_chars: usize,
}

impl Default for Detail {
    fn default() -> Detail {
        Detail { folded_lines: 3, folded_chars: 160 }
    }
}

impl Detail {
    /// All of it.
    pub const ALL: Detail = Detail { folded_lines: usize::MAX, folded_chars: usize::MAX };
}

/// Why a transcript was not written to its end.
#[derive(Debug)]
#[non_exhaustive]
pub enum TranscriptError {
    /// It could not be read.
    Repository(RepositoryError),
    /// It could not be written.
    Write(io::Error),
}

impl std::fmt::Display for TranscriptError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            TranscriptError::Repository(_) => "the conversation cannot be read",
            TranscriptError::Write(_) => "the conversation cannot be written",
        })
    }
}

impl std::error::Error for TranscriptError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            TranscriptError::Repository(error) => Some(error),
            TranscriptError::Write(error) => Some(error),
        }
    }
}

impl From<RepositoryError> for TranscriptError {
    fn from(error: RepositoryError) -> TranscriptError {
        TranscriptError::Repository(error)
    }
}

impl From<io::Error> for TranscriptError {
    fn from(error: io::Error) -> TranscriptError {
        TranscriptError::Write(error)
    }
}

type Result<T> = std::result::Result<T, TranscriptError>;

/// Among how many messages at the beginning the prompt is looked for; before it come an agent's words about itself.
const OPENING: usize = 5;

/// How wide the column of who speaks is.
const LABEL_WIDTH: usize = 9;

/// Writes everything about a unit. It reads page by page, so that a long conversation takes no more memory than a short one.
///
/// # Errors
///
/// If it cannot be read or written.
pub fn write(archive: &dyn Archive, unit: &WorkUnit, detail: Detail, out: &mut dyn Write) -> Result<()> {
    let mut writer = Writer { archive, detail, out };
    writer.head(unit)?;
    for attempt in archive.attempts(unit.key)? {
        writer.attempt(unit, &attempt)?;
    }
    writer.answer(unit)
}

struct Writer<'a> {
    archive: &'a dyn Archive,
    detail: Detail,
    out: &'a mut dyn Write,
}

impl Writer<'_> {
    fn head(&mut self, unit: &WorkUnit) -> Result<()> {
        let job = self.archive.job(unit.job_id)?;
        writeln!(self.out, "unit {} of job {}", line(unit.id.as_str()), line(&job.name))?;
        let kind = unit.unit_type.as_deref().map(|kind| format!(", type {}", line(kind))).unwrap_or_default();
        writeln!(self.out, "  status    {}{kind}", unit.status)?;
        if let Some(failure) = &unit.failure {
            writeln!(self.out, "  failure   {}", line(&failure.to_string()))?;
        }
        let cost = cost_of(self.archive, &self.archive.attempts(unit.key)?)?;
        if cost != Cost::default() || unit.tokens.total() > 0 {
            let tokens = unit.tokens.total();
            let tokens = if tokens > 0 { format!(", {tokens} tokens") } else { String::new() };
            writeln!(self.out, "  cost      {cost}{tokens}")?;
        }
        writeln!(self.out, "  created   {}", unit.created_at.format("%F %T%.3f UTC"))?;
        if let Some(at) = unit.completed_at {
            writeln!(self.out, "  ended     {}", at.format("%F %T%.3f UTC"))?;
        }
        if let Some(at) = unit.purged_at {
            let gone = if unit.failure.is_some() { ", what was said and why it failed" } else { " and what was said" };
            writeln!(self.out, "  purged    {}: what it was given{gone} is gone", at.format("%F %T UTC"))?;
        }
        if !unit.payload.is_null() {
            self.folded("payload", &unit.payload.to_string())?;
        }
        for file in &unit.output_files {
            writeln!(self.out, "  file      {} ({} bytes)", line(&file.path), file.size_bytes)?;
        }
        self.journal(unit)
    }

    /// What people have done to it.
    fn journal(&mut self, unit: &WorkUnit) -> Result<()> {
        use crate::unit::Change;
        let mut next = Some(0);
        while let Some(after) = next {
            let page = self.archive.unit_journal(unit.key, after, PAGE_LIMIT)?;
            for row in page.items {
                let by_people = matches!(row.change, Change::Cancel | Change::Requeue | Change::Purge);
                if by_people {
                    let reason = row.reason.map(|reason| format!(": {}", line(&reason))).unwrap_or_default();
                    let (at, what) = (row.at.format("%F %T UTC"), row.change);
                    writeln!(self.out, "  {what} at {at} by {}{reason}", line(&row.actor))?;
                }
            }
            next = page.next.filter(|&next| next > after);
        }
        Ok(())
    }

    fn attempt(&mut self, unit: &WorkUnit, attempt: &Attempt) -> Result<()> {
        let outcome = attempt.outcome.map_or("is being made", |outcome| outcome.name());
        let seconds =
            attempt.execution_time().map(|time| format!(" after {:.2} s", time.as_secs_f64())).unwrap_or_default();
        let charges = self.archive.charges(attempt.key)?;
        let cost: Cost = charges.iter().map(Charge::cost).sum();
        // What nobody has told is not nothing.
        let cost = match (charges.is_empty(), attempt.outcome) {
            (true, None) => "no bill yet".to_owned(),
            (true, Some(_)) => "no bill".to_owned(),
            (false, _) => cost.to_string(),
        };
        let worker = line(attempt.worker_id.as_str());
        writeln!(self.out, "\nattempt {} on {worker}: {outcome}{seconds}, {cost}", attempt.key.number)?;
        if let Some(failure) = &attempt.failure {
            writeln!(self.out, "  failure   {}", line(&failure.to_string()))?;
        }
        if let Some(session) = &attempt.session_id {
            writeln!(self.out, "  session   {}", line(session))?;
        }
        if let Some(made) = &attempt.provenance {
            let words = [Some(made.executor.as_str()), made.program_version.as_deref(), made.model.as_deref()];
            let words: Vec<String> = words.into_iter().flatten().map(|word| line(word).to_string()).collect();
            writeln!(self.out, "  made by   {}", words.join(", "))?;
        }
        if let Some(of) = attempt.answer_of {
            self.answer_of(of)?;
        }
        if attempt.messages_lost > 0 {
            writeln!(self.out, "  {} messages could not be stored", attempt.messages_lost)?;
        }
        let sent = self.archive.attempt_result(attempt.key)?.rendered_prompt;
        let prompt = sent.or_else(|| unit.prompt.clone().filter(|_| attempt.started_at.is_some()));
        let mut calls = BTreeMap::new();
        let mut next = Some(0);
        while let Some(after) = next {
            let page = self.archive.messages(attempt.key, u32::try_from(after).unwrap_or(u32::MAX), PAGE_LIMIT)?;
            // Most conversations begin with the prompt; that of the others is told here.
            let begins_with_it = || page.items.iter().take(OPENING).any(|stored| says(stored, prompt.as_deref()));
            if after == 0 && !begins_with_it() {
                self.prompt(prompt.as_deref())?;
            }
            for stored in &page.items {
                self.message(stored, &mut calls)?;
            }
            next = page.next.filter(|&next| next > after);
        }
        if let Some(text) = self.archive.partial_text(attempt.key)? {
            self.said("assistant", &format!("{text} (is being written)"))?;
        }
        Ok(())
    }

    /// Whose answer it has, by name.
    fn answer_of(&mut self, of: AttemptKey) -> Result<()> {
        let found = self.archive.units(&UnitFilter::default(), of.unit.0 - 1, 1)?.items.into_iter().next();
        let whose = match found.filter(|unit| unit.key == of.unit) {
            Some(unit) => {
                let job = self.archive.job(unit.job_id)?;
                format!("unit {} of job {}", line(unit.id.as_str()), line(&job.name))
            }
            None => format!("the unit with the key {}", of.unit.0),
        };
        Ok(writeln!(self.out, "  answer    that of {whose}, attempt {}", of.number)?)
    }

    fn prompt(&mut self, prompt: Option<&str>) -> Result<()> {
        match prompt {
            Some(prompt) => self.said("prompt", prompt),
            None => Ok(()),
        }
    }

    fn message(&mut self, stored: &StoredMessage, calls: &mut BTreeMap<String, String>) -> Result<()> {
        let role = stored.role.name();
        let message = match stored.message() {
            Ok(Some(message)) => message,
            Ok(None) => return Ok(writeln!(self.out, "  {role:<LABEL_WIDTH$} (removed by a purge)")?),
            Err(_) => return Ok(writeln!(self.out, "  {role:<LABEL_WIDTH$} (cannot be read: it is damaged)")?),
        };
        for part in &message.parts {
            self.part(role, part, calls)?;
        }
        if message.is_partial {
            writeln!(self.out, "  {:<LABEL_WIDTH$} (cut off here)", "")?;
        }
        Ok(())
    }

    fn part(&mut self, role: &str, part: &Part, calls: &mut BTreeMap<String, String>) -> Result<()> {
        match part {
            Part::Text { text } => self.said(role, text),
            Part::Thinking { text } if text.is_empty() => self.said("thinks", "(hidden by the provider)"),
            Part::Thinking { text } => self.folded("thinks", text),
            Part::ToolUse { id, name, input } => {
                calls.insert(id.clone(), name.clone());
                self.folded("→ tool", &format!("{name} {input}"))
            }
            Part::ToolResult { tool_use_id, content, is_error } => {
                let name = calls.get(tool_use_id).map(|name| format!("{name}: ")).unwrap_or_default();
                let text = content.iter().map(plain).collect::<Vec<_>>().join("\n");
                let label = if *is_error { "← FAILED" } else { "← result" };
                self.folded(label, &format!("{name}{text}"))
            }
            other => self.folded(role, &plain(other)),
        }
    }

    /// What somebody said, all of it.
    fn said(&mut self, label: &str, text: &str) -> Result<()> {
        self.lines(label, text, Detail::ALL)
    }

    /// What few want to read, in short.
    fn folded(&mut self, label: &str, text: &str) -> Result<()> {
        self.lines(label, text, self.detail)
    }

    fn lines(&mut self, label: &str, text: &str, detail: Detail) -> Result<()> {
        let all = text.lines().count();
        // To say that there is one more takes a line too.
        let shown = if all <= detail.folded_lines.saturating_add(1) { all } else { detail.folded_lines };
        let mut label = label;
        for text in text.lines().take(shown) {
            self.line(label, &visible(text).cut(detail.folded_chars))?;
            label = "";
        }
        match all {
            0 => self.line(label, "(nothing)"),
            all if all > shown => self.line(label, &format!("… {} more lines", all - shown)),
            _ => Ok(()),
        }
    }

    fn line(&mut self, label: &str, text: &str) -> Result<()> {
        Ok(writeln!(self.out, "{}", format!("  {label:<LABEL_WIDTH$} {text}").trim_end())?)
    }

    fn answer(&mut self, unit: &WorkUnit) -> Result<()> {
        if let Some(output) = &unit.output {
            writeln!(self.out, "\noutput")?;
            self.said("", output)?;
        }
        if let Some(result) = &unit.result {
            writeln!(self.out, "\nresult")?;
            self.folded("", &result.to_string())?;
        }
        Ok(())
    }
}

/// Whether this is what was asked.
fn says(stored: &StoredMessage, prompt: Option<&str>) -> bool {
    let Ok(Some(message)) = stored.message() else { return false };
    prompt.is_some_and(|prompt| message.parts.iter().any(|part| matches!(part, Part::Text { text } if text == prompt)))
}

/// A part as a text.
fn plain(part: &Part) -> String {
    match part {
        Part::Text { text } | Part::Thinking { text } => text.clone(),
        Part::ToolUse { name, input, .. } => format!("{name} {input}"),
        Part::ToolResult { content, .. } => content.iter().map(plain).collect::<Vec<_>>().join("\n"),
        Part::Image { media_type, .. } => format!("(a picture, {media_type})"),
        Part::Other { kind, value } => format!("({kind}) {value}"),
    }
}
