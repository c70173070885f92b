//! Bytes become lines, each with a bound.

use super::Line;
use crate::chain::Hash;
use crate::conversation::Truncation;

/// Splits what arrives in pieces into lines. Of a line that is too long the beginning is kept, and how long it was.
#[derive(Debug)]
pub(in crate::executor) struct Lines {
    limit_bytes: usize,
    /// The line so far.
    held: Vec<u8>,
    /// All of it, where not all is held.
    whole: Option<Whole>,
}

#[derive(Debug)]
struct Whole {
    bytes: u64,
    hasher: Box<blake3::Hasher>,
}

impl Lines {
    pub(in crate::executor) fn new(limit_bytes: usize) -> Lines {
        Lines { limit_bytes, held: Vec::new(), whole: None }
    }

    /// How much of a line that has not ended yet is held.
    #[cfg(test)]
    pub(in crate::executor) fn held_bytes(&self) -> usize {
        self.held.len()
    }

    /// Takes the next piece, and gives every line that it completes.
    pub(in crate::executor) fn push(&mut self, mut piece: &[u8], mut give: impl FnMut(Line<'_>)) {
        while let Some(end) = piece.iter().position(|&byte| byte == b'\n') {
            let (line, behind) = (&piece[..end], &piece[end + 1..]);
            if self.held.is_empty() && self.whole.is_none() && line.len() <= self.limit_bytes {
                // Most lines arrive whole.
                give(Line { bytes: line, truncation: None });
            } else {
                self.hold(line);
                self.give_held(&mut give);
            }
            piece = behind;
        }
        self.hold(piece);
    }

    /// There is no more: what is left, if anything, is the last line.
    pub(in crate::executor) fn finish(&mut self, mut give: impl FnMut(Line<'_>)) {
        if !self.held.is_empty() {
            self.give_held(&mut give);
        }
    }

    fn give_held(&mut self, give: &mut impl FnMut(Line<'_>)) {
        let held = std::mem::take(&mut self.held);
        let truncation = self.whole.take().map(|whole| Truncation {
            total_bytes: whole.bytes,
            hash: Hash::from_bytes(*whole.hasher.finalize().as_bytes()),
        });
        give(Line { bytes: &held, truncation });
    }

    fn hold(&mut self, piece: &[u8]) {
        let room = self.limit_bytes - self.held.len();
        if self.whole.is_none() && piece.len() > room {
            let mut hasher = Box::new(blake3::Hasher::new());
            hasher.update(&self.held);
            self.whole = Some(Whole { bytes: self.held.len() as u64, hasher });
        }
        if let Some(whole) = &mut self.whole {
            whole.bytes += piece.len() as u64;
            whole.hasher.update(piece);
        }
        self.held.extend_from_slice(&piece[..piece.len().min(room)]);
    }
}

/// The end of what was said.
#[derive(Debug)]
pub(in crate::executor) struct Tail {
    limit_bytes: usize,
    held: Vec<u8>,
    total_bytes: u64,
}

impl Tail {
    pub(in crate::executor) fn new(limit_bytes: usize) -> Tail {
        Tail { limit_bytes, held: Vec::new(), total_bytes: 0 }
    }

    pub(in crate::executor) fn push(&mut self, piece: &[u8]) {
        self.total_bytes += piece.len() as u64;
        self.held.extend_from_slice(&piece[piece.len().saturating_sub(self.limit_bytes)..]);
        // Moved seldom: not before there is twice as much as is to be kept.
        if self.held.len() > 2 * self.limit_bytes {
            self.held.drain(..self.held.len() - self.limit_bytes);
        }
    }

    /// The end so far, and how much it was in all.
    pub(in crate::executor) fn so_far(&self) -> (Vec<u8>, u64) {
        (self.held[self.held.len().saturating_sub(self.limit_bytes)..].to_vec(), self.total_bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Owned = (Vec<u8>, Option<Truncation>);

    fn split<'a>(limit_bytes: usize, pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<Owned> {
        let (mut lines, mut given) = (Lines::new(limit_bytes), Vec::new());
        let mut give = |line: Line<'_>| {
            assert!(line.bytes.len() <= limit_bytes);
            given.push((line.bytes.to_vec(), line.truncation));
        };
        for piece in pieces {
            lines.push(piece, &mut give);
        }
        lines.finish(&mut give);
        given
    }

    #[test]
    fn a_line_ends_where_it_ends_however_it_arrives() {
        let whole = |bytes: &[u8]| (bytes.to_vec(), None);
        let pieces: [&[u8]; 5] = [b"a", b"b\n\nc", b"", b"\r\n\xff\0", b"d"];
        assert_eq!(split(10, pieces), [whole(b"ab"), whole(b""), whole(b"c\r"), whole(b"\xff\0d")]);
        assert_eq!(split(10, [b"a\n".as_slice()]), [whole(b"a")], "nothing comes after the last one");
        assert_eq!(split(10, []), []);
    }

    #[test]
    fn of_a_line_that_is_too_long_the_beginning_is_kept_and_what_it_was() {
        let cut = |kept: &[u8], whole: &[u8]| {
            (kept.to_vec(), Some(Truncation { total_bytes: whole.len() as u64, hash: Hash::of(whole) }))
        };
        assert_eq!(split(3, [b"abcd\nabc\n".as_slice()]), [cut(b"abc", b"abcd"), (b"abc".to_vec(), None)]);
        assert_eq!(split(3, [b"ab".as_slice(), b"cdef", b"g\nx"]), [cut(b"abc", b"abcdefg"), (b"x".to_vec(), None)]);
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(bytes in prop::collection::vec(prop_oneof![Just(b'\n'), any::<u8>()], 0..200), size in 1..20_usize, limit in 1..30_usize) {
            prop_assert_eq!(split(limit, bytes.chunks(size)), split(limit, [bytes.as_slice()]));
        }

        #[test]
        fn the_tail_is_the_end_of_it(bytes in prop::collection::vec(any::<u8>(), 0..200), size in 1..50_usize, limit in 1..30_usize) {
            let mut tail = Tail::new(limit);
            for piece in bytes.chunks(size) {
                tail.push(piece);
            }
            let (kept, total_bytes) = tail.so_far();
            prop_assert_eq!(&kept, &bytes[bytes.len().saturating_sub(limit)..]);
            prop_assert_eq!(total_bytes, bytes.len() as u64);
        }
    }
}
