//! A JSON object on each line.

use std::io::{self, BufRead};
use std::time::Duration;

use serde::{Deserialize, Deserializer};
use serde_json::error::Category;
use serde_json::{Map, Value};

use super::rows::MARK;
use super::{LENGTH_LIMIT_BYTES, Place, Read};
use crate::money::Money;
use crate::unit::NewUnit;

pub(super) struct JsonLines<R> {
    reader: R,
    number: u64,
    line: Vec<u8>,
    /// Whether a line was read that is not blank.
    has_begun: bool,
    is_over: bool,
}

/// What is told of a file that is JSON as a whole.
const ONE_LIST: &str = "it is one list, of which nothing was read: units are objects, each on a line of its own, as `jq -c '.[]'` makes them";

/// The fields of a line. One that is misspelt is told, not ignored.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with an `id`")]
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
        JsonLines { reader, number: 0, line: Vec::new(), has_begun: false, is_over: false }
    }

    pub(super) fn next(&mut self, max_retries: u32) -> Option<Read> {
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
                // Single lines of it might be units, which nobody meant.
                Ok(Line::Whole) if !std::mem::replace(&mut self.has_begun, true) && is_list(&self.line) => {
                    self.is_over = true;
                    return Some((place, Err(ONE_LIST.to_owned())));
                }
                Ok(Line::Whole) => return Some((place, unit(&self.line, max_retries))),
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

fn is_list(line: &[u8]) -> bool {
    without_mark(line).trim_ascii_start().starts_with(b"[")
}

/// Without the mark that some editors put at the beginning of a file.
fn without_mark(line: &[u8]) -> &[u8] {
    line.strip_prefix(MARK).unwrap_or(line)
}

/// The unit of a line; one that does not say how often it is tried again gets this number.
fn unit(line: &[u8], max_retries: u32) -> Result<NewUnit, String> {
    let line = std::str::from_utf8(without_mark(line)).map_err(|_| "it is not UTF-8".to_owned())?.trim();
    // A list of as many values as there are fields would be taken for them.
    if is_list(line.as_bytes()) {
        return Err("it is a list, not an object with an `id`".to_owned());
    }
    let fields: Fields = serde_json::from_str(line).map_err(|error| reason(&error, line))?;
    let timeout = fields.timeout_seconds.map(Duration::try_from_secs_f64).transpose();
    let timeout = timeout.map_err(|_| "`timeout_seconds` is no time that can be waited".to_owned())?;
    let max_cost = fields.max_cost.map(|cost| cost.parse::<Money>()).transpose();
    let mut unit = NewUnit::new(fields.id);
    unit.prompt = fields.prompt;
    unit.payload = fields.payload.unwrap_or(Value::Null);
    unit.template = fields.template;
    unit.unit_type = fields.unit_type;
    unit.priority = fields.priority.unwrap_or_default();
    unit.max_retries = fields.max_retries.unwrap_or(max_retries);
    unit.options.timeout = timeout;
    unit.options.max_cost = max_cost.map_err(|error| format!("`max_cost`: {error}"))?;
    unit.options.workspace_dir = fields.workspace_dir;
    unit.options.output_files = fields.output_files;
    unit.options.max_iterations = fields.max_iterations;
    unit.options.affinity_key = fields.affinity_key;
    unit.options.resume_session = fields.resume_session;
    unit.options.is_idempotent = fields.idempotent;
    Ok(unit)
}

/// What is wrong with a line, in words for whoever wrote it: the parser's own are about its types and its lines.
fn reason(error: &serde_json::Error, line: &str) -> String {
    let text = error.to_string();
    let what = text.rsplit_once(" at line ").map_or(&*text, |(what, _)| what);
    let column = error.column();
    match error.classify() {
        Category::Eof => "it is no JSON: it ends in the middle".to_owned(),
        // A word that is none of JSON's. What was expected instead says nothing.
        Category::Syntax | Category::Io if what.starts_with("expected ident") || what.starts_with("expected value") => {
            format!("it is no JSON, from column {column} on")
        }
        Category::Syntax | Category::Io => format!("it is no JSON: {what}, at column {column}"),
        Category::Data => {
            let what = NUMBERS.iter().fold(what.to_owned(), |what, (parsers, ours)| what.replace(parsers, ours));
            field_at_fault(line).map(|name| format!("`{name}`: {what}")).unwrap_or(what)
        }
    }
}

/// What the parser calls numbers, and what people do.
const NUMBERS: [(&str, &str); 3] = [
    ("expected i32", "expected a whole number"),
    ("expected u32", "expected a whole number from 0"),
    ("expected f64", "expected a number"),
];

/// The field whose value is of another kind than it should be.
fn field_at_fault(line: &str) -> Option<String> {
    let object: Map<String, Value> = serde_json::from_str(line).ok()?;
    let is_at_fault = |(name, value): &(String, Value)| {
        let alone = [("id".to_owned(), Value::from("x")), (name.clone(), value.clone())];
        let told = Fields::deserialize(Value::Object(Map::from_iter(alone))).err().map(|error| error.to_string());
        told.is_some_and(|told| !told.starts_with("unknown field"))
    };
    object.into_iter().find(is_at_fault).map(|(name, _)| name)
}
