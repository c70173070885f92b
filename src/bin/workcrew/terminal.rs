//! What strangers wrote on its way to standard output: a terminal must not obey it, and whoever else reads gets it as it is.

use std::io::{self, IsTerminal, Write};

use workcrew::audit::visible;

/// Standard output for what was not made harmless before. On a terminal whatever that would obey is shown instead.
pub fn shown<'a>(out: &'a mut dyn Write) -> Box<dyn Write + 'a> {
    if io::stdout().is_terminal() { Box::new(Shown { out, rest: Vec::new() }) } else { Box::new(out) }
}

struct Shown<'a> {
    out: &'a mut dyn Write,
    /// The beginning of a character whose end has not come yet.
    rest: Vec<u8>,
}

impl Write for Shown<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        let mut text = String::new();
        let mut begun = 0;
        for chunk in self.rest.utf8_chunks() {
            text.push_str(chunk.valid());
            begun += chunk.valid().len();
            // No character is longer than four bytes: fewer at the end may be one that goes on.
            if begun + chunk.invalid().len() == self.rest.len() && chunk.invalid().len() < 4 {
                break;
            }
            begun += chunk.invalid().len();
            text.push(char::REPLACEMENT_CHARACTER);
        }
        self.rest.drain(..begun);
        write!(self.out, "{}", visible(&text))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_a_terminal_would_obey_is_shown_however_it_is_cut() {
        let text = "a\u{1b}[2J\u{9b}ü\u{202e}👩\n".as_bytes();
        let bytes = [text, b"\xff\xfe!\n"].concat();
        for size in 1..bytes.len() {
            let mut out = Vec::new();
            let mut shown = Shown { out: &mut out, rest: Vec::new() };
            bytes.chunks(size).for_each(|part| shown.write_all(part).unwrap());
            drop(shown);
            let out = String::from_utf8(out).unwrap();
            assert_eq!(out, "a\\u{1b}[2J\\u{9b}ü\\u{202e}👩\n\u{fffd}\u{fffd}!\n", "{size} at a time");
        }
    }
}
