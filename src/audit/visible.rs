//! Texts of strangers for a terminal: nothing in them moves the cursor, changes colours, or turns the direction of writing.

use std::fmt::{self, Write};

/// A text in which whatever a terminal would obey is shown instead, such as `\u{1b}`. Line ends are kept, tabs too.
///
/// ```
/// use workcrew::audit::visible;
///
/// assert_eq!(visible("one\n\u{1b}[2Jtwo").to_string(), "one\n\\u{1b}[2Jtwo");
/// assert_eq!(visible::line("one\ntwo").to_string(), "one\\ntwo");
/// ```
pub fn visible(text: &str) -> Visible<'_> {
    Visible { text, keeps_lines: true }
}

/// The same on one line: line ends and tabs are shown too.
pub fn line(text: &str) -> Visible<'_> {
    Visible { text, keeps_lines: false }
}

/// How much of a text is told where others are told too.
const SHORT_CHARS: usize = 200;

/// The same, and no longer than fits between others.
pub(crate) fn short(text: &str) -> String {
    line(text).cut(SHORT_CHARS)
}

/// What [`visible`] gives; it is made to be printed.
#[derive(Clone, Copy, Debug)]
pub struct Visible<'a> {
    text: &'a str,
    keeps_lines: bool,
}

impl Visible<'_> {
    fn write(&self, out: &mut dyn Write) -> fmt::Result {
        for sign in self.text.chars() {
            match sign {
                '\n' | '\t' if self.keeps_lines => out.write_char(sign)?,
                sign if is_obeyed(sign) => write!(out, "{}", sign.escape_default())?,
                sign => out.write_char(sign)?,
            }
        }
        Ok(())
    }

    /// At most so many characters of it, and a sign that there are more.
    pub fn cut(&self, limit: usize) -> String {
        let text = self.to_string();
        match text.char_indices().nth(limit) {
            None => text,
            Some(_) => {
                let end = text.char_indices().nth(limit.saturating_sub(1)).map_or(0, |(at, _)| at);
                format!("{}…", &text[..end])
            }
        }
    }
}

impl fmt::Display for Visible<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.width().is_some() {
            let mut shown = String::new();
            self.write(&mut shown)?;
            return f.pad(&shown);
        }
        self.write(f)
    }
}

/// Whether a sign does something instead of being seen: line ends and other control characters, those that turn the direction of writing, and those that take no
/// room, in which words could be hidden.
pub fn is_obeyed(sign: char) -> bool {
    let is_unseen = matches!(
        sign,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    // Between the parts of a composed sign, such as a family, it does no harm.
    (sign.is_control() || is_unseen) && sign != '\u{200d}'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        let harmful = "\u{7}\u{8}\r\u{1b}]0;x\u{9b}\u{202e}\u{2066}\u{200b}\u{feff}\0\u{7f}";
        let shown = visible(harmful).to_string();
        assert_eq!(shown, "\\u{7}\\u{8}\\r\\u{1b}]0;x\\u{9b}\\u{202e}\\u{2066}\\u{200b}\\u{feff}\\u{0}\\u{7f}");
        assert!(shown.chars().all(|sign| !is_obeyed(sign)));
        assert_eq!(visible("Grüße, 你好, 👩‍👧\n\t…").to_string(), "Grüße, 你好, 👩‍👧\n\t…");
    }

    #[test]
    fn a_text_is_cut_between_characters_and_padded_to_a_width() {
        assert_eq!(line("grüße").cut(5), "grüße");
        assert_eq!(line("grüße!").cut(5), "grüß…");
        assert_eq!(line("a\u{1b}").cut(3), "a\\…");
        assert_eq!(format!("{:<4}|{:>4}", line("ab"), line("é")), "ab  |   é");
        assert_eq!(line("").cut(0), "");
        assert_eq!(line("x").cut(0), "…");
    }
}
