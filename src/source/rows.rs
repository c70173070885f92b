//! The rows of a table of comma-separated values, as RFC 4180 has them and as programs write them.
//!
//! A field that begins with a quote ends at the next one that is not doubled, whatever is in between; a quote anywhere else is a sign like any
//! other. A row ends at `\n`, `\r\n` or `\r`; a line without anything is no row. It is read here, and not by a library, because people need to be
//! told on which line a row begins, and on which a quote that nobody closes.

use std::fmt;
use std::io::{self, BufRead};

use super::LENGTH_LIMIT_BYTES;

/// What some editors put at the beginning of a file.
pub(super) const MARK: &[u8] = b"\xef\xbb\xbf";

/// One row: its fields one behind the other, and where each ends.
#[derive(Debug, Default)]
pub(super) struct Row {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// The line on which it begins, from 1.
    pub(super) line: u64,
}

impl Row {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(super) fn fields(&self) -> impl Iterator<Item = &[u8]> {
        let begins = std::iter::once(0).chain(self.ends.iter().copied());
        begins.zip(&self.ends).map(|(begin, &end)| &self.bytes[begin..end])
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Why there are no more rows.
#[derive(Debug)]
pub(super) enum RowError {
    /// A quote is open at the end of the file.
    NotClosed { line: u64 },
    /// A row has no end within what is looked at. Most often a quote is not closed.
    TooLong { line: u64, quote: Option<u64> },
    /// It cannot be read.
    Unreadable { line: u64, source: io::Error },
}

impl RowError {
    /// Where to look.
    pub(super) fn line(&self) -> u64 {
        match *self {
            RowError::NotClosed { line } | RowError::Unreadable { line, .. } => line,
            RowError::TooLong { line, quote } => quote.unwrap_or(line),
        }
    }
}

impl fmt::Display for RowError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RowError::NotClosed { .. } => {
                f.write_str("a quote opens here and is never closed: nothing from here on was read")
            }
            RowError::TooLong { quote: Some(_), .. } => {
                write!(
                    f,
                    "a quote opens here and is not closed within {LENGTH_LIMIT_BYTES} bytes: nothing from here on was read"
                )
            }
            RowError::TooLong { quote: None, .. } => {
                write!(f, "it is longer than {LENGTH_LIMIT_BYTES} bytes: nothing from here on was read")
            }
            RowError::Unreadable { source, .. } => write!(f, "nothing more can be read: {source}"),
        }
    }
}

/// Where in a field it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// Before its first sign.
    Begin,
    Plain,
    /// Behind a quote that is open.
    Quoted,
    /// Behind a quote that closes the field, unless another follows.
    Closing,
}

/// Reads rows one by one.
pub(super) struct Rows<R> {
    reader: R,
    /// The line that is read next.
    line: u64,
    is_after_return: bool,
}

impl<R: BufRead> Rows<R> {
    pub(super) fn new(reader: R) -> Rows<R> {
        Rows { reader, line: 1, is_after_return: false }
    }

    /// Reads the next row; says whether there was one. After an error there is none.
    pub(super) fn read(&mut self, row: &mut Row) -> Result<bool, RowError> {
        row.clear();
        row.line = self.line;
        let (mut at, mut quote, mut length) = (At::Begin, self.line, 0);
        loop {
            let Some(byte) = self.byte()? else { return end(row, at, quote) };
            length += 1;
            if length > LENGTH_LIMIT_BYTES {
                let quote = (at == At::Quoted).then_some(quote);
                return Err(RowError::TooLong { line: row.line, quote });
            }
            at = match (at, byte) {
                (At::Quoted, b'"') => At::Closing,
                (At::Quoted, byte) => {
                    row.bytes.push(byte);
                    At::Quoted
                }
                (At::Closing, b'"') => {
                    row.bytes.push(b'"');
                    At::Quoted
                }
                (At::Begin, b'"') => {
                    quote = self.line;
                    At::Quoted
                }
                (_, b',') => {
                    row.ends.push(row.bytes.len());
                    At::Begin
                }
                (At::Begin, b'\n' | b'\r') if row.ends.is_empty() => {
                    // Nothing was on it.
                    row.line = self.line;
                    At::Begin
                }
                (_, b'\n' | b'\r') => {
                    row.ends.push(row.bytes.len());
                    return Ok(true);
                }
                (_, byte) => {
                    row.bytes.push(byte);
                    At::Plain
                }
            };
            if row.line == 1 && row.ends.is_empty() && row.bytes == MARK {
                row.bytes.clear();
                at = At::Begin;
            }
        }
    }

    /// The next byte. Counts lines: a `\n` behind a `\r` ends the same one.
    fn byte(&mut self) -> Result<Option<u8>, RowError> {
        let chunk = loop {
            match self.reader.fill_buf() {
                Ok(chunk) => break chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(RowError::Unreadable { line: self.line, source }),
            }
        };
        let Some(&byte) = chunk.first() else { return Ok(None) };
        self.reader.consume(1);
        let is_second = std::mem::replace(&mut self.is_after_return, byte == b'\r') && byte == b'\n';
        self.line += u64::from(matches!(byte, b'\n' | b'\r') && !is_second);
        Ok(Some(byte))
    }
}

/// The file ends: so does the row, if there is one.
fn end(row: &mut Row, at: At, quote: u64) -> Result<bool, RowError> {
    if at == At::Quoted {
        return Err(RowError::NotClosed { line: quote });
    }
    let is_row = at != At::Begin || !row.ends.is_empty();
    if is_row {
        row.ends.push(row.bytes.len());
    }
    Ok(is_row)
}
