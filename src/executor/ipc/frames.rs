//! Bytes become messages: a line each, with a bound.

use crate::executor::process::lines::Lines;

/// How long a message of a worker may be.
pub const MESSAGE_LIMIT_BYTES: usize = 10 * 1024 * 1024;

/// How long a message of a parent may be: a prompt of ten mebibytes fits, whatever is in it.
pub const QUERY_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// One line that is not blank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame<'a> {
    /// All of it, without its end.
    Whole(&'a [u8]),
    /// It was longer than a message may be. What follows it is read again from the next line on.
    TooLong {
        /// How long it was.
        bytes: u64,
    },
}

/// Splits what arrives in pieces into messages. However long a line is, no more of it is held than a message may have.
///
/// ```
/// use workcrew::ipc::{Frame, FrameReader};
///
/// let mut reader = FrameReader::new(20);
/// let mut found = Vec::new();
/// for piece in ["{\"type\":", "\"ready\"}\r\n\n", "a line that is longer than allowed\n{}"] {
///     reader.push(piece.as_bytes(), |frame| match frame {
///         Frame::Whole(line) => found.push(String::from_utf8_lossy(line).into_owned()),
///         Frame::TooLong { bytes } => found.push(format!("{bytes} bytes")),
///         _ => {}
///     });
/// }
/// assert_eq!(found, ["{\"type\":\"ready\"}", "34 bytes"]);
/// ```
#[derive(Debug)]
pub struct FrameReader {
    lines: Lines,
}

impl FrameReader {
    /// A reader that holds no more than so many bytes of a line.
    pub fn new(limit_bytes: usize) -> FrameReader {
        FrameReader { lines: Lines::new(limit_bytes) }
    }

    /// Takes the next piece, and gives every message that it completes.
    pub fn push(&mut self, piece: &[u8], mut give: impl FnMut(Frame<'_>)) {
        self.lines.push(piece, |line| pass_on(line.bytes, line.truncation.map(|cut| cut.total_bytes), &mut give));
    }

    /// There is no more: what is left, if anything, is the last message, though its line has no end.
    pub fn finish(&mut self, mut give: impl FnMut(Frame<'_>)) {
        self.lines.finish(|line| pass_on(line.bytes, line.truncation.map(|cut| cut.total_bytes), &mut give));
    }
}

fn pass_on(line: &[u8], total_bytes: Option<u64>, give: &mut impl FnMut(Frame<'_>)) {
    match total_bytes {
        Some(bytes) => give(Frame::TooLong { bytes }),
        None if line.trim_ascii().is_empty() => {}
        None => give(Frame::Whole(line.trim_ascii())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::executor::ipc::{ParentMessage, WorkerMessage};

    const LIMIT_BYTES: usize = 300;

    /// Everything that is read, as text.
    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
        let (mut reader, mut found) = (FrameReader::new(LIMIT_BYTES), Vec::new());
        let mut give = |frame: Frame<'_>| match frame {
            Frame::Whole(line) => {
                assert!(!line.is_empty() && line.len() <= LIMIT_BYTES);
                // Whatever it is, to read it does no harm.
                let _ = (WorkerMessage::from_line(line), ParentMessage::from_line(line));
                found.push(String::from_utf8_lossy(line).into_owned());
            }
            Frame::TooLong { bytes } => {
                assert!(bytes > LIMIT_BYTES as u64);
                found.push(format!("{bytes} bytes"));
            }
        };
        for piece in pieces {
            reader.push(piece, &mut give);
            assert!(reader.lines.held_bytes() <= LIMIT_BYTES, "nothing grows without a bound");
        }
        reader.finish(&mut give);
        found
    }

    /// 002-F36.
    #[test]
    fn blank_lines_split_characters_several_at_once_and_a_last_line_without_an_end() {
        let snow = "{\"text\":\"❄\"}".as_bytes();
        let pieces: [&[u8]; 5] = [b"\n \r\n\t\n", &snow[..10], &snow[10..], b"\n{\"a\":1}\n{\"b\":2}\n{\"c\"", b":3}"];
        assert_eq!(read(pieces), ["{\"text\":\"❄\"}", "{\"a\":1}", "{\"b\":2}", "{\"c\":3}"]);
    }

    #[test]
    fn what_is_too_long_is_told_and_the_next_line_is_read_again() {
        let long = "x".repeat(1_000);
        let stream = format!("{long}\n{{\"type\":\"ready\"}}\n{long}");
        assert_eq!(read(stream.as_bytes().chunks(7)), ["1000 bytes", "{\"type\":\"ready\"}", "1000 bytes"]);
        let exactly = "y".repeat(LIMIT_BYTES);
        assert_eq!(read([exactly.as_bytes(), b"\n"]), [exactly]);
    }

    /// Streams of what may be, what is nearly that, and what is not.
    fn streams() -> impl Strategy<Value = Vec<u8>> {
        let messages = [
            r#"{"type":"ready"}"#,
            r#"{"type":"session","requestId":"1.1","sessionId":"s"}"#,
            r#"{"type":"message","requestId":"1.1","content":{"type":"text","text":"snow ❄ and \ud83d\ude00"}}"#,
            r#"{"type":"complete","requestId":"1.1","result":{"output":"done"}}"#,
            r#"{"type":"error","requestId":"1.1","error":"no","then":"give_up"}"#,
            r#"{"type":"health_ok","uptime":1.5,"queriesProcessed":3}"#,
            r#"{"type":"cancel","requestId":"1.1"}"#,
            r#"{"type":"shutdown","graceful":true}"#,
        ];
        let valid = prop::sample::select(messages.to_vec()).prop_map(|message| format!("{message}\n").into_bytes());
        let mutated = (valid.clone(), any::<prop::sample::Index>(), any::<u8>(), 0..3_u8).prop_map(
            |(mut line, place, byte, how)| {
                let place = place.index(line.len());
                match how {
                    0 => line[place] = byte,
                    1 => line.truncate(place),
                    _ => line.insert(place, byte),
                }
                line
            },
        );
        let noise = prop::collection::vec(any::<u8>(), 0..400);
        let nested = (1..200_usize).prop_map(|depth| "[".repeat(depth).into_bytes());
        let piece = prop_oneof![4 => valid, 4 => mutated, 2 => noise, 1 => nested];
        prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn no_stream_of_bytes_does_harm_and_pieces_make_no_difference(stream in streams(), size in 1..64_usize) {
            prop_assert_eq!(read(stream.chunks(size)), read([stream.as_slice()]));
        }
    }
}
