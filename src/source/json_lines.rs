//! A JSON object on each line.

use std::io::{self, BufRead};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::{LENGTH_LIMIT_BYTES, Place, Read};
use crate::money::Money;
use crate::unit::NewUnit;

pub(super) struct JsonLines<R> {
    reader: R,
    number: u64,
    line: Vec<u8>,
    is_over: bool,
}

/// The fields of a line. One that is misspelt is told, not ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(deserialize_with = "name")]
    id: String,
    prompt: Option<String>,
    payload: Option<Value>,
    template: Option<String>,
    #[serde(rename = "type")]
    unit_type: Option<String>,
    priority: Option<i32>,
    max_retries: Option<u32>,
    timeout_seconds: Option<f64>,
    max_cost: Option<String>,
    workspace_dir: Option<String>,
    #[serde(default)]
    output_files: Vec<String>,
    max_iterations: Option<u32>,
    affinity_key: Option<String>,
    resume_session: Option<String>,
    #[serde(default)]
    idempotent: bool,
}

/// A text, or a number that is meant as one.
fn name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "the id is neither a text nor a whole number")]
    enum Name {
        Text(String),
        Number(i64),
    }
    Ok(match Name::deserialize(deserializer)? {
        Name::Text(text) => text,
        Name::Number(number) => number.to_string(),
    })
}

impl<R: BufRead> JsonLines<R> {
    pub(super) fn new(reader: R) -> JsonLines<R> {
        JsonLines { reader, number: 0, line: Vec::new(), is_over: false }
    }

    pub(super) fn next(&mut self) -> Option<Read> {
        while !self.is_over {
            self.number += 1;
            let read = self.read_line();
            let place = Place::Line(self.number);
            match read {
                Ok(Line::End) => self.is_over = true,
                Ok(Line::TooLong) => {
                    return Some((place, Err(format!("it is longer than {LENGTH_LIMIT_BYTES} bytes"))));
                }
                Ok(Line::Whole) if is_blank(&self.line) => {}
                Ok(Line::Whole) => return Some((place, unit(&self.line))),
                // Nothing that follows could be trusted to begin where a line begins.
                Err(error) => {
                    self.is_over = true;
                    return Some((place, Err(format!("nothing more can be read: {error}"))));
                }
            }
        }
        None
    }

    /// Reads a line, and of one that is too long nothing but its end.
    fn read_line(&mut self) -> io::Result<Line> {
        self.line.clear();
        let mut length = 0;
        loop {
            let chunk = match self.reader.fill_buf() {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                chunk => chunk?,
            };
            let newline = chunk.iter().position(|&byte| byte == b'\n');
            let used = newline.map_or(chunk.len(), |at| at + 1);
            let (is_end, is_complete) = (used == 0, newline.is_some());
            length += used;
            if length <= LENGTH_LIMIT_BYTES {
                self.line.extend_from_slice(&chunk[..used]);
            }
            self.reader.consume(used);
            if is_complete || is_end {
                return Ok(match length {
                    0 => Line::End,
                    length if length > LENGTH_LIMIT_BYTES => Line::TooLong,
                    _ => Line::Whole,
                });
            }
        }
    }
}

enum Line {
    Whole,
    TooLong,
    End,
}

fn is_blank(line: &[u8]) -> bool {
    without_mark(line).iter().all(u8::is_ascii_whitespace)
}

/// Without the mark that some editors put at the beginning of a file.
fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

fn unit(line: &[u8]) -> Result<NewUnit, String> {
    let line = without_mark(line);
    // A list of as many values as there are fields would be taken for them.
    if line.trim_ascii_start().starts_with(b"[") {
        return Err("it is a list, not an object with an `id`".to_owned());
    }
    let fields: Fields = serde_json::from_slice(line).map_err(|error| reason(&error))?;
    let timeout = fields.timeout_seconds.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|error| format!("timeout_seconds: {error}"))?;
    let max_cost = fields.max_cost.map(|cost| cost.parse::<Money>()).transpose();
    let mut unit = NewUnit::new(fields.id);
    unit.prompt = fields.prompt;
    unit.payload = fields.payload.unwrap_or(Value::Null);
    unit.template = fields.template;
    unit.unit_type = fields.unit_type;
    unit.priority = fields.priority.unwrap_or_default();
    unit.max_retries = fields.max_retries.unwrap_or(NewUnit::DEFAULT_MAX_RETRIES);
    unit.options.timeout = timeout;
    unit.options.max_cost = max_cost.map_err(|error| format!("max_cost: {error}"))?;
    unit.options.workspace_dir = fields.workspace_dir;
    unit.options.output_files = fields.output_files;
    unit.options.max_iterations = fields.max_iterations;
    unit.options.affinity_key = fields.affinity_key;
    unit.options.resume_session = fields.resume_session;
    unit.options.is_idempotent = fields.idempotent;
    Ok(unit)
}

/// What the parser says, with the column but without the line, which is always its first.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line 1 column ") {
        Some((what, column)) => format!("{what}, at column {column}"),
        None => text,
    }
}
