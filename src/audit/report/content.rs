//! Rows and conversations: what the page shows of each unit, written as it is read.
//!
//! Rows are small and there is one for each unit, so the page reads them all when it is opened. Contents are long: each unit has
//! a line of its own in a block of lines, and the page parses a line when somebody opens the unit. A row says where its line is.

use std::io::Write;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use super::embed::{Counted, Scissors, Shown, beginning, embedded};
use super::{Report, ReportError, Written};
use crate::attempt::{AttemptResult, Outcome, Provenance};
use crate::audit::verify::sequence::{Damage, Sequence, explain};
use crate::conversation::{Message, Part, Raw, StoredMessage};
use crate::money::{Charge, Cost};
use crate::repository::{
    Archive, AttemptSummary, JournalEntry, RepositoryError, StoredInputs, UnitFilter, UnitSummary,
};
use crate::unit::UnitStatus;

/// After how many bytes a block of contents ends. One block is split into its lines when the first of them is opened.
const BLOCK_BYTES: u64 = 512 * 1024;

/// How many rows a block has: as many are kept until it is written.
const ROWS_PER_BLOCK: usize = 500;

/// How many parts of a message are shown.
const PART_LIMIT: usize = 500;

/// How many rows of a unit's journal are shown.
const JOURNAL_LIMIT: usize = 200;

/// How many files of an attempt are shown.
const FILE_LIMIT: usize = 200;

/// In which order units get room: what went wrong is what a report is opened for.
const ORDER: [&[UnitStatus]; 3] = [
    &[UnitStatus::Failed],
    &[
        UnitStatus::Cancelled,
        UnitStatus::CancelRequested,
        UnitStatus::Assigned,
        UnitStatus::Processing,
        UnitStatus::Completed,
    ],
    &[UnitStatus::Pending],
];

/// The part of the page that is being written.
pub(super) struct Contents<'a, 'o> {
    archive: &'a dyn Archive,
    wanted: &'a Report,
    now: DateTime<Utc>,
    out: &'a mut Counted<'o>,
    written: Written,
    /// Rows that wait until their block of contents is closed.
    rows: Vec<Row>,
    /// How many bytes of contents there are, without the line that is being written, and where that begins.
    spent_bytes: u64,
    line_began_at: u64,
    /// Something did not fit: nothing more is tried.
    is_full: bool,
    /// How the prompt begins that was really sent for the unit in hand.
    sent: Option<String>,
    /// How many blocks were begun, and how many lines the last one has; `None` while none is open.
    blocks: usize,
    open_block: Option<(usize, u64)>,
}

/// One line of the table.
#[derive(Debug, Serialize)]
struct Row {
    key: i64,
    job: i64,
    id: String,
    #[serde(rename = "type")]
    unit_type: Option<String>,
    status: &'static str,
    /// Every model that it was charged for.
    models: Vec<String>,
    attempts: usize,
    /// How long all its attempts were executed.
    executed_ms: Option<u64>,
    /// What is known of its cost; `None` if it used nothing.
    nanos: Option<i64>,
    unpriced: u64,
    tokens: u64,
    created_ms: i64,
    /// Why it is FAILED.
    failure: Option<String>,
    failure_message: Option<String>,
    /// Every kind in which an attempt of it failed.
    failure_kinds: Vec<String>,
    prompt: Option<String>,
    is_purged: bool,
    /// Block and line of its contents.
    place: Option<(usize, usize)>,
}

impl Row {
    fn of(unit: &UnitSummary, now: DateTime<Utc>) -> Row {
        let mut models: Vec<String> = unit.charges().map(|charge| beginning(&charge.model)).collect();
        let kinds = unit.attempts.iter().filter_map(|attempt| attempt.attempt.failure.as_ref()).chain(&unit.failure);
        let mut failure_kinds: Vec<String> = kinds.map(|failure| beginning(failure.kind.as_str())).collect();
        for names in [&mut models, &mut failure_kinds] {
            names.sort_unstable();
            names.dedup();
        }
        let executed = unit.duration(now);
        let cost = unit.cost();
        Row {
            key: unit.key.0,
            job: unit.job_id.0,
            id: unit.id.as_str().to_owned(),
            unit_type: unit.unit_type.clone(),
            status: unit.status.name(),
            models,
            attempts: unit.attempts.len(),
            executed_ms: executed.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            nanos: (cost != Cost::default() || unit.charges().next().is_some()).then_some(cost.amount.nanos()),
            unpriced: cost.unpriced,
            tokens: unit.tokens().total(),
            created_ms: unit.created_at.timestamp_millis(),
            failure: unit.failure.as_ref().map(|failure| failure.kind.as_str().to_owned()),
            failure_message: unit.failure.as_ref().map(|failure| beginning(&failure.message)),
            failure_kinds,
            prompt: None,
            is_purged: unit.purged_at.is_some(),
            place: None,
        }
    }
}

