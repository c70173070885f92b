//! Server-sent events: bytes in, split anywhere; events out.
//!
//! It follows the standard: lines end in LF, CR or both, a byte order mark at the beginning is none of them, a line that begins with a
//! colon is a comment, several `data` lines are one text with line feeds between them, an empty line ends an event, and one that the
//! stream does not end is none. An event without data is none either, so a stream may be kept alive with comments or empty lines.
//!
//! Bytes are kept as they are: whether they are UTF-8 is for whoever reads the data.

use std::fmt;
use std::mem;

/// How long a line, and all the data of an event, may be.
pub(super) const EVENT_LIMIT_BYTES: usize = 8 * 1024 * 1024;

/// One event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SseEvent {
    /// Its name, empty if it has none.
    pub(super) name: Vec<u8>,
    /// Its data, without the last line feed.
    pub(super) data: Vec<u8>,
}

/// A line or an event is longer than [`EVENT_LIMIT_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TooLong;

impl fmt::Display for TooLong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an event of the stream is longer than {EVENT_LIMIT_BYTES} bytes")
    }
}

/// Makes events of bytes.
#[derive(Debug)]
pub(super) struct SseReader {
    limit_bytes: usize,
    /// The line so far.
    line: Vec<u8>,
    /// The event so far.
    event: SseEvent,
    has_data: bool,
    is_first_line: bool,
    /// The last byte was a carriage return, which has ended its line: a line feed behind it belongs to it.
    after_return: bool,
}

impl SseReader {
    pub(super) fn new() -> SseReader {
        SseReader::with_limit(EVENT_LIMIT_BYTES)
    }

    fn with_limit(limit_bytes: usize) -> SseReader {
        SseReader {
            limit_bytes,
            line: Vec::new(),
            event: SseEvent::default(),
            has_data: false,
            is_first_line: true,
            after_return: false,
        }
    }

    /// Takes the next bytes, and adds the events that end in them.
    pub(super) fn push(&mut self, mut bytes: &[u8], events: &mut Vec<SseEvent>) -> Result<(), TooLong> {
        while let Some(&first) = bytes.first() {
            if mem::take(&mut self.after_return) && first == b'\n' {
                bytes = &bytes[1..];
                continue;
            }
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let part = &bytes[..end.unwrap_or(bytes.len())];
            if self.line.len() + part.len() > self.limit_bytes {
                return Err(TooLong);
            }
            self.line.extend_from_slice(part);
            let Some(end) = end else { break };
            self.after_return = bytes[end] == b'\r';
            bytes = &bytes[end + 1..];
            self.end_line(events)?;
        }
        Ok(())
    }

