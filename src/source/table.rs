//! Comma-separated values behind a header.

use std::io::BufRead;

use serde_json::{Map, Value};

use super::rows::{Row, Rows};
use super::{Place, Read, SourceError};
use crate::unit::NewUnit;

/// The columns that are not payload.
const ID: &str = "id";
const PROMPT: &str = "prompt";

pub(super) struct Table<R> {
    rows: Rows<R>,
    columns: Vec<String>,
    row: Row,
    is_over: bool,
}

impl<R: BufRead> Table<R> {
    pub(super) fn new(reader: R) -> Result<Table<R>, SourceError> {
        let (mut rows, mut row) = (Rows::new(reader), Row::default());
        let header = |reason: String| SourceError::Header { reason };
        rows.read(&mut row).map_err(|error| header(format!("line {}: {error}", error.line())))?;
        let name = |field: &[u8]| std::str::from_utf8(field).map(|name| name.trim().to_owned());
        let columns: Result<Vec<String>, _> = row.fields().map(name).collect();
        let columns = columns.map_err(|_| header("it is not UTF-8".to_owned()))?;
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
        Ok(Table { rows, columns, row, is_over: false })
    }

    pub(super) fn next(&mut self) -> Option<Read> {
        if self.is_over {
            return None;
        }
        match self.rows.read(&mut self.row) {
            Ok(true) => Some((Place::Line(self.row.line), self.unit())),
            Ok(false) => None,
            Err(error) => {
                self.is_over = true;
                Some((Place::Line(error.line()), Err(error.to_string())))
            }
        }
    }

    fn unit(&self) -> Result<NewUnit, String> {
        let (fields, columns) = (self.row.len(), self.columns.len());
        if fields != columns {
            let s = if fields == 1 { "" } else { "s" };
            return Err(format!("it has {fields} field{s}, the header has {columns}"));
        }
        let mut unit = NewUnit::new("");
        let mut payload = Map::new();
        for (column, field) in self.columns.iter().zip(self.row.fields()) {
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