/// What a unit was given.
#[derive(Debug, Serialize)]
struct InputsTold {
    prompt: Option<Shown>,
    template: Option<Shown>,
    payload: Option<Shown>,
    options: Option<Shown>,
}

/// An attempt without its messages.
#[derive(Debug, Serialize)]
struct AttemptTold<'a> {
    number: u32,
    worker: &'a str,
    owner: i64,
    assigned_ms: i64,
    started_ms: Option<i64>,
    ended_ms: Option<i64>,
    outcome: &'static str,
    is_counted: bool,
    failure_kind: Option<&'a str>,
    failure_message: Option<Shown>,
    session: Option<&'a str>,
    pid: Option<i64>,
    provenance: Option<&'a Provenance>,
    charges: Vec<ChargeTold>,
    messages_lost: u32,
    #[serde(flatten)]
    result: Option<ResultTold>,
    /// What of it cannot be read.
    unreadable: Option<String>,
    /// The text of a message that is still being written.
    partial: Option<Shown>,
}

#[derive(Debug, Serialize)]
struct ChargeTold {
    model: String,
    tokens: crate::money::Tokens,
    nanos: Option<i64>,
    is_estimated: bool,
}

impl ChargeTold {
    fn of(charge: &Charge) -> ChargeTold {
        let nanos = charge.amount.map(|amount| amount.nanos());
        ChargeTold { model: beginning(&charge.model), tokens: charge.tokens, nanos, is_estimated: charge.is_estimated }
    }
}

#[derive(Debug, Serialize)]
struct ResultTold {
    sent: Option<Shown>,
    output: Option<Shown>,
    result: Option<Shown>,
    late_result: Option<Shown>,
    files: Vec<(String, u64)>,
    files_left_out: usize,
    is_purged: bool,
}

/// One message.
#[derive(Debug, Serialize)]
struct MessageTold {
    number: u32,
    at_ms: i64,
    role: &'static str,
    /// `None` if the content was purged, or cannot be read.
    parts: Option<Vec<PartTold>>,
    parts_left_out: usize,
    is_partial: bool,
    /// How long it was before it was cut to be stored.
    stored_of_bytes: Option<u64>,
    unreadable: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum PartTold {
    Text { text: Shown },
    Thinking { text: Shown },
    ToolUse { id: Shown, name: Shown, input: Shown },
    ToolResult { id: Shown, content: Vec<PartTold>, is_error: bool },
    Image { media_type: Shown, bytes: usize },
    Other { name: Shown, value: Shown },
}

#[derive(Debug, Serialize)]
struct StepTold {
    at_ms: i64,
    change: &'static str,
    to: &'static str,
    attempt: Option<u32>,
    actor: Shown,
    reason: Option<Shown>,
}

impl<'a, 'o> Contents<'a, 'o> {
    pub(super) fn new(
        archive: &'a dyn Archive,
        wanted: &'a Report,
        now: DateTime<Utc>,
        out: &'a mut Counted<'o>,
    ) -> Contents<'a, 'o> {
        Contents {
            archive,
            wanted,
            now,
            out,
            written: Written::default(),
            rows: Vec::new(),
            spent_bytes: 0,
            line_began_at: 0,
            is_full: false,
            sent: None,
            blocks: 0,
            open_block: None,
        }
    }

    pub(super) fn written(&self) -> Written {
        self.written
    }

    /// Writes as many units as there is room for.
    pub(super) fn write_all(&mut self) -> Result<(), ReportError> {
        let archive = self.archive;
        for statuses in ORDER {
            let filter = UnitFilter { statuses: statuses.to_vec(), ..self.wanted.filter() };
            for unit in Sequence::new(|after, limit| archive.summaries(&filter, after, limit)) {
                if self.written.rows >= self.wanted.limit_units {
                    return self.close_block();
                }
                // Those that cannot be read were counted with the overview.
                if let Ok(unit) = unit? {
                    self.unit(&unit)?;
                }
            }
        }
        self.close_block()
    }