    fn end_line(&mut self, events: &mut Vec<SseEvent>) -> Result<(), TooLong> {
        let line = mem::take(&mut self.line);
        let mut line = line.as_slice();
        if mem::take(&mut self.is_first_line) {
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        if line.is_empty() {
            let event = mem::take(&mut self.event);
            if mem::take(&mut self.has_data) {
                events.push(event);
            }
            return Ok(());
        }
        let colon = line.iter().position(|&byte| byte == b':').unwrap_or(line.len());
        let (field, value) = (&line[..colon], line.get(colon + 1..).unwrap_or_default());
        let value = value.strip_prefix(b" ").unwrap_or(value);
        match field {
            b"data" => self.add_data(value),
            b"event" => {
                self.event.name = value.to_vec();
                Ok(())
            }
            // A comment has no name; `id` and `retry` are about connecting again, which would ask the model again.
            _ => Ok(()),
        }
    }

    fn add_data(&mut self, value: &[u8]) -> Result<(), TooLong> {
        if self.event.data.len() + value.len() + 1 > self.limit_bytes {
            return Err(TooLong);
        }
        if mem::replace(&mut self.has_data, true) {
            self.event.data.push(b'\n');
        }
        self.event.data.extend_from_slice(value);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Reads a stream that comes in these parts.
    fn read<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Vec<(String, Vec<u8>)> {
        let (mut reader, mut events) = (SseReader::new(), Vec::new());
        for part in parts {
            reader.push(part, &mut events).unwrap();
        }
        let named = |event: SseEvent| (String::from_utf8(event.name).unwrap(), event.data);
        events.into_iter().map(named).collect()
    }

    fn events(stream: &str) -> Vec<(String, String)> {
        let text = |(name, data)| (name, String::from_utf8(data).unwrap());
        read([stream.as_bytes()]).into_iter().map(text).collect()
    }

    fn event(name: &str, data: &str) -> (String, String) {
        (name.to_owned(), data.to_owned())
    }

    #[test]
    fn an_event_has_a_name_and_data() {
        assert_eq!(events("event: ping\ndata: {}\n\ndata: x\n\n"), [event("ping", "{}"), event("", "x")]);
    }

    #[test]
    fn lines_end_as_they_like() {
        for ends in ["\n", "\r", "\r\n"] {
            let stream = ["event: a", "data: 1", "data: 2", "", "data: 3", "", ""].join(ends);
            assert_eq!(events(&stream), [event("a", "1\n2"), event("", "3")], "{ends:?}");
        }
        assert_eq!(events("data: 1\r\ndata: 2\n\rdata: 3\r\r"), [event("", "1\n2"), event("", "3")]);
    }

    #[test]
    fn comments_and_fields_that_nobody_knows_are_passed_over() {
        assert_eq!(events(": alive\n\n:\nid: 7\nretry: 10\ndatas: y\ndata: x\n\n"), [event("", "x")]);
    }

    #[test]
    fn one_space_behind_the_colon_is_no_data_and_a_second_is() {
        assert_eq!(events("data:x\n\ndata:  x\n\ndata\n\ndata:\n\n").len(), 4);
        assert_eq!(events("data:  x \n\n"), [event("", " x ")]);
        assert_eq!(events("data\n\n"), [event("", "")]);
    }

    #[test]
    fn a_byte_order_mark_is_one_only_at_the_beginning() {
        assert_eq!(events("\u{feff}data: x\n\n\u{feff}data: y\n\n"), [event("", "x")]);
    }

    #[test]
    fn an_event_that_the_stream_does_not_end_is_none() {
        assert_eq!(events("data: x\n\ndata: y\n"), [event("", "x")]);
        assert_eq!(events("event: a\n\n"), []);
    }

    #[test]
    fn bytes_that_are_no_text_are_kept() {
        assert_eq!(read([&b"data: \xff\xc3\n\n"[..]]), [(String::new(), b"\xff\xc3".to_vec())]);
    }

    #[test]
    fn a_line_and_an_event_have_a_bound_and_what_is_as_long_as_it_is_read() {
        let push = |stream: &str| {
            let mut events = Vec::new();
            SseReader::with_limit(20).push(stream.as_bytes(), &mut events).map(|()| events.len())
        };
        assert_eq!(push(&format!("data: {}\n\n", "x".repeat(14))), Ok(1));
        assert_eq!(push(&format!("data: {}\n\n", "x".repeat(15))), Err(TooLong));
        assert_eq!(push(&"x".repeat(21)), Err(TooLong));
        assert_eq!(push(&"data: x\n".repeat(10)), Ok(0));
        assert_eq!(push(&"data: x\n".repeat(11)), Err(TooLong));
        assert_eq!(push(&"data: x\n\n".repeat(100)), Ok(100));
        assert_eq!(push(&": a comment\n".repeat(100)), Ok(0));
    }

    proptest! {
        #[test]
        fn where_a_stream_is_split_changes_nothing(
            stream in "(\u{feff})?((data|event|id|x)?:? ?[a-z: ]{0,3}(\r\n|\n|\r)){0,12}",
            cuts in prop::collection::vec(0_usize..100, 0..6),
        ) {
            let bytes = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).collect();
            cuts.extend([0, bytes.len()]);
            cuts.sort_unstable();
            let parts = cuts.windows(2).map(|ends| &bytes[ends[0]..ends[1]]);
            let whole = read([bytes]);
            prop_assert_eq!(read(parts), whole.clone());
            prop_assert_eq!(read(bytes.chunks(1)), whole);
        }
    }
}
