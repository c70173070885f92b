//! Comma-separated values behind a header.

use std::io::{self, BufRead};

use csv::{ByteRecord, Position, Reader, ReaderBuilder};
use serde_json::{Map, Value};

use super::{LENGTH_LIMIT_BYTES, Place, Read, SourceError};
use crate::unit::NewUnit;

/// The columns that are not payload.
const ID: &str = "id";
const PROMPT: &str = "prompt";

pub(super) struct Table<R> {
    reader: Reader<Bounded<R>>,
    columns: Vec<String>,
    record: ByteRecord,
    is_over: bool,
}

impl<R: BufRead> Table<R> {
    pub(super) fn new(reader: R) -> Result<Table<R>, SourceError> {
        let mut reader = ReaderBuilder::new().flexible(true).from_reader(Bounded { reader, left: LENGTH_LIMIT_BYTES });
        let header = |reason: String| SourceError::Header { reason };
        let names = reader.headers().map_err(|error| header(error.to_string()))?;
        let columns: Vec<String> =
            names.iter().map(|name| name.trim_start_matches('\u{feff}').trim().to_owned()).collect();
        if columns.is_empty() {
            return Err(header("it is empty".to_owned()));
        }
        if !columns.iter().any(|name| name == ID) {
            return Err(header(format!("it has no column `{ID}`, but: {}", columns.join(", "))));
        }
        let twice = |(at, name): (usize, &String)| columns[..at].contains(name).then(|| name.clone());
        if let Some(name) = columns.iter().enumerate().find_map(twice) {
            return Err(header(format!("it has the column `{name}` twice")));
        }
        Ok(Table { reader, columns, record: ByteRecord::new(), is_over: false })
    }

    pub(super) fn next(&mut self) -> Option<Read> {
        if self.is_over {
            return None;
        }
        let begins_at = self.reader.position().line();
        self.reader.get_mut().left = LENGTH_LIMIT_BYTES;
        match self.reader.read_byte_record(&mut self.record) {
            Ok(true) => {
                let place = Place::Line(self.record.position().map_or(begins_at, Position::line));
                Some((place, self.unit()))
            }
            Ok(false) => None,
            Err(error) => {
                self.is_over = true;
                Some((Place::Line(begins_at), Err(format!("nothing more can be read: {error}"))))
            }
        }
    }

    fn unit(&self) -> Result<NewUnit, String> {
        if self.record.len() != self.columns.len() {
            return Err(format!("it has {} fields, the header has {}", self.record.len(), self.columns.len()));
        }
        let mut unit = NewUnit::new("");
        let mut payload = Map::new();
        for (column, field) in self.columns.iter().zip(&self.record) {
            let text = std::str::from_utf8(field).map_err(|_| format!("its `{column}` is not UTF-8"))?;
            match column.as_str() {
                ID => text.clone_into(&mut unit.id),
                PROMPT if text.is_empty() => {}
                PROMPT => unit.prompt = Some(text.to_owned()),
                _ => drop(payload.insert(column.clone(), text.into())),
            }
        }
        if !payload.is_empty() {
            unit.payload = Value::Object(payload);
        }
        Ok(unit)
    }
}

/// Ends after so many bytes: a quote that is never closed would take in all that follows.
struct Bounded<R> {
    reader: R,
    left: usize,
}

impl<R: BufRead> io::Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::Error::other(format!(
                "a row is longer than {LENGTH_LIMIT_BYTES} bytes: is a quote not closed?"
            )));
        }
        let room = buffer.len().min(self.left);
        let count = (&mut self.reader).take(room as u64).read(buffer)?;
        self.left -= count;
        Ok(count)
    }
}
