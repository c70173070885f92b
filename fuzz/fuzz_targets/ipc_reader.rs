//! Whatever a worker or a parent sends, in whatever pieces: it is read the same, and does no harm.
//!
//! ```text
//! cargo +nightly fuzz run ipc_reader -- -max_total_time=60
//! ```
//!
//! Without the feature `link` it is only checked, as `.ci/run` does.
//!
//! The first two bytes say how long a message may be and how the rest is cut; `corpus/ipc_reader` has messages of every type to begin with.
#![no_main]

use libfuzzer_sys::fuzz_target;
use workcrew::ipc::{Content, Frame, FrameReader, ParentMessage, WorkerMessage};

fuzz_target!(|bytes: &[u8]| {
    let [limit, cut, stream @ ..] = bytes else { return };
    let limit_bytes = 8 * usize::from(*limit) + 1;
    let frames = read([stream], limit_bytes);
    assert_eq!(frames, read(pieces(stream, *cut), limit_bytes), "pieces make a difference");
    assert_eq!(frames, expected(stream, limit_bytes), "it is read as something else than its lines");
    frames.iter().flatten().for_each(|line| make_sense(line));
});

/// All frames; `None` is one that was too long.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, limit_bytes: usize) -> Vec<Option<Vec<u8>>> {
    let (mut reader, mut frames) = (FrameReader::new(limit_bytes), Vec::new());
    let mut give = |frame: Frame<'_>| match frame {
        Frame::Whole(line) => {
            assert!(!line.is_empty() && line.len() <= limit_bytes);
            frames.push(Some(line.to_vec()));
        }
        Frame::TooLong { bytes } => {
            assert!(bytes > limit_bytes as u64);
            frames.push(None);
        }
        _ => {}
    };
    pieces.into_iter().for_each(|piece| reader.push(piece, &mut give));
    reader.finish(&mut give);
    frames
}

/// The same by the shortest way, which has all of it at once.
fn expected(stream: &[u8], limit_bytes: usize) -> Vec<Option<Vec<u8>>> {
    let frame = |line: &[u8]| match line.trim_ascii() {
        _ if line.len() > limit_bytes => Some(None),
        [] => None,
        line => Some(Some(line.to_vec())),
    };
    stream.split(|&byte| byte == b'\n').filter_map(frame).collect()
}

/// Pieces of changing size, some of them empty.
fn pieces(mut stream: &[u8], cut: u8) -> Vec<&[u8]> {
    let (mut pieces, mut size) = (Vec::new(), usize::from(cut));
    while !stream.is_empty() {
        let (piece, behind) = stream.split_at(size.min(stream.len()));
        pieces.push(piece);
        stream = behind;
        size = (size * 5 + 1) % 23;
    }
    pieces
}

/// Reads a line as what either side may say. What is understood is the same once it has been said again.
fn make_sense(line: &[u8]) {
    if let Ok(Some(message)) = ParentMessage::from_line(line) {
        let again = ParentMessage::from_line(&message.to_line()).expect("what was written can be read");
        assert_eq!(again, Some(message));
    }
    if let Ok(Some(message)) = WorkerMessage::from_line(line) {
        let again = WorkerMessage::from_line(&message.to_line()).expect("what was written can be read");
        assert_eq!(again.as_ref(), Some(&message));
        if let WorkerMessage::Message { content, .. } = message {
            let content = Content::read(content);
            assert_eq!(Content::read(content.clone().into_value()), content);
        }
    }
}
