//! A unit as a document for people.
//!
//! Whatever was said stands between fences that are longer than any run of backticks in it, and names stand in code
//! marks that are: nothing of it can become a heading, a link or HTML.

use std::fmt::Display;
use std::io::Write;

use super::{Export, ExportError};
use crate::attempt::{Attempt, Failure};
use crate::audit::cost::cost_of;
use crate::conversation::{Part, StoredMessage, from_json};
use crate::job::Job;
use crate::money::{Charge, Cost, Tokens};
use crate::unit::WorkUnit;

type Written = Result<(), ExportError>;

impl Export<'_> {
    pub(super) fn write_markdown(&self, job: &Job, unit: &WorkUnit, out: &mut dyn Write) -> Written {
        writeln!(out, "# Unit {}\n", code(unit.id.as_str()))?;
        item(out, "Job", code(&job.name))?;
        item(out, "Status", unit.status)?;
        if let Some(unit_type) = &unit.unit_type {
            item(out, "Type", code(unit_type))?;
        }
        item(out, "Created", unit.created_at.to_rfc3339())?;
        if let Some(completed_at) = unit.completed_at {
            item(out, "Ended", completed_at.to_rfc3339())?;
        }
        item(out, "Attempts", unit.attempt_count)?;
        let cost = cost_of(self.archive, &self.archive.attempts(unit.key)?)?;
        if cost != Cost::default() || unit.tokens.total() > 0 {
            spent(out, &unit.tokens, cost)?;
        }
        if let Some(purged_at) = unit.purged_at {
            item(out, "Contents removed", purged_at.to_rfc3339())?;
        }
        if let Some(failure) = &unit.failure {
            failed(out, failure)?;
        }
        if !unit.payload.is_null() {
            heading(out, 2, "Payload")?;
            json(out, &unit.payload)?;
        }
        for (title, text) in [("Prompt", &unit.prompt), ("Template", &unit.template)] {
            if let Some(text) = text {
                heading(out, 2, title)?;
                block(out, "", text)?;
            }
        }
        for attempt in self.archive.attempts(unit.key)? {
            self.write_attempt(&attempt, out)?;
        }
        Ok(())
    }

    fn write_attempt(&self, attempt: &Attempt, out: &mut dyn Write) -> Written {
        let outcome = attempt.outcome.map_or("still open", |outcome| outcome.name());
        heading(out, 2, format_args!("Attempt {}: {outcome}", attempt.key.number))?;
        writeln!(out)?;
        item(out, "Worker", code(attempt.worker_id.as_str()))?;
        if let Some(provenance) = &attempt.provenance {
            item(out, "Executor", code(&provenance.executor))?;
            if let Some(model) = &provenance.model {
                item(out, "Model", code(model))?;
            }
        }
        if let Some(session) = &attempt.session_id {
            item(out, "Session", code(session))?;
        }
        if let Some(started_at) = attempt.started_at {
            item(out, "Started", started_at.to_rfc3339())?;
        }
        if let Some(time) = attempt.execution_time() {
            item(out, "Took", format_args!("{time:?}"))?;
        }
        let charges = self.archive.charges(attempt.key)?;
        let tokens = charges.iter().fold(Tokens::default(), |sum, charge| sum + charge.tokens);
        // What nobody has told is not nothing.
        match charges.is_empty() {
            true => item(out, "Cost", "no bill")?,
            false => spent(out, &tokens, charges.iter().map(Charge::cost).sum())?,
        }
        if let Some(failure) = &attempt.failure {
            failed(out, failure)?;
        }
        let left = self.archive.attempt_result(attempt.key)?;
        if let Some(rendered) = &left.rendered_prompt {
            heading(out, 3, "What was sent")?;
            block(out, "", rendered)?;
        }
        super::each_message(self.archive, attempt.key, |stored| write_message(attempt, stored, out))?;
        if let Some(text) = self.archive.partial_text(attempt.key)? {
            heading(out, 3, "Being written")?;
            block(out, "", &text)?;
        }
        if let Some(output) = &left.output {
            heading(out, 3, "Output")?;
            block(out, "", output)?;
        }
        for (title, raw) in [("Result", &left.result), ("Late result", &left.late_result)] {
            if let Some(value) = raw.as_ref().and_then(|raw| from_json(raw.as_bytes()).ok()) {
                heading(out, 3, title)?;
                json(out, &value)?;
            }
        }
        if !left.output_files.is_empty() {
            heading(out, 3, "Files")?;
            writeln!(out)?;
            for file in &left.output_files {
                writeln!(out, "- {} ({} bytes)", code(&file.path), file.size_bytes)?;
            }
        }
        Ok(())
    }
}

