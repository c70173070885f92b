//! Where two texts part, told so that a person sees it.

use std::fmt::Write;

/// How many characters of a line are shown.
const SHOWN_CHARS: usize = 120;

/// How many of them come before the difference.
const BEFORE_CHARS: usize = 40;

/// Where the prompt of now is no longer the stored one: the number of the line, the line before it, and both lines, of each as
/// much as can be read. `None` if they are the same.
pub(super) fn difference(stored: &str, now: &str) -> Option<String> {
    if stored == now {
        return None;
    }
    let same_bytes = stored.bytes().zip(now.bytes()).take_while(|(one, other)| one == other).count();
    // What differs may be the middle of a character, or of the sign that ends a line.
    let same = (0..=same_bytes).rev().find(|&at| stored.is_char_boundary(at) && now.is_char_boundary(at)).unwrap_or(0);
    let line_start = stored[..same].rfind('\n').map_or(0, |end| end + 1);
    let number = stored[..line_start].matches('\n').count() + 1;
    let mut told = format!("the prompt is not the stored one: line {number} differs");
    if line_start > 0 {
        let before = &stored[..line_start - 1];
        let before = &before[before.rfind('\n').map_or(0, |end| end + 1)..];
        add_line(&mut told, ' ', number - 1, Some(&shown(before, 0)));
    }
    let column = stored[line_start..same].chars().count();
    for (sign, text) in [('-', stored), ('+', now)] {
        let line = (line_start < text.len() || line_start == 0).then(|| &text[line_start..]);
        // With the sign that ends it, so that a line that goes on differs from one that is the last.
        let line = line.map(|rest| &rest[..rest.find('\n').map_or(rest.len(), |end| end + 1)]);
        add_line(&mut told, sign, number, line.map(|line| shown(line, column)).as_deref());
    }
    Some(told)
}

fn add_line(told: &mut String, sign: char, number: usize, line: Option<&str>) {
    let line = line.unwrap_or("(there is no such line)");
    write!(told, "\n{sign} {number}: {line}").expect("writing into a string does not fail");
}

/// The part of a line around a column, with what cannot be seen written out.
fn shown(line: &str, column: usize) -> String {
    let first = column.saturating_sub(BEFORE_CHARS);
    let mut shown = String::from(if first > 0 { "…" } else { "" });
    let mut rest = line.chars().skip(first);
    for char in rest.by_ref().take(SHOWN_CHARS) {
        let is_plain = char == ' ' || !(char.is_control() || char.is_whitespace() || is_invisible(char));
        if is_plain {
            shown.push(char);
        } else {
            shown.extend(char.escape_default());
        }
    }
    if rest.next().is_some() {
        shown.push('…');
    }
    shown
}

/// Takes no room, or turns what follows around.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(stored: &str, now: &str) -> Vec<String> {
        difference(stored, now).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_first_line_that_differs_is_told_with_the_one_before() {
        assert_eq!(difference("a\nb", "a\nb"), None);
        let expected =
            ["the prompt is not the stored one: line 3 differs", "  2: two", "- 3: three\\n", "+ 3: trois\\n"];
        assert_eq!(told("one\ntwo\nthree\nfour", "one\ntwo\ntrois\nfour"), expected);
        assert_eq!(told("a", "b")[1..], ["- 1: a", "+ 1: b"]);
        assert_eq!(told("", "b")[1..], ["- 1: ", "+ 1: b"]);
    }

    #[test]
    fn what_ends_earlier_or_cannot_be_seen_is_told_too() {
        assert_eq!(told("a\n", "a\nb")[1..], ["  1: a", "- 2: (there is no such line)", "+ 2: b"]);
        assert_eq!(told("a\nb", "a")[1..], ["- 1: a\\n", "+ 1: a"]);
        assert_eq!(told("a\r\nb", "a\nb")[1..], ["- 1: a\\r\\n", "+ 1: a\\n"]);
        assert_eq!(told("a b", "a\u{a0}b\u{202e}\u{0}")[1..], ["- 1: a b", "+ 1: a\\u{a0}b\\u{202e}\\u{0}"]);
        assert_eq!(told("caf\u{e9}", "caf\u{e8}")[1..], ["- 1: café", "+ 1: cafè"]);
    }

    #[test]
    fn long_lines_are_shown_around_the_difference() {
        let stored = format!("{}X{}", "é".repeat(100_000), "y".repeat(100_000));
        let told = told(&stored, &stored.replace('X', "Z"));
        assert!(told.iter().all(|line| line.chars().count() < 150), "{told:?}");
        assert!(told[1].contains("éXy") && told[2].contains("éZy"), "{told:?}");
    }
}