    fn unit(&mut self, unit: &UnitSummary) -> Result<(), ReportError> {
        let mut row = Row::of(unit, self.now);
        let left_out_before = self.written.messages_left_out;
        if self.is_full || self.spent_bytes >= self.wanted.limit_bytes {
            self.is_full = true;
        } else {
            let inputs = readable(self.archive.inputs(unit.key))?;
            let given = inputs.as_ref().ok().and_then(|inputs| inputs.prompt.as_deref()).map(beginning);
            row.place = Some(self.line(unit, inputs)?);
            row.prompt = self.sent.take().or(given);
        }
        if row.place.is_none() || self.written.messages_left_out > left_out_before {
            self.written.units_without_contents += 1;
        }
        self.written.rows += 1;
        self.rows.push(row);
        let is_long = self.open_block.is_some_and(|(_, begun_at)| self.out.bytes() - begun_at >= BLOCK_BYTES);
        if is_long || self.rows.len() >= ROWS_PER_BLOCK { self.close_block() } else { Ok(()) }
    }

    /// Writes what is known of a unit as one line, and says where that is.
    fn line(
        &mut self,
        unit: &UnitSummary,
        inputs: Result<StoredInputs, String>,
    ) -> Result<(usize, usize), ReportError> {
        let place = self.open_line()?;
        self.line_began_at = self.out.bytes();
        self.out.write_all(b"{\"inputs\":")?;
        let (inputs, unreadable) = match inputs {
            Ok(inputs) => (Some(self.inputs_told(inputs)), None),
            Err(problem) => (None, Some(problem)),
        };
        self.out.write_all(&embedded(&inputs))?;
        self.out.write_all(b",\"unreadable\":")?;
        self.written.unreadable += u64::from(unreadable.is_some());
        self.out.write_all(&embedded(&unreadable))?;
        self.out.write_all(b",\"purged_ms\":")?;
        self.out.write_all(&embedded(&unit.purged_at.map(|time| time.timestamp_millis())))?;
        self.out.write_all(b",\"attempts\":[")?;
        for (index, attempt) in unit.attempts.iter().enumerate() {
            if index > 0 {
                self.out.write_all(b",")?;
            }
            self.attempt(attempt)?;
        }
        self.out.write_all(b"],\"journal\":")?;
        let (steps, has_more) = self.journal(unit)?;
        self.out.write_all(&embedded(&steps))?;
        writeln!(self.out, ",\"journal_goes_on\":{has_more}}}")?;
        self.spent_bytes = self.spent_with_line();
        Ok(place)
    }

    fn spent_with_line(&self) -> u64 {
        self.spent_bytes + (self.out.bytes() - self.line_began_at)
    }

    fn open_line(&mut self) -> Result<(usize, usize), ReportError> {
        match &mut self.open_block {
            Some((lines, _)) => {
                *lines += 1;
                Ok((self.blocks - 1, *lines - 1))
            }
            None => {
                writeln!(self.out, "<script type=\"application/x-ndjson\" id=\"contents-{}\">", self.blocks)?;
                self.blocks += 1;
                self.open_block = Some((1, self.out.bytes()));
                Ok((self.blocks - 1, 0))
            }
        }
    }

    /// Ends the block of contents, if there is one, and writes the rows that wait for it.
    fn close_block(&mut self) -> Result<(), ReportError> {
        if self.open_block.take().is_some() {
            self.out.write_all(b"</script>\n")?;
        }
        if !self.rows.is_empty() {
            self.out.write_all(b"<script type=\"application/json\" class=\"rows\">")?;
            self.out.write_all(&embedded(&self.rows))?;
            self.out.write_all(b"</script>\n")?;
            self.rows.clear();
        }
        Ok(())
    }

    fn inputs_told(&mut self, inputs: StoredInputs) -> InputsTold {
        let has_options = inputs.options != b"{}";
        InputsTold {
            prompt: inputs.prompt.map(|text| self.cut(text)),
            template: inputs.template.map(|text| self.cut(text)),
            payload: inputs.payload.filter(|payload| payload != b"null").map(|json| self.cut(lossy(json))),
            options: has_options.then(|| self.cut(lossy(inputs.options))),
        }
    }