fn write_message(attempt: &Attempt, stored: &StoredMessage, out: &mut dyn Write) -> Written {
    heading(out, 3, format_args!("{}. {}", stored.number, stored.role))?;
    let message = stored.message().map_err(|error| super::unreadable(attempt.key, stored.number, error))?;
    let Some(message) = message else { return note(out, "Its content was removed.") };
    message.parts.iter().try_for_each(|part| write_part(part, out))?;
    if message.is_partial {
        note(out, "The attempt ended before this message did.")?;
    }
    if let Some(truncated) = message.truncated {
        note(out, format_args!("It had {} bytes, of which this is the beginning.", truncated.total_bytes))?;
    }
    Ok(())
}

fn write_part(part: &Part, out: &mut dyn Write) -> Written {
    match part {
        Part::Text { text } => block(out, "", text),
        Part::Thinking { text } => {
            note(out, "Thought:")?;
            block(out, "", text)
        }
        Part::ToolUse { id, name, input } => {
            note(out, format_args!("Calls {} as {}:", code(name), code(id)))?;
            json(out, input)
        }
        Part::ToolResult { tool_use_id, content, is_error } => {
            let what = if *is_error { "failed" } else { "answered" };
            note(out, format_args!("{} {what}:", code(tool_use_id)))?;
            content.iter().try_for_each(|part| write_part(part, out))
        }
        Part::Image { media_type, source } => {
            note(out, format_args!("A picture, {}, {} bytes as it was given.", code(media_type), source.len()))
        }
        Part::Other { kind, value } => {
            note(out, format_args!("{}:", code(kind)))?;
            json(out, value)
        }
    }
}

fn heading(out: &mut dyn Write, level: usize, title: impl Display) -> Written {
    Ok(writeln!(out, "\n{} {title}", "#".repeat(level))?)
}

fn item(out: &mut dyn Write, name: &str, value: impl Display) -> Written {
    Ok(writeln!(out, "- {name}: {value}")?)
}

fn note(out: &mut dyn Write, text: impl Display) -> Written {
    Ok(writeln!(out, "\n{text}")?)
}

fn failed(out: &mut dyn Write, failure: &Failure) -> Written {
    item(out, "Failed", code(failure.kind.as_str()))?;
    // What was purged says nothing any more.
    if failure.message.is_empty() { Ok(()) } else { block(out, "", &failure.message) }
}

fn spent(out: &mut dyn Write, tokens: &Tokens, cost: Cost) -> Written {
    if tokens.total() > 0 {
        item(out, "Tokens", tokens.total())?;
    }
    item(out, "Cost", cost)
}

fn json(out: &mut dyn Write, value: &serde_json::Value) -> Written {
    let text = serde_json::to_string_pretty(value).map_err(std::io::Error::from)?;
    block(out, "json", &text)
}

/// A text as it is, between fences that it cannot contain.
fn block(out: &mut dyn Write, language: &str, text: &str) -> Written {
    let fence = "`".repeat(longest_run(text).max(2) + 1);
    let end = if text.ends_with('\n') || text.is_empty() { "" } else { "\n" };
    Ok(write!(out, "\n{fence}{language}\n{text}{end}{fence}\n")?)
}

/// A name in a line, between marks that it cannot contain.
fn code(text: &str) -> String {
    let line: String = text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
    let mark = "`".repeat(longest_run(&line) + 1);
    // The spaces are taken off again; without them a name that begins with a backtick would belong to the mark.
    if mark.len() > 1 || line.starts_with(' ') || line.is_empty() {
        format!("{mark} {line} {mark}")
    } else {
        format!("{mark}{line}{mark}")
    }
}

fn longest_run(text: &str) -> usize {
    text.split(|char| char != '`').map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> String {
        let mut out = Vec::new();
        block(&mut out, "", text).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_text_cannot_end_its_own_fence() {
        assert_eq!(written("a"), "\n```\na\n```\n");
        assert_eq!(written("```\n# no heading\n"), "\n````\n```\n# no heading\n````\n");
        assert_eq!(written("`````"), "\n``````\n`````\n``````\n");
        assert_eq!(written(""), "\n```\n```\n");
    }

    #[test]
    fn a_name_cannot_end_its_own_marks() {
        assert_eq!(code("a"), "`a`");
        assert_eq!(code("`a`` <b>"), "``` `a`` <b> ```");
        assert_eq!(code("two\nlines"), "`two lines`");
    }
}
