//! Data inside a page: JSON of which no byte can end the element that it stands in.

use std::io::{self, Write};

use serde::Serialize;

/// A page that is being written, and how long it is by now.
pub(super) struct Counted<'a> {
    out: &'a mut dyn Write,
    bytes: u64,
}

impl<'a> Counted<'a> {
    pub(super) fn new(out: &'a mut dyn Write) -> Counted<'a> {
        Counted { out, bytes: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An element of its own with one value, which the page's script finds by its id.
    pub(super) fn data_block(&mut self, id: &str, value: &impl Serialize) -> io::Result<()> {
        write!(self, "<script type=\"application/json\" id=\"{id}\">")?;
        self.write_all(&embedded(value))?;
        self.write_all(b"</script>\n")
    }
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.out.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// A value as JSON in one line that may stand inside a script element.
///
/// `<`, `>` and `&` occur in JSON only inside strings, where they may be written as escapes; without them there is no end
/// of an element, no comment and no entity. The two line separators go the same way: not every parser takes them in a string.
pub(super) fn embedded(value: &impl Serialize) -> Vec<u8> {
    let mut escaped = Escaped(Vec::new());
    serde_json::to_writer(&mut escaped, value).expect("what is shown has string keys, and memory takes it all");
    escaped.0
}

struct Escaped(Vec<u8>);

impl Write for Escaped {
    /// Takes whole characters, as the serialiser hands them over.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| matches!(byte, b'<' | b'>' | b'&' | 0xe2)) {
            let (plain, from) = rest.split_at(at);
            self.0.extend_from_slice(plain);
            let (escape, length): (&[u8], usize) = match from {
                [b'<', ..] => (b"\\u003c", 1),
                [b'>', ..] => (b"\\u003e", 1),
                [b'&', ..] => (b"\\u0026", 1),
                [0xe2, 0x80, 0xa8, ..] => (b"\\u2028", 3),
                [0xe2, 0x80, 0xa9, ..] => (b"\\u2029", 3),
                _ => (&from[..1], 1),
            };
            self.0.extend_from_slice(escape);
            rest = &from[length..];
        }
        self.0.extend_from_slice(rest);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A text, or as much of it as there is room for.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub(super) enum Shown {
    Whole(String),
    Cut {
        text: String,
        /// How many bytes all of it has.
        bytes: usize,
    },
}

/// Cuts texts to what is left of a limit, and counts those that were cut.
#[derive(Debug)]
pub(super) struct Scissors<'a> {
    left_bytes: usize,
    cut: &'a mut u64,
}

impl<'a> Scissors<'a> {
    pub(super) fn new(limit_bytes: usize, cut: &'a mut u64) -> Scissors<'a> {
        Scissors { left_bytes: limit_bytes, cut }
    }

    /// A text in the room that is left, which is less afterwards.
    pub(super) fn take(&mut self, mut text: String) -> Shown {
        let bytes = text.len();
        if bytes <= self.left_bytes {
            self.left_bytes -= bytes;
            return Shown::Whole(text);
        }
        *self.cut += 1;
        let end = (0..=self.left_bytes).rev().find(|&end| text.is_char_boundary(end)).unwrap_or(0);
        text.truncate(end);
        self.left_bytes = 0;
        Shown::Cut { text, bytes }
    }
}

/// The beginning of a text in one line, for a row of the table.
pub(super) fn beginning(text: &str) -> String {
    const SHOWN_CHARS: usize = 160;
    let mut chars = text.chars().map(|char| if char == '\n' || char == '\t' { ' ' } else { char });
    let shown: String = chars.by_ref().take(SHOWN_CHARS).collect();
    if chars.next().is_some() { shown + "…" } else { shown }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_byte_of_a_value_can_end_its_element_and_all_of_it_reads_back() {
        for text in
            ["</script>", "<!--<script>", "]]>", "&lt;", "\u{2028}\u{2029}", "\0\u{7f}\u{85}", "→ é € ‰ 𝄞", "\\u003c"]
        {
            let json = String::from_utf8(embedded(&[text])).unwrap();
            assert!(!json.contains(['<', '>', '&', '\u{2028}', '\u{2029}', '\0', '\n']), "{json}");
            assert_eq!(serde_json::from_str::<[String; 1]>(&json).unwrap(), [text]);
        }
    }

    #[test]
    fn a_text_is_cut_between_characters_and_says_how_long_it_was() {
        let mut cut = 0;
        let mut scissors = Scissors::new(4, &mut cut);
        assert_eq!(scissors.take("a".into()), Shown::Whole("a".into()));
        assert_eq!(scissors.take("€€".into()), Shown::Cut { text: "€".into(), bytes: 6 });
        assert_eq!(scissors.take("b".into()), Shown::Cut { text: String::new(), bytes: 1 });
        assert_eq!(scissors.take(String::new()), Shown::Whole(String::new()));
        assert_eq!(cut, 2);
    }

    #[test]
    fn a_row_gets_one_line() {
        assert_eq!(beginning("a\nb"), "a b");
        assert_eq!(beginning(&"x".repeat(161)).chars().count(), 161);
    }
}