    /// A text of its own, as long as one may be.
    fn cut(&mut self, text: String) -> Shown {
        Scissors::new(self.wanted.limit_text_bytes, &mut self.written.texts_cut).take(text)
    }

    fn attempt(&mut self, summary: &AttemptSummary) -> Result<(), ReportError> {
        let attempt = &summary.attempt;
        let (result, unreadable) = match readable(self.archive.attempt_result(attempt.key))? {
            Ok(result) => (Some(self.result_told(result)), None),
            Err(problem) => (None, Some(problem)),
        };
        let is_open = attempt.outcome.is_none();
        let partial = if is_open { readable(self.archive.partial_text(attempt.key))?.ok().flatten() } else { None };
        self.written.unreadable += u64::from(unreadable.is_some());
        let failure = attempt.failure.as_ref();
        let told = AttemptTold {
            number: attempt.key.number,
            worker: attempt.worker_id.as_str(),
            owner: attempt.owner.0,
            assigned_ms: attempt.assigned_at.timestamp_millis(),
            started_ms: attempt.started_at.map(|time| time.timestamp_millis()),
            ended_ms: attempt.ended_at.map(|time| time.timestamp_millis()),
            outcome: attempt.outcome.map_or("OPEN", Outcome::name),
            is_counted: attempt.is_counted,
            failure_kind: failure.map(|failure| failure.kind.as_str()),
            failure_message: failure.map(|failure| self.cut(failure.message.clone())),
            session: attempt.session_id.as_deref(),
            pid: attempt.process.as_ref().map(|process| i64::from(process.pid)),
            provenance: attempt.provenance.as_ref(),
            charges: summary.charges.iter().map(ChargeTold::of).collect(),
            messages_lost: attempt.messages_lost,
            result,
            unreadable,
            partial: partial.map(|text| self.cut(text)),
        };
        self.out.write_all(b"{\"about\":")?;
        self.out.write_all(&embedded(&told))?;
        self.messages(summary)
    }

    fn result_told(&mut self, result: AttemptResult) -> ResultTold {
        let json = |raw: Raw| lossy(raw.into_bytes());
        self.sent = result.rendered_prompt.as_deref().map(beginning).or(self.sent.take());
        let files_left_out = result.output_files.len().saturating_sub(FILE_LIMIT);
        let files = result.output_files.into_iter().take(FILE_LIMIT).map(|file| (file.path, file.size_bytes));
        ResultTold {
            sent: result.rendered_prompt.map(|text| self.cut(text)),
            output: result.output.map(|text| self.cut(text)),
            result: result.result.map(|raw| self.cut(json(raw))),
            late_result: result.late_result.map(|raw| self.cut(json(raw))),
            files: files.collect(),
            files_left_out,
            is_purged: result.purged.is_some(),
        }
    }

    /// Writes the conversation of an attempt, until there is no more room.
    fn messages(&mut self, summary: &AttemptSummary) -> Result<(), ReportError> {
        let (archive, key) = (self.archive, summary.attempt.key);
        let mut seen = 0;
        let mut left_out = 0;
        let mut lost_sight = None;
        self.out.write_all(b",\"messages\":[")?;
        let page = |after: i64, limit| archive.messages(key, u32::try_from(after).unwrap_or(u32::MAX), limit);
        for message in Sequence::new(page) {
            let told = match message? {
                Ok(message) => self.message_told(&message),
                Err(Damage { position: Some(position), problem }) => damaged(position, problem),
                Err(Damage { position: None, problem }) => {
                    lost_sight = Some(problem);
                    break;
                }
            };
            self.written.unreadable += u64::from(told.unreadable.is_some());
            let json = embedded(&told);
            if self.is_full || self.spent_with_line() + json.len() as u64 > self.wanted.limit_bytes {
                self.is_full = true;
                // How many there are an attempt says when it has ended; of an open one it is at least this one.
                left_out = u64::from(summary.attempt.message_count.unwrap_or(seen + 1).saturating_sub(seen)).max(1);
                break;
            }
            if seen > 0 {
                self.out.write_all(b",")?;
            }
            self.out.write_all(&json)?;
            seen += 1;
        }
        self.written.messages += u64::from(seen);
        self.written.messages_left_out += left_out;
        self.written.unreadable += u64::from(lost_sight.is_some());
        write!(self.out, "],\"messages_left_out\":{left_out},\"lost_sight\":")?;
        self.out.write_all(&embedded(&lost_sight))?;
        Ok(self.out.write_all(b"}")?)
    }

