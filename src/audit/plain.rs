//! Text of others on a terminal: what is stored may hold anything, and nothing of it may move a cursor or hide a line.

/// How much of one text is shown.
const SHOWN_CHARS: usize = 200;

/// A text on one line, without what a terminal would obey, and not too long.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::new();
    for (count, char) in text.chars().enumerate() {
        if count == SHOWN_CHARS {
            shown.push('…');
            break;
        }
        if is_obeyed(char) { shown.extend(char.escape_unicode()) } else { shown.push(char) }
    }
    shown
}

/// Control characters, and those that turn the direction of writing round or join words invisibly.
fn is_obeyed(char: char) -> bool {
    let is_format =
        matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}');
    char.is_control() || is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert_eq!(plain("a\u{1b}[2Jb\nc\u{202e}d"), r"a\u{1b}[2Jb\u{a}c\u{202e}d");
        assert_eq!(plain("schön, ✓"), "schön, ✓");
        assert_eq!(plain(&"x".repeat(10_000)).chars().count(), SHOWN_CHARS + 1);
    }
}