    fn message_told(&mut self, stored: &StoredMessage) -> MessageTold {
        let mut told = MessageTold {
            number: stored.number,
            at_ms: stored.at.timestamp_millis(),
            role: stored.role.name(),
            parts: None,
            parts_left_out: 0,
            is_partial: false,
            stored_of_bytes: None,
            unreadable: None,
        };
        match stored.message() {
            Ok(Some(message)) => self.fill(&mut told, message),
            Ok(None) => {}
            Err(error) => told.unreadable = Some(error.to_string()),
        }
        told
    }

    fn fill(&mut self, told: &mut MessageTold, message: Message) {
        told.parts_left_out = message.parts.len().saturating_sub(PART_LIMIT);
        told.is_partial = message.is_partial;
        told.stored_of_bytes = message.truncated.map(|truncation| truncation.total_bytes);
        let mut scissors = Scissors::new(self.wanted.limit_text_bytes, &mut self.written.texts_cut);
        let parts = message.parts.into_iter().take(PART_LIMIT);
        told.parts = Some(parts.map(|part| part_told(part, &mut scissors)).collect());
    }

    fn journal(&mut self, unit: &UnitSummary) -> Result<(Vec<StepTold>, bool), ReportError> {
        let page = match readable(self.archive.unit_journal(unit.key, 0, JOURNAL_LIMIT))? {
            Ok(page) => page,
            Err(_) => {
                self.written.unreadable += 1;
                return Ok((Vec::new(), true));
            }
        };
        let steps = page.items.into_iter().map(|entry| self.step_told(entry)).collect();
        Ok((steps, page.next.is_some()))
    }

    fn step_told(&mut self, entry: JournalEntry) -> StepTold {
        StepTold {
            at_ms: entry.at.timestamp_millis(),
            change: entry.change.name(),
            to: entry.to.name(),
            attempt: entry.attempt_number,
            actor: self.cut(entry.actor),
            reason: entry.reason.map(|reason| self.cut(reason)),
        }
    }
}

/// What was read, or why it cannot be; an error that says nothing about the record ends the report.
fn readable<T>(read: Result<T, RepositoryError>) -> Result<Result<T, String>, RepositoryError> {
    match read {
        Ok(value) => Ok(Ok(value)),
        Err(error @ RepositoryError::Corrupt { .. }) => Ok(Err(explain(&error))),
        // It was there a moment ago.
        Err(error) if error.is_rejection() => Ok(Err(error.to_string())),
        Err(error) => Err(error),
    }
}

fn damaged(position: i64, problem: String) -> MessageTold {
    MessageTold {
        number: u32::try_from(position).unwrap_or(u32::MAX),
        at_ms: 0,
        role: "system",
        parts: None,
        parts_left_out: 0,
        is_partial: false,
        stored_of_bytes: None,
        unreadable: Some(problem),
    }
}

fn part_told(part: Part, scissors: &mut Scissors<'_>) -> PartTold {
    let json = |value: &Value| value.to_string();
    match part {
        Part::Text { text } => PartTold::Text { text: scissors.take(text) },
        Part::Thinking { text } => PartTold::Thinking { text: scissors.take(text) },
        Part::ToolUse { id, name, input } => {
            PartTold::ToolUse { id: scissors.take(id), name: scissors.take(name), input: scissors.take(json(&input)) }
        }
        Part::ToolResult { tool_use_id, content, is_error } => PartTold::ToolResult {
            id: scissors.take(tool_use_id),
            content: content.into_iter().take(PART_LIMIT).map(|part| part_told(part, scissors)).collect(),
            is_error,
        },
        // Where it is or what it is stays out of the page: nothing is to be loaded, and it may be long.
        Part::Image { media_type, source } => {
            PartTold::Image { media_type: scissors.take(media_type), bytes: source.len() }
        }
        Part::Other { kind, value } => {
            PartTold::Other { name: scissors.take(kind), value: scissors.take(json(&value)) }
        }
    }
}

fn lossy(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
